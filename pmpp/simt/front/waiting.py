"""Loops that wait for another thread: which functions may have one, and which loop is doing it.  And mere looks.

A kernel with a loop whose end depends on what it reads from memory may wait.  It is run in lockstep first, on the
chance that nobody has to (a search reads memory in a loop, too), and its arrays are kept so that it can begin again by
turns.  Others need no copy.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pmpp.simt.api.cache_hints import LOADS
from pmpp.simt.front.nodes import children, once, walk
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


#: What an expression of globals stands for, as far as it is known.
Known = Callable[[ast.expr], Any]


def may_wait(tree: ast.AST, known: Known) -> bool:
    """Whether a function has a loop that may end only when another thread has written something."""
    return any(_reads_memory(e, known) for loop in _loops(tree) for e in _deciding(loop))


def _loops(tree: ast.AST) -> Iterator[ast.While | ast.For]:
    return (node for node in walk(tree) if isinstance(node, (ast.While, ast.For)))


@once
def _deciding(loop: ast.While | ast.For) -> list[ast.expr]:
    """The expressions on which it depends whether a loop goes on, with what its variables are assigned inside it."""
    tests: list[ast.expr] = [loop.test] if isinstance(loop, ast.While) else []
    for node in walk(loop):
        if isinstance(node, ast.If) and any(isinstance(n, (ast.Break, ast.Return)) for n in walk(node)):
            tests.append(node.test)
    return _with_variables(tests, _assignments(loop)) if tests else []


@once
def decided_by(loop: ast.While | ast.For) -> frozenset[str]:
    """The variables on which it depends whether a loop goes on; one that only counts the rounds is none of them.

    Those in its test and in the tests around a `break` or `return`, those from which these are computed in the loop,
    and those in the tests around such an assignment.  The variable of a `for` is one: its range comes to an end.
    """
    around: dict[ast.AST, list[ast.expr]] = {}  # for each node of the loop, the tests on which it depends

    def enter(node: ast.AST, tests: list[ast.expr]) -> None:
        around[node] = tests
        own = getattr(node, "test", None) or (getattr(node, "iter", None) if isinstance(node, ast.For) else None)
        inside = [*tests, own] if isinstance(own, ast.expr) else tests
        for child in children(node):
            enter(child, inside)

    enter(loop, [])
    leaving = [node for node in around if isinstance(node, (ast.Break, ast.Continue, ast.Return, ast.Raise))]
    pending = [loop.test] if isinstance(loop, ast.While) else [loop.target]
    pending += [test for node in leaving for test in around[node]]
    known, assigned = set(), _assignments(loop)
    while pending:
        names = {n.id for n in walk(pending.pop()) if isinstance(n, ast.Name)} - known
        known |= names
        for node, tests in around.items():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
                pending += tests
        pending += [value for name in names for value in assigned.get(name, ())]
    return frozenset(known)


def _with_variables(expressions: list[ast.expr], assigned: dict[str, list[ast.expr]]) -> list[ast.expr]:
    """The expressions, and all that is assigned to the variables in them, and so on."""
    found, pending, names = [], list(expressions), set()
    while pending:
        expression = pending.pop()
        found.append(expression)
        new = {n.id for n in walk(expression) if isinstance(n, ast.Name)} - names
        names |= new
        pending += [value for name in new for value in assigned.get(name, ())]
    return found


@once
def _assignments(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """What each variable is assigned."""
    found: dict[str, list[ast.expr]] = {}
    for node in walk(tree):
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            for name in {n.id for n in walk(target) if isinstance(n, ast.Name)}:
                found.setdefault(name, []).append(node.value)
    return found


def _reads_memory(expression: ast.expr, known: Known) -> bool:
    for node in walk(expression):
        if isinstance(node, ast.Subscript) and not _is_shape(node.value):
            return True
        if isinstance(node, ast.Call) and not _is_pure(node.func, known):
            return True
    return False


def _is_pure(function: ast.expr, known: Known) -> bool:
    """Whether a call gives the same for the same arguments: `max` does, and `cuda.atomic.max` does not."""
    if _name(function) not in _PURE or _of_atomic(function) is not None:
        return False
    thing = known(function)
    return not (hasattr(thing, "py_func") or inspect.isfunction(thing))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _of_atomic(function: ast.expr) -> str | None:
    """ "max" for `cuda.atomic.max`; None for what is no atomic."""
    return function.attr if isinstance(function, ast.Attribute) and _name(function.value) == "atomic" else None


def _is_shape(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("shape", "strides")


# -- plain reads of what others update by atomics ----------------------------------------------------------------------

#: Atomics that do no harm if what was read before is outdated: they compare by themselves.
_DECIDES = frozenset({"cas", "compare_and_swap", "max", "min", "nanmax", "nanmin", "and_", "or_"})


class Looks:
    """Where a function reads, by plain loads, what other threads may be updating atomically, and means no harm.

    - A loop that waits: its end depends on what it reads.
    - A look: what is read is tested, and where the test holds there is a fence; or a fence is the next thing.
    - A look before an atomic that decides: it compares by itself, or what it returns is tested.

    `lines` are those of such reads, and `functions` those that read instead.
    """

    def __init__(self, tree: ast.AST, known: Known) -> None:
        self.lines: set[int] = set()
        self.functions: list[Callable] = []
        self._known, self._assigned = known, _assignments(tree)
        for loop in _loops(tree):
            self._enter(_deciding(loop))
        calls = [node for node in walk(tree) if isinstance(node, ast.Call)]
        fences = any(map(self._is_fence, calls))
        atomics = any(_of_atomic(call.func) is not None or "atomic" in self._names_in(call) for call in calls)
        for node in walk(tree) if fences or atomics else ():
            if isinstance(node, ast.If):
                self._tested(node)
            elif isinstance(node, ast.Call) and _of_atomic(node.func) in ("cas", "compare_and_swap"):
                self._enter(_with_variables(node.args[1:], self._assigned), {ast.unparse(node.args[0])})
            for _, body in ast.iter_fields(node) if fences else ():
                if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                    self._fenced(body)

    def _enter(self, expressions: list[ast.expr], arrays: set[str] | None = None) -> None:
        """Note what the expressions read, of all arrays or of some."""
        for expression in expressions:
            for node in walk(expression):
                array = _loaded(node)
                if array is not None and (arrays is None or ast.unparse(array) in arrays):
                    self.lines.add(node.lineno)
                elif isinstance(node, ast.Call) and arrays is None:
                    py_func = getattr(self._known(node.func), "py_func", None)
                    if py_func is not None:
                        self.functions.append(py_func)

    def _tested(self, node: ast.If) -> None:
        inside = [n for part in (node.test, *node.body, *node.orelse) for n in walk(part)]
        calls = [n for n in inside if isinstance(n, ast.Call)]
        if any(map(self._is_fence, calls)):
            self._enter(_with_variables([node.test], self._assigned))
            return
        arrays = {ast.unparse(call.args[0]) for call in calls if _of_atomic(call.func) in _DECIDES and call.args}
        others = {id(call): call for call in calls if _of_atomic(call.func) is not None and call.args}
        if others:
            tests = [n.test for n in inside if isinstance(n, (ast.If, ast.While, ast.IfExp))]
            for expression in _with_variables(tests, self._assigned):
                arrays |= {ast.unparse(others[id(n)].args[0]) for n in walk(expression) if id(n) in others}
        for call in calls:  # a function that is given the array may decide
            if "atomic" in self._names_in(call):
                arrays |= set(map(ast.unparse, call.args))
        if arrays:
            self._enter(_with_variables([node.test], self._assigned), arrays)

    def _fenced(self, body: list[ast.stmt]) -> None:
        """Reads with a fence behind them, and no other access in between."""
        read: list[ast.expr] = []
        for statement in body:
            simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) and statement.value is not None
            if simple and self._is_fence(statement.value):
                self._enter(read)
                read = []
            elif simple and not any(isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)
                                    for n in walk(statement)):  # fmt: skip
                read.append(statement.value)
            else:
                read = []

    def _is_fence(self, node: ast.AST) -> bool:
        """Whether this calls a fence, or a function that does."""
        if not isinstance(node, ast.Call):
            return False
        return any(name.startswith("threadfence") for name in (_name(node.func), *self._names_in(node)))

    def _names_in(self, call: ast.Call) -> tuple[str, ...]:
        """The names that a device function uses: those of `cuda` among them."""
        py_func = getattr(self._known(call.func), "py_func", None)
        return () if py_func is None else py_func.__code__.co_names


@once
def reads(tree: ast.AST) -> set[int]:
    """The lines on which a function reads elements."""
    return {n.lineno for n in walk(tree) if _loaded(n) is not None}


def _loaded(node: ast.AST) -> ast.expr | None:
    """The array of which this is a load: `x[i]`, `cuda.ldcv(x, i)`."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return node.value
    loads = isinstance(node, ast.Call) and node.args and (_name(node.func) in LOADS or _name(node.func) == "load128")
    return node.args[0] if loads else None


class Watch:
    """Notices a loop that waits: round after round it reads memory, and nothing is written.

    In lockstep the rounds of such a loop repeat for ever, since nobody else gets to write.  If they also change no
    variable on which its end depends (`decided_by`), that is certain after `ROUNDS`; if they do (a bounded number of
    attempts) it is assumed after `SUSPICIOUS`, provided that the launch can begin again under another schedule.
    """

    ROUNDS, SUSPICIOUS = 4, 4096

    __slots__ = ("before", "deciding", "f", "idle", "lanes", "line", "reads", "rounds", "variables", "writes")

    def __init__(self, f: Frame, line: int, deciding: frozenset[str]) -> None:
        self.f, self.line, self.rounds, self.idle, self.deciding = f, line, 0, 0, deciding
        self.writes, self.reads, self.lanes, self.variables = f.m.writes, f.m.reads, -1, None
        self.before: dict[str, Any] | None = None  # the variables behind the first idle round of a turn

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
            if self.idle % PATIENCE == 1:
                self.before = self.now()
            elif self.idle % PATIENCE in (0, 2) and m.reads != self.reads:
                still, frozen = self.unchanged_since(self.before), self.unchanged_since(self.variables)
                if not still and self.idle % PATIENCE:
                    return None
                self.reads, self.idle, self.variables = m.reads, 0, self.now()
                return m.turns.idle(self.line, frozen=frozen, endless=endless, still=still)
            return None
        if endless and self.idle % self.ROUNDS == self.ROUNDS - 1:
            self.variables = self.now()
        elif endless and self.idle % self.ROUNDS == 0 and self.unchanged_since(self.variables):
            if m.reads == self.reads:
                message = "this loop looks endless: a round changes no variable, writes nothing and reads no memory"
                raise m.error(message, self.line)
            raise self.stuck()
        if m.launch.can_begin_again and self.idle >= self.SUSPICIOUS and m.reads != self.reads:
            raise self.stuck()
        return None

    def now(self) -> dict[str, Any]:
        """The variables on which the loop's end depends."""
        return {name: value for name, value in self.f.vars.items() if name in self.deciding}

    def unchanged_since(self, then: dict[str, Any] | None) -> bool:
        """Whether these are what they were then."""
        now = self.now()
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
