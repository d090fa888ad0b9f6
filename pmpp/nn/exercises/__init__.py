"""Exercises about training: `check` runs a reader's answer, and says what is wrong with it.

An answer is Python: a function, or a class, that uses `pmpp.nn`. So these exercises are judged by what happens to a
small network, where those of the rooms (`pmpp.lab.teach.exercise`) are judged by what a kernel does. A module of this
package holds ``EXERCISES``, a tuple of `Exercise`.
"""

from __future__ import annotations

import html
import pkgutil
import typing
from collections.abc import Callable
from dataclasses import dataclass

from pmpp.lab.teach.exercise import Verdict, in_modules, named, shown
from pmpp.nn import tape

__all__ = ["Exercise", "Mistake", "check", "exercise", "exercises"]


class Mistake(Exception):
    """What is wrong with an answer: ``name`` in a few words, and a message that says what was seen and what to do."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, eq=False, repr=False)
class Exercise:
    """A task and what judges an answer to it.

    name      "module/task"
    task      what to write
    call      how the answer is called: "accumulate(net, x, y, size)"
    judge     ``judge(answer)`` raises `Mistake`, or returns in a sentence what it found right
    hints     each says a little more than the one before
    answer    a right answer
    """

    name: str
    task: str
    call: str
    judge: Callable[[typing.Any], str]
    hints: tuple[str, ...]
    answer: typing.Any

    def __repr__(self) -> str:
        return f"{self.name}: {self.task}\n{self.call}"

    def _repr_html_(self) -> str:
        hints = "".join(
            f"<details><summary>Hint {i}</summary>{html.escape(hint)}</details>" for i, hint in enumerate(self.hints, 1)
        )
        name, task, call = map(html.escape, (self.name, self.task, self.call))
        return f"<p><b>{name}</b> {task}</p><p><code>{call}</code></p>{hints}"


def exercises() -> dict[str, Exercise]:
    """Every exercise by name."""
    return in_modules(info.name for info in pkgutil.iter_modules(__path__, f"{__name__}."))


def exercise(name: str) -> Exercise:
    """The exercise of that name; a notebook shows its task and its hints. ValueError if there is none."""
    return named(name, exercises())


def judged(one: Exercise, answer: typing.Any) -> Verdict:
    """The verdict on an answer. Whatever the answer raises is a verdict, too; what it sets in the tape is put back."""
    recording, watch = tape.state.recording, tape.state.watch
    try:
        found = one.judge(answer)
    except Mistake as mistake:
        return Verdict(one.name, False, mistake.name, f"{mistake.name}: {mistake}")
    except Exception as error:  # of the reader's code
        return Verdict(one.name, False, "error", f"error: it raised {type(error).__name__}: {error}")
    finally:
        tape.state.recording, tape.state.watch = recording, watch
    return Verdict(one.name, True, "", f"right. {found}")


def check(name: str, answer: typing.Any) -> Verdict:
    """Judge an answer. A notebook shows the Verdict that a cell ends in; elsewhere it is printed."""
    return shown(judged(exercise(name), answer))
