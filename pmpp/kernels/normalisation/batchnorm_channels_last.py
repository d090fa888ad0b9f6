"""Batch normalisation with channels last: batches of shape (N, H, W, C), in which a channel is a column of a matrix.

Chapter: notebooks/54_normalisation.ipynb.  PMPP 4e ch. 10.

The bound is that of batches with channels first: two reads and a write in training, a read and a write in inference.
But all values of a channel lie C apart, and a row of the matrix has one value of each channel. So the lanes of a warp
take neighbouring channels, and 128 bits are four channels, or eight of 16 bits. A thread has moments for each of them.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.normalisation import batchnorm as channels_first
from pmpp.kernels.normalisation import columns
from pmpp.kernels.normalisation.batchnorm import normalise, normalise_kernel
from pmpp.kernels.normalisation.moments import (
    DTYPES,
    LIKE,
    Moments,
    Running,
    Shape,
    block_merge,
    divided,
    f0,
    f1,
    keep,
    merge,
    of_channel,
    store_vector,
    threads_for,
)
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width_of

BLOCK = 256  # threads per block: one for each column of a block, of which there are at most 32 vectors of 8


def channels_to(place: int, x: typing.Any) -> typing.Any:
    """A view of a batch (N, C, ...) with the channels last for -1, or of a batch (N, ..., C) with them at axis 1."""
    axes = tuple(range(x.ndim))
    return x.transpose((0, *axes[2:], 1) if place == -1 else (0, x.ndim - 1, *axes[1:-1]))


def reference(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    running_mean: np.ndarray | None = None,
    running_var: np.ndarray | None = None,
    *,
    training: bool = True,
    eps: float = 1e-5,
    relu: bool = False,
) -> np.ndarray:
    """The normalised batch in float64, computed one channel at a time. Arguments as in `arguments`."""
    more = {"training": training, "eps": eps, "relu": relu}
    return channels_to(-1, channels_first.reference(channels_to(1, x), weight, bias, running_mean, running_var, **more))


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward batches: a name, and ``(x, weight, bias)``."""
    rng = np.random.default_rng(54) if rng is None else rng
    shapes = {
        "two values a channel": (1, 1, 2, 1),
        "no channels": (4, 3, 2, 0),
        "N x C": (70, 37),
        "one vector": (3, 4),
    }
    shapes |= {"three channels": (2, 5, 7, 3), "whole vectors": (3, 5, 7, 8), "a sequence": (2, 37, 24)}
    shapes |= {"a volume": (2, 2, 3, 5, 4), "many rows": (20, 12, 10, 16), "very many rows": (16_500, 4)}
    shapes |= {"groups of vectors": (2, 3, 3, 136), "a group and one vector": (3, 3, 3, 264), "wide": (40, 1032)}
    made = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    made["large mean"] = 1000 + made["whole vectors"]
    made["outliers"] = np.where(rng.random((20, 40, 4)) < 0.01, 1e6, rng.random((20, 40, 4))).astype(np.float32)
    made["constant"] = np.full((5, 3, 11, 4), 0.1, np.float32)
    made["tiny"] = 1e-20 * made["whole vectors"]
    made["non-finite"] = made["whole vectors"].copy()
    made["non-finite"][1, 1, 2, 3], made["non-finite"][2, 3, 0, 0] = np.nan, np.inf
    for dtype in known(DTYPES[1:]):
        names = ("N x C", "whole vectors", "many rows", "groups of vectors", "three channels", "non-finite")
        made |= {f"{dtype}, {name}": made[name].astype(dtype) for name in names}
        made[f"half a vector, {dtype}"] = made["one vector"].astype(dtype)
        made[f"{dtype}, far from 0"] = (50 + made["whole vectors"]).astype(dtype)
    return {
        name: (x, rng.uniform(0.5, 2, x.shape[-1]).astype(np.float32), rng.standard_normal(x.shape[-1], np.float32))
        for name, x in made.items()
    }


def tolerance(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The largest error allowed for each element in training: that of `batchnorm`, for the layout changes no sum."""
    return channels_to(-1, channels_first.tolerance(channels_to(1, x), weight, bias, eps))


def cost(n: int, c: int = 64, inner: int = 1, training: bool = True, itemsize: int = 4) -> Cost:
    """For ``n`` images of ``inner`` places with ``c`` channels: that of `batchnorm`."""
    return channels_first.cost(n, c, inner, training, itemsize)


def arguments(
    x,
    weight,
    bias,
    running_mean=None,
    running_var=None,
    *,
    training=True,
    momentum=0.1,
    eps=1e-5,
    relu=False,
    return_moments=False,
    out=None,
    stream=0,
) -> Problem:
    """Normalise every channel of a batch with channels last: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Args:
        x: float32, float16 or bfloat16 of shape (N, C) or (N, ..., C) with one to three dimensions between, contiguous
            in C order. PyTorch's channels-last tensors are such batches: ``x.permute(0, 2, 3, 1)``. Fewer than 2^31
            values per channel; to train on, at least 2. Whatever its dtype, all is computed in float32, and the result
            is rounded once.
        weight, bias: float32 of shape (C,).
        running_mean, running_var: float32 of shape (C,), both or neither. In training they must be device arrays, apart
            from all others in memory, and are updated in place to (1 - momentum) * old + momentum * batch, where the
            batch's variance is the unbiased one. In inference they are required, and are used instead of the batch's
            moments.
        training: True to normalise by the moments of the batch, False by the running ones.
        momentum: from 0 to 1.
        eps: what is added to the variance, 0 or more.
        relu: True to set negative results to 0.
        return_moments: True to return (out, mean, invstd) in training: also the mean of each channel and
            1 / sqrt(var + eps), device arrays of float32 and shape (C,). The gradients take them.
        out: a device array of the shape and dtype of ``x``, in C order, apart from the others in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, or (out, mean, invstd), without waiting for the work to be done. The variance is the biased one. In
    training a NaN or an infinity makes all of its channel NaN. The same call gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: S. Ioffe and C. Szegedy, Batch Normalization (2015), algorithm 1; PyTorch's channels-last memory format.

    >>> from pmpp.kernels.normalisation import batchnorm_channels_last
    >>> x = np.float32([[[[1, 10], [3, 30]]]])  # an image of 1 x 2 places with two channels
    >>> ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    >>> batchnorm_channels_last.vectorised(x, ones, zeros, eps=0).copy_to_host()
    array([[[[-1., -1.],
             [ 1.,  1.]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=(2, 3, 4, 5), stream=stream)
    shape = Shape(math.prod(x.shape[:-1]), x.shape[-1], 1)  # a matrix, with a row for each place of each image
    running = running_mean, running_var
    return channels_first.problem_of(
        x, shape, weight, bias, *running, training, momentum, eps, relu, return_moments, out, stream
    )


# ----------------------------------------------------------------------------------------- a thread for each channel


@rung(columns.column_parts_kernel, channels_first.merge_kernel, columns.columns_kernel, normalise_kernel)
def channel_each(p):
    """A thread goes down a column, and the lanes of a warp have neighbouring columns: the kernels for an N x C matrix.

    Leaves: a load moves 4 bytes, or 2 of 16 bits, and a warp's loads 128 or 64.
    """
    x, out = p.x.reshape(p.x.size), p.out.reshape(p.x.size)
    if p.training:
        partials = columns.column_parts(x, p.shape, p.stream)
        threads = threads_for(partials.shape[2])
        channels_first.merge_kernel[p.shape.channels, threads, p.stream](partials, p.moments, p.running)
    if p.shape.channels < 32:
        normalise(p)
    else:
        columns.normalise_columns(x, p.shape, p.affine, p.moments, p.epilogue, out, p.stream)


# ------------------------------------------------------------------------------------------------------- 128 bits wide

ROWS = 4  # vectors that a thread has in flight, one of each row
HELD = 8 * ROWS  # values of those, at most
TALL = 512  # threads per block where sums are found: the more rows a block has, the fewer parts there are to merge
# Blocks for each multiprocessor: where sums are found as many as it holds at once, for each leaves a part to merge.
PARTS_PER_SM, BLOCKS_PER_SM = 2, 8


class Grid(typing.NamedTuple):
    """How blocks cover a matrix whose rows are read as vectors: ``width`` vectors side by side, and rows of those."""

    blocks: tuple[int, int]  # across the columns, and down the rows
    width: np.int32  # vectors in each row of a block, at most 32
    tiles: int  # how often the vectors that its threads have in flight cover all rows


def grid_of(shape: Shape, like: tuple[int, ...], rows: int, threads: int, blocks_per_sm: int) -> Grid:
    """The grid of a matrix for blocks of so many ``threads``, of which each has ``rows`` vectors in flight."""
    vectors = shape.channels // len(like)
    across = blocks(vectors, 32)
    width = blocks(vectors, across)
    tiles = blocks(shape.images, rows * (threads // width))
    room = device.limits()["multiprocessors"] * blocks_per_sm // across  # rounded down: one block more is a round more
    return Grid((across, max(1, min(room, tiles))), np.int32(width), tiles)


def wide(shape: Shape, *arrays: typing.Any) -> bool:
    """Whether each row of each array is whole vectors of 128 bits, at addresses that are multiples of 16 bytes."""
    return not shape.channels % width_of(arrays[0].dtype) and not any(device.address(one) % 16 for one in arrays)


@cuda.jit(device=True)
def load_rows(x, first, pitch, count, left, step, like, values):
    """Load ``count`` vectors, each ``step`` rows and ``pitch`` vectors after the one before.

    The first is ``left`` rows before the end. In place of those beyond it the first is loaded again, so that threads do
    not diverge, and all loads are in flight.
    """
    for k in range(count):
        v = widened(load128(x, len(like) * (first + k * pitch if left > k * step else first)))
        for e in range(len(like)):
            values[len(like) * k + e] = v[e]


@cuda.jit(max_registers=64)  # so that 1024 threads fit on a multiprocessor, which has 65,536 registers
def parts_kernel(x, shape, like, width, tiles, partials):
    part, parts, thread = cuda.blockIdx.y, cuda.gridDim.y, np.int32(cuda.threadIdx.x)
    (row, lane), rows, vectors = divided(thread, width), TALL // width, shape.channels // len(like)
    vector = min(cuda.blockIdx.x * width + lane, vectors - 1)
    values = cuda.local.array(HELD, np.float32)
    means, m2s = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
    totals, squares = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
    count = f0
    for e in range(len(like)):
        means[e], m2s[e] = f0, f0
    for tile in range(part, tiles if row < rows else 0, parts):
        first = tile * ROWS * rows + row
        left = np.int32(shape.images - first)
        if left > 0:
            load_rows(x, first * vectors + vector, rows * vectors, ROWS, left, rows, like, values)
            filled = min(divided(left + rows - 1, rows)[0], ROWS)
            if count == f0:
                for e in range(len(like)):
                    means[e] = values[e]
            count += np.float32(filled)
            share = f1 / count  # a division for all columns of the thread, which have the same count
            for e in range(len(like)):
                totals[e], squares[e] = f0, f0
            # Sums around the mean so far, at first around the first value: what cancels between them is small.
            for k in range(ROWS):
                for e in range(len(like)):
                    deviation = values[len(like) * k + e] - means[e] if left > k * rows else f0
                    totals[e] += deviation
                    squares[e] += deviation * deviation
            for e in range(len(like)):
                means[e] += totals[e] * share
                m2s[e] += squares[e] - totals[e] * totals[e] * share
    partial = cuda.shared.array((2, 8, TALL), np.float32)
    counts = cuda.shared.array(TALL, np.float32)
    while rows > 1:  # the lower half of the rows is merged into the upper
        counts[thread] = count
        for e in range(len(like)):
            partial[0, e, thread], partial[1, e, thread] = means[e], m2s[e]
        cuda.syncthreads()
        half = (rows + 1) // 2
        if row + half < rows:
            below = thread + half * width
            before, count = count, count + counts[below]
            share = counts[below] / max(count, f1)
            for e in range(len(like)):
                delta = partial[0, e, below] - means[e]
                means[e] += delta * share
                m2s[e] += partial[1, e, below] + delta * delta * before * share
        rows = half
        cuda.syncthreads()
    if row == 0 and cuda.blockIdx.x * width + lane < vectors:
        for e in range(len(like)):
            store128(partials, 4 * ((vector * len(like) + e) * parts + part), (count, means[e], m2s[e], f0))


@cuda.jit
def merge_kernel(partials, moments, running):
    """A block for each channel. ``partials``: of each channel and part the count, mean and M2, and a zero."""
    channel, parts = cuda.blockIdx.x, partials.shape[1]
    count, mean, m2 = f0, f0, f0
    for part in range(cuda.threadIdx.x, parts, cuda.blockDim.x):
        other = load128(partials, 4 * (channel * parts + part))
        count, mean, m2 = merge(count, mean, m2, other[0], other[1], other[2])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if cuda.threadIdx.x == 0:
        moments.mean[channel], moments.var[channel] = mean, m2 / count
        keep(running, channel, mean, m2, count)


def find_moments(x: typing.Any, shape: Shape, moments: Moments, running: Running, stream: typing.Any) -> None:
    """Find the moments of a flat ``x`` of whole vectors, and leave behind what ``running`` asks for."""
    like = LIKE[width_of(x.dtype)]
    grid, width, tiles = grid_of(shape, like, ROWS, TALL, PARTS_PER_SM)
    partials = device.empty((shape.channels, grid[1], 4), np.float32, stream=stream)
    parts_kernel[grid, TALL, stream](x, shape, like, width, tiles, partials)
    merge_kernel[shape.channels, threads_for(grid[1]), stream](partials, moments, running)


@cuda.jit(device=True)
def of_columns(kept, lane, like, numbers):
    """Load the numbers of a lane's columns from shared memory."""
    for h in range(len(like) // 4):
        four = load128(kept, lane * len(like) + 4 * h)
        for e in range(4):
            numbers[4 * h + e] = four[e]


@cuda.jit(max_registers=64)  # as above
def vectorised_kernel(x, shape, like, width, tiles, affine, moments, epilogue, out):
    thread = np.int32(cuda.threadIdx.x)
    (row, lane), rows, vectors = divided(thread, width), BLOCK // width, shape.channels // len(like)
    kept_mean = cuda.shared.array(BLOCK, np.float32, alignment=16)
    kept_scale = cuda.shared.array(BLOCK, np.float32, alignment=16)
    kept_bias = cuda.shared.array(BLOCK, np.float32, alignment=16)
    channel = cuda.blockIdx.x * width * len(like) + thread
    if thread < width * len(like) and channel < shape.channels:  # a root and a division for each column of the block
        kept_mean[thread], kept_scale[thread], kept_bias[thread] = of_channel(channel, affine, moments, epilogue.eps)
    cuda.syncthreads()
    vector = cuda.blockIdx.x * width + lane
    if row < rows and vector < vectors:
        mean, scale = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
        bias, values = cuda.local.array(8, np.float32), cuda.local.array(HELD, np.float32)
        of_columns(kept_mean, lane, like, mean)
        of_columns(kept_scale, lane, like, scale)
        of_columns(kept_bias, lane, like, bias)
        # By a number, not by a condition: the compiler would make two loops of the condition, and unroll neither.
        floor = f0 if epilogue.relu else np.float32(-math.inf)
        tile = tiles - 1 - cuda.blockIdx.y  # backwards: what was read last is still in the cache
        while tile >= 0:
            first = tile * ROWS * rows + row
            at, left = first * vectors + vector, np.int32(shape.images - first)
            if left > 0:
                load_rows(x, at, rows * vectors, ROWS, left, rows, like, values)
                for k in range(ROWS):
                    for e in range(len(like)):
                        v = (values[len(like) * k + e] - mean[e]) * scale[e] + bias[e]
                        values[len(like) * k + e] = floor if v < floor else v  # a NaN is not below, so it stays NaN
                    if left > k * rows:
                        store_vector(values, len(like) * k, out, len(like) * (at + k * rows * vectors), like)
            tile -= cuda.gridDim.y


@rung(parts_kernel, merge_kernel, vectorised_kernel, *channel_each.kernels)
def vectorised(p):
    """A thread takes 128 bits of each row: four columns, or eight of 16 bits, with their moments in registers.

    A division that merges moments serves all columns of a thread, for they have the same count. If the channels are no
    whole vectors, or if an array does not begin at a multiple of 16 bytes, this is `channel_each`.
    """
    shape, stream = p.shape, p.stream
    x, out = p.x.reshape(p.x.size), p.out.reshape(p.x.size)
    if not wide(shape, x, out):
        channel_each.launch(p)
        return
    like = LIKE[width_of(x.dtype)]
    if p.training:
        find_moments(x, shape, p.moments, p.running, stream)
    grid, width, tiles = grid_of(shape, like, ROWS, BLOCK, BLOCKS_PER_SM)
    vectorised_kernel[grid, BLOCK, stream](x, shape, like, width, tiles, p.affine, p.moments, p.epilogue, out)


LADDER = (channel_each, vectorised)
