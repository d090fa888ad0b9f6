"""Jacobi's method on a plate: each inner cell becomes the mean of its four neighbours, on one GPU or several.

A step reads the array ``old`` and writes ``new``. Each is float32 of shape (rows + 2, columns). The first and the last
row and column are not written: they are the fixed border of the plate, or a *halo*, which has rows of the GPU next
door. All kernels add the same four numbers in the same order, ``(up + down) + (left + right)``, and a quarter of a
float32 is exact. So every kernel gives the same bits, and so does a plate that is cut into parts.

`cell_kernel` has a thread for each cell of a rectangle, and `space_kernel` for each cell of a box in three dimensions,
where a cell becomes the mean of six. `step_for` makes the kernel for whole plates, whose threads
walk down the rows. `peer_step_for` makes the same kernel for a part of a plate: its blocks also store border rows into
the arrays of the GPUs above and below, and wait for theirs.

Source: PMPP 4e sections 8.1 and 20.2; 5e chapter 23.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_max, blocks
from pmpp.runtime.system import load_acquire_system, store_release_system
from pmpp.runtime.vector import load128, store128

ABOVE, BELOW = 1, 2  # bits of `sides`: where a part has a neighbour
QUARTER, SIXTH = np.float32(1 / 4), np.float32(1 / 6)

# ----------------------------------------------------------------------------------------------------- a thread a cell

TILE = (8, 32)  # threads of a block, as rows and columns


@cuda.jit
def cell_kernel(old, new, change, top, bottom, left, right):
    """Cells of rows top to bottom - 1, columns left to right - 1. ``change``, if it has a cell, gets the largest."""
    y = top + cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    w = left + cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if y < bottom and w < right:
        mean = ((old[y - 1, w] + old[y + 1, w]) + (old[y, w - 1] + old[y, w + 1])) * QUARTER
        new[y, w] = mean
        if change.size:
            cuda.atomic.max(change, 0, abs(mean - old[y, w]))


@cuda.jit
def space_kernel(old, new, change, top, bottom, left, right):
    """The same in three dimensions: top to right are of the first two axes, and all inner cells of the third."""
    z = top + cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z
    y = left + cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    w = 1 + cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if z < bottom and y < right and w < old.shape[2] - 1:
        near = (old[z - 1, y, w] + old[z + 1, y, w]) + (old[z, y - 1, w] + old[z, y + 1, w])
        mean = (near + (old[z, y, w - 1] + old[z, y, w + 1])) * SIXTH
        new[z, y, w] = mean
        if change.size:
            cuda.atomic.max(change, 0, abs(mean - old[z, y, w]))


@cuda.jit
def copy_kernel(source, target):
    """Copy a rectangle, such as a column of a plate, whose cells are far apart, to an array where they are not."""
    y = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    w = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if y < source.shape[0] and w < source.shape[1]:
        target[y, w] = source[y, w]


@cuda.jit
def copy_space_kernel(source, target):
    """The same for a box."""
    z = cuda.blockIdx.z * cuda.blockDim.z + cuda.threadIdx.z
    y = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    w = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if z < source.shape[0] and y < source.shape[1] and w < source.shape[2]:
        target[z, y, w] = source[z, y, w]


def tiles(rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and block for a rectangle of cells.

    >>> tiles(9, 33)
    ((2, 2), (32, 8))
    """
    return (blocks(columns, TILE[1]), blocks(rows, TILE[0])), TILE[::-1]


def boxes(planes: int, rows: int, columns: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block for a box of cells.

    >>> boxes(3, 9, 33)
    ((2, 3, 2), (32, 4, 2))
    """
    return (blocks(columns, 32), blocks(rows, 4), blocks(planes, 2)), (32, 4, 2)


# ------------------------------------------------------------------------------------------- threads walk down the rows

THREADS = 256  # of a block, which has a row of 1024 cells
ROWS = 16  # that a block walks down


@functools.lru_cache(maxsize=8)
def walk_for(aligned: bool, changes: bool, rows: int = ROWS) -> typing.Any:
    """What `step_for` and `peer_step_for` share: a device function that computes a strip of rows.

    Args:
        aligned: whether all rows of all arrays begin at multiples of 16 bytes.
        changes: whether to return the largest change of this thread's cells.
        rows: of a strip.
    """

    @cuda.jit(device=True)
    def four(x, y, w):
        """Four cells of row y from column w on, a multiple of 4; 0 for what is beyond the last column."""
        nothing = np.float32(0)
        a, b, c, d = nothing, nothing, nothing, nothing
        if w < x.shape[1]:
            if aligned:
                a, b, c, d = load128(x, y * x.shape[1] + w)
            else:
                a = x[y, w]
                b = x[y, w + 1] if w + 1 < x.shape[1] else nothing
                c = x[y, w + 2] if w + 2 < x.shape[1] else nothing
                d = x[y, w + 3] if w + 3 < x.shape[1] else nothing
        return a, b, c, d

    @cuda.jit(device=True)
    def put_four(x, y, w, a, b, c, d):
        """Store four cells of row y, but for the first and the last column of the plate."""
        last = x.shape[1] - 1
        if aligned and w > 0 and w + 4 <= last:
            store128(x, y * x.shape[1] + w, (a, b, c, d))
        else:
            if w > 0 and w < last:
                x[y, w] = a
            if w + 1 < last:
                x[y, w + 1] = b
            if w + 2 < last:
                x[y, w + 2] = c
            if w + 3 < last:
                x[y, w + 3] = d

    @cuda.jit(device=True)
    def largest(w, last, most, a, b, c, d):
        """The largest change of four cells that are inner ones, and of ``most``."""
        most = max(most, a) if w > 0 and w < last else most
        most = max(most, b) if w + 1 < last else most
        most = max(most, c) if w + 2 < last else most
        return max(most, d) if w + 3 < last else most

    @cuda.jit(device=True)
    def row(old, new, y, w, up, mid, down, most):
        """New cells of row y from three old rows; ``mid`` is row y. Returns the largest change so far."""
        last, lane = old.shape[1] - 1, cuda.laneid
        # The cells to the left and to the right belong to the lanes next door, or to another warp.
        before, behind = cuda.shfl_up_sync(FULL_WARP, mid[3], 1), cuda.shfl_down_sync(FULL_WARP, mid[0], 1)
        if lane == 0 and w > 0 and w - 1 <= last:
            before = old[y, w - 1]
        if lane == 31 and w + 4 <= last:
            behind = old[y, w + 4]
        a = ((up[0] + down[0]) + (before + mid[1])) * QUARTER
        b = ((up[1] + down[1]) + (mid[0] + mid[2])) * QUARTER
        c = ((up[2] + down[2]) + (mid[1] + mid[3])) * QUARTER
        d = ((up[3] + down[3]) + (mid[2] + behind)) * QUARTER
        put_four(new, y, w, a, b, c, d)
        if changes:
            most = largest(w, last, most, abs(a - mid[0]), abs(b - mid[1]), abs(c - mid[2]), abs(d - mid[3]))
        return most

    @cuda.jit(device=True)
    def walk(old, new, top, w):
        """Compute the strip from row ``top`` on, columns w to w + 3. All threads of the warp have to call it.

        Two rows are loaded before one is stored. The compiler cannot know that ``new`` is not ``old``, so it moves no
        load before a store, and with one row a thread would wait for memory twice as often.
        """
        most = np.float32(0)
        bottom = min(top + rows, old.shape[0] - 1)
        up, mid = four(old, top - 1, w), four(old, top, w)
        for y in range(top, bottom - 1, 2):
            down, below = four(old, y + 1, w), four(old, y + 2, w)
            most = row(old, new, y, w, up, mid, down, most)
            most = row(old, new, y + 1, w, mid, down, below, most)
            up, mid = down, below
        if (bottom - top) % 2:
            most = row(old, new, bottom - 1, w, up, mid, four(old, bottom, w), most)
        return most

    @cuda.jit(device=True)
    def give(x, y, target, row, w):
        """Copy the cells that this thread has written in row y to a row of another array."""
        a, b, c, d = four(x, y, w)
        put_four(target, row, w, a, b, c, d)

    return walk, give


@cuda.jit(device=True)
def keep_largest(change, most):
    """The largest number of a block's threads into ``change[0]``. All threads have to call it."""
    most = block_max(most, cuda.shared.array(32, np.float32))
    if cuda.threadIdx.x == 0:
        cuda.atomic.max(change, 0, most)


@functools.lru_cache(maxsize=8)
def step_for(aligned: bool, changes: bool, rows: int = ROWS) -> typing.Any:
    """The kernel for a whole plate: blocks of `THREADS`, as many as `strips_of` says. See `walk_for`."""
    walk, _ = walk_for(aligned, changes, rows)

    @cuda.jit
    def step_kernel(old, new, change):
        across = (old.shape[1] + 4 * THREADS - 1) // (4 * THREADS)
        strip = cuda.blockIdx.x // across
        w = (cuda.blockIdx.x - strip * across) * 4 * THREADS + 4 * cuda.threadIdx.x
        most = walk(old, new, 1 + strip * rows, w)
        if changes:
            keep_largest(change, most)

    return step_kernel


# ---------------------------------------------------------------------------------------------------- stores to a peer


@cuda.jit(device=True)
def wait_for(flags, i, value, limit):
    """The block goes on when a flag has reached a value. After ``limit`` looks the last flag says that it gave up."""
    if cuda.threadIdx.x == 0:
        looks = 0
        while load_acquire_system(flags, i) < value and looks < limit:
            looks += 1
        if looks == limit:
            store_release_system(flags, flags.size - 1, 1)
    cuda.syncthreads()


@functools.lru_cache(maxsize=8)
def peer_step_for(aligned: bool, changes: bool, rows: int = ROWS) -> typing.Any:
    """The kernel for a part of a plate, whose halo rows are written by the GPUs next door.

    It takes ``old, new, change`` as the kernel of `step_for` does. ``above`` and ``below`` are the arrays ``new`` of
    the neighbours, and ``flags_above`` and ``flags_below`` their flags. ``sides`` says which of them there are, and
    ``step`` counts from 0. The blocks of the border strips come first: while they wait, the others compute.

    Flags are int32, and 2 ``across`` + 1 for ``across`` blocks in a row. Flag b says from how many steps the border of
    the neighbour above has arrived in the columns of block b; flag across + b, from below. The last one is not 0 if a
    block gave up.

    A flag says two things: the border of the last step is here, and the neighbour has read the halo of the step before,
    since it did so before it wrote. There are two arrays, so the halo that is written next is the one that was read.
    """
    walk, give = walk_for(aligned, changes, rows)

    @cuda.jit
    def peer_step_kernel(old, new, change, above, below, flags, flags_above, flags_below, sides, step, limit):
        across = (old.shape[1] + 4 * THREADS - 1) // (4 * THREADS)
        strips = (old.shape[0] - 2 + rows - 1) // rows
        place = cuda.blockIdx.x // across
        column = cuda.blockIdx.x - place * across
        strip = place - 1 if place > 1 else place * (strips - 1)  # the first one, the last one, and those between
        w = column * 4 * THREADS + 4 * cuda.threadIdx.x
        first, last = strip == 0 and sides & ABOVE, strip == strips - 1 and sides & BELOW
        if first:
            wait_for(flags, column, step, limit)
        if last:
            wait_for(flags, across + column, step, limit)
        most = walk(old, new, 1 + strip * rows, w)
        if first:
            give(new, 1, above, above.shape[0] - 1, w)
        if last:
            give(new, new.shape[0] - 2, below, 0, w)
        if first or last:
            cuda.syncthreads()  # all threads of the block have stored before one of them says so
            if cuda.threadIdx.x == 0:
                if first:
                    store_release_system(flags_above, across + column, step + 1)
                if last:
                    store_release_system(flags_below, column, step + 1)
        if changes:
            keep_largest(change, most)

    return peer_step_kernel


def strips_of(rows: int, columns: int, each: int = ROWS) -> int:
    """How many blocks a plate of so many inner rows, and columns in all, takes.

    >>> strips_of(17, 1025)
    4
    """
    return blocks(rows, each) * blocks(columns, 4 * THREADS)


def flags_of(columns: int) -> int:
    """How many flags the kernel of `peer_step_for` needs."""
    return 2 * blocks(columns, 4 * THREADS) + 1
