"""What the rungs of `implicit` share: a call's sizes, a block's place, the gathers and the epilogue.

All offsets are 32-bit and unsigned. They wrap around: a kernel's corner above or left of the image has a place below 0,
which comes right when the distance to an element inside the image is added. A row or column below 0 is a huge one, so
one comparison finds both ends.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.definition import MOST, Layer, finish
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

FILTERS, COLUMNS, DEPTH = 64, 128, 8  # a block computes FILTERS x COLUMNS outputs, in steps of DEPTH products
SIDE = 8  # a thread computes SIDE x SIDE of them, in registers
THREADS = FILTERS * COLUMNS // SIDE**2
PITCH = FILTERS + 4  # between the rows of the weights' tile: stores down its columns are free of bank conflicts
W_TILE, X_TILE = DEPTH * PITCH, DEPTH * COLUMNS
TOGETHER = 4  # blocks on a multiprocessor
REGISTERS = 65536 // (TOGETHER * THREADS)  # a thread may have, for that
LEAST_STEPS = 8  # in a part of the sum: a block that does less is mostly start and end

u32 = np.uint32
ANY, CHANNELS, VECTORS = 0, 1, 2  # how a step's columns are gathered: see `fetch`
NOWHERE = -(2**31)  # a row that no image has


class Plan(typing.NamedTuple):
    """How a layer is computed. Tuples of uint32, in the order in which `place_of` and `tile_of` unpack them."""

    image: tuple
    matrix: tuple
    blocks: int
    parts: int
    weights: int
    depth: int


def refuses(layer: Layer) -> str | None:
    """Why implicit GEMM cannot do a layer: only if 32 bits cannot count something. None if it can."""
    for name, extent, padding in (("rows", layer.h, layer.padding[0]), ("columns", layer.w, layer.padding[1])):
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
    """The sizes for a gather; ``divided`` where the sum may be shared by blocks."""
    a = layer
    filters, columns = a.k // a.groups, a.n * a.p * a.q
    depth, rows, across = -(-a.terms // DEPTH) * DEPTH, -(-filters // FILTERS), -(-columns // COLUMNS)
    blocks, steps, parts = rows * across * a.groups, depth // DEPTH, 1
    if divided and blocks:
        fit = TOGETHER * device.limits()["multiprocessors"]
        parts = max(1, min(fit // blocks, steps // LEAST_STEPS))
        steps = -(-steps // parts)
        parts = -(-depth // (steps * DEPTH))  # rounding may have left the last one nothing
    plane, pitch = a.h * a.w, -(-a.n * a.k * a.p * a.q // 4) * 4
    image = a.h, a.w, plane, a.c // a.groups * plane, a.c * plane, a.p * a.q, a.q, *a.stride, *a.padding
    matrix = filters, rows * FILTERS, depth, columns, a.groups, rows, across, steps, pitch
    weights = 0 if mode == VECTORS else a.groups * depth * rows * FILTERS
    if max(image + matrix) > 2**32 - 1:
        return Plan((), (), 0, 1, weights, depth)  # refused
    return Plan(tuple(map(np.uint32, image)), tuple(map(np.uint32, matrix)), blocks * parts, parts, weights, depth)


# --------------------------------------------------------------------------------------------------------------- places


@cuda.jit(device=True)
def place_of(column, group, image):
    """(row, column, offset) in x of what the kernel's corner lies on, for a column of the matrix and a group."""
    _, width, _, group_size, size, pixels, q, u, v, a, b = image
    n = np.uint32(column // pixels)
    place = np.uint32(column - n * pixels)
    p = np.uint32(place // q)
    top, left = np.uint32(p * u - a), np.uint32((place - p * q) * v - b)
    return top, left, np.uint32(n * size + group * group_size + top * width + left)


@cuda.jit(device=True)
def tile_of(matrix):
    """(filter, column, group, part): where this block's tile of the output begins, in its group, and its part."""
    groups, rows, across = matrix[4], matrix[5], matrix[6]
    block = np.uint32(cuda.blockIdx.x)
    row, block = np.uint32(block % rows), np.uint32(block // rows)  # blocks in a row share their columns
    column, block = np.uint32(block % across), np.uint32(block // across)
    return np.uint32(row * FILTERS), np.uint32(column * COLUMNS), np.uint32(block % groups), np.uint32(block // groups)


@cuda.jit(device=True)
def value_at(x, row, column, at, image):
    """x[at], which lies in that row and column, or 0 if they are outside the image."""
    return x[at] if np.uint32(row) < image[0] and np.uint32(column) < image[1] else np.float32(0)


@cuda.jit(device=True)
def lane_place():
    """(i, j): where in the tile this thread's outputs begin: 2 x 2 squares of 4 x 4, half a warp's tile apart."""
    # As in `pmpp.kernels.matmul`: 2 x 2 lanes share their vectors, so a warp's load from shared memory takes two
    # passes.
    thread = np.uint32(cuda.threadIdx.x)
    warp, lane = thread // 32, thread % 32
    y, x = lane // 8 * 2 + lane // 2 % 2, lane // 4 % 2 * 2 + lane % 2
    return np.uint32(y * 4), np.uint32(warp * 32 + x * 4)


# -------------------------------------------------------------------------------------------------------------- gathers


@cuda.jit(device=True)
def fetch(x, table, k, place, image, values, mode):
    """A thread's share of the columns of a step: rows k to k + 7 of its column, or for VECTORS two vectors."""
    top, left, at = place
    if mode == ANY:  # each row lies somewhere of its own
        for i in range(DEPTH):
            offset, down, right, _ = load128(table, 4 * np.uint32(k + i))
            values[i] = value_at(x, top + down, left + right, np.uint32(at + offset), image)
    elif mode == CHANNELS:  # eight channels: the same place in eight images
        offset, down, right, _ = load128(table, 4 * k)
        inside = np.uint32(top + down) < image[0] and np.uint32(left + right) < image[1]
        at = np.uint32(at + offset)
        for i in range(DEPTH):
            values[i] = x[np.uint32(at + np.uint32(i * image[2]))] if inside else np.float32(0)
    else:  # the columns are neighbours in memory
        for half in range(2):
            vector = load128(x, np.uint32(at + (k + half * (DEPTH // 2)) * image[2]))
            for i in range(4):
                values[half * 4 + i] = vector[i]


@cuda.jit(device=True)
def put(x_tile, values, mode):
    """Where `fetch`'s values belong in the tile of columns."""
    thread = np.uint32(cuda.threadIdx.x)
    if mode == VECTORS:
        store128(x_tile, thread * 4, (values[0], values[1], values[2], values[3]))
        store128(x_tile, (thread + THREADS) * 4, (values[4], values[5], values[6], values[7]))
    else:
        for i in range(DEPTH):
            x_tile[i * COLUMNS + thread] = values[i]


@cuda.jit(device=True)
def first_weights(filter_, group, k, matrix, mode):
    """(offset, step): where this thread's vector of the first step's weights lies, and that of the next from there."""
    filters, padded, depth = matrix[0], matrix[1], matrix[2]
    thread = np.uint32(cuda.threadIdx.x)
    if mode == VECTORS:  # four products of a filter, as they lie in w; beyond the last filter, that one's
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
    """Where in the output that column of a group's first filter lies."""
    filters, groups, pixels = matrix[0], matrix[4], image[5]
    n = np.uint32(column // pixels)
    return np.uint32(((n * groups + group) * filters - n) * pixels + column)


@cuda.jit(device=True)
def store_row(i, out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals):
    """Finish and store the outputs of a thread's filter number i."""
    filter_ = np.uint32(filter_ + i // 4 * (FILTERS // 2) + i % 4)
    if filter_ >= matrix[0]:
        return
    k = np.uint32(group * matrix[0] + filter_)
    for j in range(SIDE):
        totals[i, j] = finish(totals[i, j], bias, k, relu)
    row = start + filter_ * image[5]
    for piece in range(2):
        first = column + piece * 16
        if wide:
            if first < matrix[3]:
                j = piece * 4
                vector = totals[i, j], totals[i, j + 1], totals[i, j + 2], totals[i, j + 3]
                store128(out, row + spots[j], vector)
        else:
            for j in range(4):
                if first + j < matrix[3]:
                    out[row + spots[piece * 4 + j]] = totals[i, piece * 4 + j]


@cuda.jit(device=True)
def store_totals(out, bias, filter_, column, group, part, image, matrix, wide, relu, totals):
    """The epilogue. ``wide``: four neighbouring columns are neighbours in out, at a multiple of 16 bytes."""
    spots = cuda.local.array(SIDE, np.uint32)
    for piece in range(2):
        for j in range(4):
            spots[piece * 4 + j] = output_place(np.uint32(column + piece * 16 + j), group, image, matrix)
    start = np.uint64(part) * np.uint64(matrix[8])
    # Written out: a loop with so much in it is not unrolled, and would keep the totals in memory.
    store_row(u32(0), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(1), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(2), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(3), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(4), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(5), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(6), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
    store_row(u32(7), out, start, bias, filter_, column, group, spots, image, matrix, wide, relu, totals)
