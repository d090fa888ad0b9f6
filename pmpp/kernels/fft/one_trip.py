"""FFT in one trip: lines of complex64 of 2 to 2^24 points, a power of two, in as few trips through memory as can be.

Chapter: notebooks/61_fft_in_one_trip.ipynb.  PMPP 4e ch. 16.

The bound is that of chapter 58: 5 n log2 n operations and 16 n bytes. Up to 2^24 points that is below 8 operations a
byte, so memory is the bound, and a transform takes the time of its trips. Chapter 58 takes one trip for lines of 16 to
4096 points, and three for longer ones. Here a block holds up to 2^14 points: in registers, 8 to 32 a thread. Points
change threads through shared memory, real parts first and imaginary parts then, so half as much of it is enough: see
`pmpp.kernels.fft.exchanges`. Longer lines are matrices, in two trips. Lines of up to 32 points are one thread's.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.fft import any_length, ladder
from pmpp.kernels.fft.any_length import TURN, U, factor
from pmpp.kernels.fft.butterflies import TABLES, butterfly4, checked_length, exact_roots, number_of, scaled, word_of
from pmpp.kernels.fft.exchanges import (  # fmt: skip
    EIGHT,
    Form,
    each_read,
    each_write,
    factors,
    form_of,
    get_number,
    offsets_of,
    passes_after,
    put_number,
    reader,
    results_of,
    row_times,
    scaled_rows,
    seat,
    transformed,
    writer,
)
from pmpp.kernels.fft.radices import BUTTERFLIES
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung

KERNELS = 64  # that are kept of each kind

reference = any_length.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, inverse, norm)``."""
    rng = np.random.default_rng(59) if rng is None else rng

    def noise(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

    made: dict[str, tuple] = {}
    for i in range(8):
        made[f"{1 << i} points"] = noise(3, 1 << i), i % 3 == 0, any_length.NORMS[i % 3]
    made["a warp of short lines"] = noise(33, 16), False, "backward"
    made["one thread too many"] = noise(129, 4), True, "backward"
    made["three axes"] = noise(2, 9, 64), True, "ortho"
    made["512 points"] = noise(2, 512), False, "backward"
    made["1024 points"] = noise(1, 1024), True, "backward"
    made["no lines"] = noise(0, 16), False, "backward"
    impulse, wave, scales = np.zeros((2, 64), np.complex64), np.exp(2j * np.pi * 5 / 256 * np.arange(256)), noise(4, 32)
    impulse[0, 0] = impulse[1, 63] = 1
    scales *= np.array([1e-20, 1, 1e20, 0], np.float32)[:, None]
    more = {"impulses": impulse, "one wave": wave.astype(np.complex64), "large and small": scales}
    return made | {name: (x, False, "backward") for name, x in more.items()}


def relative_error(n: int) -> float:
    """How far, in the 2-norm and relative to the result, a computed transform of n points is from the exact one.

    log2 n stages of radix 2: see `pmpp.kernels.fft.ladder.relative_error`. A pass of radix 16 or 32 rounds no more than
    four or five of them. A line as a matrix has two products with rounded roots besides, and the last product is with
    what the norm divides by.
    """
    total = math.log2(max(n, 2)) * ladder.relative_error(2) + 2 * TURN + 2 * U
    return total / (1 - total)


def tolerance(x: np.ndarray, inverse: bool = False, norm: str = "backward") -> typing.Any:
    """How far each element may be from the exact result: none is further off than all of them together."""
    n = x.shape[-1]
    size = np.sqrt((np.abs(x.astype(np.complex128)) ** 2).sum(-1, keepdims=True))
    return relative_error(n) * size * (n**0.5 * factor(n, inverse, norm)) + 2.0**-140


def cost(lines: int, n: int) -> Cost:
    """5 operations for each point and halving, as is usual, and one trip through memory."""
    return ladder.cost(lines, n)


def arguments(x, inverse=False, norm="backward", *, out=None, stream=0) -> Problem:
    """Transform each line of complex numbers.

    Args:
        x: complex64, contiguous, of any number of dimensions. The last axis has a power of two of points, 1 to 2^26;
            others are a batch. As all of CUDA's complex arrays, it begins at a multiple of 8 bytes; so does ``out``.
        inverse: True for the inverse transform.
        norm: what is divided by the number of points n, as in NumPy: with "backward" the inverse, with "forward" the
            forward transform; with "ortho" both are divided by its square root.
        out: a complex64 device array of x's shape, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. An infinity or a NaN spoils its own line and no other.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; for another
    length it names the next power of two.

    >>> from pmpp.kernels.fft import one_trip
    >>> one_trip.short_lines(np.complex64([1, 0, 0, 0])).copy_to_host()
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    p = any_length.arguments(x, inverse, norm, out=out, stream=stream)
    checked_length("the last axis of x", p.n)
    words, results, sign, scale = p.x.view(np.int64), p.out.view(np.int64), np.float32(-1 if p.inverse else 1), p.scale
    return Problem(
        p.result, stream=p.stream, x=words, out=results, n=p.n, lines=p.lines, sign=sign, scale=np.float32(scale)
    )


# -------------------------------------------------------------------------------------------------------- a trip a pass

BLOCK = 256  # threads a block


@functools.lru_cache(KERNELS)
def pass_kernel(radix: int, begin: int) -> typing.Any:
    """One pass, from memory to memory; its factors begin at ``begin``. Pass 0 has none."""
    butterfly, first = BUTTERFLIES[radix], begin < 0

    @cuda.jit
    def one_pass_kernel(x, out, table, n, s, real, imag, scale, scale_imag):
        i = cuda.grid(1)
        if i * radix < out.size:
            v = cuda.local.array(radix, np.complex64)
            each = n // radix
            line = i // each
            u = i - line * each
            j = u & s - 1
            for m in range(radix):
                z = scaled(number_of(x[line * n + u + m * each]), real, imag)
                v[m] = z if first else z * number_of(table[begin + m * s + j])
            results = butterfly(v)
            place = line * n + (u - j) * radix + j
            for k in range(radix):
                out[place + k * s] = word_of(scaled(results[k], scale, scale_imag))

    return one_pass_kernel


@functools.lru_cache(64)
def sixteens(n: int) -> tuple[int, ...]:
    """The fewest radices of up to 16 that make n, the larger ones first.

    >>> sixteens(1), sixteens(1024)
    ((1,), (16, 8, 8))
    """
    bits = n.bit_length() - 1
    passes = max(1, -(-bits // 4))
    wide, left = divmod(bits, passes)
    return tuple(1 << wide + (i < left) for i in range(passes))


@rung(pass_kernel)
def trip_a_pass(p):
    """A thread does butterflies of up to 16 points in registers, and each pass is a trip through memory.

    Leaves: a line of 2^13 points takes four trips.
    """
    one, radices = np.float32(1), sixteens(p.n)
    table = factors(radices) if len(radices) > 1 else p.x  # not read
    source, s, begin = p.x, 1, -1
    for i, radix in enumerate(radices):
        last = i == len(radices) - 1
        target = p.out if last else device.empty(p.out.size, np.int64, stream=p.stream)
        signs = one, p.sign if i == 0 else one, p.scale if last else one, p.scale * p.sign if last else one
        launch = pass_kernel(radix, begin)[blocks(p.out.size // radix, BLOCK), BLOCK, p.stream]
        launch(source, target, table, p.n, s, *signs)
        begin = 0 if i == 0 else begin + radix * s
        source, s = target, s * radix


# ---------------------------------------------------------------------------------------------- a matrix, in two trips

POINTS = 8192  # that a block holds
ACROSS = 16  # columns of a block: 128 bytes side by side
LEAST, MOST = 4096, 2**24  # points of a line that is a matrix


def registers(form: Form) -> int:
    """Of a thread: a point takes two, and as many threads as can be are to fit on a multiprocessor of 65536."""
    return 128 if form.rows == 4 else 64


@functools.lru_cache(64)
def columns_of(n: int, **more: typing.Any) -> Form:
    """The form for columns of n points: 8 or 16 of them, so that what is read at a time has 64 or 128 bytes.

    Of columns of 4096 points a block holds 4.
    """
    points = max(min(ACROSS * n, POINTS), 8 * n if n < MOST**0.5 else 4 * n)
    return form_of(n, points, columns=True, rounds=2 if points > POINTS else 1, **more)


@functools.lru_cache(64)
def sides(n: int) -> tuple[Form, Form]:
    """Columns of a points, and then of b points, with n = a b, as near to each other as can be."""
    a = 1 << (n.bit_length() - 1) // 2
    return columns_of(a, turned=True), columns_of(n // a)


@device.cached(TABLES)
def turns(a: int, b: int, radix: int) -> tuple:
    """The factors between columns of a points and of b points, in two tables.

    Result k of column j is to be turned by exp(-2 pi i j k / (a b)). The last pass of a column has s = a / radix
    butterflies, and makes results k = u + s m. Entry j s + u of the first table has the part of u, and entry m b + j of
    the second one the part of m.
    """
    s = a // radix
    near = exact_roots(np.arange(b)[:, None] * np.arange(s), a * b)
    far = exact_roots(np.arange(radix)[:, None] * np.arange(b), radix * b)
    return tuple(device.to_device(table.reshape(-1).view(np.int64)) for table in (near, far))


def row_by(offset: int) -> typing.Any:
    """A device function: a row times one factor, which lies ``offset`` behind a place."""
    o = np.uint32(offset)

    @cuda.jit(device=True)
    def by_one(table, place, v):
        f = number_of(table[place + o])
        return v[0] * f, v[1] * f, v[2] * f, v[3] * f, v[4] * f, v[5] * f, v[6] * f, v[7] * f

    return by_one


@functools.lru_cache(KERNELS)
def turned_kernel(form: Form, b: int) -> typing.Any:
    """The first trip: columns of a matrix of form.n rows and b columns, turned by their factors, written as rows."""
    a, lines, words, last = form.n, np.uint32(form.lines), form.words, len(form.radices) - 1
    count, radix, tiles = form.butterflies(last), form.radices[-1], b // form.lines
    behind, length = np.uint32(a // radix), np.int64(form.n * b)
    read = each_read([reader(row, get_number) for row in offsets_of(form, b)])
    write = each_write([writer(row, put_number) for row in results_of(form, last)])
    far_places = [[(EIGHT * (m // count) + k) * b for k in range(EIGHT)] for m in range(form.rows)]
    far_times = each_write([row_times(tuple(map(np.uint32, row)), m < count) for m, row in enumerate(far_places)])
    near_times = each_write([row_by(m % count * form.apart) for m in range(form.rows)])
    scale, butterflies, passes = scaled_rows(form.rows), transformed(form.rows, form.radices[0]), passes_after(form)
    across, along = seat(form, True), seat(form, False)

    @cuda.jit(max_registers=registers(form))
    def turned_columns_kernel(x, out, table, near, far, sign):
        points = cuda.shared.array(words, np.float32)
        thread, line = np.uint32(cuda.threadIdx.x), np.int64(cuda.blockIdx.x // tiles)
        first = np.uint32(cuda.blockIdx.x % tiles) * lines
        which, t = across(thread)
        v = read(x[line * length :], np.uint32(t * b + first + which))
        v = passes(points, table, thread, butterflies(scale(v, np.float32(1), sign)))
        which, t = along(thread)
        j = np.uint32(first + which)
        v = near_times(near, np.uint32(j * behind + t), far_times(far, j, v))
        write(out[line * length :], np.uint32(j * a + t), v)

    return turned_columns_kernel


@functools.lru_cache(KERNELS)
def columns_kernel(form: Form, across: int) -> typing.Any:
    """The second trip: columns of a matrix with ``across`` columns, written to where they were read."""
    lines, words, last = np.uint32(form.lines), form.words, len(form.radices) - 1
    tiles, length = across // form.lines, np.int64(form.n * across)
    read = each_read([reader(row, get_number) for row in offsets_of(form, across)])
    write = each_write([writer(row, put_number) for row in results_of(form, last, across)])
    scale, butterflies, passes = scaled_rows(form.rows), transformed(form.rows, form.radices[0]), passes_after(form)
    where = seat(form, True)

    @cuda.jit(max_registers=registers(form))
    def columns_in_place_kernel(x, table, real, imag):
        points = cuda.shared.array(words, np.float32)
        thread, line = np.uint32(cuda.threadIdx.x), np.int64(cuda.blockIdx.x // tiles)
        which, t = where(thread)
        place = np.uint32(t * across + np.uint32(cuda.blockIdx.x % tiles) * lines + which)
        matrix = x[line * length :]
        v = passes(points, table, thread, butterflies(read(matrix, place)))
        write(matrix, place, scale(v, real, imag))

    return columns_in_place_kernel


def by_columns(p: Problem, down: Form, along: Form) -> None:
    """Two trips: from ``x`` to ``out``, and there in place."""
    a, b = down.n, along.n
    launch = turned_kernel(down, b)[p.lines * (b // down.lines), down.threads, p.stream]
    launch(p.x, p.out, factors(down.radices), *turns(a, b, down.radices[-1]), p.sign)
    launch = columns_kernel(along, a)[p.lines * (a // along.lines), along.threads, p.stream]
    launch(p.out, factors(along.radices), p.scale, p.scale * p.sign)


@rung(turned_kernel, columns_kernel, *trip_a_pass.kernels)
def two_trips(p):
    """A long line is a matrix, and its columns are turned and put on their side before they leave the block.

    What the first trip writes as rows the second one reads as columns, and it writes each to where it was. Lines of
    fewer than 4096 or more than 2^24 points are done as in `trip_a_pass`.
    Source: D. H. Bailey, FFTs in external or hierarchical memory (1990).

    Leaves: a second trip, where a block could hold the whole line.
    """
    if LEAST <= p.n <= MOST:
        by_columns(p, *sides(p.n))
    else:
        trip_a_pass.launch(p)


# ------------------------------------------------------------------------------------------ a line in a block's threads

FEWEST = 64  # points of a line that has several threads
THREADS = 128  # of a block that has several lines


@functools.lru_cache(64)
def lines_of(n: int) -> Form:
    """The form for rows of n points."""
    return form_of(n, THREADS * EIGHT * form_of(n, n).rows, rounds=2 if n > POINTS else 1)


@functools.lru_cache(KERNELS)
def lines_kernel(form: Form) -> typing.Any:
    """Lines from memory into registers, and back in one trip."""
    n, lines, words, last = form.n, np.int64(form.lines), form.words, len(form.radices) - 1
    read = each_read([reader(row, get_number) for row in offsets_of(form)])
    write = each_write([writer(row, put_number) for row in results_of(form, last)])
    scale, butterflies, passes = scaled_rows(form.rows), transformed(form.rows, form.radices[0]), passes_after(form)
    where = seat(form, False)

    @cuda.jit(max_registers=registers(form))
    def lines_in_a_block_kernel(x, out, table, total, sign, real, imag):
        points = cuda.shared.array(words, np.float32)
        thread = np.uint32(cuda.threadIdx.x)
        which, t = where(thread)
        line = cuda.blockIdx.x * lines + which
        inside = min(line, total - 1)  # beyond the last line the last is read, and nothing is written
        v = scale(read(x[inside * n :], t), np.float32(1), sign)
        v = passes(points, table, thread, butterflies(v))
        if line < total:
            write(out[line * n :], t, scale(v, real, imag))

    return lines_in_a_block_kernel


def in_a_block(p: Problem, form: Form) -> None:
    """One trip."""
    launch = lines_kernel(form)[blocks(p.lines, form.lines), form.threads, p.stream]
    launch(p.x, p.out, factors(form.radices), np.int64(p.lines), p.sign, p.scale, p.scale * p.sign)


@rung(lines_kernel, *two_trips.kernels)
def parts_in_turn(p):
    """A thread keeps up to 32 points, and shared memory holds only what changes threads: real parts, then imaginary.

    8192 points of 8 bytes are 64 KiB. Their real parts are 32, which every block may have. Lines of 64 to 8192 points
    are done so, and others as in `two_trips`.
    Source: N. K. Govindaraju et al., High performance discrete Fourier transforms on graphics processors (SC 2008).

    Leaves: 2^14 points, whose real parts are 64 KiB.
    """
    if FEWEST <= p.n <= POINTS:
        in_a_block(p, lines_of(p.n))
    else:
        two_trips.launch(p)


@rung(*parts_in_turn.kernels)
def in_rounds(p):
    """Half of the real parts at a time: 2^14 points in one trip through memory, and eight barriers an exchange.

    The registers of a multiprocessor have room for one such line.

    Leaves: lines of fewer than 64 points, for which nothing is done yet.
    """
    if p.n == 2 * POINTS:
        in_a_block(p, lines_of(p.n))
    else:
        parts_in_turn.launch(p)


# ---------------------------------------------------------------------------------------------------------- short lines

SHORT = 16  # points a thread, if its lines are not longer
WARP = 32


@cuda.jit(device=True)
def as_they_are(v):
    return v


@cuda.jit(device=True)
def four_pairs(v):
    return v[0] + v[1], v[0] - v[1], v[2] + v[3], v[2] - v[3], v[4] + v[5], v[4] - v[5], v[6] + v[7], v[6] - v[7]


@cuda.jit(device=True)
def two_fours(v):
    return butterfly4(v[0], v[1], v[2], v[3]) + butterfly4(v[4], v[5], v[6], v[7])


@functools.lru_cache(8)
def short_transforms(n: int) -> typing.Any:
    """A device function: all transforms of ``n`` points in a thread's rows, of which two have 16 points."""
    if n >= EIGHT:
        return transformed(max(n, SHORT) // EIGHT, n)
    of_eight = {1: as_they_are, 2: four_pairs, 4: two_fours}[n]

    @cuda.jit(device=True)
    def of_two_rows(v):
        return of_eight(v[0]), of_eight(v[1])

    return of_two_rows


@functools.lru_cache(8)
def short_kernel(n: int) -> typing.Any:
    """A warp moves the lines of its threads, and each thread transforms its own."""
    each = max(n, SHORT)
    rows, pitch, bits = each // EIGHT, np.uint32(each + 1), np.uint32(each.bit_length() - 1)
    size, words = np.uint32(WARP * each), THREADS * (each + 1)
    in_order = [tuple(range(EIGHT * m, EIGHT * m + EIGHT)) for m in range(rows)]
    dealt = [tuple(range(m, each, rows)) for m in range(rows)] if n > EIGHT else in_order
    read = each_read([reader(row, get_number) for row in dealt])
    write = each_write([writer(row, put_number) for row in in_order])
    scale, transforms = scaled_rows(rows), short_transforms(n)

    @cuda.jit(max_registers=128 if rows == 4 else 64)
    def short_lines_kernel(x, out, sign, real, imag):
        points = cuda.shared.array(words, np.int64)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % WARP), np.uint32(thread // WARP)
        first = (np.int64(cuda.blockIdx.x) * (THREADS // WARP) + warp) * size
        if first < x.size:
            given, results = x[first:], out[first:]
            count = np.uint32(min(np.int64(size), x.size - first))
            begin, last = np.uint32(warp * WARP * pitch), np.uint32(count - np.uint32(1))
            for i in range(each):
                u = np.uint32(np.uint32(i * WARP) + lane)
                points[begin + u + (u >> bits)] = given[min(u, last)]  # beyond the last point the last is read
            cuda.syncwarp()
            own = np.uint32(begin + lane * pitch)
            v = transforms(scale(read(points, own), np.float32(1), sign))
            write(points, own, scale(v, real, imag))
            cuda.syncwarp()
            for i in range(each):
                u = np.uint32(np.uint32(i * WARP) + lane)
                if u < count:
                    results[u] = points[begin + u + (u >> bits)]

    return short_lines_kernel


@rung(short_kernel, *in_rounds.kernels)
def short_lines(p):
    """A thread has a line of 16 or 32 points, or several shorter ones, and its warp moves them side by side.

    Memory is read and written 256 bytes at a time. The lines go through shared memory, an odd number of words apart, so
    that all threads can read their own at a time. Lines of 64 points or more are done as in `in_rounds`.
    """
    if p.n >= FEWEST:
        in_rounds.launch(p)
        return
    kernel, each = short_kernel(p.n), max(p.n, SHORT)
    launch = kernel[blocks(p.x.size, THREADS * each), THREADS, p.stream]
    launch(p.x, p.out, p.sign, p.scale, p.scale * p.sign)


LADDER = (trip_a_pass, two_trips, parts_in_turn, in_rounds, short_lines)
