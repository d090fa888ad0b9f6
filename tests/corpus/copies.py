"""Asynchronous copies and the instructions of tensor cores: who waits for what, and who must take part."""

import numpy as np

from pmpp import cuda
from pmpp.runtime.matrix import commit_copies, copy_async, ldmatrix, mma_f16, wait_copies
from pmpp.runtime.sparse_matrix import mma_sp_f16

from . import pair, ramp, zeros


def tile(new):
    return ramp(256), zeros(64)


def halves(new):
    return ramp(512, np.uint16), zeros(64)


@pair("race", "shared", "s", make=tile, result=lambda x, out: x[::4])
@cuda.jit
def read_before_the_wait(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    if mended:
        wait_copies(0)
    out[t] = s[4 * t]  # BUG


@pair("race", "shared", "s", make=tile, result=lambda x, out: x[::4])
@cuda.jit
def waited_for_what_was_never_committed(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    if mended:
        commit_copies()
    wait_copies(0)
    out[t] = s[4 * t]  # BUG


@pair("race", "shared", "s", make=tile, result=lambda x, out: x[::-4])
@cuda.jit
def others_have_waited_but_no_barrier(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)  # WITH
    commit_copies()
    wait_copies(0)  # WITH
    if mended:
        cuda.syncthreads()
    out[t] = s[255 - 4 * t]  # BUG


@pair("race", "shared", "s", make=tile, result=lambda x, out: x[::-4])
@cuda.jit
def a_barrier_is_no_wait(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    if mended:
        wait_copies(0)
    cuda.syncthreads()
    out[t] = s[255 - 4 * t]  # BUG


@pair("race", "shared", "s", make=tile, result=lambda x, out: x[::-4])
@cuda.jit
def waited_after_the_barrier(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)  # WITH
    commit_copies()
    if mended:
        wait_copies(0)
    cuda.syncthreads()
    wait_copies(0)  # WITH
    out[t] = s[255 - 4 * t]  # BUG


@pair("race", "shared", "s", make=lambda new: (ramp(512), zeros(64)), result=lambda x, out: x[:256:4] + x[256::4])
@cuda.jit
def the_newest_group_has_not_arrived(x, out, mended):
    s = cuda.shared.array((2, 256), np.float32)
    t = cuda.threadIdx.x
    for stage in range(2):
        copy_async(s, 256 * stage + 4 * t, x, 256 * stage + 4 * t, 4)
        commit_copies()
    wait_copies(1)
    total = s[0, 4 * t]
    if mended:
        wait_copies(0)
    out[t] = total + s[1, 4 * t]  # BUG


@pair("race", "shared", "s", make=lambda new: (ramp(1024), zeros(64)),
      result=lambda x, out: x.reshape(4, 64, 4)[:, :, 0].sum(0))  # fmt: skip
@cuda.jit
def the_last_rounds_commit_nothing(x, out, mended):
    """`wait_copies(1)` counts groups: a round that starts no copy must commit an empty one."""
    s = cuda.shared.array((2, 256), np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    total = np.float32(0)
    for k in range(4):
        if k + 1 < 4:
            copy_async(s, 256 * ((k + 1) % 2) + 4 * t, x, 256 * (k + 1) + 4 * t, 4)
            commit_copies()
        elif mended:
            commit_copies()
        wait_copies(1)
        total += s[k % 2, 4 * t]  # BUG
    out[t] = total


@pair("race", "shared", "s", make=lambda new: (ramp(1024), zeros(64)),
      result=lambda x, out: x.reshape(4, 256)[:, ::-4].sum(0))  # fmt: skip
@cuda.jit
def a_stage_is_filled_while_others_read_it(x, out, mended):
    s = cuda.shared.array((2, 256), np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    total = np.float32(0)
    for k in range(4):
        if k + 1 < 4:
            copy_async(s, 256 * ((k + 1) % 2) + 4 * t, x, 256 * (k + 1) + 4 * t, 4)  # BUG
        commit_copies()
        wait_copies(1)
        cuda.syncthreads()
        total += s[k % 2, 255 - 4 * t]  # WITH
        if mended:
            cuda.syncthreads()
    out[t] = total


@pair("race", "shared", "s", make=tile, result=lambda x, out: 2 * x[::4])
@cuda.jit
def two_copies_to_one_place(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    where = 4 * t if mended else 4 * (t // 2)
    copy_async(s, where, x, 4 * t, 4)  # BUG
    commit_copies()
    wait_copies(0)
    out[t] = 2 * s[where]  # BUG


@pair("race", "shared", "s", make=tile, result=lambda x, out: np.where(x[::4] < 128, x[::4], 0))
@cuda.jit
def zeros_stored_while_the_copy_is_under_way(x, out, mended):
    """What lies outside is not to be copied first and overwritten then: a count of 0 fills with zeros."""
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 0 if mended and t >= 32 else 4)
    commit_copies()
    if t >= 32 and not mended:
        s[4 * t] = 0  # BUG
    wait_copies(0)
    out[t] = s[4 * t]


@pair("race", "global", "x", make=tile, result=lambda x, out: x[::4])
@cuda.jit
def a_source_is_overwritten_before_the_wait(x, out, mended):
    """Until the wait the copy may not have read what it copies."""
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    if mended:
        wait_copies(0)
    x[4 * t] = -1  # BUG
    wait_copies(0)
    out[t] = s[4 * t]


@pair("race", "global", "x", make=tile, result=lambda x, out: x[::4])
@cuda.jit
def a_source_of_others_is_updated_before_they_wait(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    copy_async(s, 4 * t, x, 4 * t, 4)
    commit_copies()
    if mended:
        wait_copies(0)
    cuda.syncthreads()
    cuda.atomic.add(x, 252 - 4 * t, 1)  # BUG
    wait_copies(0)
    out[t] = s[4 * t]


@pair("race", "global", "x", make=tile, result=lambda x, out: np.where(np.arange(64) < 32, x[::4], 0))
@cuda.jit
def one_warp_waits_and_another_overwrites(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    if t < 32:
        copy_async(s, 4 * t, x, 4 * t, 4)  # WITH
        commit_copies()
        if mended:
            wait_copies(0)
    cuda.syncthreads()
    if t < 32:
        wait_copies(0)
        out[t] = s[4 * t]
    else:
        x[4 * t - 128] = -1  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(250), zeros(64)), result=lambda x, out: x[::4].sum())
@cuda.jit
def a_copy_past_the_end(x, out, mended):
    s = cuda.shared.array(256, np.float32)
    t = cuda.threadIdx.x
    count = min(4, max(0, x.size - 4 * t)) if mended else 4
    copy_async(s, 4 * t, x, 4 * t, count)  # BUG
    commit_copies()
    wait_copies(0)
    cuda.syncthreads()
    total = np.float32(0)
    for k in range(64):
        total += s[4 * k]
    out[t] = total


@pair("race", "shared", "s", make=halves, result=lambda x, out: np.tile(2 * x[:64:2], 2))
@cuda.jit
def matrices_loaded_before_they_arrive(x, out, mended):
    s = cuda.shared.array((64, 8), np.uint16)
    t = cuda.threadIdx.x
    copy_async(s, 8 * t, x, 8 * t, 8)  # WITH
    commit_copies()
    if mended:
        wait_copies(0)
        cuda.syncthreads()
    first, _, _, _ = ldmatrix(s, 8 * (t % 32))  # BUG
    out[t] = 2 * (first & 0xFFFF)


@pair("uninitialised_read", "shared", "s", make=halves, result=lambda x, out: np.tile(x[:64:2], 2))
@cuda.jit
def rows_that_nobody_filled(x, out, mended):
    """One matrix is wanted, and the addresses of the other three are needed as well."""
    s = cuda.shared.array((32, 8), np.uint16)
    t = cuda.threadIdx.x
    if t < 8:
        for k in range(8):
            s[t, k] = x[8 * t + k]
    cuda.syncthreads()
    first, _, _, _ = ldmatrix(s, 8 * (t % 8) if mended else 8 * (t % 32))  # BUG
    out[t] = first & 0xFFFF


@pair("divergent_barrier", "register", "mma_f16()", make=lambda new: (ramp(64, np.uint32), zeros(64)),
      result=lambda x, out: 1, hangs=True)  # fmt: skip
@cuda.jit
def half_a_warp_multiplies(x, out, mended):
    t = cuda.threadIdx.x
    a, one = x[t] & np.uint32(0), np.float32(1)
    zero = np.uint32(a)
    total = one
    if mended or t < 48:
        d = mma_f16((zero, zero, zero, zero), (zero, zero), (one, one, one, one))  # BUG
        total = d[0]
    out[t] = total


@pair("divergent_barrier", "register", "mma_sp_f16()", result=lambda x, out: 1, hangs=True)
@cuda.jit
def half_a_warp_multiplies_what_is_stored(x, out, mended):
    """The lanes that stay away have metadata of the others' rows."""
    t = cuda.threadIdx.x
    zero, one, total = np.uint32(0), np.float32(1), x[t]
    words, sums = (zero, zero, zero, zero), (one, one, one, one)
    if mended or t % 4 < 2:
        d = mma_sp_f16(words, words, sums, np.uint32(0x44444444), 1)  # BUG
        total = d[0]
    out[t] = total


@pair("out_of_bounds", "shared", "s", make=halves, result=lambda x, out: np.tile(x[192:256:2], 2))
@cuda.jit
def the_last_matrices_lie_outside(x, out, mended):
    s = cuda.shared.array((32, 8), np.uint16)
    t = cuda.threadIdx.x
    if t < 32:
        copy_async(s, 8 * t, x, 8 * t, 8)
        commit_copies()
        wait_copies(0)
    cuda.syncthreads()
    first, _, _, last = ldmatrix(s, 8 * (t % 32) if mended else 8 * (t % 32 + 8))  # BUG
    out[t] = (last if mended else first) & 0xFFFF
