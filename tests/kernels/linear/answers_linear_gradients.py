"""Answers to the exercises of chapter 74 on gradients: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.linear.linear_gradients_exercises import COLUMNS, ROWS, TILE
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
BIAS, WEIGHT = "linear_gradients/bias", "linear_gradients/weight"
PITCH = TILE + 1
f0 = np.float32(0)


# -- bias


@right(BIAS)
@cuda.jit
def bias_by_a_tree(dy, dbias):
    shared = cuda.shared.array((ROWS, COLUMNS), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column = cuda.blockIdx.x * COLUMNS + x
    total, row = f0, y
    while row < dy.shape[0] and column < dy.shape[1]:
        total += dy[row, column]
        row += ROWS
    shared[y, x] = total
    half = ROWS // 2
    while half > 0:
        cuda.syncthreads()
        if y < half:
            shared[y, x] += shared[y + half, x]
        half //= 2
    if y == 0 and column < dy.shape[1]:
        dbias[column] = shared[0, x]


def bias_with(*, guard=True, barrier=True, together=True, mean=False, zero=f0, name):
    """The answer with one of its parts exchanged."""

    @cuda.jit
    def kernel(dy, dbias):
        shared = cuda.shared.array((ROWS, COLUMNS), np.float32)
        x, y, column = cuda.threadIdx.x, cuda.threadIdx.y, cuda.grid(2)[0]
        total = zero
        if not guard or column < dy.shape[1]:
            for row in range(y, dy.shape[0], ROWS):
                total += dy[row, column]
        shared[y, x] = total
        if barrier:
            cuda.syncthreads()
        if y == 0 and column < dy.shape[1]:
            if together:
                for other in range(1, ROWS):
                    total += shared[other, x]
            dbias[column] = total / np.float32(dy.shape[0]) if mean else total

    kernel.py_func.__name__ = name
    return kernel


wrong(BIAS, "missing guard")(bias_with(guard=False, name="bias_without_guard"))
wrong(BIAS, "missing barrier")(bias_with(barrier=False, name="bias_without_barrier"))
wrong(BIAS, "one thread's rows")(bias_with(together=False, name="bias_of_one_thread"))
wrong(BIAS, "mean")(bias_with(mean=True, name="bias_by_the_mean"))
wrong(BIAS, "accidental float64")(bias_with(zero=0.0, name="bias_in_float64"))


@wrong(BIAS, "divergent barrier")
@cuda.jit
def bias_that_leaves_early(dy, dbias):
    shared = cuda.shared.array((ROWS, COLUMNS), np.float32)
    x, y, column = cuda.threadIdx.x, cuda.threadIdx.y, cuda.grid(2)[0]
    if column < dy.shape[1]:
        total = f0
        for row in range(y, dy.shape[0], ROWS):
            total += dy[row, column]
        shared[y, x] = total
        cuda.syncthreads()
        if y == 0:
            for other in range(1, ROWS):
                total += shared[other, x]
            dbias[column] = total


@wrong(BIAS, "uninitialised memory")
@cuda.jit
def bias_by_atomics(dy, dbias):
    column = cuda.grid(2)[0]
    if column < dy.shape[1]:
        for row in range(cuda.threadIdx.y, dy.shape[0], ROWS):
            cuda.atomic.add(dbias, column, dy[row, column])


@wrong(BIAS, "missing atomic", "add these up in shared memory")
@cuda.jit
def bias_added_up_in_dbias(dy, dbias):
    column = cuda.grid(2)[0]
    if column < dy.shape[1] and cuda.threadIdx.y == 0:
        dbias[column] = 0
    cuda.syncthreads()
    if column < dy.shape[1]:
        for row in range(cuda.threadIdx.y, dy.shape[0], ROWS):
            dbias[column] += dy[row, column]


@wrong(BIAS, "idle threads", "only 4 of the 32 warps")
@cuda.jit
def bias_by_the_threads_of_the_first_row(dy, dbias):
    column = cuda.grid(2)[0]
    if column < dy.shape[1] and cuda.threadIdx.y == 0:
        total = f0
        for row in range(dy.shape[0]):
            total += dy[row, column]
        dbias[column] = total


# -- weight


@right(WEIGHT)
@cuda.jit
def weight_turned_in_shared_memory(dy, x, dweight):
    """dy's tile is turned over as it is stored; its rows are padded, so that this has no bank conflicts."""
    dy_tile = cuda.shared.array((TILE, PITCH), np.float32)
    x_tile = cuda.shared.array((TILE, TILE), np.float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    feature, output = cuda.grid(2)
    outputs = cuda.blockIdx.y * TILE + i
    total = f0
    row = j
    while row - j < dy.shape[0]:
        inside = row < dy.shape[0]
        dy_tile[i, j] = dy[row, outputs] if inside and outputs < dy.shape[1] else f0
        x_tile[j, i] = x[row, feature] if inside and feature < x.shape[1] else f0
        cuda.syncthreads()
        for k in range(TILE):
            total += dy_tile[j, k] * x_tile[k, i]
        cuda.syncthreads()
        row += TILE
    if output < dweight.shape[0] and feature < dweight.shape[1]:
        dweight[output, feature] = total


def weight_with(*, guard=True, first=True, second=True, keep=True, mean=False, turned=False, zero=f0, name):
    """The answer with one of its parts exchanged."""

    @cuda.jit
    def kernel(dy, x, dweight):
        dy_tile = cuda.shared.array((TILE, TILE), np.float32)
        x_tile = cuda.shared.array((TILE, TILE), np.float32)
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        first_output, feature = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE + i
        total = zero
        for row0 in range(0, dy.shape[0], TILE):
            row, output = row0 + j, first_output + i
            dy_tile[j, i] = dy[row, output] if row < dy.shape[0] and output < dy.shape[1] else f0
            x_tile[j, i] = x[row, feature] if not guard or (row < x.shape[0] and feature < x.shape[1]) else f0
            if first:
                cuda.syncthreads()
            if not keep:
                total = zero
            for k in range(TILE):
                total += (dy_tile[j, k] if turned else dy_tile[k, j]) * x_tile[k, i]
            if second:
                cuda.syncthreads()
        if first_output + j < dweight.shape[0] and feature < dweight.shape[1]:
            dweight[first_output + j, feature] = total / np.float32(dy.shape[0]) if mean else total

    kernel.py_func.__name__ = name
    return kernel


wrong(WEIGHT, "missing guard")(weight_with(guard=False, name="weight_without_guard"))
wrong(WEIGHT, "missing barrier", "no barrier in between")(weight_with(first=False, name="weight_without_the_first"))
wrong(WEIGHT, "missing barrier")(weight_with(second=False, name="weight_without_the_second"))
wrong(WEIGHT, "last tile")(weight_with(keep=False, name="weight_of_the_last_tile"))
wrong(WEIGHT, "mean")(weight_with(mean=True, name="weight_by_the_mean"))
wrong(WEIGHT, "wrong result")(weight_with(turned=True, name="weight_of_rows"))
wrong(WEIGHT, "accidental float64")(weight_with(zero=0.0, name="weight_in_float64"))


@wrong(WEIGHT, "too much traffic")
@cuda.jit
def weight_without_tiles(dy, x, dweight):
    feature, output = cuda.grid(2)
    if output < dweight.shape[0] and feature < dweight.shape[1]:
        total = f0
        for row in range(dy.shape[0]):
            total += dy[row, output] * x[row, feature]
        dweight[output, feature] = total
