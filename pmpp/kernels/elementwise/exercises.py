"""Exercises of notebooks/88_a_tape.ipynb on elements: a view is copied, arrays of other shapes are broadcast."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it meets: write np.float32(0)."


# --------------------------------------------------------------------------------------------------- elementwise/view


def _view_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, rows, columns, first, down, along in (
        ("one element", 1, 1, 0, 1, 1),
        ("rows in order", 3, 5, 0, 5, 1),
        ("a transposed matrix", 3, 5, 0, 1, 3),
        ("every second column", 4, 33, 1, 70, 2),
        ("a row that is repeated", 9, 20, 0, 0, 1),
        ("whole blocks, transposed", 16, 32, 0, 1, 16),
        ("a part of a larger matrix", 24, 40, 130, 64, 1),
    ):
        x = rng.standard_normal(first + (rows - 1) * down + (columns - 1) * along + 1, dtype=np.float32)
        args = x, first, down, along, unwritten((rows, columns), np.float32)
        cases.append(Case(name, args, blocks(rows * columns, BLOCK), BLOCK, {4: _view(*args)}))
    return cases


def _view(x: np.ndarray, first: int, down: int, along: int, out: np.ndarray) -> np.ndarray:
    rows, columns = np.indices(out.shape)
    return x[first + rows * down + columns * along]


@cuda.jit
def view_answer(x, first, down, along, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = x[first + row * down + column * along]


def _at(x: np.ndarray, places: np.ndarray) -> dict[int, np.ndarray]:
    return {4: np.where(places < x.size, x[np.minimum(places, x.size - 1)], np.nan)}


def _strides_exchanged(x, first, down, along, out) -> dict[int, np.ndarray]:
    rows, columns = np.indices(out.shape)
    return _at(x, first + rows * along + columns * down)


def _in_order(x, first, down, along, out) -> dict[int, np.ndarray]:
    return _at(x, first + np.arange(out.size).reshape(out.shape))


def _from_the_beginning(x, first, down, along, out) -> dict[int, np.ndarray]:
    rows, columns = np.indices(out.shape)
    return _at(x, rows * down + columns * along)


# -------------------------------------------------------------------------------------------------- elementwise/choose


def _choose_cases(rng: np.random.Generator) -> list[Case]:
    def case(rows: int, columns: int, infinite: bool = False) -> Case:
        mask = rng.choice(np.float32([-1, 0, 0.25, 1, 2]), rows)
        mask[0] = 0.25
        a, b = rng.standard_normal((rows, columns), dtype=np.float32), rng.standard_normal(columns, dtype=np.float32)
        out = unwritten(a.shape, np.float32)
        if infinite:
            mask[1] = 0
            a[1, 0], b[1] = np.inf, -np.inf  # neither a of row 1 nor b of row 0 is chosen
            out[:] = 7  # a NaN that a kernel writes would look unwritten
        args = mask, a, b, out
        expected = np.where(mask[:, None] > 0, a, b)
        name = f"{rows} x {columns}" + (" and infinities among them" if infinite else "")
        return Case(name, args, blocks(a.size, BLOCK), BLOCK, {3: expected})

    shapes = [(1, 1), (2, 3), (5, 4), (7, 33), (4, 64)]
    return [*(case(*shape) for shape in shapes), case(6, 21, True), case(30, 50)]


@cuda.jit
def choose_answer(mask, a, b, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = a[row, column] if mask[row] > np.float32(0) else b[column]


def _exchanged(mask, a, b, out) -> dict[int, np.ndarray]:
    return {3: np.where(mask[:, None] > 0, b, a)}


def _mask_of_the_column(mask, a, b, out) -> dict[int, np.ndarray]:
    return {3: np.where(np.resize(mask, a.shape[1]) > 0, a, b)}


def _other_than_0(mask, a, b, out) -> dict[int, np.ndarray]:
    return {3: np.where(mask[:, None] != 0, a, b)}


def _mixed(mask, a, b, out) -> dict[int, np.ndarray]:
    chosen = np.where(mask[:, None] > 0, np.float32(1), np.float32(0))
    with np.errstate(invalid="ignore"):
        return {3: chosen * a + (1 - chosen) * b}


def _only_1(mask, a, b, out) -> dict[int, np.ndarray]:
    return {3: np.where(mask[:, None] == 1, a, b)}


def _b_of_the_row(mask, a, b, out) -> dict[int, np.ndarray]:
    return {3: np.where(mask[:, None] > 0, a, np.resize(b, a.shape[0])[:, None])}


EXERCISES = (
    Exercise(
        "elementwise/view",
        task="Copy a view to an array in C order. x is a vector, all the memory that there is. The view's element "
        "(r, c) lies at first + r * down + c * along, all counted in elements. out has shape (rows, columns), float32. "
        f"The launch has {BLOCK} threads a block, one for each element of out.",
        parameters="x, first, down, along, out",
        cases=_view_cases,
        answer=view_answer,
        hints=(
            "From a flat i: i // columns is the row, and i % columns the column.",
            "A stride of 0 shows the same row again. Does the formula need a case of its own for that?",
        ),
        traps=(
            Trap("strides exchanged", "down belongs to the row, along to the column.", _strides_exchanged),
            Trap(
                "strides ignored", "The view's elements need not lie one after the other: use both strides.", _in_order
            ),
            Trap("first ignored", "The view begins at x[first].", _from_the_beginning),
        ),
    ),
    Exercise(
        "elementwise/choose",
        task="out[r, c] = a[r, c] where mask[r] > 0, and b[c] elsewhere: mask is repeated along each row, and b from "
        "row to row. mask has shape (rows,), a and out (rows, columns), b (columns,), all float32. The launch has "
        f"{BLOCK} threads a block, one for each element of out.",
        parameters="mask, a, b, out",
        cases=_choose_cases,
        answer=choose_answer,
        hints=(
            "What is repeated is found by leaving an index out.",
            "How many different elements of mask does a warp read, and how many of b?",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("a and b exchanged", "a is for the rows where mask is positive.", _exchanged),
            Trap("below 0 counts", "Of mask only what is above 0 chooses a: compare with >.", _other_than_0),
            Trap("only 1 counts", "Of mask all that is above 0 chooses a, not 1 alone.", _only_1),
            Trap("mixed", "An infinity times 0 is a NaN: choose an element, and do not add products.", _mixed),
            Trap("mask of the column", "mask has an element for each row.", _mask_of_the_column),
            Trap("b of the row", "b has an element for each column.", _b_of_the_row),
        ),
    ),
)
