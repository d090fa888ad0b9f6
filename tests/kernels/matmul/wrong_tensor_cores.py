"""Wrong products on tensor cores: the mistakes of chapter 40."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.matrix import (
    commit_copies,
    copy_async,
    ldmatrix,
    ldmatrix_transposed,
    mma_f16,
    pack_halves,
    wait_copies,
)
from tests.support.wrong import WrongRung

f0 = np.float32(0)


def fragments_with(
    *, order=(0, 1, 2, 3), b_along_row=False, lower=8, guard=True, keep=True, halves=(0, 1), beyond="zero"
):
    """A kernel with a warp for each 16 x 8 of C, that loads from device memory, with one thing exchanged."""
    first, second, third, fourth = order
    low, high = halves
    wraps = beyond != "zero"

    @cuda.jit(device=True)
    def element(x, row, column):
        if row < x.shape[0] and column < x.shape[1]:
            return x[row, column]
        return x[row % x.shape[0], column % x.shape[1]] if wraps else np.uint16(0)

    @cuda.jit(device=True)
    def along_row(x, row, column):
        return pack_halves(element(x, row, column + low), element(x, row, column + high))

    @cuda.jit(device=True)
    def of_b(x, row, column):
        if b_along_row:
            return along_row(x, row, column)
        return pack_halves(element(x, row + low, column), element(x, row + high, column))

    @cuda.jit
    def kernel(a, b, c):
        lane = cuda.threadIdx.x
        group, pair = lane // 4, lane % 4 * 2
        row, column = cuda.blockIdx.y * 16 + group, cuda.blockIdx.x * 8
        sums = (f0, f0, f0, f0)
        k = 0
        while k < a.shape[1]:
            words = (
                along_row(a, row, k + pair),
                along_row(a, row + 8, k + pair),
                along_row(a, row, k + pair + 8),
                along_row(a, row + 8, k + pair + 8),
            )
            a_words = words[first], words[second], words[third], words[fourth]
            b_words = of_b(b, k + pair, column + group), of_b(b, k + pair + 8, column + group)
            found = mma_f16(a_words, b_words, sums if keep else (f0, f0, f0, f0))
            sums = found
            k += 16
        for i in range(4):
            at, along = row + i // 2 * lower, column + pair + i % 2
            if not guard or (at < c.shape[0] and along < c.shape[1]):
                c[at, along] = sums[i]

    return kernel


def tiles_with(*, wait=True, barrier=True, transposed=True, last_barrier=True):
    """A kernel with four warps for each 16 x 32 of C. They copy a tile of A together, and each its own one of B."""
    read_b = ldmatrix_transposed if transposed else ldmatrix

    @cuda.jit
    def kernel(a, b, c):
        shared = cuda.shared.array(768, np.uint16, alignment=16)  # 16 x 16 of A, then four tiles of 16 x 8 of B
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        first_row, first_column = cuda.blockIdx.y * 16, (cuda.blockIdx.x * 4 + warp) * 8
        begin_b = 256 + warp * 128
        sums = (f0, f0, f0, f0)
        k = 0
        while k < a.shape[1]:
            if warp == 3:  # two chunks of 8 in each of 16 rows
                row, column = first_row + lane // 2, k + lane % 2 * 8
                inside = row < a.shape[0] and column < a.shape[1]
                copy_async(shared, lane * 8, a, row * a.shape[1] + column if inside else 0, 8 if inside else 0)
            if lane < 16:
                inside = k + lane < b.shape[0] and first_column < b.shape[1]
                at = (k + lane) * b.shape[1] + first_column if inside else 0
                copy_async(shared, begin_b + lane * 8, b, at, 8 if inside else 0)
            commit_copies()
            if wait:
                wait_copies(0)
            if barrier:
                cuda.syncthreads()
            a_words = ldmatrix(shared, lane % 16 * 16 + lane // 16 * 8)
            b_words = read_b(shared, begin_b + lane % 16 * 8)
            sums = mma_f16(a_words, (b_words[0], b_words[1]), sums)
            if last_barrier:
                cuda.syncthreads()
            k += 16
        for i in range(4):
            at, along = first_row + lane // 4 + i // 2 * 8, first_column + lane % 4 * 2 + i % 2
            if at < c.shape[0] and along < c.shape[1]:
                c[at, along] = sums[i]

    return kernel


def padded(x):
    rows, columns = x.shape
    found = np.zeros((blocks(rows, 8) * 8, blocks(columns, 8) * 8), np.uint16)
    found[:rows, :columns] = x
    return found


def call(name, kernel, *, tiles=False):
    """A function with the room's arguments. ``tiles``: four warps a block, on copies whose rows are whole chunks."""

    def multiply(a, b):
        a, b = (np.asarray(device.to_host(x)).view(np.uint16) for x in (a, b))
        (m, _), n = a.shape, b.shape[1]
        if tiles:
            a, b = padded(a), padded(b)
            b = np.vstack([b, np.zeros((a.shape[1] - b.shape[0], b.shape[1]), np.uint16)])
        c = device.empty((m, n), np.float32)
        grid = blocks(n, 32 if tiles else 8), blocks(m, 16)
        kernel[grid, 128 if tiles else 32](device.to_device(a), device.to_device(b), c)
        return c

    multiply.__name__ = name
    return multiply


def fragments(name, **exchanged):
    return call(name, fragments_with(**exchanged))


def tiles(name, **exchanged):
    return call(name, tiles_with(**exchanged), tiles=True)


RUNGS = (
    WrongRung(fragments("takes_the_words_of_a_in_rows", order=(0, 2, 1, 3)), "wrong result"),
    WrongRung(fragments("pairs_the_columns_of_b", b_along_row=True), "wrong result"),
    WrongRung(fragments("exchanges_the_halves_of_a_word_of_c", lower=-8), "out of bounds"),
    WrongRung(fragments("forgets_the_sums", keep=False), "wrong result"),
    WrongRung(fragments("stores_beyond_the_edge", guard=False), "out of bounds"),
    WrongRung(fragments("does_not_fill_with_zeros", beyond="wrap"), "wrong result"),
    WrongRung(tiles("loads_b_as_it_lies", transposed=False), "wrong result"),
    WrongRung(tiles("does_not_wait_for_its_copies", wait=False), "race"),
    WrongRung(tiles("waits_only_for_its_own_copies", barrier=False), "race"),
    WrongRung(tiles("copies_over_what_is_read", last_barrier=False), "race"),
)
RIGHT = fragments("right_by_fragments"), tiles("right_by_tiles")
