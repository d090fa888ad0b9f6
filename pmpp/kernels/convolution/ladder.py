"""Convolution: each element of an image becomes a weighted sum of its neighbours.

Chapter: notebooks/24_convolution.ipynb.  PMPP 4e ch. 7.

The weights are a mask of R x S elements, and the sum is

    out[i, j] = sum over r, s of mask[r, s] * x[i + r - R // 2, j + s - S // 2].

The mask is not turned over. Mathematicians call this a correlation; PMPP and deep learning call it convolution. With
an even R or S the centre is the element behind the middle, as in ``scipy.ndimage.correlate``. Beyond a border x is 0
("zero"), or mirrored about its outermost element, which is not repeated ("reflect", as in NumPy and PyTorch; SciPy's
"mirror"), or that element again ("edge"; SciPy's "nearest").

An element of x takes part in R S multiply-adds. The first rung fetches it for each of them, the last fetches it once
from device memory and seldom from shared memory. For one and three dimensions see
`pmpp.kernels.convolution.dimensions`.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import SHARED_LIMIT, round_up
from pmpp.kernels.convolution.borders import (
    PADS,
    block_for,
    blocks_of,
    border_of,
    corner,
    element,
    factors,
    load_flat,
    load_patch,
    load_vector,
    load_vectors,
    load_weights,
    mask_of,
    refuse_large,
    thread_number,
    values_of,
)
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
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

    A term is rounded at most R S times, or in `separable` R + S + 6 times, as is said there: both are within R S + 8.
    """
    size = np.where(np.isfinite(x), abs(x), 0)
    return (mask.size + 8) * 2.0**-24 * reference(size, abs(mask), border) + mask.size * 2.0**-149


def cost(h: int, w: int, rows: int, columns: int) -> Cost:
    """A multiply-add for each output and each element of the mask, at borders too; all moved once, in float32."""
    return Cost(flops=2 * h * w * rows * columns, bytes=4 * (2 * h * w + rows * columns))


DOWN, ACROSS = 8, 32  # threads of a block, and its outputs, in the rungs without a tile
TILE = 32  # in rungs with a tile a block has TILE x TILE threads and outputs; the last rung has its own numbers


def arguments(x, mask, border="zero", *, out=None, stream=0) -> Problem:
    """Convolve an image with a mask, which is not turned over.

    Args:
        x: an image of shape (H, W), H and W >= 0, float32, contiguous in C order.
        mask: the weights, of shape (R, S), R and S >= 1, odd or even, float32, contiguous in C order.
        border: "zero", "reflect" or "edge". "reflect" needs R // 2 < H and S // 2 < W.
        out: a float32 device array of shape (H, W), apart from ``x`` and ``mask`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import convolution
    >>> convolution.basic(np.float32([[1, 2, 3]]), np.float32([[1, 1, 1]]), "edge").copy_to_host()
    array([[4., 6., 8.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=2, stream=stream)
    given, mask = mask, mask_of(mask, 2, stream)
    border = border_of(border, x.shape, mask.shape)
    apart = {"x": x, "mask": mask}
    out = device.as_output("out", out, shape=x.shape, dtype=np.float32, apart=apart, stream=stream)
    return Problem(out, stream=stream, x=x, mask=mask, given_mask=given, border=border)


def pair_arguments(x, mask, border="zero", *, out=None, stream=0) -> Problem:
    """Convolve an image with a mask, or with the outer product of two vectors.

    Args:
        mask: as in `arguments`, or a pair of vectors ``(column, row)`` of shapes (R,) and (S,), float32, contiguous.
        x, border, out, stream: as in `arguments`, and so are result and errors.

    >>> from pmpp.kernels import convolution
    >>> convolution.separable(np.ones((2, 2), np.float32), (np.float32([1, 1]), np.float32([1, 2]))).copy_to_host()
    array([[2., 3.],
           [4., 6.]], dtype=float32)
    """
    if not (isinstance(mask, tuple) and len(mask) == 2):
        return arguments(x, mask, border, out=out, stream=stream)
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=2, stream=stream)
    column, row = (mask_of(vector, 1, stream, f"mask[{i}]") for i, vector in enumerate(mask))
    border = border_of(border, x.shape, (column.size, row.size))
    apart = {"x": x, "mask[0]": column, "mask[1]": row}
    out = device.as_output("out", out, shape=x.shape, dtype=np.float32, apart=apart, stream=stream)
    return Problem(out, stream=stream, x=x, mask=(column, row), border=border)


def _launch(kernel: typing.Any, p: Problem, down: int, across: int) -> None:
    kernel[blocks_of(p.x.shape, down, across), (across, down), p.stream](p.x, p.mask, p.result, p.border)


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
def basic(p):
    """One thread for each output walks over the mask.

    Source: PMPP 4e section 7.2.

    Leaves: each multiply-add loads two numbers, and the one from the mask is the same for all threads.
    """
    _launch(basic_kernel, p, DOWN, ACROSS)


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
def constant_memory(p):
    """The mask lies in constant memory, whose cache hands one number to all lanes of a warp at once.

    Raises ValueError for a mask of more than 64 KB. Numba fills constant memory when it compiles a kernel and never
    again, so that each mask needs a kernel of its own. The first call with a mask takes as long as a compilation; the
    last 32 kernels are kept. A mask on the device is first copied to the host, which waits for the stream. CUDA C++
    compiles once and writes new values with cudaMemcpyToSymbol. Source: PMPP 4e section 7.3.

    Leaves: a kernel for each mask; and each x is loaded R S times through the L1 cache, with tests for the border.
    """
    if 4 * p.mask.size > CONSTANT:
        raise ValueError(f"mask must have at most {CONSTANT // 4} elements for constant memory, had {p.mask.size}")
    kernel = kernel_with(p.mask.shape, values_of(p).tobytes())
    kernel[blocks_of(p.x.shape, DOWN, ACROSS), (ACROSS, DOWN), p.stream](p.x, p.result, p.border)


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
    cuda.syncthreads()  # mask and tile are whole before a thread reads them
    total = np.float32(0)
    r = 0
    while r < rows:
        total = weighted_sum(total, shared, r * columns, mask.size + (ty + r) * wide + tx, columns, 1)
        r += 1
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        out[top + ty, left + tx] = total


@rung(tiled_kernel)
def tiled(p):
    """A block loads into shared memory once what its outputs see of x, a tile with a halo, and the mask beside it.

    Raises ValueError if mask and tile, 4 (R S + (R + 31) (S + 31)) bytes, are more than 48 KB. For an image of fewer
    than 32 rows or columns the tile is longer in the other direction. Source: PMPP 4e section 7.4.

    Leaves: under a mask of 31 x 31 the halo is nearly three times as large as the tile, and much larger do not fit.
    """
    if not _tiled(p):
        refuse_large(p.mask.shape, _tile_size(p.mask, TILE, TILE), "cached_halo or vectorised")


def _tile_size(mask: typing.Any, down: int, across: int) -> int:
    return mask.size + (mask.shape[0] + down - 1) * (mask.shape[1] + across - 1)


def _tiled(p: Problem) -> bool:
    """Launch the kernel, with longer blocks for a thin image, if mask and tile fit; whether they do."""
    for block in (block_for(p.x.shape, TILE), (TILE, TILE)):
        shared = 4 * _tile_size(p.mask, *block)
        if shared <= SHARED_LIMIT:
            launch = blocks_of(p.x.shape, *block), block[::-1], p.stream, shared
            tiled_kernel[launch](p.x, p.mask, p.result, p.border)
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
        # How much of the tile lies in the image: at the right and the lower edge that is less than all of it.
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
def cached_halo(p):
    """Only a block's own elements are in shared memory: its halo belongs to its neighbours, so it is likely in a cache.

    Source: PMPP 4e section 7.5.

    Leaves: R S multiply-adds an output, though many masks are a column times a row and need only R + S.
    """
    _launch(cached_halo_kernel, p, TILE, TILE)


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
    while y < tall:  # the rows of the halo above and below, too
        shared[sums + y * TILE + tx] = weighted_sum(np.float32(0), shared, rows, tile + y * wide + tx, columns, 1)
        y += TILE
    cuda.syncthreads()
    total = weighted_sum(np.float32(0), shared, 0, sums + ty * TILE + tx, rows, TILE)
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        out[top + ty, left + tx] = total


@rung(separable_kernel, cached_halo_kernel, arguments=pair_arguments)
def separable(p):
    """A mask of rank 1, a column times a row, is applied along the rows and then along the columns.

    The host looks for the column and the row of a mask that is given as a matrix; a mask on the device is copied there,
    which waits for the stream. A matrix that is not of rank 1 within 2^-22 of each element is left to `cached_halo`,
    and so is one that leaves no room in shared memory; for a pair that leaves none, ValueError is raised.
    |error| <= (R + S + 6) 2^-24 sum |mask| |x|: a term is rounded R + S times in the sums, the pair may be off the mask
    by as much as 4 roundings, and its own rounding makes 2. That holds where the sums along the rows fit float32: of a
    pair, the row is applied first. Source: V. Podlozhnyuk, "Image convolution with CUDA"
    (NVIDIA, 2007).

    Leaves: most masks that a network learns are not of rank 1; and a thread still has one output.
    """
    if isinstance(p.mask, tuple):
        column, row = p.mask
        refuse_large((column.size, row.size), _separable_size(column.size, row.size), "their outer product")
    else:
        pair = factors(values_of(p)) if 4 * _separable_size(*p.mask.shape) <= SHARED_LIMIT else None
        if pair is None:
            cached_halo.launch(p)
            return
        column, row = (device.to_device(vector, stream=p.stream) for vector in pair)
    launch = blocks_of(p.x.shape, TILE, TILE), (TILE, TILE), p.stream, 4 * _separable_size(column.size, row.size)
    separable_kernel[launch](p.x, column, row, p.result, p.border)


def _separable_size(rows: int, columns: int) -> int:
    return rows + columns + (rows + TILE - 1) * (columns + TILE - 1 + TILE)


# ------------------------------------------------------------------------------------------- 32 outputs in registers

TALL, WIDE = 4, 8  # outputs of a thread
LINES, LANES = 16, 8  # threads of a block: together they make 64 x 64 outputs
THREADS = LINES * LANES
PART = 32  # rows and columns of the mask that are in shared memory at a time
THIN = 16  # if an image has fewer rows or columns, most of the 64 x 64 outputs lie outside


@cuda.jit(device=True)
def add_products(shared, weights_at, totals, t, a, b, c, first, last):
    """Add to row t of the outputs the products of eight neighbours with weights first to last - 1 of four."""
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
    """Add the products with a part of the mask: for 128 of them, load a vector of the tile and four of the mask."""
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


@cuda.jit(max_registers=80)  # by itself the compiler uses 64, and places the loads too late to hide the wait
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
            cuda.syncthreads()  # all threads are done with this part before the next overwrites it
            s0 += PART
        r0 += PART
    row, column = top + TALL * line, left + WIDE * lane
    store_row(out, row, column, totals, 0, aligned)
    store_row(out, row, column, totals, 1, aligned)
    store_row(out, row, column, totals, 2, aligned)
    store_row(out, row, column, totals, 3, aligned)


@rung(vectorised_kernel, tiled_kernel)
def vectorised(p):
    """A thread keeps 4 x 8 outputs in registers and slides along the rows of its tile, 128 bits at a time.

    A mask of more than 32 rows or columns is applied in parts of 32 x 32. If rows of ``x`` or ``out`` do not begin at
    multiples of 16 bytes, single elements are loaded and stored. An image of fewer than 16 rows or columns is left to
    `tiled`, unless the mask is too large for that.
    """
    if min(p.x.shape) < THIN and _tiled(p):
        return
    rows, columns = (min(PART, n) for n in p.mask.shape)
    lead = -(p.mask.shape[1] // 2) % 4
    pitch = round_up(lead + columns, 4)
    wide = WIDE * LANES + pitch
    aligned = p.x.shape[1] % 4 == 0 and device.address(p.x) % 16 == 0 and device.address(p.result) % 16 == 0
    elements = (TALL * LINES + rows - 1) * wide + rows * pitch
    launch = blocks_of(p.x.shape, TALL * LINES, WIDE * LANES), (32, THREADS // 32), p.stream, 4 * elements
    vectorised_kernel[launch](p.x, p.mask, p.result, p.border, aligned, np.int32(lead), np.int32(wide))


LADDER = (basic, constant_memory, tiled, cached_halo, separable, vectorised)
