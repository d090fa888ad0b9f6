"""Locks that are not those of the data, and blocks that wait for another than the one whose result they need."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros


def bins_and_locks(new):
    return ramp(4, np.int32) // 2, zeros(4, np.int32), zeros(4)


@pair("race", "global", "bins", grid=4, block=32, make=bins_and_locks, result=lambda x, lock, bins: [2, 2, 0, 0])
@cuda.jit
def lock_of_the_block_and_not_of_the_bin(x, lock, bins, mended):
    """Two blocks that share a bin have to take the same lock."""
    if cuda.threadIdx.x == 0:
        k = x[cuda.blockIdx.x]
        mine = k if mended else cuda.blockIdx.x
        while cuda.atomic.cas(lock, mine, 0, 1) != 0:
            pass
        cuda.threadfence()
        bins[k] += 1  # BUG
        cuda.threadfence()
        cuda.atomic.exch(lock, mine, 0)


@pair("race", "global", "total", grid=4, block=32, make=lambda new: (ramp(4), zeros(1, np.int32), zeros(2)),
      result=lambda x, lock, total: [6, 4])  # fmt: skip
@cuda.jit
def counted_after_the_lock_was_given_back(x, lock, total, mended):
    """All that belongs together has to be done before the lock is given back."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]
        if mended:
            total[1] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)
        if not mended:
            total[1] += 1  # BUG


@pair("race", "global", "pairs", grid=4, block=32, make=lambda new: (zeros(1, np.int32), zeros(2), zeros(4)),
      result=lambda lock, pairs, out: np.zeros(4))  # fmt: skip
@cuda.jit
def reader_without_the_lock(lock, pairs, out, mended):
    """Two numbers that always agree under the lock need not agree for those who look without it."""
    if cuda.threadIdx.x == 0:
        b = cuda.blockIdx.x
        if mended or b < 3:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
        if b < 3:
            pairs[0] += 1  # WITH
            pairs[1] += 1  # WITH
        else:
            out[b] = pairs[0] - pairs[1]  # BUG
        if mended or b < 3:
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)


@pair("race", "global", "prefix", grid=4, block=32, make=lambda new: (ramp(4), zeros(4, np.int32), zeros(4)),
      result=lambda x, ready, prefix: np.cumsum(x))  # fmt: skip
@cuda.jit
def prefix_behind_the_flag_of_another_tile(x, ready, prefix, mended):
    """That the first tile is ready says nothing about the one before mine."""
    if cuda.threadIdx.x == 0:
        b = cuda.blockIdx.x
        before = np.float32(0)
        if b > 0:
            while cuda.atomic.add(ready, b - 1 if mended else 0, 0) == 0:
                pass
            cuda.threadfence()
            before = prefix[b - 1]  # BUG
        prefix[b] = before + x[b]  # WITH
        cuda.threadfence()
        cuda.atomic.exch(ready, b, 1)
