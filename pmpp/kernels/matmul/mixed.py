"""Products of float16 or bfloat16 on tensor cores, with operands in any order: what a training step asks for.

`multiply` takes A of shape (..., M, K) and B of shape (..., K, N), and either may lie in memory row by row or column by
column. A layer needs three products: ``x @ w.T`` forwards, ``dy @ w`` and ``dy.T @ x`` backwards. Each has another
operand transposed, and a copy in the other order would move as many bytes as the product itself.

The kernel is `pmpp.kernels.matmul.tensor_cores.wide` with four changes. A tile comes into shared memory as it lies in
device memory, and ldmatrix or its transposed form gives the lanes the same fragments of either order. Leading
dimensions have strides of their own, so a head of attention is a view. Sums are in float32, and are rounded to 16 bits
once, when they are stored. A product that has few tiles and a long sum, as the gradient of weights has, is cut along K,
and the parts are added.

On Hopper a large product is taken by `pmpp.kernels.matmul.mixed_warpgroups`, which multiplies where tiles lie. What
both are made of stands in `pmpp.kernels.matmul.mixed_tiles`.

Tiles, fragments and the pipeline are taught in notebooks/40_tensor_cores.ipynb.
Source: PTX ISA, "ldmatrix" and "Matrix fragments for mma.m16n8k16".
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.matmul import mixed_warpgroups
from pmpp.kernels.matmul.mixed_tiles import a_reader, b_reader, copier, fragment_storer, panel_storer, stepper
from pmpp.kernels.matmul.mixed_warpgroups import SIDE
from pmpp.kernels.matmul.tensor_cores import (
    CHUNK,
    GROUP,
    KERNELS,
    NOTHING,
    PANEL_M,
    PANEL_N,
    WARP,
    Tile,
    order_of_tiles,
    swizzled_place,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.matrix import commit_copies, wait_copies
from pmpp.runtime.vector import widened
from pmpp.runtime.views import span

DTYPES = ("float16", "bfloat16")
CAPABILITY = (8, 0)  # of the oldest GPU that has these instructions
TILES = (Tile(128, 128, 64, 2, 3), Tile(64, 64, 32, 1, 3))
MOST_BLOCKS = 2**31 - 1  # of a grid
SHORTEST = 512  # of K in a part: a shorter one takes longer to add up than to multiply
BLOCK = 256


class Sizes(typing.NamedTuple):
    """The extents of the products, and where their matrices lie, in elements.

    ``pitch``: from one row of a matrix in memory to the next. ``outer``, ``inner``: from one matrix to the next along
    the two leading dimensions, of which the second has the extent ``inner``.
    """

    m: int
    n: int
    k: int
    inner: int
    a_pitch: int
    a_outer: int
    a_inner: int
    b_pitch: int
    b_outer: int
    b_inner: int
    c_pitch: int
    c_outer: int
    c_inner: int


class Lies(typing.NamedTuple):
    """How a matrix lies in memory: ``by_rows`` or by columns, and its strides in elements."""

    by_rows: bool
    pitch: int
    outer: int
    inner: int


# ---------------------------------------------------------------------------------------------------------- the kernels


@functools.lru_cache(KERNELS)
def kernel_for(
    tile: Tile, kind: str, a_by_rows: bool, b_by_rows: bool, short: bool, wide: bool, biased: bool
) -> typing.Any:
    """The kernel ``(a, b, bias, c, alpha, sizes)`` of a tile, with a block for each tile of each product.

    ``kind``: the dtype of a and b, which it sees as uint16. ``a_by_rows``, ``b_by_rows``: how these lie in memory. The
    others are those of `fragment_storer`. All arrays have one dimension.
    """
    side_m, side_n, depth, panels, stages = tile
    a_shape = (side_m, depth) if a_by_rows else (depth, side_m)
    b_shape = (depth, side_n) if b_by_rows else (side_n, depth)
    a_place, b_place = swizzled_place(a_shape[1] // CHUNK), swizzled_place(b_shape[1] // CHUNK)
    first_a, copy_a = copier(a_shape[0], a_shape[1] // CHUNK, tile.threads, a_place)
    first_b, copy_b = copier(b_shape[0], b_shape[1] // CHUNK, tile.threads, b_place)
    a_lines, b_lines = tile.threads * CHUNK // a_shape[1], tile.threads * CHUNK // b_shape[1]
    read_a, read_b = a_reader(a_by_rows, a_place), b_reader(b_by_rows, b_place)
    multiply = stepper(tile, kind, read_a, read_b)
    store_panel = panel_storer(fragment_storer(short, wide, biased))
    a_size, stage_size, ahead = np.uint32(side_m * depth), np.uint32((side_m + side_n) * depth), stages - 1
    warp_n, pending, end_stage = panels * PANEL_N, stages - 2, np.uint32(stages * (side_m + side_n) * depth)
    warps_n = np.uint32(side_n // warp_n)
    tile_of = order_of_tiles(GROUP)

    @cuda.jit(device=True)
    def fetch(shared, begin, a, a_at, a_step, a_left, b, b_at, b_step, b_left, k_left):
        """Begin to copy a tile of A and one of B, of which so many rows, columns and k are within the matrices."""
        if a_by_rows:
            copy_a(shared, begin, a, a_at, a_step, a_left, k_left)
        else:
            copy_a(shared, begin, a, a_at, a_step, k_left, a_left)
        if b_by_rows:
            copy_b(shared, np.uint32(begin + a_size), b, b_at, b_step, k_left, b_left)
        else:
            copy_b(shared, np.uint32(begin + a_size), b, b_at, b_step, b_left, k_left)
        commit_copies()

    @cuda.jit
    def mixed_kernel(a, b, bias, c, alpha, s):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        tiles_m, tiles_n = (s.m + side_m - 1) // side_m, (s.n + side_n - 1) // side_n
        block = np.int64(cuda.blockIdx.x)
        product, block = block // (tiles_m * tiles_n), block % (tiles_m * tiles_n)
        outer, inner = product // s.inner, product % s.inner
        a_base, b_base = outer * s.a_outer + inner * s.a_inner, outer * s.b_outer + inner * s.b_inner
        tile_m, tile_n = tile_of(block, tiles_m, tiles_n)
        first_row, first_column = tile_m * side_m, tile_n * side_n
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        row, column = np.uint32(warp // warps_n * PANEL_M), np.uint32(warp % warps_n * warp_n)
        sums, more = NOTHING, NOTHING
        a_left = np.int32(min(s.m - first_row, np.int64(side_m)))
        b_left = np.int32(min(s.n - first_column, np.int64(side_n)))
        a_step, b_step = a_lines * s.a_pitch, b_lines * s.b_pitch
        if a_by_rows:
            a_at, a_more = first_a(a_base, first_row, np.int64(0), s.a_pitch), np.int64(depth)
        else:
            a_at, a_more = first_a(a_base, np.int64(0), first_row, s.a_pitch), depth * s.a_pitch
        if b_by_rows:
            b_at, b_more = first_b(b_base, np.int64(0), first_column, s.b_pitch), depth * s.b_pitch
        else:
            b_at, b_more = first_b(b_base, first_column, np.int64(0), s.b_pitch), np.int64(depth)
        left = s.k  # of what is to be copied
        for stage in range(ahead):
            begin, k_left = np.uint32(np.uint32(stage) * stage_size), np.int32(max(min(left, depth), 0))
            fetch(shared, begin, a, a_at, a_step, a_left, b, b_at, b_step, b_left, k_left)
            left, a_at, b_at = left - depth, a_at + a_more, b_at + b_more
        now, k0 = np.uint32(0), np.int64(0)
        into = np.uint32(np.uint32(ahead) * stage_size)
        while k0 < s.k:
            wait_copies(pending)  # the oldest tiles are there: those of this thread,
            cuda.syncthreads()  # and of all; and everyone has read those that are overwritten next
            k_left = np.int32(max(min(left, depth), 0))
            fetch(shared, into, a, a_at, a_step, a_left, b, b_at, b_step, b_left, k_left)
            sums, more = multiply(shared, now, row, column, sums, more)
            now, into = np.uint32(now + stage_size), now
            if now == end_stage:
                now = np.uint32(0)
            k0, left, a_at, b_at = k0 + depth, left - depth, a_at + a_more, b_at + b_more
        base = outer * s.c_outer + inner * s.c_inner
        store_panel(c, base, first_row + row, first_column + column, sums, bias, alpha, s)
        if panels == 2:
            store_panel(c, base, first_row + row, first_column + column + PANEL_N, more, bias, alpha, s)

    return mixed_kernel


@cuda.jit
def add_parts_kernel(parts, bias, out, columns, pitch, alpha, biased):
    """Each result as the sum of its parts, in order; ``parts``: (parts, elements). Rows of out are ``pitch`` apart."""
    i = cuda.grid(1)
    if i < parts.shape[1]:
        total = np.float32(0)
        for part in range(parts.shape[0]):
            total += parts[part, i]
        total *= alpha
        if biased:
            total += widened(bias[i % columns])
        out[i // columns * pitch + i % columns] = total


# ---------------------------------------------------------------------------------------------------------- the product


def multiply(a, b, bias=None, *, alpha=1.0, dtype=None, out=None, stream=0) -> typing.Any:
    """``alpha * (a @ b) + bias`` on tensor cores, with sums in float32.

    Args:
        a: float16 or bfloat16, shape (..., M, K). A device array may have any strides that are not negative.
        b: of the dtype of ``a``, shape (..., K, N), in the same way. There are at most two leading dimensions, which
            are broadcast as in ``numpy.matmul``.
        bias: of the dtype of ``a``, shape (N,), contiguous, or None.
        alpha: a finite number; it becomes float32.
        dtype: that of the result: None for the dtype of ``a``, or "float32".
        out: a device array of the result's shape and dtype in C order, apart from the others in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. A result is rounded once, from the sum in float32. An
    extent may be 0; with K = 0 all products are 0. The same call gives the same bits on the same GPU.

    Nothing is copied if the rows of a matrix, or its columns, are contiguous and begin at multiples of 16 bytes. Others
    are copied first.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.

    >>> multiply(np.float16([[1, 2], [3, 4]]), np.float16([[1, 0], [1, 2]])).copy_to_host()
    array([[3., 4.],
           [7., 8.]], dtype=float16)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=(2, 3, 4), layout="any", stream=stream)
    b = device.as_input("b", b, dtypes=a.dtype, ndim=(2, 3, 4), layout="any", stream=stream)
    for name, x in (("a", a), ("b", b)):
        if x.size and min(x.strides) < 0:
            raise ValueError(f"{name} must have strides that are not negative, had {x.strides} bytes: copy it first")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"b must have {a.shape[-1]} rows, the columns of a, had shape {b.shape}")
    try:
        leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        words = f"{a.shape[:-2]} and {b.shape[:-2]}"
        raise ValueError(f"a and b must have leading dimensions that can be broadcast, had {words}") from None
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes=a.dtype, shape=(b.shape[-1],), ndim=1, stream=stream)
    alpha = as_number("alpha", alpha)
    kind = result_dtype(dtype, a.dtype)
    shape = (*leading, a.shape[-2], b.shape[-1])
    apart = {"a": span(a), "b": span(b), "bias": bias}
    out = device.as_output("out", out, shape=shape, dtype=kind, apart=apart, stream=stream)
    capability = device.limits()["compute_capability"]
    if capability < CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this product needs a GPU of compute capability 8.0 or higher, this one has {said}")
    if out.size:
        into(a, b, bias, out, alpha, stream)
    return out


def result_dtype(dtype: typing.Any, own: np.dtype) -> np.dtype:
    """The dtype of the result. Raises TypeError for another one than None, float32 and that of the operands."""
    name = own.name if dtype is None else str(dtype) if isinstance(dtype, str | np.dtype) else ""
    if name in (own.name, "float32"):
        return own if name == own.name else np.dtype("float32")
    raise TypeError(f"dtype must be None, {own.name} or float32, was {dtype!r}")


def into(a, b, bias, c, alpha, stream) -> None:
    """The product into ``c``, a view of any strides with contiguous rows, whose leading dimensions are the result's."""
    leading = c.shape[:-2]
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    (a, a_lies), (b, b_lies) = (_ready(x, stream) for x in (a, b))
    products = math.prod(leading)
    multiprocessors = device.limits()["multiprocessors"]
    if by_warpgroups(products, m, n, k, multiprocessors, b_lies.by_rows):
        b, b_lies = (b, b_lies) if b_lies.by_rows else _turned(b, b_lies, stream)
        tile, parts = None, parts_for(products, m, n, k, TILES[0], multiprocessors)
    else:
        tile, parts = cut_for(products, m, n, k, multiprocessors)
    size = c.dtype.itemsize
    steps = tuple(step // size for step in c.strides)
    c_outer, c_inner = _pair(steps[:-2])
    inner = leading[-1] if leading else 1
    name = a.dtype.name
    none = bias if bias is not None else span(a)  # not read; a kernel's arguments have types
    if parts > 1:
        length = k // parts
        sums = device.empty((parts, m, n), np.float32, stream=stream)
        along = (1 if a_lies.by_rows else a_lies.pitch) * length, (b_lies.pitch if b_lies.by_rows else 1) * length
        s = Sizes(m, n, length, parts, a_lies.pitch, 0, along[0], b_lies.pitch, 0, along[1], n, 0, m * n)
        _launch(tile, parts, name, a, a_lies, b, b_lies, none, sums, np.float32(1), s, False, stream)
        flat = sums.reshape(parts, m * n)
        grid, rows = blocks(m * n, BLOCK), (np.int64(n), np.int64(steps[-2] if m > 1 else n))
        add_parts_kernel[grid, BLOCK, stream](flat, none, span(c), *rows, np.float32(alpha), bias is not None)
        return
    s = Sizes(m, n, k, inner, *a_lies[1:], *b_lies[1:], steps[-2] if m > 1 else n, c_outer, c_inner)
    _launch(tile, products, name, a, a_lies, b, b_lies, none, c, np.float32(alpha), s, bias is not None, stream)


def _launch(tile, products, name, a, a_lies, b, b_lies, bias, c, alpha, s, biased, stream):
    grid = products * blocks(s.m, tile.m if tile else SIDE) * blocks(s.n, tile.n if tile else SIDE)
    if grid > MOST_BLOCKS:
        raise ValueError(f"a and b must have at most {MOST_BLOCKS} tiles of results, had {grid}")
    width = 16 // c.dtype.itemsize
    wide = not (any(x % width for x in (s.n, s.c_pitch, s.c_outer, s.c_inner)) or device.address(c) % 16)
    a, b, c, s = span(a).view(np.uint16), span(b).view(np.uint16), span(c), Sizes(*map(np.int64, s))
    short = c.dtype.itemsize == 2
    if tile is None:
        kernel = mixed_warpgroups.kernel_for(name, a_lies.by_rows, short, wide, biased)
        threads, shared = mixed_warpgroups.BLOCK
    else:
        kernel = kernel_for(tile, name, a_lies.by_rows, b_lies.by_rows, short, wide, biased)
        threads, shared = tile.threads, tile.shared
    kernel[grid, threads, stream, shared](a, b, bias, c, alpha, s)


def _pair(steps: tuple[int, ...]) -> tuple[int, int]:
    """The steps along two leading dimensions, of which some may be missing."""
    return (0,) * (2 - len(steps)) + tuple(steps)


def lies(shape: tuple[int, ...], strides: tuple[int, ...], address: int) -> Lies | None:
    """How matrices of 16 bits lie in memory; None if neither their rows nor their columns are contiguous whole chunks.

    >>> lies((4, 8), (16, 2), 0), lies((8, 4), (2, 16), 0)
    (Lies(by_rows=True, pitch=8, outer=0, inner=0), Lies(by_rows=False, pitch=8, outer=0, inner=0))
    >>> lies((4, 9), (18, 2), 0) is None
    True
    """
    *leading, down, along = (stride // 2 for stride in strides)
    leading = [step if extent > 1 else 0 for step, extent in zip(leading, shape, strict=False)]
    rows, columns = shape[-2:]
    if address % 16 or any(step % CHUNK for step in leading):
        return None
    for by_rows, step, pitch, count, length in (
        (True, along, down, rows, columns),
        (False, down, along, columns, rows),
    ):
        pitch = round_up(length, CHUNK) if count <= 1 else pitch
        if (step == 1 or length <= 1) and pitch % CHUNK == 0 and (pitch >= length or count <= 1):
            return Lies(by_rows, pitch, *_pair(tuple(leading)))
    return None


def _ready(x: typing.Any, stream: typing.Any) -> tuple[typing.Any, Lies]:
    """The array and how it lies; a copy with padded rows if it does not suit."""
    found = lies(x.shape, x.strides, device.address(x))
    if found is not None:
        return x, found
    *leading, rows, columns = x.shape
    pitch = round_up(max(columns, 1), CHUNK)
    made = device.empty((*leading, rows, pitch), x.dtype, stream=stream)
    if made.size:
        steps = (0, 0, *(stride // 2 for stride in x.strides))[-4:]
        inner = np.int64(leading[-1] if leading else 1)
        where = Padding(inner, np.int64(rows), np.int64(columns), np.int64(pitch), *map(np.int64, steps))
        flat = made.reshape(-1).view(np.uint16)
        padded_kernel[blocks(made.size, BLOCK), BLOCK, stream](span(x).view(np.uint16), flat, where)
    each = rows * pitch
    own = (each * leading[1], each) if len(leading) == 2 else (0, each if leading else 0)
    own = tuple(0 if extent == 1 else step for step, extent in zip(own, (1, 1, *leading)[-2:], strict=True))
    return made, Lies(True, pitch, *own)


class Padding(typing.NamedTuple):
    """Matrices in rows of ``pitch``, of which ``columns`` are taken from an array with these steps."""

    inner: int
    rows: int
    columns: int
    pitch: int
    outer_step: int
    inner_step: int
    row_step: int
    column_step: int


@cuda.jit
def padded_kernel(x, made, s):
    i = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    if i < made.size:
        column, row, product = i % s.pitch, i // s.pitch % s.rows, i // (s.pitch * s.rows)
        at = product // s.inner * s.outer_step + product % s.inner * s.inner_step
        at += row * s.row_step + column * s.column_step
        made[i] = x[at] if column < s.columns else np.uint16(0)


def _turned(b: typing.Any, b_lies: Lies, stream: typing.Any) -> tuple[typing.Any, Lies]:
    """A copy of a matrix that lies by columns, by rows."""
    k, n = b.shape[-2:]
    pitch = round_up(n, CHUNK)
    made = device.empty((k, pitch), b.dtype, stream=stream)
    grid = blocks(k, TURN) * blocks(pitch, TURN)
    sizes = map(np.int64, (k, n, b_lies.pitch, pitch))
    turn_kernel[grid, (TURN, BLOCK // TURN), stream](span(b).view(np.uint16), made.reshape(-1).view(np.uint16), *sizes)
    return made, Lies(True, pitch, 0, 0)


TURN, TURN_PITCH = 32, 33  # of the squares that are transposed


@cuda.jit
def turn_kernel(x, made, k, n, x_pitch, pitch):
    """x has n rows of k elements, and ``made`` k rows of n. A block turns a square in shared memory."""
    square = cuda.shared.array((TURN, TURN_PITCH), np.uint16)
    tx, ty = np.int64(cuda.threadIdx.x), np.int64(cuda.threadIdx.y)
    across = (pitch + TURN - 1) // TURN
    row, column = np.int64(cuda.blockIdx.x) // across * TURN, np.int64(cuda.blockIdx.x) % across * TURN
    for i in range(ty, TURN, BLOCK // TURN):
        inside = column + i < n and row + tx < k
        square[i, tx] = x[(column + i) * x_pitch + row + tx] if inside else np.uint16(0)
    cuda.syncthreads()
    for i in range(ty, TURN, BLOCK // TURN):
        if row + i < k and column + tx < pitch:
            made[(row + i) * pitch + column + tx] = square[tx, i]


@functools.lru_cache(4096)
def by_warpgroups(products: int, m: int, n: int, k: int, multiprocessors: int, b_by_rows: bool) -> bool:
    """Whether `pmpp.kernels.matmul.mixed_warpgroups` takes a product: a large one, on Hopper.

    A matrix B that lies by columns is turned first, which has to be little beside the product.

    >>> by_warpgroups(1, 16384, 1152, 384, 132, True), by_warpgroups(1, 512, 512, 384, 132, True)
    (True, False)
    >>> by_warpgroups(1, 1152, 384, 16384, 132, True)  # the gradient of weights, in parts
    True
    """
    if device.limits()["compute_capability"] != (9, 0) or min(m, n) <= SIDE // 2 or k < SIDE:
        return False
    parts = parts_for(products, m, n, k, TILES[0], multiprocessors)
    enough = products * blocks(m, SIDE) * blocks(n, SIDE) * parts >= multiprocessors
    return enough and (b_by_rows or (products == 1 and m >= 16 * SIDE))


@functools.lru_cache(4096)
def cut_for(products: int, m: int, n: int, k: int, multiprocessors: int) -> tuple[Tile, int]:
    """The largest tile of which there are enough, and that is not mostly beyond the edges; and the parts of the sums.

    >>> tile, parts = cut_for(1, 1152, 384, 16384, 132)
    >>> str(tile), parts
    ('128 x 128 x 64, 3 stages', 8)
    """
    for tile in TILES:
        parts = parts_for(products, m, n, k, tile, multiprocessors)
        grid = products * blocks(m, tile.m) * blocks(n, tile.n) * parts
        if grid >= multiprocessors and min(m, n) > tile.m // 2:
            return tile, parts
    return TILES[-1], parts_for(products, m, n, k, TILES[-1], multiprocessors)


@functools.lru_cache(4096)
def parts_for(products: int, m: int, n: int, k: int, tile: Tile, multiprocessors: int) -> int:
    """In how many parts of equal length a sum is cut: as many as keep all multiprocessors busy, and a power of two.

    >>> parts_for(1, 384, 384, 16384, TILES[1], 132)
    8
    """
    grid = products * blocks(m, tile.m) * blocks(n, tile.n)
    parts = 1
    while products == 1 and grid * parts * 2 <= 3 * multiprocessors and not k % (2 * parts * CHUNK):
        if k // (2 * parts) < SHORTEST:
            break
        parts *= 2
    return parts
