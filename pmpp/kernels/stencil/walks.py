"""The kernel of `in_flight` in three dimensions: planes are asked for long before they are needed.

A block walks along the first axis, as that of `register_tiled`. Planes with their halo come into a ring in shared
memory by asynchronous copies. A plane z is needed twice. When the sums of plane z - R are made, each thread takes its
own cells of it into registers. When those of plane z are made, the threads need their neighbours' cells.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.stencil.cells import at_end, blocks_of, corner, put, vectors_for
from pmpp.runtime import device
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.vector import load128, store128

CAPABILITY = (8, 0)  # of the oldest GPU that has asynchronous copies
LANES, TALL = 16, 16  # threads of a block, each with four cells of a row: a plane has 16 x 64
TOGETHER = 2  # blocks that a multiprocessor has room for
AHEAD, RING, TURN = 3, 8, 3  # planes that are asked for before their turn, in shared memory, in a turn of the loop
PITCH = 4 * LANES + 8  # of a row in shared memory: a vector of halo on either side


def walk_bytes(order: int) -> int:
    """Of shared memory that a block takes: a ring of planes with their halo."""
    return 4 * RING * (TALL + 2 * order) * PITCH


@functools.lru_cache(maxsize=64)
def walk_planes(shape: tuple[int, int, int], order: int) -> int:
    """How many planes a block walks: the number with which the last block ends first.

    Each block also loads 2 R planes before its first sum. It walks at least twice as many, if there are so many.
    """
    columns = blocks_of((1, *shape[1:]), 1, TALL, 4 * LANES)
    together = TOGETHER * device.limits()["multiprocessors"]

    def planes_until_the_end(parts: int) -> int:
        return blocks(columns * parts, together) * (blocks(shape[0], parts) + 2 * order)

    return blocks(shape[0], min(range(1, max(shape[0] // (4 * order), 1) + 1), key=planes_until_the_end))


@functools.lru_cache(maxsize=4)
def walk_for(order: int) -> typing.Any:
    """The kernel for an order, for grids whose rows begin at multiples of 16 bytes."""
    wide, size = 4 * LANES, (TALL + 2 * order) * PITCH
    sides = 2 * TALL
    edges = sides + 2 * order * LANES  # vectors of halo, at most one a thread
    held, vectors = 4 * (2 * order + TURN), RING * size // 4
    flying = AHEAD - 1
    load_four, _ = vectors_for(True)

    @cuda.jit(device=True)
    def place(z):
        """Where plane z begins in the ring."""
        return np.int32(z & (RING - 1)) * size

    @cuda.jit(device=True)
    def fetch(shared, x, z, last, mine, cell, inside, halo, halo_cell):
        """Start to copy the thread's own cells of plane z + order, and its part of the halo of plane z."""
        if z < last:
            plane = x.shape[1] * x.shape[2]
            if inside and z + order < x.shape[0]:
                copy_async(shared, place(z + order) + mine, x, (z + order) * plane + cell, 4)
            if halo >= 0:
                copy_async(shared, place(z) + halo, x, z * plane + halo_cell, 4)
        commit_copies()  # a group a plane, whether there is something in it or not

    def plane_for(k: int) -> typing.Any:
        """All that a thread does for plane k of a turn, whose cells have place k + R among those in registers."""
        own, newest = 4 * (order + k), 4 * (2 * order + k)

        @cuda.jit(device=True)
        def sum_plane(shared, x, out, c, walk, z, last, mine, cell, inside, halo, halo_cell, at_side):
            row, total = cuda.local.array(12, np.float32), cuda.local.array(4, np.float32)
            here = place(z) + mine
            wait_copies(flying)  # the oldest group has come
            cuda.syncthreads()  # those of all threads have; and nobody needs plane z - 1 any more
            put(walk, newest, load128(shared, place(z + order) + mine))
            fetch(shared, x, z + AHEAD, last, mine, cell, inside, halo, halo_cell)
            put(row, 0, load128(shared, here - 4))
            put(row, 8, load128(shared, here + 4))
            for j in range(4):
                row[4 + j] = walk[own + j]
                total[j] = c[0] * row[4 + j]
            for d in range(1, order + 1):
                up, down = load128(shared, here - d * PITCH), load128(shared, here + d * PITCH)
                for j in range(4):
                    near = walk[own - 4 * d + j] + walk[own + 4 * d + j] + (row[4 + j - d] + row[4 + j + d])
                    near += up[j] + down[j]
                    total[j] += c[d] * near
            at_top = at_end(z, x.shape[0], order)
            for j in range(4):
                if at_top or at_side[j]:
                    total[j] = row[4 + j]
            if inside:
                at = z * x.shape[1] * x.shape[2] + cell
                store128(out, at, (total[0], total[1], total[2], total[3]))

        return sum_plane

    first_plane, second_plane, third_plane = (plane_for(k) for k in range(TURN))

    @cuda.jit
    def walk_kernel(x, out, c, deep):
        shared = cuda.shared.array(0, np.float32, alignment=16)  # a ring: plane z has place z % RING
        walk = cuda.local.array(held, np.float32)  # in registers: this thread's cells on 2 R + TURN planes
        tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
        depth, height, width = x.shape
        front, top, left = corner(x, deep, TALL, wide)
        y, w = top + ty, left + 4 * tx
        inside = y < height and w < width
        cell, mine = y * width + w, np.int32((ty + order) * PITCH + 4 + 4 * tx)  # within a plane, here and there
        # The vector of halo that this thread copies: beside the tile, or above or below it, if it is in the grid.
        thread = ty * LANES + tx
        halo_y, halo_w = thread // 2, wide if thread % 2 else -4
        if thread >= sides:
            line = (thread - sides) // LANES
            halo_y, halo_w = line - order if line < order else line - order + TALL, 4 * tx
        halo = np.int32((halo_y + order) * PITCH + 4 + halo_w)
        halo_y, halo_w = top + halo_y, left + halo_w
        halo_cell = halo_y * width + halo_w
        if thread >= edges or halo_y < 0 or halo_y >= height or halo_w < 0 or halo_w >= width:
            halo = np.int32(-1)
        edge = at_end(y, height, order)
        at_side = (
            edge or at_end(w, width, order),
            edge or at_end(w + 1, width, order),
            edge or at_end(w + 2, width, order),
            edge or at_end(w + 3, width, order),
        )
        # What is outside the grid is never copied. No sum needs it, but it is loaded, and must have been written.
        for i in range(thread, vectors, LANES * TALL):
            store128(shared, 4 * i, (np.float32(0), np.float32(0), np.float32(0), np.float32(0)))
        cuda.syncthreads()
        for k in range(2 * order):
            put(walk, 4 * k, load_four(x, front - order + k, y, w))
        for k in range(order):
            i = 4 * (order + k)
            store128(shared, place(front + k) + mine, (walk[i], walk[i + 1], walk[i + 2], walk[i + 3]))
        last = min(front + deep, depth)
        for k in range(AHEAD):
            fetch(shared, x, front + k, last, mine, cell, inside, halo, halo_cell)
        for z in range(front, last, TURN):
            first_plane(shared, x, out, c, walk, z, last, mine, cell, inside, halo, halo_cell, at_side)
            if z + 1 < last:
                second_plane(shared, x, out, c, walk, z + 1, last, mine, cell, inside, halo, halo_cell, at_side)
            if z + 2 < last:
                third_plane(shared, x, out, c, walk, z + 2, last, mine, cell, inside, halo, halo_cell, at_side)
            if z + TURN < last:
                for k in range(8 * order):
                    walk[k] = walk[k + 4 * TURN]

    return walk_kernel
