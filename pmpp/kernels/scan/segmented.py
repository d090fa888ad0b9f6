"""Segmented scan: many scans of unequal length in one vector, each with its own start.

Chapter: notebooks/34_scan.ipynb, beside the room `pmpp.kernels.scan`.

A head marks where a segment begins. Take pairs of a flag and a value, with the operator

    (f, a) and then (g, b)  ->  (f or g, b if g else a + b)

It is associative, so any scan algorithm makes a segmented scan if it scans such pairs. Here it is one pass with
decoupled look-back (`pmpp.kernels.scan.look_back`). A tile that has a head publishes the total since its last head as
COMPLETE at once: what comes before the head does not change it.
Source: Schwartz, "Ultracomputers", ACM TOPLAS 2 (1980); Blelloch, "Prefix sums and their applications" (1990).
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.reduction.ladder import combine
from pmpp.kernels.scan.ladder import SHORT, clear_kernel, words_for
from pmpp.kernels.scan.ladder import arguments as scan_arguments
from pmpp.kernels.scan.ladder import reference as scan_reference
from pmpp.kernels.scan.look_back import COMPLETE, PARTIAL, look_back, next_tile, publish
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import widened

__all__ = ["arguments", "cost", "inputs", "reference", "segmented_scan", "segmented_scan_kernel"]

BLOCK = 256  # threads per block: 8 warps
WARPS = BLOCK // 32
SLOTS = WARPS + 1  # a total for each warp, and what came before the first
# Elements per thread: odd, as in `pmpp.kernels.scan.tile`. More make larger tiles, so fewer tiles look back. But larger
# tiles leave room for fewer blocks: in float64, with its flags, a tile takes 34 KB of shared memory, and with 21
# elements it would take 47 KB. An H200's multiprocessor (228 KB) then holds six blocks, or four. No record compares
# other numbers.
COARSE = 15
TILE = BLOCK * COARSE


def reference(x: np.ndarray, heads: np.ndarray, op: str = "sum", *, exclusive: bool = False) -> np.ndarray:
    """`scan.reference` of each segment by itself: float64, or int64, for sums. Element 0 always begins a segment."""
    begins = np.flatnonzero(np.r_[x.size > 0, heads[1:] != 0])
    parts = [scan_reference(part, op, exclusive=exclusive) for part in np.split(x, begins[1:])]
    return np.concatenate(parts)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and ``(x, heads)``."""
    rng = np.random.default_rng(12) if rng is None else rng
    some = 3 * TILE + 5
    at = np.arange(some)
    marks = {
        "no head": at < 0,
        "every element a head": at >= 0,
        "a head every third": at % 3 == 0,
        "a head at each tile's first": at % TILE == 0,
        "a head at each tile's last": at % TILE == TILE - 1,
        "a head at each run's last": at % COARSE == COARSE - 1,
        "a head at each warp's first": at % (32 * COARSE) == 0,
        "few heads": rng.random(some) < 3 / some,
        "many heads": rng.random(some) < 0.2,
    }
    made = {name: (rng.integers(-9, 10, some).astype(np.float32), heads) for name, heads in marks.items()}
    for n in (0, 1, 33, TILE - 1, TILE, TILE + 1):
        made[f"{n} elements"] = rng.integers(-9, 10, n).astype(np.float32), rng.random(n) < 0.01
    long = 40 * TILE + 77  # one segment is longer than the 32 tiles that look-back sees at a time
    made["one head in 40 tiles"] = rng.integers(-9, 10, long).astype(np.float32), np.arange(long) == 4 * TILE + 9
    made["float64"] = rng.standard_normal(some), marks["few heads"]
    made["int32"] = rng.integers(-(2**31), 2**31, some, dtype=np.int32), marks["few heads"]
    made["int64"] = rng.integers(-(2**50), 2**50, some, dtype=np.int64), marks["many heads"]
    made |= {dtype.name: (rng.standard_normal(some).astype(dtype), marks["few heads"]) for dtype in known(SHORT)}
    made["real numbers"] = rng.standard_normal(some).astype(np.float32), marks["few heads"]
    made["all negative"] = -rng.random(some, dtype=np.float32) - 1, marks["few heads"]
    nan = np.where(at == TILE + 7, np.nan, 1).astype(np.float32)  # NaN up to the next head, and no further
    made["NaN in the second tile"] = nan, at % (2 * TILE) == 0
    return made


def cost(n: int, itemsize: int = 4) -> Cost:
    """``n - 1`` operations; ``x`` and a byte of heads read once, and the result written once."""
    return Cost(flops=max(n - 1, 0), bytes=n * (2 * itemsize + 1))


def arguments(x, heads, op="sum", *, exclusive=False, stream=0) -> Problem:
    """Scan every segment of a vector from its own start.

    Args:
        x: a contiguous vector (n,) of float32, float64, int32, int64, float16 or bfloat16.
        heads: a contiguous vector (n,) of bool or uint8. An element that is not 0 begins a segment; so does element 0.
        op: "sum" or "max".
        exclusive: True if element i combines only the elements of its segment before i; the first one is then the
            identity (0 for a sum; for a maximum -inf, or the least integer of the dtype). False if it includes
            element i.
        stream: the stream to work on.

    Returns a new device array (n,) of ``x``'s dtype, without waiting for the work to be done. Sums of integers wrap
    around. A NaN makes the rest of its segment NaN. Numbers of 16 bits are added up in float32, and each result is
    rounded once. The order in which a float sum is added up depends on timing, so on
    a GPU two calls may differ in the last bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import scan
    >>> scan.segmented_scan(np.int32([3, 1, 4, 1, 5]), np.array([0, 0, 1, 0, 0], np.uint8)).copy_to_host()
    array([ 3,  4,  4,  5, 10], dtype=int32)
    """
    p = scan_arguments(x, op, exclusive=exclusive, stream=stream)
    heads = device.as_input("heads", heads, dtypes=("bool", "uint8"), ndim=1, shape=p.x.shape, stream=p.stream)
    return p.replace(heads=heads)


@cuda.jit(device=True)
def follow(op, earlier, flag, value):
    """``earlier`` and ``value`` combined; ``value`` alone if ``flag``, which says that ``value`` covers a head."""
    return value if flag else combine(op, earlier, value)


@cuda.jit(device=True)
def warp_scan_pairs(op, flag, value):
    """Each lane gets the combined pairs of lanes 0 to itself; ``flag`` is 0 or 1."""
    for distance in (1, 2, 4, 8, 16):
        earlier_flag = cuda.shfl_up_sync(FULL_WARP, flag, distance)
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance:
            value = follow(op, earlier, flag, value)
            flag = flag | earlier_flag
    return flag, value


@cuda.jit(device=True)
def scan_block_pairs(op, identity, flag, value, flags, values):
    """The pair of all threads before this one in its block, and the pair of the whole block.

    ``flag, value``: the pair of this thread. ``flags, values``: shared arrays of SLOTS.
    """
    flag, value = warp_scan_pairs(op, flag, value)
    warp = cuda.threadIdx.x // 32
    if cuda.laneid == 31:
        flags[warp + 1], values[warp + 1] = flag, value
    if cuda.threadIdx.x == 0:
        flags[0], values[0] = 0, identity
    earlier_flag = cuda.shfl_up_sync(FULL_WARP, flag, 1)
    earlier = cuda.shfl_up_sync(FULL_WARP, value, 1)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        for w in range(WARPS):  # eight pairs: few enough for one thread
            values[w + 1] = follow(op, values[w], flags[w + 1], values[w + 1])
            flags[w + 1] = flags[w + 1] | flags[w]
    cuda.syncthreads()
    before_flag, before = flags[warp], values[warp]
    if cuda.laneid > 0:
        before = follow(op, before, earlier_flag, earlier)
        before_flag = before_flag | earlier_flag
    return before_flag, before, flags[WARPS], values[WARPS]


@cuda.jit
def segmented_scan_kernel(x, heads, out, states, published, op, identity, exclusive):
    thread = cuda.threadIdx.x
    tile = next_tile(states, cuda.shared.array(1, np.int64))
    first = tile * TILE
    scanned = cuda.shared.array(TILE, published.dtype)
    head = cuda.shared.array(TILE, np.uint8)
    for k in range(COARSE):
        element = k * BLOCK + thread
        inside = first + element < x.size
        scanned[element] = widened(x[first + element]) if inside else identity
        head[element] = inside and heads[first + element] != 0
    cuda.syncthreads()

    mine = thread * COARSE
    flag, run = np.int32(head[mine]), scanned[mine]
    for k in range(1, COARSE):
        flag = flag | np.int32(head[mine + k])
        scanned[mine + k] = follow(op, scanned[mine + k - 1], head[mine + k], scanned[mine + k])
        run = scanned[mine + k]
    flags, values = cuda.shared.array(SLOTS, np.int32), cuda.shared.array(SLOTS, published.dtype)
    seen, before, any_head, total = scan_block_pairs(op, identity, flag, run, flags, values)

    start = cuda.shared.array(1, published.dtype)
    if thread < 32:
        if thread == 0:
            # What comes before a head does not change what comes after it, so the total is already complete.
            publish(states, published, tile, COMPLETE if any_head else PARTIAL, total)
        earlier = look_back(states, published, tile, op, identity)
        if thread == 0:
            start[0] = earlier
            if not any_head:
                publish(states, published, tile, COMPLETE, combine(op, earlier, total))
    cuda.syncthreads()

    before = follow(op, start[0], seen, before)
    open_run = True  # up to this thread's first head, its elements continue the segment before them
    for k in range(COARSE):
        open_run = open_run and head[mine + k] == 0
        if open_run:
            scanned[mine + k] = combine(op, before, scanned[mine + k])
    cuda.syncthreads()
    for k in range(COARSE):
        element = k * BLOCK + thread
        if first + element < out.size:
            if not exclusive:
                out[first + element] = scanned[element]
            elif head[element] != 0:
                out[first + element] = identity
            else:
                out[first + element] = scanned[element - 1] if element > 0 else start[0]


@rung(clear_kernel, segmented_scan_kernel)
def segmented_scan(p):
    """A scan of pairs of a flag and a value, in one pass with decoupled look-back."""
    tiles = blocks(p.x.size, TILE)
    published = device.empty((2, tiles), p.wide.dtype, stream=p.stream)
    states = words_for(tiles, p.stream)
    segmented_scan_kernel[tiles, BLOCK, p.stream](
        p.x, p.heads, p.result, states, published, p.op, p.identity, p.exclusive
    )
