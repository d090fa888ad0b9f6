"""Merge: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import merge as subject
from pmpp.kernels.merge import ladder as room
from pmpp.runtime import device
from tests.kernels.merge.wrong import RIGHT
from tests.kernels.merge.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, result_of, total

INPUTS = room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_input = pytest.mark.parametrize("name", INPUTS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def numpys(a, b):
    return np.sort(np.concatenate([a, b]), kind="stable")


def right(result, a, b):
    """The same to the last bit, so that -0 and 0 show whether a merge is stable."""
    expected = numpys(a, b)
    return result.dtype == expected.dtype and result.tobytes() == expected.tobytes()


def faults(function):
    """All that is wrong with a merge on the first input where anything is, worst first."""
    for arguments in INPUTS.values():
        if found := judge.faults(function, arguments, lambda result, a=arguments: right(result, *a)):
            return found
    a, b = INPUTS["several tiles"]
    for offsets in ((1, 0), (0, 3), (2, 2)):
        given = tuple(misaligned(x, offset) for x, offset in zip((a, b), offsets, strict=True))
        if found := judge.faults(function, given, lambda result: right(result, a, b)):
            return found
    return []


@each_rung
def test_a_rung_has_no_fault(rung):
    assert faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("function", RIGHT, ids=lambda function: function.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(function):
    assert faults(function) == []


@each_input
def test_the_reference_is_numpys(name):
    a, b = INPUTS[name]
    assert right(room.reference(a, b), a, b)


@each_rung
@hypothesis.given(
    n=st.one_of(st.integers(0, 70), st.integers(0, room.TILE + 1)),
    m=st.one_of(st.integers(0, 70), st.integers(0, room.TILE + 1)),
    values=st.sampled_from([1, 5, 1000, 2**30]),
    dtype=st.sampled_from(room.DTYPES),
    offset=st.integers(0, 3),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=8)
def test_any_lengths_values_type_and_alignment(rung, n, m, values, dtype, offset, seed):
    rng = np.random.default_rng(seed)
    a, b = (np.sort(rng.integers(-values, values, size).astype(dtype)) for size in (n, m))
    assert right(device.to_host(rung(misaligned(a, offset), misaligned(b, 3 - offset))), a, b)


@each_rung
def test_an_output_that_begins_anywhere(rung):
    a, b = INPUTS["several tiles"]
    for offset in (0, 1):
        out = misaligned(np.zeros(a.size + b.size, a.dtype), offset)
        assert rung(a, b, out=out) is not None
        assert right(device.to_host(out), a, b)


@each_rung
def test_what_is_not_sorted_is_read_and_written_within_bounds(rung):
    """The result means nothing, but every place is written, with elements of the input."""
    rng = np.random.default_rng(4)
    for n, m in ((2 * room.TILE, room.TILE + 77), (room.SECTION, 3000), (0, 5000)):
        a, b = (rng.permutation(size).astype(np.int32) for size in (n, m))
        result = result_of(rung, a, b)
        assert np.isin(result, np.concatenate([a, b])).all()


@interpreter_only
@each_rung
def test_the_result_does_not_depend_on_the_batch(rung):
    a, b = INPUTS["a section and more"]
    for lanes in (room.BLOCK, 3 * room.BLOCK, 2**20):
        with simt.batch_lanes(lanes):
            assert right(device.to_host(rung(a, b)), a, b)


@each_rung
def test_streams(rung):
    a, b = INPUTS["several tiles"]
    stream = cuda.stream()
    result = rung(device.to_device(a), device.to_device(b), stream=stream)
    stream.synchronize()
    assert right(device.to_host(result), a, b)


def test_the_plain_function():
    np.testing.assert_array_equal(device.to_host(subject.join(np.int32([1, 5]), np.int32([2]))), [1, 2, 5])


# ------------------------------------------------------------------------------------------------------------ bad input

VECTOR, WHOLE = np.arange(5, dtype=np.float32), np.arange(5, dtype=np.int32)
BAD = {
    "another dtype": ((VECTOR.astype(np.float64), VECTOR), TypeError, "a must be int32 or float32, was float64"),
    "two dtypes": ((VECTOR, WHOLE), TypeError, "b must be float32, was int32"),
    "a matrix": ((np.ones((2, 3), np.float32), VECTOR), ValueError, "a must have 1 dimension, had 2"),
    "b a matrix": ((VECTOR, np.ones((2, 3), np.float32)), ValueError, "b must have 1 dimension, had 2"),
    "every other": ((VECTOR, np.arange(10, dtype=np.float32)[::2]), ValueError, "b must be contiguous in C order"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments)


@each_rung
def test_an_output_that_does_not_fit(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(10,\)"):
        rung(VECTOR, VECTOR, out=device.to_device(VECTOR))
    with pytest.raises(TypeError, match="out must be float32, was int32"):
        rung(VECTOR, VECTOR, out=device.to_device(np.zeros(10, np.int32)))


# ------------------------------------------------------------------------------------------------------------- counters
#
# Elements alternate between a and b, so every round and every tile takes half of its outputs from each.

N = 15 * room.SECTION  # a whole number of sections, and of tiles
EVEN, ODD = np.arange(0, N, 2, dtype=np.int32), np.arange(1, N, 2, dtype=np.int32)
WARPS = N // 32  # requests of 32 neighbours that cover an array once


def counters_of(rung, *names):
    """Sums over the launches that write the result."""
    result, reports = observe(rung, EVEN, ODD)
    assert right(result, EVEN, ODD)
    merging = [report for report in reports if "borders" not in report.kernel]
    assert total(reports, "flops") == total(reports, "atomic_lanes") == 0
    return [total(merging, name) for name in names]


@interpreter_only
def test_counters_of_co_ranked():
    loaded, stores, sectors = counters_of(
        room.co_ranked, "global_load_bytes", "global_store_requests", "global_store_sectors"
    )
    assert loaded > 4 * 2 * N  # the comparisons of a search and of a merge load again what is written then
    # A thread's eight outputs are one sector; a warp writes one element of each at a time.
    assert stores >= WARPS
    assert sectors == N


@interpreter_only
def test_counters_of_tiled_and_circular_buffer():
    (twice,), (once,) = (counters_of(rung, "global_load_bytes") for rung in (room.tiled, room.circular_buffer))
    rounds = room.SECTION // room.ROUND
    # A round loads ROUND of each vector where they have as many left: not in the last one, which has half of it.
    # The search of a section's ends adds a few bytes.
    sections = N // room.SECTION
    searches = once - 4 * N
    assert 0 < searches < sections * 2 * 8 * 20
    assert twice == searches + 4 * sections * (2 * rounds - 1) * room.ROUND


@interpreter_only
def test_counters_of_partitioned():
    loaded, loads, stores, sectors = counters_of(
        room.partitioned, "global_load_bytes", "global_load_requests", "global_store_requests", "global_store_sectors"
    )
    tiles = N // room.TILE
    assert 4 * N < loaded < 4 * N + tiles * room.BLOCK * 4 * 8  # all threads load a tile's borders
    assert stores == WARPS
    assert sectors == 4 * WARPS
    assert WARPS <= loads <= WARPS + tiles * (room.BLOCK // 32 * 4 + 2)  # one warp a tile may load of both vectors


@interpreter_only
def test_counters_of_vectorised():
    loads, stores, sectors = counters_of(
        room.vectorised, "global_load_requests", "global_store_requests", "global_store_sectors"
    )
    tiles = N // room.TILE
    assert stores == WARPS // 4
    assert sectors == 4 * WARPS
    assert WARPS // 4 <= loads <= WARPS // 4 + tiles * (room.BLOCK // 32 * 4 + 3)


@interpreter_only
@pytest.mark.parametrize("rung", [room.partitioned, room.vectorised], ids=lambda rung: rung.name)
def test_outputs_go_to_shared_memory_without_a_conflict(rung):
    """An odd number of outputs a thread, so the lanes of a warp use 32 banks."""
    _, reports = observe(rung, EVEN[: room.TILE], ODD[: room.TILE])
    (merging,) = [report for report in reports if "borders" not in report.kernel]
    requests, wavefronts = merging.counters["shared_store_requests"], merging.counters["shared_store_wavefronts"]
    assert wavefronts <= requests * (1 if rung is room.partitioned else 2)


# --------------------------------------------------------------------------------------------------- other libraries


@each_rung
def test_torch_on_the_cpu_agrees(rung):
    torch = pytest.importorskip("torch")
    for name in ("several tiles", "float32", "not finite, and nearly 0"):
        a, b = INPUTS[name]
        expected = torch.sort(torch.cat([torch.from_numpy(a), torch.from_numpy(b)]), stable=True).values
        np.testing.assert_array_equal(device.to_host(rung(a, b)), expected.numpy())


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, library):
    module = pytest.importorskip(library)
    for name in ("several tiles", "float32"):
        a, b = INPUTS[name]
        if library == "cupy":
            given = module.asarray(a), module.asarray(b)
            expected = module.sort(module.concatenate(given))
        else:
            given = module.from_numpy(a).cuda(), module.from_numpy(b).cuda()
            expected = module.sort(module.cat(given)).values
        assert bool((expected == module.asarray(rung(*given))).all())


@pytest.mark.gpu
@each_rung
def test_more_than_32_bits_count(rung):
    """More than 2^31 outputs: places beyond 32 bits."""
    cupy = pytest.importorskip("cupy")
    n = 2**30 + 5
    if cupy.cuda.runtime.memGetInfo()[0] < 20 * n:
        pytest.skip("too little memory")
    a, b = cupy.arange(0, n, dtype=cupy.int32), cupy.arange(0, n, dtype=cupy.int32)
    merged = cupy.asarray(rung(a, b))
    assert bool((merged[::2] == a).all())
    assert bool((merged[1::2] == b).all())
