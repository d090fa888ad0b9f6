"""More answers to the exercises on normalised rows: right in another way, or wrong for a reason easily mistaken."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, warp_sum
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
RMS, GROUP = "layernorm/rms", "layernorm/group"
BLOCK = 128
f0, f1 = np.float32(0), np.float32(1)


# -- rms


def rms(power=False, outside=False, summed=True, name="rms"):
    """The answer to rms with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, weight, eps, out):
        row, columns = cuda.grid(1) // 32, x.shape[1]
        if row >= x.shape[0]:
            return
        squares = f0
        for i in range(cuda.laneid, columns, 32):
            squares += x[row, i] ** 2
        if summed:
            squares = warp_sum(squares)
        mean = squares / np.float32(columns)
        if power:
            scale = (mean + eps) ** np.float32(-0.5)
        else:
            scale = f1 / (math.sqrt(mean) + eps) if outside else f1 / math.sqrt(mean + eps)
        for i in range(cuda.laneid, columns, 32):
            out[row, i] = x[row, i] * weight[i] * scale

    kernel.py_func.__name__ = name
    return kernel


right(RMS)(rms(power=True, name="rms_by_a_power"))
wrong(RMS, "eps outside the root", "1 x 1, eps 0.25")(rms(outside=True, name="rms_with_eps_outside"))
wrong(RMS, "wrong result", "It is right with 1 x 1")(rms(summed=False, name="rms_of_a_lane"))


@wrong(RMS, "too much work", r"Let each lane square its own columns only")
@cuda.jit
def rms_with_the_whole_row_in_each_lane(x, weight, eps, out):
    row, columns, squares = cuda.grid(1) // 32, x.shape[1], f0
    if row < x.shape[0]:
        for i in range(columns):
            squares += x[row, i] * x[row, i]
        scale = f1 / math.sqrt(squares / np.float32(columns) + eps)
        for i in range(cuda.laneid, columns, 32):
            out[row, i] = x[row, i] * scale * weight[i]


@wrong(RMS, "missing atomic", "warp_sum adds up the lanes")
@cuda.jit
def rms_added_up_by_all_lanes_at_once(x, weight, eps, out):
    squares = cuda.shared.array(4, np.float32)
    row, warp, columns = cuda.grid(1) // 32, cuda.threadIdx.x // 32, x.shape[1]
    if row < x.shape[0]:
        if cuda.laneid == 0:
            squares[warp] = 0
        cuda.syncwarp()
        for i in range(cuda.laneid, columns, 32):
            squares[warp] += x[row, i] * x[row, i]
        cuda.syncwarp()
        scale = f1 / math.sqrt(squares[warp] / np.float32(columns) + eps)
        for i in range(cuda.laneid, columns, 32):
            out[row, i] = x[row, i] * scale * weight[i]


# -- group


def group(axes=False, interleaved=False, squares=False, name="group"):
    """The answer to group by loops over channels, with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, weight, bias, groups, eps, out):
        image, number = cuda.blockIdx.x, cuda.blockIdx.y
        if axes:
            image, number = number, image
        channels, partial = x.shape[1] // groups, cuda.shared.array((2, 32), np.float32)
        first, step = (number, groups) if interleaved else (number * channels, 1)
        values, total, spread = np.float32(channels * x.shape[2]), f0, f0
        for c in range(first, first + channels * step, step):
            for i in range(cuda.threadIdx.x, x.shape[2], BLOCK):
                total += x[image, c, i]
        mean = block_sum(total, partial[0]) / values
        for c in range(first, first + channels * step, step):
            for i in range(cuda.threadIdx.x, x.shape[2], BLOCK):
                spread += x[image, c, i] ** 2 if squares else (x[image, c, i] - mean) ** 2
        variance = block_sum(spread, partial[1]) / values
        if squares:
            variance -= mean * mean
        scale = f1 / math.sqrt(variance + eps)
        for c in range(first, first + channels * step, step):
            for i in range(cuda.threadIdx.x, x.shape[2], BLOCK):
                out[image, c, i] = (x[image, c, i] - mean) * scale * weight[c] + bias[c]

    kernel.py_func.__name__ = name
    return kernel


right(GROUP)(group(name="group_channel_by_channel"))
wrong(GROUP, "wrong result", "around 1000")(group(squares=True, name="group_by_the_mean_of_squares"))
wrong(GROUP, "index out of bounds", "needs a test, or it is computed wrongly")(
    group(axes=True, name="group_axes_exchanged")
)
wrong(GROUP, "wrong result", "2 x 4 x 3")(group(interleaved=True, name="group_of_channels_in_turn"))


@wrong(GROUP, "inputs exchanged", "with weight and bias exchanged")
@cuda.jit
def group_with_weight_for_bias(x, weight, bias, groups, eps, out):
    image, first = cuda.blockIdx.x, cuda.blockIdx.y * (x.shape[1] // groups)
    inner, values = x.shape[2], x.shape[1] // groups * x.shape[2]
    partial = cuda.shared.array((2, 32), np.float32)
    total, squares = f0, f0
    for i in range(cuda.threadIdx.x, values, BLOCK):
        total += x[image, first + i // inner, i % inner]
    mean = block_sum(total, partial[0]) / np.float32(values)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        squares += (x[image, first + i // inner, i % inner] - mean) ** 2
    scale = f1 / math.sqrt(block_sum(squares, partial[1]) / np.float32(values) + eps)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * bias[c] + weight[c]


@wrong(GROUP, "too much work", "block_sum adds up the threads")
@cuda.jit
def group_with_all_values_in_each_thread(x, weight, bias, groups, eps, out):
    image, first = cuda.blockIdx.x, cuda.blockIdx.y * (x.shape[1] // groups)
    inner, values = x.shape[2], x.shape[1] // groups * x.shape[2]
    total, squares = f0, f0
    for i in range(values):
        total += x[image, first + i // inner, i % inner]
    mean = total / np.float32(values)
    for i in range(values):
        squares += (x[image, first + i // inner, i % inner] - mean) ** 2
    scale = f1 / math.sqrt(squares / np.float32(values) + eps)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * weight[c] + bias[c]


@wrong(GROUP, "missing atomic", "block_sum adds up the threads")
@cuda.jit
def group_added_up_by_all_threads_at_once(x, weight, bias, groups, eps, out):
    image, first = cuda.blockIdx.x, cuda.blockIdx.y * (x.shape[1] // groups)
    inner, values, sums = x.shape[2], x.shape[1] // groups * x.shape[2], cuda.shared.array(2, np.float32)
    if cuda.threadIdx.x == 0:
        sums[0], sums[1] = f0, f0
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, values, BLOCK):
        sums[0] += x[image, first + i // inner, i % inner]
    cuda.syncthreads()
    mean = sums[0] / np.float32(values)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        sums[1] += (x[image, first + i // inner, i % inner] - mean) ** 2
    cuda.syncthreads()
    scale = f1 / math.sqrt(sums[1] / np.float32(values) + eps)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * weight[c] + bias[c]
