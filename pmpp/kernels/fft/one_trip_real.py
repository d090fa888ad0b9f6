"""Half spectra in the fewest trips: transforms of real numbers whose lines have a power of two of them.

As in `pmpp.kernels.fft.real`, two neighbours are read as one complex number, a line of n real numbers is transformed as
h = n / 2 complex ones, and the spectra of the even and of the odd numbers are joined. What differs is where that is
done:

- Up to 32 real numbers: a thread has its lines in shared memory, as in `one_trip.short_lines`, and joins them there.
- What a block holds: `pmpp.kernels.fft.any_length_real`, in one trip.
- Longer lines: `one_trip` transforms them in two trips, and one more joins them. A thread does k and h - k together,
  because both results need the same two values.

Source: G. D. Bergland, A fast Fourier transform algorithm for real-valued series (1968).
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.fft import any_length_real, one_trip
from pmpp.kernels.fft.any_length import MOST, factor, in_words
from pmpp.kernels.fft.any_length_real import checked, half_roots
from pmpp.kernels.fft.butterflies import checked_length, number_of, scaled, turned, word_of
from pmpp.kernels.fft.exchanges import EIGHT, each_read, each_write, get_number, put_number, reader, writer
from pmpp.kernels.fft.one_trip import SHORT, THREADS, WARP, short_transforms
from pmpp.kernels.fft.radices import conjugate
from pmpp.runtime import device

__all__ = ["irfft", "rfft"]

BLOCK = 256  # threads a block that join a long line
ROWS = 65535  # of blocks: a grid has no more along y
IN_BLOCK = 4096  # complex numbers of a line that one block transforms


# ---------------------------------------------------------------------------------------------------------- short lines


class Seats(typing.NamedTuple):
    """Where a thread's short lines lie: ``each`` complex numbers that are transformed, or ``made`` of half spectra."""

    h: int  # complex numbers of a line that are transformed
    each: int  # of a thread's lines together
    made: int  # of their half spectra: h + 1 a line
    pitch: int  # words from thread to thread: odd, so that all threads of a warp reach different banks

    def place(self, i: int) -> int:
        """Of number ``i`` of a thread: each line leaves the place of its last value free."""
        return i + i // self.h


def seats(h: int) -> Seats:
    """Where lines of ``h`` complex numbers lie.

    >>> seats(8)
    Seats(h=8, each=16, made=18, pitch=19)
    """
    each = max(h, SHORT)
    made = each + each // h
    return Seats(h, each, made, made | 1)


def rows_of(s: Seats) -> tuple[typing.Any, typing.Any]:
    """Device functions: a thread's numbers from their places into registers as its transform wants them, and back."""
    count = s.each // EIGHT
    in_order = [range(EIGHT * m, EIGHT * m + EIGHT) for m in range(count)]
    dealt = [range(m, s.each, count) for m in range(count)] if s.h > EIGHT else in_order
    read = each_read([reader(tuple(map(s.place, row)), get_number) for row in dealt])
    write = each_write([writer(tuple(map(s.place, row)), put_number) for row in in_order])
    return read, write


@functools.lru_cache(8)
def short_pairs_kernel(h: int) -> typing.Any:
    """Lines of 2 h real numbers, read as h complex ones, to their half spectra."""
    s = seats(h)
    each, made, pitch, words = np.uint32(s.each), np.uint32(s.made), np.uint32(s.pitch), THREADS * s.pitch
    half, steps, parts, lines = np.uint32(h), s.each, s.made, s.each // h
    size, most = np.uint32(WARP * s.each), np.uint32(WARP * s.made)
    (read, write), transforms = rows_of(s), short_transforms(h)

    @cuda.jit(max_registers=64)
    def short_real_lines_kernel(x, out, roots, scale):
        points = cuda.shared.array(words, np.int64)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % WARP), np.int64(thread // WARP)
        which = np.int64(cuda.blockIdx.x) * (THREADS // WARP) + warp
        if which * size < x.size:
            given, results = x[which * size :], out[which * most :]
            count = np.uint32(min(np.int64(size), given.size))
            begin, last = np.uint32(warp * WARP * pitch), np.uint32(count - np.uint32(1))
            for i in range(steps):
                u = np.uint32(np.uint32(i * WARP) + lane)
                w = np.uint32(u % each)
                points[begin + u // each * pitch + w + w // half] = given[min(u, last)]  # beyond it the last is read
            cuda.syncwarp()
            own = np.uint32(begin + lane * pitch)
            write(points, own, transforms(read(points, own)))
            for line in range(lines):
                place = np.uint32(own + np.uint32(line * (h + 1)))
                z = number_of(points[place])
                points[place] = word_of(complex((z.real + z.imag) * (scale + scale), np.float32(0)))
                points[place + h] = word_of(complex((z.real - z.imag) * (scale + scale), np.float32(0)))
                for k in range(1, h // 2 + 1):
                    a, b = number_of(points[place + k]), conjugate(number_of(points[place + h - k]))
                    even, odd = a + b, turned(a - b) * number_of(roots[k])
                    points[place + h - k] = word_of(scaled(even - odd, scale, -scale))
                    points[place + k] = word_of(scaled(even + odd, scale, scale))
            cuda.syncwarp()
            count = np.uint32(min(np.int64(most), results.size))
            for i in range(parts):
                u = np.uint32(np.uint32(i * WARP) + lane)
                if u < count:
                    results[u] = points[begin + u // made * pitch + u % made]

    return short_real_lines_kernel


@functools.lru_cache(8)
def short_back_kernel(h: int) -> typing.Any:
    """Half spectra of h + 1 values to lines of 2 h real numbers, written as h complex ones."""
    s = seats(h)
    each, made, pitch, words = np.uint32(s.each), np.uint32(s.made), np.uint32(s.pitch), THREADS * s.pitch
    half, steps, parts, lines = np.uint32(h), s.each, s.made, s.each // h
    size, most = np.uint32(WARP * s.each), np.uint32(WARP * s.made)
    (read, write), transforms = rows_of(s), short_transforms(h)

    @cuda.jit(max_registers=64)
    def short_half_spectra_kernel(x, out, roots, scale):
        points = cuda.shared.array(words, np.int64)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % WARP), np.int64(thread // WARP)
        which = np.int64(cuda.blockIdx.x) * (THREADS // WARP) + warp
        if which * most < x.size:
            given, results = x[which * most :], out[which * size :]
            count = np.uint32(min(np.int64(most), given.size))
            begin, last = np.uint32(warp * WARP * pitch), np.uint32(count - np.uint32(1))
            for i in range(parts):
                u = np.uint32(np.uint32(i * WARP) + lane)
                points[begin + u // made * pitch + u % made] = given[min(u, last)]  # beyond the last the last is read
            cuda.syncwarp()
            own = np.uint32(begin + lane * pitch)
            for line in range(lines):
                place = np.uint32(own + np.uint32(line * (h + 1)))
                # Two sums of real numbers: what a caller left in their imaginary parts does not count.
                a, b = number_of(points[place]), number_of(points[place + h])
                points[place] = word_of(complex(a.real + b.real, b.real - a.real))
                for k in range(1, h // 2 + 1):
                    a, b = number_of(points[place + k]), conjugate(number_of(points[place + h - k]))
                    even, odd = a + b, turned((a - b) * conjugate(number_of(roots[k])))
                    points[place + h - k] = word_of(even + odd)
                    points[place + k] = word_of(conjugate(even - odd))
            write(points, own, transforms(read(points, own)))
            cuda.syncwarp()
            count = np.uint32(min(np.int64(size), results.size))
            for i in range(steps):
                u = np.uint32(np.uint32(i * WARP) + lane)
                w = np.uint32(u % each)
                if u < count:
                    z = number_of(points[begin + u // each * pitch + w + w // half])
                    results[u] = word_of(scaled(z, scale, -scale))

    return short_half_spectra_kernel


# ----------------------------------------------------------------------------------------------------------- long lines


@cuda.jit
def joined_kernel(z, out, roots, h, lines, scale):
    """Spectra of h complex numbers to half spectra of h + 1 values; a thread makes values k and h - k."""
    k = cuda.grid(1)
    if 2 * k <= h:
        w = number_of(roots[k])
        other = h - k if k else np.int64(0)
        for line in range(np.int64(cuda.blockIdx.y), lines, cuda.gridDim.y):
            a, b = number_of(z[line * h + k]), conjugate(number_of(z[line * h + other]))
            even, odd = a + b, turned(a - b) * w
            out[line * (h + 1) + h - k] = word_of(scaled(even - odd, scale, -scale))
            out[line * (h + 1) + k] = word_of(scaled(even + odd, scale, scale))


@cuda.jit
def parted_kernel(x, z, roots, h, lines):
    """`joined_kernel` undone: half spectra to spectra of h complex numbers, times two."""
    k = cuda.grid(1)
    if 2 * k <= h:
        w = conjugate(number_of(roots[k]))
        for line in range(np.int64(cuda.blockIdx.y), lines, cuda.gridDim.y):
            a, b = number_of(x[line * (h + 1) + k]), conjugate(number_of(x[line * (h + 1) + h - k]))
            if k == 0:  # two sums of real numbers: what a caller left in their imaginary parts does not count
                a, b = complex(a.real, np.float32(0)), complex(b.real, np.float32(0))
            even, odd = a + b, turned((a - b) * w)
            if k:
                z[line * h + h - k] = word_of(conjugate(even + odd))
            z[line * h + k] = word_of(even - odd)


def across(h: int, lines: int) -> tuple[int, int]:
    """The grid of `joined_kernel` and `parted_kernel`."""
    return blocks(h // 2 + 1, BLOCK), min(lines, ROWS)


# ------------------------------------------------------------------------------------------------------- what is called


def rfft(x, norm="backward", *, stream=0):
    """The half spectra of lines of real numbers.

    Args:
        x: float32, contiguous, of shape (..., n) with n a power of two from 2 to 2^26.
        norm: what is divided by n: "backward" nothing, "ortho" all by its square root, "forward" all by n.
        stream: the stream to work on.

    Returns a complex64 device array of shape (..., n // 2 + 1), as ``numpy.fft.rfft``, without waiting for the work to
    be done. An ``x`` that does not begin at a multiple of 8 bytes is left to `any_length_real.rfft`.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> rfft(np.float32([1, 0, 0, 0])).copy_to_host()
    array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, stream=stream)
    checked(x, MOST, norm)
    n = x.shape[-1]
    checked_length("the last axis of x", n)
    h, lines = n // 2, x.size // n
    if n < 2 or SHORT < h <= IN_BLOCK or device.address(x) % 8 or not lines:
        return any_length_real.rfft(x, norm, stream=stream)
    out = device.empty((*x.shape[:-1], h + 1), np.complex64, stream=stream)
    words, halved = out.reshape(-1).view(np.int64), np.float32(factor(n, False, norm) / 2)
    if h <= SHORT:
        launch = short_pairs_kernel(h)[blocks(lines * h, THREADS * seats(h).each), THREADS, stream]
        launch(x.reshape(-1).view(np.int64), words, half_roots(n), halved)
        return out
    spectra = device.empty((lines, h), np.complex64, stream=stream)
    pairs = x.reshape(-1).view(np.complex64).reshape(lines, h)
    one_trip.short_lines.launch(one_trip.arguments(pairs, out=spectra, stream=stream))
    launch = joined_kernel[across(h, lines), BLOCK, stream]
    launch(spectra.reshape(-1).view(np.int64), words, half_roots(n), h, lines, halved)
    return out


def irfft(x, norm="backward", *, stream=0):
    """Real numbers from their half spectra: `rfft` undone.

    Args:
        x: complex64, contiguous, of shape (..., h + 1) with h a power of two up to 2^25; it begins at a multiple of 8
            bytes, as all of CUDA's complex arrays.
        norm, stream: as in `rfft`; with "backward" the result is divided by 2 h.

    Returns a float32 device array of shape (..., 2 h), without waiting for the work to be done. The first and the last
    value of a spectrum of real numbers have no imaginary part; one that is there is ignored, as by
    ``numpy.fft.irfft``. Raises as `rfft`.

    >>> irfft(np.complex64([4, 0, 0])).copy_to_host()
    array([1., 1., 1., 1.], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = in_words("x", device.as_input("x", x, dtypes=np.complex64, stream=stream))
    checked(x, MOST // 2 + 1, norm)
    h = x.shape[-1] - 1
    checked_length("the last axis of x, less one,", h)
    n, lines = 2 * h, x.size // (h + 1)
    if SHORT < h <= IN_BLOCK or not lines:
        return any_length_real.irfft(x, n, norm, stream=stream)
    out = device.empty((*x.shape[:-1], n), np.float32, stream=stream)
    words, scale = x.reshape(-1).view(np.int64), np.float32(factor(n, True, norm))
    if h <= SHORT:
        launch = short_back_kernel(h)[blocks(lines * h, THREADS * seats(h).each), THREADS, stream]
        launch(words, out.reshape(-1).view(np.int64), half_roots(n), scale)
        return out
    spectra = device.empty((lines, h), np.complex64, stream=stream)
    parted_kernel[across(h, lines), BLOCK, stream](words, spectra.reshape(-1).view(np.int64), half_roots(n), h, lines)
    pairs = out.reshape(-1).view(np.complex64).reshape(lines, h)
    p = one_trip.arguments(spectra, True, "forward", out=pairs, stream=stream)
    one_trip.short_lines.launch(p.replace(scale=scale))
    return out
