"""The race detector against the definition: random programs, and every pair of accesses compared."""

import itertools

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda
from pmpp.simt.observe import checks
from pmpp.simt.observe.shadow import Accesses, Displaced

IDLE, STORE, LOAD, UPDATE = range(4)
NOTHING, WARP_BARRIER, BARRIER, BY_HALVES, ONE_HALF = range(5)


@cuda.jit(device=True)
def synchronise(how):
    """The barriers of a warp, whole or in groups."""
    low = cuda.laneid < 16
    if how == WARP_BARRIER:
        cuda.syncwarp()
    if how == BY_HALVES:
        cuda.syncwarp(0xFFFF if low else 0xFFFF0000)
    if how == ONE_HALF and low:
        cuda.syncwarp(0xFFFF)


@cuda.jit
def shared_program(action, element, after, out):
    s = cuda.shared.array(4, np.int64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    if t < 4:
        s[t] = 0
    cuda.syncthreads()
    for k in range(after.size):
        if action[k, i] == STORE:
            s[element[k, i]] = 1000 * k + i + 1
        if action[k, i] == LOAD:
            out[i] += s[element[k, i]]
        if action[k, i] == UPDATE:
            cuda.atomic.add(s, element[k, i], 1)
        synchronise(after[k])
        if after[k] == BARRIER:
            cuda.syncthreads()


@cuda.jit
def global_program(action, element, after, out, s):
    i = cuda.grid(1)
    for k in range(after.size):
        if action[k, i] == STORE:
            s[element[k, i]] = 1000 * k + i + 1
        if action[k, i] == LOAD:
            out[i] += s[element[k, i]]
        if action[k, i] == UPDATE:
            cuda.atomic.add(s, element[k, i], 1)
        synchronise(after[k])
        if after[k] == BARRIER:
            cuda.syncthreads()


def programs(seed, grid, block, steps=8, threads=5):
    """Actions of a few threads, on few elements, and what follows each step."""
    rng = np.random.default_rng(seed)
    busy = rng.choice(grid * block, threads, replace=False)
    action = np.zeros((steps, grid * block), np.int64)
    action[:, busy] = rng.choice([IDLE, STORE, LOAD, UPDATE], (steps, threads), p=[0.6, 0.1, 0.2, 0.1])
    element = rng.integers(0, 4, action.shape)
    after = rng.choice([NOTHING, WARP_BARRIER, BARRIER, BY_HALVES, ONE_HALF], steps, p=[0.3, 0.2, 0.2, 0.2, 0.1])
    return action, element, after


def races(action, element, after, block, shared):
    """By definition: two accesses to one element by different threads with nothing that orders them.

    Not both are loads, nor both atomics.  (A block whose own atomic came last may also store there, to reset a counter;
    the seeds below have no such program.)
    """
    barriers = np.r_[0, np.cumsum(after == BARRIER)]
    accesses = [(k, i, action[k, i], element[k, i]) for k, i in zip(*np.nonzero(action), strict=True)]
    for (k, i, a, e), (n, j, b, f) in itertools.combinations(accesses, 2):
        if i == j or e != f or a == b == LOAD or a == b == UPDATE:
            continue
        if i // block != j // block:
            if not shared:
                yield k, i, n, j
        elif barriers[k] == barriers[n] and not (i // 32 == j // 32 and met(after[k:n], i % 32 < 16, j % 32 < 16)):
            yield k, i, n, j


def met(after, low, other_low):
    """Whether two lanes of a warp, each in its lower half or not, have done a barrier together."""
    together = (
        {WARP_BARRIER} | ({BY_HALVES} if low == other_low else set()) | ({ONE_HALF} if low and other_low else set())
    )
    return not together.isdisjoint(after.tolist())


@pytest.mark.parametrize("schedule", ["lockstep", "shuffled"])
def test_shared_memory(schedule):
    grid, block, racy = 1, 96, 0
    for seed in range(30 if schedule == "shuffled" else 80):
        action, element, after = programs(seed, grid, block)
        expected = list(races(action, element, after, block, True))
        report = simt.profile(
            shared_program, grid, block, (action, element, after, np.zeros(grid * block, np.int64)),
            level="check", collect=True, schedule=schedule, seed=seed,
        )  # fmt: skip
        assert {h.variable for h in report.hazards} <= {"s"}
        assert bool(report.hazards) == bool(expected), (seed, expected, [h.message for h in report.hazards])
        racy += bool(expected)
    assert racy > 10


@pytest.mark.parametrize("lanes", [1 << 20, 1])
def test_global_memory(lanes):
    grid, block, racy = 3, 64, 0
    for seed in range(80):
        action, element, after = programs(seed, grid, block, steps=6, threads=4)
        element += 4 * (np.arange(grid * block) // block) * (seed % 3 != 0)  # mostly, each block has its own elements
        expected = list(races(action, element, after, block, False))
        with simt.batch_lanes(lanes):
            report = simt.profile(
                global_program, grid, block,
                (action, element, after, np.zeros(grid * block, np.int64), np.zeros(12, np.int64)),
                level="check", collect=True,
            )  # fmt: skip
        assert {h.variable for h in report.hazards} <= {"s"}
        assert bool(report.hazards) == bool(expected), (seed, expected, [h.message for h in report.hazards])
        racy += bool(expected)
    assert racy > 10


def test_of_many_readers_each_counts_where_some_lanes_meet():
    """Lanes of a warp read one element, some of them meet, and one writes."""
    racy = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        steps = int(rng.integers(2, 5))
        action, element = np.zeros((2, steps, 32), np.int64)
        for k in range(steps - 1):
            action[k] = np.where(rng.random(32) < rng.choice([0.1, 0.6]), LOAD, IDLE)
        action[-1, rng.integers(32)] = STORE
        after = rng.choice([NOTHING, WARP_BARRIER, BY_HALVES, ONE_HALF], steps, p=[0.1, 0.2, 0.4, 0.3])
        expected = list(races(action, element, after, 32, True))
        args = action, element, after, np.zeros(32, np.int64)
        report = simt.profile(shared_program, 1, 32, args, level="check", collect=True)
        assert bool(report.hazards) == bool(expected), (seed, expected, [h.message for h in report.hazards])
        racy += bool(expected)
    assert 10 < racy < 50


@cuda.jit
def limit_withdrawn(limit, reads, draws, ticket, tickets):
    b = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        for _ in range(reads[b]):
            limit[1 + b] += limit[0]
        if draws[b]:
            cuda.threadfence()
            if cuda.atomic.add(ticket, 0, 1) == tickets - 1:
                cuda.threadfence()
                limit[0] = 7


@pytest.mark.parametrize("lanes", [1 << 20, 1])
def test_of_many_readers_each_counts_where_some_blocks_signal(lanes):
    """The block that draws the last ticket writes what others have read: those that drew one, and perhaps more."""
    racy = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        draws = rng.random(6) < 0.6
        draws[rng.integers(6)] = True
        reads = rng.integers(0, 3, 6) * (draws | (rng.random(6) < 0.5))
        args = np.ones(7), reads, draws, np.zeros(1, np.int64), int(draws.sum())
        with simt.batch_lanes(lanes):
            report = simt.profile(limit_withdrawn, 6, 32, args, level="check", collect=True)
        expected = bool((reads > 0)[~draws].any())
        assert bool(report.hazards) == expected, (seed, reads, draws, [h.message for h in report.hazards])
        racy += expected
    assert 10 < racy < 35


def test_readers_that_made_room_are_kept_by_thread_then_by_block():
    """Ten threads have room, each with its last access; of 40 threads the last of each block is kept."""
    kept = Displaced(32)
    kept.SIZE = 32
    cells, threads = np.zeros(40, np.int64), np.arange(40, dtype=np.int64)
    kept.add(cells[:10], threads[:10] | 1 << 32, 0)
    kept.add(cells[:10], threads[:10] | 2 << 32, 0)
    lanes, stamps = kept.of(np.array([3, 0]), 0)
    assert lanes.tolist() == [1] * 10
    assert sorted(stamps & 0xFFFFFFFF) == list(range(10))
    assert set(stamps >> 32) == {2}
    kept.add(cells, threads | 3 << 32, 0)
    _, stamps = kept.of(np.array([0]), 0)
    assert sorted(stamps & 0xFFFFFFFF) == [31, 39]
    kept.repeat(2, 1)
    assert sorted(kept.of(np.array([1]), 0)[1] & 0xFFFFFFFF) == [63, 71]
    kept.refine(2)
    assert sorted(kept.of(np.array([3]), 0)[1] & 0xFFFFFFFF) == [63, 71]
    assert kept.of(np.array([4]), 0)[1].size == 0
    kept.add(np.array([9]), np.array([5 << 32], np.int64), 0)
    assert kept.of(np.array([3, 9]), 4)[0].tolist() == [1]


def test_a_few_threads_stand_for_all_that_read_one_element():
    rng = np.random.default_rng(0)
    for _ in range(300):
        width = int(rng.choice([32, 64, 96]))
        everybody, few = Accesses(3), Accesses(3)
        for now in range(1, int(rng.integers(2, 6))):
            me = np.flatnonzero(rng.random(4 * width) < rng.choice([0.02, 0.1, 0.9])).astype(np.int64)
            if me.size:
                cells = np.full(me.size, rng.integers(0, 3))
                everybody.add(cells, me | np.int64(now << 32), 0, width)
                some, who = checks._who_tells_all(cells, me, width)
                assert who.size <= 4
                few.add(some, who | np.int64(now << 32), 0, width)
        assert few.last.tolist() == everybody.last.tolist()
        nothing = [np.zeros(3, np.int64)] * 3
        for one, other in zip(few.others or nothing, everybody.others or nothing, strict=True):
            assert one.tolist() == other.tolist()
