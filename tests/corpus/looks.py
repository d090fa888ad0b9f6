"""Plain reads of what other blocks update by atomics.

An atomic makes an update whole; it does not make it early.  In the PTX memory model a plain read and an atomic on one
element race like a read and a write, unless something orders them: `syncthreads` does not, beyond its block.  Left
alone is what looks and may look again: a loop that waits, a look with its fence, and a look before an atomic that
decides by itself.
"""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros


def keys(new):
    return ramp(256, np.int32) % 8, zeros(8, np.int32), zeros(256, np.int32)


@pair("race", "global", "bins", grid=4, make=keys, result=lambda x, bins, out: np.full(256, 32))
@cuda.jit
def bins_read_behind_a_barrier_of_the_block(x, bins, out, mended):
    """The barrier makes this block's counts complete, and the other blocks may still be counting."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    cuda.atomic.add(bins, x[i], 1)  # WITH
    if mended:
        grid.sync()
    else:
        cuda.syncthreads()
    out[i] = bins[x[i]]  # BUG


@pair("race", "global", "bins", grid=4,
      make=lambda new: (ramp(256, np.int32) % 8, zeros((4, 8), np.int32), zeros(256, np.int32)),
      result=lambda x, bins, out: np.full(256, 8))  # fmt: skip
@cuda.jit
def two_blocks_share_a_row_of_bins(x, bins, out, mended):
    """A row of bins a block needs no more than a barrier; a row for two blocks does."""
    i, b = cuda.grid(1), cuda.blockIdx.x
    row = b if mended else b // 2
    cuda.atomic.add(bins, (row, x[i]), 1)  # WITH
    cuda.syncthreads()
    out[i] = bins[row, x[i]]  # BUG


@pair("race", "global", "best", grid=4, make=lambda new: (ramp(256), zeros(1), zeros(1, np.int32), zeros(1)),
      result=lambda x, best, ticket, out: [255])  # fmt: skip
@cuda.jit
def maximum_read_before_all_have_offered(x, best, ticket, out, mended):
    """The block whose ticket is the last knows that all have offered; another block knows of its own threads."""
    t = cuda.threadIdx.x
    cuda.atomic.max(best, 0, x[cuda.grid(1)])  # WITH
    cuda.syncthreads()
    if t == 0:
        cuda.threadfence()
        drawn = 3
        if mended:
            drawn = cuda.atomic.add(ticket, 0, 1)
        if drawn == 3:
            cuda.atomic.max(out, 0, best[0])  # BUG


@pair("race", "global", "n", grid=4, make=lambda new: (ramp(256), zeros(256), zeros(1, np.int32), zeros(4, np.int32)),
      result=lambda x, kept, n, size: np.full(4, 32))  # fmt: skip
@cuda.jit
def length_read_while_others_append(x, kept, n, size, mended):
    """The counter is final when all blocks have appended, and not when this one has."""
    mine = cuda.shared.array(1, np.int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t == 0:
        mine[0] = 0
    cuda.syncthreads()
    if x[i] % 2 == 0:
        kept[cuda.atomic.add(n, 0, 1)] = x[i]  # WITH
        cuda.atomic.add(mine, 0, 1)
    cuda.syncthreads()
    if t == 0:
        size[cuda.blockIdx.x] = mine[0] if mended else n[0]  # BUG


@pair("race", "global", "place", grid=4, block=32, make=lambda new: (zeros(1, np.int32), zeros(4)), result=None)
@cuda.jit
def place_read_before_it_is_taken(place, out, mended):
    """Between the read and the atomic another block may take the same place: use what the atomic returns."""
    if cuda.threadIdx.x == 0:
        if mended:
            mine = cuda.atomic.add(place, 0, 1)
        else:
            mine = place[0]  # WITH
            cuda.atomic.add(place, 0, 1)  # BUG
        out[cuda.blockIdx.x] = mine


@pair("race", "global", "place", grid=4, block=32, make=lambda new: (zeros(1, np.int32), zeros(3)), result=None)
@cuda.jit
def room_checked_before_the_place_is_taken(place, out, mended):
    """Several blocks find the same room, and each takes a place: look at what the atomic returns."""
    if cuda.threadIdx.x == 0:
        if mended:
            mine = cuda.atomic.add(place, 0, 1)
            if mine < out.size:
                out[mine] = cuda.blockIdx.x + 1
        elif place[0] < out.size:  # WITH
            mine = cuda.atomic.add(place, 0, 1)  # BUG
            out[min(mine, out.size - 1)] = 1


@pair("race", "global", "best", grid=4, block=32, make=lambda new: (ramp(128, np.int32), zeros(1, np.int32)),
      result=lambda x, best: [127])  # fmt: skip
@cuda.jit
def larger_value_exchanged_in(x, best, mended):
    """A look before `atomic.max` saves atomics and decides nothing; before `exch` it decides, and may be outdated."""
    value = x[cuda.grid(1)]
    if mended:
        if best[0] < value:
            cuda.atomic.max(best, 0, value)
    elif best[0] < value:  # WITH
        cuda.atomic.exch(best, 0, value)  # BUG


@pair("race", "global", "total", grid=4, block=32, make=lambda new: (ramp(4, np.int32), zeros(1, np.int32)),
      result=lambda x, total: [6])  # fmt: skip
@cuda.jit
def sum_exchanged_in(x, total, mended):
    """The plain read that begins a compare-and-swap loop is checked by the first swap; nothing checks this one."""
    if cuda.threadIdx.x == 0:
        if mended:
            old = total[0]
            assumed = old - 1
            while assumed != old:
                assumed = old
                old = cuda.atomic.cas(total, 0, assumed, assumed + x[cuda.blockIdx.x])
        else:
            found = total[0]  # WITH
            cuda.atomic.exch(total, 0, found + x[cuda.blockIdx.x])  # BUG


@pair("race", "global", "level", grid=2, block=32,
      make=lambda new: (np.full(4, -1, np.int32), zeros(1, np.int32), np.full(4, -1, np.int32)),
      result=None)  # fmt: skip
@cuda.jit
def neighbour_visited_by_look_and_count(level, n, queue, mended):
    """Two blocks may both find a vertex new: only what `cas` returns says who was first."""
    v = cuda.threadIdx.x % 4
    if mended:
        if level[v] == -1 and cuda.atomic.cas(level, v, -1, 1) == -1:
            queue[cuda.atomic.add(n, 0, 1)] = v
    elif level[v] == -1:  # WITH
        cuda.atomic.exch(level, v, 1)  # BUG
        cuda.atomic.add(n, 0, 1)


@pair("race", "global", "data", grid=2, block=32, make=lambda new: (zeros(1), zeros(1, np.int32), zeros(1)),
      result=None)  # fmt: skip
@cuda.jit
def look_with_its_fence_behind_the_data(data, flag, out, mended):
    """A look that does not wait is fine with a fence behind it; here the data come before the fence."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            data[0] = 42  # WITH
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        elif flag[0] == 1:
            if mended:
                cuda.threadfence()
            value = data[0]  # BUG
            cuda.threadfence()
            out[0] = value


@pair("race", "global", "flag", grid=2, block=32, make=lambda new: (zeros(1, np.int32), zeros(2)), result=None)
@cuda.jit
def flag_reported_as_it_stands(flag, out, mended):
    """A plain look without loop or fence may give any value, and the compiler may move it."""
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            cuda.atomic.exch(flag, 0, 1)  # WITH
        elif mended:
            out[1] = cuda.atomic.add(flag, 0, 0)
        else:
            out[1] = flag[0]  # BUG


@pair("race", "global", "bins", grid=4,
      make=lambda new: (ramp(256, np.int32) % 8, zeros(8, np.int32), zeros(1, np.int32), zeros(256, np.int32)),
      result=lambda x, bins, arrived, out: np.full(256, 32))  # fmt: skip
@cuda.jit
def barrier_of_the_grid_by_hand_without_a_fence(x, bins, arrived, out, mended):
    """Each block counts itself in and waits for the others; without a fence before, that says nothing of its bins."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    cuda.atomic.add(bins, x[i], 1)  # WITH
    cuda.syncthreads()
    if t == 0:
        if mended:
            cuda.threadfence()
        cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:
            pass
        cuda.threadfence()
    cuda.syncthreads()
    out[i] = bins[x[i]]  # BUG


@pair("race", "global", "bins", grid=4,
      make=lambda new: (ramp(256, np.int32) % 8, zeros(8, np.int32), zeros(1, np.int32), zeros(256, np.int32)),
      result=lambda x, bins, arrived, out: np.full(256, 32))  # fmt: skip
@cuda.jit
def barrier_of_the_grid_by_hand_with_half_a_barrier(x, bins, arrived, out, mended):
    """Thread 0 waits for the other blocks, and its own block does not wait for thread 0."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    cuda.atomic.add(bins, x[i], 1)  # WITH
    cuda.syncthreads()
    if t == 0:
        cuda.threadfence()
        cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:
            pass
        cuda.threadfence()
    if mended:
        cuda.syncthreads()
    out[i] = bins[x[i]]  # BUG


@pair("race", "global", "bins", grid=4,
      make=lambda new: (ramp(256, np.int32) % 8, zeros(8, np.int32), zeros(1, np.int32), zeros(256, np.int32)),
      result=lambda x, bins, arrived, out: np.full(256, 32))  # fmt: skip
@cuda.jit
def blocks_count_themselves_in_before_all_warps_have_counted(x, bins, arrived, out, mended):
    """Thread 0 tells the other blocks before it has met the second warp of its own."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    cuda.atomic.add(bins, x[i], 1)  # WITH
    if mended:
        cuda.syncthreads()
    if t == 0:
        cuda.threadfence()
        cuda.atomic.add(arrived, 0, 1)
        while cuda.atomic.add(arrived, 0, 0) < cuda.gridDim.x:
            pass
        cuda.threadfence()
    cuda.syncthreads()
    out[i] = bins[x[i]]  # BUG
