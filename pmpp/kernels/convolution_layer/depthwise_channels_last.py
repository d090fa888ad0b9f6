"""Depthwise convolution with channels last: images (N, H, W, C), and a window of R x S weights for each channel.

Chapter: notebooks/71_depthwise_convolution.ipynb.  PMPP 4e ch. 7 and 16.

As with channels first the bound is memory: read x once, write the output once. But neighbouring lanes take neighbouring
channels of one place, so every window, stride, padding and dilation is coalesced, and 128 bits are four channels
wherever the window lies. What is left is that each element is asked for once for each tap, of the first-level cache.

Only the forward pass is here, and only float32. The rungs take every layer of `implicit_channels_last.arguments`.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer import implicit_channels_last as channels_last
from pmpp.kernels.convolution_layer.definition import Layer, finish, window_of
from pmpp.kernels.convolution_layer.direct_tiles import f0
from pmpp.runtime import device
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128, store128

BLOCK = 256  # threads per block
i32 = np.int32

reference = channels_last.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small layers of one and of few channels a group, at the edges of strips and of blocks."""
    rng = np.random.default_rng(72) if rng is None else rng
    made: dict[str, tuple] = {}

    def add(name: str, x: tuple, w: tuple, *options: typing.Any, bias: bool = False) -> None:
        values = rng.standard_normal(x, dtype=np.float32), rng.standard_normal(w, dtype=np.float32)
        made[name] = *values, rng.standard_normal(w[0], dtype=np.float32) if bias else None, *options

    add("one", (1, 1, 1, 1), (1, 1, 1, 1))
    add("3x3 p1", (1, 6, 8, 8), (8, 3, 3, 1), 1, 1, 1, 8)
    add("3x3 p1, bias, ReLU", (2, 5, 7, 12), (12, 3, 3, 1), 1, 1, 1, 12, True, bias=True)
    add("3x3 s2 p1", (1, 9, 10, 4), (4, 3, 3, 1), 2, 1, 1, 4)
    add("5x5 p2, two groups of vectors", (1, 4, 5, 132), (132, 5, 5, 1), 1, 2, 1, 132, bias=True)
    add("3x2 s2x1 p1x0 d1x2", (2, 9, 8, 8), (8, 3, 2, 1), (2, 1), (1, 0), (1, 2), 8)
    add("9x9, beyond the shared memory", (1, 3, 4, 8), (8, 9, 9, 1), 1, 4, 1, 8)
    add("five channels", (1, 6, 7, 5), (5, 3, 3, 1), 1, 1, 1, 5, bias=True)
    add("two filters a channel", (1, 5, 6, 4), (8, 3, 3, 1), 1, 1, 1, 4, bias=True)
    add("two channels a group", (1, 5, 6, 8), (4, 3, 3, 2), 1, 1, 1, 4, True, bias=True)
    add("one group", (1, 4, 5, 3), (2, 3, 3, 3), 1, 1)
    add("no images", (0, 4, 4, 4), (4, 3, 3, 1), 1, 1, 1, 4)
    return made


tolerance = channels_last.tolerance
cost = channels_last.cost
arguments = channels_last.arguments


class Sizes(typing.NamedTuple):
    """What the kernels are told of a layer: int32."""

    h: int
    w: int
    c: int
    p: int
    q: int
    k: int
    r: int
    s: int
    group_channels: int
    group_filters: int


def sizes_of(a: Layer) -> Sizes:
    """The layer's `Sizes`."""
    return Sizes(*map(i32, (a.h, a.w, a.c, a.p, a.q, a.k, a.r, a.s, a.c // a.groups, a.k // a.groups)))


def _flat(p: typing.Any) -> tuple:
    return p.x.reshape(-1), p.w.reshape(-1), p.bias, p.out.reshape(-1)


# --------------------------------------------------------------------------------------------------- a thread an output


@cuda.jit
def output_each_kernel(x, w, bias, out, relu, sizes, window):
    i = cuda.grid(1)
    if i < out.size:
        place, k = i // sizes.k, i % sizes.k
        n, p, q = place // (sizes.p * sizes.q), place // sizes.q % sizes.p, place % sizes.q
        channel, total = k // sizes.group_filters * sizes.group_channels, f0
        for r in range(sizes.r):
            row = p * window.stride.rows + r * window.dilation.rows - window.padding.rows
            for s in range(sizes.s):
                column = q * window.stride.columns + s * window.dilation.columns - window.padding.columns
                inside = 0 <= row < sizes.h and 0 <= column < sizes.w
                at = ((n * sizes.h + row) * sizes.w + column) * sizes.c + channel
                tap = ((k * sizes.r + r) * sizes.s + s) * sizes.group_channels
                for c in range(sizes.group_channels):
                    total += (x[at + c] if inside else f0) * w[tap + c]
        out[i] = finish(total, bias, k, relu)


@rung(output_each_kernel)
def output_each(p):
    """A thread for each output; neighbouring lanes take neighbouring channels of the same place.

    Leaves: for each product two loads of 4 bytes, and index arithmetic in 64 bits. Lanes read weights R S apart.
    """
    more = p.relu, sizes_of(p.layer), window_of(p.layer)
    output_each_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](*_flat(p), *more)


# ------------------------------------------------------------------------------------------- four channels, four places

STRIP = 4  # neighbouring outputs of a row that a thread computes: a weight is loaded once for all
TAPS = 49  # of a window, at most: a block keeps those of 128 channels in shared memory
CHANNELS = 128  # of a block at most, four for each of 32 vectors


class Strips(typing.NamedTuple):
    """How blocks cover the output: int32."""

    width: int  # vectors of a block side by side
    across: int  # blocks for all channels of a place
    line: int  # strips of a row of outputs
    count: int  # strips of all images


def strips_of(a: Layer) -> tuple[Strips, int]:
    """The layer's `Strips`, and how many blocks that makes."""
    vectors, line = a.c // 4, blocks(a.q, STRIP)
    width = blocks(vectors, blocks(vectors, 32))  # 36 vectors are twice 18: of 32 and 4, most lanes would be idle
    across, count = blocks(vectors, width), a.n * a.p * line
    return Strips(*map(i32, (width, across, line, count))), across * blocks(count, BLOCK // width)


@cuda.jit(device=True)
def keep_weights(w, first, sizes, strips, weights):
    """Copy the weights of the block's channels, from ``first`` on, to shared memory: the channels of a tap together."""
    taps = sizes.r * sizes.s
    for i in range(cuda.threadIdx.x, min(4 * strips.width, sizes.c - first) * taps, BLOCK):  # in the order of w
        c = i32(np.uint32(i) // np.uint32(taps))
        weights[i32(i - c * taps) * CHANNELS + c] = w[first * taps + i]
    cuda.syncthreads()


@cuda.jit(device=True)
def strip_of(sizes, strips):
    """(first, lane, strip): the block's first channel, the thread's vector in the block, and its strip; -1 if none."""
    thread, block = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockIdx.x)
    down, row = np.uint32(block // np.uint32(strips.across)), i32(thread // np.uint32(strips.width))
    first, lane = i32(block - down * strips.across) * 4 * strips.width, i32(thread - row * strips.width)
    rows = BLOCK // strips.width
    strip = np.int64(down) * rows + row
    return first, lane, strip if row < rows and strip < strips.count and first + 4 * lane < sizes.c else -1


@cuda.jit(device=True)
def place_of(strip, sizes, strips, window):
    """(line, q, image, top, left): the strip's row of all outputs, its first place there, its image, and the corner."""
    line = np.uint32(np.uint32(strip) // np.uint32(strips.line))
    q = i32(np.uint32(strip) - line * np.uint32(strips.line)) * STRIP
    n = np.uint32(line // np.uint32(sizes.p))
    p = i32(line - n * np.uint32(sizes.p))
    top, left = p * window.stride.rows - window.padding.rows, q * window.stride.columns - window.padding.columns
    return line, q, np.int64(n) * sizes.h, top, left


@cuda.jit(device=True)
def store_strip(out, line, q, channel, bias, relu, sizes, totals):
    to = (np.int64(line) * sizes.q + q) * sizes.c + channel
    for j in range(STRIP):
        if q + j < sizes.q:
            one, two = finish(totals[j, 0], bias, channel, relu), finish(totals[j, 1], bias, channel + 1, relu)
            three = finish(totals[j, 2], bias, channel + 2, relu)
            store128(out, to + j * sizes.c, (one, two, three, finish(totals[j, 3], bias, channel + 3, relu)))


@cuda.jit
def vectorised_kernel(x, w, bias, out, relu, sizes, window, strips):
    weights = cuda.shared.array(0, np.float32, alignment=16)  # the launch says how much
    totals, values = cuda.local.array((STRIP, 4), np.float32), cuda.local.array((STRIP, 4), np.float32)
    first, lane, strip = strip_of(sizes, strips)
    keep_weights(w, first, sizes, strips, weights)
    if strip >= 0:
        line, q, image, top, left = place_of(strip, sizes, strips, window)
        for j in range(STRIP):
            for e in range(4):
                totals[j, e] = f0
        for r in range(sizes.r):
            row = i32(top + r * window.dilation.rows)
            tall = 0 <= row < sizes.h
            begin = (image + (row if tall else 0)) * sizes.w * sizes.c + first + 4 * lane
            for s in range(sizes.s):
                a = load128(weights, i32(r * sizes.s + s) * CHANNELS + 4 * lane)
                column = i32(left + s * window.dilation.columns)
                for j in range(STRIP):  # in place of padding the row's first value is loaded: threads do not diverge
                    here = i32(column + j * window.stride.columns)
                    inside = tall and 0 <= here < sizes.w
                    v = load128(x, begin + (here if inside else 0) * np.int64(sizes.c))
                    for e in range(4):
                        values[j, e] = v[e] if inside else f0
                for j in range(STRIP):
                    for e in range(4):
                        totals[j, e] += values[j, e] * a[e]
        store_strip(out, line, q, first + 4 * lane, bias, relu, sizes, totals)


def suits(p: typing.Any) -> bool:
    """Whether each channel has one filter, rows are whole vectors, and a window fits into shared memory."""
    a = p.layer
    fits = a.c == a.k == a.groups and a.c % 4 == 0 and a.r * a.s <= TAPS
    return fits and not (device.address(p.x) % 16 or device.address(p.out) % 16)


@rung(vectorised_kernel, output_each_kernel)
def vectorised(p):
    """A thread takes four channels by 128 bits, and four neighbouring outputs of each. Weights are in shared memory.

    Where groups have more than one channel or filter, where the channels are no multiple of 4, where the window has
    more than 49 taps, or where x or out do not begin at a multiple of 16 bytes, this is `output_each`.

    Leaves: neighbouring outputs share columns of x, and each of them asks for its own.
    """
    if not suits(p):
        output_each.launch(p)
        return
    _launch(vectorised_kernel, p)


def _launch(kernel: typing.Any, p: typing.Any) -> None:
    a = p.layer
    strips, grid = strips_of(a)
    room = 4 * a.r * a.s * CHANNELS  # bytes of shared memory
    kernel[grid, BLOCK, p.stream, room](*_flat(p), p.relu, sizes_of(a), window_of(a), strips)


# ----------------------------------------------------------------------------------------- columns shared by outputs


@functools.lru_cache(64)  # a compilation each
def sliding_kernel(taps: int, stride: int) -> typing.Any:
    """The kernel for windows of so many columns, and that stride along a row: both are constants of its code."""
    span = (STRIP - 1) * stride + taps  # columns of x that a strip needs

    @cuda.jit
    def kernel(x, w, bias, out, relu, sizes, window, strips):
        weights = cuda.shared.array(0, np.float32, alignment=16)  # the launch says how much
        totals, values = cuda.local.array((STRIP, 4), np.float32), cuda.local.array((taps, 4), np.float32)
        first, lane, strip = strip_of(sizes, strips)
        keep_weights(w, first, sizes, strips, weights)
        if strip >= 0:
            line, q, image, top, left = place_of(strip, sizes, strips, window)
            for j in range(STRIP):
                for e in range(4):
                    totals[j, e] = f0
            for r in range(sizes.r):
                row = i32(top + r * window.dilation.rows)
                tall = 0 <= row < sizes.h
                begin = (image + (row if tall else 0)) * sizes.w * sizes.c + first + 4 * lane
                for s in range(taps):
                    a = load128(weights, i32(r * taps + s) * CHANNELS + 4 * lane)
                    for e in range(4):
                        values[s, e] = a[e]
                for z in range(span):
                    inside = tall and 0 <= left + z < sizes.w
                    v = load128(x, begin + (left + z if inside else 0) * np.int64(sizes.c))
                    for j in range(STRIP):
                        if 0 <= z - j * stride < taps:
                            for e in range(4):
                                totals[j, e] += (v[e] if inside else f0) * values[z - j * stride, e]
            store_strip(out, line, q, first + 4 * lane, bias, relu, sizes, totals)

    return kernel


SLIDES = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1), (7, 2))  # columns of a window and strides that have such a kernel


@rung(sliding_kernel, *vectorised.kernels)
def sliding(p):
    """A column of x that a thread has loaded serves all of its outputs. A row's weights stay in registers meanwhile.

    There are kernels for windows of 3, 5 or 7 columns with stride 1 or 2 and without dilation along a row. For others
    this is `vectorised`.
    """
    a = p.layer
    if not suits(p) or (a.s, a.stride.columns) not in SLIDES or a.dilation.columns > 1:
        vectorised.launch(p)
        return
    _launch(sliding_kernel(a.s, a.stride.columns), p)


LADDER = (output_each, vectorised, sliding)
