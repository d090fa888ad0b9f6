"""Sort: the keys of a vector in ascending order.

Chapter: notebooks/42_sorting.ipynb.  PMPP 4e ch. 13; 5e ch. 14.

Each key is read once and written once at least, but no kernel knows where a key goes before it has seen all others. A
sort by comparisons goes through memory once for each doubling of what is sorted. A radix sort goes through it once for
each digit, and compares nothing: four times for keys of 32 bits in digits of eight.

This file has the rungs. What a key's digits are is in `pmpp.kernels.sort.digits`; how a block sorts its tile by one of
them, in the last two rungs, in `pmpp.kernels.sort.tile`; how tiles learn from each other, in
`pmpp.kernels.sort.look_back`.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan
from pmpp.kernels.common import blocks
from pmpp.kernels.merge.ladder import co_rank, goes_first, merge_piece, section_of
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.ladder import clear_kernel
from pmpp.kernels.scan.look_back import COMPLETE, PARTIAL, next_tile
from pmpp.kernels.scan.tile import SLOTS, scan_block
from pmpp.kernels.sort.digits import BINS, PASSES, as_digits, byte_of, digit_of, ordered, turn_of
from pmpp.kernels.sort.look_back import NARROW, WIDE, look_back_bins, publish_bin
from pmpp.kernels.sort.tile import BLOCK as TILE_BLOCK
from pmpp.kernels.sort.tile import (
    COUNTERS,
    ITEMS,
    TILE,
    count_in_warps,
    leave_out_copies,
    load_keys,
    places_of,
    rank_and_gather,
    write,
)
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("int32", "uint32", "float32")
BLOCK = 256  # threads a block
PIECE = 8  # keys of a thread where a block sorts or merges in shared memory
SECTION = BLOCK * PIECE  # keys of such a block: a power of two
NARROW_BITS = 4  # of a digit in `local`
NARROW_BINS = 1 << NARROW_BITS
BEGINS = NARROW_BINS + 1  # where the digits begin in a section, and where the last one ends
BLOCKS_PER_SM = 6  # of the kernel that counts all digits
COPIES = 16  # of its counters. One of them counts up to 65,535 keys, and so a block up to 2^19, and a few


def reference(x: np.ndarray) -> np.ndarray:
    """Put one key after another among those before it, behind all that do not come after it. NaN comes last."""
    taken: list = []
    for key in x:
        low, high = 0, len(taken)
        while low < high:
            middle = (low + high) // 2
            if key < taken[middle] or (taken[middle] != taken[middle] and key == key):
                high = middle
            else:
                low = middle + 1
        taken.insert(low, key)
    return np.array(taken, x.dtype)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward inputs: a name, and the vector ``(x,)``. The same every time."""
    rng = np.random.default_rng(42) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "a warp and one": 33, "a section -1": SECTION - 1, "a section +1": SECTION + 1}
    sizes |= {"a tile +1": TILE + 1}
    made = {name: rng.integers(-(2**31), 2**31, n, dtype=np.int32) for name, n in sizes.items()}
    made["all equal"] = np.full(SECTION + 9, -7, np.int32)
    rising = np.arange(-600, 600, dtype=np.int32)
    made["sorted, then reversed"] = np.concatenate([rising, rising[::-1]])
    made["the largest and the smallest"] = rng.permutation(np.repeat(np.int32([-(2**31), -1, 0, 2**31 - 1]), 515))
    made["uint32, and few values"] = rng.permutation(np.repeat(np.uint32([0, 2**31 - 1, 2**31, 2**32 - 1]), 520))
    odd = np.float32([-np.inf, -3e38, -1e-45, -0.0, 0.0, 1e-45, 3e38, np.inf, np.nan, -np.nan])
    normal = rng.standard_normal(SECTION, dtype=np.float32)
    made["-0, NaN, and not finite"] = rng.permutation(np.concatenate([np.repeat(odd, 30), normal]))
    made["nothing but NaN"] = np.full(700, np.nan, np.float32)
    return {name: (x,) for name, x in made.items()}


def cost(n: int, itemsize: int = 4) -> Cost:
    """``x`` read once, and the result written once. To compare counts as no operation."""
    return Cost(flops=0, bytes=2 * n * itemsize)


def own_cost(n: int) -> Cost:
    """What a radix sort by digits of eight bits moves: ``x`` read once to count, then four times read and written."""
    return Cost(flops=0, bytes=(4 + PASSES * 8) * n)


def tolerance(x: np.ndarray) -> float:
    """Nothing is computed: every element is one of the keys."""
    return 0.0


def arguments(x, *, out=None, stream=0) -> Problem:
    """Sort a vector in ascending order.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^32, of int32, uint32 or float32.
        out: a contiguous device array (n,) of that dtype for the result, apart from ``x`` in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns a device array (n,) of ``x``'s dtype, without waiting for the work to be done; ``x`` stays as it is. As
    NumPy sorts, -0 and 0 are equal, and so are all NaNs, which come last. `bitonic` and `bitonic_shared` put equal
    keys in any order; the other rungs keep theirs.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``np.sort(x, kind="stable")``.

    >>> from pmpp.kernels import sort
    >>> sort.one_sweep(np.int32([5, -1, 4, -9])).copy_to_host()
    array([-9, -1,  4,  5], dtype=int32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if x.size >= 2**32:
        raise ValueError(f"x must have fewer than 2^32 keys, had {x.size}")
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart={"x": x}, stream=stream)
    return Problem(out, stream=stream, x=x, out=out, turn=turn_of(x.dtype))


# ------------------------------------------------------------------------------------------------ sorts by comparisons


@cuda.jit(device=True)
def compare_exchange(x, low, high):
    """Put the lesser one of two elements first."""
    if goes_first(x[high], x[low]):
        x[low], x[high] = x[high], x[low]


@cuda.jit(device=True)
def pair_of(t, distance, mirrored):
    """The elements of comparison ``t`` in a step of the network.

    Halves of ``distance`` elements lie side by side. Element i of the first half meets element i of the second one, or
    ``mirrored`` the one that is as far from the end.
    """
    first = t // distance * (2 * distance)
    i = t % distance
    return first + i, first + (2 * distance - 1 - i if mirrored else distance + i)


@cuda.jit
def bitonic_kernel(x, out, distance, mirrored):
    low, high = pair_of(np.int64(cuda.grid(1)), np.int64(distance), mirrored)
    if high < x.size:
        a, b = x[low], x[high]
        if goes_first(b, a):
            a, b = b, a
        out[low], out[high] = a, b
    elif low < x.size:
        out[low] = x[low]


@rung(bitonic_kernel)
def bitonic(p):
    """A network of comparisons that never depends on the keys: runs of 2, 4, 8, ... are merged, a launch for each step.

    Source: Batcher, "Sorting networks and their applications" (1968); PMPP 4e section 13.8.

    Leaves: n log^2 n comparisons, and each step of the network reads and writes all keys in device memory.
    """
    source, half = p.x, 1
    pairs = 1 << max(p.x.size - 1, 1).bit_length() - 1  # half of the next power of two
    while half < max(p.x.size, 2):
        distance = half
        while distance > 0:
            bitonic_kernel[blocks(pairs, BLOCK), BLOCK, p.stream](source, p.out, distance, distance == half)
            source, distance = p.out, distance // 2
        half *= 2


@cuda.jit(device=True)
def step_in_shared(keys, count, distance, mirrored):
    """A step of the network on the first ``count`` elements of a section in shared memory. A barrier follows."""
    for t in range(cuda.threadIdx.x, SECTION // 2, BLOCK):
        low, high = pair_of(t, distance, mirrored)
        if high < count:
            compare_exchange(keys, low, high)
    cuda.syncthreads()


@cuda.jit
def bitonic_section_kernel(x, out, sorted_runs):
    """Of each section the steps that stay inside: all that sort it, or, if its halves meet no more, the last ones."""
    keys = cuda.shared.array(SECTION, x.dtype)
    first = np.int64(cuda.blockIdx.x) * SECTION
    count = min(np.int64(SECTION), x.size - first)
    for at in range(cuda.threadIdx.x, count, BLOCK):
        keys[at] = x[first + at]
    cuda.syncthreads()
    half = SECTION // 2 if sorted_runs else 1
    while half < SECTION:
        distance = half
        while distance > 0:
            step_in_shared(keys, count, distance, distance == half and not sorted_runs)
            distance //= 2
        half *= 2
    for at in range(cuda.threadIdx.x, count, BLOCK):
        out[first + at] = keys[at]


@rung(bitonic_section_kernel, bitonic_kernel)
def bitonic_shared(p):
    """A block takes 2,048 keys into shared memory and makes all steps of the network there that stay among them.

    Source: PMPP 4e section 13.8; S. Green, "Sorting networks" (CUDA samples).

    Leaves: steps over more than 2,048 keys go through device memory, still a number that grows with log^2 n.
    """
    sections, half = blocks(p.x.size, SECTION), SECTION
    bitonic_section_kernel[sections, BLOCK, p.stream](p.x, p.out, False)
    pairs = 1 << max(p.x.size - 1, 1).bit_length() - 1
    while half < p.x.size:
        distance = half
        while distance >= SECTION:
            bitonic_kernel[blocks(pairs, BLOCK), BLOCK, p.stream](p.out, p.out, distance, distance == half)
            distance //= 2
        bitonic_section_kernel[sections, BLOCK, p.stream](p.out, p.out, True)
        half *= 2


@cuda.jit(device=True)
def sort_piece(mine, own):
    """Sort this thread's keys, ``own`` of PIECE: neighbours are compared, at even places and at odd ones in turn."""
    for step in range(PIECE):
        for low in range(step % 2, PIECE - 1, 2):
            if low + 1 < own:
                compare_exchange(mine, low, low + 1)


@cuda.jit(device=True)
def merge_runs(source, target, count, run):
    """Merge neighbouring runs of a section, in shared memory. A thread makes PIECE elements."""
    k = cuda.threadIdx.x * PIECE
    first = k // (2 * run) * (2 * run)
    middle, end = min(first + run, count), min(first + 2 * run, count)
    if k < count:
        a, b = source[first:middle], source[middle:end]
        i = co_rank(k - first, a, b)
        merge_piece(a, i, b, k - first - i, target[first:end], k - first, min(k - first + PIECE, end - first))
    cuda.syncthreads()


@cuda.jit
def runs_kernel(x, out):
    """Sort each section: a thread its PIECE keys in registers, then the block by merging in shared memory."""
    here, there = cuda.shared.array(SECTION, x.dtype), cuda.shared.array(SECTION, x.dtype)
    first = np.int64(cuda.blockIdx.x) * SECTION
    count = min(np.int64(SECTION), x.size - first)
    for at in range(cuda.threadIdx.x, SECTION, BLOCK):
        there[at] = x[first + min(np.int64(at), count - 1)]  # behind the end the last key again, which nobody sorts
    cuda.syncthreads()
    mine = cuda.local.array(PIECE, x.dtype)
    k = cuda.threadIdx.x * PIECE
    for item in range(PIECE):
        mine[item] = there[k + item]
    sort_piece(mine, count - k)
    for item in range(PIECE):
        here[k + item] = mine[item]
    cuda.syncthreads()
    run = PIECE
    while run < SECTION:
        merge_runs(here, there, count, run)
        here, there = there, here
        run *= 2
    for at in range(cuda.threadIdx.x, count, BLOCK):
        out[first + at] = here[at]


@cuda.jit
def merge_kernel(x, out, run):
    """Merge neighbouring runs of ``x``. A block makes a section of the result, as in `merge.tiled`, in one round."""
    k = np.int64(cuda.blockIdx.x) * SECTION
    first = k // (2 * run) * (2 * run)
    middle, end = min(first + run, x.size), min(first + 2 * run, x.size)
    a, b = x[first:middle], x[middle:end]
    k, last = k - first, min(k + SECTION, end) - first
    i, i_end = section_of(a, b, k, last, cuda.shared.array(2, np.int64))
    loaded, merged = cuda.shared.array(SECTION, x.dtype), cuda.shared.array(SECTION, x.dtype)
    in_a, count = i_end - i, last - k
    for at in range(cuda.threadIdx.x, count, BLOCK):
        loaded[at] = a[i + at] if at < in_a else b[k - i + at - in_a]
    cuda.syncthreads()
    mine = min(cuda.threadIdx.x * PIECE, count)
    part_a, part_b = loaded[:in_a], loaded[in_a:count]
    i = co_rank(mine, part_a, part_b)
    merge_piece(part_a, i, part_b, mine - i, merged, mine, min(mine + PIECE, count))
    cuda.syncthreads()
    for at in range(cuda.threadIdx.x, count, BLOCK):
        out[first + k + at] = merged[at]


@rung(runs_kernel, merge_kernel)
def merge_sort(p):
    """A block sorts 2,048 keys by merging. Then runs are merged in pairs, each pass twice as long, all blocks busy.

    Source: PMPP 4e section 13.8 and chapter 12; Satish, Harris and Garland, "Designing efficient sorting algorithms for
    manycore GPUs" (2009).

    Leaves: a pass over memory for each doubling: 17 of them for 2^28 keys, and in each a search before the merge.
    """
    sections, run = blocks(p.x.size, SECTION), SECTION
    passes = max(sections - 1, 0).bit_length()
    here, there = p.out, device.empty(p.x.size if passes else 0, p.x.dtype, stream=p.stream)
    if passes % 2:
        here, there = there, here  # so that the last pass writes to the result
    runs_kernel[sections, BLOCK, p.stream](p.x, here)
    while run < p.x.size:
        merge_kernel[sections, BLOCK, p.stream](here, there, run)
        here, there, run = there, here, 2 * run


# ---------------------------------------------------------------------------------------------------- sorts by digits


def by_passes(p, passes, one_pass):
    """Sort by ``passes`` digits, the last digit first: ``one_pass(number, source, target)`` for each.

    Each pass writes what the next one reads. They take turns with the result and one more array, so that the last one
    writes to the result.
    """
    source, out = as_digits(p.x), as_digits(p.out)
    spare = device.empty(source.size, source.dtype, stream=p.stream)
    for number in range(passes):
        target = out if (passes - number) % 2 else spare
        one_pass(number, source, target)
        source = target


@cuda.jit
def bit_kernel(x, bit, turn, ones):
    i = np.int64(cuda.grid(1))
    if i < x.size:
        ones[i] = ordered(x[i], turn) >> np.uint32(bit) & np.uint32(1)


@cuda.jit
def split_kernel(x, ones, before, out):
    """``before[i]``: how many keys before number i have a one. Zeros go to the front."""
    i = np.int64(cuda.grid(1))
    if i < x.size:
        zeros = x.size - (before[x.size - 1] + ones[x.size - 1])
        out[zeros + before[i] if ones[i] else i - before[i]] = x[i]


@rung(bit_kernel, split_kernel)
def one_bit(p):
    """Keys whose last bit is 0 go before those whose last bit is 1: a scan says where. Then the same with each bit.

    A pass keeps the order of keys with the same bit, and so the work of the passes before.

    Source: PMPP 4e section 13.3; Blelloch, "Prefix sums and their applications" (1990), section 1.3.

    Leaves: 32 passes, and each moves 32 bytes for a key: the bits, their scan, and the keys.
    """
    n = p.x.size
    ones = device.empty(n, np.int32 if n < 2**31 else np.int64, stream=p.stream)

    def one_pass(number, source, target):
        bit_kernel[blocks(n, BLOCK), BLOCK, p.stream](source, number, p.turn, ones)
        before = scan.vectorised(ones, exclusive=True, stream=p.stream)
        split_kernel[blocks(n, BLOCK), BLOCK, p.stream](source, ones, before, target)

    by_passes(p, 32, one_pass)


@cuda.jit(device=True)
def narrow_digit(key, shift, turn):
    return np.int32(ordered(key, turn) >> np.uint32(shift) & np.uint32(NARROW_BINS - 1))


@cuda.jit(device=True)
def split_section(keys, count, bit, turn, ends):
    """Zeros before ones, in shared memory: a thread takes PIECE neighbours. A barrier follows."""
    mine = cuda.local.array(PIECE, keys.dtype)
    k = cuda.threadIdx.x * PIECE
    ones = np.int32(0)
    for item in range(PIECE):
        if k + item < count:
            mine[item] = keys[k + item]
            ones += np.int32(ordered(mine[item], turn) >> np.uint32(bit) & np.uint32(1))
    before, total = scan_block(SUM, np.int32(0), np.int32(ones), ends)
    cuda.syncthreads()  # all have read their keys
    for item in range(PIECE):
        if k + item < count:
            one = np.int32(ordered(mine[item], turn) >> np.uint32(bit) & np.uint32(1))
            keys[count - total + before if one else k + item - before] = mine[item]
            before += one
    cuda.syncthreads()


@cuda.jit
def local_kernel(x, out, table, starts, shift, turn):
    """Sort each section by one digit. ``table[d, section]``: how many keys have the digit d; ``starts``: where."""
    thread = cuda.threadIdx.x
    keys, ends = cuda.shared.array(SECTION, x.dtype), cuda.shared.array(SLOTS, np.int32)
    begins = cuda.shared.array(BEGINS, np.int32)
    first = np.int64(cuda.blockIdx.x) * SECTION
    count = np.int32(min(np.int64(SECTION), x.size - first))
    for at in range(thread, count, BLOCK):
        keys[at] = x[first + at]
    if thread <= NARROW_BINS:
        begins[thread] = count
    cuda.syncthreads()
    for bit in range(NARROW_BITS):
        split_section(keys, count, shift + bit, turn, ends)
    for at in range(thread, count, BLOCK):
        out[first + at] = keys[at]
        digit = narrow_digit(keys[at], shift, turn)
        earlier = narrow_digit(keys[at - 1], shift, turn) if at else -1
        for d in range(earlier + 1, digit + 1):  # a digit begins here, and so do those that no key has
            begins[d] = at
    cuda.syncthreads()
    if thread < NARROW_BINS:
        table[thread, cuda.blockIdx.x] = begins[thread + 1] - begins[thread]
        starts[cuda.blockIdx.x, thread] = begins[thread]


@cuda.jit
def runs_to_places_kernel(x, places, starts, shift, turn, out):
    """Each digit's keys of a sorted section to their places: ``places[d, section]`` is that of the first one."""
    i = np.int64(cuda.grid(1))
    if i < x.size:
        key, section = x[i], i // SECTION
        digit = narrow_digit(key, shift, turn)
        out[places[digit, section] + i % SECTION - starts[section, digit]] = key


@rung(local_kernel, runs_to_places_kernel)
def local(p):
    """Digits of four bits. A block first sorts its keys by the digit in shared memory, so it writes runs, side by side.

    One scan of the blocks' counts, digit by digit, says where the run of each block and each digit goes.

    Source: PMPP 4e sections 13.4 to 13.6; Satish, Harris and Garland (2009).

    Leaves: eight passes, and in each four splits with their barriers. A pass moves 16 bytes for a key, as the sorted
    sections go to memory and come back.
    """
    n, sections = p.x.size, blocks(p.x.size, SECTION)
    sorted_keys = as_digits(device.empty(n, p.x.dtype, stream=p.stream))
    table = device.empty((NARROW_BINS, sections), np.int64, stream=p.stream)
    starts = device.empty((sections, NARROW_BINS), np.int32, stream=p.stream)

    def one_pass(number, source, target):
        shift = number * NARROW_BITS
        local_kernel[sections, BLOCK, p.stream](source, sorted_keys, table, starts, shift, p.turn)
        places = scan.vectorised(table.reshape(-1), exclusive=True, stream=p.stream).reshape(NARROW_BINS, sections)
        runs_to_places_kernel[blocks(n, BLOCK), BLOCK, p.stream](sorted_keys, places, starts, shift, p.turn, target)

    by_passes(p, 32 // NARROW_BITS, one_pass)


@cuda.jit
def digits_kernel(x, table, number, turn):
    """``table[d, tile]``: how many keys of the tile have the digit d. As in `histogram.privatised`."""
    counts = cuda.shared.array(BINS, np.int32)
    thread, first = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * TILE
    if thread < BINS:
        counts[thread] = 0
    cuda.syncthreads()
    for i in range(first + thread, min(first + TILE, x.size), TILE_BLOCK):
        cuda.atomic.add(counts, digit_of(x[i], number, turn), 1)
    cuda.syncthreads()
    if thread < BINS:
        table[thread, cuda.blockIdx.x] = counts[thread]


@cuda.jit
def ranked_kernel(x, out, places, number, turn):
    thread, tile = cuda.threadIdx.x, np.int64(cuda.blockIdx.x)
    counters, gathered = cuda.shared.array(COUNTERS, np.int32), cuda.shared.array(TILE, x.dtype)
    bases, ends = cuda.shared.array(BINS, np.uint32), cuda.shared.array(SLOTS, np.int32)
    keys, gap = cuda.local.array(ITEMS, x.dtype), cuda.shared.array(1, np.int32)
    first = tile * TILE
    count = np.uint32(min(np.int64(TILE), x.size - first))
    load_keys(x, np.uint64(first), count, keys)
    count_in_warps(keys, number, turn, counters)
    total, before = places_of(counters, ends)
    total = leave_out_copies(x[first + count - 1], count, number, turn, total, before, gap)
    if thread < BINS:
        bases[thread] = np.uint32(places[thread, tile] - before)
    cuda.syncthreads()
    rank_and_gather(keys, number, turn, counters, gathered)
    cuda.syncthreads()
    write(gathered, gap, count, out, bases, number, turn)


@rung(digits_kernel, ranked_kernel)
def ranked(p):
    """Digits of eight bits: four passes. Warps rank their keys by ballots, and no key moves before its rank is known.

    Source: Merrill and Grimshaw, "High performance and scalable radix sorting" (2011).

    Leaves: a pass reads the keys twice: to count the digits, and to sort by them.
    """
    tiles = blocks(p.x.size, TILE)
    table = device.empty((BINS, tiles), np.int64, stream=p.stream)

    def one_pass(number, source, target):
        digits_kernel[tiles, TILE_BLOCK, p.stream](source, table, number, p.turn)
        places = scan.vectorised(table.reshape(-1), exclusive=True, stream=p.stream).reshape(BINS, tiles)
        ranked_kernel[tiles, TILE_BLOCK, p.stream](source, target, places, number, p.turn)

    by_passes(p, PASSES, one_pass)


@cuda.jit(device=True)
def count_digits(bits, copy, copies):
    """Count the four digits of a key, given as ordered bits."""
    cuda.atomic.add(copies, (0, byte_of(bits, 0), copy), 1)
    cuda.atomic.add(copies, (0, byte_of(bits, 1), copy), 1 << 16)
    cuda.atomic.add(copies, (1, byte_of(bits, 2), copy), 1)
    cuda.atomic.add(copies, (1, byte_of(bits, 3), copy), 1 << 16)


@cuda.jit
def all_digits_kernel(x, counts, turn):
    """``counts[number, d]``: how many keys have d as this digit. All digits of a key are counted when it is read.

    A block counts in 16 copies, so that no more than two lanes of a warp meet, whatever the keys are. A word counts two
    digits, in 16 bits each.
    """
    copies = cuda.shared.array((2, BINS, COPIES), np.uint32)
    thread, copy = cuda.threadIdx.x, cuda.threadIdx.x % COPIES
    for half in range(2):
        for k in range(COPIES):
            copies[half, thread, (thread + k) % COPIES] = 0
    cuda.syncthreads()
    i, step = np.int64(cuda.grid(1)), np.int64(cuda.gridsize(1))
    while i + 3 * step < x.size:  # four loads are under way before the first key is counted
        a, b, c, d = x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]
        count_digits(ordered(a, turn), copy, copies)
        count_digits(ordered(b, turn), copy, copies)
        count_digits(ordered(c, turn), copy, copies)
        count_digits(ordered(d, turn), copy, copies)
        i += 4 * step
    while i < x.size:
        count_digits(ordered(x[i], turn), copy, copies)
        i += step
    cuda.syncthreads()
    for half in range(2):
        low, high = np.int64(0), np.int64(0)
        for k in range(COPIES):
            word = copies[half, thread, (thread + k) % COPIES]
            low += word & 0xFFFF
            high += word >> 16
        cuda.atomic.add(counts, (2 * half, thread), low)
        cuda.atomic.add(counts, (2 * half + 1, thread), high)


@cuda.jit
def starts_kernel(counts, starts):
    """Where the keys of each digit begin: a block scans the counts of one of the four digits."""
    own = counts[cuda.blockIdx.x, cuda.threadIdx.x]
    before, _ = scan_block(SUM, np.int64(0), own, cuda.shared.array(SLOTS, np.int64))
    starts[cuda.blockIdx.x, cuda.threadIdx.x] = before


def starts_of(p):
    """For each digit and each of its values, how many keys have a lesser one."""
    counts = device.empty((PASSES, BINS), np.int64, stream=p.stream)
    starts = device.empty((PASSES, BINS), np.int64, stream=p.stream)
    clear_kernel[blocks(counts.size, BLOCK), BLOCK, p.stream](counts.reshape(-1))
    resident = max(device.limits()["multiprocessors"] * BLOCKS_PER_SM, blocks(p.x.size, 2**19))
    grid = min(blocks(p.x.size, 16 * BINS), resident)
    all_digits_kernel[grid, BINS, p.stream](as_digits(p.x), counts, p.turn)
    starts_kernel[PASSES, BINS, p.stream](counts, starts)
    return starts


def words_for(tiles: int, n: int, stream: typing.Any) -> tuple[typing.Any, int]:
    """Words for each pass, tile and digit, all 0, which means nothing published; and at which bit their state begins.

    Row 0 of a pass counts the tiles handed out. A single tile uses none, so they are not set.
    """
    bit, dtype = (NARROW, np.uint32) if n < 1 << NARROW else (WIDE, np.int64)
    words = device.empty((PASSES, tiles + 1, BINS), dtype, stream=stream)
    if tiles > 1:
        clear_kernel[blocks(words.size, BLOCK), BLOCK, stream](words.reshape(-1))
    return words, bit


@cuda.jit(max_registers=56)  # so that three blocks fit on a multiprocessor, which has 65,536
def one_sweep_kernel(x, out, starts, words, bit, number, turn):
    thread = cuda.threadIdx.x
    tile = np.int64(next_tile(words[0], cuda.shared.array(1, np.int64)))
    counters, gathered = cuda.shared.array(COUNTERS, np.int32), cuda.shared.array(TILE, x.dtype)
    bases, ends = cuda.shared.array(BINS, np.uint32), cuda.shared.array(SLOTS, np.int32)
    keys, gap = cuda.local.array(ITEMS, x.dtype), cuda.shared.array(1, np.int32)
    first = tile * TILE
    count = np.uint32(min(np.int64(TILE), x.size - first))
    load_keys(x, np.uint64(first), count, keys)
    count_in_warps(keys, number, turn, counters)
    total, before = places_of(counters, ends)
    total = leave_out_copies(x[first + count - 1], count, number, turn, total, before, gap)
    if thread < BINS:
        publish_bin(words, tile, thread, bit, PARTIAL, total)
    cuda.syncthreads()
    rank_and_gather(keys, number, turn, counters, gathered)
    if thread < BINS:
        earlier = look_back_bins(words, tile, thread, bit)
        publish_bin(words, tile, thread, bit, COMPLETE, earlier + total)
        bases[thread] = np.uint32(starts[thread] + earlier - before)
    cuda.syncthreads()
    write(gathered, gap, count, out, bases, number, turn)


@rung(clear_kernel, all_digits_kernel, starts_kernel, one_sweep_kernel, runs_kernel)
def one_sweep(p):
    """Tiles tell each other their counts while they run, so a pass reads each key once and writes it once.

    All digits of the keys are counted before the first pass: sorting does not change how often a digit occurs. Up to
    2,048 keys are one block's work, and `merge_sort` does it in one launch.

    Source: Adinets and Merrill, "Onesweep: a faster least significant digit radix sort for GPUs" (2022).
    """
    if p.x.size <= SECTION and p.turn == turn_of(p.x.dtype):
        merge_sort.launch(p)
        return
    starts, tiles = starts_of(p), blocks(p.x.size, TILE)
    words, bit = words_for(tiles, p.x.size, p.stream)

    def one_pass(number, source, target):
        one_sweep_kernel[tiles, TILE_BLOCK, p.stream](
            source, target, starts[number], words[number], bit, number, p.turn
        )

    by_passes(p, PASSES, one_pass)


LADDER = (bitonic, bitonic_shared, merge_sort, one_bit, local, ranked, one_sweep)
