"""Wrong gradients of batch normalisation."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.normalisation import gradients
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK, TWICE = 64, 128
f0, f1 = np.float32(0), np.float32(1)


def backward(name, **parts):
    """The gradients with some parts exchanged: one block per channel, with trees in shared memory."""
    total, own = parts.get("total", block_total), parts.get("own", of_the_formula)
    product, second, guard = parts.get("product", times_the_distance), parts.get("second", BLOCK), parts.get("guard", 0)
    of_weight = parts.get("of_weight", scaled)

    @cuda.jit
    def kernel(dy, x, weight, eps, out, dweight, dbias):
        images, _, inner = x.shape
        channel, count, table = cuda.blockIdx.x, images * inner, cuda.shared.array(TWICE, np.float32)
        mean, square = f0, f0
        for i in range(count):  # every thread finds the moments by itself: no barrier that could hide another's fault
            mean += x[i // inner, channel, i % inner] / np.float32(count)
        for i in range(count):
            away = x[i // inner, channel, i % inner] - mean
            square += away * away / np.float32(count)
        invstd, plain, weighted = f1 / math.sqrt(square + eps), f0, f0
        for i in range(cuda.threadIdx.x, count + guard, BLOCK):
            given = dy[i // inner, channel, i % inner]
            plain += given
            weighted += product(given, x[i // inner, channel, i % inner], mean)
        plain = total(plain, table, 0)
        weighted = total(weighted, table, second)
        if cuda.threadIdx.x == 0:
            dbias[channel], dweight[channel] = plain, of_weight(weighted, invstd)
        for i in range(cuda.threadIdx.x, count, BLOCK):
            image, r = i // inner, i % inner
            normalised = (x[image, channel, r] - mean) * invstd
            out[image, channel, r] = own(
                dy[image, channel, r], normalised, plain, weighted * invstd, np.float32(count), weight[channel], invstd
            )

    def called(dy, x, weight, *, eps=1e-5, dweight=None, dbias=None):
        dy, x, weight = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (dy, x, weight))
        out = device.empty(x.shape, np.float32)
        _, sums = gradients.outputs(out, dweight, dbias, x, x.shape[1], {}, 0)
        shape = (*x.shape[:2], math.prod(x.shape[2:]))
        kernel[shape[1], BLOCK](dy.reshape(shape), x.reshape(shape), weight, np.float32(eps), out.reshape(shape), *sums)
        return out

    called.__name__ = name
    return called


@cuda.jit(device=True)
def block_total(value, table, first):
    """The sum over the block, in all threads; ``table[first:]`` is used."""
    thread, stride = cuda.threadIdx.x, BLOCK // 2
    table[first + thread] = value
    cuda.syncthreads()
    while stride > 0:
        if thread < stride:
            table[first + thread] += table[first + thread + stride]
        cuda.syncthreads()
        stride //= 2
    return table[first]


@cuda.jit(device=True)
def total_without_barrier(value, table, first):
    thread, stride = cuda.threadIdx.x, BLOCK // 2
    table[first + thread] = value
    while stride > 0:
        if thread < stride:
            table[first + thread] += table[first + thread + stride]
        cuda.syncthreads()
        stride //= 2
    return table[first]


@cuda.jit(device=True)
def times_the_distance(given, value, mean):
    return given * (value - mean)


@cuda.jit(device=True)
def times_the_value(given, value, mean):
    """As if the mean did not depend on the channel's values."""
    return given * value


@cuda.jit(device=True)
def scaled(weighted, invstd):
    return weighted * invstd


@cuda.jit(device=True)
def not_scaled(weighted, invstd):
    return weighted


@cuda.jit(device=True)
def of_the_formula(given, normalised, plain, weighted, count, weight, invstd):
    return weight * invstd * (given - plain / count - normalised * weighted / count)


@cuda.jit(device=True)
def as_if_moments_were_constant(given, normalised, plain, weighted, count, weight, invstd):
    return weight * invstd * given


@cuda.jit(device=True)
def as_if_the_variance_were_constant(given, normalised, plain, weighted, count, weight, invstd):
    return weight * invstd * (given - plain / count)


@cuda.jit(device=True)
def as_if_the_mean_were_constant(given, normalised, plain, weighted, count, weight, invstd):
    return weight * invstd * (given - normalised * weighted / count)


@cuda.jit(device=True)
def by_the_unbiased(given, normalised, plain, weighted, count, weight, invstd):
    return weight * invstd * (given - plain / count - normalised * weighted / (count - f1))


@cuda.jit(device=True)
def without_weight(given, normalised, plain, weighted, count, weight, invstd):
    return invstd * (given - plain / count - normalised * weighted / count)


@cuda.jit(device=True)
def in_float64(given, normalised, plain, weighted, count, weight, invstd):
    return np.float32(weight * invstd * (given - plain / count - normalised * weighted / count) * 1.0)


RIGHT = backward("right")
RUNGS = (
    WrongRung(backward("without_barrier", total=total_without_barrier), "race"),
    WrongRung(backward("one_array_twice", second=0), "race"),
    WrongRung(backward("no_guard", guard=1), "out of bounds"),
    WrongRung(backward("constant_moments", own=as_if_moments_were_constant), "wrong result"),
    WrongRung(backward("constant_variance", own=as_if_the_variance_were_constant), "wrong result"),
    WrongRung(backward("constant_mean", own=as_if_the_mean_were_constant), "wrong result"),
    WrongRung(backward("by_the_unbiased", own=by_the_unbiased), "wrong result"),
    WrongRung(backward("without_weight", own=without_weight), "wrong result"),
    WrongRung(backward("times_the_value", product=times_the_value), "wrong result"),
    WrongRung(backward("weight_not_scaled", of_weight=not_scaled), "wrong gradient of weight"),
    WrongRung(backward("in_float64", own=in_float64), "float64"),
)
