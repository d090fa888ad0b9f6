"""Exercises of notebooks/61_fft_in_one_trip.ipynb: lines of four points, an exchange in two parts, columns turned."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128
EACH = 8  # points a thread of one_trip/parts
TILE = 32
PITCH = TILE + 1
WORDS = BLOCK * EACH * 33 // 32  # the real parts of a block's points, with a word of padding after each 32


def _noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


# ------------------------------------------------------------------------------------------------------ one_trip/fours


@cuda.jit
def fours_answer(x, out):
    i = cuda.grid(1)
    if i < x.shape[0]:
        a, b, c, d = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
        s, t, u, v = a + c, a - c, b + d, b - d
        v = complex(v.imag, -v.real)  # times -i
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = s + u, t + v, s - u, t - v


def _fours(x: np.ndarray, sign: int = -1) -> np.ndarray:
    k = np.arange(4)
    return x.astype(np.complex128) @ np.exp(sign * 2j * np.pi * np.outer(k, k) / 4)


def _fours_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for lines in (1, 3, BLOCK, BLOCK + 1, 1000):
        x = _noise(rng, lines, 4)
        # Two sums a result; each part of a point goes into it once.
        tolerance = 2 * 2.0**-24 * np.broadcast_to(np.abs(x).sum(1, keepdims=True), x.shape)
        args = x, unwritten(x.shape, np.complex64)
        name = f"{lines} line{'s' * (lines > 1)}"
        cases.append(Case(name, args, blocks(lines, BLOCK), BLOCK, {1: _fours(x)}, {1: tolerance}))
    return cases


def _fours_budget(case: Case) -> dict[str, tuple[float, str]]:
    """Each point twice, since a compiler keeps what an expression names again, if nothing is stored in between."""
    lines = len(case.args[0])
    advice = "Load the four points of a line into variables, once, and make all four results of these."
    return {"flops": (math.inf, ""), "global_load_requests": (2 * 4 * blocks(lines, 32), advice)}


def _fours_other_way(x, out):
    return {1: _fours(x, sign=1)}


def _fours_out_of_order(x, out):
    return {1: _fours(x)[:, [0, 2, 1, 3]]}


def _fours_of_a_column(x, out):
    return {1: _fours(np.ascontiguousarray(x.reshape(4, -1).T)).reshape(out.shape)}


def _fours_divided(x, out):
    return {1: _fours(x) / 4}


def _fours_not_turned(x, out):
    """The difference of the odd points without its factor -i."""
    a, b, c, d = x.astype(np.complex128).T
    return {1: np.stack([a + b + c + d, a - c + (b - d), a - b + c - d, a - c - (b - d)], 1)}


# ------------------------------------------------------------------------------------------------------ one_trip/parts


@cuda.jit
def parts_answer(x, out):
    points = cuda.shared.array(WORDS, np.float32)
    v, w = cuda.local.array(EACH, np.complex64), cuda.local.array(EACH, np.float32)
    block, t = cuda.blockIdx.x, cuda.threadIdx.x
    for k in range(EACH):
        v[k] = x[block, BLOCK * k + t]
        place = EACH * t + k
        points[place + place // 32] = v[k].real
    cuda.syncthreads()
    for k in range(EACH):
        place = BLOCK * k + t
        w[k] = points[place + place // 32]
    cuda.syncthreads()
    for k in range(EACH):
        place = EACH * t + k
        points[place + place // 32] = v[k].imag
    cuda.syncthreads()
    for k in range(EACH):
        place = BLOCK * k + t
        out[block, place] = complex(w[k], points[place + place // 32])


def _parts(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, EACH, BLOCK).transpose(0, 2, 1).reshape(x.shape)


def _parts_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for lines in (1, 2, 5):
        x = _noise(rng, lines, BLOCK * EACH)
        args = x, unwritten(x.shape, np.complex64)
        cases.append(Case(f"{lines} line{'s' * (lines > 1)}", args, lines, BLOCK, {1: _parts(x)}))
    return cases


def _parts_budget(case: Case) -> dict[str, tuple[float, str]]:
    most = 4 * BLOCK * EACH * 9 // 8
    advice = "A block has room for the real parts of its points with some padding: send the imaginary parts after them."
    return {"declared_shared_bytes": (most, advice)}


def _parts_not_moved(x, out):
    return {1: x}


def _parts_back(x, out):
    return {1: x.reshape(-1, BLOCK, EACH).transpose(0, 2, 1).reshape(x.shape)}


def _parts_real_twice(x, out):
    return {1: _parts(x.real + 1j * x.real).astype(np.complex64)}


def _parts_imaginary_stays(x, out):
    return {1: (_parts(x).real + 1j * x.imag).astype(np.complex64)}


def _parts_swapped(x, out):
    return {1: _parts(x.imag + 1j * x.real).astype(np.complex64)}


# ------------------------------------------------------------------------------------------------------- one_trip/turn


@cuda.jit
def turn_answer(x, roots, out):
    tile = cuda.shared.array((TILE, PITCH), np.complex64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    k, j = top + ty, left + tx
    if k < x.shape[0] and j < x.shape[1]:
        tile[ty, tx] = x[k, j] * roots[j * k]
    cuda.syncthreads()
    k, j = top + tx, left + ty
    if k < x.shape[0] and j < x.shape[1]:
        out[j, k] = tile[tx, ty]


def _turned(x: np.ndarray, power=lambda k, j: k * j) -> np.ndarray:
    """The matrix on its side in complex128, its element (k, j) times root number ``power(k, j)``."""
    k, j = np.ogrid[: x.shape[0], : x.shape[1]]
    return (x * np.exp(-2j * np.pi * power(k, j) / x.size)).T


def _turn_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for a, b in ((1, 1), (4, 8), (33, 7), (64, 32), (32, 96), (65, 100)):
        x = _noise(rng, a, b)
        roots = np.exp(-2j * np.pi * np.arange(a * b) / (a * b)).astype(np.complex64)
        # A product of two terms a part, with a rounded root.
        expected, tolerance = _turned(x), 4 * 2.0**-24 * np.abs(x.T)
        grid = blocks(b, TILE), blocks(a, TILE)
        args = x, roots, unwritten((b, a), np.complex64)
        cases.append(Case(f"{a} x {b} results", args, grid, (TILE, TILE), {2: expected}, {2: tolerance}))
    return cases


def _turn_with(power):
    def wrong(x, roots, out):
        return {2: _turned(x, power)}

    return wrong


def _turn_upright(x, roots, out):
    return {2: np.ascontiguousarray(_turned(x).T).reshape(out.shape)}


EXERCISES = (
    Exercise(
        "one_trip/fours",
        task="x has lines of four points. Thread i loads each point of line i once and transforms the line in "
        "registers: result k is the sum of x[i, j] exp(-2 pi i j k / 4) over all j. The launch has "
        f"{BLOCK} threads a block.",
        parameters="x, out",
        cases=_fours_cases,
        answer=fours_answer,
        budget=_fours_budget,
        hints=(
            "The fourth roots of unity are 1, -i, -1 and i: no multiplication is needed.",
            "Take sums and differences of points 0 and 2, and of points 1 and 3.",
            "-i z is complex(z.imag, -z.real).",
        ),
        traps=(
            Trap("turned the other way", "These are the transforms with exp(+2 pi i j k / 4).", _fours_other_way),
            Trap("out of order", "Results 1 and 2 have changed places.", _fours_out_of_order),
            Trap("not turned", "Results 1 and 3 need -i times the difference of points 1 and 3.", _fours_not_turned),
            Trap("points of other lines", "The four points of a line lie side by side.", _fours_of_a_column),
            Trap("divided", "Only the inverse transform is divided by the number of points.", _fours_divided),
        ),
    ),
    Exercise(
        "one_trip/parts",
        task=f"A line of x has {BLOCK * EACH} points, and a block of {BLOCK} threads for it. out[b, {EACH} t + k] is "
        f"x[b, {BLOCK} k + t], for all threads t of block b and all k below {EACH}. Read and write device memory side "
        "by side, and take the points through shared memory. A block may have room there for the real parts of its "
        "points and one word in eight for padding.",
        parameters="x, out",
        cases=_parts_cases,
        budget=_parts_budget,
        answer=parts_answer,
        hints=(
            "Keep a thread's points in cuda.local.array(8, np.complex64), and its real parts after the exchange too.",
            "Between reading the real parts and writing the imaginary ones all threads must have read.",
            f"Neighbours write {EACH} words apart. One unused word after each 32 keeps the banks apart.",
        ),
        traps=(
            Trap("not moved", "These are the points in the order of x.", _parts_not_moved),
            Trap("the other way round", f"This takes point {EACH} t + k to place {BLOCK} k + t.", _parts_back),
            Trap("real parts twice", "The imaginary parts of out are real parts of x.", _parts_real_twice),
            Trap("imaginary parts not moved", "Imaginary parts are to move as real ones do.", _parts_imaginary_stays),
            Trap("parts swapped", "Real and imaginary parts have changed places.", _parts_swapped),
        ),
    ),
    Exercise(
        "one_trip/turn",
        task="x has the results of all columns of a matrix: x[k, j] is result k of column j. Turn them and write them "
        "as rows: out[j, k] = x[k, j] exp(-2 pi i j k / n), where n = x.size and roots[m] is exp(-2 pi i m / n). Loads "
        f"and stores are to be side by side. The launch has {TILE} x {TILE} threads a block, with a block for each "
        f"{TILE} x {TILE} results.",
        parameters="x, roots, out",
        cases=_turn_cases,
        # The roots are read all over their table, however it is written.
        budget=lambda case: {"global_load_sectors": (math.inf, "")},
        answer=turn_answer,
        hints=(
            "It is the transpose of chapter 16, with a product on the way.",
            "j k is always below n.",
            "Multiply before the tile, by k and j of what was loaded, or after it, by those of what is stored.",
        ),
        traps=(
            Trap("not turned", "Result (k, j) is to be turned by exp(-2 pi i j k / n).", _turn_with(lambda k, j: 0)),
            Trap("turned back", "The sign of the angle is wrong.", _turn_with(lambda k, j: -k * j)),
            Trap("turned by the sum", "The angle has the product of j and k.", _turn_with(lambda k, j: k + j)),
            Trap("turned by the column", "The angle has k, too.", _turn_with(lambda k, j: 0 * k + j)),
            Trap("not on its side", "These are the results in the order of x.", _turn_upright),
        ),
    ),
)
