"""Wrong versions of `segments` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.sort import ladder, pairs
from pmpp.kernels.sort import segments as room
from tests.support.wrong import WrongRung


def named(sort, name=""):
    """``sort(p)``, called as a rung is."""

    def sorted_segments(x, starts):
        p = room.arguments(x, starts)
        if not p.done:
            sort(p)
        return p.result

    sorted_segments.__name__ = name or sort.__name__
    return sorted_segments


def by_blocks(kernel):
    """A block for each segment, with another kernel."""

    def sort(p):
        kernel[p.segments, room.BLOCK](*room.arrays_of(p))

    return named(sort, kernel.py_func.__name__)


@cuda.jit(device=True)
def sort_words(words, count):
    half = 1
    while half < count:
        distance = half
        while distance > 0:
            room.step_of_words(words, count, distance, distance == half)
            distance >>= 1
        half <<= 1


@cuda.jit
def no_barrier(x, carried, starts, turn, out, carried_out):
    words = cuda.shared.array(room.LONGEST, np.int64)
    first = np.int64(starts[cuda.blockIdx.x])
    count = starts[cuda.blockIdx.x + 1] - first
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        words[at] = room.with_place(x[first + at], turn, at)
    sort_words(words, count)
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        room.move(x, carried, first, words[at], at, out, carried_out)


@cuda.jit
def places_in_the_vector(x, carried, starts, turn, out, carried_out):
    """A key's place is counted from the beginning of x, and then from the segment's once more."""
    words = cuda.shared.array(room.LONGEST, np.int64)
    first = np.int64(starts[cuda.blockIdx.x])
    count = starts[cuda.blockIdx.x + 1] - first
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        words[at] = room.with_place(x[first + at], turn, first + at)
    cuda.syncthreads()
    sort_words(words, count)
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        room.move(x, carried, first, words[at], at, out, carried_out)


@cuda.jit
def one_key_too_few(x, carried, starts, turn, out, carried_out):
    first = np.int64(starts[cuda.blockIdx.x])
    count = starts[cuda.blockIdx.x + 1] - first - 1
    words = cuda.shared.array(room.LONGEST, np.int64)
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        words[at] = room.with_place(x[first + at], turn, at)
    cuda.syncthreads()
    sort_words(words, count)
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        room.move(x, carried, first, words[at], at, out, carried_out)


@cuda.jit
def bits_as_they_are(x, carried, starts, turn, out, carried_out):
    """Negative numbers last, as their first bit is set."""
    words = cuda.shared.array(room.LONGEST, np.int64)
    first = np.int64(starts[cuda.blockIdx.x])
    count = starts[cuda.blockIdx.x + 1] - first
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        words[at] = room.with_place(x[first + at], np.uint32(0), at)
    cuda.syncthreads()
    sort_words(words, count)
    for at in range(cuda.threadIdx.x, count, room.BLOCK):
        room.move(x, carried, first, words[at], at, out, carried_out)


def segments_forgotten(p):
    """All keys together."""
    ladder.one_sweep.launch(ladder.arguments(p.x, out=p.out))


def by_the_segment_first(p):
    """The first sort by the segment, and the second by the key: that one decides."""
    order, numbers = pairs.numbered(p.x), room.device.empty(p.x.size, np.uint32)
    room.number_kernel[1 + p.x.size // 256, 256](p.starts, cuda.to_device(np.arange(p.x.size)), numbers)
    pairs.one_sweep.launch(order)
    room.take_kernel[1 + p.x.size // 256, 256](p.x, p.carried, order.result, p.out, p.carried_out)


RUNGS = (
    WrongRung(by_blocks(no_barrier), "race"),
    WrongRung(by_blocks(places_in_the_vector), "out of bounds"),
    WrongRung(by_blocks(one_key_too_few), "wrong result"),
    WrongRung(by_blocks(bits_as_they_are), "wrong result"),
    WrongRung(named(segments_forgotten), "wrong result"),
    WrongRung(named(by_the_segment_first), "wrong result"),
)
RIGHT = (by_blocks(room.in_blocks_kernel),)
