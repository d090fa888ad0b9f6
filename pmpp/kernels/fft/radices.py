"""Transforms of a few points in registers, one for each radix, and how kernels read and write a point.

A transform takes a tuple or a thread's local array, and returns a tuple. A radix is known when a kernel is compiled. So
a loop over its points is unrolled, each place in the array is a constant, and the compiler keeps the points in
registers. With places that are not known until run time the array would lie in memory.

A complex number moves as a word of 8 bytes: see `pmpp.kernels.fft.butterflies.word_of`.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.butterflies import butterfly4, butterfly8, number_of, scaled, turned, word_of

MOST = 16  # points of a thread

# --------------------------------------------------------------------------------------------------- reads and writes
# What reads a point gives it as a complex number; ``factors`` is a table, or whatever else it needs.


@cuda.jit(device=True)
def conjugate(z):
    return complex(z.real, -z.imag)


@cuda.jit(device=True)
def read(x, place, factors, where):
    return number_of(x[place])


@cuda.jit(device=True)
def read_conjugate(x, place, factors, where):
    return conjugate(number_of(x[place]))


@cuda.jit(device=True)
def read_times(x, place, factors, where):
    """Times ``factors[where]``."""
    return number_of(x[place]) * number_of(factors[where])


@cuda.jit(device=True)
def write(x, place, z, factors, where):
    x[place] = word_of(z)


@cuda.jit(device=True)
def write_scaled(x, place, z, factors, where):
    """Times the real number ``factors``."""
    x[place] = word_of(scaled(z, factors, factors))


@cuda.jit(device=True)
def write_conjugate(x, place, z, factors, where):
    """The conjugate, times the real number ``factors``."""
    x[place] = word_of(scaled(z, factors, -factors))


@cuda.jit(device=True)
def write_times(x, place, z, factors, where):
    """Times ``factors[where]``."""
    x[place] = word_of(z * number_of(factors[where]))


@functools.lru_cache(256)
def read_chirped(n: int, inverse: bool) -> typing.Any:
    """A device function: a point, or for the inverse its conjugate, times ``factors[where]``; from point n on, 0."""

    @cuda.jit(device=True)
    def read_below(x, place, factors, where):
        if where < n:
            z = number_of(x[place])
            return (conjugate(z) if inverse else z) * number_of(factors[where])
        return np.complex64(0)

    return read_below


@functools.lru_cache(256)
def write_chirped(n: int, inverse: bool) -> typing.Any:
    """A device function: the conjugate times ``factors[where]``, for the inverse the conjugate of that; below n."""

    @cuda.jit(device=True)
    def write_below(x, place, z, factors, where):
        if where < n:
            z = conjugate(z) * number_of(factors[where])
            x[place] = word_of(conjugate(z) if inverse else z)

    return write_below


# ------------------------------------------------------------------------------------------------------ prime radices
# Results m and p - m of p points, p an odd prime, are
#     v[0] + sum of cos(2 pi m k / p) (v[k] + v[p - k])  -+  i times the sum of sin(2 pi m k / p) (v[k] - v[p - k])
# over k up to (p - 1) / 2. So two results share their products, and the products are with real numbers.


def weights(p: int) -> tuple:
    """For each m up to (p - 1) / 2 the cosines and the sines of all 2 pi m k / p, k up to (p - 1) / 2."""
    half = range(1, (p + 1) // 2)
    angles = [[2 * math.pi * (m * k % p) / p for k in half] for m in half]
    return tuple(tuple(tuple(np.float32(f(a)) for a in row) for f in (math.cos, math.sin)) for row in angles)


W3, W5, W7, W11, W13 = map(weights, (3, 5, 7, 11, 13))


@cuda.jit(device=True)
def butterfly1(v):
    return (v[0],)


@cuda.jit(device=True)
def butterfly2(v):
    return v[0] + v[1], v[0] - v[1]


@cuda.jit(device=True)
def times(z, w):
    """A complex number times a real one."""
    return scaled(z, w, w)


@cuda.jit(device=True)
def butterfly3(v):
    s = v[1] + v[2]
    even, odd = v[0] + times(s, W3[0][0][0]), turned(times(v[1] - v[2], W3[0][1][0]))
    return v[0] + s, even + odd, even - odd


@cuda.jit(device=True)
def pair5(first, s, d, w):
    even = first + times(s[0], w[0][0]) + times(s[1], w[0][1])
    odd = turned(times(d[0], w[1][0]) + times(d[1], w[1][1]))
    return even + odd, even - odd


@cuda.jit(device=True)
def butterfly5(v):
    s, d = (v[1] + v[4], v[2] + v[3]), (v[1] - v[4], v[2] - v[3])
    a, z = pair5(v[0], s, d, W5[0])
    b, y = pair5(v[0], s, d, W5[1])
    return v[0] + s[0] + s[1], a, b, y, z


@cuda.jit(device=True)
def pair7(first, s, d, w):
    even = first + times(s[0], w[0][0]) + times(s[1], w[0][1]) + times(s[2], w[0][2])
    odd = turned(times(d[0], w[1][0]) + times(d[1], w[1][1]) + times(d[2], w[1][2]))
    return even + odd, even - odd


@cuda.jit(device=True)
def butterfly7(v):
    s, d = (v[1] + v[6], v[2] + v[5], v[3] + v[4]), (v[1] - v[6], v[2] - v[5], v[3] - v[4])
    a, z = pair7(v[0], s, d, W7[0])
    b, y = pair7(v[0], s, d, W7[1])
    c, x = pair7(v[0], s, d, W7[2])
    return v[0] + s[0] + s[1] + s[2], a, b, c, x, y, z


@cuda.jit(device=True)
def pair11(first, s, d, w):
    even = first + times(s[0], w[0][0]) + times(s[1], w[0][1]) + times(s[2], w[0][2])
    even = even + times(s[3], w[0][3]) + times(s[4], w[0][4])
    odd = times(d[0], w[1][0]) + times(d[1], w[1][1]) + times(d[2], w[1][2])
    odd = turned(odd + times(d[3], w[1][3]) + times(d[4], w[1][4]))
    return even + odd, even - odd


@cuda.jit(device=True)
def butterfly11(v):
    s = v[1] + v[10], v[2] + v[9], v[3] + v[8], v[4] + v[7], v[5] + v[6]
    d = v[1] - v[10], v[2] - v[9], v[3] - v[8], v[4] - v[7], v[5] - v[6]
    a, z = pair11(v[0], s, d, W11[0])
    b, y = pair11(v[0], s, d, W11[1])
    c, x = pair11(v[0], s, d, W11[2])
    e, w = pair11(v[0], s, d, W11[3])
    f, u = pair11(v[0], s, d, W11[4])
    return v[0] + s[0] + s[1] + s[2] + s[3] + s[4], a, b, c, e, f, u, w, x, y, z


@cuda.jit(device=True)
def pair13(first, s, d, w):
    even = first + times(s[0], w[0][0]) + times(s[1], w[0][1]) + times(s[2], w[0][2])
    even = even + times(s[3], w[0][3]) + times(s[4], w[0][4]) + times(s[5], w[0][5])
    odd = times(d[0], w[1][0]) + times(d[1], w[1][1]) + times(d[2], w[1][2])
    odd = turned(odd + times(d[3], w[1][3]) + times(d[4], w[1][4]) + times(d[5], w[1][5]))
    return even + odd, even - odd


@cuda.jit(device=True)
def butterfly13(v):
    s = v[1] + v[12], v[2] + v[11], v[3] + v[10], v[4] + v[9], v[5] + v[8], v[6] + v[7]
    d = v[1] - v[12], v[2] - v[11], v[3] - v[10], v[4] - v[9], v[5] - v[8], v[6] - v[7]
    a, z = pair13(v[0], s, d, W13[0])
    b, y = pair13(v[0], s, d, W13[1])
    c, x = pair13(v[0], s, d, W13[2])
    e, w = pair13(v[0], s, d, W13[3])
    f, u = pair13(v[0], s, d, W13[4])
    g, t = pair13(v[0], s, d, W13[5])
    return v[0] + s[0] + s[1] + s[2] + s[3] + s[4] + s[5], a, b, c, e, f, g, t, u, w, x, y, z


# -------------------------------------------------------------------------------------------------- composite radices
# Where the two parts have no common factor, the points can be dealt out so that no factors stand between the parts: a
# point is known by its remainders. Source: I. J. Good, The interaction algorithm and practical Fourier analysis (1958).


@cuda.jit(device=True)
def butterfly6(v):
    a, b = butterfly3((v[0], v[2], v[4])), butterfly3((v[3], v[5], v[1]))
    return a[0] + b[0], a[1] - b[1], a[2] + b[2], a[0] - b[0], a[1] + b[1], a[2] - b[2]


@cuda.jit(device=True)
def butterfly10(v):
    a, b = butterfly5((v[0], v[2], v[4], v[6], v[8])), butterfly5((v[5], v[7], v[9], v[1], v[3]))
    return (
        a[0] + b[0], a[1] - b[1], a[2] + b[2], a[3] - b[3], a[4] + b[4],
        a[0] - b[0], a[1] + b[1], a[2] - b[2], a[3] + b[3], a[4] - b[4],
    )  # fmt: skip


@cuda.jit(device=True)
def butterfly12(v):
    a, b, c = (
        butterfly4(v[0], v[3], v[6], v[9]),
        butterfly4(v[4], v[7], v[10], v[1]),
        butterfly4(v[8], v[11], v[2], v[5]),
    )
    p, q = butterfly3((a[0], b[0], c[0])), butterfly3((a[1], b[1], c[1]))
    r, s = butterfly3((a[2], b[2], c[2])), butterfly3((a[3], b[3], c[3]))
    return p[0], q[1], r[2], s[0], p[1], q[2], r[0], s[1], p[2], q[0], r[1], s[2]


@cuda.jit(device=True)
def butterfly15(v):
    a, b = butterfly3((v[0], v[5], v[10])), butterfly3((v[3], v[8], v[13]))
    c, d, e = butterfly3((v[6], v[11], v[1])), butterfly3((v[9], v[14], v[4])), butterfly3((v[12], v[2], v[7]))
    p = butterfly5((a[0], b[0], c[0], d[0], e[0]))
    q, r = butterfly5((a[1], b[1], c[1], d[1], e[1])), butterfly5((a[2], b[2], c[2], d[2], e[2]))
    return p[0], q[1], r[2], p[3], q[4], r[0], p[1], q[2], r[3], p[4], q[0], r[1], p[2], q[3], r[4]


def root(k: int, n: int) -> np.complex64:
    return np.complex64(np.exp(-2j * np.pi * k / n))


NINTH, NINTHS2, NINTHS4 = root(1, 9), root(2, 9), root(4, 9)
SIXTEENTH, SIXTEENTHS3 = root(1, 16), root(3, 16)
HALF = np.float32(math.sqrt(0.5))


@cuda.jit(device=True)
def butterfly9(v):
    a, b, c = butterfly3((v[0], v[3], v[6])), butterfly3((v[1], v[4], v[7])), butterfly3((v[2], v[5], v[8]))
    p = butterfly3((a[0], b[0], c[0]))
    q, r = butterfly3((a[1], b[1] * NINTH, c[1] * NINTHS2)), butterfly3((a[2], b[2] * NINTHS2, c[2] * NINTHS4))
    return p[0], q[0], r[0], p[1], q[1], r[1], p[2], q[2], r[2]


@cuda.jit(device=True)
def eighth(z):
    """z times exp(-2 pi i / 8)."""
    return complex(HALF * (z.real + z.imag), HALF * (z.imag - z.real))


@cuda.jit(device=True)
def butterfly16(v):
    a, b = butterfly4(v[0], v[4], v[8], v[12]), butterfly4(v[1], v[5], v[9], v[13])
    c, d = butterfly4(v[2], v[6], v[10], v[14]), butterfly4(v[3], v[7], v[11], v[15])
    p = butterfly4(a[0], b[0], c[0], d[0])
    q = butterfly4(a[1], b[1] * SIXTEENTH, eighth(c[1]), d[1] * SIXTEENTHS3)
    r = butterfly4(a[2], eighth(b[2]), turned(c[2]), eighth(turned(d[2])))
    s = butterfly4(a[3], b[3] * SIXTEENTHS3, eighth(turned(c[3])), turned(turned(d[3] * SIXTEENTH)))
    return p[0], q[0], r[0], s[0], p[1], q[1], r[1], s[1], p[2], q[2], r[2], s[2], p[3], q[3], r[3], s[3]


@cuda.jit(device=True)
def butterfly_of_4(v):
    return butterfly4(v[0], v[1], v[2], v[3])


BUTTERFLIES = {
    1: butterfly1, 2: butterfly2, 3: butterfly3, 4: butterfly_of_4, 5: butterfly5, 6: butterfly6, 7: butterfly7,
    8: butterfly8, 9: butterfly9, 10: butterfly10, 11: butterfly11, 12: butterfly12, 13: butterfly13, 15: butterfly15,
    16: butterfly16,
}  # fmt: skip
