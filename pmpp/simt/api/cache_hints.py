"""Loads and stores with a cache hint: `cuda.ldcg(x, i)`, `cuda.stcs(x, i, value)` and the like.

A hint says how long the caches should keep a line; it never changes a value.  The interpreter has no caches, so these
are plain accesses, with what Numba demands: an array of integers or floats in global memory, and as many indices of
one type as the array has axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pmpp.simt.machine import memory
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.memory import Array
from pmpp.simt.values.dtypes import Value

LOADS, STORES = ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), ("stcg", "stcs", "stwb", "stwt")


def _place(f: Frame, call: Any, name: str, array: Any, index: Any) -> tuple:
    if not isinstance(array, Array):
        raise TypeError(f"{name} takes an array and an index")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} takes an array of integers or floats, not of {array.dtype}")
    if array.storage.space != "global":
        raise TypeError(f"{name} is for global memory; {call.name} is in {array.storage.space} memory")
    indices = index if isinstance(index, tuple) else (index,)
    if len(indices) != array.ndim:
        raise TypeError(f"{call.name} has {array.ndim} axes and the index has {len(indices)}")
    if len({i.dtype for i in indices}) > 1:
        kinds = " and ".join(str(i.dtype) for i in indices)
        raise TypeError(f"the indices have different types, {kinds}; Numba takes a cache hint with one type only")
    return memory.position(f.m, f.mask, array, indices, call.name, call.line, (False,) * len(indices))


def _load(name: str) -> Callable:
    def load(f: Frame, call: Any, array: Any, index: Any) -> Value:
        at, mask = _place(f, call, name, array, index)
        if mask is None:
            return array.dtype.type(0)
        return memory.load(f.m, mask, array, at, call.name, call.line)

    load.counts_itself = True  # type: ignore[attr-defined]
    return load


def _store(name: str) -> Callable:
    def store(f: Frame, call: Any, array: Any, index: Any, value: Value) -> None:
        at, mask = _place(f, call, name, array, index)
        if mask is not None:
            memory.store(f.m, mask, array, at, value, call.name, call.line)

    store.counts_itself = True  # type: ignore[attr-defined]
    return store


HINTS: dict[str, Callable] = {name: _load(name) for name in LOADS} | {name: _store(name) for name in STORES}
