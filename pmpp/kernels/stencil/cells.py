"""Where cells of a grid are, and how four of them are moved: what kernels of the stencil room share.

A grid is an array of planes, rows and columns. Blocks are numbered along columns, then rows, then planes.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128


def blocks_of(shape: tuple[int, ...], deep: int, tall: int, wide: int) -> int:
    """How many blocks cover a grid if each has deep x tall x wide cells."""
    return blocks(shape[0], deep) * blocks(shape[1], tall) * blocks(shape[2], wide)


@cuda.jit(device=True)
def corner(x, deep, tall, wide):
    """Plane, row and column of this block's first cell. Blocks are numbered along columns, then rows, then planes."""
    across, down = (x.shape[2] + wide - 1) // wide, (x.shape[1] + tall - 1) // tall
    line = np.int64(cuda.blockIdx.x) // across
    return line // down * deep, line % down * tall, (cuda.blockIdx.x - line * across) * wide


@cuda.jit(device=True)
def at_end(i, n, order):
    """Whether place i of n is one of the outermost ``order``, or outside."""
    return i < order or i >= n - order


@functools.lru_cache(maxsize=2)
def vectors_for(aligned: bool) -> typing.Any:
    """``load_four`` and ``store_four``: one instruction of 128 bits if all rows begin at multiples of 16 bytes."""

    @cuda.jit(device=True)
    def load_four(x, z, y, w):
        """Four cells of a row from column w on, a multiple of 4; 0 for what is outside the grid."""
        nothing = np.float32(0)
        a, b, c, d = nothing, nothing, nothing, nothing
        if z >= 0 and z < x.shape[0] and y >= 0 and y < x.shape[1] and w >= 0 and w < x.shape[2]:
            if aligned:
                a, b, c, d = load128(x, (z * x.shape[1] + y) * x.shape[2] + w)
            else:
                a = x[z, y, w]
                b = x[z, y, w + 1] if w + 1 < x.shape[2] else nothing
                c = x[z, y, w + 2] if w + 2 < x.shape[2] else nothing
                d = x[z, y, w + 3] if w + 3 < x.shape[2] else nothing
        return a, b, c, d

    @cuda.jit(device=True)
    def store_four(out, z, y, w, values):
        if aligned:
            store128(out, (z * out.shape[1] + y) * out.shape[2] + w, (values[0], values[1], values[2], values[3]))
        else:
            for j in range(4):
                if w + j < out.shape[2]:
                    out[z, y, w + j] = values[j]

    return load_four, store_four


def is_aligned(*arrays: typing.Any) -> bool:
    """Whether every row of all arrays begins at a multiple of 16 bytes."""
    return all(a.shape[-1] % 4 == 0 and device.address(a) % 16 == 0 for a in arrays)


@cuda.jit(device=True)
def put(array, first, four):
    """Four values into a local array."""
    array[first], array[first + 1], array[first + 2], array[first + 3] = four
