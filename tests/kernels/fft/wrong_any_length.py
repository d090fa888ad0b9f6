"""Wrong transforms of lines of any length."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.fft.any_length import factor
from pmpp.kernels.fft.butterflies import roots
from pmpp.kernels.fft.chirps import exact_chirp, exact_spectrum
from pmpp.kernels.fft.ladder import reference as transform_of
from pmpp.runtime import device
from tests.support.wrong import WrongRung

POINTS = 256  # the longest line here


def smallest_factor(n):
    """The smallest prime factor of n, and the rest."""
    a = next((p for p in range(2, n) if n % p == 0), n)
    return max(a, 1), n // max(a, 1)


def of_two_factors(kernel):
    """``kernel`` as a function of x and inverse, launched with a block for each line of a b points, b threads."""

    def transform(x, inverse=False, norm="backward"):
        x = device.to_device(x)
        out, n = device.empty(x.shape, np.complex64), x.shape[-1]
        a, b = smallest_factor(n)
        if x.size:
            table = roots(n, inverse)
            kernel[x.size // n, max(a, b)](
                x.reshape(-1), out.reshape(-1), table, a, b, np.float32(factor(n, inverse, norm))
            )
        return out

    transform.__name__ = kernel.py_func.__name__
    return transform


@cuda.jit(device=True)
def scaled(z, scale):
    return complex(z.real * scale, z.imag * scale)


def two_passes(name, barrier=True, twiddle=True, in_order=True, short=0):
    """Columns of ``a`` points, factors, rows of ``b`` points; with one of its parts missing."""

    @cuda.jit
    def kernel(x, out, roots, a, b, scale):
        points = cuda.shared.array(POINTS, np.complex64)
        t, first = cuda.threadIdx.x, cuda.blockIdx.x * a * b
        if t < b:
            for k in range(a):
                total = np.complex64(0)
                for j in range(a):
                    total += x[first + j * b + t] * roots[j * k % a * b]
                points[k * b + t] = total * roots[t * k if twiddle else 0]
        if barrier:
            cuda.syncthreads()
        if t < a:
            for k in range(b - short):
                total = np.complex64(0)
                for j in range(b):
                    total += points[t * b + j] * roots[j * k % b * a]
                out[first + (t + a * k if in_order else t * b + k)] = scaled(total, scale)

    kernel.py_func.__name__ = name
    return of_two_factors(kernel)


def by_convolution(name, points_of, power=2):
    """A convolution around a circle of ``points_of(n)`` points, whose chirp turns by j to the ``power``.

    The inverse is that of the conjugates, conjugated: ``real`` and ``imag`` are what both parts are multiplied by.
    """

    @cuda.jit
    def kernel(x, out, turns, wave, n, m, real, imag):
        i = cuda.grid(1)
        if i < out.size:
            line, k = i // n, i % n
            total = np.complex64(0)
            for j in range(n):
                total += x[line * n + j] * turns[j] * wave[(k - j + m) % m]
            z = total * turns[k]
            out[i] = complex(z.real * real, z.imag * imag)

    def transform(x, inverse=False, norm="backward"):
        x = device.to_device(x)
        n = x.shape[-1]
        m = points_of(n)
        k = np.arange(n)
        chirp = exact_chirp(n) if power == 2 else np.exp(-1j * np.pi * k / n)
        wave = np.zeros(m, np.complex128)
        if m >= 2 * n - 1:
            wave = np.fft.ifft(exact_spectrum(n, m))
        else:  # what lies beyond the circle falls on other places
            wave[:n] = exact_chirp(n).conj()
            for j in range(1, n):
                wave[-j % m] = exact_chirp(n)[j].conj()
        out = device.empty(x.shape, np.complex64)
        if x.size:
            given = x.copy_to_host().conj() if inverse else x.copy_to_host()
            arrays = [device.to_device(array.astype(np.complex64)) for array in (given.reshape(-1), chirp, wave)]
            scale = factor(n, inverse, norm)
            parts = np.float32(scale), np.float32(-scale if inverse else scale)
            kernel[-(-x.size // 64), 64](arrays[0], out.reshape(-1), *arrays[1:], n, m, *parts)
        return out

    transform.__name__ = name
    return transform


@cuda.jit
def lines_of_a_block_kernel(x, out, roots, a, b, scale):
    n, i = a * b, cuda.grid(1)
    if i < out.size + 1:  # one too many
        k = i % n
        total = np.complex64(0)
        for j in range(n):
            total += x[i - k + j] * roots[j * k % n]
        out[i] = scaled(total, scale)


def one_thread_too_many(x, inverse=False, norm="backward"):
    x = device.to_device(x)
    out, n = device.empty(x.shape, np.complex64), x.shape[-1]
    if x.size:
        flat = x.reshape(-1), out.reshape(-1)
        lines_of_a_block_kernel[x.size // 32 + 1, 32](*flat, roots(n, inverse), 1, n, np.float32(1))
    return out


def norm_forgotten(x, inverse=False, norm="backward"):
    """Divides each inverse by n, whatever the norm is."""
    return device.to_device(transform_of(device.to_host(x), inverse).astype(np.complex64))


def as_long_as_the_line(n):
    return n


def long_enough(n):
    return 2 * n


RUNGS = [
    WrongRung(two_passes("no_barrier_between_the_passes", barrier=False), "race"),
    WrongRung(two_passes("no_factors_between_the_passes", twiddle=False), "wrong result"),
    WrongRung(two_passes("digits_left_reversed", in_order=False), "wrong result"),
    WrongRung(two_passes("last_results_missing", short=1), "wrong result"),
    WrongRung(by_convolution("a_circle_too_short", as_long_as_the_line), "wrong result"),
    WrongRung(by_convolution("a_chirp_without_its_square", long_enough, power=1), "wrong result"),
    WrongRung(one_thread_too_many, "out of bounds"),
    WrongRung(norm_forgotten, "wrong result"),
]
# What these are made of, with nothing exchanged: each wrong one is so for the part that is.
RIGHT = [two_passes("two_passes"), by_convolution("a_convolution", long_enough)]
