"""The processes of one notebook: one that runs its cells, and then one for each answer that is judged.

All have limits. What goes beyond one is killed with all that it has started, and the words say what it was. If a cell
ends the process that runs the notebook, a new one runs the other cells.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pmpp.lab.teach.grade import capture, player, rebuild, wall
from pmpp.lab.teach.points import known, named

__all__ = ["Cell", "Judged", "Limits", "Played", "judged", "play"]

RESTARTS = 4  # processes that cells may end
GRACE = 2.0  # seconds after an interrupt
KEPT = 10  # different answers to an exercise, the last ones
EVENTS = 20_000  # reports of one process
PREDICTIONS = 500
WORDS = 500  # characters of what a process says


@dataclass(frozen=True)
class Limits:
    """What a notebook may use.

    cell      seconds for one cell
    notebook  seconds for all cells together
    judge     seconds to judge one answer
    memory    bytes of address space for each process
    output    bytes that all cells print
    """

    cell: float = 120
    notebook: float = 900
    judge: float = 60
    memory: int = 4 << 30
    output: int = 1_000_000


class Cell(typing.NamedTuple):
    """A cell of code; cells of code are counted from 1. ``question``: what is to be predicted in it, or ""."""

    number: int
    source: str
    question: str = ""


@dataclass
class Played:
    """What came of running a notebook.

    answers      by exercise, what was passed to `check`: a cell, and the data of the answer, or why there is none
    predictions  what was passed to `predict`, as `pmpp.lab.teach.grade.player.told` reports it
    faults       (cell or None, words): what stopped a cell, or all
    """

    answers: dict[str, list[dict]] = field(default_factory=dict)
    predictions: list[dict] = field(default_factory=list)
    faults: list[tuple[int | None, str]] = field(default_factory=list)


class Judged(typing.NamedTuple):
    """The verdict on one answer; see `pmpp.lab.teach.exercise.Verdict`. ``share``: see `pmpp.lab.teach.grade.roof`."""

    passed: bool
    mistake: str
    words: str
    case: str = ""
    line: int | None = None
    code: str = ""
    source: str = ""
    share: float | None = None
    shipped: float | None = None


def _kill(pid: int) -> None:
    """Kill a process and its group. It is the leader of one of its own."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------------ the notebook


def play(cells: Sequence[Cell], edition: Path, hidden: Sequence[Path], limits: Limits, folder: Path) -> Played:
    """Run cells in a process of their own, as somebody would who runs them one by one.

    Args:
        cells: the cells of code.
        edition: the folder with the student's edition of the package.
        hidden: files and folders that the process cannot open.
        limits: what it may use.
        folder: an empty folder for it to work in; it is deleted.
    """
    played = Played()
    skipped: list[int] = []
    until = time.monotonic() + limits.notebook
    for again in range(RESTARTS + 1):
        folder.mkdir(exist_ok=True)
        run = _Run(cells, edition, hidden, limits, folder, skipped, until, played)
        ended_in, words = run.follow()
        shutil.rmtree(folder, ignore_errors=True)
        if not words:
            break
        rest = ""
        if ended_in is None or time.monotonic() > until:
            rest = "" if ended_in is None else " The cells after it were not run: the notebook's time is over."
        elif again == RESTARTS:
            rest = " The cells after it were not run: too many cells have ended the process."
        played.faults.append((ended_in, words + rest))
        if ended_in is None or rest:
            break
        skipped.append(ended_in)
    played.faults = list(dict.fromkeys(played.faults))
    return played


class _Run:
    """One process that runs a notebook's cells."""

    def __init__(
        self,
        cells: Sequence[Cell],
        edition: Path,
        hidden: Sequence[Path],
        limits: Limits,
        folder: Path,
        skipped: Sequence[int],
        until: float,
        played: Played,
    ) -> None:
        self.limits, self.until, self.played = limits, until, played
        job_in, job_out = os.pipe()
        self.reports, reports_in = os.pipe()
        self.printed, printed_in = os.pipe()
        script = edition / Path(player.__file__).relative_to(Path(player.__file__).parents[4])
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-P", str(script), str(job_in), str(reports_in)],
            stdin=subprocess.DEVNULL,
            stdout=printed_in,
            stderr=printed_in,
            pass_fds=(job_in, reports_in),
            cwd=folder,
            env=_environment(edition, folder),
            start_new_session=True,
        )
        for end in (job_in, reports_in, printed_in):
            os.close(end)
        job = {
            "cells": [cell._asdict() for cell in cells],
            "skipped": list(skipped),
            "hidden": [str(path) for path in hidden],
            "folder": str(folder),
            "edition": str(edition),
            "names": sorted(known()),
            "memory": limits.memory,
            "seconds": limits.notebook,
        }
        with contextlib.suppress(BrokenPipeError), os.fdopen(job_out, "w", encoding="utf-8") as file:
            json.dump(job, file)
        self.cell: int | None = None
        self.began, self.asked = time.monotonic(), 0.0  # when the cell began, and when it was asked to stop
        self.bytes, self.events, self.last = 0, 0, b""
        self.done = self.ready = False
        self.waiting = [cell.number for cell in cells if cell.number not in skipped]

    def follow(self) -> tuple[int | None, str]:
        """Wait for the end: the cell that ended it, and why; no words if all cells were run."""
        try:
            reason = self._listen()
        finally:  # also if the grader itself is stopped
            _kill(self.process.pid)
            self.process.wait()
            os.close(self.reports)
            os.close(self.printed)
        return self.cell, reason

    def _listen(self) -> str:
        """Read what the process reports and prints, until it is done or has to be ended: why, in words."""
        reason = ""
        line = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self.reports, selectors.EVENT_READ)
            selector.register(self.printed, selectors.EVENT_READ)
            # A process that says that it is done ends by itself. Whatever it reports after that is forged.
            while not reason and not (self.done and self.process.poll() is not None):
                ready = selector.select(0.2)
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd == self.printed:
                        self.bytes += len(data)
                        self.last = (self.last + data)[-2000:]
                    else:
                        reason = reason or self._heard(line, data)
                if not reason:
                    died = not self.done and (not ready or not selector.get_map())
                    reason = self._beyond() or (self._died() if died else "")
        return reason

    def _beyond(self) -> str:
        """Which limit was exceeded, in words, or nothing."""
        now = time.monotonic()
        if self.bytes > self.limits.output:
            return f"The cells print more than {self.limits.output:,} bytes: the process was ended."
        if now > self.until:
            return f"The notebook took longer than {self.limits.notebook:g} s: it was stopped."
        if self.cell is None or now - self.began < self.limits.cell:
            return ""
        if not self.asked:
            self.asked = now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGINT)
        elif now - self.asked > GRACE:
            return f"It took longer than {self.limits.cell:g} s, and the process had to be ended."
        return ""

    def _died(self) -> str:
        code = self.process.poll()
        if code is None:
            return ""
        if not self.ready:
            said = self.last.decode(errors="replace").strip().rpartition("\n")[2]
            return f"The process of the notebook did not start: {said or f'exit status {code}'}."
        if code < 0:
            return f"It ended the process: {signal.Signals(-code).name}."
        return f"It ended the process, with exit status {code}."

    def _heard(self, line: bytearray, data: bytes) -> str:
        line += data
        while (end := line.find(b"\n")) >= 0:
            text = bytes(line[:end])
            del line[: end + 1]
            try:
                event = json.loads(text)
                self._take(event)
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
                return "It writes where only the grader does: the process was ended."
            self.events += 1
            if self.events > EVENTS:
                return f"It calls check or predict more than {EVENTS:,} times: the process was ended."
        return "It passes too much data to check: the process was ended." if len(line) > 2 * capture.LARGEST else ""

    def _take(self, event: dict) -> None:
        """Note what is reported. Raises if cells do not begin and end one by one, in order, before all is done."""
        kind, cell = event["kind"], event["cell"]
        if self.done:
            raise ValueError("a report after the last")
        if kind == "ready":
            self.ready = True
        elif kind == "done":
            if self.waiting or self.cell is not None:
                raise ValueError("done before the last cell has ended")
            self.done = True
        elif kind == "begins":
            if self.cell is not None or int(cell) != self.waiting.pop(0):
                raise ValueError("another cell begins than the next one")
            self.cell, self.began, self.asked = int(cell), time.monotonic(), 0.0
        elif kind in ("ended", "failed"):
            if int(cell) != self.cell:
                raise ValueError("another cell ends than the one that began")
            if kind == "failed":
                said = str(_cut(event["said"]))
                if self.asked and event["error"] == "KeyboardInterrupt":
                    said = f"It took longer than {self.limits.cell:g} s, and was stopped."
                self.played.faults.append((int(cell), said))
            self.cell = None
        elif kind == "predict":
            told = {"cell": int(cell)}
            told |= {key: _cut(event[key]) for key in ("filled", "guess", "right", "headline", "said")}
            if told not in self.played.predictions and len(self.played.predictions) < PREDICTIONS:
                self.played.predictions.append(told)
        elif kind == "check" and event["name"] in known():
            kept = self.played.answers.setdefault(str(event["name"]), [])
            one: dict = {"cell": int(cell)}
            if "nodes" in event:
                one["nodes"] = [[*node] for node in event["nodes"]]
            else:
                one["refused"] = str(event["refused"])[:WORDS]
            if one in kept:
                kept.remove(one)
            kept.append(one)
            del kept[:-KEPT]


def _cut(value: typing.Any) -> typing.Any:
    return value if value is None or isinstance(value, bool | int) else str(value)[:WORDS]


def _environment(edition: Path, folder: Path) -> dict[str, str]:
    import matplotlib

    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {
        "PYTHONPATH": str(edition),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PMPP_BACKEND": "simt",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "IPYTHONDIR": str(folder / ".ipython"),
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": matplotlib.get_cachedir(),  # with the list of fonts, which takes seconds to make
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "TQDM_DISABLE": "1",
    }


# -------------------------------------------------------------------------------------------------------- an answer


def judged(name: str, nodes: capture.Nodes, given: Mapping[str, Collection[str]], seed: int, limits: Limits) -> Judged:
    """The verdict on an answer, from a process that has never run a cell of the notebook."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(read)
            data = json.dumps(_in_child(name, nodes, given, seed, limits)._asdict()).encode()
            while data:
                data = data[os.write(write, data) :]
        os._exit(0)
    os.close(write)
    until = time.monotonic() + limits.judge
    try:
        data = _read(read, until)
    finally:
        over = time.monotonic() >= until
        _kill(pid)
        os.waitpid(pid, 0)
        os.close(read)
    try:
        return Judged(**json.loads(data))
    except (ValueError, TypeError):
        if over:
            return Judged(False, "too slow", f"too slow: it could not be judged in {limits.judge:g} s.")
        return Judged(False, "ends the process", "ends the process: the process that judges it was ended by it.")


def _read(read: int, until: float) -> bytes:
    """All that comes through a pipe until its end, or until it is too late."""
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        while (left := until - time.monotonic()) > 0:
            if selector.select(left):
                more = os.read(read, 65536)
                data += more
                if not more:
                    break
    return data


def _in_child(
    name: str, nodes: capture.Nodes, given: Mapping[str, Collection[str]], seed: int, limits: Limits
) -> Judged:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.chdir("/")
    player.limit(limits.memory, limits.judge)
    one = named(name)
    room = hasattr(one, "cases")
    kernel = False
    if room:  # other inputs than those that a student has seen
        one = with_inputs(one, numbers_of(seed, name, nodes))
        kernel = one.inputs[0].grid is not None
    source, missing = "", ()
    try:
        if not kernel:
            wall.build((), (), ())
            sys.addaudithook(_hook)
        answer = rebuild.rebuilt(nodes, given, kernel=kernel)
        source, missing = answer.source, answer.missing
        verdict = _verdict(one, room, answer.value)
    except rebuild.RefusedError as error:
        return Judged(False, "not run", f"not run: {error}.", source=source)
    except MemoryError:
        return Judged(False, "too large", f"too large: it needs more than {limits.memory:,} bytes.", source=source)
    except Exception as error:  # whatever the data is made of
        return Judged(False, "not taken over", f"not taken over: {type(error).__name__}: {error}.", source=source)
    words = verdict.message
    if missing and not verdict.passed:
        words += f" These could not be taken over from the notebook: {', '.join(missing)}."
    found = Judged(verdict.passed, verdict.mistake, words, verdict.case, verdict.line, verdict.code, source)
    if verdict.passed and kernel and one.answer is not None:
        from pmpp.lab.teach.grade import roof

        share, shipped = roof.shares(one, answer.value)
        found = found._replace(share=share, shipped=shipped)
    return found


def with_inputs(one: typing.Any, numbers: np.ndarray) -> typing.Any:
    """An exercise of a room with the inputs that follow from these numbers."""
    return dataclasses.replace(one, cases=lambda _: one.cases(np.random.default_rng(numbers)))


def numbers_of(seed: int, name: str, nodes: capture.Nodes) -> np.ndarray:
    """What the inputs are made of: the seed, the exercise and the answer, wherever in a notebook it stands."""
    left_out = {"file", "cell"}  # of a function and a class; what code calls so is a part of the answer
    answer = [
        [
            {key: part[key] for key in part if key not in left_out} if at == 1 and isinstance(part, dict) else part
            for at, part in enumerate(node)
        ]
        for node in nodes
    ]
    return np.frombuffer(hashlib.sha256(json.dumps([seed, name, answer], sort_keys=True).encode()).digest(), np.uint32)


def _verdict(one: typing.Any, room: bool, value: typing.Any) -> typing.Any:
    if room:
        from pmpp.lab.teach.diagnosis import judge

        return judge(one, value)
    module = sys.modules[type(one).__module__]
    return module.judged(one, value)


def _hook(event: str, arguments: tuple) -> None:
    """Nothing that an answer for the host does leaves its process."""
    if event in player.REFUSED or event in ("pickle.find_class", "ctypes.dlopen", "os.remove", "os.rename", "os.rmdir"):
        raise PermissionError(f"{event} is not allowed in an answer")
    if event == "open" and len(arguments) > 2:
        mode, flags = arguments[1], arguments[2]
        wanted = isinstance(mode, str) and any(sign in mode for sign in "wax+")
        if wanted or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            raise PermissionError("an answer writes no files")
