"""Clusters of blocks: schedules and batches change nothing, and what is wrong with their shared memory is named.

Planted bugs stand in tests/corpus/clusters.py. Results that a GPU must have as well stand in
tests/runtime/test_clusters.py.
"""

import inspect
import pickle
import re

import numpy as np
import pytest

from pmpp import simt
from pmpp.runtime import device
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, in_clusters, map_shared_rank
from pmpp.runtime.hopper import mbarrier_arrive, mbarrier_init, mbarrier_wait, tile_descriptor
from pmpp.runtime.matrix import commit_copies, copy_async, ldmatrix, wait_copies
from pmpp.runtime.vector import load128, store128
from pmpp.simt import cuda
from pmpp.simt.front.gathering import _Gathered
from pmpp.simt.machine.machine import LEVELS, gathering

pytestmark = pytest.mark.skipif(device.on_gpu(), reason="of the interpreter")
SCHEDULES = [("lockstep", 0), ("blocks", 0), ("warps", 0), ("lanes", 0), *(("shuffled", seed) for seed in range(4))]
each_schedule = pytest.mark.parametrize("schedule, seed", SCHEDULES)
LANES = [1, 100, 1 << 20]  # one cluster at a time, several, all


def ints(*shape):
    return np.zeros(shape, np.int32)


def run(kernel, grid, block, *args, cluster=2, level="check", **options):
    report = simt.profile(kernel, grid, block, args, level=level, cluster=cluster, **options)
    assert [hazard.message for hazard in report.hazards] == []
    return report


def hazards_of(kernel, grid, block, *args, cluster=2, **options):
    return simt.profile(kernel, grid, block, args, level="check", collect=True, cluster=cluster, **options).hazards


def line_of(kernel, text):
    lines, first = inspect.getsourcelines(kernel.py_func)
    return next(first + i for i, line in enumerate(lines) if text in line)


# -- schedules, levels, batches ---------------------------------------------------------------------------------------


@cuda.jit
def everything(x, out, total):
    """A ring, stores into another block, atomics on all of them, in several rounds."""
    mine, theirs_to_me = cuda.shared.array(64, np.int32), cuda.shared.array(64, np.int32)
    sums = cuda.shared.array(2, np.int64)
    t, rank, size = cuda.threadIdx.x, cluster_rank(), cluster_size()
    mine[t] = x[cuda.grid(1)]
    if t < 2:
        sums[t] = 0
    cluster_sync()
    for step in range(3):
        other = (rank + step + 1) % size
        map_shared_rank(theirs_to_me, other)[63 - t] = mine[t] + step
        cuda.atomic.add(map_shared_rank(sums, (rank + t) % size), t % 2, mine[t])
        cluster_sync()
        received = theirs_to_me[t] + map_shared_rank(mine, other)[t]
        cluster_sync()
        mine[t] = received
        cluster_sync()
    out[cuda.grid(1)] = mine[t]
    if t < 2:
        total[cuda.blockIdx.x, t] = sums[t]


def of_everything(x, size):
    """The same with NumPy, for a grid of whole clusters."""
    mine = x.reshape(-1, size, 64).astype(np.int64)
    sums = np.zeros((*mine.shape[:2], 2), np.int64)
    rank, t = np.indices((size, 64))
    for step in range(3):
        for cluster in range(len(mine)):
            np.add.at(sums[cluster], ((rank + t) % size, t % 2), mine[cluster])
        received = np.empty_like(mine)
        for r in range(size):
            received[:, (r + step + 1) % size] = mine[:, r, ::-1] + step
        mine = received + mine[:, (np.arange(size) + step + 1) % size]
    return mine.reshape(-1), sums.reshape(-1, 2)


@each_schedule
@pytest.mark.parametrize("size", [1, 2, 3])
def test_results_are_the_same_under_every_schedule(size, schedule, seed):
    x = np.random.default_rng(0).integers(-99, 99, 2 * size * 64).astype(np.int32)
    out, total = ints(x.size), np.zeros((2 * size, 2), np.int64)
    report = run(everything, 2 * size, 64, x, out, total, cluster=size, schedule=schedule, seed=seed)
    assert report.schedule.startswith(schedule)
    expected, sums = of_everything(x, size)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(total, sums)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("size, grid", [(1, 5), (2, 10), (4, 12), (16, 32)])
def test_levels_and_batches_change_nothing(size, grid, level, lanes):
    x = np.random.default_rng(1).integers(-99, 99, grid * 64).astype(np.int32)
    out, total = ints(x.size), np.zeros((grid, 2), np.int64)
    with simt.batch_lanes(lanes):
        run(everything, grid, 64, x, out, total, cluster=size, level=level)
    expected, sums = of_everything(x, size)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(total, sums)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("schedule, seed", [("lockstep", 0), ("blocks", 0), ("warps", 0), ("shuffled", 1)])
def test_counters_do_not_depend_on_schedule_and_batch(schedule, seed, lanes):
    x = np.arange(6 * 64, dtype=np.int32)
    with simt.batch_lanes(lanes):
        args = x, ints(x.size), np.zeros((6, 2), np.int64)
        report = run(everything, 6, 64, *args, cluster=3, schedule=schedule, seed=seed)
    warps, threads = 6 * 2, 6 * 64
    assert report.counters["cluster_requests"] == 3 * 3 * warps  # a load, a store and an atomic a round
    assert report.counters["cluster_bytes"] == 3 * (4 + 4 + 8) * threads
    assert report.counters["barriers"] == 10 * 6  # of each block
    store, load = (report.by_line[line_of(everything, text)] for text in ("[63 - t]", "received ="))
    assert (store["cluster_requests"], store["cluster_bytes"]) == (3 * warps, 3 * 4 * threads)
    assert (load["cluster_requests"], load["cluster_bytes"]) == (3 * warps, 3 * 4 * threads)
    assert load["shared_load_requests"] == 3 * warps  # its own: `theirs_to_me`
    assert store["shared_store_requests"] == 0


@cuda.jit
def half_a_warp(out):
    mine = cuda.shared.array(64, np.float64)
    t = cuda.threadIdx.x
    mine[t] = t
    cluster_sync()
    if t < 40:
        out[cuda.grid(1)] = map_shared_rank(mine, 1 - cluster_rank())[t]
    cluster_sync()


def test_only_active_lanes_move_bytes():
    report = run(half_a_warp, 2, 64, np.zeros(128))
    assert (report.counters["cluster_requests"], report.counters["cluster_bytes"]) == (4, 2 * 40 * 8)


@cuda.jit
def wide(out):
    mine = cuda.shared.array(128, np.float32, alignment=16)
    t = cuda.threadIdx.x
    store128(mine, 4 * t, (0.0, 1.0, 2.0, 3.0))
    cluster_sync()
    theirs = map_shared_rank(mine, 1 - cluster_rank())
    out[cuda.grid(1)] = load128(theirs, 4 * t)[1]
    cluster_sync()
    store128(theirs, 4 * t, (4.0, 5.0, 6.0, 7.0))
    cluster_sync()


def test_a_wide_access_is_one_request():
    out = np.zeros(64, np.float32)
    report = run(wide, 2, 32, out)
    assert (out == 1).all()
    assert (report.counters["cluster_requests"], report.counters["cluster_bytes"]) == (2 * 2, 2 * 2 * 32 * 16)


@cuda.jit
def wide_in_an_odd_array(out):
    """An array of 33 numbers: each block has it at the same address, whatever lies between them here."""
    mine = cuda.shared.array(33, np.float32, alignment=16)
    t = cuda.threadIdx.x
    if t < 33:
        mine[t] = t
    cluster_sync()
    if t < 8:
        theirs = map_shared_rank(mine, cluster_size() - 1 - cluster_rank())
        a, b, c, d = load128(theirs, 4 * t)
        out[cuda.blockIdx.x, t] = a + b + c + d
    cluster_sync()
    if t < 8:
        store128(theirs, 4 * t, (1.0, 2.0, 3.0, 4.0))
    cluster_sync()
    out[cuda.blockIdx.x, 8] = mine[5]


@each_schedule
def test_wide_accesses_to_an_array_of_an_odd_length(schedule, seed):
    out = np.zeros((3, 9), np.float32)
    run(wide_in_an_odd_array, 3, 64, out, cluster=3, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out, np.tile(np.r_[16 * np.arange(8) + 6, 2], (3, 1)))


@cuda.jit
def wide_where_no_group_begins(out):
    mine = cuda.shared.array(32, np.float32, alignment=16)
    mine[cuda.threadIdx.x] = 0
    cluster_sync()
    out[cuda.threadIdx.x] = load128(map_shared_rank(mine, 1 - cluster_rank()), 2)[0]
    cluster_sync()


@pytest.mark.parametrize("schedule", ["lockstep", "warps"])
def test_a_misaligned_access_is_named(schedule):
    said = r"misaligned 128-bit access: thread .* of block .* does not start a group"
    with pytest.raises(simt.SimtError, match=said):
        run(wide_where_no_group_begins, 2, 32, np.zeros(32, np.float32), schedule=schedule)


@cuda.jit
def votes_of_a_block(out):
    """A barrier of the block that counts, in blocks of a cluster."""
    sums = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    count = cuda.syncthreads_count(1 if t % (2 + cluster_rank()) == 0 else 0)
    if t == 0:
        sums[0] = count
    cluster_sync()
    if cuda.syncthreads_or(t // 40) != 0:
        out[cuda.grid(1)] = 100 * count + map_shared_rank(sums, 1 - cluster_rank())[0]
    cluster_sync()


@each_schedule
def test_votes_are_of_a_block_and_not_of_its_cluster(schedule, seed):
    out = ints(4 * 48)
    run(votes_of_a_block, 4, 48, out, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out.reshape(4, 48)[:, 0], [2416, 1624, 2416, 1624])
    assert (out.reshape(4, 48) == out.reshape(4, 48)[:, :1]).all()


@cuda.jit
def waits_for_the_last_block(flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == cuda.gridDim.x - 1:
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        out[cuda.blockIdx.x] = 1
    cluster_sync()


def test_clusters_are_resident_as_a_whole():
    """Of blocks of 1,024 threads 264 fit on an H200, and so 33 clusters of 8: a 34th begins when one has ended."""
    out = ints(264)
    run(waits_for_the_last_block, 264, 1024, ints(1), out, cluster=8, level="run", schedule="blocks")
    assert out.all()
    with pytest.raises(simt.SimtError, match=r"264 blocks that fit on the GPU.* other 8 begin only when one"):
        run(waits_for_the_last_block, 272, 1024, ints(1), ints(272), cluster=8, level="run", schedule="blocks")
    with pytest.raises(simt.SimtError, match=r"256 blocks that fit on the GPU.* other 16 begin only when one"):
        run(waits_for_the_last_block, 272, 1024, ints(1), ints(272), cluster=16, level="run", schedule="blocks")


def test_more_threads_of_a_cluster_than_can_wait():
    """A cluster begins as a whole, and each of its lanes keeps its variables."""
    out = ints(4 * 512)
    said = "a cluster of 4 blocks has 2,048 lanes, and the interpreter keeps no more than 1,024 at once"
    with pytest.raises(simt.LaunchError, match=said):
        run(ring_of_many, 4, 512, out, cluster=4, schedule="lanes")
    for schedule in ("lockstep", "blocks", "warps", "shuffled"):
        run(ring_of_many, 4, 512, out, cluster=4, schedule=schedule)
    run(ring_of_many, 4, 256, out, cluster=4, schedule="lanes")
    run(ring_of_many, 16, 64, out, cluster=16, schedule="lanes")


@cuda.jit
def ring_of_many(out):
    mine = cuda.shared.array(512, np.int32)
    mine[cuda.threadIdx.x] = cluster_rank()
    cluster_sync()
    out[cuda.grid(1)] = map_shared_rank(mine, cluster_size() - 1)[cuda.threadIdx.x]
    cluster_sync()


# -- what is mapped ----------------------------------------------------------------------------------------------------


@cuda.jit
def complex_numbers(out):
    z = cuda.shared.array(32, np.complex64)
    t = cuda.threadIdx.x
    z[t] = complex(cluster_rank(), t)
    cluster_sync()
    other = map_shared_rank(z, 1 - cluster_rank())
    out[0, cuda.grid(1)] = other[t].imag
    out[1, cuda.grid(1)] = other.real[t]
    out[2, cuda.grid(1)] = map_shared_rank(z.imag, 1 - cluster_rank())[31 - t]
    cluster_sync()
    other.imag[t] = 7
    cluster_sync()
    out[3, cuda.grid(1)] = z[t].imag


@each_schedule
def test_complex_numbers_and_their_parts(schedule, seed):
    out = np.zeros((4, 64), np.float32)
    run(complex_numbers, 2, 32, out, schedule=schedule, seed=seed)
    t = np.tile(np.arange(32), 2)
    np.testing.assert_array_equal(out, [t, np.repeat([1, 0], 32), 31 - t, np.full(64, 7)])


@cuda.jit
def other_types(out):
    """The same bytes as numbers of other types, before and after they are mapped."""
    words = cuda.shared.array(32, np.uint32)
    t = cuda.threadIdx.x
    words[t] = 0x01020304 + (cluster_rank() << 24)
    cluster_sync()
    out[0, cuda.grid(1)] = map_shared_rank(words.view(np.uint8), 1 - cluster_rank())[4 * t + 3]
    out[1, cuda.grid(1)] = map_shared_rank(words[1:].view(np.uint16), 1 - cluster_rank())[2 * (t % 31) + 1]
    cluster_sync()
    map_shared_rank(words.view(np.uint8), 1 - cluster_rank())[4 * t] = 9
    cluster_sync()
    out[2, cuda.grid(1)] = words[t]


@each_schedule
def test_a_view_of_another_type(schedule, seed):
    out = np.zeros((3, 64), np.uint32)
    run(other_types, 2, 32, out, schedule=schedule, seed=seed)
    theirs, mine = np.repeat([2, 1], 32), np.repeat([1, 2], 32)
    np.testing.assert_array_equal(out, [theirs, (theirs << 8) + 2, (mine << 24) + 0x020309])


@cuda.jit
def dynamic_of_two_types(out):
    halves, words = cuda.shared.array(0, np.uint16), cuda.shared.array(0, np.float32)
    t = cuda.threadIdx.x
    words[t] = 1.0
    cluster_sync()
    out[0, cuda.grid(1)] = map_shared_rank(halves, 1 - cluster_rank())[2 * t + 1]
    map_shared_rank(words[32:], 1 - cluster_rank())[t] = cluster_rank()
    cluster_sync()
    out[1, cuda.grid(1)] = words[32 + t]


@each_schedule
@pytest.mark.parametrize("extra", [0, 4, 20])
def test_dynamic_memory_of_two_types(extra, schedule, seed):
    out = np.zeros((2, 64), np.float32)
    run(dynamic_of_two_types, 2, 32, out, sharedmem=256 + extra, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out, [np.full(64, 0x3F80), np.repeat([1, 0], 32)])


@cuda.jit
def parts_and_loops(out):
    mine = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    mine[t], mine[t + 32] = t, t + 32
    cluster_sync()
    theirs = map_shared_rank(mine, 1 - cluster_rank())
    out[0, cuda.grid(1)] = theirs[t : t + 2][1]
    out[1, cuda.grid(1)] = theirs.reshape(8, 8)[t // 8, t % 8]
    total = 0
    for value in theirs:
        total += value
    for value in theirs[::2]:
        total -= value
    out[2, cuda.grid(1)] = total
    cluster_sync()


@each_schedule
def test_parts_of_a_mapped_array_and_loops_over_it(schedule, seed):
    out = ints(3, 64)
    run(parts_and_loops, 2, 32, out, schedule=schedule, seed=seed)
    t = np.tile(np.arange(32), 2)
    np.testing.assert_array_equal(out, [t + 1, t, np.full(64, 32 * 32)])


@cuda.jit
def chosen_by_a_branch(out):
    a, b = cuda.shared.array(32, np.int32), cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    a[t], b[t] = t, 100 + t
    cluster_sync()
    array, own = map_shared_rank(a, 1 - cluster_rank()), a
    if t % 2 == 1:
        array, own = map_shared_rank(b, 1 - cluster_rank()), b
    out[0, cuda.grid(1)] = array[t]
    out[1, cuda.grid(1)] = map_shared_rank(own, cluster_rank())[t]
    cluster_sync()


@each_schedule
def test_one_name_for_two_arrays(schedule, seed):
    out = ints(2, 64)
    run(chosen_by_a_branch, 2, 32, out, schedule=schedule, seed=seed)
    t = np.tile(np.arange(32), 2)
    np.testing.assert_array_equal(out, [t + 100 * (t % 2)] * 2)


@cuda.jit
def walk(starts, out, sums):
    """A loop that goes on longer in few threads than in the others, with arrays that were mapped before it."""
    mine, counts = cuda.shared.array(64, np.int32), cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    mine[t] = 3 * t + cluster_rank()
    counts[t] = 0
    cluster_sync()
    other = (cluster_rank() + t) % cluster_size()
    theirs, bins = map_shared_rank(mine, other), map_shared_rank(counts[32:], 1 - other)
    k, total = starts[cuda.grid(1)], 0
    while k > 0:
        total += theirs[k % 64]
        cuda.atomic.add(bins, k % 32, 1)
        k -= 1
    cluster_sync()
    out[cuda.grid(1)] = total
    sums[cuda.grid(1)] = counts[t]


@pytest.mark.parametrize("level", LEVELS)
def test_few_lanes_that_stay_in_a_loop(level, monkeypatch):
    """They are gathered into a short batch, and with them where each one's array begins."""
    gathered = []
    begin = _Gathered.__init__
    monkeypatch.setattr(_Gathered, "__init__", lambda self, *args: (gathered.append(1), begin(self, *args))[1])
    starts = np.random.default_rng(5).integers(0, 70, 6 * 64).astype(np.int32)
    out, sums = ints(starts.size), ints(starts.size)
    counters = []
    for when in ("never", "always"):
        with gathering(when):
            counters.append(run(walk, 6, 64, starts, out, sums, level=level).counters)
        assert bool(gathered) == (when == "always")
        bins = np.zeros((6, 64), np.int64)
        for i, start in enumerate(starts.tolist()):
            block, t, k = i // 64, i % 64, np.arange(1, start + 1)
            assert out[i] == (3 * (k % 64) + (block + t) % 2).sum()
            np.add.at(bins[block // 2 * 2 + 1 - (block + t) % 2], 32 + k % 32, 1)
        np.testing.assert_array_equal(sums.reshape(6, 64), bins)
    assert counters[0] == counters[1]


@cuda.jit
def sums_of_rounds(first, columns, out, counts):
    """Loops whose rounds could run together, over arrays that are mapped."""
    mine = cuda.shared.array(64, np.float32)
    bins = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    mine[t] = t + 0.5 + 100 * cluster_rank()
    bins[t] = 0
    cluster_sync()
    theirs = map_shared_rank(mine, 1 - cluster_rank())
    others = map_shared_rank(bins, 1 - cluster_rank())
    total = np.float32(0)
    for k in range(first[t], first[t + 1]):
        total += theirs[columns[k]] * mine[columns[k]]
    for k in range(first[t], first[t + 1]):
        cuda.atomic.add(others, columns[k], 1)
    cluster_sync()
    out[cuda.grid(1)] = total
    counts[cuda.grid(1)] = bins[t]


@each_schedule
def test_loops_whose_rounds_may_run_together(schedule, seed):
    rng = np.random.default_rng(2)
    first = np.r_[0, rng.integers(0, 40, 64).cumsum()].astype(np.int32)
    columns = rng.integers(0, 64, first[-1]).astype(np.int32)
    out, counts = np.zeros(128, np.float32), ints(128)
    run(sums_of_rounds, 2, 64, first, columns, out, counts, schedule=schedule, seed=seed)
    for rank in range(2):
        a, b = (columns + np.float32(0.5 + 100 * r) for r in (rank, 1 - rank))
        for t in range(64):
            here = slice(first[t], first[t + 1])
            total = np.float32(0)
            for product in b[here].astype(np.float32) * a[here].astype(np.float32):
                total += product
            assert out[64 * rank + t] == total
    np.testing.assert_array_equal(counts, np.tile(np.bincount(columns, minlength=64), 2))


# -- what the sanitizers say -------------------------------------------------------------------------------------------


@cuda.jit
def too_early(x, out, mended):
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    if mended:
        cluster_sync()
    map_shared_rank(mine, 1 - cluster_rank())[t] = t  # EARLY
    cluster_sync()
    out[cuda.grid(1)] = mine[t]


@each_schedule
def test_an_access_before_the_block_may_have_begun(schedule, seed):
    x, out = ints(64), ints(64)
    found = hazards_of(too_early, 2, 32, x, out, False, schedule=schedule, seed=seed)
    assert [(h.kind, h.space, h.line) for h in found] == [("race", "shared", line_of(too_early, "EARLY"))]
    said = r"thread \d+ of block (0|1) writes an element of .* in the shared memory of block (1|0), which may not have "
    said += r"begun: cluster_sync\(\) must come before the first such access"
    assert re.search(said, found[0].message)
    run(too_early, 2, 32, x, out, True, schedule=schedule, seed=seed)


@cuda.jit
def too_late(x, out, mended):
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    mine[t] = t
    cluster_sync()
    out[cuda.grid(1)] = map_shared_rank(mine, 1 - cluster_rank())[t]  # LATE
    if mended:
        cluster_sync()


@each_schedule
@pytest.mark.parametrize("grid, size", [(2, 2), (6, 2)])
def test_an_access_after_the_block_may_have_ended(grid, size, schedule, seed):
    x, out = ints(32 * grid), ints(32 * grid)
    found = hazards_of(too_late, grid, 32, x, out, False, cluster=size, schedule=schedule, seed=seed)
    assert [(h.kind, h.space, h.line) for h in found] == [("race", "shared", line_of(too_late, "LATE"))]
    said = r"in the shared memory of block \d, which (may have|has) ended: cluster_sync\(\) must come after the last "
    assert re.search(said + "such access", found[0].message)
    run(too_late, grid, 32, x, out, True, cluster=size, schedule=schedule, seed=seed)


@cuda.jit
def one_returns_too_soon(out, mended):
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    mine[t] = t
    cluster_sync()
    if cluster_rank() == 1 and not mended:
        return
    out[cuda.grid(1)] = map_shared_rank(mine, 1)[t]  # LATE
    cluster_sync()


@each_schedule
def test_an_access_to_a_block_that_has_returned(schedule, seed):
    out = ints(64)
    found = hazards_of(one_returns_too_soon, 2, 32, out, False, schedule=schedule, seed=seed)
    assert [(h.kind, h.space, h.line) for h in found] == [("race", "shared", line_of(one_returns_too_soon, "LATE"))]
    assert re.search(r"thread \d+ of block 0 .*shared memory of block 1, which (has|may have) ended", found[0].message)
    run(one_returns_too_soon, 2, 32, out, True, schedule=schedule, seed=seed)


@cuda.jit
def between(out, how):
    """A write of a block and a read of another one, with something between them."""
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    mine[t] = t
    cluster_sync()
    if cluster_rank() == 0:
        mine[t] = t + 1  # WRITE
    if how == 1:
        cuda.syncthreads()
    elif how == 2:
        cluster_sync()
    elif how == 3:
        cuda.threadfence()
        cuda.syncthreads()
    if cluster_rank() == 1:
        out[t] = map_shared_rank(mine, 0)[t]  # READ
    cluster_sync()


@each_schedule
@pytest.mark.parametrize("how", [0, 1, 2, 3])
def test_what_is_between_a_write_and_a_read_of_another_block(how, schedule, seed):
    out = ints(32)
    found = hazards_of(between, 4, 32, out, how, schedule=schedule, seed=seed) if how != 2 else []
    if how == 2:
        run(between, 2, 32, out, how, schedule=schedule, seed=seed)
        assert out.tolist() == list(range(1, 33))
        return
    races = [h for h in found if h.variable != "out"]  # two clusters write it
    lines = {line_of(between, "WRITE"), line_of(between, "READ")}
    assert races
    assert all(h.kind == "race" and h.space == "shared" and h.line in lines for h in races)
    assert "with no cluster_sync() in between" in races[0].message


@cuda.jit
def own_rank(out):
    """To the block's own array by its own rank: as any access to it."""
    mine = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    here = map_shared_rank(mine, cluster_rank())
    here[t] = t
    cuda.syncthreads()
    out[cuda.grid(1)] = mine[63 - t] + here[t]


@each_schedule
def test_its_own_rank_needs_no_barrier_of_the_cluster(schedule, seed):
    out = ints(256)
    run(own_rank, 4, 64, out, schedule=schedule, seed=seed)
    assert (out == 63).all()


@cuda.jit
def own_rank_without_a_barrier(out):
    mine = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    map_shared_rank(mine, cluster_rank())[t] = t  # WRITE
    out[cuda.grid(1)] = mine[63 - t]  # READ


@each_schedule
def test_its_own_rank_races_as_any_access(schedule, seed):
    found = hazards_of(own_rank_without_a_barrier, 2, 64, ints(128), schedule=schedule, seed=seed)
    lines = {line_of(own_rank_without_a_barrier, "WRITE"), line_of(own_rank_without_a_barrier, "READ")}
    assert {(h.kind, h.space) for h in found} - {("uninitialised_read", "shared")} == {("race", "shared")}
    assert {h.line for h in found} <= lines


@cuda.jit
def only_reads(x, out):
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]
    cluster_sync()
    total = 0
    for k in range(cluster_size()):
        theirs = map_shared_rank(mine, k)
        for i in range(32):
            total += theirs[i]
    out[cuda.grid(1)] = total
    cluster_sync()


@each_schedule
def test_all_may_read_what_all_read(schedule, seed):
    x, out = np.arange(192, dtype=np.int32), ints(192)
    run(only_reads, 6, 32, x, out, cluster=3, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out, np.repeat(x.reshape(2, -1).sum(axis=1), 96))


@cuda.jit
def votes(x, out, how):
    """All count in the first block's memory: by atomics, or by additions that get lost."""
    sums = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        sums[0] = 0
    cluster_sync()
    first = map_shared_rank(sums, 0)
    if how == 0:
        cuda.atomic.add(first, 0, x[cuda.grid(1)])
    elif how == 1:
        first[0] += x[cuda.grid(1)]  # LOST
    elif t == 0:
        first[0] += x[cuda.grid(1)]  # LOST TOO
    cluster_sync()
    out[cuda.blockIdx.x] = sums[0]


@each_schedule
def test_atomics_of_all_are_no_race_and_additions_are(schedule, seed):
    x, out = np.arange(96, dtype=np.int32), ints(3)
    run(votes, 3, 32, x, out, 0, cluster=3, schedule=schedule, seed=seed)
    assert out.tolist() == [x.sum(), 0, 0]
    for how, text in ((1, "# LOST\n"), (2, "# LOST TOO")):
        found = hazards_of(votes, 3, 32, x, out, how, cluster=3, schedule=schedule, seed=seed)
        assert {(h.kind, h.space, h.line) for h in found} == {("race", "shared", line_of(votes, text))}


@cuda.jit
def unset(out, mended):
    mine = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    if cluster_rank() == 0 or t < 32 or mended:
        mine[t] = t
    cluster_sync()
    out[cuda.grid(1)] = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())[t]  # READ
    cluster_sync()


@each_schedule
def test_a_read_of_what_another_block_has_not_written(schedule, seed):
    found = hazards_of(unset, 3, 64, ints(192), False, cluster=3, schedule=schedule, seed=seed)
    assert [(h.kind, h.space, h.line) for h in found] == [("uninitialised_read", "shared", line_of(unset, "READ"))]
    assert found[0].thread[0] >= 32
    assert found[0].block[0] in (0, 1)
    run(unset, 3, 64, ints(192), True, cluster=3, schedule=schedule, seed=seed)


@cuda.jit
def written_by_another(out):
    """A block reads of its own memory what others have written into it, and no one else."""
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    cluster_sync()
    map_shared_rank(mine, 1 - cluster_rank())[t] = t
    cluster_sync()
    out[cuda.grid(1)] = mine[t]


@each_schedule
def test_what_another_block_has_written_is_written(schedule, seed):
    out = ints(128)
    run(written_by_another, 4, 32, out, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out, np.tile(np.arange(32), 4))


@cuda.jit
def who_skips(out, who):
    t = cuda.threadIdx.x
    skips = (who == 0 and cluster_rank() == 1 and t == 5) or (who == 1 and cluster_rank() == 1 and t >= 32)
    skips = skips or (who == 2 and cluster_rank() == 1)
    if not skips:
        cluster_sync()  # SKIPPED
    out[cuda.grid(1)] = 1


@each_schedule
@pytest.mark.parametrize("who", [0, 1, 2], ids=["a thread", "a warp", "a block"])
def test_some_skip_the_barrier(who, schedule, seed):
    found = hazards_of(who_skips, 2, 64, ints(128), who, schedule=schedule, seed=seed)
    (only,) = found
    assert (only.kind, only.variable) == ("divergent_barrier", "cluster_sync()")
    assert only.line == line_of(who_skips, "SKIPPED")
    assert only.block == (1, 0, 0)
    assert only.thread[0] in ([5], range(32, 64), range(64))[who]
    assert re.search("other threads of its cluster wait|others of its cluster wait", only.message)
    run(who_skips, 2, 64, ints(128), 3, schedule=schedule, seed=seed)


@cuda.jit
def who_returns(out, who):
    t = cuda.threadIdx.x
    if (who == 0 and t == 5) or (who == 1 and t >= 32) or (who == 2 and cluster_rank() == 1):
        return
    mine = cuda.shared.array(64, np.int32)
    mine[t] = t
    cluster_sync()
    out[cuda.grid(1)] = map_shared_rank(mine, 0)[0]
    cluster_sync()


@each_schedule
@pytest.mark.parametrize("who", [0, 1, 2], ids=["a thread", "a warp", "a block"])
def test_threads_that_have_returned_are_not_waited_for(who, schedule, seed):
    run(who_returns, 4, 64, ints(256), who, schedule=schedule, seed=seed)


@cuda.jit
def different_lines(out):
    if cluster_rank() == 0:
        cluster_sync()  # FIRST
    else:
        cluster_sync()  # SECOND
    out[cuda.grid(1)] = 1


@each_schedule
def test_blocks_that_wait_at_different_places(schedule, seed):
    """A GPU counts arrivals and does not see where; but code that relies on it is refused, as for syncthreads."""
    found = hazards_of(different_lines, 2, 32, ints(64), schedule=schedule, seed=seed)
    lines = [line_of(different_lines, text) for text in ("FIRST", "SECOND")]
    assert {h.kind for h in found} == {"divergent_barrier"}
    assert {h.line for h in found} <= set(lines)


@cuda.jit
def waits_elsewhere(out):
    if cluster_rank() == 0 or cuda.threadIdx.x < 32:
        cluster_sync()  # CLUSTER
    else:
        cuda.syncthreads()  # BLOCK
    out[cuda.grid(1)] = 1


@pytest.mark.parametrize("schedule, seed", [("warps", 0), ("lanes", 0), ("shuffled", 0), ("shuffled", 3)])
def test_a_warp_at_syncthreads_and_another_at_cluster_sync(schedule, seed):
    with pytest.raises(simt.SimtError, match=r"neither can go on") as caught:
        hazards_of(waits_elsewhere, 2, 64, ints(128), schedule=schedule, seed=seed)
    text = str(caught.value)
    cluster, block = (line_of(waits_elsewhere, text) for text in ("CLUSTER", "BLOCK"))
    assert "waits at cluster_sync()" in text
    assert "waits at a barrier" in text
    assert f"line {cluster}" in text or f":{cluster}:" in text
    assert f"line {block}" in text or f":{block}:" in text


def test_in_lockstep_it_is_a_divergent_barrier():
    found = hazards_of(waits_elsewhere, 2, 64, ints(128), schedule="lockstep")
    assert {(h.kind, h.variable) for h in found} <= {
        ("divergent_barrier", "cluster_sync()"), ("divergent_barrier", "syncthreads()")
    }  # fmt: skip
    assert found


@cuda.jit
def waits_in_a_loop(flag, out):
    if cluster_rank() == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:  # LOOP
            pass
    cluster_sync()
    if cluster_rank() == 1:
        cuda.atomic.exch(flag, 0, 1)
    out[cuda.grid(1)] = 1


def test_a_flag_that_is_raised_only_behind_the_barrier_is_refused():
    with pytest.raises(simt.SimtError, match="waits") as caught:
        simt.profile(waits_in_a_loop, 2, 32, (ints(1), ints(64)), cluster=2, schedule="blocks")
    assert f":{line_of(waits_in_a_loop, 'LOOP')}:" in str(caught.value)


@cuda.jit
def out_of_rank(out, rank):
    mine = cuda.shared.array(32, np.int32)
    mine[cuda.threadIdx.x] = 0
    cluster_sync()
    out[cuda.grid(1)] = map_shared_rank(mine, rank)[cuda.threadIdx.x]  # RANK
    cluster_sync()


@each_schedule
@pytest.mark.parametrize("rank", [-1, 2, 2**31, np.uint64(2**63), np.uint8(255)])
def test_a_rank_that_the_cluster_has_not(rank, schedule, seed):
    found = hazards_of(out_of_rank, 4, 32, ints(128), rank, schedule=schedule, seed=seed)
    (only,) = {(h.kind, h.space, h.variable, h.line) for h in found}
    assert only == ("out_of_bounds", "shared", "mine", line_of(out_of_rank, "RANK"))
    assert f"maps mine to rank {rank}, and its cluster has 2 blocks" in found[0].message
    with pytest.raises(simt.OutOfBoundsError, match="its cluster has 2 blocks"):
        in_clusters(out_of_rank, 2)[4, 32](cuda.to_device(ints(128)), rank)


def test_a_plain_launch_has_rank_0_alone():
    run(out_of_rank, 4, 32, ints(128), 0, cluster=1)
    found = hazards_of(out_of_rank, 4, 32, ints(128), 1, cluster=1)
    assert "its cluster has one block: its launch has no clusters, or clusters of one" in found[0].message


@cuda.jit
def rank_out_in_some(out):
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    mine[t] = 0
    cluster_sync()
    if t < 20:
        out[cuda.grid(1)] = map_shared_rank(mine, t // 9)[t]
    cluster_sync()


@each_schedule
def test_a_rank_counts_only_in_active_lanes(schedule, seed):
    found = hazards_of(rank_out_in_some, 2, 32, ints(64), schedule=schedule, seed=seed)
    assert {h.kind for h in found} == {"out_of_bounds"}
    assert found[0].thread[0] in (18, 19)
    run(rank_out_in_some, 3, 32, ints(96), cluster=3, schedule=schedule, seed=seed)


@cuda.jit
def beyond(out, i):
    mine = cuda.shared.array((4, 8), np.int32)
    t = cuda.threadIdx.x
    mine[t // 8, t % 8] = 0
    cluster_sync()
    theirs = map_shared_rank(mine, 1 - cluster_rank())
    out[cuda.grid(1)] = theirs[t // 8, t % 8 + i]  # INDEX
    cluster_sync()


@each_schedule
def test_an_index_beyond_a_mapped_array(schedule, seed):
    found = hazards_of(beyond, 2, 32, ints(64), 1, schedule=schedule, seed=seed)
    (only,) = {(h.kind, h.space, h.variable, h.line) for h in found}
    assert only == ("out_of_bounds", "shared", "theirs", line_of(beyond, "INDEX"))
    assert found[0].thread[0] % 8 == 7
    run(beyond, 2, 32, ints(64), 0, schedule=schedule, seed=seed)


@cuda.jit
def in_another_function(out):
    mine = cuda.shared.array(32, np.int32)
    mine[cuda.threadIdx.x] = 0
    cluster_sync()
    out[cuda.grid(1)] = brought(mine)  # CALL
    if cluster_rank() == 5:
        cluster_sync()


@cuda.jit(device=True)
def brought(array):
    return map_shared_rank(array, 1 - cluster_rank())[cuda.threadIdx.x]  # INSIDE


@each_schedule
def test_what_a_device_function_does_is_named_with_its_line(schedule, seed):
    found = hazards_of(in_another_function, 2, 32, ints(64), schedule=schedule, seed=seed)
    (only,) = {(h.kind, h.space) for h in found}
    assert only == ("race", "shared")
    assert {h.line for h in found} <= {line_of(brought, "INSIDE"), line_of(in_another_function, "CALL")}
    assert re.search("which (may have|has) ended", found[0].message)


# -- signals -----------------------------------------------------------------------------------------------------------


@cuda.jit
def handed_over(data, flag, out, fenced):
    """Within a cluster, by a flag in global memory and no barrier."""
    t = cuda.threadIdx.x
    if cluster_rank() == 0:
        data[t] = t + 1
        cuda.syncthreads()
        if t == 0:
            if fenced:
                cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = data[t]  # READ


@pytest.mark.parametrize("schedule, seed", [("auto", 0), ("blocks", 0), ("warps", 0), ("shuffled", 0), ("shuffled", 1)])
def test_a_flag_between_blocks_of_a_cluster(schedule, seed):
    out = ints(64)
    run(handed_over, 2, 64, ints(64), ints(1), out, True, schedule=schedule, seed=seed)
    assert out.tolist() == list(range(1, 65))
    found = hazards_of(handed_over, 2, 64, ints(64), ints(1), out, False, schedule=schedule, seed=seed)
    assert {(h.kind, h.variable, h.line) for h in found} == {("race", "data", line_of(handed_over, "READ"))}


@cuda.jit
def shared_memory_by_a_flag(flags, out):
    """The write is to shared memory, and a flag in global memory says so; another says that it has been read."""
    mine = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    cluster_sync()
    if cluster_rank() == 0:
        mine[t] = t + 1
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flags, 0, 1)
            while cuda.atomic.add(flags, 1, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
    else:
        if t == 0:
            while cuda.atomic.add(flags, 0, 0) == 0:
                pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = map_shared_rank(mine, 0)[t]
        cuda.syncthreads()
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flags, 1, 1)


@pytest.mark.parametrize("schedule, seed", [("auto", 0), ("blocks", 0), ("warps", 0), ("shuffled", 0), ("shuffled", 1)])
def test_a_flag_orders_shared_memory_as_well(schedule, seed):
    out = ints(32)
    run(shared_memory_by_a_flag, 2, 32, ints(2), out, schedule=schedule, seed=seed)
    assert out.tolist() == list(range(1, 33))


@cuda.jit
def between_clusters(data, flag, out, before, behind):
    """The blocks of a cluster write, and one of them says so; of another cluster one waits, and all read."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x < 2:
        data[cuda.grid(1)] = 1 + cuda.grid(1)
        if before:
            cluster_sync()
        else:
            cuda.syncthreads()
        if cuda.grid(1) == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if cuda.blockIdx.x == 2 and t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        if behind:
            cluster_sync()
        else:
            cuda.syncthreads()
        out[cuda.grid(1) - 128] = data[127 - (cuda.grid(1) - 128)]  # READ


@pytest.mark.parametrize("schedule, seed", [("auto", 0), ("blocks", 0), ("warps", 0), ("shuffled", 0), ("shuffled", 1)])
def test_a_barrier_of_the_cluster_passes_on_what_one_has_seen(schedule, seed):
    out = ints(128)
    run(between_clusters, 4, 64, ints(128), ints(1), out, True, True, schedule=schedule, seed=seed)
    assert out.tolist() == list(range(128, 0, -1))
    for before, behind in ((False, True), (True, False), (False, False)):
        args = ints(128), ints(1), out, before, behind
        found = hazards_of(between_clusters, 4, 64, *args, schedule=schedule, seed=seed)
        assert {(h.kind, h.variable) for h in found} - {("uninitialised_read", "data")} == {("race", "data")}


@cuda.jit
def flag_in_shared_memory(out, at, fenced):
    """The flag lies in the memory of the block that waits (1), or in that of the block that signals (0)."""
    data, flag = cuda.shared.array(32, np.int32), cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        flag[0] = 0
    cluster_sync()
    if cluster_rank() == 0:
        data[t] = t + 1
        cuda.syncthreads()
        if t == 0:
            if fenced:
                cuda.threadfence()
            if at == 0:
                cuda.atomic.exch(flag, 0, 1)
            else:
                cuda.atomic.exch(map_shared_rank(flag, 1), 0, 1)
    else:
        if t == 0:
            if at == 1:
                while cuda.atomic.add(flag, 0, 0) == 0:
                    pass
            else:
                while cuda.atomic.add(map_shared_rank(flag, 0), 0, 0) == 0:
                    pass
            cuda.threadfence()
        cuda.syncthreads()
        out[t] = map_shared_rank(data, 0)[t]  # READ
    cluster_sync()


@cuda.jit
def lock_in_the_first_block(out, at, fenced):
    lock, total = cuda.shared.array(1, np.int32), cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        lock[0] = 0
        total[0] = 0
    cluster_sync()
    if t == 0:
        held, sum_ = map_shared_rank(lock, at), map_shared_rank(total, 0)
        while cuda.atomic.cas(held, 0, 0, 1) != 0:
            pass
        if fenced:
            cuda.threadfence()
        sum_[0] += 16 + cluster_rank()  # READ
        if fenced:
            cuda.threadfence()
        cuda.atomic.exch(held, 0, 0)
    cluster_sync()
    out[t] = map_shared_rank(total, 0)[0] - 32 + t
    cluster_sync()


@pytest.mark.parametrize("schedule, seed", [("auto", 0), *SCHEDULES[1:]])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("kernel", [flag_in_shared_memory, lock_in_the_first_block], ids=["flag", "lock"])
def test_signals_in_the_shared_memory_of_a_block(kernel, at, schedule, seed):
    out = ints(32)
    run(kernel, 2, 32, out, at, True, schedule=schedule, seed=seed)
    assert out.tolist() == list(range(1, 33))
    found = hazards_of(kernel, 2, 32, out, at, False, schedule=schedule, seed=seed)
    assert {(h.kind, h.space, h.line) for h in found} == {("race", "shared", line_of(kernel, "# READ"))}


@cuda.jit
def in_global_memory(x, out, everywhere):
    i, n = cuda.grid(1), 32 * cluster_size()
    x[i] = i
    cluster_sync()
    out[i] = x[x.size - 1 - i] if everywhere else x[i // n * n + n - 1 - i % n]  # READ


@each_schedule
def test_the_barrier_orders_global_memory_within_a_cluster_alone(schedule, seed):
    out = ints(256)
    run(in_global_memory, 8, 32, ints(256), out, False, cluster=4, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out, np.arange(256).reshape(2, 128)[:, ::-1].reshape(-1))
    found = hazards_of(in_global_memory, 8, 32, ints(256), out, True, cluster=4, schedule=schedule, seed=seed)
    assert {(h.kind, h.variable) for h in found} == {("race", "x")}
    assert "with nothing that orders the two blocks" in found[0].message


@cuda.jit
def with_mbarriers(x, out):
    """Warp 1 fills a buffer for warp 0, as warps that take turns do, and clusters exchange what was made of it."""
    buffer, full = cuda.shared.array(32, np.int32), cuda.shared.array(1, np.uint64)
    made = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        mbarrier_init(full, 0, 32)
    cluster_sync()
    if t >= 32:
        buffer[t - 32] = x[32 * cuda.blockIdx.x + t - 32]
        mbarrier_arrive(full, 0)
    else:
        mbarrier_wait(full, 0, 0)
        map_shared_rank(made, (cluster_rank() + 1) % cluster_size())[t] = 2 * buffer[31 - t]
    cluster_sync()
    if t < 32:
        out[32 * cuda.blockIdx.x + t] = made[t]


@pytest.mark.parametrize("schedule, seed", [("auto", 0), ("warps", 0), *(("shuffled", seed) for seed in range(3))])
def test_warps_that_wait_at_mbarriers_and_meet_their_cluster(schedule, seed):
    x = np.arange(6 * 32, dtype=np.int32)
    out = ints(x.size)
    report = run(with_mbarriers, 6, 64, x, out, cluster=3, schedule=schedule, seed=seed)
    expected = 2 * np.roll(x.reshape(2, 3, 32)[:, :, ::-1], 1, axis=1)
    np.testing.assert_array_equal(out, expected.reshape(-1))
    assert report.counters["barriers"] == 2 * 6


@cuda.jit
def more_blocks_than_fit(out):
    mine = cuda.shared.array(1, np.int32)
    mine[0] = cluster_rank()
    cluster_sync()
    out[cuda.blockIdx.x] = map_shared_rank(mine, cluster_size() - 1)[0]
    cluster_sync()


def test_a_grid_of_many_clusters_one_after_the_other():
    out = ints(1000)
    run(more_blocks_than_fit, 1000, 1, out, cluster=5, schedule="blocks")
    assert (out == 4).all()


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(kernel, *args, sentence, text, cluster=2, **options):
    with pytest.raises(simt.SimtError, match=sentence) as caught:
        simt.profile(kernel, 2, 32, args, cluster=cluster, **options)
    assert f"test_clusters.py:{line_of(kernel, text)}" in str(caught.value)


@cuda.jit
def maps_twice(out):
    mine = cuda.shared.array(32, np.int32)
    theirs = map_shared_rank(mine, 0)
    out[0] = map_shared_rank(theirs, 1)[0]  # HERE


@cuda.jit
def maps_global(out):
    map_shared_rank(out, 0)[0] = 1  # HERE


@cuda.jit
def maps_local(out):
    own = cuda.local.array(4, np.int32)
    own[0] = 1
    out[0] = map_shared_rank(own, 0)[0]  # HERE


PAIR = np.dtype([("a", np.int32), ("b", np.float32)])


@cuda.jit
def maps_records(out):
    mine = cuda.shared.array(4, PAIR)
    mine[0].a = 1
    out[0] = map_shared_rank(mine, 0)[0].a  # HERE


@cuda.jit
def maps_a_number(out):
    out[0] = map_shared_rank(3, 0)[0]  # HERE


@cuda.jit
def maps_to_a_float(out):
    mine = cuda.shared.array(4, np.int32)
    out[0] = map_shared_rank(mine, 0.5)[0]  # HERE


@cuda.jit
def maps_to_a_tuple(out):
    mine = cuda.shared.array(4, np.int32)
    out[0] = map_shared_rank(mine, (0, 1))[0]  # HERE


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (maps_twice, r"map_shared_rank: array must be this block's own; theirs was mapped before"),
        (maps_global, r"map_shared_rank: array must be in shared memory; out is in global memory"),
        (maps_local, r"map_shared_rank: array must be in shared memory; own is in local memory"),
        (maps_records, r"map_shared_rank: array must be an array of numbers in shared memory, was a 1-D array of"),
        (maps_a_number, r"map_shared_rank: array must be an array of numbers in shared memory, was int64"),
        (maps_to_a_float, r"map_shared_rank: rank must be one integer, was float64"),
        (maps_to_a_tuple, r"map_shared_rank: rank must be one integer, was a tuple of 2"),
    ],
)
def test_what_cannot_be_mapped(kernel, sentence, level):
    refused(kernel, ints(4), sentence=sentence, text="HERE", level=level)


@cuda.jit
def matrices_of_another(out):
    mine = cuda.shared.array(512, np.float16, alignment=16)
    theirs = map_shared_rank(mine, 0)
    out[0] = ldmatrix(theirs, 8 * (cuda.threadIdx.x % 32))[0]  # HERE


@cuda.jit
def copies_to_another(x):
    mine = cuda.shared.array(512, np.float32, alignment=16)
    copy_async(map_shared_rank(mine, 0), 4 * cuda.threadIdx.x, x, 4 * cuda.threadIdx.x, 4)  # HERE
    commit_copies()
    wait_copies(0)


@cuda.jit
def copies_from_another(x):
    mine = cuda.shared.array(512, np.float32, alignment=16)
    copy_async(mine, 4 * cuda.threadIdx.x, map_shared_rank(mine, 0), 4 * cuda.threadIdx.x, 4)  # HERE
    commit_copies()
    wait_copies(0)


@cuda.jit
def describes_another(out):
    tiles = cuda.shared.array(0, np.uint16, alignment=1024)
    out[0] = tile_descriptor(map_shared_rank(tiles, 0), 0, 0)  # HERE


@cuda.jit
def waits_at_another(out):
    full = cuda.shared.array(1, np.uint64)
    mbarrier_arrive(map_shared_rank(full, 0), 0)  # HERE
    out[0] = 1


@pytest.mark.parametrize(
    ("kernel", "argument", "sentence"),
    [
        (matrices_of_another, np.zeros(4, np.uint32), "ldmatrix: .* must be in shared memory; it is in .* memory"),
        (copies_to_another, np.zeros(512, np.float32), "copy_async: shared must be in shared memory; it is in .* mem"),
        (copies_from_another, np.zeros(512, np.float32), "copy_async: x must be in global memory; it is in .* memory"),
        (describes_another, np.zeros(4, np.uint64), "tile_descriptor: shared must be in shared memory; it is in .* m"),
        (waits_at_another, ints(4), "mbarrier_arrive: barriers must be in shared memory; it is in .* memory"),
    ],
)
def test_what_takes_only_the_own_shared_memory(kernel, argument, sentence):
    refused(kernel, argument, sentence=sentence, text="HERE", sharedmem=8192)


@cuda.jit
def whole_grid(out):
    out[cuda.grid(1)] = cluster_rank()
    cuda.cg.this_grid().sync()


@pytest.mark.parametrize("schedule", ["auto", "warps"])
def test_a_kernel_that_waits_for_the_whole_grid(schedule):
    """A GPU has no launch that is both; numba-cuda's is cooperative, and so no cluster can be asked for."""
    run(whole_grid, 2, 32, ints(64), cluster=1, schedule=schedule)
    said = "whole_grid waits for the whole grid: it cannot be launched in clusters"
    with pytest.raises(simt.LaunchError, match=said):
        run(whole_grid, 2, 32, ints(64), schedule=schedule)


def test_a_trace_has_all_but_what_goes_to_other_blocks():
    args = ints(64), ints(64), True
    trace = simt.profile(too_late, 2, 32, args, cluster=2, trace=simt.Tracing(blocks=1)).trace
    assert {one.space for one in trace.accesses()} == {"global", "shared"}
    with pytest.raises(simt.TraceError, match="what memory holds cannot be traced of a launch in clusters"):
        simt.profile(too_late, 2, 32, args, cluster=2, trace=simt.Tracing(blocks=1, contents=100))


def test_a_grid_can_say_its_clusters():
    out = ints(128)
    simt.profile(own_rank, simt.Clusters(2, 2), 64, (out,))
    again = pickle.loads(pickle.dumps(simt.Clusters(12, 4)))
    assert (again, again.size) == (12, 4)
    with pytest.raises(simt.LaunchError, match="must be a multiple of the cluster's 4 blocks"):
        simt.profile(own_rank, simt.Clusters(6, 4), 64, (out,))


@pytest.mark.parametrize("cluster", [0, -1, 17, 1.0, True, None, "2"])
def test_a_cluster_that_is_none(cluster):
    with pytest.raises(simt.LaunchError, match="it must be a number of blocks, from 1 to 16"):
        simt.profile(too_late, 2, 32, (ints(64), ints(64), True), cluster=cluster)


def test_a_grid_that_is_not_whole_clusters():
    with pytest.raises(simt.LaunchError, match=r"the grid is \(3, 2, 1\); its first extent must be a multiple of"):
        simt.profile(too_late, (3, 2), 32, (ints(192), ints(192), True), cluster=2)


def test_launches_are_recorded_with_their_clusters(monkeypatch):
    x, out = cuda.to_device(ints(64)), cuda.to_device(ints(64))
    with simt.record("check", collect=True) as reports:
        in_clusters(too_late, 2)[2, 32](x, out, True)
        in_clusters(too_late, 2)[2, 32](x, out, False)
    assert [len(report.hazards) for report in reports] == [0, 1]
    assert [report.counters["cluster_requests"] for report in reports] == [2, 2]
    monkeypatch.setenv("PMPP_CHECK", "1")
    with pytest.raises(simt.HazardError, match="cluster_sync"):
        in_clusters(too_late, 2)[2, 32](x, out, False)
