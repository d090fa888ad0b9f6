"""Elementwise operations: arithmetic, comparisons and copies, over any strides and with broadcasting.

The room is `pmpp.kernels.elementwise.ladder`, and its chapter notebooks/88_a_tape.ipynb.
Each operation is a function of its own, which takes the rung to use: ``add(a, b, *, out=None, stream=0)``, with
arguments, result and errors as in `tiled`. `cast` makes numbers of another dtype, `assign` writes into a view, and
`full` makes an array of one value.
"""

import numpy as np

from pmpp.kernels.common import blocks
from pmpp.kernels.elementwise import ladder
from pmpp.kernels.elementwise.casts import cast as cast
from pmpp.kernels.elementwise.ladder import *
from pmpp.kernels.elementwise.ladder import BLOCK, COPY, fill_kernel, problem, tiled
from pmpp.kernels.elementwise.widening import add_widened as add_widened
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.views import span

MOST = 2**48  # elements along a dimension: more than any memory has

_DOCUMENTATION = """{what}.

    Args:
        a: an array of float32, float16 or bfloat16, a view of any strides.{of_b}
        out: a device array of the result's shape and the dtype of ``a`` in C order, or None to allocate one. It may be
            {names}, where that has the result's shape and is in C order, and is otherwise apart from the operands in
            memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Errors are those of `tiled`.

    >>> {name}({operands}).copy_to_host()
    array({result}, dtype=float32)
    """
_OF_B = """
        b: another of that dtype, whose shape is broadcast with that of ``a``, or a number."""


def _unary(name, what, operand, result):
    def operation(a, *, out=None, stream=0):
        return tiled(a, None, name, out=out, stream=stream)

    return _named(operation, name, what, "``a``", f"np.float32({operand})", result)


def _binary(name, what, operand, number, result):
    def operation(a, b, *, out=None, stream=0):
        return tiled(a, b, name, out=out, stream=stream)

    return _named(operation, name, what, "``a`` or ``b``", f"np.float32({operand}), {number}", result, _OF_B)


def _named(operation, name, what, names, operands, result, of_b=""):
    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = _DOCUMENTATION.format(
        what=what, of_b=of_b, names=names, name=name, operands=operands, result=result
    )
    return operation


copy = _unary("copy", "The elements in C order", "[[1, 4]]", "[[1., 4.]]")
negative = _unary("negative", "``-a``", "[1, -4]", "[-1.,  4.]")
absolute = _unary("absolute", "The size of each element", "[1, -4]", "[1., 4.]")
exp = _unary("exp", "e to the power of each element", "[0, -np.inf]", "[1., 0.]")
log = _unary("log", "The natural logarithm of each element", "[1, 0]", "[  0., -inf]")
sqrt = _unary("sqrt", "The square root of each element", "[1, 4]", "[1., 2.]")
reciprocal = _unary("reciprocal", "``1 / a``", "[1, 4]", "[1.  , 0.25]")
square = _unary("square", "``a * a``", "[1, 4]", "[ 1., 16.]")
sign = _unary("sign", "1 above 0, -1 below, and 0 at 0", "[3, 0, -2]", "[ 1.,  0., -1.]")
add = _binary("add", "``a + b``", "[1, 4]", "0.5", "[1.5, 4.5]")
subtract = _binary("subtract", "``a - b``", "[1, 4]", "0.5", "[0.5, 3.5]")
multiply = _binary("multiply", "``a * b``", "[1, 4]", "0.5", "[0.5, 2. ]")
divide = _binary("divide", "``a / b``", "[1, 4]", "0.5", "[2., 8.]")
power = _binary("power", "``a`` to the power of ``b``", "[1, 4]", "0.5", "[1., 2.]")
maximum = _binary("maximum", "The greater of the two, NaN where one is NaN", "[0, 4]", "0.5", "[0.5, 4. ]")
minimum = _binary("minimum", "The smaller of the two, NaN where one is NaN", "[0, 4]", "0.5", "[0. , 0.5]")
equal = _binary("equal", "1 where they are equal, 0 elsewhere", "[0.5, 4]", "0.5", "[1., 0.]")
greater = _binary("greater", "1 where ``a > b``, 0 elsewhere", "[0.5, 4]", "0.5", "[0., 1.]")
greater_equal = _binary("greater_equal", "1 where ``a >= b``, 0 elsewhere", "[0.5, 4]", "0.5", "[1., 1.]")


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

    >>> full((1, 2), 0.5).copy_to_host()
    array([[0.5, 0.5]], dtype=float32)
    """
    stream, value = device.as_stream(stream), as_number("value", value)
    extents = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if any(isinstance(one, bool) or not isinstance(one, int | np.integer) or not 0 <= one <= MOST for one in extents):
        raise TypeError(f"shape must be an integer from 0 to {MOST}, or a tuple or a list of them, was {shape!r}")
    out = device.empty(tuple(map(int, extents)), np.float32, stream=stream)
    if out.size:
        fill_kernel[blocks(blocks(out.size, 4), BLOCK), BLOCK, stream](out.reshape(-1), value)
    return out
