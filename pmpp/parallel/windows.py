"""Windows: arrays that other ranks read and write without the owner's call, and what has to come before what.

On GPUs that reach each other's memory a kernel can load from a peer. Nothing then says by itself that the peer has
finished writing: a *signal* does. The owner writes, then signals; the reader waits for the signal, then reads. And
before the owner writes again, it has to hear that the reader is done. A program without one of the two signals is wrong
even if it gives the right numbers today, since they depend on who was faster.

So the simulated group does not look at numbers. Each rank has a *vector clock*: how many times it has passed something
on, and up to which of those it has heard of each other rank. A signal carries the clock of its sender, and whoever
waits for it takes over what is later. Two accesses to the same rows, of which one writes, need such a way from the
first to the second, over any number of ranks. Without one they are `Unordered`, in whatever order they were run.

The owner's own kernels are not seen. What they write is: rows that differ from what they were at the last call. What
they read is not, so an owner asks for its rows by `Window.rows` before it reads what others write.

Source: L. Lamport, Time, clocks, and the ordering of events in a distributed system (1978); F. Mattern, Virtual time
and global states of distributed systems (1989); for the signals, NVSHMEM's and OpenSHMEM's ``putmem_signal``.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.parallel.switchboard import CommunicationError, Request
from pmpp.runtime import device
from pmpp.runtime.check import as_integer

if typing.TYPE_CHECKING:
    from pmpp.parallel.group import Group

__all__ = ["Unordered", "Window", "Windows"]

ALL = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "split", "window")


class Unordered(CommunicationError):
    """Two ranks use the same rows, one of them writes, and no signal says who comes first."""


class Access(typing.NamedTuple):
    """Who used rows ``first`` to ``last`` - 1 of an array, in which segment of its program, and how."""

    rank: int
    segment: int
    first: int
    last: int
    writes: bool
    text: str  # "rank 1 reads rows 0 to 3 at halo.py:9"


class Buffer:
    """One rank's array of a window: what it held at the last look, and who has used it."""

    def __init__(self, owner: int, array: typing.Any) -> None:
        self.owner, self.array = owner, array
        self.known = device.to_host(array).copy()
        self.accesses: list[Access] = []


class Windows:
    """The windows of a run, and the clocks of its ranks."""

    def __init__(self, size: int) -> None:
        self.clocks = [[0] * size for _ in range(size)]
        self.signals: dict[tuple, list[list[int]]] = {}  # (group, from, to): clocks on their way
        self.buffers: dict[str, dict[int, Buffer]] = {}  # by window and rank
        self.where = ["before it communicated"] * size  # the last call of each rank

    # ------------------------------------------------------------------------------------------------------ happened

    def ordered(self, access: Access, rank: int) -> bool:
        """Whether a rank has heard of what another one did."""
        return access.rank == rank or self.clocks[rank][access.rank] > access.segment

    def passes(self, sources: typing.Iterable[int], targets: typing.Iterable[int]) -> None:
        """All that the sources did comes before all that the targets do from now on."""
        sources, targets = list(sources), list(targets)
        heard = [self.release(rank) for rank in sources]
        for rank in targets:
            for clock in heard:
                self.acquire(rank, clock)

    def release(self, rank: int) -> list[int]:
        """The clock that a rank passes on: it includes all that it has done. A new segment begins."""
        self.clocks[rank][rank] += 1
        return list(self.clocks[rank])

    def acquire(self, rank: int, clock: list[int]) -> None:
        """A rank has heard of all that a clock includes."""
        self.clocks[rank] = [max(pair) for pair in zip(self.clocks[rank], clock, strict=True)]

    def called(self, request: Request) -> None:
        """A rank makes a call: what it has written to its own arrays belongs to the time before."""
        self.where[request.rank] = f"before {request.kind} at {request.where}"
        for buffers in self.buffers.values():
            if request.rank in buffers:
                self._look(buffers[request.rank])
        self.where[request.rank] = f"after {request.kind} at {request.where}"  # if another rank looks before the next

    def met(self, request: Request, members: tuple[int, ...]) -> None:
        """Calls have met, of which this was the last: what comes before what from now on."""
        root = members[request.root] if request.root is not None else None
        if request.kind in ALL:
            self.passes(members, members)
        elif request.kind == "broadcast":
            self.passes([root], members)
        elif request.kind == "reduce":
            self.passes(members, [root])

    def signal(self, group: str, source: int, target: int) -> None:
        """A signal is on its way."""
        self.signals.setdefault((group, source, target), []).append(self.release(source))

    def wait(self, group: str, source: int, target: int) -> None:
        """A signal has arrived."""
        self.acquire(target, self.signals[group, source, target].pop(0))

    # ------------------------------------------------------------------------------------------------------ accesses

    def _look(self, buffer: Buffer) -> None:
        """Note which rows the owner has written since the last look."""
        now = device.to_host(buffer.array)
        differs = (now.view(np.uint8) != buffer.known.view(np.uint8)).reshape(len(now), -1).any(axis=1)
        if not differs.any():
            return
        changed = np.flatnonzero(differs)
        buffer.known = now.copy()
        owner = buffer.owner
        for run in np.split(changed, np.flatnonzero(np.diff(changed) > 1) + 1):
            first, last = int(run[0]), int(run[-1]) + 1
            self._enter(buffer, owner, first, last, True, f"rank {owner} writes {_rows(first, last)} itself, "
                        f"{self.where[owner]}")  # fmt: skip

    def use(self, buffer: Buffer, rank: int, first: int, last: int, writes: bool, text: str) -> None:
        """A rank uses rows. Raises `Unordered`."""
        self._look(buffer)
        self._enter(buffer, rank, first, last, writes, text)

    def _enter(self, buffer: Buffer, rank: int, first: int, last: int, writes: bool, text: str) -> None:
        mine = Access(rank, self.clocks[rank][rank], first, last, writes, text)
        kept = []
        for other in buffer.accesses:
            if max(first, other.first) >= min(last, other.last) or not (writes or other.writes):
                kept.append(other)
            elif self.ordered(other, rank):
                if not (writes and first <= other.first and other.last <= last):
                    kept.append(other)  # else whoever comes behind this write comes behind that, too
            else:
                whose = f"of rank {buffer.owner}'s window"
                raise Unordered(
                    f"no signal says which comes first {whose}: {other.text}, and {text}", (rank, other.rank)
                )
        if mine not in kept:
            kept.append(mine)
        buffer.accesses = kept


class Window:
    """An array of each rank of a group, which the others read and write. `Group.window` makes it.

    >>> from pmpp import parallel
    >>> def step(group):
    ...     mine = device.to_device(np.zeros(2))
    ...     window = group.window(mine)
    ...     right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    ...     window.write(np.full(1, group.rank + 10.0), to=right, at=1)     # into the second element of the neighbour
    ...     window.signal(to=right)
    ...     window.wait(source=left)
    ...     return window.rows().copy_to_host().tolist()
    >>> parallel.ranks(3, step)
    [[0.0, 12.0], [0.0, 10.0], [0.0, 11.0]]
    """

    def __init__(
        self, group: Group, name: str, open_windows: Windows, message: Callable[[int, int, int], None]
    ) -> None:
        self.group, self._windows, self._message = group, open_windows, message
        self._buffers = open_windows.buffers[name]

    def read(self, out: typing.Any, source: int, *, at: int = 0) -> typing.Any:
        """Fill ``out``, a device array, with rows ``at`` and following of rank ``source``'s array. Returns it."""
        buffer, first, last, out = self._part(source, "source", out, at)
        self._use("reads", buffer, first, last, False)
        self._message(buffer.owner, self._me, out.nbytes)
        if out.size:
            out.copy_to_device(buffer.known[first:last])
        return out

    def write(self, x: typing.Any, to: int, *, at: int = 0) -> None:
        """Write an array over rows ``at`` and following of rank ``to``'s array."""
        x = self.group._input("x", x, (str(self._buffers[self._me].array.dtype),), 0)
        buffer, first, last, _ = self._part(to, "to", x, at)
        self._use("writes", buffer, first, last, True)
        self._message(self._me, buffer.owner, x.nbytes)
        if x.size:
            buffer.known[first:last] = device.to_host(x)
            buffer.array[first:last].copy_to_device(buffer.known[first:last])

    def rows(self, at: int = 0, count: int | None = None) -> typing.Any:
        """This rank's own rows, as a view, all of them without arguments: to be read until the next call.

        Asking for them counts as reading them.
        """
        buffer = self._buffers[self._me]
        length = len(buffer.known)
        at = as_integer("at", at, 0, length)
        last = length if count is None else at + as_integer("count", count, 0, length - at)
        self._use("reads", buffer, at, last, False)
        return buffer.array[at:last]

    def signal(self, to: int) -> None:
        """Tell rank ``to`` that all that this rank has done before is done. Does not wait."""
        self._exchange("signal", "to", to)

    def wait(self, source: int) -> None:
        """Wait for a signal of rank ``source``. Each signal is waited for once, in their order."""
        self._exchange("wait", "source", source)

    # ----------------------------------------------------------------------------------------------------------------

    @property
    def _me(self) -> int:
        return self.group.members[self.group.rank]

    def _exchange(self, kind: str, name: str, peer: int) -> None:
        request = self.group._request(kind, peer=self.group._rank(name, peer))
        self.group._transport.look_at(request, None, None)
        self.group._transport.exchange(request)

    def _part(self, peer: int, name: str, x: typing.Any, at: int) -> tuple[Buffer, int, int, typing.Any]:
        """Rows of a rank's array that an array fits."""
        buffer = self._buffers[self.group.members[self.group._rank(name, peer)]]
        known, at = buffer.known, as_integer("at", at, 0, len(buffer.known))
        what = "out" if name == "source" else "x"
        if name == "source" and (isinstance(x, np.ndarray) or not hasattr(x, "copy_to_device")):
            raise TypeError(f"out must be a device array, was {type(x).__name__}: see device.empty(shape, dtype)")
        if x.shape[:1] == () or x.shape[1:] != known.shape[1:] or x.dtype != known.dtype or at + len(x) > len(known):
            raise ValueError(
                f"{what} must be rows of the window from row {at} on, of which there are {len(known) - at} of shape "
                f"{known.shape[1:]} and {known.dtype}, was {x.dtype} of shape {tuple(x.shape)}"
            )
        return buffer, at, at + len(x), x

    def _use(self, verb: str, buffer: Buffer, first: int, last: int, writes: bool) -> None:
        from pmpp.parallel.group import caller

        where = caller()
        request = Request(verb, self._me, self.group._name, where)
        self.group._transport.look_at(request, None, None)
        text = f"rank {self._me} {verb} {_rows(first, last)} at {where}"
        self._windows.use(buffer, self._me, first, last, writes, text)


def _rows(first: int, last: int) -> str:
    return f"row {first}" if last - first == 1 else f"rows {first} to {last - 1}"
