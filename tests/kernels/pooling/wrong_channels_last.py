"""Wrong poolings of maps with channels last."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.pooling import channels_last as right
from pmpp.kernels.pooling.channels_last import combine_lanes, finish_lanes
from pmpp.kernels.pooling.ladder import windows_of
from pmpp.kernels.pooling.windows import SUM, finish, span
from pmpp.kernels.reduction.ladder import combine
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128, widened, width128
from tests.support.wrong import WrongRung

BLOCK = 64


@cuda.jit(device=True)
def max_that_loses_nan(op, a, b):
    return a + b if op == SUM else max(a, b) if b == b else a


@cuda.jit(device=True)
def size_of_the_window(value, op, padded, area, seen):
    return finish(value, op, True, area, seen)


def pooler(name, *, guard=True, order="channels last", together=combine, end=finish, start=0, pitch=True):
    """A pooling with some of its parts exchanged: a thread for each output."""
    last = order == "channels last"

    @cuda.jit
    def kernel(x, out, op, padded, channels, rows, columns):
        i = cuda.grid(1)
        if not guard or i < out.size:
            if last:
                channel, place = i % channels, i // channels
            else:
                place = i % (rows.places * columns.places)
                channel = i // (rows.places * columns.places) % channels
                place += i // (rows.places * columns.places * channels) * rows.places * columns.places
            column, row = place % columns.places, place // columns.places % rows.places
            image = place // columns.places // rows.places
            top, bottom, tall = span(row, rows)
            left, right_end, wide = span(column, columns)
            step = channels if pitch else 1
            first = ((image * rows.extent + top) * columns.extent + left) * channels + channel
            total = widened(x[first])
            for y in range(bottom - top):
                for z in range(right_end - left):
                    if y + z >= 1 - start:
                        total = together(op, total, widened(x[first + y * columns.extent * channels + z * step]))
            out[i] = end(total, op, padded, tall * wide, (bottom - top) * (right_end - left))

    def call(x, op="max", kernel_size=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        n, h, w, c = x.shape
        number, padded, rows, columns = windows_of(
            (n, c, h, w), op, kernel_size, stride, padding, ceil_mode, count_include_pad
        )
        out = device.empty((n, rows.places, columns.places, c), x.dtype)
        if out.size:
            flat = x.reshape(-1), out.reshape(-1)
            kernel[blocks(out.size, BLOCK), BLOCK](*flat, number, padded, c, rows, columns)
        return out

    call.__name__ = name
    return call


@cuda.jit
def any_channels_kernel(x, out, op, padded, channels, rows, columns):
    i = width128(x) * cuda.grid(1)
    if i + width128(x) <= out.size:
        channel, place = i % channels, i // channels
        column, row = place % columns.places, place // columns.places % rows.places
        image = place // columns.places // rows.places
        top, bottom, tall = span(row, rows)
        left, right_end, wide = span(column, columns)
        first = ((image * rows.extent + top) * columns.extent + left) * channels + channel
        total = widened(load128(x, first))
        for y in range(bottom - top):
            for z in range(right_end - left):
                if y + z > 0:
                    total = combine_lanes(op, total, widened(load128(x, first + (y * columns.extent + z) * channels)))
        store128(out, i, finish_lanes(total, op, padded, tall * wide, (bottom - top) * (right_end - left)))


def vectors_of_any_channels(x, op="max", kernel=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
    """128-bit access for any number of channels; all else is right."""
    options = op, kernel, stride, padding, ceil_mode, count_include_pad
    n, h, w, c = x.shape
    if c % 4 != 3:
        return right.vectorised(x, *options)
    x = device.to_device(x) if isinstance(x, np.ndarray) else x
    number, padded, rows, columns = windows_of((n, c, h, w), *options)
    out = device.empty((n, rows.places, columns.places, c), x.dtype)
    launch = any_channels_kernel[blocks(out.size, BLOCK), BLOCK]
    launch(x.reshape(-1), out.reshape(-1), number, padded, c, rows, columns)
    return out


RUNGS = (
    WrongRung(pooler("no_guard", guard=False), "out of bounds"),
    WrongRung(pooler("channels_first", order="channels first"), "wrong result"),
    WrongRung(pooler("neighbours_are_columns", pitch=False), "wrong result"),
    WrongRung(pooler("first_element_twice", start=1), "wrong result"),
    WrongRung(pooler("nan_lost", together=max_that_loses_nan), "wrong result"),
    WrongRung(pooler("padding_always_counted", end=size_of_the_window), "wrong result"),
    WrongRung(vectors_of_any_channels, "misaligned"),
)
