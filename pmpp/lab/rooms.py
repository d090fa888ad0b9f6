"""Finding what there is: rooms, what `make bench` measures of them, and their exercises.

Nothing is listed by hand. A room is a module below ``pmpp.kernels`` with a ``LADDER``. What is measured of the only
room of a subject stands in the subject's ``workloads.py``, and of one room among several in ``<room>_workloads.py``;
exercises stand in ``exercises.py`` or ``<room>_exercises.py``.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import types

from pmpp.runtime.rung import room_name

__all__ = [
    "BESIDE",
    "call_modules",
    "chapter_of",
    "exercise_modules",
    "pmpp_section",
    "room_named",
    "rooms",
    "subject_of",
    "workload_modules",
]

#: How the names of modules end that stand beside a room and say what is measured, or asked, of it.
BESIDE = ("calls", "exercises", "workloads")

_HEADER = re.compile(r"^Chapter:\s+(notebooks/(\d+)_\w+\.ipynb)\.\s+PMPP\s+(.+?)\.?$", re.MULTILINE)


def _header(module: types.ModuleType) -> re.Match:
    found = _HEADER.search(module.__doc__ or "")
    if not found:
        raise ValueError(
            f"the docstring of {module.__name__} needs the line 'Chapter: notebooks/NN_name.ipynb.  PMPP <section>.'"
        )
    return found


def chapter_of(module: types.ModuleType) -> str:
    """The room's chapter, as a path inside the repository: ``"notebooks/30_reduction.ipynb"``."""
    return _header(module).group(1)


def pmpp_section(module: types.ModuleType) -> str:
    """Where the book treats the room's subject: ``"4e ch. 10"``."""
    return _header(module).group(3)


def subject_of(module: types.ModuleType) -> str:
    """The room's subject, which is its folder and its record: ``"convolution_layer"`` for ``winograd``."""
    return module.__name__.split(".")[-2]


@functools.cache
def _modules() -> tuple[str, ...]:
    """The full names of all modules below ``pmpp.kernels``. Imports the subjects' packages."""
    from pmpp import kernels

    found = pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}.")
    return tuple(info.name for info in found if not info.ispkg)


def rooms() -> list[types.ModuleType]:
    """Every room, in the order of the chapters. Imports all of them."""
    modules = [importlib.import_module(name) for name in _modules() if not name.endswith(BESIDE)]
    found = [module for module in modules if hasattr(module, "LADDER")]
    return sorted(found, key=lambda module: (int(_header(module).group(2)), chapter_of(module), module.__name__))


def _by_room(kind: str) -> dict[str, str]:
    """The full names of the modules ``<kind>.py`` and ``<room>_<kind>.py``, by room or subject."""
    found = {}
    for name in _modules():
        subject, _, last = name.rpartition(".")
        if last == kind:
            found[subject.rpartition(".")[2]] = name
        elif last.endswith(f"_{kind}"):
            found[last.removesuffix(f"_{kind}")] = name
    return dict(sorted(found.items()))


def workload_modules() -> dict[str, str]:
    """By room, the module that says what is measured of it."""
    return _by_room("workloads")


def call_modules() -> dict[str, str]:
    """By subject, the module that has further workloads, of which only the host's time of a call is measured."""
    return _by_room("calls")


def exercise_modules() -> dict[str, str]:
    """By room or subject, the module that holds its ``EXERCISES``."""
    return _by_room("exercises")


def room_named(name: str) -> types.ModuleType:
    """The room of that name. Raises ValueError, with the names that there are, if there is none."""
    found = {room_name(room): room for room in rooms()}
    if name not in found:
        raise ValueError(f"room must be one of {', '.join(found)}, was {name!r}")
    return found[name]
