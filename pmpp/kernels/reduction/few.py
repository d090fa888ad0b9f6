"""The sum of few float32: what one block reads, added up with one barrier.

With so few numbers their bytes cost nothing: a launch, the way of a load, and steps that wait for one another are all
of the time. So each step counts. `pmpp.kernels.reduction.ladder.deterministic` has a kernel for all dtypes and
operators, and adds up across threads by ten shuffles: five in each warp and, after a barrier, five in one. Here the
threads' sums go to shared memory, and after the barrier each lane of one warp reads some of them by 128 bits. Then five
shuffles are left. Numbers of elements have 32 bits, and no loop counts its turns by a division.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up, warp_sum
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import device
from pmpp.runtime.vector import load128

__all__ = ["MOST", "sum_of_few"]

BLOCK = 1024  # threads a block, at most
LOADS = 4  # of 128 bits a thread
MOST = 4 * LOADS * BLOCK  # elements
u32 = np.uint32


@cuda.jit(device=True)
def sum_of_four(v):
    return (v[0] + v[1]) + (v[2] + v[3])


@cuda.jit
def few_kernel(x, out, size, head, tail):
    """x[head:tail] is read in vectors. At most three elements lie before them, and three behind."""
    sums = cuda.shared.array(BLOCK, np.float32, alignment=16)
    thread, threads = u32(cuda.threadIdx.x), u32(cuda.blockDim.x)
    total, step, i = np.float32(0), u32(4 * threads), u32(head + 4 * thread)
    if i + 3 * step < tail:  # all four loads are under way before the first is used
        a, b = load128(x, i), load128(x, u32(i + step))
        c, d = load128(x, u32(i + 2 * step)), load128(x, u32(i + 3 * step))
        total = (sum_of_four(a) + sum_of_four(b)) + (sum_of_four(c) + sum_of_four(d))
    else:
        while i < tail:
            total += sum_of_four(load128(x, i))
            i = u32(i + step)
    if thread < head:
        total += x[thread]
    if tail + thread < size:
        total += x[u32(tail + thread)]
    sums[thread] = total
    cuda.syncthreads()
    if thread < 32:
        total, i = np.float32(0), u32(4 * thread)
        while i < threads:
            total += sum_of_four(load128(sums, i))
            i = u32(i + 128)
        total = warp_sum(total)
        if thread == 0:
            out[0] = total


def sum_of_few(x: typing.Any, stream: typing.Any = 0) -> typing.Any:
    """The sum of a float32 vector in C order, of 1 to MOST elements: a device array of shape (1,).

    It has the same bits in every run, if x begins equally far from a multiple of 16 bytes.

    >>> sum_of_few(device.to_device(np.float32([1, 2, 3]))).copy_to_host()
    array([6.], dtype=float32)
    """
    head, tail, width = vector_span(x)
    threads = max(32, round_up(blocks((tail - head) // width, LOADS), 32))
    out = device.empty(1, np.float32, stream=stream)
    few_kernel[1, threads, stream](x, out, u32(x.size), u32(head), u32(tail))
    return out
