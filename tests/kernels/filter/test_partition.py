"""Partition: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import filter as subject
from pmpp.kernels.filter import partition as room
from pmpp.runtime import device
from tests.kernels.filter.wrong_partition import RIGHT
from tests.kernels.filter.wrong_partition import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
DECISIVE = ("one that is not kept", "not finite, and nearly 0")  # the contract runs all of them
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def numpys(x, threshold=0):
    kept = x > x.dtype.type(threshold)
    return np.concatenate((x[kept], x[~kept]))


def right(result, x, threshold=0):
    return result.dtype == x.dtype and result.tobytes() == numpys(x, threshold).tobytes()


def faults(function):
    """All that is wrong with a partition on the first input where anything is, worst first."""
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
    n=st.integers(0, 2 * room.TILE + 1),
    dtype=st.sampled_from(room.DTYPES),
    share=st.sampled_from([0, 1, 50, 99, 100]),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=4)
def test_any_length_type_place_and_share(rung, n, dtype, share, offset, seed):
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(n) < share / 100, rng.integers(1, 99, n), -rng.integers(0, 99, n)).astype(dtype)
    values, count = rung(misaligned(x, offset))
    assert right(device.to_host(values), x)
    assert device.to_host(count).tolist() == [int((x > 0).sum())]


@interpreter_only
@pytest.mark.parametrize("schedule", ["lockstep", "shuffled"])
def test_blocks_that_take_turns(schedule):
    x = np.random.default_rng(1).standard_normal(3 * room.TILE + 7).astype(np.float32)
    with simt.schedule(schedule):
        assert right(device.to_host(room.single_pass(x)), x)


@each_rung
def test_a_stream(rung):
    x, stream = INPUTS["a tile +1"][0], cuda.stream()
    result = rung(device.to_device(x), stream=stream)
    stream.synchronize()
    assert right(device.to_host(result), x)


# --------------------------------------------------------------------------------------------------- the plain function


@pytest.mark.parametrize(("x", "threshold"), [(np.float32([3, -1, np.nan, 5]), 1), (np.zeros(0, np.int32), 0)])
def test_the_plain_function(x, threshold):
    first, second = map(device.to_host, subject.parted(x, threshold))
    np.testing.assert_array_equal(first, x[x > threshold])
    np.testing.assert_array_equal(second, x[~(x > threshold)])


def test_the_plain_function_takes_a_stream():
    x, stream = INPUTS["a tile +1"][0], cuda.stream()
    first, second = subject.parted(device.to_device(x), stream=stream)
    assert right(np.concatenate((device.to_host(first), device.to_host(second))), x)


# ------------------------------------------------------------------------------------------------------------ bad input

X = np.arange(5, dtype=np.float32)
BAD = {
    "another dtype": ((X.astype(np.float64),), TypeError, "x must be float32 or int32, was float64"),
    "a matrix": ((np.ones((2, 3), np.float32),), ValueError, "x must have 1 dimension, had 2"),
    "every other": ((X[::2],), ValueError, "x must be contiguous in C order"),
    "a word": ((X, "1"), TypeError, "threshold must be"),
    "half of an int32": ((X.astype(np.int32), 0.5), TypeError, "threshold must be"),
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
    """Each element is read once and written once. To turn the second half around, it is read and written once more."""
    n = 2 * room.TILE
    x = np.where(np.arange(n) % 2, 1, -1).astype(np.float32)
    _, reports = observe(room.single_pass, x)
    (one,) = (report for report in reports if report.kernel == "single_pass_kernel")
    (turned,) = (report for report in reports if report.kernel == "turn_around_kernel")
    assert one.counters["global_load_bytes"] == 4 * n
    assert one.counters["global_store_bytes"] == 4 * n + 8  # and the count
    assert turned.counters["global_store_bytes"] == 4 * n // 2


@interpreter_only
def test_counters_of_by_scan():
    x = INPUTS["alternating, in two tiles"][0]
    _, reports = observe(room.by_scan, x, 0.5)
    own = [report for report in reports if report.kernel in ("flags_kernel", "scatter_both_kernel")]
    assert total(own, "global_store_bytes") == (4 + 4) * x.size + 8  # flags, elements, the count
    assert total(own, "atomic_requests") == 0


@pytest.mark.gpu
@each_rung
def test_cupy_agrees(rung):
    cupy = pytest.importorskip("cupy")
    x = cupy.random.default_rng(1).standard_normal(10_000_019, dtype=cupy.float32)
    assert bool((cupy.asarray(rung(x)) == cupy.concatenate((x[x > 0], x[~(x > 0)]))).all())
