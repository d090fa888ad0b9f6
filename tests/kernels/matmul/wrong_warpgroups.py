"""Wrong products of warpgroups: the mistakes of chapter 43."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_store,
    bulk_tile,
    commit_stores,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    tensor_map,
    tile_descriptor,
    wait_stores,
    wgmma_commit,
    wgmma_f16,
    wgmma_fence,
    wgmma_wait,
)
from tests.support.wrong import WrongRung

f0 = np.float32(0)
NOTHING = (f0,) * 32
SIDE, TILE = 64, 4096  # of the tiles of A, B and C; elements of one


@cuda.jit(device=True)
def store(c, row, column, sums):
    lane = cuda.threadIdx.x % 32
    for i in range(32):
        at, along = row + lane // 4 + i // 2 % 2 * 8, column + i // 4 * 8 + lane % 4 * 2 + i % 2
        if at < c.shape[0] and along < c.shape[1]:
            c[at, along] = sums[i]


def copied_with(*, swizzled=True, shown=True, waits=True, last_barrier=True, down=1024, along=16, keep=True):
    """A kernel of one warpgroup that stores tiles into shared memory and multiplies them, with one thing exchanged."""

    @cuda.jit(device=True)
    def fill(shared, begin, x, row, column):
        thread = cuda.threadIdx.x
        for k in range(32):
            below, right = (thread + 128 * k) // 64, (thread + 128 * k) % 64
            inside = row + below < x.shape[0] and column + right < x.shape[1]
            chunk = right // 8 ^ below % 8 if swizzled else right // 8
            at = begin + below * 64 + chunk * 8 + right % 8
            shared[at] = x[row + below, column + right] if inside else np.uint16(0)

    @cuda.jit
    def kernel(a, b, c):
        shared = cuda.shared.array(8192, np.uint16, alignment=1024)
        row, column = cuda.blockIdx.y * SIDE, cuda.blockIdx.x * SIDE
        sums = NOTHING
        for k in range(0, a.shape[1], SIDE):
            fill(shared, 0, a, row, k)
            fill(shared, TILE, b, k, column)
            if shown:
                copies_visible()
            cuda.syncthreads()
            wgmma_fence()
            if not keep:
                sums = NOTHING
            for step in range(4):
                left, right = (
                    tile_descriptor(shared, along * step, 0),
                    tile_descriptor(shared, TILE + down * step, TILE),
                )
                sums = wgmma_f16(left, right, sums)
            wgmma_commit()
            if waits:
                sums = wgmma_wait(0, sums)
            if last_barrier:
                cuda.syncthreads()
        sums = wgmma_wait(0, sums)
        store(c, row + cuda.threadIdx.x // 32 * 16, column, sums)

    return kernel


def bulk_with(*, parts=2, asks=True, waits=True, early=False, turned=False):
    """A kernel with a warpgroup that multiplies and a warp that asks for tiles, with one thing exchanged."""

    @cuda.jit
    def kernel(a_map, b_map, maps, c, depth):
        shared = cuda.shared.array(16384, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(16, np.uint64), cuda.shared.array(2, np.uint64)
        row, column = cuda.blockIdx.y * SIDE, cuda.blockIdx.x * SIDE
        thread, block = cuda.threadIdx.x, cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x
        steps = (depth + SIDE - 1) // SIDE
        if thread < 16:
            mbarrier_init(full, thread, 1)
        if thread < 2:
            mbarrier_init(empty, thread, 4)
        cuda.syncthreads()
        if thread == 128:
            place_map(maps, block * 32, a_map)
            place_map(maps, block * 32 + 16, b_map)
            for step in range(steps):
                stage = step % 2
                if asks:
                    mbarrier_wait(empty, stage, 1 - step // 2 % 2)
                expect_bytes(full, step, parts * 2 * TILE)
                down, right = (step * SIDE, row) if turned else (row, step * SIDE)
                bulk_tile(shared, stage * 2 * TILE, maps, block * 32, down, right, full, step)
                bulk_tile(shared, stage * 2 * TILE + TILE, maps, block * 32 + 16, step * SIDE, column, full, step)
        elif thread < 128:
            sums = NOTHING
            for step in range(steps):
                begin = step % 2 * 2 * TILE
                if waits:
                    mbarrier_wait(full, step, 0)
                wgmma_fence()
                for k in range(4):
                    left = tile_descriptor(shared, begin + 16 * k, 0)
                    right = tile_descriptor(shared, begin + TILE + 1024 * k, TILE)
                    sums = wgmma_f16(left, right, sums)
                wgmma_commit()
                if early and thread % 32 == 0:
                    mbarrier_arrive(empty, step % 2)
                sums = wgmma_wait(0, sums)
                if not early and thread % 32 == 0:
                    mbarrier_arrive(empty, step % 2)
            store(c, row + thread // 32 * 16, column, sums)

    return kernel


def stored_with(*, swizzled=True, shown=True, waits=True, together=True, wide=2):
    """A kernel of one warpgroup whose sums are stored by the engine, boxes of 16 rows of 32, with one thing exchanged.

    A warp has one buffer, so it waits for each box. ``wide``: 16-bit numbers that a number of C is taken to have.
    """

    @cuda.jit(device=True)
    def fill(shared, begin, x, row, column):
        thread = cuda.threadIdx.x
        for k in range(32):
            below, right = (thread + 128 * k) // 64, (thread + 128 * k) % 64
            inside = row + below < x.shape[0] and column + right < x.shape[1]
            at = begin + below * 64 + (right // 8 ^ below % 8) * 8 + right % 8
            shared[at] = x[row + below, column + right] if inside else np.uint16(0)

    @cuda.jit
    def kernel(a, b, c_map, maps):
        shared = cuda.shared.array(8192 + 4096, np.uint16, alignment=1024)
        row, column, thread = cuda.blockIdx.y * SIDE, cuda.blockIdx.x * SIDE, cuda.threadIdx.x
        sums = NOTHING
        for k in range(0, a.shape[1], SIDE):
            fill(shared, 0, a, row, k)
            fill(shared, TILE, b, k, column)
            copies_visible()
            cuda.syncthreads()
            wgmma_fence()
            for step in range(4):
                left = tile_descriptor(shared, 16 * step, 0)
                sums = wgmma_f16(left, tile_descriptor(shared, TILE + 1024 * step, TILE), sums)
            wgmma_commit()
            sums = wgmma_wait(0, sums)
            cuda.syncthreads()
        lane, warp = thread % 32, thread // 32
        begin, at = 2 * TILE + warp * 1024, ((cuda.blockIdx.y * cuda.gridDim.x + cuda.blockIdx.x) * 4 + warp) * 16
        if lane == 0:
            place_map(maps, at, c_map)
        for box in range(2):
            for i in range(16):
                down, along = lane // 4 + i // 2 % 2 * 8, i // 4 * 8 + lane % 4 * 2 + i % 2
                chunk = along // 4 ^ down % 8 if swizzled else along // 4
                to = begin + down * 64 + chunk * 8 + along % 4 * 2
                bits = np.uint32(cuda.libdevice.float_as_int(sums[16 * box + i]))
                shared[to], shared[to + 1] = np.uint16(bits & np.uint32(0xFFFF)), np.uint16(bits >> np.uint32(16))
            if shown:
                copies_visible()
            if together:
                cuda.syncwarp()
            if lane == 0:
                bulk_store(maps, at, row + warp * 16, (column + 32 * box) * wide, shared, begin)
                commit_stores()
                if waits:
                    wait_stores(0)
            cuda.syncwarp()
        if lane == 0:
            wait_stores(0)

    return kernel


def call(name, kernel, *, bulk=False, stores=False):
    """A function with the room's arguments. The kernel with bulk copies takes up to 16 steps."""

    def multiply(a, b):
        a, b = (device.to_device(np.ascontiguousarray(device.to_host(x)).view(np.uint16)) for x in (a, b))
        (m, k), n = a.shape, b.shape[1]
        c = device.empty((m, n), np.float32)
        grid = blocks(n, SIDE), blocks(m, SIDE)
        if bulk:
            maps = device.empty(grid[0] * grid[1] * 32, np.uint64)
            kernel[grid, 160](tensor_map(a, SIDE, SIDE), tensor_map(b, SIDE, SIDE), maps, c, k)
        elif stores:
            maps = device.empty(grid[0] * grid[1] * 64, np.uint64)
            kernel[grid, 128](a, b, tensor_map(c.view(np.uint16), 16, 64), maps)
        else:
            kernel[grid, 128](a, b, c)
        return c

    multiply.__name__ = name
    return multiply


def copied(name, **exchanged):
    return call(name, copied_with(**exchanged))


def by_bulk(name, **exchanged):
    return call(name, bulk_with(**exchanged), bulk=True)


def by_stores(name, **exchanged):
    return call(name, stored_with(**exchanged), stores=True)


RUNGS = (
    WrongRung(copied("leaves_chunks_where_they_are", swizzled=False), "wrong result"),
    WrongRung(copied("goes_down_b_by_8_rows", down=512), "wrong result"),
    WrongRung(copied("stays_in_the_first_columns_of_a", along=0), "wrong result"),
    WrongRung(copied("forgets_the_sums", keep=False), "wrong result"),
    WrongRung(copied("does_not_show_its_stores_to_the_engine", shown=False), "race"),
    WrongRung(copied("stores_over_what_is_multiplied", waits=False), "race"),
    WrongRung(copied("waits_for_its_own_products_only", last_barrier=False), "race"),
    WrongRung(by_bulk("takes_rows_for_columns", turned=True), "wrong result"),
    WrongRung(by_bulk("expects_half_of_the_bytes", parts=1), "race"),
    WrongRung(by_bulk("does_not_wait_for_the_bytes", waits=False), "race"),
    WrongRung(by_bulk("does_not_ask_whether_a_stage_is_empty", asks=False), "race"),
    WrongRung(by_bulk("gives_a_stage_back_too_early", early=True), "race"),
    WrongRung(by_stores("writes_chunks_of_c_where_they_are", swizzled=False), "wrong result"),
    WrongRung(by_stores("takes_columns_of_c_for_16_bit_numbers", wide=1), "race"),
    WrongRung(by_stores("does_not_show_a_box_to_the_engine", shown=False), "race"),
    WrongRung(by_stores("writes_over_a_box_that_is_stored", waits=False), "race"),
    WrongRung(by_stores("stores_before_the_warp_has_written", together=False), "race"),
)
RIGHT = copied("right_by_stores"), by_bulk("right_by_bulk_copies"), by_stores("right_by_bulk_stores")
