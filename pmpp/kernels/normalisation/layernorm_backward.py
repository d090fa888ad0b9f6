"""Gradients of layer normalisation: of the matrix, and of weight and bias, from the gradient of the result.

Chapter: notebooks/84_gradients_of_normalisation.ipynb.  PMPP 4e ch. 10.

A row's gradient needs two sums over the row, and the gradients of weight and bias need two over every column. Memory is
the bound, at 12 bytes for an element, if dy and x are read once. So both kinds of sums are made of the same read.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_sum, blocks, round_up, warp_sum
from pmpp.kernels.normalisation import gradients, layernorm
from pmpp.kernels.normalisation.layernorm import row_moments
from pmpp.kernels.normalisation.moments import DTYPES, LIKE, divided, f0, f1, store_vector
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, widened, width_of

BLOCK = 256  # threads per block


def reference(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The gradient of the matrix in float64, as the chapter derives it. Arguments as in `arguments`."""
    return gradients.of_rows(dy, x, weight, eps)[0]


def reference_parameters(dy: np.ndarray, x: np.ndarray, eps: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of weight and bias in float64."""
    with np.errstate(invalid="ignore"):
        return gradients.of_rows(dy, x, np.ones(x.shape[1]), eps)[1].sum(axis=0), dy.astype(np.float64).sum(axis=0)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward matrices: a name, and ``(dy, x, weight)``."""
    rng = np.random.default_rng(85) if rng is None else rng
    shapes = {"one": (1, 1), "a row": (1, 77), "a column": (77, 1), "no rows": (0, 5), "narrow": (300, 3)}
    shapes |= {"half a warp of vectors": (67, 64), "a few vectors": (35, 12), "odd": (5, 333), "many rows": (300, 40)}
    shapes |= {f"a block's row {d:+}": (3, EACH * BLOCK + d) for d in (-1, 0, 1, 4)}
    shapes |= {f"the longest row kept {d:+}": (1, LARGEST * WIDE + d) for d in (1,)}
    shapes |= {"several long rows": (2, 1500)}
    made = {name: [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)] for name, shape in shapes.items()}
    dy, x = rng.standard_normal((2, 6, 100), dtype=np.float32)
    made["large mean"], made["large gradients"] = [dy, 1000 + x], [1000 + 1e3 * dy, x]
    made["outliers"] = [dy, np.where(rng.random(x.shape) < 0.01, 1e6, rng.random(x.shape)).astype(np.float32)]
    made["constant"] = [dy, np.full(x.shape, 0.1, np.float32)]
    made["non-finite"] = [dy.copy(), x.copy()]
    made["non-finite"][0][0, 2] = made["non-finite"][1][3, 1] = np.nan
    made["non-finite"][1][4, 0] = np.inf
    for dtype in known(DTYPES[1:]):
        for name in ("half a warp of vectors", "a few vectors", "non-finite"):
            made[f"{dtype}, {name}"] = [one.astype(dtype) for one in made[name]]
        made[f"{dtype}, a block"] = [rng.standard_normal((2, 264)).astype(dtype) for _ in range(2)]
    return {name: (dy, x, rng.uniform(-2, 2, x.shape[1]).astype(np.float32)) for name, (dy, x) in made.items()}


def tolerance(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The largest error allowed for each element of the matrix's gradient; see `gradients.tolerances`."""
    return gradients.tolerances(dy, x, weight, eps)[0]


def tolerance_parameters(dy: np.ndarray, x: np.ndarray, eps: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """The largest errors allowed for the gradients of weight and bias.

    A column's sum is off by the errors of its terms, and by up to as many roundings as it has terms, or 8 times the
    root of that number where that is less; see `moments.moment_errors`.
    """
    ones = np.ones(x.shape[1])
    moved, products = gradients.tolerances(dy, x, ones, eps)[1], gradients.of_rows(dy, x, ones, eps)[1]
    growth = (min(len(x), 8 * math.sqrt(len(x))) + 8) * 2.0**-24
    with np.errstate(invalid="ignore"):
        return (moved + growth * np.abs(products)).sum(axis=0), growth * np.abs(dy.astype(np.float64)).sum(axis=0)


def cost(rows: int, columns: int, itemsize: int = 4) -> Cost:
    """dy and x read once, dx written once. 12 operations for each element.

    2 normalise x, 4 are for the sums of the row, 3 for those of the columns, and 3 for dx.
    """
    return Cost(flops=12 * rows * columns, bytes=3 * itemsize * rows * columns + 8 * rows + 12 * columns)


def arguments(
    dy,
    x,
    weight,
    *,
    eps=1e-5,
    mean=None,
    invstd=None,
    out=None,
    dweight=None,
    dbias=None,
    stream=0,
) -> Problem:
    """The gradient of a matrix whose rows were normalised, and the gradients of weight and bias.

    Args:
        dy: the gradient of the result, in the shape and dtype of ``x``, contiguous in C order.
        x: a matrix of float32, float16 or bfloat16, shape (M, N), 0 < N <= 2^31 - 2^15, contiguous in C order: what was
            normalised. Whatever its dtype, all is computed in float32, and the gradient of the matrix is rounded once.
        weight: float32 of shape (N,).
        eps: what was added to the variance, 0 or more. It counts only where the moments are found here.
        mean, invstd: float32 of shape (M,), both or neither: the mean of each row and 1 / sqrt(var + eps), as the
            forward pass returns them for return_moments=True. Without them they are found here, by another read of x.
        out: a device array of the shape and dtype of ``x`` in C order, apart from the others in memory, or None to
            allocate one.
        dweight, dbias: device arrays of float32 and shape (N,) that take the gradients of weight and bias, apart from
            the others in memory, or None to drop these two. Of a matrix without rows they are 0.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The same call gives the same bits. A NaN in dy, and a NaN
    or an infinity in x, make all of the row NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: J. L. Ba, J. R. Kiros and G. Hinton, Layer Normalization (2016), supplementary material.

    >>> from pmpp.kernels.normalisation import layernorm_backward
    >>> dy, x = np.float32([[1, 0, 0]]), np.float32([[1, 2, 3]])
    >>> layernorm_backward.vectorised(dy, x, np.float32([1, 1, 1]), eps=0).copy_to_host().round(3) + 0
    array([[ 0.204, -0.408,  0.204]], dtype=float32)
    """
    stream = device.as_stream(stream)
    eps = as_number("eps", eps, 0)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=2, stream=stream)
    rows, columns = x.shape
    if not columns:
        raise ValueError(f"x must have a column, had shape {x.shape}: the mean of nothing is not defined")
    if columns > layernorm.MOST:
        raise ValueError(f"x must have at most {layernorm.MOST} columns, had shape {x.shape}")
    dy = device.as_input("dy", dy, dtypes=x.dtype, shape=x.shape, stream=stream)
    weight = device.as_input("weight", weight, dtypes="float32", shape=(columns,), stream=stream)
    moments, known = gradients.moment_inputs(mean, invstd, rows, stream=stream)
    apart = {"dy": dy, "x": x, "weight": weight, "mean": moments.mean, "invstd": moments.invstd}
    out, sums = gradients.outputs(out, dweight, dbias, x, columns, apart, stream)
    if not rows:
        for array in sums:
            array.copy_to_device(np.zeros(columns, np.float32), stream=stream)
    return Problem(
        out,
        stream=stream,
        begin=None if known else find_moments,
        dy=dy,
        x=x,
        out=out,
        weight=weight,
        moments=moments,
        sums=sums,
        eps=eps,
        rows=rows,
        columns=columns,
    )


@cuda.jit
def moments_kernel(x, eps, moments):
    row = cuda.blockIdx.x
    mean, var = row_moments(x, row, cuda.shared.array((2, 32), np.float32))
    if cuda.threadIdx.x == 0:
        moments.mean[row], moments.invstd[row] = mean, f1 / math.sqrt(var + eps)


def find_moments(p):
    """Find the moments of the rows anew."""
    moments_kernel[p.rows, layernorm.BLOCK, p.stream](p.x, p.eps, p.moments)


# ------------------------------------------------------------------------------------------ a kernel for each of three


@cuda.jit(device=True)
def row_sums(dy, x, weight, row, mean, invstd, partial):
    """In all threads, the means over a row of dy * weight, and of that times the normalised x."""
    columns = x.shape[1]
    plain, weighted = f0, f0
    for i in range(cuda.threadIdx.x, columns, BLOCK):
        given = widened(dy[row, i]) * weight[i]
        plain += given
        weighted += given * ((widened(x[row, i]) - mean) * invstd)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    return plain / np.float32(columns), weighted / np.float32(columns)


class Slopes(typing.NamedTuple):
    """Two means over each row: of dy * weight, and of that times the normalised x."""

    common: typing.Any
    slope: typing.Any


@cuda.jit
def row_sums_kernel(dy, x, weight, moments, slopes):
    row, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    common, slope = row_sums(dy, x, weight, row, moments.mean[row], moments.invstd[row], partial)
    if cuda.threadIdx.x == 0:
        slopes.common[row], slopes.slope[row] = common, slope


@cuda.jit
def gradient_kernel(dy, x, weight, moments, slopes, out):
    i = cuda.grid(1)
    if i < x.size:
        row, column = i // x.shape[1], i % x.shape[1]
        normalised = (widened(x[row, column]) - moments.mean[row]) * moments.invstd[row]
        own = widened(dy[row, column]) * weight[column] - slopes.common[row] - normalised * slopes.slope[row]
        out[row, column] = own * moments.invstd[row]


@cuda.jit
def columns_kernel(dy, x, moments, sums):
    column = cuda.grid(1)
    if column < x.shape[1]:
        plain, weighted = f0, f0
        for row in range(x.shape[0]):
            plain += widened(dy[row, column])
            weighted += widened(dy[row, column]) * ((widened(x[row, column]) - moments.mean[row]) * moments.invstd[row])
        sums.dbias[column], sums.dweight[column] = plain, weighted


@rung(row_sums_kernel, gradient_kernel, columns_kernel)
def three_kernels(p):
    """One kernel for the two sums of each row, one for the gradient of each element, one for the sums of each column.

    Leaves: dy and x are read three times, and the last kernel has one thread for a column, which is few.
    """
    slopes = Slopes(*(device.empty(p.rows, np.float32, stream=p.stream) for _ in range(2)))
    row_sums_kernel[p.rows, BLOCK, p.stream](p.dy, p.x, p.weight, p.moments, slopes)
    gradient_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.dy, p.x, p.weight, p.moments, slopes, p.out)
    columns_kernel[blocks(p.columns, BLOCK), BLOCK, p.stream](p.dy, p.x, p.moments, p.sums)


# -------------------------------------------------------------------------------- one block per row, columns by parts

HEIGHT = 32  # rows of a block that adds columns: with 32 columns each, 1024 threads
ROUNDS = 16  # rows that such a thread adds before another part is worth its place in memory


@cuda.jit
def block_per_row_kernel(dy, x, weight, moments, out):
    row, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    mean, invstd = moments.mean[row], moments.invstd[row]
    common, slope = row_sums(dy, x, weight, row, mean, invstd, partial)
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[row, i] = (widened(dy[row, i]) * weight[i] - common - (widened(x[row, i]) - mean) * invstd * slope) * invstd


@cuda.jit(device=True)
def down_the_block(value, table):
    """The sum over the block's rows of 32 threads, in its first row. ``table``: shared, HEIGHT x 32, not in use."""
    row, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    table[row, lane] = value
    cuda.syncthreads()
    half = HEIGHT // 2
    while half > 0:
        if row < half:
            table[row, lane] += table[row + half, lane]
        cuda.syncthreads()
        half //= 2
    return table[0, lane]


@cuda.jit
def column_parts_kernel(dy, x, moments, partials):
    rows, columns = x.shape
    column, plain, weighted = cuda.blockIdx.x * 32 + cuda.threadIdx.x % 32, f0, f0
    if column < columns:
        for row in range(cuda.blockIdx.y * HEIGHT + cuda.threadIdx.x // 32, rows, cuda.gridDim.y * HEIGHT):
            plain += widened(dy[row, column])
            weighted += widened(dy[row, column]) * ((widened(x[row, column]) - moments.mean[row]) * moments.invstd[row])
    table = cuda.shared.array((2, HEIGHT, 32), np.float32)
    plain = down_the_block(plain, table[0])
    weighted = down_the_block(weighted, table[1])
    if column < columns and cuda.threadIdx.x < 32:
        partials[0, cuda.blockIdx.y, column], partials[1, cuda.blockIdx.y, column] = weighted, plain


@cuda.jit
def add_kernel(partials, sums):
    """Add the parts of each column: blockIdx.y is 0 for the gradient of weight, and 1 for that of bias."""
    column, which, total = cuda.blockIdx.x * 32 + cuda.threadIdx.x % 32, cuda.blockIdx.y, f0
    if column < partials.shape[2]:
        for part in range(cuda.threadIdx.x // 32, partials.shape[1], HEIGHT):
            total += partials[which, part, column]
    total = down_the_block(total, cuda.shared.array((HEIGHT, 32), np.float32))
    if column < partials.shape[2] and cuda.threadIdx.x < 32:
        if which == 0:
            sums.dweight[column] = total
        else:
            sums.dbias[column] = total


def add_columns(p, partials):
    """Launch the kernel that adds the parts, 2 x parts x columns, in the order of their numbers."""
    add_kernel[(blocks(p.columns, 32), 2), HEIGHT * 32, p.stream](partials, p.sums)


@rung(block_per_row_kernel, column_parts_kernel, add_kernel)
def block_per_row(p):
    """The block that found the sums of a row writes its gradient at once. Columns are added by many blocks, in parts.

    Leaves: dy and x come from memory twice, once for the rows and once for the columns.
    """
    block_per_row_kernel[p.rows, BLOCK, p.stream](p.dy, p.x, p.weight, p.moments, p.out)
    across, multiprocessors = blocks(p.columns, 32), device.limits()["multiprocessors"]
    parts = max(1, min(blocks(4 * multiprocessors, across), blocks(p.rows, HEIGHT * ROUNDS)))
    partials = device.empty((2, parts, p.columns), np.float32, stream=p.stream)
    column_parts_kernel[(across, parts), HEIGHT * 32, p.stream](p.dy, p.x, p.moments, partials)
    add_columns(p, partials)


# ------------------------------------------------------------------ one read: a thread has the same columns in all rows

EACH, WIDE = 4, 8  # values of a row that a thread keeps, of dy and of x
LARGEST = 1024  # threads per block, the most that CUDA allows, and so for a row


@cuda.jit(max_registers=64)  # 65,536 registers for a block of 1024 threads
def one_read_kernel(dy, x, weight, moments, out, partials):
    rows, columns = x.shape
    given, values = cuda.local.array(WIDE, np.float32), cuda.local.array(WIDE, np.float32)
    dweight, dbias = cuda.local.array(WIDE, np.float32), cuda.local.array(WIDE, np.float32)
    partial, count = cuda.shared.array((2, 32), np.float32), np.float32(columns)
    for k in range(WIDE):
        dweight[k] = dbias[k] = f0
    for row in range(cuda.blockIdx.x, rows, cuda.gridDim.x):
        mean, invstd = moments.mean[row], moments.invstd[row]
        plain, weighted = f0, f0
        for k in range(WIDE):
            i = cuda.threadIdx.x + k * cuda.blockDim.x
            given[k] = widened(dy[row, i]) if i < columns else f0
            values[k] = (widened(x[row, i]) - mean) * invstd if i < columns else f0
        for k in range(WIDE):
            i = cuda.threadIdx.x + k * cuda.blockDim.x
            dweight[k] += given[k] * values[k]
            dbias[k] += given[k]
            given[k] *= weight[i] if i < columns else f0
            plain += given[k]
            weighted += given[k] * values[k]
        plain = block_sum(plain, partial[0]) / count
        weighted = block_sum(weighted, partial[1]) / count
        for k in range(WIDE):
            i = cuda.threadIdx.x + k * cuda.blockDim.x
            if i < columns:
                out[row, i] = (given[k] - plain - values[k] * weighted) * invstd
    for k in range(WIDE):
        i = cuda.threadIdx.x + k * cuda.blockDim.x
        if i < columns:
            partials[0, cuda.blockIdx.x, i], partials[1, cuda.blockIdx.x, i] = dweight[k], dbias[k]


def resident(threads: int) -> int:
    """Blocks that are on the GPU at once, if their threads have 64 registers each."""
    return device.limits()["multiprocessors"] * max(1, LARGEST // threads)


@rung(one_read_kernel, add_kernel, block_per_row_kernel, column_parts_kernel)
def one_read(p):
    """A block walks over many rows. It keeps a row in registers, and in others what its columns add up to so far.

    So dy and x are read once. At the end each block stores its sums of the columns, and a second kernel adds those.
    Rows of more than 8192 elements go to `block_per_row`.

    Leaves: a load moves 4 bytes; all threads of a block wait twice for every row; of a short row most are idle.
    """
    if p.columns > LARGEST * WIDE:
        block_per_row.launch(p)
        return
    threads = max(64, round_up(blocks(p.columns, WIDE), 32))
    grid = min(p.rows, resident(threads))
    partials = device.empty((2, grid, p.columns), np.float32, stream=p.stream)
    one_read_kernel[grid, threads, p.stream](p.dy, p.x, p.weight, p.moments, p.out, partials)
    add_columns(p, partials)


# ------------------------------------------------ 128 bits wide, several rows at once, and as many lanes as a row needs

TOGETHER = 2  # rows of up to 128 elements that a group of lanes has in registers at once
HELD = TOGETHER * EACH  # values that a thread then has of dy, and of x
TOTALS = 2 * TOGETHER  # sums that it exchanges with its group
TABLE, EIGHTS = BLOCK * EACH, BLOCK * WIDE  # the columns of all groups of a block


@cuda.jit(device=True)
def load_rows(dy, x, moments, first, step, lane, lanes, like, each, given, values, invstds):
    """Load a group's next rows: ``first``, ``first + step``, ...; dy into ``given``, and x, normalised, in ``values``.

    A thread has ``each`` values of every row. A unit is one of them, or a vector of 16 bytes: ``like`` is a tuple as
    long as a unit has values. The thread has the units ``lane``, ``lane + lanes`` and so on. Beyond the last row and
    column both arrays get 0, which adds to no sum.
    """
    columns, last = np.int32(x.shape[1]), x.shape[0] - 1
    for r in range(invstds.size):
        row = first + r * step
        there, row = row <= last, min(row, last)
        mean, invstds[r] = moments.mean[row], moments.invstd[row]
        if len(like) > 1:
            for k in range(each // len(like)):
                i, at = np.int32(len(like) * (lane + k * lanes)), r * each + len(like) * k
                begin, inside = row * columns + min(i, np.int32(columns - len(like))), there and i < columns
                a, b = widened(load128(dy, begin)), widened(load128(x, begin))
                for j in range(len(like)):
                    given[at + j] = a[j] if inside else f0
                    values[at + j] = (b[j] - mean) * invstds[r] if inside else f0
        else:
            for k in range(each):
                i, at = np.int32(lane + k * lanes), r * each + k
                i, inside = min(i, np.int32(columns - 1)), there and i < columns
                given[at] = widened(dy[row, i]) if inside else f0
                values[at] = (widened(x[row, i]) - mean) * invstds[r] if inside else f0


@cuda.jit(device=True)
def load_weight(weight, columns, lane, lanes, like, factors):
    """The thread's units of weight, 0 beyond the last column. They are float32, so four fill a vector."""
    if len(like) > 1:
        for k in range(factors.size // 4):
            unit, part = 4 * k // len(like), 4 * k % len(like)
            i = len(like) * (lane + unit * lanes) + part
            quad = load128(weight, min(i, columns - 4))
            for j in range(4):
                factors[4 * k + j] = quad[j] if i < columns else f0
    else:
        for k in range(factors.size):
            i = lane + k * lanes
            factors[k] = weight[min(i, columns - 1)] if i < columns else f0


@cuda.jit(device=True)
def store_rows(values, out, first, step, lane, lanes, like, each, together):
    """Store the values of `load_rows` at the same places of ``out``."""
    rows, columns = out.shape
    for r in range(together):
        row = first + r * step
        if len(like) > 1:
            for k in range(each // len(like)):
                i, at = len(like) * (lane + k * lanes), r * each + len(like) * k
                if row < rows and i < columns:
                    store_vector(values, at, out, row * columns + i, like)
        else:
            for k in range(each):
                i = lane + k * lanes
                if row < rows and i < columns:
                    out[row, i] = values[r * each + k]


@cuda.jit(device=True)
def sum_in_group(totals, lanes, partial):
    """Replace each of a thread's totals by its sum over the group of ``lanes`` threads: a power of two, or a block.

    ``partial``: for a block a shared array with a row of 32 for each total, which no thread still reads. Whatever the
    number of totals, there is one barrier.
    """
    distance = min(lanes, 32) // 2
    while distance > 0:
        for s in range(totals.size):
            totals[s] += cuda.shfl_xor_sync(FULL_WARP, totals[s], distance)
        distance //= 2
    if lanes > 32:
        if cuda.laneid == 0:
            for s in range(totals.size):
                partial[s, cuda.threadIdx.x // 32] = totals[s]
        cuda.syncthreads()
        for s in range(totals.size):
            seen = partial[s, cuda.laneid] if cuda.laneid < lanes // 32 else f0
            totals[s] = warp_sum(seen)


@cuda.jit(device=True)
def store_column_sums(mine, which, lane, lanes, like, partials, columns, table):
    """Store the block's sums of the columns. Where several groups share the block, they are added in their order."""
    each, groups = mine.size, cuda.blockDim.x // lanes
    group = cuda.threadIdx.x // lanes
    for k in range(each):
        i = len(like) * (lane + k // len(like) * lanes) + k % len(like)
        if groups > 1:
            table[group * lanes * each + i] = mine[k]
        elif i < columns:
            partials[which, cuda.blockIdx.x, i] = mine[k]
    if groups > 1:
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
            total = f0
            for g in range(groups):
                total += table[g * lanes * each + i]
            partials[which, cuda.blockIdx.x, i] = total
        cuda.syncthreads()


@cuda.jit(device=True)
def walk(dy, x, weight, moments, lanes, like, out, partials, given, values, invstds, totals, kept, partial, table):
    """Go over the rows in steps of the grid, with ``invstds.size`` rows at a time in registers.

    ``kept``: local arrays for the weight, and for the sums of the thread's columns. ``partial`` is used by halves: a
    warp that is ahead writes one while another still reads the other.
    """
    factors, dweight, dbias = kept
    each, together = factors.size, invstds.size
    rows, columns = x.shape
    group, lane = divided(np.int32(cuda.threadIdx.x), lanes)
    groups = cuda.blockDim.x // lanes
    load_weight(weight, columns, lane, lanes, like, factors)
    for k in range(each):
        dweight[k] = dbias[k] = f0
    turn, share = 0, f1 / np.float32(columns)
    begin = cuda.blockIdx.x * np.int64(groups * together)
    while begin < rows:
        first = begin + group
        begin += cuda.gridDim.x * np.int64(groups * together)
        load_rows(dy, x, moments, first, groups, lane, lanes, like, each, given, values, invstds)
        for r in range(together):
            plain, weighted = f0, f0
            for k in range(each):
                at = r * each + k
                dweight[k] += given[at] * values[at]
                dbias[k] += given[at]
                given[at] *= factors[k]
                plain += given[at]
                weighted += given[at] * values[at]
            totals[2 * r], totals[2 * r + 1] = plain, weighted
        sum_in_group(totals, lanes, partial[turn])
        turn = 1 - turn
        for r in range(together):
            common, slope = totals[2 * r] * share, totals[2 * r + 1] * share
            for k in range(each):
                at = r * each + k
                values[at] = (given[at] - common - values[at] * slope) * invstds[r]
        store_rows(values, out, first, groups, lane, lanes, like, each, together)
    store_column_sums(dweight, 0, lane, lanes, like, partials, columns, table)
    store_column_sums(dbias, 1, lane, lanes, like, partials, columns, table)


# Narrow loads have kernels of their own: with their addresses a thread needs half as many registers again.


@cuda.jit(device=True)
def several_rows(dy, x, weight, moments, lanes, like, out, partials):
    """`walk` with TOGETHER rows at once, and EACH values of every row in a thread."""
    given, values = cuda.local.array(HELD, np.float32), cuda.local.array(HELD, np.float32)
    invstds, totals = cuda.local.array(TOGETHER, np.float32), cuda.local.array(TOTALS, np.float32)
    factors, dweight = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.float32)
    kept = factors, dweight, cuda.local.array(EACH, np.float32)  # of a thread's columns
    partial = cuda.shared.array((2, TOTALS, 32), np.float32)
    table = cuda.shared.array(TABLE, np.float32)
    walk(dy, x, weight, moments, lanes, like, out, partials, given, values, invstds, totals, kept, partial, table)


@cuda.jit(max_registers=64)  # so that 4 blocks of 256 threads fit on a multiprocessor
def vectorised_kernel(dy, x, weight, moments, lanes, like, out, partials):
    several_rows(dy, x, weight, moments, lanes, like, out, partials)


@cuda.jit(max_registers=96)  # eight loads where the others have two, each with its address: 2 blocks fit
def odd_rows_kernel(dy, x, weight, moments, lanes, like, out, partials):
    several_rows(dy, x, weight, moments, lanes, like, out, partials)


@cuda.jit(device=True)
def one_row(dy, x, weight, moments, lanes, like, out, partials, table):
    """`walk` with one row at once, and WIDE values of it in a thread. ``table``: shared, for several groups a block."""
    given, values = cuda.local.array(WIDE, np.float32), cuda.local.array(WIDE, np.float32)
    invstds, totals = cuda.local.array(1, np.float32), cuda.local.array(2, np.float32)
    factors, dweight = cuda.local.array(WIDE, np.float32), cuda.local.array(WIDE, np.float32)
    kept = factors, dweight, cuda.local.array(WIDE, np.float32)
    partial = cuda.shared.array((2, 2, 32), np.float32)
    walk(dy, x, weight, moments, lanes, like, out, partials, given, values, invstds, totals, kept, partial, table)


@cuda.jit(max_registers=64)  # 65,536 registers for a block of 1024 threads
def wide_rows_kernel(dy, x, weight, moments, lanes, like, out, partials):
    one_row(dy, x, weight, moments, lanes, like, out, partials, cuda.shared.array(1, np.float32))


@cuda.jit(max_registers=64)  # as above
def wide_odd_rows_kernel(dy, x, weight, moments, lanes, like, out, partials):
    one_row(dy, x, weight, moments, lanes, like, out, partials, cuda.shared.array(1, np.float32))


@cuda.jit(max_registers=64)  # so that 4 blocks of 256 threads fit on a multiprocessor
def eights_kernel(dy, x, weight, moments, lanes, like, out, partials):
    """As `vectorised_kernel`, of 16-bit numbers: eight of one row are a vector, where four of two rows are two."""
    one_row(dy, x, weight, moments, lanes, like, out, partials, cuda.shared.array(EIGHTS, np.float32))


@rung(
    vectorised_kernel,
    odd_rows_kernel,
    wide_rows_kernel,
    wide_odd_rows_kernel,
    eights_kernel,
    add_kernel,
    block_per_row_kernel,
    column_parts_kernel,
)
def vectorised(p):
    """Loads of 128 bits, and as many lanes as a row needs: short rows share a warp, which has two of each at once.

    A row of up to 128 elements has 1 to 32 lanes with 4 elements each, and nobody waits for another warp. Longer rows
    have a block of up to 1024 threads with 8 elements each. Of more than 8192 elements, `block_per_row` takes them. Of
    numbers of 16 bits, 8 are a vector, so that 32 lanes are enough for a row of 256.
    """
    if p.columns > LARGEST * WIDE:
        block_per_row.launch(p)
        return
    dy, x, weight, out, stream = p.dy, p.x, p.weight, p.out, p.stream
    width = width_of(x.dtype)
    wide = p.columns % width == 0 and not any(device.address(array) % 16 for array in (dy, x, weight, out))
    if wide and width == WIDE and p.columns <= 32 * WIDE:
        lanes, threads = layernorm.lanes_for(p.columns // WIDE, 1), BLOCK
        kernel, tiles = eights_kernel, blocks(p.rows, threads // lanes)
    elif p.columns <= 32 * EACH:
        lanes, threads = layernorm.lanes_for(blocks(p.columns, EACH), 1), BLOCK
        kernel = vectorised_kernel if wide else odd_rows_kernel
        tiles = blocks(p.rows, TOGETHER * (threads // lanes))
    else:
        lanes = threads = round_up(blocks(p.columns, WIDE), 32)
        kernel, tiles = wide_rows_kernel if wide else wide_odd_rows_kernel, p.rows
    grid = min(tiles, resident(threads))
    partials = device.empty((2, grid, p.columns), np.float32, stream=stream)
    kernel[grid, threads, stream](dy, x, weight, p.moments, lanes, LIKE[width if wide else 1], out, partials)
    add_columns(p, partials)


LADDER = (three_kernels, block_per_row, one_read, vectorised)
