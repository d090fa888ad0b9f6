"""Exercises of notebooks/78_gradients_of_pooling_and_activations.ipynb on pooling: windows that overlap."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.pooling.pooling_backward import reference
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


# ------------------------------------------------------------------------------------------- pooling_backward/means


def _means_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for planes, rows, columns in ((1, 1, 1), (1, 2, 4), (2, 3, 3), (3, 5, 8), (2, 9, 14)):
        h, w = 2 * rows + 1, 2 * columns + 1
        gradient = rng.integers(1, 100, (planes, rows, columns)).astype(np.float32)  # never 0, so that a lost one shows
        back = reference(gradient[None], np.zeros((1, planes, h, w), np.float32), "average", 3, 2)[0]
        args = gradient, unwritten((planes, h, w), np.float32)
        # Four quotients and three additions, each off by 2^-24 of at most the sum, and the same once more for products.
        name = f"{planes} plane{'s' * (planes > 1)} of {h} x {w}"
        cases.append(Case(name, args, blocks(planes * h * w, BLOCK), BLOCK, {1: back}, {1: 2.0**-24 * 8 * back}))
    return cases


@cuda.jit
def means_answer(gradient, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = out.shape[1], out.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        total = np.float32(0)
        for y in range(max((row - 1) // 2, 0), min(row // 2 + 1, gradient.shape[1])):
            for z in range(max((column - 1) // 2, 0), min(column // 2 + 1, gradient.shape[2])):
                total += gradient[plane, y, z]
        out[plane, row, column] = total / np.float32(9)


def _one_window(gradient: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    """Each element from window (row // 2, column // 2) alone, and from none at the last row and column."""
    spread = np.zeros(out.shape)
    wide = gradient.astype(np.float64).repeat(2, axis=1).repeat(2, axis=2)
    spread[:, : wide.shape[1], : wide.shape[2]] = wide / 9
    return {1: spread}


def _undivided(gradient: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: 9 * reference(gradient[None], np.zeros((1, *out.shape), np.float32), "average", 3, 2)[0]}


# ------------------------------------------------------------------------------------------ pooling_backward/positions


def _positions_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for planes, h, w in ((1, 1, 1), (1, 3, 5), (2, 4, 6), (1, 8, 16), (3, 9, 13)):
        x = rng.integers(-2, 3, (1, planes, h, w)).astype(np.float32)  # with ties
        gradient = rng.integers(1, 100, (planes, h, w)).astype(np.float32)  # whole numbers: their sums are exact
        positions = _winners(x[0])
        back = reference(gradient[None], x, "max", 3, 1, 1)[0]
        args = gradient, positions, unwritten((planes, h, w), np.float32)
        name = f"{planes} plane{'s' * (planes > 1)} of {h} x {w}"
        cases.append(Case(name, args, blocks(planes * h * w, BLOCK), BLOCK, {2: back}))
    return cases


def _winners(x: np.ndarray) -> np.ndarray:
    """The first position of the largest in each 3 x 3 window around an element, as uint8."""
    h, w = x.shape[1:]
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return np.argmax([wide[:, y : y + h, z : z + w] for y in range(3) for z in range(3)], axis=0).astype(np.uint8)


@cuda.jit
def positions_answer(gradient, positions, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = out.shape[1], out.shape[2]
        plane, row, column = i // w // h, i // w % h, i % w
        total = np.float32(0)
        for y in range(max(row - 1, 0), min(row + 2, h)):
            for z in range(max(column - 1, 0), min(column + 2, w)):
                if positions[plane, y, z] == 3 * (row - y + 1) + column - z + 1:
                    total += gradient[plane, y, z]
        out[plane, row, column] = total


def _everyone(gradient: np.ndarray, positions: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    h, w = out.shape[1:]
    wide = np.pad(gradient.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    return {2: sum(wide[:, y : y + h, z : z + w] for y in range(3) for z in range(3))}


def _mirrored(gradient: np.ndarray, positions: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    """As if a position counted from the element to the window."""
    h, w = out.shape[1:]
    given, won = (np.pad(a.astype(np.float64), ((0, 0), (1, 1), (1, 1))) for a in (gradient, positions))
    parts = [(given[:, y : y + h, z : z + w], won[:, y : y + h, z : z + w]) for y in range(3) for z in range(3)]
    return {2: sum(np.where(at == number, value, 0) for number, (value, at) in enumerate(parts))}


EXERCISES = (
    Exercise(
        "pooling_backward/means",
        task="The gradient of means over windows of 3 x 3 with stride 2, without padding. Window (y, z) has rows 2 y "
        "to 2 y + 2 and columns 2 z to 2 z + 2, so neighbours share a row or a column, and four windows share a "
        "corner. gradient has shape (planes, rows, columns), out has (planes, 2 rows + 1, 2 columns + 1), float32. "
        "Each element of out is the sum of a ninth of the gradient of every window that contains it. Use no atomics. "
        f"The launch has {BLOCK} threads per block, one for each element of out.",
        parameters="gradient, out",
        cases=_means_cases,
        answer=means_answer,
        hints=(
            "A thread has an element of out. Which windows contain its row? One if the row is odd, else up to two.",
            "Window y contains the row if 2 y <= row <= 2 y + 2: y goes from (row - 1) // 2 to row // 2.",
            "At the edges some of these windows do not exist: keep y between 0 and gradient.shape[1] - 1.",
        ),
        budget=lambda case: {
            "flops_f64": (0, FLOAT64),
            "atomic_requests": (0, "No thread needs an atomic: each adds what belongs to its own element."),
        },
        traps=(
            Trap("one window an element", "An element in an even row may lie in two windows: add both.", _one_window),
            Trap("not divided", "Each element gets a ninth of a window's gradient.", _undivided),
        ),
    ),
    Exercise(
        "pooling_backward/positions",
        task="The gradient of maxima over windows of 3 x 3 with stride 1 and padding 1: window (y, z) lies around "
        "element (y, z), and there are as many windows as elements. positions, uint8, says where in its window the "
        "largest stands: 3 times its row there plus its column, 0 to 8, so that 4 is the middle. gradient, positions "
        "and out have shape (planes, h, w); gradient and out are float32. Each element of out is the sum of the "
        "gradients of the windows that it won. Use no atomics. The launch has "
        f"{BLOCK} threads per block, one for each element of out.",
        parameters="gradient, positions, out",
        cases=_positions_cases,
        answer=positions_answer,
        hints=(
            "Element (row, column) lies in the windows around its neighbours: y from row - 1 to row + 1.",
            "In window (y, z), whose first element is (y - 1, z - 1), it stands in row row - y + 1.",
            "It won if positions[plane, y, z] == 3 * (row - y + 1) + column - z + 1.",
        ),
        budget=lambda case: {
            "flops_f64": (0, FLOAT64),
            "atomic_requests": (0, "No thread needs an atomic: each adds what belongs to its own element."),
        },
        traps=(
            Trap("all get the gradient", "Only one element of a window gets its gradient.", _everyone),
            Trap("mirrored", "The position counts from the window's corner to the element, not back.", _mirrored),
        ),
    ),
)
