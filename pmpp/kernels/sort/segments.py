"""Segments: many short vectors, one behind the other, each of them sorted by itself.

Chapter: notebooks/42_sorting.ipynb.  PMPP 4e ch. 13; 5e ch. 14.

The rows of a sparse matrix, the neighbours of each vertex, the words of each document are sorted like this. A launch
for each segment would cost more than the sort. A radix sort of everything works, with the segment's number as the
highest digits of a key; but it sends each key through memory five to eight times. What fits into a block is read and
written once.

A block sorts by a network of comparisons, which takes no account of order among equal keys. So it compares keys with
their places: 64 bits, the key's ordered bits above and its place in the segment below. No two of these are equal.
"""

from __future__ import annotations

import itertools

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.common.contents import check_starts
from pmpp.kernels.scan.ladder import clear_kernel
from pmpp.kernels.sort import pairs
from pmpp.kernels.sort.digits import BITS, as_digits, ordered, turn_of
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("int32", "uint32", "float32")
STARTS = ("int32", "int64")
BLOCK = 256  # threads a block
WARPS = BLOCK // 32
ROWS = 8  # of 32 keys that a warp sorts in its registers
PART = 32 * ROWS
LONGEST = WARPS * PART  # keys that a block sorts
BLOCKS_PER_SM = 8  # of a kernel that takes segments in turns
LAST = np.int64(2**63 - 1)  # comes after every key with its place


def reference(x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Segment by segment: put one key after another among those before it, behind all that do not come after it."""
    out = x.copy()
    for first, end in itertools.pairwise(starts):
        taken: list = []
        for key in x[first:end]:
            at = len(taken)
            while at and (key < taken[at - 1] or (taken[at - 1] != taken[at - 1] and key == key)):
                at -= 1
            taken.insert(at, key)
        out[first:end] = taken
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(421) if rng is None else rng

    def of(*lengths: int) -> np.ndarray:
        return np.cumsum([0, *lengths]).astype(np.int32)

    def whole(starts: np.ndarray, largest: int = 2**31) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(-largest, largest, starts[-1], dtype=np.int32), starts

    odd = np.float32([-np.inf, -1, -0.0, 0.0, 1e-45, 3e38, np.inf, np.nan, -np.nan])
    made = {
        "no segment": (np.zeros(0, np.int32), of()),
        "one element": whole(of(1)),
        "nothing but empty segments": whole(of(0, 0, 0)),
        "empty ones among others": whole(of(0, 3, 0, 0, 40, 0)),
        "one key each": whole(of(*[1] * 70)),
        "a warp -1, a warp, a warp +1": whole(of(31, 32, 33)),
        "two keys, and powers of two": whole(of(2, 4, 8, 16, 64, 256)),
        "more than a warp sorts": whole(of(PART + 1, 5, 3 * PART - 7)),
        "few keys": whole(of(*rng.integers(0, 60, 20)), 3),
        "all equal": whole(of(30, 100, 7), 1),
        "one longer than a block": whole(of(5, LONGEST + 3, 40)),
        "uint32": (np.uint32([2**31, 0, 2**32 - 1, 5, 4, 2**31 - 1]), of(3, 3)),
        "-0, NaN, and not finite": (np.concatenate([rng.permutation(odd) for _ in range(12)]), of(9, 36, 0, 63)),
        "starts of 64 bits": (whole(of(60))[0], np.int64([0, 10, 30, 60])),
    }
    made["all equal"] = np.full(137, -7, np.int32), made["all equal"][1]
    return made


def cost(n: int, segments: int = 0, itemsize: int = 4) -> Cost:
    """The keys read once, and written once, and the starts read once. To compare counts as no operation."""
    return Cost(flops=0, bytes=2 * n * itemsize + 4 * (segments + 1))


def tolerance(x: np.ndarray, starts: np.ndarray) -> float:
    """Nothing is computed: every element is one of the keys."""
    return 0.0


def arguments(x, starts, values=None, descending=False, longest=None, *, stream=0) -> Problem:
    """Sort each segment of a vector by itself.

    Args:
        x: the keys, a contiguous vector (n,), 0 <= n < 2^31, of int32, uint32 or float32.
        starts: a contiguous vector (s + 1,), s >= 0, of int32 or int64. Segment k is x[starts[k]:starts[k + 1]]. The
            first one is 0, the last one n, and none less than the one before. That is checked of a NumPy array. Of what
            is on the device it is not, as the check would wait for the GPU.
        values: a contiguous vector (n,) of int32, uint32 or float32 that is moved with the keys, or None.
        descending: True for the greatest key of each segment first.
        longest: the length of the longest segment, or more, from 0 to n; None if nobody knows. A block sorts up to
            2,048 keys by itself. It is checked if ``starts`` is. If it is not, and a segment is longer, that one may
            keep the order that it has.
        stream: the stream to work on.

    Returns a new device array (n,) of x's dtype, or two, ``keys, values``, without waiting for the work to be done.
    Equal keys keep their order, both ways. -0 and 0 are equal, and so are all NaNs, which come last, or descending
    first.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``np.sort(x[starts[k] : starts[k + 1]], kind="stable")`` for each k; CUB's DeviceSegmentedSort.

    >>> from pmpp.kernels.sort import segments
    >>> segments.in_warps(np.int32([5, -1, 4, 9, 3]), np.int32([0, 3, 5])).copy_to_host()
    array([-1,  4,  5,  3,  9], dtype=int32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if x.size >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 keys, as places are int32, had {x.size}")
    on_host = starts if isinstance(starts, np.ndarray) else None
    starts = device.as_input("starts", starts, dtypes=STARTS, ndim=1, stream=stream)
    least = 2 if x.size else 1
    if starts.size < least:
        raise ValueError(f"starts must have at least {least} elements for {x.size} keys, had {starts.size}")
    turn = turn_of(x.dtype, as_flag("descending", descending))
    longest = x.size if longest is None else as_integer("longest", longest, 0, x.size)
    if on_host is not None:
        check_starts(on_host, x.size, "x")
        most = int(np.diff(on_host).max(initial=0))
        if longest < most:
            raise ValueError(f"longest must be at least {most}, as long as a segment of starts, was {longest}")
    out = device.empty(x.size, x.dtype, stream=stream)
    if values is None:
        carried = carried_out = device.empty(0, x.dtype, stream=stream)
    else:
        carried = device.as_input("values", values, dtypes=DTYPES, ndim=1, shape=x.shape, stream=stream)
        carried_out = device.empty(x.size, carried.dtype, stream=stream)
    p = Problem(out if values is None else pairs.Pairs(out, carried_out), stream=stream, x=x, starts=starts, turn=turn)
    p.out, p.carried, p.carried_out, p.longest, p.segments = out, carried, carried_out, longest, starts.size - 1
    return p


@cuda.jit
def number_kernel(starts, order, numbers):
    """In which segment a key was that the sort has put to place i: the last one that does not start behind it."""
    i = cuda.grid(1)
    if i < order.size:
        low, high = 0, starts.size - 2
        while low < high:
            middle = (low + high + 1) >> 1
            if starts[middle] <= order[i]:
                low = middle
            else:
                high = middle - 1
        numbers[i] = low


@cuda.jit
def take_kernel(x, carried, order, out, carried_out):
    i = cuda.grid(1)
    if i < order.size:
        out[i] = x[order[i]]
        if carried.size:
            carried_out[i] = carried[order[i]]


@rung(number_kernel, take_kernel, pairs.one_sweep_pairs_kernel)
def by_digits(p):
    """Sort everything by the keys, and then by the numbers of the segments: that keeps the order of equal numbers.

    What is moved is the places of the keys. In the end the keys are taken from there.

    Source: PMPP 4e section 13.3: a radix sort begins with the last digit, and a segment's number is the first one.

    Leaves: five to eight passes over pairs of 8 bytes, however short the segments are, and keys taken from anywhere.
    """
    n, stream = p.x.size, p.stream
    first = pairs.numbered(p.x, stream=stream)
    first.turn, order = p.turn, first.result
    pairs.one_sweep.launch(first)
    digits = blocks((p.segments - 1).bit_length(), BITS)  # that the greatest number has: none, if it is 0
    if digits:
        numbers, order = device.empty(n, np.uint32, stream=stream), device.empty(n, np.int32, stream=stream)
        number_kernel[blocks(n, BLOCK), BLOCK, stream](p.starts, first.result, numbers)
        pairs.sweep(pairs.problem(numbers, first.result, order, stream, numbered=False), digits)
    take_kernel[blocks(n, BLOCK), BLOCK, stream](p.x, p.carried, order, p.out, p.carried_out)


@cuda.jit(device=True)
def with_place(key, turn, place):
    """A key's ordered bits above its place, as a signed number: so the first bit is turned over."""
    return np.int64(np.int64(ordered(key, turn)) - 2**31 << 32) | np.int64(place)


@cuda.jit(device=True)
def move(x, carried, first, word, at, out, carried_out):
    """The key of ``word``, and its value, to place ``at`` of the segment that begins at ``first``."""
    source, target = first + (word & 0xFFFFFFFF), first + at
    out[target] = x[source]
    if carried.size:
        carried_out[target] = carried[source]


@cuda.jit(device=True)
def keep(x, carried, first, count, begin, step, out, carried_out):
    """Copy a segment as it is: one for which there is no room, because it is longer than was said."""
    for at in range(begin, count, step):
        move(x, carried, first, at, at, out, carried_out)


@cuda.jit(device=True)
def step_of_words(words, count, distance, mirrored):
    """A step of the network of `ladder.bitonic` on ``count`` words in shared memory. A barrier follows."""
    t = np.uint32(cuda.threadIdx.x)
    i = np.uint32(t & np.uint32(distance - 1))
    low = np.uint32(2 * (t - i) + i)
    while low < count:
        high = np.uint32(low - 2 * i + 2 * distance - 1) if mirrored else np.uint32(low + distance)
        if high < count and words[high] < words[low]:
            words[low], words[high] = words[high], words[low]
        t = np.uint32(t + BLOCK)
        i = np.uint32(t & np.uint32(distance - 1))
        low = np.uint32(2 * (t - i) + i)
    cuda.syncthreads()


def arrays_of(p) -> tuple:
    """What kernels take that sort segments: whole numbers as uint32, see `digits.as_digits`."""
    return as_digits(p.x), p.carried, p.starts, p.turn, as_digits(p.out), p.carried_out


@cuda.jit
def in_blocks_kernel(x, carried, starts, turn, out, carried_out):
    words = cuda.shared.array(LONGEST, np.int64)
    first = np.int64(starts[cuda.blockIdx.x])
    count = starts[cuda.blockIdx.x + 1] - first
    if count > LONGEST:
        keep(x, carried, first, count, cuda.threadIdx.x, BLOCK, out, carried_out)
        return
    for at in range(cuda.threadIdx.x, count, BLOCK):
        words[at] = with_place(x[first + at], turn, at)
    cuda.syncthreads()
    half = 1
    while half < count:
        distance = half
        while distance > 0:
            step_of_words(words, count, distance, distance == half)
            distance >>= 1
        half <<= 1
    for at in range(cuda.threadIdx.x, count, BLOCK):
        move(x, carried, first, words[at], at, out, carried_out)


@rung(in_blocks_kernel, number_kernel, take_kernel)  # and those of `pairs.one_sweep`
def in_blocks(p):
    """A block has a segment. It takes the keys into shared memory, sorts them there, and each moves once.

    If a segment may be longer than 2,048 keys, `by_digits` sorts all of them.

    Source: PMPP 4e section 13.8; Batcher, "Sorting networks and their applications" (1968).

    Leaves: 256 threads for a segment that may have five keys, and a barrier for each step of the network.
    """
    if p.longest > LONGEST:
        by_digits.launch(p)
        return
    in_blocks_kernel[p.segments, BLOCK, p.stream](*arrays_of(p))


@cuda.jit(device=True)
def sort_in_warp(word):
    """Sort the words of 32 lanes: in each step a lane keeps the lesser or the greater one of its own and another's."""
    run = 2
    while run <= 32:
        distance = run >> 1
        while distance > 0:
            other = cuda.shfl_xor_sync(FULL_WARP, word, distance)
            lesser = (cuda.laneid & distance == 0) == (cuda.laneid & run == 0)
            word = min(word, other) if lesser else max(word, other)
            distance >>= 1
        run <<= 1
    return word


# ------------------------------------------------------------------- eight rows of 32 words in the registers of a warp


@cuda.jit(device=True)
def step_of_rows(rows, apart):
    """Each row and the one ``apart`` rows behind it: the lesser words to the first of them. All lanes by themselves."""
    for k in range(ROWS):
        if k & apart == 0:
            a, b = rows[k], rows[k + apart]
            rows[k], rows[k + apart] = min(a, b), max(a, b)


@cuda.jit(device=True)
def mirrored_step_of_rows(rows, apart):
    """The first step of the network that merges runs of some rows: row k meets row k ^ apart, turned around."""
    for k in range(ROWS):
        if k < k ^ apart:
            other, mine = cuda.shfl_xor_sync(FULL_WARP, rows[k ^ apart], 31), cuda.shfl_xor_sync(FULL_WARP, rows[k], 31)
            rows[k], rows[k ^ apart] = min(rows[k], other), max(rows[k ^ apart], mine)


@cuda.jit(device=True)
def steps_of_lanes(rows):
    """The last steps of the network, within each row."""
    distance = 16
    while distance > 0:
        lesser = cuda.laneid & distance == 0
        for k in range(ROWS):
            other = cuda.shfl_xor_sync(FULL_WARP, rows[k], distance)
            rows[k] = min(rows[k], other) if lesser else max(rows[k], other)
        distance >>= 1


@cuda.jit(device=True)
def sort_rows(rows):
    """Sort a warp's 256 words: word k of a lane is number 32 k + lane."""
    run = 2
    while run <= 32:  # as `sort_in_warp`, eight rows at a time
        distance = run >> 1
        while distance > 0:
            lesser = (cuda.laneid & distance == 0) == (cuda.laneid & run == 0)
            for k in range(ROWS):
                other = cuda.shfl_xor_sync(FULL_WARP, rows[k], distance)
                rows[k] = min(rows[k], other) if lesser else max(rows[k], other)
            distance >>= 1
        run <<= 1
    mirrored_step_of_rows(rows, 1)
    steps_of_lanes(rows)
    mirrored_step_of_rows(rows, 3)
    step_of_rows(rows, 1)
    steps_of_lanes(rows)
    mirrored_step_of_rows(rows, 7)
    step_of_rows(rows, 2)
    step_of_rows(rows, 1)
    steps_of_lanes(rows)


@cuda.jit(device=True)
def load_words(x, first, begin, count, turn, rows):
    """A warp's part of a segment from key number ``begin`` on, as words; behind the end, words that come last."""
    for k in range(ROWS):
        at = begin + 32 * k + cuda.laneid
        rows[k] = with_place(x[first + at], turn, at) if at < count else LAST


@cuda.jit
def in_warps_kernel(x, carried, starts, turn, out, carried_out, listed, number):
    """A warp sorts a segment of up to 256 keys. A longer one is put on a list: listed[:number[0]]."""
    segment = cuda.grid(1) // 32
    if segment + 1 >= starts.size:  # the whole warp
        return
    lane, first = cuda.laneid, np.int64(starts[segment])
    count = starts[segment + 1] - first
    if count <= 32:
        word = sort_in_warp(with_place(x[first + lane], turn, lane) if lane < count else LAST)
        if lane < count:
            move(x, carried, first, word, lane, out, carried_out)
    elif count <= PART:
        rows = cuda.local.array(ROWS, np.int64)
        load_words(x, first, 0, count, turn, rows)
        sort_rows(rows)
        for k in range(ROWS):
            if 32 * k + lane < count:
                move(x, carried, first, rows[k], 32 * k + lane, out, carried_out)
    elif count > LONGEST or not listed.size:
        keep(x, carried, first, count, lane, 32, out, carried_out)
    elif lane == 0:
        listed[cuda.atomic.add(number, 0, 1)] = segment


@cuda.jit
def listed_kernel(x, carried, starts, turn, out, carried_out, listed, number):
    """The segments on the list, which blocks take in turns. Warps sort 256 words each, and the block merges these runs.

    Only steps between words that are 256 or more apart go through shared memory.
    """
    words, rows = cuda.shared.array(LONGEST, np.int64), cuda.local.array(ROWS, np.int64)
    lane, begin = cuda.laneid, cuda.threadIdx.x // 32 * PART
    for entry in range(np.int64(cuda.blockIdx.x), number[0], cuda.gridDim.x):
        first = np.int64(starts[listed[entry]])
        count = starts[listed[entry] + 1] - first
        filled = (count + PART - 1) // PART * PART  # words, with those that come last
        if begin < count:  # the whole warp
            load_words(x, first, begin, count, turn, rows)
            sort_rows(rows)
            for k in range(ROWS):
                words[begin + 32 * k + lane] = rows[k]
        cuda.syncthreads()
        half = PART
        while half < count:
            distance = half
            while distance >= PART:
                step_of_words(words, filled, distance, distance == half)
                distance >>= 1
            if begin < count:
                for k in range(ROWS):
                    rows[k] = words[begin + 32 * k + lane]
                step_of_rows(rows, 4)
                step_of_rows(rows, 2)
                step_of_rows(rows, 1)
                steps_of_lanes(rows)
                for k in range(ROWS):
                    words[begin + 32 * k + lane] = rows[k]
            cuda.syncthreads()
            half <<= 1
        for at in range(cuda.threadIdx.x, count, BLOCK):
            move(x, carried, first, words[at], at, out, carried_out)
        cuda.syncthreads()  # all have read the words


@rung(clear_kernel, in_warps_kernel, listed_kernel, number_kernel, take_kernel)  # and those of `pairs.one_sweep`
def in_warps(p):
    """A warp has a segment of up to 256 keys, up to eight a lane, and passes them on by shuffles: no barrier.

    Longer ones are put on a list. How many they are, only the GPU knows, so a fixed number of blocks takes them in
    turns. In a block, too, most steps of the network stay in a warp's registers.

    Source: Hou, Liu, Wang and Feng, "Fast segmented sort on GPUs" (2017).
    """
    if p.longest > LONGEST:
        by_digits.launch(p)
        return
    some = p.longest > PART
    listed = device.empty(p.segments if some else 0, np.int32, stream=p.stream)
    number = device.empty(1, np.int64, stream=p.stream)
    given = *arrays_of(p), listed, number
    if some:
        clear_kernel[1, 32, p.stream](number)
    in_warps_kernel[blocks(p.segments, WARPS), BLOCK, p.stream](*given)
    if some:
        grid = min(p.segments, device.limits()["multiprocessors"] * BLOCKS_PER_SM)
        listed_kernel[grid, BLOCK, p.stream](*given)


@cuda.jit
def longest_kernel(starts, longest):
    """longest[0]: the length of the longest segment."""
    mine = np.int64(0)
    for k in range(np.int64(cuda.grid(1)), starts.size - 1, cuda.gridsize(1)):
        mine = max(mine, np.int64(starts[k + 1]) - np.int64(starts[k]))
    if mine:
        cuda.atomic.max(longest, 0, mine)


def length_of_longest(p) -> int:
    """The length of the longest segment. It waits for the GPU."""
    longest = device.empty(1, np.int64, stream=p.stream)
    clear_kernel[1, 32, p.stream](longest)
    grid = min(blocks(max(p.segments, 1), BLOCK), device.limits()["multiprocessors"] * BLOCKS_PER_SM)
    longest_kernel[grid, BLOCK, p.stream](p.starts, longest)
    if p.stream:
        p.stream.synchronize()
    return int(longest.copy_to_host()[0])


LADDER = (by_digits, in_blocks, in_warps)
