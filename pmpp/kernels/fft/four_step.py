"""Long lines: a transform of a b points is transforms of a points and of b points, and a turn between them.

Point a' b + j of a line is element (a', j) of a matrix of a rows and b columns. First come its columns; then each
result (k, j) is multiplied by the root exp(-2 pi i k j / n), and the matrix is turned on its side; then come the
columns of that, and now result number k' a + k lies where it belongs. Source: D. H. Bailey, FFTs in external or
hierarchical memory (1990), whose four steps these are.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.butterflies import TABLES, Pass, exact_roots
from pmpp.runtime import device

SIDE, PITCH, STEP = 32, 33, 8  # a tile of SIDE x SIDE, turned by SIDE x STEP threads
LOW = 4096  # roots in the first of two tables


@device.cached(TABLES)
def roots_in_two(n: int, inverse: bool = False) -> tuple:
    """Root number k of n as ``first[k % LOW] * second[k // LOW]``: two small tables for a large one."""
    first, second = np.arange(LOW), np.arange(n // LOW) * LOW
    return device.to_device(exact_roots(first, n, inverse)), device.to_device(exact_roots(second, n, inverse))


@cuda.jit
def turn_kernel(x, out, first, second, a, b):
    tile = cuda.shared.array((SIDE, PITCH), np.complex64)
    tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
    across, down = b // SIDE, a // SIDE
    rest = cuda.blockIdx.x // across
    left, line = SIDE * (cuda.blockIdx.x - rest * across), rest // down
    top, begin = SIDE * (rest - line * down), line * a * b
    for i in range(0, SIDE, STEP):
        k, j = top + ty + i, left + tx
        tile[ty + i, tx] = x[begin + k * b + j] * (first[k * j % LOW] * second[k * j // LOW])
    cuda.syncthreads()
    for i in range(0, SIDE, STEP):
        out[begin + (left + ty + i) * a + top + tx] = tile[tx, ty + i]


def as_matrix(columns_pass: Callable, one: Pass, source: typing.Any, target: typing.Any, stream: typing.Any) -> None:
    """All lines of a pass along the last axis, of at least SIDE^2 points each; ``columns_pass`` does columns."""
    a = 1 << (one.n.bit_length() - 1) // 2
    b = one.n // a
    turned = device.empty(target.size, np.complex64, stream=stream)
    columns_pass(Pass(a, b, one.lines * b, one.inverse), source, target, stream)
    turn_kernel[target.size // SIDE**2, (SIDE, STEP), stream](target, turned, *roots_in_two(one.n, one.inverse), a, b)
    columns_pass(Pass(b, a, one.lines * a, one.inverse), turned, target, stream)
