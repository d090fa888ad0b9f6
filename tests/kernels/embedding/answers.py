"""Answers to the exercises of chapter 86 on embeddings: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
POSITIONS, RANK = "embedding/positions", "embedding_backward/rank"
BLOCK = 128
f0 = np.float32(0)


# -- positions


@right(POSITIONS)
@cuda.jit
def positions_by_strides(table, positions, tokens, out):
    width = out.shape[1]
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        token = i // width
        place = token - token // positions.shape[0] * positions.shape[0]
        out[token, i - token * width] = positions[place, i - token * width] + table[tokens[token], i - token * width]


def positions(name, guard=True, place="text", nothing=f0, transposed=False, into_table=False):
    """Token and position with one part exchanged."""

    @cuda.jit
    def kernel(table, positions, tokens, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            token, column = i // out.shape[1], i % out.shape[1]
            if transposed:
                token, column = i % out.shape[0], i // out.shape[0]
            value = table[tokens[token], column] + nothing
            if place == "text":
                value += positions[token % positions.shape[0], column]
            elif place == "word":
                value += positions[tokens[token] % positions.shape[0], column]
            out[token, column] = value
            if into_table:
                positions[token % positions.shape[0], column] = f0

    kernel.py_func.__name__ = name
    return kernel


ANSWERS += [
    WrongAnswer(POSITIONS, positions("positions_without_guard", guard=False), "missing guard"),
    WrongAnswer(POSITIONS, positions("positions_missing", place=""), "positions missing"),
    WrongAnswer(POSITIONS, positions("positions_of_the_word", place="word"), "place of the word"),
    WrongAnswer(POSITIONS, positions("positions_in_float64", nothing=0.0), "accidental float64"),
    WrongAnswer(POSITIONS, positions("positions_down_the_columns", transposed=True), "uncoalesced"),
]


# -- rank


@right(RANK)
@cuda.jit
def rank_backwards(tokens, rank):
    i = cuda.grid(1)
    if i >= tokens.size:
        return
    count, k = 0, i - 1
    while k >= 0:
        count += 1 if tokens[k] == tokens[i] else 0
        k -= 1
    rank[i] = count


def rank(name, guard=True, before=True, itself=False, block_only=False, write_first=True, into_tokens=False):
    """Ranks with one part exchanged."""

    @cuda.jit
    def kernel(tokens, rank):
        i = cuda.threadIdx.x if block_only else cuda.grid(1)
        if not guard or i < tokens.size:
            count = 0
            for k in range(i + (1 if itself else 0) if before else tokens.size):
                count += 1 if tokens[k] == tokens[i] else 0
            if write_first or count:
                rank[i] = count

    kernel.py_func.__name__ = name
    return kernel


ANSWERS += [
    WrongAnswer(RANK, rank("rank_without_guard", guard=False), "missing guard"),
    WrongAnswer(RANK, rank("rank_counts_all", before=False), "counts all"),
    WrongAnswer(RANK, rank("rank_counts_itself", itself=True), "counts itself"),
    WrongAnswer(RANK, rank("rank_within_a_block", block_only=True), "only right for one block"),
    WrongAnswer(RANK, rank("rank_of_the_first_not_written", write_first=False), "output not written"),
]
