"""Answers to the exercises of chapter 78 on activations: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.activation import logistic
from pmpp.kernels.common import block_sum
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
GATED, BIAS = "activation_backward/gated", "activation_backward/bias"
f0, f1 = np.float32(0), np.float32(1)


# -- gated


@right(GATED)
@cuda.jit
def gated_by_the_exponential(dy, x, dx):
    i = cuda.grid(1)
    if i < dy.size:
        n = dy.shape[1]
        row, column = i // n, i % n
        gate, value = x[row, column], x[row, n + column]
        sigmoid = f1 / (f1 + math.exp(-gate))
        silu = gate * sigmoid
        dx[row, n + column] = dy[row, column] * silu
        dx[row, column] = dy[row, column] * value * (sigmoid + silu - silu * sigmoid)


def gated(guard=True, swapped=False, one=f1, second=True, interleaved=False, bell=False, name="gated"):
    """The gradient of the gated unit with one of its parts exchanged."""

    @cuda.jit
    def kernel(dy, x, dx):
        i = cuda.grid(1)
        if not guard or i < dy.size:
            n = dy.shape[1]
            row, column = i // n, i % n
            first, other = (2 * column, 2 * column + 1) if interleaved else (column, n + column)
            gate, value = x[row, first], x[row, other]
            sigmoid = logistic(gate)
            slope = sigmoid * (f1 - sigmoid) if bell else sigmoid * (one + gate * (one - sigmoid))
            to_gate, to_value = dy[row, column] * value * slope, dy[row, column] * gate * sigmoid
            dx[row, first] = to_value if swapped else to_gate
            if second:
                dx[row, other] = to_gate if swapped else to_value

    kernel.py_func.__name__ = name
    return kernel


ANSWERS += [
    WrongAnswer(GATED, gated(guard=False, name="gated_without_guard"), "missing guard"),
    WrongAnswer(GATED, gated(swapped=True, name="gated_swapped"), "halves swapped"),
    WrongAnswer(GATED, gated(one=1.0, name="gated_in_float64"), "accidental float64"),
    WrongAnswer(GATED, gated(second=False, name="gated_without_values"), "output not written"),
    WrongAnswer(GATED, gated(interleaved=True, name="gated_interleaved"), "wrong result"),
    WrongAnswer(GATED, gated(bell=True, name="gated_with_the_slope_of_the_sigmoid"), "slope of the sigmoid"),
]


# -- bias


@right(BIAS)
@cuda.jit
def bias_image_by_image(dy, x, dbias):
    channel, total = cuda.blockIdx.x, f0
    for image in range(x.shape[0]):
        place = cuda.threadIdx.x
        while place < x.shape[2]:
            total += dy[image, channel, place] if x[image, channel, place] > f0 else f0
            place += cuda.blockDim.x
    shared = cuda.shared.array(32, np.float32)
    total = block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        dbias[channel] = total


def bias(images=True, everything=False, at_zero=False, once=False, step=True, zero=f0, name="bias"):
    """The bias's gradient with one of its parts exchanged."""

    @cuda.jit
    def kernel(dy, x, dbias):
        count, inner, channel = x.shape[0] if images else 1, x.shape[2], cuda.blockIdx.x
        total = zero
        i = cuda.threadIdx.x
        while i < count * inner:
            value = x[i // inner, channel, i % inner]
            if everything or value > f0 or (at_zero and value == f0):
                total += dy[i // inner, channel, i % inner]
            i += cuda.blockDim.x if step else count * inner
        shared = cuda.shared.array(32, np.float32)
        if not once:
            total = block_sum(np.float32(total), shared)
        if cuda.threadIdx.x == 0:
            dbias[channel] = total

    kernel.py_func.__name__ = name
    return kernel


@wrong(BIAS, "wrong result")
@cuda.jit
def bias_of_flat_channels(dy, x, dbias):
    """As if a channel's elements were neighbours through all images."""
    channel, total = cuda.blockIdx.x, f0
    images, channels, inner = x.shape
    i = cuda.threadIdx.x
    while i < images * inner:
        e = channel * images * inner + i
        image, c, place = e // inner // channels, e // inner % channels, e % inner
        if x[image, c, place] > f0:
            total += dy[image, c, place]
        i += cuda.blockDim.x
    shared = cuda.shared.array(32, np.float32)
    total = block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        dbias[channel] = total


ANSWERS += [
    WrongAnswer(BIAS, bias(images=False, name="bias_of_one_image"), "one image"),
    WrongAnswer(BIAS, bias(everything=True, name="bias_without_slope"), "slope forgotten"),
    WrongAnswer(BIAS, bias(at_zero=True, name="bias_with_a_slope_at_zero"), "slope at 0"),
    WrongAnswer(BIAS, bias(once=True, name="bias_of_one_thread"), "wrong result"),
    WrongAnswer(BIAS, bias(step=False, name="bias_of_the_first_elements"), "wrong result"),
    WrongAnswer(BIAS, bias(zero=0.0, name="bias_in_float64"), "accidental float64"),
]
