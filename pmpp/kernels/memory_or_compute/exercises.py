"""Exercises of notebooks/20_memory_or_compute.ipynb: the arithmetic of a polynomial, and the bytes of two moments."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, unwritten

BLOCK = 256  # threads a block


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# ----------------------------------------------------------------------------------------- memory_or_compute/polynomial


def _polynomial_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, terms in ((1, 3), (BLOCK - 1, 1), (BLOCK, 2), (BLOCK + 1, 5), (3000, 24)):
        x = rng.uniform(-1, 1, n).astype(np.float32)
        c = rng.standard_normal(terms).astype(np.float32)
        powers = x.astype(np.float64)[:, None] ** np.arange(terms)
        # Each step of Horner's scheme rounds twice, and a power of x at most as often as it is multiplied.
        allowed = 4 * terms * 2**-24 * (np.abs(powers) @ np.abs(c).astype(np.float64)) + 1e-45
        args = x, c, unwritten(n, np.float32)
        cases.append(Case(f"n = {n}, {terms} coefficients", args, _blocks(n), BLOCK, {2: powers @ c}, {2: allowed}))
    return cases


@cuda.jit
def polynomial_answer(x, c, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        total = c[c.size - 1]
        for k in range(c.size - 2, -1, -1):
            total = total * value + c[k]
        out[i] = total


def _polynomial_budget(case: Case) -> dict[str, tuple[float, str]]:
    x, c, _ = case.args
    horner = 2 * (c.size - 1) * x.size
    return {
        "flops": (1.1 * horner, "Begin with the last coefficient: multiply by x, add the one before, and so on."),
        "global_load_bytes": ((1 + c.size) * x.nbytes, "Load x[i] once, into a variable: it then costs no more bytes."),
    }


# -------------------------------------------------------------------------------------------- memory_or_compute/moments


def _moments_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 5000):
        x = rng.standard_normal(n, dtype=np.float32)
        wide = x.astype(np.float64)
        allowed = 2**-23 * np.abs(wide**3) + 1e-45
        args = x, unwritten(n, np.float32), unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, _blocks(n), BLOCK, {1: x * x, 2: wide**3}, {2: allowed}))
    return cases


# The kernel to start from: right, and as written it goes to memory six times. A compiler saves two of the four loads,
# but not the x[i] of the last line: the arrays might overlap, and then the store before has changed it.
@cuda.jit
def moments_start(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        square[i] = x[i] * x[i]
        cube[i] = square[i] * x[i]


@cuda.jit
def moments_answer(x, square, cube):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        square[i] = value * value
        cube[i] = value * value * value


def _moments_budget(case: Case) -> dict[str, tuple[float, str]]:
    once = case.args[0].nbytes
    advice = "What a thread has in a variable need not come from memory again."
    return {"global_load_bytes": (once, advice), "global_store_bytes": (2 * once, advice)}


EXERCISES = (
    Exercise(
        "memory_or_compute/polynomial",
        task="Write out[i] = c[0] + c[1] x[i] + c[2] x[i]^2 + ... for float32 vectors x of any length n and c of any "
        "length from 1 up, with two operations a coefficient, and each x[i] loaded once. "
        f"The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, c, out",
        cases=_polynomial_cases,
        budget=_polynomial_budget,
        answer=polynomial_answer,
        hints=(
            "c[0] + x (c[1] + x (c[2] + ...)): the innermost bracket comes first.",
            "Start a variable at c[c.size - 1] and go down: range(c.size - 2, -1, -1).",
        ),
    ),
    Exercise(
        "memory_or_compute/moments",
        task="moments_start writes the square and the cube of each element of x, and goes to memory more often than it "
        f"must. Move each byte once. The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, square, cube",
        cases=_moments_cases,
        budget=_moments_budget,
        answer=moments_answer,
        hints=("How many of its accesses are loads? How many different bytes do they ask for?",),
    ),
)
