"""Gradients of batch normalisation: of the batch, and of the weight and bias of every channel, from that of the result.

Chapter: notebooks/84_gradients_of_normalisation.ipynb.  PMPP 4e ch. 10.

Every value of a channel has moved the channel's mean and variance, so the gradient of each depends on two sums over all
of them. The sums read dy and x, and the gradient reads both again: at 20 bytes for an element memory is the bound.
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks
from pmpp.kernels.normalisation import batchnorm, columns, gradients
from pmpp.kernels.normalisation.gradients import (
    HELD,
    add_parts,
    held_sums,
    load_both,
    store_held,
    write_sums,
)
from pmpp.kernels.normalisation.moments import DTYPES, LIKE, Shape, divided, f0, f1, merge_parts, parts_of, threads_for
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import widened, width_of

BLOCK = 256  # threads per block


def rows_of(x: np.ndarray) -> np.ndarray:
    """A batch as a matrix with a row for each channel."""
    channels = np.moveaxis(x, 1, 0)
    return channels.reshape(len(channels), x.size // max(1, len(channels)))


def batch_of(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`rows_of`, undone."""
    return np.moveaxis(rows.reshape(shape[1], shape[0], *shape[2:]), 0, 1)


def reference(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The gradient of the batch in float64, as the chapter derives it. Arguments as in `arguments`."""
    return batch_of(gradients.of_rows(rows_of(dy), rows_of(x), weight[:, None], eps)[0], x.shape)


def reference_parameters(dy: np.ndarray, x: np.ndarray, eps: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of weight and bias in float64."""
    rows = rows_of(dy)
    with np.errstate(invalid="ignore"):
        products = gradients.of_rows(rows, rows_of(x), np.ones((len(rows), 1)), eps)[1]
        return products.sum(axis=1), rows.astype(np.float64).sum(axis=1)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward batches: a name, and ``(dy, x, weight)``."""
    rng = np.random.default_rng(84) if rng is None else rng
    shapes = {"one image": (1, 3, 5, 7), "two values a channel": (2, 1), "no channels": (4, 0), "N x C": (70, 37)}
    shapes |= {"many rows": (600, 5), "odd plane": (3, 5, 7, 7), "plane of whole vectors": (3, 5, 8, 6)}
    shapes |= {f"a block {d:+}": (BLOCK + d, 2, 1) for d in (-1, 0, 1)}
    shapes |= {"very many rows": (33_000, 2), "large N x C": (1_800, 37), "small planes": (33, 6, 3, 3)}
    shapes |= {"a sequence": (2, 3, 301), "a volume": (2, 2, 3, 4, 5), "many channels": (3, 140, 4, 4)}
    shapes |= {"long channels": (2, 2, 16400), "long odd channels": (3, 1, 11001)}
    made = {name: [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)] for name, shape in shapes.items()}
    dy, x = made["odd plane"]
    made["large mean"], made["large gradients"] = [dy, 1000 + x], [1000 + 1e3 * dy, x]
    made["outliers"] = [dy, np.where(rng.random(x.shape) < 0.01, 1e6, rng.random(x.shape)).astype(np.float32)]
    made["constant"] = [dy, np.full(x.shape, 0.1, np.float32)]
    made["the normalised itself"] = [(2 * (x - x.mean()) + 3).astype(np.float32), x]  # all of it cancels, nearly
    made["non-finite"] = [dy.copy(), x.copy()]
    made["non-finite"][0][0, 2, 1, 1] = made["non-finite"][1][1, 1, 2, 3] = np.nan
    made["non-finite"][1][2, 3, 0, 0] = np.inf
    for dtype in known(DTYPES[1:]):
        for name in ("N x C", "odd plane", "plane of whole vectors", "small planes", "long channels", "non-finite"):
            made[f"{dtype}, {name}"] = [one.astype(dtype) for one in made[name]]
    return {name: (dy, x, rng.uniform(-2, 2, x.shape[1]).astype(np.float32)) for name, (dy, x) in made.items()}


def tolerance(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The largest error allowed for each element of the batch's gradient; see `gradients.tolerances`."""
    return batch_of(gradients.tolerances(rows_of(dy), rows_of(x), weight[:, None], eps)[0], x.shape)


def tolerance_parameters(dy: np.ndarray, x: np.ndarray, eps: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """The largest errors allowed for the gradients of weight and bias."""
    rows = rows_of(dy)
    ones = np.ones((len(rows), 1))
    _, moved, growth = gradients.tolerances(rows, rows_of(x), ones, eps)
    products = gradients.of_rows(rows, rows_of(x), ones, eps)[1]
    with np.errstate(invalid="ignore"):
        of_weight = (moved + growth * np.abs(products)).sum(axis=1)
        return of_weight, (growth * np.abs(rows.astype(np.float64))).sum(axis=1)


def cost(n: int, c: int = 64, inner: int = 1, itemsize: int = 4) -> Cost:
    """For a batch of ``n`` x ``c`` x ``inner``: dy and x read once, dx written once.

    A batch that is too large for the caches must be read twice, which makes 20 bytes for each element of these 12.
    Operations per element: 4 for the sums, 5 for the gradient.
    """
    return Cost(flops=9 * n * c * inner, bytes=3 * itemsize * n * c * inner + 20 * c)


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
    """The gradient of a batch that was normalised by its own moments, and the gradients of weight and bias.

    Args:
        dy: the gradient of the result, in the shape and dtype of ``x``, contiguous.
        x: float32, float16 or bfloat16 of shape (N, C) or (N, C, ...) with one to three further dimensions, contiguous:
            what was normalised. At least 2 and fewer than 2^31 values per channel. Whatever its dtype, all is computed
            in float32, and the gradient of the batch is rounded once.
        weight: float32 of shape (C,).
        eps: what was added to the variance, 0 or more. It counts only where the moments are found here.
        mean, invstd: float32 of shape (C,), both or neither: the mean of each channel and 1 / sqrt(var + eps), as the
            forward pass returns them for return_moments=True. Without them they are found here, by another read of x.
        out: a device array of the shape and dtype of ``x``, in C order, apart from the others in memory, or None to
            allocate one.
        dweight, dbias: device arrays of float32 and shape (C,) that take the gradients of weight and bias, apart from
            the others in memory, or None to drop these two.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The same call gives the same bits. A NaN in dy, and a NaN
    or an infinity in x, make all of the channel NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: S. Ioffe and C. Szegedy, Batch Normalization (2015), section 3.

    >>> from pmpp.kernels.normalisation import batchnorm_backward
    >>> dy, x = np.float32([[1], [0], [0]]), np.float32([[1], [2], [3]])
    >>> batchnorm_backward.vectorised(dy, x, np.float32([1]), eps=0).copy_to_host().round(3) + 0
    array([[ 0.204],
           [-0.408],
           [ 0.204]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=(2, 3, 4, 5), stream=stream)
    shape = Shape(*x.shape[:2], math.prod(x.shape[2:]))
    return problem_of(dy, x, shape, weight, eps, mean, invstd, out, dweight, dbias, stream, find_moments)


def problem_of(dy, x, shape, weight, eps, mean, invstd, out, dweight, dbias, stream, find) -> Problem:
    """`arguments` of an ``x`` that is a device array, seen as images x channels x inner. ``find`` finds its moments."""
    eps = as_number("eps", eps, 0)
    dy = device.as_input("dy", dy, dtypes=x.dtype, shape=x.shape, stream=stream)
    values = shape.images * shape.inner
    weight = device.as_input("weight", weight, dtypes="float32", shape=(shape.channels,), stream=stream)
    moments, known = gradients.moment_inputs(mean, invstd, shape.channels, stream=stream)
    if shape.channels and values < 2:
        raise ValueError(f"x must have two values a channel or more, had shape {x.shape}")
    if values >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 values a channel, had {values}")
    apart = {"dy": dy, "x": x, "weight": weight, "mean": moments.mean, "invstd": moments.invstd}
    out, sums = gradients.outputs(out, dweight, dbias, x, shape.channels, apart, stream)
    three = shape if x.size else x.shape
    return Problem(
        out,
        stream=stream,
        begin=None if known else find,
        dy=dy.reshape(three),  # images x channels x inner
        x=x.reshape(three),
        out=out.reshape(three),
        shape=shape,
        weight=weight,
        moments=moments,
        sums=sums,
        eps=eps,
    )


@cuda.jit
def moments_kernel(partials, eps, moments):
    channel = cuda.blockIdx.x
    count, mean, m2 = merge_parts(partials, channel)
    if cuda.threadIdx.x == 0:
        moments.mean[channel], moments.invstd[channel] = mean, f1 / math.sqrt(m2 / count + eps)


def find_moments(p):
    """Find the moments of the channels anew, by the kernels of `batchnorm`."""
    x, shape = p.x.reshape(p.x.size), p.shape
    if shape.inner < batchnorm.NARROW:
        partials = columns.column_parts(x, shape, p.stream)
    else:
        width = width_of(x.dtype)
        like = LIKE[width if shape.inner % width == 0 and device.address(x) % 16 == 0 else 1]
        units, most = shape.images * shape.inner // len(like), batchnorm.CHUNK // len(like)
        partials, tiles = batchnorm.partials_of(p, BLOCK * batchnorm.CHUNK), blocks(units, BLOCK * most)
        batchnorm.parts_kernel[partials.shape[1:], BLOCK, p.stream](x, shape, like, tiles, partials)
    moments_kernel[shape.channels, threads_for(partials.shape[2]), p.stream](partials, p.eps, p.moments)


# ------------------------------------------------------------------------ one block per channel, one element per thread


@cuda.jit
def sums_kernel(dy, x, moments, sums):
    images, _, inner = x.shape
    channel, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    mean, plain, weighted = moments.mean[channel], f0, f0
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        given = widened(dy[i // inner, channel, i % inner])
        plain += given
        weighted += given * (widened(x[i // inner, channel, i % inner]) - mean)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        sums.dbias[channel], sums.dweight[channel] = plain, weighted * moments.invstd[channel]


@cuda.jit
def gradient_kernel(dy, x, weight, moments, sums, out):
    i = cuda.grid(1)
    images, channels, inner = x.shape
    if i < x.size:
        image, c, r = i // (channels * inner), i // inner % channels, i % inner
        count, invstd = np.float32(images * inner), moments.invstd[c]
        normalised = (widened(x[image, c, r]) - moments.mean[c]) * invstd
        own = widened(dy[image, c, r]) - sums.dbias[c] / count - normalised * sums.dweight[c] / count
        out[image, c, r] = weight[c] * invstd * own


@rung(sums_kernel, gradient_kernel)
def block_per_channel(p):
    """A block finds both sums of its channel; then each thread computes the gradient of one element.

    Leaves: only one block works on a channel, and the GPU has room for many more blocks than there are channels.
    """
    sums_kernel[p.shape.channels, BLOCK, p.stream](p.dy, p.x, p.moments, p.sums)
    by_element(p)


def by_element(p):
    """Launch the kernel that computes the gradient of one element per thread."""
    gradient_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.dy, p.x, p.weight, p.moments, p.sums, p.out)


# ----------------------------------------------------------------------------------------- several blocks for a channel


def partials_of(p, tile):
    """An array for the sums of each part, 2 x channels x parts. A block reads ``tile`` values at once."""
    channels = p.shape.channels
    parts = parts_of(channels, blocks(p.shape.images * p.shape.inner, tile))
    return device.empty((2, channels, parts), np.float32, stream=p.stream)


@cuda.jit
def split_kernel(dy, x, moments, partials):
    images, _, inner = x.shape
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    mean, plain, weighted = moments.mean[channel], f0, f0
    for i in range(part * BLOCK + cuda.threadIdx.x, images * inner, parts * BLOCK):
        given = widened(dy[i // inner, channel, i % inner])
        plain += given
        weighted += given * (widened(x[i // inner, channel, i % inner]) - mean)
    partial = cuda.shared.array((2, 32), np.float32)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        write_sums(partials, channel, part, plain, weighted)


@cuda.jit
def add_kernel(partials, moments, sums):
    channel = cuda.blockIdx.x
    plain, weighted = add_parts(partials, channel)
    if cuda.threadIdx.x == 0:
        sums.dbias[channel], sums.dweight[channel] = plain, weighted * moments.invstd[channel]


@rung(split_kernel, add_kernel, gradient_kernel)
def split(p):
    """Several blocks share a channel and store the sums of their parts. A second kernel adds these, in one order.

    Leaves: a third launch, and two divisions for each element, though all elements of a channel divide the same sums.
    """
    partials = partials_of(p, BLOCK)
    split_kernel[partials.shape[1:], BLOCK, p.stream](p.dy, p.x, p.moments, partials)
    add_kernel[p.shape.channels, 32, p.stream](partials, p.moments, p.sums)
    by_element(p)


# ------------------------------------------------------------------------------ once per channel, not once per element


@cuda.jit(device=True)
def of_sums(plain, weighted, count, weight, invstd):
    """Three numbers of a channel: the gradient is scale * (dy - common - (x - mean) * slope)."""
    return weight * invstd, plain / count, weighted / count * invstd * invstd


@cuda.jit(device=True)
def coefficients(channel, first, count, partials, weight, moments, sums):
    """The mean, and what `of_sums` gives. The thread with ``first`` set stores the gradients of weight and bias."""
    plain, weighted = add_parts(partials, channel)
    mean, invstd = moments.mean[channel], moments.invstd[channel]
    if first:
        sums.dbias[channel], sums.dweight[channel] = plain, weighted * invstd
    scale, common, slope = of_sums(plain, weighted, count, weight[channel], invstd)
    return mean, scale, common, slope


@cuda.jit
def fused_kernel(dy, x, partials, weight, moments, sums, out):
    images, _, inner = x.shape
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    first, count = part == 0 and cuda.threadIdx.x == 0, np.float32(images * inner)
    mean, scale, common, slope = coefficients(channel, first, count, partials, weight, moments, sums)
    for i in range(part * BLOCK + cuda.threadIdx.x, images * inner, parts * BLOCK):
        image, r = i // inner, i % inner
        own = widened(dy[image, channel, r]) - common - (widened(x[image, channel, r]) - mean) * slope
        out[image, channel, r] = scale * own


@rung(split_kernel, fused_kernel)
def fused(p):
    """The kernel that writes the gradient adds the parts first: two launches, and divisions once for each thread.

    Leaves: a load moves 4 bytes, and its thread waits for it before it issues the next.
    """
    partials = partials_of(p, BLOCK)
    grid = partials.shape[1:]
    split_kernel[grid, BLOCK, p.stream](p.dy, p.x, p.moments, partials)
    fused_kernel[grid, BLOCK, p.stream](p.dy, p.x, partials, p.weight, p.moments, p.sums, p.out)


# -------------------------------------------------------------------------------------- 128 bits wide, and many at once

LARGEST = 1024  # threads per block, the most that CUDA allows


@cuda.jit(device=True)
def sums_of_part(dy, x, shape, like, tiles, moments, partials):
    """The block's part of a channel's sums."""
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    given, values = cuda.local.array(HELD, np.float32), cuda.local.array(HELD, np.float32)
    units = cuda.blockDim.x * (HELD // len(like))
    mean, plain, weighted = moments.mean[channel], f0, f0
    for tile in range(part, tiles, parts):
        load_both(dy, x, shape, channel, tile * units + cuda.threadIdx.x, like, HELD, given, values)
        more = held_sums(given, values, mean)
        plain, weighted = plain + more[0], weighted + more[1]
    partial = cuda.shared.array((2, 32), np.float32)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        write_sums(partials, channel, part, plain, weighted)


@cuda.jit(device=True)
def gradient_of_part(dy, x, shape, like, tiles, partials, weight, moments, sums, out):
    """The gradient of the block's part of a channel."""
    # Backwards: what was read last is still in the cache, and is used first.
    channel, part, parts = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.gridDim.y - 1 - cuda.blockIdx.y, cuda.gridDim.y
    given, values = cuda.local.array(HELD, np.float32), cuda.local.array(HELD, np.float32)
    units, count = cuda.blockDim.x * (HELD // len(like)), np.float32(shape.images * shape.inner)
    first = part == 0 and cuda.threadIdx.x == 0
    mean, scale, common, slope = coefficients(channel, first, count, partials, weight, moments, sums)
    tile = part + (tiles - 1 - part) // parts * parts
    while tile >= 0:
        unit = tile * units + cuda.threadIdx.x
        load_both(dy, x, shape, channel, unit, like, HELD, given, values)
        for k in range(HELD):
            values[k] = scale * (given[k] - common - (values[k] - mean) * slope)
        store_held(values, out, shape, channel, unit, like)
        tile -= parts


# The addresses of sixteen narrow loads would push values out of 64 registers. So these loads have kernels of their own,
# without that limit. 1024 threads with 64 registers each fit on a multiprocessor.


@cuda.jit(max_registers=64)
def parts_kernel(dy, x, shape, like, tiles, moments, partials):
    sums_of_part(dy, x, shape, like, tiles, moments, partials)


@cuda.jit
def odd_parts_kernel(dy, x, shape, like, tiles, moments, partials):
    sums_of_part(dy, x, shape, like, tiles, moments, partials)


@cuda.jit(max_registers=64)
def vectorised_kernel(dy, x, shape, like, tiles, partials, weight, moments, sums, out):
    gradient_of_part(dy, x, shape, like, tiles, partials, weight, moments, sums, out)


@cuda.jit
def odd_kernel(dy, x, shape, like, tiles, partials, weight, moments, sums, out):
    gradient_of_part(dy, x, shape, like, tiles, partials, weight, moments, sums, out)


@cuda.jit(max_registers=64)  # 65,536 registers for a block of 1024 threads
def channel_kernel(dy, x, shape, like, depth, weight, moments, sums, out):
    channel, thread = cuda.blockIdx.x, cuda.threadIdx.x
    given, values = cuda.local.array(HELD, np.float32), cuda.local.array(HELD, np.float32)
    partial, count = cuda.shared.array((2, 32), np.float32), np.float32(shape.images * shape.inner)
    mean, invstd = moments.mean[channel], moments.invstd[channel]
    load_both(dy, x, shape, channel, thread, like, depth, given, values)
    plain, weighted = held_sums(given, values, mean)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if thread == 0:
        sums.dbias[channel], sums.dweight[channel] = plain, weighted * invstd
    scale, common, slope = of_sums(plain, weighted, count, weight[channel], invstd)
    for k in range(HELD):
        values[k] = scale * (given[k] - common - (values[k] - mean) * slope)
    store_held(values, out, shape, channel, thread, like)


@cuda.jit
def column_sums_kernel(dy, x, shape, width, tiles, moments, partials):
    """As `columns.column_parts_kernel`: a block takes ``width`` columns, and ``BLOCK // width`` rows at a time."""
    images, channels, inner = shape
    part, parts, thread = cuda.blockIdx.y, cuda.gridDim.y, np.int32(cuda.threadIdx.x)
    (row, lane), rows, columns = divided(thread, width), BLOCK // width, channels * inner
    column = min(cuda.blockIdx.x * width + lane, columns - 1)
    mean, plain, weighted = moments.mean[column // inner], f0, f0
    for tile in range(part, tiles if row < rows else 0, parts):
        first = tile * HELD * rows + row
        at, left = first * columns + column, np.int32(images - first)
        for _ in range(HELD):
            i = at if left > 0 else column
            given, away = widened(dy[i]), widened(x[i]) - mean
            plain += given if left > 0 else f0
            weighted += given * away if left > 0 else f0
            at, left = at + rows * columns, np.int32(left - rows)
    partial = cuda.shared.array((2, BLOCK), np.float32)
    while rows > 1:
        partial[0, thread], partial[1, thread] = plain, weighted
        cuda.syncthreads()
        half = (rows + 1) // 2
        if row + half < rows:
            plain += partial[0, thread + half * width]
            weighted += partial[1, thread + half * width]
        rows = half
        cuda.syncthreads()
    if row == 0 and cuda.blockIdx.x * width + lane < columns:
        write_sums(partials, column // inner, column % inner * parts + part, plain, weighted)


FEW = 8  # values of dy, and as many of x, that a thread has in flight


@cuda.jit
def columns_kernel(dy, x, shape, tiles, weight, moments, sums, out):
    """As `columns.columns_kernel`: a lane for each column, FEW rows at a time."""
    images, channels, inner = shape
    row, lane = divided(cuda.threadIdx.x, 32)
    rows, columns, column = BLOCK // 32, channels * inner, cuda.blockIdx.x * 32 + lane
    if column < columns:
        c, count = column // inner, np.float32(images * inner)
        mean, invstd = moments.mean[c], moments.invstd[c]
        scale, common, slope = weight[c] * invstd, sums.dbias[c] / count, sums.dweight[c] / count * invstd
        given, values = cuda.local.array(FEW, np.float32), cuda.local.array(FEW, np.float32)
        tile = tiles - 1 - cuda.blockIdx.y  # backwards: what was read last is still in the cache
        while tile >= 0:
            first = tile * FEW * rows + row
            at, left = first * columns + column, np.int32(images - first)
            for k in range(FEW):
                i = at + k * rows * columns if left > k * rows else column
                given[k], values[k] = widened(dy[i]), widened(x[i])
            for k in range(FEW):
                if left > k * rows:
                    out[at + k * rows * columns] = scale * (given[k] - common - (values[k] - mean) * slope)
            tile -= cuda.gridDim.y


@rung(
    channel_kernel,
    parts_kernel,
    vectorised_kernel,
    odd_parts_kernel,
    odd_kernel,
    column_sums_kernel,
    add_kernel,
    columns_kernel,
    gradient_kernel,
)
def vectorised(p):
    """A thread has eight loads in flight, of 128 bits if possible, four of dy and four of x.

    The shape decides which kernels run, as in `batchnorm.vectorised`. A channel of up to 16384 values stays in the
    registers of one block, between its sums and its gradient: dy and x are read once. A larger one is read by several
    blocks, and then once more. Planes of fewer than NARROW values are read as the columns of a matrix.
    """
    shape, stream = p.shape, p.stream
    dy, x, out = (array.reshape(p.x.size) for array in (p.dy, p.x, p.out))
    width = width_of(x.dtype)
    wide = shape.inner % width == 0 and not any(device.address(array) % 16 for array in (dy, x, out))
    like = LIKE[width if wide else 1]
    # Vectors or values of a channel, and the most of them that a thread keeps.
    units, most = shape.images * shape.inner // len(like), HELD // len(like)
    little = x.size <= batchnorm.SMALL
    if units <= LARGEST * most and (shape.inner >= batchnorm.NARROW or little):
        # With few channels a thread takes a quarter of the values, as in `batchnorm.vectorised`.
        each = most if shape.channels > 2 * device.limits()["multiprocessors"] else max(1, most // 4)
        threads = min(LARGEST, 32 * blocks(units, 32 * each))
        depth = blocks(units, threads)
        channel_kernel[shape.channels, threads, stream](dy, x, shape, like, depth, p.weight, p.moments, p.sums, out)
        return
    if shape.inner >= batchnorm.NARROW:
        partials, tiles = partials_of(p, BLOCK * HELD), blocks(units, BLOCK * most)
        grid = partials.shape[1:]
        sums_by, gradient_by = (parts_kernel, vectorised_kernel) if wide else (odd_parts_kernel, odd_kernel)
        sums_by[grid, BLOCK, stream](dy, x, shape, like, tiles, p.moments, partials)
        gradient_by[grid, BLOCK, stream](dy, x, shape, like, tiles, partials, p.weight, p.moments, p.sums, out)
        return
    by_columns(p, dy, x, out)


def by_columns(p, dy, x, out):
    """Launch the kernels for planes of few values. The last has a lane for each of 32 columns or more."""
    shape, stream = p.shape, p.stream
    count = shape.channels * shape.inner
    width = min(32, count)
    across, tiles = blocks(count, width), blocks(shape.images, HELD * (BLOCK // width))
    grid = across, parts_of(across, tiles)
    partials = device.empty((2, shape.channels, shape.inner * grid[1]), np.float32, stream=stream)
    column_sums_kernel[grid, BLOCK, stream](dy, x, shape, width, tiles, p.moments, partials)
    add_kernel[shape.channels, threads_for(partials.shape[2]), stream](partials, p.moments, p.sums)
    if count < 32:
        by_element(p)
        return
    tiles = blocks(shape.images, FEW * (BLOCK // 32))
    grid = across, parts_of(across, tiles)
    columns_kernel[grid, BLOCK, stream](dy, x, shape, tiles, p.weight, p.moments, p.sums, out)


LADDER = (block_per_channel, split, fused, vectorised)
