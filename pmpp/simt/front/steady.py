"""Rounds of a loop that all count the same: arithmetic by the same lanes, on variables that keep their types.

What such a round counts depends on nothing that it computes.  So it is counted once, and then as often as it was: the
rounds in between compute and count nothing.  Most of what a single lane costs is counting, and a lane that loops ten
thousand times longer than the others is what a launch waits for.
"""

from __future__ import annotations

import ast
from typing import Any

from pmpp.simt.front.names import Names
from pmpp.simt.front.nodes import walk
from pmpp.simt.front.rounds import is_plain
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.lanes import Mask
from pmpp.simt.values.dtypes import is_number


def is_arithmetic(names: Names, node: ast.For | ast.While) -> bool:
    """Whether a loop does nothing but arithmetic on variables: no round of it touches memory or parts lanes."""
    values = [node.test] if isinstance(node, ast.While) else []
    for statement in node.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AugAssign):
            target = statement.target
        else:
            return False
        if not isinstance(target, ast.Name):
            return False
        values.append(statement.value)
    return all(is_plain(names, value) for value in values) and not any(
        isinstance(n, ast.Subscript) for value in values for n in walk(value)
    )


class Steady:
    """Counts the rounds of such a loop."""

    __slots__ = ("before", "counts", "each", "m", "mask", "settled", "times")

    def __init__(self, m: Any) -> None:
        self.m, self.counts = m, m.counts
        self.mask: Mask | None = None  # of the last round
        self.before: tuple | None = None  # what was counted before the round that is looked at
        self.each: Any = None  # what a round counts, once that is known
        self.times = 0  # rounds since
        self.settled = False  # whether the variables have the types with which a round begins

    @classmethod
    def of(cls, f: Frame) -> Steady | None:
        """For a loop of a frame; None where each round must be told by itself."""
        m = f.m
        each = m.counts is None or m.trace is not None or m.turns is not None or m.launch.gathering == "never"
        return None if each else cls(m)

    def begins(self, mask: Mask) -> None:
        """A round of these lanes begins.  It is counted if it is the first of them, or the second."""
        if mask is not self.mask:
            self.ends()
            self.mask = mask
        elif self.each is None:
            self.before = self.counts.now([])
        else:
            self.times += 1

    def parts(self) -> bool:
        """Some lanes leave the loop in this round, so it is counted; whether nothing of it has been counted so far."""
        silent = self.each is not None
        self.times -= silent
        self.ends()
        return silent

    def round_ends(self, f: Frame, head: list[tuple[str, Any]]) -> None:
        """A round that was counted has ended; `head` are the types with which the next one begins."""
        if self.before is None:
            return
        self.each, self.before, self.m.counts = self.counts.since(self.before), None, None
        values = [(f.vars.get(name), dtype) for name, dtype in head]
        self.settled = all(is_number(value) and value.dtype == dtype for value, dtype in values)

    def ends(self) -> None:
        """Count the rounds that were not counted, and go on with counting."""
        if self.times:
            self.counts.again(self.each, self.times)
        self.m.counts, self.mask, self.before, self.each, self.times, self.settled = (
            self.counts, None, None, None, 0, False,
        )  # fmt: skip
