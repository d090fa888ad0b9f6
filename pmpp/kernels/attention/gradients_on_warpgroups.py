"""Gradients of attention by warpgroups: in float16 or bfloat16, on Hopper.

Chapter: notebooks/87_attention_on_tensor_cores.ipynb.  PMPP 5e ch. 20.
Roof: tensor cores, float16.

The two kernels are those of `pmpp.kernels.attention.attention_gradients`, with their seven products: one has a block
for some keys and goes over all queries, the other one has a block for some queries and goes over all keys. Here
warpgroups multiply. What a block keeps lies in shared memory, as do the tiles that it goes over. Each tile serves two
products: row by row as keys of scores, and as values to be added up by weights that are in registers.

The instructions are in `pmpp.runtime.hopper` and `pmpp.runtime.hopper_registers`. They need a GPU of compute capability
9.0, and run on no other.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import attention_gradients, on_warpgroups
from pmpp.kernels.attention.attention_gradients import MOST
from pmpp.kernels.attention.ladder import LEAST, f0, grid_of, reshaped
from pmpp.kernels.attention.on_tensor_cores import padded
from pmpp.kernels.attention.on_warpgroups import (
    INSTRUCTIONS,
    KERNELS,
    MAPS,
    PANEL,
    ROWS,
    STEP,
    TEAM,
    WARP,
    after,
    check_gpu,
    check_rows,
    products,
    spreader,
    stages_of,
)
from pmpp.kernels.common import FULL_WARP, blocks, round_up
from pmpp.kernels.matmul.tensor_cores import CHUNK, copy_kernel
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    tensor_map,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_registers import fewer_registers, more_registers
from pmpp.runtime.rung import Problem, rung
from pmpp.runtime.vector import load128, widened

DTYPES = attention_gradients.DTYPES
CAPABILITY = on_warpgroups.CAPABILITY

reference = attention_gradients.reference
inputs = attention_gradients.inputs
cost = attention_gradients.cost


def arguments(gradient, q, k, v, causal=False, window=None, scale=None, *, result=None, logs=None, stream=0) -> Problem:
    """The gradients of a loss by the queries, keys and values of an attention, on a Hopper GPU.

    Args:
        gradient: the loss's gradient by the result, of the dtype and the shape of q. All arrays are in C order.
        q, k, v, causal, window, scale: as the attention was given: `on_warpgroups.arguments`.
        result: the attention's result, or None to compute it again.
        logs: float32, shape (batch, heads, queries), as `on_warpgroups.forward` returns it. None if, and only if,
            ``result`` is.
        stream: the stream to work on.

    Returns new device arrays (by q, by k, by v) of the dtype and the shapes of q, k and v, without waiting for the work
    to be done. Rounding is that of `attention_gradients`. All numbers must be finite: those of a head's neighbours in
    memory are multiplied too, by weights of 0.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of another compute capability than 9.0.
    Source: Shah et al., FlashAttention-3, 2024, appendix B.

    >>> from pmpp.kernels.attention import gradients_on_warpgroups
    >>> one = np.ones((1, 1, 2, 1), np.float16)
    >>> [x.copy_to_host().ravel().tolist() for x in gradients_on_warpgroups.warpgroup(one, one, one, one, scale=1.0)]
    [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    """
    check_gpu()
    p = attention_gradients.arguments(gradient, q, k, v, causal, window, scale, result=result, logs=logs, stream=stream)
    check_rows(p.result[0], p.result[1])
    return p


# ------------------------------------------------------------------------------------------------------- a block's work


class Tile(typing.NamedTuple):
    """What a block computes: rows of ``columns`` numbers, ROWS for each of its ``teams``, from ``keys`` rows at a time.

    In the kernel that goes over queries these ``keys`` are queries. ``flying``: whether the last products of a tile are
    still under way when those of the next tile begin. The rest is as in `on_warpgroups.Tile`.
    """

    columns: int
    keys: int
    teams: int
    stages: int
    blocks: int
    flying: bool

    @property
    def threads(self) -> int:
        return self.teams * TEAM + TEAM

    @property
    def queries(self) -> int:
        return ROWS * self.teams

    @property
    def shared(self) -> int:
        """Bytes of shared memory: two arrays of own rows, and stages of two tiles."""
        return 2 * self.columns * (2 * self.queries + 2 * self.stages * self.keys)


LANES = 16  # of a warp, for a row of `deltas_kernel`


@cuda.jit
def deltas_kernel(gradient, out, deltas):
    """The sum of gradient times result, for each query. A lane has eight numbers of a row, and sixteen have all."""
    place = cuda.grid(1)
    row, column = place // LANES, np.int64(place % LANES) * 8
    total = f0
    if row < deltas.size and column < gradient.shape[1]:
        at = np.int64(row) * gradient.shape[1] + column
        left, right = widened(load128(gradient, at)), widened(load128(out, at))
        for i in range(8):
            total += left[i] * right[i]
    for distance in (8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
    if row < deltas.size and column == 0:
        deltas[row] = total


@functools.cache
def storer(tile: Tile, kind: str) -> typing.Any:
    """A device function with which a warp stores 16 rows of sums, multiplied by a factor."""
    spread, count, sum_tiles, rounded = (
        spreader(tile.columns // 2),
        tile.columns // 2,
        tile.columns // 8,
        INSTRUCTIONS[kind][3],
    )

    @cuda.jit(device=True, forceinline=True)
    def store(sums, factor, out, first, row, rows, size):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        result = cuda.local.array(count, np.float32)
        spread(sums, 0, result)
        for half in range(2):
            at = row + 8 * half + lane // 4
            if at < rows:
                for n in range(sum_tiles):
                    if 8 * n < size:
                        word = rounded(result[4 * n + 2 * half] * factor, result[4 * n + 2 * half + 1] * factor)
                        out[first + at, 4 * n + lane % 4] = word

    return store


@functools.lru_cache(KERNELS)
def keys_kernel(tile: Tile, kind: str) -> typing.Any:
    """The kernel of the gradients by keys and values: a warpgroup has 64 keys, and goes over the queries."""
    own, rows, stages, columns, consumers = tile.queries, tile.keys, tile.stages, tile.columns, 4 * tile.teams
    own_size, size, begin_stages = np.uint32(own * columns), np.uint32(rows * columns), np.uint32(2 * own * columns)
    count, tiles, steps, nothing = rows // 2, rows // 8, rows // STEP, (f0,) * (columns // 2)
    tiles_at_once, barriers, (few, many) = 2 * stages, 2 * stages + 1, on_warpgroups.REGISTERS[tile.teams, tile.blocks]
    line_size, arrivals, per_lane = stages * rows * 2, 1 + WARP, (rows + WARP - 1) // WARP
    (score, add), spread, store, (next_stage, fetch) = (
        products(tile, kind),
        spreader(count),
        storer(tile, kind),
        stages_of(tile),
    )
    rounded, flying = INSTRUCTIONS[kind][3], tile.flying

    @cuda.jit(device=True)
    def produce(
        shared, lines, full, empty, q_map, g_map, k_map, v_map, maps, logs, deltas, group, key0, begin, end, sizes
    ):
        """A warp asks for tiles of queries and their gradients, and copies two numbers of each query itself."""
        lane = np.int64(cuda.threadIdx.x % WARP)
        at, now, parity = np.int64(cuda.blockIdx.x) * (MAPS + 16), np.uint32(0), np.uint32(0)
        if lane == 0:
            place_map(maps, at, q_map)
            place_map(maps, at + 16, g_map)
            place_map(maps, at + 32, k_map)
            place_map(maps, at + 48, v_map)
            fetch(shared, np.uint32(0), maps, at + 32, group * sizes.keys + key0, own, full, tiles_at_once)
            fetch(shared, own_size, maps, at + 48, group * sizes.keys + key0, own, full, tiles_at_once)
        for member in range(sizes.shared):
            first = (group * sizes.shared + member) * sizes.queries
            query = begin
            while query < end:
                b = np.uint32(np.uint32(2) * now)
                mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
                if lane == 0:
                    fetch(shared, np.uint32(begin_stages + b * size), maps, at, first + query, rows, full, b)
                    to = np.uint32(begin_stages + (b + np.uint32(1)) * size)
                    fetch(shared, to, maps, at + 16, first + query, rows, full, np.uint32(b + np.uint32(1)))
                for one in range(per_lane):
                    i = one * WARP + lane
                    base, delta = MOST, f0  # nothing has a weight for a query that is not there, or sees no key
                    if i < rows and query + i < sizes.queries:
                        base, delta = logs[first + query + i], deltas[first + query + i]
                        if base == LEAST:
                            base = MOST
                    if i < rows:
                        lines[(now * rows + i) * 2] = base
                        lines[(now * rows + i) * 2 + 1] = delta
                mbarrier_arrive(full, b)
                now, parity = next_stage(now, parity)
                query += rows

    @cuda.jit(device=True)
    def hide(scores, row, query, sizes):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for half in range(2):
            for n in range(tiles):
                for e in range(2):
                    away = row + 8 * half + lane // 4 - (query + 8 * n + lane % 4 * 2 + e)
                    if not sizes.low <= away < sizes.high:
                        scores[4 * n + 2 * half + e] = LEAST

    @cuda.jit(device=True)
    def weigh(scores, lines, line, scale):
        """Scores become weights. A column is of a query."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for n in range(tiles):
            left, _, right, _ = load128(lines, line + np.uint32(16 * n) + lane % np.uint32(4) * np.uint32(4))
            for half in range(2):
                at = 4 * n + 2 * half
                scores[at] = cuda.libdevice.exp2f(scores[at] * scale - left)
                scores[at + 1] = cuda.libdevice.exp2f(scores[at + 1] * scale - right)

    @cuda.jit(device=True)
    def slope(weights, slopes, lines, line):
        """Gradients by weights become gradients by scores."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for n in range(tiles):
            _, left, _, right = load128(lines, line + np.uint32(16 * n) + lane % np.uint32(4) * np.uint32(4))
            for half in range(2):
                at = 4 * n + 2 * half
                slopes[at] = weights[at] * (slopes[at] - left)
                slopes[at + 1] = weights[at + 1] * (slopes[at + 1] - right)

    @cuda.jit(device=True)
    def as_operand(numbers, words):
        for s in range(steps):
            for e in range(4):
                words[s, e] = rounded(numbers[8 * s + 2 * e], numbers[8 * s + 2 * e + 1])

    @cuda.jit(fastmath=True, launch_bounds=(tile.threads, tile.blocks))
    def keys_gradient_kernel(q_map, g_map, k_map, v_map, maps, logs, deltas, by_k, by_v, scale, factor, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        lines = cuda.shared.array(line_size, np.float32, alignment=16)  # of each query: base, delta
        full, empty = cuda.shared.array(barriers, np.uint64), cuda.shared.array(stages, np.uint64)
        tiles_of_keys = (sizes.keys + own - 1) // own
        group, key0 = cuda.blockIdx.x // tiles_of_keys, cuda.blockIdx.x % tiles_of_keys * own
        warp = np.uint32(np.uint32(cuda.threadIdx.x) // np.uint32(WARP))
        last_key = min(key0 + own, sizes.keys) - 1
        begin = max(key0 - sizes.high + 1, 0) // rows * rows
        end = min(last_key - sizes.low + 1, sizes.queries)
        if cuda.threadIdx.x == 0:
            for b in range(barriers):
                mbarrier_init(full, b, 2 if b == tiles_at_once else 1 if b % 2 else arrivals)
            for b in range(stages):
                mbarrier_init(empty, b, consumers)
        cuda.syncthreads()
        if warp >= consumers:
            fewer_registers(few)
            if warp == consumers:
                produce(
                    shared,
                    lines,
                    full,
                    empty,
                    q_map,
                    g_map,
                    k_map,
                    v_map,
                    maps,
                    logs,
                    deltas,
                    group,
                    key0,
                    begin,
                    end,
                    sizes,
                )
        else:
            more_registers(many)
            scores, slopes = cuda.local.array(count, np.float32), cuda.local.array(count, np.float32)
            weights, words = cuda.local.array((steps, 4), np.uint32), cuda.local.array((steps, 4), np.uint32)
            mine, row = np.uint32(warp // np.uint32(4) * np.uint32(ROWS * PANEL)), key0 + np.int64(warp) * 16
            first = np.uint32(cuda.threadIdx.x) % np.uint32(WARP) == 0
            now, parity, sums_k, sums_v = np.uint32(0), np.uint32(0), nothing, nothing
            before, began = now, False
            mbarrier_wait(full, tiles_at_once, 0)
            # All heads of a group in one loop: sums that are under way must not leave it.
            tiles_of_queries, query = sizes.shared * ((end - begin + rows - 1) // rows), begin
            if begin < end:
                while True:
                    b = np.uint32(np.uint32(2) * now)
                    q_tile = np.uint32(begin_stages + b * size)
                    g_tile = np.uint32(q_tile + size)
                    line = np.uint32(now * np.uint32(rows * 2))
                    mbarrier_wait(full, b, parity)
                    mbarrier_wait(full, np.uint32(b + np.uint32(1)), parity)
                    wgmma_fence()
                    found = score(shared, mine, q_tile)
                    wgmma_commit()
                    found_slopes = score(shared, np.uint32(own_size + mine), g_tile)
                    wgmma_commit()
                    found = wgmma_wait(1, found)  # and all products of the tile before
                    if flying and first and began:
                        mbarrier_arrive(empty, before)
                    spread(found, 0, scores)
                    if key0 - (query + rows - 1) < sizes.low or key0 + own - 1 - query >= sizes.high:
                        hide(scores, row, query, sizes)
                    weigh(scores, lines, line, scale)
                    as_operand(scores, weights)
                    wgmma_fence()
                    sums_v = add(shared, g_tile, weights, sums_v)
                    wgmma_commit()
                    found_slopes = wgmma_wait(1, found_slopes)
                    spread(found_slopes, 0, slopes)
                    slope(scores, slopes, lines, line)
                    as_operand(slopes, words)
                    wgmma_fence()
                    sums_k = add(shared, q_tile, words, sums_k)
                    wgmma_commit()
                    if not flying:
                        sums_v = wgmma_wait(0, sums_v)
                        sums_k = wgmma_wait(0, sums_k)
                        if first:
                            mbarrier_arrive(empty, now)
                    before, began = now, True
                    now, parity = next_stage(now, parity)
                    tiles_of_queries -= 1
                    query = query + rows if query + rows < end else begin
                    if tiles_of_queries == 0:
                        break
                if flying:
                    sums_v = wgmma_wait(0, sums_v)
                    sums_k = wgmma_wait(0, sums_k)
            store(sums_k, factor, by_k, group * sizes.keys, row, sizes.keys, sizes.size)
            store(sums_v, np.float32(1), by_v, group * sizes.keys, row, sizes.keys, sizes.size)

    return keys_gradient_kernel


@functools.lru_cache(KERNELS)
def queries_kernel(tile: Tile, kind: str) -> typing.Any:
    """The kernel of the gradient by queries: a warpgroup has 64 queries, and goes over the keys."""
    own, rows, stages, columns, consumers = tile.queries, tile.keys, tile.stages, tile.columns, 4 * tile.teams
    own_size, size, begin_stages = np.uint32(own * columns), np.uint32(rows * columns), np.uint32(2 * own * columns)
    count, tiles, steps, nothing = rows // 2, rows // 8, rows // STEP, (f0,) * (columns // 2)
    tiles_at_once, barriers, (few, many) = 2 * stages, 2 * stages + 1, on_warpgroups.REGISTERS[tile.teams, tile.blocks]
    (score, add), spread, store, (next_stage, fetch) = (
        products(tile, kind),
        spreader(count),
        storer(tile, kind),
        stages_of(tile),
    )
    rounded, flying = INSTRUCTIONS[kind][3], tile.flying

    @cuda.jit(device=True)
    def produce(shared, full, empty, q_map, g_map, k_map, v_map, maps, query, first_key, key0, end):
        at, now, parity = np.int64(cuda.blockIdx.x) * (MAPS + 16), np.uint32(0), np.uint32(0)
        place_map(maps, at, k_map)
        place_map(maps, at + 16, v_map)
        place_map(maps, at + 32, q_map)
        place_map(maps, at + 48, g_map)
        fetch(shared, np.uint32(0), maps, at + 32, query, own, full, tiles_at_once)
        fetch(shared, own_size, maps, at + 48, query, own, full, tiles_at_once)
        while key0 < end:
            mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
            for which in range(2):  # keys, and then values
                b = np.uint32(np.uint32(2) * now + np.uint32(which))
                to = np.uint32(begin_stages + b * size)
                fetch(shared, to, maps, at + 16 * which, first_key + key0, rows, full, b)
            now, parity = next_stage(now, parity)
            key0 += rows

    @cuda.jit(device=True)
    def hide(scores, row, key, sizes):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for half in range(2):
            for n in range(tiles):
                for e in range(2):
                    j = key + 8 * n + lane % 4 * 2 + e
                    away = j - (row + 8 * half + lane // 4)
                    if not sizes.low <= away < sizes.high or j >= sizes.keys:
                        scores[4 * n + 2 * half + e] = LEAST

    @cuda.jit(device=True)
    def weigh(scores, bases, scale):
        """Scores become weights. Their sum is given, so that `after` can await all of them."""
        total = f0
        for half in range(2):
            for n in range(tiles):
                for e in range(2):
                    at = 4 * n + 2 * half + e
                    scores[at] = cuda.libdevice.exp2f(scores[at] * scale - bases[half])
                    total += scores[at]
        return total

    @cuda.jit(device=True)
    def slope(weights, slopes, own_deltas, words):
        for half in range(2):
            for n in range(tiles):
                for e in range(2):
                    at = 4 * n + 2 * half + e
                    slopes[at] = weights[at] * (slopes[at] - own_deltas[half])
        for s in range(steps):
            for e in range(4):
                words[s, e] = rounded(slopes[8 * s + 2 * e], slopes[8 * s + 2 * e + 1])

    @cuda.jit(fastmath=True, launch_bounds=(tile.threads, tile.blocks))
    def queries_gradient_kernel(q_map, g_map, k_map, v_map, maps, logs, deltas, by_q, scale, factor, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(barriers, np.uint64), cuda.shared.array(stages, np.uint64)
        tiles_of_queries = (sizes.queries + own - 1) // own
        head = cuda.blockIdx.x // tiles_of_queries
        query0 = (tiles_of_queries - 1 - cuda.blockIdx.x % tiles_of_queries) * own
        warp = np.uint32(np.uint32(cuda.threadIdx.x) // np.uint32(WARP))
        at, first_key = head * sizes.queries, head // sizes.shared * sizes.keys
        last = min(query0 + own, sizes.queries) - 1
        key0, end = max(query0 + sizes.low, 0) // rows * rows, min(last + sizes.high, sizes.keys)
        if cuda.threadIdx.x == 0:
            for b in range(barriers):
                mbarrier_init(full, b, 2 if b == tiles_at_once else 1)
            for b in range(stages):
                mbarrier_init(empty, b, consumers)
        cuda.syncthreads()
        if warp >= consumers:
            fewer_registers(few)
            if warp == consumers and np.uint32(cuda.threadIdx.x) % np.uint32(WARP) == 0:
                produce(shared, full, empty, q_map, g_map, k_map, v_map, maps, at + query0, first_key, key0, end)
        else:
            more_registers(many)
            scores, slopes = cuda.local.array(count, np.float32), cuda.local.array(count, np.float32)
            words, bases = cuda.local.array((steps, 4), np.uint32), cuda.local.array(2, np.float32)
            own_deltas = cuda.local.array(2, np.float32)
            mine, row = np.uint32(warp // np.uint32(4) * np.uint32(ROWS * PANEL)), query0 + np.int64(warp) * 16
            lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
            for half in range(2):
                i = row + 8 * half + lane // 4
                bases[half], own_deltas[half] = MOST, f0
                if i < sizes.queries:
                    bases[half], own_deltas[half] = logs[at + i], deltas[at + i]
                    if bases[half] == LEAST:
                        bases[half] = MOST
            now, parity, sums = np.uint32(0), np.uint32(0), nothing
            before, began = now, False
            mbarrier_wait(full, tiles_at_once, 0)
            while key0 < end:
                b = np.uint32(np.uint32(2) * now)
                k_tile = np.uint32(begin_stages + b * size)
                mbarrier_wait(full, b, parity)
                mbarrier_wait(full, np.uint32(b + np.uint32(1)), parity)
                wgmma_fence()
                found = score(shared, mine, k_tile)
                wgmma_commit()
                found_slopes = score(shared, np.uint32(own_size + mine), np.uint32(k_tile + size))
                wgmma_commit()
                found = wgmma_wait(1, found)  # and the products of the tile before
                if flying and lane == 0 and began:
                    mbarrier_arrive(empty, before)
                spread(found, 0, scores)
                if key0 < last + sizes.low or key0 + rows > min(query0 + sizes.high, sizes.keys):
                    hide(scores, row, key0, sizes)
                after(weigh(scores, bases, scale))
                found_slopes = wgmma_wait(0, found_slopes)
                spread(found_slopes, 0, slopes)
                slope(scores, slopes, own_deltas, words)
                wgmma_fence()
                sums = add(shared, k_tile, words, sums)
                wgmma_commit()
                if not flying:
                    sums = wgmma_wait(0, sums)
                    if lane == 0:
                        mbarrier_arrive(empty, now)
                before, began = now, True
                now, parity = next_stage(now, parity)
                key0 += rows
            if flying:
                sums = wgmma_wait(0, sums)
            store(sums, factor, by_q, at, row, sizes.queries, sizes.size)

    return queries_gradient_kernel


def by_tiles(for_keys: Tile, for_queries: Tile, p: Problem) -> None:
    """A problem by the kernels of two tiles. Where rows do not begin at multiples of 16 bytes, on padded copies."""
    size, stream = round_up(p.sizes.size, CHUNK), p.stream
    whole, sizes = size == p.sizes.size, p.sizes._replace(size=size)
    given = p.gradient, p.q, p.k, p.v, p.out
    gradient, q, k, v, out = (x if whole and not device.address(x) % 16 else padded(x, size, stream) for x in given)
    deltas = device.empty(p.logs.size, np.float32, stream=stream)
    kind = p.result[0].dtype
    deltas_kernel[blocks(deltas.size * LANES, 256), 256, stream](gradient.view(kind), out.view(kind), deltas)
    results = [reshaped(x, (x.size // p.sizes.size, p.sizes.size)).view(np.uint16) for x in p.result]
    targets = results if whole else [device.empty((x.shape[0], size), np.uint16, stream=stream) for x in results]
    by_q, by_k, by_v = (x.view(np.uint32) for x in targets)
    natural = np.float32(abs(p.given_scale) if p.given_scale else 1)  # `arguments` has multiplied q by the rest

    def launch(kernel, tile, grid, rows_of_queries, rows_of_keys, *rest):
        grid = grid_of(grid)
        maps = [tensor_map(x, rows_of_queries, PANEL) for x in (q, gradient)]
        maps += [tensor_map(x, rows_of_keys, PANEL) for x in (k, v)]
        room = device.empty(grid * (MAPS + 16), np.uint64, stream=stream)
        kernel(tile, p.kind)[grid, tile.threads, stream, tile.shared](*maps, room, p.logs, deltas, *rest, sizes)

    grid = p.groups * blocks(sizes.keys, for_keys.queries)
    launch(keys_kernel, for_keys, grid, for_keys.keys, for_keys.queries, by_k, by_v, p.scale, natural)
    grid = p.heads * blocks(sizes.queries, for_queries.queries)
    launch(
        queries_kernel,
        for_queries,
        grid,
        for_queries.queries,
        for_queries.keys,
        by_q,
        p.scale,
        np.float32(p.given_scale),
    )
    if not whole:
        for target, result in zip(targets, results, strict=True):
            copy_kernel[blocks(result.size, 256), 256, stream](target, result)


NARROW = Tile(64, 64, 2, 2, 1, False), Tile(64, 128, 2, 2, 1, False)
WIDE = Tile(128, 64, 2, 2, 1, False), Tile(128, 64, 2, 2, 1, False)
NARROW_IN_FLIGHT = Tile(64, 64, 2, 3, 1, True), Tile(64, 128, 2, 3, 1, True)
# For heads of 128 no registers are left to have products for keys in flight.
WIDE_IN_FLIGHT = Tile(128, 64, 2, 3, 1, False), Tile(128, 64, 2, 3, 1, True)


@rung(deltas_kernel, keys_kernel, queries_kernel, copy_kernel)
def warpgroup(p):
    """A warpgroup has 64 keys, or 64 queries, and multiplies what lies in shared memory.

    Source: Shah et al., FlashAttention-3, 2024, appendix B.

    Leaves: a warpgroup waits for its last products before it begins the next tile.
    """
    by_tiles(*(NARROW if p.sizes.size <= PANEL else WIDE), p)


@rung(deltas_kernel, keys_kernel, queries_kernel, copy_kernel)
def in_flight(p):
    """The products of a tile are still under way when those of the next tile begin.

    A tile is read for longer then, so there is a third stage. For heads of more than 64 the kernel of the keys has no
    registers for that, and only has the third stage.
    Source: PTX ISA, "wgmma.commit_group" and "wgmma.wait_group".
    """
    by_tiles(*(NARROW_IN_FLIGHT if p.sizes.size <= PANEL else WIDE_IN_FLIGHT), p)


LADDER = (warpgroup, in_flight)
