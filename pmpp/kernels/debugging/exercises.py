"""Exercises of notebooks/18_when_a_kernel_is_wrong.ipynb: four wrong kernels to find out and mend."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)  # rounded up


# ----------------------------------------------------------------------------------------------------- debugging/edges


# The kernel to start from. Its guard is the usual one.
@cuda.jit
def edges_start(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i + 1] - x[i - 1]


@cuda.jit
def edges_answer(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[min(i + 1, x.size - 1)] - x[max(i - 1, 0)]


def _differences(x: np.ndarray) -> np.ndarray:
    return np.r_[x[1:], x[-1:]] - np.r_[x[:1], x[:-1]]  # one rounding: the same bits


def _edges_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 1000):
        x = rng.standard_normal(n, dtype=np.float32)
        args = x, unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, _blocks(n), BLOCK, {1: _differences(x)}))
    return cases


def _ends_of_zero(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    inside = _differences(x)
    inside[[0, -1]] = 0
    return {1: inside}


def _wrapped(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.roll(x, -1) - np.roll(x, 1)}


# --------------------------------------------------------------------------------------------------- debugging/maximum


# The kernel to start from: right as long as x fills its blocks.
@cuda.jit
def maximum_start(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        part[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


@cuda.jit
def maximum_answer(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = x[i] if i < x.size else np.float32(-np.inf)
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            part[thread] = max(part[thread], part[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = part[0]


def _maxima(x: np.ndarray) -> np.ndarray:
    return np.array([x[first : first + BLOCK].max() for first in range(0, x.size, BLOCK)])


def _maximum_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 1000):
        x = np.float32(-1e38) * (1 + rng.random(n, dtype=np.float32))  # less than what one would fill up with
        args = x, unwritten(_blocks(n), np.float32)
        cases.append(Case(f"n = {n}", args, _blocks(n), BLOCK, {1: _maxima(x)}))
    return cases


def _filled_with_zero(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    filled = np.zeros(_blocks(x.size) * BLOCK, np.float32)
    filled[: x.size] = x
    return {1: _maxima(filled)}


# ------------------------------------------------------------------------------------------------------ debugging/roll


# The kernel to start from: no access leaves its array, as long as there are at least as many columns as rows.
@cuda.jit
def roll_start(x, by, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, (column - by) % x.shape[0]]


@cuda.jit
def roll_answer(x, by, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = x[row, (column - by) % x.shape[1]]


def _roll_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for (rows, columns), by in (((1, 2), 1), ((6, 16), 3), ((7, 20), 5), ((8, 33), 8), ((20, 50), 13)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        args = x, by, unwritten((rows, columns), np.float32)
        grid = _blocks(columns, 16), _blocks(rows, 8)
        cases.append(
            Case(f"x of {rows} x {columns}, by = {by}", args, grid, (16, 8), {2: np.roll(x, by, axis=1)}),
        )
    return cases


def _to_the_left(x: np.ndarray, by: int, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.roll(x, -by, axis=1)}


def _down(x: np.ndarray, by: int, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.roll(x, by, axis=0)}


# ----------------------------------------------------------------------------------------------------- debugging/slope


# The kernel to start from: a block walks along its row, a part at a time. It has three bugs.
@cuda.jit
def slope_start(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    before = x[row, 0]
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
            cuda.syncthreads()
            left = part[thread - 1] if thread > 0 else before
            out[row, column] = part[thread] - left
            before = part[BLOCK - 1]


@cuda.jit
def slope_answer(x, out):
    part = cuda.shared.array(BLOCK, np.float32)
    thread, row = cuda.threadIdx.x, cuda.blockIdx.x
    before = x[row, 0]
    for first in range(0, x.shape[1], BLOCK):
        column = first + thread
        if column < x.shape[1]:
            part[thread] = x[row, column]
        cuda.syncthreads()  # all have written
        if column < x.shape[1]:
            left = part[thread - 1] if thread > 0 else before
            out[row, column] = part[thread] - left
        if first + BLOCK < x.shape[1]:
            before = part[BLOCK - 1]
        cuda.syncthreads()  # all have read


def _slopes(x: np.ndarray) -> np.ndarray:
    return x - np.concatenate([x[:, :1], x[:, :-1]], axis=1)


def _slope_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for shape in ((1, 1), (1, BLOCK - 1), (3, BLOCK), (5, BLOCK + 1), (4, 400)):
        x = rng.standard_normal(shape, dtype=np.float32)
        args = x, unwritten(shape, np.float32)
        cases.append(Case(f"x of {shape[0]} x {shape[1]}", args, shape[0], BLOCK, {1: _slopes(x)}))
    return cases


def _each_part_anew(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    slopes = _slopes(x)
    slopes[:, ::BLOCK] = 0
    return {1: slopes}


EXERCISES = (
    Exercise(
        "debugging/edges",
        task="edges_start should compute out[i] = x[i + 1] - x[i - 1] of a float32 vector. At an end, where a "
        "neighbour is missing, x[i] takes its place. Find out what it does there, and mend it. "
        f"The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, out",
        cases=_edges_cases,
        answer=edges_answer,
        hints=(
            "Which threads have no neighbour on the right, and which none on the left? What do they access?",
            "There are two faults. A negative index counts from the end, in a kernel as in Python.",
            "min(i + 1, x.size - 1) and max(i - 1, 0) stay inside.",
        ),
        traps=(
            Trap("ends left at zero", "At an end x[i] takes the place of its missing neighbour.", _ends_of_zero),
            Trap("wrapped around", "The neighbour of the first element is not the last one.", _wrapped),
        ),
    ),
    Exercise(
        "debugging/maximum",
        task=f"maximum_start should write the largest of each {BLOCK} elements of x to out, one block for each, the "
        "last of which may have fewer elements. Its tests all passed, with vectors of whole blocks. Profile it at "
        f"level check with another length, and mend it. The launch has {BLOCK} threads a block.",
        parameters="x, out",
        cases=_maximum_cases,
        answer=maximum_answer,
        hints=(
            "Who writes the elements of part that belong to no element of x? Who reads them?",
            "A value is needed there that never wins. Are all elements of x positive?",
            "np.float32(-np.inf) is smaller than every number.",
        ),
        traps=(
            Trap(
                "filled with zero", "Zero is larger than the elements of x here: fill up with -inf.", _filled_with_zero
            ),
        ),
    ),
    Exercise(
        "debugging/roll",
        task="roll_start should move each row of x to the right by `by` elements; what falls off at the end comes in "
        "again at the beginning. No access leaves its array, and no sanitizer has anything to say. Draw which elements "
        "are wrong for 20 x 50 elements, say what they have in common, and mend it. The launch has (16, 8) threads a "
        "block, and a thread or more for each element.",
        parameters="x, by, out",
        cases=_roll_cases,
        answer=roll_answer,
        hints=(
            "Compare with np.roll(x, by, axis=1). From which column on is it wrong?",
            "For which shapes is it right? What is special about them?",
            "A column is taken modulo the number of columns.",
        ),
        traps=(
            Trap("to the left", "out[row, column] comes from the left: from column - by.", _to_the_left),
            Trap("down", "The rows stay where they are, and their elements move.", _down),
        ),
    ),
    Exercise(
        "debugging/slope",
        task="slope_start should compute out[r, c] = x[r, c] - x[r, c - 1], and 0 in column 0. A block has a row, and "
        f"takes it in parts of {BLOCK} elements through shared memory. It has three bugs. Mend the one that is "
        f"reported, and look again. The launch has a block of {BLOCK} threads for each row.",
        parameters="x, out",
        cases=_slope_cases,
        answer=slope_answer,
        hints=(
            "In the last part of a row, which threads reach the barrier?",
            "Who reads part[BLOCK - 1], who overwrites it in the next trip, and what lies in between?",
            "Write, barrier, read, barrier: and every thread passes both.",
            "In a row shorter than a part, who has written part[BLOCK - 1]? After which parts is it needed?",
        ),
        traps=(
            Trap(
                "each part anew",
                "The first element of a part has a left neighbour in the part before.",
                _each_part_anew,
            ),
        ),
    ),
)
