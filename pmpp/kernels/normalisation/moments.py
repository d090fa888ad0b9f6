"""Means and variances of the values that the threads of a warp or a block hold: for `batchnorm` and `layernorm`.

The moments of some values are their count, their mean and M2, the sum of squared deviations from that mean; M2 over the
count is the variance. All functions run on the device, in float32. Chapter: notebooks/54_normalisation.ipynb.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.runtime import device
from pmpp.runtime.dtypes import rounding
from pmpp.runtime.vector import load128, store128, widened

f0, f1 = np.float32(0), np.float32(1)  # a literal 0.0 would be float64, and so would every result with it
DTYPES = ("float32", "float16", "bfloat16")  # of what is normalised; numbers of 16 bits are computed with in float32
# Tuples as long as a vector has elements, or 1 if each is loaded by itself. Their lengths are known when a kernel is
# compiled, so that the loops over them are unrolled. They are the same in each call: a launch remembers what they are.
LIKE = {width: (0,) * width for width in (1, 4, 8)}
# Values that a thread keeps, in half of the 64 registers that each thread of a block of 1024 can have. Such a block
# keeps a channel of 32768 values.
CHUNK = 32


class Shape(typing.NamedTuple):
    """A batch as the kernels see it: every channel has ``inner`` values in each image."""

    images: int
    channels: int
    inner: int


class Affine(typing.NamedTuple):
    """What a normalised value is multiplied by, and what is added to it: float32 of shape (C,)."""

    weight: typing.Any
    bias: typing.Any


class Moments(typing.NamedTuple):
    """The mean and the biased variance of each channel: float32 of shape (C,)."""

    mean: typing.Any
    var: typing.Any


class Running(typing.NamedTuple):
    """What training leaves behind, float32 of shape (C,): for inference, and for the gradients.

    ``mean`` and ``var`` are those over past batches. At momentum 0 a new batch does not change them. If ``returns``,
    the batch's mean and 1 / sqrt(var + eps) are stored as ``batch_mean`` and ``batch_invstd``.
    """

    mean: typing.Any
    var: typing.Any
    momentum: np.float32
    batch_mean: typing.Any
    batch_invstd: typing.Any
    eps: np.float32
    returns: bool


class Epilogue(typing.NamedTuple):
    """What is added to the variance before its root is taken, and whether negative results become 0."""

    eps: np.float32
    relu: bool


def moment_errors(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far the float32 mean and biased variance of each row of ``x`` may be off; float64, shape (rows, 1).

    A value goes through n = values / 256 additions in a thread and up to 40 roundings where threads, warps and parts
    are put together. Each is off by u = 2^-24 of what has been added up. The errors of long sums grow like sqrt(n):
    almost certainly they stay below 8 times that (N. Higham and T. Mary, SIAM J. Sci. Comput. 41, 2019). An error of
    the mean changes the squared deviations of Welford's method (T. Chan, G. Golub, R. LeVeque, 1983).
    """
    x = x.astype(np.float64)
    n = x.shape[1] / 256
    growth = (min(n, 8 * math.sqrt(n)) + 40) * 2.0**-24
    with np.errstate(all="ignore"):
        mean = growth * np.abs(x).mean(axis=1, keepdims=True)
        var = x.var(axis=1, keepdims=True)
        return mean, 2 * growth * var + 2 * np.sqrt(var) * mean + mean**2


def tolerance(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """The largest error allowed for the rows of ``x``, normalised in float32, times ``weight`` plus ``bias``.

    It is of first order in the errors of the moments, and allows 8 roundings of the result itself. A result of 16 bits
    is rounded once more.
    """
    if not x.size:
        return np.zeros(x.shape)
    dtype, x = x.dtype, x.astype(np.float64)
    mean, var = moment_errors(x)
    with np.errstate(all="ignore"):
        square = x.var(axis=1, keepdims=True) + eps
        away = np.abs(x - x.mean(axis=1, keepdims=True)) / np.sqrt(square)
        moved = mean / np.sqrt(square) + away * var / (2 * square)
        allowed = np.abs(weight) * (moved + 8 * 2.0**-24 * away) + 8 * 2.0**-24 * np.abs(bias)
        return allowed + once_more(np.abs(weight) * away + np.abs(bias) + allowed, dtype)


def once_more(largest: np.ndarray, dtype: np.dtype) -> typing.Any:
    """How far numbers of up to this size move when they are rounded from float32 to a dtype."""
    return rounding(largest, dtype) if dtype.itemsize == 2 else 0.0


def parts_of(channels: int, tiles: int, blocks_per_sm: int = 16) -> int:
    """Blocks for a channel: enough that all channels fill the GPU, but at most one for each tile, and at most 1024.

    Of blocks of 256 threads with 64 registers each a multiprocessor holds 4 at once. So 16 per multiprocessor are four
    rounds: a last round that is not full costs less the more rounds there are. 1024 bounds the parts of a channel, for
    every block that normalises may have to merge them all.
    """
    return max(1, min(blocks(device.limits()["multiprocessors"] * blocks_per_sm, channels), tiles, 1024))


def threads_for(parts: int) -> int:
    """Threads of a block that merges the parts of one channel: whole warps, and one for each part if possible.

    A thread that merges several waits for each from memory before it asks for the next.
    """
    return min(1024, 32 * blocks(parts, 32))


@cuda.jit(device=True)
def welford_step(count, mean, m2, value):
    """The moments with one more value. B. P. Welford, Technometrics 4 (1962)."""
    count += f1
    delta = value - mean
    mean += delta / count
    return count, mean, m2 + delta * (value - mean)


@cuda.jit(device=True)
def merge(count, mean, m2, other_count, other_mean, other_m2):
    """The moments of two sets of values together. T. Chan, G. Golub, R. LeVeque, Am. Statistician 37 (1983)."""
    both = count + other_count
    share = other_count / max(both, f1)  # of two empty sets it is 0
    delta = other_mean - mean
    return both, mean + delta * share, m2 + other_m2 + delta * delta * count * share


@cuda.jit(device=True)
def warp_merge(count, mean, m2):
    """Merge the moments of the lanes of a warp; every lane has the result."""
    for distance in (16, 8, 4, 2, 1):
        below = cuda.shfl_down_sync(FULL_WARP, count, distance), cuda.shfl_down_sync(FULL_WARP, mean, distance)
        count, mean, m2 = merge(count, mean, m2, below[0], below[1], cuda.shfl_down_sync(FULL_WARP, m2, distance))
    return cuda.shfl_sync(FULL_WARP, count, 0), cuda.shfl_sync(FULL_WARP, mean, 0), cuda.shfl_sync(FULL_WARP, m2, 0)


@cuda.jit(device=True)
def block_merge(count, mean, m2, partial):
    """Merge the moments of a block's threads; all have the result. ``partial``: shared (3, 32), not yet in use."""
    count, mean, m2 = warp_merge(count, mean, m2)
    lane = cuda.laneid
    if lane == 0:
        warp = cuda.threadIdx.x // 32
        partial[0, warp], partial[1, warp], partial[2, warp] = count, mean, m2
    cuda.syncthreads()
    if lane < cuda.blockDim.x // 32:
        count, mean, m2 = partial[0, lane], partial[1, lane], partial[2, lane]
    else:
        count, mean, m2 = f0, f0, f0
    return warp_merge(count, mean, m2)


@cuda.jit(device=True)
def write_part(partials, channel, part, count, mean, m2):
    partials[0, channel, part], partials[1, channel, part], partials[2, channel, part] = count, mean, m2


@cuda.jit(device=True)
def merge_parts(partials, channel):
    """Merge the moments of a channel's parts; all threads of the block have the result."""
    count, mean, m2 = f0, f0, f0
    for part in range(cuda.threadIdx.x, partials.shape[2], cuda.blockDim.x):
        other = partials[0, channel, part], partials[1, channel, part], partials[2, channel, part]
        count, mean, m2 = merge(count, mean, m2, other[0], other[1], other[2])
    return block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))


@cuda.jit(device=True)
def chunk_moments(values, filled):
    """The moments of the first ``filled`` of a thread's values. The second pass costs little: it reads registers."""
    total = f0
    for k in range(values.size):
        total += values[k] if k < filled else f0
    count = np.float32(filled)
    mean, m2 = total / max(count, f1), f0
    for k in range(values.size):
        deviation = values[k] - mean if k < filled else f0
        m2 += deviation * deviation
    return count, mean, m2


@cuda.jit(device=True)
def rectified(value, relu):
    return f0 if relu and value < f0 else value  # a NaN is not below 0, so it stays NaN


@cuda.jit(device=True)
def keep(running, channel, mean, m2, count):
    """Update the running moments as PyTorch does: weight momentum for this batch, with its unbiased variance.

    Also store the batch's own moments, if they are to be returned.
    """
    momentum = running.momentum
    if running.returns:
        running.batch_mean[channel] = mean
        running.batch_invstd[channel] = f1 / math.sqrt(m2 / count + running.eps)
    if momentum > f0:
        running.mean[channel] = (f1 - momentum) * running.mean[channel] + momentum * mean
        running.var[channel] = (f1 - momentum) * running.var[channel] + momentum * (m2 / (count - f1))


@cuda.jit(device=True)
def of_channel(c, affine, moments, eps):
    """Mean, scale and bias of a channel."""
    return moments.mean[c], affine.weight[c] / math.sqrt(moments.var[c] + eps), affine.bias[c]


@cuda.jit(device=True)
def centre_and_scale(channel, first, training, partials, affine, moments, running, eps):
    """The mean to subtract and the factor. In training, the thread with ``first`` set updates the running moments."""
    if training:
        count, mean, m2 = merge_parts(partials, channel)
        if first:
            keep(running, channel, mean, m2, count)
        return mean, affine.weight[channel] / math.sqrt(m2 / count + eps)
    return moments.mean[channel], affine.weight[channel] / math.sqrt(moments.var[channel] + eps)


# ------------------------------------------------------------------------------ the values of a channel, many at a time
#
# `x` is flat, of shape images x channels x inner: a channel has `inner` values in each image. A unit is one value, or
# a vector of 16 bytes: `like` is a tuple as long as a unit has values. A thread has the units `first`, `first` + the
# block's width, and so on. It finds the first by a division, and each further one by a step without a division. Units
# of a channel are counted in int32: Numba makes an int64 of any sum of integers, and a GPU needs two instructions for
# each addition of those.


@cuda.jit(device=True)
def divided(a, b):
    """Quotient and remainder of two int32; neither may be negative."""
    return np.int32(np.uint32(a) // np.uint32(b)), np.int32(np.uint32(a) % np.uint32(b))


@cuda.jit(device=True)
def route(shape, channel, first, like):
    """How a thread walks along a channel. Returns start, step and units in a plane.

    Start: (unit of x, unit in the plane, units left). Step: (advance in x, advance in the plane, extra advance in x
    when the plane ends). A plane is the values of one channel in one image.
    """
    inner = np.int32(shape.inner // len(like))
    image, r = divided(first, inner)
    images_on, r_on = divided(cuda.blockDim.x, inner)
    start = (np.int64(image) * shape.channels + channel) * inner + r, r, np.int32(shape.images * inner - first)
    return (
        start,
        (np.int64(images_on) * shape.channels * inner + r_on, r_on, np.int64(inner) * (shape.channels - 1)),
        inner,
    )


@cuda.jit(device=True)
def onward(at, r, left, step, inner):
    """Take one step, into the next image if the plane ends."""
    at, r = at + step[0], np.int32(r + step[1])
    if r >= inner:
        at, r = at + step[2], np.int32(r - inner)
    return at, r, np.int32(left - cuda.blockDim.x)


@cuda.jit(device=True)
def load_chunk(x, shape, channel, first, like, depth, values):
    """Load a thread's units of a channel, ``depth`` at most, and return how many values they have.

    Threads do not diverge between the loads, so that all loads are in flight before the first value is needed. Beyond
    the channel's end its first unit is loaded instead, and not counted.
    """
    (at, r, left), step, inner = route(shape, channel, first, like)
    begin, filled = channel * np.int64(inner), 0
    for k in range(CHUNK // len(like)):
        i = at if left > 0 else begin
        if len(like) > 1:
            load_vector(values, len(like) * k, x, len(like) * i, k < depth, like)
        else:
            values[k] = widened(x[i]) if k < depth else f0
        filled += len(like) if left > 0 else 0
        at, r, left = onward(at, r, left, step, inner)
    return filled


@cuda.jit(device=True)
def load_vector(values, place, x, i, needed, like):
    """Load a vector into ``values``, from ``place`` on; zeros if it is not ``needed``, which is so in all threads."""
    if needed:
        v = widened(load128(x, i))
        for e in range(len(like)):
            values[place + e] = v[e]
    else:
        for e in range(len(like)):
            values[place + e] = f0


@cuda.jit(device=True)
def store_vector(values, place, out, i, like):
    """Store a vector of ``values``, from ``place`` on. Eight are rounded to 16 bits here."""
    four = values[place], values[place + 1], values[place + 2], values[place + 3]
    if len(like) == 8:
        rest = values[place + 4], values[place + 5], values[place + 6], values[place + 7]
        store128(out, i, four + rest)
    else:
        store128(out, i, four)


@cuda.jit(device=True)
def store_chunk(values, out, shape, channel, first, like):
    """Store the values that `load_chunk` counted, at the same places of ``out``."""
    (at, r, left), step, inner = route(shape, channel, first, like)
    for k in range(CHUNK // len(like)):
        if left > 0:
            if len(like) > 1:
                store_vector(values, len(like) * k, out, len(like) * at, like)
            else:
                out[at] = values[k]
        at, r, left = onward(at, r, left, step, inner)
