"""What the threads that hold a row do together: the sums of `pmpp.kernels.common`, and a maximum that keeps NaN."""

from __future__ import annotations

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_sum, warp_sum

__all__ = ["block_max", "block_sum", "larger", "warp_max", "warp_sum"]


@cuda.jit(device=True)
def larger(a, b):
    """The larger one, or NaN if one is NaN, as in NumPy."""
    return a if a > b or a != a else b


@cuda.jit(device=True)
def warp_max(value):
    """In all lanes, the largest of the warp's values."""
    for distance in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(FULL_WARP, value, distance)
        value = larger(value, other)
    return value


@cuda.jit(device=True)
def block_max(value, partial):
    """In all threads, the largest of the block's values. ``partial``: a shared array of 32, used only here."""
    value = warp_max(value)
    if cuda.laneid == 0:
        partial[cuda.threadIdx.x // 32] = value
    cuda.syncthreads()
    warp = min(cuda.laneid, cuda.blockDim.x // 32 - 1)  # lanes without a warp repeat the last one's value
    return warp_max(partial[warp])
