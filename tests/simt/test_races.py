"""The race detector against the definition: random programs, and every pair of accesses compared."""

import itertools

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

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
