"""Exercises of notebooks/28_histogram.ipynb: private counts of letters, bins of a range, one atomic for equal lanes."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block
LETTERS = 26


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


# --------------------------------------------------------------------------------------------------- histogram/letters


def _letters_of(text: np.ndarray) -> np.ndarray:
    """How often each letter occurs in the bytes of each block, small or capital."""

    def row(part: np.ndarray) -> np.ndarray:
        small = np.where((part >= 65) & (part <= 90), part + 32, part).astype(np.int64)
        return np.bincount(small[(small >= 97) & (small <= 122)] - 97, minlength=LETTERS).astype(np.int32)

    return np.array([row(text[first : first + BLOCK]) for first in range(0, text.size, BLOCK)])


def _letters_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, text: np.ndarray) -> Case:
        text = text.astype(np.uint8)
        counts = unwritten((_blocks(text.size), LETTERS), np.int32)
        return Case(name, (text, counts), _blocks(text.size), BLOCK, {1: _letters_of(text)})

    every = rng.permutation(np.arange(256))
    words = np.frombuffer(b"It was the best of times, it was the worst of times; ", np.uint8)
    return [
        case("the letter Z alone", np.array([90])),
        case("every byte once", every),
        case("a block less one, of letters", rng.integers(97, 123, BLOCK - 1)),
        case("a block and one, of which that one is a letter", np.append(rng.integers(32, 65, BLOCK), 122)),
        case("two blocks", rng.integers(64, 128, 2 * BLOCK)),
        case("a sentence again and again", np.resize(words, 3000)),
        case("n = 5197, bytes of every kind", rng.integers(0, 256, 5197)),
    ]


@cuda.jit
def letters_answer(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
    cuda.syncthreads()
    if i < text.size:
        letter = (text[i] | 32) - 97  # a small letter is its capital with bit 5 set
        if 0 <= letter < LETTERS:
            cuda.atomic.add(mine, letter, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


def _small_letters_only(text: np.ndarray, counts: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _letters_of(np.where((text >= 65) & (text <= 90), 0, text))}


# ----------------------------------------------------------------------------------------------------- histogram/range


def _range_counts(x: np.ndarray, low: float, high: float, bins: int) -> np.ndarray:
    inside = x[(x >= low) & (x <= high)].astype(np.float64)
    at = np.minimum(((inside - low) * bins / (high - low)).astype(np.int64), bins - 1)
    return np.bincount(at, minlength=bins).astype(np.int32)


def _range_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray, low: float, high: float, bins: int) -> Case:
        x = x.astype(np.float32)
        args = x, np.float32(low), np.float32(high), np.zeros(bins, np.int32)
        return Case(name, args, _blocks(x.size), BLOCK, {3: _range_counts(x, low, high, bins)})

    # Multiples of 1/64, and bins that are a power of two wide: nothing is rounded, in whatever order it is computed.
    def grid(n: int, size: int) -> np.ndarray:
        return rng.integers(-size * 64, size * 64 + 1, n) / 64

    return [
        case("one element in the middle", np.array([0.5]), 0, 1, 2),
        case("the edges of four bins", np.array([-1, -0.5, 0, 0.5, 1, -1.25, 1.25, 1]), -1, 1, 4),
        case("NaN and infinities", np.array([np.nan, np.inf, -np.inf, 3, 3.5]), 3, 5, 8),
        case("one bin", grid(BLOCK + 1, 2), -1, 1, 1),
        case("a range that begins above 0, two blocks", grid(2 * BLOCK, 8), 2, 6, 16),
        case("n = 5000, half of it outside", grid(5000, 4), -2, 2, 32),
    ]


@cuda.jit
def range_answer(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        if low <= value <= high:  # a NaN is neither
            at = int((value - low) / (high - low) * np.float32(out.size))
            cuda.atomic.add(out, min(at, out.size - 1), 1)


def _clamped(x: np.ndarray, low: float, high: float, out: np.ndarray) -> dict[int, np.ndarray]:
    counts = _range_counts(x, low, high, out.size).astype(np.float64)
    counts[0] += (x < low).sum()
    counts[-1] += (x > high).sum()
    return {3: np.where(np.isnan(x).any() & (np.arange(out.size) == 0), np.nan, counts)}


def _without_high(x: np.ndarray, low: float, high: float, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: _range_counts(x[x != high], low, high, out.size)}


# ----------------------------------------------------------------------------------------------------- histogram/match


def _match_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, x: np.ndarray, bins: int) -> Case:
        x = x.astype(np.int32)
        expected = np.bincount(x, minlength=bins).astype(np.int32)
        return Case(name, (x, np.zeros(bins, np.int32)), _blocks(x.size), BLOCK, {1: expected})

    return [
        case("one element", np.array([2]), 4),
        case("a warp, all equal", np.full(32, 3), 4),
        case("a warp, no two alike", np.arange(32)[::-1], 32),
        case("a block less one, all equal", np.full(BLOCK - 1, 5), 8),
        case("two blocks", rng.integers(0, 40, 2 * BLOCK), 40),
        case("a block and one, sorted", np.sort(rng.integers(0, 9, BLOCK + 1)), 9),
        case("n = 5000, of few values", rng.integers(0, 6, 5000), 6),
    ]


@cuda.jit
def match_answer(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else -1  # all lanes must take part
    same = cuda.match_any_sync(FULL_WARP, value)
    if value >= 0 and cuda.ffs(same) - 1 == cuda.laneid:
        cuda.atomic.add(out, value, cuda.popc(same))


def _match_budget(case: Case) -> dict[str, tuple[float, str]]:
    x = case.args[0]
    different = sum(np.unique(x[first : first + 32]).size for first in range(0, x.size, 32))
    leader = "Of the lanes of a warp that have one value, let the lowest add for all."
    return {"atomic_lanes": (different, leader), "atomic_requests": (different, leader)}


def _once_a_warp(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    firsts = [np.unique(x[first : first + 32]) for first in range(0, x.size, 32)]
    return {1: np.bincount(np.concatenate(firsts), minlength=out.size)}


def _by_every_lane(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    counts = [np.bincount(x[first : first + 32], minlength=out.size) ** 2 for first in range(0, x.size, 32)]
    return {1: np.sum(counts, axis=0)}


EXERCISES = (
    Exercise(
        "histogram/letters",
        task="Count the letters of a text, given as uint8, block by block: counts[block, 0] is how often a or A occurs "
        "among the block's bytes, counts[block, 1] how often b or B does, up to z. Nothing else counts. A row has "
        "26 int32, and nothing is written there at the beginning: let each block count in shared memory, and write its "
        f"row. The launch has {BLOCK} threads a block, and one for each byte.",
        parameters="text, counts",
        cases=_letters_cases,
        answer=letters_answer,
        hints=(
            "Three parts with a barrier between each two: clear the block's 26 counters, count, write them to counts.",
            "a to z are 97 to 122, and A to Z are 65 to 90: 32 less.",
            "Threads of a block meet in a counter, so they add by atomics. No other block writes this row.",
        ),
        traps=(
            Trap("case ignored", "A to Z, 65 to 90, count as well, each as its small letter.", _small_letters_only),
        ),
    ),
    Exercise(
        "histogram/range",
        task="out cuts the range from low to high into out.size bins of equal width. Add to each how many elements of "
        "the float32 vector x lie in it. A bin includes its lower edge; the last bin includes high, too. What is "
        "outside, infinite or NaN is not counted. out has int32, which are 0 at the beginning. The launch has "
        f"{BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, low, high, out",
        cases=_range_cases,
        # Here the subject is the edges: float64 is right as well.
        budget=lambda case: {"flops_f64": (math.inf, "")},
        answer=range_answer,
        hints=(
            "The share of the range that lies below the value, times the number of bins, cut off to an integer.",
            "int() of a NaN or an infinity is some number: test the value before, not the bin afterwards.",
            "For which value is the bin out.size, and where does that value belong?",
        ),
        traps=(
            Trap("clamped", "What is outside the range belongs to no bin, not to the first or the last.", _clamped),
            Trap(
                "upper edge lost",
                "A bin ends below its upper edge, but high itself belongs to the last bin.",
                _without_high,
            ),
        ),
    ),
    Exercise(
        "histogram/match",
        task="x has int32 from 0 to out.size - 1. Add to out how often each occurs, with one atomic for each value "
        "that a warp's 32 elements have, executed by one lane. cuda.match_any_sync(mask, value) gives a lane the mask "
        "of those lanes whose value is the same as its own. out has int32, which are 0 at the beginning. The launch "
        f"has {BLOCK} threads a block, and one thread or more for each element.",
        parameters="x, out",
        cases=_match_cases,
        budget=_match_budget,
        answer=match_answer,
        hints=(
            "All 32 lanes must call match_any_sync: a lane beyond the end brings a value that no element has.",
            "cuda.popc(mask) is the number of lanes in a mask: that is what the lowest of them adds.",
            "cuda.ffs(mask) - 1 is the lowest lane of a mask, and cuda.laneid is a lane's own number.",
        ),
        traps=(
            Trap("adds 1 for all", "The lane adds for all that have its value: how many are they?", _once_a_warp),
            Trap("added by every lane", "Each lane adds for the whole group: let the lowest do it.", _by_every_lane),
        ),
    ),
)
