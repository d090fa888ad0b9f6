"""Exercises of notebooks/51_game_of_life.ipynb: a board without a border, and a full adder of words."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

SIDE = 16  # threads of a block along both axes
BLOCK = 256  # threads of a block of words


def _grid(shape: tuple[int, int]) -> tuple[int, int]:
    return -(-shape[1] // SIDE), -(-shape[0] // SIDE)


# ------------------------------------------------------------------------------------------------- game_of_life/torus


def _step(board: np.ndarray, around: bool = True, itself: bool = False, corners: bool = True) -> np.ndarray:
    wide = np.pad(board, 1, mode="wrap" if around else "constant").astype(np.int64)
    h, w = board.shape
    places = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1) or itself]
    if not corners:
        places = [(i, j) for i, j in places if 1 in (i, j)]
    near = sum(wide[i : i + h, j : j + w] for i, j in places)
    return ((near == 3) | ((near == 2) & (board == 1))).astype(np.uint8)


def _boards(rng: np.random.Generator) -> dict[str, np.ndarray]:
    glider = np.zeros((9, 12), np.uint8)
    glider[[8, 0, 1, 1, 1], [11, 0, 10, 11, 0]] = 1
    return {
        "three by three": np.uint8([[0, 0, 1], [1, 0, 0], [0, 1, 1]]),
        "a glider across the corner": glider,
        "a block": (rng.random((SIDE, SIDE)) < 0.4).astype(np.uint8),
        "a block and one": (rng.random((SIDE + 1, SIDE + 1)) < 0.4).astype(np.uint8),
        "wide": (rng.random((5, 70)) < 0.4).astype(np.uint8),
        "tall": (rng.random((70, 6)) < 0.4).astype(np.uint8),
    }


def _torus_cases(rng: np.random.Generator) -> list[Case]:
    return [
        Case(name, (board, unwritten(board.shape, np.uint8)), _grid(board.shape), (SIDE, SIDE), {1: _step(board)})
        for name, board in _boards(rng).items()
    ]


@cuda.jit
def torus_answer(board, out):
    j, i = cuda.grid(2)
    h, w = board.shape
    if i < h and j < w:
        count = 0
        for di in range(-1, 2):
            for dj in range(-1, 2):
                if di != 0 or dj != 0:
                    count += board[(i + di + h) % h, (j + dj + w) % w]
        out[i, j] = 1 if count == 3 or (count == 2 and board[i, j] == 1) else 0


# ------------------------------------------------------------------------------------------------- game_of_life/adder


def _words(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return tuple(rng.integers(0, 2**32, n, dtype=np.uint32) for _ in range(3))


def _sums(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> dict[int, np.ndarray]:
    return {3: a ^ b ^ c, 4: a & b | c & (a ^ b)}


def _digits(total: np.ndarray) -> dict[int, np.ndarray]:
    """Of a sum of whole words the last bit, and the others."""
    return {3: (total & np.uint64(1)).astype(np.uint32), 4: (total >> np.uint64(1)).astype(np.uint32)}


def _adder_cases(rng: np.random.Generator) -> list[Case]:
    given = {"every sum once": tuple(np.uint32([word]) for word in (0b00001111, 0b00110011, 0b01010101))}
    given |= {f"n = {n}": _words(rng, n) for n in (31, BLOCK, BLOCK + 1, 700)}
    cases = []
    for name, words in given.items():
        n = words[0].size
        outputs = unwritten(n, np.uint32), unwritten(n, np.uint32)
        cases.append(Case(name, (*words, *outputs), -(-n // BLOCK), BLOCK, _sums(*words)))
    return cases


@cuda.jit
def adder_answer(a, b, c, ones, twos):
    i = cuda.grid(1)
    if i < a.size:
        ones[i] = a[i] ^ b[i] ^ c[i]
        twos[i] = a[i] & b[i] | c[i] & (a[i] ^ b[i])


EXERCISES = (
    Exercise(
        "game_of_life/torus",
        task="Play one step on a board without a border: beyond the last column comes the first, and beyond the last "
        "row the first. board and out are arrays of uint8 with three rows and columns at least. The launch has blocks "
        f"of {SIDE} x {SIDE} threads, and cuda.grid(2) gives the column and the row.",
        parameters="board, out",
        cases=_torus_cases,
        budget=lambda case: {"global_store_sectors": (math.inf, "")},  # a store in each of three branches is as good
        advice={
            "negative index": "-1 is the last row in Python, but the one after the last is none: use % on both sides."
        },
        answer=torus_answer,
        hints=(
            "Eight neighbours, each with its row and column modulo those of the board.",
            "The remainder of a negative number is not negative in Python. To add the height first does no harm.",
        ),
        traps=(
            Trap(
                "border not joined",
                "A cell in the first row has neighbours in the last one.",
                lambda board, out: {1: _step(board, around=False)},
            ),
            Trap(
                "itself counted",
                "A cell is not its own neighbour.",
                lambda board, out: {1: _step(board, itself=True)},
            ),
            Trap(
                "corners left out",
                "A cell has eight neighbours: those at its corners count as well.",
                lambda board, out: {1: _step(board, corners=False)},
            ),
        ),
    ),
    Exercise(
        "game_of_life/adder",
        task="Add up three bits, 32 times at once. For each bit of the words a[i], b[i] and c[i], the number of them "
        "that are set is that of ones[i], plus twice that of twos[i]. All are vectors of uint32. The launch has "
        f"{BLOCK} threads a block, and one thread or more for each word.",
        parameters="a, b, c, ones, twos",
        cases=_adder_cases,
        answer=adder_answer,
        hints=(
            "The sum is odd where one or three bits are set.",
            "It is two or more where a and b are set, or where c is set and one of them.",
        ),
        traps=(
            Trap(
                "all three only",
                "Two bits are enough for a two.",
                lambda a, b, c, ones, twos: {3: a ^ b ^ c, 4: a & b & c},
            ),
            Trap(
                "any of them",
                "Where two bits are set, nothing is left for the ones.",
                lambda a, b, c, ones, twos: {3: a | b | c, 4: _sums(a, b, c)[4]},
            ),
            Trap(
                "words added",
                "A + between words carries from bit to bit. Here each bit is a number of its own.",
                lambda a, b, c, ones, twos: {3: a + b + c, 4: _sums(a, b, c)[4]},
            ),
            Trap(
                "words added",
                "A + between words carries from bit to bit. Here each bit is a number of its own.",
                lambda a, b, c, ones, twos: _digits(a.astype(np.uint64) + b + c),
            ),
        ),
    ),
)
