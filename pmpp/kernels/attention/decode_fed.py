"""The kernel of decoding on Hopper: an engine brings keys and values, and blocks take work until there is none left.

It stands apart from `pmpp.kernels.attention.decode` because it needs a GPU of compute capability 9.0 (chapter 43). A
block has a multiprocessor to itself. One of its threads asks for tiles of keys and values, in a ring of shared memory,
and goes on to the block's next text while the eight other warps put together what they have found.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention.decode_on_tensor_cores import HEADS, INSTRUCTIONS, KEPT, KEYS
from pmpp.kernels.attention.ladder import LEAST, f0, finite_base
from pmpp.kernels.attention.teams import row_of
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.matmul.tensor_cores import WARP
from pmpp.runtime.hopper import (
    bulk_tile,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
)
from pmpp.runtime.hopper_maps import maps_of_launch
from pmpp.runtime.matrix import ldmatrix, ldmatrix_transposed, load32

CAPABILITY = (9, 0)  # of the only GPUs that have this engine and its barriers in this form
SIZES = (64, 128)  # of a key: whole lines of 128 bytes, in which the engine exchanges chunks
LINE, CHUNK = 64, 8  # elements of a line, and of a chunk
WARPS = 8  # that multiply
TILE_KEYS = WARPS * KEYS  # keys of a stage, sixteen for each warp
RING = 128 * 1024  # bytes of shared memory for what is on its way
THREADS = WARP * (WARPS + 1)  # the last warp asks for tiles


@cuda.jit(device=True)
def heads_of(row, sizes):
    """Of a row, which is up to eight heads of a text that share their keys: text, group of keys, turn of the group.

    The divisions are of 32 bits: those of 64 take far longer.
    """
    row, turns = np.uint32(row), np.uint32(sizes.turns)
    groups = np.uint32(np.uint32(sizes.heads) // np.uint32(sizes.shared))
    place = np.uint32(row // turns)
    text = np.uint32(place // groups)
    return np.int64(text), np.int64(np.uint32(place - text * groups)), np.int64(np.uint32(row - place * turns))


@functools.cache
def helpers(size: int) -> tuple[typing.Any, ...]:
    """Device functions: the next stage, where a chunk of a key is, and one with which a thread asks for all tiles."""
    lines, tile = size // LINE, TILE_KEYS * size
    stages = RING // (4 * tile)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def place(row, chunk):
        line = np.uint32(row * np.uint32(lines) + chunk // np.uint32(8))
        return np.uint32(line * np.uint32(LINE) + (chunk % np.uint32(8) ^ line % np.uint32(8)) * np.uint32(CHUNK))

    @cuda.jit(device=True)
    def take(counts, rows):
        """A row that nobody has. A block asks once more than it gets, and the last one to ask leaves a 0 behind."""
        return np.int64(cuda.atomic.inc(counts, 0, np.uint32(rows + cuda.gridDim.x - 1)))

    @cuda.jit(device=True)
    def produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, rows):
        """Ask for the tiles of one row after the other. ``queue`` says which row begins in a stage."""
        now, parity, row = np.uint32(0), np.uint32(0), take(counts, rows)
        groups = sizes.heads // sizes.shared
        while row < rows:
            coming = take(counts, rows)  # nobody waits for it while there are tiles to ask for
            text, group, _ = heads_of(row, sizes)
            first, end = np.int64(0), np.int64(lengths[text])
            mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
            queue[now] = row
            if first >= end:  # without a key there is a stage all the same
                mbarrier_arrive(full, now)
                now, parity = next_stage(now, parity)
            while first < end:
                mbarrier_wait(empty, now, parity ^ np.uint32(1))
                line = lines * row_of(table, text, np.int32(first), group, groups, sizes)
                begin = np.uint32(now * np.uint32(2 * tile))
                expect_bytes(full, now, 4 * tile)
                bulk_tile(shared, begin, maps, 0, line, 0, full, now)
                bulk_tile(shared, np.uint32(begin + np.uint32(tile)), maps, 16, line, 0, full, now)
                first += TILE_KEYS
                now, parity = next_stage(now, parity)
            row = coming
        mbarrier_wait(empty, now, parity ^ np.uint32(1))
        queue[now] = -1
        mbarrier_arrive(full, now)

    return stages, next_stage, place, produce


@functools.cache
def multiplier(kind: str, size: int) -> typing.Any:
    """A device function with which a warp takes sixteen keys and values that lie in shared memory.

    The first eight rows of the second product are weights of 16 bits, and the last eight what rounding has taken from
    them. So the sums of a head are in two rows, to be added in the end.
    """
    mma, rounded = INSTRUCTIONS[kind]
    (_, _, place, _), kept, steps, sum_tiles = helpers(size), KEPT[kind], size // 16, size // 8

    @cuda.jit(device=True)
    def first_bits(x):
        return cuda.libdevice.int_as_float(cuda.libdevice.float_as_int(x) & kept)

    @cuda.jit(device=True)
    def multiply(shared, keys, values, first, end, own, scores, sums, highest, total, scale):
        """``keys``, ``values``: where they begin. ``first``: the first key's number. The new highest and total."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        pair, zero = lane % 4 * 2, np.uint32(0)
        for half in range(2):
            scores[half, 0], scores[half, 1] = f0, f0
        for s in range(steps):
            row, chunk = np.uint32(lane // 16 * 8 + lane % 8), np.uint32(2 * s + lane // 8 % 2)
            b = ldmatrix(shared, np.uint32(keys + place(row, chunk)))
            a = own[s, 0], zero, own[s, 1], zero
            for half in range(2):
                c = mma(a, (b[2 * half], b[2 * half + 1]), (scores[half, 0], scores[half, 1], f0, f0))
                scores[half, 0], scores[half, 1] = c[0], c[1]
        top = highest
        for half in range(2):
            for e in range(2):
                scores[half, e] = scores[half, e] * scale if first + 8 * half + pair + e < end else LEAST
                top = max(top, scores[half, e])
        for distance in (1, 2):  # the four lanes that have the same head
            top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
        base = finite_base(top)
        keep = cuda.libdevice.exp2f(highest - base)
        total *= keep
        for t in range(sum_tiles):
            for e in range(4):
                sums[t, e] *= keep
        for half in range(2):
            for e in range(2):
                weight = cuda.libdevice.exp2f(scores[half, e] - base)
                total += weight
                scores[half, e] = first_bits(weight)
                scores[half, 2 + e] = weight - scores[half, e]
        weights = (
            rounded(scores[0, 0], scores[0, 1]),
            rounded(scores[0, 2], scores[0, 3]),
            rounded(scores[1, 0], scores[1, 1]),
            rounded(scores[1, 2], scores[1, 3]),
        )
        for n in range(steps):
            row, chunk = np.uint32(lane % 16), np.uint32(2 * n + lane // 16)
            b = ldmatrix_transposed(shared, np.uint32(values + place(row, chunk)))
            for half in range(2):
                t = 2 * n + half
                c = mma(weights, (b[2 * half], b[2 * half + 1]), (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3]))
                for e in range(4):
                    sums[t, e] = c[e]
        return top, total

    return multiply


@functools.cache
def fed_kernel(kind: str, size: int) -> typing.Any:
    """The kernel for rows of ``size`` words of 16 bits of that kind. Its launch gives it ``RING`` bytes.

    ``words``: tensor maps of the keys and of the values in lines; a box is a tile. ``counts``: the first is 0, and 0
    again in the end. It gives the blocks their ``rows``: up to eight heads each of a text that share their keys.
    """
    (stages, next_stage, _, produce), multiply = helpers(size), multiplier(kind, size)
    tile, steps, sum_tiles = TILE_KEYS * size, size // 16, size // 8
    across = size // WARP  # warps whose lanes have a column each of a result
    apart = WARPS // across  # every so many heads are of the same warp,
    own_heads = HEADS // apart  # and these are so many

    @cuda.jit(device=True)
    def forget(shared, begin, first, end):
        """Zeros for values that the engine brought from beyond the last key. They may be anything, NaN too."""
        for i in range(KEYS * size // WARP):
            at = np.uint32(np.uint32(i * WARP) + np.uint32(cuda.threadIdx.x) % np.uint32(WARP))
            if first + at // np.uint32(size) >= end:
                shared[begin + at] = np.uint16(0)
        copies_visible()
        cuda.syncwarp()

    @cuda.jit(fastmath=True)
    def kernel(words, q, lengths, table, counts, out, scale, sizes, rows):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        queue, joined = cuda.shared.array(stages, np.int32), cuda.shared.array(2, np.uint64)
        all_highest = cuda.shared.array((WARPS, HEADS), np.float32)
        all_total = cuda.shared.array((WARPS, HEADS), np.float32)
        all_sums = cuda.shared.array((WARPS, HEADS, size), np.float32)
        own = cuda.local.array((steps, 2), np.uint32)
        scores, sums = cuda.local.array((2, 4), np.float32), cuda.local.array((sum_tiles, 4), np.float32)
        maps = maps_of_launch(words)
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        if cuda.threadIdx.x == 0:
            for b in range(stages):
                mbarrier_init(full, b, 1)
                mbarrier_init(empty, b, WARPS)
            for b in range(2):
                mbarrier_init(joined, b, WARPS)
        cuda.syncthreads()
        if warp == WARPS:
            if lane == 0:
                produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, rows)
        else:
            own_head, pair = lane // 4, lane % 4 * 2  # the lane's row, and the first of its columns in eight
            column, head = np.int64(warp) % across * WARP + lane, np.int64(warp) // across  # in the end
            now, parity, turn = np.uint32(0), np.uint32(0), np.uint32(0)
            mbarrier_wait(full, now, parity)
            row = np.int64(queue[now])
            while row >= 0:
                text, group, which = heads_of(row, sizes)
                first, end = np.int64(0), np.int64(lengths[text])
                first_head = text * sizes.heads + group * sizes.shared + which * HEADS
                some = min(HEADS, sizes.shared - which * HEADS)
                for s in range(steps):
                    for e in range(2):
                        own[s, e] = np.uint32(0)
                        if own_head < some:
                            own[s, e] = load32(q, (first_head + own_head) * size + 16 * s + 8 * e + pair)
                for t in range(sum_tiles):
                    for e in range(4):
                        sums[t, e] = f0
                highest, total, more = LEAST, f0, True
                while more:
                    mbarrier_wait(full, now, parity)
                    keys = np.uint32(now * np.uint32(2 * tile) + warp * np.uint32(KEYS * size))
                    values, key = np.uint32(keys + np.uint32(tile)), first + warp * KEYS
                    if key < end:
                        if key + KEYS > end:
                            forget(shared, values, key, end)
                        highest, total = multiply(
                            shared, keys, values, key, end, own, scores, sums, highest, total, scale
                        )
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(empty, now)
                    now, parity = next_stage(now, parity)
                    first += TILE_KEYS
                    more = first < end
                for distance in (1, 2):
                    total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
                mbarrier_wait(joined, 1, turn ^ np.uint32(1))  # all have read what is there of the row before
                all_highest[warp, own_head], all_total[warp, own_head] = highest, total
                for t in range(sum_tiles):
                    for e in range(2):
                        all_sums[warp, own_head, 8 * t + pair + e] = sums[t, e] + sums[t, 2 + e]
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 0)
                mbarrier_wait(joined, 0, turn)
                for i in range(own_heads):
                    h = head + i * apart
                    if h < some:
                        top = LEAST
                        for w in range(WARPS):
                            top = max(top, all_highest[w, h])
                        base, weights, value = finite_base(top), f0, f0
                        for w in range(WARPS):
                            keep = cuda.libdevice.exp2f(all_highest[w, h] - base)
                            weights += all_total[w, h] * keep
                            value += all_sums[w, h, column] * keep
                        out[(first_head + h) * size + column] = value / weights if weights != f0 else f0
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 1)
                turn = np.uint32(turn ^ np.uint32(1))
                mbarrier_wait(full, now, parity)
                row = np.int64(queue[now])

    return kernel
