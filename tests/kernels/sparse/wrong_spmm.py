"""Wrong versions of `spmm` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.sparse import spmm as room
from pmpp.kernels.sparse.ladder import BLOCK, WARPS
from pmpp.kernels.sparse.spmm import cuts_of
from pmpp.runtime import device
from tests.support.wrong import WrongRung

f0 = np.float32(0)


def launched(kernel):
    """``kernel(values, columns, starts, b, out)`` with a thread for each element, as a rung is called."""

    def multiplied(values, columns, starts, b):
        p = room.arguments(values, columns, starts, b)
        if not p.done:
            kernel[blocks(p.result.size, BLOCK), BLOCK](p.values, p.columns, p.starts, p.b, p.result)
        return p.result

    multiplied.__name__ = kernel.py_func.__name__
    return multiplied


@cuda.jit
def no_guard(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    total = f0
    for j in range(starts[row], starts[row + 1]):
        total += values[j] * b[columns[j], column]
    out[row, column] = total


@cuda.jit
def rows_of_b_in_order(values, columns, starts, b, out):
    """b is read by the place of a value, and not by its column."""
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0]:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[j % b.shape[0], column]
        out[row, column] = total


@cuda.jit
def divided_by_rows(values, columns, starts, b, out):
    """Threads are counted row by row, and taken apart as if they were counted column by column."""
    thread = cuda.grid(1)
    row, column = thread // out.shape[0], thread % out.shape[0]
    if row < out.shape[0] and column < out.shape[1]:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


@cuda.jit(device=True)
def nothing_across(total, distance):
    return total


no_sum_over_teams = room.balanced_of(room.WIDE, room.four_zeros, room.four_columns_up, nothing_across, room.store_four)


@cuda.jit
def each_part_by_itself(open_rows, open_sums, lanes, out):
    """Without an order: several warps leave a part of one row."""
    piece = cuda.grid(1) // 32
    if piece < open_rows.size and open_rows[piece] < out.shape[0]:
        for column in range(cuda.laneid, out.shape[1], 32):
            out[open_rows[piece], column] += open_sums[piece, column]


def balanced(name, kernel=None, finish=room.finish_kernel, piece=room.PIECE):
    """`balanced` with another kernel for vectors, or another one at the end, or pieces of another length."""

    def multiplied(values, columns, starts, b):
        p = room.arguments(values, columns, starts, b)
        if p.done:
            return p.result
        wide = room.in_vectors(p)
        chosen = (kernel or room.four_columns) if wide else room.one_column
        parts = blocks(p.b.shape[1], room.WIDE if wide else 1)
        lanes, pieces = room.lanes_for(parts), blocks(p.starts.size - 1 + p.values.size, piece)
        cuts, open_rows = cuts_of(p, piece), device.empty(pieces, np.int64)
        open_sums = device.empty((pieces, p.b.shape[1]), np.float32)
        given = p.values, p.columns, p.starts, p.b, cuts, np.int64(piece), np.int32(lanes), p.result
        chosen[(blocks(pieces, WARPS), blocks(parts, lanes)), BLOCK](*given, open_rows, open_sums)
        if finish is not None:
            lanes = np.int32(room.lanes_for(p.b.shape[1]))
            finish[blocks(pieces, WARPS), BLOCK](open_rows, open_sums, lanes, p.result)
        return p.result

    multiplied.__name__ = name
    return multiplied


RUNGS = (
    WrongRung(launched(no_guard), "out of bounds"),
    WrongRung(launched(rows_of_b_in_order), "wrong result"),
    WrongRung(launched(divided_by_rows), "wrong result"),
    WrongRung(balanced("no_sum_over_teams", kernel=no_sum_over_teams), "wrong result"),
    WrongRung(balanced("open_rows_never_finished", finish=None), "wrong result"),
    WrongRung(balanced("each_part_by_itself", finish=each_part_by_itself, piece=40), "race"),
)
RIGHT = (balanced("balanced_in_short_pieces", piece=40), balanced("balanced_in_one_piece", piece=10**6))
