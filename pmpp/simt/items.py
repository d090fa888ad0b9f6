"""Subscripts and attributes: elements, views and slices of arrays, items of tuples."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp.simt import memory, operators
from pmpp.simt.errors import UnsupportedError
from pmpp.simt.frames import Frame, is_number, kind_of
from pmpp.simt.machine import Machine
from pmpp.simt.memory import Array, Storage
from pmpp.simt.vectors import Vector


def constant_array(m: Machine, values: np.ndarray, name: str) -> Array:
    """A global NumPy array: Numba compiles its values into the kernel."""
    key = ("constant", id(values))
    array = m.constants.get(key)
    if array is None:
        copy = np.ascontiguousarray(values)
        storage = Storage("const", copy.reshape(-1), name=name)
        array = m.constants[key] = Array(storage, copy.dtype, copy.shape, memory.c_strides(copy.shape))
    return array


def get_item(f: Frame, base: Any, indices: tuple, name: str, line: int, literals: tuple[bool, ...]) -> Any:
    """`base[indices]`: an element, a view, or a tuple's item."""
    if isinstance(base, Array):
        if len(indices) == base.ndim and not any(isinstance(i, slice) for i in indices):
            literals = literals if len(literals) == len(indices) else (False,) * len(indices)
            at, mask = memory.position(f.m, f.mask, base, indices, name, line, literals)
            if mask is None:
                return base.dtype.type(0)
            return memory.load(f.m, mask, base, at, name, line)
        return _view(f, base, indices, name, line)
    if isinstance(base, tuple):
        if len(indices) == 1 and isinstance(indices[0], slice):
            return base[
                slice(*(None if v is None else int(v) for v in (indices[0].start, indices[0].stop, indices[0].step)))
            ]
        if len(indices) == 1 and is_number(indices[0]) and indices[0].size == 1:
            i = int(indices[0] if isinstance(indices[0], np.generic) else indices[0].reshape(-1)[0])
            if -len(base) <= i < len(base):
                return base[i]
            raise f.m.error(f"{name}[{i}] is outside a tuple of {len(base)}", line, UnsupportedError)
        return _tuple_lookup(f, base, indices, name, line)
    raise f.m.error(f"{name} is {kind_of(base)} and cannot be indexed", line, UnsupportedError)


def _tuple_lookup(f: Frame, base: tuple, indices: tuple, name: str, line: int) -> Any:
    if len(indices) != 1 or not is_number(indices[0]):
        raise f.m.error(f"{name} is a tuple and takes one integer index", line, UnsupportedError)
    if len({v.dtype for v in base if is_number(v)}) != 1 or not all(map(is_number, base)):
        raise f.m.error(f"{name} holds different types, so its index must be a constant", line, UnsupportedError)
    result = base[0]
    for i, value in enumerate(base[1:], 1):
        result = np.where(indices[0] == i, value, result)
    return result


def _view(f: Frame, base: Array, indices: tuple, name: str, line: int) -> Array:
    """An array of fewer elements: some axes indexed, others sliced or left whole."""
    if len(indices) > base.ndim:
        raise f.m.error(f"{name} has {base.ndim} axes and cannot take {len(indices)} indices", line, UnsupportedError)
    offset, shape, strides = base.offset, [], []
    for axis, extent in enumerate(base.shape):
        stride = base.strides[axis]
        index = indices[axis] if axis < len(indices) else slice(None)
        if isinstance(index, slice):
            start, count, step = _slice(f, index, extent, line)
            offset = offset + start * stride
            shape.append(count)
            strides.append(stride * step)
        else:
            template = ", ".join("?" if k == axis else ":" for k in range(base.ndim))
            index = memory.as_index(f.m, index, name)
            index, _ = memory.in_bounds(f.m, f.mask, index, extent, name, base.storage.space, template, line, False)
            offset = offset + index * stride
    return Array(base.storage, base.dtype, tuple(shape), tuple(strides), offset)


def _slice(f: Frame, s: slice, extent: Any, line: int) -> tuple[Any, Any, int]:
    step = 1 if s.step is None else _uniform(s.step)
    if step is None:
        raise f.m.error("the step of a slice must be the same for every thread", line, UnsupportedError)
    parts = [None if v is None else _uniform(v) for v in (s.start, s.stop)]
    fixed = all(v is None or p is not None for v, p in zip((s.start, s.stop), parts, strict=True))
    if fixed and isinstance(extent, int):
        start, stop, step = slice(parts[0], parts[1], step).indices(extent)
        return start, len(range(start, stop, step)), step
    if step != 1:
        raise f.m.error("a slice whose bounds differ between threads must have step 1", line, UnsupportedError)
    start, stop = (0 if s.start is None else s.start), (extent if s.stop is None else s.stop)
    start, stop = (np.clip(np.where(np.less(v, 0), v + extent, v), 0, extent) for v in (start, stop))
    return start, np.maximum(stop - start, 0), 1


def _uniform(value: Any) -> int | None:
    return int(np.asarray(value).reshape(-1)[0]) if np.size(value) == 1 else None


def set_item(f: Frame, base: Any, indices: tuple, value: Any, name: str, line: int, literals: tuple[bool, ...]) -> None:
    """`base[indices] = value`."""
    if f.mask is None:
        return
    if not isinstance(base, Array):
        raise f.m.error(f"{name} is {kind_of(base)} and its items cannot be assigned", line, UnsupportedError)
    if len(indices) != base.ndim or any(isinstance(i, slice) for i in indices):
        view = _view(f, base, indices, name, line)
        if not all(isinstance(n, int) for n in view.shape):
            raise f.m.error(
                "assigning to a slice whose length differs between threads is not supported", line, UnsupportedError
            )
        for where in np.ndindex(*view.shape):
            at = tuple(np.int64(i) for i in where)
            each = get_item(f, value, at, name, line, (True,) * len(at)) if isinstance(value, Array) else value
            set_item(f, view, at, each, name, line, (True,) * len(at))
        return
    if not is_number(value):
        raise f.m.error(f"cannot store {kind_of(value)} in {name}, an array of {base.dtype}", line, UnsupportedError)
    if value.dtype.kind == "c" and base.dtype.kind != "c":
        hint = "store its .real, its .imag or abs()"
        raise f.m.error(
            f"cannot store {value.dtype} in {name}, an array of {base.dtype}: {hint}", line, UnsupportedError
        )
    literals = literals if len(literals) == len(indices) else (False,) * len(indices)
    at, mask = memory.position(f.m, f.mask, base, indices, name, line, literals)
    if mask is not None:
        memory.store(f.m, mask, base, at, value, name, line)


def _part(f: Frame, array: Array, name: str, line: int) -> Array:
    """`x.real` and `x.imag` of an array: views, every other number of the same bytes."""
    if array.dtype.kind != "c" and name == "real":
        return array
    if array.dtype.kind != "c" or array.storage.space == "local":
        what = "a local array" if array.dtype.kind == "c" else f"an array of {array.dtype}"
        raise f.m.error(f"the interpreter has no .{name} of {what}: take it of an element", line, UnsupportedError)
    storage = array.storage if f.m.dry else array.storage.as_real(f.m.lanes.width)
    strides = tuple(2 * s for s in array.strides)
    dtype = np.dtype(f"f{array.dtype.itemsize // 2}")
    return Array(storage, dtype, array.shape, strides, 2 * array.offset + (name == "imag"))


def attribute(f: Frame, value: Any, name: str, line: int) -> Any:
    """An attribute of a run-time value."""
    if isinstance(value, Array):
        found = {
            "shape": lambda: tuple(np.int64(n) if isinstance(n, int) else n for n in value.shape),
            "size": lambda: np.int64(value.size()) if isinstance(value.size(), int) else value.size(),
            "ndim": lambda: np.int64(value.ndim),
            "strides": lambda: tuple(np.int64(s * value.dtype.itemsize) for s in value.strides),
            "itemsize": lambda: np.int64(value.dtype.itemsize),
            "nbytes": lambda: np.int64(value.size() * value.dtype.itemsize),
            "dtype": lambda: value.dtype,
            "T": value.transposed,
            "real": lambda: _part(f, value, "real", line),
            "imag": lambda: _part(f, value, "imag", line),
        }.get(name)
        if found is not None:
            return found()
    elif isinstance(value, Vector) and value.member(name) is not None:
        return value.member(name)
    elif name in getattr(value, "_fields", ()) or (is_number(value) and name in ("real", "imag")):
        return getattr(value, name)
    elif isinstance(value, np.dtype) and name == "type":
        return value
    raise f.m.error(f"{kind_of(value)} has no attribute {name} in a kernel", line, UnsupportedError)


def contains(f: Frame, a: Any, b: Any, wanted: bool, line: int) -> Any:
    """`a in (x, y, z)`."""
    if not isinstance(b, tuple):
        raise f.m.error(f"`in` takes a tuple, not {kind_of(b)}", line, UnsupportedError)
    found: Any = np.False_
    for each in b:
        found = np.logical_or(found, operators.COMPARE["Eq"](a, each))
    return found if wanted else np.logical_not(found)
