"""Half spectra in the fewest trips: transforms of real numbers whose lines have a power of two of them.

As in `pmpp.kernels.fft.real`, two neighbours are read as one complex number, a line of n real numbers is transformed as
h = n / 2 complex ones, and the spectra of the even and of the odd numbers are joined. What differs is where that is
done:

- Up to 32 real numbers: a thread has its lines in shared memory, as in `one_trip.short_lines`, and joins them there.
- 128 to 16384 real numbers: one trip. A block transforms lines in its registers, as in `one_trip.parts_in_turn`. Then
  the values go through shared memory once more, because k and h - k are joined to two results. Up to 8192 both parts of
  all values have room there, and each warp writes neighbours, across the ends of lines. Longer lines go there in two
  parts, to the threads that have their mirror images, and every thread joins its own.
- Up to 2^23: a matrix, in two trips, as in `one_trip.two_trips`. A block of the second trip has columns and their
  mirror images, and joins them in the same way.
- Longer lines: `one_trip` transforms them in two trips, and one more joins them. A thread does k and h - k together,
  because both results need the same two values.

The way back is as short for up to 8192 real numbers, by `pmpp.kernels.fft.any_length_real`. So are 64 real numbers,
there and back.

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
from pmpp.kernels.fft.exchanges import (  # fmt: skip
    EIGHT,
    Form,
    barrier,
    each_pair,
    each_read,
    each_write,
    factors,
    form_of,
    get_number,
    get_part,
    join_row,
    offsets_of,
    passes_after,
    put_imaginary,
    put_number,
    put_real,
    reader,
    results_of,
    scaled_rows,
    seat,
    transformed,
    writer,
)
from pmpp.kernels.fft.one_trip import (  # fmt: skip
    FEWEST,
    KERNELS,
    POINTS,
    SHORT,
    THREADS,
    WARP,
    columns_of,
    lines_of,
    registers,
    short_transforms,
    turned_kernel,
    turns,
)
from pmpp.kernels.fft.radices import conjugate
from pmpp.runtime import device

__all__ = ["irfft", "rfft"]

BLOCK = 256  # threads a block that join a long line
ROWS = 65535  # of blocks: a grid has no more along y
IN_BLOCK = 8192  # complex numbers of a line that one block transforms,
STAGED = 4096  # of which it stages both parts,
BACK_IN_BLOCK = 4096  # and on the way back


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


# -------------------------------------------------------------------------------------------------- what a block holds


@cuda.jit(device=True)
def side_by_side(v, w):
    return v, w


@cuda.jit(device=True)
def joined(z, mirrored, root):
    """Twice a value of the half spectrum, from the same of the h complex numbers, its mirror image, and its root."""
    b = conjugate(mirrored)
    return z + b + turned(z - b) * root


def row_joined(offsets: tuple[int, ...]) -> typing.Any:
    """A device function: eight values, their mirror images, and the roots that lie ``offsets`` behind a place.

    It is given a pair: the roots, and a number that all of them are multiplied by.
    """
    o = tuple(map(np.uint32, offsets))

    @cuda.jit(device=True)
    def join_eight(given, place, both):
        (roots, near), (v, w) = given, both
        a, b = number_of(roots[place + o[0]]) * near, number_of(roots[place + o[1]]) * near
        c, d = number_of(roots[place + o[2]]) * near, number_of(roots[place + o[3]]) * near
        e, f = number_of(roots[place + o[4]]) * near, number_of(roots[place + o[5]]) * near
        g, h = number_of(roots[place + o[6]]) * near, number_of(roots[place + o[7]]) * near
        return (
            joined(v[0], w[0], a), joined(v[1], w[1], b), joined(v[2], w[2], c), joined(v[3], w[3], d),
            joined(v[4], w[4], e), joined(v[5], w[5], f), joined(v[6], w[6], g), joined(v[7], w[7], h),
        )  # fmt: skip

    return join_eight


def room_of(form: Form) -> int:
    """Words of shared memory from line to line, while values go to their mirror images.

    One more than values, as the first lies behind the last, too. The lines of a warp begin at different banks.
    """
    return form.n + max(1, form.apart % WARP)


@functools.lru_cache(KERNELS)
def mirrored(form: Form) -> typing.Any:
    """A device function: for each of a thread's results k the value h - k, or for k = 0 the value 0."""
    own = results_of(form, len(form.radices) - 1)
    most = max(map(max, own))  # with it no offset is negative
    put_reals, put_imaginaries = (each_write([writer(row, put) for row in own]) for put in (put_real, put_imaginary))
    get = each_read([reader(tuple(most - k for k in row), get_part) for row in own])
    whole, wait, room, behind = (
        each_pair(form.rows, join_row),
        barrier(form),
        np.uint32(room_of(form)),
        np.uint32(form.n),
    )
    first = np.uint32(form.n - most)

    @cuda.jit(device=True)
    def mirror_images(points, line, t, v):
        begin = np.uint32(line * room)
        place, there = np.uint32(begin + t), np.uint32(begin + first - t)
        cuda.syncthreads()  # what the last exchange left has been read, by all: lines lay elsewhere there
        put_reals(points, place, v)
        if t == 0:
            points[begin + behind] = v[0][0].real
        wait()
        x = get(points, there)
        wait()
        put_imaginaries(points, place, v)
        if t == 0:
            points[begin + behind] = v[0][0].imag
        wait()
        return whole(x, get(points, there))

    return mirror_images


@functools.lru_cache(KERNELS)
def staged_kernel(form: Form) -> typing.Any:
    """Lines of 2 form.n real numbers, read as form.n complex ones, to their half spectra: all values are staged."""
    h, lines, room = form.n, form.lines, room_of(form)
    behind, words, threads = np.uint32(lines * room), max(form.words, 2 * lines * room), form.threads
    pairs, steps = np.uint32(h // 2 + 1), blocks(lines * (h // 2 + 1), threads)  # of a line; for a thread
    own = results_of(form, len(form.radices) - 1)
    put_reals, put_imaginaries = (each_write([writer(row, put) for row in own]) for put in (put_real, put_imaginary))
    read = each_read([reader(row, get_number) for row in offsets_of(form)])
    butterflies, passes, where = transformed(form.rows, form.radices[0]), passes_after(form), seat(form, False)
    one_line, most = np.uint32(room), np.uint32(h)

    @cuda.jit(max_registers=registers(form))
    def real_lines_to_half_spectra_kernel(x, out, table, roots, total, scale):
        points = cuda.shared.array(words, np.float32)  # at the end: all real parts, and behind them the imaginary ones
        thread = np.uint32(cuda.threadIdx.x)
        which, t = where(thread)
        first = np.int64(cuda.blockIdx.x) * lines
        inside = min(first + which, total - 1)  # beyond the last line the last is read, and nothing is written
        v = passes(points, table, thread, butterflies(read(x[inside * h :], t)))
        cuda.syncthreads()  # what the last exchange left has been read
        place = np.uint32(which * one_line + t)
        put_reals(points, place, v)
        put_imaginaries(points, np.uint32(behind + place), v)
        cuda.syncthreads()
        mine, count = out[first * (h + 1) :], np.uint32(min(np.int64(lines), total - first))
        for i in range(steps):
            u = np.uint32(thread + np.uint32(i * threads))
            line = np.uint32(u // pairs)
            if line < count:
                k = np.uint32(u - line * pairs)
                begin, end = np.uint32(line * one_line), np.uint32(line * np.uint32(h + 1))
                at, other = np.uint32(begin + k), np.uint32(begin + (most - k if k else np.uint32(0)))
                a, b = complex(points[at], points[behind + at]), complex(points[other], -points[behind + other])
                even, odd = a + b, turned(a - b) * number_of(roots[k])
                mine[end + (most - k)] = word_of(scaled(even - odd, scale, -scale))
                mine[end + k] = word_of(scaled(even + odd, scale, scale))

    return real_lines_to_half_spectra_kernel


@functools.lru_cache(KERNELS)
def pairs_kernel(form: Form) -> typing.Any:
    """As `staged_kernel`, with half as much shared memory: a thread joins its own values with their mirror images."""
    h, lines, words = form.n, np.int64(form.lines), max(form.words, form.lines * room_of(form))
    own = results_of(form, len(form.radices) - 1)
    read, write = (
        each_read([reader(row, get_number) for row in offsets_of(form)]),
        each_write([writer(row, put_number) for row in own]),
    )
    butterflies, passes, images = transformed(form.rows, form.radices[0]), passes_after(form), mirrored(form)
    both, join = each_pair(form.rows, side_by_side), each_write([row_joined(row) for row in own])
    scale, where = scaled_rows(form.rows), seat(form, False)

    @cuda.jit(max_registers=registers(form))
    def real_lines_in_a_block_kernel(x, out, table, roots, total, factor):
        points = cuda.shared.array(words, np.float32)
        which, t = where(np.uint32(cuda.threadIdx.x))
        line = cuda.blockIdx.x * lines + which
        inside = min(line, total - 1)  # beyond the last line the last is read, and nothing is written
        v = passes(points, table, np.uint32(cuda.threadIdx.x), butterflies(read(x[inside * h :], t)))
        w = images(points, which, t, v)
        if line < total:
            mine, one = out[line * (h + 1) :], complex(np.float32(1), np.float32(0))
            write(mine, t, scale(join((roots, one), t, both(v, w)), factor, factor))
            if t == 0:
                mine[h] = word_of(complex((v[0][0].real - v[0][0].imag) * (factor + factor), np.float32(0)))

    return real_lines_in_a_block_kernel


# --------------------------------------------------------------------------------------------- a matrix, in two trips
# Value k = i + a j of the spectrum of h = a b complex numbers is in row j of column i when the second trip has it. Its
# mirror image is in column a - i, or in the same one if i is 0 or a / 2. So a block takes columns and their mirrors.

SHORTEST, LONGEST = 2**14, 2**22  # complex numbers of a line that is a matrix


@functools.lru_cache(64)
def sides(h: int) -> tuple[Form, Form] | None:
    """Columns of the first trip and of the second one for a line of h complex numbers; None if it is none.

    The second trip has short columns, because a block has many of them then: half of them are neighbours, and so are
    their mirror images. Of columns of 512 points it holds 32, in two rounds, so that both are 128 bytes.
    """
    if not SHORTEST <= h <= LONGEST:
        return None
    bits = h.bit_length() - 1
    b = 1 << (8 if bits <= 18 else 9 if bits <= 21 else 10)
    long = b > 256
    return columns_of(h // b, turned=True), form_of(b, (1 + long) * POINTS, columns=True, rounds=1 + long)


@functools.lru_cache(KERNELS)
def mirrored_columns(form: Form) -> typing.Any:
    """A device function: for each of a thread's results in one half of the rows that in row b - 1 - j of ``other``.

    A thread has eight results or a multiple of them in each half. It gives those of one half, and gets the mirror
    images of those of the other half: so shared memory holds half of the columns. For column 0 the mirror image is in
    row b - j, which for j = 0 is row 0, and for j = b / 2 that row itself: ``first`` is the thread's first result of
    the half that it does not give.
    """
    last, rows, lines = len(form.radices) - 1, form.rows // 2, np.uint32(form.lines)
    own = results_of(form, last)[:rows]
    most, half = max(map(max, own)), form.n // 2
    to = [tuple(k * form.lines for k in row) for row in own]
    put_reals, put_imaginaries = (each_write([writer(row, put) for row in to]) for put in (put_real, put_imaginary))
    get = each_read([reader(tuple((most - k) * form.lines for k in row), get_part) for row in own])
    whole, end, behind = each_pair(rows, join_row), np.uint32(half - 1 - most), np.uint32(half * form.lines)

    @cuda.jit(device=True)
    def mirror_images(points, which, other, zero, t, v, first):
        place = np.uint32(t * lines + which)
        there = np.uint32((end - t + (np.uint32(1) if zero else np.uint32(0))) * lines + other)
        cuda.syncthreads()  # what was there before has been read
        put_reals(points, place, v)
        if t == 0:
            points[behind + which] = first.real
        cuda.syncthreads()
        x = get(points, there)
        cuda.syncthreads()
        put_imaginaries(points, place, v)
        if t == 0:
            points[behind + which] = first.imag
        cuda.syncthreads()
        return whole(x, get(points, there))

    return mirror_images


@functools.lru_cache(KERNELS)
def joined_columns_kernel(form: Form, across: int) -> typing.Any:
    """The second trip: columns of a matrix of ``across`` columns, transformed, joined, and written as half spectra.

    The upper half of the rows meets its mirror images, is joined and written, and then the lower half.
    """
    last, rows = len(form.radices) - 1, form.rows // 2
    lines, each, words = np.uint32(form.lines), np.uint32(form.lines // 2), (form.n // 2 + 1) * form.lines
    tiles, h, a, words = across // form.lines, np.int64(form.n * across), np.uint32(across), max(form.words, words)
    own, placed = results_of(form, last), results_of(form, last, across)
    read = each_read([reader(row, get_number) for row in offsets_of(form, across)])
    write_low, write_high = (
        each_write([writer(row, put_number) for row in some]) for some in (placed[:rows], placed[rows:])
    )
    join_low, join_high = (each_write([row_joined(row) for row in some]) for some in (own[:rows], own[rows:]))
    butterflies, passes, images = transformed(form.rows, form.radices[0]), passes_after(form), mirrored_columns(form)
    both, scale, where = each_pair(rows, side_by_side), scaled_rows(rows), seat(form, True)

    @cuda.jit(max_registers=registers(form))
    def columns_to_half_spectra_kernel(x, out, table, near, far, factor):
        """The root of value i + a j is that of i times that of a j: entry i of ``near`` times entry j of ``far``."""
        points = cuda.shared.array(words, np.float32)
        thread, line = np.uint32(cuda.threadIdx.x), np.int64(cuda.blockIdx.x // tiles)
        which, t = where(thread)
        pair = np.uint32(np.uint32(cuda.blockIdx.x % tiles) * each + which % each)
        other = np.uint32((which + each) % lines)
        column = pair if which < each else np.uint32(a - pair)
        if pair == 0:  # columns 0 and a / 2 have their mirror images themselves
            column, other = (np.uint32(0) if which < each else np.uint32(a // 2)), which
        place, zero = np.uint32(t * a + column), column == 0
        v = passes(points, table, thread, butterflies(read(x[line * h :], place)))
        low, high, mine = v[:rows], v[rows:], out[line * (h + 1) :]
        roots = far, number_of(near[column])
        w = images(points, which, other, zero, t, low, high[0][0])
        write_high(mine, place, scale(join_high(roots, t, both(high, w)), factor, factor))
        w = images(points, which, other, zero, t, high, low[0][0])
        write_low(mine, place, scale(join_low(roots, t, both(low, w)), factor, factor))
        if place == 0:
            mine[h] = word_of(complex((low[0][0].real - low[0][0].imag) * (factor + factor), np.float32(0)))

    return columns_to_half_spectra_kernel


# ------------------------------------------------------------------------------------------------------- longer lines


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
    if n < 2 or SHORT < h < min(FEWEST, IN_BLOCK) or device.address(x) % 8 or not lines:
        return any_length_real.rfft(x, norm, stream=stream)
    out = device.empty((*x.shape[:-1], h + 1), np.complex64, stream=stream)
    words, halved = out.reshape(-1).view(np.int64), np.float32(factor(n, False, norm) / 2)
    if h <= SHORT:
        launch = short_pairs_kernel(h)[blocks(lines * h, THREADS * seats(h).each), THREADS, stream]
        launch(x.reshape(-1).view(np.int64), words, half_roots(n), halved)
        return out
    if FEWEST <= h <= IN_BLOCK:
        form = lines_of(h)
        kernel = staged_kernel(form) if h <= STAGED else pairs_kernel(form)
        launch = kernel[blocks(lines, form.lines), form.threads, stream]
        launch(x.reshape(-1).view(np.int64), words, factors(form.radices), half_roots(n), np.int64(lines), halved)
        return out
    spectra = device.empty((lines, h), np.complex64, stream=stream)
    if forms := sides(h):
        down, along = forms
        a, b, matrix = down.n, along.n, spectra.reshape(-1).view(np.int64)
        launch = turned_kernel(down, b)[lines * (b // down.lines), down.threads, stream]
        tables = factors(down.radices), *turns(a, b, down.radices[-1])
        launch(x.reshape(-1).view(np.int64), matrix, *tables, np.float32(1))
        launch = joined_columns_kernel(along, a)[lines * (a // along.lines), along.threads, stream]
        launch(matrix, words, factors(along.radices), half_roots(n), half_roots(2 * b), halved)
        return out
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
    if SHORT < h <= BACK_IN_BLOCK or not lines:
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
