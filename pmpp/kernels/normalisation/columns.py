"""Batch normalisation where a plane has few values, as in N x C: the moments of columns, read row by row.

Chapter: notebooks/54_normalisation.ipynb. A plane is the values of one channel in one image. If planes are short, the
values of a channel lie far apart, but those of neighbouring channels lie together. So a batch is read as a matrix, with
a row for each image. Each thread goes down a column, and the threads of a warp have neighbouring columns.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.normalisation.moments import (
    CHUNK,
    Affine,
    Epilogue,
    Moments,
    Shape,
    chunk_moments,
    divided,
    f0,
    merge,
    of_channel,
    parts_of,
    rectified,
    write_part,
)
from pmpp.runtime import device
from pmpp.runtime.vector import widened

BLOCK = 256  # threads per block


@cuda.jit
def column_parts_kernel(x, shape, width, tiles, partials):
    """A block takes ``width`` columns, and ``BLOCK // width`` rows at a time."""
    images, channels, inner = shape
    part, parts, thread = cuda.blockIdx.y, cuda.gridDim.y, np.int32(cuda.threadIdx.x)
    (row, lane), rows, columns = divided(thread, width), BLOCK // width, channels * inner
    column = min(cuda.blockIdx.x * width + lane, columns - 1)
    values = cuda.local.array(CHUNK, np.float32)
    count, mean, m2 = f0, f0, f0
    for tile in range(part, tiles if row < rows else 0, parts):
        first = tile * CHUNK * rows + row
        at, left, filled = first * columns + column, np.int32(images - first), 0
        for k in range(CHUNK):
            values[k] = widened(x[at if left > 0 else column])
            filled += 1 if left > 0 else 0
            at, left = at + rows * columns, np.int32(left - rows)
        more = chunk_moments(values, filled)
        count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
    partial = cuda.shared.array((3, BLOCK), np.float32)
    while rows > 1:
        partial[0, thread], partial[1, thread], partial[2, thread] = count, mean, m2
        cuda.syncthreads()
        half = (rows + 1) // 2
        if row + half < rows:
            below = thread + half * width
            count, mean, m2 = merge(count, mean, m2, partial[0, below], partial[1, below], partial[2, below])
        rows = half
        cuda.syncthreads()
    if row == 0 and cuda.blockIdx.x * width + lane < columns:
        write_part(partials, column // inner, column % inner * parts + part, count, mean, m2)


def column_parts(x: typing.Any, shape: Shape, stream: typing.Any) -> typing.Any:
    """The moments of all channels of a flat ``x``, whose shape is images x channels x inner: 3 x channels x parts."""
    n, c, inner = shape
    width = min(32, c * inner)
    across, tiles = blocks(c * inner, width), blocks(n, CHUNK * (BLOCK // width))
    grid = across, parts_of(across, tiles)
    partials = device.empty((3, c, inner * grid[1]), np.float32, stream=stream)
    column_parts_kernel[grid, BLOCK, stream](x, shape, width, tiles, partials)
    return partials


FEW = 16  # values that a thread has in flight. With more, a thread needs more registers, and fewer threads fit.


@cuda.jit
def columns_kernel(x, shape, tiles, affine, moments, epilogue, out):
    images, channels, inner = shape
    row, lane = divided(cuda.threadIdx.x, 32)
    rows, columns, column = BLOCK // 32, channels * inner, cuda.blockIdx.x * 32 + lane
    if column < columns:
        mean, scale, bias = of_channel(column // inner, affine, moments, epilogue.eps)
        values = cuda.local.array(FEW, np.float32)
        tile = tiles - 1 - cuda.blockIdx.y  # backwards: what was read last is still in the cache
        while tile >= 0:
            first = tile * FEW * rows + row
            at, left = first * columns + column, np.int32(images - first)
            for k in range(FEW):
                values[k] = widened(x[at + k * rows * columns if left > k * rows else column])
            for k in range(FEW):
                if left > k * rows:
                    out[at + k * rows * columns] = rectified((values[k] - mean) * scale + bias, epilogue.relu)
            tile -= cuda.gridDim.y


def normalise_columns(
    x: typing.Any,
    shape: Shape,
    affine: Affine,
    moments: Moments,
    epilogue: Epilogue,
    out: typing.Any,
    stream: typing.Any,
) -> None:
    """Normalise a flat ``x`` into ``out``. It has 32 columns or more, one for each lane of a warp."""
    n, c, inner = shape
    across, tiles = blocks(c * inner, 32), blocks(n, FEW * (BLOCK // 32))
    grid = across, parts_of(across, tiles)
    columns_kernel[grid, BLOCK, stream](x, shape, tiles, affine, moments, epilogue, out)
