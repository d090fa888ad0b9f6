"""FFT of any length: the discrete Fourier transform of complex64 along the last axis, for every number of points.

Chapter: notebooks/60_fft_of_any_length.ipynb.  PMPP 4e ch. 16.

The bound is that of chapter 58: 5 n log2 n operations and 16 n bytes, so that one trip through memory is what counts.
What is new is the length. Where n is a product of small primes, there is a butterfly for each of them, in registers:
see `pmpp.kernels.fft.radices`. A block does all passes in shared memory: see `pmpp.kernels.fft.passes`. A large prime
has no butterfly. Its transform is a convolution, and that is two transforms of a convenient length, more than twice as
long: see `pmpp.kernels.fft.chirps`. All of this fits into a block, too, as long as n is below about 3000.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.fft import ladder
from pmpp.kernels.fft.butterflies import LINES, LONGEST, Pass, roots, scaled
from pmpp.kernels.fft.chirps import chirps, gain, matrix_chirps, twist
from pmpp.kernels.fft.ladder import vectorised_pass
from pmpp.kernels.fft.passes import (  # fmt: skip
    WORDS,
    Plan,
    Route,
    columns,
    first_pass,
    first_pass_back,
    fits,
    last_pass,
    last_pass_in_place,
    lines_in,
    lines_out,
    one_after_the_other,
    pass_back,
    pass_in_place,
    radices_of,
    rows,
    smooth,
    turn_round,
    twiddles,
    work_of,
)
from pmpp.kernels.fft.radices import (  # fmt: skip
    conjugate,
    read,
    read_chirped,
    read_conjugate,
    read_times,
    write,
    write_chirped,
    write_conjugate,
    write_scaled,
    write_times,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.rung import Cost, Problem, rung

MOST = LONGEST // 2  # points of a line: a convolution has up to twice as many
NORMS = ("backward", "ortho", "forward")
KERNELS = 64  # that are kept of each kind, one for each length
REGISTERS = 64  # a thread: so there is room for 1024 threads on a multiprocessor


def factor(n: int, inverse: bool, norm: str) -> float:
    """What a transform of n points is multiplied by: 1, 1 / sqrt(n) or 1 / n.

    >>> factor(4, False, "backward"), factor(4, True, "backward"), factor(4, True, "ortho")
    (1.0, 0.25, 0.5)
    """
    if norm == "ortho":
        return n**-0.5
    return 1 / n if inverse == (norm == "backward") else 1.0


def reference(x: np.ndarray, inverse: bool = False, norm: str = "backward") -> np.ndarray:
    """The transform in complex128, by its definition: each result is the sum of all n products."""
    n = x.shape[-1]
    return ladder.reference(x, inverse) * (factor(n, inverse, norm) * (n if inverse else 1))


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, inverse, norm)``."""
    rng = np.random.default_rng(60) if rng is None else rng

    def noise(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

    made: dict[str, tuple] = {}
    for n in (6, 17, 1, 2, 3, 7, 8, 30, 37, 100, 143, 180):
        made[f"{n} points"] = noise(7, n), n in (3, 17, 30), NORMS[n % 3]
    for n in (4, 5, 9, 10, 11, 12, 13, 15, 16):  # a butterfly and nothing else
        made[f"radix {n}"] = noise(2, n), False, "backward"
    for n in (243, 251):  # three passes
        made[f"{n} points"] = noise(1, n), n == 251, "ortho"
    made["three axes"] = noise(2, 3, 21), True, "ortho"
    made["no lines"] = noise(0, 15), False, "backward"
    impulse, wave, scales = np.zeros((2, 15), np.complex64), np.exp(2j * np.pi * 4 / 35 * np.arange(35)), noise(4, 19)
    impulse[0, 0] = impulse[1, 14] = 1
    scales *= np.array([1e-20, 1, 1e20, 0], np.float32)[:, None]
    more = {"impulses": impulse, "one wave": wave.astype(np.complex64), "large and small": scales}
    return made | {name: (x, False, "backward") for name, x in more.items()}


def primes_of(n: int) -> list[int]:
    """The prime factors of n, ascending.

    >>> primes_of(60)
    [2, 2, 3, 5]
    """
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1 if p * p <= n else max(n - p, 1)
    return found


U = 2.0**-24  # the unit roundoff of float32
TURN = U + 2 * 2**0.5 * U * (1 + 2 * U)  # of a product with a rounded root: Higham, Lemma 3.5


def error_of_radices(n: int) -> float:
    """How far, in the 2-norm and relative to the result, a transform by butterflies of n's prime factors can be off.

    For a factor 2 it is that of N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2:
    see `ladder.relative_error`. An odd prime p has h = (p - 1) / 2 products and sums. So each point goes through no
    more than h + 4 roundings on its way to a result, with a cosine and a sine: the result is off by at most
    sqrt(2) (h + 4) u times the sum of all p sizes, which is sqrt(p) times their 2-norm. So is each of p results, and
    an exact butterfly makes the 2-norm larger by sqrt(p). To that comes a product with a root. Larger radices than 2
    round no more than those of their factors.
    """
    total = 0.0
    for p in primes_of(n):
        total += ladder.relative_error(2) if p == 2 else (2 * p) ** 0.5 * ((p - 1) // 2 + 4) * U + TURN
    return total / (1 - total)


def error_of_convolution(n: int, m: int) -> float:
    """As `error_of_radices`, for a convolution around a circle of m points.

    In order: the product with the chirp, a transform of m points, the product with the spectrum, a transform back. What
    each of them is off by, the steps after it make larger by `chirps.gain` at most. Then comes one product more.
    """
    total = gain(n, m) * 2 * (error_of_radices(m) + TURN) + TURN
    return total / (1 - total)


def relative_error(n: int) -> float:
    """How far a transform of n points can be off, in the 2-norm and relative to the result, by any rung."""
    if n == 1:
        return 2 * U
    convolved = [error_of_convolution(n, m) for m in circles(n)]
    return max(*convolved, error_of_radices(n) if radices_of(n) else 0.0) + 2 * U  # and the product with `factor`


def tolerance(x: np.ndarray, inverse: bool = False, norm: str = "backward") -> typing.Any:
    """How far each element may be from the exact result: none is further off than all of them together."""
    n = x.shape[-1]
    size = np.sqrt((np.abs(x.astype(np.complex128)) ** 2).sum(-1, keepdims=True))
    return relative_error(n) * size * (n**0.5 * factor(n, inverse, norm)) + 2.0**-140


def cost(lines: int, n: int) -> Cost:
    """5 operations for each point and halving, as is usual for any length, and one trip through memory."""
    return ladder.cost(lines, n)


def in_words(name: str, x: typing.Any) -> typing.Any:
    """``x``. Raises ValueError if its points cannot be read as words of 8 bytes, because it begins between two.

    A complex64 view of float32 memory can begin so. A GPU refuses such a read, and then whatever follows it.
    """
    beyond = device.address(x) % 8
    if beyond:
        raise ValueError(f"{name} must begin at a multiple of 8 bytes, began {beyond} bytes behind one: copy it first")
    return x


def arguments(x, inverse=False, norm="backward", *, out=None, stream=0) -> Problem:
    """Transform each line of complex numbers.

    Args:
        x: complex64, contiguous, of any number of dimensions. The last axis has 1 to 2^26 points; others are a batch.
            As all of CUDA's complex arrays, it begins at a multiple of 8 bytes, and so does ``out``.
        inverse: True for the inverse transform.
        norm: what is divided by the number of points n, as in NumPy: with "backward" the inverse, with "forward" the
            forward transform; with "ortho" both are divided by its square root.
        out: a complex64 device array of x's shape, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. An infinity or a NaN spoils its own line and no other.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.fft import any_length
    >>> any_length.fused(np.complex64([1, 0, 0])).copy_to_host()
    array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    stream = device.as_stream(stream)
    inverse = as_flag("inverse", inverse)
    if not isinstance(norm, str) or norm not in NORMS:
        raise ValueError(f'norm must be "backward", "ortho" or "forward", was {norm!r}')
    x = in_words("x", device.as_input("x", x, dtypes=np.complex64, stream=stream))
    n = x.shape[-1]
    if not 1 <= n <= MOST:
        raise ValueError(f"the last axis of x must have 1 to {MOST} points, had {n}")
    lines = x.size // n
    if lines >= LINES:
        raise ValueError(f"x must have fewer than 2^31 lines, had shape {x.shape}")
    out = device.as_output("out", out, shape=x.shape, dtype=np.complex64, apart={"x": x}, stream=stream)
    in_words("out", out)
    scale = factor(n, inverse, norm)
    return Problem(
        out, stream=stream, x=x.reshape(-1), out=out.reshape(-1), n=n, lines=lines, inverse=inverse, scale=scale
    )


# ------------------------------------------------------------------------------------------------------- all products

BLOCK = 256  # threads a block


@cuda.jit
def naive_kernel(x, out, roots, n, scale):
    i = cuda.grid(1)
    if i < out.size:
        k = i % n
        first = i - k
        total, turn = np.complex128(0), 0
        for j in range(n):
            total += np.complex128(x[first + j]) * np.complex128(roots[turn])
            turn += k
            if turn >= n:  # j k modulo n
                turn -= n
        out[i] = np.complex64(total * scale)


@rung(naive_kernel)
def naive(p):
    """One thread for each result: the sum of n products, as the definition has it, for every n.

    The sum is kept in float64, so that only the rounded roots of unity and the result are off.

    Leaves: n multiplications for each result.
    """
    table = roots(p.n, p.inverse)
    naive_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](p.x, p.out, table, p.n, np.float64(p.scale))


# ------------------------------------------------------------------------------------------- a convolution, in memory


@cuda.jit
def chirp_kernel(x, out, chirp, n, m, sign):
    i = cuda.grid(1)
    if i < out.size:
        line = i // m
        j = i - line * m
        if j < n:
            z = x[line * n + j]
            out[i] = scaled(z, np.float32(1), sign) * chirp[j]
        else:
            out[i] = np.complex64(0)


@cuda.jit
def product_kernel(x, spectrum, m):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = conjugate(x[i] * spectrum[i % m])


@cuda.jit
def cut_kernel(x, out, chirp, n, m, sign):
    i = cuda.grid(1)
    if i < out.size:
        line = i // n
        k = i - line * n
        z = conjugate(x[line * m + k]) * chirp[k]
        out[i] = scaled(z, np.float32(1), sign)


def power_of_two(n: int) -> int:
    """The smallest circle with a power of two for a convolution of n points."""
    return 1 << (2 * n - 2).bit_length()


@rung(chirp_kernel, product_kernel, cut_kernel)
def bluestein(p):
    """A transform of any length is a convolution, and that is two transforms whose length is a power of two.

    The way back is a transform, too: of conjugates, and its results are conjugated. The transforms are those of
    `pmpp.kernels.fft.vectorised`. Source: L. I. Bluestein (1968); see `pmpp.kernels.fft.chirps`.

    Leaves: five kernels, on lines up to four times as long, even for a length such as 100.
    """
    m = power_of_two(p.n)
    chirp, spectrum, after = (table.view(np.complex64) for table in chirps(p.n, m, p.scale))
    one, two = (device.empty(p.lines * m, np.complex64, stream=p.stream) for _ in range(2))
    grid, sign, transform = blocks(one.size, BLOCK), np.float32(-1 if p.inverse else 1), Pass(m, 1, p.lines, False)
    chirp_kernel[grid, BLOCK, p.stream](p.x, one, chirp, p.n, m, sign)
    vectorised_pass(transform, one, two, p.stream)
    product_kernel[grid, BLOCK, p.stream](two, spectrum, m)
    vectorised_pass(transform, two, one, p.stream)
    cut_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](one, p.out, after, p.n, m, sign)


# ------------------------------------------------------------------------------------------- a butterfly a prime factor


@functools.lru_cache(KERNELS)
def short_kernel(plan: Plan, inverse: bool) -> typing.Any:
    """For lines of one radix: several lines a block, which go through shared memory on their way in and out."""
    n, lines, words = plan.n, np.int64(plan.lines), plan.words
    load, store = (read_conjugate, write_conjugate) if inverse else (read, write_scaled)
    way, back = one_after_the_other(lines_in(plan, load), last_pass_in_place(plan)), lines_out(plan, store)

    @cuda.jit
    def short_lines_kernel(x, out, table, total, scale):
        points = cuda.shared.array(words, np.int64)
        first = cuda.blockIdx.x * lines
        count = np.uint32(min(lines, total - first))
        way(x[first * n :], points, scale, table, np.uint32(0), count)
        cuda.syncthreads()
        back(out[first * n :], points, scale, table, np.uint32(0), count)

    return short_lines_kernel


@functools.lru_cache(KERNELS)
def lines_kernel(plan: Plan, inverse: bool) -> typing.Any:
    """For lines of several radices that fit into a block's shared memory: one trip through device memory."""
    n, lines, words, last = plan.n, np.int64(plan.lines), plan.words, len(plan.radices) - 1
    load, store = (read_conjugate, write_conjugate) if inverse else (read, write_scaled)
    start, end = first_pass(plan, Route(n), load), last_pass(plan, Route(n), store)
    way = one_after_the_other(start, *(pass_in_place(plan, i) for i in range(1, last)))

    @cuda.jit(max_registers=REGISTERS)
    def mixed_radix_kernel(x, out, table, total, scale):
        points = cuda.shared.array(words, np.int64)
        first = cuda.blockIdx.x * lines
        count = np.uint32(min(lines, total - first))
        way(x[first * n :], points, scale, table, np.uint32(0), count)
        cuda.syncthreads()
        end(out[first * n :], points, scale, table, np.uint32(0), count)

    return mixed_radix_kernel


@functools.lru_cache(KERNELS)
def columns_kernel(
    plan: Plan, across: int, lengths: tuple[int, int], load: typing.Any, store: typing.Any, turned: bool
) -> typing.Any:
    """Transforms of columns of a matrix with ``across`` columns, for lines that no block can hold.

    ``lengths``: of a line where it is read and where it is written. ``turned``: whether the matrix is written on its
    side, a column's results as a row.
    """
    wide, words, last, tiles = plan.lines, plan.words, len(plan.radices) - 1, blocks(across, plan.lines)
    length, length_out = map(np.int64, lengths)
    down = Route(0, across)
    start, end = first_pass(plan, down, load), last_pass(plan, Route(plan.n, 1, 0) if turned else down, store)
    way = one_after_the_other(start, *(pass_in_place(plan, i) for i in range(1, last)))

    @cuda.jit(max_registers=REGISTERS)
    def matrix_columns_kernel(x, out, before, after, table):
        points = cuda.shared.array(words, np.int64)
        line = np.int64(cuda.blockIdx.x // tiles)
        first = np.uint32((cuda.blockIdx.x - line * tiles) * wide)
        count = np.uint32(min(np.int64(wide), np.int64(across) - first))
        way(x[line * length :], points, before, table, first, count)
        cuda.syncthreads()
        end(out[line * length_out :], points, after, table, first, count)

    return matrix_columns_kernel


@functools.lru_cache(1024)
def sides(n: int) -> tuple[Plan, Plan] | None:
    """Columns of a points and of b points, with n = a b and a near to b; None if there are none."""
    ways = [(columns(a), columns(n // a)) for a in smooth(WORDS // 8) if n % a == 0 and radices_of(n // a)]
    found = [way for way in ways if None not in way]
    return min(found, key=lambda way: max(plan.n for plan in way), default=None)


def by_radices(p: Problem) -> bool:
    """Do the transforms by butterflies of n's factors, if there are butterflies for all; return whether there are."""
    words, out, scale = p.x.view(np.int64), p.out.view(np.int64), np.float32(p.scale)
    if fits(p.n):
        plan = rows(p.n)
        kernel = (short_kernel if len(plan.radices) == 1 else lines_kernel)(plan, p.inverse)
        launch = kernel[blocks(p.lines, plan.lines), plan.threads, p.stream]
        launch(words, out, twiddles(plan.radices), p.lines, scale)
        return True
    found = sides(p.n)
    if found is None:
        return False
    (first, second), n = found, p.n
    a, b = first.n, second.n
    turned = device.empty(p.out.size, np.int64, stream=p.stream)
    load, store = (read_conjugate, write_conjugate) if p.inverse else (read, write_scaled)
    kernel = columns_kernel(first, b, (n, n), load, write_times, True)
    grid, table = p.lines * blocks(b, first.lines), twiddles(first.radices)
    kernel[grid, first.threads, p.stream](words, turned, scale, twist(a, b), table)
    kernel = columns_kernel(second, a, (n, n), read, store, False)
    grid, table = p.lines * blocks(a, second.lines), twiddles(second.radices)
    kernel[grid, second.threads, p.stream](turned, out, scale, scale, table)
    return True


@rung(short_kernel, lines_kernel, columns_kernel, *bluestein.kernels)
def mixed_radix(p):
    """A pass for each factor of n, in registers and shared memory: one trip through device memory.

    Radices are 2 to 13, 15 and 16. A line of more than about 6000 points is a matrix, if n is a product of two numbers
    whose columns fit a block, which are below 700: transforms of its columns, factors, and transforms of the columns of
    the matrix on its side, in two trips (D. H. Bailey 1990; see `pmpp.kernels.fft.four_step`). Other lengths, among
    them all from about 450,000 points on, are done as in `bluestein`.
    Source: as `pmpp.kernels.fft.passes`.

    Leaves: lengths with a large prime factor: five kernels on lines up to four times as long.
    """
    if not by_radices(p):
        bluestein.launch(p)


# --------------------------------------------------------------------------------------------- a convolution in a block


@functools.lru_cache(KERNELS)
def convolution_kernel(plan: Plan, n: int, inverse: bool) -> typing.Any:
    """Lines of n points by convolutions of plan.n points, from the chirp to the chirp, in shared memory."""
    lines, words, last, route = np.int64(plan.lines), plan.words, len(plan.radices) - 1, Route(n)
    way = one_after_the_other(
        first_pass(plan, route, read_chirped(n, inverse)), *(pass_in_place(plan, i) for i in range(1, last))
    )
    turn = one_after_the_other(turn_round(plan, route), *(pass_back(plan, i) for i in range(last - 1, 0, -1)))
    back = first_pass_back(plan, route, write_chirped(n, inverse))

    @cuda.jit(max_registers=REGISTERS)
    def convolved_lines_kernel(x, out, chirp, spectrum, after, table, total):
        points = cuda.shared.array(words, np.int64)
        first = cuda.blockIdx.x * lines
        count = np.uint32(min(lines, total - first))
        way(x[first * n :], points, chirp, table, np.uint32(0), count)
        cuda.syncthreads()
        turn(x, points, spectrum, table, np.uint32(0), count)
        cuda.syncthreads()
        back(out[first * n :], points, after, table, np.uint32(0), count)

    return convolved_lines_kernel


@functools.lru_cache(KERNELS)
def rows_kernel(plan: Plan, a: int) -> typing.Any:
    """The middle of a convolution of a b points, which is a matrix of a rows: there and back along its rows."""
    b, lines, words, last = plan.n, np.int64(plan.lines), plan.words, len(plan.radices) - 1
    route = Route(b, 1, a)
    way = one_after_the_other(first_pass(plan, route, read_times), *(pass_in_place(plan, i) for i in range(1, last)))
    turn = one_after_the_other(turn_round(plan, route), *(pass_back(plan, i) for i in range(last - 1, 0, -1)))
    back = first_pass_back(plan, route, write_times)

    @cuda.jit(max_registers=REGISTERS)
    def convolved_rows_kernel(x, out, twist, spectrum, table, total):
        points = cuda.shared.array(words, np.int64)
        first = cuda.blockIdx.x * lines
        count = np.uint32(min(lines, total - first))
        row = np.uint32(first % a)
        way(x[first * b :], points, twist, table, row, count)
        cuda.syncthreads()
        turn(x, points, spectrum, table, row, count)
        cuda.syncthreads()
        back(out[first * b :], points, twist, table, row, count)

    return convolved_rows_kernel


@functools.lru_cache(1024)
def circle(n: int) -> int | None:
    """The length of a convolution of n points with the least work, of those that fit into a block."""
    found = [m for m in smooth(WORDS) if 2 * n - 1 <= m <= 4 * n + 12 and fits(m)]
    return min(found, key=lambda m: (work_of(m), m), default=None)


@functools.lru_cache(1024)
def matrix(n: int) -> tuple[Plan, Plan] | None:
    """Columns and rows of a matrix with 2 n - 1 places or more, of the least work; None if there is no such matrix."""
    lengths, found = smooth(4096), []
    for a in smooth(WORDS // 8):
        b = next((b for b in lengths if a * b >= 2 * n - 1), None)
        if b is not None and columns(a) is not None:
            work = work_of(a) * b + work_of(b) * a + 40 * a * b
            found.append((work * (1 if columns(a).lines == 16 else 1.5), a, b))
    if not found:
        return None
    _, a, b = min(found)
    return columns(a), rows(b)


def circles(n: int) -> list[int]:
    """The lengths of all convolutions by which a rung may transform n points."""
    found = [power_of_two(n)]
    if not fits(n) and sides(n) is None:
        if circle(n) is not None:
            found.append(circle(n))
        elif matrix(n) is not None:
            found.append(math.prod(plan.n for plan in matrix(n)))
    return found


def by_matrix(p: Problem, down: Plan, along: Plan) -> None:
    """Do the transforms by convolutions that are matrices: columns, rows there and back, columns."""
    words, out, n, a, b = p.x.view(np.int64), p.out.view(np.int64), p.n, down.n, along.n
    m = a * b
    chirp, spectrum, after, turns = matrix_chirps(n, a, b, p.scale)
    one, two = (device.empty(p.lines * m, np.int64, stream=p.stream) for _ in range(2))
    grid, table = p.lines * blocks(b, down.lines), twiddles(down.radices)
    kernel = columns_kernel(down, b, (n, m), read_chirped(n, p.inverse), write, False)
    kernel[grid, down.threads, p.stream](words, one, chirp, chirp, table)
    kernel = rows_kernel(along, a)
    launch = kernel[blocks(p.lines * a, along.lines), along.threads, p.stream]
    launch(one, two, turns, spectrum, twiddles(along.radices), p.lines * a)
    kernel = columns_kernel(down, b, (m, n), read, write_chirped(n, p.inverse), False)
    kernel[grid, down.threads, p.stream](two, out, after, after, table)


@rung(convolution_kernel, rows_kernel, *mixed_radix.kernels)
def fused(p):
    """The whole convolution in one block: two chirps, two transforms and a product in one trip through device memory.

    Its length is the product of radices with the least work. The results of the way there are multiplied in registers
    and start the way back, so their reversed order does not matter. Where no block can hold it, the convolution is a
    matrix, and takes three trips: columns, rows there and back, columns. All else is done as in `mixed_radix`.
    """
    if by_radices(p):
        return
    m = circle(p.n)
    if m is not None:
        plan = rows(m)
        chirp, spectrum, after = chirps(p.n, m, p.scale)
        launch = convolution_kernel(plan, p.n, p.inverse)[blocks(p.lines, plan.lines), plan.threads, p.stream]
        launch(p.x.view(np.int64), p.out.view(np.int64), chirp, spectrum, after, twiddles(plan.radices), p.lines)
    elif matrix(p.n) is not None:
        by_matrix(p, *matrix(p.n))
    else:
        bluestein.launch(p)


LADDER = (naive, bluestein, mixed_radix, fused)
