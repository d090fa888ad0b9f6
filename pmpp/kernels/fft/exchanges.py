"""Transforms of 64 to 2^14 points by threads that hold 8, 16 or 32 points each: what a pass does in registers, and how
points change threads through shared memory between two passes.

A thread has its points in rows of eight. Row m of R holds points m, m + R, m + 2 R, ... of the thread's 8 R. So a pass
of radix 8 is a transform of each row. A pass of radix 16 joins the results of two rows, and one of radix 32 those of
four. The passes are those of Stockham's form, as in `pmpp.kernels.fft.ladder`: with n points and T = n / (8 R) threads,
thread t does butterflies t, t + T, ..., butterfly u takes points u, u + n / r, ..., and result k of a pass of radix r
over spectra of s points goes to place (u - u % s) r + u % s + k s.

All numbers of points are powers of two. So each of these numbers is made of the bits of t, of a row and of a place in
it, each bit in a place of its own, and what belongs to rows is constant when a kernel is compiled.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.butterflies import TABLES, butterfly4, butterfly8, exact_roots, number_of, scaled, word_of
from pmpp.runtime import device

KEPT = 256  # functions of each kind
EIGHT = 8  # points of a row
BANKS = WARP = 32


class Form(typing.NamedTuple):
    """What a kernel is made for. All of it is constant when the kernel is compiled.

    ``radices``: of the passes, in their order: 8, 16 or 32. ``rows``: of eight points that a thread holds: 1, 2 or 4.
    ``lines``: that a block does. ``columns``: whether neighbouring threads have neighbouring lines, as columns lie in
    memory, and not neighbouring points of a line. ``turned``: whether the last pass of such columns has neighbouring
    points instead, because the results are written as rows. ``rounds``: in how many parts real parts, or imaginary
    parts, go through shared memory: 1, or 2 if each thread has one butterfly in all passes but the last.
    """

    radices: tuple[int, ...]
    rows: int
    lines: int
    columns: bool = False
    turned: bool = False
    rounds: int = 1

    @property
    def n(self) -> int:
        """Points of a line."""
        return int(np.prod(self.radices))

    @property
    def apart(self) -> int:
        """Threads of a line: so far apart are the points of a thread."""
        return self.n // (EIGHT * self.rows)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.lines * self.apart

    def before(self, i: int) -> int:
        """Points of the spectra that pass ``i`` joins."""
        return int(np.prod(self.radices[:i]))

    def butterflies(self, i: int) -> int:
        """Of a thread in pass ``i``."""
        return EIGHT * self.rows // self.radices[i]

    def begin(self, i: int) -> int:
        """Where the factors of pass ``i`` begin in the table."""
        return sum(self.radices[j] * self.before(j) for j in range(1, i))

    @property
    def words(self) -> int:
        """Numbers of 4 bytes that an exchange has in shared memory at a time, with their padding."""
        part = self.lines * self.n // self.rounds
        return max(padding(self, i).of(part - 1) for i in range(len(self.radices) - 1)) + 1


def form_of(n: int, points: int, **more: typing.Any) -> Form:
    """The form for lines of ``n`` points, 64 to 2^15, with ``points`` in a block, or one line if that is more.

    The fewest passes, of these the fewest points a thread, and the larger radices first.

    >>> form_of(8192, 8192)
    Form(radices=(32, 16, 16), rows=4, lines=1, columns=False, turned=False, rounds=1)
    """
    bits = n.bit_length() - 1
    passes = -(-bits // 5)
    wide, left = divmod(bits, passes)
    radices = tuple(1 << wide + (i < left) for i in range(passes))
    return Form(radices, radices[0] // EIGHT, max(1, points // n), **more)


@device.cached(TABLES)
def factors(radices: tuple[int, ...]) -> typing.Any:
    """The factors of all passes but the first, as words: entry m s + j of a pass is exp(-2 pi i j m / (r s))."""
    parts, s = [], radices[0]
    for r in radices[1:]:
        m, j = np.meshgrid(np.arange(r), np.arange(s), indexing="ij")
        parts.append(exact_roots(m * j, r * s).reshape(-1))
        s *= r
    return device.to_device(np.concatenate(parts).view(np.int64))


# ------------------------------------------------------------------------------------------------------ rows of eight

THIRTY_SECOND = tuple(exact_roots(np.arange(32), 32))  # the roots that join four rows; every other one joins two


def reader(offsets: tuple[int, ...], get: typing.Any) -> typing.Any:
    """A device function: the eight, or four, numbers that lie ``offsets`` behind a place, through ``get``."""
    o = tuple(map(np.uint32, offsets))
    if len(o) == EIGHT:

        @cuda.jit(device=True)
        def read(x, place):
            a, b, c, d = get(x, place + o[0]), get(x, place + o[1]), get(x, place + o[2]), get(x, place + o[3])
            e, f, g, h = get(x, place + o[4]), get(x, place + o[5]), get(x, place + o[6]), get(x, place + o[7])
            return a, b, c, d, e, f, g, h

        return read

    @cuda.jit(device=True)
    def read_four(x, place):
        return get(x, place + o[0]), get(x, place + o[1]), get(x, place + o[2]), get(x, place + o[3])

    return read_four


def writer(offsets: tuple[int, ...], put: typing.Any) -> typing.Any:
    """A device function: a row's numbers go ``offsets`` behind a place, through ``put``."""
    o = tuple(map(np.uint32, offsets))

    @cuda.jit(device=True)
    def write(x, place, v):
        put(x, place + o[0], v[0])
        put(x, place + o[1], v[1])
        put(x, place + o[2], v[2])
        put(x, place + o[3], v[3])
        put(x, place + o[4], v[4])
        put(x, place + o[5], v[5])
        put(x, place + o[6], v[6])
        put(x, place + o[7], v[7])

    return write


def each_read(parts: typing.Sequence[typing.Any]) -> typing.Any:
    """A device function: a tuple of what each row's function reads."""
    if len(parts) == 1:
        (first,) = parts

        @cuda.jit(device=True)
        def one_row(x, place):
            return (first(x, place),)

        return one_row
    if len(parts) == 2:
        first, second = parts

        @cuda.jit(device=True)
        def two_rows(x, place):
            return first(x, place), second(x, place)

        return two_rows
    first, second, third, fourth = parts

    @cuda.jit(device=True)
    def four_rows(x, place):
        return first(x, place), second(x, place), third(x, place), fourth(x, place)

    return four_rows


def each_write(parts: typing.Sequence[typing.Any]) -> typing.Any:
    """A device function: each row's function gets its row. A function may return what becomes of the row."""
    if len(parts) == 1:
        (first,) = parts

        @cuda.jit(device=True)
        def one_row(x, place, v):
            return (first(x, place, v[0]),)

        return one_row
    if len(parts) == 2:
        first, second = parts

        @cuda.jit(device=True)
        def two_rows(x, place, v):
            return first(x, place, v[0]), second(x, place, v[1])

        return two_rows
    first, second, third, fourth = parts

    @cuda.jit(device=True)
    def four_rows(x, place, v):
        return first(x, place, v[0]), second(x, place, v[1]), third(x, place, v[2]), fourth(x, place, v[3])

    return four_rows


# What a row's function does with one number.


@cuda.jit(device=True)
def get_number(x, place):
    return number_of(x[place])


@cuda.jit(device=True)
def put_number(x, place, z):
    x[place] = word_of(z)


@cuda.jit(device=True)
def get_part(x, place):
    return x[place]


@cuda.jit(device=True)
def put_real(x, place, z):
    x[place] = z.real


@cuda.jit(device=True)
def put_imaginary(x, place, z):
    x[place] = z.imag


# -------------------------------------------------------------------------------------------------------------- passes


def offsets_of(form: Form, step: int = 1) -> list[tuple[int, ...]]:
    """For each row, where its points lie behind the thread's first one, ``step`` elements from point to point."""
    return [tuple((m + form.rows * i) * form.apart * step for i in range(EIGHT)) for m in range(form.rows)]


def results_of(form: Form, i: int, step: int = 1) -> list[tuple[int, ...]]:
    """For each row, where its results of pass ``i`` belong, behind the first one: see `place_of_result`."""
    count = form.butterflies(i)
    return [
        tuple(step * place_of_result(form, i, m % count * form.apart, EIGHT * (m // count) + k) for k in range(EIGHT))
        for m in range(form.rows)
    ]


def place_of_result(form: Form, i: int, u: int, k: int) -> int:
    """Result ``k`` of butterfly ``u`` of pass ``i``."""
    s = form.before(i)
    return (u - u % s) * form.radices[i] + u % s + k * s


@functools.lru_cache(KEPT)
def twisted_by(form: Form, i: int) -> typing.Any:
    """A device function: the points of pass ``i`` times their factors; ``place`` is t % s."""
    s, count = form.before(i), form.butterflies(i)
    joined = form.rows // count
    found = []
    for m in range(form.rows):
        first = form.begin(i) + m % count * form.apart % s
        places = [first + (m // count + joined * k) * s for k in range(EIGHT)]
        found.append(row_times(tuple(map(np.uint32, places)), m < count))
    return each_write(found)


def row_times(o: tuple[np.uint32, ...], starts: bool) -> typing.Any:
    """A device function: a row times the factors that lie ``o`` behind a place; the first one is 1 if it ``starts``."""

    @cuda.jit(device=True)
    def times(table, place, v):
        a = v[0] if starts else v[0] * number_of(table[place + o[0]])
        b, c = v[1] * number_of(table[place + o[1]]), v[2] * number_of(table[place + o[2]])
        d, e = v[3] * number_of(table[place + o[3]]), v[4] * number_of(table[place + o[4]])
        f, g = v[5] * number_of(table[place + o[5]]), v[6] * number_of(table[place + o[6]])
        return a, b, c, d, e, f, g, v[7] * number_of(table[place + o[7]])

    return times


@cuda.jit(device=True)
def joined2(v, w):
    """Sixteen results of two rows: of the even points, and of the odd ones."""
    b, c, d = w[1] * THIRTY_SECOND[2], w[2] * THIRTY_SECOND[4], w[3] * THIRTY_SECOND[6]
    e, f, g, h = (
        complex(w[4].imag, -w[4].real), w[5] * THIRTY_SECOND[10], w[6] * THIRTY_SECOND[12], w[7] * THIRTY_SECOND[14]
    )  # fmt: skip
    return (
        (v[0] + w[0], v[1] + b, v[2] + c, v[3] + d, v[4] + e, v[5] + f, v[6] + g, v[7] + h),
        (v[0] - w[0], v[1] - b, v[2] - c, v[3] - d, v[4] - e, v[5] - f, v[6] - g, v[7] - h),
    )


@cuda.jit(device=True)
def joined4(v, w, x, y):
    """Thirty-two results of four rows."""
    a = butterfly4(v[0], w[0], x[0], y[0])
    b = butterfly4(v[1], w[1] * THIRTY_SECOND[1], x[1] * THIRTY_SECOND[2], y[1] * THIRTY_SECOND[3])
    c = butterfly4(v[2], w[2] * THIRTY_SECOND[2], x[2] * THIRTY_SECOND[4], y[2] * THIRTY_SECOND[6])
    d = butterfly4(v[3], w[3] * THIRTY_SECOND[3], x[3] * THIRTY_SECOND[6], y[3] * THIRTY_SECOND[9])
    e = butterfly4(v[4], w[4] * THIRTY_SECOND[4], complex(x[4].imag, -x[4].real), y[4] * THIRTY_SECOND[12])
    f = butterfly4(v[5], w[5] * THIRTY_SECOND[5], x[5] * THIRTY_SECOND[10], y[5] * THIRTY_SECOND[15])
    g = butterfly4(v[6], w[6] * THIRTY_SECOND[6], x[6] * THIRTY_SECOND[12], y[6] * THIRTY_SECOND[18])
    h = butterfly4(v[7], w[7] * THIRTY_SECOND[7], x[7] * THIRTY_SECOND[14], y[7] * THIRTY_SECOND[21])
    return (
        (a[0], b[0], c[0], d[0], e[0], f[0], g[0], h[0]),
        (a[1], b[1], c[1], d[1], e[1], f[1], g[1], h[1]),
        (a[2], b[2], c[2], d[2], e[2], f[2], g[2], h[2]),
        (a[3], b[3], c[3], d[3], e[3], f[3], g[3], h[3]),
    )


@functools.lru_cache(KEPT)
def transformed(rows: int, radix: int) -> typing.Any:
    """A device function: a pass's butterflies of a thread that holds ``rows`` rows."""
    if rows == 1:

        @cuda.jit(device=True)
        def of_one_row(v):
            return (butterfly8(v[0]),)

        return of_one_row
    if rows == 2:

        @cuda.jit(device=True)
        def of_two_rows(v):
            a, b = butterfly8(v[0]), butterfly8(v[1])
            return (a, b) if radix == 8 else joined2(a, b)

        return of_two_rows

    @cuda.jit(device=True)
    def of_four_rows(v):
        a, b, c, d = butterfly8(v[0]), butterfly8(v[1]), butterfly8(v[2]), butterfly8(v[3])
        if radix == 32:
            return joined4(a, b, c, d)
        if radix == 8:
            return a, b, c, d
        (a, c), (b, d) = joined2(a, c), joined2(b, d)
        return a, b, c, d

    return of_four_rows


# ------------------------------------------------------------------------------------------------------------ exchange


class Padding(typing.NamedTuple):
    """``amount`` unused words after each 2^``shift`` in shared memory.

    Of numbers that have no bit in common the sum may be padded, or each of them: it comes to the same.
    """

    shift: int
    amount: int

    def of(self, place: typing.Any) -> typing.Any:
        return place + (place >> self.shift) * self.amount


def in_block(form: Form, line: typing.Any, place: typing.Any, columns: bool) -> typing.Any:
    """The number of a place of a line among all of a block."""
    return place * form.lines + line if columns else line * form.n + place


def members(form: Form, thread: typing.Any, columns: bool) -> tuple:
    """Which line a thread of a block works on, and which thread of that line it is."""
    if columns:
        return thread % form.lines, thread // form.lines
    return thread // form.apart, thread % form.apart


@functools.lru_cache(KEPT)
def padding(form: Form, i: int) -> Padding:
    """With the fewest wavefronts of the exchange after pass ``i``, and of these the one with the fewest words.

    It is enough to look at one warp, at one store and at one load: all others differ from them by a constant.
    """
    lanes = np.arange(BANKS) % form.threads
    line, t = members(form, lanes, form.columns)
    s = form.before(i)
    to = in_block(form, line, (t - t % s) * form.radices[i] + t % s, form.columns)
    line, t = members(form, lanes, form.columns and not last_turned(form, i))
    fro = in_block(form, line, t, form.columns)

    def wavefronts(way: Padding) -> int:
        return sum(np.bincount(np.unique(way.of(places)) % BANKS, minlength=BANKS).max() for places in (to, fro))

    ways = [Padding(shift, amount) for shift in range(3, 15) for amount in (0, 1, 2, 4, 8, 16)]
    return min(ways, key=lambda way: (wavefronts(way), way.of(form.lines * form.n // form.rounds - 1)))


def last_turned(form: Form, i: int) -> bool:
    """Whether threads change from neighbouring lines to neighbouring points in the exchange after pass ``i``."""
    return form.turned and i == len(form.radices) - 2


@functools.lru_cache(KEPT)
def seat(form: Form, columns: bool) -> typing.Any:
    """A device function: which line a thread works on, and which thread of that line it is."""
    lines, apart = np.uint32(form.lines), np.uint32(form.apart)
    if columns:

        @cuda.jit(device=True)
        def neighbouring_lines(thread):
            return np.uint32(thread % lines), np.uint32(thread // lines)

        return neighbouring_lines

    @cuda.jit(device=True)
    def neighbouring_points(thread):
        return np.uint32(thread // apart), np.uint32(thread % apart)

    return neighbouring_points


@functools.lru_cache(KEPT)
def placed(form: Form, i: int, reading: bool) -> typing.Any:
    """A device function: where a thread's first word lies in the exchange after pass ``i``."""
    shift, amount = map(np.uint32, padding(form, i))
    s, radix = np.uint32(form.before(i)), np.uint32(1 if reading else form.radices[i])
    # In two rounds the highest bit of t says in which one it writes, and both write to the same places.
    apart = np.uint32(form.apart if reading else form.apart // form.rounds)
    of_line, of_place = np.uint32(1 if form.columns else form.n), np.uint32(form.lines if form.columns else 1)

    @cuda.jit(device=True)
    def padded_place(line, t):
        t = np.uint32(t % apart)
        j = np.uint32(t % s)
        place = np.uint32(line * of_line + ((t - j) * radix + j) * of_place)
        return np.uint32(place + (place >> shift) * amount)

    return padded_place


@cuda.jit(device=True)
def join_row(x, y):
    """Eight complex numbers of their real and their imaginary parts."""
    return (
        complex(x[0], y[0]), complex(x[1], y[1]), complex(x[2], y[2]), complex(x[3], y[3]),
        complex(x[4], y[4]), complex(x[5], y[5]), complex(x[6], y[6]), complex(x[7], y[7]),
    )  # fmt: skip


@cuda.jit(device=True)
def join_halves(x, y):
    """Eight numbers of twice four."""
    return x + y


@functools.lru_cache(KEPT)
def each_pair(rows: int, one: typing.Any) -> typing.Any:
    """A device function: rows of what ``one`` makes of a row of each of two arguments."""
    if rows == 1:

        @cuda.jit(device=True)
        def one_pair(x, y):
            return (one(x[0], y[0]),)

        return one_pair
    if rows == 2:

        @cuda.jit(device=True)
        def two_pairs(x, y):
            return one(x[0], y[0]), one(x[1], y[1])

        return two_pairs

    @cuda.jit(device=True)
    def four_pairs(x, y):
        return one(x[0], y[0]), one(x[1], y[1]), one(x[2], y[2]), one(x[3], y[3])

    return four_pairs


@functools.lru_cache(KEPT)
def exchange(form: Form, i: int) -> typing.Any:
    """A device function: results of pass ``i`` go to the threads that need them, real parts first."""
    pad, step = padding(form, i), form.lines if form.columns else 1
    to = [tuple(map(pad.of, row)) for row in results_of(form, i, step)]
    fro = [tuple(map(pad.of, row)) for row in offsets_of(form, step)]
    put_reals, put_imaginaries = (each_write([writer(row, put) for row in to]) for put in (put_real, put_imaginary))
    joined, wait = each_pair(form.rows, join_row), barrier(form)
    again = i < len(form.radices) - 2  # whether there is another exchange
    if form.rounds == 1:
        get = each_read([reader(row, get_part) for row in fro])

        @cuda.jit(device=True)
        def at_once(points, v, t, place, own):
            put_reals(points, place, v)
            wait()  # all are there before anyone reads
            x = get(points, own)
            wait()  # everyone has read before they are overwritten
            put_imaginaries(points, place, v)
            wait()
            y = get(points, own)
            if again:
                wait()
            return joined(x, y)

        return at_once
    get = each_read([reader(row[: EIGHT // 2], get_part) for row in fro])  # the other half lies at the same places
    both, half = each_pair(form.rows, join_halves), np.uint32(form.apart // 2)

    @cuda.jit(device=True)
    def half_at_a_time(points, v, t, place, own, put):
        if t < half:  # its results belong into the first half of the line
            put(points, place, v)
        wait()
        x = get(points, own)
        wait()
        if t >= half:
            put(points, place, v)
        wait()
        return both(x, get(points, own))

    @cuda.jit(device=True)
    def in_two_rounds(points, v, t, place, own):
        x = half_at_a_time(points, v, t, place, own, put_reals)
        wait()
        y = half_at_a_time(points, v, t, place, own, put_imaginaries)
        if again:
            wait()
        return joined(x, y)

    return in_two_rounds


def barrier(form: Form) -> typing.Any:
    """A device function: the threads of a line wait for each other. Those of a warp need not wait for the block."""
    if form.apart <= WARP and not form.columns:

        @cuda.jit(device=True)
        def of_a_warp():
            cuda.syncwarp()

        return of_a_warp

    @cuda.jit(device=True)
    def of_a_block():
        cuda.syncthreads()

    return of_a_block


@functools.lru_cache(KEPT)
def passes_after(form: Form, i: int = 1) -> typing.Any:
    """A device function: all passes from number ``i`` on, each after an exchange."""
    turned, twist, butterflies = exchange(form, i - 1), twisted_by(form, i), transformed(form.rows, form.radices[i])
    to, own, s = placed(form, i - 1, False), placed(form, i - 1, True), np.uint32(form.before(i))
    old, new = seat(form, form.columns), seat(form, form.columns and not last_turned(form, i - 1))

    @cuda.jit(device=True)
    def next_pass(points, table, thread, v):
        line, t = old(thread)
        place = to(line, t)
        line, u = new(thread)
        v = turned(points, v, t, place, own(line, u))
        return butterflies(twist(table, np.uint32(u % s), v))

    if i == len(form.radices) - 1:
        return next_pass
    others = passes_after(form, i + 1)

    @cuda.jit(device=True)
    def this_and_others(points, table, thread, v):
        return others(points, table, thread, next_pass(points, table, thread, v))

    return this_and_others


@cuda.jit(device=True)
def scaled_row(v, real, imag):
    """Both parts of eight points times a factor of their own: see `pmpp.kernels.fft.butterflies.scaled8`."""
    return (
        scaled(v[0], real, imag), scaled(v[1], real, imag), scaled(v[2], real, imag), scaled(v[3], real, imag),
        scaled(v[4], real, imag), scaled(v[5], real, imag), scaled(v[6], real, imag), scaled(v[7], real, imag),
    )  # fmt: skip


@functools.lru_cache(KEPT)
def scaled_rows(rows: int) -> typing.Any:
    """A device function: both parts of all points of a thread times a factor of their own."""
    if rows == 1:

        @cuda.jit(device=True)
        def scale_one(v, real, imag):
            return (scaled_row(v[0], real, imag),)

        return scale_one
    if rows == 2:

        @cuda.jit(device=True)
        def scale_two(v, real, imag):
            return scaled_row(v[0], real, imag), scaled_row(v[1], real, imag)

        return scale_two

    @cuda.jit(device=True)
    def scale_four(v, real, imag):
        a, b = scaled_row(v[0], real, imag), scaled_row(v[1], real, imag)
        return a, b, scaled_row(v[2], real, imag), scaled_row(v[3], real, imag)

    return scale_four
