"""All-reduce by peer memory: every GPU runs the same kernel, which loads from the others and stores to them.

Chapter: notebooks/99_all_reduce.ipynb.  PMPP 4e ch. 20.

A *rank* is a GPU, and has a number. Each kernel here is launched once on every rank, with the same arguments but for
``first``, its number, and its own arrays. GPUs do not start at the same time, so a kernel has to be told when another
rank's numbers are there. These kernels differ in how that is said, and in who adds:

    kernel       who adds what              loads from others    stores to others    waits for others
    packets      each rank everything       0                    2 (p - 1) n         each thread, for each element
    staged       each rank everything       (p - 1) n            0                   each block, once for each piece
    sent         each rank everything       0                    (p - 1) n           each block, once for each piece
    one_shot     each rank everything       (p - 1) n            0                   each block, twice
    two_shot     each rank a p-th part      (p - 1) n / p        (p - 1) n / p       each block, twice
    arrived      each rank everything       0                    0                   no one: `meet_kernel` does

for p ranks with n bytes each. `packets` is for short arrays: a number travels in a word of 64 bits with the round that
it belongs to, so whoever sees the word has the number, and nobody waits for more. `one_shot` and `two_shot` are for
arrays whose addresses all ranks know. `staged` is for others: these go in pieces through boxes whose addresses are
known. `sent` is `staged` with stores in the place of loads. A load from another GPU sends a request the other way,
where the other one's numbers come from; a store sends none. `arrived` is the adding part of `sent` alone. The numbers
are carried by the copy engines of the GPUs, which take no room on an SM.

Ranks add in the order of their numbers, so all get the same bits, from each kernel.

**Arguments that kernels share.** ``x`` and ``out``: this rank's array and its result, vectors of one dtype of 32 bits.
``op``: `SUM`, `PROD`, `MAX`, `MIN` or `MEAN`. ``boxes``, ``flags``, ``xs``, ``outs``: tuples with an address for each
rank. ``patience``: how often a thread looks before it gives up; then ``lost[0]`` becomes 1 plus the number of the rank
that did not come, and the ranks are out of step for good.

**Rounds.** A block counts its rounds, in ``rounds``: how often it has met the same block of the other ranks. All of a
rank's launches lie on one stream, or in graphs that are launched there, and all ranks launch the same grids. So the
counts of one block agree on all ranks, and nothing of it is an argument: a CUDA graph can repeat a launch.

**Several ranks in one grid.** The grid has a second extent: block (b, k) is block b of rank ``first + k``, whose array
begins at ``x[k * pitch]``. On several GPUs that extent is 1. One GPU, and the interpreter, can run all ranks in one
launch.

Source: S. Jeaugey, NCCL 2.0 (2017), for words that carry their flag; R. Thakur, R. Rabenseifner and W. Gropp,
Optimization of collective communication operations in MPICH (2005), for sums in two steps.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.runtime.addresses import array_at
from pmpp.runtime.system import (
    load_acquire_system,
    load_relaxed_system,
    store_relaxed_system,
    store_release_system,
)
from pmpp.runtime.vector import load128, store128

__all__ = [
    "BLOCK",
    "OPS",
    "PLACES",
    "UNROLL",
    "VECTOR",
    "arrived_kernel",
    "meet_kernel",
    "one_shot_kernel",
    "packets_kernel",
    "sent_kernel",
    "staged_kernel",
    "two_shot_kernel",
]

SUM, PROD, MAX, MIN, MEAN = range(5)
OPS = {"sum": SUM, "prod": PROD, "max": MAX, "min": MIN, "mean": MEAN}

BLOCK = 512
PLACES = 1024  # blocks that a grid has at most
RESIDENT = 2  # blocks that an SM holds at once: blocks wait for one another, so all of a grid have to be there
VECTOR = 4  # numbers of 32 bits in a load of 128
UNROLL = 4  # loads of 128 bits that a thread has under way from each rank


@cuda.jit(device=True)
def combine(op, a, b):
    """Combine ``a`` and ``b``. A NaN stays one. ``op`` is the same in all threads, so no warp diverges over it."""
    if op == MAX:
        return a if a > b or a != a else b
    if op == MIN:
        return a if a < b or a != a else b
    if op == PROD:
        return a * b
    return a + b


@cuda.jit(device=True)
def combine_vectors(op, a, b):
    """The same for four numbers."""
    return combine(op, a[0], b[0]), combine(op, a[1], b[1]), combine(op, a[2], b[2]), combine(op, a[3], b[3])


@cuda.jit(device=True)
def put(out, i, op, total, size):
    """Store the mean of what was added over ``size`` ranks, or another result as it is."""
    if op == MEAN:
        out[i] = total / size
    else:
        out[i] = total


@cuda.jit(device=True)
def put_vector(out, i, op, v, size):
    """The same for four numbers."""
    if op == MEAN:
        store128(out, i, (v[0] / size, v[1] / size, v[2] / size, v[3] / size))
    else:
        store128(out, i, v)


# ----------------------------------------------------------------------------------------------------------- the signal


@cuda.jit(device=True)
def count_round(rounds, place, more):
    """The number of this block's next round. ``more``: how many rounds it will count in this launch."""
    number = rounds[place] + 1
    cuda.syncthreads()  # all threads have read it
    if cuda.threadIdx.x == 0:
        rounds[place] += more
    return number


@cuda.jit(device=True)
def meet(flags, rank, number, patience, lost):
    """Wait until the same block of all ranks is here, in the round of this number. 1 if one has not come, else 0.

    ``flags``: of int64, with `PLACES` for each rank, which were 0 before the first round. Thread k tells rank k and
    waits for it. Before it speaks, it has met its block, so it speaks for all that the block has done; and the block
    goes on when all of these threads have heard from their ranks.
    """
    peer, place = cuda.threadIdx.x, cuda.blockIdx.x
    missing = 0
    cuda.syncthreads()
    if peer < len(flags):
        theirs = array_at(flags[peer], len(flags) * PLACES, np.int64)
        mine = array_at(flags[rank], len(flags) * PLACES, np.int64)
        store_release_system(theirs, rank * PLACES + place, number)
        looks = 0
        while load_acquire_system(mine, peer * PLACES + place) < number:
            looks += 1
            if looks > patience:
                missing = 1
                lost[0] = 1 + peer
                break
    return cuda.syncthreads_or(missing)


# --------------------------------------------------------------------------------------------- a number in every word


@cuda.jit
def packets_kernel(x, out, op, boxes, room, rounds, first, pitch, n, patience, lost):
    """Each thread sends its number to all ranks, in a word with the number of the round, and waits for theirs.

    ``boxes``: of int64, with ``2 * p * room`` words, which were 0 before the first round; ``n <= room``. The halves of
    a box take turns. A block writes a half again two rounds later. By then it has heard from the others in the round
    between, which these have begun when they had read that half. Blocks have `BLOCK` threads in all launches, so an
    element's place in the box is always the same block's.
    """
    k, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    number = count_round(rounds, k * PLACES + cuda.blockIdx.x, 1)
    if i >= n:
        return
    size, rank = len(boxes), first + k
    half, stamp = (number & 1) * size, number & 0x7FFFFFFF
    own = x[k * pitch + i]
    word = stamp << 32 | np.int64(np.uint32(own.view(np.int32)))
    for peer in range(size):
        if peer != rank:
            box = array_at(boxes[peer], 2 * size * room, np.int64)
            store_relaxed_system(box, (half + rank) * room + i, word)
    mine = array_at(boxes[rank], 2 * size * room, np.int64)
    total = own
    for peer in range(size):
        value = own
        if peer != rank:
            word = load_relaxed_system(mine, (half + peer) * room + i)
            looks = 0
            while word >> 32 != stamp:
                looks += 1
                if looks > patience:
                    lost[0] = 1 + peer
                    break
                word = load_relaxed_system(mine, (half + peer) * room + i)
            value = np.int32(word & 0xFFFFFFFF).view(x.dtype)
        total = combine(op, total, value) if peer > 0 else value
    put(out, k * pitch + i, op, total, x.dtype.type(size))


# ---------------------------------------------------------------------------------------------- addresses that all know


@cuda.jit(device=True)
def load_all(op, arrays, n, i, like):
    """Vector i of all ranks' arrays, combined."""
    total = load128(array_at(arrays[0], n, like.dtype), i)
    for peer in range(1, len(arrays)):
        total = combine_vectors(op, total, load128(array_at(arrays[peer], n, like.dtype), i))
    return total


@cuda.jit(device=True)
def load_one(op, arrays, n, i, like):
    """Element i of all ranks' arrays, combined."""
    total = array_at(arrays[0], n, like.dtype)[i]
    for peer in range(1, len(arrays)):
        total = combine(op, total, array_at(arrays[peer], n, like.dtype)[i])
    return total


@cuda.jit
def one_shot_kernel(x, out, op, xs, flags, rounds, first, pitch, n, patience, lost):
    """Every rank loads all arrays, and adds them for itself. It counts two rounds.

    Ranks meet at the start, since an array may not be there yet, and at the end: nobody may change an array that
    another one still reads.
    """
    k = cuda.blockIdx.y
    rank, size = first + k, x.dtype.type(len(xs))
    number = count_round(rounds, k * PLACES + cuda.blockIdx.x, 2)
    if meet(flags, rank, number, patience, lost):
        return
    thread = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    step = cuda.gridDim.x * cuda.blockDim.x
    vectors = n // VECTOR
    i = thread
    while i + (UNROLL - 1) * step < vectors:  # all loads are under way before the first is used
        a = load_all(op, xs, n, VECTOR * i, x)
        b = load_all(op, xs, n, VECTOR * (i + step), x)
        c = load_all(op, xs, n, VECTOR * (i + 2 * step), x)
        d = load_all(op, xs, n, VECTOR * (i + 3 * step), x)
        put_vector(out, k * pitch + VECTOR * i, op, a, size)
        put_vector(out, k * pitch + VECTOR * (i + step), op, b, size)
        put_vector(out, k * pitch + VECTOR * (i + 2 * step), op, c, size)
        put_vector(out, k * pitch + VECTOR * (i + 3 * step), op, d, size)
        i += UNROLL * step
    while i < vectors:
        put_vector(out, k * pitch + VECTOR * i, op, load_all(op, xs, n, VECTOR * i, x), size)
        i += step
    i = VECTOR * vectors + thread
    if i < n:
        put(out, k * pitch + i, op, load_one(op, xs, n, i, x), size)
    meet(flags, rank, number + 1, patience, lost)


@cuda.jit(device=True)
def put_all(arrays, n, i, op, v, size, like):
    """Store a vector of results in all ranks' arrays."""
    for peer in range(len(arrays)):
        put_vector(array_at(arrays[peer], n, like.dtype), i, op, v, size)


@cuda.jit
def two_shot_kernel(x, op, xs, outs, flags, rounds, first, n, patience, lost):
    """Every rank adds a p-th part of all arrays, and stores it to all ranks. It counts two rounds.

    An element is read and written by one rank alone, so the results may take the place of the arrays.
    """
    k = cuda.blockIdx.y
    rank, size = first + k, x.dtype.type(len(xs))
    number = count_round(rounds, k * PLACES + cuda.blockIdx.x, 2)
    if meet(flags, rank, number, patience, lost):
        return
    thread = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    step = cuda.gridDim.x * cuda.blockDim.x
    vectors = n // VECTOR
    i, last = vectors * rank // len(xs) + thread, vectors * (rank + 1) // len(xs)
    while i + (UNROLL - 1) * step < last:
        a = load_all(op, xs, n, VECTOR * i, x)
        b = load_all(op, xs, n, VECTOR * (i + step), x)
        c = load_all(op, xs, n, VECTOR * (i + 2 * step), x)
        d = load_all(op, xs, n, VECTOR * (i + 3 * step), x)
        put_all(outs, n, VECTOR * i, op, a, size, x)
        put_all(outs, n, VECTOR * (i + step), op, b, size, x)
        put_all(outs, n, VECTOR * (i + 2 * step), op, c, size, x)
        put_all(outs, n, VECTOR * (i + 3 * step), op, d, size, x)
        i += UNROLL * step
    while i < last:
        put_all(outs, n, VECTOR * i, op, load_all(op, xs, n, VECTOR * i, x), size, x)
        i += step
    i = VECTOR * vectors + thread
    if i < n and rank == 0:
        total = load_one(op, xs, n, i, x)
        for peer in range(len(outs)):
            put(array_at(outs[peer], n, x.dtype), i, op, total, size)
    meet(flags, rank, number + 1, patience, lost)


# ----------------------------------------------------------------------------------------------------- through boxes


@cuda.jit
def staged_kernel(x, out, op, boxes, area, flags, rounds, first, pitch, n, wide, patience, lost):
    """A block takes a piece of ``area`` elements, then another: it fills its part of a box, meets the others, and adds.

    ``boxes``: of the array's dtype. Block b has two areas for itself, from ``2 * area * b`` on, which take turns: who
    has met the others for one piece knows that these have read the piece before. So a block waits once for a piece, and
    while it waits, others are on the way. ``area`` is a multiple of 4, and always the same.

    ``wide``: 1 if ``x`` and ``out`` begin at a multiple of 16 bytes, else 0. It is a rank's own affair.
    """
    k, thread = cuda.blockIdx.y, cuda.threadIdx.x
    rank, size = first + k, x.dtype.type(len(boxes))
    words, step = 2 * area * cuda.gridDim.x, cuda.blockDim.x
    pieces = (n + area - 1) // area
    mine = (pieces - cuda.blockIdx.x + cuda.gridDim.x - 1) // cuda.gridDim.x  # pieces of this block
    number = count_round(rounds, k * PLACES + cuda.blockIdx.x, mine)
    box = array_at(boxes[rank], words, x.dtype)
    for piece in range(cuda.blockIdx.x, pieces, cuda.gridDim.x):
        here = (2 * cuda.blockIdx.x + (number & 1)) * area
        x0, count = k * pitch + piece * area, min(area, n - piece * area)
        vectors = count // VECTOR * wide
        for i in range(thread, vectors, step):
            store128(box, here + VECTOR * i, load128(x, x0 + VECTOR * i))
        for i in range(VECTOR * vectors + thread, count, step):
            box[here + i] = x[x0 + i]
        if meet(flags, rank, number, patience, lost):
            return
        for i in range(thread, vectors, step):
            put_vector(out, x0 + VECTOR * i, op, load_all(op, boxes, words, here + VECTOR * i, x), size)
        for i in range(VECTOR * vectors + thread, count, step):
            put(out, x0 + i, op, load_one(op, boxes, words, here + i, x), size)
        number += 1


# --------------------------------------------------------------------------------------------------- by stores alone


@cuda.jit(device=True)
def load_slots(op, x, i, box, here, area, rank, others):
    """A vector of all ranks' numbers, combined: one's own from ``x``, at i, and the others' from the slots of a box."""
    own = load128(x, i)
    total = own
    for peer in range(others + 1):
        v = own
        if peer != rank:
            v = load128(box, here + (peer - (peer > rank)) * area)
        total = combine_vectors(op, total, v) if peer > 0 else v
    return total


@cuda.jit(launch_bounds=(BLOCK, RESIDENT))
def sent_kernel(x, out, op, boxes, area, flags, rounds, first, pitch, n, patience, lost):
    """As `staged_kernel`, but a block stores its piece into the boxes of the others, and adds what lies in its own.

    ``boxes``: block b has ``2 * (p - 1) * area`` elements from ``2 * (p - 1) * area * b`` on: two halves, which take
    turns, with a slot for each other rank. ``x`` and ``out`` begin at a multiple of 16 bytes, ``n`` is a multiple of 4.
    """
    k, thread = cuda.blockIdx.y, cuda.threadIdx.x
    rank, others, size = first + k, len(boxes) - 1, x.dtype.type(len(boxes))
    words, step = 2 * others * area * cuda.gridDim.x, cuda.blockDim.x
    pieces = (n + area - 1) // area
    mine = (pieces - cuda.blockIdx.x + cuda.gridDim.x - 1) // cuda.gridDim.x  # pieces of this block
    number = count_round(rounds, k * PLACES + cuda.blockIdx.x, mine)
    own = array_at(boxes[rank], words, x.dtype)
    for piece in range(cuda.blockIdx.x, pieces, cuda.gridDim.x):
        here = (2 * cuda.blockIdx.x + (number & 1)) * others * area
        x0, vectors = k * pitch + piece * area, min(area, n - piece * area) // VECTOR
        for peer in range(others + 1):
            if peer != rank:
                box, slot = array_at(boxes[peer], words, x.dtype), here + (rank - (rank > peer)) * area
                for i in range(thread, vectors, step):
                    store128(box, slot + VECTOR * i, load128(x, x0 + VECTOR * i))
        if meet(flags, rank, number, patience, lost):
            return
        for i in range(thread, vectors, step):
            at = VECTOR * i
            put_vector(out, x0 + at, op, load_slots(op, x, x0 + at, own, here + at, area, rank, others), size)
        number += 1


# --------------------------------------------------------------------------------------------------- by copy engines


@cuda.jit
def meet_kernel(flags, rounds, first, patience, lost):
    """The ranks meet, and nothing else. Who is behind it on its stream knows what the others have done before theirs.

    One block of at least as many threads as there are ranks.
    """
    k = cuda.blockIdx.y
    meet(flags, first + k, count_round(rounds, k * PLACES, 1), patience, lost)


@cuda.jit
def arrived_kernel(x, out, op, boxes, area, begin, first, pitch, n):
    """Add what has arrived in the slots of this rank's box. All numbers are there before the launch.

    ``boxes``: a slot of ``area`` elements for each other rank, from ``begin`` on. ``x`` and ``out`` begin at a multiple
    of 16 bytes, and ``n`` is a multiple of 4. ``out`` may be ``x``.
    """
    k = cuda.blockIdx.y
    rank, others, size = first + k, len(boxes) - 1, x.dtype.type(len(boxes))
    own = array_at(boxes[rank], begin + others * area, x.dtype)
    x0, step = k * pitch, cuda.gridDim.x * cuda.blockDim.x
    for i in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, n // VECTOR, step):
        at = VECTOR * i
        put_vector(out, x0 + at, op, load_slots(op, x, x0 + at, own, begin + at, area, rank, others), size)
