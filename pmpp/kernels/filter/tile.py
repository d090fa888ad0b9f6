"""The filter of one tile, and the tiles before it: device functions for every rung of this subject from `tiled` on.

A warp loads its part of the tile into registers, rows of 32 neighbours, sixteen of them. Of each row a ballot tells
every lane which elements are kept, and how many of them come before its own. So the warp gathers what it keeps in
shared memory while it looks at it, row after row, and no thread counts for itself. Then the warps tell each other how
many they are, once, and each writes its elements side by side.

A tile also has to know how many elements all tiles before it keep. In `tiled` a scan has found that before. In
`single_pass` the tiles tell each other while they run. A tile publishes its own count (PARTIAL), looks back until it
knows what came before it, and publishes the count up to its end (COMPLETE). State and count share one word of 64 bits.
Every tile waits for earlier ones only, and tiles are numbered in the order in which their blocks begin. So the earliest
unfinished tile never waits, and all tiles finish, however few blocks the GPU runs at a time.

Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", NVR-2016-002.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, warp_sum
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.look_back import COMPLETE, PARTIAL, next_tile
from pmpp.kernels.scan.tile import SLOTS, scan_warps

BLOCK = 256  # threads a block
WARPS = BLOCK // 32
ITEMS = 16  # elements a thread: one in each of so many rows
PART = 32 * ITEMS  # elements a warp
TILE = BLOCK * ITEMS
STATE = 60  # the bit of a word at which the state begins: the count has those below it


@cuda.jit(device=True)
def rank_of(lanes):
    """How many lanes below this one are in the mask ``lanes``."""
    below = np.uint32((np.uint32(1) << np.uint32(cuda.laneid)) - np.uint32(1))
    return np.uint32(cuda.popc(np.uint32(np.uint32(lanes) & below)))


@cuda.jit(device=True)
def load_rows(x, tile, values):
    """This thread's elements of a tile, into registers. Returns where the first one is in the tile, and its end.

    The next ones follow at distances of 32. All loads of a whole tile are in flight before the first element is used.
    """
    first = np.int64(tile) * TILE
    at = np.uint32(cuda.threadIdx.x // 32 * PART + cuda.laneid)
    end = np.uint32(min(np.int64(TILE), x.size - first))
    if end == TILE:
        i = np.uint64(first + at)
        for row in range(ITEMS):
            values[row] = x[i + np.uint64(32 * row)]
    else:
        for row in range(ITEMS):
            here = np.uint32(at + 32 * row)
            values[row] = x[np.uint64(first + here)] if here < end else x.dtype.type(0)
    return at, end


@cuda.jit(device=True)
def write_part(out, start, gathered, begin, count):
    """A warp's ``count`` gathered elements, from gathered[begin] on, to out[start:]: neighbouring lanes, neighbours."""
    target = np.uint64(start)
    for row in range(ITEMS):
        here = np.uint32(32 * row + cuda.laneid)
        if here < count:
            out[target + np.uint64(here)] = gathered[np.uint32(begin + here)]


@cuda.jit(device=True)
def publish_count(words, tile, state, count):
    """Write state and count as one word. A reader sees both or neither, so no fence is needed."""
    if cuda.gridDim.x > 1:
        cuda.atomic.exch(words, tile + 1, np.int64(state) << STATE | np.int64(count))


@cuda.jit(device=True)
def look_back_counts(words, tile):
    """How many elements all tiles before ``tile`` keep, in all lanes. A warp looks at 32 earlier tiles at a time."""
    before = np.int64(0)
    last = tile - 1  # lane 0 looks at this one, lane 1 at the one before it
    while last >= 0:
        mine = last - cuda.laneid
        word = np.int64(COMPLETE) << STATE  # nothing is kept before the first tile
        if mine >= 0:
            word = cuda.atomic.add(words, mine + 1, 0)  # an atomic reads memory each time, unlike words[mine + 1]
            while word == 0:
                word = cuda.atomic.add(words, mine + 1, 0)
        cuda.syncwarp()  # lanes leave the loop at different times, and meet here
        complete = cuda.ballot_sync(FULL_WARP, word >> STATE == COMPLETE)
        nearest = cuda.ffs(complete) - 1 if complete else 31
        count = word & (1 << STATE) - 1
        if cuda.laneid > nearest:
            count = np.int64(0)  # the nearest complete count already includes it
        before += warp_sum(count)
        if complete:
            break
        last -= 32
    return before


@cuda.jit(device=True)
def counts_to_lane(value):
    """In each lane the sum of the values of the lanes up to it."""
    for distance in (1, 2, 4, 8, 16):
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance:
            value = np.int32(value + earlier)
    return value


@cuda.jit(device=True)
def start_of_warp(words, tile, mine, count):
    """How many elements all warps before this one keep, in all tiles; this one keeps ``mine``.

    The first warp adds up what the warps keep, publishes that, looks back, and tells the others. The last tile also
    writes count[0]: how many are kept in all.
    """
    counts, starts = cuda.shared.array(WARPS, np.int32), cuda.shared.array(WARPS, np.int64)
    lane, warp = cuda.laneid, cuda.threadIdx.x // 32
    if lane == 0:
        counts[warp] = mine
    cuda.syncthreads()
    if warp == 0:
        own = counts[lane] if lane < WARPS else np.int32(0)
        upto = counts_to_lane(own)
        total = cuda.shfl_sync(FULL_WARP, upto, 31)
        if lane == 0:
            publish_count(words, tile, PARTIAL, total)
        before = look_back_counts(words, tile)
        if lane == 0:
            publish_count(words, tile, COMPLETE, before + total)
            if tile == cuda.gridDim.x - 1:
                count[0] = before + total
        if lane < WARPS:
            starts[lane] = before + (upto - own)
    cuda.syncthreads()
    return starts[warp]


class Kernels(typing.NamedTuple):
    """What filters by one predicate: `tiled` launches ``counts`` and ``compact``, and `single_pass` the last one.

    ``gather`` is what a warp does in the last two.
    """

    gather: typing.Any
    counts: typing.Any
    compact: typing.Any
    single_pass: typing.Any


@functools.lru_cache(64)  # a compilation each
def kernels_for(keep: typing.Any) -> Kernels:
    """The kernels that keep an element if the device function ``keep(value, threshold)`` is true for it."""

    @cuda.jit(device=True)
    def gather(x, threshold, tile, gathered):
        """What the warp keeps of its part, into ``gathered``. Returns where it begins there, and how many it is."""
        values = cuda.local.array(ITEMS, x.dtype)
        at, end = load_rows(x, tile, values)
        begin = np.uint32(cuda.threadIdx.x // 32 * PART)
        place = begin
        for row in range(ITEMS):
            kept = np.uint32(at + 32 * row) < end and keep(values[row], threshold)
            lanes = cuda.ballot_sync(FULL_WARP, kept)
            if kept:
                gathered[np.uint32(place + rank_of(lanes))] = values[row]
            place = np.uint32(place + cuda.popc(lanes))
        cuda.syncwarp()
        return begin, np.int32(place - begin)

    @cuda.jit
    def counts_kernel(x, threshold, counts):
        tile, values = np.int64(cuda.blockIdx.x), cuda.local.array(ITEMS, x.dtype)
        at, end = load_rows(x, tile, values)
        mine = np.int32(0)
        for row in range(ITEMS):
            kept = np.uint32(at + 32 * row) < end and keep(values[row], threshold)
            mine = np.int32(mine + cuda.popc(cuda.ballot_sync(FULL_WARP, kept)))
        _, total = scan_warps(SUM, np.int32(0), mine, cuda.shared.array(SLOTS, np.int32))
        if cuda.threadIdx.x == 0:
            counts[tile] = total

    @cuda.jit
    def compact_kernel(x, threshold, starts, out, count):
        tile = np.int64(cuda.blockIdx.x)
        gathered = cuda.shared.array(TILE, x.dtype)
        begin, mine = gather(x, threshold, tile, gathered)
        before, total = scan_warps(SUM, np.int32(0), mine, cuda.shared.array(SLOTS, np.int32))
        write_part(out, starts[tile] + before, gathered, begin, mine)
        if tile == cuda.gridDim.x - 1 and cuda.threadIdx.x == 0:
            count[0] = starts[tile] + total

    @cuda.jit(max_registers=32)  # so that a multiprocessor, which has 65,536, runs as many threads as it can: 2,048
    def single_pass_kernel(x, threshold, words, out, count):
        tile = next_tile(words, cuda.shared.array(1, np.int64))
        gathered = cuda.shared.array(TILE, x.dtype)
        begin, mine = gather(x, threshold, tile, gathered)
        write_part(out, start_of_warp(words, tile, mine, count), gathered, begin, mine)

    return Kernels(gather, counts_kernel, compact_kernel, single_pass_kernel)
