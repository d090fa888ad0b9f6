"""Exercises about several ranks: `check` runs a reader's answer as ranks in this process, and says what is wrong.

They are made like those about training (`pmpp.nn.exercises`), and judged by what the ranks return and by what they
send. A module of this package holds ``EXERCISES``, a tuple of `Exercise`.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import typing

from pmpp.lab.teach.exercise import Verdict
from pmpp.lab.teach.source import in_notebook
from pmpp.nn.exercises import Exercise, Mistake, judged

__all__ = ["Exercise", "Mistake", "check", "exercise", "exercises", "judged"]


def exercises() -> dict[str, Exercise]:
    """Every exercise by name."""
    names = [info.name for info in pkgutil.iter_modules(__path__, f"{__name__}.")]
    return {one.name: one for name in names for one in importlib.import_module(name).EXERCISES}


def exercise(name: str) -> Exercise:
    """The exercise of that name; a notebook shows its task and its hints. ValueError if there is none."""
    found = exercises()
    if name not in found:
        close = difflib.get_close_matches(name, found, n=3, cutoff=0.3) or sorted(found)
        raise ValueError(f"there is no exercise {name!r}; there is {', '.join(map(repr, close))}")
    return found[name]


def check(name: str, answer: typing.Any) -> Verdict:
    """Judge an answer. A notebook shows the Verdict that a cell ends in; elsewhere it is printed."""
    verdict = judged(exercise(name), answer)
    if not in_notebook():
        print(verdict)
    return verdict
