"""The kernel of decoding's last rung: keys and values arrive by asynchronous copies while others are used.

It stands apart from `pmpp.kernels.attention.decode` because it needs a GPU that has these copies (chapter 40).
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, f0, finite_base
from pmpp.kernels.attention.teams import BLOCK, MOST_HEADS, TEAM, TEAMS, WARPS, joiner, loader, row_of
from pmpp.kernels.common import FULL_WARP
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.vector import load128, widened

CAPABILITY = (8, 0)  # of the oldest GPU that has asynchronous copies
TURN = 2  # keys that a team has at a time
RING = 64 * 1024  # bytes of shared memory for what is on its way
SHARED = RING + 4 * WARPS * MOST_HEADS * (MOST_SIZE + 2)  # with what is there to join the warps


@functools.cache
def ahead_kernel(heads: int, width: int) -> typing.Any:
    """As `part_kernel`, for rows that begin at multiples of 16 bytes. Its launch gives it ``RING`` bytes.

    A weight below 2^-126 counts as 0 (``fastmath``).
    """
    per_lane, load = MOST_SIZE // (width * TEAM), loader(width, True)
    vectors = 2 * TURN * per_lane  # of a thread in a stage: of keys and values
    stages = RING // (16 * BLOCK * vectors)
    others = stages - 1
    join_teams = joiner(heads, width)

    @cuda.jit(device=True)
    def fetch(ring, stage, k, v, table, first, end, text, group, groups, sizes):
        """Start to copy what this thread needs of its team's next keys and values. Nobody else reads it."""
        thread = np.uint32(cuda.threadIdx.x)
        column = thread % np.uint32(TEAM) * np.uint32(width)
        for n in range(TURN):  # a team without a key takes the last one, which then counts nothing
            key = np.int32(min(first + thread // np.uint32(TEAM) + n * TEAMS, end - 1))
            origin = row_of(table, text, key, group, groups, sizes) * sizes.size + column
            for c in range(per_lane):
                count = width if column + c * TEAM * width < sizes.size else 0
                at = np.uint32(((stage * TURN + n) * (2 * per_lane) + c) * BLOCK + thread) * np.uint32(width)
                copy_async(ring, at, k, origin + c * TEAM * width, count)
                copy_async(ring, at + np.uint32(per_lane * BLOCK * width), v, origin + c * TEAM * width, count)

    @cuda.jit(fastmath=True, max_registers=255)
    def kernel(q, k, v, lengths, table, highests, totals, means, scale, sizes):
        ring = cuda.shared.array(0, k.dtype, alignment=16)
        own = cuda.local.array((heads, per_lane, width), np.float32)
        sums = cuda.local.array((heads, per_lane, width), np.float32)
        scores, theirs = cuda.local.array((heads, TURN), np.float32), cuda.local.array((heads, TURN), np.float32)
        highest, total = cuda.local.array(heads, np.float32), cuda.local.array(heads, np.float32)
        thread, size = np.uint32(cuda.threadIdx.x), sizes.size
        lane = thread % np.uint32(TEAM)
        part, groups = cuda.blockIdx.x, sizes.heads // sizes.shared
        which, group = cuda.blockIdx.y % sizes.turns, cuda.blockIdx.y // sizes.turns % groups
        text = cuda.blockIdx.y // sizes.turns // groups
        first_head = text * sizes.heads + group * sizes.shared + which * heads
        end = min(lengths[text], (part + 1) * sizes.part)
        first = part * sizes.part
        for stage in range(others):
            if first + stage * TURN * TEAMS < end:
                fetch(ring, stage, k, v, table, first + stage * TURN * TEAMS, end, text, group, groups, sizes)
            commit_copies()
        for h in range(heads):
            row = min(first_head + h, q.size // size - 1)  # the last again, for what is not stored
            highest[h], total[h] = LEAST, f0
            for c in range(per_lane):
                vector = load(q, row, width * (lane + TEAM * c), size)
                for e in range(width):
                    own[h, c, e], sums[h, c, e] = vector[e] * scale, f0
        stage = np.uint32(0)
        while first < end:
            coming = first + others * TURN * TEAMS
            if coming < end:
                into = stage + np.uint32(others)
                into = into - np.uint32(stages) if into >= stages else into
                fetch(ring, into, k, v, table, coming, end, text, group, groups, sizes)
            commit_copies()
            wait_copies(others)
            for h in range(heads):
                for n in range(TURN):
                    scores[h, n] = f0
            begin = np.uint32(stage * np.uint32(vectors * BLOCK) + thread) * np.uint32(width)
            for n in range(TURN):
                for c in range(per_lane):
                    key = widened(load128(ring, begin + np.uint32((n * 2 * per_lane + c) * BLOCK * width)))
                    for h in range(heads):
                        for e in range(width):
                            scores[h, n] += own[h, c, e] * key[e]
            for distance in (1, 2, 4):
                for h in range(heads):  # all of them are under way before one is waited for
                    for n in range(TURN):
                        theirs[h, n] = cuda.shfl_xor_sync(FULL_WARP, scores[h, n], distance)
                for h in range(heads):
                    for n in range(TURN):
                        scores[h, n] += theirs[h, n]
            for h in range(heads):
                top = highest[h]
                for n in range(TURN):
                    if first + thread // np.uint32(TEAM) + n * TEAMS >= end:
                        scores[h, n] = LEAST
                    top = max(top, scores[h, n])
                base = finite_base(top)
                keep = cuda.libdevice.exp2f(highest[h] - base)
                highest[h], total[h] = top, total[h] * keep
                for n in range(TURN):
                    scores[h, n] = cuda.libdevice.exp2f(scores[h, n] - base)
                    total[h] += scores[h, n]
                for c in range(per_lane):
                    for e in range(width):
                        sums[h, c, e] *= keep
            for n in range(TURN):
                for c in range(per_lane):
                    value = widened(load128(ring, begin + np.uint32((n * 2 * per_lane + per_lane + c) * BLOCK * width)))
                    for h in range(heads):
                        for e in range(width):
                            sums[h, c, e] += scores[h, n] * value[e]
            first += TURN * TEAMS
            stage = stage + np.uint32(1) if stage + 1 < stages else np.uint32(0)
        join_teams(
            highest, total, sums, highests, totals, means, first_head, min(heads, sizes.shared - which * heads), sizes
        )

    return kernel
