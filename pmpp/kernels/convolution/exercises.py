"""Exercises of notebooks/24_convolution.ipynb: a halo, edges, a strip in registers, an image without a border."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution.ladder import reference
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads and outputs of a block in one dimension
REACH = 2  # elements that a mask of five sees on either side of its centre
SIDE = 16  # threads along either side of a block in two dimensions
STRIP = 4  # outputs of a thread in a strip
HALO = BLOCK + 2 * REACH  # what a block of one dimension sees
WINDOW = STRIP + 2  # what a strip sees of a row


# ---------------------------------------------------------------------------------------------------- convolution/halo


def _whole(rng: np.random.Generator, shape: int | tuple[int, ...], least: int = 1, most: int = 9) -> np.ndarray:
    """Whole numbers: sums of their products are exact in float32, so results must be equal."""
    return rng.integers(least, most + 1, shape).astype(np.float32)


def _halo_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK, 1000):
        x, mask = _whole(rng, n), _whole(rng, 2 * REACH + 1)
        args = x, mask, unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, {2: reference(x, mask)}))
    return cases


@cuda.jit
def halo_answer(x, mask, out):
    tile = cuda.shared.array(HALO, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * BLOCK
    for k in range(thread, HALO, BLOCK):
        i = first + k - REACH
        tile[k] = x[i] if i >= 0 and i < x.size else np.float32(0)
    cuda.syncthreads()
    if first + thread < x.size:
        total = np.float32(0)
        for s in range(2 * REACH + 1):
            total += mask[s] * tile[thread + s]
        out[first + thread] = total


def _turned(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, mask[::-1])}


def _without_halo(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    parts = [reference(x[i : i + BLOCK], mask) for i in range(0, x.size, BLOCK)]
    return {2: np.concatenate(parts)}


def _clamped(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, mask, "edge")}


def _ahead(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    padded = np.pad(x.astype(np.float64), (0, 2 * REACH))
    return {2: sum(np.float64(mask[s]) * padded[s : s + x.size] for s in range(mask.size))}


# --------------------------------------------------------------------------------------------------- convolution/edges

ACROSS = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)


def _gradient(x: np.ndarray, border: str = "edge", mask: np.ndarray = ACROSS) -> np.ndarray:
    return abs(reference(x, mask, border)) + abs(reference(x, mask.T, border))


def _edges_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for h, w in ((1, 1), (16, 16), (3, 20), (17, 15), (33, 48)):
        x = _whole(rng, (h, w), 0, 255)
        args, grid = (x, unwritten((h, w), np.float32)), (blocks(w, SIDE), blocks(h, SIDE))
        cases.append(Case(f"an image of {h} x {w}", args, grid, (SIDE, SIDE), {1: _gradient(x)}))
    return cases


@cuda.jit
def edges_answer(x, out):
    column, row = cuda.grid(2)
    h, w = x.shape
    if row < h and column < w:
        above, below = max(row - 1, 0), min(row + 1, h - 1)
        left, right = max(column - 1, 0), min(column + 1, w - 1)
        a, b, c, d = x[above, left], x[above, right], x[below, left], x[below, right]
        two = np.float32(2)
        across = b - a + two * (x[row, right] - x[row, left]) + d - c
        down = c - a + two * (x[below, column] - x[above, column]) + d - b
        out[row, column] = abs(across) + abs(down)


def _zero_border(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _gradient(x, "zero")}


def _signed(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: reference(x, ACROSS, "edge") + reference(x, np.ascontiguousarray(ACROSS.T), "edge")}


def _unweighted(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _gradient(x, mask=np.sign(ACROSS))}


def _length(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.hypot(reference(x, ACROSS, "edge"), reference(x, ACROSS.T, "edge"))}


def _across_only(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: abs(reference(x, ACROSS, "edge"))}


# --------------------------------------------------------------------------------------------------- convolution/strip


def _strip_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for h, w in ((1, 1), (4, 40), (3, 5), (6, 71), (12, 300)):
        x, mask = _whole(rng, (h, w)), _whole(rng, (3, 3))
        args = x, mask, unwritten((h, w), np.float32)
        threads = blocks(w, STRIP)
        grid = blocks(threads, 32), blocks(h, 4)
        cases.append(Case(f"an image of {h} x {w}", args, grid, (32, 4), {2: reference(x, mask)}))
    return cases


@cuda.jit
def strip_answer(x, mask, out):
    thread, row = cuda.grid(2)
    first = STRIP * thread
    if row < x.shape[0] and first < x.shape[1]:
        totals = cuda.local.array(STRIP, np.float32)
        window = cuda.local.array(WINDOW, np.float32)
        for j in range(STRIP):
            totals[j] = 0
        for r in range(3):
            y = row + r - 1
            if y >= 0 and y < x.shape[0]:
                for k in range(WINDOW):
                    z = first + k - 1
                    window[k] = x[y, z] if z >= 0 and z < x.shape[1] else np.float32(0)
                for s in range(3):
                    weight = mask[r, s]
                    for j in range(STRIP):
                        totals[j] += weight * window[j + s]
        for j in range(STRIP):
            if first + j < x.shape[1]:
                out[row, first + j] = totals[j]


def _strip_budget(case: Case) -> dict[str, tuple[float, str]]:
    warps = case.grid[0] * case.grid[1] * 4
    needed = warps * 3 * (STRIP + 2 + 3)
    sentence = "Neighbouring outputs see the same elements: load a row of the window once, and each weight once."
    return {"global_load_requests": (1.2 * needed, sentence)}


def _turned_mask(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, mask[::-1, ::-1])}


def _clamped_border(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, mask, "edge")}


def _transposed_mask(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, np.ascontiguousarray(mask.T))}


# ---------------------------------------------------------------------------------------------------- convolution/wrap

ROWS, COLUMNS = 8, 32  # threads of a block


def _wrapped(x: np.ndarray, mask: np.ndarray, modes: tuple[str, str] = ("wrap", "wrap")) -> np.ndarray:
    """The convolution with a mask of 3 x 3, where ``modes`` of np.pad say what is beyond the rows and the columns."""
    padded = np.pad(np.pad(x.astype(np.float64), ((1, 1), (0, 0)), modes[0]), ((0, 0), (1, 1)), modes[1])
    return reference(padded, mask)[1:-1, 1:-1]


def _wrap_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for h, w in ((1, 1), (3, 5), (ROWS, COLUMNS), (ROWS + 1, COLUMNS + 1), (5 * ROWS, 3 * COLUMNS), (41, 70)):
        x, mask = _whole(rng, (h, w)), _whole(rng, (3, 3))
        args = x, mask, unwritten((h, w), np.float32)
        grid = blocks(w, COLUMNS), blocks(h, ROWS)
        cases.append(Case(f"an image of {h} x {w}", args, grid, (COLUMNS, ROWS), {2: _wrapped(x, mask)}))
    return cases


@cuda.jit
def wrap_answer(x, mask, out):
    column, row = cuda.grid(2)
    h, w = x.shape
    if row < h and column < w:
        total = np.float32(0)
        for r in range(3):
            for s in range(3):
                total += mask[r, s] * x[(row + r - 1) % h, (column + s - 1) % w]
        out[row, column] = total


def _wrapped_rows_only(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _wrapped(x, mask, ("wrap", "constant"))}


def _stays_at_zero(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, mask)}


def _stays_at_edge(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference(x, mask, "edge")}


def _wrapped_turned(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _wrapped(x, mask[::-1, ::-1])}


def _wrapped_transposed(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _wrapped(x, np.ascontiguousarray(mask.T))}


def _wrapped_ahead(x: np.ndarray, mask: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.roll(_wrapped(x, mask), (-1, -1), (0, 1))}


EXERCISES = (
    Exercise(
        "convolution/halo",
        task=f"Convolve the signal x with a mask of {2 * REACH + 1} weights: out[i] is the sum of mask[s] * "
        f"x[i + s - {REACH}], and beyond both ends x is 0. Each block loads what its {BLOCK} outputs see into shared "
        f"memory, once: {HALO} elements. All are float32, and the launch has {BLOCK} threads a block.",
        parameters="x, mask, out",
        cases=_halo_cases,
        answer=halo_answer,
        hints=(
            f"Place k of the tile holds x[first + k - {REACH}], where first is the block's first output.",
            f"There are {HALO} places for {BLOCK} threads: loop from the thread's number in steps of {BLOCK}.",
            "Every thread loads and comes to the barrier, also one whose own output does not exist.",
        ),
        budget=lambda case: {
            "global_load_bytes": (
                4 * (case.args[0].size + 2 * REACH * case.grid + 1.2 * 5 * case.grid * BLOCK),
                "Each element of x is loaded once for the block, and then read from shared memory.",
            )
        },
        traps=(
            Trap(
                "mask turned over", "mask[0] belongs to the neighbour on the left, which has the least index.", _turned
            ),
            Trap(
                "halo missing",
                "The outputs at the ends of a block see elements of the blocks beside it.",
                _without_halo,
            ),
            Trap("clamped border", "Beyond both ends x is 0, not the element at the end.", _clamped),
            Trap("centre in the wrong place", f"x[i] meets mask[{REACH}], the one in the middle.", _ahead),
        ),
    ),
    Exercise(
        "convolution/edges",
        task="Find the edges in an image: out = |A| + |B|, where A is the convolution of x with the rows (-1, 0, 1), "
        "(-2, 0, 2), (-1, 0, 1), and B with that mask transposed (the operator of Sobel). Beyond a border stands the "
        f"element at the border. x and out are float32, and the launch has {SIDE} x {SIDE} threads a block.",
        parameters="x, out",
        cases=_edges_cases,
        answer=edges_answer,
        hints=(
            "max(row - 1, 0) and min(row + 1, h - 1) are the rows above and below, at a border too.",
            "Six weights of each mask are not 0. Both masks together see eight elements: load each once.",
            "A literal 2 is an int64, and float32 times int64 is float64: write np.float32(2).",
        ),
        budget=lambda case: {"flops_f64": (0, "float32 times an integer is float64: write np.float32(2).")},
        traps=(
            Trap("zero border", "Beyond the border stands the element at the border, not 0.", _zero_border),
            Trap("sign kept", "An edge from light to dark is an edge as well: take absolute values.", _signed),
            Trap("not weighted", "The middle row of the mask counts twice.", _unweighted),
            Trap("length of the slope", "The task asks for |A| + |B|, which takes no root.", _length),
            Trap("one direction only", "B is missing: it finds the edges that run from left to right.", _across_only),
        ),
    ),
    Exercise(
        "convolution/strip",
        task=f"Convolve an image with a mask of 3 x 3; beyond a border it is 0. A thread makes {STRIP} outputs side by "
        f"side, and loads each row of what they see once: {WINDOW} elements, not {3 * STRIP}. It loads each weight "
        "once, too. All are float32. The launch has 32 x 4 threads a block: thread, row = cuda.grid(2), and the first "
        f"output is {STRIP} * thread.",
        parameters="x, mask, out",
        cases=_strip_cases,
        answer=strip_answer,
        hints=(
            f"Keep {STRIP} totals in cuda.local.array({STRIP}, np.float32): in loops of constant length, registers.",
            f"For each row r of the mask fill a window of {WINDOW}. Output j then adds mask[r, s] * window[j + s].",
            "Guard three things: the rows of the window, its columns, and each store.",
        ),
        budget=_strip_budget,
        traps=(
            Trap("mask transposed", "mask[r, s]: r goes down the rows, s along them.", _transposed_mask),
            Trap("mask turned over", "mask[0, 0] belongs to the neighbour above on the left.", _turned_mask),
            Trap("clamped border", "Beyond a border the image is 0, not the element at the border.", _clamped_border),
        ),
    ),
    Exercise(
        "convolution/wrap",
        task="Convolve an image with a mask of 3 x 3, a thread for each pixel. Beyond a border the image begins again "
        "at its opposite side: above the first row is the last one, and to the left of the first column is the last "
        f"one. All are float32. The launch has {COLUMNS} x {ROWS} threads a block: column, row = cuda.grid(2).",
        parameters="x, mask, out",
        cases=_wrap_cases,
        answer=wrap_answer,
        hints=(
            "Begin with the loops of `basic`. Only the index of x is another.",
            "Row row + r - 1 may be -1 or h. Which row stands there?",
            "A remainder does it: i % h is from 0 to h - 1, in Numba for a negative i, too.",
        ),
        budget=lambda case: {"flops_f64": (0, "float32 times an integer is float64: write np.float32(0).")},
        traps=(
            Trap("zero border", "Beyond a border the image begins again, it is not 0.", _stays_at_zero),
            Trap("clamped border", "Beyond a border stands the opposite side, not the same element.", _stays_at_edge),
            Trap("one direction only", "Columns begin again as rows do.", _wrapped_rows_only),
            Trap("mask turned over", "mask[0, 0] belongs to the neighbour above on the left.", _wrapped_turned),
            Trap("mask transposed", "mask[r, s]: r goes down the rows, s along them.", _wrapped_transposed),
            Trap("centre in the wrong place", "x[row, column] meets mask[1, 1], in the middle.", _wrapped_ahead),
        ),
    ),
)
