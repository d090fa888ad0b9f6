"""Answers to the exercises of chapter 30, dot and barrier: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.reduction.exercises import BLOCK, largest, warp_sum
from tests.support.wrong import collectors

f0 = np.float32(0)
ANSWERS, ALSO_RIGHT, wrong, right = collectors()


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


@wrong("reduction/dot", "divergent barrier")
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


@wrong("reduction/dot", "deliberate float64", r"line \d+ asks for float64; .* where 0 will do")
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


@wrong("reduction/dot", "too many atomics", "in shared memory too")
@cuda.jit
def dot_by_atomics_in_shared_memory(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    total = cuda.shared.array(1, np.float32)
    if thread == 0:
        total[0] = 0
    cuda.syncthreads()
    if i < x.size:
        cuda.atomic.add(total, 0, x[i] * y[i])
    cuda.syncthreads()
    if thread == 0:
        cuda.atomic.add(out, 0, total[0])


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


@wrong("reduction/dot", "wrong result")  # with n = 1 it adds 0, which is not the same as never writing
@cuda.jit
def dot_of_the_wrong_element(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else f0
    tree(partial)
    if thread == 0:
        cuda.atomic.add(out, 0, partial[1])


@right("reduction/dot")
@cuda.jit
def dot_by_neighbours(x, y, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else 0.0
    while distance < BLOCK:
        cuda.syncthreads()
        if thread % (2 * distance) == 0:
            partial[thread] += partial[thread + distance]
        distance *= 2
    if thread == 0:
        cuda.atomic.add(out, 0, partial[0])


@right("reduction/dot")
@cuda.jit
def dot_that_adds_eight_warps_one_by_one(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(8, np.float32)
    value = warp_sum(x[i] * y[i] if i < x.size else f0)
    if thread % 32 == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread == 0:
        total = f0
        for warp in range(8):
            total += partial[warp]
        cuda.atomic.add(out, 0, total)


@wrong("reduction/dot", "idle threads", "for one or two of their 32 threads")
@cuda.jit
def dot_that_thread_0_adds_up(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else f0
    cuda.syncthreads()
    if thread == 0:
        total = f0
        for k in range(BLOCK):
            total += partial[k]
        cuda.atomic.add(out, 0, total)


@wrong("reduction/dot", "idle threads")
@cuda.jit
def dot_that_one_lane_of_a_warp_adds_up(x, y, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial, of_warps = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(8, np.float32)
    partial[thread] = x[i] * y[i] if i < x.size else f0
    cuda.syncthreads()
    if thread % 32 == 0:
        of_warps[thread // 32] = f0
        for k in range(thread, thread + 32):
            of_warps[thread // 32] += partial[k]
    cuda.syncthreads()
    if thread == 0:
        total = f0
        for warp in range(8):
            total += of_warps[warp]
        cuda.atomic.add(out, 0, total)


@wrong("reduction/dot", "added by every thread")
@cuda.jit
def dot_added_by_every_thread(x, y, out):
    i = cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[cuda.threadIdx.x] = x[i] * y[i] if i < x.size else f0
    tree(partial)
    cuda.syncthreads()
    cuda.atomic.add(out, 0, partial[0])


@wrong("reduction/dot", "only right for one block", "two blocks with nothing to do. Ask what the second block")
@cuda.jit
def dot_added_by_the_first_thread_of_all(x, y, out):
    i = cuda.grid(1)
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[cuda.threadIdx.x] = x[i] * y[i] if i < x.size else f0
    tree(partial)
    if i == 0:
        cuda.atomic.add(out, 0, partial[0])


# -- barrier


@right("reduction/barrier")
@cuda.jit
def spread_in_one_tree(x, out):
    high, low = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.float32)
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    high[thread] = x[i] if i < x.size else np.float32(-np.inf)
    low[thread] = x[i] if i < x.size else np.float32(np.inf)
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            high[thread] = max(high[thread], high[thread + stride])
            low[thread] = min(low[thread], low[thread + stride])
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = high[0] - low[0]


@wrong("reduction/barrier", "repeated work", "A block has one result here: let one of its threads write it")
@cuda.jit
def spread_written_by_every_thread(x, out):
    partial = cuda.shared.array(BLOCK, np.float32)
    value = x[min(cuda.grid(1), x.size - 1)]
    partial[cuda.threadIdx.x] = value
    high = largest(partial)
    cuda.syncthreads()
    partial[cuda.threadIdx.x] = -value
    out[cuda.blockIdx.x] = high + largest(partial)


@wrong("reduction/barrier", "divergent barrier", "returns on line")
@cuda.jit
def spread_that_leaves_early(x, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    partial = cuda.shared.array(BLOCK, np.float32)
    partial[cuda.threadIdx.x] = x[i]
    high = largest(partial)
    cuda.syncthreads()
    partial[cuda.threadIdx.x] = -x[i]
    low = -largest(partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = high - low


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


@wrong("reduction/dot", "idle blocks", "only 1 of the 21 blocks of the launch does any work")
@cuda.jit
def dot_by_the_first_block(x, y, out):
    thread, stride, total = cuda.threadIdx.x, 128, np.float32(0)
    if cuda.blockIdx.x == 0:
        partial = cuda.shared.array(256, np.float32)
        for i in range(thread, x.size, 256):
            total += x[i] * y[i]
        partial[thread] = total
        while stride > 0:
            cuda.syncthreads()
            if thread < stride:
                partial[thread] += partial[thread + stride]
            stride //= 2
        if thread == 0:
            cuda.atomic.add(out, 0, partial[0])
