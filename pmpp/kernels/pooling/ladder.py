"""Pooling: each small window of a feature map becomes one number, its largest or its mean.

Chapter: notebooks/46_pooling_and_activations.ipynb.  PMPP 4e ch. 16.

At most one comparison or addition for each element that a window sees: the bound is the time to read the input once
and to write the output. What costs time is everything else: finding out where a window lies, reading an element again
for each window that sees it, and asking for four bytes at a time. Windows, padding and the ceil mode are PyTorch's.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, SHARED_LIMIT, blocks
from pmpp.kernels.pooling.windows import axes_of, combine_share, finish, pair_of, pooled_extent, span, walk
from pmpp.kernels.reduction import MAX, SUM, block_combine, combine, warp_combine
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_pair
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

OPERATORS = {"max": MAX, "average": SUM}
BLOCK = 256  # threads a block
NARROW = 2**31  # from here on outputs are counted in 64 bits; and more blocks than these a grid cannot have


def reference(x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> np.ndarray:
    """The result of `naive`, in float64, a window at a time."""
    return reference_with_indices(x, op, kernel, stride, padding, ceil_mode, count_include_pad)[0]


def reference_with_indices(
    x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True
) -> tuple[np.ndarray, np.ndarray]:
    """The same, and where in its plane, row after row, the largest element lies: the first of equals, the last NaN."""
    (kh, kw), (sh, sw), (ph, pw) = pair_of(kernel), pair_of(kernel if stride is None else stride), pair_of(padding)
    h, w = x.shape[2:]
    places = pooled_extent(h, kh, sh, ph, ceil_mode), pooled_extent(w, kw, sw, pw, ceil_mode)
    out, indices = np.empty((*x.shape[:2], *places)), np.empty((*x.shape[:2], *places), np.int64)
    for at in np.ndindex(out.shape):
        top, left = at[2] * sh - ph, at[3] * sw - pw
        # The window, cut off where the right-hand padding ends, and what of it is input.
        area = (min(top + kh, h + ph) - top) * (min(left + kw, w + pw) - left)
        rows, columns = range(max(top, 0), min(top + kh, h)), range(max(left, 0), min(left + kw, w))
        seen = [(x[at[0], at[1], row, column], row * w + column) for row in rows for column in columns]
        best, indices[at] = seen[0]
        for value, index in seen:
            if value > best or value != value:
                best, indices[at] = value, index
        with np.errstate(invalid="ignore"):  # inf - inf
            total = sum((np.float64(value) for value, _ in seen), np.float64(0))
        out[at] = best if op == "max" else total / (area if count_include_pad else len(seen))
    return out, indices


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, op, kernel, stride, padding, ceil_mode, count_include_pad)``."""
    rng = np.random.default_rng(16) if rng is None else rng
    made = {}

    def add(name: str, shape: tuple[int, ...], *options: typing.Any) -> None:
        for op in OPERATORS:
            made[f"{op}, {name}"] = rng.standard_normal(shape, dtype=np.float32), op, *options

    add("one", (1, 1, 1, 1), 1)
    add("2x2", (2, 3, 6, 16), 2)
    add("2x2, odd height", (2, 3, 7, 8), 2)
    add("2x2, odd width", (2, 1, 6, 13), 2)
    add("2x2, ceil", (1, 2, 5, 7), 2, 2, 0, True)
    add("3x3 s2 p1", (3, 2, 9, 24), 3, 2, 1)
    add("3x3 s2 p1, even height", (1, 3, 12, 40), 3, 2, 1)
    add("3x3 s2 p1, odd width", (1, 2, 8, 15), 3, 2, 1)
    add("3x3 s1 p1, without padding in the count", (1, 2, 5, 6), 3, 1, 1, False, False)
    add("3x2 s2x3 p1x0, ceil", (2, 1, 10, 9), (3, 2), (2, 3), (1, 0), True, False)
    add("last window begins in the padding", (1, 1, 4, 4), 2, 2, 1, True)
    add("stride beyond the window", (1, 2, 11, 13), 2, 5)
    add("a row", (2, 1, 1, 130), (1, 3), (1, 1))
    add("several tiles", (1, 1, 20, 72), 3, 2, 1)
    add("no images", (0, 3, 4, 4), 2)
    add("whole planes", (2, 3, 12, 16), (12, 16))
    add("whole planes, odd", (2, 3, 7, 7), (7, 7))
    add("whole planes, large", (1, 1, 20, 26), (20, 26))
    add("whole planes, tiny", (5, 1, 2, 3), (2, 3))
    extremes = np.array([0.0, -0.0, 1e-45, 1e30, np.inf, -np.inf, np.nan, 1.0], np.float32)
    for shape, options in (((2, 2, 8, 16), (2,)), ((2, 2, 8, 16), (3, 2, 1)), ((8, 4, 4, 8), ((4, 8),))):
        for op in OPERATORS:
            made[f"{op}, non-finite, {options}"] = rng.choice(extremes, shape), op, *options
    made["max, all -inf"] = np.full((1, 1, 4, 8), -np.inf, np.float32), "max", 3, 2, 1
    made["max, all equal"] = np.ones((1, 1, 6, 8), np.float32), "max", 2
    return made


def tolerance(x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> typing.Any:
    """0 for max. A mean of k numbers: at most k - 1 additions and a division, each rounding by 2^-24 of sum |x| / k."""
    if op == "max":
        return 0.0
    options = kernel, stride, padding, ceil_mode, count_include_pad
    size = np.where(np.isfinite(x), np.abs(x), 0)
    return math.prod(pair_of(kernel)) * 2.0**-24 * reference(size, op, *options) + 2.0**-149


def cost(planes: int, h: int, w: int, kernel=2, stride=None, padding=0, ceil_mode=False) -> Cost:
    """One operation for each further element of a window; x read once and the result written once, in float32."""
    (kh, kw), (sh, sw), (ph, pw) = pair_of(kernel), pair_of(kernel if stride is None else stride), pair_of(padding)
    places = pooled_extent(h, kh, sh, ph, ceil_mode) * pooled_extent(w, kw, sw, pw, ceil_mode)
    return Cost(flops=planes * places * (kh * kw - 1), bytes=4 * planes * (h * w + places))


def arguments(
    x,
    op="max",
    kernel=2,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    *,
    return_indices=False,
    out=None,
    stream=0,
) -> Problem:
    """Reduce each window of each feature map to one number.

    Args:
        x: feature maps of shape (N, C, H, W), H and W >= 1, float32, contiguous.
        op: "max" or "average".
        kernel: the window, an integer or a pair for rows and columns; ``x.shape[2:]`` pools whole planes.
        stride: from one window to the next, as ``kernel``; None for windows side by side.
        padding: on all four sides, at most half of the kernel: minus infinity for max, 0 for average.
        ceil_mode: whether a last window that hangs over counts, if it begins inside the input or the left padding.
        count_include_pad: whether an average divides by the window with its padding, or by what it sees of ``x``.
        return_indices: return ``(out, indices)``, the latter int64: where in its plane, counted row after row, the
            largest element lies. Of equals it is the first.
        out: a device array for the result, apart from ``x``, or None to allocate one.
        stream: the stream to work on.

    Returns a device array (N, C, places, places), see `pooled_extent`, without waiting for the work to be done. A
    window with a NaN gives NaN (its index is that of the last NaN), as in PyTorch. Dilated windows are not supported.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 16.1; PyTorch's MaxPool2d and AvgPool2d.

    >>> from pmpp.kernels import pooling
    >>> pooling.vectorised(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)).copy_to_host()
    array([[[[5., 7.]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=4, stream=stream)
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be 'max' or 'average', was {op!r}")
    ceil_mode, padded = as_flag("ceil_mode", ceil_mode), as_flag("count_include_pad", count_include_pad)
    return_indices = as_flag("return_indices", return_indices)
    if return_indices and op != "max":
        raise ValueError(f"return_indices must be False for op={op!r}: only a maximum lies somewhere")
    window, padding = as_pair("kernel", kernel, 1), as_pair("padding", padding, 0)
    stride = window if stride is None else as_pair("stride", stride, 1)
    rows, columns = axes_of(x.shape[2:], window, stride, padding, ceil_mode)
    shape = (*x.shape[:2], rows.places, columns.places)
    out = device.as_output("out", out, shape=shape, dtype=np.float32, stream=stream)
    indices = device.empty(shape, np.int64, stream=stream) if return_indices else no_indices()
    return Problem(
        (out, indices) if return_indices else out,
        stream=stream,
        x=x.reshape(-1),
        out=out.reshape(-1),
        indices=indices.reshape(-1),
        op=OPERATORS[op],
        padded=padded,
        planes=x.shape[0] * x.shape[1],
        rows=rows,
        columns=columns,
    )


@device.cached(1)
def no_indices():
    """The empty array that kernels are given if nobody wants indices."""
    return device.empty(0, np.int64)


# ------------------------------------------------------------------------------------------------ a thread an output


@cuda.jit
def naive_kernel(x, out, indices, op, padded, rows, columns):
    i = cuda.grid(1)
    if i < out.size:
        column, row = i % columns.places, i // columns.places % rows.places
        plane = i // columns.places // rows.places
        top, bottom, tall = span(row, rows)
        left, right, wide = span(column, columns)
        first = (plane * rows.extent + top) * columns.extent + left
        value, y, z = walk(x, first, columns.extent, bottom - top, right - left, op)
        out[i] = finish(value, op, padded, tall * wide, (bottom - top) * (right - left))
        if indices.size:
            indices[i] = (top + y) * columns.extent + left + z


@rung(naive_kernel)
def naive(p):
    """One thread for each output walks through its window.

    Leaves: five divisions of 64 bits to find out where an output lies: more instructions than the window itself.
    """
    grid = blocks(p.out.size, BLOCK)
    naive_kernel[grid, BLOCK, p.stream](p.x, p.out, p.indices, p.op, p.padded, p.rows, p.columns)


# ---------------------------------------------------------------------------------------------------- places in 32 bits


@cuda.jit
def narrow_kernel(x, out, indices, op, padded, rows, columns):
    i = np.uint32(cuda.grid(1))
    if i < out.size:
        line = np.uint32(i // np.uint32(columns.places))  # a row of outputs, counted through all planes
        plane = np.int64(line // np.uint32(rows.places))
        row, column = line - plane * rows.places, i - line * columns.places
        top, bottom, tall = span(row, rows)
        left, right, wide = span(column, columns)
        first = (plane * rows.extent + top) * columns.extent + left
        value, y, z = walk(x, first, columns.extent, bottom - top, right - left, op)
        out[i] = finish(value, op, padded, tall * wide, (bottom - top) * (right - left))
        if indices.size:
            indices[i] = (top + y) * columns.extent + left + z


@rung(narrow_kernel, naive_kernel)
def narrow(p):
    """The same with two divisions of 32 bits: a remainder is a product and a difference.

    With 2^31 outputs or more it is `naive`.

    Leaves: where windows overlap an element is loaded again for each of them.
    """
    if p.out.size >= NARROW:
        naive.launch(p)
    else:
        grid = blocks(p.out.size, BLOCK)
        narrow_kernel[grid, BLOCK, p.stream](p.x, p.out, p.indices, p.op, p.padded, p.rows, p.columns)


# ---------------------------------------------------------------------------------------------------- in shared memory

TALL, WIDE = 8, 32  # outputs of a block, one for each thread


@cuda.jit
def shared_kernel(x, out, indices, op, padded, rows, columns):
    patch = cuda.shared.array(0, np.float32)  # the launch says how much
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    across, down = np.uint32((columns.places + WIDE - 1) // WIDE), np.uint32((rows.places + TALL - 1) // TALL)
    block = np.uint32(cuda.blockIdx.x)
    line = np.uint32(block // across)
    plane = np.int64(line // down)
    row, column = TALL * (line - plane * down), WIDE * np.int64(block - line * across)  # the block's first output
    # What all windows of the block see, from their top left corner on; beyond the edges nothing is loaded.
    top, left = max(row * rows.stride - rows.padding, 0), max(column * columns.stride - columns.padding, 0)
    bottom = min((row + TALL - 1) * rows.stride - rows.padding + rows.window, rows.extent)
    right = min((column + WIDE - 1) * columns.stride - columns.padding + columns.window, columns.extent)
    pitch = right - left
    y = ty
    while y < bottom - top:
        z = tx
        while z < pitch:
            patch[y * pitch + z] = x[(plane * rows.extent + top + y) * columns.extent + left + z]
            z += WIDE
        y += TALL
    cuda.syncthreads()  # the patch is whole before anyone reads it

    row, column = row + ty, column + tx
    if row < rows.places and column < columns.places:
        y0, y1, tall = span(row, rows)
        z0, z1, wide = span(column, columns)
        value, y, z = walk(patch, (y0 - top) * pitch + z0 - left, pitch, y1 - y0, z1 - z0, op)
        i = (plane * rows.places + row) * columns.places + column
        out[i] = finish(value, op, padded, tall * wide, (y1 - y0) * (z1 - z0))
        if indices.size:
            indices[i] = (y0 + y) * columns.extent + z0 + z


@rung(shared_kernel, narrow_kernel, naive_kernel)
def shared(p):
    """A block loads what its 8 x 32 windows see into shared memory, each element once, and the windows overlap there.

    If what the windows of a block see is more than 48 KB, this is `narrow`. Source: PMPP 4e section 7.4 (tiles with a
    halo).

    Leaves: an element comes once from device memory, as it did before, since the L1 cache had the rest; 4 bytes a load.
    """
    tall = (TALL - 1) * p.rows.stride + p.rows.window
    wide = (WIDE - 1) * p.columns.stride + p.columns.window
    grid = p.planes * blocks(p.rows.places, TALL) * blocks(p.columns.places, WIDE)
    if 4 * tall * wide <= SHARED_LIMIT and grid < NARROW:
        launch = shared_kernel[grid, (WIDE, TALL), p.stream, 4 * tall * wide]
        launch(p.x, p.out, p.indices, p.op, p.padded, p.rows, p.columns)
    else:
        narrow.launch(p)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit(device=True)
def pooled_pairs(op, a, b):
    """Four neighbours in each of two rows: what two windows of 2 x 2 make of them."""
    return combine(op, combine(op, a[0], a[1]), combine(op, b[0], b[1])), combine(
        op, combine(op, a[2], a[3]), combine(op, b[2], b[3])
    )


@cuda.jit(device=True)
def pairs(x, out, op, factor, count, vectors, rows, odd):
    """Windows of 2 x 2, side by side: a thread makes four outputs of two rows of eight, by four loads and a store."""
    i = np.uint32(cuda.grid(1))
    if i < count:
        line = np.uint32(i // vectors)
        above = 2 * line
        if odd:  # each plane has a row at its end that no window sees
            above += line // rows
        width = 8 * vectors
        first = above * width + 8 * (i - line * vectors)
        a, b = load128(x, first), load128(x, first + 4)
        c, d = load128(x, first + width), load128(x, first + width + 4)
        (p, q), (r, s) = pooled_pairs(op, a, c), pooled_pairs(op, b, d)
        store128(out, 4 * np.uint64(i), (p * factor, q * factor, r * factor, s * factor))


@cuda.jit
def max_pairs_kernel(x, out, count, vectors, rows, odd):
    pairs(x, out, MAX, np.float32(1), count, vectors, rows, odd)  # the operator is known when this is compiled


@cuda.jit
def average_pairs_kernel(x, out, count, vectors, rows, odd):
    pairs(x, out, SUM, np.float32(0.25), count, vectors, rows, odd)


@cuda.jit(device=True)
def largest(a, b, c):
    return combine(MAX, combine(MAX, a, b), c)


@cuda.jit(device=True)
def largest_of_rows(x, first, second, third):
    """Column by column the largest of four neighbours in three rows."""
    a, b, c = load128(x, first), load128(x, second), load128(x, third)
    return largest(a[0], b[0], c[0]), largest(a[1], b[1], c[1]), largest(a[2], b[2], c[2]), largest(a[3], b[3], c[3])


@cuda.jit
def max_threes_kernel(x, out, count, vectors, rows, height):
    """Windows of 3 x 3, two apart, padding 1: four outputs see nine columns, eight of their own and one on the left."""
    thread = np.uint32(cuda.grid(1))
    i = np.uint32(min(thread, count - 1))  # all lanes of a warp take part in the shuffle
    line = np.uint32(i // vectors)
    plane = np.uint32(line // rows)
    row, width = 2 * (line - plane * rows), 8 * vectors
    # Beyond an edge the row at the edge stands in: a maximum does not mind seeing an element twice.
    above, below = max(row, 1) - 1, min(row + 1, height - 1)
    place = i - line * vectors
    column = plane * height * width + 8 * place
    first, second, third = column + above * width, column + row * width, column + below * width
    p, q, r, s = largest_of_rows(x, first, second, third)
    t, u, v, w = largest_of_rows(x, first + 4, second + 4, third + 4)
    left = cuda.shfl_up_sync(FULL_WARP, w, 1)  # the lane on the left has the column that is missing
    if place == 0:
        left = p
    elif cuda.laneid == 0:
        left = largest(x[first - 1], x[second - 1], x[third - 1])
    if thread < count:
        store128(out, 4 * np.uint64(i), (largest(left, p, q), largest(q, r, s), largest(s, t, u), largest(u, v, w)))


def launch_wide(p) -> bool:
    """Launch the kernel that is made for windows of this kind. If there is none, launch nothing and return False."""
    rows, columns = p.rows, p.columns
    if columns.extent % 8 or p.out.size >= NARROW or p.indices.size:
        return False
    if device.address(p.x) % 16 or device.address(p.out) % 16:
        return False
    threads, vectors, lines = np.uint32(p.out.size // 4), np.uint32(columns.places // 4), np.uint32(rows.places)
    launch = blocks(int(threads), BLOCK), BLOCK, p.stream
    kind = {(axis.window, axis.stride, axis.padding) for axis in (rows, columns)}
    if kind == {(2, 2, 0)} and rows.places == rows.extent // 2:
        kernel = max_pairs_kernel if p.op == MAX else average_pairs_kernel
        kernel[launch](p.x, p.out, threads, vectors, lines, rows.extent % 2 == 1)
        return True
    fits = 2 * rows.places <= rows.extent + 1 and 2 * columns.places == columns.extent
    if kind == {(3, 2, 1)} and p.op == MAX and fits:
        max_threes_kernel[launch](p.x, p.out, threads, vectors, lines, np.uint32(rows.extent))
        return True
    return False


@rung(max_pairs_kernel, average_pairs_kernel, max_threes_kernel, narrow_kernel, naive_kernel)
def vectorised(p):
    """A thread makes four outputs from 128-bit loads, all under way at once, and stores them together.

    There are kernels for windows of 2 x 2 side by side, and for max over 3 x 3 with stride 2 and padding 1. Their rows
    must be a multiple of 8 elements wide and begin at multiples of 16 bytes, and nobody may ask for indices; all else
    is `narrow`.

    Leaves: a window as large as its plane keeps a single thread busy.
    """
    if not launch_wide(p):
        narrow.launch(p)


# -------------------------------------------------------------------------------------------------------- whole planes

SHARE = 8192  # elements of a block, where there are not planes enough for all multiprocessors
MANY = 1024  # planes that are enough
SMALL = 512  # elements up to which a warp does for a plane


@cuda.jit
def planes_kernel(x, out, op, identity, elements, parts, share, width, divisor):
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    plane = cuda.blockIdx.x // parts
    begin = (cuda.blockIdx.x - plane * parts) * share
    first, end = plane * elements + begin, plane * elements + min(begin + share, elements)
    total = combine_share(x, op, identity, first + thread * width, end, threads * width, width)
    partial = cuda.shared.array(32, np.float32)  # as reduction's block_combine wants it: one for each of 32 warps
    if thread < 32:
        partial[thread] = identity
    cuda.syncthreads()
    total = block_combine(op, total, partial)
    if thread == 0:
        out[cuda.blockIdx.x] = total / divisor


@cuda.jit
def small_planes_kernel(x, out, op, identity, elements, width, divisor):
    thread = cuda.grid(1)
    plane, lane = thread // 32, thread % 32
    if plane < out.size:  # the same for all lanes of a warp
        first = plane * elements
        total = combine_share(x, op, identity, first + lane * width, first + elements, 32 * width, width)
        total = warp_combine(op, total)
        if lane == 0:
            out[plane] = total / divisor


def reduce_planes(x, out, op, planes, elements, divisor, stream) -> None:
    """One number for each of ``planes`` times ``elements`` neighbours in ``x``."""
    identity = np.float32(0 if op == SUM else -np.inf)
    width = 4 if elements % 4 == 0 and device.address(x) % 16 == 0 else 1
    if elements <= SMALL:
        grid = blocks(32 * planes, BLOCK)
        small_planes_kernel[grid, BLOCK, stream](x, out, op, identity, elements, width, divisor)
        return
    parts = 1 if planes >= MANY else blocks(elements, SHARE)
    if parts == 1:
        planes_kernel[planes, BLOCK, stream](x, out, op, identity, elements, 1, elements, width, divisor)
        return
    partials = device.empty(planes * parts, np.float32, stream=stream)
    one = np.float32(1)
    planes_kernel[planes * parts, BLOCK, stream](x, partials, op, identity, elements, parts, SHARE, width, one)
    reduce_planes(partials, out, op, planes, parts, divisor, stream)


@rung(
    planes_kernel,
    small_planes_kernel,
    max_pairs_kernel,
    average_pairs_kernel,
    max_threes_kernel,
    narrow_kernel,
    naive_kernel,
)
def whole_planes(p):
    """A window as large as its plane is a reduction: a block for each plane, or a warp for a small one.

    With few planes each is cut into parts of SHARE elements, a block for each, and what these make is reduced again.
    All other windows, and whole planes of fewer than 32 elements or with indices, are left to `vectorised`.
    """
    elements = p.rows.extent * p.columns.extent
    whole = all(axis.window == axis.extent and axis.padding == 0 for axis in (p.rows, p.columns))
    if whole and elements >= 32 and not p.indices.size:
        divisor = np.float32(elements if p.op == SUM else 1)
        reduce_planes(p.x, p.out, p.op, p.planes, elements, divisor, p.stream)
    else:
        vectorised.launch(p)


LADDER = (naive, narrow, shared, vectorised, whole_planes)
