"""How near a kernel comes to the roof, by its counters in the interpreter.

The roof of an exercise is the least time that a GPU needs for what the shipped answer asks of it: the longest of the
times of its parts, with nothing asked twice (`pmpp.simt.observe.bound`). A kernel's share of it is that time divided by
the time of what the kernel asks for, as it is written. Both are of the largest input, and neither is a measurement: a
share says how much a kernel asks for beside what it must, and nothing of waiting. Inputs of exercises are small: what
is measured on a GPU (`pmpp.lab.teach.grade.gpu`) is hardly longer than an empty kernel, and says less.
"""

from __future__ import annotations

import typing

from pmpp import simt
from pmpp.lab.teach.exercise import Case, Exercise

__all__ = ["GPU", "shares"]

GPU = "H200"


def _bound(answer: typing.Any, case: Case) -> typing.Any:
    report = simt.profile(answer, case.grid, case.block, case.copies(), level="count", sharedmem=case.sharedmem)
    return report.bound(GPU)


def shares(one: Exercise, answer: typing.Any) -> tuple[float, float]:
    """The share of the roof that an answer reaches, and that of the shipped answer, on the exercise's largest input.

    Raises what the interpreter raises for a kernel that fails: judge it before.
    """
    case = max(one.inputs, key=lambda case: case.size)
    own, shipped = _bound(answer, case), _bound(one.answer, case)
    return round(shipped.seconds / own.written, 3), round(shipped.seconds / shipped.written, 3)
