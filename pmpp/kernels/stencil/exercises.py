"""Exercises of notebooks/26_stencil.ipynb: heat in a rod, one step in a launch and two."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


def _stepped(x: np.ndarray) -> np.ndarray:
    """One step of a rod with fixed ends. Small integers and quarters of them are exact in float32."""
    out = x.copy()
    out[1:-1] = x[1:-1] / 2 + (x[:-2] + x[2:]) / 4
    return out


def _in_place(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    for i in range(1, x.size - 1):
        out[i] = out[i] / 2 + (out[i - 1] + out[i + 1]) / 4
    return out


def _rods(rng: np.random.Generator) -> dict[str, np.ndarray]:
    hot = np.zeros(BLOCK + 40)
    hot[BLOCK] = 64
    return {
        "one cell": np.array([5]),
        "two cells": np.array([4, -8]),
        "three cells": np.array([4, 0, 8]),
        "heat at the border of two blocks": hot,
        "a block less one": rng.integers(-99, 99, BLOCK - 1),
        "two blocks": rng.integers(-99, 99, 2 * BLOCK),
        "n = 1000": rng.integers(-99, 99, 1000),
    }


# --------------------------------------------------------------------------------------------------------- stencil/rod


def _rod_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        x = x.astype(np.float32)
        return Case(name, (x, unwritten(x.size, np.float32)), _blocks(x.size), BLOCK, {1: _stepped(x)})

    return [case(name, x) for name, x in _rods(rng).items()]


@cuda.jit
def rod_answer(x, out):
    i = cuda.grid(1)
    if i < x.size:
        if i == 0 or i == x.size - 1:
            out[i] = x[i]
        else:
            out[i] = np.float32(0.5) * x[i] + np.float32(0.25) * (x[i - 1] + x[i + 1])


# ------------------------------------------------------------------------------------------------------- stencil/twice


def _twice_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray) -> Case:
        x = x.astype(np.float32)
        return Case(name, (x, unwritten(x.size, np.float32)), _blocks(x.size), BLOCK, {1: _stepped(_stepped(x))})

    return [case(name, x) for name, x in _rods(rng).items()]


@cuda.jit
def twice_answer(x, out):
    first, once = cuda.shared.array(260, np.float32), cuda.shared.array(260, np.float32)
    start = cuda.blockIdx.x * 256 - 2  # the cell in first[0]
    k = cuda.threadIdx.x
    while k < 260:
        i = start + k
        first[k] = x[i] if 0 <= i < x.size else np.float32(0)
        k += 256
    cuda.syncthreads()
    k = cuda.threadIdx.x + 1
    while k < 259:
        i = start + k
        once[k] = first[k]
        if 0 < i < x.size - 1:
            once[k] = np.float32(0.5) * first[k] + np.float32(0.25) * (first[k - 1] + first[k + 1])
        k += 256
    cuda.syncthreads()
    k = cuda.threadIdx.x + 2
    i = start + k
    if i < x.size:
        out[i] = once[k]
        if 0 < i < x.size - 1:
            out[i] = np.float32(0.5) * once[k] + np.float32(0.25) * (once[k - 1] + once[k + 1])


def _twice_budget(case: Case) -> dict[str, tuple[float, str]]:
    allowed = 4 * (case.args[0].size + 4 * _blocks(case.args[0].size))
    return {"global_load_bytes": (allowed, "A block needs its 256 cells and two on either side, each loaded once.")}


EXERCISES = (
    Exercise(
        "stencil/rod",
        task="Let heat spread in a rod for one step: out[i] = x[i] / 2 + (x[i - 1] + x[i + 1]) / 4, in float32. The "
        "first and the last cell keep their value. The launch has "
        f"{BLOCK} threads a block, and one thread or more for each cell.",
        parameters="x, out",
        cases=_rod_cases,
        answer=rod_answer,
        hints=(
            "Three kinds of threads: at an end, inside, and beyond the rod.",
            "A rod of one cell has its first cell at its end, too.",
        ),
        traps=(
            Trap("in place", "All neighbours are those of x, none is a new value.", lambda x, out: {1: _in_place(x)}),
            Trap(
                "ends not fixed",
                "The first and the last cell keep their value.",
                lambda x, out: {1: np.convolve(x, np.float32([0.25, 0.5, 0.25]), "full")[1:-1].astype(np.float32)},
            ),
        ),
    ),
    Exercise(
        "stencil/twice",
        task="Let heat spread for two steps in one launch. Each step is that of stencil/rod, and both ends keep their "
        f"value. The launch has {BLOCK} threads a block; block b writes the cells from {BLOCK} b on. A block loads its "
        "cells and two more on either side, each once.",
        parameters="x, out",
        cases=_twice_cases,
        budget=_twice_budget,
        answer=twice_answer,
        hints=(
            f"Load {BLOCK} + 4 cells into shared memory: four threads load two.",
            f"The first step is needed for {BLOCK} + 2 cells, and the second one for {BLOCK}.",
            "Write the first step to a second array, with a barrier before and after.",
        ),
        traps=(
            Trap("one step only", "The launch makes two steps.", lambda x, out: {1: _stepped(x)}),
            Trap("three steps", "The launch makes two steps.", lambda x, out: {1: _stepped(_stepped(_stepped(x)))}),
        ),
    ),
)
