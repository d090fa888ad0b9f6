"""Answers to the exercises of chapter 32: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
ROWS, COLUMNS = "matvec/rows", "matvec/columns"
FULL = 0xFFFFFFFF
f0, f1 = np.float32(0), np.float32(1)


# -- rows


def rows_with(
    name,
    start=f0,
    weighted=True,
    of_row=False,
    of_lane=False,
    once=False,
    guarded=True,
    together=True,
    distances=(1, 2, 4, 8, 16),
):
    """A warp a row, with one of its parts exchanged."""

    @cuda.jit
    def rows(a, x, out):
        row, lane, total = cuda.grid(1) // 32, cuda.laneid, start
        if row < out.size or not guarded:
            for k in range(lane, min(x.size, 32) if once else x.size, 32):
                own = row % x.size if of_row else (lane if of_lane else k)
                total += a[row, k] * x[own] if weighted else a[row, k]
        if together:
            for distance in distances:
                total += cuda.shfl_xor_sync(FULL, total, distance)
        if (row < out.size or not guarded) and lane == 0:
            out[row] = total

    rows.py_func.__name__ = name
    return rows


right(ROWS)(rows_with("rows_by_neighbours_first"))
wrong(ROWS, "not weighted")(rows_with("sums_of_rows", weighted=False))
wrong(ROWS, "weight of the row")(rows_with("rows_with_their_own_weight", of_row=True))
wrong(ROWS, "weight of the lane")(rows_with("rows_with_a_weight_a_lane", of_lane=True))
wrong(ROWS, "first 32 columns")(rows_with("rows_as_long_as_a_warp", once=True))
wrong(ROWS, "first lane only")(rows_with("rows_of_one_lane", together=False))
wrong(ROWS, "wrong result")(rows_with("rows_of_sixteen_lanes", distances=(1, 2, 4, 8)))
wrong(ROWS, "missing guard")(rows_with("rows_without_guard", guarded=False))
wrong(ROWS, "accidental float64")(rows_with("rows_from_a_float64", start=0.0))


@right(ROWS)
@cuda.jit
def rows_downwards(a, x, out):
    row, lane, total = cuda.grid(1) // 32, cuda.threadIdx.x % 32, f0
    k = lane if row < a.shape[0] else x.size
    while k < x.size:
        total += x[k] * a[row, k]
        k += 32
    distance = 16
    while distance:
        total += cuda.shfl_down_sync(FULL, total, distance)
        distance //= 2
    if lane == 0 and row < a.shape[0]:
        out[row] = total


@wrong(ROWS, "repeated work")
@cuda.jit
def rows_that_every_lane_stores(a, x, out):
    row, total = cuda.grid(1) // 32, f0
    if row >= out.size:
        return
    for k in range(cuda.laneid, x.size, 32):
        total += a[row, k] * x[k]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    out[row] = total


@wrong(ROWS, "uncoalesced")
@cuda.jit
def rows_in_pieces(a, x, out):
    """A lane takes neighbouring columns, so the lanes read far apart."""
    row, lane, total = cuda.grid(1) // 32, cuda.laneid, f0
    if row < out.size:
        length = (x.size + 31) // 32
        for k in range(lane * length, min((lane + 1) * length, x.size)):
            total += a[row, k] * x[k]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


@wrong(ROWS, "inactive lanes")
@cuda.jit
def rows_that_shuffle_in_a_branch(a, x, out):
    row, lane, total = cuda.grid(1) // 32, cuda.laneid, f0
    for k in range(lane, x.size, 32):
        total += a[row % out.size, k] * x[k]
    if lane < x.size:
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(FULL, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


# -- columns


def columns_with(name, one=f1, first=0, weighted=True, of_column=False, guarded=True):
    """A thread a column, with one of its parts exchanged."""

    @cuda.jit
    def columns(a, x, out):
        j, total = cuda.grid(1), f0
        if j < out.size or not guarded:
            for i in range(first, x.size):
                total += one * (a[i, j] * x[j % x.size if of_column else i] if weighted else a[i, j])
            out[j] = total

    columns.py_func.__name__ = name
    return columns


wrong(COLUMNS, "not weighted")(columns_with("sums_of_columns", weighted=False))
wrong(COLUMNS, "weight of the column")(columns_with("columns_with_their_own_weight", of_column=True))
wrong(COLUMNS, "wrong result")(columns_with("columns_from_the_second_row", first=1))
wrong(COLUMNS, "missing guard")(columns_with("columns_without_guard", guarded=False))
wrong(COLUMNS, "accidental float64")(columns_with("columns_times_a_float64", one=1.0))


@wrong(COLUMNS, "last product only")
@cuda.jit
def columns_of_the_last_row(a, x, out):
    """The sum begins in the loop."""
    j = cuda.grid(1)
    if j < out.size:
        for i in range(x.size):
            total = f0
            total += x[i] * a[i, j]
        out[j] = total


@right(COLUMNS)
@cuda.jit
def columns_from_below(a, x, out):
    j = cuda.grid(1)
    if j >= a.shape[1]:
        return
    total, i = f0, x.size - 1
    while i >= 0:
        total += a[i, j] * x[i]
        i -= 1
    out[j] = total


@right(COLUMNS)
@cuda.jit
def columns_in_strides(a, x, out):
    for j in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        even, odd = f0, f0
        for i in range(0, x.size - 1, 2):
            even += a[i, j] * x[i]
            odd += a[i + 1, j] * x[i + 1]
        if x.size % 2:
            even += a[x.size - 1, j] * x[x.size - 1]
        out[j] = even + odd


@wrong(COLUMNS, "missing atomic")
@cuda.jit
def columns_by_rows(a, x, out):
    """A thread a row, that adds to all columns."""
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        for j in range(out.size):
            if i == 0:
                out[j] = f0
            out[j] += a[i, j] * x[i]
