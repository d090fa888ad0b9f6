"""Segmented scan: results against one scan per segment, arguments, schedules, and that it compiles."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import simt
from pmpp.kernels import scan
from pmpp.kernels.scan import segmented as module
from pmpp.kernels.scan.segmented import COARSE, TILE, segmented_scan
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from tests.support.wrong import observe, result_of, total

INPUTS = module.inputs()
KINDS = [(op, exclusive) for op in scan.OPERATORS for exclusive in (False, True)]
each_kind = pytest.mark.parametrize(("op", "exclusive"), KINDS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


@functools.cache
def expected_of(name, op, exclusive):
    with np.errstate(all="ignore"):
        return module.reference(*INPUTS[name], op, exclusive=exclusive)


def tolerance(x, heads, op):
    """As in test_scan.py, of the sum of |x| from the segment's start: nothing before a head is ever added.

    Additions on an element's way: COARSE in a run, five in its warp, eight over the warps, one per tile at most, and
    8 for the joins between them. Of 16-bit numbers these are additions of float32, and one rounding to 16 bits.
    """
    if op != "sum" or x.dtype.kind == "i":
        return np.zeros(x.size)
    short, wide = x.dtype.itemsize == 2, x.astype(np.float64)
    size = module.reference(np.where(np.isfinite(wide), np.abs(wide), 0), heads)
    eps = np.finfo(np.float32 if short else x.dtype).eps
    allowed = (COARSE + 5 + 8 + 8 + x.size / TILE) * eps / 2 * size
    return allowed + (rounding(size, x.dtype) if short else 0)


def assert_right(result, x, heads, op, exact):
    assert (result.shape, result.dtype) == (x.shape, x.dtype)
    if x.dtype.itemsize == 2:
        exact, result = exact.astype(np.float64), result.astype(np.float64)
        exact = np.where((x.dtype == np.float16) & (abs(exact) >= 65520), np.copysign(np.inf, exact), exact)
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(result[~finite], exact[~finite])
    if x.dtype.kind == "i":
        np.testing.assert_array_equal(result, exact.astype(x.dtype))  # sums wrap
    else:
        assert (np.abs(result[finite] - exact[finite]) <= tolerance(x, heads, op)[finite]).all()


@pytest.mark.parametrize("name", INPUTS)
def test_every_input(name):
    x, heads = INPUTS[name]
    odd = list(INPUTS).index(name) % 2
    for op, exclusive in ("sum", not odd), ("max", bool(odd)):
        result = result_of(segmented_scan, x, heads, op, exclusive=exclusive)
        assert_right(result, x, heads, op, expected_of(name, op, exclusive))


@each_kind
def test_the_reference_scans_each_segment_by_itself(op, exclusive):
    x, heads = np.float32([3, -1, 4, 1, -5, 9]), np.array([False, False, True, False, True, False])
    expected = {
        ("sum", False): [3, 2, 4, 5, -5, 4],
        ("sum", True): [0, 3, 0, 4, 0, -5],
        ("max", False): [3, 3, 4, 4, -5, 9],
        ("max", True): [-np.inf, 3, -np.inf, 4, -np.inf, -5],
    }
    np.testing.assert_array_equal(module.reference(x, heads, op, exclusive=exclusive), expected[op, exclusive])
    heads = heads.astype(np.uint8) * 7
    np.testing.assert_array_equal(
        device.to_host(segmented_scan(x, heads, op, exclusive=exclusive)), expected[op, exclusive]
    )


@hypothesis.given(
    n=st.one_of(st.integers(0, 100), st.integers(1, 3 * TILE)),
    dtype=st.sampled_from(known(scan.DTYPES)),
    kind=st.sampled_from(KINDS),
    share=st.sampled_from([0, 1e-3, 0.05, 0.5, 1]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=12)
def test_any_length_type_and_share_of_heads(n, dtype, kind, share, seed):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(n) * 1000).astype(dtype)
    heads = (rng.random(n) < share).astype(np.uint8)
    op, exclusive = kind
    result = device.to_host(segmented_scan(x, heads, op, exclusive=exclusive))
    assert_right(result, x, heads, op, module.reference(x, heads, op, exclusive=exclusive))


def test_without_heads_it_is_a_scan():
    x = np.random.default_rng(0).integers(-9, 10, 2 * TILE + 9)
    heads = np.zeros(x.size, np.bool_)
    np.testing.assert_array_equal(device.to_host(segmented_scan(x, heads)), np.cumsum(x))


@interpreter_only
@pytest.mark.parametrize("seed", range(2))
def test_blocks_may_run_in_any_order(seed):
    rng = np.random.default_rng(seed)
    x, heads = rng.integers(-9, 10, 4 * TILE + 5), rng.random(4 * TILE + 5) < 3e-4
    with simt.schedule("shuffled", seed):
        result, reports = observe(segmented_scan, x, heads)
    assert reports[-1].schedule == f"shuffled, seed {seed}"
    np.testing.assert_array_equal(result, module.reference(x, heads))


@interpreter_only
def test_a_tile_with_a_head_need_not_hand_anything_on():
    """It publishes once, as complete; a tile without one publishes its own total, and later its end."""
    x, heads = np.ones(3 * TILE, np.float32), np.zeros(3 * TILE, np.bool_)
    result, reports = observe(segmented_scan, x, heads)
    np.testing.assert_array_equal(result, np.arange(1, 3 * TILE + 1))
    heads[5] = heads[TILE + 5] = heads[2 * TILE + 5] = True
    result, fewer = observe(segmented_scan, x, heads)
    np.testing.assert_array_equal(result, module.reference(x, heads))
    assert total(reports, "atomic_requests") - total(fewer, "atomic_requests") == 3


@interpreter_only
def test_an_element_is_read_once_and_written_once():
    n = 8 * TILE
    result, reports = observe(segmented_scan, np.ones(n, np.float32), np.zeros(n, np.bool_))
    np.testing.assert_array_equal(result, np.arange(1, n + 1))
    moved = total(reports, "global_load_bytes") + total(reports, "global_store_bytes")
    assert module.cost(n).bytes <= moved < 1.02 * module.cost(n).bytes
    assert total(reports, "flops_f64") == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((np.ones(5, np.float32), np.zeros(4, np.bool_)), ValueError, r"heads must have shape \(5,\)"),
        ((np.ones(5, np.float32), np.zeros(5, np.float32)), TypeError, "heads must be bool or uint8, was float32"),
        ((np.ones(5, np.uint8), np.zeros(5, np.bool_)), TypeError, "x must be float32, .* was uint8"),
        ((np.ones(5, np.float32), np.zeros(5, np.bool_), "min"), ValueError, "op must be 'sum' or 'max', was 'min'"),
    ],
)
def test_bad_input(arguments, error, words):
    with pytest.raises(error, match=words):
        segmented_scan(*arguments)


@pytest.mark.gpu
@each_kind
def test_a_large_one_on_the_gpu(op, exclusive):
    rng = np.random.default_rng(0)
    x, heads = rng.integers(-8, 9, 2**22 + 3).astype(np.float32), rng.random(2**22 + 3) < 1e-4
    begins = np.flatnonzero(np.r_[True, heads[1:]])
    accumulate = {"sum": np.cumsum, "max": np.maximum.accumulate}[op]
    first = scan.identity_of(op, x.dtype)
    parts = [accumulate(part) for part in np.split(x, begins[1:])]
    parts = [np.r_[first, part[:-1]] for part in parts] if exclusive else parts
    for _ in range(5):
        result = device.to_host(segmented_scan(x, heads, op, exclusive=exclusive))
        np.testing.assert_array_equal(result, np.concatenate(parts))
