"""Exercises of notebooks/36_products_of_any_shape.ipynb: a part of K for each block, and products of four rows."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul.exercises import FLOAT64
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

SIDE = 16  # of a block of threads, and of the square of C that it computes
COLUMNS, ROWS = 64, 4  # threads of a block, each with a column of C; rows of C


def whole(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers without 0: every sum is exact in any order, and every lost or doubled product shows."""
    return (rng.integers(1, 8, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


# --------------------------------------------------------------------------------------------- fitted/partial_products


def _parts(a: np.ndarray, b: np.ndarray, begins: list[slice]) -> np.ndarray:
    return np.stack([a[:, part].astype(np.float64) @ b[part] for part in begins])


def _slices(k: int, length: int, parts: int) -> list[slice]:
    return [slice(part * length, (part + 1) * length) for part in range(parts)]


def _partial_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, k: int, parts: int) -> Case:
        a, b, partials = whole(rng, m, k), whole(rng, k, n), unwritten((parts, m, n), np.float32)
        expected = {2: _parts(a, b, _slices(k, blocks(k, parts), parts))}
        name = f"{m} x {k} times {k} x {n}, in {parts} part{'s' * (parts > 1)}"
        return Case(name, (a, b, partials), (blocks(n, SIDE), blocks(m, SIDE), parts), (SIDE, SIDE), expected)

    # Whole blocks of C where K leaves something over, and the other way round: neither mistake looks like the other.
    shapes = [(16, 16, 32, 2), (16, 16, 16, 1), (1, 1, 7, 3), (5, 17, 30, 4), (33, 9, 20, 3), (16, 16, 30, 4)]
    return [case(*shape) for shape in (*shapes, (5, 9, 24, 3), (4, 3, 5, 8))]


@cuda.jit
def partial_answer(a, b, partials):
    column, row = cuda.grid(2)
    part = cuda.blockIdx.z
    length = (a.shape[1] + partials.shape[0] - 1) // partials.shape[0]
    if row < a.shape[0] and column < b.shape[1]:
        total = np.float32(0)
        for k in range(part * length, min((part + 1) * length, a.shape[1])):
            total += a[row, k] * b[k, column]
        partials[part, row, column] = total


def _rounded_down(a, b, partials) -> dict[int, np.ndarray]:
    parts = partials.shape[0]
    return {2: _parts(a, b, _slices(a.shape[1], a.shape[1] // parts, parts))}


def _rest_in_last(a, b, partials) -> dict[int, np.ndarray]:
    k, parts = a.shape[1], partials.shape[0]
    runs = _slices(k, k // parts, parts)
    return {2: _parts(a, b, [*runs[:-1], slice(runs[-1].start, k)])}


def _spread(a, b, partials) -> dict[int, np.ndarray]:
    k, parts = a.shape[1], partials.shape[0]
    return {2: _parts(a, b, [slice(part * k // parts, (part + 1) * k // parts) for part in range(parts)])}


def _running(a, b, partials) -> dict[int, np.ndarray]:
    k, parts = a.shape[1], partials.shape[0]
    return {2: _parts(a, b, [slice(run.stop) for run in _slices(k, blocks(k, parts), parts)])}


def _interleaved(a, b, partials) -> dict[int, np.ndarray]:
    parts = partials.shape[0]
    return {2: _parts(a, b, [slice(part, None, parts) for part in range(parts)])}


def _whole_sums(a, b, partials) -> dict[int, np.ndarray]:
    return {2: _parts(a, b, [slice(None)] * partials.shape[0])}


PARTIAL = Exercise(
    name="fitted/partial_products",
    task="K is shared by partials.shape[0] blocks. With length = K / parts, rounded up, the blocks with blockIdx.z = p "
    "sum over k from p * length on, length of them or what is left: partials[p] is their part of a @ b. A part for "
    "which nothing is left is 0.",
    parameters="a, b, partials",
    cases=_partial_cases,
    budget=lambda case: {
        "flops_f64": (0, FLOAT64),
        "atomic_requests": (0, "each part has a place of its own in partials: nothing needs to be added there"),
    },
    hints=(
        "Only the bounds of the loop over k differ from an ordinary product.",
        "The last part ends with K. min does that, and it makes the loop of a part beyond K empty.",
        "Write partials even where the loop is empty: nobody has put a 0 there.",
    ),
    answer=partial_answer,
    traps=(
        Trap(
            "rest of K", "the length was rounded down, so what K leaves beyond whole parts is in no sum", _rounded_down
        ),
        Trap(
            "rest in the last part",
            "the length was rounded down, so the last part is the longest: rounded up, it is the shortest",
            _rest_in_last,
        ),
        Trap(
            "spread evenly",
            "the parts are as even as can be: each is to have the length K / parts, rounded up, for as long as K lasts",
            _spread,
        ),
        Trap("running sums", "every part begins at k = 0, so it has what the parts before it have, too", _running),
        Trap(
            "interleaved",
            "part p has k = p, p + parts, p + 2 parts and so on: the parts are to be runs of neighbours",
            _interleaved,
        ),
        Trap("whole sums", "every part has the sum over all of K: added up, that is too much", _whole_sums),
    ),
)


# ---------------------------------------------------------------------------------------------------- fitted/four_rows


def _rows_cases(rng: np.random.Generator) -> list[Case]:
    def case(n: int, k: int) -> Case:
        a, b, c = whole(rng, ROWS, k), whole(rng, k, n), unwritten((ROWS, n), np.float32)
        return Case(f"4 x {k} times {k} x {n}", (a, b, c), blocks(n, COLUMNS), COLUMNS, {2: a.astype(np.float64) @ b})

    return [case(*shape) for shape in ((64, 16), (1, 1), (63, 7), (65, 33), (200, 20), (128, 2))]


@cuda.jit
def rows_answer(a, b, c):
    column = cuda.grid(1)
    total0, total1, total2, total3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    if column < b.shape[1]:
        for k in range(b.shape[0]):
            value = b[k, column]
            total0 += a[0, k] * value
            total1 += a[1, k] * value
            total2 += a[2, k] * value
            total3 += a[3, k] * value
        c[0, column], c[1, column] = total0, total1
        c[2, column], c[3, column] = total2, total3


def _rows_budget(case: Case) -> dict[str, tuple[float, str]]:
    (_, k), n = case.args[0].shape, case.args[1].shape[1]
    # For each k a warp reads 32 neighbours in B, in at most 5 sectors, and 4 elements of A.
    return {
        "global_load_sectors": (
            blocks(n, 32) * k * (5 + ROWS),
            "each element of b should be read once, and used for all four rows while it is in a register",
        ),
        "flops_f64": (0, FLOAT64),
    }


def _first_row_only(a, b, c) -> dict[int, np.ndarray]:
    return {2: np.repeat(a[:1].astype(np.float64) @ b, ROWS, axis=0)}


def _last_term(a, b, c) -> dict[int, np.ndarray]:
    return {2: a[:, -1:].astype(np.float64) @ b[-1:]}


FOUR_ROWS = Exercise(
    name="fitted/four_rows",
    task="c = a @ b for a matrix a of four rows. A block has 64 threads, and a thread computes a whole column of c, "
    "with four sums in registers. b is large, so none of its elements is to be read twice.",
    parameters="a, b, c",
    cases=_rows_cases,
    budget=_rows_budget,
    hints=(
        "One loop over k, and in it four multiply-adds.",
        "All four need b[k, column]: load it once, into a variable.",
        "a[0, k] is the same for all threads of a warp: a request for it is one sector.",
    ),
    answer=rows_answer,
    traps=(
        Trap("one row", "all rows of c are the first one: each needs its own row of a", _first_row_only),
        Trap("last term", "only the last k is in the sums: add to them, and do not replace them", _last_term),
    ),
)


EXERCISES = (PARTIAL, FOUR_ROWS)
