"""Metrics derived from the counters, against counts by hand: unique sectors, contention, instruction mix, occupancy,
the bound; and what is said of them.
"""

import math

import numpy as np
import pytest

from pmpp import simt
from pmpp.lab import record
from pmpp.lab.room import rooms
from pmpp.simt import cuda, gpus, versus
from pmpp.simt.metrics import BARRIER, CLASSES, CONVERSION, SHUFFLE, SPECIAL, classify

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
    assert report.sectors == {"x": simt.report.Sectors(32, 0, 32), "out": simt.report.Sectors(0, 32, 0)}


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
    assert profile(double_in_place, 1, 64, floats(64)).sectors == {"x": simt.report.Sectors(8, 8, 8)}
    found = profile(through_scratch, 1, 64, floats(64), floats(64), floats(64)).sectors
    assert found["scratch"] == simt.report.Sectors(8, 8, 0)
    assert found["x"].needed == 8


@cuda.jit
def through_scratch_as_integers(scratch, same):
    i = cuda.grid(1)
    scratch[i] = 1
    same[i] = same[i] + 1


def test_views_of_one_allocation_share_its_sectors():
    x = cuda.to_device(floats(64))
    report = profile(copy, 1, 32, x[:32], x[32:])
    assert report.sectors == {"out": simt.report.Sectors(4, 4, 4)} or report.sectors == {
        "x": simt.report.Sectors(4, 4, 4)
    }
    # A different type, the same bytes, from the third sector on: what it loads has just been stored.
    (found,) = profile(through_scratch_as_integers, 1, 32, x[16:48], x[16:48].view(np.int32)).sectors.values()
    assert found == simt.report.Sectors(4, 4, 0)


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
        assert found == simt.report.Contention("global", requests, x.size, passes, worst, peak, where)
        assert report.counters["atomic_requests"] == requests
        assert report.counters["atomic_lanes"] == x.size
        assert report.counters["atomic_passes"] == passes
    assert report.sectors["bins"].store == len(set(x.tolist())) / 8 or len(set(x.tolist())) < 8


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
        assert report.contention["local"] == simt.report.Contention("shared", 8, 256, 6 * 2 + 2 * 32, 32, 64, 9)
        assert report.contention["bins"] == simt.report.Contention("global", 4, 64, 4, 1, 4, 0)
        assert report.counters["global_atomic_sectors"] == 4 * 2
        assert report.shared_bytes == 64


@cuda.jit
def one_cell(out):
    cuda.atomic.add(out, 0, 1)


@pytest.mark.parametrize("threads, lanes", [(40, 80), (64, 128)])
def test_contention_where_every_lane_has_the_same_address(threads, lanes):
    report = profile(one_cell, 2, threads, np.zeros(1, np.int32))
    assert report.contention["out"] == simt.report.Contention("global", 4, lanes, lanes, 32, lanes, 0)


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
    assert [row[0] for row in report.mix().rows] == MIX


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


# -- GPUs and occupancy ----------------------------------------------------------------------------------------------

# TFLOP/s as published: float32, float64, float16 outside of tensor cores (None: not published).
PUBLISHED = {
    "T4": (8.1, None, 16.2), "RTX 2080 Ti": (13.4, None, 26.9), "V100": (15.7, 7.8, 31.4),
    "RTX 3090": (35.6, None, 35.6), "L4": (30.3, None, None), "RTX 4090": (82.6, None, 82.6),
    "A100 40GB": (19.5, 9.7, 78), "A100 80GB": (19.5, 9.7, 78),
    "H100": (66.9, 33.5, 133.8), "H200": (66.9, 33.5, 133.8),
}  # fmt: skip


def test_peaks_follow_from_lanes_and_clock_as_published():
    assert len(simt.GPUS) >= 10
    assert {gpu.name for gpu in simt.GPUS} > PUBLISHED.keys()
    for name, published in PUBLISHED.items():
        gpu = gpus.gpu(name)
        for ours, theirs in zip((gpu.fp32, gpu.fp64, gpu.fp16), published, strict=True):
            assert theirs is None or ours == pytest.approx(theirs * 1e12, rel=0.01), name
    for gpu in simt.GPUS:
        assert gpu.source
        assert gpu.architecture.threads == 32 * gpu.architecture.warps


def test_the_h200_is_the_one_that_the_record_was_made_on():
    gpu, told = gpus.gpu("NVIDIA H200"), record.load().data["gpu"]
    assert (gpu.sms, gpu.l2, list(gpu.compute_capability)) == (
        told["sms"],
        told["l2_bytes"],
        told["compute_capability"],
    )
    ceilings = record.load().ceilings()
    assert 0.8 * gpu.bandwidth < ceilings.bandwidth < gpu.bandwidth
    assert 0.8 * gpu.fp32 < ceilings.fma_f32 < gpu.fp32


def test_a_gpu_is_found_by_any_of_its_names():
    assert gpus.gpu("nvidia geforce rtx 4090") is gpus.gpu("RTX-4090")
    assert gpus.gpu("NVIDIA H100 SXM5").name == "H100"
    with pytest.raises(simt.LaunchError, match=r"gpu is 'RTX 9999'; it must be one of .*H200"):
        gpus.gpu("RTX 9999")


# (threads, shared bytes, registers, GPU) -> blocks, limiter.  Each was computed by NVIDIA's cuda_occupancy.h.
OCCUPANCY = [
    ((256, 0, 32), "H200", 8, "threads"),
    ((256, 0, 33), "H200", 6, "registers"),  # 33 x 32 = 1,056 rounds up to 1,280: 12 warps a quarter
    ((256, 0, 40), "H200", 6, "registers"),
    ((192, 0, 72), "H200", 4, "registers"),  # 2,304 a warp: 7 warps a quarter, 28 in all, of 6
    ((64, 0, 200), "H200", 4, "registers"),  # 6,400 a warp: 2 warps a quarter, though all four could hold 10
    ((32, 0, 8), "H200", 32, "blocks"),
    ((33, 0, 8), "H200", 32, "threads"),  # a thread more takes a warp more
    ((1024, 0, 64), "H200", 1, "registers"),
    ((128, 16 * 1024, 0), "H200", 13, "shared memory"),  # 17 KiB with what is reserved; 228 / 17
    ((128, 16 * 1024, 0), "V100", 6, "shared memory"),  # nothing is reserved; 96 / 16
    ((128, 1, 0), "V100", 16, "threads"),
    ((64, 4096, 24), "T4", 16, "threads"),
    ((64, 4097, 24), "T4", 15, "shared memory"),  # in units of 256 bytes: 4,352; 65,536 / 4,352
    ((256, 0, 24), "RTX 3090", 6, "threads"),
    ((32, 0, 24), "RTX 3090", 16, "blocks"),
    ((32, 0, 24), "RTX 4090", 24, "blocks"),
    ((512, 0, 255), "A100 40GB", 0, None),
    ((256, 227 * 1024, 255), "H200", 1, "shared memory"),
]


@pytest.mark.parametrize("asked, gpu, blocks, limiter", OCCUPANCY, ids=str)
def test_occupancy(asked, gpu, blocks, limiter):
    if not blocks:
        with pytest.raises(simt.LaunchError, match="512 threads of 255 registers do not fit"):
            simt.occupancy(*asked, gpu=gpu)
        return
    found = simt.occupancy(*asked, gpu=gpu)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    warps = -(-asked[0] // 32)
    assert found.warps == blocks * warps
    assert found.occupancy == blocks * warps / gpus.gpu(gpu).architecture.warps
    assert f"{blocks} blocks" in str(found)
    assert f"{blocks} blocks" in found._repr_html_()


@pytest.mark.parametrize(
    "asked, message",
    [
        ((0, 0, None), "threads is 0; a block has 1 to 1024"),
        ((1025, 0, None), "threads is 1025"),
        ((32, 228 * 1024, None), "shared_bytes is 233,472; on H200 a block has 0 to 232,448"),
        ((32, 0, 256), "registers is 256; a thread has 0 to 255"),
    ],
)
def test_what_no_block_can_have_is_refused(asked, message):
    with pytest.raises(simt.LaunchError, match=message):
        simt.occupancy(*asked)


@cuda.jit
def with_shared_memory(out):
    a = cuda.shared.array(256, np.float32)
    b = cuda.shared.array(0, np.float64)
    a[cuda.threadIdx.x] = b[0] = 1
    out[0] = a[0]


def test_occupancy_of_a_launch():
    for lanes in (128, 1 << 16):
        with simt.batch_lanes(lanes):
            report = profile(with_shared_memory, 3, (16, 8), np.zeros(1), sharedmem=8192, level="run")
        assert report.shared_bytes == 1024 + 8192
        assert report.occupancy("H200", 32) == simt.occupancy(128, 9216, 32, "H200")


# -- the bound -------------------------------------------------------------------------------------------------------


def resources(bound):
    return {each.name: each for each in bound.resources}


def test_the_bound_of_a_copy_is_its_bytes_over_the_bandwidth():
    n = 1 << 16
    report = profile(copy, n // 256, 256, floats(n), floats(n))
    bound = report.bound("H200")
    assert bound.seconds == pytest.approx(8 * n / 4.8e12)
    assert (bound.resource, bound.gpu) == ("device memory", "H200")
    assert report.bound("T4").seconds == pytest.approx(8 * n / 320e9)
    assert "at least 109 ns, bound by device memory" in repr(bound)
    assert "device memory" in bound._repr_html_()


def test_uncoalesced_accesses_raise_what_is_written_and_not_the_least():
    bound = profile(every, 256, 256, floats(8 * 65536), floats(65536), 8, 0).bound()
    memory = resources(bound)["device memory"]
    assert memory.least == pytest.approx(32 * (65536 + 65536 / 8) / 4.8e12)
    again = resources(profile(every, 256, 256, floats(65536), floats(65536), 0, 7).bound())["device memory"]
    assert again.least == pytest.approx(32 * (1 + 65536 / 8) / 4.8e12)
    assert again.written == pytest.approx(32 * (2048 + 65536 / 8) / 4.8e12)


@cuda.jit
def many_multiply_adds(x, out):
    i = cuda.grid(1)
    a = x[i]
    for _ in range(64):
        a = a * a + a
        a = a * a + a
    out[i] = a


@cuda.jit
def many_exponentials(x, out):
    i = cuda.grid(1)
    a = x[i]
    for _ in range(64):
        a = math.exp(math.exp(a))
    out[i] = a


@cuda.jit
def many_conflicts(x, out):
    tile = cuda.shared.array(1024, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    a = np.float32(0)
    for _ in range(64):
        a = max(a, tile[32 * (t % 32)])
    out[cuda.grid(1)] = a


@cuda.jit
def many_shuffles(x, out):
    i = cuda.grid(1)
    a = x[i]
    for _ in range(64):
        a = cuda.shfl_xor_sync(0xFFFFFFFF, cuda.shfl_xor_sync(0xFFFFFFFF, a, 1), 2)
    out[i] = a


WARPS = 132 * 8  # as many blocks of eight warps as an H200 has SMs
SECOND = 132 * 1.98e9  # cycles of all its SMs


@pytest.mark.parametrize(
    "kernel, dtype, resource, cycles",
    [
        # 4 x 64 FLOP a lane at 256 a cycle, 128 in float64; in float32 that fills all slots of issue but half a one
        (many_multiply_adds, np.float32, "float32", WARPS * (128 + 2 / 4) / 4),
        (many_multiply_adds, np.float64, "float64", WARPS * 32 * 256 / 128),
        (many_exponentials, np.float32, "special functions", WARPS * 32 * 128 / 16),
        # 64 x 32 wavefronts a warp; four accesses merged into one of 128 bits would take a quarter of the time
        (many_conflicts, np.float32, "shared memory", (WARPS * 64 * 32 + WARPS) / 4),
        # 2 x 64 shuffles a warp, and a load and a store, at 4 a cycle
        (many_shuffles, np.float32, "issue", WARPS * (128 + 2 / 4) / 4),
    ],
    ids=["float32", "float64", "special", "shared", "issue"],
)
def test_each_resource_can_be_the_one_that_binds(kernel, dtype, resource, cycles):
    n = 132 * 256
    bound = profile(kernel, 132, 256, np.zeros(n, dtype), np.zeros(n, dtype)).bound("H200")
    assert bound.resource == resource
    assert bound.seconds == pytest.approx(cycles / SECOND, rel=1e-9)
    assert all(each.least <= each.written for each in bound.resources)


def test_few_blocks_keep_few_multiprocessors_busy():
    one, many = (
        profile(many_exponentials, blocks, 256, np.zeros(256 * blocks, np.float32), np.zeros(256 * blocks, np.float32))
        for blocks in (1, 132)
    )
    assert one.bound().seconds == pytest.approx(many.bound().seconds)


def test_there_is_no_bound_without_counters():
    with pytest.raises(simt.LaunchError, match="bound\\(\\) needs counters"):
        profile(copy, 1, 32, floats(32), floats(32), level="run").bound()


# Sizes that the interpreter runs in a moment, and that were measured.
SIZES = {
    "vector_add": ("add", 1 << 14, lambda n: (floats(n), floats(n))),
    "transpose": ("transpose", 256, lambda n: (floats(n, n),)),
    "matmul": ("matmul", 64, lambda n: (floats(n, n), floats(n, n))),
    "reduction": ("sum", 1 << 14, lambda n: (floats(n),)),
}


def measured():
    kept = record.load()
    for room in rooms():
        name = room.__name__.rpartition(".")[2]
        if name in SIZES:
            family, size, make = SIZES[name]
            entries = kept.entries(name, family=family, kind="rung")
            for rung in room.LADDER:
                times = [e.seconds for e in entries if e.contender == rung.name and e.x == size]
                yield pytest.param(rung, make(size), times, id=f"{name}-{rung.name}")


@pytest.mark.parametrize("rung, args, times", list(measured()))
def test_no_rung_has_been_faster_than_its_bound(rung, args, times):
    assert times, "the record lacks this size"
    with simt.record("count") as reports:
        rung(*args)
    assert 0 < sum(report.bound("H200").seconds for report in reports) <= min(times)


def test_the_last_rungs_come_close_to_their_bound_at_the_design_size():
    """The counters of these grow with the size, so the bound of a 256th of the work is a 256th of the bound."""
    kept, scale = record.load(), 256
    for name, contender, family, small, large, make in (
        ("vector_add", "vectorised", "add", 1 << 20, 1 << 28, lambda n: (floats(n), floats(n))),
        ("transpose", "vectorised", "transpose", 1024, 16384, lambda n: (floats(n, n),)),
    ):
        room = next(r for r in rooms() if r.__name__.endswith(name))
        rung = next(r for r in room.LADDER if r.name == contender)
        with simt.record("count") as reports:
            rung(*make(small))
        least = scale * sum(report.bound("H200").seconds for report in reports)
        (entry,) = (e for e in kept.entries(name, family=family) if e.contender == contender and e.x == large)
        assert 0.7 * entry.seconds < least <= entry.seconds, name


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["run", "count"])
def test_memory_does_not_grow_with_the_grid(level):
    versus.peak_memory(1, level)  # compiles
    batch = versus.peak_memory(256, level)  # 65,536 lanes: one full batch
    assert batch < 32 << 20
    assert versus.peak_memory(16 * 256, level) < 1.1 * batch
