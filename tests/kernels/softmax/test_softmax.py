"""Softmax: results, arguments, and the counters of each rung against counts done by hand."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.softmax import ladder as room
from pmpp.kernels.softmax import rows as parts
from pmpp.kernels.softmax.workloads import on_cpu, verify
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.softmax.wrong import ELEMENTS, ONLINE, RIGHT
from tests.kernels.softmax.wrong import RUNGS as WRONG
from tests.support import judge
from tests.support.wrong import name_of, observe, total

BLOCK = room.BLOCK
INPUTS = room.inputs()
DTYPES = known(room.DTYPES)
SHORT = known(room.SHORT_DTYPES)
each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, axis=-1, log=False):
    return judge.right(result, room.reference(x, axis, log), room.tolerance(x, axis, log), x.dtype)


def faults(softmax, names):
    """All that is wrong with a softmax on the first input where anything is, worst first."""
    for name in names:
        arguments = INPUTS[name]
        if found := judge.faults(softmax, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return excesses(softmax)


def excesses(softmax):
    """What a softmax does beyond its work."""
    found, x = [], np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    result, reports = observe(softmax, x)
    if reports:
        found += ["float64"] * (total(reports, "flops_f64") > 0)
        found += ["traffic"] * (total(reports, "global_load_sectors") > 4 * x.nbytes // 32)  # three times, and some
    return found + ["wrong result"] * (not right(result, x))


@pytest.mark.skipif(device.on_gpu(), reason="there the check takes CuPy's arrays, and make bench runs it")
@pytest.mark.parametrize("shape", [(1, 1), (3, 1024), (40, 33)])
def test_numpy_on_the_cpu_passes_its_check_and_a_wrong_element_does_not(shape):
    x = 10 * np.random.default_rng(6).standard_normal(shape, dtype=np.float32)
    given, result = x.copy(), on_cpu(x)
    assert result.dtype == np.float32
    assert np.array_equal(x, given)
    error, allowed = verify(result, x)
    assert error <= allowed
    result[-1, -1] += 0.01
    error, allowed = verify(result, x)
    assert error > allowed


@each_rung
def test_a_rung_does_nothing_beyond_its_work(rung):
    """The room's inputs are those of the contract of every room."""
    assert excesses(rung) == []


SOME = [
    "rows of 2",
    "rows of 3",
    "rows of 33",
    "rows of a warp +1",
    "far below 0",
    "axis 1 of three",
    "large",
    "non-finite, rising",
    "log",
]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, SOME)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("softmax", [RIGHT, ONLINE, ELEMENTS], ids=["three passes", "online", "elements"])
def test_the_kernels_that_the_wrong_ones_differ_from_are_right(softmax):
    assert faults(softmax, SOME) == []


@each_rung
@pytest.mark.parametrize("log", [False, True], ids=["", "log"])
@hypothesis.given(
    shape=st.one_of(
        st.tuples(st.integers(1, 40), st.integers(1, 70)),
        st.tuples(st.integers(1, 3), st.integers(1, 9000)),
        st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
    ),
    axis=st.integers(-2, 1),
    dtype=st.sampled_from(DTYPES),
    offset=st.integers(0, 4),
    spread=st.sampled_from([1.0, 30.0, 1e4]),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=5)
def test_any_shape_axis_type_and_alignment(rung, log, shape, axis, dtype, offset, spread, seed):
    size = math.prod(shape)
    base = (np.random.default_rng(seed).standard_normal(size + offset) * spread).astype(dtype)
    x = base[offset:].reshape(shape)
    given = device.to_device(base)[offset:].reshape(shape)
    assert right(device.to_host(rung(given, axis, log)), x, axis, log)


@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 32, 33, 63, 64, 65, 127, 1023, 1024, 1025, 8191, 8193, 32_767]
)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_the_last_rung_at_every_edge(n, offset, rng):
    """Lengths on both sides of where another kernel takes over, and rows that begin anywhere between two vectors."""
    base = rng.standard_normal(5 * n + offset).astype(np.float32)
    given = device.to_device(base)[offset:].reshape(5, n)
    out = device.to_device(np.full(5 * n + offset, np.nan, np.float32))
    room.vectorised(given, out=out[offset:].reshape(5, n))
    result = out.copy_to_host()
    assert right(result[offset:].reshape(5, n), base[offset:].reshape(5, n))
    assert np.isnan(result[:offset]).all()


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 5])
@pytest.mark.parametrize("n", [1, 2, 6, 8, 9, 24, 31, 40, 257, 1024, 1025, 2056, 32_768, 32_769])
def test_the_last_rung_at_every_edge_of_16_bits(n, offset, dtype, rng):
    base = (3 * rng.standard_normal(3 * n + offset)).astype(dtype)
    given = device.to_device(base)[offset:].reshape(3, n)
    out = device.to_device(np.full(3 * n + offset, np.nan, dtype))
    room.vectorised(given, out=out[offset:].reshape(3, n))
    result = out.copy_to_host()
    assert right(result[offset:].reshape(3, n), base[offset:].reshape(3, n))
    assert np.isnan(result[:offset]).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(2, 5, 3), (1, 16, 300), (3, 17, 40), (1, 166, 33), (2, 600, 5), (1, 1025, 9)], ids=str
)
def test_columns_in_registers(shape, dtype, rng):
    """One thread for a column, several, and more than fit: with values that are not finite in some of the columns."""
    x = rng.standard_normal(shape).astype(dtype)
    x[0, :, 0], x[-1, -1, -1], x[0, 1, 1] = -np.inf, np.nan, np.inf
    for log in (False, True):
        assert right(device.to_host(room.vectorised(x, 1, log)), x, 1, log)


@each_rung
def test_shares_add_up_to_one_and_do_not_change_with_a_shift(rung, rng):
    x = rng.integers(-8, 8, (6, 500)).astype(np.float32)
    result = device.to_host(rung(x)).astype(np.float64)
    np.testing.assert_allclose(result.sum(axis=1), 1, rtol=0, atol=500 * 2.0**-24)
    shifted = device.to_host(rung(x + np.float32(4096)))  # whole numbers: x - max is the very same
    np.testing.assert_array_equal(shifted, result.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 17, 20])
def test_tiny_rows_that_are_not_finite(n, dtype, rng):
    x = rng.standard_normal((23, n)).astype(dtype)
    x[0], x[1, :-1], x[5, 0], x[10, -1], x[22, n // 2] = -np.inf, -np.inf, np.nan, np.inf, np.nan
    x[15, : n // 2], x[16] = -np.inf, np.finfo(np.float32 if dtype.name == "bfloat16" else dtype).min * 0.99
    base = np.concatenate([np.zeros(1, dtype), x.reshape(-1)])
    for given in (device.to_device(x), device.to_device(base)[1:].reshape(x.shape)):
        for log in (False, True):
            assert right(device.to_host(room.vectorised(given, -1, log)), x, -1, log)


@pytest.mark.parametrize("n", [4, 7, 20, 100])
def test_an_out_that_lies_otherwise_than_the_input(n, rng):
    x = rng.standard_normal((4, n)).astype(np.float32)
    out = device.empty(4 * n + 1, np.float32)[1:].reshape(4, n)
    assert right(device.to_host(room.vectorised(x, out=out)), x)


def test_rows_of_more_parts_than_the_gpu_has_multiprocessors(monkeypatch, rng):
    limits = {**device.limits(), "multiprocessors": 2}
    monkeypatch.setattr(device, "limits", lambda: limits)
    x = rng.standard_normal((2, 40_000)).astype(np.float32)
    result, reports = observe(room.vectorised, x)
    assert right(result, x)
    assert device.on_gpu() or [report.kernel for report in reports] == ["part_kernel", "whole_kernel"]


@each_rung
def test_streams(rung):
    x, axis, log = INPUTS["long rows"]
    stream = cuda.stream()
    result = rung(device.to_device(x), axis, log, stream=stream)
    stream.synchronize()
    assert right(result.copy_to_host(), x, axis, log)


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_is_numpys_and_scipys_definition(name):
    x, axis, log = INPUTS[name]
    if not x.size:
        return
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        below = wide - wide.max(axis=axis, keepdims=True)
        total = np.exp(below).sum(axis=axis, keepdims=True)
        expected = below - np.log(total) if log else np.exp(below) / total
    np.testing.assert_allclose(room.reference(x, axis, log), expected, rtol=1e-13, atol=1e-13)


def test_what_is_not_finite():
    """The definitions of the docstring, spelled out."""
    inf, nan = np.inf, np.nan
    rows = np.float32([[-inf, 0, 0, -inf], [-inf] * 4, [0, inf, 0, 0], [0, nan, 0, 0], [-inf, -inf, 3, -inf]])
    expected = np.float32([[0, 0.5, 0.5, 0], [nan] * 4, [nan] * 4, [nan] * 4, [0, 0, 1, 0]])
    for rung in room.LADDER:
        np.testing.assert_array_equal(device.to_host(rung(rows)), expected)
        logs = device.to_host(rung(rows[[4]], -1, True))
        np.testing.assert_array_equal(logs, np.float32([[-inf, -inf, 0, -inf]]))


# ------------------------------------------------------------------------------------------------------------ bad input

MATRIX = np.ones((3, 5), np.float32)
BAD = {
    "another dtype": ((MATRIX.astype(np.uint8),), {}, TypeError, "x must be float32, .* or bfloat16, was uint8"),
    "integers": ((MATRIX.astype(np.int32),), {}, TypeError, "x must be float32, .* or bfloat16, was int32"),
    "no dimension": ((np.array(3, np.float32),), {}, ValueError, "x must have"),
    "every other": ((np.ones((4, 10), np.float32)[:, ::2],), {}, ValueError, "x must be contiguous in C order"),
    "an axis too far": ((MATRIX, 2), {}, ValueError, r"axis must be from -2 to 1 for x of shape \(3, 5\), was 2"),
    "an axis too low": ((MATRIX, -3), {}, ValueError, r"axis must be from -2 to 1 for x of shape \(3, 5\), was -3"),
    "another out": ((MATRIX,), {"out": device.empty((5, 3), np.float32)}, ValueError, r"out must have shape \(3, 5\)"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters
#
# 64 rows of 1024 float32: 8192 sectors of 32 bytes to read, and as many to write.

ROWS = np.random.default_rng(3).standard_normal((64, 1024)).astype(np.float32)
SECTORS = ROWS.nbytes // 32


def counted(rung, x=ROWS, axis=-1):
    result, reports = observe(rung, x, axis)
    assert right(result, x, axis)
    assert total(reports, "flops_f64") == 0
    return lambda counter: total(reports, counter)


@interpreter_only
def test_three_kernels_and_one_read_all_three_times():
    found = counted(room.three_kernels)
    # And the maxima and sums of 64 rows: a warp's request for one of them is a sector.
    assert found("global_load_sectors") == 3 * SECTORS + 64 * 8 * 3
    assert found("global_store_sectors") == SECTORS + 2 * 64
    assert found("barriers") == 2 * 64
    assert counted(room.fused)("global_load_sectors") == 3 * SECTORS
    assert counted(room.fused)("barriers") == 2 * 64


@interpreter_only
def test_online_reads_twice_and_meets_once():
    found = counted(room.online)
    assert (found("global_load_sectors"), found("global_store_sectors")) == (2 * SECTORS, SECTORS)
    assert found("barriers") == 64


@interpreter_only
def test_a_warp_for_each_row_needs_no_barrier_and_no_shared_memory():
    found = counted(room.warp_per_row)
    assert (found("global_load_sectors"), found("barriers")) == (2 * SECTORS, 0)
    assert found("shared_store_requests") == 0


@interpreter_only
def test_the_last_rung_reads_once_by_whole_vectors():
    found = counted(room.vectorised)
    assert found("global_load_sectors") == found("global_store_sectors") == SECTORS
    assert found("global_load_requests") == ROWS.size // 4 // 32
    assert found("barriers") == 0
    long = np.tile(ROWS.reshape(2, -1), 2)  # 2 rows of 65,536: 8 blocks each
    found = counted(room.vectorised, long)
    # Beside the rows, the words by which blocks tell each other what they found: one sector at a time, and few.
    assert 0 <= found("global_load_sectors") - long.nbytes // 32 <= 16 * 8
    assert found("global_load_requests") - long.size // 4 // 32 <= 16 * 8


@interpreter_only
@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_rows_of_16_bits_are_half_the_sectors_and_are_computed_in_float32(dtype):
    found = counted(room.vectorised, ROWS.astype(dtype))
    assert found("global_load_sectors") == found("global_store_sectors") == SECTORS // 2
    assert found("global_load_requests") == found("global_store_requests") == ROWS.size // 8 // 32
    assert found("flops_f16") == 0


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("n", [8, 12, 1024, 5000])
def test_16_bits_are_widened_in_registers(ptx, spy, n, dtype):
    watched = [spy(kernel) for kernel in (parts.rows_kernel, parts.lanes_kernel, parts.block_kernel)]
    room.vectorised(np.ones((2, n), dtype))
    ((kernel, launch),) = ((one.kernel, launch) for one in watched for launch in one.launches)
    text = ptx(kernel, *launch, cc=(9, 0))
    assert ".extern" not in text
    assert ".local" not in text
    assert "ld.global.v4" in text


@interpreter_only
def test_columns_in_registers_are_read_once():
    found = counted(room.vectorised, ROWS.reshape(4, 64, 256), 1)
    assert found("global_load_sectors") == found("global_store_sectors") == SECTORS


@interpreter_only
def test_columns_read_along_the_rows():
    x = ROWS.reshape(4, 64, 256)
    along, across = counted(room.split_row, x, 1), counted(room.columns, x, 1)
    assert across("global_load_sectors") == 2 * SECTORS
    assert along("global_load_sectors") >= 8 * across("global_load_sectors")  # a sector an element


@interpreter_only
@pytest.mark.parametrize(
    ("shape", "dtype", "offset", "kernel"),
    [
        *(((9, n), np.float32, 0, "rows_kernel") for n in (1, 2, 3, 4, 6, 8, 12)),
        *(((9, n), np.float64, 0, "rows_kernel") for n in (1, 2, 3, 4, 6)),
        *(((9, n), np.float32, 1, "elements_kernel") for n in (1, 4, 12, 20, 32)),
        *(((9, n), np.float32, 0, "elements_kernel") for n in (5, 7, 10, 16, 17, 31)),
        ((9, 8), np.float64, 0, "elements_kernel"),
        ((9, 2), np.float64, 1, "elements_kernel"),
        ((40, 20), np.float32, 0, "lanes_kernel"),
        ((40, 32), np.float32, 0, "lanes_kernel"),
        ((40, 33), np.float32, 0, "lanes_kernel"),
        ((40, 64), np.float32, 3, "lanes_kernel"),
        ((2, 1025), np.float32, 0, "block_kernel"),
        ((2, 32_768), np.float32, 0, "block_kernel"),
        ((1, 32_769), np.float32, 0, "blocks_kernel"),
    ],
)
def test_each_length_goes_to_its_kernel(shape, dtype, offset, kernel):
    x = device.empty(math.prod(shape) + offset, dtype)
    x.copy_to_device(np.ones(x.shape, dtype))
    given = x[offset:].reshape(shape)
    out = device.empty(x.shape, dtype)[offset:].reshape(shape)
    result, reports = observe(lambda x: room.vectorised(x, out=out), given)
    assert [report.kernel for report in reports][-1] == kernel
    assert right(result, np.ones(shape, dtype))


@interpreter_only
def test_whole_rows_in_vectors_need_no_other_lane(rng):
    for n, fill in {1: 1, 2: 1, 3: 3, 4: 1, 8: 2}.items():
        x = rng.standard_normal((512 * fill, n) if n > 2 else (2048 // n, n)).astype(np.float32)
        found = counted(room.vectorised, x)
        assert found("global_load_requests") == found("global_store_requests") == x.size // 4 // 32
        assert found("barriers") == found("thread_inst_shuffle") == 0
        if fill == 1:
            assert found("global_load_sectors") == found("global_store_sectors") == x.nbytes // 32


@interpreter_only
def test_a_lane_for_each_element_reads_it_once(rng):
    x = rng.standard_normal((64, 10)).astype(np.float32)  # 16 lanes a row, so two rows a warp, and a tree of 4 levels
    found = counted(room.vectorised, x)
    assert found("global_load_requests") == found("global_store_requests") == 32
    assert (found("thread_inst_shuffle"), found("barriers")) == (2 * 4 * 1024, 0)
    assert x.nbytes // 32 <= found("global_load_sectors") <= 32 * 4  # 80 bytes a request are in 3 or 4 sectors


@interpreter_only
@pytest.mark.parametrize("rows", [127, 128, 129, 260])
@pytest.mark.parametrize("log", [False, True])
def test_many_tiny_rows_are_taken_four_at_a_time(monkeypatch, rng, rows, log):
    limits = {**device.limits(), "multiprocessors": 1, "max_threads_per_multiprocessor": 256}
    monkeypatch.setattr(device, "limits", lambda: limits)
    x = rng.standard_normal((rows, 7)).astype(np.float32)
    result, reports = observe(room.vectorised, x, -1, log)
    assert right(result, x, -1, log)
    together = 4 if rows > 64 else 1
    assert reports[-1].grid[0] == -(-rows // (32 * together))


def test_a_word_that_is_empty_is_no_maximum():
    assert np.isnan(np.array([parts.EMPTY], np.int64).view(np.float32)).all()


# --------------------------------------------------------------------------------------------------- other libraries


@each_rung
def test_pytorch_defines_it_so_too(rung):
    """On the CPU, so wherever PyTorch is: what becomes of -inf, +inf and NaN, and of every axis."""
    torch = pytest.importorskip("torch")
    for name, (x, axis, log) in INPUTS.items():
        if x.dtype.itemsize == 2:  # of 16 bits libraries round in other places
            continue
        function = torch.log_softmax if log else torch.softmax
        expected = function(torch.from_numpy(x), axis).numpy()
        result = device.to_host(rung(x, axis, log))
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected), err_msg=name)
        np.testing.assert_array_equal(np.isinf(result), np.isinf(expected), err_msg=name)
        allowed = 2 * np.broadcast_to(room.tolerance(x, axis, log), x.shape)
        error = np.abs(result[finite] - expected[finite].astype(np.float64))
        assert (error <= allowed[finite]).all(), name


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("shape", [(3001, 64), (100, 1023), (40, 32_768), (5, 262_147), (1, 2**22 + 1)])
def test_large_rows_on_the_gpu(rung, shape):
    cupy = pytest.importorskip("cupy")
    x = cupy.random.RandomState(0).standard_normal(shape, dtype=cupy.float32)
    assert right(device.to_host(rung(x)), cupy.asnumpy(x))
