"""Different arrays in the lanes of one batch, under one name: what `array_at` gives to blocks with other addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.memory import Array


class Scattered:
    """Arrays of one dtype and rank, each with the lanes that have it: `(bits, array)`.

    A lane that was not active when the arrays were made has none.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[tuple[np.ndarray, Array], ...]) -> None:
        self.parts = parts

    @property
    def described(self) -> str:
        """What it is, in a reader's words."""
        first = self.parts[0][1]
        return f"one of several {first.ndim}-D arrays of {first.dtype}"

    def each(self, f: Frame, access: Callable[[Array], Any]) -> list[tuple[np.ndarray, Any]]:
        """Call `access` once for each array, while only the lanes that have it are active."""
        around, found = f.mask, []
        try:
            for bits, array in self.parts:
                here, _ = around.split(bits) if around is not None else (None, None)
                if here is not None:
                    f.mask = here
                    found.append((bits, access(array)))
        finally:
            f.mask = around
        return found

    def gather(self, f: Frame, access: Callable[[Array], Any]) -> Any:
        """What `access` gives, in each lane of its own array: numbers, tuples of them, or arrays again."""
        found = self.each(f, access)
        if not found:
            return access(self.parts[0][1])  # no lane is active: a value of the right type
        if isinstance(found[0][1], (Array, Scattered)):
            parts = [(bits, part.parts if isinstance(part, Scattered) else ((True, part),)) for bits, part in found]
            return Scattered(tuple((bits & here, array) for bits, several in parts for here, array in several))
        _, result = found[0]
        if result is None:
            return None
        for bits, value in found[1:]:
            result = _select(bits, value, result)
        return result


def _select(bits: np.ndarray, a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(_select(bits, x, y) for x, y in zip(a, b, strict=True))
    return np.where(bits, a, b)
