"""Runs: values and lengths, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import filter as subject
from pmpp.kernels.filter import runs as room
from pmpp.runtime import device
from tests.kernels.filter.wrong_runs import RIGHT
from tests.kernels.filter.wrong_runs import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe

INPUTS = room.inputs()
DECISIVE = ("one", "a run from one tile into the next", "-0, NaN, and not finite")
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def numpys(x):
    """Values and lengths, of where neighbours differ."""
    begins = np.flatnonzero(np.append(np.ones(min(x.size, 1), bool), x[1:] != x[:-1]))
    return x[begins], np.diff(np.append(begins, x.size)).astype(np.int32)


def right(result, x):
    """The same to the last bit."""
    same = [
        found.dtype == one.dtype and found.tobytes() == one.tobytes()
        for found, one in zip(result, numpys(x), strict=True)
    ]
    return all(same)


def faults(function, names=DECISIVE):
    """All that is wrong with a version of the room's function on the first input where anything is, worst first."""
    for name in names:
        (x,) = INPUTS[name]
        if found := judge.faults(function, (x,), lambda result, x=x: right(result, x)):
            return found
    return []


@each_rung
def test_a_rung_has_no_fault(rung):
    assert faults(rung, INPUTS) == []


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
    (x,) = INPUTS[name]
    assert right(room.reference(x), x)


@each_rung
@hypothesis.given(
    n=st.integers(0, 2 * room.TILE + 1),
    dtype=st.sampled_from(room.DTYPES),
    values=st.sampled_from([1, 2, 100]),
    each=st.sampled_from([1, 30, 700]),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=4)
def test_any_length_type_place_and_runs(rung, n, dtype, values, each, offset, seed):
    x = np.random.default_rng(seed).integers(0, values, n // each + 1).repeat(each)[:n].astype(dtype)
    assert right(rung(misaligned(x, offset)).copy_to_host(), x)
    alone, nothing = rung(x, lengths=False).copy_to_host()
    assert alone.tobytes() == numpys(x)[0].tobytes()
    assert nothing is None


@interpreter_only
@pytest.mark.parametrize("schedule", ["lockstep", "shuffled"])
def test_blocks_that_take_turns(schedule):
    x = np.random.default_rng(1).integers(0, 2, 3 * room.TILE + 7).astype(np.int32)
    with simt.schedule(schedule):
        assert right(room.single_pass(x).copy_to_host(), x)


@each_rung
def test_a_stream(rung):
    (x,), stream = INPUTS["sorted"], cuda.stream()
    found = rung(device.to_device(x), stream=stream)
    stream.synchronize()
    assert right(found.copy_to_host(), x)


# -------------------------------------------------------------------------------------------------- the plain functions


def test_unique_is_numpys_of_a_sorted_vector():
    (x,) = INPUTS["sorted"]
    np.testing.assert_array_equal(device.to_host(subject.unique(x)), np.unique(x), strict=True)
    assert device.to_host(subject.unique(x[:0])).shape == (0,)


def test_run_lengths_and_back():
    (x,), stream = INPUTS["the largest and the smallest"], cuda.stream()
    values, lengths = subject.run_lengths(device.to_device(x), stream=stream)
    assert right((device.to_host(values), device.to_host(lengths)), x)
    np.testing.assert_array_equal(device.to_host(subject.repeated(values, lengths, x.size)), x, strict=True)


# ------------------------------------------------------------------------------------------------------------ bad input

X = np.arange(5, dtype=np.float32)
BAD = {
    "another dtype": ((X.astype(np.float64),), TypeError, "x must be float32 or int32, was float64"),
    "a matrix": ((np.ones((2, 3), np.float32),), ValueError, "x must have 1 dimension, had 2"),
    "no flag": ((X, 2), TypeError, "lengths must be True or False"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_counters_of_single_pass():
    """Each element is read, and once more as the one before the next; value and start of each run are written once."""
    n = 2 * room.TILE
    x = np.repeat(np.arange(n // 4, dtype=np.int32), 4)
    (_, lengths), reports = observe(room.single_pass, x)
    (one,) = (report for report in reports if report.kernel == "single_pass_kernel")
    assert one.counters["global_load_bytes"] == 4 * (n + n - 1)
    assert one.counters["global_store_bytes"] == 8 * n // 4 + 8
    (last,) = (report for report in reports if report.kernel == "lengths_kernel")
    assert last.counters["global_store_bytes"] == 4 * n // 4 == lengths.nbytes
    assert not any(report.kernel == "lengths_kernel" for report in observe_values(x))


def observe_values(x):
    with simt.record("count") as reports:
        room.single_pass(x, lengths=False)
    return reports


@pytest.mark.gpu
@each_rung
def test_torch_agrees(rung):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    x = torch.randint(0, 3, (10_000_019,), dtype=torch.int32, device="cuda")
    values, lengths = torch.unique_consecutive(x, return_counts=True)
    found = rung(x).trimmed()
    assert bool((torch.as_tensor(cupy.asarray(found[0]), device="cuda") == values).all())
    assert bool((torch.as_tensor(cupy.asarray(found[1]), device="cuda") == lengths).all())
