"""Pairs: values in the order of their keys.

Chapter: notebooks/42_sorting.ipynb.  PMPP 4e ch. 13; 5e ch. 14.

A table is sorted by one of its columns. The values say where the rest of a row is, or are the rest. Equal keys keep
their order, so a table can be sorted by one column and then by another one. Twice as many bytes move as for keys alone.
If the values are the numbers 0, 1, 2, ..., they end as the order itself: that is argsort.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import scan
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.filter.ladder import rank_of
from pmpp.kernels.scan.ladder import clear_kernel
from pmpp.kernels.scan.look_back import COMPLETE, PARTIAL, next_tile
from pmpp.kernels.scan.tile import SLOTS
from pmpp.kernels.sort.digits import BINS, PASSES, as_digits, digit_of, turn_of
from pmpp.kernels.sort.ladder import all_digits_kernel, bit_kernel, starts_kernel, starts_of, words_for
from pmpp.kernels.sort.look_back import look_back_bins, publish_bin
from pmpp.kernels.sort.tile import BLOCK as TILE_BLOCK
from pmpp.kernels.sort.tile import (
    COUNTERS,
    ITEMS,
    TILE,
    count_in_warps,
    leave_out_copies,
    load_keys,
    peers_of,
    places_of,
)
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("int32", "uint32", "float32")
BLOCK = 256  # threads a block


class Pairs(typing.NamedTuple):
    """``keys``, and the ``values`` that belong to them: two device arrays."""

    keys: typing.Any
    values: typing.Any


def reference(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values, after one pair after another was put behind all those whose keys do not come after its own.

    NaN comes last.
    """
    taken: list = []
    for key, value in zip(keys, values, strict=True):
        low, high = 0, len(taken)
        while low < high:
            middle = (low + high) // 2
            other = taken[middle][0]
            if key < other or (other != other and key == key):
                high = middle
            else:
                low = middle + 1
        taken.insert(low, (key, value))
    return np.array([value for _, value in taken], values.dtype)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and keys and values. The same every time."""
    rng = np.random.default_rng(43) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "a warp and one": 33, "a tile +1": TILE + 1}
    made = {name: rng.integers(-(2**31), 2**31, n, dtype=np.int32) for name, n in sizes.items()}
    made["all equal"] = np.full(600, -7, np.int32)
    made["few keys"] = rng.integers(-2, 3, 700).astype(np.int32)
    made["uint32"] = rng.permutation(np.repeat(np.uint32([0, 2**31 - 1, 2**31, 2**32 - 1]), 100))
    odd = np.float32([-np.inf, -1, -1e-45, -0.0, 0.0, 1e-45, 3e38, np.inf, np.nan, -np.nan])
    made["-0, NaN, and not finite"] = rng.permutation(np.repeat(odd, 40))
    return {name: (keys, np.arange(keys.size).astype(keys.dtype)) for name, keys in made.items()}


def cost(n: int, itemsize: int = 4) -> Cost:
    """Keys and values read once, and written once. To compare counts as no operation."""
    return Cost(flops=0, bytes=4 * n * itemsize)


def own_cost(n: int) -> Cost:
    """By digits of eight bits: the keys read once to count, then both four times read and written."""
    return Cost(flops=0, bytes=(4 + PASSES * 16) * n)


def tolerance(keys: np.ndarray, values: np.ndarray) -> float:
    """Nothing is computed: every element is one of the keys or values."""
    return 0.0


def arguments(keys, values, *, stream=0) -> Problem:
    """Values in the ascending order of their keys.

    Args:
        keys: a contiguous vector (n,), 0 <= n < 2^32, of int32, uint32 or float32.
        values: another one of one of these dtypes, one for each key.
        stream: the stream to work on.

    Returns a new device array (n,) of the values' dtype, without waiting for the work to be done. Equal keys keep their
    order. As NumPy sorts, -0 and 0 are equal, and so are all NaNs, which come last. `sort.sort_pairs` also returns the
    keys, which are sorted beside the values.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``values[np.argsort(keys, kind="stable")]``.

    >>> from pmpp.kernels.sort import pairs
    >>> pairs.one_sweep(np.int32([5, -1, 4]), np.float32([0.5, 0.1, 0.4])).copy_to_host()
    array([0.1, 0.4, 0.5], dtype=float32)
    """
    stream = device.as_stream(stream)
    keys = device.as_input("keys", keys, dtypes=DTYPES, ndim=1, stream=stream)
    if keys.size >= 2**32:
        raise ValueError(f"keys must be fewer than 2^32, were {keys.size}")
    values = device.as_input("values", values, dtypes=DTYPES, ndim=1, shape=keys.shape, stream=stream)
    return problem(keys, values, device.empty(values.size, values.dtype, stream=stream), stream, numbered=False)


def problem(keys, values, result, stream, numbered) -> Problem:
    """The problem of arrays that were checked. ``numbered``: the values are the numbers of the keys, and not read."""
    keys_out, turn = device.empty(keys.size, keys.dtype, stream=stream), turn_of(keys.dtype)
    return Problem(result, stream=stream, x=keys, values=values, keys_out=keys_out, turn=turn, numbered=numbered)


def numbered(x, *, stream=0) -> Problem:
    """The problem of argsort: the values are the numbers of the keys, which no array has until the first pass."""
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if x.size >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 keys, as their numbers are int32, had {x.size}")
    result = device.empty(x.size, np.int32, stream=stream)
    return problem(x, result, result, stream, numbered=True)  # what stands for the values is any array of their form


def return_both(p):
    """The ``finish`` of a problem whose sorted keys are wanted, too."""
    p.result = Pairs(p.keys_out, p.result)


def by_passes(p, passes, one_pass):
    """`ladder.by_passes` with two arrays: ``one_pass(number, source, target)``, each of keys and values."""
    source, result = Pairs(as_digits(p.x), p.values), Pairs(as_digits(p.keys_out), p.result)
    spare = Pairs(*(device.empty(x.size, x.dtype, stream=p.stream) for x in source))
    for number in range(passes):
        target = result if (passes - number) % 2 else spare
        one_pass(number, source, target)
        source = target


@cuda.jit
def split_pairs_kernel(keys, values, ones, before, keys_out, values_out):
    """``before[i]``: how many keys before number i have a one. Pairs with a zero go to the front."""
    i = np.int64(cuda.grid(1))
    if i < keys.size:
        zeros = keys.size - (before[keys.size - 1] + ones[keys.size - 1])
        at = zeros + before[i] if ones[i] else i - before[i]
        keys_out[at] = keys[i]
        values_out[at] = values[i]


@rung(bit_kernel, split_pairs_kernel)
def one_bit(p):
    """As `ladder.one_bit`: what is split by a bit is pairs. A value goes where its key goes.

    Source: PMPP 4e section 13.3.

    Leaves: 32 passes, and each moves 40 bytes for a pair.
    """
    n = p.x.size
    ones = device.empty(n, np.int32 if n < 2**31 else np.int64, stream=p.stream)

    def one_pass(number, source, target):
        bit_kernel[blocks(n, BLOCK), BLOCK, p.stream](source.keys, number, p.turn, ones)
        before = scan.vectorised(ones, exclusive=True, stream=p.stream)
        split_pairs_kernel[blocks(n, BLOCK), BLOCK, p.stream](*source, ones, before, *target)

    by_passes(p, 32, one_pass)


@cuda.jit(device=True)
def rank_and_keep(keys, number, turn, counters, gathered, places):
    """`tile.rank_and_gather`, and the place of each key is kept: its value goes to the same."""
    number = cuda.shfl_sync(FULL_WARP, number, 0)  # as there: the digits are computed once more
    mine, higher = np.uint32(cuda.threadIdx.x // 32 * BINS), np.uint32(0xFFFFFFFE << cuda.laneid)
    for item in range(ITEMS):
        digit = digit_of(keys[item], number, turn)
        peers = peers_of(digit)
        at = np.uint32(mine + digit)
        place = np.int32(counters[at] + rank_of(peers))
        cuda.syncwarp()
        if np.uint32(peers & higher) == 0:
            counters[at] = place + 1
        cuda.syncwarp()
        places[item] = np.uint32(place)
        gathered[places[item]] = keys[item]


@cuda.jit(device=True)
def load_values(values, first, count, numbered, loaded):
    """This thread's values, as `tile.load_keys`; or, if they are ``numbered``, the numbers of its keys."""
    at = np.uint32(cuda.threadIdx.x // 32 * (32 * ITEMS) + cuda.laneid)
    last = np.uint32(count - 1)
    for item in range(ITEMS):
        if numbered:
            loaded[item] = np.int32(first + np.uint64(at + item * 32)).view(values.dtype)
        else:
            loaded[item] = values[first + np.uint64(min(np.uint32(at + item * 32), last))]


@cuda.jit(max_registers=80)  # so that two blocks fit on a multiprocessor, which has 65,536
def one_sweep_pairs_kernel(x, values, out, values_out, starts, words, bit, number, turn, numbered):
    """``values`` have the dtype of the keys: their bits are only moved, so they share a buffer in shared memory."""
    thread = cuda.threadIdx.x
    tile = np.int64(next_tile(words[0], cuda.shared.array(1, np.int64)))
    counters, gathered = cuda.shared.array(COUNTERS, np.int32), cuda.shared.array(TILE, x.dtype)
    bases, ends = cuda.shared.array(BINS, np.uint32), cuda.shared.array(SLOTS, np.int32)
    keys, gap = cuda.local.array(ITEMS, x.dtype), cuda.shared.array(1, np.int32)
    places, digits = cuda.local.array(ITEMS, np.uint32), cuda.local.array(ITEMS, np.uint32)
    first = tile * TILE
    count = np.uint32(min(np.int64(TILE), x.size - first))
    load_keys(x, np.uint64(first), count, keys)
    count_in_warps(keys, number, turn, counters)
    total, before = places_of(counters, ends)
    total = leave_out_copies(x[first + count - 1], count, number, turn, total, before, gap)
    if thread < BINS:
        publish_bin(words, tile, thread, bit, PARTIAL, total)
    cuda.syncthreads()
    rank_and_keep(keys, number, turn, counters, gathered, places)
    if thread < BINS:
        earlier = look_back_bins(words, tile, thread, bit)
        publish_bin(words, tile, thread, bit, COMPLETE, earlier + total)
        bases[thread] = np.uint32(starts[thread] + earlier - before)
    load_values(values, np.uint64(first), count, numbered, keys)  # the keys are in shared memory now
    cuda.syncthreads()

    copies, begin = np.uint32(TILE - count), np.uint32(gap[0])
    for item in range(ITEMS):
        at = np.uint32(item * TILE_BLOCK + thread)
        key = gathered[at]
        digits[item] = digit_of(key, number, turn)
        if np.uint32(at - begin) >= copies:
            out[np.uint32(bases[digits[item]] + at)] = key
    cuda.syncthreads()
    for item in range(ITEMS):
        gathered[places[item]] = keys[item]
    cuda.syncthreads()
    for item in range(ITEMS):
        at = np.uint32(item * TILE_BLOCK + thread)
        if np.uint32(at - begin) >= copies:
            values_out[np.uint32(bases[digits[item]] + at)] = gathered[at]


def sweep(p, passes):
    """Sort by the last ``passes`` digits, at least one."""
    starts, tiles = starts_of(p), blocks(p.x.size, TILE)
    words, bit = words_for(tiles, p.x.size, p.stream)

    def one_pass(number, source, target):
        values, values_out = (pair.values.view(pair.keys.dtype) for pair in (source, target))
        numbered = p.numbered and number == 0
        one_sweep_pairs_kernel[tiles, TILE_BLOCK, p.stream](
            source.keys, values, target.keys, values_out, starts[number], words[number], bit, number, p.turn, numbered
        )

    by_passes(p, passes, one_pass)


@rung(clear_kernel, all_digits_kernel, starts_kernel, one_sweep_pairs_kernel)
def one_sweep(p):
    """As `ladder.one_sweep`. A value takes the way of its key: the same place in shared memory, the same digit's run.

    If the values are numbered, the first pass computes them, and none are read.

    Source: Adinets and Merrill, "Onesweep: a faster least significant digit radix sort for GPUs" (2022).
    """
    sweep(p, PASSES)


LADDER = (one_bit, one_sweep)
