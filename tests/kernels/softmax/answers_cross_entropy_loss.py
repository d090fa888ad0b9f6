"""Answers to the exercises of chapter 86 on losses: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.softmax.cross_entropy_loss_exercises import IGNORED
from pmpp.kernels.softmax.exercises import BLOCK, LOWEST, WARPS, ZERO, lane_sum, row_max, row_sum
from pmpp.kernels.softmax.rows import append, join
from tests.support.wrong import WrongAnswer, collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
GRADIENT, SOFTMAX = "cross_entropy_loss/gradient", "cross_entropy_loss/softmax"
ONE = np.float32(1)


# -- gradient


@right(GRADIENT)
@cuda.jit
def gradient_online(x, labels, dx):
    """One thread finds the sum in one pass; ignored rows leave early, all threads together."""
    row, n = cuda.blockIdx.x, x.shape[1]
    if labels[row] == IGNORED:
        for i in range(cuda.threadIdx.x, n, BLOCK):
            dx[row, i] = ZERO
        return
    best, total = LOWEST, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best, total = append(best, total, x[row, i])
    whole = row_max(best)
    _, total = join(whole, ZERO, best, total)
    total = row_sum(total)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        dx[row, i] = math.exp(x[row, i] - whole) / total - np.float32(i == labels[row])


def gradient(name, shift=True, take_off=True, ignore=True, one=ONE, step=BLOCK, end=0, reduce=True):
    """The gradient with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, labels, dx):
        row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
        label = labels[row]
        for i in range(cuda.threadIdx.x, n + end, BLOCK):
            best = max(best, x[row, i])
        best = row_max(best) if shift else ZERO
        for i in range(cuda.threadIdx.x, n, BLOCK):
            total += math.exp(x[row, i] - best)
        total = row_sum(total) if reduce else total
        for i in range(cuda.threadIdx.x, n, step):
            share = one * math.exp(x[row, i] - best) / total
            wanted = ONE if i == label and take_off else ZERO
            dx[row, i] = ZERO if ignore and label == IGNORED else np.float32(share - wanted)

    kernel.py_func.__name__ = name
    return kernel


ANSWERS += [
    WrongAnswer(GRADIENT, gradient("gradient_not_shifted", shift=False), "wrong result"),
    WrongAnswer(GRADIENT, gradient("gradient_without_the_label", take_off=False), "label forgotten"),
    WrongAnswer(GRADIENT, gradient("gradient_of_ignored_rows", ignore=False), "ignored rows count"),
    WrongAnswer(GRADIENT, gradient("gradient_in_float64", one=1.0), "accidental float64"),
    WrongAnswer(GRADIENT, gradient("gradient_beyond_the_row", end=1), "index out of bounds"),
    WrongAnswer(GRADIENT, gradient("gradient_of_every_other", step=2 * BLOCK), "output not written"),
]


@wrong(GRADIENT, "multiplied by 0", "is nan, and should be 0.*choose 0 for an ignored row")
@cuda.jit
def gradient_times_zero(x, labels, dx):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    counts = np.float32(labels[row] != IGNORED)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    total = row_sum(total)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        dx[row, i] = counts * (math.exp(x[row, i] - best) / total - np.float32(i == labels[row]))


@right(GRADIENT)
@cuda.jit
def gradient_ignored_at_the_end(x, labels, dx):
    """What was computed of an ignored row is overwritten."""
    row, n, best, total = cuda.blockIdx.x, x.shape[1], LOWEST, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    total = row_sum(total)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        value = math.exp(x[row, i] - best) / total - np.float32(i == labels[row])
        if labels[row] == IGNORED:
            value = ZERO
        dx[row, i] = value


# -- softmax


@wrong(GRADIENT, "wrong result", "logits around -1000.*NaN")
@cuda.jit
def gradient_with_a_maximum_from_zero(x, labels, dx):
    row, n, best, total = cuda.blockIdx.x, x.shape[1], ZERO, ZERO
    for i in range(cuda.threadIdx.x, n, BLOCK):
        best = max(best, x[row, i])
    best = row_max(best)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        total += math.exp(x[row, i] - best)
    total = row_sum(total)
    for i in range(cuda.threadIdx.x, n, BLOCK):
        share = math.exp(x[row, i] - best) / total - (ONE if i == labels[row] else ZERO)
        dx[row, i] = ZERO if labels[row] == IGNORED else share


@right(SOFTMAX)
@cuda.jit
def softmax_in_another_form(dy, y, dx):
    """y dy - y sum: the loop over warps, so that a grid that is too small would do."""
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    while row < y.shape[0]:
        total = ZERO
        for i in range(cuda.laneid, y.shape[1], 32):
            total += y[row, i] * dy[row, i]
        total = lane_sum(total)
        for i in range(cuda.laneid, y.shape[1], 32):
            dx[row, i] = y[row, i] * dy[row, i] - y[row, i] * total
        row += cuda.gridDim.x * WARPS


def softmax(name, guard=True, weighted=True, diagonal=False, one=ONE, add=True, into_dy=False):
    """Softmax's gradient with one of its parts exchanged."""

    @cuda.jit
    def kernel(dy, y, dx):
        row, n, total = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32, y.shape[1], ZERO
        if not guard or row < y.shape[0]:
            for i in range(cuda.laneid, n, 32):
                total += dy[row, i] * y[row, i] if weighted else dy[row, i]
            if add:
                total = lane_sum(total)
            for i in range(cuda.laneid, n, 32):
                if diagonal:
                    total = dy[row, i] * y[row, i]
                value = one * y[row, i] * (dy[row, i] - total)
                dx[row, i] = value
                if into_dy:
                    dy[row, i] = value

    kernel.py_func.__name__ = name
    return kernel


ANSWERS += [
    WrongAnswer(SOFTMAX, softmax("softmax_without_guard", guard=False), "missing guard"),
    WrongAnswer(SOFTMAX, softmax("softmax_sum_of_dy", weighted=False), "sum of dy"),
    WrongAnswer(SOFTMAX, softmax("softmax_diagonal", diagonal=True), "diagonal alone"),
    WrongAnswer(SOFTMAX, softmax("softmax_in_float64", one=1.0), "accidental float64"),
    WrongAnswer(SOFTMAX, softmax("softmax_each_lane_its_sum", add=False), "wrong result"),
    WrongAnswer(SOFTMAX, softmax("softmax_into_dy", into_dy=True), "input changed"),
]
