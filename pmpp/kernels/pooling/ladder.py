"""Pooling: each small window of a feature map becomes one number, its largest or its mean.

Chapter: notebooks/46_pooling_and_activations.ipynb.  PMPP 4e ch. 16.

A window takes at most one comparison or addition for each of its elements. So unless large windows overlap much, the
bound is the time to read the input and write the output once. Kernels lose time by computing where a window lies, by
reading an element again for each window that contains it, and by loading only 4 bytes at a time. Windows, padding and
the ceil mode are PyTorch's. Maps of 16 bits are half as many bytes: means are computed in float32, and rounded once.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, SHARED_LIMIT, blocks
from pmpp.kernels.pooling.windows import (
    AT_ONCE,
    Axis,
    axes_of,
    combine_share,
    finish,
    gather,
    pair_of,
    place_of,
    pooled_extent,
    span,
    walk,
)
from pmpp.kernels.reduction.ladder import MAX, SUM, block_combine, combine, warp_combine
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_pair
from pmpp.runtime.dtypes import known, rounding
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width128, width_of

DTYPES = ("float32", "float16", "bfloat16")
SHORT = DTYPES[1:]
OPERATORS = {"max": MAX, "average": SUM}
BLOCK = 256  # threads per block
LOWEST = np.float32(-np.inf)
NARROW = 2**31  # from this many outputs on, indices have 64 bits; a grid must have fewer blocks than this


def reference(x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> np.ndarray:
    """The pooled maps in float64, computed one window at a time. Arguments as in `arguments`."""
    return reference_with_indices(x, op, kernel, stride, padding, ceil_mode, count_include_pad)[0]


def reference_with_indices(
    x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True
) -> tuple[np.ndarray, np.ndarray]:
    """The reference, and the index of each maximum in its plane (row * W + column): first of equals, last NaN."""
    (kh, kw), (sh, sw), (ph, pw) = pair_of(kernel), pair_of(kernel if stride is None else stride), pair_of(padding)
    h, w = x.shape[2:]
    places = pooled_extent(h, kh, sh, ph, ceil_mode), pooled_extent(w, kw, sw, pw, ceil_mode)
    out, indices = np.empty((*x.shape[:2], *places)), np.empty((*x.shape[:2], *places), np.int64)
    for at in np.ndindex(out.shape):
        top, left = at[2] * sh - ph, at[3] * sw - pw
        # The size of the window, cut off where the padding ends; then its rows and columns that are input.
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

    def add(name: str, shape: tuple[int, ...], *options: typing.Any, dtype: typing.Any = np.float32) -> None:
        for op in OPERATORS:
            x = rng.standard_normal(shape, dtype=np.float32)
            made[f"{op}, {name}"] = x.astype(dtype, copy=False), op, *options

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
    for dtype in known(SHORT):
        add(f"2x2, {dtype}", (2, 2, 6, 32), 2, dtype=dtype)
        add(f"2x2, odd height, {dtype}", (1, 3, 7, 16), 2, dtype=dtype)
        add(f"2x2, half a vector, {dtype}", (1, 2, 4, 24), 2, dtype=dtype)
        add(f"3x3 s2 p1, {dtype}", (2, 2, 9, 48), 3, 2, 1, dtype=dtype)
        add(f"3x3 s2 p1, odd width, {dtype}", (1, 2, 8, 15), 3, 2, 1, dtype=dtype)
        add(f"3x2 s2x3 p1x0, ceil, {dtype}", (2, 1, 10, 9), (3, 2), (2, 3), (1, 0), True, False, dtype=dtype)
        add(f"whole planes, {dtype}", (2, 3, 12, 16), (12, 16), dtype=dtype)
        add(f"whole planes, odd, {dtype}", (2, 3, 7, 7), (7, 7), dtype=dtype)
        add(f"whole planes, large, {dtype}", (1, 1, 24, 26), (24, 26), dtype=dtype)
        with np.errstate(over="ignore"):
            short = rng.choice(extremes, (2, 1, 6, 16)).astype(dtype)
        for op in OPERATORS:
            made[f"{op}, non-finite, {dtype}"] = short, op, 2
    return made


def tolerance(x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> typing.Any:
    """0 for max. A mean of k numbers: at most k - 1 additions and a division, each off by 2^-24 of sum |x| / k.

    2^-149 is the least positive float32. A mean below the normal float32 is off by up to half of that. A mean of 16
    bits is rounded once more.
    """
    if op == "max":
        return 0.0
    options = kernel, stride, padding, ceil_mode, count_include_pad
    size = np.where(np.isfinite(x), np.abs(x), 0)
    mean = reference(size, op, *options)  # of sizes, and so not below that of the result
    allowed = math.prod(pair_of(kernel)) * 2.0**-24 * mean + 2.0**-149
    return allowed + rounding(mean + allowed, x.dtype) if x.dtype.name in SHORT else allowed


def cost(planes: int, h: int, w: int, kernel=2, stride=None, padding=0, ceil_mode=False, itemsize: int = 4) -> Cost:
    """kh * kw - 1 operations per window; x read once and the result written once."""
    (kh, kw), (sh, sw), (ph, pw) = pair_of(kernel), pair_of(kernel if stride is None else stride), pair_of(padding)
    places = pooled_extent(h, kh, sh, ph, ceil_mode) * pooled_extent(w, kw, sw, pw, ceil_mode)
    return Cost(flops=planes * places * (kh * kw - 1), bytes=itemsize * planes * (h * w + places))


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
    return_positions=False,
    out=None,
    stream=0,
) -> Problem:
    """Reduce each window of each feature map to one number.

    Args:
        x: feature maps of shape (N, C, H, W), H and W >= 1, float32, float16 or bfloat16, contiguous.
        op: "max" or "average".
        kernel: the size of a window, an integer below 2^31 or a pair of them for rows and columns; ``x.shape[2:]``
            pools whole planes.
        stride: the distance from one window to the next, given as ``kernel`` is; None for windows side by side.
        padding: on all four sides, at most half of the kernel: minus infinity for max, 0 for average.
        ceil_mode: True to keep a last window that reaches beyond the padded input, if it begins inside the input or the
            left (top) padding.
        count_include_pad: True to divide an average by the number of elements of its window inside the padded input;
            False to divide by the number of its elements inside ``x``.
        return_indices: True to return ``(out, indices)``, for op="max" only. ``indices`` is int64 and has the shape of
            ``out``: the index of each maximum in its plane, row * W + column. Of equal elements it is the first.
        return_positions: True to return ``(out, positions)`` instead, for op="max" and windows of at most 256 elements.
            ``positions`` is uint8 and has the shape of ``out``: the place of each maximum in its window, its row there
            times the window's width plus its column, padding included. It takes an eighth of the bytes of an index, and
            `pmpp.kernels.pooling.backward` takes it.
        out: a device array of the dtype of ``x`` for the result, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, a device array of shape (N, C, P, Q) and the dtype of ``x``, or the pair asked for, without waiting
    for the work to be done. P and Q are `pooled_extent` of rows and columns. A window with a NaN gives NaN (its index
    is that of the last NaN), as in PyTorch. A mean of 16 bits is computed in float32, and rounded to the nearest.
    Dilated windows are not supported.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 16.2; PyTorch's MaxPool2d and AvgPool2d.

    >>> from pmpp.kernels import pooling
    >>> pooling.vectorised(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)).copy_to_host()
    array([[[[5., 7.]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=4, stream=stream)
    op, padded, rows, columns = windows_of(x.shape, op, kernel, stride, padding, ceil_mode, count_include_pad)
    return_indices, local = as_flag("return_indices", return_indices), as_flag("return_positions", return_positions)
    if return_indices and op != MAX:
        raise ValueError("return_indices must be False for op='average': only a maximum has an index")
    if local:
        check_positions("return_positions", "False", op, rows, columns)
        if return_indices:
            raise ValueError("return_positions must be False where return_indices is True")
    shape = (*x.shape[:2], rows.places, columns.places)
    out = device.as_output("out", out, shape=shape, dtype=x.dtype, apart={"x": x}, stream=stream)
    places, kind = return_indices or local, np.uint8 if local else np.int64
    indices = device.empty(shape, kind, stream=stream) if places else no_indices()
    return Problem(
        (out, indices) if places else out,
        stream=stream,
        x=x.reshape(-1),
        out=out.reshape(-1),
        indices=indices.reshape(-1),
        local=local,
        op=op,
        padded=padded,
        planes=x.shape[0] * x.shape[1],
        rows=rows,
        columns=columns,
    )


def windows_of(shape, op, kernel, stride, padding, ceil_mode, count_include_pad) -> tuple[int, bool, Axis, Axis]:
    """The operator's number, whether padding counts, and the axes of maps of that shape; errors as in `arguments`."""
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be 'max' or 'average', was {op!r}")
    ceil_mode, padded = as_flag("ceil_mode", ceil_mode), as_flag("count_include_pad", count_include_pad)
    window, padding = as_pair("kernel", kernel, 1), as_pair("padding", padding, 0)
    stride = window if stride is None else as_pair("stride", stride, 1)
    return OPERATORS[op], padded, *axes_of(shape[2:], window, stride, padding, ceil_mode)


def check_positions(name, none, op, rows, columns) -> None:
    """Raise ValueError, which says that ``name`` must be ``none``, where windows have no position of 8 bits."""
    if op != MAX:
        raise ValueError(f"{name} must be {none} for op='average': only a maximum has a position")
    if rows.window * columns.window > 256:
        size = rows.window, columns.window
        raise ValueError(f"{name} must be {none} for windows of more than 256 elements, had a kernel of {size}")


@device.cached(1)
def no_indices():
    """The empty array that kernels are given if indices are not asked for."""
    return device.empty(0, np.int64)


# --------------------------------------------------------------------------------------------- one thread per output


@cuda.jit
def naive_kernel(x, out, indices, local, op, padded, rows, columns):
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
            indices[i] = place_of(top + y, left + z, row, column, local, rows, columns)


@rung(naive_kernel)
def naive(p):
    """One thread for each output walks through its window.

    Leaves: five 64-bit divisions to find where an output lies. They take more instructions than a window of 2 x 2.
    """
    grid = blocks(p.out.size, BLOCK)
    naive_kernel[grid, BLOCK, p.stream](p.x, p.out, p.indices, p.local, p.op, p.padded, p.rows, p.columns)


# --------------------------------------------------------------------------------------------------- indices in 32 bits


@cuda.jit
def narrow_kernel(x, out, indices, local, op, padded, rows, columns):
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
            indices[i] = place_of(top + y, left + z, row, column, local, rows, columns)


@rung(narrow_kernel, naive_kernel)
def narrow(p):
    """The same with two 32-bit divisions: a remainder is computed by a multiplication and a subtraction.

    With 2^31 outputs or more it is `naive`.

    Leaves: where windows overlap, an element is loaded again for each window that contains it.
    """
    if p.out.size >= NARROW:
        naive.launch(p)
    else:
        grid = blocks(p.out.size, BLOCK)
        narrow_kernel[grid, BLOCK, p.stream](p.x, p.out, p.indices, p.local, p.op, p.padded, p.rows, p.columns)


# ---------------------------------------------------------------------------------------------------- in shared memory

TALL, WIDE = 8, 32  # outputs of a block, one per thread: a warp has 32 neighbours in a row, so its stores coalesce


@cuda.jit
def shared_kernel(x, out, indices, local, op, padded, rows, columns):
    patch = cuda.shared.array(0, np.float32)  # its size is given at the launch
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    across, down = np.uint32((columns.places + WIDE - 1) // WIDE), np.uint32((rows.places + TALL - 1) // TALL)
    block = np.uint32(cuda.blockIdx.x)
    line = np.uint32(block // across)
    plane = np.int64(line // down)
    row, column = TALL * (line - plane * down), WIDE * np.int64(block - line * across)  # the block's first output
    # The rectangle of inputs that the block's windows contain. Beyond the edges of the plane nothing is loaded.
    top, left = max(row * rows.stride - rows.padding, 0), max(column * columns.stride - columns.padding, 0)
    bottom = min((row + TALL - 1) * rows.stride - rows.padding + rows.window, rows.extent)
    right = min((column + WIDE - 1) * columns.stride - columns.padding + columns.window, columns.extent)
    pitch = right - left
    y = ty
    while y < bottom - top:
        z = tx
        while z < pitch:
            patch[y * pitch + z] = widened(x[(plane * rows.extent + top + y) * columns.extent + left + z])
            z += WIDE
        y += TALL
    cuda.syncthreads()  # the patch is complete before a thread reads it

    row, column = row + ty, column + tx
    if row < rows.places and column < columns.places:
        y0, y1, tall = span(row, rows)
        z0, z1, wide = span(column, columns)
        value, y, z = walk(patch, (y0 - top) * pitch + z0 - left, pitch, y1 - y0, z1 - z0, op)
        i = (plane * rows.places + row) * columns.places + column
        out[i] = finish(value, op, padded, tall * wide, (y1 - y0) * (z1 - z0))
        if indices.size:
            indices[i] = place_of(y0 + y, z0 + z, row, column, local, rows, columns)


@rung(shared_kernel, narrow_kernel, naive_kernel)
def shared(p):
    """A block loads the inputs of its 8 x 32 windows into shared memory, each once; overlapping windows share them.

    If the inputs of a block take more than 48 KB, or the grid has 2^31 blocks or more, this is `narrow`. Source: PMPP
    4e section 7.4 (tiles with a halo).

    Leaves: it is slower than `narrow`. The traffic with device memory is the same, because the L1 cache already served
    the repeated loads. Each load still moves 4 bytes.
    """
    tall = (TALL - 1) * p.rows.stride + p.rows.window
    wide = (WIDE - 1) * p.columns.stride + p.columns.window
    grid = p.planes * blocks(p.rows.places, TALL) * blocks(p.columns.places, WIDE)
    if 4 * tall * wide <= SHARED_LIMIT and grid < NARROW:
        launch = shared_kernel[grid, (WIDE, TALL), p.stream, 4 * tall * wide]
        launch(p.x, p.out, p.indices, p.local, p.op, p.padded, p.rows, p.columns)
    else:
        narrow.launch(p)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit(device=True)
def pooled_pairs(op, a, b):
    """The results of two windows of 2 x 2; ``a`` and ``b`` are four neighbours in each of two rows."""
    return combine(op, combine(op, a[0], a[1]), combine(op, b[0], b[1])), combine(
        op, combine(op, a[2], a[3]), combine(op, b[2], b[3])
    )


@cuda.jit(device=True)
def pooled_vectors(op, factor, a, b):
    """The results, times ``factor``, of two or four windows of 2 x 2; ``a`` and ``b`` are neighbours in two rows."""
    if len(a) == 8:
        return scaled_pairs(op, factor, a[:4], b[:4]) + scaled_pairs(op, factor, a[4:], b[4:])
    return scaled_pairs(op, factor, a, b)


@cuda.jit(device=True)
def scaled_pairs(op, factor, a, b):
    p, q = pooled_pairs(op, a, b)
    return p * factor, q * factor


@cuda.jit(device=True)
def pairs(x, out, op, factor, count, vectors, rows, odd):
    """Windows of 2 x 2, side by side: a thread makes four outputs from two rows of eight, with four loads, one store.

    Of 16 bits it makes eight outputs from two rows of sixteen.
    ``count`` threads have work, ``vectors`` for each row of outputs; a plane has ``rows`` rows of outputs.
    """
    i = np.uint32(cuda.grid(1))
    if i < count:
        line = np.uint32(i // vectors)
        above = 2 * line
        if odd:  # each plane has a row at its end that no window contains
            above += line // rows
        w = width128(x)
        width = 2 * w * vectors
        first = above * width + 2 * w * (i - line * vectors)
        a, b = widened(load128(x, first)), widened(load128(x, first + w))
        c, d = widened(load128(x, first + width)), widened(load128(x, first + width + w))
        results = pooled_vectors(op, factor, a, c) + pooled_vectors(op, factor, b, d)
        store128(out, np.uint64(w) * np.uint64(i), results)


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
    """For each of four or eight neighbouring columns, the largest of three rows."""
    return largest_of_three(widened(load128(x, first)), widened(load128(x, second)), widened(load128(x, third)))


@cuda.jit(device=True)
def largest_of_three(a, b, c):
    if len(a) == 8:
        return largest_of_fours(a[:4], b[:4], c[:4]) + largest_of_fours(a[4:], b[4:], c[4:])
    return largest_of_fours(a, b, c)


@cuda.jit(device=True)
def largest_of_fours(a, b, c):
    return largest(a[0], b[0], c[0]), largest(a[1], b[1], c[1]), largest(a[2], b[2], c[2]), largest(a[3], b[3], c[3])


@cuda.jit(device=True)
def in_threes(left, v):
    """The largest of each second column of ``v`` and its two neighbours; ``left`` is the column before the first."""
    if len(v) == 8:
        return threes_of_four(left, v[:4]) + threes_of_four(v[3], v[4:])
    return threes_of_four(left, v)


@cuda.jit(device=True)
def threes_of_four(left, v):
    return largest(left, v[0], v[1]), largest(v[1], v[2], v[3])


@cuda.jit
def max_threes_kernel(x, out, count, vectors, rows, height):
    """Windows of 3 x 3, stride 2, padding 1: four outputs take nine columns, the thread's eight and one on the left.

    Of 16 bits eight outputs take seventeen columns.
    """
    thread, w = np.uint32(cuda.grid(1)), width128(x)
    i = np.uint32(min(thread, count - 1))  # all lanes of a warp take part in the shuffle
    line = np.uint32(i // vectors)
    plane = np.uint32(line // rows)
    row, width = 2 * (line - plane * rows), 2 * w * vectors
    # Beyond an edge the row at the edge is read instead: an element seen twice does not change a maximum.
    above, below = max(row, 1) - 1, min(row + 1, height - 1)
    place = i - line * vectors
    column = plane * height * width + 2 * w * place
    first, second, third = column + above * width, column + row * width, column + below * width
    low = largest_of_rows(x, first, second, third)
    high = largest_of_rows(x, first + w, second + w, third + w)
    left = cuda.shfl_up_sync(FULL_WARP, high[-1], 1)  # the lane on the left has the column that is missing
    if place == 0:
        left = low[0]
    elif cuda.laneid == 0:
        left = largest(widened(x[first - 1]), widened(x[second - 1]), widened(x[third - 1]))
    if thread < count:
        store128(out, np.uint64(w) * np.uint64(i), in_threes(left, low) + in_threes(low[-1], high))


@cuda.jit(device=True)
def later(best, where, value, place):
    """The larger of the best so far and of an element after it, with its place. Of equal ones the first; a NaN wins."""
    if value > best or value != value:
        return value, place
    return best, where


@cuda.jit(device=True)
def winner_of_four(a, b, c, d):
    best, where = later(a, 0, b, 1)
    best, where = later(best, where, c, 2)
    return later(best, where, d, 3)


@cuda.jit(device=True)
def winner_of_nine(start, a, b, c, d, e, f, g, h, i):
    """The largest of a window and its position. ``start`` is the first position inside the input; outside is -inf."""
    best, where = later(LOWEST, start, a, 0)
    best, where = later(best, where, b, 1)
    best, where = later(best, where, c, 2)
    best, where = later(best, where, d, 3)
    best, where = later(best, where, e, 4)
    best, where = later(best, where, f, 5)
    best, where = later(best, where, g, 6)
    best, where = later(best, where, h, 7)
    return later(best, where, i, 8)


@cuda.jit(device=True)
def store_winners(out, positions, i, p, q, r, s):
    """Store four results and, as one number of 32 bits, their positions. ``out`` may be empty."""
    if out.size:
        store128(out, 4 * np.uint64(i), (p[0], q[0], r[0], s[0]))
    positions[i] = np.uint32(p[1] | q[1] << 8 | r[1] << 16 | s[1] << 24)


@cuda.jit
def pairs_positions_kernel(x, out, positions, count, vectors, rows, odd):
    """`max_pairs_kernel` with positions."""
    i = np.uint32(cuda.grid(1))
    if i < count:
        line = np.uint32(i // vectors)
        above = 2 * line
        if odd:
            above += line // rows
        width = 8 * vectors
        first = above * width + 8 * (i - line * vectors)
        a, b = load128(x, first), load128(x, first + 4)
        c, d = load128(x, first + width), load128(x, first + width + 4)
        p, q = winner_of_four(a[0], a[1], c[0], c[1]), winner_of_four(a[2], a[3], c[2], c[3])
        r, s = winner_of_four(b[0], b[1], d[0], d[1]), winner_of_four(b[2], b[3], d[2], d[3])
        store_winners(out, positions, i, p, q, r, s)


@cuda.jit
def threes_positions_kernel(x, out, positions, count, vectors, rows, height):
    """`max_threes_kernel` with positions. An element seen twice could win twice, so here outside is minus infinity."""
    thread = np.uint32(cuda.grid(1))
    i = np.uint32(min(thread, count - 1))  # all lanes of a warp take part in the shuffles
    line = np.uint32(i // vectors)
    plane = np.uint32(line // rows)
    row, width = 2 * (line - plane * rows), 8 * vectors
    place = i - line * vectors
    here = plane * height * width + 8 * place + row * width
    a = b = e = f = (LOWEST, LOWEST, LOWEST, LOWEST)
    c, d = load128(x, here), load128(x, here + 4)
    if row > 0:
        a, b = load128(x, here - width), load128(x, here - width + 4)
    if row + 1 < height:
        e, f = load128(x, here + width), load128(x, here + width + 4)
    # The lane on the left has the column that is missing. Lane 0 loads it, and beyond an edge there is none.
    left = cuda.shfl_up_sync(FULL_WARP, b[3], 1)
    middle = cuda.shfl_up_sync(FULL_WARP, d[3], 1)
    right = cuda.shfl_up_sync(FULL_WARP, f[3], 1)
    if place == 0:
        left = middle = right = LOWEST
    elif cuda.laneid == 0:
        left = x[here - width - 1] if row > 0 else LOWEST
        middle = x[here - 1]
        right = x[here + width - 1] if row + 1 < height else LOWEST
    if thread < count:
        start = 0 if row > 0 else 3
        p = winner_of_nine(start + (place == 0), left, a[0], a[1], middle, c[0], c[1], right, e[0], e[1])
        q = winner_of_nine(start, a[1], a[2], a[3], c[1], c[2], c[3], e[1], e[2], e[3])
        r = winner_of_nine(start, a[3], b[0], b[1], c[3], d[0], d[1], e[3], f[0], f[1])
        s = winner_of_nine(start, b[1], b[2], b[3], d[1], d[2], d[3], f[1], f[2], f[3])
        store_winners(out, positions, i, p, q, r, s)


@cuda.jit(device=True)
def pooled_window(x, out, op, identity, padded, rows, columns, down, across):
    """A thread for each window of ``len(across)`` columns, as in `narrow_kernel`."""
    i = np.uint32(cuda.grid(1))
    if i < out.size:
        line = np.uint32(i // np.uint32(columns.places))
        plane = np.int64(line // np.uint32(rows.places))
        row, column = line - plane * rows.places, i - line * columns.places
        top, bottom, tall = span(row, rows)
        left, right, wide = span(column, columns)
        begin = column * columns.stride - columns.padding
        value = gather(x, plane, top, bottom, begin, rows, columns, op, identity, down, across)
        out[i] = finish(value, op, padded, tall * wide, (bottom - top) * (right - left))


@cuda.jit
def max_windows_kernel(x, out, padded, rows, columns, down, across):
    pooled_window(x, out, MAX, LOWEST, padded, rows, columns, down, across)


@cuda.jit
def average_windows_kernel(x, out, padded, rows, columns, down, across):
    pooled_window(x, out, SUM, np.float32(0), padded, rows, columns, down, across)


COLUMNS = 8  # of a window, at most: each number of columns is a kernel of its own


def launch_windows(p) -> bool:
    """Launch the kernel for windows of so many columns. If there is none, launch nothing and return False."""
    width, outputs = p.columns.window, p.planes * p.rows.places * p.columns.places
    if width > COLUMNS or outputs >= NARROW or p.indices.size:
        return False
    down = blocks(p.rows.window, blocks(p.rows.window, AT_ONCE // width))
    kernel = max_windows_kernel if p.op == MAX else average_windows_kernel
    launch = kernel[blocks(outputs, BLOCK), BLOCK, p.stream]
    launch(p.x, p.out, p.padded, p.rows, p.columns, (0,) * down, (0,) * width)
    return True


def launch_wide(p) -> bool:
    """Launch the kernel that is made for windows of this kind. If there is none, launch nothing and return False."""
    rows, columns, width = p.rows, p.columns, width_of(p.x.dtype)
    outputs = p.planes * rows.places * columns.places
    if columns.extent % (2 * width) or outputs >= NARROW or (p.indices.size and not p.local):
        return False
    if p.local and width != 4:
        return False
    if device.address(p.x) % 16 or device.address(p.out) % 16:
        return False
    threads, vectors, lines = np.uint32(outputs // width), np.uint32(columns.places // width), np.uint32(rows.places)
    launch = blocks(int(threads), BLOCK), BLOCK, p.stream
    kind = {(axis.window, axis.stride, axis.padding) for axis in (rows, columns)}
    if kind == {(2, 2, 0)} and rows.places == rows.extent // 2:
        odd = rows.extent % 2 == 1
        if p.local:
            pairs_positions_kernel[launch](p.x, p.out, p.indices.view(np.uint32), threads, vectors, lines, odd)
        else:
            kernel = max_pairs_kernel if p.op == MAX else average_pairs_kernel
            kernel[launch](p.x, p.out, threads, vectors, lines, odd)
        return True
    fits = 2 * rows.places <= rows.extent + 1 and 2 * columns.places == columns.extent
    if kind == {(3, 2, 1)} and p.op == MAX and fits:
        height = np.uint32(rows.extent)
        if p.local:
            threes_positions_kernel[launch](p.x, p.out, p.indices.view(np.uint32), threads, vectors, lines, height)
        else:
            max_threes_kernel[launch](p.x, p.out, threads, vectors, lines, height)
        return True
    return False


@rung(
    max_pairs_kernel,
    average_pairs_kernel,
    max_threes_kernel,
    pairs_positions_kernel,
    threes_positions_kernel,
    max_windows_kernel,
    average_windows_kernel,
    narrow_kernel,
    naive_kernel,
)
def vectorised(p):
    """A thread makes four outputs from 128-bit loads, all in flight at once, and stores them together.

    There are kernels for windows of 2 x 2 side by side, and for max over 3 x 3 with stride 2 and padding 1. Their rows
    must be a multiple of 8 elements wide (of 16, if an element has 16 bits) and begin at multiples of 16 bytes. Of
    other windows, of up to COLUMNS columns, a thread makes one, but asks for 16 elements of it before it needs the
    first. Larger windows go to `narrow`; so do calls that ask for indices, or for positions where none of these kernels
    has them.

    Leaves: a window as large as its plane is the work of a single thread.
    """
    if not launch_wide(p) and not launch_windows(p):
        narrow.launch(p)


# -------------------------------------------------------------------------------------------------------- whole planes

# Elements that a block reduces where a plane is cut into parts: 32 per thread, 8 loads of 128 bits. With fewer, more
# blocks share the work, but more of a block's time goes into its tree, and there are more results to reduce again.
SHARE = 8192
# From this many planes on, each has one block. An H200 holds 132 x 8 = 1056 blocks of 256 threads at once, so as many
# planes fill it, and a second launch would only cost time.
MANY = 1024
# A plane of at most SMALL elements is reduced by one warp: 16 elements per lane, 4 loads of 128 bits. A block would
# have 2 elements per thread, and mostly wait at its barriers. Where there are CROWD planes or more, their warps alone
# fill a GPU, and planes of up to LARGE elements are a warp's, too: its lanes need no barrier.
SMALL, LARGE = 512, 4096
CROWD = 4096


@cuda.jit
def planes_kernel(x, out, op, identity, elements, parts, share, width, divisor):
    thread, threads = cuda.threadIdx.x, cuda.blockDim.x
    plane = cuda.blockIdx.x // parts
    begin = (cuda.blockIdx.x - plane * parts) * share
    first, end = plane * elements + begin, plane * elements + min(begin + share, elements)
    total = combine_share(x, op, identity, first + thread * width, end, threads * width, width)
    partial = cuda.shared.array(32, np.float32)  # reduction's block_combine reads 32, also of warps that a block lacks
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
    """Reduce each run of ``elements`` neighbours in flat ``x``, ``planes`` of them, and divide by ``divisor``."""
    identity = np.float32(0 if op == SUM else -np.inf)
    wide = width_of(x.dtype)
    width = wide if elements % wide == 0 and device.address(x) % 16 == 0 else 1
    if elements <= (LARGE if planes >= CROWD else SMALL):
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
    pairs_positions_kernel,
    threes_positions_kernel,
    max_windows_kernel,
    average_windows_kernel,
    narrow_kernel,
    naive_kernel,
)
def whole_planes(p):
    """A window as large as its plane is a reduction: a block for each plane, or a warp for a small one.

    If planes are few and large, each is cut into parts of SHARE elements. A block reduces each part, and the results
    are reduced in the same way. All other windows go to `vectorised`. So do whole planes with indices, and those of
    fewer than 32 elements, which have not even one element for each lane of a warp.
    """
    elements = p.rows.extent * p.columns.extent
    whole = all(axis.window == axis.extent and axis.padding == 0 for axis in (p.rows, p.columns))
    if whole and elements >= 32 and not p.indices.size:
        divisor = np.float32(elements if p.op == SUM else 1)
        reduce_planes(p.x, p.out, p.op, p.planes, elements, divisor, p.stream)
    else:
        vectorised.launch(p)


LADDER = (naive, narrow, shared, vectorised, whole_planes)
