"""Counters beyond those of a line, against counts by hand: unique sectors, contention of atomics, the instruction mix;
their names, and the memory that a launch takes.
"""

import math
import tracemalloc

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.host.report import Contention, Sectors
from pmpp.simt.machine.instructions import BARRIER, CLASSES, CONVERSION, SHUFFLE, SPECIAL, classify
from tests.support import parting, versus

MIX = [c.name for c in CLASSES]


def floats(*shape, dtype=np.float32):
    return np.arange(math.prod(shape), dtype=dtype).reshape(shape)


def profile(kernel, grid, block, *args, **options):
    return simt.profile(kernel, grid, block, args, **options)


def mix(report, who="inst"):
    return {name: report.counters[f"{who}_{name}"] for name in MIX if report.counters[f"{who}_{name}"]}


# -- names -----------------------------------------------------------------------------------------------------------


@cuda.jit
def copy(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]


def test_each_counter_has_a_meaning_and_the_known_ones_nsight_computes_name():
    report = profile(copy, 4, 256, floats(1000), floats(1000))
    assert list(report.counters) == list(simt.METRICS)
    assert [*simt.COUNTERS, "unique_load_sectors", "unique_store_sectors"] == list(simt.METRICS)
    assert all(metric.meaning and metric.unit for metric in simt.METRICS.values())
    # These answered on the H200 with counts by hand (FACTS.md).
    answered = {
        "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
        "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        "warp_instructions": "smsp__inst_executed.sum",
    }
    assert {name: simt.METRICS[name].ncu for name in answered} == answered
    table = report.metrics()
    assert "global_load_sectors" in str(table)
    assert "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum" in str(table)
    assert table._repr_html_().count("<tr>") == 1 + len(simt.METRICS)


# -- unique sectors --------------------------------------------------------------------------------------------------


@cuda.jit
def every(x, out, stride, offset):
    i = cuda.grid(1)
    out[i] = x[i * stride + offset]


@pytest.mark.parametrize(
    "stride, offset, moved, unique",
    [
        (1, 0, 32 * 4, 128),  # 1,024 floats = 4,096 bytes
        (1, 1, 32 * 5, 129),  # each warp reaches one sector further; only the last reaches a new one
        (8, 0, 32 * 32, 1024),  # each lane a sector of its own
        (0, 5, 32, 1),  # all lanes one element
    ],
)
def test_unique_sectors_are_counted_once_a_launch(stride, offset, moved, unique):
    for lanes in (32, 256, 1 << 20):
        with simt.batch_lanes(lanes):
            report = profile(every, 4, 256, floats(8200), floats(1024), stride, offset)
        assert report.counters["global_load_sectors"] == moved
        assert report.counters["unique_load_sectors"] == report.sectors["x"].load == unique
        assert report.counters["unique_store_sectors"] == report.sectors["out"].store == 128


@cuda.jit
def read_four_times(x, out):
    i = cuda.grid(1)
    for k in range(4):
        out[i] = x[(i + 8 * k) % x.size]


def test_a_sector_read_again_is_not_a_new_one():
    report = profile(read_four_times, 2, 128, floats(256), floats(256))
    assert report.counters["global_load_sectors"] == 4 * 8 * 4
    assert report.sectors == {"x": Sectors(32, 0, 32), "out": Sectors(0, 32, 0)}


@cuda.jit
def half_of_the_lanes(x, out):
    i = cuda.grid(1)
    if i % 16 < 8:
        out[i] = x[i]


def test_idle_lanes_touch_nothing():
    report = profile(half_of_the_lanes, 1, 64, floats(64), floats(64))
    assert report.sectors["x"].load == report.sectors["out"].store == 4  # of 8


@cuda.jit
def double_in_place(x):
    i = cuda.grid(1)
    x[i] = x[i] + x[i]


@cuda.jit
def through_scratch(x, scratch, out):
    i = cuda.grid(1)
    scratch[i] = x[i]
    out[i] = scratch[i] + scratch[i]


def test_memory_need_not_deliver_what_the_launch_has_stored():
    assert profile(double_in_place, 1, 64, floats(64)).sectors == {"x": Sectors(8, 8, 8)}
    found = profile(through_scratch, 1, 64, floats(64), floats(64), floats(64)).sectors
    assert found["scratch"] == Sectors(8, 8, 0)
    assert found["x"].needed == 8


@cuda.jit
def through_scratch_as_integers(scratch, same):
    i = cuda.grid(1)
    scratch[i] = 1
    same[i] = same[i] + 1


def test_views_of_one_allocation_share_its_sectors():
    x = cuda.to_device(floats(64))
    report = profile(copy, 1, 32, x[:32], x[32:])
    assert report.sectors == {"x": Sectors(4, 4, 4)}  # by the name under which it was first touched
    # A different type, the same bytes, from the third sector on: what it loads has just been stored.
    (found,) = profile(through_scratch_as_integers, 1, 32, x[16:48], x[16:48].view(np.int32)).sectors.values()
    assert found == Sectors(4, 4, 0)


@cuda.jit
def copy_128(x, out):
    i = 4 * cuda.grid(1)
    if i < x.size:
        cuda.store128(out, i, cuda.load128(x, i))


def test_unique_sectors_of_128_bit_accesses():
    report = profile(copy_128, 1, 64, floats(256), floats(256))
    assert (report.counters["unique_load_sectors"], report.counters["unique_store_sectors"]) == (32, 32)


# -- atomics ---------------------------------------------------------------------------------------------------------


@cuda.jit
def histogram(x, bins):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i], 1)


@pytest.mark.parametrize(
    "x, passes, worst, peak, where",
    [
        (np.zeros(128, np.int32), 128, 32, 128, 0),  # all lanes on one bin
        (np.arange(128) % 32, 4, 1, 4, 0),  # each lane its own
        (np.arange(128) // 4 % 8, 16, 4, 16, 0),  # four lanes on each of eight bins: four turns a warp
        (np.r_[np.full(32, 7), np.arange(96) % 32], 32 + 3, 32, 32 + 3, 7),  # one bad warp
        (np.full(5, 3), 5, 5, 5, 3),  # a warp with five active lanes
    ],
    ids=["one bin", "no two alike", "fours", "one bad warp", "few lanes"],
)
def test_contention_of_global_atomics(x, passes, worst, peak, where):
    bins = np.zeros(32, np.int32)
    for lanes in (32, 1 << 20):
        with simt.batch_lanes(lanes):
            report = profile(histogram, 2, 64, x.astype(np.int32), bins)
        found = report.contention["bins"]
        requests = -(-x.size // 32)
        assert found == Contention("global", requests, x.size, passes, worst, peak, where)
        assert report.counters["atomic_requests"] == requests
        assert report.counters["atomic_lanes"] == x.size
        assert report.counters["atomic_passes"] == passes
    assert report.sectors["bins"].store == len(set((x // 8).tolist()))


@cuda.jit
def shared_histogram(x, bins):
    local = cuda.shared.array(16, np.int32)
    if cuda.threadIdx.x < 16:
        local[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    cuda.atomic.add(local, x[cuda.grid(1)], 1)
    cuda.syncthreads()
    if cuda.threadIdx.x < 16:
        cuda.atomic.add(bins, cuda.threadIdx.x, local[cuda.threadIdx.x])


def test_contention_of_shared_atomics_is_that_of_one_block():
    # 4 blocks of 64 threads: four updates of each element, but in the third block 64 of one
    x = np.arange(256, dtype=np.int32) % 16
    x[128:192] = 9
    for lanes in (64, 1 << 20):
        with simt.batch_lanes(lanes):
            report = profile(shared_histogram, 4, 64, x, np.zeros(16, np.int32))
        assert report.contention["local"] == Contention("shared", 8, 256, 6 * 2 + 2 * 32, 32, 64, 9)
        assert report.contention["bins"] == Contention("global", 4, 64, 4, 1, 4, 0)
        assert report.counters["global_atomic_sectors"] == 4 * 2
        assert report.shared_bytes == 64


@cuda.jit
def one_cell(out):
    cuda.atomic.add(out, 0, 1)


@pytest.mark.parametrize("threads, lanes", [(40, 80), (64, 128)])
def test_contention_where_every_lane_has_the_same_address(threads, lanes):
    report = profile(one_cell, 2, threads, np.zeros(1, np.int32))
    assert report.contention["out"] == Contention("global", 4, lanes, lanes, 32, lanes, 0)


# -- instruction mix -------------------------------------------------------------------------------------------------


@cuda.jit
def every_class(x, y, half, out):
    tile = cuda.shared.array(64, np.float32)
    i = cuda.threadIdx.x
    tile[i] = x[i] * x[i] + x[i]  # 3 loads, 2 float32, 1 store
    cuda.syncthreads()  # 1 barrier
    a = tile[63 - i]  # 1 integer, 1 load
    b = cuda.shfl_xor_sync(0xFFFFFFFF, a, 1)  # 1 shuffle
    c = math.exp(a) / b  # 2 special
    d = np.float32(i)  # 1 conversion
    e = y[i] * y[i]  # 2 loads, 1 float64
    h = half[i] + half[i]  # 2 loads, 1 float16
    if c > d:  # 1 float32, 1 control
        out[i] = e + y[i]  # 1 load, 1 float64, 1 store, where it is executed
    out[i] = h  # 1 store


def test_the_mix_by_hand():
    x = np.full(64, -1, np.float32)  # exp(0) / 0 = inf > d: both warps, all lanes, take the branch
    report = profile(every_class, 1, 64, x, floats(64, dtype=np.float64), np.ones(64, np.float16), floats(64))
    expected = {
        "integer": 1, "fp16": 1, "fp32": 3, "fp64": 2, "special": 2, "conversion": 1,
        "memory": 3 + 1 + 1 + 2 + 2 + 1 + 1 + 1, "control": 1, "barrier": 1, "shuffle": 1,
    }  # fmt: skip
    assert mix(report) == {name: 2 * n for name, n in expected.items()}
    assert mix(report, "thread_inst") == {name: 64 * n for name, n in expected.items()}
    assert report.counters["flops"] == 64 * (2 + 1 + 1 + 1 + 1)  # the division is one too
    assert (report.counters["flops_f16"], report.counters["flops_f64"]) == (64, 128)
    assert [row[0] for row in report.mix().rows] == [name for name in MIX if name != "tensor"]


def test_the_classes_add_up_on_every_line():
    report = profile(shared_histogram, 4, 64, np.arange(256, dtype=np.int32) % 16, np.zeros(16, np.int32))
    for counts in (*report.by_line.values(), report.counters):
        assert sum(counts[f"inst_{name}"] for name in MIX) == counts["warp_instructions"]
        assert sum(counts[f"thread_inst_{name}"] for name in MIX) == counts["thread_instructions"]


@cuda.jit
def divisions(x, out):
    i = cuda.grid(1)
    a = x[i] / np.float32(4) - x[i] / -0.5  # a compiler multiplies by 1 / 4 and -2, which are exact
    a = x[i] / np.float32(3) + a
    b = x[i] / a
    out[i] = math.sqrt(b) ** 2 + math.sin(a)


def test_special_functions():
    report = profile(divisions, 1, 32, floats(32), floats(32))
    assert mix(report)["special"] == 4  # x / 3, x / a, sqrt, sin; neither x / 4 nor ** 2


@pytest.mark.parametrize(
    "name, kind",
    [
        ("exp", SPECIAL), ("libdevice.fast_expf", SPECIAL), ("libdevice.rsqrtf", SPECIAL), ("fp16.hsin", SPECIAL),
        ("fp16.hdiv", SPECIAL), ("floor", None), ("libdevice.fmaf", None), ("fp16.hadd", None), ("fp16.hfma", None),
        ("shfl_down_sync", SHUFFLE), ("ballot_sync", SHUFFLE), ("syncwarp", BARRIER), ("threadfence_block", BARRIER),
        ("float", CONVERSION), ("libdevice.float2int_rn", CONVERSION), ("popc", None), ("min", None), ("fabs", None),
    ],
)  # fmt: skip
def test_functions_are_classified_by_name(name, kind):
    assert classify(name) == kind


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["run", "count"])
def test_memory_does_not_grow_with_the_grid(level):
    versus.peak_memory(1, level)  # compiles
    batch = versus.peak_memory(256, level)  # 65,536 lanes: one full batch
    assert batch < 32 << 20
    lanes = 8 * 65_536  # bytes of a variable: the last ones of a batch may be there until the next has its own
    assert versus.peak_memory(16 * 256, level) < batch + 2 * lanes


@pytest.mark.parametrize("level", ["run", "check"])
def test_large_local_arrays_are_there_for_some_blocks_at_a_time(level):
    """40 KB for each of 16,384 threads: 640 MiB, if all of them had theirs at once."""
    run = parting.make_locals(1 << 14)
    tracemalloc.start()
    try:
        out, expected = run(lambda kernel, grid, block, args: simt.profile(kernel, grid, block, args, level=level))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(out, expected)
    assert peak < 80 << 20
