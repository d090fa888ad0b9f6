"""Exercises of notebooks/74_linear.ipynb on the gradients: of the bias without atomics, and of the weights in tiles."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.linear.exercises import FLOAT64, whole
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

COLUMNS, ROWS = 32, 8  # of a block of threads that sums columns
TILE = 16


# ---------------------------------------------------------------------------------------------- linear_gradients/bias


def _bias_cases(rng: np.random.Generator) -> list[Case]:
    def case(rows: int, outputs: int) -> Case:
        dy = whole(rng, rows, outputs)
        args, name = (dy, unwritten(outputs, np.float32)), f"{rows} row{'s' * (rows > 1)} of {outputs}"
        return Case(name, args, blocks(outputs, COLUMNS), (COLUMNS, ROWS), {1: dy.sum(axis=0)})

    return [case(*shape) for shape in ((8, 32), (1, 1), (5, 20), (9, 33), (50, 70), (64, 128))]


@cuda.jit
def bias_answer(dy, dbias):
    shared = cuda.shared.array((ROWS, COLUMNS), np.float32)
    x, y, column = cuda.threadIdx.x, cuda.threadIdx.y, cuda.grid(2)[0]
    total = np.float32(0)
    if column < dy.shape[1]:
        for row in range(y, dy.shape[0], ROWS):
            total += dy[row, column]
    shared[y, x] = total
    cuda.syncthreads()
    if y == 0 and column < dy.shape[1]:
        for other in range(1, ROWS):
            total += shared[other, x]
        dbias[column] = total


def _bias_budget(case: Case) -> dict[str, tuple[float, str]]:
    rows, outputs = case.args[0].shape
    return {
        "global_load_sectors": (
            rows * 4 * blocks(outputs, COLUMNS),
            "each element of dy should be read once, by threads of a warp that lie side by side: x runs along a row",
        ),
        "atomic_requests": (
            0,
            "atomics add in any order: put the threads' sums into shared memory, and add them there",
        ),
        "flops_f64": (0, FLOAT64),
    }


def _mean(dy, dbias) -> dict[int, np.ndarray]:
    return {1: dy.mean(axis=0)}


def _of_first_rows(dy, dbias) -> dict[int, np.ndarray]:
    return {1: dy[::ROWS].sum(axis=0)}


BIAS = Exercise(
    name="linear_gradients/bias",
    task="dbias[o] is the sum of dy[i, o] over all rows i, always added in the same order. A block of 32 x 8 threads "
    "takes 32 columns; its threads with the same x share a column, and put their sums together in shared memory.",
    parameters="dy, dbias",
    cases=_bias_cases,
    budget=_bias_budget,
    hints=(
        "Thread (x, y) takes the rows y, y + 8, y + 16, ... of column blockIdx.x * 32 + x.",
        "A thread without a column must reach the barrier all the same.",
        "After the barrier the threads with y = 0 add what the other seven left, in their order.",
    ),
    answer=bias_answer,
    traps=(
        Trap("mean", "this is the mean of the rows: the loss has divided by their number where it wanted to", _mean),
        Trap("one thread's rows", "only the rows of the threads with y = 0 are in the sum", _of_first_rows),
    ),
    advice={"missing atomic": "let each thread keep a sum of its own, and add these up in shared memory"},
)


# -------------------------------------------------------------------------------------------- linear_gradients/weight


def _weight_cases(rng: np.random.Generator) -> list[Case]:
    def case(rows: int, features: int, outputs: int) -> Case:
        dy, x = whole(rng, rows, outputs), whole(rng, rows, features)
        grid = blocks(features, TILE), blocks(outputs, TILE)
        args = dy, x, unwritten((outputs, features), np.float32)
        name = f"{rows} row{'s' * (rows > 1)}, {features} inputs and {outputs} outputs"
        return Case(name, args, grid, (TILE, TILE), {2: dy.T.astype(np.float64) @ x})

    shapes = [(16, 16, 16), (1, 1, 1), (5, 17, 9), (21, 16, 33), (40, 35, 20), (64, 48, 80)]
    return [case(*shape) for shape in shapes]


@cuda.jit
def weight_answer(dy, x, dweight):
    dy_tile = cuda.shared.array((TILE, TILE), np.float32)
    x_tile = cuda.shared.array((TILE, TILE), np.float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    first_output, feature = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE + i
    total = np.float32(0)
    for row0 in range(0, dy.shape[0], TILE):
        row, output = row0 + j, first_output + i
        dy_tile[j, i] = dy[row, output] if row < dy.shape[0] and output < dy.shape[1] else np.float32(0)
        x_tile[j, i] = x[row, feature] if row < x.shape[0] and feature < x.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += dy_tile[k, j] * x_tile[k, i]
        cuda.syncthreads()
    if first_output + j < dweight.shape[0] and feature < dweight.shape[1]:
        dweight[first_output + j, feature] = total


def _weight_budget(case: Case) -> dict[str, tuple[float, str]]:
    dy, x, _ = case.args
    steps = blocks(dy.shape[0], TILE) * blocks(dy.shape[1], TILE) * blocks(x.shape[1], TILE)
    return {
        # A warp's request is two rows of 16 elements: 2 sectors each.
        "global_load_sectors": (
            steps * 2 * TILE * 2,
            "a block should load tiles of 16 x 16 of both, as they lie: threads that lie side by side read neighbours",
        ),
        "flops_f64": (0, FLOAT64),
    }


def _over_the_rows(dy, x, dweight) -> dict[int, np.ndarray]:
    return {2: dy.T.astype(np.float64) @ x / dy.shape[0]}


def _of_one_tile(dy, x, dweight) -> dict[int, np.ndarray]:
    first = (dy.shape[0] - 1) // TILE * TILE
    return {2: dy[first:].T.astype(np.float64) @ x[first:]}


WEIGHT = Exercise(
    name="linear_gradients/weight",
    task="dweight = dyᵀ x, in blocks of 16 x 16 threads with tiles of 16 x 16, for any number of rows, inputs and "
    "outputs. dy and x lie in C order, and are read as they lie: nothing is transposed in memory.",
    parameters="dy, x, dweight",
    cases=_weight_cases,
    budget=_weight_budget,
    hints=(
        "The sum runs over the rows of dy and x. A tile of each: 16 rows, and 16 columns that the block needs.",
        "dweight[o, k] needs column o of dy and column k of x. In the tiles: dy_tile[row, j] and x_tile[row, i].",
        "Row j of the tile is loaded by the threads with threadIdx.y = j, and threadIdx.x runs along memory.",
    ),
    answer=weight_answer,
    traps=(
        Trap("mean", "this is the mean over the rows: the gradient of the loss is their sum", _over_the_rows),
        Trap(
            "last tile",
            "only the last tile of rows is in the sum: keep the total from one tile to the next",
            _of_one_tile,
        ),
    ),
)


EXERCISES = (BIAS, WEIGHT)
