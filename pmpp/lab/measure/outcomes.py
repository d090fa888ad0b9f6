"""A plugin of pytest that writes down each outcome as it comes: a run that is stopped still tells what has passed.

``pytest -p outcomes``, with this folder on the path, appends lines of JSON to the file that ``PMPP_OUTCOMES`` names:
the tests that were collected, and for each test its start and the outcome of each of its phases. `finished` reads them.
It imports nothing of pmpp, which is what is tested.
"""

from __future__ import annotations

import json
import os
import typing
from collections.abc import Collection
from pathlib import Path

import pytest

__all__ = ["FILE", "finished"]

FILE = "PMPP_OUTCOMES"  # names the environment variable that names the file


def _write(**line: typing.Any) -> None:
    # Under pytest-xdist the controller hears of everything; a worker would write it a second time.
    if FILE in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ[FILE], "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    _write(collected=[item.nodeid for item in session.items])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: typing.Any, ids: list[str]) -> None:
    _write(collected=ids)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if not report.passed:
        _write(file=report.nodeid, outcome=report.outcome)


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(started=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _write(test=report.nodeid, when=report.when, outcome=report.outcome, seconds=report.duration)


def finished(path: Path, files: Collection[str]) -> tuple[dict[str, dict], list[str]]:
    """The counts of each of ``files`` that came to its end, and the names of the tests that were running.

    A file whose tests were not all heard of is left out. An error outside a test, of an import or of a fixture, counts
    as failed. ``seconds`` is the sum of its tests' times, which may have run beside one another.
    """
    collected: set[str] = set()
    started: set[str] = set()
    phases: dict[str, dict[str, str]] = {}
    seconds: dict[str, float] = {}
    whole: dict[str, str] = {}  # files that could not be collected, or that asked to be skipped
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.exists() else ()):
        collected.update(line.get("collected", ()))
        started.update([line["started"]] if "started" in line else ())
        if "file" in line:
            whole[line["file"]] = line["outcome"]
        if "test" in line:
            phases.setdefault(line["test"], {})[line["when"]] = line["outcome"]
            file = line["test"].partition("::")[0]
            seconds[file] = seconds.get(file, 0.0) + line["seconds"]
    done = {name for name, seen in phases.items() if "teardown" in seen}
    pending = {name.partition("::")[0] for name in collected - done}
    found: dict[str, dict] = {}
    if collected or whole:
        found = {name: {"passed": 0, "failed": 0, "skipped": 0} for name in files if name not in pending}
    for name, what in [*((name, _outcome(phases[name])) for name in sorted(done)), *whole.items()]:
        entry = found.get(name.partition("::")[0])
        if entry is not None:
            entry[what] += 1
            if what == "failed":
                entry.setdefault("failures", []).append(name.partition("::")[2] or name)
    for name, entry in found.items():
        entry["seconds"] = round(seconds.get(name, 0.0), 1)
    return found, sorted(started - done)


def _outcome(phases: dict[str, str]) -> str:
    seen = set(phases.values())
    return "failed" if "failed" in seen else "skipped" if "skipped" in seen else "passed"
