"""Reduction over axes: sums, extremes, means, variances, norms and places of extremes, along any axes of an array.

Chapter: notebooks/33_reduction_over_axes.ipynb.  PMPP 4e ch. 10.

Each element is read once, so memory is the bound, whatever the axes are. What the axes decide is which threads may
share a result. Neighbouring axes that are all reduced, or all kept, are one axis. After that an array has the shape
(outer, n, inner): n elements for each result, which lie ``inner`` apart. With inner = 1 they are a row of neighbours,
and neighbouring threads share a result. Else neighbours belong to different results, and so do neighbouring threads.
Axes that still alternate are reduced one after another, the longest first.

The operators stand in `pmpp.kernels.reduction.operators`. A kernel is made for each by a function, since its device
functions are compiled into it. Nothing is added by atomics: the order depends on the shape, and in the rungs with
128-bit loads on whether x begins at a multiple of 16 bytes. So a result has the same bits in every run.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.reduction.operators import ALL, OF_16_BITS, OPERATORS, Operator, load_of
from pmpp.kernels.reduction.states import (
    access_of,
    cells_of,
    chosen,
    column_loads,
    from_lane,
    get,
    put,
    quotient,
    row_loads,
    rows_on,
    short_loads,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, width_of

DTYPES = ALL
BLOCK = 256  # threads a block, where nothing else is said
CELLS = 2048  # states that the threads of a block put together in shared memory, with wide loads
MOST_AXES = 8


def reference(
    x: np.ndarray, axis: typing.Any = None, op: str = "sum", keepdims: bool = False, ddof: int = 0
) -> np.ndarray:
    """The result, with sums in float64, or int64 for integers. What is reduced becomes the rows of a matrix first."""
    axes = axes_of(axis, x.ndim)
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [1 if d in axes else extent for d, extent in enumerate(x.shape) if keepdims or d not in axes]
    n = math.prod(x.shape[d] for d in axes)
    wide = x.astype(np.int64 if x.dtype.kind == "i" else np.float64)
    rows = wide.transpose(*kept, *axes).reshape(math.prod(x.shape[d] for d in kept), n)
    with np.errstate(all="ignore"):
        made = [REFERENCES[op](row, ddof) for row in rows]
        return np.array(made, OPERATORS[op].result(x.dtype)).reshape(shape)


def _place(row: np.ndarray, better: typing.Callable) -> int:
    """Where the best element is: the first NaN, or the first of equal ones."""
    best = 0
    for k in range(1, row.size):
        if row[best] == row[best] and (row[k] != row[k] or better(row[k], row[best])):
            best = k
    return best


def _mean(row: np.ndarray) -> float:
    return row.sum() / row.size if row.size else np.nan


def _variance(row: np.ndarray, ddof: int) -> float:
    return np.square(row - _mean(row)).sum() / np.float64(max(row.size - ddof, 0))


REFERENCES: dict[str, typing.Callable] = {
    "sum": lambda row, _: row.sum(),
    "prod": lambda row, _: row.prod(),
    "max": lambda row, _: row.max(),
    "min": lambda row, _: row.min(),
    "mean": lambda row, _: _mean(row),
    "var": _variance,
    "norm1": lambda row, _: abs(row).sum(),
    "norm2": lambda row, _: math.sqrt((row * row).sum()),
    "norm_inf": lambda row, _: abs(row).max(),
    "any": lambda row, _: (row != 0).any(),
    "all": lambda row, _: (row != 0).all(),
    "count_nonzero": lambda row, _: (row != 0).sum(),
    "argmax": lambda row, _: _place(row, lambda a, b: a > b),
    "argmin": lambda row, _: _place(row, lambda a, b: a < b),
}


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, axis, op, keepdims, ddof)``, of which the last two may be missing."""
    rng = np.random.default_rng(10) if rng is None else rng

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    made: dict[str, tuple] = {f"a vector of {n}": (normal(n), 0, "sum") for n in (1, 31, 257, 1030)}
    cube = normal(4, 23, 9)
    made |= {f"axis {axis} of three": (cube, axis, "max", axis == 1) for axis in (0, 1, -1)}
    made |= {"all of them": (cube, None, "mean"), "all of them, kept": (cube, None, "var", True)}
    made["two neighbours"] = (cube, (1, 2), "var", False, 1)
    made["two that are apart"] = (cube, (0, 2), "mean", True)
    made["channels of images"] = (normal(3, 5, 7, 4) + np.float32(100), (0, 2, 3), "mean")
    made["three that are apart"] = (normal(7, 2, 5, 2, 6), (0, 2, 4), "sum", True)
    made["eight axes"] = (normal(2, 3, 1, 2, 1, 2, 3, 2), (1, 2, 3, 6), "sum", True)
    made["means of rows"] = (normal(3, 101) + np.float32(1), 1, "mean")
    made["nothing reduced"] = (cube, (), "norm2")
    made |= {"tall": (normal(400, 3), 0, "norm1"), "tall and odd": (normal(150, 5), 0, "argmin")}
    made |= {
        f"rows of {n}": (normal(70, n), 1, op)
        for n, op in ((2, "min"), (3, "argmax"), (4, "max"), (7, "sum"), (36, "sum"))
    }
    made |= {"few long rows": (normal(2, 1501), 1, "argmax"), "wide": (normal(3, 2060), 0, "norm_inf")}
    made["wide and odd"] = (normal(9, 1101), 0, "sum")
    made["many small ones"] = (normal(520, 3, 2), 1, "argmax")
    made["equal ones"] = (rng.integers(-1, 2, (6, 300)).astype(np.float32), 1, "argmax")  # the first of many wins
    made["equal columns"] = (np.zeros((70, 5), np.float32), 0, "argmin")
    made["below nothing"] = (-1 - rng.random((40, 6), dtype=np.float32), 0, "max")  # a max that starts from 0 is wrong
    bad = normal(9, 130)
    bad[np.arange(9), rng.integers(0, 130, 9)] = np.nan
    bad[4], bad[5, 7], bad[6] = 1, np.inf, -np.inf
    made |= {f"NaN, {op}": (bad, 1, op) for op in ("max", "min", "argmax", "argmin", "norm_inf", "sum")}
    made["minus infinity only"] = (np.full((3, 40), -np.inf, np.float32), 1, "argmax")
    made["products"] = (np.exp(normal(30, 40) / 8), 1, "prod")
    made["cancellation"] = (np.float32([[1e8, 1, -1e8, 1] * 40]), 1, "sum")
    made["far from 0"] = (normal(4, 400) + np.float32(1e4), 1, "var")  # a sum of squares has no digit of it left
    whole = rng.integers(2**30, 2**31, (11, 60), dtype=np.int32)
    made |= {"int32, sum beyond int32": (whole, 1, "sum"), "int32, columns": (-whole, 0, "max")}
    made |= {"int32, place": (whole % 5, 1, "argmin"), "int32, product": (whole, 0, "prod")}
    for dtype in known(OF_16_BITS):
        half, wide = normal(12, 77).astype(dtype), normal(3, 1040).astype(dtype)
        some = (("sum", 1), ("mean", 0), ("max", 1), ("argmin", 0))
        made |= {f"{dtype}, {op}": (half, axis, op) for op, axis in some}
        made |= {f"{dtype}, {op} of whole vectors": (wide, 1, op) for op in ("sum", "var", "argmax")}
    flags = rng.random((20, 130)) < 0.02
    made |= {
        "bool, any": (flags, 1, "any"),
        "bool, all": (~flags, 0, "all"),
        "bool, count": (flags, None, "count_nonzero"),
    }
    made |= {"nothing to add": (normal(4, 0, 3), 1, "sum"), "no results": (normal(0, 4), 1, "max")}
    made["nothing to multiply"] = (normal(4, 0), 1, "prod")
    return made


def error_bound(
    x: np.ndarray, axis: typing.Any = None, op: str = "sum", keepdims: bool = False, ddof: int = 0
) -> np.ndarray:
    """How far from `reference` a right result may be: an array of its shape, 0 where it must be equal.

    A value goes through n roundings at most, each of u = 2^-24 of what has been added up, which is no greater than the
    sum of the sizes (Higham, Accuracy and Stability, 2002, section 4.2). Where states are combined for a variance, the
    errors e of two means change the squared step between them by 2 |step| e + e^2. The steps, weighted, add up to the
    variance; the weights to no more than n for single values and n log2(n) / 2 for halves (T. Chan, G. Golub,
    R. LeVeque, 1983). A result of 16 bits is rounded once more, and so is the reference: both may go either way.
    """
    axes = axes_of(axis, x.ndim)
    n, u = max(math.prod(x.shape[d] for d in axes), 1), 2.0**-24
    exact = np.asarray(reference(x, axis, op, keepdims, ddof))
    if exact.dtype.kind in "ib" or op in ("max", "min", "norm_inf") or not x.size:
        return np.zeros(exact.shape)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        wide = np.where(np.isfinite(wide), wide, 0)
        sizes, size = abs(wide).sum(axes, keepdims=keepdims), abs(exact.astype(np.float64))
        if op == "var":
            spread = wide.var(axes, keepdims=keepdims)
            e = 3 * n * u * abs(wide).max(axes, keepdims=keepdims, initial=0)
            share = max(1.0, math.log2(n) / 2)
            allowed = 5 * n * u * spread + 4 * e * np.sqrt(spread * share) + 4 * e**2 * share
            allowed = allowed * n / max(n - ddof, 1)
        else:
            growth = {"mean": sizes / n, "prod": size, "norm2": size}.get(op, sizes)
            allowed = (n + 1) * u * growth
        return np.asarray(allowed + (2 * rounding(size + allowed, exact.dtype) if exact.dtype.itemsize == 2 else 0))


def cost(n: int, results: int, itemsize: int = 4) -> Cost:
    """n elements read, so many results written. Each element but one a result is combined once."""
    return Cost(flops=max(n - results, 0), bytes=(n + results) * itemsize)


def arguments(x, axis=None, op="sum", keepdims=False, ddof=0, *, stream=0) -> Problem:
    """Reduce an array along one axis, along several, or to one number.

    Args:
        x: an array of 1 to 8 dimensions, contiguous in C order. float32, float16, bfloat16 or int32; for "any", "all"
            and "count_nonzero" bool, too; for "mean", "var" and norms no int32.
        axis: an integer from -x.ndim to x.ndim - 1, or a tuple of different ones; None for all. For "argmax" and
            "argmin" an integer or None.
        op: "sum", "prod", "max", "min", "mean", "var", "norm1", "norm2", "norm_inf", "any", "all", "count_nonzero",
            "argmax" or "argmin"; or an operator that `operator_of` made.
        keepdims: True to keep the axes in the result, with extent 1.
        ddof: for "var": the sum of squares is divided by n - ddof.
        stream: the stream to work on.

    Returns a device array, without waiting for the work to be done; of shape () if every axis is reduced and none
    kept. The dtype is NumPy's: that of x, but int64 for sums and products of int32, for counts and for places, and
    bool for "any" and "all". Numbers of 16 bits are combined in float32, and rounded once. Extremes are NaN if an
    element is. Of equal extremes the first has its place returned. The same call returns the same bits in every run.
    Floats are added up in float32. So beyond 3.4e38 a mean is infinite if its sum is, and "norm2" if its sum of squares
    is, as in NumPy. Squares of elements below 1e-19 lose digits, and below 1e-23 they are 0. A variance is NaN if an
    element is not finite, or if elements lie further apart than 3.4e38.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: NumPy's reductions.

    >>> from pmpp.kernels.reduction import over_axes
    >>> over_axes.planned(np.float32([[1, 5], [3, 4]]), 0, "max").copy_to_host()
    array([3., 5.], dtype=float32)
    """
    stream = device.as_stream(stream)
    if isinstance(op, str) and op in OPERATORS:
        op = OPERATORS[op]
    elif not isinstance(op, Operator):
        raise ValueError(f"op must be one of {', '.join(OPERATORS)}, or an operator from operator_of, was {op!r}")
    x = device.as_input("x", x, dtypes=DTYPES, ndim=tuple(range(1, MOST_AXES + 1)), stream=stream)
    if x.dtype.name not in op.dtypes:
        raise TypeError(f"x must be {' or '.join(op.dtypes)} for op={op.name!r}, was {x.dtype}")
    axes, keepdims, ddof = axes_of(axis, x.ndim), as_flag("keepdims", keepdims), as_integer("ddof", ddof, 0)
    if ddof and op.name != "var":
        raise ValueError(f"ddof must be 0 for op={op.name!r}, was {ddof}: only a variance has degrees of freedom")
    if op.whole and len(axes) not in (1, x.ndim):
        raise ValueError(f"axis must be an integer or None for op={op.name!r}, was {axis!r}")
    kept = tuple(1 if d in axes else extent for d, extent in enumerate(x.shape))
    shape = kept if keepdims else tuple(extent for d, extent in enumerate(x.shape) if d not in axes)
    result = device.empty(math.prod(shape), op.result(x.dtype), stream=stream)
    n = math.prod(x.shape[d] for d in axes)
    done = not x.size
    if done and result.size:
        if op.nothing is None:
            raise ValueError(f"x must have elements along axis {axis!r} for op={op.name!r}, had shape {x.shape}")
        fill_kernel[blocks(result.size, BLOCK), BLOCK, stream](result, result.dtype.type(op.nothing))
    return Problem(
        result.reshape(shape),
        stream=stream,
        x=x,
        out=result,
        op=op,
        folds=folds_of(x.shape, axes),
        none=op.identity(x.dtype),
        divisor=np.float32(op.divisor(n, ddof)),
        done=done,
    )


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
    """A reduction along the middle axis of an array (outer, n, inner)."""

    outer: int
    n: int
    inner: int


@functools.lru_cache(1024)
def folds_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[Fold, ...]:
    """What is left when neighbouring axes of a kind are one: the folds in order, the longest first.

    An axis of one element is neither reduced nor kept: it joins its neighbours.

    >>> folds_of((8, 3, 5, 5), (0, 2, 3))
    (Fold(outer=24, n=25, inner=1), Fold(outer=1, n=8, inner=3))
    >>> folds_of((8, 1, 5), (0, 2))
    (Fold(outer=1, n=40, inner=1),)
    """
    runs: list[list[int]] = []  # each: whether it is reduced, its extent
    for d, extent in enumerate(shape):
        if extent == 1:
            continue
        if runs and runs[-1][0] == (d in axes):
            runs[-1][1] *= extent
        else:
            runs.append([d in axes, extent])
    folds = []
    while any(reduced for reduced, _ in runs):
        longest = max((k for k, (reduced, _) in enumerate(runs) if reduced), key=lambda k: runs[k][1])
        before, after = runs[:longest], runs[longest + 1 :]
        extents = [math.prod(extent for _, extent in part) for part in (before, after)]
        folds.append(Fold(extents[0], runs[longest][1], extents[1]))
        runs = before + after
    return tuple(folds) or (Fold(1, 1, math.prod(shape)),)


@cuda.jit
def fill_kernel(out, value):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = value


def each_fold(p: Problem, work: typing.Callable) -> None:
    """Carry out the folds one after another: ``work(task)``, each with the states that the one before has left."""
    x, states = p.x.reshape(-1), False
    for fold in p.folds[:-1]:
        out = states_of(p, fold.outer * fold.inner)
        work(Task(p, x, out, fold, states, False))
        x, states = out, True
    work(Task(p, x, (p.out,), p.folds[-1], states, True))


def states_of(p: Problem, count: int) -> tuple:
    """Arrays for so many states, one for each number of a state."""
    return tuple(device.empty(count, number.dtype, stream=p.stream) for number in p.none)


class Task(typing.NamedTuple):
    """One fold of a problem."""

    p: Problem
    x: typing.Any  # a vector of elements, or a tuple of arrays of states
    out: tuple  # arrays of states, or the results alone
    fold: Fold
    states: bool  # x has states
    last: bool  # out has results

    @property
    def made_for(self) -> tuple:
        """What kernels are made for."""
        return self.p.op, self.p.x.dtype, self.states, self.last


# -------------------------------------------------------------------------------------------------- a thread a result


@functools.lru_cache(256)
def thread_kernel(op, dtype, states, last):
    """The kernel for an operator and a dtype, with states or elements to read, and states or results to store."""
    (fetch, store), combine = access_of(op, dtype, states, last), op.combine

    @cuda.jit
    def thread_a_result(x, out, none, fold, divisor):
        i = np.int64(cuda.grid(1))
        if i < fold.outer * fold.inner:
            a, b = i // fold.inner, i % fold.inner
            total = none
            for k in range(fold.n):
                total = combine(total, fetch(x, (a * fold.n + k) * fold.inner + b, k))
            store(out, i, total, divisor)

    return thread_a_result


def launch_threads(task: Task) -> None:
    p, fold = task.p, task.fold
    grid = blocks(fold.outer * fold.inner, BLOCK)
    thread_kernel(*task.made_for)[grid, BLOCK, p.stream](task.x, task.out, p.none, fold, p.divisor)


@rung(thread_kernel)
def thread_per_result(p):
    """A thread for each result walks along the axis.

    Leaves: where the elements of a result are neighbours, the lanes of a warp read far apart, a sector for each.
    """
    each_fold(p, launch_threads)


# ------------------------------------------------------------------------------------------------------ a warp a result


@functools.lru_cache(256)
def warp_kernel(op, dtype, states, last):
    """As `thread_kernel`."""
    (fetch, store), combine = access_of(op, dtype, states, last), op.combine

    @cuda.jit
    def warp_a_result(x, out, none, fold, divisor):
        row = np.int64(cuda.grid(1)) // 32
        total = none
        if row < fold.outer:
            for k in range(cuda.laneid, fold.n, 32):
                total = combine(total, fetch(x, row * fold.n + k, k))
        for distance in (16, 8, 4, 2, 1):
            total = combine(total, from_lane(total, distance))
        if row < fold.outer and cuda.laneid == 0:
            store(out, row, total, divisor)

    return warp_a_result


@rung(thread_kernel, warp_kernel)
def coalesced(p):
    """Lanes go along the axis whose elements are neighbours: a row has a warp, and columns a thread each.

    Leaves: few rows are few warps, few columns are few threads, and most of the GPU is idle.
    """

    def work(task):
        if task.fold.inner > 1:
            launch_threads(task)
        else:
            grid = blocks(32 * task.fold.outer, BLOCK)
            kernel = warp_kernel(*task.made_for)
            kernel[grid, BLOCK, p.stream](task.x, task.out, p.none, task.fold, p.divisor)

    each_fold(p, work)


# ----------------------------------------------------------------------------------------- a block a row, or 32 columns


class Rows(typing.NamedTuple):
    """How rows of neighbours are reduced: a team of threads for each part of a row."""

    rows: int
    n: int  # elements of a row
    bits: int  # a team has 2^bits threads: some lanes of a warp, or all threads of a block
    parts: int  # of a row, each of which is reduced to a state
    length: int  # of a part, in elements
    shift: int  # how many elements x begins behind a multiple of 16 bytes
    width: int  # elements a load
    odd: bool  # a part may begin or end between multiples of 16 bytes; then a team has as many lanes as a load elements


class Columns(typing.NamedTuple):
    """How columns are reduced: a block for each part of a tile of them."""

    n: int  # elements of a column
    inner: int  # columns
    tile: int  # columns of a block
    tiles: int
    parts: int
    length: int  # of a part, in elements of a column
    threads: int  # of a block that have a part: threads * width is a multiple of tile
    width: int
    height: int  # elements of a column that a block reads at a time: threads * width / tile
    turned: bool  # the states of a column are stored as neighbours, so that they are rows to the second launch


@functools.lru_cache(256)
def rows_kernel(op, dtype, states, last, width):
    """As `thread_kernel`; ``width``: elements a load, 1, 4 or 8."""
    (fetch, store), combine = access_of(op, dtype, states, last), op.combine
    four, three = row_loads(fetch, load_of(op, dtype), combine, width)
    make_cells = cells_of(op, dtype, 32)

    @cuda.jit
    def rows(x, out, none, plan, divisor):
        thread, lanes = cuda.threadIdx.x, 1 << plan.bits
        lane = thread & (lanes - 1)
        job = np.int64(cuda.blockIdx.x) * (cuda.blockDim.x >> plan.bits) + (thread >> plan.bits)
        row, part = job, 0
        if plan.parts > 1:
            row, part = quotient(job, plan.parts)
        total = none
        if row < plan.rows:
            begin = row * plan.n
            first, end = begin + part * plan.length, begin + min(plan.n, (part + 1) * plan.length)
            low, high = first, end  # from where to where loads of full width reach
            if width > 1:
                low = min(first + (-(first + plan.shift)) % width, end)
                high = max(end - (end + plan.shift) % width, low)
            i, step = low + width * lane, width << plan.bits
            while i + 3 * step < high:  # four loads are under way before the first is used
                total = combine(total, four(x, i, step, i - begin))
                i += 4 * step
            if i < high:
                total = combine(total, three(x, i, step, i - begin, high, low, none))
            if width > 1 and plan.odd:  # fewer than a load has, on either side: one for each lane
                i, j = first + lane, high + lane
                a, b = fetch(x, min(i, end - 1), i - begin), fetch(x, min(j, end - 1), j - begin)
                total = combine(total, combine(chosen(i < low, a, none), chosen(j < end, b, none)))
        distance = min(lanes, 32) // 2
        while distance:  # no further than the team reaches
            total = combine(total, from_lane(total, distance))
            distance //= 2
        if lanes > 32:
            cells = make_cells()
            if cuda.laneid == 0:
                put(cells, thread // 32, total)
            cuda.syncthreads()
            for warp in range(1, lanes // 32):
                total = combine(total, get(cells, warp))
        if row < plan.rows and lane == 0:
            store(out, job, total, divisor)

    return rows


@functools.lru_cache(256)
def columns_kernel(op, dtype, states, last, width):
    """As `rows_kernel`."""
    (fetch, store), combine = access_of(op, dtype, states, last), op.combine
    spread, fetch_each, combine_each, chosen_each, put_each = column_loads(fetch, load_of(op, dtype), combine, width)
    make_cells = cells_of(op, dtype, CELLS if width > 1 else CELLS // 4)

    @cuda.jit
    def columns(x, out, none, plan, divisor):
        cells, thread = make_cells(), cuda.threadIdx.x
        above, tile = quotient(cuda.blockIdx.x, plan.tiles)
        a, part = quotient(above, plan.parts)
        row, column = quotient(thread * width, plan.tile)
        height = plan.height  # rows that a block reads at a time
        totals, left = spread(none), tile * plan.tile
        if thread < plan.threads and left + column < plan.inner:
            k = part * plan.length + row
            i = (a * plan.n + k) * plan.inner + left + column
            end = (a * plan.n + min(plan.n, (part + 1) * plan.length)) * plan.inner
            step = height * plan.inner
            while i + 3 * step + width <= end:
                v, w = fetch_each(x, i, k, column, plan.tile), fetch_each(x, i + step, k + height, column, plan.tile)
                y = fetch_each(x, i + 2 * step, k + 2 * height, column, plan.tile)
                z = fetch_each(x, i + 3 * step, k + 3 * height, column, plan.tile)
                totals = combine_each(totals, combine_each(combine_each(v, w), combine_each(y, z)))
                i, k = i + 4 * step, k + 4 * height
            if i + width <= end:  # three more loads at most: for one that is not there, all read the same place
                home = (a * plan.n + part * plan.length) * plan.inner
                two, three = i + step + width <= end, i + 2 * step + width <= end
                v = fetch_each(x, i, k, column, plan.tile)
                w = fetch_each(x, i + step if two else home, k + height, column, plan.tile)
                y = fetch_each(x, i + 2 * step if three else home, k + 2 * height, column, plan.tile)
                v = combine_each(v, chosen_each(two, w, spread(none)))
                totals = combine_each(totals, combine_each(v, chosen_each(three, y, spread(none))))
                loads = 1 + int(two) + int(three)
                i, k = i + loads * step, k + loads * height
            put_each(cells, thread * width, totals)
            for j in range(end - i):  # of a tile that holds whole rows, a thread may have 1 to 3 elements left
                at = thread * width + j
                put(cells, at, combine(get(cells, at), fetch(x, i + j, k + rows_on(column + j, plan.tile))))
        elif thread < plan.threads:
            put_each(cells, thread * width, totals)
        while height > 1:  # the upper half of the rows is combined with the lower half
            half = (height + 1) // 2
            cuda.syncthreads()
            i = np.int64(thread)  # a range of a step that is a variable costs a division
            while i < (height - half) * plan.tile:
                put(cells, i, combine(get(cells, i), get(cells, i + half * plan.tile)))
                i += cuda.blockDim.x
            height = half
        cuda.syncthreads()
        i = np.int64(thread)
        while i < min(plan.tile, plan.inner - left):
            at = above * plan.inner + left + i
            if plan.turned:
                at = (a * plan.inner + left + i) * plan.parts + part
            store(out, at, get(cells, i), divisor)
            i += cuda.blockDim.x

    return columns


def launch_plan(task: Task, plan: Rows | Columns, out: tuple, last: bool) -> None:
    """One launch by a plan."""
    p, outer = task.p, task.fold.outer
    if isinstance(plan, Rows):
        threads, jobs = max(BLOCK if plan.bits <= 5 else 0, 1 << plan.bits), plan.rows * plan.parts
        kernel = rows_kernel(p.op, p.x.dtype, task.states, last, plan.width)
        grid = blocks(jobs, threads >> plan.bits)
        kernel[grid, threads, p.stream](task.x, out, p.none, plan, p.divisor)
    else:
        kernel = columns_kernel(p.op, p.x.dtype, task.states, last, plan.width)
        grid, threads = outer * plan.parts * plan.tiles, round_up(plan.threads, 32)
        kernel[grid, threads, p.stream](task.x, out, p.none, plan, p.divisor)


def launch(task: Task, plan: Rows | Columns) -> None:
    """One fold by its plan. States of parts are put together by a second launch."""
    p, (outer, _, inner) = task.p, task.fold
    if plan.parts == 1:
        launch_plan(task, plan, task.out, task.last)
        return
    out = states_of(p, outer * plan.parts * inner)
    launch_plan(task, plan, out, False)
    turned = isinstance(plan, Rows) or plan.turned
    rest = Fold(outer * inner, plan.parts, 1) if turned else Fold(outer, plan.parts, inner)
    launch_plan(task._replace(x=out, fold=rest, states=True), second(rest), task.out, task.last)


@functools.lru_cache(1024)
def second(fold: Fold) -> Rows | Columns:
    """The plan for states of parts, which are few: as many threads as may help, so that none waits for many loads."""
    outer, n, inner = fold
    if inner == 1:
        return Rows(outer, n, min(8, (blocks(n, 4) - 1).bit_length()), 1, n, 0, 1, False)
    tile = min(inner, 32)
    height = min(16, 1 << (blocks(n, 4) - 1).bit_length())
    return Columns(n, inner, tile, blocks(inner, tile), 1, n, tile * height, 1, height, False)


TALL = 8  # rows that a block reads at a time


def cut_rows(fold: Fold, width: int, shift: int, bits: int, parts: int) -> Rows:
    """Rows by teams of 2^bits threads, each cut into so many parts, which begin at multiples of eight elements."""
    rows, n, _ = fold
    length = round_up(blocks(n, parts), 8) if parts > 1 else n
    odd = width > 1 and (shift > 0 or n % width > 0)
    bits = max(bits, width.bit_length() - 1) if odd else bits
    return Rows(rows, n, bits, blocks(n, length), length, shift, width, odd)


@functools.lru_cache(1024)
def block_plan(fold: Fold, width: int, shift: int, parts: int = 1) -> Rows | Columns:
    """A block for each part of a row, or of a tile of columns."""
    _, n, inner = fold
    if inner == 1:
        return cut_rows(fold, width, shift, BLOCK.bit_length() - 1, parts)
    length = blocks(n, parts)
    if inner % width or shift:
        width = 1
    tile = BLOCK * width // TALL
    return Columns(n, inner, tile, blocks(inner, tile), blocks(n, length), length, BLOCK, width, TALL, False)


@rung(rows_kernel, columns_kernel)
def block_per_result(p):
    """The threads of a block share a row, or 32 columns. Shuffles and a tree in shared memory make one state of theirs.

    Rows of some thousand elements or less are too short for a block, and take longer than by `coalesced`.

    Leaves: a thread asks for 4 bytes at a time.
    """
    each_fold(p, lambda task: launch(task, block_plan(task.fold, 1, 0)))


def widths_of(task: Task) -> tuple[int, int]:
    """Elements a load, and how many elements x begins behind a multiple of 16 bytes.

    Of 16-bit numbers a load brings eight of a row. Eight columns would be eight states in a thread: it takes one.
    """
    if task.states or task.x.size < 8:
        return 1, 0
    x, width = task.x, _WIDTH.get(task.x.dtype, 1)
    return (width, device.address(x) % 16 // x.dtype.itemsize) if width < 8 or task.fold.inner == 1 else (1, 0)


_WIDTH = {dtype: width_of(dtype) for dtype in known(DTYPES) if dtype.itemsize > 1}


@rung(rows_kernel, columns_kernel)
def vectorised(p):
    """128-bit loads, wherever four neighbours of a row, or of four columns, begin at a multiple of 16 bytes.

    Leaves: few long rows, or few columns, are still few blocks.
    """
    each_fold(p, lambda task: launch(task, block_plan(task.fold, *widths_of(task))))


# ---------------------------------------------------------------------------------------------- several blocks a result

WANTED = 512  # blocks of 256 threads with 64 bytes on their way each, 8 MB: what keeps a large GPU's memory busy
LEAST = 8  # loads that are worth a thread's while


def parts_of(fold: Fold, width: int, tile: int) -> int:
    """Into how many parts results are cut: enough blocks to fill a large GPU, but a thread keeps some loads."""
    outer, n, inner = fold
    there = outer * blocks(inner, tile)
    height = max(1, BLOCK * width // tile)  # elements of a result that a block reads at a time
    return max(1, min(WANTED // there, n // (height * LEAST)))


@rung(rows_kernel, columns_kernel)
def split(p):
    """Several blocks share a long result: each leaves a state, and a second launch combines these in a fixed order.

    Leaves: a row of three has 256 threads, and three columns have a tile of 128.
    """

    def work(task):
        width, shift = widths_of(task)
        inner = task.fold.inner
        tile = 1 if inner == 1 else BLOCK * (1 if inner % width or shift else width) // TALL
        launch(task, block_plan(task.fold, width, shift, parts_of(task.fold, width, tile)))

    each_fold(p, work)


# -------------------------------------------------------------------------------- as many threads as there is work for

TEAM = 16  # loads for each lane of a team
THREADS = 90_000  # with 64 bytes on their way each: 5.8 MB
SHORT = 16  # elements of a row that one thread reduces
STAGED = BLOCK * SHORT  # elements that a block keeps in shared memory: four loads of 128 bits a thread
NARROW = 256  # columns that are read as one row with those of the next rows


@functools.lru_cache(256)
def short_kernel(op, dtype, last, n):
    """As `thread_kernel`, of elements; for rows of n, so that the loop over a row is none to the compiler."""
    (_, store), row = access_of(op, dtype, False, last), short_loads(load_of(op, dtype), op.combine, n)
    each = SHORT // n  # rows a thread

    @cuda.jit
    def short_rows(x, out, none, rows, divisor):
        tile = cuda.shared.array(STAGED, x.dtype, alignment=16)
        thread, first_row = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * (BLOCK * each)
        here = min(BLOCK * each, rows - first_row)
        first, count = first_row * n, here * n
        i, final = 4 * thread, count - count % 4 - 4  # the last load of full width
        if final >= 0:  # neighbours load neighbours, whatever rows they are of
            a, b = load128(x, first + min(i, final)), load128(x, first + min(i + 4 * BLOCK, final))
            c = load128(x, first + min(i + 8 * BLOCK, final))
            d = load128(x, first + min(i + 12 * BLOCK, final))
            if i <= final:
                store128(tile, i, a)
            if i + 4 * BLOCK <= final:
                store128(tile, i + 4 * BLOCK, b)
            if i + 8 * BLOCK <= final:
                store128(tile, i + 8 * BLOCK, c)
            if i + 12 * BLOCK <= final:
                store128(tile, i + 12 * BLOCK, d)
        if thread < count % 4:
            tile[final + 4 + thread] = x[first + final + 4 + thread]
        cuda.syncthreads()
        for r in range(thread, here, BLOCK):
            store(out, first_row + r, row(tile, r * n, none), divisor)

    return short_rows


def launch_short(task: Task) -> None:
    p, (rows, n, _) = task.p, task.fold
    kernel = short_kernel(p.op, p.x.dtype, task.last, n)
    kernel[blocks(rows, BLOCK * (SHORT // n)), BLOCK, p.stream](task.x, task.out, p.none, rows, p.divisor)


@functools.lru_cache(1024)
def teams(fold: Fold, width: int, shift: int) -> Rows:
    """Lanes for a row as it is long, a block for a row if there are not many, and several blocks if there are few."""
    rows, n, _ = fold
    loads = blocks(n, width)
    bits = min(2, (blocks(loads, 4) - 1).bit_length())  # a short row has a lane for four loads, up to four lanes
    while 1 << bits < BLOCK and TEAM << bits < loads and (bits < 5 or rows << bits < THREADS):
        bits += 1
    parts = parts_of(fold, width, 1) if 1 << bits == BLOCK else 1
    return cut_rows(fold, width, shift, bits, parts)


@functools.lru_cache(1024)
def side_by_side(fold: Fold, width: int) -> Columns:
    """Narrow columns: a block reads whole rows, as many side by side as make full loads of neighbours.

    Wide ones: a tile of columns, as tall as the columns are long.
    """
    outer, n, inner = fold
    if is_narrow(inner, width):
        period = inner // math.gcd(inner, width)  # threads until the columns come again
        most = BLOCK // 2 if n * inner < 16 * BLOCK * width else BLOCK
        threads, tile, wanted = max(period, most // period * period), inner, WANTED
    else:
        threads, tile, wanted = BLOCK // 2, BLOCK // 2 * width, 2 * WANTED
        if width == 1:
            tile, wanted = BLOCK // 4, 4 * WANTED  # a thread has only 16 bytes on their way
        elif n >= 16 and outer * blocks(inner, tile) < wanted:
            tile = BLOCK // 2
    tiles, height = blocks(inner, tile), threads * width // tile
    parts = max(1, min(wanted // (outer * tiles), n // (height * LEAST)))
    length = round_up(blocks(n, parts), 4)  # so that parts begin at multiples of 16 bytes
    parts = blocks(n, length)
    return Columns(n, inner, tile, tiles, parts, length, threads, width, height, outer * inner * parts <= TURNED)


TURNED = 2**18  # states that may be stored far from each other


def is_narrow(inner: int, width: int) -> bool:
    """Whether a block reads whole rows of these columns. Those of an odd number have no other way to wide loads."""
    return inner <= NARROW or (inner % width > 0 and inner // math.gcd(inner, width) <= 2 * BLOCK)


def way(task: Task) -> None:
    """Launch what suits the fold."""
    fold, (width, shift) = task.fold, widths_of(task)
    outer, n, inner = fold
    if n == 1:
        task, inner = task._replace(fold=Fold(outer * inner, 1, 1)), 1  # each element is a row
    if inner == 1 and n <= SHORT and width == 4 and not shift:
        launch_short(task)
    elif inner == 1:
        launch(task, teams(task.fold, width, shift))
    elif n * inner < BLOCK * width and outer >= WANTED:
        launch_threads(task)
    elif task.states and n <= WANTED:
        launch_plan(task, second(fold), task.out, task.last)
    else:
        narrow = is_narrow(inner, width)
        if shift or (inner % width and not narrow) or (outer > 1 and n * inner % width):
            width = 1
        launch(task, side_by_side(fold, width))


@rung(thread_kernel, rows_kernel, columns_kernel, short_kernel)
def planned(p):
    """Threads for the work there is: short rows through shared memory, lanes for a row, narrow columns as one row."""
    each_fold(p, way)


LADDER = (thread_per_result, coalesced, block_per_result, vectorised, split, planned)
