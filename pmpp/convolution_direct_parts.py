"""What the tiled rungs of `pmpp.convolution_direct` share: how a layer is cut into blocks, and the way into shared memory.

A block makes a rectangle of one output image, for some of the filters of a group. It goes through the group's channels
in chunks: it stages the weights of its filters and the patch of x that its rectangle sees, with zeros around the image,
and multiplies from shared memory alone.
"""

from __future__ import annotations

import functools
import itertools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.convolution_layer import Layer
from pmpp.lab import device

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
    blocks: tuple[int, int, int]  # along the filters of a group, the rows and the columns
    warps: int  # of a block

    def lines(self, layer: Layer) -> int:
        """Rows of the patch of one channel."""
        return (self.rows - 1) * layer.stride[0] + (self.kernel_rows - 1) * layer.dilation[0] + 1

    def staged(self, layer: Layer) -> int:
        """Elements of shared memory."""
        taps = self.channels * self.kernel_rows * layer.s
        return -(-taps * self.weight_pitch // 4) * 4 + self.channels * self.lines(layer) * self.pitch

    def grid(self, layer: Layer) -> int:
        return math.prod(self.blocks) * layer.n * layer.groups


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
    for across, beside in itertools.product(range(1, lanes + 1), (False, True)):
        if across > 1 and (across - 1) * wide >= layer.q or (beside and style.pieces == 1):
            break
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
            blocks, filter_warps * pixel_warps,
        )  # fmt: skip
        tile = _chunked(layer, tile)
        if tile.kernel_rows:
            yield _time(layer, style, tile), tile


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


def _time(layer: Layer, style: Style, tile: Tile) -> float:
    """A model of the time, to choose by: a warp's multiply-adds, 12 instructions a load that it stages, and the bytes.

    A multiprocessor issues for 4 warps at a time, and moves about 20 bytes a cycle if all want some.
    """
    chunks = -(-layer.c // layer.groups // tile.channels) * -(-layer.r // tile.kernel_rows)
    sums = layer.terms * style.filters * style.pieces * style.neighbours * style.spread
    lines, runs = tile.channels * tile.lines(layer), tile.channels * tile.kernel_rows * layer.s
    loads = lines * -(-tile.wide // WARP) + tile.filters * -(-runs // WARP)
    each = sums + chunks * (12 * loads / tile.warps + 100)
    read = chunks * (lines * (4 * tile.wide + 32) + 4 * tile.filters * runs)
    written = tile.filters * tile.rows * (4 * tile.columns + 32)
    multiprocessors = device.limits()["multiprocessors"]
    held = max(1, min(RESIDENT // tile.warps, 4 * STAGE // tile.staged(layer)))
    waves = -(-tile.grid(layer) // (multiprocessors * held))
    busy = min(held, -(-tile.grid(layer) // multiprocessors))
    return waves * (each * max(busy * tile.warps, 8) / 4 + busy * (read + written) / 20)


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


# ------------------------------------------------------------------------------------------------------ on the device


@cuda.jit(device=True)
def block_place(out, tile, groups):
    """The block's image, its group, and its first filter in the group, row and column of the output."""
    filters, rows, columns = tile[14]
    line = np.uint32(np.uint32(cuda.blockIdx.x) // np.uint32(filters))
    k = np.uint32(cuda.blockIdx.x) - line * filters
    image = np.uint32(line // np.uint32(columns))
    q = line - image * columns
    plane = np.uint32(image // np.uint32(rows))
    p = image - plane * rows
    n = np.uint32(plane // np.uint32(groups))
    return n, plane - n * groups, k * tile[6], p * tile[2], q * tile[3]


@cuda.jit(device=True)
def seen(x, n, channel, row, column):
    """An element of x, or 0 around the image. As unsigned numbers negative ones are large."""
    if np.uint32(row) < np.uint32(x.shape[2]) and np.uint32(column) < np.uint32(x.shape[3]):
        return x[np.uint32(n), np.uint32(channel), np.uint32(row), np.uint32(column)]
    return f0


@cuda.jit(device=True)
def stage_weights(stage, w, first, last, c, r, channels, rows, tile):
    """A warp takes filters one after another, and its lanes the taps: they are neighbours in memory."""
    lane, warp = np.int32(cuda.threadIdx.x % WARP), np.int32(cuda.threadIdx.x // WARP)
    warps, taps, across = np.int32(tile[15]), np.int32(channels * rows * w.shape[3]), np.int32(w.shape[3])
    pitch, filters = np.int32(tile[13]), np.int32(tile[6])
    plane = np.uint32(rows * w.shape[3])
    tap = lane
    while tap < taps:
        channel = np.uint32(np.uint32(tap) // plane)
        rest = np.uint32(tap - channel * plane)
        row = np.uint32(rest // np.uint32(across))
        column = np.uint32(rest - row * across)
        f = warp
        while f < filters:  # beyond the last filter the last one stands in: nobody stores what is made of it
            k = np.uint32(min(first + f, last))
            stage[np.uint32(tap * pitch + f)] = w[k, np.uint32(c + channel), np.uint32(r + row), column]
            f += warps
        tap += WARP


@cuda.jit(device=True)
def stage_patch(stage, base, x, n, channel, top, left, channels, lines, tile):
    """A warp takes rows, four at a time so that four loads are under way, and its lanes the columns."""
    lane, warp = np.int32(cuda.threadIdx.x % WARP), np.int32(cuda.threadIdx.x // WARP)
    half, wide, pitch, warps = np.int32(tile[10]), np.int32(tile[11]), np.int32(tile[12]), np.int32(tile[15])
    total, height = np.uint32(channels * lines), np.uint32(lines)
    first = warp
    while first < total:
        a, b, c, d = np.uint32(first), np.uint32(first + warps), np.uint32(first + 2 * warps), np.uint32(first + 3 * warps)
        ca, cb, cc, cd = np.uint32(a // height), np.uint32(b // height), np.uint32(c // height), np.uint32(d // height)
        ra, rb, rc, rd = top + (a - ca * height), top + (b - cb * height), top + (c - cc * height), top + (d - cd * height)
        last = np.uint32(channel + channels - 1)
        ca, cb, cc, cd = channel + ca, min(channel + cb, last), min(channel + cc, last), min(channel + cd, last)
        z = lane
        while z < wide:
            column = left + z
            va, vb = seen(x, n, ca, ra, column), seen(x, n, cb, rb, column)
            vc, vd = seen(x, n, cc, rc, column), seen(x, n, cd, rd, column)
            at = base + first * pitch + (z if half == 0 else (z & 1) * half + (z >> 1))
            stage[np.uint32(at)] = va
            if b < total:
                stage[np.uint32(at + warps * pitch)] = vb
            if c < total:
                stage[np.uint32(at + 2 * warps * pitch)] = vc
            if d < total:
                stage[np.uint32(at + 3 * warps * pitch)] = vd
            z += WARP
        first += 4 * warps


@cuda.jit(device=True)
def fill(stage, x, w, n, group, k, p, q, c, r, channels, rows, window, tile):
    """Stage a chunk. Returns where the patch begins, and its rows for one channel."""
    filters = w.shape[0] // window[6]
    lines = (tile[2] - 1) * window[0] + (rows - 1) * window[4] + 1
    base = (channels * rows * w.shape[3] * tile[13] + 3) // 4 * 4
    stage_weights(stage, w, group * filters + k, group * filters + filters - 1, c, r, channels, rows, tile)
    top, left = p * window[0] + r * window[4] - window[2], q * window[1] - window[3]
    stage_patch(stage, base, x, n, group * w.shape[1] + c, top, left, channels, lines, tile)
    return np.int32(base), np.int32(lines)


@cuda.jit(device=True)
def lane_place(tile):
    """This thread's row and column among the lanes, and the place of its warp among those for filters."""
    warp = np.uint32(cuda.threadIdx.x // WARP)
    part = np.uint32(warp // np.uint32(tile[7]))  # of the pixels
    lane = np.uint32(cuda.threadIdx.x % WARP + part * WARP)
    y = np.uint32(lane // np.uint32(tile[0]))
    return np.int32(y), np.int32(lane - y * tile[0]), np.int32(warp - part * tile[7])
