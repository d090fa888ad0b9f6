"""Exercises of notebooks/85_compressed_activations.ipynb: rounding at random, and a bit for each number."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.random.generator import unit
from pmpp.kernels.random.ladder import reference_bits, word_of
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
FLOAT64 = "A literal such as 0.5 is a float64, and makes one of what it meets: write np.float32(0.5)."


# ------------------------------------------------------------------------------------------------- compression/round


def _numbers(n: int, seed: np.uint64) -> np.ndarray:
    return (reference_bits(n, int(seed), 0) >> 8) * 2.0**-24


def _rounded(x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return (np.floor(x) + (numbers < x - np.floor(x))).astype(np.int32)


def _round_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 5, 127, 128, 129, 1000):
        x = (rng.integers(-(2**14), 2**14, n) / 1024).astype(np.float32)  # whole, and far from whole
        x[: n // 8] = np.round(x[: n // 8])
        x[0] = -2.75
        seed = np.uint64(n + 11)
        args = x, seed, unwritten(n, np.int32)
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, {2: _rounded(x, _numbers(n, seed))}))
    return cases


@cuda.jit
def round_answer(x, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        below = cuda.libdevice.floorf(x[i])
        out[i] = np.int32(below) + np.int32(unit(word_of(seed, np.uint64(i))) < x[i] - below)


def _all_alike(x: np.ndarray, seed: np.uint64, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: _rounded(x, np.repeat(_numbers(1, seed), x.size))}


def _reversed(x: np.ndarray, seed: np.uint64, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: (np.floor(x) + (_numbers(x.size, seed) >= x - np.floor(x))).astype(np.int32)}


def _towards_zero(x: np.ndarray, seed: np.uint64, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: (np.trunc(x) + (_numbers(x.size, seed) < x - np.trunc(x))).astype(np.int32)}


# -------------------------------------------------------------------------------------------------- compression/signs


def _packed(bits: np.ndarray) -> np.ndarray:
    padded = np.zeros(blocks(bits.size, 32) * 32, np.bool_)
    padded[: bits.size] = bits
    return np.packbits(padded, bitorder="little").view(np.uint32)


def _signs_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 31, 32, 33, 128, 200, 1001):
        x = (rng.integers(-8, 9, n) / 4).astype(np.float32)  # of those above 0 some are less than 1
        x[0] = 1.5
        x[n // 2 :][:1] = 0 if n > 1 else 1.5
        args = x, unwritten(blocks(n, 32), np.uint32)
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, {1: _packed(x > 0)}))
    return cases


@cuda.jit
def signs_answer(x, words):
    i, positive = cuda.grid(1), False
    if i < x.size:
        positive = x[i] > np.float32(0)
    votes = cuda.ballot_sync(FULL_WARP, positive)
    if i < x.size and cuda.laneid == 0:
        words[i // 32] = votes


def _first_on_top(x: np.ndarray, words: np.ndarray) -> dict[int, np.ndarray]:
    padded = np.zeros(words.size * 32, np.bool_)
    padded[: x.size] = x > 0
    return {1: _packed(padded.reshape(-1, 32)[:, ::-1].reshape(-1))}


EXERCISES = (
    Exercise(
        "compression/round",
        task="Round numbers at random, so that their expectation stays. out[i] is x[i] rounded up where "
        "unit(word_of(seed, np.uint64(i))) is less than x[i] - floor(x[i]), and else rounded down. x is float32, "
        f"negative numbers among it, seed a uint64, and out int32. The launch has {BLOCK} threads a block, one for "
        "each element.",
        parameters="x, seed, out",
        cases=_round_cases,
        answer=round_answer,
        hints=(
            "cuda.libdevice.floorf gives the whole number below a float32.",
            "What is the number below -2.75, and how far is it?",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap(
                "to the nearest",
                "That is the nearest whole number: 0.25 would always be 0, and its expectation has to be 0.25.",
                lambda x, seed, out: {2: np.rint(x).astype(np.int32)},
            ),
            Trap(
                "always down",
                "Add one where the random number is less than the rest.",
                lambda x, seed, out: {2: np.floor(x).astype(np.int32)},
            ),
            Trap("up and down exchanged", "A rest of 0.9 has to go up nine times of ten.", _reversed),
            Trap("towards zero", "The whole number below -2.75 is -3: np.int32() cuts off instead.", _towards_zero),
            Trap("one number for all", "Each element draws its own number: word_of(seed, np.uint64(i)).", _all_alike),
        ),
    ),
    Exercise(
        "compression/signs",
        task="Keep a bit for each number: bit i % 32 of words[i // 32] is 1 where x[i] > 0, and else 0. Bits behind "
        f"the end of x are 0. x is float32 (n,), words uint32 (ceil(n / 32),). The launch has {BLOCK} threads a block, "
        "one for each element, and each word is stored once.",
        parameters="x, words",
        cases=_signs_cases,
        answer=signs_answer,
        hints=(
            "cuda.ballot_sync(0xFFFFFFFF, flag) gives every lane a word in which bit k is the flag of lane k.",
            "All lanes of the warp must vote, those behind the end of x, too.",
        ),
        budget=lambda case: {
            "flops_f64": (0, FLOAT64),
            "atomic_requests": (0, "A vote of the warp makes the word, without atomic operations."),
            "global_store_requests": (case.args[1].size, "One lane stores the word of its warp."),
        },
        traps=(
            Trap("0 counts", "0 is not positive.", lambda x, words: {1: _packed(x >= 0)}),
            Trap("negative ones", "The bit is 1 where the number is positive.", lambda x, words: {1: _packed(x < 0)}),
            Trap("first on top", "Element 0 of a word is its lowest bit.", _first_on_top),
        ),
    ),
)
