"""Exercises of notebooks/10_images.ipynb: a mirror image, and one colour of an image that lies as a vector."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

WIDE, HIGH = 32, 8  # threads of a block along x and along y


def _grid(h: int, w: int) -> tuple[int, int]:
    return -(-w // WIDE), -(-h // HIGH)  # columns, rows; rounded up


SHAPES = ((1, 1), (HIGH, WIDE), (5, 45), (45, 5), (HIGH + 1, WIDE + 1), (61, 83))

# ------------------------------------------------------------------------------------------------------- images/mirror


def _mirror_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for h, w in SHAPES:
        x = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        args = x, unwritten(x.shape, np.uint8)
        cases.append(Case(f"an image of {h} x {w}", args, _grid(h, w), (WIDE, HIGH), {1: x[:, ::-1]}))
    return cases


@cuda.jit
def mirror_answer(x, out):
    column, row = cuda.grid(2)
    h, w = x.shape[0], x.shape[1]
    if row < h and column < w:
        for colour in range(3):
            out[row, column, colour] = x[row, w - 1 - column, colour]


def _upside_down(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x[::-1]}


def _colours_too(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x[:, ::-1, ::-1]}


# -------------------------------------------------------------------------------------------------------- images/green


def _green_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for h, w in SHAPES:
        x = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        args = x.reshape(-1), unwritten((h, w), np.uint8)
        cases.append(Case(f"an image of {h} x {w}", args, _grid(h, w), (WIDE, HIGH), {1: x[..., 1]}))
    return cases


@cuda.jit
def green_answer(x, out):
    column, row = cuda.grid(2)
    h, w = out.shape
    if row < h and column < w:
        out[row, column] = x[3 * (row * w + column) + 1]


def _red(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.reshape(*out.shape, 3)[..., 0]}


def _blue(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.reshape(*out.shape, 3)[..., 2]}


def _as_planes(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.reshape(3, *out.shape)[1]}


def _rows_of_pixels(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    """The stride of a row without the three: row * w + 3 * column + 1."""
    rows, columns = np.indices(out.shape)
    return {1: x[rows * out.shape[1] + 3 * columns + 1]}


EXERCISES = (
    Exercise(
        "images/mirror",
        task="Mirror a uint8 image of shape (h, w, 3), left to right: column 0 of out is the last column of x, and the "
        f"colours of a pixel stay in order. The launch has {WIDE} x {HIGH} threads a block, and one thread or more for "
        "each pixel; x counts columns.",
        parameters="x, out",
        cases=_mirror_cases,
        answer=mirror_answer,
        hints=(
            "column, row = cuda.grid(2). Which two tests say that this pixel is in the image?",
            "The last column is w - 1, and it goes to column 0. Where does column 1 come from?",
            "x.shape has three numbers: h is x.shape[0], and w is x.shape[1].",
        ),
        traps=(
            Trap(
                "wrong way round", "This turns the image upside down: mirror the columns, not the rows.", _upside_down
            ),
            Trap("colours exchanged", "Red and blue have changed places: mirror columns alone.", _colours_too),
        ),
    ),
    Exercise(
        "images/green",
        task="x is a vector of 3 h w bytes: an image of shape (h, w, 3) in row-major order, red, green and blue of "
        "each pixel side by side. Write the green of each pixel into out, of shape (h, w). "
        f"The launch has {WIDE} x {HIGH} threads a block, and one thread or more for each pixel; x counts columns.",
        parameters="x, out",
        cases=_green_cases,
        answer=green_answer,
        hints=(
            "How many pixels come before the pixel in a row and a column? All rows above, and the row's own.",
            "Each of these pixels has three bytes.",
            "Green is the second of a pixel's three bytes.",
        ),
        traps=(
            Trap("wrong colour", "This is red: green is one byte further.", _red),
            Trap("wrong colour", "This is blue: green is one byte before.", _blue),
            Trap(
                "wrong layout",
                "This takes h w reds, then h w greens. Here the three of a pixel lie together.",
                _as_planes,
            ),
            Trap("wrong stride", "A row has 3 w bytes, not w: multiply the row by three as well.", _rows_of_pixels),
        ),
    ),
)
