"""Exercises of notebooks/103_halo_exchange.ipynb: filling a halo, how wide it should be, and finding a deadlock."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence

import numpy as np

from pmpp.parallel.exercises import Exercise, Mistake
from pmpp.parallel.exercises.all_reduce import ranks_of
from pmpp.runtime import device
from pmpp.runtime.check import as_integer

# -------------------------------------------------------------------------------------------------- filling a halo


def exchange(group: typing.Any, cells: typing.Any) -> None:
    """Fill the first and the last row of ``cells`` with what the ranks above and below have beside them."""
    above, below = group.rank - 1, group.rank + 1
    for parity in (0, 1):
        if group.rank % 2 == parity:
            if below < group.size:
                group.send_recv(cells[-2:-1], below, cells[-1:], below)
        elif above >= 0:
            group.send_recv(cells[1:2], above, cells[:1], above)


def held(rank: int, rows: int) -> np.ndarray:
    """What a rank has: row i has 100 rank + i, and the halo at the beginning -1 above and -2 below."""
    cells = np.repeat(100.0 * rank + np.arange(rows + 2, dtype=np.float32)[:, None], 3, axis=1).astype(np.float32)
    cells[0], cells[-1] = -1, -2
    return cells


def judge_exchange(answer: Callable) -> str:
    """Halos and cells of all ranks; the ends of the line; and how many messages follow one another."""

    def step(group: typing.Any) -> np.ndarray:
        cells = device.to_device(held(group.rank, rows))
        answer(group, cells)
        return device.to_host(cells)

    for size, rows in ((2, 4), (3, 2), (6, 3), (5, 1), (1, 3)):
        case = f"with {size} rank{'s' * (size > 1)} of {rows} row{'s' * (rows > 1)}"
        found = ranks_of(case, size, step)
        for rank, cells in enumerate(found):
            if not (cells[1:-1] == held(rank, rows)[1:-1]).all():
                raise Mistake("own cells changed", f"{case} rank {rank} had {rows} rows of its own, and they changed")
            for place, other, name in ((0, rank - 1, "first"), (-1, rank + 1, "last")):
                _judge_halo(f"{case} the {name} row of rank {rank}", cells[place], place, other, rank, rows, size)
        late = max(found.report.seconds)
        if late > 4:
            raise Mistake(
                "one after another",
                f"{case} {late:.0f} messages follow one another, and 4 are enough: let pairs of ranks exchange at the "
                "same time",
            )
    return "All halos are filled, the ends of the line keep theirs, and at most four messages follow one another."


def _judge_halo(case: str, row: np.ndarray, place: int, other: int, rank: int, rows: int, size: int) -> None:
    """One row of halo. ``other`` is the rank that it belongs to, if there is one."""
    got, kept = float(row[0]), -1.0 if place == 0 else -2.0
    if not 0 <= other < size:
        if not (row == kept).all():
            raise Mistake("the ends changed", f"{case} is the border of the plate: nobody is there. It became {got}")
        return
    border, across = (rows, 1) if place == 0 else (1, rows)
    wanted = 100.0 * other + border
    if (row == wanted).all():
        return
    said = f"{case} must be what rank {other} has in row {border}, {wanted}, was {got}"
    if got == kept:
        raise Mistake("not filled", said)
    if got in (-1.0, -2.0):
        raise Mistake("the halo was sent", f"{said}, which is the halo of another rank: send a row of its own")
    if got == 100.0 * other + across:
        raise Mistake("the border on the other side", f"{said}: the rows that touch belong together")
    if got // 100 != other:
        raise Mistake("wrong neighbour", f"{said}, which is a row of rank {got // 100:.0f}")
    raise Mistake("not the border", f"{said}, which is row {got % 100:.0f}")


# -------------------------------------------------------------------------------------------------- how wide a halo


def width(rows: int, columns: int, cell: float, latency: float, bandwidth: float, most: int) -> int:
    """The width of halo, from 1 to ``most``, with the least time for a step."""

    def seconds(k: int) -> float:
        computed = sum((rows + 2 * i) * columns for i in range(k))
        return (computed * cell + 2 * (latency + 4 * k * columns / bandwidth)) / k

    return min(range(1, most + 1), key=seconds)


def _least(time: Callable) -> Callable:
    """The width for which another formula is least."""
    return lambda rows, columns, cell, latency, bandwidth, most: min(
        range(1, most + 1), key=lambda k: time(k, rows, columns, cell, latency, 4 * columns / bandwidth)
    )


#: Other formulas that people use, with the mistake's name and what to do.
WIDTHS = (
    (
        "not per step",
        _least(lambda k, r, c, cell, a, row: sum((r + 2 * i) * c for i in range(k)) * cell + 2 * (a + k * row)),
        "that is least for k steps together: divide by k",
    ),
    (
        "nothing more to compute",
        _least(lambda k, r, c, cell, a, row: r * c * cell + 2 * (a + k * row) / k),
        "a halo costs work, too: in the first of k steps k - 1 rows of it are computed on each side",
    ),
    (
        "all steps as the first",
        _least(lambda k, r, c, cell, a, row: (r + 2 * (k - 1)) * c * cell + 2 * (a + k * row) / k),
        "each step computes a row less on each side than the one before, and the last one none of the halo",
    ),
    (
        "a message a step",
        _least(lambda k, r, c, cell, a, row: sum((r + 2 * i) * c for i in range(k)) * cell / k + 2 * (a + row)),
        "there is one exchange in k steps, so its latency is shared by them",
    ),
    (
        "a row too many",
        _least(lambda k, r, c, cell, a, row: (sum((r + 2 * i) * c for i in range(k + 1)) * cell + 2 * a) / k),
        "the last of the k steps computes only the rank's own rows",
    ),
    (
        "one row a message",
        _least(lambda k, r, c, cell, a, row: (sum((r + 2 * i) * c for i in range(k)) * cell + 2 * (a + row)) / k),
        "a halo of k rows takes messages of k rows",
    ),
)


def judge_width(answer: Callable) -> str:
    """Cells and messages of which one or the other is dear, narrow and wide plates, and a most that is reached."""
    for case in (
        (100, 1000, 1e-9, 2e-5, 1e10, 64),
        (1000, 1000, 1e-9, 2e-6, 1e10, 64),
        (40, 50, 1e-9, 5e-6, 1e10, 16),
        (64, 4096, 1e-10, 3e-5, 2e10, 50),
        (16, 100, 1e-8, 1.2e-5, 1e9, 16),
        (16, 1000, 1e-9, 2e-6, 8e8, 16),
        (10, 10, 1e-9, 1e-5, 1e10, 10),
    ):
        rows, columns, cell, latency, bandwidth, most = case
        said = f"for {rows} x {columns} cells of {cell:g} s, {latency:g} s and {bandwidth:g} B/s, at most {most}, it"
        found, wanted = answer(*case), width(*case)
        if found is None:
            raise Mistake("nothing returned", f"{said} returned None")
        try:
            k = as_integer("width", found, 1, most)
        except (TypeError, ValueError) as error:
            raise Mistake("no width", f"{said} must return an integer from 1 to {most}, was {found!r}") from error
        if k == wanted:
            continue
        for name, other, advice in WIDTHS:
            if k == other(*case):
                raise Mistake(name, f"{said} returned {k}, and {wanted} takes least: {advice}")
        raise Mistake("wrong result", f"{said} returned {k}, and {wanted} takes least")
    return "The width takes the least time for a step: alpha is shared by more steps, and each of them computes more."


# ------------------------------------------------------------------------------------------------ finding a deadlock

Call = tuple[str, int]


def _made(programs: Sequence[Sequence[Call]]) -> list[int]:
    """How many of its calls each rank makes."""
    at, going = [0] * len(programs), True
    while going:
        going = False
        for rank, calls in enumerate(programs):
            if at[rank] < len(calls) and calls[at[rank]][0] == "send":
                peer = calls[at[rank]][1]
                if at[peer] < len(programs[peer]) and programs[peer][at[peer]] == ("recv", rank):
                    at[rank], at[peer], going = at[rank] + 1, at[peer] + 1, True
    return at


def stuck(programs: Sequence[Sequence[Call]]) -> list[int]:
    """The ranks that never end, if ("send", to) and ("recv", source) wait for each other."""
    return [rank for rank, made in enumerate(_made(programs)) if made < len(programs[rank])]


def _buffered(programs: Sequence[Sequence[Call]]) -> list[int]:
    """The same if a send does not wait."""
    at, boxes, going = [0] * len(programs), {}, True
    while going:
        going = False
        for rank, calls in enumerate(programs):
            if at[rank] == len(calls):
                continue
            kind, peer = calls[at[rank]]
            if kind == "send":
                boxes[rank, peer] = boxes.get((rank, peer), 0) + 1
            elif boxes.get((peer, rank), 0):
                boxes[peer, rank] -= 1
            else:
                continue
            at[rank], going = at[rank] + 1, True
    return [rank for rank, calls in enumerate(programs) if at[rank] < len(calls)]


def _in_a_circle(programs: Sequence[Sequence[Call]]) -> list[int]:
    """Those of the stuck ranks that wait for each other in a circle, and not for one of these."""
    made, found = _made(programs), []
    waits_for = {rank: programs[rank][made[rank]][1] for rank in stuck(programs)}
    for rank, other in waits_for.items():
        for _ in waits_for:
            if other in waits_for and other != rank:
                other = waits_for[other]
        found += [rank] if other == rank else []
    return found


def _once(programs: Sequence[Sequence[Call]]) -> list[int]:
    """Those that are left after each rank had one turn."""
    at = [0] * len(programs)
    for rank, calls in enumerate(programs):
        if at[rank] < len(calls) and calls[at[rank]][0] == "send":
            peer = calls[at[rank]][1]
            if at[peer] < len(programs[peer]) and programs[peer][at[peer]] == ("recv", rank):
                at[rank], at[peer] = at[rank] + 1, at[peer] + 1
    return [rank for rank, calls in enumerate(programs) if at[rank] < len(calls)]


def _complement(programs: Sequence[Sequence[Call]]) -> list[int]:
    return [rank for rank in range(len(programs)) if rank not in stuck(programs)]


def _others() -> tuple[tuple[str, Callable, str], ...]:
    """Other lists that people return, with the mistake's name and what to do. A function: students do not get it."""
    return (
        ("those that end", _complement, "that are the ranks that end"),
        ("sends that do not wait", _buffered, "a send waits until the other rank receives"),
        ("the circle alone", _in_a_circle, "who waits for a rank of the circle never ends either"),
        ("one turn only", _once, "a rank whose call was carried out makes its next one: go on until nothing happens"),
    )


def _line(size: int, down_first: Callable[[int], bool]) -> list[list[Call]]:
    """An exchange along a line of ranks. Who goes down first sends down, then receives; the others receive first."""
    programs: list[list[Call]] = []
    for rank in range(size):
        below = [("send", rank + 1), ("recv", rank + 1)] if rank + 1 < size else []
        above = [("recv", rank - 1), ("send", rank - 1)] if rank else []
        programs.append(below + above if down_first(rank) else above + below)
    return programs


#: A name, and the calls of all ranks.
PROGRAMS = (
    (
        "two that both send first, and two others",
        [[("send", 1), ("recv", 1)], [("send", 0), ("recv", 0)], [("send", 3)], [("recv", 2)]],
    ),
    ("two of which one receives first", [[("send", 1), ("recv", 1)], [("recv", 0), ("send", 0)]]),
    ("a line in which even ranks go down first", _line(5, lambda rank: rank % 2 == 0)),
    ("a line, one after another", _line(4, lambda rank: False)),
    (
        "three that all send up first",
        [[("send", 1), ("recv", 1)], [("send", 0), ("send", 2), ("recv", 0), ("recv", 2)], [("send", 1), ("recv", 1)]],
    ),
    ("a circle, and one that waits for it", [[("send", 1)], [("send", 2)], [("send", 1), ("recv", 1)], []]),
    ("a send that nobody receives", [[("send", 1), ("send", 1)], [("recv", 0)], []]),
    (
        "a ring in which all receive first",
        [[("recv", 2), ("send", 1)], [("recv", 0), ("send", 2)], [("recv", 1), ("send", 0)]],
    ),
    ("nobody has anything to do", [[], []]),
)


def judge_stuck(answer: Callable) -> str:
    """Programs that end, and others: with a circle, with ranks that wait for it, and with one that waits for no one."""
    for case, programs in PROGRAMS:
        found, wanted = answer([list(calls) for calls in programs]), stuck(programs)
        said = f"for {case}, {programs},"
        if found is None:
            raise Mistake("nothing returned", f"{said} it returned None")
        try:
            result = sorted(int(rank) for rank in found)
        except (TypeError, ValueError) as error:
            raise Mistake("no list", f"{said} it must return a list of ranks, was {found!r}") from error
        if result == wanted:
            continue
        said = f"{said} {wanted} never end, was {result}"
        for name, other, advice in _others():
            if result == sorted(other(programs)):
                raise Mistake(name, f"{said}: {advice}")
        raise Mistake("wrong result", said)
    return "It finds the ranks of the circle, those that wait for them, and those whose partner has ended."


EXERCISES = (
    Exercise(
        "halo_exchange/exchange",
        "Fill the halo: the first row of cells with the last own row of the rank above (rank - 1), and the last row "
        "with the first own row of the rank below. Where nobody is, the row stays. The rank's own rows are 1 to "
        "len(cells) - 2. Use send, recv and send_recv, so that at most four messages follow one another.",
        "exchange(group, cells)",
        judge_exchange,
        (
            "cells[1:2] and cells[-2:-1] are the borders, and cells[:1] and cells[-1:] the halo. They are views: what "
            "is received into cells[:1] stands in cells.",
            "Which ranks have nobody above or below?",
            "If every second rank first turns to the rank below, the others have to turn to the rank above.",
        ),
        exchange,
    ),
    Exercise(
        "halo_exchange/width",
        "Return the width of halo, from 1 to most, for which a step takes the least time by the model. A rank has rows "
        "x columns cells of 4 bytes, and neighbours above and below. A cell takes cell seconds. With a halo of k rows "
        "there is an exchange in k steps: two messages in a row, of k rows each, and a message takes latency seconds "
        "and a second for each bandwidth bytes.",
        "width(rows, columns, cell, latency, bandwidth, most)",
        judge_width,
        (
            "In the last of k steps a rank computes its own rows alone. And in the one before?",
            "Add up the cells of k steps, add two messages, and divide by k.",
            "You can try all widths.",
        ),
        width,
    ),
    Exercise(
        "halo_exchange/stuck",
        'Find the deadlock. programs has for each rank the list of its calls in order: ("send", to) or ("recv", '
        "source). A send is carried out when the other rank is at its receive from this one, and then both go on. "
        "Return the list of the ranks that never end.",
        "stuck(programs)",
        judge_stuck,
        (
            "Keep for each rank the number of its next call.",
            "If a rank is at ('send', b), and rank b is at ('recv', a) with the number of this rank, both go on.",
            "Look at all ranks again and again, until nothing happens any more. Who has calls left?",
        ),
        stuck,
    ),
)
