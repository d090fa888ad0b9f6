"""Wrong versions of `sparse` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.sparse import ladder as room
from pmpp.kernels.sparse.ladder import BATCH, BLOCK, PLACES, TILE, bring_products, row_of
from pmpp.runtime import device
from tests.support.wrong import WrongRung

f0 = np.float32(0)


def launched(kernel, threads, name="", cleared=False):
    """``kernel(values, columns, starts, x, out)`` as a rung is called; ``threads(p)``: how many there are."""

    def multiplied(values, columns, starts, x):
        p = room.arguments(values, columns, starts, x)
        if not p.done:
            if cleared:
                room.clear(p)
            kernel[max(1, blocks(threads(p), BLOCK)), BLOCK](p.values, p.columns, p.starts, p.x, p.result)
        return p.result

    multiplied.__name__ = name or kernel.py_func.__name__
    return multiplied


def stored(p):
    return p.values.size


def rows(p):
    return p.result.size


def lanes(p):
    return 32 * p.result.size


# ------------------------------------------------------------------------------------------------------ by element


@cuda.jit
def no_atomic(values, columns, starts, x, out):
    j = cuda.grid(1)
    if j < values.size:
        out[row_of(j, starts)] += values[j] * x[columns[j]]


@cuda.jit
def empty_rows_forgotten(values, columns, starts, x, out):
    """The row with the first start that is not before j, less one: wrong where rows are empty."""
    j = cuda.grid(1)
    if j < values.size:
        row = 0
        while row + 1 < starts.size - 1 and starts[row] < j:
            row += 1
        if starts[row] > j:
            row -= 1
        cuda.atomic.add(out, row, values[j] * x[columns[j]])


@cuda.jit
def by_element_right(values, columns, starts, x, out):
    j = cuda.grid(1)
    if j < values.size:
        cuda.atomic.add(out, row_of(j, starts), values[j] * x[columns[j]])


# ---------------------------------------------------------------------------------------------------------- by row


@cuda.jit
def no_guard(values, columns, starts, x, out):
    row = cuda.grid(1)
    total = f0
    for j in range(starts[row], starts[row + 1]):
        total += values[j] * x[columns[j]]
    out[row] = total


@cuda.jit
def x_in_order(values, columns, starts, x, out):
    """x is read by the place of a value, and not by its column."""
    row = cuda.grid(1)
    if row < out.size:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * x[j % x.size]
        out[row] = total


@cuda.jit
def one_short(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = f0
        for j in range(starts[row], starts[row + 1] - 1):
            total += values[j] * x[columns[j]]
        out[row] = total


@cuda.jit
def empty_rows_left_out(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < out.size and starts[row] < starts[row + 1]:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * x[columns[j]]
        out[row] = total


@cuda.jit
def zeros_skipped(values, columns, starts, x, out):
    """0 times infinity is no number, and a value that is stored counts even if it is 0."""
    row = cuda.grid(1)
    if row < out.size:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            if values[j] != 0:
                total += values[j] * x[columns[j]]
        out[row] = total


# --------------------------------------------------------------------------------------------------- a warp a row


@cuda.jit
def only_32_values(values, columns, starts, x, out):
    thread = cuda.grid(1)
    row, lane = thread // 32, thread % 32
    total = f0
    if row < out.size and starts[row] + lane < starts[row + 1]:
        total = values[starts[row] + lane] * x[columns[starts[row] + lane]]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


@cuda.jit
def half_of_the_lanes(values, columns, starts, x, out):
    thread = cuda.grid(1)
    row, lane = thread // 32, thread % 32
    total = f0
    if row < out.size:
        for j in range(starts[row] + lane, starts[row + 1], 32):
            total += values[j] * x[columns[j]]
    for distance in (8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


# ------------------------------------------------------------------------------------------------------------ staged


def staged(before=True, after=True, name=""):
    """`staged` with or without its barriers: before products are read, and before they are written anew."""

    @cuda.jit
    def kernel(values, columns, starts, x, out):
        products = cuda.shared.array(PLACES, np.float32)
        first_row = np.int64(cuda.blockIdx.x) * BLOCK
        row = first_row + cuda.threadIdx.x
        begin, end = np.int64(starts[min(row, out.size)]), np.int64(starts[min(row + 1, out.size)])
        at, last = np.int64(starts[first_row]), np.int64(starts[min(first_row + BLOCK, out.size)])
        total = f0
        while at < last:
            bring_products(values, columns, x, at, min(last - at, PLACES), products)
            if before:
                cuda.syncthreads()
            for j in range(max(begin, at), min(end, at + PLACES)):
                total += products[j - at]
            if after:
                cuda.syncthreads()
            at += PLACES
        if row < out.size:
            out[row] = total

    return launched(kernel, rows, name)


# ------------------------------------------------------------------------------------------------------------ merged


def merged(piece=2 * TILE, finish=room.finish_kernel, name=""):
    """`merged` with so many steps a block, and with another last kernel, or none."""

    def multiplied(values, columns, starts, x):
        p = room.arguments(values, columns, starts, x)
        if p.done:
            return p.result
        grid = blocks(p.result.size + p.values.size, piece)
        open_rows, open_sums = device.empty(grid, np.int64), device.empty(grid, np.float32)
        given = p.values, p.columns, p.starts, p.x, np.int64(piece), p.result, open_rows, open_sums
        room.merged_kernel[grid, BLOCK](*given)
        if finish is not None:
            finish[grid, BLOCK](open_rows, open_sums, p.result)
        return p.result

    multiplied.__name__ = name or "merged"
    return multiplied


@cuda.jit
def each_carry_by_itself(open_rows, open_sums, out):
    """Without an atomic: several blocks leave a part of one row."""
    block = cuda.grid(1)
    if block < open_rows.size and open_rows[block] < out.size:
        out[open_rows[block]] += open_sums[block]


@cuda.jit
def full_batches(values, columns, starts, x, out):
    """The last batch of a row is as long as the others."""
    mine, where = cuda.local.array(BATCH, np.float32), cuda.local.array(BATCH, np.uint32)
    row = cuda.grid(1)
    if row < out.size:
        total = f0
        for first in range(starts[row], starts[row + 1], BATCH):
            for k in range(BATCH):
                mine[k], where[k] = values[first + k], columns[first + k]
            for k in range(BATCH):
                total += mine[k] * x[where[k]]
        out[row] = total


RUNGS = (
    WrongRung(launched(no_atomic, stored, cleared=True), "race"),
    WrongRung(launched(by_element_right, stored, "sums_not_cleared"), "uninitialised read"),
    WrongRung(launched(empty_rows_forgotten, stored, cleared=True), "wrong result"),
    WrongRung(launched(no_guard, rows), "out of bounds"),
    WrongRung(launched(x_in_order, rows), "wrong result"),
    WrongRung(launched(one_short, rows), "wrong result"),
    WrongRung(launched(empty_rows_left_out, rows), "wrong result"),
    WrongRung(launched(zeros_skipped, rows), "wrong result"),
    WrongRung(launched(only_32_values, lanes), "wrong result"),
    WrongRung(launched(half_of_the_lanes, lanes), "wrong result"),
    WrongRung(staged(before=False, name="products_read_too_early"), "race"),
    WrongRung(staged(after=False, name="products_overwritten_too_early"), "race"),
    WrongRung(launched(full_batches, rows), "out of bounds"),
    WrongRung(merged(finish=None, name="open_rows_never_finished"), "wrong result"),
    WrongRung(merged(TILE, finish=each_carry_by_itself, name="merged_without_order"), "race"),
)
RIGHT = (
    launched(by_element_right, stored, cleared=True),
    staged(name="staged_right"),
    merged(75, name="merged_in_short_pieces"),
    merged(name="merged_two_tiles_a_block"),
    merged(10**6, name="merged_in_one_block"),
)
