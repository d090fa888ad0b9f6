"""Products of float16 or bfloat16 by warpgroups, with a bias: what the layers of a large network ask for on Hopper.

The kernel takes B row by row, and A in either order, since the gradient of weights has A column by column. It does what
`pmpp.kernels.matmul.mixed` does, with the same results' layout. Four warps multiply a tile where it lies in shared
memory (chapter 43), so that no fragment is loaded. Two things differ from the kernels of
`pmpp.kernels.matmul.warpgroups`. A tile is 128 x 128, and two blocks share a multiprocessor: a layer's sums are short,
and while one block stores its results the other one multiplies. And threads copy the tiles, since a tensor map would
have to be made for each array, also where a step is recorded.

Source: PTX ISA, "Asynchronous warpgroup level matrix multiply-accumulate instructions".
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.matmul.mixed_tiles import copier, fragment_storer
from pmpp.kernels.matmul.tensor_cores import CHUNK, GROUP, KERNELS, WARP, order_of_tiles, swizzled_place
from pmpp.runtime.hopper import (
    copies_visible,
    tile_descriptor,
    wgmma_bf16,
    wgmma_commit,
    wgmma_f16,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_columns import wgmma_bf16_columns, wgmma_f16_columns
from pmpp.runtime.matrix import commit_copies, wait_copies

CAPABILITY = (9, 0)  # of the only GPUs that have wgmma
PRODUCTS = {"float16": wgmma_f16, "bfloat16": wgmma_bf16}
PRODUCTS_OF_COLUMNS = {"float16": wgmma_f16_columns, "bfloat16": wgmma_bf16_columns}
SIDE, DEPTH, ROWS, TEAM = 128, 64, 64, 128  # of a tile, of K at a time; rows and threads of a warpgroup
STAGE = 2 * SIDE * DEPTH  # elements of a tile of A and one of B
THREADS, STAGES, RESIDENT = 2 * TEAM, 3, 2
BLOCK = THREADS, 2 * STAGES * STAGE  # threads of a block, and its bytes of shared memory
f0 = np.float32(0)
NOTHING = (f0,) * (SIDE // 2)


@cuda.jit(device=True)
def panel_place(row, chunk):
    """Where a chunk of a row of B lies, in chunks: panels of 64 columns, whose rows have 8 chunks, exchanged as A's."""
    return np.uint32(chunk // np.uint32(8) * np.uint32(DEPTH * 8) + row * np.uint32(8) + (chunk % 8 ^ row % 8))


@functools.cache
def row_storer(registers: int, store_two: typing.Any) -> typing.Any:
    """A device function that stores so many sums of each lane: 16 rows. Halves, until two fragments are left."""
    half, middle = None if registers == 8 else row_storer(registers // 2, store_two), registers // 2

    @cuda.jit(device=True)
    def two(c, base, row, column, sums, bias, alpha, s):
        store_two(c, base, row, column, sums[:4], sums[4:], bias, alpha, s)

    @cuda.jit(device=True)
    def both(c, base, row, column, sums, bias, alpha, s):
        half(c, base, row, column, sums[:middle], bias, alpha, s)
        half(c, base, row, column + 2 * middle, sums[middle:], bias, alpha, s)

    return two if half is None else both


@functools.lru_cache(KERNELS)
def kernel_for(kind: str, a_by_rows: bool, short: bool, wide: bool, biased: bool) -> typing.Any:
    """The kernel ``(a, b, bias, c, alpha, sizes)``, a block for each tile of each product; as `mixed.kernel_for`."""
    wgmma, place = (PRODUCTS if a_by_rows else PRODUCTS_OF_COLUMNS)[kind], swizzled_place(DEPTH // CHUNK)
    first_b, copy_b = copier(DEPTH, SIDE // CHUNK, THREADS, panel_place, 64)
    first_a, copy_a = copier(SIDE, DEPTH // CHUNK, THREADS, place) if a_by_rows else (first_b, copy_b)
    b_lines = THREADS * CHUNK // SIDE
    a_lines = THREADS * CHUNK // DEPTH if a_by_rows else b_lines
    store = row_storer(SIDE // 2, fragment_storer(short, wide, biased))
    a_size, stage_size, panel, end_stage = (
        np.uint32(SIDE * DEPTH),
        np.uint32(STAGE),
        DEPTH * 64,
        np.uint32(STAGES * STAGE),
    )
    down, ahead, pending = np.uint32(16 * 64), STAGES - 1, STAGES - 2
    # To the next 16 of k, and the elements of A for each row of a warpgroup: its 64 rows are a panel of columns.
    along, each_row = np.uint32(16) if a_by_rows else down, np.uint32(DEPTH)
    tile_of = order_of_tiles(GROUP)

    @cuda.jit(device=True)
    def multiply(shared, begin, row, sums):
        """Start to add the products of a stage to the sums of this warpgroup, whose rows of A begin at ``row``."""
        a, b = np.uint32(begin + row * each_row), np.uint32(begin + a_size)
        wgmma_fence()
        sums = wgmma(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + along, 0), tile_descriptor(shared, b + down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 2 * along, 0), tile_descriptor(shared, b + 2 * down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 3 * along, 0), tile_descriptor(shared, b + 3 * down, panel), sums)
        wgmma_commit()
        return sums

    @cuda.jit(launch_bounds=(THREADS, RESIDENT))
    def warpgroups_kernel(a, b, bias, c, alpha, s):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        tiles_m, tiles_n = (s.m + SIDE - 1) // SIDE, (s.n + SIDE - 1) // SIDE
        block = np.int64(cuda.blockIdx.x)
        product, block = block // (tiles_m * tiles_n), block % (tiles_m * tiles_n)
        outer, inner = product // s.inner, product % s.inner
        tile_m, tile_n = tile_of(block, tiles_m, tiles_n)
        first_row, first_column = tile_m * SIDE, tile_n * SIDE
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        mine = np.uint32(warp // 4 * np.uint32(ROWS))
        a_left = np.int32(min(s.m - first_row, np.int64(SIDE)))
        b_left = np.int32(min(s.n - first_column, np.int64(SIDE)))
        a_step, b_step, b_more = a_lines * s.a_pitch, b_lines * s.b_pitch, DEPTH * s.b_pitch
        a_base = outer * s.a_outer + inner * s.a_inner
        if a_by_rows:
            a_at, a_more = first_a(a_base, first_row, np.int64(0), s.a_pitch), np.int64(DEPTH)
        else:
            a_at, a_more = first_a(a_base, np.int64(0), first_row, s.a_pitch), DEPTH * s.a_pitch
        b_at = first_b(outer * s.b_outer + inner * s.b_inner, np.int64(0), first_column, s.b_pitch)
        left = s.k  # of what is to be copied
        for stage in range(ahead):
            begin, k_left = np.uint32(np.uint32(stage) * stage_size), np.int32(max(min(left, DEPTH), 0))
            if a_by_rows:
                copy_a(shared, begin, a, a_at, a_step, a_left, k_left)
            else:
                copy_a(shared, begin, a, a_at, a_step, k_left, a_left)
            copy_b(shared, np.uint32(begin + a_size), b, b_at, b_step, k_left, b_left)
            commit_copies()
            left, a_at, b_at = left - DEPTH, a_at + a_more, b_at + b_more
        sums, now, k0 = NOTHING, np.uint32(0), np.int64(0)
        into = np.uint32(np.uint32(ahead) * stage_size)
        while k0 < s.k:
            wait_copies(pending)  # the oldest tiles are there: those of this thread,
            copies_visible()  # for the tensor cores as well,
            cuda.syncthreads()  # and of all; and everyone has waited for products of the tiles that are overwritten
            sums = multiply(shared, now, mine, sums)
            k_left = np.int32(max(min(left, DEPTH), 0))
            if a_by_rows:
                copy_a(shared, into, a, a_at, a_step, a_left, k_left)
            else:
                copy_a(shared, into, a, a_at, a_step, k_left, a_left)
            copy_b(shared, np.uint32(into + a_size), b, b_at, b_step, k_left, b_left)
            commit_copies()
            sums = wgmma_wait(0, sums)
            now, into = np.uint32(now + stage_size), now
            if now == end_stage:
                now = np.uint32(0)
            k0, left, a_at, b_at = k0 + DEPTH, left - DEPTH, a_at + a_more, b_at + b_more
        row = first_row + np.int64(mine + warp % 4 * np.uint32(16))
        store(c, outer * s.c_outer + inner * s.c_inner, row, first_column, sums, bias, alpha, s)

    return warpgroups_kernel
