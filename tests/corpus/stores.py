"""Hopper's engine stores tiles: what it has been shown, what it may still be reading, and who has waited for it."""

import numpy as np

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_store,
    commit_stores,
    copies_visible,
    place_map,
    stmatrix,
    tensor_map,
    wait_stores,
)
from pmpp.simt.host.arrays import DeviceArray
from pmpp.simt.machine import engines as copy_engine

from . import pair

BOX = 1024  # elements of 16 rows of 64


def matrix(new):
    """A matrix of two boxes that nobody has written, its map, and room for the map."""
    c = new((32, 64), np.uint16)
    if isinstance(c, DeviceArray):
        words = copy_engine.words_of(copy_engine.Map(device.address(c), 32, 64, 16, 64))
    else:
        words = tensor_map(c, 16, 64)
    return words, new(32, np.uint64), c


def both_boxes(c_map, maps, c):
    row, column = np.ogrid[:32, :64]
    return (row % 16 * 64 + column).astype(np.uint16)


@cuda.jit(device=True)
def fill(s, begin, t):
    """A box whose elements are their own numbers, each chunk of 8 in its place of the swizzle."""
    for row in range(16):
        s[begin + row * 64 + (t // 8 ^ row % 8) * 8 + t % 8] = row * 64 + t  # WITH


@pair("race", "shared", "s", make=matrix, result=both_boxes)
@cuda.jit
def a_box_that_the_engine_was_not_shown(c_map, maps, c, mended):
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    if mended:
        copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # BUG
        bulk_store(maps, 0, 16, 0, s, 0)  # BUG
        commit_stores()
        wait_stores(0)


@pair("race", "shared", "s", make=matrix, result=both_boxes, helpers=(fill,))
@cuda.jit
def a_box_is_stored_before_all_have_written_it(c_map, maps, c, mended):
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    if mended:
        cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # BUG
        bulk_store(maps, 0, 16, 0, s, 0)  # BUG
        commit_stores()
        wait_stores(0)


@pair("race", "shared", "s", make=matrix, result=both_boxes)
@cuda.jit
def a_box_is_overwritten_under_its_store(c_map, maps, c, mended):
    """A barrier does not wait for the engine: it may still read when all threads have passed it."""
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # BUG
        bulk_store(maps, 0, 16, 0, s, 0)  # BUG
        commit_stores()
        if mended:
            wait_stores(0)
    cuda.syncthreads()
    s[t] = 0  # BUG


@pair("race", "shared", "s", make=matrix, result=both_boxes)
@cuda.jit
def a_wait_for_stores_that_were_not_committed(c_map, maps, c, mended):
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # BUG
        bulk_store(maps, 0, 16, 0, s, 0)  # BUG
        if mended:
            commit_stores()
        wait_stores(0)
    cuda.syncthreads()
    s[t] = 0  # BUG


@pair("race", "shared", "s", make=matrix, result=both_boxes)
@cuda.jit
def the_newest_store_is_under_way(c_map, maps, c, mended):
    """Two buffers: the first store has been read, and the second one may be under way."""
    s = cuda.shared.array(2048, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    fill(s, BOX, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)
        commit_stores()
        bulk_store(maps, 0, 16, 0, s, BOX)  # BUG
        commit_stores()
        wait_stores(1)
    cuda.syncthreads()
    s[t if mended else BOX + t] = 0  # BUG
    if t == 0:
        wait_stores(0)  # WITH


@pair("race", "shared", "s", make=matrix, result=both_boxes)
@cuda.jit
def another_thread_waits_for_the_store(c_map, maps, c, mended):
    """Groups belong to the thread that has started their stores."""
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # BUG
        bulk_store(maps, 0, 16, 0, s, 0)  # BUG
        commit_stores()
    if t == (0 if mended else 1):
        wait_stores(0)
    cuda.syncthreads()
    s[t] = 0  # BUG


@pair("race", "shared", "s", block=64, make=matrix, result=both_boxes)
@cuda.jit
def nobody_hears_that_the_box_was_read(c_map, maps, c, mended):
    """The thread that asked for the store has waited. The others learn of it at a barrier."""
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # WITH
        bulk_store(maps, 0, 16, 0, s, 0)  # WITH
        commit_stores()
        wait_stores(0)
    if mended:
        cuda.syncthreads()
    s[t] = 0  # BUG


@pair("out_of_bounds", "shared", "s", make=matrix, result=both_boxes)
@cuda.jit
def a_box_reaches_beyond_the_array(c_map, maps, c, mended):
    s = cuda.shared.array(1536, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)
        bulk_store(maps, 0, 16, 0, s, 0 if mended else 1024)  # BUG
        commit_stores()
        wait_stores(0)


@pair("race", "global", "the matrix of maps", grid=2, make=matrix, result=both_boxes)
@cuda.jit
def two_blocks_store_the_same_box(c_map, maps, c, mended):
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t, block = cuda.threadIdx.x, cuda.blockIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, block * 16, c_map)
        if mended or block == 1:
            bulk_store(maps, block * 16, block * 16, 0, s, 0)
        bulk_store(maps, block * 16, block * 16 if mended else 0, 0, s, 0)  # BUG
        commit_stores()
        wait_stores(0)


@pair("divergent_barrier", "register", "stmatrix()", block=32, make=matrix, result=both_boxes, hangs=True)
@cuda.jit
def half_a_warp_stores_matrices(c_map, maps, c, mended):
    """32 lanes hold four matrices together: lane 8 m + r says where row r of matrix m goes, here all in one column."""
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = np.uint32(cuda.threadIdx.x)
    for row in range(16):
        for k in range(2):
            column = t * np.uint32(2) + np.uint32(k)
            s[np.uint32(row * 64) + ((column // np.uint32(8)) ^ np.uint32(row % 8)) * 8 + column % 8] = (
                row * 64 + column
            )
    cuda.syncwarp()
    if mended or t < 16:
        low = t // np.uint32(4) * np.uint32(64) + t % np.uint32(4) * np.uint32(2)
        upper, lower = low | (low + 1) << np.uint32(16), (low + 512) | (low + 513) << np.uint32(16)
        row, chunk = t % np.uint32(16), np.uint32(0)
        words = (np.uint32(upper), np.uint32(lower), np.uint32(upper), np.uint32(lower))
        stmatrix(s, row * np.uint32(64) + (chunk ^ row % np.uint32(8)) * np.uint32(8), words)  # BUG
    copies_visible()
    cuda.syncwarp()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)
        bulk_store(maps, 0, 16, 0, s, 0)
        commit_stores()
        wait_stores(0)


# --------------------------------------------------------------------------- what is stored is there after the kernel


def first_box(value):
    """The first box, and another value in the rows behind it."""

    def result(c_map, maps, c):
        return np.where(np.ogrid[:32, :64][0] < 16, both_boxes(c_map, maps, c), value)

    return result


@pair("race", "shared", "s", make=matrix, result=both_boxes)
@cuda.jit
def a_thread_ends_before_its_box_was_read(c_map, maps, c, mended):
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # BUG
        bulk_store(maps, 0, 16, 0, s, 0)  # BUG
        commit_stores()
        if mended:
            wait_stores(0)


@pair("race", "global", "c", make=matrix, result=both_boxes)
@cuda.jit
def a_thread_reads_what_is_being_stored(c_map, maps, c, mended):
    """wait_stores says that the box was read, not that it is there."""
    s, seen = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(64, np.uint16)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)
        bulk_store(maps, 0, 16, 0, s, 0)
        commit_stores()
        wait_stores(0)
    cuda.syncthreads()
    seen[t] = s[t] if mended else c[0, t]  # BUG


@pair("race", "global", "c", make=matrix, result=first_box(7))
@cuda.jit
def a_thread_stores_where_the_engine_does(c_map, maps, c, mended):
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)
        commit_stores()
        wait_stores(0)
    cuda.syncthreads()
    for row in range(16 if mended else 15, 32):
        c[row, t] = 7  # BUG


@pair("race", "global", "the matrix of maps", make=matrix, result=first_box(7))
@cuda.jit
def the_engine_stores_where_a_thread_has(c_map, maps, c, mended):
    """No fence of threads says in which order their stores and those of the engine come to be there."""
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    for row in range(16 if mended else 0, 32):
        c[row, t] = 7
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)  # BUG
        commit_stores()
        wait_stores(0)


@pair("race", "global", "the matrix of maps", make=matrix, result=first_box(0))
@cuda.jit
def two_stores_of_a_thread_overlap(c_map, maps, c, mended):
    """The engine has read the first box when it is asked for the second one. Either may be there first."""
    s = cuda.shared.array(1024, np.uint16, alignment=1024)
    t = cuda.threadIdx.x
    fill(s, 0, t)
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 0, 0, s, 0)
        commit_stores()
        wait_stores(0)
    cuda.syncthreads()
    for k in range(16):
        s[64 * k + t] = 0
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        bulk_store(maps, 0, 16 if mended else 15, 0, s, 0)  # BUG
        commit_stores()
        wait_stores(0)
