"""Exercises of notebooks/80_random_numbers.ipynb on dropout: whole channels, and a residual connection."""

from __future__ import annotations

import functools

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.random.generator import unit
from pmpp.kernels.random.ladder import reference_bits, word_of
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
FLOAT64 = "A literal such as 1.0 is float64, and makes a float64 of what it meets: write np.float32(1)."
P, MANY = np.float32(0.375), 8  # 1 / (1 - p) is 1.6, rounded once
AT_P = "A number that equals p is kept: compare with >=."


def _numbers(n: int, seed: np.uint64) -> np.ndarray:
    return (reference_bits(n, int(seed), 0) >> 8) * 2.0**-24


def _share(n: int, seed: np.uint64) -> np.float32:
    """What to drop: of many elements a share that one of them draws exactly, so that it shows who is kept at p."""
    numbers = _numbers(n, seed)
    return P if n < MANY else np.float32(numbers[np.abs(numbers - float(P)).argmin()])


# ---------------------------------------------------------------------------------------------------- dropout/channels


def _channels(x: np.ndarray, p: np.float32, seed: np.uint64, out: np.ndarray, *, at_p=True) -> dict[int, np.ndarray]:
    numbers = _numbers(len(x), seed)
    keep = numbers >= p if at_p else numbers > p
    return {3: np.where(keep[:, None], x.astype(np.float64) / (1 - float(p)), 0)}


def _channels_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for planes, inner in ((1, 5), (3, 7), (8, 16), (9, 49), (40, 130)):
        x = rng.standard_normal((planes, inner), dtype=np.float32)
        seed = np.uint64(planes + 3)
        args = x, _share(planes, seed), seed, unwritten(x.shape, np.float32)
        expected = _channels(*args)
        # A scale and a product, or a quotient, rounded once each.
        allowed = {3: 8 * 2.0**-24 * np.abs(x)}
        cases.append(Case(f"{planes} channels of {inner}", args, blocks(x.size, BLOCK), BLOCK, expected, allowed))
    return cases


@cuda.jit
def channels_answer(x, p, seed, out):
    i = cuda.grid(1)
    if i < x.size:
        channel, place = i // x.shape[1], i % x.shape[1]
        keep = unit(word_of(seed, np.uint64(channel))) >= p
        out[channel, place] = x[channel, place] / (np.float32(1) - p) if keep else np.float32(0)


def _elements(x: np.ndarray, p: np.float32, seed: np.uint64, out: np.ndarray) -> dict[int, np.ndarray]:
    keep = _numbers(x.size, seed).reshape(x.shape) >= p
    return {3: np.where(keep, x.astype(np.float64) / (1 - float(p)), 0)}


def _unscaled_channels(x: np.ndarray, p: np.float32, seed: np.uint64, out: np.ndarray) -> dict[int, np.ndarray]:
    return {3: _channels(x, p, seed, out)[3] * (1 - float(p))}


# ---------------------------------------------------------------------------------------------------- dropout/residual


def _residual(x: np.ndarray, skip: np.ndarray, p: np.float32, seed: np.uint64, out: np.ndarray, *, at_p=True) -> dict:
    numbers = _numbers(x.size, seed)
    keep = numbers >= p if at_p else numbers > p
    return {4: skip + np.where(keep, x.astype(np.float64) / (1 - float(p)), 0)}


def _residual_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, 5, 127, 128, 129, 1000):
        x, skip = rng.standard_normal((2, n), dtype=np.float32)
        seed = np.uint64(n + 7)
        args = x, skip, _share(n, seed), seed, unwritten(n, np.float32)
        allowed = {4: 4 * 2.0**-24 * (np.abs(skip) + 2 * np.abs(x))}  # a scale, a product and a sum
        cases.append(Case(f"n = {n}", args, blocks(n, BLOCK), BLOCK, _residual(*args), allowed))
    return cases


@cuda.jit
def residual_answer(x, skip, p, seed, out):
    i = cuda.grid(1)
    if i < out.size:
        value = skip[i]
        if unit(word_of(seed, np.uint64(i))) >= p:
            value += x[i] / (np.float32(1) - p)
        out[i] = value


def _all_dropped(x: np.ndarray, skip: np.ndarray, p: np.float32, seed: np.uint64, out: np.ndarray) -> dict:
    keep = _numbers(x.size, seed) >= p
    return {4: np.where(keep, (x + skip).astype(np.float64) / (1 - float(p)), 0)}


def _unscaled(x: np.ndarray, skip: np.ndarray, p: np.float32, seed: np.uint64, out: np.ndarray) -> dict:
    return {4: skip + np.where(_numbers(x.size, seed) >= p, x.astype(np.float64), 0)}


EXERCISES = (
    Exercise(
        "dropout/channels",
        task="Drop whole channels, as networks with convolutions do: neighbours in an image are alike, and one of them "
        "tells what the other was. x has a channel in each row. Row c is kept where unit(word_of(seed, np.uint64(c))) "
        ">= p, and then divided by 1 - p; else it is 0. x and out have shape (channels, elements), float32, p is a "
        f"float32 and seed a uint64. The launch has {BLOCK} threads a block, one for each element.",
        parameters="x, p, seed, out",
        cases=_channels_cases,
        answer=channels_answer,
        hints=(
            "All elements of a row need the same number. Nothing has to be shared for that: who draws it?",
            "The row of element i is i // x.shape[1].",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("elements, not channels", "All elements of a row share one number, that of their row.", _elements),
            Trap("not scaled", "Divide what is kept by 1 - p, so that the mean stays.", _unscaled_channels),
            Trap("dropped at p", AT_P, functools.partial(_channels, at_p=False)),
        ),
    ),
    Exercise(
        "dropout/residual",
        task="Fuse dropout into the sum that follows it in a transformer: out[i] = skip[i] + d, where d is "
        "x[i] / (1 - p) if unit(word_of(seed, np.uint64(i))) >= p, and else 0. x, skip and out are vectors of float32, "
        f"p is a float32 and seed a uint64. The launch has {BLOCK} threads a block, one for each element.",
        parameters="x, skip, p, seed, out",
        cases=_residual_cases,
        answer=residual_answer,
        hints=("Twelve bytes an element. How many are they with two kernels?", "Is skip ever dropped?"),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("the sum is dropped", "Only x is dropped: skip passes in any case.", _all_dropped),
            Trap("not scaled", "Divide what is kept by 1 - p, so that the mean stays.", _unscaled),
            Trap("dropped at p", AT_P, functools.partial(_residual, at_p=False)),
        ),
    ),
)
