"""Wrong activations, and wrong answers to the exercises of chapter 46 that are about them."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels import activation
from pmpp.kernels.activation import FUNCTIONS, GELU, LEAKY_RELU, RELU, SIGMOID, SILU, activate, logistic
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128, widened
from tests.support.wrong import WrongAnswer, WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


@cuda.jit(device=True)
def relu_of_max(function, v, slope):
    return max(f0, v) if function == RELU and v == v else f0 if function == RELU else activate(function, v, slope)


@cuda.jit(device=True)
def relu_by_a_factor(function, v, slope):
    return v * np.float32(v > f0) if function == RELU else activate(function, v, slope)


@cuda.jit(device=True)
def sigmoid_in_16_bits(function, v, slope):
    return v * np.float32(np.float16(logistic(v))) if function == SILU else activate(function, v, slope)


@cuda.jit(device=True)
def slope_for_all(function, v, slope):
    return v * slope if function == LEAKY_RELU else activate(function, v, slope)


@cuda.jit(device=True)
def sigmoid_of_exp(function, v, slope):
    if function == SIGMOID:
        return math.exp(v) / (f1 + math.exp(v))
    return activate(function, v, slope)


@cuda.jit(device=True)
def silu_by_the_book(function, v, slope):
    return v / (f1 + math.exp(-v)) if function == SILU else activate(function, v, slope)


@cuda.jit(device=True)
def gelu_without_the_root(function, v, slope):
    if function == GELU:
        v = activation.above(v)
        return np.float32(0.5) * v * (f1 + math.erf(v))
    return activate(function, v, slope)


@cuda.jit(device=True)
def channel_of(i, inner, channels):
    return i // inner % channels


@cuda.jit(device=True)
def channel_last(i, inner, channels):
    return i % channels


def activator(name, function_of=activate, channel=channel_of, guard=True, in_x=False, bias_last=False):
    """An activation with some of its parts exchanged: a thread an element."""

    @cuda.jit
    def kernel(x, function, slope, bias, inner, out):
        i = cuda.grid(1)
        if not guard or i < x.size:
            v = widened(x[i])
            b = widened(bias[channel(i, inner, bias.size)]) if bias.size else f0
            out[i] = function_of(function, v, slope) + b if bias_last else function_of(function, v + b, slope)
            if bias.size == 0:
                out[i] = function_of(function, v, slope)  # -0.0 + 0.0 would be 0.0
            if in_x:
                x[i] = out[i]

    def apply(x, function="relu", bias=None):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        out = device.empty(x.shape, x.dtype)
        inner = math.prod(x.shape[2:])
        added = device.empty(0, x.dtype) if bias is None else bias
        if x.size:
            arguments = FUNCTIONS[function], np.float32(0.01), added, inner, out.reshape(-1)
            kernel[blocks(x.size, BLOCK), BLOCK](x.reshape(-1), *arguments)
        return out

    apply.__name__ = name
    return apply


@cuda.jit
def vectors_kernel(x, out):
    i = 4 * cuda.grid(1)
    if i + 3 < x.size:
        v = load128(x, i)
        store128(out, i, (max(v[0], f0), max(v[1], f0), max(v[2], f0), max(v[3], f0)))
    for j in range(max(i, 0), min(i + 4, x.size)):
        if x.size - x.size % 4 <= j:
            out[j] = max(x[j], f0)


def vectors_anywhere(x, function="relu", bias=None):
    """128-bit access wherever ``x`` begins; all else is right."""
    if isinstance(x, np.ndarray) or device.address(x) % 16 == 0:
        return activation.fused(x, function, bias)
    out = device.empty(x.shape, np.float32)
    vectors_kernel[blocks(x.size, 4 * BLOCK), BLOCK](x, out)
    return out


# Of these only numbers of 16 bits are asked.
SHORT_RUNGS = (
    WrongRung(activator("rounded_twice", sigmoid_in_16_bits), "wrong result"),
    WrongRung(activator("bias_after_the_function", bias_last=True), "wrong result"),
)

RUNGS = (
    WrongRung(activator("no_guard", guard=False), "out of bounds"),
    WrongRung(activator("nan_becomes_zero", relu_of_max), "wrong result"),
    WrongRung(activator("relu_by_a_factor", relu_by_a_factor), "wrong result"),
    WrongRung(activator("slope_for_all", slope_for_all), "wrong result"),
    WrongRung(activator("sigmoid_of_exp", sigmoid_of_exp), "wrong result"),
    WrongRung(activator("silu_by_the_book", silu_by_the_book), "wrong result"),
    WrongRung(activator("gelu_without_the_root", gelu_without_the_root), "wrong result"),
    WrongRung(activator("channel_last", channel=channel_last), "wrong result"),
    WrongRung(activator("bias_after_the_function", bias_last=True), "wrong result"),
    WrongRung(activator("in_x_as_well", in_x=True), "input changed"),
    WrongRung(vectors_anywhere, "misaligned"),
)


# ----------------------------------------------------------------------------------------------------- bias by channel


@cuda.jit(device=True)
def leaky(v, slope):
    return v if v > f0 else v * slope


@cuda.jit(device=True)
def leaky_in_float64(v, slope):
    return v if v > 0.0 else 1.0 * v * slope


@cuda.jit(device=True)
def relu_only(v, slope):
    return v if v > f0 else f0


def bias_with(name, channel=channel_of, function=leaky, guard=True, after=False, factor=f1):
    """Bias and leaky ReLU, with some of its parts exchanged."""

    @cuda.jit
    def biased(x, bias, slope, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            c, inner = x.shape[1], x.shape[2]
            image, own, place = i // inner // c, i // inner % c, i % inner
            b = bias[channel(i, inner, c)] * factor
            v = x[image, own, place]
            out[image, own, place] = function(v, slope) + b if after else function(v + b, slope)

    biased.py_func.__name__ = name
    return biased


@cuda.jit(device=True)
def plane_of(i, inner, channels):
    return i // inner


# --------------------------------------------------------------------------------------------------------- gated units


@cuda.jit(device=True)
def gates_first(x, row, j, n):
    return x[row, j], x[row, n + j]


@cuda.jit(device=True)
def gates_last(x, row, j, n):
    return x[row, n + j], x[row, j]


@cuda.jit(device=True)
def gates_in_turn(x, row, j, n):
    return x[row, 2 * j], x[row, 2 * j + 1]


@cuda.jit(device=True)
def gates_apart_by_rows(x, row, j, n):
    return x[row, j], x[row + 1, j]


@cuda.jit(device=True)
def silu(v):
    return v * activation.logistic(v)


@cuda.jit(device=True)
def silu_in_float64(v):
    return v / (1.0 + math.exp(-v))


@cuda.jit(device=True)
def relu(v):
    return max(v, f0)


def gated_with(name, halves=gates_first, function=silu, guard=True, columns=False):
    """A gated unit, with some of its parts exchanged."""

    @cuda.jit
    def gated(x, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            n, rows = out.shape[1], out.shape[0]
            row, j = i // n, i % n
            if columns:
                row, j = i % rows, i // rows
            gate, value = halves(x, row, j, n)
            out[row, j] = function(gate) * value

    gated.py_func.__name__ = name
    return gated


ANSWERS = (
    WrongAnswer("activation/bias", bias_with("bias_without_guard", guard=False), "missing guard"),
    WrongAnswer("activation/bias", bias_with("bias_after", after=True), "bias after the function"),
    WrongAnswer("activation/bias", bias_with("bias_of_the_column", channel=channel_last), "channel changes too fast"),
    WrongAnswer(
        "activation/bias", bias_with("bias_of_the_plane", channel=plane_of), "index out of bounds", "is computed"
    ),
    WrongAnswer("activation/bias", bias_with("bias_forgotten", factor=f0), "no bias"),
    WrongAnswer("activation/bias", bias_with("bias_in_float64", function=leaky_in_float64), "accidental float64"),
    WrongAnswer("activation/bias", bias_with("bias_and_relu", function=relu_only), "wrong result"),
    WrongAnswer("activation/gated", gated_with("gated_without_guard", guard=False), "missing guard"),
    WrongAnswer("activation/gated", gated_with("gated_swapped", gates_last), "halves swapped"),
    WrongAnswer("activation/gated", gated_with("gated_in_turn", gates_in_turn), "interleaved"),
    WrongAnswer("activation/gated", gated_with("gated_by_rows", gates_apart_by_rows), "index out of bounds"),
    WrongAnswer("activation/gated", gated_with("gated_sigmoid", function=activation.logistic), "sigmoid only"),
    WrongAnswer("activation/gated", gated_with("gated_in_float64", function=silu_in_float64), "accidental float64"),
    WrongAnswer("activation/gated", gated_with("gated_relu", function=relu), "wrong result"),
    WrongAnswer("activation/gated", gated_with("gated_by_columns", columns=True), "uncoalesced"),
)
