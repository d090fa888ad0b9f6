"""Half spectra: transforms of real numbers by complex ones of half the length.

The spectrum X of n real numbers is symmetric, X[n - k] = conj X[k], so that n / 2 + 1 of its values tell all. Two
neighbours are read as one complex number; from the spectrum Z of those h = n / 2 points the spectra of the even and of
the odd ones come apart, and one more stage joins them:

    E[k] = (Z[k] + conj Z[h - k]) / 2,  O[k] = (Z[k] - conj Z[h - k]) / 2i,  X[k] = E[k] + exp(-2 pi i k / n) O[k]

Source: G. D. Bergland, A fast Fourier transform algorithm for real-valued series (1968).
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.fft.butterflies import Pass, checked_axes, checked_length, roots, scaled, turned
from pmpp.kernels.fft.ladder import BLOCK, vectorised_pass
from pmpp.runtime import device

__all__ = ["irfft", "rfft"]


@cuda.jit
def apart_kernel(z, out, roots, h):
    i = cuda.grid(1)
    if i < out.size:
        line = i // (h + 1)
        k = i - line * (h + 1)
        a, b = z[line * h + (k & h - 1)], z[line * h + (h - k & h - 1)].conjugate()
        even, odd = a + b, turned(a - b)
        w = roots[k] if k < h else complex(np.float32(-1), np.float32(0))
        out[i] = scaled(even + w * odd, np.float32(0.5), np.float32(0.5))


@cuda.jit
def together_kernel(x, z, roots, h):
    i = cuda.grid(1)
    if i < z.size:
        line = i // h
        k = i - line * h
        a, b = x[line * (h + 1) + k], x[line * (h + 1) + h - k].conjugate()
        if k == 0:  # two sums of real numbers: what a caller left in their imaginary parts does not count
            a, b = complex(a.real, np.float32(0)), complex(b.real, np.float32(0))
        even, odd = a + b, (a - b) * roots[k].conjugate()
        z[i] = scaled(even - turned(odd), np.float32(0.5), np.float32(0.5))


def rfft(x, axes=1, *, stream=0):
    """The half spectrum of real numbers.

    Args:
        x: float32, contiguous, of shape (..., n) or (..., m, n); the transformed axes are powers of two.
        axes: 1 to transform along the last axis, 2 along the last two.
        stream: the stream to work on.

    Returns a complex64 device array of shape (..., n // 2 + 1) or (..., m, n // 2 + 1), as ``numpy.fft.rfft`` and
    ``rfft2`` do, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> rfft(np.float32([1, 0, 0, 0])).copy_to_host()
    array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.float32, stream=stream)
    axes = checked_axes("x", axes, x.shape)
    for n in x.shape[-axes:]:
        checked_length("each transformed axis of x", n)
    if x.shape[-1] < 2:
        raise ValueError(f"the last axis of x must have at least 2 elements, had {x.shape[-1]}")
    h = x.shape[-1] // 2
    shape = (*x.shape[:-1], h + 1)
    out = device.empty(shape, np.complex64, stream=stream)
    if not out.size:
        return out
    lines = x.size // (2 * h)
    spectrum = device.empty(lines * h, np.complex64, stream=stream)
    vectorised_pass(Pass(h, 1, lines, False), x.reshape(-1).view(np.complex64), spectrum, stream)
    flat = out.reshape(-1) if axes == 1 else device.empty(out.size, np.complex64, stream=stream)
    apart_kernel[blocks(flat.size, BLOCK), BLOCK, stream](spectrum, flat, roots(2 * h), h)
    if axes == 2:
        vectorised_pass(Pass(shape[-2], h + 1, flat.size // shape[-2], False), flat, out.reshape(-1), stream)
    return out


def irfft(x, axes=1, *, stream=0):
    """Real numbers from their half spectrum: `rfft` undone.

    Args:
        x: complex64, contiguous, of shape (..., h + 1) or (..., m, h + 1); h and m are powers of two.
        axes, stream: as in `rfft`.

    Returns a float32 device array of shape (..., 2 h) or (..., m, 2 h), without waiting for the work to be done. The
    spectrum of real numbers has no imaginary part in its first and last value; one that is there is ignored, as by
    ``numpy.fft.irfft``. Raises as `rfft`.

    >>> irfft(np.complex64([1, 1, 1])).copy_to_host()
    array([1., 0., 0., 0.], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=np.complex64, stream=stream)
    axes = checked_axes("x", axes, x.shape)
    h = x.shape[-1] - 1
    checked_length("the last axis of x, less one,", h)
    if axes == 2:
        checked_length("the last axis but one of x", x.shape[-2])
    out = device.empty((*x.shape[:-1], 2 * h), np.float32, stream=stream)
    if not out.size:
        return out
    lines, flat = math.prod(x.shape[:-1]), x.reshape(-1)
    if axes == 2:
        columns = device.empty(x.size, np.complex64, stream=stream)
        vectorised_pass(Pass(x.shape[-2], h + 1, x.size // x.shape[-2], True), flat, columns, stream)
        flat = columns
    packed = device.empty(lines * h, np.complex64, stream=stream)
    together_kernel[blocks(packed.size, BLOCK), BLOCK, stream](flat, packed, roots(2 * h), h)
    vectorised_pass(Pass(h, 1, lines, True), packed, out.reshape(-1).view(np.complex64), stream)
    return out
