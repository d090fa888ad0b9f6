"""Sums, means and variances of what the threads of a warp or a block have seen: used by `batchnorm` and `layernorm`.

The moments of some values are their count, their mean and M2, the sum of squared deviations from that mean; M2 over the
count is the variance. All functions run on the device, in float32. Chapter: notebooks/16_normalisation.ipynb.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.vector import load128, store128

WARP = 0xFFFFFFFF  # all its lanes
f0, f1 = np.float32(0), np.float32(1)  # a literal 0.0 would be float64, and all that it touches
CHUNK = 32  # values that a thread holds in registers


@cuda.jit(device=True)
def warp_sum(value):
    """In all lanes, the sum of the warp's values: lanes exchange values with the lane 16 away, then 8, 4, 2, 1."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(WARP, value, distance)
    return value


@cuda.jit(device=True)
def block_sum(value, partial):
    """In all threads, the sum of the block's values. ``partial``: shared, 32 floats that nobody still reads."""
    return across_warps(warp_sum(value), partial)


@cuda.jit(device=True)
def across_warps(value, partial):
    """In all threads, the sum of the values of the block's warps; all lanes of a warp have the same."""
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    return warp_sum(partial[cuda.laneid] if cuda.laneid < cuda.blockDim.x // 32 else f0)


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
    """In all lanes, the moments of all that the warp's lanes have seen."""
    for distance in (16, 8, 4, 2, 1):
        below = cuda.shfl_down_sync(WARP, count, distance), cuda.shfl_down_sync(WARP, mean, distance)
        count, mean, m2 = merge(count, mean, m2, below[0], below[1], cuda.shfl_down_sync(WARP, m2, distance))
    return cuda.shfl_sync(WARP, count, 0), cuda.shfl_sync(WARP, mean, 0), cuda.shfl_sync(WARP, m2, 0)


@cuda.jit(device=True)
def block_merge(count, mean, m2, partial):
    """In all threads, the moments of all that the block has seen. ``partial``: shared, (3, 32), read by nobody yet."""
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
def merge_parts(partials, channel):
    """In all lanes of a warp, the moments of a channel from those of its parts."""
    count, mean, m2 = f0, f0, f0
    for part in range(cuda.laneid, partials.shape[2], 32):
        other = partials[0, channel, part], partials[1, channel, part], partials[2, channel, part]
        count, mean, m2 = merge(count, mean, m2, other[0], other[1], other[2])
    return warp_merge(count, mean, m2)


@cuda.jit(device=True)
def chunk_moments(values, filled):
    """The moments of the first ``filled`` of a thread's values, in two passes: they lie in registers."""
    total = f0
    for k in range(values.size):
        total += values[k] if k < filled else f0
    count = np.float32(filled)
    mean, m2 = total / max(count, f1), f0
    for k in range(values.size):
        deviation = values[k] - mean if k < filled else f0
        m2 += deviation * deviation
    return count, mean, m2


# ------------------------------------------------------------------------------ the values of a channel, many at a time
#
# A channel is what lies at x[:, channel, :]: a piece of `inner` values in each image. A unit is one of them, or four if
# `wide`. A thread has units `first`, `first` + the block's width, and so on. It divides once to find its first unit,
# and steps from one to the next: a division by what is no constant costs more than everything else here.


@cuda.jit(device=True)
def divided(a, b):
    """Quotient and remainder of what fits in 32 bits, which divides several times faster than int64."""
    return np.int64(np.uint32(a) // np.uint32(b)), np.int64(np.uint32(a) % np.uint32(b))


@cuda.jit(device=True)
def stepped(image, r, step, inner):
    """The unit one step further: ``step`` is in images and units."""
    image, r = image + step[0], r + step[1]
    return (image + 1, r - inner) if r >= inner else (image, r)


@cuda.jit(device=True)
def load_chunk(x, channel, first, wide, values):
    """Load CHUNK values of a channel; how many there were.

    No branch between the loads, so that all are under way before the first value is needed. Beyond the last image it is
    the last that is loaded, and not counted.
    """
    images, channels, inner = x.shape
    inner //= 4 if wide else 1
    image, r = divided(first, inner)
    step, filled = divided(cuda.blockDim.x, inner), 0
    if wide:
        for k in range(CHUNK // 4):
            quad = load128(x, 4 * ((min(image, images - 1) * channels + channel) * inner + r))
            values[4 * k], values[4 * k + 1], values[4 * k + 2], values[4 * k + 3] = quad
            filled += 4 if image < images else 0
            image, r = stepped(image, r, step, inner)
    else:
        for k in range(CHUNK):
            values[k] = x[min(image, images - 1), channel, r]
            filled += 1 if image < images else 0
            image, r = stepped(image, r, step, inner)
    return filled


@cuda.jit(device=True)
def store_chunk(values, out, channel, first, wide):
    """Store what `load_chunk` counted."""
    images, channels, inner = out.shape
    inner //= 4 if wide else 1
    image, r = divided(first, inner)
    step = divided(cuda.blockDim.x, inner)
    if wide:
        for k in range(CHUNK // 4):
            if image < images:
                quad = values[4 * k], values[4 * k + 1], values[4 * k + 2], values[4 * k + 3]
                store128(out, 4 * ((image * channels + channel) * inner + r), quad)
            image, r = stepped(image, r, step, inner)
    else:
        for k in range(CHUNK):
            if image < images:
                out[image, channel, r] = values[k]
            image, r = stepped(image, r, step, inner)
