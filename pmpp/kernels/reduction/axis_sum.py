"""Axis sum: the sums along one axis of an array, or along several.

Chapter: notebooks/88_a_tape.ipynb.  PMPP 4e ch. 10.

An array in C order is (outer, n, inner) to whoever sums along the axis of extent n: what lies before the axis, the
axis, and what lies behind it. Each element is read once, so memory is the bound. With inner = 1 the terms of a sum are
neighbours, and the threads of a block share a sum. Else neighbours belong to different sums, and neighbouring threads
take neighbouring sums. Few long sums need a third way: several blocks share each, and a second launch adds up what they
leave. Terms are added in an order that depends on the shape alone: the result has the same bits in every run.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.rung import Cost, Problem, rung

BLOCK = 256  # threads a block
WIDTH, HEIGHT = 32, 8  # of a block where neighbours belong to different sums: so many sums, so many terms at a time
WANTED = 1024  # blocks that keep a large GPU busy
LEAST = 64  # terms that are worth a thread's while


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
    """Several blocks share a long sum. What each leaves is added up by a second launch, in the order of the parts."""

    def work(x, out, fold):
        parts = parts_of(fold)
        if parts == 1:
            launch_blocks(x, out, fold, 1, p.stream)
        else:
            partial = device.empty(fold.outer * parts * fold.inner, np.float32, stream=p.stream)
            launch_blocks(x, partial, fold, parts, p.stream)
            launch_blocks(partial, out, Fold(fold.outer, parts, fold.inner), 1, p.stream)

    each_fold(p, work)


LADDER = (thread_per_sum, block_per_sum, shared_by_blocks)
