"""Races in global memory: between blocks nothing but an atomic, a fence or a grid barrier orders anything."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros


@pair("race", "global", "work", make=lambda new: (ramp(64), zeros(64), zeros(64)),
      result=lambda x, work, out: x[::-1])  # fmt: skip
@cuda.jit
def exchange_within_a_block(x, work, out, mended):
    t = cuda.threadIdx.x
    work[t] = x[t]  # WITH
    if mended:
        cuda.syncthreads()
    out[t] = work[63 - t]  # BUG


@pair("race", "global", "x", grid=2, result=lambda x, out: np.roll(x, -64))
@cuda.jit
def barrier_of_a_block_for_the_grid(x, out, mended):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = i  # WITH
    if mended:
        grid.sync()
    else:
        cuda.syncthreads()
    out[i] = x[(i + 64) % x.size]  # BUG


@pair("race", "global", "x", grid=2, result=lambda x, out: x.reshape(2, 64)[:, ::-1].ravel() + 1)
@cuda.jit
def neighbouring_block(x, out, mended):
    i = cuda.grid(1)
    x[i] = i + 1  # WITH
    cuda.syncthreads()
    if mended:
        out[i] = x[cuda.blockIdx.x * 64 + 63 - cuda.threadIdx.x]
    else:
        out[i] = x[127 - i]  # BUG


@pair("race", "global", "x", grid=2, result=lambda x, out: np.r_[x[1:], 0])
@cuda.jit
def shift_in_place(x, out, mended):
    i = cuda.grid(1)
    if i + 1 < x.size:
        if mended:
            out[i] = x[i + 1]
        else:
            x[i] = x[i + 1]  # BUG


@pair("race", "global", "x", grid=2, result=lambda x, out: x + 1)
@cuda.jit
def sweep_in_place(x, out, mended):
    i = cuda.grid(1)
    for _ in range(2):
        if mended:
            out[i] = x[i] + 1
        elif i > 0:
            x[i] = x[i - 1] + 1  # BUG


@pair("race", "global", "x", grid=(2, 2), block=(8, 8),
      make=lambda new: (zeros((16, 16)), ramp(256).reshape(16, 16)), result=lambda out, x: x.T)  # fmt: skip
@cuda.jit
def transpose_in_place(out, x, mended):
    j, i = cuda.grid(2)
    if i < j or (not mended and i != j):
        above = x[i, j]  # WITH
        below = x[j, i]  # WITH
        x[i, j] = below  # BUG
        x[j, i] = above  # BUG


@pair("race", "global", "out", grid=2, result=lambda x, out: np.r_[np.full(4, 32), np.zeros(124)])
@cuda.jit
def histogram(x, out, mended):
    bin_ = int(x[cuda.grid(1)]) % 4
    if mended:
        cuda.atomic.add(out, bin_, 1)
    else:
        out[bin_] += 1  # BUG


@pair("race", "global", "out", grid=4, block=32, result=lambda x, out: np.r_[0, 1, 2, 3, np.zeros(124)])
@cuda.jit
def blocks_write_one_place(x, out, mended):
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x if mended else 0] = cuda.blockIdx.x  # BUG


@pair("race", "global", "out", grid=4, block=32, result=lambda x, out: np.r_[0 + 1 + 2 + 3, np.zeros(127)])
@cuda.jit
def blocks_add_without_atomic(x, out, mended):
    if cuda.threadIdx.x == 0:
        if mended:
            cuda.atomic.add(out, 0, x[cuda.blockIdx.x])
        else:
            out[0] += x[cuda.blockIdx.x]  # BUG


@pair("race", "global", "out", grid=4, block=32, result=lambda x, out: np.r_[4, np.zeros(127)])
@cuda.jit
def equal_increments_are_lost_too(x, out, mended):
    if cuda.threadIdx.x == 0:
        if mended:
            cuda.atomic.add(out, 0, 1)
        else:
            out[0] = out[0] + 1  # BUG


@pair("race", "global", "out", grid=2, result=lambda x, out: np.r_[127, np.zeros(127)])
@cuda.jit
def maximum_by_compare_and_store(x, out, mended):
    value = x[cuda.grid(1)]
    if mended:
        cuda.atomic.max(out, 0, value)
    elif value > out[0]:  # WITH
        out[0] = value  # BUG


@pair("race", "global", "out", grid=4, block=32, result=lambda x, out: np.r_[128, 7, np.zeros(126)])
@cuda.jit
def atomic_beside_a_plain_store(x, out, mended):
    cuda.atomic.add(out, 0, 1)  # WITH
    if cuda.grid(1) == 100:
        out[1 if mended else 0] = 7  # BUG


@pair("race", "global", "out", grid=4, block=32, result=lambda x, out: np.r_[128, np.zeros(127)])
@cuda.jit
def one_block_zeroes_for_all(x, out, mended):
    if not mended and cuda.grid(1) == 0:
        out[0] = 0  # WITH
    cuda.syncthreads()
    cuda.atomic.add(out, 0, 1)  # BUG


@pair("race", "global", "out", grid=4, block=32, make=lambda new: (ramp(128), zeros(129)),
      result=lambda x, out: np.r_[np.repeat(np.arange(4), 32), 0])  # fmt: skip
@cuda.jit
def rows_overlap_by_one(x, out, mended):
    start = 32 * cuda.blockIdx.x
    k = cuda.threadIdx.x
    while k < (32 if mended else 33):
        out[start + k] = cuda.blockIdx.x  # BUG
        k += cuda.blockDim.x


@pair("race", "global", "out", grid=2, make=lambda new: (ramp(256), zeros(256)), result=lambda x, out: 2 * x)
@cuda.jit
def stride_of_the_block_for_the_grid(x, out, mended):
    i = cuda.grid(1)
    while i < x.size:
        out[i] += 2 * x[i]  # BUG
        i += cuda.gridsize(1) if mended else cuda.blockDim.x


@pair("race", "global", "out", grid=2, make=lambda new: (ramp(128, np.int32), zeros(128)),
      result=lambda x, out: x[::-1])  # fmt: skip
@cuda.jit
def scatter_to_one_place_twice(x, out, mended):
    i = cuda.grid(1)
    target = 127 - i if mended else (127 - i) // 2
    out[target] = x[i]  # BUG


@pair("race", "global", "n", grid=2, make=lambda new: (ramp(128), zeros(128), zeros(1, np.int32)),
      result=lambda x, out, n: [64])  # fmt: skip
@cuda.jit
def compaction_with_a_plain_counter(x, out, n, mended):
    i = cuda.grid(1)
    if x[i] % 2 == 0:
        if mended:
            slot = cuda.atomic.add(n, 0, 1)
            out[slot] = x[i]
        else:
            n[0] += 1  # BUG


@pair("race", "global", "found", grid=2, make=lambda new: (ramp(128), zeros(2), zeros(128)),
      result=lambda x, found, out: np.r_[np.zeros(64), np.ones(64)])  # fmt: skip
@cuda.jit
def flag_of_another_block(x, found, out, mended):
    b = cuda.blockIdx.x
    if x[cuda.grid(1)] > 100:
        found[b] = 1  # WITH
    cuda.syncthreads()
    out[cuda.grid(1)] = found[b if mended else 1]  # BUG


@pair("race", "global", "x", grid=4, block=32, result=lambda x, out: np.roll(x, -1))
@cuda.jit
def last_block_writes_what_others_read(x, out, mended):
    i = cuda.grid(1)
    out[i] = x[(i + 1) % x.size]  # WITH
    if not mended and i >= 96:
        x[i - 96] = 0  # BUG


def halves(new):
    buffer = new(128, np.float32)
    buffer.copy_to_device(ramp(128))
    return buffer[:65], buffer[64:]


@pair("race", "global", "y", alias="x", grid=2, block=32, make=halves, result=lambda x, y: x[:64] + 1)
@cuda.jit
def arguments_overlap(x, y, mended):
    i = cuda.grid(1)
    y[i] = x[i if mended else i + 1] + 1  # BUG
