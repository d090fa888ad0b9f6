"""Several processes measure the rooms on one GPU, in turns: `pmpp.lab.measure.bench --processes 14`.

The parent hands out workloads, one at a time to each process, and keeps what was measured. A process stays with a room,
since it has compiled the room's kernels; the rooms that take longest come first, and who has none left takes from the
room that has most left. It measures the design sizes first, of its rooms and of those that no process has yet. None of
them is left out for want of time.

First each process lets the libraries do what they do once, all at the same time, and only then the first workload is
handed out. A workload is one turn, from its inputs to its last check (`pmpp.lab.measure.turns`): no kernel is timed
while another process computes. So a contender gets a fixed time, and no share of a budget that waiting would use up:
DESIGN_SECONDS, or OTHER_SECONDS. A process that waits or compiles keeps its inputs meanwhile. So each workload first
reserves its memory, in the `Ledger`; what finds too little leaves its turn, and tries again.

What the host's clock times, NumPy and transfers, would suffer from compilers. It comes last, when no process on this
machine measures any more, of other parts neither (`Quiet`); then a process makes the inputs again, alone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import typing
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path

from pmpp.lab.measure import bench, timing
from pmpp.lab.measure.turns import Spent, Turns, compile_apart

__all__ = ["Ledger", "Plan", "Quiet", "run_rooms"]

# Of samples for a contender, at most. Nine out of ten that settle at all do so in a third of it.
DESIGN_SECONDS, OTHER_SECONDS = 0.25, 0.06
AT_LEAST = 2  # samples of what takes longer; and one that is checked
HOST_SECONDS, LEAST_HOST_SECONDS = 0.4, 0.05  # the same by the host's clock
WORTH_TAKING = 4  # workloads: of a room that has fewer left, its own process has them sooner than another compiles
CONTEXT = 2**31  # bytes of GPU memory that a process keeps for itself, about: its context, libraries' tables, pools
SMALL = 2**29  # bytes that a process may keep in its pools after a workload: to allocate them again takes time
ENOUGH = 2**35  # bytes: while so many are free, small pools disturb nobody
NAP = 0.05  # seconds until memory is looked for again

Task = tuple[str, int]  # a room, and a number in its WORKLOADS


# ----------------------------------------------------------------------------------------------------- who does what


class Plan:
    """Which process measures which workload. ``rooms``: the workloads of each, the rooms that take longest first.

    ``wanted`` says of a room and a workload whether it is to be measured.
    """

    def __init__(self, rooms: Mapping[str, Sequence[bench.Workload]], wanted: bench.Wanted = bench.everything) -> None:
        self.rooms = rooms
        self.left = {
            room: sorted(
                (number for number in range(len(some)) if wanted(room, some[number])),
                key=lambda number, some=some: not some[number].design,
            )
            for room, some in rooms.items()
        }
        self.owner: dict[str, int] = {}

    def next(self, process: int, late: bool = False) -> Task | None:
        """The next workload for a process, or None. When it is ``late`` only design sizes are measured."""
        own = [room for room in self.left if self.owner.get(room) == process]
        for room in own:
            if self._designs(room):
                return room, self.left[room].pop(0)
        free = next((room for room in self.left if room not in self.owner and self._has(room, late)), None)
        if free is not None:
            self.owner[free] = process
            return free, self.left[free].pop(0)
        for room in own:
            if self._has(room, late):
                return room, self.left[room].pop(0)
        room = max(self.left, key=lambda room: self._has(room, late), default=None)
        if room is None or self._has(room, late) < WORTH_TAKING:
            return None
        # From the end, where its own process comes last: that may be another family, with kernels of its own.
        return room, self.left[room].pop(self._has(room, late) - 1)

    def ended(self, process: int) -> None:
        """The process is no more: others may have its rooms."""
        self.owner = {room: one for room, one in self.owner.items() if one != process}

    def _designs(self, room: str) -> int:
        return sum(self.rooms[room][number].design for number in self.left[room])

    def _has(self, room: str, late: bool) -> int:
        return self._designs(room) if late else len(self.left[room])


class Ledger:
    """The GPU's memory, among processes. ``cells`` is shared: what each has reserved, and in the last who waits.

    Only who has the turn may look or write. While a process waits for more than there is, no other begins: else small
    workloads would keep a large one waiting for ever.
    """

    def __init__(self, cells: typing.Any, process: int, capacity: int) -> None:
        self.cells, self.process, self.capacity = cells, process, capacity

    @staticmethod
    def cells_for(processes: int, context: typing.Any) -> typing.Any:
        return context.Array("q", processes + 1, lock=False)

    @property
    def of_others(self) -> int:
        return sum(self.cells[:-1]) - self.cells[self.process]

    def reserve(self, needed: int) -> bool:
        """Reserve so many bytes; False if they are not there, or another waits. Who is alone gets what it wants."""
        if self.cells[-1] not in (0, self.process + 1):
            return False
        if self.of_others and self.of_others + needed > self.capacity:
            self.cells[-1] = self.process + 1
            return False
        self.cells[self.process], self.cells[-1] = needed, 0
        return True

    def release(self) -> None:
        """Nothing is reserved by this process, and it does not wait."""
        self.cells[self.process] = 0
        if self.cells[-1] == self.process + 1:
            self.cells[-1] = 0


class Quiet:
    """A lock of the machine: shared by all who measure on a GPU, and exclusive for who needs a quiet machine.

    ``seconds``: for what is measured then, in all.
    """

    def __init__(self, path: Path | str | None = None, seconds: float = 60.0) -> None:
        self.path = path or Path(tempfile.gettempdir()) / "pmpp-bench-quiet.lock"
        self.seconds = seconds

    @contextlib.contextmanager
    def shared(self) -> Iterator[int]:
        """The lock's file, which is not quiet yet."""
        import fcntl

        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield file
        finally:
            os.close(file)

    def wait(self, file: int, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Wait until nobody else has the lock; False if that is not so when the clock says ``until``."""
        import fcntl

        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if clock() >= until:
                    return False
                time.sleep(NAP)
            else:
                return True


# ---------------------------------------------------------------------------------------------------------- a process


@dataclass
class Got:
    """What came of a workload: its entries, sentences for what failed, the time, and whether the GPU still works."""

    entries: list[bench.Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)
    usable: bool = True


def measure_in_turn(
    workload: bench.Workload,
    *,
    turns: Turns,
    ledger: Ledger,
    timer: timing.GpuTimer,
    until: float,
    clock: Callable[[], float] = time.monotonic,
    timed_by: Callable[[], float] = time.perf_counter,
    nap: Callable[[float], object] = time.sleep,
) -> Got:
    """A workload's times on the GPU, in a turn in which its memory is there."""
    needed, before = bench.bytes_needed(workload, timer.l2_bytes), turns.spent
    while True:
        late = clock() >= until
        with turns:
            if ledger.reserve(needed):
                alone = not ledger.of_others
                free = bench.free_bytes(needed)
                try:
                    if needed <= free:
                        seconds = DESIGN_SECONDS if workload.design else OTHER_SECONDS
                        got = _measured(workload, bench.SHORTEST if late else seconds, timer, timed_by)
                        break
                    if alone:
                        got = Got([], [bench.too_large(workload, needed, free)])
                        break
                finally:
                    _give_back_memory(needed)
                    ledger.release()
            elif late and not workload.design:
                ledger.release()
                got = Got([], [f"{workload.label} was left out: it waited for memory until the time was used up"])
                break
        nap(NAP)
    got.spent = turns.spent - before
    return got


def _measured(workload: bench.Workload, seconds: float, timer: timing.GpuTimer, timed_by: Callable[[], float]) -> Got:
    try:
        got = Got(*bench.on_gpu(bench.stage_of(workload, timer), seconds, timer, timed_by, AT_LEAST))
    except Exception as error:  # one workload must not cost the others their measurements
        got = Got([], [f"{workload.label} FAILED: {type(error).__name__}: {error}"])
    if got.notes:
        gc.collect()  # an exception holds the arrays of where it was raised
    try:
        timer.synchronize()
    except Exception as error:  # after such an error the process can do nothing more on the GPU
        got.notes.append(f"{workload.label} FAILED: it left the GPU unusable: {type(error).__name__}: {error}")
        got.usable = False
    return got


def _give_back_memory(used: int = SMALL + 1) -> None:
    """Empty the pools of what they have: others want it. A GPU that is unusable cannot, and ends with the process."""
    with contextlib.suppress(Exception):
        bench.free_bytes(math.inf if used > SMALL else ENOUGH)


def measure_on_host(
    workload: bench.Workload,
    entries: Sequence[bench.Entry],
    seconds: float,
    *,
    turns: Turns,
    timer: timing.GpuTimer,
    timed_by: Callable[[], float] = time.perf_counter,
) -> Got:
    """The workload's entries with what the host's clock times, on a machine that is quiet."""
    before = turns.spent
    with turns:
        try:
            got = Got(*bench.on_host(bench.Stage(workload, 1), entries, seconds, timer, timed_by, at_least=1))
        except Exception as error:
            got = Got(list(entries), [f"{workload.label} by the host's clock FAILED: {type(error).__name__}: {error}"])
        _give_back_memory()
    got.spent = turns.spent - before
    return got


def serve(
    parent: typing.Any,
    workloads: Callable[[str], Sequence[bench.Workload]],
    on_gpu: Callable[[bench.Workload], Got],
    on_host: Callable[[bench.Workload, Sequence[bench.Entry], float], Got],
) -> None:
    """Do what the parent sends, until it is no more."""
    with contextlib.suppress(EOFError, BrokenPipeError):
        parent.send(None)  # it is ready
        while True:
            (room, number), more = parent.recv()
            workload = workloads(room)[number]
            got = on_gpu(workload) if more is None else on_host(workload, *more)
            parent.send(got)
            if not got.usable:
                return


def warm_up() -> None:
    """Let the libraries do what they do once in a process: it takes seconds, in which no other could have the GPU.

    They make contexts and handles, load themselves, and compile what most checks need. What fails here fails again
    where it is measured, and is named there.
    """
    from pmpp.lab.measure import arrays
    from pmpp.runtime import device

    with contextlib.suppress(Exception):
        x = arrays.normal((64, 64), 1)
        exact = arrays.view(x).astype("f8")
        arrays.worst(abs(arrays.view(x) - exact * 1.0), 1e-6 * abs(exact) + (exact**2) ** 0.5 / 2)
        arrays.view(arrays.normal(64, 1, "float16")).astype("f8") @ exact
        bench.fill_with_nan(x)
        device.to_host(device.empty(64, "float32"))
    with contextlib.suppress(Exception):
        torch, _ = bench.adapter("torch")
        for dtype in (torch.float32, torch.float16):
            x = torch.ones((64, 64), device="cuda", dtype=dtype)
            torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3])
            (x @ x + x).softmax(-1).sum().item()
    bench.free_bytes()


def _process(
    parent: typing.Any, number: int, cells: typing.Any, capacity: int, lock: str, until: float, quick: bool
) -> None:
    """A process, on the GPU."""
    for one in (signal.SIGINT, signal.SIGTERM):  # sent to all of a group, the parent too, which ends this process
        signal.signal(one, signal.SIG_IGN)
    for package in ("torch", "cupy.cuda.compiler"):  # before the first turn: importing takes seconds
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    from numba.cuda.dispatcher import CUDADispatcher

    from pmpp.runtime import device

    warnings.filterwarnings("ignore", message=".*Grid size .* under-utilization")
    turns, ledger = Turns(lock), Ledger(cells, number, capacity)
    cuda = device.backend().cuda
    compile_apart(turns, CUDADispatcher, sys.modules.get("cupy.cuda.compiler"), cuda.synchronize)
    warm_up()

    @functools.cache
    def timer() -> timing.GpuTimer:
        with turns:  # it measures how long its own kernel takes
            return timing.gpu_timer()

    serve(
        parent,
        lambda room: bench.workloads_of(room, quick),
        lambda workload: measure_in_turn(workload, turns=turns, ledger=ledger, timer=timer(), until=until),
        lambda workload, entries, seconds: measure_on_host(workload, entries, seconds, turns=turns, timer=timer()),
    )


# --------------------------------------------------------------------------------------------------------- the parent


class _Run:
    """The parent's side: what is where, and what came of it."""

    def __init__(
        self,
        rooms: Mapping[str, Sequence[bench.Workload]],
        progress: Callable[[str], object],
        wanted: bench.Wanted,
    ) -> None:
        self.rooms, self.progress = rooms, progress
        self.plan = Plan(rooms, wanted)
        self.total = sum(map(len, self.plan.left.values()))
        self.got: dict[Task, Got] = {}
        self.by: dict[Task, int] = {}
        self.notes: dict[str, list[str]] = defaultdict(list)
        self.spent: dict[str, Spent] = defaultdict(Spent)
        self.on_quiet: set[Task] = set()  # that the host's clock has timed
        self.idle: set[int] = set()
        self.doing: dict[int, Task] = {}
        self.pipes: dict[int, typing.Any] = {}

    def label(self, task: Task) -> str:
        return self.rooms[task[0]][task[1]].label

    def ask(self, process: int, task: Task, more: tuple | None = None) -> None:
        self.idle.discard(process)
        self.doing[process] = task
        with contextlib.suppress(BrokenPipeError):  # `wait` sees that it is no more
            self.pipes[process].send((task, more))

    def wait(self, seconds: float | None = None) -> None:
        """Take what processes send, and notice those that end."""
        by_pipe = {pipe: process for process, pipe in self.pipes.items()}
        for pipe in connection.wait(list(by_pipe), seconds):
            process = by_pipe[pipe]
            try:
                got = pipe.recv()
            except (EOFError, ConnectionResetError):
                self.ended(process)
                continue
            self.idle.add(process)
            if got is not None:
                task = self.doing.pop(process)
                self.got[task], self.by[task] = got, process
                self.notes[task[0]] += got.notes
                self.spent[task[0]] += got.spent

    def ended(self, process: int) -> None:
        self.pipes.pop(process).close()
        self.idle.discard(process)
        self.plan.ended(process)
        task = self.doing.pop(process, None)
        if task is not None:
            self.notes[task[0]].append(f"{self.label(task)} FAILED: the process that measured it ended")

    # ---- two parts

    def on_gpu(self, until: float, clock: Callable[[], float], freed: Callable[[int], object]) -> None:
        """Hand out all workloads, and wait until they are measured."""
        began = clock()
        while set(self.pipes) - self.idle:  # all of them are ready first: how they begin would disturb times
            self.wait()
        self.progress(f"{len(self.pipes)} processes are ready after {clock() - began:.0f} s")
        there, said, shown = set(self.pipes), set(), clock()
        while self.pipes:
            for process in sorted(self.idle):
                if (task := self.plan.next(process, clock() >= until)) is not None:
                    self.ask(process, task)
            if not self.doing and self.idle:
                break
            self.wait()
            for process in there - set(self.pipes):
                freed(process)
            there = set(self.pipes)
            self._say_who_is_done(said, began, clock)
            if clock() - shown >= 10:
                shown = clock()
                self.progress(f"{shown - began:4.0f} s: {len(self.got)} of {self.total} workloads")
        why = "the time was used up" if self.pipes else "no process was left to measure it"
        for room, numbers in self.plan.left.items():
            self.notes[room] += [f"{self.label((room, number))} was left out: {why}" for number in numbers]
            numbers.clear()

    def _say_who_is_done(self, said: set[str], began: float, clock: Callable[[], float]) -> None:
        busy = {task[0] for task in self.doing.values()}
        for room in {room for room, left in self.plan.left.items() if not left} - busy - said:
            said.add(room)
            self.progress(f"{clock() - began:4.0f} s, {room}: {_in_words(self.spent[room])}")

    def on_host(self, until: float, clock: Callable[[], float]) -> None:
        """One after the other, what the host's clock times: design sizes first, then small before large."""
        tasks = self.to_time_on_host()
        left = sum(self._host_weight(task) for task in tasks)
        for number, task in enumerate(tasks):
            process = self.by[task] if self.by[task] in self.idle else next(iter(sorted(self.idle)), None)
            remaining = until - clock()
            if process is None or remaining <= 0:
                self.lacking(tasks[number:], "the time for it was used up")
                return
            seconds = max(LEAST_HOST_SECONDS, min(HOST_SECONDS, 0.5 * remaining / left))  # half goes to the inputs
            left -= self._host_weight(task)
            self.ask(process, task, (self.got[task].entries, seconds))
            while process in self.doing:
                self.wait()
            self.on_quiet.add(task)

    def to_time_on_host(self) -> list[Task]:
        """What the host's clock has not timed yet."""
        tasks = [task for task in self.got if self._host_weight(task) and task not in self.on_quiet]
        return sorted(tasks, key=lambda task: (not self._workload(task).design, self._workload(task).cost.bytes))

    def lacking(self, tasks: Sequence[Task], why: str) -> None:
        for room, number in tasks:
            self.notes[room].append(f"{self.label((room, number))} was not timed by the host's clock: {why}")

    def _workload(self, task: Task) -> bench.Workload:
        return self.rooms[task[0]][task[1]]

    def _host_weight(self, task: Task) -> int:
        return len(self._workload(task).host) + self._workload(task).end_to_end

    def measured(self) -> dict[str, bench.Measured]:
        found = {}
        for room, workloads in self.rooms.items():
            entries = [one for task, got in self.got.items() if task[0] == room for one in got.entries]
            spent = self.spent[room]
            found[room] = bench.Measured(
                bench.as_written(entries, workloads), self.notes[room], spent.held + spent.compiled
            )
        return found


def _in_words(spent: Spent) -> str:
    return f"{spent.held:.1f} s in turns, {spent.compiled:.1f} s compiling, {spent.waited:.1f} s waiting"


def run_rooms(
    rooms: Mapping[str, Sequence[bench.Workload]],
    processes: int,
    *,
    budget: float,
    memory: int,
    quick: bool = False,
    quiet: Quiet | None = None,
    wanted: bench.Wanted = bench.everything,
    process: Callable = _process,
    progress: Callable[[str], object] = lambda words: print(words, flush=True),
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, bench.Measured]:
    """Measure rooms by so many processes on one GPU of ``memory`` bytes; ``rooms``: as in `Plan`.

    What is no design size is left out after ``budget`` seconds. KeyboardInterrupt ends it early: what was measured
    until then is returned, and the notes say so.
    """
    quiet = quiet or Quiet()
    began = clock()
    until = began + budget
    context = multiprocessing.get_context("spawn")
    run, started = _Run(rooms, progress, wanted), []
    cells = Ledger.cells_for(processes, context)
    capacity = max(0, int(0.9 * memory) - processes * CONTEXT)
    with tempfile.TemporaryDirectory() as folder, quiet.shared() as file:
        try:
            for number in range(processes):
                run.pipes[number], theirs = context.Pipe()
                args = theirs, number, cells, capacity, str(Path(folder) / "gpu.lock"), until, quick
                started.append(context.Process(target=process, args=args, daemon=True))
                started[-1].start()
                theirs.close()  # or the end of the process would not be seen
            run.on_gpu(until, clock, lambda number: Ledger(cells, number, capacity).release())
            progress(f"the GPU's times were taken after {clock() - began:.0f} s")
            if tasks := run.to_time_on_host():
                if quiet.wait(file, max(until, clock()) + 2 * quiet.seconds, clock):
                    asked = clock()
                    run.on_host(asked + quiet.seconds, clock)
                    progress(f"the host's times were taken in {clock() - asked:.0f} s")
                else:
                    run.lacking(tasks, "the machine did not become quiet")
        except KeyboardInterrupt:
            busy = {room for room, _ in run.doing.values()}
            unfinished = [room for room, left in run.plan.left.items() if left or room in busy]
            for room in unfinished:
                run.notes[room].append("the run was told to stop before all was measured")
            for task in run.doing.values():
                progress(f"in the midst of {task[0]}, {run.label(task)}")
            for room in unfinished:
                done = sum(task[0] == room for task in run.got)
                progress(f"{room}: {done} of {len(rooms[room])} workloads, {_in_words(run.spent[room])}")
            run.lacking(run.to_time_on_host(), "the run was told to stop")
        finally:
            for one in started:
                one.kill()  # it has nothing that is not here
            for one in started:
                one.join()
    total = sum(run.spent.values(), Spent())
    progress(f"all: {_in_words(total)}; {clock() - began:.0f} s")
    return run.measured()
