"""What passed on a GPU, and what has changed since: CI has no GPU, and this is its memory.

::

    python -m pmpp.lab.measure.attest                            all tests and all chapters, on this GPU (make attest)
    python -m pmpp.lab.measure.attest tests/kernels/scan notebooks/34_scan      a part, merged into the record
    python -m pmpp.lab.measure.attest --stale                    what `make stale` names, and nothing else
    python -m pmpp.lab.measure.attest --gpus all                 on all GPUs of this machine at once
    python -m pmpp.lab.measure.attest --part 2/4 --out p2.json   the second of four parts that take equally long
    python -m pmpp.lab.measure.attest --merge p1.json p2.json    what parts have recorded, merged into the record
    python -m pmpp.lab.measure.stale                             what has changed since, anywhere (make stale)

``pmpp/recorded/<gpu>/attested.json`` has for each test file how many of its tests passed, failed and were skipped, and
for each chapter whether it ran to its end, in how many seconds and how. Each entry names its run, and the sources that
it depended on by keys: `pmpp.lab.measure.sources.key_of` makes them, and ``sources`` has the path of each. What failed
is recorded as failed. It is written after the tests and after each chapter, so that a run that is cut off loses little.
On SIGTERM, and when ``--seconds`` are used up, what runs is stopped, and what has come to its end is recorded.

Tests run in parallel. Chapters measure, so they run after them and one after another; ``--beside`` runs them beside
the tests, and the record says so. A chapter is executed as a notebook where Jupyter is installed, else as the script
that its source is, in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pmpp.lab.measure import outcomes
from pmpp.lab.measure.parts import Part, run_name, share
from pmpp.lab.measure.sources import ATTESTATIONS, ROOT, Sources, key_of
from pmpp.lab.measure.stale import SCHEMA, chapters, fault, read, stale, suites

__all__ = ["SelectionError", "StoppedError", "joined", "main", "merged", "run_chapter", "run_tests", "select", "write"]

CHAPTER_SECONDS = 240  # a chapter that takes longer hangs
TESTS_SECONDS = 480  # all tests together, where nothing else is asked for
RESERVE = 10  # seconds of those asked for that remain to write the record
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
            status = _finish(command, seconds=seconds, cwd=root, env=asks)[0]
            why = "the tests were told to stop" if _told_to_stop.is_set() else f"pytest ended with status {status}"
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
            status, said = _finish(
                [sys.executable, *command],
                seconds=seconds,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            failed, said = status != 0, said.strip()
        except subprocess.TimeoutExpired:
            failed, said = True, f"stopped after {seconds:.0f} s"
    outcome = {"passed": not failed, "seconds": round(clock() - began, 1), "how": "notebook" if notebook else "script"}
    if failed:
        outcome["error"] = _error_in(said)[:300]
    return outcome


_running: set[subprocess.Popen] = set()
_told_to_stop = threading.Event()


def _finish(command: Sequence[str], *, seconds: float | None, **options: typing.Any) -> tuple[int, str]:
    """Run a process to its end: its status, and what it wrote to a pipe.

    When it ends, or has to end because ``seconds`` are over, all that it started ends too: a worker of pytest would
    keep the GPU. Raises TimeoutExpired.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        _running.add(process)
        try:
            if _told_to_stop.is_set():
                _end(process)
            said, _ = process.communicate(timeout=seconds)
        finally:
            _running.discard(process)
            _end(process)
    return process.returncode, said or ""


def _end(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    except (AttributeError, ProcessLookupError, PermissionError):  # Windows has no groups
        process.kill()


@contextmanager
def _stops_on_sigterm() -> Iterator[None]:
    """Until the end of the block SIGTERM ends what runs, and nothing more begins; this process goes on to write."""

    def stop(*_: object) -> None:
        _told_to_stop.set()
        for process in list(_running):
            _end(process)

    _told_to_stop.clear()
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        _told_to_stop.clear()


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
    old = old or {"schema": SCHEMA, "gpu": gpu, "runs": {}, "sources": {}, "tests": {}, "chapters": {}}
    if old["gpu"]["name"] != gpu["name"]:
        raise ValueError(f"the record is of {old['gpu']['name']}, but this machine has {gpu['name']}")
    name, paths = run_name(run), dict(old["sources"])
    whole: dict[str, dict] = {"tests": {}, "chapters": {}}
    for kind, existing in (("tests", suites(root)), ("chapters", chapters(root))):
        for key in existing:
            if key in results:
                keys = {key_of(path, digest): path for path, digest in sources[key].items()}
                paths |= keys
                whole[kind][key] = {"run": name, **results[key], "sources": " ".join(sorted(keys))}
            elif key in old[kind]:
                whole[kind][key] = old[kind][key]
    return _without_rest({"schema": SCHEMA, "gpu": gpu, "runs": {**old["runs"], name: run}, "sources": paths, **whole})


def _without_rest(data: dict) -> dict:
    """The record without runs and sources that no result names."""
    entries = [entry for kind in ("tests", "chapters") for entry in data[kind].values()]
    runs = {entry["run"] for entry in entries}
    keys = {key for entry in entries for key in entry.get("sources", "").split()}
    return {
        **data,
        "runs": {name: data["runs"][name] for name in sorted(runs)},
        "sources": {
            key: path for key, path in sorted(data["sources"].items(), key=lambda one: one[::-1]) if key in keys
        },
    }


def joined(records: Sequence[dict], root: Path = ROOT) -> dict:
    """Records of one GPU, such as those of parts, as one. Of each test file and chapter the newest result counts.

    Raises ValueError if they are of several GPUs, or if two runs have the same name and are not the same.
    """
    if len(names := {data["gpu"]["name"] for data in records}) != 1:
        raise ValueError(f"records of one GPU can be merged; these are of {', '.join(sorted(names)) or 'none'}")
    whole: dict[str, typing.Any] = {"schema": SCHEMA, "gpu": records[-1]["gpu"], "runs": {}, "sources": {}}
    for data in records:
        for name, run in data["runs"].items():
            if whole["runs"].setdefault(name, run) != run:
                raise ValueError(f"two runs are named {name}: parts are told apart by --part K/N")
        whole["sources"] |= data["sources"]
    for kind, existing in (("tests", suites(root)), ("chapters", chapters(root))):
        found = {name: [data[kind][name] for data in records if name in data[kind]] for name in existing}
        whole[kind] = {name: max(some, key=lambda entry: entry["run"]) for name, some in found.items() if some}
    return _without_rest(whole)


def write(data: dict, path: Path) -> None:
    """Write a record: one result a line, so that a diff shows which changed. It is replaced in one step."""
    parts = []
    for key, value in data.items():
        if key in ("sources", "tests", "chapters"):
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
    parser.add_argument(
        "--beside",
        action="store_true",
        help="run the chapters beside the tests, or beside other lanes; recorded as such",
    )
    parser.add_argument("--workers", type=int, help="processes for the tests (default: one a core, 16 at most)")
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"for all, at most (default: the tests {TESTS_SECONDS}, and no limit for the rest)",
    )
    parser.add_argument("--part", type=Part.parse, help="K/N: one of N parts that take equally long")
    parser.add_argument("--gpus", choices=["all"], help="all: parts on all GPUs at once, merged at the end")
    parser.add_argument("--chapters-at-once", type=int, help="with --gpus: so many (default: three a GPU)")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="run nothing; merge these records")
    parser.add_argument("--out", type=Path, help="the record to merge into (default: the shipped one of this GPU)")
    options = parser.parse_args(argv)
    if options.merge:
        return _merge(options.merge, options.out)
    try:
        tests, pages = select(options.only)
    except SelectionError as error:
        print(error, file=sys.stderr)
        return 2
    if options.stale:
        due = stale()
        tests, pages = [name for name in tests if name in due], [name for name in pages if name in due]
    if options.gpus:
        return _on_all_gpus(tests, pages, options)
    if options.part:
        known = _recorded_seconds()
        tests, pages = (share({name: known.get(name) for name in some}, options.part) for some in (tests, pages))
        if options.workers is None and importlib.util.find_spec("xdist"):  # the parts share one machine's cores
            options.workers = min(max((os.cpu_count() or 1) // options.part.count, 1), MOST_WORKERS)
    from pmpp.runtime import device

    try:
        if not device.on_gpu():
            print(f"attest needs an NVIDIA GPU, but {device.backend().why}.", file=sys.stderr)
            return 2
    except device.BackendError as error:
        print(error, file=sys.stderr)
        return 2
    with _stops_on_sigterm():
        return _attest(tests, pages, options)


def _recorded_seconds() -> dict[str, float]:
    """How long each test file and chapter took when it was last attested, on whichever GPU."""
    from pmpp.lab.measure import record

    records = filter(None, map(read, sorted(record.RECORDED.glob(f"*/{ATTESTATIONS}"))))
    entries = [one for data in records for kind in ("tests", "chapters") for one in data[kind].items()]
    entries.sort(key=lambda one: one[1]["run"])
    return {name: entry["seconds"] for name, entry in entries if "seconds" in entry}


def _on_all_gpus(tests: list[str], pages: list[str], options: argparse.Namespace) -> int:
    """Start a process a lane, and merge what they record. Returns the worst of their statuses."""
    from pmpp.lab.measure import lanes
    from pmpp.runtime import device

    if options.part or options.workers:
        print("--gpus makes the parts itself, and shares out the workers", file=sys.stderr)
        return 2
    try:
        count = len(device.backend().cuda.gpus) if device.on_gpu() else 0
    except device.BackendError as error:
        print(error, file=sys.stderr)
        return 2
    if not count:
        print(f"attest needs an NVIDIA GPU, but {device.backend().why}.", file=sys.stderr)
        return 2
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    which = lanes.lanes(
        tests,
        pages,
        lanes.visible(count),
        chapters_at_once=options.chapters_at_once or 3 * count,
        cores=min(cores, MOST_WORKERS * count),
        more=() if options.seconds is None else ("--seconds", f"{options.seconds:g}"),
    )
    with tempfile.TemporaryDirectory() as folder:
        status = lanes.run(which, Path(folder))
        files = sorted(Path(folder).glob("*.json"))
        return max([*status.values(), _merge(files, options.out) if files else 2])


def _merge(files: Sequence[Path], out: Path | None) -> int:
    from pmpp.lab.measure import record

    records = []
    for file in files:
        if (data := read(file)) is None:
            print(f"there is no {file}", file=sys.stderr)
            return 2
        records.append(data)
    path = out or record.RECORDED / record.slug(records[0]["gpu"]["name"]) / ATTESTATIONS
    try:
        data = joined([*filter(None, [read(path)]), *records])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    write(data, path)
    print(f"{len(data['tests'])} test files and {len(data['chapters'])} chapters of {len(data['runs'])} runs: {path}")
    return 0


def _attest(tests: list[str], pages: list[str], options: argparse.Namespace) -> int:
    from pmpp.lab.measure import environment, record

    began = time.perf_counter()
    gpu, run = environment.describe_gpu(), environment.describe_machine()
    run |= {"part": str(options.part)} if options.part else {}
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

    def left() -> float:
        return math.inf if options.seconds is None else options.seconds - RESERVE - (time.perf_counter() - began)

    def testing() -> None:
        try:
            seconds = TESTS_SECONDS if options.seconds is None else max(left(), 0.0)
            keep(run_tests(tests, workers=options.workers, seconds=seconds, environment=asks))
        except StoppedError as error:
            trouble.append(str(error))
            keep(error.finished)

    def wait() -> None:
        while beside and beside.is_alive():
            beside.join(1.0)  # a signal's handler runs in between

    beside = threading.Thread(target=testing) if tests else None
    if beside:
        beside.start()
        if not options.beside:
            wait()
    for number, name in enumerate(pages):
        allowed = min(CHAPTER_SECONDS, left())
        found = None
        if allowed > 0 and not _told_to_stop.is_set():
            # Without tests `--beside` says that others run on this machine.
            alone = not (beside.is_alive() if beside else options.beside)
            found = run_chapter(starts[name], seconds=allowed, environment=asks)
            if not found["passed"] and (_told_to_stop.is_set() or left() <= 0):
                found = None  # that is no failure of the chapter
        if found is None:
            why = "told to stop" if _told_to_stop.is_set() else f"the {options.seconds:.0f} s are used up"
            trouble.append(f"{why} before the end of {', '.join(pages[number:])}")
            break
        keep({name: {**found, "alone": alone}})
        print(f"{name:42} {found['seconds']:6.1f} s  {found.get('error', '')}".rstrip(), flush=True)
    wait()
    failed = [name for name, entry in results.items() if fault(entry)]
    print("".join(f"not all tests are attested: {line}\n" for line in trouble), end="", file=sys.stderr)
    for name in failed:
        print(f"{name}: {fault(results[name])}: {', '.join(results[name].get('failures', ()))}".rstrip(": "))
    count = f"{len(results) - len(failed)} of {len(tests) + len(pages)} attested"
    print(f"{count}, recorded in {path}; {time.perf_counter() - began:.0f} s")
    return 2 if trouble else int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
