"""The switchboard: which calls of the ranks belong together, and which can never meet.

A rank that communicates makes a `Request` and waits for its `Reply`. The switchboard is told of each request as it
arrives. Three rules say when calls meet:

- A **collective** is complete when every member of the group is in a collective of that group. Then all have to ask
  for the same: kind, root, operation, dtype and shape.
- A **send** meets a receive of the same group and tag whose ranks name each other. It waits until then, as MPI's
  ``Ssend`` does. Other libraries may copy a small message and go on; a program that relies on it works until its
  messages get larger.
- A **send_recv** is a send and a receive at the same time. Each is met by itself, and it is over when both are.
- A **signal** is there at once, and is kept until its rank waits for it, each signal for one wait.
- A rank is in one call at a time, so its calls are met in the order of its program.

From these rules follows what can never meet. A waiting rank waits for certain others, and for each of them: a receive
for its sender, a collective for all members that are elsewhere. Draw an arrow from each waiting rank to those. If
arrows lead to a rank that has ended, or back to where they began, nobody on the way can ever go on. The switchboard
follows the arrows from each request that has to wait. So it finds a deadlock when its last call arrives, without a
timeout, and however many ranks it goes through.

What fits by these rules can still be wrong, and is not found: two collectives of one kind, dtype and shape that a rank
calls in exchanged order; a root that is the wrong one on all ranks; numbers that are wrong.

Nothing here starts threads or processes, or waits. Whoever does hands requests in, and replies out.

Source: MPI: A Message-Passing Interface Standard, version 4.1, "Communication modes", "Semantics of point-to-point
communication" and "Correctness" of collectives; J. Vetter and B. de Supinski, Dynamic software testing of MPI
applications with Umpire (2000); E. Coffman, M. Elphick and A. Shoshani, System deadlocks (1971).
"""

from __future__ import annotations

import collections
import typing
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pmpp.parallel import algorithms

WORLD = "world"  # the group of all ranks
POINT = ("send", "recv", "send_recv")
PAIRED = (*POINT, "signal", "wait")  # all other kinds are collectives


class CommunicationError(RuntimeError):
    """Calls of several ranks do not fit together. The message says which rank calls what, and where.

    Attributes: ranks, those whose calls the message names, the likely culprit first.
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class Mismatch(CommunicationError):
    """Calls meet that differ in something that has to agree."""


class Deadlock(CommunicationError):
    """Ranks wait for one another, in a circle."""


class RankEnded(CommunicationError):
    """Ranks wait for one that has ended."""


class NotAMember(CommunicationError):
    """A rank calls a group that it is not a member of."""


class Stale(CommunicationError):
    """A rank has another array where all should have the same: it missed an update, or began with other numbers."""


class Request(typing.NamedTuple):
    """A call of one rank, as it is told to the switchboard.

    Attributes:
        kind: the method's name: "barrier", "broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter",
            "all_to_all", "split", "window", "send", "recv", "send_recv", "signal" or "wait".
        rank: the caller's number among all ranks of the program.
        group: the group's name, from the `Reply` that made it; `WORLD` for that of all ranks.
        where: file and line of the caller's code, as "train.py:31".
        number: how many collectives of this group the rank has called before.
        op, root, peer, tag: the arguments of these names; root and peer count within the group.
        dtype, shape: of the array passed; for "recv" of the array to fill. "" and None where none is passed.
        source, out_dtype, out_shape: of what a "send_recv" receives; the rest is of what it sends.
        payload: the array, on the host, in C order; None where the caller sends nothing. For "split" three int64: 1 if
            the rank wants to be in a group, else 0; the colour; the key.
    """

    kind: str
    rank: int
    group: str
    where: str
    number: int = 0
    op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int = 0
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    payload: typing.Any = None
    source: int | None = None
    out_dtype: str = ""
    out_shape: tuple[int, ...] | None = None

    def halves(self) -> dict[str, Request]:
        """The send and the receive that this call is made of."""
        if self.kind != "send_recv":
            return {self.kind: self}
        received = {"peer": self.source, "dtype": self.out_dtype, "shape": self.out_shape, "payload": None}
        return {"send": self._replace(kind="send"), "recv": self._replace(kind="recv", **received)}


class Reply(typing.NamedTuple):
    """What a request is answered with.

    Attributes: payload, the result as an array on the host, or None; group and members, of the new group that "split"
    made, the members as numbers among all ranks; "" and () for a rank that is in none.
    """

    payload: typing.Any = None
    group: str = ""
    members: tuple[int, ...] = ()


Answers = list[tuple[int, Reply | CommunicationError]]  # to whom, and what


class Switchboard:
    """Matches the requests of ``size`` ranks, and finds what does not fit.

    Args:
        size: how many ranks there are.
        network: what messages travel on: a function of a group's members that returns an `algorithms.Network`. None:
            they are copied, and nobody counts.

    Attributes: groups, the members of each group by its name; waiting, by rank the request that it waits in; met, the
    ranks (from, to) whose sends and receives have met in the last request; error, the first one. Every later request is
    answered with it: where one communication was wrong, none can be relied on.

    >>> board = Switchboard(2)
    >>> board.arrive(Request("send", 0, WORLD, "train.py:5", peer=1, dtype="int64", shape=(), payload=np.int64(7)))
    []
    >>> board.arrive(Request("recv", 1, WORLD, "train.py:8", peer=0, dtype="int64", shape=()))
    [(0, Reply(payload=None, group='', members=())), (1, Reply(payload=array(7), group='', members=()))]
    """

    def __init__(self, size: int, network: Callable[[tuple[int, ...]], algorithms.Network] | None = None) -> None:
        self.groups: dict[str, tuple[int, ...]] = {WORLD: tuple(range(size))}
        self.waiting: dict[int, Request] = {}
        self.error: CommunicationError | None = None
        self._network = network or (lambda members: algorithms.Network())
        self._ended: dict[int, str] = {}  # how, by rank
        self._last: dict[int, str] = {}  # by rank, the last call that was answered, and where
        self._made: dict[str, list[Request]] = {WORLD: []}  # by group, the calls of split that made it
        self.met: list[tuple[int, int]] = []
        self._pending: dict[int, dict[str, Request]] = {}  # by rank, what is left of its send, recv or send_recv
        self._arrived: dict[int, np.ndarray] = {}  # by rank, what its send_recv has received
        self._signals: collections.Counter[tuple] = collections.Counter()  # by group, from and to
        self._parted: dict[str, list[Request]] = {}  # by group, the first collective called from several lines

    def arrive(self, request: Request) -> Answers:
        """A rank makes a request. Returns who is answered now, and with what; nobody, if the rank has to wait."""
        if self.error is not None:
            return [(request.rank, self.error)]
        if request.rank not in self.groups[request.group]:
            return self._broken(_not_a_member(request, self.groups[request.group]), also=request.rank)
        self.waiting[request.rank] = request
        self.met = []
        if request.kind in ("signal", "wait"):
            return self._signal(request) or self._hopeless(request)
        if request.kind in POINT:
            answers = self._pair(request)
            if self.error is None and request.rank in self.waiting:
                answers += self._hopeless(request)
            return answers
        return self._collective(request) or self._hopeless(request)

    def ended(self, rank: int, how: str) -> Answers:
        """A rank has ended. ``how`` is a clause, as "it returned" or "it was killed".

        Returns the answers to those that wait for it, and can no longer. A request of its own is withdrawn.
        """
        self._ended[rank] = how
        self.waiting.pop(rank, None)
        self._pending.pop(rank, None)
        if self.error is None and any(rank in self.awaited(request) for request in self.waiting.values()):
            return self._broken(self._abandoned(rank))
        return []

    # ------------------------------------------------------------------------------------------------ calls that meet

    def _pair(self, request: Request) -> Answers:
        """What a send, a receive or both of one rank meet. Who has nothing left to meet is answered."""
        self._pending[request.rank] = request.halves()
        replies = {}
        for half in list(self._pending[request.rank].values()):
            partner = self.groups[half.group][half.peer]
            other = self._pending.get(partner, {}).get("recv" if half.kind == "send" else "send")
            if other is None or (other.group, other.peer, other.tag) != (half.group, self._place(half), half.tag):
                continue
            send, receive = (half, other) if half.kind == "send" else (other, half)
            if (send.dtype, send.shape) != (receive.dtype, receive.shape):
                return self._broken(_unequal(send, receive))
            message = (self._place(send), self._place(receive), np.asarray(send.payload))
            (self._arrived[receive.rank],) = self._network(self.groups[send.group]).step([message])
            self.met.append((send.rank, receive.rank))
            for done in (send, receive):
                del self._pending[done.rank][done.kind]
                if not self._pending[done.rank]:
                    del self._pending[done.rank]
                    replies[done.rank] = Reply(self._arrived.pop(done.rank, None))
        return self._answer(replies)

    def _signal(self, request: Request) -> Answers:
        """A signal does not wait for anybody; a wait takes one that is there."""
        mine, partner = self._place(request), self.groups[request.group][request.peer]
        if request.kind == "wait":
            name = request.group, request.peer, mine
            if not self._signals[name]:
                return []
            self._signals[name] -= 1
            return self._answer({request.rank: Reply()})
        self._network(self.groups[request.group]).step([(mine, request.peer, np.empty(0, np.uint8))])
        other = self.waiting.get(partner)
        if other is not None and (other.kind, other.group, other.peer) == ("wait", request.group, mine):
            return self._answer({request.rank: Reply(), partner: Reply()})
        self._signals[request.group, mine, request.peer] += 1
        return self._answer({request.rank: Reply()})

    def _collective(self, request: Request) -> Answers:
        """The collective of a group, if all its members are there."""
        members = self.groups[request.group]
        calls = self._in_collective(request.group)
        if len(calls) < len(members):
            return []
        if error := disagreement(calls):
            return self._broken(self._with_history(error, request.group))
        if request.group not in self._parted and len({call.where for call in calls}) > 1:
            self._parted[request.group] = [call._replace(payload=None) for call in calls]
        network, parts = self._network(members), [call.payload for call in calls]
        if request.kind == "window":
            algorithms.barrier(len(members), network)
            return self._answer({rank: Reply(group=f"{request.group}/{request.number}") for rank in members})
        if request.kind == "split":
            return self._answer(self._split(calls, algorithms.carry_out("all_gather", parts, None, None, network)[0]))
        results = algorithms.carry_out(request.kind, parts, request.op, request.root, network)
        return self._answer({r: Reply(_array(result)) for r, result in zip(members, results, strict=True)})

    def _split(self, calls: list[Request], wishes: np.ndarray) -> dict[int, Reply]:
        """A group for each colour. Its members are in the order of their keys, and equal keys in that of the ranks."""
        replies = {call.rank: Reply() for call in calls}
        for colour in sorted({int(colour) for part, colour, _ in wishes if part}):
            chosen = [(int(w[2]), place) for place, w in enumerate(wishes) if w[0] and w[1] == colour]
            members = tuple([calls[place].rank for _, place in sorted(chosen)])
            name = f"{calls[0].group}/{calls[0].number}:{colour}"
            self.groups[name], self._made[name] = members, [calls[place] for _, place in chosen]
            replies |= {rank: Reply(None, name, members) for rank in members}
        return replies

    def _answer(self, replies: dict[int, Reply]) -> Answers:
        for rank in replies:
            self._last[rank] = _at([self.waiting.pop(rank)])
        return sorted(replies.items(), key=lambda answer: answer[0])

    def _place(self, request: Request) -> int:
        """The caller's number within the group."""
        return self.groups[request.group].index(request.rank)

    def _in_collective(self, group: str) -> list[Request]:
        """The members of a group that wait in a collective of it, by their number."""
        there = [self.waiting[rank] for rank in self.groups[group] if rank in self.waiting]
        return [call for call in there if call.group == group and call.kind not in PAIRED]

    # ------------------------------------------------------------------------------------------- calls that never meet

    def awaited(self, request: Request) -> list[int]:
        """The ranks without which a waiting request is not answered."""
        members = self.groups[request.group]
        if request.kind in POINT:
            return [members[half.peer] for half in self._pending[request.rank].values()]
        if request.kind in PAIRED:
            return [members[request.peer]]
        there = {call.rank for call in self._in_collective(request.group)}
        return [rank for rank in members if rank not in there]

    def _hopeless(self, request: Request) -> Answers:
        """The error, if a request that was just made can never be answered.

        All arrows were there before but those from this rank. So a new circle goes through it.
        """
        for rank in self.awaited(request):
            if rank in self._ended:
                return self._broken(self._abandoned(rank))
        circle = self._circle(request.rank)
        return self._broken(self._deadlock(circle)) if circle else []

    def _circle(self, start: int) -> list[int]:
        """The ranks on the shortest way along the arrows from a rank back to it; none, if no way leads back."""
        came_from: dict[int, int] = {}
        reached = [start]
        for rank in reached:  # it grows meanwhile: a search in breadth
            for other in self.awaited(self.waiting[rank]) if rank in self.waiting else []:
                if other == start:
                    way = [rank]
                    while way[0] != start:
                        way.insert(0, came_from[way[0]])
                    lowest = way.index(min(way))
                    return way[lowest:] + way[:lowest]
                if other not in came_from:
                    came_from[other] = rank
                    reached.append(other)
        return []

    def _broken(self, error: CommunicationError, also: int | None = None) -> Answers:
        """All who wait are answered with the error."""
        self.error = error
        told = sorted({*self.waiting} | ({also} if also is not None else set()))
        self.waiting.clear()
        return [(rank, error) for rank in told]

    # ---------------------------------------------------------------------------------------------- what errors say

    def _abandoned(self, rank: int) -> CommunicationError:
        """Others wait for a rank that has ended. If these disagree already, that is the mistake."""
        left = [call for call in self.waiting.values() if rank in self.awaited(call)]
        for group in {call.group: None for call in left}:
            if error := disagreement(self._in_collective(group)):
                return self._with_history(error, group)
        after = f" after {self._last[rank]}" if rank in self._last else " before it communicated"
        waits = [f"{_who(calls)} {_verb(calls, 'wait')} for it in {_at(calls)}" for calls in _alike(left)]
        error = RankEnded(
            f"rank {rank} has ended ({self._ended[rank]}{after}), and {_and(waits)}",
            (rank, *[call.rank for call in left]),
        )
        return self._with_history(error, "" if left[0].kind in PAIRED else left[0].group)

    def _deadlock(self, circle: list[int]) -> CommunicationError:
        """Ranks wait for one another. A collective in the circle brings all who wait in it into the message."""
        calls = [self.waiting[rank] for rank in circle]
        kinds = {call.kind for call in calls}
        groups = {call.group: None for call in calls if call.kind not in PAIRED}  # in the order of the circle
        for group in groups:
            if error := disagreement(self._in_collective(group)):
                return self._with_history(error, group)
        if len(circle) == 2 and kinds == {"send", "recv"}:
            return _not_meeting(*calls)
        if len(kinds) == 1 and not groups and "send_recv" not in kinds:
            return self._circle_of_one_kind(calls)
        for group in groups:
            calls += [call for call in self._in_collective(group) if call.rank not in circle]
        calls.sort(key=lambda call: call.rank)
        waits = [f"{_who(alike)} {_verb(alike, 'wait')} in {self._in(alike)}" for alike in _alike(calls)]
        error = Deadlock(f"deadlock: {', '.join(waits)}: none of them can go on", tuple([call.rank for call in calls]))
        return self._with_history(error, next(iter(groups), ""))

    def _circle_of_one_kind(self, calls: list[Request]) -> CommunicationError:
        """All in the circle send, or all receive, or all wait for a signal."""
        does, missing = {"send": ("sends to", "receive"), "recv": ("receives from", "send")}.get(
            calls[0].kind, ("waits for a signal of", "signal")
        )
        waits = [f"rank {c.rank} {does} {self.groups[c.group][c.peer]} at {c.where}" for c in calls]
        each = {1: "it waits for itself to", 2: "each waits for the other to"}.get(
            len(calls), "each waits for the next to"
        )
        return Deadlock(f"deadlock: {', '.join(waits)}: {each} {missing}", tuple([call.rank for call in calls]))

    def _in(self, calls: list[Request]) -> str:
        """Which call it is, where, and of which group, unless of all ranks."""
        group = calls[0].group
        if group == WORLD:
            return _at(calls)
        lines = _by(self._made[group], lambda call: call.where)
        splits = [f"{_places(alike)} by {_who(alike)}" for alike in lines] if len(lines) > 1 else [lines[0][0].where]
        return f"{_at(calls)}, in the group of {_ranks(self.groups[group])} (split at {_and(splits)})"

    def _with_history(self, error: CommunicationError, group: str) -> CommunicationError:
        """Say when the members of a group first called a collective from several lines: they may have parted there.

        By itself that is no mistake: the root of a broadcast often stands in a branch of its own.
        """
        if calls := self._parted.get(group):
            lines = [f"{_who(alike)} at {alike[0].where}" for alike in _by(calls, lambda call: call.where)]
            told = f". Before, collective {calls[0].number + 1} was called from several lines: {', '.join(lines)}"
            return type(error)(str(error) + told, error.ranks)
        return error


def disagreement(calls: Sequence[Request]) -> CommunicationError | None:
    """The first thing in which calls of one collective differ, as an error; None if they all fit together."""
    if len(differing := _by(calls, lambda call: call.kind)) > 1:
        says = [f"{_who(alike)} {_verb(alike, 'call')} {_at(alike)}" for alike in differing]
        return Mismatch(f"ranks disagree: {', '.join(says)}", _named(differing))
    arrays = [call for call in calls if call.shape is not None]  # in a broadcast only the root has to pass one
    for name, verb, among in (
        ("root", "name", calls),
        ("op", "ask for", calls),
        ("dtype", "pass", arrays),
        ("shape", "pass", arrays),
    ):
        if len(differing := _by(among, lambda call: getattr(call, name))) > 1:  # noqa: B023 - called at once
            says = [
                f"{_who(alike)} {_verb(alike, verb)} {getattr(alike[0], name)} at {_places(alike)}"
                for alike in differing
            ]
            return Mismatch(f"ranks disagree on the {name} of {calls[0].kind}: {', '.join(says)}", _named(differing))
    return None


def stale(digests: Sequence[bytes], members: Sequence[int], name: str, where: str) -> CommunicationError | None:
    """The error, if the digests of one array differ among the members of a group. Rank 0 of it is right in doubt."""
    alike: dict[bytes, list[int]] = {}
    for member, digest in zip(members, digests, strict=True):
        alike.setdefault(digest, []).append(member)
    if len(alike) == 1:
        return None
    right = max(alike.values(), key=len)  # the first of the longest, which is that of rank 0 in doubt
    others = [member for member in members if member not in right]
    return Stale(
        f"{_ranks(others)} {'has' if len(others) == 1 else 'have'} another {name} than {_ranks(right)} at {where}: it "
        "has missed an update, or began with other numbers",
        tuple(others + right),
    )


def _not_a_member(request: Request, members: tuple[int, ...]) -> CommunicationError:
    return NotAMember(
        f"rank {request.rank} calls {_at([request])}, of a group that it is not in: its members are {_ranks(members)}",
        (request.rank,),
    )


def _unequal(send: Request, receive: Request) -> CommunicationError:
    """A send and its receive whose arrays differ."""
    what = "dtypes" if send.dtype != receive.dtype else "shapes"
    return Mismatch(
        f"{what} do not fit: rank {send.rank} sends {send.dtype} of shape {send.shape} to rank {receive.rank} at "
        f"{send.where}, which receives {receive.dtype} of shape {receive.shape} at {receive.where}",
        (receive.rank, send.rank),
    )


def _not_meeting(one: Request, other: Request) -> CommunicationError:
    """A send and a receive of two ranks that wait for each other, and differ in the tag or in the group."""
    send, receive = (one, other) if one.kind == "send" else (other, one)
    if send.group == receive.group:
        what, sent, wanted, among = "tags", f"sends tag {send.tag}", f"waits for tag {receive.tag}", ""
    else:
        what, sent, wanted, among = "groups", "sends", "waits for a message", " in another group"
    return Mismatch(
        f"{what} do not meet: rank {send.rank} {sent} to rank {receive.rank} at {send.where}, and rank {receive.rank} "
        f"{wanted} from rank {send.rank}{among} at {receive.where}",
        (send.rank, receive.rank),
    )


# ------------------------------------------------------------------------------------------------------------- wording


def _by(calls: Iterable[Request], key: Callable[[Request], typing.Any]) -> list[list[Request]]:
    """Calls by what they have in common. The fewest come first: they are likely to be the mistake."""
    found: dict[typing.Any, list[Request]] = {}
    for call in calls:
        found.setdefault(key(call), []).append(call)
    return sorted(found.values(), key=len)


def _alike(calls: Iterable[Request]) -> list[list[Request]]:
    """Calls of the same text, by the first rank."""
    return sorted(_by(calls, lambda call: (_call(call), call.group)), key=lambda alike: alike[0].rank)


def _named(calls: Iterable[list[Request]]) -> tuple[int, ...]:
    """The ranks in the order in which a message has them."""
    return tuple([call.rank for alike in calls for call in alike])


def _call(request: Request) -> str:
    """The call as code, with what tells it from others: "recv(source=1, tag=3)"."""
    given = []
    if request.peer is not None:
        given.append(f"{'source' if request.kind in ('recv', 'wait') else 'to'}={request.peer}")
    if request.source is not None:
        given.append(f"source={request.source}")
    if request.root is not None:
        given.append(f"root={request.root}")
    if request.tag:
        given.append(f"tag={request.tag}")
    return f"{request.kind}({', '.join(given)})" if given else request.kind


def _at(calls: list[Request]) -> str:
    return f"{_call(calls[0])} at {_places(calls)}"


def _places(calls: list[Request]) -> str:
    return _and(list(dict.fromkeys(call.where for call in calls)))


def _who(calls: list[Request]) -> str:
    return _ranks([call.rank for call in calls])


def _ranks(ranks: Sequence[int]) -> str:
    """ "rank 2", "ranks 0, 1 and 3"; of many ranks the first ones and how many more."""
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:6]))} and {len(ranks) - 6} more"
    return f"rank{'s' * (len(ranks) > 1)} {_and([str(rank) for rank in ranks])}"


def _verb(calls: list[Request], verb: str) -> str:
    """One rank calls, several call."""
    first, _, rest = verb.partition(" ")
    return verb if len(calls) > 1 else f"{first}{'es' if first.endswith('ss') else 's'}{' ' * bool(rest)}{rest}"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _array(result: typing.Any) -> np.ndarray | None:
    """A result as an array; NumPy makes a number of what has no axes."""
    return None if result is None else np.asarray(result)
