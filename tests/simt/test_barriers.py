"""Barriers, fences and grid synchronisation: what is written before is seen after, in every batch size."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda

LANES = [1, 100, 1 << 20]  # one block at a time, several, all
BY_TURNS = ["blocks", "warps", "lanes"]


@cuda.jit
def votes_of_a_block(x, out):
    i = cuda.grid(1)
    v = x[i]
    out[0, i] = cuda.syncthreads_count(v)
    out[1, i] = cuda.syncthreads_and(v)
    out[2, i] = cuda.syncthreads_or(v)


@pytest.mark.parametrize("schedule", ["lockstep", *BY_TURNS, "shuffled"])
@pytest.mark.parametrize("block", [32, 40, 96])
def test_counting_barriers_reduce_over_their_block(block, schedule):
    x = np.zeros((3, block), np.int32)
    x[1] = 3
    x[2, [0, block - 1]] = -1
    out = np.zeros((3, 3 * block), np.int64)
    with simt.schedule(schedule):
        votes_of_a_block[3, block](x.ravel(), out)
    by_block = out.reshape(3, 3, block)
    assert (by_block == by_block[:, :, :1]).all()
    assert by_block[0, :, 0].tolist() == [0, block, 2]
    assert (by_block[1, :, 0] != 0).tolist() == [False, True, False]
    assert (by_block[2, :, 0] != 0).tolist() == [False, True, True]


@cuda.jit
def votes_after_return(x, out):
    i = cuda.threadIdx.x
    if i >= 40:
        return
    out[i] = cuda.syncthreads_count(x[i])


@pytest.mark.parametrize("schedule", ["lockstep", *BY_TURNS])
def test_threads_that_returned_are_not_waited_for(schedule):
    # Numba's own guard pattern returns before barriers; hardware since Volta releases a barrier when the rest arrived.
    out = np.zeros(96, np.int32)
    simt.profile(votes_after_return, 1, 96, (np.ones(96, np.int32), out), level="run", schedule=schedule)
    assert out.tolist() == [40] * 40 + [0] * 56


@cuda.jit
def block_sum(x, out):
    s = cuda.shared.array(128, np.int32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    s[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    stride = cuda.blockDim.x // 2
    while stride > 0:
        if t < stride:
            s[t] += s[t + stride]
        cuda.syncthreads()
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = s[0]


@pytest.mark.parametrize("lanes", LANES)
def test_shared_tree_reduction(lanes):
    x = np.random.default_rng(0).integers(-50, 50, 1000).astype(np.int32)
    out = np.zeros(8, np.int32)
    with simt.batch_lanes(lanes):
        report = simt.profile(block_sum, 8, 128, (x, out), level="check")
    assert report.hazards == []
    np.testing.assert_array_equal(out, np.pad(x, (0, 24)).reshape(8, 128).sum(1))


@cuda.jit
def rotate_in_steps(x, steps):
    """Every step each element takes its left neighbour's value: wrong unless all blocks keep step."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    n = cuda.gridsize(1)
    for _ in range(steps):
        value = x[(i + n - 1) % n]
        grid.sync()
        x[i] = value
        grid.sync()


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("grid, block", [(1, 32), (4, 32), (3, 48)])
def test_grid_sync_keeps_all_blocks_in_step(grid, block, lanes):
    x = np.arange(grid * block, dtype=np.int32)
    with simt.batch_lanes(lanes):
        rotate_in_steps[grid, block](x, 5)
    np.testing.assert_array_equal(x, np.roll(np.arange(grid * block), 5))


@pytest.mark.parametrize("schedule", ["blocks", "warps", "shuffled"])
def test_grid_sync_keeps_blocks_that_take_turns_in_step(schedule):
    x = np.arange(256, dtype=np.int32)
    with simt.schedule(schedule):
        rotate_in_steps[4, 64](x, 3)
    np.testing.assert_array_equal(x, np.roll(np.arange(256), 3))


@cuda.jit
def grid_sync_and_shared(x, out):
    s = cuda.shared.array(32, np.int32)
    grid = cuda.cg.this_grid()
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    kept = x[cuda.grid(1)] * 2
    x[cuda.grid(1)] = cuda.blockIdx.x
    grid.sync()
    out[cuda.grid(1)] = s[31 - t] * 1000 + kept + x[(cuda.grid(1) + 32) % x.size] * 100000


@pytest.mark.parametrize("lanes", LANES)
def test_shared_memory_and_locals_survive_a_grid_sync(lanes):
    x = np.arange(96, dtype=np.int64) % 50
    before, out = x.copy(), np.zeros(96, np.int64)
    with simt.batch_lanes(lanes):
        grid_sync_and_shared[3, 32](x, out)
    by_block = before.reshape(3, 32)
    next_block = np.repeat([1, 2, 0], 32)
    np.testing.assert_array_equal(out, by_block[:, ::-1].ravel() * 1000 + before * 2 + next_block * 100000)


@cuda.jit
def last_block_sums(x, partial, ticket, out):
    """The threadfence reduction: the block that arrives last adds up what the others left."""
    is_last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        total = 0
        for k in range(32):
            total += x[cuda.blockIdx.x * 32 + k]
        partial[cuda.blockIdx.x] = total
        cuda.threadfence()
        is_last[0] = cuda.atomic.add(ticket, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if is_last[0] and t == 0:
        total = 0
        for k in range(cuda.gridDim.x):
            total += partial[k]
        out[0] = total


@pytest.mark.parametrize("lanes", LANES)
def test_exactly_one_block_is_last(lanes):
    x = np.arange(256, dtype=np.int64)
    partial, ticket, out = np.zeros(8, np.int64), np.zeros(1, np.int32), np.zeros(1, np.int64)
    with simt.batch_lanes(lanes):
        last_block_sums[8, 32](x, partial, ticket, out)
    assert out[0] == x.sum()


@cuda.jit
def barrier_in_a_uniform_branch(flag, out):
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    if flag[cuda.blockIdx.x] > 0:  # the same in a whole block, different between blocks
        cuda.syncthreads()
        out[cuda.grid(1)] = s[63 - t]
    else:
        out[cuda.grid(1)] = -1


@pytest.mark.parametrize("lanes", LANES)
def test_blocks_may_differ_in_the_barriers_they_reach(lanes):
    flag, out = np.array([1, 0, 1, 0], np.int32), np.zeros(256, np.int32)
    with simt.batch_lanes(lanes):
        report = simt.profile(barrier_in_a_uniform_branch, 4, 64, (flag, out), level="check")
    assert report.hazards == []
    assert report.counters["barriers"] == 2
    backwards = list(range(63, -1, -1))
    assert out.tolist() == (backwards + [-1] * 64) * 2


@cuda.jit
def barriers_by_block(out):
    s = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    s[t] = 0
    for k in range(cuda.blockIdx.x):
        cuda.syncthreads()
        value = s[(t + 1) % 32]
        cuda.syncthreads()
        s[t] = value + k + 1
    out[cuda.grid(1)] = s[t]


@pytest.mark.parametrize("lanes", LANES)
def test_blocks_may_loop_different_numbers_of_times_over_barriers(lanes):
    out = np.zeros(160, np.int32)
    with simt.batch_lanes(lanes):
        report = simt.profile(barriers_by_block, 5, 32, (out,), level="check")
    assert report.hazards == []
    assert report.counters["barriers"] == 2 * (0 + 1 + 2 + 3 + 4)
    assert out.reshape(5, 32)[:, 0].tolist() == [0, 1, 3, 6, 10]
