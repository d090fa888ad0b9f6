"""NumPy's universal functions in a kernel: `np.sin(v)` of numbers, `np.maximum(x, y, out)` of whole arrays.

They follow NumPy's types, not the operators': `np.left_shift` of two int32 is int32.  There is no float16 loop for
small integers on the device: where NumPy would compute in float16 what is none, it is float32.  An array form works
through all elements in every thread that calls it, as in Numba, and needs the array that it writes to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.front import indexing
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.memory import Array
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import is_number

#: Those that Numba compiles for the GPU; not np.add, np.sqrt or np.exp, for which there are operators and `math`.
NAMES = frozenset([
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "bitwise_and", "bitwise_or",
    "bitwise_xor", "conjugate", "cos", "cosh", "deg2rad", "degrees", "divide", "equal", "fmax", "fmin", "greater",
    "greater_equal", "hypot", "invert", "isnan", "left_shift", "less", "less_equal", "log", "log10", "log2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "not_equal", "rad2deg", "radians",
    "right_shift", "sin", "sinh", "tan", "tanh",
])  # fmt: skip


def handler(thing: Any) -> Callable | None:
    """What a call of a NumPy function does in a kernel, or None if Numba has none of it."""
    if not isinstance(thing, np.ufunc) or thing.__name__ not in NAMES:
        return None
    return lambda f, call, *values: _call(f, call, thing, values)


def _call(f: Frame, call: Any, ufunc: np.ufunc, values: tuple) -> Any:
    if not ufunc.nin <= len(values) <= ufunc.nin + 1:
        raise TypeError(f"it takes {ufunc.nin} arguments, and an array for the result")
    inputs, out = values[: ufunc.nin], values[ufunc.nin :]
    for value in (*inputs, *out):
        if not is_number(value) and not isinstance(value, Array):
            raise TypeError(f"it takes numbers and arrays, not {kind_of(value)}")
    if not out:
        if all(map(is_number, inputs)):
            return compute(ufunc, inputs)
        raise TypeError("of arrays it needs the array for the result: a kernel cannot make one")
    target = out[0]
    if not isinstance(target, Array) or not all(isinstance(n, int) for n in target.shape):
        raise TypeError("the array for the result must have the same shape in every thread")
    name, line = call.name, call.line
    for value in inputs:
        if isinstance(value, Array):
            np.broadcast_shapes(value.shape, target.shape)
    for where in np.ndindex(*target.shape):
        numbers = tuple(_element(f, value, where, name, line) for value in inputs)
        at = tuple(map(np.int64, where))
        indexing.set_item(f, target, at, compute(ufunc, numbers), call.argument(len(inputs)), line, (True,) * len(at))
        if f.m.counts is not None:
            f.m.counts.instruction(line, f.mask)
    return target


def _element(f: Frame, value: Any, where: tuple, name: str, line: int) -> Any:
    """The element that broadcasting pairs with `where`."""
    if is_number(value):
        return value
    own = where[len(where) - value.ndim :]
    at = tuple(np.int64(i if n != 1 else 0) for i, n in zip(own, value.shape, strict=True))
    return indexing.get_item(f, value, at, name, line, (True,) * len(at))


def compute(ufunc: np.ufunc, values: tuple) -> Any:
    """A ufunc of numbers, in the types of NumPy's loops."""
    given = tuple(value.dtype for value in values)
    found = ufunc.resolve_dtypes((*given, *(None,) * ufunc.nout))
    if dtypes.FLOAT16 in found and dtypes.FLOAT16 not in given:
        raised = tuple(dtypes.FLOAT32 if each == dtypes.FLOAT16 else each for each in found[: ufunc.nin])
        found = ufunc.resolve_dtypes((*raised, *(None,) * ufunc.nout))
    return ufunc(*(dtypes.cast(value, kind) for value, kind in zip(values, found, strict=False)))
