"""Convolution layers of float16 or bfloat16 on tensor cores: the output, and its gradients by input and weights.

All three are products of matrices, as in `pmpp.kernels.convolution_layer.implicit`, and none writes the matrix of
columns to memory. Tensor cores want operands in chunks of 16 bytes, which asynchronous copies bring from device memory
into shared memory. In an image of shape (C, H, W) no such chunk belongs together: neighbours in a row meet a kernel's
column at any place. So images are first written with their channels last. Then eight channels of a pixel are a chunk,
and whatever row and column of the kernel meets the pixel, the chunk begins at a multiple of 16 bytes. A pixel beyond
the image's edge is a chunk of zeros, which an asynchronous copy writes by itself.

    output        filters x (R S C)  times  (R S C) x pixels of the output
    by input      channels x (R S K) times  (R S K) x pixels of the input
    by weights    filters x pixels   times  pixels x (R S C)

The first two are one kernel, `gathered_kernel`: they differ in which pixel of the other image a row and a column of the
kernel meet. The third one, `correlated_kernel`, sums over all pixels, so its sum is cut into parts. Results are stored
with their channels first again. Multiplication, fragments and the pipeline are those of `pmpp.kernels.matmul.mixed`. On
Hopper, layers without groups that have enough pixels are taken by `pmpp.kernels.convolution_layer.mixed_warpgroups`,
and those of them whose stride is 1 by `pmpp.kernels.convolution_layer.mixed_boxes`, if their channels come in 64s.

Source: Chetlur et al., "cuDNN: efficient primitives for deep learning" (2014), section 3; CUTLASS, "Implicit GEMM
convolution".
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.common.division import Divisor, divisor, quotient
from pmpp.kernels.convolution_layer import mixed_boxes, mixed_warpgroups
from pmpp.kernels.convolution_layer.definition import MOST, Layer, layer_of
from pmpp.kernels.convolution_layer.input_gradients import as_shape
from pmpp.kernels.convolution_layer.mixed_boxes import RESULTS, sum_of_slices
from pmpp.kernels.convolution_layer.mixed_places import (
    BLOCK,
    LOADS,
    Places,
    Product,
    begin_walk,
    copy_chunk,
    copy_met,
    far_of,
    pixel_of,
    walk_of,
    walk_on,
)
from pmpp.kernels.matmul import mixed
from pmpp.kernels.matmul.mixed_tiles import (
    a_reader,
    b_reader,
    by_pitch,
    copier,
    fragment_storer,
    panel_storer,
    stepper,
)
from pmpp.kernels.matmul.tensor_cores import (
    CHUNK,
    GROUP,
    KERNELS,
    NOTHING,
    PANEL_M,
    PANEL_N,
    WARP,
    Tile,
    order_of_tiles,
    swizzled_place,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_pair
from pmpp.runtime.matrix import commit_copies, wait_copies

__all__ = ["DTYPES", "convolution", "input_gradient", "weight_gradient"]

DTYPES, CAPABILITY = mixed.DTYPES, mixed.CAPABILITY
#: From large to small: the first one of which there are enough is taken, and that is not mostly beyond the edges.
TILES = (Tile(128, 128, 32, 2, 3), Tile(64, 128, 32, 1, 4), Tile(64, 64, 32, 1, 3))
SIDE, SIDE_PITCH, PAIR_SIDE = 32, 33, 64  # of the tiles that are transposed, in words
FAR = 2**15 - 1  # the most rows or columns that a pixel may lie from an image's first: a place has 16 bits
SHORTEST = 512  # pixels in a part of a sum


# ------------------------------------------------------------------------------------------------------- channels last


@cuda.jit(device=True)
def block_of(across, down, wide, high):
    """The first column and row of a block's tile, and its image. Blocks are few; divisions here cost little."""
    block = np.int64(cuda.blockIdx.x)
    tile = block // across
    image = tile // down
    return (block - tile * across) * wide, (tile - image * down) * high, image


@cuda.jit(device=True)
def first_channel(image, channels, depth, pitch):
    """The first channel of an image, counted in all."""
    return image * (channels if depth == pitch else pitch // depth * channels)


@cuda.jit(device=True)
def channel_of(padded, channels, depth, pitch):
    """The channel of its image at a place among those that are padded, or -1. Only several groups take a division."""
    if depth == pitch:
        return padded if padded < channels else np.int64(-1)
    group = padded // depth
    channel = padded - group * depth
    return group * channels + channel if padded < pitch and channel < channels else np.int64(-1)


@cuda.jit
def channels_last_kernel(x, out, channels, pixels, depth, pitch):
    """Images of (channels, pixels) become images of (pixels, pitch); ``depth`` of a group's, padded with zeros.

    A block transposes SIDE x SIDE elements in shared memory, so that it reads and writes neighbours.
    """
    tile = cuda.shared.array((SIDE, SIDE_PITCH), np.uint16)
    tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
    pixel0, channel0, image = block_of((pixels + SIDE - 1) // SIDE, (pitch + SIDE - 1) // SIDE, SIDE, SIDE)
    first = first_channel(image, channels, depth, pitch)
    for i in range(ty, SIDE, BLOCK // SIDE):
        padded, pixel, value = channel0 + i, pixel0 + tx, np.uint16(0)
        channel = channel_of(padded, channels, depth, pitch)
        if channel >= 0 and pixel < pixels:
            value = x[(first + channel) * pixels + pixel]
        tile[i, tx] = value
    cuda.syncthreads()
    for i in range(ty, SIDE, BLOCK // SIDE):
        pixel, padded = pixel0 + i, channel0 + tx
        if pixel < pixels and padded < pitch:
            out[(image * pixels + pixel) * pitch + padded] = tile[tx, i]


@cuda.jit
def channels_last_pairs_kernel(x, out, channels, pixels, depth, pitch):
    """The same on words of two pixels and of two channels, in tiles of 64 x 64: a warp moves 128 bytes at a time."""
    tile = cuda.shared.array((PAIR_SIDE, SIDE_PITCH), np.uint32)
    tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
    words = pixels // 2
    across, down = (pixels + PAIR_SIDE - 1) // PAIR_SIDE, (pitch + PAIR_SIDE - 1) // PAIR_SIDE
    word0, channel0, image = block_of(across, down, SIDE, PAIR_SIDE)
    first = first_channel(image, channels, depth, pitch)
    for i in range(ty, PAIR_SIDE, BLOCK // SIDE):
        padded, word, value = channel0 + i, word0 + tx, np.uint32(0)
        channel = channel_of(padded, channels, depth, pitch)
        if channel >= 0 and word < words:
            value = x[(first + channel) * words + word]
        tile[i, tx] = value
    cuda.syncthreads()
    low, half = np.uint32(0xFFFF), np.uint32(16)
    for i in range(ty, SIDE, BLOCK // SIDE):
        pixel, padded = 2 * (word0 + i), channel0 + 2 * tx
        if pixel < pixels and padded < pitch:
            at = ((image * pixels + pixel) * pitch + padded) // 2
            first, second = tile[2 * tx, i], tile[2 * tx + 1, i]  # two pixels of a channel, and of the next one
            out[at] = (first & low) | (second << half)
            out[at + pitch // 2] = (first >> half) | (second & ~low)


def depth_of(channels: int, groups: int) -> int:
    """The room that a group's channels take where they lie last: whole chunks."""
    return round_up(channels // groups, CHUNK)


def zeros_for(shape: tuple, w_shape: tuple, stride=1, padding=0, dilation=1, groups=1) -> tuple[int, int] | None:
    """What `channels_last` is given of the images of a layer: how many zeros lie behind their rows, and behind them.

    None if none do. ``shape``: of the layer's input.

    >>> zeros_for((1, 5, 6, 7), (9, 5, 3, 3), padding=1) is None
    True
    """
    return _zeros(layer_of(tuple(shape), tuple(w_shape), stride, padding, dilation, groups))


def _zeros(a: Layer) -> tuple[int, int] | None:
    return tuple(a.padding) if mixed_boxes.takes(a) else None


def channels_last(x: typing.Any, groups: int, zeros: tuple[int, int] | None = None, *, stream=0) -> typing.Any:
    """Images (N, C, H, W) of 16 bits, contiguous, as (N, H, W, groups, `depth_of` channels), a vector of uint16.

    `convolution` makes it of x, and both gradients of dy: pass what was made once to spare the others this.
    ``zeros``: what `zeros_for` says of the layer, in the order that `pmpp.kernels.convolution_layer.mixed_boxes` wants.

    >>> channels_last(np.float16([[[[1.0]], [[2.0]]]]), 1).copy_to_host().view(np.float16)
    array([1., 2., 0., 0., 0., 0., 0., 0.], dtype=float16)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=4, stream=stream)
    n, c, h, w = x.shape
    groups = as_integer("groups", groups, 1)
    if c % groups:
        raise ValueError(f"groups must divide the {c} channels of x, was {groups}")
    if zeros is not None:
        return mixed_boxes.padded(x, as_pair("zeros", zeros, 0), stream)
    channels, depth = c // groups, depth_of(c, groups)
    pitch = depth * groups
    made = device.empty((n * h * w * pitch,), np.uint16, stream=stream)
    if not made.size:
        return made
    pairs = h * w % 2 == 0 and device.address(x) % 4 == 0
    kernel, side, kind = (
        (channels_last_pairs_kernel, PAIR_SIDE, np.uint32) if pairs else (channels_last_kernel, SIDE, np.uint16)
    )
    grid = n * blocks(h * w, side) * blocks(pitch, side)
    sizes = map(np.int64, (channels, h * w, depth, pitch))
    kernel[grid, (SIDE, BLOCK // SIDE), stream](x.reshape(-1).view(kind), made.view(kind), *sizes)
    return made


def _lying_last(name: str, given: typing.Any, x: typing.Any, a: Layer, stream: typing.Any) -> typing.Any:
    """What `channels_last` makes of x, or has made, which the caller has ``given``."""
    if given is None:
        return channels_last(x, a.groups, _zeros(a), stream=stream)
    return _as_last(name, given, x.shape, a, stream)


def _as_last(name: str, given: typing.Any, shape: tuple, a: Layer, stream: typing.Any) -> typing.Any:
    """What was given as the result of `channels_last` for images of that shape. Raises TypeError or ValueError."""
    n, c, h, w = shape
    down, along = _zeros(a) or (0, 0)
    length = (n * (h + down) * (w + along) * a.groups * depth_of(c, a.groups),)
    return device.as_input(name, given, dtypes="uint16", ndim=1, shape=length, stream=stream)


@cuda.jit
def weights_kernel(w, out, rows, terms, window, depth, row_step, term_step, group_step):
    """A row for each filter, or for each channel, of which one element after another belongs to (r, s) and a term.

    ``terms``: of a group's channels, or filters, for which there is room for ``depth``. The steps are those of w.
    """
    i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if i < out.size:
        term, place, row = i % depth, i // depth % window, i // (depth * window)
        at = row // rows * group_step + row % rows * row_step + term * term_step + place
        out[i] = w[at] if term < terms else np.uint16(0)


def weights_in_rows(w: typing.Any, a: Layer, by_filters: bool, stream: typing.Any) -> typing.Any:
    """A matrix for each group: a row for each filter, or else for each channel, as `weights_kernel` says."""
    window, filters, channels = a.r * a.s, a.k // a.groups, a.c // a.groups
    own = window, channels * window  # from one channel to the next in w, and from one filter to the next
    rows, terms, steps = (filters, channels, own[::-1]) if by_filters else (channels, filters, own)
    depth = round_up(terms, CHUNK)
    made = device.empty((a.groups * rows * window * depth,), np.uint16, stream=stream)
    sizes = map(np.int64, (rows, terms, window, depth, *steps, filters * channels * window))
    weights_kernel[blocks(made.size, BLOCK), BLOCK, stream](w.reshape(-1).view(np.uint16), made, *sizes)
    return made


# --------------------------------------------------------------------------------------------------------- the kernels


def loads_of(tile: Tile, rows: int, chunks: int) -> int:
    """How far below each other a thread's chunks lie. Raises ValueError if they are not LOADS."""
    if rows * chunks != LOADS * tile.threads:
        raise ValueError(f"tile must have {LOADS} chunks for each thread, was {tile}")
    return tile.threads // chunks


@functools.lru_cache(KERNELS)
def gathered_kernel(tile: Tile, kind: str, spread: bool, wide: bool, biased: bool) -> typing.Any:
    """The kernel ``(a, x, bias, c, s, g)``: rows of weights times the pixels that they meet, a block for each tile.

    ``spread``: some places meet no pixel, as where a stride is undone. ``wide``: 16 bytes are stored at a time.
    """
    side_m, side_n, depth, panels, stages = tile
    chunks = depth // CHUNK
    place = swizzled_place(chunks)
    first_a, copy_a = copier(side_m, chunks, tile.threads, place)
    a_lines, width, lines = tile.threads // chunks, np.uint32(chunks), loads_of(tile, side_n, chunks)
    multiply = stepper(tile, kind, a_reader(True, place), b_reader(False, place))
    further = np.uint32(lines * chunks * CHUNK)

    @cuda.jit(device=True)
    def in_image(base, row, column, s):
        """Where a result lies: channels are rows, images lie one after another, and ``base`` is the first channel."""
        image = column // s.pixels
        return (image * s.channels + base + row) * s.pixels + column - image * s.pixels

    store_panel = panel_storer(fragment_storer(True, wide, biased, in_image, True))
    a_size, stage_size, ahead = np.uint32(side_m * depth), np.uint32((side_m + side_n) * depth), stages - 1
    warp_n, pending, end_stage = panels * PANEL_N, stages - 2, np.uint32(stages * (side_m + side_n) * depth)
    warps_n = np.uint32(side_n // warp_n)
    tile_of = order_of_tiles(GROUP)

    @cuda.jit(device=True)
    def state_of(column, s, g):
        """Of a column: its image's first pixel, or -1 beyond the last one, and what `far_of` says of its place."""
        image = column // s.pixels
        first = np.int32(image * g.rows * g.columns) if column < s.n else np.int32(-1)
        return first, far_of(column - image * s.pixels, g)

    @cuda.jit(device=True)
    def copy_b(shared, begin, x, images, fars, first, k, s, g):
        """Begin to copy a chunk for each of this thread's columns: the one at ``k`` of the sum."""
        thread = np.uint32(cuda.threadIdx.x)
        line, chunk = np.uint32(thread // width), np.uint32(thread % width)
        k = np.int32(k + np.int32(chunk * np.uint32(CHUNK)))
        window = quotient(k, g.depth_times, g.depth_shift)
        r = quotient(window, g.kernel_times, g.kernel_shift)
        column = np.int32(window - r * g.kernel)
        within = np.int32(first + k - window * g.depth) if k < s.k else np.int32(-1)
        to = np.uint32(begin + place(line, chunk) * np.uint32(CHUNK))
        copy_chunk(shared, to, x, images[0], pixel_of(fars[0], r, column, g, spread), within, g)
        to = np.uint32(to + further)
        copy_chunk(shared, to, x, images[1], pixel_of(fars[1], r, column, g, spread), within, g)
        to = np.uint32(to + further)
        copy_chunk(shared, to, x, images[2], pixel_of(fars[2], r, column, g, spread), within, g)
        to = np.uint32(to + further)
        copy_chunk(shared, to, x, images[3], pixel_of(fars[3], r, column, g, spread), within, g)

    @cuda.jit
    def gathered_fragments_kernel(a, x, bias, c, s, g):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        tiles_m, tiles_n = (s.m + side_m - 1) // side_m, (s.n + side_n - 1) // side_n
        block = np.int64(cuda.blockIdx.x)
        group, block = block // (tiles_m * tiles_n), block % (tiles_m * tiles_n)
        tile_m, tile_n = tile_of(block, tiles_m, tiles_n)
        first_row, first_column = tile_m * side_m, tile_n * side_n
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        row, column = np.uint32(warp // warps_n * PANEL_M), np.uint32(warp % warps_n * warp_n)
        sums, more = NOTHING, NOTHING
        a_left, a_step = np.int32(min(s.m - first_row, np.int64(side_m))), a_lines * s.k
        a_at = first_a(group * s.m * s.k, first_row, np.int64(0), s.k)
        mine = first_column + np.uint32(cuda.threadIdx.x) // width
        one, two = state_of(mine, s, g), state_of(mine + lines, s, g)
        three, four = state_of(mine + 2 * lines, s, g), state_of(mine + 3 * lines, s, g)
        images, fars = (one[0], two[0], three[0], four[0]), (one[1], two[1], three[1], four[1])
        first, coming, end = np.int32(group * g.depth), np.int32(0), np.int32(s.k)
        for stage in range(ahead):
            begin = np.uint32(np.uint32(stage) * stage_size)
            copy_a(shared, begin, a, a_at, a_step, a_left, np.int32(min(end - coming, depth)))
            copy_b(shared, np.uint32(begin + a_size), x, images, fars, first, coming, s, g)
            commit_copies()
            coming, a_at = np.int32(coming + depth), a_at + depth
        now, k0 = np.uint32(0), np.int32(0)
        into = np.uint32(np.uint32(ahead) * stage_size)
        while k0 < end:
            wait_copies(pending)  # the oldest tiles are there: those of this thread,
            cuda.syncthreads()  # and of all; and everyone has read those that are overwritten next
            copy_a(shared, into, a, a_at, a_step, a_left, np.int32(min(end - coming, depth)))
            copy_b(shared, np.uint32(into + a_size), x, images, fars, first, coming, s, g)
            commit_copies()
            sums, more = multiply(shared, now, row, column, sums, more)
            now, into = np.uint32(now + stage_size), now
            if now == end_stage:
                now = np.uint32(0)
            k0, coming, a_at = np.int32(k0 + depth), np.int32(coming + depth), a_at + depth
        base, own, alpha = group * s.m, first_row + row, np.float32(1)
        store_panel(c, base, own, first_column + column, sums, bias, alpha, s)
        if panels == 2:
            store_panel(c, base, own, first_column + column + PANEL_N, more, bias, alpha, s)

    return gathered_fragments_kernel


@functools.lru_cache(KERNELS)
def correlated_kernel(tile: Tile, kind: str) -> typing.Any:
    """The kernel ``(dy, x, sums, s, g, walk, ...)``: filters times (r, s, c), summed over a part's pixels."""
    side_m, side_n, depth, panels, stages = tile
    a_chunks, chunks = side_m // CHUNK, side_n // CHUNK
    a_place, place = swizzled_place(a_chunks), swizzled_place(chunks)
    first_a, copy_a = copier(depth, a_chunks, tile.threads, a_place)
    a_lines, width, lines = tile.threads // a_chunks, np.uint32(chunks), loads_of(tile, depth, chunks)
    multiply = stepper(tile, kind, a_reader(False, a_place), b_reader(True, place))
    store_panel = panel_storer(fragment_storer(False, True, False, by_pitch))
    further = np.uint32(lines * chunks * CHUNK)
    a_size, stage_size, ahead = np.uint32(side_m * depth), np.uint32((side_m + side_n) * depth), stages - 1
    warp_n, pending, end_stage = panels * PANEL_N, stages - 2, np.uint32(stages * (side_m + side_n) * depth)
    warps_n = np.uint32(side_n // warp_n)
    tile_of = order_of_tiles(GROUP)

    @cuda.jit(device=True)
    def copy_b(shared, begin, x, state, ends, within, g, walk):
        """Begin to copy the chunks that (r, s) meets at four pixels. Returns the state at the next one."""
        thread = np.uint32(cuda.threadIdx.x)
        line, chunk = np.uint32(thread // width), np.uint32(thread % width)
        to = np.uint32(begin + place(line, chunk) * np.uint32(CHUNK))
        copy_met(shared, to, x, state, within, g)
        state, to = walk_on(state, ends, walk), np.uint32(to + further)
        copy_met(shared, to, x, state, within, g)
        state, to = walk_on(state, ends, walk), np.uint32(to + further)
        copy_met(shared, to, x, state, within, g)
        state, to = walk_on(state, ends, walk), np.uint32(to + further)
        copy_met(shared, to, x, state, within, g)
        return walk_on(state, ends, walk)

    @cuda.jit
    def correlated_fragments_kernel(dy, x, sums_out, s, g, walk, dy_depth, dy_pitch):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        tiles_m, tiles_n = (s.m + side_m - 1) // side_m, (s.n + side_n - 1) // side_n
        block = np.int64(cuda.blockIdx.x)
        product, block = block // (tiles_m * tiles_n), block % (tiles_m * tiles_n)
        groups = dy_pitch // dy_depth
        part, group = product // groups, product % groups
        tile_m, tile_n = tile_of(block, tiles_m, tiles_n)
        first_row, first_column = tile_m * side_m, tile_n * side_n
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        row, column = np.uint32(warp // warps_n * PANEL_M), np.uint32(warp % warps_n * warp_n)
        sums, more = NOTHING, NOTHING
        coming = part * s.length
        end = np.int32(min(coming + s.length, s.k))
        a_left, a_step = np.int32(min(s.m - first_row, np.int64(side_m))), a_lines * dy_pitch
        a_at, a_more = first_a(group * dy_depth, coming, first_row, dy_pitch), depth * dy_pitch
        # Which row and column of the kernel, and which channels, this thread's chunks belong to.
        mine = first_column + np.int64(np.uint32(cuda.threadIdx.x) % width * np.uint32(CHUNK))
        window = np.int32(mine // g.depth)
        r = np.int32(window // g.kernel)
        across = np.int32(window - r * g.kernel)
        within = np.int32(group * g.depth + mine - window * g.depth) if mine < s.n else np.int32(-1)
        coming = np.int32(coming)
        k0, line = coming, np.int32(np.uint32(cuda.threadIdx.x) // width)
        state, ends = begin_walk(np.int32(coming + line), end, r, across, s, g)
        for stage in range(ahead):
            begin = np.uint32(np.uint32(stage) * stage_size)
            copy_a(shared, begin, dy, a_at, a_step, np.int32(min(end - coming, depth)), a_left)
            state = copy_b(shared, np.uint32(begin + a_size), x, state, ends, within, g, walk)
            commit_copies()
            coming, a_at = np.int32(coming + depth), a_at + a_more
        now, into = np.uint32(0), np.uint32(np.uint32(ahead) * stage_size)
        while k0 < end:
            wait_copies(pending)  # as in `gathered_kernel`
            cuda.syncthreads()
            copy_a(shared, into, dy, a_at, a_step, np.int32(min(end - coming, depth)), a_left)
            state = copy_b(shared, np.uint32(into + a_size), x, state, ends, within, g, walk)
            commit_copies()
            sums, more = multiply(shared, now, row, column, sums, more)
            now, into = np.uint32(now + stage_size), now
            if now == end_stage:
                now = np.uint32(0)
            k0, coming, a_at = np.int32(k0 + depth), np.int32(coming + depth), a_at + a_more
        base, own, alpha = product * s.m * s.n, first_row + row, np.float32(1)
        store_panel(sums_out, base, own, first_column + column, sums, sums_out, alpha, s)
        if panels == 2:
            store_panel(sums_out, base, own, first_column + column + PANEL_N, more, sums_out, alpha, s)

    return correlated_fragments_kernel


@cuda.jit
def add_parts_kernel(sums, dw, filters, channels, window, depth, parts, slices, depth_by, window_by):
    """Each weight's gradient as the sum of its parts, in order; ``sums``: (parts, filters, window, depth).

    ``depth_by`` and ``window_by`` divide: `divisor`. Threads go along the parts, which are many bytes and read in
    order, and write to the weights here and there. ``slices`` threads share the parts of four weights.
    """
    shared = cuda.shared.array((RESULTS, BLOCK), np.float32)
    width, each = BLOCK // slices, filters * window * depth
    which = cuda.threadIdx.x // width
    i = (np.int64(cuda.blockIdx.x) * width + cuda.threadIdx.x - which * width) * RESULTS
    total = sum_of_slices(sums, i, each, parts, slices, which, width, shared)
    if which == 0 and i < each:
        other = quotient(i, depth_by.times, depth_by.shift)
        filter_ = quotient(other, window_by.times, window_by.shift)
        channel, place = i - other * depth, other - filter_ * window
        for k in range(RESULTS):
            if channel + k < channels:
                dw[(filter_ * channels + channel + k) * window + place] = total[k]


# ---------------------------------------------------------------------------------------------------------- the layers


def _checked(a: Layer, **shapes: tuple[int, ...]) -> None:
    """Raises what the arguments of a layer that these kernels do not compute are to be told."""
    capability = device.limits()["compute_capability"]
    if capability < CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this layer needs a GPU of compute capability 8.0 or higher, this one has {said}")
    reach = max(a.h + a.padding.rows, a.w + a.padding.columns)
    if reach > FAR:
        raise ValueError(f"padding must end within {FAR} rows and columns of the image's first, ended at {reach}")
    for name, (count, channels, *rest) in shapes.items():
        padded = math.prod((count, round_up(max(channels // a.groups, 1), CHUNK) * a.groups, *rest))
        if padded > MOST:
            words = f"{(count, channels, *rest)}: take fewer images a call"
            raise ValueError(f"{name} must have at most 2^31 - 1 elements, channels in eights, has shape {words}")


def _rows(
    a: Layer,
    stride: tuple,
    first: tuple,
    step: tuple,
    apart: tuple,
    extents: tuple,
    places: tuple,
    depth: int,
    taps=None,
):
    """`Places` of a layer."""
    pairs = (*stride, *first, *step, *apart)
    r, s = (a.r, a.s) if taps is None else taps
    given = (*places, *extents, s, depth, depth * a.groups, *pairs)
    most = r * s * depth + 256  # and a bit, since threads look beyond the end
    by = *divisor(places[1], places[0] * places[1]), *divisor(s, most), *divisor(depth, most)
    by += *divisor(apart[0], 2 * FAR), *divisor(apart[1], 2 * FAR)
    return Places(*map(np.int32, given), *map(np.int64, by))


def gathered(w, x, bias, out, a: Layer, g: Places, by_filters: bool, stream) -> None:
    """The product of weights and an image whose channels lie last: the output, or else the gradient by the input."""
    n, channels, *extents = out.shape
    pixels, m = math.prod(extents), (a.k if by_filters else a.c) // a.groups
    kind, columns, terms = out.dtype.name, n * pixels, a.r * a.s * int(g.depth)
    side = by_warpgroups(a.groups, columns, m, device.limits()["multiprocessors"])
    if side is not None:
        mixed_warpgroups.gathered(w, x, bias, out, g, side, m, a.c if by_filters else a.k, by_filters, stream)
        return
    weights = weights_in_rows(w, a, by_filters, stream)
    tile = tile_for(a.groups, m, columns, device.limits()["multiprocessors"])
    wide = pixels % CHUNK == 0 and device.address(out) % 16 == 0
    spread = bool(g.apart_rows > 1 or g.apart_columns > 1)
    kernel = gathered_kernel(tile, kind, spread, wide, bias is not None)
    s = Product(*map(np.int64, (m, columns, terms, pixels, channels, 0, 0, *divisor(pixels, columns))))
    flat = out.reshape(-1)
    grid = a.groups * blocks(m, tile.m) * blocks(columns, tile.n)
    kernel[grid, tile.threads, stream, tile.shared](weights, x, flat if bias is None else bias, flat, s, g)


def _correlated(a: Layer) -> tuple[Places, int]:
    """Which pixels of x meet, and how many numbers there are for each filter."""
    depth, first = depth_of(a.c, a.groups), (-a.padding.rows, -a.padding.columns)
    g = _rows(a, a.stride, first, a.dilation, (1, 1), (a.h, a.w), (a.p, a.q), depth)
    return g, a.r * a.s * depth


def correlated(dy, x, sums, kind: str, a: Layer, tile: Tile, parts: int, length: int, stream) -> None:
    """Launch `correlated_kernel` on images whose channels lie last, for parts of so many pixels."""
    (g, n), m, pixels, dy_depth = _correlated(a), a.k // a.groups, a.p * a.q, depth_of(a.k, a.groups)
    by = divisor(pixels, a.n * pixels + tile.stages * tile.depth)
    s = Product(*map(np.int64, (m, n, a.n * pixels, pixels, 0, n, length, *by)))
    grid = parts * a.groups * blocks(m, tile.m) * blocks(n, tile.n)
    kernel, sizes = correlated_kernel(tile, kind), (np.int64(dy_depth), np.int64(dy_depth * a.groups))
    walk = walk_of(loads_of(tile, tile.depth, tile.n // CHUNK), a)
    kernel[grid, tile.threads, stream, tile.shared](dy, x, sums, s, g, walk, *sizes)


@functools.lru_cache(4096)
def as_it_lies(groups: int, filters: int, pixels: int) -> bool:
    """Whether warpgroups compute a gradient by weights, from dy as it lies: eight pixels of an image are a chunk there.

    A warpgroup has 64 filters, and two share a block.
    """
    return groups == 1 and filters > 64 and pixels % CHUNK == 0 and device.limits()["compute_capability"] == (9, 0)


@functools.lru_cache(4096)
def by_warpgroups(groups: int, pixels: int, filters: int, multiprocessors: int) -> int | None:
    """The filters of a tile of `pmpp.kernels.convolution_layer.mixed_warpgroups`, where that has enough; or None."""
    if groups != 1 or device.limits()["compute_capability"] != (9, 0):
        return None
    return mixed_warpgroups.side_for(pixels, filters, multiprocessors)


@functools.lru_cache(4096)
def tile_for(groups: int, m: int, n: int, multiprocessors: int) -> Tile:
    """The largest tile that leaves few multiprocessors without one, and that is not mostly beyond the edges.

    >>> str(tile_for(1, 64, 2**17, 132)), str(tile_for(1, 512, 2048, 132))
    ('64 x 128 x 32, 4 stages', '64 x 128 x 32, 4 stages')
    """
    for tile in TILES:
        grid = groups * blocks(m, tile.m) * blocks(n, tile.n)
        if 10 * grid >= 9 * multiprocessors and m > tile.m // 2:
            return tile
    return TILES[-1]


def convolution(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, *, last=None, stream=0) -> typing.Any:
    """A convolution layer, with sums in float32 that are rounded once.

    Args:
        x: float16 or bfloat16, shape (N, C, H, W), contiguous. With channels in eights it has fewer than 2^31 elements.
        w: of the dtype of x, shape (K, C / groups, R, S), contiguous.
        bias: of the dtype of x, shape (K,), or None.
        stride, padding, dilation, groups: as in `pmpp.kernels.convolution_layer.definition.arguments`.
        last: what `channels_last` made of x, or None to make it.
        stream: the stream to work on.

    Returns a new device array (N, K, P, Q) of the dtype of x, without waiting for the work to be done. The same call
    gives the same bits on the same GPU. Zeros around the image are multiplied: with a weight that is not finite they
    make NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.

    >>> x, w = np.ones((1, 2, 3, 3), np.float16), np.ones((1, 2, 2, 2), np.float16)
    >>> convolution(x, w, np.float16([0.5])).copy_to_host()
    array([[[[8.5, 8.5],
             [8.5, 8.5]]]], dtype=float16)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=4, stream=stream)
    w = device.as_input("w", w, dtypes=x.dtype, ndim=4, stream=stream)
    a = layer_of(x.shape, w.shape, stride, padding, dilation, groups)
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes=x.dtype, ndim=1, shape=(a.k,), stream=stream)
    _checked(a, x=x.shape, out=a.shape)
    out = device.empty(a.shape, x.dtype, stream=stream)
    if out.size:
        last, depth = _lying_last("last", last, x, a, stream), depth_of(a.c, a.groups)
        zeros = _zeros(a)
        if zeros is not None and mixed_boxes.gathers(a):
            mixed_boxes.gathered(w, last, bias, out, a, True, stream)
            return out
        (down, along), first = zeros or (0, 0), (-a.padding.rows, -a.padding.columns)
        g = _rows(a, a.stride, first, a.dilation, (1, 1), (a.h + down, a.w + along), (a.p, a.q), depth)
        gathered(w, last, bias, out, a, g, True, stream)
    return out


def input_gradient(dy, w, shape, stride=1, padding=0, dilation=1, groups=1, *, last=None, stream=0) -> typing.Any:
    """The gradient by a layer's input, of that by its output; sums in float32 that are rounded once.

    Args:
        dy: float16 or bfloat16, shape (N, K, P, Q), contiguous.
        w: of the dtype of dy, shape (K, C / groups, R, S), contiguous.
        shape: of the layer's input, (N, C, H, W).
        stride, padding, dilation, groups: of the layer.
        last: what `channels_last` made of dy, or None to make it.
        stream: the stream to work on.

    Returns a new device array of that shape and the dtype of dy. It and the errors are as of `convolution`.

    >>> dy, w = np.ones((1, 1, 2, 2), np.float16), np.ones((1, 1, 2, 2), np.float16)
    >>> input_gradient(dy, w, (1, 1, 3, 3)).copy_to_host()
    array([[[[1., 2., 1.],
             [2., 4., 2.],
             [1., 2., 1.]]]], dtype=float16)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes=DTYPES, ndim=4, stream=stream)
    w = device.as_input("w", w, dtypes=dy.dtype, ndim=4, stream=stream)
    shape = as_shape(shape)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    a = _layer_with_gradient(dy, shape, w.shape, options, "shape", {"shape": shape})
    _checked(a, shape=shape, dy=dy.shape)
    out = device.empty(shape, dy.dtype, stream=stream)
    if out.size:
        last, depth = _lying_last("last", last, dy, a, stream), depth_of(a.k, a.groups)
        zeros = _zeros(a)
        if zeros is not None and mixed_boxes.gathers(a):
            mixed_boxes.gathered(w, last, None, out, a, False, stream)
            return out
        multiprocessors = device.limits()["multiprocessors"]
        if a.stride != (1, 1) and by_warpgroups(groups, a.n * a.h * a.w, a.c, multiprocessors) is not None:

            def places(first: tuple, step: tuple, extents: tuple, taps: tuple) -> Places:
                return _rows(a, (1, 1), first, step, (1, 1), (a.p, a.q), extents, depth, taps)

            mixed_warpgroups.by_classes(last, w, out, a, places, stream)
            return out
        (down, along), step = zeros or (0, 0), (-a.dilation.rows, -a.dilation.columns)
        g = _rows(a, (1, 1), a.padding, step, a.stride, (a.p + down, a.q + along), (a.h, a.w), depth)
        gathered(w, last, None, out, a, g, False, stream)
    return out


def weight_gradient(
    dy, x, kernel_size, stride=1, padding=0, dilation=1, groups=1, *, last=None, last_dy=None, stream=0
) -> typing.Any:
    """The gradient by a layer's weights, of that by its output; sums in float32 that are rounded once.

    Args:
        dy: float16 or bfloat16, shape (N, K, P, Q), contiguous.
        x: the layer's input, of the dtype of dy, shape (N, C, H, W), contiguous; or its shape, where ``last`` is given.
        kernel_size: (R, S), or one integer for both.
        stride, padding, dilation, groups: of the layer.
        last, last_dy: what `channels_last` made of x and of dy, or None to make it.
        stream: the stream to work on.

    Returns a new device array (K, C / groups, R, S) of the dtype of dy. It and the errors are as of `convolution`.
    Zeros around dy are multiplied, too: where x is not finite, weights may get NaN that meet only zeros there.

    >>> dy, x = np.ones((1, 1, 2, 2), np.float16), np.float16([[[[1, 2, 0], [0, 0, 0], [0, 0, 4]]]])
    >>> weight_gradient(dy, x, 2).copy_to_host()
    array([[[[3., 2.],
             [0., 4.]]]], dtype=float16)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes=DTYPES, ndim=4, stream=stream)
    if last is None or not isinstance(x, tuple | list):
        x = device.as_input("x", x, dtypes=dy.dtype, ndim=4, stream=stream)
    shape = as_shape(x) if isinstance(x, tuple | list) else x.shape
    r, s = as_pair("kernel_size", kernel_size, 1)
    groups = as_integer("groups", groups, 1, max(1, shape[1]))
    if shape[1] % groups:
        raise ValueError(f"x must have a number of channels that groups={groups} divides, had shape {shape}")
    w = dy.shape[1], shape[1] // groups, r, s
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    a = _layer_with_gradient(dy, shape, w, options, "x", {"x": shape, "kernel_size": kernel_size})
    _checked(a, x=shape, dy=dy.shape)
    if last is not None:
        last = _as_last("last", last, shape, a, stream)
    out = device.empty(w, dy.dtype, stream=stream)
    if not out.size:
        return out
    depth = round_up(w[1], CHUNK)
    if mixed_boxes.takes(a):
        last = channels_last(x, groups, _zeros(a), stream=stream) if last is None else last
        sums, parts = mixed_boxes.correlated(
            _lying_last("last_dy", last_dy, dy, a, stream), last, dy.dtype.name, a, stream
        )
        _add_parts(sums, out, a, depth, parts, stream)
        return out
    total = a.n * a.p * a.q
    tile, parts = cut_for(groups, a.k // groups, r * s * depth, total, device.limits()["multiprocessors"])
    team = as_it_lies(groups, a.k, a.p * a.q) and device.address(dy) % 16 == 0
    if team:
        parts = parts_for(blocks(a.k, 128) * blocks(r * s * depth, 128), total, device.limits()["multiprocessors"])
    length = round_up(blocks(total, parts), 64 if team else tile.depth)
    parts = blocks(total, length) if total else 0  # of no pixels the sum is 0
    sums = device.empty((parts * a.k * r * s * depth,), np.float32, stream=stream)
    last = channels_last(x, groups, stream=stream) if last is None else last
    if parts and team:
        mixed_warpgroups.correlated(dy, last, sums, a, *_correlated(a), parts, length, stream)
    elif parts:
        last_dy = _lying_last("last_dy", last_dy, dy, a, stream)
        correlated(last_dy, last, sums, dy.dtype.name, a, tile, parts, length, stream)
    _add_parts(sums, out, a, depth, parts, stream)
    return out


def _add_parts(sums: typing.Any, out: typing.Any, a: Layer, depth: int, parts: int, stream: typing.Any) -> None:
    """The gradient by weights, of the sums of its parts."""
    window, total = a.r * a.s, a.k * a.r * a.s * depth
    slices = mixed_boxes.slices_of(total, parts)
    sizes = map(np.int64, (a.k, a.c // a.groups, window, depth, parts, slices))
    by = (Divisor(*map(np.int64, divisor(d, total + BLOCK * RESULTS))) for d in (depth, window))
    add_parts_kernel[blocks(total, BLOCK // slices * RESULTS), BLOCK, stream](sums, out.reshape(-1), *sizes, *by)


@functools.lru_cache(4096)
def cut_for(groups: int, m: int, n: int, total: int, multiprocessors: int) -> tuple[Tile, int]:
    """A tile for a gradient by weights, and in how many parts its sum is cut: so that there are two blocks for each
    multiprocessor, if no part becomes shorter than SHORTEST.

    >>> tile, parts = cut_for(1, 64, 576, 2**17, 132)
    >>> str(tile), parts
    ('64 x 128 x 32, 4 stages', 52)
    """
    tile = next((tile for tile in TILES if m > tile.m // 2 and n > tile.n // 2), TILES[-1])
    return tile, parts_for(groups * blocks(m, tile.m) * blocks(n, tile.n), total, multiprocessors)


def parts_for(grid: int, total: int, multiprocessors: int) -> int:
    """In how many parts sums over so many pixels are cut, where a part takes ``grid`` blocks."""
    return max(1, min(2 * multiprocessors // grid, total // SHORTEST))


def _layer_with_gradient(dy: typing.Any, x: tuple, w: tuple, options: dict, name: str, given: dict) -> Layer:
    """The layer, whose output has the shape of dy. Raises as `layer_of` of what the caller gave for x, ``name``."""
    try:
        a = layer_of(tuple(x), tuple(w), **options)
    except ValueError as error:
        raise ValueError(f"{name}{str(error)[1:]}" if str(error).startswith("x ") else str(error)) from None
    if dy.shape != a.shape:
        said = ", ".join(f"{name}={value!r}" for name, value in {**given, **options}.items())
        raise ValueError(f"dy must have shape {a.shape} for {said}, had {dy.shape}")
    return a
