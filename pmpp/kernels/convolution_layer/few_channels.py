"""The gradient by the input of a strided layer with few channels: a thread has all classes of some places in registers.

Used by `pmpp.kernels.convolution_layer.input_gradients`, whose chapter explains it. A *cell* is a rectangle of stride x
stride places of x. It has one place of each class, and in all channels of a group these are few enough sums for a
thread's registers. What the places of a cell need of dy overlaps: place a of cell i and tap r meet in row p of dy if
u i + a + padding = p u + r, so with 7 taps and a stride of 2 all need some of the same 4 rows and 4 columns.

A warp computes a rectangle of cells. It stages in shared memory what they need of dy, for some filters at a time. The
weights lie there, too, in the order in which they are used, and all lanes read the same ones. That is cheap: for each
weight a thread has as many multiply-adds as it has cells. The kernels are compiled for a layer's stride, taps and
channels, so that all sums have constant indices, and products that no place needs are left out by the compiler.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import SHARED_LIMIT, blocks, round_up
from pmpp.kernels.convolution_layer.definition import MOST, Layer, Pair
from pmpp.runtime.vector import load128, store128

WARP, WARPS = 32, 4  # lanes of a warp, and warps of a block, which share the weights
THREADS = WARP * WARPS
SIDE = 4  # cells side by side that a thread computes: what they read of a row of dy begins at a multiple of 16 bytes
SUMS = 96  # of a thread at most
REGISTERS = 168  # of a thread at most: three blocks then fit on a multiprocessor
CHANNELS, REACH = 4, 8  # of a group, and rows or columns of dy that a cell needs, at most
FILTERS = 4  # whose part of dy is staged at once, at most
TOGETHER = 2  # of these, whose loads are in flight together
NOWHERE = np.uint32(2**32 - 1)  # no array has so many elements
u32 = np.uint32


class Form(typing.NamedTuple):
    """What a kernel is compiled for."""

    stride: Pair
    kernel: Pair
    padding: Pair  # less than the stride: whole strides of it only shift dy
    skip: int  # from a multiple of four columns of dy to the first that is needed
    channels: int  # of a group
    down: int  # cells of a thread, one below the other
    across: int  # lanes side by side
    filters: int  # whose part of dy is staged at once
    aligned: bool  # dy begins at a multiple of 16 bytes, and so does each of its rows

    @property
    def first(self) -> Pair:
        """The first row and column of dy that a cell needs, beside those of its own number."""
        return Pair(*(-((taps - 1 - pad) // u) for taps, pad, u in zip(self.kernel, self.padding, self.stride)))

    @property
    def reach(self) -> Pair:
        """How many rows and columns of dy a cell needs."""
        last = ((u - 1 + pad) // u for u, pad in zip(self.stride, self.padding))
        return Pair(*(max(end - first + 1, 0) for first, end in zip(self.first, last)))

    @property
    def slots(self) -> int:
        """Weights that a value of dy may be multiplied with, for each place of a cell and each channel: vectors."""
        return round_up(math.prod(self.stride) * self.channels, 4)

    @property
    def weights(self) -> int:
        """Elements that the weights of a filter take."""
        return math.prod(self.reach) * self.slots

    @property
    def cells(self) -> Pair:
        """Rows and columns of cells that a warp computes."""
        return Pair(WARP // self.across * self.down, self.across * SIDE)

    @property
    def rows(self) -> int:
        """Rows of dy that a warp stages."""
        return self.cells.rows + self.reach.rows - 1

    @property
    def pitch(self) -> int:
        """Elements from one of these rows to the next: as few as let a warp's load take the fewest passes."""
        least = round_up(self.skip + self.cells.columns + self.reach.columns - 1, 4)
        return min(range(least, least + 32, 4), key=lambda pitch: (self._passes(pitch), pitch))

    def _passes(self, pitch: int) -> int:
        at = [lane // self.across * self.down * pitch // 4 + lane % self.across for lane in range(8)]
        return max(sum(one % 8 == bank for one in set(at)) for bank in range(8))  # eight lanes, eight vectors of banks

    @property
    def loads(self) -> int:
        """Vectors that a lane stages for a filter."""
        return blocks(self.rows * self.pitch // 4, WARP)

    @property
    def patch(self) -> int:
        """Elements that a warp's part of dy takes."""
        return self.loads * WARP * 4

    @property
    def staged(self) -> int:
        """Bytes of shared memory for one filter."""
        return 4 * (WARPS * self.patch + self.weights)


class Sizes(typing.NamedTuple):
    """What the kernels are told of a layer and its tiles: uint32."""

    h: int
    w: int
    p: int
    q: int
    top: int  # row and column of dy where the patch of the first cell begins
    left: int
    filters: int  # of a group
    groups: int
    tiles_down: int
    tiles_across: int
    tiles: int  # of all images
    blocks: int  # of a group


class Order(typing.NamedTuple):
    """What `spread_kernel` is told of a `Form`: uint32."""

    r: int
    s: int
    stride_rows: int
    stride_columns: int
    from_row: int  # in a cell's first place the first row of dy meets this tap
    from_column: int
    channels: int
    reach_columns: int
    slots: int
    weights: int


class Plan(typing.NamedTuple):
    """How a layer is computed."""

    form: Form
    sizes: Sizes
    order: Order
    blocks: int
    weights: int  # elements of workspace


@functools.lru_cache(4096)  # as `definition.window_of`
def plan_of(a: Layer, aligned: bool) -> Plan | None:
    """The plan for a layer, or None if it has too many channels, places in a cell or taps, or no stride.

    ``aligned``: dy begins at a multiple of 16 bytes.
    """
    form = _form_of(a, aligned and a.q % 4 == 0)
    return None if form is None else plan_with(a, form)


def _corner(a: Layer, form: Form) -> Pair:
    """The row and column of dy where what the first cell needs begins."""
    return Pair(*(pad // u + first for pad, u, first in zip(a.padding, a.stride, form.first, strict=True)))


def _form_of(a: Layer, aligned: bool) -> Form | None:
    channels = a.c // a.groups
    sums = math.prod(a.stride) * channels * SIDE
    if a.stride == (1, 1) or a.dilation != (1, 1) or channels > CHANNELS or sums > SUMS or not a.n:
        return None
    if max(a.h + 2 * a.padding.rows, a.w + 2 * a.padding.columns) > MOST:
        return None
    padding = Pair(*(pad % u for pad, u in zip(a.padding, a.stride, strict=True)))
    form = Form(a.stride, Pair(a.r, a.s), padding, 0, channels, 2 if 2 * sums <= SUMS else 1, 4, 1, aligned)
    if max(form.reach) > REACH:
        return None
    form = form._replace(skip=_corner(a, form).columns % 4)
    forms = [form._replace(across=across) for across in (2, 4, 8, 16)]
    form = min(forms, key=lambda form: (_tiles(a, form)[2], form.loads))
    return form._replace(filters=max(1, min(FILTERS, a.k // a.groups, SHARED_LIMIT // form.staged)))


def _tiles(a: Layer, form: Form) -> tuple[int, int, int]:
    down, across = (
        blocks(blocks(extent, u), cells) for extent, u, cells in zip((a.h, a.w), a.stride, form.cells, strict=True)
    )
    return down, across, a.n * down * across


def plan_with(a: Layer, form: Form) -> Plan | None:
    """The plan for a layer and the form of its kernel, or None if 32 bits cannot count something of it."""
    tiles, (top, left) = _tiles(a, form), _corner(a, form)
    corner = top % 2**32, (left - form.skip) % 2**32
    sizes = a.h, a.w, a.p, a.q, *corner, a.k // a.groups, a.groups, *tiles, blocks(tiles[2], WARPS)
    starts = ((pad - u * first) % 2**32 for pad, u, first in zip(form.padding, form.stride, form.first, strict=True))
    order = *form.kernel, *form.stride, *starts, form.channels, form.reach.columns, form.slots, form.weights
    grid, weights = a.groups * blocks(tiles[2], WARPS), a.k * form.weights
    if max(grid, weights) > MOST:
        return None
    return Plan(form, Sizes(*map(u32, sizes)), Order(*map(u32, order)), grid, weights)


@cuda.jit
def spread_kernel(w, weights, order):
    """Write each filter's weights in the order in which they are used: by the row and column of dy, then by place."""
    i = u32(cuda.grid(1))
    if i < weights.size:
        k, slot = u32(i // order.weights), u32(i % order.weights)
        spot, slot = u32(slot // order.slots), u32(slot % order.slots)
        place, c = u32(slot // order.channels), u32(slot % order.channels)
        r = u32(place // order.stride_columns + order.from_row - spot // order.reach_columns * order.stride_rows)
        s = u32(place % order.stride_columns + order.from_column - spot % order.reach_columns * order.stride_columns)
        value = np.float32(0)
        if r < order.r and s < order.s and place < order.stride_rows * order.stride_columns:
            value = w[u32(((k * order.channels + c) * order.r + r) * order.s + s)]
        weights[i] = value


@functools.lru_cache(64)  # a compilation each
def kernel_for(form: Form) -> typing.Any:
    """The kernel ``(dy, weights, dx, sizes, wide)`` for layers of a form. Arrays are flat.

    ``wide``: dx begins at a multiple of 16 bytes, and so does each of its rows.
    """
    (stride_rows, stride_columns), (taps_down, taps_across), channels = form.stride, form.kernel, form.channels
    reach_rows, reach_columns = form.reach
    from_row, from_column = (pad - u * first for pad, u, first in zip(form.padding, form.stride, form.first))
    down, across, filters, slots, pitch, loads = (
        form.down,
        form.across,
        form.filters,
        form.slots,
        form.pitch,
        form.loads,
    )
    (cell_rows, cell_columns), rows, aligned, skip = form.cells, form.rows, form.aligned, form.skip
    patch, weights_size, width = form.patch, form.weights, round_up(skip + SIDE + reach_columns - 1, 4)
    together = min(TOGETHER, filters)
    all_patches, all_weights = WARPS * filters * patch, filters * weights_size

    @cuda.jit(device=True)
    def stage(patches, dy, places, left, source, plane, to, count):
        """A warp stages its part of dy for up to TOGETHER filters, with zeros around the image."""
        values = cuda.local.array((together, loads, 4), np.float32)
        for f in range(together):
            for i in range(loads):
                for j in range(4):
                    values[f, i, j] = 0
                if f < count and places[i] != NOWHERE:
                    at = u32(source + f * plane + places[i])
                    if aligned:
                        vector = load128(dy, at)
                        for j in range(4):
                            values[f, i, j] = vector[j]
                    else:
                        for j in range(4):
                            if j < left[i]:
                                values[f, i, j] = dy[u32(at + j)]
        for f in range(together):
            if f < count:
                for i in range(loads):
                    vector = values[f, i, 0], values[f, i, 1], values[f, i, 2], values[f, i, 3]
                    store128(patches, u32(to + f * patch + i * (WARP * 4)), vector)

    @cuda.jit(device=True)
    def multiply(w_tile, at, values, y, x, totals):
        """Multiply what the thread's cells need at row y and column x with the weights of all classes."""
        w_values = cuda.local.array(slots, np.float32)
        for i in range(0, slots, 4):
            vector = load128(w_tile, at + (y * reach_columns + x) * slots + i)
            for j in range(4):
                w_values[i + j] = vector[j]
        for a in range(stride_rows):
            for b in range(stride_columns):
                r, s = u32(a + from_row - stride_rows * y), u32(b + from_column - stride_columns * x)
                if r < taps_down and s < taps_across:
                    for c in range(channels):
                        slot = (a * stride_columns + b) * channels + c
                        for i in range(down):
                            for j in range(SIDE):
                                totals[slot, i, j] += w_values[slot] * values[i, skip + x + j]

    @cuda.jit(device=True)
    def multiply_row(patches, from_, w_tile, at, y, totals):
        """Row y of what each of the thread's cells needs."""
        values = cuda.local.array((down, width), np.float32)
        for i in range(down):
            for j in range(0, width, 4):
                vector = load128(patches, from_ + (y + i) * pitch + j)
                for v in range(4):
                    values[i, j + v] = vector[v]
        # Written out: a loop with so much in it is not unrolled, and would keep the sums in memory.
        multiply(w_tile, at, values, u32(y), u32(0), totals)
        if reach_columns > 1:
            multiply(w_tile, at, values, u32(y), u32(1), totals)
        if reach_columns > 2:
            multiply(w_tile, at, values, u32(y), u32(2), totals)
        if reach_columns > 3:
            multiply(w_tile, at, values, u32(y), u32(3), totals)
        if reach_columns > 4:
            multiply(w_tile, at, values, u32(y), u32(4), totals)
        if reach_columns > 5:
            multiply(w_tile, at, values, u32(y), u32(5), totals)
        if reach_columns > 6:
            multiply(w_tile, at, values, u32(y), u32(6), totals)
        if reach_columns > 7:
            multiply(w_tile, at, values, u32(y), u32(7), totals)

    @cuda.jit(device=True)
    def store_channel(dx, c, channel, row, column, sizes, wide, totals):
        """Store a channel of the thread's cells, the first of which begins at that row and column."""
        for i in range(down):
            for a in range(stride_rows):
                y = u32(row + i * stride_rows + a)
                at = u32((channel + c) * sizes.h * sizes.w + y * sizes.w + column)
                slot = a * stride_columns * channels + c
                for j in range(0, SIDE * stride_columns, 4):
                    vector = (
                        totals[slot + j % stride_columns * channels, i, j // stride_columns],
                        totals[slot + (j + 1) % stride_columns * channels, i, (j + 1) // stride_columns],
                        totals[slot + (j + 2) % stride_columns * channels, i, (j + 2) // stride_columns],
                        totals[slot + (j + 3) % stride_columns * channels, i, (j + 3) // stride_columns],
                    )
                    if y < sizes.h:
                        store_some(dx, u32(at + j), np.int32(sizes.w - column - j), vector, wide)

    @cuda.jit(max_registers=REGISTERS)
    def few_channels_kernel(dy, weights, dx, sizes, wide):
        patches = cuda.shared.array(all_patches, np.float32, alignment=16)
        w_tile = cuda.shared.array(all_weights, np.float32, alignment=16)
        totals = cuda.local.array((slots, down, SIDE), np.float32)
        places, left = cuda.local.array(loads, np.uint32), cuda.local.array(loads, np.uint32)
        for slot in range(slots):
            for i in range(down):
                for j in range(SIDE):
                    totals[slot, i, j] = 0
        thread, block = u32(cuda.threadIdx.x), u32(cuda.blockIdx.x)
        warp, lane = u32(thread // WARP), u32(thread % WARP)
        group = u32(block // sizes.blocks)
        tile = u32(block % sizes.blocks * WARPS + warp)
        wanted = tile < sizes.tiles
        line = u32(tile // sizes.tiles_across)
        n = u32(line // sizes.tiles_down)
        row, column = u32(line % sizes.tiles_down * cell_rows), u32(tile % sizes.tiles_across * cell_columns)
        for i in range(loads):
            vector = u32(i * WARP + lane)
            y, x = u32(vector // (pitch // 4)), u32(vector % (pitch // 4) * 4)
            p, q = u32(row + sizes.top + y), u32(column + sizes.left + x)
            places[i], left[i] = NOWHERE, u32(sizes.q - q)
            if wanted and y < rows and p < sizes.p and q < sizes.q:
                places[i] = u32(p * sizes.q + q)
        plane = u32(sizes.p * sizes.q)
        mine = u32(warp * filters * patch)
        y, x = u32(lane // across * down), u32(lane % across * SIDE)
        from_ = u32(mine + y * pitch + x)
        k = u32(0)
        while k < sizes.filters:
            count = min(u32(filters), u32(sizes.filters - k))
            first = u32(group * sizes.filters + k)
            image = u32(n * sizes.groups * sizes.filters + first)
            cuda.syncthreads()  # all have read the tiles before one overwrites them
            i = u32(thread * 4)
            while i < count * weights_size:
                store128(w_tile, i, load128(weights, u32(first * weights_size + i)))
                i = u32(i + 4 * THREADS)
            f = u32(0)
            while f < count:
                source, to = u32((image + f) * plane), u32(mine + f * patch + lane * 4)
                stage(patches, dy, places, left, source, plane, to, u32(count - f))
                f = u32(f + together)
            cuda.syncthreads()
            f = u32(0)
            while f < count:
                source, at = np.int64(from_ + f * patch), np.int64(f * weights_size)
                multiply_row(patches, source, w_tile, at, u32(0), totals)
                if reach_rows > 1:
                    multiply_row(patches, source, w_tile, at, u32(1), totals)
                if reach_rows > 2:
                    multiply_row(patches, source, w_tile, at, u32(2), totals)
                if reach_rows > 3:
                    multiply_row(patches, source, w_tile, at, u32(3), totals)
                if reach_rows > 4:
                    multiply_row(patches, source, w_tile, at, u32(4), totals)
                if reach_rows > 5:
                    multiply_row(patches, source, w_tile, at, u32(5), totals)
                if reach_rows > 6:
                    multiply_row(patches, source, w_tile, at, u32(6), totals)
                if reach_rows > 7:
                    multiply_row(patches, source, w_tile, at, u32(7), totals)
                f = u32(f + 1)
            k = u32(k + filters)
        if wanted:
            channel = u32((n * sizes.groups + group) * channels)
            row, column = u32((row + y) * stride_rows), u32((column + x) * stride_columns)
            store_channel(dx, u32(0), channel, row, column, sizes, wide, totals)
            if channels > 1:
                store_channel(dx, u32(1), channel, row, column, sizes, wide, totals)
            if channels > 2:
                store_channel(dx, u32(2), channel, row, column, sizes, wide, totals)
            if channels > 3:
                store_channel(dx, u32(3), channel, row, column, sizes, wide, totals)

    return few_channels_kernel


@cuda.jit(device=True)
def store_some(dx, at, left, vector, wide):
    """Store four neighbours, or those of them that the row has ``left``. ``wide``: it has all four or none."""
    if wide:
        if left > 0:
            store128(dx, at, vector)
    else:
        if left > 0:
            dx[at] = vector[0]
        if left > 1:
            dx[u32(at + 1)] = vector[1]
        if left > 2:
            dx[u32(at + 2)] = vector[2]
        if left > 3:
            dx[u32(at + 3)] = vector[3]
