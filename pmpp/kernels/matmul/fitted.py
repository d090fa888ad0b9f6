"""Products of any shape: C = A @ B in float32, with the tile and the split that fit the shape and the GPU.

Chapter: notebooks/36_products_of_any_shape.ipynb.  PMPP 4e ch. 6.

The last kernel of chapter 12 gives each block 128 x 128 elements of C. A product that has few such tiles leaves most of
a large GPU idle, and one with few rows or columns computes mostly what nobody wants. Here a *factory* makes the kernel
of any tile. The ladder lets the shape choose the tile, and then splits the sum over K where even the smallest tiles are
too few. What bounds the work is what bounded it before: arithmetic for large extents, memory where one is small.

Four things differ from chapter 12, in all rungs:

- Nothing is copied and nothing is padded. An operand may lie in C or in Fortran order. It is *deep* if K, which is
  summed over, runs along memory, and *wide* if K runs across it. Where it cannot be read 16 bytes at a time, elements
  are read one by one. The launch decides that once for each operand.
- No load of the loop is guarded. A block's first step takes what K leaves beyond whole steps, and zeros; all other
  steps are whole. A row or a column beyond the edge is read as the last one inside, for sums that are not stored.
- Each tile has two places in shared memory, so one barrier a step is enough.
- The sums go through shared memory once more, so that neighbours write neighbours.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.matmul import ladder
from pmpp.runtime import device
from pmpp.runtime.rung import Problem, rung
from pmpp.runtime.vector import load128, store128

MOST_BLOCKS = 2**31 - 1  # of a grid
MOST_ELEMENTS = 2**32 - 1  # of an operand, whose offsets are unsigned
f0 = np.float32(0)


reference = ladder.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs by name, each a pair (a, b) of float32 matrices: some of chapter 12, and of odd shapes."""
    rng = np.random.default_rng(0) if rng is None else rng
    names = "one", "no depth", "no rows", "no columns", "a tile and one", "both transposed, odd", "non-finite"
    given = ladder.inputs(rng)
    pairs = {name: given[name] for name in names}

    def pair(m: int, n: int, k: int, orders: str = "CC") -> tuple[np.ndarray, np.ndarray]:
        shapes = zip(((m, k), (k, n)), orders, strict=True)
        return tuple(np.asarray(rng.standard_normal(shape, dtype=np.float32), order=order) for shape, order in shapes)

    pairs |= {"two rows": pair(2, 150, 9), "three columns": pair(150, 3, 10), "a row": pair(1, 45, 6)}
    pairs |= {"long sum": pair(3, 5, 230, "FF"), "whole steps": pair(36, 40, 32, "FC")}
    return pairs


cost = ladder.cost


def tolerance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far from the exact product a right one may be.

    Each of K products is rounded, unless it is fused with its addition, and takes part in at most K additions, in
    whatever order and however the sum is split. Each rounds by at most half an eps of sum |a b| (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.5).
    """
    with np.errstate(all="ignore"):
        terms = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        return (a.shape[1] + 1) * np.finfo(np.float32).eps / 2 * terms


def arguments(a, b, *, out=None, stream=0) -> Problem:
    """Multiply two matrices of any shape.

    Args:
        a, b: float32 matrices of shape (M, K) and (K, N), each contiguous in C or in Fortran order: a transposed view
            needs no copy. An extent may be 0; K = 0 gives zeros. Each has fewer than 2^32 elements.
        out: a float32 device array of shape (M, N) in C order, apart from a and b in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The same call gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.matmul import fitted
    >>> fitted.split_k(np.float32([[1, 2], [3, 4]]), np.float32([[1, 0], [1, 1]])).copy_to_host()
    array([[3., 2.],
           [7., 4.]], dtype=float32)
    """
    p = ladder.arguments(a, b, out=out, stream=stream)
    p.a_c, p.b_c = (x.strides[1] == x.dtype.itemsize for x in (p.a, p.b))
    for name, x in (("a", p.a), ("b", p.b)):
        if x.size > MOST_ELEMENTS:
            raise ValueError(f"{name} must have at most {MOST_ELEMENTS} elements, had {x.size}: its shape is {x.shape}")
    return p


class Tile(typing.NamedTuple):
    """A block computes m x n of C, a thread thread_m x thread_n of that, from tiles of A and B that are ``depth`` deep.

    ``lanes_m``: a warp's 32 lanes form a grid with so many rows. ``groups``: the block has the threads for m x n so
    many times, and each group multiplies its own part of the depth. ``registers``: the most that a thread may have.
    """

    m: int
    n: int
    thread_m: int
    thread_n: int
    lanes_m: int
    depth: int
    groups: int
    registers: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.m * self.n // (self.thread_m * self.thread_n) * self.groups

    @property
    def resident(self) -> int:
        """Blocks that a multiprocessor has room for: 65,536 registers, 2,048 threads."""
        return min(65536 // (self.registers * self.threads), 2048 // self.threads)

    def __str__(self) -> str:
        return f"{self.m} x {self.n}"


# One for much work, five of finer grain, one for small products, two for a C of few columns or rows. With so many
# registers none of them spills: a thread's sums, and what is on its way to it, stay in registers.
LARGE = Tile(128, 128, 8, 16, lanes_m=8, depth=8, groups=1, registers=255)
FLAT = Tile(64, 128, 8, 8, lanes_m=8, depth=8, groups=1, registers=168)
MIDDLE = Tile(64, 64, 8, 8, lanes_m=8, depth=16, groups=2, registers=168)
NARROW = Tile(128, 32, 8, 8, lanes_m=8, depth=16, groups=2, registers=168)
LOW = Tile(32, 128, 8, 8, lanes_m=4, depth=16, groups=2, registers=168)
FINE = Tile(32, 64, 8, 8, lanes_m=4, depth=32, groups=4, registers=168)
SMALL = Tile(32, 32, 4, 4, lanes_m=8, depth=32, groups=4, registers=128)
FEW_COLUMNS = Tile(128, 8, 4, 4, lanes_m=16, depth=32, groups=2, registers=128)
FEW_ROWS = Tile(8, 128, 4, 4, lanes_m=2, depth=32, groups=2, registers=128)
TILES = (LARGE, FLAT, MIDDLE, NARROW, LOW, FINE, SMALL, FEW_COLUMNS, FEW_ROWS)


class Operand(typing.NamedTuple):
    """How a matrix is read: ``deep`` if K runs along memory, and ``width`` elements at a time, 4 or 1."""

    deep: bool
    width: int


class Form(typing.NamedTuple):
    """What a kernel is compiled for beside its tile."""

    a: Operand
    b: Operand


class Sizes(typing.NamedTuple):
    """What a launch tells its kernel.

    C is m x n, and K is k. A block sums over ``length`` of k; the last part may have fewer. In memory a row of A, B or
    what is written has ``a_pitch``, ``b_pitch`` or ``c_pitch`` elements. ``whole``: it is written 16 bytes at a time.
    """

    m: int
    n: int
    k: int
    length: int
    a_pitch: int
    b_pitch: int
    c_pitch: int
    whole: bool


# -------------------------------------------------------------------------------------------- from memory to a tile


class Reader(typing.NamedTuple):
    """The device functions that bring an operand's tiles into shared memory.

    ``pitch``: how far apart in shared memory rows of a tile begin. ``loads``: how many loads a thread makes for a tile.
    ``rows``: how many offsets it keeps, one for each row in memory that it reads from.
    """

    pitch: int
    loads: int
    rows: int
    start: typing.Any
    fetch: typing.Any
    keep: typing.Any


def deep_reader(width: int, side: int, depth: int, threads: int, across: int) -> Reader:
    """How a block reads tiles of ``depth`` x ``side`` if K runs along memory. In shared memory a row is one k.

    So many lanes ``across`` read neighbours in a row. A tile is stored down its columns: its rows begin 4 banks apart.
    """
    pitch, loads, chunk = side + 4, side * depth // (width * threads), across * width
    rows, chunks = max(1, across * side // threads), max(1, threads // (across * side))  # chunks of a row at a time

    @cuda.jit(device=True)
    def place(v):
        """(k, i): where in the tile this thread's load number v begins."""
        thread = np.uint32(cuda.threadIdx.x)
        i = (thread // across + v % rows * (threads // across)) % np.uint32(side)
        return (v // rows * chunks + thread // np.uint32(across * side)) * chunk + thread % across * width, i

    @cuda.jit(device=True)
    def start(first, extent, k, length, offsets):
        """Where the loads of the tile at (k, first) are in memory, whose rows have that ``length``.

        ``extent``: how many rows there are. Beyond them the last is read again.
        """
        for v in range(rows):
            d, i = place(v)
            offsets[v] = np.uint32(min(first + i, extent - 1) * length + k + d)

    @cuda.jit(device=True)
    def fetch(x, steps, length, offsets, values):
        """What the thread reads of a tile, into registers, and on to the next. Beyond so many ``steps`` it is 0."""
        for v in range(loads):
            for e in range(width):
                values[v, e] = f0
            if steps == depth or place(v)[0] < steps:
                at = np.uint32(offsets[v % rows] + v // rows * (chunks * chunk))
                if width == 4:
                    values[v, 0], values[v, 1], values[v, 2], values[v, 3] = load128(x, at)
                else:
                    values[v, 0] = x[at]
        for v in range(rows):
            offsets[v] = np.uint32(offsets[v] + steps)

    @cuda.jit(device=True)
    def keep(shared, begin, values):
        """From registers into the tile that begins there in shared memory."""
        for v in range(loads):
            d, i = place(v)
            for e in range(width):
                shared[begin + (d + e) * pitch + i] = values[v, e]

    return Reader(pitch, loads, rows, start, fetch, keep)


def wide_reader(width: int, side: int, depth: int, threads: int) -> Reader:
    """How a block reads tiles of ``depth`` x ``side`` if K runs across memory: as they are stored."""
    loads, lanes = side * depth // (width * threads), side // width
    lines = threads // lanes  # that are read at a time

    @cuda.jit(device=True)
    def start(first, extent, k, length, offsets):
        """Where the loads of the tile at (k, first) are in memory, whose rows have that ``length``.

        ``extent``: how many columns there are. Beyond them the last is read again.
        """
        thread = np.uint32(cuda.threadIdx.x)
        column = min(first + thread % np.uint32(lanes) * width, extent - width)
        offsets[0] = np.uint32((k + thread // np.uint32(lanes)) * length + column)

    @cuda.jit(device=True)
    def fetch(x, steps, length, offsets, values):
        """What the thread reads of a tile, into registers, and on to the next. Beyond so many ``steps`` it is 0."""
        line = np.uint32(cuda.threadIdx.x) // np.uint32(lanes)
        for v in range(loads):
            for e in range(width):
                values[v, e] = f0
            if steps == depth or v * lines + line < steps:
                at = np.uint32(offsets[0] + v * lines * length)
                if width == 4:
                    values[v, 0], values[v, 1], values[v, 2], values[v, 3] = load128(x, at)
                else:
                    values[v, 0] = x[at]
        offsets[0] = np.uint32(offsets[0] + steps * length)

    @cuda.jit(device=True)
    def keep(shared, begin, values):
        """From registers into the tile that begins there in shared memory."""
        thread = np.uint32(cuda.threadIdx.x)
        for v in range(loads):
            at = begin + (v * lines + thread // np.uint32(lanes)) * side + thread % np.uint32(lanes) * width
            if width == 4:
                store128(shared, at, (values[v, 0], values[v, 1], values[v, 2], values[v, 3]))
            else:
                shared[at] = values[v, 0]

    return Reader(side, loads, 1, start, fetch, keep)


def reader_of(operand: Operand, side: int, tile: Tile) -> Reader:
    """How a block of this tile reads an operand."""
    deep, width = operand
    if not deep:
        return wide_reader(width, side, tile.depth, tile.threads)
    # Lanes that read a row side by side share a request; those that store into one bank queue. This is the balance.
    across = min(tile.depth // width, 16 // width)
    return deep_reader(width, side, tile.depth, tile.threads, across)


# --------------------------------------------------------------------------------------------------------- the factory


@functools.cache
def product_kernel(tile: Tile, form: Form) -> typing.Any:
    """The kernel ``(a, b, c, sizes)`` of a tile, to be launched with a block for each tile of C and part of K.

    All arrays have one dimension. With several parts, their results lie one behind the other in ``c``.
    """
    side_m, side_n, thread_m, thread_n, lanes_m, depth, groups, registers = tile
    lanes_n, threads, a_width, b_width = 32 // lanes_m, tile.threads, form.a.width, form.b.width
    warps_n, members = side_n // (lanes_n * thread_n), threads // groups
    pitch_a, loads_a, rows_a, start_a, fetch_a, keep_a = reader_of(form.a, side_m, tile)
    pitch_b, loads_b, rows_b, start_b, fetch_b, keep_b = reader_of(form.b, side_n, tile)
    a_size, b_size, own_depth = depth * pitch_a, depth * pitch_b, depth // groups
    lines = side_m // thread_m  # of C, with row number i of all threads; two such sets are written at a time
    vectors, singles = blocks(lines * side_n, 2 * threads), 2 * lines * side_n // threads  # of these, for a thread
    line_step = threads // side_n  # lines that threads write at a time, an element each
    room = 2 * (a_size + b_size)  # in shared memory: two tiles of each

    @cuda.jit(device=True)
    def lane_place():
        """(row, column) of the thread's 4 x 4 pieces among those of its warp, and the same of the warp's first."""
        # Four lanes in a row form a 2 x 2 square: a warp's load from shared memory then takes two passes.
        thread = np.uint32(np.uint32(cuda.threadIdx.x) % np.uint32(members))
        warp, square = thread // 32, thread % 32 // 4
        y, x = square // (lanes_n // 2) * 2 + thread // 2 % 2, square % (lanes_n // 2) * 2 + thread % 2
        return y, x, warp // warps_n, warp % warps_n

    @cuda.jit(device=True)
    def step(shared, a_from, b_from, totals):
        """Add the products of one k: its values begin there in shared memory."""
        a_values, b_values = cuda.local.array(thread_m, np.float32), cuda.local.array(thread_n, np.float32)
        for piece in range(thread_m // 4):
            vector = load128(shared, a_from + piece * lanes_m * 4)
            for i in range(4):
                a_values[piece * 4 + i] = vector[i]
        for piece in range(thread_n // 4):
            vector = load128(shared, b_from + piece * lanes_n * 4)
            for j in range(4):
                b_values[piece * 4 + j] = vector[j]
        for i in range(thread_m):
            for j in range(thread_n):
                totals[i, j] += a_values[i] * b_values[j]

    @cuda.jit(device=True)
    def multiply(shared, a_from, b_from, totals):
        """Add the products of the group's part of the depth."""
        # Written out, since the compiler unrolls only small loops: the loads of a step then overlap another's sums.
        step(shared, a_from, b_from, totals)
        step(shared, a_from + pitch_a, b_from + pitch_b, totals)
        step(shared, a_from + 2 * pitch_a, b_from + 2 * pitch_b, totals)
        step(shared, a_from + 3 * pitch_a, b_from + 3 * pitch_b, totals)
        step(shared, a_from + 4 * pitch_a, b_from + 4 * pitch_b, totals)
        step(shared, a_from + 5 * pitch_a, b_from + 5 * pitch_b, totals)
        step(shared, a_from + 6 * pitch_a, b_from + 6 * pitch_b, totals)
        step(shared, a_from + 7 * pitch_a, b_from + 7 * pitch_b, totals)
        if own_depth == 16:
            step(shared, a_from + 8 * pitch_a, b_from + 8 * pitch_b, totals)
            step(shared, a_from + 9 * pitch_a, b_from + 9 * pitch_b, totals)
            step(shared, a_from + 10 * pitch_a, b_from + 10 * pitch_b, totals)
            step(shared, a_from + 11 * pitch_a, b_from + 11 * pitch_b, totals)
            step(shared, a_from + 12 * pitch_a, b_from + 12 * pitch_b, totals)
            step(shared, a_from + 13 * pitch_a, b_from + 13 * pitch_b, totals)
            step(shared, a_from + 14 * pitch_a, b_from + 14 * pitch_b, totals)
            step(shared, a_from + 15 * pitch_a, b_from + 15 * pitch_b, totals)

    @cuda.jit(device=True)
    def row_of(line, i):
        """The row of the block's part of C that is line number ``line`` of those with the threads' rows i and i + 1."""
        place, below = line % np.uint32(lines), line // np.uint32(lines)
        band, inner = place // np.uint32(lanes_m), place % np.uint32(lanes_m)
        return np.uint32(band * (lanes_m * thread_m) + i // 4 * (lanes_m * 4) + inner * 4 + i % 4 + below)

    @cuda.jit(device=True)
    def store_rows(shared, c, i, first, rows, columns, pitch, whole, totals):
        """Every thread's rows i and i + 1: into shared memory, and from there, added over the groups, into C.

        The block's part of C begins at ``first``. So many rows and columns of it are inside of C.
        """
        thread = np.uint32(cuda.threadIdx.x)
        y, x, warp_y, warp_x = lane_place()
        line, column = warp_y * lanes_m + y, warp_x * (lanes_n * thread_n) + x * 4
        cuda.syncthreads()  # what was there has been read
        for below in range(2):
            for j in range(0, thread_n, 4):
                vector = (
                    totals[i + below, j],
                    totals[i + below, j + 1],
                    totals[i + below, j + 2],
                    totals[i + below, j + 3],
                )
                place = ((thread // np.uint32(members) * 2 + below) * lines + line) * side_n + column + j * lanes_n
                store128(shared, place, vector)
        cuda.syncthreads()
        if whole:
            line, column = thread // np.uint32(side_n // 4), np.uint32(thread % np.uint32(side_n // 4) * 4)
            for _ in range(vectors):
                row = row_of(line, i)
                if line < 2 * lines and row < rows and column < columns:
                    s0, s1, s2, s3 = load128(shared, line * side_n + column)
                    for group in range(1, groups):
                        t0, t1, t2, t3 = load128(shared, (group * 2 * lines + line) * side_n + column)
                        s0, s1, s2, s3 = s0 + t0, s1 + t1, s2 + t2, s3 + t3
                    store128(c, first + np.uint64(row * pitch) + np.uint64(column), (s0, s1, s2, s3))
                line = np.uint32(line + 4 * threads // side_n)
        else:
            line, column = thread // np.uint32(side_n), np.uint32(thread % np.uint32(side_n))
            for chunk in range(0, singles, 8):
                store_singles(shared, c, line + np.uint32(chunk * line_step), column, i, first, rows, columns, pitch)

    @cuda.jit(device=True)
    def store_singles(shared, c, line, column, i, first, rows, columns, pitch):
        """Up to eight elements of one column: read together, then written."""
        values = cuda.local.array(8, np.float32)
        for e in range(min(singles, 8)):
            values[e] = shared[(line + np.uint32(e * line_step)) * side_n + column]
            for group in range(1, groups):
                values[e] += shared[(group * 2 * lines + line + np.uint32(e * line_step)) * side_n + column]
        if column < columns:
            for e in range(min(singles, 8)):
                row = row_of(line + np.uint32(e * line_step), i)
                if row < rows:
                    c[first + np.uint64(row * pitch) + np.uint64(column)] = values[e]

    @cuda.jit(max_registers=registers)
    def kernel(a, b, c, sizes):
        shared = cuda.shared.array(room, np.float32, alignment=16)  # two tiles of A, then two of B
        totals = cuda.local.array((thread_m, thread_n), np.float32)
        a_values = cuda.local.array((loads_a, a_width), np.float32)
        b_values = cuda.local.array((loads_b, b_width), np.float32)
        a_offsets, b_offsets = cuda.local.array(rows_a, np.uint32), cuda.local.array(rows_b, np.uint32)
        # Tiles down a column of C are neighbours in time: they share a tile of B, which is then in the cache.
        block, tiles_m = np.uint32(cuda.blockIdx.x), np.uint32((sizes.m + side_m - 1) // side_m)
        tiles_n = np.uint32((sizes.n + side_n - 1) // side_n)
        first_row, block = np.int64(block % tiles_m) * side_m, np.uint32(block // tiles_m)
        first_column, part = np.int64(block % tiles_n) * side_n, np.int64(block // tiles_n)
        begin = part * sizes.length
        end = min(begin + sizes.length, sizes.k)
        for i in range(thread_m):
            for j in range(thread_n):
                totals[i, j] = 0
        y, x, warp_y, warp_x = lane_place()
        group = np.uint32(np.uint32(cuda.threadIdx.x) // np.uint32(members))
        a_own = group * (own_depth * pitch_a) + warp_y * (lanes_m * thread_m) + y * 4
        b_own = 2 * a_size + group * (own_depth * pitch_b) + warp_x * (lanes_n * thread_n) + x * 4
        start_a(first_row, sizes.m, begin, sizes.a_pitch, a_offsets)
        start_b(first_column, sizes.n, begin, sizes.b_pitch, b_offsets)
        steps = (end - begin - 1) % depth + 1 if end > begin else 0  # of the first tiles: all others are whole
        fetch_a(a, steps, sizes.a_pitch, a_offsets, a_values)
        fetch_b(b, steps, sizes.b_pitch, b_offsets, b_values)
        keep_a(shared, 0, a_values)
        keep_b(shared, 2 * a_size, b_values)
        cuda.syncthreads()
        k, now = begin + steps, np.uint32(0)
        while k < end:
            fetch_a(a, np.int64(depth), sizes.a_pitch, a_offsets, a_values)
            fetch_b(b, np.int64(depth), sizes.b_pitch, b_offsets, b_values)
            multiply(shared, a_own + now * a_size, b_own + now * b_size, totals)  # meanwhile the values travel
            now = np.uint32(1 - now)
            keep_a(shared, now * a_size, a_values)  # that tile was read before the last barrier
            keep_b(shared, 2 * a_size + now * b_size, b_values)
            cuda.syncthreads()
            k += depth
        multiply(shared, a_own + now * a_size, b_own + now * b_size, totals)
        first = np.uint64((part * sizes.m + first_row) * sizes.c_pitch + first_column)
        rows, columns = np.uint32(min(sizes.m - first_row, side_m)), np.uint32(min(sizes.n - first_column, side_n))
        pitch, whole = np.uint32(sizes.c_pitch), sizes.whole
        store_rows(shared, c, np.uint32(0), first, rows, columns, pitch, whole, totals)
        store_rows(shared, c, np.uint32(2), first, rows, columns, pitch, whole, totals)
        if thread_m == 8:
            store_rows(shared, c, np.uint32(4), first, rows, columns, pitch, whole, totals)
            store_rows(shared, c, np.uint32(6), first, rows, columns, pitch, whole, totals)

    return kernel


# ----------------------------------------------------------------------------------------------- what parts of K give

ADDERS, TEAMS = 128, 8  # elements of C for a block; teams of threads, each of which adds every 8th part
SUMS = ADDERS * TEAMS  # of a block, one for each element and team
AT_ONCE = 4  # vectors that a thread has in flight


@cuda.jit
def sum_kernel(partials, c, m, n, pitch, parts):
    """C, from its parts: m rows of ``pitch`` elements each, one part behind the other. They are added in one order."""
    shared = cuda.shared.array(SUMS, np.float32, alignment=16)
    values, total = cuda.local.array((AT_ONCE, 4), np.float32), cuda.local.array(4, np.float32)
    thread, first = np.uint32(cuda.threadIdx.x), np.int64(cuda.blockIdx.x) * ADDERS
    lane, team = thread % (ADDERS // 4), thread // (ADDERS // 4)
    at, size = first + lane * 4, m * pitch
    for e in range(4):
        total[e] = 0
    part = np.int64(team)
    while part < parts and at < size:
        for u in range(AT_ONCE):
            for e in range(4):
                values[u, e] = f0
            if part + TEAMS * u < parts:
                vector = load128(partials, (part + TEAMS * u) * size + at)
                for e in range(4):
                    values[u, e] = vector[e]
        for u in range(AT_ONCE):
            for e in range(4):
                total[e] += values[u, e]
        part += TEAMS * AT_ONCE
    store128(shared, thread * 4, (total[0], total[1], total[2], total[3]))
    cuda.syncthreads()
    if thread < ADDERS:
        row, column = (first + thread) // pitch, (first + thread) % pitch
        if row < m and column < n:
            value = shared[thread]
            for other in range(1, TEAMS):
                value += shared[other * ADDERS + thread]
            c[row * n + column] = value


# ----------------------------------------------------------------------------------------------------------- launching


def flat(x: typing.Any, c_order: bool) -> typing.Any:
    """All elements of a matrix as they lie in memory."""
    return x.reshape(-1) if c_order else x.ravel(order="F")


class Plan(typing.NamedTuple):
    """How a product is computed: the tile, and how many blocks share a tile's K: ``length`` of it for each."""

    tile: Tile
    length: int
    parts: int


def plan_of(tile: Tile, k: int, parts: int) -> Plan:
    """The plan for about so many parts: each has whole steps of the tile, but for the last one.

    >>> plan_of(SMALL, 100, 2)[1:], plan_of(SMALL, 100, 3)[1:], plan_of(SMALL, 100, 9)[1:]
    ((64, 2), (64, 2), (32, 4))
    """
    length = max(round_up(blocks(k, parts), tile.depth), tile.depth)
    return Plan(tile, length, max(1, blocks(k, length)))


# What a multiprocessor does, in its own cycles: rounded figures of recent GPUs for data centres. They need not be
# exact, for only the order of the candidates counts.
SLOTS = 128  # instructions of threads a cycle, such as a multiply-add
LOAD = 3  # instructions for an element that is brought into shared memory
FROM_CACHE = 24  # bytes a cycle that reach it from the L2 cache, if all others ask too
WAIT = 1000  # cycles from the loads of a step to the barrier behind them
FINISH = 40  # cycles for each sum of a thread, through shared memory into C
LAUNCH = 8000  # cycles that the second kernel takes for its launch
PARTIAL = 1  # cycles for each partial sum, which is written and read


def cycles(plan: Plan, m: int, n: int, k: int, multiprocessors: int) -> float:
    """About how long the busiest multiprocessor takes for its blocks, and what a split costs.

    So many blocks as registers allow are resident at a time. In a step each needs its arithmetic, or its bytes from the
    cache, and it waits; but while one waits, the others are busy. What memory moves at least is left out: it is the
    same for all plans.
    """
    tile, length, parts = plan
    of_each = blocks(blocks(m, tile.m) * blocks(n, tile.n) * parts, multiprocessors)
    sums, steps = tile.thread_m * tile.thread_n, blocks(min(length, k), tile.depth)
    read = (tile.thread_m + tile.thread_n) / sums  # from shared memory, for a multiply-add
    slots = tile.m * tile.n * (1 + read) + LOAD * (tile.m + tile.n)  # of instructions, for one k
    busy = tile.depth * max(slots / SLOTS, 4 * (tile.m + tile.n) / FROM_CACHE)

    def turn(resident: int) -> float:
        return sums * FINISH + steps * max(resident * busy, busy + WAIT)

    turns, rest = divmod(of_each, tile.resident)
    time = turns * turn(tile.resident) + (turn(rest) if rest else 0)
    return time + (LAUNCH + PARTIAL * parts * m * n / multiprocessors if parts > 1 else 0)


SPLITS = (*range(1, 17), 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


@functools.lru_cache(4096)
def plan_for(m: int, n: int, k: int, multiprocessors: int, splits: tuple[int, ...] = SPLITS) -> Plan:
    """The plan that should take least time, of all tiles and so many parts.

    >>> plan = plan_for(8, 1000, 4096, multiprocessors=132)
    >>> str(plan.tile), plan.parts > 1
    ('8 x 128', True)
    """
    plans = {plan_of(tile, k, parts) for tile in TILES for parts in splits}
    return min(plans, key=lambda plan: (cycles(plan, m, n, k, multiprocessors), plan))


class Launch(typing.NamedTuple):
    """All of a launch that depends on shapes, orders and alignment alone."""

    kernel: typing.Any
    grid: int
    threads: int
    sizes: Sizes


@functools.lru_cache(4096)
def launch_of(plan: Plan, m: int, n: int, k: int, a_c: bool, b_c: bool, aligned: tuple[bool, bool, bool]) -> Launch:
    """The launch of a plan. ``a_c``, ``b_c``: the operand is in C order. ``aligned``: of A, B and C, to 16 bytes."""
    tile, length, parts = plan
    grid = blocks(m, tile.m) * blocks(n, tile.n) * parts
    if grid > MOST_BLOCKS:
        raise ValueError(f"the product must have at most 2^31 - 1 tiles of {tile}, had {grid}: {m} x {n}")
    a_pitch, b_pitch = k if a_c else m, n if b_c else k
    a_width = 4 if a_pitch % 4 == 0 and aligned[0] and tile.m * tile.depth >= 4 * tile.threads else 1
    b_width = 4 if b_pitch % 4 == 0 and aligned[1] and tile.n * tile.depth >= 4 * tile.threads else 1
    kernel = product_kernel(tile, Form(Operand(a_c, a_width), Operand(not b_c, b_width)))
    c_pitch, whole = (n, n % 4 == 0 and aligned[2]) if parts == 1 else (round_up(n, 4), True)
    return Launch(kernel, grid, tile.threads, Sizes(m, n, k, length, a_pitch, b_pitch, c_pitch, whole))


def launch(p: Problem, plan: Plan) -> None:
    """Compute the product by a plan."""
    (m, k), n = p.a.shape, p.b.shape[1]
    aligned = tuple(device.address(x) % 16 == 0 for x in (p.a, p.b, p.result))
    kernel, grid, threads, sizes = launch_of(plan, m, n, k, p.a_c, p.b_c, aligned)
    a, b, c = flat(p.a, p.a_c), flat(p.b, p.b_c), p.result.reshape(-1)
    if plan.parts == 1:
        kernel[grid, threads, p.stream](a, b, c, sizes)
        return
    size = m * sizes.c_pitch
    partials = device.empty(plan.parts * size, np.float32, stream=p.stream)
    kernel[grid, threads, p.stream](a, b, partials, sizes)
    sum_kernel[blocks(size, ADDERS), SUMS // 4, p.stream](partials, c, m, n, sizes.c_pitch, plan.parts)


# -------------------------------------------------------------------------------------------------------------- rungs


@rung(product_kernel)
def fixed(p):
    """One large tile for all shapes: 128 x 128 of C for a block.

    Source: the last kernel of chapter 12.

    Leaves: a product of 1024 x 1024 has 64 such tiles, and one of 16 rows computes 128.
    """
    launch(p, plan_of(LARGE, p.a.shape[1], 1))


def planned(p: Problem, splits: tuple[int, ...]) -> Plan:
    """The plan for a problem on this GPU."""
    return plan_for(*p.result.shape, p.a.shape[1], device.limits()["multiprocessors"], splits)


@rung(product_kernel)
def by_shape(p):
    """The shape chooses the tile: that which should take least time on this GPU.

    Source: CUTLASS, "Efficient GEMM in CUDA".

    Leaves: where C is small and K is long, only small tiles give enough blocks, and small tiles are slow.
    """
    launch(p, planned(p, (1,)))


@rung(product_kernel, sum_kernel)
def split_k(p):
    """Several blocks share K: each sums a part of it, and a second kernel adds the parts in one order.

    Source: CUTLASS, "Efficient GEMM in CUDA", parallelised reductions.
    """
    launch(p, planned(p, SPLITS))


LADDER = (fixed, by_shape, split_k)
