"""Answers to the exercises of chapter 42: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()


@cuda.jit(device=True)
def below(mask):
    """How many lanes below this one are in the mask."""
    return cuda.popc(np.uint32(mask & (1 << cuda.laneid) - 1))


# -- split


@wrong("sort/split", "too much traffic")
@cuda.jit
def split_by_counting(x, bit, out):
    """Each thread counts by itself."""
    i = cuda.grid(1)
    if i < x.size:
        first = i - cuda.threadIdx.x
        end = min(first + 256, x.size)
        zeros, before = 0, 0
        for k in range(first, end):
            one = x[k] >> bit & 1
            zeros += 1 - one
            if k < i:
                before += one
        out[first + zeros + before if x[i] >> bit & 1 else i - before] = x[i]


@right("sort/split")
@cuda.jit
def split_by_ballots(x, bit, out):
    """Ballots within warps, and eight totals in shared memory."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    totals = cuda.shared.array(8, np.int32)
    one = i < x.size and (x[i] >> bit) & 1 == 1
    lanes = cuda.ballot_sync(FULL_WARP, one)
    if cuda.laneid == 0:
        totals[thread // 32] = cuda.popc(lanes)
    cuda.syncthreads()
    before, ones = below(lanes), 0
    for warp in range(8):
        if warp < thread // 32:
            before += totals[warp]
        ones += totals[warp]
    if i < x.size:
        first = i - thread
        zeros = min(256, x.size - first) - ones
        out[first + zeros + before if one else i - before] = x[i]


@wrong("sort/split", "idle threads")
@cuda.jit
def split_by_one_thread(x, bit, out):
    if cuda.threadIdx.x == 0:
        first = cuda.blockIdx.x * 256
        at = first
        for wanted in range(2):
            for k in range(first, min(first + 256, x.size)):
                if x[k] >> bit & 1 == wanted:
                    out[at] = x[k]
                    at += 1


@wrong("sort/split", "ones first")
@cuda.jit
def split_ones_first(x, bit, out):
    i = cuda.grid(1)
    if i < x.size:
        first = i - cuda.threadIdx.x
        ones, before = 0, 0
        for k in range(first, min(first + 256, x.size)):
            ones += x[k] >> bit & 1
            if k < i:
                before += x[k] >> bit & 1
        out[first + before if x[i] >> bit & 1 else i - before + ones] = x[i]


@wrong("sort/split", "second part turned around")
@cuda.jit
def split_from_both_ends(x, bit, out):
    i = cuda.grid(1)
    if i < x.size:
        first = i - cuda.threadIdx.x
        end, before = min(first + 256, x.size), 0
        for k in range(first, i):
            before += x[k] >> bit & 1
        out[end - 1 - before if x[i] >> bit & 1 else i - before] = x[i]


@wrong("sort/split", "race")
@cuda.jit
def split_by_a_counter(x, bit, out):
    """Ones begin where zeros do."""
    i = cuda.grid(1)
    if i < x.size:
        first, before = i - cuda.threadIdx.x, 0
        for k in range(first, i):
            before += x[k] >> bit & 1
        out[first + before if x[i] >> bit & 1 else i - before] = x[i]


@wrong("sort/split", "missing guard")
@cuda.jit
def split_as_if_the_block_were_full(x, bit, out):
    i = cuda.grid(1)
    if i < x.size:
        first = i - cuda.threadIdx.x
        ones, before = 0, 0
        for k in range(first, min(first + 256, x.size)):
            ones += x[k] >> bit & 1
            if k < i:
                before += x[k] >> bit & 1
        out[first + 256 - ones + before if x[i] >> bit & 1 else i - before] = x[i]


@wrong("sort/split", "missing guard")
@cuda.jit
def split_without_guard(x, bit, out):
    i = cuda.grid(1)
    one = x[i] >> bit & 1
    first = i - cuda.threadIdx.x
    zeros, before = 0, 0
    for k in range(first, min(first + 256, x.size)):
        zeros += 1 - (x[k] >> bit & 1)
        if k < i:
            before += x[k] >> bit & 1
    if i < x.size:
        out[first + zeros + before if one else i - before] = x[i]


@wrong("sort/split", "argument ignored")
@cuda.jit
def split_by_the_last_bit(x, bit, out):
    i = cuda.grid(1)
    if i < x.size:
        first = i - cuda.threadIdx.x
        zeros, before = 0, 0
        for k in range(first, min(first + 256, x.size)):
            zeros += 1 - (x[k] & 1)
            if k < i:
                before += x[k] & 1
        out[first + zeros + before if x[i] & 1 else i - before] = x[i]


# -- rank


@right("sort/rank")
@cuda.jit
def rank_by_sixteen_ballots(x, out):
    """A ballot for each value of the digit."""
    i = cuda.grid(1)
    digit = x[i] & 15 if i < x.size else -1
    peers = 0
    for value in range(16):
        lanes = cuda.ballot_sync(FULL_WARP, digit == value)
        if digit == value:
            peers = lanes
    if i < x.size:
        out[i] = below(peers)


@right("sort/rank")
@cuda.jit
def rank_by_match(x, out):
    """The instruction that does it."""
    i = cuda.grid(1)
    lanes = cuda.match_any_sync(FULL_WARP, x[i] & 15 if i < x.size else -1)
    if i < x.size:
        out[i] = below(lanes)


@right("sort/rank")
@cuda.jit
def rank_by_shuffles(x, out):
    i = cuda.grid(1)
    digit = x[i] & 15 if i < x.size else -1
    rank = 0
    for lane in range(32):
        other = cuda.shfl_sync(FULL_WARP, digit, lane)
        if lane < cuda.laneid and other == digit:
            rank += 1
    if i < x.size:
        out[i] = rank


@wrong("sort/rank", "counts itself")
@cuda.jit
def rank_from_one(x, out):
    i = cuda.grid(1)
    lanes = cuda.match_any_sync(FULL_WARP, x[i] & 15 if i < x.size else -1)
    if i < x.size:
        out[i] = below(lanes) + 1


@wrong("sort/rank", "later lanes counted")
@cuda.jit
def rank_of_all(x, out):
    i = cuda.grid(1)
    lanes = cuda.match_any_sync(FULL_WARP, x[i] & 15 if i < x.size else -1)
    if i < x.size:
        out[i] = cuda.popc(np.uint32(lanes))


@wrong("sort/rank", "later lanes alone")
@cuda.jit
def rank_from_the_end(x, out):
    i = cuda.grid(1)
    lanes = cuda.match_any_sync(FULL_WARP, x[i] & 15 if i < x.size else -1)
    if i < x.size:
        out[i] = cuda.popc(np.uint32(lanes)) - 1 - below(lanes)


@wrong("sort/rank", "wrong result")
@cuda.jit
def rank_by_the_last_bit(x, out):
    i = cuda.grid(1)
    lanes = cuda.match_any_sync(FULL_WARP, x[i] & 1 if i < x.size else -1)
    if i < x.size:
        out[i] = below(lanes)


@wrong("sort/rank", "wrong result")
@cuda.jit
def rank_by_ones_alone(x, out):
    """Who has a 0 does not leave out those that have a 1."""
    i = cuda.grid(1)
    digit = x[i] & 15 if i < x.size else 0
    peers = cuda.ballot_sync(FULL_WARP, i < x.size)
    for bit in range(4):
        ones = cuda.ballot_sync(FULL_WARP, digit >> bit & 1)
        if digit >> bit & 1:
            peers &= ones
    if i < x.size:
        out[i] = below(peers)


@wrong("sort/rank", "missing guard")
@cuda.jit
def rank_without_guard(x, out):
    i = cuda.grid(1)
    lanes = cuda.match_any_sync(FULL_WARP, x[i] & 15)
    if i < x.size:
        out[i] = below(lanes)


@wrong("sort/rank", "output not written")
@cuda.jit
def rank_of_the_last_alone(x, out):
    """Only the last lane with a digit writes."""
    i = cuda.grid(1)
    lanes = cuda.match_any_sync(FULL_WARP, x[i] & 15 if i < x.size else -1)
    if i < x.size and below(lanes) == cuda.popc(np.uint32(lanes)) - 1:
        out[i] = below(lanes)


@wrong("sort/rank", "too many barriers", "A ballot needs no barrier")
@cuda.jit
def rank_in_shared_memory(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    digits = cuda.shared.array(256, np.int32)
    digits[thread] = x[i] & 15 if i < x.size else -1
    cuda.syncthreads()
    rank = 0
    for k in range(thread // 32 * 32, thread):
        if digits[k] == digits[thread]:
            rank += 1
    if i < x.size:
        out[i] = rank


@wrong("sort/rank", "too much shared memory", "in a register")
@cuda.jit
def rank_in_the_warps_part_of_shared_memory(x, out):
    """Without a barrier of the block: the lanes of a warp wait for each other alone."""
    i, thread = cuda.grid(1), cuda.threadIdx.x
    digits = cuda.shared.array(256, np.int32)
    digits[thread] = x[i] & 15 if i < x.size else -1
    cuda.syncwarp()
    rank = 0
    for k in range(thread // 32 * 32, thread):
        if digits[k] == digits[thread]:
            rank += 1
    if i < x.size:
        out[i] = rank


# -- warp


@right("sort/warp")
@cuda.jit
def warp_by_counting(x, out):
    """A key goes behind all that are less, and behind the equal ones before it."""
    i, lane = cuda.grid(1), cuda.laneid
    key = x[i] if i < x.size else np.int32(0)
    place = 0
    there = cuda.ballot_sync(FULL_WARP, i < x.size)
    for k in range(32):
        other = cuda.shfl_sync(FULL_WARP, key, k)
        if there >> k & 1 and (other < key or (other == key and k < lane)):
            place += 1
    if i < x.size:
        out[i - lane + place] = key


@right("sort/warp")
@cuda.jit
def warp_by_odd_and_even(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    key = x[i] if i < x.size else np.int32(2**31 - 1)
    for step in range(32):
        lower = lane % 2 == step % 2
        above, below = cuda.shfl_down_sync(FULL_WARP, key, 1), cuda.shfl_up_sync(FULL_WARP, key, 1)
        if lower and lane < 31:
            key = min(key, above)
        elif not lower and lane > 0:
            key = max(key, below)
    if i < x.size:
        out[i] = key


@cuda.jit(device=True)
def in_order(key, lane, first_lesser):
    run = 2
    while run <= 32:
        distance = run // 2
        while distance > 0:
            other = cuda.shfl_xor_sync(FULL_WARP, key, distance)
            lesser = (lane & distance == 0) == (lane & run == 0)
            key = min(key, other) if lesser == first_lesser else max(key, other)
            distance //= 2
        run *= 2
    return key


@wrong("sort/warp", "descending")
@cuda.jit
def warp_the_greatest_first(x, out):
    i = cuda.grid(1)
    key = in_order(x[i] if i < x.size else np.int32(-(2**31)), cuda.laneid, False)
    if i < x.size:
        out[i] = key


@wrong("sort/warp", "lanes without a key", "what comes behind every key")
@cuda.jit
def warp_zero_for_no_key(x, out):
    i = cuda.grid(1)
    key = in_order(x[i] if i < x.size else np.int32(0), cuda.laneid, True)
    if i < x.size:
        out[i] = key


@wrong("sort/warp", "missing guard")
@cuda.jit
def warp_without_guard(x, out):
    i = cuda.grid(1)
    key = in_order(x[i], cuda.laneid, True)
    out[i] = key


@wrong("sort/warp", "inactive lanes")
@cuda.jit
def warp_of_those_with_a_key(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = in_order(x[i], cuda.laneid, True)


@wrong("sort/warp", "wrong result")
@cuda.jit
def warp_all_runs_rise(x, out):
    """Each run rises: two of them make no run that the next steps could merge."""
    i, lane = cuda.grid(1), cuda.laneid
    key = x[i] if i < x.size else np.int32(2**31 - 1)
    run = 2
    while run <= 32:
        distance = run // 2
        while distance > 0:
            other = cuda.shfl_xor_sync(FULL_WARP, key, distance)
            key = min(key, other) if lane & distance == 0 else max(key, other)
            distance //= 2
        run *= 2
    if i < x.size:
        out[i] = key


@wrong("sort/warp", "too many barriers", "need no barrier")
@cuda.jit
def warp_in_shared_memory(x, out):
    i, thread = cuda.grid(1), cuda.threadIdx.x
    keys = cuda.shared.array(256, np.int32)
    keys[thread] = x[i] if i < x.size else 2**31 - 1
    cuda.syncthreads()
    place, first = 0, thread // 32 * 32
    for k in range(first, first + 32):
        if keys[k] < keys[thread] or (keys[k] == keys[thread] and k < thread):
            place += 1
    if i < x.size:
        out[i - (thread - first) + place] = keys[thread]


@wrong("sort/warp", "too much shared memory", "from register to register")
@cuda.jit
def warp_in_its_part_of_shared_memory(x, out):
    """Without a barrier of the block: the lanes of a warp wait for each other alone."""
    i, thread = cuda.grid(1), cuda.threadIdx.x
    keys = cuda.shared.array(256, np.int32)
    keys[thread] = x[i] if i < x.size else 2**31 - 1
    cuda.syncwarp()
    place, first = 0, thread // 32 * 32
    for k in range(first, first + 32):
        if keys[k] < keys[thread] or (keys[k] == keys[thread] and k < thread):
            place += 1
    if i < x.size:
        out[i - (thread - first) + place] = keys[thread]
