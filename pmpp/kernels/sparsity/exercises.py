"""Exercises of notebooks/79_sparsity.ipynb: what is stored of four numbers, and which lane has the metadata."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block of sparsity/compress
ROWS, FOURS, LANES = 16, 8, 32  # of sparsity/words: of an instruction, and of the warp that executes it


# --------------------------------------------------------------------------------------------------- sparsity/compress


def _compressed(w: np.ndarray, kept: np.ndarray) -> dict[int, np.ndarray]:
    """What is stored if ``kept`` has two places of each four, in whatever order: values and bits."""
    fours = w.reshape(-1, 4)
    values = np.take_along_axis(fours, kept, axis=1).reshape(-1)
    return {1: values, 2: (kept[:, 0] | kept[:, 1] << 2).astype(np.uint8)}


def _by(size: np.ndarray) -> np.ndarray:
    """The places of the two that are first by ``size``, larger ones before smaller ones, in the order of the places."""
    return np.sort(np.argsort(-size.reshape(-1, 4), axis=1, kind="stable")[:, :2], axis=1)


def _right(w: np.ndarray) -> dict[int, np.ndarray]:
    return _compressed(w, _by(abs(w)))


def _compress_cases(rng: np.random.Generator) -> list[Case]:
    def case(name: str, w: np.ndarray) -> Case:
        n = w.size // 4
        args = w, unwritten((2 * n,), np.float32), unwritten((n,), np.uint8)
        return Case(name, args, blocks(n, BLOCK), BLOCK, _right(w))

    drawn = {f"n = {n}": rng.standard_normal(4 * n, dtype=np.float32) for n in (1, BLOCK, BLOCK + 1)}
    drawn["equal sizes"] = rng.choice(np.float32([-1, 1, 2]), 4 * 50)
    drawn["zeros"] = rng.choice(np.float32([0, 0, 0, 3]), 4 * 40)
    return [case(name, w) for name, w in drawn.items()]


@cuda.jit
def compress_answer(w, values, bits):
    four = cuda.grid(1)
    if four < bits.size:
        found, kept = 0, 0
        for i in range(4):
            before = 0
            for j in range(4):
                mine, other = abs(w[4 * four + i]), abs(w[4 * four + j])
                if other > mine or (other == mine and j < i):
                    before += 1
            if before < 2:
                values[2 * four + found] = w[4 * four + i]
                kept |= i << (2 * found)
                found += 1
        bits[four] = kept


COMPRESS = Exercise(
    name="sparsity/compress",
    task="Of each four neighbours of w keep the two of the largest size; of equal sizes the first stays. values[2 i] "
    "and values[2 i + 1] are the two of four number i, in the order in which they stand in w. bits[i] has the place of "
    "the first, 0 to 3, in its lower two bits, and that of the second in the next two. w is float32 of shape (4 n,), "
    f"values float32 (2 n,), bits uint8 (n,). The launch has {BLOCK} threads a block, one for each four.",
    parameters="w, values, bits",
    cases=_compress_cases,
    answer=compress_answer,
    hints=(
        "A number stays if fewer than two of the others come before it: larger ones, and equal ones further left.",
        "Go through the four from left to right, and count how many you have stored.",
        "The place of number k that is stored goes to kept |= place << (2 * k).",
    ),
    budget=lambda case: {"flops_f64": (0, "Sizes are compared in float32.")},
    traps=(
        Trap("sign counts", "The size counts, not the sign: abs().", lambda w, *_: _compressed(w, _by(w))),
        Trap("smallest kept", "Those are the two smallest.", lambda w, *_: _compressed(w, _by(-abs(w)))),
        Trap(
            "by size",
            "The two stand in the order of w, not in that of their sizes: the first place is the smaller one.",
            lambda w, *_: _compressed(w, np.argsort(-abs(w.reshape(-1, 4)), axis=1, kind="stable")[:, :2]),
        ),
        Trap(
            "places exchanged",
            "The place of the first number has the lower two bits.",
            lambda w, *_: {1: _right(w)[1], 2: (_right(w)[2] >> 2 | (_right(w)[2] & 3) << 2).astype(np.uint8)},
        ),
        Trap(
            "last of equal ones",
            "Of equal sizes the first stays.",
            lambda w, *_: _compressed(w, np.sort(3 - _by(abs(w.reshape(-1, 4)[:, ::-1])), axis=1)),
        ),
        Trap(
            "one of two",
            "Two of four, which may be neighbours: not one of each two.",
            lambda w, *_: _compressed(w, np.argmax(abs(w.reshape(-1, 2, 2)), axis=2) + np.array([0, 2])),
        ),
    ),
)


# ------------------------------------------------------------------------------------------------------ sparsity/words


def _words(four: np.ndarray, *, selector=0, halves=(0, 8), across=False, down=False) -> np.ndarray:
    """The words of 32 lanes for each matrix: 0 where the selector leaves a lane out."""
    out = np.zeros((len(four), LANES), np.uint32)
    for lane in range(LANES):
        g, t = (lane % 8, lane // 8) if down else (lane // 4, lane % 4)
        if t // 2 == selector:
            for place in range(8):
                row = g + halves[place // 4]
                column = place % 4 * 2 + t % 2 if across else t % 2 * 4 + place % 4
                out[:, lane] |= four[:, row, column].astype(np.uint32) << np.uint32(4 * place)
    return out


def _words_cases(rng: np.random.Generator) -> list[Case]:
    def case(count: int) -> Case:
        four = rng.choice(np.uint8([4, 8, 9, 12, 13, 14]), (count, ROWS, FOURS))
        args = four, unwritten((count, LANES), np.uint32)
        return Case(f"{count} matri{'ces' if count > 1 else 'x'}", args, count, LANES, {1: _words(four)})

    return [case(count) for count in (1, 2, 5)]


@cuda.jit
def words_answer(four, out):
    lane, matrix = cuda.threadIdx.x, cuda.blockIdx.x
    word = np.uint32(0)
    if lane % 4 < 2:
        for place in range(8):
            bits = np.uint32(four[matrix, lane // 4 + place // 4 * 8, lane % 4 * 4 + place % 4])
            word |= np.uint32(bits << np.uint32(4 * place))
    out[matrix, lane] = word


WORDS = Exercise(
    name="sparsity/words",
    task="A warp is to multiply by matrices of 16 x 32, of which half is stored, by mma.sp with selector 0. Block i "
    "has one warp, for matrix i. four[i, r, q] has the 4 bits of metadata for row r and columns 4 q to 4 q + 3: uint8 "
    "of shape (count, 16, 8). Write down the word of each lane, out[i, lane], uint32: lane 4 g + t, for t = 0 and 1, "
    "has the bits of row g in its lower half, and those of row g + 8 in its upper half. They are for the 16 columns "
    "from 16 t on, and the first four of these have the lowest 4 bits. The words of the other lanes are 0.",
    parameters="four, out",
    cases=_words_cases,
    answer=words_answer,
    hints=(
        "g is lane // 4, and t is lane % 4. With t of 2 or 3 the word is 0.",
        "A half of a word has four times 4 bits: those of four[i, row, 4 t] to four[i, row, 4 t + 3].",
        "Make a np.uint32 of the bits before you shift them.",
    ),
    traps=(
        Trap(
            "other lanes",
            "selector 0 means the lanes with t = 0 and 1, and selector 1 those with t = 2 and 3",
            lambda four, out: {1: _words(four, selector=1)},
        ),
        Trap(
            "halves exchanged",
            "row g has the lower half of the word, and row g + 8 the upper half",
            lambda four, out: {1: _words(four, halves=(8, 0))},
        ),
        Trap(
            "next row",
            "the upper half is for the row 8 below, not for the next one",
            lambda four, out: {1: _words(four, halves=(0, 1))},
        ),
        Trap(
            "every other four",
            "a lane has 16 neighbouring columns: t = 0 the left ones, and t = 1 the right ones",
            lambda four, out: {1: _words(four, across=True)},
        ),
        Trap(
            "lanes down",
            "four lanes that follow each other belong to one row: g is lane // 4",
            lambda four, out: {1: _words(four, down=True)},
        ),
        Trap(
            "first matrix",
            "all blocks have written the first matrix: blockIdx.x counts the matrices",
            lambda four, out: {1: _words(np.repeat(four[:1], len(four), 0))},
        ),
    ),
)

EXERCISES = (COMPRESS, WORDS)
