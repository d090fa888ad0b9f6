"""Direct convolution: each output as the sum that defines it, in the order of the definition.

Chapter: notebooks/62_direct_convolution.ipynb.  PMPP 4e ch. 16.

A layer of C R S products an output reads each x for K filters and for up to R S places of the kernel, and each weight
for every pixel of every image. The ladder climbs from fetching both for every product to fetching them once for many:
through shared memory, then in registers, where a thread makes 8 filters times 8 pixels, and at last by sliding along a
row, where neighbouring pixels see the same x. There is no workspace and no restriction. With few channels, or with one
channel a group, a matrix product has too little to win by: here this is the algorithm to take.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import Layer, Problem, finish, problem_of
from pmpp.kernels.convolution_layer.direct_tiles import (  # fmt: skip
    WARP,
    Style,
    block_place,
    f0,
    fill,
    lane_place,
    numbers_of,
    slide_row,
    store,
    store_each,
    store_rows,
    tile_of,
)
from pmpp.runtime import device
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128

BLOCK = 256  # threads a block, where a thread makes one output

reference = definition.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Shared awkward layers, and some at the edges of tiles and of segments of a row of taps."""
    made = definition.inputs(rng)
    for name in ("many channels", "many filters", "7x7 s2 p3", "kernel as large as the image"):
        del made[
            name
        ]  # long for the interpreter: tests/kernels/convolution_layer/test_direct.py has chunks and edges by less work
    rng = np.random.default_rng(7) if rng is None else rng

    def add(name: str, x: tuple, w: tuple, *options: typing.Any) -> None:
        made[name] = *(rng.standard_normal(shape, dtype=np.float32) for shape in (x, w)), None, *options

    add("7x7 s2, one channel", (1, 1, 9, 10), (2, 1, 7, 7), 2, 3)
    add("nine taps a row, s1x2", (1, 1, 5, 24), (2, 1, 2, 9), (1, 2), (0, 4))
    add("six taps a row", (1, 1, 4, 20), (9, 1, 2, 6), 1, (0, 2))
    add("depthwise s2", (1, 3, 9, 8), (3, 1, 3, 3), 2, 1, 1, 3)
    add("depthwise 5x5", (1, 2, 5, 9), (2, 1, 5, 5), 1, 2, 1, 2)
    add("a tile of columns and one", (1, 1, 3, 33), (8, 1, 3, 3), 1, 1)
    return made


tolerance = definition.tolerance
cost = definition.cost


def refuses(layer: Layer) -> str | None:
    """Why this algorithm cannot do a layer: it can do all."""
    return None


def workspace_bytes(layer: Layer) -> int:
    """Bytes of device memory besides the arguments and the result: none."""
    return 0


# -------------------------------------------------------------------------------------------------- a thread an output


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
                    row = p * stride[0] + r * dilation[0] - padding[0]
                    column = q * stride[1] + s * dilation[1] - padding[1]
                    if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                        total += x[n, first + c, row, column] * w[k, c, r, s]
        out[n, k, p, q] = finish(total, bias, k, relu)


@rung(naive_kernel)
def naive(
    x: typing.Any,
    w: typing.Any,
    bias: typing.Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    relu: bool = False,
    *,
    out: typing.Any = None,
    stream: typing.Any = 0,
) -> typing.Any:
    """One thread for each output goes through the seven indices of the definition.

    Args:
        x: images of shape (N, C, H, W), float32, contiguous.
        w: filters of shape (K, C / groups, R, S), float32, contiguous.
        bias: a number for each filter, float32 of shape (K,), or None.
        stride, padding, dilation: integers, or pairs for rows and columns. Around the image lie zeros.
        groups: into how many layers side by side the channels and the filters are dealt.
        relu: whether negative results become 0. A NaN stays one.
        out: a device array for the result, apart from the others, or None to allocate one.
        stream: the stream to work on.

    Returns a device array (N, K, P, Q), see `pmpp.kernels.convolution_layer.definition.Layer`, without waiting for the
    work to be done.
    Infinities and NaN give what the sum of products gives; here and in `hoisted` the padding has no part in it, and in
    the other rungs its zeros are multiplied, as by cuDNN: an infinite weight makes NaN there. Raises TypeError or
    ValueError that names the argument at fault. Source: PMPP 4e section 16.3.

    Leaves: every product pays for two comparisons and for index arithmetic in 64 bits.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size:
        a = p.layer
        geometry = a.stride, a.padding, a.dilation, a.groups
        naive_kernel[-(-p.out.size // BLOCK), BLOCK, p.stream](p.x, p.w, p.bias, p.out, p.relu, *geometry)
    return p.out


# ------------------------------------------------------------------------------------------- bounds before the loops


@cuda.jit(device=True)
def within(start, step, count, extent):
    """Of ``count`` places, ``step`` apart from ``start`` on: the first in an image, and one past the last."""
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
        top, left = np.int32(p * stride[0] - padding[0]), np.int32(q * stride[1] - padding[1])
        r_begin, r_end = within(top, np.int32(dilation[0]), w.shape[2], x.shape[2])
        s_begin, s_end = within(left, np.int32(dilation[1]), w.shape[3], x.shape[3])
        total = np.float32(0)
        c = np.uint32(0)
        while c < w.shape[1]:
            r = r_begin
            while r < r_end:
                row = np.uint32(top + r * dilation[0])
                s = s_begin
                while s < s_end:
                    column = np.uint32(left + s * dilation[1])
                    total += x[n, np.uint32(first + c), row, column] * w[k, c, np.uint32(r), np.uint32(s)]
                    s += 1
                r += 1
            c += 1
        out[n, k, np.uint32(p), np.uint32(q)] = finish(total, bias, k, relu)


def _hoisted(p: Problem) -> None:
    a = p.layer
    geometry = a.stride, a.padding, a.dilation, a.groups
    hoisted_kernel[-(-p.out.size // BLOCK), BLOCK, p.stream](p.x, p.w, p.bias, p.out, p.relu, *geometry)


@rung(hoisted_kernel)
def hoisted(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """What of the kernel lies in the image is found out once, and places are counted in 32 bits.

    Arguments, result and errors as in `naive`.

    Leaves: each product fetches its two numbers through the caches.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size:
        _hoisted(p)
    return p.out


# ---------------------------------------------------------------------------------------------------- in shared memory

ONE = Style(filters=1, pieces=1)


@cuda.jit
def tiled_kernel(x, w, bias, out, relu, shape, window, tile):
    stage = cuda.shared.array(0, np.float32)  # the launch says how much
    place, (y, z, f) = block_place(shape, tile), lane_place(tile)
    total = np.float32(0)
    c = np.int32(0)
    while c < shape[7]:
        channels, r = np.int32(min(tile[8], shape[7] - c)), np.int32(0)
        while r < shape[4]:
            rows = np.int32(min(tile[9], shape[4] - r))
            patch = fill(stage, x, w, place, c, r, channels, rows, shape, window, tile)
            cuda.syncthreads()  # the chunk is whole before anyone reads it
            if y < tile[1]:
                total = add_chunk(stage, patch, y, z, f, channels, rows, shape, window, tile, total)
            cuda.syncthreads()  # everyone has read it before it is overwritten
            r = np.int32(r + rows)
        c = np.int32(c + channels)
    if y < tile[1]:
        n, group, k, p, q = place
        store(out, bias, relu, n, group, k + f, p + y, q + z, total, shape)


@cuda.jit(device=True)
def add_chunk(stage, patch, y, z, f, channels, rows, shape, window, tile, total):
    weight, c = f, np.int32(0)
    while c < channels:
        r = np.int32(0)
        while r < rows:
            at = np.int32(patch + (c * tile[17] + y * window[0] + r * window[4]) * tile[12] + z * window[1])
            s = np.int32(0)
            while s < shape[5]:
                total += stage[np.uint32(at)] * stage[np.uint32(weight)]
                at, weight, s = np.int32(at + window[5]), np.int32(weight + tile[13]), np.int32(s + 1)
            r = np.int32(r + 1)
        c = np.int32(c + 1)
    return total


def _launch(kernel: typing.Any, p: Problem, style: Style, *more: typing.Any) -> bool:
    """Whether a tile fits in shared memory; if so, the kernel is launched."""
    a = p.layer
    tile = tile_of(a, style)
    if tile is None:
        return False
    configuration = tile.grid(a), WARP * tile.warps, p.stream, 4 * tile.staged(a)
    flat = p.x.reshape(-1), p.w.reshape(-1), p.bias, p.out.reshape(-1)
    kernel[configuration](*flat, p.relu, *numbers_of(a), tile.numbers(a), *more)
    return True


@rung(tiled_kernel)
def tiled(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A block stages weights and what its pixels see of x, some channels at a time, in shared memory.

    Arguments, result and errors as in `naive`. If not even one row of a kernel fits there, it is `hoisted`.
    Source: PMPP 4e section 7.5, with several channels.

    Leaves: two loads from shared memory for each multiply-add.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size and not _launch(tiled_kernel, p, ONE):
        _hoisted(p)
    return p.out


# -------------------------------------------------------------------------------------------------------- in registers

FILTERS = PIXELS = 8  # of a thread
SPREAD = Style(FILTERS, 1, spread=PIXELS)


@cuda.jit(max_registers=128)
def register_tiled_kernel(x, w, bias, out, relu, shape, window, tile):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((FILTERS, PIXELS), np.float32)
    for i in range(FILTERS):
        for j in range(PIXELS):
            totals[i, j] = 0
    place, (y, z, f) = block_place(shape, tile), lane_place(tile)
    c = np.int32(0)
    while c < shape[7]:
        channels, r = np.int32(min(tile[8], shape[7] - c)), np.int32(0)
        while r < shape[4]:
            rows = np.int32(min(tile[9], shape[4] - r))
            patch = fill(stage, x, w, place, c, r, channels, rows, shape, window, tile)
            cuda.syncthreads()
            if y < tile[1]:
                add_products(stage, patch, y, z, f, channels, rows, shape, window, tile, totals)
            cuda.syncthreads()
            r = np.int32(r + rows)
        c = np.int32(c + channels)
    if y < tile[1]:
        store_each(out, bias, relu, place, np.int32(place[2] + FILTERS * f), y, z, totals, shape, tile)


@cuda.jit(device=True)
def add_products(stage, patch, y, z, f, channels, rows, shape, window, tile, totals):
    weight, apart, c = np.int32(FILTERS * f), np.int32(tile[0] * window[1]), np.int32(0)
    while c < channels:
        r = np.int32(0)
        while r < rows:
            at = np.int32(patch + (c * tile[17] + y * window[0] + r * window[4]) * tile[12] + z * window[1])
            s = np.int32(0)
            while s < shape[5]:
                add_tap(stage, at, apart, weight, totals)
                at, weight, s = np.int32(at + window[5]), np.int32(weight + tile[13]), np.int32(s + 1)
            r = np.int32(r + 1)
        c = np.int32(c + 1)


@cuda.jit(device=True)
def add_tap(stage, at, apart, weight, totals):
    """64 products from 8 loads of x and two of 4 weights each."""
    a, b = load128(stage, weight), load128(stage, weight + 4)
    for j in range(PIXELS):
        value = stage[np.uint32(at + j * apart)]
        for i in range(4):
            totals[i, j] += a[i] * value
            totals[4 + i, j] += b[i] * value


@rung(register_tiled_kernel)
def register_tiled(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A thread makes 8 filters times 8 pixels, so that 10 loads from shared memory feed 64 multiply-adds.

    Arguments, result and errors as in `naive`.

    Leaves: an x is loaded again for each tap that sees it, although the thread's next pixel has just used it.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size and not _launch(register_tiled_kernel, p, SPREAD):
        _hoisted(p)
    return p.out


# ------------------------------------------------------------------------------------------------ sliding along a row

NEIGHBOURS = Style(FILTERS, pieces=2, neighbours=4)


@cuda.jit(device=True)
def slide(stage, x, w, bias, out, relu, shape, window, tile, aligned, totals, by_two, filters):
    place, (y, z, f) = block_place(shape, tile), lane_place(tile)
    half, pitch, row_of_weights = np.int32(tile[10]), np.int32(tile[13]), np.int32(shape[5] * tile[13])
    second, down = np.int32(tile[4] * window[0] * tile[12] + tile[5]), np.int32(window[4] * tile[12])
    c = np.int32(0)
    while c < shape[7]:
        channels, r = np.int32(min(tile[8], shape[7] - c)), np.int32(0)
        while r < shape[4]:
            rows = np.int32(min(tile[9], shape[4] - r))
            patch = fill(stage, x, w, place, c, r, channels, rows, shape, window, tile)
            cuda.syncthreads()
            channel, weight = np.int32(0), np.int32(filters * f)
            while y < tile[1] and channel < channels:
                at, row = np.int32(patch + (channel * tile[17] + y * window[0]) * tile[12] + 4 * z), np.int32(0)
                while row < rows:
                    slide_row(stage, at, half, second, weight, pitch, np.int32(shape[5]), totals, by_two, filters)
                    at, weight, row = np.int32(at + down), np.int32(weight + row_of_weights), np.int32(row + 1)
                channel = np.int32(channel + 1)
            cuda.syncthreads()
            r = np.int32(r + rows)
        c = np.int32(c + channels)
    if y < tile[1]:
        store_rows(out, bias, relu, place, y, z, f, totals, shape, tile, aligned, filters)


@cuda.jit(max_registers=128)
def sliding_kernel(x, w, bias, out, relu, shape, window, tile, aligned):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((FILTERS, PIXELS), np.float32)
    for i in range(FILTERS):
        for j in range(PIXELS):
            totals[i, j] = 0
    slide(stage, x, w, bias, out, relu, shape, window, tile, aligned, totals, False, np.int32(FILTERS))


@cuda.jit(max_registers=128)
def sliding_by_two_kernel(x, w, bias, out, relu, shape, window, tile, aligned):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((FILTERS, PIXELS), np.float32)
    for i in range(FILTERS):
        for j in range(PIXELS):
            totals[i, j] = 0
    slide(stage, x, w, bias, out, relu, shape, window, tile, aligned, totals, True, np.int32(FILTERS))


def _slide(p: Problem) -> bool:
    """Whether the layer has rows to slide along; if so, a kernel is launched."""
    a = p.layer
    if a.stride[1] > 2 or a.dilation[1] > 1:
        return False
    aligned = a.q % 4 == 0 and device.address(p.out) % 16 == 0
    return _launch(sliding_kernel if a.stride[1] == 1 else sliding_by_two_kernel, p, NEIGHBOURS, aligned)


@rung(sliding_kernel, sliding_by_two_kernel, register_tiled_kernel)
def sliding(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A thread's pixels are neighbours: what it loads of a row of x serves all taps of that row.

    Arguments, result and errors as in `naive`. A stride beyond 2 or a dilation along the rows is `register_tiled`.
    With stride 2 the patch has the even columns of a row first and then the odd ones, so that what one tap sees
    lies side by side.

    Leaves: a group with one filter uses an eighth of a thread.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size and not _slide(p) and not _launch(register_tiled_kernel, p, SPREAD):
        _hoisted(p)
    return p.out


# ------------------------------------------------------------------------------------------------------ a single filter

SINGLE = Style(1, pieces=2, neighbours=4)
STRIP = 4  # outputs of a thread, one below the other
TALL = 9  # rows of x that they see with stride 2


@cuda.jit
def single_kernel(x, w, bias, out, relu, shape, window, tile, aligned):
    stage = cuda.shared.array(0, np.float32)
    totals = cuda.local.array((1, PIXELS), np.float32)
    for j in range(PIXELS):
        totals[0, j] = 0
    slide(stage, x, w, bias, out, relu, shape, window, tile, aligned, totals, False, np.int32(1))


@cuda.jit(device=True)
def strip(x, w, bias, out, relu, shape, window, step):
    """Four outputs, one below the other, of a 3 x 3 filter on one channel. No load waits for another."""
    values, taps = cuda.local.array((TALL, 3), np.float32), cuda.local.array(9, np.float32)
    strips, filters = np.uint32((shape[2] + STRIP - 1) // STRIP), np.uint32(shape[9] * shape[8])
    i = np.uint32(cuda.grid(1))
    line = np.uint32(i // np.uint32(shape[3]))
    plane = np.uint32(line // strips)
    n = np.uint32(plane // filters)
    if n < shape[10]:
        q, p, k = (
            np.int32(i - line * shape[3]),
            np.int32(STRIP * (line - plane * strips)),
            np.uint32(plane - n * filters),
        )
        channel = np.int32(n * shape[6] + np.uint32(k // np.uint32(shape[8])))
        top, left = np.int32(p * step - window[2]), np.int32(q * step - window[3])
        first = np.int32((channel * shape[0] + top) * shape[1] + left)
        for y in range((STRIP - 1) * step + 3):
            for z in range(3):
                inside = np.uint32(top + y) < np.uint32(shape[0]) and np.uint32(left + z) < np.uint32(shape[1])
                values[y, z] = x[np.uint32(first + y * shape[1] + z)] if inside else f0
        for j in range(9):
            taps[j] = w[np.uint32(9 * k + j)]
        place = np.int32((plane * shape[2] + p) * shape[3] + q)
        for j in range(STRIP):
            total = np.float32(0)
            for y in range(3):
                for z in range(3):
                    total += values[j * step + y, z] * taps[3 * y + z]
            if p + j < shape[2]:
                out[np.uint32(place + j * shape[3])] = finish(total, bias, k, relu)


@cuda.jit
def strip_kernel(x, w, bias, out, relu, shape, window):
    strip(x, w, bias, out, relu, shape, window, 1)  # known when this is compiled


@cuda.jit
def strip_by_two_kernel(x, w, bias, out, relu, shape, window):
    strip(x, w, bias, out, relu, shape, window, 2)


def _single(p: Problem) -> bool:
    a = p.layer
    if a.c == a.groups and (a.r, a.s, a.dilation) == (3, 3, (1, 1)) and a.stride in ((1, 1), (2, 2)):
        threads = a.n * a.k * -(-a.p // STRIP) * a.q
        kernel = strip_kernel if a.stride == (1, 1) else strip_by_two_kernel
        flat = p.x.reshape(-1), p.w.reshape(-1), p.bias, p.out.reshape(-1)
        kernel[-(-threads // BLOCK), BLOCK, p.stream](*flat, p.relu, *numbers_of(a))
        return True
    if a.k > 2 * a.groups or a.stride[1] > 1 or a.dilation[1] > 1:
        return False
    return _launch(single_kernel, p, SINGLE, a.q % 4 == 0 and device.address(p.out) % 16 == 0)


@rung(strip_kernel, strip_by_two_kernel, single_kernel, sliding_kernel, sliding_by_two_kernel, register_tiled_kernel)
def depthwise(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A layer of one channel a group is bound by memory: no staging, and all a thread's loads under way at once.

    Arguments, result and errors as in `naive`. 3 x 3 filters with stride 1 or 2 on one channel have a thread for four
    outputs in a column, whose loads overlap in the first-level cache. Other layers of one or two filters a group, of
    stride 1 along the rows, are staged as in `sliding`, with a thread for one filter and eight pixels; the rest is
    `sliding`.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size and not _single(p) and not _slide(p) and not _launch(register_tiled_kernel, p, SPREAD):
        _hoisted(p)
    return p.out


LADDER = (naive, hoisted, tiled, register_tiled, sliding, depthwise)
