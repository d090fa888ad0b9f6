"""Elementwise operations: arithmetic, comparisons and copies, over any strides and with broadcasting.

The room is `pmpp.kernels.elementwise.ladder`, and its chapter notebooks/88_a_tape.ipynb.
Each operation is a function of its own, which takes the rung to use: ``add(a, b, *, out=None, stream=0)``, with
arguments, result and errors as in `tiled`. `assign` writes into a view, and `full` makes an array of one value.
"""

import numpy as np

from pmpp.kernels.common import blocks
from pmpp.kernels.elementwise import ladder
from pmpp.kernels.elementwise.ladder import *
from pmpp.kernels.elementwise.ladder import BLOCK, COPY, fill_kernel, problem, tiled
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.views import span


def _unary(name):
    def operation(a, *, out=None, stream=0):
        return tiled(a, None, name, out=out, stream=stream)

    return _named(operation, name, f"``{name}`` of every element of ``a``")


def _binary(name):
    def operation(a, b, *, out=None, stream=0):
        return tiled(a, b, name, out=out, stream=stream)

    return _named(operation, name, f"``{name}`` of ``a`` and ``b``, an array or a number")


def _named(operation, name, what):
    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"{what}; arguments, result and errors as in `tiled`."
    return operation


copy, negative, absolute, exp, log, sqrt, reciprocal, square, sign = map(_unary, ladder.UNARY)
add, subtract, multiply, divide, power, maximum, minimum, equal, greater, greater_equal = map(_binary, ladder.BINARY)


def assign(target, values, *, stream=0):
    """Write ``values``, which are broadcast, into ``target``, a view of any strides.

    Args:
        target: a float32 device array, in which no element is shown twice.
        values: a float32 array whose shape can be broadcast to that of ``target``, apart from it in memory.
        stream: the stream to work on.

    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> x = full((2, 3), 0)
    >>> assign(x[:, 1], np.float32([1, 2]))
    >>> x.copy_to_host()
    array([[0., 1., 0.],
           [0., 2., 0.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    if isinstance(target, np.ndarray):
        raise TypeError("target must be a device array, was a NumPy array: nothing would be seen of the change")
    target = device.as_input("target", target, dtypes="float32", layout="any", stream=stream)
    if any(stride <= 0 < extent - 1 for extent, stride in zip(target.shape, target.strides, strict=True)):
        raise ValueError(f"target must show each element once and forwards, had strides {target.strides}")
    values = device.as_input("values", values, dtypes="float32", layout="any", stream=stream)
    if ladder.broadcast(values.shape, target.shape) != target.shape:
        raise ValueError(f"values must be broadcast to {target.shape}, had shape {values.shape}")
    memory = span(target)
    device.as_output("target", memory, shape=memory.shape, dtype=np.float32, apart={"values": values}, stream=stream)
    tiled.run(problem(COPY, values, None, np.float32(0), target, stream))


def full(shape, value, *, stream=0):
    """A float32 device array of that shape, each element ``value``.

    >>> full((1, 2), 3).copy_to_host()
    array([[3., 3.]], dtype=float32)
    """
    stream, value = device.as_stream(stream), as_number("value", value)
    out = device.empty(shape, np.float32, stream=stream)
    if out.size:
        fill_kernel[blocks(blocks(out.size, 4), BLOCK), BLOCK, stream](out.reshape(-1), value)
    return out
