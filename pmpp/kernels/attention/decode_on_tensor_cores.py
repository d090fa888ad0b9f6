"""The kernel of decoding in 16 bits by tensor cores: heads that share a key are the rows of a matrix.

It stands apart from `pmpp.kernels.attention.decode` because it needs a GPU with these instructions (chapter 40). Each
warp has its own keys, sixteen at a time, and its own place in shared memory where the next ones arrive. So nothing
waits for another warp until all keys are done.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, f0, finite_base
from pmpp.kernels.attention.teams import WARPS, join_warps, row_of
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.matmul.tensor_cores import CAPABILITY, CHUNK, WARP, swizzled_place
from pmpp.runtime.matrix import (
    commit_copies,
    copy_async,
    ldmatrix,
    ldmatrix_transposed,
    load32,
    mma_bf16,
    mma_f16,
    rounded_bf16,
    rounded_f16,
    wait_copies,
)

__all__ = ["CAPABILITY", "HEADS", "INSTRUCTIONS", "KEPT", "KEYS", "RING", "SHARED", "matrix_kernel"]

INSTRUCTIONS = {"float16": (mma_f16, rounded_f16), "bfloat16": (mma_bf16, rounded_bf16)}
HEADS = 8  # of q, that a block has at a time: half the rows of a fragment, and the other half stays empty
KEYS = 16  # of a warp at a time
CHUNKS, STEPS, SUM_TILES = MOST_SIZE // CHUNK, MOST_SIZE // 16, MOST_SIZE // 8
TILE = KEYS * MOST_SIZE  # elements of its keys, or of its values
STAGES = 3
RING = 2 * STAGES * WARPS * 2 * TILE  # bytes of shared memory of a block for what is on its way
SHARED = RING + 4 * WARPS * HEADS * (MOST_SIZE + 2)  # with what is there to join the warps
# What is left of a float32 if its first bits are as many as 16 bits hold.
KEPT = {"float16": np.int32(~0x1FFF), "bfloat16": np.int32(~0xFFFF)}


@functools.cache
def matrix_kernel(kind: str) -> typing.Any:
    """As `decode.part_kernel`, for words of 16 bits of that kind in rows that begin at multiples of 16 bytes.

    Its launch gives it ``RING`` bytes.
    """
    mma, rounded = INSTRUCTIONS[kind]
    place, kept, others, pending = swizzled_place(CHUNKS), KEPT[kind], STAGES - 1, STAGES - 2

    @cuda.jit(device=True)
    def fetch(shared, begin, k, v, table, first, end, text, group, groups, sizes):
        """Start to copy the warp's next keys and values. Half a warp copies a row."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        # Lane i finds out where key i stands. Beyond the end it is the last key, which then has no weight.
        own = row_of(table, text, np.int32(min(first + lane % 16, end - 1)), group, groups, sizes)
        chunk = lane % np.uint32(CHUNKS)
        count = CHUNK if chunk * CHUNK < sizes.size else 0
        for i in range(KEYS // 2):
            line = np.uint32(2 * i + lane // 16)
            origin = cuda.shfl_sync(FULL_WARP, own, line) * sizes.size + chunk * CHUNK
            at = np.uint32(begin + place(line, chunk) * np.uint32(CHUNK))
            copy_async(shared, at, k, origin, count)
            copy_async(shared, at + np.uint32(TILE), v, origin, count)

    @cuda.jit(device=True)
    def add_scores(shared, begin, own, scores):
        """Products of the heads with sixteen keys: two tiles of 8 x 8."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for s in range(STEPS):
            row, chunk = np.uint32(lane // 16 * 8 + lane % 8), np.uint32(2 * s + lane // 8 % 2)
            b = ldmatrix(shared, np.uint32(begin + place(row, chunk) * np.uint32(CHUNK)))
            a = own[s, 0], np.uint32(0), own[s, 1], np.uint32(0)
            for half in range(2):
                c = scores[half, 0], scores[half, 1], scores[half, 2], scores[half, 3]
                c = mma(a, (b[2 * half], b[2 * half + 1]), c)
                for e in range(4):
                    scores[half, e] = c[e]

    @cuda.jit(device=True)
    def add_values(shared, begin, weights, rest, sums):
        """Products of the weights with sixteen values. ``rest``: what the weights lost when they were rounded."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for n in range(STEPS):
            row, chunk = np.uint32(lane % 16), np.uint32(2 * n + lane // 16)
            b = ldmatrix_transposed(shared, np.uint32(begin + place(row, chunk) * np.uint32(CHUNK)))
            for half in range(2):
                t = 2 * n + half
                c = sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3]
                c = mma(weights, (b[2 * half], b[2 * half + 1]), c)
                c = mma(rest, (b[2 * half], b[2 * half + 1]), c)
                for e in range(4):
                    sums[t, e] = c[e]

    @cuda.jit(device=True)
    def first_bits(x):
        return cuda.libdevice.int_as_float(cuda.libdevice.float_as_int(x) & kept)

    @cuda.jit(fastmath=True)
    def kernel(q, k, v, lengths, table, highests, totals, means, scale, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        all_highest = cuda.shared.array((WARPS, HEADS), np.float32)
        all_total = cuda.shared.array((WARPS, HEADS), np.float32)
        all_sums = cuda.shared.array((WARPS, HEADS, MOST_SIZE), np.float32)
        own = cuda.local.array((STEPS, 2), np.uint32)
        scores = cuda.local.array((2, 4), np.float32)
        sums = cuda.local.array((SUM_TILES, 4), np.float32)
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        head, pair = lane // 4, lane % 4 * 2  # the lane's row, and the first of its two neighbours in eight columns
        part, groups, size = cuda.blockIdx.x, sizes.heads // sizes.shared, sizes.size
        which, group = cuda.blockIdx.y % sizes.turns, cuda.blockIdx.y // sizes.turns % groups
        text = cuda.blockIdx.y // sizes.turns // groups
        first_head = text * sizes.heads + group * sizes.shared + which * HEADS
        some = min(HEADS, sizes.shared - which * HEADS)
        end = min(lengths[text], (part + 1) * sizes.part)
        first = part * sizes.part + warp * KEYS
        begin = np.uint32(warp * np.uint32(STAGES * 2 * TILE))
        for stage in range(others):
            coming = first + stage * WARPS * KEYS
            if coming < end:
                fetch(shared, begin + np.uint32(stage * 2 * TILE), k, v, table, coming, end, text, group, groups, sizes)
            commit_copies()
        for s in range(STEPS):
            for e in range(2):
                column = 16 * s + 8 * e + pair
                own[s, e] = np.uint32(0)
                if head < some and column < size:
                    own[s, e] = load32(q, (first_head + head) * size + column)
        for t in range(SUM_TILES):
            for e in range(4):
                sums[t, e] = f0
        highest, total = LEAST, f0
        now, into = np.uint32(0), np.uint32(others * 2 * TILE)
        while first < end:
            wait_copies(pending)
            cuda.syncwarp()  # the keys of all lanes are there, and everyone has read those that are overwritten next
            coming = first + others * WARPS * KEYS
            if coming < end:
                fetch(shared, begin + into, k, v, table, coming, end, text, group, groups, sizes)
            commit_copies()
            for half in range(2):
                for e in range(4):
                    scores[half, e] = f0
            add_scores(shared, begin + now, own, scores)
            top = highest
            for half in range(2):
                for e in range(2):
                    scores[half, e] = scores[half, e] * scale if first + 8 * half + pair + e < end else LEAST
                    top = max(top, scores[half, e])
            for distance in (1, 2):  # the four lanes that have the same head
                top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
            base = finite_base(top)
            keep = cuda.libdevice.exp2f(highest - base)
            highest, total = top, total * keep
            for t in range(SUM_TILES):
                sums[t, 0] *= keep
                sums[t, 1] *= keep
            for half in range(2):
                for e in range(2):
                    weight = cuda.libdevice.exp2f(scores[half, e] - base)
                    total += weight
                    scores[half, e] = first_bits(weight)
                    scores[half, 2 + e] = weight - scores[half, e]
            weights = (
                rounded(scores[0, 0], scores[0, 1]),
                np.uint32(0),
                rounded(scores[1, 0], scores[1, 1]),
                np.uint32(0),
            )
            rest = rounded(scores[0, 2], scores[0, 3]), np.uint32(0), rounded(scores[1, 2], scores[1, 3]), np.uint32(0)
            add_values(shared, begin + now + np.uint32(TILE), weights, rest, sums)
            first += WARPS * KEYS
            into = now
            now = np.uint32(now + 2 * TILE) if now + 2 * TILE < STAGES * 2 * TILE else np.uint32(0)
        for distance in (1, 2):
            total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        all_highest[warp, head], all_total[warp, head] = highest, total
        for t in range(SUM_TILES):
            for e in range(2):
                all_sums[warp, head, 8 * t + pair + e] = sums[t, e]
        join_warps(all_highest, all_total, all_sums, highests, totals, means, first_head, some, size)

    return kernel
