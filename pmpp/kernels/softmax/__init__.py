"""Softmax: the elements of each row as shares of one, or the logarithms of these shares.

A row is read once and written once. The ladder is about where it waits until its maximum and its sum are known.
The room is `pmpp.kernels.softmax.ladder`, and its chapter notebooks/50_softmax.ipynb.
`softmax` and `log_softmax` take the rung to use.
"""

from pmpp.kernels.softmax.ladder import *
from pmpp.kernels.softmax.ladder import vectorised


def softmax(x, axis=-1, *, out=None, stream=0):
    """``exp(x - max) / sum(exp(x - max))`` along ``axis``; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> softmax(np.float32([7, 7, -np.inf])).copy_to_host()
    array([0.5, 0.5, 0. ], dtype=float32)
    """
    return vectorised(x, axis, out=out, stream=stream)


def log_softmax(x, axis=-1, *, out=None, stream=0):
    """``x - max - log(sum(exp(x - max)))`` along ``axis``; arguments, result and errors as in `vectorised`.

    >>> import numpy as np
    >>> log_softmax(np.float32([7, -np.inf])).copy_to_host()
    array([  0., -inf], dtype=float32)
    """
    return vectorised(x, axis, log=True, out=out, stream=stream)
