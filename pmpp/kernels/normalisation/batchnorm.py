"""Batch normalisation: every channel of a batch is shifted to mean 0 and scaled to variance 1.

Chapter: notebooks/54_normalisation.ipynb.  PMPP 4e ch. 10.

An element takes few operations, so what counts is how often the batch is read. In training no element can be normalised
before its whole channel has been read: a large batch takes two reads and a write. Inference takes a read and a write.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks
from pmpp.kernels.normalisation import columns, moments, ragged
from pmpp.kernels.normalisation.moments import (
    CHUNK,
    DTYPES,
    LIKE,
    Affine,
    Epilogue,
    Moments,
    Running,
    Shape,
    block_merge,
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
    store_vector,
    threads_for,
    welford_step,
    write_part,
)
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_number
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, widened, width_of

BLOCK = 256  # threads per block


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
    """The normalised batch in float64, computed one channel at a time. Arguments as in `arguments`."""
    out = np.empty(x.shape, np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf
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
    for dtype in known(DTYPES[1:]):
        names = ("N x C", "odd plane", "plane of whole vectors", "small planes", "long channels", "non-finite")
        made |= {f"{dtype}, {name}": made[name].astype(dtype) for name in names}
        made[f"{dtype}, far from 0"] = (50 + made["plane of whole vectors"]).astype(dtype)
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


def cost(n: int, c: int = 64, inner: int = 1, training: bool = True, itemsize: int = 4) -> Cost:
    """For a batch of ``n`` x ``c`` x ``inner``: each element read once and written once.

    In training a batch that is too large for the caches must be read twice, so it moves 1.5 times as many bytes.
    Operations per element: 4 to normalise (subtract, multiply, add, compare), 5 more for its moments.
    """
    return Cost(flops=(9 if training else 4) * n * c * inner, bytes=2 * itemsize * n * c * inner + 8 * c)


def arguments(
    x,
    weight,
    bias,
    running_mean=None,
    running_var=None,
    *,
    training=True,
    momentum=0.1,
    eps=1e-5,
    relu=False,
    return_moments=False,
    out=None,
    stream=0,
) -> Problem:
    """Normalise every channel of a batch: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Args:
        x: float32, float16 or bfloat16 of shape (N, C) or (N, C, ...) with one to three further dimensions, contiguous.
            Fewer than 2^31 values per channel; to train on, at least 2. Whatever its dtype, all is computed in float32,
            and the result is rounded once.
        weight, bias: float32 of shape (C,).
        running_mean, running_var: float32 of shape (C,), both or neither. In training they must be device arrays, apart
            from all others in memory, and are updated in place to (1 - momentum) * old + momentum * batch, where the
            batch's variance is the unbiased one. In inference they are required, and are used instead of the batch's
            moments.
        training: True to normalise by the moments of the batch, False by the running ones.
        momentum: from 0 to 1. To do what PyTorch's momentum=None does, pass 1 / k for batch k = 1, 2, ...
        eps: what is added to the variance, 0 or more.
        relu: True to set negative results to 0.
        return_moments: True to return (out, mean, invstd) in training: also the mean of each channel and
            1 / sqrt(var + eps), device arrays of float32 and shape (C,). `batch_norm_backward` takes them.
        out: a device array of the shape and dtype of ``x``, in C order, apart from the others in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, or (out, mean, invstd), without waiting for the work to be done. The variance is the biased one. In
    training a NaN or an infinity makes all of its channel NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: S. Ioffe and C. Szegedy, Batch Normalization (2015), algorithm 1; PyTorch's torch.nn.functional.batch_norm.

    >>> from pmpp.kernels.normalisation import batchnorm
    >>> batchnorm.vectorised(np.float32([[1], [3]]), np.float32([1]), np.float32([0]), eps=0).copy_to_host()
    array([[-1.],
           [ 1.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=(2, 3, 4, 5), stream=stream)
    shape = Shape(*x.shape[:2], math.prod(x.shape[2:]))
    running = running_mean, running_var
    return problem_of(x, shape, weight, bias, *running, training, momentum, eps, relu, return_moments, out, stream)


def problem_of(
    x, shape, weight, bias, running_mean, running_var, training, momentum, eps, relu, return_moments, out, stream
) -> Problem:
    """`arguments` of an ``x`` that is a device array, and is seen as images x channels x inner."""
    training, relu = as_flag("training", training), as_flag("relu", relu)
    return_moments = as_flag("return_moments", return_moments)
    if return_moments and not training:
        raise ValueError("return_moments must be False for training=False, was True: there the moments are given")
    momentum, eps = as_number("momentum", momentum, 0, 1), as_number("eps", eps, 0)
    channels, values = shape.channels, shape.images * shape.inner
    per_channel = {"shape": (channels,), "stream": stream}
    weight = device.as_input("weight", weight, dtypes="float32", **per_channel)
    bias = device.as_input("bias", bias, dtypes="float32", **per_channel)
    apart = {"x": x, "weight": weight, "bias": bias}
    running_mean = apart["running_mean"] = running_moment("running_mean", running_mean, training, apart, **per_channel)
    running_var = apart["running_var"] = running_moment("running_var", running_var, training, apart, **per_channel)
    if (running_mean is None) != (running_var is None):
        missing = "running_mean" if running_mean is None else "running_var"
        raise ValueError(f"running_mean and running_var must be given together, {missing} was None")
    if not training and running_mean is None:
        raise ValueError("running_mean and running_var must be given for training=False, were None")
    if training and channels and values < 2:
        raise ValueError(f"x must have two values a channel or more to train on, had shape {x.shape}")
    if values >= 2**31:
        raise ValueError(f"x must have fewer than 2^31 values a channel, had {values}")
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart=apart, stream=stream)
    keeps = training and running_mean is not None
    if training:
        moments = Moments(*(device.empty(channels, np.float32, stream=stream) for _ in range(2)))
    else:
        moments = Moments(running_mean, running_var)
    kept = (running_mean, running_var, momentum) if keeps else (*moments, f0)
    batch = tuple(device.empty(channels, np.float32, stream=stream) for _ in range(2)) if return_moments else moments
    three = x.shape == shape or not x.size
    return Problem(
        (out, *batch) if return_moments else out,
        stream=stream,
        x=x if three else x.reshape(shape),  # images x channels x inner
        out=out if three else out.reshape(shape),
        shape=shape,
        affine=Affine(weight, bias),
        moments=moments,  # what to normalise by; in training still to be found
        running=Running(*kept, *batch, eps, return_moments),
        epilogue=Epilogue(eps, relu),
        training=training,
    )


def running_moment(name: str, given: typing.Any, training: bool, apart: dict, **form: typing.Any) -> typing.Any:
    """A running moment as a device array, or None. In training it is updated, so it must be on the device already."""
    if given is None:
        return None
    if not training:
        return device.as_input(name, given, dtypes="float32", **form)
    if isinstance(given, np.ndarray):
        use = f"it is updated, so pass pmpp.runtime.device.to_device({name})"
        raise TypeError(f"{name} must be a device array in training, was a NumPy array: {use}")
    return device.as_output(name, given, dtype=np.float32, apart=apart, **form)


# ------------------------------------------------------------------------ one block per channel, one element per thread


@cuda.jit
def two_pass_kernel(x, moments, running):
    images, _, inner = x.shape
    channel, values = cuda.blockIdx.x, images * inner
    partial, count = cuda.shared.array((2, 32), np.float32), np.float32(values)
    total = f0
    for i in range(cuda.threadIdx.x, values, BLOCK):
        total += widened(x[i // inner, channel, i % inner])
    mean = block_sum(total, partial[0]) / count

    m2 = f0
    for i in range(cuda.threadIdx.x, values, BLOCK):
        deviation = widened(x[i // inner, channel, i % inner]) - mean
        m2 += deviation * deviation
    m2 = block_sum(m2, partial[1])

    if cuda.threadIdx.x == 0:
        moments.mean[channel], moments.var[channel] = mean, m2 / count
        keep(running, channel, mean, m2, count)


@cuda.jit
def normalise_kernel(x, affine, moments, epilogue, out):
    i = cuda.grid(1)
    _, channels, inner = x.shape
    if i < x.size:
        image, c, r = i // (channels * inner), i // inner % channels, i % inner
        value = (widened(x[image, c, r]) - moments.mean[c]) / math.sqrt(moments.var[c] + epilogue.eps)
        out[image, c, r] = rectified(value * affine.weight[c] + affine.bias[c], epilogue.relu)


@rung(two_pass_kernel, normalise_kernel)
def two_pass(p):
    """A block finds the mean of its channel, then in a second pass the variance around it; then all is normalised.

    Leaves: the batch is read twice before a third read normalises it.
    """
    if p.training:
        two_pass_kernel[p.shape.channels, BLOCK, p.stream](p.x, p.moments, p.running)
    normalise(p)


def normalise(p):
    """Launch the kernel that normalises one element per thread."""
    normalise_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.affine, p.moments, p.epilogue, p.out)


# --------------------------------------------------------------------------------------------- both moments in one pass
@cuda.jit
def welford_kernel(x, moments, running):
    images, _, inner = x.shape
    channel, partial = cuda.blockIdx.x, cuda.shared.array((3, 32), np.float32)
    count, mean, m2 = f0, f0, f0
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        count, mean, m2 = welford_step(count, mean, m2, widened(x[i // inner, channel, i % inner]))
    count, mean, m2 = block_merge(count, mean, m2, partial)

    if cuda.threadIdx.x == 0:
        moments.mean[channel], moments.var[channel] = mean, m2 / count
        keep(running, channel, mean, m2, count)


@rung(welford_kernel, normalise_kernel)
def welford(p):
    """Mean and variance in one pass: each thread updates both with every value, and the threads' moments are merged.

    Source: B. P. Welford (1962); T. Chan, G. Golub, R. LeVeque (1983).

    Leaves: only one block works on a channel, and the GPU has room for many more blocks than there are channels.
    """
    if p.training:
        welford_kernel[p.shape.channels, BLOCK, p.stream](p.x, p.moments, p.running)
    normalise(p)


# ----------------------------------------------------------------------------------------- several blocks for a channel


def partials_of(p, tile):
    """An array for the moments of each part, 3 x channels x parts. A block reads ``tile`` values at once."""
    channels = p.shape.channels
    parts = parts_of(channels, blocks(p.shape.images * p.shape.inner, tile))
    return device.empty((3, channels, parts), np.float32, stream=p.stream)


@cuda.jit
def split_kernel(x, partials):
    images, _, inner = x.shape
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    count, mean, m2 = f0, f0, f0
    for i in range(part * BLOCK + cuda.threadIdx.x, images * inner, parts * BLOCK):
        count, mean, m2 = welford_step(count, mean, m2, widened(x[i // inner, channel, i % inner]))
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if cuda.threadIdx.x == 0:
        write_part(partials, channel, part, count, mean, m2)


@cuda.jit
def merge_kernel(partials, moments, running):
    channel = cuda.blockIdx.x
    count, mean, m2 = merge_parts(partials, channel)
    if cuda.threadIdx.x == 0:
        moments.mean[channel], moments.var[channel] = mean, m2 / count
        keep(running, channel, mean, m2, count)


@rung(split_kernel, merge_kernel, normalise_kernel)
def split(p):
    """Several blocks share a channel and store the moments of their parts. A second kernel merges these.

    Leaves: a third launch, and a root and a division for each element, though the whole channel has one scale.
    """
    if p.training:
        partials = partials_of(p, BLOCK)
        split_kernel[partials.shape[1:], BLOCK, p.stream](p.x, partials)
        merge_kernel[p.shape.channels, 32, p.stream](partials, p.moments, p.running)
    normalise(p)


# ------------------------------------------------------------------------------ once per channel, not once per element


@cuda.jit
def fused_kernel(x, training, partials, affine, moments, running, epilogue, out):
    images, _, inner = x.shape
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    first = part == 0 and cuda.threadIdx.x == 0
    mean, scale = centre_and_scale(channel, first, training, partials, affine, moments, running, epilogue.eps)
    bias = affine.bias[channel]
    for i in range(part * BLOCK + cuda.threadIdx.x, images * inner, parts * BLOCK):
        image, r = i // inner, i % inner
        out[image, channel, r] = rectified((widened(x[image, channel, r]) - mean) * scale + bias, epilogue.relu)


@rung(split_kernel, fused_kernel)
def fused(p):
    """The second kernel merges the parts before it normalises: two launches, and a thread computes its scale once.

    Leaves: a load moves 4 bytes, and its thread waits for it before it issues the next.
    """
    partials = partials_of(p, BLOCK)
    grid = partials.shape[1:]
    if p.training:
        split_kernel[grid, BLOCK, p.stream](p.x, partials)
    fused_kernel[grid, BLOCK, p.stream](p.x, p.training, partials, p.affine, p.moments, p.running, p.epilogue, p.out)


# -------------------------------------------------------------------------------------- 128 bits wide, and many at once

# Planes of fewer values than this are read column by column. Eight values are 32 bytes, a sector. Read channel by
# channel, a shorter plane would fill no sector, so each load would also bring values of the next channels.
NARROW = 8
# A batch of at most this many values is too small to gain from flat_kernel or columns_kernel. In training its planes
# may even be narrow: channel_kernel then uses little of each sector that it loads, but saves two launches.
SMALL = 2**16
LARGEST = 1024  # threads per block, the most that CUDA allows
FLAT = 8  # values per thread, in flat_kernel: of float32, two loads in flight


@cuda.jit(max_registers=64)  # so that 1024 threads fit on a multiprocessor, which has 65,536 registers
def parts_kernel(x, shape, like, tiles, partials):
    channel, part, parts = cuda.blockIdx.x, cuda.blockIdx.y, cuda.gridDim.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * (CHUNK // len(like))
    count, mean, m2 = f0, f0, f0
    for tile in range(part, tiles, parts):
        filled = load_chunk(x, shape, channel, tile * units + cuda.threadIdx.x, like, CHUNK, values)
        more = chunk_moments(values, filled)
        count, mean, m2 = merge(count, mean, m2, more[0], more[1], more[2])
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if cuda.threadIdx.x == 0:
        write_part(partials, channel, part, count, mean, m2)


@cuda.jit(max_registers=64)  # as above
def vectorised_kernel(x, shape, like, tiles, partials, affine, moments, running, epilogue, out):
    # Backwards: what was read last is still in the cache, and is used first.
    channel, part, parts = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.gridDim.y - 1 - cuda.blockIdx.y, cuda.gridDim.y
    values = cuda.local.array(CHUNK, np.float32)
    units = cuda.blockDim.x * (CHUNK // len(like))
    first = part == 0 and cuda.threadIdx.x == 0
    mean, scale = centre_and_scale(channel, first, True, partials, affine, moments, running, epilogue.eps)
    tile = part + (tiles - 1 - part) // parts * parts
    while tile >= 0:
        unit = tile * units + cuda.threadIdx.x
        load_chunk(x, shape, channel, unit, like, CHUNK, values)
        for k in range(CHUNK):
            values[k] = rectified((values[k] - mean) * scale + affine.bias[channel], epilogue.relu)
        store_chunk(values, out, shape, channel, unit, like)
        tile -= parts


@cuda.jit(max_registers=64)  # 65,536 registers for a block of 1024 threads
def channel_kernel(x, shape, like, depth, affine, running, epilogue, out):
    channel, thread = cuda.blockIdx.x, cuda.threadIdx.x
    values = cuda.local.array(CHUNK, np.float32)
    filled = load_chunk(x, shape, channel, thread, like, depth, values)
    count, mean, m2 = chunk_moments(values, filled)
    count, mean, m2 = block_merge(count, mean, m2, cuda.shared.array((3, 32), np.float32))
    if thread == 0:
        keep(running, channel, mean, m2, count)
    scale, bias = affine.weight[channel] / math.sqrt(m2 / count + epilogue.eps), affine.bias[channel]
    for k in range(CHUNK):
        values[k] = rectified((values[k] - mean) * scale + bias, epilogue.relu)
    store_chunk(values, out, shape, channel, thread, like)


@cuda.jit
def flat_kernel(x, shape, head, tail, like, affine, moments, epilogue, out):
    """Normalise ``x`` in the order of memory. x[head:tail] are whole vectors, which may lie in several channels."""
    _, channels, inner = shape
    begin = head + cuda.blockIdx.x * np.int64(FLAT * BLOCK)
    first, step = np.int32(len(like) * cuda.threadIdx.x), len(like) * BLOCK
    values = cuda.local.array(FLAT, np.float32)
    if head < tail:
        for k in range(FLAT // len(like)):
            v = widened(load128(x, min(begin + first + k * step, tail - len(like))))
            for e in range(len(like)):
                values[len(like) * k + e] = v[e]
        plane = begin // inner
        first_c, first_r = plane % channels, begin - plane * inner  # of the block's first value: 64-bit, but once
        c = np.int32(-1)
        mean, scale, bias = f0, f0, f0
        for k in range(FLAT // 4):
            planes, r = divided(first_r + first + 4 * k // len(like) * step + 4 * k % len(like), inner)
            now = divided(first_c + planes, channels)[1]
            if now != c:
                c = now
                mean, scale, bias = of_channel(c, affine, moments, epilogue.eps)
            if r + 4 <= inner:
                for e in range(4):
                    values[4 * k + e] = rectified((values[4 * k + e] - mean) * scale + bias, epilogue.relu)
            else:
                for e in range(4):
                    if r == inner:  # the next plane begins here
                        r, c = np.int32(0), np.int32(c + 1 if c + 1 < channels else 0)
                        mean, scale, bias = of_channel(c, affine, moments, epilogue.eps)
                    values[4 * k + e] = rectified((values[4 * k + e] - mean) * scale + bias, epilogue.relu)
                    r = np.int32(r + 1)
        for k in range(FLAT // len(like)):
            if begin + first + k * step < tail:
                store_vector(values, len(like) * k, out, begin + first + k * step, like)
    for outside in range(cuda.grid(1), head + x.size - tail, cuda.gridsize(1)):
        i = outside if outside < head else outside - head + tail
        mean, scale, bias = of_channel(i // inner % channels, affine, moments, epilogue.eps)
        out[i] = rectified((widened(x[i]) - mean) * scale + bias, epilogue.relu)


@rung(
    channel_kernel,
    parts_kernel,
    vectorised_kernel,
    merge_kernel,
    normalise_kernel,
    flat_kernel,
    columns.column_parts_kernel,
    columns.columns_kernel,
    ragged.ragged_channel_kernel,
    ragged.ragged_parts_kernel,
    ragged.ragged_kernel,
)
def vectorised(p):
    """A thread has many loads in flight, of 128 bits if possible, and finds the moments of their values in registers.

    The shape decides which kernels run. A channel of up to 32768 values fits into the registers of one block, and is
    read once. A larger one is read by several blocks, and then once more, if possible backwards, to use what is still
    in the cache. In training, planes that begin between multiples of 16 bytes are for
    `pmpp.kernels.normalisation.ragged`. Planes of fewer than NARROW values are for
    `pmpp.kernels.normalisation.columns`.
    """
    shape, affine, stream = p.shape, p.affine, p.stream
    x, out = p.x.reshape(p.x.size), p.out.reshape(p.x.size)
    most_wide = width_of(x.dtype)
    aligned, whole = device.address(x) % 16 == device.address(out) % 16 == 0, shape.inner % most_wide == 0
    begins_anywhere = aligned and not whole and shape.inner >= NARROW
    width = most_wide if (aligned and whole) or begins_anywhere else 1
    # Vectors or values of a plane and of a channel, and the most of them that a thread keeps.
    plane = ragged.vectors_of(shape.inner, width) if begins_anywhere else shape.inner // width
    like, units, most = LIKE[width], shape.images * plane, CHUNK // width
    if p.training and units <= LARGEST * most and (shape.inner >= NARROW or x.size <= SMALL):
        # With few channels, at most two per multiprocessor, there may be room for four times as many threads on each. A
        # thread then loads a quarter of the values, but there are more warps to merge.
        threads, turns = 32 * blocks(units, 32 * most), blocks(shape.channels, device.limits()["multiprocessors"])
        if turns <= 2:
            threads = max(threads, min(32 * blocks(units, 32 * max(1, most // 4)), LARGEST // turns))
        launch, rest = (shape.channels, threads, stream), (affine, p.running, p.epilogue, out)
        depth = blocks(units, threads)
        if begins_anywhere:
            ragged.ragged_channel_kernel[launch](x, shape, plane, like, depth, *rest)
        else:
            channel_kernel[launch](x, shape, like, depth, *rest)
        return
    if p.training and shape.inner < NARROW:
        partials = columns.column_parts(x, shape, stream)
    elif p.training:
        partials, tiles = partials_of(p, BLOCK * CHUNK), blocks(units, BLOCK * most)
        launch = partials.shape[1:], BLOCK, stream
        rest = partials, affine, p.moments, p.running, p.epilogue, out
        if begins_anywhere:
            ragged.ragged_parts_kernel[launch](x, shape, plane, like, tiles, partials)
            ragged.ragged_kernel[launch](x, shape, plane, like, tiles, *rest)
            return
        parts_kernel[launch](x, shape, like, tiles, partials)
        if width > 1:
            vectorised_kernel[launch](x, shape, like, tiles, *rest)
            return
    if p.training:
        merge_kernel[shape.channels, threads_for(partials.shape[2]), stream](partials, p.moments, p.running)
    if x.size <= SMALL:
        normalise(p)
    elif shape.inner < NARROW and shape.channels * shape.inner >= 32:
        columns.normalise_columns(x, shape, affine, p.moments, p.epilogue, out, stream)
    else:
        head, tail, _ = vector_span(x, out)
        grid = max(1, blocks(tail - head, FLAT * BLOCK))
        flat_kernel[grid, BLOCK, stream](x, shape, head, tail, LIKE[most_wide], affine, p.moments, p.epilogue, out)


LADDER = (two_pass, welford, split, fused, vectorised)
