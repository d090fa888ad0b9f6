"""The exercise of notebooks/89_a_network_that_learns.ipynb on counting: which digit was taken for which."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap

BLOCK = 64  # threads a block
WARP = 32


def _matrix(scores: np.ndarray, labels: np.ndarray, counts: np.ndarray, chosen=None) -> dict:
    chosen = scores.argmax(axis=1) if chosen is None else chosen  # the first of several equal ones
    expected = counts.copy()
    np.add.at(expected, (labels, chosen), 1)
    return {2: expected}


def _cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for examples, classes in ((1, 3), (7, 2), (64, 10), (65, 10), (300, 5), (1000, 10)):
        scores = rng.standard_normal((examples, classes), dtype=np.float32)
        scores[1::4] = rng.integers(-2, 3, (len(scores[1::4]), classes))  # some are equal
        scores[::3] -= np.float32(10)  # all below 0
        labels = rng.integers(0, classes, examples)
        args = scores, labels, np.zeros((classes, classes), np.int32)
        name = f"{examples} example{'s' * (examples > 1)} of {classes} classes"
        cases.append(Case(name, args, blocks(examples, BLOCK), BLOCK, _matrix(*args)))
    return cases


@cuda.jit
def matrix_answer(scores, labels, counts):
    i = cuda.grid(1)
    if i < scores.shape[0]:
        best = 0
        for k in range(1, scores.shape[1]):
            if scores[i, k] > scores[i, best]:
                best = k
        cuda.atomic.add(counts, (labels[i], best), 1)


def _budget(case: Case) -> dict[str, tuple[float, str]]:
    examples, classes = case.args[0].shape
    alone = blocks(examples, WARP)  # one atomic of a warp
    shared = case.grid * blocks(classes * classes, WARP)  # a block that has counts of its own adds them up as well
    advice = "Give each thread a row of its own: then a warp counts 32 examples at a time."
    return {"atomic_requests": (alone + shared, advice)}


def _exchanged(scores, labels, counts):
    return {2: _matrix(scores, labels, counts)[2].T}


def _last_of_equals(scores, labels, counts):
    return _matrix(scores, labels, counts, scores.shape[1] - 1 - scores[:, ::-1].argmax(axis=1))


def _begun_at_zero(scores, labels, counts):
    beaten = np.where(scores > 0, scores, -np.inf)
    return _matrix(scores, labels, counts, np.where((scores > 0).any(axis=1), beaten.argmax(axis=1), 0))


EXERCISES = (
    Exercise(
        "confusion/matrix",
        task="Count what a network takes for what. scores has a row for each example and a column for each class; the "
        "network says the class with the greatest score, and of equal ones the first. Add 1 to counts[label, said] for "
        f"each example; counts begins as 0. There are {BLOCK} threads a block, and one thread or more for each row.",
        parameters="scores, labels, counts",
        cases=_cases,
        budget=_budget,
        answer=matrix_answer,
        hints=(
            "One thread reads one row, and remembers the column of the greatest score so far.",
            "Threads of any block may add to the same element: cuda.atomic.add(counts, (label, said), 1).",
        ),
        traps=(
            Trap("rows and columns exchanged", "The row is the label, and the column is what was said.", _exchanged),
            Trap("last of equal scores", "Of equal scores the first counts: compare with >, not >=.", _last_of_equals),
            Trap("greatest begins at 0", "All scores may be below 0: begin with the first of them.", _begun_at_zero),
        ),
    ),
)
