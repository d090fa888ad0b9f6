"""Several rounds of a loop at a time, where no round depends on the one before but for sums.

In lockstep a loop of a thousand rounds computes each of its operations a thousand times, on as many lanes as there are.
Where these are few, most of the time goes into the calls.  In a loop such as

    for k in range(starts[i], starts[i + 1]):
        total += values[k] * x[columns[k]]

a round needs nothing of the rounds before, except for `total`.  So many rounds run at once, as many as fit in a batch.
A lane of `Few` (machine/lanes.py) is then a lane in one of the rounds, and the rounds follow one another in it.  Each
round keeps its warps and its addresses, so the counters are those of the rounds one by one.  The sum is taken
afterwards, round after round, because floating-point addition must keep its order.  The sanitizers are told of the
reads afterwards, too, round after round.

Which loops these are is decided from their source (`independent`): assignments to variables, of arithmetic on numbers
and elements, and sums, differences and products of that; stores and atomics, if nothing else in the loop uses their
array; and an `if` around sums, stores and atomics.  Lanes follow one another round after round, so stores and atomics
of one statement have the order that they have in single rounds.  Where this statement alone uses the array, nobody sees
that another statement came later.  So a search through a graph runs many edges at once:

    for k in range(starts[i], starts[i + 1]):
        j = neighbours[k]
        if cuda.atomic.cas(level, j, -1, depth) == -1:
            following[j] = 1

The first round always runs by itself.  It shows that each variable has one type, and says what there is to be said of a
line.  If something is found in the rounds that run together, such as an index out of bounds, nothing of them counts:
what they have written is put back, and they run again, one by one.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pmpp.simt.api import intrinsics
from pmpp.simt.front import variables
from pmpp.simt.front.gathering import CannotGather, converted
from pmpp.simt.front.names import DYNAMIC, Names
from pmpp.simt.front.nodes import walk
from pmpp.simt.machine.frames import Frame, Loop
from pmpp.simt.machine.lanes import Few, Lanes, Mask, spread, union
from pmpp.simt.machine.machine import Batch, Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.storage import Storage, selected
from pmpp.simt.values import dtypes, maths
from pmpp.simt.values.dtypes import Value, as_intp, is_number
from pmpp.simt.values.errors import SimtError

#: Fewer rounds than these are not worth it, nor are these of a loop that writes, whose arrays are copied before.
LEAST, LEAST_WRITING = 4, 12

#: Nor is it with more lanes than these.  NumPy's calls then cost little beside their work, and values that are the same
#: in all blocks, or in a whole block, would no longer be small.
SMALL = 1 << 10

#: Of lanes with ranges of their own there may be more where each access is counted or checked, which costs more calls.
SMALL_OBSERVED = 1 << 12

#: Bounds of ranges beyond which the number of rounds is not computed here: it would not fit int64.
_FAR = 1 << 61

#: How each sum of a loop is taken.
_SUMS = {ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply}

_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod,
    ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift,
)  # fmt: skip

_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)

_COORDINATES = ("threadIdx.", "blockIdx.", "blockDim.", "gridDim.")

#: Bytes of the arrays that a loop writes, for each of the rounds that run together: they are copied before, in case
#: that nothing counts.  A round by itself takes longer than to copy as much.
_KEPT_BYTES = 1 << 16


# -- from the source -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Independent:
    """A loop whose rounds depend on one another by sums alone.

    target      its variable
    read        variables that it reads and does not assign
    temporary   variables that each round assigns before it reads them
    sums        those that a round adds to, subtracts from or multiplies, and does nothing else with
    written     arrays that one statement stores to or updates atomically, and that nothing else in the loop uses
    loaded      arrays of which it loads elements
    body        a round of it, for a frame in which each sum is a `Total`
    """

    target: str
    read: tuple[str, ...]
    temporary: tuple[str, ...]
    sums: dict[str, np.ufunc]
    written: tuple[str, ...]
    loaded: tuple[str, ...]
    body: Callable[[Frame], None]


class _Compiles(Protocol):
    """Compiles parts of a loop's body: the compiler of the function."""

    def expr(self, node: ast.expr) -> Callable[[Frame], Any]: ...

    def stmt(self, node: ast.stmt) -> Callable[[Frame], None]: ...

    def adding(self, node: ast.AugAssign) -> Callable[[Frame], None]: ...


def independent(names: Names, node: ast.For, compiler: _Compiles) -> Independent | None:
    """What is to be known of a loop to run several rounds at once; None if that is not possible."""
    if not isinstance(node.target, ast.Name):
        return None
    found = _Body(names, node.target.id)
    if not all(found.takes(statement, top=True) for statement in node.body):
        return None
    if not found.read.isdisjoint(found.assigned) or not found.sums.keys().isdisjoint(found.read | found.assigned):
        return None
    arrays = found.written + found.loaded
    if found.written and not (set(arrays) <= found.read and all(arrays.count(name) == 1 for name in found.written)):
        return None
    steps = [found.compiled(statement, compiler) for statement in node.body]

    def body(f: Frame) -> None:
        for step in steps:
            step(f)

    return Independent(
        node.target.id,
        tuple(sorted(found.read)),
        tuple(sorted(found.assigned - {node.target.id})),
        found.sums,
        tuple(found.written),
        tuple(sorted(set(found.loaded))),
        body,
    )


class _Body:
    """What a round of a loop reads, assigns and writes, statement by statement."""

    def __init__(self, names: Names, target: str) -> None:
        self.names, self.target = names, target
        self.read: set[str] = set()  # before the round assigns it
        self.assigned = {target}  # so far in the round
        self.sums: dict[str, np.ufunc] = {}
        self.written: list[str] = []  # the array of each store and atomic
        self.loaded: list[str] = []  # that of each load

    def takes(self, statement: ast.stmt, *, top: bool) -> bool:
        """Note a statement of the loop, or one inside an `if`; False if it cannot be in such a loop."""
        if isinstance(statement, ast.If):
            return (
                all(self.names.reached(statement.test))
                and self.uses(statement.test)
                and all(self.takes(each, top=False) for each in (*statement.body, *statement.orelse))
            )
        if isinstance(statement, ast.Pass):
            return True
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Call) and self.uses(statement.value)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Subscript):
                return self.uses(statement.value) and self.stores(target.value, target.slice)
            if not (top and isinstance(target, ast.Name)) or target.id == self.target or not self.uses(statement.value):
                return False
            self.assigned.add(target.id)
            return True
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
            return False
        name = statement.target.id
        if not isinstance(statement.op, _OPERATORS) or name == self.target or not self.uses(statement.value):
            return False
        if name in self.assigned:
            return top
        if name in self.sums or type(statement.op) not in _SUMS:
            return False
        self.sums[name] = _SUMS[type(statement.op)]
        return True

    def stores(self, array: ast.expr, index: ast.expr) -> bool:
        """Note a store or an atomic."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        if not _is_variable(self.names, array) or not all(map(self.uses, (array, *parts))):
            return False
        self.written.append(array.id)
        return True

    def uses(self, node: ast.expr) -> bool:
        """Note an expression of arithmetic, elements and atomics; False if it is another one."""
        calls = [n for n in walk(node) if isinstance(n, ast.Call) and self.is_atomic(n)]
        if not is_plain(self.names, node, frozenset(calls)):
            return False
        for call in calls:
            if not self.stores(call.args[0], call.args[1]):
                return False
        for each in walk(node):
            if isinstance(each, ast.Name) and each.id not in self.assigned and self.names.level(each.id) == 0:
                self.read.add(each.id)
            elif isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name):
                self.loaded.append(each.value.id)
        return True

    def is_atomic(self, call: ast.Call) -> bool:
        path = intrinsics.device_path(self.names.static(call.func)) or ""
        simple = not call.keywords and len(call.args) > 2 and not any(isinstance(a, ast.Starred) for a in call.args)
        return path.startswith("atomic.") and simple

    def compiled(self, statement: ast.stmt, compiler: _Compiles) -> Callable[[Frame], None]:
        """A statement for many rounds at once."""
        if isinstance(statement, ast.AugAssign) and statement.target.id in self.sums:
            return compiler.adding(statement)
        if not isinstance(statement, ast.If):
            return compiler.stmt(statement)
        test, line = compiler.expr(statement.test), statement.lineno
        body, orelse = ([self.compiled(each, compiler) for each in part] for part in (statement.body, statement.orelse))
        return _choosing(test, body, orelse, line)


def _choosing(test: Callable, body: list[Callable], orelse: list[Callable], line: int) -> Callable[[Frame], None]:
    """An `if` where many rounds run at once.  It assigns no variable, so that types need not settle behind it."""

    def ex(f: Frame) -> None:
        m, outer = f.m, f.mask
        m.place.line = line
        c = variables.condition(f, test(f), line)
        yes, no = ((outer, None) if c else (None, outer)) if isinstance(c, np.bool_) else outer.split(c)
        if m.counts is not None:
            m.branch(line, outer, yes, no)
        for mask, steps in ((yes, body), (no, orelse)):
            if mask is not None:
                f.mask = mask
                for step in steps:
                    step(f)
        f.mask = outer

    return ex


def is_plain(names: Names, node: ast.expr, atomics: frozenset[ast.expr] = frozenset()) -> bool:
    """Whether an expression is arithmetic on numbers and on elements of arrays: no lane waits, writes or branches.

    `atomics` are calls that may be in it.
    """

    def plain(*nodes: ast.expr) -> bool:
        return all(is_plain(names, each, atomics) for each in nodes)

    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.Name):
        return names.level(node.id) == 0 or names.constant_value(node) is not None
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _OPERATORS) and plain(node.left, node.right)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.USub, ast.UAdd, ast.Invert, ast.Not)) and plain(node.operand)
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and isinstance(node.ops[0], _COMPARISONS) and plain(node.left, *node.comparators)
    if isinstance(node, ast.Attribute):
        if (intrinsics.device_path(names.static(node)) or "").startswith(_COORDINATES):
            return True
        return node.attr == "size" and _is_variable(names, node.value)
    if isinstance(node, ast.Subscript):
        index = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        base = node.value
        if isinstance(base, ast.Attribute) and base.attr == "shape":
            return _is_variable(names, base.value) and isinstance(node.slice, ast.Constant)
        return _is_variable(names, base) and plain(*index)
    if node in atomics:
        index = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        return _is_variable(names, node.args[0]) and plain(*index, *node.args[2:])
    if isinstance(node, ast.Call) and not node.keywords:
        thing = names.static(node.func)
        casts = thing is not DYNAMIC and thing not in (bool, int, float) and dtypes.as_dtype(thing) is not None
        return (casts or any(thing is getattr(math, name, None) for name in maths.MATH)) and plain(*node.args)
    return False


def _is_variable(names: Names, node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and names.level(node.id) == 0


def adding(name: str, operate: Callable, value: Callable[[Frame], Any], line: int) -> Callable[[Frame], None]:
    """`total += value` where many rounds run at once: what is added is kept for later, and counted now.

    operate  computes and counts the operation, for a frame, two operands and a line
    """

    def ex(f: Frame) -> None:
        f.m.place.line = line
        total = f.vars[name]
        added = value(f)
        if operate(f, total.zero, added, line).dtype != total.zero.dtype:
            raise _Abandoned
        total.added = dtypes.cast(added, total.zero.dtype)
        total.only = None if f.mask is f.live else f.mask

    return ex


# -- in a launch -----------------------------------------------------------------------------------------------------


class _Abandoned(Exception):
    """The rounds must run one by one."""


class _Total:
    """A variable that rounds add to: a zero of its type, and what they add, in that type.

    added   what they add; None if no lane does
    only    the lanes that do; None if all do
    """

    def __init__(self, zero: np.generic) -> None:
        self.zero = zero
        self.added: Any = None
        self.only: Mask | None = None


class Rounds:
    """Some rounds of a loop as lanes, a lane in each of its rounds, and the way back.

    few             these lanes
    mask            those of them that are active
    count           rounds at most
    target          the loop's variable in them
    entered         the lanes that do a round, among all of the loop
    going, leaving  the lanes that ask whether there is one more round, by the answer
    """

    few: Few
    mask: Mask
    count: int
    target: np.ndarray
    entered: Mask
    going: Mask
    leaving: Mask | None

    def total(self, ufunc: np.ufunc, start: Value, added: Value, only: Mask | None) -> Value:
        """A sum, of what it was and what is added in each lane, or only in some, round after round."""
        raise NotImplementedError

    def last(self, value: Value) -> Value:
        """A variable as the last round of each lane leaves it, of its values in all of them."""
        raise NotImplementedError

    def tell(self, m: Machine, reads: list[tuple], same: dict[int, tuple[Any, Any]]) -> None:
        """Tell the sanitizers of the reads, round after round; `same` as in `Several`."""
        raise NotImplementedError


class SameRounds(Rounds):
    """All lanes do the same rounds: the rows of the batch are repeated for each.

    before  the rounds that ran before these: if they were as many, of the same lanes, theirs serve again
    """

    def __init__(self, lanes: Lanes, current: Mask, values: np.ndarray, before: SameRounds | None = None) -> None:
        self.lanes, self.values, self.count, rows = lanes, values, values.size, lanes.blocks
        self.target, self.entered = np.repeat(values, rows)[:, None], current
        if before is not None and before.count == self.count and before.entered is current:
            self.few, self.mask = before.few, before.mask
        else:
            rounds = np.repeat(np.arange(self.count, dtype=np.int64), rows)
            self.few = Few(lanes, np.tile(np.arange(rows, dtype=np.int64), self.count), lanes.width, rounds)
            self.mask = self.few.mask(current)
        self.going = self.mask
        self.leaving = None

    def total(self, ufunc: np.ufunc, start: Value, added: Value, only: Mask | None) -> Value:
        if only is not None:
            result = spread(start, (self.lanes.blocks, self.lanes.width))
            for each, here in zip(self._each(added), self._each(only.grid()), strict=True):
                result = np.where(here, ufunc(result, each), result)
            return result
        rounds = self._each(added)
        result = ufunc(start, next(rounds))
        if not isinstance(result, np.ndarray):
            return functools.reduce(ufunc, rounds, result)
        for each in rounds:
            ufunc(result, each, out=result)
        return result

    def last(self, value: Value) -> Value:
        if value is self.target:
            return self.values[-1]
        return value if value.ndim == 0 or value.shape[0] == 1 else value[-self.lanes.blocks :]

    def tell(self, m: Machine, reads: list[tuple], same: dict[int, tuple[Any, Any]]) -> None:
        found = []  # each read with its positions in all rounds: a list, or the one that is the same in all of them
        for _, storage, at, name, line in reads:
            where: Any = same[id(at)][1] if id(at) in same else [_the_same(one) for one in self._each(at)]
            found.append((storage, where, name, line))
        first = 0
        if _in_one_order(found) and m.checks.can_be_told_at_once(reads):
            # What is the same in all rounds the last one tells, and so that it comes where it should be, all of that.
            first = self.count - 1
            for storage, where, name, line in found:
                if isinstance(where, list):
                    m.checks.read_in_turn(self.entered, storage, where[:first], name, line)
        for k in range(first, self.count):
            for storage, where, name, line in found:
                m.checks.read(self.entered, storage, where[k] if isinstance(where, list) else where, name, line)

    def _each(self, value: Value) -> Iterator[Value]:
        """What each of the rounds has of a value of all of them."""
        if value.ndim == 0 or value.shape[0] == 1:
            yield from itertools.repeat(value, self.count)
        else:
            yield from value.reshape(self.count, -1, value.shape[1])


class OwnRounds(Rounds):
    """Each lane does as many rounds as are left to it: only the lanes that do a round are there.

    begin, left  of the lanes of `current`: the loop's variable in the first of these rounds, and the rounds left
    pace         by how much it grows
    count        rounds at most
    """

    def __init__(
        self, lanes: Lanes, current: Mask, begin: np.ndarray, left: np.ndarray, pace: int, count: int, dtype: np.dtype
    ) -> None:
        places, each = current.places(), np.arange(count, dtype=np.int64)[:, None]
        entering, who = _places(each < left)  # round after round
        self.count, self.shape, self.at = count, (lanes.blocks, lanes.width), as_intp(places[who])
        self.ends = np.searchsorted(
            entering, np.arange(1, entering[-1] + 2, dtype=np.int64)
        ).tolist()  # lanes of the rounds so far
        self.few = Few(lanes, places[who], 1, entering)
        self.mask, self.target = self.few.full, (begin[who] + entering * pace).astype(dtype)[:, None]
        self.left = np.zeros(lanes.size, np.int64)
        self.left[places] = left
        self.left = self.left.reshape(self.shape)
        self.entered, _ = current.split(self.left > 0)
        asking, those = _places(each <= left)
        self.going, self.leaving = Few(lanes, places[those], 1, asking).full.split((asking < left[those])[:, None])

    def total(self, ufunc: np.ufunc, start: Value, added: Value, only: Mask | None) -> Value:
        result, values = np.array(spread(start, self.shape)), spread(added, (self.few.size, 1)).reshape(-1)
        at = self.at
        if only is not None:
            at, values = at[only.places()], values[only.places()]
        ufunc.at(result.reshape(-1), at, values)  # lane after lane, and so round after round
        return result

    def last(self, value: Value) -> Value:
        result = np.zeros(self.shape, value.dtype)
        result.reshape(-1)[self.at] = spread(value, (self.few.size, 1)).reshape(-1)  # of several NumPy keeps the last
        return result

    def tell(self, m: Machine, reads: list[tuple], same: dict[int, tuple[Any, Any]]) -> None:
        batch, m.batch = m.batch, Batch(self.few)
        m.checks.read_by_rounds(reads, self.ends)
        m.batch = batch


def _in_one_order(reads: list[tuple]) -> bool:
    """Whether of each array at most one read has other positions in each round, if lanes differ in them."""
    differ = [(storage, any(at.ndim for at in where)) for storage, where, _, _ in reads if isinstance(where, list)]
    by_lane = {storage for storage, lanes_differ in differ if lanes_differ}
    return all(sum(storage is other for other, _ in differ) == 1 for storage in by_lane)


def _the_same(value: Value) -> Value:
    """The one number that all lanes have, or the value as it is."""
    alike = value.size == 1 or (value.shape[1] == 1 and (value == value[0]).all())
    return value.reshape(-1)[0] if alike else value


def _places(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns where a table of booleans holds: `np.nonzero`, which takes longer with two axes."""
    flat = np.flatnonzero(table).astype(np.int64, copy=False)
    rows = flat // table.shape[1]
    return rows, flat - rows * table.shape[1]


class _Kept:
    """What some arrays held, and which atomics were postponed, before rounds wrote to these arrays.

    values  of each storage what it held
    """

    def __init__(self, m: Machine) -> None:
        self.m, self.values, self.pending = m, {}, {storage: list(entries) for storage, entries in m.pending.items()}

    def add(self, storage: Storage) -> None:
        """Keep what one holds."""
        if self.m.pending and storage not in self.m.pending:
            self.m.settle_one(storage)  # what is postponed through other views of the same memory
            self.pending = {storage: list(entries) for storage, entries in self.m.pending.items()}
        self.values[storage] = storage.values.copy()

    def restore(self, m: Machine) -> None:
        """Put everything back."""
        for storage, values in self.values.items():
            storage.values[...] = values
        m.pending = self.pending


def _each_used_once(f: Frame, known: Independent) -> bool:
    """Whether each array that a loop writes is memory that nothing else in the loop uses under another name."""
    arrays = [f.vars.get(name) for name in known.written]
    if not all(isinstance(a, Array) and not a.is_record and a.storage.space in ("global", "shared") for a in arrays):
        return False
    if f.m.checks is not None and any(a.storage.space == "shared" and a.storage.cells.one_row for a in arrays):
        return False  # which all blocks use alike: told of by rounds, each would get a row of its own
    used = [f.vars[name].storage for name in known.loaded if isinstance(f.vars.get(name), Array)]
    for array in arrays:  # parts of one allocation may share a sector
        if any(_allocation(array.storage) is _allocation(other) for other in used):
            return False
        used.append(array.storage)
    return True


def _allocation(storage: Storage) -> np.ndarray:
    owner = storage.values
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner


class Several:
    """Runs rounds of one loop together: in `run_for`, after a round that ran by itself."""

    __slots__ = ("f", "few", "head", "known", "least", "loop", "off", "same", "same_before")

    def __init__(self, f: Frame, loop: Loop, known: Independent, head: list[tuple[str, np.dtype]]) -> None:
        self.f, self.loop, self.known, self.head, self.off = f, loop, known, head, False
        self.same: dict[int, tuple[Any, Any]] = {}  # variables as the rounds have them and as they are, by id of that
        self.few: Few | None = None  # the lanes of these rounds
        self.same_before: SameRounds | None = None
        self.least = 2 if f.m.launch.gathering == "always" else LEAST_WRITING if known.written else LEAST

    @classmethod
    def of(cls, f: Frame, loop: Loop, known: Independent | None, head: list[tuple[str, np.dtype]]) -> Several | None:
        """For a loop of a frame whose variables have the types of `head`; None where it is not possible."""
        m = f.m
        if known is None or f.outer is not None or m.launch.gathering == "never":
            return None
        if m.turns is not None or m.trace is not None or m.launch.can_begin_again:
            return None
        if m.checks is not None and m.launch.orders_some:  # where it matters which thread read first
            return None
        return cls(f, loop, known, head)

    def same_rounds(self, left: range, dtype: np.dtype, line: int) -> int:
        """Run rounds of a range that is the same in all lanes; how many of those left have run."""
        m, current = self.f.m, self.loop.current
        lanes = m.batch.lanes
        values = left[: m.launch.batch_lanes // lanes.size]
        if self.off or lanes.size > SMALL or len(values) < self.least or not self._may_write(len(values)):
            return 0
        rounds = self.same_before = SameRounds(lanes, current, np.array(values, dtype), self.same_before)
        return len(values) if self._run(rounds, line) else 0

    def own_rounds(self, value: Value, stop: Value, step: Value, line: int) -> int:
        """Run rounds of ranges that differ between lanes, from `value` on; how many rounds have run.

        Lanes that are through leave the loop; there may be none left in it.
        """
        m, current = self.f.m, self.loop.current
        lanes, pace = m.batch.lanes, int(step.reshape(-1)[0]) if step.size == 1 else 0
        small = SMALL if m.counts is None and m.checks is None else SMALL_OBSERVED
        if self.off or current.lanes > small or pace <= 0 or value.dtype.kind != "i":
            return 0
        begin, end = (v.astype(np.int64) for v in selected(lanes, current, value, stop))
        if max(begin.max(), end.max(), pace) > _FAR or min(begin.min(), end.min()) < -_FAR:
            return 0
        left = np.maximum(0, -((begin - end) // pace))  # rounds that each lane still has to do
        count = min(m.launch.batch_lanes // current.lanes, int(left.max()) + 1)  # the last lane leaves in one more
        if count < self.least or not self._may_write(count):
            self.off |= int(left.max()) + 1 < self.least  # it will never be more
            return 0
        rounds = OwnRounds(lanes, current, begin, left, pace, count, value.dtype)
        if not self._run(rounds, line):
            return 0
        self.loop.current, leaving = current.split(rounds.left >= count)
        self.loop.done = union(self.loop.done, leaving)
        return count

    def _may_write(self, count: int) -> bool:
        """Whether nothing else uses the arrays that the loop writes, and so many rounds are worth a copy of them."""
        if not self.known.written:
            return True
        arrays = (self.f.vars[name] for name in self.known.written)
        self.off |= not _each_used_once(self.f, self.known) or (
            sum(array.storage.values.nbytes for array in arrays) > _KEPT_BYTES * count
        )
        return not self.off

    def _run(self, rounds: Rounds, line: int) -> bool:
        """Run the body in these rounds, and put back what it leaves; whether that counts."""
        f, m, known = self.f, self.f.m, self.known
        before = f.vars, f.partial, f.live, f.mask, m.batch
        warned = None if m.warnings is None else m.warnings.now()
        met, found, counted, kept = m.met, len(m.hazards), None, None
        try:
            totals = self._enter(rounds)
            kept = _Kept(m)
            for name in known.written:
                kept.add(f.vars[name].storage)
            if m.counts is not None:
                counted = m.counts.now([storage.values for storage in kept.values])
                asking = rounds.going if rounds.leaving is None else rounds.leaving.of.full
                m.branch(line, asking, rounds.going, rounds.leaving)
            if m.checks is not None:
                m.checks.postpone()
            known.body(f)
            inside, (f.vars, f.partial, f.live, f.mask, m.batch) = f.vars, before
            if m.met != met or (warned is not None and m.warnings.now() != warned):
                raise _Abandoned
            new = {name: rounds.last(self._as_before(inside, name)) for name in (known.target, *known.temporary)}
            for name, each in totals.items():
                if each.added is not None:
                    new[name] = rounds.total(known.sums[name], f.vars[name], each.added, each.only)
            if m.checks is not None:
                self._tell(rounds, kept)
        except (SimtError, CannotGather, _Abandoned):
            self.off = True
            f.vars, f.partial, f.live, f.mask, m.batch = before
            if m.checks is not None:
                m.checks.postponed()
            if kept is not None:
                kept.restore(m)
            if counted is not None:
                m.counts.back_to(counted)
            if warned is not None:
                m.warnings.back_to(warned)
            for key in list(m.hazards)[found:]:
                del m.hazards[key]
            return False
        finally:
            rounds.few.forget()
        f.mask = rounds.entered
        for name, value in new.items():
            variables.assign(f, name, value, line)
        return True

    def _tell(self, rounds: Rounds, kept: _Kept) -> None:
        """Tell the sanitizers of all accesses.  They must find nothing, or it is told when rounds run one by one."""
        m = self.f.m
        met, (reads, writes) = m.met, m.checks.postponed()
        around, together = m.batch, Batch(rounds.few)
        together.shared = around.shared
        m.batch = together
        fine = not writes or m.checks.can_write_together(writes, kept.values)
        m.batch = around
        if not fine:
            raise _Abandoned
        rounds.tell(m, reads, self.same)
        if m.met != met:
            raise _Abandoned
        if writes:
            m.batch = together
            m.checks.write_together(writes)
            m.batch = around

    def _as_before(self, inside: dict[str, Any], name: str) -> Value:
        """The value of a variable that has the type of the round before; if it has not, these rounds do not count."""
        value, old = inside[name], self.f.vars[name]
        if not (is_number(value) and is_number(old) and value.dtype == old.dtype):
            raise _Abandoned
        return value

    def _enter(self, rounds: Rounds) -> dict[str, _Total]:
        """Make the frame one of the lanes of `rounds`; the sums."""
        f, m, known = self.f, self.f.m, self.known
        if f.undefined:
            raise _Abandoned
        for name in (*known.read, *known.sums):
            defined = f.partial.get(name)
            if name not in f.vars or (defined is not None and not defined.covers(rounds.entered)):
                raise _Abandoned
        for name, dtype in self.head:
            if not is_number(f.vars.get(name)) or f.vars[name].dtype != dtype:
                raise _Abandoned
        totals = {}
        for name in known.sums:
            old = f.vars[name]
            if not is_number(old) or old.dtype.kind not in "iuf" or old.dtype.itemsize < 4:
                raise _Abandoned
            totals[name] = _Total(old.dtype.type(0))
        # What no round assigns has been picked already, where these lanes have run rounds before.
        done = {id(old): new for new, old in self.same.values()} if rounds.few is self.few else {}
        picked = {}
        for name in known.read:
            found = done.get(id(f.vars[name]))
            picked[name] = converted(f.vars[name], rounds.few.pick) if found is None else found
        if not all(is_number(value) or isinstance(value, Array) for value in picked.values()):
            raise _Abandoned
        self.same, self.few = {id(picked[name]): (picked[name], f.vars[name]) for name in known.read}, rounds.few
        f.vars, f.partial = {**f.vars, **picked, **totals, known.target: rounds.target}, {}
        f.live = f.mask = rounds.mask
        batch = Batch(rounds.few)
        batch.shared, batch.shared_bytes = m.batch.shared, m.batch.shared_bytes
        m.batch = batch
        return totals
