"""Exercises of notebooks/64_im2col.ipynb on im2col: the columns, and the way back."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block
SHAPES = ((1, 1, 1), (1, 8, 16), (1, 3, 5), (2, 6, 7), (6, 12, 28))
GATHER = "Gather: each thread owns one element of slope, and adds up what belongs to it."
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


def _blocks(n: int) -> int:
    return blocks(n, BLOCK)


def _columns(x: np.ndarray) -> np.ndarray:
    """Of 3 x 3 taps with zeros around the image: shape (9 channels, height x width)."""
    channels, h, w = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    taps = [padded[:, r : r + h, s : s + w] for r in range(3) for s in range(3)]
    return np.stack(taps, axis=1).reshape(9 * channels, h * w)


def _back(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What `_columns` took from an element is added up there, in float64."""
    channels, h, w = shape
    padded = np.zeros((channels, h + 2, w + 2))
    for tap, part in enumerate(np.moveaxis(g.reshape(channels, 9, h, w), 1, 0)):
        padded[:, tap // 3 : tap // 3 + h, tap % 3 : tap % 3 + w] += part
    return padded[:, 1:-1, 1:-1]


def _name(channels: int, h: int, w: int) -> str:
    return f"{channels} channel{'s' * (channels > 1)} of {h} x {w}"


# ------------------------------------------------------------------------------------------ convolution_im2col/columns


def _columns_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for shape in SHAPES:
        x = rng.standard_normal(shape, dtype=np.float32)
        args = x, unwritten((9 * shape[0], shape[1] * shape[2]), np.float32)
        cases.append(Case(_name(*shape), args, _blocks(x.size), BLOCK, {1: _columns(x)}))
    return cases


@cuda.jit
def columns_answer(x, columns):
    i = cuda.grid(1)
    if i < x.size:
        height, width = x.shape[1], x.shape[2]
        c, pixel = i // columns.shape[1], i % columns.shape[1]
        p, q = pixel // width, pixel % width
        for r in range(3):
            for s in range(3):
                y, z = p + r - 1, q + s - 1
                value = np.float32(0)
                if 0 <= y < height and 0 <= z < width:
                    value = x[c, y, z]
                columns[9 * c + 3 * r + s, pixel] = value


def _taps_first(x: np.ndarray, columns: np.ndarray) -> dict[int, np.ndarray]:
    each = _columns(x).reshape(len(x), 9, -1)
    return {1: np.moveaxis(each, 1, 0).reshape(columns.shape)}


def _crosswise(x: np.ndarray, columns: np.ndarray) -> dict[int, np.ndarray]:
    each = _columns(x).reshape(len(x), 3, 3, -1)
    return {1: np.moveaxis(each, 2, 1).reshape(columns.shape)}


# --------------------------------------------------------------------------------------------- convolution_im2col/back


def _back_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for shape in SHAPES:
        g = rng.uniform(1, 2, (9 * shape[0], shape[1] * shape[2])).astype(np.float32)  # of one sign: none may be lost
        args = g, unwritten(shape, np.float32)
        expected = _back(g, shape)
        allowed = 9 * 2.0**-24 * expected  # at most nine terms
        cases.append(Case(_name(*shape), args, _blocks(expected.size), BLOCK, {1: expected}, {1: allowed}))
    return cases


@cuda.jit
def back_answer(g, slope):
    i = cuda.grid(1)
    if i < slope.size:
        height, width = slope.shape[1], slope.shape[2]
        c, y, z = i // width // height, i // width % height, i % width
        total = np.float32(0)
        for r in range(3):
            for s in range(3):
                p, q = y + 1 - r, z + 1 - s
                if 0 <= p < height and 0 <= q < width:
                    total += g[9 * c + 3 * r + s, p * width + q]
        slope[c, y, z] = total


def _as_forward(g: np.ndarray, slope: np.ndarray) -> dict[int, np.ndarray]:
    channels, h, w = slope.shape
    turned = g.reshape(channels, 3, 3, h * w)[:, ::-1, ::-1].reshape(g.shape)
    return {1: _back(turned, slope.shape)}


def _centre(g: np.ndarray, slope: np.ndarray) -> dict[int, np.ndarray]:
    return {1: g[4::9].reshape(slope.shape)}


EXERCISES = (
    Exercise(
        "im2col/columns",
        task="Write the columns of a 3 x 3 layer with stride 1 and zeros around the image: row 9 c + 3 r + s of "
        "columns holds, for each pixel (p, q), x[c, p + r - 1, q + s - 1], or 0 outside. x has shape (channels, "
        "height, width), columns (9 channels, height * width), both float32. "
        f"The launch has {BLOCK} threads per block, one for each element of x.",
        parameters="x, columns",
        cases=_columns_cases,
        answer=columns_answer,
        hints=(
            "A thread has a channel and a pixel, and writes the nine rows of that channel at that pixel.",
            "For both sides to be coalesced the pixel must be what changes from one thread to the next.",
            "A place outside the image gets a 0: it must be written, too.",
        ),
        traps=(
            Trap("taps before channels", "The nine rows of a channel are neighbours: 9 c + 3 r + s.", _taps_first),
            Trap("rows for columns", "Row 3 r + s: s is the step to the right.", _crosswise),
        ),
    ),
    Exercise(
        "im2col/back",
        task="Training sends slopes back through the columns: g has the shape of columns in the exercise before, "
        "and slope[c, y, z] is the sum of g over all places that x[c, y, z] was copied to, at most nine. g has shape "
        "(9 channels, height * width), slope (channels, height, width), both float32. Write all of slope, without "
        f"atomics. The launch has {BLOCK} threads per block, one for each element of slope.",
        parameters="g, slope",
        cases=_back_cases,
        answer=back_answer,
        hints=(
            "Turn it round. A thread owns an element of x and asks: which columns took me?",
            "Tap (r, s) of pixel (p, q) saw (p + r - 1, q + s - 1). Solve that for p and q.",
            "There is such a pixel if 0 <= p < height and 0 <= q < width, with p = y + 1 - r and q = z + 1 - s.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("the way there", "The way back has the other sign: p = y + 1 - r.", _as_forward),
            Trap("centre only", "An element was copied up to nine times: add them all.", _centre),
        ),
        advice=dict.fromkeys(("missing atomic", "missing barrier", "race", "race between blocks"), GATHER),
    ),
)
