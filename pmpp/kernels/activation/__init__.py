"""Activations: a function of one number, applied to each element, and a bias before it.

ReLU, GELU and others with their derivatives, alone and at the end of another kernel.
The rooms are `pmpp.kernels.activation.ladder` (chapter notebooks/46_pooling_and_activations.ipynb) and
`pmpp.kernels.activation.activation_backward` (chapter notebooks/78_gradients_of_pooling_and_activations.ipynb).
`relu`, `leaky_relu`, `sigmoid`, `tanh`, `gelu`, `gelu_tanh` and `silu` take the rung to use. Each is called as
``relu(x, bias=None, *, out=None, stream=0)``, with arguments, result and errors as in `fused`. `backward` is the
gradient of all of them.
"""

from pmpp.kernels.activation import activation_backward
from pmpp.kernels.activation.ladder import *
from pmpp.kernels.activation.ladder import fused


def relu(x, bias=None, *, out=None, stream=0):
    """``max(x + bias, 0)``; NaN stays NaN.

    >>> import numpy as np
    >>> relu(np.float32([-2, 0, 2])).copy_to_host()
    array([0., 0., 2.], dtype=float32)
    """
    return fused(x, "relu", bias, out=out, stream=stream)


def leaky_relu(x, bias=None, *, slope=0.01, out=None, stream=0):
    """``v`` where ``v = x + bias`` is positive, ``slope * v`` elsewhere.

    >>> import numpy as np
    >>> leaky_relu(np.float32([-2, 0, 2]), slope=0.25).copy_to_host()
    array([-0.5,  0. ,  2. ], dtype=float32)
    """
    return fused(x, "leaky_relu", bias, slope=slope, out=out, stream=stream)


def sigmoid(x, bias=None, *, out=None, stream=0):
    """``1 / (1 + exp(-(x + bias)))``. Kernels call `logistic`, the same for one number.

    >>> import numpy as np
    >>> sigmoid(np.float32([0, 200, -np.inf])).copy_to_host()
    array([0.5, 1. , 0. ], dtype=float32)
    """
    return fused(x, "sigmoid", bias, out=out, stream=stream)


def tanh(x, bias=None, *, out=None, stream=0):
    """The hyperbolic tangent of ``x + bias``.

    >>> import numpy as np
    >>> tanh(np.float32([0, 20, -np.inf])).copy_to_host()
    array([ 0.,  1., -1.], dtype=float32)
    """
    return fused(x, "tanh", bias, out=out, stream=stream)


def gelu(x, bias=None, *, out=None, stream=0):
    """``v`` times the probability that a standard normal number is below ``v = x + bias``, by the error function.

    >>> import numpy as np
    >>> gelu(np.float32([0, 20])).copy_to_host()
    array([ 0., 20.], dtype=float32)
    """
    return fused(x, "gelu", bias, out=out, stream=stream)


def gelu_tanh(x, bias=None, *, out=None, stream=0):
    """The approximation of `gelu` by a hyperbolic tangent: PyTorch's ``gelu(x, approximate="tanh")``.

    >>> import numpy as np
    >>> gelu_tanh(np.float32([0, 20])).copy_to_host()
    array([ 0., 20.], dtype=float32)
    """
    return fused(x, "gelu_tanh", bias, out=out, stream=stream)


def silu(x, bias=None, *, out=None, stream=0):
    """``v`` times its sigmoid, where ``v = x + bias``; also called swish.

    >>> import numpy as np
    >>> silu(np.float32([0, 200])).copy_to_host()
    array([  0., 200.], dtype=float32)
    """
    return fused(x, "silu", bias, out=out, stream=stream)


def backward(dy, x, function="relu", bias=None, *, return_bias_gradient=False, slope=0.01, out=None, stream=0):
    """The gradient of ``x``, and the bias's if asked for: arguments and result as in `activation_backward.fused`.

    >>> import numpy as np
    >>> backward(np.float32([10, 20]), np.float32([-1, 2]), "relu").copy_to_host()
    array([ 0., 20.], dtype=float32)
    """
    more = {"return_bias_gradient": return_bias_gradient, "slope": slope}
    return activation_backward.fused(dy, x, function, bias, **more, out=out, stream=stream)
