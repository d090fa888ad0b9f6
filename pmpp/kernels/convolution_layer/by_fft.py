"""Convolution by FFT: a product of spectra for each frequency, instead of a sum over the mask for each pixel.

Chapter: notebooks/70_convolution_by_fft.ipynb.  PMPP 4e ch. 16.

A correlation in space is a product in frequency, out = X conj(W), so the size of the mask drops out of the arithmetic:
what is left is the sum over channels, one complex product of matrices for each frequency, and the transforms. It pays
for large masks. What it costs is memory for all spectra, and masks that are padded to the size of a transform. The
ladder first transforms whole images, then overlapping tiles of them, then does the products as matrix products should
be done. A stride thins out what has been computed in full; dilated masks are transformed with their zeros; groups are
separate sums. Two planes share a transform: neighbouring channels, or where their number is odd the last one and the
first of the next tile or image. So an infinity or a NaN spoils its tile and the one beside it, which may be another
image's, and the error of a plane is relative to the larger of the two.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.by_fft_spectra import (
    POINTS,
    SIDES,
    THREADS,
    image_spectra_kernel,
    images_kernel,
    mask_spectra_kernel,
)
from pmpp.kernels.convolution_layer.definition import MOST, Layer, Problem, finish, problem_of, workspace
from pmpp.kernels.fft import relative_error
from pmpp.kernels.fft.butterflies import first_radix, twiddles
from pmpp.kernels.fft.real import irfft, rfft
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128, store128

BLOCK = 256  # threads a block

reference = definition.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Those of all layers, and larger masks on images of several tiles, one for each size of tile."""
    made = definition.inputs(rng)
    rng = np.random.default_rng(55) if rng is None else rng

    def add(name: str, x: tuple, w: tuple, *options: typing.Any) -> None:
        made[name] = *(rng.standard_normal(shape, dtype=np.float32) for shape in (x, w)), None, *options

    add("5x5 on several tiles", (1, 3, 21, 27), (3, 3, 5, 5), 1, 2)
    add("11x11, s2", (1, 2, 29, 40), (1, 2, 11, 11), 2, 5)
    add("17x17", (1, 1, 20, 36), (1, 1, 17, 17), 1, 8)
    add("8 tiles and 35 filters", (4, 1, 12, 30), (35, 1, 2, 2))
    add("two groups of many filters", (1, 4, 29, 30), (18, 2, 2, 2), 2, 0, 1, 2)
    return made


def tolerance(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False) -> np.ndarray:
    """How far an element may be from `reference`, if planes that share a transform are of a size: see `error_bound`."""
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
    """From ``products``, the sum over channels of |x| |w| in the 2-norm, and ``sums``, the same with w in the 1-norm.

    With e the relative error of a transform in the 2-norm (`pmpp.kernels.fft.relative_error`, two stages more for
    taking the
    two planes apart), the product of two spectra is off by 2 e |X| |W|, and a sum of C complex products of its own
    rounding by (C + 3) 2^-23.5 more. By the inequality of Cauchy and Schwarz and Parseval's theorem no element of the
    inverse transform is then further off than that times the sum of |x| |w|. The inverse transform itself adds e
    times the 2-norm of its result, which is at most the sum of |x| (2-norm) |w| (1-norm).
    """
    points = 4 * max(max(SIDES) ** 2, math.prod(_extents(a)))
    e = relative_error(points)
    return (2 * e + (a.c // a.groups + 3) * 2.0**-23.5) * products + e * 1.01 * sums


cost = definition.cost


# ------------------------------------------------------------------------------------------------------- whole images


def _extents(a: Layer) -> tuple[int, int]:
    """Rows and columns of a transform of a whole image with its padding: powers of two, the last at least 2."""
    rows, columns = a.h + 2 * a.padding[0], a.w + 2 * a.padding[1]
    return 1 << (rows - 1).bit_length(), max(1 << (columns - 1).bit_length(), 2)


@cuda.jit
def enlarge_kernel(x, out, padding, step):
    i = cuda.grid(1)
    if i < out.size:
        line, rows, columns = i // out.shape[2], out.shape[1], out.shape[2]
        plane = line // rows
        row, column = line - plane * rows - padding[0], i - line * columns - padding[1]
        r, s = row // step[0], column // step[1]
        inside = row >= 0 and column >= 0 and r < x.shape[1] and s < x.shape[2]
        there = inside and r * step[0] == row and s * step[1] == column
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
        out[n, k, p, q] = finish(y[plane, p * stride[0], q * stride[1]], bias, k, relu)


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def whole_image_workspace(a: Layer) -> int:
    """Bytes that `whole_image` needs beside its arguments: padded planes, and spectra before and after each axis."""
    rows, columns = _extents(a)
    planes = a.n * a.c + a.k * a.c // a.groups + a.n * a.k
    real, half = 4 * rows * columns, 8 * rows * (columns // 2 + 1)
    most = max(a.n * a.c, a.k * a.c // a.groups, a.n * a.k)
    return planes * half + most * (2 * real + half)


def _refuses_whole_images(a: Layer) -> str | None:
    rows, columns = _extents(a)
    if max(a.n * a.c, a.k * a.c // a.groups, a.n * a.k) * rows * columns > MOST:
        return f"x must be smaller for transforms of whole images, {rows} x {columns}: take fewer a call"
    return None


def _whole_image(p: Problem) -> None:
    a = p.layer
    rows, columns = _extents(a)
    masks, size = a.k * a.c // a.groups, rows * (columns // 2 + 1)
    if why := _refuses_whole_images(a):
        raise ValueError(why)
    # All of it is asked for at once and given back to the pool, so that what follows finds room or nothing is begun.
    workspace("spectra of whole images", (whole_image_workspace(a),), stream=p.stream, dtype=np.uint8)
    spectra = []
    for planes, source, padding, step in (
        (a.n * a.c, p.x.reshape(a.n * a.c, a.h, a.w), a.padding, (1, 1)),
        (masks, p.w.reshape(masks, a.r, a.s), (0, 0), a.dilation),
    ):
        padded = workspace("padded planes", (planes, rows, columns), stream=p.stream)
        enlarge_kernel[_blocks(padded.size), BLOCK, p.stream](source, padded, padding, step)
        spectra.append(rfft(padded, 2, stream=p.stream).reshape(-1))
    sums = workspace("spectra of the result", (a.n * a.k, rows, columns // 2 + 1), stream=p.stream, dtype=np.complex64)
    sizes = size, a.c, a.k, a.c // a.groups, a.k // a.groups
    products_kernel[_blocks(sums.size), BLOCK, p.stream](*spectra, sums.reshape(-1), *sizes)
    crop_kernel[_blocks(p.out.size), BLOCK, p.stream](irfft(sums, 2, stream=p.stream), p.out, p.bias, a.stride, p.relu)


@rung(enlarge_kernel, products_kernel, crop_kernel)
def whole_image(
    x: typing.Any,
    w: typing.Any,
    bias: typing.Any = None,
    stride: typing.Any = 1,
    padding: typing.Any = 0,
    dilation: typing.Any = 1,
    groups: int = 1,
    relu: bool = False,
    *,
    out: typing.Any = None,
    stream: typing.Any = 0,
) -> typing.Any:
    """Images and masks, padded to a power of two, are transformed; a frequency has a sum of products over channels.

    Args:
        x: images (N, C, H, W). w: masks (K, C / groups, R, S). bias: (K,) or None. All float32, contiguous.
        stride, padding, dilation: an integer, or two for rows and columns, as in PyTorch's Conv2d.
        groups: as many separate layers share the channels and the filters. relu: whether negative results become 0.
        out: a device array (N, K, P, Q) for the result, apart from all others, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. Raises TypeError or ValueError that names the argument at
    fault, and MemoryError with the bytes that were wanted (`whole_image_workspace`) before anything is written.
    Source: M. Mathieu, M. Henaff and Y. LeCun, Fast training of convolutional networks through FFTs (ICLR 2014).

    Leaves: a mask of 3 x 3 is padded to the size of the image, and an image of 142 x 142 to 256 x 256.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size:
        _whole_image(p)
    return p.out


# ------------------------------------------------------------------------------------------------------------- tiles


class Tiling(typing.NamedTuple):
    """``side`` x ``side`` points a tile, of which ``valid`` are output; ``tiles`` down and across an image."""

    side: int
    valid: tuple[int, int]
    tiles: tuple[int, int]

    @property
    def size(self) -> int:
        """Frequencies of a half spectrum."""
        return self.side * (self.side // 2 + 1)

    def count(self, a: Layer) -> int:
        """Tiles of all images."""
        return a.n * math.prod(self.tiles)


def tiling_of(a: Layer, side: int | None = None) -> Tiling | None:
    """The cheapest tiling, or that of a given side; None if the mask fits no tile.

    A tile of n points gives n - r + 1 outputs, for a mask that spans r: what is further on has wrapped around.
    Estimated in bytes: 24 for each value of a spectrum (written, read, and transformed), and 8 operations for each
    product, of which a GPU does about ten in the time of a byte.
    """
    reach = [d * (extent - 1) + 1 for d, extent in zip(a.dilation, (a.r, a.s), strict=True)]
    full = [(places - 1) * step + 1 for places, step in zip((a.p, a.q), a.stride, strict=True)]
    best, least = None, math.inf
    for n in SIDES if side is None else (side,):
        if max(reach) > n:
            continue
        valid = n - reach[0] + 1, n - reach[1] + 1
        one = Tiling(n, valid, (-(-full[0] // valid[0]), -(-full[1] // valid[1])))
        images, group = one.count(a), a.c // a.groups
        estimate = one.size * (24 * (images * (a.c + a.k) + a.k * group) + 0.8 * images * a.k * group)
        if estimate < least:
            best, least = one, estimate
    return best


def refuses(layer: Layer) -> str | None:
    """Why `tiles` and `register_tiled` cannot do a layer: there would be too many spectra. None if they can."""
    tiling = tiling_of(layer)
    if tiling is None:
        return _refuses_whole_images(layer)
    most = max(tiling.count(layer) * max(layer.c, layer.k), layer.k * layer.c // layer.groups)
    return f"x must make fewer than 2^31 tiles, made {most}: take fewer images a call" if most > MOST else None


def workspace_bytes(a: Layer) -> int:
    """Bytes that `tiles` and `register_tiled` need beside their arguments: the spectra of images, masks and results."""
    tiling = tiling_of(a)
    if tiling is None:
        return whole_image_workspace(a)
    return 8 * tiling.size * (tiling.count(a) * (a.c + a.k) + a.k * a.c // a.groups)


def _tiles(p: Problem, multiply: typing.Callable) -> None:
    """Spectra of tiles and masks, ``multiply(layer, tiling, x, w, out, stream)``, and back."""
    a, tiling = p.layer, tiling_of(p.layer)
    if tiling is None:
        _whole_image(p)
        return
    n, images, masks = tiling.side, tiling.count(a), a.k * a.c // a.groups
    planes = images * a.c, masks, images * a.k
    if why := refuses(a):
        raise ValueError(why)
    spectra = workspace("spectra of tiles", (sum(planes) * tiling.size,), stream=p.stream, dtype=np.complex64)
    ends = planes[0] * tiling.size, (planes[0] + masks) * tiling.size
    x, w, sums = spectra[: ends[0]], spectra[ends[0] : ends[1]], spectra[ends[1] :]
    table, radix = twiddles(n), first_radix(n)
    blocks = [-(-count // (2 * POINTS // n**2)) for count in planes]
    image_spectra_kernel[blocks[0], THREADS, p.stream](
        p.x.reshape(-1, a.h, a.w), x, table, n, radix, tiling.tiles, tiling.valid, a.padding, a.c, planes[0]
    )
    flat = p.w.reshape(masks, a.r, a.s)
    mask_spectra_kernel[blocks[1], THREADS, p.stream](flat, w, table, n, radix, a.dilation, masks)
    multiply(a, tiling, x, w, sums, p.stream)
    images_kernel[blocks[2], THREADS, p.stream](
        sums, p.out.reshape(-1, a.p, a.q), p.bias, table, n, radix, tiling.tiles, tiling.valid, a.stride, a.k,
        planes[2],        np.float32(1 / n**2), p.relu,
    )  # fmt: skip


def _multiply(a: Layer, tiling: Tiling, x: typing.Any, w: typing.Any, sums: typing.Any, stream: typing.Any) -> None:
    sizes = tiling.size, a.c, a.k, a.c // a.groups, a.k // a.groups
    products_kernel[_blocks(sums.size), BLOCK, stream](x, w, sums, *sizes)


@rung(image_spectra_kernel, mask_spectra_kernel, products_kernel, images_kernel)
def tiles(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """Images are cut into overlapping tiles (overlap-save), each of which a block transforms in shared memory.

    Arguments, result and errors as in `whole_image`. A tile has 16, 32 or 64 points a side, whichever `tiling_of`
    estimates to be cheapest; masks that span more than 64 are done as in `whole_image`. Bytes: `workspace_bytes`.

    Leaves: a product loads its two factors, 16 bytes for 8 operations, though 64 filters multiply the same spectra.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size:
        _tiles(p, _multiply)
    return p.out


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
    """Two loads a thread: ``SIDE`` rows by ``DEPTH`` channels by ``TOGETHER`` frequencies, and 0 beyond the edges."""
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
    """One channel: EACH_M x EACH_N products x conj(w), by 6 loads and 128 multiply-adds."""
    b0, b1 = load128(right, row + n), load128(right, row + n + np.uint32(SIDE))
    for i in range(EACH_M // 2):
        a = load128(left, row + m + 4 * i)
        add_products(a[0], a[1], b0, b1, 2 * i, real, imag)
        add_products(a[2], a[3], b0, b1, 2 * i + 1, real, imag)


@cuda.jit(device=True)
def add_products(u, v, b0, b1, i, real, imag):
    """Row i of the sums: those of (u, v), conjugated, with four spectra."""
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
    """Where eight frequencies of a sum are kept: a warp's four rows of eight tiles each begin in 32 different banks."""
    return (m * np.uint32(SIDE) + n) * np.uint32(PITCH) + (m & np.uint32(1)) * np.uint32(16) + (m >> 1) * np.uint32(33)


@cuda.jit(device=True)
def store_sums(part, out, real, imag, size, f, k0, t0, many_k, many_t, filters):
    """Through shared memory, four filters at a time, so that 64 bytes of a spectrum are stored side by side."""
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
    across, down = -(-each // SIDE), -(-images // SIDE)
    blocks = across * down * a.groups * (tiling.size // TOGETHER)
    if blocks > MOST or min(each, images) < SIDE // 4:  # most of a warp's square would be empty
        _multiply(a, tiling, x, w, sums, stream)
        return
    views = [v.view(np.float32) for v in (x, w, sums)]
    sizes = tiling.size, a.c, a.k, a.c // a.groups, each, images, across, down
    matrix_kernel[blocks, 32 * TOGETHER, stream](*views, *sizes)


@rung(image_spectra_kernel, mask_spectra_kernel, matrix_kernel, products_kernel, images_kernel)
def register_tiled(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """The sum over channels is a product of matrices for each frequency: a lane computes 8 x 4 of it in registers.

    Arguments, result, errors and bytes as in `tiles`. Eight frequencies are done by the eight warps of a block, since
    these lie side by side in memory. With fewer than 8 filters a group, or 8 tiles in all, this is `tiles`.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size:
        _tiles(p, _multiply_matrices)
    return p.out


LADDER = (whole_image, tiles, register_tiled)
