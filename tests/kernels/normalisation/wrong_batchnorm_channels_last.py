"""Wrong batch normalisations of batches with channels last."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.normalisation import batchnorm_channels_last as right
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

BLOCK = 64
f0 = np.float32(0)


@cuda.jit(device=True)
def column_of(vector, e, vectors):
    return 4 * vector + e


@cuda.jit(device=True)
def column_of_the_vector(vector, e, vectors):
    """One weight for four columns."""
    return vector


@cuda.jit(device=True)
def columns_far_apart(vector, e, vectors):
    """As if the four values of a load lay in four parts of a row."""
    return e * vectors + vector


@cuda.jit(device=True)
def own(e):
    return e


@cuda.jit(device=True)
def first_of_four(e):
    return 0


def normaliser(name, *, column=column_of, lane=own, guard=0, barrier=True, values=1, skip=0, any_channels=False):
    """A normalisation with parts exchanged: a block for four columns of float32, which its threads go down.

    Other numbers of channels and other dtypes are left to the right one, unless ``any_channels``.
    """

    @cuda.jit
    def kernel(x, weight, bias, rows, channels, eps, out):
        vector, thread = cuda.blockIdx.x, cuda.threadIdx.x
        totals, sums = cuda.shared.array((4, BLOCK), np.float32), cuda.local.array(4, np.float32)
        mean, square = cuda.local.array(4, np.float32), cuda.local.array(4, np.float32)
        count = np.float32(rows * values)
        for power in range(2):
            for e in range(4):
                sums[e] = f0
            for r in range(thread, rows + guard, BLOCK):
                v = load128(x, r * channels + 4 * vector)
                for e in range(4):
                    sums[e] += v[e] if power == 0 else (v[e] - mean[e]) * (v[e] - mean[e])
            for e in range(4):
                totals[e, thread] = sums[e]
            if barrier:
                cuda.syncthreads()
            for e in range(4):
                total = f0
                for other in range(BLOCK):
                    total += totals[lane(e), other]
                if power == 0:
                    mean[e] = total / count
                else:
                    square[e] = total / count
            cuda.syncthreads()
        for r in range(thread, rows - skip, BLOCK):
            v = load128(x, r * channels + 4 * vector)
            for e in range(4):
                c = column(vector, e, channels // 4)
                sums[e] = (v[e] - mean[e]) / math.sqrt(square[e] + eps) * weight[c] + bias[c]
            store128(out, r * channels + 4 * vector, (sums[0], sums[1], sums[2], sums[3]))

    def normalise(x, weight, bias, *, eps=1e-5):
        channels = x.shape[-1]
        if x.dtype != np.float32 or not x.size or (channels % 4 and not any_channels):
            return right.vectorised(x, weight, bias, eps=eps)
        x, weight, bias = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (x, weight, bias))
        out = device.empty(x.shape, np.float32)
        flat, rows = x.reshape(x.size), x.size // channels
        kernel[channels // 4, BLOCK](flat, weight, bias, rows, channels, np.float32(eps), out.reshape(x.size))
        return out

    normalise.__name__ = name
    return normalise


RIGHT = normaliser("right")
RUNGS = (
    WrongRung(normaliser("no_barrier", barrier=False), "race"),
    WrongRung(normaliser("no_guard", guard=1), "out of bounds"),
    WrongRung(normaliser("one_weight_for_four_columns", column=column_of_the_vector), "wrong result"),
    WrongRung(normaliser("columns_far_apart", column=columns_far_apart), "wrong result"),
    WrongRung(normaliser("moments_of_the_first_column", lane=first_of_four), "wrong result"),
    WrongRung(normaliser("values_of_four_columns_counted", values=4), "wrong result"),
    WrongRung(normaliser("last_row_left_out", skip=1), "wrong result"),
    WrongRung(normaliser("vectors_of_any_channels", any_channels=True), "misaligned"),
)
