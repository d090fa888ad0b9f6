"""Scan: the running sum, or the running maximum, of a vector.

Chapter: notebooks/34_scan.ipynb.  PMPP 4e ch. 11.

Each element is read once and written once, so no kernel can be faster than a copy. The difficulty is that each element
of the result needs all elements before it. A block can quickly scan the part of the vector that it loads, its tile. But
it must still learn the total of everything before the tile.

This file has the kernels and rungs. What a block does within its tile, from `coarsened` on, is in
`pmpp.kernels.scan.tile`. How tiles learn from each other while they run is in `pmpp.kernels.scan.look_back`.
`pmpp.kernels.scan.segmented` is built from the same functions.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.reduction.ladder import MAX, SUM, combine, warp_combine
from pmpp.kernels.scan.eights import HELD, ROW, VECTORS, load_eights, scan_eights, store_eights
from pmpp.kernels.scan.look_back import (
    COMPLETE,
    PARTIAL,
    look_back,
    look_back_halves,
    look_back_words,
    next_tile,
    publish,
    publish_halves,
    publish_word,
)
from pmpp.kernels.scan.pairs import ROW as ROW_OF_PAIRS
from pmpp.kernels.scan.pairs import load_four_pairs, scan_pair, store_pair
from pmpp.kernels.scan.tile import (
    BLOCK,
    COARSE,
    SLOTS,
    TILE,
    load_four_rows,
    load_tile,
    scan_block,
    scan_four,
    scan_run,
    scan_warps,
    store_four,
    store_tile,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import widened

DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
SHORT = DTYPES[4:]  # combined in float32, and rounded once
OPERATORS = {"sum": SUM, "max": MAX}
TWICE = 2 * BLOCK  # elements per block, in `brent_kung`
# Threads per block in the last rung. With more, tiles are larger, so fewer tiles look back. With fewer, a barrier waits
# for fewer warps. No record compares other numbers.
VECTOR_BLOCK = 512
# 128-bit vectors per thread: VECTORS. More keep more bytes in flight, and take more registers. `scan_rows` is written
# for four.
VECTOR_TILE = VECTOR_BLOCK * VECTORS * 4  # a vector is 4 elements of 32 bits
EIGHTS_TILE = VECTOR_BLOCK * VECTORS * 8  # or 8 of 16 bits
PAIRS_TILE = VECTOR_BLOCK * VECTORS * 2  # or 2 of 64 bits


def reference(x: np.ndarray, op: str = "sum", *, exclusive: bool = False) -> np.ndarray:
    """The scan of ``x``, one element after another: sums in float64 or int64, a maximum in the dtype of ``x``.

    Element i combines x[0] to x[i], or to x[i - 1] if ``exclusive``. A NaN makes every later element NaN.
    """
    running = identity_of(op, x.dtype)
    if op == "sum":
        running = np.int64(0) if x.dtype.kind == "i" else np.float64(0)
    out = np.empty(x.size, type(running))
    with np.errstate(all="ignore"):
        for i, value in enumerate(x):
            if exclusive:
                out[i] = running
            if op == "sum":
                running = running + type(running)(value)
            elif value > running or value != value:
                running = value
            if not exclusive:
                out[i] = running
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward inputs: a name, and the vector ``(x,)``."""
    rng = np.random.default_rng(11) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "two": 2, "a warp and one": 33}
    for name, n in {"a block": BLOCK, "a tile": TILE, "a vector tile": VECTOR_TILE}.items():
        sizes |= {f"{name} {d:+}": n + d for d in (-1, 0, 1)}
    sizes["40 tiles and a bit"] = 40 * TILE + 77  # look-back sees 32 tiles at a time
    made = {name: rng.integers(-9, 10, n).astype(np.float32) for name, n in sizes.items()}
    made["float64"] = rng.standard_normal(3 * TILE + 1)
    made["int32"] = rng.integers(-99, 100, 3 * TILE + 1, dtype=np.int32)
    made["int64"] = rng.integers(-(2**50), 2**50, 3 * TILE + 1, dtype=np.int64)
    for dtype in known(SHORT):
        made[f"{dtype}"] = rng.standard_normal(2 * TILE + 3).astype(dtype)
        made[f"{dtype}, ones"] = np.ones(TILE + 9, dtype)  # in 16 bits 2048 + 1 is 2048, or 256 + 1 is 256
        made[f"{dtype}, not finite"] = np.where(np.arange(700) == 400, np.nan, -np.inf).astype(dtype)
    made["real numbers"] = rng.standard_normal(3 * TILE + 5).astype(np.float32)
    made["all negative"] = -rng.random(TILE + 9, dtype=np.float32) - 1  # a max that starts from 0 is wrong here
    made["a jump at the start"] = np.r_[1e8, np.full(TILE + 9, 1e-3)].astype(np.float32)
    made["infinity late"] = np.where(np.arange(TILE + 9) == TILE, np.inf, 1).astype(np.float32)
    made["NaN in the second tile"] = np.where(np.arange(3 * TILE) == TILE + 7, np.nan, 1).astype(np.float32)
    return {name: (x,) for name, x in made.items()}


def cost(n: int, itemsize: int = 4) -> Cost:
    """``n - 1`` operations; ``x`` read once and the result written once."""
    return Cost(flops=max(n - 1, 0), bytes=2 * n * itemsize)


def identity_of(op: str, dtype: np.dtype) -> typing.Any:
    """The value that changes no other when combined with it.

    It is 0 for a sum; for a maximum -inf, or the least integer of the dtype.
    """
    if op == "sum":
        return dtype.type(0)
    return dtype.type(np.iinfo(dtype).min if dtype.kind == "i" else -np.inf)


def arguments(x, op="sum", *, exclusive=False, stream=0) -> Problem:
    """The running sum, or the running maximum, of a vector.

    Args:
        x: a contiguous vector (n,) of float32, float64, int32, int64, float16 or bfloat16.
        op: "sum" or "max".
        exclusive: True if element i of the result combines x[0] to x[i - 1]; element 0 is then the identity (0 for a
            sum; for a maximum -inf, or the least integer of the dtype). False if element i combines x[0] to x[i].
        stream: the stream to work on.

    Returns a new device array (n,) of ``x``'s dtype, without waiting for the work to be done. Sums of integers wrap
    around. A NaN makes every later element NaN. Numbers of 16 bits are added up in float32, and each result is rounded
    once; a sum that is too large becomes infinity. A float sum is not added up in NumPy's order, so its last bits may
    differ from NumPy's. With `single_pass` and `vectorised` the order depends on timing, so on a GPU two calls may
    differ in the last bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import scan
    >>> scan.vectorised(np.int32([3, 1, 4])).copy_to_host()
    array([3, 4, 8], dtype=int32)
    >>> scan.vectorised(np.int32([3, 1, 4]), exclusive=True).copy_to_host()
    array([0, 3, 4], dtype=int32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be 'sum' or 'max', was {op!r}")
    exclusive = as_flag("exclusive", exclusive)
    out = device.empty(x.size, x.dtype, stream=stream)
    # Of the dtype that is combined in; only the dtype counts.
    wide = device.empty(1, np.float32, stream=stream) if x.dtype.itemsize == 2 else x
    identity = identity_of(op, wide.dtype)
    return Problem(out, stream=stream, x=x, op=OPERATORS[op], identity=identity, exclusive=exclusive, wide=wide)


# ------------------------------------------------------------- three launches: scan the tiles, scan their totals, add


@cuda.jit
def add_kernel(scanned, out, before, op, tile):
    """Combine each element of a scanned tile with what came before the tile."""
    first = np.int64(cuda.blockIdx.x) * tile
    i = first + cuda.threadIdx.x
    end = min(first + tile, out.size)
    start = before[cuda.blockIdx.x]
    while i < end:
        out[i] = combine(op, start, scanned[i])
        i += cuda.blockDim.x


def scan_by_tiles(kernel, tile, p):
    """Scan ``p.x`` into ``p.result`` with a kernel that scans each tile by itself and stores its total.

    The totals are scanned in the same way, exclusively: entry t is then what came before tile t. Of 16-bit numbers the
    scanned tiles are float32, so that nothing is rounded before the last addition.
    """
    tiles, kind = blocks(p.x.size, tile), p.wide.dtype
    totals = device.empty(tiles, kind, stream=p.stream)
    short = p.result.dtype != kind
    scanned = device.empty(p.x.size, kind, stream=p.stream) if short else p.result
    kernel[tiles, BLOCK, p.stream](p.x, scanned, totals, p.op, p.identity, p.exclusive)
    if tiles > 1 or short:
        before = device.empty(tiles, kind, stream=p.stream)
        scan_by_tiles(kernel, tile, p.replace(x=totals, result=before, exclusive=True))
        add_kernel[tiles, BLOCK, p.stream](scanned, p.result, before, p.op, tile)


@cuda.jit
def kogge_stone_kernel(x, out, totals, op, identity, exclusive):
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    scanned = cuda.shared.array(BLOCK, out.dtype)
    scanned[thread] = widened(x[i]) if i < x.size else identity
    cuda.syncthreads()

    distance = 1
    while distance < BLOCK:
        value = scanned[thread]
        if thread >= distance:
            value = combine(op, scanned[thread - distance], value)
        cuda.syncthreads()  # all have read before any writes
        scanned[thread] = value
        cuda.syncthreads()
        distance *= 2

    if i < x.size:
        if exclusive:
            out[i] = scanned[thread - 1] if thread > 0 else identity
        else:
            out[i] = scanned[thread]
    if thread == BLOCK - 1:
        totals[cuda.blockIdx.x] = scanned[thread]


@rung(kogge_stone_kernel, add_kernel)
def kogge_stone(p):
    """Each element combines with the one 1 place before it, then 2, then 4: after log n steps all are combined.

    Source: Kogge and Stone, IEEE Trans. Computers C-22 (1973); PMPP 4e section 11.2, and 11.6 for many blocks.

    Leaves: n log n operations where n are enough, and two barriers for each step.
    """
    scan_by_tiles(kogge_stone_kernel, BLOCK, p)


@cuda.jit
def brent_kung_kernel(x, out, totals, op, identity, exclusive):
    thread = cuda.threadIdx.x
    first = np.int64(cuda.blockIdx.x) * TWICE + thread
    scanned = cuda.shared.array(TWICE, out.dtype)
    scanned[thread] = widened(x[first]) if first < x.size else identity
    scanned[thread + BLOCK] = widened(x[first + BLOCK]) if first + BLOCK < x.size else identity
    cuda.syncthreads()

    distance = 1
    while distance <= BLOCK:  # up the tree: totals of 2, 4, 8, ... elements
        last = (thread + 1) * 2 * distance - 1
        if last < TWICE:
            scanned[last] = combine(op, scanned[last - distance], scanned[last])
        cuda.syncthreads()
        distance *= 2
    distance = BLOCK // 2
    while distance > 0:  # and down: each total goes to elements that lack it
        last = (thread + 1) * 2 * distance - 1
        if last + distance < TWICE:
            scanned[last + distance] = combine(op, scanned[last], scanned[last + distance])
        cuda.syncthreads()
        distance //= 2

    for k in range(2):
        element = thread + k * BLOCK
        i = first + k * BLOCK
        if i < x.size:
            if exclusive:
                out[i] = scanned[element - 1] if element > 0 else identity
            else:
                out[i] = scanned[element]
    if thread == 0:
        totals[cuda.blockIdx.x] = scanned[TWICE - 1]


@rung(brent_kung_kernel, add_kernel)
def brent_kung(p):
    """Totals of 2, 4, 8, ... elements go up a tree, then down again to the elements that lack them: 2n operations.

    Source: Brent and Kung, "A regular layout for parallel adders" (1982); PMPP 4e section 11.4.

    Leaves: twice as many steps, most threads idle in most of them, and strides that put all lanes into one bank.
    """
    scan_by_tiles(brent_kung_kernel, TWICE, p)


@cuda.jit
def coarsened_kernel(x, out, totals, op, identity, exclusive):
    thread = cuda.threadIdx.x
    first = np.int64(cuda.blockIdx.x) * TILE
    scanned = cuda.shared.array(TILE, out.dtype)
    load_tile(x, first, identity, scanned)
    total = scan_run(op, scanned)  # 1: each thread scans its own elements

    ends = cuda.shared.array(BLOCK, out.dtype)
    ends[thread] = total
    cuda.syncthreads()
    distance = 1
    while distance < BLOCK:  # 2: the block scans the threads' totals
        if thread >= distance:
            total = combine(op, ends[thread - distance], total)
        cuda.syncthreads()
        ends[thread] = total
        cuda.syncthreads()
        distance *= 2

    before = ends[thread - 1] if thread > 0 else identity  # 3: each thread adds what came before its elements
    store_tile(out, first, op, before, identity, scanned, exclusive)
    if thread == BLOCK - 1:
        totals[cuda.blockIdx.x] = total


@rung(coarsened_kernel, add_kernel)
def coarsened(p):
    """Each thread scans 21 elements by itself, so the parallel scan with its extra work is 21 times shorter.

    Source: PMPP 4e section 11.5.

    Leaves: the scan of the 256 totals of the threads takes eight steps with two barriers each.
    """
    scan_by_tiles(coarsened_kernel, TILE, p)


@cuda.jit
def shuffle_kernel(x, out, totals, op, identity, exclusive):
    first = np.int64(cuda.blockIdx.x) * TILE
    scanned = cuda.shared.array(TILE, out.dtype)
    load_tile(x, first, identity, scanned)
    before, total = scan_block(op, identity, scan_run(op, scanned), cuda.shared.array(SLOTS, out.dtype))
    store_tile(out, first, op, before, identity, scanned, exclusive)
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = total


@rung(shuffle_kernel, add_kernel)
def shuffle(p):
    """Lanes pass values from register to register; warps store one total each. The block's scan has two barriers.

    Source: CUDA C++ programming guide, "Warp shuffle functions"; Sengupta, Harris and Garland, NVR-2008-003.

    Leaves: each element passes through device memory four times. First it is read, scanned and written. Then it is read
    again, combined with what came before its tile, and written again.
    """
    scan_by_tiles(shuffle_kernel, TILE, p)


# ------------------------------------------------------------------ three launches: add up the tiles, scan, scan again


@cuda.jit
def totals_kernel(x, totals, op, identity):
    """The total of each tile."""
    first = np.int64(cuda.blockIdx.x) * TILE + cuda.threadIdx.x
    total = identity
    for k in range(COARSE):
        i = first + k * BLOCK
        if i < x.size:
            total = combine(op, total, widened(x[i]))
    total = warp_combine(op, total)
    _, total = scan_warps(op, identity, cuda.shfl_sync(FULL_WARP, total, 0), cuda.shared.array(SLOTS, totals.dtype))
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x] = total


@cuda.jit
def scan_from_kernel(x, out, starts, op, identity, exclusive):
    """Scan each tile, beginning with the total of what came before it."""
    first = np.int64(cuda.blockIdx.x) * TILE
    scanned = cuda.shared.array(TILE, starts.dtype)
    load_tile(x, first, identity, scanned)
    before, _ = scan_block(op, identity, scan_run(op, scanned), cuda.shared.array(SLOTS, starts.dtype))
    start = starts[cuda.blockIdx.x]
    store_tile(out, first, op, combine(op, start, before), start, scanned, exclusive)


@rung(totals_kernel, shuffle_kernel, scan_from_kernel)  # and add_kernel, if the totals do not fit into one tile
def hierarchical(p):
    """Totals of tiles are found first, so each tile is scanned from its start value: two reads and one write.

    Source: Merrill and Grimshaw, "Parallel scan for stream architectures" (2009), reduce-then-scan.

    Leaves: ``x`` is still read twice: once for the totals, and once to be scanned.
    """
    tiles = blocks(p.x.size, TILE)
    totals, before = (device.empty(tiles, p.wide.dtype, stream=p.stream) for _ in range(2))
    totals_kernel[tiles, BLOCK, p.stream](p.x, totals, p.op, p.identity)
    scan_by_tiles(shuffle_kernel, TILE, p.replace(x=totals, result=before, exclusive=True))
    scan_from_kernel[tiles, BLOCK, p.stream](p.x, p.result, before, p.op, p.identity, p.exclusive)


# ------------------------------------------------------------------------------- one launch: tiles talk to each other


@cuda.jit
def clear_kernel(words):
    i = cuda.grid(1)
    if i < words.size:
        words[i] = 0


def words_for(tiles: int, stream: typing.Any, each: int = 1) -> typing.Any:
    """64-bit words: the first counts the tiles handed out, then each tile has its own. All are 0, which means NOTHING.

    A single tile uses none, so they are not set.
    """
    words = device.empty(each * tiles + 1, np.int64, stream=stream)
    if tiles > 1:
        clear_kernel[blocks(words.size, BLOCK), BLOCK, stream](words)
    return words


@cuda.jit
def single_pass_kernel(x, out, states, values, op, identity, exclusive):
    tile = next_tile(states, cuda.shared.array(1, np.int64))
    first = tile * TILE
    scanned = cuda.shared.array(TILE, values.dtype)
    load_tile(x, first, identity, scanned)
    before, total = scan_block(op, identity, scan_run(op, scanned), cuda.shared.array(SLOTS, values.dtype))

    start = cuda.shared.array(1, values.dtype)
    if cuda.threadIdx.x < 32:
        if cuda.threadIdx.x == 0:
            publish(states, values, tile, PARTIAL, total)
        earlier = look_back(states, values, tile, op, identity)
        if cuda.threadIdx.x == 0:
            publish(states, values, tile, COMPLETE, combine(op, earlier, total))
            start[0] = earlier
    cuda.syncthreads()
    store_tile(out, first, op, combine(op, start[0], before), start[0], scanned, exclusive)


@rung(clear_kernel, single_pass_kernel)
def single_pass(p):
    """Each tile publishes its total and looks back at those before it, while they run, so ``x`` is read once.

    Source: Merrill and Garland, "Single-pass parallel prefix scan with decoupled look-back", NVR-2016-002.

    Leaves: a load brings only one element. To pass on one number, the writer and the reader each need a fence and two
    memory accesses.
    """
    tiles = blocks(p.x.size, TILE)
    values = device.empty((2, tiles), p.wide.dtype, stream=p.stream)
    states = words_for(tiles, p.stream)
    single_pass_kernel[tiles, BLOCK, p.stream](p.x, p.result, states, values, p.op, p.identity, p.exclusive)


# --------------------------------------------------------------------------------------------- 128 bits at a time


@cuda.jit(device=True, forceinline=True)
def scan_rows(x, out, words, op, identity, exclusive, aligned):
    """Each warp scans four rows of 128 elements in registers, and stores one number in shared memory."""
    tile = next_tile(words, cuda.shared.array(1, np.int64))
    whole = aligned and (tile + 1) * VECTOR_TILE <= x.size
    i = tile * VECTOR_TILE + cuda.threadIdx.x // 32 * (128 * VECTORS) + 4 * cuda.laneid
    a, b, c, d = load_four_rows(x, i, identity, whole)
    a, end_a = scan_four(op, identity, a, out)
    b, end_b = scan_four(op, end_a, b, out)
    c, end_c = scan_four(op, end_b, c, out)
    d, end_d = scan_four(op, end_c, d, out)
    before, total = scan_warps(op, identity, end_d, cuda.shared.array(SLOTS, out.dtype))

    # The total of this tile, the total of all before it, and the total up to its end. The shared array casts them back
    # to x's dtype: in Numba the sum of two int32 is an int64, which leaves no room in the word for the state.
    tiles = cuda.shared.array(3, out.dtype)
    if cuda.threadIdx.x < 32:
        if cuda.threadIdx.x == 0:
            tiles[0] = total
            publish_word(words, tile, PARTIAL, tiles[0])
        earlier = look_back_words(words, tile, op, identity, out)
        if cuda.threadIdx.x == 0:
            tiles[1] = earlier
            tiles[2] = combine(op, earlier, total)
            publish_word(words, tile, COMPLETE, tiles[2])
    cuda.syncthreads()
    before = combine(op, tiles[1], before)
    store_four(out, i, op, before, before, a, exclusive, whole)
    store_four(out, i + 128, op, before, combine(op, before, end_a), b, exclusive, whole)
    store_four(out, i + 256, op, before, combine(op, before, end_b), c, exclusive, whole)
    store_four(out, i + 384, op, before, combine(op, before, end_c), d, exclusive, whole)


@cuda.jit(max_registers=40)  # for three blocks of 512 threads on a multiprocessor
def vectorised_kernel(x, out, words, op, identity, exclusive, aligned):
    if op == SUM:  # the operator is a constant in each call, so the compiled code does not test it for each element
        scan_rows(x, out, words, SUM, identity, exclusive, aligned)
    else:
        scan_rows(x, out, words, MAX, identity, exclusive, aligned)


@cuda.jit(device=True, forceinline=True)
def scan_rows_of_eights(x, out, words, op, identity, exclusive, aligned):
    """As `scan_rows`, of 16-bit numbers: float32 in registers, and in what a tile passes on."""
    values, sums = cuda.local.array(HELD, np.float32), cuda.shared.array(3, np.float32)
    tile = next_tile(words, cuda.shared.array(1, np.int64))
    whole = aligned and (tile + 1) * EIGHTS_TILE <= x.size
    i = tile * EIGHTS_TILE + cuda.threadIdx.x // 32 * (ROW * VECTORS) + 8 * cuda.laneid
    load_eights(values, x, i, identity, whole)
    end = identity
    for k in range(VECTORS):
        end = scan_eights(values, k, op, end)
    before, total = scan_warps(op, identity, end, cuda.shared.array(SLOTS, np.float32))
    if cuda.threadIdx.x < 32:
        if cuda.threadIdx.x == 0:
            publish_word(words, tile, PARTIAL, total)
        earlier = look_back_words(words, tile, op, identity, sums)
        if cuda.threadIdx.x == 0:
            sums[1] = earlier
            publish_word(words, tile, COMPLETE, combine(op, earlier, total))
    cuda.syncthreads()
    before = combine(op, sums[1], before)
    begin = before
    for k in range(VECTORS):
        begin = store_eights(values, k, out, i + k * ROW, op, before, begin, exclusive, whole)


@cuda.jit(max_registers=64)  # a thread has 32 numbers in registers, so two blocks fit on a multiprocessor
def eights_kernel(x, out, words, op, identity, exclusive, aligned):
    if op == SUM:
        scan_rows_of_eights(x, out, words, SUM, identity, exclusive, aligned)
    else:
        scan_rows_of_eights(x, out, words, MAX, identity, exclusive, aligned)


@cuda.jit(device=True, forceinline=True)
def scan_rows_of_pairs(x, out, words, op, identity, exclusive, aligned):
    """As `scan_rows`, of 64-bit numbers, each of which a tile passes on in two words."""
    tile = next_tile(words, cuda.shared.array(1, np.int64))
    whole = aligned and (tile + 1) * PAIRS_TILE <= x.size
    i = tile * PAIRS_TILE + cuda.threadIdx.x // 32 * (ROW_OF_PAIRS * VECTORS) + 2 * cuda.laneid
    a, b, c, d = load_four_pairs(x, i, identity, whole)
    a, end_a = scan_pair(op, identity, a)
    b, end_b = scan_pair(op, end_a, b)
    c, end_c = scan_pair(op, end_b, c)
    d, end_d = scan_pair(op, end_c, d)
    before, total = scan_warps(op, identity, end_d, cuda.shared.array(SLOTS, out.dtype))
    start = cuda.shared.array(1, out.dtype)
    if cuda.threadIdx.x < 32:
        if cuda.threadIdx.x == 0:
            publish_halves(words, tile, PARTIAL, total)
        earlier = look_back_halves(words, tile, op, identity, out)
        if cuda.threadIdx.x == 0:
            publish_halves(words, tile, COMPLETE, combine(op, earlier, total))
            start[0] = earlier
    cuda.syncthreads()
    before = combine(op, start[0], before)
    store_pair(out, i, op, before, before, a, exclusive, whole)
    store_pair(out, i + ROW_OF_PAIRS, op, before, combine(op, before, end_a), b, exclusive, whole)
    store_pair(out, i + 2 * ROW_OF_PAIRS, op, before, combine(op, before, end_b), c, exclusive, whole)
    store_pair(out, i + 3 * ROW_OF_PAIRS, op, before, combine(op, before, end_c), d, exclusive, whole)


@cuda.jit(max_registers=40)  # as `vectorised_kernel`
def pairs_kernel(x, out, words, op, identity, exclusive, aligned):
    if op == SUM:
        scan_rows_of_pairs(x, out, words, SUM, identity, exclusive, aligned)
    else:
        scan_rows_of_pairs(x, out, words, MAX, identity, exclusive, aligned)


@rung(clear_kernel, vectorised_kernel, eights_kernel, pairs_kernel)
def vectorised(p):
    """Four 128-bit loads per thread are in flight at once, and what a tile publishes fits into one word.

    Of float16 and bfloat16 a load brings eight. Of float64 and int64 it brings two. They leave no room for the state
    beside them, so a tile publishes two words, each with one half of the number and the state.
    """
    by_bytes = {2: (eights_kernel, EIGHTS_TILE), 4: (vectorised_kernel, VECTOR_TILE), 8: (pairs_kernel, PAIRS_TILE)}
    kernel, tile = by_bytes[p.x.dtype.itemsize]
    tiles = blocks(p.x.size, tile)
    words = words_for(tiles, p.stream, 2 if kernel is pairs_kernel else 1)
    aligned = device.address(p.x) % 16 == 0
    kernel[tiles, VECTOR_BLOCK, p.stream](p.x, p.result, words, p.op, p.identity, p.exclusive, aligned)


LADDER = (kogge_stone, brent_kung, coarsened, shuffle, hierarchical, single_pass, vectorised)
