"""Convolution: each element of an image becomes a weighted sum of its neighbours.

One image and one mask. `pmpp.kernels.convolution.dimensions` has the same for one and for three dimensions. Layers of
many channels and filters are another subject, `pmpp.kernels.convolution_layer`.
The room is `pmpp.kernels.convolution.ladder`, and its chapter notebooks/24_convolution.ipynb.
`convolve` takes the rung to use.
"""

from pmpp.kernels.convolution.ladder import *
from pmpp.kernels.convolution.ladder import separable, vectorised


def convolve(x, mask, border="zero", *, out=None, stream=0):
    """``x`` convolved with ``mask``, or with the outer product of a pair of vectors; arguments as in `separable`.

    >>> import numpy as np
    >>> convolve(np.float32([[1, 2, 3]]), np.float32([[0, 0, 1]])).copy_to_host()
    array([[2., 3., 0.]], dtype=float32)
    """
    best = separable if isinstance(mask, tuple) else vectorised
    return best(x, mask, border, out=out, stream=stream)
