"""A model of a host, a GPU and its streams: what must come before what, where two operations race, and when each runs.

A `Program` is told what the host does, in order. It runs nothing, and has no clock. It knows of each operation how long
it takes, what it reads and what it writes. Its GPU does one copy in each direction at a time, and one kernel: several
streams do not make it faster, they only take away an order.

    program = Program()
    program.fill("pinned", 0, us=5)                  # the host writes batch 0 into a buffer
    program.copy("pinned", "there", "copies", us=7)  # queued on a stream
    arrived = program.record("copies")               # an event
    program.wait("compute", arrived)                 # a stream waits, and the host goes on
    program.kernel("there", "compute", us=4)
    program.races()                                  # [], and without the wait [(1, 4)]

Chapter: notebooks/90_feeding_the_gpu.ipynb.
Source: L. Lamport, Time, Clocks, and the Ordering of Events in a Distributed System (1978).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["Event", "Operation", "Program", "Race", "describe"]


@dataclass(frozen=True)
class Operation:
    """What is done where, and how long it takes.

    what     "fill", "copy", "copy back", "kernel" or "wait"
    row      "host" or the name of a stream
    us       microseconds
    reads    the names of what it reads, and `writes` of what it writes
    after    the numbers of the operations that must have ended before it begins
    batch    of a fill: which; else None
    """

    what: str
    row: str
    us: float
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    batch: int | None = None


@dataclass(frozen=True)
class Event:
    """A mark in a stream: behind the operation of this number, or None where nothing was queued before."""

    number: int | None


@dataclass(frozen=True)
class Race:
    """Two operations that use the same memory, one of them to write, and have no order."""

    first: int
    second: int
    memory: str
    kind: str  # "filled too early", "used too early", "overwritten too early" or "written twice"


@dataclass
class Program:
    """What a host queues. ``launch`` is how long queueing one operation keeps it busy, in microseconds."""

    launch: float = 0.0
    operations: list[Operation] = field(default_factory=list)
    _last: dict[str, int] = field(default_factory=dict)  # the last operation of each row
    _waits: dict[str, list[int]] = field(default_factory=dict)  # of a stream: what its next operation waits for
    _before: list[int] = field(default_factory=list)  # of each operation: a bit for each that ends before it begins
    _issued: list[float] = field(default_factory=list)  # when the host queued each
    _ends: list[float] = field(default_factory=list)
    _engines: dict[str, float] = field(default_factory=dict)  # when each is free
    _now: float = 0.0  # of the host

    # ------------------------------------------------------------------------------------------------- what is queued

    def fill(self, buffer: str, batch: int, us: float = 1.0) -> None:
        """The host writes a batch into a buffer. It returns when that is done."""
        self._add(Operation("fill", "host", us, writes=(buffer,), batch=batch))

    def copy(self, source: str, target: str, stream: str, us: float = 1.0) -> None:
        """Queue a copy to the GPU."""
        self._add(Operation("copy", stream, us, (source,), (target,)))

    def copy_back(self, source: str, target: str, stream: str, us: float = 1.0) -> None:
        """Queue a copy to the host."""
        self._add(Operation("copy back", stream, us, (source,), (target,)))

    def kernel(
        self, memory: str | tuple[str, ...], stream: str, us: float = 1.0, writes: str | tuple[str, ...] = ()
    ) -> None:
        """Queue a kernel that reads, and may write."""
        reads, writes = ((names,) if isinstance(names, str) else tuple(names) for names in (memory, writes))
        self._add(Operation("kernel", stream, us, reads, writes))

    def record(self, stream: str) -> Event:
        """An event behind all that was queued on a stream so far."""
        waits = self._waits.get(stream)
        if waits:  # the event is behind what the stream waits for, too
            self._add(Operation("wait", stream, 0.0))
        return Event(self._last.get(stream))

    def wait(self, stream: str, event: Event) -> None:
        """What is queued on the stream from now on begins after the event. The host goes on."""
        if event.number is not None:
            self._waits.setdefault(stream, []).append(event.number)

    def synchronize(self, event: Event) -> None:
        """The host waits for the event."""
        self._add(Operation("wait", "host", 0.0, after=() if event.number is None else (event.number,)))

    def _add(self, operation: Operation) -> None:
        host = operation.row == "host"
        after = {*operation.after, *self._waits.pop(operation.row, ())}
        after |= {self._last[row] for row in {operation.row, "host"} if row in self._last}
        operation = Operation(**{**operation.__dict__, "after": tuple(sorted(after))})
        now = max(self._now, max((self._ends[i] for i in after), default=0.0) if host else 0.0)
        issued = now if host else now + self.launch
        begins = max([issued, *(self._ends[i] for i in after)])
        if operation.what in ("copy", "copy back", "kernel"):
            begins = max(begins, self._engines.get(operation.what, 0.0))
            self._engines[operation.what] = begins + operation.us
        self.operations.append(operation)
        self._issued.append(issued)
        self._ends.append(begins + operation.us)
        self._now = self._ends[-1] if host else issued
        self._before.append(0)
        for i in after:
            self._before[-1] |= self._before[i] | 1 << i
        self._last[operation.row] = len(self.operations) - 1

    # ------------------------------------------------------------------------------------------------ what follows

    @property
    def us(self) -> float:
        """When all is done."""
        return max([self._now, *self._ends])

    def spans(self) -> list[tuple[str, str, float, float]]:
        """(row, what, begin, end) of each operation that takes time, and of each wait of the host."""
        found, free = [], 0.0
        for operation, issued, end in zip(self.operations, self._issued, self._ends, strict=True):
            begin = end - operation.us
            if operation.row == "host":
                if operation.what == "wait":
                    begin = free
                free = end
            elif issued > free:
                found.append(("host", "launch", free, issued))
                free = issued
            if end > begin:
                found.append((operation.row, operation.what, begin, end))
        return found

    def ordered(self, first: int, second: int) -> bool:
        """Whether the first operation must have ended before the second begins, or the other way round."""
        return bool(self._before[second] >> first & 1 or self._before[first] >> second & 1)

    def races(self) -> list[Race]:
        """All pairs of operations that use the same memory, one of them to write, and have no order."""
        found = []
        for j, later in enumerate(self.operations):
            for i, earlier in enumerate(self.operations[:j]):
                shared = set(earlier.writes) & {*later.reads, *later.writes} | set(earlier.reads) & set(later.writes)
                if shared and not self.ordered(i, j):
                    memory = min(shared)
                    found.append(Race(i, j, memory, _kind(earlier, later, memory)))
        return found

    def seen(self) -> list[int | None]:
        """The batch that each kernel finds in what it reads first, if all runs in the order in which it was queued."""
        content: dict[str, int | None] = {}
        found = []
        for operation in self.operations:
            if operation.what == "fill":
                content[operation.writes[0]] = operation.batch
            elif operation.what in ("copy", "copy back"):
                content[operation.writes[0]] = content.get(operation.reads[0])
            elif operation.what == "kernel":
                found.append(content.get(operation.reads[0]))
                for name in operation.writes:
                    content[name] = content.get(operation.reads[0])
        return found

    def report(self) -> np.ndarray:
        """What an exercise is judged by: five numbers.

        The first three are 1 if a buffer is filled too early, memory is used too early, or is overwritten too early.
        The fourth is 1 unless the kernels see batch 0, 1, 2, ... in turn. The last is the time in microseconds.
        """
        kinds = {race.kind for race in self.races()}
        early = [float(kind in kinds) for kind in ("filled too early", "used too early")]
        overwritten = float(bool(kinds & {"overwritten too early", "written twice"}))
        seen = self.seen()
        return np.array([*early, overwritten, float(seen != list(range(len(seen)))), self.us])


def _kind(earlier: Operation, later: Operation, memory: str) -> str:
    if memory in earlier.writes:
        return "written twice" if memory in later.writes else "used too early"
    return "filled too early" if later.what == "fill" else "overwritten too early"


def describe(program: Program, race: Race) -> str:
    """A race in words."""
    a, b = program.operations[race.first], program.operations[race.second]
    return f"operation {race.first}, {a.what} on {a.row}, and {race.second}, {b.what} on {b.row}: {race.memory} is " + (
        f"{race.kind}"
    )
