"""FFT: the discrete Fourier transform of complex64, along one axis or two, and half spectra of float32.

Room: ``ladder``, for chapter 58; ``real`` has the half spectra. ``fft`` and ``ifft`` take the rung to use, ``rfft`` and
``irfft`` its kernels.
"""

from pmpp.kernels.fft.ladder import *
from pmpp.kernels.fft.ladder import vectorised
from pmpp.kernels.fft.real import *


def fft(x, axes=1, *, out=None, stream=0):
    """The transform along the last axis or the last two; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> fft(np.complex64([1, 1, 1, 1])).copy_to_host()
    array([4.+0.j, 0.+0.j, 0.+0.j, 0.+0.j], dtype=complex64)
    """
    return vectorised(x, False, axes, out=out, stream=stream)


def ifft(x, axes=1, *, out=None, stream=0):
    """The inverse transform, divided by the number of points; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> ifft(np.complex64([4, 0, 0, 0])).copy_to_host()
    array([1.+0.j, 1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return vectorised(x, True, axes, out=out, stream=stream)
