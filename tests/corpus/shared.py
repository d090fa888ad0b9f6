"""Races in shared memory between the warps of a block: a barrier is missing."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros
from .elsewhere import put


def reverse(x, out):
    return x.reshape(-1, 64)[:, ::-1].ravel()


@pair("race", "shared", "s", grid=2, result=reverse)
@cuda.jit
def exchange(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]  # WITH
    if mended:
        cuda.syncthreads()
    out[cuda.grid(1)] = s[63 - t]  # BUG


@pair("race", "shared", "s", grid=2, result=reverse)
@cuda.jit
def store_in_a_function_of_another_file(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    put(s, t, x[cuda.grid(1)])  # WITH
    if mended:
        cuda.syncthreads()
    out[cuda.grid(1)] = s[63 - t]  # BUG


@pair("race", "shared", "s", grid=4, result=reverse)
@cuda.jit
def last_block_skips_the_barrier(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]  # WITH
    if mended or cuda.blockIdx.x < 3:
        cuda.syncthreads()
    out[cuda.grid(1)] = s[63 - t]  # BUG


@pair("race", "shared", "s", result=lambda x, out: np.full(64, 5))
@cuda.jit
def one_thread_tells_the_others(x, out, mended):
    s = cuda.shared.array(1, np.float32)
    if cuda.threadIdx.x == 0:
        s[0] = x[5]  # WITH
    if mended:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = s[0]  # BUG


@pair("race", "shared", "found", result=lambda x, out: np.ones(64))
@cuda.jit
def flag_read_too_early(x, out, mended):
    found = cuda.shared.array(1, np.int32)
    found[0] = 0
    cuda.syncthreads()
    if x[cuda.threadIdx.x] > 10:
        found[0] = 1  # WITH
    if mended:
        cuda.syncthreads()
    out[cuda.threadIdx.x] = found[0]  # BUG


@pair("race", "shared", "found", result=lambda x, out: np.r_[1, np.zeros(63)])
@cuda.jit
def flag_read_by_one_that_also_sets_it(x, out, mended):
    found = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    found[0] = 0
    cuda.syncthreads()
    if x[t] > 10:
        found[0] = 1  # WITH
    if mended:
        cuda.syncthreads()
    if t == 63:
        out[0] = found[0]  # BUG


@pair("race", "shared", "s", result=lambda x, out: np.full(64, 63))
@cuda.jit
def every_thread_writes_its_own_value(x, out, mended):
    s = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    if t == 63 or not mended:
        s[0] = x[t]  # BUG
    cuda.syncthreads()
    out[t] = s[0]


@pair("race", "shared", "n", result=lambda x, out: np.full(64, 64))
@cuda.jit
def counter_without_atomic(x, out, mended):
    n = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 0
    cuda.syncthreads()
    if mended:
        cuda.atomic.add(n, 0, 1)
    else:
        n[0] += 1  # BUG
    cuda.syncthreads()
    out[t] = n[0]


@pair("race", "shared", "n", result=lambda x, out: np.r_[np.zeros(32), np.full(32, 32)])
@cuda.jit
def count_read_beside_the_atomics(x, out, mended):
    n = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 0
    cuda.syncthreads()
    if t < 32:
        cuda.atomic.add(n, 0, 1)  # WITH
    if mended:
        cuda.syncthreads()
    if t >= 32:
        out[t] = n[0]  # BUG


@pair("race", "shared", "n", result=lambda x, out: np.r_[64, np.zeros(63)])
@cuda.jit
def count_read_by_the_last_that_counts(x, out, mended):
    n = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(n, 0, 1)  # WITH
    if mended:
        cuda.syncthreads()
    if t == 63:
        out[0] = n[0]  # BUG


@pair("race", "shared", "n", result=lambda x, out: np.full(64, 64))
@cuda.jit
def zeroed_beside_the_atomics(x, out, mended):
    n = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        n[0] = 0  # WITH
    if mended:
        cuda.syncthreads()
    cuda.atomic.add(n, 0, 1)  # BUG
    cuda.syncthreads()
    out[t] = n[0]


@pair("race", "shared", "bins", make=lambda new: (ramp(64, np.int32), zeros(8, np.int32)),
      result=lambda x, out: np.full(8, 8))  # fmt: skip
@cuda.jit
def private_histogram_flushed_too_early(x, out, mended):
    bins = cuda.shared.array(8, np.int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[t] % 8, 1)  # WITH
    if mended:
        cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(out, t, bins[t])  # BUG


@pair("race", "shared", "bins", make=lambda new: (ramp(64, np.int32), zeros(8, np.int32)),
      result=lambda x, out: np.full(8, 8))  # fmt: skip
@cuda.jit
def private_histogram_without_atomics(x, out, mended):
    bins = cuda.shared.array(8, np.int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    if mended:
        cuda.atomic.add(bins, x[t] % 8, 1)
    else:
        bins[x[t] % 8] += 1  # BUG
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(out, t, bins[t])


@pair("race", "shared", "s", block=128, result=lambda x, out: np.r_[x.sum(), np.zeros(127)])
@cuda.jit
def reduction_tree(x, out, mended):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    stride = 64
    while stride > 0:
        if t < stride:
            s[t] += s[t + stride]  # BUG
        if mended:
            cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[0] = s[0]


@pair("race", "shared", "sums", block=128, result=lambda x, out: np.r_[x.sum(), np.zeros(127)])
@cuda.jit
def sums_of_warps(x, out, mended):
    sums = cuda.shared.array(4, np.float32)
    t = cuda.threadIdx.x
    value = x[t]
    for k in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, k)
    if t % 32 == 0:
        sums[t // 32] = value  # WITH
    if mended:
        cuda.syncthreads()
    if t == 0:
        out[0] = sums[0] + sums[1] + sums[2] + sums[3]  # BUG


@pair("race", "shared", "sums", result=lambda x, out: np.full(64, 64 * 63 + 64))
@cuda.jit
def second_sum_overtakes_the_first(x, out, mended):
    sums = cuda.shared.array(2, np.float32)
    t = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(2):
        value = x[t] + np.float32(k)
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        if t % 32 == 0:
            sums[t // 32] = value  # BUG
        cuda.syncthreads()
        total += sums[0] + sums[1]  # WITH
        if mended:
            cuda.syncthreads()
    out[t] = total


@pair("race", "shared", "s", result=lambda x, out: np.roll(x, -1))
@cuda.jit
def rotation_in_place(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    if mended:
        value = s[(t + 1) % 64]
        cuda.syncthreads()
        s[t] = value
    else:
        s[t] = s[(t + 1) % 64]  # BUG
    out[t] = s[t]


@pair("race", "shared", "s", result=lambda x, out: np.r_[9, 9, 7, np.zeros(29), 9, np.zeros(31)])
@cuda.jit
def written_while_another_warp_still_reads(x, out, mended):
    s = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = x[9]
    cuda.syncthreads()
    if t == 0:
        out[t] = s[0]
    if t == 32:
        out[t] = s[0]  # WITH
    if t == 1:
        out[t] = s[0]
    if mended:
        cuda.syncthreads()
    cuda.syncwarp()  # orders lanes 0, 1 and 2, but not thread 32
    if t == 2:
        s[0] = 7  # BUG
        out[t] = s[0]


@pair("race", "shared", "queue", make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: np.full(64, 32))
@cuda.jit
def queue_length_read_before_all_have_entered(x, out, mended):
    queue = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        queue[0] = 0
    cuda.syncthreads()
    if x[t] % 2 == 0:
        cuda.atomic.add(queue, 0, 1)  # WITH
    if mended:
        cuda.syncthreads()
    out[t] = queue[0]  # BUG


@pair("race", "shared", "b", alias="a", sharedmem=512, result=lambda x, out: np.ones(64))
@cuda.jit
def dynamic_views_overlap(x, out, mended):
    t = cuda.threadIdx.x
    a = cuda.shared.array(0, np.float32)[:64]
    b = cuda.shared.array(0, np.float32)[64 if mended else 32 :]
    a[t] = x[t]  # WITH
    b[t] = 1  # BUG
    out[t] = b[t]  # BUG


@pair("race", "shared", "words", alias="numbers", sharedmem=256, result=lambda x, out: ramp(64)[::-1].view(np.int32))
@cuda.jit
def dynamic_views_of_two_types(x, out, mended):
    t = cuda.threadIdx.x
    numbers = cuda.shared.array(0, np.float32)
    words = cuda.shared.array(0, np.int32)
    numbers[t] = x[t]  # WITH
    if mended:
        cuda.syncthreads()
    out[t] = words[63 - t]  # BUG
