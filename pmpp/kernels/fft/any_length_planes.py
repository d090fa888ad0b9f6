"""Transforms of any length along several axes: one pass of lines for each axis, as ``numpy.fft.fftn``.

Along the last axis a pass is `any_length.fused`. Along another axis the points of a line are as far apart as a row is
long. Columns that a block can do by radices are done where they are, 8 or 16 neighbours at a time: see
`any_length.columns_kernel`. Others are turned into rows and back.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.fft.any_length import MOST, NORMS, arguments, columns_kernel, factor, fused, in_words
from pmpp.kernels.fft.butterflies import LINES
from pmpp.kernels.fft.passes import columns, twiddles
from pmpp.kernels.fft.radices import read, read_conjugate, write_conjugate, write_scaled
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer

__all__ = ["fftn"]

SIDE, PITCH, STEP = 32, 33, 8  # a tile of SIDE x SIDE, turned by SIDE x STEP threads
FARTHEST = 2**32  # points of a matrix whose columns are done where they are: places in it have 32 bits


@cuda.jit
def sides_kernel(x, out, rows, columns):
    tile = cuda.shared.array((SIDE, PITCH), np.int64)
    tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
    across, down = (columns + SIDE - 1) // SIDE, (rows + SIDE - 1) // SIDE
    rest = cuda.blockIdx.x // across
    left, matrix = SIDE * (cuda.blockIdx.x - rest * across), rest // down
    top, begin = SIDE * (rest - matrix * down), matrix * rows * columns
    for i in range(0, SIDE, STEP):
        if top + ty + i < rows and left + tx < columns:
            tile[ty + i, tx] = x[begin + (top + ty + i) * columns + left + tx]
    cuda.syncthreads()
    for i in range(0, SIDE, STEP):
        if left + ty + i < columns and top + tx < rows:
            out[begin + (left + ty + i) * rows + top + tx] = tile[tx, ty + i]


def turned(x: typing.Any, rows: int, across: int, stream: typing.Any) -> typing.Any:
    """Matrices of ``rows`` x ``across`` words, one behind the other, each turned on its side."""
    out = device.empty(x.size, np.int64, stream=stream)
    grid = x.size // (rows * across) * blocks(rows, SIDE) * blocks(across, SIDE)
    sides_kernel[grid, (SIDE, STEP), stream](x, out, rows, across)
    return out


def along(x: typing.Any, n: int, inner: int, inverse: bool, norm: str, stream: typing.Any) -> typing.Any:
    """Transforms of n points that lie ``inner`` apart, of a flat complex64 device array, to a new one."""
    out = device.empty(x.size, np.complex64, stream=stream)
    if inner == 1:
        fused.launch(arguments(x.reshape(-1, n), inverse, norm, out=out.reshape(-1, n), stream=stream))
        return out
    plan = columns(n) if n * inner < FARTHEST else None
    if plan is None:
        lines = turned(x.view(np.int64), n, inner, stream).view(np.complex64)
        fused.launch(arguments(lines.reshape(-1, n), inverse, norm, out=out.reshape(-1, n), stream=stream))
        return turned(out.view(np.int64), inner, n, stream).view(np.complex64)
    load, store = (read_conjugate, write_conjugate) if inverse else (read, write_scaled)
    scale = np.float32(factor(n, inverse, norm))
    kernel = columns_kernel(plan, inner, (n * inner, n * inner), load, store, False)
    grid = x.size // (n * inner) * blocks(inner, plan.lines)
    launch = kernel[grid, plan.threads, stream]
    launch(x.view(np.int64), out.view(np.int64), scale, scale, twiddles(plan.radices))
    return out


def checked_axes(axes: typing.Any, ndim: int) -> tuple[int, ...]:
    """``axes`` as numbers from 0 on, each once; all for None."""
    if axes is None:
        return tuple(range(ndim))
    if not isinstance(axes, tuple | list) or not axes:
        raise ValueError(f"axes must be a tuple of axes, or None for all, was {axes!r}")
    found = tuple(as_integer("axes", axis, -ndim, ndim - 1) % ndim for axis in axes)
    if len(set(found)) != len(found):
        raise ValueError(f"axes must name each axis once, was {axes!r}")
    return found


def fftn(x, axes=None, inverse=False, norm="backward", *, stream=0):
    """The transform along some axes, or along all.

    Args:
        x: complex64, contiguous, of any number of dimensions. Each transformed axis has 1 to 2^26 points. It
            begins at a multiple of 8 bytes.
        axes: a tuple of axes, negative ones counted from the end, or None for all.
        inverse, norm: as in `any_length.fused`, for each axis.
        stream: the stream to work on.

    Returns a new complex64 device array of x's shape, without waiting for the work to be done. Raises TypeError or
    ValueError that names the argument at fault, what it was and what is accepted.

    >>> fftn(np.ones((2, 3), np.complex64)).copy_to_host().real
    array([[6., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    inverse = as_flag("inverse", inverse)
    if not isinstance(norm, str) or norm not in NORMS:
        raise ValueError(f'norm must be "backward", "ortho" or "forward", was {norm!r}')
    x = in_words("x", device.as_input("x", x, dtypes=np.complex64, stream=stream))
    axes = checked_axes(axes, x.ndim)
    for axis in axes:
        if not 1 <= x.shape[axis] <= MOST:
            raise ValueError(f"each transformed axis of x must have 1 to {MOST} points, had shape {x.shape}")
        if x.size // x.shape[axis] >= LINES:
            raise ValueError(f"x must have fewer than 2^31 lines along each transformed axis, had shape {x.shape}")
    if not x.size:
        return device.empty(x.shape, np.complex64, stream=stream)
    flat = x.reshape(-1)
    for axis in sorted(axes, reverse=True):
        flat = along(flat, x.shape[axis], math.prod(x.shape[axis + 1 :]), inverse, norm, stream)
    return flat.reshape(x.shape)
