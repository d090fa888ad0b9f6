"""The gradient of softmax and of its logarithm, for networks that have one in their middle, such as attention.

Each element of a row depends on all of the row's logits. For y = softmax(x) the chain rule gives
dx_i = sum_j dy_j y_j ([i = j] - y_i) = y_i (dy_i - sum_j dy_j y_j): one sum for each row, then a pass over it. For
y = log(softmax(x)) it is dx_i = dy_i - exp(y_i) sum_j dy_j. At best two arrays are read once and one is written.
A row of up to about 7,000 elements is still in a cache when it is read again.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks, warp_sum
from pmpp.kernels.softmax.ladder import place
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.dtypes import rounding
from pmpp.runtime.vector import widened

DTYPES = ("float32", "float64", "float16", "bfloat16")
SHORT = 1024  # elements in the longest row that is left to a warp
WARPS = 8
LONG = 512  # threads for a longer row
WIDE, TALL = 32, 8  # a block along another axis: 32 rows side by side, and 8 threads for each


def reference(dy: np.ndarray, y: np.ndarray, axis: int = -1, log: bool = False) -> np.ndarray:
    """The gradient in float64, from the definition."""
    dy, y = dy.astype(np.float64), y.astype(np.float64)
    if log:
        return dy - np.exp(y) * dy.sum(axis=axis, keepdims=True)
    return y * (dy - (dy * y).sum(axis=axis, keepdims=True))


def tolerance(dy: np.ndarray, y: np.ndarray, axis: int = -1, log: bool = False) -> np.ndarray:
    """How far a right result in the dtype of ``dy`` may be: n / 32 + 16 roundings of the sum's terms, and a few more.

    The exponential is good to 2 ulp, and of an argument that is exact. A result of 16 bits is that of float32, rounded
    once.
    """
    if dy.dtype.itemsize == 2:
        exact = tolerance(dy.astype(np.float32), y.astype(np.float32), axis, log)
        return exact + rounding(np.abs(reference(dy, y, axis, log)) + exact, dy.dtype)
    u = np.finfo(dy.dtype).eps / 2
    dy, y = np.abs(dy.astype(np.float64)), y.astype(np.float64)
    growth, shares = y.shape[axis] / 32 + 20, np.exp(y) if log else y
    total = (dy if log else dy * y).sum(axis=axis, keepdims=True)
    return u * (4 * dy * (1 if log else shares) + growth * shares * total) + 2 * float(np.finfo(dy.dtype).tiny)


@cuda.jit(device=True)
def term(dy, y, log):
    """What an element adds to the sum of its row."""
    return dy if log else dy * y


@cuda.jit(device=True)
def slope(dy, y, total, log):
    if log:
        return dy - math.exp(y) * total
    return y * (dy - total)


@cuda.jit
def rows_backward_kernel(dy, y, out, log, nothing, wide):
    """A row for each row of threads: 32, which agree by shuffles, or a block.

    ``wide``: an array of the dtype that is computed in, of which only the dtype counts.
    """
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row >= y.shape[0] * y.shape[2]:
        return  # all lanes of the warp together
    a, b = place(y, row)
    total = nothing
    for i in range(cuda.threadIdx.x, y.shape[1], cuda.blockDim.x):
        total += term(widened(dy[a, i, b]), widened(y[a, i, b]), log)
    if cuda.blockDim.x == 32:
        total = warp_sum(total)
    else:
        total = block_sum(total, cuda.shared.array(32, wide.dtype))
    for i in range(cuda.threadIdx.x, y.shape[1], cuda.blockDim.x):
        out[a, i, b] = slope(widened(dy[a, i, b]), widened(y[a, i, b]), total, log)


@cuda.jit
def columns_backward_kernel(dy, y, out, log, nothing, wide):
    """Along another axis: the rows of a warp's lanes lie side by side in memory."""
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    count, row = y.shape[0] * y.shape[2], cuda.blockIdx.x * WIDE + tx
    a, b = place(y, min(row, count - 1))
    total = nothing
    for i in range(ty, y.shape[1], TALL):
        total += term(widened(dy[a, i, b]), widened(y[a, i, b]), log)
    totals = cuda.shared.array((TALL, WIDE), wide.dtype)
    totals[ty, tx] = total
    cuda.syncthreads()
    total = nothing
    for other in range(TALL):
        total += totals[other, tx]
    if row < count:
        for i in range(ty, y.shape[1], TALL):
            out[a, i, b] = slope(widened(dy[a, i, b]), widened(y[a, i, b]), total, log)


def backward(dy, y, axis=-1, log=False, *, out=None, stream=0) -> typing.Any:
    """The gradient of what softmax was given, ``y * (dy - sum(dy * y))``, from its result.

    Args:
        dy: the gradient of the result, an array of the shape and dtype of ``y``, contiguous in C order.
        y: the result of softmax, or of log_softmax; float32, float64, float16 or bfloat16, of any shape but (). Numbers
            of 16 bits are computed with in float32, and the gradient is rounded once.
        axis: the one that softmax ran along; from -y.ndim to y.ndim - 1.
        log: True for the gradient of log_softmax, ``dy - exp(y) * sum(dy)``.
        out: a device array like ``y``, or None to allocate one. It may be ``dy`` or ``y``, and is otherwise apart from
            them in memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The same input gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PyTorch's torch._softmax_backward_data and torch._log_softmax_backward_data.

    >>> backward(np.float32([4, 0]), np.float32([0.25, 0.75])).copy_to_host()
    array([ 0.75, -0.75], dtype=float32)
    """
    stream = device.as_stream(stream)
    y = device.as_input("y", y, dtypes=DTYPES, stream=stream)
    dy = device.as_input("dy", dy, dtypes=y.dtype, shape=tuple(y.shape), stream=stream)
    along = as_integer("axis", axis)
    if not -y.ndim <= along < y.ndim:
        raise ValueError(f"axis must be from {-y.ndim} to {y.ndim - 1} for y of shape {y.shape}, was {along}")
    log = as_flag("log", log)
    apart = {"dy": dy, "y": y}
    out = device.as_output("out", out, shape=y.shape, dtype=y.dtype, apart=apart, may_be=("dy", "y"), stream=stream)
    if not y.size:
        return out
    along %= y.ndim
    shape = math.prod(y.shape[:along]), y.shape[along], math.prod(y.shape[along + 1 :])
    rows, arrays = shape[0] * shape[2], (one.reshape(shape) for one in (dy, y, out))
    wide = device.empty(1, np.float32, stream=stream) if y.dtype.itemsize == 2 else y
    options = log, wide.dtype.type(0), wide
    if shape[2] > 1:
        columns_backward_kernel[blocks(rows, WIDE), (WIDE, TALL), stream](*arrays, *options)
    elif shape[1] <= SHORT:
        rows_backward_kernel[blocks(rows, WARPS), (32, WARPS), stream](*arrays, *options)
    else:
        rows_backward_kernel[rows, (LONG, 1), stream](*arrays, *options)
    return out
