"""Normalisation: values are shifted to mean 0 and scaled to variance 1, by channel or by row; and the gradients.

The rooms are `batchnorm`, over the channels of a batch, and `layernorm`, over the rows of a matrix. Both use
`pmpp.kernels.normalisation.moments`. `batchnorm_channels_last` is the first of a batch in another order. They are
taught in notebooks/54_normalisation.ipynb. `layer_norm` is the rung to use, and `batch_norm` chooses one by the layout.

The rooms `batchnorm_backward`, `batchnorm_channels_last_backward` and `layernorm_backward` have the gradients, for
training. They are taught in notebooks/84_gradients_of_normalisation.ipynb. `batch_norm_backward` and
`layer_norm_backward` take their rungs to use.
"""

from pmpp.kernels.common.layouts import channels_last
from pmpp.kernels.normalisation import (
    batchnorm,
    batchnorm_backward,
    batchnorm_channels_last,
    batchnorm_channels_last_backward,
    layernorm,
    layernorm_backward,
)

layer_norm = layernorm.vectorised


def batch_norm(
    x,
    weight,
    bias,
    running_mean=None,
    running_var=None,
    *,
    training=True,
    momentum=0.1,
    eps=1e-5,
    relu=False,
    return_moments=False,
    layout="NCHW",
    out=None,
    stream=0,
):
    """Normalise every channel of a batch; arguments, result and errors as in `batchnorm.vectorised`.

    layout: "NCHW" for channels at axis 1, or "NHWC" for channels at the last axis, as in `batchnorm_channels_last`.
        Batches with fewer or more axes than four are meant, too.

    >>> import numpy as np
    >>> x = np.float32([[[[1, 10], [3, 30]]]])  # an image of 1 x 2 places with two channels
    >>> batch_norm(x, np.ones(2, np.float32), np.zeros(2, np.float32), eps=0, layout="NHWC").copy_to_host().tolist()
    [[[[-1.0, -1.0], [1.0, 1.0]]]]
    """
    normalise = batchnorm_channels_last.vectorised if channels_last(layout) else batchnorm.vectorised
    options = {"training": training, "momentum": momentum, "eps": eps, "relu": relu, "return_moments": return_moments}
    return normalise(x, weight, bias, running_mean, running_var, **options, out=out, stream=stream)


def batch_norm_backward(dy, x, weight, *, eps=1e-5, mean=None, invstd=None, layout="NCHW", stream=0):
    """The gradients of a batch normalisation in training, by `vectorised` of the layout's room.

    Args:
        dy: the gradient of the result, in the shape and dtype of ``x``, contiguous.
        x: float32, float16 or bfloat16 of shape (N, C) or (N, C, ...), contiguous: what was normalised.
        weight: float32 of shape (C,).
        eps: what was added to the variance, 0 or more. It counts only where the moments are found here.
        mean, invstd: float32 of shape (C,), both or neither: what `batch_norm` returns for return_moments=True. Without
            them they are found here, by another read of x.
        layout: "NCHW", or "NHWC" for batches of shape (N, C) or (N, ..., C).
        stream: the stream to work on.

    Returns (dx, dweight, dbias), device arrays, without waiting for the work to be done. The same call gives the same
    bits. There is no gradient through relu=True of `batch_norm`: use `pmpp.kernels.activation` behind it.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> gradients = batch_norm_backward(np.float32([[1], [3]]), np.float32([[1], [3]]), np.float32([1]), eps=0)
    >>> [gradient.copy_to_host().ravel().tolist() for gradient in gradients]  # dx, dweight, dbias
    [[0.0, 0.0], [2.0], [4.0]]
    """
    room = batchnorm_channels_last_backward if channels_last(layout) else batchnorm_backward
    p = room.arguments(dy, x, weight, eps=eps, mean=mean, invstd=invstd, stream=stream)
    room.vectorised.run(p)
    return (p.result, *p.sums)


def layer_norm_backward(dy, x, weight, *, eps=1e-5, mean=None, invstd=None, stream=0):
    """The gradients of a layer normalisation, by `layernorm_backward.vectorised`.

    Args:
        dy: the gradient of the result, in the shape and dtype of ``x``, contiguous in C order.
        x: a matrix of float32, float16 or bfloat16, shape (M, N), contiguous in C order: what was normalised.
        weight: float32 of shape (N,).
        eps: what was added to the variance, 0 or more. It counts only where the moments are found here.
        mean, invstd: float32 of shape (M,), both or neither: what `layer_norm` returns for return_moments=True. Without
            them they are found here, by another read of x.
        stream: the stream to work on.

    Returns (dx, dweight, dbias), device arrays, without waiting for the work to be done. The same call gives the same
    bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> gradients = layer_norm_backward(np.float32([[1, 3]]), np.float32([[1, 3]]), np.float32([1, 1]), eps=0)
    >>> [gradient.copy_to_host().ravel().tolist() for gradient in gradients]  # dx, dweight, dbias
    [[0.0, 0.0], [-1.0, 3.0], [1.0, 3.0]]
    """
    p = layernorm_backward.arguments(dy, x, weight, eps=eps, mean=mean, invstd=invstd, stream=stream)
    layernorm_backward.vectorised.run(p)
    return (p.result, *p.sums)


__all__ = [
    "batch_norm",
    "batch_norm_backward",
    "batchnorm",
    "batchnorm_backward",
    "batchnorm_channels_last",
    "batchnorm_channels_last_backward",
    "layer_norm",
    "layer_norm_backward",
    "layernorm",
    "layernorm_backward",
]
