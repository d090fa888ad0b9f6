"""Exercise of notebooks/76_convolution_gradients.ipynb on the gradient by the input: a strided row, without atomics."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64  # threads per block
ZERO = np.float32(0)
GATHER = "Gather: each thread owns one element of dx, and adds up what belongs to it."


def _row(dy: np.ndarray, w: np.ndarray, stride: int, padding: int, width: int) -> np.ndarray:
    """By the chain rule, in float64: each output passes its gradient on to what it was made of."""
    dx = np.zeros((len(dy), width + 2 * padding))
    for q in range(dy.shape[1]):
        dx[:, q * stride : q * stride + len(w)] += dy[:, q, None].astype(np.float64) * w
    return dx[:, padding : padding + width]


def _cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, width, kernel, stride, padding in (
        (1, 3, 1, 1, 0),
        (1, 5, 3, 1, 1),
        (2, 20, 3, 2, 1),
        (1, 31, 5, 3, 2),
        (3, 29, 2, 4, 0),
        (2, 40, 7, 2, 3),
    ):
        outputs = (width + 2 * padding - kernel) // stride + 1
        dy = rng.uniform(1, 2, (rows, outputs)).astype(np.float32)  # of one sign: no term may be lost
        w = rng.uniform(1, 2, kernel).astype(np.float32)
        args = dy, w, stride, padding, unwritten((rows, width), np.float32)
        expected = _row(dy, w, stride, padding, width)
        allowed = (kernel + 1) * 2.0**-24 * 4 * kernel  # a term is at most 4
        name = f"{rows} x {width}, kernel {kernel}, stride {stride}, padding {padding}"
        cases.append(Case(name, args, blocks(rows * width, BLOCK), BLOCK, {4: expected}, {4: allowed}))
    return cases


@cuda.jit
def row_answer(dy, w, stride, padding, dx):
    i = cuda.grid(1)
    if i < dx.size:
        n, column = i // dx.shape[1], i % dx.shape[1]
        total = ZERO
        for s in range(w.size):
            right = column + padding - s
            if right >= 0 and right % stride == 0 and right // stride < dy.shape[1]:
                total += dy[n, right // stride] * w[s]
        dx[n, column] = total


def _not_turned(dy, w, stride, padding, dx) -> dict[int, np.ndarray]:
    return {4: _row(dy, w[::-1], stride, padding, dx.shape[1])}


def _way_there(dy, w, stride, padding, dx) -> dict[int, np.ndarray]:
    found = np.zeros(dx.shape)
    for column in range(dx.shape[1]):
        for s in range(len(w)):
            q, rest = divmod(column - padding + s, stride)
            if rest == 0 and 0 <= q < dy.shape[1]:
                found[:, column] += dy[:, q].astype(np.float64) * w[s]
    return {4: found}


def _rounded_down(dy, w, stride, padding, dx) -> dict[int, np.ndarray]:
    found = np.zeros(dx.shape)
    for column in range(dx.shape[1]):
        for s in range(len(w)):
            q = (column + padding - s) // stride
            if column + padding >= s and q < dy.shape[1]:
                found[:, column] += dy[:, q].astype(np.float64) * w[s]
    return {4: found}


def _unpadded(dy, w, stride, padding, dx) -> dict[int, np.ndarray]:
    return {4: _row(dy, w, stride, 0, dx.shape[1] + 2 * padding)[:, : dx.shape[1]]}


EXERCISES = (
    Exercise(
        "input_gradients/row",
        task="A layer of one channel on rows computes y[n, q] = the sum over s of w[s] x[n, q stride + s - padding], "
        "with 0 outside the row. Given dy, of shape (rows, outputs), write all of dx, of shape (rows, width): dx[n, h] "
        "is the sum of dy[n, q] w[s] over all q and s with q stride + s - padding = h. Without atomics. Arrays are "
        f"float32. The launch has {BLOCK} threads per block, one for each element of dx.",
        parameters="dy, w, stride, padding, dx",
        cases=_cases,
        answer=row_answer,
        hints=(
            "A thread owns an element of dx and asks of each tap s: which output used it here?",
            "Solve q stride + s - padding = h for q. There is such an output if the division leaves no remainder.",
            "The output must exist, too: 0 <= q < dy.shape[1].",
        ),
        budget=lambda case: {"atomic_requests": (0, "Gather: then no two threads write to the same place.")},
        traps=(
            Trap("not turned", "The sign of s changes on the way back: q stride = h + padding - s.", _not_turned),
            Trap("not turned", "Padding and s change sign on the way back: q stride = h + padding - s.", _way_there),
            Trap("rounded down", "Between two outputs no q is whole: such a tap does not count.", _rounded_down),
            Trap("padding forgotten", "Element h of the row is number h + padding of the padded row.", _unpadded),
        ),
        advice=dict.fromkeys(("missing atomic", "missing barrier", "race", "race between blocks"), GATHER),
    ),
)
