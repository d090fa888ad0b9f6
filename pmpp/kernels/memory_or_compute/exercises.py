"""Exercises of notebooks/20_memory_or_compute.ipynb: a polynomial, two moments, a value with its derivative."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

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
        cases.append(
            Case(
                f"n = {n}, {terms} coefficient{'s' * (terms > 1)}",
                args,
                _blocks(n),
                BLOCK,
                {2: powers @ c},
                {2: allowed},
            )
        )
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
    advice = "Begin with the last coefficient: multiply by x, add the one before, and so on."
    variables = "Keep x[i] and the sum in variables: these cost no bytes."
    return {
        "flops": (1.1 * horner, advice),
        "inst_special": (0, advice),  # powers
        "global_load_bytes": ((1 + c.size) * x.nbytes, variables),
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
    together = "Let neighbouring threads use neighbouring elements: a sector travels once for all of its bytes."
    return {
        "global_load_bytes": (once, advice),
        "global_store_bytes": (2 * once, advice),
        "global_load_sectors": (1.5 * once / 32, together),
    }


# ----------------------------------------------------------------------------------------- memory_or_compute/derivative


def _derivative_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, terms in ((1, 3), (BLOCK - 1, 1), (BLOCK, 2), (BLOCK + 1, 5), (3000, 24)):
        x = rng.uniform(-1, 1, n).astype(np.float32)
        c = rng.standard_normal(terms).astype(np.float32)
        exact = [np.polyval(one, x.astype(np.float64)) for one in (c, np.polyder(c))]
        sizes = [np.polyval(abs(one), abs(x).astype(np.float64)) for one in (c, np.polyder(c))]
        # A term passes at most terms steps of the value and of the slope, each of which rounds twice.
        allowed = [4 * terms * 2**-24 * size + 1e-45 for size in sizes]
        args = x, c, unwritten(n, np.float32), unwritten(n, np.float32)
        expected, tolerance = dict(enumerate(exact, 2)), dict(enumerate(allowed, 2))
        cases.append(Case(f"n = {n}, {terms} coefficients", args, _blocks(n), BLOCK, expected, tolerance))
    return cases


@cuda.jit
def derivative_answer(x, c, value, slope):
    i, k = cuda.grid(1), 1
    if i < x.size:
        at, total, rise = x[i], c[0], np.float32(0)
        while k < c.size:
            rise = rise * at + total
            total = total * at + c[k]
            k += 1
        value[i], slope[i] = total, rise


def _derivative_budget(case: Case) -> dict[str, tuple[float, str]]:
    x, c, _, _ = case.args
    both = 4 * (c.size - 1) * x.size
    return {
        "flops": (1.1 * both, "Two multiply-adds a coefficient are enough: one for the value, one for the slope."),
        "global_load_bytes": ((1 + c.size) * x.nbytes, "Use each coefficient for both, once it is loaded."),
    }


def _too_late(x: np.ndarray, c: np.ndarray, value: np.ndarray, slope: np.ndarray) -> dict[int, np.ndarray]:
    """The slope grows by the value after the step, not by the one before it."""
    total, rise = np.full(x.shape, c[0]), np.zeros_like(x)
    for coefficient in c[1:]:
        total = total * x + coefficient
        rise = rise * x + total
    return {2: total, 3: rise}


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
        "must. Move each byte once, with one load and two stores in the source. "
        f"The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, square, cube",
        cases=_moments_cases,
        budget=_moments_budget,
        answer=moments_answer,
        hints=("How many of its accesses are loads? How many different bytes do they ask for?",),
    ),
    Exercise(
        "memory_or_compute/derivative",
        task="Write the value of the polynomial at each x[i] to value[i], and its derivative there to slope[i], in "
        "float32. The coefficients c, of any number from 1 up, begin with that of the highest power. Load each x[i] "
        "and each coefficient once, and do four operations a coefficient. "
        f"The launch has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, c, value, slope",
        cases=_derivative_cases,
        budget=_derivative_budget,
        answer=derivative_answer,
        hints=(
            "A step of Horner's rule makes p x + c of a polynomial p. What is the derivative of that?",
            "It is p' x + p, with the p from before the step.",
        ),
        traps=(
            Trap(
                "updated too early",
                "The derivative of p x + c is p' x + p: the slope needs the value from before the step.",
                _too_late,
            ),
        ),
    ),
)
