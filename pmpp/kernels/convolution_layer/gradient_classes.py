"""Which places of a layer's input use which taps: the classes into which a stride divides them.

Used by `pmpp.kernels.convolution_layer.input_gradients`, whose chapter explains it. Along one axis place h of the input
and tap r of a filter meet in output p if h + padding - r dilation = p stride. Whether such a p exists depends on h only
by the remainder of h + padding, divided by the stride. So places with the same remainder use the same taps.
"""

from __future__ import annotations

import functools
import math
import typing

from pmpp.kernels.common import blocks
from pmpp.kernels.convolution_layer.definition import Layer


class Axis(typing.NamedTuple):
    """One class of the rows of x, or of its columns: places ``start``, ``start + stride``, ..., ``count`` of them.

    They use the taps ``first``, ``first + step``, ..., ``taps`` of them. The last of these meets row ``begin`` of dy at
    the first place, and the row after it at the next. Each tap before it meets the row that lies ``apart`` further on.
    """

    start: int
    count: int
    first: int
    step: int
    taps: int
    begin: int
    apart: int

    def padding(self, extent: int) -> int:
        """Zeros that a convolution of dy, of that extent, needs at both ends to have all places of the class."""
        reach = self.begin + self.count + (self.taps - 1) * self.apart - extent
        return max(-self.begin, reach, 0)

    def skip(self, padding: int) -> int:
        """How many outputs of that convolution come before the class's first place."""
        return self.begin + padding


class Class(typing.NamedTuple):
    """Places of x that use the same taps."""

    rows: Axis
    columns: Axis


def axes_of(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> list[Axis]:
    """The classes along one axis that have a place and a tap.

    Place h and tap r meet if h + padding - r dilation is a multiple of the stride, p times it. Which taps these are
    depends on the remainder of h + padding alone.

    >>> found = axes_of(8, kernel=3, stride=2, padding=1, dilation=1)
    >>> [(axis.start, axis.first, axis.step, axis.taps) for axis in found]
    [(1, 0, 2, 2), (0, 1, 2, 1)]
    """
    shared = math.gcd(stride, dilation)
    step, apart, found = stride // shared, dilation // shared, []
    for first in range(min(kernel, step)):
        start = (first * dilation - padding) % stride
        if start < extent:
            taps, count = len(range(first, kernel, step)), blocks(extent - start, stride)
            meets = (start + padding - first * dilation) // stride
            found.append(Axis(start, count, first, step, taps, meets - (taps - 1) * apart, apart))
    return found


@functools.lru_cache(4096)  # as `definition.window_of`
def classes_of(a: Layer) -> tuple[Class, ...]:
    """The classes of places in x that some tap reaches, those of most taps first."""
    rows, columns = (
        axes_of(extent, kernel, *window)
        for extent, kernel, window in zip(
            (a.h, a.w), (a.r, a.s), zip(a.stride, a.padding, a.dilation, strict=True), strict=True
        )
    )
    return tuple(
        sorted((Class(r, s) for r in rows for s in columns), key=lambda one: -one.rows.taps * one.columns.taps)
    )


@functools.lru_cache(4096)
def covers(a: Layer) -> bool:
    """Whether every place of x is in one of the classes. What is in none has the gradient 0."""
    return sum(one.rows.count * one.columns.count for one in classes_of(a)) == a.h * a.w


@functools.lru_cache(4096)
def sub_layer(a: Layer, one: Class) -> Layer:
    """The forward convolution of dy whose outputs contain dx at the places of a class."""
    rows, columns = one
    padding = rows.padding(a.p), columns.padding(a.q)
    apart = rows.apart, columns.apart
    return Layer(a.n, a.k, a.p, a.q, a.c, rows.taps, columns.taps, (1, 1), padding, apart, a.groups)
