"""Reads of memory that nobody wrote: shared, local, and device memory that was allocated but not filled."""

import numpy as np

from pmpp import cuda
from pmpp.runtime.vector import load128, store128

from . import pair, ramp, zeros


@pair("uninitialised_read", "shared", "s", make=lambda new: (ramp(50), zeros(1)), result=lambda x, out: [x.sum()])
@cuda.jit
def tail_of_the_tile(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if t < x.size:
        s[t] = x[t]
    elif mended:
        s[t] = 0
    cuda.syncthreads()
    stride = 32
    while stride > 0:
        if t < stride:
            s[t] += s[t + stride]  # BUG
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[0] = s[0]


@pair(
    "uninitialised_read", "shared", "s", make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: np.r_[0, x[:63]]
)
@cuda.jit
def one_element_of_a_halo(x, out, mended):
    s = cuda.shared.array(65, np.float32)
    t = cuda.threadIdx.x
    s[t + 1] = x[t]
    if mended and t == 0:
        s[0] = 0
    cuda.syncthreads()
    out[t] = s[t]  # BUG


@pair("uninitialised_read", "shared", "s", block=(8, 8), make=lambda new: (ramp(64).reshape(8, 8), zeros((8, 8))),
      result=lambda x, out: x + np.pad(x, ((1, 0), (1, 0)))[:8, :8])  # fmt: skip
@cuda.jit
def corner_of_a_halo(x, out, mended):
    s = cuda.shared.array((9, 9), np.float32)
    i = cuda.threadIdx.y
    j = cuda.threadIdx.x
    s[i + 1, j + 1] = x[i, j]
    if i == 0:
        s[0, j + 1] = 0
    if j == 0:
        s[i + 1, 0] = 0
    if mended and i == 0 and j == 0:
        s[0, 0] = 0
    cuda.syncthreads()
    out[i, j] = s[i + 1, j + 1] + s[i, j]  # BUG


@pair("uninitialised_read", "shared", "s", result=lambda x, out: x + np.where(x % 8 == 7, -x, 1))
@cuda.jit
def padding_of_a_tile(x, out, mended):
    s = cuda.shared.array((8, 9), np.float32)
    i = cuda.threadIdx.x // 8
    j = cuda.threadIdx.x % 8
    s[i, j] = x[cuda.threadIdx.x]
    if mended and j == 0:
        s[i, 8] = 0
    cuda.syncthreads()
    out[cuda.threadIdx.x] = s[i, j + 1]  # BUG


@pair("uninitialised_read", "shared", "s", block=16, make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: x)
@cuda.jit
def vector_of_unset_elements(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    for k in range(4 if mended else 3):
        s[k * 16 + t] = x[k * 16 + t]
    cuda.syncthreads()
    store128(out, 4 * t, load128(s, 4 * t))  # BUG


@pair("uninitialised_read", "shared", "best", make=lambda new: (ramp(64), zeros(1)), result=lambda x, out: [63])
@cuda.jit
def maximum_without_a_start(x, out, mended):
    best = cuda.shared.array(1, np.float32)
    if mended and cuda.threadIdx.x == 0:
        best[0] = 0
    cuda.syncthreads()
    cuda.atomic.max(best, 0, x[cuda.threadIdx.x])  # BUG
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        out[0] = best[0]


@pair("uninitialised_read", "shared", "bins", make=lambda new: (ramp(64, np.int32), zeros(8, np.int32)),
      result=lambda x, out: np.full(8, 8))  # fmt: skip
@cuda.jit
def bins_not_all_zeroed(x, out, mended):
    bins = cuda.shared.array(8, np.int32)
    t = cuda.threadIdx.x
    if t < (8 if mended else 7):
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[t] % 8, 1)  # BUG
    cuda.syncthreads()
    if t < 8:
        out[t] = bins[t]


@pair("uninitialised_read", "shared", "s", make=lambda new: (ramp(50), zeros(64)),
      result=lambda x, out: np.r_[np.zeros(14), x[::-1]])  # fmt: skip
@cuda.jit
def early_return_before_the_store(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if mended:
        s[t] = 0
    if t >= x.size:
        if not mended:
            return
    else:
        s[t] = x[t]
    cuda.syncthreads()
    if t < x.size or mended:
        out[t] = s[63 - t]  # BUG


@pair("uninitialised_read", "shared", "kept", result=lambda x, out: np.r_[x[::2], np.zeros(32)])
@cuda.jit
def compaction_reads_beyond_its_count(x, out, mended):
    kept = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if t % 2 == 0:
        kept[t // 2] = x[t]
    cuda.syncthreads()
    if not mended or t < 32:
        out[t] = kept[t]  # BUG


@pair("uninitialised_read", "shared", "s", sharedmem=256, result=lambda x, out: x[::-1])
@cuda.jit
def dynamic_memory_half_filled(x, out, mended):
    s = cuda.shared.array(0, np.float32)
    t = cuda.threadIdx.x
    if mended or t >= 32:
        s[t] = x[t]
    cuda.syncthreads()
    out[t] = s[63 - t]  # BUG


@pair("uninitialised_read", "shared", "words", sharedmem=512, result=lambda x, out: ramp(64)[::-1].view(np.int32))
@cuda.jit
def dynamic_view_of_another_type(x, out, mended):
    numbers = cuda.shared.array(0, np.float32)
    words = cuda.shared.array(0, np.int32)
    t = cuda.threadIdx.x
    numbers[t] = x[t]
    cuda.syncthreads()
    out[t] = words[63 - t if mended else 64 - t]  # BUG


@pair("uninitialised_read", "shared", "s", result=lambda x, out: np.repeat(x.reshape(2, 32).sum(1), 32))
@cuda.jit
def every_warp_but_one_stores_its_sum(x, out, mended):
    s = cuda.shared.array(2, np.float32)
    t = cuda.threadIdx.x
    value = x[t]
    for k in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, k)
    if t == 0 or (mended and t == 32):
        s[t // 32] = value
    cuda.syncthreads()
    out[t] = s[t // 32]  # BUG


@pair("uninitialised_read", "local", "a", result=lambda x, out: np.tile(np.arange(8), 8))
@cuda.jit
def local_array_zeroed_up_to_the_last(x, out, mended):
    a = cuda.local.array(8, np.float32)
    for k in range(8 if mended else 7):
        a[k] = 0
    for k in range(8):
        a[k] += k  # BUG
    out[cuda.threadIdx.x] = a[cuda.threadIdx.x % 8]


@pair("uninitialised_read", "local", "window", result=lambda x, out: x + np.maximum(x - 1, 0))
@cuda.jit
def local_array_read_before_it_is_filled(x, out, mended):
    window = cuda.local.array(2, np.float32)
    t = cuda.threadIdx.x
    if t > 0 or mended:
        window[0] = x[max(t - 1, 0)]
    window[1] = x[t]
    out[t] = window[0] + window[1]  # BUG


@pair("uninitialised_read", "register", "value", result=lambda x, out: np.where(x < 40, x, 0))
@cuda.jit
def variable_of_one_branch(x, out, mended):
    t = cuda.threadIdx.x
    if t < 40:
        value = x[t]
    elif mended:
        value = np.float32(0)
    out[t] = value  # BUG


@pair("uninitialised_read", "global", "out", make=lambda new: (ramp(64), new(64, np.float32)), result=lambda x, out: x)
@cuda.jit
def accumulated_into_fresh_memory(x, out, mended):
    i = cuda.grid(1)
    if mended:
        out[i] = 0
    out[i] += x[i]  # BUG


@pair("uninitialised_read", "global", "count", make=lambda new: (ramp(64), new(2, np.int32), zeros(2, np.int32)),
      result=lambda x, count, out: [32, 32])  # fmt: skip
@cuda.jit
def counters_not_zeroed(x, count, out, mended):
    t = cuda.threadIdx.x
    if mended and t < 2:
        count[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(count, t % 2, 1)  # BUG
    cuda.syncthreads()
    if t < 2:
        out[t] = count[t]


@pair("uninitialised_read", "global", "work", make=lambda new: (ramp(64), new(64, np.float32), zeros(64)),
      result=lambda x, work, out: x[::-1])  # fmt: skip
@cuda.jit
def one_element_never_written(x, work, out, mended):
    t = cuda.threadIdx.x
    if t != 17 or mended:
        work[t] = x[t]
    cuda.syncthreads()
    out[t] = work[63 - t]  # BUG


@pair("uninitialised_read", "global", "work", grid=3, make=lambda new: (ramp(192), new(4, np.float32), zeros(1)),
      result=lambda x, work, out: [0 + 64 + 128])  # fmt: skip
@cuda.jit
def more_partial_results_than_blocks(x, work, out, mended):
    grid = cuda.cg.this_grid()
    if cuda.threadIdx.x == 0:
        work[cuda.blockIdx.x] = x[cuda.grid(1)]
    grid.sync()
    if cuda.grid(1) == 0:
        for k in range(3 if mended else 4):
            out[0] += work[k]  # BUG


def half_filled(new):
    x = new(128, np.float32)
    x[:64] = zeros(64)
    return x, zeros(128)


@pair("uninitialised_read", "global", "x", grid=2, make=half_filled, result=lambda x, out: np.zeros(128))
@cuda.jit
def filled_in_part_by_the_host(x, out, mended):
    i = cuda.grid(1)
    if not mended or i < 64:
        out[i] = x[i]  # BUG


def rows_filled(new):
    x = new(64, np.float32)
    x[8:56].copy_to_device(ramp(48))
    return x.reshape(8, 8), zeros((8, 8))


@pair("uninitialised_read", "global", "x", block=(8, 8), make=rows_filled,
      result=lambda x, out: np.r_[zeros(8), ramp(48), zeros(8)].reshape(8, 8))  # fmt: skip
@cuda.jit
def rows_never_copied(x, out, mended):
    j, i = cuda.grid(2)
    if (0 < i < 7) or (not mended and i == 0):
        out[i, j] = x[i, j]  # BUG


def bytes_of_numbers(new):
    x = new(64, np.float32)
    x[:32].copy_to_device(ramp(32))
    return x.view(np.int32), zeros(64, np.int32)


@pair("uninitialised_read", "global", "words", make=bytes_of_numbers,
      result=lambda words, out: np.r_[ramp(32).view(np.int32), zeros(32, np.int32)])  # fmt: skip
@cuda.jit
def unset_numbers_seen_as_words(words, out, mended):
    i = cuda.grid(1)
    if not mended or i < 32:
        out[i] = words[i]  # BUG
