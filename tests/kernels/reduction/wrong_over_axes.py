"""Wrong reductions over axes: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.reduction import over_axes
from pmpp.kernels.reduction.operators import OPERATORS
from pmpp.kernels.reduction.states import access_of, cells_of, from_lane, get, put
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


def whole(name, work, **operators):
    """A function of the room that carries out its folds by ``work``, with other operators in the place of its own."""

    def call(x, axis=None, op="sum", keepdims=False, ddof=0):
        p = over_axes.arguments(x, axis, op, keepdims, ddof)
        if not p.done:
            changed = operators.get(op)
            over_axes.each_fold(p.replace(**changed) if changed else p, work)
        return p.result

    call.__name__ = name
    return call


def by_thread(name, guarded=True, first=0, exchanged=False, one=f1):
    """A thread a result, with one of its parts exchanged."""

    def work(task):
        (fetch, store), combine = access_of(*task.made_for), task.p.op.combine

        @cuda.jit
        def kernel(x, out, none, fold, divisor):
            i = cuda.grid(1)
            if not guarded or i < fold.outer * fold.inner:
                a, b, total = i // fold.inner, i % fold.inner, none
                for k in range(first, fold.n):
                    at = (a * fold.inner + b) * fold.n + k if exchanged else (a * fold.n + k) * fold.inner + b
                    total = combine(total, fetch(x, at, k))
                store(out, i, total, divisor * one)

        fold = task.fold
        kernel[blocks(fold.outer * fold.inner, BLOCK), BLOCK](task.x, task.out, task.p.none, fold, task.p.divisor)

    return whole(name, work)


@cuda.jit(device=True)
def larger_but_for_nan(a, b):
    """The comparison is false where either is NaN, and then b is kept: a NaN that came first is lost."""
    return (a[0] if a[0] > b[0] else b[0],)


@cuda.jit(device=True)
def place_of_last(a, b):
    """Of equal values the later one."""
    first = a[0] > b[0] or a[0] != a[0] or (a[0] == b[0] and a[1] > b[1])
    return (a[0] if first else b[0]), (a[1] if first else b[1])


@cuda.jit(device=True)
def means_of_two(a, b):
    """As if both sets had as many values, and no distance between them."""
    half = np.float32(0.5) if a[0] > f0 else np.float32(1)
    return a[0] + b[0], a[1] + (b[1] - a[1]) * half, a[2] + b[2]


def with_combine(name, op, combine):
    return whole(name, over_axes.way, **{op: {"op": OPERATORS[op]._replace(combine=combine)}})


def by_parts(name, divisor_of):
    """Several blocks a row, each of which divides what it has: a mean of means, with the count that ``divisor_of``."""

    def work(task):
        outer, n, inner = task.fold
        if task.p.op.name != "mean" or inner > 1 or n < 100 or task.states:
            over_axes.way(task)
            return
        parts = over_axes.states_of(task.p, 3 * outer)
        length = blocks(n, 3)
        parts_kernel[3 * outer, 32](task.x, parts[0], n, length)
        joined_kernel[blocks(outer, BLOCK), BLOCK](parts[0], task.out[0], outer, divisor_of(n, length))

    return whole(name, work)


@cuda.jit
def parts_kernel(x, out, n, length):
    row, part, total = cuda.blockIdx.x // 3, cuda.blockIdx.x % 3, f0
    for i in range(row * n + part * length + cuda.threadIdx.x, row * n + min(n, (part + 1) * length), 32):
        total += x[i]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def joined_kernel(parts, out, outer, divisor):
    row = cuda.grid(1)
    if row < outer:
        out[row] = (parts[3 * row] + parts[3 * row + 1] + parts[3 * row + 2]) / divisor


def short_rows(name, barred=True, anywhere=False):
    """Rows of three through shared memory: without the barrier, or with loads that begin anywhere."""

    def work(task):
        rows, n, inner = task.fold
        if inner > 1 or n != 3 or task.states or not task.last:
            over_axes.way(task)
            return
        (fetch, store), combine = access_of(*task.made_for), task.p.op.combine
        each = BLOCK - 2 if anywhere else BLOCK  # rows of a block: 62 rows of 3 are no multiple of four elements

        @cuda.jit
        def kernel(x, out, none, rows, divisor):
            tile = cuda.shared.array(200, x.dtype, alignment=16)
            first, thread = cuda.blockIdx.x * each, cuda.threadIdx.x
            count = min(each, rows - first) * 3
            for i in range(4 * thread, count - 3, 4 * BLOCK):
                store128(tile, i, load128(x, first * 3 + i))
            if thread < count % 4:
                tile[count - count % 4 + thread] = x[first * 3 + count - count % 4 + thread]
            if barred:
                cuda.syncthreads()
            if thread < each and first + thread < rows:
                total = none
                for k in range(3):
                    total = combine(total, fetch(tile, thread * 3 + k, k))
                store(out, first + thread, total, divisor)

        kernel[blocks(rows, each), BLOCK](task.x, task.out, task.p.none, rows, task.p.divisor)

    return whole(name, work)


def tile_of_columns(name, filled=True):
    """32 columns by 8 rows: threads without a column leave their cells as they are."""

    def work(task):
        outer, _, inner = task.fold
        if inner == 1:
            over_axes.way(task)
            return
        (fetch, store), combine = access_of(*task.made_for), task.p.op.combine
        make_cells = cells_of(task.p.op, task.p.x.dtype, 256)

        @cuda.jit
        def kernel(x, out, none, fold, divisor, tiles):
            cells, thread = make_cells(), cuda.threadIdx.x
            a, column, total = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * 32 + thread % 32, none
            if column < fold.inner:
                for k in range(thread // 32, fold.n, 8):
                    total = combine(total, fetch(x, (a * fold.n + k) * fold.inner + column, k))
            if filled or thread < 32:
                put(cells, thread, total)
            cuda.syncthreads()
            if thread < 32 and column < fold.inner:
                for k in range(1, 8):
                    total = combine(total, get(cells, 32 * k + thread))
                store(out, a * fold.inner + column, total, divisor)

        tiles = blocks(inner, 32)
        kernel[outer * tiles, 256](task.x, task.out, task.p.none, task.fold, task.p.divisor, tiles)

    return whole(name, work)


def team(name, furthest):
    """Eight lanes a row, whose states are combined over these distances."""

    def work(task):
        rows, n, inner = task.fold
        if inner > 1:
            over_axes.way(task)
            return
        (fetch, store), combine = access_of(*task.made_for), task.p.op.combine

        @cuda.jit
        def kernel(x, out, none, rows, n, divisor):
            row, total, distance = cuda.grid(1) // 8, none, furthest
            if row < rows:
                for k in range(cuda.grid(1) % 8, n, 8):
                    total = combine(total, fetch(x, row * n + k, k))
            while distance:
                total = combine(total, from_lane(total, distance))
                distance //= 2
            if row < rows and cuda.grid(1) % 8 == 0:
                store(out, row, total, divisor)

        kernel[blocks(8 * rows, BLOCK), BLOCK](task.x, task.out, task.p.none, rows, n, task.p.divisor)

    return whole(name, work)


RUNGS = (
    WrongRung(by_thread("no_guard", guarded=False), "out of bounds"),
    WrongRung(by_thread("the_stride_of_another_axis", exchanged=True), "wrong result"),
    WrongRung(by_thread("first_element_left_out", first=1), "wrong result"),
    WrongRung(by_thread("divisor_in_float64", one=1.0), "float64"),
    WrongRung(whole("maximum_from_zero", over_axes.way, max={"none": (f0,)}), "wrong result"),
    WrongRung(with_combine("nan_lost", "max", larger_but_for_nan), "wrong result"),
    WrongRung(with_combine("last_of_equal_ones", "argmax", place_of_last), "wrong result"),
    WrongRung(with_combine("means_without_weights", "var", means_of_two), "wrong result"),
    WrongRung(by_parts("mean_by_the_part", lambda n, length: np.float32(3 * length)), "wrong result"),
    WrongRung(by_parts("mean_by_the_last_part", lambda n, length: np.float32(3 * (n - 2 * length))), "wrong result"),
    WrongRung(short_rows("short_rows_without_a_barrier", barred=False), "race"),
    WrongRung(short_rows("vectors_anywhere", anywhere=True), "misaligned"),
    WrongRung(tile_of_columns("cells_left_as_they_are", filled=False), "uninitialised read"),
    WrongRung(team("teams_of_a_warp", 16), "wrong result"),
)
ACCEPTED = (  # the same with nothing exchanged: what is found in those above is their mistake
    by_thread("by_thread"),
    whole("as_planned", over_axes.way),
    by_parts("mean_of_the_row", lambda n, length: np.float32(n)),
    short_rows("short_rows"),
    tile_of_columns("tile_of_columns"),
    team("teams_of_eight", 4),
)
