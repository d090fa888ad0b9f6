"""Wrong gradients of layer normalisation."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, warp_sum
from pmpp.kernels.normalisation import gradients
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 128
f0, f1 = np.float32(0), np.float32(1)


def backward(name, **parts):
    """The gradients with some parts exchanged: a warp for each row, and a thread for each column."""
    own, given_of = parts.get("own", of_the_formula), parts.get("given_of", with_weight)
    down, guard, each = parts.get("down", down_the_column), parts.get("guard", True), parts.get("each", warp_sum)

    @cuda.jit
    def rows_kernel(dy, x, weight, eps, out, means, invstds):
        rows, columns = x.shape
        row, lane, count = cuda.grid(1) // 32, cuda.laneid, np.float32(x.shape[1])
        if row < rows or not guard:
            mean, square, common, slope = f0, f0, f0, f0
            for i in range(lane, columns, 32):
                mean += x[row, i]
            mean = warp_sum(mean) / count
            for i in range(lane, columns, 32):
                square += (x[row, i] - mean) * (x[row, i] - mean)
            invstd = f1 / math.sqrt(warp_sum(square) / count + eps)
            for i in range(lane, columns, 32):
                given = given_of(dy[row, i], weight[i])
                common += given
                slope += given * (x[row, i] - mean) * invstd
            common, slope = each(common), each(slope)
            for i in range(lane, columns, 32):
                normalised = (x[row, i] - mean) * invstd
                out[row, i] = own(dy[row, i], weight[i], normalised, common / count, slope / count, invstd)
            means[row], invstds[row] = mean, invstd

    @cuda.jit
    def columns_kernel(dy, x, means, invstds, dweight, dbias):
        column = cuda.grid(1)
        if column < x.shape[1]:
            dweight[column], dbias[column] = down(dy, x, means, invstds, column)

    def called(dy, x, weight, *, eps=1e-5, dweight=None, dbias=None):
        dy, x, weight = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (dy, x, weight))
        out, (means, invstds) = device.empty(x.shape, np.float32), device.empty((2, x.shape[0]), np.float32)
        _, sums = gradients.outputs(out, dweight, dbias, x, x.shape[1], {}, 0)
        rows_kernel[blocks(32 * x.shape[0], BLOCK), BLOCK](dy, x, weight, np.float32(eps), out, means, invstds)
        columns_kernel[blocks(x.shape[1], BLOCK), BLOCK](dy, x, means, invstds, *sums)
        return out

    called.__name__ = name
    return called


@cuda.jit(device=True)
def with_weight(given, weight):
    return given * weight


@cuda.jit(device=True)
def without_weight(given, weight):
    return given


@cuda.jit(device=True)
def of_the_formula(given, weight, normalised, common, slope, invstd):
    return (given * weight - common - normalised * slope) * invstd


@cuda.jit(device=True)
def as_of_a_channel(given, weight, normalised, common, slope, invstd):
    """As in batch normalisation, where all of a sum has one weight."""
    return (given - common - normalised * slope) * weight * invstd


@cuda.jit(device=True)
def as_if_the_mean_were_constant(given, weight, normalised, common, slope, invstd):
    return (given * weight - normalised * slope) * invstd


@cuda.jit(device=True)
def as_if_the_variance_were_constant(given, weight, normalised, common, slope, invstd):
    return (given * weight - common) * invstd


@cuda.jit(device=True)
def in_float64(given, weight, normalised, common, slope, invstd):
    return np.float32((given * weight - common - normalised * slope) * invstd * 1.0)


@cuda.jit(device=True)
def down_the_column(dy, x, means, invstds, column):
    plain, weighted = f0, f0
    for row in range(x.shape[0]):
        plain += dy[row, column]
        weighted += dy[row, column] * ((x[row, column] - means[row]) * invstds[row])
    return weighted, plain


@cuda.jit(device=True)
def down_without_normalising(dy, x, means, invstds, column):
    plain, weighted = f0, f0
    for row in range(x.shape[0]):
        plain += dy[row, column]
        weighted += dy[row, column] * x[row, column]
    return weighted, plain


@cuda.jit(device=True)
def down_to_a_mean(dy, x, means, invstds, column):
    weighted, plain = down_the_column(dy, x, means, invstds, column)
    return weighted, plain / np.float32(x.shape[0])


@cuda.jit(device=True)
def half_of_the_lanes(value):
    for distance in (8, 4, 2, 1):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)
    return value


RIGHT = backward("right")
RUNGS = (
    WrongRung(backward("no_guard", guard=False), "out of bounds"),
    WrongRung(backward("half_of_the_lanes", each=half_of_the_lanes), "wrong result"),
    WrongRung(backward("as_of_a_channel", own=as_of_a_channel, given_of=without_weight), "wrong result"),
    WrongRung(backward("weight_outside_of_the_sums", given_of=without_weight), "wrong result"),
    WrongRung(backward("constant_mean", own=as_if_the_mean_were_constant), "wrong result"),
    WrongRung(backward("constant_variance", own=as_if_the_variance_were_constant), "wrong result"),
    WrongRung(backward("columns_not_normalised", down=down_without_normalising), "wrong gradient of weight"),
    WrongRung(backward("mean_of_a_column", down=down_to_a_mean), "wrong gradient of bias"),
    WrongRung(backward("in_float64", own=in_float64), "float64"),
)
