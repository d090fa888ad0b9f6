"""The kernel of `in_flight` in three dimensions: planes are asked for long before they are needed.

A block walks along the first axis, as that of `register_tiled`. Planes with their halo come into a ring in shared
memory by asynchronous copies. A plane z is needed twice. When the sums of plane z - R are made, each thread takes its
own cells of it into registers. When those of plane z are made, the threads need their neighbours' cells.

A turn of the loop makes as many planes as the ring has, and its code is written out for each of them. So the compiler
knows where in the ring each plane is, and in which registers: neither is worked out, and no register is moved. Planes
come two by two, so that a barrier is enough for both.

Neighbouring blocks read the same halo, and it comes from memory once while they are on about the same plane. Of blocks
of half the size some multiprocessors would have two and others one, and those alone may get ahead of the others. So
blocks are so large that each has a multiprocessor for itself.

Only inner planes are walked. The first and the last R planes of the grid are border, and are copied.
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
LANES, TALL = 16, 32  # threads of a block, each with four cells of a row: a plane has 32 x 64
TOGETHER = 1  # blocks that a multiprocessor has room for, by its registers
AHEAD, RING = 4, 10  # planes that are asked for before their turn; in shared memory, and in a turn of the loop
PITCH = 4 * LANES + 8  # of a row in shared memory: a vector of halo on either side
RESERVED = 1024  # bytes of shared memory that the system takes for each block


class Share(typing.NamedTuple):
    """A thread's share of each plane: its four cells, and the vector of halo that it copies."""

    cell: typing.Any  # of the first cell: its place within a plane of the grid, and of the ring
    place: typing.Any
    inside: typing.Any  # whether the cells are in the grid
    at_side: typing.Any  # of each cell, whether it keeps its value on every plane
    halo_cell: typing.Any  # of the halo: as of the cells
    halo_place: typing.Any
    has_halo: typing.Any  # whether there is halo for this thread, in the grid


def walk_bytes(order: int) -> int:
    """Of shared memory that a block takes: a ring of planes with their halo."""
    return 4 * RING * (TALL + 2 * order) * PITCH


def can_walk(order: int) -> bool:
    """Whether the GPU has asynchronous copies, and room for a ring: some have only 100 KiB a multiprocessor."""
    limits = device.limits()
    room = limits["max_shared_memory_per_multiprocessor"]
    return limits["compute_capability"] >= CAPABILITY and walk_bytes(order) + RESERVED <= room


@functools.lru_cache(maxsize=64)
def walk_planes(shape: tuple[int, int, int], order: int) -> int:
    """How many inner planes a block walks: the number with which the last block ends first.

    Each block also loads 2 R planes before its first sum. It walks at least twice as many, if there are so many.
    """
    inner = shape[0] - 2 * order
    columns = blocks_of((1, *shape[1:]), 1, TALL, 4 * LANES)
    together = TOGETHER * device.limits()["multiprocessors"]

    def planes_until_the_end(parts: int) -> int:
        return blocks(columns * parts, together) * (blocks(inner, parts) + 2 * order)

    return blocks(inner, min(range(1, max(inner // (4 * order), 1) + 1), key=planes_until_the_end))


@functools.lru_cache(maxsize=4)
def walk_for(order: int) -> typing.Any:
    """The kernel for an order, for grids with inner planes whose rows begin at multiples of 16 bytes."""
    wide, size = 4 * LANES, (TALL + 2 * order) * PITCH
    sides = 2 * TALL
    edges = sides + 2 * order * LANES  # vectors of halo, at most one a thread
    held, vectors = 4 * RING, RING * size // 4
    flying = AHEAD // 2 - 1  # pairs
    load_four, _ = vectors_for(True)

    @cuda.jit(device=True)
    def fetch(shared, x, share, k, at, plane):
        """Start to copy a thread's share of the halo of plane k of the ring, and of the cells R planes behind it.

        ``at`` is where plane k begins in the grid.
        """
        if share.inside:
            place = (k + order) % RING * size + share.place
            copy_async(shared, place, x, share.cell + (at + order * plane), 4)
        if share.has_halo:
            copy_async(shared, k % RING * size + share.halo_place, x, share.halo_cell + at, 4)

    def plane_for(k: int) -> typing.Any:
        """The sums of plane k of a turn. In registers are the cells of planes k - R to k + R, and the last come now."""
        here, newest = k * size, (k + order) % RING * size
        column = tuple(4 * ((k + i) % RING) for i in range(2 * order + 1))

        @cuda.jit(device=True)
        def sum_plane(shared, out, c, walk, share, at):
            row, total = cuda.local.array(12, np.float32), cuda.local.array(4, np.float32)
            mine = here + share.place
            put(walk, column[2 * order], load128(shared, newest + share.place))
            put(row, 0, load128(shared, mine - 4))
            put(row, 8, load128(shared, mine + 4))
            for j in range(4):
                row[4 + j] = walk[column[order] + j]
                total[j] = c[0] * row[4 + j]
            for d in range(1, order + 1):
                up, down = load128(shared, mine - d * PITCH), load128(shared, mine + d * PITCH)
                for j in range(4):
                    near = walk[column[order - d] + j] + walk[column[order + d] + j]
                    near += row[4 + j - d] + row[4 + j + d]
                    near += up[j] + down[j]
                    total[j] += c[d] * near
            for j in range(4):
                if share.at_side[j]:
                    total[j] = row[4 + j]
            if share.inside:
                store128(out, share.cell + at, (total[0], total[1], total[2], total[3]))

        return sum_plane

    def planes_from(k: int) -> typing.Any:
        """Planes k, k + 1 and so on of a turn, as far as there are ``left`` from its first plane on."""
        first_plane, second_plane = plane_for(k), plane_for(k + 1)

        @cuda.jit(device=True)
        def two_planes(shared, x, out, c, walk, share, at, plane, left):
            wait_copies(flying)  # the oldest pair has come
            cuda.syncthreads()  # those of all threads have; and nobody needs the two planes before any more
            if left > k + AHEAD:
                fetch(shared, x, share, k + AHEAD, at + AHEAD * plane, plane)
            if left > k + AHEAD + 1:
                fetch(shared, x, share, k + AHEAD + 1, at + (AHEAD + 1) * plane, plane)
            commit_copies()  # a group a pair, whether there is something in it or not
            first_plane(shared, out, c, walk, share, at)
            if left > k + 1:
                second_plane(shared, out, c, walk, share, at + plane)

        if k + 2 == RING:
            return two_planes
        further_planes = planes_from(k + 2)

        @cuda.jit(device=True)
        def planes(shared, x, out, c, walk, share, at, plane, left):
            two_planes(shared, x, out, c, walk, share, at, plane, left)
            if left > k + 2:
                further_planes(shared, x, out, c, walk, share, at + 2 * plane, plane, left)

        return planes

    make_turn = planes_from(0)

    @cuda.jit(device=True)
    def share_of(shape, y, w):
        """The share of the thread whose first cell is in row y and column w."""
        height, width = shape[1], shape[2]
        tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
        # The vector of halo is beside the tile, or above or below it.
        thread = ty * LANES + tx
        halo_y, halo_w = thread // 2, wide if thread % 2 else -4
        if thread >= sides:
            line = (thread - sides) // LANES
            halo_y, halo_w = line - order if line < order else line - order + TALL, 4 * tx
        halo_place = np.int32((halo_y + order) * PITCH + 4 + halo_w)
        halo_y, halo_w = halo_y + y - ty, halo_w + w - 4 * tx
        has_halo = thread < edges and halo_y >= 0 and halo_y < height and halo_w >= 0 and halo_w < width
        edge = at_end(y, height, order)
        at_side = (
            edge or at_end(w, width, order),
            edge or at_end(w + 1, width, order),
            edge or at_end(w + 2, width, order),
            edge or at_end(w + 3, width, order),
        )
        place, inside = np.int32((ty + order) * PITCH + 4 + 4 * tx), y < height and w < width
        return Share(y * width + w, place, inside, at_side, halo_y * width + halo_w, halo_place, has_halo)

    @cuda.jit
    def walk_kernel(x, out, c, deep):
        shared = cuda.shared.array(0, np.float32, alignment=16)  # a ring: plane k of a turn has place k
        walk = cuda.local.array(held, np.float32)  # in registers, the thread's cells: plane k - R of a turn has place k
        depth, plane = x.shape[0], x.shape[1] * x.shape[2]
        front, top, left = corner(x, deep, TALL, wide)
        front += order
        y, w = top + cuda.threadIdx.y, left + 4 * np.int64(cuda.threadIdx.x)
        share = share_of(x.shape, y, w)
        # What is outside the grid is never copied. No sum needs it, but it is loaded, and must have been written.
        for i in range(cuda.threadIdx.y * LANES + cuda.threadIdx.x, vectors, LANES * TALL):
            store128(shared, 4 * i, (np.float32(0), np.float32(0), np.float32(0), np.float32(0)))
        cuda.syncthreads()
        for k in range(2 * order):
            put(walk, 4 * k, load_four(x, front - order + k, y, w))
        for k in range(order):
            i, j = 4 * k, 4 * (order + k)
            if share.inside and front == order:
                store128(out, share.cell + k * plane, (walk[i], walk[i + 1], walk[i + 2], walk[i + 3]))
            store128(shared, k * size + share.place, (walk[j], walk[j + 1], walk[j + 2], walk[j + 3]))
        at, planes = front * plane, np.int32(min(deep, depth - order - front))
        for k in range(AHEAD):
            if k < planes:
                fetch(shared, x, share, k, at + k * plane, plane)
            if k % 2:
                commit_copies()
        for done in range(np.int32(0), planes, np.int32(RING)):
            make_turn(shared, x, out, c, walk, share, at, plane, np.int32(planes - done))
            at += RING * plane
        if share.inside and front + planes == depth - order:
            for k in range(order):
                last = share.cell + (depth - order + k) * plane
                store128(out, last, load128(shared, (planes + k) % RING * size + share.place))

    return walk_kernel
