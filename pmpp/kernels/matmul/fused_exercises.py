"""Exercises of notebooks/39_fused_and_batched_products.ipynb: an epilogue behind a split sum, and products in teams."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul.exercises import FLOAT64
from pmpp.kernels.matmul.fitted_exercises import whole
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

SIDE = 16  # of a block of threads, and of the square of the result that it finishes
TEAMS, ROWS, DEPTH, COLUMNS = 8, 4, 3, 4  # products of a block; a product is 4 x 3 times 3 x 4
TEAM = ROWS * COLUMNS  # threads of a product, one for each element


# -------------------------------------------------------------------------------------------------- fused/finish_once


def _finished(sums: np.ndarray, bias: np.ndarray, residual: np.ndarray, alpha: float) -> np.ndarray:
    return np.maximum(float(alpha) * sums + residual + bias, 0)


def _finish_cases(rng: np.random.Generator) -> list[Case]:
    def case(parts: int, m: int, n: int) -> Case:
        partials, bias, residual = whole(rng, parts, m, n), whole(rng, n), whole(rng, m, n)
        alpha, out = np.float32(rng.choice([-2, 3])), unwritten((m, n), np.float32)
        # Without this the first element of a small case may be 0 for many reasons.
        residual[0, 0] += 500
        expected = {4: _finished(partials.sum(axis=0, dtype=np.float64), bias, residual, alpha)}
        name = f"{parts} part{'s' * (parts > 1)} of {m} x {n}"
        return Case(
            name, (partials, bias, residual, alpha, out), (blocks(n, SIDE), blocks(m, SIDE)), (SIDE, SIDE), expected
        )

    return [case(*shape) for shape in ((1, 16, 16), (2, 16, 16), (3, 5, 9), (4, 1, 40), (7, 33, 17), (3, 48, 32))]


@cuda.jit
def finish_answer(partials, bias, residual, alpha, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = np.float32(0)
        for part in range(partials.shape[0]):
            total += partials[part, row, column]
        value = alpha * total + residual[row, column] + bias[column]
        out[row, column] = max(value, np.float32(0))


def _every_part_finished(partials, bias, residual, alpha, out) -> dict[int, np.ndarray]:
    return {4: np.maximum(float(alpha) * partials.astype(np.float64) + residual + bias, 0).sum(axis=0)}


def _every_part_clipped(partials, bias, residual, alpha, out) -> dict[int, np.ndarray]:
    sums = np.maximum(float(alpha) * partials.astype(np.float64), 0).sum(axis=0)
    return {4: np.maximum(sums + residual + bias, 0)}


def _bias_in_every_part(partials, bias, residual, alpha, out) -> dict[int, np.ndarray]:
    parts = partials.shape[0]
    return {4: _finished(partials.sum(axis=0, dtype=np.float64), parts * bias, residual, alpha)}


def _first_part(partials, bias, residual, alpha, out) -> dict[int, np.ndarray]:
    return {4: _finished(partials[0].astype(np.float64), bias, residual, alpha)}


def _residual_behind(partials, bias, residual, alpha, out) -> dict[int, np.ndarray]:
    return {4: _finished(partials.sum(axis=0, dtype=np.float64), bias, 0 * residual, alpha) + residual}


def _all_scaled(partials, bias, residual, alpha, out) -> dict[int, np.ndarray]:
    sums = partials.sum(axis=0, dtype=np.float64) + residual + bias
    return {4: np.maximum(float(alpha) * sums, 0)}


def _not_activated(partials, bias, residual, alpha, out) -> dict[int, np.ndarray]:
    return {4: float(alpha) * partials.sum(axis=0, dtype=np.float64) + residual + bias}


FINISH = Exercise(
    name="fused/finish_once",
    task="K was split: partials[p] has part p of every sum of a product. Write "
    "out = relu(alpha * sum + residual + bias), where the bias has a number for each column. A thread finishes one "
    f"element. The launch has a block of {SIDE} x {SIDE} threads for each {SIDE} x {SIDE} elements of out: threadIdx.x "
    "counts columns.",
    parameters="partials, bias, residual, alpha, out",
    cases=_finish_cases,
    budget=lambda case: {"flops_f64": (0, FLOAT64)},
    hints=(
        "First the sum over p, in a register; then everything else, once.",
        "alpha belongs to the product alone.",
        "The activation comes last: it sees the residual and the bias, too.",
    ),
    answer=finish_answer,
    traps=(
        Trap(
            "finished parts",
            "every part was finished by itself and then added: the activation of a sum is not the sum of activations",
            _every_part_finished,
        ),
        Trap("clipped parts", "negative parts were set to 0 before they were added", _every_part_clipped),
        Trap("bias in every part", "the bias was added once for each part: add it to the sum", _bias_in_every_part),
        Trap("one part", "only the first part is in the result: add all of them", _first_part),
        Trap(
            "residual behind",
            "the residual was added behind the activation: the activation is to see it",
            _residual_behind,
        ),
        Trap("everything scaled", "alpha was multiplied with the residual and the bias, too", _all_scaled),
        Trap("no activation", "there are negative results: the activation is missing", _not_activated),
    ),
)


# ----------------------------------------------------------------------------------------------- fused/several_a_block


def _views(a: np.ndarray, b: np.ndarray, count: int, step_a: int, step_b: int) -> tuple[np.ndarray, np.ndarray]:
    """The matrices, as they lie in memory."""
    of_a, of_b = np.arange(count)[:, None] * step_a, np.arange(count)[:, None] * step_b
    found = a[of_a + np.arange(ROWS * DEPTH)], b[of_b + np.arange(DEPTH * COLUMNS)]
    return found[0].reshape(-1, ROWS, DEPTH), found[1].reshape(-1, DEPTH, COLUMNS)


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def _team_cases(rng: np.random.Generator) -> list[Case]:
    def case(count: int, step_a: int, step_b: int) -> Case:
        last = count - 1
        a, b = whole(rng, last * step_a + ROWS * DEPTH), whole(rng, last * step_b + DEPTH * COLUMNS)
        c = unwritten((count, ROWS, COLUMNS), np.float32)
        expected = {2: _products(*_views(a, b, count, step_a, step_b))}
        said = "one B for all" if not step_b else "one A for all" if not step_a else f"steps {step_a} and {step_b}"
        name = f"{count} product{'s' * (count > 1)}, {said}"
        return Case(name, (a, b, c, step_a, step_b), blocks(count, TEAMS), (TEAM, TEAMS), expected)

    dense = ROWS * DEPTH, DEPTH * COLUMNS
    cases = [(8, *dense), (1, *dense), (16, *dense), (9, *dense), (8, 20, 14), (16, 12, 0), (21, 0, 12), (37, 13, 31)]
    return [case(*one) for one in cases]


@cuda.jit
def teams_answer(a, b, c, step_a, step_b):
    product = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    row, column = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    if product < c.shape[0]:
        total = np.float32(0)
        for k in range(3):
            total += a[product * step_a + row * 3 + k] * b[product * step_b + k * 4 + column]
        c[product, row, column] = total


def _dense(a, b, c, step_a, step_b) -> dict[int, np.ndarray] | None:
    count = c.shape[0]
    if min(a.size, b.size) < count * ROWS * DEPTH:
        return None  # then it reads beyond the end
    return {2: _products(*_views(a, b, count, ROWS * DEPTH, DEPTH * COLUMNS))}


def _one_for_a_block(a, b, c, step_a, step_b) -> dict[int, np.ndarray]:
    products = _products(*_views(a, b, c.shape[0], step_a, step_b))
    return {2: products[np.arange(c.shape[0]) // TEAMS]}


def _first_of_a_block(a, b, c, step_a, step_b) -> dict[int, np.ndarray]:
    products = _products(*_views(a, b, c.shape[0], step_a, step_b))
    return {2: products[np.arange(c.shape[0]) // TEAMS * TEAMS]}


def _b_by_columns(a, b, c, step_a, step_b) -> dict[int, np.ndarray]:
    of_a, of_b = _views(a, b, c.shape[0], step_a, step_b)
    return {2: _products(of_a, of_b.reshape(-1, COLUMNS, DEPTH).transpose(0, 2, 1))}


def _first_b(a, b, c, step_a, step_b) -> dict[int, np.ndarray]:
    of_a, of_b = _views(a, b, c.shape[0], step_a, step_b)
    return {2: _products(of_a, of_b[:1])}


SEVERAL = Exercise(
    name="fused/several_a_block",
    task="Many small products: c[p] = A[p] @ B[p], with A[p] of 4 x 3 and B[p] of 3 x 4, both in C order. A[p] begins "
    "at a[p * step_a], and B[p] at b[p * step_b]; a step may be 0 or leave gaps. A block has 8 teams, which "
    "threadIdx.y counts. A team has 16 threads, which threadIdx.x counts, and computes one product.",
    parameters="a, b, c, step_a, step_b",
    cases=_team_cases,
    budget=lambda case: {"flops_f64": (0, FLOAT64)},
    hints=(
        "The number of the product follows from the block and from the team.",
        "threadIdx.x // 4 is the row of the thread's element of c.",
        "The last block may have teams without a product.",
    ),
    answer=teams_answer,
    traps=(
        Trap("closed up", "the matrices were taken as if they lay one behind the other: use the steps", _dense),
        Trap(
            "a block's number",
            "product p has the matrices of its block's number: count the teams, too",
            _one_for_a_block,
        ),
        Trap("first team", "all teams of a block have computed its first product", _first_of_a_block),
        Trap("columns of B", "B was read as if its columns lay along memory: a row has 4 elements", _b_by_columns),
        Trap("one B", "every product has the first B: step_b says where the others begin", _first_b),
    ),
)


EXERCISES = (FINISH, SEVERAL)
