"""Exercises of notebooks/44_sparse.ipynb: EMPTY: what each asks for, in a few words."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, unwritten

BLOCK = 256  # threads a block


def _first_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 5000):
        x = rng.standard_normal(n, dtype=np.float32)
        expected = np.float64(2) * x  # EMPTY: what the answer must write; allow for rounding by `tolerance`
        cases.append(Case(f"n = {n}", (x, unwritten(n, np.float32)), -(-n // BLOCK), BLOCK, {1: expected}))
    return cases


@cuda.jit
def first_answer(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + x[i]  # EMPTY: a right answer


EXERCISES = (
    Exercise(
        "sparse/first",  # EMPTY: the exercise's name
        task="EMPTY: what to write, and how it is launched, in a sentence or two.",
        parameters="x, out",
        cases=_first_cases,
        answer=first_answer,
        hints=("EMPTY: each hint says a little more than the one before.",),
    ),
)
