"""Tiles of a scan that pass on totals while they run: device functions for `single_pass` and `vectorised`.

A tile publishes its own total (PARTIAL), then looks back until it knows what came before it, and publishes the total up
to its end (COMPLETE). There are three forms. One keeps state and value apart, for any dtype. Another packs both into
one word of 64 bits, for elements of 32 bits. The third is for elements of 64 bits: each half has its own such word.

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


@cuda.jit(device=True)
def publish_word(words, tile, state, value):
    """Write state and value as one word of 64 bits. A reader sees both or neither, so no fence is needed."""
    if cuda.gridDim.x > 1:
        word = np.int64(state) << 32 | np.int64(np.uint32(value.view(np.int32)))
        cuda.atomic.exch(words, tile + 1, word)


@cuda.jit(device=True)
def look_back_words(words, tile, op, identity, out):
    """As `look_back`, from words of state and value. The value has the dtype of ``out``."""
    before = identity
    last = tile - 1
    while last >= 0:
        mine = last - cuda.laneid
        word = np.int64(COMPLETE) << 32 | np.int64(np.uint32(identity.view(np.int32)))
        if mine >= 0:
            word = cuda.atomic.add(words, mine + 1, 0)
            while word >> 32 == NOTHING:
                word = cuda.atomic.add(words, mine + 1, 0)
        cuda.syncwarp()
        complete = cuda.ballot_sync(FULL_WARP, word >> 32 == COMPLETE)
        nearest = cuda.ffs(complete) - 1 if complete else 31
        value = np.int32(word).view(out.dtype) if cuda.laneid <= nearest else identity
        before = combine(op, warp_combine_back(op, value), before)
        if complete:
            break
        last -= 32
    return before


@cuda.jit(device=True)
def publish_halves(words, tile, state, value):
    """As `publish_word`, for a value of 64 bits: one word has its low half, the next its high half, both the state."""
    if cuda.gridDim.x > 1:
        bits, half = np.int64(value.view(np.int64)), np.int64(0xFFFFFFFF)
        cuda.atomic.exch(words, 2 * tile + 1, np.int64(state) << 32 | bits & half)
        cuda.atomic.exch(words, 2 * tile + 2, np.int64(state) << 32 | bits >> 32 & half)


@cuda.jit(device=True)
def look_back_halves(words, tile, op, identity, out):
    """As `look_back_words`, from two words for each tile.

    A state is published once for each tile. So two halves with the same state are halves of the same value.
    """
    before = identity
    last = tile - 1
    while last >= 0:
        mine = last - cuda.laneid
        low = high = np.int64(COMPLETE) << 32
        if mine >= 0:
            low, high = cuda.atomic.add(words, 2 * mine + 1, 0), cuda.atomic.add(words, 2 * mine + 2, 0)
            while low >> 32 == NOTHING or low >> 32 != high >> 32:
                low, high = cuda.atomic.add(words, 2 * mine + 1, 0), cuda.atomic.add(words, 2 * mine + 2, 0)
        cuda.syncwarp()
        complete = cuda.ballot_sync(FULL_WARP, low >> 32 == COMPLETE)
        nearest = cuda.ffs(complete) - 1 if complete else 31
        value = np.int64(high << 32 | low & 0xFFFFFFFF).view(out.dtype)
        if mine < 0 or cuda.laneid > nearest:
            value = identity
        before = combine(op, warp_combine_back(op, value), before)
        if complete:
            break
        last -= 32
    return before
