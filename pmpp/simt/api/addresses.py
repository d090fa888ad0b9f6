"""Arrays by their address: `array_at(address, size, dtype)`, the twin of the one in `pmpp.runtime.addresses`."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.lanes import Mask
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.machine.storage import Storage
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import Value


def array_at(f: Frame, call: Any, address: Value, size: Value, dtype: Any) -> Array | Scattered:
    """An array of `size` elements that begins at a simulated address; lanes may have different ones."""
    kind = dtypes.as_dtype(dtype)
    if kind is None:
        raise TypeError(f"the dtype must be a type of numbers such as np.float32, not {kind_of(dtype)}")
    for name, value in (("address", address), ("size", size)):
        if not isinstance(value, (np.generic, np.ndarray)) or value.dtype.kind not in "iu":
            raise TypeError(f"the {name} must be an integer, not {kind_of(value)}")
    if f.m.dry or f.mask is None:
        return Array(Storage("global", np.zeros(1, kind)), kind, (1,), (1,))
    address, size = (np.asarray(value).astype(np.int64) for value in (address, size))
    address, size = np.broadcast_arrays(np.atleast_2d(address), np.atleast_2d(size))
    parts = [(where, _array(f, call, *one, kind)) for one, where in _groups(f.mask, address, size)]
    return parts[0][1] if len(parts) == 1 else Scattered(tuple(parts))


def _groups(mask: Mask, address: np.ndarray, size: np.ndarray) -> list[tuple[tuple[int, int], np.ndarray]]:
    """Each pair that an active lane has, and the lanes that have it."""
    active = np.True_ if mask.bits is None else mask.bits
    shape = np.broadcast_shapes(address.shape, np.shape(active))
    bits = np.broadcast_to(active, shape)
    pairs = np.stack([np.broadcast_to(one, shape)[bits] for one in (address, size)], axis=1)
    found = [tuple(map(int, pair)) for pair in np.unique(pairs, axis=0)]
    return [((where, extent), (address == where) & (size == extent)) for where, extent in found]


def _array(f: Frame, call: Any, address: int, size: int, dtype: np.dtype) -> Array:
    """The array at an address. What no live allocation of this dtype holds in whole is refused."""
    if size <= 0:
        return Array(Storage("global", np.zeros(0, dtype)), dtype, (0,), (1,))
    found = f.m.launch.at(address)
    if found is None:
        raise f.m.error(f"array_at: no array lies at the address {address}; was it freed?", call.line)
    storage, start = found
    if storage.values.dtype != dtype:
        raise f.m.error(f"array_at: at this address lies an array of {storage.values.dtype}, not of {dtype}", call.line)
    first, rest = divmod(start, dtype.itemsize)
    if rest or first + size > storage.values.size:
        has = storage.values.size - first
        raise f.m.error(f"array_at: {size} elements do not lie there: {has} do until the end of the array", call.line)
    return Array(storage, dtype, (size,), (1,), first)
