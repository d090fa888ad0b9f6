"""The twins of Hopper's engines: layout, schedules, counters, and what is refused.

Planted bugs stand in tests/corpus/engines.py.
"""

import inspect

import numpy as np
import pytest

from pmpp import simt
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_store,
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
from pmpp.runtime.hopper_registers import fewer_registers, more_registers, wgmma_f16_kept
from pmpp.simt import cuda
from pmpp.simt.machine import engines
from pmpp.simt.machine.machine import LEVELS, gathering
from pmpp.simt.values import tensor_cores
from tests.corpus import pairs

pytestmark = pytest.mark.skipif(device.on_gpu(), reason="of the interpreter")
NOTHING = (np.float32(0),) * 32
HALVES = np.zeros(64, np.uint16)
HALVES_OF_TILE = np.zeros(4096, np.uint16)


@pytest.mark.parametrize("registers", [32, 64, 96, 128])
def test_the_registers_of_a_warp_are_its_rows(registers):
    columns = tensor_cores.TILE_COLUMNS[registers]
    tile = np.arange(16 * columns, dtype=np.float32).reshape(1, 16, columns)
    held = tensor_cores.registers_of(tile)
    assert sorted(held.reshape(-1)) == list(range(16 * columns))
    np.testing.assert_array_equal(tensor_cores.tile_of(held), tile)
    # PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16": as of mma.sync, eight columns after the other
    for lane, register in ((0, 0), (5, 3), (31, registers - 1)):
        ((row, column),) = simt.fragment("mma_f16", "c", lane, register % 4)
        assert held[0, lane, register] == row * columns + register // 4 * 8 + column


def test_a_swizzle_exchanges_the_chunks_of_a_row_and_leads_back():
    address = np.arange(4096, dtype=np.int64)
    moved = engines.swizzled(address)
    assert sorted(moved) == list(range(4096))
    np.testing.assert_array_equal(moved // 128, address // 128)
    np.testing.assert_array_equal(moved % 16, address % 16)
    np.testing.assert_array_equal(engines.swizzled(moved), address)
    assert engines.swizzled(np.int64(3 * 128 + 5 * 16)) == 3 * 128 + (5 ^ 3) * 16


def line_of(function, text):
    """The line of the file on which a function has this text, which it has once."""
    lines, first = inspect.getsourcelines(getattr(function, "py_func", function))
    (found,) = (first + k for k, each in enumerate(lines) if text in each)
    return found


def refused(kernel, *arguments, block=128, match):
    with pytest.raises(simt.SimtError, match=match):
        cuda.jit(kernel)[1, block](*arguments)


# -- bulk copies and barriers ----------------------------------------------------------------------------------------


def copied(x_map, maps, out, row, column):
    tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 16, x_map)
        expect_bytes(full, 0, 2048)
        bulk_tile(tile, 0, maps, 16, row, column, full, 0)
    cuda.syncthreads()
    mbarrier_wait(full, 0, 0)
    for i in range(t, 1024, 64):
        out[i // 64, i % 64] = tile[i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)]


@pytest.mark.parametrize("corner", [(0, 0), (8, 16), (30, 64), (-3, -8), (100, 0)])
def test_a_box_has_zeros_beyond_the_edges(rng, corner):
    x = rng.integers(1, 1 << 16, (37, 88)).astype(np.uint16)
    given, out = device.to_device(x), np.ones((16, 64), np.uint16)
    arguments = tensor_map(given, 16, 64), cuda.device_array(32, np.uint64), out, *corner
    report = simt.profile(cuda.jit(copied), 1, 64, arguments, level="check")
    assert report.hazards == []
    around = np.zeros((300, 300), np.uint16)
    around[100:137, 100:188] = x
    row, column = corner
    np.testing.assert_array_equal(out, around[100 + row : 116 + row, 100 + column : 164 + column])


def test_a_bulk_copy_is_one_request_for_the_sectors_of_its_rows():
    given = device.to_device(np.ones((37, 88), np.uint16))
    arguments = tensor_map(given, 16, 64), cuda.device_array(32, np.uint64), np.zeros((16, 64), np.uint16), 0, 0
    report = simt.profile(cuda.jit(copied), 1, 64, arguments)
    assert report.counters["global_load_requests"] == 1
    # Rows of 176 bytes: of every second one the 128 bytes begin in the middle of a sector, and 14 more end in one.
    rows = [set(range(176 * row // 32, (176 * row + 127) // 32 + 1)) for row in range(16)]
    assert report.counters["global_load_sectors"] == len(set().union(*rows))
    assert report.counters["global_load_bytes"] == 2048


def relay(out, n):
    """Two warps take turns: one writes, the other one adds up."""
    value, ready, taken = (
        cuda.shared.array(1, np.int32),
        cuda.shared.array(1, np.uint64),
        cuda.shared.array(1, np.uint64),
    )
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(ready, 0, 1)
        mbarrier_init(taken, 0, 1)
    cuda.syncthreads()
    if t == 0:
        for i in range(n):
            mbarrier_wait(taken, 0, 1 - i % 2)
            value[0] = i
            mbarrier_arrive(ready, 0)
    elif t == 32:
        total = 0
        for i in range(n):
            mbarrier_wait(ready, 0, i % 2)
            total += value[0]
            mbarrier_arrive(taken, 0)
        out[0] = total


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("schedule", ["auto", "warps", "shuffled"])
def test_warps_hand_over_by_mbarriers_without_a_race(level, schedule):
    out = np.zeros(1, np.int64)
    report = simt.profile(cuda.jit(relay), 1, 64, (out, 9), level=level, schedule=schedule, collect=True)
    assert [hazard.message for hazard in report.hazards] == []
    assert out[0] == 36


@pytest.mark.parametrize("level", LEVELS)
def test_lanes_mean_different_slices_and_numbers(rng, level):
    """Two lanes: barriers, arrays and maps of their own, and numbers that differ."""

    def by_lanes(x_map, maps, out):
        tiles = cuda.shared.array((2, 16, 64), np.uint16, alignment=1024)
        bars = cuda.shared.array(2, np.uint64)
        t = cuda.threadIdx.x
        if t < 2:
            place_map(maps, 16 * t, x_map)
            mbarrier_init(bars, t, 1 if t == 0 else 65)
        cuda.syncthreads()
        if t < 2:
            expect_bytes(bars, t, 2048 if t == 0 else 4096)
            bulk_tile(tiles[t], 0, maps[16 * t :], 0, 16 * t, 0, bars[t:], 0)
        if t == 1:
            bulk_tile(tiles[t], 0, maps[16 * t :], 0, 16 * t, 0, bars[t:], 0)
        mbarrier_arrive(bars, 1)
        for k in range(2):
            mbarrier_wait(bars, k, 0)
            out[k, t] = tiles[k, 0, t]

    x, out = rng.integers(1, 1 << 16, (32, 64)).astype(np.uint16), np.zeros((2, 64), np.uint16)
    given = device.to_device(x)
    arguments = tensor_map(given, 16, 64), cuda.device_array(32, np.uint64), out
    hazards = simt.profile(cuda.jit(by_lanes), 1, 64, arguments, level=level, collect=True).hazards
    assert {hazard.variable for hazard in hazards} <= {"tiles[t]"}  # the second copy goes where the first does
    np.testing.assert_array_equal(out, x[::16])


def test_whose_mbarrier_says_nothing_of_another_thread_is_a_race():
    def other(out, right):
        value, bars = cuda.shared.array(2, np.int32), cuda.shared.array(2, np.uint64)
        t = cuda.threadIdx.x
        if t < 2:
            mbarrier_init(bars, t, 1)
        cuda.syncthreads()
        if t in (0, 32):
            value[t // 32] = t
            mbarrier_arrive(bars, t // 32)
        elif t == 64:
            mbarrier_wait(bars, 1 if right else 0, 0)
            out[0] = value[1]

    for right in (True, False):
        report = simt.profile(cuda.jit(other), 1, 96, (np.zeros(1, np.int32), right), level="check", collect=True)
        assert [hazard.kind for hazard in report.hazards] == ([] if right else ["race"])


@pytest.mark.parametrize("level", LEVELS)
def test_two_sums_are_under_way(level):
    def squares(x, out, both):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        for i in range(cuda.threadIdx.x, 4096, 128):
            at = i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)
            tile[at], tile[4096 + at] = x[i], x[i]
        copies_visible()
        cuda.syncthreads()
        wgmma_fence()
        one = wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 4096, 4096), NOTHING)
        two = wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 4096, 4096), NOTHING)
        two = wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 4096, 4096), two)
        wgmma_commit()
        one = wgmma_wait(0, one)
        if both:
            two = wgmma_wait(0, two)
        out[cuda.threadIdx.x, 0], out[cuda.threadIdx.x, 1] = one[1], two[1]

    x, out = np.arange(4096) % 5, np.zeros((128, 2), np.float32)
    given = x.astype(np.float16).view(np.uint16)
    for both in (True, False):
        report = simt.profile(cuda.jit(squares), 1, 128, (given, out, both), level=level, collect=True)
        assert {hazard.variable for hazard in report.hazards} == ({"two"} if level == "check" and not both else set())
        exact = x.reshape(64, 64)[:, :16].astype(float) @ x.reshape(64, 64)[:16]
        np.testing.assert_array_equal(out[:32, 0], exact[np.arange(32) // 4, np.arange(32) % 4 * 2 + 1])
        if both:
            np.testing.assert_array_equal(out[:, 1], 2 * out[:, 0])


# -- who knows that a bulk copy is done ------------------------------------------------------------------------------


def messages(kernel, grid, block, arguments, **options):
    report = simt.profile(cuda.jit(kernel), grid, block, arguments, level="check", collect=True, **options)
    return [hazard.message for hazard in report.hazards]


def box_of(rows=16):
    """A matrix on the device, and its map with boxes of 16 rows."""
    given = device.to_device(np.ones((rows, 64), np.uint16))
    return given, tensor_map(given, 16, 64)


@pytest.mark.parametrize("schedule", ["warps", "shuffled"])
@pytest.mark.parametrize("waits", [True, False])
def test_who_hears_of_it_by_a_flag_need_not_wait_himself(waits, schedule):
    def by_a_flag(x_map, maps, flag, out, waits):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, x_map)
        cuda.syncthreads()
        if t == 0:
            expect_bytes(full, 0, 2048)
            bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)
            if waits:
                mbarrier_wait(full, 0, 0)
            cuda.threadfence_block()
            cuda.atomic.exch(flag, 0, 1)
            mbarrier_wait(full, 0, 0)
        elif t == 32:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
            out[0] = tile[0]

    _kept, words = box_of()
    arguments = words, cuda.device_array(16, np.uint64), np.zeros(1, np.int32), np.zeros(1, np.uint16), waits
    found = messages(by_a_flag, 1, 64, arguments, schedule=schedule)
    assert len(found) == (0 if waits else 1), found
    assert all("no mbarrier_wait has told this thread that it is done" in message for message in found)


@pytest.mark.parametrize("asks", [0, 5])
def test_any_lane_of_those_that_waited_may_say_so(asks):
    def by_a_lane(x_map, maps, flag, out, asks):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, x_map)
        cuda.syncthreads()
        if t < 32:
            if t == asks:
                expect_bytes(full, 0, 2048)
                bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)
            mbarrier_wait(full, 0, 0)
            if t == 5:
                cuda.threadfence_block()
                cuda.atomic.exch(flag, 0, 1)
        elif t == 32:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence_block()
            out[0] = tile[0]

    _kept, words = box_of()
    arguments = words, cuda.device_array(16, np.uint64), np.zeros(1, np.int32), np.zeros(1, np.uint16), asks
    assert messages(by_a_lane, 1, 64, arguments) == []


@pytest.mark.parametrize("waits", [True, False])
def test_another_block_overwrites_a_matrix_when_it_is_told(waits):
    def by_a_flag(x, x_map, maps, flag, waits):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        if t == 0 and cuda.blockIdx.x == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, x_map)
            expect_bytes(full, 0, 2048)
            bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)
            if waits:
                mbarrier_wait(full, 0, 0)
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            mbarrier_wait(full, 0, 0)
        elif t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            x[3, 5] = 7

    given, words = box_of()
    arguments = given, words, cuda.device_array(16, np.uint64), np.zeros(1, np.int32), waits
    found = messages(by_a_flag, 2, 32, arguments)
    assert len(found) == (0 if waits else 1), found
    assert all("writes an element of x that the bulk_tile of thread 0 of block 0" in message for message in found)


@pytest.mark.parametrize("round_", [0, 1])
def test_a_phase_is_not_known_from_the_phase_before(round_):
    """Two tiles, one after the other: who waits for the first phase again knows nothing of the second tile."""

    def twice(x_map, maps, out, round_):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, x_map)
        cuda.syncthreads()
        mbarrier_wait(full, 0, 1)
        for k in range(2):
            if t == 0:
                expect_bytes(full, 0, 2048)
                bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)
            if k == 0 or round_ == 1:
                mbarrier_wait(full, 0, k)
            cuda.syncthreads()
            out[k, t] = tile[t]
            cuda.syncthreads()
        mbarrier_wait(full, 0, 1)

    _kept, words = box_of()
    arguments = words, cuda.device_array(16, np.uint64), np.zeros((2, 64), np.uint16), round_
    found = messages(twice, 1, 64, arguments)
    assert len(found) == (1 if round_ == 0 else 0), found


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.complex64])
def test_of_what_nobody_wrote_only_that_is_told(dtype):
    """A box of which some rows were written, in memory of another type: these are used without a word."""

    def writes(x):
        for k in range(cuda.threadIdx.x, 1024 // x.itemsize, 32):
            x[k] = 1

    def reads(x_map, maps, out, row):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, x_map)
            expect_bytes(full, 0, 2048)
            bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)
        cuda.syncthreads()
        mbarrier_wait(full, 0, 0)
        out[t] = tile[64 * row + t]

    whole = cuda.device_array(2048 // np.dtype(dtype).itemsize, dtype)
    assert messages(writes, 1, 32, (whole,)) == []
    words = tensor_map(whole.view(np.uint16).reshape(16, 64), 16, 64)
    for row in range(16):
        arguments = words, cuda.device_array(16, np.uint64), np.zeros(64, np.uint16), row
        found = messages(reads, 1, 64, arguments)
        assert len(found) == (row >= 8), (row, found)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_marks_of_the_engine_follow_memory_that_is_seen_otherwise(dtype):
    """A matrix that a bulk copy reads is written, before the copy is done, as numbers of another type."""

    def as_others(x_map, maps, x, at, waits):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        if t == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, x_map)
            expect_bytes(full, 0, 2048)
            bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)
            if waits:
                mbarrier_wait(full, 0, 0)
            x[at] = 1
            mbarrier_wait(full, 0, 0)

    given, words = box_of(rows=32)
    x = given.view(dtype).reshape(-1)
    size = np.dtype(dtype).itemsize
    for at, waits, told in ((2047 // size, False, 1), (2048 // size, False, 0), (2047 // size, True, 0)):
        found = messages(as_others, 1, 32, (words, cuda.device_array(16, np.uint64), x, at, waits))
        assert len(found) == told, (at, found)


def test_a_box_beyond_the_matrix_reads_nothing():
    def beyond(x, x_map, maps, out):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        x[0, t] = 5
        cuda.syncthreads()
        if t == 0:
            mbarrier_init(full, 0, 1)
            place_map(maps, 0, x_map)
            expect_bytes(full, 0, 2048)
            bulk_tile(tile, 0, maps, 0, 100, 0, full, 0)
        cuda.syncthreads()
        mbarrier_wait(full, 0, 0)
        out[t] = tile[t]

    given = cuda.device_array((16, 64), np.uint16)
    out = np.ones(64, np.uint16)
    assert messages(beyond, 1, 64, (given, tensor_map(given, 16, 64), cuda.device_array(16, np.uint64), out)) == []
    assert not out.any()


def test_what_the_producer_heard_of_others_it_tells_with_a_tile():
    """It expects the bytes first, and then waits until a stage is empty: whoever has the tile knows that, too."""

    def in_this_order(x_map, maps, out):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        empty, t = cuda.shared.array(1, np.uint64), cuda.threadIdx.x
        if t == 0:
            mbarrier_init(full, 0, 1)
            mbarrier_init(empty, 0, 1)
            place_map(maps, 0, x_map)
        cuda.syncthreads()
        if t == 0:
            expect_bytes(full, 0, 2048)
            mbarrier_wait(empty, 0, 0)
            bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)
        elif t == 32:
            tile[3] = 9
            copies_visible()
            mbarrier_arrive(empty, 0)
        elif t == 64:
            mbarrier_wait(full, 0, 0)
            out[0] = tile[3]

    _kept, words = box_of()
    assert messages(in_this_order, 1, 96, (words, cuda.device_array(16, np.uint64), np.zeros(1, np.uint16))) == []


# -- products: whose operands, and whose sums ------------------------------------------------------------------------


@cuda.jit(device=True)
def show(tile, x):
    """A matrix of 64 x 64 twice in a tile, swizzled, and shown to the engines."""
    for i in range(cuda.threadIdx.x, 4096, cuda.blockDim.x):
        at = i // 64 * 64 + (i % 64 ^ i // 64 % 8 * 8)
        tile[at], tile[4096 + at] = x[i], x[i]
    copies_visible()
    cuda.syncthreads()
    wgmma_fence()


@cuda.jit(device=True)
def start(tile, sums):
    """A product of the first 16 columns and rows."""
    return wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 4096, 4096), sums)


def small(rng, shape=4096):
    return rng.integers(-3, 4, shape).astype(np.float16)


def first_sums(x):
    """What the first of the sums of 128 threads are."""
    t, x = np.arange(128), x.reshape(64, 64).astype(float)
    return (x[:, :16] @ x[:16])[t // 32 * 16 + t % 32 // 4, t % 4 * 2]


@pytest.mark.parametrize("schedule", ["auto", "warps"])
@pytest.mark.parametrize(("grid", "block"), [(2, 128), (1, 256)])
def test_warps_multiply_operands_in_different_arrays(rng, schedule, grid, block):
    def either(x, y, out):
        one = cuda.shared.array(8192, np.uint16, alignment=1024)
        two = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(one, x)
        show(two, y)
        a, b = tile_descriptor(one, 0, 0), tile_descriptor(one, 4096, 4096)
        group = cuda.grid(1) // 128
        if group == 1:
            a, b = tile_descriptor(two, 0, 0), tile_descriptor(two, 4096, 4096)
        sums = wgmma_f16(a, b, NOTHING)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        out[cuda.grid(1)] = sums[0]

    x, y, out = small(rng), small(rng), np.zeros(256, np.float32)
    arguments = x.view(np.uint16), y.view(np.uint16), out
    report = simt.profile(cuda.jit(either), grid, block, arguments, level="check", schedule=schedule, collect=True)
    assert [hazard.message for hazard in report.hazards] == []
    np.testing.assert_array_equal(out, np.concatenate([first_sums(x), first_sums(y)]))


def test_four_warps_give_one_descriptor(rng):
    def two_of_them(x):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(tile, x)
        at = 16 * (cuda.threadIdx.x // 64)
        wgmma_f16(tile_descriptor(tile, at, 0), tile_descriptor(tile, 4096, 4096), NOTHING)

    refused(two_of_them, HALVES_OF_TILE, match="the four warps that multiply together must give one descriptor a")

    def by_hand(x):
        wgmma_fence()
        wgmma_f16(np.uint64(0), np.uint64(0), NOTHING)

    refused(by_hand, HALVES, match="wgmma_f16: a must be a descriptor that tile_descriptor gives, was 0x0")


@pytest.mark.parametrize("how", [0, 1, 2])
def test_what_the_engines_have_not_been_shown(how):
    """By a store, by an atomic, and by an atomic while the product is under way."""

    def changed(x, how):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        words = tile.view(np.uint32)
        show(tile, x)
        if how == 0:
            words[cuda.threadIdx.x] = 0
        elif how == 1:
            cuda.atomic.add(words, cuda.threadIdx.x, np.uint32(7))
        cuda.syncthreads()
        sums = start(tile, NOTHING)
        if how == 2:
            cuda.atomic.add(words, cuda.threadIdx.x, np.uint32(7))
        wgmma_commit()
        wgmma_wait(0, sums)

    report = simt.profile(cuda.jit(changed), 1, 128, (HALVES_OF_TILE, how), level="check", collect=True)
    why = "its warp has not waited for it with wgmma_wait" if how == 2 else "has not shown to the engines"
    assert why in report.hazards[0].message


def read_after_a_wait_whose_result_is_dropped(x, out):
    tile = cuda.shared.array(8192, np.uint16, alignment=1024)
    show(tile, x)
    sums = start(tile, NOTHING)
    wgmma_commit()
    wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = max(sums[0], np.float32(0))


def unpacked(x, out):
    tile = cuda.shared.array(8192, np.uint16, alignment=1024)
    show(tile, x)
    sums = start(tile, NOTHING)
    wgmma_commit()
    first, second = sums[:2]
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = first + second


def looped_over(x, out):
    tile = cuda.shared.array(8192, np.uint16, alignment=1024)
    show(tile, x)
    sums = start(tile, NOTHING)
    wgmma_commit()
    total = np.float32(0)
    for each in sums:
        total += each
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = total


def looked_up(x, out):
    tile = cuda.shared.array(8192, np.uint16, alignment=1024)
    show(tile, x)
    sums = start(tile, NOTHING)
    wgmma_commit()
    chosen = sums[cuda.threadIdx.x % 32]
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = chosen


def at_once(x, out):
    tile = cuda.shared.array(8192, np.uint16, alignment=1024)
    show(tile, x)
    sums = start(tile, NOTHING)
    wgmma_commit()
    total, most = sum(sums), max(sums)
    sums = wgmma_wait(0, sums)
    out[cuda.threadIdx.x] = total + most


@pytest.mark.parametrize(
    "kernel", [read_after_a_wait_whose_result_is_dropped, unpacked, looped_over, looked_up, at_once]
)
def test_sums_that_no_wait_has_given(kernel):
    arguments = HALVES_OF_TILE, np.zeros(128, np.float32)
    report = simt.profile(cuda.jit(kernel), 1, 128, arguments, level="check", collect=True)
    messages = [hazard.message for hazard in report.hazards]
    assert messages
    assert all("while its product is under way: wgmma_wait returns the sums" in m for m in messages)


def test_sums_are_given_once_and_whole():
    def to_two_products(x):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(tile, x)
        sums = start(tile, NOTHING)
        start(tile, sums)
        start(tile, sums)

    once = "sums must be sums that were not used before: a product or wgmma_wait has been given these"
    refused(to_two_products, HALVES_OF_TILE, match=f"wgmma_f16: {once}")

    def to_a_product_and_a_wait(x):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(tile, x)
        sums = start(tile, NOTHING)
        start(tile, sums)
        wgmma_commit()
        wgmma_wait(0, sums)

    refused(to_a_product_and_a_wait, HALVES_OF_TILE, match=f"wgmma_wait: {once}")

    def mixed(x):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(tile, x)
        one, two = start(tile, NOTHING), start(tile, NOTHING)
        wgmma_commit()
        wgmma_wait(0, one[:16] + two[16:])

    refused(mixed, HALVES_OF_TILE, match="must be all sums of one product, or numbers: element 16 is of another kind")

    def half_of_them(x):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(tile, x)
        sums = wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 0, 4096), NOTHING + NOTHING)
        wgmma_commit()
        wgmma_wait(0, sums[32:])

    refused(half_of_them, HALVES_OF_TILE, match=r"wgmma_wait: sums\[32:\] must be all 64 sums of a product, was 32")

    def a_number_like_a_ticket(x, y):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(tile, x)
        v = y[0]
        start(tile, NOTHING[:31] + (v,))  # noqa: RUF005 (Numba does not compile it)

    same = np.full(1, 0x7FB00005, np.uint32).view(np.float32)
    refused(a_number_like_a_ticket, HALVES_OF_TILE, same, match="must be all sums of one product, or numbers")

    def only_such_numbers(x, y):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        show(tile, x)
        v = y[0]
        four = (v, v, v, v)
        sums = four + four + four + four
        start(tile, sums + sums)

    refused(only_such_numbers, HALVES_OF_TILE, same, match="it holds 0x7fb00005, a NaN that stands for another product")


# -- what is refused -------------------------------------------------------------------------------------------------


def test_who_waits_for_ever_is_told():
    def waits(out):
        bars = cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, 2)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            mbarrier_arrive(bars, 0)
        mbarrier_wait(bars, 0, 0)

    waits_at = r"thread 0 of block 0 waits at bars\[0\] for the end of phase 0"
    refused(waits, HALVES, match=f"{waits_at}, which lacks 1 of 2 arrivals; the other threads of its warp")

    def expects(nbytes, x_map, maps):
        tile, bars = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, 2)
            place_map(maps, 0, x_map)
            expect_bytes(bars, 0, nbytes)
            bulk_tile(tile, 0, maps, 0, 0, 0, bars, 0)
            if nbytes < 2048:
                mbarrier_arrive(bars, 0)
        cuda.syncthreads()
        mbarrier_wait(bars, 0, 0)

    given = device.to_device(np.ones((37, 88), np.uint16))
    arguments = tensor_map(given, 16, 64), cuda.device_array(16, np.uint64)
    refused(expects, 4096, *arguments, match=f"{waits_at}, which lacks 1 of 2 arrivals and 2,048 bytes")
    refused(expects, 2032, *arguments, match=f"{waits_at}, which has 16 bytes more than were expected")


def test_one_arrival_too_many_is_told():
    def arrives(out):
        bars = cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, 3)
        cuda.syncthreads()
        mbarrier_arrive(bars, 0)

    refused(arrives, HALVES, block=32, match=r"thread 31 of block 0 arrives at bars\[0\], whose phase has had its 3")


def test_an_mbarrier_is_initialised_once():
    def again(out):
        bars = cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, 2)
            mbarrier_arrive(bars, 0)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, 1)

    line = again.__code__.co_firstlineno + 3
    refused(again, HALVES, match=rf"mbarrier_init: bars\[0\] is initialised already \(line {line}\)")

    def in_each_block(out):
        bars = cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, 1)
            mbarrier_arrive(bars, 0)
        cuda.syncthreads()
        mbarrier_wait(bars, 0, 0)
        out[cuda.blockIdx.x] = 1

    for schedule in ("auto", "blocks", "warps"):
        out = np.zeros(64, np.uint16)
        assert simt.profile(cuda.jit(in_each_block), 64, 64, (out,), level="check", schedule=schedule).hazards == []
        assert out.all()


def test_numbers_that_an_mbarrier_does_not_take():
    def initialises(count):
        bars = cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, count)

    refused(initialises, 0, match="mbarrier_init: count must be from 1 to 1,048,575, was 0")

    def two_counts(out):
        mbarrier_init(cuda.shared.array(1, np.uint64), 0, 1 + cuda.threadIdx.x)

    with pytest.raises(simt.SimtError, match="count must be the same in all threads that initialise"):
        simt.profile(cuda.jit(two_counts), 1, 32, (HALVES,), level="run")

    def uses(nbytes, parity):
        bars = cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bars, 0, 1)
            expect_bytes(bars, 0, nbytes)
        cuda.syncthreads()
        mbarrier_wait(bars, 0, parity)

    for nbytes in (-16, 1 << 20):
        refused(uses, nbytes, 0, match=f"expect_bytes: bytes must be from 0 to 1,048,575, was {nbytes:,}")
    for parity in (-1, 2, 7):
        refused(uses, 0, parity, match=f"mbarrier_wait: parity must be from 0 to 1, was {parity}")
    cuda.jit(uses)[1, 64](0, 0)


def test_a_barrier_that_nobody_initialised():
    def arrives(out):
        bars = cuda.shared.array(1, np.uint64)
        mbarrier_arrive(bars, 0)

    refused(arrives, HALVES, match="reads an element of bars that nothing has written")


def test_a_descriptor_begins_in_the_first_row_of_a_swizzle():
    def in_the_second_row(out):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        tile_descriptor(tile, 64, 0)

    refused(in_the_second_row, HALVES, match=r"tile_descriptor: tile\[64\] is no chunk in the first of 8 rows")

    def between_chunks(out):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        tile_descriptor(tile, 4, 0)

    refused(between_chunks, HALVES, match=r"tile_descriptor: tile\[4\] is no chunk")

    def in_global_memory(x):
        tile_descriptor(x, 0, 0)

    refused(in_global_memory, HALVES, match="tile_descriptor: shared must be in shared memory; it is in global memory")


@pytest.mark.parametrize("apart", [4097, 8, -4096, 1 << 17])
def test_panels_begin_where_the_pattern_does(apart):
    def describes(apart):
        tile_descriptor(cuda.shared.array(8192, np.uint16, alignment=1024), 0, apart)

    of = f"apart must be 0 or a multiple of 512 elements, less than 131,072, was {apart:,}"
    refused(describes, apart, match=f"tile_descriptor: {of}")
    cuda.jit(describes)[1, 128]((1 << 17) - 512)


def test_where_a_map_may_be():
    given = device.to_device(np.ones((37, 88), np.uint16))
    words = tensor_map(given, 16, 64)

    def places(x_map, maps, j):
        if cuda.threadIdx.x == 0:
            place_map(maps, j, x_map)

    refused(
        places, words, np.zeros(64, np.uint64), 3, match="place_map: j must lead to a multiple of 16 words; .* to 3"
    )

    def in_shared_memory(x_map):
        place_map(cuda.shared.array(16, np.uint64), 0, x_map)

    refused(in_shared_memory, words, match="place_map: maps must be in global memory; it is in shared memory")


@pytest.mark.parametrize("row", [np.uint64(2**64 - 3), 1 << 31])
def test_a_corner_is_given_as_32_bits(row):
    given = device.to_device(np.ones((37, 88), np.uint16))
    arguments = tensor_map(given, 16, 64), np.zeros(32, np.uint64), np.ones((16, 64), np.uint16), row, 0
    refused(copied, *arguments, block=64, match=f"bulk_tile: row must be from -2147483648 to 2147483647, was {row}")


def test_a_copy_without_a_map():
    def copies(maps):
        tile, full = cuda.shared.array(1024, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        if cuda.threadIdx.x == 0:
            mbarrier_init(full, 0, 1)
            bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)

    refused(copies, np.zeros(16, np.uint64), match=r"no tensor map lies at maps\[0\]: place_map puts one there")


def test_what_numba_refuses_is_refused():
    def too_few_sums(x):
        wgmma_f16(np.uint64(0), np.uint64(0), NOTHING[:4])

    refused(too_few_sums, HALVES, match="wgmma_f16: c must be a tuple of 32, 64, 96 or 128 float32, was a tuple of 4")

    def no_descriptor(x):
        wgmma_f16(1, np.uint64(0), NOTHING)

    refused(no_descriptor, HALVES, match=r"wgmma_f16: a must be a descriptor \(uint64\), was int64")

    def wait_for_a_variable(x):
        wgmma_wait(x.size, NOTHING)

    refused(wait_for_a_variable, HALVES, match="wgmma_wait: n must be a literal, an integer from 0 to 7")

    def no_barriers(x):
        mbarrier_arrive(x, 0)

    refused(
        no_barriers, HALVES, match="mbarrier_arrive: barriers must be an array of uint64, was a 1-D array of uint16"
    )


def test_four_warps_multiply_or_none():
    def three_warps(out):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        for i in range(cuda.threadIdx.x, 8192, 128):
            tile[i] = 0
        cuda.syncthreads()
        sums = NOTHING
        if cuda.threadIdx.x < 96:
            wgmma_fence()
            sums = wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 4096, 4096), sums)
            wgmma_commit()
            sums = wgmma_wait(0, sums)
        out[cuda.threadIdx.x] = sums[0]

    report = simt.profile(cuda.jit(three_warps), 1, 128, (np.zeros(128, np.float32),), level="check", collect=True)
    [message] = [hazard.message for hazard in report.hazards if hazard.kind == "divergent_barrier"]
    assert "without all of the four warps that multiply together" in message


def test_a_block_may_have_as_much_dynamic_shared_memory_as_the_gpu():
    def fills(out):
        tile = cuda.shared.array(0, np.uint8)
        tile[tile.size - 1] = 7
        out[0] = tile[tile.size - 1]

    out = np.zeros(1, np.uint8)
    cuda.jit(fills)[1, 1, 0, 227 * 1024](out)
    assert out[0] == 7
    with pytest.raises(simt.LaunchError, match="sharedmem is 232,449 bytes; a block has 232,448 at most"):
        cuda.jit(fills)[1, 1, 0, 227 * 1024 + 1](out)


@pytest.mark.parametrize(
    "pair", [pair for pair in pairs() if pair.subject in ("engines", "stores")], ids=lambda pair: pair.name
)
def test_the_planted_bugs_compile(ptx, pair):
    arguments = pair.make(cuda.device_array)
    assert ".entry" in ptx(pair.kernel, *arguments, False, cc=(9, 0))


# -- where tiles may be, and what an mbarrier is ---------------------------------------------------------------------


def in_a_plain_array(x_map, maps, c):
    tile = cuda.shared.array(4096, np.uint16)
    tile_descriptor(tile, 0, 0)


def in_a_plain_dynamic_array(x_map, maps, c):
    tile = cuda.shared.array(0, np.uint16)
    tile_descriptor(tile, 0, 0)


def in_a_view_of_a_dynamic_array(x_map, maps, c):
    tile = cuda.shared.array(0, np.uint32, alignment=128).view(np.uint16)
    tile_descriptor(tile[512:], 0, 0)


def copied_to_a_plain_dynamic_array(x_map, maps, c):
    tile, full = cuda.shared.array(0, np.uint16), cuda.shared.array(1, np.uint64)
    if cuda.threadIdx.x == 0:
        mbarrier_init(full, 0, 1)
        place_map(maps, 0, x_map)
        expect_bytes(full, 0, 2048)
        bulk_tile(tile, 0, maps, 0, 0, 0, full, 0)


def stored_from_a_plain_dynamic_array(x_map, maps, c):
    tile = cuda.shared.array(0, np.uint16)
    if cuda.threadIdx.x == 0:
        place_map(maps, 0, x_map)
        bulk_store(maps, 0, 0, 0, tile, 0)


def in_two_dynamic_arrays(x_map, maps, c):
    """The second one's alignment says nothing of the first: behind static arrays a GPU has them at different places."""
    tile, words = cuda.shared.array(0, np.uint16), cuda.shared.array(0, np.uint32, alignment=1024)
    words[cuda.threadIdx.x] = 0
    tile_descriptor(tile, 0, 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (in_a_plain_array, "tile_descriptor: tile is in a shared array whose alignment is 2 bytes"),
        (in_a_plain_dynamic_array, "tile_descriptor: tile is in a shared array whose alignment is 16 bytes"),
        (in_a_view_of_a_dynamic_array, r"tile_descriptor: tile\[512:\] is in a shared array whose alignment is 128"),
        (copied_to_a_plain_dynamic_array, "bulk_tile: tile is in a shared array whose alignment is 16 bytes"),
        (stored_from_a_plain_dynamic_array, "bulk_store: tile is in a shared array whose alignment is 16 bytes"),
        (in_two_dynamic_arrays, "tile_descriptor: tile is in a shared array whose alignment is 16 bytes"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_an_array_of_tiles_without_their_alignment(level, kernel, sentence):
    """ptxas 13.0 has a dynamic array behind 132 bytes of static ones at byte 144, at 256 with alignment=128."""
    matrix = device.to_device(np.ones((16, 64), np.uint16))
    arguments = tensor_map(matrix, 16, 64), cuda.device_array(16, np.uint64), matrix
    with pytest.raises(simt.SimtError, match=f"{sentence}.*, and tiles need 1024; write alignment=1024 where"):
        simt.profile(cuda.jit(kernel), 1, 32, arguments, level=level, sharedmem=8192)


def test_a_view_of_an_aligned_dynamic_array_has_its_alignment():
    def views(out):
        cuda.shared.array(3, np.int32)[0] = 1
        words = cuda.shared.array(0, np.uint32, alignment=1024)
        tile = cuda.shared.array(0, np.uint16, alignment=1024)
        tile_descriptor(tile[512:], 0, 0)
        tile_descriptor(words.view(np.uint16), 1024, 0)

    assert simt.profile(cuda.jit(views), 1, 128, (HALVES,), level="check", sharedmem=8192).hazards == []


def dynamic_arrays(static, alignment):
    def kernel(out):
        halves, words = cuda.shared.array(0, np.uint16), cuda.shared.array(0, np.uint32, alignment=alignment)
        bars = cuda.shared.array(static, np.int32)
        bars[0] = halves[0] = words[1] = 1

    return cuda.jit(kernel)


def test_dynamic_arrays_that_do_not_begin_together():
    """ptxas 13.0 has them at bytes 16 and 128 behind one int32, and at byte 128 behind 32 of them."""
    sentence = r"cuda.shared.array\(0, ...\) with different alignments: these arrays begin at bytes 16 and 128 of"
    with pytest.raises(simt.SimtError, match=sentence):
        dynamic_arrays(1, 128)[1, 1, 0, 64](HALVES)
    for static, alignment in ((32, 128), (1, 16)):
        dynamic_arrays(static, alignment)[1, 1, 0, 64](HALVES)


def test_the_compiler_is_told_the_alignment_of_each_dynamic_array(ptx):
    kernel = dynamic_arrays(1, 128)
    declared = [line.split(".b8")[0].strip() for line in ptx(kernel, HALVES).splitlines() if ".extern .shared" in line]
    assert declared == [".extern .shared .align 2", ".extern .shared .align 128"]


@pytest.mark.parametrize("schedule", ["auto", "warps"])
@pytest.mark.parametrize("view", [np.uint64, np.uint32])
@pytest.mark.parametrize("grid", [1, 3])
def test_an_mbarrier_is_no_number(schedule, view, grid):
    """A word is one from its initialisation on; words beside it, and those that nobody has initialised, are numbers."""

    second = 8 // np.dtype(view).itemsize

    def counts(out, where):
        bars = cuda.shared.array(3, np.uint64)
        seen = bars.view(view)
        t = cuda.threadIdx.x
        if t == 0:
            bars[0] = bars[2] = 7
            bars[2] += 1
            mbarrier_init(bars, 1, 64)
        cuda.syncthreads()
        mbarrier_arrive(bars, 1)
        cuda.syncthreads()
        if t == 5:
            if where == 1:
                seen[second] = 0
            elif where == 2:
                out[0] = seen[second]
            elif where == 3:
                cuda.atomic.add(seen, second, view(1))
            elif where == 0:
                out[0] = bars[0] + bars[2]

    initialised = line_of(counts, "mbarrier_init")
    for where, verb in enumerate(("", "writes", "reads", "updates")):
        out = np.zeros(1, np.uint64)
        report = simt.profile(cuda.jit(counts), grid, 64, (out, where), level="check", schedule=schedule, collect=True)
        if not verb:
            assert report.hazards == []
            assert out[0] == 15
            continue
        [hazard] = report.hazards
        assert (hazard.kind, hazard.space, hazard.variable, hazard.thread[0]) == ("race", "shared", "seen", 5)
        has_been = f"that has been an mbarrier since thread 0 of block 0 initialised it on line {initialised}"
        assert f"{verb} an element of seen {has_been}" in hazard.message


# -- four warps together, where warps take turns ---------------------------------------------------------------------


@cuda.jit(device=True)
def show_where_warps_take_turns(tile, x, bars):
    """As `show`, with a barrier that lets warps run one after the other from here on."""
    if cuda.threadIdx.x == 0:
        mbarrier_init(bars, 0, cuda.blockDim.x)
    show(tile, x)
    mbarrier_arrive(bars, 0)
    mbarrier_wait(bars, 0, 0)


def some_of_them(x, out, how):
    """Two warpgroups, of which the second has one warp that does not do as the others do, in some way."""
    tile, bars = cuda.shared.array(8192, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
    t = cuda.threadIdx.x
    show_where_warps_take_turns(tile, x, bars)
    odd = t // 32 == 6
    if how == 1 and odd:
        return  # before the others begin
    if how == 2 and odd:
        wgmma_commit()  # instead of a product
    if how == 7 and odd:
        sums = start(tile, NOTHING)  # elsewhere
    else:
        sums = start(tile, NOTHING)  # where most do it
    if not (how == 3 and odd):
        sums = start(tile, sums)  # once more
    wgmma_commit()  # all of them
    if not (how == 4 and odd):
        sums = wgmma_wait(0, sums)  # at last
    if how == 5 and t // 128 == 1:
        fewer_registers(24)  # one warpgroup, and not the other one
    if how == 6 and odd:
        more_registers(240)  # one warp alone
    out[t] = 0


ALONE = "without all of the four warps that multiply together"


@pytest.mark.parametrize("order", [("auto", 0), ("warps", 0), ("blocks", 0), *(("shuffled", k) for k in range(4))])
@pytest.mark.parametrize(
    ("how", "what", "line", "message"),
    [
        (0, "", 0, ""),
        (1, "wgmma_f16()", line_of(start, "return wgmma_f16"), f"{ALONE}: thread 192 of block 0 has ended"),
        (2, None, 0, "which multiplies together with it, executes"),
        (3, None, 0, "which multiplies together with it, executes"),
        (4, "wgmma_wait()", line_of(some_of_them, "# at last"), f"{ALONE}: thread 192 of block 0 has ended"),
        (5, "", 0, ""),
        (6, "more_registers()", line_of(some_of_them, "# one warp alone"), ALONE),
        (7, "wgmma_f16()", line_of(start, "return wgmma_f16"), ", called on line "),
    ],
)
@pytest.mark.parametrize("level", ["run", "check"])
def test_warps_that_take_turns_do_the_same(level, order, how, what, line, message):
    schedule, seed = order
    report = simt.profile(
        cuda.jit(some_of_them), 1, 256, (HALVES_OF_TILE, np.zeros(256), how), level=level, schedule=schedule, seed=seed,
        collect=True,
    )  # fmt: skip
    if what == "":
        assert report.hazards == []
        return
    [hazard] = report.hazards  # what follows of it is not told
    assert hazard.kind == "divergent_barrier"
    assert message in hazard.message
    assert hazard.thread[0] >= 128
    if what is not None:
        assert (hazard.variable, hazard.line) == (what, line)


def test_two_warps_that_execute_different_things_are_both_named():
    seen = set()
    product, commit = line_of(start, "return wgmma_f16"), line_of(some_of_them, "# instead of")
    for seed in range(6):
        report = simt.profile(
            cuda.jit(some_of_them), 1, 256, (HALVES_OF_TILE, np.zeros(256), 2), level="run", schedule="shuffled",
            seed=seed, collect=True,
        )  # fmt: skip
        [hazard] = report.hazards
        seen.add(hazard.variable)
        mine, theirs = ("wgmma_f16()", product), ("wgmma_commit()", commit)
        if hazard.variable != mine[0]:
            mine, theirs = theirs, mine
        assert hazard.line == mine[1]
        assert f"executes this {mine[0]} while thread " in hazard.message
        assert f"executes the {theirs[0]} on line {theirs[1]}: all four warps must execute the same" in hazard.message
    assert seen == {"wgmma_f16()", "wgmma_commit()"}


@pytest.mark.parametrize("schedule", ["auto", "shuffled"])
def test_warps_that_take_turns_give_one_descriptor(schedule):
    def two_of_them(x, apart):
        tile, bars = cuda.shared.array(8192, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        show_where_warps_take_turns(tile, x, bars)
        at = apart * (cuda.threadIdx.x // 64)
        sums = wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 4096 + at, 4096), NOTHING)
        wgmma_commit()
        wgmma_wait(0, sums)

    with simt.schedule(schedule):
        cuda.jit(two_of_them)[1, 128](HALVES_OF_TILE, 0)
        one = "wgmma_f16: the four warps that multiply together must give one descriptor b"
        refused(two_of_them, HALVES_OF_TILE, 1024, match=one)


def test_each_warpgroup_multiplies_what_and_as_often_as_it_likes():
    def by_warpgroups(x, out):
        tile, bars = cuda.shared.array(8192, np.uint16, alignment=1024), cuda.shared.array(1, np.uint64)
        t = cuda.threadIdx.x
        show_where_warps_take_turns(tile, x, bars)
        if t // 128 == 0:
            sums = wgmma_f16(tile_descriptor(tile, 16, 0), tile_descriptor(tile, 4096, 4096), NOTHING)
        else:
            sums = NOTHING
            for _ in range(t // 128):
                sums = start(tile, sums)
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        out[t] = sums[0]

    for schedule, seed in (("auto", 0), ("shuffled", 1), ("shuffled", 2)):
        out = np.zeros(512, np.float32)
        x = np.arange(4096) % 3
        report = simt.profile(
            cuda.jit(by_warpgroups), 1, 512, (x.astype(np.float16).view(np.uint16), out), level="check",
            schedule=schedule, seed=seed, collect=True,
        )  # fmt: skip
        assert report.hazards == []
        np.testing.assert_array_equal(out[384:], 3 * out[128:256])


@pytest.mark.parametrize("instruction", [wgmma_fence, wgmma_commit])
def test_four_warps_fence_and_commit_or_none(instruction):
    """In lockstep, too: of a wait and of a product see `test_four_warps_multiply_or_none`."""

    def three_warps(out):
        if cuda.threadIdx.x < 96:
            instruction()

    report = simt.profile(cuda.jit(three_warps), 2, 128, (HALVES,), level="run", collect=True)
    [hazard] = report.hazards
    assert hazard.variable == f"{instruction.__name__}()"
    assert "without all of the four warps that multiply together" in hazard.message


# -- registers that a fence has shown --------------------------------------------------------------------------------


@cuda.jit(device=True)
def thirty_two(one):
    """Sums that are all the same."""
    eight = (one, one, one, one, one, one, one, one)
    return eight + eight + eight + eight


@cuda.jit(device=True)
def fence_and_start(tile, sums):
    wgmma_fence()
    return start(tile, sums)


@cuda.jit(device=True)
def fenced():
    wgmma_fence()
    return np.float32(2)


def in_its_time(x, y, out, how):
    """The sums to add to are ready before the fence, whatever way they go then."""
    tile = cuda.shared.array(8192, np.uint16, alignment=1024)
    own, words = cuda.local.array(32, np.float32), cuda.local.array(4, np.uint32)
    t = cuda.threadIdx.x
    show(tile, x)
    one = y[t] * np.float32(2)
    sums = thirty_two(one)
    for k in range(32):
        own[k] = one
    words[0] = t
    if how != 6:
        wgmma_fence()
    if how == 0:
        sums = start(tile, sums)
    elif how == 1:
        sums = fence_and_start(tile, thirty_two(y[t] + y[t]))
    elif how == 2:  # out of a local array, a tuple of parts of it
        sums = start(tile, thirty_two(own[3]))
    elif how == 3:  # in some of the threads
        if t < 128:
            own[5] = own[4]
            sums = start(tile, thirty_two(own[5]))
        else:
            sums = start(tile, sums)
    elif how == 4:  # a constant, in some warps another one
        zero = np.float32(t // 32)
        sums = start(tile, thirty_two(zero))
    elif how == 5:  # back to what they were
        sums = start(tile, thirty_two(np.float32(0) - (np.float32(0) - one)))
    elif how == 6:  # the fence is in an expression: it is not known what is under way there
        two = y[t] * fenced()
        sums = start(tile, thirty_two(two))
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[t] = sums[0]


def too_late(x, y, out, how):
    """They are computed behind the fence."""
    tile = cuda.shared.array(8192, np.uint16, alignment=1024)
    own = cuda.local.array(32, np.float32)
    t = cuda.threadIdx.x
    show(tile, x)
    one = y[t]
    for k in range(32):
        own[k] = one
    wgmma_fence()
    sums = thirty_two(one)
    if how == 0:
        sums = thirty_two(one + one)
    elif how == 1:
        own[7] *= np.float32(2)
        sums = sums[:31] + (own[7],)  # noqa: RUF005 (Numba does not compile it)
    elif how == 2:
        sums = thirty_two(y[255 - t])
    elif how == 3 and t >= 128:
        sums = thirty_two(one + one)
    elif how == 4:
        sums = thirty_two(np.float32(t))
    sums = wgmma_f16(tile_descriptor(tile, 0, 0), tile_descriptor(tile, 4096, 4096), sums)
    wgmma_commit()
    sums = wgmma_wait(0, sums)
    out[t] = sums[0]


def launched(kernel, how, schedule):
    x, y, out = (np.arange(4096) % 3).astype(np.float16).view(np.uint16), np.arange(1, 513, 2), np.zeros(256)
    arguments = x, y.astype(np.float32), out, how
    return simt.profile(cuda.jit(kernel), 1, 256, arguments, level="check", schedule=schedule, collect=True)


@pytest.mark.parametrize("schedule", ["auto", "warps", "shuffled"])
@pytest.mark.parametrize("how", range(7))
def test_sums_that_are_ready_before_the_fence(how, schedule):
    assert [hazard.message for hazard in launched(in_its_time, how, schedule).hazards] == []


@pytest.mark.parametrize("schedule", ["auto", "warps", "shuffled"])
@pytest.mark.parametrize("how", range(5))
def test_sums_that_are_computed_behind_the_fence(how, schedule):
    [hazard] = launched(too_late, how, schedule).hazards
    assert (hazard.kind, hazard.space, hazard.variable) == ("race", "register", "sums")
    assert hazard.line == line_of(too_late, "sums = wgmma_f16(")
    assert "multiplies with sums, computed after its last wgmma_fence(): the engine may not see it" in hazard.message
    assert hazard.thread[0] >= (128 if how == 3 else 0)


@pytest.mark.parametrize("late", [False, True])
def test_weights_in_registers_that_are_computed_behind_the_fence(late):
    def weighs(x, out, late):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        weights = cuda.local.array(4, np.uint32)
        t = cuda.threadIdx.x
        show(tile, x)
        for k in range(4):
            weights[k] = t % 8
        if late:
            wgmma_fence()
        for k in range(4):
            weights[k] += np.uint32(t % 2)
        if not late:
            wgmma_fence()
        sums = wgmma_f16_kept(
            (weights[0], weights[1], weights[2], weights[3]), tile_descriptor(tile, 4096, 4096), NOTHING
        )
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        out[t] = sums[0]

    arguments = HALVES_OF_TILE, np.zeros(128), late
    hazards = simt.profile(cuda.jit(weighs), 1, 128, arguments, level="check", collect=True).hazards
    assert [hazard.kind for hazard in hazards] == (["race"] if late else [])
    assert all("multiplies with (weights[0], weights[1], weights[2], weights[3]), comp" in h.message for h in hazards)


@pytest.mark.parametrize("when", ["never", "always", "auto"])
def test_warpgroups_go_round_a_loop_differently_often(when):
    """A loop with such instructions is never left to some of the lanes as a batch of their own."""

    def goes_round(x, out):
        tile = cuda.shared.array(8192, np.uint16, alignment=1024)
        t = cuda.threadIdx.x
        show(tile, x)
        sums = NOTHING
        for _ in range(1 + t // 128 * 3):
            sums = start(tile, sums)
            wgmma_commit()
        sums = wgmma_wait(0, sums)
        out[t] = sums[0]

    out = np.zeros(512, np.float32)
    x = (np.arange(4096) % 3).astype(np.float16).view(np.uint16)
    with gathering(when):
        assert simt.profile(cuda.jit(goes_round), 1, 512, (x, out), level="check", collect=True).hazards == []
    for group in range(4):
        np.testing.assert_array_equal(out[128 * group :][:128], (1 + 3 * group) * out[:128])
