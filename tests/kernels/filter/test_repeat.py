"""Repeat: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import filter as subject
from pmpp.kernels.filter import repeat as room
from pmpp.runtime import device
from tests.kernels.filter.wrong_repeat import RIGHT
from tests.kernels.filter.wrong_repeat import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe

INPUTS = room.inputs()
DECISIVE = ("some of length 0", "fewer than the lengths say", "more than the lengths say")  # the contract runs all
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def numpys(values, lengths, total):
    made = np.repeat(values, lengths)
    return np.append(made, np.repeat(values[-1:], max(total - made.size, 0)))[:total]


def right(result, *given):
    expected = numpys(*given)
    return result.dtype == expected.dtype and result.tobytes() == expected.tobytes()


def faults(function):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for name in DECISIVE:
        given = INPUTS[name]
        if found := judge.faults(function, given, lambda result, given=given: right(result, *given)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    assert right(room.reference(*INPUTS[name]), *INPUTS[name])


@each_rung
@hypothesis.given(
    runs=st.integers(1, 600),
    longest=st.sampled_from([0, 1, 3, 60]),
    dtype=st.sampled_from(room.DTYPES),
    more=st.sampled_from([-10, 0, 0, 10]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=5)
def test_any_runs(rung, runs, longest, dtype, more, seed):
    rng = np.random.default_rng(seed)
    values, lengths = rng.integers(-99, 99, runs).astype(dtype), rng.integers(0, longest + 1, runs).astype(np.int32)
    given = values, lengths, max(int(lengths.sum()) + more, 0)
    assert right(device.to_host(rung(*given)), *given)


@each_rung
def test_a_stream(rung):
    (values, lengths, n), stream = INPUTS["random"], cuda.stream()
    result = rung(device.to_device(values), device.to_device(lengths), n, stream=stream)
    stream.synchronize()
    assert right(device.to_host(result), values, lengths, n)


def test_the_plain_function():
    assert subject.repeated is room.by_tiles


# ------------------------------------------------------------------------------------------------------------ bad input

V, L = np.arange(3, dtype=np.float32), np.int32([1, 2, 0])
BAD = {
    "another dtype": ((V.astype(np.float64), L, 3), TypeError, "values must be float32 or int32, was float64"),
    "lengths of another dtype": ((V, L.astype(np.int64), 3), TypeError, "lengths must be int32, was int64"),
    "two numbers of runs": ((V, L[:2], 3), ValueError, r"lengths must have shape \(3,\), had \(2,\)"),
    "less than nothing": ((V, L, -1), ValueError, "total must be .* was -1"),
    "half an element": ((V, L, 2.5), TypeError, "total must be an integer"),
    "a negative length": ((V, np.int32([1, -2, 4]), 3), ValueError, "lengths must not be negative, was -2 at 1"),
    "too many elements": ((V, np.int32([2**30] * 3), 3), ValueError, "lengths must add up .*, was 3221225472 together"),
    "something of nothing": ((V[:0], L[:0], 1), ValueError, "total must be 0 as there are no values, was 1"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_counters_of_by_tiles():
    """One search for the first and one for the last element of a tile; then an end and its neighbour for each run."""
    runs, each = 64, room.TILE // 32
    values, lengths = np.arange(runs, dtype=np.int32), np.full(runs, each, np.int32)
    n = runs * each
    result, reports = observe(room.by_tiles, values, lengths, n)
    assert right(result, values, lengths, n)
    (one,) = (report for report in reports if report.kernel == "by_tiles_kernel")
    assert one.counters["global_store_bytes"] == 4 * n
    searched, begun = 2 * 2 * 6, 2 * 31  # two tiles with two searches of six steps; the first run of each is searched
    assert one.counters["global_load_bytes"] == 4 * (n + searched + 2 * begun)


@interpreter_only
def test_counters_of_by_search():
    """log r steps for each element."""
    values, lengths = np.arange(64, dtype=np.int32), np.full(64, 3, np.int32)
    _, reports = observe(room.by_search, values, lengths, 192)
    (one,) = (report for report in reports if report.kernel == "by_search_kernel")
    assert one.counters["global_load_bytes"] == 4 * 192 * (6 + 1)


@pytest.mark.gpu
@each_rung
def test_torch_agrees(rung):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    lengths = torch.randint(0, 9, (1_000_003,), dtype=torch.int32, device="cuda")
    values = torch.arange(lengths.shape[0], dtype=torch.float32, device="cuda")
    expected = torch.repeat_interleave(values, lengths)
    found = torch.as_tensor(cupy.asarray(rung(values, lengths, expected.shape[0])), device="cuda")
    assert bool((found == expected).all())
