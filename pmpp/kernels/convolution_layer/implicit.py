"""Convolution by implicit GEMM: the matrix product of im2col, whose second matrix never touches memory.

Chapter: notebooks/66_implicit_gemm.ipynb.  PMPP 4e ch. 16.

A layer is a product of two matrices: the weights, K x C R S, and the columns, C R S x N P Q, each of which is what the
kernel covers at one place. Written out, as `pmpp.kernels.convolution_layer.im2col` does, the columns hold most
elements of x R S
times. Here nobody writes them out: a block that wants a tile of them gathers it from x straight into shared memory. Row
k of column j is element (c, r, s) of the kernel at place (n, p, q), so where it lies in x is arithmetic. The ladder has
two subjects: the multiplication, which is that of `pmpp.kernels.matmul`, and the price of that arithmetic.

Every layer can be computed. Groups are products of their own, in one launch; a group of few filters fills little of a
block's tile of 64, so depthwise layers are right here but slow. Weights that are inf or NaN meet the zeros around the
image, and such products are NaN. Source: Chetlur et al., "cuDNN: efficient primitives for deep learning" (2014),
section 3; PMPP 4e section 16.4.
"""

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import Layer, finish, problem_of, workspace
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
    made = {name: arguments for name, arguments in shared.items() if name not in left_out}

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


def workspace_bytes(layer: Layer) -> int:
    """Bytes that the last rung takes for the weights in its order, its table and parts of sums, of aligned arrays."""
    if not layer.n:
        return 0
    mode = mode_of(layer)
    plan = plan_of(layer, mode, True)
    return 4 * (plan.weights + 4 * plan.depth * (mode != VECTORS) + _partial(plan))


def _partial(plan: typing.Any) -> int:
    return plan.parts * int(plan.matrix[8]) if plan.parts > 1 else 0


def _problem(*arguments: typing.Any) -> definition.Problem:
    problem = problem_of(*arguments)
    reason = refuses(problem.layer)
    if reason:
        raise ValueError(reason)
    return problem


# ---------------------------------------------------------------------------------------------- tiles in shared memory

TILE = 32  # a block computes a TILE x TILE square of the output matrix


@cuda.jit(device=True)
def element(x, k, column, group, image, walk):
    """Row k of a column of the matrix that nobody stores."""
    kernel_h, kernel_w, d, e, terms = walk
    top, left, at = place_of(column, group, image)
    c = np.uint32(k // (kernel_h * kernel_w))
    r, s = np.uint32(k // kernel_w % kernel_h), np.uint32(k % kernel_w)
    at = np.uint32(at + c * image[2] + r * d * image[1] + s * e)
    return value_at(x, top + r * d, left + s * e, at, image) if k < terms else np.float32(0)


@cuda.jit
def tiled_kernel(x, w, bias, out, image, matrix, walk, relu):
    w_tile = cuda.shared.array((TILE, TILE), np.float32)
    x_tile = cuda.shared.array((TILE, TILE), np.float32)
    filters, columns, terms = matrix[0], matrix[3], walk[4]
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
        cuda.syncthreads()  # the tiles are whole before anyone reads them
        for k in range(TILE):
            total += w_tile[ty, k] * x_tile[k, tx]
        cuda.syncthreads()  # everyone has read them before they are overwritten
        k0 = np.uint32(k0 + TILE)
    if filter_ < filters and column < columns:
        at = np.uint32(output_place(column, group, image, matrix) + filter_ * image[5])
        out[at] = finish(total, bias, group * filters + filter_, relu)


@rung(tiled_kernel)
def tiled(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A block gathers 32 x 32 elements of the columns from x into shared memory, and multiplies them there.

    Args:
        x: float32 images of shape (N, C, H, W). w: float32 weights of shape (K, C / groups, R, S).
        bias: float32 of shape (K,), or None. relu: negative results become 0.
        stride, padding, dilation: whole numbers, or pairs for rows and columns. groups: as many separate layers.
        out: a float32 device array of shape (N, K, P, Q), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. Raises TypeError or ValueError that names the argument at
    fault. Source: PMPP 4e sections 5.4 and 16.4.

    Leaves: divisions for each element that is gathered, and every multiply-add waits for two loads.
    """
    problem = _problem(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    a, plan = problem.layer, plan_of(problem.layer, ANY)
    rows = -(-a.k // a.groups // TILE) * a.groups
    if rows > 65535:  # every GPU's limit for y
        raise ValueError(f"w must make at most 65535 tiles of {TILE} filters for this rung, makes {rows}")
    if problem.out.size:
        grid = -(-int(plan.matrix[3]) // TILE), rows
        tiled_kernel[grid, (TILE, TILE), problem.stream](
            *_flat(problem), plan.image, plan.matrix, _walk(a), problem.relu
        )
    return problem.out


def _flat(problem: definition.Problem) -> tuple:
    return problem.x.reshape(-1), problem.w.reshape(-1), problem.bias, problem.out.reshape(-1)


def _walk(a: Layer) -> tuple:
    return tuple(map(np.uint32, (a.r, a.s, *a.dilation, a.terms)))


# ------------------------------------------------------------------------------------------------- tiles in registers


@cuda.jit
def register_tiled_kernel(x, w, bias, out, image, matrix, walk, relu):
    w_tile = cuda.shared.array((DEPTH, PITCH), np.float32)  # transposed: what is read together lies together
    x_tile = cuda.shared.array((DEPTH, COLUMNS), np.float32)
    totals = cuda.local.array((SIDE, SIDE), np.float32)
    w_values = cuda.local.array(SIDE, np.float32)
    spots = cuda.local.array(SIDE, np.uint32)
    kernel_h, kernel_w, d, e, terms = walk
    filters, columns = matrix[0], matrix[3]
    thread = np.uint32(cuda.threadIdx.x)
    tx, ty = thread % 16, thread // 16
    first_filter, first_column, group, _ = tile_of(matrix)
    top, left, at = place_of(min(np.uint32(first_column + thread), np.uint32(columns - 1)), group, image)
    for i in range(SIDE):
        for j in range(SIDE):
            totals[i, j] = 0
    k0, r, s = np.uint32(0), np.uint32(0), np.uint32(0)
    while k0 < terms:
        for i in range(DEPTH):  # the thread's column stays; (c, r, s) walks on: at follows c
            value = np.float32(0)
            if k0 + i < terms:
                value = value_at(x, top + r * d, left + s * e, np.uint32(at + r * d * image[1] + s * e), image)
            x_tile[i, thread] = value
            s = np.uint32(s + 1)
            if s == kernel_w:
                r, s = np.uint32(r + 1), np.uint32(0)
                if r == kernel_h:
                    r, at = np.uint32(0), np.uint32(at + image[2])
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
                out[np.uint32(spots[j] + filter_ * image[5])] = value


@rung(register_tiled_kernel)
def register_tiled(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A thread computes 8 x 8 outputs in registers, and gathers from one column, whose place it works out once.

    Arguments, result and errors as in `tiled`. Source: Volkov and Demmel, SC 2008.

    Leaves: every load from shared memory is an instruction for 4 bytes, and (c, r, s) is walked by every thread.
    """
    problem = _problem(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    plan = plan_of(problem.layer, ANY)
    if problem.out.size:
        more = plan.image, plan.matrix, _walk(problem.layer), problem.relu
        register_tiled_kernel[plan.blocks, THREADS, problem.stream](*_flat(problem), *more)
    return problem.out


# -------------------------------------------------------------------------------------------- 128-bit access, a table

TURN, TURN_PITCH = 32, 33  # the weights are turned around in squares of TURN x TURN


@cuda.jit
def prepare_kernel(w, weights, table, image, matrix, walk, channels):
    """The weights, transposed and padded with zeros, and where in x each of their rows k belongs."""
    tile = cuda.shared.array((TURN, TURN_PITCH), np.float32)
    kernel_h, kernel_w, d, e, terms = walk
    filters, padded, depth = matrix[0], matrix[1], matrix[2]
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
                table[4 * to] = np.int32(c * image[2] + r * d * image[1] + s * e)
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
    column = min(np.uint32(first_column + cuda.threadIdx.x), np.uint32(matrix[3] - 1))
    place = place_of(column, group, image)
    k = np.uint32(0)
    w_at, w_step = first_weights(first_filter, group, k, matrix, ANY)
    while k < matrix[2]:
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


@functools.cache
def _no_table() -> typing.Any:
    return device.empty(4, np.int32)


def _launch(kernel, problem, mode, divided=False):
    """Prepare what the kernel needs, launch it, add up the parts of the sums if there are several, and return out."""
    a, plan = problem.layer, plan_of(problem.layer, mode, divided)
    x, weights, bias, out = _flat(problem)
    if not out.size:
        return problem.out
    table, target, relu, stream = _no_table(), out, problem.relu, problem.stream
    if mode != VECTORS:
        weights = workspace("the weights in another order", (plan.weights,), stream=stream)
        table = workspace("the table of places", (4 * plan.depth,), stream=stream, dtype=np.int32)
    if plan.parts > 1:
        target = workspace("the parts of the sums", (_partial(plan),), stream=stream)
        bias, relu = definition._nothing(), False
    if mode != VECTORS:
        grid = plan.weights // plan.depth // TURN * -(-plan.depth // TURN)
        sizes = plan.image, plan.matrix, _walk(a), mode == CHANNELS
        prepare_kernel[grid, (TURN, 8), stream](problem.w.reshape(-1), weights, table, *sizes)
    wide = a.p * a.q % 4 == 0 and device.address(target) % 16 == 0
    kernel[plan.blocks, THREADS, stream](x, weights, table, bias, target, plan.image, plan.matrix, wide, relu)
    if plan.parts > 1:
        grid = -(-out.size // (4 * THREADS))
        pixels, filters = np.uint32(a.p * a.q), np.uint32(a.k)
        sum_kernel[grid, THREADS, stream](target, problem.bias, out, plan.parts, pixels, filters, problem.relu)
    return problem.out


@rung(prepare_kernel, vectorised_kernel)
def vectorised(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A load moves four elements, and a table says where in x a row of the columns lies.

    Arguments, result and errors as in `tiled`. A small kernel first writes the transposed weights and the table to
    workspace. Raises MemoryError if there is no room for it, with nothing written.

    Leaves: all threads wait while the next tiles travel from device memory.
    """
    return _launch(vectorised_kernel, _problem(x, w, bias, stride, padding, dilation, groups, relu, out, stream), ANY)


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
    if mode == VECTORS:  # a warp takes a row of the tile, a thread four neighbours
        column = min(np.uint32(first_column + thread % 32 * 4), np.uint32(matrix[3] - 4))
        top, left, at = place_of(column, group, image)
        place = top, left, np.uint32(at + thread // 32 * image[2])
    else:
        place = place_of(min(np.uint32(first_column + thread), np.uint32(matrix[3] - 1)), group, image)
    k = np.uint32(part * matrix[7] * DEPTH)
    end = min(np.uint32(k + matrix[7] * DEPTH), matrix[2])
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
        multiply_tiles(w_tile, x_tile, i0, j0, totals)  # meanwhile the next elements travel
        cuda.syncthreads()
        put(x_tile, values, mode)  # the first use of them, so here the thread waits if it must
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
def prefetched(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """The next tiles travel from device memory into registers while these are multiplied.

    Arguments, result and errors as in `vectorised`.

    Leaves: two comparisons and a table's entry for each element that is gathered.
    """
    return _launch(prefetched_kernel, _problem(x, w, bias, stride, padding, dilation, groups, relu, out, stream), ANY)


# ------------------------------------------------------------------------------------------------- cheaper gathers


@cuda.jit(max_registers=REGISTERS)
def by_channels_kernel(x, weights, table, bias, out, image, matrix, wide, relu):
    prefetched_block(x, weights, table, bias, out, image, matrix, wide, relu, CHANNELS)


@cuda.jit(max_registers=REGISTERS)
def by_vectors_kernel(x, weights, table, bias, out, image, matrix, wide, relu):
    prefetched_block(x, weights, table, bias, out, image, matrix, wide, relu, VECTORS)


def _kernel(mode: int) -> typing.Any:
    return {ANY: prefetched_kernel, CHANNELS: by_channels_kernel, VECTORS: by_vectors_kernel}[mode]


@rung(prepare_kernel, by_channels_kernel, by_vectors_kernel, prefetched_kernel)
def by_channels(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A step takes eight channels at one place of the kernel: one check for eight loads.

    Arguments, result and errors as in `vectorised`. Where the channels of a group are no multiple of 8, it does what
    `prefetched` does. Where the kernel is 1 x 1 with stride 1 and no padding, P Q a multiple of 4, and x and w begin at
    multiples of 16 bytes, neighbouring columns are neighbours in x: x is read in vectors, w as it is, and there is no
    workspace.

    Leaves: a small layer, or one of many channels and few pixels, has too few blocks for a large GPU.
    """
    problem = _problem(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    mode = mode_of(problem.layer, not any(device.address(a) % 16 for a in (problem.x, problem.w)))
    return _launch(_kernel(mode), problem, mode)


# --------------------------------------------------------------------------------------------- sums shared by blocks


@cuda.jit
def sum_kernel(partial, bias, out, parts, pixels, filters, relu):
    at, pitch = cuda.grid(1) * 4, partial.size // parts
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    if at < out.size:
        part = 0
        while part < parts:  # always in this order: the same result on every run
            p, q, r, s = load128(partial, part * pitch + at)
            a, b, c, d = a + p, b + q, c + r, d + s
            part += 1
        totals = a, b, c, d
        for i in range(4):
            if at + i < out.size:
                k = np.uint32(np.uint32(at + i) // pixels % filters)
                out[np.uint32(at + i)] = finish(totals[i], bias, k, relu)


@rung(*by_channels.kernels, sum_kernel)
def divided(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """Where there are few blocks, several share a tile: each adds up a part of the products.

    Arguments, result and errors as in `by_channels`, with the parts of the sums as further workspace. A second kernel
    adds them in a fixed order, so that a GPU gives the same result on every run. Source: CUTLASS, "Efficient GEMM in
    CUDA", parallelized reductions.
    """
    problem = _problem(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    mode = mode_of(problem.layer, not any(device.address(a) % 16 for a in (problem.x, problem.w)))
    return _launch(_kernel(mode), problem, mode, True)


LADDER = (tiled, register_tiled, vectorised, prefetched, by_channels, divided)
