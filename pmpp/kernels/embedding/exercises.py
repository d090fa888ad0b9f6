"""Exercises of notebooks/86_gradients_of_softmax.ipynb on looking up: a token's vector and its position's."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block
FLOAT64 = "A literal such as 0.0 is float64, and makes a float64 of what it is added to: write np.float32(0)."


# ---------------------------------------------------------------------------------------------- embedding/positions


def _positions(table: np.ndarray, positions: np.ndarray, tokens: np.ndarray, out: np.ndarray) -> dict:
    return {3: table[tokens] + positions[np.arange(tokens.size) % len(positions)]}


def _position_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for texts, length, width in ((1, 1, 1), (1, 4, 32), (2, 3, 5), (3, 7, 33), (4, 16, 64)):
        table, positions = (rng.standard_normal((rows, width), dtype=np.float32) for rows in (11, length))
        tokens = rng.integers(0, 11, texts * length)
        args = table, positions, tokens, unwritten((texts * length, width), np.float32)
        name = f"{texts} text{'s' * (texts > 1)} of {length}, {width} columns"
        cases.append(Case(name, args, blocks(tokens.size * width, BLOCK), BLOCK, _positions(*args)))
    return cases


@cuda.jit
def positions_answer(table, positions, tokens, out):
    i = cuda.grid(1)
    if i < out.size:
        token, column = i // out.shape[1], i % out.shape[1]
        out[token, column] = table[tokens[token], column] + positions[token % positions.shape[0], column]


def _without(table, positions, tokens, out):
    return {3: table[tokens]}


def _position_of_the_word(table, positions, tokens, out):
    return {3: table[tokens] + positions[tokens % len(positions)]}


EXERCISES = (
    Exercise(
        "embedding/positions",
        task="The first layer of GPT-2 adds to the vector of each token that of its place in the text. tokens has some "
        "texts one after another, each as long as positions has rows. Write table[token] + positions[place] to each "
        f"row of out. There are {BLOCK} threads a block, and one thread or more for each element of out.",
        parameters="table, positions, tokens, out",
        cases=_position_cases,
        answer=positions_answer,
        hints=(
            "The row of out is i // out.shape[1], and the column is i % out.shape[1].",
            "Row t of out belongs to tokens[t], whose place in its text is t % positions.shape[0].",
        ),
        budget=lambda case: {"flops_f64": (0, FLOAT64)},
        traps=(
            Trap("positions missing", "The vector of the place is not in it.", _without),
            Trap("place of the word", "The place is that in the text, not that of the word.", _position_of_the_word),
        ),
    ),
)
