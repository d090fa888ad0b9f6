"""Filter: results, arguments, schedules, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import filter as subject
from pmpp.kernels.filter import ladder as room
from pmpp.kernels.filter import tile
from pmpp.runtime import device
from tests.kernels.filter.wrong import RIGHT
from tests.kernels.filter.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

BLOCK, TILE, INPUTS = room.BLOCK, room.TILE, room.inputs()
UNORDERED = (room.atomic, room.warp_aggregated, room.privatised)
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_input = pytest.mark.parametrize("name", INPUTS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def keeps_order(function):
    return function not in UNORDERED and getattr(function, "keeps_order", True)


def right(result, x, threshold=0, ordered=True):
    """The same values to the last bit, -0 and 0 told apart; of what keeps no order, each as often."""
    expected = room.reference(x, threshold)
    if not ordered:
        result, expected = np.sort(result), np.sort(expected)
    return judge.right(result, expected, 0, x.dtype)


def faults(function):
    """All that is wrong with a filter on the first input where anything is, worst first."""
    ordered = keeps_order(function)
    for arguments in INPUTS.values():
        found = judge.faults(function, arguments, lambda result, a=arguments: right(result, *a, ordered=ordered))
        if found:
            return found
    (x,) = INPUTS["several tiles"]
    for offset in (1, 3):
        given = misaligned(x, offset)
        if found := judge.faults(function, (given,), lambda result: right(result, x, ordered=ordered)):
            return found
    return faults_in_another_order(function, x[: TILE + 40])


def faults_in_another_order(function, x):
    """Blocks and warps take turns in another order than they are numbered in, as on a GPU."""
    if device.on_gpu():
        return []
    for name, seed in (("shuffled", 1), ("shuffled", 2), ("lockstep", 0)):
        with simt.schedule(name, seed):
            found = judge.faults(function, (x,), lambda result: right(result, x, ordered=keeps_order(function)))
        if found:
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
    x, threshold = (*INPUTS[name], 0)[:2]
    expected = x[x > x.dtype.type(threshold)]
    np.testing.assert_array_equal(room.reference(x, threshold), expected, strict=True)


@each_rung
@hypothesis.given(
    n=st.one_of(st.integers(0, 70), st.integers(0, 2 * TILE + 1)),
    dtype=st.sampled_from(room.DTYPES),
    share=st.sampled_from([0, 1, 50, 99, 100]),
    offset=st.integers(0, 5),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=8)
def test_any_length_type_alignment_and_share(rung, n, dtype, share, offset, seed):
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(n) < share / 100, rng.integers(1, 99, n), -rng.integers(0, 99, n)).astype(dtype)
    values, count = rung(misaligned(x, offset))
    assert (values.size, count.size) == (n, 1)
    kept = device.to_host(values)[: int(device.to_host(count)[0])]
    assert right(kept, x, ordered=keeps_order(rung))


@interpreter_only
@each_rung
def test_the_result_does_not_depend_on_the_batch(rung):
    (x,) = INPUTS["several tiles"]
    results = []
    for lanes in (BLOCK, 3 * BLOCK, 2**20):
        with simt.batch_lanes(lanes):
            results.append(np.sort(device.to_host(rung(x))))
    assert len({result.tobytes() for result in results}) == 1


@interpreter_only
@each_rung
def test_without_an_order_blocks_differ_and_with_one_they_do_not(rung):
    x = np.arange(1, TILE + 5, dtype=np.float32)
    found = []
    for seed in range(3):
        with simt.schedule("shuffled", seed):
            found.append(device.to_host(rung(x)).tobytes())
    assert (len(set(found)) == 1) == keeps_order(rung)


@each_rung
def test_streams(rung):
    (x,) = INPUTS["several tiles"]
    stream = cuda.stream()
    kept = rung(device.to_device(x), stream=stream)
    stream.synchronize()
    assert right(kept.copy_to_host(), x, ordered=keeps_order(rung))


def test_kept_is_two_arrays_and_knows_how_many_are_kept():
    x = np.float32([3, -1, 4])
    kept = room.single_pass(x)
    values, count = kept
    assert (values.shape, count.shape, values.dtype, count.dtype) == ((3,), (1,), np.float32, np.int64)
    np.testing.assert_array_equal(device.to_host(kept.trimmed()), [3, 4])
    np.testing.assert_array_equal(kept.copy_to_host(), [3, 4])
    assert device.address(kept.trimmed()) == device.address(values)
    assert room.single_pass(x[:0]).copy_to_host().shape == (0,)


# --------------------------------------------------------------------------------------------------- the plain function


@cuda.jit(device=True)
def small(value, threshold):
    return abs(value) < threshold


def test_the_plain_function():
    x = np.float32([3, -1, np.nan, 5, 0.5])
    np.testing.assert_array_equal(device.to_host(subject.compact(x)), [3, 5, 0.5])
    np.testing.assert_array_equal(device.to_host(subject.compact(x, 3)), [5])
    np.testing.assert_array_equal(device.to_host(subject.compact(x, 2, small)), [-1, 0.5])
    assert subject.compact(x, 1e30).shape == (0,)
    assert subject.compact(x[:0]).shape == (0,)


def test_another_condition_beyond_the_end():
    """What fills up the last tile is never kept, whatever is asked for."""
    x = np.arange(TILE + 3, dtype=np.int32)
    np.testing.assert_array_equal(device.to_host(subject.compact(x, TILE, small)), x[:TILE])
    np.testing.assert_array_equal(device.to_host(subject.compact(x[1:], 7, small)), x[1:7])


def test_a_condition_must_be_a_device_function():
    for keep in (abs, lambda value, threshold: True, "above", 1):
        with pytest.raises(TypeError, match=r"keep must be a device function, .*, or None, was"):
            subject.compact(VECTOR, 0, keep)


@cuda.jit(device=True)
def alone(value):
    return value > 0


def test_a_condition_takes_a_value_and_the_threshold():
    with pytest.raises(TypeError, match=r"keep must take two arguments, a value and the threshold, was .* of 1$"):
        subject.compact(VECTOR, 0, alone)


# ------------------------------------------------------------------------------------------------------------ bad input

VECTOR, WHOLE = np.ones(5, np.float32), np.ones(5, np.int32)
BAD = {
    "another dtype": ((VECTOR.astype(np.float64),), {}, TypeError, "x must be float32 or int32, was float64"),
    "a matrix": ((np.ones((2, 3), np.float32),), {}, ValueError, "x must have 1 dimension, had 2"),
    "every other": ((np.ones(10, np.float32)[::2],), {}, ValueError, "x must be contiguous in C order"),
    "no number": ((VECTOR, np.nan), {}, ValueError, "threshold must be a finite number, was nan"),
    "infinite": ((VECTOR, np.inf), {}, ValueError, "threshold must be a finite number, was inf"),
    "too large": ((VECTOR, 1e39), {}, ValueError, "threshold must be in the range of float32"),
    "a word": ((VECTOR, "0"), {}, TypeError, "threshold must be a number, was '0'"),
    "a half": ((WHOLE, 0.5), {}, TypeError, "threshold must be an integer, was 0.5"),
    "beyond int32": (
        (WHOLE, 2**31),
        {},
        ValueError,
        "threshold must be from -2147483648 to 2147483647, was 2147483648",
    ),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters
#
# Of two tiles every second element is kept: 16 of the 32 of a warp. A warp's request for 32 neighbours is 4 sectors.

N = 2 * TILE
HALF = np.where(np.arange(N) % 2, 1, -1).astype(np.float32)
WARPS = N // 32


def counters_of(rung, x=HALF):
    """The sums over the rung's own kernels; without what sets counters to 0 and scans."""
    result, reports = observe(rung, x)
    assert right(result, x, ordered=keeps_order(rung))
    own = ("atomic", "warp_aggregated", "privatised", "flags", "scatter", "counts", "compact", "single_pass")
    mine = [report for report in reports if report.kernel.removesuffix("_kernel") in own]
    assert total(mine, "flops") == 0
    return {name: total(mine, name) for name in mine[0].counters}


@interpreter_only
def test_counters_of_atomic():
    found = counters_of(room.atomic)
    assert found["atomic_requests"] == WARPS
    assert found["atomic_lanes"] == found["atomic_passes"] == N // 2
    assert counters_of(room.atomic, -np.abs(HALF))["atomic_lanes"] == 0


@interpreter_only
def test_counters_of_warp_aggregated():
    found = counters_of(room.warp_aggregated)
    assert found["atomic_lanes"] == found["atomic_requests"] == WARPS
    assert counters_of(room.warp_aggregated, -np.abs(HALF))["atomic_lanes"] == 0  # who keeps nothing does not ask


@interpreter_only
def test_counters_of_privatised():
    found = counters_of(room.privatised)
    assert found["global_atomic_sectors"] == N // BLOCK
    assert found["atomic_lanes"] == WARPS + N // BLOCK
    assert found["barriers"] == 3 * N // BLOCK


@interpreter_only
def test_counters_of_by_scan():
    found = counters_of(room.by_scan)
    assert found["atomic_lanes"] == 0
    # x twice, for flags and for elements (only those that are kept), flags, and places; the last place once more.
    assert found["global_load_bytes"] >= 4 * (N + N // 2 + N + N // 2)


@interpreter_only
@pytest.mark.parametrize("rung", [room.tiled, room.single_pass], ids=lambda rung: rung.name)
def test_counters_of_tiles(rung):
    found = counters_of(rung)
    passes = 2 if rung is room.tiled else 1
    rows = passes * N // 32  # a request for each
    warps = N // tile.PART  # of `tiled`, each reads where its tile begins, and one thread more at the end
    assert rows <= found["global_load_requests"] <= rows + warps + 1
    assert 4 * passes * N <= found["global_load_bytes"] <= 4 * passes * N + 8 * (32 * warps + 1)
    # What is kept is written side by side: 4 sectors for 32 elements, and a few more where a tile does not begin so.
    assert N // 2 // 8 <= found["global_store_sectors"] <= N // 2 // 8 + 8


@interpreter_only
def test_one_pass_reads_each_element_once():
    once, twice = counters_of(room.single_pass), counters_of(room.tiled)
    assert once["global_load_bytes"] < 4 * N + 100 < twice["global_load_bytes"]
    assert once["atomic_lanes"] > 0 == twice["atomic_lanes"]


@interpreter_only
def test_more_tiles_than_one_look_back_reaches():
    x = HALF[: TILE // 64].repeat(64 * 35)  # 35 tiles
    with simt.schedule("lockstep"):
        assert right(device.to_host(room.single_pass(x)), x)


# --------------------------------------------------------------------------------------------------- other libraries


@each_rung
def test_torch_on_the_cpu_agrees(rung):
    torch = pytest.importorskip("torch")
    x, threshold = INPUTS["not finite, and nearly 0"]
    there = torch.from_numpy(x)
    expected, found = there[there > threshold].numpy(), device.to_host(rung(x, threshold))
    if not keeps_order(rung):
        expected, found = np.sort(expected), np.sort(found)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, library):
    module = pytest.importorskip(library)
    for name in ("several tiles", "all kept", "sorted", "not finite, and nearly 0"):
        x, threshold = (*INPUTS[name], 0)[:2]
        if library == "cupy":
            x = np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)  # it takes subnormal numbers for 0
        given = module.asarray(x) if library == "cupy" else module.from_numpy(x).cuda()
        kept = rung(given, threshold)
        expected, found = given[given > threshold], module.asarray(kept)
        if not keeps_order(rung):
            expected = module.sort(expected) if library == "cupy" else module.sort(expected).values
            found = module.sort(found) if library == "cupy" else module.sort(found).values
        assert bool((expected == found).all()), name


@pytest.mark.gpu
@pytest.mark.parametrize("rung", [room.warp_aggregated, room.privatised, room.tiled, room.single_pass])
def test_more_than_32_bits_count(rung):
    """2^31 and more elements, of which all are kept: places beyond 32 bits."""
    cupy = pytest.importorskip("cupy")
    n = 2**31 + 5
    if cupy.cuda.runtime.memGetInfo()[0] < 9 * n:
        pytest.skip("too little memory")
    x = cupy.full(n, 2, np.int32)
    values, count = rung(x)
    assert int(device.to_host(count)[0]) == n
    assert bool((cupy.asarray(values) == 2).all())
