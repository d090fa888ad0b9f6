"""Wrong versions of `filter` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.filter import ladder as room
from pmpp.kernels.filter.ladder import above, rank_of
from pmpp.kernels.filter.tile import look_back_counts, publish_count
from pmpp.kernels.scan.ladder import words_for
from pmpp.kernels.scan.look_back import COMPLETE, PARTIAL, next_tile
from tests.support.wrong import WrongRung

BLOCK = 128
SLOTS = BLOCK // 32 + 1


def unordered(kernel, name="", cleared=True):
    """``kernel(x, threshold, out, count)`` with a thread for each element, as a rung that keeps no order is called."""

    def filtered(x, threshold=0):
        p = room.arguments(x, threshold)
        if not p.done:
            if cleared:
                room.clear(p)
            kernel[blocks(p.x.size, BLOCK), BLOCK](p.x, p.threshold, p.values, p.count)
        return p.result

    filtered.__name__ = name or getattr(kernel, "py_func", kernel).__name__
    filtered.keeps_order = False
    return filtered


def ordered(kernel, name=""):
    """The same for one that says it keeps the order, with words for the tiles: a block has one element a thread."""

    def filtered(x, threshold=0):
        p = room.arguments(x, threshold)
        if not p.done:
            room.clear(p)
            grid = blocks(p.x.size, BLOCK)
            kernel[grid, BLOCK](p.x, p.threshold, p.values, p.count, words_for(grid, 0))
        return p.result

    filtered.__name__ = name or getattr(kernel, "py_func", kernel).__name__
    return filtered


# ------------------------------------------------------------------------------------------------------ one counter


@cuda.jit
def right(x, threshold, out, count):
    i = cuda.grid(1)
    kept = i < x.size and above(x[i], threshold)
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    first = np.int64(0)
    if cuda.laneid == 0:
        first = cuda.atomic.add(count, 0, cuda.popc(lanes))
    first = cuda.shfl_sync(FULL_WARP, first, 0)
    if kept:
        out[first + rank_of(lanes)] = x[i]


@cuda.jit
def no_atomic(x, threshold, out, count):
    i = cuda.grid(1)
    if i < x.size and above(x[i], threshold):
        place = count[0]
        count[0] = place + 1
        out[place] = x[i]


@cuda.jit
def no_guard(x, threshold, out, count):
    i = cuda.grid(1)
    if above(x[i], threshold):
        out[cuda.atomic.add(count, 0, 1)] = x[i]


@cuda.jit
def equal_too(x, threshold, out, count):
    i = cuda.grid(1)
    if i < x.size and x[i] >= threshold:
        out[cuda.atomic.add(count, 0, 1)] = x[i]


@cuda.jit
def not_at_most(x, threshold, out, count):
    """A NaN is not at most the threshold, but neither is it above."""
    i = cuda.grid(1)
    if i < x.size and not x[i] <= threshold:
        out[cuda.atomic.add(count, 0, 1)] = x[i]


@cuda.jit
def only_finite(x, threshold, out, count):
    i = cuda.grid(1)
    if i < x.size and above(x[i], threshold) and x[i] - x[i] == 0:
        out[cuda.atomic.add(count, 0, 1)] = x[i]


@cuda.jit
def ranks_from_one(x, threshold, out, count):
    """Its own lane is in the mask: the place after the right one."""
    i = cuda.grid(1)
    kept = i < x.size and above(x[i], threshold)
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    first = np.int64(0)
    if cuda.laneid == 0:
        first = cuda.atomic.add(count, 0, cuda.popc(lanes))
    first = cuda.shfl_sync(FULL_WARP, first, 0)
    if kept:
        out[first + cuda.popc(np.uint32(lanes & (2 << cuda.laneid) - 1))] = x[i]


@cuda.jit
def asked_by_those_who_keep(x, threshold, out, count):
    """Lane 0 asks only if it keeps its own element."""
    i = cuda.grid(1)
    kept = i < x.size and above(x[i], threshold)
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    first = np.int64(0)
    if kept and cuda.laneid == 0:
        first = cuda.atomic.add(count, 0, cuda.popc(lanes))
    first = cuda.shfl_sync(FULL_WARP, first, 0)
    if kept:
        out[first + rank_of(lanes)] = x[i]


@cuda.jit
def asked_by_every_lane(x, threshold, out, count):
    i = cuda.grid(1)
    kept = i < x.size and above(x[i], threshold)
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    first = cuda.atomic.add(count, 0, cuda.popc(lanes))
    first = cuda.shfl_sync(FULL_WARP, first, 0)
    if kept and first + rank_of(lanes) < out.size:
        out[first + rank_of(lanes)] = x[i]


@cuda.jit
def no_barrier_before_asking(x, threshold, out, count):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine, first = cuda.shared.array(1, np.int32), cuda.shared.array(1, np.int64)
    if thread == 0:
        mine[0] = 0
    cuda.syncthreads()
    before = np.int32(0)
    kept = i < x.size and above(x[i], threshold)
    if kept:
        before = cuda.atomic.add(mine, 0, 1)
    if thread == 0:
        first[0] = cuda.atomic.add(count, 0, mine[0])
    cuda.syncthreads()
    if kept:
        out[first[0] + before] = x[i]


@cuda.jit
def a_barrier_for_some(x, threshold, out, count):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine, first = cuda.shared.array(1, np.int32), cuda.shared.array(1, np.int64)
    if thread == 0:
        mine[0] = 0
    cuda.syncthreads()
    if i < x.size and above(x[i], threshold):
        before = cuda.atomic.add(mine, 0, 1)
        cuda.syncthreads()
        if before == 0:
            first[0] = cuda.atomic.add(count, 0, mine[0])
        cuda.syncthreads()
        out[first[0] + before] = x[i]


# --------------------------------------------------------------------------------------------------- in order, by tiles


@cuda.jit(device=True)
def in_block(x, threshold, tile, ends):
    """Whether this thread keeps its element, how many before it in the block are kept, and how many in all.

    ``ends``: a shared array of SLOTS.
    """
    i, warp = tile * BLOCK + cuda.threadIdx.x, cuda.threadIdx.x // 32
    kept = i < x.size and above(x[i], threshold)
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        ends[warp + 1] = cuda.popc(lanes)
    cuda.syncthreads()
    before, total = rank_of(lanes), 0
    for k in range(BLOCK // 32):
        if k < warp:
            before += ends[k + 1]
        total += ends[k + 1]
    return kept, before, total


def looking_back(publish=publish_count, last=True, own_start=True):
    """A filter of one pass with a part replaced. With none replaced it is right."""

    @cuda.jit
    def kernel(x, threshold, out, count, words):
        tile = next_tile(words, cuda.shared.array(1, np.int64))
        kept, before, total = in_block(x, threshold, tile, cuda.shared.array(SLOTS, np.int32))
        start = cuda.shared.array(1, np.int64)
        if cuda.threadIdx.x < 32:
            if cuda.threadIdx.x == 0:
                publish(words, tile, PARTIAL, total)
            earlier = look_back_counts(words, tile)
            if cuda.threadIdx.x == 0:
                publish_count(words, tile, COMPLETE, earlier + total)
                start[0] = earlier
                if last and tile == cuda.gridDim.x - 1:
                    count[0] = earlier + total
        cuda.syncthreads()
        if kept and own_start:
            out[start[0] + before] = x[tile * BLOCK + cuda.threadIdx.x]
        elif kept:
            out[tile * BLOCK + before] = x[tile * BLOCK + cuda.threadIdx.x]

    return kernel


@cuda.jit(device=True)
def complete_too_soon(words, tile, state, count):
    """A tile announces its own count as that of all up to its end."""
    publish_count(words, tile, COMPLETE, count)


@cuda.jit
def no_barrier_after_looking_back(x, threshold, out, count, words):
    tile = next_tile(words, cuda.shared.array(1, np.int64))
    kept, before, total = in_block(x, threshold, tile, cuda.shared.array(SLOTS, np.int32))
    start = cuda.shared.array(1, np.int64)
    if cuda.threadIdx.x < 32:
        if cuda.threadIdx.x == 0:
            publish_count(words, tile, PARTIAL, total)
        earlier = look_back_counts(words, tile)
        if cuda.threadIdx.x == 0:
            publish_count(words, tile, COMPLETE, earlier + total)
            start[0] = earlier
            if tile == cuda.gridDim.x - 1:
                count[0] = earlier + total
    if kept:
        out[start[0] + before] = x[tile * BLOCK + cuda.threadIdx.x]


@cuda.jit
def blocks_as_they_come(x, threshold, out, count, words):
    """In order within a block. But blocks get their places from one counter: the order of blocks is lost."""
    tile = np.int64(cuda.blockIdx.x)
    kept, before, total = in_block(x, threshold, tile, cuda.shared.array(SLOTS, np.int32))
    start = cuda.shared.array(1, np.int64)
    if cuda.threadIdx.x == 0:
        start[0] = cuda.atomic.add(count, 0, total)
    cuda.syncthreads()
    if kept:
        out[start[0] + before] = x[tile * BLOCK + cuda.threadIdx.x]


def inclusive_places(x, threshold=0):
    """The scan counts the element itself: every place is one too far."""
    p = room.arguments(x, threshold)
    if p.done:
        return p.result
    flags = room.device.empty(p.x.size, np.int32)
    grid = blocks(p.x.size, BLOCK)
    room.flags_kernel[grid, BLOCK](p.x, p.threshold, flags)
    places = room.scan.vectorised(flags)
    room.scatter_kernel[grid, BLOCK](p.x, flags, places, p.values, p.count)
    return p.result


RUNGS = (
    WrongRung(unordered(no_atomic), "race"),
    WrongRung(unordered(asked_by_those_who_keep), "race"),  # warps take the same places
    WrongRung(unordered(no_barrier_before_asking), "race"),
    WrongRung(ordered(no_barrier_after_looking_back), "race"),
    WrongRung(unordered(a_barrier_for_some), "divergent barrier"),
    WrongRung(unordered(no_guard), "out of bounds"),
    WrongRung(unordered(right, "not_cleared", cleared=False), "uninitialised read"),
    WrongRung(unordered(equal_too), "wrong result"),
    WrongRung(unordered(not_at_most), "wrong result"),
    WrongRung(unordered(only_finite), "wrong result"),
    WrongRung(unordered(ranks_from_one), "wrong result"),
    WrongRung(inclusive_places, "wrong result"),
    WrongRung(unordered(asked_by_every_lane), "wrong result"),
    WrongRung(ordered(looking_back(last=False), "last_tile_not_counted"), "wrong result"),
    WrongRung(ordered(looking_back(own_start=False), "gaps_between_tiles"), "wrong result"),
    WrongRung(ordered(looking_back(publish=complete_too_soon), "complete_too_soon"), "race"),
    WrongRung(ordered(blocks_as_they_come), "wrong result"),
)
RIGHT = (unordered(right), ordered(looking_back(), "looking_back"))
