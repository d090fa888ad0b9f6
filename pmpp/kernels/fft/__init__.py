"""FFT: the discrete Fourier transform of complex64, along one axis or two, forward and inverse.

The ladder is about trips to memory. `pmpp.kernels.fft.real` has transforms of real numbers.
The room is `pmpp.kernels.fft.ladder`, and its chapter notebooks/58_fft.ipynb. Lengths that are no power of two have a
room of their own, `pmpp.kernels.fft.any_length`, with notebooks/60_fft_of_any_length.ipynb; `any_length_real` has those
of real numbers, and `any_length_planes` those along any axes. `pmpp.kernels.fft.one_trip`, with
notebooks/61_fft_in_one_trip.ipynb, has short and long lines of powers of two in the fewest trips through memory,
and `one_trip_real` those of real numbers.
`fft`, `ifft`, `rfft` and `irfft` take any length, and the room and the rung to use.
"""

import numpy as np

from pmpp.kernels.fft import any_length, any_length_real, one_trip, one_trip_real, real
from pmpp.kernels.fft.any_length_planes import fftn
from pmpp.kernels.fft.butterflies import checked_axes
from pmpp.kernels.fft.ladder import *
from pmpp.kernels.fft.ladder import vectorised
from pmpp.runtime import device


def fft(x, axes=1, *, norm="backward", out=None, stream=0):
    """The transform along the last axis or the last two.

    Args:
        x: complex64, contiguous, of any number of dimensions. Each transformed axis has 1 to 2^26 points; if all are
            powers of two and ``norm`` is "backward", one may have 2^27. As all of CUDA's complex arrays, it begins at a
            multiple of 8 bytes, and so does ``out``.
        axes: 1 to transform along the last axis, 2 along the last two. All others are a batch.
        norm: what is divided by the number of points n, as in NumPy: with "backward" the inverse, with "forward" the
            forward transform; with "ortho" both are divided by its square root.
        out: a complex64 device array of x's shape, apart from ``x`` in memory, or None to allocate one. Along two axes
            it must be None, unless both are powers of two and ``norm`` is "backward".
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. An infinity or a NaN spoils its own transform and no
    other.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> fft(np.complex64([1, 1, 1])).copy_to_host()
    array([3.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    return _transform(x, False, axes, norm, out, stream)


def ifft(x, axes=1, *, norm="backward", out=None, stream=0):
    """The inverse transform; arguments, result and errors as in `fft`.

    >>> ifft(np.complex64([4, 0, 0, 0])).copy_to_host().real
    array([1., 1., 1., 1.], dtype=float32)
    """
    return _transform(x, True, axes, norm, out, stream)


def _transform(x, inverse, axes, norm, out, stream):
    x = device.as_input("x", x, dtypes=np.complex64, stream=device.as_stream(stream))
    axes = checked_axes("x", axes, x.shape)
    powers = _powers_of_two(x.shape[-axes:])
    if powers and _backward(norm) and (axes == 2 or x.shape[-1] > any_length.MOST):
        return vectorised(x, inverse, axes, out=out, stream=stream)
    if axes == 1:
        rung = one_trip.short_lines if powers else any_length.fused
        return rung(x, inverse, norm, out=out, stream=stream)
    if out is not None:
        raise ValueError('out must be None for two axes that are not both powers of two with norm="backward"')
    return fftn(x, (-2, -1), inverse, norm, stream=stream)


def _powers_of_two(lengths):
    """Whether the rooms for powers of two have these lengths. They refuse an axis without elements by name."""
    return all(n & (n - 1) == 0 for n in lengths)


def _backward(norm):
    return isinstance(norm, str) and norm == "backward"


def rfft(x, axes=1, *, norm="backward", stream=0):
    """The half spectrum of real numbers.

    Args:
        x: float32, contiguous, of shape (..., n) or (..., m, n).
        axes, norm, stream: as in `fft`.

    Returns a complex64 device array of shape (..., n // 2 + 1) or (..., m, n // 2 + 1), as ``numpy.fft.rfft`` and
    ``rfft2`` do, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> rfft(np.float32([1, 0, 0])).copy_to_host()
    array([1.+0.j, 1.+0.j], dtype=complex64)
    """
    x = device.as_input("x", x, dtypes=np.float32, stream=device.as_stream(stream))
    axes = checked_axes("x", axes, x.shape)
    powers = _powers_of_two(x.shape[-axes:])
    if powers and _backward(norm) and x.shape[-1] > 1 and (axes == 2 or x.shape[-1] > any_length.MOST):
        return real.rfft(x, axes, stream=stream)
    half = (one_trip_real if powers and axes == 1 else any_length_real).rfft(x, norm, stream=stream)
    return half if axes == 1 else fftn(half, (-2,), False, norm, stream=stream)


def irfft(x, axes=1, *, n=None, norm="backward", stream=0):
    """Real numbers from their half spectrum: `rfft` undone.

    Args:
        x: complex64, contiguous, of shape (..., n // 2 + 1) or (..., m, n // 2 + 1).
        axes, norm, stream: as in `fft`.
        n: how many real numbers a line has; by default the even number, 2 (x.shape[-1] - 1).

    Returns a float32 device array of shape (..., n) or (..., m, n), without waiting for the work to be done. The
    spectrum of real numbers has no imaginary part in its first value, nor, if n is even, in its last one; one that is
    there is ignored, as by ``numpy.fft.irfft``. Raises as `rfft`.

    >>> irfft(np.complex64([1, 1]), n=3).copy_to_host()
    array([1., 0., 0.], dtype=float32)
    """
    x = device.as_input("x", x, dtypes=np.complex64, stream=device.as_stream(stream))
    axes = checked_axes("x", axes, x.shape)
    h = x.shape[-1] - 1
    powers = n is None and h > 0 and _powers_of_two((h, *x.shape[-axes:-1]))
    if powers and _backward(norm) and (axes == 2 or 2 * h > any_length.MOST):
        return real.irfft(x, axes, stream=stream)
    if powers and axes == 1:
        return one_trip_real.irfft(x, norm, stream=stream)
    whole = x if axes == 1 else fftn(x, (-2,), True, norm, stream=stream)
    return any_length_real.irfft(whole, n, norm, stream=stream)
