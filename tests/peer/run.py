"""A peer's tests: numba-cuda's own suite, run through the interpreter.

numba-cuda ships its tests (`numba.cuda.tests`), and they say what its kernels mean better than its manual does.  Here
`numba.cuda` is imported as it is, without a GPU; the names of `pmpp.simt.cuda` are laid over its own; and the modules
are run by unittest.  What cannot pass is named in `excluded.py`, with the reason.

All of this changes `numba.cuda` for good, so it happens in a process of its own: `serve` answers the names of modules,
one a line, with their results as JSON, one a line.

    python -m tests.peer [module ...]    prints the table; -v names the tests that fail
"""

from __future__ import annotations

import argparse
import builtins
import collections
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import linecache
import os
import pathlib
import subprocess
import sys
import threading
import time
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.peer import excluded as exclusions

PACKAGE = "numba.cuda.tests."

_RUN_LEVEL = {name for names in exclusions.RUN_LEVEL.values() for name in names}

#: A module that takes longer than this hangs, and its process is ended.
LIMIT_S = 120


#: The parts of the suite that launch kernels.
PARTS = ("cudadrv", "cudapy", "doc_examples")


def folder() -> pathlib.Path | None:
    """Where the suite lies, or None; nothing of it is imported."""
    found = importlib.util.find_spec("numba_cuda")
    tests = pathlib.Path(found.origin).parent / "numba" / "cuda" / "tests" if found and found.origin else None
    return tests if tests is not None and tests.is_dir() else None


def missing() -> str:
    """What is not installed of that which the suite needs; empty if it can run."""
    needed = [name for name in ("filecheck", "psutil", "ml_dtypes", "numba") if importlib.util.find_spec(name) is None]
    return ", ".join(needed if folder() else ["numba-cuda with its tests", *needed])


# --------------------------------------------------------------------------------- numba.cuda with another engine


def lay_over() -> None:
    """Put the interpreter's names over those of numba.cuda, and a device where the driver would be asked for one."""
    warnings.simplefilter("ignore")
    import numba.cuda
    from numba.cuda.core import errors
    from numba.cuda.cudadrv import devicearray, devices, driver

    from pmpp.simt import cuda
    from pmpp.simt.values.errors import UnsupportedError

    # The host's functions are replaced.  Types, signatures and the names that mean something in a kernel stay Numba's:
    # the interpreter knows them as well as its own.
    for name, thing in vars(cuda).items():
        host = inspect.isfunction(thing) or name in ("In", "Out", "InOut", "gpus")
        if host and name != "void" and not name.startswith("_") and hasattr(numba.cuda, name):
            setattr(numba.cuda, name, thing)
    context = _Context(cuda.get_current_device())
    devices.get_context = numba.cuda.current_context = lambda devnum=None: context
    driver.driver = _Driver()
    for name in ("auto_device", "from_array_like", "is_cuda_ndarray"):
        setattr(devicearray, name, getattr(_Arrays, name))
    devicearray.DeviceNDArray = _Arrays
    builtins.exec = _exec
    import numba.core.errors

    # What Numba refuses while it types a kernel, the interpreter refuses with an error of its own: let it be both.
    UnsupportedError.__bases__ = (*UnsupportedError.__bases__, errors.TypingError, numba.core.errors.TypingError)


def _exec(source: Any, scope: dict | None = None, local: dict | None = None, /) -> None:
    """`exec`, with the source kept where `inspect` finds it: some tests write their kernels at run time."""
    frame = sys._getframe(1)
    scope = frame.f_globals if scope is None else scope
    local = (frame.f_locals if scope is frame.f_globals else scope) if local is None else local
    if isinstance(source, str):
        name = f"<made with exec {len(linecache.cache)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        source = compile(source, name, "exec")
    _plain_exec(source, scope, local)


_plain_exec = builtins.exec


class _Arrays:
    """What `numba.cuda.cudadrv.devicearray` makes, made by the interpreter."""

    def __new__(cls, shape: tuple, strides: tuple, dtype: Any, stream: Any = 0, gpu_data: Any = None) -> Any:
        from pmpp.simt import cuda

        return cuda.device_array(shape, dtype, strides)

    @staticmethod
    def auto_device(value: Any, stream: Any = 0, copy: bool = True) -> tuple:
        from pmpp.simt import cuda

        return (value, False) if cuda.is_cuda_array(value) else (cuda.to_device(value), True)

    @staticmethod
    def from_array_like(value: Any, stream: Any = 0, gpu_data: Any = None) -> Any:
        from pmpp.simt import cuda

        return cuda.device_array_like(value)

    @staticmethod
    def is_cuda_ndarray(value: Any) -> bool:
        from pmpp.simt import cuda

        return cuda.is_cuda_array(value)


class _Driver:
    """The driver's module-level object: it knows the device."""

    def get_device(self, devnum: int = 0) -> Any:
        from pmpp.simt import cuda

        return cuda.get_current_device()


class _Context:
    """Enough of a driver's context for the tests' decorators, which ask for the compute capability."""

    def __init__(self, device: object) -> None:
        self.device = device

    def reset(self) -> None:
        """Nothing is kept."""

    synchronize = reset


# -------------------------------------------------------------------------------------------------- running modules


class _Result(unittest.TestResult):
    """One outcome a test: a test whose subtests fail has failed once."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        os.environ["PMPP_CHECK"] = "0" if _name(test) in _RUN_LEVEL else "1"
        self.outcomes[_name(test)] = ("passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcomes[_name(test)] = ("skipped", reason)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.outcomes[_name(test)] = ("failed", "passes, although numba-cuda expects it to fail")

    def addFailure(self, test: unittest.TestCase, err: tuple) -> None:
        self.outcomes[_name(test)] = ("failed", _last_line(err))

    def addError(self, test: unittest.TestCase, err: tuple) -> None:
        if isinstance(err[1], pytest.skip.Exception):  # unittest takes pytest's skip for an error
            self.addSkip(test, str(err[1]))
        else:
            self.addFailure(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: tuple | None) -> None:
        if err is not None:
            self.addFailure(test, err)


def _flat(tests: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _functions(name: str, module: types.ModuleType) -> Iterator[unittest.TestCase]:
    """The tests that are functions, as pytest finds them."""
    for title, function in vars(module).items():
        if title.startswith("test_") and inspect.isfunction(inspect.unwrap(function)):
            yield _Function(f"{PACKAGE}{name}.{title}", function)


class _Function(unittest.FunctionTestCase):
    """A test that is a function; one that needs a fixture of pytest's fails."""

    def __init__(self, title: str, function: Callable) -> None:
        super().__init__(function)
        self.title = title

    def id(self) -> str:
        return self.title

    def runTest(self) -> None:
        marks = getattr(self._testFunc, "pytestmark", ())
        if any(mark.name == "skip" or (mark.name == "skipif" and mark.args[0]) for mark in marks):
            self.skipTest("skipped by a mark of pytest's")
        super().runTest()


def _name(test: unittest.TestCase) -> str:
    return test.id().removeprefix(PACKAGE)


def _last_line(err: tuple) -> str:
    text = str(err[1]).strip()
    return f"{err[0].__name__}: {text[:2000]}"


def run_module(name: str) -> dict[str, tuple[str, str]]:
    """Run one module, such as "cudapy.test_sync": for each test its outcome (passed, failed, skipped) and a word."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from numba.cuda.core import config

        result = _Result()
        config.ENABLE_CUDASIM = int(name in exclusions.SMALLER)
        try:
            module = importlib.import_module(PACKAGE + name)
            for test in (*_flat(unittest.defaultTestLoader.loadTestsFromModule(module)), *_functions(name, module)):
                if reason_of(_name(test), exclusions.LEFT_OUT):
                    result.outcomes[_name(test)] = ("failed", "not run")
                else:
                    unittest.TestSuite([test]).run(result)
        finally:
            config.ENABLE_CUDASIM = 0
    return result.outcomes


def serve() -> None:
    """Answer each line of the input, the name of a module, with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")  # what the tests print goes elsewhere
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    lay_over()
    for line in sys.stdin:
        start = time.process_time()
        try:
            answer = {"outcomes": run_module(line.strip())}
        except (Exception, unittest.SkipTest, pytest.skip.Exception) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer | {"seconds": time.process_time() - start}), file=answers, flush=True)


def excluded(module: str, table: dict | None = None) -> dict[str, str]:
    """Name -> reason of what is excluded in a module: tests, and classes of them."""
    table = exclusions.EXCLUDED if table is None else table
    named = {f"{module}.{name}": reason for reason, of in table.items() for name in of.get(module, "").split()}
    return named | {name: why for name, why in exclusions.LEFT_OUT.items() if name.startswith(module + ".")}


def reason_of(name: str, named: dict[str, str]) -> str | None:
    """Why a test is excluded, by its own name or its class's."""
    return named.get(name) or named.get(name.rpartition(".")[0])


def faults(module: str, outcomes: dict[str, tuple[str, str]], table: dict | None = None) -> list[str]:
    """Where the table and the outcomes of a module disagree, in sentences."""
    named = excluded(module, table)
    found = []
    for name, (outcome, word) in outcomes.items():
        reason = reason_of(name, named)
        if outcome == "passed" and reason is not None:
            found.append(f"{name} passes, but is excluded: {reason}")
        elif outcome == "failed" and reason is None:
            found.append(f"{name} fails and is not excluded: {word}")
    there = {part for name in outcomes for part in (name, name.rpartition(".")[0])}
    return found + [f"{name} is excluded, but there is no such test" for name in named if name not in there]


class Server:
    """A process that runs modules."""

    def __init__(self) -> None:
        root = str(pathlib.Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.peer", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=root,
            env=os.environ | {"PYTHONPATH": path},
        )

    def run(self, module: str) -> dict:
        """The answer about one module: `outcomes` or `error`, and the CPU `seconds` that it took."""
        timer = threading.Timer(LIMIT_S, self.process.kill)
        timer.start()
        try:
            print(module, file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        return json.loads(line) if line else {"error": f"the process ended or took over {LIMIT_S} s", "seconds": 0.0}

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=60)


def main() -> None:
    """Print the table of modules, tests, passes and exclusions."""
    parser = argparse.ArgumentParser(prog="python -m tests.peer", description="numba-cuda's tests in the interpreter")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("-v", action="store_true", help="say what is wrong")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    server = Server()
    modules = [name if "." in name else "cudapy." + name for name in options.modules] or exclusions.MODULES
    total: collections.Counter = collections.Counter()
    reasons: collections.Counter = collections.Counter()
    print(f"{'module':42s} {'tests':>6s} {'passed':>6s} {'excl.':>6s} {'skipped':>7s} {'wrong':>5s} {'CPU s':>6s}")
    for module in modules:
        answer = server.run(module)
        outcomes, named = answer.get("outcomes", {}), excluded(module)
        wrong = [answer["error"]] if "error" in answer else faults(module, outcomes)
        counts = collections.Counter(
            "excluded" if outcome == "failed" and reason_of(name, named) else outcome
            for name, (outcome, _) in outcomes.items()
        )
        counts |= {"tests": len(outcomes), "wrong": len(wrong)}
        reasons.update(reason_of(name, named) for name, (outcome, _) in outcomes.items() if outcome == "failed")
        total += counts
        total["seconds"] += answer["seconds"]
        print(_row(module, counts, answer["seconds"]), flush=True)
        for fault in wrong if options.v else ():
            print("   ", fault[:500])
        if "error" in answer:  # the process may be gone
            server.close()
            server = Server()
    print(_row(f"{len(modules)} modules", total, total["seconds"]), "\n\nexcluded, by reason")
    for reason, count in reasons.most_common():
        print(f"{count:5d}  {reason}")
    server.close()
    sys.exit(bool(total["wrong"]))


def _row(module: str, counts: collections.Counter, seconds: float) -> str:
    return (
        f"{module:42s} {counts['tests']:6d} {counts['passed']:6d} {counts['excluded']:6d} {counts['skipped']:7d} "
        f"{counts['wrong']:5d} {seconds:6.1f}"
    )
