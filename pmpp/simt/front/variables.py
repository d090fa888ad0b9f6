"""Frames: one activation of one function by a set of lanes, and the variables it holds."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmpp.simt.front import tuples
from pmpp.simt.front.things import Choice, may_differ, parts_of
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.lanes import Mask, union
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.machine.storage import poison
from pmpp.simt.values import dtypes, operators
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.errors import SimtError, UnsupportedError
from pmpp.simt.values.vectors import Vector


@dataclass(frozen=True)
class Range:
    """`range(start, stop, step)` with typed, possibly lane-varying bounds."""

    start: Any
    stop: Any
    step: Any
    dtype: np.dtype


@dataclass(frozen=True)
class Places:
    """`np.ndindex(*extents)`: all indices of an array of this shape, whose extents may differ between lanes."""

    extents: tuple


@dataclass(frozen=True)
class Numbered:
    """`enumerate(source, start)`."""

    source: Any
    start: Any


@dataclass(frozen=True)
class LocalFunction:
    """A function defined inside a kernel, and the frame whose variables it sees."""

    function: Any
    frame: Frame


class Mixed:
    """A variable that lanes on different branches gave different types: (mask, value) pairs.

    Numba types each assignment by itself and unifies where branches meet.  So the parts are kept apart until lanes of
    several parts read the variable together.
    """

    def __init__(self, parts: list[tuple[Mask, Any]]) -> None:
        self.parts = parts

    @property
    def dtype(self) -> np.dtype:
        """The common type of all parts."""
        return functools.reduce(dtypes.unify, (value.dtype for _, value in self.parts))

    def read(self, f: Frame, mask: Mask, line: int) -> Any:
        """The value in the lanes of `mask`."""
        here = [(part, value) for part, value in self.parts if mask.overlaps(part)]
        value = here[0][1]
        for part, other in here[1:]:
            value = select(f, part.bits, other, value, line)
        return value


_SEVERAL = (Mixed, Choice)


# -- variables -------------------------------------------------------------------------------------------------------


def reader(name: str, line: int, level: int) -> Callable[[Frame], Any]:
    """An expression that is a variable.  Most often all lanes have it, from one branch; then it is looked up, and done.

    Reading variables is the most frequent thing that a launch does.
    """
    if level:
        return lambda f: read_variable(f, name, line, level)

    def read(f: Frame) -> Any:
        value = f.vars.get(name)
        if value is None or f.undefined or name in f.partial or value.__class__ in _SEVERAL:
            return read_variable(f, name, line)
        return value

    return read


def read_variable(f: Frame, name: str, line: int, level: int = 0) -> Any:
    """The value of a variable, of this function or of the one `level` definitions further out.

    A hazard where an active lane never assigned it, and an error where none does on a line above.
    """
    holder = f
    while level:
        holder, level = holder.outer, level - 1
    try:
        value = holder.vars[name]
    except KeyError:
        value = _never_assigned(f, holder, name, line)
        f.m.hazard("uninitialised_read", "register", name, line, int(np.argmax(f.mask.grid())), _UNASSIGNED)
        return value
    defined = holder.partial.get(name) if holder.partial else None
    if defined is not None and f.mask is not None and not defined.covers(f.mask):
        lane = int(np.argmax(f.mask.without(defined.bits).grid()))
        f.m.hazard("uninitialised_read", "register", name, line, lane, _UNASSIGNED)
    if name in holder.undefined and f.mask is not None:
        lost, since, whom = holder.undefined[name]
        used = lost & f.mask.grid()
        if used.any():
            message = f"{{who}} uses {{name}}, which it got from {whom} on line {since}"
            f.m.hazard("uninitialised_read", "register", name, line, int(np.argmax(used)), message)
    if isinstance(value, (Mixed, Choice)) and f.mask is not None:
        return value.read(f, f.mask, line) if isinstance(value, Mixed) else value.narrowed(f.mask)
    return value


_UNASSIGNED = "{who} reads {name}, which it never assigned: only another branch did"


def _never_assigned(f: Frame, holder: Frame, name: str, line: int) -> Any:
    """What a variable holds that no lane has assigned: poison, if the path that assigns it says of which type.

    Numba does not compile a variable that is assigned nowhere above.
    """
    types = {}
    if f.mask is not None and not f.m.dry and holder.function.names.stored_from.get(name, line) < line:
        types = holder.function.types_of_variables(holder)
    if name not in types:
        raise f.m.error(f"the variable {name!r} is read before it is assigned", line, UnsupportedError)
    return poison((1,), types[name])[0]


def read_operand(f: Frame, name: str, line: int) -> Any:
    """The value of a variable that a shuffle passes on.

    A lane without one gives nothing, and whether that matters is up to who asks it.
    """
    if f.mask is None or f.m.dry:
        return read_variable(f, name, line)
    defined, here = f.partial.get(name), f.mask.grid()
    absent = f.undefined[name].lanes & here if name in f.undefined else np.zeros_like(here)
    if name not in f.vars:
        value, absent = _never_assigned(f, f, name, line), here
    else:
        value = f.vars[name]
        if defined is not None and not defined.covers(f.mask):
            absent = absent | (here & ~defined.grid())
        if isinstance(value, Mixed):
            value = value.read(f, f.mask, line)
    f.absent = absent if absent.any() else None
    return value


def assign_shuffled(f: Frame, name: str, value: Any, line: int) -> None:
    """Assign what a shuffle gave.  Lanes that got nothing may not use it."""
    new = f.undefined.pop(None, None)
    assign(f, name, value, line)
    if new is not None:
        rest = f.undefined.get(name)
        f.undefined[name] = new if rest is None else new._replace(lanes=new.lanes | rest.lanes)


def assign(f: Frame, name: str, value: Any, line: int) -> None:
    """Assign under the mask; where only some lanes assign, the others keep what they had."""
    mask, variables = f.mask, f.vars
    if mask is None:
        return
    if name in f.undefined:
        rest = f.undefined[name].lanes & ~mask.grid()
        if rest.any():
            f.undefined[name] = f.undefined[name]._replace(lanes=rest)
        else:
            del f.undefined[name]
    if mask is f.live:
        variables[name] = value
        if f.partial:
            f.partial.pop(name, None)
        return
    defined = f.partial.get(name)
    if name not in variables or (defined is not None and mask.covers(defined)):
        variables[name] = value
        f.partial[name] = mask
        return
    old = variables[name]
    if isinstance(old, Mixed) or (is_number(old) and is_number(value) and old.dtype != value.dtype):
        parts = old.parts if isinstance(old, Mixed) else [(f.m.batch.lanes.full, old)]
        kept = [(rest, each) for part, each in parts if (rest := part.without(mask.bits)) is not None]
        variables[name] = Mixed([*kept, (mask, value)])
    else:
        variables[name] = select(f, mask.bits, value, old, line)
    if defined is not None:
        both = union(defined, mask)
        if both.covers(f.live):
            del f.partial[name]
        else:
            f.partial[name] = both


def select(f: Frame, bits: np.ndarray | None, a: Any, b: Any, line: int) -> Any:
    """`a` in the lanes of `bits`, `b` in the others, in the type that Numba gives a variable with both."""
    if (
        a is b
        or bits is None
        or (isinstance(a, LocalFunction) and isinstance(b, LocalFunction) and a.function is b.function)
    ):
        return a
    if is_number(a) and is_number(b):
        dtype = dtypes.unify(a.dtype, b.dtype)
        a, b = dtypes.cast(a, dtype), dtypes.cast(b, dtype)
        if isinstance(a, np.generic) and isinstance(b, np.generic) and a.tobytes() == b.tobytes():  # 0.0 is not -0.0
            return a
        return np.where(bits, a, b)
    if isinstance(a, tuple) and type(a) is type(b) and len(a) == len(b):
        return tuples.like(a, [select(f, bits, x, y, line) for x, y in zip(a, b, strict=True)])
    if isinstance(a, Vector) and isinstance(b, Vector) and a.kind == b.kind:
        return a.map(lambda x, y: select(f, bits, x, y, line), b)
    if isinstance(a, (Array, Scattered)) and isinstance(b, (Array, Scattered)):
        return scattered(f, bits, a, b, line)
    chosen = _chosen(f, bits, a, b, line)
    if chosen is not None:
        return chosen
    kinds = f"{kind_of(a)} in some threads and {kind_of(b)} in others"
    hint = ": call each in a branch of its own" if callable(a) and callable(b) else ""
    raise f.m.error(f"a variable cannot be {kinds}{hint}", line, UnsupportedError)


def scattered(f: Frame, bits: np.ndarray, a: Array | Scattered, b: Array | Scattered, line: int) -> Array | Scattered:
    """Arrays of which some lanes have one and others another, in one variable."""
    parts: list[tuple[np.ndarray, Array]] = []
    for whole, lanes in ((a, bits), (b, ~np.asarray(bits))):
        for here, array in whole.parts if isinstance(whole, Scattered) else ((True, whole),):
            mine = lanes & here
            for k, (theirs, known) in enumerate(parts):
                if known.storage is array.storage and known.strides == array.strides and known.shape == array.shape:
                    offset = (
                        array.offset if known.offset is array.offset else np.where(mine, array.offset, known.offset)
                    )
                    parts[k] = theirs | mine, Array(array.storage, array.dtype, array.shape, array.strides, offset)
                    break
            else:
                if parts and (parts[0][1].dtype != array.dtype or parts[0][1].ndim != array.ndim):
                    kinds = f"{kind_of(parts[0][1])} in some threads and {kind_of(array)} in others"
                    raise f.m.error(f"a variable cannot be {kinds}: Numba has no type for both", line, UnsupportedError)
                parts.append((mine, array))
    return parts[0][1] if len(parts) == 1 else Scattered(tuple(parts))


def _chosen(f: Frame, bits: np.ndarray, a: Any, b: Any, line: int) -> Any:
    """Strings, members of an enumeration, or perhaps nothing, in one variable; None if Numba has no type for it."""
    if isinstance(a, enum.IntEnum) and isinstance(b, enum.IntEnum) and type(a) is type(b):
        return select(f, bits, np.int64(a), np.int64(b), line)
    parts: list[tuple[np.ndarray, Any]] = []
    for mine, thing in [*parts_of(a, np.asarray(bits)), *parts_of(b, ~np.asarray(bits))]:
        for k, (theirs, known) in enumerate(parts):
            values = is_number(thing) and is_number(known)
            if thing is known or values or (isinstance(thing, (str, enum.Enum)) and thing == known):
                parts[k] = theirs | mine, select(f, mine, thing, known, line) if values else known
                break
        else:
            parts.append((mine, thing))
    if len(parts) == 1:
        return parts[0][1]
    return Choice(parts) if may_differ([thing for _, thing in parts]) else None


def bad_operands(f: Frame, operator: str, a: Any, b: Any, line: int) -> SimtError:
    """The error for an operator that does not take these operands."""
    operands = kind_of(a) if operator in ("USub", "UAdd", "Invert", "Not") else f"{kind_of(a)} and {kind_of(b)}"
    both = (a, b)
    hint = ""
    if any(isinstance(v, (Array, Scattered)) for v in both):
        hint = "; a kernel works on elements: index the array"
    elif any(v is None or (isinstance(v, Choice) and v.has_none) for v in both):
        hint = "; ask `is None` first" if operator in ("Eq", "NotEq") else "; test `if v is not None` before"
    elif any(isinstance(v, str) for v in both):
        hint = "; a kernel compares strings, and does no more with them"
    elif any(isinstance(v, enum.Enum) for v in both):
        hint = "; write its .value"
    elif operator == "Mult" and any(isinstance(v, tuple) for v in both):
        hint = "; a tuple is repeated only where both are literals, as in (0,) * 4"
    elif operator == "Add" and isinstance(a, tuple) and isinstance(b, tuple):
        hint = "; of plain tuples there is a = a + b, not +="
    message = f"the operator {SYMBOLS.get(operator, operator)} does not take {operands}{hint}"
    return f.m.error(message, line, UnsupportedError)


SYMBOLS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "LShift": "<<",
    "RShift": ">>", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "USub": "-", "UAdd": "+", "Invert": "~", "Not": "not",
    "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!=",
}  # fmt: skip


def inplace_division(operate: Callable) -> Callable:
    """`a /= b`: Numba does not compile it for two integers, because the result is a float."""

    def divide(f: Frame, a: Any, b: Any, line: int) -> Any:
        if is_number(a) and is_number(b) and dtypes.is_int(a.dtype) and dtypes.is_int(b.dtype):
            raise f.m.error(
                "/= on two integers does not compile in Numba: write x = x / y, or x //= y", line, UnsupportedError
            )
        return operate(f, a, b, line)

    return divide


def unpack(f: Frame, value: Any, count: int, line: int) -> tuple:
    """Split a tuple over `count` targets."""
    if not isinstance(value, tuple):
        what, hint = kind_of(value), ""
        if isinstance(value, Array):
            what = "a record" if value.is_record and not value.ndim else what
            hint = f": write its {'fields' if what == 'a record' else 'elements'} one by one"
        raise f.m.error(f"cannot unpack {what}{hint}", line, UnsupportedError)
    if len(value) != count:
        raise f.m.error(f"a tuple of {len(value)} cannot be unpacked into {count} names", line, UnsupportedError)
    return value


def condition(f: Frame, value: Any, line: int) -> np.ndarray | np.bool_:
    """A value as a condition: a NumPy bool where it is the same for every lane, else an array of bools."""
    if not is_number(value):
        if value is None or isinstance(value, (bool, str, tuple)):
            return np.bool_(bool(value))
        array = isinstance(value, (Array, Scattered))
        hint = ": test one of its elements" if array else ": write its .value" if isinstance(value, enum.Enum) else ""
        raise f.m.error(f"{kind_of(value)} is not a condition{hint}", line, UnsupportedError)
    try:
        value = dtypes.truth(value)
    except TypeError as error:
        raise f.m.error(str(error), line, UnsupportedError) from error
    return value.reshape(-1)[0] if value.size == 1 else value


def common_zero(values: list) -> Any:
    """In a dry run: a zero of the type that all values have in common."""
    if not all(map(is_number, values)):
        return values[0]
    dtype = values[0].dtype
    for value in values[1:]:
        dtype = dtypes.unify(dtype, value.dtype)
    return dtype.type(0)


def widen(value: Any, dtype: np.dtype | None) -> Any:
    return value if dtype is None or not is_number(value) or value.dtype == dtype else dtypes.cast(value, dtype)


def check_operator(f: Frame, name: str, a: Any, b: Any, line: int) -> None:
    """An error where Numba raises an exception: complex division by zero, the least integer as an exponent."""
    found = operators.raises(name, a, b)
    if found is not None and np.any(found[0]):
        check_assertion(f, ~found[0], found[1], line)


def check_assertion(f: Frame, value: Any, text: str, line: int) -> None:
    """`assert` and `raise`: an error in the first lane that fails.  (A GPU reports it with debug=True only.)"""
    if f.m.dry:
        return
    c = condition(f, value, line)
    failed, _ = f.mask.split(np.broadcast_to(~c, (1, 1)) if isinstance(c, np.bool_) else ~c)
    if failed is not None:
        block, thread = f.m.batch.lanes.threads_at(int(np.argmax(failed.grid())))
        raise f.m.error(f"{text} in thread {thread} of block {block}", line)
