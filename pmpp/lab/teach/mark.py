"""A verdict for a grader: what `check` would say, from a cell that a grader puts into a student's notebook.

    from pmpp.lab.teach.mark import mark
    assert (verdict := mark("vector_add/saxpy", saxpy, seed=7)), verdict

nbgrader and otter-grader run such cells in the notebook's own process, and an answer that sets out to deceive them can.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import typing
import warnings
from collections.abc import Iterator

import numpy as np

from pmpp.lab.teach import exercise as rooms
from pmpp.lab.teach.diagnosis import judge
from pmpp.lab.teach.points import named

__all__ = ["mark", "seeded"]


def seeded(one: rooms.Exercise, seed: int) -> rooms.Exercise:
    """The same exercise, with inputs from another seed than that of `check`."""
    other = dataclasses.replace(one)
    vars(other)["inputs"] = one.cases(np.random.default_rng(seed))
    return other


def mark(name: str, answer: typing.Any, seed: int | None = None) -> rooms.Verdict:
    """Judge an answer, and write nothing: neither to stdout nor to stderr, nor a warning.

    Args:
        name: the exercise.
        answer: as in `pmpp.lab.teach.exercise.check`.
        seed: of the inputs; those of `check` by default. An exercise about training has no inputs of its own.

    An answer that the package brings along is nobody's work, and does not pass. Raises ValueError if there is no such
    exercise.

    >>> from pmpp.lab.teach.exercise import exercise
    >>> mark("vector_add/saxpy", exercise("vector_add/saxpy").answer).mistake
    'not your own'
    """
    one = named(name)
    module = str(getattr(getattr(answer, "py_func", answer), "__module__", ""))
    if module.partition(".")[0] == "pmpp":
        message = f"not your own: this answer is part of {module}. Write one in the notebook."
        return rooms.Verdict(name, False, "not your own", message)
    with _silence():
        if isinstance(one, rooms.Exercise):
            return judge(one if seed is None else seeded(one, seed), answer)
        return sys.modules[type(one).__module__].judged(one, answer)  # pmpp.nn, which is above this module


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """nbgrader gives no points for a cell with anything on stderr, and a warning goes there."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield
