"""Histogram: how many elements of a vector fall into each of many bins.

Chapter: notebooks/28_histogram.ipynb.  PMPP 4e ch. 9.

Each element is read once, and next to nothing is computed: memory should be the bound. But each element also adds 1 to
a counter that other threads add to at the same time, and such additions wait for each other. How many meet in one
counter depends on the values. So the time of a simple kernel depends on them, and that of a good one does not.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import SHARED_LIMIT, blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128

DTYPES = ("uint8", "int32", "int64", "float32", "float64")
BLOCK = 512  # threads a block
BLOCKS_PER_SM = 4  # 2048 threads: as many as a multiprocessor of a data-centre GPU holds
MOST_PRIVATE = SHARED_LIMIT // 4  # bins of 32 bits that fit into the shared memory of a block
VALUES = 256  # of a byte
COLUMNS = 128  # threads a block of `per_thread`: each has a column of VALUES counters of one byte
VECTORS = 15  # 128-bit loads between two flushes of these: 240 bytes, and a counter of one byte holds 255


def edges_of(dtype: np.dtype, bins: int, range: tuple | None) -> tuple:
    """``low, high, scale``: a value from ``low`` to ``high`` is in bin ``int((value - low) * scale)``.

    For bin numbers they are integers, for float32 they are float32, and for everything else float64.
    """
    if range is None:
        return 0, bins - 1, 1
    number = np.float32 if dtype == np.float32 else np.float64
    with np.errstate(all="ignore"):
        low, high = number(range[0]), number(range[1])
        return low, high, number(bins) / (high - low)


def reference(x: np.ndarray, bins: int = 256, range: tuple | None = None, weights: np.ndarray | None = None):
    """The counts (bins,), int64; or the sums of ``weights`` for each bin, float64. One element after another."""
    counts = np.zeros(bins, np.int64 if weights is None else np.float64)
    low, high, scale = edges_of(x.dtype, bins, range)
    with np.errstate(all="ignore"):
        for i, value in enumerate(x):
            if low <= value <= high:  # a NaN is not
                at = min(int((value - low) * scale), bins - 1)  # what is `high` belongs to the last bin
                counts[at] += 1 if weights is None else float(weights[i])
    return counts


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`."""
    rng = np.random.default_rng(28) if rng is None else rng
    sizes = {"empty": 0, "one": 1} | {f"a block {d:+}": BLOCK + d for d in (-1, 0, 1)} | {"several blocks": 9001}
    made: dict[str, tuple] = {name: (rng.integers(0, 256, n, dtype=np.uint8),) for name, n in sizes.items()}
    made["bytes, all equal"] = np.full(9001, 200, np.uint8), 256  # more than a counter of one byte can hold
    made["bytes, sorted"] = np.sort(rng.integers(0, 256, 5000, dtype=np.uint8)), 256
    made["bytes beyond the bins"] = rng.integers(0, 256, 3001, dtype=np.uint8), 100
    made["bytes in a range"] = rng.integers(0, 256, 3001, dtype=np.uint8), 7, (10, 200.5)
    made["more bins than bytes"] = rng.integers(0, 256, 700, dtype=np.uint8), 1000
    made["one bin"] = rng.integers(-3, 4, 3001, dtype=np.int32), 1
    made["int32, negative too"] = rng.integers(-50, 150, 3001, dtype=np.int32), 100
    made["int32 in a range"] = rng.integers(-(2**31), 2**31, 3001, dtype=np.int32), 10, (-(2**31), 2**31 - 1)
    made["int64"] = np.array([0, 1, 2**32, 2**33 + 1, -(2**63), 2**63 - 1, 6, 7] * 100, np.int64), 7
    made["many bins"] = rng.integers(0, 20_000, 3001, dtype=np.int32), 20_000  # too many for shared memory
    made["many bins, one of them full"] = np.full(3001, 19_999, np.int32), 20_000
    made["float32"] = rng.standard_normal(3001, dtype=np.float32), 50, (-2.0, 2.0)
    made["float64"] = rng.standard_normal(3001), 33, (-1.0, 3.0)
    edges = np.float32([-1, -0.5, 0, 0.5, 1, np.nextafter(np.float32(1), np.float32(2)), -1.0000001, np.nan])
    made["on the edges, and not finite"] = np.append(edges, np.float32([np.inf, -np.inf, -0.0, 1e-45])), 4, (-1, 1)
    made["no number at all"] = np.full(700, np.nan, np.float32), 5, (0, 1)
    x, weights = rng.standard_normal((2, 3001), dtype=np.float32)
    made["weights"] = x, 20, (-3, 3), weights
    made["weights, bytes"] = rng.integers(0, 256, 3001, dtype=np.uint8), 256, None, weights
    made["weights, many bins"] = rng.integers(0, 20_000, 3001, dtype=np.int32), 20_000, None, weights
    made["weights, not finite"] = np.int32([0, 1, 1, 2, 3, 9]), 4, None, np.float32([np.inf, 1, np.nan, 3, 0, np.nan])
    return made


def cost(n: int, bins: int = 256, itemsize: int = 1) -> Cost:
    """``x`` read once and the counts written once. To add 1 to an integer is no floating-point operation."""
    return Cost(flops=0, bytes=n * itemsize + 8 * bins)


def arguments(x, bins=256, range=None, weights=None, *, out=None, stream=0) -> Problem:
    """Count how many elements fall into each bin, or add up their weights.

    Args:
        x: a contiguous vector (n,), n >= 0, of uint8, int32, int64, float32 or float64.
        bins: how many bins, at least 1.
        range: ``(low, high)``, which is cut into bins of equal width. A bin includes its lower edge, and the last one
            its upper edge, too. It is computed by float32 for float32, else by float64: what is nearer to an edge than
            a rounding error may be counted on either side of it. So the width, and ``bins`` divided by it, must be
            normal numbers of that type. None: the elements are integers, and are the numbers of their bins.
        weights: a contiguous vector (n,) of float32, or None: each element counts 1.
        out: a device array for the result, apart from ``x`` and ``weights`` in memory, or None to allocate one.
        stream: the stream to work on.

    What lies outside the range or is NaN is not counted, and neither is its weight. Returns a device array (bins,)
    without waiting for the work to be done: the counts in int64, which cannot overflow; with weights their sums in
    float32. The order in which weights are added differs from run to run.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: numpy.histogram; without a range numpy.bincount.

    >>> from pmpp.kernels import histogram
    >>> histogram.privatised(np.uint8([1, 3, 3, 7]), 5).copy_to_host()
    array([0, 1, 0, 2, 0])
    >>> histogram.privatised(np.float32([0, 0.1, 0.5, 1, 1.1]), 2, (0, 1)).copy_to_host()
    array([2, 2])
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    bins = as_integer("bins", bins, 1, 2**31 - 1)
    low, high, scale = checked_edges(x.dtype, bins, range)
    dtype = np.dtype(np.int64) if weights is None else np.dtype(np.float32)
    if weights is not None:
        weights = device.as_input("weights", weights, dtypes="float32", shape=x.shape, stream=stream)
    apart = {"x": x, "weights": weights}
    out = device.as_output("out", out, shape=(bins,), dtype=dtype, apart=apart, stream=stream)
    p = Problem(
        out,
        stream=stream,
        begin=clear,
        x=x,
        bins=bins,
        weighted=weights is not None,
        # A kernel counts where there are no weights. Their dtype is that of the counters in shared memory.
        weights=no_weights() if weights is None else weights,
        edges=(low, high, scale, bins),
    )
    if not x.size:
        clear(p)
        p.done = True
    return p


def checked_edges(dtype: np.dtype, bins: int, range: typing.Any) -> tuple:
    """`edges_of` a range that was checked."""
    if range is None:
        if dtype.kind == "f":
            raise ValueError(f"range must be two numbers for an x of {dtype}, which has no bin numbers, was None")
        return edges_of(dtype, bins, None)
    number = np.float32 if dtype == np.float32 else np.float64
    pair = range if isinstance(range, tuple | list) and len(range) == 2 else (None, None)
    real = all(isinstance(one, int | float | np.integer | np.floating) and not isinstance(one, bool) for one in pair)
    wanted = f"two finite numbers, the lower one first, whose difference is a normal {number.__name__}"
    if not real:
        raise TypeError(f"range must be {wanted}, or None, was {range!r}")
    try:
        edges = edges_of(dtype, bins, tuple(float(one) for one in pair))
    except OverflowError:  # an integer beyond float64
        edges = (math.nan,) * 3
    low, high, scale = edges
    with np.errstate(all="ignore"):
        width = high - low
    if not (np.finfo(number).tiny <= width < math.inf and 0 < scale < math.inf):
        raise ValueError(f"range must be {wanted}, was {range!r}")
    return edges


@device.cached(1)
def no_weights():
    """What a kernel is given where every element counts 1."""
    return device.empty(0, np.int32)


@cuda.jit
def clear_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 0


def clear(p):
    """All bins are 0 at the beginning."""
    clear_kernel[blocks(p.bins, BLOCK), BLOCK, p.stream](p.result)


def resident(p, each=1):
    """How many blocks the GPU holds at once; fewer for an ``x`` that has no ``each`` elements for each thread of them.

    A block counts in 32 bits. So there are more of them for an ``x`` of which one would get 2^30 elements or more.
    """
    held = max(device.limits()["multiprocessors"] * BLOCKS_PER_SM, blocks(p.x.size, 2**30))
    return min(blocks(p.x.size, BLOCK * each), held)


@cuda.jit(device=True)
def bin_of(value, low, high, scale, bins):
    """The bin of a value, or -1 for one that is outside or NaN."""
    if low <= value <= high:
        return min(int((value - low) * scale), bins - 1)
    return -1


@cuda.jit(device=True)
def count(counts, at, weights, i):
    """Add 1, or the weight of element ``i``, to a counter; nothing if ``at`` is negative."""
    if at >= 0:
        if weights.size:
            cuda.atomic.add(counts, at, weights[i])
        else:
            cuda.atomic.add(counts, at, 1)


@cuda.jit
def global_atomics_kernel(x, weights, out, low, high, scale, bins):
    i = cuda.grid(1)
    if i < x.size:
        count(out, bin_of(x[i], low, high, scale, bins), weights, i)


@rung(global_atomics_kernel)
def global_atomics(p):
    """A thread takes one element, and adds 1 to its bin in global memory by an atomic.

    Source: PMPP 4e section 9.2.

    Leaves: the atomics of all threads of the GPU meet in a few bins, and those on one bin go one after another.
    """
    grid = blocks(p.x.size, BLOCK)
    global_atomics_kernel[grid, BLOCK, p.stream](p.x, p.weights, p.result, *p.edges)


@cuda.jit(device=True)
def clear_shared(counts, size):
    """Set the first ``size`` counters to 0; all threads of the block take part, and there is a barrier."""
    for i in range(cuda.threadIdx.x, size, cuda.blockDim.x):
        counts[i] = 0
    cuda.syncthreads()


@cuda.jit(device=True)
def flush(counts, out):
    """Add a block's counters to those of the grid, after a barrier. A counter that is 0 costs no atomic."""
    cuda.syncthreads()
    for at in range(cuda.threadIdx.x, out.size, cuda.blockDim.x):
        if counts[at] != 0:
            cuda.atomic.add(out, at, counts[at])


@cuda.jit
def privatised_kernel(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)  # int32 or float32; the launch says how many
    clear_shared(counts, bins)
    i = cuda.grid(1)
    if i < x.size:
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
    flush(counts, out)


@rung(privatised_kernel, global_atomics_kernel)
def privatised(p):
    """Each block counts in a copy of its own, in shared memory, and adds that to the result in the end.

    More than MOST_PRIVATE bins do not fit there. Then this is `global_atomics`.

    Source: PMPP 4e section 9.4.

    Leaves: a block clears and flushes all its bins for no more than 512 elements.
    """
    if p.bins > MOST_PRIVATE:
        global_atomics.launch(p)
    else:
        grid = blocks(p.x.size, BLOCK)
        privatised_kernel[grid, BLOCK, p.stream, 4 * p.bins](p.x, p.weights, p.result, *p.edges)


@cuda.jit
def coarsened_kernel(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)
    clear_shared(counts, bins)
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
    flush(counts, out)


@rung(coarsened_kernel, global_atomics_kernel)
def coarsened(p):
    """There are as many blocks as the GPU holds at once, and each thread takes many elements, a grid apart.

    Source: PMPP 4e section 9.5.

    Leaves: where neighbours are equal, in a dark sky or a sorted vector, the lanes of a warp meet in one counter.
    """
    if p.bins > MOST_PRIVATE:
        global_atomics.launch(p)
    else:
        coarsened_kernel[resident(p), BLOCK, p.stream, 4 * p.bins](p.x, p.weights, p.result, *p.edges)


@cuda.jit(device=True)
def count_runs(x, weights, counts, low, high, scale, bins, one):
    """Count the elements that this thread comes by. Those of one bin in a row are one atomic.

    ``one``: of the counters' dtype, so that a run of weights is summed in float32.
    """
    current = -1
    run = one - one
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        at = bin_of(x[i], low, high, scale, bins)
        if at != current:
            if current >= 0:
                cuda.atomic.add(counts, current, run)
            current = at
            run = one - one
        run += weights[i] if weights.size else one
    if current >= 0:
        cuda.atomic.add(counts, current, run)


@cuda.jit
def aggregated_kernel(x, weights, out, low, high, scale, bins, one):
    counts = cuda.shared.array(0, weights.dtype)
    clear_shared(counts, bins)
    count_runs(x, weights, counts, low, high, scale, bins, one)
    flush(counts, out)


@cuda.jit
def aggregated_global_kernel(x, weights, out, low, high, scale, bins, one):
    count_runs(x, weights, out, low, high, scale, bins, one)


@rung(aggregated_kernel, aggregated_global_kernel)
def aggregated(p):
    """A thread adds up a run of equal bins in a register, and only then adds it to the counter.

    More than MOST_PRIVATE bins are counted in global memory, here too.

    Source: PMPP 4e section 9.6.

    Leaves: without runs lanes still meet, in a counter or in a bank, and their atomics wait for each other.
    """
    one = np.float32(1) if p.weighted else 1
    if p.bins > MOST_PRIVATE:
        aggregated_global_kernel[resident(p), BLOCK, p.stream](p.x, p.weights, p.result, *p.edges, one)
    else:
        aggregated_kernel[resident(p), BLOCK, p.stream, 4 * p.bins](p.x, p.weights, p.result, *p.edges, one)


@cuda.jit(device=True)
def flush_copies(counts, out, copies):
    """Add up the copies of each bin, and add that to the grid's. Lanes begin at different copies: no bank conflicts."""
    cuda.syncthreads()
    thread = cuda.threadIdx.x
    for at in range(thread, out.size, cuda.blockDim.x):
        total = counts[at * copies + thread % copies]
        for k in range(1, copies):
            total += counts[at * copies + (thread + k) % copies]
        if total != 0:
            cuda.atomic.add(out, at, total)


@cuda.jit(device=True)
def count_copy(counts, at, copies, weights, i):
    """Count element ``i``, whose bin is ``at``, in the copy of this lane."""
    if at >= 0:
        count(counts, at * copies + cuda.threadIdx.x % copies, weights, i)


@cuda.jit
def copies_kernel(x, weights, out, low, high, scale, bins, copies):
    counts = cuda.shared.array(0, weights.dtype)
    clear_shared(counts, bins * copies)
    i, step = cuda.grid(1), cuda.gridsize(1)
    while i + 3 * step < x.size:  # four loads are under way before the first element is counted
        a, b, c, d = x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]
        count_copy(counts, bin_of(a, low, high, scale, bins), copies, weights, i)
        count_copy(counts, bin_of(b, low, high, scale, bins), copies, weights, i + step)
        count_copy(counts, bin_of(c, low, high, scale, bins), copies, weights, i + 2 * step)
        count_copy(counts, bin_of(d, low, high, scale, bins), copies, weights, i + 3 * step)
        i += 4 * step
    while i < x.size:
        count_copy(counts, bin_of(x[i], low, high, scale, bins), copies, weights, i)
        i += step
    flush_copies(counts, out, copies)


@rung(copies_kernel, aggregated_global_kernel)
def copies(p):
    """A block has up to 32 copies, interleaved: counter ``bin * copies + lane`` is in a bank of the lane's own.

    With 32 copies, up to 384 bins, no two lanes of a warp ever meet, whatever the values are. For more bins there are
    fewer copies, and where not even one fits this is `aggregated`. A thread loads four elements at once.

    Source: J. Gomez-Luna et al., "An optimized approach to histogram computation on GPU" (2013).

    Leaves: a byte is loaded alone, and costs as many instructions as a float64.
    """
    if p.bins > MOST_PRIVATE:
        aggregated.launch(p)
    else:
        fit = min(32, 2 ** int(math.log2(MOST_PRIVATE // p.bins)))
        copies_kernel[resident(p, 16), BLOCK, p.stream, 4 * p.bins * fit](p.x, p.weights, p.result, *p.edges, fit)


def words_of(x):
    """``words, head, tail`` of a vector of bytes: x[head:tail] are whole 16-byte vectors, in ``words`` as uint32."""
    head = min(-device.address(x) % 16, x.size)
    tail = x.size - (x.size - head) % 16
    return x[head:tail].view(np.uint32), head, tail


@cuda.jit(device=True)
def count_word_alone(counts, column, word):
    """Count the four bytes of a word in counters that no other thread has: no atomic is needed."""
    counts[(word & 255) * COLUMNS + column] += 1
    counts[(word >> 8 & 255) * COLUMNS + column] += 1
    counts[(word >> 16 & 255) * COLUMNS + column] += 1
    counts[(word >> 24) * COLUMNS + column] += 1


@cuda.jit(device=True)
def sum_of_row(rows, value):
    """The sum of the COLUMNS bytes that count ``value``. They are 0 afterwards."""
    pairs = np.uint32(0)  # two sums of 16 bits
    for k in range(COLUMNS // 4):
        place = value * (COLUMNS // 4) + (k + value) % (COLUMNS // 4)  # lanes are in different banks
        word = rows[place]
        rows[place] = 0
        pairs += np.uint32((word & 0x00FF00FF) + (word >> 8 & 0x00FF00FF))
    return np.int32((pairs & 0xFFFF) + (pairs >> 16))


@cuda.jit
def per_thread_kernel(x, words, out, head, tail, low, high, scale, bins):
    counts = cuda.shared.array(0, np.uint8)  # VALUES x COLUMNS
    rows = cuda.shared.array(0, np.uint32)  # the same memory, four counters a word
    thread = cuda.threadIdx.x
    clear_shared(rows, VALUES * COLUMNS // 4)
    column = (thread & 31) * 4 + (thread >> 5 & 3)  # the lanes of a warp are in 32 banks
    first, second = 0, 0  # how often the values `thread` and `thread + COLUMNS` came
    rounds = (words.size + 4 * COLUMNS - 1) // (4 * COLUMNS)  # of a vector for each thread
    for tile in range(cuda.blockIdx.x * VECTORS, rounds, cuda.gridDim.x * VECTORS):
        for k in range(tile, tile + VECTORS):
            i = 4 * (k * COLUMNS + thread)
            if i < words.size:
                a, b, c, d = load128(words, i)
                count_word_alone(counts, column, a)
                count_word_alone(counts, column, b)
                count_word_alone(counts, column, c)
                count_word_alone(counts, column, d)
        cuda.syncthreads()  # before a counter can overflow
        first += sum_of_row(rows, thread)
        second += sum_of_row(rows, thread + COLUMNS)
        cuda.syncthreads()

    at = bin_of(thread, low, high, scale, bins)
    if at >= 0 and first > 0:
        cuda.atomic.add(out, at, first)
    at = bin_of(thread + COLUMNS, low, high, scale, bins)
    if at >= 0 and second > 0:
        cuda.atomic.add(out, at, second)
    if cuda.blockIdx.x == 0:  # its first threads also take the bytes before and after the vectors
        if thread < head:
            count_in(out, x[thread], low, high, scale, bins)
        if tail + thread < x.size:
            count_in(out, x[tail + thread], low, high, scale, bins)


@cuda.jit(device=True)
def count_in(out, value, low, high, scale, bins):
    """Count one value in global memory."""
    at = bin_of(value, low, high, scale, bins)
    if at >= 0:
        cuda.atomic.add(out, at, 1)


@rung(per_thread_kernel, copies_kernel, aggregated_global_kernel)
def per_thread(p):
    """Each thread has counters of its own, of one byte each, and needs no atomic. They are flushed before 255.

    Sixteen bytes come by one 128-bit load, and are counted by value: only 256 values are asked for their bin. That is
    for bytes without weights. Everything else is `copies`.

    Source: C. Nugteren et al., "High performance predictable histogramming on GPUs" (2011).

    Leaves: a byte is a load, an addition and a store in shared memory, of which each waits for the one before.
    """
    if p.x.dtype != np.uint8 or p.weighted:
        copies.launch(p)
    else:
        words, head, tail = words_of(p.x)
        grid = min(blocks(p.x.size, COLUMNS * VECTORS * 16), device.limits()["multiprocessors"] * 7)
        shared = VALUES * COLUMNS
        per_thread_kernel[grid, COLUMNS, p.stream, shared](p.x, words, p.result, head, tail, *p.edges)


@cuda.jit(device=True)
def count_word(counts, column, word):
    """Count the four bytes of a word, each in this lane's column."""
    cuda.atomic.add(counts, (word & 255) * 32 + column, 1)
    cuda.atomic.add(counts, (word >> 8 & 255) * 32 + column, 1)
    cuda.atomic.add(counts, (word >> 16 & 255) * 32 + column, 1)
    cuda.atomic.add(counts, (word >> 24) * 32 + column, 1)


@cuda.jit
def wide_bytes_kernel(x, words, out, head, tail, low, high, scale, bins):
    counts = cuda.shared.array(0, np.int32)  # 32 for each value of a byte
    clear_shared(counts, VALUES * 32)
    column = cuda.threadIdx.x & 31
    for i in range(4 * cuda.grid(1), words.size, 4 * cuda.gridsize(1)):
        a, b, c, d = load128(words, i)
        count_word(counts, column, a)
        count_word(counts, column, b)
        count_word(counts, column, c)
        count_word(counts, column, d)
    thread = cuda.grid(1)  # the first threads also take the bytes before and after the vectors
    if thread < head:
        cuda.atomic.add(counts, x[thread] * 32 + column, 1)
    if tail + thread < x.size:
        cuda.atomic.add(counts, x[tail + thread] * 32 + column, 1)

    cuda.syncthreads()
    for value in range(cuda.threadIdx.x, VALUES, cuda.blockDim.x):
        total = 0
        for k in range(32):
            total += counts[value * 32 + (column + k) % 32]
        at = bin_of(value, low, high, scale, bins)
        if at >= 0 and total > 0:
            cuda.atomic.add(out, at, total)


@rung(wide_bytes_kernel, copies_kernel, aggregated_global_kernel)
def wide_bytes(p):
    """As in `copies`, each lane has a bank of its own, and an atomic is one instruction that no thread waits for.

    As in `per_thread`, sixteen bytes come by one load, and are counted by value. That is for bytes without weights.
    Everything else is `copies`.

    Source: PTX ISA, "red" and "atom"; "Vectors" in ld and st.
    """
    if p.x.dtype != np.uint8 or p.weighted:
        copies.launch(p)
    else:
        words, head, tail = words_of(p.x)
        shared = 4 * VALUES * 32
        wide_bytes_kernel[resident(p, 16), BLOCK, p.stream, shared](p.x, words, p.result, head, tail, *p.edges)


LADDER = (global_atomics, privatised, coarsened, aggregated, copies, per_thread, wide_bytes)
