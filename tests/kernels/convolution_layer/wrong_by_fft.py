"""Wrong convolutions by FFT: each is `tiles` with one thing changed."""

from unittest import mock

import numpy as np

from pmpp import cuda
from pmpp.kernels.convolution_layer import by_fft as room
from pmpp.kernels.convolution_layer.by_fft_spectra import (
    KEPT,
    POINTS,
    both_axes,
    corner_of,
    pixels,
    row_of,
    store_spectra,
)
from pmpp.kernels.convolution_layer.definition import Pair
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
from tests.support.wrong import WrongRung

ANSWERS: list = []


def changed(name, **things):
    """`tiles`, while other things have those names in the room."""

    def convolve(*arguments, **options):
        with mock.patch.multiple(room, **things):
            return room.tiles(*arguments, **options)

    convolve.__name__ = name
    return convolve


@cuda.jit
def true_convolution(x, w, out, size, channels, filters, group, each):
    i = cuda.grid(1)
    if i < out.size:
        plane = i // size
        f, tile = i - plane * size, plane // filters
        k = plane - tile * filters
        total = complex(np.float32(0), np.float32(0))
        for c in range(group):
            total += x[(tile * channels + k // each * group + c) * size + f] * w[(k * group + c) * size + f]
        out[i] = total


@cuda.jit
def first_group_for_all(x, w, out, size, channels, filters, group, each):
    i = cuda.grid(1)
    if i < out.size:
        plane = i // size
        f, tile = i - plane * size, plane // filters
        k = plane - tile * filters
        total = complex(np.float32(0), np.float32(0))
        for c in range(group):
            total += x[(tile * channels + c) * size + f] * w[(k * group + c) * size + f].conjugate()
        out[i] = total


@cuda.jit
def last_channel_left_out(x, w, out, size, channels, filters, group, each):
    i = cuda.grid(1)
    if i < out.size:
        plane = i // size
        f, tile = i - plane * size, plane // filters
        k = plane - tile * filters
        total = complex(np.float32(0), np.float32(0))
        for c in range(max(group - 1, 1)):
            at = (tile * channels + k // each * group + c) * size + f
            total += x[at] * w[(k * group + c) * size + f].conjugate()
        out[i] = total


def wrapped_around(a, side=None):
    """A tiling that takes all of a tile for output."""
    one = room.Tiling(16, Pair(16, 16), Pair(1, 1))
    full = [(places - 1) * step + 1 for places, step in zip((a.p, a.q), a.stride, strict=True)]
    return one._replace(tiles=Pair(*(-(-extent // 16) for extent in full)))


@cuda.jit(device=True)
def passes_without_a_barrier(points, v, place, step, t, n, radix, table):
    v = first_butterflies(v, radix)
    write_runs(points, place + radix * t * step, radix, step, np.uint32(n // 8) * step, v)
    v = twisted(read8(points, place + t * step, np.uint32(n // 8) * step), read8(table, t, radix))
    cuda.syncthreads()
    return butterfly8(v)


@cuda.jit
def no_barrier(x, out, table, n, radix, tiles, valid, padding, channels, planes):
    points = cuda.shared.array(KEPT, np.complex64)
    line, t = row_of(n)
    square = np.uint32(line // np.uint32(n))
    plane = 2 * (np.int64(cuda.blockIdx.x) * (POINTS // (n * n)) + square)
    a, row, left = corner_of(min(plane, planes - 1), tiles, valid, channels)
    b, other, aside = corner_of(min(plane + 1, planes - 1), tiles, valid, channels)
    down, right = np.int64(line - square * np.uint32(n)) - padding.rows, np.int64(t) - padding.columns
    v = pixels(x, a, b, row + down, other + down, left + right, aside + right, n // 8, plane + 1 < planes)
    pitch = np.uint32(n + n // 8)
    v = passes_without_a_barrier(points, v, line * pitch, np.uint32(1), t, n, np.uint32(radix), table)
    write8(points, line * pitch + t, np.uint32(n // 8), v)
    cuda.syncthreads()
    v = read8(points, line * pitch + t, np.uint32(n // 8))
    cuda.syncthreads()
    store_spectra(points, both_axes(points, v, n, radix, table), out, planes, n)


@cuda.jit(device=True)
def planes_exchanged(points, v, out, planes, n):
    pitch, wide = np.uint32(n + n // 8), np.uint32(n // 2 + 1)
    thread = np.uint32(cuda.threadIdx.x)
    line, t = row_of(n)
    square = np.uint32(line // np.uint32(n))
    column = line - square * np.uint32(n)
    cuda.syncthreads()
    write8(points, (square * np.uint32(n) + column) * pitch + t, np.uint32(n // 8), v)
    cuda.syncthreads()
    for s in range(POINTS // (n * n)):
        plane, f = 2 * (np.int64(cuda.blockIdx.x) * (POINTS // (n * n)) + s), thread
        while f < n * wide and plane < planes:
            row = np.uint32(f // wide)
            z = points[s * n * pitch + row * pitch + f - row * wide]
            out[plane * n * wide + f] = scaled(z, np.float32(1), np.float32(1))
            if plane + 1 < planes:
                out[(plane + 1) * n * wide + f] = turned(z)
            f += np.uint32(cuda.blockDim.x)


@cuda.jit
def spectra_not_taken_apart(x, out, table, n, radix, tiles, valid, padding, channels, planes):
    points = cuda.shared.array(KEPT, np.complex64)
    line, t = row_of(n)
    square = np.uint32(line // np.uint32(n))
    plane = 2 * (np.int64(cuda.blockIdx.x) * (POINTS // (n * n)) + square)
    a, row, left = corner_of(min(plane, planes - 1), tiles, valid, channels)
    b, other, aside = corner_of(min(plane + 1, planes - 1), tiles, valid, channels)
    down, right = np.int64(line - square * np.uint32(n)) - padding.rows, np.int64(t) - padding.columns
    v = pixels(x, a, b, row + down, other + down, left + right, aside + right, n // 8, plane + 1 < planes)
    planes_exchanged(points, both_axes(points, v, n, radix, table), out, planes, n)


RUNGS = [
    WrongRung(changed("true_convolution", products_kernel=true_convolution), "wrong result"),
    WrongRung(changed("first_group_for_all", products_kernel=first_group_for_all), "wrong result"),
    WrongRung(changed("last_channel_left_out", products_kernel=last_channel_left_out), "wrong result"),
    WrongRung(changed("wrapped_around", tiling_of=wrapped_around), "wrong result"),
    WrongRung(changed("no_barrier", image_spectra_kernel=no_barrier), "race"),
    WrongRung(changed("spectra_not_taken_apart", image_spectra_kernel=spectra_not_taken_apart), "wrong result"),
]
