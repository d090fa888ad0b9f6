"""Pooling with channels last: results, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels import pooling
from pmpp.kernels.pooling import channels_last as room
from pmpp.kernels.pooling import ladder as channels_first
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.pooling.wrong_channels_last import RUNGS as WRONG
from tests.support import judge
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import misaligned, name_of, observe

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
DTYPES = known(room.DTYPES)


def right(result, x, *options):
    return judge.right(result, room.reference(x, *options), room.tolerance(x, *options), x.dtype)


def faults(pool):
    """All that is wrong with a pooling on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        if found := judge.faults(pool, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
@hypothesis.given(
    shape=st.tuples(st.integers(0, 2), st.integers(1, 8), st.integers(1, 8), st.integers(1, 20)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    half=st.tuples(st.booleans(), st.booleans()),
    op=st.sampled_from(["max", "average"]),
    ceil_mode=st.booleans(),
    counted=st.booleans(),
    offset=st.integers(0, 1),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=25)
def test_any_shape_window_and_alignment(rung, shape, kernel, stride, half, op, ceil_mode, counted, offset, dtype, seed):
    padding = tuple(k // 2 if h else 0 for k, h in zip(kernel, half, strict=True))
    extents = [n + 2 * p - k for n, p, k in zip(shape[1:3], padding, kernel, strict=True)]
    hypothesis.assume(min(extents) >= 0)
    x = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    options = op, kernel, stride, padding, ceil_mode, counted
    assert right(device.to_host(rung(misaligned(x, offset), *options)), x, *options)


@each_rung
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [1, 4, 8, 12, 16, 24])
def test_all_numbers_of_channels(rung, channels, dtype):
    x = np.random.default_rng(channels).standard_normal((2, 5, 6, channels)).astype(dtype)
    for options in (("max", 2), ("average", 3, 1, 1)):
        assert right(device.to_host(rung(x, *options)), x, *options)


@each_rung
@pytest.mark.parametrize("options", [("max", 3, 2, 1), ("average", 2)])
def test_the_same_as_with_channels_first(rung, options):
    x = np.random.default_rng(3).standard_normal((2, 9, 8, 12), dtype=F32)
    other = device.to_host(channels_first.naive(np.ascontiguousarray(room.channels_to(1, x)), *options))
    np.testing.assert_array_equal(device.to_host(rung(x, *options)), room.channels_to(3, other))


@each_rung
def test_output_and_stream(rung):
    x = np.random.default_rng(5).standard_normal((2, 6, 6, 8), dtype=F32)
    out = device.to_device(np.full((2, 3, 3, 8), np.nan, F32))
    stream = cuda.stream()
    assert rung(x, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x)


def test_the_plain_functions_take_a_layout():
    x = np.random.default_rng(6).standard_normal((1, 4, 6, 8), dtype=F32)
    assert right(pooling.max_pool2d(x, 2, layout="NHWC").copy_to_host(), x, "max", 2)
    averaged = pooling.avg_pool2d(x, 3, 1, 1, False, False, layout="NHWC").copy_to_host()
    assert right(averaged, x, "average", 3, 1, 1, False, False)
    first = pooling.max_pool2d(x, 2, layout="NCHW").copy_to_host()
    np.testing.assert_array_equal(first, pooling.max_pool2d(x, 2).copy_to_host())
    for function in (pooling.max_pool2d, pooling.avg_pool2d):
        with pytest.raises(ValueError, match="layout must be 'NCHW' or 'NHWC', was 'NHCW'"):
            function(x, 2, layout="NHCW")
    for name in ("return_indices", "return_positions"):
        with pytest.raises(ValueError, match=f"{name} must be False for layout='NHWC', was True"):
            pooling.max_pool2d(x, 2, layout="NHWC", **{name: True})


MAP = np.ones((2, 4, 5, 3), F32)
BAD = {
    "another dtype": ((MAP.astype(np.float64),), {}, TypeError, "x must be float32, .* or bfloat16, was float64"),
    "three dimensions": ((MAP[0],), {}, ValueError, "x must have 4 dimensions, had 3"),
    "channels first in memory": ((room.channels_to(3, MAP),), {}, ValueError, "x must be contiguous in C order"),
    "no room": ((MAP, "max", 6), {}, ValueError, "x must have room for a window of"),
    "an operator": ((MAP, "sum"), {}, ValueError, "op must be 'max' or 'average', was 'sum'"),
    "another result": ((MAP,), {"out": device.empty((2, 3, 2, 2), F32)}, ValueError, "out must have shape"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters


@interpreter_only
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_access_is_coalesced(dtype):
    """4 x 8 windows of 2 x 2 in 32 channels: each element is read once, by requests of 128 or of 512 bytes."""
    x = np.random.default_rng(8).standard_normal((1, 8, 16, 32)).astype(dtype)
    for rung, width in ((room.channel_each, 1), (room.vectorised, 16 // dtype.itemsize)):
        result, (report,) = observe(rung, x, "max", 2)
        assert right(result, x, "max", 2)
        counters = report.counters
        assert counters["global_load_sectors"] == x.nbytes // 32
        assert counters["global_store_sectors"] == x.nbytes // 4 // 32
        assert counters["global_load_requests"] == x.size // (32 * width)
        assert counters["global_store_requests"] == x.size // 4 // (32 * width)
        assert counters["flops_f64"] == counters["flops_f16"] == counters["atomic_requests"] == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_128_bits_are_one_instruction(ptx, dtype):
    x = np.zeros(64, dtype)
    axis = channels_first.windows_of((1, 8, 4, 4), "max", 2, 2, 0, False, True)[2]
    text = ptx(room.vectorised_kernel, x, x, 0, True, np.uint32(4), np.uint32(2), axis, axis, cc=(9, 0))
    kind = "f32" if dtype == F32 else "u32"
    assert ".extern" not in text
    assert ".local" not in text
    assert text.count(f"st.global.v4.{kind}") == 1
    assert text.count("ld.global.v4") == text.count(f"ld.global.v4.{kind}") >= 2


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", [name for name, case in room.inputs().items() if case[0].size])
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    x, op, kernel, *rest = room.inputs()[name]
    stride, padding, ceil_mode, counted = (*rest, *(None, 0, False, True)[len(rest) :])
    given = tensor_of(torch, x)
    maps, f = given.permute(0, 3, 1, 2), torch.nn.functional
    if op == "max":
        expected = f.max_pool2d(maps, kernel, stride, padding, 1, ceil_mode)
    else:
        expected = f.avg_pool2d(maps, kernel, stride, padding, ceil_mode, counted)
    expected = expected.permute(0, 2, 3, 1).contiguous()
    assert right(array_of(torch, expected), x, op, kernel, *rest)
    out = torch.empty_like(expected)
    rung(given, op, kernel, *rest, out=out)
    assert right(array_of(torch, out), x, op, kernel, *rest)
