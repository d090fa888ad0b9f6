"""Kernels with bugs that people write: one for each way to be wrong, with the launch that shows it.

Chapter: notebooks/18_when_a_kernel_is_wrong.ipynb.

`CASES` has them in the order of the chapter. A `Bug` has a kernel, the smallest launch that shows the bug, and the
result that the kernel should have. The chapter, its tests and the measurement on a GPU use the same launches. All
numbers are small integers, so that a right result is equal to the expected one and no tolerance hides anything.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable

import numpy as np

from pmpp import cuda

__all__ = ["CASES", "Bug", "add_asserting", "announce", "bug"]

BLOCK = 256  # threads a block, and elements of a block's part
TILE = 32  # rows and columns of a tile
BINS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Bug:
    """A kernel that is wrong, and the launch that shows it.

    name      what is wrong, in the words of the chapter
    kernel    launched as ``kernel[grid, block](*make(new))``; its last argument is the result
    mended    the nearest kernel that is right
    make      ``make(new)`` gives the arguments; ``new(shape, dtype)`` allocates device memory that nobody writes
    expected  the result that the kernel should have, given the arguments as they were before the launch
    hangs     a GPU never comes to an end with it
    """

    name: str
    kernel: typing.Any
    mended: typing.Any
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    make: Callable[[Callable], tuple]
    expected: Callable[..., np.ndarray]
    hangs: bool = False

    @property
    def function(self) -> Callable:
        """The kernel as a plain function."""
        return getattr(self.kernel, "py_func", self.kernel)


def _ramp(*shape: int) -> np.ndarray:
    """0, 1, 2, ... up to 250, and again: sums of some thousand of them are exact in float32."""
    return (np.arange(np.prod(shape)) % 251).astype(np.float32).reshape(shape)


# -------------------------------------------------------------------------------------------------- outside of an array


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    out[i] = x[i] + y[i]


@cuda.jit
def add_mended(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def column_of(flat, width, column, out):
    row = cuda.grid(1)
    if row < out.size:
        pitch = width * flat.itemsize
        out[row] = flat[row * pitch + column]


@cuda.jit
def column_of_mended(flat, width, column, out):
    row = cuda.grid(1)
    if row < out.size:
        out[row] = flat[row * width + column]


# ------------------------------------------------------------------------------------------------ inside, and not right


@cuda.jit
def transpose(x, out):
    tile = cuda.shared.array((TILE, TILE), np.float32)
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        tile[cuda.threadIdx.y, cuda.threadIdx.x] = x[row, column]
    cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = tile[cuda.threadIdx.x, cuda.threadIdx.y]


@cuda.jit
def transpose_mended(x, out):
    tile = cuda.shared.array((TILE, TILE), np.float32)
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        tile[cuda.threadIdx.y, cuda.threadIdx.x] = x[row, column]
    cuda.syncthreads()
    row = cuda.blockIdx.x * TILE + cuda.threadIdx.y
    column = cuda.blockIdx.y * TILE + cuda.threadIdx.x
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = tile[cuda.threadIdx.x, cuda.threadIdx.y]


@cuda.jit
def row_starts(width, out):
    row = cuda.grid(1)
    if row < out.size:
        start = np.int32(row * width)
        out[row] = start


@cuda.jit
def row_starts_mended(width, out):
    row = cuda.grid(1)
    if row < out.size:
        start = np.int64(row) * width
        out[row] = start


# ---------------------------------------------------------------------------------------------------------------- order


@cuda.jit
def reverse(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i]
    out[i] = part[BLOCK - 1 - thread]


@cuda.jit
def reverse_mended(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i]
    cuda.syncthreads()
    out[i] = part[BLOCK - 1 - thread]


@cuda.jit
def neighbour_sums(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread = cuda.threadIdx.x
    total = np.float32(0)
    for first in range(0, x.shape[1], BLOCK):
        part[thread] = x[cuda.blockIdx.x, first + thread]
        cuda.syncthreads()
        total += part[thread] + part[(thread + 1) % BLOCK]
    out[cuda.blockIdx.x, thread] = total


@cuda.jit
def neighbour_sums_mended(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread = cuda.threadIdx.x
    total = np.float32(0)
    for first in range(0, x.shape[1], BLOCK):
        part[thread] = x[cuda.blockIdx.x, first + thread]
        cuda.syncthreads()
        total += part[thread] + part[(thread + 1) % BLOCK]
        cuda.syncthreads()
    out[cuda.blockIdx.x, thread] = total


@cuda.jit
def count(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        bins[values[i]] += 1


@cuda.jit
def count_mended(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)


# ------------------------------------------------------------------------------------------------------------- barriers


@cuda.jit
def block_sums(x, sums):
    part = cuda.shared.array(BLOCK, np.float32)
    thread = cuda.threadIdx.x
    part[thread] = x[cuda.grid(1)]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] += part[thread + stride]
            cuda.syncthreads()
        stride //= 2
    if thread == 0:
        sums[cuda.blockIdx.x] = part[0]


@cuda.jit
def block_sums_mended(x, sums):
    part = cuda.shared.array(BLOCK, np.float32)
    thread = cuda.threadIdx.x
    part[thread] = x[cuda.grid(1)]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] += part[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        sums[cuda.blockIdx.x] = part[0]


@cuda.jit
def meet(x, arrived, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    cuda.atomic.add(arrived, 0, 1)
    while cuda.atomic.add(arrived, 0, 0) < cuda.gridsize(1):
        pass
    out[i] = x[x.size - 1 - i]


@cuda.jit
def meet_mended(x, arrived, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[x.size - 1 - i]


# ---------------------------------------------------------------------------------------------- what nobody has written


@cuda.jit
def count_in_shared(values, bins):
    mine = cuda.shared.array(BINS, np.int32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(mine, values[i], 1)
    cuda.syncthreads()
    if thread < BINS:
        cuda.atomic.add(bins, thread, mine[thread])


@cuda.jit
def count_in_shared_mended(values, bins):
    mine = cuda.shared.array(BINS, np.int32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if thread < BINS:
        mine[thread] = 0
    cuda.syncthreads()
    if i < values.size:
        cuda.atomic.add(mine, values[i], 1)
    cuda.syncthreads()
    if thread < BINS:
        cuda.atomic.add(bins, thread, mine[thread])


@cuda.jit
def accumulate(x, out):
    i = cuda.grid(1)
    if i < x.shape[1]:
        for row in range(x.shape[0]):
            out[i] += x[row, i]


@cuda.jit
def accumulate_mended(x, out):
    i = cuda.grid(1)
    if i < x.shape[1]:
        total = np.float32(0)
        for row in range(x.shape[0]):
            total += x[row, i]
        out[i] = total


# ----------------------------------------------------------------------------------------------------- right, and slow


@cuda.jit
def halve(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 0.5 * x[i]


@cuda.jit
def halve_mended(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = np.float32(0.5) * x[i]


# ------------------------------------------------------------------------------------------------------------- the list


def _values(n: int) -> np.ndarray:
    return (np.arange(n) * 7 % 11).astype(np.int32)  # 0 to 10: five of the bins stay empty


def _counted(values: np.ndarray, bins: np.ndarray) -> np.ndarray:
    return np.bincount(values, minlength=BINS).astype(np.int32)


def _reversed_parts(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    return x.reshape(-1, BLOCK)[:, ::-1].reshape(-1)


def _neighbour_sums(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    parts = x.reshape(x.shape[0], -1, BLOCK)
    return (parts + np.roll(parts, -1, axis=2)).sum(axis=1)


CASES = (
    Bug(
        "missing guard",
        add,
        add_mended,
        4,
        BLOCK,
        lambda new: (_ramp(1000), _ramp(1000), new(1000, np.float32)),
        lambda x, y, out: x + y,
    ),
    Bug(
        "bytes for elements",
        column_of,
        column_of_mended,
        8,
        BLOCK,
        lambda new: (_ramp(2048 * 2048), 2048, 5, new(2048, np.float32)),
        lambda flat, width, column, out: flat.reshape(-1, width)[:, column],
    ),
    Bug(
        "wrong index",
        transpose,
        transpose_mended,
        (3, 3),
        (TILE, TILE),
        lambda new: (_ramp(96, 96), new((96, 96), np.float32)),
        lambda x, out: x.T,
    ),
    Bug(
        "integer overflow",
        row_starts,
        row_starts_mended,
        16,
        BLOCK,
        lambda new: (2**20, new(4096, np.int64)),
        lambda width, out: np.arange(4096, dtype=np.int64) * width,
    ),
    Bug(
        "missing barrier",
        reverse,
        reverse_mended,
        64,
        BLOCK,
        lambda new: (_ramp(64 * BLOCK), new(64 * BLOCK, np.float32)),
        _reversed_parts,
    ),
    Bug(
        "missing second barrier",
        neighbour_sums,
        neighbour_sums_mended,
        16,
        BLOCK,
        lambda new: (_ramp(16, 16 * BLOCK), new((16, BLOCK), np.float32)),
        _neighbour_sums,
    ),
    Bug(
        "lost updates",
        count,
        count_mended,
        64,
        BLOCK,
        lambda new: (_values(64 * BLOCK - 100), np.zeros(BINS, np.int32)),
        _counted,
    ),
    Bug(
        "barrier in a branch",
        block_sums,
        block_sums_mended,
        4,
        BLOCK,
        lambda new: (_ramp(4 * BLOCK), new(4, np.float32)),
        lambda x, sums: x.reshape(-1, BLOCK).sum(axis=1),
    ),
    Bug(
        "unset shared memory",
        count_in_shared,
        count_in_shared_mended,
        4,
        BLOCK,
        lambda new: (_values(1000), np.zeros(BINS, np.int32)),
        _counted,
    ),
    Bug(
        "unset global memory",
        accumulate,
        accumulate_mended,
        4,
        BLOCK,
        lambda new: (_ramp(5, 1000), new(1000, np.float32)),
        lambda x, out: x.sum(axis=0),
    ),
    Bug(
        "accidental float64",
        halve,
        halve_mended,
        4,
        BLOCK,
        lambda new: (_ramp(1000), new(1000, np.float32)),
        lambda x, out: np.float32(0.5) * x,
    ),
    Bug(
        "waits for ever",
        meet,
        meet_mended,
        2,
        32,
        lambda new: (_ramp(40), np.zeros(1, np.int32), new(40, np.float32)),
        lambda x, arrived, out: x[::-1],
        hangs=True,
    ),
)


def bug(name: str) -> Bug:
    """The bug of that name. Raises ValueError, with the names that there are, if there is none."""
    found = {one.name: one for one in CASES}
    if name not in found:
        raise ValueError(f"name must be one of {', '.join(found)}, was {name!r}")
    return found[name]


# --------------------------------------------------------------------------------------------- two ways to ask a kernel


@cuda.jit
def add_asserting(x, y, out):
    i = cuda.grid(1)
    assert i < out.size
    out[i] = x[i] + y[i]


@cuda.jit
def announce(x):
    i = cuda.grid(1)
    if i % 32 == 0:
        print("block", cuda.blockIdx.x, "warp", cuda.threadIdx.x // 32, "x =", x[i])
