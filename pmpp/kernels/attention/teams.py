"""What the kernels of `pmpp.kernels.attention.decode` share: teams of eight lanes, each with a key at a time."""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, f0, finite_base
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.common.division import quotient
from pmpp.runtime.vector import load128, widened

TEAM, BLOCK = 8, 128  # lanes that share a key; threads of a block
TEAMS, WARPS = BLOCK // TEAM, BLOCK // 32
MOST_HEADS = 4  # of q, that a block has at a time


@cuda.jit(device=True)
def element(x, row, column, size):
    return widened(x[row * size + column]) if column < size else f0


@cuda.jit(device=True)
def four(x, row, column, size):
    return (
        element(x, row, column, size),
        element(x, row, column + 1, size),
        element(x, row, column + 2, size),
        element(x, row, column + 3, size),
    )


@cuda.jit(device=True)
def eight(x, row, column, size):
    low, high = four(x, row, column, size), four(x, row, column + 4, size)
    return low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]


def loader(width: int, wide: bool) -> typing.Any:
    """A device function that gives ``width`` neighbours of a row as float32, where x has rows of ``size``.

    ``wide``: 16 bytes at once. Beyond the row there are zeros.
    """
    nothing = (f0,) * width

    @cuda.jit(device=True)
    def load(x, row, column, size):
        return widened(load128(x, row * size + column)) if column < size else nothing

    return load if wide else four if width == 4 else eight


@cuda.jit(device=True)
def row_of(table, text, key, group, groups, sizes):
    """Where a key of a text stands in k and v, as a row."""
    turn = quotient(key, sizes.page_times, sizes.page_shift)
    return (np.int64(table[text, turn]) * groups + group) * sizes.page + (key - turn * sizes.page)


@cuda.jit(device=True)
def join_warps(all_highest, all_total, all_sums, highests, totals, means, first_head, some, size):
    """Put together what the warps of a block have left in shared memory for ``some`` heads, and write it."""
    thread = cuda.threadIdx.x
    cuda.syncthreads()
    for h in range(some):
        top = LEAST
        for w in range(WARPS):
            top = max(top, all_highest[w, h])
        weights, added = f0, f0
        for w in range(WARPS):
            keep = cuda.libdevice.exp2f(all_highest[w, h] - finite_base(top))
            weights += all_total[w, h] * keep
            added += all_sums[w, h, thread] * keep
        row = cuda.blockIdx.x * (means.size // (size * cuda.gridDim.x)) + first_head + h
        if thread < size:
            means[row * size + thread] = added / weights if weights != f0 else f0
        if thread == 0 and highests.size:
            highests[row], totals[row] = top, weights


def joiner(heads: int, width: int) -> typing.Any:
    """The function that puts together what the teams of a block have found, and writes it."""
    per_lane = MOST_SIZE // (width * TEAM)

    @cuda.jit(device=True)
    def join_teams(highest, total, sums, highests, totals, means, first_head, some, sizes):
        """``first_head``: the block's first head of q. It has ``some`` of them."""
        all_highest = cuda.shared.array((WARPS, MOST_HEADS), np.float32)
        all_total = cuda.shared.array((WARPS, MOST_HEADS), np.float32)
        all_sums = cuda.shared.array((WARPS, MOST_HEADS, MOST_SIZE), np.float32)
        thread, size = cuda.threadIdx.x, sizes.size
        lane, warp = thread % TEAM, thread // 32
        for h in range(heads):
            for distance in (8, 16):  # the four teams of a warp
                top = max(highest[h], cuda.shfl_xor_sync(FULL_WARP, highest[h], distance))
                keep = cuda.libdevice.exp2f(highest[h] - finite_base(top))
                highest[h], kept = top, total[h] * keep
                total[h] = kept + cuda.shfl_xor_sync(FULL_WARP, kept, distance)
                for c in range(per_lane):
                    for e in range(width):
                        kept = sums[h, c, e] * keep
                        sums[h, c, e] = kept + cuda.shfl_xor_sync(FULL_WARP, kept, distance)
            if thread % 32 < TEAM:
                all_highest[warp, h], all_total[warp, h] = highest[h], total[h]
                for c in range(per_lane):
                    for e in range(width):
                        all_sums[warp, h, width * (lane + TEAM * c) + e] = sums[h, c, e]
        join_warps(all_highest, all_total, all_sums, highests, totals, means, first_head, some, size)

    return join_teams
