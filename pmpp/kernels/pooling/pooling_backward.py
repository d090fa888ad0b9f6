"""Pooling, backwards: from the gradient of the results to the gradient of the input.

Chapter: notebooks/78_gradients_of_pooling_and_activations.ipynb.  PMPP 4e ch. 16.

A maximum hands its gradient to the one element that won; a mean hands an equal share to every element of its window.
There is next to no arithmetic, so the bound is the time to read the gradients, and what tells the winners, and to write
the gradient of the input once. A winner costs 8 bytes as a 64-bit index, 1 byte as a position in its window, and the
whole input if it has to be found again. Kernels lose time by atomic additions, by asking each window again for each of
its elements, and by index arithmetic.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.pooling.ladder import (
    BLOCK,
    DTYPES,
    MAX,
    NARROW,
    SHORT,
    SUM,
    check_positions,
    finish,
    launch_wide,
    pairs_positions_kernel,
    reference_with_indices,
    threes_positions_kernel,
    windows_of,
)
from pmpp.kernels.pooling.windows import covering, pair_of, place_of, pooled_extent, span, walk
from pmpp.runtime import device
from pmpp.runtime.dtypes import held, known, rounding
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width_of

f0 = np.float32(0)
FOUR, EIGHT = (f0,) * 4, (f0,) * 8  # sums to begin with, as many as 128 bits hold of float32 and of 16 bits


def reference(dy, x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> np.ndarray:
    """The gradient of ``x`` in float64, one window at a time. Arguments as in `arguments`.

    What is beyond the largest number of 16 bits is infinite.
    """
    (kh, kw), (sh, sw), (ph, pw) = pair_of(kernel), pair_of(kernel if stride is None else stride), pair_of(padding)
    h, w = x.shape[2:]
    dx = np.zeros(x.shape)
    winners = reference_with_indices(x, op, kernel, stride, padding, ceil_mode)[1] if op == "max" else None
    for at in np.ndindex(dy.shape):
        plane = dx[at[:2]]
        if winners is not None:
            with np.errstate(invalid="ignore"):  # inf - inf
                plane[divmod(winners[at], w)] += dy[at]
            continue
        top, left = at[2] * sh - ph, at[3] * sw - pw
        area = (min(top + kh, h + ph) - top) * (min(left + kw, w + pw) - left)
        inside = plane[max(top, 0) : top + kh, max(left, 0) : left + kw]  # a view: what is added is added to dx
        with np.errstate(invalid="ignore"):
            inside += np.float64(dy[at]) / (area if count_include_pad else inside.size)
    return held(dx, dy.dtype) if dy.dtype.name in SHORT else dx


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(dy, x, op, kernel, stride, padding, ceil_mode, count_include_pad)``."""
    rng = np.random.default_rng(78) if rng is None else rng
    made = {}

    def add(name: str, shape: tuple[int, ...], *options: typing.Any, x=None, dtype=np.float32) -> None:
        for op in ("max", "average"):
            dy = rng.standard_normal(pooled_shape(shape, *options[:4]), dtype=np.float32)
            given = rng.standard_normal(shape, dtype=np.float32) if x is None else x
            made[f"{op}, {name}"] = dy.astype(dtype, copy=False), given.astype(dtype, copy=False), op, *options

    add("one", (1, 1, 1, 1), 1)
    add("2x2", (2, 3, 6, 16), 2)
    add("2x2, odd height", (2, 3, 7, 8), 2)
    add("2x2, odd width", (2, 1, 6, 13), 2)
    add("2x2, ceil", (1, 2, 5, 8), 2, 2, 0, True)
    add("3x3 s2 p1", (3, 2, 9, 24), 3, 2, 1)
    add("3x3 s2 p1, even height", (1, 3, 12, 36), 3, 2, 1)
    add("3x3 s2 p1, odd width", (1, 2, 8, 15), 3, 2, 1)
    add("3x3 s2 p1, ceil", (1, 2, 8, 12), 3, 2, 1, True)
    add("3x3 s1 p1, without padding in the count", (1, 2, 5, 6), 3, 1, 1, False, False)
    add("3x2 s2x3 p1x0, ceil", (2, 1, 10, 9), (3, 2), (2, 3), (1, 0), True, False)
    add("stride beyond the window", (1, 2, 11, 13), 2, 5)
    add("a row", (2, 1, 1, 130), (1, 3), (1, 1))
    add("no images", (0, 3, 4, 4), 2)
    add("whole planes", (2, 3, 12, 16), (12, 16))
    add("whole planes, more than 256", (1, 2, 18, 19), (18, 19))
    add("ties", (1, 2, 7, 8), 3, 2, 1, x=rng.integers(0, 2, (1, 2, 7, 8)).astype(np.float32))
    extremes = np.array([0.0, -0.0, 1e-45, 1e30, np.inf, -np.inf, np.nan, 1.0], np.float32)
    for options in ((2,), (3, 2, 1)):
        add(f"non-finite, {options}", (2, 1, 8, 16), *options, x=rng.choice(extremes, (2, 1, 8, 16)))
    add("all -inf", (1, 1, 4, 8), 3, 2, 1, x=np.full((1, 1, 4, 8), -np.inf, np.float32))
    for op in ("max", "average"):
        dy, *rest = made[f"{op}, 3x3 s2 p1"]
        made[f"{op}, non-finite gradients"] = rng.choice(extremes, dy.shape), *rest
    for dtype in known(SHORT):
        add(f"2x2, {dtype}", (2, 2, 6, 16), 2, dtype=dtype)
        add(f"2x2, odd height, half a vector, {dtype}", (1, 3, 7, 12), 2, dtype=dtype)
        add(f"3x3 s2 p1, {dtype}", (2, 2, 9, 24), 3, 2, 1, dtype=dtype)
        add(f"3x3 s2 p1, whole patches, {dtype}", (1, 2, 7, 32), 3, 2, 1, dtype=dtype)
        add(f"3x3 s2 p1, odd width, {dtype}", (1, 2, 8, 15), 3, 2, 1, dtype=dtype)
        add(f"3x3 s1 p1, {dtype}", (1, 2, 5, 16), 3, 1, 1, False, False, dtype=dtype)
        add(f"3x2 s2x3 p1x0, ceil, {dtype}", (2, 1, 10, 9), (3, 2), (2, 3), (1, 0), True, False, dtype=dtype)
        add(f"whole planes, {dtype}", (1, 2, 12, 16), (12, 16), dtype=dtype)
        add(f"ties, {dtype}", (1, 1, 7, 8), 3, 2, 1, x=rng.integers(0, 2, (1, 1, 7, 8)), dtype=dtype)
    return made


def pooled_shape(shape, kernel=2, stride=None, padding=0, ceil_mode=False) -> tuple[int, ...]:
    """The shape of the result of the forward pass.

    >>> pooled_shape((2, 3, 9, 24), 3, 2, 1)
    (2, 3, 5, 12)
    """
    sizes = pair_of(kernel), pair_of(kernel if stride is None else stride), pair_of(padding)
    axes = zip(shape[2:], *sizes, strict=True)
    return *shape[:2], *(pooled_extent(*axis, ceil_mode) for axis in axes)


def overlap(kernel, stride=None) -> int:
    """The most windows that an element can lie in.

    >>> overlap(2), overlap(3, 2)
    (1, 4)
    """
    window, step = pair_of(kernel), pair_of(kernel if stride is None else stride)
    return math.prod(-(-k // s) for k, s in zip(window, step, strict=True))


def tolerance(dy, x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> typing.Any:
    """How far from the reference is right, element by element, for a sum of m terms in any order.

    The m - 1 additions are off by 2^-24 each of the sum of sizes, and a mean has m quotients, each off by 2^-24 of
    itself; one 2^-24 more is for products of such errors. A single gradient is copied. 2^-149 is the least float32. A
    sum of 16 bits is rounded once more.
    """
    m = overlap(kernel, stride)
    if op == "max" and m == 1:
        return 0.0
    size = np.where(np.isfinite(dy), np.abs(dy), 0)
    wide = size.astype(np.float32)
    summed = reference(wide, x, op, kernel, stride, padding, ceil_mode, count_include_pad)
    allowed = (m + (op != "max")) * (2.0**-24 * summed + 2.0**-149)
    return allowed + rounding(summed + allowed, dy.dtype) if dy.dtype.name in SHORT else allowed


def cost(
    planes: int, h: int, w: int, kernel=2, stride=None, padding=0, ceil_mode=False, told: int = 1, itemsize: int = 4
) -> Cost:
    """One addition for each window of a maximum, kh * kw for a mean; gradients read and written once.

    ``told``: the bytes that tell a window's winner: 1 for a position, 8 for a 64-bit index, 0 for a mean.
    """
    places = math.prod(pooled_shape((1, 1, h, w), kernel, stride, padding, ceil_mode))
    additions = 1 if told else math.prod(pair_of(kernel))
    return Cost(flops=planes * places * additions, bytes=planes * (itemsize * h * w + (itemsize + told) * places))


def arguments(
    dy,
    x,
    op="max",
    kernel=2,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    *,
    positions=None,
    out=None,
    stream=0,
) -> Problem:
    """The gradient of the input of a pooling, from the gradient of its result.

    Args:
        dy: the gradient of the result, of its shape (N, C, P, Q), float32, float16 or bfloat16, contiguous.
        x: the input of the forward pass, (N, C, H, W), of the dtype of ``dy``, contiguous. Its values are read only to
            find the maxima again. For an average, and with ``positions``, its shape will do: a tuple of four.
        op, kernel, stride, padding, ceil_mode, count_include_pad: as given to the forward pass.
        positions: for op="max", what the forward pass returns with ``return_positions=True``: uint8, of the shape of
            ``dy``. None to find the maxima again. Their values are not checked: with those of a forward pass of another
            kernel, stride or padding, `scatter` writes beside the result, and the other rungs leave such places out.
        out: a device array of the shape of ``x`` and the dtype of ``dy`` for the result, apart from the other arrays in
            memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, a device array of shape (N, C, H, W) and the dtype of ``dy``, without waiting for the work to be
    done. Where windows overlap, an element gets the sum of what its windows give it, added up in float32. Of equal
    elements the first of a window gets its gradient, and of several NaNs the last, as in PyTorch.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 16.2; PyTorch's MaxPool2d and AvgPool2d.

    >>> from pmpp.kernels.pooling import pooling_backward
    >>> dy = np.float32([[[[10, 20]]]])
    >>> x = np.float32([[[[1, 2, 7, 6], [3, 4, 5, 8]]]])
    >>> pooling_backward.gather(dy, x, "max", 2).copy_to_host()
    array([[[[ 0.,  0.,  0.,  0.],
             [ 0., 10.,  0., 20.]]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    shape = x
    if isinstance(x, tuple):
        if len(x) != 4 or not all(type(n) is int and n >= 0 for n in x):
            raise ValueError(f"x must be an array of four dimensions, or its shape as a tuple of integers, was {x!r}")
    else:
        x = device.as_input("x", x, dtypes=DTYPES, ndim=4, stream=stream)
        shape = x.shape
    op, padded, rows, columns = windows_of(shape, op, kernel, stride, padding, ceil_mode, count_include_pad)
    places = *shape[:2], rows.places, columns.places
    dy = device.as_input("dy", dy, dtypes=DTYPES if isinstance(x, tuple) else x.dtype, ndim=4, stream=stream)
    if tuple(dy.shape) != places:
        windows = f"kernel={kernel!r}, stride={stride!r}, padding={padding!r} and ceil_mode={ceil_mode!r}"
        raise ValueError(f"dy must have the shape of the result, {places} for {windows}, had {tuple(dy.shape)}")
    if positions is not None:
        check_positions("positions", "None", op, rows, columns)
        positions = device.as_input("positions", positions, dtypes=np.uint8, shape=places, stream=stream)
    elif op == MAX and isinstance(x, tuple):
        raise ValueError(f"x must be the input itself where op='max' and there are no positions, was {x!r}")
    given = {"dy": dy, "positions": positions} | ({} if isinstance(x, tuple) else {"x": x})
    out = device.as_output("out", out, shape=tuple(shape), dtype=dy.dtype, apart=given, stream=stream)
    return Problem(
        out,
        stream=stream,
        dy=dy.reshape(-1),
        x=nothing(dy.dtype) if isinstance(x, tuple) else x.reshape(-1),
        positions=nothing(np.uint8) if positions is None else positions.reshape(-1),
        out=out.reshape(-1),
        op=op,
        padded=padded,
        planes=shape[0] * shape[1],
        rows=rows,
        columns=columns,
    )


@device.cached(8)
def nothing(dtype):
    """The empty array that kernels are given in the place of one that they do not need."""
    return device.empty(0, dtype)


# ------------------------------------------------------------------------------------- each window gives, by atomics


@cuda.jit
def clear_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(0)


@cuda.jit
def scatter_kernel(dy, positions, x, out, op, padded, rows, columns):
    i = cuda.grid(1)
    if i < dy.size:
        column, row = i % columns.places, i // columns.places % rows.places
        plane = i // columns.places // rows.places
        top, bottom, tall = span(row, rows)
        left, right, wide = span(column, columns)
        first = (plane * rows.extent + top) * columns.extent + left
        if op == MAX:
            if positions.size:
                position = np.int64(positions[i])
                y = row * rows.stride - rows.padding + position // columns.window
                z = column * columns.stride - columns.padding + position % columns.window
                winner = (plane * rows.extent + y) * columns.extent + z
            else:
                _, y, z = walk(x, first, columns.extent, bottom - top, right - left, op)
                winner = first + y * columns.extent + z
            cuda.atomic.add(out, winner, widened(dy[i]))
        else:
            share = finish(widened(dy[i]), op, padded, tall * wide, (bottom - top) * (right - left))
            for y in range(bottom - top):
                for z in range(right - left):
                    cuda.atomic.add(out, first + y * columns.extent + z, share)


@cuda.jit
def round_kernel(sums, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = sums[i]


@rung(clear_kernel, scatter_kernel, round_kernel)
def scatter(p):
    """One thread for each window adds its gradient to the element that won, or a share of it to each.

    The result is set to 0 before. Windows may overlap, so the additions are atomic. Their order changes from run to
    run, and with it the rounding of a sum of three terms or more. Sums of 16 bits are added up in float32, in an array
    of their own, and rounded by a kernel of their own.

    Leaves: the result is written as zeros, read, and written again; and two runs may differ in the last bits.
    """
    short = p.out.dtype != np.float32
    sums = device.empty(p.out.size, np.float32, stream=p.stream) if short else p.out
    clear_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](sums)
    grid = blocks(p.dy.size, BLOCK)
    scatter_kernel[grid, BLOCK, p.stream](p.dy, p.positions, p.x, sums, p.op, p.padded, p.rows, p.columns)
    if short:
        round_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](sums, p.out)


# ------------------------------------------------------------------------------------ each element takes, no atomics


@cuda.jit(device=True)
def given_by(dy, positions, x, at, plane, i, j, row, column, op, padded, rows, columns):
    """What window (i, j), number ``at`` of all, gives to element (row, column) of its plane."""
    top, bottom, tall = span(i, rows)
    left, right, wide = span(j, columns)
    if op == SUM:
        return finish(widened(dy[at]), op, padded, tall * wide, (bottom - top) * (right - left))
    if positions.size:
        won = positions[at] == place_of(row, column, i, j, True, rows, columns)
    else:
        first = (plane * rows.extent + top) * columns.extent + left
        _, y, z = walk(x, first, columns.extent, bottom - top, right - left, op)
        won = top + y == row and left + z == column
    return widened(dy[at]) if won else np.float32(0)


@cuda.jit
def gather_kernel(dy, positions, x, out, op, padded, rows, columns):
    e = cuda.grid(1)
    if e < out.size:
        column, row = e % columns.extent, e // columns.extent % rows.extent
        plane = e // columns.extent // rows.extent
        i, i_end = covering(row, rows)
        j_begin, j_end = covering(column, columns)
        total = np.float32(0)
        while i < i_end:
            j = j_begin
            while j < j_end:
                at = (plane * rows.places + i) * columns.places + j
                total += given_by(dy, positions, x, at, plane, i, j, row, column, op, padded, rows, columns)
                j += 1
            i += 1
        out[e] = total


@rung(gather_kernel)
def gather(p):
    """One thread for each element of the result asks the windows that contain it, and adds what they give.

    Nobody else adds to this element, so nothing is atomic and nothing is set to 0 before. The windows are asked in
    the order of the rows, so every run gives the same bits.

    Leaves: without positions, each of a window's elements finds its maximum again, by reading the whole window.
    """
    gather_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](
        p.dy, p.positions, p.x, p.out, p.op, p.padded, p.rows, p.columns
    )


# -------------------------------------------------------------------------------------------- each winner found once


@cuda.jit
def winners_kernel(x, positions, rows, columns):
    i = cuda.grid(1)
    if i < positions.size:
        column, row = i % columns.places, i // columns.places % rows.places
        plane = i // columns.places // rows.places
        top, bottom, _ = span(row, rows)
        left, right, _ = span(column, columns)
        first = (plane * rows.extent + top) * columns.extent + left
        _, y, z = walk(x, first, columns.extent, bottom - top, right - left, MAX)
        positions[i] = place_of(top + y, left + z, row, column, True, rows, columns)


def with_positions(p) -> Problem:
    """The same problem with the positions of all winners: one byte each, or eight where windows exceed 256 elements.

    The wide kernels of `pmpp.kernels.pooling.ladder.vectorised` find them where they can.
    """
    if p.op != MAX or p.positions.size:
        return p
    small = p.rows.window * p.columns.window <= 256
    positions = device.empty(p.dy.size, np.uint8 if small else np.int64, stream=p.stream)
    if not (small and launch_wide(p.replace(out=nothing(np.float32), indices=positions, local=True))):
        winners_kernel[blocks(p.dy.size, BLOCK), BLOCK, p.stream](p.x, positions, p.rows, p.columns)
    return p.replace(positions=positions)


@rung(winners_kernel, pairs_positions_kernel, threes_positions_kernel, gather_kernel)
def once(p):
    """Each window's winner is found once, and kept as one byte: its position in the window.

    A first kernel reads the input and writes the positions, as a forward pass can do from the start. Then `gather`
    reads positions: 1 byte where PyTorch's index has 8. With positions given, or for means, this is `gather`.
    A window is read by one thread, also one as large as its plane.

    Leaves: five 64-bit divisions for each element, 4 bytes to a store, and each of four neighbours asks the same
    windows.
    """
    gather.launch(with_positions(p))


# ------------------------------------------------------------------------------------ four neighbours for a thread


@cuda.jit(device=True)
def add_to_four(sums, value, begin, end):
    a, b, c, d = sums
    zero = np.float32(0)
    a += value if begin <= 0 < end else zero
    b += value if begin <= 1 < end else zero
    c += value if begin <= 2 < end else zero
    d += value if begin <= 3 < end else zero
    return a, b, c, d


@cuda.jit(device=True)
def add_to(sums, value, begin, end):
    """Add ``value`` to the sums from number ``begin`` up to, but not including, number ``end``."""
    if len(sums) == 8:
        return add_to_four(sums[:4], value, begin, end) + add_to_four(sums[4:], value, begin - 4, end - 4)
    return add_to_four(sums, value, begin, end)


@cuda.jit(device=True)
def store_four(out, e, sums, end):
    """Store four sums from out[e] on, as far as there are elements before ``end``, one at least."""
    out[e] = sums[0]
    if e + 1 < end:
        out[e + 1] = sums[1]
    if e + 2 < end:
        out[e + 2] = sums[2]
    if e + 3 < end:
        out[e + 3] = sums[3]


@cuda.jit(device=True)
def store_some(out, e, sums, end):
    if len(sums) == 8:
        store_four(out, e, sums[:4], end)
        if e + 4 < end:
            store_four(out, e + 4, sums[4:], end)
    else:
        store_four(out, e, sums, end)


@cuda.jit(device=True)
def quads(dy, positions, out, op, padded, count, vectors, rows, columns, sums):
    """Four neighbours in a row: each window that contains one of them is asked once.

    ``count`` threads have work, ``vectors`` for each row; the last of a row has fewer than four elements where the
    width is no multiple of four. ``sums`` are four zeros; or eight, for eight neighbours of 16 bits.
    """
    many = len(sums)
    thread = np.uint32(cuda.grid(1))
    if thread < count:
        line = np.uint32(thread // vectors)  # a row of the result, counted through all planes
        plane = np.int64(np.uint32(line // np.uint32(rows.extent)))
        row = np.int64(line) - plane * rows.extent
        column = many * np.int64(np.uint32(thread - np.uint32(line * vectors)))
        i, i_end = covering(row, rows)
        j_begin, _ = covering(column, columns)
        _, j_end = covering(min(column + many - 1, columns.extent - 1), columns)
        while i < i_end:
            top, bottom, tall = span(i, rows)
            above = (row + rows.padding - i * rows.stride) * columns.window  # positions in the rows above this one
            j = j_begin
            while j < j_end:
                at = np.uint64((plane * rows.places + i) * columns.places + j)
                begin = j * columns.stride - columns.padding - column  # of the window, counted from the first of four
                value = widened(dy[at])
                if op == MAX:
                    z = np.int64(positions[at]) - above
                    inside = 0 <= z < columns.window
                    begin = begin + z if inside else np.int64(-1)
                    end = begin + 1
                else:
                    left, right, wide = span(j, columns)
                    value = finish(value, op, padded, tall * wide, (bottom - top) * (right - left))
                    end = begin + columns.window
                sums = add_to(sums, value, begin, end)
                j += 1
            i += 1
        e = np.int64(line) * columns.extent + column
        if columns.extent % many == 0:
            store128(out, e, sums)
        else:
            store_some(out, e, sums, (np.int64(line) + 1) * columns.extent)


# The operator, and how many neighbours a thread has, are known when these are compiled.
@cuda.jit
def max_quads_kernel(dy, positions, out, count, vectors, rows, columns):
    quads(dy, positions, out, MAX, False, count, vectors, rows, columns, FOUR)


@cuda.jit
def max_octets_kernel(dy, positions, out, count, vectors, rows, columns):
    quads(dy, positions, out, MAX, False, count, vectors, rows, columns, EIGHT)


@cuda.jit
def average_quads_kernel(dy, positions, out, padded, count, vectors, rows, columns):
    quads(dy, positions, out, SUM, padded, count, vectors, rows, columns, FOUR)


@cuda.jit
def average_octets_kernel(dy, positions, out, padded, count, vectors, rows, columns):
    quads(dy, positions, out, SUM, padded, count, vectors, rows, columns, EIGHT)


@rung(
    max_quads_kernel,
    average_quads_kernel,
    max_octets_kernel,
    average_octets_kernel,
    winners_kernel,
    pairs_positions_kernel,
    threes_positions_kernel,
    gather_kernel,
)
def four_wide(p):
    """A thread has four neighbours in a row: it asks each window once for all four, and stores 128 bits.

    There are two divisions of 32 bits for where the four lie. If rows are no multiple of four, the four are stored one
    by one. Of 16 bits a thread has eight neighbours. With 2^31 elements or more, or where rows do not begin at
    multiples of 16 bytes, it is `once`.

    Leaves: a loop over windows whose number and place is only known when it runs.
    """
    p, width = with_positions(p), width_of(p.out.dtype)
    if p.out.size >= NARROW or (p.columns.extent % width == 0 and device.address(p.out) % 16):
        once.launch(p)
        return
    vectors = blocks(p.columns.extent, width)
    count = p.planes * p.rows.extent * vectors
    launch = blocks(count, BLOCK), BLOCK, p.stream
    sizes = np.uint32(count), np.uint32(vectors), p.rows, p.columns
    if p.op == MAX:
        kernel = max_quads_kernel if width == 4 else max_octets_kernel
        kernel[launch](p.dy, p.positions, p.out, *sizes)
    else:
        kernel = average_quads_kernel if width == 4 else average_octets_kernel
        kernel[launch](p.dy, p.positions, p.out, p.padded, *sizes)


# ------------------------------------------------------------------------------- patches of two rows by four columns

NOBODY = np.int64(255)  # the position of a window that does not exist: no element has it


@cuda.jit(device=True)
def window_at(dy, positions, at, exists):
    """The gradient and the winner of a window; of one that does not exist, 0 and nobody."""
    if exists:
        return widened(dy[np.uint64(at)]), np.int64(positions[np.uint64(at)])
    return np.float32(0), NOBODY


@cuda.jit(device=True)
def to(window, position):
    """What a window gives to the element at that position in it."""
    return window[0] if window[1] == position else np.float32(0)


@cuda.jit(device=True)
def patch_of(count, vectors, pairs, rows, columns, many):
    """Of this thread: its plane, its pair of rows, its vector of ``many`` columns, and its patch's first element."""
    thread = np.uint32(min(np.uint32(cuda.grid(1)), count - np.uint32(1)))
    line = np.uint32(thread // vectors)
    plane = np.int64(np.uint32(line // pairs))
    pair = np.int64(line) - plane * np.int64(pairs)
    vector = np.int64(np.uint32(thread - np.uint32(line * vectors)))
    return plane, pair, vector, (plane * rows.extent + 2 * pair) * columns.extent + many * vector


@cuda.jit(device=True)
def two_windows(dy, positions, at, op, exists):
    """What windows ``at`` and ``at + 1`` give to the four elements of their upper row, and of their lower row."""
    if op == MAX:
        u, v = window_at(dy, positions, at, exists), window_at(dy, positions, at + 1, exists)
        return (to(u, 0), to(u, 1), to(v, 0), to(v, 1)), (to(u, 2), to(u, 3), to(v, 2), to(v, 3))
    p = widened(dy[np.uint64(at)]) * np.float32(0.25) if exists else np.float32(0)
    q = widened(dy[np.uint64(at + 1)]) * np.float32(0.25) if exists else np.float32(0)
    return (p, p, q, q), (p, p, q, q)


@cuda.jit
def pairs_back_kernel(dy, positions, out, op, count, vectors, pairs, rows, columns):
    """Windows of 2 x 2 side by side: a patch of 2 x 4 elements is two windows."""
    if cuda.grid(1) < count:
        plane, pair, vector, e = patch_of(count, vectors, pairs, rows, columns, 4)
        at = (plane * rows.places + pair) * columns.places + 2 * vector
        exists = pair < rows.places  # an odd row at the end may be in no window
        upper, lower = two_windows(dy, positions, at, op, exists)
        store128(out, e, upper)
        if 2 * pair + 1 < rows.extent:
            store128(out, e + columns.extent, lower)


@cuda.jit
def wide_pairs_back_kernel(dy, positions, out, op, count, vectors, pairs, rows, columns):
    """The same of 16 bits: a patch of 2 x 8 elements is four windows."""
    if cuda.grid(1) < count:
        plane, pair, vector, e = patch_of(count, vectors, pairs, rows, columns, 8)
        at = (plane * rows.places + pair) * columns.places + 4 * vector
        exists = pair < rows.places
        upper, lower = two_windows(dy, positions, at, op, exists)
        more_above, more_below = two_windows(dy, positions, at + 2, op, exists)
        store128(out, e, upper + more_above)
        if 2 * pair + 1 < rows.extent:
            store128(out, e + columns.extent, lower + more_below)


@cuda.jit(device=True)
def six_windows(dy, positions, at, below, lower, third):
    """What three windows from ``at`` on, and three from ``below`` on, give to four elements in each of two rows.

    ``lower``: whether the lower three exist. ``third``: whether the third of each three does.
    """
    u, v = window_at(dy, positions, at, True), window_at(dy, positions, at + 1, True)
    w = window_at(dy, positions, at + 2, third)
    x, y = window_at(dy, positions, below, lower), window_at(dy, positions, below + 1, lower)
    return rows_of_four(u, v, w, x, y, window_at(dy, positions, below + 2, lower and third))


@cuda.jit(device=True)
def rows_of_four(u, v, w, x, y, z):
    """The upper and the lower four elements, from the gradients and winners of three windows above and three below."""
    first, second = to(u, 7) + to(x, 1), to(u, 8) + to(v, 6) + to(x, 2) + to(y, 0)
    fourth = to(v, 8) + to(w, 6) + to(y, 2) + to(z, 0)
    upper = to(u, 4), to(u, 5) + to(v, 3), to(v, 4), to(v, 5) + to(w, 3)
    return upper, (first, second, to(v, 7) + to(y, 1), fourth)


@cuda.jit
def threes_back_kernel(dy, positions, out, count, vectors, pairs, rows, columns):
    """Maxima of 3 x 3, stride 2, padding 1: 2 x 4 elements lie in six windows, three above and three below.

    Window (i, j) begins at row 2 i - 1 and column 2 j - 1. So the even row of the patch is the middle row of the upper
    windows; the odd row is their last, and the first of the lower ones.
    """
    if cuda.grid(1) < count:
        plane, pair, vector, e = patch_of(count, vectors, pairs, rows, columns, 4)
        at = (plane * rows.places + pair) * columns.places + 2 * vector
        lower, third = pair + 1 < rows.places, 2 * vector + 2 < columns.places
        upper, under = six_windows(dy, positions, at, at + columns.places, lower, third)
        store128(out, e, upper)
        if 2 * pair + 1 < rows.extent:
            store128(out, e + columns.extent, under)


@cuda.jit(device=True)
def ninth_window(dy, winners, at, exists):
    if exists:
        return widened(dy[np.uint64(at + 8)]), np.int64(winners[np.uint64(at // 4 + 2)]) & 255
    return np.float32(0), NOBODY


@cuda.jit(device=True)
def eight_windows(dy, winners, at, exists, last):
    """Eight windows from ``at`` on, a multiple of eight, by three loads; and the next one, if there is a ``last``.

    ``winners``: the positions, as numbers of 32 bits: four in each.
    """
    if not exists:
        none = (np.float32(0), NOBODY)
        return none, none, none, none, none, none, none, none, none
    g = widened(load128(dy, at))
    p, q = np.int64(winners[np.uint64(at // 4)]), np.int64(winners[np.uint64(at // 4 + 1)])
    return (
        (g[0], p & 255),
        (g[1], p >> 8 & 255),
        (g[2], p >> 16 & 255),
        (g[3], p >> 24 & 255),
        (g[4], q & 255),
        (g[5], q >> 8 & 255),
        (g[6], q >> 16 & 255),
        (g[7], q >> 24 & 255),
        ninth_window(dy, winners, at, last),
    )


@cuda.jit
def sixteen_threes_back_kernel(dy, winners, out, count, vectors, pairs, rows, columns):
    """Of float16, in rows of a multiple of 16: a patch of 2 x 16 elements lies in nine windows above and nine below."""
    if cuda.grid(1) < count:
        plane, pair, vector, e = patch_of(count, vectors, pairs, rows, columns, 16)
        at = (plane * rows.places + pair) * columns.places + 8 * vector
        last = 8 * vector + 8 < columns.places
        a = eight_windows(dy, winners, at, True, last)
        b = eight_windows(dy, winners, at + columns.places, pair + 1 < rows.places, last)
        p, q = rows_of_four(a[0], a[1], a[2], b[0], b[1], b[2])
        r, s = rows_of_four(a[2], a[3], a[4], b[2], b[3], b[4])
        store128(out, e, p + r)
        t, u = rows_of_four(a[4], a[5], a[6], b[4], b[5], b[6])
        v, w = rows_of_four(a[6], a[7], a[8], b[6], b[7], b[8])
        store128(out, e + 8, t + v)
        if 2 * pair + 1 < rows.extent:
            store128(out, e + columns.extent, q + s)
            store128(out, e + columns.extent + 8, u + w)


@cuda.jit
def wide_threes_back_kernel(dy, positions, out, count, vectors, pairs, rows, columns):
    """The same of 16 bits: 2 x 8 elements lie in ten windows, five above and five below."""
    if cuda.grid(1) < count:
        plane, pair, vector, e = patch_of(count, vectors, pairs, rows, columns, 8)
        at = (plane * rows.places + pair) * columns.places + 4 * vector
        below = at + columns.places
        lower, fifth = pair + 1 < rows.places, 4 * vector + 4 < columns.places
        upper, under = six_windows(dy, positions, at, below, lower, True)
        more_above, more_below = six_windows(dy, positions, at + 2, below + 2, lower, fifth)
        store128(out, e, upper + more_above)
        if 2 * pair + 1 < rows.extent:
            store128(out, e + columns.extent, under + more_below)


def launch_patches(p) -> bool:
    """Launch the kernel that is made for windows of this kind. If there is none, launch nothing and return False."""
    rows, columns, width = p.rows, p.columns, width_of(p.out.dtype)
    if columns.extent % width or p.out.size >= NARROW or device.address(p.out) % 16 or p.positions.dtype != np.uint8:
        return False
    pairs, vectors = blocks(rows.extent, 2), columns.extent // width
    count = p.planes * pairs * vectors
    launch = blocks(count, BLOCK), BLOCK, p.stream
    sizes = np.uint32(count), np.uint32(vectors), np.uint32(pairs), rows, columns
    kind = {(axis.window, axis.stride, axis.padding) for axis in (rows, columns)}
    if kind == {(2, 2, 0)} and (p.op == MAX or 2 * rows.places <= rows.extent):
        kernel = pairs_back_kernel if width == 4 else wide_pairs_back_kernel
        kernel[launch](p.dy, p.positions, p.out, p.op, *sizes)
        return True
    if kind == {(3, 2, 1)} and p.op == MAX:
        # On an H100 sixteen columns are faster for float16, and slower for bfloat16, which is cheaper to convert.
        sixteen = p.out.dtype == np.float16
        whole = sixteen and columns.extent % 16 == 0 and 2 * columns.places == columns.extent
        if whole and device.address(p.dy) % 16 == 0 and device.address(p.positions) % 4 == 0:
            count, vectors = count // 2, vectors // 2
            launch = sixteen_threes_back_kernel[blocks(count, BLOCK), BLOCK, p.stream]
            launch(p.dy, p.positions.view(np.uint32), p.out, np.uint32(count), np.uint32(vectors), *sizes[2:])
            return True
        kernel = threes_back_kernel if width == 4 else wide_threes_back_kernel
        kernel[launch](p.dy, p.positions, p.out, *sizes)
        return True
    return False


@rung(
    pairs_back_kernel,
    threes_back_kernel,
    wide_pairs_back_kernel,
    wide_threes_back_kernel,
    sixteen_threes_back_kernel,
    max_quads_kernel,
    average_quads_kernel,
    max_octets_kernel,
    average_octets_kernel,
    winners_kernel,
    pairs_positions_kernel,
    threes_positions_kernel,
    gather_kernel,
)
def patches(p):
    """A patch of two rows by four columns lies in the same few windows everywhere: no loop is left.

    A thread loads these windows, all at once, compares their winners with positions that are written in the kernel, and
    stores twice 128 bits. There are kernels for windows of 2 x 2 side by side, and for maxima of 3 x 3 with stride 2
    and padding 1, in rows of a multiple of four. Of 16 bits a patch has eight columns; of float16 sixteen, where
    overlapping windows fit, so that a thread loads eight gradients at once. All other windows go to `four_wide`.
    """
    p = with_positions(p)
    if not launch_patches(p):
        four_wide.launch(p)


LADDER = (scatter, gather, once, four_wide, patches)
