"""Pairs: results, arguments, argsort, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import sort as subject
from pmpp.kernels.sort import pairs as room
from pmpp.runtime import device
from tests.kernels.sort.wrong_pairs import RIGHT
from tests.kernels.sort.wrong_pairs import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
DECISIVE = ("a warp and one", "few keys", "-0, NaN, and not finite")  # of the inputs that the contract runs
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, keys, values):
    """The same as NumPy's to the last bit."""
    expected = values[np.argsort(keys, kind="stable")]
    return result.dtype == expected.dtype and result.tobytes() == expected.tobytes()


def faults(function):
    """All that is wrong with a sort on the first input where anything is, worst first."""
    for name in DECISIVE:
        keys, values = INPUTS[name]
        given = (keys, values)
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
    keys, values = INPUTS["few keys"]
    assert right(device.to_host(function(keys, values)), keys, values)


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    keys, values = INPUTS[name]
    assert right(room.reference(keys, values), keys, values)


@each_rung
@hypothesis.given(
    n=st.integers(0, 3000),
    largest=st.sampled_from([1, 5, 300, 2**31]),
    dtypes=st.tuples(st.sampled_from(room.DTYPES), st.sampled_from(room.DTYPES)),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=2)
def test_any_length_values_types_and_places(rung, n, largest, dtypes, offset, seed):
    rng = np.random.default_rng(seed)
    keys = rng.integers(-largest if dtypes[0] != "uint32" else 0, largest, n).astype(dtypes[0])
    values = rng.integers(0, 2**24, n).astype(dtypes[1])
    result = rung(misaligned(keys, offset), misaligned(values, 3 - offset))
    assert right(device.to_host(result), keys, values)


def test_a_stream():
    keys, values = INPUTS["a warp and one"]
    for rung in room.LADDER:
        stream = cuda.stream()
        result = rung(device.to_device(keys), device.to_device(values), stream=stream)
        stream.synchronize()
        assert right(device.to_host(result), keys, values)


# -------------------------------------------------------------------------------------------------------------- argsort


@pytest.mark.parametrize("name", ["empty", "one", "few keys", "-0, NaN, and not finite"])
@pytest.mark.parametrize("descending", [False, True])
def test_argsort_and_sort_pairs(name, descending):
    keys, values = INPUTS[name]
    order = np.argsort(keys, kind="stable")
    if descending:  # stable, too: the reversed vector ascending, reversed
        order = (keys.size - 1 - np.argsort(keys[::-1], kind="stable"))[::-1]
    found = device.to_host(subject.argsort(keys, descending))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, order)
    result = tuple(map(device.to_host, subject.sort_pairs(keys, values, descending)))
    assert (result[0].tobytes(), result[1].tobytes()) == (keys[order].tobytes(), values[order].tobytes())


@interpreter_only
def test_the_first_pass_of_argsort_reads_no_values():
    keys, values = INPUTS["few keys"]
    with simt.record("count") as reports:
        subject.argsort(keys)
    _, with_values = observe(room.one_sweep, keys, values)
    read = [total(all_of, "global_load_bytes") for all_of in (reports, with_values)]
    assert read[1] - read[0] == 4 * room.TILE  # copies behind the end included


# ------------------------------------------------------------------------------------------------------------ bad input

KEYS, WHOLE = np.arange(5, dtype=np.float32), np.arange(5, dtype=np.int32)
BAD = {
    "another dtype": (
        (KEYS.astype(np.float64), WHOLE),
        TypeError,
        "keys must be int32, uint32 or float32, was float64",
    ),
    "values of another dtype": ((KEYS, WHOLE.astype(np.int64)), TypeError, "values must be int32, uint32 or float32"),
    "two lengths": ((KEYS, WHOLE[:4]), ValueError, r"values must have shape \(5,\), had \(4,\)"),
    "a matrix": ((np.ones((2, 3), np.float32), WHOLE), ValueError, "keys must have 1 dimension, had 2"),
    "every other": ((KEYS, np.arange(10, dtype=np.int32)[::2]), ValueError, "values must be contiguous in C order"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


def test_bad_input_of_argsort():
    with pytest.raises(TypeError, match="x must be int32, uint32 or float32, was float64"):
        subject.argsort(KEYS.astype(np.float64))
    with pytest.raises(TypeError, match="descending must be True or False"):
        subject.argsort(KEYS, descending=2)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_counters_of_one_sweep():
    keys = np.random.default_rng(5).integers(-(2**31), 2**31, room.TILE, dtype=np.int32)
    result, reports = observe(room.one_sweep, keys, keys)
    assert right(result, keys, keys)
    sweeps = [report for report in reports if "one_sweep" in report.kernel]
    assert len(sweeps) == 4
    # A key and a value are read once and written once in a pass. 256 threads read where their digit begins, and all
    # the tile's last key.
    assert total(sweeps, "global_load_bytes") == 4 * (8 * room.TILE + 8 * 256 + 4 * room.TILE_BLOCK)
    assert total(sweeps, "global_store_bytes") == 4 * 8 * room.TILE


@interpreter_only
def test_one_bit_writes_a_pair_in_each_pass():
    keys, values = INPUTS["few keys"]
    _, reports = observe(room.one_bit, keys, values)
    splits = [report for report in reports if "split" in report.kernel]
    assert len(splits) == 32
    assert total(splits, "global_store_bytes") == 32 * 8 * keys.size


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
def test_other_libraries_agree():
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    x = np.random.default_rng(3).integers(-1000, 1000, 1_000_003).astype(np.int32)
    order = cupy.asarray(subject.argsort(cupy.asarray(x)))
    assert bool((order == cupy.argsort(cupy.asarray(x), kind="stable")).all())
    expected = torch.sort(torch.from_numpy(x).cuda(), stable=True, descending=True)
    keys, values = subject.sort_pairs(x, np.arange(x.size, dtype=np.int32), descending=True)
    assert bool((torch.as_tensor(cupy.asarray(keys), device="cuda") == expected.values).all())
    assert bool((torch.as_tensor(cupy.asarray(values), device="cuda") == expected.indices).all())
