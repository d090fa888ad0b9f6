"""Wrong versions of `shortest_paths` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.wavefront import shortest_paths as room
from pmpp.kernels.wavefront.shortest_paths import BLOCK, FOUR, PIVOT_THREADS, SIDE, WIDE, element, other_tile, through
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung


def named(find, name=""):
    """``find(d)`` in place, called as a rung is."""

    def found(weights):
        p = room.arguments(weights)
        if not p.done:
            room.edges_alone(p)
            find(p.result)
        return p.result

    found.__name__ = name or find.__name__
    return found


# --------------------------------------------------------------------------------------------------------- by vertex


def launched(kernel, name=""):
    """A launch for each vertex."""

    def find(d):
        n = d.shape[0]
        for k in range(n):
            kernel[n * -(-n // BLOCK), BLOCK](d, k)

    return named(find, name or kernel.py_func.__name__)


@cuda.jit
def row_and_column_written(d, k):
    """What the others read is written, if only with what is there."""
    row, column = room.place_in_row(d.shape[1])
    if column < d.shape[1]:
        d[row, column] = min(d[row, column], d[row, k] + d[k, column])


@cuda.jit
def no_guard(d, k):
    row, column = room.place_in_row(d.shape[1])
    if row != k != column:
        d[row, column] = min(d[row, column], d[row, k] + d[k, column])


@cuda.jit
def edges_the_other_way(d, k):
    row, column = room.place_in_row(d.shape[1])
    if column < d.shape[1] and row != k != column:
        d[row, column] = min(d[row, column], d[k, row] + d[k, column])


@cuda.jit
def all_stops_at_once_kernel(d):
    row, column = room.place_in_row(d.shape[1])
    if column < d.shape[1]:
        best = d[row, column]
        for k in range(d.shape[0]):
            best = min(best, d[row, k] + d[k, column])
        d[row, column] = best


def all_stops_at_once(d):
    n = d.shape[0]
    all_stops_at_once_kernel[n * -(-n // BLOCK), BLOCK](d)


def one_stop_alone(d):
    """As `by_vertex`, but each stop is added to the edges and not to the paths so far."""
    edges = cuda.to_device(d.copy_to_host())
    n = d.shape[0]
    for k in range(n):
        apart[n * -(-n // BLOCK), BLOCK](edges, d, k)


@cuda.jit
def apart(edges, d, k):
    row, column = room.place_in_row(d.shape[1])
    if column < d.shape[1]:
        d[row, column] = min(d[row, column], edges[row, k] + edges[k, column])


# ------------------------------------------------------------------------------------------------------------ blocked


def blocked(name, pivot=room.pivot_kernel, panels=room.panels_kernel, rest=room.rest_kernel, order=(0, 1, 2)):
    """`blocked` with other kernels, or with its phases in another order."""

    def find(d):
        n = d.shape[0]
        others = -(-n // SIDE) - 1
        for k in range(0, n, SIDE):
            phases = (
                lambda k=k: pivot[1, (SIDE, SIDE)](d, k),
                lambda k=k: panels[2 * others, (SIDE, SIDE)](d, k, others),
                lambda k=k: rest[others * others, (SIDE, SIDE)](d, k, others),
            )
            for number in order:
                if number == 0 or others:
                    phases[number]()

    return named(find, name)


@cuda.jit
def pivot_without_barrier(d, first):
    tile = cuda.shared.array((SIDE, SIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    mine = element(d, first + y, first + x)
    tile[y, x] = mine
    for k in range(SIDE):
        if y != k != x:
            mine = min(mine, tile[y, k] + tile[k, x])
            tile[y, x] = mine
    if first + y < d.shape[0] and first + x < d.shape[1]:
        d[first + y, first + x] = mine


@cuda.jit
def pivot_in_one_pass(d, first):
    """All stops of the tile at once, as in the other tiles: here paths wander among them."""
    tile = cuda.shared.array((SIDE, SIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    mine = element(d, first + y, first + x)
    tile[y, x] = mine
    cuda.syncthreads()
    mine = through(tile, tile, y, x, mine)
    if first + y < d.shape[0] and first + x < d.shape[1]:
        d[first + y, first + x] = mine


@cuda.jit
def rest_beyond_the_border(d, first, others):
    """Tiles at the border are filled up with 0, which is a short way from anywhere."""
    left, right = cuda.shared.array((SIDE, SIDE), np.float32), cuda.shared.array((SIDE, SIDE), np.float32)
    x, y, n = cuda.threadIdx.x, cuda.threadIdx.y, d.shape[0]
    row = other_tile(cuda.blockIdx.x // others, first, SIDE) + y
    column = other_tile(cuda.blockIdx.x % others, first, SIDE) + x
    left[y, x] = d[row, first + x] if row < n and first + x < n else np.float32(0)
    right[y, x] = d[first + y, column] if column < n and first + y < n else np.float32(0)
    cuda.syncthreads()
    if row < n and column < n:
        d[row, column] = through(left, right, y, x, d[row, column])


def nan_kept(weights):
    """The diagonal as it was given, and NaN, which nobody asked about."""
    p = room.arguments(weights)
    if not p.done:
        given = p.weights.copy_to_host()
        p.result.copy_to_device(np.where(np.isnan(given), np.float32(0), given))
        room.blocked.launch(p)
    return p.result


# ----------------------------------------------------------------------------------------------------------- by fours


def by_fours(pivot, name):
    """`by_fours` for up to 128 vertices, with another kernel for the tile on the diagonal."""

    def found(weights):
        p = room.arguments(weights)
        if not p.done:
            n, d = p.result.shape[0], device.empty((WIDE, WIDE), np.float32)
            room.edges_kernel[WIDE, BLOCK](p.weights, d)
            pivot[1, (PIVOT_THREADS, PIVOT_THREADS)](d, np.int64(0))
            room.cut_kernel[n, BLOCK](d, p.result)
        return p.result

    found.__name__ = name
    return found


@cuda.jit
def one_buffer(d, first):
    """Who writes the next vertex's row and column does not wait for those that still read this one's."""
    row, column = cuda.shared.array(WIDE, np.float32), cuda.shared.array(WIDE, np.float32)
    mine = cuda.local.array((FOUR, FOUR), np.float32)
    x, y, n = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y), d.shape[1]
    begin = FOUR * y * n + FOUR * x
    for i in range(FOUR):
        mine[i, 0], mine[i, 1], mine[i, 2], mine[i, 3] = load128(d, begin + i * n)
    for turn in range(PIVOT_THREADS):
        for k in range(FOUR):
            if y == turn:
                store128(row, FOUR * x, (mine[k, 0], mine[k, 1], mine[k, 2], mine[k, 3]))
            if x == turn:
                store128(column, FOUR * y, (mine[0, k], mine[1, k], mine[2, k], mine[3, k]))
            cuda.syncthreads()
            across, down = load128(row, FOUR * x), load128(column, FOUR * y)
            for i in range(FOUR):
                for j in range(FOUR):
                    mine[i, j] = min(mine[i, j], down[i] + across[j])
    for i in range(FOUR):
        store128(d, begin + i * n, (mine[i, 0], mine[i, 1], mine[i, 2], mine[i, 3]))


RUNGS = (
    WrongRung(launched(row_and_column_written), "race"),
    WrongRung(launched(no_guard), "out of bounds"),
    WrongRung(launched(edges_the_other_way), "wrong result"),
    WrongRung(named(all_stops_at_once), "race"),
    WrongRung(named(one_stop_alone), "wrong result"),
    WrongRung(blocked("pivot_without_barrier", pivot=pivot_without_barrier), "race"),
    WrongRung(blocked("pivot_in_one_pass", pivot=pivot_in_one_pass), "wrong result"),
    WrongRung(blocked("panels_before_the_pivot", order=(1, 0, 2)), "wrong result"),
    WrongRung(blocked("rest_before_the_panels", order=(0, 2, 1)), "wrong result"),
    WrongRung(blocked("rest_beyond_the_border", rest=rest_beyond_the_border), "wrong result"),
    WrongRung(nan_kept, "wrong result"),
    WrongRung(by_fours(one_buffer, "one_buffer"), "race"),
)
RIGHT = (
    launched(room.by_vertex_kernel, "by_vertex"),
    blocked("blocked"),
    by_fours(room.whole_pivot_kernel, "by_fours"),
)
