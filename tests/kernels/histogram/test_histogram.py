"""Histogram: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import histogram as subject
from pmpp.kernels.histogram import ladder as room
from pmpp.runtime import device
from tests.kernels.histogram.wrong import RIGHT
from tests.kernels.histogram.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import misaligned, name_of, observe, total

BLOCK, INPUTS = room.BLOCK, room.inputs()
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_input = pytest.mark.parametrize("name", INPUTS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="finds what the interpreter finds")


# -------------------------------------------------------------------------------------------------------------- results


def tolerance(x, bins=256, range=None, weights=None):
    """Counts are exact. A sum of m weights takes at most m additions, each off by half an eps of the sum of sizes."""
    if weights is None:
        return 0
    sizes = np.where(np.isfinite(weights), np.abs(weights), 0)
    return 2.0**-24 * room.reference(x, bins, range) * room.reference(x, bins, range, sizes) * 1.01


def right(result, *arguments):
    dtype = np.int64 if len(arguments) < 4 else np.float32
    return judge.right(result, room.reference(*arguments), tolerance(*arguments), dtype)


def faults(function):
    """All that is wrong with a histogram on the first input where anything is, worst first."""
    for arguments in INPUTS.values():
        found = judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments))
        wide = (
            len(arguments) > 2 and arguments[0].dtype != np.float32
        )  # the bins of integers in a range are computed so
        if found := [fault for fault in found if fault != "float64" or not wide]:
            return found
    x = np.arange(9001).astype(np.uint8)
    for offset in (1, 15):
        given = misaligned(x, offset)
        if found := judge.faults(function, (given,), lambda result: right(result, x)):
            return found
    x = np.full(40_000, 3, np.uint8)  # more of one value than a counter of one byte holds, in each of 128 threads
    return judge.faults(function, (x,), lambda result: right(result, x))


@each_rung
def test_a_rung_has_no_fault(rung):
    assert faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


def test_what_the_wrong_kernels_are_made_of_is_right():
    assert faults(RIGHT) == []


@each_input
def test_the_reference_is_numpys(name):
    x, bins, range, weights = (*INPUTS[name], *(256, None, None)[len(INPUTS[name]) - 1 :])
    found = room.reference(x, bins, range, weights)
    if range is None:
        inside = (x >= 0) & (x < bins)
        some = None if weights is None else weights[inside].astype(np.float64)
        with np.errstate(invalid="ignore"):
            expected = np.bincount(x[inside].astype(np.int64), some, bins)
        np.testing.assert_array_equal(found, expected)
    else:
        with np.errstate(invalid="ignore"):
            expected, _ = np.histogram(x, bins, range, weights=weights)
        # NumPy puts what lies at an inner edge on the side of the float64 edge: two neighbours may differ by it.
        inside = x[np.isfinite(x)].astype(np.float64)
        near = np.abs((inside - range[0]) * (bins / (range[1] - range[0])) % 1)
        loose = (np.minimum(near, 1 - near) < 1e-5).sum() if x.dtype == np.float32 else 0
        largest = 1 if weights is None else np.abs(weights).max()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 + loose * largest)


@each_rung
@pytest.mark.parametrize("dtype", room.DTYPES)
@hypothesis.given(
    n=st.one_of(st.integers(0, 70), st.integers(0, 3000)),
    bins=st.one_of(st.integers(1, 10), st.integers(200, 1500), st.just(13_000)),
    offset=st.integers(0, 17),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=6)
def test_any_length_type_alignment_and_number_of_bins(rung, dtype, n, bins, offset, weighted, seed):
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        x, range = rng.standard_normal(n).astype(dtype), (-1.5, 0.75)
    else:
        x, range = rng.integers(0, min(256, bins + 3), n).astype(dtype), None
    weights = rng.standard_normal(n, dtype=np.float32) if weighted else None
    result = device.to_host(rung(misaligned(x, offset), bins, range, weights))
    arguments = (x, bins, range, weights) if weighted else (x, bins, range)
    assert right(result, *arguments)


@each_rung
@pytest.mark.parametrize("n", [16 * 128 * room.VECTORS * k + d for k in (1, 2) for d in (-1, 0, 17)])
def test_equal_bytes_up_to_the_flush_and_beyond(rung, n):
    """A counter of one byte is full after 255."""
    result = device.to_host(rung(np.full(n, 3, np.uint8), 5))
    np.testing.assert_array_equal(result, [0, 0, 0, n, 0])


@interpreter_only
@each_rung
def test_few_blocks_do_the_work_of_many(rung, monkeypatch, rng):
    """As on a GPU that holds few blocks: then each takes much."""
    monkeypatch.setattr(room.device, "limits", lambda: {"multiprocessors": 1})
    x = rng.integers(0, 300, 30_000).astype(np.int32)
    assert right(device.to_host(rung(x, 256)), x, 256)
    x = x.astype(np.uint8)
    assert right(device.to_host(rung(x)), x)
    assert right(device.to_host(rung(misaligned(x, 3))), x)


@interpreter_only
@each_rung
def test_the_result_does_not_depend_on_the_batch(rung, rng):
    x = rng.integers(0, 256, 9001).astype(np.uint8)
    results = []
    for lanes in (BLOCK, 3 * BLOCK, 2**20):
        with simt.batch_lanes(lanes):
            results.append(device.to_host(rung(x)))
    assert len({result.tobytes() for result in results}) == 1


@each_rung
def test_output_and_stream(rung):
    (x,) = INPUTS["several blocks"]
    out = device.to_device(np.full(256, -1, np.int64))
    stream = cuda.stream()
    assert rung(x, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x)


def test_no_block_counts_beyond_32_bits(monkeypatch):
    """Where a GPU holds few blocks, there are more for a long vector than it holds at once."""

    class Long:
        size = 2**33 + 1

    problem = room.Problem(None, x=Long)
    for multiprocessors in (1, 2, 132):
        monkeypatch.setattr(room.device, "limits", lambda n=multiprocessors: {"multiprocessors": n})
        assert -(-Long.size // room.resident(problem)) < 2**31


def test_the_plain_function():
    x = np.uint8([1, 3, 3, 7])
    np.testing.assert_array_equal(device.to_host(subject.histogram(x, 5)), [0, 1, 0, 2, 0])


# ------------------------------------------------------------------------------------------------------------ bad input

BYTES, FLOATS = np.zeros(5, np.uint8), np.zeros(5, np.float32)
TWO = "range must be two finite numbers, the lower one first"
BAD = {
    "another dtype": ((BYTES.astype(np.int16),), {}, TypeError, "x must be uint8, .* or float64, was int16"),
    "a matrix": ((np.zeros((2, 3), np.uint8),), {}, ValueError, "x must have 1 dimension, had 2"),
    "every other": ((np.zeros(10, np.uint8)[::2],), {}, ValueError, "x must be contiguous in C order"),
    "no bins": ((BYTES, 0), {}, ValueError, "bins must be from 1 to 2147483647, was 0"),
    "half a bin": ((BYTES, 1.5), {}, TypeError, "bins must be an integer, was 1.5"),
    "edges of bins": ((BYTES, [0, 1, 2]), {}, TypeError, r"bins must be an integer, was \[0, 1, 2\]"),
    "no range for floats": ((FLOATS,), {}, ValueError, "range must be two numbers for an x of float32, .* was None"),
    "a number": ((FLOATS, 4, 1.0), {}, TypeError, TWO + ".*, or None, was 1.0"),
    "three numbers": ((FLOATS, 4, (1, 2, 3)), {}, TypeError, TWO + r".*, was \(1, 2, 3\)"),
    "no numbers": ((FLOATS, 4, ("a", "b")), {}, TypeError, TWO),
    "a truth value": ((FLOATS, 4, (False, True)), {}, TypeError, TWO),
    "backwards": ((FLOATS, 4, (1, 0)), {}, ValueError, TWO + r".*, was \(1, 0\)"),
    "no width": ((BYTES, 4, (2, 2)), {}, ValueError, TWO + r".*, was \(2, 2\)"),
    "no width in float32": ((FLOATS, 4, (1, 1 + 1e-9)), {}, ValueError, TWO + ".* a normal float32"),
    "too wide": ((FLOATS, 4, (-3e38, 3e38)), {}, ValueError, TWO),
    "too narrow": ((FLOATS, 4, (0, 1e-40)), {}, ValueError, TWO),
    "too narrow for its bins": ((FLOATS, 2**30, (0, 2e-38)), {}, ValueError, TWO),
    "beyond float32": ((FLOATS, 4, (0, 1e300)), {}, ValueError, TWO),
    "beyond float64": ((BYTES, 4, (0, 10**400)), {}, ValueError, TWO),
    "infinite": ((FLOATS, 4, (0, np.inf)), {}, ValueError, TWO),
    "not a number": ((FLOATS, 4, (np.nan, 1)), {}, ValueError, TWO),
    "weights of another dtype": (
        (BYTES, 4, None, np.zeros(5)),
        {},
        TypeError,
        "weights must be float32, was float64",
    ),
    "too few weights": ((BYTES, 4, None, FLOATS[:4]), {}, ValueError, r"weights must have shape \(5,\), had \(4,\)"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


@each_rung
def test_a_bad_output(rung):
    with pytest.raises(ValueError, match=r"out must have shape \(4,\), had \(5,\)"):
        rung(BYTES, 4, out=device.empty(5, np.int64))
    with pytest.raises(TypeError, match="out must be int64, was int32"):
        rung(BYTES, 4, out=device.empty(4, np.int32))
    with pytest.raises(TypeError, match="out must be float32, was int64"):
        rung(BYTES, 4, None, FLOATS, out=device.empty(4, np.int64))


@each_rung
def test_nothing_to_count(rung):
    for x, options in ((BYTES, {}), (FLOATS, {"range": (0, 1)}), (FLOATS, {"range": (0, 1), "weights": FLOATS[:0]})):
        result = device.to_host(rung(x[:0], 3, **options))
        assert not result.any()
        assert result.dtype == (np.float32 if "weights" in options else np.int64)


# ------------------------------------------------------------------------------------------------------------- counters
#
# Every value of a byte comes in each 256 elements in a row, so that the lanes of a warp never meet, and every block has
# all values; or all are equal, and they always do.

SPREAD = np.arange(2 * BLOCK).astype(np.uint8)
EQUAL = np.full(2 * BLOCK, 7, np.uint8)
WARPS = 2 * BLOCK // 32
FLUSH = 256 // 32  # requests that add all bins to the result


def counters_of(rung, x):
    """Of the rung's own kernel; the other one clears the result."""
    result, reports = observe(rung, x)
    assert right(result, x)
    (report,) = [report for report in reports if report.kernel != "clear_kernel"]
    assert report.counters["flops"] == 0
    return report.counters


@interpreter_only
def test_counters_of_global_atomics():
    found = counters_of(room.global_atomics, SPREAD)
    assert (found["global_load_requests"], found["global_load_sectors"]) == (WARPS, WARPS)  # 32 bytes: a sector
    assert (found["atomic_requests"], found["atomic_lanes"], found["atomic_passes"]) == (WARPS, 32 * WARPS, WARPS)
    assert counters_of(room.global_atomics, EQUAL)["atomic_passes"] == 32 * WARPS


@interpreter_only
def test_counters_of_privatised():
    found = counters_of(room.privatised, SPREAD)
    assert found["atomic_requests"] == found["atomic_passes"] == WARPS + 2 * FLUSH  # two blocks
    assert found["barriers"] == 2 * 2
    found = counters_of(room.privatised, EQUAL)
    assert found["atomic_passes"] == 32 * WARPS + 2  # a bin that is empty takes no atomic
    assert found["global_atomic_sectors"] == 2


@interpreter_only
def test_counters_of_coarsened(monkeypatch):
    monkeypatch.setattr(room.device, "limits", lambda: {"multiprocessors": 1})  # it holds four blocks
    x = np.tile(SPREAD, 8)
    assert counters_of(room.privatised, x)["atomic_requests"] == 8 * WARPS + 16 * FLUSH
    found = counters_of(room.coarsened, x)
    assert found["atomic_requests"] == 8 * WARPS + 4 * FLUSH
    assert found["global_load_sectors"] == 8 * WARPS


@interpreter_only
def test_counters_of_aggregated(monkeypatch):
    monkeypatch.setattr(room.device, "limits", lambda: {"multiprocessors": 1})
    found = counters_of(room.aggregated, np.tile(EQUAL, 8))  # four blocks; a thread has one run
    assert found["atomic_passes"] == 4 * BLOCK + 4
    # Elements that one thread takes are a multiple of 256 apart, and equal here, too.
    assert counters_of(room.aggregated, np.tile(SPREAD, 8))["atomic_requests"] == 4 * (BLOCK // 32 + FLUSH)
    some = np.repeat(np.arange(4, dtype=np.uint8), 4 * BLOCK)  # each of a thread's four elements is another
    assert counters_of(room.aggregated, some)["atomic_requests"] == 4 * (4 * BLOCK // 32 + 1)


@interpreter_only
@pytest.mark.parametrize("x", [SPREAD, EQUAL], ids=["spread", "equal"])
def test_in_copies_lanes_never_meet(x):
    found = counters_of(room.copies, x)
    bins = 256 if x is SPREAD else 1
    flushed = FLUSH if x is SPREAD else 1
    assert found["atomic_requests"] == found["atomic_passes"] == WARPS + flushed
    # One block clears and adds up 32 copies of 256 bins, without bank conflicts.
    assert found["shared_store_requests"] == found["shared_store_wavefronts"] == 256
    assert found["shared_load_requests"] == found["shared_load_wavefronts"] == 256
    assert found["global_atomic_sectors"] == -(-bins // 4)  # of int64


@interpreter_only
def test_counters_of_wide_bytes():
    x = np.tile(SPREAD, 16)  # a vector for each thread of two blocks
    found = counters_of(room.wide_bytes, x)
    assert found["global_load_requests"] == x.size // 16 // 32
    assert found["global_load_sectors"] == x.size // 32
    assert found["atomic_requests"] == found["atomic_passes"] == x.size // 32 + 2 * FLUSH
    assert found["shared_load_requests"] == found["shared_load_wavefronts"] == 2 * 256


@interpreter_only
@pytest.mark.parametrize("value", [None, 7], ids=["spread", "equal"])
def test_counters_of_per_thread(value):
    n = 16 * room.COLUMNS * room.VECTORS  # one tile
    x = np.arange(n).astype(np.uint8) if value is None else np.full(n, value, np.uint8)
    found = counters_of(room.per_thread, x)
    assert found["atomic_requests"] == (FLUSH if value is None else 1)
    assert found["global_load_requests"] == n // 16 // 32
    words = 256 * room.COLUMNS // 4
    # Each byte is a load and a store. Each word of the counters is set to 0, read, and set to 0 again.
    assert found["shared_load_requests"] == n // 32 + words // 32
    assert found["shared_store_requests"] == n // 32 + 2 * words // 32
    assert found["shared_load_wavefronts"] == found["shared_load_requests"]
    assert found["shared_store_wavefronts"] == found["shared_store_requests"]
    assert found["barriers"] == 1 + 2


@interpreter_only
def test_a_head_and_a_tail_are_read_once():
    for rung in (room.wide_bytes, room.per_thread):
        result, reports = observe(rung, misaligned(np.arange(1000).astype(np.uint8), 5))
        assert result.sum() == 1000
        assert total(reports, "global_load_bytes") == 1000


# --------------------------------------------------------------------------------------------------- other libraries


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_agrees(rung, library):
    module = pytest.importorskip(library)
    for name in ("several blocks", "bytes, all equal", "bytes, sorted", "many bins"):
        x, bins = (*INPUTS[name], 256)[:2]
        given = module.asarray(x) if library == "cupy" else module.from_numpy(x).cuda()
        expected = module.bincount(given, minlength=bins)
        expected = module.asnumpy(expected) if library == "cupy" else expected.cpu().numpy()
        np.testing.assert_array_equal(device.to_host(rung(given, bins)), expected, err_msg=name)


@pytest.mark.gpu
@each_rung
def test_more_than_32_bits_count(rung):
    """2^31 and more elements, all of one bin."""
    cupy = pytest.importorskip("cupy")
    n = 2**31 + 5
    if cupy.cuda.runtime.memGetInfo()[0] < 2 * n:
        pytest.skip("too little memory")
    x = cupy.full(n, 2, np.uint8)
    np.testing.assert_array_equal(device.to_host(rung(x, 4)), [0, 0, n, 0])
