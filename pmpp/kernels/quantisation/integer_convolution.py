"""Integer convolution: layers of int8 with channels last and sums in int32, which become int8 again when stored.

Chapter: notebooks/77_quantisation.ipynb.  PMPP 5e ch. 20.
Roof: tensor cores, int8.

A convolution is a product of matrices: a row for each place of the filters, a column for each filter, and a sum over
the rows, columns and channels of a filter. So it is the integer layer of `pmpp.kernels.quantisation.integer_linear`,
and its requantisation is the same. What is new is where x comes from. Written to memory, the rows would be R S times
as many bytes as x. Here a thread computes where a piece of a row lies in x, and copies it from there: *implicit GEMM*.
With channels last, 16 channels of a pixel are 16 bytes side by side, which one asynchronous copy brings. If channels do
not come in sixteens, 16 neighbours in a row of the image are put together of words.

Around the image lies what stands for 0.0, and in an affine quantisation that is not 0 but the zero point of x.

The instructions are in `pmpp.runtime.matrix` and `pmpp.runtime.hopper`. They need a GPU of compute capability 8.0 or
higher. The last two rungs need 9.0, and are the one before them on other GPUs.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.common.arrivals import arrivals_for, is_last_block
from pmpp.kernels.common.division import divisor, quotient
from pmpp.kernels.convolution_layer.definition import Layer, layer_of
from pmpp.kernels.matmul.mixed_tiles import copier
from pmpp.kernels.matmul.tensor_cores import CHUNK, swizzled_place
from pmpp.kernels.quantisation import integer_linear
from pmpp.kernels.quantisation.integer_linear import (
    CAPABILITY,
    DEPTH,
    MMA_K,
    MMA_M,
    MMA_N,
    MOST_K,
    NOTHING,
    PANEL_M,
    PANEL_N,
    SHARED,
    SIDE,
    STAGE,
    STAGES,
    THREADS,
    WARPS,
    copy_tile,
    in_chunks,
    multiply,
    no_bias,
    pad_kernel,
    requantised,
    store,
    store_row,
    word,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer
from pmpp.runtime.hopper import copies_visible, tile_descriptor, wgmma_commit, wgmma_fence, wgmma_s8, wgmma_wait
from pmpp.runtime.matrix import commit_copies, copy_async, load32, mma_s8, wait_copies
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

MOST = 2**31 - 512  # elements of an array: places are counted in 32 bits, and a little beyond the last one
NOWHERE = np.uint32(2**31)  # a row that no image has
HOPPER = (9, 0)
CAPABILITY_OF = {"warpgroups_kernel": HOPPER}
WARP = 32
i0 = np.int32(0)


# --------------------------------------------------------------------------------------------------------- definition


def reference(x, w, factors, bias=None, stride=1, padding=0, relu=False, zero=0) -> np.ndarray:
    """The definition: exact sums over a filter, then those of `integer_linear`'s steps. Arguments as in `arguments`."""
    a = layer_of(first(x.shape), first(w.shape), stride, padding)
    (u, v), (down, along) = a.stride, a.padding
    x = np.pad(x.astype(np.int64), ((0, 0), (down, down), (along, along), (0, 0)), constant_values=zero)
    y = np.zeros((a.n, a.p, a.q, a.k), np.int8)
    for n, p, q in np.ndindex(y.shape[:3]):
        window = x[n, p * u : p * u + a.r, q * v : q * v + a.s]
        y[n, p, q] = integer_linear.reference(window.reshape(1, -1), w.reshape(a.k, -1), factors, bias, relu)
    return y


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward layers: a name, and ``(x, w, factors, bias, stride, padding, relu, zero)``."""
    rng = np.random.default_rng(77) if rng is None else rng
    made: dict[str, tuple] = {}

    def add(name: str, x: tuple, w: tuple, stride=1, padding=0, relu=False, zero=0, biased: bool = True) -> None:
        numbers = [rng.integers(-128, 128, shape).astype(np.int8) for shape in (x, w)]
        factors = (rng.uniform(0.3, 1, w[0]) * 60 / (5500 * math.prod(w[1:]) ** 0.5)).astype(np.float32)
        bias = rng.integers(-5000, 5000, w[0]).astype(np.int32) if biased else None
        made[name] = *numbers, factors, bias, stride, padding, relu, zero

    add("one", (1, 1, 1, 1), (1, 1, 1, 1))
    add("no images", (0, 4, 4, 3), (2, 3, 3, 3))
    add("a channel, 5x5 p2, ReLU", (2, 6, 7, 1), (6, 5, 5, 1), 1, 2, True)
    add("three channels, 3x2 s2x1 p1x0", (1, 9, 8, 3), (5, 3, 2, 3), (2, 1), (1, 0), biased=False)
    add("sixteen channels, 3x3 p1", (2, 5, 4, 16), (9, 3, 3, 16), 1, 1)
    add("a zero point", (1, 4, 5, 16), (16, 3, 3, 16), 1, 1, False, -128)
    add("a zero point, three channels", (1, 4, 5, 3), (4, 3, 3, 3), 1, 1, True, 100)
    add("four channels, 1x1 s2", (1, 5, 6, 4), (7, 1, 1, 4), 2, 0, True, 3)
    add("padding beyond the filter", (1, 2, 3, 16), (3, 2, 2, 16), 1, 3, False, 7)
    add("a filter as large as the image", (2, 4, 3, 48), (32, 4, 3, 48))
    add("a tile and one", (1, 3, 43, 16), (65, 1, 1, 16))
    add("many channels", (1, 2, 3, 144), (4, 3, 3, 144), 1, 1)
    add("a divided sum", (1, 2, 2, 256), (3, 3, 3, 256), 1, 1, True)
    add("three channels, twenty filters", (1, 5, 9, 3), (20, 3, 3, 3), 2, 1, False, -7)
    halves = np.int8([[[[1, 3]], [[-5, 7]]]]), np.int8(np.eye(2)).reshape(2, 1, 1, 2)
    made["halves"] = *halves, np.full(2, 0.5, np.float32), None
    largest = np.full((1, 2, 2, 32), -128, np.int8), np.full((3, 2, 2, 32), -128, np.int8)
    made["largest sums"] = *largest, np.float32([1e-4, 1, 3e-5]), np.int32([2**30, -(2**30), 0])
    return made


def cost(n: int, h: int, w: int, c: int, k: int, r: int = 3, s: int = 3, stride=1, padding=0) -> Cost:
    """A multiply-add for each term of each output; x, w and the output moved once, a byte each; factors and bias.

    >>> round(cost(32, 56, 56, 64, 64, padding=1).intensity)
    574
    """
    a = layer_of((n, c, h, w), (k, c, r, s), stride, padding)
    outputs, weights = math.prod(a.shape), k * a.terms
    return Cost(flops=2 * outputs * a.terms, bytes=n * h * w * c + weights + outputs + 8 * k)


def tolerance(x, w, factors, bias=None, stride=1, padding=0, relu=False, zero=0) -> float:
    """None: sums of integers are exact, and each further step has one result."""
    return 0.0


def arguments(x, w, factors, bias=None, stride=1, padding=0, relu=False, zero=0, *, out=None, stream=0) -> Problem:
    """Compute a convolution layer of int8, and requantise: out = round(factors[k] (bias[k] + the sum of products)).

    Args:
        x: images of shape (N, H, W, C), int8, of at most 2^31 - 512 elements, like ``w`` and ``out``. All arrays are
            in C order.
        w: filters of shape (K, R, S, C), int8, with R S C of at most 2^17 - 1, so that a sum fits into int32.
        factors: float32 of shape (K,): the scale of x times that of filter k, divided by the scale of the output.
        bias: int32 of shape (K,), in units of a product; None for none. Its addition wraps.
        stride, padding: integers below 2^31, or pairs of them for rows and columns.
        relu: whether negative results become 0.
        zero: what lies around the image, from -128 to 127: the zero point of x, so that it stands for 0.0. The sum is
            of x as it is. To make it one of ``x - zero``, subtract ``zero * w[k].sum()`` from ``bias[k]``.
        out: an int8 device array of shape (N, P, Q, K), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. P = (H + 2 padding - R) // stride + 1, and Q likewise.
    The sum is rounded to float32, multiplied, rounded to the nearest whole number, halfway to the even one, and limited
    to -128 and 127. Every rung gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.
    Source: Jacob et al., Quantization and training, CVPR 2018, section 2.2; Chetlur et al., cuDNN (2014), section 3.

    >>> from pmpp.kernels.quantisation import integer_convolution
    >>> x, w = np.int8([[[[1], [2]], [[3], [4]]]]), np.ones((1, 2, 2, 1), np.int8)
    >>> integer_convolution.fragments(x, w, np.float32([0.5]), padding=(0, 1)).copy_to_host().reshape(-1)
    array([2, 5, 3], dtype=int8)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="int8", ndim=4, stream=stream)
    w = device.as_input("w", w, dtypes="int8", ndim=4, stream=stream)
    if min(w.shape) < 1:
        raise ValueError(f"w must have no extent of 0, had shape {w.shape}")
    layer = layer_of(first(x.shape), first(w.shape), stride, padding)
    if layer.terms > MOST_K:
        raise ValueError(f"w must have filters of at most {MOST_K} elements, had {layer.terms}")
    factors = device.as_input("factors", factors, dtypes="float32", ndim=1, shape=(layer.k,), stream=stream)
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes="int32", ndim=1, shape=(layer.k,), stream=stream)
    relu, zero = as_flag("relu", relu), as_integer("zero", zero, -128, 127)
    shape = layer.n, layer.p, layer.q, layer.k
    for name, extents in (("x", x.shape), ("w", w.shape), ("out", shape)):
        if math.prod(extents) > MOST:
            raise ValueError(f"{name} must have at most {MOST} elements, has shape {extents}: take fewer images a call")
    if max(layer.h + 2 * layer.padding.rows, (layer.w + 2 * layer.padding.columns) * layer.c) > MOST:
        said = f"padding must leave an image at most {MOST} rows, and as many elements in a row"
        raise ValueError(f"{said}, was {tuple(layer.padding)}")
    apart = {"x": x, "w": w, "factors": factors, "bias": bias}
    out = device.as_output("out", out, shape=shape, dtype="int8", apart=apart, stream=stream)
    capability = device.limits()["compute_capability"]
    if capability < CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this room needs a GPU of compute capability 8.0 or higher, this one has {said}")
    bias, low = no_bias() if bias is None else bias, np.int32(0 if relu else -128)
    given = {"x": x, "w": w, "factors": factors, "bias": bias, "low": low, "zero": zero, "layer": layer}
    return Problem(out, stream=stream, **given)


def first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with channels last, as that with channels first."""
    return shape[0], shape[3], shape[1], shape[2]


# ----------------------------------------------------------------------------------------------------------- one each


@cuda.jit
def thread_kernel(x, w, factors, bias, low, zero, stride, padding, out):
    i = cuda.grid(1)
    if i < out.size:
        filters, across, down = out.shape[3], out.shape[2], out.shape[1]
        place, k = i // filters, i % filters
        n, p, q = place // (across * down), place // across % down, place % across
        total = i0
        for r in range(w.shape[1]):
            for s in range(w.shape[2]):
                row, column = p * stride[0] + r - padding[0], q * stride[1] + s - padding[1]
                inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
                for c in range(w.shape[3]):
                    number = np.int32(x[n, row, column, c]) if inside else zero
                    total = np.int32(total + number * np.int32(w[k, r, s, c]))
        out[n, p, q, k] = np.int8(requantised(total, k, factors, bias, low))


@rung(thread_kernel)
def thread_per_element(p):
    """A thread for each output adds up its products, and stores a byte.

    Source: PMPP 4e section 16.3.

    Leaves: two bytes are loaded for each multiply-add, and a multiprocessor multiplies 64 integers a cycle.
    """
    grid, a = blocks(p.result.size, 128), p.layer
    pairs = (tuple(map(np.int64, pair)) for pair in (a.stride, a.padding))
    given = p.x, p.w, p.factors, p.bias, p.low, np.int32(p.zero), *pairs, p.result
    thread_kernel[grid, 128, p.stream](*given)


# --------------------------------------------------------------------------------------------------- terms and places
# The matrix of the places has a row for each place of the filters, and along it the *terms* of a sum, in the order
# (r, s, c) in which a filter lies in memory. A place has a corner, where it puts the first pixel of the filters. Terms
# and corners are enough to find any element of the matrix in x. They are uint32, which wrap around: a corner above the
# image has a row that is large, so that one comparison finds both ends.


class Places(typing.NamedTuple):
    """What the kernels are told of a layer. A unit is a byte, or a pair of them where channels come in sixteens."""

    count: int  # N P Q
    pixels: int  # P Q
    across: int  # Q
    rows: int  # of x
    columns: int
    channels: int  # units of a pixel,
    row: int  # of a row,
    image: int  # and of an image
    stride_rows: int
    stride_columns: int
    padding_rows: int
    padding_columns: int
    kernel_rows: int
    kernel_columns: int
    next_r: int  # how far the term of the next step is: rows, columns and units
    next_s: int
    next_c: int
    pixels_times: int  # what divides by `pixels`, `across`, `channels` and `kernel_columns`: see `divisor`
    pixels_shift: int
    across_times: int
    across_shift: int
    channels_times: int
    channels_shift: int
    columns_times: int
    columns_shift: int


@functools.lru_cache(4096)
def places_of(a: Layer, how: str, step: int) -> Places:
    """The sizes of a layer for a kernel that takes ``step`` bytes of each sum at a time.

    ``how``: "bytes" or "pairs" for such units. With "rows" a unit is a byte, all channels of a row of x count as pixels
    of one channel, and a row of a filter is filled up to whole chunks.
    """
    unit, folded = (2 if how == "pairs" else 1), (a.c if how == "rows" else 1)
    channels, width, (u, v), (down, along) = a.c // folded // unit, a.w * folded, a.stride, a.padding
    across = round_up(a.s * folded, 16) if how == "rows" else a.s
    count, pixels, step = a.n * a.p * a.q, a.p * a.q, step // unit
    taps, over = divmod(step, channels)
    whole, columns = divmod(taps, across)
    sizes = a.h, width, channels, width * channels, a.h * width * channels
    sizes += u, v * folded, down, along * folded, a.r, across, whole, columns, over
    most = a.r * across * channels + 2 * step + 512  # and a bit, since threads look beyond the end
    by = *divisor(pixels, count + 512), *divisor(a.q, pixels), *divisor(channels, most), *divisor(across, most)
    return Places(
        *map(np.int32, (count, pixels, a.q)), *(np.uint32(size % 2**32) for size in sizes), *map(np.int64, by)
    )


@cuda.jit(device=True)
def corner_of(place, g):
    """(row, column, offset) of the element of x on which a place puts the first one of a filter."""
    image = quotient(place, g.pixels_times, g.pixels_shift)
    pixel = np.int32(place - image * g.pixels)
    p = quotient(pixel, g.across_times, g.across_shift)
    top = np.uint32(p * g.stride_rows - g.padding_rows)
    left = np.uint32((pixel - p * g.across) * g.stride_columns - g.padding_columns)
    at = np.uint32(image * g.image + top * g.row + left * g.channels)
    return top if place < g.count else NOWHERE, left, at


@cuda.jit(device=True)
def term_of(k, g):
    """(r, s, c) of unit k of a sum."""
    tap = quotient(k, g.channels_times, g.channels_shift)
    r = quotient(tap, g.columns_times, g.columns_shift)
    return np.uint32(r), np.uint32(tap - r * g.kernel_columns), np.uint32(k - tap * g.channels)


@cuda.jit(device=True)
def further(term, r, s, c, g):
    """The term that lies (r, s, c) further, each less than a filter has."""
    c, s, r = np.uint32(term[2] + c), np.uint32(term[1] + s), np.uint32(term[0] + r)
    if c >= g.channels:
        c, s = np.uint32(c - g.channels), np.uint32(s + 1)
    if s >= g.kernel_columns:
        s, r = np.uint32(s - g.kernel_columns), np.uint32(r + 1)
    return r, s, c


@cuda.jit(device=True)
def found(corner, term, g):
    """Where in x a term of a place lies, and whether there is one: not around the image, nor after the last term."""
    top, left, at = corner
    r, s, c = term
    inside = np.uint32(top + r) < g.rows and np.uint32(left + s) < g.columns and r < g.kernel_rows
    return np.uint32(at + r * g.row + s * g.channels + c), inside


# ------------------------------------------------------------------------------------------------------ the fragments


@cuda.jit(device=True)
def byte_of(x, border, corner, term, g):
    """An element of the matrix, in the lower bits."""
    at, inside = found(corner, term, g)
    return np.uint32(np.uint8(x[at] if inside else border[0]))


@cuda.jit(device=True)
def next_byte(term, g):
    return further(term, np.uint32(0), np.uint32(0), np.uint32(1), g)


@cuda.jit(device=True)
def four_bytes(x, border, corner, term, g):
    """Four neighbours, which may be of several pixels, as a word; and the term after them."""
    second = next_byte(term, g)
    third = next_byte(second, g)
    fourth = next_byte(third, g)
    lower = byte_of(x, border, corner, term, g) | byte_of(x, border, corner, second, g) << np.uint32(8)
    upper = byte_of(x, border, corner, third, g) | byte_of(x, border, corner, fourth, g) << np.uint32(8)
    return np.uint32(lower | upper << np.uint32(16)), next_byte(fourth, g)


@cuda.jit(device=True)
def word_of(x, border, corner, k, g, wide):
    """Four neighbours of a place's row as a register. What is beyond the end meets zeros of the filters."""
    term = term_of(np.int32(k), g)
    if wide:
        at, inside = found(corner, term, g)
        return load32(x, at) if inside else load32(border, 0)
    return four_bytes(x, border, corner, term, g)[0]


@functools.cache
def fragments_kernel(wide: bool) -> typing.Any:
    """The kernel ``(x, border, w, factors, bias, low, out, g)``; ``wide``: four neighbours are of one pixel."""

    @cuda.jit
    def kernel(x, border, w, factors, bias, low, out, g):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        tiles_n = (out.shape[1] + MMA_N - 1) // MMA_N
        tile = cuda.blockIdx.x * np.int64(WARPS) + warp
        row, column = tile // tiles_n * MMA_M, tile % tiles_n * MMA_N
        own_column, sums = column + lane // 4, (i0, i0, i0, i0)
        upper, lower = corner_of(np.int32(row + lane // 4), g), corner_of(np.int32(row + lane // 4 + 8), g)
        for k in range(lane % 4 * 4, (w.shape[1] + MMA_K - 1) // MMA_K * MMA_K, MMA_K):
            a = (
                word_of(x, border, upper, k, g, wide),
                word_of(x, border, lower, k, g, wide),
                word_of(x, border, upper, k + 16, g, wide),
                word_of(x, border, lower, k + 16, g, wide),
            )
            sums = mma_s8(a, (word(w, own_column, k, wide), word(w, own_column, k + 16, wide)), sums)
        store(out, row, column, sums, factors, bias, low)

    return kernel


@rung(fragments_kernel)
def fragments(p):
    """A warp multiplies on tensor cores: 16 places with 8 filters, as in `integer_linear.fragments`.

    A lane finds each word of x by its place and its term. If channels come in fours, a word is one load.
    Source: PTX ISA, "Matrix fragments for mma.m16n8k32".

    Leaves: each warp loads its own operands from device memory, and divides for each word that it loads.
    """
    a = p.layer
    wide = a.c % 4 == 0 and device.address(p.x) % 4 == 0 and device.address(p.w) % 4 == 0
    count = a.n * a.p * a.q
    tiles = blocks(count, MMA_M) * blocks(a.k, MMA_N)
    given = p.x.reshape(-1), border_of(p.zero), p.w.reshape(a.k, a.terms), p.factors, p.bias, p.low
    fragments_kernel(wide)[blocks(tiles, WARPS), 32 * WARPS, p.stream](
        *given, p.result.reshape(count, a.k), places_of(a, "bytes", MMA_K)
    )


@device.cached(256)
def border_of(zero: int) -> typing.Any:
    """16 bytes of what lies around the image."""
    return device.to_device(np.full(16, zero, np.int8))


# ------------------------------------------------------------------------------------------------- tiles on their way


def gatherer(rows: int, chunks: int, threads: int, place: typing.Any, how: str) -> tuple[typing.Any, typing.Any]:
    """Two device functions for tiles of so many places, with so many chunks of 16 bytes of each.

    ``place``: where a chunk lies in shared memory. ``how``: a name of `WAYS`.

    ``begin`` gives the corners of this thread's places, and the term of its chunk in a tile that begins so many chunks
    into the sum. ``copy`` begins to copy its chunks of a tile: the same term of each place.
    """
    lines, width = threads // chunks, np.uint32(chunks)
    unit = np.uint32(CHUNK if how in ("chunks", "filled") else 2 * CHUNK)  # of a chunk
    corners = corners_at(rows // lines, lines)
    copy_lines = each_line(WAYS[how], rows // lines)
    below = np.uint32(lines * chunks * CHUNK)

    @cuda.jit(device=True)
    def begin(first_place, chunk, g):
        thread = np.uint32(cuda.threadIdx.x)
        term = term_of(np.int32((chunk + thread % width) * unit), g)
        return corners(np.int32(first_place + thread // width), g), term

    @cuda.jit(device=True)
    def copy(shared, words, begin, x, border, corners, term, g):
        thread = np.uint32(cuda.threadIdx.x)
        to = np.uint32(begin + place(np.uint32(thread // width), np.uint32(thread % width)) * np.uint32(CHUNK))
        copy_lines(shared, words, to, below, x, border, corners, term, g)

    return begin, copy


def corners_at(count: int, lines: int) -> typing.Any:
    """A device function that gives the corners of so many places, each ``lines`` below the one before."""
    half, further_down = None if count == 1 else corners_at(count // 2, lines), np.int32(count // 2 * lines)

    @cuda.jit(device=True)
    def one(place, g):
        return (corner_of(place, g),)

    @cuda.jit(device=True)
    def both(place, g):
        return half(place, g) + half(np.int32(place + further_down), g)

    return one if half is None else both


def each_line(copy_one: typing.Any, count: int) -> typing.Any:
    """``copy_one`` for so many corners, written out by halves as in `pmpp.kernels.matmul.mixed_tiles.several`."""
    half, middle = None if count == 1 else each_line(copy_one, count // 2), count // 2

    @cuda.jit(device=True)
    def one(shared, words, to, below, x, border, corners, term, g):
        copy_one(shared, words, to, x, border, corners[0], term, g)

    @cuda.jit(device=True)
    def both(shared, words, to, below, x, border, corners, term, g):
        half(shared, words, to, below, x, border, corners[:middle], term, g)
        half(shared, words, np.uint32(to + middle * below), below, x, border, corners[middle:], term, g)

    return one if half is None else both


@cuda.jit(device=True)
def copy_chunk(shared, words, to, x, border, corner, term, g):
    at, inside = found(corner, term, g)
    copy_async(shared, to, x, at if inside else np.uint32(0), np.int32(CHUNK if inside else 0))


@cuda.jit(device=True)
def copy_filled(shared, words, to, x, border, corner, term, g):
    at, inside = found(corner, term, g)
    if inside:
        copy_async(shared, to, x, at, np.int32(CHUNK))
    else:
        copy_async(shared, to, border, np.uint32(0), np.int32(CHUNK))


def chunk_gatherer(by_words: bool) -> typing.Any:
    """A device function that puts a chunk together of 16 neighbours, wherever they begin, and stores it at once.

    ``by_words``: x begins at a multiple of four bytes, so that five words have the 16 bytes among them.
    """

    @cuda.jit(device=True)
    def byte(x, border, at, column, inside, g):
        inside = inside and np.uint32(column) < g.columns
        return np.uint32(np.uint8(x[np.uint32(at)] if inside else border[0]))

    @cuda.jit(device=True)
    def four(x, border, at, column, inside, g):
        lower = byte(x, border, at, column, inside, g)
        lower |= byte(x, border, at + 1, column + 1, inside, g) << np.uint32(8)
        upper = byte(x, border, at + 2, column + 2, inside, g)
        upper |= byte(x, border, at + 3, column + 3, inside, g) << np.uint32(8)
        return np.uint32(lower | upper << np.uint32(16))

    @cuda.jit(device=True)
    def shifted(low, high, bits):
        return np.uint32((np.uint64(high) << np.uint64(32) | np.uint64(low)) >> bits)

    @cuda.jit(device=True)
    def gather_chunk(shared, words, to, x, border, corner, term, g):
        top, left, at = corner
        r, s, _ = term
        inside, column = np.uint32(top + r) < g.rows and r < g.kernel_rows, np.uint32(left + s)
        at, to = np.uint32(at + r * g.row + s), np.uint32(to // np.uint32(2))
        if by_words and inside and column < g.columns and column + 16 <= g.columns and at + 20 <= x.size:
            first, bits = np.int64(at) // 4 * 4, np.uint64(at % 4 * 8)
            one, two, three = load32(x, first), load32(x, first + 4), load32(x, first + 8)
            four_, five = load32(x, first + 12), load32(x, first + 16)
            upper = shifted(three, four_, bits), shifted(four_, five, bits)
            store128(words, to, (shifted(one, two, bits), shifted(two, three, bits), upper[0], upper[1]))
        else:
            one, two = four(x, border, at, column, inside, g), four(x, border, at + 4, column + 4, inside, g)
            three = four(x, border, at + 8, column + 8, inside, g)
            store128(words, to, (one, two, three, four(x, border, at + 12, column + 12, inside, g)))

    return gather_chunk


#: How tiles are gathered. If channels come in sixteens: by chunks, with another border than 0 or without. If not, by
#: words, or byte by byte where x begins anywhere.
WAYS = {"chunks": copy_chunk, "filled": copy_filled, "words": chunk_gatherer(True), "anywhere": chunk_gatherer(False)}


class Operands(typing.NamedTuple):
    """What a kernel with tiles is given: how it gathers, x and the border for that, filters as rows of chunks, g."""

    how: str
    x: typing.Any
    border: typing.Any
    w: typing.Any
    g: Places


def operands(p: Problem, step: int) -> Operands:
    """For a kernel that takes ``step`` bytes of each sum at a time."""
    a, border = p.layer, border_of(p.zero)
    if a.c % 16 or device.address(p.x) % 16:
        w = in_chunks(p.w.reshape(a.k * a.r, a.s * a.c), p.stream).reshape(a.k, -1)  # each row of a filter is padded
        how = "anywhere" if device.address(p.x) % 4 else "words"
        return Operands(how, p.x.reshape(-1), border, w, places_of(a, "rows", step))
    how, w = "filled" if p.zero and a.padding != (0, 0) else "chunks", in_chunks(p.w.reshape(a.k, a.terms), p.stream)
    return Operands(how, p.x.reshape(-1).view(np.uint16), border.view(np.uint16), w, places_of(a, "pairs", step))


@functools.cache
def tiled_kernel(how: str) -> typing.Any:
    """The kernel ``(x, border, w, factors, bias, low, out, g)``, a block for each tile of SIDE places and filters."""
    begin_x, copy_x = gatherer(SIDE, DEPTH // CHUNK, THREADS, integer_linear.place, how)

    @cuda.jit
    def kernel(x, border, w, factors, bias, low, out, g):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        words = cuda.shared.array(0, np.uint32, alignment=16)  # the same memory
        n, end, half = np.int64(out.shape[1]), np.int64(w.shape[1]), np.uint32(SIDE * DEPTH)
        tiles_n = (n + SIDE - 1) // SIDE
        first_row, first_column = cuda.blockIdx.x // tiles_n * SIDE, cuda.blockIdx.x % tiles_n * SIDE
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        row, column = np.uint32(warp // np.uint32(4) * np.uint32(PANEL_M)), np.uint32(warp % np.uint32(4) * PANEL_N)
        corners, term = begin_x(first_row, np.uint32(0), g)
        coming = np.int64(0)
        for stage in range(STAGES - 1):
            begin = np.uint32(np.uint32(stage) * np.uint32(STAGE))
            copy_x(shared, words, begin, x, border, corners, term, g)
            copy_tile(shared, np.uint32(begin + half), w, first_column, coming, n, end)
            commit_copies()
            coming, term = coming + DEPTH, further(term, g.next_r, g.next_s, g.next_c, g)
        now, into, k, sums = np.uint32(0), np.uint32(SHARED - STAGE), np.int64(0), NOTHING
        while k < end:
            wait_copies(1)  # the oldest tiles are there: those of this thread,
            cuda.syncthreads()  # and of all; and everyone has read those that are overwritten next
            copy_x(shared, words, into, x, border, corners, term, g)
            copy_tile(shared, np.uint32(into + half), w, first_column, coming, n, end)
            commit_copies()
            sums = multiply(shared, now, row, column, np.uint32(0), sums)
            sums = multiply(shared, now, row, column, np.uint32(16), sums)
            now, into = np.uint32(now + np.uint32(STAGE)), now
            if now == np.uint32(SHARED):
                now = np.uint32(0)
            k, coming, term = k + DEPTH, coming + DEPTH, further(term, g.next_r, g.next_s, g.next_c, g)
        row, column = first_row + row, first_column + column
        store_row(out, row, column, sums[0], factors, bias, low)
        store_row(out, row + 16, column, sums[1], factors, bias, low)
        store_row(out, row + 32, column, sums[2], factors, bias, low)
        store_row(out, row + 48, column, sums[3], factors, bias, low)

    return kernel


@rung(tiled_kernel, pad_kernel)
def tiled(p):
    """Tiles of 128 places and 128 filters in shared memory: `integer_linear.tiled`, with x gathered on the way.

    A thread computes the corners of its places once, and then counts its term up from step to step. If channels do not
    come in sixteens, it puts chunks together of words, and the rows of the filters are padded with zeros.
    Source: Chetlur et al., cuDNN (2014), section 3.

    Leaves: mma.sync takes operands from registers, which a warp has to load; and a layer of 64 filters leaves half of
    each tile empty.
    """
    a, o = p.layer, operands(p, 2 * DEPTH)
    count = a.n * a.p * a.q
    grid = blocks(count, SIDE) * blocks(a.k, SIDE)
    given = o.x, o.border, o.w, p.factors, p.bias, p.low, p.result.reshape(count, a.k), o.g
    tiled_kernel(o.how)[grid, THREADS, p.stream, 2 * SHARED](*given)


# --------------------------------------------------------------------------------------------------------- warpgroups
# wgmma reads both operands where they lie in shared memory: rows of 128 bytes, of which the chunks are exchanged. So
# a step has 128 bytes of each sum, and a row of the filters is what the instruction calls a column.

CHUNKS, PAIRS = 8, 64  # of such a row


class Tile(typing.NamedTuple):
    """What a block computes: 64 places for each warpgroup of its ``teams``, and so many ``filters``.

    ``stages``: how many steps have room in shared memory. ``resident``: blocks that are to share a multiprocessor.
    ``flying``: 0 if each step waits for its own products, 1 if it waits for those of the step before.
    """

    teams: int
    filters: int
    stages: int
    resident: int
    flying: int = 0

    @property
    def places(self) -> int:
        return 64 * self.teams

    @property
    def threads(self) -> int:
        return 128 * self.teams

    @property
    def stage(self) -> int:
        """Pairs of bytes of a stage: rows of x, then those of the filters."""
        return (self.places + self.filters) * PAIRS

    def shared(self, steps: int) -> int:
        """Bytes of shared memory for sums of so many steps: those of fewer steps than stages need fewer."""
        return 2 * min(self.stages, steps) * self.stage


@cuda.jit(device=True)
def packed(one, two):
    """Two int8 as 16 bits, the first one in the lower ones."""
    return np.uint16(np.uint32(one) & np.uint32(255) | (np.uint32(two) & np.uint32(255)) << np.uint32(8))


@functools.cache
def putter(registers: int) -> typing.Any:
    """A device function that puts the int8 of so many sums of a lane into shared memory. Halves, until 4 are left."""
    half, middle = None if registers == 4 else putter(registers // 2), registers // 2

    @cuda.jit(device=True)
    def four(shared, at, down, column, sums, factors, bias, low):
        """Two neighbours in a row, and two in the row 8 below, ``down`` further."""
        one = requantised(sums[0], column, factors, bias, low)
        shared[at] = packed(one, requantised(sums[1], column + 1, factors, bias, low))
        one = requantised(sums[2], column, factors, bias, low)
        shared[at + down] = packed(one, requantised(sums[3], column + 1, factors, bias, low))

    @cuda.jit(device=True)
    def both(shared, at, down, column, sums, factors, bias, low):
        half(shared, at, down, column, sums[:middle], factors, bias, low)
        half(shared, at + middle, down, column + 2 * middle, sums[middle:], factors, bias, low)

    return four if half is None else both


@functools.cache
def partial_sums(registers: int, threads: int) -> tuple[typing.Any, typing.Any]:
    """Two device functions for so many sums of each thread: to store them from ``at`` on, and to add what lies there.

    A sum of a thread lies beside that of the next one, ``threads`` of them together. Halves, until 4 are left.
    """
    if registers > 4:
        (put_half, add_half), middle = partial_sums(registers // 2, threads), registers // 2
        apart = middle * threads

    @cuda.jit(device=True)
    def put_four(partial, at, sums):
        partial[at], partial[at + threads] = sums[0], sums[1]
        partial[at + 2 * threads], partial[at + 3 * threads] = sums[2], sums[3]

    @cuda.jit(device=True)
    def add_four(partial, at, sums):
        one, two = np.int32(sums[0] + partial[at]), np.int32(sums[1] + partial[at + threads])
        three, four = partial[at + 2 * threads], partial[at + 3 * threads]
        return one, two, np.int32(sums[2] + three), np.int32(sums[3] + four)

    @cuda.jit(device=True)
    def put(partial, at, sums):
        put_half(partial, at, sums[:middle])
        put_half(partial, at + apart, sums[middle:])

    @cuda.jit(device=True)
    def add(partial, at, sums):
        return add_half(partial, at, sums[:middle]) + add_half(partial, at + apart, sums[middle:])

    return (put, add) if registers > 4 else (put_four, add_four)


@cuda.jit(device=True)
def multiply_stage(shared, a, b, sums):
    """Start to add 64 places times the filters to a warpgroup's sums, of rows that begin at ``a`` and at ``b``."""
    along = np.uint32(16)
    wgmma_fence()
    sums = wgmma_s8(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, 0), sums)
    sums = wgmma_s8(tile_descriptor(shared, a + along, 0), tile_descriptor(shared, b + along, 0), sums)
    sums = wgmma_s8(tile_descriptor(shared, a + 2 * along, 0), tile_descriptor(shared, b + 2 * along, 0), sums)
    sums = wgmma_s8(tile_descriptor(shared, a + 3 * along, 0), tile_descriptor(shared, b + 3 * along, 0), sums)
    wgmma_commit()
    return sums


@functools.cache
def rows_storer(filters: int, wide: bool) -> typing.Any:
    """A device function with which a warp stores 16 rows of int8 out of shared memory; ``wide``: by 16 bytes."""
    pitch = filters // 2 + CHUNK

    @cuda.jit(device=True)
    def store_rows(out, shared, words, at, first_row, first_column, n, count):
        """Store the 16 rows of a warp, which begin at ``at`` in shared memory: neighbouring lanes, neighbouring bytes.

        ``out`` is of words if 16 bytes are stored at a time, and of bytes otherwise.
        """
        lane = np.int64(cuda.threadIdx.x) % WARP
        if wide:
            for i in range(lane, filters, WARP):  # 16 rows of filters / 16 chunks
                row, column = i // (filters // 16), i % (filters // 16) * 16
                if first_row + row < count and first_column + column < n:
                    values = load128(words, (at + row * pitch) // 2 + column // 4)
                    store128(out, ((first_row + row) * n + first_column + column) // 4, values)
        else:
            for i in range(lane, 16 * filters // 2, WARP):
                row, column = i // (filters // 2), i % (filters // 2)
                both = shared[at + row * pitch + column]
                to, column = (first_row + row) * n + first_column + 2 * column, first_column + 2 * column
                if first_row + row < count and column < n:
                    out[to] = np.int8(np.uint8(both & np.uint16(255)))
                    if column + 1 < n:
                        out[to + 1] = np.int8(np.uint8(both >> np.uint16(8)))

    return store_rows


@functools.lru_cache(64)
def warpgroups_kernel(tile: Tile, how: str, wide: bool, divided: bool = False) -> typing.Any:
    """The kernel ``(x, border, w, factors, bias, low, out, g, steps, partial, arrivals)``.

    ``wide``: 16 bytes are stored at a time. ``divided``: a block takes ``steps`` of a sum, and the last one of a tile
    adds up what the others have left in ``partial``.
    """
    stages, filters, rows, threads = tile.stages, tile.filters, tile.places, tile.threads
    place = swizzled_place(CHUNKS)
    begin_x, copy_x = gatherer(rows, CHUNKS, threads, place, how)
    first_w, copy_w = copier(filters, CHUNKS, threads, place)
    put_partial, add_partial = partial_sums(filters // 2, threads)
    put, nothing, lines = putter(filters // 2), (i0,) * (filters // 2), threads // CHUNKS
    stage_size, x_size, end_stage = np.uint32(tile.stage), np.uint32(rows * PAIRS), np.uint32(stages * tile.stage)
    flying, store_rows = tile.flying, rows_storer(filters, wide)
    ahead = stages - 1 - flying  # steps that are on their way: with products in flight a stage is read for longer
    pending = ahead - 1
    pitch = filters // 2 + CHUNK  # of the results in shared memory, so that eight rows lie in different banks

    @cuda.jit(launch_bounds=(threads, tile.resident))
    def kernel(x, border, w, factors, bias, low, out, g, steps, partial, arrivals):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        words = cuda.shared.array(0, np.uint32, alignment=1024)  # the same memory
        own_factors, own_bias = cuda.shared.array(filters, np.float32), cuda.shared.array(filters, np.int32)
        before = cuda.shared.array(1, np.uint32)
        n, width = np.int64(factors.size), np.int64(w.shape[1])
        tile, part, parts = np.int64(cuda.blockIdx.x), np.int64(0), np.int64(1)
        if divided:
            parts = (width + steps * PAIRS - 1) // (steps * PAIRS)
            tile, part = tile // parts, tile % parts
        tiles_n = (n + filters - 1) // filters  # blocks of neighbouring numbers gather the same places
        first_row, first_column = tile // tiles_n * rows, tile % tiles_n * filters
        thread = np.uint32(cuda.threadIdx.x)
        warp, lane = np.int64(thread // np.uint32(WARP)), np.int64(thread % np.uint32(WARP))
        mine = np.uint32(warp // 4 * 64 * PAIRS)
        k = np.int32(part * steps * PAIRS)
        corners, term = begin_x(first_row, np.uint32(k // CHUNK), g)
        w_at, w_step, w_left = first_w(np.int64(0), first_column, np.int64(k), width), lines * width, n - first_column
        for i in range(np.int64(thread), filters, threads):
            of = min(first_column + i, n - 1)
            own_factors[i], own_bias[i] = factors[of], bias[of] if bias.size else i0
        coming, end = k, np.int32(min(k + steps * PAIRS, width) if divided else width)
        for stage in range(ahead):
            if coming < end:
                begin, left = np.uint32(np.uint32(stage) * stage_size), np.int32(min(end - coming, PAIRS))
                copy_x(shared, words, begin, x, border, corners, term, g)
                copy_w(shared, np.uint32(begin + x_size), w, w_at, w_step, np.int32(w_left), left)
            commit_copies()
            coming, w_at = np.int32(coming + PAIRS), w_at + PAIRS
            term = further(term, g.next_r, g.next_s, g.next_c, g)
        sums, now = nothing, np.uint32(0)
        into = np.uint32(np.uint32(ahead) * stage_size)
        while k < end:
            wait_copies(pending)  # the oldest tiles are there: those of this thread,
            copies_visible()  # for the tensor cores as well,
            cuda.syncthreads()  # and of all; and everyone has waited for products of the tiles that are overwritten
            sums = multiply_stage(shared, np.uint32(now + mine), np.uint32(now + x_size), sums)
            if coming < end:
                left = np.int32(min(end - coming, PAIRS))
                copy_x(shared, words, into, x, border, corners, term, g)
                copy_w(shared, np.uint32(into + x_size), w, w_at, w_step, np.int32(w_left), left)
            commit_copies()  # also where there is nothing to copy, so that the groups can be counted
            sums = wgmma_wait(flying, sums)
            now, into = np.uint32(now + stage_size), np.uint32(into + stage_size)
            now, into = np.uint32(0) if now == end_stage else now, np.uint32(0) if into == end_stage else into
            k, coming, w_at = np.int32(k + PAIRS), np.int32(coming + PAIRS), w_at + PAIRS
            term = further(term, g.next_r, g.next_s, g.next_c, g)
        sums = wgmma_wait(0, sums)
        wait_copies(0)
        if divided:
            each = threads * filters // 2
            put_partial(partial, (tile * parts + part) * each + np.int64(thread), sums)
            if not is_last_block(arrivals, tile, parts, before):
                return
            for other in range(parts):
                if other != part:
                    sums = add_partial(partial, (tile * parts + other) * each + np.int64(thread), sums)
        else:
            cuda.syncthreads()
        # The stages are free: results take their place.
        at = warp * 16 * pitch
        put(shared, at + lane // 4 * pitch + lane % 4, 8 * pitch, lane % 4 * 2, sums, own_factors, own_bias, low)
        cuda.syncwarp()
        store_rows(out, shared, words, at, first_row + warp * 16, first_column, n, np.int64(g.count))

    return kernel


TILES = Tile(2, 128, 3, 2), Tile(1, 128, 4, 2), Tile(2, 64, 3, 3), Tile(1, 64, 4, 3)


@rung(warpgroups_kernel, *tiled.kernels, *fragments.kernels)
def warpgroups(p):
    """Four warps multiply tiles where they lie in shared memory, 128 bytes of each sum at a time.

    The int8 of a tile go through shared memory, so that a warp stores whole rows of them by 128 bits. Tiles are smaller
    where there are few filters or places. Eight filters or fewer, of 64 terms or fewer, are left to `fragments`. On a
    GPU of another compute capability than 9.0 this is `tiled`.
    Source: PTX ISA, "Asynchronous warpgroup level matrix multiply-accumulate instructions"; chapter 43.

    Leaves: a layer of few places and filters has too few tiles for a large GPU.
    """
    if not elsewhere(p):
        by_warpgroups(p, tile_for(p.layer, device.limits()["multiprocessors"]))


def elsewhere(p: Problem) -> bool:
    """Whether another rung has computed a layer: on another GPU, or where hardly anything of a tile would be used."""
    few = p.layer.k <= MMA_N and p.layer.terms <= 2 * MMA_K
    if few:
        fragments.launch(p)
    elif device.limits()["compute_capability"] != HOPPER:
        tiled.launch(p)
    return few or device.limits()["compute_capability"] != HOPPER


def by_warpgroups(p: Problem, tile: Tile, parts: int = 1) -> None:
    """Launch the kernel of a tile, with sums that are divided into so many parts, or fewer."""
    a, o = p.layer, operands(p, 2 * PAIRS)
    wide, out = a.k % 16 == 0 and device.address(p.result) % 16 == 0, p.result.reshape(-1)
    tiles = blocks(a.n * a.p * a.q, tile.places) * blocks(a.k, tile.filters)
    steps = blocks(blocks(o.w.shape[1], PAIRS), parts)
    parts = blocks(o.w.shape[1], steps * PAIRS)  # fewer, if after rounding up nothing is left for the last one
    partial, arrivals = no_bias(), no_count()
    if parts > 1:
        partial = device.empty((tiles * parts * tile.places * tile.filters,), np.int32, stream=p.stream)
        arrivals = arrivals_for(p.stream)
    given = o.x, o.border, o.w, p.factors, p.bias, p.low, out.view(np.uint32) if wide else out, o.g
    kernel = warpgroups_kernel(tile, o.how, wide, parts > 1)
    kernel[tiles * parts, tile.threads, p.stream, tile.shared(steps)](*given, np.int64(steps), partial, arrivals)


@device.cached(1)
def no_count() -> typing.Any:
    """An empty array."""
    return device.empty(0, np.uint32)


@functools.lru_cache(4096)
def tile_for(a: Layer, multiprocessors: int) -> Tile:
    """The largest tile with which at most a third of the multiprocessors have none, and that is mostly within edges.

    >>> tile_for(Layer(32, 64, 56, 56, 64, 1, 1), 132).filters, tile_for(Layer(1, 512, 7, 7, 512, 1, 1), 132).places
    (64, 64)
    """
    for tile in TILES[:-1]:
        grid = blocks(a.n * a.p * a.q, tile.places) * blocks(a.k, tile.filters)
        if 3 * grid >= 2 * multiprocessors and a.k > tile.filters // 2:
            return tile
    return TILES[-1]


# --------------------------------------------------------------------------------------------- sums shared by blocks

LEAST_STEPS = 9  # of a part of a sum: with fewer the last block takes longer to add up than was gained


@rung(warpgroups_kernel, *tiled.kernels, *fragments.kernels)
def divided(p):
    """Where there are few tiles, several blocks share one: each adds up a part of the products.

    A block leaves its sums in memory, and the last one to arrive adds them up. Sums of integers are exact in any order,
    so the bits are the same whichever block that is. On a GPU of another compute capability than 9.0 this is `tiled`.
    """
    if not elsewhere(p):
        by_warpgroups(p, *parts_for(p.layer, device.limits()["multiprocessors"]))


@functools.lru_cache(4096)
def parts_for(a: Layer, multiprocessors: int) -> tuple[Tile, int]:
    """A tile, and into how many parts its sums are divided.

    >>> parts_for(Layer(32, 64, 56, 56, 64, 3, 3), 132)[1], parts_for(Layer(1, 512, 7, 7, 512, 3, 3), 132)[1]
    (1, 4)
    """
    tile = tile_for(a, multiprocessors)
    tiles = blocks(a.n * a.p * a.q, tile.places) * blocks(a.k, tile.filters)
    return tile, max(1, min(multiprocessors // tiles, blocks(a.terms, 2 * PAIRS) // LEAST_STEPS))


LADDER = (thread_per_element, fragments, tiled, warpgroups, divided)
