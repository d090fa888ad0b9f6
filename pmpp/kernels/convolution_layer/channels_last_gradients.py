"""Gradients of a convolution layer with channels last: images (N, H, W, C) and filters (K, R, S, C / groups), float32.

What is computed is that of `pmpp.kernels.convolution_layer.input_gradients` and `weight_gradients`, taught in
notebooks/76_convolution_gradients.ipynb. What differs is which neighbours in memory a thread takes:

- *by input*: as there, the gradient at the places of a class is a forward convolution of dy, here by
  `implicit_channels_last`, or by `depthwise_channels_last` where each channel has its own filter. It wants filters
  whose neighbours in memory are the layer's filters, so the weights of each tap are transposed. With a stride a
  depthwise layer takes one kernel for all classes: it moves little, and copies would be most of its time.
- *by weights*: a product of matrices, dy transposed (K x N P Q) by the columns of x (N P Q x R S C). With channels last
  neighbours in both matrices are neighbours in memory, filters of dy and channels of x. So no tile is transposed.
  A depthwise layer has too few products for a matrix: a thread keeps a window's sums for four channels in registers.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.convolution_layer import depthwise_channels_last as depthwise
from pmpp.kernels.convolution_layer import implicit_channels_last as dense
from pmpp.kernels.convolution_layer.definition import MOST, Layer, layer_of, no_elements, window_of, workspace
from pmpp.kernels.convolution_layer.depthwise_channels_last import CHANNELS, TAPS, keep_weights, strip_of
from pmpp.kernels.convolution_layer.direct_tiles import f0
from pmpp.kernels.convolution_layer.gradient_classes import Class, classes_of, covers, sub_layer
from pmpp.kernels.convolution_layer.implicit import refuses
from pmpp.kernels.convolution_layer.implicit_channels_last import first_shape
from pmpp.kernels.convolution_layer.implicit_gather import (
    COLUMNS,
    DEPTH,
    FILTERS,
    LEAST_STEPS,
    PITCH,
    REGISTERS,
    SIDE,
    THREADS,
    TOGETHER,
    W_TILE,
    X_TILE,
    lane_place,
    multiply_tiles,
    tile_of,
)
from pmpp.kernels.convolution_layer.input_gradients import as_shape, zero_kernel
from pmpp.kernels.convolution_layer.weight_gradients import HEIGHT, add_parts_kernel
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_pair
from pmpp.runtime.rung import Problem
from pmpp.runtime.vector import load128, store128

__all__ = ["input_gradient", "weight_gradient"]

BLOCK = 256  # threads per block, in kernels without tiles
STRIP = 4  # places of a row that a thread computes, of one class
SQUARE, SQUARE_PITCH = 32, 33  # weights are transposed in squares of SQUARE x SQUARE
i32, u32 = np.int32, np.uint32


# ------------------------------------------------------------------------------------------------- weights, transposed


class Turn(typing.NamedTuple):
    """What the kernels that turn weights are told: of a group, and of the taps that a class uses. uint32."""

    filters: int
    channels: int
    r: int
    s: int
    first_row: int
    row_step: int
    taps_down: int
    first_column: int
    column_step: int
    taps_across: int


@cuda.jit(device=True)
def tap_of(tap, sizes):
    """Which tap of a filter becomes number ``tap`` of a class: these stand in reverse."""
    down, across = np.uint32(tap // sizes.taps_across), np.uint32(tap % sizes.taps_across)
    row = np.uint32(sizes.first_row + (sizes.taps_down - 1 - down) * sizes.row_step)
    return np.uint32(row * sizes.s + sizes.first_column + (sizes.taps_across - 1 - across) * sizes.column_step)


@cuda.jit
def turned_kernel(w, turned, sizes):
    """Filters (K, R, S, C / groups) become (C, taps, K / groups), a thread for each weight."""
    i = np.uint32(cuda.grid(1))
    if i < turned.size:
        taps = np.uint32(sizes.taps_down * sizes.taps_across)
        rest, k = np.uint32(i // sizes.filters), np.uint32(i % sizes.filters)
        channel, tap = np.uint32(rest // taps), np.uint32(rest % taps)
        group, c = np.uint32(channel // sizes.channels), np.uint32(channel % sizes.channels)
        filter_ = np.uint32((group * sizes.filters + k) * np.uint32(sizes.r * sizes.s) + tap_of(tap, sizes))
        turned[i] = w[np.uint32(filter_ * sizes.channels + c)]


@cuda.jit
def turned_squares_kernel(w, turned, sizes):
    """The same by squares in shared memory: neighbouring threads read neighbouring channels, and write filters."""
    square = cuda.shared.array((SQUARE, SQUARE_PITCH), np.float32)
    x, y = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    taps = np.uint32(sizes.taps_down * sizes.taps_across)
    across = np.uint32((sizes.channels + SQUARE - 1) // SQUARE)
    down = np.uint32((sizes.filters + SQUARE - 1) // SQUARE)
    block = np.uint32(cuda.blockIdx.x)
    c0, block = np.uint32(block % across * SQUARE), np.uint32(block // across)
    k0, block = np.uint32(block % down * SQUARE), np.uint32(block // down)
    tap, group = np.uint32(block % taps), np.uint32(block // taps)
    for i in range(0, SQUARE, 8):
        k, c = np.uint32(k0 + y + i), np.uint32(c0 + x)
        if k < sizes.filters and c < sizes.channels:
            filter_ = np.uint32((group * sizes.filters + k) * np.uint32(sizes.r * sizes.s) + tap_of(tap, sizes))
            square[y + i, x] = w[np.uint32(filter_ * sizes.channels + c)]
    cuda.syncthreads()
    for i in range(0, SQUARE, 8):
        c, k = np.uint32(c0 + y + i), np.uint32(k0 + x)
        if k < sizes.filters and c < sizes.channels:
            turned[np.uint32(((group * sizes.channels + c) * taps + tap) * sizes.filters + k)] = square[x, y + i]


def _turn(w: typing.Any, turned: typing.Any, a: Layer, one: Class, stream: typing.Any) -> None:
    filters, channels = a.k // a.groups, a.c // a.groups
    chosen = (number for axis in one for number in (axis.first, axis.step, axis.taps))
    sizes = Turn(*map(u32, (filters, channels, a.r, a.s, *chosen)))
    if min(filters, channels) < SQUARE // 2:  # a square would be mostly empty
        turned_kernel[blocks(turned.size, BLOCK), BLOCK, stream](w.reshape(-1), turned.reshape(-1), sizes)
        return
    squares = blocks(filters, SQUARE) * blocks(channels, SQUARE) * one.rows.taps * one.columns.taps * a.groups
    turned_squares_kernel[squares, (SQUARE, 8), stream](w.reshape(-1), turned.reshape(-1), sizes)


# -------------------------------------------------------------------------------------------------- places of a class


class Places(typing.NamedTuple):
    """Where the places of a class are in its convolution, and where in dx: uint32, in elements."""

    vectors: int  # of a place: its channels, or a quarter as many
    columns: int
    rows: int
    images: int
    from_image: int  # of the convolution: from one image to the next,
    from_row: int  # from one row to the next, from one place to the next, and where the first place is
    from_column: int
    from_first: int
    to_image: int  # the same of dx
    to_row: int
    to_column: int
    to_first: int


@cuda.jit
def place_kernel(part, dx, places, wide):
    """Copy the places of a class from its convolution to dx: a thread four channels if ``wide``, else one."""
    i = np.uint32(cuda.grid(1))
    place = np.uint32(i // places.vectors)
    line = np.uint32(place // places.columns)
    n = np.uint32(line // places.rows)
    if n < places.images:
        c = np.uint32(np.uint32(i - place * places.vectors) * u32(4 if wide else 1))
        column, row = np.uint32(place - line * places.columns), np.uint32(line - n * places.rows)
        source = n * places.from_image + row * places.from_row + column * places.from_column
        target = n * places.to_image + row * places.to_row + column * places.to_column
        source, target = np.uint32(source + places.from_first + c), np.uint32(target + places.to_first + c)
        if wide:
            store128(dx, target, load128(part, source))
        else:
            dx[target] = part[source]


def _place(part: typing.Any, out: typing.Any, a: Layer, one: Class, skip: tuple[int, int], stream: typing.Any) -> None:
    rows, columns = one
    _, _, p, q = sub_layer(a, one).shape
    wide = a.c % 4 == 0 and device.address(out) % 16 == 0
    source = p * q * a.c, q * a.c, a.c, (skip[0] * q + skip[1]) * a.c
    row, start = a.w * a.c, (rows.start * a.w + columns.start) * a.c
    target = a.h * row, a.stride.rows * row, a.stride.columns * a.c, start
    vectors = a.c // 4 if wide else a.c
    # A stride may be beyond the image, and its multiple beyond 32 bits: then there is one place, and it is not used.
    numbers = vectors, columns.count, rows.count, a.n, *source, *target
    places = Places(*(u32(number % 2**32) for number in numbers))
    grid = blocks(a.n * rows.count * columns.count * vectors, BLOCK)
    place_kernel[grid, BLOCK, stream](part.reshape(-1), out.reshape(-1), places, wide)


# ------------------------------------------------------------------------------------- depthwise, by input, any stride


class Strips(typing.NamedTuple):
    """How blocks cover dx: int32."""

    width: int  # vectors of a block side by side
    across: int  # blocks for all channels of a place
    line: int  # strips of a row of x
    count: int  # strips of all images


@cuda.jit
def depthwise_input_kernel(dy, w, dx, sizes, window, strips):
    """A thread takes four channels of four places of a row, a stride apart: they have the same taps."""
    weights = cuda.shared.array(0, np.float32, alignment=16)  # the launch says how much
    totals = cuda.local.array((STRIP, 4), np.float32)
    first_channel, lane, strip = strip_of(sizes, strips)
    keep_weights(w, first_channel, sizes, strips, weights)
    if strip >= 0:
        line, step = i32(strip // strips.line), window.stride.columns
        column = i32(strip - np.int64(line) * strips.line)
        classes = min(step, sizes.w)  # that have a place
        column = i32(column // classes * STRIP * step + column % classes)
        n, row = i32(line // sizes.h), i32(line % sizes.h)
        channel = first_channel + 4 * lane
        for j in range(STRIP):
            for e in range(4):
                totals[j, e] = f0
        for r in range(sizes.r):
            down = i32(row + window.padding.rows - r * window.dilation.rows)
            if down >= 0 and down % window.stride.rows == 0 and down // window.stride.rows < sizes.p:
                begin = (np.int64(n) * sizes.p + down // window.stride.rows) * sizes.q * sizes.c + channel
                for s in range(sizes.s):
                    right = i32(column + window.padding.columns - s * window.dilation.columns)
                    if right % step == 0:
                        a, q = load128(weights, i32(r * sizes.s + s) * CHANNELS + 4 * lane), i32(right // step)
                        for j in range(STRIP):
                            if 0 <= q + j < sizes.q:
                                v = load128(dy, begin + (q + j) * np.int64(sizes.c))
                                for e in range(4):
                                    totals[j, e] += v[e] * a[e]
        to = (np.int64(line) * sizes.w + column) * sizes.c + channel
        for j in range(STRIP):
            if column + j * step < sizes.w:
                total = totals[j, 0], totals[j, 1], totals[j, 2], totals[j, 3]
                store128(dx, to + j * np.int64(step) * sizes.c, total)


def _width(a: Layer) -> tuple[int, int]:
    """Vectors of a block side by side, and blocks for all channels: as `depthwise_channels_last.strips_of`."""
    vectors = a.c // 4
    width = blocks(vectors, blocks(vectors, 32))
    return width, blocks(vectors, width)


def _strided(dy: typing.Any, w: typing.Any, out: typing.Any, a: Layer, stream: typing.Any) -> None:
    (width, across), step = _width(a), a.stride.columns
    line = blocks(a.w, STRIP * step) * min(step, a.w)
    count = a.n * a.h * line
    strips = Strips(*map(i32, (width, across, line, count)))
    grid, room = across * blocks(count, BLOCK // width), 4 * a.r * a.s * CHANNELS
    flat = dy.reshape(-1), w.reshape(-1), out.reshape(-1)
    depthwise_input_kernel[grid, BLOCK, stream, room](*flat, depthwise.sizes_of(a), window_of(a), strips)


def own_filters(a: Layer, *arrays: typing.Any) -> bool:
    """Whether each channel has one filter, channels are whole vectors, and the arrays begin at multiples of 16."""
    aligned = not any(device.address(one) % 16 for one in arrays)
    return a.c == a.k == a.groups and a.c % 4 == 0 and aligned


# ------------------------------------------------------------------------------------------------------------ by input


def input_gradient(dy, w, shape, stride=1, padding=0, dilation=1, groups=1, *, out=None, stream=0) -> typing.Any:
    """The gradient of a loss with respect to a layer's input, from that of its output; all with channels last.

    Args:
        dy: the gradient with respect to the output, of shape (N, P, Q, K), float32, contiguous, of at most 2^31 - 1
            elements, like ``w`` and ``out``.
        w: the layer's filters, of shape (K, R, S, C / groups), float32, contiguous.
        shape: the shape of the layer's input, (N, H, W, C). With a stride several inputs lead to the same P and Q.
        stride, padding, dilation: integers below 2^31, or pairs of them for rows and columns, as of the layer.
        groups: into how many separate layers the channels and the filters are divided.
        out: a float32 device array of that shape, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It is overwritten, not added to, and has the same bits in
    every run on one GPU. Where zeros around dy meet an infinite or NaN weight the gradient may be NaN. Raises TypeError
    or ValueError that names the argument at fault, what it was and what is accepted, and MemoryError if there is no
    room for workspace.

    >>> dy, w = np.ones((1, 2, 2, 1), np.float32), np.ones((1, 2, 2, 1), np.float32)
    >>> input_gradient(dy, w, (1, 3, 3, 1)).copy_to_host().reshape(3, 3)
    array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes=np.float32, ndim=4, stream=stream)
    w = device.as_input("w", w, dtypes=np.float32, ndim=4, stream=stream)
    shape = as_shape(shape)
    if min(w.shape) < 1:
        raise ValueError(f"w must have no extent of 0, had shape {w.shape}")
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    a = _layer(dy, shape, w.shape, options, "shape", {"shape": shape})
    subs = [sub_layer(a, one) for one in classes_of(a)]
    _counted(a, subs, w=w.shape, shape=shape)
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart={"dy": dy, "w": w}, stream=stream)
    if not out.size:
        return out
    if a.stride.columns > 1 and a.r * a.s <= TAPS and own_filters(a, dy, out):
        _strided(dy, w, out, a, stream)
        return out
    kept = []
    for one, sub in zip(classes_of(a), subs, strict=True):
        skip = one.rows.skip(sub.padding.rows), one.columns.skip(sub.padding.columns)
        whole = (one.rows.count, one.columns.count, sub.p, sub.q) == (a.h, a.w, a.h, a.w) and skip == (0, 0)
        turned = workspace("the weights in another order", (a.c, sub.r, sub.s, a.k // a.groups), stream=stream)
        part = out if whole else workspace("the places of a class", (a.n, sub.p, sub.q, a.c), stream=stream)
        kept.append((one, sub, skip, turned, part))
    if not covers(a):
        grid = blocks(out.size, 4 * BLOCK)
        zero_kernel[grid, BLOCK, stream](out.reshape(-1), device.address(out) % 16 == 0)
    for one, sub, skip, turned, part in kept:
        _turn(w, turned, a, one, stream)
        bias = no_elements(np.float32)
        p = Problem(part, stream=stream, x=dy, w=turned, bias=bias, out=part, layer=sub, relu=False)
        (depthwise.sliding if sub.c == sub.groups == sub.k else dense.divided).launch(p)
        if part is not out:
            _place(part, out, a, one, skip, stream)
    return out


def _layer(dy: typing.Any, x: tuple, w: tuple, options: dict, name: str, given: dict) -> Layer:
    """The layer, whose output has the shape of dy. Raises as `layer_of` of what the caller gave for x, ``name``."""
    try:
        a = layer_of(first_shape(x), first_shape(w), **options)
    except ValueError as error:
        raise ValueError(f"{name}{str(error)[1:]}" if str(error).startswith("x ") else str(error)) from None
    shape = a.n, a.p, a.q, a.k
    if dy.shape != shape:
        said = ", ".join(f"{name}={value!r}" for name, value in {**given, **options}.items())
        raise ValueError(f"dy must have shape {shape} for {said}, had {dy.shape}")
    return a


def _counted(a: Layer, subs: typing.Sequence[Layer], **shapes: tuple) -> None:
    """Raises ValueError for what 32 bits cannot count."""
    for name, extents in (("dy", (a.n, a.p, a.q, a.k)), *shapes.items()):
        if math.prod(extents) > MOST:
            raise ValueError(f"{name} must make an array of at most 2^31 - 1 elements, makes one of shape {extents}")
    for one in (a, *subs):
        if math.prod(one.shape) > MOST:
            raise ValueError(f"padding must leave at most 2^31 - 1 places to compute, was {tuple(a.padding)}")
        if why := refuses(one):
            raise ValueError(why)


# ---------------------------------------------------------------------------------------------- depthwise, by weights

KEPT = 15  # taps whose sums a thread keeps, for four channels: 60 registers of 128, and most others are loads
SPAN = 12  # columns of x that a strip may meet: with more of them the compiler leaves a loop, and totals in memory


class Strides(typing.NamedTuple):
    """A window along a row, for which a kernel is compiled."""

    rows: int  # of a window that a thread takes at a time
    taps: int  # of each
    strip: int  # neighbouring places of dy that a thread takes at a time
    stride: int
    dilation: int

    @property
    def span(self) -> int:
        """Columns of x that a strip meets, or lie between them."""
        return (self.strip - 1) * self.stride + (self.taps - 1) * self.dilation + 1


class Lines(typing.NamedTuple):
    """How blocks share the sums: int32."""

    width: int  # vectors of a block side by side
    across: int  # blocks for all channels
    chunks: int  # of a window's rows
    line: int  # strips of a row of dy
    span: int  # strips in a part of a sum
    count: int  # strips of all images
    pitch: int  # elements from one part to the next


def rows_from(how: Strides, i: int) -> typing.Any:
    """A device function: a strip's products with the rows of x that meet a window's rows from ``i`` on.

    One calls the next. A loop with so much in it is not unrolled, and would keep the totals in memory.
    """
    _, taps, strip, stride, dilation = how
    span = how.span

    @cuda.jit(device=True)
    def add_row(x, corner, channel, sizes, window, slopes, totals):
        image, top, left = corner
        here = i32(top + i * window.dilation.rows)
        tall = 0 <= here < sizes.h
        begin = (image + (here if tall else 0)) * sizes.w * sizes.c + channel
        for z in range(span):
            inside = tall and 0 <= left + z < sizes.w  # in place of padding the row's first value is loaded
            v = load128(x, begin + (left + z if inside else 0) * np.int64(sizes.c))
            for j in range(strip):
                tap = (z - j * stride) // dilation
                if 0 <= tap < taps and tap * dilation == z - j * stride:
                    for e in range(4):
                        totals[i * taps + tap, e] += slopes[j, e] * (v[e] if inside else f0)

    if i == how.rows - 1:
        return add_row
    others = rows_from(how, i + 1)

    @cuda.jit(device=True)
    def add_this_and_others(x, corner, channel, sizes, window, slopes, totals):
        add_row(x, corner, channel, sizes, window, slopes, totals)
        others(x, corner, channel, sizes, window, slopes, totals)

    return add_this_and_others


@functools.lru_cache(64)  # a compilation each
def depthwise_weights_kernel(how: Strides) -> typing.Any:
    """The kernel for windows along a row as in ``how``, all of whose numbers are constants of its code."""
    rows, taps, strip, stride, _ = how
    kept, height, add_rows = rows * taps, BLOCK // 2, rows_from(how, 0)

    @cuda.jit(max_registers=128)
    def windows_kernel(dy, x, target, sizes, window, lines):
        sums = cuda.shared.array(0, np.float32, alignment=16)  # the launch says how much
        totals, slopes = cuda.local.array((kept, 4), np.float32), cuda.local.array((strip, 4), np.float32)
        thread, block = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockIdx.x)
        width, across, chunks = np.uint32(lines.width), np.uint32(lines.across), np.uint32(lines.chunks)
        band, block = i32(block % across), np.uint32(block // across)
        chunk, part = i32(block % chunks), i32(block // chunks)
        row, lane, high = i32(thread // width), i32(thread % width), i32(BLOCK // width)
        channel, r0 = i32(4 * (band * lines.width + lane)), i32(chunk * rows)
        for t in range(kept):
            for e in range(4):
                totals[t, e] = f0
        if row < high and channel < sizes.c:
            which, end = i32(part * lines.span + row), i32(min((part + 1) * lines.span, lines.count))
            while which < end:
                line = i32(np.uint32(which) // np.uint32(lines.line))
                n, q0 = i32(np.uint32(line) // np.uint32(sizes.p)), i32((which - line * lines.line) * strip)
                top = i32((line - n * sizes.p) * window.stride.rows - window.padding.rows)
                left = i32(q0 * stride - window.padding.columns)
                at = (np.int64(line) * sizes.q + q0) * sizes.c + channel
                for j in range(strip):  # in place of what is beyond the row its first place here is loaded
                    there = q0 + j < sizes.q
                    v = load128(dy, at + (j if there else 0) * np.int64(sizes.c))
                    for e in range(4):
                        slopes[j, e] = v[e] if there else f0
                corner = np.int64(n) * sizes.h, i32(top + r0 * window.dilation.rows), left
                add_rows(x, corner, channel, sizes, window, slopes, totals)
                which = i32(which + high)

        # The rows of threads add up what they have: the upper half stores, and the lower half adds.
        while high > 1:
            half = i32((high + 1) // 2)
            if half <= row < high:
                for t in range(kept):
                    place = 4 * (t * height + (row - half) * lines.width + lane)
                    store128(sums, place, (totals[t, 0], totals[t, 1], totals[t, 2], totals[t, 3]))
            cuda.syncthreads()
            if row + half < high:
                for t in range(kept):
                    v = load128(sums, 4 * (t * height + row * lines.width + lane))
                    for e in range(4):
                        totals[t, e] += v[e]
            cuda.syncthreads()
            high = half
        if row == 0 and channel < sizes.c:
            to = np.int64(part) * lines.pitch + channel * sizes.r * sizes.s
            for t in range(kept):
                tap = r0 * taps + t
                if tap < sizes.r * sizes.s:
                    for e in range(4):
                        target[to + e * sizes.r * sizes.s + tap] = totals[t, e]

    return windows_kernel


def strides_of(a: Layer) -> Strides | None:
    """How the windows of a layer are taken; None if a row of one is too long, or its columns too far apart."""
    if a.s > KEPT:
        return None
    rows = blocks(a.r, blocks(a.r, max(1, KEPT // a.s)))  # as equal as can be
    strips = (4, 2, 1) if a.dilation.columns == 1 else (1,)  # else neighbours share few columns
    ways = (Strides(rows, a.s, strip, a.stride.columns, a.dilation.columns) for strip in strips)
    return next((how for how in ways if how.span <= SPAN), None)


def _windows(dy: typing.Any, x: typing.Any, out: typing.Any, a: Layer, how: Strides, stream: typing.Any) -> None:
    (width, across), chunks, line = _width(a), blocks(a.r, how.rows), blocks(a.q, how.strip)
    high, count = BLOCK // width, a.n * a.p * line
    parts = max(1, min(2 * device.limits()["multiprocessors"] // (across * chunks), count // high))
    span = round_up(blocks(count, parts), high)
    parts = blocks(count, span)
    target, pitch = _parts(out, parts, stream)
    lines = Lines(*map(i32, (width, across, chunks, line, span, count, pitch)))
    room = 16 * how.rows * a.s * (BLOCK // 2)
    launch = depthwise_weights_kernel(how)[across * chunks * parts, BLOCK, stream, room]
    launch(dy.reshape(-1), x.reshape(-1), target, depthwise.sizes_of(a), window_of(a), lines)
    _add(target, out, parts, stream)


def _parts(out: typing.Any, parts: int, stream: typing.Any) -> tuple[typing.Any, int]:
    """Where blocks store: the result, or workspace for as many parts; and how far it is from one part to the next."""
    if parts == 1:
        return out.reshape(-1), out.size
    pitch = round_up(out.size, 4)
    return workspace("the parts of the sums", (parts * pitch,), stream=stream), pitch


def _add(target: typing.Any, out: typing.Any, parts: int, stream: typing.Any) -> None:
    """Add up the parts of the sums, always in the same order."""
    if parts > 1:
        add_parts_kernel[blocks(out.size, 32), (32, HEIGHT), stream](target, out.reshape(-1), parts)


# ------------------------------------------------------------------------------------------- a product, by weights


class Product(typing.NamedTuple):
    """What the kernels are told of the matrix product. uint32; the first four as `implicit_gather.tile_of` wants."""

    groups: int
    row_tiles: int  # of a group's filters
    column_tiles: int  # of R S times a group's channels
    filters: int  # of a group
    columns: int
    channels: int  # of a group
    s: int
    dilation_rows: int
    dilation_columns: int
    p: int
    places: int  # N P Q: terms of a sum
    span: int  # of these in a part, whole steps of DEPTH
    pitch: int  # elements from one part to the next


@cuda.jit(device=True)
def columns_of(column, group, image, product, down, right, offsets, wide):
    """Which element of x, behind a window's corner, belongs to each of a thread's eight columns.

    Columns beyond the last one read what a larger window would. They are not stored.
    """
    for piece in range(2):
        for e in range(4):
            if e == 0 or not wide:
                at, j = np.uint32(column + piece * (COLUMNS // 2) + e), piece * 4 + e
                tap = np.uint32(at // product.channels)
                r = np.uint32(tap // product.s)
                down[j] = np.uint32(r * product.dilation_rows)
                right[j] = np.uint32((tap - r * product.s) * product.dilation_columns)
                c = np.uint32(group * product.channels + at - tap * product.channels)
                offsets[j] = np.uint32(down[j] * image.row + right[j] * image.channels + c)


@cuda.jit(device=True)
def fetch(dy, x, term, corner, end, filter_, group, image, product, down, right, offsets, values, wide):
    """This thread's share of a step: of one place four filters of dy, and eight columns of x into ``values``."""
    top, left, at = corner
    here = term < end
    k = np.uint32(group * product.filters + filter_)
    place = np.uint32(term * np.uint32(product.filters * product.groups) + k)
    for piece in range(2):
        for e in range(4):
            j = piece * 4 + (0 if wide else e)
            inside = here and np.uint32(top + down[j]) < image.h and np.uint32(left + right[j]) < image.w
            if wide:
                if e == 0:
                    if inside:
                        v = load128(x, np.uint32(at + offsets[j]))
                        values[j], values[j + 1], values[j + 2], values[j + 3] = v[0], v[1], v[2], v[3]
                    else:
                        values[j], values[j + 1], values[j + 2], values[j + 3] = f0, f0, f0, f0
            else:
                values[j] = x[np.uint32(at + offsets[j])] if inside else f0
    if wide:
        if here and filter_ < product.filters:
            return load128(dy, place)
        return f0, f0, f0, f0
    last = product.filters
    return (
        dy[place] if here and filter_ < last else f0,
        dy[place + u32(1)] if here and filter_ + 1 < last else f0,
        dy[place + u32(2)] if here and filter_ + 2 < last else f0,
        dy[place + u32(3)] if here and filter_ + 3 < last else f0,
    )


@cuda.jit(device=True)
def put(w_tile, x_tile, vector, values):
    """A thread's place is row thread // 16 of both tiles."""
    thread = np.uint32(cuda.threadIdx.x)
    row, across = np.uint32(thread // 16), np.uint32(thread % 16 * 4)
    store128(w_tile, np.uint32(row * PITCH + across), vector)
    store128(x_tile, np.uint32(row * COLUMNS + across), (values[0], values[1], values[2], values[3]))
    more = values[4], values[5], values[6], values[7]
    store128(x_tile, np.uint32(row * COLUMNS + COLUMNS // 2 + across), more)


@cuda.jit(device=True)
def store_filter(i, target, start, filter_, column, product, wide, totals):
    """Store the sums of a thread's filter number i."""
    filter_ = np.uint32(filter_ + i // 4 * (FILTERS // 2) + i % 4)
    if filter_ >= product.filters:
        return
    row = start + filter_ * np.uint64(product.columns)
    for piece in range(2):
        j, begin = piece * 4, np.uint32(column + piece * 16)
        if wide:
            if begin < product.columns:
                store128(target, row + begin, (totals[i, j], totals[i, j + 1], totals[i, j + 2], totals[i, j + 3]))
        else:
            for e in range(4):
                if begin + e < product.columns:
                    target[row + begin + e] = totals[i, j + e]


@cuda.jit(device=True)
def corner_of(n, p, q, image):
    """(row, column, offset): the element of x that a window's corner covers at a place of the output."""
    top = np.uint32(p * image.stride_rows - image.padding_rows)
    left = np.uint32(q * image.stride_columns - image.padding_columns)
    return top, left, np.uint32(n * image.size + top * image.row + left * image.channels)


@cuda.jit(device=True)
def block_of_weights(dy, x, target, image, product, wide):
    """A block's tile of sums over a part of the places. While one step is multiplied the next one's loads travel."""
    w_tile = cuda.shared.array(W_TILE, np.float32, alignment=16)
    x_tile = cuda.shared.array(X_TILE, np.float32, alignment=16)
    totals, values = cuda.local.array((SIDE, SIDE), np.float32), cuda.local.array(SIDE, np.float32)
    down, right = cuda.local.array(SIDE, np.uint32), cuda.local.array(SIDE, np.uint32)
    offsets = cuda.local.array(SIDE, np.uint32)
    thread = np.uint32(cuda.threadIdx.x)
    first_filter, first_column, group, part = tile_of(product)
    i0, j0 = lane_place()
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    columns_of(np.uint32(first_column + thread % 16 * 4), group, image, product, down, right, offsets, wide)
    filter_ = np.uint32(first_filter + thread % 16 * 4)
    begin = np.uint32(part * product.span)
    end = min(np.uint32(begin + product.span), product.places)
    term = np.uint32(begin + thread // 16)
    n = np.uint32(term // image.pixels)
    rest = np.uint32(term - n * image.pixels)
    p = np.uint32(rest // image.q)
    q = np.uint32(rest - p * image.q)
    corner = corner_of(n, p, q, image)
    vector = fetch(dy, x, term, corner, end, filter_, group, image, product, down, right, offsets, values, wide)
    put(w_tile, x_tile, vector, values)
    cuda.syncthreads()
    step = np.uint32(begin + DEPTH)
    while step < end:
        term, q = np.uint32(term + DEPTH), np.uint32(q + DEPTH)
        while q >= image.q:  # the place DEPTH further on
            q, p = np.uint32(q - image.q), np.uint32(p + 1)
            if p == product.p:
                p, n = np.uint32(0), np.uint32(n + 1)
        corner = corner_of(n, p, q, image)
        vector = fetch(dy, x, term, corner, end, filter_, group, image, product, down, right, offsets, values, wide)
        multiply_tiles(w_tile, x_tile, i0, j0, totals)  # meanwhile the loads are in flight
        cuda.syncthreads()
        put(w_tile, x_tile, vector, values)  # their first use: a thread waits here if they have not arrived
        cuda.syncthreads()
        step = np.uint32(step + DEPTH)
    multiply_tiles(w_tile, x_tile, i0, j0, totals)
    start = np.uint64(part) * np.uint64(product.pitch) + np.uint64(group * product.filters) * np.uint64(product.columns)
    filter_, column = np.uint32(first_filter + i0), np.uint32(first_column + j0)
    # Written out: a loop with so much in it is not unrolled, and would keep the totals in memory.
    store_filter(u32(0), target, start, filter_, column, product, wide, totals)
    store_filter(u32(1), target, start, filter_, column, product, wide, totals)
    store_filter(u32(2), target, start, filter_, column, product, wide, totals)
    store_filter(u32(3), target, start, filter_, column, product, wide, totals)
    store_filter(u32(4), target, start, filter_, column, product, wide, totals)
    store_filter(u32(5), target, start, filter_, column, product, wide, totals)
    store_filter(u32(6), target, start, filter_, column, product, wide, totals)
    store_filter(u32(7), target, start, filter_, column, product, wide, totals)


@cuda.jit(max_registers=REGISTERS)
def weights_kernel(dy, x, target, image, product):
    block_of_weights(dy, x, target, image, product, False)


@cuda.jit(max_registers=REGISTERS)
def weights_by_vectors_kernel(dy, x, target, image, product):
    block_of_weights(dy, x, target, image, product, True)


def _product(dy: typing.Any, x: typing.Any, out: typing.Any, a: Layer, stream: typing.Any) -> None:
    filters, channels, total = a.k // a.groups, a.c // a.groups, a.n * a.p * a.q
    columns = a.r * a.s * channels
    row_tiles, column_tiles, steps = blocks(filters, FILTERS), blocks(columns, COLUMNS), blocks(total, DEPTH)
    grid = row_tiles * column_tiles * a.groups
    parts = max(1, min(TOGETHER * device.limits()["multiprocessors"] // grid, steps // LEAST_STEPS))
    span = blocks(steps, parts) * DEPTH
    parts = blocks(total, span)
    target, pitch = _parts(out, parts, stream)
    wide = filters % 4 == 0 and channels % 4 == 0 and not any(device.address(one) % 16 for one in (dy, x, target))
    image = dense.plan_of(a).image
    numbers = filters, columns, channels, a.s, *a.dilation, a.p, total, span, pitch
    product = Product(*map(u32, (a.groups, row_tiles, column_tiles, *numbers)))
    kernel = weights_by_vectors_kernel if wide else weights_kernel
    kernel[grid * parts, THREADS, stream](dy.reshape(-1), x.reshape(-1), target, image, product)
    _add(target, out, parts, stream)


def weight_gradient(dy, x, kernel_size, stride=1, padding=0, dilation=1, groups=1, *, out=None, stream=0) -> typing.Any:
    """The gradient of a loss with respect to a layer's weights, from that of its output; all with channels last.

    Args:
        dy: the gradient with respect to the output, of shape (N, P, Q, K), float32, contiguous, of at most 2^31 - 1
            elements, like ``x`` and ``out``.
        x: the layer's input, of shape (N, H, W, C), float32, contiguous.
        kernel_size: rows and columns of a filter, (R, S), or one integer for both.
        stride, padding, dilation: integers below 2^31, or pairs of them for rows and columns, as of the layer.
        groups: into how many separate layers the channels and the filters are divided.
        out: a float32 device array of shape (K, R, S, C / groups), apart from dy and x in memory, or None to allocate
            one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It is overwritten, not added to; without images it is 0.
    It has the same bits in every run on one GPU. Where zeros around the image meet an infinite or NaN element of dy the
    gradient may be NaN. Raises as `input_gradient`.

    >>> dy, x = np.ones((1, 2, 2, 1), np.float32), np.arange(9, dtype=np.float32).reshape(1, 3, 3, 1)
    >>> weight_gradient(dy, x, 2).copy_to_host().reshape(2, 2)
    array([[ 8., 12.],
           [20., 24.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes=np.float32, ndim=4, stream=stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=4, stream=stream)
    kernel, parts = as_pair("kernel_size", kernel_size, 1), as_integer("groups", groups, 1)
    for name, what, array in (("dy", "filters", dy), ("x", "channels", x)):
        if array.shape[3] < 1:
            raise ValueError(f"{name} must have {what}, had shape {array.shape}")
        if array.shape[3] % parts:
            raise ValueError(f"groups must divide the {array.shape[3]} {what} of {name}, was {groups!r}")
    shape = dy.shape[3], *kernel, x.shape[3] // parts
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": parts}
    a = _layer(dy, x.shape, shape, options, "x", {"kernel_size": kernel_size})
    _counted(a, (), x=x.shape, kernel_size=shape)
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart={"dy": dy, "x": x}, stream=stream)
    if not a.n:
        zero_kernel[blocks(out.size, 4 * BLOCK), BLOCK, stream](out.reshape(-1), device.address(out) % 16 == 0)
    elif own_filters(a, dy, x) and (how := strides_of(a)):
        _windows(dy, x, out, a, how, stream)
    else:
        _product(dy, x, out, a, stream)
    return out
