"""Answers to the exercises of chapter 30, warps and argmax: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.reduction.exercises import BLOCK, beats, largest, warp_sum
from tests.support.wrong import WrongAnswer, collectors

f0 = np.float32(0)
ANSWERS, ALSO_RIGHT, wrong, right = collectors()


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


@right("reduction/warps")
@cuda.jit
def sums_whose_warps_thread_0_adds_up(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else f0)
    if thread % 32 == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread == 0:
        total = f0
        for warp in range(cuda.blockDim.x // 32):
            total += partial[warp]
        out[cuda.blockIdx.x] = total


@wrong(
    "reduction/warps", "inactive lanes", "from a lane that takes no part .* All lanes of the mask must make the call"
)
@cuda.jit
def sums_that_leave_early(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial = cuda.shared.array(32, np.float32)
    if i >= x.size:
        return
    value = warp_sum(x[i])
    if thread % 32 == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else f0)
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


@wrong("reduction/warps", "wrong result", "with n = 200 and 64 threads a block, .* this one is cuda.blockDim.x")
@cuda.jit
def sums_of_blocks_of_256(x, out):
    thread = cuda.threadIdx.x
    i = cuda.blockIdx.x * BLOCK + thread
    partial = cuda.shared.array(32, np.float32)
    value = warp_sum(x[i] if i < x.size else f0)
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_sum(partial[thread] if thread < cuda.blockDim.x // 32 else f0)
        if thread == 0:
            out[cuda.blockIdx.x] = value


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


@wrong("reduction/warps", "deliberate float64")
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
ANSWERS += [
    WrongAnswer("reduction/argmax", argmax_with(f0, own, beats), "wrong result"),
    WrongAnswer("reduction/argmax", argmax_with(np.float32(-1e30), own, beats), "wrong result"),
    WrongAnswer("reduction/argmax", argmax_with(LOW, own, or_equal), "wrong result"),
    WrongAnswer("reduction/argmax", argmax_with(LOW, own, larger), "wrong result"),
    WrongAnswer("reduction/argmax", argmax_with(LOW, nought_beyond_the_end, beats), "wrong result"),
    WrongAnswer("reduction/argmax", argmax_with(LOW, within_the_block, beats), "only right for one block"),
    WrongAnswer("reduction/argmax", argmax_with(LOW, own, beats, barrier=False), "missing barrier"),
    WrongAnswer("reduction/argmax", argmax_with(LOW, own, beats, guard=False), "missing guard"),
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


ANSWERS += [
    WrongAnswer("reduction/argmax", argmax_with_literals(larger), "wrong result"),
    WrongAnswer("reduction/argmax", argmax_with_literals(or_equal), "wrong result"),
]


@right("reduction/argmax")
@cuda.jit
def argmax_by_the_least_index_of_the_largest(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    partial, least = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(1, np.int64)
    value = x[min(i, x.size - 1)]
    partial[thread] = value
    if thread == 0:
        least[0] = x.size
    high = largest(partial)
    if i < x.size and value == high:
        cuda.atomic.min(least, 0, i)
    cuda.syncthreads()
    if thread == 0:
        out[cuda.blockIdx.x] = least[0]


@wrong("reduction/argmax", "too much traffic")
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


@right("reduction/argmax")
@cuda.jit
def argmax_by_two_trees(x, out):
    value, index = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.int64)
    thread, i, stride = cuda.threadIdx.x, cuda.grid(1), BLOCK // 2
    mine = x[i] if i < x.size else np.float32(-np.inf)
    value[thread] = mine
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            value[thread] = max(value[thread], value[thread + stride])
        stride //= 2
    cuda.syncthreads()
    index[thread] = i if i < x.size and mine == value[0] else x.size
    stride = BLOCK // 2
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            index[thread] = min(index[thread], index[thread + stride])
        stride //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = index[0]


@wrong("reduction/argmax", "idle threads", "for one or two of their 32 threads")
@cuda.jit
def argmax_that_thread_0_finds(x, out):
    value, i = cuda.shared.array(BLOCK, np.float32), cuda.grid(1)
    if i < x.size:
        value[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        best = 0
        for k in range(1, min(BLOCK, x.size - cuda.blockIdx.x * BLOCK)):
            if value[k] > value[best]:
                best = k
        out[cuda.blockIdx.x] = cuda.blockIdx.x * BLOCK + best
