"""Tiles of 16-bit matrices in any order: how a block copies them, reads fragments of them, and stores its results.

`pmpp.kernels.matmul.mixed` and the convolution layers of 16 bits are made of these device functions. They are those of
chapter 40 with three changes. A tile comes into shared memory as it lies in device memory. Addresses are computed once,
and only counted up from tile to tile. And steps and copies are written out, since the compiler does not unroll loops
with instructions that it does not know.

Source: PTX ISA, "ldmatrix" and "Matrix fragments for mma.m16n8k16".
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.matmul.tensor_cores import CHUNK, MMA_M, MMA_N, WARP, Tile
from pmpp.runtime.matrix import copy_async, ldmatrix, ldmatrix_transposed, mma_bf16, mma_f16
from pmpp.runtime.vector import store128, widened

MMA = {"float16": mma_f16, "bfloat16": mma_bf16}
CAPABILITY = (8, 0)  # of the oldest GPU that has these instructions


# --------------------------------------------------------------------------------------------------- tiles of any order


def copier(
    rows: int, chunks: int, threads: int, place: typing.Any, pitch: int | None = None
) -> tuple[typing.Any, typing.Any]:
    """Two device functions for a tile of so many rows and chunks, which lies in shared memory as in device memory.

    ``place``: where a chunk of a row lies there, and ``pitch`` how many elements one of the next row is further: as
    many as a row has, or fewer if rows lie there in panels.

    ``first`` says where in x this thread begins. ``copy`` begins to copy the tile, of which so many rows and columns
    are within the matrix; the others become 0. A thread copies the same chunk of several rows, ``step`` elements apart.
    Only what changes from tile to tile is computed in `copy`: a kernel does it once for each 16 or 32 instructions of
    the tensor cores.
    """
    lines, loads, width = threads // chunks, rows * chunks // threads, np.uint32(chunks)
    if lines % 8:  # then the chunks of all rows of a thread change places in the same way
        raise ValueError(f"threads must copy a multiple of 8 rows at a time, were {threads} for {chunks} chunks")

    @cuda.jit(device=True)
    def first(base, first_row, first_column, pitch):
        thread = np.uint32(cuda.threadIdx.x)
        return base + (first_row + thread // width) * pitch + (first_column + thread % width * CHUNK)

    @cuda.jit(device=True)
    def one(shared, to, x, at, step, rows_left, left):
        inside = rows_left > 0 and left > 0
        copy_async(shared, np.uint32(to), x, at if inside else np.int64(0), left if inside else np.int32(0))

    copy_lines = several(one, loads, lines, lines * (chunks * CHUNK if pitch is None else pitch))

    @cuda.jit(device=True)
    def copy(shared, begin, x, at, step, rows_left, columns_left):
        thread = np.uint32(cuda.threadIdx.x)
        line, chunk = np.uint32(thread // width), np.uint32(thread % width)
        left = np.int32(min(columns_left - np.int32(chunk * CHUNK), np.int32(CHUNK)))  # a row may end within a chunk
        to = np.uint32(begin + place(line, chunk) * np.uint32(CHUNK))
        copy_lines(shared, to, x, at, step, np.int32(rows_left - np.int32(line)), left)

    return first, copy


def several(one: typing.Any, loads: int, lines: int, apart: int) -> typing.Any:
    """``one`` for so many loads, each ``lines`` rows below the one before and ``apart`` further in shared memory.

    They are written out, by halves: the compiler does not unroll a loop with instructions that it does not know.
    """
    if loads == 1:
        return one
    count = loads // 2
    half, further, below = several(one, count, lines, apart), np.uint32(count * apart), np.int32(count * lines)

    @cuda.jit(device=True)
    def both(shared, to, x, at, step, rows_left, left):
        half(shared, to, x, at, step, rows_left, left)
        half(shared, np.uint32(to + further), x, at + count * step, step, np.int32(rows_left - below), left)

    return both


def a_reader(by_rows: bool, place: typing.Any) -> typing.Any:
    """A device function that reads the 16 x 16 elements of A at (row, k): four matrices of 8 x 8, the left ones first.

    A tile that lies by columns has rows of k. Its matrices are the transposed ones, and come out transposed once more.
    """

    @cuda.jit(device=True)
    def straight(shared, begin, row, k):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        line, chunk = np.uint32(row + lane % 16), np.uint32(k // np.uint32(CHUNK) + lane // 16)
        return ldmatrix(shared, np.uint32(begin + place(line, chunk) * np.uint32(CHUNK)))

    @cuda.jit(device=True)
    def turned(shared, begin, row, k):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        line, chunk = np.uint32(k + lane % 8 + lane // 16 * 8), np.uint32(row // np.uint32(CHUNK) + lane // 8 % 2)
        return ldmatrix_transposed(shared, np.uint32(begin + place(line, chunk) * np.uint32(CHUNK)))

    return straight if by_rows else turned


def b_reader(by_rows: bool, place: typing.Any) -> typing.Any:
    """A device function that reads the 16 x 16 elements of B at (k, column): the operands of two instructions.

    mma.sync wants the columns of B, so here the tile that lies by rows is the one to be transposed.
    """

    @cuda.jit(device=True)
    def turned(shared, begin, k, column):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        line, chunk = np.uint32(k + lane % 16), np.uint32(column // np.uint32(CHUNK) + lane // 16)
        return ldmatrix_transposed(shared, np.uint32(begin + place(line, chunk) * np.uint32(CHUNK)))

    @cuda.jit(device=True)
    def straight(shared, begin, k, column):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        line, chunk = np.uint32(column + lane % 8 + lane // 16 * 8), np.uint32(k // np.uint32(CHUNK) + lane // 8 % 2)
        return ldmatrix(shared, np.uint32(begin + place(line, chunk) * np.uint32(CHUNK)))

    return turned if by_rows else straight


# --------------------------------------------------------------------------------------------------- sums and results


@functools.cache
def panel_multiplier(kind: str) -> typing.Any:
    """A device function that adds the products of four fragments of A with four of B to the sums of a panel."""
    mma = MMA[kind]

    @cuda.jit(device=True)
    def row(a, left, right, sums):
        return (
            mma(a, (left[0], left[1]), sums[0]),
            mma(a, (left[2], left[3]), sums[1]),
            mma(a, (right[0], right[1]), sums[2]),
            mma(a, (right[2], right[3]), sums[3]),
        )

    @cuda.jit(device=True)
    def panel(a, left, right, sums):
        return (
            row(a[0], left, right, sums[0]),
            row(a[1], left, right, sums[1]),
            row(a[2], left, right, sums[2]),
            row(a[3], left, right, sums[3]),
        )

    return panel


@cuda.jit(device=True)
def by_pitch(base, row, column, s):
    """Where a result lies: rows are ``c_pitch`` apart."""
    return base + row * s.c_pitch + column


@functools.cache
def fragment_storer(
    short: bool, wide: bool, biased: bool, place: typing.Any = by_pitch, of_rows: bool = False
) -> typing.Any:
    """A device function that stores two fragments side by side, 16 x 16 results.

    ``short``: the results have 16 bits. ``wide``: 16 bytes at a time, for which all rows must begin at multiples of
    16 bytes and have whole chunks. ``biased``: a bias is added, a number for each column, or ``of_rows`` for each row
    from ``base`` on. ``place``: a device function that says where a result lies.
    """

    @cuda.jit(device=True)
    def finished(value, bias, base, row, column, s, alpha):
        value = value * alpha
        if biased:
            value += widened(bias[base + min(row, s.m - 1) if of_rows else min(column, s.n - 1)])
        return value

    @cuda.jit(device=True)
    def both(sums, bias, base, row, column, s, alpha):
        """A lane's four results of a fragment: two neighbours in a row, and two in the row 8 below."""
        return (
            finished(sums[0], bias, base, row, column, s, alpha),
            finished(sums[1], bias, base, row, column + 1, s, alpha),
            finished(sums[2], bias, base, row + 8, column, s, alpha),
            finished(sums[3], bias, base, row + 8, column + 1, s, alpha),
        )

    @cuda.jit(device=True)
    def one_by_one(c, base, row, column, sums, s):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        row, column = row + lane // 4, column + lane % 4 * 2
        for i in range(4):
            at, along = row + i // 2 * 8, column + i % 2
            if at < s.m and along < s.n:
                c[place(base, at, along, s)] = sums[i]

    @cuda.jit(device=True)
    def four(c, base, row, column, sums, s):
        """Of two lanes side by side one gives away its lower pair, and the other one the upper: each has a row."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        odd = lane % 2 == 1
        first = cuda.shfl_xor_sync(FULL_WARP, sums[0] if odd else sums[2], 1)
        second = cuda.shfl_xor_sync(FULL_WARP, sums[1] if odd else sums[3], 1)
        row, column = row + lane // 4 + (8 if odd else 0), column + lane % 4 // 2 * 4
        if row < s.m and column < s.n:
            left = first if odd else sums[0], second if odd else sums[1]
            right = sums[2] if odd else first, sums[3] if odd else second
            store128(c, place(base, row, column, s), (left[0], left[1], right[0], right[1]))

    @cuda.jit(device=True)
    def eight(c, base, row, column, left, right, s):
        """Four lanes side by side exchange pairs until each has eight neighbours: the transposition of a 4 x 4 matrix.

        Lane q gets row ``8 * (q % 2)`` of the left fragment, or for q of 2 and 3 of the right one.
        """
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        odd, late = lane % 2 == 1, lane % 4 >= 2
        x, y = (
            cuda.shfl_xor_sync(FULL_WARP, left[0] if odd else left[2], 1),
            cuda.shfl_xor_sync(FULL_WARP, left[1] if odd else left[3], 1),
        )
        of_left = (x if odd else left[0], y if odd else left[1], left[2] if odd else x, left[3] if odd else y)
        x, y = (
            cuda.shfl_xor_sync(FULL_WARP, right[0] if odd else right[2], 1),
            cuda.shfl_xor_sync(FULL_WARP, right[1] if odd else right[3], 1),
        )
        of_right = (x if odd else right[0], y if odd else right[1], right[2] if odd else x, right[3] if odd else y)
        a = cuda.shfl_xor_sync(FULL_WARP, of_left[0] if late else of_right[0], 2)
        b = cuda.shfl_xor_sync(FULL_WARP, of_left[1] if late else of_right[1], 2)
        d = cuda.shfl_xor_sync(FULL_WARP, of_left[2] if late else of_right[2], 2)
        e = cuda.shfl_xor_sync(FULL_WARP, of_left[3] if late else of_right[3], 2)
        row, column = row + lane // 4 + (8 if odd else 0), column + (8 if late else 0)
        if row < s.m and column < s.n:
            values = (
                a if late else of_left[0],
                b if late else of_left[1],
                d if late else of_left[2],
                e if late else of_left[3],
                of_right[0] if late else a,
                of_right[1] if late else b,
                of_right[2] if late else d,
                of_right[3] if late else e,
            )
            store128(c, place(base, row, column, s), values)

    @cuda.jit(device=True)
    def store(c, base, row, column, left, right, bias, alpha, s):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        down, along = row + lane // 4, column + lane % 4 * 2
        left, right = (
            both(left, bias, base, down, along, s, alpha),
            both(right, bias, base, down, along + MMA_N, s, alpha),
        )
        if wide and short:
            eight(c, base, row, column, left, right, s)
        elif wide:
            four(c, base, row, column, left, s)
            four(c, base, row, column + MMA_N, right, s)
        else:
            one_by_one(c, base, row, column, left, s)
            one_by_one(c, base, row, column + MMA_N, right, s)

    return store


def stepper(tile: Tile, kind: str, read_a: typing.Any, read_b: typing.Any) -> typing.Any:
    """A device function that multiplies the tiles of A and B in a stage of shared memory, and adds to a warp's sums."""
    a_size, depth, panels = np.uint32(tile.m * tile.depth), tile.depth, tile.panels
    if depth not in (32, 64):
        raise ValueError(f"depth must be 32 or 64, was {depth}")
    multiply_panel = panel_multiplier(kind)

    @cuda.jit(device=True)
    def sixteen(shared, begin, row, column, k, sums, more):
        """Add the products of 16 k, of a tile that begins there in shared memory."""
        a_words = (
            read_a(shared, begin, row, k),
            read_a(shared, begin, np.uint32(row + 16), k),
            read_a(shared, begin, np.uint32(row + 32), k),
            read_a(shared, begin, np.uint32(row + 48), k),
        )
        b_begin = np.uint32(begin + a_size)
        left = read_b(shared, b_begin, k, column)
        right = read_b(shared, b_begin, k, np.uint32(column + 16))
        sums = multiply_panel(a_words, left, right, sums)
        if panels == 2:
            left = read_b(shared, b_begin, k, np.uint32(column + 32))
            right = read_b(shared, b_begin, k, np.uint32(column + 48))
            more = multiply_panel(a_words, left, right, more)
        return sums, more

    @cuda.jit(device=True)
    def all_of(shared, begin, row, column, sums, more):
        # Written out, so that the loads of a step overlap another's arithmetic.
        sums, more = sixteen(shared, begin, row, column, np.uint32(0), sums, more)
        sums, more = sixteen(shared, begin, row, column, np.uint32(16), sums, more)
        if depth == 64:
            sums, more = sixteen(shared, begin, row, column, np.uint32(32), sums, more)
            sums, more = sixteen(shared, begin, row, column, np.uint32(48), sums, more)
        return sums, more

    return all_of


def panel_storer(store_two: typing.Any) -> typing.Any:
    """A device function that stores a panel of sums, with what `fragment_storer` made."""

    @cuda.jit(device=True)
    def store_row(c, base, row, column, sums, bias, alpha, s):
        store_two(c, base, row, column, sums[0], sums[1], bias, alpha, s)
        store_two(c, base, row, column + 2 * MMA_N, sums[2], sums[3], bias, alpha, s)

    @cuda.jit(device=True)
    def store_panel(c, base, row, column, sums, bias, alpha, s):
        store_row(c, base, row, column, sums[0], bias, alpha, s)
        store_row(c, base, row + MMA_M, column, sums[1], bias, alpha, s)
        store_row(c, base, row + 2 * MMA_M, column, sums[2], bias, alpha, s)
        store_row(c, base, row + 3 * MMA_M, column, sums[3], bias, alpha, s)

    return store_panel
