"""Layer normalisation: every row of a matrix is shifted to mean 0 and scaled to variance 1.

Chapter: notebooks/54_normalisation.ipynb.  PMPP 4e ch. 10.

The arithmetic is that of batch normalisation, but the values of a row lie side by side in memory. Most rows are short
enough to be kept while their mean and variance are found, so one read and one write are enough. The rungs differ in
where they keep a row.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_sum, blocks, round_up, sum_across_warps, warp_sum
from pmpp.kernels.normalisation import moments
from pmpp.kernels.normalisation.moments import (
    DTYPES,
    LIKE,
    block_merge,
    chunk_moments,
    divided,
    f0,
    f1,
    load_vector,
    merge,
    merge_parts,
    store_vector,
    welford_step,
    write_part,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_number
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, widened, width_of

BLOCK = 256  # threads per block
MOST = 2**31 - 2**15  # columns: an int32 index may pass the row's end by up to a tile of 2^15 values


def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The normalised rows in float64, computed one row at a time. Arguments as in `arguments`."""
    out = np.empty(x.shape, np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf
        for i, row in enumerate(x.astype(np.float64)):
            out[i] = (row - row.mean()) / math.sqrt(row.var() + eps) * weight + bias
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward matrices: a name, and ``(x, weight, bias)``."""
    rng = np.random.default_rng(17) if rng is None else rng
    shapes = {"one": (1, 1), "a row": (1, 77), "a column": (77, 1), "no rows": (0, 5), "narrow": (300, 3)}
    shapes |= {"half a warp of vectors": (67, 64), "a few vectors": (35, 12), "odd": (5, 333)}
    shapes |= {f"a warp's row {d:+}": (9, 32 * SHORT + d) for d in (-4, -1, 0, 1, 4)}
    shapes |= {f"a warp's registers {d:+}": (2, 32 * ROW + d) for d in (-1, 0, 1)}
    shapes |= {f"the longest row kept {d:+}": (1, LARGEST * DEEP + d) for d in (-1, 0, 1, 4)}
    shapes |= {"several long rows": (2, 40_000), "several long odd rows": (3, 33_001)}
    made = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    made["large mean"] = 1000 + rng.standard_normal((6, 100), dtype=np.float32)
    made["outliers"] = np.where(rng.random((20, 130)) < 0.01, 1e6, rng.random((20, 130))).astype(np.float32)
    made["constant"] = np.full((5, 33), 0.1, np.float32)
    made["non-finite"] = rng.standard_normal((6, 40), dtype=np.float32)
    made["non-finite"][1, 3], made["non-finite"][4, 0] = np.nan, np.inf
    for dtype in known(DTYPES[1:]):
        made |= {f"{dtype}, {name}": made[name].astype(dtype) for name in ("narrow", "half a warp of vectors", "odd")}
        made |= {f"{dtype}, {name}": made[name].astype(dtype) for name in ("non-finite", "a warp's row +4")}
        made[f"{dtype}, far from 0"] = (50 + rng.standard_normal((6, 104))).astype(dtype)
    return {
        name: (x, rng.uniform(0.5, 2, x.shape[1]).astype(np.float32), rng.standard_normal(x.shape[1], dtype=np.float32))
        for name, x in made.items()
    }


def tolerance(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The largest error allowed for each element; see `pmpp.kernels.normalisation.moments.tolerance`."""
    return moments.tolerance(x, weight, bias, eps)


def cost(rows: int, columns: int, itemsize: int = 4) -> Cost:
    """Each element read once and written once. 8 operations each: 5 for the moments, 3 to normalise."""
    return Cost(flops=8 * rows * columns, bytes=2 * itemsize * rows * columns + 8 * columns)


class Returned(typing.NamedTuple):
    """Of each row the mean and 1 / sqrt(var + eps), float32 of shape (M,). They are stored only if ``wanted``."""

    mean: typing.Any
    invstd: typing.Any
    wanted: bool


def arguments(x, weight, bias, eps=1e-5, *, return_moments=False, out=None, stream=0) -> Problem:
    """Normalise every row of a matrix: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Args:
        x: a matrix of float32, float16 or bfloat16, shape (M, N), 0 < N <= 2^31 - 2^15, contiguous in C order. Reshape
            an array of more dimensions: the last ones make the row. Whatever its dtype, all is computed in float32, and
            the result is rounded once.
        weight, bias: float32 of shape (N,).
        eps: what is added to the variance, 0 or more.
        return_moments: True to return (out, mean, invstd): also the mean of each row and 1 / sqrt(var + eps), device
            arrays of float32 and shape (M,). `layer_norm_backward` takes them.
        out: a device array of the shape and dtype of ``x`` in C order, apart from the others in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, or (out, mean, invstd), without waiting for the work to be done. Mean and variance are those of the
    row, and the variance is the biased one. A NaN or an infinity makes all of its row NaN.
    Where the variance is beyond float32, which takes elements from about 1.8e19 on, the row is 0 or NaN. If ``eps`` is
    0, elements that differ by less than about 1e-19 have a variance that has lost digits, or that is 0 and makes the
    row infinite.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: J. L. Ba, J. R. Kiros and G. Hinton, Layer Normalization (2016); PyTorch's torch.nn.functional.layer_norm.

    >>> from pmpp.kernels.normalisation import layernorm
    >>> layernorm.vectorised(np.float32([[1, 3]]), np.float32([1, 2]), np.float32([0, 5]), eps=0).copy_to_host()
    array([[-1.,  7.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    eps, return_moments = as_number("eps", eps, 0), as_flag("return_moments", return_moments)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=2, stream=stream)
    rows, columns = x.shape
    if not columns:
        raise ValueError(f"x must have a column, had shape {x.shape}: the mean of nothing is not defined")
    if columns > MOST:
        raise ValueError(f"x must have at most {MOST} columns, had shape {x.shape}")
    weight = device.as_input("weight", weight, dtypes="float32", shape=(columns,), stream=stream)
    bias = device.as_input("bias", bias, dtypes="float32", shape=(columns,), stream=stream)
    apart = {"x": x, "weight": weight, "bias": bias}
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart=apart, stream=stream)
    # Where nothing is to be returned, any arrays will do.
    returned = (
        tuple(device.empty(rows, np.float32, stream=stream) for _ in range(2)) if return_moments else (bias, bias)
    )
    return Problem(
        (out, *returned) if return_moments else out,
        stream=stream,
        x=x,
        weight=weight,
        bias=bias,
        eps=eps,
        out=out,
        moments=Returned(*returned, return_moments),
        rows=rows,
        columns=columns,
    )


@cuda.jit(device=True)
def keep(moments, row, mean, invstd):
    """Store the moments of a row, if they are to be returned. One thread of the row calls this."""
    if moments.wanted:
        moments.mean[row], moments.invstd[row] = mean, invstd


# --------------------------------------------------------------------------------------------------- one block per row


@cuda.jit(device=True)
def row_moments(x, row, partial):
    """In all threads, the mean and the biased variance of a row."""
    columns = x.shape[1]
    total, squares = f0, f0
    for i in range(cuda.threadIdx.x, columns, BLOCK):
        total += widened(x[row, i])
    mean = block_sum(total, partial[0]) / np.float32(columns)
    for i in range(cuda.threadIdx.x, columns, BLOCK):
        deviation = widened(x[row, i]) - mean
        squares += deviation * deviation
    return mean, block_sum(squares, partial[1]) / np.float32(columns)


@cuda.jit
def statistics_kernel(x, mean, var, eps, moments):
    row = cuda.blockIdx.x
    centre, spread = row_moments(x, row, cuda.shared.array((2, 32), np.float32))
    if cuda.threadIdx.x == 0:
        mean[row], var[row] = centre, spread
        keep(moments, row, centre, f1 / math.sqrt(spread + eps))


@cuda.jit
def normalise_kernel(x, mean, var, weight, bias, eps, out):
    i = cuda.grid(1)
    if i < x.size:
        row, column = i // x.shape[1], i % x.shape[1]
        value = (widened(x[row, column]) - mean[row]) / math.sqrt(var[row] + eps)
        out[row, column] = value * weight[column] + bias[column]


@rung(statistics_kernel, normalise_kernel)
def two_kernels(p):
    """One kernel finds the mean and the variance of each row, another normalises each element.

    Leaves: if the matrix is larger than the caches, the second kernel must read each row from memory again.
    """
    mean, var = (device.empty(p.rows, np.float32, stream=p.stream) for _ in range(2))
    statistics_kernel[p.rows, BLOCK, p.stream](p.x, mean, var, p.eps, p.moments)
    normalise_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, mean, var, p.weight, p.bias, p.eps, p.out)


@cuda.jit
def block_per_row_kernel(x, weight, bias, eps, moments, out):
    row = cuda.blockIdx.x
    mean, var = row_moments(x, row, cuda.shared.array((2, 32), np.float32))
    scale = f1 / math.sqrt(var + eps)
    if cuda.threadIdx.x == 0:
        keep(moments, row, mean, scale)
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[row, i] = (widened(x[row, i]) - mean) * scale * weight[i] + bias[i]


@rung(block_per_row_kernel)
def block_per_row(p):
    """The block that found the mean and the variance of a row normalises it, while the row is in the cache.

    Leaves: the row is read three times, though mostly from the cache, and after each of the first two reads all threads
    wait at a barrier.
    """
    block_per_row_kernel[p.rows, BLOCK, p.stream](p.x, p.weight, p.bias, p.eps, p.moments, p.out)


@cuda.jit
def welford_kernel(x, weight, bias, eps, moments, out):
    row, columns = cuda.blockIdx.x, x.shape[1]
    count, mean, m2 = f0, f0, f0
    for i in range(cuda.threadIdx.x, columns, BLOCK):
        count, mean, m2 = welford_step(count, mean, m2, widened(x[row, i]))
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    scale = f1 / math.sqrt(m2 / count + eps)
    if cuda.threadIdx.x == 0:
        keep(moments, row, mean, scale)
    for i in range(cuda.threadIdx.x, columns, BLOCK):
        out[row, i] = (widened(x[row, i]) - mean) * scale * weight[i] + bias[i]


@rung(welford_kernel)
def welford(p):
    """Mean and variance in one pass: two reads of the row, and one barrier.

    Source: B. P. Welford (1962), as in `batchnorm`.

    Leaves: a division for each element, which makes it slower than `block_per_row` except for very long rows; a second
    read; and most of a block idle where rows are short.
    """
    welford_kernel[p.rows, BLOCK, p.stream](p.x, p.weight, p.bias, p.eps, p.moments, p.out)


# -------------------------------------------------------------------------------------- one warp per row, in registers

ROW = 32  # values that a lane keeps: a warp keeps a row of up to 1024


@cuda.jit
def warp_per_row_kernel(x, weight, bias, eps, moments, out):
    rows, columns = x.shape
    lane = cuda.laneid
    index = cuda.grid(1) // 32
    row = min(index, rows - 1)  # warps beyond the last row work on that row, too, and do not store
    values, total, squares = cuda.local.array(ROW, np.float32), f0, f0
    for k in range(ROW):
        values[k] = widened(x[row, min(lane + 32 * k, columns - 1)])
    for k in range(ROW):
        total += values[k] if lane + 32 * k < columns else f0
    mean = warp_sum(total) / np.float32(columns)
    for k in range(ROW):
        deviation = values[k] - mean if lane + 32 * k < columns else f0
        squares += deviation * deviation
    scale = f1 / math.sqrt(warp_sum(squares) / np.float32(columns) + eps)
    if lane == 0 and index < rows:
        keep(moments, row, mean, scale)
    for k in range(ROW):
        i = lane + 32 * k
        if i < columns and index < rows:
            out[row, i] = (values[k] - mean) * scale * weight[i] + bias[i]


@rung(warp_per_row_kernel, welford_kernel)
def warp_per_row(p):
    """A warp keeps a row in registers, up to 1024 elements: it is read once, and no warp waits at a barrier.

    The variance is found around the mean, in a second pass over registers: no division for each element, and no
    difference of two large sums, which would lose digits. Longer rows go to `welford`.

    Leaves: each lane makes 32 loads of 4 bytes, however short the row is, and rows of more than 1024 elements are not
    kept.
    """
    if p.columns > 32 * ROW:
        welford.launch(p)
    else:
        warp_per_row_kernel[blocks(p.rows, BLOCK // 32), BLOCK, p.stream](
            p.x, p.weight, p.bias, p.eps, p.moments, p.out
        )


# ----------------------------------------------------------------------- 128 bits wide, as many lanes as a row needs

SHORT, DEEP = 16, 32  # values that a thread keeps: with 16 it needs fewer registers, so more threads fit
LARGEST = 1024  # threads per block, the most that CUDA allows, and so for a row
ROOM = 65536 // 48  # threads that a multiprocessor has registers for: each needs 48 to keep SHORT values
MOST_PARTS = 256  # blocks for a very long row. Each merges the moments of all parts: one part per thread at most.


@cuda.jit(device=True)
def load_row(x, row, first, step, like, depth, values):
    """Load a thread's values of a row, and return how many there were.

    A unit is one value, or a vector of 16 bytes: ``like`` is a tuple as long as a unit has values. A thread has the
    units ``first``, ``first + step`` and so on, at most ``depth`` of them. Beyond the end of the row it loads the row's
    last unit, and does not count it.
    """
    columns, filled = np.int32(x.shape[1]), 0
    for k in range(values.size // len(like)):
        i = np.int32(len(like) * (first + k * step))
        if len(like) > 1:
            load_vector(values, len(like) * k, x, row * columns + min(i, columns - len(like)), k < depth, like)
        else:
            values[k] = widened(x[row, min(i, columns - 1)]) if k < depth else f0
        filled += len(like) if i < columns else 0
    return filled


@cuda.jit(device=True)
def store_row(values, mean, scale, weight, bias, out, row, first, step, like, filled):
    """Normalise the first ``filled`` of the values and store them where they belong."""
    for k in range(values.size // len(like)):
        place, i = len(like) * k, len(like) * (first + k * step)
        if place < filled:
            if len(like) > 1:
                for part in range(place, place + len(like), 4):  # weight and bias are float32: four fill a vector
                    w, b = load128(weight, i + part - place), load128(bias, i + part - place)
                    for e in range(4):
                        values[part + e] = (values[part + e] - mean) * scale * w[e] + b[e]
                store_vector(values, place, out, row * out.shape[1] + i, like)
            else:
                out[row, i] = (values[k] - mean) * scale * weight[i] + bias[i]


@cuda.jit(device=True)
def group_sum(value, lanes, partial):
    """The sum over each group of ``lanes`` threads, in all of them.

    ``lanes`` is a power of two up to 32, or the block's size. ``partial``: for a block a shared array of 32, which no
    thread still reads.
    """
    distance = min(lanes, 32) // 2
    while distance > 0:
        value += cuda.shfl_xor_sync(FULL_WARP, value, distance)
        distance //= 2
    if lanes > 32:
        value = sum_across_warps(value, partial)
    return value


@cuda.jit(device=True)
def keep_row(x, lanes, like, depth, weight, bias, eps, moments, out, values):
    """Normalise a row by a group of ``lanes`` threads. The row stays in registers, in the local array ``values``."""
    rows, columns = x.shape
    group, lane = divided(cuda.threadIdx.x, lanes)
    index = cuda.blockIdx.x * (cuda.blockDim.x // lanes) + group
    row = min(index, rows - 1)  # threads beyond the last row work on that row, too, and do not store
    partial = cuda.shared.array((2, 32), np.float32)
    filled = load_row(x, row, lane, lanes, like, depth, values)
    total, squares = f0, f0
    for k in range(values.size):
        total += values[k] if k < filled else f0
    mean = group_sum(total, lanes, partial[0]) / np.float32(columns)
    for k in range(values.size):
        deviation = values[k] - mean if k < filled else f0
        squares += deviation * deviation
    scale = f1 / math.sqrt(group_sum(squares, lanes, partial[1]) / np.float32(columns) + eps)
    if index < rows:
        if lane == 0:
            keep(moments, row, mean, scale)
        store_row(values, mean, scale, weight, bias, out, row, lane, lanes, like, filled)


@cuda.jit(max_registers=48)  # which `ROOM` counts on
def vectorised_kernel(x, lanes, like, depth, weight, bias, eps, moments, out):
    keep_row(x, lanes, like, depth, weight, bias, eps, moments, out, cuda.local.array(SHORT, np.float32))


@cuda.jit(max_registers=64)  # 65,536 registers for a block of 1024 threads
def wide_rows_kernel(x, lanes, like, depth, weight, bias, eps, moments, out):
    keep_row(x, lanes, like, depth, weight, bias, eps, moments, out, cuda.local.array(DEEP, np.float32))


@cuda.jit(device=True)
def part_moments(x, row, part, parts, like, tiles):
    """In all threads, the moments of the block's part of a row."""
    values = cuda.local.array(DEEP, np.float32)
    units = cuda.blockDim.x * (DEEP // len(like))
    count, mean, m2 = f0, f0, f0
    for tile in range(part, tiles, parts):
        filled = load_row(x, row, tile * units + cuda.threadIdx.x, cuda.blockDim.x, like, DEEP, values)
        more = chunk_moments(values, filled)
        count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
    return block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))


@cuda.jit(device=True)
def normalise_part(x, row, part, parts, like, tiles, mean, scale, weight, bias, out):
    values = cuda.local.array(DEEP, np.float32)
    units, step = cuda.blockDim.x * (DEEP // len(like)), cuda.blockDim.x
    tile = part + (tiles - 1 - part) // parts * parts  # backwards: what was read last may still be in a cache
    while tile >= 0:
        first = tile * units + cuda.threadIdx.x
        filled = load_row(x, row, first, step, like, DEEP, values)
        store_row(values, mean, scale, weight, bias, out, row, first, step, like, filled)
        tile -= parts


@cuda.jit
def parts_kernel(x, like, tiles, partials):
    row, part = cuda.blockIdx.x, cuda.blockIdx.y
    count, mean, m2 = part_moments(x, row, part, cuda.gridDim.y, like, tiles)
    if cuda.threadIdx.x == 0:
        write_part(partials, row, part, count, mean, m2)


@cuda.jit(max_registers=64)  # 65,536 registers for a block of 1024 threads
def long_rows_kernel(x, like, tiles, partials, weight, bias, eps, moments, out):
    row, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    if parts == 1:
        count, mean, m2 = part_moments(x, row, 0, 1, like, tiles)
    else:
        count, mean, m2 = merge_parts(partials, row)
    scale = f1 / math.sqrt(m2 / count + eps)
    if part == 0 and cuda.threadIdx.x == 0:
        keep(moments, row, mean, scale)
    normalise_part(x, row, part, parts, like, tiles, mean, scale, weight, bias, out)


class Kept(typing.NamedTuple):
    """How rows that fit into registers are shared out.

    A block of ``threads`` has ``lanes`` threads for each of its rows, and each thread has at most ``depth`` units.
    ``short``: a thread keeps SHORT values, else DEEP.
    """

    short: bool
    grid: int
    threads: int
    lanes: int
    depth: int


class Split(typing.NamedTuple):
    """How long rows are shared out: to ``parts`` blocks each, which read ``tiles`` tiles of a row by turns."""

    grid: tuple[int, int]
    threads: int
    tiles: int
    parts: int


@functools.lru_cache(maxsize=1024)
def plan(rows: int, columns: int, width: int, multiprocessors: int) -> Kept | Split:
    """How the rows of a matrix are shared out; ``width``: values in a load, more than one in 128 bits.

    >>> plan(rows=65536, columns=1024, width=4, multiprocessors=132)
    Kept(short=False, grid=8192, threads=256, lanes=32, depth=8)
    """
    units, most = columns // width, DEEP // width
    # With a warp for each row, 8 rows are a block of 256 threads. A crowd has such a block for each multiprocessor.
    # With fewer rows there is room for more threads.
    crowd = rows >= 8 * multiprocessors
    # Units per thread, if the row is short. In a crowd as many vectors as fill SHORT, or 8 values: several loads in
    # flight. Otherwise 1 vector or 4 values: more threads share a row, and each has less to do. It is more where the
    # GPU has no room for so many threads, for rows that wait for a place take as long again.
    few = SHORT // max(width, 2) if crowd else 1 if width > 1 else SHORT // 4
    room = 32 * few if crowd else min(LARGEST, ROOM // blocks(rows, multiprocessors)) * few
    while not crowd and units > room and few < SHORT // width:
        few, room = 2 * few, 2 * room
    if units <= LARGEST * most:
        short = units <= room
        lanes = lanes_for(units, few) if short else max(32, lanes_for(units, most))
        threads = BLOCK if lanes <= 32 else lanes
        return Kept(short, blocks(rows, threads // lanes), threads, lanes, blocks(units, lanes))
    threads = LARGEST if rows >= multiprocessors else BLOCK
    tiles = blocks(units, threads * most)
    # A multiprocessor has registers for 4 blocks of 256 threads, with 64 each. So 4 parts for each fill the GPU.
    parts = min(tiles, blocks(4 * multiprocessors, rows), MOST_PARTS) if rows < multiprocessors else 1
    return Split((rows, parts), threads, tiles, parts)


def lanes_for(units: int, few: int) -> int:
    """Threads for a row so that none has more than ``few`` units: a power of two within a warp, or whole warps.

    >>> lanes_for(16, 4), lanes_for(17, 4), lanes_for(129, 4)
    (4, 8, 64)
    """
    needed = blocks(units, few)
    return 1 << (needed - 1).bit_length() if needed <= 32 else round_up(needed, 32)


@rung(vectorised_kernel, wide_rows_kernel, parts_kernel, long_rows_kernel)
def vectorised(p):
    """A thread keeps 16 or 32 values, loaded 128 bits at a time; a row gets 1 to 1024 threads, as its length needs.

    Rows of more than 32768 elements are read twice: by one block, which finds much of the row in the cache again, or,
    where rows are few, by several blocks and two launches. The loads are 128 bits wide if N is a multiple of the 4 or 8
    elements in a vector, and all arrays begin on 16-byte boundaries. Else each brings one element.
    """
    x, weight, bias, out, stream = p.x, p.weight, p.bias, p.out, p.stream
    width = width_of(x.dtype)
    if p.columns % width or any(device.address(array) % 16 for array in (x, weight, bias, out)):
        width = 1
    how, like = plan(p.rows, p.columns, width, device.limits()["multiprocessors"]), LIKE[width]
    if isinstance(how, Kept):
        kernel = vectorised_kernel if how.short else wide_rows_kernel
        kernel[how.grid, how.threads, stream](x, how.lanes, like, how.depth, weight, bias, p.eps, p.moments, out)
        return
    partials = device.empty((3, *how.grid), np.float32, stream=stream)
    if how.parts > 1:
        parts_kernel[how.grid, how.threads, stream](x, like, how.tiles, partials)
    long_rows_kernel[how.grid, how.threads, stream](x, like, how.tiles, partials, weight, bias, p.eps, p.moments, out)


LADDER = (two_kernels, block_per_row, welford, warp_per_row, vectorised)
