"""Wrong versions of `merge` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.merge import ladder as room
from pmpp.kernels.merge.ladder import BLOCK, ITEMS, PIECE, TILE, co_rank, goes_first, merge_items, tile_of
from tests.support.wrong import WrongRung


def by_pieces(kernel, name=""):
    """``kernel(a, b, out)`` with a thread for each PIECE outputs, called as a rung is."""

    def merged(a, b):
        p = room.arguments(a, b)
        if not p.done:
            kernel[blocks(p.out.size, BLOCK * PIECE), BLOCK](p.a, p.b, p.out)
        return p.result

    merged.__name__ = name or kernel.py_func.__name__
    return merged


def by_tiles(kernel, name=""):
    """``kernel(a, b, borders, out)`` with a block for each TILE outputs, called as a rung is."""

    def merged(a, b):
        p = room.arguments(a, b)
        if not p.done:
            kernel[blocks(p.out.size, TILE), BLOCK](p.a, p.b, room.borders_of(p), p.out)
        return p.result

    merged.__name__ = name or kernel.py_func.__name__
    return merged


# --------------------------------------------------------------------------------------------------- a thread's pieces


def pieces(first=goes_first, search=co_rank):
    """A merge by pieces with a part replaced. With none replaced it is right."""

    @cuda.jit
    def kernel(a, b, out):
        k = np.int64(cuda.grid(1)) * PIECE
        if k < out.size:
            end = min(k + PIECE, out.size)
            i = search(k, a, b)
            j = k - i
            while k < end:
                if i < a.size and (j >= b.size or not first(b[j], a[i])):
                    out[k] = a[i]
                    i += 1
                else:
                    out[k] = b[j]
                    j += 1
                k += 1

    return by_pieces(kernel, first.py_func.__name__ if search is co_rank else search.py_func.__name__)


@cuda.jit(device=True)
def at_most(y, x):
    """b's equal elements first: not stable."""
    return y <= x


@cuda.jit(device=True)
def less_alone(y, x):
    """Right for numbers. Nothing is less than a NaN, so one in a lets no element of b pass."""
    return y < x


@cuda.jit(device=True)
def not_at_least(y, x):
    """A NaN of b is not at least x, so it comes first."""
    return not y >= x


@cuda.jit(device=True)
def half_of_each(k, a, b):
    """As if half of the first k outputs came from each."""
    return max(k - b.size, min(k // 2, a.size))


@cuda.jit(device=True)
def search_for_at_most(k, a, b):
    low, high = max(0, k - b.size), min(k, a.size)
    while low < high:
        i = low + high >> 1
        if b[k - 1 - i] <= a[i]:
            high = i
        else:
            low = i + 1
    return low


@cuda.jit(device=True)
def search_from_zero(k, a, b):
    """Without a bound by b's length: b[k - 1 - i] may not exist."""
    low, high = 0, min(k, a.size)
    while low < high:
        i = low + high >> 1
        if goes_first(b[k - 1 - i], a[i]):
            high = i
        else:
            low = i + 1
    return low


@cuda.jit
def never_at_an_end(a, b, out):
    """Nobody asks whether a vector is used up."""
    k = np.int64(cuda.grid(1)) * PIECE
    if k < out.size:
        i = co_rank(k, a, b)
        j = k - i
        for at in range(k, min(k + PIECE, out.size)):
            if goes_first(b[j], a[i]):
                out[at] = b[j]
                j += 1
            else:
                out[at] = a[i]
                i += 1


@cuda.jit
def beyond_the_end(a, b, out):
    k = np.int64(cuda.grid(1)) * PIECE
    if k < out.size:
        i = co_rank(k, a, b)
        for at in range(k, k + PIECE):
            j = at - i
            if i < a.size and (j >= b.size or not goes_first(b[j], a[i])):
                out[at] = a[i]
                i += 1
            elif j < b.size:
                out[at] = b[j]
            else:
                out[at] = 0


# -------------------------------------------------------------------------------------------------------------- tiles


def tiles(before=True, between=True, after=True):
    """`partitioned` with or without its barriers: before the merge, between reading and writing the tile, after it."""

    @cuda.jit
    def kernel(a, b, borders, out):
        thread, first = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * TILE
        tile, mine = cuda.shared.array(TILE, a.dtype), cuda.local.array(ITEMS, a.dtype)
        i, j, in_a, in_b = tile_of(borders, np.int64(cuda.blockIdx.x), out.size)
        count = np.uint32(in_a + in_b)
        for at in range(thread, TILE, BLOCK):
            if at < in_a:
                tile[at] = a[i + at]
            elif at < count:
                tile[at] = b[j + at - in_a]
            else:
                tile[at] = room.largest(a, b)
        if before:
            cuda.syncthreads()
        merge_items(tile, np.uint32(0), in_a, in_a, np.uint32(TILE), mine)
        if between:
            cuda.syncthreads()
        for item in range(ITEMS):
            tile[thread * ITEMS + item] = mine[item]
        if after:
            cuda.syncthreads()
        for at in range(thread, count, BLOCK):
            out[first + at] = tile[at]

    return kernel


def wherever_it_begins(a, b):
    """128-bit accesses wherever the arrays begin."""
    p = room.arguments(a, b)
    if not p.done:
        room.vectorised_kernel[blocks(p.out.size, TILE), BLOCK](p.a, p.b, room.borders_of(p), p.out)
    return p.result


RUNGS = (
    WrongRung(pieces(at_most), "wrong result"),
    WrongRung(pieces(less_alone), "wrong result"),
    WrongRung(pieces(not_at_least), "wrong result"),
    WrongRung(pieces(search=half_of_each), "wrong result"),
    WrongRung(pieces(search=search_for_at_most), "wrong result"),
    WrongRung(pieces(search=search_from_zero), "out of bounds"),
    WrongRung(by_pieces(never_at_an_end), "out of bounds"),
    WrongRung(by_pieces(beyond_the_end), "out of bounds"),
    WrongRung(by_tiles(tiles(before=False), "no_barrier_before_the_merge"), "race"),
    WrongRung(by_tiles(tiles(between=False), "no_barrier_before_writing_the_tile"), "race"),
    WrongRung(by_tiles(tiles(after=False), "no_barrier_before_the_store"), "race"),
    WrongRung(wherever_it_begins, "misaligned"),
)
RIGHT = (pieces(), by_tiles(tiles(), "tiles"))
