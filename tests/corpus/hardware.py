"""The corpus under compute-sanitizer: what the hardware's own tool finds in the same kernels.

    python -m tests.corpus.hardware FOLDER            on a machine with an NVIDIA GPU: runs all, leaves logs in FOLDER
    python -m tests.corpus.hardware --read FOLDER     anywhere: reads the logs, writes pmpp/recorded/sanitizers/

Each tool sees bugs and look-alikes in different processes, since its reports name a kernel, not a launch. Each side is
shared out to SHARES processes that run at the same time. A kernel that breaks its process, or hangs, ends it; the next
process goes on behind it.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pmpp.lab.measure import sanitizers
from pmpp.runtime import clusters

from . import SUBJECTS, Pair, judge, pairs

TOOLS = {
    "memcheck": ["--padding", "32", "--destroy-on-device-error", "kernel"],
    "racecheck": ["--racecheck-report", "analysis"],
    "initcheck": [],
    "synccheck": [],
}
PATIENCE = 30  # seconds without a kernel's end before a process is given up
SHARES = 3  # processes of a tool and a side


# -- on the GPU ------------------------------------------------------------------------------------------------------


def child(mended: bool, first: int, last: int, progress: Path, verify: bool) -> None:
    """Launch the kernels from number ``first`` to ``last`` once each, noting each before it begins."""
    from numba import cuda

    importlib.import_module("numba.cuda.random")  # only then is there a `cuda.random`

    for i, pair in enumerate(pairs()):
        if not first <= i <= last or (pair.hangs and not mended):
            continue
        with progress.open("a") as file:
            file.write(f"{i} begins\n")
        trouble = launch(cuda, pair, mended, verify)
        with progress.open("a") as file:
            file.write(f"{i} ends {trouble}\n")
        if trouble and broken(cuda):
            os._exit(3)  # the context is lost, and with it this process


def launch(cuda: Any, pair: Pair, mended: bool, verify: bool) -> str:
    """One launch; what went wrong in words, if anything did."""
    args = arguments(cuda, pair)
    kernel = cuda.jit(lineinfo=True)(pair.function)
    try:
        for first, grid, block in pair.before:
            cuda.jit(getattr(first, "py_func", first))[grid, block](*args, mended)
        where = kernel if pair.cluster == 1 else clusters.in_clusters(kernel, pair.cluster)
        where[pair.grid, pair.block, 0, pair.sharedmem](*args, mended)
        cuda.synchronize()
        if not verify or pair.result is None:
            return ""
        expected = pair.result(*map(on_host, arguments(cuda, pair)))
        got = args[-1].copy_to_host()
        return "" if np.array_equal(got, np.broadcast_to(expected, got.shape)) else f"wrong: {got.ravel()[:8]}"
    except Exception as error:  # whatever the driver says is part of the answer
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"


def broken(cuda: Any) -> bool:
    """Whether an earlier error has made the context useless."""
    try:
        cuda.to_device(np.zeros(1)).copy_to_host()
    except Exception:  # any error means the same here
        return True
    return False


def arguments(cuda: Any, pair: Pair) -> list:
    """The arguments: arrays on the device, and maps of matrices, which are tuples of numbers."""
    given = pair.make(lambda shape, dtype: cuda.device_array(shape, dtype))
    return [cuda.to_device(a) if isinstance(a, np.ndarray) else a for a in given]


def on_host(argument: Any) -> Any:
    """An argument as `Pair.result` takes it."""
    return argument if isinstance(argument, tuple) else argument.copy_to_host()


def run_all(folder: Path) -> None:
    """All tools side by side; the GPU takes turns between them."""
    folder.mkdir(parents=True, exist_ok=True)
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    quiet = ["--report-api-errors", "no", "--print-limit", "0"]
    todo = [
        (tool, side, [sanitizer, "--tool", tool, *quiet, *options])
        for tool, options in TOOLS.items()
        for side in ("bug", "mended")
    ]
    todo.append(("none", "mended", []))
    jobs = [Job(folder, *one, share) for one in todo for share in range(SHARES)]
    while sum(job.step() for job in jobs):
        time.sleep(0.2)
    version = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False).stdout
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()[0]
    facts = {
        "device": smi.split(",")[0].strip(),
        "driver": smi.split(",")[1].strip(),
        "compute_sanitizer": "".join(re.findall(r"[Vv]ersion ([\d.]+)", version)[:1]),
        "numba_cuda": importlib.metadata.version("numba-cuda"),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "revision": os.environ.get("PMPP_REVISION", ""),
    }
    (folder / "facts.json").write_text(json.dumps(facts))


class Job:
    """One tool on a share of the bugs or of the look-alikes: one process, or several one after the other."""

    def __init__(self, folder: Path, tool: str, side: str, command: list[str], share: int) -> None:
        self.log, self.progress = folder / f"{tool}.{side}.{share}.log", folder / f"{tool}.{side}.{share}.progress"
        self.side, self.command, self.verify = side, command, tool == "none"
        self.first, self.last = len(pairs()) * share // SHARES, len(pairs()) * (share + 1) // SHARES - 1
        self.process, self.seen, self.began, self.since = None, -1, 0, 0.0
        self.log.write_text("")
        self.progress.write_text("")

    def step(self) -> bool:
        """Start, watch, or start again; whether there is more to do."""
        if self.first > self.last:
            return False
        if self.process is None:
            span = str(self.first), str(self.last)
            own = [sys.executable, "-m", __spec__.name, "--child", self.side, *span, str(self.progress)]
            with self.log.open("a") as log:
                self.process = subprocess.Popen(
                    [*self.command, *own, "verify" if self.verify else "-"], stdout=log, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
            self.began, self.since = self.progress.stat().st_size, time.monotonic() + 30  # starting takes a while
        size = self.progress.stat().st_size
        if size != self.seen:
            self.seen, self.since = size, max(self.since, time.monotonic())
        over = self.process.poll() is not None
        if not over and time.monotonic() - self.since > PATIENCE:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            over = True
            with self.progress.open("a") as file:
                file.write(f"{self._reached()} ends hangs\n")
        if over:
            stillborn = self.progress.stat().st_size == self.began
            self.first = self.last + 1 if stillborn else max(self._reached(), self.first) + 1
            self.process = None
        return True

    def _reached(self) -> int:
        lines = self.progress.read_text().split("\n")
        return max((int(line.split()[0]) for line in lines if line), default=self.first)


# -- from the logs ---------------------------------------------------------------------------------------------------


def named(log: str, pair: Pair) -> list[int] | None:
    """The lines that a log names for a kernel, counted from its `def`; None if it does not name the kernel."""
    pattern = re.compile(rf"::{pair.subject}::{pair.name}\[.*? in \w+\.py:(\d+)|::{pair.subject}::{pair.name}\[")
    found = [match.group(1) for match in pattern.finditer(log)]
    return sorted({int(line) - pair.first_line for line in found if line}) if found else None


def read(folder: Path) -> dict:
    """The record: which tool names which kernel, on which lines."""

    def joined(name: str) -> str:
        return "".join(path.read_text() for path in sorted(folder.glob(name)))

    logs = {(tool, side): joined(f"{tool}.{side}.*.log") for tool in TOOLS for side in ("bug", "mended")}
    ends = [line.partition(" ends ") for line in joined("none.mended.*.progress").splitlines()]
    wrong = [f"{pairs()[int(number)].name}: {trouble}" for number, _, trouble in ends if trouble]
    entries = {}
    for pair in pairs():
        reports = {tool: named(logs[tool, "bug"], pair) for tool in TOOLS}
        lines = {line - pair.first_line for line in pair.lines("BUG", "WITH")}
        entries[pair.name] = {
            "subject": pair.subject,
            "kind": pair.kind,
            "space": pair.space,
            "source": pair.source,
            "launched": not pair.hangs,
            "interpreter": judge.caught(pair),
            "tools": [tool for tool in TOOLS if reports[tool] is not None],
            "tools_by_line": [tool for tool in TOOLS if lines & set(reports[tool] or ())],
            "look_alike": {
                "interpreter": judge.silent(pair),
                "tools": [tool for tool in TOOLS if named(logs[tool, "mended"], pair) is None],
            },
        }
    about = json.loads((folder / "facts.json").read_text())
    return {"about": {**about, "wrong_results": wrong}, "subjects": SUBJECTS, "pairs": entries}


def write(record: dict) -> Path:
    """One pair a line, so that a later run shows as a readable difference."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in record["pairs"].items())
    head = ",\n".join(f" {json.dumps(key)}: {json.dumps(record[key])}" for key in ("about", "subjects"))
    path = sanitizers.RECORD
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{\n{head},\n "pairs": {{\n{rows}\n }}\n}}\n', encoding="utf-8")
    return path


if __name__ == "__main__":
    if sys.argv[1] == "--read":
        print(write(read(Path(sys.argv[2]))))
        print(sanitizers.table())
    elif sys.argv[1] == "--child":
        side, first, last, progress, verify = sys.argv[2:]
        child(side == "mended", int(first), int(last), Path(progress), verify == "verify")
    else:
        run_all(Path(sys.argv[1]))
