"""Axis sum: results on every path, the same bits in every run, arguments, and counters against counts done by hand."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.reduction import axis_sum as room
from pmpp.runtime import device
from tests.kernels.reduction.wrong_axis_sum import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
INPUTS = room.inputs()
SOME = [  # of each kind one
    "a vector of 31",
    "axis 0 of two",
    "axis 1 of two",
    "axis 1 of three",
    "all of them",
    "two that are apart",
    "columns of 31",
    "rows of 7",
    "rows of 36",
    "non-finite",
]


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, axis=None, keepdims=False):
    return judge.right(result, room.reference(x, axis, keepdims), room.tolerance(x, axis, keepdims))


def faults(function, names=SOME):
    """All that is wrong on the first input where anything is, worst first; and with one that begins elsewhere."""
    for arguments in (INPUTS[name] for name in names):
        found = judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments))
        if found:
            return found
    x = INPUTS["rows of 36"][0]
    return judge.faults(function, (misaligned(x, 1), 1), lambda result: right(result, x, 1))


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
def test_a_rung_has_none_of_these_faults(rung):
    assert faults(rung) == []


@each_rung
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=20)
def test_any_shape_axes_and_alignment(rung, data):
    shape = data.draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 7, 12, 31, 64, 129, 300]), min_size=1, max_size=4))
    hypothesis.assume(math.prod(shape) <= 20_000)
    axes = data.draw(st.one_of(st.none(), st.sets(st.integers(0, len(shape) - 1)).map(tuple)))
    x = np.random.default_rng(1).standard_normal(shape, dtype=F32)
    given_ = misaligned(x, data.draw(st.integers(0, 3)))
    keepdims = data.draw(st.booleans())
    assert right(device.to_host(rung(given_, axes, keepdims)), x, axes, keepdims)


#: What the last rung does with a fold: every way, in one part and in several, by wide loads and narrow ones.
FOLDS = {
    "lanes": ((2000, 7, 1), (room.TEAMS, False, 1)),
    "lanes, wide": ((300, 36, 1), (room.TEAMS, False, 4)),
    "a warp": ((1024, 301, 1), (room.TEAMS, False, 1)),
    "few rows, odd": ((2, 3001, 1), (room.STREAM, False, 1)),  # the second one begins between two vectors
    "few rows": ((2, 3000, 1), (room.STREAM, False, 4)),
    "a long row": ((1, 9000, 1), (room.STREAM, True, 4)),
    "three columns": ((1, 3001, 3), (room.STREAM, True, 4)),
    "columns of images": ((3, 50, 7), (room.STREAM, False, 1)),
    "columns of images, wide": ((3, 52, 7), (room.STREAM, False, 4)),
    "many columns": ((1, 40, 1024), (room.STREAM, True, 4)),
    "odd columns": ((1, 70, 129), (room.STREAM, True, 4)),
    "wide": ((2, 70, 1500), (room.WIDE, True, 4)),
    "wide, odd": ((1, 9, 1501), (room.WIDE, False, 1)),
    "wide, odd, long": ((1, 70, 257), (room.WIDE, True, 1)),
    "small ones": ((1030, 5, 3), (room.SINGLE, False, 1)),
}


@pytest.mark.parametrize("name", FOLDS)
def test_every_way_of_the_last_rung(name):
    shape, expected = FOLDS[name]
    way = room.way_of(room.Fold(*shape), True)
    assert (way.kernel, way.parts > 1, way.width) == expected
    x = np.random.default_rng(8).integers(-4, 5, shape).astype(F32)  # sums are exact: one lost element shows
    for offset in (0, 1):
        result = result_of(room.vectorised, misaligned(x, offset), 1)
        np.testing.assert_array_equal(result, x.sum(axis=1))


@each_rung
def test_one_lost_element_shows(rung):
    """Whole numbers: every partial sum is exact, in any order. And nothing is added by atomics, whose order varies."""
    long = rung is not room.thread_per_sum
    for shape in ((9000,) if long else (90,), (3, 700), (700, 3), (9, 50, 8)):
        x = np.random.default_rng(5).integers(-8, 9, shape).astype(F32)
        for axis in (*range(len(shape)), *((None,) if long else ())):
            result, reports = observe(rung, x, axis)
            np.testing.assert_array_equal(result, x.sum(axis=axis))
            assert total(reports, "atomic_requests") == 0


@pytest.mark.gpu
@each_rung
def test_the_same_bits_in_every_run(rung):
    for shape, axis in (((300_001,), 0), ((5000, 700), 0), ((64, 8, 50, 50), (0, 2, 3))):
        x = device.to_device(np.random.default_rng(5).standard_normal(shape, dtype=F32))
        first = device.to_host(rung(x, axis))
        assert all(np.array_equal(device.to_host(rung(x, axis)), first) for _ in range(20))


@each_rung
def test_streams(rung):
    x = np.random.default_rng(5).standard_normal((7, 30), dtype=F32)
    stream = cuda.stream()
    result = rung(device.to_device(x), (0, 1), True, stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), x, (0, 1), True)


def test_the_reference_by_hand():
    x = np.arange(24, dtype=F32).reshape(2, 3, 4)
    assert room.reference(x).tolist() == 276
    assert room.reference(x, (0, 2)).tolist() == [60, 92, 124]
    assert room.reference(x, 1, True).tolist() == [[[12, 15, 18, 21]], [[48, 51, 54, 57]]]
    assert room.reference(np.zeros((2, 0), F32), 1).tolist() == [0, 0]


def test_axes_that_are_neighbours_are_one():
    assert room.folds_of((4, 5, 6), (1, 2)) == (room.Fold(4, 30, 1),)
    assert room.folds_of((4, 5, 6), (0, 2)) == (room.Fold(20, 6, 1), room.Fold(1, 4, 5))
    assert room.folds_of((4, 5, 6), ()) == (room.Fold(120, 1, 1),)


# ------------------------------------------------------------------------------------------------------------ bad input


MAP = np.ones((2, 3), F32)
BAD = {
    "an axis": ((MAP, 2), ValueError, "axis must .*2"),
    "an axis below": ((MAP, -3), ValueError, "axis must .*-3"),
    "an axis twice": ((MAP, (0, -2)), ValueError, r"axis must name each axis once, was \(0, -2\) for 2 dimensions"),
    "no integer": ((MAP, 1.0), TypeError, "axis must be an integer"),
    "a list": ((MAP, [0, 1]), TypeError, "axis must be an integer"),
    "another dtype": ((MAP.astype(np.int32),), TypeError, "x must be float32, was int32"),
    "strides": ((MAP[:, ::2],), ValueError, "x must be contiguous in C order"),
    "a flag": ((MAP, 0, "yes"), TypeError, "keepdims must be"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, x, axis):
    """Kernels, requests and sectors of loads, and barriers."""
    _, reports = observe(rung, x, axis)
    names = ("global_load_requests", "global_load_sectors")
    return [report.kernel for report in reports], tuple(total(reports, name) for name in names)


@interpreter_only
def test_rows_of_sixteen():
    """512 rows of 16 elements are 8192 elements, 1024 sectors. Two lanes a row take 4 elements at a time, twice."""
    x = np.ones((512, 16), F32)
    assert counted(room.thread_per_sum, x, 1) == (["thread_kernel"], (16 * 16, 16 * 16 * 32))
    assert counted(room.block_per_sum, x, 1) == (["rows_kernel"], (512, 1024))  # half a warp of eight has work
    # Two lanes have 32 neighbouring bytes: a sector. 16 rows a warp: 16 sectors a request, 2 requests.
    assert counted(room.vectorised, x, 1) == (["teams_kernel"], (64, 1024))


@interpreter_only
def test_three_columns():
    """4096 rows of 3 are 12288 elements, 1536 sectors, and 96 requests of 512 bytes."""
    x = np.ones((4096, 3), F32)
    kernels, (requests, sectors) = counted(room.block_per_sum, x, 0)
    assert kernels == ["columns_kernel"]
    assert (requests, sectors) == (
        4096,
        4096 + 1024,
    )  # a request a row: 12 bytes in a sector, and of each fourth in two
    kernels, (requests, sectors) = counted(room.vectorised, x, 0)
    assert kernels == ["stream_kernel", "stream_kernel"]
    assert sectors <= 1536 + 3 * 12 + 2 * 8
    assert requests <= 96 + 3 * 12


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", INPUTS)
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    x, axis, keepdims = INPUTS[name]
    axes = tuple(range(x.ndim)) if axis is None else axis
    theirs = torch.sum(torch.from_numpy(x).cuda(), dim=axes, keepdim=keepdims)
    ours = device.to_host(rung(torch.from_numpy(x).cuda(), axis, keepdims))
    assert judge.right(ours, theirs.double().cpu().numpy(), 2 * room.tolerance(x, axis, keepdims))
