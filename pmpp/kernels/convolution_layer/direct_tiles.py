"""What the tiled rungs of `direct` share: the cut into blocks, the way into shared memory, and out.

A block makes a rectangle of one output image, for some of the filters of a group. It goes through the group's channels
in chunks: it stages the weights of its filters and the patch of x that its rectangle sees, with zeros around the image,
and multiplies from shared memory alone.
"""

from __future__ import annotations

import functools
import itertools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.definition import Layer, finish
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

WARP, WARPS = 32, 8  # threads of a warp, and warps of a block at most
RESIDENT = 16  # warps that a multiprocessor holds at once if a thread has 128 registers
STAGE = 48 * 1024 // 4  # elements of shared memory that every GPU has for a block
f0 = np.float32(0)


class Tile(typing.NamedTuple):
    """How a block is laid out: plain numbers, since a kernel is given them as a tuple."""

    across: int  # lanes side by side along a row of outputs; the lanes that follow are in the next row
    down: int  # rows of lanes
    rows: int  # of outputs that a block makes
    columns: int
    second_row: int  # from a thread's first piece of outputs to its second
    second_column: int
    filters: int  # of a block; a warp makes filters // filter_warps of them
    filter_warps: int  # the other warps of the block are for other pixels
    channels: int  # of a chunk
    kernel_rows: int  # of a chunk: all, unless one channel is too large for shared memory
    half: int  # where in a row of the patch the odd columns begin; 0 if all columns are in their order
    wide: int  # columns of the patch
    pitch: int  # elements from one row of the patch to the next
    weight_pitch: int  # elements from one tap to the next
    filter_blocks: int  # along the filters of a group
    row_blocks: int  # along the rows of the output
    column_blocks: int
    warps: int  # of a block

    def lines(self, layer: Layer) -> int:
        """Rows of the patch of one channel."""
        return (self.rows - 1) * layer.stride[0] + (self.kernel_rows - 1) * layer.dilation[0] + 1

    def numbers(self, layer: Layer) -> tuple:
        """What a kernel is given: the fields in their order, with `lines` for the last."""
        return tuple(map(np.int32, (*self[:-1], self.lines(layer))))

    def staged(self, layer: Layer) -> int:
        """Elements of shared memory."""
        taps = self.channels * self.kernel_rows * layer.s
        return -(-taps * self.weight_pitch // 4) * 4 + self.channels * self.lines(layer) * self.pitch

    def grid(self, layer: Layer) -> int:
        return self.filter_blocks * self.row_blocks * self.column_blocks * layer.n * layer.groups


class Style(typing.NamedTuple):
    """What a thread of a rung computes: filters, and pixels in one or two pieces of neighbours or of every n-th."""

    filters: int
    pieces: int
    neighbours: int = 1  # pixels side by side
    spread: int = 1  # pixels that lie as far apart as there are lanes across


# ------------------------------------------------------------------------------------------------------ on the host


@functools.lru_cache(4096)
def tile_of(layer: Layer, style: Style) -> Tile | None:
    """The layout with the least time by a simple model, or None if not even one row of taps fits in shared memory."""
    group_filters = layer.k // layer.groups
    most = min(WARPS, -(-group_filters // style.filters))
    found = []
    for filter_warps in range(1, most + 1):
        for pixel_warps in (1, 2, 4, 8):
            if filter_warps * pixel_warps <= WARPS:
                found += _layouts(layer, style, filter_warps, pixel_warps)
    fitting = [(time, tile) for time, tile in found if tile.kernel_rows]
    if not fitting:
        return None
    tile = min(fitting, key=lambda one: one[0])[1]
    spare = STAGE - tile.staged(layer)
    room = spare // (tile.channels * tile.lines(layer))
    step = 4 if style.neighbours > 1 else 1
    pitches = range(tile.pitch, tile.pitch + min(room, WARP) + 1, step)
    return tile._replace(pitch=min(pitches, key=lambda pitch: (wavefronts(tile, layer, style, pitch), pitch)))


def _layouts(layer: Layer, style: Style, filter_warps: int, pixel_warps: int) -> typing.Iterator[tuple[float, Tile]]:
    lanes, wide = WARP * pixel_warps, style.neighbours * style.spread
    most = min(lanes, -(-layer.q // wide))
    for across, beside in itertools.product(range(min(most, 4), most + 1), (False, True)[: style.pieces]):
        down = min(lanes // across, layer.p)
        pieces = (1, style.pieces) if beside else (style.pieces, 1)
        rows, columns = down * pieces[0], across * wide * pieces[1]
        second = (0, across * wide) if beside else (down, 0)
        filters = filter_warps * style.filters
        blocks = -(-layer.k // layer.groups // filters), -(-layer.p // rows), -(-layer.q // columns)
        half, seen = _row(layer, style, columns)
        weight_pitch = filters + (4 if style.filters == 8 else 1)
        tile = Tile(
            across, down, rows, columns, *second, filters, filter_warps, 1, layer.r, half, seen, seen, weight_pitch,
            *blocks, filter_warps * pixel_warps,
        )  # fmt: skip
        tile = _chunked(layer, tile)
        if tile.kernel_rows:
            yield time_of(layer, style, tile), tile


def _row(layer: Layer, style: Style, columns: int) -> tuple[int, int]:
    """Where the odd columns begin in a row of the patch, and its length. 128-bit loads read whole vectors."""
    if style.neighbours == 1:
        return 0, (columns - 1) * layer.stride[1] + (layer.s - 1) * layer.dilation[1] + 1
    if layer.stride[1] == 1:
        return 0, -(-(columns + layer.s - 1) // 4) * 4
    taps = (layer.s - 1) % 8 + 1  # of the last segment
    half = columns - 4 + (layer.s - taps) // 2 + (8 if taps > 2 else 4)
    return half, 2 * half


def _chunked(layer: Layer, tile: Tile) -> Tile:
    """As many channels at a time as fit, in equal chunks; or one channel and as many rows of the kernel as fit."""
    group = layer.c // layer.groups
    most = STAGE // tile.staged(layer)
    while most and tile._replace(channels=most).staged(layer) > STAGE:
        most -= 1
    if most:
        return tile._replace(channels=-(-group // -(-group // min(most, group))))
    rows = layer.r
    while rows and tile._replace(kernel_rows=rows).staged(layer) > STAGE:
        rows -= 1
    return tile._replace(kernel_rows=rows)


def time_of(layer: Layer, style: Style, tile: Tile) -> float:
    """A model of the time, to choose by: a warp's multiply-adds, 30 instructions a load that it stages, and the bytes.

    A multiprocessor issues for 4 warps at a time, and moves about 20 bytes a cycle if all want some.
    """
    chunks = -(-layer.c // layer.groups // tile.channels) * -(-layer.r // tile.kernel_rows)
    sums = layer.terms * style.filters * style.pieces * style.neighbours * style.spread
    weights = tile.filters * tile.channels * tile.kernel_rows * layer.s
    pixels = tile.channels * tile.lines(layer) * tile.wide
    each = 1.2 * sums + chunks * (30 * (weights + pixels) / (WARP * tile.warps) + 300)
    moved = chunks * 4 * (weights + pixels * (1 + 8 / tile.wide))
    moved += tile.filters * tile.rows * (4 * tile.columns + 32)
    multiprocessors = device.limits()["multiprocessors"]
    held = max(1, min(RESIDENT // tile.warps, 4 * STAGE // tile.staged(layer)))
    waves = -(-tile.grid(layer) // (multiprocessors * held))
    busy = min(held, -(-tile.grid(layer) // multiprocessors))
    return waves * (each * max(busy * tile.warps, 8) / 4 + busy * moved / 20)


def wavefronts(tile: Tile, layer: Layer, style: Style, pitch: int) -> int:
    """Passes that the first warp's load from the patch takes: 32 banks of one element, for vectors 8 lanes a pass."""
    at = [
        lane // tile.across % tile.down * layer.stride[0] * pitch
        + lane % tile.across * style.neighbours * (1 if style.neighbours > 1 else layer.stride[1])
        for lane in range(WARP)
    ]
    width = 4 if style.neighbours > 1 else 1
    total = 0
    for first in range(0, WARP, WARP // width):
        places = {a // width for a in at[first : first + WARP // width]}
        total += max(sum(place % (WARP // width) == bank for place in places) for bank in range(WARP // width))
    return total


@functools.lru_cache(4096)
def numbers_of(a: Layer) -> tuple[tuple, tuple]:
    """What the kernels on flat arrays are told of a layer."""
    shape = a.h, a.w, a.p, a.q, a.r, a.s, a.c, a.c // a.groups, a.k // a.groups, a.groups, a.n
    window = *a.stride, *a.padding, *a.dilation
    return tuple(map(np.int32, shape)), tuple(map(np.int32, window))


# ------------------------------------------------------------------------------------------------------ on the device
# Arrays are flat here, and ``shape`` is (H, W, P, Q, R, S, C, C / groups, K / groups, groups, N). All is 32-bit.


@cuda.jit(device=True)
def block_place(shape, tile):
    """The block's image, group, and first filter in the group, row and column of the output."""
    block, filters = np.uint32(cuda.blockIdx.x), np.uint32(tile[14])
    line = np.uint32(block // filters)
    image = np.uint32(line // np.uint32(tile[16]))
    plane = np.uint32(image // np.uint32(tile[15]))
    n = np.uint32(plane // np.uint32(shape[9]))
    k, q, p = block - line * filters, line - image * tile[16], image - plane * tile[15]
    group = np.int32(plane - n * shape[9])
    return np.int32(n), group, np.int32(k * tile[6]), np.int32(p * tile[2]), np.int32(q * tile[3])


@cuda.jit(device=True)
def lane_place(tile):
    """This thread's row and column among the lanes, and the place of its warp among those for filters."""
    warp = np.uint32(np.uint32(cuda.threadIdx.x) // np.uint32(WARP))
    part = np.uint32(warp // np.uint32(tile[7]))  # of the pixels
    lane = np.uint32(np.uint32(cuda.threadIdx.x) % np.uint32(WARP) + part * WARP)
    y = np.uint32(lane // np.uint32(tile[0]))
    return np.int32(y), np.int32(lane - y * tile[0]), np.int32(warp - part * tile[7])


@cuda.jit(device=True)
def start(wide, high):
    """This thread's column, row and plane in blocks of rows, and how far it is to its next: no division in the loop."""
    thread, threads = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockDim.x)
    line, lines = np.uint32(thread // np.uint32(wide)), np.uint32(threads // np.uint32(wide))
    plane, planes = np.uint32(line // np.uint32(high)), np.uint32(lines // np.uint32(high))
    place = np.int32(thread - line * wide), np.int32(line - plane * high), np.int32(plane)
    return place, (np.int32(threads - lines * wide), np.int32(lines - planes * high), np.int32(planes))


@cuda.jit(device=True)
def after(place, step, wide, high):
    """The place that a thread looks after next."""
    z, y, c = np.int32(place[0] + step[0]), np.int32(place[1] + step[1]), np.int32(place[2] + step[2])
    if z >= wide:
        z, y = np.int32(z - wide), np.int32(y + 1)
    if y >= high:
        y, c = np.int32(y - high), np.int32(c + 1)
    return z, y, c


@cuda.jit(device=True)
def seen(x, plane, place, channels, top, left, shape):
    """An element of x, or 0 around the image. As unsigned numbers negative ones are large: two comparisons do."""
    row, column = np.uint32(top + place[1]), np.uint32(left + place[0])
    value = f0
    if row < np.uint32(shape[0]) and column < np.uint32(shape[1]) and place[2] < channels:
        value = x[np.uint32(((plane + place[2]) * shape[0] + row) * shape[1] + column)]
    return value


@cuda.jit(device=True)
def put_pixel(stage, base, place, channels, lines, pitch, half, value):
    if place[2] < channels:
        split = np.int32(half > 0)
        column = (place[0] >> split) + (place[0] & split) * half
        stage[np.uint32(base + (place[2] * lines + place[1]) * pitch + column)] = value


@cuda.jit(device=True)
def stage_patch(stage, base, x, plane, channels, top, left, lines, shape, tile):
    """The block's threads lie along the rows of the patch; four loads of each are under way at once."""
    half, wide, pitch = np.int32(tile[10]), np.int32(tile[11]), np.int32(tile[12])
    a, step = start(wide, lines)
    while a[2] < channels:
        b = after(a, step, wide, lines)
        c = after(b, step, wide, lines)
        d = after(c, step, wide, lines)
        at_a = seen(x, plane, a, channels, top, left, shape)
        at_b = seen(x, plane, b, channels, top, left, shape)
        at_c = seen(x, plane, c, channels, top, left, shape)
        at_d = seen(x, plane, d, channels, top, left, shape)
        put_pixel(stage, base, a, channels, lines, pitch, half, at_a)
        put_pixel(stage, base, b, channels, lines, pitch, half, at_b)
        put_pixel(stage, base, c, channels, lines, pitch, half, at_c)
        put_pixel(stage, base, d, channels, lines, pitch, half, at_d)
        a = after(d, step, wide, lines)


@cuda.jit(device=True)
def weight_of(w, first, limit, terms, place):
    """Beyond the last filter of the group the last one stands in: nobody stores what is made of it."""
    return w[np.uint32(first + min(place[1], limit) * terms + place[0])]


@cuda.jit(device=True)
def put_weight(stage, place, filters, pitch, value):
    if place[2] == 0:
        stage[np.uint32(place[0] * pitch + place[1])] = value


@cuda.jit(device=True)
def stage_weights(stage, w, first, last, skip, run, shape, tile):
    """Of each filter ``run`` weights that are neighbours in memory, ``skip`` behind its first."""
    filters, pitch, terms = np.int32(tile[6]), np.int32(tile[13]), np.int32(shape[7] * shape[4] * shape[5])
    source = np.int32(first * terms + skip)
    limit = np.int32(last - first)
    a, step = start(run, filters)
    while a[2] == 0:
        b = after(a, step, run, filters)
        c = after(b, step, run, filters)
        d = after(c, step, run, filters)
        at_a, at_b = weight_of(w, source, limit, terms, a), weight_of(w, source, limit, terms, b)
        at_c, at_d = weight_of(w, source, limit, terms, c), weight_of(w, source, limit, terms, d)
        put_weight(stage, a, filters, pitch, at_a)
        put_weight(stage, b, filters, pitch, at_b)
        put_weight(stage, c, filters, pitch, at_c)
        put_weight(stage, d, filters, pitch, at_d)
        a = after(d, step, run, filters)


@cuda.jit(device=True)
def fill(stage, x, w, place, c, r, channels, rows, shape, window, tile):
    """Stage a chunk: ``channels`` channels from c on, ``rows`` rows of the kernel from r on. Where the patch begins."""
    n, group, k, p, q = place
    run = np.int32(channels * rows * shape[5])
    base = np.int32((run * tile[13] + 3) // 4 * 4)
    first, last = np.int32(group * shape[8] + k), np.int32(group * shape[8] + shape[8] - 1)
    stage_weights(stage, w, first, last, np.int32((c * shape[4] + r) * shape[5]), run, shape, tile)
    top, left = np.int32(p * window[0] + r * window[4] - window[2]), np.int32(q * window[1] - window[3])
    plane = np.int32(n * shape[6] + group * shape[7] + c)
    stage_patch(stage, base, x, plane, channels, top, left, np.int32(tile[17]), shape, tile)
    return base


# ------------------------------------------------------------------------------------------------ sliding along a row
# Numbers that are known when this is compiled are written np.int32(7), not 7: Numba would compile a device function
# anew for each literal, and the compiler inlines them all anyway.


@cuda.jit(device=True)
def multiply(stage, weight, values, first, totals, filters):
    """One tap: products of 8 weights, which all lanes share, and 8 values that are in registers; or of one weight."""
    if filters == 1:
        for j in range(4):
            totals[0, j] += stage[np.uint32(weight)] * values[0, first + j]
            totals[0, 4 + j] += stage[np.uint32(weight)] * values[1, first + j]
    else:
        a, b = load128(stage, weight), load128(stage, weight + 4)
        for i in range(4):
            for j in range(4):
                totals[i, j] += a[i] * values[0, first + j]
                totals[i, 4 + j] += a[i] * values[1, first + j]
                totals[4 + i, j] += b[i] * values[0, first + j]
                totals[4 + i, 4 + j] += b[i] * values[1, first + j]


@cuda.jit(device=True)
def read(stage, at, second, first, values):
    """Four neighbours of each of the thread's two pieces."""
    a, b = load128(stage, at), load128(stage, at + second)
    for j in range(4):
        values[0, first + j] = a[j]
        values[1, first + j] = b[j]


@cuda.jit(device=True)
def segment(stage, at, second, weight, pitch, taps, totals, filters):
    """Up to four taps of a row: pixel j sees at tap s what pixel j + 1 saw at tap s - 1."""
    values = cuda.local.array((2, 8), np.float32)
    read(stage, np.int32(at), second, np.int32(0), values)
    if taps > 1:
        read(stage, np.int32(at + 4), second, np.int32(4), values)
    multiply(stage, np.int32(weight), values, np.int32(0), totals, filters)
    if taps > 1:
        multiply(stage, np.int32(weight + pitch), values, np.int32(1), totals, filters)
    if taps > 2:
        multiply(stage, np.int32(weight + 2 * pitch), values, np.int32(2), totals, filters)
    if taps > 3:
        multiply(stage, np.int32(weight + 3 * pitch), values, np.int32(3), totals, filters)


@cuda.jit(device=True)
def segment_by_two(stage, at, half, second, weight, pitch, taps, totals, filters):
    """Up to eight taps with stride 2: even taps see even columns, which lie side by side, and odd taps odd ones."""
    values = cuda.local.array((2, 16), np.float32)
    read(stage, np.int32(at), second, np.int32(0), values)
    if taps > 1:
        read(stage, np.int32(at + half), second, np.int32(8), values)
    if taps > 2:
        read(stage, np.int32(at + 4), second, np.int32(4), values)
    if taps > 3:
        read(stage, np.int32(at + half + 4), second, np.int32(12), values)
    multiply(stage, np.int32(weight), values, np.int32(0), totals, filters)
    if taps > 1:
        multiply(stage, np.int32(weight + pitch), values, np.int32(8), totals, filters)
    if taps > 2:
        multiply(stage, np.int32(weight + 2 * pitch), values, np.int32(1), totals, filters)
    if taps > 3:
        multiply(stage, np.int32(weight + 3 * pitch), values, np.int32(9), totals, filters)
    if taps > 4:
        multiply(stage, np.int32(weight + 4 * pitch), values, np.int32(2), totals, filters)
    if taps > 5:
        multiply(stage, np.int32(weight + 5 * pitch), values, np.int32(10), totals, filters)
    if taps > 6:
        multiply(stage, np.int32(weight + 6 * pitch), values, np.int32(3), totals, filters)
    if taps > 7:
        multiply(stage, np.int32(weight + 7 * pitch), values, np.int32(11), totals, filters)


@cuda.jit(device=True)
def slide_row(stage, at, half, second, weight, pitch, taps, totals, by_two, filters):
    """All taps of a row of the kernel. Common lengths are known when this is compiled: no tests between taps."""
    if by_two and taps == 7 and filters > 1:
        segment_by_two(stage, at, half, second, weight, pitch, np.int32(7), totals, filters)
    elif by_two:
        s = np.int32(0)
        while s < taps:
            left = np.int32(taps - s)
            segment_by_two(stage, np.int32(at + (s >> 1)), half, second, weight, pitch, left, totals, filters)
            s, weight = np.int32(s + 8), np.int32(weight + 8 * pitch)
    elif taps == 3:
        segment(stage, at, second, weight, pitch, np.int32(3), totals, filters)
    else:
        s = np.int32(0)
        while s < taps:
            segment(stage, np.int32(at + s), second, weight, pitch, np.int32(taps - s), totals, filters)
            s, weight = np.int32(s + 4), np.int32(weight + 4 * pitch)


@cuda.jit(device=True)
def store_rows(out, bias, relu, place, y, z, f, totals, shape, tile, aligned, filters):
    first = np.int32(place[2] + filters * f)
    p, q = np.int32(place[3] + y), np.int32(place[4] + 4 * z)
    store_row(out, bias, relu, place, first, p, q, totals, np.int32(0), shape, tile, aligned)
    if filters > 1:  # written out: an index that is not constant would put the totals into memory
        store_row(out, bias, relu, place, first, p, q, totals, np.int32(1), shape, tile, aligned)
        store_row(out, bias, relu, place, first, p, q, totals, np.int32(2), shape, tile, aligned)
        store_row(out, bias, relu, place, first, p, q, totals, np.int32(3), shape, tile, aligned)
        store_row(out, bias, relu, place, first, p, q, totals, np.int32(4), shape, tile, aligned)
        store_row(out, bias, relu, place, first, p, q, totals, np.int32(5), shape, tile, aligned)
        store_row(out, bias, relu, place, first, p, q, totals, np.int32(6), shape, tile, aligned)
        store_row(out, bias, relu, place, first, p, q, totals, np.int32(7), shape, tile, aligned)


@cuda.jit(device=True)
def store_row(out, bias, relu, place, first, p, q, totals, i, shape, tile, aligned):
    """What a thread made of its filter number i: two pieces of four neighbours."""
    if first + i < shape[8]:
        k = np.int32(place[1] * shape[8] + first + i)
        plane = np.int32(place[0] * shape[9] * shape[8] + k)
        store_piece(out, bias, relu, k, plane, p, q, totals, i, np.int32(0), shape, aligned)
        store_piece(
            out,
            bias,
            relu,
            k,
            plane,
            np.int32(p + tile[4]),
            np.int32(q + tile[5]),
            totals,
            i,
            np.int32(4),
            shape,
            aligned,
        )


@cuda.jit(device=True)
def store_piece(out, bias, relu, k, plane, p, q, totals, i, j, shape, aligned):
    """At once where all rows are a multiple of four, else one after another."""
    left = shape[3] - q
    if p < shape[2] and left > 0:
        at = np.uint32((plane * shape[2] + p) * shape[3] + q)
        a, b = finish(totals[i, j], bias, k, relu), finish(totals[i, j + 1], bias, k, relu)
        c, d = finish(totals[i, j + 2], bias, k, relu), finish(totals[i, j + 3], bias, k, relu)
        if aligned:
            store128(out, at, (a, b, c, d))
        else:
            out[at] = a
            if left > 1:
                out[np.uint32(at + 1)] = b
            if left > 2:
                out[np.uint32(at + 2)] = c
            if left > 3:
                out[np.uint32(at + 3)] = d


@cuda.jit(device=True)
def store(out, bias, relu, n, group, f, p, q, total, shape):
    if f < shape[8] and p < shape[2] and q < shape[3]:
        k = group * shape[8] + f
        out[np.uint32(((n * shape[9] * shape[8] + k) * shape[2] + p) * shape[3] + q)] = finish(total, bias, k, relu)


@cuda.jit(device=True)
def store_each(out, bias, relu, place, first, y, z, totals, shape, tile):
    """What a thread made of eight filters and eight pixels that lie apart; written out as in `store_rows`."""
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(0), shape, tile)
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(1), shape, tile)
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(2), shape, tile)
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(3), shape, tile)
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(4), shape, tile)
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(5), shape, tile)
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(6), shape, tile)
    store_pixels(out, bias, relu, place, first, y, z, totals, np.int32(7), shape, tile)


@cuda.jit(device=True)
def store_pixels(out, bias, relu, place, first, y, z, totals, i, shape, tile):
    for j in range(8):
        q = place[4] + z + j * tile[0]
        store(out, bias, relu, place[0], place[1], first + i, place[3] + y, q, totals[i, j], shape)
