"""Wrong gradients of batch normalisation for batches with channels last."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.normalisation import batchnorm_channels_last_backward as right
from pmpp.kernels.normalisation import gradients
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

BLOCK = 64
f0 = np.float32(0)


@cuda.jit(device=True)
def of_the_formula(given, normalised, plain, weighted, count, weight, invstd):
    return weight * invstd * (given - plain / count - normalised * weighted / count)


@cuda.jit(device=True)
def as_if_moments_were_constant(given, normalised, plain, weighted, count, weight, invstd):
    return weight * invstd * given


def backward(name, *, own=of_the_formula, four=1, guard=0, barrier=True, values=1, first=0, any_channels=False):
    """The gradients with parts exchanged: a block for four columns of float32, which its threads go down.

    Other numbers of channels and other dtypes are left to the right one, unless ``any_channels``. With ``four`` = 0 the
    sums of the first column serve all four.
    """

    @cuda.jit
    def kernel(dy, x, weight, moments, rows, channels, out, dweight, dbias):
        vector, thread = cuda.blockIdx.x, cuda.threadIdx.x
        tables = cuda.shared.array((8, BLOCK), np.float32)
        plain, weighted = cuda.local.array(4, np.float32), cuda.local.array(4, np.float32)
        count = np.float32(rows * values)
        for e in range(4):
            plain[e], weighted[e] = f0, f0
        for r in range(thread + first, rows + guard, BLOCK):
            given, value = load128(dy, r * channels + 4 * vector), load128(x, r * channels + 4 * vector)
            for e in range(4):
                c = 4 * vector + e
                plain[e] += given[e]
                weighted[e] += given[e] * (value[e] - moments.mean[c]) * moments.invstd[c]
        for e in range(4):
            tables[2 * e, thread], tables[2 * e + 1, thread] = plain[e], weighted[e]
        if barrier:
            cuda.syncthreads()
        for e in range(4):
            plain[e], weighted[e] = f0, f0
            for other in range(BLOCK):
                plain[e] += tables[2 * e * four, other]
                weighted[e] += tables[2 * e * four + 1, other]
            if thread == 0:
                dbias[4 * vector + e], dweight[4 * vector + e] = plain[e], weighted[e]
        for r in range(thread, rows, BLOCK):
            given, value = load128(dy, r * channels + 4 * vector), load128(x, r * channels + 4 * vector)
            result = cuda.local.array(4, np.float32)
            for e in range(4):
                c = 4 * vector + e
                normalised = (value[e] - moments.mean[c]) * moments.invstd[c]
                sums = plain[e], weighted[e], count
                result[e] = own(given[e], normalised, sums[0], sums[1], sums[2], weight[c], moments.invstd[c])
            store128(out, r * channels + 4 * vector, (result[0], result[1], result[2], result[3]))

    def called(dy, x, weight, *, eps=1e-5, dweight=None, dbias=None):
        channels = x.shape[-1]
        if x.dtype != np.float32 or not x.size or (channels % 4 and not any_channels):
            return right.vectorised(dy, x, weight, eps=eps, dweight=dweight, dbias=dbias)
        rows = device.to_host(x).reshape(-1, channels).astype(np.float64)
        kept = rows.mean(axis=0), 1 / np.sqrt(rows.var(axis=0) + eps)
        moments = gradients.Moments(*(device.to_device(one.astype(np.float32)) for one in kept))
        dy, x, weight = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (dy, x, weight))
        out = device.empty(x.shape, np.float32)
        flat = dy.reshape(x.size), x.reshape(x.size), weight, moments, len(rows), channels, out.reshape(x.size)
        kernel[channels // 4, BLOCK](*flat, dweight, dbias)
        return out

    called.__name__ = name
    return called


RIGHT = backward("right")
RUNGS = (
    WrongRung(backward("no_barrier", barrier=False), "race"),
    WrongRung(backward("no_guard", guard=1), "out of bounds"),
    WrongRung(backward("sums_of_the_first_column", four=0), "wrong result"),
    WrongRung(backward("constant_moments", own=as_if_moments_were_constant), "wrong result"),
    WrongRung(backward("values_of_four_columns_counted", values=4), "wrong result"),
    WrongRung(backward("first_row_left_out", first=1), "wrong result"),
    WrongRung(backward("vectors_of_any_channels", any_channels=True), "misaligned"),
)
