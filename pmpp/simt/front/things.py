"""What is no number and no array: strings, members of enumerations, and nothing.

Each is known before a kernel runs, but which of two it is may differ between lanes: `mode = "a" if i % 2 else "b"`, or
a function that returns a number or None.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.lanes import Mask
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.errors import UnsupportedError
from pmpp.simt.values.operators import COMPARE

_PYTHON = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt,
    "GtE": operator.ge,
}  # fmt: skip


class Choice:
    """Several things under one name, each with the lanes that have it: `(bits, thing)`."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[tuple[np.ndarray, Any]]) -> None:
        self.parts = parts

    def narrowed(self, mask: Mask) -> Any:
        """The one thing that the lanes of `mask` have, or the choice if they have several."""
        here = [(bits, thing) for bits, thing in self.parts if mask.split(np.asarray(bits))[0] is not None]
        return here[0][1] if len(here) == 1 else self

    @property
    def has_none(self) -> bool:
        """Whether some lanes have nothing."""
        return any(thing is None for _, thing in self.parts)

    @property
    def described(self) -> str:
        """What it is, in a reader's words."""
        return " in some threads and ".join(kind_of(thing) for _, thing in self.parts) + " in others"


def parts_of(thing: Any, bits: np.ndarray) -> list[tuple[np.ndarray, Any]]:
    """A thing, or each of several, with the lanes among `bits` that have it."""
    return [(bits & each, part) for each, part in thing.parts] if isinstance(thing, Choice) else [(bits, thing)]


def may_differ(things: list[Any]) -> bool:
    """Whether Numba has a type for a variable that holds one of these: strings, one enumeration, or perhaps nothing."""
    some = [thing for thing in things if thing is not None]
    if all(isinstance(thing, str) for thing in some):
        return True
    if all(isinstance(thing, enum.Enum) for thing in some):
        return len(set(map(type, some))) == 1
    return len(some) == 1


def compared(name: str, a: Any, b: Any) -> Any:
    """A comparison of what is not two numbers; None if there is none."""
    equality = name in ("Eq", "NotEq")
    for one, other, turned in ((a, b, False), (b, a, True)):
        if isinstance(one, Choice) and (other is None or (isinstance(other, Choice) and other.has_none)):
            return None  # Numba compiles it, and says that nothing equals None: `is` is meant
        if isinstance(one, Choice):
            result: Any = np.False_
            for bits, part in one.parts:
                here = _comparison(name, *((other, part) if turned else (part, other)))
                if here is None:
                    return None
                result = np.where(bits, here, result)
            return result
    if isinstance(a, tuple) and isinstance(b, tuple):
        return _of_tuples(name, a, b)
    if isinstance(a, str) and isinstance(b, str):
        return np.bool_(_PYTHON[name](a, b))
    if equality and isinstance(a, enum.Enum) and isinstance(b, enum.Enum):
        return np.bool_((a == b) == (name == "Eq"))
    if equality and (a is None) != (b is None):  # of two Numba may say no: see above
        return np.bool_((a is b) == (name == "Eq"))
    return None


def _comparison(name: str, a: Any, b: Any) -> Any:
    if is_number(a) and is_number(b):
        return COMPARE[name](a, b)
    if isinstance(a, enum.IntEnum) != isinstance(b, enum.IntEnum):
        a, b = (np.int64(v) if isinstance(v, enum.IntEnum) else v for v in (a, b))
        return (
            COMPARE[name](a, b) if is_number(a) and is_number(b) and "f" not in (a.dtype.kind, b.dtype.kind) else None
        )
    return compared(name, a, b)


def _of_tuples(name: str, a: tuple, b: tuple) -> Any:
    """The first pair of elements that differ decides; of what is alike that far, the shorter tuple is the lesser."""
    if name in ("Eq", "NotEq"):
        alike: Any = np.bool_(len(a) == len(b))
        for x, y in zip(a, b, strict=False):
            if not alike.any():
                break
            same = _comparison("Eq", x, y)
            if same is None:
                return None
            alike = np.logical_and(alike, same)
        return alike if name == "Eq" else np.logical_not(alike)
    result: Any = np.bool_(_PYTHON[name](len(a), len(b)))
    for x, y in reversed(list(zip(a, b, strict=False))):
        differ, decided = _comparison("NotEq", x, y), _comparison(name, x, y)
        if differ is None or decided is None:
            return None
        result = np.where(differ, decided, result)
    return result[()] if np.ndim(result) == 0 else result


def identical(f: Frame, a: Any, b: Any, wanted: bool, line: int) -> Any:
    """`a is b`: numbers have no identity on the device, so of two of one type it asks whether they are equal."""
    if is_number(a) and is_number(b) and a.dtype == b.dtype:
        return COMPARE["Eq" if wanted else "NotEq"](a, b)
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Choice):
            if other is not None and not isinstance(other, enum.Enum):
                raise f.m.error(f"`is` asks of {kind_of(one)} only whether it is None", line, UnsupportedError)
            result: Any = np.False_
            for bits, part in one.parts:
                result = np.where(bits, (part is other) == wanted, result)
            return result
        if isinstance(one, Scattered) and other is not None:
            raise f.m.error("`is` does not compare arrays of which threads have different ones", line, UnsupportedError)
    return np.bool_((a is b) == wanted)


def contains(f: Frame, a: Any, b: Any, wanted: bool, line: int) -> Any:
    """`a in (x, y, z)`, and a string in another."""
    if isinstance(a, str) and isinstance(b, str):
        return np.bool_((a in b) == wanted)
    if not isinstance(b, tuple):
        raise f.m.error(f"`in` takes a tuple, not {kind_of(b)}", line, UnsupportedError)
    found: Any = np.False_
    for each in b:
        same = _comparison("Eq", a, each)
        if same is None:
            raise f.m.error(f"`in` cannot compare {kind_of(a)} with {kind_of(each)}", line, UnsupportedError)
        found = np.logical_or(found, same)
    return found if wanted else np.logical_not(found)


# -- enumerations ----------------------------------------------------------------------------------------------------


def as_numbers(f: Frame, a: Any, b: Any, template: str, line: int) -> tuple[Any, Any]:
    """Two operands as numbers if one is a member of an IntEnum: with integers it is an int64. Else (None, None)."""
    if not (isinstance(a, enum.IntEnum) or isinstance(b, enum.IntEnum)):
        return None, None
    kinds = [v.dtype.kind for v in (a, b) if is_number(v)]
    if any(kind in "fc" for kind in kinds):
        said, one = template.format(kind_of(a), kind_of(b)), a if isinstance(a, enum.IntEnum) else b
        member = f"{type(one).__name__}.{one.name}"
        raise f.m.error(
            f"{said} does not compile in Numba, which has no floats of an IntEnum: write {member}.value", line,
            UnsupportedError,
        )  # fmt: skip
    numbers = [np.int64(v) if isinstance(v, enum.IntEnum) else v for v in (a, b)]
    return tuple(numbers) if all(map(is_number, numbers)) else (None, None)  # type: ignore[return-value]
