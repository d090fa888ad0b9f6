"""Types on the paths not taken.

Numba types a variable once, for all paths: `v = x[i] if inside else 0.0` is float64 in every thread, although x holds
float32 and even if no thread is outside.  The interpreter runs only the paths that some lane takes, so it must ask
what the others would have made of a variable; otherwise a result's precision would depend on who happens to share a
batch.

It asks by a dry run: the same closures, on one warp of zeros, with memory switched off and every branch entered.
Answers are kept for each statement, by all that they depend on: the types of what it reads, here and in the functions
around it, and which parameters are constants.  What is found out on the way, of statements further in, is kept for this
dry run alone.  It depends on where the dry run began and how deep in calls it is, and an answer must never depend on
what was asked before.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pmpp.simt.front import tuples, variables
from pmpp.simt.front.nodes import walk
from pmpp.simt.front.things import Choice
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.errors import SimtError
from pmpp.simt.values.vectors import Vector

#: Depth of calls that a dry run follows.
DEPTH = 6


class DryRun(Exception):
    """Raised where a dry run cannot tell."""


class Left(Exception):
    """Raised by `return`, `break` and `continue` in a dry run: what follows does not see this path's variables."""


class DryLoop:
    """Variables of the paths that leave a loop, and of those that go on with its next round."""

    def __init__(self) -> None:
        self.exits: list[dict[str, Any]] = []
        self.continues: list[dict[str, Any]] = []

    @property
    def leavers(self) -> int:
        """How many paths have left this round or the loop."""
        return len(self.exits) + len(self.continues)


def dry_machine(m: Machine) -> Machine:
    """A launch of one warp in which memory, counters and hazards are off."""
    one_warp = dataclasses.replace(
        m.launch, grid=(1, 1, 1), block=(32, 1, 1), level="run", raises=frozenset(), dynamic_shared=0,
        cooperative=False, schedule="lockstep", can_begin_again=False,
    )  # fmt: skip
    dry = Machine(one_warp, dry=True)
    dry.constants = m.constants
    return dry


def _key(value: Any) -> Any:
    """What the type of any expression that uses a value can depend on."""
    if isinstance(value, (np.ndarray, np.generic, variables.Mixed)):
        return value.dtype.num
    if isinstance(value, Scattered):
        value = value.parts[0][1]
    if isinstance(value, Array):
        return value.dtype if value.dtype.names else value.dtype.num, value.ndim
    if isinstance(value, tuple):
        return type(value), *map(_key, value)
    if isinstance(value, Choice):
        return Choice, *(_key(thing) for _, thing in value.parts)
    if isinstance(value, Vector):
        return value.kind
    if isinstance(value, variables.Range):
        return variables.Range, value.dtype.num
    if isinstance(value, variables.Numbered):
        return variables.Numbered, _key(value.source), _key(value.start)
    if isinstance(value, variables.Places):
        return variables.Places, len(value.extents)
    if isinstance(value, slice):
        return slice, *map(_key, (value.start, value.stop, value.step))
    if isinstance(value, variables.LocalFunction):
        return value.function, value.function.paths.seen_around(value.frame)
    known = (enum.Enum, str, type, np.dtype, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
    return value if isinstance(value, known) or hasattr(value, "py_func") else type(value)


def type_of(value: Any) -> Any:
    """What tells the types of two values apart."""
    if isinstance(value, (enum.Enum, str)):
        return type(value)
    return tuple(map(type_of, value)) if isinstance(value, tuple) else _key(value)


class _Start:
    """What a dry run begins with: zeros instead of what variables hold, here and in the functions around."""

    def __init__(self, m: Machine) -> None:
        self.m, self.frames = m, {}

    def frame(self, f: Frame, variables: dict[str, Any]) -> Frame:
        """The frame as it is in the dry run, with these variables."""
        dry = self.frames[f] = Frame(self.m, f.function, self.m.batch.lanes.full, f.caller)
        dry.depth, dry.literals = 0, f.literals
        dry.outer = None if f.outer is None else self._around(f.outer)
        dry.vars = {name: self.zero(value) for name, value in variables.items()}
        return dry

    def _around(self, f: Frame) -> Frame:
        return self.frames.get(f) or self.frame(f, f.vars)

    def zero(self, value: Any) -> Any:
        """A value of the same type."""
        if is_number(value) or isinstance(value, variables.Mixed):
            return value.dtype.type(0)
        if isinstance(value, Vector):
            return value.map(self.zero)
        if isinstance(value, Scattered):
            return value.parts[0][1]
        if isinstance(value, Choice):  # its number, if it has one: the paths that compute use that
            return self.zero(next((thing for _, thing in value.parts if is_number(thing)), value.parts[0][1]))
        if isinstance(value, variables.LocalFunction):
            return variables.LocalFunction(value.function, self._around(value.frame))
        return tuples.like(value, [self.zero(each) for each in value]) if isinstance(value, tuple) else value


class Paths:
    """The types of one statement or expression over all its paths."""

    __slots__ = ("_known", "assigned", "breaks", "others", "read")

    def __init__(self, nodes: Iterable[ast.AST], local_names: set[str]) -> None:
        below = [n for node in nodes for n in walk(node)]
        names = [n for n in below if isinstance(n, ast.Name)]
        self.breaks = any(isinstance(n, ast.Break) for n in below)
        self.assigned = sorted({n.id for n in names if isinstance(n.ctx, ast.Store)})
        self.read = sorted({n.id for n in names if n.id in local_names})
        self.others = sorted({n.id for n in names if n.id not in local_names})  # of functions around, and globals
        self._known: dict[Any, Any] = {}

    def _seen(self, f: Frame, before: dict[str, Any]) -> tuple:
        """All that the types can depend on; `before` are the variables with which the statement begins."""
        known = tuple([_key(before[n]) if n in before else None for n in self.read])
        if f.outer is None and not f.literals:
            return known
        return known, f.literals, None if f.outer is None else self.seen_around(f.outer)

    def seen_around(self, f: Frame | None) -> tuple:
        """The part of it that variables of a function around are, and of those further out."""
        found = []
        while f is not None:
            held = [(n, f.vars[n]) for n in self.others if n in f.vars]
            # Of a function defined there only which one it is: what that sees is seen from here, too.
            found += [(n, v.function if isinstance(v, variables.LocalFunction) else _key(v)) for n, v in held]
            f = f.outer
        return tuple(found)

    def _ask(self, f: Frame, run: Callable[[Frame], Any], what: str = "", before: dict[str, Any] | None = None) -> Any:
        before = f.vars if before is None else before
        key = what, self._seen(f, before)
        if key not in self._known:
            self._known[key] = _dry_run(f, run, self.assigned, before)
        return self._known[key]

    def rehearse(self, f: Frame, run: Callable[[], None]) -> None:
        """Inside a dry run: what the statement does to the variables, from memory where this dry run knows it."""
        key = self, f.depth, self._seen(f, f.vars)
        found = f.m.rehearsed.get(key)
        if found is None:
            before = f.left, [loop.leavers for loop in f.loops]
            run()
            if before == (f.left, [loop.leavers for loop in f.loops]):  # a jump inside must be met each time
                f.m.rehearsed[key] = {name: f.vars[name] for name in self.assigned if name in f.vars}
        else:
            f.vars.update(found)

    def of_value(self, f: Frame, run: Callable[[Frame], Any]) -> np.dtype | None:
        """The dtype that an expression would have, or None if that cannot be told or it is no number."""
        return self._ask(f, run)[0]

    def kind_of_value(self, f: Frame, run: Callable[[Frame], Any]) -> Any:
        """What tells the type of an expression's value from others, as `type_of`; None if it cannot be told."""
        return self._ask(f, run)[2]

    def types(
        self, f: Frame, run: Callable[[Frame], Any], what: str = "", before: dict[str, Any] | None = None
    ) -> list[tuple[str, np.dtype]]:
        """The variables that the statement assigns, each with the type that it has over all paths.

        `before` are the variables with which the statement began, if it has run since.
        """
        return self._ask(f, run, what, before)[1]


def settle(f: Frame, types: list[tuple[str, np.dtype]], line: int) -> None:
    """Give variables these types in the active lanes."""
    known = f.vars
    for name, dtype in types:
        value = known.get(name)
        if isinstance(value, variables.Mixed):
            value = value.read(f, f.mask, line)
        if is_number(value) and value.dtype is not dtype and value.dtype != dtype:
            variables.assign(f, name, dtypes.cast(value, dtypes.unify(value.dtype, dtype)), line)


def _dry_run(
    f: Frame, run: Callable[[Frame], Any], assigned: list[str], start: dict[str, Any]
) -> tuple[np.dtype | None, list, Any]:
    dry = _Start(dry_machine(f.m)).frame(f, start)
    try:
        with np.errstate(all="ignore"):
            value = run(dry)
    except (RecursionError, MemoryError):  # says nothing of the kernel, and must not be kept as its answer
        raise
    except Exception:  # a path that fails to type is one that Numba prunes, or one that will complain when it is taken
        return None, [], None
    found = [(name, dry.vars[name].dtype) for name in assigned if is_number(dry.vars.get(name))]
    return (value.dtype if is_number(value) else None), found, type_of(value)


def merge(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Variables after two paths: numbers in their common type."""
    merged = {**before, **after}
    for name in before.keys() & after.keys():
        a, b = before[name], after[name]
        if is_number(a) and is_number(b) and a.dtype != b.dtype:
            merged[name] = dtypes.unify(a.dtype, b.dtype).type(0)
    return merged


def branches(f: Frame, bodies: list[Callable[[Frame], Any]]) -> None:
    """Dry run of an `if`: every body from the same start, then the common types of those that go on."""
    start, results, left = f.vars, [], 0
    for body in bodies:
        f.vars = dict(start)
        try:
            body(f)
        except Left:
            left += 1
        except (RecursionError, MemoryError):  # see _dry_run
            raise
        except Exception as error:  # likewise
            if f.m.refused is None and isinstance(error, SimtError):
                f.m.refused = error
            continue
        else:
            results.append(f.vars)
    if left == len(bodies):
        raise Left
    f.vars = results[0] if results else start
    for other in results[1:]:
        f.vars = merge(f.vars, other)


def rounds(
    f: Frame,
    body: Callable[[Frame], Any],
    orelse: Callable[[Frame], None] | None,
    *,
    head: bool = False,
    entered: bool = False,
    forever: bool = False,
) -> None:
    """Dry run of a loop: from zero rounds to as many as it takes for the types to settle.

    head      stop at the types with which a round begins; paths that break join only behind the loop
    entered   the loop goes round at least once
    forever   only a `break` ends it
    """
    loop = DryLoop()
    f.loops.append(loop)
    try:
        for _ in range(3):
            before, loop.continues, end = dict(f.vars), [], None
            try:
                body(f)
                end = f.vars
            except Left:
                pass
            for path in loop.continues:
                end = path if end is None else merge(end, path)
            f.vars = before if end is None else merge(before, end)
            if all(_key(before.get(n)) == _key(v) for n, v in f.vars.items()):
                break
    finally:
        f.loops.pop()
    if head:
        return
    paths = loop.exits
    if not forever and (end is not None or not entered):
        f.vars = end if entered else f.vars
        if orelse is not None:
            branches(f, [orelse, lambda g: None])
        paths = [f.vars, *paths]
    if not paths:
        raise Left
    f.vars = paths[0]
    for path in paths[1:]:
        f.vars = merge(f.vars, path)
