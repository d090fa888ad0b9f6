"""Wrong products with 2:4 sparsity that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.matmul.tensor_cores import along_column, along_row, swizzled_place
from pmpp.kernels.sparsity import ladder as room
from pmpp.runtime import device
from pmpp.runtime.hopper import copies_visible, tile_descriptor, wgmma_commit, wgmma_fence, wgmma_wait
from pmpp.runtime.hopper_sparse import wgmma_sp_f16
from pmpp.runtime.matrix import commit_copies, copy_async, ldmatrix, ldmatrix_transposed, load32, wait_copies
from pmpp.runtime.sparse_matrix import mma_sp_f16
from tests.support.wrong import WrongRung

f0 = np.float32(0)


def launched(name, kernel, grid, block):
    """``kernel(values, metadata, x, y)`` as a rung is called; ``grid(y)``: the blocks for a result."""

    def multiply(values, metadata, x):
        p = room.arguments(values, metadata, x)
        kernel[grid(p.result), block](p.values, p.metadata, p.x, p.result)
        return p.result

    multiply.__name__ = name
    return multiply


# -- gathered


def gathered_with(name, *, group=4, places=True, swapped=False, shifted=True, guard=True):
    """A thread for each element of y, with one thing exchanged."""

    @cuda.jit
    def kernel(values, metadata, x, y):
        i = cuda.grid(1)
        if i < y.size:
            row, column, total = i // y.shape[1], i % y.shape[1], f0
            within = row % 32
            lane, lower = within % 8 * 4 + within // 16 * 2, within % 16 >= 8
            for first in range(0, values.shape[1], 8):
                word = metadata[row // 32, first // 16, lane + first // 8 % 2]
                if lower != swapped:
                    word = np.uint32(word >> np.uint32(16))
                for j in range(first, first + 8):
                    k = j // 2 * group + (np.int64(word & np.uint32(3)) if places else j % 2)
                    if not guard or k < x.shape[0]:
                        total += room.as_number(values[row, j]) * room.as_number(x[k, column])
                    if shifted:
                        word = np.uint32(word >> np.uint32(2))
            y[row, column] = total

    return launched(name, kernel, lambda y: blocks(y.size, 128), 128)


# -- fragments


def fragments_with(name, *, selector=1, dense=False, own_word=True, lower=16):
    """A warp for 32 x 8 of y, that loads from device memory, with one thing exchanged."""

    @cuda.jit
    def kernel(values, metadata, x, y):
        lane = cuda.threadIdx.x
        group, pair = lane // 4, lane % 4 * 2
        row, column = cuda.blockIdx.y * 32, cuda.blockIdx.x * 8
        upper, below = (f0, f0, f0, f0), (f0, f0, f0, f0)
        for step in range(values.shape[1] // 16):
            word = metadata[row // 32, step, lane if own_word else group]
            at, k, far = step * 16 + pair, step * 32 + pair, 0 if dense else 16
            b_words = (
                along_column(x, k, column + group),
                along_column(x, k + 8, column + group),
                along_column(x, k + far, column + group),
                along_column(x, k + far + 8, column + group),
            )
            first = (
                along_row(values, row + group, at),
                along_row(values, row + group + 8, at),
                along_row(values, row + group, at + 8),
                along_row(values, row + group + 8, at + 8),
            )
            second = (
                along_row(values, row + group + lower, at),
                along_row(values, row + group + lower + 8, at),
                along_row(values, row + group + lower, at + 8),
                along_row(values, row + group + lower + 8, at + 8),
            )
            upper = mma_sp_f16(first, b_words, upper, word, 0)
            if selector == 1:
                below = mma_sp_f16(second, b_words, below, word, 1)
            else:
                below = mma_sp_f16(second, b_words, below, word, 0)
        for i in range(4):
            down, along = row + group + i // 2 * 8, column + pair + i % 2
            if down < y.shape[0] and along < y.shape[1]:
                y[down, along] = upper[i]
            if down + 16 < y.shape[0] and along < y.shape[1]:
                y[down + 16, along] = below[i]

    return launched(name, kernel, lambda y: (blocks(y.shape[1], 8), blocks(y.shape[0], 32)), 32)


# -- tiles: x has rows of whole chunks in the tests of these


def tiles_with(name, *, wait=True, last_barrier=True, transposed=True):
    """Two warps for 32 x 16 of y: one tile of what is stored, 32 x 16, and one of x, 32 x 16, in shared memory."""
    read_x = ldmatrix_transposed if transposed else ldmatrix

    @cuda.jit
    def kernel(values, metadata, x, y):
        shared = cuda.shared.array(1024, np.uint16, alignment=16)
        words = metadata.reshape(metadata.size)
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        row, column = cuda.blockIdx.y * 32, cuda.blockIdx.x * 16
        upper, below = (f0, f0, f0, f0), (f0, f0, f0, f0)
        steps = values.shape[1] // 16
        for step in range(steps):
            line, chunk = thread // 2, thread % 2 * 8
            inside = row + line < y.shape[0]
            at = (row + line) * values.shape[1] + step * 16 + chunk
            copy_async(shared, line * 16 + chunk, values, at if inside else 0, 8 if inside else 0)
            inside = step * 32 + line < x.shape[0] and column + chunk < x.shape[1]
            at = (step * 32 + line) * x.shape[1] + column + chunk
            copy_async(shared, 512 + line * 16 + chunk, x, at if inside else 0, 8 if inside else 0)
            commit_copies()
            if wait:
                wait_copies(0)
            cuda.syncthreads()
            word = load32(words, (row // 32 * steps + step) * 32 + lane)
            b_words = read_x(shared, 512 + lane * 16 + warp * 8)
            upper = mma_sp_f16(ldmatrix(shared, lane % 16 * 16 + lane // 16 * 8), b_words, upper, word, 0)
            below = mma_sp_f16(ldmatrix(shared, 256 + lane % 16 * 16 + lane // 16 * 8), b_words, below, word, 1)
            if last_barrier:
                cuda.syncthreads()
        for i in range(4):
            down, along = row + lane // 4 + i // 2 * 8, column + warp * 8 + lane % 4 * 2 + i % 2
            if down < y.shape[0] and along < y.shape[1]:
                y[down, along] = upper[i]
            if down + 16 < y.shape[0] and along < y.shape[1]:
                y[down + 16, along] = below[i]

    return launched(name, kernel, lambda y: (blocks(y.shape[1], 16), blocks(y.shape[0], 32)), 64)


# -- warpgroups: four warps for 64 x 64 of y


place = swizzled_place(8)


def team_with(name, *, selector=1, own_rows=True, own_columns=True, down=32, wait=True, barrier=True):
    """A warpgroup that puts 64 x 64 stored numbers and 128 x 64 of x into shared memory at a time."""
    further, nothing = down * 64, (f0,) * 32

    @cuda.jit
    def kernel(values, metadata, x, y):
        shared = cuda.shared.array(12288, np.uint16, alignment=1024)
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        row, column, sums = cuda.blockIdx.y * 64, cuda.blockIdx.x * 64, nothing
        word, later = lane // 4 * 4 + (warp % 2 * 2 if own_rows else 0) + lane % 2, lane % 4 // 2 if own_columns else 0
        for turn in range(values.shape[1] // 64):
            for i in range(thread, 64 * 64, 128):
                line, at = i // 64, turn * 64 + i % 64
                to = place(np.uint32(line), np.uint32(i % 64 // 8)) * 8 + i % 8
                shared[to] = values[row + line, at] if row + line < y.shape[0] else np.uint16(0)
            for i in range(thread, 128 * 64, 128):
                k, along = turn * 128 + i // 64, column + i % 64
                to = 4096 + place(np.uint32(i // 64), np.uint32(i % 64 // 8)) * 8 + i % 8
                shared[to] = x[k, along] if k < x.shape[0] and along < x.shape[1] else np.uint16(0)
            copies_visible()
            if barrier:
                cuda.syncthreads()
            for both in range(2):
                e = metadata[row // 32 + warp // 2, 4 * turn + 2 * both + later, word]
                a, b = 32 * both, 4096 + 4096 * both
                wgmma_fence()
                sums = wgmma_sp_f16(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, 0), sums, e, 0)
                a, b = tile_descriptor(shared, a + 16, 0), tile_descriptor(shared, b + further, 0)
                if selector == 1:
                    sums = wgmma_sp_f16(a, b, sums, e, 1)
                else:
                    sums = wgmma_sp_f16(a, b, sums, e, 0)
                wgmma_commit()
                if wait:
                    sums = wgmma_wait(0, sums)
            cuda.syncthreads()
        sums = wgmma_wait(0, sums)
        for i in range(32):
            down_to, along = row + warp * 16 + lane // 4 + i // 2 % 2 * 8, column + i // 4 * 8 + lane % 4 * 2 + i % 2
            if down_to < y.shape[0] and along < y.shape[1]:
                y[down_to, along] = sums[i]

    return launched(name, kernel, lambda y: (blocks(y.shape[1], 64), blocks(y.shape[0], 64)), 128)


RIGHT = [gathered_with("as_gathered"), fragments_with("as_fragments"), tiles_with("as_tiles")]
if device.limits()["compute_capability"] == (9, 0):
    RIGHT.append(team_with("as_warpgroups"))

RUNGS = [
    WrongRung(gathered_with("places_ignored", places=False), "wrong result"),
    WrongRung(gathered_with("fours_counted_as_twos", group=2), "wrong result"),
    WrongRung(gathered_with("upper_half_for_the_upper_row", swapped=True), "wrong result"),
    WrongRung(gathered_with("the_first_place_always", shifted=False), "wrong result"),
    WrongRung(gathered_with("no_guard_along_k", guard=False), "out of bounds"),
    WrongRung(fragments_with("the_same_selector_twice", selector=0), "wrong result"),
    WrongRung(fragments_with("x_as_without_sparsity", dense=True), "wrong result"),
    WrongRung(fragments_with("a_word_for_each_four_lanes", own_word=False), "wrong result"),
    WrongRung(fragments_with("lower_rows_8_below", lower=8), "wrong result"),
    WrongRung(tiles_with("x_not_transposed", transposed=False), "wrong result"),
    WrongRung(tiles_with("copies_not_waited_for", wait=False), "race"),
    WrongRung(tiles_with("no_barrier_behind_the_last_read", last_barrier=False), "race"),
    WrongRung(team_with("the_same_selector_for_the_next_columns", selector=0), "wrong result"),
    WrongRung(team_with("words_of_another_warp", own_rows=False), "wrong result"),
    WrongRung(team_with("no_words_for_the_next_columns", own_columns=False), "wrong result"),
    WrongRung(team_with("x_of_the_next_16_rows", down=16), "wrong result"),
    WrongRung(team_with("stored_over_while_multiplied", wait=False), "race"),
    WrongRung(team_with("no_barrier_before_the_products", barrier=False), "race"),
]
