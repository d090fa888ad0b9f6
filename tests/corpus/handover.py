"""Handing data from block to block: write, fence, signal by an atomic; look at the signal by an atomic, read."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros


def last_block_arguments(new):
    return ramp(4, np.int32), zeros(4, np.int32), zeros(1, np.int32), zeros(1, np.int32)


def total(x, partial, ticket, out):
    return [x.sum()]


@pair("race", "global", "partial", grid=4, block=32, make=last_block_arguments, result=total)
@cuda.jit
def last_block_without_a_fence(x, partial, ticket, out, mended):
    last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]  # WITH
        if mended:
            cuda.threadfence()
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and t < cuda.gridDim.x:
        cuda.atomic.add(out, 0, partial[t])  # BUG


@pair("race", "global", "partial", grid=4, block=32, make=last_block_arguments, result=total)
@cuda.jit
def fence_of_the_block_for_the_grid(x, partial, ticket, out, mended):
    last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]  # WITH
        if mended:
            cuda.threadfence()
        else:
            cuda.threadfence_block()
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and t < cuda.gridDim.x:
        cuda.atomic.add(out, 0, partial[t])  # BUG


@pair("race", "global", "partial", grid=4, block=32, make=last_block_arguments, result=total)
@cuda.jit
def fence_before_the_store(x, partial, ticket, out, mended):
    last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        if not mended:
            cuda.threadfence()
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]  # WITH
        if mended:
            cuda.threadfence()
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and t < cuda.gridDim.x:
        cuda.atomic.add(out, 0, partial[t])  # BUG


@pair("race", "global", "partial", grid=4, make=lambda new: (ramp(256), zeros(256), zeros(1, np.int32), zeros(64)),
      result=lambda x, partial, ticket, out: x.reshape(4, 64).sum(0))  # fmt: skip
@cuda.jit
def ticket_taken_before_all_warps_have_stored(x, partial, ticket, out, mended):
    last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    partial[i] = x[i]  # WITH
    if mended:
        cuda.syncthreads()
    if t == 0:
        cuda.threadfence()
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        for b in range(cuda.gridDim.x):
            out[t] += partial[64 * b + t]  # BUG


@pair("race", "global", "partial", grid=4, make=lambda new: (ramp(256), zeros(256), zeros(1, np.int32), zeros(64)),
      result=lambda x, partial, ticket, out: x.reshape(4, 64).sum(0))  # fmt: skip
@cuda.jit
def only_the_first_warp_fences_before_the_barrier(x, partial, ticket, out, mended):
    last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    partial[i] = x[i]  # WITH
    if mended or t < 32:
        cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        for b in range(cuda.gridDim.x):
            out[t] += partial[64 * b + t]  # BUG


@pair("race", "global", "ticket", grid=4, block=32, make=last_block_arguments, result=total)
@cuda.jit
def ticket_without_an_atomic(x, partial, ticket, out, mended):
    t = cuda.threadIdx.x
    if t == 0:
        cuda.atomic.add(out, 0, x[cuda.blockIdx.x])
        cuda.threadfence()
        if mended:
            cuda.atomic.add(ticket, 0, 1)
        else:
            ticket[0] += 1  # BUG


@pair("race", "global", "data", grid=2, block=32, make=lambda new: (zeros(1), zeros(1, np.int32), zeros(1)),
      result=None)  # fmt: skip
@cuda.jit
def message_without_a_fence(data, flag, out, mended):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # WITH
            if mended:
                cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        elif cuda.atomic.add(flag, 0, 0) == 1:
            out[0] = data[0]  # BUG


@pair("race", "global", "data", grid=2, block=32, make=lambda new: (zeros(1), zeros(1, np.int32), zeros(1)),
      result=None)  # fmt: skip
@cuda.jit
def message_read_without_a_look_at_the_flag(data, flag, out, mended):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # WITH
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        elif not mended or cuda.atomic.add(flag, 0, 0) == 1:
            out[0] = data[0]  # BUG


@pair("race", "global", "total", grid=4, block=32, make=lambda new: (zeros(1), zeros(1, np.int32)), result=None)
@cuda.jit
def lock_released_without_a_fence(total, lock, mended):
    done = cuda.threadIdx.x != 0
    for _ in range(8):
        if not done and cuda.atomic.cas(lock, 0, 0, 1) == 0:
            total[0] += 1  # BUG
            if mended:
                cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            done = True
