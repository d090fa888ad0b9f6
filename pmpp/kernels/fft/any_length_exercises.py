"""Exercises of notebooks/60_fft_of_any_length.ipynb: a pass of radix 3, digits in order, a line times its chirp."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128


def _noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def _roots(n: int) -> np.ndarray:
    return np.exp(-2j * np.pi * np.arange(n) / n).astype(np.complex64)


# --------------------------------------------------------------------------------------------------- any_length/thirds


@cuda.jit
def thirds_answer(x, roots, out):
    t, m = cuda.grid(1), x.size // 3
    if t < m:
        a, b, c = x[t], x[t + m], x[t + 2 * m]
        w, w2 = roots[m], roots[2 * m]  # the third roots of unity
        out[t] = a + b + c
        out[t + m] = (a + b * w + c * w2) * roots[t]
        out[t + 2 * m] = (a + b * w2 + c * w) * roots[2 * t]


def _thirds(x: np.ndarray, sign: int = -1, times: int = 1) -> np.ndarray:
    """The pass in complex128: transforms of three, and result k of butterfly t times root ``times`` t k of n."""
    m, k = x.size // 3, np.arange(3)
    butterflies = np.exp(sign * 2j * np.pi * np.outer(k, k) / 3) @ x.astype(np.complex128).reshape(3, m)
    return (butterflies * np.exp(-2j * np.pi * times * np.outer(k, np.arange(m)) / x.size)).reshape(-1)


def _thirds_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (3, 6, 15, 99, 384, 387, 3000):
        x = _noise(rng, n)
        # Each part of a result: three products of two terms, their sum, and a product more, of rounded roots.
        size = np.abs(x.reshape(3, -1)).sum(axis=0)
        tolerance = 16 * 2.0**-24 * np.tile(size, 3)
        args = x, _roots(n), unwritten(n, np.complex64)
        cases.append(Case(f"n = {n}", args, blocks(n // 3, BLOCK), BLOCK, {2: _thirds(x)}, {2: tolerance}))
    return cases


def _thirds_not_turned(x, roots, out):
    return {2: _thirds(x, times=0)}


def _thirds_other_way(x, roots, out):
    return {2: _thirds(x, sign=1)}


def _thirds_neighbours(x, roots, out):
    m = x.size // 3
    turned = _thirds(np.ascontiguousarray(x.reshape(m, 3).T).reshape(-1))
    return {2: np.ascontiguousarray(turned.reshape(3, m).T).reshape(-1)}


def _thirds_one_turn(x, roots, out):
    """Results 1 and 2 turned by the same root."""
    m, right = x.size // 3, _thirds(x, times=0).reshape(3, -1)
    return {2: (right * np.exp(-2j * np.pi * np.array([[0], [1], [1]]) * np.arange(m) / x.size)).reshape(-1)}


def _thirds_turned_first(x, roots, out):
    """Point j of butterfly t turned by root t j, and result k not turned."""
    m = x.size // 3
    turned = x.reshape(3, m) * np.exp(-2j * np.pi * np.outer(np.arange(3), np.arange(m)) / x.size)
    return {2: _thirds(turned.reshape(-1), times=0)}


def _thirds_turned_back(x, roots, out):
    return {2: _thirds(x, times=-1)}


def _thirds_side_by_side(x, roots, out):
    return {2: np.ascontiguousarray(_thirds(x).reshape(3, -1).T).reshape(-1)}


# --------------------------------------------------------------------------------------------------- any_length/digits


@cuda.jit
def digits_answer(x, a, b, c, out):
    i = cuda.grid(1)
    if i < out.size:
        k1, k2, k3 = i % a, i // a % b, i // (a * b)
        out[i] = x[(k1 * b + k2) * c + k3]


def _digits(x: np.ndarray, a: int, b: int, c: int) -> np.ndarray:
    return x.reshape(a, b, c).transpose(2, 1, 0).reshape(-1)


def _digits_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for a, b, c in ((2, 3, 1), (2, 3, 5), (4, 4, 8), (7, 11, 13), (16, 5, 6), (10, 10, 10)):
        x = _noise(rng, a * b * c)
        args = x, a, b, c, unwritten(x.size, np.complex64)
        cases.append(Case(f"{a} x {b} x {c}", args, blocks(x.size, BLOCK), BLOCK, {4: _digits(x, a, b, c)}))
    return cases


def _digits_kept(x, a, b, c, out):
    return {4: x}


def _digits_back(x, a, b, c, out):
    return {4: x.reshape(c, b, a).transpose(2, 1, 0).reshape(-1)}


def _digits_outer(x, a, b, c, out):
    return {4: x.reshape(a, b, c).transpose(2, 0, 1).reshape(-1)}


def _digits_pairs(x, a, b, c, out):
    return {4: x.reshape(a, b, c).transpose(1, 0, 2).reshape(-1)}


def _digits_first_only(x, a, b, c, out):
    return {4: x.reshape(a, b, c).transpose(1, 2, 0).reshape(-1)}


# ---------------------------------------------------------------------------------------------------- any_length/chirp


@cuda.jit
def chirp_answer(x, turns, out):
    i = cuda.grid(1)
    if i < out.size:
        m, n = out.shape[1], x.shape[1]
        line, j = i // m, i % m
        out[line, j] = x[line, j] * turns[j * j % (2 * n)] if j < n else np.complex64(0)


def _chirped(x: np.ndarray, m: int, power: np.ndarray) -> np.ndarray:
    """Lines of m points: those of x, turned by exp(-pi i power / n), and zeros."""
    lines, n = x.shape
    out = np.zeros((lines, m), np.complex128)
    out[:, :n] = x * np.exp(-1j * np.pi * power / n)
    return out


def _chirp_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for lines, n, m in ((1, 1, 2), (2, 3, 5), (3, 7, 16), (1, 64, 128), (5, 31, 64), (4, 100, 203)):
        x, j = _noise(rng, lines, n), np.arange(n)
        turns = np.exp(-1j * np.pi * np.arange(2 * n) / n).astype(np.complex64)
        expected = _chirped(x, m, j * j % (2 * n))
        args = x, turns, unwritten((lines, m), np.complex64)
        # A product of two terms a part, with a rounded root.
        tolerance = 4 * 2.0**-24 * np.abs(expected)
        grid = blocks(lines * m, BLOCK)
        cases.append(Case(f"{lines} of {n} points", args, grid, BLOCK, {2: expected}, {2: tolerance}))
    return cases


def _chirp_with(power):
    """``power(j, n)`` instead of j^2."""

    def wrong(x, turns, out):
        j, n = np.arange(x.shape[1]), x.shape[1]
        return {2: _chirped(x, out.shape[1], power(j, n))}

    return wrong


def _chirp_repeated(x, turns, out):
    n, m = x.shape[1], out.shape[1]
    j = np.arange(m) % n
    return {2: x[:, j] * np.exp(-1j * np.pi * (j * j % (2 * n)) / n)}


def _chirp_not_turned(x, turns, out):
    return {2: _chirped(x, out.shape[1], np.zeros(x.shape[1]))}


EXERCISES = (
    Exercise(
        "any_length/thirds",
        task="Write the first pass of radix 3. With m = x.size / 3, thread t takes a = x[t], b = x[t + m] and "
        "c = x[t + 2 m]. Of these it makes the transform of three points: result k is a + b w^k + c w^(2 k), with "
        "w = exp(-2 pi i / 3). Result k goes to out[t + k m], times exp(-2 pi i t k / n). roots[k] is "
        f"exp(-2 pi i k / n) for all n = x.size points. The launch has {BLOCK} threads a block.",
        parameters="x, roots, out",
        cases=_thirds_cases,
        answer=thirds_answer,
        hints=(
            "n is 3 m. So w is roots[m], and w^2 is roots[2 m].",
            "w^4 is w, since w^3 is 1.",
            "For t below m the indices t and 2 t are below n: no remainder is needed.",
        ),
        traps=(
            Trap("not turned", "Result k is to be turned by exp(-2 pi i t k / n), too.", _thirds_not_turned),
            Trap("turned the other way", "These are the transforms with exp(+2 pi i / 3).", _thirds_other_way),
            Trap("neighbours", "A butterfly takes points that lie m apart, and no neighbours.", _thirds_neighbours),
            Trap("one turn for both", "Result 2 is turned by twice the angle of result 1.", _thirds_one_turn),
            Trap("turned first", "The results are to be turned, and not the points.", _thirds_turned_first),
            Trap(
                "turned back", "The results are turned by exp(+2 pi i t k / n): the sign is minus.", _thirds_turned_back
            ),
            Trap("side by side", "The results of a butterfly go to places m apart.", _thirds_side_by_side),
        ),
    ),
    Exercise(
        "any_length/digits",
        task="After passes of the radices a, b and c in place, result k1 + a k2 + a b k3 lies at place "
        "k1 b c + k2 c + k3 of x, where k1 < a, k2 < b and k3 < c. Put all results in order into out. "
        f"The launch has {BLOCK} threads a block, and at least a thread for each result.",
        parameters="x, a, b, c, out",
        cases=_digits_cases,
        answer=digits_answer,
        hints=(
            "Start with a result's number i. Its lowest digit is i % a.",
            "i // a is k2 + b k3.",
        ),
        # Either the loads or the stores scatter, whichever way it is written.
        budget=lambda case: dict.fromkeys(("global_load_sectors", "global_store_sectors"), (float("inf"), "")),
        traps=(
            Trap("not moved", "These are all results, in the order of x.", _digits_kept),
            Trap("the other way round", "This puts results in order into reversed digits.", _digits_back),
            Trap("two digits in one", "Digits k1 and k2 are to change places, too.", _digits_outer),
            Trap("two digits only", "The last digit, k3, is to become the highest.", _digits_pairs),
            Trap("one digit only", "Digits k2 and k3 are to change places, too.", _digits_first_only),
        ),
    ),
    Exercise(
        "any_length/chirp",
        task="Begin Bluestein's algorithm. x has lines of n points, and out has lines of m >= n points. Point j of a "
        "line becomes x[line, j] exp(-pi i j^2 / n) for j < n, and 0 from there on. turns[k] is exp(-pi i k / n) for "
        f"k < 2 n. The launch has {BLOCK} threads a block, and at least a thread for each point of out.",
        parameters="x, turns, out",
        cases=_chirp_cases,
        answer=chirp_answer,
        hints=(
            "The angle repeats after a whole turn, which is k = 2 n.",
            "Divide the thread's number by m, the length of a line of out, and not by n.",
        ),
        traps=(
            Trap(
                "half a turn",
                "j^2 counts modulo 2 n: after n the sign is the other.",
                _chirp_with(lambda j, n: j * j % n),
            ),
            Trap("j without its square", "The chirp has the square of j.", _chirp_with(lambda j, n: j)),
            Trap(
                "twice the angle", "The angle is pi j^2 / n, and not twice that.", _chirp_with(lambda j, n: 2 * j * j)
            ),
            Trap("turned the other way", "The sign of the angle is wrong.", _chirp_with(lambda j, n: -(j * j))),
            Trap("not turned", "The points are to be turned by the chirp.", _chirp_not_turned),
            Trap("repeated", "From n on there are zeros, and not the line once more.", _chirp_repeated),
        ),
    ),
)
