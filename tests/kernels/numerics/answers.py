"""Answers to the exercises of chapter 38: wrong ones with their mistakes, and other right ones."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.numerics.exercises import BLOCK
from pmpp.kernels.numerics.ladder import join, two_sum
from tests.support.wrong import collectors

f0 = np.float32(0)
ANSWERS, ALSO_RIGHT, wrong, right = collectors()


# -- dot


@right("numerics/dot")
@cuda.jit
def dot_as_pairs(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total, rest = f0, f0
        for k in range(x.shape[0]):
            product = x[k, i] * y[k, i]
            total, rest = join(total, rest, product, cuda.fma(x[k, i], y[k, i], -product))
        out[i] = total + rest


@right("numerics/dot")
@cuda.jit
def dot_with_a_comparison(x, y, out):
    """Neumaier 1974: three operations, from the larger of the two. The product is split by hand (Veltkamp 1968)."""
    i = cuda.grid(1)
    if i < out.size:
        total, rest = f0, f0
        for k in range(x.shape[0]):
            a, b = x[k, i], y[k, i]
            far_a, far_b = np.float32(4097) * a, np.float32(4097) * b
            high_a, high_b = far_a - (far_a - a), far_b - (far_b - b)
            low_a, low_b = a - high_a, b - high_b
            product = a * b
            below = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
            after = total + product
            if abs(total) >= abs(product):
                rest += ((total - after) + product) + below
            else:
                rest += ((product - after) + total) + below
            total = after
        out[i] = total + rest


@wrong("numerics/dot", "wrong result", "What do the roundings take away")
@cuda.jit
def dot_plain(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total = f0
        for k in range(x.shape[0]):
            total += x[k, i] * y[k, i]
        out[i] = total


@wrong("numerics/dot", "wrong result")
@cuda.jit
def dot_by_fma_alone(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total = f0
        for k in range(x.shape[0]):
            total = cuda.fma(x[k, i], y[k, i], total)
        out[i] = total


@wrong("numerics/dot", "products are rounded")
@cuda.jit
def dot_of_rounded_products(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total, rest = f0, f0
        for k in range(x.shape[0]):
            total, lost = two_sum(total, x[k, i] * y[k, i])
            rest += lost
        out[i] = total + rest


@wrong("numerics/dot", "deliberate float64")
@cuda.jit
def dot_in_float64(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        total = 0.0
        for k in range(x.shape[0]):
            total += np.float64(x[k, i]) * np.float64(y[k, i])
        out[i] = total


@wrong("numerics/dot", "missing guard")
@cuda.jit
def dot_without_guard(x, y, out):
    i = cuda.grid(1)
    total, rest = f0, f0
    for k in range(x.shape[0]):
        product = x[k, i] * y[k, i]
        total, lost = two_sum(total, product)
        rest += lost + cuda.fma(x[k, i], y[k, i], -product)
    out[i] = total + rest


@wrong("numerics/dot", "only right for one block")
@cuda.jit
def dot_of_one_block(x, y, out):
    i = cuda.threadIdx.x
    if i < out.size:
        total, rest = f0, f0
        for k in range(x.shape[0]):
            product = x[k, i] * y[k, i]
            total, lost = two_sum(total, product)
            rest += lost + cuda.fma(x[k, i], y[k, i], -product)
        out[i] = total + rest


# -- fixed


@cuda.jit(device=True)
def tree(partial):
    """A right tree of sums over BLOCK values in shared memory, whose last barrier is the caller's."""
    thread, stride = cuda.threadIdx.x, BLOCK // 2
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2


@right("numerics/fixed")
@cuda.jit
def fixed_by_shuffles(x, out):
    i = cuda.grid(1)
    partial = cuda.shared.array(8, np.int64)
    units = np.int64(x[i] * np.float32(1048576)) if i < x.size else np.int64(0)
    for distance in (16, 8, 4, 2, 1):
        units += cuda.shfl_xor_sync(0xFFFFFFFF, units, distance)
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = units
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        total = np.int64(0)
        for warp in range(8):
            total += partial[warp]
        cuda.atomic.add(out, 0, total)


@right("numerics/fixed")
@cuda.jit
def fixed_by_two_words(x, out):
    """The sums of the low halves and of the high halves of 256 numbers each fit into 32 bits."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    low, high = cuda.shared.array(BLOCK, np.int32), cuda.shared.array(BLOCK, np.int32)
    units = np.int32(x[i] * np.float32(1048576)) if i < x.size else np.int32(0)
    low[thread], high[thread] = units & 0xFFFF, units >> 16
    tree(low)
    tree(high)
    if thread == 0:
        cuda.atomic.add(out, 0, np.int64(high[0]) * 65536 + low[0])


@wrong("numerics/fixed", "wrong result", "a float32 has 24 bits")
@cuda.jit
def fixed_added_as_floats(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] if i < x.size else f0
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, np.int64(partial[0] * np.float32(2**20)))


@wrong("numerics/fixed", "overflow")
@cuda.jit
def fixed_in_32_bits(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.int32)
    partial[thread] = np.int32(x[i] * np.float32(2**20)) if i < x.size else np.int32(0)
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, np.int64(partial[0]))


@wrong("numerics/fixed", "cut off")
@cuda.jit
def fixed_converted_too_early(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.int64)
    partial[thread] = np.int64(x[i]) * 2**20 if i < x.size else np.int64(0)
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("numerics/fixed", "too many atomics")
@cuda.jit
def fixed_with_an_atomic_each(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, 0, np.int64(x[i] * np.float32(2**20)))


@wrong("numerics/fixed", "too many atomics", "in shared memory too")
@cuda.jit
def fixed_by_atomics_in_shared_memory(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    total = cuda.shared.array(1, np.int64)
    if thread == 0:
        total[0] = 0
    cuda.syncthreads()
    if i < x.size:
        cuda.atomic.add(total, 0, np.int64(x[i] * np.float32(2**20)))
    cuda.syncthreads()
    if thread == 0:
        cuda.atomic.add(out, 0, total[0])


@wrong("numerics/fixed", "missing guard")
@cuda.jit
def fixed_without_guard(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.int64)
    partial[thread] = np.int64(x[i] * np.float32(2**20))
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("numerics/fixed", "missing barrier")
@cuda.jit
def fixed_without_barriers(x, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    partial = cuda.shared.array(BLOCK, np.int64)
    partial[thread] = np.int64(x[i] * np.float32(2**20)) if i < x.size else np.int64(0)
    while stride > 0:
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("numerics/fixed", "missing atomic")
@cuda.jit
def fixed_without_atomic(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.int64)
    partial[thread] = np.int64(x[i] * np.float32(2**20)) if i < x.size else np.int64(0)
    tree(partial)
    if thread == 0:
        out[0] += partial[0]


# -- variance


@right("numerics/variance")
@cuda.jit
def variance_in_two_passes(x, out):
    i = cuda.grid(1)
    if i < out.size:
        total, squares = f0, f0
        for k in range(x.shape[0]):
            total += x[k, i]
        mean = total / np.float32(x.shape[0])
        for k in range(x.shape[0]):
            squares += (x[k, i] - mean) * (x[k, i] - mean)
        out[i] = squares / np.float32(x.shape[0])


@right("numerics/variance")
@cuda.jit
def variance_shifted_by_the_first(x, out):
    i = cuda.grid(1)
    if i < out.size:
        total, squares, rows = f0, f0, np.float32(x.shape[0])
        for k in range(x.shape[0]):
            away = x[k, i] - x[0, i]
            total += away
            squares += away * away
        out[i] = (squares - total * total / rows) / rows


@wrong("numerics/variance", "wrong result", "how many of their digits")
@cuda.jit
def variance_in_one_pass(x, out):
    i = cuda.grid(1)
    if i < out.size:
        total, squares, rows = f0, f0, np.float32(x.shape[0])
        for k in range(x.shape[0]):
            total += x[k, i]
            squares += x[k, i] * x[k, i]
        mean = total / rows
        out[i] = squares / rows - mean * mean


@wrong("numerics/variance", "standard deviation")
@cuda.jit
def variance_under_a_root(x, out):
    i = cuda.grid(1)
    if i < out.size:
        mean, squares = f0, f0
        for k in range(x.shape[0]):
            mean += x[k, i] / np.float32(x.shape[0])
        for k in range(x.shape[0]):
            squares += (x[k, i] - mean) * (x[k, i] - mean)
        out[i] = math.sqrt(squares / np.float32(x.shape[0]))


@wrong("numerics/variance", "divided by n - 1")
@cuda.jit
def variance_of_a_sample(x, out):
    i = cuda.grid(1)
    if i < out.size:
        mean, squares = f0, f0
        for k in range(x.shape[0]):
            before = x[k, i] - mean
            mean += before / np.float32(k + 1)
            squares += before * (x[k, i] - mean)
        out[i] = squares / np.float32(x.shape[0] - 1)


@wrong("numerics/variance", "not divided")
@cuda.jit
def variance_not_divided(x, out):
    i = cuda.grid(1)
    if i < out.size:
        mean, squares = f0, f0
        for k in range(x.shape[0]):
            before = x[k, i] - mean
            mean += before / np.float32(k + 1)
            squares += before * (x[k, i] - mean)
        out[i] = squares


@wrong("numerics/variance", "deliberate float64")
@cuda.jit
def variance_in_float64(x, out):
    i = cuda.grid(1)
    if i < out.size:
        total, squares = 0.0, 0.0
        for k in range(x.shape[0]):
            total += x[k, i]
            squares += np.float64(x[k, i]) * np.float64(x[k, i])
        mean = total / x.shape[0]
        out[i] = squares / x.shape[0] - mean * mean


@wrong("numerics/variance", "missing guard")
@cuda.jit
def variance_without_guard(x, out):
    i = cuda.grid(1)
    mean, squares = f0, f0
    for k in range(x.shape[0]):
        before = x[k, i] - mean
        mean += before / np.float32(k + 1)
        squares += before * (x[k, i] - mean)
    out[i] = squares / np.float32(x.shape[0])


@wrong("numerics/variance", "only right for one block")
@cuda.jit
def variance_of_one_block(x, out):
    i = cuda.threadIdx.x
    if i < out.size:
        mean, squares = f0, f0
        for k in range(x.shape[0]):
            before = x[k, i] - mean
            mean += before / np.float32(k + 1)
            squares += before * (x[k, i] - mean)
        out[i] = squares / np.float32(x.shape[0])
