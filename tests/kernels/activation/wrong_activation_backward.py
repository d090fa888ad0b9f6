"""Wrong gradients of activations."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.activation.activation_backward import back
from pmpp.kernels.activation.ladder import FUNCTIONS, GELU, RELU, SILU, TANH, logistic
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128, widened
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1, half = np.float32(0), np.float32(1), np.float32(0.5)


@cuda.jit(device=True)
def passes_at_zero(function, dy, v, slope):
    return (dy if v >= f0 else f0) if function == RELU else back(function, dy, v, slope)


@cuda.jit(device=True)
def stops_nan(function, dy, v, slope):
    return (dy if v > f0 else f0) if function == RELU else back(function, dy, v, slope)


@cuda.jit(device=True)
def times_zero(function, dy, v, slope):
    return dy * (f1 if v > f0 else f0) if function == RELU and v == v else back(function, dy, v, slope)


@cuda.jit(device=True)
def tanh_cancels(function, dy, v, slope):
    if function == TANH:
        t = math.tanh(v)
        return dy * (f1 - t * t)
    return back(function, dy, v, slope)


@cuda.jit(device=True)
def first_part_of_silu(function, dy, v, slope):
    return dy * logistic(v) if function == SILU else back(function, dy, v, slope)


@cuda.jit(device=True)
def unbounded_gelu(function, dy, v, slope):
    """The right formula, in which infinity times 0 is NaN."""
    if function == GELU:
        density = np.float32(0.3989422804014327) * math.exp(-half * v * v)
        return dy * (half * (f1 + math.erf(v * np.float32(0.7071067811865476))) + v * density)
    return back(function, dy, v, slope)


@cuda.jit(device=True)
def upstream_forgotten(function, dy, v, slope):
    return back(function, f1, v, slope)


@cuda.jit(device=True)
def in_float64(function, dy, v, slope):
    return back(function, dy, v, slope) * 1.0


def backer(name, worth=back, *, guard=True, with_bias=True, order="right", late=False):
    """A gradient with some of its parts exchanged: one thread for each element, sums by a thread for each channel."""

    @cuda.jit
    def kernel(dy, x, bias, inner, function, slope, out):
        i = cuda.grid(1)
        if not guard or i < x.size:
            v = widened(x[i])
            if bias.size and with_bias:
                v += widened(bias[i // inner % bias.size])
            out[i] = worth(function, widened(dy[i]), v, slope)

    @cuda.jit
    def sums(out, inner, dbias):
        channel = cuda.grid(1)
        if channel < dbias.size:
            total = f0
            for i in range(out.size):
                if (i // inner if order == "right" else i) % dbias.size == channel:
                    total += widened(out[i])
            dbias[channel] = total

    @cuda.jit
    def everybody_adds(out, inner, dbias):
        i = cuda.grid(1)
        if i < dbias.size:
            dbias[i] = f0
        if i < out.size:
            dbias[i // inner % dbias.size] += widened(out[i])

    def call(dy, x, function="relu", bias=None, *, return_bias_gradient=False, slope=0.01, out=None):
        dy, x = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (dy, x))
        inner = math.prod(x.shape[2:])
        given = device.empty(0, x.dtype) if bias is None else bias
        given = device.to_device(given) if isinstance(given, np.ndarray) else given
        out = device.empty(x.shape, x.dtype) if out is None else out
        dbias = device.empty(x.shape[1], x.dtype) if return_bias_gradient else None
        flat, grid = [a.reshape(-1) for a in (dy, x, out)], blocks(max(x.size, 1), BLOCK)
        if x.size:
            kernel[grid, BLOCK](*flat[:2], given, inner, FUNCTIONS[function], np.float32(slope), flat[2])
        if return_bias_gradient:
            (everybody_adds if late else sums)[grid, BLOCK](flat[2], inner, dbias)
            return out, dbias
        return out

    call.__name__ = name
    return call


@cuda.jit
def anywhere_kernel(dy, x, out):
    i = 4 * cuda.grid(1)
    if i < out.size:
        a, b = load128(dy, i), load128(x, i)
        store128(out, i, (a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]))


def loaded_anywhere(dy, x, *options, **more):
    """128-bit loads wherever the arrays begin; all else is right."""
    if isinstance(x, np.ndarray) or device.address(x) % 16 == 0:
        return right(dy, x, *options, **more)
    out = device.empty(x.shape, np.float32)
    anywhere_kernel[blocks(x.size, 4 * BLOCK), BLOCK](dy.reshape(-1), x.reshape(-1), out.reshape(-1))
    return out


right = backer("right")

RUNGS = (
    WrongRung(backer("no_guard", guard=False), "out of bounds"),
    WrongRung(backer("relu_passes_at_zero", passes_at_zero), "wrong result"),
    WrongRung(backer("relu_stops_nan", stops_nan), "wrong result"),
    WrongRung(backer("relu_times_zero", times_zero), "wrong result"),
    WrongRung(backer("tanh_cancels", tanh_cancels), "wrong result"),
    WrongRung(backer("first_part_of_silu", first_part_of_silu), "wrong result"),
    WrongRung(backer("gelu_without_limits", unbounded_gelu), "wrong result"),
    WrongRung(backer("upstream_forgotten", upstream_forgotten), "wrong result"),
    WrongRung(backer("bias_forgotten", with_bias=False), "wrong result"),
    WrongRung(backer("in_float64", in_float64), "float64"),
    WrongRung(backer("channel_changes_too_fast", order="fast"), "wrong bias gradient"),
    WrongRung(backer("everybody_adds", late=True), "race"),
    WrongRung(loaded_anywhere, "misaligned"),
)
