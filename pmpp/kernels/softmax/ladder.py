"""Softmax: each row becomes shares that add up to 1, exp(x - max) / sum(exp(x - max)), or the logarithms of these.

Chapter: notebooks/50_softmax.ipynb.  PMPP 4e ch. 10 and 16.

At best each element is read once and written once, and the arithmetic takes less time than that. But no share can be
written before the maximum and the sum of the whole row are known. The rungs differ in where a row is until then. All
but the last read it again, from a cache or from device memory. The last keeps it in registers: those of one thread, a
few lanes, a block or several blocks, depending on the length of the row.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max, block_sum, blocks
from pmpp.kernels.softmax.rows import (
    BLOCK,
    DEEP,
    FILL,
    HELD,
    MEMBERS,
    TINY,
    TOGETHER,
    Part,
    append,
    block_join,
    block_kernel,
    blocks_kernel,
    elements_kernel,
    empty_kernel,
    held_columns_kernel,
    join,
    lanes_kernel,
    rows_kernel,
    warp_join,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.dtypes import is_bfloat16, known, rounding
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import widened, width_of

DTYPES = ("float32", "float64", "float16", "bfloat16")
SHORT_DTYPES = DTYPES[2:]  # computed in float32, and rounded once


def reference(x: np.ndarray, axis: int = -1, log: bool = False) -> np.ndarray:
    """Softmax along ``axis``, or its logarithm, one row after another, in float64.

    A row that has a NaN or a +inf becomes NaN, and so does a row of nothing but -inf. Elsewhere -inf gives 0, or -inf
    for the logarithm. PyTorch defines it in the same way.
    """
    out = np.empty(x.shape, np.float64)
    rows, results = np.moveaxis(x.astype(np.float64), axis, -1), np.moveaxis(out, axis, -1)
    with np.errstate(all="ignore"):
        for row in np.ndindex(rows.shape[:-1] if x.size else (0,)):
            below = rows[row] - rows[row].max()
            total = np.exp(below).sum()
            results[row] = below - np.log(total) if log else np.exp(below) / total
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, axis, log)``."""
    rng = np.random.default_rng(16) if rng is None else rng
    shapes = {"one": (1, 1), "one a row": (77, 1), "one row": (1, 1001), "no rows": (0, 5), "no columns": (5, 0)}
    shapes |= {f"rows of {n}": (9, n) for n in (2, 3, 4, 7, 8, 9, 10, 16, 31, 32, 33, 64)}
    shapes |= {"rows of a warp +1": (5, 1025), "rows of a block": (2, 4096), "longer than a block": (2, 9001)}
    shapes |= {"a vector": (300,), "a long row": (1, 40_001), "long rows": (3, 33_000)}
    made = {name: (rng.standard_normal(shape, dtype=np.float32), -1, False) for name, shape in shapes.items()}
    made["log"] = (made["rows of 64"][0], -1, True)
    made["log of long rows"] = (made["long rows"][0], -1, True)
    cube = rng.standard_normal((3, 50, 40), dtype=np.float32)
    made |= {f"axis {axis} of three": (cube, axis, False) for axis in range(3)}
    made |= {"axis 0, log": (cube, 0, True), "a tall column": (cube.reshape(-1, 1), 0, False)}
    made["float64"] = (rng.standard_normal((5, 333)), -1, False)
    made["float64, a long row"] = (rng.standard_normal((1, 17_001)), 1, False)
    made["float64, axis 0, log"] = (rng.standard_normal((33, 7)), 0, True)
    for dtype in known(SHORT_DTYPES):
        made |= {f"{dtype}, rows of {n}": (made[f"rows of {n}"][0].astype(dtype), -1, False) for n in (3, 9, 33)}
        made[f"{dtype}, log"] = (3 * made["rows of 64"][0].astype(dtype), -1, True)
        made[f"{dtype}, axis 1 of three"] = (cube[:1, :, :9].astype(dtype), 1, False)
        made[f"{dtype}, non-finite"] = (_non_finite(rng, 70).astype(dtype), -1, False)
        extremes = np.float32([6.5e4, -6.5e4, 0, 6e-8, 1, 30] * 9).astype(dtype)  # as far as a float16 reaches
        made[f"{dtype}, extremes"] = (rng.permutation(extremes).reshape(2, -1), -1, False)
    made["all equal"] = (np.full((4, 100), 0.1, np.float32), -1, False)
    made["large"] = (rng.uniform(-1e4, 1e4, (4, 1000)).astype(np.float32), -1, False)  # exp(89) is past float32
    made["large, log"] = (made["large"][0], -1, True)
    made["far below 0"] = (made["rows of 64"][0] - 1000, -1, False)  # a maximum that begins at 0 stays there
    made["extremes"] = (rng.permutation(np.float32([3.4e38, -3.4e38, 0, 1e-45] * 9)).reshape(1, -1), -1, False)
    for log in (False, True):
        made[f"non-finite{', log' * log}"] = (_non_finite(rng, 64), -1, log)
    rising = np.linspace(-50, 50, 1100, dtype=np.float32)[None].repeat(2, 0)  # every maximum is overtaken
    rising[1, :700] = -np.inf
    made["non-finite, rising"] = (rising, -1, False)
    made["non-finite, axis 0"] = (_non_finite(rng, 50).T.copy(), 0, False)
    made["non-finite, long rows"] = (_non_finite(rng, 5000), -1, False)
    made |= {f"non-finite, rows of {n}": (_non_finite(rng, n), -1, False) for n in (1, 3, 7)}
    made["non-finite, rows of 4, log"] = (_non_finite(rng, 4), -1, True)
    return made


def _non_finite(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.standard_normal((6, n)).astype(np.float32)
    x[0, rng.random(n) < 0.5] = -np.inf
    x[1] = -np.inf
    x[2, : n // 2] = -np.inf  # more than a thread, or a warp, sees at first
    x[3, -1] = np.inf
    x[4, n // 2] = np.nan
    x[5, :-1] = -np.inf
    return x


def tolerance(x: np.ndarray, axis: int = -1, log: bool = False) -> np.ndarray:
    """How far from `reference` a right result in the dtype of ``x`` may be, element by element.

    u is half an eps. Rounding x - max costs u of its size. The hardware's exponential is good to 2 + 1.173 |x - max|
    ulp, and an ulp is at most 2 u. Together that is a relative error of (4 + 3.35 |x - max|) u. log is good to 2 ulp. A
    term of the sum goes through additions, and in the online form through rescalings, each good to 6 u. At most
    n / 8 + 16 of them follow one another. Their errors add like a random walk, and four times its size is allowed
    (Higham and Mary, 2019). Below the smallest normal number, four times the spacing of numbers there is allowed as
    well. A result of 16 bits is that of float32, rounded once. Source: CUDA C++ programming guide, "Mathematical
    functions".
    """
    if not x.size:
        return np.zeros(x.shape)
    if x.dtype.itemsize == 2:
        exact = tolerance(x.astype(np.float32), axis, log)
        return exact + rounding(np.abs(np.nan_to_num(reference(x, axis, log), neginf=0)) + exact, x.dtype)
    u, wide = np.finfo(x.dtype).eps / 2, x.astype(np.float64)
    with np.errstate(all="ignore"):
        below = np.abs(wide - wide.max(axis=axis, keepdims=True))
        below = np.where(np.isfinite(below), below, 0)
        shares = np.nan_to_num(reference(x, axis))
        total = 3.35 * (shares * below).sum(axis=axis, keepdims=True) + 4 + 24 * math.sqrt(x.shape[axis] / 8 + 16)
        if log:
            result = np.nan_to_num(np.abs(reference(x, axis, log=True)), posinf=0)
            return u * (below + total + 4 * math.log(x.shape[axis]) + 2 * result)
    return u * shares * (3.35 * below + 4 + total + 6) + 4 * float(np.finfo(x.dtype).smallest_subnormal)


def cost(m: int, n: int, itemsize: int = 4) -> Cost:
    """m rows of n. Operations an element: compare, subtract, exponential, add, divide. Each is read and written."""
    return Cost(flops=5 * m * n, bytes=2 * m * n * itemsize)


def arguments(x, axis=-1, log=False, *, out=None, stream=0) -> Problem:
    """Softmax of each row, ``exp(x - max) / sum(exp(x - max))``: shares that add up to 1.

    Args:
        x: an array of any shape but (), of float32, float64, float16 or bfloat16, contiguous in C order. Numbers of 16
            bits are computed with in float32, and the result is rounded once.
        axis: the rows run along it; from -x.ndim to x.ndim - 1.
        log: True for the logarithms of the shares, ``x - max - log(sum(exp(x - max)))``.
        out: a device array of the shape and dtype of ``x``, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. A row that has a NaN or a +inf becomes NaN, and so does a
    row of nothing but -inf. Other -inf become 0, or -inf with ``log``.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PyTorch's torch.softmax and torch.log_softmax.

    >>> from pmpp.kernels import softmax
    >>> softmax.vectorised(np.float32([[0, 0, 0, 0], [9, 9, -np.inf, -np.inf]])).copy_to_host()
    array([[0.25, 0.25, 0.25, 0.25],
           [0.5 , 0.5 , 0.  , 0.  ]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, stream=stream)
    along = as_integer("axis", axis)
    if not -x.ndim <= along < x.ndim:
        raise ValueError(f"axis must be from {-x.ndim} to {x.ndim - 1} for x of shape {x.shape}, was {along}")
    log = as_flag("log", log)
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart={"x": x}, stream=stream)
    wide = device.empty(1, np.float32, stream=stream) if x.dtype.itemsize == 2 else x
    along %= x.ndim
    outer, n, inner = math.prod(x.shape[:along]), x.shape[along], math.prod(x.shape[along + 1 :])
    return Problem(
        out,
        stream=stream,
        x=x.reshape((outer, n, inner)) if x.size else x,  # softmax runs along the n
        out=out.reshape((outer, n, inner)) if x.size else out,
        rows=outer * inner,
        log=log,
        none=nothing(wide.dtype),
        wide=wide,  # of the dtype that is computed in; only the dtype counts
    )


@functools.cache
def nothing(dtype: np.dtype) -> Part:
    """What has been seen of no elements."""
    return Part(dtype.type(np.finfo(dtype).min), dtype.type(0))


@cuda.jit(device=True)
def place(x, row):
    """(a, b), where ``x`` has shape (outer, n, inner) and the row is x[a, :, b]."""
    if x.shape[2] == 1:  # the last axis: no division, which takes about a hundred instructions
        return row, 0
    return row // x.shape[2], row % x.shape[2]


@cuda.jit(device=True)
def share(value, highest, total, log):
    """An element of the result, from its value and the row's maximum and sum."""
    if log:
        return value - highest - math.log(total)
    return math.exp(value - highest) / total


# ------------------------------------------------------------------------------------------------- a block for each row
#
# Numbers of 16 bits are made float32 when they are loaded (`widened`), and rounded once, when they are stored. ``wide``
# is an array of the dtype that is computed in, of which only the dtype counts.
#
# A maximum begins at the lowest finite number, not at -inf. Then x - maximum is never -inf - (-inf), which is NaN, and
# exp(-inf - lowest) is 0, as it should be. A row of nothing but -inf ends as 0 / 0, which is NaN.


@cuda.jit
def highest_kernel(x, highest, none):
    a, b = place(x, cuda.blockIdx.x)
    best = none.highest
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        best = max(best, widened(x[a, i, b]))
    best = block_max(best, cuda.shared.array(32, highest.dtype))
    if cuda.threadIdx.x == 0:
        highest[cuda.blockIdx.x] = best


@cuda.jit
def total_kernel(x, highest, total, none):
    a, b = place(x, cuda.blockIdx.x)
    best, added = highest[cuda.blockIdx.x], none.total
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        added += math.exp(widened(x[a, i, b]) - best)
    added = block_sum(added, cuda.shared.array(32, total.dtype))
    if cuda.threadIdx.x == 0:
        total[cuda.blockIdx.x] = added


@cuda.jit
def normalise_kernel(x, highest, total, out, log):
    a, b = place(x, cuda.blockIdx.x)
    best, added = highest[cuda.blockIdx.x], total[cuda.blockIdx.x]
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[a, i, b] = share(widened(x[a, i, b]), best, added, log)


@rung(highest_kernel, total_kernel, normalise_kernel)
def three_kernels(p):
    """The definition, a kernel for each part of it: the maximum of each row, then the sum, then the shares.

    Source: PMPP 4e section 10.6 for the reductions; the shift by the maximum is common practice.

    Leaves: three kernels read all of ``x``, so a row has left the caches before it is needed again.
    """
    highest, total = (device.empty(p.rows, p.wide.dtype, stream=p.stream) for _ in range(2))
    highest_kernel[p.rows, BLOCK, p.stream](p.x, highest, p.none)
    total_kernel[p.rows, BLOCK, p.stream](p.x, highest, total, p.none)
    normalise_kernel[p.rows, BLOCK, p.stream](p.x, highest, total, p.out, p.log)


@cuda.jit
def fused_kernel(x, out, none, log, wide):
    a, b = place(x, cuda.blockIdx.x)
    best, added = none
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        best = max(best, widened(x[a, i, b]))
    best = block_max(best, cuda.shared.array(32, wide.dtype))
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        added += math.exp(widened(x[a, i, b]) - best)
    added = block_sum(added, cuda.shared.array(32, wide.dtype))
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[a, i, b] = share(widened(x[a, i, b]), best, added, log)


@rung(fused_kernel)
def fused(p):
    """One kernel: a block does all three steps for its row, while the row is still in a cache.

    Rows that are too long for the caches take as long as with `three_kernels`.

    Leaves: a row is read three times, and a row that is too long for the caches comes from memory each time.
    """
    fused_kernel[p.rows, BLOCK, p.stream](p.x, p.out, p.none, p.log, p.wide)


@cuda.jit
def online_kernel(x, out, none, log, wide):
    a, b = place(x, cuda.blockIdx.x)
    best, added = none
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        best, added = append(best, added, widened(x[a, i, b]))
    highests, totals = cuda.shared.array(32, wide.dtype), cuda.shared.array(32, wide.dtype)
    best, added = block_join(best, added, highests, totals, none)
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[a, i, b] = share(widened(x[a, i, b]), best, added, log)


@rung(online_kernel)
def online(p):
    """Maximum and sum in one pass: when the maximum grows, the sum so far is rescaled to the new one.

    Source: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax (2018).

    Leaves: 256 threads meet at a barrier for every row, even for one of 64 elements.
    """
    online_kernel[p.rows, BLOCK, p.stream](p.x, p.out, p.none, p.log, p.wide)


# -------------------------------------------------------------------------------------------------- a warp for each row

SHORT = 1024  # elements in the longest row that is left to a warp
WARPS = BLOCK // 32


@cuda.jit
def warp_per_row_kernel(x, out, none, log):
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row >= x.shape[0] * x.shape[2]:
        return  # all lanes of the warp together, so no shuffle misses one
    a, b = place(x, row)
    best, added = none
    for i in range(cuda.laneid, x.shape[1], 32):
        best, added = append(best, added, widened(x[a, i, b]))
    best, added = warp_join(best, added)
    for i in range(cuda.laneid, x.shape[1], 32):
        out[a, i, b] = share(widened(x[a, i, b]), best, added, log)


@rung(warp_per_row_kernel, online_kernel)
def warp_per_row(p):
    """A warp takes a short row: its lanes agree by shuffles, without a barrier. Longer rows go to `online`.

    Leaves: one block works on a very long row, so a few such rows leave most of the GPU idle.
    """
    if p.x.shape[1] > SHORT:
        online.launch(p)
    else:
        warp_per_row_kernel[blocks(p.rows, WARPS), BLOCK, p.stream](p.x, p.out, p.none, p.log)


# ------------------------------------------------------------------------------------------------ several blocks a row

CHUNK = 8192  # elements of a row that a block takes


@cuda.jit
def part_kernel(x, highests, totals, none):
    parts = -(-x.shape[1] // CHUNK)
    a, b = place(x, cuda.blockIdx.x // parts)
    first = cuda.blockIdx.x % parts * CHUNK
    best, added = none
    for i in range(first + cuda.threadIdx.x, min(first + CHUNK, x.shape[1]), BLOCK):
        best, added = append(best, added, widened(x[a, i, b]))
    partial = cuda.shared.array(32, highests.dtype), cuda.shared.array(32, highests.dtype)
    best, added = block_join(best, added, partial[0], partial[1], none)
    if cuda.threadIdx.x == 0:
        highests[cuda.blockIdx.x], totals[cuda.blockIdx.x] = best, added


@cuda.jit
def whole_kernel(x, out, highests, totals, none, log):
    parts = -(-x.shape[1] // CHUNK)
    row, first = cuda.blockIdx.x // parts, cuda.blockIdx.x % parts * CHUNK
    a, b = place(x, row)
    best, added = none
    for part in range(row * parts + cuda.threadIdx.x, (row + 1) * parts, BLOCK):
        best, added = join(best, added, highests[part], totals[part])
    partial = cuda.shared.array(32, highests.dtype), cuda.shared.array(32, highests.dtype)
    best, added = block_join(best, added, partial[0], partial[1], none)
    for i in range(first + cuda.threadIdx.x, min(first + CHUNK, x.shape[1]), BLOCK):
        out[a, i, b] = share(widened(x[a, i, b]), best, added, log)


@rung(part_kernel, whole_kernel, warp_per_row_kernel, online_kernel)
def split_row(p):
    """Several blocks share a long row: each finds the maximum and sum of its part, and a second kernel joins these.

    Rows of up to CHUNK elements go to `warp_per_row`. Where the rows alone are enough to fill the GPU, it can be
    slower than `warp_per_row`: the second kernel reads a row after it has left the caches.

    Leaves: along any other axis than the last, the elements that a warp reads lie far apart, in 32 sectors.
    """
    if p.x.shape[1] <= CHUNK:
        warp_per_row.launch(p)
        return
    grid = p.rows * blocks(p.x.shape[1], CHUNK)
    highests, totals = (device.empty(grid, p.wide.dtype, stream=p.stream) for _ in range(2))
    part_kernel[grid, BLOCK, p.stream](p.x, highests, totals, p.none)
    whole_kernel[grid, BLOCK, p.stream](p.x, p.out, highests, totals, p.none, p.log)


# --------------------------------------------------------------------------------------------------- along another axis


@cuda.jit
def columns_kernel(x, out, none, log, wide):
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    count, row = x.shape[0] * x.shape[2], cuda.blockIdx.x * cuda.blockDim.x + tx
    a, b = place(x, min(row, count - 1))
    best, added = none
    for i in range(ty, x.shape[1], cuda.blockDim.y):
        best, added = append(best, added, widened(x[a, i, b]))
    highests, totals = cuda.shared.array(1024, wide.dtype), cuda.shared.array(1024, wide.dtype)
    highests[ty * cuda.blockDim.x + tx], totals[ty * cuda.blockDim.x + tx] = best, added
    cuda.syncthreads()
    if ty == 0:  # one thread joins the parts of a row, for all
        for part in range(tx + cuda.blockDim.x, cuda.blockDim.x * cuda.blockDim.y, cuda.blockDim.x):
            best, added = join(best, added, highests[part], totals[part])
        highests[tx], totals[tx] = best, added
    cuda.syncthreads()
    best, added = highests[tx], totals[tx]
    if row < count:
        for i in range(ty, x.shape[1], cuda.blockDim.y):
            out[a, i, b] = share(widened(x[a, i, b]), best, added, log)


@rung(columns_kernel, part_kernel, whole_kernel, warp_per_row_kernel, online_kernel)
def columns(p):
    """Along another axis than the last, a warp takes 32 rows at once: their elements lie side by side in memory.

    The last axis goes to `split_row`. So does a row of more than CHUNK elements with fewer than 8 rows beside it.

    Leaves: along the last axis a row is read twice, 4 bytes a lane, and each element costs three exponentials.
    """
    _, n, inner = p.x.shape
    if inner == 1 or (inner < 8 and n > CHUNK):
        split_row.launch(p)
        return
    height = 1
    while height < 32 and 8 * height < n:
        height *= 2
    width = max(32, BLOCK // height)
    columns_kernel[blocks(p.rows, width), (width, height), p.stream](p.x, p.out, p.none, p.log, p.wide)


# --------------------------------------------------------------------------------------------------- a row is read once
#
# The kernels of the last rung are in pmpp/kernels/softmax/rows.py, sorted by how many threads hold a row.


class Plan(typing.NamedTuple):
    """Which threads hold a row, how their kernel is launched, and the sizes that follow ``x`` and ``out`` in the call.

    ``slots``: cells in which the blocks of a row tell each other what they found.
    """

    holder: str
    grid: int
    block: typing.Any
    sizes: tuple
    slots: int = 0


LIKE = {width: (0,) * width for width in (2, 4, 8)}  # the same tuples in each call: a launch remembers what they are


@functools.lru_cache(maxsize=1024)
def plan(
    rows: int, n: int, width: int, shift: int, alike: bool, multiprocessors: int, resident: int, held: int = HELD
) -> Plan | None:
    """Which threads hold the rows of a matrix in registers; None if the rows do not fit.

    Args:
        rows, n: the shape.
        width: elements in a vector of 16 bytes.
        shift: elements from a 16-byte boundary to where ``x`` begins.
        alike: whether ``out`` begins equally far from one.
        multiprocessors, resident: the GPU's multiprocessors, and how many threads they hold together.
        held: vectors that a thread can hold.

    >>> plan(65536, 1024, 4, 0, True, 132, 132 * 2048)
    Plan(holder='lanes', grid=8192, block=(32, 8), sizes=(1024, 8, 0), slots=0)
    """
    vectors, fill = blocks(n, width), n // math.gcd(n, width)
    if fill <= FILL and alike and not shift:  # ``fill`` vectors hold one or more whole rows
        return Plan("thread", blocks(rows * n, fill * width * BLOCK), BLOCK, ((0,) * n, (0,) * fill))
    if n <= TINY and (n <= TINY // 2 or n % width or shift):  # other rows of whole vectors: see below
        levels = (n - 1).bit_length()
        tree, together = (0,) * levels, (0,) * (TOGETHER if rows << levels > 2 * resident else 1)
        grid, block = blocks(rows, len(together) * (BLOCK >> levels)), (1 << levels, BLOCK >> levels)
        return Plan("lane for each element", grid, block, (n, tree, together))
    if not alike:
        return None
    if vectors <= 32 * held:
        lanes = max(8, 2 * width) if n % width or shift else 1  # one for each element before and after the vectors
        while lanes < 32 and 4 * lanes < vectors:
            lanes *= 2
        return Plan("lanes", blocks(rows * lanes, BLOCK), (lanes, BLOCK // lanes), (n, blocks(vectors, lanes), shift))
    if vectors <= 1024 * held:
        threads = 32 * blocks(vectors, 32 * held)
        return Plan("block", rows, threads, (n, blocks(vectors, threads), shift))
    parts = blocks(vectors, MEMBERS * held)
    if parts > multiprocessors or width == 2:
        return None
    chunk = width * blocks(vectors, parts)
    parts = blocks(n, chunk)
    sizes = n, chunk, parts, blocks(chunk, width * MEMBERS), shift
    return Plan("blocks", rows * parts, MEMBERS, sizes, slots=1 + rows * parts)


@functools.lru_cache(maxsize=1024)
def columns_plan(columns: int, n: int, inner: int, multiprocessors: int) -> Plan | None:
    """Which threads hold ``columns`` of n elements that lie ``inner`` apart; None if the columns do not fit.

    >>> columns_plan(298 * 319, 166, 319, 132).block
    (32, 11)
    """
    if columns >= 2**32 or n > 32 * DEEP:
        return None
    height = blocks(n, 16 if n <= 16 * 32 else DEEP)
    if blocks(columns, 32) < 4 * multiprocessors:  # few columns: more threads for each
        height = max(height, min(32, blocks(n, 4)))
    depth = blocks(n, height)
    height = blocks(n, depth)  # so that each thread has an element
    width = 32 * max(1, 8 // height)
    return Plan("columns", blocks(columns, width), (width, height), (columns, n, inner, (0,) * depth))


@rung(
    rows_kernel,
    elements_kernel,
    lanes_kernel,
    block_kernel,
    blocks_kernel,
    empty_kernel,
    held_columns_kernel,
    columns_kernel,
    part_kernel,
    whole_kernel,
)  # and those of warp_per_row, if out and x lie differently on 16-byte boundaries: the room has no such input
def vectorised(p):
    """A row is read once, 128 bits at a time, and waits in registers for its maximum and its sum.

    How many threads hold a row depends on its length: up to 32 lanes, a block, or several blocks that tell each other
    what they found. A thread holds whole rows if these fill one to three vectors. Other rows of up to 16 elements have
    a lane for each element, and so do rows of up to 32 that do not lie in whole vectors.

    Some rows go to `columns`: along other axes than the last; of float64, with more than 16,384 elements; of float32,
    if they need more blocks than the GPU has multiprocessors; and, if longer than 32, where ``out`` and ``x`` lie
    differently on 16-byte boundaries. Exponentials of float32 are the hardware's, good to 2 + 1.173 |x - max| ulp.
    """
    _, n, inner = p.x.shape
    limits, width = device.limits(), width_of(p.x.dtype)
    x_at, out_at = (device.address(array) % 16 // p.x.dtype.itemsize for array in (p.x, p.out))
    multiprocessors = limits["multiprocessors"]
    resident = multiprocessors * limits["max_threads_per_multiprocessor"]
    shift = max(x_at, out_at)
    held, kept = HELD // 2 if width == 8 else HELD, p.wide
    if inner == 1:
        how = plan(p.rows, n, width, shift, x_at == out_at, multiprocessors, resident, held)
        if how is not None and how.holder in ("block", "blocks") and width == 8 and not is_bfloat16(p.x.dtype):
            held, kept = HELD, p.x  # a long row waits as float16
            how = plan(p.rows, n, width, shift, x_at == out_at, multiprocessors, resident, held)
    else:
        how = columns_plan(p.rows, n, inner, multiprocessors)
    if how is None:
        columns.launch(p)
        return
    x, out, like, most = p.x.reshape(p.x.size), p.out.reshape(p.x.size), LIKE[width], LIKE[held]
    if how.holder == "thread":
        rows_kernel[how.grid, how.block, p.stream](x, out, *how.sizes, like, p.wide, p.none, p.log)
    elif how.holder == "lane for each element":
        elements_kernel[how.grid, how.block, p.stream](x, out, *how.sizes, like, p.wide, p.none, p.log)
    elif how.holder == "lanes":
        lanes_kernel[how.grid, how.block, p.stream](x, out, *how.sizes, like, most, kept, p.wide, p.none, p.log)
    elif how.holder == "columns":
        held_columns_kernel[how.grid, how.block, p.stream](x, out, *how.sizes, like, p.wide, p.none, p.log)
    elif how.holder == "block":
        block_kernel[how.grid, how.block, p.stream](x, out, *how.sizes, like, most, kept, p.wide, p.none, p.log)
    else:
        slots = device.empty(how.slots, np.int64, stream=p.stream)
        empty_kernel[blocks(how.slots, BLOCK), BLOCK, p.stream](slots)
        blocks_kernel[how.grid, how.block, p.stream](x, out, *how.sizes, like, most, kept, p.wide, p.none, p.log, slots)


LADDER = (three_kernels, fused, online, warp_per_row, split_row, columns, vectorised)
