"""Mutants of kernels: one small mistake is made in a kernel, and a test of its room has to notice.

    python -m tests.support.mutants [ROOM...] [--seed N] [--seconds N] [--most N] [--jobs N] [--only TEXT]

A mutant differs from the kernel in one operator, comparison, index, constant, barrier, guard, bound of a loop, axis, or
``min``/``max``. It is tried against the tests of its subject that are named for the room, and the contract of that
room. A test that fails, or that runs far beyond its time, kills it. A survivor needs a test or, if it computes what the
kernel computes, an entry in ``equivalent.toml`` that says why.

No file of the working tree is changed. The tests are collected once; a mutant is a fork of that process, in which
Python's cache of source lines (`linecache`) holds the changed line, so that the interpreter compiles the mutant. Which
tests compile a function, and how long each takes, is found first by running each test once, in a fork of its own: what
another test has compiled or kept, it would not compile. A mutant meets only those: first the tests that killed other
mutants of the same function, then the shortest.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import gc
import inspect
import itertools
import json
import linecache
import os
import random
import re
import signal
import sys
import tempfile
import time
import tomllib
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from pmpp.lab.rooms import room_named, rooms, subject_of
from pmpp.runtime.rung import room_name

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
KERNELS = ROOT / "pmpp" / "kernels"

OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"),
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}  # fmt: skip
CONNECTIVES = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
CALLS = {"min": "max", "max": "min", "shfl_down_sync": "shfl_up_sync", "shfl_up_sync": "shfl_down_sync"}
BARRIERS = ("syncthreads", "syncwarp", "sync")
AXES = {"x": "y", "y": "x", "z": "y"}
PLACES = ("threadIdx", "blockIdx", "blockDim", "gridDim")


@dataclasses.dataclass(frozen=True, order=True)
class Mutant:
    """One change: ``text`` takes the place of characters [begin, end) of a line. Lines count from 1."""

    path: str
    function: int  # the line at which its function begins, decorators included
    kernel: str
    line: int
    begin: int
    end: int
    text: str
    kind: str

    def lines(self) -> list[str]:
        """The file's lines, with the change in them."""
        lines = linecache.getlines(self.path).copy()
        before = lines[self.line - 1]
        lines[self.line - 1] = before[: self.begin] + self.text + before[self.end :]
        return lines

    @property
    def key(self) -> tuple[str, str, str]:
        """File, kernel and the changed line's text: what an entry in ``equivalent.toml`` says."""
        return Path(self.path).relative_to(KERNELS).as_posix(), self.kernel, self.lines()[self.line - 1].strip()

    def __str__(self) -> str:
        before, after = linecache.getline(self.path, self.line).strip(), self.key[2]
        return f"{Path(self.path).relative_to(ROOT)}:{self.line} {self.kernel}\n    - {before}\n    + {after}"


# ------------------------------------------------------------------------------------------------------ making mutants


def kernels_in(path: str) -> list[ast.FunctionDef]:
    """The functions under ``@cuda.jit`` in a file, wherever they stand; those of the device too."""
    nodes = (
        node
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    return [node for node in nodes if any(ast.unparse(one).startswith("cuda.jit") for one in node.decorator_list)]


def first_line(node: ast.FunctionDef) -> int:
    """As in the function's code object: that of the first decorator."""
    return min(one.lineno for one in node.decorator_list)


class _Maker:
    """All mutants of one function. A change that does not fit on a line is not made."""

    def __init__(self, path: str, node: ast.FunctionDef) -> None:
        self.path, self.node, self.made = path, node, []
        self.lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)

    def column(self, line: int, offset: int) -> int:
        return len(self.lines[line - 1].encode()[:offset].decode())

    def add(self, kind: str, line: int, begin: int, end: int, text: str) -> None:
        where = self.path, first_line(self.node), self.node.name
        self.made.append(Mutant(*where, line, begin, end, text, kind))

    def source(self, node: ast.AST) -> tuple[int, int, int, str] | None:
        """Line, begin, end and text of a node on one line."""
        if node.lineno != node.end_lineno:
            return None
        begin, end = self.column(node.lineno, node.col_offset), self.column(node.lineno, node.end_col_offset)
        return node.lineno, begin, end, self.lines[node.lineno - 1][begin:end]

    def replace(self, kind: str, node: ast.AST, *patterns: str) -> None:
        """One mutant for each pattern, in which ``{}`` is the node's text."""
        if found := self.source(node):
            *where, text = found
            for pattern in patterns:
                self.add(kind, *where, pattern.format(text))

    def between(self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Exchange an operator that stands between two nodes, maybe on the next line or behind a bracket."""
        for line in range(left.end_lineno, right.lineno + 1):
            text = self.lines[line - 1]
            begin = self.column(line, left.end_col_offset) if line == left.end_lineno else 0
            end = self.column(line, right.col_offset) if line == right.lineno else len(text)
            gap = text[begin:end].partition("#")[0]
            if (found := re.search(rf"(?<![\w]){re.escape(old)}(?![\w])", gap)) is not None:
                self.add(kind, line, begin + found.start(), begin + found.end(), new)
                return

    def all(self) -> list[Mutant]:
        body = self.node.body[1:] if ast.get_docstring(self.node, clean=False) is not None else self.node.body
        for node in itertools.chain.from_iterable(map(ast.walk, body)):
            visit = getattr(self, type(node).__name__, None)
            if visit:
                visit(node)
        return sorted(set(self.made))

    def BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self.between("operator", node.left, node.right, *OPERATORS[type(node.op)])

    def AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in OPERATORS:
            old, new = OPERATORS[type(node.op)]
            self.between("operator", node.target, node.value, f"{old}=", f"{new}=")

    def Compare(self, node: ast.Compare) -> None:
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            if type(op) in COMPARISONS:
                self.between("comparison", left, right, *COMPARISONS[type(op)])

    def BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in itertools.pairwise(node.values):
            self.between("connective", left, right, *CONNECTIVES[type(node.op)])

    def Subscript(self, node: ast.Subscript) -> None:
        places = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for place in places:
            if not isinstance(place, ast.Constant | ast.Slice):
                self.replace("index", place, "({}) + 1", "({}) - 1")
        for one, other in itertools.pairwise(places):
            first, second = self.source(one), self.source(other)
            if first and second and first[0] == second[0] and first[3] != second[3]:
                gap = self.lines[first[0] - 1][first[2] : second[1]]
                self.add("index", first[0], first[1], second[2], second[3] + gap + first[3])

    def Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.replace("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace("constant", node, *(str(value) for value in (node.value + 1, node.value - 1) if value >= 0))
        elif isinstance(node.value, float):
            self.replace("constant", node, repr(node.value + 1))

    def Expr(self, node: ast.Expr) -> None:
        call = node.value
        if isinstance(call, ast.Call) and getattr(call.func, "attr", getattr(call.func, "id", "")) in BARRIERS:
            self.replace("barrier", node, "pass")

    def If(self, node: ast.If | ast.IfExp) -> None:
        self.replace("guard", node.test, "not ({})", "True", "False")

    IfExp = If

    def Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in CALLS and (found := self.source(node.func)):
            line, _, end, _ = found
            self.add("call", line, end - len(name), end, CALLS[name])
        if name == "range":
            for bound in node.args[:2]:
                if not isinstance(bound, ast.Constant):
                    self.replace("bound", bound, "({}) + 1", "({}) - 1")

    def Attribute(self, node: ast.Attribute) -> None:
        if node.attr in AXES and getattr(node.value, "attr", getattr(node.value, "id", "")) in PLACES:
            line, _, end, _ = self.source(node)
            self.add("axis", line, end - 1, end, AXES[node.attr])


def _larger_arrays(path: str) -> set[tuple[int, int]]:
    """Where constants stand that say how large a shared or local array is: one more there changes nothing."""
    calls = (node for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    sizes = (call.args[0] for call in calls if ast.unparse(call.func).endswith((".shared.array", ".local.array")))
    return {(one.lineno, one.col_offset) for size in sizes for one in ast.walk(size) if isinstance(one, ast.expr)}


def mutants_of(path: str, functions: Iterable[int]) -> list[Mutant]:
    """All mutants of the kernels of a file that begin at these lines."""
    nodes = [node for node in kernels_in(path) if first_line(node) in functions]
    sizes = _larger_arrays(path)
    made = [mutant for node in nodes for mutant in _Maker(path, node).all()]
    return [mutant for mutant in made if mutant.kind != "constant" or (mutant.line, mutant.begin) not in sizes]


def in_random_order(mutants: Iterable[Mutant], seed: int) -> Iterator[Mutant]:
    """Every kind as often as the others, as long as it lasts: constants are many and barriers few."""
    chance = random.Random(seed)
    by_kind = collections.defaultdict(list)
    for mutant in mutants:
        by_kind[mutant.kind].append(mutant)
    for kind in by_kind.values():
        chance.shuffle(kind)
    while by_kind:
        kind = chance.choice(sorted(by_kind))
        yield by_kind[kind].pop()
        if not by_kind[kind]:
            del by_kind[kind]


# --------------------------------------------------------------------------------------------------------- trying them


def _forked(work: Callable[[], object]) -> tuple[int, int]:
    """Do some work in a fork of this process: its pid, and the descriptor of a file that will have what it returns."""
    import resource  # not on Windows, where tests use this module to find kernels, and do not fork

    answer, path = tempfile.mkstemp()
    os.unlink(path)
    pid = os.fork()
    if pid:
        return pid, answer
    status = 1
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1), os.dup2(nothing, 2)
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
        os.write(answer, json.dumps(work()).encode())
        status = 0
    finally:
        os._exit(status)


def _all_of(jobs: int, tasks: Iterable[tuple[object, Callable[[], object]]]) -> Iterator[tuple[object, object]]:
    """Each task's name and what its fork returned, None if it was ended; so many of them run at a time."""
    running, tasks = {}, iter(tasks)
    while True:
        while len(running) < jobs and (task := next(tasks, None)) is not None:
            name, work = task
            pid, answer = _forked(work)
            running[pid] = name, answer
        if not running:
            return
        pid, _ = os.wait()
        if pid in running:
            name, answer = running.pop(pid)
            said = os.pread(answer, 2**30, 0)
            os.close(answer)
            yield name, json.loads(said) if said else None


def _passes(item: pytest.Item, following: pytest.Item | None, seconds: float) -> bool:
    """Run one test. The process is ended if that takes more than so many seconds of the CPU, or waits for ever."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    signal.alarm(int(60 + 10 * seconds))
    try:
        reports = runtestprotocol(item, log=False, nextitem=following)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.alarm(0)
    return not any(report.failed for report in reports)


def _as_it_is(item: pytest.Item) -> Callable[[], object]:
    """Run a test: does it pass, how long does it take, and which functions are compiled for it?"""

    def run() -> object:
        seen, lines_of = set(), inspect.getsourcelines

        def watched(thing: object) -> tuple[list[str], int]:
            if isinstance(thing, types.FunctionType):
                seen.add((thing.__code__.co_filename, thing.__code__.co_firstlineno))
            return lines_of(thing)

        inspect.getsourcelines = watched
        begin = time.process_time()
        passes = _passes(item, None, 600)
        return passes, time.process_time() - begin, sorted(seen)

    return run


def _with_mutant(mutant: Mutant, tests: list[tuple[pytest.Item, float]]) -> Callable[[], object]:
    """Run tests, each with the time that it takes, until one of them fails: its number, or -1."""

    def run() -> object:
        lines = mutant.lines()
        linecache.cache[mutant.path] = (sum(map(len, lines)), None, lines, mutant.path)  # no time: never out of date
        items = [item for item, _ in tests]
        for number, ((item, seconds), following) in enumerate(zip(tests, [*items[1:], None], strict=True)):
            if not _passes(item, following, 2 + 10 * seconds):
                return number
        return -1

    return run


class Trial:
    """The plugin that takes the place of pytest's loop over the tests."""

    def __init__(self, names: list[str], options: argparse.Namespace) -> None:
        self.names, self.options = names, options
        self.survivors: list[Mutant] = []
        entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"] if EQUIVALENT.exists() else []
        self.explained = {(one["file"], one["kernel"], one["line"]) for one in entries}
        self.counts = collections.Counter()

    def pytest_collection(self) -> None:
        """A failing example need not be made small: that takes many times as long as to find it."""
        import hypothesis  # not before pytest has loaded its plugin

        phases = hypothesis.Phase.explicit, hypothesis.Phase.generate
        hypothesis.settings.register_profile("mutants", hypothesis.settings.get_profile("pmpp"), phases=phases)
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.collect()
        gc.freeze()  # what is here now need not be copied by every fork that collects its garbage
        begin = time.monotonic()
        for name in self.names:
            self.room(name, session.items, self.options.seconds / len(self.names))
        total = sum(self.counts[what] for what in ("killed", "explained", "survived"))
        say = ", ".join(f"{self.counts[what]} {what}" for what in ("killed", "explained", "survived"))
        print(f"\n{total} mutants: {say} ({time.monotonic() - begin:.0f} s)")
        return True

    def room(self, name: str, items: list[pytest.Item], seconds: float) -> None:
        module = room_named(name)
        folder = Path(module.__file__).parent
        alone = sum(subject_of(module) == subject_of(other) for other in rooms()) == 1
        tests = [item for item in items if _is_of(item, name, subject_of(module), alone)]
        took, compiled_by = {}, collections.defaultdict(list)
        for item, said in _all_of(self.options.jobs, ((item, _as_it_is(item)) for item in tests)):
            passes, took[item], functions = said or (False, 0, [])
            if not passes:
                raise pytest.UsageError(f"{item.nodeid} fails before anything is changed")
            for function in functions:
                compiled_by[tuple(function)].append(item)
        made = []
        for path in sorted(map(str, folder.glob("*.py"))):
            if not path.endswith(("exercises.py", "workloads.py")):
                functions = {first_line(node): node.name for node in kernels_in(path)}
                made += mutants_of(path, {line for line in functions if (path, line) in compiled_by})
                if alone or path == module.__file__:
                    for line in functions.keys() - {line for at, line in compiled_by if at == path}:
                        print(f"{os.path.relpath(path, ROOT)}:{line} {functions[line]}: no test of {name} launches it")
        kills = collections.Counter()  # by function and test

        def tasks() -> Iterator:
            until = time.monotonic() + seconds
            order = in_random_order([one for one in made if self.options.only in str(one)], self.options.seed)
            for mutant in itertools.islice(order, self.options.most):
                if time.monotonic() > until:
                    return
                where = mutant.path, mutant.function
                known = sorted(compiled_by[where], key=lambda item: (-kills[where, item], took[item]))
                yield (mutant, known), _with_mutant(mutant, [(item, took[item]) for item in known])

        counts, begin = collections.Counter(), time.monotonic()
        for (mutant, known), said in _all_of(self.options.jobs, tasks()):
            what = "killed" if said != -1 else "explained" if mutant.key in self.explained else "survived"
            counts[what] += 1
            if said is not None and said >= 0:
                kills[(mutant.path, mutant.function), known[said]] += 1
            if what == "survived":
                self.survivors.append(mutant)
                print(f"survived: {mutant}", flush=True)
            elif self.options.verbose:
                by = f" by {known[said].nodeid}" if what == "killed" and said is not None else ""
                print(f"{what}{by}: {mutant}", flush=True)
        self.counts += counts
        say = ", ".join(f"{counts[what]} {what}" for what in ("killed", "explained", "survived"))
        print(f"{name}: {say}, of {len(made)} possible ({time.monotonic() - begin:.0f} s)", flush=True)


def _is_of(item: pytest.Item, name: str, subject: str, alone: bool) -> bool:
    """Is a test one of a room's? That of the contract is if its parameters begin with the room's name.

    What is compiled to PTX does not run, and a mutant is of what runs.
    """
    path = Path(item.path)
    if item.get_closest_marker("gpu") or "ptx" in item.fixturenames:
        return False
    if path.parent.name == "contract":
        return re.split(r"[.-]", getattr(getattr(item, "callspec", None), "id", ""))[0] == name
    return path.parent.name == subject and (alone or path.stem == f"test_{name}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help="all of them if none is named")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    parser.add_argument(
        "--seconds", type=float, default=600, help="for the mutants of all rooms; to time the tests first takes more"
    )
    parser.add_argument("--most", type=int, default=30, help="mutants a room")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose description has this in it")
    parser.add_argument("--verbose", action="store_true", help="say what killed each")
    options = parser.parse_args(arguments)
    named = [room_name(room_named(name)) for name in options.rooms] or [room_name(room) for room in rooms()]
    trial = Trial(named, options)
    folders = sorted({str(ROOT / "tests" / "kernels" / subject_of(room_named(name))) for name in named})
    quick = ["-q", "-s", "--no-header", "--tb=line", "--assert=plain", "-p", "no:cacheprovider"]
    warnings = ["-W", "ignore::RuntimeWarning"]  # a mutant's overflow is no reason to reject it
    status = pytest.main([*quick, *warnings, str(ROOT / "tests" / "contract"), *folders], plugins=[trial])
    return 1 if trial.survivors else int(status)


if __name__ == "__main__":
    sys.exit(main())
