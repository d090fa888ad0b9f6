"""Parts of rows, for `pmpp.kernels.softmax`: maximum and sum over several threads, and rows kept in registers.

A part of a row is held by a group of threads, its members: a few lanes, or a block. Each member has ``held`` vectors of
16 bytes, at most HELD, or half as many of 16-bit numbers that wait as float32. Some have one element more, because a
part need not begin or end at a multiple of 16 bytes.
``first`` and ``count`` say where in the flat ``x`` the part lies. ``shift`` is how many elements after a multiple of 16
bytes ``x`` begins.

``like`` is a tuple as long as a vector has elements. Its length is known when a kernel is compiled. So the loops over
it and over HELD are unrolled, every index into ``values`` is a constant, and the compiler can keep ``values`` in
registers. ``k < held`` is the same in all threads: the branch skips what a short row does not need. ``none`` is the
`Part` of no elements. ``wide`` is an array of the dtype that is computed in, of which only the dtype counts.

``most`` is a tuple as long as a member can hold vectors, and ``kept`` an array of the dtype in which elements wait. In
a row that blocks hold, a float16 waits as it is, two in a register, and is made float32 each time that it is needed.
There is no room for its exponential, which would be a float32, so that is computed twice. This takes less time than it
saves: as float32, a row of 32,768 would fill a multiprocessor's registers, and no other row could be loaded meanwhile.
Short rows, of which a multiprocessor has many at once, wait as float32, and half as many vectors fit. So does bfloat16:
Numba has no local arrays of it.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_max, block_sum
from pmpp.kernels.common.reductions import NO_MAX
from pmpp.runtime.vector import load128, store128, widened

BLOCK = 256  # threads a block, where nothing else is said


class Part(typing.NamedTuple):
    """What has been seen of a row: its maximum, and the sum of exp(x - maximum).

    Of no elements they are the lowest finite number and 0, in the dtype of the row.
    """

    highest: typing.Any
    total: typing.Any


@cuda.jit(device=True)
def append(highest, total, value):
    """The maximum, and the sum relative to it, of a row with one element more."""
    top = max(highest, value)
    return top, total * math.exp(highest - top) + math.exp(value - top)


@cuda.jit(device=True)
def join(highest, total, other_highest, other_total):
    """The maximum, and the sum relative to it, of two parts of a row together."""
    top = max(highest, other_highest)
    return top, total * math.exp(highest - top) + other_total * math.exp(other_highest - top)


@cuda.jit(device=True)
def warp_join(highest, total):
    """Join what the 32 lanes of a warp have seen of a row; every lane has the result."""
    for distance in (16, 8, 4, 2, 1):
        other_highest = cuda.shfl_xor_sync(FULL_WARP, highest, distance)
        other_total = cuda.shfl_xor_sync(FULL_WARP, total, distance)
        highest, total = join(highest, total, other_highest, other_total)
    return highest, total


@cuda.jit(device=True)
def block_join(highest, total, highests, totals, none):
    """Join what the threads of a block have seen of a row; every thread has the result.

    ``highests`` and ``totals``: shared arrays of 32, used only here.
    """
    thread, lane = cuda.threadIdx.x, cuda.laneid
    highest, total = warp_join(highest, total)
    if lane == 0:
        highests[thread // 32], totals[thread // 32] = highest, total
    cuda.syncthreads()
    highest, total = none
    if lane < cuda.blockDim.x // 32:
        highest, total = highests[lane], totals[lane]
    return warp_join(highest, total)


# -------------------------------------------------------------------------------------------------- a part in registers

HELD = 8
EACH = 65  # room for the elements of the vectors, 64 of float16, and for the extra one at the end


@cuda.jit(device=True)
def twice(like, most):
    """Whether exponentials are computed twice, because there is room for the elements alone: a constant."""
    return len(like) * len(most) > 32


@cuda.jit(device=True)
def power(below, like):
    """exp(below). For float32 it is the hardware's own exponential, good to 2 + 1.173 |below| ulp."""
    if len(like) == 2:
        return math.exp(below)
    return cuda.libdevice.fast_expf(below)


@cuda.jit(device=True)
def vectors_of(first, count, shift, like):
    """Where the first whole vector of a part begins, and how many whole vectors it has."""
    head = -(first + shift) & (len(like) - 1)
    return first + head, (count - head) // len(like)


@cuda.jit(device=True)
def loose(member, first, start, vectors, like):
    """The index in the part of this member's extra element. If that is ``count`` or more, the member has none."""
    return member if first + member < start else member + vectors * len(like)


@cuda.jit(device=True)
def hold(values, x, first, count, shift, like, most, held, member, members):
    """Load this member's elements into ``values``. No load waits for another.

    A member that has fewer vectors than others loads the part's last vector again.
    """
    start, vectors = vectors_of(first, count, shift, like)
    for k in range(len(most)):
        if k < held:
            v = load128(x, start + len(like) * min(member + k * members, vectors - 1))
            for c in range(len(like)):
                values[len(like) * k + c] = v[c]
    i = loose(member, first, start, vectors, like)
    values[EACH - 1] = widened(x[first + i]) if i < count else NO_MAX


@cuda.jit(device=True)
def highest_of(values, none, vectors, like, most, held, member, members):
    """The largest of a member's elements. Vectors that `hold` loaded again become -inf, so that they do not count."""
    best = max(none.highest, widened(values[EACH - 1]))
    for k in range(len(most)):
        if k < held:
            if member + k * members >= vectors:
                for c in range(len(like) * k, len(like) * (k + 1)):
                    values[c] = NO_MAX
            for c in range(len(like) * k, len(like) * (k + 1)):
                best = max(best, widened(values[c]))
    return best


@cuda.jit(device=True)
def total_of(values, like, most, held, best, log):
    """The sum of the exponentials. They replace the elements, if there is room and the elements are not needed."""
    keep = log or twice(like, most)
    last = power(widened(values[EACH - 1]) - best, like)
    total = last
    for k in range(len(most)):
        if k < held:
            for c in range(len(like) * k, len(like) * (k + 1)):
                e = power(widened(values[c]) - best, like)
                total += e
                if not keep:
                    values[c] = e
    if not keep:
        values[EACH - 1] = last
    return total


@cuda.jit(device=True)
def store_vector(out, i, values, k, like):
    if len(like) == 4:
        store128(out, i, (values[k], values[k + 1], values[k + 2], values[k + 3]))
    elif len(like) == 8:
        four = values[k], values[k + 1], values[k + 2], values[k + 3]
        rest = values[k + 4], values[k + 5], values[k + 6], values[k + 7]
        store128(out, i, four + rest)
    else:
        store128(out, i, (values[k], values[k + 1]))


@cuda.jit(device=True)
def result_of(value, best, scale, log, like, most):
    """What `release` stores for a number that `total_of` left."""
    if log:
        return widened(value) - best - scale
    if twice(like, most):
        return power(widened(value) - best, like) * scale
    return value * scale


@cuda.jit(device=True)
def release(values, out, first, count, shift, like, most, wide, held, member, members, best, scale, log):
    """Store a member's results at its elements' places: exp(x - best) * scale, or with ``log`` x - best - scale."""
    start, vectors = vectors_of(first, count, shift, like)
    results = cuda.local.array(8, wide.dtype)
    for k in range(len(most)):
        if k < held:
            for c in range(len(like)):
                results[c] = result_of(values[len(like) * k + c], best, scale, log, like, most)
            if member + k * members < vectors:
                store_vector(out, start + len(like) * (member + k * members), results, 0, like)
    i = loose(member, first, start, vectors, like)
    if i < count:
        out[first + i] = result_of(values[EACH - 1], best, scale, log, like, most)


# -------------------------------------------------------------------------------------------------------------- kernels


@cuda.jit(device=True)
def lanes_max(value, lanes):
    """In every lane, the largest value of its group of ``lanes`` neighbouring lanes, a power of two."""
    for distance in (16, 8, 4, 2, 1):
        if distance < lanes:
            value = max(value, cuda.shfl_xor_sync(FULL_WARP, value, distance))
    return value


@cuda.jit(device=True)
def lanes_sum(value, lanes):
    """In every lane, the sum of its group of ``lanes`` neighbouring lanes, a power of two."""
    for distance in (16, 8, 4, 2, 1):
        if distance < lanes:
            value += cuda.shfl_xor_sync(FULL_WARP, value, distance)
    return value


@cuda.jit
def lanes_kernel(x, out, n, held, shift, like, most, kept, wide, none, log):
    values = cuda.local.array(EACH, kept.dtype)
    member, lanes = cuda.threadIdx.x, cuda.blockDim.x
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    first = min(row * n, x.size - n)  # lanes beyond the last row take it again: the shuffles need all lanes
    hold(values, x, first, n, shift, like, most, held, member, lanes)
    _, vectors = vectors_of(first, n, shift, like)
    best = lanes_max(highest_of(values, none, vectors, like, most, held, member, lanes), lanes)
    total = lanes_sum(total_of(values, like, most, held, best, log), lanes)
    scale = math.log(total) if log else np.float32(1) / total
    if row * n < x.size:
        release(values, out, first, n, shift, like, most, wide, held, member, lanes, best, scale, log)


@cuda.jit(max_registers=64)
def block_kernel(x, out, n, held, shift, like, most, kept, wide, none, log):
    values = cuda.local.array(EACH, kept.dtype)
    first, member, members = cuda.blockIdx.x * n, cuda.threadIdx.x, cuda.blockDim.x
    hold(values, x, first, n, shift, like, most, held, member, members)
    _, vectors = vectors_of(first, n, shift, like)
    best = highest_of(values, none, vectors, like, most, held, member, members)
    best = block_max(best, cuda.shared.array(32, wide.dtype))
    total = total_of(values, like, most, held, best, log)
    total = block_sum(total, cuda.shared.array(32, wide.dtype))
    scale = math.log(total) if log else np.float32(1) / total
    release(values, out, first, n, shift, like, most, wide, held, member, members, best, scale, log)


# Several blocks hold a row. Each writes down what it found, maximum and sum as the halves of one 64-bit word. A word
# that is not EMPTY is complete, and nothing else is passed on, so no fence is needed. Then the block waits for the
# words of the other blocks of its row.
#
# No block waits forever, in whatever order blocks begin. A block takes the next part when it begins, and parts are
# handed out row by row. Suppose that all resident blocks waited, and look at the first row that is not done. One of its
# parts has not been taken, so no part of a later row has. All resident blocks then hold parts of this one row, and they
# are fewer than its parts. But the host uses this kernel only where a row has no more parts than the GPU has
# multiprocessors, and each of these holds at least one block.

EMPTY = -1  # no maximum has these bits: as a float32 they are NaN
MEMBERS = 256


@cuda.jit
def empty_kernel(slots):
    i = cuda.grid(1)
    if i < slots.size:
        slots[i] = EMPTY if i > 0 else 0


@cuda.jit(max_registers=64)
def blocks_kernel(x, out, n, chunk, parts, held, shift, like, most, kept, wide, none, log, slots):
    values, ticket = cuda.local.array(EACH, kept.dtype), cuda.shared.array(1, np.int64)
    whole = cuda.shared.array(2, np.float32)
    thread, members = cuda.threadIdx.x, cuda.blockDim.x
    if thread == 0:
        ticket[0] = cuda.atomic.add(slots, 0, 1)  # parts of a row go to blocks that begin one after another
    cuda.syncthreads()
    row = ticket[0] // parts
    begin = (ticket[0] - row * parts) * chunk
    first, count = row * n + begin, min(chunk, n - begin)
    hold(values, x, first, count, shift, like, most, held, thread, members)
    _, vectors = vectors_of(first, count, shift, like)
    own = highest_of(values, none, vectors, like, most, held, thread, members)
    own = block_max(own, cuda.shared.array(32, np.float32))
    total = total_of(values, like, most, held, own, log)
    total = block_sum(total, cuda.shared.array(32, np.float32))
    if thread < 32:
        if thread == 0:
            word = np.int64(cuda.libdevice.float_as_int(own)) << 32
            word |= np.int64(cuda.libdevice.float_as_int(total)) & 0xFFFFFFFF
            cuda.atomic.exch(slots, 1 + ticket[0], word)
        best, total = none
        for i in range(1 + row * parts + thread, 1 + (row + 1) * parts, 32):
            word = cuda.atomic.add(slots, i, 0)
            while word == EMPTY:
                word = cuda.atomic.add(slots, i, 0)
            other_best = cuda.libdevice.int_as_float(np.int32(word >> 32))
            best, total = join(best, total, other_best, cuda.libdevice.int_as_float(np.int32(word)))
        best, total = warp_join(best, total)
        if thread == 0:
            whole[0], whole[1] = best, total
    cuda.syncthreads()
    best, total = whole[0], whole[1]
    # The exponentials are relative to the block's own maximum.
    scale = math.log(total) if log else power(own - best, like) / total
    release(values, out, first, count, shift, like, most, wide, held, thread, members, best if log else own, scale, log)


# ------------------------------------------------------------------------------------------------------- tiny rows
#
# An element of so short a row needs a handful of instructions. A kernel that has to find out which elements a thread
# holds spends ten times as many on that. So the length of a row, or the height of the tree over it, is known when a
# kernel is compiled: ``row``, ``vectors``, ``levels`` and ``together`` are tuples like ``like``, of which only the
# length counts. Each length makes a kernel of its own, in which all loops are written out.

FILL = 3  # vectors, at most, that a thread fills with whole rows
ROOM = 8 * FILL
TINY = 32  # elements in the longest row that has a lane for each of them
TOGETHER = 4  # rows, of each of which a lane has one element, if there are many rows


@cuda.jit
def rows_kernel(x, out, row, vectors, like, wide, none, log):
    values = cuda.local.array(ROOM, wide.dtype)  # whole rows: nothing is needed from other lanes
    n, width, count = len(row), len(like), len(like) * len(vectors)
    first = cuda.grid(1) * count
    if first + count <= x.size:
        for k in range(len(vectors)):
            v = widened(load128(x, first + width * k))
            for c in range(width):
                values[width * k + c] = v[c]
    else:
        for i in range(count):
            values[i] = widened(x[first + i]) if first + i < x.size else none.highest
    for begin in range(0, count, n):
        best, total = none
        for i in range(begin, begin + n):
            best = max(best, values[i])
        for i in range(begin, begin + n):
            e = power(values[i] - best, like)
            total += e
            values[i] = values[i] if log else e
        scale = math.log(total) if log else np.float32(1) / total
        for i in range(begin, begin + n):
            values[i] = values[i] - best - scale if log else values[i] * scale
    if first + count <= x.size:
        for k in range(len(vectors)):
            store_vector(out, first + width * k, values, width * k, like)
    else:
        for i in range(count):
            if first + i < x.size:
                out[first + i] = values[i]


@cuda.jit
def elements_kernel(x, out, n, levels, together, like, wide, none, log):
    values, powers = cuda.local.array(TOGETHER, wide.dtype), cuda.local.array(TOGETHER, wide.dtype)
    lane, step = cuda.threadIdx.x, cuda.blockDim.y * n
    first = (cuda.blockIdx.x * len(together) * cuda.blockDim.y + cuda.threadIdx.y) * n + lane
    end = x.size if lane < n else 0  # a lane beyond its row has no element, but takes part in the shuffles
    for r in range(len(together)):
        i = first + r * step
        values[r] = widened(x[np.uint64(i)]) if i < end else none.highest  # unsigned: no code for negative indices
    for r in range(len(together)):
        best = max(none.highest, values[r])
        for k in range(len(levels)):
            best = max(best, cuda.shfl_xor_sync(FULL_WARP, best, 1 << k))
        values[r] -= best
        powers[r] = power(values[r], like) if first + r * step < end else none.total
    for r in range(len(together)):
        total = powers[r]
        for k in range(len(levels)):
            total += cuda.shfl_xor_sync(FULL_WARP, total, 1 << k)
        i = first + r * step
        if i < end:
            out[np.uint64(i)] = values[r] - math.log(total) if log else powers[r] * (np.float32(1) / total)


# ------------------------------------------------------------------------------------------------------- columns
#
# Along another axis than the last, the elements of a row lie ``inner`` apart. Neighbouring threads hold neighbouring
# columns, and the threads of a column hold ``depth`` elements of it each, or one less. ``depth`` is a tuple like
# ``like``. All loads of a thread are made before the first value is used.

DEEP = 32  # elements of a column, at most, that a thread keeps


@cuda.jit(device=True)
def largest_beside(value, cells):
    """The largest of the values of all threads that hold a column."""
    tx, width = cuda.threadIdx.x, cuda.blockDim.x
    if cuda.blockDim.y > 1:
        cells[cuda.threadIdx.y * width + tx] = value
        cuda.syncthreads()
        for part in range(tx, width * cuda.blockDim.y, width):
            value = max(value, cells[part])
    return value


@cuda.jit(device=True)
def sum_beside(value, cells, none):
    """The sum of the values of all threads that hold a column, in the same order in each."""
    tx, width = cuda.threadIdx.x, cuda.blockDim.x
    if cuda.blockDim.y > 1:
        cells[cuda.threadIdx.y * width + tx] = value
        cuda.syncthreads()
        value = none.total
        for part in range(tx, width * cuda.blockDim.y, width):
            value += cells[part]
    return value


@cuda.jit(max_registers=64)
def held_columns_kernel(x, out, columns, n, inner, depth, like, wide, none, log):
    values, ty, height = cuda.local.array(DEEP, wide.dtype), cuda.threadIdx.y, cuda.blockDim.y
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    a = np.uint32(min(column, columns - 1)) // np.uint32(inner)  # threads beyond the last column take it again
    first = np.int64(a) * (n - 1) * inner + min(column, columns - 1) + ty * inner
    last, end = len(depth) - 1, ty + (len(depth) - 1) * height  # of all elements, only the last may not be there
    for k in range(last):
        values[k] = widened(x[np.uint64(first + k * height * inner)])
    value = widened(x[np.uint64(first + min(last * height, n - 1 - ty) * inner)])
    values[last] = value if end < n else NO_MAX
    best = none.highest
    for k in range(len(depth)):
        best = max(best, values[k])
    best = largest_beside(best, cuda.shared.array(1024, wide.dtype))
    total = none.total
    for k in range(len(depth)):
        e = power(values[k] - best, like)
        total += e
        values[k] = values[k] if log else e
    total = sum_beside(total, cuda.shared.array(1024, wide.dtype), none)
    scale = math.log(total) if log else np.float32(1) / total
    for k in range(len(depth)):
        values[k] = values[k] - best - scale if log else values[k] * scale
    if column < columns:
        for k in range(last):
            out[np.uint64(first + k * height * inner)] = values[k]
        if end < n:
            out[np.uint64(first + last * height * inner)] = values[last]
