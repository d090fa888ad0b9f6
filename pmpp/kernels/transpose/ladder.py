"""Transpose: the columns of a matrix become its rows.

Chapter: notebooks/16_transpose.ipynb.  PMPP 4e ch. 6.

There is no arithmetic: every element is read once and written once, so no kernel can be faster than a copy. The
difficulty is that neighbours in a row of the result are a whole row apart in the input. So the threads of a warp can
access neighbours in one of the two, not in both. Device memory moves whole sectors of 32 bytes, so scattered accesses
waste most of each. The ladder scatters them in shared memory instead, which has 32 banks. Then it keeps enough
loads under way to use the memory's bandwidth.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.dtypes import is_bfloat16, known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, width_of

DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
SHORT = DTYPES[4:]


def reference(x: np.ndarray) -> np.ndarray:
    """The transpose of an M x N matrix, N x M, an element at a time."""
    out = np.empty(x.shape[::-1], x.dtype)
    for row, column in np.ndindex(x.shape):
        out[column, row] = x[row, column]
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward matrices: a name, and ``(x,)``."""
    rng = np.random.default_rng(6) if rng is None else rng
    shapes = {"one": (1, 1), "row": (1, 77), "column": (77, 1)}
    shapes |= {"no rows": (0, 5), "no columns": (5, 0), "empty": (0, 0)}
    shapes |= {f"a tile {d:+}": (TILE + d, TILE + d) for d in (-1, 0, 1)}
    shapes |= {f"a tile of vectors {d:+}": (QUADS + d, QUADS + d) for d in (-4, -1, 0, 1, 4)}
    shapes |= {"rows of whole vectors": (63, 64), "columns of whole vectors": (64, 63), "several tiles": (140, 200)}
    made = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    made["float64"] = rng.standard_normal((70, 66))
    made["float64, odd"] = rng.standard_normal((35, 33))
    made["int32"] = rng.integers(-(2**31), 2**31, (68, 36), dtype=np.int32)
    made["int64"] = rng.integers(-(2**63), 2**63 - 1, (34, 38), dtype=np.int64)
    extremes = np.array([0.0, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, np.nan], dtype=np.float32)
    made["non-finite"] = np.tile(extremes, (8, 4))
    for dtype in known(SHORT):
        for shape in ((1, 1), (33, 70), (OCTETS, OCTETS), (OCTETS + 8, OCTETS - 8), (24, 2 * OCTETS + 16), (200, 41)):
            made[f"{dtype}, {shape}"] = rng.standard_normal(shape).astype(dtype)
    return {name: (x,) for name, x in made.items()}


def tolerance(x: np.ndarray) -> float:
    """0: elements are moved, not computed."""
    return 0.0


def cost(m: int, n: int, itemsize: int = 4) -> Cost:
    """No arithmetic; each element of an m x n matrix read once and written once."""
    return Cost(flops=0, bytes=2 * m * n * itemsize)


def arguments(x, *, out=None, stream=0) -> Problem:
    """Transpose a matrix.

    Args:
        x: a matrix of shape (M, N), M and N >= 0, of float32, float64, int32, int64, float16 or bfloat16, contiguous in
            C order.
        out: a device array of shape (N, M) and the same dtype in C order, apart from ``x`` in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import transpose
    >>> transpose.vectorised(np.float32([[1, 2, 3], [4, 5, 6]])).copy_to_host()
    array([[1., 4.],
           [2., 5.],
           [3., 6.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=2, stream=stream)
    out = device.as_output("out", out, shape=x.shape[::-1], dtype=x.dtype, apart={"x": x}, stream=stream)
    if is_bfloat16(x.dtype):  # 16 bits are 16 bits; and Numba has no shared arrays of bfloat16
        return Problem(out, stream=stream, x=x.view(np.float16), out=out.view(np.float16))
    return Problem(out, stream=stream, x=x, out=out)


# ----------------------------------------------------------------------------------------------- which block does what

MOST = 65535  # blocks along y or z; along x there may be 2^31 - 1


def tiles_of(shape: tuple[int, ...], side: int) -> tuple[int, int, int]:
    """The grid with one block for each square tile of ``side`` x ``side`` elements.

    x counts tiles down the matrix ``x``, y counts them across it, and z continues where y is full. So blocks that start
    together write side by side in ``out``: on an H200 that is the faster order for wide accesses.

    >>> tiles_of((33, 64), 32)
    (2, 2, 1)
    """
    down, along = blocks(shape[0], side), blocks(shape[1], side)
    return down, min(along, MOST), blocks(along, MOST)


@cuda.jit(device=True)
def corner(side):
    """Row and column of ``x`` where the block's tile begins."""
    return cuda.blockIdx.x * side, (cuda.blockIdx.z * cuda.gridDim.y + cuda.blockIdx.y) * side


# ---------------------------------------------------------------------------------------------------- without any tile

TILE = 32  # a block transposes a square of TILE x TILE elements; a warp is a row of it


@cuda.jit
def naive_kernel(x, out):
    top, left = corner(TILE)
    row, column = top + cuda.threadIdx.y, left + cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        out[column, row] = x[row, column]


@rung(naive_kernel)
def naive(p):
    """One thread for each element; a warp reads along a row.

    Source: PMPP 4e section 6.1.

    Leaves: a warp writes along a column, so each of its stores touches 32 sectors and fills an eighth of each.
    """
    naive_kernel[tiles_of(p.x.shape, TILE), (TILE, TILE), p.stream](p.x, p.out)


# --------------------------------------------------------------------------------------------------- in shared memory


@cuda.jit
def tiled_kernel(x, out):
    tile = cuda.shared.array((TILE, TILE), x.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = corner(TILE)
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()  # the tile is whole before anyone reads it
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


@rung(tiled_kernel)
def tiled(p):
    """A block loads a square along its rows, and stores it along the rows of the result: both sides are coalesced.

    Source: PMPP 4e sections 5.3 and 6.1 (corner turning); G. Ruetsch and P. Micikevicius, Optimizing Matrix Transpose
    in CUDA (NVIDIA, 2009).

    Leaves: a warp reads a column of the tile, and all of it lies in one bank: 32 accesses, one after another.
    """
    tiled_kernel[tiles_of(p.x.shape, TILE), (TILE, TILE), p.stream](p.x, p.out)


PITCH = TILE + 1  # one column more, so each row of the tile begins one bank further on


@cuda.jit
def padded_kernel(x, out):
    tile = cuda.shared.array((TILE, PITCH), x.dtype)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = corner(TILE)
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx, ty]


@rung(padded_kernel)
def padded(p):
    """One unused column in the tile spreads its columns over all banks.

    Source: as `tiled`.

    Leaves: a thread loads one element, waits for it, and then for all the others of its block at the barrier.
    """
    padded_kernel[tiles_of(p.x.shape, TILE), (TILE, TILE), p.stream](p.x, p.out)


EACH = 8  # elements a thread, in one column
STEP = TILE // EACH  # rows between them: a block is TILE x STEP threads


@cuda.jit
def coarsened_kernel(x, out):
    tile = cuda.shared.array((TILE, PITCH), x.dtype)
    values = cuda.local.array(EACH, x.dtype)
    tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)  # unsigned: no code for negative indices
    top, left = corner(TILE)
    # No branch between the loads, so that all are under way before the first value is needed. In place of an element
    # beyond an edge, one at the edge is loaded, and never written to `out`.
    row, last, column = top + ty, x.shape[0] - 1, min(left + tx, x.shape[1] - 1)
    for i in range(EACH):
        values[i] = x[min(row + i * STEP, last), column]
    for i in range(EACH):
        tile[ty + i * STEP, tx] = values[i]
    cuda.syncthreads()
    row, column = left + ty, top + tx
    for i in range(EACH):
        if row + i * STEP < out.shape[0] and column < out.shape[1]:
            out[row + i * STEP, column] = tile[tx, ty + i * STEP]


@rung(coarsened_kernel)
def coarsened(p):
    """A thread moves eight elements, and requests all of them before it waits for the first.

    Source: PMPP 4e section 6.3.

    Leaves: a lane loads 4 bytes at a time, or 2 of 16 bits, where the hardware can load 16.
    """
    coarsened_kernel[tiles_of(p.x.shape, TILE), (TILE, STEP), p.stream](p.x, p.out)


# ------------------------------------------------------------------------------------------------------- 128 bits wide

SPAN = 16  # a block is SPAN x SPAN threads; its tile is a square, SPAN vectors of 16 bytes wide
QUADS, PAIRS, OCTETS = 4 * SPAN, 2 * SPAN, 8 * SPAN  # the tile's side, for elements of 4, of 8 and of 2 bytes


@cuda.jit
def quads_kernel(x, out):
    tile = cuda.shared.array((QUADS, QUADS), x.dtype, alignment=16)
    tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    top, left = corner(QUADS)
    (m, n), row, column = x.shape, top + 4 * ty, left + 4 * tx
    if row < m and column < n:
        # A square of 4 x 4 is transposed in registers, and stored in the tile as pieces of four rows of the result.
        i = row * n + column
        a, b, c, d = load128(x, i), load128(x, i + n), load128(x, i + 2 * n), load128(x, i + 3 * n)
        place = 4 * tx * QUADS + 4 * (ty ^ tx % 8)  # swizzled: see below
        store128(tile, place, (a[0], b[0], c[0], d[0]))
        store128(tile, place + QUADS, (a[1], b[1], c[1], d[1]))
        store128(tile, place + 2 * QUADS, (a[2], b[2], c[2], d[2]))
        store128(tile, place + 3 * QUADS, (a[3], b[3], c[3], d[3]))
    cuda.syncthreads()
    row, column = left + 4 * ty, top + 4 * tx
    if row < n and column < m:
        place = 4 * ty * QUADS + 4 * (tx ^ ty % 8)
        for j in range(4):
            store128(out, (row + j) * m + column, load128(tile, place + j * QUADS))


# The swizzle: vectors change places within a row of the tile, so that no two lanes need the same bank at a time. Shared
# memory serves 128-bit accesses 8 lanes at a time. All its banks together are 128 bytes wide, that is 8 vectors, so the
# places of these 8 lanes must differ modulo 8. In row r of the tile, vector v is kept at place v ^ (r // 4 % 8), in
# `pairs_kernel` at v ^ (r // 2 % 8), and in `octets_kernel` at v ^ (r // 8 % 8). Neighbouring lanes store the same v in
# rows that are four (two, eight) apart, and load different v of one row. In both cases 8 neighbours have 8 different
# places modulo 8.


@cuda.jit
def pairs_kernel(x, out):
    tile = cuda.shared.array((PAIRS, PAIRS), x.dtype, alignment=16)
    tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    top, left = corner(PAIRS)
    (m, n), row, column = x.shape, top + 2 * ty, left + 2 * tx
    if row < m and column < n:
        i = row * n + column
        a, b = load128(x, i), load128(x, i + n)
        place = 2 * tx * PAIRS + 2 * (ty ^ tx % 8)
        store128(tile, place, (a[0], b[0]))
        store128(tile, place + PAIRS, (a[1], b[1]))
    cuda.syncthreads()
    row, column = left + 2 * ty, top + 2 * tx
    if row < n and column < m:
        place = 2 * ty * PAIRS + 2 * (tx ^ ty % 8)
        for j in range(2):
            store128(out, (row + j) * m + column, load128(tile, place + j * PAIRS))


@cuda.jit
def octets_kernel(x, out):
    tile = cuda.shared.array((OCTETS, OCTETS), x.dtype, alignment=16)
    tx, ty = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    top, left = corner(OCTETS)
    (m, n), row, column = x.shape, top + 8 * ty, left + 8 * tx
    if row < m and column < n:
        i = row * n + column
        a, b, c, d = load128(x, i), load128(x, i + n), load128(x, i + 2 * n), load128(x, i + 3 * n)
        i += 4 * n
        e, f, g, h = load128(x, i), load128(x, i + n), load128(x, i + 2 * n), load128(x, i + 3 * n)
        place = 8 * tx * OCTETS + 8 * (ty ^ tx % 8)
        store128(tile, place, (a[0], b[0], c[0], d[0], e[0], f[0], g[0], h[0]))
        store128(tile, place + OCTETS, (a[1], b[1], c[1], d[1], e[1], f[1], g[1], h[1]))
        store128(tile, place + 2 * OCTETS, (a[2], b[2], c[2], d[2], e[2], f[2], g[2], h[2]))
        store128(tile, place + 3 * OCTETS, (a[3], b[3], c[3], d[3], e[3], f[3], g[3], h[3]))
        store128(tile, place + 4 * OCTETS, (a[4], b[4], c[4], d[4], e[4], f[4], g[4], h[4]))
        store128(tile, place + 5 * OCTETS, (a[5], b[5], c[5], d[5], e[5], f[5], g[5], h[5]))
        store128(tile, place + 6 * OCTETS, (a[6], b[6], c[6], d[6], e[6], f[6], g[6], h[6]))
        store128(tile, place + 7 * OCTETS, (a[7], b[7], c[7], d[7], e[7], f[7], g[7], h[7]))
    cuda.syncthreads()
    row, column = left + 8 * ty, top + 8 * tx
    if row < n and column < m:
        place = 8 * ty * OCTETS + 8 * (tx ^ ty % 8)
        for j in range(8):
            store128(out, (row + j) * m + column, load128(tile, place + j * OCTETS))


VECTORS = {8: octets_kernel, 4: quads_kernel, 2: pairs_kernel}  # by how many elements 128 bits are


@rung(quads_kernel, pairs_kernel, octets_kernel, coarsened_kernel)
def vectorised(p):
    """Every access is 128 bits wide: a thread transposes a small square in registers, and the tile is swizzled.

    A 128-bit access needs rows that begin at multiples of 16 bytes, in both matrices. If M or N is no multiple of 4 (of
    2 for 8-byte elements, of 8 for those of 16 bits), or if an array does not begin at such a multiple, `coarsened`
    runs instead.

    Source: PTX ISA, "Vectors" in ld and st.
    """
    width = width_of(p.x.dtype)
    if any(extent % width for extent in p.x.shape) or any(device.address(array) % 16 for array in (p.x, p.out)):
        coarsened.launch(p)
    else:
        VECTORS[width][tiles_of(p.x.shape, width * SPAN), (SPAN, SPAN), p.stream](p.x, p.out)


LADDER = (naive, tiled, padded, coarsened, vectorised)
