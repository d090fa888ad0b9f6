"""What a room is made of: rungs, their least cost, the ladder, and the source on show.

A room is one module of ``pmpp`` with one kernel family in it and a ``LADDER``: its rungs from naive to fast.
CONTRIBUTING.md says how to write one, and tests/test_rooms.py holds every room to it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pkgutil
import re
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "Rung", "chapter_of", "pmpp_section", "rooms", "rung", "show", "source_of"]


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
        self.room = fn.__module__.rpartition(".")[2]
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


def rung(*kernels: typing.Any) -> Callable[[Callable], Rung]:
    """Make the decorated function a rung that launches ``kernels``.

    Raises TypeError, at import, if no kernel is named or the function has no docstring.
    """
    if not kernels or (len(kernels) == 1 and isinstance(kernels[0], types.FunctionType)):
        raise TypeError("write @rung(kernel, ...): name the kernels that the rung launches")
    return lambda fn: Rung(fn, kernels)


_HEADER = re.compile(r"^Chapter:\s+(notebooks/(\d+)_\w+\.ipynb)\.\s+PMPP\s+(.+?)\.?$", re.MULTILINE)


def _header(module: types.ModuleType) -> re.Match:
    found = _HEADER.search(module.__doc__ or "")
    if not found:
        raise ValueError(
            f"the docstring of {module.__name__} needs the line 'Chapter: notebooks/NN_name.ipynb.  PMPP <section>.'"
        )
    return found


def chapter_of(module: types.ModuleType) -> str:
    """The room's chapter, as a path inside the repository: ``"notebooks/10_reduction.ipynb"``."""
    return _header(module).group(1)


def pmpp_section(module: types.ModuleType) -> str:
    """Where the book treats the room's subject: ``"4e ch. 10"``."""
    return _header(module).group(3)


def rooms() -> list[types.ModuleType]:
    """Every room, in the order of the chapters. Imports all of them."""
    import pmpp

    names = [info.name for info in pkgutil.iter_modules(pmpp.__path__) if not info.ispkg and info.name != "__main__"]
    modules = [importlib.import_module(f"pmpp.{name}") for name in names]
    found = [module for module in modules if hasattr(module, "LADDER")]
    return sorted(found, key=lambda module: (int(_header(module).group(2)), chapter_of(module), module.__name__))


def _functions(obj: typing.Any) -> list[Callable]:
    """The Python functions behind a rung (its kernels first), a kernel or a function."""
    if isinstance(obj, Rung):
        return [function for kernel in obj.kernels for function in _functions(kernel)] + [obj.fn]
    function = inspect.unwrap(getattr(obj, "py_func", obj))
    if not inspect.isfunction(function):
        raise TypeError(f"show() takes a rung, a kernel or a function, not {type(obj).__name__}")
    return [function]


def source_of(obj: typing.Any) -> list[tuple[str, str]]:
    """``(where, source)`` of each function behind ``obj``; ``where`` is ``"pmpp/reduction.py:41"``.

    Raises TypeError if ``obj`` is no function, and OSError if its source is not kept (it was made by ``exec``).
    """
    pieces = []
    for function in _functions(obj):
        lines, first = inspect.getsourcelines(function)
        where = f"{_short_path(inspect.getsourcefile(function) or '?')}:{first}"
        pieces.append((where, textwrap.dedent("".join(lines))))
    return pieces


def _short_path(path: str) -> str:
    if "ipykernel" in path or path.startswith("<"):
        return "this notebook"  # a cell's file has a name that means nothing to its reader
    relative = os.path.relpath(path, Path(__file__).parents[2])
    return Path(path).name if relative.startswith("..") else Path(relative).as_posix()


def show(obj: typing.Any) -> None:
    """Show the source of a kernel, a function, or a rung with its kernels: highlighted in a notebook, else plain."""
    pieces = source_of(obj)
    plain = "\n".join(f"# {where}\n{source}" for where, source in pieces)
    if _in_notebook():
        from IPython.display import display

        markdown = "\n".join(f"`{where}`\n\n```python\n{source.rstrip()}\n```\n" for where, source in pieces)
        display({"text/markdown": markdown, "text/plain": plain}, raw=True)
    else:
        print(plain, end="")


def _in_notebook() -> bool:
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None
