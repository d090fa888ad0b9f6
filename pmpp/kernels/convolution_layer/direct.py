"""Direct convolution: each output as the sum that defines it, in the order of the definition.

Chapter: notebooks/62_direct_convolution.ipynb.  PMPP 4e ch. 16.

An output is a sum of C R S products. Each element of x takes part in the outputs of K filters at up to R S places of
the kernel, and each weight in every pixel of every image. The first rungs fetch both numbers for every product; the
later ones fetch them once for many products. They stage them in shared memory, then keep 8 filters times 8 pixels of a
thread in registers, and at last slide along a row, where neighbouring pixels share elements of x.

The algorithm computes every layer and needs no workspace. It is the one to take for layers of few channels, or of one
channel per group: there a matrix product reuses too little to pay.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import Layer, Problem, finish
from pmpp.kernels.convolution_layer.direct_tiles import (  # fmt: skip
    WARP,
    Style,
    block_place,
    f0,
    fill,
    for_kernels,
    lane_place,
    numbers_of,
    slide_row,
    store,
    store_each,
    store_rows,
    tile_of,
    time_of,
)
from pmpp.runtime import device
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128

BLOCK = 256  # threads per block, in kernels whose threads share nothing: any multiple of 32 is right

reference = definition.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Shared awkward layers, and some at the edges of tiles and of segments of a row of taps."""
    made = definition.inputs(rng)
    for name in ("many channels", "many filters", "7x7 s2 p3", "kernel as large as the image"):
        del made[name]  # these take the interpreter long: its tests reach chunks and edges by smaller ones
    rng = np.random.default_rng(7) if rng is None else rng

    def add(name: str, x: tuple, w: tuple, *options: typing.Any) -> None:
        made[name] = *(rng.standard_normal(shape, dtype=np.float32) for shape in (x, w)), None, *options

    add("7x7 s2, one channel", (1, 1, 9, 10), (2, 1, 7, 7), 2, 3)
    add("nine taps a row, s1x2", (1, 1, 5, 24), (2, 1, 2, 9), (1, 2), (0, 4))
    add("six taps a row", (1, 1, 4, 20), (9, 1, 2, 6), 1, (0, 2))
    add("depthwise s2", (1, 3, 9, 8), (3, 1, 3, 3), 2, 1, 1, 3)
    add("depthwise 5x5", (1, 2, 5, 9), (2, 1, 5, 5), 1, 2, 1, 2)
    add("a tile of columns and one", (1, 1, 3, 33), (8, 1, 3, 3), 1, 1)
    add("taps too far apart for shared memory", (1, 1, 1, 12902), (2, 1, 1, 130), 1, 0, (1, 100))
    return made


tolerance = definition.tolerance
cost = definition.cost
arguments = definition.arguments


def refuses(layer: Layer) -> str | None:
    """Why this algorithm cannot compute a layer; None, since it can compute all."""
    return None


def workspace_bytes(layer: Layer) -> int:
    """Bytes of device memory besides the arguments and the result: none."""
    return 0


# ----------------------------------------------------------------------------------------------- one thread per output


@cuda.jit
def naive_kernel(x, w, bias, out, relu, stride, padding, dilation, groups):
    i = cuda.grid(1)
    if i < out.size:
        q, p = i % out.shape[3], i // out.shape[3] % out.shape[2]
        k, n = i // out.shape[3] // out.shape[2] % out.shape[1], i // out.shape[3] // out.shape[2] // out.shape[1]
        first = k // (out.shape[1] // groups) * w.shape[1]  # channel of the filter's group
        total = np.float32(0)
        for c in range(w.shape[1]):
            for r in range(w.shape[2]):
                for s in range(w.shape[3]):
                    row = p * stride.rows + r * dilation.rows - padding.rows
                    column = q * stride.columns + s * dilation.columns - padding.columns
                    if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                        total += x[n, first + c, row, column] * w[k, c, r, s]
        out[n, k, p, q] = finish(total, bias, k, relu)


@rung(naive_kernel)
def naive(p):
    """One thread for each output goes through the seven indices of the definition.

    As in `reference`, a product with padding is left out, not computed with 0: an infinite or NaN weight does no harm
    there. The rungs after `hoisted` multiply the zeros. Source: PMPP 4e section 16.3.

    Leaves: every product pays for two comparisons and for index arithmetic in 64 bits.
    """
    a = p.layer
    geometry = a.stride, a.padding, a.dilation, a.groups
    naive_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.x, p.w, p.bias, p.result, p.relu, *geometry)


# ------------------------------------------------------------------------------------------- bounds before the loops


@cuda.jit(device=True)
def within(start, step, count, extent):
    """Of the places start, start + step, ..., ``count`` of them: the first in range(extent), and one past the last."""
    first = 0 if start >= 0 else (-start + step - 1) // step
    return np.int32(first), np.int32(min(count, max((extent - start + step - 1) // step, first)))


@cuda.jit
def hoisted_kernel(x, w, bias, out, relu, stride, padding, dilation, groups):
    i = np.uint32(cuda.grid(1))
    if i < out.size:
        line = np.uint32(i // np.uint32(out.shape[3]))
        plane = np.uint32(line // np.uint32(out.shape[2]))
        n = np.uint32(plane // np.uint32(out.shape[1]))
        q, p, k = i - line * out.shape[3], line - plane * out.shape[2], np.uint32(plane - n * out.shape[1])
        first = np.uint32(k // np.uint32(out.shape[1] // groups)) * w.shape[1]
        top, left = np.int32(p * stride.rows - padding.rows), np.int32(q * stride.columns - padding.columns)
        r_begin, r_end = within(top, np.int32(dilation.rows), w.shape[2], x.shape[2])
        s_begin, s_end = within(left, np.int32(dilation.columns), w.shape[3], x.shape[3])
        total = np.float32(0)
        c = np.uint32(0)
        while c < w.shape[1]:
            r = r_begin
            while r < r_end:
                row = np.uint32(top + r * dilation.rows)
                s = s_begin
                while s < s_end:
                    column = np.uint32(left + s * dilation.columns)
                    total += x[n, np.uint32(first + c), row, column] * w[k, c, np.uint32(r), np.uint32(s)]
                    s += 1
                r += 1
            c += 1
        out[n, k, np.uint32(p), np.uint32(q)] = finish(total, bias, k, relu)


@rung(hoisted_kernel)
def hoisted(p):
    """A thread finds out before its loops which taps lie inside the image, and counts in 32 bits.

    As in `naive`, a product with padding is left out: an infinite or NaN weight does no harm there.

    Leaves: each product fetches its two numbers through the caches.
    """
    a = p.layer
    geometry = a.stride, a.padding, a.dilation, a.groups
    hoisted_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.x, p.w, p.bias, p.result, p.relu, *geometry)


# ---------------------------------------------------------------------------------------------------- in shared memory

ONE = Style(filters=1, pieces=1)


@cuda.jit
def tiled_kernel(x, w, bias, out, relu, sizes, window, tile):
    stage = cuda.shared.array(0, np.float32)  # the launch says how much
    place, (y, z, f) = block_place(sizes, tile), lane_place(tile)
    total = np.float32(0)
    c = np.int32(0)
    while c < sizes.group_channels:
        channels, r = np.int32(min(tile.channels, sizes.group_channels - c)), np.int32(0)
        while r < sizes.r:
            rows = np.int32(min(tile.kernel_rows, sizes.r - r))
            patch = fill(stage, x, w, place, c, r, channels, rows, sizes, window, tile)
            cuda.syncthreads()  # the chunk is whole before a thread reads it
            if y < tile.down:
                total = add_chunk(stage, patch, y, z, f, channels, rows, sizes, window, tile, total)
            cuda.syncthreads()  # all threads have read it before one overwrites it
            r = np.int32(r + rows)
        c = np.int32(c + channels)
    if y < tile.down:
        n, group, k, p, q = place
        store(out, bias, relu, n, group, k + f, p + y, q + z, total, sizes)


@cuda.jit(device=True)
def add_chunk(stage, patch, y, z, f, channels, rows, sizes, window, tile, total):
    weight, c = f, np.int32(0)
    while c < channels:
        r = np.int32(0)
        while r < rows:
            at = np.int32(
                patch
                + (c * tile.lines + y * window.stride.rows + r * window.dilation.rows) * tile.pitch
                + z * window.stride.columns
            )
            s = np.int32(0)
            while s < sizes.s:
                total += stage[np.uint32(at)] * stage[np.uint32(weight)]
                at, weight, s = (
                    np.int32(at + window.dilation.columns),
                    np.int32(weight + tile.weight_pitch),
                    np.int32(s + 1),
                )
            r = np.int32(r + 1)
        c = np.int32(c + 1)
    return total


def _launch(kernel: typing.Any, p: Problem, style: Style, *more: typing.Any) -> bool:
    """Launch the kernel if a tile fits in shared memory; whether one does."""
    a = p.layer
    tile = tile_of(a, style)
    if tile is None:
        return False
    configuration = tile.grid(a), WARP * tile.warps, p.stream, 4 * tile.staged(a)
    kernel[configuration](*_flat(p), p.relu, *numbers_of(a), for_kernels(tile, a), *more)
    return True


def _flat(p: Problem) -> tuple:
    return p.x.reshape(-1), p.w.reshape(-1), p.bias, p.result.reshape(-1)


@rung(tiled_kernel, hoisted_kernel)
def tiled(p):
    """A block stages in shared memory its weights and the part of x that its pixels see, some channels at a time.

    The zeros around the image are staged and multiplied, too. A layer of which not even one row of a kernel fits there
    is left to `hoisted`.
    Source: PMPP 4e section 7.5, with several channels.

    Leaves: two loads from shared memory for each multiply-add.
    """
    if not _launch(tiled_kernel, p, ONE):
        hoisted.launch(p)


# -------------------------------------------------------------------------------------------------------- in registers

FILTERS = PIXELS = 8  # of a thread: 64 sums, which leave registers for the factors within the 128 that it may have
SPREAD = Style(FILTERS, 1, spread=PIXELS)


@cuda.jit(max_registers=128)
def register_tiled_kernel(x, w, bias, out, relu, sizes, window, tile):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((FILTERS, PIXELS), np.float32)
    for i in range(FILTERS):
        for j in range(PIXELS):
            totals[i, j] = 0
    place, (y, z, f) = block_place(sizes, tile), lane_place(tile)
    c = np.int32(0)
    while c < sizes.group_channels:
        channels, r = np.int32(min(tile.channels, sizes.group_channels - c)), np.int32(0)
        while r < sizes.r:
            rows = np.int32(min(tile.kernel_rows, sizes.r - r))
            patch = fill(stage, x, w, place, c, r, channels, rows, sizes, window, tile)
            cuda.syncthreads()
            if y < tile.down:
                add_products(stage, patch, y, z, f, channels, rows, sizes, window, tile, totals)
            cuda.syncthreads()
            r = np.int32(r + rows)
        c = np.int32(c + channels)
    if y < tile.down:
        _, _, k, _, _ = place
        store_each(out, bias, relu, place, np.int32(k + FILTERS * f), y, z, totals, sizes, tile)


@cuda.jit(device=True)
def add_products(stage, patch, y, z, f, channels, rows, sizes, window, tile, totals):
    weight, apart, c = np.int32(FILTERS * f), np.int32(tile.across * window.stride.columns), np.int32(0)
    while c < channels:
        r = np.int32(0)
        while r < rows:
            at = np.int32(
                patch
                + (c * tile.lines + y * window.stride.rows + r * window.dilation.rows) * tile.pitch
                + z * window.stride.columns
            )
            s = np.int32(0)
            while s < sizes.s:
                add_tap(stage, at, apart, weight, totals)
                at, weight, s = (
                    np.int32(at + window.dilation.columns),
                    np.int32(weight + tile.weight_pitch),
                    np.int32(s + 1),
                )
            r = np.int32(r + 1)
        c = np.int32(c + 1)


@cuda.jit(device=True)
def add_tap(stage, at, apart, weight, totals):
    """Add 64 products, from 8 loads of x and two loads of 4 weights each."""
    a, b = load128(stage, weight), load128(stage, weight + 4)
    for j in range(PIXELS):
        value = stage[np.uint32(at + j * apart)]
        for i in range(4):
            totals[i, j] += a[i] * value
            totals[4 + i, j] += b[i] * value


@rung(register_tiled_kernel, hoisted_kernel)
def register_tiled(p):
    """A thread computes 8 filters times 8 pixels, so that 10 loads from shared memory feed 64 multiply-adds.

    Leaves: a thread loads an x again for each tap that needs it, although its next pixel has just used it.
    """
    if not _launch(register_tiled_kernel, p, SPREAD):
        hoisted.launch(p)


# ------------------------------------------------------------------------------------------------ sliding along a row

NEIGHBOURS = Style(FILTERS, pieces=2, neighbours=4)


@cuda.jit(device=True)
def slide(stage, x, w, bias, out, relu, sizes, window, tile, aligned, totals, by_two, filters):
    place, (y, z, f) = block_place(sizes, tile), lane_place(tile)
    half, pitch, row_of_weights = (
        np.int32(tile.half),
        np.int32(tile.weight_pitch),
        np.int32(sizes.s * tile.weight_pitch),
    )
    second, down = (
        np.int32(tile.second_row * window.stride.rows * tile.pitch + tile.second_column),
        np.int32(window.dilation.rows * tile.pitch),
    )
    c = np.int32(0)
    while c < sizes.group_channels:
        channels, r = np.int32(min(tile.channels, sizes.group_channels - c)), np.int32(0)
        while r < sizes.r:
            rows = np.int32(min(tile.kernel_rows, sizes.r - r))
            patch = fill(stage, x, w, place, c, r, channels, rows, sizes, window, tile)
            cuda.syncthreads()
            channel, weight = np.int32(0), np.int32(filters * f)
            while y < tile.down and channel < channels:
                at, row = (
                    np.int32(patch + (channel * tile.lines + y * window.stride.rows) * tile.pitch + 4 * z),
                    np.int32(0),
                )
                while row < rows:
                    slide_row(stage, at, half, second, weight, pitch, np.int32(sizes.s), totals, by_two, filters)
                    at, weight, row = np.int32(at + down), np.int32(weight + row_of_weights), np.int32(row + 1)
                channel = np.int32(channel + 1)
            cuda.syncthreads()
            r = np.int32(r + rows)
        c = np.int32(c + channels)
    if y < tile.down:
        store_rows(out, bias, relu, place, y, z, f, totals, sizes, tile, aligned, filters)


@cuda.jit(max_registers=128)
def sliding_kernel(x, w, bias, out, relu, sizes, window, tile, aligned):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((FILTERS, PIXELS), np.float32)
    for i in range(FILTERS):
        for j in range(PIXELS):
            totals[i, j] = 0
    slide(stage, x, w, bias, out, relu, sizes, window, tile, aligned, totals, False, np.int32(FILTERS))


@cuda.jit(max_registers=128)
def sliding_by_two_kernel(x, w, bias, out, relu, sizes, window, tile, aligned):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((FILTERS, PIXELS), np.float32)
    for i in range(FILTERS):
        for j in range(PIXELS):
            totals[i, j] = 0
    slide(stage, x, w, bias, out, relu, sizes, window, tile, aligned, totals, True, np.int32(FILTERS))


def _aligned(p: Problem) -> bool:
    """Whether every fourth element of a row of the output begins a vector of 128 bits."""
    return p.layer.q % 4 == 0 and device.address(p.result) % 16 == 0


@rung(sliding_kernel, sliding_by_two_kernel, *register_tiled.kernels)
def sliding(p):
    """A thread's pixels are neighbours: what it loads of a row of x serves all taps of that row.

    With stride 2 a row of the patch holds its even columns first and then the odd ones, so that what one tap needs
    lies side by side. A layer with a larger stride or a dilation along the rows is left to `register_tiled`.

    Leaves: a group with one filter uses an eighth of a thread.
    """
    a = p.layer
    kernel = sliding_kernel if a.stride.columns == 1 else sliding_by_two_kernel
    fits = a.stride.columns <= 2 and a.dilation.columns == 1
    if not (fits and _launch(kernel, p, NEIGHBOURS, _aligned(p))):
        register_tiled.launch(p)


# ------------------------------------------------------------------------------------------------------ a single filter

SINGLE = Style(1, pieces=2, neighbours=4)
STRIP = 4  # outputs of a thread, one below the other: with stride 1 they need 6 rows of x, alone each would need 3
TALL = 9  # rows of x that they need with stride 2: (STRIP - 1) * 2 + 3


@cuda.jit
def single_kernel(x, w, bias, out, relu, sizes, window, tile, aligned):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((1, PIXELS), np.float32)
    for j in range(PIXELS):
        totals[0, j] = 0
    slide(stage, x, w, bias, out, relu, sizes, window, tile, aligned, totals, False, np.int32(1))


@cuda.jit(device=True)
def strip(x, w, bias, out, relu, sizes, window, step):
    """Four outputs, one below the other, of a 3 x 3 filter on one channel. No load waits for another."""
    values, taps = cuda.local.array((TALL, 3), np.float32), cuda.local.array(9, np.float32)
    strips, filters = np.uint32((sizes.p + STRIP - 1) // STRIP), np.uint32(sizes.groups * sizes.group_filters)
    i = np.uint32(cuda.grid(1))
    line = np.uint32(i // np.uint32(sizes.q))
    plane = np.uint32(line // strips)
    n = np.uint32(plane // filters)
    if n < sizes.n:
        q, p, k = (
            np.int32(i - line * sizes.q),
            np.int32(STRIP * (line - plane * strips)),
            np.uint32(plane - n * filters),
        )
        channel = np.int32(n * sizes.c + np.uint32(k // np.uint32(sizes.group_filters)))
        top, left = np.int32(p * step - window.padding.rows), np.int32(q * step - window.padding.columns)
        first = np.int32((channel * sizes.h + top) * sizes.w + left)
        for y in range((STRIP - 1) * step + 3):
            for z in range(3):
                inside = np.uint32(top + y) < np.uint32(sizes.h) and np.uint32(left + z) < np.uint32(sizes.w)
                values[y, z] = x[np.uint32(first + y * sizes.w + z)] if inside else f0
        for j in range(9):
            taps[j] = w[np.uint32(9 * k + j)]
        place = np.int32((plane * sizes.p + p) * sizes.q + q)
        for j in range(STRIP):
            total = np.float32(0)
            for y in range(3):
                for z in range(3):
                    total += values[j * step + y, z] * taps[3 * y + z]
            if p + j < sizes.p:
                out[np.uint32(place + j * sizes.q)] = finish(total, bias, k, relu)


@cuda.jit
def strip_kernel(x, w, bias, out, relu, sizes, window):
    strip(x, w, bias, out, relu, sizes, window, 1)  # known when this is compiled


@cuda.jit
def strip_by_two_kernel(x, w, bias, out, relu, sizes, window):
    strip(x, w, bias, out, relu, sizes, window, 2)


def _strips(p: Problem) -> None:
    a = p.layer
    threads = a.n * a.k * blocks(a.p, STRIP) * a.q
    kernel = strip_kernel if a.stride == (1, 1) else strip_by_two_kernel
    kernel[blocks(threads, BLOCK), BLOCK, p.stream](*_flat(p), p.relu, *numbers_of(a))


@functools.lru_cache(4096)  # as in `pmpp.kernels.convolution_layer.definition.window_of`
def wants_single(a: Layer) -> bool:
    """Whether a thread should compute one filter, not eight: there are few, or too few threads would have work.

    For the second reason the model of `tile_of` must expect half the time: it does not see that eight filters share
    what a thread loads.
    """
    if a.stride.columns > 1 or a.dilation.columns > 1:
        return False
    one, eight = (tile_of(a, style) for style in (SINGLE, NEIGHBOURS))
    small = one and eight and 2 * time_of(a, SINGLE, one) < time_of(a, NEIGHBOURS, eight)
    return a.k <= 2 * a.groups or bool(small)


@rung(strip_kernel, strip_by_two_kernel, single_kernel, *sliding.kernels)
def depthwise(p):
    """A layer of one channel per group is bound by memory: nothing is staged, and all loads of a thread are in flight.

    That holds for 3 x 3 filters with stride 1 or 2: a thread computes four outputs in a column, and loads that several
    threads need come from the first-level cache. Other layers of one or two filters per group and stride 1 along the
    rows are staged as in `sliding`, but a thread computes one filter for eight pixels. So are layers that are too small
    to fill the GPU with threads of eight filters. All others are left to `sliding`.
    """
    a = p.layer
    one_channel = a.c == a.groups and (a.r, a.s, a.dilation) == (3, 3, (1, 1)) and a.stride in ((1, 1), (2, 2))
    if one_channel:
        _strips(p)
    elif not (wants_single(a) and _launch(single_kernel, p, SINGLE, _aligned(p))):
        sliding.launch(p)


LADDER = (naive, hoisted, tiled, register_tiled, sliding, depthwise)
