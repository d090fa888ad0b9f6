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


class Walk(typing.NamedTuple):
    """From one pixel of the output to another one so many further: by how much what it meets moves on.

    ``rows`` and ``columns`` are added; ``row`` and ``image`` besides where a row, or an image, has come to its end, and
    then ``all_columns`` or ``all_rows`` are taken off. ``images``: how many pixels of x the image moves on in any case.
    """

    lines: int
    columns: int
    rows: int
    images: int
    row: int
    image: int
    all_columns: int
    all_rows: int


def walk_of(lines: int, a: typing.Any) -> Walk:
    """The walk of a layer over ``lines`` pixels, in as many whole images, rows and pixels as they are."""
    whole, rest = divmod(lines, a.p * a.q)
    rows, columns = divmod(rest, a.q)
    u, v, pixels = a.stride.rows, a.stride.columns, a.h * a.w
    given = lines, columns * v, rows * u, whole * pixels, u, pixels, a.q * v, a.p * u
    return Walk(*map(np.int32, given))


@cuda.jit(device=True)
def begin_walk(pixel, end, r, column, s, g):
    """What (r, s) meets at a pixel of the output, counted in all images, and where rows and columns end.

    The first is a row, a column, the first pixel of their image, and how many pixels are left.
    """
    image = quotient(pixel, s.pixels_times, s.pixels_shift)
    far = far_of(pixel - image * np.int32(s.pixels), g)
    down, along = np.int32(r * g.step_rows), np.int32(column * g.step_columns)
    h = np.int32((far >> np.int32(16)) + down)
    w = np.int32((np.int32(far << np.int32(16)) >> np.int32(16)) + along)
    state = h, w, np.int32(image * g.rows * g.columns), np.int32(end - pixel)
    ends = (
        np.int32(g.first_rows + down + g.down * g.times_rows),
        np.int32(g.first_columns + along + g.across * g.times_columns),
    )
    return state, ends


@cuda.jit(device=True)
def copy_met(shared, to, x, state, within, g):
    """Begin to copy the chunk that is met, or zeros."""
    h, w, image, left = state
    there = left > 0 and h >= 0 and w >= 0 and h < g.rows and w < g.columns
    copy_chunk(shared, to, x, image, np.int32(h * g.columns + w) if there else np.int32(-1), within, g)


@cuda.jit(device=True)
def walk_on(state, ends, walk):
    """The state so many pixels further. All steps are additions."""
    h, w, image, left = state
    h, w, image = np.int32(h + walk.rows), np.int32(w + walk.columns), np.int32(image + walk.images)
    if w >= ends[1]:
        h, w = np.int32(h + walk.row), np.int32(w - walk.all_columns)
    if h >= ends[0]:
        h, image = np.int32(h - walk.all_rows), np.int32(image + walk.image)
    return h, w, image, np.int32(left - walk.lines)
