"""Wrong all-reduces by peer memory, each with what gives it away."""

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common.peers import PLACES, combine, count_round, meet
from pmpp.runtime.addresses import array_at
from pmpp.runtime.system import (
    load_acquire_system,
    load_relaxed_system,
    store_relaxed_system,
    store_release_system,
)


class Wrong(typing.NamedTuple):
    """``kernel`` in the place of the one of `Ranks`' method ``way``; ``reason``: a hazard, or "wrong result"."""

    name: str
    way: str
    reason: str
    kernel: typing.Any


WRONG: list[Wrong] = []


def wrong(way, reason):
    return lambda kernel: WRONG.append(Wrong(kernel.py_func.__name__, way, reason, kernel)) or kernel


@wrong("one_shot", "race")
@cuda.jit
def nobody_waits_at_the_start(x, out, op, xs, flags, rounds, first, pitch, n, patience, lost):
    """Ranks write to each other's results at once, as if all were there: the array may be changed meanwhile."""
    k = cuda.blockIdx.y
    rank = first + k
    number = count_round(rounds, k * PLACES + cuda.blockIdx.x, 1)
    mine = array_at(xs[rank], n, x.dtype)
    step = cuda.gridDim.x * cuda.blockDim.x
    for i in range(cuda.grid(2)[0], n, step):
        mine[i] = mine[i] + 0 * number  # the work before, which others do not wait for
    for i in range(cuda.grid(2)[0], n, step):
        total = mine[i]
        for peer in range(len(xs)):
            if peer != rank:
                total += array_at(xs[peer], n, x.dtype)[i]
        out[k * pitch + i] = total
    meet(flags, rank, number, patience, lost)


def staged(meeting, halves=True):
    """The staged kernel, number by number, with another signal."""

    @cuda.jit
    def kernel(x, out, op, boxes, area, flags, rounds, first, pitch, n, wide, patience, lost):
        k, thread = cuda.blockIdx.y, cuda.threadIdx.x
        rank = first + k
        words, step = 2 * area * cuda.gridDim.x, cuda.blockDim.x
        pieces = (n + area - 1) // area
        mine = (pieces - cuda.blockIdx.x + cuda.gridDim.x - 1) // cuda.gridDim.x
        number = count_round(rounds, k * PLACES + cuda.blockIdx.x, mine)
        box = array_at(boxes[rank], words, x.dtype)
        for piece in range(cuda.blockIdx.x, pieces, cuda.gridDim.x):
            here = (2 * cuda.blockIdx.x + (number & 1 if halves else 0)) * area
            x0, count = k * pitch + piece * area, min(area, n - piece * area)
            for i in range(thread, count, step):
                box[here + i] = x[x0 + i]
            if meeting(flags, rank, number, patience, lost):
                return
            for i in range(thread, count, step):
                total = array_at(boxes[0], words, x.dtype)[here + i]
                for peer in range(1, len(boxes)):
                    total = combine(op, total, array_at(boxes[peer], words, x.dtype)[here + i])
                out[x0 + i] = total
            number += 1

    return kernel


def enter(name, reason, kernel):
    WRONG.append(Wrong(name, "staged", reason, kernel))


enter("one_area_for_all_rounds", "race", staged(meet, halves=False))


@cuda.jit(device=True)
def meet_relaxed(flags, rank, number, patience, lost):
    """Signals that order nothing: whoever sees the number may not see what was written before it."""
    peer, place = cuda.threadIdx.x, cuda.blockIdx.x
    cuda.syncthreads()
    if peer < len(flags):
        theirs = array_at(flags[peer], len(flags) * PLACES, np.int64)
        mine = array_at(flags[rank], len(flags) * PLACES, np.int64)
        store_relaxed_system(theirs, rank * PLACES + place, number)
        looks = 0
        while load_relaxed_system(mine, peer * PLACES + place) < number and looks < patience:
            looks += 1
    cuda.syncthreads()
    return 0


@cuda.jit(device=True)
def meet_without_its_block_before(flags, rank, number, patience, lost):
    """The thread that signals has not met the others of its block, and speaks for them."""
    peer, place = cuda.threadIdx.x, cuda.blockIdx.x
    if peer < len(flags):
        theirs = array_at(flags[peer], len(flags) * PLACES, np.int64)
        mine = array_at(flags[rank], len(flags) * PLACES, np.int64)
        store_release_system(theirs, rank * PLACES + place, number)
        looks = 0
        while load_acquire_system(mine, peer * PLACES + place) < number and looks < patience:
            looks += 1
    cuda.syncthreads()
    return 0


@cuda.jit(device=True)
def meet_without_its_block_behind(flags, rank, number, patience, lost):
    """The threads that have waited go on, and the others have never waited."""
    peer, place = cuda.threadIdx.x, cuda.blockIdx.x
    cuda.syncthreads()
    if peer < len(flags):
        theirs = array_at(flags[peer], len(flags) * PLACES, np.int64)
        mine = array_at(flags[rank], len(flags) * PLACES, np.int64)
        store_release_system(theirs, rank * PLACES + place, number)
        looks = 0
        while load_acquire_system(mine, peer * PLACES + place) < number and looks < patience:
            looks += 1
    return 0


enter("signals_that_order_nothing", "race", staged(meet_relaxed))
enter("a_thread_speaks_for_others_unmet", "race", staged(meet_without_its_block_before))
enter("only_some_threads_wait", "race", staged(meet_without_its_block_behind))


@wrong("packets", "wrong result")
@cuda.jit
def packets_without_a_round(x, out, op, boxes, room, rounds, first, pitch, n, patience, lost):
    """A word counts as soon as it is not 0: from the second round on that is an old one."""
    k, i = cuda.blockIdx.y, cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= n:
        return
    size, rank = len(boxes), first + k
    own = x[k * pitch + i]
    for peer in range(size):
        box = array_at(boxes[peer], 2 * size * room, np.int64)
        store_relaxed_system(box, rank * room + i, np.int64(1) << 32 | np.int64(np.uint32(own.view(np.int32))))
    mine = array_at(boxes[rank], 2 * size * room, np.int64)
    total = np.float32(0)
    for peer in range(size):
        word = load_relaxed_system(mine, peer * room + i)
        looks = 0
        while word == 0 and looks < patience:
            word = load_relaxed_system(mine, peer * room + i)
            looks += 1
        total += np.int32(word & 0xFFFFFFFF).view(x.dtype)
    out[k * pitch + i] = total


def sent(halves=True, early=False):
    """The kernel that stores its pieces in the box of the other one, number by number, for two ranks."""

    @cuda.jit
    def kernel(x, out, op, boxes, area, flags, rounds, first, pitch, n, patience, lost):
        k, thread, step = cuda.blockIdx.y, cuda.threadIdx.x, cuda.blockDim.x
        rank, words = first + k, 2 * area * cuda.gridDim.x
        pieces = (n + area - 1) // area
        mine = (pieces - cuda.blockIdx.x + cuda.gridDim.x - 1) // cuda.gridDim.x
        number = count_round(rounds, k * PLACES + cuda.blockIdx.x, mine)
        box, theirs = array_at(boxes[rank], words, x.dtype), array_at(boxes[1 - rank], words, x.dtype)
        for piece in range(cuda.blockIdx.x, pieces, cuda.gridDim.x):
            here = (2 * cuda.blockIdx.x + (number & 1 if halves else 0)) * area
            x0, count = k * pitch + piece * area, min(area, n - piece * area)
            for i in range(thread, count, step):
                theirs[here + i] = x[x0 + i]
            if not early and meet(flags, rank, number, patience, lost):
                return
            for i in range(thread, count, step):
                out[x0 + i] = combine(op, x[x0 + i], box[here + i])
            if early and meet(flags, rank, number, patience, lost):
                return
            number += 1

    return kernel


WRONG.append(Wrong("one_slot_for_all_pieces", "sent", "race", sent(halves=False)))
WRONG.append(Wrong("adds_before_it_has_met", "sent", "race", sent(early=True)))


@wrong("copied", "out_of_bounds")
@cuda.jit
def looks_into_its_own_slot(x, out, op, boxes, area, begin, first, pitch, n):
    """A rank has no slot for itself, so those of the ranks behind it are one further to the front."""
    k = cuda.blockIdx.y
    rank, others = first + k, len(boxes) - 1
    own = array_at(boxes[rank], begin + others * area, x.dtype)
    for i in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, n, cuda.gridDim.x * cuda.blockDim.x):
        total = x[k * pitch + i]
        for peer in range(others + 1):
            if peer != rank:
                total = combine(op, total, own[begin + peer * area + i])
        out[k * pitch + i] = total


@wrong("copied", "wrong result")
@cuda.jit
def forgets_which_slot_it_is(x, out, op, boxes, area, begin, first, pitch, n):
    """Slots take turns, and this one looks into the first each time."""
    k = cuda.blockIdx.y
    rank, others = first + k, len(boxes) - 1
    own = array_at(boxes[rank], begin + others * area, x.dtype)
    for i in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, n, cuda.gridDim.x * cuda.blockDim.x):
        out[k * pitch + i] = combine(op, x[k * pitch + i], own[i])
