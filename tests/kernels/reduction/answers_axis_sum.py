"""Answers to the exercises of chapter 88 on sums: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
MEAN, SQUARES = "axis_sum/mean", "axis_sum/squares"
FULL = 0xFFFFFFFF
f0, f1 = np.float32(0), np.float32(1)


# -- mean


@right(MEAN)
@cuda.jit
def mean_of_shares(x, out):
    n, columns = x.shape
    share = f1 / np.float32(n)
    for c in range(cuda.grid(1), columns, cuda.gridsize(1)):
        total = f0
        for r in range(n):
            total += x[r, c]
        out[c] = total * share


@right(MEAN)
@cuda.jit
def mean_from_below(x, out):
    c = cuda.grid(1)
    if c >= x.shape[1]:
        return
    total, r = f0, x.shape[0] - 1
    while r >= 0:
        total += x[r, c]
        r -= 1
    out[c] = total / np.float32(x.shape[0])


@wrong(MEAN, "not divided")
@cuda.jit
def mean_that_is_a_sum(x, out):
    c = cuda.grid(1)
    if c < out.size:
        total = f0
        for r in range(x.shape[0]):
            total += x[r, c]
        out[c] = total


@wrong(MEAN, "divided by the columns")
@cuda.jit
def mean_by_columns(x, out):
    c = cuda.grid(1)
    if c < out.size:
        total = f0
        for r in range(x.shape[0]):
            total += x[r, c]
        out[c] = total / np.float32(x.shape[1])


@wrong(MEAN, "accidental float64")
@cuda.jit
def mean_by_an_integer(x, out):
    c = cuda.grid(1)
    if c < out.size:
        total = f0
        for r in range(x.shape[0]):
            total += x[r, c]
        out[c] = total / x.shape[0]


@wrong(MEAN, "missing guard")
@cuda.jit
def mean_without_guard(x, out):
    c, total = cuda.grid(1), f0
    for r in range(x.shape[0]):
        total += x[r, c]
    out[c] = total / np.float32(x.shape[0])


@wrong(MEAN, "along the rows")
@cuda.jit
def mean_along_rows(x, out):
    r = cuda.grid(1)
    if r < out.size and r < x.shape[0]:
        total = f0
        for c in range(x.shape[1]):
            total += x[r, c]
        out[r] = total / np.float32(x.shape[1])


@wrong(MEAN, "wrong result")
@cuda.jit
def mean_from_the_second_row(x, out):
    c = cuda.grid(1)
    if c < out.size:
        total = f0
        for r in range(1, x.shape[0]):
            total += x[r, c]
        out[c] = total / np.float32(x.shape[0])


# -- squares


def squares_with(distances, lane_of=True, squared=True, guarded=True, name="squares"):
    @cuda.jit
    def squares(x, out):
        row, lane, total = cuda.grid(1) // 8, cuda.grid(1) % 8, f0
        if row < out.size or not guarded:
            for i in range(lane, x.shape[1], 8):
                total += x[row, i] * x[row, i] if squared else x[row, i]
        for distance in distances:
            total += cuda.shfl_xor_sync(FULL, total, distance)
        if (row < out.size or not guarded) and (lane == 0 or not lane_of):
            out[row] = total

    squares.py_func.__name__ = name
    return squares


right(SQUARES)(squares_with((1, 2, 4), name="squares_by_neighbours_first"))
wrong(SQUARES, "sum of four rows")(squares_with((16, 8, 4, 2, 1), name="squares_of_the_warp"))
wrong(SQUARES, "not squared")(squares_with((4, 2, 1), squared=False, name="sums"))
wrong(SQUARES, "missing guard")(squares_with((4, 2, 1), guarded=False, name="squares_without_guard"))
wrong(SQUARES, "wrong result")(squares_with((2, 1), name="squares_of_four_lanes"))


@wrong(SQUARES, "too much traffic", "Share the row")
@cuda.jit
def squares_by_each_lane(x, out):
    """All eight lanes go through the whole row."""
    row, lane = cuda.grid(1) // 8, cuda.grid(1) % 8
    if row < out.size:
        total = np.float32(0)
        for i in range(x.shape[1]):
            total += x[row, i] * x[row, i]
        if lane == 0:
            out[row] = total


@right(SQUARES)
@cuda.jit
def squares_downwards(x, out):
    row, lane, total = cuda.grid(1) // 8, cuda.laneid % 8, f0
    last = x.shape[1] if row < x.shape[0] else 0
    for i in range(lane, last, 8):
        total += x[row, i] ** 2
    for distance in (4, 2, 1):
        total += cuda.shfl_down_sync(FULL, total, distance)
    if last > 0 and lane == 0:
        out[row] = total


@wrong(SQUARES, "inactive lanes")
@cuda.jit
def squares_that_shuffle_in_a_branch(x, out):
    row, lane, total = cuda.grid(1) // 8, cuda.grid(1) % 8, f0
    if row < out.size:
        for i in range(lane, x.shape[1], 8):
            total += x[row, i] * x[row, i]
        for distance in (4, 2, 1):
            total += cuda.shfl_xor_sync(FULL, total, distance)
        if lane == 0:
            out[row] = total


@wrong(SQUARES, "square of the sum")
@cuda.jit
def square_of_the_sum(x, out):
    row, lane, total = cuda.grid(1) // 8, cuda.grid(1) % 8, f0
    if row < out.size:
        for i in range(lane, x.shape[1], 8):
            total += x[row, i]
    for distance in (4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    if row < out.size and lane == 0:
        out[row] = total * total


@wrong(SQUARES, "accidental float64")
@cuda.jit
def squares_from_a_float64(x, out):
    row, lane, total = cuda.grid(1) // 8, cuda.grid(1) % 8, 0.0
    if row < out.size:
        for i in range(lane, x.shape[1], 8):
            total += x[row, i] * x[row, i]
    for distance in (4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    if row < out.size and lane == 0:
        out[row] = total
