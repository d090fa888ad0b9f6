"""What passed on a GPU, and what has changed since: CI has no GPU, and this is its memory.

::

    python -m pmpp.lab.measure.attest                            all tests and all chapters, on this GPU (make attest)
    python -m pmpp.lab.measure.attest tests/kernels/scan notebooks/34_scan      a part, merged into the record
    python -m pmpp.lab.measure.attest --stale                    what `make stale` names, and nothing else
    python -m pmpp.lab.measure.stale                             what has changed since, anywhere (make stale)

``pmpp/recorded/<gpu>/attested.json`` has for each test file how many of its tests passed, failed and were skipped, and
for each chapter whether it ran to its end, in how many seconds and how. Each entry has the digest of the sources that
it depended on (see `pmpp.lab.measure.sources`), and names its run, which has the digest of each one. What failed is
recorded as failed. It is written after the tests and after each chapter, so that a run that is cut off loses little.

Tests run in parallel. Chapters measure, so they run after them and one after another; ``--beside`` runs them beside
the tests, and the record says so. A chapter is executed as a notebook where Jupyter is installed, else as the script
that its source is, in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pmpp.lab.measure import outcomes
from pmpp.lab.measure.sources import ATTESTATIONS, ROOT, Sources, digest_of
from pmpp.lab.measure.stale import SCHEMA, chapters, fault, read, stale, suites

__all__ = ["SelectionError", "StoppedError", "main", "merged", "run_chapter", "run_tests", "select", "write"]

CHAPTER_SECONDS = 240  # a chapter that takes longer hangs
MOST_WORKERS = 16  # each holds a context on the GPU, and most of its time compiles


class SelectionError(ValueError):
    """What is to be attested does not exist. The message names it."""


def select(only: Sequence[str], root: Path = ROOT) -> tuple[list[str], list[str]]:
    """The test files and the chapters that ``only`` names: files, folders, or chapters; all if it is empty.

    Raises SelectionError for a name that is none of them. A part of a test file cannot be attested.
    """
    all_tests, all_chapters = list(suites(root)), list(chapters(root))
    if not only:
        return all_tests, all_chapters
    tests, chosen = set(), set()
    for given in only:
        name = Path(given).as_posix().removesuffix(".ipynb")
        if name.startswith("notebooks/source"):
            name = name.removesuffix(".py").replace("notebooks/source", "notebooks")
        found = {path for path in all_tests if path == name or path.startswith(f"{name}/")}
        pages = {path for path in all_chapters if path == name or path.startswith(f"{name}/")}
        if not found and not pages:
            raise SelectionError(f"{given!r} is no test file, no folder with test files and no chapter")
        tests |= found
        chosen |= pages
    return sorted(tests), sorted(chosen)


# ------------------------------------------------------------------------------------------------------------- running


def run_tests(
    files: Sequence[str],
    *,
    root: Path = ROOT,
    workers: int | None = None,
    seconds: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, dict]:
    """Run test files with pytest: ``{file: {"passed", "failed", "skipped", ...}}``, with the names of what failed.

    An error outside a test, of an import or of a fixture, is counted as failed. ``workers``: processes of pytest-xdist;
    by default one a core, if it is installed. Raises StoppedError, with the files that came to their end, if pytest did
    not.
    """
    if workers is None:
        workers = min(os.cpu_count() or 1, MOST_WORKERS) if importlib.util.find_spec("xdist") else 0
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes"]
        command += ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        command += ["--continue-on-collection-errors", "--durations", "10", *files]
        asks = _environment(root, environment) | {outcomes.FILE: str(report)}
        asks["PYTHONPATH"] = os.pathsep.join([asks["PYTHONPATH"], str(Path(outcomes.__file__).parent)])
        try:
            status = subprocess.run(command, cwd=root, env=asks, timeout=seconds, check=False).returncode
            why = f"pytest ended with status {status}"
        except subprocess.TimeoutExpired:
            status, why = None, f"the tests took more than {seconds:.0f} s and were stopped"
        found, running = outcomes.finished(report, files)
    # 1: tests failed. Anything above means that pytest itself was stopped or could not start.
    if status not in (0, 1):
        raise StoppedError(f"{why}; still running: {', '.join(running) or 'none'}", found)
    return found


class StoppedError(RuntimeError):
    """The tests did not come to their end. ``finished`` has what `run_tests` returns, of the files that did."""

    def __init__(self, message: str, finished: Mapping[str, dict]) -> None:
        super().__init__(message)
        self.finished = finished


def run_chapter(
    source: str,
    *,
    root: Path = ROOT,
    notebook: bool | None = None,
    seconds: float = CHAPTER_SECONDS,
    environment: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict:
    """Execute one chapter in a process of its own: ``{"passed", "seconds", "how"}``, and ``"error"`` if it failed.

    ``notebook``: as a notebook, in a kernel of Jupyter, or as the script that its source is; by default whatever can be
    done here. ``"error"`` is the last line of what it wrote, or the error that a note in plain words was added to.
    """
    if notebook is None:
        needed = ("jupytext", "nbformat", "nbclient", "ipykernel")
        notebook = all(importlib.util.find_spec(package) for package in needed)
    environment = _environment(root, environment)
    began = clock()
    with tempfile.TemporaryDirectory() as folder:
        if notebook:
            command = ["-m", "pmpp.lab.publish.notebooks", "--execute-only", Path(source).stem]
        else:
            command = [str(root / source)]
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=folder,
                env=environment,
                timeout=seconds,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            failed, said = done.returncode != 0, done.stdout.strip()
        except subprocess.TimeoutExpired:
            failed, said = True, f"stopped after {seconds:.0f} s"
    outcome = {"passed": not failed, "seconds": round(clock() - began, 1), "how": "notebook" if notebook else "script"}
    if failed:
        outcome["error"] = _error_in(said)[:300]
    return outcome


def _error_in(said: str) -> str:
    lines = said.splitlines() or ["it ended without a word"]
    noted = next((i for i, line in enumerate(lines) if line.startswith("In plain words")), len(lines))
    errors = [line for line in lines[:noted] if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return errors[-1] if errors and noted < len(lines) else lines[-1]


def _environment(root: Path, given: Mapping[str, str] | None) -> dict[str, str]:
    """A process's environment: it finds the package at ``root``, opens no window and draws no progress bar."""
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    # Options of pytest would choose among the tests, and its workers' names are of another run.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return {**inherited, "PYTHONPATH": path, "MPLBACKEND": "agg", "TQDM_DISABLE": "1", **(given or {})}


# ----------------------------------------------------------------------------------------------------------- recording


def merged(
    old: dict | None, gpu: dict, run: dict, results: Mapping[str, dict], sources: Mapping[str, dict], root: Path = ROOT
) -> dict:
    """``old`` with ``results`` put in their place; what no longer exists goes, and so do runs without results.

    ``results`` maps test files and chapters to what `run_tests` and `run_chapter` return, and ``sources`` to the
    digests of the files that they depend on. Raises ValueError if ``old`` is of another GPU.
    """
    old = old or {"schema": SCHEMA, "gpu": gpu, "runs": {}, "tests": {}, "chapters": {}}
    if old["gpu"]["name"] != gpu["name"]:
        raise ValueError(f"the record is of {old['gpu']['name']}, but this machine has {gpu['name']}")
    name = run["date"]
    digests = {path: digest for result in results for path, digest in sources[result].items()}
    whole: dict[str, dict] = {"tests": {}, "chapters": {}}
    for kind, existing in (("tests", suites(root)), ("chapters", chapters(root))):
        for key in existing:
            if key in results:
                whole[kind][key] = {"run": name, "digest": digest_of(sources[key]), **results[key]}
            elif key in old[kind]:
                whole[kind][key] = old[kind][key]
    used = {entry["run"] for kind in whole.values() for entry in kind.values()}
    runs = {**old["runs"], name: {**run, "sources": dict(sorted(digests.items()))}}
    return {"schema": SCHEMA, "gpu": gpu, "runs": {key: runs[key] for key in sorted(used)}, **whole}


def write(data: dict, path: Path) -> None:
    """Write a record: one result a line, so that a diff shows which changed. It is replaced in one step."""
    parts = []
    for key, value in data.items():
        if key in ("tests", "chapters"):
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{rows}\n }}" if rows else f" {json.dumps(key)}: {{}}")
        else:
            text = json.dumps(value, indent=1) if key == "runs" else json.dumps(value)
            parts.append(f" {json.dumps(key)}: " + text.replace("\n", "\n "))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    draft.replace(path)


# -------------------------------------------------------------------------------------------------------- command line


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns 0; 1 if a test or a chapter failed; 2 if nothing could be attested."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.lab.measure.attest", description="Run tests and chapters on this GPU, and record it."
    )
    parser.add_argument("only", nargs="*", help="test files, folders of them, or notebooks/NN_name; all by default")
    parser.add_argument("--stale", action="store_true", help="only what has changed since it was attested")
    parser.add_argument("--beside", action="store_true", help="run the chapters beside the tests; recorded as such")
    parser.add_argument("--workers", type=int, help="processes for the tests (default: one a core, 16 at most)")
    parser.add_argument("--seconds", type=float, default=480.0, help="for the tests, at most (default: %(default)g)")
    parser.add_argument("--out", type=Path, help="the record to merge into (default: the shipped one of this GPU)")
    options = parser.parse_args(argv)
    try:
        tests, pages = select(options.only)
    except SelectionError as error:
        print(error, file=sys.stderr)
        return 2
    if options.stale:
        due = stale()
        tests, pages = [name for name in tests if name in due], [name for name in pages if name in due]
    from pmpp.runtime import device

    try:
        if not device.on_gpu():
            print(f"attest needs an NVIDIA GPU, but {device.backend().why}.", file=sys.stderr)
            return 2
    except device.BackendError as error:
        print(error, file=sys.stderr)
        return 2
    return _attest(tests, pages, options)


def _attest(tests: list[str], pages: list[str], options: argparse.Namespace) -> int:
    from pmpp.lab.measure import environment, record

    gpu, run = environment.describe_gpu(), environment.describe_machine()
    shipped = record.RECORDED / record.slug(gpu["name"]) / ATTESTATIONS
    path = options.out or shipped
    old = read(path) or read(shipped)
    # Before anything runs: what is edited meanwhile is not what was run.
    now, starts = Sources(), chapters()
    sources = {name: now.digests(starts.get(name, name)) for name in (*tests, *pages)}
    results: dict[str, dict] = {}
    lock, trouble = threading.Lock(), []
    asks = {"PMPP_BACKEND": "numba"}

    def keep(found: Mapping[str, dict]) -> None:
        with lock:
            results.update(found)
            write(merged(old, gpu, run, results, sources), path)

    def testing() -> None:
        try:
            keep(run_tests(tests, workers=options.workers, seconds=options.seconds, environment=asks))
        except StoppedError as error:
            trouble.append(str(error))
            keep(error.finished)

    began = time.perf_counter()
    beside = threading.Thread(target=testing) if tests else None
    if beside:
        beside.start()
        if not options.beside:
            beside.join()
    for name in pages:
        alone = not (beside and beside.is_alive())
        found = run_chapter(starts[name], environment=asks)
        keep({name: {**found, "alone": alone}})
        print(f"{name:42} {found['seconds']:6.1f} s  {found.get('error', '')}".rstrip(), flush=True)
    if beside:
        beside.join()
    failed = [name for name, entry in results.items() if fault(entry)]
    print("".join(f"not all tests are attested: {line}\n" for line in trouble), end="", file=sys.stderr)
    for name in failed:
        print(f"{name}: {fault(results[name])}: {', '.join(results[name].get('failures', ()))}".rstrip(": "))
    count = f"{len(results) - len(failed)} of {len(tests) + len(pages)} attested"
    print(f"{count}, recorded in {path}; {time.perf_counter() - began:.0f} s")
    return 2 if trouble else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
