"""Pooling: each small window of a feature map becomes one number, its largest or its mean.

Windows, padding and rounding of sizes are PyTorch's.
The room is `pmpp.kernels.pooling.ladder`, and its chapter notebooks/46_pooling_and_activations.ipynb.
`max_pool2d` and `avg_pool2d`, named as in PyTorch, call the last rung, `whole_planes`.
"""

from pmpp.kernels.pooling.ladder import *
from pmpp.kernels.pooling.ladder import whole_planes


def max_pool2d(x, kernel, stride=None, padding=0, ceil_mode=False, *, return_indices=False, out=None, stream=0):
    """The largest element of each window; arguments, result and errors as in `whole_planes`.

    >>> import numpy as np
    >>> max_pool2d(np.float32([[[[1, 2], [3, 4]]]]), 2).copy_to_host()
    array([[[[4.]]]], dtype=float32)
    """
    return whole_planes(
        x, "max", kernel, stride, padding, ceil_mode, return_indices=return_indices, out=out, stream=stream
    )


def avg_pool2d(x, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True, *, out=None, stream=0):
    """The mean of each window; arguments, result and errors as in `whole_planes`.

    >>> import numpy as np
    >>> avg_pool2d(np.float32([[[[1, 2], [3, 4]]]]), 2).copy_to_host()
    array([[[[2.5]]]], dtype=float32)
    """
    return whole_planes(x, "average", kernel, stride, padding, ceil_mode, count_include_pad, out=out, stream=stream)
