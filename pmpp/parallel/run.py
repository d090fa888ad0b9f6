"""Start a script as several ranks: ``python -m pmpp.parallel.run -n 4 script.py``.

For example, ``total.py``, in which every rank has a vector of its own and gets the sum of all::

    import numpy as np

    from pmpp import parallel

    group = parallel.init()
    mine = np.full(3, 10.0**group.rank, np.float32)
    total = group.all_reduce(mine)
    print(f"I had {mine}, and all of us have {total.copy_to_host()}")

    $ python -m pmpp.parallel.run -n 4 total.py
    [0] I had [1. 1. 1.], and all of us have [1111. 1111. 1111.]
    [2] I had [100. 100. 100.], and all of us have [1111. 1111. 1111.]
    [1] I had [10. 10. 10.], and all of us have [1111. 1111. 1111.]
    [3] I had [1000. 1000. 1000.], and all of us have [1111. 1111. 1111.]

Each rank is a process with the same arguments. Its lines are passed on with its number in front. Ranks run at the same
time, so the order of their lines differs from run to run.

**When a rank fails.** A rank fails if it raises, calls ``sys.exit`` with another status than 0, or is killed, or if
its calls do not fit those of others (`pmpp.parallel.switchboard`). The first failure is printed, with the rank, the
file and the line. All others are ended: they get SIGTERM, and SIGKILL after 2 seconds. The exit status is that of the
failed rank; 128 and the signal's number for one that was killed, as in a shell; 124 after ``--timeout``; 130 after
Ctrl-C.

A rank that waits for a rank that has ended, or in a circle, is told so at once. A rank that computes for ever is not:
nothing says that it will not come back. Only ``--timeout`` ends that, and prints what each rank was doing.

**No process stays.** Each rank has a process group. When it ends, what it has started in the background is killed, too.
If the starter itself is killed, `pmpp.parallel.guard` ends the ranks.

**Backends.** "simulated": ranks on this machine, whose calls are all checked (`pmpp.parallel.processes`). "mpi": the
ranks are started by ``mpirun``, which has to be installed (`pmpp.parallel.mpi`). The first does not use it. "nccl" and
"peer": ranks on this machine with a GPU each, whose arrays travel from GPU to GPU (`pmpp.parallel.on_gpus`). The same
script runs under ``torchrun`` and ``srun`` (`pmpp.parallel.rendezvous`), which take our place.

**What is taken care of.** A rank reads no standard input. Libraries that use threads for products of matrices are told
to share the cores, by OMP_NUM_THREADS, unless you have set it.

**What it relies on.** Process groups and signals, so Unix; it is tested on Linux. macOS has the same calls. Windows has
no process groups of this kind: there a rank that fails ends the others, and ranks end with the starter, but processes
that ranks have started by themselves may stay.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable
from pathlib import Path

from pmpp.parallel import environment, processes, switchboard
from pmpp.parallel.switchboard import CommunicationError

UNIX = os.name != "nt"
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LAST_WORDS = 1.0  # seconds that a rank has to end after it has said that it fails, and for its last output to arrive
TIMEOUT = 124  # exit status, as of the command `timeout`
BACKENDS = ("simulated", "mpi", *environment.BACKENDS)
CODE = "from pmpp.parallel.{} import main; main()"  # what a rank executes

_printing = threading.Lock()


def say(text: str) -> None:
    """Print a message of the starter."""
    with _printing:
        sys.stdout.flush()
        print(f"pmpp.parallel.run: {text}", file=sys.stderr, flush=True)


def status_of(code: int) -> int:
    """A process's return code as an exit status: 128 + n for signal n."""
    return 128 - code if code < 0 else code


def end_of(code: int) -> str:
    """How a process has ended that said nothing itself: a predicate."""
    if code >= 0:
        return f"exited with status {code} by os._exit or the like"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-code}{name}"


# ------------------------------------------------------------------------------------------------------------ processes


class Guard:
    """The process that ends the others if this one is killed. Where there are no process groups it does nothing."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._process = None
        if UNIX:
            path = Path(__file__).with_name("guard.py")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def order(self, line: str) -> None:
        """See `pmpp.parallel.guard`."""
        if self._process is not None:
            with self._writing, contextlib.suppress(OSError):
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()

    def close(self) -> None:
        """Let it go: nothing is left."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()


class Child:
    """A process with a process group of its own. Threads pass on what it prints, and wait for its end.

    Args:
        command, environment: of the process.
        label: changes each line of its output.
        guard: is told of the process group.
        ended: called, from a thread, when the process has ended and its output has been passed on.
        broken: called when nobody reads our output any more.
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        label: Callable[[bytes], bytes],
        guard: Guard,
        ended: Callable[[], None],
        broken: Callable[[], None],
    ) -> None:
        own = {"start_new_session": True} if UNIX else {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **own,
        )
        self.over = threading.Event()
        self._guard, self._label, self._ended, self._broken = guard, label, ended, broken
        self._reaping = threading.Lock()
        guard.order(f"+{self.process.pid}")
        self._pumps = [
            threading.Thread(target=self._pump, args=(source, target), daemon=True)
            for source, target in ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr))
        ]
        for thread in (*self._pumps, threading.Thread(target=self._wait, daemon=True)):
            thread.start()

    def _pump(self, source: typing.BinaryIO, target: typing.TextIO) -> None:
        with source:
            for line in source:
                text = self._label(line if line.endswith(b"\n") else line + b"\n")
                try:
                    with _printing:
                        target.buffer.write(text)
                        target.flush()
                except OSError:
                    self._broken()

    def _wait(self) -> None:
        """Wait for the end. What is left of the process group is killed before its number can be used again."""
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self.process.wait()
        with self._reaping:
            if UNIX:
                self._signal(signal.SIGKILL)
            self.process.wait()
        self._guard.order(f"-{self.process.pid}")
        for pump in self._pumps:
            pump.join(LAST_WORDS)
        self.over.set()
        self._ended()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def end(self, hard: bool) -> None:
        """Ask the process and those that it started to end; ``hard`` does not ask."""
        with self._reaping:
            if self.process.returncode is not None:
                return
            if UNIX:
                self._signal(signal.SIGKILL if hard else signal.SIGTERM)
            else:
                self.process.kill()


def end_all(children: list[Child]) -> None:
    """End what still runs, within seconds."""
    until = time.monotonic() + GRACE
    try:
        for child in children:
            child.end(hard=False)
        for child in children:
            child.over.wait(max(0.0, until - time.monotonic()))
    finally:  # a second Ctrl-C gets here, too
        for child in children:
            child.end(hard=True)
        for child in children:
            child.over.wait(2 * LAST_WORDS)


class Stopped(BaseException):
    """A signal tells the starter to stop."""


def stop_on_signals() -> None:
    """SIGTERM and SIGHUP become an exception, as Ctrl-C does by itself."""

    def stop(number: int, frame: typing.Any) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough: what follows ends the ranks
        raise Stopped(number)

    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)


# ---------------------------------------------------------------------------------------------------------- the starter


class Starter:
    """One run of several ranks as processes of this machine.

    ``on_gpus``: the backend that moves arrays from GPU to GPU, if one is to do it.

    Attributes: until, the time of `time.monotonic` at which the ranks are ended; None for never.
    """

    def __init__(self, size: int, script: list[str], timeout: float | None, on_gpus: str = "") -> None:
        self.size, self.script, self.timeout, self.on_gpus = size, script, timeout, on_gpus
        self.until: float | None = None
        self.events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self.exchange = processes.Exchange(size, lambda rank: self.events.put(("failed", rank)))
        self.guard = Guard()
        self.children: list[Child] = []
        if self.exchange.folder is not None:
            self.guard.order(self.exchange.folder)

    def carry_out(self) -> int:
        """Start the ranks, wait for them, and return the exit status."""
        try:
            self._start()
            if self.timeout is not None:
                self.until = time.monotonic() + self.timeout
            return self._watch()
        except KeyboardInterrupt:
            say(f"stopped by Ctrl-C: {self._doings()}")
            return 128 + signal.SIGINT
        except Stopped as stop:
            say(f"stopped by signal {stop.args[0]}: {self._doings()}")
            return 128 + stop.args[0]
        finally:
            end_all(self.children)
            self.exchange.close()
            self.guard.close()

    def _start(self) -> None:
        cores = str(max(1, (os.cpu_count() or 1) // self.size))
        shared = {"OMP_NUM_THREADS": cores, **os.environ, **self.exchange.environment, "PYTHONUNBUFFERED": "1"}
        if self.on_gpus:
            shared[environment.CHOICE] = self.on_gpus
        for rank in range(self.size):
            self.children.append(
                Child(
                    [sys.executable, "-c", CODE.format("processes"), *self.script],
                    shared | {processes.RANK: str(rank)},
                    lambda line, rank=rank: b"[%d] " % rank + line,
                    self.guard,
                    lambda rank=rank: self.events.put(("ended", rank)),
                    lambda rank=rank: self.events.put(("broken", rank)),
                )
            )

    def _watch(self) -> int:
        """Wait until all ranks have ended, or one has failed."""
        left = set(range(self.size))
        while left:
            if self.until is not None and time.monotonic() >= self.until:
                return self._late()
            wait = 1.0 if self.until is None else min(1.0, max(0.0, self.until - time.monotonic()))
            try:
                what, rank = self.events.get(timeout=wait)  # with a limit, or Windows would not see Ctrl-C
            except queue.Empty:
                continue
            if what == "broken":
                return 128 + getattr(signal, "SIGPIPE", 13)
            if what == "failed":
                return self._failure(rank)
            self.exchange.gone[rank].wait(LAST_WORDS)  # then all that it has said is known
            note, code = self.exchange.notes.get(rank, {}), self.children[rank].process.returncode
            if code or note.get("failed"):
                return self._failure(rank)
            left.discard(rank)
            self.exchange.ended(rank, f"it {note.get('how') or end_of(code)}")
        return 0

    # -------------------------------------------------------------------------------------------------------- messages

    def _failure(self, rank: int) -> int:
        """Print how a rank has failed. Of an error that several are told, the one that made the mistake is asked."""
        error = self.exchange.board.error
        if error is not None and error.ranks:
            rank = self._culprit(error, rank)
        child = self.children[rank]
        child.over.wait(LAST_WORDS)
        note, code = self.exchange.notes.get(rank, {}), child.process.returncode
        how = note["how"] if note.get("failed") else end_of(code)
        if not note.get("failed") and "how" in note:
            how = f"{note['how']}, and then {how}"
        elif not note.get("failed"):
            how += f"; it {self.exchange.last_call(rank)}"
        trace = f"\n{note['traceback'].rstrip()}" if "traceback" in note else ""
        others = self._doings(but=rank)
        say(f"rank {rank} {how}{trace}" + (f"\nThe others were ended: {others}" if others else ""))
        return status_of(code) if code else note.get("status", 1) & 0xFF or 1

    def _culprit(self, error: CommunicationError, rank: int) -> int:
        """The first rank of an error that fails by it, within a moment; else the one that has."""
        until = time.monotonic() + LAST_WORDS
        while time.monotonic() < until:
            if self.exchange.notes.get(error.ranks[0], {}).get("failed"):
                return error.ranks[0]
            if self.children[error.ranks[0]].over.is_set():
                break
            time.sleep(0.01)
        return rank

    def _late(self) -> int:
        say(f"the time is over (--timeout): {self._doings(ask=True)}")
        return TIMEOUT

    def _doings(self, but: int | None = None, ask: bool = False) -> str:
        """What the ranks do that have not ended, those that do the same together."""
        found: dict[str, list[int]] = {}
        for rank in range(len(self.children)):
            note = self.exchange.notes.get(rank, {})
            if rank == but or note.get("failed") or self.children[rank].over.is_set():
                continue
            what = self.exchange.doing(rank) if ask else self.exchange.last_call(rank)
            found.setdefault(what, []).append(rank)
        return "; ".join(f"{switchboard._ranks(ranks)} {what}" for what, ranks in found.items())


# ----------------------------------------------------------------------------------------------------------------- mpi


TAG = re.compile(rb"^\[(\d+)\](?:<std(?:out|err)>:)? ?")  # of Open MPI 5 and of MPICH, in front of a line
PIECE = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err)>:")  # of Open MPI 4, in front of what it reads at once


def labelled(line: bytes) -> bytes:
    """A line that mpirun prints, with the number of its rank in front as ours have it.

    What a rank prints without an end of line, as codes for colours when it ends, is followed in Open MPI 4 by what
    another rank prints. That begins a line here.

    >>> labelled(b"[1,0]<stdout>:yes"), labelled(b"[1] no")
    (b'[0] yes', b'[1] no')
    >>> labelled(b"[1,0]<stdout>:o[1,0]<stdout>:ne[1,1]<stdout>:two")
    b'[0] one\\n[1] two'
    """
    text, *tagged = PIECE.split(line)
    if not tagged:
        return TAG.sub(rb"[\1] ", line)
    before = None
    for rank, piece in zip(tagged[::2], tagged[1::2], strict=True):
        if rank != before:
            text += b"\n" * bool(text) + b"[%b] " % rank
        text, before = text + piece, rank
    return text


def mpi_command(size: int, script: list[str]) -> list[str]:
    """The command line of ``mpirun``. Raises RuntimeError where there is none."""
    mpirun = shutil.which("mpirun", path=os.path.dirname(sys.executable)) or shutil.which("mpirun")
    if mpirun is None:
        raise RuntimeError('there is no mpirun: install one, for example with pip install "pmpp-workbook[mpi]"')
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" in version or "OpenRTE" in version:
        options = ["--output", "rank"] if int(re.search(r"\) (\d+)\.|$", version)[1] or 5) >= 5 else ["--tag-output"]
        options += ["--oversubscribe"] + ["--allow-run-as-root"] * (UNIX and os.geteuid() == 0)
    else:
        options = ["-prepend-rank"] if "HYDRA" in version else []
    return [mpirun, *options, "-n", str(size), sys.executable, "-c", CODE.format("mpi"), *script]


def carry_out_by_mpi(size: int, script: list[str], timeout: float | None) -> int:
    """Start ``mpirun``, which starts the ranks and ends them; return its exit status."""
    command = mpi_command(size, script)
    guard, ended = Guard(), queue.SimpleQueue()
    children: list[Child] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    try:
        child = Child(
            command,
            environment,
            labelled,
            guard,
            lambda: ended.put(None),
            lambda: ended.put(128 + getattr(signal, "SIGPIPE", 13)),
        )
        children.append(child)
        until = None if timeout is None else time.monotonic() + timeout
        while until is None or time.monotonic() < until:
            with contextlib.suppress(queue.Empty):
                status = ended.get(timeout=1.0 if until is None else min(1.0, max(0.0, until - time.monotonic())))
                return status_of(child.process.returncode) if status is None else status
        say("the time is over (--timeout)")
        return TIMEOUT
    except KeyboardInterrupt:
        say("stopped by Ctrl-C")
        return 128 + signal.SIGINT
    except Stopped as stop:
        say(f"stopped by signal {stop.args[0]}")
        return 128 + stop.args[0]
    finally:
        end_all(children)
        guard.close()


# -------------------------------------------------------------------------------------------------------- command line


def parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m pmpp.parallel.run", description="Start a script as several ranks on this machine."
    )
    made.add_argument("-n", type=int, required=True, metavar="N", help="how many ranks")
    made.add_argument("--backend", choices=BACKENDS, default="simulated", help="what carries the messages")
    made.add_argument("--timeout", type=float, metavar="S", help="end all ranks after S seconds")
    made.add_argument("--report", action="store_true", help="print what the ranks have sent to one another")
    made.add_argument("-m", dest="module", action="store_true", help="the script is the name of a module")
    made.add_argument("script", help="what every rank runs")
    made.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return made


def main(argv: list[str] | None = None) -> int:
    """Start a script as several ranks. Returns the exit status."""
    options = parser()
    given = options.parse_args(argv)
    if given.n < 1:
        options.error(f"-n must be at least 1, was {given.n}")
    if given.timeout is not None and not given.timeout > 0:
        options.error(f"--timeout must be a number of seconds greater than 0, was {given.timeout:g}")
    if not given.module and not os.path.isfile(given.script):
        options.error(f"there is no file {given.script}")
    script = ["-m"] * given.module + [given.script, *given.args]
    if given.backend == "mpi":
        if given.report:
            options.error("--report needs the backend simulated: MPI does not say what it sends")
        try:
            return carry_out_by_mpi(given.n, script, given.timeout)
        except RuntimeError as error:
            options.error(str(error))
    on_gpus = given.backend if given.backend in environment.BACKENDS else ""
    if on_gpus and given.report:
        options.error(f"--report needs the backend simulated: {on_gpus} does not say what it sends")
    starter = Starter(given.n, script, given.timeout, on_gpus)
    status = starter.carry_out()
    if given.report:
        print(starter.exchange.report())
    return status


if __name__ == "__main__":
    stop_on_signals()
    sys.exit(main())
