"""Attention: for each query the mean of all values, weighted by a softmax of the query's products with the keys.

The room is `pmpp.kernels.attention.ladder` (chapter notebooks/75_attention.ipynb): from scores that are written to
memory to tiles that never leave the multiprocessor. `attention` takes the rung to use.
"""

from pmpp.kernels.attention.ladder import *
from pmpp.kernels.attention.ladder import skipping


def attention(q, k, v, causal=False, window=None, scale=None, *, out=None, stream=0):
    """``softmax(scale * q @ k.T) @ v`` for each head; arguments, result and errors as in `skipping`.

    >>> import numpy as np
    >>> q, k = np.zeros((1, 2, 3, 8), np.float32), np.ones((1, 1, 3, 8), np.float32)
    >>> v = np.float32([3, 6, 9]).reshape(1, 1, 3, 1).repeat(8, 3)
    >>> attention(q, k, v, causal=True).copy_to_host()[0, 1, :, 0]
    array([3. , 4.5, 6. ], dtype=float32)
    """
    return skipping(q, k, v, causal, window, scale, out=out, stream=stream)
