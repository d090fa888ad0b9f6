"""Exercises of notebooks/99_all_reduce.ipynb: around a ring, a step of its sum, the choice by size, signals."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp import parallel
from pmpp.kernels import elementwise
from pmpp.parallel import all_reduce
from pmpp.parallel.exercises import Exercise, Mistake
from pmpp.parallel.owners import ForeignMemory, UnwrittenMemory
from pmpp.parallel.switchboard import CommunicationError, Deadlock
from pmpp.parallel.traffic import Links
from pmpp.parallel.windows import Unordered
from pmpp.runtime import device

LENGTHS = (1, 1024, 2**20, 2**34)  # bytes
SECOND = Links(latency=1.0, bandwidth=1e30)  # a message takes a second, however long it is


def ranks_of(case: str, size: int, function: Callable, *args: typing.Any) -> typing.Any:
    """What ranks return; a mistake, if what they call does not fit together."""
    try:
        return parallel.ranks(size, function, *args, links=SECOND)
    except Deadlock as error:
        raise Mistake("deadlock", f"{case} {str(error).removeprefix('deadlock: ')}") from error
    except (ForeignMemory, UnwrittenMemory) as error:
        raise Mistake("memory", f"{case}: {error}") from error
    except CommunicationError as error:
        raise Mistake("calls do not meet", f"{case}: {error}") from error


# ------------------------------------------------------------------------------------------------ around a ring


def pass_right(group: typing.Any, x: typing.Any) -> typing.Any:
    """Send x to the right neighbour, and return what the left one has sent: with `send` and `recv` alone."""
    if group.size == 1:
        return x
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    box = device.empty(x.shape, x.dtype)
    if group.rank % 2:
        group.recv(box, left)
        group.send(x, right)
    else:
        group.send(x, right)
        group.recv(box, left)
    return box


def judge_pass_right(answer: Callable) -> str:
    """The left neighbour's array, in at most three messages in a row, for even and odd numbers, and for one rank."""

    def step(group: typing.Any) -> typing.Any:
        x = device.to_device(np.full(3, 10.0 * group.rank, np.float32))
        found = answer(group, x)
        return None if found is None else (device.to_host(found), device.to_host(x))

    for size in (2, 4, 3, 7, 1):
        case = f"with {size} rank{'s' * (size > 1)}"
        found = ranks_of(case, size, step)
        for rank, got in enumerate(found):
            if got is None:
                raise Mistake("nothing returned", f"{case} rank {rank} returned None: return what has arrived")
            left, (result, x) = (rank - 1) % size, got
            if result.shape != (3,) or not (result == 10 * left).all():
                raise Mistake(
                    "wrong neighbour",
                    f"{case} rank {rank} must return what rank {left} had, {10.0 * left}, was {result}",
                )
            if not (x == 10 * rank).all():
                raise Mistake("x changes", f"{case} rank {rank}'s own array has changed: receive into another one")
        kinds = {kind: counts[0] for kind, counts in found.report.kinds.items()}
        if {*kinds} - {"send"}:
            raise Mistake(
                "another call", f"{case} it calls {', '.join(sorted({*kinds} - {'send'}))}: use send and recv"
            )
        if kinds.get("send", 0) > size:
            raise Mistake("too many messages", f"{case} there are {kinds['send']} messages; {size} are enough")
        late = max(found.report.seconds)
        if size > 1 and late < 2:  # a rank that sends and then receives, or the other way round, takes two messages
            raise Mistake("another call", f"{case} it calls send_recv, which does both at once: use send and recv")
        if late > 3:
            raise Mistake(
                "one after another",
                f"{case} {late:.0f} messages follow one another, since each rank waits for the one before: let every "
                "second rank receive first",
            )
    return "Every second rank receives first, so half of the messages travel at a time. One rank sends nothing."


# ------------------------------------------------------------------------------------------------ a step of the ring


def ring_step(group: typing.Any, pieces: list, step: int) -> None:
    """Step ``step`` of the first half of a ring: a piece goes to the right, and one from the left is added."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sent, summed = pieces[(group.rank - step) % group.size], pieces[(group.rank - step - 1) % group.size]
    box = device.empty(summed.shape, np.float32)
    group.send_recv(sent, right, box, left)
    elementwise.add(summed, box, out=summed)


def judge_ring_step(answer: Callable) -> str:
    """After size - 1 steps rank r has the sum of piece r + 1, and has sent size - 1 pieces to the right."""

    def run(group: typing.Any) -> list[np.ndarray]:
        pieces = [device.to_device(part) for part in parts[group.rank]]
        for step in range(group.size - 1):
            answer(group, pieces, step)
        return [device.to_host(piece) for piece in pieces]

    for size in (2, 3, 4, 5):
        case = f"with {size} ranks"
        # Piece k has k + 1 elements. A number tells of which ranks it is the sum, and how often each is in it.
        parts = [[np.full(k + 1, 10.0**rank, np.float32) for k in range(size)] for rank in range(size)]
        found = ranks_of(case, size, run)
        if not found.report.messages:
            raise Mistake("not started", f"{case} no rank has sent anything")
        whole = float(sum(10**rank for rank in range(size)))
        for rank, pieces in enumerate(found):
            k = (rank + 1) % size
            if len(pieces) != size or pieces[k].shape != (k + 1,):
                raise Mistake("pieces change", f"{case} rank {rank} must keep {size} pieces of their lengths")
            value = float(pieces[k][0])
            if value == whole and (pieces[k] == whole).all():
                continue
            raise _of_ring(case, rank, k, value, whole, pieces)
        _links(case, size, found.report)
    return "Each piece is summed on its way, and ends where the second half begins: at rank r the sum of piece r + 1."


def _of_ring(case: str, rank: int, k: int, value: float, whole: float, pieces: list[np.ndarray]) -> Mistake:
    """What is wrong with a piece that should be the sum of all."""
    digits = [int(value) // 10**r % 10 for r in range(len(pieces))]
    elsewhere = [j for j, piece in enumerate(pieces) if (piece == whole).all()]
    if elsewhere:
        return Mistake(
            "another piece",
            f"{case} rank {rank} has the sum of piece {elsewhere[0]}, and should have that of piece {k}: in step 0 "
            "rank r sends piece r",
        )
    if max(digits) > 1:
        which = digits.index(max(digits))
        return Mistake("added twice", f"{case} piece {k} of rank {rank} has the part of rank {which} twice or more")
    if all(piece[0] in [10.0**r for r in range(len(pieces))] for piece in pieces):
        return Mistake(
            "not added", f"{case} each piece of rank {rank} has one part alone: add what arrives to what is there"
        )
    have = [r for r, digit in enumerate(digits) if digit]
    return Mistake(
        "parts missing",
        f"{case} piece {k} of rank {rank} has the parts of the ranks {have} alone: what is received in one step is "
        "to be sent in the next",
    )


def _links(case: str, size: int, report: typing.Any) -> None:
    """Each rank has sent each piece but one to the right, all at once."""
    wrong = [link for link in report.messages if link[1] != (link[0] + 1) % size]
    if wrong:
        raise Mistake("another link", f"{case} rank {wrong[0][0]} sends to rank {wrong[0][1]}: send to the right alone")
    most = max(report.nbytes.values())
    least = 4 * (size * (size + 1) // 2 - 1)  # all pieces but the shortest
    if most > least:
        raise Mistake(
            "too many bytes", f"{case} a rank sends {most} bytes, where {least} are enough: send one piece in a step"
        )
    if max(report.seconds) > size - 1:
        raise Mistake(
            "one after another",
            f"{case} {max(report.seconds):.0f} messages follow one another, where {size - 1} are enough: send and "
            "receive at the same time, with send_recv",
        )


# ------------------------------------------------------------------------------------------------ the choice


def choose(size: int, nbytes: int, latency: float, bandwidth: float) -> str:
    """The name of the faster algorithm by the alpha-beta model: "doubling" or "ring"; size is a power of two."""
    steps = size.bit_length() - 1
    doubling = steps * (latency + nbytes / bandwidth)
    ring = 2 * (size - 1) * (latency + nbytes / size / bandwidth)
    return "doubling" if doubling <= ring else "ring"


def judge_choose(answer: Callable) -> str:
    """Right for short and long arrays, few and many ranks, slow and fast links, and near the border."""
    both = (all_reduce.doubling, all_reduce.ring)
    for size in (2, 4, 8, 64, 1024):
        for latency, bandwidth in ((2e-6, 10e9), (30e-6, 1e9), (1e-6, 400e9)):
            links = Links(latency, bandwidth)
            lengths = [*LENGTHS]
            if (border := border_of(size, links)) is not None:
                lengths += [int(border * 0.97), int(border * 1.03)]
            for nbytes in lengths:
                times = {one.__name__: all_reduce.seconds(one, size, nbytes, links) for one in both}
                name = answer(size, nbytes, latency, bandwidth)
                case = (
                    f"{size} ranks, {nbytes:,} bytes, {1e6 * latency:g} us a message, {bandwidth / 1e9:g} GB/s: "
                    + " and ".join(f"{one} takes {1e6 * t:,.4g} us" for one, t in times.items())
                )
                if name is None:
                    raise Mistake("nothing returned", "choose() returned None")
                if name not in times:
                    raise Mistake("no name", f'the result must be "doubling" or "ring", was {name!r}')
                if times[name] > (1 + 1e-9) * min(times.values()):
                    words = {
                        "ring": ("too many messages", "it has more of them in a row"),
                        "doubling": ("too many bytes", "each of its messages has the whole array"),
                    }[name]
                    if nbytes not in LENGTHS:
                        words = "the border", "it depends on size, latency and bandwidth: compare the two times"
                    raise Mistake(words[0], f"{case}, and the answer is {name}: {words[1]}")
    return "The two times are compared, and where they cross moves with the ranks and with the links."


def border_of(size: int, links: Links) -> float | None:
    """The length from which the ring is the faster one; None, if it never is."""
    (m, c), (n, d) = (all_reduce.critical_path(one, size) for one in (all_reduce.doubling, all_reduce.ring))
    return (n - m) * links.latency * links.bandwidth / (c - d) if c > d else None


# ------------------------------------------------------------------------------------------------ signals

ROUNDS = 4
ONE_SIDED = {"write", "signal", "wait"}


def in_boxes(group: typing.Any, window: typing.Any, x: typing.Any, number: int) -> float:
    """The sum of all ranks' numbers, each written into the boxes of the others; ``number`` counts the rounds."""
    half = number % 2 * group.size
    others = [rank for rank in range(group.size) if rank != group.rank]
    for peer in others:
        window.write(x, to=peer, at=half + group.rank)
        window.signal(to=peer)
    for peer in others:
        window.wait(source=peer)
    rows = device.to_host(window.rows(half, group.size))
    return float(device.to_host(x)[0] + sum(rows[peer] for peer in others))


def judge_in_boxes(answer: Callable) -> str:
    """Right sums in several rounds, with a signal between each write and what is read before and after it."""

    def run(group: typing.Any) -> list:
        window = group.window(device.to_device(np.zeros(2 * group.size, np.float32)))
        found = []
        for number in range(ROUNDS):
            x = device.to_device(np.full(1, 10.0**group.rank * (number + 1), np.float32))
            found.append(answer(group, window, x, number))
        return found

    for size in (2, 3, 4, 1):
        case = f"with {size} rank{'s' * (size > 1)}"
        try:
            found = ranks_of(case, size, run)
        except Mistake as mistake:
            if isinstance(mistake.__cause__, Unordered):
                raise Mistake("no signal between", f"{case} {mistake.__cause__}") from mistake.__cause__
            raise
        whole = sum(10**rank for rank in range(size))
        for rank, results in enumerate(found):
            for number, result in enumerate(results):
                if result is None:
                    raise Mistake("nothing returned", f"{case} rank {rank} returned None: return the sum")
                value, wanted = number_of(result), whole * (number + 1)
                if value != wanted:
                    raise Mistake(
                        "wrong sum",
                        f"{case} rank {rank} must return {wanted} in round {number}, was {value:g}: "
                        "each rank's number once, the own one too",
                    )
        kinds = {kind: counts for kind, counts in found.report.kinds.items() if kind != "window"}
        if {*kinds} - ONE_SIDED:
            others = ", ".join(sorted({*kinds} - ONE_SIDED))
            raise Mistake("another call", f"{case} it calls {others}: use write, signal, wait and rows of the window")
        least = 4 * size * (size - 1) * ROUNDS
        if (sent := kinds.get("write", (0, 0, 0))[2]) > least:
            raise Mistake(
                "too many bytes", f"{case} {sent} bytes are written in {ROUNDS} rounds, where {least} are enough"
            )
    return "A signal follows each write, and halves take turns: whoever has heard of the next round may write again."


def number_of(result: typing.Any) -> float:
    """A number that was returned, or the only element of an array."""
    array = result if np.isscalar(result) else device.to_host(result)
    return float(np.asarray(array).reshape(-1)[0])


EXERCISES = (
    Exercise(
        "all_reduce/pass_right",
        "Find the deadlock, and mend it: send x to the right neighbour and return what the left one has sent, with "
        "send and recv alone. It has to work for any number of ranks, and without each waiting for the one before.",
        "pass_right(group, x)",
        judge_pass_right,
        (
            "send returns when the other rank receives. Draw who waits for whom if all send first.",
            "Let some ranks receive first. If only rank 0 does, the others go on one after another: which could?",
            "The ranks with an odd number receive first. One rank alone has no neighbour but itself.",
        ),
        pass_right,
    ),
    Exercise(
        "all_reduce/ring_step",
        "Write one step of the first half of the ring: send a piece to the right, receive one from the left, and add "
        "it to what is there. In step 0 rank r sends piece r. pieces is a list of device arrays, one for each rank, of "
        "different lengths.",
        "ring_step(group, pieces, step)",
        judge_ring_step,
        (
            "What a rank receives in one step it sends in the next.",
            "In step s rank r sends piece r - s, and its left neighbour sends piece r - 1 - s; both modulo the size.",
            "Receive into device.empty(piece.shape, np.float32), and add with elementwise.add(a, b, out=a).",
        ),
        ring_step,
    ),
    Exercise(
        "all_reduce/choose",
        'Return "doubling" or "ring": the one that takes less time by the alpha-beta model. size is a power of two, '
        "nbytes the length of the array, latency in seconds, bandwidth in bytes a second.",
        "choose(size, nbytes, latency, bandwidth)",
        judge_choose,
        (
            "Doubling has log2(size) messages in a row, each with the whole array.",
            "The ring has 2 (size - 1) messages in a row, each with an array divided by size.",
        ),
        choose,
    ),
    Exercise(
        "all_reduce/in_boxes",
        "Return the sum of all ranks' numbers, without messages that meet. x is a device array of one float32. window "
        "has 2 * group.size rows on each rank, as `packets_kernel` has two halves of a box. It is the same in every "
        "call, and number counts the calls from 0. Write x into the windows of the others, and tell them by signals.",
        "in_boxes(group, window, x, number)",
        judge_in_boxes,
        (
            "window.write(x, to=peer, at=row), then window.signal(to=peer); window.wait(source=peer), then "
            "window.rows(first, count).",
            "In round number the rows from number % 2 * group.size on are used: row r of them is for rank r.",
            "With one half for all rounds, a rank may write a row that the other one has not read yet.",
        ),
        in_boxes,
    ),
)
