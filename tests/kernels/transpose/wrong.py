"""Wrong transposes, and wrong answers to the exercises of chapter 16."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.transpose.exercises import planes_start, rotate_start, swizzle_start
from pmpp.runtime import device
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongAnswer, WrongRung

TILE, PITCH, STEP, BLOCK, RECORDS = 32, 33, 8, 256, 768


def transposer(kernel, block=(TILE, TILE), side=TILE):
    """``kernel`` as a function of x, launched with a block for each tile of ``side`` x ``side`` elements."""

    def transpose(x):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        out = device.empty(x.shape[::-1], x.dtype)
        if x.size:
            kernel[(blocks(x.shape[1], side), blocks(x.shape[0], side)), block](x, out)
        return out

    transpose.__name__ = getattr(kernel, "py_func", kernel).__name__
    return transpose


@cuda.jit
def no_guard(x, out):
    column, row = cuda.grid(2)
    out[column, row] = x[row, column]


@cuda.jit
def guard_of_a_square(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[0]:
        out[column, row] = x[row, column]


@cuda.jit
def guard_for_loads_only(x, out):
    tile = cuda.shared.array((TILE, PITCH), x.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
        cuda.syncthreads()
        out[left + ty, top + tx] = tile[tx, ty]


@cuda.jit
def no_barrier(x, out):
    tile = cuda.shared.array((TILE, PITCH), x.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


@cuda.jit
def tiles_in_their_old_places(x, out):
    tile = cuda.shared.array((TILE, PITCH), x.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + ty < out.shape[0] and left + tx < out.shape[1] and left + ty < x.shape[0] and top + tx < x.shape[1]:
        out[top + ty, left + tx] = tile[tx, ty]


@cuda.jit
def through_float32(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = np.float32(x[row, column])


@cuda.jit
def in_x_as_well(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = x[row, column]
        x[row, column] = 0


@cuda.jit
def vectors_anywhere(x, out):
    row, width = cuda.grid(1), 16 // x.itemsize
    if row < x.shape[0]:
        for column in range(0, x.shape[1] - width + 1, width):
            values = load128(x, row * x.shape[1] + column)
            for k in range(width):
                out[column + k, row] = values[k]
        for column in range(x.shape[1] // width * width, x.shape[1]):
            out[column, row] = x[row, column]


@cuda.jit
def swizzled_on_one_side(x, out):
    tile = cuda.shared.array((TILE, TILE), x.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    tile[ty, tx ^ ty] = x[min(top + ty, x.shape[0] - 1), min(left + tx, x.shape[1] - 1)]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


def by_rows(x):
    """One thread a row, in blocks of 32."""
    x = device.to_device(x) if isinstance(x, np.ndarray) else x
    out = device.empty(x.shape[::-1], x.dtype)
    if x.size:
        vectors_anywhere[blocks(x.shape[0], TILE), TILE](x, out)
    return out


RUNGS = (
    WrongRung(transposer(no_guard), "out of bounds"),
    WrongRung(transposer(guard_of_a_square), "wrong result"),
    WrongRung(transposer(guard_for_loads_only), "divergent barrier"),
    WrongRung(transposer(no_barrier), "race"),
    WrongRung(transposer(tiles_in_their_old_places), "wrong result"),
    WrongRung(transposer(through_float32), "wrong result"),
    WrongRung(transposer(in_x_as_well), "input changed"),
    WrongRung(transposer(swizzled_on_one_side), "wrong result"),
    WrongRung(by_rows, "misaligned"),
)


# ------------------------------------------------------------------------------------------------ wrong answers: rotate


@cuda.jit
def rotate_by_scattered_loads(x, out):
    row, column = cuda.blockIdx.x * TILE + cuda.threadIdx.y, cuda.blockIdx.y * TILE + cuda.threadIdx.x
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = x[x.shape[0] - 1 - column, row]


@cuda.jit
def rotate_unpadded(x, out):
    tile = cuda.shared.array((TILE, TILE), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - 1 - (top + tx)] = tile[tx, ty]


@cuda.jit
def rotate_without_barrier(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - 1 - (top + tx)] = tile[tx, ty]


@cuda.jit
def rotate_without_guard(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    out[left + ty, x.shape[0] - 1 - (top + tx)] = tile[tx, ty]


@cuda.jit
def rotate_not(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = x[row, column]


@cuda.jit
def rotate_back(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[x.shape[1] - 1 - column, row] = x[row, column]


# ------------------------------------------------------------------------------------------------ wrong answers: planes


@cuda.jit
def planes_cut(x, out):
    i = cuda.grid(1)
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = x[k * out.shape[1] + i]


@cuda.jit
def planes_without_barrier(x, out):
    part = cuda.shared.array(RECORDS, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * RECORDS
    for k in range(3):
        if first + k * BLOCK + thread < x.size:
            part[k * BLOCK + thread] = x[first + k * BLOCK + thread]
    i = cuda.grid(1)
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = part[3 * thread + k]


@cuda.jit
def planes_by_own_point(x, out):
    part = cuda.shared.array((3, BLOCK), np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if i < out.shape[1]:
        for k in range(3):
            part[k, thread] = x[3 * i + k]
    cuda.syncthreads()
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = part[k, thread]


@cuda.jit
def planes_without_guard(x, out):
    part = cuda.shared.array(RECORDS, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * RECORDS
    for k in range(3):
        part[k * BLOCK + thread] = x[first + k * BLOCK + thread]
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = part[3 * thread + k]


# ----------------------------------------------------------------------------------------------- wrong answers: swizzle


@cuda.jit
def swizzle_padded(x, out):
    tile = cuda.shared.array(0, np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty * PITCH + tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx * PITCH + ty]


@cuda.jit
def swizzle_a_little(x, out):
    tile = cuda.shared.array(0, np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty * TILE + (tx ^ ty % 4)] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx * TILE + (ty ^ tx % 4)]


@cuda.jit
def swizzle_on_one_side(x, out):
    tile = cuda.shared.array(0, np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty * TILE + (tx ^ ty)] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx * TILE + ty]


@cuda.jit
def swizzle_not_at_all(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = x[row, column]


# ----------------------------------------------------------------------------------------------- wrong answers: coarsen


@cuda.jit
def coarsen_one_element(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < min(top + STEP, out.shape[1]):
        out[left + ty, top + tx] = tile[tx, ty]


@cuda.jit
def coarsen_barrier_in_the_loop(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for i in range(0, TILE, STEP):
        if top + ty + i < x.shape[0] and left + tx < x.shape[1]:
            tile[ty + i, tx] = x[top + ty + i, left + tx]
            cuda.syncthreads()
    for i in range(0, TILE, STEP):
        if left + ty + i < out.shape[0] and top + tx < out.shape[1]:
            out[left + ty + i, top + tx] = tile[tx, ty + i]


@cuda.jit
def coarsen_without_barrier(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for i in range(0, TILE, STEP):
        if top + ty + i < x.shape[0] and left + tx < x.shape[1]:
            tile[ty + i, tx] = x[top + ty + i, left + tx]
    for i in range(0, TILE, STEP):
        if left + ty + i < out.shape[0] and top + tx < out.shape[1]:
            out[left + ty + i, top + tx] = tile[tx, ty + i]


@cuda.jit
def coarsen_in_runs(x, out):
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for i in range(4):
        row, column = top + tx, left + 4 * ty + i
        if row < x.shape[0] and column < x.shape[1]:
            out[column, row] = x[row, column]


@cuda.jit
def coarsen_with_one_guard(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        for i in range(0, TILE, STEP):
            tile[ty + i, tx] = x[top + ty + i, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        for i in range(0, TILE, STEP):
            out[left + ty + i, top + tx] = tile[tx, ty + i]


ANSWERS = (
    WrongAnswer("transpose/rotate", rotate_start, "uncoalesced", "line .* moves 32 sectors a request where 4 do"),
    WrongAnswer("transpose/rotate", rotate_by_scattered_loads, "uncoalesced", "where 4 do"),
    WrongAnswer("transpose/rotate", rotate_unpadded, "bank conflicts", "32 wavefronts a request"),
    WrongAnswer("transpose/rotate", rotate_without_barrier, "missing barrier"),
    WrongAnswer("transpose/rotate", rotate_without_guard, "missing guard"),
    WrongAnswer("transpose/rotate", rotate_not, "not rotated"),
    WrongAnswer("transpose/rotate", rotate_back, "wrong way round"),
    WrongAnswer("transpose/planes", planes_start, "uncoalesced", "12 sectors a request"),
    WrongAnswer("transpose/planes", planes_cut, "not sorted"),
    WrongAnswer("transpose/planes", planes_without_barrier, "missing barrier"),
    WrongAnswer("transpose/planes", planes_by_own_point, "uncoalesced", "12 sectors a request"),
    WrongAnswer("transpose/planes", planes_without_guard, "missing guard"),
    WrongAnswer("transpose/swizzle", swizzle_start, "bank conflicts", "32 wavefronts a request .* differ modulo 32"),
    WrongAnswer("transpose/swizzle", swizzle_padded, "index out of bounds", "tile"),
    WrongAnswer("transpose/swizzle", swizzle_a_little, "bank conflicts", "8 wavefronts a request .* differ modulo 32"),
    WrongAnswer("transpose/swizzle", swizzle_on_one_side, "uninitialised memory"),
    WrongAnswer("transpose/swizzle", swizzle_not_at_all, "uncoalesced"),
    WrongAnswer("transpose/coarsen", coarsen_one_element, "output not written"),
    WrongAnswer("transpose/coarsen", coarsen_without_barrier, "missing barrier"),
    WrongAnswer("transpose/coarsen", coarsen_barrier_in_the_loop, "divergent barrier"),
    WrongAnswer("transpose/coarsen", coarsen_in_runs, "uncoalesced"),
    WrongAnswer("transpose/coarsen", coarsen_with_one_guard, "missing guard"),
)
