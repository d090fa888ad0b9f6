"""Exercises of notebooks/44_sparse.ipynb: where rows start, equal width (ELL), the transposed product, many vectors."""

from __future__ import annotations

import functools
import math

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


def _lengths(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """How many values the rows have, from small to large: a name, and a number for each row."""
    made = {
        "one value": [1],
        "rows of 3": [3] * 40,
        "an empty row between": [2, 0, 1],
        "empty rows first and last": [0, 0, 0, 5, 1, 0, 0],
        "30 rows": [2, 0, 3] * 10,
        "nothing but the last row": [0] * 70 + [9],
        "a block of rows, one of them empty": [0] + [1] * (BLOCK - 1),
        "a block of values and one": [BLOCK + 1],
        "600 rows": rng.integers(0, 9, 600),
    }
    return {name: np.array(lengths, np.int64) for name, lengths in made.items()}


def _whole(rng: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    """Whole numbers in float32, of which no sum here is rounded, and none is 0."""
    drawn = rng.integers(1, 10, shape) * rng.choice([-1, 1], shape)
    return drawn.astype(np.float32)


# ------------------------------------------------------------------------------------------------------ sparse/starts


def _starts_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, lengths in _lengths(rng).items():
        row = np.repeat(np.arange(lengths.size), lengths).astype(np.int32)
        starts = np.append(0, np.cumsum(lengths)).astype(np.int32)
        args = row, unwritten(starts.size, np.int32)
        cases.append(Case(name, args, _blocks(row.size + 1), BLOCK, {1: starts}))
    return cases


@cuda.jit
def starts_answer(row, starts):
    j = cuda.grid(1)
    if j <= row.size:
        first = row[j - 1] + 1 if j > 0 else 0
        last = row[j] if j < row.size else starts.size - 1
        for r in range(first, last + 1):
            starts[r] = j


def _without_empty_rows(row: np.ndarray, starts: np.ndarray) -> dict[int, np.ndarray]:
    """Only rows that have a value, and the end, are written."""
    found = np.full(starts.size, np.nan)
    for j in range(row.size - 1, -1, -1):
        found[row[j]] = j
    found[-1] = row.size
    return {1: found}


# --------------------------------------------------------------------------------------------------------- sparse/ell


def _padded(lengths: np.ndarray, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """values and columns of shape (longest, rows): in column r the values of row r, and below these 7 and -1."""
    there = np.arange(max(lengths.max(), 1))[:, np.newaxis] < lengths
    drawn = rng.integers(0, width, there.shape)
    drawn[0, 5::40] = 0  # a column like any other
    columns = np.where(there, drawn, -1).astype(np.int32)
    return np.where(there, _whole(rng, there.shape), 7).astype(np.float32), columns


def _ell_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, lengths in _lengths(rng).items():
        values, columns = _padded(lengths, 50, rng)
        x = _whole(rng, 50)
        x[::7] = np.inf  # 0 times infinity is no number: what is padded may not be multiplied by 0 either
        with np.errstate(invalid="ignore"):
            terms = np.where(columns >= 0, values * x[columns], 0)
            expected = terms.sum(axis=0)
        cases.append(
            Case(
                name,
                (values, columns, x, unwritten(lengths.size, np.float32)),
                _blocks(lengths.size),
                BLOCK,
                {3: expected},
            )
        )
    return cases


@cuda.jit
def ell_answer(values, columns, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(values.shape[0]):
            column = columns[k, row]
            if column >= 0:
                total += values[k, row] * x[column]
        out[row] = total


def _padding_too(values: np.ndarray, columns: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    with np.errstate(invalid="ignore"):
        return {3: (values * x[np.maximum(columns, 0)]).sum(axis=0)}


def _padding_times_0(values: np.ndarray, columns: np.ndarray, x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return _padding_too(np.where(columns >= 0, values, 0), columns, x, out)


# -------------------------------------------------------------------------------------------------- sparse/transposed

WIDTH = 30  # columns


def _transposed_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, lengths in _lengths(rng).items():
        starts = np.append(0, np.cumsum(lengths)).astype(np.int32)
        values, x = _whole(rng, int(starts[-1])), _whole(rng, lengths.size)
        columns = rng.integers(0, WIDTH, values.size, dtype=np.int32)
        row = np.repeat(np.arange(lengths.size), lengths)
        expected = np.zeros(WIDTH, np.float32)
        np.add.at(expected, columns, values * x[row])
        args = values, columns, starts, x, np.zeros(WIDTH, np.float32)
        cases.append(Case(name, args, _blocks(lengths.size), BLOCK, {4: expected}))
    return cases


@cuda.jit
def transposed_answer(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < x.size:
        for j in range(starts[row], starts[row + 1]):
            cuda.atomic.add(out, columns[j], values[j] * x[row])


ROW_ALONE = "A thread reads the values of its row alone: nobody searches all rows for those of a column."


def _transposed_budget(case: Case) -> dict[str, tuple[float, str]]:
    """A thread for each column stores as well, but what it wastes are loads."""
    return {"global_store_sectors": (math.inf, ""), "global_load_requests": (case.args[0].size, ROW_ALONE)}


def _by_x_of_the_column(
    at: str, values: np.ndarray, columns: np.ndarray, starts: np.ndarray, x: np.ndarray, out: np.ndarray
) -> dict[int, np.ndarray]:
    """Each value times x[its column], where x has one, added to the place of its row or of its column."""
    place = {"row": np.repeat(np.arange(x.size), np.diff(starts)), "column": columns}[at]
    used = (columns < x.size) & (place < out.size)
    np.add.at(out, place[used], values[used] * x[columns[used]])
    return {4: out}


# ------------------------------------------------------------------------------------------------------- sparse/dense

DENSE = {"one value": 1, "an empty row between": 3, "empty rows first and last": 33, "30 rows": 32, "600 rows": 8}


def _dense_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, lengths in _lengths(rng).items():
        if name in DENSE:
            starts = np.append(0, np.cumsum(lengths)).astype(np.int32)
            values, b = _whole(rng, int(starts[-1])), _whole(rng, (WIDTH, DENSE[name]))
            columns = rng.integers(0, WIDTH, values.size, dtype=np.int32)
            expected = np.zeros((lengths.size, DENSE[name]), np.float32)
            np.add.at(expected, np.repeat(np.arange(lengths.size), lengths), values[:, np.newaxis] * b[columns])
            args = values, columns, starts, b, unwritten(expected.shape, np.float32)
            cases.append(Case(f"{name}, b of {DENSE[name]}", args, _blocks(expected.size), BLOCK, {4: expected}))
    return cases


@cuda.jit
def dense_answer(values, columns, starts, b, out):
    thread = cuda.grid(1)
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0]:
        total = np.float32(0)
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


def _row_of_the_place(
    values: np.ndarray, columns: np.ndarray, starts: np.ndarray, b: np.ndarray, out: np.ndarray
) -> dict[int, np.ndarray]:
    """Each value times the row of b with the number of its own row, and not of its column."""
    found = np.zeros(out.shape, np.float32)
    row = np.repeat(np.arange(out.shape[0]), np.diff(starts))
    used = row < b.shape[0]
    np.add.at(found, row[used], values[used, np.newaxis] * b[row[used]])
    return {4: found}


EXERCISES = (
    Exercise(
        "sparse/starts",
        task="The int32 vector row has the row of each stored value, in ascending order: the format COO. Write to "
        "starts[r] how many values there are in rows before r, for each row, and to the last element how many there "
        f"are in all. Use no atomic and no search. The launch has {BLOCK} threads a block, and one thread more than "
        "there are values, or some more.",
        parameters="row, starts",
        cases=_starts_cases,
        answer=starts_answer,
        hints=(
            "A thread looks at its value and at the one before it. If both are in one row, there is nothing to write.",
            "If they are in rows 3 and 7, the rows 4, 5, 6 and 7 all start here: three of them are empty.",
            "The first thread has no value before it, and the last thread has none of its own.",
        ),
        traps=(
            Trap(
                "empty rows left out",
                "A row without values starts somewhere, too: where the next one starts.",
                _without_empty_rows,
            ),
        ),
    ),
    Exercise(
        "sparse/ell",
        task="All rows are stored as if they were as long as the longest: the format ELL. values[k, row] and "
        "columns[k, row] are the value number k of a row and its column, and a column of -1 says that the row has no "
        "more. Write the product with x to out. x may be infinite. A thread takes one row, and the launch has "
        f"{BLOCK} threads a block.",
        parameters="values, columns, x, out",
        cases=_ell_cases,
        answer=ell_answer,
        hints=(
            "values.shape[0] is the length of the longest row.",
            "x[-1] is the last element of x: so look at the column before you look at x.",
            "What stands where the column is -1 counts for nothing. It may not be multiplied by 0 either: x may be "
            "infinite.",
        ),
        traps=(
            Trap(
                "padding multiplied",
                "What stands where the column is -1 counts for nothing.",
                _padding_too,
            ),
            Trap(
                "padding times 0",
                "What stands where the column is -1 may not be multiplied by 0 either: 0 times infinity is no number.",
                _padding_times_0,
            ),
        ),
    ),
    Exercise(
        "sparse/transposed",
        task="Add to out the product of the transposed matrix with x: out[c] is the sum of values[j] * x[row] over all "
        "values in column c. The matrix is stored by compressed rows, x has an element for each row, and out has one "
        f"for each column, 0 at the beginning. A thread takes one row. The launch has {BLOCK} threads a block.",
        parameters="values, columns, starts, x, out",
        cases=_transposed_cases,
        answer=transposed_answer,
        hints=(
            "The values of a row go to different elements of out, and values of different rows may go to the same one.",
            "So a thread reads x once, and adds each of its products by an atomic.",
        ),
        budget=_transposed_budget,
        advice={"idle threads": ROW_ALONE},
        traps=(
            Trap(
                "not transposed",
                "columns[j] is a place in out; x has an element for each row.",
                functools.partial(_by_x_of_the_column, "row"),
            ),
            Trap(
                "x of the column",
                "columns[j] is a place in out; x has an element for each row.",
                functools.partial(_by_x_of_the_column, "column"),
            ),
        ),
    ),
    Exercise(
        "sparse/dense",
        task="Multiply a matrix by compressed rows by a full one, b: for each column c of b, out[row, c] is the sum of "
        "values[j] * b[columns[j], c] over the values of the row. A thread takes one element of out. b and out lie row "
        f"by row. The launch has {BLOCK} threads a block, and as many threads as out has elements, or some more.",
        parameters="values, columns, starts, b, out",
        cases=_dense_cases,
        answer=dense_answer,
        hints=(
            "A thread's number, divided by out.shape[1], is a row, and what is left is a column.",
            "Neighbouring threads should read neighbouring elements of b: so they take neighbouring columns.",
        ),
        traps=(
            Trap(
                "row for column",
                "Which row of b a value is multiplied by, its column says.",
                _row_of_the_place,
            ),
        ),
    ),
)
