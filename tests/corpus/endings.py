"""Threads that have ended, and lanes that stay away: who still waits for them, and who uses what they never gave.

CUDA C++ programming guide: since Volta `__syncthreads()` waits for all threads of the block that have not exited, and
`__syncwarp()` for such lanes of its mask.  `grid.sync()` needs every thread of the grid.  A shuffle from a lane that
takes no part gives an undefined value, which does no harm where nobody uses it.
"""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros

FULL = 0xFFFFFFFF


@pair("divergent_barrier", "register", "grid.sync()", grid=3, block=32, hangs=True,
      result=lambda x, out: np.r_[np.roll(x, -32)[:64], np.zeros(32)])  # fmt: skip
@cuda.jit
def block_returns_before_the_grid_barrier(x, out, mended):
    """The last block has nothing to do, and the others wait for it for ever."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = i
    if cuda.blockIdx.x == 2 and not mended:
        return
    grid.sync()  # BUG
    if cuda.blockIdx.x < 2:
        out[i] = x[i + 32]


@pair("divergent_barrier", "register", "grid.sync()", grid=2, hangs=True,
      make=lambda new: (ramp(100), zeros(100)), result=lambda x, out: np.roll(x, -50))  # fmt: skip
@cuda.jit
def threads_behind_the_end_return_before_the_grid_barrier(x, out, mended):
    """A guard by `return` is fine before `syncthreads`, and not before `grid.sync()`."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    if i >= x.size and not mended:
        return
    if i < x.size:
        x[i] = i
    grid.sync()  # BUG
    if i < x.size:
        out[i] = x[(i + 50) % x.size]


@pair("divergent_barrier", "register", "grid.sync()", grid=2, block=32, hangs=True,
      result=lambda x, out: np.r_[np.full(64, 3)])  # fmt: skip
@cuda.jit
def block_returns_from_a_loop_of_grid_barriers(x, out, mended):
    """Block 1 is through after one round, and block 0 waits for it in the next."""
    grid = cuda.cg.this_grid()
    rounds = 0
    for k in range(3):
        if k == 1 and cuda.blockIdx.x == 1 and not mended:
            return
        grid.sync()  # BUG
        rounds += 1
    out[cuda.grid(1)] = rounds


@pair("uninitialised_read", "shared", "s", make=lambda new: (ramp(40), zeros(40)),
      result=lambda x, out: np.r_[np.zeros(24), x[39:23:-1]])  # fmt: skip
@cuda.jit
def returned_threads_have_filled_nothing(x, out, mended):
    """The barrier does not wait for threads that have returned, and what they should have written is not there."""
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if mended:
        s[t] = x[t] if t < x.size else np.float32(0)
    if t >= x.size:
        return
    s[t] = x[t]
    cuda.syncthreads()
    out[t] = s[63 - t]  # BUG


@pair("divergent_barrier", "register", "syncthreads()", make=lambda new: (ramp(40), zeros(40)),
      result=lambda x, out: x[::-1])  # fmt: skip
@cuda.jit
def threads_behind_the_end_go_round_the_barrier(x, out, mended):
    """Who has returned is not waited for; who still runs and goes past the barrier is."""
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if mended and t >= x.size:
        return
    if t < x.size:
        s[t] = x[t]
        cuda.syncthreads()  # BUG
        out[t] = s[x.size - 1 - t]


@pair("race", "shared", "s", block=32, make=lambda new: (ramp(20), zeros(20)),
      result=lambda x, out: x[::-1])  # fmt: skip
@cuda.jit
def lanes_that_remain_must_still_meet(x, out, mended):
    """That twelve lanes have returned does not make the others run in step."""
    s = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    s[t] = x[t]  # WITH
    if mended:
        cuda.syncwarp(cuda.activemask())
    out[t] = s[x.size - 1 - t]  # BUG


# -- the tail of an array, in a warp of which not all lanes take part --------------------------------------------------


def tail(new):
    return ramp(20) + 1, zeros(1)


@pair("uninitialised_read", "register", "w", block=32, make=tail, result=lambda x, out: [x.sum()])
@cuda.jit
def tail_of_a_sum_adds_what_nobody_gave(x, out, mended):
    """Lanes 4 to 15 ask lanes that take no part in the first step, and 4 to 7 pass it on."""
    t = cuda.threadIdx.x
    members = cuda.ballot_sync(FULL, t < x.size)
    if t < x.size:
        v = x[t]
        for k in (16, 8, 4, 2, 1):
            w = cuda.shfl_down_sync(members, v, k)
            if t + k < x.size or not mended:
                v += w  # BUG
        if t == 0:
            out[0] = v


@pair("uninitialised_read", "register", "w", block=32, make=tail, result=lambda x, out: [x.sum()])
@cuda.jit
def tail_of_a_sum_is_off_by_one(x, out, mended):
    """The test lets one lane too many use what it got."""
    t = cuda.threadIdx.x
    members = cuda.ballot_sync(FULL, t < x.size)
    if t < x.size:
        v = x[t]
        for k in (16, 8, 4, 2, 1):
            w = cuda.shfl_down_sync(members, v, k)
            v = v + w if t + k < (x.size if mended else x.size + 1) else v  # BUG
        if t == 0:
            out[0] = v


@pair("uninitialised_read", "register", "w", block=32, make=tail, result=lambda x, out: [x.sum()])
@cuda.jit
def tail_after_a_return(x, out, mended):
    """Lanes that have returned may be named, and have no value to give."""
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    v = x[t]
    k = 16
    while k > 0:
        w = cuda.shfl_down_sync(FULL, v, k)
        if not mended or t + k < x.size:
            v += w  # BUG
        k //= 2
    if t == 0:
        out[0] = v


@pair("uninitialised_read", "register", "w", block=32, make=tail, result=lambda x, out: [x.max()])
@cuda.jit
def butterfly_with_partners_that_stay_away(x, out, mended):
    """Lane t ^ 16 takes no part for t from 4 to 15: what arrives must not be compared."""
    t = cuda.threadIdx.x
    members = cuda.ballot_sync(FULL, t < x.size)
    if t < x.size:
        v = x[t]
        for k in (1, 2, 4, 8, 16):
            w = cuda.shfl_xor_sync(members, v, k)
            if not mended or (t ^ k) < x.size:
                v = max(v, w)  # BUG
        if t == 3:
            out[0] = v


@pair("uninitialised_read", "register", "w", block=32,
      result=lambda x, out: np.r_[np.zeros(12), np.cumsum(x[12:])])  # fmt: skip
@cuda.jit
def scan_that_begins_in_the_middle(x, out, mended):
    """The first twelve lanes take no part; the scan's own test must know it."""
    t = cuda.threadIdx.x
    members = cuda.ballot_sync(FULL, t >= 12)
    if t >= 12:
        v = x[t]
        for k in (1, 2, 4, 8, 16):
            w = cuda.shfl_up_sync(members, v, k)
            if t - k >= (12 if mended else 0):
                v += w  # BUG
        out[t] = v


@pair("uninitialised_read", "register", "w", block=32, make=tail, result=lambda x, out: [x.sum()])
@cuda.jit
def tail_replaced_in_too_few_lanes(x, out, mended):
    """A variable that is assigned again no longer holds what nobody gave: in the lanes that assign."""
    t = cuda.threadIdx.x
    members = cuda.ballot_sync(FULL, t < x.size)
    if t < x.size:
        v = x[t]
        for k in (16, 8, 4, 2, 1):
            w = cuda.shfl_down_sync(members, v, k)
            if t + k >= (x.size if mended else x.size + 1):
                w = np.float32(0)
            v += w  # BUG
        if t == 0:
            out[0] = v


@pair("uninitialised_read", "register", "w", block=32, make=lambda new: (ramp(20), zeros(32)),
      result=lambda x, out: np.r_[x[16:], np.zeros(28)])  # fmt: skip
@cuda.jit
def value_of_nobody_is_stored(x, out, mended):
    """To store it is to use it."""
    t = cuda.threadIdx.x
    if t < x.size:
        w = cuda.shfl_down_sync(0xFFFFF, x[t], 16)
        if t + 16 < x.size or not mended:
            out[t] = w  # BUG


@cuda.jit(device=True)
def larger(a, b):
    return a if a > b else b


@pair("uninitialised_read", "register", "w", block=32, make=tail, result=lambda x, out: [x.max()])
@cuda.jit
def value_of_nobody_is_passed_on(x, out, mended):
    """To pass it to a function is to use it."""
    t = cuda.threadIdx.x
    if t < x.size:
        v = x[t]
        for k in (16, 8, 4, 2, 1):
            w = cuda.shfl_down_sync(0xFFFFF, v, k)
            if t + k < x.size or not mended:
                v = larger(v, w)  # BUG
        if t == 0:
            out[0] = v


@pair("uninitialised_read", "register", "v", block=32, make=tail, result=lambda x, out: [x.sum()])
@cuda.jit
def tail_added_without_a_test(x, out, mended):
    """Where all lanes take part, with zeros behind the end, every value is given by somebody."""
    t = cuda.threadIdx.x
    v = np.float32(0)
    if t < x.size:
        v = x[t]
    if t < x.size or mended:
        for k in (16, 8, 4, 2, 1):
            v += cuda.shfl_down_sync(FULL if mended else 0xFFFFF, v, k)  # BUG
        if t == 0:
            out[0] = v
