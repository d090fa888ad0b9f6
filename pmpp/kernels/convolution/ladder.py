"""Convolution: each element of an image becomes a weighted sum of its neighbours.

Chapter: notebooks/24_convolution.ipynb.  PMPP 4e ch. 7.

The weights are a mask of R x S elements, and the sum is

    out[i, j] = sum over r, s of mask[r, s] * x[i + r - R // 2, j + s - S // 2].

The mask is not turned over. Mathematicians call this a correlation; PMPP and deep learning call it convolution. With
an even R or S the centre is the element behind the middle, as in ``scipy.ndimage.correlate``. Beyond a border x is 0
("zero"), or mirrored about its outermost element, which is not repeated ("reflect", as in NumPy and PyTorch; SciPy's
"mirror"), or that element again ("edge"; SciPy's "nearest").

An element of x takes part in R S multiply-adds. The ladder climbs from fetching it for each of them to fetching it once
from device memory and seldom from shared memory. For one and three dimensions see `convolution.dimensions`.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution.borders import (
    PADS,
    SHARED,
    Problem,
    block_for,
    blocks_of,
    corner,
    element,
    factors,
    load_flat,
    load_patch,
    load_vector,
    load_vectors,
    load_weights,
    problem_of,
    refuse_large,
    thread_number,
    values_of,
)
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, rung
from pmpp.runtime.vector import load128, store128


def reference(x: np.ndarray, mask: np.ndarray, border: str = "zero") -> np.ndarray:
    """The sum of shifted images, one for each element of the mask, in float64; in any number of dimensions."""
    total = np.zeros(x.shape)
    if x.size:
        padded = np.pad(x.astype(np.float64), [(n // 2, n - 1 - n // 2) for n in mask.shape], mode=PADS[border])
        for shift in np.ndindex(mask.shape):
            shifted = padded[tuple(slice(first, first + n) for first, n in zip(shift, x.shape, strict=True))]
            total += np.float64(mask[shift]) * shifted
    return total


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, mask, border)``."""
    rng = np.random.default_rng(7) if rng is None else rng
    made = {}

    def add(name: str, shape: tuple[int, int], mask: tuple[int, int], border: str) -> None:
        made[name] = rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(mask, dtype=np.float32), border

    add("one", (1, 1), (1, 1), "zero")
    add("3x3", (9, 11), (3, 3), "zero")
    add("3x3, reflected", (18, 40), (3, 3), "reflect")
    add("5x5, edge", (33, 31), (5, 5), "edge")
    add("even mask", (20, 18), (4, 2), "reflect")
    add("even and odd", (7, 36), (2, 5), "edge")
    add("a tile and one", (33, 65), (3, 7), "zero")
    add("a row", (1, 70), (1, 5), "reflect")
    add("a column", (67, 1), (6, 1), "edge")
    add("mask larger than the image", (2, 5), (5, 13), "edge")
    add("no rows", (0, 5), (3, 3), "reflect")
    add("no columns", (4, 0), (3, 3), "edge")
    add("several tiles, aligned", (70, 136), (2, 7), "reflect")
    x = rng.standard_normal((20, 24), dtype=np.float32)
    bell = np.exp(-(np.arange(-2, 3, dtype=np.float32) ** 2) / 2)
    made["separable"] = x, np.outer(bell, bell[1:]), "edge"
    made["separable, with zeros"] = x, np.array([[1, 0, -1], [2, 0, -2], [1, 0, -1]], np.float32), "reflect"
    made["zeros"] = x, np.zeros((3, 2), np.float32), "zero"
    holes = x.copy()
    holes[3, 4], holes[0, 0], holes[19, 23] = np.nan, np.inf, -np.inf
    made["non-finite"] = holes, rng.uniform(1, 2, (3, 6)).astype(np.float32), "zero"
    made["non-finite, separable"] = holes, np.ones((3, 3), np.float32), "reflect"
    return made


def tolerance(x: np.ndarray, mask: np.ndarray, border: str = "zero") -> typing.Any:
    """(R S + 8) 2^-24 sum |mask| |x|, and no less than the smallest float32.

    A term goes through at most R S roundings, or R + S + 6 in `separable` (which says why): both are within R S + 8.
    """
    size = np.where(np.isfinite(x), abs(x), 0)
    return (mask.size + 8) * 2.0**-24 * reference(size, abs(mask), border) + mask.size * 2.0**-149


def cost(h: int, w: int, rows: int, columns: int) -> Cost:
    """A multiply-add for each output and each element of the mask, at borders too; all moved once, in float32."""
    return Cost(flops=2 * h * w * rows * columns, bytes=4 * (2 * h * w + rows * columns))


DOWN, ACROSS = 8, 32  # without a tile a block has DOWN x ACROSS threads, and as many outputs
TILE = 32  # with one it has TILE x TILE, but in the last rung


def _run(kernel: typing.Any, p: Problem, down: int, across: int) -> typing.Any:
    if p.out.size:
        kernel[blocks_of(p.x.shape, down, across), (across, down), p.stream](p.x, p.mask, p.out, p.border)
    return p.out


# ------------------------------------------------------------------------------------------------ one output a thread


@cuda.jit
def basic_kernel(x, mask, out, border):
    top, left = corner(x, cuda.blockDim.y, cuda.blockDim.x)
    row, column = top + cuda.threadIdx.y, left + cuda.threadIdx.x
    if row < x.shape[0] and column < x.shape[1]:
        above, before = row - mask.shape[0] // 2, column - mask.shape[1] // 2
        total = np.float32(0)
        r = 0
        while r < mask.shape[0]:
            s = 0
            while s < mask.shape[1]:
                total += mask[r, s] * element(x, above + r, before + s, border)
                s += 1
            r += 1
        out[row, column] = total


@rung(basic_kernel)
def basic(
    x: typing.Any, mask: typing.Any, border: str = "zero", *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """One thread for each output walks over the mask.

    Args:
        x: an image of shape (H, W), H and W >= 0, float32, contiguous in C order.
        mask: the weights, of shape (R, S), R and S >= 1, odd or even, float32, contiguous in C order.
        border: "zero", "reflect" or "edge". "reflect" needs R // 2 < H and S // 2 < W.
        out: a device array of shape (H, W), float32, apart from ``x`` and ``mask`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. Raises TypeError or ValueError that names the argument at
    fault. Source: PMPP 4e section 7.2.

    Leaves: each multiply-add loads two numbers, and the one from the mask is the same for all threads.
    """
    return _run(basic_kernel, problem_of(x, mask, border, out, stream), DOWN, ACROSS)


# ------------------------------------------------------------------------------------------------ constant memory

CONSTANT = 64 * 1024  # bytes of constant memory


@functools.lru_cache(maxsize=32)
def kernel_with(shape, data):
    """The kernel for one mask, whose values are compiled into it."""
    weights = np.frombuffer(data, np.float32).reshape(shape)

    @cuda.jit
    def constant_memory_kernel(x, out, border):
        mask = cuda.const.array_like(weights)
        top, left = corner(x, cuda.blockDim.y, cuda.blockDim.x)
        row, column = top + cuda.threadIdx.y, left + cuda.threadIdx.x
        if row < x.shape[0] and column < x.shape[1]:
            above, before = row - mask.shape[0] // 2, column - mask.shape[1] // 2
            total = np.float32(0)
            r = 0
            while r < mask.shape[0]:
                s = 0
                while s < mask.shape[1]:
                    total += mask[r, s] * element(x, above + r, before + s, border)
                    s += 1
                r += 1
            out[row, column] = total

    return constant_memory_kernel


@rung(kernel_with)
def constant_memory(x, mask, border="zero", *, out=None, stream=0):
    """The mask lies in constant memory, whose cache hands one number to all lanes of a warp at once.

    Arguments, result and errors as in `basic`; the mask has at most 64 KB. Numba fills constant memory when it compiles
    a kernel and never again, so there is a kernel for each mask: the first call with one takes as long as a compilation
    (the last 32 are kept), and a mask on the device is first copied to the host, which waits for the stream. CUDA C++
    compiles once and writes new values with cudaMemcpyToSymbol. Source: PMPP 4e section 7.3.

    Leaves: a kernel for each mask; and x comes R S times through the L1 cache, with a question about the border each.
    """
    p = problem_of(x, mask, border, out, stream)
    if 4 * p.mask.size > CONSTANT:
        raise ValueError(f"mask must have at most {CONSTANT // 4} elements for constant memory, had {p.mask.size}")
    if p.out.size:
        values = values_of(mask, p.mask, p.stream)
        kernel = kernel_with(p.mask.shape, values.tobytes())
        kernel[blocks_of(p.x.shape, DOWN, ACROSS), (ACROSS, DOWN), p.stream](p.x, p.out, p.border)
    return p.out


# ------------------------------------------------------------------------------------------------ a tile with its halo


@cuda.jit(device=True)
def weighted_sum(total, shared, weights, values, n, step):
    """Add n weights times n values, which lie ``step`` apart; both begin at places in shared memory."""
    # Unsigned, so that no index can count from the end: only then does the compiler unroll the loop.
    i, j = np.uint32(weights), np.uint32(values)
    end = np.uint32(i + n)
    while i < end:
        total += shared[i] * shared[j]
        i, j = np.uint32(i + 1), np.uint32(j + step)
    return total


@cuda.jit
def tiled_kernel(x, mask, out, border):
    shared = cuda.shared.array(0, np.float32)  # the mask, then the tile: the launch says how much
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = corner(x, cuda.blockDim.y, cuda.blockDim.x)
    rows, columns = mask.shape
    tall, wide = cuda.blockDim.y + rows - 1, cuda.blockDim.x + columns - 1
    load_flat(mask, shared, 0)
    load_patch(x, shared, mask.size, top - rows // 2, left - columns // 2, tall, wide, border, False)
    cuda.syncthreads()  # mask and tile are whole before anyone reads them
    total = np.float32(0)
    r = 0
    while r < rows:
        total = weighted_sum(total, shared, r * columns, mask.size + (ty + r) * wide + tx, columns, 1)
        r += 1
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        out[top + ty, left + tx] = total


@rung(tiled_kernel)
def tiled(x, mask, border="zero", *, out=None, stream=0):
    """A block loads what its outputs see, a tile with a halo, into shared memory once, and the mask beside it.

    Arguments, result and errors as in `basic`. Raises ValueError if mask and tile, 4 (R S + (R + 31) (S + 31)) bytes,
    are more than 48 KB. For an image of fewer than 32 rows or columns the tile is longer the other way. Source: PMPP 4e
    section 7.4.

    Leaves: the halo of 31 x 31 weights is thrice as large as the tile, and larger masks do not fit.
    """
    p = problem_of(x, mask, border, out, stream)
    if not _tiled(p):
        refuse_large(p.mask.shape, _tile_size(p.mask, TILE, TILE), "cached_halo or vectorised")
    return p.out


def _tile_size(mask: typing.Any, down: int, across: int) -> int:
    return mask.size + (mask.shape[0] + down - 1) * (mask.shape[1] + across - 1)


def _tiled(p: Problem) -> bool:
    """Launch it, with longer blocks for an image that is thin; or False, if what a block sees does not fit."""
    for block in (block_for(p.x.shape, TILE), (TILE, TILE)):
        shared = 4 * _tile_size(p.mask, *block)
        if shared <= SHARED:
            if p.out.size:
                launch = blocks_of(p.x.shape, *block), block[::-1], p.stream, shared
                tiled_kernel[launch](p.x, p.mask, p.out, p.border)
            return True
    return False


# ------------------------------------------------------------------------------------------------- the halo in a cache


@cuda.jit
def cached_halo_kernel(x, mask, out, border):
    tile = cuda.shared.array((TILE, TILE), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = corner(x, TILE, TILE)
    inside = top + ty < x.shape[0] and left + tx < x.shape[1]
    if inside:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if inside:
        # What of the tile there is: at the right and the lower edge of the image it is not whole.
        tall, wide = min(TILE, x.shape[0] - top), min(TILE, x.shape[1] - left)
        total = np.float32(0)
        r = 0
        while r < mask.shape[0]:
            y = ty + r - mask.shape[0] // 2
            s = 0
            while s < mask.shape[1]:
                z = tx + s - mask.shape[1] // 2
                if y >= 0 and y < tall and z >= 0 and z < wide:
                    total += mask[r, s] * tile[y, z]
                else:
                    total += mask[r, s] * element(x, top + y, left + z, border)
                s += 1
            r += 1
        out[top + ty, left + tx] = total


@rung(cached_halo_kernel)
def cached_halo(x, mask, border="zero", *, out=None, stream=0):
    """Only a block's own elements are in shared memory: its halo is its neighbours' tile, and so likely in a cache.

    Arguments, result and errors as in `basic`. Source: PMPP 4e section 7.5.

    Leaves: R S multiply-adds an output, though many masks are a column times a row and could do with R + S.
    """
    return _run(cached_halo_kernel, problem_of(x, mask, border, out, stream), TILE, TILE)


# ---------------------------------------------------------------------------------------------------- first along rows


@cuda.jit
def separable_kernel(x, column, row, out, border):
    shared = cuda.shared.array(0, np.float32)  # both vectors, what the outputs see of x, the sums along its rows
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = corner(x, TILE, TILE)
    rows, columns = column.size, row.size
    tall, wide = TILE + rows - 1, TILE + columns - 1
    tile = rows + columns
    sums = tile + tall * wide
    load_vector(column, shared, 0)
    load_vector(row, shared, rows)
    load_patch(x, shared, tile, top - rows // 2, left - columns // 2, tall, wide, border, False)
    cuda.syncthreads()
    y = np.int64(ty)
    while y < tall:  # the halo above and below has rows, too
        shared[sums + y * TILE + tx] = weighted_sum(np.float32(0), shared, rows, tile + y * wide + tx, columns, 1)
        y += TILE
    cuda.syncthreads()
    total = weighted_sum(np.float32(0), shared, 0, sums + ty * TILE + tx, rows, TILE)
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        out[top + ty, left + tx] = total


@rung(separable_kernel, cached_halo_kernel)
def separable(x, mask, border="zero", *, out=None, stream=0):
    """A mask of rank 1, a column times a row, is applied row by row and then column by column.

    Arguments, result and errors as in `basic`; and ``mask`` may be a pair of vectors ``(column, row)`` instead of their
    outer product. If it is a matrix, the host looks for such a pair (a mask on the device is copied there, which waits
    for the stream). A matrix that is not of rank 1 within 2^-22 of each element is left to `cached_halo`, and so is one
    that leaves no room in shared memory; such a pair is refused. |error| <= (R + S + 6) 2^-24 sum |mask| |x|: R + S
    roundings of a term, 4 for what the pair is off the mask, 2 for its own. Source: V. Podlozhnyuk, "Image convolution
    with CUDA" (NVIDIA, 2007).

    Leaves: most masks that a network learns are not of rank 1; and a thread still has one output.
    """
    p = problem_of(x, mask, border, out, stream, pairs=True)
    if isinstance(p.mask, tuple):
        column, row = p.mask
        refuse_large((column.size, row.size), _separable_size(column.size, row.size), "their outer product")
    else:
        values = values_of(mask, p.mask, p.stream)
        pair = factors(values) if 4 * _separable_size(*values.shape) <= SHARED else None
        if pair is None:
            return _run(cached_halo_kernel, p, TILE, TILE)
        column, row = (device.to_device(vector, stream=p.stream) for vector in pair)
    if p.out.size:
        launch = blocks_of(p.x.shape, TILE, TILE), (TILE, TILE), p.stream, 4 * _separable_size(column.size, row.size)
        separable_kernel[launch](p.x, column, row, p.out, p.border)
    return p.out


def _separable_size(rows: int, columns: int) -> int:
    return rows + columns + (rows + TILE - 1) * (columns + TILE - 1 + TILE)


# ------------------------------------------------------------------------------------------- 32 outputs in registers

TALL, WIDE = 4, 8  # outputs of a thread
LINES, LANES = 16, 8  # threads of a block: together they make 64 x 64 outputs
THREADS = LINES * LANES
PART = 32  # rows and columns of the mask that are in shared memory at a time
THIN = 16  # with fewer rows or columns than these most of the 64 x 64 would lie outside


@cuda.jit(device=True)
def add_products(shared, weights_at, totals, t, a, b, c, first, last):
    """To row t of the outputs: weights first to last - 1 of four, each times eight neighbours in a window of twelve."""
    weights = load128(shared, weights_at)  # the same for all lanes
    window = cuda.local.array(12, np.float32)
    for i in range(4):
        window[i], window[4 + i], window[8 + i] = a[i], b[i], c[i]
    for s in range(4):
        if s >= first and s < last:
            for j in range(WIDE):
                totals[t, j] += weights[s] * window[s + j]


@cuda.jit(device=True)
def multiply_part(shared, totals, at, wide, weights_at, pitch, rows, columns, lead):
    """Add the products with a part of the mask: one new vector of the tile and four of the mask for 128 of them."""
    # Places in shared memory fit 32 bits. A sum of two int32 is an int64 to Numba, hence the casts.
    y = np.int32(0)
    while y < rows + TALL - 1:  # a row of the tile serves up to TALL rows of outputs
        a, b = load128(shared, at), load128(shared, at + 4)
        s = np.int32(0)
        while s < pitch:
            c, w = load128(shared, np.int32(at + s + 8)), np.int32(weights_at + s)
            first, last = np.int32(lead - s), np.int32(lead + columns - s)
            # Written out, as totals stay in registers only if each index is known when this is compiled.
            if y >= TALL - 1 and y < rows and first <= 0 and last >= 4:
                add_products(shared, w, totals, 0, a, b, c, 0, 4)
                add_products(shared, np.int32(w - pitch), totals, 1, a, b, c, 0, 4)
                add_products(shared, np.int32(w - 2 * pitch), totals, 2, a, b, c, 0, 4)
                add_products(shared, np.int32(w - 3 * pitch), totals, 3, a, b, c, 0, 4)
            else:  # at the edges of the mask
                if y < rows:
                    add_products(shared, w, totals, 0, a, b, c, first, last)
                if y >= 1 and y < np.int32(rows + 1):
                    add_products(shared, np.int32(w - pitch), totals, 1, a, b, c, first, last)
                if y >= 2 and y < np.int32(rows + 2):
                    add_products(shared, np.int32(w - 2 * pitch), totals, 2, a, b, c, first, last)
                if y >= 3:
                    add_products(shared, np.int32(w - 3 * pitch), totals, 3, a, b, c, first, last)
            a, b = b, c
            s = np.int32(s + 4)
        y, at, weights_at = np.int32(y + 1), np.int32(at + wide), np.int32(weights_at + pitch)


@cuda.jit(device=True)
def store_row(out, row, column, totals, t, aligned):
    if row + t < out.shape[0]:
        if aligned and column + WIDE <= out.shape[1]:
            at = (row + t) * out.shape[1] + column
            store128(out, at, (totals[t, 0], totals[t, 1], totals[t, 2], totals[t, 3]))
            store128(out, at + 4, (totals[t, 4], totals[t, 5], totals[t, 6], totals[t, 7]))
        else:
            for j in range(WIDE):
                if column + j < out.shape[1]:
                    out[row + t, column + j] = totals[t, j]


@cuda.jit(max_registers=80)  # left alone, the compiler takes 64, and loads too late to hide the wait
def vectorised_kernel(x, mask, out, border, aligned, lead, wide):
    shared = cuda.shared.array(0, np.float32, alignment=16)  # a tile with rows of `wide`, then a part of the mask
    totals = cuda.local.array((TALL, WIDE), np.float32)
    for t in range(TALL):
        for j in range(WIDE):
            totals[t, j] = 0
    line, lane = np.int64(thread_number() // np.uint32(LANES)), np.int64(thread_number() % np.uint32(LANES))
    top, left = corner(x, TALL * LINES, WIDE * LANES)
    pitch = np.int32(wide - WIDE * LANES)  # of the mask's rows
    r0 = 0
    while r0 < mask.shape[0]:
        rows = min(PART, mask.shape[0] - r0)
        tall = TALL * LINES + rows - 1
        s0 = 0
        while s0 < mask.shape[1]:
            columns = min(PART, mask.shape[1] - s0)
            y, z = top - mask.shape[0] // 2 + r0, left - mask.shape[1] // 2 + s0 - lead  # z is a multiple of 4
            if aligned and y >= 0 and y + tall <= x.shape[0] and z >= 0 and z + wide <= x.shape[1]:
                load_vectors(x, shared, y, z, tall, wide)
            else:
                load_patch(x, shared, 0, y, z, tall, wide, border, True)
            load_weights(mask, shared, tall * wide, r0, s0, rows, columns, lead, pitch)
            cuda.syncthreads()
            at, weights_at = np.int32(TALL * line * wide + WIDE * lane), np.int32(tall * wide)
            multiply_part(shared, totals, at, wide, weights_at, pitch, np.int32(rows), np.int32(columns), lead)
            cuda.syncthreads()  # everyone is done with this part before the next overwrites it
            s0 += PART
        r0 += PART
    row, column = top + TALL * line, left + WIDE * lane
    store_row(out, row, column, totals, 0, aligned)
    store_row(out, row, column, totals, 1, aligned)
    store_row(out, row, column, totals, 2, aligned)
    store_row(out, row, column, totals, 3, aligned)


@rung(vectorised_kernel, tiled_kernel)
def vectorised(x, mask, border="zero", *, out=None, stream=0):
    """A thread keeps 4 x 8 outputs in registers and slides along the rows of its tile, 128 bits at a time.

    Arguments, result and errors as in `basic`. A mask of more than 32 rows or columns is applied in parts of 32 x 32.
    If rows of ``x`` or ``out`` do not begin at multiples of 16 bytes it loads or stores single elements. An image of
    fewer than 16 rows or columns is left to `tiled`, unless the mask is too large for that.
    """
    p = problem_of(x, mask, border, out, stream)
    if p.out.size and not (min(p.x.shape) < THIN and _tiled(p)):
        rows, columns = (min(PART, n) for n in p.mask.shape)
        lead = -(p.mask.shape[1] // 2) % 4
        pitch = -(-(lead + columns) // 4) * 4
        wide = WIDE * LANES + pitch
        aligned = p.x.shape[1] % 4 == 0 and device.address(p.x) % 16 == 0 and device.address(p.out) % 16 == 0
        elements = (TALL * LINES + rows - 1) * wide + rows * pitch
        launch = blocks_of(p.x.shape, TALL * LINES, WIDE * LANES), (32, THREADS // 32), p.stream, 4 * elements
        vectorised_kernel[launch](p.x, p.mask, p.out, p.border, aligned, np.int32(lead), np.int32(wide))
    return p.out


LADDER = (basic, constant_memory, tiled, cached_halo, separable, vectorised)
