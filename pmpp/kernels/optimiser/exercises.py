"""Exercises of notebooks/82_optimisers.ipynb: an optimiser that needs one moment, and clipping without the host."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."
LR, BETA, KEEP, DECAY = map(np.float32, (0.0625, 0.875, 0.75, 0.5))  # exact in float32


# ------------------------------------------------------------------------------------------------------ optimiser/lion


def _lion(p, g, m, lr, beta, keep, decay, *, sign_of=None, decayed=True) -> dict[int, np.ndarray]:
    p, g, m = (x.astype(np.float64) for x in (p, g, m))
    new = keep * m + (1 - keep) * g
    towards = sign_of(m, g, new) if sign_of else beta * m + (1 - beta) * g
    return {0: p - lr * (np.sign(towards) + (decay * p if decayed else 0)), 2: new}


def _lion_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 5, 127, 128, 129, 1000):
        p, g, m = rng.standard_normal((3, n), dtype=np.float32)
        m *= np.float32(0.3)
        if n > 1:
            g[n // 2] = m[n // 2] = 0  # a step of nothing: its sign is 0
        args = p, g, m, LR, BETA, KEEP, DECAY
        # A few products and sums; the sign must not hang on a rounding, and with these numbers it does not.
        allowed = {0: 4 * 2.0**-24 * (np.abs(p) + LR), 2: 4 * 2.0**-24 * (np.abs(m) + np.abs(g))}
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, _lion(*args), allowed))
    return cases


@cuda.jit
def lion_answer(p, g, m, lr, beta, keep, decay):
    i = cuda.grid(1)
    if i < p.size:
        zero, one = np.float32(0), np.float32(1)
        towards = beta * m[i] + (one - beta) * g[i]
        sign = one if towards > zero else -one if towards < zero else zero
        p[i] -= lr * (sign + decay * p[i])
        m[i] = keep * m[i] + (one - keep) * g[i]


def _of_the_new_moment(*args) -> dict[int, np.ndarray]:
    return _lion(*args, sign_of=lambda m, g, new: new)


def _moment_first(*args) -> dict[int, np.ndarray]:
    return _lion(*args, sign_of=lambda m, g, new: BETA * new + (1 - BETA) * g)


def _of_the_gradient(*args) -> dict[int, np.ndarray]:
    return _lion(*args, sign_of=lambda m, g, new: g)


def _no_decay(*args) -> dict[int, np.ndarray]:
    return _lion(*args, decayed=False)


# ------------------------------------------------------------------------------------------------------ optimiser/clip


def _clip(parts, most, g, out, *, root=True, always=False) -> dict[int, np.ndarray]:
    total = float(parts.astype(np.float64).sum())
    factor = float(most) / (math.sqrt(total) if root else total)
    return {3: g * (factor if always else min(1.0, factor))}


def _clip_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    # Of 128 elements the norm is below 20 and its square above: it shows which of them is compared.
    for n, most in ((1, 0.5), (5, 100.0), (127, 2.0), (128, 20.0), (129, 3.0), (1000, 1.0)):
        g = rng.standard_normal(n, dtype=np.float32) + np.float32(0.1)
        parts = np.add.reduceat(g.astype(np.float64) ** 2, np.arange(0, n, 100)).astype(np.float32)
        args = parts, np.float32(most), g, unwritten(n, np.float32)
        # Ten parts are added, then a root, a quotient and a product.
        allowed = {3: 16 * 2.0**-24 * np.abs(g)}
        cases.append(Case(f"n = {n}, at most {most}", args, blocks(n, BLOCK), BLOCK, _clip(*args), allowed))
    return cases


@cuda.jit
def clip_answer(parts, most, g, out):
    i = cuda.grid(1)
    if i < g.size:
        total = np.float32(0)
        for k in range(parts.size):
            total += parts[k]
        factor = most / math.sqrt(total)
        out[i] = g[i] * factor if factor < np.float32(1) else g[i]


def _no_root(*args) -> dict[int, np.ndarray]:
    return _clip(*args, root=False)


def _always(*args) -> dict[int, np.ndarray]:
    return _clip(*args, always=True)


EXERCISES = (
    Exercise(
        "optimiser/lion",
        task="Write a step of Lion (X. Chen and others, 2023), which has one moment and goes by signs: c = beta * m + "
        "(1 - beta) * g; then p = p - lr * (sign(c) + decay * p), and then m = keep * m + (1 - keep) * g. The sign of "
        "0 is 0. p and m are changed in place. p, g and m are vectors of float32, the rest are numbers of float32. The "
        f"launch has {BLOCK} threads a block, one for each element.",
        parameters="p, g, m, lr, beta, keep, decay",
        cases=_lion_cases,
        answer=lion_answer,
        hints=(
            "20 bytes a parameter, where Adam has 28. Which of the two lines must come first?",
            "A sign: compare with np.float32(0), twice.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap(
                "sign of the new moment",
                "c is made with beta, of the old m: it is not what m becomes.",
                _of_the_new_moment,
            ),
            Trap("m changed too early", "c is made of m as it was: compute it before m changes.", _moment_first),
            Trap("sign of the gradient", "The step goes by c, which also has the past in it.", _of_the_gradient),
            Trap("no decay", "The decay is missing: lr * decay * p is taken away, too.", _no_decay),
        ),
    ),
    Exercise(
        "optimiser/clip",
        task="Clip gradients without asking the host. parts has the sums of squares that the blocks of a kernel before "
        "found. Add them up in every thread, in order. If the norm, the root of their sum, is above most, out is g * "
        "most / norm; else it is g. parts, g and out are vectors of float32, most is a float32. The launch has "
        f"{BLOCK} threads a block, one for each element of g.",
        parameters="parts, most, g, out",
        cases=_clip_cases,
        answer=clip_answer,
        hints=(
            "Each thread reads all parts. They are few, and all lanes read the same one: a single sector.",
            "A factor above 1 would make short gradients longer.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("no root", "The norm is the root of the sum of squares.", _no_root),
            Trap("made longer", "A norm that is below most must be left alone.", _always),
        ),
    ),
)
