"""Depthwise convolution with channels last: images (N, H, W, C), and a window of R x S weights for each channel.

Chapter: notebooks/71_depthwise_convolution.ipynb.  PMPP 4e ch. 7 and 16.

As with channels first the bound is memory: read x once, write the output once. But neighbouring lanes take neighbouring
channels of one place, so every window, stride, padding and dilation is coalesced, and 128 bits are four channels
wherever the window lies. What is left is that each element is asked for once for each tap, of the first-level cache.

Only the forward pass is here, and only float32. The rungs take every layer of `implicit_channels_last.arguments`.
"""

from __future__ import annotations

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
WEIGHTS = TAPS * CHANNELS


@cuda.jit
def vectorised_kernel(x, w, bias, out, relu, sizes, window, width, strips, count):
    weights = cuda.shared.array(WEIGHTS, np.float32, alignment=16)
    totals, values = cuda.local.array((STRIP, 4), np.float32), cuda.local.array((STRIP, 4), np.float32)
    thread, taps = i32(cuda.threadIdx.x), sizes.r * sizes.s
    across = i32(np.uint32(sizes.c + 4 * width - 1) // np.uint32(4 * width))  # blocks for all channels of a place
    down = i32(np.uint32(cuda.blockIdx.x) // np.uint32(across))
    first = i32(cuda.blockIdx.x - down * across) * 4 * width  # channel of the block
    for i in range(thread, min(4 * width, sizes.c - first) * taps, BLOCK):  # in the order of w; transposed here
        c = i32(np.uint32(i) // np.uint32(taps))
        weights[i32(i - c * taps) * CHANNELS + c] = w[first * taps + i]
    cuda.syncthreads()
    row_of_block = i32(np.uint32(thread) // np.uint32(width))
    lane = thread - row_of_block * width
    strip = np.int64(down) * (BLOCK // width) + row_of_block
    channel = first + 4 * lane
    if row_of_block < BLOCK // width and strip < count and channel < sizes.c:
        line = np.uint32(np.uint32(strip) // np.uint32(strips))  # a row of outputs, counted through all images
        q = i32(np.uint32(strip) - line * np.uint32(strips)) * STRIP
        n = np.uint32(line // np.uint32(sizes.p))
        p = i32(line - n * np.uint32(sizes.p))
        for j in range(STRIP):
            for e in range(4):
                totals[j, e] = f0
        top = p * window.stride.rows - window.padding.rows
        left = q * window.stride.columns - window.padding.columns
        image = np.int64(n) * sizes.h * sizes.w * sizes.c + channel
        for r in range(sizes.r):
            row = i32(top + r * window.dilation.rows)
            tall = 0 <= row < sizes.h
            begin = image + (row if tall else 0) * np.int64(sizes.w) * sizes.c
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
        to = (np.int64(line) * sizes.q + q) * sizes.c + channel
        for j in range(STRIP):
            if q + j < sizes.q:
                one, two = finish(totals[j, 0], bias, channel, relu), finish(totals[j, 1], bias, channel + 1, relu)
                three = finish(totals[j, 2], bias, channel + 2, relu)
                store128(out, to + j * sizes.c, (one, two, three, finish(totals[j, 3], bias, channel + 3, relu)))


@rung(vectorised_kernel, output_each_kernel)
def vectorised(p):
    """A thread takes four channels by 128 bits, and four neighbouring outputs of each. Weights are in shared memory.

    Where groups have more than one channel or filter, where the channels are no multiple of 4, where the window has
    more than 49 taps, or where x or out do not begin at a multiple of 16 bytes, this is `output_each`.
    """
    a = p.layer
    strips = blocks(a.q, STRIP)
    count, width = a.n * a.p * strips, min(32, a.c // 4)
    fits = a.c == a.k == a.groups and a.c % 4 == 0 and a.r * a.s <= TAPS
    if not fits or device.address(p.x) % 16 or device.address(p.out) % 16:
        output_each.launch(p)
        return
    grid = blocks(a.c // 4, width) * blocks(count, BLOCK // width)
    more = p.relu, sizes_of(a), window_of(a), i32(width), i32(strips), i32(count)
    vectorised_kernel[grid, BLOCK, p.stream](*_flat(p), *more)


LADDER = (output_each, vectorised)
