"""Exercises of notebooks/22_launches.ipynb: one kernel in the place of three, and one launch in the place of many."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# ---------------------------------------------------------------------------------------------------------- the chain


# Three kernels, as a program has them that was written step by step. Each reads what the one before has written.
@cuda.jit
def scale_kernel(x, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i]


@cuda.jit
def add_kernel(y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = out[i] + y[i]


@cuda.jit
def clip_kernel(out):
    i = cuda.grid(1)
    if i < out.size and out[i] < np.float32(0):
        out[i] = np.float32(0)


# ------------------------------------------------------------------------------------------------------ launches/fused


def _fused_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, a in ((1, 2.0), (BLOCK - 1, -1.5), (BLOCK, 0.25), (BLOCK + 1, 3.0), (5000, -0.75)):
        x, y = rng.standard_normal((2, n), dtype=np.float32)
        if n == 1:
            x, y = np.abs(x), np.abs(y)  # nothing to clip: the result is not 0
        product, wide = a * x.astype(np.float64), y.astype(np.float64)
        # The product is rounded, and so is the sum; a GPU may round once for both.
        allowed = 2**-23 * (np.abs(product) + np.abs(wide))
        args = x, y, np.float32(a), unwritten(n, np.float32)
        cases.append(
            Case(f"n = {n}", args, _blocks(n), BLOCK, {3: np.maximum(product + wide, 0)}, {3: allowed}),
        )
    return cases


@cuda.jit
def fused_answer(x, y, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(a * x[i] + y[i], np.float32(0))


def _not_clipped(x: np.ndarray, y: np.ndarray, a: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: a * x.astype(np.float64) + y}


def _clipped_too_early(x: np.ndarray, y: np.ndarray, a: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: np.maximum(a * x.astype(np.float64), 0) + y}


def _fused_budget(case: Case) -> dict[str, tuple[float, str]]:
    x, y, _, out = case.args
    advice = "What lies between two steps fits into a variable: load x and y once, and store only the result."
    return {"global_load_bytes": (x.nbytes + y.nbytes, advice), "global_store_bytes": (out.nbytes, advice)}


# --------------------------------------------------------------------------------------------------- launches/logistic


def _logistic(x: np.ndarray, r: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The elements after some steps, in float64, and how far a float32 result may be from them."""
    value, allowed = x.astype(np.float64), np.zeros(x.shape)
    for _ in range(steps):
        # An error is multiplied by the slope of the step. In float32 each step then rounds at most four times.
        grown = np.abs(r * (1 - 2 * value)) * allowed + r * allowed**2
        allowed = grown + 4 * 2**-24 * r * (np.abs(value) + value**2)
        value = r * value * (1 - value)
    return value, allowed


def _logistic_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    # With r = 3.2 the elements end up between two values in turn, so that a step too many shows.
    for n, r, steps in ((1, 2.5, 1), (BLOCK - 1, 3.5, 0), (BLOCK, 2.75, 2), (BLOCK + 1, 3.75, 7), (3000, 3.2, 20)):
        x = rng.uniform(0.05, 0.95, n).astype(np.float32)
        expected, allowed = _logistic(x, r, steps)
        args = x, np.float32(r), steps, unwritten(n, np.float32)
        cases.append(
            Case(f"n = {n}, {steps} step{'s' * (steps != 1)}", args, _blocks(n), BLOCK, {3: expected}, {3: allowed})
        )
    return cases


@cuda.jit
def logistic_answer(x, r, steps, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        for _ in range(steps):
            value = r * value * (np.float32(1) - value)
        out[i] = value


def _logistic_budget(case: Case) -> dict[str, tuple[float, str]]:
    x, _, _, out = case.args
    advice = "Load the element once, do all steps on a variable, and store it once."
    return {"global_load_bytes": (x.nbytes, advice), "global_store_bytes": (out.nbytes, advice)}


EXERCISES = (
    Exercise(
        "launches/fused",
        task="scale_kernel, add_kernel and clip_kernel make out[i] = max(a * x[i] + y[i], 0) in three launches. Write "
        "one kernel that does it, in float32. It loads each x[i] and y[i] once and stores each out[i] once. "
        f"The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, y, a, out",
        cases=_fused_cases,
        budget=_fused_budget,
        answer=fused_answer,
        hints=(
            "The element that one step hands to the next can stay in a variable of the thread.",
            "max(value, 0) compares with an integer; np.float32(0) keeps it in float32.",
        ),
        traps=(
            Trap("not clipped", "The third step is missing: what is negative becomes 0.", _not_clipped),
            Trap("clipped too early", "Clip the sum, not the product: y comes first.", _clipped_too_early),
        ),
    ),
    Exercise(
        "launches/logistic",
        task="The logistic map is the step x = r * x * (1 - x). Take each x[i] through `steps` of them in one launch, "
        "in float32, and write the last value to out[i]. `steps` may be 0. "
        f"The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, r, steps, out",
        cases=_logistic_cases,
        budget=_logistic_budget,
        answer=logistic_answer,
        hints=(
            "No thread needs the element of another, so nobody has to wait between two steps.",
            "Load x[i] before the loop, and store behind it. An integer 1 with a float32 makes a float64.",
        ),
    ),
)
