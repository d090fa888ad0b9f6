"""Counts with which the last of several blocks to arrive knows that it is the last."""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.graphs import is_recorded

__all__ = ["ARRIVALS", "arrivals_for", "is_last_block"]

ARRIVALS = 8192  # counts: the most that a launch may need
BLOCK = 128


@cuda.jit(device=True)
def is_last_block(arrivals, at, parts, before):
    """Whether this block is the last of ``parts`` that count themselves in ``arrivals[at]``, which is 0 again then.

    All threads of all these blocks call it. What they have stored before, the last block may read afterwards. Its
    threads are along x and y. ``before``: a shared array of one uint32. There are two barriers.
    """
    cuda.threadfence()  # what this thread has stored is there for all,
    cuda.syncthreads()  # and so is what its block has
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        before[0] = cuda.atomic.inc(arrivals, at, np.uint32(parts - 1))
    cuda.syncthreads()
    last = before[0] == np.uint32(parts - 1)
    cuda.threadfence()
    return last


@cuda.jit
def zero_kernel(counts):
    i = cuda.grid(1)
    if i < counts.size:
        counts[i] = 0


@device.cached(16)
def _counts(stream: typing.Any) -> typing.Any:
    """Zeros for the launches of a stream, which follow one another: each of them leaves zeros behind."""
    return device.to_device(np.zeros(ARRIVALS, np.uint32), stream=stream)


def arrivals_for(stream: typing.Any) -> typing.Any:
    """``ARRIVALS`` zeros, a device array of uint32, for a launch on a stream, which must leave zeros behind.

    What is recorded for a CUDA graph has its own, since graphs may run at the same time.

    >>> int(device.to_host(arrivals_for(0)).sum())
    0
    """
    if not is_recorded(stream):
        return _counts(stream)
    counts = device.empty(ARRIVALS, np.uint32, stream=stream)
    zero_kernel[ARRIVALS // BLOCK, BLOCK, stream](counts)
    return counts
