"""Exercises of notebooks/62_direct_convolution.ipynb on direct convolution: depthwise, and several filters at once."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer.definition import reference
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads per block
FILTERS = 4
ROUNDING = 2.0**-24
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


def _blocks(n: int) -> int:
    return blocks(n, BLOCK)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


# ---------------------------------------------------------------------------------------- convolution_direct/depthwise


def _depthwise(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return reference(x[None], w[:, None], None, 1, 1, 1, len(x))[0]


def _depthwise_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for channels, h, w in ((1, 1, 1), (1, 8, 16), (1, 5, 7), (2, 6, 9), (3, 16, 40)):
        x, taps = _drawn(rng, (channels, h, w)), _drawn(rng, (channels, 3, 3))
        allowed = 10 * ROUNDING * _depthwise(abs(x), abs(taps))  # nine products and their sum
        args = x, taps, unwritten(x.shape, np.float32)
        name = f"{channels} channel{'s' * (channels > 1)} of {h} x {w}"
        cases.append(Case(name, args, _blocks(x.size), BLOCK, {2: _depthwise(x, taps)}, {2: allowed}))
    return cases


@cuda.jit
def depthwise_answer(x, w, out):
    i = cuda.grid(1)
    if i < out.size:
        height, width = x.shape[1], x.shape[2]
        c, p, q = i // width // height, i // width % height, i % width
        total = np.float32(0)
        for r in range(3):
            for s in range(3):
                y, z = p + r - 1, q + s - 1
                if 0 <= y < height and 0 <= z < width:
                    total += x[c, y, z] * w[c, r, s]
        out[c, p, q] = total


def _turned(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _depthwise(x, np.ascontiguousarray(w[:, ::-1, ::-1]))}


def _transposed(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _depthwise(x, np.ascontiguousarray(w.swapaxes(1, 2)))}


def _first_filter(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _depthwise(x, np.repeat(w[:1], len(w), axis=0))}


# ------------------------------------------------------------------------------------------ convolution_direct/filters


def _filters_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for channels, h, w in ((1, 3, 3), (2, 10, 18), (1, 4, 7), (3, 9, 12), (4, 18, 34)):
        x, taps = _drawn(rng, (channels, h, w)), _drawn(rng, (FILTERS, channels, 3, 3))
        expected = reference(x[None], taps)[0]
        allowed = (9 * channels + 1) * ROUNDING * reference(abs(x)[None], abs(taps))[0]
        args = x, taps, unwritten(expected.shape, np.float32)
        name = f"{channels} channel{'s' * (channels > 1)} of {h} x {w}"
        cases.append(Case(name, args, _blocks((h - 2) * (w - 2)), BLOCK, {2: expected}, {2: allowed}))
    return cases


@cuda.jit
def filters_answer(x, w, out):
    i = cuda.grid(1)
    rows, columns = out.shape[1], out.shape[2]
    if i < rows * columns:
        p, q = i // columns, i % columns
        totals = cuda.local.array(FILTERS, np.float32)
        for k in range(FILTERS):
            totals[k] = 0
        for c in range(x.shape[0]):
            for r in range(3):
                for s in range(3):
                    value = x[c, p + r, q + s]
                    for k in range(FILTERS):
                        totals[k] += value * w[k, c, r, s]
        for k in range(FILTERS):
            out[k, p, q] = totals[k]


def _filters_budget(case: Case) -> dict[str, tuple[int, str]]:
    x, _, out = case.args
    warps = blocks(out[0].size, 32)
    words = "Load an x once and multiply it by the weights of all four filters while it is in a register."
    return {"global_load_requests": (int(1.2 * warps * 9 * len(x) * (1 + FILTERS)), words), "flops_f64": (0, FLOAT64)}


def _no_channels(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x[None, :1], np.ascontiguousarray(w[:, :1]))[0]}


def _filters_turned(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x[None], np.ascontiguousarray(w[:, :, ::-1, ::-1]))[0]}


EXERCISES = (
    Exercise(
        "direct/depthwise",
        task="A depthwise layer: out[c] is channel x[c] under its own filter w[c], 3 x 3, with stride 1 and zeros "
        "around the image. x and out have shape (channels, height, width), w (channels, 3, 3), all float32. As in "
        "every layer, w[c, 0, 0] meets the neighbour above and to the left. "
        f"The launch has {BLOCK} threads per block, one for each element of out.",
        parameters="x, w, out",
        cases=_depthwise_cases,
        answer=depthwise_answer,
        hints=(
            "Find channel, row and column of the thread's element first: the column is what changes fastest.",
            "Tap (r, s) sees x[c, row + r - 1, column + s - 1], if that is in the image.",
            "What lies outside adds nothing: test 0 <= y < x.shape[1] and 0 <= z < x.shape[2] before the load.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("kernel turned round", "Do not mirror the filter: w[c, 0, 0] meets what is up and left.", _turned),
            Trap("kernel transposed", "w[c, r, s]: r goes down the rows, s along them.", _transposed),
            Trap("one filter for all", "Every channel has a filter of its own: w[c].", _first_filter),
        ),
    ),
    Exercise(
        "direct/filters",
        task=f"Each x is used for every filter, so load it once. A thread computes one pixel of all {FILTERS} filters: "
        "x has shape (channels, height, width), w (4, channels, 3, 3), 36 weights a channel, and out (4, height - 2, "
        "width - 2), all float32; stride 1 and no padding, so out[k, p, q] sums x[c, p + r, q + s] * w[k, c, r, s]. "
        f"The launch has {BLOCK} threads per block, one for each pixel.",
        parameters="x, w, out",
        cases=_filters_cases,
        answer=filters_answer,
        hints=(
            "Four sums at a time: cuda.local.array(4, np.float32), or four variables.",
            "Put the loop over the filters inside, and the load of x outside of it.",
            "The number of threads that have work is out.shape[1] * out.shape[2], not out.size.",
        ),
        budget=_filters_budget,
        traps=(
            Trap("only one channel", "Sum over all channels, not only the first.", _no_channels),
            Trap("kernel turned round", "Do not mirror the filter: w[k, c, 0, 0] meets x[c, p, q].", _filters_turned),
        ),
    ),
)
