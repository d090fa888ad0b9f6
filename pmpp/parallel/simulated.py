"""Ranks in this process: each is a thread, and one of them runs at a time.

A rank runs until it communicates. Then the rank that has been ready for longest has its turn, and the first one waits
for its reply and for its own next turn. So a program runs in the same order every time, and prints the same. Who is
ready is decided by the `Switchboard`. When it finds that ranks can never go on, they are told, so none waits for ever.

The arrays of a collective are moved by the messages of its algorithm (`pmpp.parallel.algorithms`), and by nothing else.
`pmpp.parallel.traffic` counts them, for each pair of ranks, and keeps a clock for each rank.

A rank has these for itself: its arrays on the device, since `pmpp.parallel.owners` refuses an array of another rank;
what `pmpp.nn` keeps for each thread, its stream, its switches and its random numbers; and the random numbers of NumPy
and of Python's `random`, which are put back with each turn.

Ranks share all else, which processes would not. So these mistakes are not found here: a global variable, a list or a
NumPy array that one rank changes and another reads; an array of another rank that is given to a kernel, and never to a
group; one working directory and one environment for all.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import ctypes
import random
import sys
import threading
import typing
from collections.abc import Callable

import numpy as np

from pmpp.parallel.group import Group, Transport, place_of
from pmpp.parallel.owners import Owners, check_written
from pmpp.parallel.switchboard import POINT, WORLD, Answers, CommunicationError, NotAMember, Reply, Request, Switchboard
from pmpp.parallel.traffic import Links, Nodes, Report, Traffic
from pmpp.parallel.windows import Buffer, Window, Windows
from pmpp.runtime.check import as_integer, as_number

__all__ = ["Results", "alone", "clock", "here", "ranks", "until", "work"]

STACK = 64 << 20  # bytes for each thread: in 512 KiB, which macOS gives, a kernel with many calls would not fit


class Results(list):
    """What the ranks returned, by rank. ``report`` says what they sent."""

    report: Report


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
    windows = True

    def __init__(self, size: int, links: Links | Nodes | None) -> None:
        self.traffic, self.owners, self.accesses = Traffic(size, links), Owners(), Windows(size)
        self.board = Switchboard(size, self.traffic.between)
        self.ready = collections.deque(range(size))
        self.turns = [threading.Semaphore(0) for _ in range(size)]  # a rank waits at its own
        self.answers: dict[int, Reply | CommunicationError] = {}
        self.results: list[typing.Any] = [None] * size
        self.failed: tuple[int, BaseException] | None = None  # the first rank that did, and its exception
        self.stopping = False
        self.running: int | None = None  # the thread whose turn it is
        self.gone: set[int] = set()  # the ranks that have ended
        self.over = threading.Event()  # all have
        self.random = [random_states()] * size

    # -------------------------------------------------------------------------------------------------------- requests

    def exchange(self, request: Request) -> Reply:
        """Tell the switchboard, let others run, and come back with the reply."""
        if self.stopping:
            raise Stopped
        self._refuse_strangers(request)
        self.traffic.enter(request)
        self.accesses.called(request)
        answers = self.board.arrive(request)
        self.traffic.leave(answers)
        self._order(request, answers)
        self._tell(answers)
        self.random[request.rank] = random_states()
        self._hand_on()  # from here on another rank runs
        self.turns[request.rank].acquire()
        if self.stopping:
            raise Stopped
        self._begin_turn(request.rank)
        answer = self.answers.pop(request.rank)
        if isinstance(answer, CommunicationError):
            raise copy.copy(answer)  # each rank has a traceback of its own
        return answer

    def _order(self, request: Request, answers: Answers) -> None:
        """Note what comes before what, and when a signal arrives."""
        if any(isinstance(answer, CommunicationError) for _, answer in answers):
            return
        members, told = self.board.groups[request.group], {rank for rank, _ in answers}
        if request.kind == "signal":
            peer = members[request.peer]
            self.accesses.signal(request.group, request.rank, peer)
            self.traffic.signal(request.group, request.rank, peer)
            if peer in told:
                self._arrived(request.group, request.rank, peer)
        elif request.kind == "wait" and told:
            self._arrived(request.group, members[request.peer], request.rank)
        elif request.kind in POINT:
            for pair in self.board.met:  # a send returns when it is received: each has heard of the other
                self.accesses.passes(pair, pair)
        elif told:
            self.accesses.met(request, members)

    def _arrived(self, group: str, source: int, target: int) -> None:
        self.accesses.wait(group, source, target)
        self.traffic.wait(group, source, target)

    def window(self, group: Group, name: str, x: typing.Any, request: Request) -> Window:
        """Every rank gives its array before it waits for the others."""
        self.accesses.buffers.setdefault(name, {})[request.rank] = Buffer(request.rank, x)
        self.exchange(request)
        return Window(group, name, self.accesses, self._one_sided)

    def _one_sided(self, source: int, target: int, nbytes: int) -> None:
        rank = _here.group.members[_here.group.rank]
        self.traffic.one_sided(source, target, nbytes, rank)

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

    def _begin_turn(self, rank: int) -> None:
        self.running = threading.get_ident()
        set_random_states(self.random[rank])
        self.owners.turn(rank)

    # ----------------------------------------------------------------------------------------------------------- ranks

    def body(self, rank: int, function: Callable, args: tuple) -> None:
        """What the thread of a rank does."""
        self.turns[rank].acquire()
        try:
            if not self.stopping:
                self._begin_turn(rank)
                _here.run, _here.group = self, Group(self, rank, self.board.groups[WORLD])
                self.results[rank] = function(_here.group, *args)
        except Stopped:
            pass
        except BaseException as error:  # a KeyboardInterrupt or SystemExit of a rank ends the run, too
            self._fail(rank, error)
        finally:
            self._end(rank)

    def _fail(self, rank: int, error: BaseException) -> None:
        """End all ranks, one after another: those that wait for a reply get none."""
        if not self.stopping:
            self.failed, self.stopping = (rank, error), True
            self.ready.extend(self.board.waiting)

    def _end(self, rank: int) -> None:
        """A rank has ended: those who wait for it are told, and the next one runs."""
        if not self.stopping:
            self._tell(self.board.ended(rank, "it returned"))
        with contextlib.suppress(IndexError):  # nobody is left
            self._hand_on()
        self.gone.add(rank)
        if len(self.gone) == len(self.turns):
            self.over.set()

    def carry_out(self, threads: list[threading.Thread]) -> None:
        """Start the threads of the ranks, and wait until all have ended. Ctrl-C ends them."""
        try:
            for thread in threads:
                thread.start()
            self._hand_on()
            # With a limit, for without one Windows does not see Ctrl-C. And no Thread.join: Python 3.11 takes a thread
            # for ended after a join that was interrupted.
            while not self.over.wait(0.1):
                pass
        except BaseException:
            self._interrupt()
            self.over.wait(5)  # a rank that is in a long call of NumPy ends later, by itself
            raise
        for thread in threads:
            thread.join()

    def _interrupt(self) -> None:
        """End all ranks at once, also one that computes: it gets the exception between two lines of Python."""
        self.stopping = True
        if self.running is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.running), ctypes.py_object(Stopped))
        for turn in self.turns:
            turn.release()


def ranks(size: int, function: Callable, *args: typing.Any, links: Links | Nodes | None = None) -> Results:
    """Run ``function(group, *args)`` as each of ``size`` ranks, in this process.

    Args:
        size: how many ranks.
        function: what every rank does, with its own `Group` of all ranks.
        args: what every rank is given besides: the same objects.
        links: what a message costs; then each rank has a clock, see `Report.seconds`.

    Returns a list of what they returned, by rank. Its ``report`` says what they sent.

    Raises what the first rank that fails raises, with a note of its number and line; the others are stopped. Raises
    RuntimeError in a browser's Python, which has no threads.

    A rank begins as a process does: `pmpp.nn` draws the numbers of seed 0. NumPy's and Python's own random numbers
    begin in every rank where they are in the caller, for whom they then go on from there.

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
    if links is not None and not isinstance(links, Links | Nodes):
        raise TypeError(f"links must be Links(latency, bandwidth), Nodes or None, was {type(links).__name__}")
    if sys.platform == "emscripten":
        raise RuntimeError("ranks are threads, and a browser has none: run them with a Python of the computer")
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
    usual = threading.stack_size(STACK)
    try:
        run.carry_out(threads)
    finally:
        threading.stack_size(usual)
        set_random_states(before)
    if run.failed is not None:
        rank, error = run.failed
        error.add_note(f"raised by rank {rank} of {size} at {place_of(error)}")
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


def clock() -> float:
    """The seconds on the clock of this simulated rank; 0 elsewhere."""
    here = _here.run is not None and _here.group is not None
    return _here.run.traffic.clocks[_here.group.rank] if here else 0.0


def until(seconds: float) -> None:
    """Let the clock of this simulated rank go on to a time, if it is earlier: the rank waits for what it has started.

    So a rank computes while it communicates: it notes when it will be done, sends, and then waits until that time.

    >>> def step(group):
    ...     done = clock() + 3e-3                               # a kernel of 3 ms is started
    ...     group.all_reduce(np.ones(1, np.float32))            # two messages: 2 ms
    ...     until(done)
    >>> ranks(2, step, links=Links(latency=1e-3, bandwidth=1e30)).report.seconds
    (0.003, 0.003)
    """
    seconds = float(as_number("seconds", seconds, 0, dtype=np.float64))
    if _here.run is not None and _here.group is not None:
        clocks, rank = _here.run.traffic.clocks, _here.group.rank
        clocks[rank] = max(clocks[rank], seconds)


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


def _culprits(answer: Reply | CommunicationError) -> tuple[int, ...]:
    return answer.ranks if isinstance(answer, CommunicationError) else ()
