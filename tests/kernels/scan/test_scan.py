"""Scan: results, arguments, schedules, and the counters of each rung against counts done by hand."""

import functools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels.scan import ladder as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from tests.kernels.scan.wrong import RIGHT
from tests.kernels.scan.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.few_counters import few_counters
from tests.support.wrong import hazards, name_of, observe, result_of, total, watch

BLOCK, TILE, VECTOR_TILE, OPERATORS = room.BLOCK, room.TILE, room.VECTOR_TILE, room.OPERATORS
INPUTS = room.inputs()
DTYPES = [dtype.name for dtype in known(room.DTYPES)]
LONG = "40 tiles and a bit"
KINDS = [(op, exclusive) for op in OPERATORS for exclusive in (False, True)]
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_kind = pytest.mark.parametrize(("op", "exclusive"), KINDS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
FEW = {  # for the wrong kernels, and for schedules that take long: three blocks and a bit
    "a three": (np.float32([3]),),
    "whole numbers": (np.arange(-400, 400, dtype=np.float32),),
    "int32, wraps": (np.full(777, 2**30 + 3, np.int32),),
    "large int64": (np.full(777, 2**54 + 1, np.int64),),
    "negative": (np.arange(-900, -100, dtype=np.float32),),
    "infinite": (np.where(np.arange(777) == 300, np.inf, 1).astype(np.float32),),
    "no number": (np.where(np.arange(777) == 300, np.nan, 1).astype(np.float32),),
}
LOOKING_BACK = (room.single_pass, room.vectorised)


# -------------------------------------------------------------------------------------------------------------- results


def tolerance(x, op, exclusive):
    """How far from the exact result each element may be.

    Integers wrap or fit, and a maximum is one of the elements: nothing. In a float sum an element goes through so many
    additions at most: 2 COARSE in runs (of elements, and of totals of tiles), two for each level of a tree over n
    elements (up and down), 8 for the joins between runs, warps, blocks and tiles, and one per tile where tiles hand on
    their totals. Each rounds by half an eps of what has been added up, which is at most the sum of |x| so far (Higham,
    Accuracy and Stability of Numerical Algorithms, section 4.2). Numbers of 16 bits are added up in float32, and each
    result is rounded once more.
    """
    if op != "sum" or x.dtype.kind == "i":
        return np.zeros(x.size)
    short, wide = is_short(x), x.astype(np.float64)
    wide = np.where(np.isfinite(wide), wide, 0)
    size = np.cumsum(np.abs(wide))
    additions = 2 * room.COARSE + 2 * np.log2(x.size + 1) + 8 + x.size / TILE
    eps = np.finfo(np.float32 if short else x.dtype).eps
    allowed = additions * eps / 2 * (np.r_[0, size[:-1]] if exclusive and x.size else size)
    if short:
        exact = np.cumsum(wide)
        allowed = allowed + rounding(abs(np.r_[0, exact[:-1]] if exclusive and x.size else exact) + allowed, x.dtype)
    return allowed


def is_short(x):
    return x.dtype.name in room.SHORT


@functools.cache
def expected_of(name, op, exclusive):
    with np.errstate(all="ignore"):
        return room.reference((INPUTS | FEW)[name][0], op, exclusive=exclusive)


def right(result, x, op, exclusive, exact=None):
    if exact is None:
        exact = room.reference(x, op, exclusive=exclusive)
    if is_short(x):
        exact = exact.astype(np.float64)
    if x.dtype == np.float16:
        exact = np.where(abs(exact) >= 65520, np.copysign(np.inf, exact), exact)  # what a float16 cannot hold
    return judge.right(result, exact, tolerance(x, op, exclusive), x.dtype)


@few_counters()
def faults(scan, names, kinds=KINDS):
    """All that is wrong with a scan, worst first. The ladder has none; each in wrong.py has one."""
    found = []
    for name in names:
        (x,) = (INPUTS | FEW)[name]
        for op, exclusive in kinds:
            given = device.to_device(x)
            result, reports = watch(scan, given, op, exclusive=exclusive)
            found += hazards(reports)
            if not found:
                exact = expected_of(name, op, exclusive)
                found += ["wrong result"] * (not right(result, x, op, exclusive, exact))
                found += ["input changed"] * (given.copy_to_host().tobytes() != x.tobytes())
                found += ["float64"] * (x.dtype.itemsize < 8 and total(reports, "flops_f64") > 0)
        if found:
            return found
    return found


def further_faults(scan, seeds=2):
    """Of a view that begins between 16-byte boundaries, and of warps in a random order."""
    (x,) = FEW["whole numbers"]
    try:
        result, _ = watch(scan, device.to_device(x)[1:])
    except simt.SimtError as error:
        return ["misaligned"] if "misaligned" in str(error) else [str(error)]
    if not right(result, x[1:], "sum", False):
        return ["wrong result"]
    if device.on_gpu():
        return []
    for seed in range(seeds):
        with simt.schedule("shuffled", seed):
            result, reports = watch(scan, x)
        if found := hazards(reports):
            return found
        if not right(result, x, "sum", False):
            return ["wrong result"]
    return []


@each_rung
@pytest.mark.parametrize("name", [name for name in INPUTS if name != LONG])
def test_a_rung_has_no_fault(rung, name):
    inclusive_sum, *others = KINDS
    other = others[list(INPUTS).index(name) % len(others)]  # each of the other kinds with every third input
    assert faults(rung, [name], [inclusive_sum, other]) == []


@each_rung
def test_a_rung_has_no_further_fault(rung):
    assert faults(rung, FEW, [("sum", True), ("max", False)]) == []
    assert further_faults(rung, seeds=1) == []


@each_rung
def test_more_tiles_than_one_look_back_reaches(rung):
    assert faults(rung, [LONG], [("sum", False)]) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    found = faults(wrong.function, FEW) or further_faults(wrong.function)
    assert found[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("scan", RIGHT, ids=lambda scan: scan.__name__)
def test_what_the_wrong_kernels_are_made_of_is_right(scan):
    assert faults(scan, FEW) == []
    assert further_faults(scan) == []


@each_kind
@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys(name, op, exclusive):
    (x,) = INPUTS[name]
    with np.errstate(all="ignore"):
        if op == "sum":
            wide = np.int64 if x.dtype.kind == "i" else np.float64
            expected = np.cumsum(x.astype(wide))
        else:
            expected = np.maximum.accumulate(x.astype(np.float64) if is_short(x) else x).astype(x.dtype)
    if exclusive and x.size:
        first = np.full(1, room.identity_of(op, x.dtype), expected.dtype)
        expected = np.concatenate([first, expected[:-1]])
    result = expected_of(name, op, exclusive)
    assert result.dtype == expected.dtype
    if is_short(x):
        result, expected = result.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(result, expected)  # NumPy's cumsum adds in the same order


@each_rung
@hypothesis.given(
    n=st.one_of(st.integers(1, 100), st.integers(1, 3 * TILE)),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
    offset=st.integers(0, 4),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_length_type_and_alignment(rung, n, dtype, kind, offset, seed):
    rng = np.random.default_rng(seed)
    if "float" in dtype:
        base = rng.standard_normal(n + offset).astype(dtype)
    else:
        base = rng.integers(-(2**31), 2**31, n + offset).astype(dtype)
    op, exclusive = kind
    result = device.to_host(rung(device.to_device(base)[offset:], op, exclusive=exclusive))
    assert right(result, base[offset:], op, exclusive)


@each_rung
def test_sums_of_int32_wrap(rung):
    x = np.full(TILE + 3, 2**30, np.int32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(device.to_host(rung(x)), np.cumsum(x, dtype=np.int32))


@each_rung
@each_kind
def test_torch_on_the_cpu_agrees(rung, op, exclusive):
    torch = pytest.importorskip("torch")
    (x,) = INPUTS["real numbers"]
    there = torch.from_numpy(x)
    expected = (torch.cumsum(there, 0) if op == "sum" else torch.cummax(there, 0).values).numpy()
    if exclusive:
        expected = np.r_[room.identity_of(op, x.dtype), expected[:-1]]
    # torch on a CPU adds one after another, in double.
    allowed = tolerance(x, op, exclusive) + np.finfo(np.float32).eps * np.abs(expected)
    with np.errstate(invalid="ignore"):  # an exclusive maximum begins with minus infinity
        error = np.where(np.isfinite(expected), np.abs(device.to_host(rung(x, op, exclusive=exclusive)) - expected), 0)
    assert (error <= np.where(np.isfinite(expected), allowed, 0)).all()


@each_rung
def test_a_scan_of_positive_numbers_never_falls_much(rung, rng):
    """Rounding may make a running sum fall by as much as it may be off, and no more."""
    x = rng.random(3 * TILE, dtype=np.float32)
    steps = np.diff(device.to_host(rung(x)).astype(np.float64))
    assert (steps >= -2 * tolerance(x, "sum", False)[1:]).all()


@each_rung
def test_streams(rung):
    (x,) = INPUTS["a tile +1"]
    stream = cuda.stream()
    result = rung(device.to_device(x), stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), x, "sum", False)


# ------------------------------------------------------------------------------------------- tiles that wait for others


@interpreter_only
@pytest.mark.parametrize("rung", LOOKING_BACK, ids=lambda rung: rung.name)
@pytest.mark.parametrize("seed", range(2))
def test_blocks_may_run_in_any_order(rung, seed, rng):
    x = rng.integers(-9, 10, 2 * VECTOR_TILE + 5).astype(np.float32)
    with simt.schedule("shuffled", seed):
        result, reports = observe(rung, x)
    assert reports[-1].schedule == f"shuffled, seed {seed}"
    np.testing.assert_array_equal(result, np.cumsum(x))  # whole numbers: exact


@interpreter_only
@pytest.mark.parametrize("rung", LOOKING_BACK, ids=lambda rung: rung.name)
def test_in_lockstep_all_tiles_publish_before_any_looks_back(rung):
    """And block by block each finds the one before it complete: both are orders that a GPU may take."""
    x = np.ones(3 * VECTOR_TILE, np.float32)
    for schedule in "lockstep", "blocks":
        with simt.schedule(schedule):
            result, reports = observe(rung, x)
        assert reports[-1].schedule == schedule
        np.testing.assert_array_equal(result, np.arange(1, x.size + 1))


WIDE = 1024  # threads per block: two blocks fill a multiprocessor


@cuda.jit
def numbered_kernel(states, dynamic):
    """A chain of tiles, numbered as their blocks begin, or from the end of the grid."""
    tile = np.int64(cuda.gridDim.x - 1 - cuda.blockIdx.x)
    if dynamic:
        tile = room.next_tile(states, cuda.shared.array(1, np.int64))
    if cuda.threadIdx.x == 0:
        while tile > 0 and cuda.atomic.add(states, tile, 0) == 0:
            pass
        cuda.atomic.exch(states, tile + 1, room.COMPLETE)


@interpreter_only
def test_tiles_numbered_by_block_hang_when_blocks_begin_in_another_order():
    tiles = 132 * 2 + 1
    states = np.zeros(tiles + 1, np.int64)
    simt.profile(numbered_kernel, tiles, WIDE, (states, True), level="run", schedule="blocks")
    assert (states[1:] == room.COMPLETE).all()
    states = np.zeros(tiles + 1, np.int64)
    with pytest.raises(simt.SimtError, match=r"264 blocks that fit on the GPU.* begin only when"):
        simt.profile(numbered_kernel, tiles, WIDE, (states, False), level="run", schedule="blocks")


# ------------------------------------------------------------------------------------------------------------ bad input

VECTOR = np.ones(5, np.float32)
BAD = {
    "another dtype": ((VECTOR.astype(np.uint8),), {}, TypeError, "x must be float32, .* or bfloat16, was uint8"),
    "booleans": ((VECTOR > 0,), {}, TypeError, "x must be float32, .* or bfloat16, was bool"),
    "a matrix": ((np.ones((2, 3), np.float32),), {}, ValueError, r"x must have 1 dimension, had 2: .* \(2, 3\)"),
    "every other": ((np.ones(10, np.float32)[::2],), {}, ValueError, "x must be contiguous in C order, had .* copy it"),
    "another operator": ((VECTOR, "min"), {}, ValueError, "op must be 'sum' or 'max', was 'min'"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters
#
# Inclusive sums of float32 in one tile. A warp's request for 32 neighbours is 4 sectors.

WARPS = BLOCK // 32


def counters_of(rung, n):
    result, reports = observe(rung, np.ones(n, np.float32))
    np.testing.assert_array_equal(result, np.arange(1, n + 1))
    (report,) = (report for report in reports if report.kernel == f"{rung.name}_kernel")
    assert not report.hazards
    assert report.counters["flops_f64"] == 0
    return report.counters


@interpreter_only
def test_counters_of_kogge_stone():
    found = counters_of(room.kogge_stone, BLOCK)
    assert found["flops"] == sum(BLOCK - 2**k for k in range(8))  # n log n, less what stands at the beginning
    assert found["barriers"] == 1 + 2 * 8
    assert found["global_load_sectors"] == BLOCK // 8
    assert found["global_store_sectors"] == BLOCK // 8 + 1
    # Neighbouring lanes, neighbouring banks: one wavefront per request. Reads: all, and then those with an earlier one.
    assert found["shared_load_requests"] == found["shared_load_wavefronts"]


@interpreter_only
def test_counters_of_brent_kung():
    found = counters_of(room.brent_kung, room.TWICE)
    up, down = room.TWICE - 1, sum(room.TWICE // (2 * 2**k) - 1 for k in range(8))
    assert found["flops"] == up + down < 2 * room.TWICE
    assert found["barriers"] == 1 + 9 + 8
    assert found["shared_load_wavefronts"] > 2 * found["shared_load_requests"]  # strides put lanes into one bank


@interpreter_only
@pytest.mark.parametrize(("rung", "barriers"), [(room.coarsened, 3 + 2 * 8), (room.shuffle, 4)])
def test_counters_of_a_tile(rung, barriers):
    found = counters_of(rung, TILE)
    assert found["barriers"] == barriers
    assert found["global_load_requests"] == TILE // 32
    assert found["global_load_sectors"] == TILE // 8
    assert found["global_store_sectors"] == TILE // 8 + 1
    # Lanes 21 elements apart use 32 banks; a tile's warps read or write 21 elements per lane without a conflict.
    assert found["shared_load_wavefronts"] == found["shared_load_requests"]
    assert found["shared_store_wavefronts"] == found["shared_store_requests"]


def bytes_of(rung, n):
    result, reports = observe(rung, np.ones(n, np.float32))
    np.testing.assert_array_equal(result, np.arange(1, n + 1))
    return total(reports, "global_load_bytes") + total(reports, "global_store_bytes")


@interpreter_only
@pytest.mark.parametrize(
    ("rung", "trips"), [(room.shuffle, 4), (room.hierarchical, 3), (room.single_pass, 2), (room.vectorised, 2)]
)
def test_trips(rung, trips):
    """How often an element travels between the memory and the GPU; totals and states are under one in a hundred."""
    n = 21 * VECTOR_TILE  # which both tiles divide
    assert trips <= bytes_of(rung, n) / (4 * n) < trips + 0.05


@interpreter_only
def test_counters_of_vectorised():
    found = counters_of(room.vectorised, VECTOR_TILE)
    assert found["global_load_requests"] == found["global_store_requests"] == VECTOR_TILE // 128
    assert found["global_load_sectors"] == found["global_store_sectors"] == VECTOR_TILE // 8
    assert found["barriers"] == 4


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_counters_of_16_bits(dtype):
    """Twice as many elements in a tile, for the same requests and sectors; and every addition is one of float32."""
    x = (np.arange(2 * VECTOR_TILE) % 7 < 1).astype(dtype)
    result, (report,) = observe(room.vectorised, x)
    assert right(result, x, "sum", False)
    found = report.counters
    assert found["global_load_requests"] == found["global_store_requests"] == VECTOR_TILE // 128
    assert found["global_load_sectors"] == found["global_store_sectors"] == VECTOR_TILE // 8
    assert found["flops_f16"] == found["flops_f64"] == 0


@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_16_bits_are_widened_in_registers(dtype, ptx, spy):
    watched = spy(room.eights_kernel)
    room.vectorised(np.ones(9, dtype))
    text = ptx(watched.kernel, *watched.launches[0], cc=(9, 0))
    assert ".extern" not in text
    assert ".local" not in text
    assert "ld.global.v4" in text
    assert "st.global.v4" in text


def test_vectorised_keeps_everything_in_registers(ptx, spy):
    watched = spy(room.vectorised_kernel)
    room.vectorised(np.ones(9, np.float32))
    text = ptx(watched.kernel, *watched.launches[0])
    assert ".local" not in text
    assert "ld.global.v4" in text
    assert "st.global.v4" in text


@interpreter_only
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("exclusive", [False, True])
def test_tiles_of_64_bits(op, exclusive, dtype, rng):
    """As `test_tiles_of_16_bits`. Both halves of a number must arrive: these numbers are large, and of both signs."""
    base = rng.integers(-(2**40), 2**40, 2 * room.PAIRS_TILE + 77).astype(dtype)
    for offset in (0, 1):
        result = result_of(room.vectorised, device.to_device(base)[offset:], op, exclusive=exclusive)
        assert right(result, base[offset:], op, exclusive)


@interpreter_only
def test_64_bits_look_back_over_more_tiles_than_a_warp_sees(rng):
    x = rng.integers(-(2**40), 2**40, 34 * room.PAIRS_TILE + 1)
    result, reports = observe(room.vectorised, x)
    assert right(result, x, "sum", False)
    assert [report.kernel for report in reports] == ["clear_kernel", "pairs_kernel"]


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_64_bits_stay_in_registers(dtype, ptx, spy):
    watched = spy(room.pairs_kernel)
    room.vectorised(np.ones(9, dtype))
    text = ptx(watched.kernel, *watched.launches[0])
    assert ".local" not in text
    assert "ld.global.v2" in text
    assert "st.global.v2" in text


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("exclusive", [False, True])
def test_tiles_of_16_bits(op, exclusive, dtype, rng):
    """More tiles than one, whole and in part, and a vector that begins between two multiples of 16 bytes."""
    base = rng.integers(-3, 4, 2 * room.EIGHTS_TILE + 77).astype(dtype)
    for offset in (0, 3):
        result = result_of(room.vectorised, device.to_device(base)[offset:], op, exclusive=exclusive)
        assert right(result, base[offset:], op, exclusive)


@interpreter_only
@pytest.mark.parametrize("rung", LOOKING_BACK, ids=lambda rung: rung.name)
def test_a_single_tile_is_a_single_launch(rung):
    """For it the words need not be cleared: the time of small vectors is that of launching."""
    tile = {"single_pass": TILE, "vectorised": VECTOR_TILE}[rung.name]
    for n, launches in (tile, 1), (tile + 1, 2):
        _, reports = observe(rung, np.ones(n, np.float32))
        assert len(reports) == launches


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, library):
    module = pytest.importorskip(library)
    for name, (x,) in INPUTS.items():
        if x.size == 0 or x.dtype == np.int32 or is_short(x):  # libraries add int32 up in int64, and 16 bits otherwise
            continue
        if library == "cupy":
            given = module.asarray(x)
            expected = module.asnumpy(module.cumsum(given))
        else:
            given = module.from_numpy(x).cuda()
            expected = module.cumsum(given, 0).cpu().numpy()
        # Each is as close to the exact result as a float can be expected to be.
        result, finite = device.to_host(rung(given)), np.isfinite(expected)
        np.testing.assert_array_equal(result[~finite], expected[~finite], err_msg=name)
        error = np.abs(result[finite].astype(np.float64) - expected[finite])
        assert (error <= 2 * tolerance(x, "sum", False)[finite]).all(), name


@pytest.mark.gpu
@each_rung
@each_kind
def test_a_large_scan_on_the_gpu(rung, op, exclusive):
    """Whole numbers, whose sums are exact in any order; several times, for tiles meet in another order each time."""
    cupy = pytest.importorskip("cupy")
    x = cupy.random.RandomState(0).randint(-8, 9, 2**24 + 3).astype(cupy.float32)
    if op == "sum":
        expected = cupy.cumsum(x.astype(cupy.float64)).astype(cupy.float32)
    else:
        expected = cupy.asarray(np.maximum.accumulate(cupy.asnumpy(x)))
    if exclusive:
        first = cupy.asarray(room.identity_of(op, np.dtype(np.float32))).reshape(1)
        expected = cupy.concatenate([first, expected[:-1]])
    for _ in range(5):
        assert bool((cupy.asarray(rung(x, op, exclusive=exclusive)) == expected).all())
