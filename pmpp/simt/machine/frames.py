"""Frames: one activation of one function by a set of lanes, with its variables and its place in loops."""

from __future__ import annotations

import enum
import types
from typing import Any, NamedTuple

import numpy as np

from pmpp.simt.machine.lanes import Mask
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.vectors import Vector


class Loop:
    """Lanes that do the next round of a loop, that have left it, or that have left this round of it."""

    __slots__ = ("broken", "continued", "current", "done")

    def __init__(self) -> None:
        self.done: Mask | None = None  # lanes that have left it by its test
        self.broken: Mask | None = None
        self.continued: Mask | None = None
        self.current: Mask | None = None


class Undefined(NamedTuple):
    """Lanes that a shuffle gave nothing, the shuffle's line, and the lane that they had asked, in words."""

    lanes: np.ndarray
    line: int
    whom: str


class Frame:
    """One activation of a function by a set of lanes."""

    __slots__ = (
        "absent", "arrays", "call", "caller", "depth", "function", "left", "literals", "live", "loops", "m", "mask",
        "outer", "partial", "returned", "slots", "undefined", "value", "vars",
    )  # fmt: skip

    def __init__(self, m: Machine, function: Any, mask: Mask, caller: Frame | None = None) -> None:
        self.m, self.function, self.caller = m, function, caller
        self.call: Any = None  # for a device function: the call in the caller's source
        self.depth = 0 if caller is None else caller.depth + 1
        self.vars: dict[str, Any] = {}
        self.partial: dict[str, Mask] = {}  # lanes in which a variable has a value, when that is not all of them
        self.undefined: dict[str | None, Undefined] = {}  # by variable; None: the shuffle under way
        self.absent: np.ndarray | None = None  # lanes that have nothing to pass on in the shuffle under way
        self.mask: Mask | None = mask  # lanes that execute now
        self.live = mask  # lanes that have not returned, as of the last statement outside any branch
        self.returned: Mask | None = None
        self.value: Any = None
        self.slots: dict[int, Any] = {}  # operands that had to be computed before their expression (expressions.py)
        self.loops: list[Loop] = []
        self.left = 0  # in a dry run: how many paths have returned, or have left a loop that began before it
        self.outer: Frame | None = None  # for a function defined inside another: that one's frame
        self.literals: frozenset[str] = frozenset()  # parameters whose value is a constant of the calling source
        self.arrays: dict[int, Array] = {}  # local arrays, by call site


class GridGroup:
    """What `cuda.cg.this_grid()` returns."""


def kind_of(value: Any) -> str:
    """What a value is, in a reader's words."""
    if is_number(value):
        return str(value.dtype)
    if isinstance(value, Array):
        return f"a {value.ndim}-D array of {value.dtype}" if value.ndim else f"a record of {value.dtype}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, Vector):
        return f"a {value.kind} vector"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, enum.Enum):
        return f"the {type(value).__mro__[1].__name__} member {type(value).__name__}.{value.name}"
    if callable(value):
        return f"the function {getattr(value, '__name__', value)}"
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, types.SimpleNamespace):
        return "an object with attributes"
    described = getattr(value, "described", None)
    return "nothing" if value is None else described if isinstance(described, str) else type(value).__name__
