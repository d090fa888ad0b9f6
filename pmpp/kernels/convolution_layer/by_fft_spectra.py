"""Transforms for `by_fft`, in shared memory: tiles of images to spectra, masks to spectra, and spectra to outputs.

A block transforms 4096 complex points, first along the rows and then along the columns: one square of 64 x 64, four of
32 x 32 or sixteen of 16 x 16. Two planes of real numbers, a and b, share a transform as z = a + i b. With
M[f] = conj Z[-f] their spectra are (Z + M) / 2 and (Z - M) / 2i. The spectrum of real numbers is determined by half of
it, n (n / 2 + 1) values, and only this half is stored. On the way back a + i b is put together again; a is then the
real part of the inverse transform, and b the imaginary part.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer.definition import finish
from pmpp.kernels.fft.butterflies import (
    butterfly8,
    first_butterflies,
    read8,
    scaled,
    turned,
    twisted,
    write8,
    write_runs,
)

# Of a block; eight points per thread. 4096 points are one square of 64 x 64, the largest of `SIDES`.
POINTS, THREADS = 4096, 512
KEPT = POINTS * 9 // 8  # in shared memory: rows are an eighth longer than needed, so that they begin at different banks
SIDES = (16, 32, 64)  # of a tile: powers of two that two passes can transform


@cuda.jit(device=True)
def both_passes(points, v, place, step, t, n, radix, table):
    """Transform a line of n points. This thread has the points t + k n / 8, k = 0 .. 7, before and afterwards."""
    eighth = np.uint32(n // 8)
    v = first_butterflies(v, radix)
    write_runs(points, place + radix * t * step, radix, step, eighth * step, v)
    cuda.syncthreads()
    v = twisted(read8(points, place + t * step, eighth * step), read8(table, t, radix))
    cuda.syncthreads()
    return butterfly8(v)


@cuda.jit(device=True)
def row_of(n):
    """This thread's ``(line, t)`` in the pass along rows; lines are the rows of the block's squares."""
    thread, bits = np.uint32(cuda.threadIdx.x), np.uint32(28 - cuda.clz(np.int32(n)))
    return np.uint32(thread >> bits), thread & np.uint32(n // 8 - 1)


@cuda.jit(device=True)
def column_of(n):
    """This thread's ``(square, column, t)`` in the pass along columns. Consecutive threads have consecutive columns."""
    thread, bits = np.uint32(cuda.threadIdx.x), np.uint32(31 - cuda.clz(np.int32(n)))
    rest = np.uint32(thread >> bits)
    return np.uint32(rest >> (bits - np.uint32(3))), thread & np.uint32(n - 1), rest & np.uint32(n // 8 - 1)


@cuda.jit(device=True)
def both_axes(points, v, n, radix, table):
    """Transform the block's squares. A thread brings eight points of a row and gets eight points of a column."""
    pitch = np.uint32(n + n // 8)
    line, t = row_of(n)
    v = both_passes(points, v, line * pitch, np.uint32(1), t, n, np.uint32(radix), table)
    write8(points, line * pitch + t, np.uint32(n // 8), v)
    cuda.syncthreads()
    square, column, t = column_of(n)
    place = square * np.uint32(n) * pitch + column
    v = read8(points, place + t * pitch, np.uint32(n // 8) * pitch)
    cuda.syncthreads()
    return both_passes(points, v, place, pitch, t, n, np.uint32(radix), table)


@cuda.jit(device=True)
def store_spectra(points, v, out, planes, n):
    """Take the spectra of two planes apart, and store half of each: value f = row (n / 2 + 1) + column."""
    pitch, wide = np.uint32(n + n // 8), np.uint32(n // 2 + 1)
    square, column, t = column_of(n)
    write8(points, (square * np.uint32(n) + t) * pitch + column, np.uint32(n // 8) * pitch, v)
    cuda.syncthreads()
    squares, size = np.uint32(POINTS // (n * n)), np.uint32(n) * wide
    square = np.uint32(0)
    while square < squares:
        plane = 2 * (np.int64(cuda.blockIdx.x) * squares + square)
        f = np.uint32(cuda.threadIdx.x)
        while f < size and plane < planes:
            row = np.uint32(f // wide)
            column = f - row * wide
            first = square * np.uint32(n) * pitch
            z = points[first + row * pitch + column]
            m = points[first + (-row & np.uint32(n - 1)) * pitch + (-column & np.uint32(n - 1))].conjugate()
            out[plane * size + f] = scaled(z + m, np.float32(0.5), np.float32(0.5))
            if plane + 1 < planes:
                out[(plane + 1) * size + f] = scaled(turned(z - m), np.float32(0.5), np.float32(0.5))
            f += np.uint32(cuda.blockDim.x)
        square += np.uint32(1)


# ------------------------------------------------------------------------------------------------------ tiles of images


@cuda.jit(device=True)
def corner_of(plane, tiles, valid, channels):
    """``(image x channels + channel, top, left)``: which plane of x a tile's plane is cut from, and where.

    Planes of tiles are numbered by channel first, then by tile, then by image.
    """
    tile = np.int64(np.uint32(plane) // np.uint32(channels))
    channel = plane - tile * channels
    line = np.int64(np.uint32(tile) // np.uint32(tiles.columns))
    image = np.int64(np.uint32(line) // np.uint32(tiles.rows))
    top, left = (line - image * tiles.rows) * valid.rows, (tile - line * tiles.columns) * valid.columns
    return image * channels + channel, top, left


@cuda.jit(device=True)
def pixel(x, plane, row, column, there):
    """An element of a plane of x, or 0 beyond its edges."""
    if there and row >= 0 and row < x.shape[1] and column >= 0 and column < x.shape[2]:
        return x[plane, row, column]
    return np.float32(0)


@cuda.jit
def image_spectra_kernel(x, out, table, n, radix, tiles, valid, padding, channels, planes):
    points = cuda.shared.array(KEPT, np.complex64)
    line, t = row_of(n)
    square = np.uint32(line // np.uint32(n))
    plane = 2 * (np.int64(cuda.blockIdx.x) * (POINTS // (n * n)) + square)
    a, row, left = corner_of(min(plane, planes - 1), tiles, valid, channels)
    b, other, aside = corner_of(min(plane + 1, planes - 1), tiles, valid, channels)
    down, right = np.int64(line - square * np.uint32(n)) - padding.rows, np.int64(t) - padding.columns
    v = pixels(x, a, b, row + down, other + down, left + right, aside + right, n // 8, plane + 1 < planes)
    store_spectra(points, both_axes(points, v, n, radix, table), out, planes, n)


@cuda.jit(device=True)
def pixels(x, a, b, row, other, column, aside, step, two):
    """Eight points of a row of plane a, and as imaginary parts of a row of plane b."""
    return (
        complex(pixel(x, a, row, column, True), pixel(x, b, other, aside, two)),
        complex(pixel(x, a, row, column + step, True), pixel(x, b, other, aside + step, two)),
        complex(pixel(x, a, row, column + 2 * step, True), pixel(x, b, other, aside + 2 * step, two)),
        complex(pixel(x, a, row, column + 3 * step, True), pixel(x, b, other, aside + 3 * step, two)),
        complex(pixel(x, a, row, column + 4 * step, True), pixel(x, b, other, aside + 4 * step, two)),
        complex(pixel(x, a, row, column + 5 * step, True), pixel(x, b, other, aside + 5 * step, two)),
        complex(pixel(x, a, row, column + 6 * step, True), pixel(x, b, other, aside + 6 * step, two)),
        complex(pixel(x, a, row, column + 7 * step, True), pixel(x, b, other, aside + 7 * step, two)),
    )


# --------------------------------------------------------------------------------------------------------------- masks


@cuda.jit(device=True)
def weight(w, plane, row, column, dilation, there):
    """An element of a dilated mask, or 0 between and beyond the mask's elements. w has shape (masks, R, S)."""
    r, s = np.int64(row), np.int64(column)
    if dilation.rows > 1 or dilation.columns > 1:
        r, s = (
            np.int64(np.uint32(row) // np.uint32(dilation.rows)),
            np.int64(np.uint32(column) // np.uint32(dilation.columns)),
        )
        there = there and r * dilation.rows == np.int64(row) and s * dilation.columns == np.int64(column)
    return w[plane, r, s] if there and r < w.shape[1] and s < w.shape[2] else np.float32(0)


@cuda.jit(device=True)
def weights(w, plane, row, column, dilation, two):
    return complex(weight(w, plane, row, column, dilation, True), weight(w, plane + 1, row, column, dilation, two))


@cuda.jit
def mask_spectra_kernel(w, out, table, n, radix, dilation, planes):
    points = cuda.shared.array(KEPT, np.complex64)
    line, t = row_of(n)
    square = np.uint32(line // np.uint32(n))
    plane = 2 * (np.int64(cuda.blockIdx.x) * (POINTS // (n * n)) + square)
    two, row, step = plane + 1 < planes, line - square * np.uint32(n), np.uint32(n // 8)
    a = min(plane, planes - 1)
    v = (
        weights(w, a, row, t, dilation, two), weights(w, a, row, t + step, dilation, two),
        weights(w, a, row, t + 2 * step, dilation, two), weights(w, a, row, t + 3 * step, dilation, two),
        weights(w, a, row, t + 4 * step, dilation, two), weights(w, a, row, t + 5 * step, dilation, two),
        weights(w, a, row, t + 6 * step, dilation, two), weights(w, a, row, t + 7 * step, dilation, two),
    )  # fmt: skip
    store_spectra(points, both_axes(points, v, n, radix, table), out, planes, n)


# ----------------------------------------------------------------------------------------------------------- and back


@cuda.jit(device=True)
def joined(spectra, plane, row, column, n, two):
    """The conjugate of A + i B at (row, column), from the half spectra of two planes.

    The forward transform of the conjugate is the conjugate of the inverse transform.
    """
    wide, mirror = np.uint32(n // 2 + 1), column > np.uint32(n // 2)
    row = -row & np.uint32(n - 1) if mirror else row
    column = np.uint32(n) - column if mirror else column
    size = np.uint32(n) * wide
    a = spectra[plane * size + row * wide + column]
    b = spectra[(plane + 1) * size + row * wide + column] if two else complex(np.float32(0), np.float32(0))
    if mirror:
        a, b = a.conjugate(), b.conjugate()
    return complex(a.real - b.imag, -a.imag - b.real)


@cuda.jit
def images_kernel(spectra, out, bias, table, n, radix, tiles, valid, stride, filters, planes, scale, relu):
    points = cuda.shared.array(KEPT, np.complex64)
    line, t = row_of(n)
    squares = POINTS // (n * n)
    square, step = np.uint32(line // np.uint32(n)), np.uint32(n // 8)
    plane, row = 2 * (np.int64(cuda.blockIdx.x) * squares + square), line - square * np.uint32(n)
    a, two = min(plane, planes - 1), plane + 1 < planes
    v = (
        joined(spectra, a, row, t, n, two), joined(spectra, a, row, t + step, n, two),
        joined(spectra, a, row, t + 2 * step, n, two), joined(spectra, a, row, t + 3 * step, n, two),
        joined(spectra, a, row, t + 4 * step, n, two), joined(spectra, a, row, t + 5 * step, n, two),
        joined(spectra, a, row, t + 6 * step, n, two), joined(spectra, a, row, t + 7 * step, n, two),
    )  # fmt: skip
    v = both_axes(points, v, n, radix, table)
    square, column, t = column_of(n)
    plane = 2 * (np.int64(cuda.blockIdx.x) * squares + square)
    store_column(v, out, bias, plane, planes, t, column, n, tiles, valid, stride, filters, scale, False, relu)
    store_column(v, out, bias, plane + 1, planes, t, column, n, tiles, valid, stride, filters, -scale, True, relu)


@cuda.jit(device=True)
def store_column(v, out, bias, plane, planes, t, column, n, tiles, valid, stride, filters, scale, imag, relu):
    """Store the outputs in a tile's column, without the elements that wrapped around or that a stride skips."""
    whole, top, left = corner_of(min(plane, planes - 1), tiles, valid, filters)
    across = left + np.int64(column)
    q = np.int64(np.uint32(across) // np.uint32(stride.columns)) if stride.columns > 1 else across
    if plane < planes and np.int64(column) < valid.columns and q * stride.columns == across and q < out.shape[2]:
        k, row, step = np.uint32(whole) % np.uint32(filters), np.int64(t), n // 8
        store_point(v[0], out, bias, whole, k, row, q, top, valid.rows, stride.rows, scale, imag, relu)
        store_point(v[1], out, bias, whole, k, row + step, q, top, valid.rows, stride.rows, scale, imag, relu)
        store_point(v[2], out, bias, whole, k, row + 2 * step, q, top, valid.rows, stride.rows, scale, imag, relu)
        store_point(v[3], out, bias, whole, k, row + 3 * step, q, top, valid.rows, stride.rows, scale, imag, relu)
        store_point(v[4], out, bias, whole, k, row + 4 * step, q, top, valid.rows, stride.rows, scale, imag, relu)
        store_point(v[5], out, bias, whole, k, row + 5 * step, q, top, valid.rows, stride.rows, scale, imag, relu)
        store_point(v[6], out, bias, whole, k, row + 6 * step, q, top, valid.rows, stride.rows, scale, imag, relu)
        store_point(v[7], out, bias, whole, k, row + 7 * step, q, top, valid.rows, stride.rows, scale, imag, relu)


@cuda.jit(device=True)
def store_point(z, out, bias, whole, k, row, q, top, valid, stride, scale, imag, relu):
    p = np.int64(np.uint32(top + row) // np.uint32(stride)) if stride > 1 else top + row
    if row < valid and p * stride == top + row and p < out.shape[1]:
        out[whole, p, q] = finish((z.imag if imag else z.real) * scale, bias, k, relu)
