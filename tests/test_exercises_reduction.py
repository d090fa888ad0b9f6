"""The exercises of chapter 10: answers that must pass, and wrong ones that must be found out, each for its reason."""

from __future__ import annotations

import numpy as np
import pytest

from pmpp import cuda
from pmpp.exercises.reduction import BLOCK, EXERCISES, beats, largest, warp_sum
from pmpp.lab.exercise import check, exercise

f0 = np.float32(0)
WRONG: list[tuple[str, str, object]] = []
RIGHT: list[tuple[str, object]] = [(one.name, one.answer) for one in EXERCISES]


def wrong(name, mistake):
    """The decorated kernel is a wrong answer to ``name``, and ``check`` must say ``mistake``."""
    return lambda kernel: WRONG.append((name, mistake, kernel)) or kernel


def right(name):
    return lambda kernel: RIGHT.append((name, kernel)) or kernel


# -- dot


@cuda.jit(device=True)
def tree(partial):
    """A right tree of sums over BLOCK values in shared memory, whose last barrier is the caller's."""
    thread, stride = cuda.threadIdx.x, BLOCK // 2
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2


@right("reduction/dot")
@cuda.jit
def dot_grid_stride(x, y, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    total = f0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i] * y[i]
    partial[cuda.threadIdx.x] = total
    tree(partial)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, partial[0])


@right("reduction/dot")
@cuda.jit
def dot_by_shuffles(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] * y[i] if i < x.size else f0)
    if thread < 32:
        partial[thread] = f0
    cuda.syncthreads()
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread])
        if thread == 0:
            cuda.atomic.add(out, 0, value)


@wrong("reduction/dot", "missing guard")
@cuda.jit
def dot_without_guard(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i]
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "missing barrier")
@cuda.jit
def dot_without_barrier(x, y, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else f0
    cuda.syncthreads()
    while stride > 0:
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "missing barrier")
@cuda.jit
def dot_without_first_barrier(x, y, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else f0
    while stride > 0:
        if thread < stride:
            partial[thread] += partial[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "uninitialised memory")
@cuda.jit
def dot_that_leaves_early(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if i >= x.size:
        return
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i]
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "uninitialised memory")
@cuda.jit
def dot_without_identity(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    if i < x.size:
        partial[thread] = x[i] * y[i]
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "too many atomics")
@cuda.jit
def dot_atomic_each(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, 0, x[i] * y[i])


@wrong("reduction/dot", "too many atomics")
@cuda.jit
def dot_atomic_each_warp(x, y, out):
    i = cuda.grid(1)
    value = warp_sum(x[i] * y[i] if i < x.size else f0)
    if cuda.laneid == 0:
        cuda.atomic.add(out, 0, value)


@wrong("reduction/dot", "accidental float64")
@cuda.jit
def dot_in_float64(x, y, out):
    i = cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float64)
    partial[cuda.threadIdx.x] = x[i] * y[i] if i < x.size else 0.0
    tree(partial)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "accidental float64")
@cuda.jit
def dot_with_a_literal(x, y, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    total = 0.0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[i] * y[i]
    partial[cuda.threadIdx.x] = total
    tree(partial)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "missing atomic")
@cuda.jit
def dot_without_atomic(x, y, out):
    i = cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[cuda.threadIdx.x] = x[i] * y[i] if i < x.size else f0
    tree(partial)
    if cuda.threadIdx.x == 0:
        out[0] += partial[0]


@wrong("reduction/dot", "only right for one block")
@cuda.jit
def dot_of_one_block(x, y, out):
    i = cuda.threadIdx.x
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[i] = x[i] * y[i] if i < x.size else f0
    tree(partial)
    if i == 0:
        cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "only right for whole blocks")
@cuda.jit
def dot_of_whole_blocks(x, y, out):
    i = cuda.grid(1)
    whole = (cuda.blockIdx.x + 1) * BLOCK <= x.size
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[cuda.threadIdx.x] = x[i] * y[i] if whole else f0
    tree(partial)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, partial[0])


# -- barrier


@right("reduction/barrier")
@cuda.jit
def spread_in_two_arrays(x, out):
    high, low = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    high[cuda.threadIdx.x] = value
    low[cuda.threadIdx.x] = -value
    spread = largest(high) + largest(low)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = spread


@wrong("reduction/barrier", "missing barrier")
@cuda.jit
def spread_as_given(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


@wrong("reduction/barrier", "missing barrier")
@cuda.jit
def spread_barrier_too_late(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    partial[cuda.threadIdx.x] = -value
    cuda.syncthreads()
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


@wrong("reduction/barrier", "missing barrier")
@cuda.jit
def spread_with_syncwarp(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    cuda.syncwarp()
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


@wrong("reduction/barrier", "missing barrier")
@cuda.jit
def spread_with_a_fence(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    cuda.threadfence_block()
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


@wrong("reduction/barrier", "divergent barrier")
@cuda.jit
def spread_barrier_in_a_branch(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    if cuda.threadIdx.x == 0:
        cuda.syncthreads()
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


@wrong("reduction/barrier", "too many barriers")
@cuda.jit
def spread_with_barriers_everywhere(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    cuda.syncthreads()
    partial[cuda.threadIdx.x] = value
    cuda.syncthreads()
    high = largest(partial)
    cuda.syncthreads()
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


@wrong("reduction/barrier", "missing guard")
@cuda.jit
def spread_without_guard(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[cuda.grid(1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    cuda.syncthreads()
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


@wrong("reduction/barrier", "wrong result")
@cuda.jit
def spread_from_zero(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    i = cuda.grid(1)
    value = x[i] if i < x.size else f0
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    cuda.syncthreads()
    partial[cuda.threadIdx.x] = -value
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


# -- warps


@right("reduction/warps")
@cuda.jit
def sums_by_butterfly(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = x[i] if i < x.size else f0
    for distance in (1, 2, 4, 8, 16):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)
    if cuda.laneid == 31:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread // 32 == 0:
        value = f0
        if thread < cuda.blockDim.x // 32:
            value = partial[thread]
        for distance in (1, 2, 4, 8, 16):
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)
        if thread == 0:
            out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "inactive lanes")
@cuda.jit
def sums_with_lanes_beyond_the_end_left_out(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = f0
    if i < x.size:
        value = warp_sum(x[i])
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else f0)
        if thread == 0:
            out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "inactive lanes")
@cuda.jit
def sums_with_a_part_of_the_first_warp(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else f0)
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < cuda.blockDim.x // 32:
        value = warp_sum(partial[thread])
        if thread == 0:
            out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "uninitialised memory")
@cuda.jit
def sums_of_leftovers(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else f0)
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread])
        if thread == 0:
            out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "missing barrier")
@cuda.jit
def sums_without_barrier(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else f0)
    if cuda.laneid == 0:
        partial[thread // 32] = value
    if thread < 32:
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else f0)
        if thread == 0:
            out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "missing guard")
@cuda.jit
def sums_without_guard(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i])
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else f0)
        if thread == 0:
            out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "too many barriers")
@cuda.jit
def sums_by_a_shared_tree(x, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), cuda.blockDim.x // 2
    partial = cuda.shared.array(1024, np.float32)
    partial[thread] = x[i] if i < x.size else f0
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            partial[thread] += partial[thread + stride]
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = partial[0]


@wrong("reduction/warps", "wrong result")
@cuda.jit
def sums_of_eight_warps(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else f0)
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread] if thread < min(8, cuda.blockDim.x // 32) else f0)
        if thread == 0:
            out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "wrong result")
@cuda.jit
def sums_of_the_first_warp(x, out):
    i = cuda.grid(1)
    value = warp_sum(x[i] if i < x.size else f0)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = value


@wrong("reduction/warps", "accidental float64")
@cuda.jit
def sums_in_float64(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float64)
    value = warp_sum(x[i] if i < x.size else 0.0)
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else 0.0)
        if thread == 0:
            out[cuda.blockIdx.x] = value


# -- argmax


@right("reduction/argmax")
@cuda.jit
def argmax_by_one_thread_a_warp(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    values, indices = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.int32)
    value, index = x[min(i, x.size - 1)], min(i, x.size - 1)
    for distance in (16, 8, 4, 2, 1):
        v = cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
        j = cuda.shfl_down_sync(0xFFFFFFFF, index, distance)
        if v > value or (v == value and j < index):
            value, index = v, j
    if cuda.laneid == 0:
        values[thread // 32], indices[thread // 32] = value, index
    cuda.syncthreads()
    if thread == 0:
        for w in range(1, BLOCK // 32):
            if values[w] > value or (values[w] == value and indices[w] < index):
                value, index = values[w], indices[w]
        out[cuda.blockIdx.x] = index


def argmax_with(start, index_of, better, barrier=True, guard=True):
    """A kernel for argmax from its parts, of which one is wrong."""

    @cuda.jit
    def argmax(x, out):
        thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
        value, index = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.int64)
        if guard:
            value[thread] = x[i] if i < x.size else start
        else:
            value[thread] = x[i]
        index[thread] = index_of(i, x)
        while stride > 0:
            if barrier:
                cuda.syncthreads()
            if thread < stride and better(value, index, thread, thread + stride):
                value[thread], index[thread] = value[thread + stride], index[thread + stride]
            stride //= 2
        if thread == 0:
            out[cuda.blockIdx.x] = index[0]

    return argmax


@cuda.jit(device=True)
def own(i, x):
    return i


@cuda.jit(device=True)
def within_the_block(i, x):
    return cuda.threadIdx.x


@cuda.jit(device=True)
def nought_beyond_the_end(i, x):
    return i if i < x.size else 0


@cuda.jit(device=True)
def or_equal(value, index, i, j):
    return value[j] >= value[i]


@cuda.jit(device=True)
def larger(value, index, i, j):
    return value[j] > value[i]


LOW = np.float32(-np.inf)
WRONG += [
    ("reduction/argmax", "wrong result", argmax_with(f0, own, beats)),
    ("reduction/argmax", "wrong result", argmax_with(np.float32(-1e30), own, beats)),
    ("reduction/argmax", "wrong result", argmax_with(LOW, own, or_equal)),
    ("reduction/argmax", "wrong result", argmax_with(LOW, own, larger)),
    ("reduction/argmax", "wrong result", argmax_with(LOW, nought_beyond_the_end, beats)),
    ("reduction/argmax", "only right for one block", argmax_with(LOW, within_the_block, beats)),
    ("reduction/argmax", "missing barrier", argmax_with(LOW, own, beats, barrier=False)),
    ("reduction/argmax", "missing guard", argmax_with(LOW, own, beats, guard=False)),
]


def argmax_with_literals(better):
    """The tree with its sizes written as numbers, 256 and 128: these are right, and no sizes of x."""

    @cuda.jit
    def argmax(x, out):
        thread, i, stride = cuda.threadIdx.x, cuda.grid(1), 128
        value, index = cuda.shared.array(256, np.float32), cuda.shared.array(256, np.int64)
        value[thread] = x[i] if i < x.size else LOW
        index[thread] = i
        while stride > 0:
            cuda.syncthreads()
            if thread < stride and better(value, index, thread, thread + stride):
                value[thread], index[thread] = value[thread + stride], index[thread + stride]
            stride //= 2
        if thread == 0:
            out[cuda.blockIdx.x] = index[0]

    return argmax


WRONG += [
    ("reduction/argmax", "wrong result", argmax_with_literals(larger)),
    ("reduction/argmax", "wrong result", argmax_with_literals(or_equal)),
]


@wrong("reduction/dot", "wrong result")  # with n = 1 it adds 0, which is not the same as never writing
@cuda.jit
def dot_of_the_wrong_element(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else f0
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, partial[1])


@wrong("reduction/argmax", "uncoalesced")  # in the tree, of which it also warns
@cuda.jit
def argmax_that_reads_again(x, out):
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    index = cuda.shared.array(BLOCK, np.int64)
    index[thread] = min(i, x.size - 1)
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            a, b = index[thread], index[thread + stride]
            if x[b] > x[a] or (x[b] == x[a] and b < a):
                index[thread] = b
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = index[0]


# ---------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize(("name", "mistake", "kernel"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_wrong_answer_is_found_out_for_its_reason(name, mistake, kernel):
    verdict = check(name, kernel)
    assert not verdict
    assert verdict.mistake == mistake, verdict.message


@pytest.mark.parametrize(("name", "kernel"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_passes(name, kernel):
    verdict = check(name, kernel)
    assert verdict, verdict.message


@pytest.mark.parametrize(("name", "kernel"), RIGHT, ids=lambda value: getattr(value, "__name__", None))
def test_a_right_answer_is_one_for_a_gpu_too(name, kernel, ptx):
    arguments = exercise(name).inputs[0].args
    assert ".entry" in ptx(kernel, *arguments)


@pytest.mark.parametrize("name", [one.name for one in EXERCISES])
def test_each_exercise_has_at_least_five_wrong_answers(name):
    assert len([1 for exercise, _, _ in WRONG if exercise == name]) >= 5
