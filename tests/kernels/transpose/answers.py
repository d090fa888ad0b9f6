"""More answers to the exercises of chapter 16: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
ROTATE, PLANES = "transpose/rotate", "transpose/planes"
SWIZZLE, COARSEN = "transpose/swizzle", "transpose/coarsen"
TILE, PITCH, WIDE, STEP, BLOCK, RECORDS = 32, 33, 34, 8, 256, 768


# -- rotate


@right(ROTATE)
@cuda.jit
def rotate_turned_over_while_storing(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[tx, ty] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - 1 - top - tx] = tile[ty, tx]


@wrong(ROTATE, "divergent barrier", "returns on line .* are never written")
@cuda.jit
def rotate_leaves_early(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty >= x.shape[0] or left + tx >= x.shape[1]:
        return
    tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - 1 - (top + tx)] = tile[tx, ty]


@wrong(ROTATE, "index out of bounds", r"writes out\[:, 31\]")
@cuda.jit
def rotate_one_too_far(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - (top + tx)] = tile[tx, ty]


# -- planes


@right(PLANES)
@cuda.jit
def planes_sorted_while_storing(x, out):
    part = cuda.shared.array((3, BLOCK), np.float32)
    thread, first, i = cuda.threadIdx.x, cuda.blockIdx.x * RECORDS, cuda.grid(1)
    for j in range(thread, min(RECORDS, x.size - first), BLOCK):
        part[j % 3, j // 3] = x[first + j]
    cuda.syncthreads()
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = part[k, thread]


@right(PLANES)
@cuda.jit
def planes_a_number_a_thread(x, out):
    for j in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[j % 3, j // 3] = x[j]


@wrong(PLANES, "divergent barrier", "reads an element of part that nothing has written")
@cuda.jit
def planes_leaves_early(x, out):
    part = cuda.shared.array(RECORDS, np.float32)
    thread, first, i = cuda.threadIdx.x, cuda.blockIdx.x * RECORDS, cuda.grid(1)
    if i >= out.shape[1]:
        return
    for k in range(3):
        j = k * BLOCK + thread
        if first + j < x.size:
            part[j] = x[first + j]
    cuda.syncthreads()
    for k in range(3):
        out[k, i] = part[3 * thread + k]


@wrong(PLANES, "only right for one block")
@cuda.jit
def planes_of_the_first_records(x, out):
    part = cuda.shared.array(RECORDS, np.float32)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    for j in range(thread, min(RECORDS, x.size), BLOCK):
        part[j] = x[j]
    cuda.syncthreads()
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = part[3 * thread + k]


# -- swizzle


def swizzled(place, name):
    """Element (ty, tx) stands at ``place(ty, tx)`` of its row."""

    @cuda.jit
    def swizzle(x, out):
        tile = cuda.shared.array(0, np.float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
        if top + ty < x.shape[0] and left + tx < x.shape[1]:
            tile[ty * TILE + place(ty, tx)] = x[top + ty, left + tx]
        cuda.syncthreads()
        if left + ty < out.shape[0] and top + tx < out.shape[1]:
            out[left + ty, top + tx] = tile[tx * TILE + place(tx, ty)]

    swizzle.py_func.__name__ = name
    return swizzle


@cuda.jit(device=True)
def rotated(row, column):
    return (column - row) % TILE


@cuda.jit(device=True)
def rotated_by_two(row, column):
    return (column + 2 * row) % TILE


@cuda.jit(device=True)
def rotated_beyond(row, column):
    return column + row


right(SWIZZLE)(swizzled(rotated, "swizzle_by_rotating"))
wrong(SWIZZLE, "bank conflicts", "2 wavefronts a request")(swizzled(rotated_by_two, "swizzle_by_two"))
wrong(SWIZZLE, "index out of bounds", r"tile\[1024\]")(swizzled(rotated_beyond, "swizzle_beyond_the_row"))


@right(SWIZZLE)
@cuda.jit
def swizzle_in_a_tile_of_its_own(x, out):
    tile = cuda.shared.array((TILE, TILE), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx ^ ty] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty ^ tx]


@wrong(SWIZZLE, "too much shared memory", "takes 4,224 bytes of shared memory itself where 4,096 will do.* no room")
@cuda.jit
def swizzle_by_a_padded_tile_of_its_own(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


# -- coarsen


def coarsen(pitch=PITCH, adjacent=False, second=True, early=False, name="coarsen"):
    """The answer to coarsen; ``adjacent``: a thread has four rows side by side."""

    @cuda.jit
    def kernel(x, out):
        tile = cuda.shared.array((TILE, pitch), np.float32)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
        if early and left + tx >= x.shape[1]:
            return
        for i in range(4):
            row = 4 * ty + i if adjacent else ty + STEP * i
            if top + row < x.shape[0] and left + tx < x.shape[1]:
                tile[row, tx] = x[top + row, left + tx]
            if not second:
                cuda.syncthreads()
                if left + row < out.shape[0] and top + tx < out.shape[1]:
                    out[left + row, top + tx] = tile[tx, row]
        if second:
            cuda.syncthreads()
            for i in range(4):
                row = 4 * ty + i if adjacent else ty + STEP * i
                if left + row < out.shape[0] and top + tx < out.shape[1]:
                    out[left + row, top + tx] = tile[tx, row]

    kernel.py_func.__name__ = name
    return kernel


right(COARSEN)(coarsen(adjacent=True, name="coarsen_four_rows_side_by_side"))
wrong(COARSEN, "bank conflicts", "pad the tile to 33 columns")(coarsen(pitch=WIDE, name="coarsen_padded_by_two"))
wrong(COARSEN, "missing barrier")(coarsen(second=False, name="coarsen_in_one_loop"))
wrong(COARSEN, "divergent barrier", "returns on line")(coarsen(early=True, name="coarsen_leaves_early"))


@wrong(COARSEN, "too much traffic", "720 wavefronts where 384 will do, .* into the tile once, and comes out of it once")
@cuda.jit
def coarsen_in_steps_of_four(x, out):  # most rows are moved by two threads
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for row in range(ty, TILE, 4):
        if top + row < x.shape[0] and left + tx < x.shape[1]:
            tile[row, tx] = x[top + row, left + tx]
    cuda.syncthreads()
    for row in range(ty, TILE, 4):
        if left + row < out.shape[0] and top + tx < out.shape[1]:
            out[left + row, top + tx] = tile[tx, row]


@wrong(ROTATE, "deliberate float64", r"line \d+ asks for float64\. The arrays are float32")
@cuda.jit
def rotate_through_a_tile_of_float64(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float64)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - 1 - (top + tx)] = tile[tx, ty]


@wrong(PLANES, "outputs exchanged", r"out\[0\] holds what belongs into out\[2\]")
@cuda.jit
def planes_from_the_last(x, out):
    part = cuda.shared.array(768, np.float32)
    thread, first, i = cuda.threadIdx.x, cuda.blockIdx.x * 768, cuda.grid(1)
    for j in range(thread, 768, 256):
        if first + j < x.size:
            part[j] = x[first + j]
    cuda.syncthreads()
    if i < out.shape[1]:
        for k in range(3):
            out[2 - k, i] = part[3 * thread + k]
