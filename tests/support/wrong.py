"""Wrong kernels, a module a room, each with the reason for which it must be rejected.

``RUNGS``: wrong versions of the room's function. The room's tests must find the reason in each, by the same check that
the ladder passes. ``ANSWERS``: wrong answers to the room's exercises. The exercise check must name the mistake.
``ALSO_RIGHT``: other right answers than the exercise's own, each as its name and a kernel. The check lets them pass.

They stand in ``tests/kernels/<subject>/``: wrong kernels in ``wrong.py``, answers in ``answers.py``. Where a subject
has several rooms they are in ``wrong_<room>.py`` and ``answers_<room>.py``.
"""

import typing
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmpp import simt
from pmpp.runtime import device
from tests.support.few_counters import few_counters


@dataclass(frozen=True)
class WrongRung:
    """``function`` is called as the rungs are. ``reason``: the first thing that the room's check must find."""

    function: Callable
    reason: str


@dataclass(frozen=True)
class WrongAnswer:
    """``kernel`` answers ``exercise``, and makes ``mistake``; the verdict says ``said``, a pattern."""

    exercise: str
    kernel: typing.Any
    mistake: str
    said: str = ""


def collectors() -> tuple[list[WrongAnswer], list[tuple[str, typing.Any]], Callable, Callable]:
    """``ANSWERS``, ``ALSO_RIGHT``, and the decorators that fill them.

    ``@wrong("room/task", "mistake", "said")`` and ``@right("room/task")`` stand above a kernel.
    """
    answers: list[WrongAnswer] = []
    also_right: list[tuple[str, typing.Any]] = []

    def wrong(exercise: str, mistake: str, said: str = "") -> Callable:
        return lambda kernel: answers.append(WrongAnswer(exercise, kernel, mistake, said)) or kernel

    def right(exercise: str) -> Callable:
        return lambda kernel: also_right.append((exercise, kernel)) or kernel

    return answers, also_right, wrong, right


def name_of(wrong: WrongRung | WrongAnswer) -> str:
    if isinstance(wrong, WrongRung):
        return wrong.function.__name__
    return f"{wrong.exercise}: {getattr(wrong.kernel, 'py_func', wrong.kernel).__name__}"


def observe(function: Callable, *arguments: typing.Any, **options: typing.Any) -> tuple[np.ndarray, list[simt.Report]]:
    """The result on the host, and a report of each launch, in which no hazard may have been found. None on a GPU."""
    result, reports = watch(function, *arguments, **options)
    assert hazards(reports) == []
    return result, reports


def result_of(function: Callable, *arguments: typing.Any, **options: typing.Any) -> np.ndarray:
    """The result on the host, where no launch may have a hazard: `observe` for a test that reads no counters."""
    with few_counters():
        return observe(function, *arguments, **options)[0]


def watch(function: Callable, *arguments: typing.Any, **options: typing.Any) -> tuple[np.ndarray, list[simt.Report]]:
    """The result on the host, and a report of each launch: checked, with hazards collected. None on a GPU."""
    if device.on_gpu():
        return device.to_host(function(*arguments, **options)), []
    with simt.record("check", collect=True) as reports:
        result = device.to_host(function(*arguments, **options))
    return result, reports


def misaligned(x: np.ndarray, offset: int) -> typing.Any:
    """A device array with the values of ``x`` that begins ``offset`` elements behind a 16-byte boundary."""
    flat = np.concatenate([np.zeros(offset, x.dtype), x.reshape(-1)])
    return device.to_device(flat)[offset:].reshape(x.shape) if x.size else device.to_device(x)


def total(reports: list[simt.Report], counter: str) -> int:
    """A counter over all launches."""
    return sum(report.counters[counter] for report in reports)


def hazards(reports: list[simt.Report]) -> list[str]:
    """What the sanitizers found, in the order of its weight: a race after an access out of bounds means little."""
    kinds = ("out_of_bounds", "divergent_barrier", "race", "uninitialised_read", "lost_write")
    found = [hazard for report in reports for hazard in report.hazards]
    found.sort(key=lambda hazard: kinds.index(hazard.kind))
    return [hazard.kind.replace("_", " ") for hazard in found]
