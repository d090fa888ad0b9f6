"""Wrong reductions. Wrong answers to the exercises of chapter 30 are in answers*.py."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.reduction import OPERATORS, SUM, combine, warp_combine
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 256


def identity_of(op, dtype):
    if op == "sum":
        return dtype.type(0)
    if dtype.kind == "f":
        return dtype.type(-np.inf if op == "max" else np.inf)
    return np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max


def reducer(kernel, name="", start=identity_of, narrow=False):
    """``kernel(x, partials, op, identity)`` as a function of (x, op): it makes a value a block, NumPy makes them one.

    ``start`` gives the identity; ``narrow`` keeps sums of integers in int32. Both are right if left alone.
    """

    def reduce(x, op="sum"):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        wide = np.dtype(np.int64) if op == "sum" and x.dtype.kind == "i" else x.dtype
        blocks = max(1, -(-x.size // BLOCK))
        between = np.dtype(np.int32) if narrow and op == "sum" and wide.kind == "i" else wide
        work = device.to_device(np.full(blocks, identity_of(op, wide), between))
        if x.size:
            kernel[blocks, BLOCK](x, work, OPERATORS[op], wide.type(start(op, wide)))
        with np.errstate(all="ignore"):
            ends = work.copy_to_host()
            ufunc = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
            return device.to_device(ufunc.reduce(ends, dtype=ends.dtype, keepdims=True).astype(wide))

    reduce.__name__ = name or getattr(kernel, "py_func", kernel).__name__
    return reduce


@cuda.jit
def no_barrier(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def no_barrier_in_the_last_warp(x, partials, op, identity):
    """As was right before Volta: the lanes of a warp need not stay together."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    stride = BLOCK // 2
    while stride >= 32:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        stride //= 2
    if thread < 32:
        while stride > 0:
            if thread < stride:
                partial[thread] = combine(op, partial[thread], partial[thread + stride])
            stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def a_barrier_for_some(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
            cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def no_guard(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def leftovers(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    if i < x.size:
        partial[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def right(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def from_the_wrong_stride(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 4
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def of_whole_blocks(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size // BLOCK * BLOCK else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def loses_nan(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            a, b = partial[thread], partial[thread + stride]
            if op == SUM:
                a += b
            elif (op == 1 and b > a) or (op == 2 and b < a):
                a = b
            partial[thread] = a
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def of_the_first_warp(x, partials, op, identity):
    i = cuda.grid(1)
    value = warp_combine(op, x[i] if i < x.size else identity)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = value


@cuda.jit
def a_shuffle_for_some(x, partials, op, identity):
    i = cuda.grid(1)
    if i < x.size:
        value = warp_combine(op, x[i])
        if cuda.threadIdx.x == 0:
            partials[cuda.blockIdx.x] = value


@cuda.jit
def every_block_to_the_same_place(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[0] = combine(op, partials[0], partial[0])


@cuda.jit
def an_atomic_each(x, partials, op, identity):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        if op == SUM or value != value:
            cuda.atomic.add(partials, cuda.blockIdx.x, value)
        elif op == 1:
            cuda.atomic.max(partials, cuda.blockIdx.x, value)
        else:
            cuda.atomic.min(partials, cuda.blockIdx.x, value)


@cuda.jit
def in_float64(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    # Enough for float32, and too little for a large int64.
    partial = cuda.shared.array(BLOCK, np.float64)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


@cuda.jit
def in_float64_where_it_is_enough(x, partials, op, identity):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, partials.dtype)
    partial[thread] = x[i] if i < x.size else identity
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            if op == SUM and partials.itemsize == 4:
                partial[thread] = partial[thread] + 1.0 * partial[thread + stride]
            else:
                partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        partials[cuda.blockIdx.x] = partial[0]


RUNGS = (
    WrongRung(reducer(no_barrier), "race"),
    WrongRung(reducer(no_barrier_in_the_last_warp), "race"),
    WrongRung(reducer(every_block_to_the_same_place), "race"),
    WrongRung(reducer(a_barrier_for_some), "divergent barrier"),
    WrongRung(reducer(a_shuffle_for_some), "divergent barrier"),
    WrongRung(reducer(no_guard), "out of bounds"),
    WrongRung(reducer(leftovers), "uninitialised read"),
    WrongRung(reducer(from_the_wrong_stride), "wrong result"),
    WrongRung(reducer(of_whole_blocks), "wrong result"),
    WrongRung(reducer(of_the_first_warp), "wrong result"),
    WrongRung(reducer(loses_nan), "wrong result"),
    WrongRung(
        reducer(right, "from_zero", start=lambda op, dtype: 0), "wrong result"
    ),  # negative numbers have a maximum
    WrongRung(reducer(right, "in_int32", narrow=True), "wrong result"),
    WrongRung(reducer(in_float64), "wrong result"),
    WrongRung(reducer(in_float64_where_it_is_enough), "float64"),
    WrongRung(reducer(an_atomic_each), "atomics"),
)
RIGHT = reducer(right)
