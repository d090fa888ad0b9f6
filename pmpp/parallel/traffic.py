"""What simulated ranks send to one another: counted by link, and timed by a model.

The time of a message is that of the alpha-beta model: alpha seconds for each, however short, and beta seconds for each
byte. Every rank has a clock. A message sets the clocks of both its ranks to the time at which it has arrived.

Source: R. W. Hockney, The communication challenge for MPP (1994).
"""

from __future__ import annotations

import collections
from dataclasses import dataclass

import numpy as np

from pmpp.parallel import algorithms
from pmpp.parallel.switchboard import POINT, Answers, Request
from pmpp.runtime.check import as_integer, as_number
from pmpp.simt.observe.tables import Table

__all__ = ["Links", "Nodes", "Report", "Traffic"]

ROWS = 24  # of links that a report prints


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

    def seconds(self, nbytes: float) -> float:
        """The time of one message."""
        return self.latency + nbytes / self.bandwidth

    def of(self, source: int, target: int) -> Links:
        """The link from one rank to another: these."""
        return self


@dataclass(frozen=True)
class Nodes:
    """Machines with ``size`` ranks each, in the order of the ranks: links ``inside`` one, and ``between`` two of them.

    Every rank has a link of its own out of its machine, as where each GPU has a network adapter.

    >>> fast, slow = Links(1e-6, 100e9), Links(5e-6, 10e9)
    >>> Nodes(4, fast, slow).of(3, 4).latency
    5e-06
    """

    size: int
    inside: Links
    between: Links

    def __post_init__(self) -> None:
        as_integer("size", self.size, 1)
        for name in ("inside", "between"):
            if not isinstance(getattr(self, name), Links):
                raise TypeError(f"{name} must be Links(latency, bandwidth), was {type(getattr(self, name)).__name__}")

    def of(self, source: int, target: int) -> Links:
        """The link from one rank to another."""
        return self.inside if source // self.size == target // self.size else self.between


class Traffic:
    """What was sent, and when it would have arrived.

    Attributes: messages, nbytes: by the ranks (from, to); kinds: by the kind of call, how often it was carried out, its
    messages and its bytes; clocks: seconds by rank, which stay 0 without ``links``.
    """

    def __init__(self, size: int, links: Links | Nodes | None) -> None:
        self.links, self.clocks = links, [0.0] * size
        self.messages: collections.Counter[tuple[int, int]] = collections.Counter()
        self.nbytes: collections.Counter[tuple[int, int]] = collections.Counter()
        self.kinds: dict[str, list[int]] = {}
        self.kind = ""  # of the call that messages belong to
        self._entered: dict[int, float] = {}  # by rank in a send_recv, its clock when it began
        self.signals: dict[tuple, list[float]] = {}  # by group, from and to: when they arrive

    def between(self, members: tuple[int, ...]) -> CountedNetwork:
        """The network of one call of a group."""
        self.kinds.setdefault(self.kind, [0, 0, 0])[0] += 1
        return CountedNetwork(self, members)

    def enter(self, request: Request) -> None:
        """A rank makes a call."""
        self.kind = "send" if request.kind in POINT else request.kind
        if request.kind == "send_recv":  # what it sends does not wait for what it receives
            self._entered[request.rank] = self.clocks[request.rank]

    def leave(self, answers: Answers) -> None:
        """Ranks are answered."""
        for rank, _ in answers:
            self._entered.pop(rank, None)

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
            if self.kind == "signal":  # which nobody waits for yet
                continue
            takes = self.links.of(source, target).seconds(nbytes) if self.links else 0.0
            begins = max(self._entered.get(rank, self.clocks[rank]) for rank in (source, target))
            ends.append((source, target, begins + takes))
        for source, target, end in ends:
            self.clocks[source], self.clocks[target] = max(self.clocks[source], end), max(self.clocks[target], end)

    def one_sided(self, source: int, target: int, nbytes: int, rank: int) -> None:
        """A message that ``rank`` reads or writes by itself: the clock of the other rank does not wait for it."""
        self.messages[source, target] += 1
        self.nbytes[source, target] += nbytes
        counts = self.kinds.setdefault("write" if rank == source else "read", [0, 0, 0])
        counts[:] = counts[0] + 1, counts[1] + 1, counts[2] + nbytes
        self.clocks[rank] += self.links.of(source, target).seconds(nbytes) if self.links else 0.0

    def signal(self, group: str, source: int, target: int) -> None:
        """A signal is on its way; who sends it does not wait."""
        takes = self.links.of(source, target).seconds(0) if self.links else 0.0
        self.signals.setdefault((group, source, target), []).append(self.clocks[source] + takes)

    def wait(self, group: str, source: int, target: int) -> None:
        """Who waits for a signal goes on when it has arrived."""
        self.clocks[target] = max(self.clocks[target], self.signals[group, source, target].pop(0))


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
