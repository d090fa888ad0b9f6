"""Runs: of equal neighbours only the first one, and how many they are.

Chapter: notebooks/35_filter.ipynb.  PMPP 4e ch. 11; 5e ch. 12.

It is a filter whose condition looks at two elements: kept is what differs from the element before it. The values alone
are what `unique` of a sorted vector is. With the lengths they are run-length encoding, which stores long runs in little
memory. A length is the start of the next run less the own one, so starts are what the kernels find.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.filter.ladder import BLOCK
from pmpp.kernels.filter.tile import BLOCK as TILE_BLOCK
from pmpp.kernels.filter.tile import ITEMS, PART, TILE, load_rows, rank_of, start_of_warp, write_part
from pmpp.kernels.scan.ladder import clear_kernel, words_for
from pmpp.kernels.scan.look_back import next_tile
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("float32", "int32")
BLOCKS_PER_SM = 8  # of the kernel that makes lengths of starts
AT_ONCE = 4  # runs of which a thread of it loads the starts before it stores the first length


class Runs(typing.NamedTuple):
    """The runs of a vector: ``values``, ``lengths`` of int32, each as long as the vector, and ``count``, one int64.

    All are device arrays; there are no ``lengths`` if they were not asked for. Only the first count[0] elements mean
    something. The host does not know how many these are when a rung returns. Who gave it another stream than the
    default one synchronises that before it asks.
    """

    values: typing.Any
    lengths: typing.Any
    count: typing.Any

    def trimmed(self) -> tuple:
        """The runs alone, views in the device's memory: values and lengths, or None. It waits for the GPU."""
        count = int(self.count.copy_to_host()[0])
        return self.values[:count], None if self.lengths is None else self.lengths[:count]

    def copy_to_host(self) -> tuple:
        """The same as NumPy arrays. It waits for the GPU."""
        values, lengths = self.trimmed()
        return values.copy_to_host(), None if lengths is None else lengths.copy_to_host()


def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and lengths: each element makes the last run longer, or begins one."""
    values, lengths = [], []
    for value in x:
        if values and value == values[-1]:  # a NaN equals nothing, not even itself
            lengths[-1] += 1
        else:
            values.append(value)
            lengths.append(1)
    return np.array(values, x.dtype), np.array(lengths, np.int32)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward inputs: a name, and the vector ``(x,)``. The same every time."""
    rng = np.random.default_rng(352) if rng is None else rng
    made = {
        "empty": np.zeros(0, np.int32),
        "one": np.int32([7]),
        "two that are equal": np.int32([7, 7]),
        "a warp and one": rng.integers(0, 2, 33).astype(np.int32),
        "all equal, in two tiles": np.full(TILE + 5, 3, np.int32),
        "no two neighbours equal": np.arange(PART + 9, dtype=np.int32),
        "a run from one tile into the next": np.repeat(np.int32([4, 9, 4]), [TILE - 3, 40, 30]),
        "runs that begin with warps": np.repeat(np.arange(5, dtype=np.int32), PART),
        "sorted": np.sort(rng.integers(0, 90, TILE + 100)).astype(np.int32),
        "the largest and the smallest": np.repeat(np.int32([2**31 - 1, -(2**31)] * 20), rng.integers(1, 9, 40)),
        "float32": rng.integers(0, 3, 1000).astype(np.float32),
        "-0, NaN, and not finite": np.float32([0, -0.0, 0, np.nan, np.nan, np.inf, np.inf, -np.inf, 1e-45, 1e-45, 0]),
    }
    return {name: (x,) for name, x in made.items()}


def cost(n: int, runs: int | None = None, itemsize: int = 4) -> Cost:
    """``x`` read once; of each run, by default half as many as elements, value and length written once."""
    return Cost(flops=0, bytes=n * itemsize + (n // 2 if runs is None else runs) * (itemsize + 4) + 8)


def arguments(x, lengths=True, *, stream=0) -> Problem:
    """The runs of a vector: stretches of equal neighbours.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^31, of float32 or int32.
        lengths: True to find how long the runs are; False to have the values alone.
        stream: the stream to work on.

    Returns ``values, lengths, count`` without waiting for the work to be done: three new device arrays, (n,) of x's
    dtype, (n,) of int32 and (1,) of int64. The first count[0] values are the first elements of the runs, in their
    order, and the lengths stand beside them; what follows is undefined. Without lengths there is None. As numbers
    compare, -0 equals 0, and each NaN is a run of its own. `Runs` says how to get the runs alone, which waits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``torch.unique_consecutive(x, return_counts=True)``.

    >>> from pmpp.kernels.filter import runs
    >>> values, lengths = runs.single_pass(np.int32([5, 5, 2, 2, 2, 5])).copy_to_host()
    >>> values, lengths
    (array([5, 2, 5], dtype=int32), array([2, 3, 1], dtype=int32))
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if x.size >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 elements, as lengths are int32, had {x.size}")
    wanted = as_flag("lengths", lengths)
    values, count = device.empty(x.size, x.dtype, stream=stream), device.empty(1, np.int64, stream=stream)
    found = device.empty(x.size, np.int32, stream=stream) if wanted else None
    p = Problem(Runs(values, found, count), stream=stream, x=x, values=values, lengths=found, count=count)
    p.wanted = wanted
    if not x.size:
        clear_kernel[1, 32, stream](count)
        p.done = True
    return p


@cuda.jit
def heads_kernel(x, heads):
    """1 where a run begins: at the first element, and where one differs from the one before it."""
    i = cuda.grid(1)
    if i < x.size:
        heads[i] = 1 if i == 0 or x[i] != x[i - 1] else 0


@cuda.jit
def scatter_heads_kernel(x, heads, places, values, starts, count):
    """``places[i]``: how many runs begin before element i."""
    i = cuda.grid(1)
    if i < x.size:
        if heads[i]:
            values[places[i]] = x[i]
            if starts.size:
                starts[places[i]] = i
        if i == x.size - 1:
            count[0] = places[i] + heads[i]


@cuda.jit
def lengths_kernel(starts, count, lengths):
    """A run ends where the next one starts, and the last one with the vector. How many they are, the GPU knows."""
    runs, step = count[0], np.int64(cuda.gridsize(1))
    begins, ends = cuda.local.array(AT_ONCE, np.int32), cuda.local.array(AT_ONCE, np.int32)
    for k in range(np.int64(cuda.grid(1)), runs, AT_ONCE * step):
        for one in range(AT_ONCE):
            run = k + one * step
            if run < runs:
                begins[one] = starts[run]
                ends[one] = starts[run + 1] if run + 1 < runs else np.int32(starts.size)
        for one in range(AT_ONCE):
            run = k + one * step
            if run < runs:
                lengths[run] = ends[one] - begins[one]


def starts_for(p):
    """Room for where the runs start. If no lengths are wanted, none."""
    return device.empty(p.x.size if p.wanted else 0, np.int32, stream=p.stream)


def make_lengths(p, starts):
    """The lengths, if they are wanted."""
    if p.wanted:
        grid = min(blocks(p.x.size, BLOCK), device.limits()["multiprocessors"] * BLOCKS_PER_SM)
        lengths_kernel[grid, BLOCK, p.stream](starts, p.count, p.lengths)


@rung(heads_kernel, scatter_heads_kernel, lengths_kernel)
def by_scan(p):
    """Each element that begins a run has a flag. The scan of the flags is the number of its run.

    Four launches: write the flags, scan them, scatter values and starts, make lengths of the starts.

    Source: Blelloch, "Prefix sums and their applications" (1990), section 1.4, with another condition.

    Leaves: flags and places go to memory and come back, 16 bytes for each element, however few runs there are.
    """
    n, starts = p.x.size, starts_for(p)
    heads = device.empty(n, np.int32, stream=p.stream)
    heads_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.x, heads)
    places = scan.vectorised(heads, exclusive=True, stream=p.stream)
    scatter_heads_kernel[blocks(n, BLOCK), BLOCK, p.stream](p.x, heads, places, p.values, starts, p.count)
    make_lengths(p, starts)


@cuda.jit(device=True)
def load_rows_before(x, tile, at, end, values):
    """As `tile.load_rows`, but of each element the one before it. It is in a cache, where a neighbour has left it."""
    first = np.int64(tile) * TILE
    if first and end == TILE:
        i = np.uint64(first + at - 1)
        for row in range(ITEMS):
            values[row] = x[i + np.uint64(32 * row)]
    else:
        for row in range(ITEMS):
            i = first + np.uint32(at + 32 * row)
            values[row] = x[np.uint64(i - 1)] if 0 < i < x.size else x.dtype.type(0)


@cuda.jit(max_registers=48)  # so that five blocks fit on a multiprocessor, which has 65,536
def single_pass_kernel(x, words, values_out, starts, count):
    tile = next_tile(words, cuda.shared.array(1, np.int64))
    gathered, where = cuda.shared.array(TILE, x.dtype), cuda.shared.array(TILE, np.int32)
    values, before = cuda.local.array(ITEMS, x.dtype), cuda.local.array(ITEMS, x.dtype)
    at, end = load_rows(x, tile, values)
    load_rows_before(x, tile, at, end, before)
    i = np.uint32(tile * TILE + at)
    begin = np.uint32(cuda.threadIdx.x // 32 * PART)
    place = begin
    for row in range(ITEMS):
        head = np.uint32(at + 32 * row) < end and (values[row] != before[row] or (row == 0 and i == 0))
        lanes = cuda.ballot_sync(FULL_WARP, head)
        if head:
            here = np.uint32(place + rank_of(lanes))
            gathered[here], where[here] = values[row], np.int32(np.uint32(i + 32 * row))
        place = np.uint32(place + cuda.popc(lanes))
    cuda.syncwarp()
    mine = np.int32(place - begin)
    start = start_of_warp(words, tile, mine, count)
    write_part(values_out, start, gathered, begin, mine)
    if starts.size:
        write_part(starts, start, where, begin, mine)


@rung(single_pass_kernel, lengths_kernel)
def single_pass(p):
    """As `filter.single_pass`, with another condition: an element is kept if it differs from the one before it.

    Beside each kept value its index is gathered, where the run starts. Without lengths it is one launch.

    Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", NVR-2016-002, section 5.
    """
    tiles, starts = blocks(p.x.size, TILE), starts_for(p)
    words = words_for(tiles, p.stream)
    single_pass_kernel[tiles, TILE_BLOCK, p.stream](p.x, words, p.values, starts, p.count)
    make_lengths(p, starts)


LADDER = (by_scan, single_pass)
