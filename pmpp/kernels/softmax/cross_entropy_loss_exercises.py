"""Exercises of notebooks/86_gradients_of_softmax.ipynb on losses: the gradient from labels, and softmax's own."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.softmax import gradients
from pmpp.kernels.softmax.cross_entropy_loss import reference, tolerance
from pmpp.kernels.softmax.exercises import BLOCK, FLOAT64, LOWEST, WARPS, ZERO, lane_sum, row_max, row_sum
from pmpp.kernels.softmax.ladder import reference as shares_of
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

IGNORED = -100


# ------------------------------------------------------------------------------------------ cross_entropy_loss/gradient


def _gradient_cases(rng: np.random.Generator) -> list[Case]:
    def case(
        name: str,
        m: int,
        n: int,
        spread: float = 1.0,
        ignored: bool = False,
        centre: float = 0.0,
        with_nan: bool = False,
    ) -> Case:
        x, labels = (centre + spread * rng.standard_normal((m, n))).astype(np.float32), rng.integers(0, n, m)
        if ignored:
            labels[::2] = IGNORED
        dx = unwritten((m, n), np.float32)
        if with_nan:
            x[0, n // 2] = np.nan
            dx[:] = 7  # a NaN that a kernel writes would look unwritten
        options = x, labels, IGNORED, 0.0, "sum"
        args = x, labels, dx
        return Case(name, args, m, BLOCK, {2: reference(*options)}, {2: tolerance(*options)})

    return [
        case("1 row of 3", 1, 3),
        case(f"4 rows of {BLOCK}", 4, BLOCK),
        case(f"5 rows of {BLOCK + 1}", 5, BLOCK + 1),
        case("logits up to 1000", 4, 200, 300),
        case("logits around -1000", 3, 40, centre=-1000),
        case("ignored rows", 7, 50, 1, True),
        case("a NaN in an ignored row", 5, 60, 1, True, with_nan=True),
        case("20 rows of 1000", 20, 1000, 2, True),
    ]


@cuda.jit
def gradient_answer(x, labels, dx):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    label = labels[row]
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    total = row_sum(total)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        share = math.exp(x[row, i] - best) / total
        wanted = np.float32(1) if i == label else ZERO
        dx[row, i] = ZERO if label == IGNORED else share - wanted


def _shares_alone(x: np.ndarray, labels: np.ndarray, dx: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.where(labels[:, None] == IGNORED, 0, shares_of(x))}


def _ignored_too(x: np.ndarray, labels: np.ndarray, dx: np.ndarray) -> dict[int, np.ndarray]:
    return {2: shares_of(x) - (np.arange(x.shape[1]) == labels[:, None])}


def _times_zero(x: np.ndarray, labels: np.ndarray, dx: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _ignored_too(x, labels, dx)[2] * (labels != IGNORED)[:, None]}


# ------------------------------------------------------------------------------------------- cross_entropy_loss/softmax


def _softmax_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for m, n in ((1, 1), (WARPS, 32), (WARPS + 1, 33), (3, 7), (50, 200)):
        y = shares_of(2 * rng.standard_normal((m, n))).astype(np.float32)
        dy = rng.standard_normal((m, n)).astype(np.float32)
        args, grid = (dy, y, unwritten((m, n), np.float32)), -(-m // WARPS)
        back = gradients.reference(dy, y)
        # Wide enough to recognise the sum of dy, which is larger, in whatever order it was added.
        allowed = gradients.tolerance(dy, y) + 2.0**-24 * y * 16 * np.abs(dy).sum(axis=1, keepdims=True)
        cases.append(Case(f"{m} rows of {n}", args, grid, BLOCK, {2: back}, {2: allowed}))
    return cases


@cuda.jit
def softmax_answer(dy, y, dx):
    row, n, total = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, y.shape[1], ZERO
    if row < y.shape[0]:
        for i in range(cuda.laneid, n, 32):
            total += dy[row, i] * y[row, i]
        total = lane_sum(total)
        for i in range(cuda.laneid, n, 32):
            dx[row, i] = y[row, i] * (dy[row, i] - total)


def _diagonal(dy: np.ndarray, y: np.ndarray, dx: np.ndarray) -> dict[int, np.ndarray]:
    return {2: dy * y * (1 - y)}


def _sum_of_dy(dy: np.ndarray, y: np.ndarray, dx: np.ndarray) -> dict[int, np.ndarray]:
    return {2: y * (dy - dy.sum(axis=1, keepdims=True))}


def _once(case: Case) -> dict[str, tuple[float, str]]:
    return {"flops_f64": (0, FLOAT64)}


EXERCISES = (
    Exercise(
        "cross_entropy_loss/gradient",
        task="Write the gradient of the sum of all rows' losses to dx, of the shape of x: the softmax of each row, "
        f"less 1 at its label. Rows whose label is {IGNORED} get 0. Block b has row b, and {BLOCK} threads. "
        "row_max(value) and row_sum(value) reduce over the block.",
        parameters="x, labels, dx",
        cases=_gradient_cases,
        budget=_once,
        answer=gradient_answer,
        hints=(
            "Three loops over the row, in steps of BLOCK: the maximum, the sum, the result.",
            "In the last loop, the thread whose index is the label takes 1 off.",
            "Choose 0 for an ignored row; multiplied by 0, a NaN would stay one.",
        ),
        traps=(
            Trap("label forgotten", "These are the shares: take 1 off at the label.", _shares_alone),
            Trap(
                "ignored rows count", f"A row with the label {IGNORED} has no loss, so its gradient is 0.", _ignored_too
            ),
            Trap("multiplied by 0", "A NaN times 0 is a NaN: choose 0 for an ignored row.", _times_zero),
        ),
    ),
    Exercise(
        "cross_entropy_loss/softmax",
        task="The gradient of softmax alone. From dy, the gradient of its result y, write dx = y * (dy - sum of dy * y "
        f"over the row). There are {BLOCK} threads a block, and a warp or more for each row: warp w of block b has row "
        f"{WARPS} b + w. lane_sum(value) adds up over the warp.",
        parameters="dy, y, dx",
        cases=_softmax_cases,
        budget=_once,
        answer=softmax_answer,
        hints=(
            "Two loops over the row, in steps of 32: the sum, then the result.",
            "All 32 lanes must call lane_sum, those that saw no element too.",
        ),
        traps=(
            Trap("diagonal alone", "y (1 - y) is how a share answers to its own logit. It answers to all.", _diagonal),
            Trap("sum of dy", "The sum is over dy * y. Over dy alone it is for log_softmax.", _sum_of_dy),
        ),
    ),
)
