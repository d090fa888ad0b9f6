"""What the tests themselves rest on: mutants that are mutants, a judge that says why, and a budget to exceed."""

import ast
import importlib.metadata
import os
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest

from pmpp.simt import cuda
from tests.support import compiled, mutants
from tests.support.budget import BUDGET, Budget
from tests.support.judge import difference

KERNEL = """\
from pmpp import cuda


@cuda.jit
def kernel(x, out):
    i = cuda.threadIdx.x
    if i < x.size - 1:
        out[i] = max(x[i], 0)
    cuda.syncthreads()


def no_kernel(x):
    return x + 1
"""


@pytest.fixture
def changed(tmp_path):
    """The changed lines of all mutants of `KERNEL`."""
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL, encoding="utf-8")
    (node,) = mutants.kernels_in(str(path))
    made = mutants.mutants_of(str(path), {mutants.first_line(node)})
    for mutant in made:
        lines = mutant.lines()
        ast.parse("".join(lines))
        assert sum(a != b for a, b in zip(lines, KERNEL.splitlines(keepends=True), strict=True)) == 1
    return {mutant.lines()[mutant.line - 1].strip() for mutant in made}


def test_a_mutant_is_one_change_in_a_kernel(changed):
    assert {
        "i = cuda.threadIdx.y",
        "if i <= x.size - 1:",
        "if i < x.size + 1:",
        "if i < x.size - 2:",
        "if True:",
        "if not (i < x.size - 1):",
        "out[(i) + 1] = max(x[i], 0)",
        "out[i] = max(x[(i) - 1], 0)",
        "out[i] = min(x[i], 0)",
        "pass",
    } <= changed
    assert "return x - 1" not in changed


@cuda.jit
def doubled_kernel(x, out):
    i = cuda.threadIdx.x
    out[i] = x[i] + x[i]


def doubled():
    out = np.zeros(2)
    doubled_kernel[1, 2](np.ones(2), out)
    return bool(out[0] == 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on Windows")
def test_a_mutant_meets_every_test_that_launches_its_kernel(monkeypatch):
    """Not only the first, for which the kernel was compiled."""
    monkeypatch.setattr(mutants, "_passes", lambda item, following, seconds: item())
    tasks = [(number, mutants._as_it_is(doubled)) for number in range(2)]
    found = dict(mutants._all_of(1, tasks))
    code = doubled_kernel.py_func.__code__
    for number in range(2):
        passes, _, functions = found[number]
        assert passes
        assert [code.co_filename, code.co_firstlineno] in functions


def test_every_explanation_says_where_and_why():
    for entry in tomllib.loads(mutants.EQUIVALENT.read_text(encoding="utf-8"))["mutant"]:
        assert set(entry) == {"file", "kernel", "line", "why"}
        assert (mutants.KERNELS / entry["file"]).is_file()
        assert entry["why"].endswith(".")


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("result", "expected", "said"),
    [
        ([1, INF, -INF, NAN], [1, INF, -INF, NAN], ""),
        ([1.25, INF], [1, 1e39], "element [1] is inf, expected 1e+39, "),  # a reference has to round, too
        ([INF, 1], [-INF, 1], "element [0] is inf, expected -inf, "),
        ([1, NAN], [1, 2], "element [1] is nan, expected 2.0, "),
        ([1, 2], [1, NAN], "element [1] is 2.0, expected nan, "),
        ([1, 1.5], [1, 1], "element [1] is 1.5, expected 1.0, with an error of at most 0.25; 1 of 2 elements "),
        ([[1, 2]], [1, 2], "the result's shape is (1, 2), expected (2,)"),
    ],
)
def test_a_wrong_element_is_named(result, expected, said):
    found = difference(np.float32(result), np.float64(expected), 0.25)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_wrong_dtype_is_named():
    assert difference(np.ones(1), np.ones(1), 0) == "the result's dtype is float64, expected float32"
    assert difference(np.int32([3]), np.int64([2**32 + 3]), 0, np.int32) == ""
    assert difference(np.int32([3]), np.int64([4]), 0, np.int32).startswith("element [0] is 3, expected 4, ")


def test_a_room_over_its_budget_fails_the_run():
    def report(room, spent):
        return SimpleNamespace(when="call", user_properties=[("thread-instructions", (room, spent))])

    budget, session = Budget(), SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    for _ in range(2):
        budget.pytest_runtest_logreport(report("small", BUDGET // 2))
    budget.pytest_sessionfinish(session)
    assert (budget.over(), session.exitstatus) == ({}, pytest.ExitCode.OK)
    budget.pytest_runtest_logreport(report("large", BUDGET))
    budget.pytest_runtest_logreport(report("large", 1))
    budget.pytest_sessionfinish(session)
    assert (budget.over(), session.exitstatus) == ({"large": BUDGET + 1}, pytest.ExitCode.TESTS_FAILED)


@pytest.fixture
def key(monkeypatch):
    """``key()``: under what the PTX of a kernel is kept, by the compiler that is there now."""
    pytest.importorskip("numba_cuda", reason="the compiler to PTX is not installed")
    from numba.cuda.cudadrv import libs

    def now():
        compiled.compiler_versions.cache_clear()
        return compiled.digest(lambda x: x, (), compiled.OLDEST, {})

    yield now, libs
    monkeypatch.undo()
    compiled.compiler_versions.cache_clear()


@pytest.mark.parametrize("package", ["numba-cuda", "numba", "llvmlite", "numpy"])
def test_ptx_of_another_version_of_a_package_is_not_taken(package, key, monkeypatch):
    now, _ = key
    before, there = now(), importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0" if name == package else there(name))
    assert now() != before
    monkeypatch.undo()
    assert now() == before


@pytest.mark.parametrize("finder", ["get_cudalib", "get_libdevice"])
def test_ptx_of_another_library_of_nvidias_is_not_taken(finder, key, monkeypatch, tmp_path):
    now, libs = key
    library = tmp_path / "library"
    monkeypatch.setattr(libs, finder, lambda *name: str(library))
    library.write_bytes(b"one")
    os.utime(library, ns=(1, 1))
    before = now()
    library.write_bytes(b"two")  # another one in its place, of the same length
    os.utime(library, ns=(1, 2))
    after = now()
    assert after != before
    monkeypatch.setattr(libs, finder, lambda *name: str(tmp_path / "other"))
    os.rename(library, tmp_path / "other")
    assert now() not in (before, after)
