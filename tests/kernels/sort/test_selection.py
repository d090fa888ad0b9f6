"""Selection: results, arguments, top_k, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import sort as subject
from pmpp.kernels.sort import selection as room
from pmpp.runtime import device
from tests.kernels.sort.wrong_selection import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

INPUTS = room.inputs()
DECISIVE = ("few keys", "all equal", "-0, NaN, and not finite", "uint32")  # the contract runs all of them
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def numpys(x, k):
    """The greatest keys first, and of equal ones the first: the reversed vector ascending, reversed."""
    return (x.size - 1 - np.argsort(x[::-1], kind="stable"))[::-1][:k].astype(np.int32)


def right(result, x, k):
    return result.dtype == np.int32 and np.array_equal(result, numpys(x, k))


def faults(function):
    """All that is wrong with a selection on the first input where anything is, worst first."""
    for name in DECISIVE:
        given = INPUTS[name]
        if found := judge.faults(function, given, lambda result, given=given: right(result, *given)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name):
    x, k = INPUTS[name]
    assert right(room.reference(x, k), x, k)


@each_rung
@hypothesis.given(
    n=st.integers(1, 3000),
    share=st.sampled_from([0, 0.01, 0.5, 1]),
    largest=st.sampled_from([1, 300, 2**31]),
    dtype=st.sampled_from(room.DTYPES),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=2)
def test_any_length_k_values_type_and_place(rung, n, share, largest, dtype, offset, seed):
    x = np.random.default_rng(seed).integers(-largest if dtype != "uint32" else 0, largest, n).astype(dtype)
    k = int(share * n)
    assert right(device.to_host(rung(misaligned(x, offset), k)), x, k)


def test_a_stream():
    x, k = INPUTS["few keys"]
    stream = cuda.stream()
    result = room.by_digits(device.to_device(x), k, stream=stream)
    stream.synchronize()
    assert right(device.to_host(result), x, k)


@pytest.mark.parametrize("name", ["empty", "one of one", "none of many", "-0, NaN, and not finite"])
def test_top_k(name):
    x, k = INPUTS[name]
    keys, where = map(device.to_host, subject.top_k(x, k))
    np.testing.assert_array_equal(where, numpys(x, k))
    assert keys.tobytes() == x[where].tobytes()


# ------------------------------------------------------------------------------------------------------------ bad input

KEYS = np.arange(5, dtype=np.float32)
BAD = {
    "another dtype": ((KEYS.astype(np.float64), 1), TypeError, "x must be int32, uint32 or float32, was float64"),
    "a matrix": ((np.ones((2, 3), np.float32), 1), ValueError, "x must have 1 dimension, had 2"),
    "more than there are": ((KEYS, 6), ValueError, "k must be .* was 6"),
    "less than none": ((KEYS, -1), ValueError, "k must be .* was -1"),
    "half a key": ((KEYS, 0.5), TypeError, "k must be an integer"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
def test_counters_of_by_digits():
    """All keys are read to be counted and to be chosen from, and about one in 256 of them goes on."""
    x = np.random.default_rng(5).integers(-(2**31), 2**31, 4 * room.TILE, dtype=np.int32)
    result, reports = observe(room.by_digits, x, 20)
    assert right(result, x, 20)
    counting, choosing = ([one for one in reports if name in one.kernel] for name in ("all_digits", "choose"))
    assert counting[0].counters["global_load_bytes"] == 4 * x.size  # what follows counts for the sort of 20 keys
    assert len(choosing) == 3
    went_on = int((x >= 127 << 24).sum())
    assert went_on >= 20
    # The chosen ones are read again with what they are chosen by. A number is stored with each key.
    assert choosing[0].counters["global_store_bytes"] == 8 * went_on + 8
    assert 4 * x.size <= choosing[0].counters["global_load_bytes"] <= 4 * x.size + 4 * went_on + 64 * 1024
    assert total(choosing[1:], "global_store_bytes") == 8 * 20


@interpreter_only
def test_counters_of_by_sorting():
    x, k = INPUTS["few keys"]
    _, reports = observe(room.by_sorting, x, k)
    sweeps = [one for one in reports if "one_sweep" in one.kernel]
    assert total(sweeps, "global_store_bytes") == 4 * 8 * x.size


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
def test_torch_agrees(rung):
    torch, cupy = pytest.importorskip("torch"), pytest.importorskip("cupy")
    x = np.random.default_rng(3).permutation(1_000_003).astype(np.float32)
    for k in (1, 100, 50_000):
        expected = torch.topk(torch.from_numpy(x).cuda(), k)
        found = torch.as_tensor(cupy.asarray(rung(x, k)), device="cuda")
        assert bool((found == expected.indices).all())
