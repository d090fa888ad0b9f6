"""Accesses outside an array, or outside the row that was meant, or before the start."""

import numpy as np

from pmpp import cuda
from pmpp.runtime.vector import load128, store128

from . import pair, ramp, zeros
from .elsewhere import get


def grid_of(rows, columns, first=0):
    return (first + ramp(rows * columns)).reshape(rows, columns)


@pair("out_of_bounds", "global", "x", grid=2, block=32, make=lambda new: (ramp(40), zeros(64)),
      result=lambda x, out: np.r_[x, np.zeros(24)])  # fmt: skip
@cuda.jit
def no_guard(x, out, mended):
    i = cuda.grid(1)
    if not mended or i < x.size:
        out[i] = x[i]  # BUG


@pair("out_of_bounds", "global", "x", grid=2, block=32, make=lambda new: (ramp(40), zeros(64)),
      result=lambda x, out: np.r_[x, np.zeros(24)])  # fmt: skip
@cuda.jit
def guard_off_by_one(x, out, mended):
    i = cuda.grid(1)
    n = x.size - 1 if mended else x.size
    if i <= n:
        out[i] = x[i]  # BUG


@pair("out_of_bounds", "global", "out", make=lambda new: (ramp(64), zeros(63)), result=lambda x, out: x[:63])
@cuda.jit
def output_shorter_than_input(x, out, mended):
    i = cuda.grid(1)
    if i < (out.size if mended else x.size):
        out[i] = x[i]  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(65), zeros(64)), result=lambda x, out: x[64:0:-1])
@cuda.jit
def reversed_from_the_size(x, out, mended):
    i = cuda.grid(1)
    last = x.size - 1 if mended else x.size
    out[i] = x[last - i]  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: np.r_[0, x[:-1]])
@cuda.jit
def left_neighbour(x, out, mended):
    i = cuda.grid(1)
    if i > 0 or not mended:
        out[i] = x[i - 1]  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: np.r_[x[1:], 0])
@cuda.jit
def right_neighbour(x, out, mended):
    i = cuda.grid(1)
    if i < x.size - (1 if mended else 0):
        out[i] = x[i + 1]  # BUG


@pair("out_of_bounds", "global", "x", block=32, make=lambda new: (ramp(10), zeros(32)),
      result=lambda x, out: np.full(32, x.sum()))  # fmt: skip
@cuda.jit
def one_round_too_many(x, out, mended):
    total = np.float32(0)
    for k in range(x.size if mended else x.size + 1):
        total += x[k]  # BUG
    out[cuda.grid(1)] = total


@pair("out_of_bounds", "global", "x", block=32, make=lambda new: (ramp(100), zeros(100)),
      result=lambda x, out: np.r_[x[32:], np.zeros(32)])  # fmt: skip
@cuda.jit
def guard_before_the_offset(x, out, mended):
    i = cuda.grid(1)
    while i < out.size:
        if not mended or i + 32 < x.size:
            out[i] = x[i + 32]  # BUG
        i += cuda.gridsize(1)


@pair("out_of_bounds", "global", "x", block=(8, 8), make=lambda new: (grid_of(4, 8), zeros((8, 8))),
      result=lambda x, out: np.r_[x, zeros((4, 8))])  # fmt: skip
@cuda.jit
def guard_by_the_wrong_axis(x, out, mended):
    j, i = cuda.grid(2)
    if mended:
        if i < x.shape[0] and j < x.shape[1]:
            out[i, j] = x[i, j]
    elif i < x.shape[1] and j < x.shape[0]:
        out[i, j] = x[i, j]  # BUG


@pair("out_of_bounds", "global", "x", block=(8, 4), make=lambda new: (grid_of(4, 8), zeros((4, 8))),
      result=lambda x, out: np.roll(x, -1, 1))  # fmt: skip
@cuda.jit
def row_runs_into_the_next(x, out, mended):
    j, i = cuda.grid(2)
    right = (j + 1) % 8 if mended else j + 1
    if i < 3:
        out[i, j] = x[i, right]  # BUG
    else:
        out[i, j] = x[i, (j + 1) % 8]


@pair("out_of_bounds", "shared", "tile", block=(8, 8), make=lambda new: (grid_of(8, 8), zeros((8, 8))),
      result=lambda x, out: np.roll(x, -1, 1))  # fmt: skip
@cuda.jit
def row_of_a_tile_runs_into_the_next(x, out, mended):
    tile = cuda.shared.array((9, 8), np.float32)
    i = cuda.threadIdx.y
    j = cuda.threadIdx.x
    tile[i, j] = x[i, j]
    if i == 0:
        tile[8, j] = 0
    cuda.syncthreads()
    out[i, j] = tile[i, (j + 1) % 8 if mended else j + 1]  # BUG


@pair("out_of_bounds", "global", "x", block=(8, 4), make=lambda new: (grid_of(4, 8), zeros((8, 4))),
      result=lambda x, out: x.T)  # fmt: skip
@cuda.jit
def rows_and_columns_exchanged(x, out, mended):
    i = cuda.threadIdx.y
    j = cuda.threadIdx.x
    if mended:
        out[j, i] = x[i, j]
    else:
        out[j, i] = x[j, i]  # BUG


@pair("out_of_bounds", "global", "rows", make=lambda new: (ramp(64), zeros(64)),
      result=lambda x, out: np.repeat(x.reshape(16, 4).sum(1), 4))  # fmt: skip
@cuda.jit
def slice_longer_than_its_row(x, out, mended):
    t = cuda.threadIdx.x
    first = t // 4 * 4
    rows = x[first : first + 4]
    total = np.float32(0)
    for k in range(4 if mended else 5):
        total += rows[k]  # BUG
    out[t] = total


@pair("out_of_bounds", "shared", "s", result=lambda x, out: np.convolve(x, [1, 1, 1], "same"))
@cuda.jit
def halo_of_one_side(x, out, mended):
    s = cuda.shared.array(65, np.float32)
    t = cuda.threadIdx.x
    s[t + 1] = x[t]
    if t == 0:
        s[0] = 0
    cuda.syncthreads()
    right = np.float32(0)
    if t < 63 or not mended:
        right = s[t + 2]  # BUG
    out[t] = s[t] + s[t + 1] + right


@pair("out_of_bounds", "shared", "s", block=72, result=lambda x, out: np.r_[x[:64], np.zeros(8)])
@cuda.jit
def tile_smaller_than_its_block(x, out, mended):
    s = cuda.shared.array((8, 8), np.float32)
    t = cuda.threadIdx.x
    if not mended or t < 64:
        s[t // 8, t % 8] = x[t]  # BUG
    cuda.syncthreads()
    if t < 64:
        out[t] = s[t // 8, t % 8]


@pair("out_of_bounds", "shared", "s", sharedmem=252, result=lambda x, out: np.r_[x[:63], 0])
@cuda.jit
def dynamic_memory_one_float_short(x, out, mended):
    s = cuda.shared.array(0, np.float32)
    t = cuda.threadIdx.x
    if not mended or t < 63:
        s[t] = x[t]  # BUG
    cuda.syncthreads()
    if t < 63:
        out[t] = s[t]


@pair("out_of_bounds", "local", "window", result=lambda x, out: np.full(64, 6))
@cuda.jit
def local_array_one_too_short(x, out, mended):
    window = cuda.local.array(4, np.float32)
    for k in range(4 if mended else 5):
        window[k] = k  # BUG
    out[cuda.grid(1)] = window[0] + window[1] + window[2] + window[3]


@pair("out_of_bounds", "global", "out", make=lambda new: (np.linspace(0, 1, 64, dtype=np.float32), zeros(8, np.int32)),
      result=lambda x, out: np.bincount(np.minimum((8 * x).astype(int), 7)))  # fmt: skip
@cuda.jit
def largest_value_has_no_bin(x, out, mended):
    bin_ = int(x[cuda.grid(1)] * np.float32(8))
    if mended:
        bin_ = min(bin_, 7)
    cuda.atomic.add(out, bin_, 1)  # BUG


@pair("out_of_bounds", "global", "x", block=16, make=lambda new: (ramp(62), zeros(64)),
      result=lambda x, out: np.r_[x[:60], np.zeros(4)])  # fmt: skip
@cuda.jit
def vector_past_the_end(x, out, mended):
    i = 4 * cuda.threadIdx.x
    if not mended or i + 3 < x.size:
        store128(out, i, load128(x, i))  # BUG


@pair(
    "out_of_bounds", "global", "x", make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: np.r_[x[0], zeros(63)]
)
@cuda.jit
def index_wraps_in_int32(x, out, mended):
    i = cuda.grid(1)
    far = i * (1 << 31)
    if not mended:
        far = np.int32(far | (i << 30))  # the offset is kept in 32 bits: 2 << 30 comes out negative
    if far < x.size and i < 3:
        out[i] = x[far]  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(64), ramp(64, np.int32) + 1, zeros(64)),
      result=lambda x, index, out: np.r_[x[1:], 0])  # fmt: skip
@cuda.jit
def gather_by_an_index_from_one(x, index, out, mended):
    i = cuda.grid(1)
    k = index[i]
    if not mended or k < x.size:
        out[i] = x[k]  # BUG


@pair("out_of_bounds", "global", "x", make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: np.r_[x[1:], 0])
@cuda.jit
def load_in_a_function_of_another_file(x, out, mended):
    i = cuda.grid(1)
    if not mended or i < 63:
        out[i] = get(x, i + 1)  # BUG


@pair("out_of_bounds", "global", "x", grid=2, block=32, make=lambda new: (ramp(64), zeros(64)),
      result=lambda x, out: np.r_[x[32:], np.zeros(32)])  # fmt: skip
@cuda.jit
def tile_of_the_block_behind_the_last(x, out, mended):
    tile = cuda.blockIdx.x + 1
    if not mended or tile < cuda.gridDim.x:
        out[cuda.grid(1)] = x[tile * 32 + cuda.threadIdx.x]  # BUG
