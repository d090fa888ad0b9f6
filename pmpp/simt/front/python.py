"""Python's own functions in a kernel: builtins, and those of `math`, `cmath` and `operator`.

A handler takes the frame, the call site and the evaluated arguments, as those of intrinsics.py do.
"""

from __future__ import annotations

import builtins
import cmath
import enum
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pmpp.simt.api import hopper
from pmpp.simt.api.intrinsics import Call
from pmpp.simt.front import flow, variables
from pmpp.simt.front.things import Choice
from pmpp.simt.front.variables import Numbered, Range
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.values import complexes, dtypes, maths, operators
from pmpp.simt.values.dtypes import Value, is_number


def _fold(choose: Callable) -> Callable:
    def fold(f: Frame, call: Call, *values: Any) -> Value:
        if len(values) == 1 and isinstance(values[0], tuple):
            for value in values[0]:
                hopper.refuse_ticket(f, value, call.name, call.line)
            return choose(*values[0], two=False)
        if len(values) == 1 and isinstance(values[0], Scattered):
            return values[0].gather(f, lambda part: _extreme_of(f, call, choose, part))
        if len(values) == 1 and isinstance(values[0], Array):
            return _extreme_of(f, call, choose, values[0])
        return choose(*values, two=len(values) == 2)

    return fold


def _length(f: Frame, call: Call, value: Any) -> Value:
    if isinstance(value, Array):
        return np.int64(value.shape[0]) if isinstance(value.shape[0], int) else value.shape[0]
    if isinstance(value, Scattered):
        return value.gather(f, lambda part: _length(f, call, part))
    if isinstance(value, (tuple, str)):
        return np.int64(len(value))
    if isinstance(value, Choice) and all(isinstance(thing, str) for _, thing in value.parts):
        return functools.reduce(lambda n, part: np.where(part[0], np.int64(len(part[1])), n), value.parts, np.int64(0))
    if isinstance(value, Range):
        up = value.step > 0
        count = np.where(up, value.stop - value.start + value.step - 1, value.start - value.stop - value.step - 1)
        return np.maximum(count // np.where(up, value.step, -value.step), 0).astype(np.int64)[()]
    raise TypeError(f"{kind_of(value)} has no length")


@functools.cache
def _type_of_range(*kinds: np.dtype) -> np.dtype:
    if not all(map(dtypes.is_int, kinds)):
        raise TypeError("range takes one to three integers")
    if all(d.kind in "ib" and d.itemsize <= 4 for d in kinds):
        return dtypes.INT32
    return dtypes.UINT64 if all(d.kind == "u" for d in kinds) else dtypes.INT64


def _range(f: Frame, call: Call, *bounds: Value) -> Range:
    bounds = tuple(np.int64(b) if isinstance(b, enum.IntEnum) else b for b in bounds)
    if not 1 <= len(bounds) <= 3 or not all(map(is_number, bounds)):
        raise TypeError("range takes one to three integers")
    dtype = _type_of_range(*(b.dtype for b in bounds))
    first, last = (np.int64(0), bounds[0]) if len(bounds) == 1 else bounds[:2]
    stride = bounds[2] if len(bounds) == 3 else np.int64(1)
    return Range(first.astype(dtype), last.astype(dtype), stride.astype(dtype), dtype)


_range.counts_itself = True  # type: ignore[attr-defined]
_length.counts_itself = True  # type: ignore[attr-defined]


def _enumerate(f: Frame, call: Call, source: Any, start: Value = np.int64(0)) -> Numbered:  # noqa: B008
    return Numbered(source, start.astype(np.int64))


def _slice(f: Frame, call: Call, *bounds: Any) -> slice:
    if not all(bound is None or (is_number(bound) and bound.dtype.kind in "iu") for bound in bounds):
        raise TypeError("slice takes one to three integers, or None")
    return slice(*bounds)


_slice.counts_itself = True  # type: ignore[attr-defined]


def _zip(f: Frame, call: Call, *sources: Any) -> Iterator:
    return builtins.zip(*(flow.elements(f, s, call.line) for s in sources), strict=False)


def _print(f: Frame, call: Call, *values: Any) -> None:
    """`print` from every active thread, in order."""
    if f.m.dry:
        return
    lanes = f.m.batch.lanes
    shape = (lanes.blocks, lanes.width)
    spread = [np.broadcast_to(v, shape) if is_number(v) else v for v in values]
    for b, t in np.argwhere(f.mask.grid()):
        print(*(v[b, t] if isinstance(v, np.ndarray) else v for v in spread))


def _operator(name: str) -> Callable:
    function = (operators.BINARY | operators.COMPARE)[name]

    def call_operator(f: Frame, call: Call, *values: Value) -> Value:
        if name == "Pow" and len(values) == 3:
            raise TypeError("it takes no modulus on a GPU: write a ** b % c")
        result = function(*values)
        if name in ("Pow", "Div"):
            variables.check_operator(f, name, *values, call.line)
        return result

    return call_operator


def _complex_log(f: Frame, call: Call, value: Value, base: Value | None = None) -> Value:
    if base is None:
        return complexes.CMATH["log"](value)
    return _operator("Div")(f, call, *complexes.logarithms(value, base))


def _divmod(f: Frame, call: Call, a: Value, b: Value) -> tuple[Value, Value]:
    return operators.divide_with_remainder(a, b)


def _sum(f: Frame, call: Call, values: Any, start: Value = np.int64(0)) -> Value:  # noqa: B008
    if isinstance(values, Scattered):
        return values.gather(f, lambda part: _sum(f, call, part, start))
    total = start
    for value in values if isinstance(values, tuple) else flow.elements(f, values, call.line):
        hopper.refuse_ticket(f, value, call.name, call.line)
        total = operators.BINARY["Add"](total, value)
    return total


def _extreme_of(f: Frame, call: Call, choose: Callable, array: Array) -> Value:
    """`min(x)` and `max(x)` of an array's elements, in their own type."""
    found = None
    for value in flow.elements(f, array, call.line):
        if not is_number(value):
            raise TypeError("it takes the elements of an array of one axis")
        found = value if found is None else choose(found, value, two=False)
    if found is None:
        raise TypeError("the array is empty")
    return found


def _isinstance(f: Frame, call: Call, value: Any, kinds: Any) -> Value:
    return np.bool_(any(_is_one(value, kind) for kind in (kinds if isinstance(kinds, tuple) else (kinds,))))


def _is_one(value: Any, kind: Any) -> bool:
    if is_number(value):
        if kind in (np.integer, np.floating, np.number, np.inexact, np.generic):
            raise TypeError(f"it takes types of numbers, as np.float32, not np.{kind.__name__}")
        return {int: dtypes.INT64, float: dtypes.FLOAT64, complex: dtypes.COMPLEX128, bool: dtypes.BOOL}.get(
            kind, dtypes.as_dtype(kind)
        ) == value.dtype
    if kind not in (tuple, str):
        raise TypeError("it asks of a number, a tuple or a string which it is")
    return isinstance(value, kind)


def _unary(name: str) -> Callable:
    return lambda f, call, value: operators.UNARY[name](value)


def _ord(f: Frame, call: Call, letter: Any) -> Value:
    if not isinstance(letter, str) or len(letter) != 1:
        raise TypeError("it takes a string of one letter")
    return np.int32(ord(letter))


def _type(f: Frame, call: Call, value: Value) -> np.dtype:
    return value.dtype


def _simple(function: Callable) -> Callable:
    return lambda f, call, *values: function(*values)


_PYTHON: dict[Any, Callable] = {
    min: _fold(operators.minimum), max: _fold(operators.maximum), abs: _simple(maths.absolute),
    round: _simple(maths.round_half_even), len: _length, range: _range, int: _simple(maths.to_int),
    float: _simple(maths.to_float), bool: _simple(dtypes.truth), enumerate: _enumerate, zip: _zip, print: _print,
    complex: _simple(maths.to_complex), pow: _operator("Pow"), divmod: _divmod, sum: _sum, type: _type,
    slice: _slice, isinstance: _isinstance, ord: _ord,
    operator.neg: _unary("USub"), operator.pos: _unary("UAdd"), operator.invert: _unary("Invert"),
    operator.not_: _unary("Not"),
}  # fmt: skip
_OPERATORS = {
    operator.add: "Add", operator.sub: "Sub", operator.mul: "Mult", operator.truediv: "Div",
    operator.floordiv: "FloorDiv", operator.mod: "Mod", operator.pow: "Pow", operator.lshift: "LShift",
    operator.rshift: "RShift", operator.and_: "BitAnd", operator.or_: "BitOr", operator.xor: "BitXor",
    operator.lt: "Lt", operator.le: "LtE", operator.gt: "Gt", operator.ge: "GtE", operator.eq: "Eq",
    operator.ne: "NotEq",
}  # fmt: skip
_PYTHON.update({function: _operator(name) for function, name in _OPERATORS.items()})
_PYTHON.update({getattr(math, name): _simple(function) for name, function in maths.MATH.items() if hasattr(math, name)})
_PYTHON.update({getattr(cmath, name): _simple(function) for name, function in complexes.CMATH.items()})
_PYTHON[cmath.log] = _complex_log


def _log(f: Frame, call: Call, value: Value, *base: Value) -> Value:
    if base:
        raise TypeError("it takes no base on a GPU: write math.log(x) / math.log(base)")
    return maths.MATH["log"](value)


_PYTHON[math.log] = _log


def handler(thing: Any) -> Callable | None:
    """The handler of a Python builtin or `math` function, or None."""
    try:
        return _PYTHON.get(thing)
    except TypeError:  # unhashable
        return None
