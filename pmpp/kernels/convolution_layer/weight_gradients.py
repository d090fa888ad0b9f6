"""Gradient of a convolution layer with respect to its weights: a sum over all places that a weight was used at.

Chapter: notebooks/76_convolution_gradients.ipynb.  PMPP 4e ch. 16.

Weight w[k, c, r, s] takes part in every output of filter k, in all images. So its gradient is the sum

    dw[k, c, r, s] = the sum over n, p, q of dy[n, k, p, q] x[n, c, p u + r d - a, q v + s e - b]

with stride (u, v), padding (a, b) and dilation (d, e); outside the image x is 0. It is a product of matrices, dy as
K x N P Q and the columns of im2col, transposed, as N P Q x C R S. There are as many multiply-adds as in the layer
itself, and so for large layers arithmetic is the bound. But the shape is another: few results, of very long sums. A
tile of results for each block leaves most of a GPU idle. So the sums are divided among blocks, the parts are kept in
workspace, and a second kernel adds them up in a fixed order. Then two runs give the same bits; with atomic additions
they would not.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks, round_up
from pmpp.kernels.convolution_layer import depthwise, implicit, weight_strips, winograd, winograd_adjoints
from pmpp.kernels.convolution_layer.definition import (
    MOST,
    Layer,
    layer_of,
    no_elements,
    window_of,
    workspace,
    workspaces,
)
from pmpp.kernels.convolution_layer.direct_tiles import numbers_of
from pmpp.kernels.convolution_layer.implicit_gather import value_at
from pmpp.kernels.convolution_layer.weight_tiles import (
    FILTERS,
    GATHERED,
    OUTSIDE,
    STEP,
    VECTORS_OF_DY,
    VECTORS_OF_X,
    Places,
    Product,
    kernel_for,
)
from pmpp.kernels.convolution_layer.winograd import nearest, pixel, thread_place, tile_place
from pmpp.kernels.convolution_layer.winograd_adjoints import gradient_six, weights_back_six
from pmpp.kernels.matmul import batched as matmul_batched
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_pair
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128

BLOCK = 256  # threads per block, in kernels whose threads share nothing: any multiple of 32 is right


def reference(dy, x, kernel_size, stride=1, padding=0, dilation=1, groups=1) -> np.ndarray:
    """The gradient in float64, by the chain rule: each output passes its gradient on to the weights that it used."""
    a = _layer(dy.shape, x.shape, kernel_size, stride, padding, dilation, groups)
    dw = np.zeros((a.k, a.c // a.groups, a.r, a.s))
    for n, k, p, q in np.ndindex(dy.shape):
        group = k // (a.k // a.groups)
        for c, r, s in np.ndindex(dw.shape[1:]):
            row = p * a.stride.rows + r * a.dilation.rows - a.padding.rows
            column = q * a.stride.columns + s * a.dilation.columns - a.padding.columns
            if 0 <= row < a.h and 0 <= column < a.w:
                dw[k, c, r, s] += np.float64(dy[n, k, p, q]) * np.float64(x[n, group * dw.shape[1] + c, row, column])
    return dw


def _layer(dy: tuple, x: tuple, kernel_size, stride=1, padding=0, dilation=1, groups=1) -> Layer:
    kernel = as_pair("kernel_size", kernel_size, 1)
    return layer_of(x, (dy[1], x[1] // as_integer("groups", groups, 1), *kernel), stride, padding, dilation, groups)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward layers: ``(dy, x, kernel_size, stride, padding, dilation, groups)``."""
    rng = np.random.default_rng(77) if rng is None else rng
    made: dict[str, tuple] = {}

    def add(name: str, x: tuple, filters: int, kernel: typing.Any, *options: typing.Any) -> None:
        dy = _layer((0, filters), x, kernel, *options).shape
        made[name] = *(rng.standard_normal(one, dtype=np.float32) for one in (dy, x)), kernel, *options

    add("one", (1, 1, 1, 1), 1, 1)
    add("3x3 p1", (2, 3, 4, 6), 4, 3, 1, 1)
    add("3x3 p1, odd extents", (1, 5, 5, 7), 6, 3, 1, 1)
    add("1x1", (2, 6, 4, 4), 9, 1)
    add("1x1, more than a tile", (1, 3, 2, 2), 65, 1)
    add("1x1 s2", (1, 4, 7, 8), 5, 1, 2)
    add("7x7 s2 p3", (1, 2, 7, 8), 3, 7, 2, 3)
    add("3x2 s2x1 p1x0 d1x2", (1, 2, 9, 8), 3, (3, 2), (2, 1), (1, 0), (1, 2))
    add("two groups", (1, 4, 6, 5), 6, 3, 1, 1, 1, 2)
    add("depthwise", (2, 3, 3, 4), 3, 3, 1, 1, 1, 3)
    add("two filters a channel, 5x5 s2", (1, 3, 8, 9), 6, 5, 2, 2, 1, 3)
    add("padding beyond the kernel", (1, 1, 2, 1), 2, 2, 1, 3)
    add("kernel as large as the image", (2, 3, 5, 4), 3, (5, 4))
    add("a row", (1, 2, 1, 37), 2, (1, 5), 1, (0, 2))
    add("no images", (0, 3, 4, 4), 2, 3)
    x = np.zeros((1, 1, 4, 6), np.float32)
    x[0, 0, 2, 4] = 1  # dw is a part of dy, with rows and columns in reverse
    return made | {"shift": (np.arange(-12, 12, dtype=np.float32).reshape(1, 1, 4, 6), x, 3, 1, 1)}


def cost(n: int, c: int, h: int, w: int, k: int, r: int = 3, s: int = 3, stride=1, padding=0, dilation=1, groups=1):
    """The arithmetic of the layer itself; dy and x read once, and the gradient written once."""
    return cost_of(layer_of((n, c, h, w), (k, c // groups, r, s), stride, padding, dilation, groups))


def cost_of(layer: Layer) -> Cost:
    """`cost` of a `Layer`: it moves the same three arrays as the layer itself."""
    return layer.cost


def tolerance(dy, x, kernel_size, stride=1, padding=0, dilation=1, groups=1) -> np.ndarray:
    """The largest difference from `reference` that is allowed for each element of a float32 result.

    A sum of n products, here N P Q, in any order, is off by at most n 2^-24 times the sum of the terms' sizes
    (Higham, "Accuracy and stability of numerical algorithms", 2e, section 3.1), and second-order terms are covered by
    two roundings more. Sums in parts and parts of parts, as here, stay far below that. What Winograd's algorithm may
    compute (`is_tiled`) is allowed its own bound, which is larger.
    """
    size = reference(abs(dy), abs(x), kernel_size, stride, padding, dilation, groups)
    return allowed(dy, x, size, _layer(dy.shape, x.shape, kernel_size, stride, padding, dilation, groups))


def allowed(dy: typing.Any, x: typing.Any, size: typing.Any, a: Layer, xp: typing.Any = np) -> typing.Any:
    """`tolerance` from ``size``, the sums of the terms' sizes; arrays of ``xp``, which is NumPy or CuPy."""
    most = (a.n * a.p * a.q + 2) * 2.0**-24 * size + 2.0**-149
    return xp.maximum(most, winograd_adjoints.bound(dy, x, a, xp)) if is_tiled(a) else most


def is_tiled(a: Layer) -> bool:
    """Whether Winograd's algorithm can compute a layer's gradient, as `winograd.refuses` says of the layer itself."""
    return bool(a.n) and winograd.refuses(a) is None and implicit.refuses(a) is None


def arguments(dy, x, kernel_size, stride=1, padding=0, dilation=1, groups=1, *, out=None, stream=0) -> Problem:
    """Compute the gradient of a loss with respect to a convolution layer's weights from that of its output.

    Args:
        dy: the gradient with respect to the output, of shape (N, K, P, Q), float32, contiguous, of at most 2^31 - 1
            elements, like ``x`` and ``out``.
        x: the layer's input, of shape (N, C, H, W), float32, contiguous.
        kernel_size: rows and columns of a filter, (R, S), or one integer for both.
        stride, padding, dilation: integers below 2^31, or pairs of them for rows and columns, as of the layer.
        groups: into how many separate layers the channels and the filters are divided.
        out: a float32 device array of shape (K, C / groups, R, S), apart from the others in memory, or None to
            allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It is overwritten, not added to; without images it is 0.
    Where zeros around the image meet an infinite or NaN element of dy the gradient may be NaN. Raises TypeError or
    ValueError that names the argument at fault, what it was and what is accepted, and MemoryError if there is no room
    for a rung's workspace.

    >>> from pmpp.kernels.convolution_layer import weight_gradients
    >>> dy, x = np.ones((1, 1, 2, 2), np.float32), np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    >>> weight_gradients.naive(dy, x, 2).copy_to_host()
    array([[[[ 8., 12.],
             [20., 24.]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes=np.float32, ndim=4, stream=stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=4, stream=stream)
    kernel, parts = as_pair("kernel_size", kernel_size, 1), as_integer("groups", groups, 1)
    for name, what, count in (("dy", "filters", dy.shape[1]), ("x", "channels", x.shape[1])):
        if count < 1:
            raise ValueError(f"{name} must have {what}, had shape {dy.shape if name == 'dy' else x.shape}")
        if count % parts:
            raise ValueError(f"groups must divide the {count} {what} of {name}, was {groups!r}")
    layer = layer_of(x.shape, (dy.shape[1], x.shape[1] // parts, *kernel), stride, padding, dilation, parts)
    if dy.shape != layer.shape:
        numbers = f"stride={stride!r}, padding={padding!r}, dilation={dilation!r}"
        raise ValueError(f"dy must have shape {layer.shape} for kernel_size={kernel_size!r}, {numbers}, had {dy.shape}")
    shape = layer.k, layer.c // layer.groups, layer.r, layer.s
    for name, one in (("dy", dy.shape), ("x", x.shape), ("kernel_size", shape)):
        if math.prod(one) > MOST:
            raise ValueError(f"{name} must make an array of at most 2^31 - 1 elements, makes one of shape {one}")
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart={"dy": dy, "x": x}, stream=stream)
    return Problem(out, stream=stream, dy=dy, x=x, layer=layer)


# ------------------------------------------------------------------------------------------------ one thread per weight


@cuda.jit
def naive_kernel(dy, x, dw, stride, padding, dilation, groups):
    i = cuda.grid(1)
    if i < dw.size:
        s, r = i % dw.shape[3], i // dw.shape[3] % dw.shape[2]
        c, k = i // dw.shape[3] // dw.shape[2] % dw.shape[1], i // dw.shape[3] // dw.shape[2] // dw.shape[1]
        channel = k // (dw.shape[0] // groups) * dw.shape[1] + c
        total = np.float32(0)
        for n in range(dy.shape[0]):
            for p in range(dy.shape[2]):
                row = p * stride.rows + r * dilation.rows - padding.rows
                if 0 <= row < x.shape[2]:
                    for q in range(dy.shape[3]):
                        column = q * stride.columns + s * dilation.columns - padding.columns
                        if 0 <= column < x.shape[3]:
                            total += dy[n, k, p, q] * x[n, channel, row, column]
        dw[k, c, r, s] = total


@rung(naive_kernel)
def naive(p):
    """A thread for each weight goes through all places that the weight was used at.

    Leaves: few threads, each with a long sum: LeNet's first layer has 150 weights, which all pixels of all images use.
    """
    a = p.layer
    geometry = a.stride, a.padding, a.dilation, a.groups
    naive_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.dy, p.x, p.result, *geometry)


# ------------------------------------------------------------------------------------------------- a block for each tap

TAPS = 9  # of a filter, that a block sums up at a time: for those of 3 x 3 dy is read once
LEAST = 8 * BLOCK  # places in a part of a sum
RESIDENT = 8  # blocks of BLOCK threads on a multiprocessor


class Filters(typing.NamedTuple):
    """What `reduced_kernel` is told of the weights: uint32."""

    k: int
    group_filters: int
    group_channels: int
    s: int
    window: int  # R S
    chunks: int  # of TAPS taps
    span: int  # places in a part of a sum
    pitch: int  # elements from one part of the sums to the next
    dilation_rows: int
    dilation_columns: int


@cuda.jit
def reduced_kernel(dy, x, target, places, filters):
    partial = cuda.shared.array(32, np.float32)
    totals = cuda.local.array(TAPS, np.float32)
    offsets = cuda.local.array(TAPS, np.uint32)
    down, right = cuda.local.array(TAPS, np.uint32), cuda.local.array(TAPS, np.uint32)
    block, thread = np.uint32(cuda.blockIdx.x), np.uint32(cuda.threadIdx.x)
    chunk, block = np.uint32(block % filters.chunks), np.uint32(block // filters.chunks)
    c, block = np.uint32(block % filters.group_channels), np.uint32(block // filters.group_channels)
    k, part = np.uint32(block % filters.k), np.uint32(block // filters.k)
    channel = np.uint32(np.uint32(k // filters.group_filters) * filters.group_channels + c)
    for t in range(TAPS):
        tap = np.uint32(chunk * TAPS + t)
        r, s = np.uint32(tap // filters.s), np.uint32(tap % filters.s)
        down[t] = np.uint32(r * filters.dilation_rows) if tap < filters.window else OUTSIDE
        right[t] = np.uint32(s * filters.dilation_columns)
        offsets[t] = np.uint32(down[t] * places.w + right[t])
        totals[t] = 0
    i = np.uint32(part * filters.span + thread)
    end = min(np.uint32(part * filters.span + filters.span), places.places)
    while i < end:
        n = np.uint32(i // places.pixels)
        pixel = np.uint32(i - n * places.pixels)
        p = np.uint32(pixel // places.q)
        top = np.uint32(p * places.stride_rows - places.padding_rows)
        left = np.uint32((pixel - p * places.q) * places.stride_columns - places.padding_columns)
        at = np.uint32(n * places.size + channel * places.plane + top * places.w + left)
        gradient = dy[np.uint32((n * filters.k + k) * places.pixels + pixel)]
        for t in range(TAPS):
            value = value_at(x, top + down[t], left + right[t], np.uint32(at + offsets[t]), places)
            totals[t] += gradient * value
        i = np.uint32(i + BLOCK)
    for t in range(TAPS):
        total = block_sum(totals[t], partial)
        tap = np.uint32(chunk * TAPS + t)
        if thread == 0 and tap < filters.window:
            weight = np.uint32((k * filters.group_channels + c) * filters.window + tap)
            target[np.uint64(part) * np.uint64(filters.pitch) + weight] = total
        cuda.syncthreads()  # all have read the warps' sums before they are overwritten


HEIGHT = 32  # threads that share the parts of a sum
MANY = 16  # parts: with fewer, a thread that adds up four sums alone takes less time,
ENOUGH = 2**17  # and also with more, if there are so many sums that such threads fill a GPU


@cuda.jit
def add_parts_kernel(target, dw, parts):
    """A block adds up the parts of 32 sums: each warp every 32nd part, then one warp the warps' results."""
    tile = cuda.shared.array((HEIGHT, 32), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    i, pitch = np.int64(cuda.blockIdx.x) * 32 + tx, target.size // parts
    total = np.float32(0)
    if i < dw.size:
        part = np.int64(ty)
        while part < parts:
            total += target[part * pitch + i]
            part += HEIGHT
    tile[ty, tx] = total
    cuda.syncthreads()
    if ty == 0 and i < dw.size:
        for other in range(1, HEIGHT):
            total += tile[other, tx]
        dw[i] = total


def _add_parts(target: typing.Any, dw: typing.Any, parts: int, stream: typing.Any) -> None:
    """Add up the parts of the sums, which lie one after another in target, always in the same order."""
    if (parts > MANY and dw.size < ENOUGH) or target.size // parts % 4:
        add_parts_kernel[blocks(dw.size, 32), (32, HEIGHT), stream](target, dw, parts)
    else:
        one = np.uint32(1)
        grid = blocks(dw.size, 4 * BLOCK)
        implicit.sum_kernel[grid, BLOCK, stream](target, no_elements(np.float32), dw, parts, one, one, False)


def _parts(p: Problem, parts: int) -> tuple[typing.Any, int]:
    """Where blocks store: the result, or workspace for as many parts; and how far it is from one part to the next."""
    pitch = round_up(p.result.size, 4)  # for loads of 128 bits
    if parts == 1:
        return p.result.reshape(-1), pitch
    return workspace("the parts of the sums", (parts * pitch,), stream=p.stream), pitch


@functools.lru_cache(4096)  # as `definition.window_of`
def places_of(a: Layer) -> Places | None:
    """The layer's `Places`, or None if 32 bits cannot count them."""
    if implicit.refuses(a):
        return None
    plane = a.h * a.w
    numbers = a.h, a.w, plane, a.c // a.groups * plane, a.c * plane, a.n * a.p * a.q, a.p * a.q, a.q
    return Places(*map(np.uint32, (*numbers, *a.stride, *a.padding)))


@functools.lru_cache(4096)  # as `definition.window_of`
def _filters_of(a: Layer, chunks: int, span: int, pitch: int) -> Filters:
    numbers = a.k, a.k // a.groups, a.c // a.groups, a.s, a.r * a.s, chunks, span, pitch, *a.dilation
    return Filters(*map(np.uint32, numbers))


@rung(reduced_kernel, add_parts_kernel, implicit.sum_kernel, naive_kernel)
def reduced(p):
    """A block for each channel of each filter: its threads share the places, and sum up nine taps in registers.

    If there are few blocks, several share a sum. A layer with sizes beyond 32 bits is left to `naive`. This is the one
    to take for layers of one channel per group, where no product of matrices has anything to reuse.

    Leaves: each block reads all of its filter's dy, and all of its channel's x, for nine sums.
    """
    a, places = p.layer, places_of(p.layer)
    if places is None:
        naive.launch(p)
        return
    chunks, sums = blocks(a.r * a.s, TAPS), a.n * a.p * a.q
    each = a.k * (a.c // a.groups) * chunks
    fit = RESIDENT * device.limits()["multiprocessors"]
    parts = max(1, min(blocks(fit, each), sums // LEAST))
    span = blocks(sums, parts)
    target, pitch = _parts(p, parts)
    filters = _filters_of(a, chunks, span, pitch)
    reduced_kernel[each * parts, BLOCK, p.stream](p.dy.reshape(-1), p.x.reshape(-1), target, places, filters)
    if parts > 1:
        _add_parts(target, p.result.reshape(-1), parts, p.stream)


# -------------------------------------------------------------------------------------------------- a matrix product

BUDGET = 2**30  # the most bytes of patches at a time, unless one image needs more


class Patches(typing.NamedTuple):
    """What `patches_kernel` is told of a layer: int32, named as in `Layer`."""

    first_image: int
    c: int
    h: int
    w: int
    q: int
    r: int
    s: int
    groups: int


@cuda.jit
def patches_kernel(x, patches, sizes, window):
    """Write what the filters see at a place as a row: the transposed columns of im2col, for each image and group."""
    i = cuda.grid(1)
    if i < patches.size:
        k, place = i % patches.shape[2], i // patches.shape[2] % patches.shape[1]
        batch = i // patches.shape[2] // patches.shape[1]
        n, group = batch // sizes.groups + sizes.first_image, batch % sizes.groups
        c, r, s = k // (sizes.r * sizes.s), k // sizes.s % sizes.r, k % sizes.s
        row = place // sizes.q * window.stride.rows + r * window.dilation.rows - window.padding.rows
        column = place % sizes.q * window.stride.columns + s * window.dilation.columns - window.padding.columns
        value = np.float32(0)
        if 0 <= row < sizes.h and 0 <= column < sizes.w:
            value = x[n, group * (sizes.c // sizes.groups) + c, row, column]
        patches[batch, place, k] = value


@rung(patches_kernel, matmul_batched.kernel_for, add_parts_kernel, implicit.sum_kernel, naive_kernel)
def by_columns(p):
    """By im2col: for each image and group a product of dy with the transposed columns; then the images are added up.

    The sum over images is divided by itself, and one launch computes all products. Source: Jia and others, "Caffe"
    (2014), which adds the images one after another. If an image has more than 2^31 - 1 elements of columns, or there
    is none, the layer is left to `naive`.

    Leaves: the columns, up to R S times as large as x, are written and read, and so is a result for each image.
    """
    a = p.layer
    pixels, each = a.p * a.q, a.groups * a.terms * a.p * a.q
    if not a.n or max(each, a.n * p.result.size) > MOST:
        naive.launch(p)
        return
    images = max(1, min(a.n, BUDGET // (4 * each), MOST // each))
    patches = workspace("the columns", (images * a.groups, pixels, a.terms), stream=p.stream)
    dw = p.result.reshape(-1)
    target = dw if a.n == 1 else workspace("a result for each image", (a.n * dw.size,), stream=p.stream)
    dy = p.dy.reshape(a.n * a.groups, a.k // a.groups, pixels)
    products = target.reshape(a.n * a.groups, a.k // a.groups, a.terms)
    for first in range(0, a.n, images):
        count = min(images, a.n - first) * a.groups
        sizes = Patches(*map(np.int64, (first, a.c, a.h, a.w, a.q, a.r, a.s, a.groups)))
        part, at = patches[:count], first * a.groups
        patches_kernel[blocks(part.size, BLOCK), BLOCK, p.stream](p.x, part, sizes, window_of(a))
        matmul_batched.multiply(dy[at : at + count], part, out=products[at : at + count], stream=p.stream)
    if a.n > 1:
        _add_parts(target, dw, a.n, p.stream)


# ------------------------------------------------------------------------------------------------------- implicit GEMM

START = 6  # steps that would take as long as a block's beginning and end
WARPS = 12  # on a multiprocessor, from which on loads are hidden; with fewer, a step takes longer by the square root
LEAST_STEPS = 16  # in a part of a sum
SPEED = {64: 0.95, 128: 1.0}  # by the width of a tile: a narrow one loads more for each product
# Cycles of a multiprocessor: for a step of 64 x 64 products of depth STEP; for a launch; for a part that a thread adds
# up; for a byte of parts, which all multiprocessors together write and read at about 3 TB/s. Estimates from the data
# sheet of an H200, not fitted.
CYCLES, LAUNCH, TURN, BYTE = 64 * 64 * STEP / 128, 5000, 700, 2 * 1.7e9 / 3e12


class Plan(typing.NamedTuple):
    """How wide a block's tile is, into how many parts the sums are divided, and how many blocks there are."""

    side: int
    parts: int
    steps: int  # of a block
    blocks: int
    cycles: float  # of a multiprocessor, that it should take


def plan_of(a: Layer, sides: tuple[int, ...]) -> Plan:
    """The width of tile and the parts that should take least time."""
    return _plan_of(a, sides, device.limits()["multiprocessors"])


@functools.lru_cache(4096)  # as `definition.window_of`
def _plan_of(a: Layer, sides: tuple[int, ...], multiprocessors: int) -> Plan:
    depth, weights, found = blocks(a.n * a.p * a.q, STEP), a.k * a.terms, []
    for side in sides:
        tiles = blocks(a.k // a.groups, FILTERS) * blocks(a.terms, side) * a.groups
        for wanted in range(1, max(1, min(depth // LEAST_STEPS, 1024)) + 1):
            steps = blocks(depth, wanted)
            parts = max(1, blocks(depth, steps))  # fewer, if nothing is left for the last ones
            busiest = blocks(tiles * parts, multiprocessors)
            waits = math.sqrt(max(1.0, WARPS / (busiest * side / 32)))
            time = busiest * (steps + START) * CYCLES * side / 64 / SPEED[side] * waits
            if parts > 1:
                turns = parts if parts <= MANY else blocks(parts, HEIGHT)
                time += LAUNCH + TURN * turns + 4 * parts * weights * BYTE
            found.append(Plan(side, parts, steps, tiles * parts, time))
    return min(found, key=lambda plan: plan.cycles)


@functools.lru_cache(4096)  # as `definition.window_of`
def _product_of(a: Layer, plan: Plan, pitch: int) -> Product:
    tiles = blocks(a.k // a.groups, FILTERS), blocks(a.terms, plan.side)
    sizes = a.k // a.groups, a.terms, a.groups, *tiles, plan.steps * STEP, pitch, a.k * a.p * a.q
    return Product(*map(np.uint32, (*sizes, a.r, a.s, *a.dilation)))


def _multiply(p: Problem, places: Places, sides: tuple[int, ...], mode: int) -> None:
    a = p.layer
    plan = plan_of(a, sides)
    target, pitch = _parts(p, plan.parts)
    product = _product_of(a, plan, pitch)
    wide = a.terms % 4 == 0 and device.address(target) % 16 == 0
    arrays = p.dy.reshape(-1), p.x.reshape(-1), target
    kernel_for(plan.side, mode)[plan.blocks, plan.side, p.stream](*arrays, places, product, wide)
    if plan.parts > 1:
        _add_parts(target, p.result.reshape(-1), plan.parts, p.stream)


@rung(kernel_for, add_parts_kernel, implicit.sum_kernel, naive_kernel)
def divided(p):
    """An implicit GEMM, whose long sums are divided: a block multiplies a tile of dy and gathered x for some places.

    The parts are workspace, and a second kernel adds them up in a fixed order. Without images, or with sizes beyond 32
    bits, the layer is left to `naive`. Source: as `pmpp.kernels.convolution_layer.implicit`.

    Leaves: a gather of single elements also where neighbours could be loaded together, and one tile for all shapes.
    """
    places = places_of(p.layer)
    if places is None or not p.layer.n:
        naive.launch(p)
        return
    _multiply(p, places, (64,), GATHERED)


# -------------------------------------------------------------------------------------------------- chosen by the shape


def is_thin(a: Layer) -> bool:
    """Whether a product of matrices would mostly multiply what fills its tiles up, so that `reduced` is faster.

    It counts instructions: about 12 for a product in `reduced`, and in tiles one for each product, wanted or not.
    """
    tiles = a.groups * round_up(a.k // a.groups, FILTERS) * round_up(a.terms, 64)
    return 12 * a.k * (a.c // a.groups) * round_up(a.r * a.s, TAPS) < tiles


@rung(*divided.kernels, reduced_kernel)
def by_shape(p):
    """The shape decides how wide a tile is, into how many parts a sum is divided, and how the operands are loaded.

    A 1 x 1 layer without stride and padding, whose P Q is a multiple of 4, reads both operands in vectors if they begin
    at multiples of 16 bytes, and any layer dy. Layers with little to reuse are left to `reduced`.

    Leaves: all multiplications of the definition, where Winograd's algorithm needs a quarter of them for 3 x 3.
    """
    a, places = p.layer, places_of(p.layer)
    if places is None or not a.n:
        naive.launch(p)
        return
    if is_thin(a):
        reduced.launch(p)
        return
    mode = GATHERED
    if a.p * a.q % 4 == 0 and device.address(p.dy) % 16 == 0:
        mode |= VECTORS_OF_DY
        plain = (a.r, a.s, a.stride, a.padding) == (1, 1, (1, 1), (0, 0))
        mode |= VECTORS_OF_X if plain and device.address(p.x) % 16 == 0 else 0
    _multiply(p, places, (64, 128), mode)


# ------------------------------------------------------------------------------------------------- Winograd's algorithm

TILE, SIDES = 4, (64, 128)  # outputs a side of a tile of F(4 x 4, 3 x 3); widths of the product's tiles
ELEMENTS = (TILE + 2) ** 2  # of a transformed tile
GATHER = 1.7  # how much longer `by_shape` takes than its plan says, measured on an H200 for layers of 3 x 3


@cuda.jit
def turned_kernel(dy, target, extents, cut, wide):
    """Transform the tiles of dy: a thread for each tile of each filter. ``wide``: rows of a tile are one load."""
    y, m, h = cuda.local.array(16, np.float32), cuda.local.array(36, np.float32), cuda.local.array(24, np.float32)
    group, k, t, at, step = thread_place(extents)
    if group < extents.groups:
        image, row, column = tile_place(t, cut, TILE)
        k = np.uint32(group * extents.rows + k)
        for i in range(TILE):
            wanted = t < cut.tiles and row + i < dy.shape[2]
            if wide:
                line = np.int64(np.uint32(image) * np.uint32(dy.shape[1]) + k) * dy.shape[2]
                quad = load128(dy, (line + nearest(row + i, dy.shape[2])) * dy.shape[3] + column)
                for j in range(TILE):
                    y[4 * i + j] = quad[j] if wanted else np.float32(0)
            else:
                for j in range(TILE):
                    y[4 * i + j] = pixel(dy, image, k, row + i, column + j, wanted)
        for j in range(TILE):
            gradient_six(y, j, 4, h, j, 4)  # down the columns: 4 x 4 become 6 x 4
        for i in range(6):
            gradient_six(h, 4 * i, 1, m, 6 * i, 1)  # along the rows: 6 x 6
            for j in range(6):
                target[at] = m[6 * i + j]
                at += step


@cuda.jit
def back_kernel(sums, dw, groups):
    """Transform the sums of a filter and a channel back to 3 x 3 weights: a thread for each such pair."""
    u, h, g = cuda.local.array(36, np.float32), cuda.local.array(18, np.float32), cuda.local.array(9, np.float32)
    channels, filters = np.uint32(dw.shape[1]), np.uint32(np.uint32(dw.shape[0]) // np.uint32(groups))
    i = np.uint32(cuda.grid(1))
    line = np.uint32(i // channels)
    if line < dw.shape[0]:
        c, group = np.uint32(i - line * channels), np.uint32(line // filters)
        k = np.uint32(line - group * filters)
        at, step = np.uint64((group * filters + k) * channels + c), np.uint64(groups * filters * channels)
        for i in range(ELEMENTS):
            u[i] = sums[at]
            at += step
        for j in range(6):
            weights_back_six(u, j, 6, h, j, 6)  # down the columns: 6 x 6 become 3 x 6
        for i in range(3):
            weights_back_six(h, 6 * i, 1, g, 3 * i, 1)  # along the rows: 3 x 3
            for j in range(3):
                dw[line, c, i, j] = g[3 * i + j]


class Tiling(typing.NamedTuple):
    """How a layer is cut into tiles, and the product of the transformed ones: what follows from its shape alone."""

    cuts: tuple[winograd.Cut, ...]  # a pass each, over some of the images
    of_dy: winograd.Extents
    of_x: winograd.Extents
    product: Layer  # a 1 x 1 layer whose groups are the elements of a tile, and whose places are the tiles


@functools.lru_cache(4096)  # as `definition.window_of`
def tiling_of(a: Layer) -> Tiling:
    """The `Tiling` of a layer that `is_tiled`."""
    rows, columns, widest = blocks(a.p, TILE), blocks(a.q, TILE), max(a.k, a.c)
    images = max(1, min(a.n, winograd.AT_ONCE // (ELEMENTS * widest * rows * columns)))
    images = blocks(a.n, blocks(a.n, images))
    counts = [min(images, a.n - first) for first in range(0, a.n, images)]
    tiles = round_up(images * rows * columns, 4)
    return Tiling(
        tuple(
            winograd.Cut(i * images, count * rows * columns, rows, columns, *a.padding)
            for i, count in enumerate(counts)
        ),
        winograd.Extents(a.groups, a.k // a.groups, tiles),
        winograd.Extents(a.groups, a.c // a.groups, tiles),
        Layer(1, ELEMENTS * a.c, 1, tiles, ELEMENTS * a.k, 1, 1, groups=ELEMENTS * a.groups),
    )


def pays(a: Layer) -> bool:
    """Whether Winograd's algorithm should take less time than `by_shape`, arrays between its kernels included."""
    tiling = tiling_of(a)
    moved = 2 * 4 * ELEMENTS * math.prod(tiling.of_dy[::2]) * tiling.of_dy.rows
    moved += 2 * 4 * ELEMENTS * math.prod(tiling.of_x[::2]) * tiling.of_x.rows
    moved += 2 * 4 * ELEMENTS * a.k * (a.c // a.groups)
    cycles = len(tiling.cuts) * (plan_of(tiling.product, SIDES).cycles + moved * BYTE / 2 + 3 * LAUNCH)
    return cycles < GATHER * plan_of(a, SIDES).cycles


@rung(*by_shape.kernels, turned_kernel, back_kernel, winograd.wide_image_kernel, winograd.large_image_kernel)
def tiled(p):
    """Winograd's algorithm backwards: tiles of dy and x are transformed, multiplied, summed, and transformed back.

    F(4 x 4, 3 x 3) multiplies 36 numbers where the definition multiplies 144. For each of a tile's 36 elements the sum
    over the tiles is a product of matrices, as in a 1 x 1 layer, and `by_shape` has the kernel for it. Layers other
    than 3 x 3 with stride and dilation 1, and those too small for it to pay, are left to `by_shape`. An element of dy
    or x that is not finite spoils a whole tile. Source: Lavin and Gray (2016), section 4.

    Leaves: a group of few channels has `reduced`, whose threads find the place of each product anew.
    """
    a = p.layer
    if not is_tiled(a) or is_thin(a) or not pays(a):
        by_shape.launch(p)
        return
    tiling = tiling_of(a)
    layer, extents = tiling.product, (tiling.of_dy, tiling.of_x)
    plan, passes = plan_of(layer, SIDES), len(tiling.cuts)
    size = ELEMENTS * a.k * (a.c // a.groups)
    pitch, parts = round_up(size, 4), passes * plan.parts
    sizes = *(ELEMENTS * math.prod(one) for one in extents), parts * pitch, size if parts > 1 else 0
    m, v, target, sums = workspaces("the transformed tiles of dy and x, and the sums", sizes, stream=p.stream)
    product, places = _product_of(layer, plan, pitch), places_of(layer)
    wide_dy = a.q % 4 == 0 and device.address(p.dy) % 16 == 0
    wide_x = a.padding.columns == 1 and a.w % 4 == 0 and device.address(p.x) % 16 == 0
    image_kernel = winograd.wide_image_kernel if wide_x else winograd.large_image_kernel
    multiply = kernel_for(plan.side, VECTORS_OF_DY | VECTORS_OF_X)
    grids = [blocks(math.prod(one), winograd.THREADS) for one in extents]
    for i, cut in enumerate(tiling.cuts):
        turned_kernel[grids[0], winograd.THREADS, p.stream](p.dy, m, tiling.of_dy, cut, wide_dy)
        image_kernel[grids[1], winograd.THREADS, p.stream](p.x, v, tiling.of_x, cut)
        part = target[i * plan.parts * pitch : (i + 1) * plan.parts * pitch]
        multiply[plan.blocks, plan.side, p.stream](m, v, part, places, product, layer.terms % 4 == 0)
    if parts > 1:
        _add_parts(target, sums, parts, p.stream)
    grid = blocks(p.result.size, 9 * winograd.THREADS)
    back_kernel[grid, winograd.THREADS, p.stream](sums if parts > 1 else target, p.result, a.groups)


# ---------------------------------------------------------------------------------------------- groups of few channels


@rung(weight_strips.strips_kernel, *tiled.kernels)
def strips(p):
    """In groups of few channels a thread has outputs one below the other, and a row of x meets all taps that use it.

    So dy is read once, and a place is found once for a column of up to eight outputs: see
    `pmpp.kernels.convolution_layer.weight_strips`. It is for the layers that `depthwise.suits`; all others are left to
    `tiled`. Source: as `pmpp.kernels.convolution_layer.depthwise.sliding`, with dy in the place of the weights.
    """
    a = p.layer
    if not depthwise.suits(a) or not a.n or places_of(a) is None:
        tiled.launch(p)
        return
    plan = weight_strips.plan_of(a, device.limits()["multiprocessors"])
    target, _ = _parts(p, plan.parts)
    kernel = weight_strips.strips_kernel(plan.form)
    grid = plan.blocks, weight_strips.BLOCK, p.stream
    kernel[grid](p.dy.reshape(-1), p.x.reshape(-1), target, *numbers_of(a), plan.work)
    if plan.parts > 1:
        _add_parts(target, p.result.reshape(-1), plan.parts, p.stream)


LADDER = (naive, reduced, by_columns, divided, by_shape, tiled, strips)
