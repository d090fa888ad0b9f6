"""Dropout: elements set to 0 at random, and the same ones again on the way back, without a mask that is kept.

The room is `pmpp.kernels.dropout.ladder`, and its chapter notebooks/80_random_numbers.ipynb.
"""

import numpy as np

from pmpp.kernels.dropout.ladder import *
from pmpp.kernels.dropout.ladder import vectorised
from pmpp.runtime import device


def dropout(x, p=0.5, *, seed, offset=0, out=None, stream=0):
    """``x / (1 - p)`` where a random number of the element is at least ``p``, else 0. Arguments as in `vectorised`.

    Args:
        x, p, seed, offset, stream: as in `vectorised`.
        out: a device array like ``x``, or None to allocate one. It may be ``x``, and is otherwise apart from ``x``.

    >>> import numpy as np
    >>> dropout(np.ones(6, np.float32), 0.5, seed=3).copy_to_host()
    array([2., 0., 2., 2., 0., 2.], dtype=float32)
    """
    return vectorised(x, p, seed, offset, out=out, stream=stream)


def backward(dy, p=0.5, *, seed, offset=0, out=None, stream=0):
    """The gradient of `dropout` with the same ``p``, ``seed`` and ``offset``: the very same elements are 0.

    Args:
        dy: the gradient of what `dropout` returned, float32, contiguous.
        p, seed, offset, stream: as they were given to `dropout`.
        out: a device array like ``dy``, or None to allocate one. It may be ``dy``, and is otherwise apart from ``dy``.

    >>> import numpy as np
    >>> backward(np.ones(6, np.float32), 0.5, seed=3).copy_to_host()
    array([2., 0., 2., 2., 0., 2.], dtype=float32)
    """
    dy = device.as_input("dy", dy, dtypes=np.float32, stream=device.as_stream(stream))
    out = device.as_output(
        "out", out, shape=dy.shape, dtype=np.float32, apart={"dy": dy}, may_be=("dy",), stream=stream
    )
    return vectorised(dy, p, seed, offset, out=out, stream=stream)
