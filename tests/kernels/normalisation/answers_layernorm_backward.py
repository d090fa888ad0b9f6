"""Answers to the exercises on the gradients of layer normalisation: wrong ones, and right ones written differently."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import warp_sum
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
RMS, COLUMNS = "layernorm_backward/rms", "layernorm_backward/columns"
f0 = np.float32(0)


# -- rms


@right(RMS)
@cuda.jit
def rms_by_one_factor(dy, x, weight, invrms, out):
    """invrms out of the sum: it enters three times, and once at the end."""
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:
        total, scale = f0, invrms[row]
        for i in range(lane, columns, 32):
            total += dy[row, i] * weight[i] * x[row, i]
        factor = warp_sum(total) / np.float32(columns) * scale * scale
        for i in range(lane, columns, 32):
            out[row, i] = scale * (dy[row, i] * weight[i] - x[row, i] * factor)


def rms(name, mistake, said="", *, weighted=True, centred=False, divide=True, guard=True, double=False):
    @cuda.jit
    def kernel(dy, x, weight, invrms, out):
        rows, columns = x.shape
        row, lane = cuda.grid(1) // 32, cuda.laneid
        if row < rows or not guard:
            slope, common = f0, f0
            for i in range(lane, columns, 32):
                slope += dy[row, i] * (weight[i] if weighted else np.float32(1)) * x[row, i] * invrms[row]
                common += dy[row, i] * weight[i]
            slope, common = warp_sum(slope), warp_sum(common) / np.float32(columns)
            slope = slope / np.float32(columns) if divide else slope
            for i in range(lane, columns, 32):
                value = dy[row, i] * weight[i] - (common if centred else f0) - x[row, i] * invrms[row] * slope
                if double:
                    value = np.float32(value * 1.0)
                out[row, i] = value * invrms[row]

    kernel.py_func.__name__ = name
    wrong(RMS, mistake, said)(kernel)


rms("rms_of_layer_normalisation", "the mean of g is subtracted", centred=True)
rms("rms_without_weight", "weight is missing in the sum", weighted=False)
rms("rms_by_the_sum", "the sum, not the mean", divide=False)
rms("rms_without_guard", "missing guard", guard=False)
rms("rms_in_float64", "deliberate float64", double=True)


# -- columns


@right(COLUMNS)
@cuda.jit
def columns_from_below(dy, x, mean, invstd, out):
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if column >= x.shape[1]:
        return
    plain, weighted, row = f0, f0, x.shape[0] - 1
    while row >= 0:
        given = dy[row, column]
        plain, weighted = plain + given, weighted + given * invstd[row] * (x[row, column] - mean[row])
        row -= 1
    out[1, column], out[0, column] = plain, weighted


def columns(name, mistake, said="", *, centre=True, scale=True, first=0, guard=True):
    @cuda.jit
    def kernel(dy, x, mean, invstd, out):
        column = cuda.grid(1)
        if column < x.shape[1] or not guard:
            plain, weighted = f0, f0
            for row in range(x.shape[0]):
                plain += dy[row, column]
                value = x[row, column] - (mean[row] if centre else f0)
                weighted += dy[row, column] * value * (invstd[row] if scale else np.float32(1))
            out[first, column], out[1 - first, column] = weighted, plain

    kernel.py_func.__name__ = name
    wrong(COLUMNS, mistake, said)(kernel)


columns("columns_not_normalised", "x is not normalised", centre=False, scale=False)
columns("columns_not_centred", "x is not centred", centre=False)
columns("columns_exchanged", "the two are exchanged", first=1)
columns("columns_without_guard", "missing guard", guard=False)


@wrong(COLUMNS, "accidental float64")
@cuda.jit
def columns_in_float64(dy, x, mean, invstd, out):
    column = cuda.grid(1)
    if column < x.shape[1]:
        plain, weighted = 0.0, 0.0
        for row in range(x.shape[0]):
            plain += dy[row, column]
            weighted += dy[row, column] * ((x[row, column] - mean[row]) * invstd[row])
        out[0, column], out[1, column] = weighted, plain
