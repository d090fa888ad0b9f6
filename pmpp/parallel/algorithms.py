"""How the data of each collective travel: the textbook algorithms, in steps of messages.

Each function has the arrays of all ranks of a group before it, and moves them by nothing but messages from one rank to
another. A rank uses what is its own and what has arrived. A *step* is a set of messages that travel at the same time;
in none of them does a rank send, or receive, more than one.

With p ranks, each of which passes an array of n bytes:

    collective       algorithm                       steps            the most that a rank sends, in bytes
    barrier          dissemination                   ceil(log2 p)     0
    broadcast        binomial tree                   ceil(log2 p)     n ceil(log2 p), the root
    reduce           binomial tree, backwards        ceil(log2 p)     n
    reduce_scatter   ring                            p - 1            n (p - 1) / p
    all_gather       ring                            p - 1            n (p - 1)
    all_reduce       ring: the two above in turn     2 (p - 1)        2 n (p - 1) / p
    all_to_all       pairwise                        p - 1            n (p - 1) / p

A tree has few steps, which is good for short messages: each step costs the latency of a message. In a ring each rank
sends less than 2 n bytes however many ranks there are, which is good for long ones. Libraries choose by the size of the
array; here each collective has one algorithm.

Sums depend on their order. It is part of the algorithm, so it is the same in every run, and every rank gets the same
bits. A ring adds up part k of the array from rank k + 1 on, once around, up to rank k.

Source: R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in MPICH (2005);
P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations (2009); D. Hensgen,
R. Finkel and U. Manber, Two algorithms for barrier synchronization (1988).
"""

from __future__ import annotations

import typing

import numpy as np

OPS: dict[str, typing.Callable] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,  # a NaN stays one
    "min": np.minimum,
    "mean": np.add,  # divided by the number of ranks at the end
}

Message = tuple[int, int, np.ndarray]  # from which rank, to which, and what
Arrays = list[np.ndarray]  # one a rank


class Network:
    """What messages travel on. This one copies them; `simulated` has one that counts as well."""

    def step(self, messages: list[Message]) -> Arrays:
        """Send messages at the same time. Returns what has arrived, in the order of the messages."""
        return [data.copy() for _, _, data in messages]


def combine(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a`` and ``b`` by element, in their dtype. Integers wrap and floats overflow to infinity, as on a GPU."""
    with np.errstate(all="ignore"):
        return OPS[op](a, b)


def finish(op: str, total: np.ndarray, size: int) -> np.ndarray:
    """A mean of what was summed over ``size`` ranks; other results as they are."""
    return total / total.dtype.type(size) if op == "mean" else total


# --------------------------------------------------------------------------------------------------------------- trees


def barrier(size: int, network: Network) -> None:
    """In step k, rank r tells rank r + 2^k that it, and all that it has heard of, have arrived.

    After step k a rank has heard of 2^(k + 1) ranks, so ceil(log2 size) steps are enough.
    """
    nothing, distance = np.empty(0, np.uint8), 1
    while distance < size:
        network.step([(rank, (rank + distance) % size, nothing) for rank in range(size)])
        distance *= 2


def broadcast(data: np.ndarray, size: int, root: int, network: Network) -> Arrays:
    """Whoever has the data sends them on: 1 rank has them, then 2, then 4.

    Ranks are counted from the root on: ``at`` is how far behind it a rank is.
    """
    held = {0: data}
    distance = 1
    while distance < size:
        pairs = [(at, at + distance) for at in range(min(distance, size - distance))]
        arrived = network.step([((a + root) % size, (b + root) % size, held[a]) for a, b in pairs])
        held |= {b: copy for (_, b), copy in zip(pairs, arrived, strict=True)}
        distance *= 2
    return [held[(rank - root) % size] for rank in range(size)]


def reduce(parts: Arrays, op: str, root: int, network: Network) -> np.ndarray:
    """The tree of `broadcast` backwards: in each step half of those that still have something send it to the others."""
    size = len(parts)
    held = [parts[(at + root) % size] for at in range(size)]
    distance = 1
    while distance < size:
        distance *= 2
    while (distance := distance // 2) >= 1:
        pairs = [(at + distance, at) for at in range(min(distance, max(size - distance, 0)))]
        arrived = network.step([((a + root) % size, (b + root) % size, held[a]) for a, b in pairs])
        for (_, b), copy in zip(pairs, arrived, strict=True):
            held[b] = combine(op, held[b], copy)
    return finish(op, held[0], size)


# --------------------------------------------------------------------------------------------------------------- rings


def around(pieces: list[list], first: int, network: Network, take: typing.Callable) -> None:
    """Once around the ring: in step s every rank r sends piece r + first - s to rank r + 1.

    ``pieces[rank][k]`` is what a rank has of piece k, and ``take(own, arrived)`` what it has afterwards. What a rank
    receives in one step is what it sends in the next.
    """
    size = len(pieces)
    for step in range(size - 1):
        sent = [(rank, (rank + 1) % size, (rank + first - step) % size) for rank in range(size)]
        arrived = network.step([(source, target, pieces[source][k]) for source, target, k in sent])
        for (_, target, k), data in zip(sent, arrived, strict=True):
            pieces[target][k] = take(pieces[target][k], data)


def sum_pieces(pieces: list[list], op: str, network: Network) -> None:
    """Afterwards rank k has piece k of all ranks, combined.

    Rank k + 1 sends it first. Each rank combines what arrives with its own, and sends that on.
    """
    around(pieces, -1, network, lambda own, arrived: combine(op, arrived, own))


def spread_pieces(pieces: list[list], network: Network) -> None:
    """Rank k has piece k; afterwards everybody has all. What arrives takes the place of what was there."""
    around(pieces, 0, network, lambda own, arrived: arrived)


def all_reduce(parts: Arrays, op: str, network: Network) -> Arrays:
    """Cut each array into as many pieces as there are ranks. Sum the pieces on their way round, then hand them round.

    Where the length is no multiple of the number of ranks, the first pieces have one element more.
    """
    size, shape = len(parts), parts[0].shape
    pieces = [np.array_split(part.reshape(-1), size) for part in parts]
    sum_pieces(pieces, op, network)
    for rank in range(size):
        pieces[rank][rank] = finish(op, pieces[rank][rank], size)
    spread_pieces(pieces, network)
    return [np.concatenate(own).reshape(shape) for own in pieces]


def reduce_scatter(parts: Arrays, op: str, network: Network) -> Arrays:
    """Rank k gets the sum of all ``part[k]``: the first half of `all_reduce`."""
    size = len(parts)
    pieces = [list(part) for part in parts]
    sum_pieces(pieces, op, network)
    return [finish(op, np.asarray(pieces[rank][rank]), size) for rank in range(size)]


def all_gather(parts: Arrays, network: Network) -> Arrays:
    """Everybody gets all arrays, stacked: the second half of `all_reduce`."""
    size = len(parts)
    pieces: list[list] = [[None] * size for _ in range(size)]
    for rank, part in enumerate(parts):
        pieces[rank][rank] = part
    spread_pieces(pieces, network)
    return [np.stack(own) for own in pieces]


# --------------------------------------------------------------------------------------------------------------- pairs


def all_to_all(parts: Arrays, network: Network) -> Arrays:
    """Rank r gets ``part[r]`` of every rank. In step s a rank sends to the one s places further on."""
    size = len(parts)
    results = [np.empty_like(part) for part in parts]
    for rank in range(size):
        results[rank][rank] = parts[rank][rank]
    for step in range(1, size):
        pairs = [(rank, (rank + step) % size) for rank in range(size)]
        arrived = network.step([(source, target, np.asarray(parts[source][target])) for source, target in pairs])
        for (source, target), data in zip(pairs, arrived, strict=True):
            results[target][source] = data
    return results


def carry_out(kind: str, parts: list, op: str | None, root: int | None, network: Network) -> list:
    """The results of all ranks of a group, from the arrays of all: None for a rank that gets none.

    Args:
        kind: the collective.
        parts: an array a rank, on the host; only the root's counts for "broadcast", and none for "barrier".
        op: a name in `OPS`, for "reduce", "all_reduce" and "reduce_scatter".
        root: the rank that sends, or receives, in "broadcast" and "reduce".

    >>> carry_out("all_reduce", [np.array([1, 2]), np.array([10, 20])], "sum", None, Network())
    [array([11, 22]), array([11, 22])]
    """
    size = len(parts)
    if kind == "barrier":
        barrier(size, network)
        return [None] * size
    if kind == "broadcast":
        return broadcast(parts[root], size, root, network)
    if kind == "reduce":
        total = reduce(parts, op, root, network)
        return [total if rank == root else None for rank in range(size)]
    if kind == "all_reduce":
        return all_reduce(parts, op, network)
    if kind == "reduce_scatter":
        return reduce_scatter(parts, op, network)
    return {"all_gather": all_gather, "all_to_all": all_to_all}[kind](parts, network)
