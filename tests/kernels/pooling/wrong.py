"""Wrong poolings, and wrong answers to the exercises of chapter 46 that are about them."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.pooling.ladder import OPERATORS
from pmpp.kernels.pooling.windows import MAX, pair_of, pooled_extent
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import WrongAnswer, WrongRung

BLOCK = 64
f0, lowest = np.float32(0), np.float32(-np.inf)


@cuda.jit(device=True)
def begins_at_minus_infinity():
    return lowest


@cuda.jit(device=True)
def begins_at_zero():
    return f0


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
def as_pytorch(window, inside, padded):
    return window if padded else inside


@cuda.jit(device=True)
def always_inside(window, inside, padded):
    return inside


@cuda.jit(device=True)
def always_window(window, inside, padded):
    return window


@cuda.jit(device=True)
def cut_off(start, kernel, end):
    return min(start + kernel, end) - start


@cuda.jit(device=True)
def whole_kernel(start, kernel, end):
    return kernel


@cuda.jit(device=True)
def in_its_plane(plane, row, column, w):
    return row * w + column


@cuda.jit(device=True)
def in_all_planes(plane, row, column, w):
    return (plane + row) * w + column


def pooler(name, *, places=pooled_extent, guard=True, edge=True, writes=False, **parts):
    """A pooling with some of its parts exchanged: one thread per output, as in `pmpp.kernels.pooling.naive`."""
    begin, wins = parts.get("begin", begins_at_minus_infinity), parts.get("wins", larger_or_nan)
    divisor, length = parts.get("divisor", as_pytorch), parts.get("length", cut_off)
    index_of, edge_of = parts.get("index_of", in_its_plane), 1 if edge else 0

    @cuda.jit
    def kernel(x, out, indices, op, padded, kernel, stride, padding):
        i = cuda.grid(1)
        if not guard or i < out.size:
            h, w, rows, columns = x.shape[1], x.shape[2], out.shape[1], out.shape[2]
            plane, row, column = i // columns // rows, i // columns % rows, i % columns
            top, left = row * stride[0] - padding[0], column * stride[1] - padding[1]
            best, total, where, seen = begin(), f0, np.int64(0), 0
            if top >= 0 and left >= 0:
                where = index_of(plane, top, left, w)
            for y in range(max(top, 0), min(top + kernel[0], h)):
                for z in range(max(left, 0), min(left + kernel[1], w if edge_of else left + kernel[1])):
                    value = x[plane, y, z]
                    seen += 1
                    total += value
                    if wins(value, best):
                        best, where = value, index_of(plane, y, z, w)
            area = length(top, kernel[0], h + padding[0]) * length(left, kernel[1], w + padding[1])
            out[plane, row, column] = best if op == MAX else total / np.float32(divisor(area, seen, padded))
            if indices.size:
                indices[plane, row, column] = where
            if writes:
                x[plane, 0, 0] = f0

    def pool(x, op="max", window=2, stride=None, padding=0, ceil_mode=False, counted=True, *, return_indices=False):
        x = device.to_device(x) if isinstance(x, np.ndarray) else x
        sizes = pair_of(window), pair_of(window if stride is None else stride), pair_of(padding)
        places_ = tuple(places(*axis, ceil_mode) for axis in zip(x.shape[2:], *sizes, strict=True))
        out = device.empty((*x.shape[:2], *places_), np.float32)
        indices = device.empty(out.shape if return_indices else (0, 1, 1, 1), np.int64)
        flat = [a.reshape((a.shape[0] * a.shape[1], *a.shape[2:])) for a in (x, out, indices)]
        kernel[blocks(out.size, BLOCK), BLOCK](*flat, OPERATORS[op], counted, *sizes)
        return (out, indices) if return_indices else out

    pool.__name__ = name
    return pool


def floor_only(extent, kernel, stride, padding, ceil_mode):
    return pooled_extent(extent, kernel, stride, padding)


def any_ceil(extent, kernel, stride, padding, ceil_mode):
    return (extent + 2 * padding - kernel + (stride - 1 if ceil_mode else 0)) // stride + 1


@cuda.jit
def vectors_anywhere_kernel(x, out):
    i = 4 * cuda.grid(1)
    if i < out.size:
        a, b, c, d = load128(x, 2 * i), load128(x, 2 * i + 4), load128(x, 2 * i), load128(x, 2 * i + 4)
        store128(out, i, (max(a[0], c[0]), max(a[2], c[2]), max(b[0], d[0]), max(b[2], d[2])))


def vectors_anywhere(x, *options, **more):
    """128-bit loads wherever ``x`` begins; all else is right."""
    x = device.to_device(x) if isinstance(x, np.ndarray) else x
    if device.address(x) % 16 == 0:
        return right(x, *options, **more)
    out = device.empty((*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2), np.float32)
    vectors_anywhere_kernel[1, BLOCK](x.reshape(-1), out.reshape(-1))
    return out


right = pooler("right")

RUNGS = (
    WrongRung(pooler("no_guard", guard=False), "out of bounds"),
    WrongRung(pooler("no_right_edge", edge=False), "out of bounds"),
    WrongRung(pooler("maximum_from_zero", begin=begins_at_zero), "wrong result"),
    WrongRung(pooler("nan_lost", wins=larger), "wrong result"),
    WrongRung(pooler("last_of_equals", wins=not_smaller), "wrong indices"),
    WrongRung(pooler("index_in_all_planes", index_of=in_all_planes), "wrong indices"),
    WrongRung(pooler("padding_never_counted", divisor=always_inside), "wrong result"),
    WrongRung(pooler("padding_always_counted", divisor=always_window), "wrong result"),
    WrongRung(pooler("window_never_cut_off", length=whole_kernel), "wrong result"),
    WrongRung(pooler("no_ceil_mode", places=floor_only), "wrong result"),
    WrongRung(pooler("ceil_into_the_padding", places=any_ceil), "wrong result"),
    WrongRung(pooler("in_x_as_well", writes=True), "input changed"),
    WrongRung(vectors_anywhere, "misaligned"),
)


# -------------------------------------------------------------------------------------------------- backpropagation


@cuda.jit(device=True)
def place_of(i, out):
    h, w = out.shape[1], out.shape[2]
    return i // w // h, i // w % h, i % w


def back_with(name, chosen, guard=True, edge=True, rest=True):
    """Backpropagation, with some of its parts exchanged."""

    @cuda.jit
    def back(gradient, indices, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            plane, row, column = place_of(i, out)
            y, z = row // 2, column // 2
            value = f0
            inside = not edge or (y < gradient.shape[1] and z < gradient.shape[2])
            if inside and chosen(indices, plane, y, z, row, column, out):
                value = gradient[plane, y, z]
            if rest or value != f0:
                out[plane, row, column] = value

    back.py_func.__name__ = name
    return back


@cuda.jit(device=True)
def by_index(indices, plane, y, z, row, column, out):
    return indices[plane, y, z] == row * out.shape[2] + column


@cuda.jit(device=True)
def anyone(indices, plane, y, z, row, column, out):
    return True


@cuda.jit(device=True)
def counted_through_all(indices, plane, y, z, row, column, out):
    return indices[plane, y, z] == (plane * out.shape[1] + row) * out.shape[2] + column


@cuda.jit(device=True)
def always_the_first(indices, plane, y, z, row, column, out):
    return row % 2 == 0 and column % 2 == 0


@cuda.jit(device=True)
def in_rows_of_the_output(indices, plane, y, z, row, column, out):
    return indices[plane, y, z] == row * (out.shape[2] // 2 * 2) + column


# ------------------------------------------------------------------------------------------------------ means at edges


def edges_with(name, guard=True, top=0, bottom=0, of_nine=False, wide=False, largest=False, rows_of=True):
    """Means of 3 x 3, with some of its parts exchanged."""

    @cuda.jit
    def edges(x, out):
        i = cuda.grid(1)
        if not guard or i < out.size:
            plane, row, column = place_of(i, out)
            total, count, most = f0, 0, lowest
            for y in range(max(row - 1, top), min(row + 2, x.shape[1] + bottom)):
                for z in range(max(column - 1, 0), min(column + 2, x.shape[2])):
                    value = x[plane if rows_of else 0, y, z]
                    total += value
                    most = max(most, value)
                    count += 1
            if of_nine:
                count = 9
            if wide:
                out[plane, row, column] = total / count
            else:
                out[plane, row, column] = most if largest else total / np.float32(count)

    edges.py_func.__name__ = name
    return edges


@cuda.jit
def edges_by_columns(x, out):
    i = cuda.grid(1)
    if i < out.size:
        h, w = x.shape[1], x.shape[2]
        plane, row, column = i // w // h, i % h, i // h % w
        total, count = f0, 0
        for y in range(max(row - 1, 0), min(row + 2, h)):
            for z in range(max(column - 1, 0), min(column + 2, w)):
                total += x[plane, y, z]
                count += 1
        out[plane, row, column] = total / np.float32(count)


ANSWERS = (
    WrongAnswer("pooling/back", back_with("back_without_guard", by_index, guard=False), "missing guard"),
    WrongAnswer("pooling/back", back_with("back_to_everyone", anyone), "all get the gradient"),
    WrongAnswer("pooling/back", back_with("back_to_the_chosen_only", by_index, rest=False), "output not written"),
    WrongAnswer("pooling/back", back_with("back_without_edge", by_index, edge=False), "missing guard"),
    WrongAnswer("pooling/back", back_with("back_through_all_planes", counted_through_all), "wrong result"),
    WrongAnswer("pooling/back", back_with("back_to_the_first", always_the_first), "wrong result"),
    WrongAnswer("pooling/back", back_with("back_in_even_rows", in_rows_of_the_output), "wrong result"),
    WrongAnswer("pooling/edges", edges_with("edges_without_guard", guard=False), "missing guard"),
    WrongAnswer("pooling/edges", edges_with("edges_from_minus_one", top=-1), "negative index"),
    WrongAnswer("pooling/edges", edges_with("edges_to_one_too_many", bottom=1), "index out of bounds"),
    WrongAnswer("pooling/edges", edges_with("edges_by_nine", of_nine=True), "padding counted"),
    WrongAnswer("pooling/edges", edges_with("edges_in_float64", wide=True), "accidental float64"),
    WrongAnswer("pooling/edges", edges_with("edges_largest", largest=True), "maximum, not mean"),
    WrongAnswer("pooling/edges", edges_with("edges_of_the_first_plane", rows_of=False), "wrong result"),
    WrongAnswer("pooling/edges", edges_by_columns, "uncoalesced"),
)
