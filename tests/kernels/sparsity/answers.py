"""Answers to the exercises of chapter 79: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
COMPRESS, WORDS = "sparsity/compress", "sparsity/words"


# -- compress


def compress_with(
    name, signed=False, smallest=False, by_size=False, exchanged=False, last=False, guarded=True, one=None
):
    """A thread for each four, with one of its parts exchanged."""

    @cuda.jit(device=True)
    def size(x):
        return x if signed else abs(x)

    @cuda.jit
    def compress(w, values, bits):
        four = cuda.grid(1)
        if four < bits.size or not guarded:
            found, kept = 0, 0
            for i in range(4):
                before = 0
                for j in range(4):
                    mine, other = size(w[4 * four + i]), size(w[4 * four + j])
                    if one is not None:
                        mine, other = mine * one, other * one
                    if smallest:
                        mine, other = -mine, -other
                    if other > mine or (other == mine and (j > i if last else j < i)):
                        before += 1
                if before < 2:
                    to = before if by_size else found
                    values[2 * four + to] = w[4 * four + i]
                    kept |= i << (2 - 2 * to if exchanged else 2 * to)
                    found += 1
            bits[four] = kept

    compress.py_func.__name__ = name
    return compress


wrong(COMPRESS, "sign counts")(compress_with("by_sign", signed=True))
wrong(COMPRESS, "smallest kept")(compress_with("the_smallest", smallest=True))
wrong(COMPRESS, "by size")(compress_with("the_larger_one_first", by_size=True))
wrong(COMPRESS, "places exchanged")(compress_with("upper_bits_first", exchanged=True))
wrong(COMPRESS, "last of equal ones")(compress_with("the_last_of_equal_ones", last=True))
wrong(COMPRESS, "missing guard")(compress_with("unguarded", guarded=False))
wrong(COMPRESS, "accidental float64")(compress_with("sizes_in_float64", one=1.0))


@wrong(COMPRESS, "one of two")
@cuda.jit
def one_of_each_two(w, values, bits):
    four = cuda.grid(1)
    if four < bits.size:
        kept = 0
        for half in range(2):
            at = 4 * four + 2 * half
            place = 1 if abs(w[at + 1]) > abs(w[at]) else 0
            values[2 * four + half] = w[at + place]
            kept |= (2 * half + place) << (2 * half)
        bits[four] = kept


@right(COMPRESS)
@cuda.jit
def the_two_smallest_left_out(w, values, bits):
    """Finds the two that go, from right to left: of equal ones the last goes first."""
    four = cuda.grid(1)
    if four < bits.size:
        first = 3
        for i in range(2, -1, -1):
            if abs(w[4 * four + i]) < abs(w[4 * four + first]):
                first = i
        second = 2 if first == 3 else 3
        for i in range(second - 1, -1, -1):
            if i != first and abs(w[4 * four + i]) < abs(w[4 * four + second]):
                second = i
        to, kept = 0, 0
        for i in range(4):
            if i not in (first, second):
                values[2 * four + to] = w[4 * four + i]
                kept += i * 4**to
                to += 1
        bits[four] = kept


# -- words


def words_with(name, selected=(0, 1), lower=0, upper=8, across=False, down=False, matrix=True):
    """A lane for each word, with one of its parts exchanged."""
    low, high = selected

    @cuda.jit
    def words(four, out):
        lane, block = cuda.threadIdx.x, cuda.blockIdx.x
        g, t = (lane % 8, lane // 8) if down else (lane // 4, lane % 4)
        word = np.uint32(0)
        if t in (low, high):
            for place in range(8):
                row = (g + (lower if place < 4 else upper)) % 16
                column = place % 4 * 2 + t % 2 if across else t % 2 * 4 + place % 4
                bits = np.uint32(four[block if matrix else 0, row, column])
                word |= np.uint32(bits << np.uint32(4 * place))
        out[block, lane] = word

    words.py_func.__name__ = name
    return words


wrong(WORDS, "other lanes")(words_with("lanes_of_selector_1", selected=(2, 3)))
wrong(WORDS, "halves exchanged")(words_with("lower_row_first", lower=8, upper=0))
wrong(WORDS, "next row")(words_with("two_neighbouring_rows", upper=1))
wrong(WORDS, "every other four")(words_with("lanes_take_turns", across=True))
wrong(WORDS, "lanes down")(words_with("lanes_down_the_rows", down=True))
wrong(WORDS, "first matrix")(words_with("the_first_matrix_always", matrix=False))


@right(WORDS)
@cuda.jit
def shifted_in_from_above(four, out):
    lane = cuda.threadIdx.x
    word = np.uint32(0)
    if lane & 2 == 0:
        for place in range(7, -1, -1):
            bits = four[cuda.blockIdx.x, (lane >> 2) + (place & 4) * 2, ((lane & 1) << 2) + (place & 3)]
            word = np.uint32((word << np.uint32(4)) | np.uint32(bits))
    out[cuda.blockIdx.x, lane] = word
