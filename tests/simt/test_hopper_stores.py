"""The twins of Hopper's bulk stores and of stmatrix: layout, edges, counters, and what is refused.

Planted bugs stand in tests/corpus/stores.py.
"""

import numpy as np
import pytest

from pmpp import simt
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_store,
    bulk_tile,
    commit_stores,
    copies_visible,
    expect_bytes,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    stmatrix,
    tensor_map,
    wait_stores,
)
from pmpp.runtime.matrix import ldmatrix
from pmpp.simt import cuda
from pmpp.simt.machine import machine
from pmpp.simt.machine.machine import LEVELS

pytestmark = pytest.mark.skipif(device.on_gpu(), reason="of the interpreter")
MAPS = np.zeros(16, np.uint64)


def stored(x, c_map, maps, row, column):
    tile, t = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.threadIdx.x
    for i in range(t, 1024, 64):
        tile[i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)] = x[i // 64, i % 64]
    copies_visible()
    cuda.syncthreads()
    if t == 0:
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, row, column, tile, 0)
        commit_stores()
        wait_stores(0)


def matrix(rng, dtype=np.uint16):
    """A box, and a matrix of 37 rows of 176 bytes with a pattern that is to be kept around it."""
    x, c = rng.integers(1, 1 << 16, (16, 64)).astype(np.uint16), np.full((37, 88), 7, np.uint16)
    return x, c, device.to_device(c.view(dtype))


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("corner", [(0, 0), (8, 16), (30, 64), (-3, -8), (100, 0)])
def test_what_lies_beyond_the_edges_is_left_out(rng, corner, dtype):
    x, c, given = matrix(rng, dtype)
    arguments = x, tensor_map(given.view(np.uint16), 16, 64), cuda.device_array(16, np.uint64), *corner
    report = simt.profile(cuda.jit(stored), 1, 64, arguments, level="check")
    assert report.hazards == []
    around, (row, column) = np.full((300, 300), 7, np.uint16), corner
    around[100 + row : 116 + row, 100 + column : 164 + column] = x
    np.testing.assert_array_equal(given.copy_to_host().view(np.uint16), around[100:137, 100:188])
    assert not (c != 7).any()


def test_blocks_store_from_slices_of_their_own(rng):
    def by_blocks(x, c_map, maps):
        tiles, t, block = cuda.shared.array((2, 1024), np.uint16, alignment=1024), cuda.threadIdx.x, cuda.blockIdx.x
        for i in range(t, 1024, 64):
            tiles[block, i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)] = x[i // 64, i % 64]
        copies_visible()
        cuda.syncthreads()
        if t == 0:
            place_map(maps, 16 * block, c_map)
            bulk_store(maps[16 * block :], 0, 16 * block, 0, tiles[block], 0)
            commit_stores()
            wait_stores(0)

    x, _, given = matrix(rng)
    maps = cuda.device_array(32, np.uint64)
    report = simt.profile(cuda.jit(by_blocks), 2, 64, (x, tensor_map(given, 16, 64), maps), level="check")
    assert report.hazards == []
    np.testing.assert_array_equal(given.copy_to_host()[:32, :64], np.concatenate([x, x]))


@pytest.mark.parametrize("corner", [(0, 0), (30, 64)])
def test_a_bulk_store_is_one_request_for_the_sectors_of_its_rows(rng, corner):
    x, _, given = matrix(rng)
    (row, column), maps = corner, cuda.device_array(16, np.uint64)
    report = simt.profile(cuda.jit(stored), 1, 64, (x, tensor_map(given, 16, 64), maps, *corner))
    rows = range(row, min(row + 16, 37))
    begin, end = 2 * column, min(2 * column + 128, 176)
    sectors = set().union(*(range((176 * r + begin) // 32, (176 * r + end - 1) // 32 + 1) for r in rows))
    assert report.counters["global_store_requests"] == 1 + 16  # and a thread stores the words of the map
    assert report.counters["global_store_sectors"] == len(sectors) + 16
    assert report.counters["global_store_bytes"] == len(rows) * (end - begin) + 16 * 8


def through_shared(x, out):
    """A box of 16 rows of 32 bytes, from registers into shared memory, and back as ldmatrix reads it."""
    tile, t = cuda.shared.array(256, np.uint16, alignment=1024), np.uint32(cuda.threadIdx.x)
    at = t % np.uint32(16) * np.uint32(16) + t // np.uint32(16) * np.uint32(8)
    stmatrix(tile, at, (x[0, t], x[1, t], x[2, t], x[3, t]))
    cuda.syncwarp()
    words = ldmatrix(tile, at)
    for k in range(4):
        out[0, k, t] = words[k]
        i = t + 32 * k  # a word of two numbers
        out[1, k, t] = np.uint32(tile[2 * i]) | np.uint32(tile[2 * i + 1]) << np.uint32(16)


@pytest.mark.parametrize("level", LEVELS)
def test_stmatrix_is_ldmatrix_the_other_way_round(rng, level):
    x, out = rng.integers(0, 1 << 32, (4, 32)).astype(np.uint32), np.zeros((2, 4, 32), np.uint32)
    report = simt.profile(cuda.jit(through_shared), 1, 32, (x, out), level=level)
    assert report.hazards == []
    np.testing.assert_array_equal(out[0], x)
    # PTX ISA, "stmatrix": register k of lane 4 r + w is word w of row r of matrix k.
    rows = np.zeros((16, 8), np.uint32)
    for k, (down, along) in enumerate(((0, 0), (8, 0), (0, 4), (8, 4))):
        rows[down : down + 8, along : along + 4] = x[k].reshape(8, 4)
    np.testing.assert_array_equal(out[1].reshape(16, 8), rows)


def in_columns(out, swizzled):
    """The first chunk of 16 rows of 128 bytes, twice: in the same banks, or exchanged."""
    tile, t = cuda.shared.array(1024, np.uint16, alignment=1024), np.uint32(cuda.threadIdx.x)
    chunk = t // np.uint32(16) ^ (t % np.uint32(8) if swizzled else np.uint32(0))
    stmatrix(tile, t % np.uint32(16) * np.uint32(64) + chunk * np.uint32(8), (t, t, t, t))
    out[0] = 1


def test_wavefronts_of_stmatrix():
    """Four matrices of 8 rows of 16 bytes: each needs all banks once, or 8 times if its rows lie in the same ones."""
    waves = {}
    for swizzled in (True, False):
        report = simt.profile(cuda.jit(in_columns), 1, 32, (np.zeros(1, np.uint16), swizzled))
        waves[swizzled] = report.counters["shared_store_wavefronts"]
    assert waves == {True: 4, False: 32}


# -- what is stored is there when the kernel has ended ---------------------------------------------------------------


def messages(kernel, grid, block, arguments, **options):
    report = simt.profile(cuda.jit(kernel), grid, block, arguments, level="check", collect=True, **options)
    return [hazard.message for hazard in report.hazards]


def used(c_map, maps, c, how):
    """A box of 1 is stored at row 16, and its thread uses some of it by itself, as `how` says."""
    tile, t = cuda.shared.array(2048, np.uint16, alignment=1024), cuda.threadIdx.x
    full, other = cuda.shared.array(1, np.uint64), cuda.shared.array(1024, np.uint16, alignment=1024)
    if t == 0:
        for k in range(2048):
            tile[k] = 1 + (k >= 1024)
        copies_visible()
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, c_map)
        bulk_store(maps, 0, 16, 0, tile, 0)
        commit_stores()
        wait_stores(0)
        if how == 0:  # what is there already
            bulk_store(maps, 0, 16, 0, tile, 0)
            c[16, 0] = 1
        elif how == 1:  # another value
            bulk_store(maps, 0, 16, 0, tile, 1024)
        elif how == 2:
            cuda.atomic.add(c.view(np.uint32), (16, 0), 1)
        elif how == 3:  # elsewhere
            bulk_store(maps, 0, 0, 0, tile, 1024)
            c[32, 0] = c[33, 0]
        else:
            expect_bytes(full, 0, 2048)
            bulk_tile(other, 0, maps, 0, 17 if how == 4 else 0, 0, full, 0)
            mbarrier_wait(full, 0, 0)
        commit_stores()
        wait_stores(0)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (0, ""),
        (1, "writes an element of the matrix of maps that the bulk_store of thread 0 of block 0"),
        (2, "updates an element of c.view(np.uint32) that the bulk_store of thread 0 of block 0"),
        (3, ""),
        (4, "reads an element of the matrix of maps that the bulk_store of thread 0 of block 0"),
        (5, ""),
    ],
)
def test_even_its_own_thread_does_not_find_it(how, told):
    given = device.to_device(np.zeros((40, 64), np.uint16))
    found = messages(used, 1, 32, (tensor_map(given, 16, 64), cuda.device_array(16, np.uint64), given, how))
    assert len(found) == bool(told), found
    assert all(told in message for message in found)


def test_stores_in_a_loop_whose_threads_leave_one_by_one():
    """Such lanes are not gathered into a batch of their own, which has other groups of stores."""

    def many(c_map, maps):
        tile, t = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.threadIdx.x
        for k in range(16):
            tile[64 * k + t] = 3
        copies_visible()
        cuda.syncthreads()
        if t == 0:
            place_map(maps, 0, c_map)
        cuda.syncthreads()
        k = t
        while k < 4 * (t < 2):
            bulk_store(maps, 0, 16 * k, 0, tile, 0)
            commit_stores()
            wait_stores(0)
            k += 2

    for when in machine.GATHERING:
        given = device.to_device(np.zeros((64, 64), np.uint16))
        with machine.gathering(when):
            assert messages(many, 1, 64, (tensor_map(given, 16, 64), cuda.device_array(16, np.uint64))) == []
        assert (device.to_host(given) == 3).all()


@pytest.mark.parametrize("schedule", ["lockstep", "blocks", "warps", "lanes", "shuffled"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_store_that_is_left_is_told_under_every_schedule(waits, schedule):
    def leaves(c_map, maps, out, waits):
        tile, t = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.threadIdx.x
        if t == 33:
            for k in range(1024):
                tile[k] = 3
            copies_visible()
            place_map(maps, cuda.blockIdx.x * 16, c_map)
            bulk_store(maps, cuda.blockIdx.x * 16, cuda.blockIdx.x * 16, 0, tile, 0)
            commit_stores()
            if waits:
                wait_stores(0)
            return
        out[cuda.grid(1)] = t

    given = device.to_device(np.zeros((32, 64), np.uint16))
    arguments = tensor_map(given, 16, 64), cuda.device_array(32, np.uint64), np.zeros(128, np.int32), waits
    found = messages(leaves, 2, 64, arguments, schedule=schedule)
    assert len(found) == (not waits), found
    assert all("thread 33 of block" in m and "ends and has not waited with wait_stores(0)" in m for m in found)


# -- what is refused -------------------------------------------------------------------------------------------------


def refused(kernel, *arguments, match):
    with pytest.raises(simt.SimtError, match=match):
        cuda.jit(kernel)[1, 32](*arguments)


def test_a_store_without_a_map_or_from_elsewhere():
    def no_map(maps):
        bulk_store(maps, 0, 0, 0, cuda.shared.array(1024, np.uint16, alignment=1024), 0)

    refused(no_map, MAPS, match=r"bulk_store: no tensor map lies at maps\[0\]: place_map puts one there")

    def of_global_memory(maps, x):
        bulk_store(maps, 0, 0, 0, x, 0)

    refused(of_global_memory, MAPS, np.zeros(1024, np.uint16), match="bulk_store: shared must be in shared memory")


def test_a_box_begins_at_a_multiple_of_1024_bytes(rng):
    def moved(c_map, maps):
        tile = cuda.shared.array(2048, np.uint16, alignment=1024)
        if cuda.threadIdx.x == 0:
            place_map(maps, 0, c_map)
            bulk_store(maps, 0, 0, 0, tile, 64)

    given = matrix(rng)[2]
    refused(
        moved,
        tensor_map(given, 16, 64),
        MAPS.copy(),
        match=r"bulk_store: tile\[64\] does not begin at a multiple of 1024 bytes",
    )


def test_a_matrix_that_was_freed(rng):
    def stores(c_map, maps):
        tile = cuda.shared.array(1024, np.uint16, alignment=1024)
        if cuda.threadIdx.x == 0:
            place_map(maps, 0, c_map)
            bulk_store(maps, 0, 0, 0, tile, 0)

    given = matrix(rng)[2]
    words = tensor_map(given, 16, 64)
    del given
    refused(stores, words, MAPS.copy(), match=r"bulk_store: the matrix of this tensor map is no live array")


def test_what_numba_refuses_is_refused():
    def wait_for_a_variable(x):
        wait_stores(x.size)

    refused(wait_for_a_variable, MAPS, match="wait_stores: n must be a literal, an integer from 0 to 7")

    def too_few_words(x):
        stmatrix(cuda.shared.array(64, np.uint16), 0, (np.uint32(0), np.uint32(0)))

    refused(too_few_words, MAPS, match=r"stmatrix: words must be a tuple of 4 uint32, was \(uint32, uint32\)")

    def a_float(maps):
        bulk_store(maps, 0, 0.5, 0, cuda.shared.array(1024, np.uint16, alignment=1024), 0)

    refused(a_float, MAPS, match="bulk_store: row must be one integer, was float64")
