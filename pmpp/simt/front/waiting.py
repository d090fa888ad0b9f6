"""Loops that wait for another thread: which functions may have one, and which loop is doing it.

A kernel with a loop whose end depends on what it reads from memory may wait.  It is run in lockstep first, on the
chance that nobody has to (a search reads memory in a loop, too), and its arrays are kept so that it can begin again by
turns.  Others need no copy.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.lanes import Mask
from pmpp.simt.machine.scheduler import PATIENCE, Waiting
from pmpp.simt.machine.turns import Waits

#: Calls whose result depends on nothing but their arguments.
_PURE = {
    "abs", "bool", "brev", "clz", "ffs", "float", "float16", "float32", "float64", "grid", "gridsize", "int", "int8",
    "int16", "int32", "int64", "len", "max", "min", "popc", "range", "round", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip

#: Rounds of a loop after which the next fiber gets the turn even though this one writes.
TURN = 1024


def may_wait(tree: ast.AST) -> bool:
    """Whether a function has a loop that may end only when another thread has written something."""
    return any(_ends_by_memory(loop) for loop in ast.walk(tree) if isinstance(loop, (ast.While, ast.For)))


def _ends_by_memory(loop: ast.While | ast.For) -> bool:
    deciding: list[ast.expr] = [loop.test] if isinstance(loop, ast.While) else []
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(isinstance(n, (ast.Break, ast.Return)) for n in ast.walk(node)):
            deciding.append(node.test)
    known: set[str] = set()
    while deciding:
        expression = deciding.pop()
        if _reads_memory(expression):
            return True
        names = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name)} - known
        known |= names
        deciding += [value for name in names for value in _assigned(loop, name)]
    return False


def _assigned(loop: ast.AST, name: str) -> Iterator[ast.expr]:
    """What the loop assigns to a variable."""
    for node in ast.walk(loop):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if value is None or not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            continue
        if any(isinstance(n, ast.Name) and n.id == name for target in targets for n in ast.walk(target)):
            yield value


def _reads_memory(expression: ast.expr) -> bool:
    for node in ast.walk(expression):
        if isinstance(node, ast.Subscript) and not _is_shape(node.value):
            return True
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name not in _PURE or ".atomic." in ast.unparse(function):  # cuda.atomic.max is not max
                return True
    return False


def _is_shape(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "strides")


class Watch:
    """Notices a loop that waits: round after round it reads memory, and nothing is written.

    In lockstep the rounds of such a loop repeat for ever, since nobody else gets to write.  If they also change no
    variable that is certain after `ROUNDS`; if they do (a spin counter, a growing back-off) it is assumed after
    `SUSPICIOUS`, provided that the launch can begin again under another schedule.
    """

    ROUNDS, SUSPICIOUS = 64, 4096

    __slots__ = ("f", "idle", "lanes", "line", "reads", "rounds", "variables", "writes")

    def __init__(self, f: Frame, line: int) -> None:
        self.f, self.line, self.rounds, self.idle = f, line, 0, 0
        self.writes, self.reads, self.lanes, self.variables = f.m.writes, f.m.reads, -1, None

    def check(self, current: Mask | None, *, endless: bool) -> Waits | None:
        """Called after each round; `endless` for loops without a bound of their own.  What to wait with, if it must."""
        m = self.f.m
        self.rounds += 1
        if endless and self.rounds > m.launch.loop_limit:
            raise m.error(
                f"this loop has run {self.rounds - 1:,} times and looks endless (simt.loop_limit raises the limit)",
                self.line,
            )
        if m.turns is not None and self.rounds % TURN == 0 and current is not None:
            return m.turns.pause(self.line)
        lanes = current.lanes if current else 0
        if m.writes != self.writes or lanes != self.lanes or current is None:
            self.writes, self.lanes, self.idle, self.variables = m.writes, lanes, 0, None
            self.reads = m.reads
            return None
        self.idle += 1
        if m.turns is not None:
            if m.reads != self.reads and self.idle % PATIENCE == 0:
                self.reads = m.reads
                frozen = self.unchanged()
                self.variables = dict(self.f.vars)
                return m.turns.idle(self.line, frozen=frozen, endless=endless)
            return None
        if endless and self.idle % self.ROUNDS == self.ROUNDS - 1:
            self.variables = dict(self.f.vars)
        elif endless and self.idle % self.ROUNDS == 0 and self.unchanged():
            if m.reads == self.reads:
                message = "this loop is endless: nothing that its test depends on changes, and it reads no memory"
                raise m.error(message, self.line)
            raise self.stuck()
        if m.launch.can_begin_again and self.idle >= self.SUSPICIOUS and m.reads != self.reads:
            raise self.stuck()
        return None

    def unchanged(self) -> bool:
        """Whether the variables are what they were when last noted."""
        now, then = self.f.vars, self.variables
        return then is not None and then.keys() == now.keys() and all(_same(then[k], now[k]) for k in now)

    def stuck(self) -> Waiting:
        """The refusal, which ends the launch or makes it begin again under another schedule."""
        return Waiting(
            self.f.m.where(self.line) + "this loop waits for a value that another thread must write, but in lockstep "
            "that thread never gets to write it; on a GPU it may hang as well"
        )


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, (np.generic, np.ndarray)) and isinstance(b, (np.generic, np.ndarray)):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return False
