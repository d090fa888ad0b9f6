"""Convolution by im2col: what each output sees of x becomes a column of a matrix, and the layer a matrix product.

Chapter: notebooks/64_im2col.ipynb.  PMPP 4e ch. 16.

With a column for each output pixel and a row for each c, r and s, the layer is W (K x C R S) times columns
(C R S x P Q), for each image, and all that chapter 12 did for matrix products serves again. The price is memory: every
element of x is written as often as a kernel's places see it, up to R S times, and read once more. For 1 x 1
kernels the columns are x itself, and there is nothing to pay.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels import matmul
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import MOST, Layer, Problem, finish, problem_of, workspace
from pmpp.kernels.matmul import batched as matmul_batched
from pmpp.runtime.rung import rung

BLOCK = 256  # threads a block
BUDGET = 2**30  # bytes of columns at a time, unless one image needs more

reference = definition.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Shared awkward layers, the smaller ones since a tile of a product is 64 x 64, and some of whole tiles."""
    made = definition.inputs(rng)
    large = (
        "3x3 p1",
        "7x7 s2 p3",
        "kernel as large as the image",
        "two filters a channel",
        "many filters",
        "many channels",
    )
    made = {name: made[name] for name in made if name not in (*large, "dilated", "a column", "1x1", "depthwise, ReLU")}
    rng = np.random.default_rng(8) if rng is None else rng

    def add(name: str, x: tuple, w: tuple, *options: typing.Any) -> None:
        values = (rng.standard_normal(shape, dtype=np.float32) for shape in (x, w, w[:1]))
        made[name] = *values, *options

    add("1x1, whole tiles", (2, 8, 4, 6), (9, 8, 1, 1), 1, 0, 1, 1, True)
    add("1x1, two groups", (2, 16, 2, 4), (6, 8, 1, 1), 1, 0, 1, 2)
    add("3x3, whole vectors", (1, 8, 4, 8), (5, 8, 3, 3), 1, 1)
    return made


tolerance = definition.tolerance
cost = definition.cost


def refuses(layer: Layer) -> str | None:
    """Why this algorithm cannot do a layer: where the columns of a single image are beyond 32-bit indices."""
    if _rows(layer) * layer.p * layer.q > MOST:
        return f"the columns of one image would have {_rows(layer) * layer.p * layer.q:,} elements, beyond 2^31 - 1"
    return None


def workspace_bytes(layer: Layer) -> int:
    """Bytes of columns, and of weights that are laid out anew for a product: those of `without_copies`."""
    weights = _copies(layer) * layer.k * _depth(layer) if _lays_out(layer) else 0
    columns = 0 if is_product(layer) else images_at_a_time(layer) * _rows(layer) * layer.p * layer.q
    return 4 * (columns + weights)


# ------------------------------------------------------------------------------------------------ how it is laid out


def _depth(layer: Layer) -> int:
    """Rows of a group's columns. Zeros fill them up to a multiple of the tile's depth."""
    depth = matmul_batched.DEPTH
    return layer.terms if is_product(layer) else -(-layer.terms // depth) * depth


def _rows(layer: Layer) -> int:
    return layer.groups * _depth(layer)


def is_product(layer: Layer) -> bool:
    """Whether x is the matrix of columns already: one tap, no stride and no padding."""
    return (layer.r, layer.s, layer.stride, layer.padding) == (1, 1, (1, 1), (0, 0))


def images_at_a_time(layer: Layer) -> int:
    """As many as have columns of BUDGET bytes, but at least one; for a product as it stands all."""
    if is_product(layer):
        return layer.n
    each = _rows(layer) * layer.p * layer.q
    return max(1, min(layer.n, BUDGET // (4 * each), MOST // each))


def _copies(layer: Layer) -> int:
    """How often the weights are wanted: once for all images, or with groups once for each image of a launch."""
    return images_at_a_time(layer) if layer.groups > 1 else 1


def _lays_out(layer: Layer) -> bool:
    return _copies(layer) > 1 or _depth(layer) != layer.terms


@cuda.jit
def columns_kernel(x, columns, images, shape, window):
    """A thread for each channel and pixel writes that pixel's rows: neighbours in x and in the columns.

    Arrays are flat, and all numbers have 32 bits: ``shape`` is (first image, C, H, W, P, Q, R, S, groups, depth).
    """
    i = np.uint32(cuda.grid(1))
    pixels = np.uint32(shape[4] * shape[5])
    plane = np.uint32(i // pixels)
    n = np.uint32(plane // np.uint32(shape[1]))
    if n < images:
        pixel, c = np.uint32(i - plane * pixels), np.uint32(plane - n * shape[1])
        p = np.uint32(pixel // np.uint32(shape[5]))
        top, left = np.int32(p * window[0] - window[2]), np.int32((pixel - p * shape[5]) * window[1] - window[3])
        share = np.uint32(shape[1] // shape[8])
        group = np.uint32(c // share)
        row = np.uint32((n * shape[8] + group) * shape[9] + (c - group * share) * shape[6] * shape[7])
        source = np.int32((((shape[0] + n) * shape[1] + c) * shape[2] + top) * shape[3] + left)
        target, r = np.uint32(row * pixels + pixel), np.int32(0)
        while r < shape[6]:
            tall = np.uint32(top) < np.uint32(shape[2])  # as an unsigned number a negative one is large
            at, z, s = source, left, np.int32(0)
            while s < shape[7]:
                columns[target] = x[np.uint32(at)] if tall and np.uint32(z) < np.uint32(shape[3]) else np.float32(0)
                target, s = np.uint32(target + pixels), np.int32(s + 1)
                at, z = np.int32(at + window[5]), np.int32(z + window[5])
            source, top, r = np.int32(source + window[4] * shape[3]), np.int32(top + window[4]), np.int32(r + 1)
        if c == group * share + share - 1:
            end = np.uint32((n * shape[8] + group + 1) * shape[9] * pixels)
            while target < end:
                columns[target] = np.float32(0)
                target = np.uint32(target + pixels)


@cuda.jit
def finish_kernel(out, bias, relu):
    """Bias and ReLU, where the product had no epilogue."""
    i = np.uint32(cuda.grid(1))
    pixels = np.uint32(out.shape[2])
    plane = np.uint32(i // pixels)
    n = np.uint32(plane // np.uint32(out.shape[1]))
    if n < out.shape[0]:
        k, pixel = np.uint32(plane - n * out.shape[1]), np.uint32(i - plane * pixels)
        out[n, k, pixel] = finish(out[n, k, pixel], bias, k, relu)


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def fill(x: typing.Any, columns: typing.Any, image: int, layer: Layer, depth: int, stream: typing.Any = 0) -> None:
    """Into ``columns``, of shape (images, groups x depth, P Q): those of x from that image on."""
    images, a = columns.shape[0], layer
    shape = image, a.c, a.h, a.w, a.p, a.q, a.r, a.s, a.groups, depth
    numbers = (tuple(map(np.int32, numbers)) for numbers in (shape, (*a.stride, *a.padding, *a.dilation)))
    blocks = _blocks(images * a.c * a.p * a.q)
    columns_kernel[blocks, BLOCK, stream](x.reshape(-1), columns.reshape(-1), np.int32(images), *numbers)


def _finish(p: Problem) -> None:
    if p.bias.size or p.relu:
        out = p.out.reshape(p.layer.n, p.layer.k, p.layer.p * p.layer.q)
        finish_kernel[_blocks(out.size), BLOCK, p.stream](out, p.bias, p.relu)


def _checked(*arguments: typing.Any) -> Problem:
    p = problem_of(*arguments)
    why = refuses(p.layer)
    if why:
        raise ValueError(f"x is too large for im2col: {why}")
    return p


# ------------------------------------------------------------------------------------------------------ image by image


@rung(columns_kernel, finish_kernel)
def per_image(
    x: typing.Any,
    w: typing.Any,
    bias: typing.Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    relu: bool = False,
    *,
    out: typing.Any = None,
    stream: typing.Any = 0,
) -> typing.Any:
    """The columns of one image at a time, and `pmpp.kernels.matmul.prefetched` for each.

    Args:
        x: images of shape (N, C, H, W), float32, contiguous.
        w: filters of shape (K, C / groups, R, S), float32, contiguous.
        bias: a number for each filter, float32 of shape (K,), or None.
        stride, padding, dilation: integers, or pairs for rows and columns. Around the image lie zeros.
        groups: into how many layers side by side the channels and the filters are dealt.
        relu: whether negative results become 0. A NaN stays one.
        out: a device array for the result, apart from the others, or None to allocate one.
        stream: the stream to work on.

    Returns a device array (N, K, P, Q), see `pmpp.kernels.convolution_layer.definition.Layer`, without waiting for the
    work to be done.
    The zeros of the padding are multiplied: an infinite or NaN weight makes NaN wherever it meets one, as in cuDNN.
    Raises TypeError or ValueError that names the argument at fault, and MemoryError that says how many bytes of columns
    were wanted, before anything is written. Source: Chellapilla, Puri and Simard (2006); PMPP 4e section 16.4.

    Leaves: two launches for each image and group, and a product that is small for a large GPU.
    """
    p = _checked(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    a = p.layer
    if not p.out.size:
        return p.out
    columns = workspace("the columns of an image", (1, a.groups * a.terms, a.p * a.q), stream=p.stream)
    weights = p.w.reshape(a.groups, a.k // a.groups, a.terms)
    products = p.out.reshape(a.n * a.groups, a.k // a.groups, a.p * a.q)
    for image in range(a.n):
        fill(p.x, columns, image, a, a.terms, p.stream)
        for g in range(a.groups):
            part = columns[0, g * a.terms : (g + 1) * a.terms]
            matmul.prefetched(weights[g], part, out=products[image * a.groups + g], stream=p.stream)
    _finish(p)
    return p.out


# ------------------------------------------------------------------------------------------------ many images at a time


@cuda.jit
def lay_out_kernel(w, laid):
    """The rows of w, filled up with zeros, again and again."""
    i = np.uint32(cuda.grid(1))
    row = np.uint32(i // np.uint32(laid.shape[1]))
    if row < laid.shape[0]:
        column = np.uint32(i - row * laid.shape[1])
        source = np.uint32(row % np.uint32(w.shape[0]))
        laid[row, column] = w[source, column] if column < w.shape[1] else np.float32(0)


def _weights(p: Problem, depth: int, copies: int) -> typing.Any:
    """The weights for a product, (copies x groups, filters of a group, depth): w itself where it will do."""
    a = p.layer
    if copies == 1 and depth == a.terms:
        return p.w.reshape(a.groups, a.k // a.groups, depth)
    laid = workspace("the weights", (copies * a.k, depth), stream=p.stream)
    lay_out_kernel[_blocks(laid.size), BLOCK, p.stream](p.w.reshape(a.k, a.terms), laid)
    return laid.reshape(copies * a.groups, a.k // a.groups, depth)


def _batched(p: Problem) -> None:
    a = p.layer
    images, depth, pixels = images_at_a_time(a), _depth(a), a.p * a.q
    columns = workspace("the columns", (images, _rows(a), pixels), stream=p.stream)
    weights = _weights(p, depth, _copies(a))
    products = p.out.reshape(a.n, a.k, pixels)
    for first in range(0, a.n, images):
        count = min(images, a.n - first)
        part = columns[:count]
        fill(p.x, part, first, a, depth, p.stream)
        _multiply(p, weights[: a.groups * _copies(a)], part, products[first : first + count])
    if a.groups > 1:
        _finish(p)


def _multiply(p: Problem, weights: typing.Any, columns: typing.Any, products: typing.Any) -> None:
    """The products of some images, with bias and ReLU unless groups make them many matrices."""
    a, count = p.layer, products.shape[0]
    columns = columns.reshape(count * a.groups, columns.shape[1] // a.groups, columns.shape[2])
    products = products.reshape(count * a.groups, a.k // a.groups, products.shape[2])
    if a.groups == 1:
        bias = p.bias if p.bias.size else None
        matmul_batched.multiply(weights, columns, bias, p.relu, out=products, stream=p.stream)
    else:
        matmul_batched.multiply(weights[: count * a.groups], columns, out=products, stream=p.stream)


@rung(columns_kernel, lay_out_kernel, finish_kernel)
def batched(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """The columns of many images, as many as BUDGET bytes hold, and one launch for all their products.

    Arguments, result and errors as in `per_image`. Zeros fill the columns and the weights up to a depth of whole tiles.
    Bias and ReLU are done where a product is stored, but with groups by a kernel of their own.

    Leaves: where a kernel is 1 x 1 the columns are a copy of x.
    """
    p = _checked(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    if p.out.size:
        _batched(p)
    return p.out


# --------------------------------------------------------------------------------------------------------- no columns


@rung(columns_kernel, lay_out_kernel, finish_kernel)
def without_copies(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1, relu=False, *, out=None, stream=0):
    """A kernel of 1 x 1 with neither stride nor padding multiplies x as it is; all other layers are `batched`.

    Arguments, result and errors as in `per_image`.
    """
    p = _checked(x, w, bias, stride, padding, dilation, groups, relu, out, stream)
    a = p.layer
    if not p.out.size:
        return p.out
    if not is_product(a):
        _batched(p)
        return p.out
    shape = a.n, a.c, a.p * a.q
    _multiply(p, _weights(p, a.terms, _copies(a)), p.x.reshape(*shape), p.out.reshape(a.n, a.k, a.p * a.q))
    if a.groups > 1:
        _finish(p)
    return p.out


LADDER = (per_image, batched, without_copies)
