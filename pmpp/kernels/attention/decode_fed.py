"""The kernel of decoding on Hopper: an engine brings keys and values, and blocks take work until there is none left.

It stands apart from `pmpp.kernels.attention.decode` because it needs a GPU of compute capability 9.0 (chapter 43). A
block has a multiprocessor to itself. One of its threads asks for tiles of keys and values, in a ring of shared memory,
and goes on to the block's next work while the eight other warps put together what they have found.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention.decode_on_tensor_cores import HEADS, INSTRUCTIONS, KEPT, KEYS
from pmpp.kernels.attention.ladder import LEAST, f0, finite_base
from pmpp.kernels.attention.teams import row_of
from pmpp.kernels.common import FULL_WARP, warp_max, warp_sum
from pmpp.kernels.matmul.warpgroups import WARP, is_last
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
TEAM_WARPS, TEAMS = 4, 3  # warps that share a tile, and teams of them, which take tiles in turns
WARPS = TEAM_WARPS * TEAMS  # that multiply
TILE_KEYS = TEAM_WARPS * KEYS  # keys of a stage, sixteen for each warp of a team
RING = 160 * 1024  # bytes of shared memory for what is on its way
THREADS = WARP * (WARPS + 1)  # the last warp asks for tiles
BLOCKS = 1  # of a multiprocessor
MOST_PARTS = WARP  # of a row: a lane has one of them when they are put together


def shared_bytes(size: int) -> int:
    """Of a block: the ring, and sums of all warps."""
    return RING + 4 * WARPS * HEADS * size


class Work(typing.NamedTuple):
    """What there is to do, in ``units``: each of the first ``whole`` rows is one, and each other row is ``parts``.

    A row is up to eight heads of a text that share their keys, with all of these keys.
    """

    units: int
    whole: int
    parts: int


@cuda.jit(device=True)
def keys_of(unit, lengths, sizes, work):
    """Of a unit: its row, which of the row's parts it is and how many there are, where its heads and its keys are.

    That is: text, group of keys, turn of the group, first key, and where the keys end. The divisions are of 32 bits:
    those of 64 take far longer.
    """
    unit, whole, parts = np.uint32(unit), np.uint32(work.whole), np.uint32(work.parts)
    row, part = unit, np.uint32(0)
    if unit >= whole:
        turn = np.uint32((unit - whole) // parts)
        row, part = np.uint32(whole + turn), np.uint32(unit - whole - turn * parts)
    else:
        parts = np.uint32(1)
    turns, groups = np.uint32(sizes.turns), np.uint32(np.uint32(sizes.heads) // np.uint32(sizes.shared))
    place = np.uint32(row // turns)
    text = np.uint32(place // groups)
    group, which = np.int64(np.uint32(place - text * groups)), np.int64(np.uint32(row - place * turns))
    first, end = np.int64(0), np.int64(lengths[text])
    if parts > 1:
        first = np.int64(part) * sizes.part
        end = min(end, first + sizes.part)
    return np.int64(row), np.int64(part), np.int64(parts), np.int64(text), group, which, first, end


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
    def take(counts, work):
        """A unit that nobody has. Each block asks once more than there is work for it; the last count makes it 0."""
        return np.int64(cuda.atomic.inc(counts, 0, np.uint32(work.units + cuda.gridDim.x - 1)))

    @cuda.jit(device=True)
    def produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, work):
        """Ask for the tiles of one unit after the other. ``queue`` says which unit begins in a stage."""
        now, parity, unit = np.uint32(0), np.uint32(0), take(counts, work)
        groups = sizes.heads // sizes.shared
        while unit < work.units:
            coming = take(counts, work)  # nobody waits for it while there are tiles to ask for
            _, _, _, text, group, _, first, end = keys_of(unit, lengths, sizes, work)
            mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
            queue[now] = unit
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
            unit = coming
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
    """The kernel for rows of ``size`` words of 16 bits of that kind. Its launch gives it `shared_bytes`.

    ``words``: tensor maps of the keys and of the values in lines; a box is a tile. ``counts``: zeros, and zeros again
    in the end. The first gives blocks their units, and each warp has one for each row in parts. In ``highests`` and
    ``totals`` it has a place for each head of a part, and in ``added`` there is a row for these.
    """
    (stages, next_stage, _, produce), multiply = helpers(size), multiplier(kind, size)
    tile, steps, sum_tiles = TILE_KEYS * size, size // 16, size // 8
    behind = RING // 4  # the place of sums of all warps
    across = size // WARP  # warps whose lanes have a column each of a result
    apart = WARPS // across  # every so many heads are of the same warp,
    own_heads = -(-HEADS // apart)  # and these are so many

    @cuda.jit(device=True)
    def forget(shared, begin, first, end):
        """Zeros for values that the engine brought from beyond the last key. They may be anything, NaN too."""
        for i in range(KEYS * size // WARP):
            at = np.uint32(np.uint32(i * WARP) + np.uint32(cuda.threadIdx.x) % np.uint32(WARP))
            if first + at // np.uint32(size) >= end:
                shared[begin + at] = np.uint16(0)
        copies_visible()
        cuda.syncwarp()

    @cuda.jit(device=True)
    def join_parts(highests, totals, added, out, place, parts, some, first_head, head, column):
        """Put together what parts have found: a lane has the weight of a part, and then it has a column."""
        lane, warp = cuda.threadIdx.x % WARP, cuda.threadIdx.x // WARP
        keeps, values = cuda.local.array(own_heads, np.float32), cuda.local.array(own_heads, np.float32)
        weights = cuda.local.array(own_heads, np.float32)
        for i in range(own_heads):
            h, top, own = head + i * apart, LEAST, f0
            if h < some and lane < parts:
                at = ((place + lane) * HEADS + h) * WARPS + warp
                top, own = highests[at], totals[at]
            keeps[i] = cuda.libdevice.exp2f(top - finite_base(warp_max(top)))
            weights[i], values[i] = warp_sum(own * keeps[i]), f0
        for part in range(parts):
            for i in range(own_heads):
                h, keep = head + i * apart, cuda.shfl_sync(FULL_WARP, keeps[i], part)
                if h < some:
                    values[i] += added[((place + part) * HEADS + h) * size + column] * keep
        for i in range(own_heads):
            h = head + i * apart
            if h < some:
                out[(first_head + h) * size + column] = values[i] / weights[i] if weights[i] != f0 else f0

    @cuda.jit(fastmath=True)
    def kernel(words, q, lengths, table, counts, highests, totals, added, out, scale, sizes, work):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        queue, joined = cuda.shared.array(stages, np.int32), cuda.shared.array(2, np.uint64)
        all_highest = cuda.shared.array((WARPS, HEADS), np.float32)
        all_total = cuda.shared.array((WARPS, HEADS), np.float32)
        all_sums = cuda.shared.array(0, np.float32, alignment=1024)  # behind the ring
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
                produce(shared, full, empty, queue, maps, lengths, table, counts, sizes, work)
        else:
            own_head, pair = lane // 4, lane % 4 * 2  # the lane's row, and the first of its columns in eight
            team, place_in_team = warp // np.uint32(TEAM_WARPS), warp % np.uint32(TEAM_WARPS)
            column, head = np.int64(warp) % across * WARP + lane, np.int64(warp) // across  # in the end
            now, parity, turn = np.uint32(0), np.uint32(0), np.uint32(0)
            mbarrier_wait(full, now, parity)
            unit = np.int64(queue[now])
            while unit >= 0:
                row, part, parts, text, group, which, first, end = keys_of(unit, lengths, sizes, work)
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
                highest, total, more, next_team = LEAST, f0, True, np.uint32(0)
                while more:
                    mbarrier_wait(full, now, parity)
                    keys = np.uint32(now * np.uint32(2 * tile) + place_in_team * np.uint32(KEYS * size))
                    values, key = np.uint32(keys + np.uint32(tile)), first + place_in_team * KEYS
                    if next_team == team and key < end:
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
                    next_team = np.uint32(next_team + 1) if next_team + 1 < TEAMS else np.uint32(0)
                    more = first < end
                for distance in (1, 2):
                    total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
                mbarrier_wait(joined, 1, turn ^ np.uint32(1))  # all have read what is there of the unit before
                all_highest[warp, own_head], all_total[warp, own_head] = highest, total
                for t in range(sum_tiles):
                    for e in range(2):
                        at = behind + (warp * HEADS + own_head) * size + 8 * t + pair + e
                        all_sums[at] = sums[t, e] + sums[t, 2 + e]
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 0)
                mbarrier_wait(joined, 0, turn)
                place = (row - work.whole) * parts  # of the first part, where there are several
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
                            value += all_sums[behind + (w * HEADS + h) * size + column] * keep
                        if parts > 1:
                            at = (place + part) * HEADS + h
                            highests[at * WARPS + warp], totals[at * WARPS + warp] = top, weights
                            added[at * size + column] = value
                        else:
                            out[(first_head + h) * size + column] = value / weights if weights != f0 else f0
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(joined, 1)
                turn = np.uint32(turn ^ np.uint32(1))
                if parts > 1 and is_last(counts, 1 + (row - work.whole) * WARPS + warp, parts):
                    join_parts(highests, totals, added, out, place, parts, some, first_head, head, column)
                mbarrier_wait(full, now, parity)
                unit = np.int64(queue[now])

    return kernel
