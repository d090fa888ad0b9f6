"""Calls: device functions, conversions and methods."""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api import intrinsics, libdevice, sync
from pmpp.simt.front import array_functions, indexing, inference, python
from pmpp.simt.front.inference import DryRun, Left
from pmpp.simt.front.things import Choice
from pmpp.simt.front.variables import LocalFunction, select, widen
from pmpp.simt.machine.frames import Frame, GridGroup, kind_of
from pmpp.simt.machine.instructions import CONTROL, CONVERSION
from pmpp.simt.machine.machine import Machine, Site
from pmpp.simt.machine.memory import Array, c_strides
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.machine.storage import Storage
from pmpp.simt.machine.turns import Waits, plain, suspending, suspends
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.errors import ArgumentError, UnsupportedError
from pmpp.simt.values.records import alignment, every, overlapping, pitch

#: Device functions may call themselves, to this depth.
CALL_DEPTH = 128


@suspending
def call_value(f: Frame, callee: Any, args: list, keywords: dict, call: intrinsics.Call) -> Waits:
    """Call whatever an expression gave: a device function, one defined in the kernel, a type, a name of `cuda`."""
    line = call.line
    if f.mask is None:
        return np.int64(0)
    if isinstance(callee, LocalFunction):
        return (yield from _call(f, callee.function, args, keywords, call, callee.frame))
    py_func = getattr(callee, "py_func", None)
    if py_func is not None:
        result, declared = None, getattr(callee, "device_types", None)
        if declared is not None:
            result, kinds = declared
            args = [dtypes.cast(a, k) if isinstance(k, np.dtype) else a for a, k in zip(args, kinds, strict=False)]
        value = yield from _call(f, f.function.compiled(py_func), args, keywords, call, None)
        return widen(value, result)
    if dtypes.as_dtype(callee) is not None:
        return cast_call(f, callee, args, line)
    path = intrinsics.device_path(callee)
    handler = intrinsics.DEVICE.get(path) if path else python.handler(callee)
    if handler is None:
        raise f.m.error(f"{call.function} is {kind_of(callee)} and cannot be called", line, UnsupportedError)
    result = handler(f, call, *args, **keywords)
    return (yield from result) if suspends(handler) else result


def _call(f: Frame, function: Any, args: list, keywords: dict, call: intrinsics.Call, outer: Frame | None) -> Waits:
    """A device function runs with variables of its own, in the caller's lanes."""
    m, line = f.m, call.line
    bound = _bound(m, function, args, keywords, call)
    if f.depth >= CALL_DEPTH:
        why = "recursion needs an end, and a GPU's stack is small"
        raise m.error(f"{call.function} calls itself more than {CALL_DEPTH} deep: {why}", line)
    if m.dry and f.depth >= inference.DEPTH:
        raise DryRun
    inner = Frame(m, function, f.mask, f)
    inner.outer, inner.call = outer, call
    if any(call.literals) or call.named_literals:
        constant = [*zip(function.params, call.literals, strict=False), *call.named_literals.items()]
        inner.literals = frozenset(p for p, known in constant if known is True or known in f.literals)
    inner.vars.update(bound)
    if m.counts is not None:
        m.counts.instruction(line, f.mask, CONTROL)
    around = m.place.site
    if around is not None or function.source_file != m.launch.source_file:
        written = map(intrinsics.as_written, call.node.args)
        m.place.site = Site.of(around, line, dict(zip(function.params, written, strict=False)))
    try:
        if function.suspends:
            yield from function.body(inner)
        else:
            function.body(inner)
    except Left:
        assert m.dry  # that is how it returns
    m.place.site, m.place.line = around, line
    if not function.inside and isinstance(inner.value, (Array, Scattered)):
        _passed_in(m, inner.value, bound, call)
    if inner.value is not None and inner.mask is not None and not m.dry:  # some lanes came to the end
        inner.value = select(f, inner.mask.grid(), None, inner.value, line)
    if function.returns > 1 and not m.dry and (is_number(inner.value) or isinstance(inner.value, Choice)):
        start = Frame(m, function, f.mask, f)
        start.outer, start.literals = outer, inner.literals
        start.vars = dict(bound)
        kind = function.paths.of_value(start, rehearsal(function))
        if isinstance(inner.value, Choice):
            return Choice([(bits, widen(thing, kind)) for bits, thing in inner.value.parts])
        return widen(inner.value, kind)
    return inner.value


def _passed_in(m: Machine, result: Array | Scattered, bound: dict[str, Any], call: intrinsics.Call) -> None:
    """Refuse a device function that returns an array which was not passed to it: Numba compiles none."""
    given = [part for value in bound.values() for part in _arrays(value)]
    for part in _arrays(result):
        if part.ndim and not any(part is a or _layout(part) == _layout(a) for a in given):
            message = f"{call.function} returns an array that was not passed to it, such as a part of one"
            raise m.error(f"{message}: Numba does not compile that; take the part in the caller", call.line,
                          UnsupportedError)  # fmt: skip


def _layout(array: Array) -> tuple:
    """What tells an array from a part of it; extents that differ between lanes are an object of their own."""
    extents = (*array.shape, *array.strides)
    return id(array.storage), extents if all(isinstance(n, int) for n in extents) else id(array)


def _arrays(value: Any) -> list[Array]:
    if isinstance(value, tuple):
        return [part for each in value for part in _arrays(each)]
    return [value] if isinstance(value, Array) else [a for _, a in value.parts] if isinstance(value, Scattered) else []


def _bound(m: Machine, function: Any, args: list, keywords: dict, call: intrinsics.Call) -> dict[str, Any]:
    """The arguments by the names of the parameters, with the defaults of those that were left out."""
    parameters = function.signature.parameters  # all of them positional
    if not keywords and len(args) == len(parameters) and not function.takes_more:
        return dict(zip(parameters, args, strict=True))
    if function.inside and keywords:
        message = f"{call.function} is a function inside a kernel, and Numba gives it no arguments by name"
        raise m.error(f"{message}: give them in their order", call.line, UnsupportedError)
    if function.inside and 0 < len(args) + len(keywords) - function.needed < len(parameters) - function.needed:
        message = f"{call.function} is a function inside a kernel, whose defaults Numba mixes up if only some are given"
        raise m.error(f"{message}: give all or none", call.line, UnsupportedError)
    try:
        found = function.signature.bind(*args, **keywords).arguments
    except TypeError as error:
        raise m.error(f"{call.function}: {error}", call.line, ArgumentError) from error
    for parameter in parameters.values():
        if parameter.name not in found and parameter.kind is parameter.VAR_POSITIONAL:
            found[parameter.name] = ()
        elif parameter.name not in found:
            default = dtypes.constant(parameter.default)
            found[parameter.name] = parameter.default if default is None else default
    return found


def rehearsal(function: Any) -> Callable[[Frame], Any]:
    """A dry run of a whole function: the common type of what it returns."""

    def run(g: Frame) -> Any:
        with contextlib.suppress(Left):
            plain(function.body)(g)
        return g.value

    return run


def constant_cast(f: Frame, value: Any, line: int) -> Any:
    """`float32(0.5)`: a conversion whose result is known before the kernel runs."""
    if f.m.counts is not None and f.mask is not None:
        f.m.counts.instruction(line, f.mask, CONVERSION)
    return value


def cast_of(dtype: np.dtype, value: Callable[[Frame], Any], line: int) -> Callable[[Frame], Any]:
    """`cast_call` of one value: with less work where that is a number, as it nearly always is."""

    whole = dtype == dtypes.BOOL  # which not every number becomes

    def ev(f: Frame) -> Any:
        given = value(f)
        if whole or not is_number(given) or given.dtype.kind == "c":
            return cast_call(f, dtype, [given], line)
        if f.m.counts is not None and f.mask is not None:
            f.m.counts.instruction(line, f.mask, CONVERSION)
        return dtypes.cast(given, dtype)

    return ev


def cast_call(f: Frame, dtype: Any, args: list, line: int) -> Any:
    """`float32(x)`: a conversion."""
    dtype = dtypes.as_dtype(dtype)
    if dtype is not None and len(args) == 1 and isinstance(args[0], enum.IntEnum) and dtypes.is_int(dtype):
        args = [np.int64(args[0])]
    if dtype is None or len(args) != 1 or not is_number(args[0]):
        given = ", ".join(map(kind_of, args))
        hint = "; write its .value" if any(isinstance(a, enum.Enum) for a in args) else ""
        raise f.m.error(f"{dtype}({given}) is not a conversion: it takes one number{hint}", line, UnsupportedError)
    if f.m.counts is not None and f.mask is not None:
        f.m.counts.instruction(line, f.mask, CONVERSION)
    try:
        return dtypes.cast(args[0], dtype)
    except TypeError as error:
        raise f.m.error(str(error), line, UnsupportedError) from error


@suspending
def synchronise(f: Frame, value: Any, args: list, line: int) -> Waits:
    """A method call `value.sync()`."""
    if not isinstance(value, GridGroup) or args:
        return method(f, value, "sync", args, line)
    return (yield from sync.grid_barrier(f, line))


def method(f: Frame, value: Any, name: str, args: list, line: int, call: intrinsics.Call | None = None) -> Any:
    """A method call on a run-time value."""
    if isinstance(value, Scattered):
        return value.gather(f, lambda part: method(f, part, name, args, line, call))
    if is_number(value) and name == "bit_count" and not args and value.dtype.kind in "iu":
        if f.m.counts is not None and f.mask is not None:
            f.m.counts.instruction(line, f.mask)
        return libdevice.popcount(value).astype(value.dtype)[()]  # of the pattern: Python counts those of abs(x)
    if isinstance(value, Array) and name == "view" and len(args) == 1:
        return _reinterpreted(f, value, args[0], line)
    if isinstance(value, Array) and name == "reshape":
        return _reshaped(f, value, args[0] if len(args) == 1 and isinstance(args[0], tuple) else tuple(args), line)
    if is_number(value) and not args and name == "conjugate":
        return np.conjugate(value)
    if isinstance(value, np.dtype) and name == "type":
        return cast_call(f, value, args, line)
    if isinstance(value, slice) and name == "indices" and len(args) == 1:
        parts = [None if v is None else indexing.as_one(f, v, line) for v in (value.start, value.stop, value.step)]
        return tuple(map(np.int64, slice(*parts).indices(indexing.as_one(f, args[0], line))))
    if isinstance(value, Array) and name == "transpose" and not args:
        return value.transposed()
    if isinstance(value, Array) and name == "fill" and len(args) == 1:
        indexing.set_item(f, value, (Ellipsis,), args[0], value.storage.name, line, (True,))
        return None
    if isinstance(value, Array) and name == "item" and not args and value.ndim == 0:
        return indexing.get_item(f, value, (), value.storage.name, line, ())
    if isinstance(value, Array) and call is not None and name in array_functions.METHODS:
        return array_functions.METHODS[name](f, call, value, *args)
    if is_number(value) and name == "view" and len(args) == 1 and (dtype := dtypes.as_dtype(args[0])) is not None:
        if dtype.itemsize != value.dtype.itemsize:
            message = f"{value.dtype} cannot be viewed as {dtype}: the sizes differ"
            raise f.m.error(message, line, UnsupportedError)
        return value.view(dtype)
    why = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise f.m.error(f"{kind_of(value)} has no method {name}() in a kernel{why}", line, UnsupportedError)


#: What to write instead of a method that Numba does not compile for a GPU.
_INSTEAD = {
    "copy": "a kernel makes no arrays; copy element by element into a cuda.local.array",
    "flatten": "a kernel makes no arrays; write x.reshape(x.size) of an array in C order",
    "ravel": "a kernel makes no arrays; write x.reshape(x.size) of an array in C order",
    "astype": "convert each element, as in np.float32(x[i])", "item": "index it, x[i]", "min": "write min(x) or a loop",
    "max": "write max(x) or a loop", "cumsum": "write a loop", "sort": "write a loop", "dot": "write a loop",
    "tolist": "a kernel has no lists", "append": "fill a cuda.local.array", "index": "write a loop",
    "count": "write a loop", "bit_length": "write 32 - cuda.clz(x)", "is_integer": "write x == math.floor(x)",
    "_replace": "make the tuple anew", "_asdict": "write the fields", "tobytes": "write x.view(np.uint8)",
}  # fmt: skip


def _reinterpreted(f: Frame, array: Array, kind: Any, line: int) -> Array:
    """`x.view(dtype)`: the same bytes as numbers of another type; the last axis must be contiguous."""
    dtype = dtypes.as_dtype(kind)
    old, storage = array.dtype, array.storage
    if dtype is None or dtype.names or old.names or dtype.kind not in "biufc":
        raise f.m.error(f"view() takes a type of numbers, and an array of them, not {kind}", line, UnsupportedError)
    if f.m.dry:
        return Array(Storage(storage.space, np.zeros((1,) * storage.values.ndim, dtype)), dtype, array.shape,
                     array.strides, 0)  # fmt: skip
    if storage.space == "local" or not isinstance(array.offset, (int, np.integer)) or storage.unit != old.itemsize:
        raise f.m.error("view() works on arrays in global and shared memory that are alike in every thread", line,
                        UnsupportedError)  # fmt: skip
    *outer, last = array.shape
    if array.ndim == 0 or array.strides[-1] != 1 or last * old.itemsize % dtype.itemsize:
        raise f.m.error(f"{last} elements of {old} cannot be seen as {dtype} without a copy", line)
    start = array.offset * old.itemsize
    row = storage.values.shape[-1] * old.itemsize
    shared = storage.space == "shared"  # one row a block, and all rows are of whole units
    unit = math.gcd(dtype.itemsize, start, row if shared else 0, *(s * old.itemsize for s in array.strides[:-1]))
    if shared and row % alignment(dtype):
        raise f.m.error(f"{row} bytes of shared memory are not a whole number of {dtype}", line)
    if unit % alignment(dtype):
        raise f.m.error(f"misaligned: this view of {dtype} starts at byte {start}", line)
    seen = storage.leaves.get((dtype, unit))
    if seen is None:
        storage.cells.refine(unit)
        raw = storage.values.view(np.uint8)
        values = overlapping(raw, dtype, unit) if shared else every(raw, dtype, unit)
        seen = Storage(storage.space, values, name=storage.name, cells=storage.cells, unit=unit, start=storage.start,
                       aligned=storage.aligned)  # fmt: skip
        storage.leaves[dtype, unit] = seen
    strides = (*(s * old.itemsize // unit for s in array.strides[:-1]), dtype.itemsize // unit)
    shape = (*outer, last * old.itemsize // dtype.itemsize)
    return Array(seen, dtype, shape, strides, start // unit)


def _reshaped(f: Frame, array: Array, extents: tuple, line: int) -> Array:
    """`x.reshape(shape)`: another shape of the same elements, which must lie in C order."""
    step = pitch(array.dtype)
    shape = tuple(int(n) for n in extents if isinstance(n, np.generic))
    if len(shape) == len(extents) and -1 in shape:
        rest = math.prod(n for n in shape if n != -1)
        shape = tuple(array.size() // rest if n == -1 and rest else n for n in shape)
    refused = f"an array of shape {array.shape} cannot be reshaped to {shape}"
    if len(shape) != len(extents) or math.prod(shape) != array.size():
        raise f.m.error(refused, line)
    if array.size() and array.strides != c_strides(array.shape, step):
        strides = tuple(s * (array.storage.unit if step == 1 else 1) for s in array.strides)
        raise f.m.error(f"{refused}: Numba reshapes arrays in C order only; this one has the strides {strides}", line)
    return Array(array.storage, array.dtype, shape, c_strides(shape, step), array.offset)
