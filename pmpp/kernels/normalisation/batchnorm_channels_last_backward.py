"""Gradients of batch normalisation with channels last: sums over columns, and a gradient from them.

Chapter: notebooks/84_gradients_of_normalisation.ipynb.  PMPP 4e ch. 10.

The gradients are those of `batchnorm_backward`, and so is the bound: 20 bytes for an element, of which a large batch
reads 16. Only the order in memory differs: the lanes of a warp take neighbouring channels, and 128 bits are four of
them, or eight of 16 bits.
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum
from pmpp.kernels.normalisation import batchnorm_backward as channels_first
from pmpp.kernels.normalisation import batchnorm_channels_last as forward
from pmpp.kernels.normalisation import columns
from pmpp.kernels.normalisation.batchnorm_backward import (
    column_sums_kernel,
    columns_kernel,
    gradient_kernel,
    moments_kernel,
)
from pmpp.kernels.normalisation.batchnorm_channels_last import (
    BLOCKS_PER_SM,
    PARTS_PER_SM,
    TALL,
    channels_to,
    grid_of,
    load_rows,
    of_columns,
    wide,
)
from pmpp.kernels.normalisation.moments import (
    DTYPES,
    LIKE,
    Moments,
    Running,
    Shape,
    divided,
    f0,
    store_vector,
    threads_for,
)
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import width_of

BLOCK = 256  # threads per block: one for each column of a block, of which there are at most 32 vectors of 8


def reference(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The gradient of the batch in float64. Arguments as in `arguments`."""
    return channels_to(-1, channels_first.reference(channels_to(1, dy), channels_to(1, x), weight, eps))


def reference_parameters(dy: np.ndarray, x: np.ndarray, eps: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of weight and bias in float64."""
    return channels_first.reference_parameters(channels_to(1, dy), channels_to(1, x), eps)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward batches: a name, and ``(dy, x, weight)``."""
    rng = np.random.default_rng(85) if rng is None else rng
    shapes = {
        "two values a channel": (1, 1, 2, 1),
        "no channels": (4, 3, 2, 0),
        "N x C": (70, 37),
        "one vector": (3, 4),
    }
    shapes |= {"three channels": (2, 5, 7, 3), "whole vectors": (3, 5, 7, 8), "a sequence": (2, 37, 24)}
    shapes |= {"a volume": (2, 2, 3, 5, 4), "many rows": (20, 12, 10, 16), "very many rows": (16_500, 4)}
    shapes |= {"groups of vectors": (2, 3, 3, 136), "a group and one vector": (3, 3, 3, 264), "wide": (40, 1032)}
    made = {name: [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)] for name, shape in shapes.items()}
    dy, x = made["whole vectors"]
    made["large mean"], made["large gradients"] = [dy, 1000 + x], [1000 + 1e3 * dy, x]
    made["constant"] = [dy, np.full(x.shape, 0.1, np.float32)]
    made["the normalised itself"] = [(2 * (x - x.mean()) + 3).astype(np.float32), x]  # all of it cancels, nearly
    made["non-finite"] = [dy.copy(), x.copy()]
    made["non-finite"][0][0, 2, 1, 1] = made["non-finite"][1][1, 1, 2, 3] = np.nan
    made["non-finite"][1][2, 3, 0, 0] = np.inf
    for dtype in known(DTYPES[1:]):
        for name in ("N x C", "whole vectors", "many rows", "groups of vectors", "three channels", "non-finite"):
            made[f"{dtype}, {name}"] = [one.astype(dtype) for one in made[name]]
    return {name: (dy, x, rng.uniform(-2, 2, x.shape[-1]).astype(np.float32)) for name, (dy, x) in made.items()}


def tolerance(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The largest error allowed for each element of the batch's gradient; see `gradients.tolerances`."""
    return channels_to(-1, channels_first.tolerance(channels_to(1, dy), channels_to(1, x), weight, eps))


def tolerance_parameters(dy: np.ndarray, x: np.ndarray, eps: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """The largest errors allowed for the gradients of weight and bias."""
    return channels_first.tolerance_parameters(channels_to(1, dy), channels_to(1, x), eps)


def cost(n: int, c: int = 64, inner: int = 1, itemsize: int = 4) -> Cost:
    """For ``n`` images of ``inner`` places with ``c`` channels: that of `batchnorm_backward`."""
    return channels_first.cost(n, c, inner, itemsize)


def arguments(
    dy,
    x,
    weight,
    *,
    eps=1e-5,
    mean=None,
    invstd=None,
    out=None,
    dweight=None,
    dbias=None,
    stream=0,
) -> Problem:
    """The gradient of a batch with channels last that was normalised by its own moments, and of weight and bias.

    Args:
        dy: the gradient of the result, in the shape and dtype of ``x``, contiguous.
        x: float32, float16 or bfloat16 of shape (N, C) or (N, ..., C) with one to three dimensions between, contiguous
            in C order: what was normalised. At least 2 and fewer than 2^31 values per channel. Whatever its dtype, all
            is computed in float32, and the gradient of the batch is rounded once.
        weight: float32 of shape (C,).
        eps: what was added to the variance, 0 or more. It counts only where the moments are found here.
        mean, invstd: float32 of shape (C,), both or neither: the mean of each channel and 1 / sqrt(var + eps), as the
            forward pass returns them for return_moments=True. Without them they are found here, by another read of x.
        out: a device array of the shape and dtype of ``x``, in C order, apart from the others in memory, or None to
            allocate one.
        dweight, dbias: device arrays of float32 and shape (C,) that take the gradients of weight and bias, apart from
            the others in memory, or None to drop these two.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The same call gives the same bits. A NaN in dy, and a NaN
    or an infinity in x, make all of the channel NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: S. Ioffe and C. Szegedy, Batch Normalization (2015), section 3.

    >>> from pmpp.kernels.normalisation import batchnorm_channels_last_backward
    >>> dy, x = np.float32([[1], [0], [0]]), np.float32([[1], [2], [3]])
    >>> batchnorm_channels_last_backward.vectorised(dy, x, np.float32([1]), eps=0).copy_to_host().round(3) + 0
    array([[ 0.204],
           [-0.408],
           [ 0.204]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=(2, 3, 4, 5), stream=stream)
    shape = Shape(math.prod(x.shape[:-1]), x.shape[-1], 1)  # a matrix, with a row for each place of each image
    return channels_first.problem_of(dy, x, shape, weight, eps, mean, invstd, out, dweight, dbias, stream, find_moments)


def find_moments(p):
    """Find the moments of the columns anew, by the kernels of `batchnorm_channels_last`."""
    x, shape, stream, found = p.x.reshape(p.x.size), p.shape, p.stream, p.moments
    if wide(shape, x):
        var = device.empty(shape.channels, np.float32, stream=stream)
        kept = Running(found.mean, var, f0, found.mean, found.invstd, p.eps, True)
        forward.find_moments(x, shape, Moments(found.mean, var), kept, stream)
    else:
        partials = columns.column_parts(x, shape, stream)
        threads = threads_for(partials.shape[2])
        moments_kernel[shape.channels, threads, stream](partials, p.eps, found)


# ----------------------------------------------------------------------------------------- a thread for each channel


@rung(column_sums_kernel, channels_first.add_kernel, columns_kernel, gradient_kernel)
def channel_each(p):
    """A thread goes down a column, and the lanes of a warp have neighbouring columns: the kernels for an N x C matrix.

    Leaves: a load moves 4 bytes, or 2 of 16 bits, and a warp's loads 128 or 64.
    """
    channels_first.by_columns(p, *(array.reshape(p.x.size) for array in (p.dy, p.x, p.out)))


# ------------------------------------------------------------------------------------------------------- 128 bits wide

PAIRS = 16  # values of dy, and as many of x, that a thread has in flight: four loads of each, or two of 16 bits


@cuda.jit(max_registers=64)  # so that 1024 threads fit on a multiprocessor, which has 65,536 registers
def sums_kernel(dy, x, shape, like, width, tiles, moments, partials):
    part, parts, thread = cuda.blockIdx.y, cuda.gridDim.y, np.int32(cuda.threadIdx.x)
    (row, lane), rows, vectors = divided(thread, width), TALL // width, shape.channels // len(like)
    vector = min(cuda.blockIdx.x * width + lane, vectors - 1)
    given, values = cuda.local.array(PAIRS, np.float32), cuda.local.array(PAIRS, np.float32)
    mean = cuda.local.array(8, np.float32)
    plain, weighted = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
    kept_mean = cuda.shared.array(BLOCK, np.float32, alignment=16)
    c = cuda.blockIdx.x * width * len(like) + thread
    if thread < width * len(like) and c < shape.channels:
        kept_mean[thread] = moments.mean[c]
    cuda.syncthreads()
    of_columns(kept_mean, vector - cuda.blockIdx.x * width, like, mean)
    for e in range(len(like)):
        plain[e], weighted[e] = f0, f0
    for tile in range(part, tiles if row < rows else 0, parts):
        first = tile * (PAIRS // len(like)) * rows + row
        at, left = first * vectors + vector, np.int32(shape.images - first)
        if left > 0:
            load_rows(dy, at, rows * vectors, PAIRS // len(like), left, rows, like, given)
            load_rows(x, at, rows * vectors, PAIRS // len(like), left, rows, like, values)
            for k in range(PAIRS // len(like)):
                for e in range(len(like)):
                    one = given[len(like) * k + e] if left > k * rows else f0
                    plain[e] += one
                    weighted[e] += one * (values[len(like) * k + e] - mean[e])
    partial = cuda.shared.array((2, 8, TALL), np.float32)
    while rows > 1:  # the lower half of the rows is added to the upper
        for e in range(len(like)):
            partial[0, e, thread], partial[1, e, thread] = plain[e], weighted[e]
        cuda.syncthreads()
        half = (rows + 1) // 2
        if row + half < rows:
            below = thread + half * width
            for e in range(len(like)):
                plain[e] += partial[0, e, below]
                weighted[e] += partial[1, e, below]
        rows = half
        cuda.syncthreads()
    if row == 0 and cuda.blockIdx.x * width + lane < vectors:
        for e in range(len(like)):
            c = vector * len(like) + e
            partials[c, part, 0], partials[c, part, 1] = plain[e], weighted[e]


@cuda.jit
def add_kernel(partials, moments, sums):
    """A block for each channel adds the sums of its parts, always in the same order."""
    channel, plain, weighted = cuda.blockIdx.x, f0, f0
    for part in range(cuda.threadIdx.x, partials.shape[1], cuda.blockDim.x):
        plain += partials[channel, part, 0]
        weighted += partials[channel, part, 1]
    partial = cuda.shared.array((2, 32), np.float32)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        sums.dbias[channel], sums.dweight[channel] = plain, weighted * moments.invstd[channel]


@cuda.jit(max_registers=64)  # as above
def vectorised_kernel(dy, x, shape, like, width, tiles, weight, moments, sums, out):
    thread = np.int32(cuda.threadIdx.x)
    (row, lane), rows, vectors = divided(thread, width), BLOCK // width, shape.channels // len(like)
    kept_mean = cuda.shared.array(BLOCK, np.float32, alignment=16)
    kept_scale = cuda.shared.array(BLOCK, np.float32, alignment=16)
    kept_slope = cuda.shared.array(BLOCK, np.float32, alignment=16)
    kept_common = cuda.shared.array(BLOCK, np.float32, alignment=16)
    c, count = cuda.blockIdx.x * width * len(like) + thread, np.float32(shape.images)
    if thread < width * len(like) and c < shape.channels:
        kept_mean[thread], invstd = moments.mean[c], moments.invstd[c]
        kept_scale[thread] = weight[c] * invstd
        kept_slope[thread] = sums.dweight[c] / count * invstd
        kept_common[thread] = sums.dbias[c] / count
    cuda.syncthreads()
    vector = cuda.blockIdx.x * width + lane
    if row < rows and vector < vectors:
        scale, slope = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
        common, mean = cuda.local.array(8, np.float32), cuda.local.array(8, np.float32)
        given, values = cuda.local.array(PAIRS, np.float32), cuda.local.array(PAIRS, np.float32)
        of_columns(kept_scale, lane, like, scale)
        of_columns(kept_slope, lane, like, slope)
        of_columns(kept_common, lane, like, common)
        of_columns(kept_mean, lane, like, mean)
        tile = tiles - 1 - cuda.blockIdx.y  # backwards: what was read last is still in the cache
        while tile >= 0:
            first = tile * (PAIRS // len(like)) * rows + row
            at, left = first * vectors + vector, np.int32(shape.images - first)
            if left > 0:
                load_rows(dy, at, rows * vectors, PAIRS // len(like), left, rows, like, given)
                load_rows(x, at, rows * vectors, PAIRS // len(like), left, rows, like, values)
                for k in range(PAIRS // len(like)):
                    for e in range(len(like)):
                        j = len(like) * k + e
                        values[j] = scale[e] * (given[j] - common[e] - (values[j] - mean[e]) * slope[e])
                    if left > k * rows:
                        store_vector(values, len(like) * k, out, len(like) * (at + k * rows * vectors), like)
            tile -= cuda.gridDim.y


@rung(sums_kernel, add_kernel, vectorised_kernel, *channel_each.kernels)
def vectorised(p):
    """A thread takes 128 bits of each row of dy and of x: four columns, or eight of 16 bits, with their sums.

    If the channels are no whole vectors, or if an array does not begin at a multiple of 16 bytes, this is
    `channel_each`.
    """
    shape, stream = p.shape, p.stream
    dy, x, out = (array.reshape(p.x.size) for array in (p.dy, p.x, p.out))
    if not wide(shape, dy, x, out):
        channel_each.launch(p)
        return
    like = LIKE[width_of(x.dtype)]
    grid, width, tiles = grid_of(shape, like, PAIRS // len(like), TALL, PARTS_PER_SM)
    partials = device.empty((shape.channels, grid[1], 2), np.float32, stream=stream)
    sums_kernel[grid, TALL, stream](dy, x, shape, like, width, tiles, p.moments, partials)
    add_kernel[shape.channels, threads_for(grid[1]), stream](partials, p.moments, p.sums)
    grid, width, tiles = grid_of(shape, like, PAIRS // len(like), BLOCK, BLOCKS_PER_SM)
    vectorised_kernel[grid, BLOCK, stream](dy, x, shape, like, width, tiles, p.weight, p.moments, p.sums, out)


LADDER = (channel_each, vectorised)
