"""The sum and the maximum of the values of a warp's or a block's threads, in every thread.

Chapter: notebooks/30_reduction.ipynb. All are device functions for values of float32 or float64, and for blocks of one
dimension, of up to 32 whole warps. All threads must call them. A NaN among the values makes the sum NaN.

What lanes exchange has a name first. In ``return warp_sum(a if here else b)`` Python 3.12 puts a call into each branch.
Then the lanes of a warp make two different exchanges, and each waits for lanes that never come.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common.grid import FULL_WARP

# What idle lanes bring. They are float32, because a literal such as 0.0 would make a float64 of what it meets.
NO_SUM, NO_MAX = np.float32(0), np.float32(-np.inf)


@cuda.jit(device=True)
def warp_sum(value):
    """In all lanes, the sum of the warp's values: lanes exchange values with the lane 16 away, then 8, 4, 2, 1."""
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL_WARP, value, distance)
    return value


@cuda.jit(device=True)
def warp_max(value):
    """In all lanes, the largest of the warp's values."""
    for distance in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(FULL_WARP, value, distance))
    return value


@cuda.jit(device=True)
def sum_across_warps(value, partial):
    """In all threads, the sum of one value from each warp; all lanes of a warp bring the same.

    ``partial``: a shared array of 32, which no thread still reads. There is one barrier.
    """
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    seen = partial[cuda.laneid] if cuda.laneid < cuda.blockDim.x // 32 else NO_SUM
    return warp_sum(seen)


@cuda.jit(device=True)
def max_across_warps(value, partial):
    """In all threads, the largest of one value from each warp; as `sum_across_warps`."""
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    seen = partial[cuda.laneid] if cuda.laneid < cuda.blockDim.x // 32 else NO_MAX
    return warp_max(seen)


@cuda.jit(device=True)
def block_sum(value, partial):
    """In all threads, the sum of the block's values. ``partial`` as in `sum_across_warps`."""
    return sum_across_warps(warp_sum(value), partial)


@cuda.jit(device=True)
def block_max(value, partial):
    """In all threads, the largest of the block's values. ``partial`` as in `sum_across_warps`."""
    return max_across_warps(warp_max(value), partial)
