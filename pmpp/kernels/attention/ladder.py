"""Attention: each query's mean of the values, weighted by the softmax of its products with the keys. In float32.

Chapter: notebooks/75_attention.ipynb.  PMPP 5e ch. 20.

A query q is a vector of ``size`` elements, and so are the keys k_j and the values v_j. The query's scores are
scale * (q . k_j), its weights the softmax of these, and its result is the sum of weight_j v_j. A head has many queries
and many keys, and a layer many heads. With n queries and n keys a head needs 4 n^2 size FLOP, and has 16 n size bytes
of input and output: n / 4 FLOP a byte, far more than a GPU needs to be kept busy. But the n^2 scores are n / size times
as many numbers as the queries. A kernel that keeps them in memory moves mostly scores. The ladder is about never
writing them: a softmax can be computed as the scores appear, if what was added up before is scaled down whenever a
larger maximum comes.

Masks leave out keys. ``causal``: a query sees no key that stands behind it in the text. ``window``: it sees only keys
that are near. The last query stands at the last key, as it does when a text is continued. A query that sees no key has
the result 0.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import streams
from pmpp.kernels.attention.streams import STREAMS, stream_kernel
from pmpp.kernels.common import FULL_WARP, block_max, block_sum, blocks, round_up, warp_max, warp_sum
from pmpp.kernels.matmul import batched
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer, as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128
from pmpp.runtime.views import strided

MOST_SCALE = 2e38  # of scores: times log2(e) it still is a float32
MOST_SIZE = 128  # elements of a query: the tiles of the last rungs have room for so many
MOST_BLOCKS = 2**31 - 1  # of a grid
f0, f1, LEAST = np.float32(0), np.float32(1), np.float32(-np.inf)


def reference(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """Attention in float64, one query after another. Keys that a query does not see are left out.

    A query that sees no key, or only keys with a score of -inf, has the result 0.
    """
    batch, heads, queries, size = q.shape
    keys, shared = k.shape[2], heads // max(k.shape[1], 1)
    scale = 1 / math.sqrt(size) if scale is None else float(scale)
    out = np.zeros(q.shape)
    for b, h, i in np.ndindex(batch, heads, queries):
        at = i + keys - queries  # where the query stands among the keys
        seen = [j for j in range(keys) if not (causal and j > at) and (window is None or abs(j - at) < window)]
        if seen:
            with np.errstate(invalid="ignore"):
                scores = k[b, h // shared, seen].astype(np.float64) @ q[b, h, i].astype(np.float64) * scale
                weights = np.exp(scores - scores.max())
            if scores.max() != -np.inf:
                out[b, h, i] = weights / weights.sum() @ v[b, h // shared, seen].astype(np.float64)
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(q, k, v, causal, window, scale)``."""
    rng = np.random.default_rng(20) if rng is None else rng

    def case(queries: int, keys: int, size: int, causal: bool = False, window: int | None = None, **more) -> tuple:
        heads, groups, times = more.get("heads", 1), more.get("groups", 1), more.get("times", 1)
        q = times * rng.standard_normal((more.get("batch", 1), heads, queries, size), dtype=np.float32)
        k, v = (rng.standard_normal((more.get("batch", 1), groups, keys, size), dtype=np.float32) for _ in range(2))
        return q, k, v, causal, window, more.get("scale")

    made = {"one": case(1, 1, 1, scale=0.5), "no queries": case(0, 3, 4), "no keys": case(3, 0, 4)}
    made |= {"odd": case(3, 35, 7), "a tile and one": case(65, 66, 4, True)}
    made["grouped, causal"] = case(5, 11, 4, True, heads=4, groups=2, batch=2)
    made["causal, more queries"] = case(70, 6, 4, True)  # a whole block of queries sees nothing
    made["window, large scores"] = case(40, 40, 4, False, 3, times=300)
    made["causal window, a negative scale"] = case(5, 77, 4, True, 5, scale=-0.5)
    made["windows beyond all keys"] = case(33, 3, 4, False, 2)
    made |= {f"of {size}": case(2, 6, size) for size in (64, 96)}
    made["of 128"] = case(2, 36, 128, True)
    q, k, v, *_ = case(3, 70, 4)
    k[..., 0] = np.linspace(-9, 9, 70, dtype=np.float32)  # for the first query every maximum is overtaken
    q[0, 0, 0], q[0, 0, 1] = (30, 0, 0, 0), (-30, 0, 0, 0)
    made["rising and falling"] = q, k, v, False, None, None
    q, k, v, *_ = case(4, 9, 4)
    q[0, 0, 1, 2], q[0, 0, 3, 0] = np.nan, np.inf
    made["non-finite"] = q, np.abs(k), v, False, None, None
    q, k, v, *_ = case(3, 40, 4)
    made["scores of -inf"] = np.abs(q), np.full_like(k, -np.inf), v, False, None, None
    return made


def seen_pairs(queries: int, keys: int, causal: bool = False, window: int | None = None) -> int:
    """How many (query, key) of a head there are in which the query sees the key.

    >>> seen_pairs(4, 4), seen_pairs(4, 4, True), seen_pairs(2, 4, True), seen_pairs(4, 4, True, 2)
    (16, 10, 7, 7)
    """
    low, high = limits(queries, keys, causal, window)
    query = np.arange(queries, dtype=np.int64)
    return int(np.maximum(np.minimum(query + high, keys) - np.maximum(query + low, 0), 0).sum())


def limits(queries: int, keys: int, causal: bool, window: int | None) -> tuple[int, int]:
    """(low, high): query i sees key j if low <= j - i < high.

    >>> limits(3, 5, True, None), limits(3, 5, False, 2)
    ((-3, 3), (1, 4))
    """
    ahead = keys - queries  # the last query stands at the last key
    low = -queries if window is None else max(ahead - window + 1, -queries)
    high = keys if window is None else min(ahead + window, keys)
    return low, min(high, ahead + 1) if causal else high


def cost(batch: int, heads: int, groups: int, queries: int, keys: int, size: int, pairs: int | None = None) -> Cost:
    """Two products for each query and key, of ``size`` multiply-adds; all arrays moved once.

    ``groups``: heads of k and v. ``pairs``: of a head, if masks leave some out: `seen_pairs`.
    """
    pairs = queries * keys if pairs is None else pairs
    elements = 2 * batch * heads * queries * size + 2 * batch * groups * keys * size
    return Cost(flops=4 * batch * heads * pairs * size, bytes=4 * elements)


def tolerance(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """How far from `reference` a right result may be, element by element. u is half an eps.

    A score is a sum of ``size`` products, and both it and the scale are rounded: it is off by at most (size + 4) u
    scale sum |q k|, and by 2 u of its size when the maximum is taken off. A weight is off by as much, relatively, and
    by 4 u for its exponential (2 ulp). Of n keys, each may raise the maximum: then what was summed is scaled once
    more, which costs 6 u. The two sums, of weights and of weighted values, have n terms each, and every one of them
    is rounded at most n + 2 times. The sum of the weights is off by what the weights are, on average, so all that is
    counted twice. Source: Higham, Accuracy and Stability (2002), section 3.1; CUDA C++ programming guide,
    "Mathematical functions".
    """
    keys, shared = k.shape[2], q.shape[1] // max(k.shape[1], 1)
    if not q.size or not keys:
        return np.zeros(q.shape)
    u, scale = 2.0**-24, 1 / math.sqrt(q.shape[3]) if scale is None else abs(float(scale))
    q, k, v = (np.nan_to_num(one.astype(np.float64), posinf=0, neginf=0) for one in (q, k, v))
    k, v = k.repeat(shared, 1), v.repeat(shared, 1)
    off = u * (q.shape[3] + 6) * scale * np.einsum("bhid,bhjd->bhij", np.abs(q), np.abs(k))
    off = np.expm1(2 * off.max(axis=3, keepdims=True)) + 2 * u * (7 * keys + 8)
    return off * np.abs(v).max(axis=2, keepdims=True)


class Sizes(typing.NamedTuple):
    """What a launch tells its kernel.

    ``shared``: so many heads of q use the same head of k and v. A query i sees a key j if low <= j - i < high.
    """

    shared: int
    queries: int
    keys: int
    size: int
    low: int
    high: int


def arguments(q, k, v, causal=False, window=None, scale=None, *, out=None, stream=0) -> Problem:
    """Attention of several heads: for each query, the values weighted by ``softmax(scale * q @ k.T)``.

    Args:
        q: float32, shape (batch, heads, queries, size), with size from 1 to 128. All arrays are in C order.
        k, v: float32, shape (batch, groups, keys, size); groups divides heads, and heads // groups neighbouring heads
            of q share a head of k and v. There may be more or fewer keys than queries, or none.
        causal: True to let query i see only the keys up to i + keys - queries: the last query sees all of them.
        window: only keys at a distance below this many, at least 1, are seen, itself included: with ``causal`` the
            last ``window`` keys. None for all.
        scale: what scores are multiplied by, a number from 1.2e-38 to 2e38 in size, or 0; None for 1 / sqrt(size). Its
            product with log2(e) and an element of q must be in the range of float32. So must be the products
            ``q @ k.T``, before they are scaled.
        out: a float32 device array of the shape of q, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It has the same bits in every run on one GPU. A query
    that sees no key, or only keys with a score of -inf, gets zeros. The values must be finite: a weight of 0 times an
    infinity is NaN, and whether that happens for a key that is not seen is not defined.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Vaswani et al., Attention Is All You Need, 2017. PyTorch's scaled_dot_product_attention lets the first query
    stand at the first key; FlashAttention lets the last stand at the last, as here.

    >>> from pmpp.kernels import attention
    >>> q, k, v = np.ones((1, 1, 2, 1)), np.ones((1, 1, 2, 1)), np.array([4.0, 8.0]).reshape(1, 1, 2, 1)
    >>> q, k, v = (x.astype(np.float32) for x in (q, k, v))
    >>> attention.skipping(q, k, v, True, scale=1.0).copy_to_host().ravel()
    array([4., 6.], dtype=float32)
    """
    stream = device.as_stream(stream)
    q = device.as_input("q", q, dtypes="float32", ndim=4, stream=stream)
    batch, heads, queries, size = q.shape
    if not 1 <= size <= MOST_SIZE:
        raise ValueError(f"q must have a size from 1 to {MOST_SIZE} in its last dimension, had shape {q.shape}")
    k = device.as_input("k", k, dtypes="float32", ndim=4, shape=(batch, None, None, size), stream=stream)
    groups, keys = k.shape[1:3]
    if groups == 0 if heads else groups:
        raise ValueError(f"k must have {'at least one head' if heads else 'no head'}, as q, had shape {k.shape}")
    if heads and heads % groups:
        raise ValueError(f"k must have a number of heads that divides the {heads} of q, had {groups}")
    v = device.as_input("v", v, dtypes="float32", ndim=4, shape=k.shape, stream=stream)
    causal = as_flag("causal", causal)
    window = None if window is None else as_integer("window", window, 1)
    scale = as_scale(scale, size)
    out = device.as_output("out", out, shape=q.shape, dtype="float32", apart={"q": q, "k": k, "v": v}, stream=stream)
    sizes = Sizes(heads // groups if groups else 1, queries, keys, size, *limits(queries, keys, causal, window))
    p = Problem(out, stream=stream, sizes=sizes, scale=np.float32(float(scale) * math.log2(math.e)))
    if out.size and not keys:
        zero_kernel[blocks(out.size, BLOCK), BLOCK, stream](reshaped(out, (out.size,)))
        p.done = True
    elif out.size:
        p.q, p.k, p.v, p.out = (reshaped(x, (x.shape[0] * x.shape[1], *x.shape[2:])) for x in (q, k, v, out))
    return p


def as_scale(scale: typing.Any, size: int) -> np.float32:
    """The scale of queries of ``size`` elements: as it is given, or 1 / sqrt(size) for None."""
    if scale is None:
        return np.float32(1 / math.sqrt(size))
    return as_number("scale", scale, -MOST_SCALE, MOST_SCALE)


def reshaped(x: typing.Any, shape: tuple[int, ...]) -> typing.Any:
    """A view of a device array in C order with another shape.

    An axis of one element may have any stride, and in NumPy's ``x[None]`` it has the stride 0. Numba takes an array
    with such a stride for one with gaps, and does not reshape it.
    """
    if 0 in x.strides and x.size:
        core = x if x.size == 1 else x[tuple(0 if stride == 0 else slice(None) for stride in x.strides)]
        core = device.as_input("x", core, dtypes=x.dtype, layout="any")  # Numba's own arrays do not know their memory
        return strided(core, shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape))))
    return x.reshape(shape)


BLOCK = 128  # threads a block, where nothing else decides


@cuda.jit
def zero_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = f0


# -------------------------------------------------------------------------------------------- all scores in memory
# From here on the arrays have three dimensions: (batch x heads, rows, size). Head n of q uses head n // shared of k and
# v. The exponentials are powers of 2, which the hardware computes: so ``scale`` has the factor log2(e) in it.


@cuda.jit
def turned_kernel(k, turned):
    at = cuda.grid(1)
    if at < turned.size:
        key, at = at % turned.shape[2], at // turned.shape[2]
        turned[at // turned.shape[1], at % turned.shape[1], key] = k[at // turned.shape[1], key, at % turned.shape[1]]


@cuda.jit(device=True)
def finite_base(highest):
    """What is taken off the scores: their maximum; or 0 if that is -inf, since -inf - -inf is NaN."""
    return highest if highest != LEAST else f0


@cuda.jit
def weights_kernel(scores, scale, sizes):
    """Scores become weights, in place: a block for each query."""
    partial = cuda.shared.array(32, np.float32)
    head, query = cuda.blockIdx.x // sizes.queries, cuda.blockIdx.x % sizes.queries
    first, last = max(query + sizes.low, 0), min(query + sizes.high, sizes.keys)
    highest = LEAST
    for j in range(first + cuda.threadIdx.x, last, BLOCK):
        highest = max(highest, scores[head, query, j] * scale)
    base = finite_base(block_max(highest, partial))
    cuda.syncthreads()  # everyone has read `partial`
    total = f0
    for j in range(first + cuda.threadIdx.x, last, BLOCK):
        total += cuda.libdevice.exp2f(scores[head, query, j] * scale - base)
    total = block_sum(total, partial)
    share = f1 / total if total != f0 else f0
    for j in range(cuda.threadIdx.x, sizes.keys, BLOCK):
        weight = f0
        if first <= j < last:
            weight = cuda.libdevice.exp2f(scores[head, query, j] * scale - base) * share
        scores[head, query, j] = weight


@rung(turned_kernel, batched.kernel_for, weights_kernel)
def materialised(p):
    """A product of matrices writes all scores, a softmax makes weights of them, and a second product uses these.

    Queries of heads that share keys are the rows of one matrix.

    Source: Vaswani et al., Attention Is All You Need, 2017, section 3.2. The products are
    `pmpp.kernels.matmul.batched`.

    Leaves: the scores go to memory and come back twice, and they are far more than the inputs.
    """
    (heads, queries, size), (groups, keys, _) = p.q.shape, p.k.shape
    if max(heads * queries * keys, p.k.size) > batched.MOST_ELEMENTS or heads * queries > MOST_BLOCKS:
        raise ValueError(f"q and k must have fewer than 2^32 scores for this rung, had {heads * queries * keys}")
    rows = groups, heads // groups * queries
    turned = device.empty((groups, size, keys), np.float32, stream=p.stream)
    scores = device.empty((heads, queries, keys), np.float32, stream=p.stream)
    turned_kernel[blocks(turned.size, BLOCK), BLOCK, p.stream](p.k, turned)
    multiply(p.q.reshape((*rows, size)), turned, scores.reshape((*rows, keys)), p.stream)
    weights_kernel[heads * queries, BLOCK, p.stream](scores, p.scale, p.sizes)
    multiply(scores.reshape((*rows, keys)), p.v, p.out.reshape((*rows, size)), p.stream)


def multiply(a: typing.Any, b: typing.Any, c: typing.Any, stream: typing.Any) -> None:
    """c[i] = a[i] @ b[i] for every i."""
    sizes = batched.Sizes(a.shape[0], b.shape[0], m=a.shape[1], n=b.shape[2], k=a.shape[2])
    batched.launch(a, b, batched.no_bias(), False, c, sizes, stream)


# ------------------------------------------------------------------------------------------------- a warp for a query

PER_LANE = MOST_SIZE // 32  # elements of a query that a lane has


@cuda.jit
def online_kernel(q, k, v, out, scale, sizes):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row >= q.shape[0] * sizes.queries:
        return
    head, query = row // sizes.queries, row % sizes.queries
    group = head // sizes.shared
    own, sums = cuda.local.array(PER_LANE, np.float32), cuda.local.array(PER_LANE, np.float32)
    for c in range(PER_LANE):
        own[c], sums[c] = f0, f0
        if lane + 32 * c < sizes.size:
            own[c] = q[head, query, lane + 32 * c] * scale
    highest, total = LEAST, f0
    for j in range(sizes.keys):
        score = f0
        for c in range(PER_LANE):
            if lane + 32 * c < sizes.size:
                score += own[c] * k[group, j, lane + 32 * c]
        score = warp_sum(score)
        if sizes.low <= j - query < sizes.high:
            top = max(highest, score)
            base = finite_base(top)
            keep, weight = cuda.libdevice.exp2f(highest - base), cuda.libdevice.exp2f(score - base)
            highest, total = top, total * keep + weight
            for c in range(PER_LANE):
                if lane + 32 * c < sizes.size:
                    sums[c] = sums[c] * keep + weight * v[group, j, lane + 32 * c]
    share = f1 / total if total != f0 else f0
    for c in range(PER_LANE):
        if lane + 32 * c < sizes.size:
            out[head, query, lane + 32 * c] = sums[c] * share


@rung(online_kernel)
def online(p):
    """A warp takes a query from key to key, and scales down what it has summed whenever the maximum grows.

    No score is written to memory.

    Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.

    Leaves: each query reads all keys and all values, and its lanes add up every score by five shuffles.
    """
    rows = p.q.shape[0] * p.sizes.queries
    online_kernel[grid_of(blocks(32 * rows, BLOCK)), BLOCK, p.stream](p.q, p.k, p.v, p.out, p.scale, p.sizes)


def grid_of(number: int) -> int:
    """So many blocks, if a grid may have them."""
    if number > MOST_BLOCKS:
        raise ValueError(f"q must have so few queries that 2^31 - 1 blocks do, needed {number} blocks")
    return number


# ------------------------------------------------------------------------------------------ tiles in shared memory

SIDE = 32  # queries and keys of a tile: the lanes of a warp have a key each
HEIGHT = 8  # warps of a block
ROWS = SIDE // HEIGHT  # queries of a warp
PITCH = MOST_SIZE + 1  # odd, as lanes go down the columns of a tile


@cuda.jit(device=True)
def copy_tile(tile, x, head, first, rows, size):
    """Rows of x[head] from ``first`` on into shared memory, and zeros for those that x does not have."""
    for i in range(cuda.threadIdx.y, SIDE, HEIGHT):
        for c in range(cuda.threadIdx.x, size, 32):
            tile[i, c] = x[head, first + i, c] if first + i < rows else f0


@cuda.jit
def tiled_kernel(q, k, v, out, scale, sizes):
    q_tile = cuda.shared.array((SIDE, MOST_SIZE), np.float32)
    tile = cuda.shared.array((SIDE, PITCH), np.float32)  # of k, then of v
    weights = cuda.shared.array((SIDE, SIDE), np.float32)
    x, y = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    tiles = (sizes.queries + SIDE - 1) // SIDE
    head, query0 = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * SIDE
    group, size = head // sizes.shared, sizes.size
    sums = cuda.local.array((ROWS, PER_LANE), np.float32)
    highest, total = cuda.local.array(ROWS, np.float32), cuda.local.array(ROWS, np.float32)
    for i in range(ROWS):
        highest[i], total[i] = LEAST, f0
        for c in range(PER_LANE):
            sums[i, c] = f0
    copy_tile(q_tile, q, head, query0, sizes.queries, size)
    key0 = 0
    while key0 < sizes.keys:
        cuda.syncthreads()  # everyone has read the values of the tile before
        copy_tile(tile, k, group, key0, sizes.keys, size)
        cuda.syncthreads()
        for i in range(ROWS):  # warp y has the queries y, y + 8, y + 16 and y + 24, and lane x the key x
            score, column = f0, 0
            while column < size:
                score += q_tile[y + i * HEIGHT, column] * tile[x, column]
                column += 1
            away = key0 + x - (query0 + y + i * HEIGHT)
            score = score * scale if sizes.low <= away < sizes.high and key0 + x < sizes.keys else LEAST
            top = max(highest[i], warp_max(score))
            base = finite_base(top)
            keep, weight = cuda.libdevice.exp2f(highest[i] - base), cuda.libdevice.exp2f(score - base)
            weights[y + i * HEIGHT, x] = weight
            highest[i], total[i] = top, total[i] * keep + warp_sum(weight)
            for c in range(PER_LANE):
                sums[i, c] *= keep
        cuda.syncthreads()  # everyone has read the keys, and the weights are there
        copy_tile(tile, v, group, key0, sizes.keys, size)
        cuda.syncthreads()
        j = 0
        while j < min(SIDE, sizes.keys - key0):
            for c in range(PER_LANE):
                if x + 32 * c < size:
                    value = tile[j, x + 32 * c]
                    for i in range(ROWS):
                        sums[i, c] += weights[y + i * HEIGHT, j] * value
            j += 1
        key0 += SIDE
    for i in range(ROWS):
        query, share = query0 + y + i * HEIGHT, f1 / total[i] if total[i] != f0 else f0
        for c in range(PER_LANE):
            if query < sizes.queries and x + 32 * c < size:
                out[head, query, x + 32 * c] = sums[i, c] * share


@rung(tiled_kernel)
def tiled(p):
    """32 queries share keys and values in shared memory. A warp has a query's scores for 32 keys at a time.

    So the maximum is looked at once for 32 keys.

    Source: Dao et al., FlashAttention, NeurIPS 2022.

    Leaves: as in the first tiled product of matrices, there are more loads from shared memory than multiply-adds.
    """
    grid = grid_of(p.q.shape[0] * blocks(p.sizes.queries, SIDE))
    tiled_kernel[grid, (32, HEIGHT), p.stream](p.q, p.k, p.v, p.out, p.scale, p.sizes)


# ------------------------------------------------------------------------------------------------ tiles in registers
# A block has 64 queries, and each of its two warps 32 of them. In both products a thread has 8 of these rows. The lanes
# of a warp form a grid of 4 rows and 8 columns. So a warp has whole rows of weights, and only its own lanes read them.

THREADS, QUERIES, OWN_ROWS = 64, 64, 8  # of a block; of a block; of a thread
LANES_Y, LANES_X = 4, 8


class Tile(typing.NamedTuple):
    """``columns``: of q, k, v and out, ``size`` rounded up. ``keys``: of a tile.

    Shared memory has room for the tile's keys with ``depth`` of their columns, or for ``chunk`` of its values.
    ``registers``: the most that a thread may have.
    """

    columns: int
    keys: int
    depth: int
    chunk: int
    registers: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the queries, a stage for keys and then for values, and weights."""
        stage = max(self.keys * (self.depth + PAD), self.chunk * self.columns)
        return 4 * (QUERIES * (self.columns + PAD) + stage + QUERIES * (self.chunk + WEIGHT_PAD))


PAD, WEIGHT_PAD = 4, 8  # so rows that lanes read or write together begin in other banks
# The sums of a thread are 8 x columns / 8 registers, its scores 8 x keys / 8. Wider rows leave room for fewer keys.
TILES = (
    Tile(32, keys=64, depth=32, chunk=32, registers=168),
    Tile(64, keys=64, depth=64, chunk=32, registers=200),
    Tile(96, keys=32, depth=96, chunk=32, registers=255),
    Tile(128, keys=32, depth=64, chunk=16, registers=255),
)


@functools.cache
def kernel_for(tile: Tile, wide: bool) -> typing.Any:
    """The kernel ``(q, k, v, out, logs, scale, sizes, skip)`` of a tile, with a block for 64 queries of a head.

    ``wide``: rows are read and written 16 bytes at a time. ``logs``: takes the logarithm of each query's sum of
    exponentials, in base 2, or is empty. ``skip``: tiles that no query of the block sees are left out.
    """
    columns, keys, depth, chunk, registers = tile
    pitch_q, pitch_k, pitch_w = columns + PAD, depth + PAD, chunk + WEIGHT_PAD
    own_keys, own_columns, chunks = keys // LANES_X, columns // LANES_X, keys // chunk
    stage_at = QUERIES * pitch_q
    weights_at = stage_at + max(keys * pitch_k, chunk * columns)
    room = weights_at + QUERIES * pitch_w

    @cuda.jit(device=True)
    def lane_place():
        """(y, x): the lane's place in the grid of its warp, and the warp's first row."""
        # Four lanes in a row form a 2 x 2 square: a warp's load from shared memory then takes two passes.
        thread = np.uint32(cuda.threadIdx.x)
        y, x = thread // 16 % 2 * 2 + thread // 2 % 2, thread // 4 % 4 * 2 + thread % 2
        return y, x, thread // 32 * 32

    @cuda.jit(device=True)
    def fill(shared, begin, pitch, pieces, lines, x, head, first, last, column, size, scale):
        """Copy rows of x[head] from ``first`` on, 8 x ``lines``, and columns from ``column`` on, 32 x ``pieces``.

        x[head] has ``last`` rows, and beyond them the last is read again: its products are hidden, not stored, or have
        the weight 0. Beyond the ``size`` columns there are zeros.
        """
        values = cuda.local.array((8, 4), np.float32)
        thread = np.uint32(cuda.threadIdx.x)
        i, c = thread // 8, np.uint32(thread % 8 * 4)
        most, pitch_x, left = np.uint32(last - first - 1), np.uint32(size), np.uint32(size - column)
        origin = (head * last + first) * size + column
        piece = 0
        while piece < pieces:
            for v in range(lines):  # all loads, and then all stores: no load waits for another
                row = min(np.uint32(i + 8 * v), most)
                for e in range(4):
                    values[v, e] = f0
                if wide:
                    if c < left:
                        vector = load128(x, origin + np.uint32(row * pitch_x + c))
                        for e in range(4):
                            values[v, e] = vector[e]
                else:
                    for e in range(4):
                        if c + e < left:
                            values[v, e] = x[head, first + row, column + c + e]
            for v in range(lines):
                vector = values[v, 0] * scale, values[v, 1] * scale, values[v, 2] * scale, values[v, 3] * scale
                store128(shared, begin + np.uint32(np.uint32(i + 8 * v) * pitch + c + 32 * piece), vector)
            if not wide:
                column += 32
            origin, left = origin + 32, np.uint32(left - 32 if left > 32 else 0)
            piece += 1

    @cuda.jit(device=True)
    def row_scores(shared, q_from, i, k_values, scores):
        """Add the products of four columns to the thread's scores in its row number i."""
        vector = load128(shared, q_from + i * (LANES_Y * pitch_q))
        for e in range(4):
            for j in range(own_keys):
                scores[i, j] += vector[e] * k_values[j, e]

    @cuda.jit(device=True)
    def add_scores(shared, q_from, k_from, deep, scores):
        """Add the products of so many columns, a multiple of 4: four at a time."""
        k_values = cuda.local.array((own_keys, 4), np.float32)
        d = np.uint32(0)
        while d < deep:
            for j in range(own_keys):
                vector = load128(shared, k_from + j * (LANES_X * pitch_k) + d)
                for e in range(4):
                    k_values[j, e] = vector[e]
            # Written out, since the compiler unrolls only small loops, and only then are the scores in registers.
            row_scores(shared, q_from + d, 0, k_values, scores)
            row_scores(shared, q_from + d, 1, k_values, scores)
            row_scores(shared, q_from + d, 2, k_values, scores)
            row_scores(shared, q_from + d, 3, k_values, scores)
            row_scores(shared, q_from + d, 4, k_values, scores)
            row_scores(shared, q_from + d, 5, k_values, scores)
            row_scores(shared, q_from + d, 6, k_values, scores)
            row_scores(shared, q_from + d, 7, k_values, scores)
            d += np.uint32(4)

    @cuda.jit(device=True)
    def hide(scores, row, key, sizes):
        """What this row does not see becomes -inf. The thread's first score is that of (row, key)."""
        for i in range(OWN_ROWS):
            query = row + i * LANES_Y
            first = np.int32(min(max(query + sizes.low - key, 0), keys))
            last = np.int32(min(max(min(query + sizes.high, sizes.keys) - key, 0), keys))
            for j in range(own_keys):
                if not first <= j * LANES_X < last:
                    scores[i, j] = LEAST

    @cuda.jit(device=True)
    def update(scores, highest, totals, sums):
        """Scores become weights, relative to the new maximum of their row. What was summed before is scaled."""
        for i in range(OWN_ROWS):
            top = highest[i]
            for j in range(own_keys):
                top = max(top, scores[i, j])
            for distance in (1, 4, 8):  # the lanes that have the same rows
                top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
            base = finite_base(top)
            keep = cuda.libdevice.exp2f(highest[i] - base)
            highest[i] = top
            totals[i] *= keep  # of this lane's keys alone, until the end
            for j in range(own_columns):
                sums[i, j] *= keep
            for j in range(own_keys):
                scores[i, j] = cuda.libdevice.exp2f(scores[i, j] - base)
                totals[i] += scores[i, j]

    @cuda.jit(device=True)
    def key_values(shared, v_from, e, weights, sums):
        """Add the values of one key, whose weights are number e of the thread's four."""
        values = cuda.local.array(own_columns, np.float32)
        for piece in range(own_columns // 4):
            vector = load128(shared, v_from + e * columns + piece * 32)
            for c in range(4):
                values[4 * piece + c] = vector[c]
        for i in range(OWN_ROWS):
            for j in range(own_columns):
                sums[i, j] += weights[i, e] * values[j]

    @cuda.jit(device=True)
    def add_values(shared, w_from, v_from, count, sums):
        """Add the weighted values of so many keys: four at a time."""
        weights = cuda.local.array((OWN_ROWS, 4), np.float32)
        key = np.uint32(0)
        while key < count:
            for i in range(OWN_ROWS):
                vector = load128(shared, w_from + i * (LANES_Y * pitch_w) + key)
                for e in range(4):
                    weights[i, e] = vector[e]
            key_values(shared, v_from + key * columns, 0, weights, sums)
            key_values(shared, v_from + key * columns, 1, weights, sums)
            key_values(shared, v_from + key * columns, 2, weights, sums)
            key_values(shared, v_from + key * columns, 3, weights, sums)
            key += np.uint32(4)

    @cuda.jit(device=True)
    def chunk_step(shared, v, group, key0, sizes, scores, first, w_at, v_from, sums):
        """Add the values of one chunk of the tile's keys: of the scores from column ``first`` on."""
        begin = key0 + first * LANES_X
        cuda.syncthreads()  # everyone has read what stood in the stage, and the weights
        fill(shared, stage_at, columns, columns // 32, chunk // 8, v, group, begin, sizes.keys, 0, sizes.size, f1)
        x = lane_place()[1]
        for i in range(OWN_ROWS):
            for j in range(chunk // LANES_X):
                shared[w_at + i * (LANES_Y * pitch_w) + j * LANES_X + x] = scores[i, first + j]
        cuda.syncthreads()
        add_values(shared, w_at, v_from, np.uint32(min(chunk, sizes.keys - begin)), sums)

    @cuda.jit(max_registers=registers)
    def kernel(q, k, v, out, logs, scale, sizes, skip):
        shared = cuda.shared.array(room, np.float32, alignment=16)
        scores = cuda.local.array((OWN_ROWS, own_keys), np.float32)
        sums = cuda.local.array((OWN_ROWS, own_columns), np.float32)
        highest, totals = cuda.local.array(OWN_ROWS, np.float32), cuda.local.array(OWN_ROWS, np.float32)
        tiles = (sizes.queries + QUERIES - 1) // QUERIES
        # With a causal mask the last queries have the most keys: they begin first.
        head, query0 = cuda.blockIdx.x // tiles, (tiles - 1 - cuda.blockIdx.x % tiles) * QUERIES
        group, size = head // sizes.shared, sizes.size
        y, x, warp_row = lane_place()
        row = warp_row + y
        for i in range(OWN_ROWS):
            highest[i], totals[i] = LEAST, f0
            for j in range(own_columns):
                sums[i, j] = f0
        fill(shared, 0, pitch_q, columns // 32, QUERIES // 8, q, head, query0, sizes.queries, 0, size, scale)
        key0, end = np.int64(0), np.int64(sizes.keys)
        last = min(query0 + QUERIES, sizes.queries) - 1
        if skip:
            key0 = max(query0 + sizes.low, 0) // keys * keys
            end = min(last + sizes.high, sizes.keys)
        while key0 < end:
            for i in range(OWN_ROWS):
                for j in range(own_keys):
                    scores[i, j] = f0
            column = 0
            while column < size:
                cuda.syncthreads()  # everyone has read what stood in the stage
                fill(shared, stage_at, pitch_k, depth // 32, keys // 8, k, group, key0, sizes.keys, column, size, f1)
                cuda.syncthreads()
                deep = np.uint32(min(depth, size - column))
                add_scores(shared, row * pitch_q + column, stage_at + x * pitch_k, deep, scores)
                column += depth
            if key0 < last + sizes.low or key0 + keys > min(query0 + sizes.high, sizes.keys):
                hide(scores, query0 + row, key0 + x, sizes)
            update(scores, highest, totals, sums)
            w_at, v_from = weights_at + row * pitch_w, stage_at + 4 * x
            chunk_step(shared, v, group, key0, sizes, scores, 0, w_at, v_from, sums)
            if chunks > 1 and key0 + chunk < end:
                chunk_step(shared, v, group, key0, sizes, scores, chunk // LANES_X, w_at, v_from, sums)
            key0 += keys
        for i in range(OWN_ROWS):
            total, query = totals[i], query0 + row + i * LANES_Y
            for distance in (1, 4, 8):
                total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
            share = f1 / total if total != f0 else f0
            if query < sizes.queries:
                if logs.size and x == 0:
                    logs[head * sizes.queries + query] = highest[i] + cuda.libdevice.log2f(total)
                for piece in range(own_columns // 4):
                    c = 4 * x + 32 * piece
                    if wide:
                        if c < size:
                            vector = (
                                sums[i, 4 * piece] * share,
                                sums[i, 4 * piece + 1] * share,
                                sums[i, 4 * piece + 2] * share,
                                sums[i, 4 * piece + 3] * share,
                            )
                            store128(out, (head * sizes.queries + query) * size + c, vector)
                    else:
                        for e in range(4):
                            if c + e < size:
                                out[head, query, c + e] = sums[i, 4 * piece + e] * share

    return kernel


@device.cached(1)
def no_logs() -> typing.Any:
    """What `launch` takes if nobody wants the logarithms."""
    return device.empty(0, np.float32)


def launch(p: Problem, skip: bool, logs: typing.Any = None) -> None:
    """A problem by the kernel that fits its size. ``logs``: a device array of a number for each query, or None."""
    tile = TILES[round_up(p.sizes.size, 32) // 32 - 1]
    wide = p.sizes.size % 4 == 0 and not any(device.address(x) % 16 for x in (p.q, p.k, p.v, p.out))
    grid = grid_of(p.q.shape[0] * blocks(p.sizes.queries, QUERIES))
    logs = no_logs() if logs is None else logs
    kernel_for(tile, wide)[grid, THREADS, p.stream](p.q, p.k, p.v, p.out, logs, p.scale, p.sizes, skip)


@rung(kernel_for)
def register_tiled(p):
    """A thread has 8 x 8 scores in registers, then 8 x 8 elements of the result: a load for 16 multiply-adds.

    Keys and values take turns in one place in shared memory, so that many blocks fit on a multiprocessor. While one
    block waits for memory, others compute.

    Source: Volkov and Demmel, SC 2008, for the tiles; Dao, FlashAttention-2, 2023, for a warp with rows of its own.

    Leaves: scores that a mask leaves out are computed all the same.
    """
    launch(p, False)


@rung(kernel_for)
def skipping(p):
    """A block begins at the first tile of keys that any of its queries sees, and ends behind the last.

    Source: Dao, FlashAttention-2, 2023, section 3.1.

    Leaves: a block asks for its keys when it needs them, and so for its values, and waits until they are there.
    """
    launch(p, True)


# ------------------------------------------------------------------------------------------ tiles that are streamed


def launch_stream(p: Problem, logs: typing.Any = None) -> None:
    """A problem by the streamed kernel that fits its size, or by `skipping` where the GPU cannot run that one.

    ``logs`` is as in `launch`.
    """
    tile = next(tile for tile in STREAMS if tile.columns >= p.sizes.size)
    if not streams.can_copy(tile.shared_bytes):
        launch(p, True, logs)
        return
    wide = p.sizes.size % 4 == 0 and not any(device.address(x) % 16 for x in (p.q, p.k, p.v, p.out))
    grid = grid_of(p.q.shape[0] * blocks(p.sizes.queries, tile.queries))
    logs = no_logs() if logs is None else logs
    kernel = stream_kernel(tile, wide, wide and p.sizes.size == tile.columns)[
        grid, tile.threads, p.stream, tile.shared_bytes
    ]
    kernel(p.q, p.k, p.v, p.out, logs, p.scale, p.sizes)


@rung(stream_kernel)
def streamed(p):
    """While a block multiplies, the next keys or values are already on their way into shared memory.

    Shared memory has two stages: one is read, the other is filled by asynchronous copies, which need no registers. So
    a block waits for memory only before its first product, and for the other warps twice a chunk. `skipping` does the
    work on GPUs without such copies, or without shared memory for two stages: some have only 100 KiB.

    Source: chapter 40 for the copies; Dao, FlashAttention-2, 2023.
    """
    launch_stream(p)


LADDER = (materialised, online, tiled, register_tiled, skipping, streamed)
