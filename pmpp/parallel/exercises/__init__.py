"""Exercises about several ranks: `check` runs a reader's answer as ranks in this process, and says what is wrong.

They are made like those about training (`pmpp.nn.exercises`), and judged by what the ranks return and by what they
send. A module of this package holds ``EXERCISES``, a tuple of `Exercise`.
"""

from __future__ import annotations

import pkgutil
import typing

from pmpp.lab.teach.exercise import Verdict, in_modules, named, shown
from pmpp.nn.exercises import Exercise, Mistake, judged

__all__ = ["Exercise", "Mistake", "check", "exercise", "exercises", "judged"]


def exercises() -> dict[str, Exercise]:
    """Every exercise by name."""
    return in_modules(info.name for info in pkgutil.iter_modules(__path__, f"{__name__}."))


def exercise(name: str) -> Exercise:
    """The exercise of that name; a notebook shows its task and its hints. ValueError if there is none."""
    return named(name, exercises())


def check(name: str, answer: typing.Any) -> Verdict:
    """Judge an answer. A notebook shows the Verdict that a cell ends in; elsewhere it is printed."""
    return shown(judged(exercise(name), answer))
