"""The implicit GEMM of `pmpp.kernels.convolution_layer.weight_gradients`: dy times gathered x, a tile for each block.

A block computes 64 filters x 64 or 128 weights of each, of one part of the places, in steps of `STEP` places. In the
matrix product the places are what is summed over. Both operands have neighbouring places next to each other in memory,
while the arithmetic wants neighbouring filters, and neighbouring weights, next to each other in shared memory. So both
tiles are transposed on the way. Eight lanes take eight places, and four such groups of lanes four rows: a load then
touches four lines of memory, and the rows of a tile begin four banks apart, so that a warp's store has no conflicts.
Offsets are unsigned numbers of 32 bits that wrap around, as in `pmpp.kernels.convolution_layer.implicit_gather`.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.implicit_gather import lane_place, u32, value_at
from pmpp.runtime.vector import load128, store128

FILTERS, STEP = 64, 8  # rows of a block's tile; places that it takes at a time
PAD = 4  # between the rows of the tiles
SIDE = 8  # a thread computes SIDE x SIDE results in registers
GATHERED, VECTORS_OF_DY, VECTORS_OF_X = 0, 1, 2  # modes, which may be added up: what is loaded in vectors
OUTSIDE = np.uint32(2**31)  # a row that no image has, also with the distance to a tap added
REGISTERS = 168  # of a thread at most: 384 threads, in blocks of 64 or of 128, fit on a multiprocessor


class Places(typing.NamedTuple):
    """What the kernels are told of x, and of where the filters were put on it: uint32."""

    h: int
    w: int
    plane: int  # elements of a channel of an image,
    group_size: int  # of a group's channels,
    size: int  # and of all channels
    places: int  # N P Q
    pixels: int  # P Q
    q: int
    stride_rows: int
    stride_columns: int
    padding_rows: int
    padding_columns: int


class Product(typing.NamedTuple):
    """What the kernels are told of the product and its tiles: uint32."""

    filters: int  # of a group
    terms: int  # weights of a filter
    groups: int
    row_tiles: int
    column_tiles: int
    span: int  # places in a part of the sums, a multiple of STEP
    pitch: int  # elements from one part to the next
    size: int  # elements of an image of dy
    r: int
    s: int
    dilation_rows: int
    dilation_columns: int


@functools.cache
def kernel_for(side: int, mode: int) -> typing.Any:
    """The kernel ``(dy, x, target, places, product, wide)`` with tiles of FILTERS x ``side``, in blocks of ``side``.

    ``wide``: a filter's weights begin at a multiple of 16 bytes in ``target``, and are a multiple of four.
    """
    threads = FILTERS * side // SIDE**2
    pitch_a, pitch_b = FILTERS + PAD, side + PAD
    tile_a, tile_b, table_size = STEP * pitch_a, STEP * pitch_b, 4 * side
    both_a, both_b = 2 * tile_a, 2 * tile_b
    rows = threads // STEP  # that the lanes of one place take at a time
    of_a, of_b = FILTERS * STEP // threads, side * STEP // threads  # elements of a tile for a thread
    dy_vectors, x_vectors = bool(mode & VECTORS_OF_DY), bool(mode & VECTORS_OF_X)

    @cuda.jit(device=True)
    def place_of(i, places, vectors):
        """(place, image, pixel): which place of a step that begins at i this thread loads, or the first of four."""
        thread = np.uint32(cuda.threadIdx.x)
        i = np.uint32(i + (thread % 2 * 4 if vectors else thread % STEP))
        n = np.uint32(i // places.pixels)
        return i, n, np.uint32(i - n * places.pixels)

    @cuda.jit(device=True)
    def fetch_dy(dy, place, end, first, group, places, product, values):
        """Load this thread's elements of the step's tile of dy."""
        thread, (i, n, pixel) = np.uint32(cuda.threadIdx.x), place
        at = np.uint32(n * product.size + group * product.filters * places.pixels + pixel)
        if dy_vectors:
            for v in range(of_a // 4):
                row = min(np.uint32(first + (v * threads + thread) // 2), np.uint32(product.filters - 1))
                a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
                if i < end:
                    a, b, c, d = load128(dy, np.uint32(at + row * places.pixels))
                values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        else:
            for v in range(of_a):
                row = np.uint32(first + v * rows + thread // STEP)
                inside = i < end and row < product.filters
                values[v] = dy[np.uint32(at + row * places.pixels)] if inside else np.float32(0)

    @cuda.jit(device=True)
    def put_dy(tile, start, values):
        thread = np.uint32(cuda.threadIdx.x)
        if dy_vectors:
            for v in range(of_a // 4):
                at = np.uint32(start + thread % 2 * 4 * pitch_a + (v * threads + thread) // 2)
                for d in range(4):
                    tile[np.uint32(at + d * pitch_a)] = values[4 * v + d]
        else:
            for v in range(of_a):
                tile[np.uint32(start + thread % STEP * pitch_a + v * rows + thread // STEP)] = values[v]

    @cuda.jit(device=True)
    def fetch_x(x, table, place, end, first, group, places, product, values):
        """Load this thread's elements of the step's tile of columns."""
        thread, (i, n, pixel) = np.uint32(cuda.threadIdx.x), place
        at = np.uint32(n * places.size + group * places.group_size)
        if x_vectors:  # a weight of a filter is a channel, and a place a pixel of it
            for v in range(of_b // 4):
                channel = min(np.uint32(first + (v * threads + thread) // 2), np.uint32(product.terms - 1))
                a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
                if i < end:
                    a, b, c, d = load128(x, np.uint32(at + channel * places.plane + pixel))
                values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3] = a, b, c, d
        else:
            p = np.uint32(pixel // places.q)
            top = np.uint32(p * places.stride_rows - places.padding_rows)
            left = np.uint32((pixel - p * places.q) * places.stride_columns - places.padding_columns)
            at = np.uint32(at + top * places.w + left)
            top = top if i < end else OUTSIDE
            for v in range(of_b):
                offset, down, right, _ = load128(table, 4 * np.uint32(v * rows + thread // STEP))
                values[v] = value_at(x, top + down, left + right, np.uint32(at + offset), places)

    @cuda.jit(device=True)
    def fetch(dy, x, table, k, end, row, column, group, places, product, a_values, b_values):
        """Load this thread's elements of the tiles of the step that begins at place k, into registers."""
        place = place_of(k, places, dy_vectors)
        fetch_dy(dy, place, end, row, group, places, product, a_values)
        if dy_vectors != x_vectors:
            place = place_of(k, places, x_vectors)
        fetch_x(x, table, place, end, column, group, places, product, b_values)

    @cuda.jit(device=True)
    def put_x(tile, start, values):
        thread = np.uint32(cuda.threadIdx.x)
        if x_vectors:
            for v in range(of_b // 4):
                at = np.uint32(start + thread % 2 * 4 * pitch_b + (v * threads + thread) // 2)
                for d in range(4):
                    tile[np.uint32(at + d * pitch_b)] = values[4 * v + d]
        else:
            for v in range(of_b):
                tile[np.uint32(start + thread % STEP * pitch_b + v * rows + thread // STEP)] = values[v]

    @cuda.jit(device=True)
    def multiply_place(a_tile, b_tile, a_from, b_from, i0, j0, totals):
        """Add the products of one place: two loads from each tile, 64 multiply-adds."""
        a_values, b_values = cuda.local.array(SIDE, np.float32), cuda.local.array(SIDE, np.float32)
        for piece in range(2):
            a_vector = load128(a_tile, np.uint32(a_from + piece * (FILTERS // 2)) + i0)
            b_vector = load128(b_tile, np.uint32(b_from + piece * 16) + j0)
            for i in range(4):
                a_values[piece * 4 + i], b_values[piece * 4 + i] = a_vector[i], b_vector[i]
        for i in range(SIDE):
            for j in range(SIDE):
                totals[i, j] += a_values[i] * b_values[j]

    @cuda.jit(device=True)
    def multiply_step(a_tile, b_tile, a_from, b_from, i0, j0, totals):
        # Written out, as in `pmpp.kernels.matmul`: the loads of a place then overlap another's arithmetic.
        multiply_place(a_tile, b_tile, np.uint32(a_from + 0 * pitch_a), np.uint32(b_from + 0 * pitch_b), i0, j0, totals)
        multiply_place(a_tile, b_tile, np.uint32(a_from + 1 * pitch_a), np.uint32(b_from + 1 * pitch_b), i0, j0, totals)
        multiply_place(a_tile, b_tile, np.uint32(a_from + 2 * pitch_a), np.uint32(b_from + 2 * pitch_b), i0, j0, totals)
        multiply_place(a_tile, b_tile, np.uint32(a_from + 3 * pitch_a), np.uint32(b_from + 3 * pitch_b), i0, j0, totals)
        multiply_place(a_tile, b_tile, np.uint32(a_from + 4 * pitch_a), np.uint32(b_from + 4 * pitch_b), i0, j0, totals)
        multiply_place(a_tile, b_tile, np.uint32(a_from + 5 * pitch_a), np.uint32(b_from + 5 * pitch_b), i0, j0, totals)
        multiply_place(a_tile, b_tile, np.uint32(a_from + 6 * pitch_a), np.uint32(b_from + 6 * pitch_b), i0, j0, totals)
        multiply_place(a_tile, b_tile, np.uint32(a_from + 7 * pitch_a), np.uint32(b_from + 7 * pitch_b), i0, j0, totals)

    @cuda.jit(device=True)
    def store_filter(i, target, start, row, column, product, wide, totals):
        """Store the results for a thread's filter number i."""
        row = np.uint32(row + i // 4 * (FILTERS // 2) + i % 4)
        if row < product.filters:
            for piece in range(2):
                j, beside = 4 * piece, np.uint32(column + 16 * piece)
                at = start + row * product.terms + beside
                if wide:
                    if beside < product.terms:
                        vector = totals[i, j], totals[i, j + 1], totals[i, j + 2], totals[i, j + 3]
                        store128(target, at, vector)
                else:
                    for d in range(4):
                        if beside + d < product.terms:
                            target[at + d] = totals[i, j + d]

    @cuda.jit(max_registers=REGISTERS)
    def kernel(dy, x, target, places, product, wide):
        a_tile = cuda.shared.array(both_a, np.float32, alignment=16)
        b_tile = cuda.shared.array(both_b, np.float32, alignment=16)
        table = cuda.shared.array(table_size, np.int32, alignment=16)
        totals = cuda.local.array((SIDE, SIDE), np.float32)
        a_values, b_values = cuda.local.array(of_a, np.float32), cuda.local.array(of_b, np.float32)
        thread, block = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockIdx.x)
        first_row, block = np.uint32(block % product.row_tiles * FILTERS), np.uint32(block // product.row_tiles)
        first_column, block = np.uint32(block % product.column_tiles * side), np.uint32(block // product.column_tiles)
        group, part = np.uint32(block % product.groups), np.uint32(block // product.groups)
        if not x_vectors:  # each thread writes where one weight's elements of x lie, seen from a place's corner
            term = min(np.uint32(first_column + thread), np.uint32(product.terms - 1))
            line = np.uint32(term // product.s)
            c = np.uint32(line // product.r)
            down = np.uint32((line - c * product.r) * product.dilation_rows)
            right = np.uint32((term - line * product.s) * product.dilation_columns)
            table[4 * thread] = np.int32(np.uint32(c * places.plane + down * places.w + right))
            table[4 * thread + 1] = np.int32(down)
            table[4 * thread + 2] = np.int32(right)
            table[4 * thread + 3] = 0
            cuda.syncthreads()
        for i in range(SIDE):
            for j in range(SIDE):
                totals[i, j] = 0
        i0, j0 = lane_place()
        k = np.uint32(part * product.span)
        end = min(np.uint32(k + product.span), places.places)
        fetch(dy, x, table, k, end, first_row, first_column, group, places, product, a_values, b_values)
        put_dy(a_tile, u32(0), a_values)
        put_x(b_tile, u32(0), b_values)
        cuda.syncthreads()
        last = np.uint32((end - k - 1) // STEP % 2)  # in which half of shared memory the last step's tiles will lie
        k = np.uint32(k + STEP)
        while k < end:  # two steps at a time: where each tile lies in shared memory is then a constant
            fetch(dy, x, table, k, end, first_row, first_column, group, places, product, a_values, b_values)
            multiply_step(a_tile, b_tile, u32(0), u32(0), i0, j0, totals)  # meanwhile the loads travel
            put_dy(a_tile, u32(tile_a), a_values)  # who reads that half is behind the last barrier
            put_x(b_tile, u32(tile_b), b_values)
            cuda.syncthreads()
            k = np.uint32(k + STEP)
            if k < end:
                fetch(dy, x, table, k, end, first_row, first_column, group, places, product, a_values, b_values)
                multiply_step(a_tile, b_tile, u32(tile_a), u32(tile_b), i0, j0, totals)
                put_dy(a_tile, u32(0), a_values)
                put_x(b_tile, u32(0), b_values)
                cuda.syncthreads()
            k = np.uint32(k + STEP)
        multiply_step(a_tile, b_tile, np.uint32(last * tile_a), np.uint32(last * tile_b), i0, j0, totals)
        row, column = np.uint32(first_row + i0), np.uint32(first_column + j0)
        start = np.uint64(part) * np.uint64(product.pitch) + np.uint64(group * product.filters * product.terms)
        # Written out: a loop with so much in it is not unrolled, and would keep the totals in memory.
        store_filter(u32(0), target, start, row, column, product, wide, totals)
        store_filter(u32(1), target, start, row, column, product, wide, totals)
        store_filter(u32(2), target, start, row, column, product, wide, totals)
        store_filter(u32(3), target, start, row, column, product, wide, totals)
        store_filter(u32(4), target, start, row, column, product, wide, totals)
        store_filter(u32(5), target, start, row, column, product, wide, totals)
        store_filter(u32(6), target, start, row, column, product, wide, totals)
        store_filter(u32(7), target, start, row, column, product, wide, totals)

    return kernel
