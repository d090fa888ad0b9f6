"""A vector of CUDA's vector types, as a value: `cuda.float32x4(x, y, z, w)` makes one (api/vectors.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

MEMBERS = ("x", "y", "z", "w")


class Vector:
    """A vector of one to four numbers of one type, in every lane."""

    __slots__ = ("dtype", "values")

    def __init__(self, dtype: np.dtype, values: tuple) -> None:
        self.dtype, self.values = dtype, values

    @property
    def kind(self) -> str:
        """Its type as Numba names it."""
        return f"{self.dtype}x{len(self.values)}"

    def member(self, name: str) -> Any:
        """`.x`, `.y`, `.z` or `.w`; None if it has no such member."""
        at = MEMBERS.index(name) if name in MEMBERS else len(self.values)
        return self.values[at] if at < len(self.values) else None

    def map(self, function: Callable, *others: Vector) -> Vector:
        """A vector of what the function makes of each member."""
        return Vector(
            self.dtype, tuple(function(*row) for row in zip(self.values, *(o.values for o in others), strict=True))
        )
