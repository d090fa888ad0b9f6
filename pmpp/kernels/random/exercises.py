"""Exercises of notebooks/80_random_numbers.ipynb on random numbers: dice, and waiting times."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.random.generator import unit
from pmpp.kernels.random.ladder import reference_bits, word_of
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
SIZES = ((1, 6), (127, 6), (128, 10), (129, 1000), (700, 2**31))
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."


# --------------------------------------------------------------------------------------------------------- random/dice


def _dice_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for size, faces in SIZES:
        seed = int(rng.integers(2**63))
        args = np.uint64(seed), np.uint32(faces), unwritten(size, np.uint32)
        expected = (reference_bits(size, seed, 0).astype(np.uint64) * np.uint64(faces)) >> np.uint64(32)
        name = f"{size} throws of {faces} faces"
        cases.append(Case(name, args, blocks(size, BLOCK), BLOCK, {2: expected.astype(np.uint32)}))
    return cases


@cuda.jit
def dice_answer(seed, faces, out):
    i = cuda.grid(1)
    if i < out.size:
        bits = word_of(seed, np.uint64(i))
        out[i] = np.uint64(bits) * np.uint64(faces) >> np.uint64(32)


def _remainder(seed: np.uint64, faces: np.uint32, out: np.ndarray) -> dict[int, np.ndarray]:
    return {2: reference_bits(out.size, int(seed), 0) % faces}


def _from_one(seed: np.uint64, faces: np.uint32, out: np.ndarray) -> dict[int, np.ndarray]:
    bits = reference_bits(out.size, int(seed), 0).astype(np.uint64)
    return {2: ((bits * np.uint64(faces)) >> np.uint64(32)).astype(np.uint32) + np.uint32(1)}


# ------------------------------------------------------------------------------------------------------ random/waiting


def _waiting_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for size, _ in SIZES:
        # Less than 1 or more, and not near it, where a factor and its inverse are alike.
        mean, seed = np.float32(rng.choice([0.5, 2]) * rng.uniform(1.2, 1.6)), int(rng.integers(2**63))
        u = (reference_bits(size, seed, 0) >> 8) * 2.0**-24
        expected = -float(mean) * np.log1p(-u)
        # 1 - u is exact, log is good to 2 ulp, and a product follows.
        args = np.uint64(seed), mean, unwritten(size, np.float32)
        allowed = {2: 8 * 2.0**-24 * np.maximum(np.abs(expected), 4 * float(mean))}
        cases.append(Case(f"n = {size}", args, blocks(size, BLOCK), BLOCK, {2: expected}, allowed))
    return cases


@cuda.jit
def waiting_answer(seed, mean, out):
    i = cuda.grid(1)
    if i < out.size:
        u = unit(word_of(seed, np.uint64(i)))
        out[i] = -mean * math.log(np.float32(1) - u)


def _log_of_u(seed: np.uint64, mean: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    with np.errstate(divide="ignore"):
        return {2: -float(mean) * np.log((reference_bits(out.size, int(seed), 0) >> 8) * 2.0**-24)}


def _rate_for_mean(seed: np.uint64, mean: np.float32, out: np.ndarray) -> dict[int, np.ndarray]:
    u = (reference_bits(out.size, int(seed), 0) >> 8) * 2.0**-24
    return {2: -np.log1p(-u) / float(mean)}


EXERCISES = (
    Exercise(
        "random/dice",
        task="Throw dice: out[i] is a whole number from 0 to faces - 1, each as likely as its neighbours, as far as 32 "
        "bits allow. Take the upper 32 bits of the product of faces and of the 32 bits of number i: "
        "word_of(seed, np.uint64(i)), of pmpp.kernels.random. seed is a uint64, faces a uint32, out a vector of "
        f"uint32. The launch has {BLOCK} threads a block, one for each element.",
        parameters="seed, faces, out",
        cases=_dice_cases,
        answer=dice_answer,
        hints=(
            "A product of two numbers of 32 bits has 64. Convert before you multiply.",
            "A shift to the right by 32 leaves the upper half.",
        ),
        traps=(
            Trap("remainder", "bits % faces uses the lowest bits, and divides. Multiply and keep the top.", _remainder),
            Trap("from 1", "The faces are numbered from 0.", _from_one),
        ),
    ),
    Exercise(
        "random/waiting",
        task="Draw waiting times of a given mean: out[i] = -mean * log(1 - u) with the uniform number u of element i, "
        "unit(word_of(seed, np.uint64(i))). Both functions are those of pmpp.kernels.random. seed is a uint64, mean a "
        f"float32, out a vector of float32. The launch has {BLOCK} threads a block, one for each element.",
        parameters="seed, mean, out",
        cases=_waiting_cases,
        answer=waiting_answer,
        hints=(
            "Why 1 - u and not u? Which of the two can be 0?",
            "math.log of a float32 is a float32, if nothing else in the expression is a float64.",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("log of u", "u can be 0, and its logarithm is infinite: take 1 - u, which cannot.", _log_of_u),
            Trap("divided by the mean", "The mean is a factor: a longer mean makes longer times.", _rate_for_mean),
        ),
    ),
)
