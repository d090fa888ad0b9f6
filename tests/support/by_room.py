"""On a GPU the tests that launch a rung run one after another, so that a process compiles its kernels once.

Most of the time there goes into compiling, and every process of xdist compiles for itself. In the order of their files
a rung's examples, its results, its workloads and its graph come far apart, and so in different processes. In the
interpreter nothing is compiled, and the order stays.
"""

from __future__ import annotations

import types
import typing

from pmpp.runtime.rung import Rung

# Files whose tests launch rungs of all rooms as they are.
FILES = {"test_arguments.py", "test_examples.py", "test_graphs.py", "test_rooms.py", "test_workloads.py"}


def launched(value: typing.Any) -> tuple[str, str]:
    """The module and the rung whose kernels a parameter of a test stands for; empty where it does not say."""
    if getattr(value, "rungs", ()):  # a workload, by the best rung that is measured on it
        value = value.rungs[-1]
    if isinstance(value, Rung):
        return value.__module__, value.name
    if isinstance(value, str | types.ModuleType):
        return getattr(value, "__name__", value), ""
    return getattr(value, "__module__", ""), ""


def place(item: typing.Any) -> tuple[str, str] | None:
    """Where a test stands among those of these files: by subject and module, then by rung. None: where it stood."""
    if item.path.name not in FILES or not hasattr(item, "callspec"):
        return None
    value = next(iter(item.callspec.params.values()))
    module, rung = launched(value.LADDER[-1] if item.path.name == "test_graphs.py" else value)
    return (module, rung) if module.startswith("pmpp.kernels.") else None


def together(items: list) -> list:
    """The tests in their new order. Those that move stand where the first of them stood."""
    places = [place(item) for item in items]
    moved = [(at, number) for number, at in enumerate(places) if at]
    first = moved[0][1] if moved else 0
    before, after = range(first), [number for number, at in enumerate(places) if not at and number >= first]
    return [items[number] for number in (*before, *(number for _, number in sorted(moved)), *after)]
