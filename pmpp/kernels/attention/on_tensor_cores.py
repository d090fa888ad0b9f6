"""Attention on tensor cores: queries, keys and values in float16 or bfloat16, scores and sums in float32.

Chapter: notebooks/87_attention_on_tensor_cores.ipynb.  PMPP 5e ch. 20.
Roof: tensor cores, float16.

A tensor core multiplies sixteen times as fast as the float32 units. Then what stands between the two products counts:
scores that change places in shared memory, an exponential for each score, tiles that have not arrived. The ladder keeps
scores in registers from the first product to the second. That works because of how mma.sync distributes matrices: a
lane holds the same places of 16 x 16 sums that it must hold of a first operand. So weights are rounded to 16 bits where
they are, and multiplied by the values.

The definition, the masks and the arguments are those of `pmpp.kernels.attention.ladder`. Kernels move 16 bits and
compute with none, so they see both dtypes as uint16. The instructions are in `pmpp.runtime.matrix`; they need a GPU of
compute capability 8.0 or higher.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import ladder
from pmpp.kernels.attention.ladder import LEAST, MOST_SIZE, Sizes, as_scale, f0, f1, grid_of, limits, no_logs, reshaped
from pmpp.kernels.common import FULL_WARP, blocks, round_up
from pmpp.kernels.matmul.tensor_cores import CAPABILITY, CHUNK, WARP, copier, copy_kernel, swizzled_place
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.matrix import (
    commit_copies,
    ldmatrix,
    ldmatrix_transposed,
    load32,
    mma_bf16,
    mma_f16,
    rounded_bf16,
    rounded_f16,
    wait_copies,
)
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import widened

DTYPES = ("float16", "bfloat16")
INSTRUCTIONS = {"float16": (mma_f16, rounded_f16), "bfloat16": (mma_bf16, rounded_bf16)}
KERNELS = 32  # that are kept


# --------------------------------------------------------------------------------------------------------- definition


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """Attention in float64, of the numbers that 16 bits hold: `ladder.reference`."""
    return ladder.reference(*(x.astype(np.float64) for x in (q, k, v)), causal, window, scale)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(q, k, v, causal, window, scale)``."""
    rng = np.random.default_rng(22) if rng is None else rng

    def case(queries: int, keys: int, size: int, causal: bool = False, window: int | None = None, **more) -> tuple:
        heads, groups, batch = more.get("heads", 1), more.get("groups", 1), more.get("batch", 1)
        q = more.get("times", 1) * rng.standard_normal((batch, heads, queries, size))
        k, v = (rng.standard_normal((batch, groups, keys, size)) for _ in range(2))
        dtype = more.get("dtype", np.float16)
        q, k, v = (x.astype(np.float32).astype(dtype) for x in (q, k, v))
        return q, k, v, causal, window, more.get("scale")

    made = {"one": case(1, 1, 1, scale=0.5), "no queries": case(0, 3, 8), "no keys": case(3, 0, 8)}
    made |= {"rows of odd length": case(3, 35, 7), "a tile and one": case(65, 66, 8, True)}
    made["grouped, causal"] = case(5, 11, 16, True, heads=4, groups=2, batch=2)
    made["causal, more queries"] = case(70, 6, 8, True)  # a whole block of queries sees nothing
    made["window, large scores"] = case(40, 40, 8, False, 3, times=100)
    made["causal window, a negative scale"] = case(5, 77, 8, True, 5, scale=-0.5)
    made["equal scores, causal"] = case(9, 12, 8, True, scale=0.0)
    made["nearly equal scores"] = case(3, 12, 8, scale=1e-40)  # no normal number in float32
    made["of 128"] = case(2, 36, 128, True)
    for dtype in known(("bfloat16",)):
        made["bfloat16"] = case(20, 70, 16, True, dtype=dtype)
    q, k, v, *_ = case(4, 9, 8)
    q[0, 0, 1, 2], q[0, 0, 3, 0] = np.nan, np.inf
    made["non-finite"] = q, np.abs(k), v, False, None, None
    q, k, v, *_ = case(4, 70, 8)
    made["scores of -inf"] = np.abs(q), np.full_like(k, -np.inf), v, False, None, None
    return made


def cost(batch: int, heads: int, groups: int, queries: int, keys: int, size: int, pairs: int | None = None) -> Cost:
    """As `ladder.cost`, with 2 bytes an element.

    >>> cost(8, 16, 16, 2048, 2048, 64).intensity
    1024.0
    """
    wide = ladder.cost(batch, heads, groups, queries, keys, size, pairs)
    return Cost(wide.flops, wide.bytes // 2)


def tolerance(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """How far from `reference` a right result may be, element by element.

    The terms of `ladder.tolerance`, where a tensor core adds: it cuts off what is below the last place of the largest
    of 17 terms, so a sum of products is off by 17 eps, 34 u, of its terms for every 16 of them. Each weight is rounded
    to 16 bits before it meets its value, and the result is rounded to 16 bits.
    """
    keys, shared = k.shape[2], q.shape[1] // max(k.shape[1], 1)
    if not q.size or not keys:
        return np.zeros(q.shape)
    exact = reference(q, k, v, causal, window, scale)
    dtype = q.dtype
    q, k, v = (np.nan_to_num(one.astype(np.float64), posinf=0, neginf=0) for one in (q, k, v))
    with np.errstate(invalid="ignore"):
        return off_by(q, k.repeat(shared, 1), v.repeat(shared, 1), scale, dtype) + rounding(exact, dtype)


def off_by(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None, dtype: typing.Any) -> np.ndarray:
    """The same before the result is rounded; q, k and v in float64, with as many heads each."""
    u, half = 2.0**-24, float(rounding(np.ones(1), dtype)[0])
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else abs(float(scale))
    off = u * (34 * blocks(q.shape[3], 16) + 6) * scale * np.einsum("bhid,bhjd->bhij", np.abs(q), np.abs(k))
    off = np.expm1(2 * off.max(axis=3, keepdims=True)) + 2 * u * (34 * blocks(k.shape[2], 16) + 7 * k.shape[2] + 8)
    return (off + half) * np.abs(v).max(axis=2, keepdims=True)


def arguments(q, k, v, causal=False, window=None, scale=None, *, out=None, stream=0) -> Problem:
    """Attention of several heads in 16 bits: for each query, the values weighted by ``softmax(scale * q @ k.T)``.

    Args:
        q: float16 or bfloat16, shape (batch, heads, queries, size), with size from 1 to 128. All arrays are in C order.
        k, v: of the same dtype, shape (batch, groups, keys, size); groups divides heads, and heads // groups
            neighbouring heads of q share a head of k and v. There may be more or fewer keys than queries, or none.
        causal: True to let query i see only the keys up to i + keys - queries: the last query sees all of them.
        window: only keys at a distance below this many, at least 1, are seen, itself included: with ``causal`` the
            last ``window`` keys. None for all.
        scale: what scores are multiplied by, a number from 1.2e-38 to 2e38 in size, or 0; None for 1 / sqrt(size).
        out: a device array of the dtype and the shape of q, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Scores and sums are in float32; the weights are rounded to
    16 bits, and so is the result. It has the same bits in every run on one GPU. A query that sees no key, or only keys
    with a score of -inf, gets zeros. The values must be finite, as in `ladder.arguments`.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.
    Source: Dao, FlashAttention-2, 2023.

    >>> from pmpp.kernels.attention import on_tensor_cores
    >>> q, k, v = np.ones((1, 1, 2, 1)), np.ones((1, 1, 2, 1)), np.array([4.0, 8.0]).reshape(1, 1, 2, 1)
    >>> q, k, v = (x.astype(np.float16) for x in (q, k, v))
    >>> on_tensor_cores.registers(q, k, v, True, scale=1.0).copy_to_host().ravel()
    array([4., 6.], dtype=float16)
    """
    stream = device.as_stream(stream)
    q = device.as_input("q", q, dtypes=DTYPES, ndim=4, stream=stream)
    batch, heads, queries, size = q.shape
    if not 1 <= size <= MOST_SIZE:
        raise ValueError(f"q must have a size from 1 to {MOST_SIZE} in its last dimension, had shape {q.shape}")
    k = device.as_input("k", k, dtypes=q.dtype, ndim=4, shape=(batch, None, None, size), stream=stream)
    groups, keys = k.shape[1:3]
    if groups == 0 if heads else groups:
        raise ValueError(f"k must have {'at least one head' if heads else 'no head'}, as q, had shape {k.shape}")
    if heads and heads % groups:
        raise ValueError(f"k must have a number of heads that divides the {heads} of q, had {groups}")
    v = device.as_input("v", v, dtypes=q.dtype, ndim=4, shape=k.shape, stream=stream)
    causal = as_flag("causal", causal)
    window = None if window is None else as_integer("window", window, 1)
    scale = as_scale(scale, size)
    out = device.as_output("out", out, shape=q.shape, dtype=q.dtype, apart={"q": q, "k": k, "v": v}, stream=stream)
    capability = device.limits()["compute_capability"]
    if capability < CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this room needs a GPU of compute capability 8.0 or higher, this one has {said}")
    sizes = Sizes(heads // groups if groups else 1, queries, keys, size, *limits(queries, keys, causal, window))
    p = Problem(out, stream=stream, sizes=sizes, kind=str(q.dtype), heads=batch * heads)
    if out.size and not keys:
        fill_kernel[blocks(out.size, BLOCK), BLOCK, stream](reshaped(out, (out.size,)).view(np.uint16), np.uint16(0))
        p.done = True
    elif out.size:
        p.q, p.k, p.v, p.out = (reshaped(x, (x.size // size, size)).view(np.uint16) for x in (q, k, v, out))
        if abs(scale) < LEAST_SCALE:
            scale = f0
        if scale <= 0:  # the kernels take the highest score before they scale it
            p.q = device.empty(p.q.shape, np.uint16, stream=stream)
            factor, scale = (np.float32(-1), -scale) if scale < 0 else (f0, f1)
            source, target = (reshaped(x, (x.size,)) for x in (q, p.q.view(q.dtype)))
            times_kernel[blocks(source.size, BLOCK), BLOCK, stream](source, factor, target)
        p.scale = np.float32(float(scale) * math.log2(math.e))
    return p


BLOCK = 128  # threads a block, where nothing else decides
LEAST_SCALE = np.finfo(np.float32).tiny  # the kernels take a subnormal number for 0, and 0 * -inf is NaN


@cuda.jit
def fill_kernel(out, value):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = value


@cuda.jit
def times_kernel(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = widened(x[i]) * factor


# --------------------------------------------------------------------------------------------- from product to product
# From here on an array is a matrix: its rows are the queries or keys of one head after another, and begin at multiples
# of 16 bytes. The exponentials are powers of 2, so ``scale`` has the factor log2(e) in it, and is above 0.

STEP = 16  # elements of a query, or keys, that one mma.sync goes forward


class Tile(typing.NamedTuple):
    """What a block computes: so many ``columns`` of the result, from so many ``keys`` at a time.

    ``fragments``: of 16 queries each, that a warp has. ``stages``: tiles of keys and values with room in shared memory.
    ``blocks``: of a multiprocessor, for which the compiler leaves registers.
    """

    columns: int
    keys: int
    fragments: int
    warps: int
    stages: int
    blocks: int

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def queries(self) -> int:
        return 16 * self.fragments * self.warps

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return 2 * self.stages * 2 * self.keys * self.columns


@functools.cache
def operands(tile: Tile) -> tuple[typing.Any, typing.Any, typing.Any]:
    """Three device functions: one begins to copy a tile of keys or values, two read operands of mma.sync from it.

    ``by_rows`` gives a lane the words of 16 keys and 16 elements: the second operands of two scores. ``by_columns``
    gives it those of 16 keys and 16 columns of values: the second operands of two sums.
    """
    chunks = tile.columns // CHUNK
    place = swizzled_place(chunks)
    copy = copier(tile.keys, chunks, tile.threads, place)

    @cuda.jit(device=True)
    def by_rows(shared, begin, key, column):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        row, chunk = np.uint32(key + lane // 16 * 8 + lane % 8), np.uint32(column // CHUNK + lane // 8 % 2)
        return ldmatrix(shared, np.uint32(begin + place(row, chunk) * np.uint32(CHUNK)))

    @cuda.jit(device=True)
    def by_columns(shared, begin, key, column):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        row, chunk = np.uint32(key + lane % 16), np.uint32(column // CHUNK + lane // 16)
        return ldmatrix_transposed(shared, np.uint32(begin + place(row, chunk) * np.uint32(CHUNK)))

    return copy, by_rows, by_columns


@functools.lru_cache(KERNELS)
def registers_kernel(tile: Tile, kind: str) -> typing.Any:
    """The kernel ``(q, k, v, out, logs, scale, sizes)`` of a tile.

    ``out`` is a matrix of words of two numbers. ``logs``, of float32: what `ladder.launch` says, or empty.
    """
    columns, keys, fragments, _, stages, resident = tile
    queries, halves, ahead, pending = tile.queries, columns // 64, stages - 1, max(stages - 2, 0)
    score_tiles, sum_tiles, score_steps, steps = keys // 8, columns // 8, keys // STEP, columns // STEP
    tile_size = np.uint32(keys * columns)  # elements
    end_stage = np.uint32(stages * 2 * keys * columns)
    copy, by_rows, by_columns = operands(tile)
    mma, rounded = INSTRUCTIONS[kind]

    @cuda.jit(device=True)
    def load_queries(q, row, last, size, own):
        """The fragments of this lane: of each 16 elements of a query two neighbours, and two more 8 further."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for f in range(fragments):
            for s in range(steps):
                for e in range(4):
                    at, column = row + 16 * f + lane // 4 + e % 2 * 8, s * STEP + lane % 4 * 2 + e // 2 * 8
                    own[f, s, e] = load32(q, at * size + column) if at < last and column < size else np.uint32(0)

    @cuda.jit(device=True)
    def add_scores(shared, begin, own, first, scores):
        """The products of 64 elements of queries and keys, from a multiple of 64 on."""
        for s in range(64 // STEP):
            for n in range(score_steps):
                b = by_rows(shared, begin, n * STEP, (first + s) * STEP)
                for f in range(fragments):
                    a = own[f, first + s, 0], own[f, first + s, 1], own[f, first + s, 2], own[f, first + s, 3]
                    for h in range(2):
                        t = 2 * n + h
                        c = scores[f, t, 0], scores[f, t, 1], scores[f, t, 2], scores[f, t, 3]
                        c = mma(a, (b[2 * h], b[2 * h + 1]), c)
                        for e in range(4):
                            scores[f, t, e] = c[e]

    @cuda.jit(device=True)
    def add_values(shared, begin, weights, first, sums):
        """The products of all weights with 64 columns of the values."""
        for s in range(score_steps):
            for n in range(64 // STEP):
                b = by_columns(shared, begin, s * STEP, first * 8 + n * STEP)
                for f in range(fragments):
                    a = weights[f, s, 0], weights[f, s, 1], weights[f, s, 2], weights[f, s, 3]
                    for h in range(2):
                        t = first + 2 * n + h
                        c = sums[f, t, 0], sums[f, t, 1], sums[f, t, 2], sums[f, t, 3]
                        c = mma(a, (b[2 * h], b[2 * h + 1]), c)
                        for e in range(4):
                            sums[f, t, e] = c[e]

    @cuda.jit(device=True)
    def hide(scores, row, key, sizes):
        """What a query does not see gets the score -inf. ``row``: of the warp's first query in its head."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        for f in range(fragments):
            for half in range(2):
                query = row + 16 * f + 8 * half + lane // 4
                first = np.int32(min(max(query + sizes.low - key, 0), keys) - lane % 4 * 2)
                last = np.int32(min(max(min(query + sizes.high, sizes.keys) - key, 0), keys) - lane % 4 * 2)
                for n in range(score_tiles):
                    for e in range(2):
                        if not first <= 8 * n + e < last:
                            scores[f, n, 2 * half + e] = LEAST

    @cuda.jit(device=True)
    def update(scores, scale, highest, totals, sums, weights):
        """Scores become weights in 16 bits, relative to the new maximum of their row. What was summed is scaled."""
        for f in range(fragments):
            for half in range(2):
                top = highest[f, half]
                for n in range(score_tiles):
                    top = cuda.libdevice.fmaxf(top, scores[f, n, 2 * half])
                    top = cuda.libdevice.fmaxf(top, scores[f, n, 2 * half + 1])
                for distance in (1, 2):  # the four lanes that have the same rows
                    top = cuda.libdevice.fmaxf(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
                base = top * scale if top != LEAST else f0  # since -inf - -inf is NaN
                keep = cuda.libdevice.exp2f(highest[f, half] * scale - base)
                highest[f, half] = top
                total = totals[f, half] * keep  # of this lane's keys alone, until the end
                for n in range(sum_tiles):
                    sums[f, n, 2 * half] *= keep
                    sums[f, n, 2 * half + 1] *= keep
                for n in range(score_tiles):
                    left = cuda.libdevice.exp2f(scores[f, n, 2 * half] * scale - base)
                    right = cuda.libdevice.exp2f(scores[f, n, 2 * half + 1] * scale - base)
                    total += left + right
                    weights[f, n // 2, n % 2 * 2 + half] = rounded(left, right)
                totals[f, half] = total

    @cuda.jit(fastmath=True, launch_bounds=(tile.threads, resident))
    def kernel(q, k, v, out, logs, scale, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        own = cuda.local.array((fragments, steps, 4), np.uint32)
        scores = cuda.local.array((fragments, score_tiles, 4), np.float32)
        weights = cuda.local.array((fragments, score_steps, 4), np.uint32)
        sums = cuda.local.array((fragments, sum_tiles, 4), np.float32)
        highest, totals = cuda.local.array((fragments, 2), np.float32), cuda.local.array((fragments, 2), np.float32)
        tiles = (sizes.queries + queries - 1) // queries
        # With a causal mask the last queries have the most keys: they begin first.
        head, query0 = cuda.blockIdx.x // tiles, (tiles - 1 - cuda.blockIdx.x % tiles) * queries
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(WARP), np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        first_row, size = head * sizes.queries, sizes.size
        row = query0 + warp * (16 * fragments)
        first_key = head // sizes.shared * sizes.keys
        last_key = first_key + sizes.keys
        last = min(query0 + queries, sizes.queries) - 1
        key0, end = max(query0 + sizes.low, 0) // keys * keys, min(last + sizes.high, sizes.keys)
        coming, into = key0, np.uint32(0)
        for _ in range(ahead):
            copy(shared, into, k, first_key + coming, np.uint32(0), last_key, size)
            copy(shared, into + tile_size, v, first_key + coming, np.uint32(0), last_key, size)
            commit_copies()
            coming, into = coming + keys, np.uint32(into + 2 * tile_size)
        load_queries(q, first_row + row, first_row + sizes.queries, size, own)
        for f in range(fragments):
            for half in range(2):
                highest[f, half], totals[f, half] = LEAST, f0
            for n in range(sum_tiles):
                for e in range(4):
                    sums[f, n, e] = f0
        now = np.uint32(0)
        while key0 < end:
            if stages > 1:
                wait_copies(pending)  # the oldest tile is there: what this thread has copied,
            cuda.syncthreads()  # and all others; and everyone has read the tile that is overwritten next
            copy(shared, into, k, first_key + coming, np.uint32(0), last_key, size)
            copy(shared, into + tile_size, v, first_key + coming, np.uint32(0), last_key, size)
            commit_copies()
            if stages == 1:
                wait_copies(0)
                cuda.syncthreads()
            for f in range(fragments):
                for n in range(score_tiles):
                    for e in range(4):
                        scores[f, n, e] = f0
            add_scores(shared, now, own, 0, scores)
            if halves == 2:
                add_scores(shared, now, own, 4, scores)
            if key0 < last + sizes.low or key0 + keys > min(query0 + sizes.high, sizes.keys):
                hide(scores, row, key0, sizes)
            update(scores, scale, highest, totals, sums, weights)
            add_values(shared, now + tile_size, weights, 0, sums)
            if halves == 2:
                add_values(shared, now + tile_size, weights, 8, sums)
            now, into = np.uint32(now + 2 * tile_size), now
            if now == end_stage:
                now = np.uint32(0)
            key0, coming = key0 + keys, coming + keys
        for f in range(fragments):
            for half in range(2):
                for distance in (1, 2):
                    totals[f, half] += cuda.shfl_xor_sync(FULL_WARP, totals[f, half], distance)
                share = f1 / totals[f, half] if totals[f, half] != f0 else f0
                query = row + 16 * f + 8 * half + lane // 4
                if query < sizes.queries:
                    if logs.size and lane % 4 == 0:
                        top = highest[f, half]
                        base = top * scale if top != LEAST else f0
                        logs[first_row + query] = base + cuda.libdevice.log2f(totals[f, half])
                    for n in range(sum_tiles):
                        if 8 * n < size:
                            word = rounded(sums[f, n, 2 * half] * share, sums[f, n, 2 * half + 1] * share)
                            out[first_row + query, 4 * n + lane % 4] = word

    return kernel


def in_chunks(p: Problem, launch: typing.Callable) -> None:
    """Call ``launch(q, k, v, out, sizes)`` with matrices whose rows begin at multiples of 16 bytes.

    Where they do not, it is called with copies that have zeros behind their rows.
    """
    q, k, v, out = p.q, p.k, p.v, p.out
    size = round_up(p.sizes.size, CHUNK)
    whole = size == p.sizes.size
    q, k, v = (x if whole and not device.address(x) % 16 else padded(x, size, p.stream) for x in (q, k, v))
    fits = whole and not device.address(out) % 4
    target = out if fits else device.empty((out.shape[0], size), np.uint16, stream=p.stream)
    launch(q, k, v, target.view(np.uint32), p.sizes._replace(size=size))
    if not fits:
        copy_kernel[blocks(out.size, 256), 256, p.stream](target, out)


def padded(x: typing.Any, columns: int, stream: typing.Any) -> typing.Any:
    """A copy of a matrix with zeros behind its rows."""
    target = device.empty((x.shape[0], columns), x.dtype, stream=stream)
    copy_kernel[blocks(target.size, 256), 256, stream](x, target)
    return target


def by_tile(tile: Tile, p: Problem, logs: typing.Any = None) -> None:
    """A problem by the kernel of a tile. ``logs``: float32, one for each query of each head, or None."""

    def launch(q, k, v, out, sizes):
        grid = grid_of(p.heads * blocks(sizes.queries, tile.queries))
        given = q, k, v, out, no_logs() if logs is None else logs, p.scale, sizes
        registers_kernel(tile, p.kind)[grid, tile.threads, p.stream, tile.shared](*given)

    in_chunks(p, launch)


def tile_of(p: Problem, *rest: int) -> Tile:
    """The narrowest tile that has room for a query."""
    return Tile(64 if p.sizes.size <= 64 else MOST_SIZE, *rest)


@rung(registers_kernel, copy_kernel)
def registers(p):
    """A warp has 16 queries, and their scores stay in its registers until they are weights of the second product.

    A block of four warps shares tiles of 64 keys and 64 values in shared memory. Arrays whose rows do not begin at
    multiples of 16 bytes are copied first, with zeros behind their rows.
    Source: Dao, FlashAttention-2, 2023, section 3.

    Leaves: a block multiplies nothing while its next keys and values travel from memory.
    """
    by_tile(tile_of(p, 64, 1, 4, 1, 2), p)


@rung(registers_kernel, copy_kernel)
def overlapped(p):
    """The next keys and values are on their way while a block multiplies: there are two tiles of each.

    Source: CUDA C++ programming guide, "Asynchronous data copies".

    Leaves: a warp loads 512 bytes from shared memory for two instructions that multiply.
    """
    by_tile(tile_of(p, 64, 1, 4, 2, 2), p)


@rung(registers_kernel, copy_kernel)
def wide(p):
    """A warp has 32 queries: what it loads from shared memory serves four instructions that multiply.

    Queries of more than 64 elements take too many registers for that. They stay at 16 a warp.
    Source: Dao, FlashAttention-2, 2023, section 3.3.
    """
    by_tile(tile_of(p, *(WIDE if p.sizes.size <= 64 else NARROW)), p)


WIDE, NARROW = (64, 2, 4, 2, 2), (64, 1, 4, 2, 2)  # keys, fragments, warps, stages, blocks


def forward(q, k, v, causal=False, window=None, scale=None, *, out=None, stream=0) -> tuple:
    """The result, and what its gradients need of it; arguments and errors as in `wide`.

    Returns ``out`` and a new float32 device array of shape (batch, heads, queries): the logarithm to base 2 of the sum
    of 2^(score log2(e)) over the keys that a query sees, -inf if it sees none.

    >>> from pmpp.kernels.attention import on_tensor_cores
    >>> one = np.ones((1, 1, 2, 1), np.float16)
    >>> on_tensor_cores.forward(0 * one, one, one)[1].copy_to_host()
    array([[[1., 1.]]], dtype=float32)
    """
    p = arguments(q, k, v, causal, window, scale, out=out, stream=stream)
    logs = device.empty(p.result.shape[:3], np.float32, stream=p.stream)
    flat = reshaped(logs, (logs.size,))
    if not p.done:
        by_tile(tile_of(p, *(WIDE if p.sizes.size <= 64 else NARROW)), p, flat)
    elif logs.size:
        fill_kernel[blocks(logs.size, BLOCK), BLOCK, p.stream](flat, LEAST)
    return p.result, logs


LADDER = (registers, overlapped, wide)
