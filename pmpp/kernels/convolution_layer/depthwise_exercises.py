"""Exercises of notebooks/71_depthwise_convolution.ipynb: strips that slide down a column, and groups of channels."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer.definition import reference
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
ROWS = 4  # outputs of a thread, one below the other
CHANNELS, FILTERS = 2, 3  # of a group
ROUNDING = 2.0**-24
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


def _drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


# ----------------------------------------------------------------------------------------------------- depthwise/strips


def _strips(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return reference(x[None], w[:, None], None, 1, 0, 1, len(x))[0]


def _strips_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for channels, p, q in ((1, 4, 1), (1, 1, 3), (2, 8, 16), (3, 6, 9), (2, 13, 33)):
        x, taps = _drawn(rng, (channels, p + 2, q + 2)), _drawn(rng, (channels, 3, 3))
        allowed = {2: 10 * ROUNDING * _strips(abs(x), abs(taps))}  # nine products and their sum
        args, grid = (x, taps, unwritten((channels, p, q), np.float32)), blocks(channels * blocks(p, ROWS) * q, BLOCK)
        name = f"{channels} channel{'s' * (channels > 1)} of {p} x {q} outputs"
        cases.append(Case(name, args, grid, BLOCK, {2: _strips(x, taps)}, allowed))
    return cases


@cuda.jit
def strips_answer(x, w, out):
    channels, height, width = out.shape
    strips = (height + ROWS - 1) // ROWS
    i = cuda.grid(1)
    if i < channels * strips * width:
        c, p, q = i // width // strips, i // width % strips * ROWS, i % width
        taps, sums = cuda.local.array((3, 3), np.float32), cuda.local.array(ROWS, np.float32)
        for r in range(3):
            for s in range(3):
                taps[r, s] = w[c, r, s]
        for j in range(ROWS):
            sums[j] = 0
        for y in range(min(ROWS, height - p) + 2):  # a row of x: output j meets it with row y - j of the taps
            for s in range(3):
                value = x[c, p + y, q + s]
                for j in range(ROWS):
                    if 0 <= y - j < 3:
                        sums[j] += value * taps[y - j, s]
        for j in range(min(ROWS, height - p)):
            out[c, p + j, q] = sums[j]


def _strips_budget(case: Case) -> dict[str, tuple[int, str]]:
    channels, p, q = case.args[2].shape
    warps = blocks(channels * blocks(p, ROWS) * q, 32)
    words = "Load a row of x once, and let it serve all outputs of the strip that meet it. Taps are loaded once, too."
    return {"global_load_requests": (warps * (3 * (ROWS + 2) + 9), words), "flops_f64": (0, FLOAT64)}


def _turned(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _strips(x, np.ascontiguousarray(w[:, ::-1]))}


def _transposed(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _strips(x, np.ascontiguousarray(w.swapaxes(1, 2)))}


def _first_filter(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _strips(x, np.repeat(w[:1], len(w), axis=0))}


# ----------------------------------------------------------------------------------------------------- depthwise/groups


def _groups(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return reference(x[None], w, None, 1, 0, 1, len(x) // CHANNELS)[0]


def _groups_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for groups, p, q in ((1, 1, 1), (2, 3, 5), (3, 4, 16), (2, 6, 11), (4, 8, 9)):
        x, w = _drawn(rng, (CHANNELS * groups, p + 1, q + 1)), _drawn(rng, (FILTERS * groups, CHANNELS, 2, 2))
        allowed = {2: (4 * CHANNELS + 1) * ROUNDING * _groups(abs(x), abs(w))}
        args, grid = (x, w, unwritten((FILTERS * groups, p, q), np.float32)), blocks(groups * p * q, BLOCK)
        name = f"{groups} group{'s' * (groups > 1)} of {p} x {q} outputs"
        cases.append(Case(name, args, grid, BLOCK, {2: _groups(x, w)}, allowed))
    return cases


@cuda.jit
def groups_answer(x, w, out):
    filters, height, width = out.shape
    i = cuda.grid(1)
    if i < filters // FILTERS * height * width:
        g, p, q = i // width // height, i // width % height, i % width
        sums = cuda.local.array(FILTERS, np.float32)
        for f in range(FILTERS):
            sums[f] = 0
        for c in range(CHANNELS):
            for r in range(2):
                for s in range(2):
                    value = x[CHANNELS * g + c, p + r, q + s]
                    for f in range(FILTERS):
                        sums[f] += value * w[FILTERS * g + f, c, r, s]
        for f in range(FILTERS):
            out[FILTERS * g + f, p, q] = sums[f]


def _groups_budget(case: Case) -> dict[str, tuple[int, str]]:
    _, _, out = case.args
    warps = blocks(out.size // FILTERS, 32)
    words = f"Load an x once and multiply it by the weights of all {FILTERS} filters while it is in a register."
    return {"global_load_requests": (warps * 4 * CHANNELS * (1 + FILTERS), words), "flops_f64": (0, FLOAT64)}


def _first_group(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _groups(np.tile(x[:CHANNELS], (len(x) // CHANNELS, 1, 1)), w)}


def _first_channel(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    only = w.copy()
    only[:, 1:] = 0
    return {2: _groups(x, only)}


def _in_turn(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    groups = len(x) // CHANNELS
    order = np.arange(len(x)).reshape(CHANNELS, groups).T.reshape(-1)  # channel c g + i belongs to group i
    return {2: _groups(np.ascontiguousarray(x[order]), w)}


EXERCISES = (
    Exercise(
        "depthwise/strips",
        task=f"A depthwise layer: out[c] is channel x[c] under its own filter w[c], 3 x 3, with stride 1 and without "
        f"padding. A thread computes {ROWS} outputs, one below the other, and loads what they need once: their part of "
        "x, and the nine taps. x has shape (channels, height + 2, width + 2), w (channels, 3, 3), out (channels, "
        f"height, width), all float32. The launch has {BLOCK} threads a block, and one for each strip: width threads "
        f"side by side for rows 0 to {ROWS - 1} of a channel, then those for the next {ROWS} rows, and so on. The last "
        "strip of a channel may be shorter.",
        parameters="x, w, out",
        cases=_strips_cases,
        answer=strips_answer,
        hints=(
            f"A channel has (out.shape[1] + {ROWS - 1}) // {ROWS} strips. First find the column, then the strip.",
            "Go through the rows of x, not through the outputs: row p + y meets output j by row y - j of the taps.",
            "Keep the nine taps and the sums in local arrays, or in variables.",
        ),
        budget=_strips_budget,
        traps=(
            Trap("kernel turned round", "Output j meets row p + y by row y - j of the taps, not the reverse.", _turned),
            Trap("kernel transposed", "w[c, r, s]: r goes down the rows, s along them.", _transposed),
            Trap("one filter for all", "Every channel has a filter of its own: w[c].", _first_filter),
        ),
    ),
    Exercise(
        "depthwise/groups",
        task=f"A grouped layer: every group has {CHANNELS} channels of x and {FILTERS} filters, in order. So filters 0 "
        f"to {FILTERS - 1} see channels 0 to {CHANNELS - 1}, the next {FILTERS} filters the next {CHANNELS} channels. "
        "Windows are 2 x 2, with stride 1 and without padding. A thread computes one pixel of all filters of a group, "
        f"and loads each x once. x has shape ({CHANNELS} groups, height + 1, width + 1), w ({FILTERS} groups, "
        f"{CHANNELS}, 2, 2), out ({FILTERS} groups, height, width), all float32. The launch has {BLOCK} threads a "
        "block, one for each pixel of each group.",
        parameters="x, w, out",
        cases=_groups_cases,
        answer=groups_answer,
        hints=(
            f"There are out.shape[0] // {FILTERS} groups. Column first, then row, then group.",
            f"Channel c of group g is x[{CHANNELS} * g + c]; its weights for filter f are w[{FILTERS} * g + f, c].",
            "Put the loop over the filters inside, and the load of x outside of it.",
        ),
        budget=_groups_budget,
        traps=(
            Trap("first group for all", "The channels of group g begin at its own place in x.", _first_group),
            Trap("only one channel", "Add up all channels of the group.", _first_channel),
            Trap("channels in turn", "The channels of a group lie one behind the other.", _in_turn),
        ),
    ),
)
