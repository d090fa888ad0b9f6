"""Batch normalisation: every channel of a batch is shifted to mean 0 and scaled to variance 1.

Chapter: notebooks/16_normalisation.ipynb.  PMPP 4e ch. 10.

A handful of operations for each element, so what counts is how often the batch is read: no element can be normalised
before all of its channel have been seen. In training that is two reads and a write, in inference a read and a write.
The mean and the variance are a reduction, and one that float32 can get badly wrong: see `welford_step` and `merge`.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.lab import device
from pmpp.lab.room import Cost, rung
from pmpp.moments import (
    CHUNK,
    block_merge,
    block_sum,
    chunk_moments,
    f0,
    f1,
    load_chunk,
    merge,
    merge_parts,
    store_chunk,
    welford_step,
)

BLOCK = 256  # threads a block


def reference(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    running_mean: np.ndarray | None = None,
    running_var: np.ndarray | None = None,
    *,
    training: bool = True,
    eps: float = 1e-5,
    relu: bool = False,
) -> np.ndarray:
    """What `two_pass` returns, a channel at a time and in float64."""
    out = np.empty(x.shape, np.float64)
    for c in range(x.shape[1]):
        values = x[:, c].astype(np.float64)
        mean, var = (values.mean(), values.var()) if training else (running_mean[c], running_var[c])
        out[:, c] = (values - mean) / math.sqrt(var + eps) * weight[c] + bias[c]
    return np.where(out < 0, 0, out) if relu else out


def reference_running(
    x: np.ndarray, running_mean: np.ndarray, running_var: np.ndarray, momentum: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """The running mean and variance after training on ``x``, in float64. The variance is the unbiased one."""
    values = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float64)
    batch = values.mean(axis=1), values.var(axis=1, ddof=1)
    before = running_mean.astype(np.float64), running_var.astype(np.float64)
    mean, var = ((1 - momentum) * old + momentum * new for old, new in zip(before, batch, strict=True))
    return mean, var


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward batches: a name, and ``(x, weight, bias)``."""
    rng = np.random.default_rng(16) if rng is None else rng
    shapes = {"two values a channel": (2, 1), "no channels": (4, 0), "N x C": (70, 37), "many rows": (600, 5)}
    shapes |= {"one image": (1, 3, 5, 7), "odd plane": (3, 5, 7, 7), "plane of whole vectors": (3, 5, 8, 6)}
    shapes |= {f"a block {d:+}": (BLOCK + d, 2, 1) for d in (-1, 0, 1)}
    shapes |= {
        "very many rows": (33_000, 2),
        "small planes": (33, 6, 3, 3),
        "a sequence": (2, 3, 301),
        "a volume": (2, 2, 3, 4, 5),
    }
    shapes |= {"long channels": (2, 2, 16400), "long odd channels": (3, 1, 11001), "many channels": (3, 300, 4, 4)}
    made = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    made["large mean"] = 1000 + made["odd plane"]
    made["outliers"] = np.where(rng.random((20, 3, 40)) < 0.01, 1e6, rng.random((20, 3, 40))).astype(np.float32)
    made["constant"] = np.full((5, 3, 11), 0.1, np.float32)
    made["tiny"] = 1e-20 * made["odd plane"]
    made["non-finite"] = made["odd plane"].copy()
    made["non-finite"][1, 1, 2, 3], made["non-finite"][2, 3, 0, 0] = np.nan, np.inf
    return {
        name: (x, rng.uniform(0.5, 2, x.shape[1]).astype(np.float32), rng.standard_normal(x.shape[1], dtype=np.float32))
        for name, x in made.items()
    }


def cost(n: int, c: int = 64, inner: int = 1, training: bool = True) -> Cost:
    """For a batch of ``n`` x ``c`` x ``inner``: each element read once and written once.

    In training that bound is out of reach for a batch that no cache holds: it has to be read twice, which is half as
    much again. Operations an element: 4 to normalise (subtract, multiply, add, compare), 5 more for its moments.
    """
    return Cost(flops=(9 if training else 4) * n * c * inner, bytes=8 * n * c * inner + 8 * c)


class _Call(typing.NamedTuple):
    """A rung's arguments, checked, as its kernels take them; ``x`` and ``target`` as images x channels x inner."""

    x: typing.Any
    affine: tuple  # weight, bias
    moments: tuple  # mean and variance to normalise by; in training they are still to be found
    running: tuple  # running mean, running variance, momentum; momentum 0: nothing is to be kept
    finish: tuple  # eps, relu
    target: typing.Any
    out: typing.Any
    training: bool
    stream: typing.Any


def _arguments(
    x, weight, bias, running_mean, running_var, out, stream, *, training=True, momentum=0.1, eps=1e-5, relu=False
) -> _Call:
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", ndim=(2, 3, 4, 5), stream=stream)
    n, c = x.shape[:2]
    inner = math.prod(x.shape[2:])
    per_channel = {"shape": (c,), "stream": stream}
    weight = device.as_input("weight", weight, dtypes="float32", **per_channel)
    bias = device.as_input("bias", bias, dtypes="float32", **per_channel)
    if (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must be given together, one of them was None")
    if not training and running_mean is None:
        raise ValueError("running_mean and running_var must be given for training=False, were None")
    if running_mean is not None:
        check = {"dtype": np.float32} | per_channel if training else {"dtypes": "float32"} | per_channel
        running_mean, running_var = (
            device.as_output(name, array, **check) if training else device.as_input(name, array, **check)
            for name, array in (("running_mean", running_mean), ("running_var", running_var))
        )
    if training and c and n * inner < 2:
        raise ValueError(f"x must have two values a channel or more to train on, had shape {x.shape}")
    if n * inner >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 values a channel, had {n * inner}")
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum must be from 0 to 1, was {momentum}")
    if not eps >= 0:
        raise ValueError(f"eps must not be negative, was {eps}")
    out = device.as_output("out", out, shape=x.shape, dtype=np.float32, stream=stream)
    target = out
    if x.ndim != 3 and x.size:
        x, target = x.reshape(n, c, inner), out.reshape(n, c, inner)
    if training:
        moments = tuple(device.empty(c, np.float32, stream=stream) for _ in range(2))
    else:
        moments = running_mean, running_var
    keeps = training and running_mean is not None
    running = (running_mean, running_var, np.float32(momentum)) if keeps else (*moments, f0)
    finish = np.float32(eps), bool(relu)
    return _Call(x, (weight, bias), moments, running, finish, target, out, bool(training), stream)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


# ----------------------------------------------------------------------------------- a block a channel, an element each


@cuda.jit(device=True)
def keep(running, channel, mean, m2, count):
    """Running moments as PyTorch defines them: this batch enters with weight momentum, its variance unbiased."""
    running_mean, running_var, momentum = running
    if momentum > f0:
        running_mean[channel] = (f1 - momentum) * running_mean[channel] + momentum * mean
        running_var[channel] = (f1 - momentum) * running_var[channel] + momentum * (m2 / (count - f1))


@cuda.jit
def two_pass_kernel(x, moments, running):
    images, _, inner = x.shape
    channel, values = cuda.blockIdx.x, images * inner
    partial, count = cuda.shared.array((2, 32), np.float32), np.float32(values)
    total = f0
    for i in range(cuda.threadIdx.x, values, BLOCK):
        total += x[i // inner, channel, i % inner]
    mean = block_sum(total, partial[0]) / count

    m2 = f0
    for i in range(cuda.threadIdx.x, values, BLOCK):
        deviation = x[i // inner, channel, i % inner] - mean
        m2 += deviation * deviation
    m2 = block_sum(m2, partial[1])

    if cuda.threadIdx.x == 0:
        moments[0][channel], moments[1][channel] = mean, m2 / count
        keep(running, channel, mean, m2, count)


@cuda.jit(device=True)
def rectified(value, relu):
    return f0 if relu and value < f0 else value  # a NaN is not below 0, and stays


@cuda.jit
def normalise_kernel(x, affine, moments, finish, out):
    i = cuda.grid(1)
    _, channels, inner = x.shape
    if i < x.size:
        image, c, r = i // (channels * inner), i // inner % channels, i % inner
        value = (x[image, c, r] - moments[0][c]) / math.sqrt(moments[1][c] + finish[0])
        out[image, c, r] = rectified(value * affine[0][c] + affine[1][c], finish[1])


@rung(two_pass_kernel, normalise_kernel)
def two_pass(
    x: typing.Any,
    weight: typing.Any,
    bias: typing.Any,
    running_mean: typing.Any = None,
    running_var: typing.Any = None,
    *,
    out: typing.Any = None,
    stream: typing.Any = 0,
    **options: typing.Any,
) -> typing.Any:
    """A block finds the mean of its channel, then in a second pass the variance around it; then all is normalised.

    Args:
        x: float32 of shape (N, C) or (N, C, ...) with one to three further dimensions, contiguous. Fewer than 2^31
            values a channel; to train on, at least 2.
        weight, bias: float32 of shape (C,).
        running_mean, running_var: float32 of shape (C,), both or neither. In training device arrays, which are updated:
            (1 - momentum) of the old and momentum of the batch's mean and unbiased variance. In inference they are used
            instead of the batch's, and needed.
        out: a device array like ``x`` in C order, or None to allocate one; apart from ``x`` in memory.
        stream: the stream to work on.
        options: ``training`` (True); ``momentum`` (0.1), from 0 to 1: for PyTorch's momentum=None give 1 / k in the
            k-th batch; ``eps`` (1e-5), added to the variance; ``relu`` (False): negative results become 0.

    Returns ``out``, ``(x - mean) / sqrt(var + eps) * weight + bias``, without waiting for the work to be done. The
    variance there is the biased one. A NaN or an infinity makes all of its channel NaN.
    Raises TypeError or ValueError that names the argument at fault.
    Source: S. Ioffe and C. Szegedy, Batch Normalization (2015), algorithm 1; PyTorch's torch.nn.functional.batch_norm.

    Leaves: the batch is read twice before a third read normalises it.
    """
    call = _arguments(x, weight, bias, running_mean, running_var, out, stream, **options)
    if call.x.size:
        if call.training:
            two_pass_kernel[call.x.shape[1], BLOCK, call.stream](call.x, call.moments, call.running)
        _normalise(call)
    return call.out


def _normalise(call: _Call) -> None:
    blocks = _ceil(call.x.size, BLOCK)
    normalise_kernel[blocks, BLOCK, call.stream](call.x, call.affine, call.moments, call.finish, call.target)


# --------------------------------------------------------------------------------------------- both moments in one pass
@cuda.jit
def welford_kernel(x, moments, running):
    images, _, inner = x.shape
    channel, partial = cuda.blockIdx.x, cuda.shared.array((3, 32), np.float32)
    count, mean, m2 = f0, f0, f0
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        count, mean, m2 = welford_step(count, mean, m2, x[i // inner, channel, i % inner])
    count, mean, m2 = block_merge(count, mean, m2, partial)

    if cuda.threadIdx.x == 0:
        moments[0][channel], moments[1][channel] = mean, m2 / count
        keep(running, channel, mean, m2, count)


@rung(welford_kernel, normalise_kernel)
def welford(x, weight, bias, running_mean=None, running_var=None, *, out=None, stream=0, **options):
    """Mean and variance in one pass: each thread corrects both with every value, and threads merge what they have.

    Arguments, result and errors as in `two_pass`. Source: B. P. Welford (1962); T. Chan, G. Golub, R. LeVeque (1983).

    Leaves: as many blocks as channels, and a GPU has room for many more.
    """
    call = _arguments(x, weight, bias, running_mean, running_var, out, stream, **options)
    if call.x.size:
        if call.training:
            welford_kernel[call.x.shape[1], BLOCK, call.stream](call.x, call.moments, call.running)
        _normalise(call)
    return call.out


# ----------------------------------------------------------------------------------------- several blocks for a channel


def _parts(channels: int, tiles: int, blocks_per_sm: int = 16) -> int:
    """Blocks for each channel: as many as fill the GPU, and no more than there are tiles."""
    return max(1, min(_ceil(device.limits()["multiprocessors"] * blocks_per_sm, channels), tiles, 1024))


def _partials(call: _Call, tile: int) -> typing.Any:
    """Room for the moments of each part of each channel: 3 x channels x parts. A tile is what a block reads at once."""
    n, c, inner = call.x.shape
    return device.empty((3, c, _parts(c, _ceil(n * inner, tile))), np.float32, stream=call.stream)


@cuda.jit(device=True)
def write_part(partials, channel, part, count, mean, m2):
    partials[0, channel, part], partials[1, channel, part], partials[2, channel, part] = count, mean, m2


@cuda.jit
def split_kernel(x, partials):
    images, _, inner = x.shape
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    count, mean, m2 = f0, f0, f0
    for i in range(part * BLOCK + cuda.threadIdx.x, images * inner, parts * BLOCK):
        count, mean, m2 = welford_step(count, mean, m2, x[i // inner, channel, i % inner])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if cuda.threadIdx.x == 0:
        write_part(partials, channel, part, count, mean, m2)


@cuda.jit
def merge_kernel(partials, moments, running):
    channel = cuda.blockIdx.x
    count, mean, m2 = merge_parts(partials, channel)
    if cuda.threadIdx.x == 0:
        moments[0][channel], moments[1][channel] = mean, m2 / count
        keep(running, channel, mean, m2, count)


@rung(split_kernel, merge_kernel, normalise_kernel)
def split(x, weight, bias, running_mean=None, running_var=None, *, out=None, stream=0, **options):
    """Several blocks share a channel, write down the moments of their parts, and a second kernel merges these.

    Arguments, result and errors as in `two_pass`.

    Leaves: a third launch, and to normalise an element three divisions and a root, all the same for a whole channel.
    """
    call = _arguments(x, weight, bias, running_mean, running_var, out, stream, **options)
    if call.x.size:
        if call.training:
            partials = _partials(call, BLOCK)
            split_kernel[partials.shape[1:], BLOCK, call.stream](call.x, partials)
            merge_kernel[call.x.shape[1], 32, call.stream](partials, call.moments, call.running)
        _normalise(call)
    return call.out


# ---------------------------------------------------------------------------------- once a channel, not once an element


@cuda.jit(device=True)
def centre_and_scale(channel, first, training, partials, affine, moments, running, eps):
    """What a channel is shifted and multiplied by. In training its ``first`` thread keeps the moments."""
    if training:
        count, mean, m2 = merge_parts(partials, channel)
        if first:
            keep(running, channel, mean, m2, count)
        return mean, affine[0][channel] / math.sqrt(m2 / count + eps)
    return moments[0][channel], affine[0][channel] / math.sqrt(moments[1][channel] + eps)


@cuda.jit
def fused_kernel(x, training, partials, affine, moments, running, finish, out):
    images, _, inner = x.shape
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    first = part == 0 and cuda.threadIdx.x == 0
    mean, scale = centre_and_scale(channel, first, training, partials, affine, moments, running, finish[0])
    bias = affine[1][channel]
    for i in range(part * BLOCK + cuda.threadIdx.x, images * inner, parts * BLOCK):
        image, r = i // inner, i % inner
        out[image, channel, r] = rectified((x[image, channel, r] - mean) * scale + bias, finish[1])


@rung(split_kernel, fused_kernel)
def fused(x, weight, bias, running_mean=None, running_var=None, *, out=None, stream=0, **options):
    """The kernel that normalises merges the parts itself: two launches, and one root and one division a thread.

    Arguments, result and errors as in `two_pass`.

    Leaves: a load moves 4 bytes, and its thread waits for it before it asks for the next.
    """
    call = _arguments(x, weight, bias, running_mean, running_var, out, stream, **options)
    if call.x.size:
        partials = _partials(call, BLOCK)
        grid = partials.shape[1:]
        if call.training:
            split_kernel[grid, BLOCK, call.stream](call.x, partials)
        fused_kernel[grid, BLOCK, call.stream](call.x, call.training, partials, *call[1:5], call.target)
    return call.out


# -------------------------------------------------------------------------------------- 128 bits wide, and many at once

ROWS = 8  # a block that goes down columns is 32 x ROWS threads
NARROW = 16  # planes of fewer values than this are read column by column
SMALL = 2**18  # values in a batch for which one launch is best, whatever it reads
LARGEST = 1024  # threads a block


@cuda.jit
def parts_kernel(x, wide, tiles, partials):
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * (CHUNK // 4 if wide else CHUNK)
    count, mean, m2 = f0, f0, f0
    for tile in range(part, tiles, parts):
        filled = load_chunk(x, channel, tile * units + cuda.threadIdx.x, wide, values)
        more = chunk_moments(values, filled)
        count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if cuda.threadIdx.x == 0:
        write_part(partials, channel, part, count, mean, m2)


@cuda.jit
def vectorised_kernel(x, wide, tiles, training, partials, affine, moments, running, finish, out):
    # Backwards: what was read last is in the cache still, and is used first.
    channel, part = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.gridDim.y - 1 - cuda.blockIdx.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * (CHUNK // 4 if wide else CHUNK)
    first = part == 0 and cuda.threadIdx.x == 0
    mean, scale = centre_and_scale(channel, first, training, partials, affine, moments, running, finish[0])
    bias, parts = affine[1][channel], cuda.gridDim.y
    tile = part + (tiles - 1 - part) // parts * parts
    while tile >= 0:
        unit = tile * units + cuda.threadIdx.x
        load_chunk(x, channel, unit, wide, values)
        for k in range(CHUNK):
            values[k] = rectified((values[k] - mean) * scale + bias, finish[1])
        store_chunk(values, out, channel, unit, wide)
        tile -= parts


@cuda.jit(max_registers=64)  # 1024 threads have no more
def channel_kernel(x, wide, affine, running, finish, out):
    channel, thread = cuda.blockIdx.x, cuda.threadIdx.x
    values = cuda.local.array(CHUNK, np.float32)
    filled = load_chunk(x, channel, thread, wide, values)
    count, mean, m2 = chunk_moments(values, filled)
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if thread == 0:
        keep(running, channel, mean, m2, count)
    scale, bias = affine[0][channel] / math.sqrt(m2 / count + finish[0]), affine[1][channel]
    for k in range(CHUNK):
        values[k] = rectified((values[k] - mean) * scale + bias, finish[1])
    store_chunk(values, out, channel, thread, wide)


@cuda.jit
def column_parts_kernel(x, tiles, partials):
    images, channels, inner = x.shape
    lane, row, part, parts = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.y, cuda.gridDim.y
    column = cuda.blockIdx.x * 32 + lane
    channel, r = min(column // inner, channels - 1), column % inner
    values = cuda.local.array(CHUNK, np.float32)
    count, mean, m2 = f0, f0, f0
    for tile in range(part, tiles, parts):
        image, filled = tile * CHUNK * ROWS + row, 0
        for k in range(CHUNK):
            values[k] = x[min(image, images - 1), channel, r]
            filled += 1 if image < images else 0
            image += ROWS
        more = chunk_moments(values, filled)
        count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
    partial = cuda.shared.array((3, ROWS, 32), np.float32)
    partial[0, row, lane], partial[1, row, lane], partial[2, row, lane] = count, mean, m2
    cuda.syncthreads()
    if row == 0 and column < channels * inner:
        for other in range(1, ROWS):
            more = partial[0, other, lane], partial[1, other, lane], partial[2, other, lane]
            count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
        write_part(partials, channel, r * parts + part, count, mean, m2)


@cuda.jit
def columns_kernel(x, tiles, affine, moments, finish, out):
    images, channels, inner = x.shape
    column = cuda.blockIdx.x * 32 + cuda.threadIdx.x
    channel, r = min(column // inner, channels - 1), column % inner
    mean, scale = moments[0][channel], affine[0][channel] / math.sqrt(moments[1][channel] + finish[0])
    values = cuda.local.array(CHUNK, np.float32)
    tile = tiles - 1 - cuda.blockIdx.y
    while tile >= 0 and column < channels * inner:
        first = tile * CHUNK * ROWS + cuda.threadIdx.y
        for k in range(CHUNK):
            values[k] = x[min(first + k * ROWS, images - 1), channel, r]
        for k in range(CHUNK):
            value = rectified((values[k] - mean) * scale + affine[1][channel], finish[1])
            if first + k * ROWS < images:
                out[first + k * ROWS, channel, r] = value
        tile -= cuda.gridDim.y


@rung(parts_kernel, vectorised_kernel, channel_kernel, column_parts_kernel, merge_kernel, columns_kernel)
def vectorised(x, weight, bias, running_mean=None, running_var=None, *, out=None, stream=0, **options):
    """A thread asks for 32 values at once, by eight 128-bit loads, and finds their moments in registers.

    Arguments, result and errors as in `two_pass`. Three ways, by shape. A channel of up to 32768 values fits into the
    registers of one block, which reads it once. Longer ones are read twice, the second time backwards, for what is
    still in the cache. Planes of fewer than NARROW values are read down the columns of images x (channels x inner). The
    loads are 128 bits wide if planes are whole vectors and lie on 16-byte boundaries, else 32 at a time of 4 bytes.
    """
    call = _arguments(x, weight, bias, running_mean, running_var, out, stream, **options)
    x, stream = call.x, call.stream
    if not x.size:
        return call.out
    n, c, inner = x.shape
    wide = inner % 4 == 0 and device.address(x) % 16 == device.address(call.target) % 16 == 0
    units, most = n * inner // (4 if wide else 1), CHUNK // (4 if wide else 1)  # in a channel, and in a thread
    if inner < NARROW and (x.size > SMALL or not call.training or units > LARGEST * most):
        _down_columns(call)
    elif call.training and units <= LARGEST * most:
        # With few channels, more threads: they wait for fewer loads each.
        each = most if c > 2 * device.limits()["multiprocessors"] else max(1, most // 4)
        threads = min(LARGEST, 32 * _ceil(units, 32 * each))
        channel_kernel[c, threads, stream](x, wide, call.affine, call.running, call.finish, call.target)
    else:
        partials, tiles = _partials(call, BLOCK * CHUNK), _ceil(units, BLOCK * most)
        grid = partials.shape[1:]
        if call.training:
            parts_kernel[grid, BLOCK, stream](x, wide, tiles, partials)
        vectorised_kernel[grid, BLOCK, stream](x, wide, tiles, call.training, partials, *call[1:5], call.target)
    return call.out


def _down_columns(call: _Call) -> None:
    n, c, inner = call.x.shape
    blocks, tiles = _ceil(c * inner, 32), _ceil(n, CHUNK * ROWS)
    grid = blocks, _parts(blocks, tiles)
    if call.training:
        partials = device.empty((3, c, inner * grid[1]), np.float32, stream=call.stream)
        column_parts_kernel[grid, (32, ROWS), call.stream](call.x, tiles, partials)
        merge_kernel[c, 32, call.stream](partials, call.moments, call.running)
    columns_kernel[grid, (32, ROWS), call.stream](call.x, tiles, call.affine, call.moments, call.finish, call.target)


LADDER = (two_pass, welford, split, fused, vectorised)
