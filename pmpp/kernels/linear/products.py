"""The product behind a linear layer and its gradients: C = A @ B for operands that lie either way, split over k.

Chapter: notebooks/74_linear.ipynb. A linear layer is y = x Wᵀ, its gradients are dx = dy W and dW = dyᵀ x. All three
are C[i, j] = sum over k of A[i, k] B[k, j], and all matrices lie in C order. But k, which is summed over, runs along
memory in x and W of the first product, and across it in dy and x of the third. An operand is *deep* if its k lies along
memory, *wide* if it does not. One kernel reads both kinds, so nothing is transposed or copied.

The kernel is that of `pmpp.kernels.matmul.batched`: tiles in registers, two places for each tile in shared memory,
128-bit access. Three things are new. Tiles exist for products of few rows or columns. The sum over k is split where a
product has too few tiles to fill the GPU: over groups of warps within a block, and over blocks. And what is split is
put together in a fixed order, so that the same call gives the same bits.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up, warp_sum
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

MOST_BLOCKS, MOST_ELEMENTS = 2**31 - 1, 2**32 - 1  # of a grid; of an array, whose offsets are unsigned
PAD = 4  # a deep operand's tile is stored down its columns: with rows 4 banks apart that is free of bank conflicts
f0 = np.float32(0)


class Tile(typing.NamedTuple):
    """A block computes m x n of C, a thread rows x columns of that, from tiles that are ``depth`` deep.

    A warp's lanes form a grid of ``lanes_m`` rows. ``groups``: how many times the block has the threads for its m x n;
    each group sums over its own part of k. ``registers`` is the most a thread may have. ``speed`` is the share of the
    multiply-adds of a multiprocessor that it reaches if it never waits for memory.
    """

    m: int
    n: int
    rows: int
    columns: int
    lanes_m: int
    depth: int
    groups: int
    registers: int
    speed: float

    @property
    def lanes_n(self) -> int:
        """Columns of the grid of lanes."""
        return 32 // self.lanes_m

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.m * self.n // (self.rows * self.columns)


# The speeds of the first three were measured for `matmul.batched`. Those of the others are estimates: a thread that
# computes 4 x 8 or 4 x 4 of C loads more from shared memory for a multiply-add.
LARGE = Tile(128, 128, 8, 16, lanes_m=8, depth=8, groups=1, registers=255, speed=0.8)
MIDDLE = Tile(64, 64, 8, 8, lanes_m=8, depth=8, groups=1, registers=168, speed=0.77)
FLAT = Tile(64, 128, 8, 8, lanes_m=8, depth=8, groups=1, registers=168, speed=0.77)
ROWS_16 = Tile(16, 128, 4, 8, lanes_m=4, depth=16, groups=1, registers=128, speed=0.6)
COLUMNS_16 = Tile(128, 16, 8, 4, lanes_m=8, depth=16, groups=1, registers=128, speed=0.6)
SMALL = Tile(32, 32, 4, 4, lanes_m=8, depth=16, groups=1, registers=96, speed=0.45)
SMALL_IN_GROUPS = SMALL._replace(groups=4)
TINY_IN_GROUPS = Tile(16, 32, 4, 4, lanes_m=4, depth=16, groups=4, registers=96, speed=0.4)
TILES = (LARGE, FLAT, MIDDLE, ROWS_16, COLUMNS_16, SMALL, SMALL_IN_GROUPS, TINY_IN_GROUPS)
GUARDED = (
    MIDDLE,
    SMALL,
    SMALL_IN_GROUPS,
    TINY_IN_GROUPS,
)  # with a test at every element, larger ones do not fit into the registers


class Operand(typing.NamedTuple):
    """How a matrix is read: ``deep`` if k runs along memory, ``vectors`` if it can be read 16 bytes at a time."""

    deep: bool
    vectors: bool


class Form(typing.NamedTuple):
    """What a kernel is compiled for.

    ``stores``: C can be written 16 bytes at a time. ``whole``: every group's part of k is made of whole steps.
    ``sums``: the sums over the rows of A are computed as well, for which A must be wide.
    """

    a: Operand
    b: Operand
    stores: bool
    whole: bool
    sums: bool


class Sizes(typing.NamedTuple):
    """C is m x n. ``length`` is what a group of threads sums over, of k in all; ``slices``, how many blocks share k."""

    m: int
    n: int
    k: int
    length: int
    slices: int


@cuda.jit(device=True)
def quad(x, row, column, left):
    """Four neighbours in a row of a matrix, of which ``left`` are wanted; for the others 0, and nothing is read."""
    return (
        x[row, column] if left > 0 else f0,
        x[row, column + 1] if left > 1 else f0,
        x[row, column + 2] if left > 2 else f0,
        x[row, column + 3] if left > 3 else f0,
    )


@cuda.jit(device=True)
def store_some(x, row, column, values):
    """Of four neighbours in a row of a matrix, those that it has."""
    left = x.shape[1] - column
    if left > 0:
        x[row, column] = values[0]
    if left > 1:
        x[row, column + 1] = values[1]
    if left > 2:
        x[row, column + 2] = values[2]
    if left > 3:
        x[row, column + 3] = values[3]


@cuda.jit(device=True)
def finished(value, least):
    """The value, or ``least`` where that is larger: it is 0 for a ReLU, and else -inf. A NaN stays one."""
    return least if value < least else value


class Reader(typing.NamedTuple):
    """The device functions that bring an operand's tiles into shared memory.

    ``vectors``: how many a thread moves. ``pitch``: how far apart in shared memory the rows of a tile begin.
    """

    vectors: int
    pitch: int
    place: typing.Any
    start: typing.Any
    fetch: typing.Any
    keep: typing.Any


def reader_of(operand: Operand, side: int, tile: Tile, whole: bool, member: typing.Any) -> Reader:
    """How a group of threads reads tiles of ``depth`` x ``side``. In shared memory a row is one k.

    ``member``: the device function that gives a thread its number in its group.
    """
    deep, vectors = operand
    depth, threads, pitch = tile.depth, tile.threads, side + (PAD if operand.deep else 0)
    count = side * depth // 4 // threads

    @cuda.jit(device=True)
    def place(v):
        """(k, i): where in the tile this thread's vector number v begins: along the depth, or along the side."""
        at = v * threads + member()
        if deep:
            # Two lanes read a sector of 32 bytes. A warp reads 16 rows, so that it stores into 32 banks.
            return at // (2 * side) * 8 + at % 2 * 4, at // 2 % side
        return at // (side // 4), at % (side // 4) * 4

    @cuda.jit(device=True)
    def start(first, extent, k, begin, offsets):
        """Where this thread's vectors of the tile at depth ``begin`` lie in memory.

        Beyond the edge they are others', for products that are not stored.
        """
        for v in range(count):
            d, i = place(v)
            if deep:
                offsets[v] = min(first + i, extent - 1) * k + begin + d
            else:
                offsets[v] = (begin + d) * extent + min(first + i, extent - 4)

    @cuda.jit(device=True)
    def fetch(x, first, extent, k0, end, offsets, values):
        """This thread's vectors of the tiles at depth k0, into registers. From ``end`` on they are 0."""
        for v in range(count):
            d, i = place(v)
            if vectors and whole:
                vector = load128(x, offsets[v])
            elif vectors:
                vector = load128(x, offsets[v]) if k0 + d < end else (f0, f0, f0, f0)
            elif deep:
                vector = quad(x, min(first + i, extent - 1), k0 + d, end - k0 - d)
            else:
                vector = quad(x, k0 + d, first + i, extent - first - i if k0 + d < end else 0)
            for e in range(4):
                values[v, e] = vector[e]
            offsets[v] = np.uint32(offsets[v] + (depth if deep else depth * extent))

    @cuda.jit(device=True)
    def keep(shared, k0, values):
        """The vectors, from registers into the tile that begins in row k0 of shared memory."""
        for v in range(count):
            d, i = place(v)
            if deep:
                for e in range(4):
                    shared[k0 + d + e, i] = values[v, e]
            else:
                store128(shared, (k0 + d) * pitch + i, (values[v, 0], values[v, 1], values[v, 2], values[v, 3]))

    return Reader(count, pitch, place, start, fetch, keep)


@functools.cache
def kernel_for(tile: Tile, form: Form) -> typing.Any:
    """The kernel ``(a, b, bias, c, sums, relu, sizes)``, to be launched with a block for each tile of each slice.

    With several slices, those of C lie one below the other in ``c``, as those of ``sums`` do; then ``bias`` is empty
    and ``relu`` False, and `add_kernel` does the rest.
    """
    side_m, side_n, rows, columns, lanes_m, depth, groups = tile[:7]
    lanes_n, threads, stores, sums_too = tile.lanes_n, tile.threads, form.stores, form.sums
    places = groups * 2 * depth  # rows of tiles in shared memory
    warps_n = side_n // (lanes_n * columns)

    @cuda.jit(device=True)
    def member():
        """The thread's number in its group."""
        thread = np.uint32(cuda.threadIdx.x)
        return thread if groups == 1 else np.uint32(thread % np.uint32(threads))

    @cuda.jit(device=True)
    def group_of():
        """The number of the thread's group."""
        return np.uint32(0) if groups == 1 else np.uint32(np.uint32(cuda.threadIdx.x) // np.uint32(threads))

    reader_a = reader_of(form.a, side_m, tile, form.whole, member)
    reader_b = reader_of(form.b, side_n, tile, form.whole, member)
    pitch_a, pitch_b = reader_a.pitch, reader_b.pitch
    start_a, fetch_a, keep_a, vectors_a = reader_a.start, reader_a.fetch, reader_a.keep, reader_a.vectors
    start_b, fetch_b, keep_b, vectors_b = reader_b.start, reader_b.fetch, reader_b.keep, reader_b.vectors
    across = side_m // 4  # threads that hold vectors of the same k, if A is wide

    @cuda.jit(device=True)
    def lane_place():
        """(i, j): where in the block's part of C this thread's part begins."""
        # Four lanes in a row form a 2 x 2 square: a warp's load from shared memory then takes two passes.
        thread = member()
        warp, square = thread // 32, thread % 32 // 4
        y, x = square // (lanes_n // 2) * 2 + thread // 2 % 2, square % (lanes_n // 2) * 2 + thread % 2
        return warp // warps_n * (lanes_m * rows) + y * 4, warp % warps_n * (lanes_n * columns) + x * 4

    @cuda.jit(device=True)
    def step(a_tile, b_tile, a_from, b_from, totals):
        """Add the products of one k: its values begin there in the tiles."""
        a_values, b_values = cuda.local.array(rows, np.float32), cuda.local.array(columns, np.float32)
        for piece in range(rows // 4):
            vector = load128(a_tile, a_from + piece * lanes_m * 4)
            for i in range(4):
                a_values[piece * 4 + i] = vector[i]
        for piece in range(columns // 4):
            vector = load128(b_tile, b_from + piece * lanes_n * 4)
            for j in range(4):
                b_values[piece * 4 + j] = vector[j]
        for i in range(rows):
            for j in range(columns):
                totals[i, j] += a_values[i] * b_values[j]

    @cuda.jit(device=True)
    def eight_steps(a_tile, b_tile, a_from, b_from, totals):
        # Written out, since the compiler unrolls only small loops: the loads of a step then overlap another's sums.
        step(a_tile, b_tile, a_from, b_from, totals)
        step(a_tile, b_tile, a_from + pitch_a, b_from + pitch_b, totals)
        step(a_tile, b_tile, a_from + 2 * pitch_a, b_from + 2 * pitch_b, totals)
        step(a_tile, b_tile, a_from + 3 * pitch_a, b_from + 3 * pitch_b, totals)
        step(a_tile, b_tile, a_from + 4 * pitch_a, b_from + 4 * pitch_b, totals)
        step(a_tile, b_tile, a_from + 5 * pitch_a, b_from + 5 * pitch_b, totals)
        step(a_tile, b_tile, a_from + 6 * pitch_a, b_from + 6 * pitch_b, totals)
        step(a_tile, b_tile, a_from + 7 * pitch_a, b_from + 7 * pitch_b, totals)

    @cuda.jit(device=True)
    def multiply(a_tile, b_tile, k0, a_from, b_from, totals):
        """Add the products of the tiles that begin in row k0 of the group's part of shared memory."""
        eight_steps(a_tile, b_tile, k0 * pitch_a + a_from, k0 * pitch_b + b_from, totals)
        if depth == 16:
            eight_steps(a_tile, b_tile, (k0 + 8) * pitch_a + a_from, (k0 + 8) * pitch_b + b_from, totals)

    @cuda.jit(device=True)
    def add_groups(shared, totals):
        """The totals of the first group become those of all groups, added in their order."""
        thread, group = member(), group_of()
        cuda.syncthreads()  # the tiles have been read
        if group > 0:
            for i in range(rows):
                for j in range(0, columns, 4):
                    vector = totals[i, j], totals[i, j + 1], totals[i, j + 2], totals[i, j + 3]
                    at = ((group - 1) * (rows * columns // 4) + i * (columns // 4) + j // 4) * threads + thread
                    store128(shared, at * 4, vector)
        cuda.syncthreads()
        if group == 0:
            for i in range(rows):
                for j in range(0, columns, 4):
                    for other in range(groups - 1):
                        at = (other * (rows * columns // 4) + i * (columns // 4) + j // 4) * threads + thread
                        vector = load128(shared, at * 4)
                        for e in range(4):
                            totals[i, j + e] += vector[e]

    @cuda.jit(device=True)
    def add_to_sums(values, partial):
        """Sums over the rows of A, which is k x m in memory: a thread has the same four columns in all its vectors."""
        for v in range(vectors_a):
            for e in range(4):
                partial[e] += values[v, e]

    @cuda.jit(device=True)
    def store_sums(shared, partial, sums, first, row, m):
        """What threads have for the same columns is added in the threads' order."""
        thread = np.uint32(cuda.threadIdx.x)
        cuda.syncthreads()
        store128(
            shared,
            thread // across * pitch_a + thread % across * 4,
            (partial[0], partial[1], partial[2], partial[3]),
        )
        cuda.syncthreads()
        column = thread
        while column < side_m and row + column < m:
            total = f0
            for other in range(groups * threads // across):
                total += shared[other, column]
            sums[first + row + column] = total
            column = np.uint32(column + groups * threads)

    @cuda.jit(device=True)
    def store(c, m, n, first, row, column, bias, relu, totals):
        """The thread's part of C, finished. It begins at [row, column] of the slice whose first row is ``first``."""
        least = f0 if relu else np.float32(-math.inf)
        add = cuda.local.array(columns, np.float32)
        for j in range(columns):
            beside = column + j // 4 * lanes_n * 4 + j % 4
            add[j] = bias[beside] if beside < bias.size else f0
        for i in range(rows):
            here = row + i // 4 * lanes_m * 4 + i % 4
            if here < m:
                for j in range(0, columns, 4):
                    beside = column + j * lanes_n
                    vector = (
                        finished(totals[i, j] + add[j], least),
                        finished(totals[i, j + 1] + add[j + 1], least),
                        finished(totals[i, j + 2] + add[j + 2], least),
                        finished(totals[i, j + 3] + add[j + 3], least),
                    )
                    if not stores:
                        store_some(c, first + here, beside, vector)
                    elif beside < n:
                        store128(c, (first + here) * n + beside, vector)

    @cuda.jit(max_registers=tile.registers)
    def product_kernel(a, b, bias, c, sums, relu, sizes):
        a_tile = cuda.shared.array((places, pitch_a), np.float32, alignment=16)
        b_tile = cuda.shared.array((places, pitch_b), np.float32, alignment=16)
        totals, partial = cuda.local.array((rows, columns), np.float32), cuda.local.array(4, np.float32)
        a_values, b_values = cuda.local.array((vectors_a, 4), np.float32), cuda.local.array((vectors_b, 4), np.float32)
        a_at, b_at = cuda.local.array(vectors_a, np.uint32), cuda.local.array(vectors_b, np.uint32)
        m, n, k, length = sizes.m, sizes.n, sizes.k, sizes.length
        # Tiles down a column of C are neighbours in time: they share a tile of B, which is then in the cache.
        block, tiles_m = np.uint32(cuda.blockIdx.x), np.uint32((m + side_m - 1) // side_m)
        tiles_n = np.uint32((n + side_n - 1) // side_n)
        first_row, block = np.int64(block % tiles_m) * side_m, np.uint32(block // tiles_m)
        first_column, part = np.int64(block % tiles_n) * side_n, np.int64(block // tiles_n)
        group = group_of()
        base = np.uint32(group * 2 * depth)  # this group's rows of the tiles
        begin = (part * groups + group) * length
        end = min(begin + length, k)
        for i in range(rows):
            for j in range(columns):
                totals[i, j] = 0
        for e in range(4):
            partial[e] = 0
        i0, j0 = lane_place()
        a_from, b_from = base * pitch_a + i0, base * pitch_b + j0
        start_a(first_row, m, k, begin, a_at)
        start_b(first_column, n, k, begin, b_at)
        fetch_a(a, first_row, m, begin, end, a_at, a_values)
        fetch_b(b, first_column, n, begin, end, b_at, b_values)
        if sums_too:
            add_to_sums(a_values, partial)
        keep_a(a_tile, base, a_values)
        keep_b(b_tile, base, b_values)
        cuda.syncthreads()
        done = depth  # the same in all groups, as the barriers ask for
        while done < length:  # two steps at a time: where each tile lies in shared memory is then a constant
            fetch_a(a, first_row, m, begin + done, end, a_at, a_values)
            fetch_b(b, first_column, n, begin + done, end, b_at, b_values)
            multiply(a_tile, b_tile, 0, a_from, b_from, totals)  # meanwhile the vectors travel
            if sums_too:
                add_to_sums(a_values, partial)
            keep_a(a_tile, base + depth, a_values)  # who reads that half is behind the last barrier
            keep_b(b_tile, base + depth, b_values)
            cuda.syncthreads()
            done += depth
            if done < length:
                fetch_a(a, first_row, m, begin + done, end, a_at, a_values)
                fetch_b(b, first_column, n, begin + done, end, b_at, b_values)
                multiply(a_tile, b_tile, depth, a_from, b_from, totals)
                if sums_too:
                    add_to_sums(a_values, partial)
                keep_a(a_tile, base, a_values)
                keep_b(b_tile, base, b_values)
                cuda.syncthreads()
            done += depth
        last = depth if max(length - 1, 0) // depth % 2 else 0  # where the last step's tiles lie
        multiply(a_tile, b_tile, last, a_from, b_from, totals)
        if groups > 1:
            add_groups(a_tile, totals)
        if group == 0:
            store(c, m, n, part * m, first_row + i0, first_column + j0, bias, relu, totals)
        if sums_too and first_column == 0:
            store_sums(a_tile, partial, sums, part * m, first_row, m)

    return product_kernel


# ------------------------------------------------------------------------------------------------- what slices come to

ADDERS, AT_ONCE = 128, 8  # threads of a block; slices whose values a thread has in flight


@cuda.jit(device=True)
def sum_of_slices(partials, at, size, slices):
    """partials[at] + partials[at + size] + ..., one after the other. Several are on their way at a time."""
    values, total, s = cuda.local.array(AT_ONCE, np.float32), f0, 0
    while s < slices:
        for u in range(AT_ONCE):
            values[u] = partials[at + (s + u) * size] if s + u < slices else f0
        for u in range(AT_ONCE):
            total += values[u]
        s += AT_ONCE
    return total


@cuda.jit
def add_kernel(partials, partial_sums, slices, bias, relu, c, sums):
    """C from its slices, which lie one behind the other, finished as a product without slices is; and ``sums``."""
    at = np.int64(cuda.blockIdx.x) * ADDERS + cuda.threadIdx.x
    if at < c.size:
        total = sum_of_slices(partials, at, c.size, slices)
        row, column = at // c.shape[1], at % c.shape[1]
        least = f0 if relu else np.float32(-math.inf)
        c[row, column] = finished(total + (bias[column] if bias.size else f0), least)
    elif at < c.size + sums.size:
        sums[at - c.size] = sum_of_slices(partial_sums, at - c.size, sums.size, slices)


# --------------------------------------------------------------------------------------- few rows: a warp for each two

FEW = 2  # rows of x up to which a warp computes a whole element of y: with more, tiles win on most shapes
OUTPUTS, WARPS = 2, 4  # columns of y for a warp; warps of a block


@functools.cache
def few_rows_kernel_for(rows: int) -> typing.Any:
    """The kernel ``(x, weight, bias, y, relu)`` for ``rows`` rows of x, 1 or 2: a warp reads rows of W from end to end.

    x and W are read 16 bytes at a time: what is summed over must be a multiple of 4, every address one of 16 bytes.
    """

    @cuda.jit(device=True)
    def fetch(weight, first, outputs, k, depth, w):
        """A vector of each of the warp's rows of W. Beyond the last row that is read again, and not stored."""
        for o in range(OUTPUTS):
            at = min(first + o, outputs - 1) * depth + k
            vector = load128(weight, at) if k < depth else (f0, f0, f0, f0)
            for e in range(4):
                w[o, e] = vector[e]

    @cuda.jit(device=True)
    def add(x, row, k, depth, w, totals):
        """The products of a vector of x with those of W."""
        vector = load128(x, min(row, x.shape[0] - 1) * depth + k) if k < depth else (f0, f0, f0, f0)
        for o in range(OUTPUTS):
            for e in range(4):
                totals[row, o] += vector[e] * w[o, e]

    @cuda.jit(device=True)
    def add_rows(x, k, depth, w, totals):
        # Written out, since the compiler unrolls only small loops, and the totals are to stay in registers.
        add(x, 0, k, depth, w, totals)
        if rows > 1:
            add(x, 1, k, depth, w, totals)

    @cuda.jit(device=True)
    def store_row(y, row, first, bias, relu, totals):
        """The warp's outputs of a row, which every lane has a part of."""
        for o in range(OUTPUTS):
            total, output = warp_sum(totals[row, o]), first + o
            if cuda.laneid == 0 and row < y.shape[0] and output < y.shape[1]:
                total += bias[output] if bias.size else f0
                y[row, output] = finished(total, f0 if relu else np.float32(-math.inf))

    @cuda.jit
    def few_rows_kernel(x, weight, bias, y, relu):
        depth, outputs = weight.shape[1], weight.shape[0]
        first = (np.int64(cuda.blockIdx.x) * WARPS + np.uint32(cuda.threadIdx.x) // 32) * OUTPUTS
        totals = cuda.local.array((rows, OUTPUTS), np.float32)
        w0, w1 = cuda.local.array((OUTPUTS, 4), np.float32), cuda.local.array((OUTPUTS, 4), np.float32)
        w2, w3 = cuda.local.array((OUTPUTS, 4), np.float32), cuda.local.array((OUTPUTS, 4), np.float32)
        for r in range(rows):
            for o in range(OUTPUTS):
                totals[r, o] = 0
        k = np.int64(cuda.laneid) * 4
        while k < depth and first < outputs:  # four steps' vectors of W are on their way before the first is used
            fetch(weight, first, outputs, k, depth, w0)
            fetch(weight, first, outputs, k + 128, depth, w1)
            fetch(weight, first, outputs, k + 256, depth, w2)
            fetch(weight, first, outputs, k + 384, depth, w3)
            add_rows(x, k, depth, w0, totals)
            add_rows(x, k + 128, depth, w1, totals)
            add_rows(x, k + 256, depth, w2, totals)
            add_rows(x, k + 384, depth, w3, totals)
            k += 512
        store_row(y, 0, first, bias, relu, totals)
        if rows > 1:
            store_row(y, 1, first, bias, relu, totals)

    return few_rows_kernel


# ---------------------------------------------------------------------------------------------------------- the choice


class Plan(typing.NamedTuple):
    """How a product is computed: the tile, what a group of threads sums over, and how many blocks share k."""

    tile: Tile
    length: int
    slices: int

    def is_whole(self, k: int) -> bool:
        """Whether every group's part of k is made of whole steps."""
        return k == self.length * self.slices * self.tile.groups and self.length % self.tile.depth == 0 and k > 0


# What a multiprocessor does in a cycle, and what it waits for, in cycles: of an H200, from its datasheet and from
# the latencies that are known of such GPUs. Nothing here was fitted to measured products.
MULTIPLY_ADDS = 128  # a cycle, of a multiprocessor
WAIT = 800  # from the load of a step's tiles to the barrier behind them
ENOUGH = 8  # warps of a multiprocessor that reach a tile's speed; with fewer it falls, down to half
ADDITION, BYTES = (
    5000,
    2300,
)  # what a second launch costs, on the GPU and on the host; bytes a cycle that pass between the GPU and its memory
MOST_SLICES = 256


def slices_of(tile: Tile, k: int, slices: int) -> Plan:
    """A plan for about so many slices: fewer if not so many have a step to do."""
    length = max(round_up(blocks(k, slices * tile.groups), tile.depth), tile.depth)
    return Plan(tile, length, max(1, blocks(k, length * tile.groups)))


def cycles(plan: Plan, m: int, n: int, k: int, multiprocessors: int) -> float:
    """About how long a product takes: the multiply-adds of whole tiles, or the waiting for them, and the addition."""
    tile, length, slices = plan
    threads = tile.threads * tile.groups
    of_each = blocks(blocks(m, tile.m) * blocks(n, tile.n) * slices, multiprocessors)  # blocks of a multiprocessor
    resident = min(2048 // threads, 65536 // (tile.registers * threads), of_each)
    speed = tile.speed * min(1, (resident * threads // 32 + ENOUGH) / (2 * ENOUGH))
    arithmetic = of_each * tile.m * tile.n * tile.groups * length / (MULTIPLY_ADDS * speed)
    waiting = blocks(of_each, resident) * (blocks(length, tile.depth) + 1) * WAIT
    addition = ADDITION + 8 * slices * m * n / BYTES if slices > 1 else 0
    return max(arithmetic, waiting) + addition


@functools.lru_cache(4096)
def plan_for(m: int, n: int, k: int, vectors: bool, multiprocessors: int, tiles: tuple[Tile, ...] = ()) -> Plan:
    """The plan that should take least time; ``vectors``: both operands can be read 16 bytes at a time."""
    plans = {
        slices_of(tile, k, slices)
        for tile in tiles or (TILES if vectors else GUARDED)
        for slices in (*range(1, 33), 40, 48, 64, 96, 128, 192, MOST_SLICES)
    }
    return min(plans, key=lambda plan: (cycles(plan, m, n, k, multiprocessors), plan))


# ------------------------------------------------------------------------------------------------------------ launching


class Matrix(typing.NamedTuple):
    """An operand's array and whether it is deep."""

    array: typing.Any
    deep: bool

    @property
    def vectors(self) -> bool:
        """Whether it can be read 16 bytes at a time."""
        return self.array.shape[1] % 4 == 0 and self.array.shape[1] > 0 and device.address(self.array) % 16 == 0

    @property
    def sizes(self) -> tuple[int, int]:
        """What is summed over, and what is not."""
        return self.array.shape[::-1] if self.deep else self.array.shape


@device.cached(1)
def nothing() -> typing.Any:
    """What kernels take for no bias, and for no sums."""
    return device.empty(0, np.float32)


def check_sizes(**arrays: typing.Any) -> None:
    """Raise ValueError if an array has too many elements for unsigned offsets of 32 bits."""
    for name, array in arrays.items():
        if array is not None and array.size > MOST_ELEMENTS:
            raise ValueError(f"{name} must have fewer than 2^32 elements, had {array.size}: its shape is {array.shape}")


class Prepared(typing.NamedTuple):
    """All of a launch that depends on the shape alone."""

    kernel: typing.Any
    grid: int
    threads: int
    sizes: Sizes


@functools.lru_cache(4096)
def prepared(
    m: int,
    n: int,
    k: int,
    a: Operand,
    b: Operand,
    aligned: bool,
    sums: bool,
    multiprocessors: int,
    plan: Plan | None = None,
) -> Prepared:
    """The kernel of a product and its launch; ``aligned``: C begins at a multiple of 16 bytes."""
    plan = plan or plan_for(m, n, k, a.vectors and b.vectors, multiprocessors)
    tile, length, slices = plan
    grid = blocks(m, tile.m) * blocks(n, tile.n) * slices
    if grid > MOST_BLOCKS:
        raise ValueError(f"the result must have at most 2^31 - 1 tiles of {tile.m} x {tile.n}, had {grid}: {m} x {n}")
    stores = n % 4 == 0 and (aligned or slices > 1)  # partial results have memory of their own
    kernel = kernel_for(tile, Form(a, b, stores, plan.is_whole(k), sums))
    return Prepared(kernel, grid, tile.threads * tile.groups, Sizes(m, n, k, length, slices))


def launch(
    a: Matrix,
    b: Matrix,
    c: typing.Any,
    *,
    bias: typing.Any = None,
    relu: bool = False,
    sums: typing.Any = None,
    plan: Plan | None = None,
    stream: typing.Any = 0,
) -> None:
    """C = A @ B + bias into ``c``, for device arrays that are known to fit each other.

    ``bias``: one number for each column of C. ``sums``: an array for the sums over the rows of A, which must be wide.
    ``plan``: by default `plan_for` the shape.
    """
    (k, m), (_, n) = a.sizes, b.sizes
    first, second = Operand(a.deep, a.vectors), Operand(b.deep, b.vectors)
    wanted, aligned = sums is not None, device.address(c) % 16 == 0
    how = prepared(m, n, k, first, second, aligned, wanted, device.limits()["multiprocessors"], plan)
    bias, sums = nothing() if bias is None else bias, sums if wanted else nothing()
    slices = how.sizes.slices
    if slices == 1:
        how.kernel[how.grid, how.threads, stream](a.array, b.array, bias, c, sums, relu, how.sizes)
        return
    partials = device.empty((slices * m, n), np.float32, stream=stream)
    partial_sums = device.empty(slices * sums.size, np.float32, stream=stream)
    how.kernel[how.grid, how.threads, stream](a.array, b.array, nothing(), partials, partial_sums, False, how.sizes)
    adders = blocks(c.size + sums.size, ADDERS)
    add_kernel[adders, ADDERS, stream](partials.reshape(-1), partial_sums, slices, bias, relu, c, sums)
