"""Tests and chapters on all GPUs of a machine at once: `pmpp.lab.measure.attest --gpus all`.

A lane is a process of `attest` with a part of the tests, or of the chapters, and a GPU. Each GPU has one lane of tests,
and several of chapters, which mostly compile. What needs two GPUs has a lane that sees all of them. Each lane writes a
record of its own, and at the end they are merged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pmpp.lab.measure.sources import ROOT

__all__ = ["Lane", "lanes", "run", "visible"]

SEVERAL = "needs two GPUs"  # stands in the tests that do, as the reason why others skip them
COMMAND = sys.executable, "-m", "pmpp.lab.measure.attest"


@dataclass(frozen=True)
class Lane:
    """A process of `attest`: its name, the GPUs that it sees as CUDA_VISIBLE_DEVICES names them, and its arguments."""

    name: str
    gpus: str
    arguments: tuple[str, ...]


def visible(count: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The names of this process's GPUs, of which there are so many, for CUDA_VISIBLE_DEVICES."""
    given = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (given or [str(number) for number in range(count)])[:count]


def lanes(
    tests: Sequence[str],
    pages: Sequence[str],
    gpus: Sequence[str],
    *,
    chapters_at_once: int,
    cores: int,
    more: Sequence[str] = (),
    root: Path = ROOT,
) -> list[Lane]:
    """The lanes for test files and chapters. ``more``: arguments of all, such as ``--seconds``.

    The cores that chapters leave are shared out to the lanes of tests.
    """
    several = [name for name in tests if len(gpus) > 1 and SEVERAL in (root / name).read_text(encoding="utf-8")]
    single = [name for name in tests if name not in several]
    # A run's name is its second and its part: no two lanes may have the same.
    count = min(max(chapters_at_once, 1), max(len(pages), 1))
    count += count == len(gpus)
    workers = max(1, (cores - (count if pages else 0)) // len(gpus))
    found = []
    if single:
        for number, gpu in enumerate(gpus, 1):
            part = f"{number}/{len(gpus)}"
            found.append(Lane(f"tests-{number}", gpu, (*single, "--part", part, "--workers", str(workers), *more)))
    if several:
        found.append(Lane("tests-of-several", ",".join(gpus), (*several, "--workers", "2", *more)))
    for number in range(1, count + 1) if pages else ():
        part = f"{number}/{count}"
        found.append(Lane(f"chapters-{number}", gpus[number % len(gpus)], (*pages, "--part", part, "--beside", *more)))
    return found


def run(
    which: Sequence[Lane],
    folder: Path,
    *,
    command: Sequence[str] = COMMAND,
    progress: Callable[[str], object] = lambda words: print(words, flush=True),
) -> dict[str, int]:
    """Run lanes at once, each to its end: the status of each by name. Its record is ``<folder>/<name>.json``.

    What a lane prints goes to ``<folder>/<name>.log``, and is shown when it has ended. SIGTERM and Ctrl-C tell all
    lanes to stop and to record.
    """
    folder.mkdir(parents=True, exist_ok=True)
    started: dict[str, subprocess.Popen] = {}
    with _handed_on(started):
        for lane in which:
            with (folder / f"{lane.name}.log").open("wb") as log:
                started[lane.name] = subprocess.Popen(
                    [*command, *lane.arguments, "--out", str(folder / f"{lane.name}.json")],
                    env={**os.environ, "CUDA_VISIBLE_DEVICES": lane.gpus},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        status = {}
        for name, process in started.items():
            status[name] = process.wait()
            said = (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip()
            progress(f"{name} ended with status {status[name]}:\n{said}")
    return status


@contextmanager
def _handed_on(started: Mapping[str, subprocess.Popen]) -> Iterator[None]:
    def stop(*_: typing.Any) -> None:
        for process in list(started.values()):
            process.send_signal(signal.SIGTERM)  # nothing if it has ended

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
