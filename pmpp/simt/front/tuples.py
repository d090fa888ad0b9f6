"""Tuples: made by name, joined, and chosen from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.intrinsics import Call
from pmpp.simt.machine.frames import Frame, kind_of


def like(model: tuple, parts: list) -> tuple:
    """A tuple of these parts, of the type of another: a named tuple stays one."""
    return type(model)(*parts) if hasattr(model, "_fields") else tuple(parts)


def holds_arrays(thing: tuple) -> bool:
    """Whether a tuple of Python objects has arrays in it, which become a kernel's only when it runs."""
    return any(
        holds_arrays(e) if isinstance(e, tuple) else isinstance(e, np.ndarray) or hasattr(e, "__cuda_array_interface__")
        for e in thing
    )


def added(name: str, a: Any, b: Any) -> tuple | None:
    """`a + b` of two plain tuples, which Numba compiles; not `a += b`, and not of named ones."""
    return a + b if name == "Add" and type(a) is tuple and type(b) is tuple else None


def is_named(thing: Any) -> bool:
    """Whether something that is called makes a tuple: the type of a named tuple, or `tuple` itself."""
    return thing is tuple or (isinstance(thing, type) and issubclass(thing, tuple) and hasattr(thing, "_fields"))


def maker(thing: Any) -> Callable:
    """The handler of its call."""

    def make(f: Frame, call: Call, *values: Any, **names: Any) -> tuple:
        if thing is not tuple:
            return thing(*values, **names)
        if names or len(values) != 1 or not isinstance(values[0], tuple):
            raise TypeError(f"it makes a tuple of a tuple, not of {', '.join(map(kind_of, values)) or 'nothing'}")
        return tuple(values[0])

    make.counts_itself = True  # type: ignore[attr-defined]
    return make
