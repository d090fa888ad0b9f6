"""Small exercises for the tests of the exercise check.

add: an element a thread. total: one number from many blocks. turn: shared memory and a barrier. transpose: two axes,
with coalescing and banks to get wrong. negate: two axes, an element a thread. pair: two inputs and two outputs to
exchange. mean: a function of the host.
"""

import numpy as np

from pmpp import cuda
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 64
TILE, PITCH = 32, 33


def blocks(n, block=BLOCK):
    return -(-n // block)


def add_cases(rng):
    cases = []
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 900):
        x, y = rng.integers(1, 1000, (2, n)).astype(np.float32)  # sums are exact
        cases.append(Case(f"n = {n}", (x, y, unwritten(n, np.float32)), blocks(n), BLOCK, {2: x + y}))
    return cases


@cuda.jit
def add_answer(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def subtracted(x, y, out):
    return {2: x - y}


ADD = Exercise(
    "toy/add",
    task="Add.",
    parameters="x, y, out",
    cases=add_cases,
    answer=add_answer,
    traps=(Trap("wrong sign", "this is x - y", subtracted),),
)


def total_cases(rng):
    cases = []
    for n in (1, BLOCK, BLOCK + 1, 2000):
        x = rng.integers(1, 100, n).astype(np.int64)
        cases.append(Case(f"n = {n}", (x, np.zeros(1, np.int64)), blocks(n), BLOCK, {1: x.sum(keepdims=True)}))
    return cases


@cuda.jit
def total_answer(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    sums = cuda.shared.array(BLOCK, np.int64)
    sums[thread] = x[i] if i < x.size else 0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            sums[thread] += sums[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, sums[0])


TOTAL = Exercise("toy/total", task="Sum up.", parameters="x, out", cases=total_cases, answer=total_answer)


def turn_cases(rng):
    cases = []
    for n in (BLOCK, 3 * BLOCK, 10 * BLOCK):
        x = rng.permutation(n).astype(np.int32)
        expected = x.reshape(-1, BLOCK)[:, ::-1].reshape(-1)
        cases.append(Case(f"n = {n}", (x, unwritten(n, np.int32)), n // BLOCK, BLOCK, {1: expected}))
    return cases


@cuda.jit
def turn_answer(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    values = cuda.shared.array(BLOCK, np.int32)
    values[thread] = x[i]
    cuda.syncthreads()
    out[i] = values[BLOCK - 1 - thread]


TURN = Exercise("toy/turn", task="Turn each block round.", parameters="x, out", cases=turn_cases, answer=turn_answer)


def transpose_cases(rng):
    cases = []
    for h, w in ((1, 1), (32, 32), (33, 20), (70, 100)):
        x = rng.standard_normal((h, w), dtype=np.float32)
        grid = blocks(w, TILE), blocks(h, TILE)
        cases.append(Case(f"{h} x {w}", (x, unwritten((w, h), np.float32)), grid, (TILE, TILE), {1: x.T}))
    return cases


@cuda.jit
def transpose_answer(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    left, top = cuda.blockIdx.x * TILE, cuda.blockIdx.y * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


TRANSPOSE = Exercise(
    "toy/transpose", task="Transpose.", parameters="x, out", cases=transpose_cases, answer=transpose_answer
)


def negate_cases(rng):
    cases = []
    for h, w in ((1, 1), (16, 16), (5, 40), (33, 20)):
        x = rng.standard_normal((h, w), dtype=np.float32)
        grid = blocks(w, 16), blocks(h, 16)
        cases.append(Case(f"{h} x {w}", (x, unwritten((h, w), np.float32)), grid, (16, 16), {1: -x}))
    return cases


@cuda.jit
def negate_answer(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[row, column] = -x[row, column]


NEGATE = Exercise("toy/negate", task="Negate.", parameters="x, out", cases=negate_cases, answer=negate_answer)


def pair_cases(rng):
    cases = []
    for n in (1, BLOCK, BLOCK + 1, 500):
        x, y = rng.integers(1, 1000, (2, n)).astype(np.float32)  # both results are exact
        args = x, y, unwritten(n, np.float32), unwritten(n, np.float32)
        cases.append(Case(f"n = {n}", args, blocks(n), BLOCK, {2: x - y, 3: x * y}))
    return cases


@cuda.jit
def pair_answer(x, y, less, times):
    i = cuda.grid(1)
    if i < x.size:
        less[i], times[i] = x[i] - y[i], x[i] * y[i]


PAIR = Exercise(
    "toy/pair", task="Subtract and multiply.", parameters="x, y, less, times", cases=pair_cases, answer=pair_answer
)


def mean_cases(rng):
    cases = []
    for n in (1, 2, 100):
        x = rng.standard_normal(n)
        # NumPy adds in pairs, the answer in order: n - 1 roundings of sum |x| at most.
        cases.append(Case(f"n = {n}", (x,), None, None, {0: x.mean()}, {0: 2**-52 * np.abs(x).sum()}))
    return cases


MEAN = Exercise("toy/mean", task="The mean.", parameters="x", cases=mean_cases, answer=lambda x: sum(x) / len(x))
