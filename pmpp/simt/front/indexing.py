"""Subscripts and attributes: elements, views and slices of arrays, items of tuples."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from pmpp.simt.api import hopper
from pmpp.simt.front import inference, variables
from pmpp.simt.front.things import Choice
from pmpp.simt.machine import memory
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array, Storage
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.values import dtypes, records
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.errors import UnsupportedError
from pmpp.simt.values.vectors import Vector


def constant_array(m: Machine, values: np.ndarray, name: str) -> Array:
    """A global NumPy array: Numba compiles its values into the kernel."""
    key = ("constant", id(values))
    array = m.constants.get(key)
    if array is None:
        copy = np.array(values, records.plain(values.dtype), order="C", subok=False)
        if not records.supported(copy.dtype):
            raise m.error(f"the global array {name} holds {copy.dtype}; a kernel takes numbers", kind=UnsupportedError)
        storage = Storage("const", copy.reshape(-1), name=name)
        strides = memory.c_strides(copy.shape, records.pitch(copy.dtype))
        array = m.constants[key] = Array(storage, copy.dtype, copy.shape, strides)
    return array


def captured_array(m: Machine, thing: Any) -> Array:
    """A global device array: the kernel holds its address, and sees and changes what is there now."""
    key = ("captured", id(thing))
    array = m.constants.get(key)
    if array is None:
        array = m.constants[key] = m.launch.capture(thing)
    return array


#: Indices that are no place along an axis, and those that leave or make one.
_NO_PLACE = {type(None), type(Ellipsis)}
_VIEWS = {type(None), slice}


def get_item(f: Frame, base: Any, indices: tuple, name: str, line: int, literals: tuple[bool, ...]) -> Any:
    """`base[indices]`: an element, a view, or a tuple's item."""
    if base.__class__ is Array:
        register = memory.register(f.m, base, indices)
        if register is not None:
            return memory.load_register(f.m, f.mask, base, register, name, line)
    if isinstance(base, Scattered):
        return base.gather(f, lambda part: get_item(f, part, indices, name, line, literals))
    if isinstance(base, Array):
        if not _NO_PLACE.isdisjoint(map(type, indices)):
            indices, literals = _expanded(f, base, indices, literals, name, line, reading=True)
        if base.is_record and (base.ndim == 0 or isinstance(indices[0], str)):
            return load_field(f, base, _field_name(f, base, indices, name, line), f"{name}[{indices[0]!r}]", line)
        if len(indices) == base.ndim and _VIEWS.isdisjoint(map(type, indices)):
            literals = _aligned_literals(literals, indices)
            at, mask = memory.position(f.m, f.mask, base, indices, name, line, literals)
            if base.is_record:
                return Array(base.storage, base.dtype, (), (), memory.lose(at, f.mask, mask))
            if mask is None:
                return base.dtype.type(0)
            return memory.load(f.m, mask, base, at, name, line)
        return _view(f, base, indices, name, line, literals)
    if isinstance(base, tuple):
        if len(indices) == 1 and isinstance(indices[0], slice):
            bounds = (indices[0].start, indices[0].stop, indices[0].step)
            if not all(v is None or (is_number(v) and v.size == 1) for v in bounds):
                raise f.m.error(f"a slice of the tuple {name} takes constants", line, UnsupportedError)
            return tuple(base)[slice(*(None if v is None else int(v) for v in bounds))]
        if len(indices) == 1 and is_number(indices[0]) and indices[0].dtype == dtypes.BOOL:
            message = f"{name} is a tuple, and Numba takes no bool as its index: write a if condition else b"
            raise f.m.error(message, line, UnsupportedError)
        if len(indices) == 1 and is_number(indices[0]) and indices[0].size == 1:
            i = int(indices[0] if isinstance(indices[0], np.generic) else indices[0].reshape(-1)[0])
            if -len(base) <= i < len(base):
                hopper.refuse_ticket(f, base[i], name, line)
                return base[i]
            raise f.m.error(f"{name}[{i}] is outside a tuple of {len(base)}", line, UnsupportedError)
        return _tuple_lookup(f, base, indices, name, line)
    if isinstance(base, enum.EnumMeta) and len(indices) == 1 and indices[0] in base.__members__:
        return base[indices[0]]
    raise f.m.error(f"{name} is {kind_of(base)} and cannot be indexed", line, UnsupportedError)


def _tuple_lookup(f: Frame, base: tuple, indices: tuple, name: str, line: int) -> Any:
    if len(indices) != 1 or not is_number(indices[0]):
        raise f.m.error(f"{name} is a tuple and takes one integer index", line, UnsupportedError)
    if len({inference.type_of(v) for v in base}) != 1:
        raise f.m.error(f"{name} holds different types, so its index must be a constant", line, UnsupportedError)
    index = indices[0].astype(np.int64)
    inside = (index >= -len(base)) & (index < len(base))
    variables.check_assertion(f, inside, f"IndexError: {name} is a tuple of {len(base)}, and its index outside", line)
    index = np.where(index < 0, index + len(base), index)
    result = base[0]
    for i, value in enumerate(base[1:], 1):
        result = variables.select(f, index == i, value, result, line)
    hopper.refuse_ticket(f, result, name, line)
    return result


def _expanded(
    f: Frame, base: Array, indices: tuple, literals: tuple, name: str, line: int, *, reading: bool = False
) -> tuple[tuple, tuple]:
    """Indices, and whether each is a literal, with all that `...` stands for. `None`, which makes an axis, stays."""
    if sum(index is Ellipsis for index in indices) > 1:
        raise f.m.error(f"{name} is indexed with two ...; one is enough", line, UnsupportedError)
    if len(indices) == 1 and reading and base.ndim:
        said, instead = ("...", ":") if indices[0] is Ellipsis else ("None", "None, ...")
        message = f"{name}[{said}] alone does not compile in Numba for a GPU: write {name}[{instead}]"
        raise f.m.error(message, line, UnsupportedError)
    literals = _aligned_literals(literals, indices)
    at = next((k for k, index in enumerate(indices) if index is Ellipsis), None)
    if at is None:
        return indices, literals
    missing = base.ndim - sum(index is not None for index in indices) + 1
    whole = (slice(None),) * missing
    return (*indices[:at], *whole, *indices[at + 1 :]), (*literals[:at], *whole, *literals[at + 1 :])


def _aligned_literals(literals: tuple, indices: tuple) -> tuple:
    return literals if len(literals) == len(indices) else (False,) * len(indices)


def _view(f: Frame, base: Array, indices: tuple, name: str, line: int, literals: tuple = ()) -> Array:
    """An array of fewer elements: some axes indexed, others sliced or left whole."""
    count = sum(index is not None for index in indices)
    if count > base.ndim:
        raise f.m.error(f"{name} has {base.ndim} axes and cannot take {count} indices", line, UnsupportedError)
    offset, shape, strides, axis = base.offset, [], [], -1
    literals = _aligned_literals(literals, indices)
    rest = (slice(None),) * (base.ndim - count)
    for index, literal in zip((*indices, *rest), (*literals, *rest), strict=True):
        if index is None:
            shape.append(1)
            strides.append(0)
            continue
        axis += 1
        extent, stride = base.shape[axis], base.strides[axis]
        if isinstance(index, slice):
            start, count, step = _slice(f, index, extent, line)
            offset = offset + start * stride
            shape.append(count)
            strides.append(stride * step)
        else:
            index = memory.as_index(f.m, index, name)
            index, inside = memory.in_bounds(
                f.m, f.mask, index, extent, name, base.storage.space, (axis, base.ndim), line, literal
            )
            offset = memory.lose(offset + index * stride, f.mask, inside)
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
    if step == 0:
        raise f.m.error("the step of a slice is 0", line)
    low, high = (0, extent) if step > 0 else (-1, extent - 1)  # where a slice may begin and end
    begin, end = (low, high) if step > 0 else (high, low)
    start = begin if s.start is None else np.clip(np.where(np.less(s.start, 0), s.start + extent, s.start), low, high)
    stop = end if s.stop is None else np.clip(np.where(np.less(s.stop, 0), s.stop + extent, s.stop), low, high)
    return start, np.maximum(-((start - stop) // step), 0), step


def as_one(f: Frame, value: Any, line: int) -> int:
    """An integer that is the same in every thread."""
    one = _uniform(value) if is_number(value) else None
    if one is None:
        raise f.m.error(f"it takes an integer that is the same for every thread, not {kind_of(value)}", line,
                        UnsupportedError)  # fmt: skip
    return one


def _uniform(value: Any) -> int | None:
    return int(np.asarray(value).reshape(-1)[0]) if np.size(value) == 1 else None


def set_item(f: Frame, base: Any, indices: tuple, value: Any, name: str, line: int, literals: tuple[bool, ...]) -> None:
    """`base[indices] = value`."""
    if f.mask is None:
        return
    if isinstance(base, Scattered):
        base.each(f, lambda part: set_item(f, part, indices, value, name, line, literals))
        return
    if not isinstance(base, Array):
        raise f.m.error(f"{name} is {kind_of(base)} and its items cannot be assigned", line, UnsupportedError)
    if not _NO_PLACE.isdisjoint(map(type, indices)):
        indices, literals = _expanded(f, base, indices, literals, name, line)
    if base.is_record:
        if base.ndim == 0 or isinstance(indices[0], str):
            field = _field_name(f, base, indices, name, line)
            store_field(f, base, field, value, f"{name}[{indices[0]!r}]", line)
            return
        if len(indices) == base.ndim and _VIEWS.isdisjoint(map(type, indices)):
            _copy_record(f, get_item(f, base, indices, name, line, literals), value, name, line)
            return
    if len(indices) != base.ndim or not _VIEWS.isdisjoint(map(type, indices)):
        _assign_all(f, _view(f, base, indices, name, line, literals), value, name, line)
        return
    if isinstance(value, enum.IntEnum) and dtypes.is_int(base.dtype):
        value = np.int64(value)
    if not is_number(value):
        raise f.m.error(f"cannot store {kind_of(value)} in {name}, an array of {base.dtype}", line, UnsupportedError)
    if value.dtype.kind == "c" and base.dtype.kind != "c":
        hint = "store its .real, its .imag or abs()"
        raise f.m.error(
            f"cannot store {value.dtype} in {name}, an array of {base.dtype}: {hint}", line, UnsupportedError
        )
    if value.dtype == dtypes.FLOAT16 and base.dtype == dtypes.BOOL:
        message = f"cannot store float16 in {name}, an array of bool: Numba cannot compile it; write x != 0"
        raise f.m.error(message, line, UnsupportedError)
    register = memory.register(f.m, base, indices)
    if register is not None:
        memory.store_register(f.m, f.mask, base, register, value, name, line)
        return
    literals = _aligned_literals(literals, indices)
    at, mask = memory.position(f.m, f.mask, base, indices, name, line, literals)
    if mask is not None:
        memory.store(f.m, mask, base, at, value, name, line)


def _assign_all(f: Frame, view: Array, value: Any, name: str, line: int, *, arrays: bool = False) -> None:
    """Every element of a view, in turn; a view that is longer in some lanes than in others takes only theirs."""
    if isinstance(value, tuple) and (
        view.ndim != 1 or not isinstance(view.shape[0], int) or len(value) != view.shape[0]
    ):
        raise f.m.error(f"{kind_of(value)} does not fit {name}", line, UnsupportedError)
    if isinstance(value, (Array, Scattered)) and not arrays:
        message = f"{name}: Numba assigns no array to a slice on a GPU; write a loop over its elements"
        raise f.m.error(message, line, UnsupportedError)
    around = f.mask
    try:
        for where in np.ndindex(*(int(np.max(n)) for n in view.shape)):
            inside = [np.asarray(i < n) for i, n in zip(where, view.shape, strict=True) if not isinstance(n, int)]
            f.mask = around.split(np.logical_and.reduce(inside))[0] if inside else around
            if f.mask is None:
                continue
            at = tuple(np.int64(i) for i in where)
            if isinstance(value, (Array, Scattered)):
                each = get_item(f, value, at, name, line, (True,) * len(at))
            else:
                each = value[where[0]] if isinstance(value, tuple) else value
            set_item(f, view, at, each, name, line, (True,) * len(at))
    finally:
        f.mask = around


def _part(f: Frame, array: Array, name: str, line: int) -> Array:
    """`x.real` and `x.imag` of an array: views, every other number of the same bytes."""
    if array.dtype.kind != "c" and name == "real":
        return array
    if array.dtype.kind != "c" or array.storage.space == "local" or array.storage.unit != array.dtype.itemsize:
        what = "a local array or of a field" if array.dtype.kind == "c" else f"an array of {array.dtype}"
        raise f.m.error(f"the interpreter has no .{name} of {what}: take it of an element", line, UnsupportedError)
    storage = array.storage if f.m.dry else array.storage.as_real()
    strides = tuple(2 * s for s in array.strides)
    dtype = np.dtype(f"f{array.dtype.itemsize // 2}")
    return Array(storage, dtype, array.shape, strides, 2 * array.offset + (name == "imag"))


def _flat(f: Frame, array: Array, name: str, line: int) -> Array:
    """`x.flat`: the elements of an array that lies in C order, along one axis."""
    if array.strides != memory.c_strides(array.shape, records.pitch(array.dtype)):
        message = f"the interpreter has {name} only of an array that lies in C order: use its indices"
        raise f.m.error(message, line, UnsupportedError)
    size = array.size()
    return Array(
        array.storage, array.dtype, (size,), memory.c_strides((size,), records.pitch(array.dtype)), array.offset
    )


def _size(f: Frame, array: Array, line: int) -> Any:
    size = array.size()
    return np.int64(size) if isinstance(size, int) else size


#: The attributes of an array, each computed from frame, array and line.
_ATTRIBUTES = {
    "shape": lambda f, a, line: tuple(np.int64(n) if isinstance(n, int) else n for n in a.shape),
    "size": _size,
    "ndim": lambda f, a, line: np.int64(a.ndim),
    "strides": lambda f, a, line: tuple(np.int64(s * _step_bytes(a)) for s in a.strides),
    "itemsize": lambda f, a, line: np.int64(a.dtype.itemsize),
    "nbytes": lambda f, a, line: np.int64(a.size() * a.dtype.itemsize),
    "dtype": lambda f, a, line: a.dtype,
    "T": lambda f, a, line: a.transposed(),
    "flat": lambda f, a, line: _flat(f, a, "flat", line),
    "real": lambda f, a, line: _part(f, a, "real", line),
    "imag": lambda f, a, line: _part(f, a, "imag", line),
}
_OF_ARRAYS = tuple(_ATTRIBUTES)


def attribute(f: Frame, value: Any, name: str, line: int, variable: str = "") -> Any:
    """An attribute of a run-time value; `variable` is the whole expression as written."""
    if isinstance(value, Scattered):
        return value.gather(f, lambda part: attribute(f, part, name, line, variable))
    if isinstance(value, Choice) and not value.has_none:
        of_each = [(bits, attribute(f, thing, name, line, variable)) for bits, thing in value.parts]
        result = of_each[0][1]
        for bits, found in of_each[1:]:
            result = variables.select(f, bits, found, result, line)
        return result
    if isinstance(value, Array):
        if records.is_record(value.dtype) and name in value.dtype.names and (value.ndim == 0 or name not in _OF_ARRAYS):
            return load_field(f, value, name, variable, line)
        found = None if value.ndim == 0 and records.is_record(value.dtype) else _ATTRIBUTES.get(name)
        if found is not None:
            return found(f, value, line)
        if records.is_record(value.dtype):
            fields = ", ".join(value.dtype.names)
            raise f.m.error(f"the record {variable.rpartition('.')[0]} has no field {name}; it has {fields}", line,
                            UnsupportedError)  # fmt: skip
    elif isinstance(value, Vector) and value.member(name) is not None:
        return value.member(name)
    elif name in getattr(value, "_fields", ()) or (is_number(value) and name in ("real", "imag")):
        return getattr(value, name)
    elif isinstance(value, np.dtype) and name == "type":
        return value
    elif isinstance(value, slice) and name in ("start", "stop", "step") and getattr(value, name) is not None:
        return getattr(value, name)
    elif isinstance(value, enum.Enum) and name == "value" and dtypes.constant(value.value) is not None:
        return dtypes.constant(value.value)
    raise f.m.error(f"{variable}: {kind_of(value)} has no attribute {name} in a kernel", line, UnsupportedError)


# -- records ---------------------------------------------------------------------------------------------------------


def _step_bytes(array: Array) -> int:
    return 1 if records.is_record(array.dtype) else array.storage.unit


def _field_name(f: Frame, base: Array, indices: tuple, name: str, line: int) -> str:
    """The field that a subscript names: by its name, or by its place if that is a constant."""
    names = base.dtype.names
    index = indices[0] if len(indices) == 1 else None
    if isinstance(index, np.integer) and -len(names) <= index < len(names):
        return names[int(index)]
    if isinstance(index, str) and index in names:
        return index
    raise f.m.error(
        f"the record {name} takes the name of a field ({', '.join(names)}), not {indices if index is None else index}",
        line, UnsupportedError,
    )  # fmt: skip


def _field(base: Array, field: str) -> Array:
    """A field of a record, or of each record in an array."""
    dtype, start = base.dtype.fields[field][:2]
    inner = dtype.shape
    dtype = records.plain(dtype.base)
    shape, strides = base.shape + inner, base.strides + memory.c_strides(inner, dtype.itemsize)
    offset = base.offset + start
    if records.is_record(dtype):
        return Array(base.storage, dtype, shape, strides, offset)
    storage = base.storage.leaf(dtype)
    return Array(storage, dtype, shape, tuple(s // storage.unit for s in strides), offset // storage.unit)


def _aligned(f: Frame, base: Array, field: str, name: str, line: int) -> None:
    """Refuse what Numba refuses: a number of one record that does not lie at a multiple of its size.

    Through an array of fields, `records["x"][i]`, Numba loads such numbers byte by byte.
    """
    dtype, start = base.dtype.fields[field][:2]
    size = records.alignment(dtype.base)
    if base.ndim == 0 and start % size:
        raise f.m.error(
            f"{name} lies at byte {start} of its record, and a {dtype.base} must lie at a multiple of {size}: Numba "
            f"says that it is not aligned; make the dtype with align=True, or write array[{field!r}][i]", line,
            UnsupportedError,
        )  # fmt: skip


def load_field(f: Frame, base: Array, field: str, name: str, line: int) -> Any:
    """A field of a record: its number, or a view where the field is a record or an array, or `base` an array."""
    _aligned(f, base, field, name, line)
    part = _field(base, field)
    return part if part.ndim or records.is_record(part.dtype) else _number(f, part, name, line)


def _number(f: Frame, part: Array, name: str, line: int) -> Any:
    at, mask = memory.position(f.m, f.mask, part, (), name, line, ())
    return memory.load(f.m, mask, part, at, name, line)


def set_attribute(f: Frame, base: Any, field: str, value: Any, name: str, line: int) -> None:
    """`record.field = value` where the left side may be anything."""
    if not isinstance(base, Array) or not records.is_record(base.dtype) or base.ndim or field not in base.dtype.names:
        what = kind_of(base)
        raise f.m.error(f"cannot assign to {name}: {what} has no field {field} to assign to", line, UnsupportedError)
    store_field(f, base, field, value, name, line)


def store_field(f: Frame, base: Array, field: str, value: Any, name: str, line: int) -> None:
    """`record.field = value`."""
    if f.mask is None:
        return
    _aligned(f, base, field, name, line)
    _assign(f, _field(base, field), value, name, line)


def _assign(f: Frame, part: Array, value: Any, name: str, line: int) -> None:
    """Store into a number, a record or every element of an array."""
    if part.ndim:
        if f.mask is not None:
            _assign_all(f, part, value, name, line, arrays=True)
    elif records.is_record(part.dtype):
        _copy_record(f, part, value, name, line)
    elif is_number(value):
        at, mask = memory.position(f.m, f.mask, part, (), name, line, ())
        memory.store(f.m, mask, part, at, value, name, line)
    else:
        raise f.m.error(f"cannot store {kind_of(value)} in {name}, a {part.dtype}", line, UnsupportedError)


def _copy_record(f: Frame, target: Array, source: Any, name: str, line: int) -> None:
    """`a[i] = b[j]` of records, number by number; all are read before the first is written."""
    if not isinstance(source, Array) or source.ndim or source.dtype != target.dtype:
        raise f.m.error(
            f"cannot store {kind_of(source)} in {name}, which holds records of {target.dtype}", line, UnsupportedError
        )
    if f.mask is None or f.m.dry:
        return
    numbers = [_leaf(source, kind, start) for kind, start in records.leaves(source.dtype)]
    values = [_number(f, part, name, line) for part in numbers]
    for (kind, start), value in zip(records.leaves(target.dtype), values, strict=True):
        _assign(f, _leaf(target, kind, start), value, name, line)


def _leaf(record: Array, dtype: np.dtype, start: int) -> Array:
    storage = record.storage.leaf(dtype)
    return Array(storage, dtype, (), (), (record.offset + start) // storage.unit)
