"""The sum of few float32: what one block reads, added up with one barrier.

With so few numbers their bytes cost nothing. A launch, the way of a load, and steps that wait for one another are all
of the time, and a kernel with fewer instructions is faster. `pmpp.kernels.reduction.ladder.deterministic` has one
kernel for all dtypes, operators, sizes and alignments. Here it is the sum of float32 from a multiple of 16 bytes on,
the number of threads is known when a kernel is compiled, and no vector is loaded behind a branch. After the barrier one
thread adds up what the warps have.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import warp_sum
from pmpp.runtime import device
from pmpp.runtime.vector import load128

__all__ = ["MOST", "sum_of_few", "takes"]

LEAST, BLOCK = 128, 1024  # threads a block
LOADS = 4  # of 128 bits a thread
MOST = 4 * LOADS * BLOCK  # elements
f0, u32 = np.float32(0), np.uint32


@cuda.jit(device=True)
def sum_of_four(v):
    return (v[0] + v[1]) + (v[2] + v[3])


@cuda.jit(device=True)
def sum_from(x, i, end):
    """The sum of x[i:i + 4], or 0 if i is ``end`` or beyond: then the first four are loaded, and do not count."""
    here = i < end
    total = sum_of_four(load128(x, i if here else u32(0)))
    return total if here else f0


@functools.lru_cache(8)
def few_kernel(threads: int) -> typing.Any:
    """The kernel for a block of so many threads, a multiple of 128, and at least four elements."""
    step, vectors = u32(4 * threads), threads // 128

    @cuda.jit
    def sum_of_few_kernel(x, out, size):
        sums = cuda.shared.array(32, np.float32, alignment=16)
        thread = u32(cuda.threadIdx.x)
        i, end = u32(4 * thread), u32(size & u32(0xFFFFFFFC))
        total = sum_from(x, i, end) + sum_from(x, u32(i + step), end)
        total += sum_from(x, u32(i + 2 * step), end) + sum_from(x, u32(i + 3 * step), end)
        last = u32(end + thread)  # at most three elements are no whole vector
        total += x[last] if last < size else f0
        total = warp_sum(total)
        if thread % 32 == 0:
            sums[thread // 32] = total
        cuda.syncthreads()
        if thread == 0:
            total = f0
            for k in range(vectors):
                total += sum_of_four(load128(sums, 4 * k))
            out[0] = total

    return sum_of_few_kernel


def takes(x: typing.Any) -> bool:
    """Whether `sum_of_few` is for a vector of float32: it has 4 to MOST elements, from a multiple of 16 bytes on."""
    return 4 <= x.size <= MOST and device.address(x) % 16 == 0


def sum_of_few(x: typing.Any, stream: typing.Any = 0) -> typing.Any:
    """The sum of a float32 vector that it `takes`: a device array of shape (1,), with the same bits in every run.

    >>> sum_of_few(device.to_device(np.float32([1, 2, 3, 4, 5]))).copy_to_host()
    array([15.], dtype=float32)
    """
    threads = LEAST
    while 4 * LOADS * threads < x.size:
        threads *= 2
    out = device.empty(1, np.float32, stream=stream)
    few_kernel(threads)[1, threads, stream](x, out, u32(x.size))
    return out
