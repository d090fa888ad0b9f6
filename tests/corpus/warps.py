"""Races between the lanes of one warp: lanes need not run in step, so a `syncwarp` is missing."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros

FULL = 0xFFFFFFFF


@pair("race", "shared", "s", block=32, result=lambda x, out: x[::-1])
@cuda.jit
def exchange_between_lanes(x, out, mended):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # WITH
    if mended:
        cuda.syncwarp()
    out[t] = s[31 - t]  # BUG


@pair("race", "shared", "s", block=32, result=lambda x, out: np.r_[x.sum(), np.zeros(31)])
@cuda.jit
def last_steps_of_a_reduction(x, out, mended):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    offset = 16
    while offset > 0:
        if t < offset:
            s[t] += s[t + offset]  # BUG
        if mended:
            cuda.syncwarp()
        offset //= 2
    if t == 0:
        out[0] = s[0]


@pair("race", "shared", "s", block=32, result=lambda x, out: np.r_[x[:31] + x[1:], x[31]])
@cuda.jit
def load_and_store_in_one_statement(x, out, mended):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    if t < 31:
        if mended:
            value = s[t + 1]
            cuda.syncwarp(0x7FFFFFFF)
            s[t] += value
        else:
            s[t] += s[t + 1]  # BUG
    out[t] = s[t]


@pair("race", "shared", "s", block=32, result=lambda x, out: np.cumsum(x))
@cuda.jit
def scan_of_a_warp(x, out, mended):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    for step in (1, 2, 4, 8, 16):
        value = s[max(t - step, 0)]  # WITH
        if mended:
            cuda.syncwarp()
        if t >= step:
            s[t] += value  # BUG
        cuda.syncwarp()
    out[t] = s[t]


@pair("race", "shared", "s", block=32, result=lambda x, out: x.reshape(16, 2)[:, ::-1].ravel())
@cuda.jit
def swap_of_neighbours(x, out, mended):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    value = s[t ^ 1]  # WITH
    if mended:
        cuda.syncwarp()
    s[t] = value  # BUG
    out[t] = s[t]


@pair("race", "shared", "s", result=lambda x, out: np.repeat([0, 32], 32))
@cuda.jit
def leader_tells_its_warp(x, out, mended):
    s = cuda.shared.array(2, np.float32)
    t = cuda.threadIdx.x
    if t % 32 == 0:
        s[t // 32] = x[t]  # WITH
    if mended:
        cuda.syncwarp()
    out[t] = s[t // 32]  # BUG


@pair("race", "shared", "s", result=lambda x, out: np.repeat([31, 63], 32))
@cuda.jit
def no_leader_writes_for_its_warp(x, out, mended):
    s = cuda.shared.array(2, np.float32)
    t = cuda.threadIdx.x
    if t % 32 == 31 or not mended:
        s[t // 32] = x[t]  # BUG
    cuda.syncwarp()
    out[t] = s[t // 32]


@pair("race", "shared", "bins", make=lambda new: (ramp(64, np.int32), zeros(64, np.int32)),
      result=lambda x, out: np.repeat([8, 0, 8, 0], [4, 28, 4, 28]))  # fmt: skip
@cuda.jit
def histogram_of_a_warp(x, out, mended):
    bins = cuda.shared.array((2, 4), np.int32)
    t = cuda.threadIdx.x
    warp = t // 32
    if t % 32 < 4:
        bins[warp, t % 32] = 0
    cuda.syncwarp()
    if mended:
        cuda.atomic.add(bins, (warp, x[t] % 4), 1)
    else:
        bins[warp, x[t] % 4] += 1  # BUG
    cuda.syncwarp()
    if t % 32 < 4:
        out[t] = bins[warp, t % 32]


@pair("race", "shared", "s", block=32, result=lambda x, out: x[::-1])
@cuda.jit
def vote_in_place_of_a_barrier(x, out, mended):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # WITH
    if mended:
        cuda.syncwarp()
    if cuda.any_sync(FULL, t >= 0):  # makes the lanes meet, but orders no memory
        out[t] = s[31 - t]  # BUG


@pair("race", "shared", "s", block=32, result=lambda x, out: np.r_[x[16:], np.zeros(16)])
@cuda.jit
def barrier_of_half_a_warp(x, out, mended):
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # WITH
    if mended:
        cuda.syncwarp()
    if t < 16:
        cuda.syncwarp(0xFFFF)  # the upper half is not asked to arrive
        out[t] = s[t + 16]  # BUG


@pair("race", "shared", "s", result=lambda x, out: x.reshape(2, 32)[::-1].ravel())
@cuda.jit
def barrier_of_a_warp_for_two(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # WITH
    if mended:
        cuda.syncthreads()
    else:
        cuda.syncwarp()
    out[t] = s[(t + 32) % 64]  # BUG


@pair("race", "global", "work", block=32, make=lambda new: (ramp(32), zeros(32), zeros(32)),
      result=lambda x, work, out: np.roll(x, -1))  # fmt: skip
@cuda.jit
def exchange_between_lanes_in_global_memory(x, work, out, mended):
    t = cuda.threadIdx.x
    work[t] = x[t]  # WITH
    if mended:
        cuda.syncwarp()
    out[t] = work[(t + 1) % 32]  # BUG
