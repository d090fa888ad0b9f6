"""Batch normalisation where planes begin anywhere: 128-bit loads of planes whose extent no vector divides.

Chapter: notebooks/54_normalisation.ipynb. A plane is the values of one channel in one image. One of 15 x 15 float32 has
no multiple of four values, so three planes of four begin between two multiples of 16 bytes. Such a plane is read from
the multiple before it up to the one behind it. Its first and its last vector may have values of other channels, which
do not count, and are not overwritten.
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.normalisation.moments import (
    CHUNK,
    block_merge,
    centre_and_scale,
    divided,
    f0,
    f1,
    keep,
    load_vector,
    merge,
    rectified,
    store_vector,
    write_part,
)
from pmpp.runtime.vector import widened


def vectors_of(inner: int, width: int) -> int:
    """The most vectors of ``width`` values that a plane lies in, wherever it begins.

    >>> vectors_of(225, 4), vectors_of(8, 4)
    (57, 3)
    """
    return (inner + 2 * width - 2) // width


@cuda.jit(device=True)
def begin(shape, channel, image, v, like):
    """Where vector ``v`` of a plane begins: in flat x, and in its plane, where it may be below 0."""
    plane = (np.int64(image) * shape.channels + channel) * shape.inner
    before = np.int32(plane & (len(like) - 1))  # so far behind a multiple of 16 bytes the plane begins
    r = np.int32(len(like) * v - before)
    return plane + r, r


@cuda.jit(device=True)
def onward(image, v, on, vectors):
    """The thread's next vector: ``on`` has the planes and the vectors that it is away."""
    image, v = np.int32(image + on[0]), np.int32(v + on[1])
    if v >= vectors:
        image, v = np.int32(image + 1), np.int32(v - vectors)
    return image, v


@cuda.jit(device=True)
def load_ragged(x, shape, vectors, channel, first, like, depth, values):
    """Load a thread's vectors of a channel, ``depth`` at most. Returns a mask: bit k is set if values[k] counts.

    A channel has ``vectors`` in each image. The thread has the vectors ``first``, ``first`` + the block's width, and so
    on. Beyond the channel's end, and where x ends within a vector, another is loaded, so that no load waits.
    """
    image, v = divided(first, vectors)
    on, mask, last = divided(cuda.blockDim.x, vectors), np.uint32(0), np.int64(x.size - len(like))
    for k in range(CHUNK // len(like)):
        at, r = begin(shape, channel, image, v, like)
        here = k < depth and image < shape.images
        load_vector(values, len(like) * k, x, at if here and at <= last else np.int64(0), k < depth, like)
        for e in range(len(like)):
            if here and 0 <= r + e < shape.inner:
                mask |= np.uint32(1 << (len(like) * k + e))
                if at > last:
                    values[len(like) * k + e] = widened(x[at + e])
        image, v = onward(image, v, on, vectors)
    return mask


@cuda.jit(device=True)
def store_ragged(values, mask, out, shape, vectors, channel, first, like):
    """Store the values that `load_ragged` counted: whole vectors at once, of others one by one."""
    image, v = divided(first, vectors)
    on, every = divided(cuda.blockDim.x, vectors), np.uint32((1 << len(like)) - 1)
    for k in range(CHUNK // len(like)):
        at, _ = begin(shape, channel, image, v, like)
        here = np.uint32(mask >> np.uint32(len(like) * k)) & every
        if here == every:
            store_vector(values, len(like) * k, out, at, like)
        elif here:
            for e in range(len(like)):
                if here & np.uint32(1 << e):
                    out[at + e] = values[len(like) * k + e]
        image, v = onward(image, v, on, vectors)


@cuda.jit(device=True)
def masked_moments(values, mask):
    """The moments of a thread's values that count."""
    total = f0
    for k in range(CHUNK):
        total += values[k] if mask & np.uint32(1 << k) else f0
    count = np.float32(cuda.popc(mask))
    mean, m2 = total / max(count, f1), f0
    for k in range(CHUNK):
        deviation = values[k] - mean if mask & np.uint32(1 << k) else f0
        m2 += deviation * deviation
    return count, mean, m2


@cuda.jit(max_registers=64)  # 65,536 registers for a block of 1024 threads
def ragged_channel_kernel(x, shape, vectors, like, depth, affine, running, epilogue, out):
    channel, thread = cuda.blockIdx.x, cuda.threadIdx.x
    values = cuda.local.array(CHUNK, np.float32)
    mask = load_ragged(x, shape, vectors, channel, thread, like, depth, values)
    count, mean, m2 = masked_moments(values, mask)
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if thread == 0:
        keep(running, channel, mean, m2, count)
    scale, bias = affine.weight[channel] / math.sqrt(m2 / count + epilogue.eps), affine.bias[channel]
    for k in range(CHUNK):
        values[k] = rectified((values[k] - mean) * scale + bias, epilogue.relu)
    store_ragged(values, mask, out, shape, vectors, channel, thread, like)


@cuda.jit(max_registers=64)  # so that 1024 threads fit on a multiprocessor
def ragged_parts_kernel(x, shape, vectors, like, tiles, partials):
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * (CHUNK // len(like))
    count, mean, m2 = f0, f0, f0
    for tile in range(part, tiles, parts):
        first = np.int32(tile * units + cuda.threadIdx.x)
        mask = load_ragged(x, shape, vectors, channel, first, like, CHUNK, values)
        more = masked_moments(values, mask)
        count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if cuda.threadIdx.x == 0:
        write_part(partials, channel, part, count, mean, m2)


@cuda.jit(max_registers=64)  # as above
def ragged_kernel(x, shape, vectors, like, tiles, partials, affine, moments, running, epilogue, out):
    # Backwards: what was read last is still in the cache, and is used first.
    channel, part, parts = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.gridDim.y - 1 - cuda.blockIdx.y, cuda.gridDim.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * (CHUNK // len(like))
    thread_0 = part == 0 and cuda.threadIdx.x == 0
    mean, scale = centre_and_scale(channel, thread_0, True, partials, affine, moments, running, epilogue.eps)
    tile = part + (tiles - 1 - part) // parts * parts
    while tile >= 0:
        first = np.int32(tile * units + cuda.threadIdx.x)
        mask = load_ragged(x, shape, vectors, channel, first, like, CHUNK, values)
        for k in range(CHUNK):
            values[k] = rectified((values[k] - mean) * scale + affine.bias[channel], epilogue.relu)
        store_ragged(values, mask, out, shape, vectors, channel, first, like)
        tile -= parts
