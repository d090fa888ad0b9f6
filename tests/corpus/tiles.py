"""Races in shared memory in the algorithms of the book: tiles, halos, double buffers, scans, sorts."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros


def matrix(rows, columns):
    return ramp(rows * columns).reshape(rows, columns)


@pair("race", "shared", "s", result=lambda x, out: np.convolve(x, [1, 1, 1], "same"))
@cuda.jit
def stencil_halo(x, out, mended):
    s = cuda.shared.array(66, np.float32)
    t = cuda.threadIdx.x
    s[t + 1] = x[t]  # WITH
    if t == 0:
        s[0] = 0  # WITH
        s[65] = 0  # WITH
    if mended:
        cuda.syncthreads()
    out[t] = s[t] + s[t + 1] + s[t + 2]  # BUG


@pair("race", "shared", "s", result=lambda x, out: np.convolve(np.convolve(x, [1, 1, 1], "same"), [1, 1, 1], "same"))
@cuda.jit
def stencil_in_place(x, out, mended):
    s = cuda.shared.array(66, np.float32)
    t = cuda.threadIdx.x
    s[t + 1] = x[t]
    if t < 2:
        s[65 * t] = 0
    cuda.syncthreads()
    for _ in range(2):
        value = s[t] + s[t + 1] + s[t + 2]  # WITH
        if mended:
            cuda.syncthreads()
        s[t + 1] = value  # BUG
        cuda.syncthreads()
    out[t] = s[t + 1]


@pair("race", "shared", "s", make=lambda new: (ramp(128), zeros(64)),
      result=lambda x, out: x.reshape(2, 64)[:, ::-1].sum(0))  # fmt: skip
@cuda.jit
def tile_reused_too_early(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(2):
        s[t] = x[k * 64 + t]  # BUG
        cuda.syncthreads()
        total += s[63 - t]  # WITH
        if mended:
            cuda.syncthreads()
    out[t] = total


@pair("race", "shared", "s", make=lambda new: (ramp(192), zeros(64)),
      result=lambda x, out: x.reshape(3, 64)[:, ::-1].sum(0))  # fmt: skip
@cuda.jit
def double_buffer(x, out, mended):
    s = cuda.shared.array((2, 64), np.float32)
    t = cuda.threadIdx.x
    s[0, t] = x[t]
    cuda.syncthreads()
    total = np.float32(0)
    for k in range(3):
        if k < 2:
            s[(k + 1) % 2, t] = x[64 * (k + 1) + t]  # BUG
        if mended or k == 0:
            cuda.syncthreads()
        total += s[k % 2, 63 - t]  # BUG
        if mended:
            cuda.syncthreads()
        else:
            cuda.syncwarp()
    out[t] = total


@pair("race", "shared", "s", make=lambda new: (ramp(256), zeros(64)),
      result=lambda x, out: x.reshape(4, 64)[:, ::-1].sum(0))  # fmt: skip
@cuda.jit
def one_buffer_with_the_barrier_of_two(x, out, mended):
    s = cuda.shared.array((2, 64), np.float32)
    t = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(4):
        slot = k % 2 if mended else 0
        s[slot, t] = x[64 * k + t]  # BUG
        cuda.syncthreads()
        total += s[slot, 63 - t]  # WITH
    out[t] = total


@pair("race", "shared", "tile", grid=(2, 2), block=(8, 8), make=lambda new: (matrix(16, 16), zeros((16, 16))),
      result=lambda x, out: x.T)  # fmt: skip
@cuda.jit
def transpose(x, out, mended):
    tile = cuda.shared.array((8, 9), np.float32)
    i = cuda.threadIdx.y
    j = cuda.threadIdx.x
    row = 8 * cuda.blockIdx.y
    column = 8 * cuda.blockIdx.x
    tile[i, j] = x[row + i, column + j]  # WITH
    if mended:
        cuda.syncthreads()
    out[column + i, row + j] = tile[j, i]  # BUG


@pair("race", "shared", "tile", block=(8, 8), make=lambda new: (matrix(8, 8), zeros((8, 8))),
      result=lambda x, out: x.T)  # fmt: skip
@cuda.jit
def transpose_in_its_tile(x, out, mended):
    tile = cuda.shared.array((8, 8), np.float32)
    i = cuda.threadIdx.y
    j = cuda.threadIdx.x
    tile[i, j] = x[i, j]
    cuda.syncthreads()
    value = tile[j, i]  # WITH
    if mended:
        cuda.syncthreads()
    tile[i, j] = value  # BUG
    out[i, j] = tile[i, j]


def products(a, b, out):
    return a @ b


def two_matrices(new):
    return matrix(16, 16) % 7, matrix(16, 16) % 5, zeros((16, 16))


@pair("race", "shared", "left", grid=(2, 2), block=(8, 8), make=two_matrices, result=products)
@cuda.jit
def matmul_used_before_it_is_loaded(a, b, out, mended):
    left = cuda.shared.array((8, 8), np.float32)
    j, i = cuda.grid(2)
    ty = cuda.threadIdx.y
    tx = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(0, 16, 8):
        left[ty, tx] = a[i, k + tx]  # WITH
        if mended:
            cuda.syncthreads()
        for p in range(8):
            total += left[ty, p] * b[k + p, j]  # BUG
        cuda.syncthreads()
    out[i, j] = total


@pair("race", "shared", "right", grid=(2, 2), block=(8, 8), make=two_matrices, result=products)
@cuda.jit
def matmul_loaded_before_it_is_used_up(a, b, out, mended):
    right = cuda.shared.array((8, 8), np.float32)
    j, i = cuda.grid(2)
    ty = cuda.threadIdx.y
    tx = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(0, 16, 8):
        right[ty, tx] = b[k + ty, j]  # BUG
        cuda.syncthreads()
        for p in range(8):
            total += a[i, k + p] * right[p, tx]  # WITH
        if mended:
            cuda.syncthreads()
    out[i, j] = total


@pair("race", "shared", "s", result=lambda x, out: np.cumsum(x))
@cuda.jit
def kogge_stone_in_place(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    for k in range(6):
        cuda.syncthreads()
        value = np.float32(0)
        if t >= 1 << k:
            value = s[t - (1 << k)]  # WITH
        if mended:
            cuda.syncthreads()
        s[t] += value  # BUG
    out[t] = s[t]


@pair("race", "shared", "s", result=lambda x, out: np.cumsum(x))
@cuda.jit
def kogge_stone_double_buffered(x, out, mended):
    s = cuda.shared.array((2, 64), np.float32)
    t = cuda.threadIdx.x
    s[0, t] = x[t]
    cuda.syncthreads()
    for k in range(6):
        now = k % 2
        value = s[now, t]
        if t >= 1 << k:
            value += s[now, t - (1 << k)]  # BUG
        s[1 - now, t] = value  # BUG
        if mended or k != 3:
            cuda.syncthreads()
    out[t] = s[0, t]


@pair("race", "shared", "s", block=32, make=lambda new: (ramp(64), zeros(64)), result=lambda x, out: np.cumsum(x))
@cuda.jit
def brent_kung_between_its_sweeps(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    s[t + 32] = x[t + 32]
    stride = 1
    while stride < 64:
        cuda.syncthreads()
        i = (t + 1) * 2 * stride - 1
        if i < 64:
            s[i] += s[i - stride]
        stride *= 2
    stride = 16
    while stride > 0:
        if mended or stride != 8:
            cuda.syncthreads()
        i = (t + 1) * 2 * stride - 1
        if i + stride < 64:
            s[i + stride] += s[i]  # BUG
        stride //= 2
    cuda.syncthreads()
    out[t] = s[t]
    out[t + 32] = s[t + 32]


@pair("race", "shared", "s", make=lambda new: ((ramp(64) * 37) % 64, zeros(64)), result=lambda x, out: np.sort(x))
@cuda.jit
def bitonic_sort(x, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    size = 2
    while size <= 64:
        stride = size // 2
        while stride > 0:
            if mended or stride != 32:
                cuda.syncthreads()
            other = t ^ stride
            if other > t:
                low = s[t]  # BUG
                high = s[other]  # BUG
                if (low > high) == (t & size == 0):
                    s[t] = high  # BUG
                    s[other] = low  # BUG
            stride //= 2
        size *= 2
    cuda.syncthreads()
    out[t] = s[t]


@pair("race", "shared", "kept", make=lambda new: (ramp(64), zeros(64)),
      result=lambda x, out: np.r_[np.arange(62, -1, -2), np.zeros(32)])  # fmt: skip
@cuda.jit
def compaction(x, out, mended):
    kept = cuda.shared.array(64, np.float32)
    flags = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    flags[t] = x[t] % 2 == 0
    cuda.syncthreads()
    slot = 0
    for k in range(t):
        slot += flags[k]
    if flags[t]:
        kept[slot] = x[t]  # WITH
    if mended:
        cuda.syncthreads()
    if t < 32:
        out[t] = kept[31 - t]  # BUG


@pair("race", "shared", "ring", make=lambda new: (ramp(256), zeros(64)),
      result=lambda x, out: x.reshape(4, 64)[:, ::-1].sum(0))  # fmt: skip
@cuda.jit
def ring_of_two_slots_for_three(x, out, mended):
    ring = cuda.shared.array((3, 64), np.float32)
    t = cuda.threadIdx.x
    slots = 3 if mended else 2
    total = np.float32(0)
    ring[0, t] = x[t]
    ring[1, t] = x[64 + t]
    for k in range(4):
        cuda.syncthreads()
        if k < 2:
            ring[(k + 2) % slots, t] = x[64 * (k + 2) + t]  # WITH
        total += ring[k % slots, 63 - t]  # BUG
    out[t] = total
