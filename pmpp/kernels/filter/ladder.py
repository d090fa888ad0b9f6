"""Filter: the elements of a vector that are above a threshold, and how many they are.

Chapter: notebooks/35_filter.ipynb.  PMPP 4e ch. 11; 5e ch. 12.

It is also called stream compaction. Each element is read once, each kept one is written once, and to compare two
numbers is next to no work: memory is the bound. The difficulty is that the place of a kept element is the number of
elements kept before it. So either all threads ask one counter for a place, or a scan computes the places.

This file has the rungs. What a block does with its tile, in the last two of them, is in `pmpp.kernels.filter.tile`.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.filter.tile import BLOCK as TILE_BLOCK
from pmpp.kernels.filter.tile import TILE, kernels_for, rank_of
from pmpp.kernels.scan.ladder import clear_kernel, words_for
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("float32", "int32")
BLOCK = 512  # threads a block


class Kept(typing.NamedTuple):
    """What a filter keeps: ``values``, as long as its input, and ``count``, one int64: how many at its front are kept.

    Both are device arrays. The host does not know the count when a rung returns, as the GPU may not have begun. What
    needs it copies it, and so waits for the GPU: `trimmed`, `copy_to_host`, and libraries that take it as an array.
    They wait for the default stream. Who gave the rung another stream synchronises that one first.
    """

    values: typing.Any
    count: typing.Any

    def trimmed(self) -> typing.Any:
        """The kept elements alone, a view in the device's memory. It waits for the GPU."""
        return self.values[: int(self.count.copy_to_host()[0])]

    def copy_to_host(self) -> np.ndarray:
        """The kept elements alone, as a NumPy array. It waits for the GPU."""
        return self.trimmed().copy_to_host()

    @property
    def __cuda_array_interface__(self) -> typing.Any:
        """The kept elements alone, for CuPy, PyTorch and others. It waits for the GPU."""
        return self.trimmed().__cuda_array_interface__


def reference(x: np.ndarray, threshold: typing.Any = 0) -> np.ndarray:
    """The kept elements, in the order in which they are in ``x``: one after another."""
    kept = [value for value in x if value > threshold]  # a NaN is above nothing
    return np.array(kept, x.dtype)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`."""
    rng = np.random.default_rng(35) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "a warp and one": 33}
    sizes |= {f"a block {d:+}": BLOCK + d for d in (-1, 0, 1)} | {f"a tile {d:+}": TILE + d for d in (-1, 0, 1)}
    made: dict[str, tuple] = {name: (rng.standard_normal(n, dtype=np.float32),) for name, n in sizes.items()}
    made["several tiles"] = (rng.standard_normal(3 * TILE + 77, dtype=np.float32),)
    made["none kept"] = np.full(TILE + 9, -1, np.float32), 0
    made["all kept"] = np.arange(1, 2 * TILE + 6, dtype=np.float32), 0
    made["equal to the threshold"] = np.full(1001, 2.5, np.float32), 2.5
    made["only the last"] = np.where(np.arange(2 * TILE + 3) == 2 * TILE + 2, 1, 0).astype(np.float32), 0.5
    made["one in each warp"] = np.where(np.arange(3001) % 32 == 31, np.arange(3001), -1).astype(np.float32), 0
    made["sorted"] = np.sort(rng.standard_normal(2 * TILE + 5, dtype=np.float32)), 0.25
    odd = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -np.nan])
    made["not finite, and nearly 0"] = np.resize(odd, 2003), 0
    made["nothing but NaN"] = np.full(700, np.nan, np.float32), -3e38
    made["int32"] = rng.integers(-(2**31), 2**31, TILE + 50, dtype=np.int32), -5
    made["int32, the largest"] = np.int32([2**31 - 1, 2**31 - 2, -(2**31)] * 300), 2**31 - 2
    return made


def cost(n: int, kept: int | None = None, itemsize: int = 4) -> Cost:
    """``x`` read once, and what is kept, by default half of it, written once. To compare counts as no operation."""
    return Cost(flops=0, bytes=(n + (n // 2 if kept is None else kept)) * itemsize + 8)


def arguments(x, threshold=0, *, stream=0) -> Problem:
    """Keep the elements that are above a threshold.

    Args:
        x: a contiguous vector (n,), n >= 0, of float32 or int32.
        threshold: a number of x's dtype. A float is rounded to float32; for int32 it must be an integer.
        stream: the stream to work on.

    Returns ``values, count`` without waiting for the work to be done: two device arrays, (n,) of x's dtype and (1,) of
    int64. The first ``count[0]`` of the values are what is kept; the others are undefined. `Kept` says how to get these
    alone, which waits for the GPU. A NaN is above nothing. The rungs `atomic`, `warp_aggregated` and `privatised` keep
    no order, and it differs from run to run. With the others it is the order of ``x``.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``x[x > threshold]`` of NumPy, CuPy and PyTorch.

    >>> from pmpp.kernels import filter
    >>> values, count = filter.single_pass(np.int32([3, -1, 4, 0, 5]))
    >>> count.copy_to_host()
    array([3])
    >>> filter.single_pass(np.int32([3, -1, 4, 0, 5]), 3).copy_to_host()
    array([4, 5], dtype=int32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    threshold = as_threshold(threshold, x.dtype)
    result = Kept(device.empty(x.size, x.dtype, stream=stream), device.empty(1, np.int64, stream=stream))
    p = Problem(result, stream=stream, begin=clear, x=x, threshold=threshold, values=result.values, count=result.count)
    p.keep = above
    if not x.size:
        clear(p)
        p.done = True
    return p


def as_threshold(threshold: typing.Any, dtype: np.dtype) -> typing.Any:
    """A threshold in the dtype of the elements."""
    if dtype == np.int32:
        return np.int32(as_integer("threshold", threshold, -(2**31), 2**31 - 1))
    return as_number("threshold", threshold)


def clear(p):
    """No element is counted at the beginning."""
    clear_kernel[1, 32, p.stream](p.count)


@cuda.jit(device=True)
def above(value, threshold):
    """What all rungs keep. A comparison with a NaN is false."""
    return value > threshold


@cuda.jit
def atomic_kernel(x, threshold, out, count):
    i = cuda.grid(1)
    if i < x.size and above(x[i], threshold):
        out[cuda.atomic.add(count, 0, 1)] = x[i]


@rung(clear_kernel, atomic_kernel)
def atomic(p):
    """A thread takes one element. To keep it, it adds 1 to one counter by an atomic: what that was is its place.

    The order depends on which thread comes first.

    Source: PMPP 5e chapter 12.

    Leaves: the atomics of all threads of the GPU meet in one counter, and go one after another.
    """
    atomic_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.threshold, p.values, p.count)


@cuda.jit
def warp_aggregated_kernel(x, threshold, out, count):
    i = cuda.grid(1)
    kept = i < x.size and above(x[i], threshold)
    lanes = cuda.ballot_sync(FULL_WARP, kept)  # a bit for each lane that keeps its element
    first = np.int64(0)
    if cuda.laneid == 0 and lanes:
        first = cuda.atomic.add(count, 0, cuda.popc(lanes))
    first = cuda.shfl_sync(FULL_WARP, first, 0)
    if kept:
        out[first + rank_of(lanes)] = x[i]


@rung(clear_kernel, warp_aggregated_kernel)
def warp_aggregated(p):
    """One lane asks for the places of its whole warp. A ballot tells each lane which of them is its own.

    Within a warp the order is kept, and warps come in any order.

    Source: A. Adinetz, "Optimized filtering with warp-aggregated atomics" (NVIDIA developer blog, 2014).

    Leaves: there is still an atomic on the one counter for each 32 elements.
    """
    warp_aggregated_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.threshold, p.values, p.count)


@cuda.jit
def privatised_kernel(x, threshold, out, count):
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    mine = cuda.shared.array(1, np.int32)  # how many elements the block keeps
    first = cuda.shared.array(1, np.int64)  # the place of its first one
    if thread == 0:
        mine[0] = 0
    cuda.syncthreads()

    kept = i < x.size and above(x[i], threshold)
    lanes = cuda.ballot_sync(FULL_WARP, kept)
    before = np.int32(0)
    if cuda.laneid == 0:
        before = cuda.atomic.add(mine, 0, cuda.popc(lanes))
    before = cuda.shfl_sync(FULL_WARP, before, 0)
    cuda.syncthreads()

    if thread == 0:
        first[0] = cuda.atomic.add(count, 0, mine[0])
    cuda.syncthreads()
    if kept:
        out[first[0] + before + rank_of(lanes)] = x[i]


@rung(clear_kernel, privatised_kernel)
def privatised(p):
    """Warps ask a counter of their block, in shared memory. The block asks the one counter once for all of them.

    Within a warp the order is kept. Warps of a block come in any order, and so do blocks.

    Source: PMPP 5e chapter 12; the private counter is that of chapter 9.

    Leaves: the order is lost, and two runs on the same data may differ. What comes after may need it: a filter of
    sorted elements, or of two columns of a table.
    """
    privatised_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.threshold, p.values, p.count)


@cuda.jit
def flags_kernel(x, threshold, flags):
    i = cuda.grid(1)
    if i < x.size:
        flags[i] = 1 if above(x[i], threshold) else 0


@cuda.jit
def scatter_kernel(x, flags, places, out, count):
    i = cuda.grid(1)
    if i < x.size:
        if flags[i]:
            out[places[i]] = x[i]
        if i == x.size - 1:
            count[0] = places[i] + flags[i]


@rung(flags_kernel, scatter_kernel, begin=False)
def by_scan(p):
    """Each element has a flag, 1 if it is kept. The exclusive scan of the flags is the place of each: order is kept.

    Three passes over memory: write the flags, scan them, scatter the elements.

    Source: Blelloch, "Prefix sums and their applications" (1990), section 1.4; PMPP 5e chapter 12.

    Leaves: a kept element of 4 bytes causes 32 bytes of traffic, as flags and places go to memory and come back.
    """
    n = p.x.size
    flags = device.empty(n, np.int32 if n < 2**31 else np.int64, stream=p.stream)
    flags_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.x, p.threshold, flags)
    places = scan.vectorised(flags, exclusive=True, stream=p.stream)
    scatter_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.x, flags, places, p.values, p.count)


ABOVE = kernels_for(above)


@rung(ABOVE.counts, ABOVE.compact, begin=False)
def tiled(p):
    """A block counts what its tile keeps; only the counts are scanned. Then it filters the tile and knows its place.

    A warp loads sixteen rows of 32 elements. What it keeps is gathered in shared memory, so that neighbouring threads
    write neighbouring elements.

    Source: Billeter, Olsson and Assarsson, "Efficient stream compaction on wide SIMD many-core architectures" (2009).

    Leaves: ``x`` is read twice: once to be counted, and once to be filtered.
    """
    tiles, kernels = blocks(p.x.size, TILE), kernels_for(p.keep)
    counts = device.empty(tiles, np.int64, stream=p.stream)
    kernels.counts[tiles, TILE_BLOCK, p.stream](p.x, p.threshold, counts)
    starts = scan.vectorised(counts, exclusive=True, stream=p.stream)
    kernels.compact[tiles, TILE_BLOCK, p.stream](p.x, p.threshold, starts, p.values, p.count)


@rung(ABOVE.single_pass, clear_kernel, begin=False)
def single_pass(p):
    """Tiles tell each other how many elements they keep while they run, so ``x`` is read once.

    Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", NVR-2016-002, section 5.
    """
    tiles = blocks(p.x.size, TILE)
    words = words_for(tiles, p.stream)
    kernel = kernels_for(p.keep).single_pass
    kernel[tiles, TILE_BLOCK, p.stream](p.x, p.threshold, words, p.values, p.count)


LADDER = (atomic, warp_aggregated, privatised, by_scan, tiled, single_pass)
