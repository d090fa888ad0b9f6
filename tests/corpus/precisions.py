"""Tensor cores for float64 and for floats of 8 bits: tiles that are not full, and lanes that stay away."""

import numpy as np

from pmpp import cuda
from pmpp.runtime.matrix import load32
from pmpp.runtime.matrix_f64_f8 import mma_e4m3, mma_f64

from . import pair, ramp, zeros

ONE = 0x38  # as a number of type e4m3


def five_columns(new):
    """A matrix of 16 x 5, and room for the sums of its rows."""
    return ramp(80, np.float64), zeros(16, np.float64)


def rows_added(x, out):
    return x.reshape(16, 5).sum(axis=1)


@pair("uninitialised_read", "shared", "s", block=32, make=five_columns, result=rows_added)
@cuda.jit
def what_is_left_of_k_is_not_zero(x, out, mended):
    """A product of 16 x 5 and 5 x 8 ones: the instruction multiplies 8 columns whether or not there are so many."""
    s = cuda.shared.array((16, 8), np.float64)
    t = cuda.threadIdx.x
    for i in range(t, 128, 32):
        if mended or i % 8 < 5:
            s[i // 8, i % 8] = x[i // 8 * 5 + i % 8] if i % 8 < 5 else 0
    cuda.syncthreads()
    row, k = t // 4, t % 4
    one, zero = np.float64(1), np.float64(0)
    a = (s[row, k], s[row + 8, k], s[row, k + 4], s[row + 8, k + 4])  # BUG
    c = mma_f64(a, (one, one), (zero, zero, zero, zero))
    if k == 0:
        out[row], out[row + 8] = c[0], c[2]


@pair("race", "shared", "s", make=lambda new: (ramp(256, np.float64), zeros(32, np.float64)),
      result=lambda x, out: x.reshape(32, 8).sum(axis=1))  # fmt: skip
@cuda.jit
def a_fragment_of_another_warp_s_tile(x, out, mended):
    """Two warps fill two tiles together, a row of both each time, and then each takes fragments of its own one."""
    s = cuda.shared.array((32, 8), np.float64)
    t = cuda.threadIdx.x
    for i in range(t, 256, 64):
        s[i // 8, i % 8] = x[i]  # WITH
    if mended:
        cuda.syncthreads()
    row, k = t // 32 * 16 + t % 32 // 4, t % 4
    one, zero = np.float64(1), np.float64(0)
    a = (s[row, k], s[row + 8, k], s[row, k + 4], s[row + 8, k + 4])  # BUG
    c = mma_f64(a, (one, one), (zero, zero, zero, zero))
    if k == 0:
        out[row], out[row + 8] = c[0], c[2]


@pair("divergent_barrier", "register", "mma_e4m3()", block=32, hangs=True,
      make=lambda new: (np.full((5, 32), ONE, np.uint8), zeros(5)), result=lambda x, out: 32)  # fmt: skip
@cuda.jit
def lanes_without_a_row_stay_away(x, out, mended):
    """A matrix of five rows of ones: lanes of other rows have nothing to give, but have to take part."""
    t = cuda.threadIdx.x
    row, k, zero = t // 4, 4 * (t % 4), np.float32(0)
    none, ones = np.uint32(0), np.uint32(0x38383838)
    low, high = none, none
    if row < 5:
        low, high = load32(x, 32 * row + k), load32(x, 32 * row + 16 + k)
    c = (zero, zero, zero, zero)
    if mended or row < 5:
        c = mma_e4m3((low, none, high, none), (ones, ones), c)  # BUG
    if row < 5 and k == 0:
        out[row] = c[0]
