"""Wrong layer normalisations, and wrong answers to the exercises of chapter 54 that are about rows."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_sum, blocks, warp_sum
from pmpp.kernels.normalisation.moments import block_merge, welford_step
from pmpp.runtime import device
from tests.support.wrong import WrongAnswer, WrongRung

BLOCK = 128
f0, f1 = np.float32(0), np.float32(1)


def normaliser(name, *, each=warp_sum, guard=True, store=None, centre=None, scale=None, threads=BLOCK):
    """One warp per row, with one of its parts exchanged."""
    store, centre, scale = store or stored, centre or centred, scale or scale_of

    @cuda.jit
    def kernel(x, weight, bias, eps, out):
        rows, columns = x.shape
        row, lane = cuda.grid(1) // 32, cuda.laneid
        if row < rows or not guard:
            total, squares = f0, f0
            for i in range(lane, columns, 32):
                total += x[row, i]
            mean = each(total) / np.float32(columns)
            for i in range(lane, columns, 32):
                deviation = centre(x[row, i], mean)
                squares += deviation * deviation
            factor = scale(each(squares), mean, columns, eps)
            for i in range(lane, columns, 32):
                store(out, row, i, (x[row, i] - mean) * factor, weight, bias)

    def normalise(x, weight, bias, eps=1e-5):
        x, weight, bias = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (x, weight, bias))
        out = device.empty(x.shape, np.float32)
        if x.size:
            kernel[blocks(x.shape[0] * 32, threads), threads](x, weight, bias, np.float32(eps), out)
        return out

    normalise.__name__ = name
    return normalise


@cuda.jit(device=True)
def stored(out, row, i, value, weight, bias):
    out[row, i] = value * weight[i] + bias[i]


@cuda.jit(device=True)
def stored_with_the_weight_of_the_row(out, row, i, value, weight, bias):
    out[row, i] = value * weight[row % weight.size] + bias[row % weight.size]


@cuda.jit(device=True)
def stored_one_further(out, row, i, value, weight, bias):
    out[row, i + 1] = value * weight[i] + bias[i]


@cuda.jit(device=True)
def stored_over_the_first_row(out, row, i, value, weight, bias):
    out[0, i] = value * weight[i] + bias[i]


@cuda.jit(device=True)
def centred(value, mean):
    return value - mean


@cuda.jit(device=True)
def not_centred(value, mean):
    return value


@cuda.jit(device=True)
def scale_of(squares, mean, columns, eps):
    return f1 / math.sqrt(squares / np.float32(columns) + eps)


@cuda.jit(device=True)
def scale_by_the_sum_of_squares(squares, mean, columns, eps):
    return f1 / math.sqrt(squares / np.float32(columns) - mean * mean + eps)


@cuda.jit(device=True)
def scale_of_the_unbiased(squares, mean, columns, eps):
    return f1 / math.sqrt(squares / np.float32(columns - 1) + eps)


@cuda.jit(device=True)
def eps_outside_the_root(squares, mean, columns, eps):
    return f1 / (math.sqrt(squares / np.float32(columns)) + eps)


@cuda.jit(device=True)
def scale_in_float64(squares, mean, columns, eps):
    return np.float32(1.0 / math.sqrt(squares / columns + eps))


@cuda.jit(device=True)
def sum_in_lane_0(value):
    """Shuffled down: only lane 0 has it all."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL_WARP, value, distance)
    return value


@cuda.jit(device=True)
def sum_of_half_a_warp(value):
    for distance in (8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL_WARP, value, distance)
    return value


@cuda.jit(device=True)
def sum_without_a_barrier(value):
    """The lanes of a warp need not stay together."""
    partial = cuda.shared.array(BLOCK, np.float32)
    thread, distance = cuda.threadIdx.x, 16
    partial[thread] = value
    while distance > 0:
        if thread % 32 < distance:
            partial[thread] += partial[thread + distance]
        distance //= 2
    return partial[thread // 32 * 32]


RIGHT = normaliser("right")
RUNGS = (
    WrongRung(normaliser("no_barrier", each=sum_without_a_barrier), "race"),
    WrongRung(normaliser("one_row_for_all", store=stored_over_the_first_row), "race"),
    WrongRung(normaliser("no_guard", guard=False), "out of bounds"),
    WrongRung(normaliser("one_further", store=stored_one_further), "out of bounds"),
    WrongRung(normaliser("lane_0_only", each=sum_in_lane_0), "wrong result"),
    WrongRung(normaliser("half_a_warp", each=sum_of_half_a_warp), "wrong result"),
    WrongRung(normaliser("weight_of_the_row", store=stored_with_the_weight_of_the_row), "wrong result"),
    WrongRung(normaliser("sum_of_squares", centre=not_centred, scale=scale_by_the_sum_of_squares), "wrong result"),
    WrongRung(normaliser("unbiased", scale=scale_of_the_unbiased), "wrong result"),
    WrongRung(normaliser("eps_outside_the_root", scale=eps_outside_the_root), "wrong result"),
    WrongRung(normaliser("in_float64", scale=scale_in_float64), "float64"),
)


# ------------------------------------------------------------------------------------------------------------- answers


@cuda.jit
def rms_with_the_mean(x, weight, eps, out):
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:
        total, squares = f0, f0
        for i in range(lane, columns, 32):
            total += x[row, i]
        mean = warp_sum(total) / np.float32(columns)
        for i in range(lane, columns, 32):
            squares += (x[row, i] - mean) * (x[row, i] - mean)
        scale = f1 / math.sqrt(warp_sum(squares) / np.float32(columns) + eps)
        for i in range(lane, columns, 32):
            out[row, i] = (x[row, i] - mean) * scale * weight[i]


def rms_by(divide, each=warp_sum, guard=True):
    @cuda.jit
    def rms(x, weight, eps, out):
        rows, columns = x.shape
        row, lane = cuda.grid(1) // 32, cuda.laneid
        if row < rows or not guard:
            squares = f0
            for i in range(lane, columns, 32):
                squares += x[row, i] * x[row, i]
            scale = divide(each(squares), columns, eps)
            for i in range(lane, columns, 32):
                out[row, i] = x[row, i] * scale * weight[i]

    return rms


@cuda.jit(device=True)
def by_the_mean(squares, columns, eps):
    return f1 / math.sqrt(squares / np.float32(columns) + eps)


@cuda.jit(device=True)
def by_the_sum(squares, columns, eps):
    return f1 / math.sqrt(squares + eps)


@cuda.jit(device=True)
def by_the_mean_in_float64(squares, columns, eps):
    return np.float32(1.0 / math.sqrt(squares / columns + eps))


@cuda.jit
def rms_by_the_block(x, weight, eps, out):
    """Right, if each row had a block to itself; and it waits."""
    row, lane = cuda.grid(1) // 32, cuda.laneid
    squares = f0
    partial = cuda.shared.array(32, np.float32)
    for i in range(lane, x.shape[1], 32):
        squares += x[min(row, x.shape[0] - 1), i] * x[min(row, x.shape[0] - 1), i]
    scale = f1 / math.sqrt(block_sum(squares, partial) / np.float32(x.shape[1]) + eps)
    if row < x.shape[0]:
        for i in range(lane, x.shape[1], 32):
            out[row, i] = x[row, i] * scale * weight[i]


@cuda.jit
def rms_with_barriers(x, weight, eps, out):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    squares = f0
    if row < x.shape[0]:
        for i in range(lane, x.shape[1], 32):
            squares += x[row, i] * x[row, i]
    cuda.syncthreads()
    scale = by_the_mean(warp_sum(squares), x.shape[1], eps)
    if row < x.shape[0]:
        for i in range(lane, x.shape[1], 32):
            out[row, i] = x[row, i] * scale * weight[i]


def group_by(own=0, alone=False, both=True, literal=False):
    """``own``: 1, weight of the group. ``alone``: each channel by itself. ``both``: an array for each sum."""

    @cuda.jit
    def group_norm(x, weight, bias, groups, eps, out):
        image, group = cuda.blockIdx.x, cuda.blockIdx.y
        inner, channels = x.shape[2], x.shape[1] // groups
        partial = cuda.shared.array((2, 32), np.float32)
        steps = channels if alone else 1
        values, first = channels * inner // steps, group * channels
        for _step in range(steps):
            total, squares = f0, f0
            cuda.syncthreads()
            for i in range(cuda.threadIdx.x, values, BLOCK):
                total += x[image, first + i // inner, i % inner]
            mean = block_sum(total, partial[0]) / np.float32(values)
            for i in range(cuda.threadIdx.x, values, BLOCK):
                deviation = x[image, first + i // inner, i % inner] - mean
                squares += deviation * deviation
            var = block_sum(squares, partial[1 if both else 0]) / (values if literal else np.float32(values))
            scale = np.float32(1.0 / math.sqrt(var + eps)) if literal else f1 / math.sqrt(var + eps)
            for i in range(cuda.threadIdx.x, values, BLOCK):
                c, r = first + i // inner, i % inner
                w = group if own else c
                out[image, c, r] = (x[image, c, r] - mean) * scale * weight[w] + bias[w]
            first += 1

    return group_norm


@cuda.jit
def group_of_the_first_image(x, weight, bias, groups, eps, out):
    group, inner, channels = cuda.blockIdx.y, x.shape[2], x.shape[1] // groups
    values, first = channels * inner, group * channels
    partial = cuda.shared.array((2, 32), np.float32)
    total, squares = f0, f0
    for i in range(cuda.threadIdx.x, values, BLOCK):
        total += x[0, first + i // inner, i % inner]
    mean = block_sum(total, partial[0]) / np.float32(values)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        deviation = x[0, first + i // inner, i % inner] - mean
        squares += deviation * deviation
    scale = f1 / math.sqrt(block_sum(squares, partial[1]) / np.float32(values) + eps)
    for i in range(cuda.threadIdx.x, values, BLOCK):
        c, r = first + i // inner, i % inner
        out[cuda.blockIdx.x, c, r] = (x[cuda.blockIdx.x, c, r] - mean) * scale * weight[c] + bias[c]


ANSWERS = (
    WrongAnswer("layernorm/rms", rms_with_the_mean, "the mean is subtracted"),
    WrongAnswer("layernorm/rms", rms_by(by_the_sum), "the sum, not the mean"),
    WrongAnswer("layernorm/rms", rms_by(by_the_mean, guard=False), "missing guard"),
    WrongAnswer("layernorm/rms", rms_by(by_the_mean, each=sum_in_lane_0), "wrong result"),
    WrongAnswer("layernorm/rms", rms_by(by_the_mean_in_float64), "accidental float64"),
    WrongAnswer("layernorm/rms", rms_by_the_block, "wrong result"),
    WrongAnswer("layernorm/rms", rms_with_barriers, "too many barriers"),
    WrongAnswer("layernorm/group", group_by(own=1), "weight of the group"),
    WrongAnswer("layernorm/group", group_by(alone=True), "each channel by itself"),
    WrongAnswer("layernorm/group", group_by(both=False), "missing barrier"),
    WrongAnswer("layernorm/group", group_by(literal=True), "accidental float64"),
    WrongAnswer("layernorm/group", group_of_the_first_image, "wrong result"),
)


# ----------------------------------------------------------------------------------------------- other right answers

ALSO_RIGHT: list[tuple[str, object]] = []


def right(name):
    return lambda kernel: ALSO_RIGHT.append((name, kernel)) or kernel


@right("layernorm/rms")
@cuda.jit
def rms_in_registers(x, weight, eps, out):
    """The row is kept: up to 512 elements are 16 per lane."""
    rows, columns = x.shape
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row < rows:
        values, squares = cuda.local.array(16, np.float32), f0
        for k in range(16):
            values[k] = x[row, lane + 32 * k] if lane + 32 * k < columns else f0
            squares += values[k] * values[k]
        scale = f1 / math.sqrt(warp_sum(squares) / np.float32(columns) + eps)
        for k in range(16):
            if lane + 32 * k < columns:
                out[row, lane + 32 * k] = values[k] * scale * weight[lane + 32 * k]


@right("layernorm/group")
@cuda.jit
def group_by_welford(x, weight, bias, groups, eps, out):
    image, group = cuda.blockIdx.x, cuda.blockIdx.y
    inner, channels = x.shape[2], x.shape[1] // groups
    values, first = channels * inner, group * channels
    count, mean, m2 = f0, f0, f0
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        count, mean, m2 = welford_step(count, mean, m2, x[image, first + i // inner, i % inner])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    scale = f1 / math.sqrt(m2 / count + eps)
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * weight[c] + bias[c]


@right("layernorm/group")
@cuda.jit
def group_with_one_array(x, weight, bias, groups, eps, out):
    """One array for both sums, and a barrier before it is used again."""
    image, group = cuda.blockIdx.x, cuda.blockIdx.y
    inner, channels = x.shape[2], x.shape[1] // groups
    values, first = channels * inner, group * channels
    partial, total, squares = cuda.shared.array(32, np.float32), f0, f0
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        total += x[image, first + i // inner, i % inner]
    mean = block_sum(total, partial) / np.float32(values)
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        deviation = x[image, first + i // inner, i % inner] - mean
        squares += deviation * deviation
    scale = f1 / math.sqrt(block_sum(squares, partial) / np.float32(values) + eps)
    for i in range(cuda.threadIdx.x, values, cuda.blockDim.x):
        c, r = first + i // inner, i % inner
        out[image, c, r] = (x[image, c, r] - mean) * scale * weight[c] + bias[c]
