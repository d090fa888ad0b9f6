"""Signals between GPUs: the twins of `pmpp.runtime.system`.

A store that releases is a fence and then an atomic, and a load that acquires an atomic and then a fence, as
`pmpp.simt.observe.order` knows them. One that is relaxed is an atomic alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api import atomics, sync
from pmpp.simt.machine import memory
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.values.dtypes import Value

_KINDS = ("int32", "uint32", "int64", "uint64")


def _access(f: Frame, call: Any, array: Any, index: Value, operation: str, value: Value) -> Value | None:
    if isinstance(array, Scattered):
        return array.gather(f, lambda part: _access(f, call, part, index, operation, value))
    if not isinstance(array, Array):
        raise TypeError(f"the first argument must be an array, not {kind_of(array)}")
    if str(array.dtype) not in _KINDS:
        raise TypeError(f"the array's dtype must be one of {', '.join(_KINDS)}, not {array.dtype}")
    if not array.contiguous():
        raise TypeError(f"{call.name} must be contiguous (C or F order)")
    if array.ndim != 1:
        array = Array(array.storage, array.dtype, (array.size(),), (1,), array.offset)
    at, mask = memory.position(f.m, f.mask, array, (index,), call.name, call.line, (False,))
    if mask is None:
        return array.dtype.type(0)
    used = operation == "add"
    return atomics.atomic(f.m, mask, array, at, atomics.ATOMIC[operation], (value,), call.name, call.line, used)


def _store(*, release: bool) -> Callable:
    def store(f: Frame, call: Any, array: Any, index: Value, value: Value) -> None:
        if release:
            sync.fence(f, call)
        if isinstance(array, Scattered):
            array.each(f, lambda part: _access(f, call, part, index, "exch", value))
        else:
            _access(f, call, array, index, "exch", value)

    store.counts_itself = True  # type: ignore[attr-defined]
    return store


def _load(*, acquire: bool) -> Callable:
    def load(f: Frame, call: Any, array: Any, index: Value) -> Value:
        found = _access(f, call, array, index, "add", np.int32(0))
        if acquire:
            sync.fence(f, call)
        return found

    load.counts_itself = True  # type: ignore[attr-defined]
    return load


SYSTEM: dict[str, Callable] = {
    "store_release_system": _store(release=True), "load_acquire_system": _load(acquire=True),
    "store_relaxed_system": _store(release=False), "load_relaxed_system": _load(acquire=False),
}  # fmt: skip
