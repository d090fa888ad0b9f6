"""The gradient by the input of a strided layer with few channels: a thread has all classes of some places in registers.

Used by `pmpp.kernels.convolution_layer.input_gradients`, whose chapter explains it. A *cell* is a rectangle of stride x
stride places of x. It has one place of each class, and in the few channels of a group these are few enough sums for a
thread's registers. What the places of a cell need of dy overlaps. Place a of cell i and tap r meet in row p of dy if
i u + a + padding = p u + r, with stride u. So with 7 taps and a stride of 2 all places of a cell need some of the same
4 rows and 4 columns.

A warp computes a rectangle of cells. It stages in shared memory what they need of dy, for a few filters at a time. The
weights lie there, too, in the order in which they are used, and all lanes read the same ones. This is cheap: a thread
multiplies each weight that it reads with a value for each of its cells. A block is a single warp, so that none waits
for others. Only where there are too few rectangles for a large GPU do several warps share one, each with other filters.

The kernels are compiled for a layer's stride, taps and channels. So every index of a sum is a constant, and the
compiler leaves out products that no place needs.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import SHARED_LIMIT, blocks, round_up
from pmpp.kernels.convolution_layer.definition import MOST, Layer, Pair
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

WARP = 32
SIDE = 4  # cells side by side that a thread computes: what they need of a row of dy begins at a multiple of 16 bytes
SUMS, STRIDE = 96, 4  # of a thread at most; with longer strides loops are not unrolled, and sums are in memory
REGISTERS = 168  # of a thread at most: twelve warps then fit on a multiprocessor
CHANNELS, REACH = 4, 8  # of a group, and rows or columns of dy that a cell needs, at most
FILTERS = 4  # whose part of dy is staged at once, at most
TOGETHER = 2  # of these, whose loads are in flight together
PARTS, LEAST = 8, 4  # warps that share a tile, at most, and filters of each, at least
BUSY = 8  # warps that keep a multiprocessor busy
NOWHERE = np.uint32(2**32 - 1)  # no array has so many elements
u32 = np.uint32


class Form(typing.NamedTuple):
    """What a kernel is compiled for."""

    stride: Pair
    kernel: Pair
    padding: Pair  # less than the stride: whole strides of it only shift dy
    channels: int  # of a group
    aligned: bool  # dy begins at a multiple of 16 bytes, and so does each of its rows
    skip: int  # columns of dy from a multiple of four to the first that is needed
    down: int  # cells of a thread, one below the other
    across: int  # lanes side by side
    filters: int  # whose part of dy is staged at once
    parts: int  # warps of a block, each of which has other filters

    @property
    def first(self) -> Pair:
        """The first row and column of dy that a cell needs, less the cell's own: the least p with a tap below R."""
        ends = zip(self.stride, self.kernel, self.padding, strict=True)
        return Pair(*(-((taps - 1 - padding) // u) for u, taps, padding in ends))

    @property
    def starts(self) -> Pair:
        """Which tap the first place of a cell and that row, or column, meet: with each further one it is u less."""
        ends = zip(self.stride, self.padding, self.first, strict=True)
        return Pair(*(padding - u * first for u, padding, first in ends))

    @property
    def reach(self) -> Pair:
        """How many rows and columns of dy a cell needs."""
        return Pair(*((start + u - 1) // u + 1 for u, start in zip(self.stride, self.starts, strict=True)))

    @property
    def slots(self) -> int:
        """Weights of each value of dy, one for each place and channel, in whole vectors."""
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
        return min(range(least, least + WARP, 4), key=lambda pitch: (self.passes(pitch), pitch))

    def passes(self, pitch: int) -> int:
        """Passes that a load of eight lanes' vectors takes: a pass serves each of eight groups of four banks once."""
        at = {lane // self.across * self.down * pitch // 4 + lane % self.across for lane in range(8)}
        return max(sum(vector % 8 == group for vector in at) for group in range(8))

    @property
    def loads(self) -> int:
        """Vectors that a lane stages of a filter's part of dy."""
        return blocks(self.rows * self.pitch // 4, WARP)

    @property
    def patch(self) -> int:
        """Elements that a warp's part of dy takes for a filter."""
        return self.loads * WARP * 4

    @property
    def staged(self) -> int:
        """Bytes of shared memory for a filter."""
        return 4 * (self.patch + self.weights)

    @property
    def patches(self) -> int:
        """Elements that a block stages of dy. In the end they are overwritten with the sums of a warp."""
        sums = self.slots * self.down * SIDE * WARP if self.parts > 1 else 0
        return max(self.parts * self.filters * self.patch, sums)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return 4 * (self.patches + self.parts * self.filters * self.weights)


class Sizes(typing.NamedTuple):
    """What the kernels are told of a layer and its tiles: uint32."""

    h: int
    w: int
    p: int
    q: int
    top: int  # row and column of dy where the part of the first tile begins
    left: int
    filters: int  # of a group
    groups: int
    tiles_down: int
    tiles_across: int
    tiles: int  # of all images


class Order(typing.NamedTuple):
    """What `spread_kernel` is told of a `Form`: uint32."""

    r: int
    s: int
    stride_rows: int
    stride_columns: int
    start_row: int  # as `Form.starts`
    start_column: int
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


def plan_of(a: Layer, aligned: bool) -> Plan | None:
    """The plan for a layer, or None if the kernel is not made for it. ``aligned``: dy begins at a multiple of 16 bytes.

    It is made for strides up to `STRIDE`, for at most `CHANNELS` channels in a group, and for as many sums and taps as
    fit.
    """
    return _plan_of(a, aligned and a.q % 4 == 0, device.limits()["multiprocessors"])


@functools.lru_cache(4096)  # as `definition.window_of`
def _plan_of(a: Layer, aligned: bool, multiprocessors: int) -> Plan | None:
    form = _form_of(a, aligned, multiprocessors)
    return None if form is None else plan_with(a, form)


def _form_of(a: Layer, aligned: bool, multiprocessors: int) -> Form | None:
    """The form of a layer's kernel: the lanes of a warp lie so that the fewest tiles cover an image."""
    channels, extents = a.c // a.groups, (a.h + 2 * a.padding.rows, a.w + 2 * a.padding.columns)
    sums = SIDE * math.prod(a.stride) * channels
    if a.stride == (1, 1) or a.dilation != (1, 1) or max(extents) > MOST:
        return None
    if channels > CHANNELS or max(a.stride) > STRIDE or sums > SUMS:
        return None
    padding = Pair(*(padding % u for padding, u in zip(a.padding, a.stride, strict=True)))
    down = 2 if 2 * sums <= SUMS else 1
    form = Form(a.stride, Pair(a.r, a.s), padding, channels, aligned, 0, down, 1, 1, 1)
    if max(form.reach) > REACH:
        return None
    form = form._replace(skip=_corner(a, form).columns % 4)
    forms = [form._replace(across=across) for across in (2, 4, 8, 16)]
    form = min(forms, key=lambda form: (math.prod(_tiles(a, form)), form.loads))
    filters, tiles = a.k // a.groups, a.n * a.groups * math.prod(_tiles(a, form))
    parts = max(1, min(PARTS, filters // LEAST, BUSY * multiprocessors // tiles, SHARED_LIMIT // form.staged))
    return form._replace(parts=parts, filters=min(FILTERS, filters, SHARED_LIMIT // (parts * form.staged)))


def _corner(a: Layer, form: Form) -> Pair:
    """The first row and column of dy that the first cell needs."""
    ends = zip(a.padding, a.stride, form.first, strict=True)
    return Pair(*(padding // u + first for padding, u, first in ends))


def _tiles(a: Layer, form: Form) -> tuple[int, int]:
    """How many tiles, each a warp's cells, an image has down and across."""
    down, across = (blocks(extent, u) for extent, u in zip((a.h, a.w), a.stride, strict=True))
    return blocks(down, form.cells.rows), blocks(across, form.cells.columns)


def plan_with(a: Layer, form: Form) -> Plan | None:
    """The plan for a layer and the form of its kernel, or None if 32 bits cannot count something of it."""
    (top, left), across = _corner(a, form), _tiles(a, form)
    tiles = a.n * math.prod(across)
    if max(a.groups * tiles, a.k * form.weights) > MOST:
        return None
    sizes = a.h, a.w, a.p, a.q, top, left - form.skip, a.k // a.groups, a.groups, *across, tiles
    order = *form.kernel, *form.stride, *form.starts, form.channels, form.reach.columns, form.slots, form.weights
    sizes, order = (map(u32, (number % 2**32 for number in numbers)) for numbers in (sizes, order))
    return Plan(form, Sizes(*sizes), Order(*order), a.groups * tiles, a.k * form.weights)


# ------------------------------------------------------------------------------------------------------ on the device


@cuda.jit
def spread_kernel(w, weights, order):
    """Write each filter's weights in the order in which they are used: by row and column of dy, place and channel.

    Where a value of dy and a place have no tap there is a zero, which is not used.
    """
    i = u32(cuda.grid(1))
    if i < weights.size:
        k, slot = u32(i // order.weights), u32(i % order.weights)
        value, slot = u32(slot // order.slots), u32(slot % order.slots)
        y, x = u32(value // order.reach_columns), u32(value % order.reach_columns)
        place, c = u32(slot // order.channels), u32(slot % order.channels)
        a, b = u32(place // order.stride_columns), u32(place % order.stride_columns)
        # A tap before the first wraps to a large number.
        r = u32(a + order.start_row - y * order.stride_rows)
        s = u32(b + order.start_column - x * order.stride_columns)
        weight = np.float32(0)
        if a < order.stride_rows and r < order.r and s < order.s:
            weight = w[u32(((k * order.channels + c) * order.r + r) * order.s + s)]
        weights[i] = weight


@cuda.jit(device=True)
def store_some(dx, at, left, vector, wide):
    """Store those of four neighbours that a row has ``left``. ``wide``: it has all four or none."""
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


@functools.lru_cache(64)  # a compilation each
def kernel_for(form: Form) -> typing.Any:
    """The kernel ``(dy, weights, dx, sizes, wide)`` of a form, whose blocks have a warp for each part. Arrays are flat.

    ``wide``: dx begins at a multiple of 16 bytes, and so does each of its rows.
    """
    (u, v), (taps_down, taps_across), (reach_down, reach_across) = form.stride, form.kernel, form.reach
    (start_row, start_column), (cell_rows, cell_columns) = form.starts, form.cells
    channels, aligned, skip, down, across, filters, parts = form[3:]
    slots, a_filter, rows, pitch, loads, patch = form.slots, form.weights, form.rows, form.pitch, form.loads, form.patch
    together, width = min(TOGETHER, filters), round_up(skip + SIDE + reach_across - 1, 4)
    all_patches, all_weights = form.patches, parts * filters * a_filter

    @cuda.jit(device=True)
    def stage(patches, dy, places, left, source, plane, to, count):
        """Stage a warp's part of dy for up to TOGETHER of ``count`` filters, with zeros around the image."""
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
                    store128(patches, u32(to + f * patch + i * WARP * 4), vector)

    @cuda.jit(device=True)
    def multiply(w_tile, weight, values, y, x, totals):
        """Multiply what each of the thread's cells needs in row y and column x with the weights of all places."""
        w_values = cuda.local.array(slots, np.float32)
        for i in range(0, slots, 4):
            vector = load128(w_tile, weight + (y * reach_across + x) * slots + i)
            for j in range(4):
                w_values[i + j] = vector[j]
        for a in range(u):
            for b in range(v):
                r, s = u32(a + start_row - u * y), u32(b + start_column - v * x)
                if r < taps_down and s < taps_across:
                    for c in range(channels):
                        slot = (a * v + b) * channels + c
                        for i in range(down):
                            for j in range(SIDE):
                                totals[slot, i, j] += w_values[slot] * values[i, skip + x + j]

    @cuda.jit(device=True)
    def multiply_row(patches, corner, w_tile, weight, y, totals):
        """Row y of what the thread's cells need. Cells side by side share columns, which are loaded once."""
        values = cuda.local.array((down, width), np.float32)
        for i in range(down):
            for j in range(0, width, 4):
                vector = load128(patches, corner + (y + i) * pitch + j)
                for k in range(4):
                    values[i, j + k] = vector[k]
        # Written out: a loop with so much in it is not unrolled, and would keep the sums in memory.
        multiply(w_tile, weight, values, y, u32(0), totals)
        if reach_across > 1:
            multiply(w_tile, weight, values, y, u32(1), totals)
        if reach_across > 2:
            multiply(w_tile, weight, values, y, u32(2), totals)
        if reach_across > 3:
            multiply(w_tile, weight, values, y, u32(3), totals)
        if reach_across > 4:
            multiply(w_tile, weight, values, y, u32(4), totals)
        if reach_across > 5:
            multiply(w_tile, weight, values, y, u32(5), totals)
        if reach_across > 6:
            multiply(w_tile, weight, values, y, u32(6), totals)
        if reach_across > 7:
            multiply(w_tile, weight, values, y, u32(7), totals)

    @cuda.jit(device=True)
    def multiply_filter(patches, corner, w_tile, weight, totals):
        """All products of a filter."""
        multiply_row(patches, corner, w_tile, weight, u32(0), totals)
        if reach_down > 1:
            multiply_row(patches, corner, w_tile, weight, u32(1), totals)
        if reach_down > 2:
            multiply_row(patches, corner, w_tile, weight, u32(2), totals)
        if reach_down > 3:
            multiply_row(patches, corner, w_tile, weight, u32(3), totals)
        if reach_down > 4:
            multiply_row(patches, corner, w_tile, weight, u32(4), totals)
        if reach_down > 5:
            multiply_row(patches, corner, w_tile, weight, u32(5), totals)
        if reach_down > 6:
            multiply_row(patches, corner, w_tile, weight, u32(6), totals)
        if reach_down > 7:
            multiply_row(patches, corner, w_tile, weight, u32(7), totals)

    @cuda.jit(device=True)
    def put_totals(stage, lane, totals):
        """A warp's sums, into shared memory."""
        for slot in range(slots):
            for i in range(down):
                vector = totals[slot, i, 0], totals[slot, i, 1], totals[slot, i, 2], totals[slot, i, 3]
                store128(stage, (slot * down + i) * (SIDE * WARP) + lane * 4, vector)

    @cuda.jit(device=True)
    def add_totals(stage, lane, totals):
        """Add the sums of another warp to this one's."""
        for slot in range(slots):
            for i in range(down):
                vector = load128(stage, (slot * down + i) * (SIDE * WARP) + lane * 4)
                for j in range(SIDE):
                    totals[slot, i, j] += vector[j]

    @cuda.jit(device=True)
    def store_channel(dx, c, channel, row, column, sizes, wide, totals):
        """Store channel c of the thread's cells, which begin at that row and column of dx."""
        for i in range(down):
            for a in range(u):
                y, slot = u32(row + i * u + a), a * v * channels + c
                at = u32((channel + c) * sizes.h * sizes.w + y * sizes.w + column)
                for j in range(0, SIDE * v, 4):  # neighbours in dx are the places of a cell, then those of the next
                    vector = (
                        totals[slot + j % v * channels, i, j // v],
                        totals[slot + (j + 1) % v * channels, i, (j + 1) // v],
                        totals[slot + (j + 2) % v * channels, i, (j + 2) // v],
                        totals[slot + (j + 3) % v * channels, i, (j + 3) // v],
                    )
                    if y < sizes.h:
                        store_some(dx, u32(at + j), np.int32(sizes.w - column - j), vector, wide)

    @cuda.jit(max_registers=REGISTERS)
    def few_channels_kernel(dy, weights, dx, sizes, wide):
        patches = cuda.shared.array(all_patches, np.float32, alignment=16)
        w_tile = cuda.shared.array(all_weights, np.float32, alignment=16)
        totals = cuda.local.array((slots, down, SIDE), np.float32)
        for slot in range(slots):
            for i in range(down):
                for j in range(SIDE):
                    totals[slot, i, j] = 0
        thread, block = u32(cuda.threadIdx.x), u32(cuda.blockIdx.x)
        part, lane = u32(thread // WARP), u32(thread % WARP)
        group, tile = u32(block // sizes.tiles), u32(block % sizes.tiles)
        line = u32(tile // sizes.tiles_across)
        n = u32(line // sizes.tiles_down)
        row, column = u32(line % sizes.tiles_down * cell_rows), u32(tile % sizes.tiles_across * cell_columns)

        # Where in a plane of dy the lane's vectors lie, and how many columns the image has from there on.
        places, left = cuda.local.array(loads, np.uint32), cuda.local.array(loads, np.uint32)
        for i in range(loads):
            vector = u32(i * WARP + lane)
            y = u32(vector // (pitch // 4))
            p, q = u32(row + sizes.top + y), u32(column + sizes.left + vector % (pitch // 4) * 4)
            places[i], left[i] = NOWHERE, u32(sizes.q - q)
            if y < rows and p < sizes.p and q < sizes.q:
                places[i] = u32(p * sizes.q + q)

        y, x = u32(lane // across * down), u32(lane % across * SIDE)  # the thread's first cell among the warp's
        mine, weight, plane = u32(part * filters * patch), u32(part * filters * a_filter), u32(sizes.p * sizes.q)
        k = u32(part * filters)
        while k < sizes.filters:  # nothing is shared by warps, so that none waits for another
            count = min(u32(filters), u32(sizes.filters - k))
            first = u32(group * sizes.filters + k)
            cuda.syncwarp()  # all lanes have read what was staged before one overwrites it
            i = u32(4 * lane)
            while i < count * a_filter:
                store128(w_tile, u32(weight + i), load128(weights, u32(first * a_filter + i)))
                i = u32(i + 4 * WARP)
            f = u32(0)
            while f < count:
                source = u32((n * sizes.groups * sizes.filters + first + f) * plane)
                stage(patches, dy, places, left, source, plane, u32(mine + f * patch + lane * 4), u32(count - f))
                f = u32(f + together)
            cuda.syncwarp()
            f = u32(0)
            while f < count:
                # 64-bit: the sum of a place and a constant then cannot wrap, and the constant is part of the load.
                corner, at = np.int64(mine + f * patch + y * pitch + x), np.int64(weight + f * a_filter)
                multiply_filter(patches, corner, w_tile, at, totals)
                f = u32(f + 1)
            k = u32(k + parts * filters)

        other = u32(1)
        while other < parts:  # one after another, so that every run adds in the same order
            cuda.syncthreads()
            if part == other:
                put_totals(patches, lane, totals)
            cuda.syncthreads()
            if part == 0:
                add_totals(patches, lane, totals)
            other = u32(other + 1)

        if part == 0:
            channel = u32((n * sizes.groups + group) * channels)
            row, column = u32((row + y) * u), u32((column + x) * v)
            store_channel(dx, u32(0), channel, row, column, sizes, wide, totals)
            if channels > 1:
                store_channel(dx, u32(1), channel, row, column, sizes, wide, totals)
            if channels > 2:
                store_channel(dx, u32(2), channel, row, column, sizes, wide, totals)
            if channels > 3:
                store_channel(dx, u32(3), channel, row, column, sizes, wide, totals)

    return few_channels_kernel
