"""Pooling: each small window of a feature map becomes one number, its largest or its mean.

Windows, padding and rounding of sizes are PyTorch's.
The rooms are `pmpp.kernels.pooling.ladder` and `pmpp.kernels.pooling.channels_last` (chapter
notebooks/46_pooling_and_activations.ipynb), and `pmpp.kernels.pooling.pooling_backward` (chapter
notebooks/78_gradients_of_pooling_and_activations.ipynb).
`max_pool2d` and `avg_pool2d`, named as in PyTorch, call the last rung, `whole_planes`, or with ``layout="NHWC"``
`channels_last.vectorised`; `backward` is their gradient.
"""

from pmpp.kernels.common.layouts import channels_last as is_channels_last
from pmpp.kernels.pooling import channels_last, pooling_backward
from pmpp.kernels.pooling.ladder import *
from pmpp.kernels.pooling.ladder import whole_planes
from pmpp.runtime.check import as_flag


def max_pool2d(
    x,
    kernel,
    stride=None,
    padding=0,
    ceil_mode=False,
    *,
    return_indices=False,
    return_positions=False,
    layout="NCHW",
    out=None,
    stream=0,
):
    """The largest element of each window; arguments, result and errors as in `whole_planes`.

    layout: "NCHW", or "NHWC" for maps (N, H, W, C), as in `channels_last`, which gives no indices and no positions.

    >>> import numpy as np
    >>> max_pool2d(np.float32([[[[1, 2], [3, 4]]]]), 2).copy_to_host()
    array([[[[4.]]]], dtype=float32)
    """
    wanted = {"return_indices": return_indices, "return_positions": return_positions}
    if is_channels_last(layout):
        for name, value in wanted.items():
            if as_flag(name, value):
                raise ValueError(f"{name} must be False for layout='NHWC', was {value!r}")
        return channels_last.vectorised(x, "max", kernel, stride, padding, ceil_mode, out=out, stream=stream)
    return whole_planes(x, "max", kernel, stride, padding, ceil_mode, **wanted, out=out, stream=stream)


def avg_pool2d(
    x, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True, *, layout="NCHW", out=None, stream=0
):
    """The mean of each window; arguments, result and errors as in `whole_planes`.

    layout: "NCHW", or "NHWC" for maps (N, H, W, C), as in `channels_last`.

    >>> import numpy as np
    >>> avg_pool2d(np.float32([[[[1, 2], [3, 4]]]]), 2).copy_to_host()
    array([[[[2.5]]]], dtype=float32)
    """
    pool = channels_last.vectorised if is_channels_last(layout) else whole_planes
    return pool(x, "average", kernel, stride, padding, ceil_mode, count_include_pad, out=out, stream=stream)


def backward(
    dy,
    x,
    op="max",
    kernel=2,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    *,
    positions=None,
    out=None,
    stream=0,
):
    """The gradient of ``x``; arguments, result and errors as in `pooling_backward.patches`.

    >>> import numpy as np
    >>> x = np.float32([[[[1, 2], [4, 3]]]])
    >>> backward(np.float32([[[[10]]]]), x, "max", 2).copy_to_host()
    array([[[[ 0.,  0.],
             [10.,  0.]]]], dtype=float32)
    """
    options = op, kernel, stride, padding, ceil_mode, count_include_pad
    return pooling_backward.patches(dy, x, *options, positions=positions, out=out, stream=stream)
