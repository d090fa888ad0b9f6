"""Exercises of notebooks/86_gradients_of_softmax.ipynb on the gradient of a table: the rank of a token in its group."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 128  # threads a block


# ------------------------------------------------------------------------------------------ embedding_backward/rank


def _ranks(tokens: np.ndarray, rank: np.ndarray) -> dict[int, np.ndarray]:
    same = tokens[:, None] == tokens
    return {1: np.tril(same, -1).sum(axis=1).astype(np.int64)}


def _rank_cases(rng: np.random.Generator) -> list[Case]:
    made = {f"{n} tokens": rng.integers(0, 7, n) for n in (1, 5, BLOCK, BLOCK + 1, 300)}
    made["all the same"], made["all different"] = np.full(200, 3), rng.permutation(250)
    made["400 tokens"] = rng.integers(0, 20, 400)
    return [
        Case(name, (tokens, unwritten(n, np.int64)), blocks(n, BLOCK), BLOCK, _ranks(tokens, tokens))
        for name, tokens in made.items()
        for n in [tokens.size]
    ]


@cuda.jit
def rank_answer(tokens, rank):
    i = cuda.grid(1)
    if i < tokens.size:
        count = 0
        for k in range(i):
            if tokens[k] == tokens[i]:
                count += 1
        rank[i] = count


def _all_of_them(tokens: np.ndarray, rank: np.ndarray) -> dict[int, np.ndarray]:
    return {1: (tokens[:, None] == tokens).sum(axis=1)}


def _itself_too(tokens: np.ndarray, rank: np.ndarray) -> dict[int, np.ndarray]:
    return {1: _ranks(tokens, rank)[1] + 1}


EXERCISES = (
    Exercise(
        "embedding_backward/rank",
        task="Write to rank[i] how many tokens before i are the same as tokens[i]. Atomics would hand out these "
        f"numbers in an arbitrary order. There are {BLOCK} threads a block, and one thread or more for each token.",
        parameters="tokens, rank",
        cases=_rank_cases,
        answer=rank_answer,
        hints=("A loop over the tokens before i counts the same ones.", "The token itself does not count."),
        traps=(
            Trap("counts all", "Only tokens before i count: this is the size of the group.", _all_of_them),
            Trap("counts itself", "The first of a group has rank 0.", _itself_too),
        ),
    ),
)
