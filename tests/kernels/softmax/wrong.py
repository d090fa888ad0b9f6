"""Wrong softmaxes. Wrong answers to the exercises of chapter 50 are in answers.py."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_max, block_sum, blocks, warp_max
from pmpp.kernels.softmax import ladder as room
from pmpp.kernels.softmax import place
from pmpp.kernels.softmax.rows import append, block_join, rows_kernel
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongRung

BLOCK = room.BLOCK
LOWEST = np.float32(np.finfo(np.float32).min)
f0, f1 = np.float32(0), np.float32(1)


def by_blocks(kernel, name=""):
    """``kernel(x, out, log)``, a block for each row of x seen as (outer, n, inner), as a function like the rungs."""

    def run(x, axis=-1, log=False):
        p = room.arguments(x, axis, log)
        if not p.done:
            kernel[p.rows, BLOCK](p.x, p.out, p.log)
        return p.result

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
        best = block_max(best, cuda.shared.array(32, np.float32))
        best = best if shift else f0
        for i in range(thread, n - rest, step):
            added += one * math.exp(x[a, i, b] - best)
        added = block_sum(added, cuda.shared.array(32, np.float32))
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
    best = warp_max(best)
    if cuda.laneid == 0:
        partial[thread // 32] = best
    best = warp_max(partial[cuda.laneid] if cuda.laneid < BLOCK // 32 else LOWEST)
    added = f0
    for i in range(thread, x.shape[1], BLOCK):
        added += math.exp(x[a, i, b] - best)
    added = block_sum(added, cuda.shared.array(32, np.float32))
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
    best = block_max(best, partial)
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        added += math.exp(x[a, i, b] - best)
    added = block_sum(added, partial)
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
    p = room.arguments(x, axis, log)
    if not p.done:
        thread_per_row_kernel[blocks(p.rows, BLOCK), BLOCK](p.x, p.out, p.log)
    return p.result


def by_elements(name, height=lambda n: (n - 1).bit_length(), absent=f0):
    """Rows of up to 32, a lane for each element, right if left alone. Longer rows go to `fused`."""

    @cuda.jit
    def kernel(x, out, n, levels, log):
        lane = cuda.threadIdx.x
        i = (cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y) * n + lane
        mine = lane < n and i < x.size
        value = x[i] if mine else LOWEST
        best = max(value, LOWEST)
        for k in range(levels):
            best = max(best, cuda.shfl_xor_sync(FULL_WARP, best, 1 << k))
        e = math.exp(value - best) if mine else absent
        added = e
        for k in range(levels):
            added += cuda.shfl_xor_sync(FULL_WARP, added, 1 << k)
        if mine:
            out[i] = value - best - math.log(added) if log else e / added

    def run(x, axis=-1, log=False):
        p = room.arguments(x, axis, log)
        if p.done or p.x.shape[1] > 32 or p.x.shape[2] > 1 or p.none.highest != LOWEST:
            return room.fused(x, axis, log)
        n = p.x.shape[1]
        lanes = 1 << (n - 1).bit_length()
        grid, block = blocks(p.rows * lanes, BLOCK), (lanes, BLOCK // lanes)
        kernel[grid, block](p.x.reshape(p.x.size), p.out.reshape(p.x.size), n, height(n), p.log)
        return p.result

    run.__name__ = name
    return run


def in_pairs(kernel):
    """``kernel(x, out)``, two rows of 2 a vector. Other rows go to `fused`."""

    def run(x, axis=-1, log=False):
        p = room.arguments(x, axis, log)
        if p.done or p.log or p.x.shape[1:] != (2, 1) or p.none.highest != LOWEST:
            return room.fused(x, axis, log)
        kernel[blocks(p.x.size, 4 * BLOCK), BLOCK](p.x.reshape(p.x.size), p.out.reshape(p.x.size))
        return p.result

    run.__name__ = getattr(kernel, "py_func", kernel).__name__
    return run


@cuda.jit
def vector_beyond_the_end(x, out):
    i = 4 * cuda.grid(1)
    if i < x.size:
        a, b, c, d = load128(x, i)
        left, right = max(a, b), max(c, d)
        a, b, c, d = math.exp(a - left), math.exp(b - left), math.exp(c - right), math.exp(d - right)
        store128(out, i, (a / (a + b), b / (a + b), c / (c + d), d / (c + d)))


@cuda.jit
def without_the_rest(x, out):
    i = 4 * cuda.grid(1)
    if i + 4 <= x.size:
        a, b, c, d = load128(x, i)
        left, right = max(a, b), max(c, d)
        a, b, c, d = math.exp(a - left), math.exp(b - left), math.exp(c - right), math.exp(d - right)
        store128(out, i, (a / (a + b), b / (a + b), c / (c + d), d / (c + d)))


def a_vector_is_a_row(x, axis=-1, log=False):
    """Rows of 2 seen as rows of 4: what fills a vector is taken for one row."""
    p = room.arguments(x, axis, log)
    if p.done or p.x.shape[1:] != (2, 1) or p.none.highest != LOWEST:
        return room.fused(x, axis, log)
    flat = p.x.reshape(p.x.size), p.out.reshape(p.x.size)
    rows_kernel[1, BLOCK](*flat, (0,) * 4, (0,), (0,) * 4, p.x, p.none, p.log)
    return p.result


def always_the_last_axis(x, axis=-1, log=False):
    return room.fused(x, -1, log)


def into_the_input(x, axis=-1, log=False):
    x = device.to_device(x) if isinstance(x, np.ndarray) else x
    p = room.arguments(x, axis, log)
    # `arguments` would refuse it. A block for each row: no race, and still not what was asked for.
    return room.fused.run(p.replace(result=x, out=p.x))


RIGHT = by_blocks(three_passes(), "three_passes")
ONLINE = by_blocks(online(LOWEST, append), "online")
ELEMENTS = by_elements("by_elements")
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
    WrongRung(by_elements("tree_too_low", height=lambda n: n.bit_length() - 1), "wrong result"),
    WrongRung(by_elements("absent_lanes_count", absent=f1), "wrong result"),
    WrongRung(by_elements("tree_over_several_rows", height=lambda n: 5), "wrong result"),
    WrongRung(in_pairs(vector_beyond_the_end), "out of bounds"),
    WrongRung(in_pairs(without_the_rest), "wrong result"),
    WrongRung(a_vector_is_a_row, "wrong result"),
]
