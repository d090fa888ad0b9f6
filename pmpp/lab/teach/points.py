"""What an exercise is worth, and which exercises a chapter sets.

An exercise is worth 5, 10 or 15 points, by the length of its shipped answer: up to 5 statements, up to 10, or more. The
docstring of an answer does not count. So nobody hands out points by hand, a longer task weighs more than a short one,
and no student can see from the points what the answer is.

An answer earns all its points or none, as `check` passes it or not. An answer that is right and wasteful has not
passed: to move no more bytes than necessary is a part of each task.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import textwrap
import typing
from pathlib import Path

import pmpp
from pmpp.lab.chapters import in_order
from pmpp.lab.teach import exercise as rooms

__all__ = ["STEPS", "chapters", "graded", "known", "named", "points"]

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
STEPS = ((5, 5), (10, 10))  # (statements of the answer at most, points)
LONG = 15  # points of all others

_CELL = re.compile(r"(?m)^# %%")
_NAMED = re.compile(r"""^(?:\w+ = |assert )?(?:exercise|check)\(["']([\w/]+)["']""", re.MULTILINE)


@functools.cache
def known() -> dict[str, typing.Any]:
    """Every exercise by name: of the rooms, and of packages ``exercises`` such as that of `pmpp.nn`.

    Each has a ``name``, a ``task``, ``hints`` and an ``answer``.
    """
    found: dict[str, typing.Any] = dict(rooms.exercises())
    for package in pkgutil.iter_modules(pmpp.__path__, "pmpp."):  # those about training have a package of their own
        if package.ispkg and importlib.util.find_spec(f"{package.name}.exercises"):
            found |= importlib.import_module(f"{package.name}.exercises").exercises()
    return found


def named(name: str) -> typing.Any:
    """The exercise of that name, of those in `known`. Raises ValueError if there is none."""
    if name not in known():
        raise ValueError(f"there is no exercise {name!r}")
    return known()[name]


@functools.cache
def points(name: str) -> int:
    """What a right answer to an exercise earns. Raises ValueError if there is no such exercise.

    >>> points("vector_add/saxpy"), points("vector_add/neighbours"), points("matmul/two_columns")
    (5, 10, 15)
    """
    answer = named(name).answer
    lines, _ = inspect.getsourcelines(getattr(answer, "py_func", answer))
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - 1  # not the `def` itself
    statements -= ast.get_docstring(tree) is not None
    return next((worth for most, worth in STEPS if statements <= most), LONG)


def graded(chapter: str, folder: Path = NOTEBOOKS) -> list[str]:
    """The names of a chapter's exercises that are graded, in the order in which the chapter sets them.

    Args:
        chapter: the stem of a chapter, such as "04_vector_add".
        folder: the folder of the chapters, with their sources.

    Every exercise counts that a cell of the chapter names in ``exercise("...")`` or ``check("...")``, if a student gets
    the cell: those with the tag ``answer``, and those below ``## Answers``, are not in a release. A chapter without
    such a cell has none: its exercises are for a teacher to read. Chapter 91 is one: its answers are source for a
    compiler, and `pmpp.lab.teach.grade.rebuild` lets no answer near it. Raises ValueError if there is no such chapter.

    >>> graded("22_launches")
    ['launches/fused', 'launches/logistic']
    """
    path = folder / "source" / f"{chapter}.py"
    if not path.is_file():
        raise ValueError(f"there is no chapter {chapter!r} in {folder}")
    found = []
    for cell in _CELL.split(path.read_text(encoding="utf-8"))[1:]:
        first, _, text = cell.partition("\n")
        if "[markdown]" in first:
            if re.search(r"^# ## Answers$", text, re.MULTILINE):
                break
        elif '"answer"' not in first:
            found += _NAMED.findall(text)
    return list(dict.fromkeys(found))


def chapters(folder: Path = NOTEBOOKS) -> list[str]:
    """The stems of all chapters with exercises that are graded, in order."""
    return [path.stem for path in in_order((folder / "source").glob("*.py")) if graded(path.stem, folder)]
