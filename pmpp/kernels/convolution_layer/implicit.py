"""Convolution by implicit GEMM: the matrix product of im2col, whose second matrix is never written to memory.

Chapter: notebooks/66_implicit_gemm.ipynb.  PMPP 4e ch. 16.

A layer is a product of two matrices: the weights, K x C R S, and the columns, C R S x N P Q, of which each holds what
the kernel covers at one place. `pmpp.kernels.convolution_layer.im2col` writes the columns to memory, and with them most
elements of x R S times. Here a block that needs a tile of them gathers it from x straight into shared memory. Row k of
column j is element (c, r, s) of the kernel at place (n, p, q), so that its place in x can be computed. The ladder
speeds up two things: the multiplication, as in `pmpp.kernels.matmul`, and the computing of places.

Groups are products of their own, in one launch. A group of few filters fills little of a block's tile of 64, so that
depthwise layers are slow here. The algorithm computes every layer whose sizes fit into 32 bits (`refuses`); the rungs
raise ValueError for others. Source: Chetlur et al., "cuDNN: efficient primitives for deep learning" (2014), section 3;
PMPP 4e section 16.4.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import Layer, Problem, finish, no_elements, workspace
from pmpp.kernels.convolution_layer.implicit_gather import (
    ANY,
    CHANNELS,
    COLUMNS,
    DEPTH,
    FILTERS,
    NOWHERE,
    PITCH,
    REGISTERS,
    SIDE,
    THREADS,
    VECTORS,
    W_TILE,
    X_TILE,
    fetch,
    first_weights,
    lane_place,
    mode_of,
    multiply_tiles,
    output_place,
    place_of,
    plan_of,
    put,
    put_weights,
    refuses,
    store_totals,
    tile_of,
    value_at,
    walk_of,
)
from pmpp.runtime import device
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128

reference = definition.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward layers: some of those that all algorithms share, and the edges of a block's tile."""
    rng = np.random.default_rng(16) if rng is None else rng
    shared = definition.inputs(rng)
    left_out = (
        *("3x3 p1", "1x1", "7x7 s2 p3", "dilated", "two filters a channel", "kernel as large as the image"),
        *("a row", "a column", "many filters", "many channels"),
    )
    made = {name: case for name, case in shared.items() if name not in left_out}

    def add(name: str, x: tuple, w: tuple, *options: typing.Any) -> None:
        values = [rng.standard_normal(shape, dtype=np.float32) for shape in (x, w, w[:1])]
        made[name] = *values, *options

    add("a tile and one", (1, 8, 3, 43), (FILTERS + 1, 8, 1, 1), 1, 0, 1, 1, True)
    add("a tile", (2, 8, 8, 8), (FILTERS, 8, 1, 1))
    add("eight channels, 3x2", (2, 16, 4, 5), (6, 8, 3, 2), 2, 1, 1, 2)
    add("a divided sum", (1, 16 * DEPTH, 2, 2), (3, 16 * DEPTH, 1, 1), 1, 0, 1, 1, True)
    return made


tolerance = definition.tolerance
cost = definition.cost
arguments = definition.arguments


def workspace_bytes(layer: Layer) -> int:
    """Bytes that `divided` takes for weights in another order, its table and the parts of sums, of aligned arrays."""
    if not layer.n:
        return 0
    mode = mode_of(layer)
    plan = plan_of(layer, mode, True)
    return 4 * (plan.weights + 4 * plan.depth * (mode != VECTORS) + plan.partial)


def _check(layer: Layer) -> None:
    why = refuses(layer)
    if why:
        raise ValueError(why)


# ---------------------------------------------------------------------------------------------- tiles in shared memory

TILE = 32  # a block computes a TILE x TILE square of the output matrix: 1024 threads, the most that a block may have


@cuda.jit(device=True)
def element(x, k, column, group, image, walk):
    """Row k of a column, found in x."""
    d, e = walk.dilation_rows, walk.dilation_columns
    top, left, at = place_of(column, group, image)
    c = np.uint32(k // (walk.r * walk.s))
    r, s = np.uint32(k // walk.s % walk.r), np.uint32(k % walk.s)
    at = np.uint32(at + c * image.plane + r * d * image.w + s * e)
    return value_at(x, top + r * d, left + s * e, at, image) if k < walk.terms else np.float32(0)


@cuda.jit
def tiled_kernel(x, w, bias, out, image, matrix, walk, relu):
    w_tile = cuda.shared.array((TILE, TILE), np.float32)
    x_tile = cuda.shared.array((TILE, TILE), np.float32)
    filters, columns, terms = matrix.filters, matrix.columns, walk.terms
    tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    rows = np.uint32((filters + TILE - 1) // TILE)
    filter_, group = np.uint32(cuda.blockIdx.y % rows * TILE + ty), np.uint32(cuda.blockIdx.y // rows)
    column = np.uint32(cuda.blockIdx.x * TILE + tx)
    total = np.float32(0)
    k0 = np.uint32(0)
    while k0 < terms:
        inside = filter_ < filters and k0 + tx < terms
        w_tile[ty, tx] = w[np.uint32((group * filters + filter_) * terms + k0 + tx)] if inside else np.float32(0)
        x_tile[ty, tx] = element(x, np.uint32(k0 + ty), min(column, np.uint32(columns - 1)), group, image, walk)
        cuda.syncthreads()  # the tiles are whole before a thread reads them
        for k in range(TILE):
            total += w_tile[ty, k] * x_tile[k, tx]
        cuda.syncthreads()  # all threads have read them before one overwrites them
        k0 = np.uint32(k0 + TILE)
    if filter_ < filters and column < columns:
        at = np.uint32(output_place(column, group, image, matrix) + filter_ * image.pixels)
        out[at] = finish(total, bias, group * filters + filter_, relu)


@rung(tiled_kernel)
def tiled(p):
    """A block gathers 32 x 32 elements of the columns from x into shared memory, and multiplies them there.

    Raises ValueError for more than 65535 tiles of 32 filters, which is a grid's limit. Source: PMPP 4e sections 5.4
    and 16.4.

    Leaves: divisions for each element that is gathered, and every multiply-add waits for two loads.
    """
    a = p.layer
    _check(a)
    plan, rows = plan_of(a, ANY), blocks(a.k // a.groups, TILE) * a.groups
    if rows > 65535:  # every GPU's limit for y
        raise ValueError(f"w must make at most 65535 tiles of {TILE} filters for this rung, makes {rows}")
    grid = blocks(int(plan.matrix.columns), TILE), rows
    tiled_kernel[grid, (TILE, TILE), p.stream](*_flat(p), plan.image, plan.matrix, walk_of(a), p.relu)


def _flat(p: Problem) -> tuple:
    return p.x.reshape(-1), p.w.reshape(-1), p.bias, p.result.reshape(-1)


# ------------------------------------------------------------------------------------------------- tiles in registers


@cuda.jit
def register_tiled_kernel(x, w, bias, out, image, matrix, walk, relu):
    w_tile = cuda.shared.array((DEPTH, PITCH), np.float32)  # transposed: what is read together lies together
    x_tile = cuda.shared.array((DEPTH, COLUMNS), np.float32)
    totals = cuda.local.array((SIDE, SIDE), np.float32)
    w_values = cuda.local.array(SIDE, np.float32)
    spots = cuda.local.array(SIDE, np.uint32)
    kernel_h, kernel_w, d, e, terms = walk
    filters, columns = matrix.filters, matrix.columns
    thread = np.uint32(cuda.threadIdx.x)
    tx, ty = thread % 16, thread // 16
    first_filter, first_column, group, _ = tile_of(matrix)
    top, left, at = place_of(min(np.uint32(first_column + thread), np.uint32(columns - 1)), group, image)
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    k0, r, s = np.uint32(0), np.uint32(0), np.uint32(0)
    while k0 < terms:
        for i in range(
            DEPTH
        ):  # the next rows of the thread's column: (c, r, s) is counted up, and `at` is the corner in channel c
            value = np.float32(0)
            if k0 + i < terms:
                value = value_at(x, top + r * d, left + s * e, np.uint32(at + r * d * image.w + s * e), image)
            x_tile[i, thread] = value
            s = np.uint32(s + 1)
            if s == kernel_w:
                r, s = np.uint32(r + 1), np.uint32(0)
                if r == kernel_h:
                    r, at = np.uint32(0), np.uint32(at + image.plane)
        for part in range(FILTERS * DEPTH // THREADS):
            k, i = np.uint32(k0 + thread % DEPTH), part * (THREADS // DEPTH) + thread // DEPTH
            inside = first_filter + i < filters and k < terms
            place = np.uint32((group * filters + first_filter + i) * terms + k)
            w_tile[thread % DEPTH, i] = w[place] if inside else np.float32(0)
        cuda.syncthreads()
        k = 0
        while k < DEPTH:
            for i in range(SIDE):
                w_values[i] = w_tile[k, ty + i * 8]
            for j in range(SIDE):
                x_value = x_tile[k, tx + j * 16]
                for i in range(SIDE):
                    totals[i, j] += w_values[i] * x_value
            k += 1
        cuda.syncthreads()
        k0 = np.uint32(k0 + DEPTH)
    for j in range(SIDE):
        spots[j] = output_place(np.uint32(first_column + tx + j * 16), group, image, matrix)
    for i in range(SIDE):
        filter_ = first_filter + ty + i * 8
        for j in range(SIDE):
            if filter_ < filters and first_column + tx + j * 16 < columns:
                value = finish(totals[i, j], bias, group * filters + filter_, relu)
                out[np.uint32(spots[j] + filter_ * image.pixels)] = value


@rung(register_tiled_kernel)
def register_tiled(p):
    """A thread computes 8 x 8 outputs in registers, and gathers from one column, whose place it computes once.

    Source: Volkov and Demmel, SC 2008.

    Leaves: a load from shared memory moves 4 bytes, and every thread counts (c, r, s) up for every row.
    """
    _check(p.layer)
    plan = plan_of(p.layer, ANY)
    more = plan.image, plan.matrix, walk_of(p.layer), p.relu
    register_tiled_kernel[plan.blocks, THREADS, p.stream](*_flat(p), *more)


# -------------------------------------------------------------------------------------------- 128-bit access, a table

TURN, TURN_PITCH = 32, 33  # the weights are transposed in squares of TURN x TURN


@cuda.jit
def prepare_kernel(w, weights, table, image, matrix, walk, channels):
    """Write the weights, transposed and padded with zeros, and the table: where in x each row k of the columns lies."""
    tile = cuda.shared.array((TURN, TURN_PITCH), np.float32)
    kernel_h, kernel_w, d, e, terms = walk
    filters, padded, depth = matrix.filters, matrix.padded_filters, matrix.depth
    tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    across, window = np.uint32((depth + TURN - 1) // TURN), np.uint32(kernel_h * kernel_w)
    k0, row = np.uint32(cuda.blockIdx.x % across * TURN), np.uint32(cuda.blockIdx.x // across * TURN)
    group, filter_ = np.uint32(row // padded), np.uint32(row % padded)
    for i in range(0, TURN, 8):
        inside = filter_ + ty + i < filters and k0 + tx < terms
        at = np.uint32((group * filters + filter_ + ty + i) * terms + k0 + tx)
        tile[ty + i, tx] = w[at] if inside else np.float32(0)
    cuda.syncthreads()
    for i in range(0, TURN, 8):
        k = np.uint32(k0 + ty + i)
        if k < depth:
            c, rs = np.uint32(k // window), np.uint32(k % window)
            r, s = np.uint32(rs // kernel_w), np.uint32(rs % kernel_w)
            to = k
            if channels:  # eight channels of one (r, s) follow each other
                to = np.uint32((c // DEPTH * window + rs) * DEPTH + c % DEPTH)
            weights[np.uint32((group * depth + to) * padded + filter_ + tx)] = tile[tx, ty + i]
            if row == 0 and tx == 0:
                table[4 * to] = np.int32(c * image.plane + r * d * image.w + s * e)
                table[4 * to + 1] = np.int32(r * d) if k < terms else NOWHERE
                table[4 * to + 2] = np.int32(s * e)
                table[4 * to + 3] = 0


@cuda.jit
def vectorised_kernel(x, weights, table, bias, out, image, matrix, wide, relu):
    w_tile = cuda.shared.array(W_TILE, np.float32, alignment=16)
    x_tile = cuda.shared.array(X_TILE, np.float32, alignment=16)
    totals = cuda.local.array((SIDE, SIDE), np.float32)
    values = cuda.local.array(DEPTH, np.float32)
    first_filter, first_column, group, part = tile_of(matrix)
    i0, j0 = lane_place()
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    column = min(np.uint32(first_column + cuda.threadIdx.x), np.uint32(matrix.columns - 1))
    place = place_of(column, group, image)
    k = np.uint32(0)
    w_at, w_step = first_weights(first_filter, group, k, matrix, ANY)
    while k < matrix.depth:
        fetch(x, table, k, place, image, values, ANY)
        vector = load128(weights, w_at)
        put(x_tile, values, ANY)
        put_weights(w_tile, vector, ANY)
        cuda.syncthreads()
        multiply_tiles(w_tile, x_tile, i0, j0, totals)
        cuda.syncthreads()
        k, w_at = np.uint32(k + DEPTH), np.uint32(w_at + w_step)
    filter_, column = np.uint32(first_filter + i0), np.uint32(first_column + j0)
    store_totals(out, bias, filter_, column, group, part, image, matrix, wide, relu, totals)


def _launch(kernel: typing.Any, p: Problem, mode: int, divided: bool = False) -> None:
    """Write what the kernel reads besides x, launch it, and add up the parts of the sums if there are several."""
    a, stream = p.layer, p.stream
    _check(a)
    plan = plan_of(a, mode, divided)
    x, weights, bias, out = _flat(p)
    table, target, relu = no_elements(np.int32), out, p.relu
    if mode != VECTORS:
        weights = workspace("the weights in another order", (plan.weights,), stream=stream)
        table = workspace("the table of places", (4 * plan.depth,), stream=stream, dtype=np.int32)
    if plan.parts > 1:
        target = workspace("the parts of the sums", (plan.partial,), stream=stream)
        bias, relu = no_elements(np.float32), False
    if mode != VECTORS:
        grid = plan.weights // plan.depth // TURN * blocks(plan.depth, TURN)
        sizes = plan.image, plan.matrix, walk_of(a), mode == CHANNELS
        prepare_kernel[grid, (TURN, 8), stream](p.w.reshape(-1), weights, table, *sizes)
    wide = a.p * a.q % 4 == 0 and device.address(target) % 16 == 0
    kernel[plan.blocks, THREADS, stream](x, weights, table, bias, target, plan.image, plan.matrix, wide, relu)
    if plan.parts > 1:
        grid = blocks(out.size, 4 * THREADS)
        pixels, filters = np.uint32(a.p * a.q), np.uint32(a.k)
        sum_kernel[grid, THREADS, stream](target, p.bias, out, plan.parts, pixels, filters, p.relu)


@rung(prepare_kernel, vectorised_kernel)
def vectorised(p):
    """A load moves four elements, and a table says where in x a row of the columns lies.

    A small kernel first writes the transposed weights and the table to workspace.

    Leaves: all threads wait while the next tiles travel from device memory.
    """
    _launch(vectorised_kernel, p, ANY)


# ------------------------------------------------------------------------------------------------------- prefetching


@cuda.jit(device=True)
def prefetched_block(x, weights, table, bias, out, image, matrix, wide, relu, mode):
    w_tile = cuda.shared.array(W_TILE, np.float32, alignment=16)
    x_tile = cuda.shared.array(X_TILE, np.float32, alignment=16)
    totals = cuda.local.array((SIDE, SIDE), np.float32)
    values = cuda.local.array(DEPTH, np.float32)
    thread = np.uint32(cuda.threadIdx.x)
    first_filter, first_column, group, part = tile_of(matrix)
    i0, j0 = lane_place()
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    if mode == VECTORS:  # a warp loads one row of the tile, each thread four neighbours
        column = min(np.uint32(first_column + thread % 32 * 4), np.uint32(matrix.columns - 4))
        top, left, at = place_of(column, group, image)
        place = top, left, np.uint32(at + thread // 32 * image.plane)
    else:
        place = place_of(min(np.uint32(first_column + thread), np.uint32(matrix.columns - 1)), group, image)
    k = np.uint32(part * matrix.steps * DEPTH)
    end = min(np.uint32(k + matrix.steps * DEPTH), matrix.depth)
    w_at, w_step = first_weights(first_filter, group, k, matrix, mode)
    fetch(x, table, k, place, image, values, mode)
    vector = load128(weights, w_at)
    put(x_tile, values, mode)
    put_weights(w_tile, vector, mode)
    cuda.syncthreads()
    k = np.uint32(k + DEPTH)
    while k < end:
        w_at = np.uint32(w_at + w_step)
        fetch(x, table, k, place, image, values, mode)
        vector = load128(weights, w_at)
        multiply_tiles(w_tile, x_tile, i0, j0, totals)  # meanwhile the loads are in flight
        cuda.syncthreads()
        put(x_tile, values, mode)  # their first use: a thread waits here if they have not arrived
        put_weights(w_tile, vector, mode)
        cuda.syncthreads()
        k = np.uint32(k + DEPTH)
    multiply_tiles(w_tile, x_tile, i0, j0, totals)
    filter_, column = np.uint32(first_filter + i0), np.uint32(first_column + j0)
    store_totals(out, bias, filter_, column, group, part, image, matrix, wide, relu, totals)


@cuda.jit(max_registers=REGISTERS)
def prefetched_kernel(x, weights, table, bias, out, image, matrix, wide, relu):
    prefetched_block(x, weights, table, bias, out, image, matrix, wide, relu, ANY)


@rung(prepare_kernel, prefetched_kernel)
def prefetched(p):
    """The next tiles travel from device memory into registers while these are multiplied.

    Leaves: two comparisons and an entry of the table for each element that is gathered.
    """
    _launch(prefetched_kernel, p, ANY)


# ------------------------------------------------------------------------------------------------- cheaper gathers


@cuda.jit(max_registers=REGISTERS)
def by_channels_kernel(x, weights, table, bias, out, image, matrix, wide, relu):
    prefetched_block(x, weights, table, bias, out, image, matrix, wide, relu, CHANNELS)


@cuda.jit(max_registers=REGISTERS)
def by_vectors_kernel(x, weights, table, bias, out, image, matrix, wide, relu):
    prefetched_block(x, weights, table, bias, out, image, matrix, wide, relu, VECTORS)


def _by_mode(p: Problem, divided: bool) -> None:
    mode = mode_of(p.layer, not any(device.address(a) % 16 for a in (p.x, p.w)))
    kernel = {ANY: prefetched_kernel, CHANNELS: by_channels_kernel, VECTORS: by_vectors_kernel}[mode]
    _launch(kernel, p, mode, divided)


@rung(prepare_kernel, by_channels_kernel, by_vectors_kernel, prefetched_kernel)
def by_channels(p):
    """A step takes eight channels at one place of the kernel: one check for eight loads.

    Where the number of a group's channels is no multiple of 8, the kernel of `prefetched` runs. Where the kernel is
    1 x 1 with stride 1 and no padding, P Q is a multiple of 4, and x and w begin at multiples of 16 bytes, neighbours
    in a row of the columns are neighbours in x: then x is read in vectors and w as it is, without workspace.

    Leaves: a small layer, or one of many channels and few pixels, has too few blocks for a large GPU.
    """
    _by_mode(p, False)


# --------------------------------------------------------------------------------------------- sums shared by blocks


@cuda.jit
def sum_kernel(partial, bias, out, parts, pixels, filters, relu):
    at, pitch = cuda.grid(1) * 4, partial.size // parts
    if at + 3 < out.size:
        a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        part = 0
        while part < parts:  # always in this order, so that every run gives the same bits
            p, q, r, s = load128(partial, part * pitch + at)
            a, b, c, d = a + p, b + q, c + r, d + s
            part += 1
        totals = a, b, c, d
        for i in range(4):
            k = np.uint32(np.uint32(at + i) // pixels % filters)
            out[np.uint32(at + i)] = finish(totals[i], bias, k, relu)
    else:
        for i in range(at, out.size):  # at most three outputs are left, in one thread
            total = np.float32(0)
            for part in range(parts):
                total += partial[part * pitch + i]
            out[i] = finish(total, bias, np.uint32(np.uint32(i) // pixels % filters), relu)


@rung(*by_channels.kernels, sum_kernel)
def divided(p):
    """Where there are few blocks, several share a tile: each adds up a part of the products.

    The parts are further workspace. A second kernel adds them up in a fixed order, so that a GPU gives the same result
    on every run. Source: CUTLASS, "Efficient GEMM in CUDA", parallelized reductions.
    """
    _by_mode(p, True)


LADDER = (tiled, register_tiled, vectorised, prefetched, by_channels, divided)
