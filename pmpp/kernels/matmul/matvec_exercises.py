"""Exercises of notebooks/32_matrix_vector.ipynb: a warp for each row, and the product from the other side."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block: four warps
FLOAT64 = "Keep the sum in float32: np.float32(0), not 0.0, which makes a float64 of what it meets."


def _pair(rng: np.random.Generator, m: int, n: int, k: int, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """A matrix (m, n) and a vector (k,): of whole numbers without 0, so that each lost product shows, or of any."""
    if whole:
        a = rng.integers(1, 8, (m, n)) * rng.choice([-1, 1], (m, n))
        return a.astype(np.float32), rng.integers(2, 8, k).astype(np.float32)
    return rng.standard_normal((m, n), dtype=np.float32), rng.standard_normal(k, dtype=np.float32)


def _allowed(terms: int, sizes: np.ndarray, whole: bool) -> typing.Any:
    """0 for whole numbers, whose sums are exact. Else each term is rounded once, and at most ``terms`` times more."""
    return 0.0 if whole else (terms + 1) * 2.0**-24 * sizes


# --------------------------------------------------------------------------------------------------------- matvec/rows


def _rows_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, whole: bool = True) -> Case:
        a, x = _pair(rng, m, n, n, whole)
        expected, sizes = a.astype(np.float64) @ x, abs(a).astype(np.float64) @ abs(x)
        args = a, x, unwritten(m, np.float32)
        allowed = {2: _allowed(n, sizes, whole)}
        return Case(f"a of {m} x {n}", args, blocks(32 * m, BLOCK), BLOCK, {2: expected}, allowed)

    return [case(*shape) for shape in ((1, 1), (3, 7), (4, 32), (8, 33), (5, 100))] + [
        case(30, 70, False),
        case(40, 97),
    ]


@cuda.jit
def rows_answer(a, x, out):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    total = np.float32(0)
    if row < out.size:
        for k in range(lane, x.size, 32):
            total += a[row, k] * x[k]
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, distance)
    if row < out.size and lane == 0:
        out[row] = total


def _not_weighted(axis: int) -> Callable:
    return lambda a, x, out: {2: a.astype(np.float64).sum(axis=axis)}


def _weight_of_the_row(a: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: a.astype(np.float64).sum(axis=1) * x[np.arange(out.size) % x.size]}


def _first_lane(a: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: a[:, ::32].astype(np.float64) @ x[::32]}


def _first_columns(a: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: a[:, :32].astype(np.float64) @ x[:32]}


def _weight_of_the_lane(a: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: a.astype(np.float64) @ x[np.arange(x.size) % 32]}


# ------------------------------------------------------------------------------------------------------ matvec/columns


def _columns_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, whole: bool = True) -> Case:
        a, x = _pair(rng, m, n, m, whole)
        expected, sizes = x @ a.astype(np.float64), abs(x) @ abs(a).astype(np.float64)
        args = a, x, unwritten(n, np.float32)
        allowed = {2: _allowed(m, sizes, whole)}
        return Case(f"a of {m} x {n}", args, blocks(n, BLOCK), BLOCK, {2: expected}, allowed)

    shapes = ((1, 1), (3, 2), (9, 128), (5, 129), (33, 40))
    return [case(*shape) for shape in shapes] + [case(21, 150, False), case(20, 384)]


@cuda.jit
def columns_answer(a, x, out):
    column = cuda.grid(1)
    if column < out.size:
        total = np.float32(0)
        for row in range(x.size):
            total += x[row] * a[row, column]
        out[column] = total


def _weight_of_the_column(a: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: a.astype(np.float64).sum(axis=0) * x[np.arange(out.size) % x.size]}


def _last_product(a: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: x[-1] * a[-1].astype(np.float64)}


EXERCISES = (
    Exercise(
        "matvec/rows",
        task="out = a @ x, with a warp for each row of a. a has shape (m, n) and lies in C order, x has shape (n,), "
        f"out (m,), all float32. The launch has {BLOCK} threads a block, and 32 for each row.",
        parameters="a, x, out",
        cases=_rows_cases,
        answer=rows_answer,
        hints=(
            "The row is cuda.grid(1) // 32, and cuda.laneid the place in the warp.",
            "Lane 0 takes columns 0, 32, 64 and so on: then the lanes of a warp read neighbours.",
            "All lanes of a warp take part in its shuffles, also where there is no row.",
        ),
        budget=lambda case: {
            "flops_f64": (0, FLOAT64),
            "atomic_requests": (0, "The lanes of a warp add up their sums by shuffles."),
            "barriers": (0, "The lanes of a warp need no barrier to exchange values by shuffles."),
        },
        traps=(
            Trap("not weighted", "That is the sum of each row: multiply each element by its x.", _not_weighted(1)),
            Trap("weight of the row", "x[k] belongs to column k, not to the row.", _weight_of_the_row),
            Trap("first lane only", "A row's sum is that of all 32 lanes.", _first_lane),
            Trap("first 32 columns", "A row may be longer than a warp: each lane goes on by 32.", _first_columns),
            Trap("weight of the lane", "x[k] belongs to column k, not to the lane.", _weight_of_the_lane),
        ),
        advice={
            "repeated work": "The lanes of a warp share a row: each reads its own columns, and one writes the sum."
        },
    ),
    Exercise(
        "matvec/columns",
        task="out = x @ a: out[j] is the sum over all rows i of x[i] * a[i, j]. a has shape (m, n) in C order, "
        f"x has shape (m,), out (n,), all float32. The launch has {BLOCK} threads a block, one for each column.",
        parameters="a, x, out",
        cases=_columns_cases,
        answer=columns_answer,
        hints=(
            "In C order a[i, j] and a[i, j + 1] are neighbours. Which of the two indices should a thread's number be?",
            "Each thread goes down its column. Nobody has to share a sum, so no thread waits for another.",
        ),
        budget=lambda case: {
            "flops_f64": (0, FLOAT64),
            "atomic_requests": (0, "A sum belongs to one thread, which can keep it in a variable."),
        },
        traps=(
            Trap("not weighted", "That is the sum of each column: multiply each element by its x.", _not_weighted(0)),
            Trap("weight of the column", "x[i] belongs to row i, not to the column.", _weight_of_the_column),
            Trap(
                "last product only",
                "Add the products of all rows to a sum that is 0 before the loop.",
                _last_product,
            ),
        ),
    ),
)
