"""Signals: who may rely on one that a single thread has seen, and whose writes a single thread's fence covers.

The PTX memory model, "Release and acquire patterns": a fence and a strong write after it, by one thread, release; a
strong read and a fence after it, by one thread, acquire.  What other threads wrote before, and what others read
afterwards, is ordered only by a barrier with that thread: `syncthreads` for a block, `syncwarp` for the lanes it names.
"""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros

FULL = 0xFFFFFFFF


def message(n, *more):
    """Data, a flag, and what is made of the data."""
    return lambda new: (zeros(n), zeros(1, np.int32), *(zeros(m, np.int32) for m in more), zeros(n))


def counted(n):
    return lambda *arguments: ramp(n) + 1


@pair("race", "global", "data", grid=2, block=128, make=message(128), result=counted(128))
@cuda.jit
def one_warp_waits_for_the_block(data, flag, out, mended):
    """Only the warp that looks at the flag acquires; the three others may read before it is raised."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t < 32:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        if mended:
            cuda.syncthreads()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=64, make=message(64), result=counted(64))
@cuda.jit
def all_fence_but_one_warp_has_looked(data, flag, out, mended):
    """A fence acquires nothing for a thread that has read no signal."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t < 32 or mended:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        cuda.threadfence()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=32, make=message(32), result=counted(32))
@cuda.jit
def one_lane_waits_for_its_warp(data, flag, out, mended):
    """Lanes need not run in step: the others may read while lane 0 still waits."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        cuda.syncwarp()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        if mended:
            cuda.syncwarp()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=64, make=message(64), result=counted(64))
@cuda.jit
def leader_tells_its_warp_and_not_its_block(data, flag, out, mended):
    """`syncwarp` tells one warp what its leader has seen; the other warp has met nobody."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        if mended:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=32, make=message(32), result=counted(32))
@cuda.jit
def leader_tells_half_its_warp(data, flag, out, mended):
    """`syncwarp(mask)` orders the lanes of the mask, and the upper half is not in it."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        cuda.syncwarp()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        if mended:
            cuda.syncwarp()
        else:
            cuda.syncwarp(0xFFFF if t < 16 else 0xFFFF0000)
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=32, make=message(32), result=counted(32))
@cuda.jit
def leader_publishes_for_lanes_it_has_not_met(data, flag, out, mended):
    """Lane 0's fence covers its own writes, and those of lanes that it has met before it: here none."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        if mended:
            cuda.syncwarp()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncwarp()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=64, make=message(64), result=counted(64))
@cuda.jit
def leader_publishes_for_a_warp_it_has_not_met(data, flag, out, mended):
    """`syncwarp` puts the leader's own warp before its fence, and the other warp may still be writing."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        if mended:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=64, make=message(64), result=counted(64))
@cuda.jit
def one_thread_fences_and_another_signals(data, flag, out, mended):
    """The fence and the signal make a release only if one thread does both, or a barrier is between them."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t + 1  # WITH
        cuda.syncthreads()
        if t == (0 if mended else 32):
            cuda.threadfence()
        if t == 0:
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=64, make=message(64), result=counted(64))
@cuda.jit
def fence_between_the_barrier_and_more_writes(data, flag, out, mended):
    """What is written behind the fence is not covered by it."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        if mended:
            data[t] = t + 1
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
        if not mended:
            data[t] = t + 1  # WITH
            cuda.syncthreads()
        if t == 0:
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = data[t]  # BUG


@pair("race", "global", "data", grid=2, block=32, make=message(1), result=lambda data, flag, out: [42])
@cuda.jit
def fence_behind_the_signal(data, flag, out, mended):
    """The flag may be seen before the data: the fence stands on the wrong side."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # WITH
            if mended:
                cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            cuda.threadfence()
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = data[0]  # BUG


@pair("race", "global", "data", grid=2, block=32, make=message(1), result=lambda data, flag, out: [42])
@cuda.jit
def reader_fences_before_it_has_seen_the_flag(data, flag, out, mended):
    """A plain read of the flag acquires only with a fence behind it; those in the loop come before the last read."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # WITH
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while flag[0] == 0:
                cuda.threadfence()
            if mended:
                cuda.threadfence()
            out[0] = data[0]  # BUG


@pair("race", "global", "data", grid=2, block=32, make=message(1), result=lambda data, flag, out: [42])
@cuda.jit
def reader_fences_behind_the_data(data, flag, out, mended):
    """The data may be read before the flag: the fence stands on the wrong side."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # WITH
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while flag[0] == 0:
                cuda.threadfence()
            if mended:
                cuda.threadfence()
            value = data[0]  # BUG
            cuda.threadfence()
            out[0] = value


@pair("race", "global", "flag", grid=2, block=32, make=message(1), result=None)
@cuda.jit
def flag_withdrawn_by_a_plain_store(data, flag, out, mended):
    """Whoever raised the flag lowers it again by a plain store, while another block may look at it."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            if not mended:
                flag[0] = 0  # WITH
        elif cuda.atomic.add(flag, 0, 0) == 1:  # BUG
            cuda.threadfence()
            out[0] = data[0]


@pair("race", "global", "ticket", grid=4, block=32, make=lambda new: (ramp(4), zeros(1, np.int32), zeros(4)),
      result=lambda x, ticket, out: x)  # fmt: skip
@cuda.jit
def first_block_resets_the_ticket(x, ticket, out, mended):
    """Only the block that draws the last ticket may reset it by a plain store: the others are through."""
    if cuda.threadIdx.x == 0:
        b = cuda.blockIdx.x
        out[b] = x[b]
        drawn = cuda.atomic.add(ticket, 0, 1)  # WITH
        if drawn == (cuda.gridDim.x - 1 if mended else 0):
            ticket[0] = 0  # BUG


@pair("race", "global", "data", grid=2, block=32, make=lambda new: (zeros(2), zeros(2, np.int32), zeros(2)),
      result=lambda data, flag, out: [10, 11])  # fmt: skip
@cuda.jit
def second_message_under_the_first_flag(data, flag, out, mended):
    """A flag that is up already says nothing of a message that has a flag of its own."""
    if cuda.threadIdx.x == 0:
        for k in range(2):
            if cuda.blockIdx.x == 0:
                data[k] = 10 + k  # WITH
                cuda.threadfence()
                cuda.atomic.exch(flag, k, 1)
            else:
                while cuda.atomic.add(flag, k if mended else 0, 0) == 0:
                    pass
                cuda.threadfence()
                out[k] = data[k]  # BUG


@pair("race", "global", "data", grid=2, block=32,
      make=lambda new: (zeros(2), zeros(6, np.int32), zeros(6, np.int32), zeros(6)),
      result=lambda data, full, empty, out: 10 + np.arange(6))  # fmt: skip
@cuda.jit
def buffer_refilled_before_it_was_emptied(data, full, empty, out, mended):
    """Two buffers in turn: whoever fills one must wait until it was emptied two rounds ago."""
    if cuda.threadIdx.x == 0:
        for k in range(6):
            if cuda.blockIdx.x == 0:
                if mended and k >= 2:
                    while cuda.atomic.add(empty, k - 2, 0) == 0:
                        pass
                    cuda.threadfence()
                data[k % 2] = 10 + k  # BUG
                cuda.threadfence()
                cuda.atomic.exch(full, k, 1)
            else:
                while cuda.atomic.add(full, k, 0) == 0:
                    pass
                cuda.threadfence()
                out[k] = data[k % 2]  # WITH
                cuda.threadfence()
                cuda.atomic.exch(empty, k, 1)


@pair("race", "global", "data", grid=2, block=64, make=lambda new: (zeros((4, 64)), zeros(4, np.int32), zeros((4, 64))),
      result=lambda data, full, out: 100 * np.arange(4)[:, None] + np.arange(64))  # fmt: skip
@cuda.jit
def leader_waits_for_each_buffer_but_tells_once(data, full, out, mended):
    """The leader waits in every round, and the others hear of the first round only."""
    t = cuda.threadIdx.x
    for k in range(4):
        if cuda.blockIdx.x == 0:
            data[k, t] = 100 * k + t  # WITH
            cuda.syncthreads()
            if t == 0:
                cuda.threadfence()
                cuda.atomic.exch(full, k, 1)
        else:
            if t == 0:
                while cuda.atomic.add(full, k, 0) == 0:
                    pass
                cuda.threadfence()
            if mended or k == 0:
                cuda.syncthreads()
            out[k, t] = data[k, t]  # BUG


@pair("race", "global", "data", grid=3, block=32,
      make=lambda new: (zeros(1), zeros(2, np.int32), zeros(1)), result=lambda data, flag, out: [42])  # fmt: skip
@cuda.jit
def message_passed_on_without_having_looked(data, flag, out, mended):
    """Block 1 may pass on only what it has seen itself: otherwise its flag promises nothing of block 0."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # WITH
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        elif cuda.blockIdx.x == 1:
            if mended:
                while cuda.atomic.add(flag, 0, 0) == 0:
                    pass
            cuda.threadfence()
            cuda.atomic.exch(flag, 1, 1)
        else:
            while cuda.atomic.add(flag, 1, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = data[0]  # BUG


@pair("race", "global", "partial", grid=4, block=32,
      make=lambda new: (ramp(4, np.int32), zeros(4, np.int32), zeros(1, np.int32), zeros(1, np.int32)),
      result=lambda x, partial, ticket, out: [x.sum()])  # fmt: skip
@cuda.jit
def ticket_told_by_a_shuffle(x, partial, ticket, out, mended):
    """A shuffle moves the ticket and orders no memory: lanes other than the leader may have read before."""
    t = cuda.threadIdx.x
    drawn = 0
    if t == 0:
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]  # WITH
        cuda.threadfence()
        drawn = cuda.atomic.add(ticket, 0, 1)
    drawn = cuda.shfl_sync(FULL, drawn, 0)
    if mended:
        cuda.syncwarp()
    if drawn == cuda.gridDim.x - 1 and t < cuda.gridDim.x:
        cuda.atomic.add(out, 0, partial[t])  # BUG


@pair("race", "global", "partial", grid=4, make=lambda new: (ramp(256), zeros(256), zeros(1, np.int32), zeros(64)),
      result=lambda x, partial, ticket, out: x.reshape(4, 64).sum(0))  # fmt: skip
@cuda.jit
def last_block_begins_before_its_leader_knows(x, partial, ticket, out, mended):
    """The flag in shared memory is passed on correctly, and what it stands for is read before that barrier."""
    last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    partial[cuda.grid(1)] = x[cuda.grid(1)]  # WITH
    cuda.threadfence()
    cuda.syncthreads()
    if t == 0:
        last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    if mended:
        cuda.syncthreads()
    total = np.float32(0)
    for b in range(cuda.gridDim.x):
        if mended and not last[0]:
            break
        total += partial[64 * b + t]  # BUG
    cuda.syncthreads()
    if last[0]:
        out[t] = total


@pair("race", "shared", "s", block=64, result=lambda x, out: np.r_[x[32:], np.zeros(32)])
@cuda.jit
def one_lane_waits_on_shared_memory(x, out, mended):
    """The same within a block: lane 0 sees the flag, and the other lanes of its warp have not met it since."""
    s = cuda.shared.array(32, np.float32)
    flag = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        flag[0] = 0
    cuda.syncthreads()
    if t >= 32:
        s[t - 32] = x[t]  # WITH
        cuda.syncwarp()
        if t == 32:
            cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
        if mended:
            cuda.syncwarp()
        out[t] = s[t]  # BUG


@pair("race", "shared", "s", block=64, result=lambda x, out: np.r_[x[32:], np.zeros(32)])
@cuda.jit
def leader_raises_a_shared_flag_for_lanes_it_has_not_met(x, out, mended):
    """Lane 0 of the writing warp signals before it has met its own warp."""
    s = cuda.shared.array(32, np.float32)
    flag = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        flag[0] = 0
    cuda.syncthreads()
    if t >= 32:
        s[t - 32] = x[t]  # WITH
        if mended:
            cuda.syncwarp()
        if t == 32:
            cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
        cuda.syncwarp()
        out[t] = s[t]  # BUG


@pair("race", "shared", "s", block=64, result=lambda x, out: np.r_[x[32:], np.zeros(32)])
@cuda.jit
def shared_flag_without_a_fence(x, out, mended):
    """Shared memory needs its fence, too: `threadfence_block` between the data and the flag."""
    s = cuda.shared.array(32, np.float32)
    flag = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        flag[0] = 0
    cuda.syncthreads()
    if t >= 32:
        s[t - 32] = x[t]  # WITH
        cuda.syncwarp()
        if t == 32:
            if mended:
                cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
        cuda.syncwarp()
        out[t] = s[t]  # BUG


@pair("race", "shared", "s", block=96, result=lambda x, out: np.r_[x[64:], x[64:], np.zeros(32)])
@cuda.jit
def one_warp_waits_on_shared_memory_for_two(x, out, mended):
    """Warps 0 and 1 read what warp 2 writes, and only warp 0 waits for it."""
    s = cuda.shared.array(32, np.float32)
    flag = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        flag[0] = 0
    cuda.syncthreads()
    if t >= 64:
        s[t - 64] = x[t]  # WITH
        cuda.threadfence_block()
        cuda.atomic.add(flag, 0, 1)
    else:
        if t < 32 or mended:
            while cuda.atomic.add(flag, 0, 0) < 32:
                pass
            cuda.threadfence_block()
        out[t] = s[t % 32]  # BUG


@pair("race", "global", "total", grid=4, block=32, make=lambda new: (ramp(128), zeros(1, np.int32), zeros(32)),
      result=lambda x, lock, total: x.reshape(4, 32).sum(0))  # fmt: skip
@cuda.jit
def lock_released_before_the_warp_is_through(x, lock, total, mended):
    """The leader holds the lock for its warp, and gives it back while other lanes may still be writing."""
    t = cuda.threadIdx.x
    if t == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
    cuda.syncwarp()
    total[t] += x[cuda.grid(1)]  # BUG
    if mended:
        cuda.syncwarp()
    if t == 0:
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@pair("race", "global", "total", grid=4, block=32, make=lambda new: (ramp(128), zeros(1, np.int32), zeros(32)),
      result=lambda x, lock, total: x.reshape(4, 32).sum(0))  # fmt: skip
@cuda.jit
def lanes_write_before_their_leader_has_the_lock(x, lock, total, mended):
    """The leader takes the lock, and the other lanes do not wait until it has."""
    t = cuda.threadIdx.x
    if t == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
    if mended:
        cuda.syncwarp()
    total[t] += x[cuda.grid(1)]  # BUG
    cuda.syncwarp()
    if t == 0:
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@pair("race", "global", "data", grid=2, block=32, make=message(1), result=lambda data, flag, out: [42])
@cuda.jit
def waiting_by_an_atomic_maximum(data, flag, out, mended):
    """`atomic.max` with 0 reads a flag like any atomic; the writer's fence is missing."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            while cuda.atomic.max(flag, 0, 0) < 2:
                pass
            cuda.threadfence()
            out[0] = data[0]  # BUG
        else:
            data[0] = 42  # WITH
            if mended:
                cuda.threadfence()
            cuda.atomic.max(flag, 0, 2)


@pair("race", "global", "data", grid=3, block=64,
      make=lambda new: (zeros(128), np.full(1, 2, np.int32), zeros(64)),
      result=lambda data, left, out: 2 * (ramp(64) + 1) + 64)  # fmt: skip
@cuda.jit
def waiting_by_an_atomic_minimum(data, left, out, mended):
    """Two blocks count down, and the first waits until nobody is left; one thread of it waits for all."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    if b == 0:
        if t == 0:
            while cuda.atomic.min(left, 0, 2) > 0:
                pass
            cuda.threadfence()
        if mended:
            cuda.syncthreads()
        out[t] = data[t] + data[64 + t]  # BUG
    else:
        data[64 * b - 64 + t] = 64 * b - 64 + t + 1  # WITH
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.sub(left, 0, 1)


@pair("race", "global", "data", grid=2, block=64, make=message(64), result=counted(64))
@cuda.jit
def waiting_by_compare_and_swap(data, flag, out, mended):
    """`cas` of 1 by 1 reads a flag and changes nothing; the writer signals before all its warps have written."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        if t == 0:
            while cuda.atomic.cas(flag, 0, 1, 1) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = data[t]  # BUG
    else:
        data[t] = t + 1  # WITH
        if mended:
            cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.cas(flag, 0, 0, 1)


@cuda.jit(device=True)
def min(flag, i):
    """What a flag holds: a name that in Python only compares."""
    return cuda.atomic.add(flag, i, 0)


@pair("race", "global", "data", grid=2, block=32, make=message(1), result=lambda data, flag, out: [42])
@cuda.jit
def waiting_by_a_function_of_a_harmless_name(data, flag, out, mended):
    """A function called `min` reads the flag; the writer's fence stands behind the signal."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            while min(flag, 0) == 0:
                pass
            cuda.threadfence()
            out[0] = data[0]  # BUG
        else:
            data[0] = 42  # WITH
            if mended:
                cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            cuda.threadfence()


@pair("race", "global", "data", grid=2, block=32, make=message(32), result=counted(32))
@cuda.jit
def waiting_by_an_exchange(data, flag, out, mended):
    """`exch` with 0 takes the flag down while it looks; the lanes behind the one that took it have not met it."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        if t == 31:
            while cuda.atomic.exch(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        if mended:
            cuda.syncwarp()
        out[t] = data[t]  # BUG
    else:
        data[t] = t + 1  # WITH
        cuda.syncwarp()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
