"""Activation: results, limits and NaN, arguments, and the counters of each rung against counts done by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda
from pmpp.kernels.activation import ladder as room
from pmpp.runtime import device
from pmpp.runtime.dtypes import known, rounding
from tests.kernels.activation.wrong import RUNGS as WRONG
from tests.kernels.activation.wrong import SHORT_RUNGS as WRONG_IF_SHORT
from tests.support import judge
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import misaligned, name_of, observe, total, watch

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_function = pytest.mark.parametrize("function", room.FUNCTIONS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
EDGES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], F32)
# What a function gives for EDGES: its limits, and the sign of each zero, +0.0 or -0.0.
AT_EDGES = {
    "relu": [np.nan, np.inf, 0.0, 0.0, 0.0],
    "leaky_relu": [np.nan, np.inf, -np.inf, 0.0, -0.0],
    "sigmoid": [np.nan, 1.0, 0.0, 0.5, 0.5],
    "tanh": [np.nan, 1.0, -1.0, 0.0, -0.0],
    "gelu": [np.nan, np.inf, -0.0, 0.0, -0.0],
    "gelu_tanh": [np.nan, np.inf, -0.0, 0.0, -0.0],
    "silu": [np.nan, np.inf, -0.0, 0.0, -0.0],
}


# -------------------------------------------------------------------------------------------------------------- results


def right(result, x, function="relu", bias=None, slope=0.01):
    options = x, function, bias, slope
    return judge.right(result, room.reference(*options), room.tolerance(*options), x.dtype)


def faults(activate, short=False):
    """All that is wrong with an activation on the first input where anything is, worst first.

    short: of numbers of 16 bits, and not of float32.
    """
    for x, function, *bias in room.inputs().values():
        if (x.dtype.name in room.SHORT) != short:
            continue
        arguments = x, function, *bias
        if found := judge.faults(activate, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return [] if short else further_faults(activate)


def further_faults(activate):
    """Limits, the signs of zeros, and views that begin between 16-byte boundaries."""
    found = []
    for function, expected in AT_EDGES.items():
        result, _ = watch(activate, device.to_device(EDGES), function)
        if not np.array_equal(result, F32(expected), equal_nan=True):
            found.append(f"wrong limit of {function}")
        elif np.signbit(result[1:]).tolist() != np.signbit(expected[1:]).tolist():
            found.append(f"wrong sign of zero in {function}")
    x = np.linspace(-2, 2, 1500, dtype=F32)
    for offset in (1, 2, 3):
        found += judge.faults(activate, (misaligned(x, offset), "relu"), lambda result: right(result, x))
    return found


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """The room's inputs are those of the contract of every room."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG_IF_SHORT, ids=map(name_of, WRONG_IF_SHORT))
def test_a_wrong_kernel_for_16_bits_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function, short=True)[:1] == [wrong.reason]


@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
@pytest.mark.parametrize("offset", [0, 3])
def test_a_bias_added_in_registers_is_not_rounded(dtype, offset):
    """`fused` has one rounding, and so less than what is right for rungs that leave x + bias in memory."""
    x, bias = (np.random.default_rng(7).standard_normal(shape).astype(dtype) for shape in ((3, 5, 7, 9), 5))
    for function in room.FUNCTIONS:
        result = device.to_host(room.fused(misaligned(x, offset), function, bias))
        exact = room.reference(x, function, bias)
        v = x.astype(F32) + bias.astype(F32).reshape(-1, 1, 1)
        allowed = room.tolerance(v, function)
        assert judge.right(result, exact, allowed + rounding(abs(exact) + allowed, dtype), dtype)


@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_16_bits_are_computed_in_float32(ptx, dtype):
    x = np.zeros(16, dtype)
    for text in (
        ptx(room.vectorised_kernel, x, 0, F32(0), x, 0, 16, cc=(9, 0)),
        ptx(room.fused_kernel, x, x, 4, 0, F32(0), x, 0, 16, cc=(9, 0)),
    ):
        assert ".extern" not in text
        assert text.count("ld.global.v4.u32") == text.count("st.global.v4.u32") == 1


@interpreter_only
@pytest.mark.parametrize("dtype", known(room.SHORT), ids=str)
def test_half_the_bytes_move(dtype):
    sectors = {}
    for kind in (F32, dtype):
        x, bias = np.ones((2, 4, 1024), kind), np.ones(4, kind)
        _, (report,) = observe(room.fused, x, "gelu", bias)
        sectors[kind] = report.counters["global_store_sectors"]
        assert report.counters["flops_f16"] == 0
    assert sectors == {F32: 1024, dtype: 512}


@each_rung
@each_function
@hypothesis.given(
    shape=st.lists(st.integers(0, 9), min_size=2, max_size=4),
    biased=st.booleans(),
    offset=st.integers(0, 8),
    scale=st.sampled_from([0.1, 3.0, 100.0]),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(known(room.DTYPES)),
)
@hypothesis.settings(max_examples=10)
def test_any_shape_bias_dtype_and_alignment(rung, function, shape, biased, offset, scale, seed, dtype):
    rng = np.random.default_rng(seed)
    x = (scale * rng.standard_normal(shape)).astype(dtype)
    bias = rng.standard_normal(shape[1]).astype(dtype) if biased else None
    assert right(device.to_host(rung(misaligned(x, offset), function, bias)), x, function, bias)


@each_rung
@pytest.mark.parametrize("shape", [(3, 1201), (2, 3, 1111), (1, 5000, 1), (2, 2, 33, 40)])
def test_a_bias_over_several_blocks(rung, shape):
    rng = np.random.default_rng(5)
    x, bias = rng.standard_normal(shape, dtype=F32), rng.standard_normal(shape[1], dtype=F32)
    for offset in (0, 1):
        assert right(device.to_host(rung(misaligned(x, offset), "relu", bias)), x, "relu", bias)


@each_rung
def test_in_place(rung):
    x = np.linspace(-3, 3, 5001, dtype=F32)
    given = device.to_device(x)
    assert rung(given, "silu", out=given) is given
    assert right(given.copy_to_host(), x, "silu")
    x = x[:5000].reshape(4, 5, 250)
    given, bias = device.to_device(x), np.arange(5, dtype=F32)
    rung(given, "tanh", bias, out=given)
    assert right(given.copy_to_host(), x, "tanh", bias)


@each_rung
def test_output_elsewhere_and_stream(rung):
    x = np.linspace(-3, 3, 9001, dtype=F32)
    out = device.to_device(np.zeros(9002, F32))[1:]  # not as x lies on 16-byte boundaries
    stream = cuda.stream()
    assert rung(x, out=out, stream=stream) is out
    stream.synchronize()
    assert right(out.copy_to_host(), x)


@each_rung
@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3, 5, 271), (40, 7, 3), (40, 7, 2)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
def test_a_head_and_a_tail(rung, offset, shape, biased):
    """x and out begin the same number of elements behind a boundary: vectors, and single elements at both ends."""
    x = np.random.default_rng(offset).standard_normal(shape, dtype=F32)
    bias = np.random.default_rng(9).standard_normal(shape[1], dtype=F32) if biased else None
    out = misaligned(np.full(x.shape, np.nan, F32), offset)
    observe(rung, misaligned(x, offset), "relu", bias, out=out)
    assert right(out.copy_to_host(), x, "relu", bias)


@each_rung
def test_the_slope(rung):
    x = np.linspace(-3, 3, 100, dtype=F32)
    assert right(device.to_host(rung(x, "leaky_relu", slope=0.2)), x, "leaky_relu", None, 0.2)


def test_the_reference_by_hand():
    at = np.array([-1.0, 0.0, 1.0], F32)
    expected = {
        "relu": [0, 0, 1],
        "leaky_relu": [-0.01, 0, 1],
        "sigmoid": [1 - 0.7310585786300049, 0.5, 0.7310585786300049],
        "tanh": [-0.7615941559557649, 0, 0.7615941559557649],
        "gelu": [-0.15865525393145707, 0, 0.8413447460685429],  # the normal distribution at -1 and at 1
        "silu": [-(1 - 0.7310585786300049), 0, 0.7310585786300049],
    }
    for function, values in expected.items():
        np.testing.assert_allclose(room.reference(at, function), values, rtol=1e-7)
    # The approximation differs from the real one by less than 5e-4 anywhere, and not by 0.
    x = np.linspace(-5, 5, 501, dtype=F32)
    difference = abs(room.reference(x, "gelu") - room.reference(x, "gelu_tanh")).max()
    assert 1e-4 < difference < 5e-4
    bias = np.array([1, -1], F32)
    assert room.reference(np.zeros((1, 2, 2), F32), "relu", bias).tolist() == [[[1, 1], [0, 0]]]


@each_rung
def test_a_small_tail_is_not_lost(rung):
    """exp(-v) overflows beyond 88; exp(-|v|) does not, and what is left is right to a few bits."""
    x = np.array([-80, -85, -87], F32)
    for function in ("sigmoid", "silu"):
        expected = room.reference(x, function)
        np.testing.assert_allclose(device.to_host(rung(x, function)), expected, rtol=1e-6)


# ------------------------------------------------------------------------------------------------------------ bad input


MAP, BIAS = np.ones((2, 3, 4), F32), np.ones(3, F32)
BAD = {
    "another dtype": ((MAP.astype(np.float64),), {}, TypeError, "x must be float32, float16 or bfloat16, was float64"),
    "a bias of 16 bits": ((MAP, "relu", BIAS.astype(np.float16)), {}, TypeError, "bias must be float32, was float16"),
    "not contiguous": ((MAP[:, :, ::2],), {}, ValueError, "x must be contiguous in C order"),
    "a function": ((MAP, "elu"), {}, ValueError, "function must be one of relu, .*, silu, was 'elu'"),
    "a bias of another length": ((MAP, "relu", BIAS[:2]), {}, ValueError, r"bias must have shape \(3,\), had \(2,\)"),
    "a bias in float64": ((MAP, "relu", np.ones(3)), {}, TypeError, "bias must be float32, was float64"),
    "a bias on a vector": ((BIAS, "relu", BIAS), {}, ValueError, "x must have 2 dimensions or more to have a bias"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, x, function, *bias):
    result, reports = observe(rung, x, function, *bias)
    assert right(result, device.to_host(x), function, *bias)
    assert total(reports, "flops_f64") == 0
    names = ("global_load_requests", "global_load_sectors", "global_store_requests", "global_store_sectors")
    return [report.kernel for report in reports], tuple(total(reports, name) for name in names)


# 8192 elements are 256 warps of 32, whose 128 bytes are 4 sectors; or 64 requests of 512 bytes.
@interpreter_only
@each_function
def test_counters(function):
    x = np.ones(8192, F32)
    assert counted(room.elementwise, x, function) == (["elementwise_kernel"], (256, 1024, 256, 1024))
    for rung in (room.vectorised, room.fused):
        assert counted(rung, x, function) == (["vectorised_kernel"], (64, 1024, 64, 1024))


@interpreter_only
def test_fusing_halves_the_traffic():
    x, bias = np.ones((2, 4, 1024), F32), np.ones(4, F32)
    two, apart = counted(room.vectorised, x, "relu", bias)
    one, inside = counted(room.fused, x, "relu", bias)
    assert (two, one) == (["bias_vectors_kernel", "vectorised_kernel"], ["fused_kernel"])
    assert apart == (64 + 64 + 64, 1024 + 1024 + 64, 128, 2048)  # and a sector of the bias for each vector
    assert inside == (64 + 64, 1024 + 64, 64, 1024)


# ------------------------------------------------------------------------------------------------------------- PyTorch


def torch_activate(torch, x, function, bias=None):
    f = torch.nn.functional
    if bias is not None:
        x = x + bias.reshape(1, -1, *[1] * (x.ndim - 2))
    if function.startswith("gelu"):
        return f.gelu(x, approximate="tanh" if function == "gelu_tanh" else "none")
    return getattr(f, function)(x)


@pytest.mark.parametrize("name", room.inputs())
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    x, function, *bias = room.inputs()[name]
    x = np.where(np.isneginf(x), F32(0), x)  # where PyTorch has NaN for the GELUs and SiLU
    wide = [torch.from_numpy(a.astype(np.float64)) for a in (x, *bias)]
    expected = torch_activate(torch, wide[0], function, *wide[1:]).numpy()
    ours = room.reference(x, function, *bias)
    finite = np.isfinite(expected) & (np.isfinite(ours) | (x.dtype == F32))  # 16 bits end earlier
    np.testing.assert_allclose(ours[finite], expected[finite], rtol=1e-5, atol=1e-7)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", room.inputs())
def test_torch_agrees(rung, name):
    torch = pytest.importorskip("torch")
    x, function, *bias = room.inputs()[name]
    tensors = [tensor_of(torch, a) for a in (x, *bias)]
    out = torch.empty_like(tensors[0])
    rung(tensors[0], function, *tensors[1:], out=out)
    assert right(array_of(torch, out), x, function, *bias)
    if function == "relu" and (x.dtype == F32 or not bias):  # PyTorch rounds the sum with a bias
        theirs = torch_activate(torch, *tensors[:1], function, *tensors[1:])
        assert torch.equal(torch.nan_to_num(out.float()), torch.nan_to_num(theirs.float()))
