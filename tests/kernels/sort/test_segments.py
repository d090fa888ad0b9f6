"""Segments: results, arguments, values, and the counters of each rung against counts done by hand."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import sort as subject
from pmpp.kernels.sort import segments as room
from pmpp.runtime import device
from tests.kernels.sort.wrong_segments import RIGHT
from tests.kernels.sort.wrong_segments import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

INPUTS = room.inputs()
DECISIVE = ("few keys", "-0, NaN, and not finite")  # the contract runs all of them
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


def order_of(x, starts, descending=False):
    """NumPy's, segment by segment. Descending it is stable, too: the reversed segment ascending, reversed."""
    parts = []
    for first, end in itertools.pairwise(starts):
        part = x[first:end]
        if descending:
            order = (part.size - 1 - np.argsort(part[::-1], kind="stable"))[::-1]
        else:
            order = np.argsort(part, kind="stable")
        parts.append(first + order)
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def right(result, x, starts, descending=False):
    expected = x[order_of(x, starts, descending)]
    return result.dtype == x.dtype and result.tobytes() == expected.tobytes()


def faults(function):
    """All that is wrong with a sort on the first input where anything is, worst first."""
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
    lengths=st.lists(st.sampled_from([0, 1, 2, 5, 31, 32, 33, 65, 200]), max_size=12),
    largest=st.sampled_from([1, 5, 2**31]),
    dtypes=st.tuples(st.sampled_from(room.DTYPES), st.sampled_from(room.DTYPES)),
    descending=st.booleans(),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=3)
def test_any_segments_values_types_and_places(rung, lengths, largest, dtypes, descending, offset, seed):
    rng, starts = np.random.default_rng(seed), np.cumsum([0, *lengths])
    n = int(starts[-1])
    x = rng.integers(-largest if dtypes[0] != "uint32" else 0, largest, n).astype(dtypes[0])
    values = rng.permutation(n).astype(dtypes[1])
    found = rung(misaligned(x, offset), starts, misaligned(values, offset), descending, max(lengths, default=0))
    assert right(device.to_host(found.keys), x, starts, descending)
    assert device.to_host(found.values).tobytes() == values[order_of(x, starts, descending)].tobytes()


@each_rung
def test_a_stream(rung):
    (x, starts), stream = INPUTS["two keys, and powers of two"], cuda.stream()
    result = rung(device.to_device(x), device.to_device(starts), stream=stream)
    stream.synchronize()
    assert right(device.to_host(result), x, starts)


@pytest.mark.parametrize("name", ["no segment", "-0, NaN, and not finite", "one longer than a block"])
def test_the_plain_function(name):
    x, starts = INPUTS[name]
    stream = cuda.stream()
    result = subject.sort_segments(device.to_device(x), device.to_device(starts), descending=True, stream=stream)
    stream.synchronize()
    assert right(device.to_host(result), x, starts, descending=True)


@interpreter_only
def test_the_plain_function_finds_the_longest_segment():
    """More keys than a block sorts, but no segment has: blocks and warps sort them, and no digit is looked at."""
    starts = np.append(np.arange(0, room.LONGEST, 900), room.LONGEST + 1)
    x = np.random.default_rng(0).integers(-99, 99, room.LONGEST + 1).astype(np.int32)
    result, reports = observe(subject.sort_segments, x, starts)
    assert right(result, x, starts)
    kernels = [report.kernel for report in reports]
    assert kernels == ["clear_kernel", "longest_kernel", "clear_kernel", "in_warps_kernel", "listed_kernel"]


@pytest.mark.parametrize("rung", [room.in_blocks, room.in_warps], ids=lambda rung: rung.name)
@pytest.mark.parametrize(("lengths", "said"), [((3, 300, 5), 10), ((40, room.LONGEST + 3), room.LONGEST)])
def test_a_segment_that_is_longer_than_was_said_stays_in_its_place(rung, lengths, said):
    """On the device nobody has looked at the starts. There is no room to sort it, in shared memory or on the list."""
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    x = np.random.default_rng(2).integers(-99, 99, starts[-1]).astype(np.int32)
    found = result_of(rung, device.to_device(x), device.to_device(starts), longest=said)
    room_for = room.PART if rung is room.in_warps and said <= room.PART else room.LONGEST
    for first, end in itertools.pairwise(starts):
        expected = np.sort(x[first:end]) if end - first <= room_for else x[first:end]
        np.testing.assert_array_equal(found[first:end], expected)


# ------------------------------------------------------------------------------------------------------------ bad input

X, S = np.arange(5, dtype=np.float32), np.int32([0, 2, 5])
BAD = {
    "another dtype": ((X.astype(np.float64), S), TypeError, "x must be int32, uint32 or float32, was float64"),
    "starts of another dtype": ((X, S.astype(np.float32)), TypeError, "starts must be int32 or int64, was float32"),
    "no segment for the keys": ((X, S[:1]), ValueError, "starts must have at least 2 elements for 5 keys, had 1"),
    "no start": ((X[:0], S[:0]), ValueError, "starts must have at least 1 elements for 0 keys, had 0"),
    "a matrix": ((np.ones((2, 3), np.float32), S), ValueError, "x must have 1 dimension, had 2"),
    "values of another length": ((X, S, X[:4]), ValueError, r"values must have shape \(5,\), had \(4,\)"),
    "values of another dtype": ((X, S, X.astype(np.int64)), TypeError, "values must be int32, uint32 or float32"),
    "no flag": ((X, S, None, 2), TypeError, "descending must be True or False"),
    "longer than the vector": ((X, S, None, False, 6), ValueError, "longest must be .* was 6"),
    "starts behind the first key": (
        (X, np.int32([1, 5])),
        ValueError,
        "starts must be from 0 to 5, .* x, was from 1 to 5",
    ),
    "starts beyond the last key": ((X, np.int32([0, 6])), ValueError, "starts must be .* was from 0 to 6"),
    "starts that fall": ((X, np.int32([0, 4, -9, 5])), ValueError, "starts must never fall, was 4 at 1 and then -9"),
    "a longer segment": ((X, S, None, False, 2), ValueError, "longest must be at least 3, .* was 2"),
    "half a key": ((X, S, None, False, 1.5), TypeError, "longest must be an integer"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@pytest.mark.parametrize(("segments", "passes"), [(1, 4), (2, 5), (256, 5), (257, 6)])
def test_a_pass_for_each_digit_of_a_segments_number(segments, passes):
    starts = np.append(np.zeros(segments, np.int32), np.int32(600))
    x = np.random.default_rng(1).integers(-99, 99, 600).astype(np.int32)
    result, reports = observe(room.by_digits, x, starts)
    assert right(result, x, starts)
    assert sum("one_sweep" in report.kernel for report in reports) == passes


@interpreter_only
def test_counters_of_short_segments():
    """Warps read the keys to compare them, and once more to move them. They need no barrier, and list nothing."""
    n = 32 * 20
    x, starts = np.random.default_rng(1).integers(-99, 99, n).astype(np.int32), np.arange(0, n + 1, 20, dtype=np.int32)
    result, reports = observe(room.in_warps, x, starts, longest=20)
    assert right(result, x, starts)
    (one,) = reports
    assert one.counters["global_store_bytes"] == 4 * n
    assert one.counters["global_load_bytes"] == 8 * n + 2 * 4 * 32 * 32  # all lanes read both ends
    assert one.counters["barriers"] == total(reports, "atomic_requests") == 0


@interpreter_only
def test_counters_of_blocks():
    """A network for 64 keys has 1 + 2 + ... + 6 steps, with a barrier behind each; one more stands before them."""
    x, starts = np.arange(64, 0, -1, dtype=np.int32), np.int32([0, 64])
    result, (one,) = observe(room.in_blocks, x, starts)
    assert right(result, x, starts)
    assert one.counters["barriers"] == 1 + 21
    assert one.counters["global_store_bytes"] == 4 * 64


@pytest.mark.gpu
@pytest.mark.parametrize("row", [7, 32, 100, 2048, 3000])
def test_torch_agrees(row):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    x = torch.randn((1000, row), device="cuda")
    expected = torch.sort(x, dim=1, stable=True, descending=True)
    numbers = torch.arange(row, dtype=torch.int32, device="cuda").repeat(1000)
    starts = np.arange(0, 1000 * row + 1, row)
    for rung in room.LADDER:
        found = rung(x.reshape(-1), starts, numbers, True, row)
        keys, values = (torch.as_tensor(cupy.asarray(one), device="cuda").reshape(1000, row) for one in found)
        assert bool((keys == expected.values).all())
        assert bool((values == expected.indices).all())
