"""Conjugate gradients: solve A x = b for a sparse A that is symmetric and positive definite, such as Poisson's.

Each step multiplies A by a direction, and the others are sums and updates of vectors. Two of the numbers of a step, how
far to go and how much of the last direction to keep, are quotients of sums over all elements. They stay on the GPU: a
kernel leaves a sum for each of its 256 blocks, and each block of the next kernel adds these up for itself, in one
order. So the host launches step after step without waiting, and looks at the error only now and then.

Vectors are float32 and their sums float64. Source: Hestenes and Stiefel, "Methods of conjugate gradients for solving
linear systems" (1952); PMPP 4e ch. 17; Saad, Iterative Methods for Sparse Linear Systems, algorithm 6.18.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum
from pmpp.kernels.common.contents import check_places, check_starts
from pmpp.kernels.sparse import ladder
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number

BLOCK = 256  # threads a block
BLOCKS = 256  # of each kernel, and sums that it leaves: one for each thread of the next
f0 = np.float64(0)


class Solution(typing.NamedTuple):
    """What `solve` has found.

    Attributes:
        x: a device array (rows,) of float32.
        steps: how many steps were made. error: the length of b - A x, as a share of the length of b.
        converged: whether the error is at most what was asked for.
    """

    x: typing.Any
    steps: int
    error: float
    converged: bool


@cuda.jit(device=True)
def all_of(sums, partial):
    """In all threads of a block, the sum of the sums that a kernel has left. ``partial``: a shared array of 32."""
    cuda.syncthreads()
    return block_sum(sums[cuda.threadIdx.x], partial)


@cuda.jit(device=True)
def leave(value, sums, partial):
    """Leave the sum of a value of each thread of the block."""
    cuda.syncthreads()
    total = block_sum(value, partial)
    if cuda.threadIdx.x == 0:
        sums[cuda.blockIdx.x] = total


@cuda.jit
def begin_kernel(b, x, r, p, rr):
    """x = 0; r = p = b; and the sums of r r."""
    partial, total = cuda.shared.array(32, np.float64), f0
    for i in range(cuda.grid(1), b.size, cuda.gridsize(1)):
        x[i], r[i], p[i] = 0, b[i], b[i]
        total += np.float64(b[i]) * b[i]
    leave(total, rr, partial)


@cuda.jit
def dot_kernel(p, q, pq):
    """The sums of p q."""
    partial, total = cuda.shared.array(32, np.float64), f0
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        total += np.float64(p[i]) * q[i]
    leave(total, pq, partial)


@cuda.jit
def advance_kernel(x, r, p, q, rr, pq, next_rr):
    """Go along p until the error is least: x += a p, r -= a q with a = rr / pq. Leaves the sums of the new r r."""
    partial, total = cuda.shared.array(32, np.float64), f0
    squares, along = all_of(rr, partial), all_of(pq, partial)
    a = np.float32(squares / along) if along > 0 else np.float32(0)  # 0: r is 0, or A is not positive definite
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] += a * p[i]
        left = r[i] - a * q[i]
        r[i] = left
        total += np.float64(left) * left
    leave(total, next_rr, partial)


@cuda.jit
def turn_kernel(p, r, rr, next_rr):
    """The next direction: p = r + c p, where c is by how much r r has changed."""
    partial = cuda.shared.array(32, np.float64)
    before, now = all_of(rr, partial), all_of(next_rr, partial)
    c = np.float32(now / before) if before > 0 else np.float32(0)
    for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
        p[i] = r[i] + c * p[i]


def solve(values, columns, starts, b, *, tolerance=1e-5, most=1000, every=10, multiply=None, stream=0) -> Solution:
    """Find x with A x = b, by conjugate gradients that begin with x = 0.

    Args:
        values, columns, starts: A by compressed rows, as `ladder.arguments` takes it: with as many columns as rows,
            symmetric and positive definite. That is not checked. If it is not so, ``converged`` tells.
        b: a contiguous vector (rows,) of float32.
        tolerance: the error that is small enough, as a share of the length of b, at least 0.
        most: steps, at most; at least 1. every: after how many steps the host looks at the error; it waits then.
        multiply: the product to use, a rung of `ladder`. None: ``ladder.merged``.
        stream: the stream to work on.

    Returns a `Solution`. Its ``error`` is of b - A x as the steps have carried it on, which in float32 drifts from the
    true one by about eps times the condition number of A.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import sparse
    >>> from pmpp.kernels.sparse.conjugate_gradient import solve
    >>> values, columns, starts = sparse.poisson(3)
    >>> found = solve(values, columns, starts, np.float32([2, 1, 2, 1, 0, 1, 2, 1, 2]))
    >>> found.x.copy_to_host().round(3).tolist(), found.converged
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], True)
    """
    stream, on_host = device.as_stream(stream), (columns, starts)
    # NumPy arrays are sent to the GPU once, and not in each step.
    values = device.as_input("values", values, dtypes=ladder.DTYPES, ndim=1, stream=stream)
    columns = device.as_input("columns", columns, dtypes="int32", ndim=1, stream=stream)
    starts = device.as_input("starts", starts, dtypes=ladder.INDICES, ndim=1, stream=stream)
    if not starts.size:
        raise ValueError("starts must have at least 1 element, one more than there are rows, had 0")
    check_starts(on_host[1], values.size, "values")
    check_places("columns", on_host[0], starts.size - 1, f"{starts.size - 1} rows")
    b = device.as_input("b", b, dtypes="float32", shape=(starts.size - 1,), stream=stream)
    tolerance = float(as_number("tolerance", tolerance))
    if tolerance < 0:
        raise ValueError(f"tolerance must be at least 0, was {tolerance}")
    most, every = as_integer("most", most, 1), as_integer("every", every, 1)
    multiply = ladder.merged if multiply is None else multiply
    if not any(multiply is rung for rung in ladder.LADDER):
        raise TypeError(f"multiply must be a rung of pmpp.kernels.sparse.ladder or None, was {multiply!r}")
    ladder.arguments(values, columns, starts, b, stream=stream)  # checks the matrix, but for what it holds
    return _steps(multiply, (values, columns, starts), b, tolerance, most, every, stream)


def _steps(multiply, matrix, b, tolerance, most, every, stream) -> Solution:
    """The steps of `solve`, whose arguments have been checked."""
    q, x, r, p = (device.empty(b.size, np.float32, stream=stream) for _ in range(4))
    if not b.size:
        return Solution(x, 0, 0.0, True)
    rr, next_rr, pq = (device.empty(BLOCKS, np.float64, stream=stream) for _ in range(3))
    begin_kernel[BLOCKS, BLOCK, stream](b, x, r, p, rr)
    first = _total(rr, stream)
    steps, error = 0, 0.0 if first == 0 else 1.0
    while error > tolerance and steps < most:
        multiply(*matrix, p, out=q, stream=stream)
        dot_kernel[BLOCKS, BLOCK, stream](p, q, pq)
        advance_kernel[BLOCKS, BLOCK, stream](x, r, p, q, rr, pq, next_rr)
        turn_kernel[BLOCKS, BLOCK, stream](p, r, rr, next_rr)
        rr, next_rr = next_rr, rr
        steps += 1
        if steps % every == 0 or steps == most:
            error = math.sqrt(_total(rr, stream) / first)
            if not math.isfinite(error):
                break
    return Solution(x, steps, error, error <= tolerance)


def _total(sums: typing.Any, stream: typing.Any) -> float:
    """What the sums of a kernel's blocks add up to. It waits for the GPU."""
    if stream:
        stream.synchronize()
    return float(device.to_host(sums).sum())
