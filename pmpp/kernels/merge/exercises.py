"""Exercises of notebooks/41_merge.ipynb: the co-rank of every place, and a merge that gives every element its place."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


def _pairs(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Sorted vectors of int32, from small to large: a name, a and b."""

    def drawn(n: int, m: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
        return np.sort(rng.integers(-largest, largest, n)), np.sort(rng.integers(-largest, largest, m))

    made = {
        "one element and one": (np.array([5]), np.array([3])),
        "four that are equal": (np.array([2, 2]), np.array([2, 2])),
        "all of a before b": (np.arange(40), np.arange(40, 100)),
        "all of b before a": (np.arange(100, 140), np.arange(90)),
        "an empty a": (np.arange(0), np.arange(70)),
        "an empty b": (np.arange(70), np.arange(0)),
        "few values": drawn(100, 156, 4),
        "n = 128 and m = 128": drawn(128, 128, 10**9),
        "n = 1200 and m = 2900": drawn(1200, 2900, 10**9),
    }
    return {name: (a.astype(np.int32), b.astype(np.int32)) for name, (a, b) in made.items()}


def _merged(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sort(np.concatenate([a, b]), kind="stable")


# ------------------------------------------------------------------------------------------------------ merge/co_rank


def _co_ranks(a: np.ndarray, b: np.ndarray, b_first: bool = False) -> np.ndarray:
    """Of each number of first outputs, how many come from a; ``b_first``: of equal elements those of b come first."""
    parts = ((b, 0), (a, 1)) if b_first else ((a, 1), (b, 0))
    order = np.argsort(np.concatenate([part for part, _ in parts]), kind="stable")
    from_a = np.repeat([mark for _, mark in parts], [part.size for part, _ in parts])[order]
    return np.append(0, np.cumsum(from_a)).astype(np.int32)


def _co_rank_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, (a, b) in _pairs(rng).items():
        n = a.size + b.size + 1
        cases.append(Case(name, (a, b, unwritten(n, np.int32)), _blocks(n), BLOCK, {2: _co_ranks(a, b)}))
    return cases


@cuda.jit
def co_rank_answer(a, b, out):
    k = cuda.grid(1)
    if k < out.size:
        low, high = max(0, k - b.size), min(k, a.size)
        while low < high:
            i = (low + high) // 2
            if b[k - 1 - i] < a[i]:
                high = i
            else:
                low = i + 1
        out[k] = low


# -------------------------------------------------------------------------------------------------------- merge/ranks


def _ranks_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, (a, b) in _pairs(rng).items():
        n = a.size + b.size
        cases.append(Case(name, (a, b, unwritten(n, np.int32)), _blocks(n), BLOCK, {2: _merged(a, b)}))
    return cases


@cuda.jit
def ranks_answer(a, b, out):
    t = cuda.grid(1)
    if t < a.size:
        low, high = 0, b.size
        while low < high:
            middle = (low + high) // 2
            if b[middle] < a[t]:
                low = middle + 1
            else:
                high = middle
        out[t + low] = a[t]  # low elements of b are less
    elif t < out.size:
        j = t - a.size
        low, high = 0, a.size
        while low < high:
            middle = (low + high) // 2
            if a[middle] <= b[j]:
                low = middle + 1
            else:
                high = middle
        out[j + low] = b[j]  # low elements of a are less or equal


EXERCISES = (
    Exercise(
        "merge/co_rank",
        task="For each k from 0 to n + m, write to out[k] how many of the first k outputs of a stable merge come from "
        "a. The sorted vectors a and b are int32, with n and m elements. Of equal elements, a's come first. Find it by "
        f"a binary search. The launch has {BLOCK} threads a block, and one thread or more for each k.",
        parameters="a, b, out",
        cases=_co_rank_cases,
        answer=co_rank_answer,
        hints=(
            "If i of the first k come from a, k - i come from b. So i is at least 0 and k - m, and at most k and n.",
            "a[i] is among the first k outputs unless k - i elements of b come before it.",
            "So look at b[k - 1 - i]: if it is less than a[i], the co-rank is at most i. Otherwise it is more than i.",
        ),
        traps=(
            Trap(
                "equal elements exchanged",
                "Of equal elements, those of a come first: compare for less, not for less or equal.",
                lambda a, b, out: {2: _co_ranks(a, b, b_first=True)},
            ),
        ),
    ),
    Exercise(
        "merge/ranks",
        task="Merge the sorted int32 vectors a and b into out, one thread for each element: thread t takes a[t] if t "
        "is less than n, else b[t - n]. Its place is its own index, and how many elements of the other vector come "
        f"before it: find these by a binary search. The launch has {BLOCK} threads a block, and one thread or more for "
        "each element.",
        parameters="a, b, out",
        cases=_ranks_cases,
        answer=ranks_answer,
        hints=(
            "Before a[t] come t elements of a, and those elements of b that are less.",
            "Before b[j] come j elements of b, and those elements of a that are less or equal.",
            "If both used the same comparison, equal elements would get one place.",
        ),
    ),
)
