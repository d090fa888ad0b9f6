"""What a `wgmma_fence` has shown to the tensor cores: the numbers that were in registers when a warp passed it.

A product may read a register only if a fence came between the register's last change and the product.  Nothing says
which registers a fence is for, so all of them are looked at: the variables of the function that calls it and of its
callers, and their local arrays.  A number that a product is given later was computed after the fence if no register of
its warp held it then.  It may have moved meanwhile, from one variable or local array to another: numbers of a warp are
compared, not arrays.

What cannot be known counts as seen: a number that is the same in all lanes of a warp, which may be a constant, and
everything if a value was under way in an expression, or is of a kind that is not known here.
"""

from __future__ import annotations

import ast
import enum
import functools
import types
from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame, GridGroup
from pmpp.simt.machine.lanes import WARP, Lanes, spread
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.storage import Storage
from pmpp.simt.values import records
from pmpp.simt.values.dtypes import Value
from pmpp.simt.values.vectors import Vector

_BYTES = 4  # of a register
_AT_ONCE = 1 << 20  # numbers that are hashed at a time
#: What holds no register.
_PLAIN = (
    np.generic, np.dtype, str, bool, int, float, type, enum.Enum, GridGroup, types.FunctionType,
    types.BuiltinFunctionType, types.ModuleType,
)  # fmt: skip
_MULTIPLIERS = np.random.default_rng(0).integers(0, 1 << 63, WARP, np.uint64) * np.uint64(2) + np.uint64(1)


class Seen:
    """The registers of some warps at a fence."""

    __slots__ = ("_lanes", "_local", "_table", "_values", "_warps")

    def __init__(self, lanes: Lanes, warps: np.ndarray, values: dict[int, np.ndarray], local: list[Storage]) -> None:
        self._lanes, self._warps = lanes, warps
        self._values = values  # by id; they are kept, so that nothing else gets their ids
        self._local = [_hashed_rows(each, warps) for each in local]  # now: they may change
        self._table: np.ndarray | None = None

    def has(self, value: Value, warps: np.ndarray) -> np.ndarray:
        """In which of these warps, some of those at the fence, a register held this number then."""
        if not isinstance(value, np.ndarray) or self._values.get(id(value)) is value:
            return np.ones(len(warps), np.bool_)
        numbers = self._by_warps(value)[warps]
        found = (numbers == numbers[:, :1]).all(axis=1)
        if not found.all():
            if self._table is None:
                mine = [_hashed(self._by_warps(each)[self._warps])[None] for each in self._values.values()]
                self._table = np.concatenate([*self._local, *mine, np.zeros((1, len(self._warps)), np.uint64)])
            found |= (self._table[:, np.searchsorted(self._warps, warps)] == _hashed(numbers)).any(axis=0)
        return found

    def _by_warps(self, value: np.ndarray) -> np.ndarray:
        lanes = self._lanes
        return spread(np.ascontiguousarray(value).view(np.uint32), (lanes.blocks, lanes.width)).reshape(-1, WARP)


def seen(f: Frame, call: Any, warps: np.ndarray) -> Seen | None:
    """The registers of these warps now, at a call of `wgmma_fence`; None if they cannot be known."""
    values: dict[int, np.ndarray] = {}
    local: dict[int, Storage] = {}
    at: Frame | None = f
    while at is not None:
        if not _stands_alone(at, call):
            return None
        there = (*at.vars.values(), *at.slots.values(), *at.arrays.values(), at.value)
        if not all(_collect(value, values, local) for value in there):
            return None
        at, call = at.caller, at.call
    lanes = f.m.batch.lanes
    if any(each.home is not lanes or records.is_record(each.layout) for each in local.values()):
        return None
    return Seen(lanes, warps, values, [each for each in local.values() if each.values.itemsize == _BYTES])


def _collect(value: Any, values: dict[int, np.ndarray], local: dict[int, Storage]) -> bool:
    """Note the registers that a variable holds; whether its kind is known."""
    if isinstance(value, np.ndarray):
        if value.itemsize == _BYTES and value.size > 1:
            values[id(value)] = value
        return True
    if isinstance(value, Array):
        if value.storage.space == "local":
            local[id(value.storage)] = value.storage
        return True
    if isinstance(value, tuple):
        return all(_collect(part, values, local) for part in value)
    if isinstance(value, Vector):
        return all(_collect(part, values, local) for part in value.values)
    parts = getattr(value, "parts", None)  # of a variable that holds several things, each in some lanes
    if parts is not None:
        return all(_collect(part, values, local) for _, part in parts)
    return value is None or isinstance(value, _PLAIN) or hasattr(value, "py_func")


def _stands_alone(f: Frame, call: Any) -> bool:
    """Whether a call in this function is a statement, or all of its right side: nothing else is under way in it."""
    return id(call.node) in _alone(f.function)


@functools.lru_cache(maxsize=256)
def _alone(function: Any) -> frozenset[int]:
    kinds = (ast.Expr, ast.Assign, ast.AnnAssign, ast.Return)
    return frozenset(id(node.value) for node in ast.walk(function.tree) if isinstance(node, kinds))


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """A number for the registers of a warp, (..., 32) to (...)."""
    return (numbers.astype(np.uint64) * _MULTIPLIERS).sum(axis=-1, dtype=np.uint64)


def _hashed_rows(storage: Storage, warps: np.ndarray) -> np.ndarray:
    """The same of each element of a local array: (elements, warps)."""
    numbers = storage.values.view(np.uint32).reshape(len(storage.values), -1, WARP)
    step = max(1, _AT_ONCE // (len(warps) * WARP))
    parts = [_hashed(numbers[k : k + step, warps]) for k in range(0, len(numbers), step)]
    return np.concatenate([np.zeros((0, len(warps)), np.uint64), *parts])
