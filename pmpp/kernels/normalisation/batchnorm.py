"""Batch normalisation: every channel of a batch is shifted to mean 0 and scaled to variance 1.

Chapter: notebooks/54_normalisation.ipynb.  PMPP 4e ch. 10.

A handful of operations for each element, so what counts is how often the batch is read: no element can be normalised
before all of its channel have been seen. In training that is two reads and a write, in inference a read and a write.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.normalisation import moments
from pmpp.kernels.normalisation.columns import column_parts, normalise_columns
from pmpp.kernels.normalisation.moments import (
    CHUNK,
    block_merge,
    block_sum,
    centre_and_scale,
    chunk_moments,
    divided,
    f0,
    keep,
    load_chunk,
    merge,
    merge_parts,
    of_channel,
    parts_of,
    rectified,
    store_chunk,
    welford_step,
    write_part,
)
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, rung
from pmpp.runtime.vector import load128, store128

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
    with np.errstate(invalid="ignore"):  # of an infinity less itself
        for c in range(x.shape[1]):
            values = x[:, c].astype(np.float64)
            mean, var = (values.mean(), values.var()) if training else (float(running_mean[c]), float(running_var[c]))
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
    shapes |= {"very many rows": (33_000, 2), "large N x C": (1_800, 37), "small planes": (33, 6, 3, 3)}
    shapes |= {"a sequence": (2, 3, 301), "a volume": (2, 2, 3, 4, 5), "very many odd rows": (13_200, 5)}
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


def tolerance(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    """The largest error allowed for each element in training; see `pmpp.kernels.normalisation.moments.tolerance`."""
    channels = np.moveaxis(x, 1, 0)
    rows = channels.reshape(len(channels), x.size // max(1, len(channels)))
    allowed = moments.tolerance(rows, weight[:, None], bias[:, None], eps)
    return np.moveaxis(allowed.reshape(channels.shape), 0, 1)


def cost(n: int, c: int = 64, inner: int = 1, training: bool = True) -> Cost:
    """For a batch of ``n`` x ``c`` x ``inner``: each element read once and written once.

    In training a batch that no cache holds must be read twice, half as much again: there this bound is out of reach.
    Operations an element: 4 to normalise (subtract, multiply, add, compare), 5 more for its moments.
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
    if running_mean is not None and training:  # they are updated, so they must be on the device
        running_mean = device.as_output("running_mean", running_mean, dtype=np.float32, **per_channel)
        running_var = device.as_output("running_var", running_var, dtype=np.float32, **per_channel)
    elif running_mean is not None:
        running_mean = device.as_input("running_mean", running_mean, dtypes="float32", **per_channel)
        running_var = device.as_input("running_var", running_var, dtypes="float32", **per_channel)
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


def _partials(call: _Call, tile: int) -> typing.Any:
    """Room for 3 x channels x parts: moments of each part. A tile is what a block reads at once."""
    n, c, inner = call.x.shape
    return device.empty((3, c, parts_of(c, _ceil(n * inner, tile))), np.float32, stream=call.stream)


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

NARROW = 8  # planes of fewer values than this are read column by column
SMALL = 2**16  # values in a batch, up to which one simple launch is best
LARGEST = 1024  # threads a block
FLAT = 16  # values a thread normalises where they lie


@cuda.jit(max_registers=64)  # for more warps at once
def parts_kernel(x, shape, wide, tiles, partials):
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * (CHUNK // 4 if wide else CHUNK)
    count, mean, m2 = f0, f0, f0
    for tile in range(part, tiles, parts):
        filled = load_chunk(x, shape, channel, tile * units + cuda.threadIdx.x, wide, CHUNK, values)
        more = chunk_moments(values, filled)
        count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if cuda.threadIdx.x == 0:
        write_part(partials, channel, part, count, mean, m2)


@cuda.jit(max_registers=64)
def vectorised_kernel(x, shape, tiles, partials, affine, moments, running, finish, out):
    # Backwards: what was read last is in the cache still, and is used first.
    channel, part, parts = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.gridDim.y - 1 - cuda.blockIdx.y, cuda.gridDim.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * CHUNK // 4
    first = part == 0 and cuda.threadIdx.x == 0
    mean, scale = centre_and_scale(channel, first, True, partials, affine, moments, running, finish[0])
    tile = part + (tiles - 1 - part) // parts * parts
    while tile >= 0:
        unit = tile * units + cuda.threadIdx.x
        load_chunk(x, shape, channel, unit, True, CHUNK, values)
        for k in range(CHUNK):
            values[k] = rectified((values[k] - mean) * scale + affine[1][channel], finish[1])
        store_chunk(values, out, shape, channel, unit, True)
        tile -= parts


@cuda.jit(max_registers=64)  # 1024 threads have no more
def channel_kernel(x, shape, wide, depth, affine, running, finish, out):
    channel, thread = cuda.blockIdx.x, cuda.threadIdx.x
    values = cuda.local.array(CHUNK, np.float32)
    filled = load_chunk(x, shape, channel, thread, wide, depth, values)
    count, mean, m2 = chunk_moments(values, filled)
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if thread == 0:
        keep(running, channel, mean, m2, count)
    scale, bias = affine[0][channel] / math.sqrt(m2 / count + finish[0]), affine[1][channel]
    for k in range(CHUNK):
        values[k] = rectified((values[k] - mean) * scale + bias, finish[1])
    store_chunk(values, out, shape, channel, thread, wide)


@cuda.jit
def flat_kernel(x, shape, head, tail, affine, moments, finish, out):
    """All elements as they lie: [head:tail] are whole vectors. With few values a plane they are of several channels."""
    _, channels, inner = shape
    thread, begin = np.int32(cuda.threadIdx.x), head + cuda.blockIdx.x * np.int64(FLAT * BLOCK)
    values = cuda.local.array(FLAT, np.float32)
    if head < tail:
        for k in range(FLAT // 4):
            quad = load128(x, min(begin + 4 * (thread + k * BLOCK), tail - 4))
            values[4 * k], values[4 * k + 1], values[4 * k + 2], values[4 * k + 3] = quad
        plane = begin // inner
        first_c, first_r = plane % channels, begin - plane * inner  # of the block: 64 bits wide, and once
        for k in range(FLAT // 4):
            i = 4 * (thread + k * BLOCK)
            planes, r = divided(first_r + i, inner)
            c = divided(first_c + planes, channels)[1]
            mean, scale, bias = of_channel(c, affine, moments, finish[0])
            for j in range(4):
                if r == inner:  # here begins the next plane
                    r, c = np.int32(0), np.int32(c + 1 if c + 1 < channels else 0)
                    mean, scale, bias = of_channel(c, affine, moments, finish[0])
                values[4 * k + j] = rectified((values[4 * k + j] - mean) * scale + bias, finish[1])
                r = np.int32(r + 1)
            if begin + i < tail:
                store128(out, begin + i, (values[4 * k], values[4 * k + 1], values[4 * k + 2], values[4 * k + 3]))
    for outside in range(cuda.grid(1), head + x.size - tail, cuda.gridsize(1)):
        i = outside if outside < head else outside - head + tail
        mean, scale, bias = of_channel(i // inner % channels, affine, moments, finish[0])
        out[i] = rectified((x[i] - mean) * scale + bias, finish[1])


@rung(channel_kernel, parts_kernel, vectorised_kernel, merge_kernel, normalise_kernel, flat_kernel)
def vectorised(x, weight, bias, running_mean=None, running_var=None, *, out=None, stream=0, **options):
    """A thread asks for many values at once, 128 bits at a time, and finds their moments in registers.

    Arguments, result and errors as in `two_pass`. How, depends on the shape. A channel of up to 32768 values fits into
    the registers of one block, and is read once. A larger one is read by several blocks, and then once more, backwards,
    for what is still in the cache. Planes of fewer than NARROW values are read by `pmpp.kernels.normalisation.columns`.
    """
    call = _arguments(x, weight, bias, running_mean, running_var, out, stream, **options)
    if not call.x.size:
        return call.out
    n, c, inner = shape = call.x.shape
    x, target, stream = call.x.reshape(n * c * inner), call.target.reshape(n * c * inner), call.stream
    wide = inner % 4 == 0 and device.address(x) % 16 == device.address(target) % 16 == 0
    units, most = n * inner // (4 if wide else 1), CHUNK // (4 if wide else 1)  # in a channel, and in a thread
    if call.training and units <= LARGEST * most and (inner >= NARROW or x.size <= SMALL):
        each = most if c > 2 * device.limits()["multiprocessors"] else max(1, most // 4)  # few channels: more threads
        threads = min(LARGEST, 32 * _ceil(units, 32 * each))
        depth = _ceil(units, threads)
        channel_kernel[c, threads, stream](x, shape, wide, depth, call.affine, call.running, call.finish, target)
        return call.out
    if call.training and inner < NARROW:
        partials = column_parts(x, shape, stream)
    elif call.training:
        partials, tiles = _partials(call, BLOCK * CHUNK), _ceil(units, BLOCK * most)
        parts_kernel[partials.shape[1:], BLOCK, stream](x, shape, wide, tiles, partials)
        if wide:
            vectorised_kernel[partials.shape[1:], BLOCK, stream](x, shape, tiles, partials, *call[1:5], target)
            return call.out
    if call.training:
        merge_kernel[c, 32, stream](partials, call.moments, call.running)
    if x.size <= SMALL:
        _normalise(call)
    elif inner < NARROW and c * inner >= 32:
        normalise_columns(x, shape, *call[1:3], call.finish, target, stream)
    else:
        head, tail, _ = vector_span(x, target)
        blocks = max(1, _ceil(tail - head, FLAT * BLOCK))
        flat_kernel[blocks, BLOCK, stream](x, shape, head, tail, *call[1:3], call.finish, target)
    return call.out


LADDER = (two_pass, welford, split, fused, vectorised)
