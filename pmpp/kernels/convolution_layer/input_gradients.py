"""Gradient of a convolution layer with respect to its input: what a loss says of the outputs, passed back to x.

Chapter: notebooks/76_convolution_gradients.ipynb.  PMPP 4e ch. 16.

Let dy be the gradient of a loss with respect to the layer's output, of shape (N, K, P, Q). By the chain rule the
gradient with respect to x, an array dx of x's shape (N, C, H, W), is a sum over all outputs that x[n, c, h, w] had a
part in. Output (k, p, q) used it with weight w[k, c, r, s] if p u + r d - a = h and q v + s e - b = w, with stride
(u, v), padding (a, b) and dilation (d, e). So

    dx[n, c, h, w] = the sum over these k, r, s of dy[n, k, p, q] w[k, c, r, s]

This takes as many multiply-adds as the layer itself, and for large layers arithmetic is the bound. With stride 1 dx is
a convolution layer again: of dy, with the filters turned by 180 degrees, and with the roles of channels and filters
exchanged. With a larger stride most pairs of a place in x and a tap have no p and q that are whole. The places of x
then fall into classes by the remainders of h + a and w + b, divided by u and v. All places of a class use the same
taps, and the part of dx that they make up is a dense convolution of dy with just these taps (`classes_of`).
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.convolution_layer import by_fft, implicit, winograd
from pmpp.kernels.convolution_layer.definition import MOST, Layer, layer_of, window_of, workspace
from pmpp.kernels.convolution_layer.dispatch import convolution
from pmpp.kernels.convolution_layer.few_channels import WARP, kernel_for, plan_of, spread_kernel
from pmpp.kernels.convolution_layer.gradient_classes import Axis, Class, classes_of, covers, sub_layer
from pmpp.kernels.convolution_layer.implicit_gather import (
    ANY,
    CHANNELS,
    COLUMNS,
    DEPTH,
    FILTERS,
    NOWHERE,
    REGISTERS,
    SIDE,
    THREADS,
    W_TILE,
    X_TILE,
    fetch,
    lane_place,
    multiply_tiles,
    put,
    put_weights,
    u32,
)
from pmpp.kernels.matmul import batched as matmul_batched
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

BLOCK = 256  # threads per block, in kernels whose threads share nothing: any multiple of 32 is right


def reference(dy, w, shape, stride=1, padding=0, dilation=1, groups=1) -> np.ndarray:
    """The gradient in float64, by the chain rule: each output passes its gradient on to all that it was made of."""
    a = layer_of(tuple(shape), w.shape, stride, padding, dilation, groups)
    dx = np.zeros(shape)
    for n, k, p, q in np.ndindex(dy.shape):
        group = k // (a.k // groups)
        for c, r, s in np.ndindex(w.shape[1:]):
            row = p * a.stride.rows + r * a.dilation.rows - a.padding.rows
            column = q * a.stride.columns + s * a.dilation.columns - a.padding.columns
            if 0 <= row < a.h and 0 <= column < a.w:
                dx[n, group * w.shape[1] + c, row, column] += np.float64(dy[n, k, p, q]) * np.float64(w[k, c, r, s])
    return dx


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward layers: ``(dy, w, shape, stride, padding, dilation, groups)``; trailing numbers may be left out."""
    rng = np.random.default_rng(76) if rng is None else rng
    made: dict[str, tuple] = {}

    def add(name: str, shape: tuple, w: tuple, *options: typing.Any) -> None:
        dy = layer_of(shape, w, *options).shape
        made[name] = *(rng.standard_normal(one, dtype=np.float32) for one in (dy, w)), shape, *options

    add("one", (1, 1, 1, 1), (1, 1, 1, 1))
    add("3x3 p1", (1, 3, 6, 8), (4, 3, 3, 3), 1, 1)
    add("1x1", (2, 6, 3, 4), (9, 6, 1, 1))
    add("1x1 s2, some places unused", (1, 20, 5, 6), (8, 20, 1, 1), 2)
    add("3x3 s2 p1, 17 channels", (1, 17, 7, 6), (8, 17, 3, 3), 2, 1)
    add("3x2 s2x3 p1x0 d1x2, 18 channels", (1, 18, 7, 8), (5, 18, 3, 2), (2, 3), (1, 0), (1, 2))
    add("stride and dilation share a factor", (1, 2, 9, 9), (3, 2, 3, 3), (4, 2), 2, 2)
    add("7x7 s2 p3", (1, 2, 9, 10), (3, 2, 7, 7), 2, 3)
    add("7x7 s2 p3, rows in whole vectors", (1, 3, 5, 8), (5, 3, 7, 7), 2, 3)
    add("two groups of four channels, s2", (1, 8, 4, 5), (6, 4, 3, 3), 2, 1, 1, 2)
    add("two groups, s2", (1, 36, 4, 5), (6, 18, 3, 3), 2, 1, 1, 2)
    add("depthwise", (1, 5, 6, 7), (5, 1, 3, 3), 1, 1, 1, 5)
    add("padding beyond the kernel", (1, 1, 3, 4), (2, 1, 2, 2), 1, 3)
    add("padding beyond the kernel, s2", (1, 1, 3, 4), (2, 1, 2, 2), 2, 4)
    add("stride beyond the kernel", (2, 1, 8, 9), (2, 1, 2, 1), (5, 4), (0, 1))
    add("a row", (1, 2, 1, 37), (2, 2, 1, 5), 1, (0, 2))
    add("rows that no filter reaches", (1, 2, 6, 8), (3, 2, 3, 3), 3)
    add("no images", (0, 3, 4, 4), (2, 3, 3, 3))
    dy, w = np.arange(-18, 18, dtype=np.float32).reshape(1, 1, 6, 6), np.zeros((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 2] = 1  # dx is dy, shifted one way; with a filter that is not turned it is shifted the other way
    return made | {"shift": (dy, w, (1, 1, 6, 6), 1, 1)}


def cost(n: int, c: int, h: int, w: int, k: int, r: int = 3, s: int = 3, stride=1, padding=0, dilation=1, groups=1):
    """The arithmetic of the layer itself; dy and w read once, and dx written once."""
    return cost_of(layer_of((n, c, h, w), (k, c // groups, r, s), stride, padding, dilation, groups))


def cost_of(layer: Layer) -> Cost:
    """`cost` of a `Layer`: it moves the same three arrays as the layer, x being replaced by dx."""
    return layer.cost


def tolerance(dy, w, shape, stride=1, padding=0, dilation=1, groups=1) -> np.ndarray:
    """The largest difference from `reference` that is allowed for each element of a float32 result.

    A sum of n products, in any order, is off by at most n 2^-24 times the sum of the terms' sizes, and second-order
    terms are covered by two roundings more. With stride 1 the gradient is a convolution that Winograd's algorithm or
    the Fourier transform may compute: their own bounds, which are larger, then hold.
    """
    a = layer_of(tuple(shape), w.shape, stride, padding, dilation, groups)
    terms = a.k // groups * a.r * a.s
    allowed = (terms + 2) * 2.0**-24 * reference(abs(dy), abs(w), shape, stride, padding, dilation, groups) + 2.0**-149
    if a.stride == (1, 1) and a.n:
        (class_,) = classes_of(a)
        turned = np.ascontiguousarray(
            np.swapaxes(w.reshape(groups, a.k // groups, *w.shape[1:]), 1, 2)[..., ::-1, ::-1]
        ).reshape(a.c, a.k // groups, a.r, a.s)
        sub = sub_layer(a, class_)
        for room in (winograd, by_fft):
            if not room.refuses(sub):
                bound = room.tolerance(dy, turned, None, 1, sub.padding, sub.dilation, groups)
                rows, columns = class_.rows.skip(sub.padding.rows), class_.columns.skip(sub.padding.columns)
                allowed = np.maximum(allowed, bound[:, :, rows : rows + a.h, columns : columns + a.w])
    return allowed


def arguments(dy, w, shape, stride=1, padding=0, dilation=1, groups=1, *, out=None, stream=0) -> Problem:
    """Compute the gradient of a loss with respect to a convolution layer's input from that of its output.

    Args:
        dy: the gradient with respect to the output, of shape (N, K, P, Q), float32, contiguous, of at most 2^31 - 1
            elements, like ``w`` and ``out``.
        w: the layer's filters, of shape (K, C / groups, R, S), float32, contiguous.
        shape: the shape of the layer's input, (N, C, H, W). With a stride several inputs lead to the same P and Q.
        stride, padding, dilation: integers below 2^31, or pairs of them for rows and columns, as of the layer.
        groups: into how many separate layers the channels and the filters are divided.
        out: a float32 device array of that shape, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It is overwritten, not added to. Where zeros around dy
    meet an infinite or NaN weight the gradient may be NaN. Raises TypeError or ValueError that names the argument at
    fault, what it was and what is accepted, and MemoryError if there is no room for a rung's workspace.

    >>> from pmpp.kernels.convolution_layer import input_gradients
    >>> dy, w = np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 2, 2), np.float32)
    >>> input_gradients.gathered(dy, w, (1, 1, 3, 3)).copy_to_host()
    array([[[[1., 2., 1.],
             [2., 4., 2.],
             [1., 2., 1.]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes=np.float32, ndim=4, stream=stream)
    w = device.as_input("w", w, dtypes=np.float32, ndim=4, stream=stream)
    shape = as_shape(shape)
    try:
        layer = layer_of(shape, w.shape, stride, padding, dilation, groups)
    except ValueError as error:  # of x the caller gave the shape alone
        raise ValueError(f"shape{str(error)[1:]}" if str(error).startswith("x ") else str(error)) from None
    if dy.shape != layer.shape:
        numbers = f"stride={stride!r}, padding={padding!r}, dilation={dilation!r}, groups={groups!r}"
        raise ValueError(f"dy must have shape {layer.shape} for shape={shape}, {numbers}, had {dy.shape}")
    for name, one in (("dy", dy.shape), ("w", w.shape), ("shape", shape)):
        if math.prod(one) > MOST:
            raise ValueError(f"{name} must have at most 2^31 - 1 elements, was {one}: take fewer images a call")
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart={"dy": dy, "w": w}, stream=stream)
    return Problem(out, stream=stream, dy=dy, w=w, layer=layer)


def as_shape(shape: typing.Any) -> tuple[int, int, int, int]:
    """``shape`` as four integers from 0 on. Raises ValueError for anything else."""
    given = shape if isinstance(shape, tuple | list) else ()
    whole = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in given)
    if len(given) != 4 or not whole or min(given) < 0:
        raise ValueError(f"shape must be four integers from 0 on, (N, C, H, W), was {shape!r}")
    return tuple(map(int, given))  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------- scatter with atomics


@cuda.jit
def zero_kernel(out, wide):
    """``wide``: out begins at a multiple of 16 bytes."""
    i, zero = cuda.grid(1) * 4, np.float32(0)
    if wide and i + 3 < out.size:
        store128(out, i, (zero, zero, zero, zero))
    else:
        for place in range(i, min(i + 4, out.size)):
            out[place] = zero


def _zero(p: Problem) -> None:
    grid, wide = blocks(p.result.size, 4 * BLOCK), device.address(p.result) % 16 == 0
    zero_kernel[grid, BLOCK, p.stream](p.result.reshape(-1), wide)


@cuda.jit
def scattered_kernel(dy, w, dx, stride, padding, dilation, groups):
    i = cuda.grid(1)
    if i < dy.size:
        q, p = i % dy.shape[3], i // dy.shape[3] % dy.shape[2]
        k, n = i // dy.shape[3] // dy.shape[2] % dy.shape[1], i // dy.shape[3] // dy.shape[2] // dy.shape[1]
        first = k // (dy.shape[1] // groups) * w.shape[1]  # channel of the filter's group
        gradient = dy[n, k, p, q]
        for c in range(w.shape[1]):
            for r in range(w.shape[2]):
                for s in range(w.shape[3]):
                    row = p * stride.rows + r * dilation.rows - padding.rows
                    column = q * stride.columns + s * dilation.columns - padding.columns
                    if 0 <= row < dx.shape[2] and 0 <= column < dx.shape[3]:
                        cuda.atomic.add(dx, (n, first + c, row, column), gradient * w[k, c, r, s])


@rung(zero_kernel, scattered_kernel)
def scattered(p):
    """A thread for each output adds its gradient, times each weight, to the inputs that the weight was multiplied with.

    This is the forward pass run backwards: where that reads x, this adds to dx. Many outputs share an input, so the
    additions must be atomic. They happen in any order, and the result differs in its last bits from run to run.

    Leaves: an atomic addition for each product, and no two runs alike.
    """
    a = p.layer
    _zero(p)
    geometry = a.stride, a.padding, a.dilation, a.groups
    scattered_kernel[blocks(p.dy.size, BLOCK), BLOCK, p.stream](p.dy, p.w, p.result, *geometry)


# ------------------------------------------------------------------------------------------------- one thread per input


@cuda.jit
def gathered_kernel(dy, w, dx, stride, padding, dilation, groups):
    i = cuda.grid(1)
    if i < dx.size:
        column, row = i % dx.shape[3], i // dx.shape[3] % dx.shape[2]
        c, n = i // dx.shape[3] // dx.shape[2] % dx.shape[1], i // dx.shape[3] // dx.shape[2] // dx.shape[1]
        filters = dy.shape[1] // groups
        first = c // w.shape[1] * filters  # filter of the channel's group
        total = np.float32(0)
        for r in range(w.shape[2]):
            down = row + padding.rows - r * dilation.rows  # p times the stride, if a filter put tap r here
            if down >= 0 and down % stride.rows == 0 and down // stride.rows < dy.shape[2]:
                for s in range(w.shape[3]):
                    right = column + padding.columns - s * dilation.columns
                    if right >= 0 and right % stride.columns == 0 and right // stride.columns < dy.shape[3]:
                        for k in range(filters):
                            gradient = dy[n, first + k, down // stride.rows, right // stride.columns]
                            total += gradient * w[first + k, c % w.shape[1], r, s]
        dx[n, c, row, column] = total


@rung(gathered_kernel)
def gathered(p):
    """A thread for each input collects what belongs to it: it asks of each tap which output used it here, if any.

    No two threads write to the same place, so there are no atomics, and two runs give the same bits.

    Leaves: both numbers of every product come through the caches, and a thread's next ones lie a plane and a filter
    farther on.
    """
    a = p.layer
    geometry = a.stride, a.padding, a.dilation, a.groups
    gathered_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.dy, p.w, p.result, *geometry)


# --------------------------------------------------------------------------------------- a matrix product, then col2im

BUDGET = 2**30  # the most bytes of columns at a time, unless one image needs more
TURN, TURN_PITCH = 32, 33  # weights are transposed in squares of TURN x TURN
TAPS = 3  # that a block turns, one after another: with more it waits longer, with fewer it reads less from the cache


class Turn(typing.NamedTuple):
    """What `turn_kernel` is told: of a group's filters and channels, and of which taps it takes. uint32."""

    filters: int
    channels: int
    groups: int
    r: int
    s: int
    first_row: int
    row_step: int
    taps_down: int
    first_column: int
    column_step: int
    taps_across: int


@cuda.jit
def turn_kernel(w, turned, sizes):
    """Write filters (K, C / groups, R, S) as (C, K / groups, taps): roles exchanged, the chosen taps in reverse."""
    tile = cuda.shared.array((TURN, TURN_PITCH), np.float32)
    filters, channels = sizes.filters, sizes.channels
    tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    across, down = np.uint32((channels + TURN - 1) // TURN), np.uint32((filters + TURN - 1) // TURN)
    block = np.uint32(cuda.blockIdx.x)
    c0, block = np.uint32(block % across * TURN), np.uint32(block // across)
    k0, block = np.uint32(block % down * TURN), np.uint32(block // down)
    group, tap = np.uint32(block % sizes.groups), np.uint32(block // sizes.groups * TAPS)
    window, taps = np.uint32(sizes.r * sizes.s), np.uint32(sizes.taps_down * sizes.taps_across)
    end = min(np.uint32(tap + TAPS), taps)
    while tap < end:  # the taps of a filter lie together, so that all but the first come from the cache
        row = sizes.first_row + (sizes.taps_down - 1 - tap // sizes.taps_across) * sizes.row_step
        column = sizes.first_column + (sizes.taps_across - 1 - tap % sizes.taps_across) * sizes.column_step
        at = np.uint32(row * sizes.s + column)
        for i in range(0, TURN, 8):
            k, c = np.uint32(k0 + ty + i), np.uint32(c0 + tx)
            if k < filters and c < channels:
                tile[ty + i, tx] = w[np.uint32(((group * filters + k) * channels + c) * window + at)]
        cuda.syncthreads()
        for i in range(0, TURN, 8):
            c, k = np.uint32(c0 + ty + i), np.uint32(k0 + tx)
            if k < filters and c < channels:
                turned[np.uint32(((group * channels + c) * filters + k) * taps + tap)] = tile[tx, ty + i]
        cuda.syncthreads()
        tap = np.uint32(tap + 1)


@functools.lru_cache(4096)  # as `definition.window_of`
def _turn_of(a: Layer, one: Class) -> Turn:
    chosen = (number for axis in one for number in (axis.first, axis.step, axis.taps))
    return Turn(*map(np.uint32, (a.k // a.groups, a.c // a.groups, a.groups, a.r, a.s, *chosen)))


def turn(p: Problem, turned: typing.Any, one: Class) -> None:
    """Launch `turn_kernel` for the taps of a class."""
    a = p.layer
    squares = blocks(a.k // a.groups, TURN) * blocks(a.c // a.groups, TURN) * a.groups
    grid = squares * blocks(one.rows.taps * one.columns.taps, TAPS)
    turn_kernel[grid, (TURN, 8), p.stream](p.w.reshape(-1), turned, _turn_of(a, one))


class Sizes(typing.NamedTuple):
    """What `col2im_kernel` is told of a layer: int32, named as in `Layer`."""

    images: int
    c: int
    h: int
    w: int
    p: int
    q: int
    r: int
    s: int


@cuda.jit
def col2im_kernel(columns, dx, first_image, sizes, window):
    """A thread for each element of dx adds up the places of the columns that it was copied to. Arrays are flat."""
    i = np.uint32(cuda.grid(1))
    line = np.uint32(i // np.uint32(sizes.w))
    plane = np.uint32(line // np.uint32(sizes.h))  # image and channel
    if plane < np.uint32(sizes.images * sizes.c):
        row = np.int32(line - plane * sizes.h + window.padding.rows)
        column = np.int32(i - line * sizes.w + window.padding.columns)
        total, r = np.float32(0), np.int32(0)
        while r < sizes.r:
            p = np.int32(row // window.stride.rows)
            if row >= 0 and p * window.stride.rows == row and p < sizes.p:
                z, s = column, np.int32(0)
                while s < sizes.s:
                    q = np.int32(z // window.stride.columns)
                    if z >= 0 and q * window.stride.columns == z and q < sizes.q:
                        k = np.uint32((plane * sizes.r + r) * sizes.s + s)
                        total += columns[np.uint32((k * sizes.p + p) * sizes.q + q)]
                    z, s = np.int32(z - window.dilation.columns), np.int32(s + 1)
            row, r = np.int32(row - window.dilation.rows), np.int32(r + 1)
        dx[np.int64(first_image) * sizes.c * sizes.h * sizes.w + i] = total


@cuda.jit
def transpose_kernel(w, across):
    """Write each group's filters, a matrix of K / groups rows, with rows and columns exchanged."""
    i = np.uint32(cuda.grid(1))
    if i < across.size:
        k, rest = np.uint32(i % np.uint32(across.shape[2])), np.uint32(i // np.uint32(across.shape[2]))
        row, group = np.uint32(rest % np.uint32(across.shape[1])), np.uint32(rest // np.uint32(across.shape[1]))
        across[group, row, k] = w[group, k, row]


@rung(transpose_kernel, matmul_batched.kernel_for, col2im_kernel, gathered_kernel)
def by_columns(p):
    """The gradient of im2col: a product gives the gradient of the columns, and "col2im" adds up an element's copies.

    The forward pass is out = W columns. So the gradient of the columns is W^T dy, and an element of x receives the sum
    over all places of the columns where a copy of it stood. Of images that would have more than 2^31 - 1 elements of
    columns each, the gradient is left to `gathered`. Source: Jia and others, "Caffe" (2014).

    Leaves: the columns, up to R S times as large as x, are written and read.
    """
    a = p.layer
    filters, pixels, rows = a.k // a.groups, a.p * a.q, a.groups * a.terms
    limits = [extent + 2 * padding for extent, padding in zip((a.h, a.w), a.padding, strict=True)]
    if rows * pixels > MOST or max(*limits, *a.stride, *a.dilation) > MOST:
        gathered.launch(p)
        return
    images = max(1, min(a.n, BUDGET // (4 * rows * pixels), MOST // (rows * pixels)))
    copies = images if a.groups > 1 else 1
    across = workspace("the transposed weights", (copies * a.groups, a.terms, filters), stream=p.stream)
    columns = workspace("the columns", (images * a.groups, a.terms, pixels), stream=p.stream)
    w = p.w.reshape(a.groups, filters, a.terms)
    for copy in range(copies):
        part = across[copy * a.groups : (copy + 1) * a.groups]
        transpose_kernel[blocks(part.size, BLOCK), BLOCK, p.stream](w, part)
    dy = p.dy.reshape(a.n * a.groups, filters, pixels)
    for first in range(0, a.n, images):
        count = min(images, a.n - first)
        part = columns[: count * a.groups]
        weights = across[: count * a.groups] if a.groups > 1 else across
        some = dy[first * a.groups : (first + count) * a.groups]
        matmul_batched.multiply(weights, some, out=part, stream=p.stream)
        sizes = Sizes(*map(np.int32, (count, a.c, a.h, a.w, a.p, a.q, a.r, a.s)))
        grid = blocks(count * a.c * a.h * a.w, BLOCK)
        more = np.int32(first), sizes, window_of(a)
        col2im_kernel[grid, BLOCK, p.stream](columns.reshape(-1), p.result.reshape(-1), *more)


# -------------------------------------------------------------------------------------- forward convolutions, by class


class Places(typing.NamedTuple):
    """What `place_kernel` is told: the places of a class, where they are in its convolution and in dx. uint32."""

    planes: int  # images times channels
    rows: int
    columns: int
    part_plane: int  # elements of a plane of the convolution's outputs,
    part_w: int  # and of a row of it
    skip: int  # where in a plane the first place is
    plane: int  # the same three of dx
    row: int
    start: int
    step: int  # from one place of a row to the next


@cuda.jit
def place_kernel(part, dx, places):
    """Write the outputs of a class's convolution to their places in dx. Arrays are flat."""
    i = np.uint32(cuda.grid(1))
    line = np.uint32(i // places.columns)
    plane = np.uint32(line // places.rows)
    if plane < places.planes:
        j, row = np.uint32(i - line * places.columns), np.uint32(line - plane * places.rows)
        source = np.uint32(plane * places.part_plane + places.skip + row * places.part_w + j)
        dx[np.uint32(plane * places.plane + places.start + row * places.row + j * places.step)] = part[source]


def _place(p: Problem, part: typing.Any, one: Class, sub: Layer, skip: tuple[int, int]) -> None:
    a, (rows, columns) = p.layer, one
    start = rows.start * a.w + columns.start
    source = sub.p * sub.q, sub.q, skip[0] * sub.q + skip[1]
    target = a.h * a.w, a.stride.rows * a.w, start, a.stride.columns
    places = Places(*(np.uint32(n % 2**32) for n in (a.n * a.c, rows.count, columns.count, *source, *target)))
    grid = blocks(a.n * a.c * rows.count * columns.count, BLOCK)
    place_kernel[grid, BLOCK, p.stream](part.reshape(-1), p.result.reshape(-1), places)


@rung(zero_kernel, turn_kernel, place_kernel, matmul_batched.kernel_for, gathered_kernel)
def by_class(p):
    """The gradient at the places of a class is a forward convolution of dy, which chooses its algorithm by shape.

    A small kernel turns the class's taps by 180 degrees and exchanges channels and filters. With stride 1 there is one
    class, and unless the padding exceeds the kernel the convolution writes into dx itself. So Winograd's algorithm
    and the others, which the reader knows, compute gradients, too.

    Leaves: with a stride each class is a launch of its own, too small for a large GPU, and its result is copied.
    """
    a = p.layer
    if any(math.prod(sub_layer(a, one).shape) > MOST for one in classes_of(a)):  # with the places that it does not need
        gathered.launch(p)
        return
    kept = []
    for one in classes_of(a):
        sub = sub_layer(a, one)
        skip = one.rows.skip(sub.padding.rows), one.columns.skip(sub.padding.columns)
        whole = (one.rows.count, one.columns.count, sub.p, sub.q) == (a.h, a.w, a.h, a.w) and skip == (0, 0)
        turned = workspace("the weights in another order", (a.c, a.k // a.groups, sub.r, sub.s), stream=p.stream)
        part = p.result if whole else workspace("the places of a class", sub.shape, stream=p.stream)
        kept.append((one, sub, skip, turned, part))
    if not covers(a):
        _zero(p)
    for one, sub, skip, turned, part in kept:
        turn(p, turned.reshape(-1), one)
        convolution(p.dy, turned, None, 1, sub.padding, sub.dilation, a.groups, out=part, stream=p.stream)
        if part is not p.result:
            _place(p, part, one, sub, skip)


# ------------------------------------------------------------------------------------------ all classes in one launch

FEW = 16  # channels of a group: with so few, rows of the product's tile, the forward algorithms' other tiles are faster


class Source(typing.NamedTuple):
    """What the kernels are told of dy: uint32. The first three are named as `implicit_gather.fetch` wants them."""

    h: int  # P
    w: int  # Q
    plane: int  # P Q
    group_size: int  # elements of an image's filters in one group,
    size: int  # and of all


class Target(typing.NamedTuple):
    """What the kernels are told of dx, of the weights, and of the tiles: uint32."""

    channels: int  # of a group: rows of its product
    padded_channels: int  # rounded up to whole tiles
    filters: int  # of a group
    groups: int
    row_tiles: int
    w: int
    plane: int  # H W
    stride_rows: int
    stride_columns: int
    window: int  # R S
    s: int
    records: int  # elements of the table of classes


class Record(typing.NamedTuple):
    """A class, as the kernels find it in a table of int32."""

    block: int  # the first of its blocks,
    weights: int  # and of its weights,
    table: int  # and of its entries in the table of places
    columns: int  # of the product: places of the class in all images
    depth: int  # products in an element, rounded up to whole steps
    pixels: int  # places in an image,
    across: int  # and in a row of it
    top: int  # where in dy the first place's taps begin
    left: int
    start_row: int  # the first place in x
    start_column: int
    taps_down: int
    taps_across: int
    first_row: int  # the first tap, and from one tap to the next
    first_column: int
    step_rows: int
    step_columns: int
    apart_rows: int  # from a tap's element of dy to the next tap's
    apart_columns: int


FIELDS = len(Record._fields)
AT = Record(*map(np.uint32, range(FIELDS)))  # where in a record each number stands


class Plan(typing.NamedTuple):
    """How all classes are computed in one launch."""

    records: tuple[Record, ...]
    source: Source
    target: Target
    blocks: int
    weights: int  # elements of workspace for weights,
    places: int  # and for the table of places


@functools.lru_cache(4096)  # as `definition.window_of`
def plan_in_place(a: Layer) -> Plan | None:
    """The plan for a layer, or None if 32 bits cannot count something of it."""
    if implicit.refuses(a) or not a.n:
        return None
    filters, channels = a.k // a.groups, a.c // a.groups
    padded, records, at = round_up(channels, FILTERS), [], [0, 0, 0]
    for rows, columns in classes_of(a):
        depth, pixels = round_up(filters * rows.taps * columns.taps, DEPTH), rows.count * columns.count
        start, first, step, taps, apart = _pairs(rows, columns)
        meets, sizes = (rows.begin, columns.begin), (a.n * pixels, depth, pixels, columns.count)
        records.append(Record(*at, *sizes, *meets, *start, *taps, *first, *step, *apart))
        at[0] += padded // FILTERS * blocks(a.n * pixels, COLUMNS) * a.groups
        at[1] += a.groups * depth * padded
        at[2] += 4 * depth
    if max(at) > MOST:
        return None
    source = a.p, a.q, a.p * a.q, filters * a.p * a.q, a.k * a.p * a.q
    target = channels, padded, filters, a.groups, padded // FILTERS, a.w, a.h * a.w, *a.stride, a.r * a.s, a.s
    made = Source(*map(np.uint32, source)), Target(*map(np.uint32, (*target, FIELDS * len(records))))
    return Plan(tuple(records), *made, *at)


def _pairs(rows: Axis, columns: Axis) -> list[tuple[int, int]]:
    """For rows and columns: the start, the first tap, the step between taps, their number, how far they are apart."""
    return [(getattr(rows, name), getattr(columns, name)) for name in ("start", "first", "step", "taps", "apart")]


@device.cached(64)  # a table of 76 bytes a class for each layer; the networks that the project trains have fewer
def _records(a: Layer) -> typing.Any:
    return device.to_device(np.array(plan_in_place(a).records, np.int32).reshape(-1))


@cuda.jit(device=True)
def record_of(classes, field, i, target):
    """Where in the table the class stands to which block, or weight, number i belongs: ``field`` has the first ones."""
    at = np.uint32(0)
    while at + FIELDS < target.records and i >= np.uint32(classes[np.uint32(at + FIELDS + field)]):
        at = np.uint32(at + FIELDS)
    return at


@cuda.jit
def lay_out_kernel(w, classes, weights, table, source, target, channels):
    """For each class write its taps' weights, padded with zeros, and where in dy each row of the columns lies.

    Weights of neighbouring channels are neighbours. With ``channels`` eight filters of one tap follow each other.
    """
    i = np.uint32(cuda.grid(1))
    if i >= weights.size:
        return
    at = record_of(classes, AT.weights, i, target)
    local = np.uint32(i - np.uint32(classes[at + AT.weights]))
    across, down = np.uint32(classes[at + AT.taps_across]), np.uint32(classes[at + AT.taps_down])
    depth, taps = np.uint32(classes[at + AT.depth]), np.uint32(across * down)
    row, c = np.uint32(local // target.padded_channels), np.uint32(local % target.padded_channels)
    group, row = np.uint32(row // depth), np.uint32(row % depth)
    k, tap = np.uint32(row // taps), np.uint32(row % taps)
    if channels:
        eight = np.uint32(row // DEPTH)
        k, tap = np.uint32(eight // taps * DEPTH + row % DEPTH), np.uint32(eight % taps)
    y, x = np.uint32(tap // across), np.uint32(tap % across)
    value = np.float32(0)
    if c < target.channels and k < target.filters:
        r = classes[at + AT.first_row] + (down - 1 - y) * classes[at + AT.step_rows]
        s = classes[at + AT.first_column] + (across - 1 - x) * classes[at + AT.step_columns]
        filter_ = np.uint32((group * target.filters + k) * target.channels + c)
        value = w[np.uint32(filter_ * target.window + r * target.s + s)]
    weights[i] = value
    if group == 0 and c == 0:
        to = np.uint32(np.uint32(classes[at + AT.table]) + 4 * row)
        y, x = np.uint32(y * classes[at + AT.apart_rows]), np.uint32(x * classes[at + AT.apart_columns])
        table[to] = np.int32(np.uint32(k * source.plane + y * source.w + x))
        table[to + 1] = np.int32(y) if k < target.filters else NOWHERE
        table[to + 2] = np.int32(x)
        table[to + 3] = 0


@cuda.jit(device=True)
def place_in_dx(column, group, classes, at, target):
    """The offset in dx of a column of a class's product, for the group's first channel."""
    pixels, across = np.uint32(classes[at + AT.pixels]), np.uint32(classes[at + AT.across])
    n = np.uint32(column // pixels)
    pixel = np.uint32(column - n * pixels)
    i = np.uint32(pixel // across)
    row = np.uint32(classes[at + AT.start_row] + i * target.stride_rows)
    beside = np.uint32(classes[at + AT.start_column] + (pixel - i * across) * target.stride_columns)
    return np.uint32((n * target.groups + group) * target.channels * target.plane + row * target.w + beside)


@cuda.jit(device=True)
def store_channels(i, tile, dx, y, j0, channel, spot, wanted, target, totals):
    """Store eight channels of the block's tile: those that are number i of the eight of some thread.

    A thread's neighbours in dx belong to other threads, and lie a stride apart. So the results first change places in
    shared memory: then 32 lanes write 32 neighbouring places of a class.
    """
    thread = np.uint32(cuda.threadIdx.x)
    store128(tile, y * COLUMNS + j0, (totals[i, 0], totals[i, 1], totals[i, 2], totals[i, 3]))
    store128(tile, y * COLUMNS + j0 + 16, (totals[i, 4], totals[i, 5], totals[i, 6], totals[i, 7]))
    cuda.syncthreads()
    for row in range(SIDE):
        c = np.uint32(channel + i // 4 * (FILTERS // 2) + row * 4 + i % 4)
        if wanted and c < target.channels:
            dx[np.uint32(spot + c * target.plane)] = tile[np.uint32(row * COLUMNS + thread)]
    cuda.syncthreads()  # all have read the tile before one overwrites it


@cuda.jit(device=True)
def in_place_block(dy, weights, table, classes, dx, source, target, mode):
    w_tile = cuda.shared.array(W_TILE, np.float32, alignment=16)
    x_tile = cuda.shared.array(X_TILE, np.float32, alignment=16)
    totals = cuda.local.array((SIDE, SIDE), np.float32)
    values = cuda.local.array(DEPTH, np.float32)
    thread, block = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockIdx.x)
    at = record_of(classes, AT.block, block, target)
    block = np.uint32(block - np.uint32(classes[at + AT.block]))
    first_channel, block = np.uint32(block % target.row_tiles * FILTERS), np.uint32(block // target.row_tiles)
    columns, depth = np.uint32(classes[at + AT.columns]), np.uint32(classes[at + AT.depth])
    tiles = np.uint32((columns + COLUMNS - 1) // COLUMNS)
    first_column, group = np.uint32(block % tiles * COLUMNS), np.uint32(block // tiles)
    i0, j0 = lane_place()
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    pixels, across = np.uint32(classes[at + AT.pixels]), np.uint32(classes[at + AT.across])
    column = min(np.uint32(first_column + thread), np.uint32(columns - 1))
    n = np.uint32(column // pixels)
    pixel = np.uint32(column - n * pixels)
    i = np.uint32(pixel // across)
    top = np.uint32(i + np.uint32(classes[at + AT.top]))
    left = np.uint32(pixel - i * across + np.uint32(classes[at + AT.left]))
    place = top, left, np.uint32(n * source.size + group * source.group_size + top * source.w + left)
    row, end = np.uint32(np.uint32(classes[at + AT.table]) // 4), depth
    w_step = np.uint32(DEPTH * target.padded_channels)
    w_at = np.uint32(
        np.uint32(classes[at + AT.weights])
        + (group * depth + thread // 16) * target.padded_channels
        + first_channel
        + thread % 16 * 4
    )
    fetch(dy, table, row, place, source, values, mode)
    vector = load128(weights, w_at)
    put(x_tile, values, mode)
    put_weights(w_tile, vector, mode)
    cuda.syncthreads()
    k = np.uint32(DEPTH)
    while k < end:
        w_at = np.uint32(w_at + w_step)
        fetch(dy, table, np.uint32(row + k), place, source, values, mode)
        vector = load128(weights, w_at)
        multiply_tiles(w_tile, x_tile, i0, j0, totals)  # meanwhile the loads are in flight
        cuda.syncthreads()
        put(x_tile, values, mode)
        put_weights(w_tile, vector, mode)
        cuda.syncthreads()
        k = np.uint32(k + DEPTH)
    multiply_tiles(w_tile, x_tile, i0, j0, totals)
    cuda.syncthreads()  # all have read the tile of dy, which is needed again
    y, spot = np.uint32(i0 // 4), place_in_dx(column, group, classes, at, target)
    wanted = first_column + thread < columns
    # Written out: a loop with so much in it is not unrolled, and would keep the totals in memory.
    store_channels(u32(0), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)
    store_channels(u32(1), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)
    store_channels(u32(2), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)
    store_channels(u32(3), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)
    store_channels(u32(4), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)
    store_channels(u32(5), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)
    store_channels(u32(6), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)
    store_channels(u32(7), x_tile, dx, y, j0, first_channel, spot, wanted, target, totals)


@cuda.jit(max_registers=REGISTERS)
def in_place_kernel(dy, weights, table, classes, dx, source, target):
    in_place_block(dy, weights, table, classes, dx, source, target, ANY)


@cuda.jit(max_registers=REGISTERS)
def in_place_by_filters_kernel(dy, weights, table, classes, dx, source, target):
    in_place_block(dy, weights, table, classes, dx, source, target, CHANNELS)


@rung(lay_out_kernel, in_place_kernel, in_place_by_filters_kernel, *by_class.kernels)
def in_place(p):
    """With a stride, the blocks of all classes are one launch of the implicit GEMM, which writes into dx itself.

    The tiles, the gather and the arithmetic are those of `pmpp.kernels.convolution_layer.implicit`. A table says what a
    class is, and blocks with the most products come first. `by_class` computes layers of stride 1, where the forward
    algorithms lack nothing, groups of at most `FEW` channels, and what 32 bits cannot count.

    Leaves: three channels, as in the first layer of a network, fill little of any tile, whose rows are channels.
    """
    a = p.layer
    plan = plan_in_place(a) if a.stride != (1, 1) and a.c // a.groups > FEW else None
    if plan is None:
        by_class.launch(p)
        return
    by_filters = a.k // a.groups % DEPTH == 0
    weights = workspace("the weights in another order", (plan.weights,), stream=p.stream)
    table = workspace("the table of places", (plan.places,), stream=p.stream, dtype=np.int32)
    classes, sizes = _records(a), (plan.source, plan.target)
    if not covers(a):
        _zero(p)
    grid = blocks(plan.weights, BLOCK)
    lay_out_kernel[grid, BLOCK, p.stream](p.w.reshape(-1), classes, weights, table, *sizes, by_filters)
    kernel = in_place_by_filters_kernel if by_filters else in_place_kernel
    kernel[plan.blocks, THREADS, p.stream](p.dy.reshape(-1), weights, table, classes, p.result.reshape(-1), *sizes)


# ---------------------------------------------------------------------------------- all classes in a thread's registers


@rung(spread_kernel, kernel_for, *in_place.kernels)
def few_channels(p):
    """A thread has the sums of all classes and channels at some neighbouring places, and reads each weight once.

    A row of a tile was a channel, and three of them are too few. Here the classes are rows as well. They meet the same
    values of dy, so that one launch reads dy once. The kernel is compiled for the layer's stride, taps and channels:
    see `pmpp.kernels.convolution_layer.few_channels`. `in_place` computes layers of stride 1, with dilation, with more
    than four channels in a group, and with more classes or taps than a thread has registers for.
    """
    a = p.layer
    plan = plan_of(a, device.address(p.dy) % 16 == 0)
    if plan is None:
        in_place.launch(p)
        return
    weights = workspace("the weights in another order", (plan.weights,), stream=p.stream)
    spread_kernel[blocks(plan.weights, BLOCK), BLOCK, p.stream](p.w.reshape(-1), weights, plan.order)
    wide = a.w % 4 == 0 and device.address(p.result) % 16 == 0
    kernel, dy, dx = kernel_for(plan.form), p.dy.reshape(-1), p.result.reshape(-1)
    kernel[plan.blocks, WARP * plan.form.parts, p.stream](dy, weights, dx, plan.sizes, wide)


LADDER = (scattered, gathered, by_columns, by_class, in_place, few_channels)
