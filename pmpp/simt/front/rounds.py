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
and elements, and sums, differences and products of that.  The first round always runs by itself.  It shows that each
variable has one type, and says what there is to be said of a line.  If something is found in the rounds that run
together, such as an index out of bounds, nothing of them counts: they run again, one by one.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
from pmpp.simt.machine.storage import selected
from pmpp.simt.values import dtypes, maths
from pmpp.simt.values.dtypes import Value, as_intp, is_number
from pmpp.simt.values.errors import SimtError

#: Fewer rounds than these are not worth it.
LEAST = 4

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

_COORDINATES = ("threadIdx.", "blockIdx.", "blockDim.", "gridDim.")


# -- from the source -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Independent:
    """A loop whose rounds depend on one another by sums alone.

    target      its variable
    read        variables that it reads and does not assign
    temporary   variables that each round assigns before it reads them
    sums        those that a round adds to, subtracts from or multiplies, and does nothing else with
    body        a round of it, for a frame in which each sum is a `Total`
    """

    target: str
    read: tuple[str, ...]
    temporary: tuple[str, ...]
    sums: dict[str, np.ufunc]
    body: Callable[[Frame], None]


def independent(
    names: Names, node: ast.For, compiled: Callable[[ast.stmt, bool], Callable[[Frame], None]]
) -> Independent | None:
    """What is to be known of a loop to run several rounds at once; None if that is not possible.

    `compiled` compiles a statement, given whether it adds to a sum (`adding`).
    """
    if not isinstance(node.target, ast.Name):
        return None
    read, assigned, sums = set(), {node.target.id}, {}  # so far in a round; `read` before it is assigned
    for statement in node.body:
        name = _assigned(statement)
        if name is None or name == node.target.id or not _is_plain(names, statement.value):
            return None
        used = {n.id for n in walk(statement.value) if isinstance(n, ast.Name)}
        read |= {each for each in used - assigned if names.level(each) == 0}
        if isinstance(statement, ast.Assign):
            assigned.add(name)
        elif name not in assigned:
            if name in sums or type(statement.op) not in _SUMS:
                return None
            sums[name] = _SUMS[type(statement.op)]
    if not read.isdisjoint(assigned) or not sums.keys().isdisjoint(read | assigned):
        return None
    steps = [compiled(statement, _assigned(statement) in sums) for statement in node.body]

    def body(f: Frame) -> None:
        for step in steps:
            step(f)

    temporary = assigned - {node.target.id}
    return Independent(node.target.id, tuple(sorted(read)), tuple(sorted(temporary)), sums, body)


def _assigned(statement: ast.stmt) -> str | None:
    """The one variable that a statement assigns, if it does nothing else."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, _OPERATORS):
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def _is_plain(names: Names, node: ast.expr) -> bool:
    """Whether an expression is arithmetic on numbers and on elements of arrays: no lane waits, writes or branches."""

    def plain(*nodes: ast.expr) -> bool:
        return all(_is_plain(names, each) for each in nodes)

    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.Name):
        return names.level(node.id) == 0 or names.constant_value(node) is not None
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _OPERATORS) and plain(node.left, node.right)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, (ast.USub, ast.UAdd, ast.Invert)) and plain(node.operand)
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

    return ex


# -- in a launch -----------------------------------------------------------------------------------------------------


class _Abandoned(Exception):
    """The rounds must run one by one."""


class _Total:
    """A variable that rounds add to: a zero of its type, and what they add, in that type and in all of their lanes."""

    def __init__(self, zero: np.generic) -> None:
        self.zero = zero
        self.added: Any = None


class Rounds:
    """Some rounds of a loop as lanes, a lane in each of its rounds, and the way back.

    few             these lanes
    mask            those of them that are active
    target          the loop's variable in them
    entered         the lanes that do a round, among all of the loop
    going, leaving  the lanes that ask whether there is one more round, by the answer
    """

    few: Few
    mask: Mask
    target: np.ndarray
    entered: Mask
    going: Mask
    leaving: Mask | None

    def total(self, ufunc: np.ufunc, start: Value, added: Value) -> Value:
        """A sum, of what it was and what is added in each lane, round after round."""
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

    def total(self, ufunc: np.ufunc, start: Value, added: Value) -> Value:
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
        self.shape, self.at = (lanes.blocks, lanes.width), as_intp(places[who])
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

    def total(self, ufunc: np.ufunc, start: Value, added: Value) -> Value:
        result, first = np.array(spread(start, self.shape)), 0
        flat, values = result.reshape(-1), spread(added, (self.few.size, 1)).reshape(-1)
        for end in self.ends:
            here = self.at[first:end]
            flat[here] = ufunc(flat[here], values[first:end])
            first = end
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


class Several:
    """Runs rounds of one loop together: in `run_for`, after a round that ran by itself."""

    __slots__ = ("f", "few", "head", "known", "least", "loop", "off", "same", "same_before")

    def __init__(self, f: Frame, loop: Loop, known: Independent, head: list[tuple[str, np.dtype]]) -> None:
        self.f, self.loop, self.known, self.head, self.off = f, loop, known, head, False
        self.same: dict[int, tuple[Any, Any]] = {}  # variables as the rounds have them and as they are, by id of that
        self.few: Few | None = None  # the lanes of these rounds
        self.same_before: SameRounds | None = None
        self.least = 2 if f.m.launch.gathering == "always" else LEAST

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
        if self.off or lanes.size > SMALL or len(values) < self.least:
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
        if count < self.least:
            return 0
        rounds = OwnRounds(lanes, current, begin, left, pace, count, value.dtype)
        if not self._run(rounds, line):
            return 0
        self.loop.current, leaving = current.split(rounds.left >= count)
        self.loop.done = union(self.loop.done, leaving)
        return count

    def _run(self, rounds: Rounds, line: int) -> bool:
        """Run the body in these rounds, and put back what it leaves; whether that counts."""
        f, m, known = self.f, self.f.m, self.known
        before = f.vars, f.partial, f.live, f.mask, m.batch
        counted = None if m.counts is None else m.counts.now()
        warned = None if m.warnings is None else m.warnings.now()
        met, found = m.met, len(m.hazards)
        try:
            totals = self._enter(rounds)
            if m.counts is not None:
                asking = rounds.going if rounds.leaving is None else rounds.leaving.of.full
                m.branch(line, asking, rounds.going, rounds.leaving)
            if m.checks is not None:
                m.checks.postpone()
            known.body(f)
            inside, (f.vars, f.partial, f.live, f.mask, m.batch) = f.vars, before
            if m.checks is not None:
                rounds.tell(m, m.checks.postponed(), self.same)
            if m.met != met or (warned is not None and m.warnings.now() != warned):
                raise _Abandoned
            new = {name: rounds.last(self._as_before(inside, name)) for name in (known.target, *known.temporary)}
            for name, each in totals.items():
                new[name] = rounds.total(known.sums[name], f.vars[name], each.added)
        except (SimtError, CannotGather, _Abandoned):
            self.off = True
            f.vars, f.partial, f.live, f.mask, m.batch = before
            if m.checks is not None:
                m.checks.postponed()
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
