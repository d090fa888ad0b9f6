"""Tiles of a scan that pass on totals while they run: device functions for `single_pass` and `vectorised`.

A tile publishes its own total (PARTIAL), then looks back until it knows what came before it, and publishes the total up
to its end (COMPLETE). There are two forms. One keeps state and value apart, for any dtype. The other packs both into
one word of 64 bits, for elements of 32 bits.

Every tile waits for earlier ones only, and tiles are numbered in the order in which their blocks begin. So the earliest
unfinished tile never waits, and all tiles finish, however few blocks the GPU runs at a time.
Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", NVR-2016-002.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.reduction.ladder import combine

NOTHING, PARTIAL, COMPLETE = 0, 1, 2  # what a tile has published: nothing, its own total, the total up to its end


@cuda.jit(device=True)
def next_tile(states, box):
    """The number of the tile that this block takes. Running blocks get tiles in order.

    ``states[0]`` counts the tiles handed out; a grid of one block does not use it. ``box``: a shared array that
    carries the number from thread 0 to the others.
    """
    if cuda.threadIdx.x == 0:
        box[0] = cuda.atomic.add(states, 0, 1) if cuda.gridDim.x > 1 else 0
    cuda.syncthreads()
    return box[0]


@cuda.jit(device=True)
def publish(states, values, tile, state, value):
    """Write a tile's value, and only then the state that announces it. A single tile publishes nothing."""
    if cuda.gridDim.x > 1:
        values[state - 1, tile] = value
        cuda.threadfence()
        cuda.atomic.exch(states, tile + 1, state)


@cuda.jit(device=True)
def warp_combine_back(op, value):
    """Combine the warp's values, those of higher lanes first; the result is in lane 0."""
    for distance in (1, 2, 4, 8, 16):
        value = combine(op, cuda.shfl_down_sync(FULL_WARP, value, distance), value)
    return value


@cuda.jit(device=True)
def look_back(states, values, tile, op, identity):
    """Combine all that comes before ``tile``; the result is in lane 0. A warp looks at 32 earlier tiles at a time."""
    before = identity
    last = tile - 1  # lane 0 looks at this one, lane 1 at the one before it
    while last >= 0:
        mine = last - cuda.laneid
        state = np.int64(COMPLETE)
        if mine >= 0:
            state = cuda.atomic.add(states, mine + 1, 0)  # an atomic reads memory each time, unlike states[mine + 1]
            while state == NOTHING:
                state = cuda.atomic.add(states, mine + 1, 0)
        cuda.syncwarp()  # lanes leave the loop at different times. They meet here, so one fence after it serves all
        cuda.threadfence()
        value = values[state - 1, mine] if mine >= 0 else identity  # nothing lies before the first tile
        complete = cuda.ballot_sync(FULL_WARP, state == COMPLETE)
        nearest = cuda.ffs(complete) - 1 if complete else 31
        if cuda.laneid > nearest:
            value = identity  # the nearest complete total already includes it
        before = combine(op, warp_combine_back(op, value), before)
        if complete:
            break
        last -= 32
    return before


# A word has the state in its upper half and a value of 32 bits in its lower one. A value of 64 bits takes two words, a
# half of it in each: the second lies as many places behind the first as there are tiles. ``like`` is as in
# `pmpp.kernels.scan.tile`: a vector of two elements has elements of 64 bits.

LOOK = 4  # warps that look back together, at 32 tiles each


@cuda.jit(device=True)
def publish_words(words, tile, state, value, like):
    """Write state and value as a word of 64 bits, or as two. A reader sees both parts of a word or none: no fence."""
    if cuda.gridDim.x > 1:
        if len(like) == 2:
            bits = value.view(np.int64)
            high = np.int64(state) << 32 | np.int64(np.uint32(bits >> 32))
            cuda.atomic.exch(words, tile + 1 + cuda.gridDim.x, high)
        else:
            bits = np.int64(value.view(np.int32))
        cuda.atomic.exch(words, tile + 1, np.int64(state) << 32 | np.int64(np.uint32(bits)))


@cuda.jit(device=True)
def words_of(words, tile, like):
    """The words of a tile as they are now. An atomic reads memory each time, unlike words[tile + 1]."""
    low = cuda.atomic.add(words, tile + 1, 0)
    return low, cuda.atomic.add(words, tile + 1 + cuda.gridDim.x, 0) if len(like) == 2 else low


@cuda.jit(device=True)
def value_of(low, high, like, wide):
    if len(like) == 2:
        return (high << 32 | np.int64(np.uint32(low))).view(wide.dtype)
    return np.int32(low).view(wide.dtype)


@cuda.jit(device=True)
def join_window(words, mine, op, identity, like, wide):
    """Combine what 32 tiles have published, up to the nearest complete one; and whether there is one.

    ``mine``: the tile that this lane looks at. Nothing lies before the first tile, and that is complete.
    """
    low, high = words_of(words, max(mine, 0), like)
    while mine >= 0 and (low >> 32 == NOTHING or low >> 32 != high >> 32):  # nothing yet, or one half is newer
        low, high = words_of(words, mine, like)
    cuda.syncwarp()
    complete = cuda.ballot_sync(FULL_WARP, mine < 0 or low >> 32 == COMPLETE)
    nearest = cuda.ffs(complete) - 1 if complete else 31
    value = value_of(low, high, like, wide) if mine >= 0 and cuda.laneid <= nearest else identity
    return warp_combine_back(op, value), complete != 0


@cuda.jit(device=True)
def look_back_words(words, tile, op, identity, like, wide):
    """As `look_back`, from words, by LOOK warps at once; the result is in all threads, and all must call it.

    If all tiles of a grid run at the same time, none is complete when the others look. Each round of looking then adds
    as many tiles as are looked at.
    """
    seen, known = cuda.shared.array(LOOK, wide.dtype), cuda.shared.array(LOOK, np.int32)
    before, last = identity, tile - 1
    while last >= 0:
        if cuda.threadIdx.x < 32 * LOOK:
            value, complete = join_window(words, last - cuda.threadIdx.x, op, identity, like, wide)
            if cuda.laneid == 0:
                seen[cuda.threadIdx.x // 32], known[cuda.threadIdx.x // 32] = value, complete
        cuda.syncthreads()
        for k in range(LOOK):
            if last >= 0:
                before = wide.dtype.type(combine(op, seen[k], before))
                last = -1 if known[k] else last - 32
        if last >= 0:
            cuda.syncthreads()  # all have read before any writes again
    return before
