"""Gradients of attention: what queries, keys and values change in a loss, in float16 or bfloat16 on tensor cores.

Chapter: notebooks/87_attention_on_tensor_cores.ipynb.  PMPP 5e ch. 20.
Roof: tensor cores, float16.

With scores s, weights w = softmax(s) and results o = w v, and with g the gradient of the loss by o:

    dv = w^T g        dw = g v^T        ds = w * (dw - rowsum(g * o))        dq = scale ds k        dk = scale ds^T q

The weights are as many as the scores, so they are not kept but computed again. That takes one number of each query from
the forward pass, the logarithm of its sum: w = 2^(s - log). dk and dv are sums over queries, and dq is one over keys.
One kernel has a block for some keys and goes over all queries; another one has a block for some queries and goes over
all keys. Both compute the weights, so there are seven products where five would do. But no two blocks add to the same
element: no atomics, and the same bits in every run.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import ladder, on_tensor_cores
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, f0, grid_of, reshaped
from pmpp.kernels.attention.on_tensor_cores import INSTRUCTIONS, KERNELS, STEP, Tile, operands, padded
from pmpp.kernels.common import blocks, round_up, warp_sum
from pmpp.kernels.matmul.tensor_cores import CHUNK, WARP, copy_kernel
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.matrix import commit_copies, load32, wait_copies
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import widened

DTYPES = on_tensor_cores.DTYPES
CAPABILITY = on_tensor_cores.CAPABILITY
MOST = np.float32(np.inf)


# --------------------------------------------------------------------------------------------------------- definition


def reference(
    gradient: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients by q, k and v in float64, one head after another."""
    gradient, q, k, v = (x.astype(np.float64) for x in (gradient, q, k, v))
    heads, queries, size = q.shape[1:]
    keys, shared = k.shape[2], heads // max(k.shape[1], 1)
    scale = 1 / math.sqrt(size) if scale is None else float(scale)
    low, high = ladder.limits(queries, keys, causal, window)
    away = np.arange(keys)[None] - np.arange(queries)[:, None]
    seen = (low <= away) & (away < high)
    found = tuple(np.zeros(x.shape) for x in (q, k, v))
    for b, h in np.ndindex(q.shape[:2]) if keys else ():
        own, key, value = q[b, h], k[b, h // shared], v[b, h // shared]
        scores = np.where(seen, scale * own @ key.T, -np.inf)
        highest = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - np.where(highest == -np.inf, 0, highest))
        total = weights.sum(axis=1, keepdims=True)
        weights /= np.where(total == 0, 1, total)
        by_weights = gradient[b, h] @ value.T
        by_scores = weights * (by_weights - (weights * by_weights).sum(axis=1, keepdims=True))
        found[0][b, h] = scale * by_scores @ key
        found[1][b, h // shared] += scale * by_scores.T @ own
        found[2][b, h // shared] += weights.T @ gradient[b, h]
    return found


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(gradient, q, k, v, causal, window, scale)``."""
    rng = np.random.default_rng(23) if rng is None else rng

    def case(queries: int, keys: int, size: int, causal: bool = False, window: int | None = None, **more) -> tuple:
        heads, groups, batch = more.get("heads", 1), more.get("groups", 1), more.get("batch", 1)
        dtype = more.get("dtype", np.float16)
        shapes = [(batch, heads, queries, size)] * 2 + [(batch, groups, keys, size)] * 2
        arrays = (rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes)
        return *arrays, causal, window, more.get("scale")

    made = {"one": case(1, 1, 1, scale=0.5), "no queries": case(0, 3, 8), "no keys": case(3, 0, 8)}
    made |= {"rows of odd length": case(3, 35, 7), "a tile and one": case(65, 66, 8, True)}
    made["grouped, causal"] = case(5, 11, 16, True, heads=4, groups=2, batch=2)
    made["causal, more queries"] = case(70, 6, 8, True)  # a whole block of queries sees nothing
    made["causal window, a negative scale"] = case(5, 77, 8, True, 5, scale=-0.5)
    made["equal scores, causal"] = case(9, 12, 8, True, scale=0.0)
    made["of 128"] = case(36, 40, 128, True)
    for dtype in known(("bfloat16",)):
        made["bfloat16"] = case(20, 70, 16, True, dtype=dtype)
    return made


def cost(batch: int, heads: int, groups: int, queries: int, keys: int, size: int, pairs: int | None = None) -> Cost:
    """Five products for each query and key, of ``size`` multiply-adds; gradient, result and inputs read, gradients
    written, 2 bytes an element. ``pairs``: of a head, if masks leave some out: `ladder.seen_pairs`.
    """
    pairs = queries * keys if pairs is None else pairs
    elements = 4 * batch * heads * queries * size + 4 * batch * groups * keys * size
    return Cost(flops=10 * batch * heads * pairs * size, bytes=2 * elements)


def arguments(gradient, q, k, v, causal=False, window=None, scale=None, *, result=None, logs=None, stream=0) -> Problem:
    """The gradients of a loss by the queries, keys and values of an attention.

    Args:
        gradient: the loss's gradient by the result, of the dtype and the shape of q. All arrays are in C order.
        q, k, v, causal, window, scale: as the attention was given: `on_tensor_cores.arguments`.
        result: the attention's result, or None to compute it again.
        logs: float32, shape (batch, heads, queries): of each query the logarithm to base 2 of the sum that its weights
            were divided by, as `on_tensor_cores.forward` returns it. None if, and only if, ``result`` is.
        stream: the stream to work on.

    Returns new device arrays (by q, by k, by v) of the dtype and the shapes of q, k and v, without waiting for the work
    to be done. Sums are in float32; weights, and the gradients by the scores, are rounded to 16 bits before they are
    multiplied. The same call gives the same bits on the same GPU. A query that sees no key adds
    nothing if its gradient is finite.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.
    Source: Dao, FlashAttention-2, 2023, section 3.1.2.

    >>> from pmpp.kernels.attention import attention_gradients
    >>> one = np.ones((1, 1, 2, 1), np.float16)
    >>> [x.copy_to_host().ravel().tolist() for x in attention_gradients.recomputed(one, one, one, one, scale=1.0)]
    [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    """
    stream = device.as_stream(stream)
    p = on_tensor_cores.arguments(q, k, v, causal, window, scale, stream=stream)
    shape, kind = p.result.shape, p.result.dtype
    gradient = device.as_input("gradient", gradient, dtypes=kind, ndim=4, shape=shape, stream=stream)
    k = device.as_input("k", k, dtypes=kind, ndim=4, stream=stream)
    if result is not None:
        result = device.as_input("result", result, dtypes=kind, ndim=4, shape=shape, stream=stream)
    if logs is not None:
        logs = device.as_input("logs", logs, dtypes="float32", ndim=3, shape=shape[:3], stream=stream)
    if (result is None) != (logs is None):
        missing, other = ("result", "logs") if result is None else ("logs", "result")
        raise ValueError(f"{missing} must be given, as {other} is, was None")
    results = tuple(device.empty(x, kind, stream=stream) for x in (shape, k.shape, k.shape))
    if p.done or not k.size:
        for x in results:
            if x.size:
                zeros = reshaped(x, (x.size,)).view(np.uint16)
                on_tensor_cores.fill_kernel[blocks(x.size, 128), 128, stream](zeros, np.uint16(0))
        return Problem(results, stream=stream, done=True)
    if result is None:
        logs = device.empty(p.heads * p.sizes.queries, np.float32, stream=stream)
        tile = on_tensor_cores.tile_of(p, *on_tensor_cores.NARROW)
        on_tensor_cores.by_tile(tile, p, logs)
    else:
        p.out = reshaped(result, p.q.shape).view(np.uint16)
        logs = reshaped(logs, (logs.size,))
    p.result, p.logs, p.gradient = results, logs, reshaped(gradient, p.q.shape).view(np.uint16)
    p.groups = k.shape[0] * k.shape[1]
    p.given_scale = 1 / math.sqrt(shape[3]) if scale is None else float(scale)
    return p


# ------------------------------------------------------------------------------------------------- weights, once more
# Arrays are matrices, as in `on_tensor_cores`: one head after another, and rows begin at multiples of 16 bytes.


@cuda.jit
def deltas_kernel(gradient, out, deltas):
    """The sum of gradient times result, for each query: a warp a row."""
    row, lane = cuda.grid(1) // WARP, cuda.threadIdx.x % WARP
    if row < deltas.size:
        total = f0
        for column in range(lane, gradient.shape[1], WARP):
            total += widened(gradient[row, column]) * widened(out[row, column])
        total = warp_sum(total)
        if lane == 0:
            deltas[row] = total


@functools.cache
def products(tile: Tile, kind: str) -> tuple[typing.Any, typing.Any, typing.Any, typing.Any]:
    """Device functions: a tile is copied; a lane loads its 16 rows; and two products add to what it holds."""
    columns, rows = tile.columns, tile.keys
    steps, row_steps = columns // STEP, rows // STEP
    copy, by_rows, by_columns = operands(tile)
    mma, _ = INSTRUCTIONS[kind]

    @cuda.jit(device=True)
    def load_own(x, row, end, size, own):
        """The fragments of 16 rows: of each 16 elements two neighbours of two rows, and two more 8 further."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for s in range(steps):
            for e in range(4):
                at, column = row + lane // 4 + e % 2 * 8, s * STEP + lane % 4 * 2 + e // 2 * 8
                own[s, e] = load32(x, at * size + column) if at < end and column < size else np.uint32(0)

    @cuda.jit(device=True)
    def add_rows(shared, begin, own, first, sums):
        """Products of 64 elements, from ``first`` times 16 on, of own rows and the rows of a tile: 16 x rows sums."""
        for s in range(64 // STEP):
            for n in range(row_steps):
                b = by_rows(shared, begin, n * STEP, (first + s) * STEP)
                a = own[first + s, 0], own[first + s, 1], own[first + s, 2], own[first + s, 3]
                for h in range(2):
                    t = 2 * n + h
                    c = mma(a, (b[2 * h], b[2 * h + 1]), (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3]))
                    for e in range(4):
                        sums[t, e] = c[e]

    @cuda.jit(device=True)
    def add_columns(shared, begin, words, first, sums):
        """Products of the 16 x rows numbers in ``words`` with 64 columns of a tile, from ``first`` times 8 on."""
        for s in range(row_steps):
            for n in range(64 // STEP):
                b = by_columns(shared, begin, s * STEP, first * 8 + n * STEP)
                a = words[s, 0], words[s, 1], words[s, 2], words[s, 3]
                for h in range(2):
                    t = first + 2 * n + h
                    c = mma(a, (b[2 * h], b[2 * h + 1]), (sums[t, 0], sums[t, 1], sums[t, 2], sums[t, 3]))
                    for e in range(4):
                        sums[t, e] = c[e]

    return copy, load_own, add_rows, add_columns


@functools.lru_cache(KERNELS)
def keys_kernel(tile: Tile, kind: str) -> typing.Any:
    """The kernel of the gradients by keys and values: a block has 16 keys a warp, and goes over the queries."""
    columns, rows, _, warps, stages, resident = tile
    own_rows, steps, sum_tiles, score_tiles = 16 * warps, columns // STEP, columns // 8, rows // 8
    score_steps, wide, size_of_tile, ahead = rows // STEP, columns == MOST_SIZE, np.uint32(rows * columns), stages - 1
    end_stage = np.uint32(stages * 2 * rows * columns)
    copy, load_own, add_rows, add_columns = products(tile, kind)
    _, rounded = INSTRUCTIONS[kind]

    @cuda.jit(device=True)
    def by_scores(scores, slopes, row, query, end, logs, deltas, at, scale, sizes, weights, words):
        """Weights out of scores, and out of the gradients by weights those by scores. A column is of a query."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for n in range(score_tiles):
            for e in range(2):
                i = query + 8 * n + lane % 4 * 2 + e
                base, delta = MOST, f0  # nothing has a weight for a query that is not there, or sees no key
                if i < end:
                    base, delta = logs[at + i], deltas[at + i]
                    if base == LEAST:
                        base = MOST
                for half in range(2):
                    away = row + lane // 4 + 8 * half - i
                    seen = sizes.low <= away < sizes.high
                    weight = cuda.libdevice.exp2f(scores[n, 2 * half + e] * scale - base) if seen else f0
                    scores[n, 2 * half + e] = weight
                    slopes[n, 2 * half + e] = weight * (slopes[n, 2 * half + e] - delta)
            for half in range(2):
                weights[n // 2, n % 2 * 2 + half] = rounded(scores[n, 2 * half], scores[n, 2 * half + 1])
                words[n // 2, n % 2 * 2 + half] = rounded(slopes[n, 2 * half], slopes[n, 2 * half + 1])

    @cuda.jit(fastmath=True, launch_bounds=(tile.threads, resident))
    def keys_gradient_kernel(gradient, q, k, v, logs, deltas, by_k, by_v, scale, factor, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        own_k = cuda.local.array((steps, 4), np.uint32)
        own_v = cuda.local.array((steps, 4), np.uint32)
        scores, slopes = cuda.local.array((score_tiles, 4), np.float32), cuda.local.array((score_tiles, 4), np.float32)
        weights, words = cuda.local.array((score_steps, 4), np.uint32), cuda.local.array((score_steps, 4), np.uint32)
        sums_k, sums_v = cuda.local.array((sum_tiles, 4), np.float32), cuda.local.array((sum_tiles, 4), np.float32)
        tiles = (sizes.keys + own_rows - 1) // own_rows
        group, key0 = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * own_rows
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        row, size, first_key = key0 + warp * 16, sizes.size, group * sizes.keys
        load_own(k, first_key + row, first_key + sizes.keys, size, own_k)
        load_own(v, first_key + row, first_key + sizes.keys, size, own_v)
        for n in range(sum_tiles):
            for e in range(4):
                sums_k[n, e], sums_v[n, e] = f0, f0
        last_key = min(key0 + own_rows, sizes.keys) - 1
        begin = max(key0 - sizes.high + 1, 0) // rows * rows
        end = min(last_key - sizes.low + 1, sizes.queries)
        for member in range(sizes.shared):
            at = (group * sizes.shared + member) * sizes.queries
            now, into, query, coming = np.uint32(0), np.uint32(0), begin, begin
            for _ in range(ahead):
                copy(shared, into, q, at + coming, np.uint32(0), at + sizes.queries, size)
                copy(shared, into + size_of_tile, gradient, at + coming, np.uint32(0), at + sizes.queries, size)
                commit_copies()
                coming, into = coming + rows, np.uint32(into + 2 * size_of_tile)
            while query < end:
                if stages > 1:
                    wait_copies(0)
                cuda.syncthreads()  # the tile is there, and everyone has read the one that is overwritten next
                copy(shared, into, q, at + coming, np.uint32(0), at + sizes.queries, size)
                copy(shared, into + size_of_tile, gradient, at + coming, np.uint32(0), at + sizes.queries, size)
                commit_copies()
                if stages == 1:
                    wait_copies(0)
                    cuda.syncthreads()
                for n in range(score_tiles):
                    for e in range(4):
                        scores[n, e], slopes[n, e] = f0, f0
                add_rows(shared, now, own_k, 0, scores)
                add_rows(shared, now + size_of_tile, own_v, 0, slopes)
                if wide:
                    add_rows(shared, now, own_k, 4, scores)
                    add_rows(shared, now + size_of_tile, own_v, 4, slopes)
                by_scores(scores, slopes, row, query, sizes.queries, logs, deltas, at, scale, sizes, weights, words)
                add_columns(shared, now + size_of_tile, weights, 0, sums_v)
                add_columns(shared, now, words, 0, sums_k)
                if wide:
                    add_columns(shared, now + size_of_tile, weights, 8, sums_v)
                    add_columns(shared, now, words, 8, sums_k)
                now, into = np.uint32(now + 2 * size_of_tile), now
                if now == end_stage:
                    now = np.uint32(0)
                query, coming = query + rows, coming + rows
            wait_copies(0)  # what was copied too far has arrived before the next head's first tile is copied there
            cuda.syncthreads()
        for half in range(2):
            key = row + 8 * half + lane // 4
            if key < sizes.keys:
                for n in range(sum_tiles):
                    if 8 * n < size:
                        left, right = sums_k[n, 2 * half] * factor, sums_k[n, 2 * half + 1] * factor
                        by_k[first_key + key, 4 * n + lane % 4] = rounded(left, right)
                        by_v[first_key + key, 4 * n + lane % 4] = rounded(sums_v[n, 2 * half], sums_v[n, 2 * half + 1])

    return keys_gradient_kernel


@functools.lru_cache(KERNELS)
def queries_kernel(tile: Tile, kind: str) -> typing.Any:
    """The kernel of the gradient by queries: a block has 16 queries a warp, and goes over the keys."""
    columns, rows, _, warps, stages, resident = tile
    own_rows, steps, sum_tiles, score_tiles = 16 * warps, columns // STEP, columns // 8, rows // 8
    score_steps, wide, size_of_tile, ahead = rows // STEP, columns == MOST_SIZE, np.uint32(rows * columns), stages - 1
    end_stage = np.uint32(stages * 2 * rows * columns)
    copy, load_own, add_rows, add_columns = products(tile, kind)
    _, rounded = INSTRUCTIONS[kind]

    @cuda.jit(device=True)
    def by_scores(scores, slopes, row, key, bases, deltas, scale, sizes, words):
        """As in the other kernel. Here a row is of a query."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for half in range(2):
            i = row + 8 * half + lane // 4
            for n in range(score_tiles):
                for e in range(2):
                    j = key + 8 * n + lane % 4 * 2 + e
                    seen = sizes.low <= j - i < sizes.high and j < sizes.keys
                    score = scores[n, 2 * half + e] * scale - bases[half]
                    weight = cuda.libdevice.exp2f(score) if seen else f0
                    slopes[n, 2 * half + e] = weight * (slopes[n, 2 * half + e] - deltas[half])
                words[n // 2, n % 2 * 2 + half] = rounded(slopes[n, 2 * half], slopes[n, 2 * half + 1])

    @cuda.jit(fastmath=True, launch_bounds=(tile.threads, resident))
    def queries_gradient_kernel(gradient, q, k, v, logs, deltas, by_q, scale, factor, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        own, own_gradient = cuda.local.array((steps, 4), np.uint32), cuda.local.array((steps, 4), np.uint32)
        scores, slopes = cuda.local.array((score_tiles, 4), np.float32), cuda.local.array((score_tiles, 4), np.float32)
        words, sums = cuda.local.array((score_steps, 4), np.uint32), cuda.local.array((sum_tiles, 4), np.float32)
        bases, own_deltas = cuda.local.array(2, np.float32), cuda.local.array(2, np.float32)
        tiles = (sizes.queries + own_rows - 1) // own_rows
        head, query0 = cuda.blockIdx.x // tiles, (tiles - 1 - cuda.blockIdx.x % tiles) * own_rows
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        at, size, row = head * sizes.queries, sizes.size, query0 + warp * 16
        first_key = head // sizes.shared * sizes.keys
        last_key = first_key + sizes.keys
        last = min(query0 + own_rows, sizes.queries) - 1
        key0, end = max(query0 + sizes.low, 0) // rows * rows, min(last + sizes.high, sizes.keys)
        now, into, coming = np.uint32(0), np.uint32(0), key0
        for _ in range(ahead):
            copy(shared, into, k, first_key + coming, np.uint32(0), last_key, size)
            copy(shared, into + size_of_tile, v, first_key + coming, np.uint32(0), last_key, size)
            commit_copies()
            coming, into = coming + rows, np.uint32(into + 2 * size_of_tile)
        load_own(q, at + row, at + sizes.queries, size, own)
        load_own(gradient, at + row, at + sizes.queries, size, own_gradient)
        for half in range(2):
            i = row + 8 * half + lane // 4
            bases[half], own_deltas[half] = MOST, f0
            if i < sizes.queries:
                bases[half], own_deltas[half] = logs[at + i], deltas[at + i]
                if bases[half] == LEAST:
                    bases[half] = MOST
        for n in range(sum_tiles):
            for e in range(4):
                sums[n, e] = f0
        while key0 < end:
            if stages > 1:
                wait_copies(0)
            cuda.syncthreads()  # the tile is there, and everyone has read the one that is overwritten next
            copy(shared, into, k, first_key + coming, np.uint32(0), last_key, size)
            copy(shared, into + size_of_tile, v, first_key + coming, np.uint32(0), last_key, size)
            commit_copies()
            if stages == 1:
                wait_copies(0)
                cuda.syncthreads()
            for n in range(score_tiles):
                for e in range(4):
                    scores[n, e], slopes[n, e] = f0, f0
            add_rows(shared, now, own, 0, scores)
            add_rows(shared, now + size_of_tile, own_gradient, 0, slopes)
            if wide:
                add_rows(shared, now, own, 4, scores)
                add_rows(shared, now + size_of_tile, own_gradient, 4, slopes)
            by_scores(scores, slopes, row, key0, bases, own_deltas, scale, sizes, words)
            add_columns(shared, now, words, 0, sums)
            if wide:
                add_columns(shared, now, words, 8, sums)
            now, into = np.uint32(now + 2 * size_of_tile), now
            if now == end_stage:
                now = np.uint32(0)
            key0, coming = key0 + rows, coming + rows
        for half in range(2):
            query = row + 8 * half + lane // 4
            if query < sizes.queries:
                for n in range(sum_tiles):
                    if 8 * n < size:
                        left, right = sums[n, 2 * half] * factor, sums[n, 2 * half + 1] * factor
                        by_q[at + query, 4 * n + lane % 4] = rounded(left, right)

    return queries_gradient_kernel


def by_tiles(for_keys: Tile, for_queries: Tile, p: Problem) -> None:
    """A problem by the kernels of two tiles. Where rows do not begin at multiples of 16 bytes, on padded copies."""
    size, stream = round_up(p.sizes.size, CHUNK), p.stream
    whole, sizes = size == p.sizes.size, p.sizes._replace(size=size)
    given = p.gradient, p.q, p.k, p.v
    gradient, q, k, v = (x if whole and not device.address(x) % 16 else padded(x, size, stream) for x in given)
    deltas = device.empty(p.logs.size, np.float32, stream=stream)
    kind = p.result[0].dtype
    deltas_kernel[blocks(deltas.size, 4), 4 * WARP, stream](p.gradient.view(kind), p.out.view(kind), deltas)
    results = [reshaped(x, (x.size // p.sizes.size, p.sizes.size)).view(np.uint16) for x in p.result]
    targets = results if whole else [device.empty((x.shape[0], size), np.uint16, stream=stream) for x in results]
    by_q, by_k, by_v = (x.view(np.uint32) for x in targets)
    natural = np.float32(abs(p.given_scale) if p.given_scale else 1)  # `arguments` has multiplied q by the rest
    grid = grid_of(p.groups * blocks(sizes.keys, 16 * for_keys.warps))
    keys_kernel(for_keys, p.kind)[grid, for_keys.threads, stream, for_keys.shared](
        gradient, q, k, v, p.logs, deltas, by_k, by_v, p.scale, natural, sizes
    )
    grid = grid_of(p.heads * blocks(sizes.queries, 16 * for_queries.warps))
    queries_kernel(for_queries, p.kind)[grid, for_queries.threads, stream, for_queries.shared](
        gradient, q, k, v, p.logs, deltas, by_q, p.scale, np.float32(p.given_scale), sizes
    )
    if not whole:
        for target, result in zip(targets, results, strict=True):
            copy_kernel[blocks(result.size, 256), 256, stream](target, result)


def tiles_of(p: Problem, stages: int) -> tuple[Tile, Tile]:
    """A tile of queries, and one of keys: shorter ones for heads of more than 64 elements."""
    if p.sizes.size <= 64:
        return Tile(64, 64, 1, 4, stages, 2), Tile(64, 64, 1, 4, stages, 2)
    return Tile(MOST_SIZE, 32, 1, 4, stages, 2), Tile(MOST_SIZE, 32, 1, 4, stages, 2)


@rung(deltas_kernel, keys_kernel, queries_kernel, copy_kernel)
def recomputed(p):
    """Each weight is computed again, where its gradient is needed: once for its key and once for its query.

    In the first kernel keys are the rows of the products, so that the weights of 16 keys are the first operand of the
    sums over queries. In the second one queries are.
    Source: Dao, FlashAttention-2, 2023, section 3.1.2.

    Leaves: a block multiplies nothing while its next tile travels from memory.
    """
    by_tiles(*tiles_of(p, 1), p)


@rung(deltas_kernel, keys_kernel, queries_kernel, copy_kernel)
def overlapped(p):
    """The next tile is on its way while a block multiplies, as in the forward pass.

    Source: CUDA C++ programming guide, "Asynchronous data copies".
    """
    by_tiles(*tiles_of(p, 2), p)


LADDER = (recomputed, overlapped)
