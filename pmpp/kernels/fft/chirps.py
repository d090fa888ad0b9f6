"""Bluestein's way: a transform of any length as a convolution, and a convolution by transforms of a convenient length.

Since j k = (j^2 + k^2 - (k - j)^2) / 2, with the *chirp* c[k] = exp(-i pi k^2 / n),

    X[k] = sum over j of x[j] exp(-2 pi i j k / n) = c[k] * sum over j of (x[j] c[j]) * conj(c[k - j]).

That is a convolution with the conjugate chirp, in which k - j goes from 1 - n to n - 1. So around a circle of m points,
m at least 2 n - 1, no two of these fall on the same place. Source: L. I. Bluestein, A linear filtering approach to the
computation of the discrete Fourier transform (1968).

All tables are computed in float64 and rounded once.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.fft.butterflies import TABLES
from pmpp.runtime import device


def exact_chirp(n: int) -> np.ndarray:
    """exp(-i pi k^2 / n) for k < n, in complex128: k^2 counts modulo 2 n, exactly."""
    k = np.arange(n, dtype=np.int64)
    return np.exp(-1j * np.pi * (k * k % (2 * n)) / n)


def exact_spectrum(n: int, m: int) -> np.ndarray:
    """The transform of the conjugate chirp around a circle of m points, in complex128."""
    chirp, circle = exact_chirp(n).conj(), np.zeros(m, np.complex128)
    circle[:n] = chirp
    circle[m - n + 1 :] = chirp[:0:-1]
    return np.fft.fft(circle)


@functools.lru_cache(256)
def gain(n: int, m: int) -> float:
    """How much larger than a transform of n points the convolution can make its input, in the 2-norm."""
    return float(np.abs(exact_spectrum(n, m)).max() / np.sqrt(n))


def _words(values: np.ndarray) -> typing.Any:
    return device.to_device(np.ascontiguousarray(values, np.complex64).reshape(-1).view(np.int64))


@device.cached(TABLES)
def chirps(n: int, m: int, scale: float) -> tuple:
    """Device arrays of words: the chirp, the spectrum over m, and the chirp times ``scale``."""
    chirp = exact_chirp(n)
    return _words(chirp), _words(exact_spectrum(n, m) / m), _words(chirp * scale)


@device.cached(TABLES)
def matrix_chirps(n: int, a: int, b: int, scale: float) -> tuple:
    """As `chirps` for m = a b, with the spectrum's value k1 + a k2 at place k1 b + k2, and a's and b's `twist`."""
    chirp = exact_chirp(n)
    spectrum = exact_spectrum(n, a * b).reshape(b, a).T / (a * b)
    return _words(chirp), _words(spectrum), _words(chirp * scale), _words(exact_twist(a, b))


def exact_twist(a: int, b: int) -> np.ndarray:
    """The factors between transforms of a and of b points: exp(-2 pi i k c / (a b)) at place (k, c)."""
    k, c = np.arange(a, dtype=np.int64)[:, None], np.arange(b, dtype=np.int64)
    return np.exp(-2j * np.pi * (k * c % (a * b)) / (a * b))


@device.cached(TABLES)
def twist(a: int, b: int) -> typing.Any:
    """`exact_twist` turned on its side, as words: the factor of result k of column c at place (c, k)."""
    return _words(exact_twist(a, b).T)
