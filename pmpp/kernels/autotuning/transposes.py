"""Transposes of any tile: a kernel factory, and what has to be known to tune it.

Chapter: notebooks/37_autotuning.ipynb.  PMPP 4e ch. 6.

The work is bound by memory. The kernel is `coarsened` of chapter 16, with its three numbers left open: the side of the
tile, how many rows of threads a block has, and how many unused columns there are in the tile.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.transpose import ladder as transpose
from pmpp.kernels.transpose.ladder import corner
from pmpp.lab.measure.arrays import library_of, normal
from pmpp.lab.measure.tune import Probe, Space, Subject, at_most, near_power
from pmpp.runtime import device


class Configuration(typing.NamedTuple):
    """A block transposes ``side`` x ``side`` elements with ``side`` x ``rows`` threads.

    Rows of the tile in shared memory have ``pad`` elements that nobody uses.
    """

    side: int
    rows: int
    pad: int


@functools.cache
def transpose_kernel(side: int, rows: int, pad: int) -> typing.Any:
    """The kernel ``(x, out)`` of a configuration: out is x, transposed."""
    each, pitch = side // rows, side + pad

    @cuda.jit
    def kernel(x, out):
        tile = cuda.shared.array((side, pitch), x.dtype)
        values = cuda.local.array(each, x.dtype)
        tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
        top, left = corner(side)
        row, last, column = top + ty, x.shape[0] - 1, min(left + tx, x.shape[1] - 1)
        for i in range(each):
            values[i] = x[min(row + i * rows, last), column]
        for i in range(each):
            tile[ty + i * rows, tx] = values[i]
        cuda.syncthreads()
        row, column = left + ty, top + tx
        for i in range(each):
            if row + i * rows < out.shape[0] and column < out.shape[1]:
                out[row + i * rows, column] = tile[tx, ty + i * rows]

    return kernel


def run(configuration: Configuration, x: typing.Any, out: typing.Any) -> typing.Any:
    """Launch the kernel of a configuration."""
    side, rows, pad = configuration
    transpose_kernel(side, rows, pad)[transpose.tiles_of(x.shape, side), (side, rows)](x, out)
    return out


# ------------------------------------------------------------------------------------------------------- what can run


def equal_shares(c: Configuration) -> bool:
    """All threads move equally many elements: the rows of threads divide the side."""
    return c.side % c.rows == 0


def whole_warps(c: Configuration) -> bool:
    """A block has whole warps: lanes beyond the last thread would be paid for, and do nothing."""
    return c.side * c.rows % 32 == 0


SPACE = Space(
    Configuration,
    {"side": (8, 16, 32, 64, 128), "rows": (2, 4, 8, 16, 32), "pad": (0, 1)},
    [
        equal_shares,
        whole_warps,
        at_most("threads", lambda c: c.side * c.rows, 1024),
        at_most("shared_bytes", lambda c: 4 * c.side * (c.side + c.pad), 48 * 1024),
    ],
)


# ------------------------------------------------------------------------------------------------------ what is tried


def make(shape: tuple[int, ...], seed: int) -> tuple:
    """A matrix of normally distributed numbers."""
    return (normal(shape, seed),)


def output(shape: tuple[int, ...]) -> typing.Any:
    """A place for the result."""
    return device.empty(shape[::-1], np.float32)


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Elements are moved, so each must be the very same."""
    if result.shape != x.shape[::-1]:
        return math.inf, 0.0
    return float(abs(library_of(result).subtract(result, x.T)).max()), 0.0


def probes(c: Configuration, shape: tuple[int, ...]) -> list[Probe]:
    """One tile, as often as the matrix has some."""
    return [Probe((c.side, c.side), blocks(shape[0], c.side) * blocks(shape[1], c.side))]


def registers(c: Configuration) -> int:
    """What a thread has in flight, and about 24 for indices."""
    return 24 + c.side // c.rows


def shape_class(shape: tuple[int, ...]) -> str:
    """About how many rows and columns: short sides leave tiles half empty, and small matrices stay in the cache."""
    return " x ".join(str(near_power(extent)) for extent in shape)


SUBJECT = Subject(
    name="transposes",
    source="pmpp/kernels/autotuning/transposes.py",
    dtype="float32",
    space=SPACE,
    make=make,
    output=output,
    run=run,
    verify=verify,
    shapes=((1, 1), (33, 70), (130, 5)),
    probes=probes,
    registers=registers,
    cost=lambda shape: transpose.cost(*shape),
    shape_class=shape_class,
    measured=((16384, 16384), (1024, 1024), (65536, 64)),
)
