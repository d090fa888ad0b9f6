"""All-reduce by messages: six algorithms that a rank can read from top to bottom.

Chapter: notebooks/99_all_reduce.ipynb.  PMPP 4e ch. 20.

Every rank has an array of n bytes, and afterwards all have the sum of all arrays. An algorithm is a program that each
rank runs, made of `Group.send`, `Group.recv` and `Group.send_recv`, and of additions by a kernel. What a rank waits for
is a chain of messages, one after the other. By the alpha-beta model each costs alpha seconds, and beta for each byte.
`critical_path` says how many messages the chain has, and how many times n bytes they carry in all:

    algorithm            messages in a row    times n bytes       memory besides
    through_one          2 (p - 1)            2 (p - 1)           n
    tree                 2 ceil(log2 p)       2 ceil(log2 p)      n
    gather_and_sum       p - 1                p - 1               p n
    doubling             log2 p               log2 p              n
    ring                 2 (p - 1)            2 (p - 1) / p       n / p
    halving              2 log2 p             2 (p - 1) / p       n / 2

The last rows are for a power of two. No algorithm has fewer messages in a row than log2 p, since a rank can hear of
twice as many others with each. None carries less than 2 (p - 1) / p times n: a rank has to hear of the p - 1 other
shares of its part, and of the sums of p - 1 other parts. `doubling` reaches the first bound, `ring` the second.

All ranks get the same bits. The order of the sum differs from one algorithm to the next, so their bits may, too.

Source: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH (2005);
E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, Collective communication: theory, practice, and experience
(2007), for the bounds.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels import elementwise
from pmpp.parallel.group import Group
from pmpp.parallel.traffic import Links
from pmpp.runtime import device
from pmpp.runtime.check import as_integer

__all__ = [
    "LADDER",
    "all_reduce",
    "critical_path",
    "doubling",
    "fastest",
    "gather_and_sum",
    "halving",
    "ring",
    "seconds",
    "through_one",
    "tree",
]


def begin(x: typing.Any) -> tuple[typing.Any, typing.Any, tuple[int, ...]]:
    """A copy of a rank's array as a vector, in which the sum is made; an empty one for what arrives; the shape.

    x is a float32 array of any shape. Raises TypeError and ValueError otherwise.
    """
    x = device.as_input("x", x, dtypes=("float32",), ndim=tuple(range(33)))
    total = device.empty(x.size, np.float32)
    if x.size:
        elementwise.assign(total, x.reshape(-1))
    return total, device.empty(x.size, np.float32), tuple(x.shape)


def add(total: typing.Any, arrived: typing.Any) -> None:
    """Add what has arrived to what is there, by a kernel."""
    if total.size:
        elementwise.add(total, arrived, out=total)


def through_one(group: Group, x: typing.Any) -> typing.Any:
    """Everybody sends to rank 0, which adds, and sends the sum to everybody.

    Leaves: rank 0 sends and receives one array after another, while all others wait.
    """
    total, box, shape = begin(x)
    if group.rank == 0:
        for source in range(1, group.size):
            group.recv(box, source)
            add(total, box)
        for to in range(1, group.size):
            group.send(total, to)
    else:
        group.send(total, 0)
        group.recv(total, 0)
    return total.reshape(shape)


def tree(group: Group, x: typing.Any) -> typing.Any:
    """Neighbours add in pairs, then pairs of pairs; the sum comes back the same way. Rank 0 takes log2 p messages.

    Source: Thakur, Rabenseifner and Gropp, section 3, binomial trees.
    Leaves: half of the ranks are idle after the first step, and all but one at the top.
    """
    total, box, shape = begin(x)
    distances = [1 << k for k in range((group.size - 1).bit_length())]
    for distance in distances:
        if group.rank % (2 * distance) == distance:
            group.send(total, group.rank - distance)
            break
        if group.rank + distance < group.size:
            group.recv(box, group.rank + distance)
            add(total, box)
    for distance in reversed(distances):
        if group.rank % (2 * distance) == distance:
            group.recv(total, group.rank - distance)
        elif group.rank % (2 * distance) == 0 and group.rank + distance < group.size:
            group.send(total, group.rank + distance)
    return total.reshape(shape)


def gather_and_sum(group: Group, x: typing.Any) -> typing.Any:
    """Everybody sends to everybody, and each adds for itself, in the order of the ranks.

    Leaves: every rank receives p - 1 arrays, keeps them all, and does all additions.
    """
    mine, _, shape = begin(x)
    parts = device.empty((group.size, mine.size), np.float32)
    if mine.size:
        elementwise.assign(parts[group.rank], mine)
    for distance in range(1, group.size):
        right, left = (group.rank + distance) % group.size, (group.rank - distance) % group.size
        group.send_recv(mine, right, parts[left], left)
    total = parts[0]
    for part in range(1, group.size):
        add(total, parts[part])
    return total.reshape(shape)


def doubling(group: Group, x: typing.Any) -> typing.Any:
    """Pairs exchange what they have, and both add: after step k a rank has the sum of 2^(k + 1) ranks.

    Ranks beyond the largest power of two give their arrays to others first, and are given the sum.

    Source: Thakur, Rabenseifner and Gropp, section 4.4, recursive doubling.
    Leaves: each message has the whole array, so long arrays cross the link log2 p times.
    """
    total, box, shape = begin(x)
    power = 1 << (group.size.bit_length() - 1)
    if joins(group, total, box, power):
        for distance in (1 << k for k in range(power.bit_length() - 1)):
            partner = group.rank ^ distance
            group.send_recv(total, partner, box, partner)
            add(total, box)
    leaves(group, total, power)
    return total.reshape(shape)


def ring(group: Group, x: typing.Any) -> typing.Any:
    """Cut the array into p pieces. Each goes once around and is summed on its way, and then around again as a sum.

    In every step all ranks send a piece to the right, and receive one from the left. No rank sends more than 2 n bytes,
    however many ranks there are.

    Source: P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations (2009).
    Leaves: 2 (p - 1) messages in a row, each of which costs its alpha.
    """
    total, box, shape = begin(x)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    bounds = [total.size * k // group.size for k in range(group.size + 1)]
    pieces = [total[first:last] for first, last in itertools.pairwise(bounds)]
    for step in range(group.size - 1):
        sent, received = pieces[(group.rank - step) % group.size], pieces[(group.rank - step - 1) % group.size]
        arrived = box[: received.size]
        group.send_recv(sent, right, arrived, left)
        add(received, arrived)
    for step in range(group.size - 1):
        sent, received = pieces[(group.rank + 1 - step) % group.size], pieces[(group.rank - step) % group.size]
        group.send_recv(sent, right, received, left)
    return total.reshape(shape)


def halving(group: Group, x: typing.Any) -> typing.Any:
    """Pairs exchange halves, then halves of halves, until each rank has the sum of one piece; and back in doubles.

    The bytes of the ring in the steps of a tree.

    Source: R. Rabenseifner, Optimization of collective reduction operations (2004).
    Leaves: twice the messages of `doubling`, and partners that are far away, where the ring needs neighbours alone.
    """
    total, box, shape = begin(x)
    power = 1 << (group.size.bit_length() - 1)
    bounds = [total.size * k // power for k in range(power + 1)]
    distances = [1 << k for k in range(power.bit_length() - 1)]
    if joins(group, total, box, power):
        for distance in reversed(distances):
            mine, theirs = halves(group.rank, distance, bounds)
            arrived = box[: mine.stop - mine.start]
            group.send_recv(total[theirs], group.rank ^ distance, arrived, group.rank ^ distance)
            add(total[mine], arrived)
        for distance in distances:
            mine, theirs = halves(group.rank, distance, bounds)
            group.send_recv(total[mine], group.rank ^ distance, total[theirs], group.rank ^ distance)
    leaves(group, total, power)
    return total.reshape(shape)


def halves(rank: int, distance: int, bounds: list[int]) -> tuple[slice, slice]:
    """What a rank and its partner at a distance keep of the elements that both have.

    >>> halves(2, 1, [0, 10, 20, 30, 40]), halves(2, 2, [0, 10, 20, 30, 40])
    ((slice(20, 30, None), slice(30, 40, None)), (slice(20, 40, None), slice(0, 20, None)))
    """
    mine = rank // distance * distance
    theirs = mine ^ distance
    return slice(bounds[mine], bounds[mine + distance]), slice(bounds[theirs], bounds[theirs + distance])


def joins(group: Group, total: typing.Any, box: typing.Any, power: int) -> bool:
    """Whether a rank is among the first ``power``. The others give their arrays to some of these."""
    if group.rank >= power:
        group.send(total, group.rank - power)
        return False
    if group.rank + power < group.size:
        group.recv(box, group.rank + power)
        add(total, box)
    return True


def leaves(group: Group, total: typing.Any, power: int) -> None:
    """The ranks beyond the first ``power`` get the sum."""
    if group.rank >= power:
        group.recv(total, group.rank - power)
    elif group.rank + power < group.size:
        group.send(total, group.rank + power)


LADDER = (through_one, tree, gather_and_sum, doubling, ring, halving)


# ----------------------------------------------------------------------------------------------------------- the model


def critical_path(algorithm: Callable, size: int) -> tuple[int, float]:
    """Messages in a row, and how many times the array's bytes they carry.

    Args:
        algorithm: a function of `LADDER`.
        size: how many ranks.

    >>> critical_path(ring, 8), critical_path(doubling, 8)
    ((14, 1.75), (3, 3.0))
    """
    size = as_integer("size", size, 1)
    up, down = (size - 1).bit_length(), size.bit_length() - 1  # the logarithm, rounded
    power = 1 << down
    fold = 2 if size > power else 0
    found = {
        through_one: (2 * (size - 1), 2.0 * (size - 1)),
        tree: (2 * up, 2.0 * up),
        gather_and_sum: (size - 1, size - 1.0),
        doubling: (down + fold, float(down + fold)),
        ring: (2 * (size - 1), 2.0 * (size - 1) / size),
        halving: (2 * down + fold, 2.0 * (power - 1) / power + fold),
    }
    if algorithm not in found:
        raise ValueError(f"algorithm must be one of {', '.join(one.__name__ for one in LADDER)}, was {algorithm!r}")
    return found[algorithm]


def seconds(algorithm: Callable, size: int, nbytes: int, links: Links) -> float:
    """The time of an algorithm by the alpha-beta model: for ``nbytes`` that the pieces divide, that of the clocks.

    >>> seconds(doubling, 8, 1000, Links(latency=1.0, bandwidth=1000.0))
    6.0
    """
    messages, copies = critical_path(algorithm, size)
    return messages * links.latency + copies * nbytes / links.bandwidth


def fastest(size: int, nbytes: int, links: Links) -> Callable:
    """The algorithm with the least time by the model; the first of `LADDER` of several.

    >>> fastest(8, 8, Links(2e-6, 10e9)).__name__, fastest(6, 1 << 30, Links(2e-6, 10e9)).__name__
    ('doubling', 'ring')
    """
    return min(LADDER, key=lambda algorithm: seconds(algorithm, size, nbytes, links))


def all_reduce(group: Group, x: typing.Any, links: Links) -> typing.Any:
    """The sum of all ranks' arrays, by the algorithm that is the fastest on such links.

    Args:
        group: of all ranks that call it.
        x: a float32 array, of one shape on all ranks.
        links: what a message costs.

    Returns a new array, with the same bits on all ranks.

    >>> from pmpp import parallel
    >>> links = Links(latency=2e-6, bandwidth=10e9)
    >>> parallel.ranks(3, lambda group: all_reduce(group, np.float32([1, group.rank]), links).copy_to_host())[0]
    array([3., 3.], dtype=float32)
    """
    if not isinstance(links, Links):
        raise TypeError(f"links must be Links(latency, bandwidth), was {type(links).__name__}")
    nbytes = device.as_input("x", x, dtypes=("float32",), ndim=tuple(range(33))).nbytes
    return fastest(group.size, nbytes, links)(group, x)
