"""Casts: the same numbers in another dtype, which is how mixed precision goes from 32 bits to 16 and back.

Each number is made a float32, which holds every float16 and bfloat16, and rounded once. A cast has no arithmetic: the
bound is the time to read one array and to write the other.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.elementwise import ladder
from pmpp.kernels.elementwise.ladder import BLOCK, COPY, DTYPES
from pmpp.runtime import device
from pmpp.runtime.dtypes import dtype_of
from pmpp.runtime.vector import load128, store128, widened

EACH = 8  # elements a thread


@cuda.jit(device=True)
def last_ones(a, out, i):
    for last in range(i, out.size):
        out[last] = widened(a[last])


@cuda.jit
def down_kernel(a, out):
    """From 32 bits to 16: two loads, one store."""
    i = EACH * np.int64(cuda.grid(1))
    if i + EACH <= out.size:
        store128(out, i, load128(a, i) + load128(a, i + 4))
    else:
        last_ones(a, out, i)


@cuda.jit
def up_kernel(a, out):
    """From 16 bits to 32: one load, two stores."""
    i = EACH * np.int64(cuda.grid(1))
    if i + EACH <= out.size:
        values = widened(load128(a, i))
        store128(out, i, values[:4])
        store128(out, i + 4, values[4:])
    else:
        last_ones(a, out, i)


@cuda.jit
def across_kernel(a, out):
    """From one kind of 16 bits to the other."""
    i = EACH * np.int64(cuda.grid(1))
    if i + EACH <= out.size:
        store128(out, i, widened(load128(a, i)))
    else:
        last_ones(a, out, i)


def cast(a, dtype, *, out=None, stream=0) -> typing.Any:
    """The elements in another dtype, each rounded once, to the nearest.

    Args:
        a: an array of float32, float16 or bfloat16. A device array may be a view of any strides that
            are not negative.
        dtype: "float32", "float16" or "bfloat16", or the ``numpy.dtype`` of one of them.
        out: a device array of the shape of ``a`` and that dtype in C order, apart from ``a`` in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. What is too large for 16 bits becomes infinity, and a NaN
    stays NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> cast(np.float32([0.5, 1, 2049, 1e6]), "float16").copy_to_host()
    array([5.000e-01, 1.000e+00, 2.048e+03,       inf], dtype=float16)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=ladder.ANY, layout="any", stream=stream)
    dtype = _checked(dtype)
    out = device.as_output("out", out, shape=a.shape, dtype=dtype, apart={"a": a}, stream=stream)
    if not out.size:
        return out
    if a.dtype == dtype:
        ladder.tiled.launch(ladder.problem(COPY, a, None, np.float32(0), out, stream))
    elif not a.is_c_contiguous() or device.address(a) % 16 or device.address(out) % 16:
        ladder.joined.launch(ladder.problem(COPY, a, None, np.float32(0), out, stream))
    else:
        kernel = up_kernel if dtype == np.float32 else down_kernel if a.dtype == np.float32 else across_kernel
        kernel[blocks(blocks(out.size, EACH), BLOCK), BLOCK, stream](a.reshape(-1), out.reshape(-1))
    return out


def _checked(dtype: typing.Any) -> np.dtype:
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype_of(dtype)
    if not isinstance(dtype, np.dtype) or dtype.name not in DTYPES:
        raise TypeError(f"dtype must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, a name or a dtype, was {dtype!r}")
    return dtype
