"""What the rungs of `implicit` share: a layer's sizes, a block's tile, the gathers and the epilogue.

All offsets are unsigned numbers of 32 bits, which wrap around. A kernel's corner that lies above or left of the image
has a negative offset, and so wraps to a large one; adding the distance to an element inside the image wraps back to
that element's offset. A negative row or column is a large number, too, so that one comparison finds both ends.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.convolution_layer.definition import MOST, Layer, finish
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

FILTERS, COLUMNS, DEPTH = 64, 128, 8  # a block computes FILTERS x COLUMNS outputs, in steps of DEPTH products
SIDE = 8  # a thread computes SIDE x SIDE of them, in registers
THREADS = FILTERS * COLUMNS // SIDE**2
PITCH = FILTERS + 4  # between the rows of the weights' tile: stores down its columns are free of bank conflicts
W_TILE, X_TILE = DEPTH * PITCH, DEPTH * COLUMNS
TOGETHER = 4  # blocks on a multiprocessor
REGISTERS = 65536 // (TOGETHER * THREADS)  # of a thread at most, so that as many fit there
LEAST_STEPS = 8  # in a part of the sum: with fewer a block spends most of its time on its start and its end

u32 = np.uint32
ANY, CHANNELS, VECTORS = 0, 1, 2  # modes, which are ways to gather a step's part of the columns: see `fetch`
NOWHERE = -(2**31)  # a row that no image has


class Image(typing.NamedTuple):
    """What the kernels are told of x and of how the kernel moves over it: uint32."""

    h: int
    w: int
    plane: int  # elements of a channel of an image,
    group_size: int  # of a group's channels,
    size: int  # and of all channels
    pixels: int  # P Q
    q: int
    stride_rows: int
    stride_columns: int
    padding_rows: int
    padding_columns: int


class Matrix(typing.NamedTuple):
    """What the kernels are told of the matrix product and its tiles: uint32."""

    filters: int  # of a group: rows of its output
    padded_filters: int  # rounded up to whole tiles
    depth: int  # products in an output, rounded up to whole steps
    columns: int  # N P Q
    groups: int
    row_tiles: int  # of a group
    column_tiles: int
    steps: int  # that a block computes
    pitch: int  # elements from one part of the sums to the next


class Walk(typing.NamedTuple):
    """What the kernels need to turn a row of the columns into (c, r, s): uint32."""

    r: int
    s: int
    dilation_rows: int
    dilation_columns: int
    terms: int


class Plan(typing.NamedTuple):
    """How a layer is computed. ``image`` and ``matrix`` are None for a layer that 32 bits cannot count."""

    image: Image | None
    matrix: Matrix | None
    blocks: int  # of the launch
    parts: int  # into which a sum is divided
    weights: int  # elements of the weights in the order in which the kernels read them; 0 if they read w itself
    depth: int

    @property
    def partial(self) -> int:
        """Elements of workspace for the parts of the sums; 0 if no sum is divided."""
        return self.parts * int(self.matrix.pitch) if self.parts > 1 else 0


def refuses(layer: Layer) -> str | None:
    """Why implicit GEMM cannot compute a layer, or None: it can unless some size does not fit into 32 bits."""
    for name, extent, padding in (("rows", layer.h, layer.padding.rows), ("columns", layer.w, layer.padding.columns)):
        if extent + 2 * padding > MOST:
            return f"padding must leave an image at most 2^31 - 1 {name}, makes them {extent + 2 * padding}"
    if max(layer.stride + layer.dilation) > MOST:
        return f"stride and dilation must be below 2^31, were {layer.stride} and {layer.dilation}"
    plan = plan_of(layer, ANY)
    if max(plan.weights, 4 * plan.depth) > MOST:
        return f"w must have at most 2^31 - 1 elements when padded to whole tiles, has {plan.weights}"
    return None


def mode_of(layer: Layer, aligned: bool = True) -> int:
    """The best gather for a layer. ``aligned``: x and w begin at multiples of 16 bytes."""
    a = layer
    if a.c // a.groups % DEPTH:
        return ANY
    plain = a.r * a.s == 1 and (a.stride, a.padding) == ((1, 1), (0, 0)) and a.p * a.q % 4 == 0
    return VECTORS if plain and aligned else CHANNELS


def plan_of(layer: Layer, mode: int, divided: bool = False) -> Plan:
    """The sizes for a gather. ``divided``: several blocks may share the sum of a tile."""
    return _plan_of(layer, mode, divided, device.limits()["multiprocessors"] if divided else 0)


@functools.lru_cache(4096)  # as in `pmpp.kernels.convolution_layer.definition.window_of`
def _plan_of(layer: Layer, mode: int, divided: bool, multiprocessors: int) -> Plan:
    a = layer
    filters, columns, depth = a.k // a.groups, a.n * a.p * a.q, round_up(a.terms, DEPTH)
    row_tiles, column_tiles = blocks(filters, FILTERS), blocks(columns, COLUMNS)
    grid, steps, parts = row_tiles * column_tiles * a.groups, depth // DEPTH, 1
    if divided and grid:
        fit = TOGETHER * multiprocessors
        parts = max(1, min(fit // grid, steps // LEAST_STEPS))
        steps = blocks(steps, parts)
        parts = blocks(depth, steps * DEPTH)  # fewer, if after rounding up nothing is left for the last one
    plane, pitch = a.h * a.w, round_up(a.n * a.k * a.p * a.q, 4)
    image = a.h, a.w, plane, a.c // a.groups * plane, a.c * plane, a.p * a.q, a.q, *a.stride, *a.padding
    matrix = filters, row_tiles * FILTERS, depth, columns, a.groups, row_tiles, column_tiles, steps, pitch
    weights = 0 if mode == VECTORS else a.groups * depth * row_tiles * FILTERS
    if max(image + matrix) > 2**32 - 1:
        return Plan(None, None, 0, 1, weights, depth)
    return Plan(Image(*map(u32, image)), Matrix(*map(u32, matrix)), grid * parts, parts, weights, depth)


@functools.lru_cache(4096)
def walk_of(a: Layer) -> Walk:
    """The layer's `Walk`."""
    return Walk(*map(u32, (a.r, a.s, *a.dilation, a.terms)))


# --------------------------------------------------------------------------------------------------------------- places


@cuda.jit(device=True)
def place_of(column, group, image):
    """(row, column, offset): which element of x the kernel's corner covers, for a column of the matrix and a group."""
    n = np.uint32(column // image.pixels)
    place = np.uint32(column - n * image.pixels)
    p = np.uint32(place // image.q)
    top = np.uint32(p * image.stride_rows - image.padding_rows)
    left = np.uint32((place - p * image.q) * image.stride_columns - image.padding_columns)
    return top, left, np.uint32(n * image.size + group * image.group_size + top * image.w + left)


@cuda.jit(device=True)
def tile_of(matrix):
    """(filter, column, group, part): where this block's tile begins in its group's output, its group and its part."""
    groups, rows, across = matrix.groups, matrix.row_tiles, matrix.column_tiles
    block = np.uint32(cuda.blockIdx.x)
    row, block = np.uint32(block % rows), np.uint32(block // rows)  # consecutive blocks gather the same columns
    column, block = np.uint32(block % across), np.uint32(block // across)
    return np.uint32(row * FILTERS), np.uint32(column * COLUMNS), np.uint32(block % groups), np.uint32(block // groups)


@cuda.jit(device=True)
def value_at(x, row, column, at, image):
    """x[at], which lies in that row and column, or 0 if they are outside the image."""
    return x[at] if np.uint32(row) < image.h and np.uint32(column) < image.w else np.float32(0)


@cuda.jit(device=True)
def lane_place():
    """(i, j): where in the tile this thread's outputs begin: four squares of 4 x 4, half a warp's tile apart."""
    # As in `pmpp.kernels.matmul`: 2 x 2 lanes share their vectors, so a warp's load from shared memory takes two
    # passes.
    thread = np.uint32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    y, x = lane // 8 * 2 + lane // 2 % 2, lane // 4 % 2 * 2 + lane % 2
    return np.uint32(y * 4), np.uint32(warp * 32 + x * 4)


# -------------------------------------------------------------------------------------------------------------- gathers


@cuda.jit(device=True)
def fetch(x, table, k, place, image, values, mode):
    """Load a thread's share of a step's columns: rows k to k + 7 of its column, or for VECTORS two vectors."""
    top, left, at = place
    if mode == ANY:  # the table says for each row where it lies in x
        for i in range(DEPTH):
            offset, down, right, _ = load128(table, 4 * np.uint32(k + i))
            values[i] = value_at(x, top + down, left + right, np.uint32(at + offset), image)
    elif mode == CHANNELS:  # eight channels at the same place of the kernel: one entry of the table and one check
        offset, down, right, _ = load128(table, 4 * k)
        inside = np.uint32(top + down) < image.h and np.uint32(left + right) < image.w
        at = np.uint32(at + offset)
        for i in range(DEPTH):
            values[i] = x[np.uint32(at + np.uint32(i * image.plane))] if inside else np.float32(0)
    else:  # the columns are neighbours in memory
        for half in range(2):
            vector = load128(x, np.uint32(at + (k + half * (DEPTH // 2)) * image.plane))
            for i in range(4):
                values[half * 4 + i] = vector[i]


@cuda.jit(device=True)
def put(x_tile, values, mode):
    """Store the values of `fetch` where they belong in the tile of columns."""
    thread = np.uint32(cuda.threadIdx.x)
    if mode == VECTORS:
        store128(x_tile, thread * 4, (values[0], values[1], values[2], values[3]))
        store128(x_tile, (thread + THREADS) * 4, (values[4], values[5], values[6], values[7]))
    else:
        for i in range(DEPTH):
            x_tile[i * COLUMNS + thread] = values[i]


@cuda.jit(device=True)
def first_weights(filter_, group, k, matrix, mode):
    """(offset, step): where this thread's vector of the first step's weights lies, and how far on the next step's."""
    filters, padded, depth = matrix.filters, matrix.padded_filters, matrix.depth
    thread = np.uint32(cuda.threadIdx.x)
    if mode == VECTORS:  # four weights of a filter, as they lie in w; of the last filter if there is no such filter
        filter_ = min(np.uint32(filter_ + thread // 2), np.uint32(filters - 1))
        return np.uint32((group * filters + filter_) * depth + k + thread % 2 * 4), np.uint32(DEPTH)
    return np.uint32((group * depth + k + thread // 16) * padded + filter_ + thread % 16 * 4), np.uint32(DEPTH * padded)


@cuda.jit(device=True)
def put_weights(w_tile, vector, mode):
    thread = np.uint32(cuda.threadIdx.x)
    if mode == VECTORS:
        for i in range(4):
            w_tile[(thread % 2 * 4 + i) * PITCH + thread // 2] = vector[i]
    else:
        store128(w_tile, thread // 16 * PITCH + thread % 16 * 4, vector)


# -------------------------------------------------------------------------------------------- arithmetic and epilogue


@cuda.jit(device=True)
def multiply_step(w_tile, x_tile, k, i0, j0, totals):
    """Add the products of one k: two loads from each tile, 64 multiply-adds."""
    w_values, x_values = cuda.local.array(SIDE, np.float32), cuda.local.array(SIDE, np.float32)
    for piece in range(2):
        w_vector = load128(w_tile, np.uint32(k * PITCH + piece * (FILTERS // 2)) + i0)
        x_vector = load128(x_tile, np.uint32(k * COLUMNS + piece * 16) + j0)
        for i in range(4):
            w_values[piece * 4 + i], x_values[piece * 4 + i] = w_vector[i], x_vector[i]
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] += w_values[i] * x_values[j]


@cuda.jit(device=True)
def multiply_tiles(w_tile, x_tile, i0, j0, totals):
    # Written out, as in `pmpp.kernels.matmul`: the loads of a step then overlap another's arithmetic.
    multiply_step(w_tile, x_tile, u32(0), i0, j0, totals)
    multiply_step(w_tile, x_tile, u32(1), i0, j0, totals)
    multiply_step(w_tile, x_tile, u32(2), i0, j0, totals)
    multiply_step(w_tile, x_tile, u32(3), i0, j0, totals)
    multiply_step(w_tile, x_tile, u32(4), i0, j0, totals)
    multiply_step(w_tile, x_tile, u32(5), i0, j0, totals)
    multiply_step(w_tile, x_tile, u32(6), i0, j0, totals)
    multiply_step(w_tile, x_tile, u32(7), i0, j0, totals)


@cuda.jit(device=True)
def output_place(column, group, image, matrix):
    """The offset in the output of a column of the matrix, for a group's first filter."""
    filters, groups, pixels = matrix.filters, matrix.groups, image.pixels
    n = np.uint32(column // pixels)
    return np.uint32(((n * groups + group) * filters - n) * pixels + column)


@cuda.jit(device=True)
def store_row(i, out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals):
    """Finish and store the outputs of a thread's filter number i."""
    filter_ = np.uint32(filter_ + i // 4 * (FILTERS // 2) + i % 4)
    if filter_ >= matrix.filters:
        return
    k = np.uint32(group * matrix.filters + filter_)
    for j in range(SIDE):
        totals[i, j] = finish(totals[i, j], bias, k, relu)
    row = start + filter_ * image.pixels
    for piece in range(2):
        first = column + piece * 16
        if wide:
            if first < matrix.columns:
                j = piece * 4
                vector = totals[i, j], totals[i, j + 1], totals[i, j + 2], totals[i, j + 3]
                store128(out, row + spots[j], vector)
        else:
            for j in range(4):
                if first + j < matrix.columns:
                    out[row + spots[piece * 4 + j]] = totals[i, piece * 4 + j]


@cuda.jit(device=True)
def store_totals(out, bias, filter_, column, group, part, image, matrix, wide, relu, totals):
    """Finish and store a thread's outputs.

    ``wide``: four neighbouring columns are neighbours in out, too, and begin at a multiple of 16 bytes.
    """
    spots = cuda.local.array(SIDE, np.uint32)
    for piece in range(2):
        for j in range(4):
            spots[piece * 4 + j] = output_place(np.uint32(column + piece * 16 + j), group, image, matrix)
    start = np.uint64(part) * np.uint64(matrix.pitch)
    # Written out: a loop with so much in it is not unrolled, and would keep the totals in memory.
    store_row(u32(0), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(1), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(2), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(3), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(4), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(5), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(6), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(7), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
