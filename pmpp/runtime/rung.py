"""What a room is made of: rungs and their least cost.

A room is a module below ``pmpp.kernels`` with one family of kernels in it and a ``LADDER``: its rungs from naive to
fast. CONTRIBUTING.md says how to write one, and tests/contract/ holds every room to it.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Cost", "Rung", "room_name", "rung"]


@dataclass(frozen=True)
class Cost:
    """The least work that any version must do: arithmetic, and bytes moved to and from device memory.

    ``flops`` counts a multiply-add as 2. ``bytes`` counts each input read once and each output written once.
    """

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP a byte: the roofline's horizontal axis."""
        if self.bytes:
            return self.flops / self.bytes
        return float("inf") if self.flops else 0.0

    def __add__(self, other: Cost) -> Cost:
        if not isinstance(other, Cost):
            return NotImplemented
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


class Rung:
    """One step of a ladder: a function from device arrays to device arrays, and the kernels that it launches.

    Attributes:
        name: the function's name. room: its module's name.
        idea: the docstring's first line. leaves: the fault that the next rung mends, or ``""``.
        kernels: the kernels, in the order given to ``@rung``. fn: the undecorated function.
    """

    def __init__(self, fn: Callable, kernels: tuple) -> None:
        self.fn = fn
        self.kernels = kernels
        self.name = fn.__name__
        self.room = room_name(fn.__module__)
        doc = inspect.cleandoc(fn.__doc__ or "")
        self.idea = doc.partition("\n")[0].strip()
        if not self.idea:
            raise TypeError(f"rung {self.room}.{self.name} needs a docstring whose first line is its idea")
        found = re.search(r"^Leaves:(.*?)(?:\n\s*\n|\Z)", doc, re.MULTILINE | re.DOTALL)
        self.leaves = " ".join(found.group(1).split()) if found else ""
        functools.update_wrapper(self, fn)

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<rung {self.room}.{self.name}: {self.idea}>"


def room_name(module: str | types.ModuleType) -> str:
    """A room's name: its subject's where the subject has one room, else its module's.

    >>> room_name("pmpp.kernels.reduction.ladder")
    'reduction'
    >>> room_name("pmpp.kernels.convolution_layer.winograd")
    'winograd'
    """
    name = module if isinstance(module, str) else module.__name__
    subject, _, last = name.rpartition(".")
    return subject.rpartition(".")[2] if last == "ladder" else last


def rung(*kernels: typing.Any) -> Callable[[Callable], Rung]:
    """Make the decorated function a rung that launches ``kernels``.

    Raises TypeError, at import, if no kernel is named or the function has no docstring.
    """
    if not kernels or (len(kernels) == 1 and isinstance(kernels[0], types.FunctionType)):
        raise TypeError("write @rung(kernel, ...): name the kernels that the rung launches")
    return lambda fn: Rung(fn, kernels)
