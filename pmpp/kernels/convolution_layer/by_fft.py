"""Convolution by FFT: a product of spectra for each frequency, instead of a sum over the mask for each pixel.

Chapter: notebooks/70_convolution_by_fft.ipynb.  PMPP 4e ch. 16.

A correlation in space is a product in frequency, X conj(W). The size of the mask has no part in that arithmetic, so it
pays for large masks. What remains are the transforms and the sum over channels, which is a complex matrix product for
each frequency. The price is memory for all spectra, and masks that are padded to the size of a transform. The ladder
first transforms whole images, then overlapping tiles of them, and at last keeps tiles of the products in registers.

With a stride all places are computed and those between are dropped. Dilated masks are transformed with the zeros
between their elements. Groups are separate sums. The rungs raise ValueError for a layer whose number of tiles, times
its channels or its filters, is 2^31 or more (`refuses`); `whole_image` does so for 2^31 or more elements of padded
images, masks or outputs.

Two planes share a transform: neighbouring channels, or where the number of channels is odd the last one and the first
of the next tile or image. So a NaN or an infinity reaches all outputs of its tile and of the one that shares the
transform, which may belong to another image; and the error of a plane is relative to the larger of the two.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.by_fft_spectra import (
    POINTS,
    SIDES,
    THREADS,
    image_spectra_kernel,
    images_kernel,
    mask_spectra_kernel,
)
from pmpp.kernels.convolution_layer.definition import MOST, ONES, ZEROS, Layer, Pair, Problem, finish, workspace
from pmpp.kernels.fft.butterflies import first_radix, twiddles
from pmpp.kernels.fft.ladder import relative_error
from pmpp.kernels.fft.real import apart_kernel, irfft, rfft, together_kernel
from pmpp.runtime.rung import Cost, rung
from pmpp.runtime.vector import load128, store128

BLOCK = 256  # threads per block, in kernels whose threads share nothing: any multiple of 32 is right

reference = definition.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """The shared awkward layers, and larger masks on images of several tiles, one for each size of tile."""
    made = definition.inputs(rng)
    rng = np.random.default_rng(55) if rng is None else rng

    def add(name: str, x: tuple, w: tuple, *options: typing.Any) -> None:
        made[name] = *(rng.standard_normal(shape, dtype=np.float32) for shape in (x, w)), None, *options

    add("5x5 on several tiles", (1, 3, 21, 27), (3, 3, 5, 5), 1, 2)
    add("11x11, s2", (1, 2, 29, 40), (1, 2, 11, 11), 2, 5)
    add("17x17", (1, 1, 20, 36), (1, 1, 17, 17), 1, 8)
    add("8 tiles and 35 filters", (4, 1, 12, 30), (35, 1, 2, 2))
    add("two groups of many filters", (1, 4, 29, 30), (18, 2, 2, 2), 2, 0, 1, 2)
    add("a mask that fits no tile", (1, 1, 66, 3), (1, 1, 2, 1), 1, 0, (65, 1))
    return made


def tolerance(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False) -> np.ndarray:
    """The largest difference from `reference` that is allowed for each element: see `error_bound`.

    It assumes that planes which share a transform are of like size.
    """
    a = definition.layer_of(x.shape, w.shape, stride, padding, dilation, groups)
    each, bound = a.k // groups, np.zeros((a.n, a.k))
    images = np.sqrt((x.astype(np.float64) ** 2).sum((2, 3)))
    masks, sums = np.sqrt((w.astype(np.float64) ** 2).sum((2, 3))), np.abs(w.astype(np.float64)).sum((2, 3))
    for k in range(a.k):
        seen = images[:, k // each * w.shape[1] : (k // each + 1) * w.shape[1]]
        bound[:, k] = error_bound(a, seen @ masks[k], seen @ sums[k])
    size = 0 if bias is None else np.abs(bias[:, None, None])
    return np.broadcast_to(bound[:, :, None, None] + 2.0**-24 * size + 2.0**-126, a.shape)


def error_bound(a: Layer, products: typing.Any, sums: typing.Any) -> typing.Any:
    """The largest rounding error of an output.

    ``products`` is the sum over channels of |x| |w|, both in the 2-norm; ``sums`` is the same with w in the 1-norm.

    Let e be the relative error of a transform in the 2-norm (`pmpp.kernels.fft.relative_error`, for two stages more,
    which take the two planes apart). The product of two spectra is off by 2 e |X| |W|. The rounding of a sum of C
    complex products adds (C + 3) 2^-23.5 of that size. By the inequality of Cauchy and Schwarz and Parseval's theorem,
    no element of the inverse transform is then further off than these factors times the sum of |x| |w|. The inverse
    transform itself adds e times the 2-norm of its result, which is at most the sum of |x| (2-norm) |w| (1-norm).
    """
    points = 4 * max(max(SIDES) ** 2, math.prod(_extents(a)))
    e = relative_error(points)
    return (2 * e + (a.c // a.groups + 3) * 2.0**-23.5) * products + e * 1.01 * sums


cost = definition.cost


def own_cost(a: Layer) -> Cost:
    """The least that this algorithm takes for a layer: the operations of its cheapest tiling, and the bytes of `cost`.

    There is a transform for each tile and channel, for each mask, and for each tile and filter: see `_split_radix`.
    Half of a spectrum of n x m real points says all of it, n (m / 2 + 1) complex numbers. A product of two that is
    added up takes 8 operations, for each tile, each filter, and each channel of its group. The sides of a tiling are
    those of one of the rungs: of tiles, or of whole images.

    The bytes are those of the definition, because spectra need not leave the chip. Those of the rungs do.
    """
    tilings = [(n, n, tiling.count(a)) for n in SIDES if (tiling := tiling_of(a, n))]
    group, found = a.c // a.groups, []
    for rows, columns, tiles in (*tilings, (*_extents(a), a.n)):
        transforms = (rows * _split_radix(columns) + columns * _split_radix(rows)) // 2
        products = 8 * rows * (columns // 2 + 1)
        found.append((tiles * (a.c + a.k) + a.k * group) * transforms + tiles * a.k * group * products)
    return Cost(min(found), a.cost.bytes)


def _split_radix(n: int) -> int:
    """Operations of a complex transform of n points, a power of two: 4 n log2 n - 6 n + 8, about the fewest known.

    A transform of real points takes half, since two planes share a complex one. Source: P. Duhamel and H. Hollmann,
    "Split radix FFT algorithm", Electronics Letters 20 (1984).
    """
    return 4 * n * (n.bit_length() - 1) - 6 * n + 8 if n > 1 else 0


arguments = definition.arguments


# ------------------------------------------------------------------------------------------------------- whole images


def _extents(a: Layer) -> tuple[int, int]:
    """Rows and columns of a transform of a whole image with its padding: powers of two, the last at least 2."""
    rows, columns = a.h + 2 * a.padding.rows, a.w + 2 * a.padding.columns
    return 1 << (rows - 1).bit_length(), max(1 << (columns - 1).bit_length(), 2)


@cuda.jit
def enlarge_kernel(x, out, padding, step):
    i = cuda.grid(1)
    if i < out.size:
        line, rows, columns = i // out.shape[2], out.shape[1], out.shape[2]
        plane = line // rows
        row, column = line - plane * rows - padding.rows, i - line * columns - padding.columns
        r, s = row // step.rows, column // step.columns
        inside = row >= 0 and column >= 0 and r < x.shape[1] and s < x.shape[2]
        there = inside and r * step.rows == row and s * step.columns == column
        out[plane, line - plane * rows, i - line * columns] = x[plane, r, s] if there else np.float32(0)


@cuda.jit
def products_kernel(x, w, out, size, channels, filters, group, each):
    i = cuda.grid(1)
    if i < out.size:
        plane = i // size
        f, tile = i - plane * size, plane // filters
        k = plane - tile * filters
        at, mask = (tile * channels + k // each * group) * size + f, k * group * size + f
        total = complex(np.float32(0), np.float32(0))
        c = 0
        while c < group:
            total += x[at] * w[mask].conjugate()
            at, mask, c = at + size, mask + size, c + 1
        out[i] = total


@cuda.jit
def crop_kernel(y, out, bias, stride, relu):
    i = cuda.grid(1)
    if i < out.size:
        line = i // out.shape[3]
        plane = line // out.shape[2]
        p, q = line - plane * out.shape[2], i - line * out.shape[3]
        n = plane // out.shape[1]
        k = plane - n * out.shape[1]
        out[n, k, p, q] = finish(y[plane, p * stride.rows, q * stride.columns], bias, k, relu)


def whole_image_workspace(a: Layer) -> int:
    """Bytes that `whole_image` takes besides its arguments: padded planes, and spectra before and after each axis."""
    rows, columns = _extents(a)
    planes = a.n * a.c + a.k * a.c // a.groups + a.n * a.k
    real, half = 4 * rows * columns, 8 * rows * (columns // 2 + 1)
    most = max(a.n * a.c, a.k * a.c // a.groups, a.n * a.k)
    return planes * half + most * (2 * real + half)


def _refuses_whole_images(a: Layer) -> str | None:
    rows, columns = _extents(a)
    if max(a.n * a.c, a.n * a.k) * rows * columns > MOST:
        return f"x must be smaller for transforms of whole images, {rows} x {columns}: take fewer images a call"
    if a.k * a.c // a.groups * rows * columns > MOST:
        return f"w must have fewer filters or channels for transforms of whole images, {rows} x {columns}"
    return None


@rung(enlarge_kernel, products_kernel, crop_kernel, apart_kernel, together_kernel)
def whole_image(p):
    """Images and masks, padded to a power of two, are transformed; a frequency has a sum of products over channels.

    The transforms are `pmpp.kernels.fft.real.rfft` and `irfft`; bytes of workspace: `whole_image_workspace`. Source:
    M. Mathieu, M. Henaff and Y. LeCun, Fast training of convolutional networks through FFTs (ICLR 2014).

    Leaves: a mask of 3 x 3 is padded to the size of the image, and an image of 142 x 142 to 256 x 256.
    """
    a, stream = p.layer, p.stream
    if why := _refuses_whole_images(a):
        raise ValueError(why)
    rows, columns = _extents(a)
    masks, size = a.k * a.c // a.groups, rows * (columns // 2 + 1)
    # This asks for all memory at once and gives it back to the pool. If there is too little, nothing has been begun. If
    # there is enough, the pool has it for what follows.
    workspace("spectra of whole images", (whole_image_workspace(a),), stream=stream, dtype=np.uint8)
    spectra = []
    for planes, source, padding, step in (
        (a.n * a.c, p.x.reshape(a.n * a.c, a.h, a.w), a.padding, ONES),
        (masks, p.w.reshape(masks, a.r, a.s), ZEROS, a.dilation),
    ):
        padded = workspace("padded planes", (planes, rows, columns), stream=stream)
        enlarge_kernel[blocks(padded.size, BLOCK), BLOCK, stream](source, padded, padding, step)
        spectra.append(rfft(padded, 2, stream=stream).reshape(-1))
    sums = workspace("spectra of the result", (a.n * a.k, rows, columns // 2 + 1), stream=stream, dtype=np.complex64)
    sizes = size, a.c, a.k, a.c // a.groups, a.k // a.groups
    products_kernel[blocks(sums.size, BLOCK), BLOCK, stream](*spectra, sums.reshape(-1), *sizes)
    images = irfft(sums, 2, stream=stream)
    crop_kernel[blocks(p.result.size, BLOCK), BLOCK, stream](images, p.result, p.bias, a.stride, p.relu)


# ------------------------------------------------------------------------------------------------------------- tiles


class Tiling(typing.NamedTuple):
    """How images are cut: into tiles of ``side`` x ``side`` points, each of which gives ``valid`` outputs."""

    side: int
    valid: Pair
    tiles: Pair  # of an image

    @property
    def size(self) -> int:
        """Frequencies of a half spectrum."""
        return self.side * (self.side // 2 + 1)

    def count(self, a: Layer) -> int:
        """Tiles of all images."""
        return a.n * math.prod(self.tiles)


@functools.lru_cache(4096)  # as in `pmpp.kernels.convolution_layer.definition.window_of`
def tiling_of(a: Layer, side: int | None = None) -> Tiling | None:
    """The cheapest tiling, or that of a given side; None if the mask fits no tile.

    Along an axis, a tile of n points gives n - r + 1 outputs for a mask that spans r; the others have wrapped around.
    The estimate is in bytes: 24 for each value of a spectrum, which is written, read and transformed, and 0.8 for each
    complex product, whose 8 operations take a GPU about as long as moving 0.8 bytes.
    """
    reach = [d * (extent - 1) + 1 for d, extent in zip(a.dilation, (a.r, a.s), strict=True)]
    full = [(places - 1) * step + 1 for places, step in zip((a.p, a.q), a.stride, strict=True)]
    best, least = None, math.inf
    for n in SIDES if side is None else (side,):
        if max(reach) > n:
            continue
        valid = Pair(*(n - span + 1 for span in reach))
        one = Tiling(n, valid, Pair(*(blocks(extent, each) for extent, each in zip(full, valid, strict=True))))
        images, group = one.count(a), a.c // a.groups
        estimate = one.size * (24 * (images * (a.c + a.k) + a.k * group) + 0.8 * images * a.k * group)
        if estimate < least:
            best, least = one, estimate
    return best


def refuses(layer: Layer) -> str | None:
    """Why `tiles` and `register_tiled` cannot compute a layer: there would be too many spectra. None if they can."""
    tiling = tiling_of(layer)
    if tiling is None:
        return _refuses_whole_images(layer)
    most = max(tiling.count(layer) * max(layer.c, layer.k), layer.k * layer.c // layer.groups)
    if most > MOST:
        return f"x must make fewer than 2^31 tiles of channels or filters, makes {most}: take fewer images a call"
    return None


def workspace_bytes(a: Layer) -> int:
    """Bytes that `tiles` and `register_tiled` take besides their arguments: spectra of images, masks and results."""
    tiling = tiling_of(a)
    if tiling is None:
        return whole_image_workspace(a)
    return 8 * tiling.size * (tiling.count(a) * (a.c + a.k) + a.k * a.c // a.groups)


def _tiles(p: Problem, multiply: typing.Callable) -> None:
    """Transform tiles and masks, call ``multiply(layer, tiling, x, w, sums, stream)``, and transform back."""
    a, stream, tiling = p.layer, p.stream, tiling_of(p.layer)
    if tiling is None:
        whole_image.launch(p)
        return
    if why := refuses(a):
        raise ValueError(why)
    n, images, masks = tiling.side, tiling.count(a), a.k * a.c // a.groups
    planes, results = images * a.c, images * a.k
    begin_w, begin_sums = planes * tiling.size, (planes + masks) * tiling.size
    spectra = workspace("spectra of tiles", (begin_sums + results * tiling.size,), stream=stream, dtype=np.complex64)
    x, w, sums = spectra[:begin_w], spectra[begin_w:begin_sums], spectra[begin_sums:]
    table, radix = twiddles(n), first_radix(n)
    of_images, of_masks, of_sums = (blocks(count, 2 * POINTS // n**2) for count in (planes, masks, results))
    image_spectra_kernel[of_images, THREADS, stream](
        p.x.reshape(-1, a.h, a.w), x, table, n, radix, tiling.tiles, tiling.valid, a.padding, a.c, planes
    )
    flat = p.w.reshape(masks, a.r, a.s)
    mask_spectra_kernel[of_masks, THREADS, stream](flat, w, table, n, radix, a.dilation, masks)
    multiply(a, tiling, x, w, sums, stream)
    out, scale = p.result.reshape(-1, a.p, a.q), np.float32(1 / n**2)
    images_kernel[of_sums, THREADS, stream](
        sums, out, p.bias, table, n, radix, tiling.tiles, tiling.valid, a.stride, a.k, results, scale, p.relu
    )


def _multiply(a: Layer, tiling: Tiling, x: typing.Any, w: typing.Any, sums: typing.Any, stream: typing.Any) -> None:
    sizes = tiling.size, a.c, a.k, a.c // a.groups, a.k // a.groups
    products_kernel[blocks(sums.size, BLOCK), BLOCK, stream](x, w, sums, *sizes)


@rung(image_spectra_kernel, mask_spectra_kernel, images_kernel, *whole_image.kernels)
def tiles(p):
    """Images are cut into overlapping tiles (overlap-save), each of which a block transforms in shared memory.

    A tile has 16, 32 or 64 points per side, whichever `tiling_of` estimates to be cheapest. Masks that span more than
    64 points are left to `whole_image`. Bytes of workspace: `workspace_bytes`.

    Leaves: a product loads its two factors, 16 bytes for 8 operations, although many filters use the same spectra.
    """
    _tiles(p, _multiply)


# ------------------------------------------------------------------------------------------------- tiles in registers

SIDE, DEPTH = 32, 4  # a warp computes SIDE x SIDE sums of one frequency, from DEPTH channels at a time
TOGETHER = 8  # frequencies, and warps, of a block: 64 bytes of each spectrum, side by side in memory
ROW = 2 * SIDE  # float32 of one channel of one frequency
PLANE = DEPTH * ROW + 8  # of one frequency; 8 more, so that the planes begin at different banks
EACH_M, EACH_N = 8, 4  # a lane's filters and tiles
PITCH = 2 * TOGETHER + 1  # of sums on their way out: an odd number of banks from one tile to the next
SHARED = 4 * SIDE * PITCH + 64  # more than TOGETHER * PLANE


@cuda.jit(device=True)
def load_spectra(part, x, at, live, channels, size):
    """Stage SIDE rows by DEPTH channels by TOGETHER frequencies, with 0 beyond the edges, by two loads per thread."""
    thread = np.uint32(cuda.threadIdx.x)
    pair, row, c = 2 * (thread & np.uint32(3)), np.uint32(thread >> 2) & np.uint32(31), np.uint32(thread >> 7)
    place = np.uint32(pair * np.uint32(PLANE) + c * np.uint32(ROW) + 2 * row)
    for i in range(2):
        inside = live and np.int32(c) + np.int32(2 * i) < channels
        a, b, d, e = load128(x, 2 * (at + i * 2 * size) if inside else 0)
        part[place], part[place + 1] = a if inside else np.float32(0), b if inside else np.float32(0)
        part[place + PLANE], part[place + PLANE + 1] = d if inside else np.float32(0), e if inside else np.float32(0)
        place += np.uint32(2 * ROW)


@cuda.jit
def matrix_kernel(x, w, out, size, channels, filters, group, each, images, across, down):
    left = cuda.shared.array(SHARED, np.float32, alignment=16)
    right = cuda.shared.array(SHARED, np.float32, alignment=16)
    real, imag = cuda.local.array((EACH_M, EACH_N), np.float32), cuda.local.array((EACH_M, EACH_N), np.float32)
    for i in range(EACH_M):
        for j in range(EACH_N):
            real[i, j] = 0
            imag[i, j] = 0
    # Blocks that share frequencies come one after another: filters first, then tiles, then groups.
    block = np.uint32(cuda.blockIdx.x)
    rest = np.uint32(block // np.uint32(across))
    part = np.uint32(rest // np.uint32(down))
    which = np.uint32(part // np.uint32(filters // each))
    k0, t0 = SIDE * np.int64(block - rest * np.uint32(across)), SIDE * np.int64(rest - part * np.uint32(down))
    g, f = np.int64(part - which * np.uint32(filters // each)), np.int64(which) * TOGETHER
    # Where this thread loads from: row number ``row`` of the square, and one of DEPTH channels.
    thread = np.uint32(cuda.threadIdx.x)
    row, c = np.int64(thread >> 2 & np.uint32(31)), np.int64(thread >> 7)
    first = f + 2 * np.int64(thread & np.uint32(3))
    mask_at = ((g * each + k0 + row) * group + c) * size + first
    tile_at = ((t0 + row) * channels + g * group + c) * size + first
    mask_live, tile_live = k0 + row < each, t0 + row < images
    lane, warp = thread & np.uint32(31), np.uint32(thread >> 5)
    m, n = np.uint32(2 * EACH_M * np.uint32(lane >> 3)), np.uint32(4 * (lane & np.uint32(7)))
    left_over = np.int32(group)
    while left_over > 0:
        load_spectra(left, w, mask_at, mask_live, left_over, size)
        load_spectra(right, x, tile_at, tile_live, left_over, size)
        cuda.syncthreads()
        at = np.uint32(warp * np.uint32(PLANE))
        for _ in range(DEPTH):
            multiply(left, right, at, m, n, real, imag)
            at += np.uint32(ROW)
        cuda.syncthreads()
        left_over, mask_at, tile_at = np.int32(left_over - DEPTH), mask_at + DEPTH * size, tile_at + DEPTH * size
    store_sums(left, out, real, imag, size, f, g * each + k0, t0, np.int64(each - k0), np.int64(images - t0), filters)


@cuda.jit(device=True)
def multiply(left, right, row, m, n, real, imag):
    """Add one channel's EACH_M x EACH_N products x conj(w), by 6 loads and 128 multiply-adds."""
    b0, b1 = load128(right, row + n), load128(right, row + n + np.uint32(SIDE))
    for i in range(EACH_M // 2):
        a = load128(left, row + m + 4 * i)
        add_products(a[0], a[1], b0, b1, 2 * i, real, imag)
        add_products(a[2], a[3], b0, b1, 2 * i + 1, real, imag)


@cuda.jit(device=True)
def add_products(u, v, b0, b1, i, real, imag):
    """Add to row i of the sums the products of four spectra with the conjugate of u + i v."""
    real[i, 0] = real[i, 0] + u * b0[0] + v * b0[1]
    imag[i, 0] = imag[i, 0] + u * b0[1] - v * b0[0]
    real[i, 1] = real[i, 1] + u * b0[2] + v * b0[3]
    imag[i, 1] = imag[i, 1] + u * b0[3] - v * b0[2]
    real[i, 2] = real[i, 2] + u * b1[0] + v * b1[1]
    imag[i, 2] = imag[i, 2] + u * b1[1] - v * b1[0]
    real[i, 3] = real[i, 3] + u * b1[2] + v * b1[3]
    imag[i, 3] = imag[i, 3] + u * b1[3] - v * b1[2]


@cuda.jit(device=True)
def place_of_sum(m, n):
    """Where in shared memory eight frequencies of a sum lie. Those of a warp's 32 sums begin in 32 different banks."""
    return (m * np.uint32(SIDE) + n) * np.uint32(PITCH) + (m & np.uint32(1)) * np.uint32(16) + (m >> 1) * np.uint32(33)


@cuda.jit(device=True)
def store_sums(part, out, real, imag, size, f, k0, t0, many_k, many_t, filters):
    """Store the sums, four filters at a time and through shared memory, so that 64 bytes are stored side by side."""
    lane, warp = np.uint32(cuda.threadIdx.x) & np.uint32(31), np.uint32(np.uint32(cuda.threadIdx.x) >> 5)
    m, n = np.uint32(lane >> 3), 2 * (lane & np.uint32(7))
    place = place_of_sum(m, n) + 2 * warp
    thread = np.uint32(cuda.threadIdx.x)
    pair, tile = 2 * (thread & np.uint32(3)), np.uint32(thread >> 2) & np.uint32(31)
    for i in range(EACH_M):
        for j in range(EACH_N):
            apart = np.uint32((j % 2 + j // 2 * (SIDE // 2)) * PITCH)
            part[place + apart], part[place + apart + 1] = real[i, j], imag[i, j]
        cuda.syncthreads()
        for h in range(2):
            row = np.uint32(np.uint32(thread >> 7) + np.uint32(2 * h))
            at = place_of_sum(row, tile) + 2 * pair
            k = np.int64(row) * EACH_M + i
            if k < many_k and np.int64(tile) < many_t:
                to = ((t0 + np.int64(tile)) * filters + k0 + k) * size + f + np.int64(pair)
                store128(out, 2 * to, (part[at], part[at + 1], part[at + 2], part[at + 3]))
        cuda.syncthreads()


def _multiply_matrices(a: Layer, tiling: Tiling, x: typing.Any, w: typing.Any, sums: typing.Any, stream) -> None:
    each, images = a.k // a.groups, tiling.count(a)
    across, down = blocks(each, SIDE), blocks(images, SIDE)
    grid = across * down * a.groups * (tiling.size // TOGETHER)
    if grid > MOST or min(each, images) < SIDE // 4:  # most of a warp's square would be empty
        _multiply(a, tiling, x, w, sums, stream)
        return
    views = [v.view(np.float32) for v in (x, w, sums)]
    sizes = tiling.size, a.c, a.k, a.c // a.groups, each, images, across, down
    matrix_kernel[grid, 32 * TOGETHER, stream](*views, *sizes)


@rung(matrix_kernel, *tiles.kernels)
def register_tiled(p):
    """The sum over channels is a product of matrices for each frequency: a lane computes 8 x 4 of it in registers.

    A block's eight warps compute eight frequencies, which lie side by side in memory. With fewer than 8 filters
    per group, or fewer than 8 tiles in all, the products are those of `tiles`.
    """
    _tiles(p, _multiply_matrices)


LADDER = (whole_image, tiles, register_tiled)
