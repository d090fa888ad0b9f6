"""Hopper's engines: products that are under way, tiles that a copy engine brings, and the barriers that count both."""

import numpy as np

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_tile,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    tensor_map,
    tile_descriptor,
    wgmma_commit,
    wgmma_f16,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.simt.host.arrays import DeviceArray
from pmpp.simt.machine import engines as copy_engine

from . import pair, zeros

f0 = np.float32(0)
NOTHING = (f0,) * 32  # sums of 64 columns
TILE = 4096  # elements of 64 x 64
BYTES = 2 * TILE


def numbers(rows=64):
    """Small whole numbers, so that all sums are exact."""
    r, c = np.ogrid[:rows, :64]
    return ((r * 3 + c * 5) % 7 - 3).astype(np.float16)


def operands(new):
    return numbers().view(np.uint16), numbers().T.copy().view(np.uint16), zeros(128)


def first_sums(a, b):
    """The first sum of each lane of four warps, of a @ b."""
    t = np.arange(128)
    c = a.view(np.float16).astype(np.float64) @ b.view(np.float16).astype(np.float64)
    return c[t // 32 * 16 + t % 32 // 4, t % 4 * 2]


def product(a, b, out):
    return first_sums(a, b)


@cuda.jit(device=True)
def fill(s, begin, x):
    """A tile of 64 x 64, row by row, each chunk of 8 in its place of the swizzle."""
    t = cuda.threadIdx.x
    for k in range(32):
        row, column = (t + 128 * k) // 64, (t + 128 * k) % 64
        s[begin + row * 64 + (column // 8 ^ row % 8) * 8 + column % 8] = x[row, column]  # WITH


@pair("race", "register", "sums", block=128, make=operands, result=product)
@cuda.jit
def sums_are_read_before_the_wait(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)
    wgmma_commit()
    if mended:
        sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]  # BUG


@pair("race", "register", "sums", block=128, make=operands, result=product)
@cuda.jit
def a_wait_for_what_was_not_committed(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)
    if mended:
        wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]  # BUG


@pair("race", "register", "sums", block=128, make=operands, result=product)
@cuda.jit
def the_newest_products_are_under_way(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)
        wgmma_commit()
    sums = wgmma_wait(1, sums)
    if mended:
        sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]  # BUG


@pair("race", "register", "sums", block=128, make=operands, result=product)
@cuda.jit
def sums_that_no_fence_has_shown(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    sums = NOTHING
    for k in range(4):
        if mended or k == 0:
            wgmma_fence()
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
        wgmma_commit()
        sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]


@pair("race", "register", "sums", block=128, make=operands,
      result=lambda a, b, out: product(a, b, out) + np.arange(128))  # fmt: skip
@cuda.jit
def sums_that_are_doubled_behind_the_fence(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    one = np.float32(cuda.threadIdx.x) * np.float32(0.5)
    if mended:
        one *= np.float32(2)
    wgmma_fence()
    if not mended:
        one *= np.float32(2)
    four = (one, one, one, one)
    eight = four + four
    sums = eight + eight + eight + eight
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]


@pair("race", "shared", "s", block=128, make=operands, result=product)
@cuda.jit
def stores_that_the_engine_does_not_see(a, b, out, mended):
    """A barrier orders what threads do. Tensor cores read through another proxy, which needs a fence of its own."""
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    if mended:
        copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]


@pair("race", "shared", "s", block=128, make=lambda new: [x.ravel() for x in operands(new)],
      result=lambda a, b, out: first_sums(a.reshape(64, 64), b.reshape(64, 64)))  # fmt: skip
@cuda.jit
def copies_that_the_engine_does_not_see(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    for k in range(4):
        row, chunk = (t + 128 * k) // 8, (t + 128 * k) % 8
        copy_async(s, row * 64 + (chunk ^ row % 8) * 8, a, row * 64 + chunk * 8, 8)
        copy_async(s, TILE + row * 64 + (chunk ^ row % 8) * 8, b, row * 64 + chunk * 8, 8)
    commit_copies()
    if not mended:
        copies_visible()
    wait_copies(0)
    if mended:
        copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[t] = sums[0]


@pair("race", "shared", "s", block=128, make=operands, result=product, helpers=(fill,))
@cuda.jit
def a_tile_is_multiplied_before_the_barrier(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    if mended:
        cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]


@pair("race", "shared", "s", block=128, make=operands, result=product)
@cuda.jit
def a_tile_is_overwritten_under_a_product(a, b, out, mended):
    """A barrier does not wait for products: they may still read when all threads have passed it."""
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
    wgmma_commit()
    if mended:
        sums = wgmma_wait(0, sums)
    cuda.syncthreads()
    s[cuda.threadIdx.x] = 0  # BUG
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]


@pair("out_of_bounds", "shared", "s", block=128, make=operands, result=product)
@cuda.jit
def the_second_panel_lies_outside(a, b, out, mended):
    """128 columns of B are two panels, and there is room for one."""
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    fill(s, 0, a)
    fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    wgmma_fence()
    sums = NOTHING + NOTHING
    for k in range(4):
        panel = 0 if mended else TILE
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, panel), sums)  # BUG
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = sums[0]


@pair("divergent_barrier", "register", "wgmma_fence()", block=160, make=lambda new: (*operands(new)[:2], zeros(160)),
      result=lambda a, b, out: np.append(first_sums(a, b), np.zeros(32)), hangs=True)  # fmt: skip
@cuda.jit
def a_fifth_warp_multiplies_alone(a, b, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    if t < 128:
        fill(s, 0, a)
        fill(s, TILE, b)
    copies_visible()
    cuda.syncthreads()
    sums = NOTHING
    if not mended or t < 128:
        wgmma_fence()  # BUG
        for k in range(4):
            sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
    out[t] = sums[0]


# ---------------------------------------------------------------------------------------------------------- bulk copies


def matrices(new):
    """Two matrices, their maps, and room for the maps: of the interpreter or of a GPU, wherever ``new`` allocates."""
    a, b = (new(x.shape, np.uint16) for x in (numbers(), numbers(128)))
    a.copy_to_device(numbers().view(np.uint16))
    b.copy_to_device(numbers(128).view(np.uint16))
    return a, b, described(a), described(b), new(32, np.uint64), zeros(128)


def described(x):
    """The map of an array, which may be the interpreter's where kernels run on a GPU otherwise."""
    if isinstance(x, DeviceArray):
        return copy_engine.words_of(copy_engine.Map(device.address(x), *x.shape, 64, 64))
    return tensor_map(x, 64, 64)


def of_matrices(rows):
    def result(a, b, a_map, b_map, maps, out):
        a, b = (device.to_host(x) for x in (a, b))
        return sum(first_sums(a, b[64 * k : 64 * k + 64]) for k in range(rows))

    return result


@cuda.jit(device=True)
def multiply(s, a, b, sums):
    wgmma_fence()
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, a + 16 * k, 0), tile_descriptor(s, b + 1024 * k, TILE), sums)
    wgmma_commit()
    return sums


@pair("race", "shared", "s", block=128, make=matrices, result=of_matrices(1))
@cuda.jit
def tiles_are_multiplied_before_they_arrive(a, b, a_map, b_map, maps, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    full = cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        expect_bytes(full, 0, 2 * BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # WITH
        bulk_tile(s, TILE, maps, 16, 0, 0, full, 0)  # WITH
    if mended:
        cuda.syncthreads()
        mbarrier_wait(full, 0, 0)
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[t] = sums[0]
    if t == 0:
        mbarrier_wait(full, 0, 0)


@pair("race", "shared", "s", block=128, make=matrices, result=of_matrices(1), hangs=True)
@cuda.jit
def fewer_bytes_are_expected_than_come(a, b, a_map, b_map, maps, out, mended):
    """The phase ends with the first tile, and the second one may be on its way."""
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    full = cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        expect_bytes(full, 0, 2 * BYTES if mended else BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)
        bulk_tile(s, TILE, maps, 16, 0, 0, full, 0)  # BUG
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[t] = sums[0]


@pair("race", "shared", "full", block=128, make=matrices, result=of_matrices(1))
@cuda.jit
def a_barrier_is_used_before_it_is_initialised_for_all(a, b, a_map, b_map, maps, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    full = cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)  # WITH
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        expect_bytes(full, 0, 2 * BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)
        bulk_tile(s, TILE, maps, 16, 0, 0, full, 0)
    if mended:
        cuda.syncthreads()
    mbarrier_wait(full, 0, 0)  # BUG
    sums = wgmma_wait(0, multiply(s, 0, TILE, NOTHING))
    out[t] = sums[0]


@pair("race", "shared", "s", block=160, make=matrices, result=of_matrices(2))
@cuda.jit
def a_producer_that_does_not_ask_whether_a_stage_is_empty(a, b, a_map, b_map, maps, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    full, empty = cuda.shared.array(2, np.uint64), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        mbarrier_init(full, 1, 1)
        mbarrier_init(empty, 0, 4)
    cuda.syncthreads()
    if t == 128:
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        for step in range(2):
            if mended:
                mbarrier_wait(empty, 0, 1 - step)
            expect_bytes(full, step, 2 * BYTES)
            bulk_tile(s, 0, maps, 0, 0, 0, full, step)  # BUG
            bulk_tile(s, TILE, maps, 16, 64 * step, 0, full, step)  # BUG
    elif t < 128:
        sums = NOTHING
        for step in range(2):
            mbarrier_wait(full, step, 0)
            wgmma_fence()
            for k in range(4):
                sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
            wgmma_commit()
            sums = wgmma_wait(0, sums)
            if t % 32 == 0:
                mbarrier_arrive(empty, 0)
        out[t] = sums[0]


@pair("race", "shared", "s", block=160, make=matrices, result=of_matrices(2))
@cuda.jit
def a_stage_is_given_back_before_its_products_are_done(a, b, a_map, b_map, maps, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    full, empty = cuda.shared.array(1, np.uint64), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        mbarrier_init(empty, 0, 4)
    cuda.syncthreads()
    if t == 128:
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        for step in range(2):
            mbarrier_wait(empty, 0, 1 - step)
            expect_bytes(full, 0, 2 * BYTES)
            bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # BUG
            bulk_tile(s, TILE, maps, 16, 64 * step, 0, full, 0)  # BUG
    elif t < 128:
        sums = NOTHING
        for step in range(2):
            mbarrier_wait(full, 0, step)
            wgmma_fence()
            for k in range(4):
                sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # WITH
            wgmma_commit()
            if not mended and t % 32 == 0:
                mbarrier_arrive(empty, 0)
            sums = wgmma_wait(0, sums)
            if mended and t % 32 == 0:
                mbarrier_arrive(empty, 0)
        out[t] = sums[0]


@pair("divergent_barrier", "register", "wgmma_fence()", block=128, make=matrices, result=of_matrices(1), hangs=True)
@cuda.jit
def three_warps_multiply_where_warps_take_turns(a, b, a_map, b_map, maps, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    full = cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        expect_bytes(full, 0, 2 * BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)
        bulk_tile(s, TILE, maps, 16, 0, 0, full, 0)
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    sums = NOTHING
    if mended or t < 96:
        wgmma_fence()  # BUG
        for k in range(4):
            sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
    out[t] = sums[0]


@pair("divergent_barrier", "register", "wgmma_f16()", block=128, make=matrices, result=of_matrices(1), hangs=True)
@cuda.jit
def four_warps_multiply_on_two_lines(a, b, a_map, b_map, maps, out, mended):
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    full = cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, a_map)
        place_map(maps, 16, b_map)
        expect_bytes(full, 0, 2 * BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)
        bulk_tile(s, TILE, maps, 16, 0, 0, full, 0)
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    wgmma_fence()
    sums = NOTHING
    for k in range(4):
        if mended or t < 64:
            sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # BUG
        else:
            sums = wgmma_f16(tile_descriptor(s, 16 * k, 0), tile_descriptor(s, TILE + 1024 * k, TILE), sums)  # WITH
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[t] = sums[0]


@pair("race", "shared", "bars", result=lambda x, out: x + 1)
@cuda.jit
def a_barrier_is_set_to_zero_for_another_round(x, out, mended):
    """An mbarrier counts anew by itself, and its 64 bits are no number."""
    bars = cuda.shared.array(2, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(bars, 0, 64)
    cuda.syncthreads()
    mbarrier_arrive(bars, 0)
    mbarrier_wait(bars, 0, 0)
    cuda.syncthreads()
    if t == 0:
        bars[1 if mended else 0] = 0  # BUG
    cuda.syncthreads()
    out[t] = x[t] + np.float32(1)


# ------------------------------------------------------------------------------------- whose memory a bulk copy uses


def tile_and_room(new):
    """A matrix of two tiles, its map, room for maps, and 64 numbers."""
    b = new((128, 64), np.uint16)
    b.copy_to_device(numbers(128).view(np.uint16))
    return b, described(b), new(16, np.uint64), zeros(64, np.uint16)


def first_row(b, b_map, maps, out):
    """The first row of the first tile, which the swizzle leaves as it is."""
    return device.to_host(b)[0]


@pair("race", "shared", "s", make=tile_and_room, result=first_row)
@cuda.jit
def a_barrier_does_not_wait_for_a_tile(b, b_map, maps, out, mended):
    """All threads have met who asked for the tile. That it is there, only the mbarrier knows."""
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)
    cuda.syncthreads()
    if mended:
        mbarrier_wait(full, 0, 0)
    out[t] = s[t]  # BUG
    mbarrier_wait(full, 0, 0)


@pair("race", "shared", "s", make=tile_and_room, result=first_row)
@cuda.jit
def who_has_waited_does_not_meet_the_others(b, b_map, maps, out, mended):
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # WITH
    if not mended:
        cuda.syncthreads()
    if t < 32:
        if t == 0:
            mbarrier_wait(full, 0, 0)
        cuda.syncwarp()
    if mended:
        cuda.syncthreads()
    out[t] = s[t]  # BUG


@pair("race", "shared", "s", make=tile_and_room, result=first_row)
@cuda.jit
def a_block_ends_before_its_tile_is_there(b, b_map, maps, out, mended):
    """Nobody looks at the tile. But the engine writes it, and the memory may be another block's by then."""
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # BUG
        if mended:
            mbarrier_wait(full, 0, 0)
    out[t] = b[0, t]


@pair("race", "shared", "s", make=tile_and_room, result=first_row)
@cuda.jit
def a_tile_over_what_a_thread_has_stored(b, b_map, maps, out, mended):
    """Threads store and the engine copies through different proxies: their order needs a fence, and a barrier."""
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    for k in range(64):
        s[64 * k + t] = 0
    if mended:
        copies_visible()
    cuda.syncthreads()
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # BUG
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    out[t] = s[t]


@pair("race", "shared", "s", make=tile_and_room, result=first_row)
@cuda.jit
def a_store_between_the_bytes_and_the_tile(b, b_map, maps, out, mended):
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        s[0] = 1
        if mended:
            copies_visible()
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # BUG
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    out[t] = s[t]


@pair("race", "shared", "scale", block=64, make=tile_and_room, result=lambda *given: 2 * first_row(*given))
@cuda.jit
def a_store_after_the_bytes_is_not_told(b, b_map, maps, out, mended):
    """The thread tells the mbarrier what it did before it arrived, which it does where it expects the bytes."""
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    scale, t = cuda.shared.array(1, np.uint16), cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
    cuda.syncthreads()
    if t == 0:
        if mended:
            scale[0] = 2
        expect_bytes(full, 0, BYTES)
        if not mended:
            scale[0] = 2  # WITH
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)
    if t >= 32:
        mbarrier_wait(full, 0, 0)
        out[t] = s[t] * scale[0]  # BUG
    cuda.syncthreads()
    if t < 32:
        mbarrier_wait(full, 0, 0)
        out[t] = s[t] * scale[0]


@pair("race", "global", "the matrix of maps", make=tile_and_room, result=lambda *given: 7)
@cuda.jit
def a_tile_of_what_this_kernel_has_written(b, b_map, maps, out, mended):
    """A barrier orders what threads do. The engine reads global memory through another proxy, as it reads shared."""
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    b[0 if not mended else 64, t] = 7
    cuda.syncthreads()
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # BUG
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    out[t] = 7 if s[t] == b[0, t] else 0


@pair("race", "global", "b", alias="the matrix of maps", grid=2, make=tile_and_room,
      result=lambda *given: first_row(*given))  # fmt: skip
@cuda.jit
def another_block_writes_what_is_copied(b, b_map, maps, out, mended):
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        if t == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, b_map)
            expect_bytes(full, 0, BYTES)
            bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # WITH
        cuda.syncthreads()
        mbarrier_wait(full, 0, 0)
        out[t] = s[t]
    else:
        b[64 if mended else 63, t] = 7  # BUG


@pair("race", "global", "b", alias="the matrix of maps", make=tile_and_room,
      result=lambda *given: first_row(*given))  # fmt: skip
@cuda.jit
def a_matrix_is_overwritten_under_its_copy(b, b_map, maps, out, mended):
    """The thread that asked for the tile has passed the barrier. The engine may not have read it."""
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)
    cuda.syncthreads()
    if mended:
        mbarrier_wait(full, 0, 0)
    b[63, t] = 7  # BUG
    mbarrier_wait(full, 0, 0)
    out[t] = s[t]


def half_a_matrix(new):
    """Two tiles, of which `fill_first_tile` writes one."""
    b = new((128, 64), np.uint16)
    return b, described(b), new(16, np.uint64), zeros(64, np.uint16)


@cuda.jit
def fill_first_tile(b, b_map, maps, out, mended):
    for row in range(64):
        b[row, cuda.threadIdx.x] = 5


@pair("uninitialised_read", "shared", "s", make=half_a_matrix, before=((fill_first_tile, 1, 64),),
      result=lambda *given: 5)  # fmt: skip
@cuda.jit
def a_tile_of_what_nobody_has_written(b, b_map, maps, out, mended):
    """The engine copies whatever is there. Who uses it reads what nobody wrote."""
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, b_map)
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 32, 0, full, 0)
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    out[t] = s[t if mended else 2048 + t]  # BUG


@cuda.jit
def place_it_before(b, b_map, maps, out, mended):
    if cuda.threadIdx.x == 0:
        place_map(maps, 0, b_map)


@pair("race", "global", "maps", make=tile_and_room, before=((place_it_before, 1, 32),), result=first_row)
@cuda.jit
def a_map_that_another_warp_places(b, b_map, maps, out, mended):
    s, full = cuda.shared.array(4096, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 32:
        mbarrier_init(full, 0, 1)
    if t == 0:
        place_map(maps, 0, b_map)  # WITH
    if mended:
        cuda.syncthreads()
    if t == 32:
        expect_bytes(full, 0, BYTES)
        bulk_tile(s, 0, maps, 0, 0, 0, full, 0)  # BUG
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    out[t] = s[t]
