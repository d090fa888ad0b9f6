"""Ranks in this process: each is a thread, and one of them runs at a time.

A rank runs until it communicates. Then it hands the baton on, to the rank that has been ready for longest, and waits
for its own turn and its reply. So a program runs in the same order every time, and what it prints, too. Which rank is
ready is decided by the `Switchboard`; when it finds that ranks can never go on, they are told, so none waits for ever.

The arrays of a collective are moved by the messages of its algorithm (`pmpp.parallel.algorithms`), and by nothing else.
`Traffic` counts them, for each pair of ranks, and keeps a clock for each rank.

**What is a rank's own.** Arrays on the device: `Owners` refuses an array of another rank in a call of a group. What
threads have of their own: the streams, switches and random numbers of `pmpp.nn`. The random numbers of NumPy and of
Python's `random`, which are put back with each turn.

**What ranks share, although processes would not**: all else. These mistakes are not seen here: a global variable, a
list or a NumPy array that one rank changes and another reads; an array of another rank that is given to a kernel and
never to a group; the working directory and the environment. On a GPU arrays have no owners, since their addresses are
used again.

Source: R. W. Hockney, The communication challenge for MPP (1994), for the alpha-beta model.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import contextvars
import copy
import ctypes
import random
import threading
import traceback
import typing
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmpp.parallel import algorithms
from pmpp.parallel.group import Group, Transport, shown
from pmpp.parallel.switchboard import Answers, CommunicationError, NotAMember, Reply, Request, Switchboard
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number
from pmpp.simt.host.arrays import storage_at
from pmpp.simt.observe.tables import Table

__all__ = ["ForeignMemory", "Links", "Report", "Results", "UnwrittenMemory", "here", "ranks", "work"]

STACK = (
    64 << 20
)  # bytes of a thread's stack: macOS gives 512 KiB, too few for kernels with many calls in the interpreter
ROWS = 24  # of links that a report prints


class ForeignMemory(CommunicationError):
    """A rank passes an array that is not its own. Ranks in processes have no memory in common."""


class UnwrittenMemory(CommunicationError):
    """A rank sends an array that nobody has written to."""


# -------------------------------------------------------------------------------------------------------------- traffic


@dataclass(frozen=True)
class Links:
    """What a message costs: ``latency`` seconds, and a second for every ``bandwidth`` bytes. All links are alike.

    >>> Links(latency=2e-6, bandwidth=25e9).seconds(50_000)
    4e-06
    """

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        as_number("latency", self.latency, 0, dtype=np.float64)
        if not as_number("bandwidth", self.bandwidth, 0, dtype=np.float64):
            raise ValueError("bandwidth must be greater than 0 bytes a second, was 0")

    def seconds(self, nbytes: int) -> float:
        """The time of one message."""
        return self.latency + nbytes / self.bandwidth


class Traffic:
    """What was sent, and when it would have arrived.

    Attributes: messages, nbytes: by the ranks (from, to); kinds: by the kind of call, how often it was carried out, its
    messages and its bytes; clocks: seconds by rank, which stay 0 without ``links``.
    """

    def __init__(self, size: int, links: Links | None) -> None:
        self.links, self.clocks = links, [0.0] * size
        self.messages: collections.Counter[tuple[int, int]] = collections.Counter()
        self.nbytes: collections.Counter[tuple[int, int]] = collections.Counter()
        self.kinds: dict[str, list[int]] = {}
        self.kind = ""  # of the call that messages belong to

    def between(self, members: tuple[int, ...]) -> CountedNetwork:
        """The network of one call of a group."""
        self.kinds.setdefault(self.kind, [0, 0, 0])[0] += 1
        return CountedNetwork(self, members)

    def step(self, messages: list[tuple[int, int, int]]) -> None:
        """Count messages (from, to, bytes) that travel at the same time.

        A message begins when both its ranks are ready, and keeps both until it has arrived. A rank may send one and
        receive one at the same time.
        """
        ends = []
        for source, target, nbytes in messages:
            self.messages[source, target] += 1
            self.nbytes[source, target] += nbytes
            self.kinds[self.kind][1] += 1
            self.kinds[self.kind][2] += nbytes
            takes = self.links.seconds(nbytes) if self.links else 0.0
            ends.append((source, target, max(self.clocks[source], self.clocks[target]) + takes))
        for source, target, end in ends:
            self.clocks[source], self.clocks[target] = max(self.clocks[source], end), max(self.clocks[target], end)


class CountedNetwork(algorithms.Network):
    """The messages of a group, counted by the ranks' numbers among all ranks."""

    def __init__(self, traffic: Traffic, members: tuple[int, ...]) -> None:
        self.traffic, self.members = traffic, members

    def step(self, messages: list[algorithms.Message]) -> algorithms.Arrays:
        """Send messages at the same time."""
        self.traffic.step([(self.members[a], self.members[b], data.nbytes) for a, b, data in messages])
        return super().step(messages)


class Report:
    """What the ranks of a run sent to one another.

    Attributes:
        size: how many ranks.
        messages, nbytes: by the ranks (from, to).
        kinds: by the kind of call: how often it was carried out, its messages, its bytes.
        seconds: by rank, its clock at the end; None without ``links``.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.size, self.links = len(traffic.clocks), traffic.links
        self.messages, self.nbytes = dict(traffic.messages), dict(traffic.nbytes)
        self.kinds = {kind: tuple(counts) for kind, counts in traffic.kinds.items()}
        self.seconds = tuple(traffic.clocks) if traffic.links else None

    def tables(self) -> list[Table]:
        """By link, by kind of call, and the clocks."""
        busiest = sorted(self.messages, key=lambda link: (-self.nbytes[link], -self.messages[link], link))
        rows = [
            (str(a), str(b), f"{self.messages[a, b]:,}", f"{self.nbytes[a, b]:,}") for a, b in sorted(busiest[:ROWS])
        ]
        if rest := busiest[ROWS:]:
            counts = [sum(counted[link] for link in rest) for counted in (self.messages, self.nbytes)]
            rows.append(("others", f"{len(rest)} links", *[f"{count:,}" for count in counts]))
        total = f"{sum(self.messages.values()):,} messages, {sum(self.nbytes.values()):,} bytes"
        made = [Table(f"{self.size} ranks: {total}", ("from", "to", "messages", "bytes"), rows, (2, 0))]
        calls = [(kind, *[f"{count:,}" for count in counts]) for kind, counts in sorted(self.kinds.items())]
        made.append(Table("By call", ("call", "times", "messages", "bytes"), calls, (1, 0)))
        if self.seconds is not None:
            clocks = [(str(rank), f"{1e6 * t:,.2f}") for rank, t in enumerate(self.seconds)]
            made.append(Table("Clocks", ("rank", "µs"), clocks, (1, 0)))
        return made

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(table._repr_html_() for table in self.tables())


class Results(list):
    """What the ranks returned, by rank. ``report`` says what they sent."""

    report: Report


# --------------------------------------------------------------------------------------------------------------- owners


class Owners:
    """Which rank made an array of the interpreter, and which ranks used one that was there before they began.

    Addresses in the interpreter only grow. So it is enough to note the next address at each turn: what begins between
    two notes was made in the turn between.
    """

    def __init__(self) -> None:
        self.begins: list[int] = []  # of the addresses of each turn
        self.turns: list[int] = []  # whose turn it was
        self.used: dict[int, dict[tuple, str]] = {}  # by allocation: which bytes, by whom, whether written; and where

    def turn(self, rank: int) -> None:
        """A rank begins to run."""
        if not device.on_gpu() and self.turns[-1:] != [rank]:
            self.begins.append(device.address(device.empty(1, np.uint8)))
            self.turns.append(rank)

    def owner(self, array: typing.Any) -> int | None:
        """The rank that made the memory; None if it was there before the ranks began."""
        turn = bisect.bisect_right(self.begins, device.address(array)) - 1
        return self.turns[turn] if turn >= 0 else None

    def check(self, request: Request, name: str, array: typing.Any, writes: bool) -> None:
        """Raise `ForeignMemory` if it is another rank's."""
        if array is None or not array.size or device.on_gpu():
            return
        owner, at = self.owner(array), f"{name} of {request.kind} at {request.where}"
        if owner is None:
            self._shared(request, at, array, writes)
        elif owner != request.rank:
            raise ForeignMemory(
                f"rank {request.rank} passes an array that rank {owner} made, as {at}: ranks have no memory in common, "
                "send its elements",
                (request.rank, owner),
            )

    def _shared(self, request: Request, at: str, array: typing.Any, writes: bool) -> None:
        """Memory that was there before: all may read it, as what each has loaded. It is no place to write for two."""
        begin = device.address(array)
        storage = storage_at(begin)
        used = self.used.setdefault(begin - storage[1], {}) if storage else {}
        mine = (begin, begin + array.nbytes, request.rank, writes)
        for (first, last, rank, written), where in used.items():
            if rank != request.rank and (writes or written) and max(first, mine[0]) < min(last, mine[1]):
                raise ForeignMemory(
                    f"rank {request.rank} and rank {rank} have the same memory: {at}, and {where}. It was made before "
                    "the ranks began, so all have this one array: make one in each rank",
                    (request.rank, rank),
                )
        used.setdefault(mine, at)


def check_written(request: Request, array: typing.Any) -> None:
    """Raise `UnwrittenMemory` if nobody has written to any element of an array of the interpreter."""
    found = storage_at(device.address(array)) if array is not None and array.size and not device.on_gpu() else None
    if found is None or found[0].init is None:
        return
    cells, start = found[0].cells, found[1]
    if not cells.init[start // cells.unit : (start + array.nbytes) // cells.unit].any():
        raise UnwrittenMemory(
            f"rank {request.rank} sends memory that nobody has written to: x of {request.kind} at {request.where}",
            (request.rank,),
        )


# ------------------------------------------------------------------------------------------------------------ the ranks


class Stopped(SystemExit):
    """Ends a rank because another one has failed. No ``except Exception`` of the rank's code catches it."""


class _Here(threading.local):
    run: Run | None = None
    group: Group | None = None


_here = _Here()


def here() -> Group | None:
    """The group of all ranks, in a simulated rank; else None."""
    return _here.group


class Run(Transport):
    """One run of several ranks: who is ready, whose turn it is, and what each has returned."""

    backend = "simulated"

    def __init__(self, size: int, links: Links | None) -> None:
        self.traffic, self.owners = Traffic(size, links), Owners()
        self.board = Switchboard(size, self.traffic.between)
        self.ready = collections.deque(range(size))
        self.turns = [threading.Semaphore(0) for _ in range(size)]  # a rank waits at its own
        self.answers: dict[int, Reply | CommunicationError] = {}
        self.results: list[typing.Any] = [None] * size
        self.failed: tuple[int, BaseException] | None = None  # the first rank that did, and its exception
        self.stopping = False
        self.running: threading.Thread | None = None
        self.random = [random_states()] * size

    # -------------------------------------------------------------------------------------------------------- requests

    def exchange(self, request: Request) -> Reply:
        """Tell the switchboard, let others run, and come back with the reply."""
        if self.stopping:
            raise Stopped
        self._refuse_strangers(request)
        self.traffic.kind = "send" if request.kind == "recv" else request.kind
        self._tell(self.board.arrive(request))
        self._hand_on()
        self._wait_for_turn(request.rank)
        answer = self.answers.pop(request.rank)
        if isinstance(answer, CommunicationError):
            raise copy.copy(answer)  # each rank has a traceback of its own
        return answer

    def look_at(self, request: Request, reads: typing.Any, writes: typing.Any) -> None:
        """Refuse arrays of other ranks, and such as nobody has written to."""
        self._refuse_strangers(request)
        self.owners.check(request, "x", reads, False)
        self.owners.check(request, "out", writes, True)
        check_written(request, reads)

    def _refuse_strangers(self, request: Request) -> None:
        """A `Group` says for one rank what that is and does. No other rank, and no other thread, may use it."""
        mine = _here.group.rank if _here.run is self and _here.group is not None else None
        if mine != request.rank:
            who = "a thread that is no rank" if mine is None else f"rank {mine}"
            raise NotAMember(
                f"{who} uses a group of rank {request.rank}, in {request.kind} at {request.where}: each rank has a "
                "Group of its own, as the first argument or from split",
                () if mine is None else (mine,),
            )

    def _tell(self, answers: Answers) -> None:
        """Those who are answered are ready. With an error the likely culprit is the first."""
        for rank, answer in sorted(answers, key=lambda one: _culprits(one[1])[:1] != (one[0],)):
            self.answers[rank] = answer
            self.ready.append(rank)

    # ----------------------------------------------------------------------------------------------------------- turns

    def _hand_on(self) -> None:
        """Give the turn to the next that is ready. There is one: else the switchboard had found a deadlock."""
        self.turns[self.ready.popleft()].release()

    def _wait_for_turn(self, rank: int) -> None:
        self.random[rank] = random_states()
        self.turns[rank].acquire()
        if self.stopping:
            raise Stopped
        self._begin_turn(rank)

    def _begin_turn(self, rank: int) -> None:
        self.running = threading.current_thread()
        set_random_states(self.random[rank])
        self.owners.turn(rank)

    # ----------------------------------------------------------------------------------------------------------- ranks

    def body(self, rank: int, function: Callable, args: tuple) -> None:
        """What the thread of a rank does."""
        self.turns[rank].acquire()
        how = "it was stopped"
        try:
            if self.stopping:
                return
            self._begin_turn(rank)
            _here.run, _here.group = self, Group(self, rank, self.board.groups["world"])
            self.results[rank] = function(_here.group, *args)
            how = "it returned"
        except Stopped:
            pass
        except BaseException as error:  # a KeyboardInterrupt or SystemExit of a rank ends the run, too
            how = f"it raised {type(error).__name__} at {place_of(error)}"
            if not self.stopping:
                self.failed = rank, error
                self.stop()
        finally:
            self._end(rank, how)

    def _end(self, rank: int, how: str) -> None:
        """A rank has ended: those who wait for it are told, and the next one runs."""
        if not self.stopping:
            self._tell(self.board.ended(rank, how))
        with contextlib.suppress(IndexError):  # nobody is left
            self._hand_on()

    def stop(self) -> None:
        """End all ranks, one after another: those that wait for an answer get none."""
        self.stopping = True
        self.ready.extend(self.board.waiting)
        self.board.waiting.clear()

    def interrupt(self) -> None:
        """End all ranks at once, also one that computes: it gets the exception between two lines of Python."""
        self.stopping = True
        if self.running is not None and self.running.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.running.ident), ctypes.py_object(Stopped))
        for turn in self.turns:
            turn.release()

    def carry_out(self, threads: list[threading.Thread]) -> None:
        """Start the threads of the ranks, and wait until all have ended. Ctrl-C ends them."""
        usual = threading.stack_size(STACK)
        try:
            for thread in threads:
                thread.start()
            self._hand_on()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)  # without a limit, Windows would not see Ctrl-C
        except BaseException:
            self.interrupt()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(1)  # one that is in a long call of NumPy ends later, by itself
            raise
        finally:
            threading.stack_size(usual)


def ranks(size: int, function: Callable, *args: typing.Any, links: Links | None = None) -> Results:
    """Run ``function(group, *args)`` as each of ``size`` ranks, in this process.

    Args:
        size: how many ranks.
        function: what every rank does, with its own `Group` of all ranks.
        args: what every rank is given besides: the same objects.
        links: what a message costs; then each rank has a clock, see `Report.seconds`.

    Returns a list of what they returned, by rank. Its ``report`` says what they sent.

    Raises what the first rank that fails raises, with a note of its number; the others are stopped. A rank begins as a
    process does: `pmpp.nn` draws the numbers of seed 0. NumPy's and Python's own random numbers begin in every rank
    where they are in the caller, for whom they then go on from there.

    >>> def right(group):
    ...     neighbour = (group.rank + 1) % group.size
    ...     return int(group.all_gather(np.array(group.rank)).copy_to_host()[neighbour])
    >>> found = ranks(4, right, links=Links(latency=1e-6, bandwidth=8e6))
    >>> found
    [1, 2, 3, 0]
    >>> print(found.report)
    4 ranks: 12 messages, 96 bytes
    from  to  messages  bytes
    0     1          3     24
    1     2          3     24
    2     3          3     24
    3     0          3     24
    <BLANKLINE>
    By call
    call        times  messages  bytes
    all_gather      1        12     96
    <BLANKLINE>
    Clocks
    rank    µs
    0     6.00
    1     6.00
    2     6.00
    3     6.00
    """
    size = as_integer("size", size, 1)
    if not callable(function):
        raise TypeError(f"function must be what every rank calls, was {type(function).__name__}")
    if links is not None and not isinstance(links, Links):
        raise TypeError(f"links must be Links(latency, bandwidth) or None, was {type(links).__name__}")
    run, before = Run(size, links), random_states()
    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(run.body, rank, function, args),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank in range(size)
    ]
    try:
        run.carry_out(threads)
    finally:
        set_random_states(before)
    if run.failed is not None:
        rank, error = run.failed
        error.add_note(f"raised by rank {rank} of {size}")
        raise error
    results = Results(run.results)
    results.report = Report(run.traffic)
    return results


def work(seconds: float) -> None:
    """Let the clock of this simulated rank go on: a model of what it computes. Elsewhere nothing happens.

    >>> def uneven(group):
    ...     work(1e-3 * group.rank)
    ...     group.barrier()
    >>> ranks(3, uneven, links=Links(latency=0.0, bandwidth=1e9)).report.seconds
    (0.002, 0.002, 0.002)
    """
    seconds = float(as_number("seconds", seconds, 0, dtype=np.float64))
    if _here.run is not None and _here.group is not None:
        _here.run.traffic.clocks[_here.group.rank] += seconds


# ------------------------------------------------------------------------------------------------------------ one rank


class Alone(Transport):
    """The transport of a program that was started by itself: its only rank has nobody to wait for."""

    backend = "simulated"

    def __init__(self) -> None:
        self.board = Switchboard(1)

    def exchange(self, request: Request) -> Reply:
        """The reply; a send or a receive is a deadlock."""
        ((_, answer),) = self.board.arrive(request)
        if isinstance(answer, CommunicationError):
            raise answer
        return answer


def alone() -> Group:
    """A group of one rank."""
    return Group(Alone(), 0, (0,))


# ---------------------------------------------------------------------------------------------------------------- small


def random_states() -> tuple:
    """Where the random numbers are that all threads of a process share."""
    return random.getstate(), np.random.get_state()  # noqa: NPY002 - what programs use that are not ours


def set_random_states(states: tuple) -> None:
    """Go on from there."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002


def place_of(error: BaseException) -> str:
    """File and line of the innermost code outside `pmpp.parallel` that an exception came through."""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(f, line) for f, line in frames if not f.f_globals.get("__name__", "").startswith("pmpp.parallel")]
    return f"{shown(lines[-1][0].f_code.co_filename)}:{lines[-1][1]}" if lines else "an unknown line"


def _culprits(answer: Reply | CommunicationError) -> tuple[int, ...]:
    return answer.ranks if isinstance(answer, CommunicationError) else ()
