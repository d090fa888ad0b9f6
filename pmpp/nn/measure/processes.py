"""Parts of a measurement, each in a process of its own: all compile at once, and take turns on the GPU.

A network compiles some dozens of kernels before its first step, on one core. Where several networks are measured, or
several things about one, their processes compile at the same time. `turns` is what a process begins with, `answer` what
it ends with, and `answers` starts them.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

from pmpp.lab.measure.turns import Turns, compile_apart
from pmpp.nn.tape import state
from pmpp.runtime import device

__all__ = ["answer", "answers", "turns"]

RESULT = "found: "


def turns(lock: Path) -> Turns:
    """The turns of this process, which gives them up whenever it compiles; all that it needs is imported before."""
    began = time.perf_counter()
    import torch  # before the first turn: importing takes seconds
    from cupy.cuda import compiler
    from numba.cuda.dispatcher import CUDADispatcher

    made = Turns(lock)
    with made:
        device.on_gpu()

    def idle() -> None:
        """While a step is recorded nothing runs, and nobody may wait: a kernel that is compiled then has no turn."""
        if not state.capturing:
            torch.cuda.synchronize()

    compile_apart(made, CUDADispatcher, compiler, idle)
    print(f"imported: {time.perf_counter() - began:.1f} s", flush=True)
    return made


def answer(found: dict[str, typing.Any]) -> None:
    """Print what this process has found, for the one that started it."""
    print(RESULT + json.dumps(found), flush=True)


def answers(commands: Mapping[str, list[str]], seconds: float) -> Iterator[tuple[str, dict]]:
    """Start the modules, each with its arguments, and yield what they find with their names, as it comes.

    All else that they print is printed. Those that have not come to an end after ``seconds`` are ended.
    """
    began, lines, running = time.monotonic(), _Lines(), {}
    try:
        for name, command in commands.items():
            whole = [sys.executable, "-u", "-m", *command]
            running[name] = subprocess.Popen(whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            lines.read(name, running[name].stdout)
        left = set(running)
        while left:
            name, line = lines.next(seconds - (time.monotonic() - began))
            if name is None:
                print(f"not done after {seconds:.0f} s: {', '.join(sorted(left))}", flush=True)
                return
            if line is None:
                left.discard(name)
            elif line.startswith(RESULT):
                yield name, json.loads(line.removeprefix(RESULT))
            else:
                print(f"{time.monotonic() - began:6.1f} s {name}: {line}", flush=True)
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        lines.close()


class _Lines:
    """The lines that several processes print, as they come; None after the last one of each."""

    def __init__(self) -> None:
        self.queue: queue.Queue = queue.Queue()
        self.readers: list[threading.Thread] = []

    def read(self, name: str, stream: typing.Any) -> None:
        """Read the lines of a process from now on."""

        def body() -> None:
            with stream:
                for line in stream:
                    self.queue.put((name, line.rstrip("\n")))
            self.queue.put((name, None))

        self.readers.append(threading.Thread(target=body, daemon=True))
        self.readers[-1].start()

    def close(self) -> None:
        """Wait for the ends of all streams: their processes have ended."""
        for reader in self.readers:
            reader.join()

    def next(self, seconds: float) -> tuple[str | None, str | None]:
        """The next line and whose it is; (None, None) if none comes in time."""
        try:
            return self.queue.get(timeout=max(seconds, 0))
        except queue.Empty:
            return None, None
