"""What the rungs of `fft` share: passes, tables of roots of unity, butterflies, loads and stores."""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128

LONGEST = 2**27  # points of a transform: places are counted in 32 bits
LINES = 2**31  # and lines are, too


class Pass(typing.NamedTuple):
    """``lines`` transforms of ``n`` points each that lie ``inner`` elements apart."""

    n: int
    inner: int
    lines: int
    inverse: bool

    @property
    def scale(self) -> np.float32:
        """What the results are multiplied by: 1, or 1 / n for an inverse; both are exact."""
        return np.float32(1 / self.n if self.inverse else 1)

    @property
    def sign(self) -> np.float32:
        """What the imaginary parts are multiplied by: see `scaled8`."""
        return np.float32(-1 if self.inverse else 1)


@functools.lru_cache(maxsize=256)
def passes_of(shape: tuple[int, ...], axes: int, inverse: bool) -> tuple[Pass, ...]:
    """One pass of transforms for each of the last ``axes`` axes, the last axis first.

    >>> passes_of((3, 8, 16), 2, False)
    (Pass(n=16, inner=1, lines=24, inverse=False), Pass(n=8, inner=16, lines=48, inverse=False))
    """
    size, inner, found = math.prod(shape), 1, []
    for n in shape[: -axes - 1 : -1]:
        found.append(Pass(n, inner, size // max(n, 1), inverse))
        inner *= n
    return tuple(found)


def checked_axes(name: str, axes: int, shape: tuple[int, ...]) -> int:
    """``axes`` as an int. Raises ValueError unless it is 1 or 2, and ``shape`` has as many axes."""
    if isinstance(axes, bool) or not isinstance(axes, int | np.integer) or axes not in (1, 2):
        raise ValueError(f"axes must be 1 (the last) or 2 (the last two), was {axes!r}")
    if len(shape) < axes:
        raise ValueError(f"{name} must have at least {axes} dimensions for axes={axes}, had shape {shape}")
    return int(axes)


def checked_length(name: str, n: int) -> None:
    """Raises ValueError unless ``n`` is a power of two that the kernels can count."""
    if n < 1 or n & (n - 1):
        longer = 1 << max(n, 1).bit_length() if n > 1 else 1
        raise ValueError(f"{name} must be a power of two, was {n}: pad it with zeros to {longer}")
    if n > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST}, was {n}")


# --------------------------------------------------------------------------------------------------- roots of unity
# All roots are computed in float64 and rounded once: products of rounded roots would lose a little at each step.

TABLES = 16  # that are kept of each kind: the longest of LONGEST points has 1 GiB


@device.cached(TABLES)
def roots(n: int, inverse: bool = False) -> typing.Any:
    """A device array with the n roots of unity, exp(-2 pi i k / n), or exp(2 pi i k / n) for the inverse."""
    return device.to_device(exact_roots(np.arange(n), n, inverse))


def exact_roots(k: np.ndarray, n: int, inverse: bool = False) -> np.ndarray:
    """exp(-2 pi i k / n), rounded to complex64."""
    return np.exp((2j if inverse else -2j) * np.pi * (k % n) / n).astype(np.complex64)


def first_radix(n: int) -> int:
    """Of the first pass, so that all the others are of radix 8."""
    return {0: 8, 1: 2, 2: 4}[(n.bit_length() - 1) % 3]


@device.cached(TABLES)
def twiddles(n: int) -> typing.Any:
    """The factors of all passes of radix 8: a pass over spectra of ``s`` points needs ``table[k * s + j]``.

    That is exp(-2 pi i j k / (8 s)), j < s, k = 1 .. 7: neighbouring threads find neighbouring factors, and the passes
    fill the table one behind the other. What lies before the second pass is never read.
    """
    table = np.zeros(max(n, 8), np.complex64)
    s = first_radix(n)
    while s < n:
        k, j = np.meshgrid(np.arange(1, 8), np.arange(s), indexing="ij")
        table[s : 8 * s] = exact_roots(k * j, 8 * s).reshape(-1)
        s *= 8
    return device.to_device(table)


# ------------------------------------------------------------------------------------------------------- butterflies

HALF = np.float32(math.sqrt(0.5))  # both parts of the eighth root of unity


@cuda.jit(device=True)
def turned(z):
    """z times -i."""
    return complex(z.imag, -z.real)


@cuda.jit(device=True)
def scaled(z, real, imag):
    """Both parts of z times a factor of their own."""
    return complex(z.real * real, z.imag * imag)


@cuda.jit(device=True)
def butterfly4(a, b, c, d):
    """The transform of four points."""
    s, t, u, v = a + c, a - c, b + d, turned(b - d)
    return s + u, t + v, s - u, t - v


@cuda.jit(device=True)
def butterfly8(v):
    """The transform of eight points: two of four, and the odd ones turned by an eighth, a quarter, three eighths."""
    a, b, c, d = butterfly4(v[0], v[2], v[4], v[6])
    e, f, g, h = butterfly4(v[1], v[3], v[5], v[7])
    f = complex(HALF * (f.real + f.imag), HALF * (f.imag - f.real))
    g = turned(g)
    h = complex(HALF * (h.imag - h.real), -HALF * (h.real + h.imag))
    return a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h


@cuda.jit(device=True)
def first_butterflies(v, radix):
    """Eight points as four transforms of 2, two of 4, or one of 8, the results of each side by side."""
    if radix == 2:
        return v[0] + v[4], v[0] - v[4], v[1] + v[5], v[1] - v[5], v[2] + v[6], v[2] - v[6], v[3] + v[7], v[3] - v[7]
    if radix == 4:
        a, b, c, d = butterfly4(v[0], v[2], v[4], v[6])
        e, f, g, h = butterfly4(v[1], v[3], v[5], v[7])
        return a, b, c, d, e, f, g, h
    return butterfly8(v)


@cuda.jit(device=True)
def twisted(v, f):
    """Eight points times their twiddle factors, of which the first is 1."""
    return (
        v[0], v[1] * f[1], v[2] * f[2], v[3] * f[3], v[4] * f[4], v[5] * f[5], v[6] * f[6], v[7] * f[7]
    )  # fmt: skip


@cuda.jit(device=True)
def scaled8(v, real, imag):
    """Both parts of eight points times a factor of their own.

    With (1, -1) before a transform and (1 / n, -1 / n) after it, it is the inverse: only the sign of i is different.
    """
    return (
        scaled(v[0], real, imag), scaled(v[1], real, imag), scaled(v[2], real, imag), scaled(v[3], real, imag),
        scaled(v[4], real, imag), scaled(v[5], real, imag), scaled(v[6], real, imag), scaled(v[7], real, imag),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ eight points to and fro
# Written out, since a local array with places that are not known until run time would lie in memory.


@cuda.jit(device=True)
def read8(x, place, step):
    """x[place], x[place + step] and so on."""
    a, b, c, d = x[place], x[place + step], x[place + 2 * step], x[place + 3 * step]
    e, f, g, h = x[place + 4 * step], x[place + 5 * step], x[place + 6 * step], x[place + 7 * step]
    return a, b, c, d, e, f, g, h


@cuda.jit(device=True)
def write8(x, place, step, v):
    x[place], x[place + step], x[place + 2 * step], x[place + 3 * step] = v[0], v[1], v[2], v[3]
    x[place + 4 * step], x[place + 5 * step], x[place + 6 * step], x[place + 7 * step] = v[4], v[5], v[6], v[7]


@cuda.jit(device=True)
def run(k, radix, step, apart):
    """Where result ``k`` of `first_butterflies` goes: those of one are a run, and runs are ``apart`` threads apart."""
    return (np.uint32(k) & (radix - np.uint32(1))) * step + (np.uint32(k) & (np.uint32(8) - radix)) * apart


@cuda.jit(device=True)
def write_runs(x, place, radix, step, apart, v):
    x[place], x[place + run(1, radix, step, apart)] = v[0], v[1]
    x[place + run(2, radix, step, apart)], x[place + run(3, radix, step, apart)] = v[2], v[3]
    x[place + run(4, radix, step, apart)], x[place + run(5, radix, step, apart)] = v[4], v[5]
    x[place + run(6, radix, step, apart)], x[place + run(7, radix, step, apart)] = v[6], v[7]


# ----------------------------------------------------------------------------------------------------- 128 bits wide
# Two complex64 are 16 bytes: one access. `x` is a float32 view, `place` counts complex numbers and is even.


@cuda.jit(device=True)
def padded(place, pad):
    """Where the pair that begins at ``place`` is kept in shared memory: 16 unused bytes follow each 128.

    Of two numbers that have no bit in common the sum may be padded, or each of them: it comes to the same.

    Shared memory serves eight lanes of 16 bytes at a time, from eight different eighths of 128 bytes. Lanes that
    store 2, 4 or 8 pairs apart then have them, and so have lanes that load side by side.
    """
    return place + (place >> 4 << 1) if pad else place


@cuda.jit(device=True)
def load_pair(x, place):
    a, b, c, d = load128(x, 2 * place)
    return complex(a, b), complex(c, d)


@cuda.jit(device=True)
def store_pair(x, place, p, q):
    store128(x, 2 * place, (p.real, p.imag, q.real, q.imag))


@cuda.jit(device=True)
def read_pairs(x, place, step, pad):
    """Eight pairs: all first ones, and all second ones.

    ``place`` and the multiples of ``step`` have no bit in common, so padding can be added to each: see `padded`.
    """
    place = padded(place, pad)
    a, p = load_pair(x, place)
    b, q = load_pair(x, place + padded(step, pad))
    c, r = load_pair(x, place + padded(2 * step, pad))
    d, s = load_pair(x, place + padded(3 * step, pad))
    e, t = load_pair(x, place + padded(4 * step, pad))
    f, u = load_pair(x, place + padded(5 * step, pad))
    g, v = load_pair(x, place + padded(6 * step, pad))
    h, w = load_pair(x, place + padded(7 * step, pad))
    return (a, b, c, d, e, f, g, h), (p, q, r, s, t, u, v, w)


@cuda.jit(device=True)
def write_pairs(x, place, step, pad, v, w):
    place = padded(place, pad)
    store_pair(x, place, v[0], w[0])
    store_pair(x, place + padded(step, pad), v[1], w[1])
    store_pair(x, place + padded(2 * step, pad), v[2], w[2])
    store_pair(x, place + padded(3 * step, pad), v[3], w[3])
    store_pair(x, place + padded(4 * step, pad), v[4], w[4])
    store_pair(x, place + padded(5 * step, pad), v[5], w[5])
    store_pair(x, place + padded(6 * step, pad), v[6], w[6])
    store_pair(x, place + padded(7 * step, pad), v[7], w[7])


@cuda.jit(device=True)
def write_neighbours(x, place, radix, apart, v, w):
    """`write_runs` into padded shared memory for two neighbouring threads, ``v`` and ``w``: each run is of pairs."""
    place, other = padded(place, True), padded(place + radix, True)
    b, c, d = run(2, radix, 1, apart), run(4, radix, 1, apart), run(6, radix, 1, apart)
    b, c, d = padded(b, True), padded(c, True), padded(d, True)
    store_pair(x, place, v[0], v[1])
    store_pair(x, place + b, v[2], v[3])
    store_pair(x, place + c, v[4], v[5])
    store_pair(x, place + d, v[6], v[7])
    store_pair(x, other, w[0], w[1])
    store_pair(x, other + b, w[2], w[3])
    store_pair(x, other + c, w[4], w[5])
    store_pair(x, other + d, w[6], w[7])


# ------------------------------------------------------------------------------------------------------ 64 bits wide
# Numba loads and stores a complex number as two float32, but an int64 at once.


@cuda.jit(device=True)
def word_of(z):
    return np.int64(z.imag.view(np.int32)) << 32 | np.int64(np.uint32(z.real.view(np.int32)))


@cuda.jit(device=True)
def number_of(word):
    return complex(np.int32(word).view(np.float32), np.int32(word >> 32).view(np.float32))


@cuda.jit(device=True)
def write_words(points, place, radix, step, apart, v):
    """`write_runs` into padded shared memory: 16 unused bytes follow each 128 here, too."""
    place = padded(place, True)
    points[place] = word_of(v[0])
    points[place + padded(run(1, radix, step, apart), True)] = word_of(v[1])
    points[place + padded(run(2, radix, step, apart), True)] = word_of(v[2])
    points[place + padded(run(3, radix, step, apart), True)] = word_of(v[3])
    points[place + padded(run(4, radix, step, apart), True)] = word_of(v[4])
    points[place + padded(run(5, radix, step, apart), True)] = word_of(v[5])
    points[place + padded(run(6, radix, step, apart), True)] = word_of(v[6])
    points[place + padded(run(7, radix, step, apart), True)] = word_of(v[7])


@cuda.jit(device=True)
def read_words(points, place, step):
    place = padded(place, True)
    a, b = number_of(points[place]), number_of(points[place + padded(step, True)])
    c, d = number_of(points[place + padded(2 * step, True)]), number_of(points[place + padded(3 * step, True)])
    e, f = number_of(points[place + padded(4 * step, True)]), number_of(points[place + padded(5 * step, True)])
    g, h = number_of(points[place + padded(6 * step, True)]), number_of(points[place + padded(7 * step, True)])
    return a, b, c, d, e, f, g, h
