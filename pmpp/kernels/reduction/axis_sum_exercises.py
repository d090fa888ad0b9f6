"""Exercises of notebooks/88_a_tape.ipynb on sums along an axis: the mean of columns, and rows of few elements."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
LANES = 8  # for each short row
FLOAT64 = "An integer and a float32 give float64: write np.float32(n)."


# ------------------------------------------------------------------------------------------------------- axis_sum/mean


def _mean_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, columns in ((1, 1), (3, 2), (2, 40), (33, 5), (7, 128), (50, 300)):
        x = (1 + rng.standard_normal((n, columns))).astype(np.float32)
        exact = x.astype(np.float64)
        # n additions and a division, each rounded once: no partial sum is greater than the sum of the sizes.
        allowed = (n + 1) * 2.0**-24 * abs(exact).mean(axis=0)
        args = x, unwritten(columns, np.float32)
        cases.append(
            Case(f"{n} x {columns}", args, blocks(columns, BLOCK), BLOCK, {1: exact.mean(axis=0)}, {1: allowed})
        )
    return cases


@cuda.jit
def mean_answer(x, out):
    column = cuda.grid(1)
    if column < out.size:
        total = np.float32(0)
        for row in range(x.shape[0]):
            total += x[row, column]
        out[column] = total / np.float32(x.shape[0])


def _not_divided(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.cumsum(x, axis=0)[-1]}  # in float32, as the kernel adds: the tolerance is for the mean


def _by_the_columns(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.cumsum(x, axis=0)[-1] / x.shape[1]}


def _along_the_rows(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    found = np.full(out.shape, np.nan)
    rows = min(x.shape[0], out.size)
    found[:rows] = x.astype(np.float64).mean(axis=1)[:rows]
    return {1: found}


# ----------------------------------------------------------------------------------------------------- axis_sum/squares


def _squares_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, n in ((1, 1), (3, 7), (16, 8), (15, 9), (5, 20), (50, 25)):
        x = rng.standard_normal((rows, n), dtype=np.float32)
        expected = (x.astype(np.float64) ** 2).sum(axis=1)
        args = x, unwritten(rows, np.float32)
        # n products and n additions, each rounded once; all terms are positive.
        allowed = 2 * n * 2.0**-24 * expected
        cases.append(Case(f"{rows} x {n}", args, blocks(rows * LANES, BLOCK), BLOCK, {1: expected}, {1: allowed}))
    return cases


@cuda.jit
def squares_answer(x, out):
    row, lane = cuda.grid(1) // LANES, cuda.grid(1) % LANES
    total = np.float32(0)
    if row < out.size:
        for i in range(lane, x.shape[1], LANES):
            total += x[row, i] * x[row, i]
    for distance in (4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


def _not_squared(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.astype(np.float64).sum(axis=1)}


def _square_of_the_sum(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.astype(np.float64).sum(axis=1) ** 2}


def _of_the_whole_warp(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    own = (x.astype(np.float64) ** 2).sum(axis=1)
    whole = np.concatenate([own, np.zeros(-own.size % 4)]).reshape(-1, 4).sum(axis=1)
    return {1: np.repeat(whole, 4)[: own.size]}


def _squares_budget(case: Case) -> dict[str, tuple[float, str]]:
    warps, rounds = case.grid * BLOCK // 32, blocks(case.args[0].shape[1], LANES)
    return {
        "flops_f64": (0, FLOAT64),
        "atomic_requests": (0, "Lanes of a warp add up their values by shuffles."),
        "barriers": (0, "Lanes of a warp need no barrier to exchange values by shuffles."),
        # The interpreter counts both loads of x[row, i] * x[row, i].
        "global_load_requests": (
            2 * warps * rounds,
            f"Share the row: each lane takes every {LANES}th of its elements.",
        ),
    }


EXERCISES = (
    Exercise(
        "axis_sum/mean",
        task="out[c] = the mean of column c of x. x has shape (rows, columns), out (columns,), float32. The launch has "
        f"{BLOCK} threads a block, one for each column.",
        parameters="x, out",
        cases=_mean_cases,
        answer=mean_answer,
        hints=(
            "The threads of a warp have neighbouring columns. What do they read at the same moment?",
            "The number of rows is an integer, and float32 / int64 is float64.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("not divided", "That is the sum: divide by the number of rows.", _not_divided),
            Trap("divided by the columns", "A column has x.shape[0] elements.", _by_the_columns),
            Trap("along the rows", "Each output is the mean of a column.", _along_the_rows),
        ),
    ),
    Exercise(
        "axis_sum/squares",
        task=f"out[r] = the sum of the squares of row r of x. {LANES} lanes share a row, and add up their sums by "
        "shuffles: a warp for a row of 9 elements would leave most lanes idle. x has shape (rows, n), out (rows,), "
        f"float32. The launch has {BLOCK} threads a block, {LANES} for each row.",
        parameters="x, out",
        cases=_squares_cases,
        answer=squares_answer,
        hints=(
            f"The row is cuda.grid(1) // {LANES}, and the lane within the row cuda.grid(1) % {LANES}.",
            "shfl_xor_sync over distances of 4, 2 and 1 stays among 8 lanes.",
            "All lanes of the warp must take part in a shuffle, those beyond the last row, too.",
        ),
        budget=_squares_budget,
        traps=(
            Trap("not squared", "That is the sum of the elements: square each of them.", _not_squared),
            Trap("square of the sum", "Square each element before adding it.", _square_of_the_sum),
            Trap(
                "sum of four rows", f"A row has {LANES} lanes: distances of 16 and 8 reach others.", _of_the_whole_warp
            ),
        ),
    ),
)
