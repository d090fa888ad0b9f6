"""Wrong versions of `partition` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.filter import partition as room
from pmpp.kernels.filter.ladder import above
from tests.support.wrong import WrongRung


def named(part, name=""):
    """``part(p)``, called as a rung is."""

    def parted(x, threshold=0):
        p = room.arguments(x, threshold)
        if not p.done:
            part(p)
        return p.result

    parted.__name__ = name or part.__name__
    return parted


def scattered(kernel):
    """`by_scan` with another last kernel."""

    def part(p):
        n = p.x.size
        flags = room.device.empty(n, np.int32)
        room.flags_kernel[blocks(n, 256), 256](p.x, p.threshold, flags)
        places = room.scan.vectorised(flags, exclusive=True)
        kernel[blocks(n, 256), 256](p.x, flags, places, p.values, p.count)

    return named(part, kernel.py_func.__name__)


@cuda.jit
def others_behind_their_own_index(x, flags, places, out, count):
    """The others are put behind the kept ones that came before them, and not behind all."""
    i, last = cuda.grid(1), x.size - 1
    if i < x.size:
        out[places[i] if flags[i] else i] = x[i]
        if i == last:
            count[0] = places[last] + flags[last]


@cuda.jit
def last_flag_forgotten(x, flags, places, out, count):
    """The exclusive scan ends before the last flag."""
    i, last = cuda.grid(1), x.size - 1
    if i < x.size:
        out[places[i] if flags[i] else places[last] + i - places[i]] = x[i]
        if i == last:
            count[0] = places[last]


@cuda.jit
def from_the_end(x, flags, places, out, count):
    """The others from the end: turned around."""
    i, last = cuda.grid(1), x.size - 1
    if i < x.size:
        out[places[i] if flags[i] else last - (i - places[i])] = x[i]
        if i == last:
            count[0] = places[last] + flags[last]


@cuda.jit
def without_a_guard(x, flags, places, out, count):
    i, last = cuda.grid(1), x.size - 1
    kept = places[last] + flags[last]
    out[places[i] if flags[i] else kept + i - places[i]] = x[i]
    if i == last:
        count[0] = kept


@cuda.jit
def by_two_counters_kernel(x, threshold, out, counters):
    i = cuda.grid(1)
    if i < x.size:
        if above(x[i], threshold):
            out[cuda.atomic.add(counters, 0, 1)] = x[i]
        else:
            out[x.size - 1 - cuda.atomic.add(counters, 1, 1)] = x[i]


def by_two_counters(p):
    """Every element has a place, and no two the same. But the order is lost."""
    counters = cuda.to_device(np.zeros(2, np.int64))
    by_two_counters_kernel[blocks(p.x.size, 256), 256](p.x, p.threshold, p.values, counters)
    p.count.copy_to_device(counters[:1].copy_to_host())


def not_turned_back(p):
    """`single_pass` without its second launch."""
    tiles = blocks(p.x.size, room.TILE)
    words = room.words_for(tiles, 0)
    room.single_pass_kernel[tiles, room.TILE_BLOCK](p.x, p.threshold, words, p.values, p.count)


RUNGS = (
    WrongRung(scattered(others_behind_their_own_index), "race"),
    WrongRung(scattered(last_flag_forgotten), "race"),
    WrongRung(scattered(from_the_end), "wrong result"),
    WrongRung(scattered(without_a_guard), "out of bounds"),
    WrongRung(named(by_two_counters), "wrong result"),
    WrongRung(named(not_turned_back), "wrong result"),
)
RIGHT = (scattered(room.scatter_both_kernel),)
