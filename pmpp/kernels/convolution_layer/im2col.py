"""Convolution by im2col: the window of x that an output sees becomes a column of a matrix; the layer, a product.

Chapter: notebooks/64_im2col.ipynb.  PMPP 4e ch. 16.

The columns are a matrix with a column for each output pixel and a row for each c, r and s. An image's output is then
W (K x C R S) times the columns (C R S x P Q), and the kernels of the chapter on matrix multiplication compute it. The
price is memory: an element of x is written up to R S times, once for each place of the kernel that covers it, and every
copy is read again. For 1 x 1 kernels with neither stride nor padding the columns are x itself and cost nothing.

The algorithm cannot compute a layer of which a single image has more than 2^31 - 1 elements in its columns (`refuses`).
The rungs raise ValueError for such a layer.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.convolution_layer import definition
from pmpp.kernels.convolution_layer.definition import MOST, Layer, Problem, finish, window_of, workspace
from pmpp.kernels.matmul import batched as matmul_batched
from pmpp.kernels.matmul import fused
from pmpp.kernels.matmul import ladder as matmul
from pmpp.kernels.matmul.fitted import SPLITS, Plan
from pmpp.runtime import device
from pmpp.runtime.rung import rung

BLOCK = 256  # threads per block, in kernels whose threads share nothing: any multiple of 32 is right
# The most bytes of columns at a time, unless one image needs more: more images in a launch fill a GPU better, and take
# more memory.
BUDGET = 2**30

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
    add("1x1, long sums of few pixels", (1, 200, 1, 2), (2, 200, 1, 1), 1, 0, 1, 1, True)
    return made


tolerance = definition.tolerance
cost = definition.cost
arguments = definition.arguments


def refuses(layer: Layer) -> str | None:
    """Why this algorithm cannot compute a layer; None if the columns of an image have fewer than 2^31 elements."""
    if _rows(layer) * layer.p * layer.q > MOST:
        return f"the columns of one image would have {_rows(layer) * layer.p * layer.q:,} elements, beyond 2^31 - 1"
    return None


def workspace_bytes(layer: Layer) -> int:
    """Bytes that `fitted` takes: for columns, and for the parts of sums that several blocks share."""
    rows, pixels = layer.groups * layer.terms, layer.p * layer.q
    images = layer.n if is_product(layer) else images_of(layer, rows)
    if not layer.n:
        return 0
    plan = plan_of(layer, images)
    partial = plan.parts * images * layer.k * round_up(pixels, 4) if plan.parts > 1 else 0
    return 4 * (partial + (0 if is_product(layer) else images * rows * pixels))


# ------------------------------------------------------------------------------------------------ how it is laid out


def _depth(layer: Layer) -> int:
    """Rows of a group's columns, with the rows of zeros that make them a multiple of the product's depth of a tile."""
    return layer.terms if is_product(layer) else round_up(layer.terms, matmul_batched.DEPTH)


def _rows(layer: Layer) -> int:
    return layer.groups * _depth(layer)


def is_product(layer: Layer) -> bool:
    """Whether x is the matrix of columns already: one tap, no stride and no padding."""
    return (layer.r, layer.s, layer.stride, layer.padding) == (1, 1, (1, 1), (0, 0))


def images_at_a_time(layer: Layer) -> int:
    """How many images have their columns in memory at once: as many as fit into BUDGET bytes, but at least one.

    All of them if x is the matrix of columns already.
    """
    return layer.n if is_product(layer) else images_of(layer, _rows(layer))


def images_of(layer: Layer, rows: int) -> int:
    """How many images, of so many rows of columns each, fit into BUDGET bytes, but at least one."""
    each = rows * layer.p * layer.q
    return max(1, min(layer.n, BUDGET // (4 * each), MOST // each))


def plan_of(layer: Layer, images: int) -> Plan:
    """The plan by which `fitted` multiplies the columns of so many images. It depends on the extents alone."""
    alone = fused.Steps((1,), (0,), (0,), (0,))
    extents = images * layer.groups, layer.k // layer.groups, layer.p * layer.q, layer.terms
    shape = fused.Shape(*extents, (0, 0), (0, 0), (0, 0), alone)
    return fused.plan_for(shape, device.limits()["multiprocessors"], SPLITS, fused.ANY_TILE)


def _copies(layer: Layer) -> int:
    """How many copies of the weights a product needs: one for all images, or with groups one for each image."""
    return images_at_a_time(layer) if layer.groups > 1 else 1


class ColumnSizes(typing.NamedTuple):
    """What `columns_kernel` is told of a layer: int32, named as in `Layer`."""

    first_image: int
    c: int
    h: int
    w: int
    p: int
    q: int
    r: int
    s: int
    groups: int
    depth: int  # rows of a group's columns


@cuda.jit
def columns_kernel(x, columns, images, sizes, window):
    """A thread for each channel and output pixel writes the R S rows of that channel in the pixel's column.

    Neighbouring threads read neighbours in x and write neighbours in a row of the columns. Arrays are flat, ``sizes``
    is a `ColumnSizes`, and all numbers have 32 bits.
    """
    i = np.uint32(cuda.grid(1))
    pixels = np.uint32(sizes.p * sizes.q)
    plane = np.uint32(i // pixels)
    n = np.uint32(plane // np.uint32(sizes.c))
    if n < images:
        pixel, c = np.uint32(i - plane * pixels), np.uint32(plane - n * sizes.c)
        p = np.uint32(pixel // np.uint32(sizes.q))
        top, left = (
            np.int32(p * window.stride.rows - window.padding.rows),
            np.int32((pixel - p * sizes.q) * window.stride.columns - window.padding.columns),
        )
        share = np.uint32(sizes.c // sizes.groups)
        group = np.uint32(c // share)
        row = np.uint32((n * sizes.groups + group) * sizes.depth + (c - group * share) * sizes.r * sizes.s)
        source = np.int32((((sizes.first_image + n) * sizes.c + c) * sizes.h + top) * sizes.w + left)
        target, r = np.uint32(row * pixels + pixel), np.int32(0)
        while r < sizes.r:
            tall = np.uint32(top) < np.uint32(sizes.h)  # a negative row is a large one as an unsigned number
            at, z, s = source, left, np.int32(0)
            while s < sizes.s:
                columns[target] = x[np.uint32(at)] if tall and np.uint32(z) < np.uint32(sizes.w) else np.float32(0)
                target, s = np.uint32(target + pixels), np.int32(s + 1)
                at, z = np.int32(at + window.dilation.columns), np.int32(z + window.dilation.columns)
            source, top, r = (
                np.int32(source + window.dilation.rows * sizes.w),
                np.int32(top + window.dilation.rows),
                np.int32(r + 1),
            )
        if c == group * share + share - 1:
            end = np.uint32((n * sizes.groups + group + 1) * sizes.depth * pixels)
            while target < end:
                columns[target] = np.float32(0)
                target = np.uint32(target + pixels)


@cuda.jit
def finish_kernel(out, bias, relu):
    """Add the bias and apply ReLU, where the product has not done so itself."""
    i = np.uint32(cuda.grid(1))
    pixels = np.uint32(out.shape[2])
    plane = np.uint32(i // pixels)
    n = np.uint32(plane // np.uint32(out.shape[1]))
    if n < out.shape[0]:
        k, pixel = np.uint32(plane - n * out.shape[1]), np.uint32(i - plane * pixels)
        out[n, k, pixel] = finish(out[n, k, pixel], bias, k, relu)


def fill(x: typing.Any, columns: typing.Any, image: int, layer: Layer, depth: int, stream: typing.Any = 0) -> None:
    """Write the columns of some images of ``x``, from number ``image`` on.

    ``columns``: of shape (images, groups x depth, P Q), with depth rows for a group, at least `Layer.terms`.
    """
    images, a = columns.shape[0], layer
    sizes = ColumnSizes(*map(np.int32, (image, a.c, a.h, a.w, a.p, a.q, a.r, a.s, a.groups, depth)))
    grid = blocks(images * a.c * a.p * a.q, BLOCK)
    columns_kernel[grid, BLOCK, stream](x.reshape(-1), columns.reshape(-1), np.int32(images), sizes, window_of(a))


def _finish(p: Problem) -> None:
    if p.bias.size or p.relu:
        out = p.result.reshape(p.layer.n, p.layer.k, p.layer.p * p.layer.q)
        finish_kernel[blocks(out.size, BLOCK), BLOCK, p.stream](out, p.bias, p.relu)


def _check(layer: Layer) -> None:
    why = refuses(layer)
    if why:
        raise ValueError(f"x is too large for im2col: {why}")


# ------------------------------------------------------------------------------------------------------ image by image


@rung(columns_kernel, finish_kernel, *matmul.prefetched.kernels)
def per_image(p):
    """Write the columns of one image at a time, and multiply them by `pmpp.kernels.matmul.prefetched`.

    Source: Chellapilla, Puri and Simard (2006); PMPP 4e section 16.4.

    Leaves: at least two launches for each image and group, and a product that is small for a large GPU.
    """
    a = p.layer
    _check(a)
    columns = workspace("the columns of an image", (1, a.groups * a.terms, a.p * a.q), stream=p.stream)
    weights = p.w.reshape(a.groups, a.k // a.groups, a.terms)
    products = p.result.reshape(a.n * a.groups, a.k // a.groups, a.p * a.q)
    for image in range(a.n):
        fill(p.x, columns, image, a, a.terms, p.stream)
        for g in range(a.groups):
            part = columns[0, g * a.terms : (g + 1) * a.terms]
            matmul.prefetched(weights[g], part, out=products[image * a.groups + g], stream=p.stream)
    _finish(p)


# ------------------------------------------------------------------------------------------------ many images at a time


@cuda.jit
def lay_out_kernel(w, laid):
    """Write the rows of w, each filled up with zeros, as many times over as there is room in ``laid``."""
    i = np.uint32(cuda.grid(1))
    row = np.uint32(i // np.uint32(laid.shape[1]))
    if row < laid.shape[0]:
        column = np.uint32(i - row * laid.shape[1])
        source = np.uint32(row % np.uint32(w.shape[0]))
        laid[row, column] = w[source, column] if column < w.shape[1] else np.float32(0)


def _weights(p: Problem, depth: int, copies: int) -> typing.Any:
    """The weights as (copies x groups) matrices of a group's filters by depth: w itself where it has that form."""
    a = p.layer
    if copies == 1 and depth == a.terms:
        return p.w.reshape(a.groups, a.k // a.groups, depth)
    laid = workspace("the weights", (copies * a.k, depth), stream=p.stream)
    lay_out_kernel[blocks(laid.size, BLOCK), BLOCK, p.stream](p.w.reshape(a.k, a.terms), laid)
    return laid.reshape(copies * a.groups, a.k // a.groups, depth)


def _multiply(p: Problem, weights: typing.Any, columns: typing.Any, products: typing.Any) -> None:
    """Compute the outputs of some images. Bias and ReLU are included unless there are groups."""
    a, count = p.layer, products.shape[0]
    columns = columns.reshape(count * a.groups, columns.shape[1] // a.groups, columns.shape[2])
    products = products.reshape(count * a.groups, a.k // a.groups, products.shape[2])
    if a.groups == 1:
        bias = p.bias if p.bias.size else None
        matmul_batched.multiply(weights, columns, bias, p.relu, out=products, stream=p.stream)
    else:
        matmul_batched.multiply(weights[: count * a.groups], columns, out=products, stream=p.stream)


@rung(columns_kernel, lay_out_kernel, finish_kernel, matmul_batched.kernel_for)
def batched(p):
    """Write the columns of many images, as many as BUDGET bytes hold, and compute all their products in one launch.

    Columns and weights are filled up with zeros to a depth of whole tiles. The product adds the bias and applies ReLU
    when it stores; with groups a kernel of its own does.

    Leaves: for a 1 x 1 kernel the columns are a copy of x.
    """
    a = p.layer
    _check(a)
    images, depth, pixels = images_at_a_time(a), _depth(a), a.p * a.q
    columns = workspace("the columns", (images, _rows(a), pixels), stream=p.stream)
    weights = _weights(p, depth, _copies(a))
    products = p.result.reshape(a.n, a.k, pixels)
    for first in range(0, a.n, images):
        count = min(images, a.n - first)
        part = columns[:count]
        fill(p.x, part, first, a, depth, p.stream)
        _multiply(p, weights[: a.groups * _copies(a)], part, products[first : first + count])
    if a.groups > 1:
        _finish(p)


# --------------------------------------------------------------------------------------------------------- no columns


@rung(*batched.kernels)
def without_copies(p):
    """For a kernel of 1 x 1 with neither stride nor padding, x itself is the matrix of columns.

    All other layers are left to `batched`.

    Leaves: where the width of an output is no multiple of four, numbers are read and written one by one, four apart in
    a warp. And all tiles are of 64 or 128: a layer of 8 filters computes 64, and one of few tiles leaves a large GPU
    idle.
    """
    a = p.layer
    if not is_product(a):
        batched.launch(p)
        return
    _check(a)
    columns, products = p.x.reshape(a.n, a.c, a.p * a.q), p.result.reshape(a.n, a.k, a.p * a.q)
    _multiply(p, _weights(p, a.terms, _copies(a)), columns, products)
    if a.groups > 1:
        _finish(p)


# ------------------------------------------------------------------------------------------- a product of any shape


@rung(columns_kernel, fused.product_kernel, fused.sum_kernel)
def fitted(p):
    """The product is `pmpp.kernels.matmul.fused.packed`: the shape chooses its tile, and whether blocks share a sum.

    It takes columns of any depth and width as they are, and one copy of the weights for all images, with groups or
    without. So nothing is filled up with zeros, and the columns are all the workspace. The bias is a number for each
    row of a product: a residual that is repeated along it.
    """
    a = p.layer
    _check(a)
    product, pixels = is_product(a), a.p * a.q
    images = a.n if product else images_of(a, a.groups * a.terms)
    columns = None if product else workspace("the columns", (images, a.groups * a.terms, pixels), stream=p.stream)
    weights = p.w.reshape(a.groups, a.k // a.groups, a.terms)
    bias = p.bias.reshape(a.groups, a.k // a.groups, 1) if p.bias.size else None
    source, products = p.x.reshape(a.n, a.c, a.h * a.w), p.result.reshape(a.n, a.groups, a.k // a.groups, pixels)
    for first in range(0, a.n, images):
        count = min(images, a.n - first)
        part = source if columns is None else columns[:count]
        if columns is not None:
            fill(p.x, part, first, a, a.terms, p.stream)
        part = part.reshape(count, a.groups, a.terms, pixels)
        options = {"residual": bias, "activation": "relu" if p.relu else None}
        fused.packed(weights, part, **options, out=products[first : first + count], stream=p.stream)


LADDER = (per_image, batched, without_copies, fitted)
