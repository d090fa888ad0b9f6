"""Convolution with channels last: images (N, H, W, C) and filters (K, R, S, C), by implicit GEMM.

Chapter: notebooks/66_implicit_gemm.ipynb.  PMPP 4e ch. 16.

The matrices are those of `implicit`, with their sums in another order: over (r, s, c), so that the channels, which are
neighbours in memory, follow each other. A thread gathers eight channels by two loads of 128 bits, and checks once
whether their place lies in the image. The filters are read as they lie, and so is x of a 1 x 1 layer: nothing is
written to memory but the result. A place's outputs for neighbouring filters are neighbours, and are stored by 128 bits.

Only the forward pass is here, and only float32. A group of few filters fills little of a block's tile of 64, so that
depthwise layers are slow. Source: Chetlur et al., "cuDNN: efficient primitives for deep learning" (2014), section 3.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import MOST, Layer, finish, layer_of, no_elements, workspace
from pmpp.kernels.convolution_layer.implicit import refuses
from pmpp.kernels.convolution_layer.implicit_gather import (
    CHANNELS,
    COLUMNS,
    DEPTH,
    FILTERS,
    LEAST_STEPS,
    REGISTERS,
    SIDE,
    THREADS,
    TOGETHER,
    VECTORS,
    W_TILE,
    X_TILE,
    lane_place,
    multiply_tiles,
    put,
    put_weights,
    tile_of,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.rung import Problem, rung
from pmpp.runtime.vector import load128, store128

u32 = np.uint32


def first(x: typing.Any) -> typing.Any:
    """A view of images (N, H, W, C) as (N, C, H, W), or of filters (K, R, S, C) as (K, C, R, S)."""
    return x.transpose((0, 3, 1, 2))


def last(x: typing.Any) -> typing.Any:
    """A view of images (N, C, H, W) as (N, H, W, C), or of filters (K, C, R, S) as (K, R, S, C)."""
    return x.transpose((0, 2, 3, 1))


def reference(
    x: np.ndarray, w: np.ndarray, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False
) -> np.ndarray:
    """The layer's output in float64, one sum of products after another. Arguments as in `arguments`."""
    return last(definition.reference(first(x), first(w), bias, stride, padding, dilation, groups, relu))


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward layers: ``(x, w, bias, stride, padding, dilation, groups, relu)``; options may be left out."""
    rng = np.random.default_rng(66) if rng is None else rng
    made: dict[str, tuple] = {}

    def add(name: str, x: tuple, w: tuple, *options: typing.Any, bias: bool = False) -> None:
        values = rng.standard_normal(x, dtype=np.float32), rng.standard_normal(w, dtype=np.float32)
        made[name] = *values, rng.standard_normal(w[0], dtype=np.float32) if bias else None, *options

    add("one", (1, 1, 1, 1), (1, 1, 1, 1))
    add("3x3 p1, three channels, bias, ReLU", (1, 7, 9, 3), (6, 3, 3, 3), 1, 1, 1, 1, True, bias=True)
    add("3x3 p1, eight channels", (2, 5, 6, 8), (5, 3, 3, 8), 1, 1)
    add("3x2 s2x1 p1x0 d1x2, sixteen channels", (2, 9, 8, 16), (8, 3, 2, 16), (2, 1), (1, 0), (1, 2))
    add("3x2 s2x1 p1x0 d1x2", (2, 9, 8, 2), (3, 3, 2, 2), (2, 1), (1, 0), (1, 2))
    add("1x1 s2, bias", (1, 7, 8, 8), (5, 1, 1, 8), 2, bias=True)
    add("two groups", (1, 6, 5, 16), (8, 3, 3, 8), 1, 1, 1, 2)
    add("depthwise, ReLU", (2, 6, 7, 5), (5, 3, 3, 1), 1, 1, 1, 5, True)
    add("a tile and one", (1, 3, 43, 8), (FILTERS + 1, 1, 1, 8), 1, 0, 1, 1, True)
    add("a tile", (2, 8, 8, 8), (FILTERS, 1, 1, 8))
    add("padding beyond the kernel", (1, 3, 4, 8), (4, 2, 2, 8), 1, 3)
    add("kernel as large as the image", (2, 5, 4, 3), (3, 5, 4, 3))
    add("a divided sum", (1, 2, 2, 16 * DEPTH), (4, 1, 1, 16 * DEPTH), 1, 0, 1, 1, True, bias=True)
    add("a divided sum, 3x3", (1, 3, 2, 48), (6, 3, 3, 48), 1, 1, bias=True)
    add("no images", (0, 4, 4, 3), (2, 3, 3, 3))
    return made


def tolerance(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False) -> np.ndarray:
    """The largest difference from `reference` for each element: that of all layers, for sums in any order."""
    return last(definition.tolerance(first(x), first(w), bias, stride, padding, dilation, groups, relu))


def cost(n: int, h: int, w: int, c: int, k: int, r: int = 3, s: int = 3, stride=1, padding=0, dilation=1, groups=1):
    """As with channels first: the `Layer.cost` of such a layer."""
    return definition.cost(n, c, h, w, k, r, s, stride, padding, dilation, groups)


def arguments(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0) -> Problem:
    """Compute a convolution layer with channels last: a bias plus a sum of products over rows, columns and channels.

    Args:
        x: images of shape (N, H, W, C), float32, contiguous, of at most 2^31 - 1 elements, like ``w`` and ``out``.
            PyTorch's channels-last tensors are such images: ``x.permute(0, 2, 3, 1)``.
        w: filters of shape (K, R, S, C / groups), float32, contiguous: those of a channels-last layer of PyTorch,
            ``weight.permute(0, 2, 3, 1)``.
        bias: a number for each filter, float32 of shape (K,), or None.
        stride, padding, dilation: integers below 2^31, or pairs of them for rows and columns. The image is padded with
            zeros.
        groups: into how many separate layers the channels and the filters are divided. 1 for an ordinary layer.
        relu: whether negative results become 0. A NaN stays NaN.
        out: a float32 device array of shape (N, P, Q, K), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. P and Q are those of a layer with channels first. The
    zeros around the image are multiplied: where they meet an infinite or NaN weight, the output is NaN. The same call
    gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; and MemoryError,
    with the bytes that were wanted, if there is no room for the parts of sums. Then nothing has been written.

    >>> from pmpp.kernels.convolution_layer import implicit_channels_last
    >>> x, w = np.ones((1, 3, 3, 2), np.float32), np.ones((1, 2, 2, 2), np.float32)
    >>> implicit_channels_last.divided(x, w, np.float32([0.5])).copy_to_host()
    array([[[[8.5],
             [8.5]],
    <BLANKLINE>
            [[8.5],
             [8.5]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=4, stream=stream)
    w = device.as_input("w", w, dtypes=np.float32, ndim=4, stream=stream)
    if min(w.shape) < 1:
        raise ValueError(f"w must have no extent of 0, had shape {w.shape}")
    layer = layer_of(first_shape(x.shape), first_shape(w.shape), stride, padding, dilation, groups)
    if bias is None:
        bias = no_elements(np.float32)
    else:
        bias = device.as_input("bias", bias, dtypes=np.float32, shape=(layer.k,), stream=stream)
    shape = layer.n, layer.p, layer.q, layer.k
    for name, extents in (("x", x.shape), ("w", w.shape), ("out", shape)):
        if math.prod(extents) > MOST:
            raise ValueError(
                f"{name} must have at most 2^31 - 1 elements, has shape {extents}: take fewer images a call"
            )
    if why := refuses(layer):
        raise ValueError(why)
    relu = as_flag("relu", relu)
    apart = {"x": x, "w": w, "bias": bias}
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart=apart, stream=stream)
    return Problem(out, stream=stream, x=x, w=w, bias=bias, out=out, layer=layer, relu=relu)


def first_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with channels last, as that with channels first."""
    return shape[0], shape[3], shape[1], shape[2]


# ----------------------------------------------------------------------------------------------------- sizes and places


class Image(typing.NamedTuple):
    """What the kernels are told of x, and of how the kernel moves over it: uint32."""

    h: int
    w: int
    channels: int  # of all groups: elements from one place to the next,
    row: int  # from one row to the next,
    size: int  # and from one image to the next
    pixels: int  # P Q
    q: int
    stride_rows: int
    stride_columns: int
    padding_rows: int
    padding_columns: int


class Walk(typing.NamedTuple):
    """How the terms of a sum follow each other, (r, s, c) with c the fastest: uint32."""

    channels: int  # of a group
    s: int
    dilation_rows: int
    dilation_columns: int
    terms: int


class Matrix(typing.NamedTuple):
    """What the kernels are told of the matrix product and its tiles: uint32. Names as in `implicit_gather.Matrix`."""

    filters: int  # of a group
    columns: int  # N P Q
    groups: int
    row_tiles: int  # of a group
    column_tiles: int
    steps: int  # of DEPTH terms, that a block computes


class Plan(typing.NamedTuple):
    """How a layer is computed."""

    image: Image
    walk: Walk
    matrix: Matrix
    blocks: int  # of the launch
    parts: int  # into which a sum is divided


def plan_of(layer: Layer, divided: bool = False) -> Plan:
    """The sizes of a layer. ``divided``: several blocks may share the sum of a tile."""
    return _plan_of(layer, device.limits()["multiprocessors"] if divided else 0)


@functools.lru_cache(4096)  # as in `pmpp.kernels.convolution_layer.definition.window_of`
def _plan_of(a: Layer, multiprocessors: int) -> Plan:
    filters, columns, steps = a.k // a.groups, a.n * a.p * a.q, blocks(a.terms, DEPTH)
    row_tiles, column_tiles = blocks(filters, FILTERS), blocks(columns, COLUMNS)
    grid, parts = row_tiles * column_tiles * a.groups, 1
    if multiprocessors and grid:
        parts = max(1, min(TOGETHER * multiprocessors // grid, steps // LEAST_STEPS))
        total, steps = steps, blocks(steps, parts)
        parts = blocks(total, steps)  # fewer, if after rounding up nothing is left for the last one
    image = a.h, a.w, a.c, a.w * a.c, a.h * a.w * a.c, a.p * a.q, a.q, *a.stride, *a.padding
    walk = a.c // a.groups, a.s, *a.dilation, a.terms
    matrix = filters, columns, a.groups, row_tiles, column_tiles, steps
    return Plan(Image(*map(u32, image)), Walk(*map(u32, walk)), Matrix(*map(u32, matrix)), grid * parts, parts)


def workspace_bytes(layer: Layer) -> int:
    """Bytes that `divided` takes for the parts of the sums."""
    parts = plan_of(layer, True).parts if layer.n else 1
    return 4 * parts * round_up(math.prod(layer.shape), 4) if parts > 1 else 0


@cuda.jit(device=True)
def place_of(column, group, image, walk):
    """(row, column, offset): which element of x the kernel's corner covers, for a place and a group."""
    n = np.uint32(column // image.pixels)
    place = np.uint32(column - n * image.pixels)
    p = np.uint32(place // image.q)
    top = np.uint32(p * image.stride_rows - image.padding_rows)
    left = np.uint32((place - p * image.q) * image.stride_columns - image.padding_columns)
    at = np.uint32(n * image.size + top * image.row + left * image.channels + group * walk.channels)
    return top, left, at


@cuda.jit(device=True)
def tap_of(k, walk):
    """(r, s, c) of a term."""
    rs = np.uint32(k // walk.channels)
    r = np.uint32(rs // walk.s)
    return r, np.uint32(rs - r * walk.s), np.uint32(k - rs * walk.channels)


@cuda.jit(device=True)
def next_tap(r, s, c, step, walk):
    """The tap ``step`` channels on; it is that of the next place if there are no more channels here."""
    c = np.uint32(c + step)
    if c >= walk.channels:
        c, s = np.uint32(c - walk.channels), np.uint32(s + 1)
        if s == walk.s:
            r, s = np.uint32(r + 1), np.uint32(0)
    return r, s, c


# -------------------------------------------------------------------------------------------------- tiles in registers


@cuda.jit(device=True)
def fetch(x, place, r, s, c, k, image, walk, values, wide):
    """Load eight terms of a thread's place, from (r, s, c) on: term k and those after it."""
    top, left, at = place
    if wide:  # eight channels of one place: one check, two loads
        row, column = np.uint32(top + r * walk.dilation_rows), np.uint32(left + s * walk.dilation_columns)
        here = np.uint32(at + r * walk.dilation_rows * image.row + s * walk.dilation_columns * image.channels + c)
        if row < image.h and column < image.w:
            a, b = load128(x, here), load128(x, np.uint32(here + 4))
            for i in range(4):
                values[i], values[4 + i] = a[i], b[i]
        else:
            for i in range(DEPTH):
                values[i] = 0
    else:
        for i in range(DEPTH):
            row, column = np.uint32(top + r * walk.dilation_rows), np.uint32(left + s * walk.dilation_columns)
            here = np.uint32(at + r * walk.dilation_rows * image.row + s * walk.dilation_columns * image.channels + c)
            inside = row < image.h and column < image.w and np.uint32(k + i) < walk.terms
            values[i] = x[here] if inside else np.float32(0)
            r, s, c = next_tap(r, s, c, np.uint32(1), walk)


@cuda.jit(device=True)
def fetch_weights(w, at, k, walk, wide):
    """Four terms of a filter, as they lie in w."""
    k = np.uint32(k + np.uint32(cuda.threadIdx.x) % 2 * 4)
    if wide:
        return load128(w, np.uint32(at + k))
    last = np.uint32(walk.terms - 1)
    f0 = np.float32(0)
    a, b = w[np.uint32(at + min(k, last))], w[np.uint32(at + min(np.uint32(k + 1), last))]
    c, d = w[np.uint32(at + min(np.uint32(k + 2), last))], w[np.uint32(at + min(np.uint32(k + 3), last))]
    return a if k <= last else f0, b if k + 1 <= last else f0, c if k + 2 <= last else f0, d if k + 3 <= last else f0


@cuda.jit(device=True)
def store_place(j, out, start, bias, filter_, column, group, matrix, relu, wide, totals):
    """Finish and store the outputs of a thread's place number j: four neighbouring filters, and four more."""
    column = np.uint32(column + j // 4 * 16 + j % 4)
    if column >= matrix.columns:
        return
    for piece in range(2):
        f = np.uint32(filter_ + piece * (FILTERS // 2))
        k = np.uint32(group * matrix.filters + f)
        at = start + column * np.uint64(matrix.filters * matrix.groups) + k
        if wide:
            if f < matrix.filters:
                i = 4 * piece
                one, two = finish(totals[i, j], bias, k, relu), finish(totals[i + 1, j], bias, k + 1, relu)
                three, four = finish(totals[i + 2, j], bias, k + 2, relu), finish(totals[i + 3, j], bias, k + 3, relu)
                store128(out, at, (one, two, three, four))
        else:
            for i in range(4):
                if f + i < matrix.filters:
                    out[at + i] = finish(totals[4 * piece + i, j], bias, k + i, relu)


@cuda.jit(device=True)
def block_of_tiles(x, w, bias, out, image, walk, matrix, pitch, wide_out, relu, wide):
    """A block's tile. The next tiles travel from device memory into registers while these are multiplied."""
    w_tile = cuda.shared.array(W_TILE, np.float32, alignment=16)
    x_tile = cuda.shared.array(X_TILE, np.float32, alignment=16)
    totals = cuda.local.array((SIDE, SIDE), np.float32)
    values = cuda.local.array(DEPTH, np.float32)
    thread = np.uint32(cuda.threadIdx.x)
    first_filter, first_column, group, part = tile_of(matrix)
    i0, j0 = lane_place()
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    place = place_of(min(np.uint32(first_column + thread), np.uint32(matrix.columns - 1)), group, image, walk)
    of_filter = min(np.uint32(first_filter + thread // 2), np.uint32(matrix.filters - 1))
    w_at = np.uint32((group * matrix.filters + of_filter) * walk.terms)
    k = np.uint32(part * matrix.steps * DEPTH)
    end = min(np.uint32(k + matrix.steps * DEPTH), walk.terms)
    r, s, c = tap_of(k, walk)
    fetch(x, place, r, s, c, k, image, walk, values, wide)
    vector = fetch_weights(w, w_at, k, walk, wide)
    put(x_tile, values, CHANNELS)
    put_weights(w_tile, vector, VECTORS)
    cuda.syncthreads()
    k = np.uint32(k + DEPTH)
    while k < end:
        if wide:
            r, s, c = next_tap(r, s, c, np.uint32(DEPTH), walk)
        else:
            r, s, c = tap_of(k, walk)
        fetch(x, place, r, s, c, k, image, walk, values, wide)
        vector = fetch_weights(w, w_at, k, walk, wide)
        multiply_tiles(w_tile, x_tile, i0, j0, totals)  # meanwhile the loads are in flight
        cuda.syncthreads()
        put(x_tile, values, CHANNELS)  # their first use: a thread waits here if they have not arrived
        put_weights(w_tile, vector, VECTORS)
        cuda.syncthreads()
        k = np.uint32(k + DEPTH)
    multiply_tiles(w_tile, x_tile, i0, j0, totals)
    filter_, column = np.uint32(first_filter + i0), np.uint32(first_column + j0)
    start = np.uint64(part) * np.uint64(pitch)
    # Written out: a loop with so much in it is not unrolled, and would keep the totals in memory.
    store_place(u32(0), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)
    store_place(u32(1), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)
    store_place(u32(2), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)
    store_place(u32(3), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)
    store_place(u32(4), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)
    store_place(u32(5), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)
    store_place(u32(6), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)
    store_place(u32(7), out, start, bias, filter_, column, group, matrix, relu, wide_out, totals)


@cuda.jit(max_registers=REGISTERS)
def element_each_kernel(x, w, bias, out, image, walk, matrix, pitch, wide_out, relu):
    block_of_tiles(x, w, bias, out, image, walk, matrix, pitch, wide_out, relu, False)


def _launch(kernel: typing.Any, p: Problem, divided: bool) -> None:
    """Launch a kernel, and add up the parts of the sums if there are several."""
    a, stream = p.layer, p.stream
    plan = plan_of(a, divided)
    out = p.out.reshape(-1)
    target, bias, relu, pitch = out, p.bias, p.relu, round_up(out.size, 4)
    if plan.parts > 1:
        target = workspace("the parts of the sums", (plan.parts * pitch,), stream=stream)
        bias, relu = no_elements(np.float32), False
    wide_out = a.k // a.groups % 4 == 0 and device.address(target) % 16 == 0
    sizes = plan.image, plan.walk, plan.matrix, u32(pitch), wide_out, relu
    kernel[plan.blocks, THREADS, stream](p.x.reshape(-1), p.w.reshape(-1), bias, target, *sizes)
    if plan.parts > 1:
        grid = blocks(out.size, THREADS)
        sum_kernel[grid, THREADS, stream](target, p.bias, out, plan.parts, u32(pitch), u32(a.k), p.relu)


@rung(element_each_kernel)
def element_each(p):
    """Tiles as in `implicit.prefetched`, with sums over (r, s, c). A thread gathers eight terms of a place one by one.

    Leaves: two comparisons and a load of 4 bytes for each element, though eight channels lie side by side.
    """
    _launch(element_each_kernel, p, False)


# --------------------------------------------------------------------------------------------------- eight channels


@cuda.jit(max_registers=REGISTERS)
def vectorised_kernel(x, w, bias, out, image, walk, matrix, pitch, wide_out, relu):
    block_of_tiles(x, w, bias, out, image, walk, matrix, pitch, wide_out, relu, True)


def _by_channels(p: Problem, divided: bool) -> None:
    wide = p.layer.c // p.layer.groups % DEPTH == 0 and not any(device.address(array) % 16 for array in (p.x, p.w))
    _launch(vectorised_kernel if wide else element_each_kernel, p, divided)


@rung(vectorised_kernel, element_each_kernel)
def vectorised(p):
    """A thread gathers eight channels of a place by two loads of 128 bits, after one check.

    Where a group's channels are no multiple of 8, or where x or w do not begin at a multiple of 16 bytes, this is
    `element_each`.

    Leaves: a layer of few places and filters has too few blocks for a large GPU.
    """
    _by_channels(p, False)


# --------------------------------------------------------------------------------------------- sums shared by blocks


@cuda.jit
def sum_kernel(partial, bias, out, parts, pitch, filters, relu):
    i = cuda.grid(1)
    if i < out.size:
        total = np.float32(0)
        for part in range(parts):  # always in this order, so that every run gives the same bits
            total += partial[part * np.int64(pitch) + i]
        out[i] = finish(total, bias, np.uint32(np.uint32(i) % filters), relu)


@rung(*vectorised.kernels, sum_kernel)
def divided(p):
    """Where there are few blocks, several share a tile: each adds up a part of the products, as in `implicit.divided`.

    The parts are workspace, and a second kernel adds them up in a fixed order.
    """
    _by_channels(p, True)


LADDER = (element_each, vectorised, divided)
