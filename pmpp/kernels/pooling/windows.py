"""What the rungs of `pmpp.kernels.pooling` share: their arguments, where a window lies, and a walk through it."""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.reduction import MAX, SUM, combine, combine_vector
from pmpp.runtime import device
from pmpp.runtime.vector import load128

OPERATORS = {"max": MAX, "average": SUM}


def pooled_extent(extent: int, kernel: int, stride: int, padding: int, ceil_mode: bool = False) -> int:
    """Windows along one axis. In ceil mode the last may hang over, but begins inside the input or the left padding."""
    places = (extent + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (places - 1) * stride >= extent + padding:
        places -= 1
    return places


def pair_of(value: typing.Any) -> tuple[int, int]:
    """``value`` for rows and columns, given as one number or as a pair."""
    return (value, value) if isinstance(value, int | np.integer) else tuple(value)


class Problem(typing.NamedTuple):
    """A validated call. ``x``, ``out`` and ``indices`` are flat views; ``indices`` is empty if nobody wants them."""

    x: typing.Any
    out: typing.Any
    indices: typing.Any
    op: int
    padded: bool
    planes: int
    extent: tuple[int, int]
    places: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    stream: typing.Any

    @property
    def geometry(self) -> tuple:
        """The pairs of sizes, in the order in which the kernels take them."""
        return self.extent, self.places, self.window, self.stride, self.padding


def sizes_of(name: str, value: typing.Any, least: int) -> tuple[int, int]:
    """``value`` as a pair of at least ``least``, or a ValueError that names the argument."""
    pair = (value, value) if isinstance(value, int | np.integer) else value
    whole = isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(v, int | np.integer) for v in pair)
    if not whole or isinstance(value, bool) or min(pair) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, or two for rows and columns, was {value!r}")
    return int(pair[0]), int(pair[1])


@functools.cache
def _nothing() -> typing.Any:
    return device.empty(0, np.int64)


def problem_of(x, op, kernel, stride, padding, ceil_mode, count_include_pad, return_indices, out, stream):
    """``(problem, result)``: the result is ``out``, or ``(out, indices)``."""
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, ndim=4, stream=stream)
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be 'max' or 'average', was {op!r}")
    if return_indices and op != "max":
        raise ValueError(f"return_indices must be False for op={op!r}: only a maximum lies somewhere")
    window, padding = sizes_of("kernel", kernel, 1), sizes_of("padding", padding, 0)
    stride = window if stride is None else sizes_of("stride", stride, 1)
    if any(2 * p > k for p, k in zip(padding, window, strict=True)):
        raise ValueError(f"padding must be at most half of the kernel, was {padding} for a kernel of {window}")
    extent = x.shape[2:]
    axes = zip(extent, window, stride, padding, strict=True)
    places = tuple(pooled_extent(*axis, bool(ceil_mode)) for axis in axes)
    if min(extent) < 1 or min(places) < 1:
        raise ValueError(f"x must have room for a window of {window} with padding {padding}, had planes of {extent}")
    shape = (*x.shape[:2], *places)
    out = device.as_output("out", out, shape=shape, dtype=np.float32, stream=stream)
    indices = device.empty(shape, np.int64, stream=stream) if return_indices else None
    flat = _nothing() if indices is None else indices.reshape(-1)
    planes = x.shape[0] * x.shape[1]
    sizes = extent, places, window, stride, padding
    problem = Problem(
        x.reshape(-1), out.reshape(-1), flat, OPERATORS[op], bool(count_include_pad), planes, *sizes, stream
    )
    return problem, (out, indices) if return_indices else out


# ---------------------------------------------------------------------------------------------------------- one window


@cuda.jit(device=True)
def span(place, window, stride, padding, extent):
    """Along one axis: where the window begins in the input, where it ends, and its length with the padding."""
    start = place * stride - padding
    return max(start, 0), min(start + window, extent), min(start + window, extent + padding) - start


@cuda.jit(device=True)
def walk(x, first, pitch, height, width, op):
    """The largest or the sum of a rectangle of flat ``x``, whose rows lie ``pitch`` apart, and where the largest is."""
    best, best_row, best_column = x[np.uint64(first)], 0, 0
    total = np.float32(0)
    row = 0
    while row < height:
        column = 0
        while column < width:
            value = x[np.uint64(first + column)]  # unsigned: no index counts from the end
            if op == SUM:
                total += value
            elif value > best or value != value:  # a NaN wins, and stays: nothing is larger
                best, best_row, best_column = value, row, column
            column += 1
        first += pitch
        row += 1
    return best if op == MAX else total, best_row, best_column


@cuda.jit(device=True)
def finish(value, op, padded, area, seen):
    """The mean of a sum: over the whole window, or over what of it is input."""
    if op == MAX:
        return value
    return value / np.float32(area if padded else seen)


@cuda.jit(device=True)
def combine_share(x, op, identity, first, end, step, width):
    """What one thread makes of its elements of x[:end]: ``width`` from ``first`` on, and so on, ``step`` apart."""
    total = identity
    i = first
    if width == 4:
        while i + 3 * step < end:  # all four loads are under way before the first is used
            a, b, c, d = load128(x, i), load128(x, i + step), load128(x, i + 2 * step), load128(x, i + 3 * step)
            ab = combine(op, combine_vector(op, a), combine_vector(op, b))
            total = combine(op, total, combine(op, ab, combine(op, combine_vector(op, c), combine_vector(op, d))))
            i += 4 * step
        while i < end:
            total = combine(op, total, combine_vector(op, load128(x, i)))
            i += step
    else:
        while i + 3 * step < end:
            p, q, r, s = x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]
            total = combine(op, total, combine(op, combine(op, p, q), combine(op, r, s)))
            i += 4 * step
        while i < end:
            total = combine(op, total, x[i])
            i += step
    return total
