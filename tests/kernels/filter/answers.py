"""Answers to the exercises of chapter 35: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()


@cuda.jit(device=True)
def below(mask):
    """How many lanes below this one are in the mask."""
    return cuda.popc(np.uint32(mask & (1 << cuda.laneid) - 1))


# -- partition


@right("filter/partition")
@cuda.jit
def partition_by_two_ballots(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else 0
    kept, other = value > 0, i < x.size and value <= 0
    first, second = cuda.ballot_sync(FULL_WARP, kept), cuda.ballot_sync(FULL_WARP, other)
    if kept:
        out[i // 32 * 32 + below(first)] = value
    if other:
        out[i // 32 * 32 + cuda.popc(first) + below(second)] = value


@right("filter/partition")
@cuda.jit
def partition_by_counting(x, out):
    """Without a ballot: each lane looks at all 32 elements, in shared memory."""
    i, thread = cuda.grid(1), cuda.threadIdx.x
    flags = cuda.shared.array(256, np.int32)
    flags[thread] = 1 if i < x.size and x[i] > 0 else 0
    cuda.syncthreads()
    base, place, kept = thread // 32 * 32, 0, 0
    for k in range(32):
        kept += flags[base + k]
        if base + k < thread and flags[base + k] == flags[thread]:
            place += 1
    if i < x.size:
        out[i // 32 * 32 + place + (0 if flags[thread] else kept)] = x[i]


@wrong("filter/partition", "second part turned around")
@cuda.jit
def partition_from_both_ends(x, out):
    i = cuda.grid(1)
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    here = cuda.popc(cuda.ballot_sync(FULL_WARP, i < x.size))
    if kept:
        out[i // 32 * 32 + below(lanes)] = x[i]
    elif i < x.size:
        out[i // 32 * 32 + here - 1 - (cuda.laneid - below(lanes))] = x[i]


@wrong("filter/partition", "inactive lanes")
@cuda.jit
def partition_ballot_of_some(x, out):
    i = cuda.grid(1)
    if i < x.size:
        lanes = cuda.ballot_sync(FULL_WARP, x[i] > 0)
        if x[i] > 0:
            out[i // 32 * 32 + below(lanes)] = x[i]
        else:
            out[i // 32 * 32 + cuda.popc(lanes) + cuda.laneid - below(lanes)] = x[i]


@wrong("filter/partition", "missing guard")
@cuda.jit
def partition_without_guard(x, out):
    i = cuda.grid(1)
    lanes = cuda.ballot_sync(FULL_WARP, x[i] > 0)
    if x[i] > 0:
        out[i // 32 * 32 + below(lanes)] = x[i]
    else:
        out[i // 32 * 32 + cuda.popc(lanes) + cuda.laneid - below(lanes)] = x[i]


@wrong("filter/partition", "output not written")
@cuda.jit
def partition_keeps_only(x, out):
    i = cuda.grid(1)
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if kept:
        out[i // 32 * 32 + below(lanes)] = x[i]


@wrong("filter/partition", "wrong result")
@cuda.jit
def partition_zero_is_kept(x, out):
    i = cuda.grid(1)
    kept = i < x.size and x[i] >= 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if kept:
        out[i // 32 * 32 + below(lanes)] = x[i]
    elif i < x.size:
        out[i // 32 * 32 + cuda.popc(lanes) + cuda.laneid - below(lanes)] = x[i]


# -- runs


@right("filter/runs")
@cuda.jit
def runs_by_places(x, places, values, starts):
    """A run begins where the next place is another one, one element before; or at element 0."""
    i = cuda.grid(1)
    if i == 0:
        values[0] = x[0]
        starts[0] = 0
    elif i < x.size and x[i - 1] != x[i]:
        at = places[i]
        values[at] = x[i]
        starts[at] = i


@wrong("filter/runs", "last of each run")
@cuda.jit
def runs_at_their_ends(x, places, values, starts):
    i = cuda.grid(1)
    if i < x.size and (i == x.size - 1 or x[i] != x[i + 1]):
        at = places[i] if i == 0 or x[i] != x[i - 1] else places[i] - 1
        values[at] = x[i]
        starts[at] = i


@wrong("filter/runs", "negative index")
@cuda.jit
def runs_without_a_first(x, places, values, starts):
    i = cuda.grid(1)
    if i < x.size and x[i] != x[i - 1]:
        values[places[i]] = x[i]
        starts[places[i]] = i


@wrong("filter/runs", "output not written")
@cuda.jit
def runs_from_the_second(x, places, values, starts):
    i = cuda.grid(1)
    if 0 < i < x.size and x[i] != x[i - 1]:
        values[places[i]] = x[i]
        starts[places[i]] = i


@wrong("filter/runs", "missing guard")
@cuda.jit
def runs_without_guard(x, places, values, starts):
    i = cuda.grid(1)
    if i == 0 or x[i] != x[i - 1]:
        values[places[i]] = x[i]
        starts[places[i]] = i


@wrong("filter/runs", "outputs exchanged")
@cuda.jit
def runs_exchanged(x, places, values, starts):
    i = cuda.grid(1)
    if i < x.size and (i == 0 or x[i] != x[i - 1]):
        starts[places[i]] = x[i]
        values[places[i]] = i


@wrong("filter/runs", "only right for one block")
@cuda.jit
def runs_begin_with_each_block(x, places, values, starts):
    i = cuda.grid(1)
    if i < x.size and (i == 0 or x[i] != x[i - 1]):
        values[places[i]] = x[i]
        starts[places[i]] = cuda.threadIdx.x


# -- block


@right("filter/block")
@cuda.jit
def block_by_flags(x, starts, out):
    """Each thread adds up the flags before its own."""
    i, thread = cuda.grid(1), cuda.threadIdx.x
    flags = cuda.shared.array(256, np.uint8)
    flags[thread] = 1 if i < x.size and x[i] > 0 else 0
    cuda.syncthreads()
    if flags[thread]:
        place = starts[cuda.blockIdx.x]
        for k in range(thread):
            place += flags[k]
        out[place] = x[i]


@right("filter/block")
@cuda.jit
def block_by_masks(x, starts, out):
    """The warps leave their ballots, and every thread counts their bits."""
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    masks = cuda.shared.array(8, np.uint32)
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        masks[warp] = lanes
    cuda.syncthreads()
    if kept:
        place = starts[cuda.blockIdx.x] + below(lanes)
        for k in range(warp):
            place += cuda.popc(masks[k])
        out[place] = x[i]


@wrong("filter/block", "missing barrier")
@cuda.jit
def block_without_barrier(x, starts, out):
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    counts = cuda.shared.array(8, np.int32)
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        counts[warp] = cuda.popc(lanes)
    place = starts[cuda.blockIdx.x] + below(lanes)
    for k in range(warp):
        place += counts[k]
    if kept:
        out[place] = x[i]


@wrong("filter/block", "missing guard")
@cuda.jit
def block_without_guard(x, starts, out):
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    counts = cuda.shared.array(8, np.int32)
    kept = x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        counts[warp] = cuda.popc(lanes)
    cuda.syncthreads()
    place = starts[cuda.blockIdx.x] + below(lanes)
    for k in range(warp):
        place += counts[k]
    if kept:
        out[place] = x[i]


@wrong("filter/block", "too many atomics", "No atomic is needed")
@cuda.jit
def block_by_an_atomic_in_turn(x, starts, out):
    """In order, as one thread counts for all: but it takes an atomic for each element."""
    i, thread = cuda.grid(1), cuda.threadIdx.x
    counts = cuda.shared.array(257, np.int32)
    counts[thread + 1] = 0
    if thread == 0:
        counts[0] = 0
    cuda.syncthreads()
    kept = i < x.size and x[i] > 0
    if kept:
        cuda.atomic.add(counts, thread + 1, 1)
    cuda.syncthreads()
    place = starts[cuda.blockIdx.x]
    for k in range(thread + 1):
        place += counts[k]
    if kept:
        out[place] = x[i]


@wrong("filter/block", "wrong result")
@cuda.jit
def block_with_the_later_warps(x, starts, out):
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    counts = cuda.shared.array(8, np.int32)
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        counts[warp] = cuda.popc(lanes)
    cuda.syncthreads()
    place = starts[cuda.blockIdx.x] + below(lanes)
    for k in range(warp + 1, 8):
        place += counts[k]
    if kept:
        out[place] = x[i]


@wrong("filter/block", "race")
@cuda.jit
def block_forgets_the_warps(x, starts, out):
    i = cuda.grid(1)
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if kept:
        out[starts[cuda.blockIdx.x] + below(lanes)] = x[i]


@wrong("filter/block", "race between blocks")
@cuda.jit
def block_forgets_its_start(x, starts, out):
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    counts = cuda.shared.array(8, np.int32)
    kept = i < x.size and x[i] > 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        counts[warp] = cuda.popc(lanes)
    cuda.syncthreads()
    place = below(lanes)
    for k in range(warp):
        place += counts[k]
    if kept:
        out[place] = x[i]


@wrong("filter/block", "0 is kept", "A 0 is not above 0")
@cuda.jit
def block_keeps_zero(x, starts, out):
    i, warp = cuda.grid(1), cuda.threadIdx.x // 32
    counts = cuda.shared.array(8, np.int32)
    kept = i < x.size and x[i] >= 0
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    if cuda.laneid == 0:
        counts[warp] = cuda.popc(lanes)
    cuda.syncthreads()
    place = starts[cuda.blockIdx.x] + below(lanes)
    for k in range(warp):
        place += counts[k]
    if kept:
        out[place] = x[i]


# -- repeat


@right("filter/repeat")
@cuda.jit
def repeat_by_steps_of_two(values, ends, out):
    """The number of runs that end before the element or at it, bit by bit."""
    i = cuda.grid(1)
    if i < out.size:
        run, step = 0, 1
        while step < ends.size:
            step *= 2
        while step > 0:
            if run + step <= ends.size and ends[run + step - 1] <= i:
                run += step
            step //= 2
        out[i] = values[run]


@right("filter/repeat")
@cuda.jit
def repeat_between_bounds(values, ends, out):
    i = cuda.grid(1)
    if i >= out.size:
        return
    before, found = -1, ends.size - 1  # the run is behind the first one of these, and not behind the other
    while found - before > 1:
        middle = (before + found) >> 1
        if ends[middle] <= i:
            before = middle
        else:
            found = middle
    out[i] = values[found]


@wrong("filter/repeat", "a run too early")
@cuda.jit
def repeat_the_end_belongs_to_the_run(values, ends, out):
    i = cuda.grid(1)
    if i < out.size:
        low, high = 0, ends.size - 1
        while low < high:
            middle = (low + high) // 2
            if ends[middle] >= i:
                high = middle
            else:
                low = middle + 1
        out[i] = values[low]


@wrong("filter/repeat", "missing guard")
@cuda.jit
def repeat_without_guard(values, ends, out):
    i = cuda.grid(1)
    low, high = 0, ends.size - 1
    while low < high:
        middle = (low + high) // 2
        if ends[middle] > i:
            high = middle
        else:
            low = middle + 1
    out[i] = values[low]


@wrong("filter/repeat", "output not written")
@cuda.jit
def repeat_a_thread_a_run_and_its_first(values, ends, out):
    k = cuda.grid(1)
    if k < ends.size:
        first = ends[k - 1] if k > 0 else 0
        if first < ends[k]:
            out[first] = values[k]


@wrong("filter/repeat", "uncoalesced", "not to each run")
@cuda.jit
def repeat_a_thread_a_run(values, ends, out):
    k = cuda.grid(1)
    if k < ends.size:
        for i in range(ends[k - 1] if k > 0 else 0, ends[k]):
            out[i] = values[k]


@wrong("filter/repeat", "too much traffic", "halve them")
@cuda.jit
def repeat_one_end_after_another(values, ends, out):
    i = cuda.grid(1)
    if i < out.size:
        run = 0
        while ends[run] <= i:
            run += 1
        out[i] = values[run]


@wrong("filter/repeat", "argument ignored")
@cuda.jit
def repeat_the_number_of_the_run(values, ends, out):
    i = cuda.grid(1)
    if i < out.size:
        low, high = 0, ends.size - 1
        while low < high:
            middle = (low + high) // 2
            if ends[middle] > i:
                high = middle
            else:
                low = middle + 1
        out[i] = low
