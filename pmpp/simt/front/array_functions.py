"""Functions of whole arrays: loops over all elements, which every thread that calls them does by itself.

The types of the sums are those of Numba's own functions: of float32 a float32, of integers an integer of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pmpp.simt.api.intrinsics import Call
from pmpp.simt.front import indexing
from pmpp.simt.front.variables import Places
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.values import dtypes, maths
from pmpp.simt.values.dtypes import Value, is_number
from pmpp.simt.values.operators import BINARY, COMPARE


def _alone(function: Callable) -> Callable:
    """A handler that takes an array and nothing else."""

    def handle(f: Frame, call: Call, array: Any, *more: Any, **named: Any) -> Any:
        if more or named:
            raise TypeError("it takes the array alone on a GPU: loop over an axis")
        if isinstance(array, Scattered):
            return array.gather(f, lambda part: function(f, call, part))
        return function(f, call, array)

    handle.counts_itself = True  # type: ignore[attr-defined]
    return handle


def _whole(array: Any) -> Array:
    if not isinstance(array, Array) or array.is_record:
        raise TypeError(f"it takes an array of numbers, not {kind_of(array)}")
    if not all(isinstance(n, int) for n in array.shape):
        raise TypeError("the interpreter takes an array that is as long in every thread: write a loop")
    return array


def _places(array: Array) -> Iterator[tuple]:
    """All indices in the order in which Numba goes through an array: that of memory if it is C or F, else C."""
    turned = array.ndim > 1 and not _is_c(array) and array.contiguous()
    for where in np.ndindex(*(array.shape[::-1] if turned else array.shape)):
        yield tuple(map(np.int64, where[::-1] if turned else where))


def _is_c(array: Array) -> bool:
    step, expected = 1, []
    for extent in reversed(array.shape):
        expected.append(step)
        step *= extent
    return tuple(reversed(expected)) == array.strides


def _numbers(f: Frame, call: Call, array: Any) -> Iterator[Value]:
    for at in _places(_whole(array)):
        yield indexing.get_item(f, array, at, array.storage.name, call.line, (True,) * len(at))


def _counted(f: Frame, call: Call, dtype: np.dtype) -> None:
    if f.m.counts is not None and f.mask is not None:
        f.m.counts.flops(call.line, f.mask, dtype)


def _accumulated(name: str, start: int) -> Callable:
    def accumulate(f: Frame, call: Call, array: Any) -> Value:
        kind = _whole(array).dtype
        total = _wide(kind).type(start)
        for value in _numbers(f, call, array):
            total = dtypes.cast(BINARY[name](total, value), total.dtype)
            _counted(f, call, total.dtype)
        return total

    return accumulate


def _wide(kind: np.dtype) -> np.dtype:
    return kind if kind.kind in "fc" else dtypes.UINT64 if kind.kind == "u" else dtypes.INT64


_sum, _product = _accumulated("Add", 0), _accumulated("Mult", 1)


def _mean(f: Frame, call: Call, array: Any) -> Value:
    kind = _whole(array).dtype
    total = (kind if kind.kind in "fc" else dtypes.FLOAT64).type(0)
    for value in _numbers(f, call, array):
        total = dtypes.cast(BINARY["Add"](total, value), total.dtype)
        _counted(f, call, total.dtype)
    return BINARY["Div"](total, np.int64(array.size()))  # of float32 a float64


def _variance(f: Frame, call: Call, array: Any) -> Value:
    mean = _mean(f, call, array)
    if mean.dtype.kind == "c":
        raise TypeError("the interpreter has it of real numbers only")
    total: Value = np.int64(0)
    for value in _numbers(f, call, array):
        away = BINARY["Sub"](value, mean)
        total = BINARY["Add"](total, BINARY["Mult"](away, away))
        _counted(f, call, total.dtype)
    return BINARY["Div"](total, np.int64(array.size()))  # a float64, as 0 + a float32 is


def _deviation(f: Frame, call: Call, array: Any) -> Value:
    variance = _variance(f, call, array)
    return dtypes.cast(BINARY["Pow"](variance, np.float64(0.5)), variance.dtype)


def _where_is(name: str) -> Callable:
    def find(f: Frame, call: Call, array: Any) -> Value:
        if _whole(array).size() == 0:
            raise TypeError("the array is empty")
        found, at = None, np.int64(0)
        for k, value in enumerate(_numbers(f, call, array)):
            if found is None:
                found = value
                continue
            better = COMPARE[name](value, found)
            if value.dtype.kind == "f":  # the first NaN is the result
                better = (better | np.isnan(value)) & ~np.isnan(found)
            found, at = np.where(better, value, found), np.where(better, np.int64(k), at)
        return at[()]

    return find


def _any(f: Frame, call: Call, array: Any) -> Value:
    found: Any = np.False_
    for value in _numbers(f, call, array):
        found = found | dtypes.truth(value)
    return found


def _all(f: Frame, call: Call, array: Any) -> Value:
    found: Any = np.True_
    for value in _numbers(f, call, array):
        found = found & dtypes.truth(value)
    return found


def _count(f: Frame, call: Call, array: Any) -> Value:
    found: Any = np.int64(0)
    for value in _numbers(f, call, array):
        found = found + dtypes.truth(value).astype(np.int64)
    return found


#: Methods of arrays.
METHODS = {
    "sum": _alone(_sum), "prod": _alone(_product), "mean": _alone(_mean), "var": _alone(_variance),
    "std": _alone(_deviation), "argmin": _alone(_where_is("Lt")), "argmax": _alone(_where_is("Gt")),
    "any": _alone(_any), "all": _alone(_all),
}  # fmt: skip


def _ndindex(f: Frame, call: Call, *extents: Any) -> Places:
    extents = extents[0] if len(extents) == 1 and isinstance(extents[0], tuple) else extents
    if not all(is_number(n) and n.dtype.kind in "iu" for n in extents):
        raise TypeError("it takes integers, or a tuple of them")
    return Places(tuple(extents))


def _ndenumerate(f: Frame, call: Call, array: Any) -> Iterator[tuple]:
    for where in np.ndindex(*_whole(array).shape):
        at = tuple(map(np.int64, where))
        yield at, indexing.get_item(f, array, at, array.storage.name, call.line, (True,) * len(at))


def _nditer(f: Frame, call: Call, array: Any) -> Iterator[Array]:
    for at in _places(_whole(array)):
        offset = array.offset + sum(int(i) * stride for i, stride in zip(at, array.strides, strict=True))
        yield Array(array.storage, array.dtype, (), (), offset)


def _size(f: Frame, call: Call, array: Any) -> Value:
    return np.int64(_whole(array).size())


def _shape(f: Frame, call: Call, array: Any) -> tuple:
    return indexing.attribute(f, array, "shape", call.line, call.name)


def _real(f: Frame, call: Call, value: Any) -> Any:
    return indexing.attribute(f, value, "real", call.line, call.name)


def _imaginary(f: Frame, call: Call, value: Any) -> Any:
    return indexing.attribute(f, value, "imag", call.line, call.name)


def _round(f: Frame, call: Call, value: Any, digits: Any = None) -> Value:
    if not is_number(value) or value.dtype.kind not in "f":
        raise TypeError(f"it takes a float, not {kind_of(value)}")
    if digits is not None:
        return maths.round_half_even(value.astype(np.float64), digits)
    return dtypes.cast(maths.round_half_even(value), value.dtype)


_LOOPS = {
    **{getattr(np, name): method for name, method in METHODS.items()}, np.count_nonzero: _alone(_count),
    np.ndindex: _ndindex, np.ndenumerate: _ndenumerate, np.nditer: _nditer, np.size: _size, np.shape: _shape,
    np.real: _real, np.imag: _imaginary, np.round: _round, np.around: _round,
}  # fmt: skip
for _function in _LOOPS.values():
    _function.counts_itself = True  # type: ignore[attr-defined]


def handler(thing: Any) -> Callable | None:
    """What a call of a NumPy function of arrays does in a kernel, or None."""
    try:
        return _LOOPS.get(thing)
    except TypeError:  # unhashable
        return None
