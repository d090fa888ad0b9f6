"""Reduction: the sum, the maximum or the minimum of a vector.

The threads of a block and the blocks of a grid agree on one number: trees, warp shuffles, atomics, and a result that is
the same in every run.
The room is `pmpp.kernels.reduction.ladder`, and its chapter notebooks/30_reduction.ipynb. Along some axes of an array,
with any operator, the room `pmpp.kernels.reduction.over_axes` reduces, of notebooks/33_reduction_over_axes.ipynb. Sums
along axes alone are the room `pmpp.kernels.reduction.axis_sum`, of notebooks/88_a_tape.ipynb.
`sum`, `max` and `min` take the rung to use.
"""

from pmpp.kernels.reduction.ladder import *
from pmpp.kernels.reduction.ladder import vectorised


def sum(x, *, stream=0):
    """The sum of a vector, as a device array of shape (1,); arguments and errors as in `vectorised`.

    >>> import numpy as np
    >>> sum(np.float32([1, 2, 4])).copy_to_host()
    array([7.], dtype=float32)
    """
    return vectorised(x, "sum", stream=stream)


def max(x, *, stream=0):
    """The largest element of a vector that has one, as a device array of shape (1,); NaN if there is a NaN.

    >>> import numpy as np
    >>> max(np.float32([1, 4, 2])).copy_to_host()
    array([4.], dtype=float32)
    """
    return vectorised(x, "max", stream=stream)


def min(x, *, stream=0):
    """The smallest element of a vector that has one, as a device array of shape (1,); NaN if there is a NaN.

    >>> import numpy as np
    >>> min(np.float32([2, 1, 4])).copy_to_host()
    array([1.], dtype=float32)
    """
    return vectorised(x, "min", stream=stream)
