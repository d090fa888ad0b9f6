"""Wrong gradients of pooling."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.pooling.ladder import OPERATORS
from pmpp.kernels.pooling.windows import MAX, axes_of, covering, pair_of, span
from pmpp.runtime import device
from pmpp.runtime.vector import store128
from tests.support.wrong import WrongRung

BLOCK = 64
f0, lowest = np.float32(0), np.float32(-np.inf)


@cuda.jit(device=True)
def larger_or_nan(value, best):
    return value > best or value != value


@cuda.jit(device=True)
def larger(value, best):
    return value > best


@cuda.jit(device=True)
def not_smaller(value, best):
    return value >= best or value != value


@cuda.jit(device=True)
def as_forward(tall, wide, seen, window, padded):
    return tall * wide if padded else seen


@cuda.jit(device=True)
def always_inside(tall, wide, seen, window, padded):
    return seen


@cuda.jit(device=True)
def always_window(tall, wide, seen, window, padded):
    return window if padded else seen


@cuda.jit(device=True)
def only_the_first(place, axis):
    first, end = covering(place, axis)
    return first, min(first + 1, end)


@cuda.jit(device=True)
def from_the_left_edge(place, axis):
    """As if windows did not begin in the padding."""
    return covering(place - axis.padding if place >= axis.padding else 0, axis)


@cuda.jit(device=True)
def never_the_last(place, axis):
    first, end = covering(place, axis)
    return first, min(end, axis.places - 1) if axis.places > 1 else end


@cuda.jit(device=True)
def beyond_the_last(place, axis):
    first, _ = covering(place, axis)
    return first, (place + axis.padding) // axis.stride + 1


def gatherer(name, *, guard=True, equals=False, last=False, writes=False, **parts):
    """A gradient with some of its parts exchanged: one thread per element, as in `pooling_backward.gather`."""
    wins, divisor = parts.get("wins", larger_or_nan), parts.get("divisor", as_forward)
    asked = parts.get("asked", covering)

    @cuda.jit
    def kernel(dy, x, out, op, padded, rows, columns):
        e = cuda.grid(1)
        if not guard or e < out.size:
            column, row = e % columns.extent, e // columns.extent % rows.extent
            plane = e // columns.extent // rows.extent
            total = f0
            i0, i1 = asked(row, rows)
            j0, j1 = asked(column, columns)
            for i in range(i0, i1):
                for j in range(j0, j1):
                    top, bottom, tall = span(i, rows)
                    left, right, wide = span(j, columns)
                    value = dy[plane, i, j]
                    if op == MAX:
                        best, where = x[plane, top, left], top * columns.extent + left
                        for y in range(top, bottom):
                            for z in range(left, right):
                                if wins(x[plane, y, z], best):
                                    best, where = x[plane, y, z], y * columns.extent + z
                        won = where == row * columns.extent + column
                        if equals:
                            won = x[plane, row, column] == best or (won and best != best)
                        value = value if won else f0
                    else:
                        seen = (bottom - top) * (right - left)
                        value /= np.float32(divisor(tall, wide, seen, rows.window * columns.window, padded))
                    total = value if last else total + value
            out[plane, row, column] = total
            if writes:
                dy[plane, 0, 0] = f0

    return caller(name, kernel)


def caller(name, kernel, prepare=lambda out: None, per_window=False):
    """What is called as the rungs are, and launches ``kernel``."""

    def back(dy, x, op="max", window=2, stride=None, padding=0, ceil_mode=False, counted=True, *, out=None):
        dy, x = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (dy, x))
        sizes = pair_of(window), pair_of(window if stride is None else stride), pair_of(padding)
        axes = axes_of(x.shape[2:], *sizes, ceil_mode)
        out = device.empty(x.shape, np.float32) if out is None else out
        flat = [a.reshape((a.shape[0] * a.shape[1], *a.shape[2:])) for a in (dy, x, out)]
        prepare(flat[2])
        kernel[blocks(dy.size if per_window else out.size, BLOCK), BLOCK](*flat, OPERATORS[op], counted, *axes)
        return out

    back.__name__ = name
    return back


@cuda.jit
def set_to_zero(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i // out.shape[2] // out.shape[1], i // out.shape[2] % out.shape[1], i % out.shape[2]] = f0


def zeros(out):
    set_to_zero[blocks(out.size, BLOCK), BLOCK](out)


def scatterer(name, atomic=True, prepare=zeros):
    """A gradient of one thread for each window."""

    @cuda.jit
    def kernel(dy, x, out, op, padded, rows, columns):
        i = cuda.grid(1)
        if i < dy.size:
            column, row = i % columns.places, i // columns.places % rows.places
            plane = i // columns.places // rows.places
            top, bottom, tall = span(row, rows)
            left, right, wide = span(column, columns)
            best, y, z = x[plane, top, left], top, left
            share = dy[plane, row, column]
            if op != MAX:
                share /= np.float32(tall * wide if padded else (bottom - top) * (right - left))
            for a in range(top, bottom):
                for b in range(left, right):
                    if op != MAX:
                        if atomic:
                            cuda.atomic.add(out, (plane, a, b), share)
                        else:
                            out[plane, a, b] += share
                    elif larger_or_nan(x[plane, a, b], best):
                        best, y, z = x[plane, a, b], a, b
            if op == MAX:
                if atomic:
                    cuda.atomic.add(out, (plane, y, z), share)
                else:
                    out[plane, y, z] += share

    return caller(name, kernel, prepare, per_window=True)


@cuda.jit
def stored_anywhere_kernel(dy, out):
    i = 4 * cuda.grid(1)
    if i < out.size:
        store128(out, i, (dy[0], dy[0], dy[0], dy[0]))


def stored_anywhere(dy, x, *options, out=None):
    """128-bit stores wherever ``out`` begins; all else is right."""
    if out is None or device.address(out) % 16 == 0:
        return right(dy, x, *options, out=out)
    stored_anywhere_kernel[1, BLOCK](device.to_device(dy).reshape(-1), out.reshape(-1))
    return out


right = gatherer("right")

RUNGS = (
    WrongRung(gatherer("no_guard", guard=False), "out of bounds"),
    WrongRung(gatherer("beyond_the_last_window", asked=beyond_the_last), "out of bounds"),
    WrongRung(gatherer("never_the_last_window", asked=never_the_last), "wrong result"),
    WrongRung(gatherer("one_window_an_element", asked=only_the_first), "wrong result"),
    WrongRung(gatherer("padding_forgotten", asked=from_the_left_edge), "wrong result"),
    WrongRung(gatherer("last_window_alone", last=True), "wrong result"),
    WrongRung(gatherer("all_equals_get_it", equals=True), "wrong result"),
    WrongRung(gatherer("last_of_equals", wins=not_smaller), "wrong result"),
    WrongRung(gatherer("nan_lost", wins=larger), "wrong result"),
    WrongRung(gatherer("padding_never_counted", divisor=always_inside), "wrong result"),
    WrongRung(gatherer("window_never_cut_off", divisor=always_window), "wrong result"),
    WrongRung(gatherer("in_dy_as_well", writes=True), "input changed"),
    WrongRung(scatterer("never_set_to_zero", prepare=lambda out: None), "uninitialised read"),
    WrongRung(scatterer("not_atomic", atomic=False), "race"),
    WrongRung(stored_anywhere, "misaligned"),
)
