"""Partition: the elements above a threshold first and all others behind them, both in their order.

Chapter: notebooks/35_filter.ipynb.  PMPP 4e ch. 11; 5e ch. 12.

A filter throws away, and a partition only puts in order: each element is read once and written once. It is one step of
a quicksort, of a decision tree, of a radix sort by one bit. Where a kept element goes is known as in a filter. Where
another one goes is not known before all are counted: the others begin behind the last one that is kept.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.filter.ladder import BLOCK, DTYPES, above, as_threshold, flags_kernel
from pmpp.kernels.filter.tile import BLOCK as TILE_BLOCK
from pmpp.kernels.filter.tile import ITEMS, PART, TILE, load_rows, rank_of, start_of_warp, write_part
from pmpp.kernels.scan.ladder import clear_kernel, words_for
from pmpp.kernels.scan.look_back import next_tile
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung

BLOCKS_PER_SM = 8  # of the kernel that turns the second part around
AT_ONCE = 4  # pairs that a thread of it loads before it stores the first of them


class Parted(typing.NamedTuple):
    """``values``, those that are kept before the others, and ``count``, one int64: how many are kept.

    Both are device arrays. What takes a partition as an array, on a GPU, gets the values.
    """

    values: typing.Any
    count: typing.Any

    def copy_to_host(self) -> np.ndarray:
        """All values, as a NumPy array. It waits for the GPU."""
        return self.values.copy_to_host()

    @property
    def __cuda_array_interface__(self) -> typing.Any:
        """All values, for CuPy, PyTorch and others."""
        return self.values.__cuda_array_interface__


def reference(x: np.ndarray, threshold: typing.Any = 0) -> np.ndarray:
    """One element after another: to the first part if it is above the threshold, or else to the second one."""
    first, second = [], []
    for value in x:
        (first if value > threshold else second).append(value)  # a NaN is above nothing
    return np.array(first + second, x.dtype)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(351) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "a warp and one": 33, "a part of a warp +1": PART + 1, "a tile +1": TILE + 1}
    made: dict[str, tuple] = {name: (rng.standard_normal(n, dtype=np.float32),) for name, n in sizes.items()}
    made["none kept"] = np.arange(-700, 0, dtype=np.float32), 0
    made["all kept"] = np.arange(1, 701, dtype=np.float32), 0
    rising = np.arange(TILE + 70, dtype=np.float32)
    made["alternating, in two tiles"] = rising * np.resize(np.float32([1, -1]), rising.size), 0.5
    made["one that is not kept"] = np.where(np.arange(600) == 40, -1, np.arange(600)).astype(np.float32), -0.5
    odd = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38])
    made["not finite, and nearly 0"] = np.resize(odd, 603), 0
    made["int32"] = rng.integers(-(2**31), 2**31, 1000, dtype=np.int32), -5
    return made


def cost(n: int, itemsize: int = 4) -> Cost:
    """``x`` read once, and written once. To compare counts as no operation."""
    return Cost(flops=0, bytes=2 * n * itemsize + 8)


def tolerance(x: np.ndarray, threshold: typing.Any = 0) -> float:
    """Nothing is computed: every element is one of the input's."""
    return 0.0


def arguments(x, threshold=0, *, stream=0) -> Problem:
    """Put the elements that are above a threshold before all others.

    Args:
        x: a contiguous vector (n,), n >= 0, of float32 or int32.
        threshold: a number of x's dtype. A float is rounded to float32; for int32 it must be an integer.
        stream: the stream to work on.

    Returns ``values, count`` without waiting for the work to be done: two new device arrays, (n,) of x's dtype and (1,)
    of int64. The first ``count[0]`` values are what is above the threshold, and the others follow, both in the order of
    ``x``. A NaN is above nothing.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``std::stable_partition`` of C++; ``np.concatenate([x[x > threshold], x[~(x > threshold)]])``.

    >>> from pmpp.kernels.filter import partition
    >>> values, count = partition.single_pass(np.int32([3, -1, 4, 0, 5]))
    >>> values.copy_to_host(), count.copy_to_host()
    (array([ 3,  4,  5, -1,  0], dtype=int32), array([3]))
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    threshold = as_threshold(threshold, x.dtype)
    values, count = device.empty(x.size, x.dtype, stream=stream), device.empty(1, np.int64, stream=stream)
    p = Problem(Parted(values, count), stream=stream, x=x, threshold=threshold, values=values, count=count)
    if not x.size:
        clear_kernel[1, 32, stream](count)
        p.done = True
    return p


@cuda.jit
def scatter_both_kernel(x, flags, places, out, count):
    """``places[i]``: how many elements before number i are kept. The others before it are i less these."""
    i, last = np.int64(cuda.grid(1)), x.size - 1
    if i < x.size:
        kept = places[last] + flags[last]
        out[places[i] if flags[i] else kept + i - places[i]] = x[i]
        if i == last:
            count[0] = kept


@rung(flags_kernel, scatter_both_kernel)
def by_scan(p):
    """One scan gives both places: of the elements before number i, as many are not kept as the scan does not count.

    Three launches: write the flags, scan them, scatter the elements. When elements move, the number of all that are
    kept stands at the end of the scan.

    Source: Blelloch, "Prefix sums and their applications" (1990), section 1.3, "split".

    Leaves: flags and places go to memory and come back: 32 bytes move for an element of 4.
    """
    n = p.x.size
    flags = device.empty(n, np.int32 if n < 2**31 else np.int64, stream=p.stream)
    flags_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.x, p.threshold, flags)
    places = scan.vectorised(flags, exclusive=True, stream=p.stream)
    scatter_both_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.x, flags, places, p.values, p.count)


@cuda.jit(max_registers=32)  # as `filter.single_pass`
def single_pass_kernel(x, threshold, words, out, count):
    """What is kept goes to the front of ``out``, and the others to its end, the first of them last."""
    tile = next_tile(words, cuda.shared.array(1, np.int64))
    gathered, values = cuda.shared.array(TILE, x.dtype), cuda.local.array(ITEMS, x.dtype)
    at, end = load_rows(x, tile, values)
    begin = np.uint32(cuda.threadIdx.x // 32 * PART)
    place, behind = begin, np.uint32(begin + PART - 1)  # of the next kept one; of the next other one, from the end
    for row in range(ITEMS):
        inside = np.uint32(at + 32 * row) < end
        kept = inside and above(values[row], threshold)
        lanes, others = cuda.ballot_sync(FULL_WARP, kept), cuda.ballot_sync(FULL_WARP, inside and not kept)
        if inside:
            gathered[np.uint32(place + rank_of(lanes)) if kept else np.uint32(behind - rank_of(others))] = values[row]
        place = np.uint32(place + cuda.popc(lanes))
        behind = np.uint32(behind - cuda.popc(others))
    cuda.syncwarp()
    mine = np.int32(place - begin)
    start = start_of_warp(words, tile, mine, count)
    write_part(out, start, gathered, begin, mine)
    rest = np.uint32(begin + PART - 1 - behind)  # how many others
    earlier = tile * TILE + begin - start  # others, of all warps before
    write_part(out, x.size - earlier - rest, gathered, np.uint32(behind + 1), rest)


@cuda.jit
def turn_around_kernel(out, count):
    """Exchange the first element behind the kept ones with the last one, the second with the last but one, and on."""
    first, last, step = count[0], out.size - 1, np.int64(cuda.gridsize(1))
    half = (out.size - first) // 2
    low, high = cuda.local.array(AT_ONCE, out.dtype), cuda.local.array(AT_ONCE, out.dtype)
    for k in range(np.int64(cuda.grid(1)), half, AT_ONCE * step):
        for pair in range(AT_ONCE):
            at = k + pair * step
            if at < half:
                low[pair], high[pair] = out[first + at], out[last - at]
        for pair in range(AT_ONCE):
            at = k + pair * step
            if at < half:
                out[first + at], out[last - at] = high[pair], low[pair]


@rung(single_pass_kernel, turn_around_kernel)
def single_pass(p):
    """As `filter.single_pass`. The others go to the end, from behind, where their place needs no total.

    They lie there turned around, the last one first, and a second launch turns them back. It moves half of the data
    once more if half is kept, and nothing if all are.

    Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", NVR-2016-002, section 5.
    """
    n, tiles = p.x.size, blocks(p.x.size, TILE)
    words = words_for(tiles, p.stream)
    single_pass_kernel[tiles, TILE_BLOCK, p.stream](p.x, p.threshold, words, p.values, p.count)
    grid = min(blocks(n, 2 * BLOCK), device.limits()["multiprocessors"] * BLOCKS_PER_SM)
    turn_around_kernel[grid, BLOCK, p.stream](p.values, p.count)


LADDER = (by_scan, single_pass)
