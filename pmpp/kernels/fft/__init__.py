"""FFT: the discrete Fourier transform of complex64, along one axis or two, forward and inverse.

The ladder is about trips to memory. `pmpp.kernels.fft.real` has transforms of real numbers.
The room is `pmpp.kernels.fft.ladder`, and its chapter notebooks/58_fft.ipynb. Lengths that are no power of two have a
room of their own, `pmpp.kernels.fft.any_length`, with notebooks/60_fft_of_any_length.ipynb.
`fft`, `ifft`, `rfft` and `irfft` take the rung to use.
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
