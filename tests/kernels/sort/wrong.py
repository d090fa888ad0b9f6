"""Wrong versions of `sort` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.merge.ladder import co_rank, merge_piece
from pmpp.kernels.scan.look_back import COMPLETE, PARTIAL, next_tile
from pmpp.kernels.scan.tile import SLOTS
from pmpp.kernels.sort import ladder as room
from pmpp.kernels.sort.digits import BINS
from pmpp.kernels.sort.ladder import BLOCK, SECTION, compare_exchange, pair_of
from pmpp.kernels.sort.look_back import look_back_bins, publish_bin
from pmpp.kernels.sort.tile import (
    BLOCK as TILE_BLOCK,
)
from pmpp.kernels.sort.tile import (
    COUNTERS,
    ITEMS,
    TILE,
    count_in_warps,
    digit_of,
    leave_out_copies,
    load_keys,
    peers_of,
    places_of,
    rank_of,
    write,
)
from tests.support.wrong import WrongRung


def named(name, sort):
    """``sort(p)``, called as a rung is."""

    def sorted_keys(x):
        p = room.arguments(x)
        if not p.done:
            sort(p)
        return p.result

    sorted_keys.__name__ = name
    return sorted_keys


# ------------------------------------------------------------------------------------------------------ the network


def network(name, barrier=True, mirror=True, guard=True):
    """`bitonic_shared` of one section, and merges beyond it; with a part left out. With all of them it is right."""

    @cuda.jit
    def kernel(x, out):
        keys = cuda.shared.array(SECTION, x.dtype)
        first = np.int64(cuda.blockIdx.x) * SECTION
        count = min(np.int64(SECTION), x.size - first)
        for at in range(cuda.threadIdx.x, count, BLOCK):
            keys[at] = x[first + at]
        cuda.syncthreads()
        half = 1
        while half < SECTION:
            distance = half
            while distance > 0:
                for t in range(cuda.threadIdx.x, SECTION // 2, BLOCK):
                    low, high = pair_of(t, distance, mirror and distance == half)
                    if high < count or not guard:
                        compare_exchange(keys, low, high)
                if barrier:
                    cuda.syncthreads()
                distance //= 2
            half *= 2
        cuda.syncthreads()
        for at in range(cuda.threadIdx.x, count, BLOCK):
            out[first + at] = keys[at]

    def sort(p):
        run, here, there = SECTION, p.out, cuda.device_array(p.x.size, p.x.dtype)
        kernel[blocks(p.x.size, SECTION), BLOCK](p.x, here)
        while run < p.x.size:
            room.merge_kernel[blocks(p.x.size, SECTION), BLOCK](here, there, run)
            here, there, run = there, here, 2 * run
        p.result = here

    return named(name, sort)


# ----------------------------------------------------------------------------------------------------------- merges


@cuda.jit
def merge_by_threads(x, out, run):
    """Right, but each thread searches in memory: what the next one is made of."""
    k = np.int64(cuda.grid(1)) * room.PIECE
    if k < x.size:
        first = k // (2 * run) * (2 * run)
        middle, end = min(first + run, x.size), min(first + 2 * run, x.size)
        a, b = x[first:middle], x[middle:end]
        i = co_rank(k - first, a, b)
        merge_piece(a, i, b, k - first - i, out[first:end], k - first, min(k + room.PIECE, end) - first)


def merges(kernel, in_place=False):
    def sort(p):
        run, here, there = SECTION, p.out, cuda.device_array(p.x.size, p.x.dtype)
        room.runs_kernel[blocks(p.x.size, SECTION), BLOCK](p.x, here)
        while run < p.x.size:
            if in_place:
                there = here
            kernel[blocks(p.x.size, BLOCK * room.PIECE), BLOCK](here, there, run)
            here, there, run = there, here, 2 * run
        p.result = here

    return named("in_place" if in_place else kernel.py_func.__name__, sort)


# ----------------------------------------------------------------------------------------------------------- digits


def turns(name, kind, turn):
    """`one_sweep` that turns over other bits of keys of one kind."""

    def sort(p):
        if p.x.dtype.kind == kind:
            p.turn = np.uint32(turn)
        room.one_sweep.launch(p)

    return named(name, sort)


def magnitudes(name):
    """`one_sweep` of floats as if they were whole numbers: of negative ones the greater magnitude comes last."""

    def sort(p):
        if p.x.dtype == np.float32:
            p.x, p.out = p.x.view(np.int32), p.out.view(np.int32)
        room.one_sweep.launch(p)

    return named(name, sort)


def passes(name, digits):
    """`ranked` by other digits, or in another order."""

    def sort(p):
        tiles = blocks(p.x.size, TILE)

        def one_pass(number, source, target):
            table = cuda.device_array((BINS, tiles), np.int64)
            room.digits_kernel[tiles, TILE_BLOCK](source, table, digits[number], p.turn)
            places = room.scan.vectorised(table.reshape(-1), exclusive=True).reshape(BINS, tiles)
            room.ranked_kernel[tiles, TILE_BLOCK](source, target, places, digits[number], p.turn)

        room.by_passes(p, len(digits), one_pass)

    return named(name, sort)


# ------------------------------------------------------------------------------------------------------------- tiles


def sweep(name, *, meet=True, leader=True, barrier=True, copies=True, inclusive=False):
    """`one_sweep` with a part left out or replaced. With none it is right.

    ``meet``: lanes wait for each other around a warp's counter. ``leader``: the highest lane moves it on, by one more.
    ``barrier``: one before the tile is written. ``copies``: those behind the end are left out. ``inclusive``: a tile
    counts its own keys among those before it.
    """

    @cuda.jit(device=True)
    def rank(keys, number, turn, counters, gathered):
        number = cuda.shfl_sync(0xFFFFFFFF, number, 0)
        mine, higher = np.uint32(cuda.threadIdx.x // 32 * BINS), np.uint32(0xFFFFFFFE << cuda.laneid)
        for item in range(ITEMS):
            digit = digit_of(keys[item], number, turn)
            peers = peers_of(digit)
            at = np.uint32(mine + digit)
            place = np.int32(counters[at] + rank_of(peers))
            if meet:
                cuda.syncwarp()
            if np.uint32(peers & higher) == 0:
                counters[at] = place + (1 if leader else 0)
            if meet:
                cuda.syncwarp()
            gathered[np.uint32(place)] = keys[item]

    @cuda.jit
    def kernel(x, out, starts, words, bit, number, turn):
        thread = cuda.threadIdx.x
        tile = np.int64(next_tile(words[0], cuda.shared.array(1, np.int64)))
        counters, gathered = cuda.shared.array(COUNTERS, np.int32), cuda.shared.array(TILE, x.dtype)
        bases, ends = cuda.shared.array(BINS, np.uint32), cuda.shared.array(SLOTS, np.int32)
        keys, gap = cuda.local.array(ITEMS, x.dtype), cuda.shared.array(1, np.int32)
        first = tile * TILE
        count = np.uint32(min(np.int64(TILE), x.size - first))
        load_keys(x, np.uint64(first), count, keys)
        count_in_warps(keys, number, turn, counters)
        total, before = places_of(counters, ends)
        with_copies = total
        total = leave_out_copies(x[first + count - 1], count, number, turn, total, before, gap)
        if not copies:
            total = with_copies
        if thread < BINS:
            publish_bin(words, tile, thread, bit, PARTIAL, total)
        cuda.syncthreads()
        rank(keys, number, turn, counters, gathered)
        if thread < BINS:
            earlier = look_back_bins(words, tile, thread, bit)
            publish_bin(words, tile, thread, bit, COMPLETE, earlier + total)
            bases[thread] = np.uint32(starts[thread] + earlier - before + (total if inclusive else 0))
        if barrier:
            cuda.syncthreads()
        write(gathered, gap, count if copies else np.uint32(TILE), out, bases, number, turn)

    def sort(p):
        starts, tiles = room.starts_of(p), blocks(p.x.size, TILE)
        words, bit = room.words_for(tiles, p.x.size, p.stream)

        def one_pass(number, source, target):
            kernel[tiles, TILE_BLOCK](source, target, starts[number], words[number], bit, number, p.turn)

        room.by_passes(p, room.PASSES, one_pass)

    return named(name, sort)


RUNGS = (
    WrongRung(network("without_a_barrier_between_steps", barrier=False), "race"),
    WrongRung(network("never_mirrored", mirror=False), "wrong result"),
    WrongRung(network("without_asking_for_the_end", guard=False), "uninitialised read"),
    WrongRung(merges(merge_by_threads, in_place=True), "race"),
    WrongRung(turns("signs_as_they_are", "i", 0), "wrong result"),
    WrongRung(magnitudes("floats_as_whole_numbers"), "wrong result"),
    WrongRung(passes("first_digit_first", (3, 2, 1, 0)), "wrong result"),
    WrongRung(passes("without_the_first_digit", (0, 1, 2)), "wrong result"),
    WrongRung(sweep("lanes_do_not_meet", meet=False), "race"),
    WrongRung(sweep("a_counter_stands_at_the_last_key", leader=False), "out of bounds"),
    WrongRung(sweep("no_barrier_before_the_write", barrier=False), "race"),
    WrongRung(sweep("copies_are_written", copies=False), "out of bounds"),
    WrongRung(sweep("a_tile_counts_itself", inclusive=True), "out of bounds"),
)
RIGHT = (network("network"), merges(merge_by_threads), passes("passes", (0, 1, 2, 3)), sweep("sweep"))
