"""Linear layers: y = x Wᵀ + b, and the gradients of x, W and b.

The rooms are `ladder`, the layer, and `linear_gradients`; both are taught in notebooks/74_linear.ipynb. The product
kernel behind them is `products`. `linear` and `linear_backward` take the rungs to use.
"""

from pmpp.kernels.linear import linear_gradients as _gradients
from pmpp.kernels.linear.ladder import *
from pmpp.kernels.linear.ladder import by_shape
from pmpp.kernels.linear.products import launch as _launch
from pmpp.runtime import device as _device


def linear(x, weight, bias=None, *, activation=None, out=None, stream=0):
    """A linear layer: arguments, result and errors as in `by_shape`.

    >>> import numpy as np
    >>> linear(np.float32([[1, 2]]), np.float32([[3, 4], [-5, 1]]), activation="relu").copy_to_host()
    array([[11.,  0.]], dtype=float32)
    """
    return by_shape(x, weight, bias, activation, out=out, stream=stream)


def linear_backward(dy, x, weight, *, need=("x", "weight", "bias"), stream=0):
    """The gradients of a linear layer y = x Wᵀ + b, in as few launches as they take.

    Args:
        dy: float32, shape (N, out): the gradient of y; C order, as all arrays.
        x: float32, shape (N, in): what the layer was applied to; None will do where ``need`` has no "weight".
        weight: float32, shape (out, in); None will do where ``need`` has no "x".
        need: a tuple of those that are wanted: "x", "weight", "bias".
        stream: the stream to work on.

    Returns (dx, dweight, dbias), device arrays, or None for what ``need`` leaves out, without waiting for the work to
    be done. The sums over dy's rows are a by-product of the weights' gradient. The same call gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> import numpy as np
    >>> dx, dweight, dbias = linear_backward(np.float32([[1, 10]]), np.float32([[2, 3]]), np.float32([[1, 1], [0, 5]]))
    >>> dx.copy_to_host(), dweight.copy_to_host(), dbias.copy_to_host()
    (array([[ 1., 51.]], dtype=float32), array([[ 2.,  3.],
           [20., 30.]], dtype=float32), array([ 1., 10.], dtype=float32))
    """
    stream = _device.as_stream(stream)
    if not isinstance(need, tuple | list):
        raise TypeError(f"need must be a tuple of 'x', 'weight' and 'bias', was {need!r}")
    if not all(isinstance(one, str) and one in _gradients.GRADIENTS for one in need):
        raise ValueError(f"need must be a tuple of 'x', 'weight' and 'bias', was {need!r}")
    optional = [name for name, used_for in (("x", "weight"), ("weight", "x")) if used_for not in need]
    dy, x, weight = _gradients.checked(dy, x, weight, stream, optional)
    rows, outputs = dy.shape
    dx = dweight = dbias = None
    if "bias" in need:
        dbias = _device.empty(outputs, "float32", stream=stream)
    if "weight" in need:
        dweight = _device.empty((outputs, x.shape[1]), "float32", stream=stream)
        if dweight.size:
            _launch(*_gradients.operands("weight", dy, x, weight), dweight, sums=dbias, stream=stream)
    if dbias is not None and dbias.size and not (dweight is not None and dweight.size):
        _gradients.column_sums(dy, dbias, stream)
    if "x" in need:
        dx = _device.empty((rows, weight.shape[1]), "float32", stream=stream)
        if dx.size:
            _launch(*_gradients.operands("x", dy, x, weight), dx, stream=stream)
    return dx, dweight, dbias
