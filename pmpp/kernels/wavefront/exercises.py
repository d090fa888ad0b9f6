"""Exercises of notebooks/47_wavefronts.ipynb: a diagonal of edit distances, a common subsequence, one more stop."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block
LETTERS = 64  # threads a block of the subsequence, one more than a text has letters at most
BUFFERS, WIDTH = 3, LETTERS


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# -------------------------------------------------------------------------------------------------- wavefront/diagonal


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The table of edit distances, (m + 1, n + 1)."""
    table = np.zeros((a.size + 1, b.size + 1), np.int32)
    table[0] = np.arange(b.size + 1)
    for i in range(1, a.size + 1):
        table[i, 0] = i
        aside = table[i - 1, :-1] + (b != a[i - 1])
        best = np.minimum(aside, table[i - 1, 1:] + 1)
        for j in range(1, b.size + 1):
            table[i, j] = min(best[j - 1], table[i, j - 1] + 1)
    return table


def _diagonal(table: np.ndarray, number: int) -> np.ndarray:
    """The cells (i, number - i) of a table at place i, and elsewhere what nobody has written."""
    found = unwritten(table.shape[0], np.int32)
    for i in range(table.shape[0]):
        if 0 <= number - i < table.shape[1]:
            found[i] = table[i, number - i]
    return found


def _diagonal_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    chosen = {
        "one letter each, the last cell": (1, 1, 2),
        "the first letters": (3, 4, 2),
        "no cell in row 0": (30, 8, 15),
        "no cell in column 0": (8, 30, 15),
        "the last two cells": (9, 5, 13),
        "a block of rows": (BLOCK - 1, 40, 100),
        "a block of rows and one": (BLOCK, 300, 270),
        "600 rows": (599, 450, 590),
    }
    for name, (m, n, number) in chosen.items():
        a, b = (rng.integers(0, 4, size).astype(np.uint8) for size in (m, n))
        table = _distances(a, b)
        before, last = _diagonal(table, number - 2), _diagonal(table, number - 1)
        args = a, b, before, last, unwritten(m + 1, np.int32), number
        cases.append(Case(name, args, _blocks(m + 1), BLOCK, {4: _diagonal(table, number)}))
    return cases


def _written_outside(a, b, before, last, now, number):
    """The diagonal, and anything where it has left the table."""
    cells = _diagonal(_distances(a, b), number).astype(np.float64)
    column = number - np.arange(a.size + 1)
    return {4: np.where((column >= 0) & (column <= b.size), cells, np.nan)}


@cuda.jit
def diagonal_answer(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            aside = before[i - 1] + (a[i - 1] != b[j - 1])
            now[i] = min(aside, min(last[i - 1], last[i]) + 1)


# ----------------------------------------------------------------------------------------------- wavefront/subsequence


def _subsequence_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    chosen = {
        "one letter each": (1, 1, 1),
        "one pair, a is longer": (1, 20, 6),
        "one pair, b is longer": (1, 5, 40),
        "a full block": (1, LETTERS - 1, 50),
        "three pairs": (3, 40, 33),
        "one pair, b is longer than a block": (1, 20, 250),  # a block has no room for such a table
    }
    for name, (pairs, m, n) in chosen.items():
        a, b = (rng.integers(0, 4, (pairs, size)).astype(np.uint8) for size in (m, n))
        if m == n == 1:
            b[:] = a
        b[:, -1] = a[:, -1]  # so that none has the length 0
        expected = np.zeros(pairs, np.int32)
        for pair in range(pairs):
            table = np.zeros((m + 1, n + 1), np.int32)
            for i in range(m):
                for j in range(n):
                    same = a[pair, i] == b[pair, j]
                    table[i + 1, j + 1] = table[i, j] + 1 if same else max(table[i, j + 1], table[i + 1, j])
            expected[pair] = table[m, n]
        cases.append(Case(name, (a, b, unwritten(pairs, np.int32)), pairs, LETTERS, {2: expected}))
    return cases


@cuda.jit
def subsequence_answer(a, b, out):
    lengths = cuda.shared.array((BUFFERS, WIDTH), np.int32)
    pair, i, m, n = cuda.blockIdx.x, cuda.threadIdx.x, a.shape[1], b.shape[1]
    for step in range(m + n + 1):
        j = step - i
        if i <= m and 0 <= j <= n:
            length = 0
            if i > 0 and j > 0:
                if a[pair, i - 1] == b[pair, j - 1]:
                    length = lengths[(step + 1) % BUFFERS, i - 1] + 1
                else:
                    length = max(lengths[(step + 2) % BUFFERS, i - 1], lengths[(step + 2) % BUFFERS, i])
            lengths[step % BUFFERS, i] = length
            if i == m and j == n:
                out[pair] = length
        cuda.syncthreads()


# ------------------------------------------------------------------------------------------------------ wavefront/stop


def _stop_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    chosen = {
        "one start": (1, 5, 2),
        "a stop that is the first": (3, 40, 0),
        "a stop that is the last": (2, 33, 32),
        "a block of vertices": (5, BLOCK, 100),
        "a block of vertices and one": (4, BLOCK + 1, BLOCK),
        "more starts than vertices": (70, 9, 4),
    }
    for name, (rows, n, k) in chosen.items():
        d = rng.integers(1, 50, (rows, n)).astype(np.float32)
        row = rng.integers(0, 20, n).astype(np.float32)
        d[rng.random(d.shape) < 0.3] = np.inf
        row[rng.random(n) < 0.3] = np.inf
        row[k], d[0, k] = 0, 3
        row[k - 1], d[0, k - 1] = 1, 9  # here the stop is a short cut
        expected = np.minimum(d, d[:, k, None] + row)
        cases.append(Case(name, (d, row, k), (_blocks(n), rows), BLOCK, {0: expected}))
    return cases


READ_BY_OTHERS = (
    "The thread of vertex k writes what the others read, and blocks know no barrier. What it would write is what is "
    "there."
)


def _always_by_the_stop(d, row, k):
    return {0: d[:, k, None] + row}


@cuda.jit
def stop_answer(d, row, k):
    j, i = cuda.grid(2)
    if j < d.shape[1] and j != k:
        d[i, j] = min(d[i, j], d[i, k] + row[j])


EXERCISES = (
    Exercise(
        "wavefront/diagonal",
        task="The edit distance of two texts is how many letters must be put in, taken out or changed to make one of "
        "the other. In a table of the first i letters of a and the first j of b, cell (i, 0) is i, cell (0, j) is j, "
        "and each other is the least of three: the cell at (i - 1, j - 1), plus 1 if a[i - 1] and b[j - 1] differ; the "
        "one at (i - 1, j) plus 1; and the one at (i, j - 1) plus 1. Write the diagonal where i + j is number: cell "
        "(i, number - i) to now[i]. The diagonal before it is in last, and the one before that in before, both by i. "
        f"Write no other element. The launch has {BLOCK} threads a block, and a thread for each row.",
        parameters="a, b, before, last, now, number",
        cases=_diagonal_cases,
        answer=diagonal_answer,
        hints=(
            "There is a row 0: as many rows as letters of a, and one more. The same goes for columns.",
            "Cell (i - 1, j) is on the diagonal before, at place i - 1, and cell (i, j - 1) is there at place i.",
            "Where j is less than 0 or greater than b.size, the diagonal has left the table.",
        ),
        traps=(
            Trap(
                "written outside",
                "Where the diagonal has left the table, now stays as it was.",
                _written_outside,
            ),
        ),
        advice={
            "guard off by one": "There are a.size + 1 rows and b.size + 1 columns: letter i - 1 belongs to row i, and "
            "j must be a column, too."
        },
    ),
    Exercise(
        "wavefront/subsequence",
        task="Write to out[p] the length of the longest common subsequence of a[p] and b[p]: letters in their order, "
        "which need not stand side by side. In a table cell (i, j) is 0 if i or j is 0. If a[p, i - 1] and b[p, j - 1] "
        "are equal it is the cell at (i - 1, j - 1) plus 1; else the greater of those at (i - 1, j) and (i, j - 1). "
        f"The last cell is the result. A block has one pair and {LETTERS} threads, and a has fewer letters than that. "
        "Keep diagonals in shared memory.",
        parameters="a, b, out",
        cases=_subsequence_cases,
        answer=subsequence_answer,
        hints=(
            "Thread i computes row i. In step s it has the cell of column s - i, if there is one.",
            "A cell needs the two diagonals before its own. With three buffers, nobody writes what is still needed.",
            "All threads that have a row must reach the barrier in every step, also when they have no cell.",
        ),
    ),
    Exercise(
        "wavefront/stop",
        task="d[i, j] is the distance from start i to vertex j without a stop at vertex k, and row[j] that from k to "
        "j; row[k] is 0. Allow the stop, in place: d[i, j] becomes the lesser of d[i, j] and d[i, k] + row[j]. All "
        f"threads run at the same time. A block is {BLOCK} threads along j, and the grid has as many rows as d.",
        parameters="d, row, k",
        cases=_stop_cases,
        answer=stop_answer,
        traps=(
            Trap(
                "no minimum",
                "The way without the stop may be shorter: keep the lesser.",
                _always_by_the_stop,
            ),
        ),
        advice=dict.fromkeys(("missing barrier", "missing atomic", "race between blocks"), READ_BY_OTHERS),
        hints=(
            "All threads of a row read d[i, k]. Does anyone write it?",
            "The distance to k itself does not change, so nobody needs to write it.",
        ),
    ),
)
