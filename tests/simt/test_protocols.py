"""Protocols between blocks as programs use them, correct: level "check" is silent under every schedule."""

import numpy as np
import pytest

from pmpp import simt
from pmpp.simt import cuda


@cuda.jit(device=True)
def meet_all(arrived, generation):
    """A barrier of the grid by hand, for use again and again."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        now = cuda.atomic.add(generation, 0, 0)
        if cuda.atomic.add(arrived, 0, 1) == cuda.gridDim.x - 1:
            cuda.atomic.exch(arrived, 0, 0)
            cuda.threadfence()
            cuda.atomic.add(generation, 0, 1)
        else:
            while cuda.atomic.add(generation, 0, 0) == now:
                pass
        cuda.threadfence()
    cuda.syncthreads()


@cuda.jit
def rotate(x, arrived, generation, out):
    i, n = cuda.grid(1), cuda.gridsize(1)
    for _ in range(3):
        value = x[(i + 64) % n]
        meet_all(arrived, generation)
        x[i] = value
        meet_all(arrived, generation)
    out[i] = x[i]


@cuda.jit
def ticket_lock(tickets, serving, total, x, out):
    if cuda.threadIdx.x == 0:
        mine = cuda.atomic.add(tickets, 0, 1)
        while cuda.atomic.add(serving, 0, 0) != mine:
            pass
        cuda.threadfence()
        total[0] += x[cuda.blockIdx.x]
        if mine == cuda.gridDim.x - 1:
            out[0] = total[0]
        cuda.threadfence()
        cuda.atomic.add(serving, 0, 1)


@cuda.jit
def look_back(state, sums, ends, x, out):
    """A scan of one element a block: each adds up sums of blocks before it, as far as none knows its end."""
    tile = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        before, at = 0, tile - 1
        sums[tile] = x[tile]
        cuda.threadfence()
        cuda.atomic.exch(state, tile, 1)
        while at >= 0:
            seen = cuda.atomic.add(state, at, 0)
            cuda.threadfence()
            if seen == 2:
                before += ends[at]
                break
            if seen == 1:
                before += sums[at]
                at -= 1
        ends[tile] = before + x[tile]
        cuda.threadfence()
        cuda.atomic.exch(state, tile, 2)
        out[tile] = before + x[tile]


@cuda.jit
def last_block_with_a_wrapping_ticket(x, partial, ticket, out):
    """As in NVIDIA's sample threadFenceReduction."""
    is_last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        partial[cuda.blockIdx.x] = x[cuda.blockIdx.x]
        cuda.threadfence()
        is_last[0] = cuda.atomic.inc(ticket, 0, cuda.gridDim.x - 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if is_last[0] and t < cuda.gridDim.x:
        cuda.atomic.add(out, 0, partial[t])


@cuda.jit
def breadth_first(start, neighbour, level, changed, out):
    grid = cuda.cg.this_grid()
    i, depth = cuda.grid(1), 0
    while True:
        grid.sync()
        if i == 0:
            changed[0] = 0
        grid.sync()
        if i < level.size and level[i] == depth:
            for e in range(start[i], start[i + 1]):
                if level[neighbour[e]] == -1:
                    cuda.atomic.cas(level, neighbour[e], -1, depth + 1)
                    cuda.atomic.exch(changed, 0, 1)
        grid.sync()
        if changed[0] == 0:
            break
        depth += 1
    if i < level.size:
        out[i] = level[i]


@cuda.jit
def queue(items, head, tail, out):
    """Block 0 appends, and the others take what there is."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            for k in range(items.size):
                items[k] = k * k
                cuda.threadfence()
                cuda.atomic.add(tail, 0, 1)
        else:
            while True:
                k = cuda.atomic.add(head, 0, 1)
                if k >= items.size:
                    break
                while cuda.atomic.add(tail, 0, 0) <= k:
                    pass
                cuda.threadfence()
                out[k] = items[k]


@cuda.jit
def ring(buffers, full, empty, out):
    """Two buffers and two counters: whoever fills waits for whoever empties, and the other way round."""
    t = cuda.threadIdx.x
    for k in range(out.shape[0]):
        if cuda.blockIdx.x == 1:
            if t == 0:
                while cuda.atomic.add(empty, 0, 0) < k - 1:
                    pass
                cuda.threadfence()
            cuda.syncthreads()
            buffers[k % 2, t] = 100 * k + t
            cuda.syncthreads()
            if t == 0:
                cuda.threadfence()
                cuda.atomic.add(full, 0, 1)
        else:
            if t == 0:
                while cuda.atomic.add(full, 0, 0) <= k:
                    pass
                cuda.threadfence()
            cuda.syncthreads()
            out[k, t] = buffers[k % 2, t]
            cuda.syncthreads()
            if t == 0:
                cuda.threadfence()
                cuda.atomic.add(empty, 0, 1)


@cuda.jit
def leaders_of_warps(data, arrived, out):
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t
        cuda.syncwarp()
        if t % 32 == 0:
            cuda.threadfence()
            cuda.atomic.add(arrived, 0, 1)
    else:
        if t % 32 == 0:
            while cuda.atomic.add(arrived, 0, 0) < 4:
                pass
            cuda.threadfence()
        cuda.syncwarp()
        out[t] = data[127 - t]


@cuda.jit
def within_the_block_and_then_between(data, flag, out):
    """What a thread has learnt of its block's others by a flag in shared memory, it publishes with its own."""
    written = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if t == 0:
        written[0] = 0
    cuda.syncthreads()
    if cuda.blockIdx.x == 0:
        data[t] = t
        cuda.threadfence_block()
        cuda.atomic.add(written, 0, 1)
        if t == 0:
            while cuda.atomic.add(written, 0, 0) < 64:
                pass
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        cuda.threadfence()
        out[t] = data[63 - t]


@cuda.jit
def fence_between_two_barriers(data, flag, out):
    """Thread 40 fences for all whom it has met, and tells thread 0 at the next barrier."""
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        data[t] = t
        cuda.syncthreads()
        if t == 40:
            cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
        cuda.syncthreads()
        out[t] = data[63 - t]


def integers(*shape):
    return np.zeros(shape, np.int64)


def tree():
    """0 has 1 and 2, 1 has 3 and 4, and so on."""
    children = np.arange(1, 101)
    return np.minimum(2 * np.arange(102), 100), children, np.where(np.arange(101) == 0, 0, -1)


# kernel, grid, block, its arguments but the last, and what it leaves there
PROTOCOLS = [
    (rotate, 4, 64, lambda: (np.arange(256), integers(1), integers(1)), (np.arange(256) + 192) % 256),
    (ticket_lock, 10, 32, lambda: (integers(1), integers(1), integers(1), np.arange(10)), [45]),
    (look_back, 12, 32, lambda: (integers(12), integers(12), integers(12), np.arange(12)), np.arange(12).cumsum()),
    (last_block_with_a_wrapping_ticket, 8, 32, lambda: (np.arange(8), integers(8), np.zeros(1, np.uint32)), [28]),
    (breadth_first, 2, 64, lambda: (*tree(), integers(1)), np.log2(np.arange(101) + 1).astype(int)),
    (queue, 4, 32, lambda: (integers(20), integers(1), integers(1)), np.arange(20) ** 2),
    (ring, 2, 64, lambda: (integers(2, 64), integers(1), integers(1)), 100 * np.arange(12)[:, None] + np.arange(64)),
    (leaders_of_warps, 2, 128, lambda: (integers(128), integers(1)), np.arange(127, -1, -1)),
    (within_the_block_and_then_between, 2, 64, lambda: (integers(64), integers(1)), np.arange(63, -1, -1)),
    (fence_between_two_barriers, 2, 64, lambda: (integers(64), integers(1)), np.arange(63, -1, -1)),
]


@pytest.mark.parametrize(
    "kernel, grid, block, make, expected", PROTOCOLS, ids=[p[0].py_func.__name__ for p in PROTOCOLS]
)
@pytest.mark.parametrize("how", ["all at once", "a block at a time", 0, 1])
def test_a_correct_protocol_is_silent_and_right(kernel, grid, block, make, expected, how):
    options = {} if isinstance(how, str) else {"schedule": "shuffled", "seed": how}
    out = np.zeros_like(expected)
    with simt.batch_lanes(1 if how == "a block at a time" else 1 << 20):
        report = simt.profile(kernel, grid, block, (*make(), out), level="check", **options)
    assert [hazard.message for hazard in report.hazards] == []
    np.testing.assert_array_equal(out, expected)
