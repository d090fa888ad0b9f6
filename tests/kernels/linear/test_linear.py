"""Linear layers: results, arguments, the choice by shape, and counters against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp.kernels import linear
from pmpp.kernels.linear import ladder as room
from pmpp.kernels.linear import products
from pmpp.runtime import device
from tests.kernels.linear.wrong import RIGHT
from tests.kernels.linear.wrong import RUNGS as WRONG
from tests.support.judge import judge, right
from tests.support.wrong import misaligned, name_of, observe, total

F32 = np.float32
INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


def drawn(seed, rows, features, outputs, bias=True):
    rng = np.random.default_rng(seed)
    x, weight = rng.standard_normal((rows, features), dtype=F32), rng.standard_normal((outputs, features), dtype=F32)
    return x, weight, rng.standard_normal(outputs, dtype=F32) if bias else None


def exact(x, weight, bias=None, activation=None):
    with np.errstate(all="ignore"):
        y = x.astype(np.float64) @ weight.astype(np.float64).T + (0 if bias is None else bias)
    return np.where(y < 0, 0, y) if activation else y


def is_right(result, *arguments):
    return right(result, exact(*arguments), room.tolerance(*arguments))


# -------------------------------------------------------------------------------------------------------------- results

SOME = ["a tile and one", "deep and odd", "one row", "non-finite"]


def faults(layer, names):
    """All that is wrong with a layer, worst first. The contract finds none in the ladder; each in wrong.py has one."""
    for name in names:
        arguments = INPUTS[name]
        judged = judge(layer, arguments, lambda result, arguments=arguments: is_right(result, *arguments))
        found = judged.faults + ["atomics"] * (total(judged.reports, "atomic_requests") > 0)
        if found:
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT, SOME) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    expected = exact(*INPUTS[name])
    found = room.reference(*INPUTS[name])
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    np.testing.assert_allclose(
        found[finite], expected[finite], rtol=0, atol=1e-12 * max(1, abs(expected[finite]).max(initial=0))
    )


@each_rung
@hypothesis.given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 40)),
    offsets=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
    activation=st.sampled_from([None, "relu"]),
    bias=st.booleans(),
)
@hypothesis.settings(max_examples=2)
def test_any_shape_and_alignment(rung, shape, offsets, activation, bias):
    rows, features, outputs = shape
    x, weight, b = drawn(sum(shape), rows, features, outputs, bias)
    out = misaligned(np.full((rows, outputs), np.nan, F32), offsets[2])
    result = rung(misaligned(x, offsets[0]), misaligned(weight, offsets[1]), b, activation, out=out)
    assert result is out
    assert is_right(out.copy_to_host(), x, weight, b, activation)


@each_rung
def test_whole_numbers_are_exact(rung, rng):
    """More than one tile in each direction, and no rounding behind which an error could hide."""
    x, weight = rng.integers(-8, 9, (66, 20)).astype(F32), rng.integers(-8, 9, (68, 20)).astype(F32)
    np.testing.assert_array_equal(device.to_host(rung(x, weight)), x @ weight.T)


@each_rung
def test_the_same_call_gives_the_same_bits(rung):
    x, weight, bias = drawn(1, 20, 21, 12)
    first, second = (device.to_host(rung(x, weight, bias)) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_the_plain_function_is_right():
    x, weight, bias = drawn(2, 11, 12, 9)
    assert is_right(device.to_host(linear.linear(x, weight, bias, activation="relu")), x, weight, bias, "relu")
    assert is_right(device.to_host(linear.linear(x, weight)), x, weight)


# ------------------------------------------------------------------------------------------------------------- few rows


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_of_any_depth(rows):
    """Depths around what 32 lanes read at a time, and around what they have on their way; an odd number of outputs."""
    for features in (4, 128, 132, 516):
        x, weight, bias = drawn(rows, rows, features, 5)
        result, reports = observe(room.by_shape, x, weight, bias, "relu")
        assert [report.kernel for report in reports] == ["few_rows_kernel"] or device.on_gpu()
        assert is_right(result, x, weight, bias, "relu")


@interpreter_only
def test_few_rows_read_each_weight_once():
    x, weight = np.ones((1, 512), F32), np.ones((8, 512), F32)
    _, (report,) = observe(room.by_shape, x, weight)
    warps = 8 // products.OUTPUTS
    # A warp reads two rows of W of 64 sectors each, and the row of x.
    assert report.counters["global_load_sectors"] == 8 * 64 + warps * 64
    assert report.counters["global_load_requests"] == (8 + warps) * 512 // (4 * 32)


@pytest.mark.parametrize("case", ["three rows", "an odd depth", "x misaligned", "weight misaligned"])
def test_what_does_not_suit_a_warp_for_an_output_goes_to_the_tiles(case):
    x, weight, _ = drawn(3, 3 if case == "three rows" else 2, 7 if case == "an odd depth" else 8, 5)
    given = misaligned(x, int(case.startswith("x"))), misaligned(weight, int(case.startswith("weight")))
    result, reports = observe(room.by_shape, *given)
    assert {report.kernel for report in reports} <= {"product_kernel", "add_kernel"}
    assert is_right(result, x, weight)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_counters_of_naive():
    x, weight = np.ones((32, 16), F32), np.ones((32, 16), F32)
    _, (report,) = observe(room.naive, x, weight)
    # A warp: one element of x, and 32 rows of W.
    assert report.counters["global_load_sectors"] == 32 * 16 * (1 + 32)
    assert report.counters["flops"] == room.cost(32, 16, 32).flops


@interpreter_only
def test_counters_of_tiled():
    x, weight = np.ones((32, 64), F32), np.ones((64, 64), F32)
    _, (report,) = observe(room.tiled, x, weight)
    steps = 2 * 2  # blocks, steps of each
    assert report.counters["global_load_sectors"] == steps * 2 * 32 * 4
    assert report.counters["shared_load_wavefronts"] == report.counters["shared_load_requests"] == steps * 32 * 32 * 2
    assert report.counters["shared_store_wavefronts"] == report.counters["shared_store_requests"] == steps * 2 * 32
    assert report.counters["barriers"] == steps * 2


# ------------------------------------------------------------------------------------------------------------ bad input

X, W, B = np.zeros((3, 4), F32), np.zeros((5, 4), F32), np.zeros(5, F32)
BAD = {
    "float64": ((X.astype(np.float64), W), TypeError, "x must be float32, was float64"),
    "integers": ((X, W.astype(np.int32)), TypeError, "weight must be float32, was int32"),
    "a vector": ((X[0], W), ValueError, "x must have 2 dimensions, had 1"),
    "weight transposed": ((X, W.T.copy()), ValueError, r"weight must have shape \(any, 4\), had \(4, 5\)"),
    "not contiguous": ((X, np.zeros((10, 4), F32)[::2]), ValueError, "weight must be contiguous in C order"),
    "bias of the inputs": ((X, W, np.zeros(4, F32)), ValueError, r"bias must have shape \(5,\), had \(4,\)"),
    "bias of two dimensions": ((X, W, B[None]), ValueError, "bias must have 1 dimension"),
    "another activation": ((X, W, B, "gelu"), ValueError, "activation must be None or 'relu', was 'gelu'"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


def test_a_bad_output():
    with pytest.raises(ValueError, match=r"out must have shape \(3, 5\), had \(5, 3\)"):
        linear.linear(X, W, out=device.empty((5, 3), F32))
    with pytest.raises(TypeError, match="out must be float32, was float64"):
        linear.linear(X, W, out=device.empty((3, 5), np.float64))
