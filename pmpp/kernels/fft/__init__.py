"""FFT: the discrete Fourier transform of complex64, along one axis or two, forward and inverse.

The ladder is about trips to memory. `pmpp.kernels.fft.real` has transforms of real numbers.
The room is `pmpp.kernels.fft.ladder`, and its chapter notebooks/58_fft.ipynb.
"""

from pmpp.kernels.fft.ladder import *
