"""Whole programs as people publish them: sorts, scans, graphs, tables, matrices, games."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros

FULL = 0xFFFFFFFF


def shuffled(n, dtype=np.float32):
    return (ramp(n, np.int64) * 37 % n).astype(dtype)


# -- sorts and searches ----------------------------------------------------------------------------------------------


@pair("out_of_bounds", "shared", "s", block=40, make=lambda new: (shuffled(80), zeros(80)),
      result=lambda x, out: np.sort(x))  # fmt: skip
@cuda.jit
def odd_even_sort_past_the_end(x, out, mended):
    """In odd rounds the last element has no neighbour to its right."""
    s = cuda.shared.array(80, np.float32)
    t = cuda.threadIdx.x
    s[t], s[t + 40] = x[t], x[t + 40]
    for k in range(80):
        cuda.syncthreads()
        i = 2 * t + k % 2
        if not mended or i + 1 < 80:
            low, high = s[i], s[i + 1]  # BUG
            if low > high and i + 1 < 80:
                s[i], s[i + 1] = high, low
    cuda.syncthreads()
    out[t], out[t + 40] = s[t], s[t + 40]


@pair("race", "global", "x", grid=2, make=lambda new: (zeros(1), shuffled(128)), result=lambda out, x: np.sort(x))
@cuda.jit
def bitonic_sort_of_two_blocks(out, x, mended):
    """Steps of 64 go from block to block, and so do the steps after them."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    size = 2
    while size <= x.size:
        stride = size // 2
        while stride > 0:
            other = i ^ stride
            if other > i:
                low = x[i]  # BUG
                high = x[other]  # BUG
                if (low > high) == (i & size == 0):
                    x[i] = high  # BUG
                    x[other] = low  # BUG
            if mended:
                grid.sync()
            else:
                cuda.syncthreads()
            stride //= 2
        size *= 2


@pair("race", "shared", "keys", make=lambda new: (shuffled(64, np.int32), zeros(64, np.int32)),
      result=lambda x, out: np.sort(x))  # fmt: skip
@cuda.jit
def keys_scattered_while_others_count(x, out, mended):
    """A pass of a radix sort in one buffer: all must have counted before one key moves."""
    keys = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    keys[t] = x[t]
    for bit in range(6):
        cuda.syncthreads()
        key = keys[t]
        before, total = 0, 0
        for k in range(64):
            one = keys[k] >> bit & 1  # WITH
            total += one
            before += one if k < t else 0
        if mended:
            cuda.syncthreads()
        keys[64 - total + before if key >> bit & 1 else t - before] = key  # BUG
    cuda.syncthreads()
    out[t] = keys[t]


@pair("race", "global", "order", grid=2, block=32, make=lambda new: (ramp(64) // 4, zeros(64, np.int32)),
      result=lambda x, order: np.arange(64))  # fmt: skip
@cuda.jit
def equal_keys_get_one_rank(x, order, mended):
    """The rank of a key is the number of smaller ones: of equal keys, one has to come first."""
    i = cuda.grid(1)
    rank = 0
    for k in range(x.size):
        if x[k] < x[i] or (mended and x[k] == x[i] and k < i):
            rank += 1
    order[rank] = i  # BUG


@pair("out_of_bounds", "global", "a", block=8, make=lambda new: (2 * ramp(64), 2 * ramp(64) + 1, zeros(128)),
      result=lambda a, b, out: np.arange(128))  # fmt: skip
@cuda.jit
def merge_looks_before_it_tests_the_end(a, b, out, mended):
    """Whether there is a next element has to be asked before it is looked at."""
    t = cuda.threadIdx.x
    i, j = 8 * t, 8 * t
    for k in range(16 * t, 16 * t + 16):
        if mended:
            first = i < 8 * t + 8 and (j == 8 * t + 8 or a[i] < b[j])
        else:
            first = (j == 8 * t + 8 or a[i] < b[j]) and i < 8 * t + 8  # BUG
        if first:
            out[k] = a[i]
            i += 1
        else:
            out[k] = b[j]
            j += 1


@pair("out_of_bounds", "global", "edges", make=lambda new: (2 * ramp(64), ramp(40), zeros(64, np.int32)),
      result=lambda x, edges, out: np.searchsorted(edges, x, "right"))  # fmt: skip
@cuda.jit
def search_up_to_the_size(x, edges, out, mended):
    """`low <= high` goes with the last index, and `low < high` with the size."""
    i = cuda.grid(1)
    low = 0
    high = edges.size - 1 if mended else edges.size
    while low <= high:
        middle = (low + high) // 2
        if edges[middle] <= x[i]:  # BUG
            low = middle + 1
        else:
            high = middle - 1
    out[i] = low


# -- graphs, lists, tables -------------------------------------------------------------------------------------------


@pair("out_of_bounds", "global", "begin", make=lambda new: (3 * ramp(64, np.int32), zeros(64, np.int32)),
      result=lambda begin, out: np.full(64, 3))  # fmt: skip
@cuda.jit
def rows_without_the_end_of_the_last(begin, out, mended):
    """n rows have n + 1 ends, and this list has n: the end of the last row is the number of entries."""
    i = cuda.grid(1)
    if mended and i + 1 == begin.size:
        end = np.int32(192)
    else:
        end = begin[i + 1]  # BUG
    out[i] = end - begin[i]


@pair("out_of_bounds", "global", "table", grid=2, block=32,
      make=lambda new: (7 * ramp(64, np.int32) + 1, zeros(80, np.int32), zeros(64, np.int32)),
      result=lambda keys, table, out: np.ones(64))  # fmt: skip
@cuda.jit
def probing_that_does_not_wrap(keys, table, out, mended):
    """Behind the last slot comes the first."""
    i = cuda.grid(1)
    key = keys[i]
    slot = 60 + key % 20
    for _ in range(80):
        old = cuda.atomic.cas(table, slot, 0, key)  # BUG
        if old == 0:
            out[i] = 1
            break
        slot = (slot + 1) % table.size if mended else slot + 1


@pair("race", "global", "values", grid=2, make=lambda new: (ramp(128, np.int32) + 1, zeros(256, np.int32), zeros(256),
      zeros(128)), result=lambda x, keys, values, out: np.r_[x[64:], x[:64]] / 2)  # fmt: skip
@cuda.jit
def value_looked_up_before_it_is_stored(x, keys, values, out, mended):
    """The key is in the table as soon as the slot is taken; its value comes later."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    key = x[i]
    slot = key * 2 % keys.size
    while cuda.atomic.cas(keys, slot, 0, key) != 0:
        slot = (slot + 1) % keys.size
    values[slot] = np.float32(key) / 2  # WITH
    if mended:
        grid.sync()
    key = x[(i + 64) % x.size]
    slot = key * 2 % keys.size
    for _ in range(keys.size):
        if cuda.atomic.cas(keys, slot, -1, -1) == key:
            out[i] = values[slot]  # BUG
            break
        slot = (slot + 1) % keys.size


@pair("race", "shared", "parent", make=lambda new: (np.maximum(ramp(64, np.int32) - 1, 0), zeros(64, np.int32)),
      result=lambda x, out: np.zeros(64))  # fmt: skip
@cuda.jit
def pointers_that_jump_in_place(x, out, mended):
    """A parent that has jumped already is another one than that which was meant, and may change between two looks."""
    parent = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    parent[t] = x[t]
    cuda.syncthreads()
    for _ in range(6):
        above = parent[parent[t]]  # WITH
        if mended:
            cuda.syncthreads()
        parent[t] = above  # BUG
        cuda.syncthreads()
    out[t] = parent[t]


def edges(new):
    ends = np.stack([ramp(128, np.int32) % 60, ramp(128, np.int32) * 7 % 64])
    return ends, ramp(64, np.int32)


def lowest_neighbour(ends, parent):
    expected = parent.copy()
    np.minimum.at(expected, ends.max(0), ends.min(0))
    return expected


@pair("race", "global", "parent", grid=2, make=edges, result=lowest_neighbour)
@cuda.jit
def trees_hooked_by_plain_stores(ends, parent, mended):
    """Several edges hook one root, and all but one of the links are lost."""
    e = cuda.grid(1)
    high, low = max(ends[0, e], ends[1, e]), min(ends[0, e], ends[1, e])
    if mended:
        cuda.atomic.min(parent, high, low)
    elif low < high:
        parent[high] = low  # BUG


@pair("race", "shared", "changed", make=lambda new: (np.minimum(ramp(64, np.int32), 20), zeros(64, np.int32)),
      result=lambda x, out: np.full(64, 20))  # fmt: skip
@cuda.jit
def flag_lowered_while_others_test_it(x, out, mended):
    """The first warp lowers the flag for the next round before the second has seen that it was raised in this one."""
    best = cuda.shared.array((2, 64), np.int32)
    changed = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    best[0, t] = x[t]
    now = 0
    while True:
        if t == 0:
            changed[0] = 0  # BUG
        cuda.syncthreads()
        value = max(best[now, t], best[now, max(t - 1, 0)], best[now, min(t + 1, 63)])
        best[1 - now, t] = value
        if value != best[now, t]:
            changed[0] = 1
        cuda.syncthreads()
        if changed[0] == 0:  # WITH
            break
        if mended:
            cuda.syncthreads()
        now = 1 - now
    out[t] = best[now, t]


@pair("out_of_bounds", "global", "x", block=32, make=lambda new: (ramp(64), ramp(32) + 40, zeros(32)),
      result=lambda x, keys, out: np.minimum(keys, 64))  # fmt: skip
@cuda.jit
def search_for_a_key_that_is_not_there(x, keys, out, mended):
    """The loop ends at the key, and where there is none it goes on past the end."""
    t = cuda.threadIdx.x
    k = 0
    while (not mended or k < x.size) and k < 70 and x[k] != keys[t]:  # BUG
        k += 1
    out[t] = k


@pair("uninitialised_read", "register", "found", block=32, make=lambda new: (ramp(64), ramp(32) + 100, zeros(32)),
      result=lambda x, keys, out: np.full(32, -1))  # fmt: skip
@cuda.jit
def result_of_a_search_that_finds_nothing(x, keys, out, mended):
    """No thread finds its key, and none sets what it found."""
    t = cuda.threadIdx.x
    if mended:
        found = -1
    for k in range(x.size):
        if x[k] == keys[t]:
            found = k
    out[t] = found  # BUG


@pair("uninitialised_read", "register", "last", block=32,
      make=lambda new: (ramp(256).reshape(32, 8) % 5 % 3 == 1, zeros(32)),
      result=lambda x, out: [np.diff(np.flatnonzero(row)).sum() for row in x])  # fmt: skip
@cuda.jit
def distance_from_the_last_before_there_was_one(x, out, mended):
    """The first of a row has none before it, and rows begin at different places."""
    row = cuda.grid(1)
    seen, total = 0, 0
    if x[row, 0]:
        last = 0
        seen = 1
    for k in range(1, x.shape[1]):
        if x[row, k]:
            if seen > 0 or not mended:
                total += k - last  # BUG
            last = k
            seen += 1
    out[row] = total


# -- sparse rows -----------------------------------------------------------------------------------------------------


@pair("race", "global", "y", make=lambda new: (ramp(3, np.int32) * 40, ramp(80), zeros(2)),
      result=lambda begin, values, y: values.reshape(2, 40).sum(1))  # fmt: skip
@cuda.jit
def every_lane_writes_the_sum_of_its_row(begin, values, y, mended):
    """After `shfl_down` the first lane has the sum, and the others have parts of it."""
    row, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    total = np.float32(0)
    for k in range(begin[row] + lane, begin[row + 1], 32):
        total += values[k]
    for step in (16, 8, 4, 2, 1):
        total += cuda.shfl_down_sync(FULL, total, step)
    if lane == 0 or not mended:
        y[row] = total  # BUG


@pair("uninitialised_read", "register", "best", block=32,
      make=lambda new: (np.minimum(ramp(33, np.int32) * 2, 40), ramp(40), zeros(32)),
      result=lambda begin, values, out: np.r_[2 * np.arange(20) + 1, np.zeros(12)])  # fmt: skip
@cuda.jit
def maximum_of_a_row_without_entries(begin, values, out, mended):
    """A row without entries never goes round the loop that sets its maximum."""
    row = cuda.grid(1)
    if mended:
        best = np.float32(0)
    for k in range(begin[row], begin[row + 1]):
        best = values[k] if k == begin[row] else max(best, values[k])
    out[row] = best  # BUG


@pair("uninitialised_read", "register", "first", block=32,
      make=lambda new: (ramp(32, np.int32), zeros(1, np.int32), zeros(32, np.int32)),
      result=lambda x, n, slot: np.where(x % 3 == 1, x // 3, 0))  # fmt: skip
@cuda.jit
def slots_reserved_by_a_lane_that_is_absent(x, n, slot, mended):
    """One lane reserves slots for all that keep something: it must be one of them, and lane 0 need not be."""
    i, lane = cuda.grid(1), cuda.laneid
    if x[i] % 3 == 1:
        mask = cuda.activemask()
        leader = cuda.ffs(mask) - 1
        if lane == (leader if mended else 0):
            base = cuda.atomic.add(n, 0, cuda.popc(mask))
        first = cuda.shfl_sync(mask, base, leader)
        slot[i] = first + cuda.popc(mask & ((1 << lane) - 1))  # BUG


# -- reductions and scans --------------------------------------------------------------------------------------------


@pair("out_of_bounds", "shared", "s", block=96, make=lambda new: (ramp(96), zeros(1)),
      result=lambda x, out: [x.sum()])  # fmt: skip
@cuda.jit
def tree_over_a_block_of_ninety_six(x, out, mended):
    """A tree that doubles its steps expects a power of two."""
    s = cuda.shared.array(96, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    stride = 1
    while stride < 96:
        cuda.syncthreads()
        if t % (2 * stride) == 0 and (not mended or t + stride < 96):
            s[t] += s[t + stride]  # BUG
        stride *= 2
    if t == 0:
        out[0] = s[0]


@pair("uninitialised_read", "shared", "s", make=lambda new: (ramp(50), zeros(1)), result=lambda x, out: [x.sum()])
@cuda.jit
def partner_of_the_last_of_an_odd_number(x, out, mended):
    """50 become 25, and the last of these has no partner."""
    s = cuda.shared.array((2, 64), np.float32)
    t = cuda.threadIdx.x
    n, now = x.size, 0
    if t < n:
        s[0, t] = x[t]
    cuda.syncthreads()
    while n > 1:
        half = (n + 1) // 2
        if t < half:
            value = s[now, 2 * t]
            if not mended or 2 * t + 1 < n:
                value += s[now, 2 * t + 1]  # BUG
            s[1 - now, t] = value
        cuda.syncthreads()
        n, now = half, 1 - now
    if t == 0:
        out[0] = s[now, 0]


@pair("uninitialised_read", "shared", "sums", block=128, make=lambda new: (ramp(128), zeros(1)),
      result=lambda x, out: [x.sum()])  # fmt: skip
@cuda.jit
def sums_of_warps_that_the_block_does_not_have(x, out, mended):
    """32 lanes add up 32 sums, and a block of 128 threads has four."""
    sums = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    value = x[t]
    for k in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, k)
    if t % 32 == 0:
        sums[t // 32] = value
    cuda.syncthreads()
    if t < 32:
        value = np.float32(0)
        if not mended or t < cuda.blockDim.x // 32:
            value = sums[t]  # BUG
        for k in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(FULL, value, k)
        if t == 0:
            out[0] = value


@cuda.jit(device=True)
def sum_of_block(value):
    sums = cuda.shared.array(2, np.float32)
    t = cuda.threadIdx.x
    for k in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, k)
    if t % 32 == 0:
        sums[t // 32] = value  # BUG
    cuda.syncthreads()
    return sums[0] + sums[1]  # WITH


@pair("race", "shared", "sums", helpers=(sum_of_block,), result=lambda x, out: np.full(64, x.sum() + 64 * 2))
@cuda.jit
def function_called_again_before_all_have_left_it(x, out, mended):
    """A function's shared memory is the same each time: the second sum is written while others read the first."""
    t = cuda.threadIdx.x
    total = sum_of_block(x[t])
    if mended:
        cuda.syncthreads()
    out[t] = total + sum_of_block(np.float32(2))


@cuda.jit(device=True)
def unrolled(s, t, mended):
    s[t] += s[t + 32]  # WITH
    if mended:
        cuda.syncwarp()
    if t < 16:
        s[t] += s[t + 16]  # BUG
    if mended:
        cuda.syncwarp()
    if t < 8:
        s[t] += s[t + 8]  # BUG


@pair("race", "shared", "s", helpers=(unrolled,), result=lambda x, out: np.r_[x.reshape(8, 8).sum(0), np.zeros(56)])
@cuda.jit
def last_warp_unrolled_without_barriers(x, out, mended):
    """Lanes of one warp have not run in step since 2017: the published tree needs a `syncwarp` a step."""
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    if t < 32:
        unrolled(s, t, mended)
    if t < 8:
        out[t] = s[t]


@pair("uninitialised_read", "shared", "n", result=lambda x, out: np.r_[32, np.zeros(63)])
@cuda.jit
def counter_set_by_an_exchange(x, out, mended):
    """An exchange whose result nobody uses sets a counter like a store."""
    n = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    if mended and t == 0:
        cuda.atomic.exch(n, 0, 0)
    cuda.syncthreads()
    if x[t] % 2 == 0:
        cuda.atomic.add(n, 0, 1)  # BUG
    cuda.syncthreads()
    if t == 0:
        out[0] = n[0]


@pair("race", "shared", "s", block=32, result=lambda x, out: np.r_[np.full(16, x[3]), np.full(16, x[20])])
@cuda.jit
def half_of_the_warp_goes_on_while_the_other_reads(x, out, mended):
    """The upper half meets and its leader writes; the lower half, which has not been asked, may still be reading."""
    s = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    if t == 3:
        s[0] = x[t]
    cuda.syncwarp()
    value = s[0]  # WITH
    if mended:
        cuda.syncwarp()
    if t >= 16:
        cuda.syncwarp(0xFFFF0000)
        if t == 20:
            s[0] = x[t]  # BUG
        cuda.syncwarp(0xFFFF0000)
        value = s[0]
    out[t] = value


@pair("race", "global", "n", grid=4, block=32, make=lambda new: (ramp(4, np.int32), zeros(1, np.int32),
      np.full(1, 2, np.int32)), result=lambda x, ticket, n: [0])  # fmt: skip
@cuda.jit
def limit_reset_while_an_idle_block_may_look(x, ticket, n, mended):
    """A block that finds nothing to do has to draw a ticket, too: it has looked at what the last one resets."""
    if cuda.threadIdx.x == 0:
        limit = n[0]  # WITH
        idle = x[cuda.blockIdx.x] < limit
        if mended or not idle:
            cuda.threadfence()
            if cuda.atomic.add(ticket, 0, 1) == (3 if mended else 1):
                cuda.threadfence()
                n[0] = 0  # BUG


@pair("race", "shared", "heads", make=lambda new: (ramp(64), ramp(64, np.int32) % 10 == 0, zeros(64)),
      result=lambda x, first, out: np.concatenate([np.cumsum(part) for part in np.split(x, np.arange(10, 64, 10))])
      )  # fmt: skip
@cuda.jit
def heads_overtake_their_values(x, first, out, mended):
    """Values and heads of segments make one step: both are read before the barrier, and written after it."""
    values = cuda.shared.array(64, np.float32)
    heads = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    values[t] = x[t]
    heads[t] = first[t]
    cuda.syncthreads()
    for k in range(6):
        value, head = values[t], heads[t]
        if t >= 1 << k:
            if not head:
                value += values[t - (1 << k)]
            head |= heads[t - (1 << k)]  # WITH
        if not mended:
            heads[t] = head  # BUG
        cuda.syncthreads()
        values[t] = value
        if mended:
            heads[t] = head
        cuda.syncthreads()
    out[t] = values[t]


@pair("race", "shared", "s", make=lambda new: (ramp(128).astype(np.complex64) * (1 + 2j), zeros(128, np.complex64)),
      result=lambda x, out: walsh(x))  # fmt: skip
@cuda.jit
def butterflies_without_one_barrier(x, out, mended):
    """Each stage of a transform reads what other threads wrote in the stage before."""
    s = cuda.shared.array(128, np.complex64)
    t = cuda.threadIdx.x
    s[t], s[t + 64] = x[t], x[t + 64]
    half = 64
    while half > 0:
        if mended or half != 16:
            cuda.syncthreads()
        i = t // half * 2 * half + t % half
        a = s[i]  # BUG
        b = s[i + half]  # BUG
        s[i] = a + b  # BUG
        s[i + half] = a - b  # BUG
        half //= 2
    cuda.syncthreads()
    out[t], out[t + 64] = s[t], s[t + 64]


def walsh(x):
    x, half = x.copy(), 64
    while half:
        parts = x.reshape(-1, 2, half)
        x = np.stack([parts[:, 0] + parts[:, 1], parts[:, 0] - parts[:, 1]], 1).ravel()
        half //= 2
    return x


@pair("race", "global", "z.real", grid=2, make=lambda new: (ramp(128), zeros(64, np.complex64)),
      result=lambda x, z: x[:64] + 1j * x[64:])  # fmt: skip
@cuda.jit
def both_threads_write_the_real_part(x, z, mended):
    """Two threads fill the two parts of one number: as long as each has its own, they do not meet."""
    i = cuda.grid(1)
    if i < 64:
        z.real[i] = x[i]  # WITH
    elif mended:
        z.imag[i - 64] = x[i]
    else:
        z.real[i - 64] = x[i]  # BUG


# -- matrices and grids ----------------------------------------------------------------------------------------------


@pair("race", "shared", "a", block=(8, 8), make=lambda new: (1 + np.minimum.outer(ramp(8), ramp(8)), zeros((8, 8))),
      result=lambda x, out: np.tril(np.ones((8, 8)), -1) + np.triu(np.ones((8, 8))))  # fmt: skip
@cuda.jit
def elimination_before_its_factors(x, out, mended):
    """The factors of a column are computed by some threads, and used by others."""
    a = cuda.shared.array((8, 8), np.float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    a[i, j] = x[i, j]
    for k in range(7):
        cuda.syncthreads()
        if i > k and j == k:
            a[i, k] /= a[k, k]  # WITH
        if mended:
            cuda.syncthreads()
        if i > k and j > k:
            a[i, j] -= a[i, k] * a[k, j]  # BUG
    cuda.syncthreads()
    out[i, j] = a[i, j]


@pair("race", "global", "row", make=lambda new: (zeros(1), 4 + 4 * ramp(64)), result=lambda out, row: row / 4)
@cuda.jit
def row_divided_by_its_own_pivot(out, row, mended):
    """The thread of the pivot divides it by itself, and the others may find 1 there."""
    t = cuda.threadIdx.x
    if mended:
        pivot = row[0]
        cuda.syncthreads()
        row[t] /= pivot
    else:
        row[t] /= row[0]  # BUG


def distances(new):
    i, j = np.indices((8, 8))
    return np.where(np.abs(i - j) == 1, np.float32(1), np.float32(100) * (i != j)).astype(np.float32), zeros((8, 8))


@pair("race", "shared", "d", block=(8, 8), make=distances,
      result=lambda x, out: np.abs(np.subtract.outer(ramp(8), ramp(8))))  # fmt: skip
@cuda.jit
def shortest_paths_without_a_barrier(x, out, mended):
    """Step k reads row k and column k, which the step before may have changed.  No step changes its own."""
    d = cuda.shared.array((8, 8), np.float32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    d[i, j] = x[i, j]
    cuda.syncthreads()
    for k in range(8):
        through = d[i, k] + d[k, j]  # BUG
        shorter = through < d[i, j]
        if shorter:
            d[i, j] = through  # BUG
        if mended:
            cuda.syncthreads()
    out[i, j] = d[i, j]


@pair("race", "shared", "now", block=(8, 8),
      make=lambda new: ((ramp(64, np.int32).reshape(8, 8) * 5 % 7 < 3).astype(np.int32), zeros((8, 8), np.int32)),
      result=lambda x, out: life(x, 4))  # fmt: skip
@cuda.jit
def generation_on_the_board_of_the_last(x, out, mended):
    """With two boards that change places one barrier a generation is enough, and with one board it is too few."""
    now = cuda.shared.array((8, 8), np.int32)
    next_ = cuda.shared.array((8, 8), np.int32)
    i, j = cuda.threadIdx.y, cuda.threadIdx.x
    now[i, j] = x[i, j]
    cuda.syncthreads()
    for _ in range(4):
        around = -now[i, j]
        for di in range(-1, 2):
            for dj in range(-1, 2):
                around += now[(i + di) % 8, (j + dj) % 8]  # WITH
        alive = around == 3 or (around == 2 and now[i, j] == 1)
        if mended:
            next_[i, j] = alive
            now, next_ = next_, now
        else:
            now[i, j] = alive  # BUG
        cuda.syncthreads()
    out[i, j] = now[i, j]


def life(x, generations):
    for _ in range(generations):
        around = sum(np.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - x
        x = ((around == 3) | ((around == 2) & (x == 1))).astype(x.dtype)
    return x


@pair("race", "shared", "u", block=(8, 8), make=lambda new: (ramp(100).reshape(10, 10), zeros((8, 8))),
      result=lambda x, out: x[1:9, 1:9])  # fmt: skip
@cuda.jit
def colours_by_the_column(x, out, mended):
    """On a chessboard the neighbours of a field have the other colour.  Striped columns have their own above them."""
    u = cuda.shared.array((10, 10), np.float32)
    i, j = cuda.threadIdx.y + 1, cuda.threadIdx.x + 1
    k = cuda.threadIdx.y * 8 + cuda.threadIdx.x
    while k < 100:
        u[k // 10, k % 10] = x[k // 10, k % 10]
        k += 64
    cuda.syncthreads()
    for colour in range(2):
        if (i + j if mended else j) % 2 == colour:
            u[i, j] = (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]) / np.float32(4)  # BUG
        cuda.syncthreads()
    out[i - 1, j - 1] = u[i, j]


def two_words(new):
    return ramp(35, np.int32) % 5, ramp(35, np.int32) % 3, zeros((36, 36), np.int32)


def common(a, b, d):
    d = np.zeros((36, 36), np.int32)
    for i in range(1, 36):
        for j in range(1, 36):
            d[i, j] = d[i - 1, j - 1] + 1 if a[i - 1] == b[j - 1] else max(d[i - 1, j], d[i, j - 1])
    return d


@pair("race", "global", "d", make=two_words, result=common)
@cuda.jit
def diagonals_without_a_barrier(a, b, d, mended):
    """A diagonal of the table of common subsequences needs the two before it."""
    i = cuda.threadIdx.x
    for diagonal in range(2, 71):
        j = diagonal - i
        if 1 <= i < 36 and 1 <= j < 36:
            if a[i - 1] == b[j - 1]:
                d[i, j] = d[i - 1, j - 1] + 1  # BUG
            else:
                d[i, j] = max(d[i - 1, j], d[i, j - 1])  # BUG
        if mended:
            cuda.syncthreads()
        else:
            cuda.syncwarp()


# -- loops over work -------------------------------------------------------------------------------------------------


@pair("race", "shared", "item", grid=2, make=lambda new: (ramp(512), zeros(1, np.int32), zeros(512)),
      result=lambda x, n, out: 2 * x)  # fmt: skip
@cuda.jit
def next_item_drawn_while_others_read_the_last(x, n, out, mended):
    """A block that stays draws its next item from a counter: all must have read the last one before that."""
    item = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    while True:
        if t == 0:
            item[0] = cuda.atomic.add(n, 0, 1)  # BUG
        cuda.syncthreads()
        mine = item[0]  # WITH
        if mended:
            cuda.syncthreads()
        if mine >= 8:
            break
        out[64 * mine + t] = 2 * x[64 * mine + t]


@pair("divergent_barrier", "register", "syncthreads()", make=lambda new: (ramp(100), zeros(100)),
      result=lambda x, out: np.r_[x[63::-1], x[:63:-1]])  # fmt: skip
@cuda.jit
def barrier_in_a_loop_that_not_all_go_round(x, out, mended):
    """In the second round 36 of 64 threads have an element, and the barrier waits for all."""
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    while (i - t if mended else i) < x.size:
        here = min(64, x.size - (i - t))
        if i < x.size:
            s[t] = x[i]
        cuda.syncthreads()  # BUG
        if i < x.size and (mended or here == 64):
            out[i] = s[here - 1 - t]
        cuda.syncthreads()  # WITH
        i += cuda.gridsize(1)


@pair("out_of_bounds", "local", "stack", make=lambda new: (ramp(64, np.int32), zeros(64)),
      result=lambda x, out: np.full(64, 63))  # fmt: skip
@cuda.jit
def stack_one_level_too_shallow(x, out, mended):
    """A tree of six levels needs six places if both children are put there, and five if the walk goes left at once."""
    stack = cuda.local.array(5, np.int32)
    top, visited = 1, 0
    stack[0] = 1
    while top > 0 and visited < 63:
        top -= 1
        node = stack[top]  # BUG
        visited += 1
        while mended and node < 32:
            stack[top] = 2 * node + 1
            top += 1
            node = 2 * node
            visited += 1
        if 0 < node < 32:
            stack[top] = 2 * node + 1
            stack[top + 1] = 2 * node  # BUG
            top += 2
    out[cuda.grid(1)] = visited


@pair("race", "global", "composite", grid=2, make=lambda new: (zeros(1), zeros(4, np.int32)),
      result=lambda out, composite: composites())  # fmt: skip
@cuda.jit
def sieve_of_bits_without_atomics(out, composite, mended):
    """Threads set different bits of one word, and each writes the whole word."""
    p = cuda.grid(1)
    if p > 1:
        for m in range(2 * p, 128, p):
            if mended:
                cuda.atomic.or_(composite, m // 32, 1 << m % 32)
            else:
                composite[m // 32] |= 1 << m % 32  # BUG


def composites():
    found = [any(m % p == 0 for p in range(2, m)) for m in range(128)]
    return np.packbits(found, bitorder="little").view(np.int32)
