"""Pixels that meet: where a row and a column of a kernel find a pixel of an image whose channels lie last.

The kernels of `pmpp.kernels.convolution_layer.mixed` and of `mixed_warpgroups` gather the chunks of 8 channels that
they multiply. They share what says which, in 32 bits, and what begins to copy one.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common.division import quotient
from pmpp.kernels.matmul.tensor_cores import CHUNK
from pmpp.runtime.matrix import copy_async

CAPABILITY = (8, 0)  # of the oldest GPU that has asynchronous copies
BLOCK = 256  # threads, where nothing else decides
LOADS = 4  # chunks that a thread copies of a tile of pixels, each of another place or of another pixel


class Places(typing.NamedTuple):
    """Which pixel of an image, whose channels lie last, meets row r and column s of a kernel at a given place.

    ``across``: of the places, as many as there are columns in a row of them. At place (p, q) it is the pixel
    ``((p * times + first + r * step) / apart, ...)`` if ``apart`` divides that and it is in the image, else none.
    ``depth`` is of a group's channels, rounded up to whole chunks, and ``pitch`` of all groups.
    """

    down: int
    across: int
    rows: int
    columns: int
    kernel: int
    depth: int
    pitch: int
    times_rows: int
    times_columns: int
    first_rows: int
    first_columns: int
    step_rows: int
    step_columns: int
    apart_rows: int
    apart_columns: int
    across_times: int  # what divides by `across`, `kernel`, `depth` and both of `apart`: see `divisor`
    across_shift: int
    kernel_times: int
    kernel_shift: int
    depth_times: int
    depth_shift: int
    rows_times: int
    rows_shift: int
    columns_times: int
    columns_shift: int


class Product(typing.NamedTuple):
    """The extents of the products, of which each group has one. ``n`` is of places or, for weights, of r, s and c.

    ``pixels``: places of one image. ``c_pitch``, ``length``: of a row of sums, and pixels in a part, for weights.
    """

    m: int
    n: int
    k: int
    pixels: int
    channels: int
    c_pitch: int
    length: int
    pixels_times: int  # what divides by ``pixels``
    pixels_shift: int


@cuda.jit(device=True)
def pixel_of(far, r, s, g, spread):
    """The pixel of its image that (r, s) meets at a place, or -1. ``far``: what `far_of` says of the place."""
    h = np.int32((far >> np.int32(16)) + r * g.step_rows)
    w = np.int32(np.int32(far << np.int32(16)) >> np.int32(16)) + s * g.step_columns
    inside = h >= 0 and w >= 0
    if spread:
        down, along = quotient(h, g.rows_times, g.rows_shift), quotient(w, g.columns_times, g.columns_shift)
        inside = inside and down * g.apart_rows == h and along * g.apart_columns == w
        h, w = down, along
    return np.int32(h * g.columns + w) if inside and h < g.rows and w < g.columns else np.int32(-1)


@cuda.jit(device=True)
def far_of(place, g):
    """Where (0, 0) of the kernel is at a place of an image: rows in the upper 16 bits, columns in the lower ones."""
    p = quotient(place, g.across_times, g.across_shift)
    q = np.int32(place - p * g.across)
    h, w = p * g.times_rows + g.first_rows, q * g.times_columns + g.first_columns
    return np.int32((np.int32(h) << np.int32(16)) | (np.int32(w) & np.int32(0xFFFF)))


@cuda.jit(device=True)
def copy_chunk(shared, to, x, image, pixel, within, g):
    """Begin to copy the chunk ``within`` a pixel of an image, or zeros if one of the three is below 0."""
    inside = image >= 0 and pixel >= 0 and within >= 0
    at = np.int64(image + pixel) * g.pitch + within if inside else np.int64(0)
    copy_async(shared, np.uint32(to), x, at, np.int32(CHUNK) if inside else np.int32(0))


@cuda.jit(device=True)
def copy_row(shared, to, x, pixel, end, r, column, within, s, g):
    """Begin to copy the chunk that (r, s) meets at a pixel of the output, counted in all images."""
    image = quotient(pixel, s.pixels_times, s.pixels_shift)
    far = far_of(pixel - image * np.int32(s.pixels), g)
    met = pixel_of(far, r, column, g, False) if pixel < end else np.int32(-1)
    copy_chunk(shared, to, x, np.int32(image * g.rows * g.columns), met, within, g)
