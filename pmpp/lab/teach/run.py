"""What an answer to an exercise does on its cases, and what its source says: the evidence for `lab.teach.diagnosis`."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from pmpp import simt
from pmpp.lab.teach.exercise import Case
from pmpp.runtime import device

__all__ = ["Run", "Source", "attempt", "bits", "wrong_elements"]

LOOP_LIMIT = 1000  # rounds of one `while` loop, or twice the elements of the largest array: enough, and soon over

# ------------------------------------------------------------------------------------------------------ what it did


@dataclass
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
        return sum(report.counters[name] for report in self.reports)

    def by_line(self) -> dict[int, dict[str, int]]:
        total: dict[int, dict[str, int]] = {}
        for report in self.reports:
            for line, counts in report.by_line.items():
                into = total.setdefault(line, dict.fromkeys(counts, 0))
                for name, count in counts.items():
                    into[name] += count
        return total


def _copies(args: tuple) -> tuple:
    return tuple(arg.copy(order="K") if isinstance(arg, np.ndarray) else arg for arg in args)


def attempt(answer: typing.Any, case: Case) -> Run:
    run = Run(case, _copies(case.args))
    try:
        with simt.loop_limit(max(LOOP_LIMIT, 2 * case.largest)):
            if case.grid is None:
                with simt.record("check", collect=True) as reports:
                    run.reports = reports
                    returned = answer(*run.results)
                on_device = hasattr(returned, "copy_to_host") or hasattr(returned, "__cuda_array_interface__")
                run.results = (device.to_host(returned) if on_device else returned,)
            else:
                report = simt.profile(
                    answer, case.grid, case.block, run.results, level="check", sharedmem=case.sharedmem, collect=True
                )
                run.reports = [report]
    except Exception as error:  # whatever a reader's kernel does, the answer is a verdict
        run.error = error
        return run
    for index, expected in case.expected.items():
        wrong = wrong_elements(run.results[index], expected, case.tolerance.get(index, 0))
        if wrong.any():
            run.wrong[index] = wrong
    if case.grid is not None:
        run.changed = [
            i for i in range(len(case.args)) if i not in case.expected and not _same(run.results[i], case.args[i])
        ]
    return run


def wrong_elements(got: typing.Any, expected: typing.Any, tolerance: typing.Any) -> np.ndarray:
    """Which elements of ``got`` are further from ``expected`` than ``tolerance``. NaN and infinities must agree."""
    try:
        got = np.asarray(got)
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


# ----------------------------------------------------------------------------------------------------- what it says


class Source:
    """What the text of the answer tells: empty if there is no text, as for a kernel made by ``exec``."""

    def __init__(self, function: typing.Any) -> None:
        self.file, self.parameters, self.body = "", list(inspect.signature(function).parameters), []
        self.tree: ast.AST = ast.Module([], [])
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, SyntaxError):
            return
        self.file = inspect.getsourcefile(function) or ""
        found = next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
        if found is not None:
            ast.increment_lineno(tree, first - 1)
            self.tree, self.body = found, found.body

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

    def unused(self) -> list[str]:
        used = {
            node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        return [name for name in self.parameters if name not in used] if self.body else []

    def knows_its_block(self) -> bool:
        """Whether it asks for a position in the grid."""
        words = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(self.tree)}
        return bool(words & {"grid", "gridsize", "blockIdx"})

    def numbers(self) -> dict[int, int]:
        """{integer written in the code: its line}."""
        nodes = (node for node in ast.walk(self.tree) if isinstance(node, ast.Constant) and type(node.value) is int)
        return {node.value: node.lineno for node in nodes}

    def _accesses(self, name: str, line: int | None = None) -> Iterator[tuple[type, ast.AST]]:
        for node in ast.walk(self.tree):
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
        calls = (ast.unparse(node) for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        atomically = any(re.match(rf"[\w.]*\batomic\.\w+\({name}\b", call) for call in calls)
        return atomically or any(kind in (ast.Load, ast.AugAssign) for kind, _ in self._accesses(name))

    def updates(self, name: str, line: int) -> bool:
        """Whether that line combines elements of that array with something else, as in ``out[0] += x[i]``.

        Not if another element of the array takes part, as in ``sums[i] += sums[i + 1]``: that is a step of a tree.
        """
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign | ast.AugAssign) or not node.lineno <= line <= node.end_lineno:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if not _is_element(target, name):
                continue
            loaded = [ast.dump(part.slice) for part in ast.walk(node.value) if _is_element(part, name)]
            own = [ast.dump(target.slice)]
            return loaded == [] if isinstance(node, ast.AugAssign) else loaded == own
        return False

    def tests_around(self, line: int) -> list[tuple[ast.AST, bool]]:
        """The conditions that a line stands under (with True), and those of an early return before it (with False)."""
        found = []
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.If | ast.IfExp | ast.While):
                continue
            leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return) and node.lineno < line
            if leaves or node.lineno <= line <= node.end_lineno:
                found.append((node.test, not leaves))
        return found

    def tests_with_equality(self, line: int) -> bool:
        """Whether one of these conditions has a <= or >= to run the line, or a > or < to return early.

        What is compared with a 0 is the lower end, and no mistake: ``0 <= y < height``.
        """
        return any(_lets_equal_through(test, runs) for test, runs in self.tests_around(line))


def _lets_equal_through(test: ast.AST, runs: bool) -> bool:
    """Whether a comparison in it holds for equal sides, with the line run if it holds, or if it does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _lets_equal_through(test.operand, not runs)
    if isinstance(test, ast.Compare):
        wanted = ast.LtE | ast.GtE if runs else ast.Lt | ast.Gt
        sides = [test.left, *test.comparators]
        for a, operator, b in zip(sides, test.ops, sides[1:], strict=False):
            if isinstance(operator, wanted) and not (_is_zero(a) or _is_zero(b)):
                return True
    return any(_lets_equal_through(part, runs) for part in ast.iter_child_nodes(test))


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _is_element(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name
