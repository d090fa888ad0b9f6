"""Schedules: threads that wait for one another make progress or are refused, and the order of warps can be shuffled."""

import ast
import inspect
import textwrap
import threading
from unittest import mock

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.front.waiting import Watch, decided_by

LANES = [1, 100, 1 << 20]  # one block at a time, several, all


def run(kernel, grid, block, *args, level="check", **options):
    report = simt.profile(kernel, grid, block, args, level=level, **options)
    assert report.hazards == []
    return report


def line_of(kernel, text):
    lines, first = inspect.getsourcelines(kernel.py_func)
    return next(first + i for i, line in enumerate(lines) if text in line)


# -- between blocks ---------------------------------------------------------------------------------------------------


@cuda.jit
def chained_scan(ready, partial, x, out):
    """Each block waits for the running total of the block before it, and publishes its own."""
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        total = 0
        if b > 0:
            while cuda.atomic.add(ready, b - 1, 0) == 0:
                pass
            cuda.threadfence()
            total = partial[b - 1]
        total += x[b]
        partial[b] = total
        cuda.threadfence()
        cuda.atomic.exch(ready, b, 1)
        out[b] = total


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("level", ["run", "count", "check"])
def test_a_chained_scan_makes_progress_in_every_batch_size(lanes, level):
    x = np.arange(1, 41, dtype=np.int64)
    ready, partial, out = np.zeros(40, np.int32), np.zeros(40, np.int64), np.zeros(40, np.int64)
    with simt.batch_lanes(lanes):
        report = run(chained_scan, 40, 32, ready, partial, x, out, level=level)
    np.testing.assert_array_equal(out, np.cumsum(x))
    assert report.schedule == ("blocks" if lanes > 32 else "lockstep")  # one block after the other never has to wait


@cuda.jit
def polled_scan(ready, partial, x, out, spins):
    """Polls with plain reads and counts its rounds, so that no two rounds are alike."""
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        total = 0
        if b > 0:
            rounds = 0
            while True:
                rounds += 1
                if ready[b - 1] != 0:
                    break
            spins[b] = rounds
            cuda.threadfence()
            total = partial[b - 1]
        total += x[b]
        partial[b] = total
        cuda.threadfence()
        cuda.atomic.exch(ready, b, 1)
        out[b] = total


def test_a_loop_that_counts_its_rounds_is_seen_to_wait_all_the_same():
    x = np.arange(1, 9, dtype=np.int64)
    ready, partial, out, spins = np.zeros(8, np.int32), np.zeros(8, np.int64), np.zeros(8, np.int64), np.zeros(8)
    run(polled_scan, 8, 32, ready, partial, x, out, spins)
    np.testing.assert_array_equal(out, np.cumsum(x))


@cuda.jit
def unfenced_scan(ready, partial, x, out):
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        total = 0
        if b > 0:
            while cuda.atomic.add(ready, b - 1, 0) == 0:
                pass
            total = partial[b - 1]
        total += x[b]
        partial[b] = total
        cuda.atomic.exch(ready, b, 1)
        out[b] = total


def test_a_flag_without_its_fence_is_a_race():
    x, out = np.arange(8), np.zeros(8, np.int64)
    report = simt.profile(unfenced_scan, 8, 32, (np.zeros(8, np.int32), np.zeros(8, np.int64), x, out), level="check")
    assert [(h.kind, h.variable, h.line) for h in report.hazards] == [
        ("race", "partial", line_of(unfenced_scan, "total = partial"))
    ]


@cuda.jit
def waits_for_the_last_block(flag, out):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == cuda.gridDim.x - 1:
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        out[cuda.blockIdx.x] = 1


def test_waiting_for_a_later_block_works_while_all_are_resident():
    flag, out = np.zeros(1, np.int32), np.zeros(100, np.int32)
    run(waits_for_the_last_block, 100, 32, flag, out)
    assert out.all()


def test_waiting_for_a_block_that_cannot_begin_is_refused_with_the_reason():
    blocks = 132 * 2 + 1  # 1024 threads: two blocks on each of 132 SMs, and one that must wait for a place
    flag, out = np.zeros(1, np.int32), np.zeros(blocks, np.int32)
    with pytest.raises(simt.SimtError, match=r"264 blocks that fit on the GPU.* other 1 begin only when") as caught:
        simt.profile(waits_for_the_last_block, blocks, 1024, (flag, out), level="run", schedule="blocks")
    assert f":{line_of(waits_for_the_last_block, 'while')}:" in str(caught.value)


def test_shared_memory_limits_how_many_blocks_are_resident():
    flag, out = np.zeros(1, np.int32), np.zeros(600, np.int32)
    options = {"sharedmem": 48 * 1024, "level": "run", "schedule": "blocks"}
    with pytest.raises(simt.SimtError, match="528 blocks that fit on the GPU at once"):  # 4 an SM, by 228 KiB
        simt.profile(waits_for_the_last_block, 600, 32, (flag, out), **options)


@cuda.jit
def locked_sum(lock, total, x):
    """One lane of each block adds under a lock."""
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)


@pytest.mark.parametrize("schedule", ["auto", "blocks", "warps", "shuffled"])
def test_a_lock_between_blocks(schedule):
    lock, total, x = np.zeros(1, np.int32), np.zeros(1), np.arange(50.0)
    run(locked_sum, 50, 64, lock, total, x, schedule=schedule)
    assert (lock[0], total[0]) == (0, x.sum())


@cuda.jit
def unfenced_lock(lock, total, x):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.cas(lock, 0, 0, 1) != 0:
            pass
        total[0] += x[cuda.blockIdx.x]
        cuda.atomic.exch(lock, 0, 0)


def test_a_lock_that_publishes_nothing_is_a_race():
    report = simt.profile(unfenced_lock, 5, 32, (np.zeros(1, np.int32), np.zeros(1), np.ones(5)), level="check")
    assert {(h.kind, h.variable) for h in report.hazards} == {("race", "total")}


# -- within a block ---------------------------------------------------------------------------------------------------


@cuda.jit
def producer_and_consumer(x, out):
    """Warp 1 fills a buffer and raises a flag; warp 0 waits for the flag and empties it, again and again."""
    buffer = cuda.shared.array(32, np.float32)
    turn = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    lane = t % 32
    if t == 0:
        turn[0] = 0
    cuda.syncthreads()
    for k in range(x.shape[0]):
        if t < 32:
            if lane == 0:
                while cuda.atomic.add(turn, 0, 0) != 2 * k + 1:
                    pass
                cuda.threadfence_block()
            cuda.syncwarp()
            out[k, lane] = 2 * buffer[lane]
            cuda.syncwarp()
            if lane == 0:
                cuda.threadfence_block()
                cuda.atomic.add(turn, 0, 1)
        else:
            if lane == 0:
                while cuda.atomic.add(turn, 0, 0) != 2 * k:
                    pass
                cuda.threadfence_block()
            cuda.syncwarp()
            buffer[lane] = x[k, lane]
            cuda.syncwarp()
            if lane == 0:
                cuda.threadfence_block()
                cuda.atomic.add(turn, 0, 1)


@pytest.mark.parametrize("schedule, seed", [(None, 0), ("shuffled", 0), ("shuffled", 1), ("shuffled", 2)])
def test_producer_and_consumer_warps(schedule, seed):
    x = np.random.default_rng(0).random((7, 32), np.float32)
    out = np.zeros_like(x)
    report = run(producer_and_consumer, 1, 64, x, out, schedule=schedule, seed=seed)
    np.testing.assert_array_equal(out, 2 * x)
    assert report.schedule == (f"shuffled, seed {seed}" if schedule else "warps")


@cuda.jit
def lock_of_every_lane(lock, total):
    t = cuda.threadIdx.x
    done = False
    while not done:
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.threadfence()
            total[0] += t
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            done = True


@cuda.jit
def naive_lock_of_every_lane(lock, total):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    total[0] += cuda.threadIdx.x
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


@pytest.mark.parametrize("kernel, schedule", [(lock_of_every_lane, "lockstep"), (naive_lock_of_every_lane, "lanes")])
def test_locks_within_a_warp(kernel, schedule):
    lock, total = np.zeros(1, np.int32), np.zeros(1)
    report = run(kernel, 2, 48, lock, total)
    assert (lock[0], total[0]) == (0, 2 * sum(range(48)))
    assert report.schedule == schedule


@cuda.jit
def waits_within_a_warp(flag, out):
    t = cuda.threadIdx.x
    if t == 1:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        out[0] = 5
    if t == 0:
        cuda.atomic.exch(flag, 0, 1)
    out[1] = cuda.shfl_sync(0xFFFFFFFF, out[1], 0)


def test_lanes_of_one_warp_that_wait_and_shuffle_are_refused():
    with pytest.raises(simt.SimtError, match="unless it is a thread of its own warp") as caught:
        waits_within_a_warp[1, 32](np.zeros(1, np.int32), np.zeros(2, np.int32))
    assert f":{line_of(waits_within_a_warp, 'while')}:" in str(caught.value)


@cuda.jit
def waits_behind_a_barrier(flag, out):
    if cuda.threadIdx.x < 32:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
    cuda.syncthreads()
    if cuda.threadIdx.x == 32:
        cuda.atomic.exch(flag, 0, 1)


def test_a_flag_that_is_raised_only_behind_the_barrier_is_refused():
    with pytest.raises(simt.SimtError, match="waits at the barrier on line") as caught:
        simt.profile(waits_behind_a_barrier, 1, 64, (np.zeros(1, np.int32), np.zeros(1)), schedule="warps")
    message = str(caught.value)
    assert f":{line_of(waits_behind_a_barrier, 'while')}:" in message
    assert f"line {line_of(waits_behind_a_barrier, 'cuda.syncthreads')} " in message


@cuda.jit
def waits_for_nobody(flag):
    while flag[0] == 0:
        pass


@pytest.mark.parametrize("schedule", ["auto", "lockstep", "blocks", "warps", "lanes", "shuffled"])
def test_waiting_for_nobody_is_refused_by_every_schedule(schedule):
    flag = np.zeros(1, np.int32)
    with pytest.raises(simt.SimtError, match="waits") as caught:
        simt.profile(waits_for_nobody, 2, 64, (flag,), schedule=schedule)
    assert f":{line_of(waits_for_nobody, 'while')}:" in str(caught.value)
    assert flag[0] == 0


@cuda.jit
def gives_up(flag, out):
    for _ in range(20):
        if flag[0] != 0:
            break
    else:
        out[0] += 1


@pytest.mark.parametrize("schedule", ["auto", "warps"])
def test_a_loop_that_gives_up_waiting_ends(schedule):
    out = np.zeros(1)
    simt.profile(gives_up, 1, 32, (np.zeros(1, np.int32), out), schedule=schedule)
    assert out[0] == 1


@cuda.jit
def counts_its_rounds(flag, out):
    n = 0
    while flag[0] == 0:
        n += 1
    out[0] = n


@pytest.mark.parametrize("schedule", ["auto", "lockstep", "blocks", "warps", "lanes", "shuffled"])
def test_a_loop_that_waits_for_nobody_and_counts_its_rounds_is_refused_soon(schedule):
    """That it counts changes nothing of what it waits for: so it needs not run to the limit of a million rounds."""
    rounds, check = [], Watch.check
    with (
        mock.patch.object(Watch, "check", lambda *args, **how: rounds.append(1) or check(*args, **how)),
        pytest.raises(simt.SimtError, match="waits"),
    ):
        simt.profile(counts_its_rounds, 2, 64, (np.zeros(1, np.int32), np.zeros(1, np.int64)), schedule=schedule)
    assert len(rounds) < 10_000


@cuda.jit
def gives_up_by_way_of_others(flag, out):
    """Its counter decides, though the test does not name it: by a variable, and by a test around its assignment."""
    n = 0
    tries = 0
    gone = False
    while not gone:
        tries += 1
        n = tries // 2
        if flag[0] != 0 or n > 200:
            gone = True
    out[0] = n


@pytest.mark.parametrize("schedule", ["auto", "blocks", "warps", "lanes"])
def test_a_counter_that_decides_is_waited_for(schedule):
    out = np.zeros(1, np.int64)
    simt.profile(gives_up_by_way_of_others, 1, 32, (np.zeros(1, np.int32), out), schedule=schedule)
    assert out[0] == 201


def deciding_names(source):
    tree = ast.parse(textwrap.dedent(source)).body[0]
    return set(decided_by(tree))


def test_which_variables_decide_whether_a_loop_goes_on():
    assert deciding_names("while flag[i] == 0: n += 1") == {"flag", "i"}
    assert deciding_names("while a < b:\n    a = c\n    c = d + a\n    n += d") == {"a", "b", "c", "d"}
    assert deciding_names("while True:\n    n += 1\n    if x[0] > y: break") == {"x", "y"}
    assert deciding_names("while go:\n    n += 1\n    for k in range(m):\n        if n > 3: go = False") == {
        "go", "n", "m", "range",
    }  # fmt: skip
    assert deciding_names("for k in range(n):\n    m += 1\n    if x[0]: continue") == {"k", "x", "n", "range"}


@cuda.jit
def counts_then_waits(flag, out):
    i = cuda.grid(1)
    out[i] += 1
    if i == 0:
        while cuda.atomic.add(flag, 0, 0) != 31:
            pass
    elif i % 32 == 0:
        cuda.atomic.add(flag, 0, 1)


def test_a_launch_that_begins_again_begins_from_the_start():
    flag, out = np.zeros(1, np.int32), np.zeros(1024, np.int32)
    report = run(counts_then_waits, 32, 32, flag, out)
    assert report.schedule == "blocks"
    assert (out == 1).all()
    line = report.by_line[line_of(counts_then_waits, "out[i] += 1")]
    assert (line["global_load_requests"], line["global_store_requests"]) == (32, 32)


# -- barriers by turns ------------------------------------------------------------------------------------------------


@cuda.jit
def tree_sum(x, out):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    stride = 64
    while stride > 0:
        if t < stride:
            s[t] += s[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@cuda.jit
def tree_sum_without_barrier(x, out):
    s = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    stride = 64
    while stride > 0:
        if t < stride:
            s[t] += s[t + stride]
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@pytest.mark.parametrize("schedule", ["lockstep", "blocks", "warps", "lanes", "shuffled"])
def test_every_schedule_gives_the_same_sums_and_counters(schedule):
    x = np.random.default_rng(1).integers(0, 50, 5 * 128).astype(np.float32)
    out = np.zeros(5, np.float32)
    report = run(tree_sum, 5, 128, x, out, schedule=schedule)
    np.testing.assert_array_equal(out, x.reshape(5, 128).sum(axis=1))
    lockstep = run(tree_sum, 5, 128, x, out, schedule="lockstep")
    names = ["barriers", "flops", "thread_instructions"] if schedule == "lanes" else list(lockstep.counters)
    assert {n: report.counters[n] for n in names} == {n: lockstep.counters[n] for n in names}


def test_shuffled_warps_show_a_missing_barrier_in_the_result():
    x = np.ones(128, np.float32)
    sums = set()
    for seed in range(4):
        out = np.zeros(1, np.float32)
        simt.profile(tree_sum_without_barrier, 1, 128, (x, out), schedule="shuffled", seed=seed)
        sums.add(float(out[0]))
    assert sums != {128.0}
    out = np.zeros(1, np.float32)
    simt.profile(tree_sum_without_barrier, 1, 128, (x, out))
    assert out[0] == 128  # lockstep hides it


@cuda.jit
def order_of_arrival(next_place, place):
    if cuda.threadIdx.x % 32 == 0:
        place[cuda.grid(1) // 32] = cuda.atomic.add(next_place, 0, 1)


def test_a_seed_fixes_the_order_and_another_changes_it():
    def places(seed):
        counter, place = np.zeros(1, np.int32), np.zeros(12, np.int32)
        with simt.schedule("shuffled", seed=seed):
            order_of_arrival[3, 128](counter, place)
        assert sorted(place) == list(range(12))
        return place.tolist()

    assert places(5) == places(5)
    assert len({tuple(places(seed)) for seed in range(6)}) > 3


@cuda.jit
def two_barriers(out):
    if cuda.threadIdx.x < 32:
        out[cuda.threadIdx.x] = 1
        cuda.syncthreads()
    else:
        cuda.syncthreads()


def test_warps_that_wait_at_different_barriers_are_told():
    report = simt.profile(two_barriers, 1, 64, (np.zeros(64),), level="check", schedule="warps")
    assert [h.kind for h in report.hazards] == ["divergent_barrier"]


@cuda.jit
def fails_in_one_thread(x, out):
    i = cuda.grid(1)
    cuda.syncthreads()
    out[i] = x[i]


@pytest.mark.parametrize("schedule", ["blocks", "warps", "lanes", "shuffled"])
def test_an_error_in_a_fiber_reaches_the_caller_and_leaves_no_thread_behind(schedule):
    before = threading.active_count()
    with pytest.raises(simt.OutOfBoundsError):
        simt.profile(fails_in_one_thread, 2, 64, (np.zeros(100), np.zeros(128)), schedule=schedule)
    assert threading.active_count() == before


def test_float_atomics_add_up_the_same_in_lockstep_and_by_turns():
    @cuda.jit
    def total(x, out):
        cuda.atomic.add(out, 0, x[cuda.grid(1)])

    x = np.random.default_rng(3).random(64 * 20, np.float32)
    sums = []
    for schedule in ("lockstep", "blocks", "warps"):
        out = np.zeros(1, np.float32)
        run(total, 20, 64, x, out, schedule=schedule)
        sums.append(out[0])
    assert sums[0] == sums[1] == sums[2]


# -- bad requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, fragment", [
    ({"schedule": "random"}, "schedule is 'random'; it must be one of auto, lockstep"),
    ({"schedule": "shuffled", "seed": -1}, "seed is -1"),
    ({"schedule": "shuffled", "seed": 1.5}, "seed is 1.5"),
])  # fmt: skip
def test_unknown_schedules_are_refused(options, fragment):
    with pytest.raises(simt.LaunchError, match=fragment):
        simt.profile(tree_sum, 1, 128, (np.zeros(128, np.float32), np.zeros(1, np.float32)), **options)
