"""Axis sum: the sums along one axis of an array, or along several.

Chapter: notebooks/88_a_tape.ipynb.  PMPP 4e ch. 10.

An array in C order is (outer, n, inner) to whoever sums along the axis of extent n: what lies before the axis, the
axis, and what lies behind it. Each element is read once, so memory is the bound. With inner = 1 the terms of a sum are
neighbours, and the threads of a block share a sum. Else neighbours belong to different sums, and neighbouring threads
take neighbouring sums. Few long sums need a third way: several blocks share each, and a second launch adds up what they
leave. The order of additions depends on the shape, and in the last rung on whether x begins at a multiple of 16 bytes,
and on nothing else: the result has the same bits in every run.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_sum, blocks, round_up
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

BLOCK = 256  # threads a block
WIDTH, HEIGHT = 32, 8  # of a block where neighbours belong to different sums: so many sums, so many terms at a time
WANTED = 1024  # blocks that keep a large GPU busy
LEAST = 16  # terms that are worth a thread's while


def reference(x: np.ndarray, axis: typing.Any = None, keepdims: bool = False) -> np.ndarray:
    """The sums in float64."""
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(np.float64).sum(axis=axis, keepdims=keepdims))


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, axis, keepdims)``."""
    rng = np.random.default_rng(10) if rng is None else rng

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    made: dict[str, tuple] = {f"a vector of {n}": (normal(n), 0, False) for n in (0, 1, 31, 257, 5000)}
    matrix = normal(37, 41)
    made |= {f"axis {axis} of two": (matrix, axis, False) for axis in (0, 1, -1)}
    cube = normal(5, 67, 9)
    made |= {f"axis {axis} of three": (cube, axis, axis == 1) for axis in range(3)}
    made |= {"all of them": (cube, None, False), "all of them, kept": (cube, None, True)}
    made |= {"two neighbours": (cube, (1, 2), False), "two that are apart": (cube, (0, 2), True)}
    made["channels of images"] = (normal(3, 5, 7, 4), (0, 2, 3), False)
    made |= {"tall": (normal(3000, 3), 0, False), "wide": (normal(3, 3000), 1, False)}
    made |= {f"columns of {n}": (normal(150, n), 0, False) for n in (4, 31, 300)}
    made |= {f"rows of {n}": (normal(70, n), 1, False) for n in (2, 4, 7, 36)}
    made |= {"a row": (normal(1, 2052), 1, True), "wide columns": (normal(9, 1100), 0, False)}
    made["many small ones"] = (normal(1100, 5, 3), 1, False)
    made |= {"nothing to add": (normal(4, 0, 3), 1, False), "no sums": (normal(0, 4), 1, False)}
    made["cancellation"] = (np.float32([[1e8, 1, -1e8, 1] * 40]), 1, False)
    made["non-finite"] = (np.float32([[1, np.inf], [2, -np.inf], [np.nan, 0], [np.inf, np.inf]]), 1, False)
    return made


def tolerance(x: np.ndarray, axis: typing.Any = None, keepdims: bool = False) -> np.ndarray:
    """How far from `reference` a right sum may be: n roundings at most, each of half an ulp of a partial sum.

    A partial sum is no greater than the sum of the sizes. Source: Higham, Accuracy and Stability (2002), section 4.2.
    """
    with np.errstate(all="ignore"):
        sizes = np.abs(np.where(np.isfinite(x), x, 0).astype(np.float64)).sum(axis=axis, keepdims=keepdims)
    n = x.size / max(np.asarray(sizes).size, 1)
    return 2.0**-24 * n * np.asarray(sizes)


def cost(n: int, sums: int, itemsize: int = 4) -> Cost:
    """n elements read, so many sums written."""
    return Cost(flops=max(n - sums, 0), bytes=(n + sums) * itemsize)


def arguments(x, axis=None, keepdims=False, *, stream=0) -> Problem:
    """The sums along one axis, along several, or of all elements.

    Args:
        x: a float32 array, contiguous in C order.
        axis: an integer from -x.ndim to x.ndim - 1, or a tuple of different ones; None for all.
        keepdims: True to keep the axes in the result, with extent 1.
        stream: the stream to work on.

    Returns a float32 device array, without waiting for the work to be done; of shape () for the sum of all elements. A
    sum of nothing is 0. It has the same bits in every run.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: NumPy's sum.

    >>> from pmpp.kernels.reduction import axis_sum
    >>> axis_sum.shared_by_blocks(np.float32([[1, 2], [3, 4]]), 0).copy_to_host()
    array([4., 6.], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", stream=stream)
    axes, keepdims = axes_of(axis, x.ndim), as_flag("keepdims", keepdims)
    kept = tuple(1 if d in axes else extent for d, extent in enumerate(x.shape))
    shape = kept if keepdims else tuple(extent for d, extent in enumerate(x.shape) if d not in axes)
    folds = folds_of(x.shape, axes)
    out = device.empty(math.prod(shape), np.float32, stream=stream)
    done = not x.size
    if done and out.size:
        zero_kernel[blocks(out.size, BLOCK), BLOCK, stream](out)
    return Problem(out.reshape(shape), stream=stream, x=x, out=out, folds=folds, done=done)


def axes_of(axis: typing.Any, ndim: int) -> tuple[int, ...]:
    """The axes as numbers from 0, in order."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    axes = [as_integer("axis", one, -ndim, ndim - 1) % ndim for one in given]
    if len({*axes}) < len(axes):
        raise ValueError(f"axis must name each axis once, was {axis!r} for {ndim} dimensions")
    return tuple(sorted(axes))


class Fold(typing.NamedTuple):
    """One sum along one axis of an array (outer, n, inner)."""

    outer: int
    n: int
    inner: int


@functools.lru_cache(1024)
def folds_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[Fold, ...]:
    """Axes that are neighbours are one. Each of the others needs a sum of its own, the longest first.

    >>> folds_of((8, 3, 5, 5), (0, 2, 3))
    (Fold(outer=24, n=25, inner=1), Fold(outer=1, n=8, inner=3))
    """
    groups: list[list[int]] = []
    for d in axes:
        if groups and groups[-1][-1] == d - 1:
            groups[-1].append(d)
        else:
            groups.append([d])
    extents, folds = [*shape], []
    for group in sorted(groups, key=lambda group: -math.prod(shape[d] for d in group)):
        first, last = group[0], group[-1] + 1
        n = math.prod(extents[first:last])
        folds.append(Fold(math.prod(extents[:first]), n, math.prod(extents[last:])))
        extents[first:last] = [1] * len(group)
    return tuple(folds) or (Fold(math.prod(shape), 1, 1),)


@cuda.jit
def zero_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(0)


def each_fold(p: Problem, work: typing.Callable) -> None:
    """Carry out the sums one after another: ``work(x, out, fold)`` on vectors."""
    x = p.x.reshape(-1)
    for fold in p.folds[:-1]:
        out = device.empty(fold.outer * fold.inner, np.float32, stream=p.stream)
        work(x, out, fold)
        x = out
    work(x, p.out, p.folds[-1])


# ---------------------------------------------------------------------------------------------------- a thread a sum


@cuda.jit
def thread_kernel(x, out, fold):
    i = np.int64(cuda.grid(1))
    if i < out.size:
        a, b = i // fold.inner, i % fold.inner
        total = np.float32(0)
        for k in range(fold.n):
            total += x[(a * fold.n + k) * fold.inner + b]
        out[i] = total


@rung(thread_kernel)
def thread_per_sum(p):
    """A thread for each sum.

    Leaves: where the terms of a sum are neighbours, the threads of a warp read far apart; and few sums are few threads.
    """

    def work(x, out, fold):
        thread_kernel[blocks(out.size, BLOCK), BLOCK, p.stream](x, out, fold)

    each_fold(p, work)


# ------------------------------------------------------------------------------------------------------ a block a sum


@cuda.jit
def rows_kernel(x, out, n, parts, length):
    """A block for each part of a row of neighbours."""
    row, part = np.int64(cuda.blockIdx.x) // parts, cuda.blockIdx.x % parts
    first = row * n + part * length
    last = min(first + length, (row + 1) * n)
    total = np.float32(0)
    for i in range(first + cuda.threadIdx.x, last, BLOCK):
        total += x[i]
    total = block_sum(total, cuda.shared.array(32, np.float32))
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@cuda.jit
def columns_kernel(x, out, n, inner, tiles, parts, length):
    """A block for a part of WIDTH sums whose terms lie ``inner`` apart: HEIGHT terms of each at a time."""
    tile, above = cuda.blockIdx.x % tiles, np.int64(cuda.blockIdx.x) // tiles
    part, a = above % parts, above // parts
    column = tile * WIDTH + cuda.threadIdx.x
    sums = cuda.shared.array((HEIGHT, WIDTH), np.float32)
    total = np.float32(0)
    if column < inner:
        for k in range(part * length + cuda.threadIdx.y, min((part + 1) * length, n), HEIGHT):
            total += x[(a * n + k) * inner + column]
    sums[cuda.threadIdx.y, cuda.threadIdx.x] = total
    cuda.syncthreads()
    if cuda.threadIdx.y == 0 and column < inner:
        for k in range(1, HEIGHT):
            total += sums[k, cuda.threadIdx.x]
        out[(a * parts + part) * inner + column] = total


def launch_blocks(x, out, fold, parts, stream) -> None:
    """The sums of ``parts`` parts of each sum: ``out`` has shape (outer, parts, inner)."""
    length = blocks(fold.n, parts)
    if fold.inner == 1:
        rows_kernel[fold.outer * parts, BLOCK, stream](x, out, fold.n, parts, length)
    else:
        tiles = blocks(fold.inner, WIDTH)
        columns_kernel[fold.outer * parts * tiles, (WIDTH, HEIGHT), stream](
            x, out, fold.n, fold.inner, tiles, parts, length
        )


@rung(rows_kernel, columns_kernel)
def block_per_sum(p):
    """The threads of a block share a sum, or 32 sums that are neighbours: a warp reads neighbours in either case.

    Leaves: few long sums are few blocks, and most of the GPU is idle.
    """
    each_fold(p, lambda x, out, fold: launch_blocks(x, out, fold, 1, p.stream))


# ------------------------------------------------------------------------------------------------- several blocks a sum


@functools.lru_cache(1024)
def parts_of(fold: Fold) -> int:
    """Into how many parts a sum is cut: enough to fill a large GPU, but a thread keeps some terms.

    It depends on the shape alone, so the order of additions does, too.
    """
    tiles = fold.outer * (1 if fold.inner == 1 else blocks(fold.inner, WIDTH))
    share = BLOCK if fold.inner == 1 else HEIGHT
    return max(1, min(blocks(WANTED, tiles), fold.n // (share * LEAST), WANTED))


@rung(rows_kernel, columns_kernel)
def shared_by_blocks(p):
    """Several blocks share a long sum. What each leaves is added up by a second launch, in the order of the parts.

    Leaves: a row of three is given 256 threads, three columns are given 32; and a thread asks for 4 bytes at a time.
    """

    def work(x, out, fold):
        parts = parts_of(fold)
        if parts == 1:
            launch_blocks(x, out, fold, 1, p.stream)
        else:
            partial = device.empty(fold.outer * parts * fold.inner, np.float32, stream=p.stream)
            launch_blocks(x, partial, fold, parts, p.stream)
            launch_blocks(partial, out, Fold(fold.outer, parts, fold.inner), 1, p.stream)

    each_fold(p, work)


# ------------------------------------------------------------------------------------- as many threads as there is work

SUMS = 4 * BLOCK  # that a block of `stream_kernel` keeps


@cuda.jit
def teams_kernel(x, out, n, lanes, width):
    """``lanes`` neighbouring lanes of a warp for each row of n neighbours; ``width`` of these at a time, 1 or 4."""
    row, lane = np.int64(cuda.grid(1)) // lanes, cuda.grid(1) % lanes
    total = np.float32(0)
    if row < out.size:
        if width == 4:
            for i in range(4 * lane, n, 4 * lanes):
                a, b, c, d = load128(x, row * n + i)
                total += (a + b) + (c + d)
        else:
            for i in range(lane, n, lanes):
                total += x[row * n + i]
    distance = lanes // 2
    while distance:  # as in `warp_sum`, and no further than the team reaches
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        distance //= 2
    if row < out.size and lane == 0:
        out[row] = total


@cuda.jit
def stream_kernel(x, out, n, inner, parts, length, threads, width):
    """A block for a part of an array (n, inner), of which it reads all elements as one row of neighbours.

    ``threads * width`` is a multiple of ``inner``, so a thread meets the same columns again at every step.
    """
    sums = cuda.shared.array(SUMS, np.float32, alignment=16)
    a, part, thread = np.int64(cuda.blockIdx.x) // parts, cuda.blockIdx.x % parts, cuda.threadIdx.x
    first, step = (a * n + part * length) * inner, threads * width
    last = first + min(length, n - part * length) * inner
    if thread < threads and width == 4:
        i, t0, t1, t2, t3 = first + 4 * thread, np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        while i + 4 <= last:
            v0, v1, v2, v3 = load128(x, i)
            t0, t1, t2, t3 = t0 + v0, t1 + v1, t2 + v2, t3 + v3
            i += step
        if i < last:  # one thread may have 1 to 3 elements left
            t0 += x[i]
        if i + 1 < last:
            t1 += x[i + 1]
        if i + 2 < last:
            t2 += x[i + 2]
        store128(sums, 4 * thread, (t0, t1, t2, t3))
    elif thread < threads:
        total = np.float32(0)
        for i in range(first + thread, last, step):
            total += x[i]
        sums[thread] = total
    groups = step // inner  # that hold a sum of each column; the upper half of them is added to the lower
    while groups > 1:
        half = (groups + 1) // 2
        cuda.syncthreads()
        for i in range(thread, (groups - half) * inner, cuda.blockDim.x):
            sums[i] += sums[i + half * inner]
        groups = half
    cuda.syncthreads()
    for i in range(thread, inner, cuda.blockDim.x):
        out[(a * parts + part) * inner + i] = sums[i]


@cuda.jit
def wide_kernel(x, out, n, inner, parts, length, width):
    """A thread for a part of each sum, or of four neighbouring sums: a row has enough of them for whole blocks."""
    i, columns = np.int64(cuda.grid(1)), inner // width
    above, column = i // columns, i % columns * width
    part, a = above % parts, above // parts
    if i * width < out.size:
        at = (a * n + part * length) * inner + column
        last = at + min(length, n - part * length) * inner
        if width == 4:
            t0, t1, t2, t3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for k in range(at, last, inner):
                v0, v1, v2, v3 = load128(x, k)
                t0, t1, t2, t3 = t0 + v0, t1 + v1, t2 + v2, t3 + v3
            store128(out, i * width, (t0, t1, t2, t3))
        else:
            total = np.float32(0)
            for k in range(at, last, inner):
                total += x[k]
            out[i] = total


TEAM = 8  # terms for each lane of a team
LONG = 2048  # terms that are too many for a warp, and too few for more than a block
SINGLE, TEAMS, STREAM, WIDE = range(4)


class Way(typing.NamedTuple):
    """How a fold is carried out: by which kernel, in how many parts, with how many threads a sum, how wide a load."""

    kernel: int
    parts: int
    length: int  # of a part, in terms
    threads: int  # a row, or a block
    width: int  # elements a load


@functools.lru_cache(1024)
def way_of(fold: Fold, aligned: bool) -> Way:
    """The way for a fold; ``aligned``: whether x begins at a multiple of 16 bytes.

    >>> way_of(Fold(1, 2**24, 3), True)
    Way(kernel=2, parts=1024, length=16384, threads=255, width=4)
    """
    outer, n, inner = fold
    few = outer < WANTED
    if inner == 1 and (n <= LONG and not (few and n > BLOCK)):
        lanes = 1
        while lanes < 32 and lanes * TEAM < n:
            lanes *= 2
        return Way(TEAMS, 1, n, lanes, 4 if aligned and n % 4 == 0 else 1)
    if inner > 1 and n * inner < LONG and not few:
        return Way(SINGLE, 1, n, 1, 1)
    width = 4 if aligned and (outer == 1 or n * inner % 4 == 0) else 1
    period = inner // math.gcd(inner, width)  # loads until the columns come again
    if period > BLOCK:
        width = 4 if aligned and inner % 4 == 0 else 1
        parts = max(1, min(blocks(WANTED * BLOCK * width, outer * inner), n // LEAST))
        length = blocks(n, parts)
        return Way(WIDE, blocks(n, length), length, 1, width)
    parts = max(1, min(blocks(WANTED, outer), n * inner // (LEAST * BLOCK)))
    length = round_up(blocks(n, parts), 4)  # so that every part begins at a multiple of 16 bytes
    return Way(STREAM, blocks(n, length), length, BLOCK // period * period, width)


def launch_way(x: typing.Any, out: typing.Any, fold: Fold, stream: typing.Any) -> None:
    """One fold. Parts of sums are added up by a second launch, of the same function."""
    way = way_of(fold, device.address(x) % 16 == 0)
    parted = way.parts > 1
    into = device.empty(fold.outer * way.parts * fold.inner, np.float32, stream=stream) if parted else out
    if way.kernel == SINGLE:
        thread_kernel[blocks(into.size, BLOCK), BLOCK, stream](x, into, fold)
    elif way.kernel == TEAMS:
        teams_kernel[blocks(into.size * way.threads, BLOCK), BLOCK, stream](x, into, fold.n, way.threads, way.width)
    elif way.kernel == STREAM:
        more = fold.n, fold.inner, way.parts, way.length, way.threads, way.width
        stream_kernel[fold.outer * way.parts, round_up(way.threads, 32), stream](x, into, *more)
    else:
        more = fold.n, fold.inner, way.parts, way.length, way.width
        wide_kernel[blocks(into.size // way.width, BLOCK), BLOCK, stream](x, into, *more)
    if parted:
        launch_way(into, out, Fold(fold.outer, way.parts, fold.inner), stream)


@rung(thread_kernel, teams_kernel, stream_kernel, wide_kernel)
def vectorised(p):
    """Threads for the work that there is: some lanes for a short row, a block that reads narrow columns as one row.

    Loads are 128 bits wide wherever sums begin at multiples of 16 bytes.
    """
    each_fold(p, lambda x, out, fold: launch_way(x, out, fold, p.stream))


LADDER = (thread_per_sum, block_per_sum, shared_by_blocks, vectorised)
