"""Gradients of activations: finite differences, limits, the bias's gradient, the same bits twice, counts by hand."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from pmpp import cuda, simt
from pmpp.kernels import activation
from pmpp.kernels.activation import activation_backward as room
from pmpp.kernels.activation import ladder as forward
from pmpp.kernels.activation.workloads import TORCH
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from tests.kernels.activation.wrong_activation_backward import RUNGS as WRONG
from tests.support import judge
from tests.support.tensors import array_of, tensor_of
from tests.support.wrong import hazards, misaligned, name_of, total

each_rung = pytest.mark.parametrize("rung", room.LADDER, ids=[rung.name for rung in room.LADDER])
each_function = pytest.mark.parametrize("function", room.FUNCTIONS)
interpreter_only = pytest.mark.skipif(device.on_gpu(), reason="counts what the interpreter counts")
F32 = np.float32
# Planes and layers of every path: a block for a channel, with vectors and without; columns; both in several parts.
SHAPES = [
    (3, 2, 6, 8),
    (3, 2, 5, 8),
    (2, 3, 7, 7),
    (3, 5, 5, 5),
    (4, 1, 40),
    (37, 3),
    (300, 33),
    (2, 40, 3),
    (1, 2, 90, 100),
]


def normal(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=F32)


def right(result, dy, x, function="relu", bias=None, slope=0.01):
    options = dy, x, function, bias, slope
    return judge.right(result, room.reference(*options), room.tolerance(*options), x.dtype)


def right_sum(dbias, dy, x, function="relu", bias=None):
    dx = room.reference(dy, x, function, bias)
    allowed = room.bias_tolerance(dx, room.tolerance(dy, x, function, bias), x.dtype)
    return judge.right(dbias, room.bias_reference(dx), allowed, x.dtype)


# ------------------------------------------------------------------------------------------------------- the reference


@each_function
def test_the_reference_is_what_finite_differences_say(function):
    """With an upstream gradient that is not all ones, and away from 0, where ReLU has no slope."""
    x, dy = np.linspace(-6, 6, 60).reshape(5, 12), normal((5, 12)).astype(np.float64)
    step = 1e-5
    change = forward.reference(x + step, function) - forward.reference(x - step, function)
    np.testing.assert_allclose(room.reference(dy, x, function), dy * change / (2 * step), rtol=0, atol=1e-9)


def test_the_sum_by_hand():
    dx = np.arange(12.0).reshape(2, 3, 2)
    assert room.bias_reference(dx).tolist() == [0 + 1 + 6 + 7, 2 + 3 + 8 + 9, 4 + 5 + 10 + 11]


def torch_gradient(torch, dy, x, function, bias=None):
    x = x.requires_grad_()
    v = x if bias is None else x + bias.view(1, -1, *[1] * (x.ndim - 2))
    return torch.autograd.grad(TORCH[function](torch, v), x, dy)[0]


FINITE = {name: case for name, case in room.inputs().items() if case[0].size and "extreme" not in name}


@pytest.mark.parametrize("name", FINITE)
def test_the_reference_is_pytorchs(name):
    torch = pytest.importorskip("torch")
    dy, x, function, *bias = FINITE[name]
    arrays = [torch.from_numpy(a.astype(np.float64)) for a in (dy, x, *bias)]
    result = torch_gradient(torch, arrays[0], arrays[1], function, *arrays[2:]).numpy()
    # The reference adds the bias in float32.
    size = np.maximum(room.tolerance(*FINITE[name]), 2.0**-20 * abs(dy.astype(np.float64)))
    assert judge.right(result, room.reference(*FINITE[name]), size, np.float64)


@pytest.mark.gpu
@each_rung
@pytest.mark.parametrize("name", FINITE)
def test_tensors_are_taken(rung, name):
    torch = pytest.importorskip("torch")
    dy, x, function, *bias = FINITE[name]
    tensors = [tensor_of(torch, a) for a in (dy, x)]
    out = torch.empty_like(tensors[0])
    rung(*tensors, function, *(tensor_of(torch, b) for b in bias), out=out)
    assert right(array_of(torch, out), *FINITE[name])


# -------------------------------------------------------------------------------------------------------------- results


def faults(function):
    """All that is wrong with a gradient on the first input where anything is, worst first."""
    for arguments in room.inputs().values():
        if found := judge.faults(function, arguments, lambda result, arguments=arguments: right(result, *arguments)):
            return found
    return further_faults(function)


def further_faults(function):
    """Of arrays that begin between 16-byte boundaries, and of the bias's gradient."""
    line, other = normal(1500), normal(1500, 1)
    for offset in (1, 2, 3):
        given = misaligned(line, offset), misaligned(other, offset), "relu"
        if found := judge.faults(function, given, lambda result: right(result, line, other)):
            return found
    for shape in SHAPES[:6]:
        dy, x, bias = normal(shape), normal(shape, 1), normal(shape[1], 2)
        with simt.record("check", collect=True) as reports:
            dx, dbias = function(dy, x, "silu", bias, return_bias_gradient=True)
        if found := hazards(reports):
            return found
        if not right(device.to_host(dx), dy, x, "silu", bias):
            return ["wrong result"]
        if not right_sum(device.to_host(dbias), dy, x, "silu", bias):
            return ["wrong bias gradient"]
    return []


@each_rung
def test_a_rung_has_no_further_fault(rung):
    """The room's inputs are those of the contract of every room."""
    assert further_faults(rung) == []


@interpreter_only
@pytest.mark.parametrize("wrong", WRONG, ids=map(name_of, WRONG))
def test_a_wrong_kernel_is_rejected_for_its_reason(wrong):
    assert faults(wrong.function)[:1] == [wrong.reason]


@each_rung
@hypothesis.given(
    shape=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    function=st.sampled_from(list(room.FUNCTIONS)),
    offsets=st.tuples(*[st.integers(0, 3)] * 3),
    with_bias=st.booleans(),
    seed=st.integers(0, 99),
    dtype=st.sampled_from(known(room.DTYPES)),
)
@hypothesis.settings(max_examples=15)
def test_any_shape_dtype_and_alignment(rung, shape, function, offsets, with_bias, seed, dtype):
    shape = tuple(shape)
    dy, x, bias = (normal(one, seed + k).astype(dtype) for k, one in ((0, shape), (100, shape), (200, shape[1])))
    bias = bias if with_bias else None
    out = misaligned(np.full(shape, np.nan, dtype), offsets[2])
    given = misaligned(dy, offsets[0]), misaligned(x, offsets[1]), function, bias
    dx, dbias = rung(*given, return_bias_gradient=True, out=out)
    assert right(device.to_host(dx), dy, x, function, bias)
    assert right_sum(device.to_host(dbias), dy, x, function, bias)


@each_rung
@pytest.mark.parametrize("dtype", known(room.DTYPES), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_the_bias(rung, shape, dtype):
    dy, x = normal(shape).astype(dtype), normal(shape, 1).astype(dtype)
    dx, dbias = (device.to_host(a) for a in rung(dy, x, return_bias_gradient=True))
    assert right(dx, dy, x)
    assert right_sum(dbias, dy, x)
    assert right(device.to_host(rung(dy, x)), dy, x)  # and alone


@pytest.mark.parametrize("rung", room.LADDER[1:], ids=[rung.name for rung in room.LADDER[1:]])
@pytest.mark.parametrize("shape", [(3, 2, 60, 60), (300, 33)], ids=str)
def test_the_same_bits_twice_without_atomics(rung, shape):
    dy, x = normal(shape), normal(shape, 1)
    with simt.record("count") as reports:
        sums = [device.to_host(rung(dy, x, "gelu", return_bias_gradient=True)[1]).tobytes() for _ in range(2)]
    assert sums[0] == sums[1]
    if not device.on_gpu():
        assert total(reports, "atomic_requests") == 0


@each_rung
def test_slopes_at_edges(rung):
    v = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], F32)
    slopes = {
        "relu": [1, 1, 0, 0, 0],
        "leaky_relu": [0.25, 1, 0.25, 0.25, 0.25],
        "sigmoid": [np.nan, 0, 0, 0.25, 0.25],
        "tanh": [np.nan, 0, 0, 1, 1],
        "gelu": [np.nan, 1, 0, 0.5, 0.5],
        "gelu_tanh": [np.nan, 1, 0, 0.5, 0.5],
        "silu": [np.nan, 1, 0, 0.5, 0.5],
    }
    for function, expected in slopes.items():
        result = device.to_host(rung(np.full(5, 2, F32), v, function, slope=0.25))
        np.testing.assert_array_equal(result, 2 * F32(expected), err_msg=function)


@each_rung
def test_in_place_output_and_stream(rung):
    dy, x = normal((3, 4, 8)), normal((3, 4, 8), 1)
    stream = cuda.stream()
    for which in range(2):
        given = [device.to_device(dy), device.to_device(x)]
        result, dbias = rung(*given, "tanh", return_bias_gradient=True, out=given[which], stream=stream)
        assert result is given[which]
        stream.synchronize()
        assert right(device.to_host(result), dy, x, "tanh")
        assert right_sum(device.to_host(dbias), dy, x, "tanh")


@each_rung
def test_no_images_have_a_sum_of_zero(rung):
    nothing = np.ones((0, 3, 4), F32)
    dx, dbias = rung(nothing, nothing, return_bias_gradient=True)
    assert dx.shape == (0, 3, 4)
    assert device.to_host(dbias).tolist() == [0, 0, 0]


def test_the_plain_function_is_the_last_rung():
    dy, x, bias = normal((3, 4, 8)), normal((3, 4, 8), 1), normal(4, 2)
    dx, dbias = activation.backward(dy, x, "gelu", bias, return_bias_gradient=True)
    assert right(device.to_host(dx), dy, x, "gelu", bias)
    assert right_sum(device.to_host(dbias), dy, x, "gelu", bias)
    relu = device.to_host(activation.backward(dy, device.to_host(activation.relu(x))))
    assert right(relu, dy, x)  # of ReLU the result will do


# ------------------------------------------------------------------------------------------------------------ bad input

X = np.ones((2, 3, 4), F32)
BAD = {
    "gradients of another shape": ((X[:1], X), {}, ValueError, "dy must have shape"),
    "gradients in float64": ((X.astype(np.float64), X), {}, TypeError, "dy must be float32, was float64"),
    "an input in float64": (
        (X, X.astype(np.float64)),
        {},
        TypeError,
        "x must be float32, float16 or bfloat16, was float64",
    ),
    "gradients of 16 bits": ((X.astype(np.float16), X), {}, TypeError, "dy must be float32, was float16"),
    "a function": ((X, X, "selu"), {}, ValueError, "function must be one of relu, .*, was 'selu'"),
    "a bias of another size": ((X, X, "relu", np.ones(4, F32)), {}, ValueError, "bias must have shape"),
    "a line with a bias": (
        (X[0, 0], X[0, 0]),
        {"return_bias_gradient": True},
        ValueError,
        "x must have 2 dimensions or more for return",
    ),
    "a number for a flag": ((X, X), {"return_bias_gradient": 1}, TypeError, "return_bias_gradient must be True or"),
}


@each_rung
@pytest.mark.parametrize("name", BAD)
def test_bad_input(rung, name):
    arguments, options, error, words = BAD[name]
    with pytest.raises(error, match=words):
        rung(*arguments, **options)


# ------------------------------------------------------------------------------------------------------------- counters


def counted(rung, shape, **more):
    """The kernels, and the sectors of 32 bytes that they load and store."""
    with simt.record("count") as reports:
        rung(normal(shape), normal(shape, 1), **more)
    sectors = [total(reports, f"global_{way}_sectors") for way in ("load", "store")]
    assert total(reports, "flops_f64") == 0
    return [report.kernel for report in reports], *sectors


@interpreter_only
def test_counters_without_a_sum():
    n = 4096 * 4 // 32  # sectors of an array
    assert counted(room.elementwise, (4096,)) == (["elementwise_kernel"], 2 * n, n)
    assert counted(room.vectorised, (4096,)) == (["vectorised_kernel"], 2 * n, n)
    assert counted(room.fused, (4096,)) == (["vectorised_kernel"], 2 * n, n)


# 4 images, 2 channels of 2048: a channel is 8192 elements, one block's share. Its sum is stored and loaded.
@interpreter_only
def test_counters_with_a_sum():
    n, more = 4 * 2 * 2048 * 4 // 32, {"return_bias_gradient": True}
    kernels, loads, stores = counted(room.vectorised, (4, 2, 2048), **more)
    assert kernels == ["vectorised_kernel", "channels_kernel", "total_kernel"]
    assert (loads, stores) == (3 * n + 2, n + 4)
    kernels, loads, stores = counted(room.fused, (4, 2, 2048), **more)
    assert kernels == ["fused_channels_kernel", "total_kernel"]
    assert (loads, stores) == (2 * n + 2, n + 4)
    assert counted(room.fused, (256, 64), **more)[0] == ["fused_columns_kernel", "total_kernel"]
