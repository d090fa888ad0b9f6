"""Transforms of n = r1 r2 ... rm points in a block's shared memory: a pass of butterflies for each radix.

The pass of radix r1 takes r1 points that lie n / r1 apart, makes r1 results of them, and puts these where the points
were. Result k1 then belongs to block number k1 of n / r1 places. Each block is a transform of its own, of n / r1
points. The pass of r2 does the same in each block, and so on. After the last pass, result k1 + r1 k2 + r1 r2 k3 + ...
lies at place k1 n / r1 + k2 n / (r1 r2) + ...: its digits are reversed. The last pass does not write there, but to
device memory, in order.

A butterfly writes to where it has read, so no other butterfly of its pass is in its way. One barrier a pass is enough,
and a thread can do several butterflies one after the other. So the number of threads need not fit the radices.

Source: W. M. Gentleman and G. Sande, Fast Fourier transforms: for fun and profit (1966); the order is known as
decimation in frequency. Backwards, with the factors before each butterfly, the same passes take results in that order,
and end with points in order: decimation in time, of J. W. Cooley and J. W. Tukey (1965).

All functions here make device functions for one plan, with the signature ``(x, points, factors, table, first, count)``:
``x`` is in device memory, ``points`` in shared memory, ``table`` holds the plan's `twiddles`, ``factors`` is what
reading or writing device memory needs, ``first`` is the number of the block's first line, and ``count`` is how many
lines there are in this block.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.butterflies import TABLES, exact_roots, number_of, word_of
from pmpp.kernels.fft.radices import BUTTERFLIES, MOST, conjugate
from pmpp.runtime import device

KEPT = 256  # functions of each kind: those of about as many lengths


class Plan(typing.NamedTuple):
    """What a kernel is made for. All of it is constant when the kernel is compiled.

    ``radices``: of the passes, in their order. ``lines``: that a block does. ``threads``: of a block. ``columns``:
    whether the lines of a block lie side by side, as columns do in device memory.
    """

    radices: tuple[int, ...]
    lines: int
    threads: int
    columns: bool = False

    @property
    def n(self) -> int:
        """Points of a line."""
        return math.prod(self.radices)

    def left(self, i: int) -> int:
        """Points of a block of places before pass ``i``, of which the first is number 0."""
        return math.prod(self.radices[i:])

    @property
    def pitch(self) -> int:
        """Places from a block of the first pass to the next. Odd, since lanes of the last pass read with this step."""
        return self.left(1) | 1

    @property
    def size(self) -> int:
        """Places of a line. Odd, since lanes read short lines with this step."""
        return self.radices[0] * self.pitch | 1

    @property
    def words(self) -> int:
        """Of shared memory, 8 bytes each."""
        return self.size * (self.apart if self.columns else self.lines)

    def step(self, i: int) -> np.uint32:
        """Words from one point of a butterfly of pass ``i`` to the next."""
        return np.uint32((self.left(i + 1) if i else self.pitch) * self.apart)

    @property
    def apart(self) -> int:
        """Words from one point of a line to the next. Odd for columns, too: they may be stored as rows."""
        return self.lines | 1 if self.columns else 1

    @property
    def between(self) -> int:
        """Words from one line to the next."""
        return 1 if self.columns else self.size

    def begin(self, i: int) -> np.uint32:
        """Where the factors of pass ``i`` begin in the table."""
        return np.uint32(sum(self.left(j) for j in range(i)))

    def work(self, i: int) -> int:
        """Butterflies of pass ``i`` in a block."""
        return self.lines * self.n // self.radices[i]


class Route(typing.NamedTuple):
    """How lines lie in device memory.

    ``pitch``: points from one line to the next, of rows. ``step``: points from one point of a line to the next; more
    than 1 for columns. ``period``: how many rows have factors of their own, before these repeat; 1 if all rows have the
    same, 0 if a block gets all rows of a matrix, from number ``first`` on.
    """

    pitch: int
    step: int = 1
    period: int = 1


@device.cached(TABLES)
def twiddles(radices: tuple[int, ...]) -> typing.Any:
    """The factors of all passes one behind the other, as words: entry k left + j of a pass's part.

    That is exp(-2 pi i j k / n') for blocks of n' points, of which left = n' / r are left after the pass.
    """
    parts, n = [], math.prod(radices)
    for r in radices[:-1]:
        k, j = np.meshgrid(np.arange(r), np.arange(n // r), indexing="ij")
        parts.append(exact_roots(k * j, n).reshape(-1))
        n //= r
    parts.append(np.ones(1, np.complex64))  # so that a plan with one radix has a table, too
    return device.to_device(np.concatenate(parts).view(np.int64))


# ------------------------------------------------------------------------------------------------- who does what, where


@functools.lru_cache(KEPT)
def split(plan: Plan, i: int) -> typing.Any:
    """A device function: number ``u`` of a block's butterflies of pass i is butterfly ``t`` of ``line``."""
    each, lines = np.uint32(plan.n // plan.radices[i]), np.uint32(plan.lines)
    if plan.columns:

        @cuda.jit(device=True)
        def neighbours_in_a_row(u):
            t = np.uint32(u // lines)
            return np.uint32(u - t * lines), t

        return neighbours_in_a_row

    @cuda.jit(device=True)
    def neighbours_in_a_line(u):
        line = np.uint32(u // each)
        return line, np.uint32(u - line * each)

    return neighbours_in_a_line


@functools.lru_cache(KEPT)
def place_in(plan: Plan, i: int) -> typing.Any:
    """A device function: the first word of butterfly ``t`` of a line in pass i, and its number in its block."""
    apart, between = np.uint32(plan.apart), np.uint32(plan.between)
    if i == 0:

        @cuda.jit(device=True)
        def in_one_block(line, t):
            return np.uint32(line * between + t * apart), t

        return in_one_block
    left, whole, pad = np.uint32(plan.left(i + 1)), np.uint32(plan.left(i)), np.uint32(plan.pitch - plan.left(1))
    each = np.uint32(plan.left(1) // plan.radices[i])  # butterflies in a block of the first pass

    @cuda.jit(device=True)
    def in_many_blocks(line, t):
        block = np.uint32(t // left)
        j = np.uint32(t - block * left)
        place = np.uint32(block * whole + j + t // each * pad)
        return np.uint32(line * between + place * apart), j

    return in_many_blocks


@functools.lru_cache(KEPT)
def reversed_digits(plan: Plan, i: int = 0) -> typing.Any:
    """A device function: the place where the block begins that ``t`` names by its digits k1, k2, ..., k1 the lowest."""
    if i == len(plan.radices) - 1:

        @cuda.jit(device=True)
        def no_digits(t):
            return np.uint32(0)

        return no_digits
    radix, step, others = np.uint32(plan.radices[i]), plan.step(i), reversed_digits(plan, i + 1)

    @cuda.jit(device=True)
    def digits(t):
        rest = np.uint32(t // radix)
        return np.uint32((t - rest * radix) * step + others(rest))

    return digits


@functools.lru_cache(KEPT)
def place_in_last(plan: Plan) -> typing.Any:
    """A device function: the first word of the butterfly of the last pass that gives result ``t`` of a line."""
    between, digits = np.uint32(plan.between), reversed_digits(plan)

    @cuda.jit(device=True)
    def in_reversed_order(line, t):
        return np.uint32(line * between + digits(t))

    return in_reversed_order


@functools.lru_cache(KEPT)
def origin(route: Route) -> typing.Any:
    """A device function: where point ``t`` of a block's ``line`` lies in device memory, and where its factor lies."""
    pitch, step, period = np.uint32(route.pitch), np.uint32(route.step), np.uint32(route.period)
    if route.step > 1:

        @cuda.jit(device=True)
        def of_columns(line, t, first):
            place = np.uint32(t * step + first + line)
            return place, place

        return of_columns
    if not route.period:

        @cuda.jit(device=True)
        def of_rows_of_a_matrix(line, t, first):
            place = np.uint32((first + line) * pitch + t)
            return place, place

        return of_rows_of_a_matrix
    if route.period > 1:

        @cuda.jit(device=True)
        def of_rows_with_own_factors(line, t, first):
            return np.uint32(line * pitch + t), np.uint32((first + line) % period * pitch + t)

        return of_rows_with_own_factors

    @cuda.jit(device=True)
    def of_rows(line, t, first):
        return np.uint32(line * pitch + t), t

    return of_rows


# --------------------------------------------------------------------------------------------------------------- passes


def each_butterfly(plan: Plan, i: int, one: typing.Any, rows: bool = False) -> typing.Any:
    """A device function: the block's threads do all butterflies of pass i, by ``one(..., line, t)``.

    Neighbouring threads do neighbours as they lie in shared memory, or, with ``rows``, in a line.
    """
    plan = plan._replace(columns=plan.columns and not rows)
    divide, work, threads = split(plan, i), np.uint32(plan.work(i)), np.uint32(plan.threads)

    @cuda.jit(device=True)
    def all_of_them(x, points, factors, table, first, count):
        u = np.uint32(cuda.threadIdx.x)
        while u < work:
            line, t = divide(u)
            if line < count:
                one(x, points, factors, table, first, line, t)
            u = np.uint32(u + threads)

    return all_of_them


@functools.lru_cache(KEPT)
def one_after_the_other(*parts: typing.Any) -> typing.Any:
    """A device function: the block does all parts, with a barrier before each but the first."""
    if len(parts) == 1:
        return parts[0]
    earlier, last = one_after_the_other(*parts[:-1]), parts[-1]

    @cuda.jit(device=True)
    def both(x, points, factors, table, first, count):
        earlier(x, points, factors, table, first, count)
        cuda.syncthreads()
        last(x, points, factors, table, first, count)

    return both


@functools.lru_cache(KEPT)
def transform(radix: int) -> typing.Any:
    """A device function: the transform of the ``radix`` points of a local array, in place."""
    butterfly = BUTTERFLIES[radix]

    @cuda.jit(device=True)
    def in_registers(v):
        results = butterfly(v)
        for k in range(radix):
            v[k] = results[k]

    return in_registers


@functools.lru_cache(KEPT)
def first_pass(plan: Plan, route: Route, load: typing.Any) -> typing.Any:
    """The first pass, from device memory: ``load(x, place, factors, where)`` gives a point."""
    r, butterfly, place_of, of = plan.radices[0], transform(plan.radices[0]), place_in(plan, 0), origin(route)
    step, left, gap = plan.step(0), np.uint32(plan.left(1)), np.uint32(plan.left(1) * route.step)

    @cuda.jit(device=True)
    def from_memory(x, points, factors, table, first, line, t):
        v = cuda.local.array(MOST, np.complex64)
        there, where = of(line, t, first)
        for k in range(r):
            v[k] = load(x, there + k * gap, factors, where + k * gap)
        butterfly(v)
        place, _ = place_of(line, t)
        points[place] = word_of(v[0])
        for k in range(1, r):
            points[place + k * step] = word_of(v[k] * number_of(table[t + k * left]))

    return each_butterfly(plan, 0, from_memory)


@functools.lru_cache(KEPT)
def pass_in_place(plan: Plan, i: int) -> typing.Any:
    """Pass i, in shared memory."""
    r, butterfly, place_of = plan.radices[i], transform(plan.radices[i]), place_in(plan, i)
    step, left, begin = plan.step(i), np.uint32(plan.left(i + 1)), plan.begin(i)

    @cuda.jit(device=True)
    def in_place(x, points, factors, table, first, line, t):
        v = cuda.local.array(MOST, np.complex64)
        place, j = place_of(line, t)
        for k in range(r):
            v[k] = number_of(points[place + k * step])
        butterfly(v)
        points[place] = word_of(v[0])
        for k in range(1, r):
            points[place + k * step] = word_of(v[k] * number_of(table[begin + j + k * left]))

    return each_butterfly(plan, i, in_place)


@functools.lru_cache(KEPT)
def last_pass(plan: Plan, route: Route, store: typing.Any) -> typing.Any:
    """The last pass, to device memory and there in order: ``store(x, place, z, factors, where)`` writes a result."""
    i = len(plan.radices) - 1
    r, butterfly, place_of, of = plan.radices[i], transform(plan.radices[i]), place_in_last(plan), origin(route)
    step, gap = plan.step(i), np.uint32(plan.n // plan.radices[i] * route.step)

    @cuda.jit(device=True)
    def to_memory(x, points, factors, table, first, line, t):
        v = cuda.local.array(MOST, np.complex64)
        place = place_of(line, t)
        for k in range(r):
            v[k] = number_of(points[place + k * step])
        butterfly(v)
        there, where = of(line, t, first)
        for k in range(r):
            store(x, there + k * gap, v[k], factors, where + k * gap)

    return each_butterfly(plan, i, to_memory, rows=route.step == 1)


@functools.lru_cache(KEPT)
def last_pass_in_place(plan: Plan) -> typing.Any:
    """The last pass, or the only one, in shared memory: it leaves the results in reversed digits."""
    i = len(plan.radices) - 1
    r, butterfly, place_of, step = plan.radices[i], transform(plan.radices[i]), place_in_last(plan), plan.step(i)

    @cuda.jit(device=True)
    def last_in_place(x, points, factors, table, first, line, t):
        v = cuda.local.array(MOST, np.complex64)
        place = place_of(line, t)
        for k in range(r):
            v[k] = number_of(points[place + k * step])
        butterfly(v)
        for k in range(r):
            points[place + k * step] = word_of(v[k])

    return each_butterfly(plan, i, last_in_place)


@functools.lru_cache(KEPT)
def turn_round(plan: Plan, route: Route) -> typing.Any:
    """The last pass, the conjugate of a product with ``factors``, and the first pass of the way back, in registers."""
    i = len(plan.radices) - 1
    r, butterfly, place_of, of = plan.radices[i], transform(plan.radices[i]), place_in_last(plan), origin(route)
    step, gap = plan.step(i), np.uint32(plan.n // plan.radices[i])

    @cuda.jit(device=True)
    def there_and_back(x, points, factors, table, first, line, t):
        v = cuda.local.array(MOST, np.complex64)
        place = place_of(line, t)
        for k in range(r):
            v[k] = number_of(points[place + k * step])
        butterfly(v)
        _, where = of(line, t, first)
        for k in range(r):
            v[k] = conjugate(v[k] * number_of(factors[where + k * gap]))
        butterfly(v)
        for k in range(r):
            points[place + k * step] = word_of(v[k])

    return each_butterfly(plan, i, there_and_back)


@functools.lru_cache(KEPT)
def pass_back(plan: Plan, i: int) -> typing.Any:
    """Pass i on the way back, in shared memory: the factors come before the butterfly."""
    r, butterfly, place_of = plan.radices[i], transform(plan.radices[i]), place_in(plan, i)
    step, left, begin = plan.step(i), np.uint32(plan.left(i + 1)), plan.begin(i)

    @cuda.jit(device=True)
    def in_place_back(x, points, factors, table, first, line, t):
        v = cuda.local.array(MOST, np.complex64)
        place, j = place_of(line, t)
        v[0] = number_of(points[place])
        for k in range(1, r):
            v[k] = number_of(points[place + k * step]) * number_of(table[begin + j + k * left])
        butterfly(v)
        for k in range(r):
            points[place + k * step] = word_of(v[k])

    return each_butterfly(plan, i, in_place_back)


@functools.lru_cache(KEPT)
def first_pass_back(plan: Plan, route: Route, store: typing.Any) -> typing.Any:
    """The first pass as the last of the way back, to device memory: ``store`` as in `last_pass`."""
    r, butterfly, place_of, of = plan.radices[0], transform(plan.radices[0]), place_in(plan, 0), origin(route)
    step, left, gap = plan.step(0), np.uint32(plan.left(1)), np.uint32(plan.left(1) * route.step)

    @cuda.jit(device=True)
    def back_to_memory(x, points, factors, table, first, line, t):
        v = cuda.local.array(MOST, np.complex64)
        place, _ = place_of(line, t)
        v[0] = number_of(points[place])
        for k in range(1, r):
            v[k] = number_of(points[place + k * step]) * number_of(table[t + k * left])
        butterfly(v)
        there, where = of(line, t, first)
        for k in range(r):
            store(x, there + k * gap, v[k], factors, where + k * gap)

    return each_butterfly(plan, 0, back_to_memory)


# ----------------------------------------------------------------------------------------------- through shared memory


@functools.lru_cache(KEPT)
def lines_in(plan: Plan, load: typing.Any) -> typing.Any:
    """A block's lines, which lie one behind the other, word by word into shared memory."""
    n, between, threads = np.uint32(plan.n), np.uint32(plan.between), np.uint32(plan.threads)

    @cuda.jit(device=True)
    def copy_in(x, points, factors, table, first, count):
        u = np.uint32(cuda.threadIdx.x)
        while u < count * n:
            line = np.uint32(u // n)
            points[np.uint32(line * between + u - line * n)] = word_of(load(x, u, factors, u))
            u = np.uint32(u + threads)

    return copy_in


@functools.lru_cache(KEPT)
def lines_out(plan: Plan, store: typing.Any) -> typing.Any:
    """A block's lines, word by word back to device memory."""
    n, between, threads = np.uint32(plan.n), np.uint32(plan.between), np.uint32(plan.threads)

    @cuda.jit(device=True)
    def copy_out(x, points, factors, table, first, count):
        u = np.uint32(cuda.threadIdx.x)
        while u < count * n:
            line = np.uint32(u // n)
            store(x, u, number_of(points[np.uint32(line * between + u - line * n)]), factors, u)
            u = np.uint32(u + threads)

    return copy_out


@functools.lru_cache(KEPT)
def place_of_result(plan: Plan) -> typing.Any:
    """A device function: the word of result ``k`` of a line, after `last_pass_in_place`."""
    gap, step, place_of = np.uint32(plan.n // plan.radices[-1]), plan.step(len(plan.radices) - 1), place_in_last(plan)

    @cuda.jit(device=True)
    def of_result(line, k):
        highest = np.uint32(k // gap)
        return np.uint32(place_of(line, np.uint32(k - highest * gap)) + highest * step)

    return of_result


# ---------------------------------------------------------------------------------------------------------------- plans

#: Instructions for each point of a butterfly, additions, products and both in one, as counted in its PTX; and for the
#: exchange that follows: a load and a store, a factor with its load and its product, and addresses.
ARITHMETIC = {1: 0, 2: 2, 3: 5, 4: 4, 5: 8, 6: 7, 7: 12, 8: 7, 9: 13, 10: 10, 11: 18, 12: 9, 13: 21, 15: 14, 16: 10}
EXCHANGE = 14
WORDS = 6144  # of shared memory that a block may have: 48 KB


@functools.lru_cache(4096)
def radices_of(n: int) -> tuple[int, ...] | None:
    """The radices with the least work whose product is n, in the order of `Plan`; None where there are none.

    The largest come first and last. These passes wait for device memory, and a thread has as many points on their way
    at a time as its radix says.

    >>> radices_of(1000), radices_of(1001), radices_of(17)
    ((10, 10, 10), (13, 7, 11), None)
    """
    if n == 1:
        return (1,)

    @functools.cache
    def least(left: int) -> tuple[float, tuple[int, ...]]:
        found = (0.0, ()) if left == 1 else (math.inf, ())
        for r, instructions in ARITHMETIC.items():
            if r > 1 and left % r == 0:
                work, others = least(left // r)
                found = min(found, (work + instructions + EXCHANGE, tuple(sorted((r, *others)))))
        return found

    work, radices = least(n)
    if not math.isfinite(work):
        return None
    return radices if len(radices) == 1 else (radices[-1], *radices[:-2], radices[-2])


def work_of(n: int) -> float:
    """Instructions of a transform of n points; infinite where there are no radices."""
    radices = radices_of(n)
    return math.inf if radices is None else n * sum(ARITHMETIC[r] + EXCHANGE for r in radices)


@functools.lru_cache(1024)
def rows(n: int) -> Plan:
    """The plan for rows of n points with which the fewest threads wait for others.

    Small blocks are better than large ones: while one waits at a barrier, others work. So of plans that keep about as
    many threads busy the one with the fewest threads is taken. A block has about 500 points or more, if it may have
    several lines, and the first pass, which waits for memory, has hardly more butterflies than threads.
    """
    radices, found = radices_of(n), []
    for lines in range(1, max(1, 1024 // n) + 1):
        for threads in range(64, 513, 32):
            plan = Plan(radices, lines, threads)
            points = lines * n
            slots = sum(-(-plan.work(i) // threads) * threads * r for i, r in enumerate(radices))
            busy = len(radices) * points / slots
            fit = min(1.0, points / 500) * min(1.0, threads * radices[0] / points) ** 0.5
            found.append((busy * fit * (1 - threads / 2048), -points, plan))
    return max(found)[-1]


@functools.lru_cache(1024)
def columns(n: int) -> Plan | None:
    """The plan for columns of n points: 16 side by side, which are 128 bytes, or 8; None if these need too much."""
    radices = radices_of(n)
    if radices is None or len(radices) == 1:
        return None
    for lines in (16, 8):
        threads = min(512, max(64, lines * n // 12 // 32 * 32))
        plan = Plan(radices, lines, threads, columns=True)
        if plan.words <= WORDS:
            return plan
    return None


@functools.cache
def smooth(most: int) -> tuple[int, ...]:
    """All lengths up to ``most`` that at least two radices make, ascending."""
    return tuple(n for n in range(1, most + 1) if len(radices_of(n) or ()) > 1)


def fits(n: int) -> bool:
    """Whether a block can do rows of n points."""
    radices = radices_of(n)
    return radices is not None and Plan(radices, 1, 1).words <= WORDS
