"""A sum of float32 and of 16 bits: what a shortcut of a network in mixed precision adds, in one trip.

A layer's result has 16 bits, and what passes beside it is float32. To cast the one first would write it to memory in 32
bits and read it again. Here it is widened in registers. The bound is the memory: 4 bytes read, 2 more of the short one,
and 4 written for each element.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.elementwise.ladder import ANY, BLOCK
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128, widened

__all__ = ["SHORT", "add_widened"]

SHORT = ("float16", "bfloat16")
EACH = 8  # elements a thread


@cuda.jit
def add_widened_kernel(a, b, out):
    i = EACH * (np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x)
    if i + EACH <= out.size:
        left, right, short = load128(a, i), load128(a, i + 4), widened(load128(b, i))
        store128(out, i, (left[0] + short[0], left[1] + short[1], left[2] + short[2], left[3] + short[3]))
        store128(out, i + 4, (right[0] + short[4], right[1] + short[5], right[2] + short[6], right[3] + short[7]))
    else:
        for last in range(i, out.size):
            out[last] = a[last] + widened(b[last])


@cuda.jit
def add_one_by_one_kernel(a, b, out):
    i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if i < out.size:
        out[i] = a[i] + widened(b[i])


def add_widened(a, b, *, stream=0) -> typing.Any:
    """``a + b`` in float32.

    Args:
        a: float32, any shape, in C order.
        b: float16 or bfloat16, of the same shape, in C order.
        stream: the stream to work on.

    Returns a new device array, without waiting for the work to be done. Each sum is rounded once.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> add_widened(np.float32([1, 2]), np.float16([0.5, -2])).copy_to_host()
    array([1.5, 0. ], dtype=float32)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes="float32", ndim=ANY, stream=stream)
    b = device.as_input("b", b, dtypes=SHORT, ndim=ANY, shape=a.shape, stream=stream)
    out = device.empty(a.shape, np.float32, stream=stream)
    if out.size:
        whole = not any(device.address(x) % 16 for x in (a, b, out))
        kernel, each = (add_widened_kernel, EACH) if whole else (add_one_by_one_kernel, 1)
        kernel[blocks(blocks(out.size, each), BLOCK), BLOCK, stream](*(x.reshape(-1) for x in (a, b, out)))
    return out
