"""What an answer to an exercise does on its cases, and what its source says: the evidence for `lab.teach.diagnosis`."""

from __future__ import annotations

import ast
import decimal
import fractions
import functools
import inspect
import linecache
import math
import re
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pmpp import simt
from pmpp.lab.teach.exercise import Case
from pmpp.runtime import device

__all__ = [
    "DECLARED",
    "SECTOR",
    "Request",
    "Run",
    "Source",
    "attempt",
    "bits",
    "extent",
    "leaver",
    "requests",
    "wide",
    "wrong_elements",
]

DECLARED = "declared_shared_bytes"  # no counter of a report: shared memory that the kernel takes beside the launch's
SECTOR = 32  # bytes
UP_TO_SIZE = re.compile(r"<= (len\(\w+\)|\w+\.(size|shape\[\d\]))$")  # a comparison that lets the size itself through
OF_INDICES = {"len", "min", "max", "int", "grid", "gridsize", "int32", "int64", "uint32", "uint64"}  # functions
LOOP_LIMIT = 1000  # rounds of one `while` loop, or twice the elements of the largest array: enough, and soon over

# ------------------------------------------------------------------------------------------------------ what it did


@dataclass(eq=False)
class Run:
    """One case, and what the answer did with it."""

    case: Case
    results: tuple = ()
    reports: list[simt.Report] = field(default_factory=list)
    error: Exception | None = None
    wrong: dict[int, np.ndarray] = field(default_factory=dict)  # {index of an output: which elements}, if any
    changed: list[int] = field(default_factory=list)  # inputs

    @property
    def hazards(self) -> list[simt.Hazard]:
        return [hazard for report in self.reports for hazard in report.hazards]

    @property
    def warnings(self) -> list[simt.KernelWarning]:
        return [warning for report in self.reports for warning in report.warnings]

    def counter(self, name: str) -> int:
        if name == DECLARED:
            return max((report.shared_bytes - self.case.sharedmem for report in self.reports), default=0)
        return sum(report.counters[name] for report in self.reports)

    def by_line(self) -> dict[int, dict[str, int]]:
        total: dict[int, dict[str, int]] = {}
        for report in self.reports:
            for line, counts in report.by_line.items():
                into = total.setdefault(line, dict.fromkeys(counts, 0))
                for name, count in counts.items():
                    into[name] += count
        return total


def attempt(answer: typing.Any, case: Case) -> Run:
    given = case.copies()
    run = Run(case, given)
    try:
        with simt.loop_limit(max(LOOP_LIMIT, 2 * case.largest)):
            if case.grid is None:
                with simt.record("check", collect=True) as reports:
                    run.reports = reports
                    returned = answer(*given)
                on_device = hasattr(returned, "copy_to_host") or hasattr(returned, "__cuda_array_interface__")
                run.results = (device.to_host(returned) if on_device else returned,)
            else:
                report = simt.profile(
                    answer, case.grid, case.block, given, level="check", sharedmem=case.sharedmem, collect=True
                )
                run.reports = [report]
    except Exception as error:  # whatever a reader's kernel does, the answer is a verdict
        run.error = error
        return run
    for index, expected in case.expected.items():
        wrong = wrong_elements(run.results[index], expected, case.tolerance.get(index, 0))
        if wrong.any():
            run.wrong[index] = wrong
    after, outputs = (given, ()) if case.grid is None else (run.results, case.expected)
    run.changed = [i for i, arg in enumerate(case.args) if i not in outputs and not _same(after[i], arg)]
    return run


def _traced(answer: typing.Any, case: Case, blocks: typing.Any, warps: typing.Any = None) -> simt.Trace | None:
    """A trace of a launch that has been tried before; None if it would take too much memory."""
    with simt.loop_limit(max(LOOP_LIMIT, 2 * case.largest)):
        try:
            report = simt.profile(
                answer,
                case.grid,
                case.block,
                case.copies(),
                sharedmem=case.sharedmem,
                trace=simt.Tracing(blocks, warps),
            )
        except simt.TraceError:
            return None
    return report.trace


@dataclass(frozen=True, eq=False)
class Request:
    """One warp that loads from an argument, or stores to it; ``argument`` is its number."""

    argument: int
    access: simt.Access

    @functools.cached_property
    def sectors(self) -> frozenset[int]:
        """The numbers of the sectors that it touches."""
        first = self.access.addresses[self.access.active]
        ends = np.concatenate([first, first + self.access.width - 1]) // SECTOR  # no element is wider than a sector
        return frozenset(ends.tolist())

    @property
    def size(self) -> int:
        """Bytes that its lanes ask for."""
        return self.access.width * int(np.count_nonzero(self.access.active))


def requests(answer: typing.Any, case: Case, share: float) -> list[Request]:
    """The loads and stores of a launch from and to its arguments, in order.

    ``share`` is 1 for all of them; else about that share is returned, of the first blocks or of the first warps.
    """
    blocks, warps = math.prod(extent(case.grid)), -(-math.prod(extent(case.block)) // 32)
    some = None if share * blocks >= 1 else range(max(1, int(share * blocks * warps)))
    trace = _traced(answer, case, range(max(1, int(share * blocks))), some)
    names = list(inspect.signature(getattr(answer, "py_func", answer)).parameters)
    known = () if trace is None else trace.names()
    found = [Request(i, access) for i, name in enumerate(names) if name in known for access in trace.accesses(name)]
    return sorted((one for one in found if one.access.kind != "atomic"), key=lambda one: one.access.sequence)


def leaver(
    answer: typing.Any, case: Case, block: int | tuple[int, ...], returns: set[int], barriers: set[int]
) -> tuple[int, int, int] | None:
    """A thread of the block that returns before a barrier: its number, and the lines of its return and the barrier."""
    trace = _traced(answer, case, [block])
    last: dict[int, tuple[int, int]] = {}  # what a thread does last: when, and on which line
    steps = trace.steps() if trace else []
    for step in steps:
        last.update({32 * step.warp + int(lane): (step.sequence, step.line) for lane in np.flatnonzero(step.active)})
    for thread, (sequence, line) in sorted(last.items()):
        missed = [step.line for step in steps if step.sequence > sequence and step.line in barriers]
        if line in returns and missed:
            return thread, line, missed[0]
    return None


def wrong_elements(got: typing.Any, expected: typing.Any, tolerance: typing.Any) -> np.ndarray:
    """Which elements of ``got`` are further from ``expected`` than ``tolerance``. NaN and infinities must agree."""
    try:
        got = np.asarray(float(got) if isinstance(got, fractions.Fraction | decimal.Decimal) else got)
        expected, tolerance = np.asarray(expected), np.asarray(tolerance)
        if got.shape != expected.shape or got.dtype.kind not in "biufc":
            return np.ones(expected.shape, bool)
    except (TypeError, ValueError):
        return np.ones(np.shape(expected), bool)
    if got.dtype.kind in "biu" and expected.dtype.kind in "biu" and not tolerance.any():
        return got != expected
    if not tolerance.any() and got.dtype.kind in "fc":
        expected = expected.astype(got.dtype)
    with np.errstate(all="ignore"):
        a, b = wide(got), wide(expected)
        return ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= tolerance))


def wide(x: typing.Any) -> np.ndarray:
    """In float64, or if it is complex in complex128."""
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def bits(x: typing.Any) -> np.ndarray:
    x = np.asarray(x)
    return x.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize])


def _same(a: typing.Any, b: typing.Any) -> bool:
    return not isinstance(b, np.ndarray) or a.tobytes() == b.tobytes()


def extent(value: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """A grid or a block as a tuple."""
    return tuple(value) if isinstance(value, tuple | list) else (value or 1,)


# ----------------------------------------------------------------------------------------------------- what it says


class Source:
    """What the text of the answer tells: empty if there is no text, as for a kernel made by ``exec``.

    Device functions that the kernel calls belong to it if they stand in the same file, or cell.
    """

    def __init__(self, function: typing.Any) -> None:
        self.parameters = list(inspect.signature(function).parameters)
        self.file, self.tree = _parsed(function)
        self.body = self.tree.body
        self.trees = [self.tree]
        known = [function]
        self.wide: set[str] = set()  # names of float64
        for one in known:
            self.wide |= {name for name, value in _globals(one).items() if value is np.float64}
            for helper in _called(one):
                file, tree = _parsed(helper)
                if helper not in known and file == self.file and tree.body:
                    known.append(helper)
                    self.trees.append(tree)

    def code(self, line: int | None) -> str:
        return linecache.getline(self.file, line).strip() if line and self.file else ""

    def is_stub(self) -> bool:
        """Nothing but a docstring, ``pass``, ``...``, ``return`` or ``raise``."""
        return bool(self.body) and all(
            isinstance(node, ast.Pass | ast.Raise)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.Return) and (node.value is None or getattr(node.value, "value", 0) in (None, ...)))
            for node in self.body
        )

    def _nodes(self) -> Iterator[ast.AST]:
        for tree in self.trees:
            yield from ast.walk(tree)

    def unused(self) -> list[str]:
        used = {
            node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        return [name for name in self.parameters if name not in used] if self.body else []

    def knows_its_block(self) -> bool:
        """Whether it asks for a position in the grid."""
        words = {getattr(node, "attr", getattr(node, "id", "")) for node in self._nodes()}
        return bool(words & {"grid", "gridsize", "blockIdx"})

    def numbers(self) -> dict[int, int]:
        """{integer written in the code: its line}. A power or a shift, such as 10**9, is one integer, and not two."""
        found, parts = {}, set()
        for node in ast.walk(self.tree):  # what holds a number comes before it
            if (value := _power(node)) is not None:
                parts |= {node.left, node.right}
                found[value] = node.lineno
            elif _is_integer(node) and node not in parts:
                found[node.value] = node.lineno
        return found

    def returns(self) -> set[int]:
        """The lines on which a thread may leave the kernel early."""
        return {node.lineno for node in ast.walk(self.tree) if isinstance(node, ast.Return)}

    def makes_shared(self) -> int | None:
        """The line of the last ``cuda.shared.array``."""
        calls = (node for node in self._nodes() if isinstance(node, ast.Call))
        return max((node.lineno for node in calls if ast.unparse(node.func).endswith("shared.array")), default=None)

    def _accesses(self, name: str, line: int | None = None) -> Iterator[tuple[type, ast.AST]]:
        for node in self._nodes():
            if isinstance(node, ast.AugAssign) and _is_element(node.target, name) and line in (None, node.lineno):
                yield ast.AugAssign, node
            elif _is_element(node, name) and line in (None, node.lineno):
                yield type(node.ctx), node

    def verb(self, name: str, line: int) -> str:
        """Whether that line reads or writes elements of that array, where it is clear."""
        kinds = {kind for kind, _ in self._accesses(name, line)}
        return "reads" if kinds == {ast.Load} else "writes" if kinds == {ast.Store} else "accesses"

    def reads(self, name: str) -> bool:
        """Whether it reads elements of that array anywhere, atomically or not."""
        calls = (ast.unparse(node) for node in self._nodes() if isinstance(node, ast.Call))
        atomically = any(re.match(rf"[\w.]*\batomic\.\w+\({name}\b", call) for call in calls)
        return atomically or any(kind in (ast.Load, ast.AugAssign) for kind, _ in self._accesses(name))

    def updates(self, name: str, line: int) -> bool:
        """Whether that line combines elements of that array with something else, as in ``out[0] += x[i]``.

        Not if another element of the array takes part, as in ``sums[i] += sums[i + 1]``: that is a step of a tree.
        """
        for node in self._nodes():
            if not isinstance(node, ast.Assign | ast.AugAssign) or not node.lineno <= line <= node.end_lineno:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if not _is_element(target, name):
                continue
            loaded = [ast.dump(part.slice) for part in ast.walk(node.value) if _is_element(part, name)]
            own = [ast.dump(target.slice)]
            return loaded == [] if isinstance(node, ast.AugAssign) else loaded == own
        return False

    def names_float64(self) -> tuple[int, str] | None:
        """The first line that asks for float64 by a name, in a cast or as the type of an array, and that name."""
        named = {"float64", "double", "complex128", *self.wide}
        found = []
        for node in self._nodes():
            name = getattr(node, "attr", getattr(node, "id", getattr(node, "value", None)))
            if isinstance(name, str) and name in named:
                found.append((node.lineno, "complex128" if name == "complex128" else "float64"))
        return min(found, default=None)

    def takes_rows_first(self) -> int | None:
        """The line of ``row, column = cuda.grid(2)``, if the names say so: the first of the two counts along x."""
        for node in self._nodes():
            if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith("grid(2)"):
                names = re.fullmatch(r"\(?(\w+), (\w+)\)?", ast.unparse(node.targets[0]))
                if names and re.match(r"(row|r$|y$)", names[1]) and re.match(r"(col|c$|x$)", names[2]):
                    return node.lineno
        return None

    def tests_around(self, line: int) -> list[tuple[ast.AST, bool]]:
        """The conditions that a line stands under (with True), and those of an early return before it (with False)."""
        found = []
        tree = next((tree for tree in self.trees if tree.body and tree.lineno <= line <= tree.end_lineno), self.tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.If | ast.IfExp | ast.While):
                continue
            leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return) and node.lineno < line
            if leaves or node.lineno <= line <= node.end_lineno:
                found.append((node.test, not leaves))
        return found

    def tests_up_to_the_size(self, line: int) -> bool:
        """Whether one of these conditions runs the line for an index equal to a size, as ``i <= x.size`` does."""
        return any(
            runs and isinstance(node, ast.Compare) and UP_TO_SIZE.search(ast.unparse(node))
            for test, runs in self.tests_around(line)
            for node in ast.walk(test)
        )

    def tests_with_equality(self, line: int) -> bool:
        """Whether one of these conditions has a <= or >= to run the line, or a > or < to return early.

        What is compared with a 0 is the lower end, and no mistake: ``0 <= y < height``. Nor is what compares values, as
        ``x[i] >= p`` does: an index is not compared with them.
        """
        return any(_lets_equal_through(test, runs) for test, runs in self.tests_around(line))


def _parsed(function: typing.Any) -> tuple[str, ast.FunctionDef | ast.Module]:
    """The file of a function, and its source as a tree with the file's line numbers."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        found = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    except (OSError, TypeError, SyntaxError, StopIteration):
        return "", ast.Module([], [])
    ast.increment_lineno(tree, first - 1)
    return inspect.getsourcefile(function) or "", found


def _globals(function: typing.Any) -> dict[str, typing.Any]:
    """What a function refers to by name."""
    if not inspect.isfunction(function):
        return {}
    known = inspect.getclosurevars(function)
    return {**known.globals, **known.nonlocals}


def _called(function: typing.Any) -> list[typing.Any]:
    """Device functions that a function refers to by name."""
    named = [getattr(value, "py_func", None) for value in _globals(function).values()]
    return [helper for helper in named if inspect.isfunction(helper)]


def _lets_equal_through(test: ast.AST, runs: bool) -> bool:
    """Whether a comparison in it holds for equal sides, with the line run if it holds, or if it does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _lets_equal_through(test.operand, not runs)
    if isinstance(test, ast.Compare):
        wanted = ast.LtE | ast.GtE if runs else ast.Lt | ast.Gt
        sides, strict = [test.left, *test.comparators], ast.Lt | ast.Gt
        for a, operator, b in zip(sides, test.ops, sides[1:], strict=False):
            between = len(test.ops) == 2 and any(isinstance(other, strict) for other in test.ops)  # low <= y < height
            value = _is_zero(a) or _is_zero(b) or _is_value(a) or _is_value(b)
            if isinstance(operator, wanted) and not (value or (runs and between)):
                return True
    return any(_lets_equal_through(part, runs) for part in ast.iter_child_nodes(test))


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_value(node: ast.AST) -> bool:
    """Whether it was loaded, or computed by a function: no index, and no size."""
    loads = (part for part in ast.walk(node) if isinstance(part, ast.Subscript))
    calls = (ast.unparse(part.func).rpartition(".")[2] for part in ast.walk(node) if isinstance(part, ast.Call))
    return any(not ast.unparse(part.value).endswith(".shape") for part in loads) or not OF_INDICES.issuperset(calls)


def _is_integer(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _power(node: ast.AST) -> int | None:
    """The value of a power or a shift of two integers that are written out; None for anything else, and beyond 64."""
    if not (isinstance(node, ast.BinOp) and _is_integer(node.left) and _is_integer(node.right)):
        return None
    base, exponent = node.left.value, node.right.value
    if exponent > 64:
        return None
    if isinstance(node.op, ast.LShift):
        return base << exponent
    return base**exponent if isinstance(node.op, ast.Pow) else None


def _is_element(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name
