"""Histogram with many bins: more than fit into the 48 KiB of shared memory that a block has without asking for more.

Chapter: notebooks/28_histogram.ipynb.  PMPP 4e ch. 9.

The words of a vocabulary and values of 16 bits are tens of thousands of bins. Atomics in global memory count any number
of them. But where many elements have one bin, as the frequent words of a text have, these atomics wait for each other.
Shared memory does that better. So a block asks for all the shared memory that there is, and blocks share out the bins.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import SHARED_LIMIT, blocks
from pmpp.kernels.histogram import ladder as histogram
from pmpp.kernels.histogram.ladder import MOST_PRIVATE, bin_of, clear_shared
from pmpp.runtime import device
from pmpp.runtime.rung import rung

BLOCK = 1024  # threads per block: often there is room for one block in a multiprocessor
AHEAD = 4  # loads of a thread that are under way at once
MOST_PARTS = 4  # each part reads all elements: with more, uniform ones take longer than in global memory
FEWEST = 4  # elements for each bin: with fewer, clearing and flushing is most of the work
f0 = np.float32(0)

# The problem is that of `histogram`, and so are its arguments.
reference = histogram.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`."""
    rng = np.random.default_rng(29) if rng is None else rng
    made: dict[str, tuple] = {"bytes": (rng.integers(0, 256, 3001, dtype=np.uint8), 256)}
    for name, bins in {"fit without asking": MOST_PRIVATE, "one more": MOST_PRIVATE + 1}.items():
        made[name] = rng.integers(-9, bins + 9, FEWEST * bins + 5, dtype=np.int32), bins
    bins = 13_001
    n = FEWEST * bins
    made["few elements"] = rng.integers(0, bins, n - 1, dtype=np.int32), bins
    made["all equal"] = np.full(n, bins - 1, np.int64), bins
    made["sorted"] = np.sort(rng.integers(0, bins, n, dtype=np.int32)), bins
    x, weights = rng.standard_normal((2, n), dtype=np.float32)
    x[7], weights[8] = np.nan, np.inf
    made["float32 in a range"] = x, bins, (-2.0, 2.0)
    made["weights"] = x, bins, (-2.0, 2.0), weights
    made["weights, all equal"] = np.full(n, 5, np.int32), bins, None, weights
    return made


cost = histogram.cost
arguments = histogram.arguments


def most_private() -> int:
    """Bins of 32 bits that fit into the shared memory of a block which asks the driver for all that there is."""
    # A multiprocessor keeps 1 KiB of its own for each block.
    return max(device.limits()["max_shared_memory_per_multiprocessor"] - 1024, SHARED_LIMIT) // 4


@rung(*histogram.aggregated.kernels)
def in_global_memory(p):
    """`histogram.aggregated`: more than 12,288 bins are counted in global memory, and a thread adds up runs of one bin.

    Leaves: the frequent bins of real data. Their elements are no runs, and their atomics go one after another.
    """
    histogram.aggregated.launch(p)


@cuda.jit(device=True)
def count_in_part(counts, at, size):
    """Count an element whose bin is number ``at`` of this block's ``size`` bins; nothing if it is none of them."""
    if 0 <= at < size:
        cuda.atomic.add(counts, at, 1)


@cuda.jit(device=True)
def add_in_part(sums, at, size, run):
    """Add the weights of a run to bin ``at`` of this block; nothing if it is none of its ``size`` bins."""
    if 0 <= at < size:
        cuda.atomic.add(sums, at, run)


@cuda.jit(device=True)
def flush_part(counts, out, begin, size):
    """Add a block's counters to the bins from ``begin`` on, after a barrier. A counter that is 0 costs no atomic."""
    cuda.syncthreads()
    for at in range(cuda.threadIdx.x, size, cuda.blockDim.x):
        if counts[at] != 0:
            cuda.atomic.add(out, begin + at, counts[at])


@cuda.jit
def counts_kernel(x, out, low, high, scale, bins, part):
    counts = cuda.shared.array(0, np.int32)
    begin = cuda.blockIdx.y * part
    size = min(part, bins - begin)
    clear_shared(counts, size)
    i, step = cuda.grid(1), cuda.gridsize(1)
    while i + 3 * step < x.size:  # four loads are under way before the first element is counted
        a, b, c, d = x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]
        count_in_part(counts, bin_of(a, low, high, scale, bins) - begin, size)
        count_in_part(counts, bin_of(b, low, high, scale, bins) - begin, size)
        count_in_part(counts, bin_of(c, low, high, scale, bins) - begin, size)
        count_in_part(counts, bin_of(d, low, high, scale, bins) - begin, size)
        i += 4 * step
    while i < x.size:
        count_in_part(counts, bin_of(x[i], low, high, scale, bins) - begin, size)
        i += step
    flush_part(counts, out, begin, size)


@cuda.jit
def sums_kernel(x, weights, out, low, high, scale, bins, part):
    sums = cuda.shared.array(0, np.float32)
    begin = cuda.blockIdx.y * part
    size = min(part, bins - begin)
    clear_shared(sums, size)
    current, run = -1, f0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        at = bin_of(x[i], low, high, scale, bins) - begin
        if at != current:
            add_in_part(sums, current, size, run)
            current, run = at, f0
        run += weights[i]
    add_in_part(sums, current, size, run)
    flush_part(sums, out, begin, size)


def launch(p, parts):
    """Count with ``parts`` times as many blocks as hold all elements once, of which each has a part of the bins."""
    part = blocks(p.bins, parts)
    limits = device.limits()
    room = limits["max_shared_memory_per_multiprocessor"] // (4 * part + 1024)
    held = limits["multiprocessors"] * max(1, min(room, limits["max_threads_per_multiprocessor"] // BLOCK))
    # No block has fewer elements than it has bins to clear and to flush, and none has more than 32 bits can count.
    grid = max(min(blocks(p.x.size, max(AHEAD * BLOCK, part)), held // parts), blocks(p.x.size, 2**30))
    where = (grid, parts), BLOCK, p.stream, 4 * part
    if p.weighted:
        sums_kernel[where](p.x, p.weights, p.result, *p.edges, part)
    else:
        counts_kernel[where](p.x, p.result, *p.edges, part)


@rung(counts_kernel, sums_kernel, *in_global_memory.kernels, *histogram.wide_bytes.kernels)
def in_shared_memory(p):
    """A block asks for as much shared memory as its bins take: on an H200 up to 227 KiB, which are 58,112 bins.

    An element is an atomic of its own, and nobody waits for it: in shared memory lanes with one counter cost little.
    Weights are different. A float32 is added by a loop, and so runs of one bin are added up first. More bins, and fewer
    than 4 elements for each bin, are left to `in_global_memory`, and up to 12,288 bins to `histogram.wide_bytes`.

    Source: CUDA C++ programming guide, "Shared memory", on more than 48 KiB.

    Leaves: 65,536 bins, the values of 16 bits, are a few too many.
    """
    count_in(1, p)


@rung(counts_kernel, sums_kernel, *in_global_memory.kernels, *histogram.wide_bytes.kernels)
def in_parts(p):
    """If one block cannot have all bins, up to four share them out. Each reads all elements, and counts its own.

    Blocks of the grid with one y have one part. Those with one x read the same elements at about the same time, so the
    L2 cache can serve most of these reads. On an H200 that is for up to 232,448 bins.

    Source: R. Shams and R. A. Kennedy, "Efficient histogram algorithms for NVIDIA CUDA compatible devices" (2007).
    """
    count_in(MOST_PARTS, p)


def count_in(most, p):
    """Count in at most so many parts, or by another rung."""
    parts = blocks(p.bins, most_private())
    if p.bins <= MOST_PRIVATE:
        histogram.wide_bytes.launch(p)
    elif parts > most or p.x.size < FEWEST * p.bins:
        in_global_memory.launch(p)
    else:
        launch(p, parts)


LADDER = (in_global_memory, in_shared_memory, in_parts)
