"""All-reduce by peer memory: the kernels of all ranks in one launch give what NumPy gives, and wrong ones are named."""

import re

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from pmpp import simt
from pmpp.kernels.common import peers
from pmpp.kernels.common.ranks import Ranks
from pmpp.runtime import device
from tests.kernels.common.peers_wrong import WRONG

WAYS = ("packets", "staged", "sent", "one_shot", "two_shot", "copied")
UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "mean": np.add}
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="a GPU does not say what is wrong")


def wanted(parts, op):
    """The parts combined in the order of the ranks, in their dtype: the kernels promise these bits."""
    with np.errstate(all="ignore"):
        total = parts[0]
        for part in parts[1:]:
            total = UFUNCS[op](total, part)
        return total / parts.dtype.type(len(parts)) if op == "mean" else total


def given(rng, size, n, dtype):
    values = rng.normal(size=(size, n)) * 1000
    return values.astype(dtype)


@hypothesis.given(
    way=st.sampled_from(WAYS),
    size=st.integers(2, 4),
    n=st.integers(1, 150),
    op=st.sampled_from(list(peers.OPS)),
    dtype=st.sampled_from(["float32", "int32"]),
    seed=st.integers(0, 99),
)
def test_all_ranks_get_the_bits_of_a_sum_in_their_order(way, size, n, op, dtype, seed):
    hypothesis.assume(op != "mean" or dtype == "float32")
    parts = given(np.random.default_rng(seed), size, n, dtype)
    found = getattr(Ranks(size, dtype), way)(parts, op)
    for result in found:
        np.testing.assert_array_equal(result, wanted(parts, op))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rounds_follow_one_another_with_arrays_of_other_lengths(rng, size):
    """Memory is used again, by blocks that have taken part in other numbers of rounds."""
    ranks = Ranks(size)
    for n in (100, 3, 200, 64, 65, 1, 150):
        for way in ("staged", "packets", "copied", "one_shot", "sent", "two_shot", "packets", "sent", "copied"):
            parts = given(rng, size, n, np.float32)
            np.testing.assert_array_equal(getattr(ranks, way)(parts), np.tile(wanted(parts, "sum"), (size, 1)))
    assert device.to_host(ranks.lost)[0] == 0


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_an_array_that_begins_between_vectors(rng, shift):
    parts = given(rng, 2, 150, np.float32)
    np.testing.assert_array_equal(Ranks(2).staged(parts, shift=shift), np.tile(wanted(parts, "sum"), (2, 1)))


def test_results_in_the_place_of_the_arrays(rng):
    parts = given(rng, 3, 131, np.float32)
    for way in ("two_shot", "copied"):
        found = getattr(Ranks(3), way)(parts, in_place=True)
        np.testing.assert_array_equal(found, np.tile(wanted(parts, "sum"), (3, 1)))


@pytest.mark.parametrize("way", WAYS)
def test_a_nan_of_one_rank_is_in_all_results(way):
    parts = np.float32([[1, np.nan, -0.0, np.inf, 5], [np.nan, 2, 0.0, -np.inf, 4]])
    for op in ("sum", "max", "min"):
        found = getattr(Ranks(2), way)(parts, op)
        np.testing.assert_array_equal(found, np.tile(wanted(parts, op), (2, 1)))


@pytest.mark.parametrize("way", WAYS)
def test_who_does_not_come_is_named(way):
    """The arrays of three ranks, of which a launch runs two: they look for the third in vain."""
    ranks = Ranks(3, patience=50)
    ranks.size = 2  # that run
    if way == "copied":  # what adds looks for nobody
        ranks.meet()
    else:
        getattr(ranks, way)(np.ones((2, 40), np.float32))
    assert device.to_host(ranks.lost)[0] == 1 + 2


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_kernel_is_rejected_for_its_reason(rng, wrong):
    ranks, found = Ranks(2), set()
    for schedule in ("auto", "blocks", "blocks"):
        parts = given(rng, 2, 100 if wrong.way in ("packets", "one_shot") else 300, np.float32)
        with simt.record("check", collect=True) as reports, simt.schedule(schedule):
            result = getattr(ranks, wrong.way)(parts, kernel=wrong.kernel)
        found |= {hazard.kind for report in reports for hazard in report.hazards}
        if not (result == wanted(parts, "sum")).all():
            found.add("wrong result")
    assert wrong.reason in found


@interpreter_only
@pytest.mark.parametrize("way", WAYS)
def test_the_kernels_have_no_hazard(rng, way):
    ranks = Ranks(2)
    for _ in range(3):
        with simt.record("check", collect=True) as reports:
            getattr(ranks, way)(given(rng, 2, 100, np.float32))
        assert [hazard.kind for report in reports for hazard in report.hazards] == []


@pytest.mark.parametrize("kernel", ["staged", "two_shot", "sent", "arrived"])
def test_integers_compile_too(ptx, kernel):
    x, flags, lost = np.zeros(4, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int32)
    arguments = {
        "staged": (x, x, 0, (1, 1), 64, (1, 1), flags, 0, 4, 4, 1, 9, lost),
        "two_shot": (x, 0, (1, 1), (1, 1), (1, 1), flags, 0, 4, 9, lost),
        "sent": (x, x, 0, (1, 1), 64, (1, 1), flags, 0, 4, 4, 9, lost),
        "arrived": (x, x, 0, (1, 1), 64, 0, 0, 4, 4),
    }
    text = ptx(getattr(peers, f"{kernel}_kernel"), *arguments[kernel])
    assert "ld.global.v4.u32" in text
    assert "st.global.v4.u32" in text


def test_the_instructions(ptx):
    """Signals go past the caches of all GPUs; numbers go in vectors."""
    x, flags, lost = np.zeros(4, np.float32), np.zeros(1, np.int64), np.zeros(1, np.int32)
    staged = ptx(peers.staged_kernel, x, x, 0, (1, 1), 64, (1, 1), flags, 0, 4, 4, 1, 9, lost)
    assert "st.release.sys.global.u64" in staged
    assert "ld.acquire.sys.global.u64" in staged
    assert "ld.global.v4.f32" in staged
    packets = ptx(peers.packets_kernel, x, x, 0, (1, 1), 64, flags, 0, 4, 4, 9, lost)
    assert re.findall(r"(?:st|ld)\.relaxed\.sys\.global\.u64", packets)
    assert not re.search(r"\.(?:acquire|release)\.", packets)
