"""Barriers that not all threads reach, and warp operations among lanes that do not all take part."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros

FULL = 0xFFFFFFFF


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def barrier_in_a_branch(x, out, mended):
    t = cuda.threadIdx.x
    if mended or t < 40:
        cuda.syncthreads()  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads()", grid=2, make=lambda new: (ramp(100), zeros(100)),
      result=lambda x, out: np.r_[x[63::-1], x[:63:-1]])  # fmt: skip
@cuda.jit
def barrier_behind_the_guard(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    n = min(x.size - cuda.blockIdx.x * 64, 64)
    if i < x.size:
        s[t] = x[i]
        if not mended:
            cuda.syncthreads()  # BUG
            cuda.syncwarp(cuda.activemask())
    if mended:
        cuda.syncthreads()
        if i < x.size:
            out[i] = s[n - 1 - t]


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def two_barriers_for_two_halves(x, out, mended):
    t = cuda.threadIdx.x
    if mended:
        cuda.syncthreads()
    elif t < 32:
        cuda.syncthreads()  # BUG
    else:
        cuda.syncthreads()  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def barrier_in_a_loop_of_many_lengths(x, out, mended):
    t = cuda.threadIdx.x
    for _ in range(3 if mended else t % 3):
        cuda.syncthreads()  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def barrier_in_a_while_of_many_lengths(x, out, mended):
    t = cuda.threadIdx.x
    k = 5 if mended else t // 32 + 1
    while k > 0:
        cuda.syncthreads()  # BUG
        k -= 1
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def rows_of_a_warp_that_do_not_come_out_even(x, out, mended):
    t = cuda.threadIdx.x
    for _ in range(t // 32, 4 if mended else 3, 2):
        cuda.syncthreads()  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def barrier_behind_a_break(x, out, mended):
    t = cuda.threadIdx.x
    for k in range(4):
        if k > (2 if mended else t % 4):
            break
        cuda.syncthreads()  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def barrier_behind_a_continue(x, out, mended):
    t = cuda.threadIdx.x
    for k in range(4):
        if k % 2 == (1 if mended else t % 2):
            continue
        cuda.syncthreads()  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads()", grid=2, result=lambda x, out: x)
@cuda.jit
def branch_on_the_thread_not_on_the_block(x, out, mended):
    i = cuda.grid(1)
    if (cuda.blockIdx.x if mended else i) > 0:
        cuda.syncthreads()  # BUG
    out[i] = x[i]


@pair("divergent_barrier", "register", "syncthreads()", grid=4, result=lambda x, out: x)
@cuda.jit
def one_thread_of_the_last_block_stays_away(x, out, mended):
    i = cuda.grid(1)
    if mended or i != 255:
        cuda.syncthreads()  # BUG
    out[i] = x[i]


@pair("divergent_barrier", "register", "syncthreads()", result=lambda x, out: x)
@cuda.jit
def branch_on_data(x, out, mended):
    t = cuda.threadIdx.x
    if x[0 if mended else t] < 10:
        cuda.syncthreads()  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncthreads_count()", result=lambda x, out: np.full(64, 64))
@cuda.jit
def counting_barrier_in_a_branch(x, out, mended):
    t = cuda.threadIdx.x
    if mended or t < 40:
        out[t] = cuda.syncthreads_count(1)  # BUG


@cuda.jit(device=True)
def meet():
    cuda.syncthreads()  # BUG


@pair("divergent_barrier", "register", "syncthreads()", helpers=(meet,), result=lambda x, out: x)
@cuda.jit
def barrier_in_a_function_called_by_some(x, out, mended):
    t = cuda.threadIdx.x
    if mended or t % 2 == 0:
        meet()
    out[t] = x[t]


@pair("divergent_barrier", "register", "grid.sync()", grid=2, hangs=True, result=lambda x, out: x)
@cuda.jit
def grid_barrier_of_one_block(x, out, mended):
    grid = cuda.cg.this_grid()
    if mended or cuda.blockIdx.x == 0:
        grid.sync()  # BUG
    out[cuda.grid(1)] = x[cuda.grid(1)]


@pair("divergent_barrier", "register", "syncwarp()", block=32, result=lambda x, out: x)
@cuda.jit
def barrier_of_the_whole_warp_in_a_branch(x, out, mended):
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncwarp(0xFFFF if mended else FULL)  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "syncwarp()", block=32, result=lambda x, out: x)
@cuda.jit
def barrier_of_lanes_that_leave_out_the_caller(x, out, mended):
    t = cuda.threadIdx.x
    if t < 16:
        cuda.syncwarp(0xFFFF if mended else 0xFF)  # BUG
    out[t] = x[t]


@pair("divergent_barrier", "register", "shfl_xor_sync()", block=32,
      result=lambda x, out: np.r_[x[8:16], x[:8], np.zeros(16)])  # fmt: skip
@cuda.jit
def shuffle_of_the_whole_warp_in_a_branch(x, out, mended):
    t = cuda.threadIdx.x
    if t < 16:
        out[t] = cuda.shfl_xor_sync(0xFFFF if mended else FULL, x[t], 8)  # BUG


@pair("divergent_barrier", "register", "any_sync()", block=32, result=lambda x, out: x)
@cuda.jit
def vote_in_a_loop_of_many_lengths(x, out, mended):
    t = cuda.threadIdx.x
    k = t // 8
    more = True
    while more:
        if mended:
            more = cuda.any_sync(FULL, k > 0)
        else:
            more = k > 0 and cuda.any_sync(FULL, k > 0)  # BUG
        k -= 1
    out[t] = x[t]


@pair("uninitialised_read", "register", "value", block=32, result=lambda x, out: np.r_[x[8:16], x[8:16], np.zeros(16)])
@cuda.jit
def shuffle_from_a_lane_that_stays_away(x, out, mended):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        out[t] = cuda.shfl_sync(0xFFFF, value, t % 8 + 8 if mended else t + 1)  # BUG


@pair("uninitialised_read", "register", "value", block=32, make=lambda new: (ramp(20), zeros(32)),
      result=lambda x, out: np.r_[x[16:], np.zeros(28)])  # fmt: skip
@cuda.jit
def shuffle_from_a_lane_that_has_returned(x, out, mended):
    t = cuda.threadIdx.x
    if t >= x.size and not mended:
        return
    value = x[t] if t < x.size else np.float32(0)
    value = cuda.shfl_down_sync(FULL, value, 16)
    if t < 16:
        out[t] = value  # BUG
