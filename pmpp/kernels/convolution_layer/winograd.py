"""Convolution layers by Winograd's algorithm: 3 x 3 kernels with 2.25 or 4 times fewer multiplications.

Chapter: notebooks/68_winograd.ipynb.  PMPP 4e ch. 16.

The output is cut into tiles of m x m. A tile of the image, (m + 2) x (m + 2), and a kernel are transformed by a few
additions; then an element of the one times the same element of the other, summed over the channels, and transformed
back, gives the tile of the output. For each of the (m + 2)^2 elements the sums over channels are a matrix product.
m = 2 takes 16 multiplications for 4 outputs of 9 products each, m = 4 takes 36 for 16.

The price: transformed arrays in device memory, larger rounding errors (`tolerance`), and a NaN or an infinity in an
image spreads over every tile that reads it, since its transform subtracts them from each other. The kernel must be
3 x 3, stride and dilation 1 (`refuses`). Source: A. Lavin and S. Gray, "Fast algorithms for convolutional neural
networks" (2016); S. Winograd (1980).
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import Layer, finish, problem_of, workspace
from pmpp.kernels.convolution_layer.winograd_transforms import (
    bound,
    image_four,
    image_six,
    output_four,
    output_six,
    weights_four,
    weights_six,
)
from pmpp.kernels.matmul import batched as matmul_batched
from pmpp.runtime import device
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128, store128

reference = definition.reference


def refuses(layer: Layer) -> str | None:
    """Why this algorithm does not do a layer; None if it does."""
    if (layer.r, layer.s) != (3, 3):
        return f"w must have kernels of 3 x 3 for these transforms, had {layer.r} x {layer.s}"
    if layer.stride != (1, 1) or layer.dilation != (1, 1):
        return f"stride and dilation must be 1: tiles share their inputs, were {layer.stride} and {layer.dilation}"
    if layer.groups > 1 and layer.c == layer.groups:
        return "groups must have 2 channels or more each: with 1 no sum over channels pays for the transforms"
    if max(_workspace_elements(layer, 2, 1)) > definition.MOST:
        return f"x must have smaller images: the transform of one of {layer.h} x {layer.w} has 2^31 elements or more"
    return None


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """The shared layers that the algorithm can do, and some at the edges of tiles."""
    rng = np.random.default_rng(7) if rng is None else rng
    made = {}
    for name, (x, w, bias, *options) in definition.inputs(rng).items():
        if refuses(definition.layer_of(x.shape, w.shape, *options[:4])) is None:
            made[name] = x, w, bias, *options

    def add(name: str, x: tuple, w: tuple, *options: typing.Any) -> None:
        made[name] = *(rng.standard_normal(shape, dtype=np.float32) for shape in (x, w, w[:1])), *options

    add("whole tiles, no padding", (1, 8, 10, 10), (4, 8, 3, 3))
    add("a tile and one", (2, 9, 5, 5), (3, 9, 3, 3), 1, 1)
    add("a tile but one", (1, 2, 3, 8), (2, 2, 3, 3), 1, 1, 1, 1, True)
    add("one output", (1, 3, 3, 3), (2, 3, 3, 3))
    add("padding of a tile", (1, 2, 4, 4), (2, 2, 3, 3), 1, (5, 6))
    add("three groups", (2, 6, 4, 8), (9, 2, 3, 3), 1, 1, 1, 3)
    return made


def tolerance(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, m: int = 4) -> np.ndarray:
    """How far an element may be from `reference`: by default of F(4 x 4, 3 x 3), the less exact. See `bound`."""
    return bound(x, w, definition.layer_of(x.shape, w.shape, stride, padding, dilation, groups), m, bias)


cost = definition.cost

THREADS = 128  # of a block of a transform
f0 = np.float32(0)
AT_ONCE = 2**26  # elements of the transformed images, or of the sums, in a pass: 256 MiB fill any GPU


# ------------------------------------------------------------------------------------------------------- cut into tiles
# The transformed arrays, with f = 0 .. (m + 2)^2 - 1, batch b = f x groups + group, and tiles t of one image after the
# other: weights u[b, k, c], images v[b, c, t], sums s[b, k, t] = sum over c of u[b, k, c] v[b, c, t]. Channels are
# filled up to a multiple of 8, tiles to one of 4, with zeros, so that the products take 128-bit loads.


def _workspace_elements(layer: Layer, m: int, images: int) -> tuple[int, int, int]:
    """How many numbers the transformed weights, images and sums have for so many images at a time."""
    (batch, k, c), (_, _, tiles) = _shapes(layer, m, images)
    return batch * k * c, batch * c * tiles, batch * k * tiles


def _shapes(layer: Layer, m: int, images: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The shapes of the transformed weights and images."""
    tiles = images * -(-layer.p // m) * -(-layer.q // m)
    batch, channels = (m + 2) ** 2 * layer.groups, -(-layer.c // layer.groups // 8) * 8
    return (batch, layer.k // layer.groups, channels), (batch, channels, -(-tiles // 4) * 4)


def _images_at_once(layer: Layer, m: int) -> int:
    """Images in a pass, as evenly as can be: as many as `AT_ONCE` allows, and one at least."""
    one = max(_workspace_elements(layer, m, 1)[1:])
    passes = -(-layer.n // max(min(AT_ONCE // one, layer.n), 1))
    return -(-layer.n // passes)


@cuda.jit(device=True)
def divided(a, b):
    """Quotient and remainder, in 32 bits: a division of 64 takes three times as long."""
    return np.uint32(np.uint32(a) // np.uint32(b)), np.uint32(np.uint32(a) % np.uint32(b))


@cuda.jit(device=True)
def thread_place(sizes):
    """(group, row, column, where it lies, how far on the next product's lies): the element that this thread is for.

    ``sizes``: groups, rows and columns of such an array. Consecutive threads have consecutive elements; those beyond
    the last have a group that is not.
    """
    at = np.uint32(cuda.grid(1))
    rest, column = divided(at, sizes[2])
    group, row = divided(rest, sizes[1])
    return group, row, column, np.uint64(at), np.uint64(sizes[0] * sizes[1] * sizes[2])


@cuda.jit(device=True)
def tile_place(t, cut, m):
    """(image, row, column) of the first output of tile t, or of the last tile if there are not so many."""
    first, tiles, rows, columns, _, _ = cut
    rest, column = divided(min(np.int32(t), np.int32(tiles - 1)), columns)
    image, row = divided(rest, rows)
    return np.int32(first + image), np.int32(row * m), np.int32(column * m)


@cuda.jit(device=True)
def pixel(x, image, channel, row, column, wanted):
    """x there, or 0 outside of the image or where it is not wanted. It always reads, so that there is no branch."""
    value = x[image, channel, nearest(row, x.shape[2]), nearest(column, x.shape[3])]
    inside = row >= 0 and row < x.shape[2] and column >= 0 and column < x.shape[3]
    return value if inside and wanted else f0


@cuda.jit(device=True)
def nearest(i, n):
    """The place in range(n) that is nearest to i."""
    return np.uint32(min(max(np.int32(i), np.int32(0)), np.int32(n - 1)))


@cuda.jit(device=True)
def channel_place(x, group, c, groups):
    """(channel, whether there is one): the c-th of a group, whose number is filled up."""
    channels = np.uint32(np.uint32(x.shape[1]) // np.uint32(groups))
    return np.uint32(group * channels + min(np.uint32(c), np.uint32(channels - 1))), c < channels


def _transformed(p: definition.Problem, m: int, kernels: tuple, multiply: typing.Callable) -> typing.Any:
    """The output, in passes over some of the images. ``kernels`` transform the weights, the images and the sums."""
    layer, stream = p.layer, p.stream
    why = refuses(layer)
    if why:
        raise ValueError(why)
    if not p.out.size:
        return p.out
    images = _images_at_once(layer, m)
    (batch, k, c), (_, _, tiles) = _shapes(layer, m, images)
    u = workspace("the transformed weights", (batch * k * c,), stream=stream)
    v = workspace("the transformed images", (batch * c * tiles,), stream=stream)
    s = workspace("the sums over channels", (batch * k * tiles,), stream=stream)
    weights_kernel, image_kernel, sums_kernel = kernels
    g, rows, columns = layer.groups, -(-layer.p // m), -(-layer.q // m)
    weights_kernel[-(-g * k * c // THREADS), THREADS, stream](p.w, u, (g, k, c))
    for first in range(0, layer.n, images):
        cut = first, min(images, layer.n - first) * rows * columns, rows, columns, *layer.padding
        image_kernel[-(-g * c * tiles // THREADS), THREADS, stream](p.x, v, (g, c, tiles), cut)
        multiply(u, v, s, (batch, batch, k, tiles, c), stream)
        sums_kernel[-(-g * k * tiles // THREADS), THREADS, stream](s, p.bias, p.out, (g, k, tiles), cut, p.relu)
    return p.out


# ------------------------------------------------------------------------------------------------------ F(2 x 2, 3 x 3)


@cuda.jit
def small_weights_kernel(w, u, sizes):
    g, h, values = cuda.local.array(9, np.float32), cuda.local.array(12, np.float32), cuda.local.array(16, np.float32)
    group, k, c, at, step = thread_place(sizes)
    if group < sizes[0]:
        for i in range(9):
            g[i] = w[np.uint32(group * sizes[1] + k), c, i // 3, i % 3] if c < w.shape[1] else f0
        for i in range(3):
            weights_four(g, i, 3, h, i, 3)  # down the columns: 3 x 3 become 4 x 3
        for i in range(4):
            weights_four(h, 3 * i, 1, values, 4 * i, 1)  # along the rows: 4 x 4
            for j in range(4):
                u[at] = values[4 * i + j]
                at += step


@cuda.jit
def small_image_kernel(x, v, sizes, cut):
    d = cuda.local.array(16, np.float32)
    group, c, t, at, step = thread_place(sizes)
    if group < sizes[0]:
        channel, there = channel_place(x, group, c, sizes[0])
        image, row, column = tile_place(t, cut, 2)
        for i in range(4):
            for j in range(4):
                place = row + i - cut[4], column + j - cut[5]
                d[4 * i + j] = pixel(x, image, channel, place[0], place[1], there and t < cut[1])
        for i in range(4):
            image_four(d, i, 4)  # down the columns
        for i in range(4):
            image_four(d, 4 * i, 1)  # and along the rows
            for j in range(4):
                v[at] = d[4 * i + j]
                at += step


@cuda.jit
def product_kernel(u, v, s, sizes):
    batch, k, t, at, _ = thread_place((sizes[0], sizes[2], sizes[3]))
    if batch < sizes[0]:
        total = f0
        from_u, from_v = (np.int64(batch) * sizes[2] + k) * sizes[4], np.int64(batch) * sizes[4] * sizes[3] + t
        c = 0
        while c < sizes[4]:
            total += u[from_u + c] * v[from_v + c * sizes[3]]
            c += 1
        s[at] = total


@cuda.jit
def small_sums_kernel(s, bias, out, sizes, cut, relu):
    m = cuda.local.array(16, np.float32)
    group, k, t, at, step = thread_place(sizes)
    if group < sizes[0] and t < cut[1]:
        image, row, column = tile_place(t, cut, 2)
        for i in range(4):
            for j in range(4):
                m[4 * i + j] = s[at]
                at += step
        for i in range(4):
            output_four(m, i, 4)  # down the columns: 4 x 4 become 2 x 4
        k = np.uint32(group * sizes[1] + k)
        for i in range(2):
            output_four(m, 4 * i, 1)  # along the rows: 2 x 2
            for j in range(2):
                if row + i < out.shape[2] and column + j < out.shape[3]:
                    out[image, k, np.uint32(row + i), np.uint32(column + j)] = finish(m[4 * i + j], bias, k, relu)


def _product(u: typing.Any, v: typing.Any, s: typing.Any, sizes: tuple, stream: typing.Any) -> None:
    product_kernel[-(-s.size // THREADS), THREADS, stream](u, v, s, sizes)


@rung(small_weights_kernel, small_image_kernel, product_kernel, small_sums_kernel)
def small_tiles(
    x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0
) -> typing.Any:
    """F(2 x 2, 3 x 3): 16 multiplications for 4 outputs that take 36, and additions before and after.

    Args:
        x: float32 images, shape (N, C, H, W), in C order as all arrays.
        w: float32 kernels, shape (K, C / groups, 3, 3).
        bias: float32, shape (K,), or None for none.
        padding: zeros around an image, one number or (rows, columns). stride, dilation: 1. groups: with 2 channels each
            or more, or 1.
        relu: whether what is negative becomes 0.
        out: a float32 device array of shape (N, K, P, Q), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. Raises TypeError or ValueError that names the argument at
    fault, and MemoryError if there is no room for the transformed arrays: then nothing has been written. What is not
    finite in x makes every output of the tiles that read it inf or NaN. Source: Lavin and Gray (2016), section 4.1.

    Leaves: each product is fetched from memory for one multiply-add, 8 bytes for 2 operations.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    kernels = small_weights_kernel, small_image_kernel, small_sums_kernel
    return _transformed(p, 2, kernels, _product)


def _batched_product(u: typing.Any, v: typing.Any, s: typing.Any, sizes: tuple, stream: typing.Any) -> None:
    matmul_batched.launch(u, v, matmul_batched.no_bias(), False, s, sizes, stream)


@rung(small_weights_kernel, small_image_kernel, small_sums_kernel)
def batched(
    x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0
) -> typing.Any:
    """The 16 sums over channels are 16 matrix products, with tiles in registers: `pmpp.kernels.matmul.batched`.

    Arguments, result and errors as in `small_tiles`.

    Leaves: the transformed arrays are 4 times as large as image and output, and are written and read.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    kernels = small_weights_kernel, small_image_kernel, small_sums_kernel
    return _transformed(p, 2, kernels, _batched_product)


# ------------------------------------------------------------------------------------------------------ F(4 x 4, 3 x 3)


@cuda.jit
def large_weights_kernel(w, u, sizes):
    g, h, values = cuda.local.array(9, np.float32), cuda.local.array(18, np.float32), cuda.local.array(36, np.float32)
    group, k, c, at, step = thread_place(sizes)
    if group < sizes[0]:
        for i in range(9):
            g[i] = w[np.uint32(group * sizes[1] + k), c, i // 3, i % 3] if c < w.shape[1] else f0
        for i in range(3):
            weights_six(g, i, 3, h, i, 3)
        for i in range(6):
            weights_six(h, 3 * i, 1, values, 6 * i, 1)
            for j in range(6):
                u[at] = values[6 * i + j]
                at += step


@cuda.jit
def large_image_kernel(x, v, sizes, cut):
    d = cuda.local.array(36, np.float32)
    group, c, t, at, step = thread_place(sizes)
    if group < sizes[0]:
        channel, there = channel_place(x, group, c, sizes[0])
        image, row, column = tile_place(t, cut, 4)
        for i in range(6):
            for j in range(6):
                place = row + i - cut[4], column + j - cut[5]
                d[6 * i + j] = pixel(x, image, channel, place[0], place[1], there and t < cut[1])
        for i in range(6):
            image_six(d, i, 6)
        for i in range(6):
            image_six(d, 6 * i, 1)
            for j in range(6):
                v[at] = d[6 * i + j]
                at += step


@cuda.jit
def large_sums_kernel(s, bias, out, sizes, cut, relu):
    m = cuda.local.array(36, np.float32)
    group, k, t, at, step = thread_place(sizes)
    if group < sizes[0] and t < cut[1]:
        image, row, column = tile_place(t, cut, 4)
        for i in range(6):
            for j in range(6):
                m[6 * i + j] = s[at]
                at += step
        for i in range(6):
            output_six(m, i, 6)
        k = np.uint32(group * sizes[1] + k)
        for i in range(4):
            output_six(m, 6 * i, 1)
            for j in range(4):
                if row + i < out.shape[2] and column + j < out.shape[3]:
                    out[image, k, np.uint32(row + i), np.uint32(column + j)] = finish(m[6 * i + j], bias, k, relu)


@rung(large_weights_kernel, large_image_kernel, large_sums_kernel)
def large_tiles(
    x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0
) -> typing.Any:
    """F(4 x 4, 3 x 3): 36 multiplications for 16 outputs that take 144; transformed arrays 2.25 times the image.

    Arguments, result and errors as in `small_tiles`. The bound on the rounding error is some 8 times larger.

    Leaves: a thread reads six neighbours one by one, and a warp's lanes lie 4 elements apart.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    kernels = large_weights_kernel, large_image_kernel, large_sums_kernel
    return _transformed(p, 4, kernels, _batched_product)


# -------------------------------------------------------------------------------------- F(4 x 4, 3 x 3), 128-bit access


@cuda.jit
def wide_image_kernel(x, v, sizes, cut):
    d = cuda.local.array(36, np.float32)
    group, c, t, at, step = thread_place(sizes)
    if group < sizes[0]:
        channel, there = channel_place(x, group, c, sizes[0])
        image, row, column = tile_place(t, cut, 4)
        plane = np.uint32(np.uint32(image) * np.uint32(x.shape[1]) + channel)
        for i in range(6):
            y = np.int32(row + i - cut[4])
            wanted = there and t < cut[1] and y >= 0 and y < x.shape[2]
            quad = load128(x, (np.int64(plane) * x.shape[2] + nearest(y, x.shape[2])) * x.shape[3] + column)
            d[6 * i] = pixel(x, image, channel, y, column - 1, wanted)
            for j in range(4):
                d[6 * i + 1 + j] = quad[j] if wanted else f0
            d[6 * i + 5] = pixel(x, image, channel, y, column + 4, wanted)
        for i in range(6):
            image_six(d, i, 6)
        for i in range(6):
            image_six(d, 6 * i, 1)
            for j in range(6):
                v[at] = d[6 * i + j]
                at += step


@cuda.jit
def wide_sums_kernel(s, bias, out, sizes, cut, relu):
    m = cuda.local.array(36, np.float32)
    group, k, t, at, step = thread_place(sizes)
    if group < sizes[0] and t < cut[1]:
        image, row, column = tile_place(t, cut, 4)
        for i in range(6):
            for j in range(6):
                m[6 * i + j] = s[at]
                at += step
        for i in range(6):
            output_six(m, i, 6)
        k = np.uint32(group * sizes[1] + k)
        begin = ((np.int64(image) * out.shape[1] + k) * out.shape[2] + row) * out.shape[3] + column
        for i in range(4):
            output_six(m, 6 * i, 1)
            a, b = finish(m[6 * i], bias, k, relu), finish(m[6 * i + 1], bias, k, relu)
            c, d = finish(m[6 * i + 2], bias, k, relu), finish(m[6 * i + 3], bias, k, relu)
            if row + i < out.shape[2]:
                store128(out, begin + i * out.shape[3], (a, b, c, d))


@rung(large_weights_kernel, large_image_kernel, wide_image_kernel, large_sums_kernel, wide_sums_kernel)
def vectorised(
    x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0
) -> typing.Any:
    """Four of a row's six neighbours come in one load, four outputs go in one store, where rows are whole vectors.

    Arguments, result and errors as in `small_tiles`. The loads need rows of x of a multiple of 4 elements, from an
    address of 16 bytes, and a padding of 1 column, so that a tile's second column begins a vector; the stores need such
    rows of ``out``.

    Leaves: sums are written and read again that a kernel for products and output transform would keep on the chip.
    """
    p = problem_of(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    return _transformed(p, 4, _wide_kernels(p), _batched_product)


def _wide_kernels(p: definition.Problem) -> tuple:
    """The transforms with 128-bit access where rows allow it."""
    wide_in = p.layer.padding[1] == 1 and p.layer.w % 4 == 0 and device.address(p.x) % 16 == 0
    wide_out = p.layer.q % 4 == 0 and device.address(p.out) % 16 == 0
    image_kernel = wide_image_kernel if wide_in else large_image_kernel
    return large_weights_kernel, image_kernel, wide_sums_kernel if wide_out else large_sums_kernel


def workspace_bytes(layer: Layer) -> int:
    """Bytes that the last rung takes for the transformed weights and images and the sums; 0 if it refuses the layer."""
    if refuses(layer) or not math.prod(layer.shape):
        return 0
    return 4 * sum(_workspace_elements(layer, 4, _images_at_once(layer, 4)))


LADDER = (small_tiles, batched, large_tiles, vectorised)
