"""Exercises of notebooks/58_fft.ipynb: one stage, a line in shared memory, two real signals in one transform."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128
LONGEST = 1024  # points of a line in shared memory


def _noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


def _roots(n: int) -> np.ndarray:
    return np.exp(-2j * np.pi * np.arange(n) / n).astype(np.complex64)


# ----------------------------------------------------------------------------------------------------------- fft/stage


@cuda.jit
def stage_answer(x, roots, s, out):
    t = cuda.grid(1)
    half = x.size // 2
    if t < half:
        j = t % s
        a, b = x[t], x[t + half] * roots[j * (half // s)]
        out[2 * t - j] = a + b
        out[2 * t - j + s] = a - b


def _stage(x: np.ndarray, s: int) -> np.ndarray:
    """One stage in complex128: spectra of s points become spectra of 2 s points."""
    n = x.size
    halves = x.astype(np.complex128).reshape(2, n // (2 * s), s)
    odd = halves[1] * np.exp(-1j * np.pi * np.arange(s) / s)
    return np.stack([halves[0] + odd, halves[0] - odd], axis=1).reshape(n)


def _stage_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n, s in ((2, 1), (8, 1), (8, 4), (64, 8), (256, 2), (1024, 512), (4096, 16)):
        x = _noise(rng, n)
        # A product and a sum: each part is off by at most three roundings of numbers of their size.
        size = np.abs(x[: n // 2]) + np.abs(x[n // 2 :])
        tolerance = 8 * 2.0**-24 * np.full(n, size.max())
        args = x, _roots(n), s, unwritten(n, np.complex64)
        cases.append(Case(f"n = {n}, s = {s}", args, blocks(n // 2, BLOCK), BLOCK, {3: _stage(x, s)}, {3: tolerance}))
    return cases


def _not_turned(x, roots, s, out):
    halves = x.reshape(2, x.size // (2 * s), s)
    return {3: np.stack([halves[0] + halves[1], halves[0] - halves[1]], axis=1).reshape(x.size)}


def _with_factors(x, s, factors):
    """A stage that turns the j-th of a pair's second numbers by factors[j]."""
    halves = x.astype(np.complex128).reshape(2, x.size // (2 * s), s)
    odd = halves[1] * factors
    return {3: np.stack([halves[0] + odd, halves[0] - odd], axis=1).reshape(x.size)}


def _root_j(x, roots, s, out):
    return _with_factors(x, s, roots[:s])


def _twice(x, roots, s, out):
    return _with_factors(x, s, np.exp(-2j * np.pi * np.arange(s) / s))


def _other_way(x, roots, s, out):
    return _with_factors(x, s, np.exp(1j * np.pi * np.arange(s) / s))


def _difference_not_turned(x, roots, s, out):
    halves = x.astype(np.complex128).reshape(2, x.size // (2 * s), s)
    anything = np.full_like(halves[0], np.nan)
    return {3: np.stack([anything, halves[0] - halves[1]], axis=1).reshape(x.size)}


def _sum_not_turned(x, roots, s, out):
    halves = x.astype(np.complex128).reshape(2, x.size // (2 * s), s)
    anything = np.full_like(halves[0], np.nan)
    return {3: np.stack([halves[0] + halves[1], anything], axis=1).reshape(x.size)}


def _in_place(x, roots, s, out):
    return {3: _stage(x, s).reshape(x.size // (2 * s), 2, s).swapaxes(0, 1).reshape(x.size)}


# ------------------------------------------------------------------------------------------------------------ fft/line


@cuda.jit
def line_answer(x, roots, out):
    points = cuda.shared.array(LONGEST, np.complex64)
    t, n, half = cuda.threadIdx.x, x.shape[1], cuda.blockDim.x
    a, b = x[cuda.blockIdx.x, t], x[cuda.blockIdx.x, t + half]
    s = 1
    while s < n:
        j = t % s
        b = b * roots[j * (half // s)]
        points[2 * t - j], points[2 * t - j + s] = a + b, a - b
        cuda.syncthreads()
        a, b = points[t], points[t + half]
        cuda.syncthreads()
        s *= 2
    out[cuda.blockIdx.x, t], out[cuda.blockIdx.x, t + half] = a, b


def _line_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for lines, n in ((1, 2), (3, 8), (5, 64), (2, 256), (1, 1024), (4, 128)):
        x = _noise(rng, lines, n)
        exact = np.fft.fft(x.astype(np.complex128))
        # log2 n stages, each with a product and a sum: Higham, Accuracy and Stability, Theorem 24.2, in the 2-norm.
        tolerance = 8 * np.log2(n) * 2.0**-24 * np.linalg.norm(exact, axis=1, keepdims=True) * np.ones(n)
        args = x, _roots(n), unwritten((lines, n), np.complex64)
        cases.append(Case(f"{lines} of {n} points", args, lines, n // 2, {2: exact}, {2: tolerance}))
    return cases


def _line_budget(case: Case) -> dict[str, tuple[float, str]]:
    # Two parts of each point are two requests of its warp.
    points, longest = case.args[0].size, case.args[0].shape[1]
    stored = 2 * points / 32
    return {
        # A stage takes 5 a point. Four times that is far less than the definition, 8 n a point.
        "flops": (20 * points * math.log2(longest), "The log2 n stages take far less than the sum of the definition."),
        "global_store_requests": (1.5 * stored, "Store each point once: keep the stages in shared memory."),
        # Stages in place are right as well: the order of reversed bits has conflicts.
        "shared_load_wavefronts": (math.inf, ""),
        "shared_store_wavefronts": (math.inf, ""),
    }


def _backwards(x, roots, out):
    return {2: np.fft.ifft(x.astype(np.complex128), norm="forward").astype(np.complex64)}


def _order(n):
    """Numbers below n with their bits reversed."""
    width = n.bit_length() - 1
    return [int(f"{k:0{width}b}"[::-1], 2) for k in range(n)]


def _reversed_bits(x, roots, out):
    return {2: np.fft.fft(x.astype(np.complex128)).astype(np.complex64)[:, _order(x.shape[1])]}


def _input_in_order(x, roots, out):
    return {2: np.fft.fft(x.astype(np.complex128)[:, _order(x.shape[1])])}


def _stage_missing(x, roots, out):
    return {2: np.hstack([np.fft.fft(x[:, k::2].astype(np.complex128)) for k in (0, 1)])}


# ------------------------------------------------------------------------------------------------------------- fft/two


@cuda.jit
def two_answer(z, a, b):
    i = cuda.grid(1)
    if i < z.size:
        n = z.shape[1]
        line, k = i // n, i % n
        mirror = z[line, (n - k) % n].conjugate()
        p, q = z[line, k] + mirror, z[line, k] - mirror
        a[line, k] = complex(np.float32(0.5) * p.real, np.float32(0.5) * p.imag)
        b[line, k] = complex(np.float32(0.5) * q.imag, np.float32(-0.5) * q.real)


def _two_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for lines, n in ((1, 1), (1, 8), (3, 64), (5, 100), (16, 128)):
        x, y = rng.standard_normal((2, lines, n))
        z = np.fft.fft(x + 1j * y).astype(np.complex64)
        mirror = np.conj(np.roll(z[:, ::-1], 1, axis=1)).astype(np.complex128)
        tolerance = 2.0**-23 * (np.abs(z) + np.abs(mirror))  # one sum each, then an exact half
        results = {1: (z + mirror) / 2, 2: (z - mirror) / 2j}
        args = z, unwritten(z.shape, np.complex64), unwritten(z.shape, np.complex64)
        grid = blocks(z.size, BLOCK)
        cases.append(Case(f"{lines} of {n} points", args, grid, BLOCK, results, {1: tolerance, 2: tolerance}))
    return cases


def _parts(z, a, b):
    return {1: z.real.astype(np.complex64), 2: z.imag.astype(np.complex64)}


def _sum_and_difference(z):
    mirror = np.conj(np.roll(z[:, ::-1], 1, axis=1))
    return z + mirror, z - mirror


def _no_half(z, a, b):
    p, q = _sum_and_difference(z)
    return {1: p, 2: q / 1j}


def _not_divided_by_i(z, a, b):
    p, q = _sum_and_difference(z)
    return {1: p / 2, 2: q / 2}


def _times_i(z, a, b):
    p, q = _sum_and_difference(z)
    return {1: p / 2, 2: q / 2 * 1j}


def _exchanged(z, a, b):
    p, q = _sum_and_difference(z)
    return {1: q / 2j, 2: p / 2}


def _no_conjugate(z, a, b):
    mirror = np.roll(z[:, ::-1], 1, axis=1)
    return {1: (z + mirror) / 2, 2: (z - mirror) / 2j}


EXERCISES = (
    Exercise(
        "fft/stage",
        task="Write one of Stockham's stages. x holds spectra of s points each; pairs of them become spectra of 2 s "
        "points. With half = x.size / 2 and j = t % s, thread t takes x[t] and x[t + half] times exp(-pi i j / s), and "
        "writes their sum to out[2 t - j] and their difference s places further on. roots[k] is exp(-2 pi i k / n) for "
        f"all n = x.size points. The launch has {BLOCK} threads a block, one for each pair, and all are powers of two.",
        parameters="x, roots, s, out",
        cases=_stage_cases,
        answer=stage_answer,
        hints=(
            "exp(-pi i j / s) is exp(-2 pi i k / n) for k = j n / (2 s).",
            "There are n / 2 pairs: that is what the guard must ask for.",
            "A complex64 times a complex64 is a complex64. Load both before you store either.",
        ),
        traps=(
            Trap("not turned", "This leaves out the factor: the second number is to be turned by a root.", _not_turned),
            Trap("root number j", "roots[j] is exp(-2 pi i j / n), and exp(-pi i j / s) is asked for.", _root_j),
            Trap("twice the angle", "This turns by exp(-2 pi i j / s): half of that angle is asked for.", _twice),
            Trap("turned the other way", "This turns by exp(+pi i j / s): the sign of the angle is wrong.", _other_way),
            Trap(
                "difference not turned",
                "The second number is to be turned before it is subtracted.",
                _difference_not_turned,
            ),
            Trap("sum not turned", "The second number is to be turned before the sum, too.", _sum_not_turned),
            Trap("in place", "The results belong to places 2 t - j and 2 t - j + s, not to t and t + half.", _in_place),
        ),
    ),
    Exercise(
        "fft/line",
        task="Transform each row of x, n points of complex64, by all log2 n stages in shared memory. The launch has a "
        f"block for each row and n / 2 threads a block; n is a power of two from 2 to {LONGEST}. roots[k] is "
        "exp(-2 pi i k / n). Each point is loaded once and stored once.",
        parameters="x, roots, out",
        cases=_line_cases,
        answer=line_answer,
        hints=(
            "Keep the two points of thread t in two variables, and do a stage of fft/stage with them.",
            "The results go to shared memory. The next stage's points are there at t and t + n / 2.",
            "Two barriers a stage: before anyone reads what was written, and before anyone overwrites what is read.",
        ),
        budget=_line_budget,
        traps=(
            Trap("backwards", "This is the inverse transform, times n: check the sign of the angle.", _backwards),
            Trap("bits reversed", "All the numbers are right, in the order of their reversed bits.", _reversed_bits),
            Trap(
                "input not reversed",
                "Stages in place want their input in the order of reversed bits; Stockham's write elsewhere.",
                _input_in_order,
            ),
            Trap("last stage missing", "There are log2 n stages; the last one joins spectra of n / 2.", _stage_missing),
        ),
    ),
    Exercise(
        "fft/two",
        task="z holds the spectra of lines x + i y, where x and y are real: two signals in one transform. Take them "
        "apart: a is the spectrum of x, and b that of y. The spectrum of real numbers is its own mirror image, "
        f"A[n - k] = conj A[k]. The launch has {BLOCK} threads a block, and at least a thread for each element of z.",
        parameters="z, a, b",
        cases=_two_cases,
        answer=two_answer,
        hints=(
            "Z[k] = A[k] + i B[k]. What is conj Z[n - k], in terms of A[k] and B[k]?",
            "It is A[k] - i B[k]. Add the two, and subtract them.",
            "The mirror image of k = 0 is 0 itself, not n: (n - k) % n.",
        ),
        traps=(
            Trap("exchanged", "The spectrum of x, the real part, belongs into a, and that of y into b.", _exchanged),
            Trap("real and imaginary parts", "Those of a spectrum are not the spectra of those of a signal.", _parts),
            Trap("half forgotten", "The sum of the two is 2 A, and their difference 2 i B.", _no_half),
            Trap("not divided by i", "The difference of the two is 2 i B: divide it by i, too.", _not_divided_by_i),
            Trap("times i", "Dividing by i is multiplying by -i: this is -b.", _times_i),
            Trap("not conjugated", "The mirror image of the spectrum is to be conjugated, too.", _no_conjugate),
        ),
    ),
)
