"""Arithmetic on tensors: each operation with its gradient, and the operators and methods of `Tensor`.

Shapes that differ are broadcast. What was repeated in the forward pass is summed in the backward pass: `to_shape`.
"""

from __future__ import annotations

import itertools
import math
import typing

import numpy as np

from pmpp.kernels import elementwise, matmul
from pmpp.kernels.elementwise import ladder
from pmpp.kernels.reduction import axis_sum
from pmpp.nn.replay import call
from pmpp.nn.tape import FLOATS, SHORT, Function, Tensor, cast, zeros
from pmpp.runtime.check import as_integer
from pmpp.runtime.dtypes import dtype_of
from pmpp.runtime.views import strided

Number = int | float | np.integer | np.floating


def to_shape(gradient: typing.Any, shape: tuple[int, ...]) -> typing.Any:
    """The gradient of what was broadcast from ``shape``: an element's is the sum over all its copies."""
    if gradient.shape == shape:
        return gradient
    missing = gradient.ndim - len(shape)
    axes = tuple(
        d for d, extent in enumerate(gradient.shape) if d < missing or (shape[d - missing] == 1 and extent != 1)
    )
    if axes:
        gradient = summed(gradient, axes)
    return gradient.reshape(shape)


def summed(array: typing.Any, axes: tuple[int, ...]) -> typing.Any:
    """The sums along axes in the array's dtype. Those of 16 bits are added up in float32, and rounded once."""
    if array.dtype == np.float32:
        return call(axis_sum.vectorised, array, axes)
    return cast(call(axis_sum.vectorised, cast(array, "float32"), axes), array.dtype)


def operand(value: typing.Any, name: str = "the other operand") -> typing.Any:
    """What kernels are given of a tensor or a number."""
    if isinstance(value, Tensor):
        if value.dtype not in FLOATS:
            raise TypeError(
                f"{name} must be a float32 tensor or a number, was {value.dtype}: labels have no arithmetic"
            )
        return value.array
    if isinstance(value, bool) or not isinstance(value, Number):
        raise TypeError(
            f"{name} must be a tensor or a number, was {type(value).__name__}: make it one with Tensor(...)"
        )
    return value


def shape_of(value: typing.Any) -> tuple[int, ...]:
    """A number has the shape ()."""
    return getattr(value, "shape", ())


class Add(Function):
    """a + b."""

    @staticmethod
    def forward(context, a, b):
        context.shapes, context.dtypes = (shape_of(a), shape_of(b)), None
        if widens(a, b):
            context.dtypes = a.dtype, b.dtype
            wide, short = (a, b) if a.dtype == np.float32 else (b, a)
            return call(elementwise.add_widened, wide.array, short.array)
        return call(elementwise.add, operand(a), operand(b))

    @staticmethod
    def backward(context, dy):
        if context.dtypes:
            each = zip(context.dtypes, context.needs, strict=True)
            return tuple((dy if dtype == dy.dtype else cast(dy, dtype)) if need else None for dtype, need in each)
        return tuple(
            to_shape(dy, shape) if need else None for shape, need in zip(context.shapes, context.needs, strict=True)
        )


def widens(a: typing.Any, b: typing.Any) -> bool:
    """Whether a sum is one of float32 and of 16 bits, of one shape: then the latter is widened within the kernel."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.shape != b.shape or a.dtype == b.dtype:
        return False
    both = a.dtype in FLOATS and b.dtype in FLOATS and np.float32 in (a.dtype, b.dtype)
    return both and a.array.is_c_contiguous() and b.array.is_c_contiguous()


class Subtract(Function):
    """a - b."""

    @staticmethod
    def forward(context, a, b):
        context.shapes = shape_of(a), shape_of(b)
        return call(elementwise.subtract, operand(a), operand(b))

    @staticmethod
    def backward(context, dy):
        (first, second), (need_a, need_b) = context.shapes, context.needs
        da = to_shape(dy, first) if need_a else None
        return da, call(elementwise.negative, to_shape(dy, second)) if need_b else None


class Multiply(Function):
    """a b."""

    @staticmethod
    def forward(context, a, b):
        context.shapes = shape_of(a), shape_of(b)
        need_a, need_b = context.needs
        context.number = None if isinstance(b, Tensor) else b
        context.save_for_backward(*([a] if need_b else []), *([b] if need_a and context.number is None else []))
        return call(elementwise.multiply, operand(a), operand(b))

    @staticmethod
    def backward(context, dy):
        (need_a, need_b), saved = context.needs, [*context.saved]
        a = saved.pop(0) if need_b else None
        b = saved.pop(0) if saved else context.number
        da = to_shape(call(elementwise.multiply, dy, b), context.shapes[0]) if need_a else None
        return da, to_shape(call(elementwise.multiply, dy, a), context.shapes[1]) if need_b else None


class Divide(Function):
    """a / b."""

    @staticmethod
    def forward(context, a, b):
        context.shapes = shape_of(a), shape_of(b)
        context.number = None if isinstance(b, Tensor) else b
        y = call(elementwise.divide, operand(a), operand(b))
        saved = [] if context.number is not None else [b]
        context.save_for_backward(*saved, *([y] if context.needs[1] else []))
        return y

    @staticmethod
    def backward(context, dy):
        b = context.number if context.number is not None else context.saved[0]
        da = call(elementwise.divide, dy, b)
        db = None
        if context.needs[1]:  # d(a / b) / db = -a / b^2 = -y / b
            db = to_shape(
                call(elementwise.negative, call(elementwise.multiply, da, context.saved[1])), context.shapes[1]
            )
        return to_shape(da, context.shapes[0]) if context.needs[0] else None, db


class Power(Function):
    """a to the power of a number."""

    @staticmethod
    def forward(context, a, exponent):
        context.exponent, context.shape = exponent, a.shape
        context.save_for_backward(*([a] if exponent else []))
        if exponent == 2:
            return call(elementwise.square, operand(a))
        return call(elementwise.power, operand(a), exponent)

    @staticmethod
    def backward(context, dy):
        exponent = context.exponent
        if not exponent:  # everything to the power of 0 is 1, 0 too
            return zeros(context.shape, dy.dtype), None
        (a,) = context.saved
        slope = a if exponent == 2 else call(elementwise.power, a, exponent - 1)
        return call(elementwise.multiply, call(elementwise.multiply, dy, slope), exponent), None


class Exp(Function):
    """e to the power of a."""

    @staticmethod
    def forward(context, a):
        y = call(elementwise.exp, operand(a))
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, dy):
        return call(elementwise.multiply, dy, context.saved[0])


class Log(Function):
    """The natural logarithm."""

    @staticmethod
    def forward(context, a):
        context.save_for_backward(a)
        return call(elementwise.log, operand(a))

    @staticmethod
    def backward(context, dy):
        return call(elementwise.divide, dy, context.saved[0])


class Sqrt(Function):
    """The square root."""

    @staticmethod
    def forward(context, a):
        y = call(elementwise.sqrt, operand(a))
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, dy):
        return call(elementwise.divide, call(elementwise.multiply, dy, 0.5), context.saved[0])


class Absolute(Function):
    """The size; at 0 the gradient is 0."""

    @staticmethod
    def forward(context, a):
        context.save_for_backward(a)
        return call(elementwise.absolute, operand(a))

    @staticmethod
    def backward(context, dy):
        return call(elementwise.multiply, dy, call(elementwise.sign, context.saved[0]))


class Sum(Function):
    """The sums along axes."""

    @staticmethod
    def forward(context, a, axis, keepdims):
        context.shape = a.shape
        array = operand(a)
        array = array if array.ndim else array.reshape(1)
        y = call(axis_sum.vectorised, array, axis, keepdims)
        axes = axis_sum.axes_of(axis, array.ndim)
        context.kept = tuple(1 if d in axes else extent for d, extent in enumerate(array.shape))
        return y

    @staticmethod
    def backward(context, dy):
        shape, kept = context.shape or (1,), context.kept
        repeated = [extent != one for extent, one in zip(shape, kept, strict=True) if extent != 1]
        turns = 1 + sum(a != b for a, b in itertools.pairwise(repeated))
        if turns > ladder.DIMENSIONS:  # more than one copy can have: along one dimension after another
            for d, extent in enumerate(shape):
                if extent != kept[d]:
                    view = math.prod(kept[:d]), extent, math.prod(kept[d + 1 :])
                    dy = call(elementwise.copy, strided(dy.reshape(-1), view, (view[2], 0, 1)))
                    kept = (*kept[:d], extent, *kept[d + 1 :])
            return dy.reshape(context.shape), None, None
        steps = (step if extent > 1 else 0 for extent, step in zip(kept, steps_of(kept), strict=True))
        view = strided(dy.reshape(-1), shape, tuple(steps))  # repeated by strides of 0
        return call(elementwise.copy, view).reshape(context.shape), None, None


class Reshape(Function):
    """The same elements in another shape: no copy."""

    @staticmethod
    def forward(context, a, shape):
        context.shape = a.shape
        return a.array.reshape(shape)

    @staticmethod
    def backward(context, dy):
        return dy.reshape(context.shape), None


class Permute(Function):
    """The dimensions in another order: a copy, since kernels read neighbours."""

    @staticmethod
    def forward(context, a, order):
        context.order = order
        return permuted(a.array, order)

    @staticmethod
    def backward(context, dy):
        back = tuple(int(d) for d in np.argsort(context.order))
        return permuted(dy, back), None


def permuted(array: typing.Any, order: tuple[int, ...]) -> typing.Any:
    """A copy in C order of an array whose dimensions are in another order."""
    steps = steps_of(array.shape)
    view = strided(array, tuple(array.shape[d] for d in order), tuple(steps[d] for d in order))
    return call(elementwise.copy, view)


def steps_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array in C order, in elements."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


class Slice(Function):
    """A part of a tensor: indices and slices with positive steps."""

    @staticmethod
    def forward(context, a, index):
        context.shape = a.shape
        context.view = view_of(a.shape, index)
        first, shape, steps = context.view
        return call(elementwise.copy, strided(operand(a), shape or (1,), steps or (1,), first)).reshape(shape)

    @staticmethod
    def backward(context, dy):
        if dy.dtype != np.float32:  # `assign` writes float32
            return cast(Slice.gradient(context, cast(dy, "float32")), dy.dtype), None
        return Slice.gradient(context, dy), None

    @staticmethod
    def gradient(context, dy):
        """The gradient in the place of the part, and 0 elsewhere."""
        dx = call(elementwise.full, context.shape, 0.0)
        first, shape, steps = context.view
        if dy.size:
            call(elementwise.assign, strided(dx, shape or (1,), steps or (1,), first), dy.reshape(shape or (1,)))
        return dx


def view_of(shape: tuple[int, ...], index: typing.Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(first element, shape, strides in elements) of ``x[index]`` for an x of that shape in C order."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
    if len(parts) > len(shape):
        raise IndexError(f"a tensor of shape {shape} has {len(shape)} dimensions, was given {len(parts)} indices")
    parts += [slice(None)] * (len(shape) - len(parts))
    first, extents, steps = 0, [], []
    for part, extent, step in zip(parts, shape, steps_of(shape), strict=True):
        if isinstance(part, slice):
            start, stop, stride = part.indices(extent)
            if stride < 1:
                raise ValueError(f"a slice of a tensor must have a positive step, had {stride}")
            length = max(0, -(-(stop - start) // stride))
            first += start * step if length else 0
            extents.append(length)
            steps.append(stride * step)
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            if not -extent <= part < extent:
                raise IndexError(f"index {part} is out of range for a dimension of extent {extent}")
            first += (int(part) % extent) * step
        else:
            raise TypeError(f"an index of a tensor must be an integer or a slice, was {type(part).__name__}")
    return first, tuple(extents), tuple(steps)


class Cast(Function):
    """The numbers in another dtype; the gradient comes back in the one that they had."""

    @staticmethod
    def forward(context, a, dtype):
        context.dtype = a.dtype
        return cast(a.array, dtype)

    @staticmethod
    def backward(context, dy):
        return cast(dy, context.dtype), None


class MatMul(Function):
    """The product of two matrices."""

    @staticmethod
    def forward(context, a, b):
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
            raise ValueError(f"a @ b needs matrices of shape (m, k) and (k, n), had {a.shape} and {b.shape}")
        context.save_for_backward(a, b)
        return call(matmul.matmul, operand(a), operand(b))

    @staticmethod
    def backward(context, dy):
        a, b = context.saved
        da = call(matmul.matmul, dy, transposed(b)) if context.needs[0] else None
        return da, call(matmul.matmul, transposed(a), dy) if context.needs[1] else None


def transposed(matrix: typing.Any) -> typing.Any:
    """A matrix with its two strides exchanged: a view."""
    rows, columns = matrix.shape
    return strided(matrix, (columns, rows), (1, columns))


# ------------------------------------------------------------------------------------------- what tensors can be asked


def tensor(value: typing.Any) -> Tensor:
    """A number as a tensor of shape (1,), for ``1 - x``; made on the device, so that a graph can hold it."""
    return value if isinstance(value, Tensor) else Tensor(call(elementwise.full, (1,), operand(value)))


def _sum(self, axis=None, keepdims=False):
    """The sum of all elements, or along one axis or several."""
    return Sum.apply(self, axis, keepdims)


def _mean(self, axis=None, keepdims=False):
    """The mean of all elements, or along one axis or several."""
    axes = axis_sum.axes_of(axis, self.ndim or 1)
    return self.sum(axis, keepdims) / math.prod((self.shape or (1,))[d] for d in axes)


def _reshape(self, *shape):
    """The same elements in another shape; one extent may be -1. No copy is made: the memory is that of this tensor."""
    shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    made = Reshape.apply(self, shape)
    made.changes = self.changes  # a change in place of one is a change of the other
    return made


def _flatten(self, start_dim=0):
    """One dimension in place of those from ``start_dim`` on, which counts from the end if it is negative."""
    last = max(self.ndim, 1) - 1
    start_dim = as_integer("start_dim", start_dim, -last - 1, last)
    return self.reshape(*self.shape[:start_dim], math.prod(self.shape[start_dim:]))


def _permute(self, *order):
    """The dimensions in another order."""
    order = tuple(order[0]) if len(order) == 1 and isinstance(order[0], tuple | list) else order
    if sorted(order) != list(range(self.ndim)):
        raise ValueError(f"order must name each of the {self.ndim} dimensions once, was {order}")
    return Permute.apply(self, order)


def _power(self, exponent):
    if isinstance(exponent, Tensor):
        raise TypeError("the exponent must be a number, was a tensor: use (x.log() * exponent).exp()")
    return Power.apply(self, operand(exponent, "the exponent"))


def method(function: type[Function]) -> typing.Callable:
    """An operation as a method of its first operand."""

    def operation(self, *others):
        return function.apply(self, *others)

    operation.__doc__ = function.__doc__
    return operation


def _from_number(function: type[Function]) -> typing.Callable:
    """The operation on a number and a tensor, as in ``1 - x``."""

    def operation(self, number):
        if self.dtype not in SHORT:
            return function.apply(tensor(number), self).reshape(self.shape)
        # The number is a float32 tensor; the result is rounded once, to the dtype that x - 1 has, too.
        return _to(function.apply(tensor(number), _to(self, "float32")), self.dtype).reshape(self.shape)

    operation.__doc__ = function.__doc__
    return operation


def _negative(self):
    """``-x``."""
    return Multiply.apply(self, -1.0)


def _to(self, dtype):
    """The numbers as float32, float16 or bfloat16: this tensor, if it has that dtype."""
    if self.dtype not in FLOATS:
        raise TypeError(f"only numbers can be cast, this tensor has {self.dtype}")
    wanted = dtype_of(dtype)
    if wanted not in FLOATS:
        raise TypeError(f"dtype must be float32, float16 or bfloat16, was {dtype!r}")
    return self if wanted == self.dtype else Cast.apply(self, wanted.name)


def _float(self):
    """The numbers as float32."""
    return _to(self, "float32")


def _half(self):
    """The numbers as float16."""
    return _to(self, "float16")


def _bfloat16(self):
    """The numbers as bfloat16."""
    return _to(self, "bfloat16")


METHODS = {
    "to": _to,
    "float": _float,
    "half": _half,
    "bfloat16": _bfloat16,
    "__add__": method(Add),
    "__radd__": method(Add),
    "__sub__": method(Subtract),
    "__rsub__": _from_number(Subtract),
    "__mul__": method(Multiply),
    "__rmul__": method(Multiply),
    "__truediv__": method(Divide),
    "__rtruediv__": _from_number(Divide),
    "__matmul__": method(MatMul),
    "__neg__": _negative,
    "__pow__": _power,
    "__getitem__": method(Slice),
    "exp": method(Exp),
    "log": method(Log),
    "sqrt": method(Sqrt),
    "abs": method(Absolute),
    "sum": _sum,
    "mean": _mean,
    "reshape": _reshape,
    "flatten": _flatten,
    "permute": _permute,
}
for _name, _method in METHODS.items():
    _method.__name__ = _method.__qualname__ = _name
    setattr(Tensor, _name, _method)
Tensor.T = property(lambda self: self.permute(*reversed(range(self.ndim))), doc="The dimensions in reverse order.")
