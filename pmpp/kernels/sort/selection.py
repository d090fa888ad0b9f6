"""Selection: the k greatest keys of a vector, in descending order, and where they are.

Chapter: notebooks/42_sorting.ipynb.  PMPP 4e ch. 13; 5e ch. 14.

Who wants the best hundred of a million need not sort the million. A radix sort begins with the last digit, as it moves
all keys. A selection begins with the first one: the counts of its values say in which of them the k-th greatest key
lies. All keys with a greater digit are chosen, all with a lesser one are not, and only the others go on.

The least is to read each key once. It has to be read twice here: no key can be left out before all were counted.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.filter.tile import COMPLETE, PARTIAL, look_back_counts, publish_count
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.ladder import clear_kernel
from pmpp.kernels.scan.ladder import words_for as words_of
from pmpp.kernels.scan.look_back import next_tile
from pmpp.kernels.scan.tile import SLOTS, scan_block
from pmpp.kernels.sort import pairs
from pmpp.kernels.sort.digits import BINS, PASSES, as_digits, byte_of, ordered, turn_of
from pmpp.kernels.sort.ladder import BLOCKS_PER_SM, all_digits_kernel
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("int32", "uint32", "float32")
RESULT = np.int32  # the dtype of what the rungs return
BLOCK = 256  # threads a block
ITEMS = 16  # keys a thread of `choose_kernel`
TILE = BLOCK * ITEMS
# What is known of the k-th key after some digits: its first bits, and the same with all later ones set; how many of the
# keys between these two are among the k greatest; how many keys were chosen to go on.
LOW, HIGH, LEFT, CHOSEN, STATE = 0, 1, 2, 3, 4


def reference(x: np.ndarray, k: int) -> np.ndarray:
    """Take the greatest key that is left, k times. NaN is the greatest; of equal keys the first one comes first."""
    left, taken = list(range(x.size)), []
    for _ in range(k):
        best = left[0]
        for i in left:
            if x[i] > x[best] or (x[i] != x[i] and x[best] == x[best]):
                best = i
        taken.append(best)
        left.remove(best)
    return np.array(taken, np.int32)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, int]]:
    """Small awkward inputs: a name, and keys and k. The same every time."""
    rng = np.random.default_rng(44) if rng is None else rng

    def drawn(n: int) -> np.ndarray:
        return rng.integers(-(2**31), 2**31, n, dtype=np.int32)

    odd = np.float32([-np.inf, -1, -1e-45, -0.0, 0.0, 1e-45, 3e38, np.inf, np.nan, -np.nan])
    return {
        "empty": (drawn(0), 0),
        "one of one": (drawn(1), 1),
        "none of many": (drawn(500), 0),
        "all of a few": (drawn(33), 33),
        "one of a tile +1": (drawn(TILE + 1), 1),
        "all equal": (np.full(TILE + 9, -7, np.int32), 5),
        "few keys": (rng.integers(-2, 3, 1500).astype(np.int32), 300),
        "uint32": (rng.permutation(np.repeat(np.uint32([0, 2**31 - 1, 2**31, 2**32 - 1]), 100)), 150),
        "-0, NaN, and not finite": (rng.permutation(np.repeat(odd, 40)), 260),
    }


def cost(n: int, k: int = 0, itemsize: int = 4) -> Cost:
    """Each key read once; of each chosen one the number written. To compare counts as no operation."""
    return Cost(flops=0, bytes=n * itemsize + 4 * k)


def own_cost(n: int, k: int = 0) -> Cost:
    """The keys read to be counted, and again to be chosen."""
    return Cost(flops=0, bytes=8 * n + 4 * k)


def tolerance(x: np.ndarray, k: int) -> float:
    """Nothing is computed: every element is the number of a key."""
    return 0.0


def arguments(x, k, *, stream=0) -> Problem:
    """Where the k greatest keys of a vector are.

    Args:
        x: a contiguous vector (n,), 0 <= n < 2^31, of int32, uint32 or float32.
        k: how many keys to choose, from 0 to n.
        stream: the stream to work on.

    Returns a new device array (k,) of int32, without waiting for the work to be done: the numbers of the keys, the
    greatest first. Of equal keys the first one comes first. NaN is greater than all others, as in PyTorch. `sort.top_k`
    also returns the keys.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``np.argsort(x, kind="stable")`` of the keys in descending order, the first k.

    >>> from pmpp.kernels.sort import selection
    >>> selection.by_digits(np.int32([5, -1, 9, 4, 9]), 3).copy_to_host()
    array([2, 4, 0], dtype=int32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if x.size >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 keys, as their numbers are int32, had {x.size}")
    k = as_integer("k", k, 0, x.size)
    keys, where = device.empty(k, x.dtype, stream=stream), device.empty(k, np.int32, stream=stream)
    return Problem(where, stream=stream, x=x, k=k, keys_out=keys, turn=turn_of(x.dtype, descending=True))


@cuda.jit
def first_kernel(keys, order, keys_out, where):
    """The first keys of a sorted vector, and their numbers."""
    i = cuda.grid(1)
    if i < where.size:
        keys_out[i], where[i] = keys[i], order[i]


@rung(first_kernel, pairs.one_sweep_pairs_kernel)
def by_sorting(p):
    """Sort all keys with their numbers, and take the first k.

    Leaves: a pair of 8 bytes is read and written four times, to throw nearly all of them away.
    """
    q = pairs.numbered(p.x, stream=p.stream)
    q.turn = p.turn
    pairs.one_sweep.launch(q)
    first_kernel[blocks(p.k, BLOCK), BLOCK, p.stream](q.keys_out, q.result, p.keys_out, p.result)


@cuda.jit
def narrow_kernel(counts, number, k, state):
    """Which value of this digit the k-th key has: ``counts`` of the keys that agree in all digits before."""
    d = cuda.threadIdx.x
    left = np.int64(k) if number == PASSES - 1 else state[LEFT]
    before, _ = scan_block(SUM, np.int64(0), counts[d], cuda.shared.array(SLOTS, np.int64))
    if before < left <= before + counts[d]:  # of one thread alone
        low = (state[LOW] if number < PASSES - 1 else np.int64(0)) | np.int64(d) << np.int64(8 * number)
        state[LOW], state[HIGH] = low, low | (np.int64(1) << np.int64(8 * number)) - 1
        state[LEFT] = left - before


@cuda.jit
def count_kernel(keys, state, number, turn, counts):
    """Of the chosen keys that agree with the k-th one in all digits before, how many have each value of this digit."""
    mine = cuda.shared.array(BINS, np.int32)
    thread = cuda.threadIdx.x
    mine[thread] = 0
    cuda.syncthreads()
    for i in range(np.int64(cuda.grid(1)), state[CHOSEN], cuda.gridsize(1)):
        bits = ordered(keys[i], turn)
        if state[LOW] <= bits <= state[HIGH]:
            cuda.atomic.add(mine, byte_of(bits, number), 1)
    cuda.syncthreads()
    if mine[thread]:
        cuda.atomic.add(counts, thread, mine[thread])


ALL, LESS, EQUAL = 0, 1, 2  # what `choose_kernel` chooses: up to HIGH; before LOW; and what is from LOW to HIGH


@cuda.jit
def choose_kernel(x, numbers, keys_out, where, words, state, wanted, turn):
    """Some of the keys and their numbers, in their order, as `filter.single_pass` keeps elements.

    ``wanted`` is ALL for keys of ``x`` that go on, whose number is their place. Of those it is LESS for keys that are
    surely among the k greatest, and then EQUAL for as many of the keys that equal the k-th one as are left.
    """
    thread, n = cuda.threadIdx.x, np.int64(x.size) if wanted == ALL else state[CHOSEN]
    tile = np.int64(next_tile(words, cuda.shared.array(1, np.int64)))
    if tile * TILE >= n:  # the whole block, and so do all later ones
        return
    first = tile * TILE + np.int64(thread) * ITEMS
    low = np.int64(0) if wanted < EQUAL else state[LOW]
    high = state[LOW] - 1 if wanted == LESS else state[HIGH]
    chosen = np.uint32(0)
    for item in range(ITEMS):
        if first + item < n:
            bits = np.int64(ordered(x[first + item], turn))
            if low <= bits <= high:
                chosen = np.uint32(chosen | np.uint32(1 << item))
    own = np.int32(cuda.popc(chosen))
    before, total = scan_block(SUM, np.int32(0), own, cuda.shared.array(SLOTS, np.int32))
    start = cuda.shared.array(1, np.int64)
    if thread < 32:
        if thread == 0:
            publish_count(words, tile, PARTIAL, total)
        earlier = look_back_counts(words, tile)
        if thread == 0:
            publish_count(words, tile, COMPLETE, earlier + total)
            start[0] = earlier
            if wanted == ALL and (tile + 1) * TILE >= n:
                state[CHOSEN] = earlier + total
    cuda.syncthreads()
    at = start[0] + before + (where.size - state[LEFT] if wanted == EQUAL else np.int64(0))
    for item in range(ITEMS):
        if chosen >> np.uint32(item) & np.uint32(1) and at < where.size:
            keys_out[at] = x[first + item]
            where[at] = first + item if wanted == ALL else numbers[first + item]
            at += 1


@rung(clear_kernel, all_digits_kernel, narrow_kernel, choose_kernel, count_kernel)
def by_digits(p):
    """Count the first digit, and choose the keys that may be among the k greatest. Of these alone count the next ones.

    When all digits of the k-th key are known, the chosen keys are chosen from again, and these k are sorted.

    Source: Alabi, Blanchard, Gordon and Steinbach, "Fast k-selection algorithms for graphics processing units" (2012).
    """
    x, n, stream = as_digits(p.x), p.x.size, p.stream
    grid = device.limits()["multiprocessors"] * BLOCKS_PER_SM
    counts, state = device.empty((PASSES, BINS), np.int64, stream=stream), device.empty(STATE, np.int64, stream=stream)

    def choose(source, numbers, keys, where, wanted):
        tiles = blocks(n, TILE)
        words = words_of(tiles, stream)
        choose_kernel[tiles, BLOCK, stream](source, numbers, keys, where, words, state, wanted, p.turn)

    clear_kernel[blocks(counts.size, BLOCK), BLOCK, stream](counts.reshape(-1))
    resident = max(grid, blocks(n, 2**19))
    all_digits_kernel[min(blocks(n, 16 * BINS), resident), BINS, stream](x, counts, p.turn)
    narrow_kernel[1, BINS, stream](counts[PASSES - 1], PASSES - 1, p.k, state)
    keys, numbers = device.empty(n, x.dtype, stream=stream), device.empty(n, np.int32, stream=stream)
    choose(x, numbers, keys, numbers, ALL)
    clear_kernel[blocks(counts.size, BLOCK), BLOCK, stream](counts.reshape(-1))
    for number in range(PASSES - 2, -1, -1):
        count_kernel[min(blocks(n, 4 * BLOCK), grid), BLOCK, stream](keys, state, number, p.turn, counts[number])
        narrow_kernel[1, BINS, stream](counts[number], number, p.k, state)

    found, where = device.empty(p.k, x.dtype, stream=stream), device.empty(p.k, np.int32, stream=stream)
    choose(keys, numbers, found, where, LESS)
    choose(keys, numbers, found, where, EQUAL)
    q = pairs.problem(found.view(p.x.dtype), where, p.result, stream, numbered=False).replace(keys_out=p.keys_out)
    q.turn = p.turn
    pairs.one_sweep.launch(q)


LADDER = (by_sorting, by_digits)
