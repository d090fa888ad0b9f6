"""Exercises of notebooks/04_vector_add.ipynb: the index, the type, the order of access, two dimensions."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads per block


def _blocks(n: int, block: int = BLOCK) -> int:
    return -(-n // block)  # rounded up


# ---------------------------------------------------------------------------------------------------- vector_add/saxpy


def _saxpy_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 5000):
        a = float(rng.uniform(2, 3))
        x, y = rng.standard_normal((2, n), dtype=np.float32)
        product = np.float64(np.float32(a)) * x
        # float32 rounds the product and the sum, each by at most 2^-24 of its size. An answer that keeps a in float64
        # is off by a's rounding: hence 2. 0.01 is for second order, 1e-45 (about the least positive float32) for
        # underflow.
        allowed = 2**-24 * (2.01 * np.abs(product) + np.abs(product + y)) + 1e-45
        args = a, x, y, unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, _blocks(n), BLOCK, {3: product + y}, {3: allowed}))
    return cases


@cuda.jit
def saxpy_answer(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(a) * x[i] + y[i]


# ----------------------------------------------------------------------------------------------- vector_add/neighbours

EACH = 4  # elements per thread


def _neighbours_cases(rng: np.random.Generator) -> list[Case]:
    tile = BLOCK * EACH
    cases = []
    for n in (1, tile - 1, tile, tile + 1, 5 * tile + 300):
        x = rng.standard_normal(n, dtype=np.float32)
        cases.append(Case(f"n = {n}", (x, unwritten(n, np.float32)), _blocks(n, tile), BLOCK, {1: x * x}))
    return cases


# The kernel to start from: right, and slow.
@cuda.jit
def neighbours_start(x, out):
    first = cuda.grid(1) * EACH
    for k in range(EACH):
        i = first + k
        if i < out.size:
            out[i] = x[i] * x[i]


@cuda.jit
def neighbours_answer(x, out):
    first = cuda.blockIdx.x * BLOCK * EACH + cuda.threadIdx.x
    for k in range(EACH):
        i = first + k * BLOCK
        if i < out.size:
            value = x[i]
            out[i] = value * value


def _neighbours_budget(case: Case) -> dict[str, tuple[float, str]]:
    sectors = _blocks(case.args[0].nbytes, 32)
    advice = "In each round let the threads of a block take 256 elements side by side, and store each element once."
    # The interpreter counts both loads of x[i] in x[i] * x[i]; a compiler makes one of them.
    return {"global_load_sectors": (2 * sectors, advice), "global_store_sectors": (sectors, advice)}


# ----------------------------------------------------------------------------------------------- vector_add/cross_fade

TILE = 16  # a block is TILE x TILE threads, one for each pixel


def _cross_fade_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for h, w, t in (
        (1, 1, 0.6),
        (5, 11, 0.3),
        (16, 16, 0.0),
        (16, 16, 1.0),
        (15, 40, 0.3),
        (32, 16, 0.7),
        (64, 67, 0.25),
        (100, 70, 0.9),
    ):
        a, b = rng.integers(0, 256, (2, h, w, 3), dtype=np.uint8)
        exact = _fade(a, b, t)
        # Near the middle of two levels either is right: 1e-4 allows for the errors of float32. Elsewhere the tolerance
        # lets no other level pass than the rounded one, which a verdict can name.
        middle = np.abs(exact - np.floor(exact) - 0.5) < 1e-4
        level = np.where(middle, exact, np.round(exact))
        args = a, b, t, unwritten((h, w, 3), np.uint8)
        grid = _blocks(w, TILE), _blocks(h, TILE)
        cases.append(Case(f"an image of {h} x {w}, t = {t}", args, grid, (TILE, TILE), {3: level}, {3: 0.5 + 1e-4}))
    return cases


@cuda.jit
def cross_fade_answer(a, b, t, out):
    column, row = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        weight = np.float32(t)
        for channel in range(3):
            before, after = np.float32(a[row, column, channel]), np.float32(b[row, column, channel])
            out[row, column, channel] = np.uint8(before + weight * (after - before) + np.float32(0.5))


def _fade(a: np.ndarray, b: np.ndarray, t: float) -> np.ndarray:
    return (1 - t) * a + t * b


def _backwards(a: np.ndarray, b: np.ndarray, t: float, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: _fade(b, a, t)}


def _truncated(a: np.ndarray, b: np.ndarray, t: float, out: np.ndarray) -> dict[int, np.ndarray]:
    exact = _fade(a, b, t)
    # NaN matches any value: float32 may fall on either side of a whole number.
    return {3: np.where(np.abs(exact - np.round(exact)) < 1e-4, np.nan, np.floor(exact))}


def _rounded_up(a: np.ndarray, b: np.ndarray, t: float, out: np.ndarray) -> dict[int, np.ndarray]:
    exact = _fade(a, b, t)
    return {3: np.where(np.abs(exact - np.round(exact)) < 1e-4, np.nan, np.ceil(exact))}


def _wrapped(a: np.ndarray, b: np.ndarray, t: float, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: np.where(b >= a, _fade(a, b, t), np.nan)}  # NaN, which matches any value, where b - a wraps around


def _wrapped_the_other_way(a: np.ndarray, b: np.ndarray, t: float, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: np.where(a >= b, _fade(a, b, t), np.nan)}


EXERCISES = (
    Exercise(
        "vector_add/saxpy",
        task="Write out = a * x + y for float32 vectors of any length n and a Python number a, in float32 arithmetic. "
        f"The launch has {BLOCK} threads per block, and one thread or more for each element.",
        parameters="a, x, y, out",
        cases=_saxpy_cases,
        answer=saxpy_answer,
        hints=(
            "Begin with i = cuda.grid(1). Which i are there beyond the end of the vectors?",
            "A Python float arrives in the kernel as float64. What is float64 times float32?",
            "np.float32(a) inside the kernel is a float32.",
        ),
    ),
    Exercise(
        "vector_add/neighbours",
        task=f"In neighbours_start each thread squares {EACH} elements that lie side by side. Rewrite it so that in "
        "each round of the loop neighbouring threads use neighbouring elements. "
        f"The launch has {BLOCK} threads per block, and one block for each {BLOCK * EACH} elements.",
        parameters="x, out",
        cases=_neighbours_cases,
        budget=_neighbours_budget,
        answer=neighbours_answer,
        hints=(
            f"The block's elements begin at blockIdx.x * {BLOCK * EACH}. Which does thread 0 take first, and thread 1?",
            f"In round k, thread t takes element k * {BLOCK} + t of the block's {BLOCK * EACH}.",
        ),
    ),
    Exercise(
        "vector_add/cross_fade",
        task="Fade from image a to image b: out = (1 - t) * a + t * b, rounded to the nearest, for uint8 images of "
        f"shape (h, w, 3) and a number t from 0 to 1. The launch is two-dimensional: {TILE} x {TILE} threads per "
        "block, one for each pixel. x is the pixel's column, and y its row.",
        parameters="a, b, t, out",
        cases=_cross_fade_cases,
        # The task names no type for the arithmetic: float64 is right as well.
        budget=lambda case: {"flops_f64": (math.inf, "")},
        answer=cross_fade_answer,
        hints=(
            "cuda.grid(2) gives x first: x, y = cuda.grid(2). Which of them is the row?",
            "A uint8 minus a larger uint8 is no negative number in a kernel: convert to float32 first.",
            "np.uint8(3.9) is 3. What must be added before, so that it rounds?",
        ),
        traps=(
            Trap("not rounded", "Converting to uint8 cuts off the fraction: add 0.5 first.", _truncated),
            Trap("not rounded", "This always rounds up: to the nearest means adding 0.5 and cutting off.", _rounded_up),
            Trap("wrong way round", "t is the share of b: with t = 0 all is a, and with t = 1 all is b.", _backwards),
            Trap(
                "integer overflow",
                "It is wrong where b is darker than a: a uint8 minus a uint8 is a uint64, which cannot be negative. "
                "Convert both to np.float32 first; int() leaves a uint8 as it is.",
                _wrapped,
            ),
            Trap(
                "integer overflow",
                "It is wrong where a is darker than b: a uint8 minus a uint8 is a uint64, which cannot be negative. "
                "Convert both to np.float32 first; int() leaves a uint8 as it is.",
                _wrapped_the_other_way,
            ),
        ),
    ),
)
