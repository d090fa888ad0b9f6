"""Answers to the exercises of chapter 34: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.scan.exercises import BLOCK, block_scan
from tests.support.wrong import collectors

f0 = np.float32(0)
ANSWERS, ALSO_RIGHT, wrong, right = collectors()


@cuda.jit(device=True)
def hasty_scan(scanned):
    """One barrier per step: some threads write before others have read."""
    thread, distance = cuda.threadIdx.x, 1
    cuda.syncthreads()
    while distance < BLOCK:
        if thread >= distance:
            scanned[thread] += scanned[thread - distance]
        cuda.syncthreads()
        distance *= 2


@cuda.jit(device=True)
def warp_sums(value):
    for distance in (1, 2, 4, 8, 16):
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance:
            value += earlier
    return value


# -- exclusive


@right("scan/exclusive")
@cuda.jit
def exclusive_by_subtraction(x, out):
    """Right for whole numbers."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    value = x[i] if i < x.size else f0
    scanned[thread] = value
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread] - value


@right("scan/exclusive")
@cuda.jit
def exclusive_shifted_on_the_way_in(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i - 1] if thread > 0 and i <= x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/exclusive", "inclusive")
@wrong("scan/reverse", "forwards")
@cuda.jit
def inclusive_and_forwards(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/exclusive", "negative index")
@cuda.jit
def exclusive_that_wraps_around(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1]


@wrong("scan/exclusive", "missing guard")
@cuda.jit
def exclusive_without_guard(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i]
    block_scan(scanned)
    out[i] = scanned[thread - 1] if thread > 0 else f0


@wrong("scan/exclusive", "missing barrier")
@cuda.jit
def exclusive_in_haste(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    hasty_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else f0


@wrong("scan/exclusive", "uninitialised memory")
@cuda.jit
def exclusive_with_threads_that_leave(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    if i < x.size:
        scanned[thread] = x[i]
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else f0


@wrong("scan/exclusive", "deliberate float64")
@cuda.jit
def exclusive_in_float64(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float64)
    scanned[thread] = x[i] if i < x.size else 0.0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread - 1] if thread > 0 else 0.0


# -- reverse


@wrong("scan/reverse", "mirrored once")
@cuda.jit
def reverse_mirrored_once(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - 1 - thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/reverse", "index out of bounds")
@cuda.jit
def reverse_off_by_one(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - thread]


@wrong("scan/reverse", "missing guard")
@cuda.jit
def reverse_without_guard(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - 1 - thread] = x[i]
    block_scan(scanned)
    out[i] = scanned[BLOCK - 1 - thread]


@wrong("scan/reverse", "missing barrier")
@cuda.jit
def reverse_in_haste(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[BLOCK - 1 - thread] = x[i] if i < x.size else f0
    hasty_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - 1 - thread]


@right("scan/reverse")
@cuda.jit
def reverse_by_the_total(x, out):
    """The total less what stands before: right for whole numbers."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    value = x[i] if i < x.size else f0
    scanned[thread] = value
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - 1] - scanned[thread] + value


# -- segmented


@right("scan/segmented")
@cuda.jit
def segmented_with_an_or(x, heads, out):
    """The pair operator as it is written in the book."""
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    scanned[thread] = x[i] if i < x.size else f0
    head[thread] = heads[i] if i < x.size else 0
    cuda.syncthreads()
    while distance < BLOCK:
        value, seen = scanned[thread], head[thread]
        if thread >= distance:
            if seen == 0:
                value += scanned[thread - distance]
            seen |= head[thread - distance]
        cuda.syncthreads()
        scanned[thread], head[thread] = value, seen
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


def segmented(shift=0, exclusive=False, name="segmented"):
    """The answer to segmented, with the heads ``shift`` elements later, or without the element itself."""

    @cuda.jit
    def kernel(x, heads, out):
        t, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
        sums, flags = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
        sums[t], flags[t] = f0, 1
        if i < x.size:
            sums[t] = x[i]
            flags[t] = heads[i - shift] if i >= shift else 1
        cuda.syncthreads()
        while distance < BLOCK:
            total, flag = sums[t], flags[t]
            if flag == 0 and t >= distance:
                total, flag = total + sums[t - distance], flags[t - distance]
            cuda.syncthreads()
            sums[t], flags[t] = total, flag
            cuda.syncthreads()
            distance *= 2
        if i < x.size:
            out[i] = sums[t] - x[i] if exclusive else sums[t]

    kernel.py_func.__name__ = name
    return kernel


wrong("scan/segmented", "exclusive", "itself counts")(segmented(exclusive=True, name="segmented_exclusive"))
wrong("scan/segmented", "heads at the end")(segmented(shift=1, name="segmented_with_heads_at_the_end"))


@right("scan/reverse")
@cuda.jit
def reverse_by_what_is_left(x, out):
    """The block's sum without what comes before. The numbers are whole, so this loses nothing."""
    t, i = cuda.threadIdx.x, cuda.grid(1)
    sums = cuda.shared.array(BLOCK, np.float32)
    sums[t] = x[i] if i < x.size else f0
    block_scan(sums)
    if i < x.size:
        out[i] = sums[BLOCK - 1] - sums[t] + x[i]


@wrong("scan/segmented", "heads ignored")
@cuda.jit
def segmented_without_heads(x, heads, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/segmented", "heads stay where they are")
@cuda.jit
def segmented_that_forgets_heads_it_has_passed(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    seen = heads[i] if i < x.size else 1
    cuda.syncthreads()
    while distance < BLOCK:
        value = scanned[thread]
        if thread >= distance and seen == 0:
            value += scanned[thread - distance]
        cuda.syncthreads()
        scanned[thread] = value
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/segmented", "missing barrier")
@cuda.jit
def segmented_with_one_barrier(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    scanned[thread] = x[i] if i < x.size else f0
    head[thread] = heads[i] if i < x.size else 1
    cuda.syncthreads()
    while distance < BLOCK:
        if thread >= distance and head[thread] == 0:
            scanned[thread] += scanned[thread - distance]
            head[thread] = head[thread - distance]
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


@wrong("scan/segmented", "missing guard")
@cuda.jit
def segmented_without_guard(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    scanned[thread], head[thread] = x[i], heads[i]
    cuda.syncthreads()
    while distance < BLOCK:
        value, seen = scanned[thread], head[thread]
        if thread >= distance and seen == 0:
            value += scanned[thread - distance]
            seen = head[thread - distance]
        cuda.syncthreads()
        scanned[thread], head[thread] = value, seen
        cuda.syncthreads()
        distance *= 2
    out[i] = scanned[thread]


@wrong("scan/segmented", "too much traffic")
@cuda.jit
def segmented_by_walking_back(x, heads, out):
    """Right, and each thread reads its segment again."""
    i = cuda.grid(1)
    if i < x.size:
        j, value = i, x[i]
        while heads[j] == 0 and j % BLOCK > 0:
            j -= 1
            value += x[j]
        out[i] = value


# -- compact


@right("scan/compact")
@cuda.jit
def compact_with_a_grid_stride(x, before, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        if x[i] > f0:
            out[before[i]] = x[i]


@wrong("scan/compact", "missing guard")
@cuda.jit
def compact_without_guard(x, before, out):
    i = cuda.grid(1)
    if x[i] > 0:
        out[before[i]] = x[i]


@wrong("scan/compact", "race")
@cuda.jit
def compact_everything(x, before, out):
    i = cuda.grid(1)
    if i < x.size:
        out[before[i]] = x[i]


@wrong("scan/compact", "one place too far")
@cuda.jit
def compact_inclusive(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[before[i] + 1] = x[i]


@wrong("scan/compact", "not moved")
@cuda.jit
def compact_in_place(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[i] = x[i]


@wrong("scan/compact", "race between blocks")
@cuda.jit
def compact_with_zeros(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] >= 0:
        out[before[i]] = x[i]


# -- right in another way, and wrong for a reason that is easily mistaken


@right("scan/exclusive")
@cuda.jit
def exclusive_that_leaves_early(x, out):
    """No thread reads what one behind it would have written, and a barrier does not wait for those that have left."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    if i >= x.size:
        return
    scanned[thread] = x[i]
    block_scan(scanned)
    out[i] = scanned[thread - 1] if thread > 0 else f0


@right("scan/exclusive")
@cuda.jit
def exclusive_with_a_neighbour_that_is_not_used(x, out):
    """Thread 0 reads the last element, and does not use it."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    before = scanned[thread - 1]
    if thread == 0:
        before = f0
    if i < x.size:
        out[i] = before


@wrong("scan/exclusive", "too much traffic", "a thread reads two elements, not all before its own")
@cuda.jit
def exclusive_each_for_itself(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine, total = cuda.shared.array(BLOCK, np.float32), f0
    mine[thread] = x[i] if i < x.size else f0
    cuda.syncthreads()
    if i < x.size:
        for k in range(thread):
            total += mine[k]
        out[i] = total


@wrong("scan/exclusive", "idle threads", "for one or two of their 32 threads")
@cuda.jit
def exclusive_by_thread_0(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine, total = cuda.shared.array(BLOCK, np.float32), f0
    mine[thread] = x[i] if i < x.size else f0
    cuda.syncthreads()
    if thread == 0:
        for k in range(BLOCK):
            value = mine[k]
            mine[k] = total
            total += value
    cuda.syncthreads()
    if i < x.size:
        out[i] = mine[thread]


@right("scan/reverse")
@cuda.jit
def reverse_from_the_total(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    value = x[i] if i < x.size else f0
    scanned[thread] = value
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - 1] - scanned[thread] + value


@right("scan/reverse")
@cuda.jit
def reverse_counted_from_the_end(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[-1 - thread] = x[i] if i < x.size else f0
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[-1 - thread]


@wrong("scan/reverse", "exclusive", "The element itself counts")
@cuda.jit
def reverse_without_the_element(x, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    value = x[i] if i < x.size else f0
    scanned[BLOCK - 1 - thread] = value
    block_scan(scanned)
    if i < x.size:
        out[i] = scanned[BLOCK - 1 - thread] - value


@wrong("scan/reverse", "wrong result", "It is right with n = 1, n = 33, n = 255, n = 256, n = 768")
@cuda.jit
def reverse_of_all_blocks(x, out):
    thread, i = cuda.threadIdx.x, x.size - 1 - cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i >= 0 else f0
    block_scan(scanned)
    if i >= 0:
        out[i] = scanned[thread]


@right("scan/segmented")
@cuda.jit
def segmented_by_the_last_head(x, heads, out):
    """A maximum finds the last head before each element; what was summed up before it is taken off."""
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.int32)
    scanned[thread] = x[i] if i < x.size else f0
    head[thread] = thread if i < x.size and heads[i] == 1 else 0
    cuda.syncthreads()
    while distance < BLOCK:
        value, last = scanned[thread], head[thread]
        if thread >= distance:
            value, last = value + scanned[thread - distance], max(last, head[thread - distance])
        cuda.syncthreads()
        scanned[thread], head[thread] = value, last
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread] - (scanned[head[thread] - 1] if head[thread] > 0 else f0)


@wrong("scan/segmented", "too much traffic", "not all before its own")
@cuda.jit
def segmented_by_walking_back_in_shared_memory(x, heads, out):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine, head = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.uint8)
    if i < x.size:
        mine[thread], head[thread] = x[i], heads[i]
    cuda.syncthreads()
    if i < x.size:
        total, k = mine[thread], thread
        while head[k] == 0 and k > 0:
            k -= 1
            total += mine[k]
        out[i] = total


@right("scan/compact")
@cuda.jit
def compact_by_the_next_count(x, before, out):
    i = cuda.grid(1)
    if i < x.size:
        keeps = x[i] > 0 if i == x.size - 1 else before[i + 1] > before[i]
        if keeps:
            out[before[i]] = x[i]


@wrong("scan/compact", "race", "Two elements go to one place. Are both greater than 0")
@cuda.jit
def compact_all_that_is_not_0(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] != 0:
        out[before[i]] = x[i]


@wrong("scan/compact", "race between blocks", "Are both greater than 0")
@cuda.jit
def compact_zeros_too(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] >= 0:
        out[before[i]] = x[i]


# -- highest

LOWEST = np.float32(-np.inf)


def highest_with(first=LOWEST, distances=(1, 2, 4, 8, 16), shuffle=cuda.shfl_up_sync, guard=True, bring=LOWEST):
    @cuda.jit
    def highest(x, out):
        i = cuda.grid(1)
        value = max(first, x[i] if not guard or i < x.size else bring)
        for distance in distances:
            value = max(value, shuffle(FULL_WARP, value, distance))
        if not guard or i < x.size:
            out[i] = value

    return highest


@right("scan/highest")
@cuda.jit
def highest_that_asks(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else LOWEST
    distance = 1
    while distance < 32:
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance and earlier > value:
            value = earlier
        distance *= 2
    if i < x.size:
        out[i] = value


@right("scan/highest")
@cuda.jit
def highest_one_step_at_a_time(x, out):
    i = cuda.grid(1)
    mine = x[i] if i < x.size else LOWEST
    value = mine
    for _ in range(31):
        value = max(mine, cuda.shfl_up_sync(FULL_WARP, value, 1))
    if i < x.size:
        out[i] = value


@wrong("scan/highest", "a sum")
@cuda.jit
def highest_by_adding(x, out):
    i = cuda.grid(1)
    value = warp_sums(x[i] if i < x.size else f0)
    if i < x.size:
        out[i] = value


@wrong("scan/highest", "inactive lanes")
@cuda.jit
def highest_with_lanes_that_leave(x, out):
    i = cuda.grid(1)
    if i < x.size:
        value = x[i]
        for distance in (1, 2, 4, 8, 16):
            value = max(value, cuda.shfl_up_sync(FULL_WARP, value, distance))
        out[i] = value


@wrong("scan/highest", "too many barriers")
@cuda.jit
def highest_in_shared_memory(x, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else LOWEST
    cuda.syncthreads()
    while distance < 32:
        value = scanned[thread]
        if cuda.laneid >= distance:
            value = max(value, scanned[thread - distance])
        cuda.syncthreads()
        scanned[thread] = value
        cuda.syncthreads()
        distance *= 2
    if i < x.size:
        out[i] = scanned[thread]


wrong("scan/highest", "starts from 0")(highest_with(first=f0))
wrong("scan/highest", "from behind")(highest_with(shuffle=cuda.shfl_down_sync))
wrong("scan/highest", "the whole warp's")(highest_with(shuffle=cuda.shfl_xor_sync))
wrong("scan/highest", "wrong result")(highest_with(distances=(1, 2, 4, 8)))
wrong("scan/highest", "missing guard")(highest_with(guard=False))


# -- chain


def chain_with(fence=True, early=False, guard=True, wait=True, back=1, own=True, add=True, announce=True):
    @cuda.jit
    def chain(totals, states, out):
        tile = cuda.blockIdx.x
        if cuda.threadIdx.x == 0 or not guard:
            before = 0
            if tile > 0:
                if wait:
                    while cuda.atomic.add(states, tile - back, 0) == 0:
                        pass
                before = out[tile - 1] if add else totals[tile - 1]
            if early:
                cuda.atomic.exch(states, tile, 1)
            out[tile] = before + totals[tile]
            if fence:
                cuda.threadfence()
            if announce and not early:
                cuda.atomic.exch(states, tile, 1)

    return chain


@right("scan/chain")
@cuda.jit
def chain_in_other_words(totals, states, out):
    tile, seen = cuda.blockIdx.x, 0
    if cuda.laneid == 0:
        while tile > 0 and seen == 0:
            seen = cuda.atomic.cas(states, tile - 1, 0, 0)
        cuda.threadfence()
        out[tile] = totals[tile] + (out[tile - 1] if tile > 0 else 0)
        cuda.threadfence()
        cuda.atomic.add(states, tile, 1)


@wrong("scan/chain", "idle threads")
@cuda.jit
def chain_without_waiting(totals, states, out):
    """Each block adds up all that is before it."""
    if cuda.threadIdx.x == 0:
        total = 0
        for tile in range(cuda.blockIdx.x + 1):
            total += totals[tile]
        out[cuda.blockIdx.x] = total
        states[cuda.blockIdx.x] = 1


@wrong("scan/chain", "exclusive")
@cuda.jit
def chain_that_leaves_itself_out(totals, states, out):
    if cuda.threadIdx.x == 0:
        total = 0
        for tile in range(cuda.blockIdx.x):
            total += totals[tile]
        out[cuda.blockIdx.x] = total
        states[cuda.blockIdx.x] = 1


wrong("scan/chain", "race between blocks", "threadfence")(chain_with(fence=False))
wrong("scan/chain", "race between blocks")(chain_with(early=True))
wrong("scan/chain", "race between blocks")(chain_with(wait=False))
wrong("scan/chain", "only one tile before")(chain_with(add=False))
wrong("scan/chain", "does not run", "waits in this loop")(chain_with(back=0))
wrong("scan/chain", "does not run", "waits in this loop")(chain_with(announce=False))


# -- right without `block_scan`


@right("scan/exclusive")
@cuda.jit
def exclusive_down_the_tree(x, out):  # G. E. Blelloch's, with bank conflicts
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned = cuda.shared.array(BLOCK, np.float32)
    scanned[thread] = x[i] if i < x.size else f0
    while distance < BLOCK:
        cuda.syncthreads()
        last = 2 * distance * (thread + 1) - 1
        if last < BLOCK:
            scanned[last] += scanned[last - distance]
        distance *= 2
    cuda.syncthreads()
    if thread == 0:
        scanned[BLOCK - 1] = f0
    while distance > 1:
        distance //= 2
        cuda.syncthreads()
        last = 2 * distance * (thread + 1) - 1
        if last < BLOCK:
            left = scanned[last - distance]
            scanned[last - distance] = scanned[last]
            scanned[last] += left
    cuda.syncthreads()
    if i < x.size:
        out[i] = scanned[thread]


@right("scan/segmented")
@cuda.jit
def segmented_after_a_scan_of_the_heads(x, heads, out):
    thread, i, distance = cuda.threadIdx.x, cuda.grid(1), 1
    scanned, begin = cuda.shared.array(BLOCK, np.float32), cuda.shared.array(BLOCK, np.int32)
    scanned[thread] = x[i] if i < x.size else f0
    begin[thread] = thread if i < x.size and heads[i] == 1 else 0
    cuda.syncthreads()
    while distance < BLOCK:
        place = begin[thread]
        if thread >= distance:
            place = max(place, begin[thread - distance])
        cuda.syncthreads()
        begin[thread] = place
        cuda.syncthreads()
        distance *= 2
    while distance > 1:  # in steps of 1, 2, 4 and so on
        step = BLOCK // distance
        value = scanned[thread]
        if thread - step >= begin[thread]:
            value += scanned[thread - step]
        cuda.syncthreads()
        scanned[thread] = value
        cuda.syncthreads()
        distance //= 2
    if i < x.size:
        out[i] = scanned[thread]


# -- what they are told


@wrong("scan/compact", "rest changed")
@cuda.jit
def compact_that_clears_the_rest(x, before, out):
    i = cuda.grid(1)
    if i < x.size:
        last = x.size - 1
        if i > before[last] or (i == before[last] and x[last] <= 0):
            out[i] = f0
        if x[i] > 0:
            out[before[i]] = x[i]


@wrong("scan/compact", "race between blocks", "counted from the start of out")
@cuda.jit
def compact_of_each_block_by_itself(x, before, out):
    i = cuda.grid(1)
    if i < x.size and x[i] > 0:
        out[before[i] - before[cuda.blockIdx.x * BLOCK]] = x[i]


@wrong("scan/chain", "race between blocks", "a state is read and set by cuda.atomic")
@cuda.jit
def chain_with_plain_states(totals, states, out):
    tile = cuda.blockIdx.x
    if cuda.threadIdx.x == 0:
        before = 0
        if tile > 0:
            while states[tile - 1] == 0:
                pass
            cuda.threadfence()
            before = out[tile - 1]
        out[tile] = before + totals[tile]
        cuda.threadfence()
        states[tile] = 1
