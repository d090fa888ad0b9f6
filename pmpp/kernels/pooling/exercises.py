"""Exercises of notebooks/46_pooling_and_activations.ipynb on pooling: gradients of a maximum, and means at edges."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.pooling.ladder import reference, reference_with_indices
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


# ------------------------------------------------------------------------------------------------------- pooling/back


def _back_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for planes, h, w in ((1, 2, 2), (1, 4, 6), (3, 4, 8), (2, 5, 7), (4, 16, 20)):
        x = rng.integers(-3, 3, (1, planes, h, w)).astype(np.float32)  # with ties
        indices = reference_with_indices(x, "max", 2)[1][0]
        gradient = rng.integers(1, 100, indices.shape).astype(np.float32)  # never 0, so that a lost one shows
        back = np.zeros((planes, h * w))
        np.put_along_axis(back, indices.reshape(planes, -1), gradient.reshape(planes, -1), axis=1)
        args = gradient, indices, unwritten((planes, h, w), np.float32)
        name = f"{planes} plane{'s' * (planes > 1)} of {h} x {w}"
        cases.append(Case(name, args, blocks(planes * h * w, BLOCK), BLOCK, {2: back.reshape(planes, h, w)}))
    return cases


@cuda.jit
def back_answer(gradient, indices, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = out.shape[1], out.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        value = np.float32(0)
        y, z = row // 2, column // 2
        if y < gradient.shape[1] and z < gradient.shape[2] and indices[plane, y, z] == row * w + column:
            value = gradient[plane, y, z]
        out[plane, row, column] = value


def _everyone(gradient: np.ndarray, indices: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    spread = np.zeros(out.shape)
    wide = gradient.repeat(2, axis=1).repeat(2, axis=2)
    spread[:, : wide.shape[1], : wide.shape[2]] = wide
    return {2: spread}


# ------------------------------------------------------------------------------------------------------- pooling/edges

# 8 additions (the first, to 0, is exact) and a division: each moves the mean by at most 2^-24 of it, and it is below 2.
EDGE = 2.0**-24 * 9 * 2


def _edges_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for planes, h, w in ((1, 1, 1), (1, 3, 5), (2, 4, 4), (1, 1, 10), (3, 8, 16), (2, 21, 33)):
        x = rng.uniform(1, 2, (planes, h, w)).astype(np.float32)  # all of one sign: a wrong count shows
        means = reference(x[None], "average", 3, 1, 1, False, False)[0]
        args = x, unwritten(x.shape, np.float32)
        name = f"{planes} plane{'s' * (planes > 1)} of {h} x {w}"
        cases.append(Case(name, args, blocks(x.size, BLOCK), BLOCK, {1: means}, {1: EDGE}))
    return cases


@cuda.jit
def edges_answer(x, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = x.shape[1], x.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        total, count = np.float32(0), 0
        for y in range(max(row - 1, 0), min(row + 2, h)):
            for z in range(max(column - 1, 0), min(column + 2, w)):
                total += x[plane, y, z]
                count += 1
        out[plane, row, column] = total / np.float32(count)


def _nine(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: reference(x[None], "average", 3, 1, 1)[0]}


def _largest(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: reference(x[None], "max", 3, 1, 1)[0]}


EXERCISES = (
    Exercise(
        "pooling/back",
        task="Backpropagation through max pooling: in each window only the largest element affects the output. It "
        "gets the window's gradient, and all others get 0. Windows are 2 x 2, side by side. gradient has shape "
        "(planes, h // 2, w // 2), float32. indices, int64, has the same shape: the index of each window's largest "
        "element in its plane, row * w + column. Write all of out, shape (planes, h, w). If h or w is odd, the last "
        f"row or column is in no window. The launch has {BLOCK} threads per block, one for each element of out.",
        parameters="gradient, indices, out",
        cases=_back_cases,
        answer=back_answer,
        hints=(
            "A thread has an element of out, not a window. Find the window that this element lies in.",
            "Element (row, column) lies in window (row // 2, column // 2), if there is such a window.",
            "It was the largest if indices[plane, row // 2, column // 2] == row * w + column.",
        ),
        traps=(Trap("all get the gradient", "Only one element of a window gets it: compare with indices.", _everyone),),
    ),
    Exercise(
        "pooling/edges",
        task="Blur planes: out[p, i, j] is the mean of the 3 x 3 elements around x[p, i, j]. At an edge it is the mean "
        "of those that exist, so that a plane of ones stays one. x and out have shape (planes, h, w), float32. "
        f"The launch has {BLOCK} threads per block, one for each element.",
        parameters="x, out",
        cases=_edges_cases,
        answer=edges_answer,
        hints=(
            "The rows of the window are from max(row - 1, 0) to min(row + 2, h), and the columns likewise.",
            "Count what you add. Divide by np.float32(count): float32 / int is float64.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("padding counted", "At an edge fewer than nine elements exist: divide by how many there are.", _nine),
            Trap("maximum, not mean", "This is the largest of the nine.", _largest),
        ),
    ),
)
