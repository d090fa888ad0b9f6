"""Transpose: the columns of a matrix become its rows.

No arithmetic at all: the subject is coalesced access to device memory, and the banks of shared memory.
The room is `pmpp.kernels.transpose.ladder`, and its chapter notebooks/16_transpose.ipynb.
`transpose` takes the rung to use.
"""

from pmpp.kernels.transpose.ladder import *
from pmpp.kernels.transpose.ladder import vectorised


def transpose(x, *, out=None, stream=0):
    """The transpose of a matrix (M, N), as a device array (N, M) in C order; arguments and errors as in `vectorised`.

    >>> import numpy as np
    >>> transpose(np.float32([[1, 2, 3]])).copy_to_host()
    array([[1.],
           [2.],
           [3.]], dtype=float32)
    """
    return vectorised(x, out=out, stream=stream)
