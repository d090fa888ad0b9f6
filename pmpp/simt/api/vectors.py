"""CUDA's vector types: `cuda.float32x4(x, y, z, w)` and its alias `cuda.float4`.

A vector lives in registers.  It is made of numbers, of smaller vectors of the same element type, or of both; its
members `.x .y .z .w` can be read.  That is all that Numba has: no assignment to members, no arithmetic, no arrays of
vectors.  (128-bit loads and stores are `load128` and `store128`; what looks like an array of float4 is none in Numba.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame
from pmpp.simt.values import dtypes
from pmpp.simt.values.vectors import Vector

_BASES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
_ALIASES = {
    "char": np.byte, "short": np.short, "int": np.intc, "long": np.int64, "longlong": np.longlong, "uchar": np.ubyte,
    "ushort": np.ushort, "uint": np.uintc, "ulong": np.uint64, "ulonglong": np.ulonglong, "float": np.single,
    "double": np.double,
}  # fmt: skip


def _constructor(name: str, dtype: np.dtype, count: int) -> Callable:
    def make(f: Frame, call: Any, *parts: Any) -> Vector:
        values: list[Any] = []
        for part in parts:
            if isinstance(part, Vector):
                if part.dtype != dtype:
                    raise TypeError(f"{name} takes vectors of {dtype}, not {part.kind}")
                values += part.values
            elif isinstance(part, (np.generic, np.ndarray)) and part.dtype.kind != "c":
                values.append(dtypes.cast(part, dtype))
            else:
                raise TypeError(f"{name} takes numbers and vectors of {dtype}")
        if len(values) != count:
            raise TypeError(f"{name} takes {count} number{'s' * (count > 1)} in all, not {len(values)}")
        return Vector(dtype, tuple(values))

    return make


#: The constructors, by name and alias.
VECTORS: dict[str, Callable] = {}
for _count in range(1, 5):
    for _base in _BASES:
        VECTORS[f"{_base}x{_count}"] = _constructor(f"cuda.{_base}x{_count}", np.dtype(_base), _count)
    for _alias, _kind in _ALIASES.items():
        VECTORS[f"{_alias}{_count}"] = _constructor(f"cuda.{_alias}{_count}", np.dtype(np.dtype(_kind).name), _count)
