"""Repeat: each value as often as its length says, one run behind the other. It undoes run-length encoding.

Chapter: notebooks/35_filter.ipynb.  PMPP 4e ch. 11; 5e ch. 12.

A scan of the lengths says where each run ends. With a thread for each run, one long run would keep all others waiting.
With a thread for each element of the result, each has to find its run: by a search among the ends, or together, a block
for its tile. Memory is the bound: of each run value and length are read, and each element of the result is written.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan
from pmpp.kernels.common import blocks
from pmpp.kernels.reduction.ladder import MAX
from pmpp.kernels.scan.tile import SLOTS, scan_block
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("float32", "int32")
BLOCK = 256  # threads a block
ITEMS = 9  # elements of the result a thread in `by_tiles`: odd, so that the lanes of a warp use all banks
TILE = BLOCK * ITEMS


def reference(values: np.ndarray, lengths: np.ndarray, total: int) -> np.ndarray:
    """Run after run, until the result is full. If the runs end before, the last value goes on."""
    made: list = []
    for value, length in zip(values, lengths, strict=True):
        made += [value] * int(length)
    made += list(values[-1:]) * max(total - len(made), 0)
    return np.array(made[:total], values.dtype)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(353) if rng is None else rng
    lengths = {
        "no run": np.zeros(0, np.int64),
        "one element": np.array([1]),
        "one run": np.array([TILE + 7]),
        "each element once": np.ones(300, np.int64),
        "some of length 0": rng.integers(0, 3, 700),
        "many of length 0, and one": np.r_[np.zeros(400, np.int64), 9, np.zeros(300, np.int64)],
        "runs that end with tiles": np.array([TILE, TILE // 2, TILE // 2, 1]),
        "one long run among short ones": np.r_[np.ones(40, np.int64), TILE + 99, np.ones(50, np.int64)],
        "random": rng.integers(0, 40, 90),
    }
    made = {}
    for name, each in lengths.items():
        values = rng.integers(-99, 100, each.size).astype(np.int32)
        made[name] = values, each.astype(np.int32), int(each.sum())
    odd = np.float32([np.nan, -0.0, 0, np.inf, -np.inf, 1e-45])
    made["floats, not all finite"] = odd, np.int32([3, 1, 2, 0, 40, 5]), 51
    made["fewer than the lengths say"] = made["random"][0], made["random"][1], 100
    made["more than the lengths say"] = np.int32([4, 6]), np.int32([3, 2]), 40
    made["nothing of something"] = np.int32([4, 6]), np.int32([0, 0]), 0
    return made


def cost(n: int, runs: int | None = None, itemsize: int = 4) -> Cost:
    """Value and length of each run, by default half as many as elements, read once; each element written once."""
    return Cost(flops=0, bytes=n * itemsize + (n // 2 if runs is None else runs) * (itemsize + 4))


def tolerance(values: np.ndarray, lengths: np.ndarray, total: int) -> float:
    """Nothing is computed: every element is one of the values."""
    return 0.0


def arguments(values, lengths, total, *, stream=0) -> Problem:
    """Each value as often as its length says.

    Args:
        values: a contiguous vector (r,), r >= 0, of float32 or int32.
        lengths: another one (r,) of int32, none negative, and all together below 2^31. That is checked of a NumPy
            array, and not of what is on the device.
        total: how many elements the result has, from 0 to 2^31 - 1; 0 if there are no values. To add up the lengths
            would wait for the GPU.
        stream: the stream to work on.

    Returns a new device array (total,) of the values' dtype, without waiting for the work to be done. If the lengths
    add up to more than the total, the result is cut off there. If they add up to less, the last value goes on.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``np.repeat(values, lengths)``.

    >>> from pmpp.kernels.filter import repeat
    >>> repeat.by_tiles(np.int32([5, 2, 7]), np.int32([2, 0, 3]), 5).copy_to_host()
    array([5, 5, 7, 7, 7], dtype=int32)
    """
    stream = device.as_stream(stream)
    values = device.as_input("values", values, dtypes=DTYPES, ndim=1, stream=stream)
    on_host = lengths
    lengths = device.as_input("lengths", lengths, dtypes=("int32",), ndim=1, shape=values.shape, stream=stream)
    total = as_integer("total", total, 0, 2**31 - 1)
    if total and not values.size:
        raise ValueError(f"total must be 0 as there are no values, was {total}")
    if isinstance(on_host, np.ndarray):
        if on_host.min(initial=0) < 0:
            k = int(np.argmax(on_host < 0))
            raise ValueError(f"lengths must not be negative, was {on_host[k]} at {k}")
        if on_host.sum(dtype=np.int64) >= 2**31:
            raise ValueError(f"lengths must add up to less than 2^31, was {on_host.sum(dtype=np.int64)} together")
    out = device.empty(total, values.dtype, stream=stream)
    return Problem(out, stream=stream, values=values, lengths=lengths, out=out)


@cuda.jit(device=True)
def run_at(ends, i):
    """The run that element i is in: the first one that ends behind it, or the last one of all."""
    low, high = 0, ends.size - 1
    while low < high:
        middle = (low + high) >> 1
        if ends[middle] > i:
            high = middle
        else:
            low = middle + 1
    return low


@cuda.jit
def by_search_kernel(values, ends, out):
    i = np.int64(cuda.grid(1))
    if i < out.size:
        out[i] = values[run_at(ends, i)]


@rung(by_search_kernel)
def by_search(p):
    """A scan of the lengths says where the runs end. Each element searches its run among the ends.

    Source: ``np.searchsorted(ends, i, side="right")``.

    Leaves: a search of log r steps for each element, although its neighbour is most often in the same run.
    """
    ends = scan.vectorised(p.lengths, stream=p.stream)
    by_search_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](p.values, ends, p.out)


@cuda.jit
def by_tiles_kernel(values, ends, out):
    thread, first = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * TILE
    count = np.int32(min(np.int64(TILE), out.size - first))
    runs, numbers = cuda.shared.array(2, np.int32), cuda.shared.array(TILE, np.int32)
    for at in range(thread, TILE, BLOCK):
        numbers[at] = 0
    if thread < 2:  # two searches for a tile: the run of its first element, and of its last one
        runs[thread] = run_at(ends, first + (count - 1 if thread else 0))
    cuda.syncthreads()
    for run in range(runs[0] + 1 + thread, runs[1] + 1, BLOCK):  # those that begin in the tile
        begin = ends[run - 1] - first
        if begin < ends[run] - first or run == ends.size - 1:  # one of length 0 has no element
            numbers[begin] = run - runs[0]
    cuda.syncthreads()

    mine, greatest = thread * ITEMS, np.int32(0)
    for item in range(ITEMS):  # an element without a number has the last one before it
        greatest = max(greatest, numbers[mine + item])
        numbers[mine + item] = greatest
    before, _ = scan_block(MAX, np.int32(0), greatest, cuda.shared.array(SLOTS, np.int32))
    for item in range(ITEMS):
        numbers[mine + item] = max(numbers[mine + item], before)
    cuda.syncthreads()
    for at in range(thread, count, BLOCK):
        out[first + at] = values[runs[0] + numbers[at]]


@rung(by_tiles_kernel)
def by_tiles(p):
    """A block searches twice for 2,304 elements. Each run that begins among them leaves its number at its first one.

    The greatest number up to an element is that of its run: a scan whose operator is the maximum.

    Source: Baxter, "moderngpu", load-balancing search (2013); the scan is that of PMPP 4e chapter 11.
    """
    ends = scan.vectorised(p.lengths, stream=p.stream)
    by_tiles_kernel[blocks(p.out.size, TILE), BLOCK, p.stream](p.values, ends, p.out)


LADDER = (by_search, by_tiles)
