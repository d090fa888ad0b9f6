"""Answers to the exercise of chapter 89 on counting: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
MATRIX = "confusion/matrix"


@right(MATRIX)
@cuda.jit
def matrix_with_a_stride_of_the_grid(scores, labels, counts):
    for row in range(cuda.grid(1), labels.size, cuda.gridsize(1)):
        said, greatest, k = 0, scores[row, 0], 1
        while k < scores.shape[1]:
            if greatest < scores[row, k]:
                said, greatest = k, scores[row, k]
            k += 1
        cuda.atomic.add(counts, (labels[row], said), 1)


@right(MATRIX)
@cuda.jit
def matrix_from_the_last_column(scores, labels, counts):
    i = cuda.grid(1)
    if i >= labels.size:
        return
    best = scores.shape[1] - 1
    for k in range(scores.shape[1] - 2, -1, -1):
        if scores[i, k] >= scores[i, best]:
            best = k
    cuda.atomic.add(counts, (labels[i], best), 1)


@right(MATRIX)
@cuda.jit
def matrix_of_each_block_first(scores, labels, counts):
    own = cuda.shared.array((16, 16), np.int32)  # this many classes at most
    classes = scores.shape[1]
    for k in range(cuda.threadIdx.x, classes * classes, cuda.blockDim.x):
        own[k // classes, k % classes] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < labels.size:
        best = 0
        for k in range(1, classes):
            if scores[i, k] > scores[i, best]:
                best = k
        cuda.atomic.add(own, (labels[i], best), 1)
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, classes * classes, cuda.blockDim.x):
        cuda.atomic.add(counts, (k // classes, k % classes), own[k // classes, k % classes])


@wrong(MATRIX, "too many atomics", "Give each thread a row of its own")
@cuda.jit
def matrix_by_one_thread_a_block(scores, labels, counts):
    if cuda.threadIdx.x == 0:
        first = cuda.blockIdx.x * cuda.blockDim.x
        for i in range(first, min(scores.shape[0], first + cuda.blockDim.x)):
            best = 0
            for k in range(1, scores.shape[1]):
                if scores[i, k] > scores[i, best]:
                    best = k
            cuda.atomic.add(counts, (labels[i], best), 1)


def matrix(name, guard=True, atomic=True, exchanged=False, last=False, zero=False, block_only=False, into=False):
    """Counting with one part exchanged."""

    @cuda.jit
    def kernel(scores, labels, counts):
        i = cuda.threadIdx.x if block_only else cuda.grid(1)
        if not guard or i < scores.shape[0]:
            best, greatest = 0, np.float32(0) if zero else scores[i, 0]
            for k in range(0 if zero else 1, scores.shape[1]):
                if scores[i, k] > greatest or (last and scores[i, k] == greatest):
                    best, greatest = k, scores[i, k]
            row, column = labels[i], best
            if exchanged:
                row, column = column, row
            if atomic:
                cuda.atomic.add(counts, (row, column), 1)
            else:
                counts[row, column] += 1
            if into:
                scores[i, 0] = greatest

    kernel.py_func.__name__ = name
    return kernel


ANSWERS += [
    WrongAnswer(MATRIX, matrix("matrix_without_guard", guard=False), "missing guard"),
    WrongAnswer(MATRIX, matrix("matrix_without_atomics", atomic=False), "missing atomic"),
    WrongAnswer(MATRIX, matrix("matrix_transposed", exchanged=True), "rows and columns exchanged"),
    WrongAnswer(MATRIX, matrix("matrix_last_of_equals", last=True), "last of equal scores"),
    WrongAnswer(MATRIX, matrix("matrix_from_zero", zero=True), "greatest begins at 0"),
    WrongAnswer(MATRIX, matrix("matrix_of_one_block", block_only=True), "wrong result", "with 65 examples"),
    WrongAnswer(MATRIX, matrix("matrix_into_the_scores", into=True), "input changed"),
]
