"""What the rungs of `pmpp.kernels.pooling` share: where a window lies, and a walk through it."""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.reduction.ladder import MAX, SUM, combine, combine_vector
from pmpp.runtime.vector import load128, widened


def pooled_extent(extent: int, kernel: int, stride: int, padding: int, ceil_mode: bool = False) -> int:
    """How many windows an axis has. In ceil mode the last may hang over, if it begins in the input or left padding.

    >>> pooled_extent(5, 2, 2, 0), pooled_extent(5, 2, 2, 0, ceil_mode=True)
    (2, 3)
    """
    places = (extent + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (places - 1) * stride >= extent + padding:
        places -= 1
    return places


def pair_of(value: typing.Any) -> tuple[int, int]:
    """``value`` for rows and columns, given as one number or as a pair."""
    return (value, value) if isinstance(value, int | np.integer) else tuple(value)


class Axis(typing.NamedTuple):
    """The sizes along one axis of the maps, rows or columns. ``window`` is the extent of a window along it."""

    extent: int  # of the input
    places: int  # of the output: how many windows there are
    window: int
    stride: int
    padding: int


@functools.lru_cache(maxsize=256)
def axes_of(extents, windows, strides, paddings, ceil_mode) -> tuple[Axis, Axis]:
    """The axis of rows and the axis of columns.

    Raises ValueError, which names ``x`` or ``padding``, if there is no room for a window or too much padding.

    >>> axes_of((9, 24), (3, 3), (2, 2), (1, 1), False)[0]
    Axis(extent=9, places=5, window=3, stride=2, padding=1)
    """
    if any(2 * p > k for p, k in zip(paddings, windows, strict=True)):
        raise ValueError(f"padding must be at most half of the kernel, was {paddings} for a kernel of {windows}")
    sizes = list(zip(extents, windows, strides, paddings, strict=True))
    rows, columns = (Axis(n, pooled_extent(n, k, s, p, ceil_mode), k, s, p) for n, k, s, p in sizes)
    if min(extents) < 1 or min(rows.places, columns.places) < 1:
        raise ValueError(f"x must have room for a window of {windows} with padding {paddings}, had planes of {extents}")
    return rows, columns


# ---------------------------------------------------------------------------------------------------------- one window


@cuda.jit(device=True)
def span(place, axis):
    """Along one axis: where the window begins in the input, where it ends, and its length with the padding."""
    start = place * axis.stride - axis.padding
    end = start + axis.window
    return max(start, 0), min(end, axis.extent), min(end, axis.extent + axis.padding) - start


@cuda.jit(device=True)
def walk(x, first, pitch, height, width, op):
    """The largest or the sum of a rectangle of flat ``x``, and the row and column of the largest in it.

    The rectangle begins at ``first``, and its rows begin ``pitch`` elements apart.
    """
    best, best_row, best_column = widened(x[np.uint64(first)]), 0, 0
    total = np.float32(0)
    row = 0
    while row < height:
        column = 0
        while column < width:
            # Unsigned, so Numba adds no test for negative indices, which count from the end.
            value = widened(x[np.uint64(first + column)])
            if op == SUM:
                total += value
            elif value > best or value != value:  # a NaN wins, and stays: nothing is larger
                best, best_row, best_column = value, row, column
            column += 1
        first += pitch
        row += 1
    return best if op == MAX else total, best_row, best_column


AT_ONCE = 16  # elements of a window that a thread asks for at once, at most: 64 bytes


@cuda.jit(device=True)
def value_at(x, at, inside, identity):
    """x[at] as it is computed with, or the identity where nothing is ``inside`` and nothing is read."""
    return widened(x[np.uint64(at)]) if inside else identity


@cuda.jit(device=True)
def gather(x, plane, top, bottom, left, rows, columns, op, identity, down, across):
    """The largest or the sum of a window, whose rows lie from ``top`` to ``bottom``, ``len(down)`` of them at a time.

    A window has ``len(across)`` columns, from ``left`` on. The lengths are known when the kernel is compiled, so that
    the loops are unrolled, and the loads of these rows are in flight at once.
    """
    values = cuda.local.array(AT_ONCE, np.float32)
    total = identity
    first = (plane * rows.extent + top) * columns.extent + left
    while top < bottom:
        for d in range(len(down)):
            for e in range(len(across)):
                inside = top + d < bottom and 0 <= left + e < columns.extent
                values[d * len(across) + e] = value_at(x, first + d * columns.extent + e, inside, identity)
        for k in range(len(down) * len(across)):
            total = combine(op, total, values[k])
        top += len(down)
        first += len(down) * columns.extent
    return total


@cuda.jit(device=True)
def place_of(y, z, row, column, local, rows, columns):
    """The place of input element (y, z) in its plane or, if ``local``, in the window of output (row, column)."""
    if local:
        y += rows.padding - row * rows.stride
        z += columns.padding - column * columns.stride
        return y * columns.window + z
    return y * columns.extent + z


@cuda.jit(device=True)
def covering(place, axis):
    """Along one axis: the first window that contains input ``place``, and the first after it that does not."""
    reach, stride = np.uint32(place + axis.padding), np.uint32(axis.stride)
    first = np.int64(0)
    if reach >= axis.window:
        first = np.int64(np.uint32(np.uint32(reach - np.uint32(axis.window)) // stride)) + 1
    return first, min(np.int64(np.uint32(reach // stride)) + 1, axis.places)


@cuda.jit(device=True)
def finish(value, op, padded, area, seen):
    """A maximum as it is; a sum divided by ``area`` if ``padded``, else by the number of input elements ``seen``."""
    if op == MAX:
        return value
    return value / np.float32(area if padded else seen)


@cuda.jit(device=True)
def combine_all(op, v):
    """Combine four or eight numbers."""
    if len(v) == 8:
        return combine(op, combine_vector(op, v[:4]), combine_vector(op, v[4:]))
    return combine_vector(op, v)


@cuda.jit(device=True)
def combine_share(x, op, identity, first, end, step, width):
    """Combine a thread's share of x[:end]: ``width`` elements from ``first`` on, and again every ``step`` elements."""
    total = identity
    i = first
    if width > 1:
        while i + 3 * step < end:  # all four loads are in flight before the first is used
            a, b, c, d = load128(x, i), load128(x, i + step), load128(x, i + 2 * step), load128(x, i + 3 * step)
            ab = combine(op, combine_all(op, widened(a)), combine_all(op, widened(b)))
            c, d = widened(c), widened(d)
            total = combine(op, total, combine(op, ab, combine(op, combine_all(op, c), combine_all(op, d))))
            i += 4 * step
        while i < end:
            total = combine(op, total, combine_all(op, widened(load128(x, i))))
            i += step
    else:
        while i + 7 * step < end:  # an element is a quarter of a vector, so twice as many loads are in flight
            p, q, r, s = widened(x[i]), widened(x[i + step]), widened(x[i + 2 * step]), widened(x[i + 3 * step])
            i += 4 * step
            t, u, v, w = widened(x[i]), widened(x[i + step]), widened(x[i + 2 * step]), widened(x[i + 3 * step])
            i += 4 * step
            pqrs = combine(op, combine(op, p, q), combine(op, r, s))
            total = combine(op, total, combine(op, pqrs, combine(op, combine(op, t, u), combine(op, v, w))))
        while i + 3 * step < end:
            p, q, r, s = widened(x[i]), widened(x[i + step]), widened(x[i + 2 * step]), widened(x[i + 3 * step])
            total = combine(op, total, combine(op, combine(op, p, q), combine(op, r, s)))
            i += 4 * step
        if i < end:  # up to three are left, and are in flight together, too
            p = widened(x[i])
            q = value_at(x, i + step, i + step < end, identity)
            r = value_at(x, i + 2 * step, i + 2 * step < end, identity)
            total = combine(op, total, combine(op, combine(op, p, q), r))
    return total
