"""Answers to the exercises of chapter 28: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.histogram.exercises import BLOCK, LETTERS
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()


# -- letters


@cuda.jit(device=True)
def letter_of(byte):
    """0 to 25, or -1."""
    if 97 <= byte <= 122:
        return byte - 97
    if 65 <= byte <= 90:
        return byte - 65
    return -1


@right("histogram/letters")
@cuda.jit
def letters_with_two_tests(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(32, np.int32)
    if thread < 32:
        mine[thread] = 0
    cuda.syncthreads()
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            cuda.atomic.add(mine, at, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@right("histogram/letters")
@cuda.jit
def letters_in_a_table_of_all_bytes(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(256, np.int32)
    mine[thread] = 0
    cuda.syncthreads()
    if i < text.size:
        cuda.atomic.add(mine, text[i], 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[97 + thread] + mine[65 + thread]


@right("histogram/letters")
@cuda.jit
def letters_by_a_thread_for_each(text, counts):
    """Without atomics: the block reads its bytes into shared memory, and 26 threads look through them."""
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(BLOCK, np.uint8)
    mine[thread] = text[i] if i < text.size else 0
    cuda.syncthreads()
    if thread < LETTERS:
        count = 0
        for k in range(BLOCK):
            if letter_of(mine[k]) == thread:
                count += 1
        counts[cuda.blockIdx.x, thread] = count


@right("histogram/letters")
@cuda.jit
def letters_with_a_bin_for_the_rest(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(27, np.int32)
    if thread <= LETTERS:
        mine[thread] = 0
    cuda.syncthreads()
    at = letter_of(text[i]) if i < text.size else -1
    cuda.atomic.add(mine, at if at >= 0 else LETTERS, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@right("histogram/letters")
@cuda.jit
def letters_flushed_by_the_last_warp(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread >= BLOCK - LETTERS:
        mine[thread - (BLOCK - LETTERS)] = 0
    cuda.syncthreads()
    if i < text.size:
        byte = int(text[i])
        at = byte - 97 if byte > 96 else byte - 65
        if 0 <= at < 26:
            cuda.atomic.add(mine, at, 1)
    cuda.syncthreads()
    if thread >= BLOCK - LETTERS:
        at = thread - (BLOCK - LETTERS)
        counts[cuda.blockIdx.x, at] = mine[at]


@wrong("histogram/letters", "missing guard")
@cuda.jit
def letters_without_guard(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
    cuda.syncthreads()
    at = letter_of(text[i])
    if at >= 0:
        cuda.atomic.add(mine, at, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@wrong("histogram/letters", "uninitialised memory")
@cuda.jit
def letters_not_cleared(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            cuda.atomic.add(mine, at, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@wrong("histogram/letters", "missing barrier")
@cuda.jit
def letters_flushed_too_early(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
    cuda.syncthreads()
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            cuda.atomic.add(mine, at, 1)
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@wrong("histogram/letters", "missing barrier")
@cuda.jit
def letters_counted_too_early(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            cuda.atomic.add(mine, at, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@wrong("histogram/letters", "missing atomic")
@cuda.jit
def letters_without_atomics_in_the_block(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
    cuda.syncthreads()
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            mine[at] += 1
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@wrong("histogram/letters", "race between blocks")
@cuda.jit
def letters_all_into_one_row(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
    cuda.syncthreads()
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            cuda.atomic.add(mine, at, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[0, thread] = mine[thread]


@wrong("histogram/letters", "divergent barrier")
@cuda.jit
def letters_with_a_barrier_for_some(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
        cuda.syncthreads()
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            cuda.atomic.add(mine, at, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


@wrong("histogram/letters", "wrong result")
@cuda.jit
def letters_in_global_memory(text, counts):
    i = cuda.grid(1)
    if i < text.size:
        at = letter_of(text[i])
        if at >= 0:
            cuda.atomic.add(counts, (cuda.blockIdx.x, at), 1)


@wrong("histogram/letters", "case ignored", "A to Z, 65 to 90")
@cuda.jit
def letters_small_only(text, counts):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(LETTERS, np.int32)
    if thread < LETTERS:
        mine[thread] = 0
    cuda.syncthreads()
    if i < text.size and 97 <= text[i] <= 122:
        cuda.atomic.add(mine, text[i] - 97, 1)
    cuda.syncthreads()
    if thread < LETTERS:
        counts[cuda.blockIdx.x, thread] = mine[thread]


# -- range


@right("histogram/range")
@cuda.jit
def range_by_width(x, low, high, out):
    width = (high - low) / out.size
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        if x[i] == high:
            cuda.atomic.add(out, out.size - 1, 1)
        elif low <= x[i] < high:
            cuda.atomic.add(out, int((x[i] - low) // width), 1)


@right("histogram/range")
@cuda.jit
def range_by_search(x, low, high, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else low - 1
    if value >= low and value <= high:
        at = 0
        while at < out.size - 1 and value >= low + (at + 1) * (high - low) / out.size:
            at += 1
        cuda.atomic.add(out, at, 1)


@right("histogram/range")
@cuda.jit
def range_by_a_negative_test(x, low, high, out):
    i = cuda.grid(1)
    if i >= x.size:
        return
    value = x[i]
    if not (value >= low and value <= high):
        return
    at = int((value - low) * (np.float32(out.size) / (high - low)))
    if at == out.size:
        at -= 1
    cuda.atomic.add(out, at, 1)


@right("histogram/range")
@cuda.jit
def range_in_float64(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size:
        share = (float(x[i]) - low) / (high - low)
        if 0.0 <= share <= 1.0:
            cuda.atomic.add(out, min(int(share * out.size), out.size - 1), 1)


@right("histogram/range")
@cuda.jit
def range_from_above(x, low, high, out):
    """A value below ``high`` is in the last bin whose lower edge it reaches."""
    i = cuda.grid(1)
    value = x[i] if i < x.size else low - 1
    if low <= value <= high:
        at = out.size - 1
        while at > 0 and value < low + at * (high - low) / out.size:
            at -= 1
        cuda.atomic.add(out, at, 1)


@wrong("histogram/range", "missing guard")
@cuda.jit
def range_without_guard(x, low, high, out):
    i = cuda.grid(1)
    value = x[i]
    if low <= value <= high:
        at = int((value - low) / (high - low) * np.float32(out.size))
        cuda.atomic.add(out, min(at, out.size - 1), 1)


@wrong("histogram/range", "upper edge lost", "high itself belongs to the last bin")
@cuda.jit
def range_half_open(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size and low <= x[i] < high:
        cuda.atomic.add(out, int((x[i] - low) / (high - low) * np.float32(out.size)), 1)


@wrong("histogram/range", "missing guard")
@cuda.jit
def range_with_a_bin_too_many(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size and low <= x[i] <= high:
        cuda.atomic.add(out, int((x[i] - low) / (high - low) * np.float32(out.size)), 1)


@wrong("histogram/range", "clamped", "belongs to no bin")
@cuda.jit
def range_clamped(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size and x[i] == x[i]:
        value = min(max(x[i], low), high)
        at = int((value - low) / (high - low) * np.float32(out.size))
        cuda.atomic.add(out, min(at, out.size - 1), 1)


@wrong("histogram/range", "missing atomic")
@cuda.jit
def range_without_atomic(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size and low <= x[i] <= high:
        at = int((x[i] - low) / (high - low) * np.float32(out.size))
        out[min(at, out.size - 1)] += 1


@wrong("histogram/range", "wrong result")
@cuda.jit
def range_once_for_each_block(x, low, high, out):
    i = cuda.threadIdx.x
    if i < x.size and low <= x[i] <= high:
        at = int((x[i] - low) / (high - low) * np.float32(out.size))
        cuda.atomic.add(out, min(at, out.size - 1), 1)


@wrong("histogram/range", "wrong result")
@cuda.jit
def range_from_zero(x, low, high, out):
    i = cuda.grid(1)
    if i < x.size and low <= x[i] <= high:
        at = int(abs(x[i]) / (high - low) * np.float32(out.size))
        cuda.atomic.add(out, min(at, out.size - 1), 1)


# -- match


@right("histogram/match")
@cuda.jit
def match_by_lower_lanes(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    value = x[i] if i < x.size else -1
    same = cuda.match_any_sync(FULL_WARP, value)
    if i < x.size and same & ((1 << lane) - 1) == 0:
        cuda.atomic.add(out, value, cuda.popc(same))


@right("histogram/match")
@cuda.jit
def match_by_the_highest_lane(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else -1
    same = cuda.match_any_sync(FULL_WARP, value) & 0xFFFFFFFF
    if value >= 0 and same >> cuda.laneid == 1:
        cuda.atomic.add(out, value, cuda.popc(same))


@right("histogram/match")
@cuda.jit
def match_of_whole_warps_and_the_rest(x, out):
    i = cuda.grid(1)
    inside = cuda.ballot_sync(FULL_WARP, i < x.size)
    if i < x.size:
        same = cuda.match_any_sync(inside, x[i])
        if cuda.ffs(same) - 1 == cuda.laneid:
            cuda.atomic.add(out, x[i], cuda.popc(same))


@right("histogram/match")
@cuda.jit
def match_by_shuffles(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    value = x[i] if i < x.size else -1
    number, first = 0, 32
    for other in range(31, -1, -1):
        if cuda.shfl_sync(FULL_WARP, value, other) == value:
            number += 1
            first = other
    if value >= 0 and first == lane:
        cuda.atomic.add(out, value, number)


@right("histogram/match")
@cuda.jit
def match_by_votes(x, out):
    i, lane = cuda.grid(1), cuda.laneid
    value = x[i] if i < x.size else -1
    for bin in range(out.size):
        same = cuda.ballot_sync(FULL_WARP, value == bin)
        if lane == 0 and same != 0:
            cuda.atomic.add(out, bin, cuda.popc(same))


@wrong("histogram/match", "missing guard")
@cuda.jit
def match_without_guard(x, out):
    i = cuda.grid(1)
    value = x[i]
    same = cuda.match_any_sync(FULL_WARP, value)
    if cuda.ffs(same) - 1 == cuda.laneid:
        cuda.atomic.add(out, value, cuda.popc(same))


@wrong("histogram/match", "inactive lanes")
@cuda.jit
def match_for_some_lanes(x, out):
    i = cuda.grid(1)
    if i < x.size:
        same = cuda.match_any_sync(FULL_WARP, x[i])
        if cuda.ffs(same) - 1 == cuda.laneid:
            cuda.atomic.add(out, x[i], cuda.popc(same))


@wrong("histogram/match", "added by every lane")
@cuda.jit
def match_added_by_all(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else -1
    same = cuda.match_any_sync(FULL_WARP, value)
    if value >= 0:
        cuda.atomic.add(out, value, cuda.popc(same))


@wrong("histogram/match", "adds 1 for all")
@cuda.jit
def match_adds_one(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else -1
    same = cuda.match_any_sync(FULL_WARP, value)
    if value >= 0 and cuda.ffs(same) - 1 == cuda.laneid:
        cuda.atomic.add(out, value, 1)


@wrong("histogram/match", "too much work", "let the lowest add for all")
@cuda.jit
def match_without_a_match(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, x[i], 1)


@wrong("histogram/match", "missing atomic")
@cuda.jit
def match_without_atomic(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else -1
    same = cuda.match_any_sync(FULL_WARP, value)
    if value >= 0 and cuda.ffs(same) - 1 == cuda.laneid:
        out[value] += cuda.popc(same)


@wrong("histogram/match", "output not written")
@cuda.jit
def match_only_lane_0(x, out):
    i = cuda.grid(1)
    value = x[i] if i < x.size else -1
    same = cuda.match_any_sync(FULL_WARP, value)
    if value >= 0 and cuda.laneid == 0:
        cuda.atomic.add(out, value, cuda.popc(same))
