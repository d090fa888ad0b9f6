"""Wrong softmaxes. Wrong answers to the exercises of chapter 16 are in tests/test_exercises_softmax.py."""

import math

import numpy as np

from pmpp import cuda
from pmpp import softmax as room
from pmpp.lab import device
from pmpp.softmax import place
from pmpp.softmax_parts import MAX, SUM, append, block_all, block_join, warp_all
from wrong import WrongRung

BLOCK = room.BLOCK
LOWEST = np.float32(np.finfo(np.float32).min)
f0, f1 = np.float32(0), np.float32(1)


def by_blocks(kernel, name=""):
    """``kernel(x, out, log)``, a block for each row of x seen as (outer, n, inner), as a function like the rungs."""

    def run(x, axis=-1, log=False):
        out, rows, results, _, log, _ = room._arguments(x, axis, log, None, 0)
        if rows is not None:
            kernel[rows.shape[0] * rows.shape[2], BLOCK](rows, results, log)
        return out

    run.__name__ = name or getattr(kernel, "py_func", kernel).__name__
    return run


def three_passes(start=LOWEST, shift=True, step=BLOCK, rest=0, one=f1):
    """A kernel of three passes from its parts, right if left alone."""

    @cuda.jit
    def kernel(x, out, log):
        a, b = place(x, cuda.blockIdx.x)
        n, thread = x.shape[1], cuda.threadIdx.x
        best, added = start, f0
        for i in range(thread, n - rest, step):
            best = max(best, x[a, i, b])
        best = block_all(MAX, best, cuda.shared.array(32, np.float32), LOWEST)
        best = best if shift else f0
        for i in range(thread, n - rest, step):
            added += one * math.exp(x[a, i, b] - best)
        added = block_all(SUM, added, cuda.shared.array(32, np.float32), f0)
        for i in range(thread, n, step):
            v = x[a, i, b] - best
            out[a, i, b] = v - math.log(added) if log else math.exp(v) / added

    return kernel


@cuda.jit
def without_barrier(x, out, log):
    a, b = place(x, cuda.blockIdx.x)
    partial, thread, best = cuda.shared.array(32, np.float32), cuda.threadIdx.x, LOWEST
    for i in range(thread, x.shape[1], BLOCK):
        best = max(best, x[a, i, b])
    best = warp_all(MAX, best)
    if cuda.laneid == 0:
        partial[thread // 32] = best
    best = warp_all(MAX, partial[cuda.laneid] if cuda.laneid < BLOCK // 32 else LOWEST)
    added = f0
    for i in range(thread, x.shape[1], BLOCK):
        added += math.exp(x[a, i, b] - best)
    added = block_all(SUM, added, cuda.shared.array(32, np.float32), f0)
    for i in range(thread, x.shape[1], BLOCK):
        v = x[a, i, b] - best
        out[a, i, b] = v - math.log(added) if log else math.exp(v) / added


@cuda.jit
def one_array_for_both(x, out, log):
    """The sums go where a slow warp may still read maxima."""
    a, b = place(x, cuda.blockIdx.x)
    partial, best, added = cuda.shared.array(32, np.float32), LOWEST, f0
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        best = max(best, x[a, i, b])
    best = block_all(MAX, best, partial, LOWEST)
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        added += math.exp(x[a, i, b] - best)
    added = block_all(SUM, added, partial, f0)
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        v = x[a, i, b] - best
        out[a, i, b] = v - math.log(added) if log else math.exp(v) / added


@cuda.jit(device=True)
def append_without_rescaling(highest, total, value):
    top = max(highest, value)
    return top, total + math.exp(value - top)


def online(start, rule):
    @cuda.jit
    def kernel(x, out, log):
        a, b = place(x, cuda.blockIdx.x)
        best, added = start, f0
        for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
            best, added = rule(best, added, x[a, i, b])
        highests, totals = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.float32)
        best, added = block_join(best, added, highests, totals, (start, f0))
        for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
            v = x[a, i, b] - best
            out[a, i, b] = v - math.log(added) if log else math.exp(v) / added

    return kernel


@cuda.jit
def beyond_the_end(x, out, log):
    a, b = place(x, cuda.blockIdx.x)
    best, added = LOWEST, f0
    for i in range(cuda.threadIdx.x, x.shape[1] + BLOCK, BLOCK):
        best, added = append(best, added, x[a, i, b])
    highests, totals = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.float32)
    best, added = block_join(best, added, highests, totals, (LOWEST, f0))
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        v = x[a, i, b] - best
        out[a, i, b] = v - math.log(added) if log else math.exp(v) / added


@cuda.jit
def thread_per_row_kernel(x, out, log):
    row = cuda.grid(1)
    if row < x.shape[0] * x.shape[2]:
        a, b = place(x, row)
        best, added = LOWEST, f0
        for i in range(x.shape[1]):
            best, added = append(best, added, x[a, i, b])
        for i in range(x.shape[1]):
            v = x[a, i, b] - best
            out[a, i, b] = v - math.log(added) if log else math.exp(v) / added


def thread_per_row(x, axis=-1, log=False):
    out, rows, results, _, log, _ = room._arguments(x, axis, log, None, 0)
    if rows is not None:
        count = rows.shape[0] * rows.shape[2]
        thread_per_row_kernel[-(-count // BLOCK), BLOCK](rows, results, log)
    return out


def always_the_last_axis(x, axis=-1, log=False):
    return room.fused(x, -1, log)


def into_the_input(x, axis=-1, log=False):
    x = device.to_device(x) if isinstance(x, np.ndarray) else x
    return room.fused(x, axis, log, out=x)  # a block for each row: no race, and still not what was asked for


RIGHT = by_blocks(three_passes(), "three_passes")
ONLINE = by_blocks(online(LOWEST, append), "online")
RUNGS = [
    WrongRung(by_blocks(three_passes(shift=False), "no_shift"), "wrong result"),  # exp overflows
    WrongRung(by_blocks(three_passes(start=f0), "maximum_from_zero"), "wrong result"),  # and here all is 0
    WrongRung(by_blocks(three_passes(step=2 * BLOCK), "every_other_block"), "wrong result"),
    WrongRung(by_blocks(three_passes(rest=1), "without_the_last"), "wrong result"),
    WrongRung(by_blocks(three_passes(one=1.0), "float64_literal"), "float64"),
    WrongRung(by_blocks(without_barrier), "race"),
    WrongRung(by_blocks(one_array_for_both), "race"),
    WrongRung(by_blocks(online(LOWEST, append_without_rescaling), "sum_not_rescaled"), "wrong result"),
    WrongRung(by_blocks(online(np.float32(-np.inf), append), "minus_infinity_minus_itself"), "wrong result"),
    WrongRung(by_blocks(beyond_the_end), "out of bounds"),
    WrongRung(thread_per_row, "traffic"),
    WrongRung(always_the_last_axis, "wrong result"),
    WrongRung(into_the_input, "input changed"),
]
