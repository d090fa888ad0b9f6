"""Mistakes in programs of several ranks, each with the nearest program that is right.

A mistake and its look-alike are one function, a line or two apart: the last argument, `mended`, chooses. An entry says
what the error has to be: its class, and the rank that did it. The comment `# BUG` marks the line that the message has
to name, and `# WITH` the line on which other ranks are by then.

    python -m tests.parallel     the table: mistakes named, look-alikes silent
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable

import numpy as np

from pmpp import parallel
from pmpp.parallel.owners import ForeignMemory, UnwrittenMemory
from pmpp.parallel.switchboard import Deadlock, Mismatch, NotAMember, RankEnded, Stale
from pmpp.parallel.windows import Unordered
from pmpp.runtime import device

PROGRAMS: list[Program] = []


@dataclasses.dataclass(frozen=True)
class Program:
    """A function of a group, of what `given` returns, and of `mended`.

    kind        of the error
    ranks       those that the error names first, in any order: the ones that made the mistake
    size        how many ranks run it
    result      what the look-alike returns, by rank
    given       arguments that are made before the ranks begin
    """

    function: Callable
    kind: type[BaseException]
    ranks: tuple[int, ...]
    size: int
    result: list | None
    given: Callable[[], tuple]

    @property
    def name(self) -> str:
        return self.function.__name__

    def lines(self, *marks: str) -> set[int]:
        """The lines of this file that carry one of the marks."""
        lines, first = inspect.getsourcelines(self.function)
        return {first + k for k, text in enumerate(lines) if any(f"# {mark}" in text for mark in marks)}

    def run(self, mended: bool) -> list:
        return parallel.ranks(self.size, self.function, *self.given(), mended)


def program(
    kind: type[BaseException],
    ranks: tuple[int, ...],
    *,
    size: int = 4,
    result: typing.Any = None,
    given: Callable[[], tuple] = tuple,
) -> Callable:
    """Enter a function into the corpus. `result` is a list by rank, or what all ranks return."""

    def enter(function: Callable) -> Callable:
        wanted = result if isinstance(result, list) else [result] * size
        PROGRAMS.append(Program(function, kind, ranks, size, wanted, given))
        return function

    return enter


def faults(one: Program) -> list[str]:
    """What is wrong with the error that the mistake leads to: nothing, if it names the mistake and its place."""
    try:
        found = one.run(False)
    except BaseException as error:
        return _faults(one, error)
    return [f"nothing was raised: {found}"]


def _faults(one: Program, error: BaseException) -> list[str]:
    if type(error) is not one.kind:
        return [f"{type(error).__name__}, expected {one.kind.__name__}: {error}"]
    if not isinstance(error, parallel.CommunicationError):
        return _faults_of_traceback(one, error)
    wrong = []
    named = {int(line) for line in re.findall(r"programs\.py:(\d+)", str(error))}
    if named != one.lines("BUG", "WITH"):
        wrong.append(f"names lines {sorted(named)}, planted on {sorted(one.lines('BUG', 'WITH'))}: {error}")
    if set(error.ranks[: len(one.ranks)]) != set(one.ranks):
        wrong.append(f"names ranks {error.ranks}, planted in {one.ranks}: {error}")
    return wrong


def _faults_of_traceback(one: Program, error: BaseException) -> list[str]:
    """An error of the rank's own code, which has to come with the rank and the line."""
    lines, step = [], error.__traceback__
    while step is not None:
        lines += [step.tb_lineno] if step.tb_frame.f_code.co_filename == __file__ else []
        step = step.tb_next
    wrong = [] if {lines[-1]} == one.lines("BUG") else [f"raised on line {lines[-1]}, planted on {one.lines('BUG')}"]
    (note,) = error.__notes__
    if not re.fullmatch(rf"raised by rank {one.ranks[0]} of {one.size} at .*programs\.py:{lines[-1]}", note):
        wrong.append(note)
    return wrong


def alarms(one: Program) -> list[str]:
    """What is wrong with the look-alike: nothing, if it runs to its end and is right."""
    try:
        found = one.run(True)
    except BaseException as error:
        return [f"{type(error).__name__}: {error}"]
    return [] if found == one.result else [f"returned {found}, expected {one.result}"]


def ones(n: int = 4, dtype: str = "float32") -> typing.Any:
    """A device array of this rank's."""
    return device.to_device(np.ones(n, dtype))


def first(array: typing.Any) -> float:
    """Its first element."""
    return device.to_host(array).reshape(-1)[0].item()


# ---------------------------------------------------------------------------------- collectives that are not all called


@program(RankEnded, (2,), result=1.0)
def one_rank_skips_the_last_collective(group, mended):
    x = group.broadcast(ones())  # WITH
    if mended or group.rank != 2:
        group.barrier()  # BUG
    return first(x)


@program(Mismatch, (2,), result=4.0)
def one_rank_skips_the_first_of_two(group, mended):
    x = ones()
    if mended or group.rank != 2:
        group.all_reduce(ones(3))  # WITH
    return first(group.all_reduce(x))  # BUG


@program(RankEnded, (1,), size=3, result=12.0)
def one_rank_has_fewer_batches(group, mended):
    total = 0.0
    batches = 4 if mended else 5 - group.rank % 2
    for _ in range(batches):
        total += first(group.all_reduce(ones(2)))  # BUG
    return total


@program(RankEnded, (0,), result=3)
def one_rank_has_converged_by_its_own_measure(group, mended):
    error, steps = np.float32([0.5 if group.rank == 0 else 1.0]), 0
    while True:
        largest = group.all_reduce(error, "max")  # BUG
        steps += 1
        if first(largest if mended else error) < 0.3:
            return steps
        error = error / 2


@program(Mismatch, (1,), result=1.0)
def one_rank_catches_its_error_and_goes_on(group, mended):
    x = ones()
    try:
        if group.rank == 1:
            raise ValueError("a bad file")
        if not mended:
            group.barrier()  # WITH
    except ValueError:
        x = ones()
    if mended:
        group.barrier()
    return first(group.all_reduce(x, "max"))  # BUG


@program(Mismatch, (1,), size=3, result=3.0)
def two_collectives_in_another_order(group, mended):
    x = ones()
    if group.rank == 1 and not mended:
        group.all_reduce(x, out=x)  # BUG
        group.broadcast(x, out=x)
    else:
        group.broadcast(x, out=x)  # WITH
        group.all_reduce(x, out=x)
    return first(x)


# -------------------------------------------------------------------------------------- collectives that do not agree


@program(Mismatch, (0,), result=[4.0, None, None, None])
def only_the_root_calls_reduce(group, mended):
    x = ones()
    if group.rank == 0 or mended:
        total = group.reduce(x)  # BUG
    else:
        total = group.all_reduce(x)  # WITH
    return None if total is None else first(total)


@program(Mismatch, (3,), result=1.0)
def another_operation(group, mended):
    op = "mean" if mended or group.rank < 3 else "sum"
    return first(group.all_reduce(ones(), op))  # BUG


@program(Mismatch, (0, 1), size=2, result=1.0)
def every_rank_is_the_root(group, mended):
    root = 0 if mended else group.rank
    return first(group.broadcast(ones(), root))  # BUG


@program(Mismatch, (1,), size=3, result=3.0)
def another_dtype(group, mended):
    part = np.ones(4) if group.rank == 1 and not mended else np.ones(4, np.float32)
    return first(group.all_reduce(part))  # BUG


@program(Mismatch, (3,), result=4.0)
def the_last_part_is_shorter(group, mended):
    data = np.ones(15, np.float32)
    if mended:
        data = np.append(data, np.float32(0))
    part = data[4 * group.rank : 4 * (group.rank + 1)]
    return first(group.all_reduce(part))  # BUG


@program(Mismatch, (2,), size=3, result=[0, 1, 2])
def rows_and_columns_are_exchanged(group, mended):
    table = np.full((3, 2, 1) if mended or group.rank < 2 else (3, 1, 2), group.rank)
    return [first(row) for row in group.all_to_all(table)][group.rank]  # BUG


# ------------------------------------------------------------------------------------------------- sends and receives


@program(RankEnded, (1,), size=2, result=0)
def a_send_that_nobody_receives(group, mended):
    if group.rank == 0:
        group.send(np.arange(3), to=1)  # BUG
    elif mended:
        group.recv(device.empty(3, np.int64), source=0)
    return 0


@program(RankEnded, (0,), size=2, result=[2, 2])
def a_receive_that_nobody_sends_to(group, mended):
    box = device.to_device(np.array([2]))
    for step in range(2):
        if group.rank == 1:
            group.recv(box, source=0)  # BUG
        elif mended or step == 0:
            group.send(box, to=1)  # WITH
    return first(box)


@program(Mismatch, (0, 1), size=3, result=[1.0, 1.0, 1.0])
def tags_that_never_meet(group, mended):
    x = ones()
    if group.rank == 0:
        group.send(x, to=1, tag=7)  # BUG
    if group.rank == 1:
        group.recv(x, source=0, tag=7 if mended else 8)  # WITH
    return first(x)


@program(Mismatch, (0, 1), size=2, result=[[1, 2], [1, 2]])
def two_messages_received_in_another_order(group, mended):
    one, two = np.array([1]), np.array([2])
    if group.rank == 0:
        group.send(one, to=1, tag=1)  # BUG
        group.send(two, to=1, tag=2)
        return [1, 2]
    boxes = {1: device.empty(1, np.int64), 2: device.empty(1, np.int64)}
    for tag in (1, 2) if mended else (2, 1):
        group.recv(boxes[tag], source=0, tag=tag)  # WITH
    return [first(boxes[1]), first(boxes[2])]


@program(Mismatch, (1, 0), size=2, result=0)
def a_halo_of_one_column_too_few(group, mended):
    if group.rank == 0:
        group.send(np.zeros((4, 2), np.float32), to=1)  # WITH
    else:
        group.recv(device.empty((4, 2 if mended else 1), np.float32), source=0)  # BUG
    return 0


@program(Mismatch, (1, 0), size=2, result=0)
def labels_received_as_another_dtype(group, mended):
    if group.rank == 0:
        group.send(np.zeros(4, np.int64), to=1)  # WITH
    else:
        group.recv(device.empty(4, np.int64 if mended else np.int32), source=0)  # BUG
    return 0


@program(Deadlock, (0, 1), size=2, result=[1, 0])
def both_send_first(group, mended):
    other, box = 1 - group.rank, device.empty((), np.int64)
    mine = np.array(group.rank)
    if mended and group.rank:
        group.recv(box, other)
        group.send(mine, other)
    else:
        group.send(mine, other)  # BUG
        group.recv(box, other)
    return first(box)


@program(Deadlock, (0, 1, 2, 3, 4), size=5, result=[4, 0, 1, 2, 3])
def all_send_around_a_ring(group, mended):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    box, mine = device.empty((), np.int64), np.array(group.rank)
    if mended and group.rank == 0:
        group.recv(box, left)
        group.send(mine, right)
    else:
        group.send(mine, right)  # BUG
        group.recv(box, left)
    return first(box)


@program(Deadlock, (0, 1, 2), size=3, result=0)
def all_receive_before_they_send(group, mended):
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    box = device.to_device(np.array([0]))
    if mended and group.rank == 0:
        group.send(box, right)
    group.recv(box, left)  # BUG
    if not mended or group.rank:
        group.send(box, right)
    return first(box)


@program(Deadlock, (1,), size=2, result=0)
def a_rank_sends_to_itself(group, mended):
    x = np.zeros(1)
    for target in range(group.size):
        if group.rank == 1 and not (mended and target == group.rank):
            group.send(x, to=target)  # BUG
        if group.rank == 0 and target == 0:
            group.recv(device.empty(1, np.float64), source=1)
    return 0


@program(Deadlock, (0, 1, 2), size=3, result=[2, 0, 1])
def all_exchange_with_their_right_neighbour(group, mended):
    """What a rank receives has to come from the left, if all send to the right."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    box = device.empty((), np.int64)
    group.send_recv(np.array(group.rank), right, box, left if mended else right)  # BUG
    return first(box)


@program(Mismatch, (1, 0), size=2, result=0)
def pieces_of_a_ring_that_differ_in_length(group, mended):
    pieces = np.array_split(np.arange(3), 2)  # of 2 and 1
    other = 1 - group.rank
    box = device.empty(len(pieces[other]) if mended else 1, np.int64)
    group.send_recv(pieces[group.rank], other, box, other)  # BUG
    return 0


@program(Deadlock, (0, 1), size=2, result=0)
def a_barrier_before_the_receive_is_served(group, mended):
    x = ones()
    if group.rank == 0:
        if mended:
            group.send(x, to=1)
            group.barrier()
        else:
            group.barrier()  # BUG
            group.send(x, to=1)
    else:
        group.recv(x, source=0)  # WITH
        group.barrier()
    return 0


@program(ValueError, (3,), result=[1.0, 0.0, 1.0, 2.0])
def the_last_rank_has_no_right_neighbour(group, mended):
    x, box = np.array([group.rank], np.float32), ones(1)
    if mended or group.rank % 2:
        right = (group.rank + 1) % group.size if mended else group.rank + 1
    if group.rank % 2:
        group.send(x, to=right)  # BUG
        group.recv(box, source=group.rank - 1)
    else:
        group.recv(box, source=(group.rank - 1) % group.size)
        group.send(x, to=group.rank + 1)
    return abs(first(box) - 2 * (group.rank == 0))


# -------------------------------------------------------------------------------------------------------------- groups


def shelf() -> tuple:
    """A dict that all ranks can reach, as with a global variable."""
    return ({},)


@program(NotAMember, (1,), size=2, given=shelf, result=2.0)
def a_group_of_another_rank(group, kept, mended):
    kept.setdefault("group", group)
    mine = group if mended else kept["group"]
    return first(mine.all_reduce(ones()))  # BUG


@program(AttributeError, (3,), result=[3.0, 3.0, 3.0, None])
def a_rank_without_a_group_calls_it(group, mended):
    workers = group.split(None if group.rank == 3 else 0)
    if mended and workers is None:
        return None
    return first(workers.all_reduce(ones()))  # BUG


@program(Deadlock, (1, 2), result=4.0)
def one_rank_splits_into_columns_first(group, mended):
    if mended or group.rank != 1:
        rows = group.split(group.rank // 2)  # WITH
        columns = group.split(group.rank % 2)  # WITH
    else:
        columns = group.split(group.rank % 2)  # WITH
        rows = group.split(group.rank // 2)  # WITH
    x = rows.all_reduce(ones())  # BUG
    return first(columns.all_reduce(x))


@program(Deadlock, (0, 1), size=2, result=2.0)
def two_groups_in_another_order(group, mended):
    one = group.split(0)  # WITH
    other = group.split(0)  # WITH
    order = (one, other) if mended or group.rank == 0 else (other, one)
    x = ones()
    for each in order:
        x = each.all_reduce(x, "mean")  # BUG
    return first(x) + group.size - 1


@program(ValueError, (2,), result=[0, 0, 2, 2])
def the_number_among_all_ranks_as_a_root(group, mended):
    pair = group.split(group.rank // 2)
    root = 0 if mended else group.rank // 2 * 2
    return first(pair.broadcast(np.array([group.rank]), root))  # BUG


# -------------------------------------------------------------------------------------------------------------- memory


@program(ForeignMemory, (1, 0), size=2, given=shelf, result=2.0)
def an_array_of_another_rank(group, kept, mended):
    weights = ones() if mended else kept.setdefault("weights", ones())
    return first(group.all_reduce(weights))  # BUG


@program(ForeignMemory, (1, 0), size=2, given=lambda: (device.to_device(np.ones(4, np.float32)),), result=2.0)
def all_write_to_one_array(group, x, mended):
    out = device.to_device(device.to_host(x)) if mended else x
    return first(group.all_reduce(out, out=out))  # BUG


@program(UnwrittenMemory, (0,), size=2, result=1.0)
def a_buffer_that_was_never_filled(group, mended):
    buffer = device.empty(4, np.float32)
    if mended:
        buffer.copy_to_device(np.ones(4, np.float32))
    return first(group.all_reduce(buffer, "max"))  # BUG


# ------------------------------------------------------------------------------------------------------------- windows


@program(Unordered, (0, 1), size=2, result=[None, 1.0])
def a_peers_buffer_read_before_its_signal(group, mended):
    x = device.to_device(np.zeros(4, np.float32))
    window = group.window(x)
    if group.rank == 0:
        x.copy_to_device(np.ones(4, np.float32))
        window.signal(to=1)  # WITH
        return None
    if mended:
        window.wait(source=0)
    return first(window.read(device.empty(4, np.float32), source=0))  # BUG


@program(Unordered, (0, 1), size=2, result=[None, 3.0])
def a_buffer_filled_again_before_it_was_read(group, mended):
    x, box = device.to_device(np.zeros(4, np.float32)), device.empty(4, np.float32)
    window = group.window(x)
    for step in range(2):
        if group.rank == 0:
            if step and mended:
                window.wait(source=1)
            x.copy_to_device(np.full(4, step + 2, np.float32))
            window.signal(to=1)  # BUG
        else:
            window.wait(source=0)
            window.read(box, source=0)  # WITH
            window.signal(to=0)
    return None if group.rank == 0 else first(box)


@program(Unordered, (0, 1), size=2, result=[0.0, 1.0])
def a_halo_used_before_the_neighbours_signal(group, mended):
    window = group.window(device.to_device(np.full(4, group.rank, np.float32)))
    other = 1 - group.rank
    window.write(np.full(1, group.rank, np.float32), to=other, at=3)  # WITH
    window.signal(to=other)
    if mended or group.rank:
        window.wait(source=other)
    return first(window.rows()) + 0 * first(window.rows(at=3))  # BUG


@program(Unordered, (1, 2), size=3, result=[3.0, None, None])
def two_ranks_write_the_same_rows(group, mended):
    window = group.window(device.to_device(np.zeros(2, np.float32)))
    if group.rank:
        at = group.rank - 1 if mended else 0
        window.write(np.full(1, group.rank, np.float32), to=0, at=at)  # BUG
        window.signal(to=0)
        return None
    for source in (1, 2):
        window.wait(source)
    return float(device.to_host(window.rows()).sum())


@program(Unordered, (2, 0), size=3, result=[None, None, 5.0])
def the_signal_of_another_rank(group, mended):
    """Rank 1 has heard of rank 0, and passes that on only if it waited before it signals."""
    x = device.to_device(np.zeros(1, np.float32))
    window = group.window(x)
    if group.rank == 0:
        x.copy_to_device(np.full(1, 5, np.float32))
        window.signal(to=1)  # WITH
    elif group.rank == 1:
        if mended:
            window.wait(source=0)
        window.signal(to=2)
    else:
        window.wait(source=1)
        return first(window.read(device.empty(1, np.float32), source=0))  # BUG
    return None


@program(Deadlock, (0, 1), size=2, result=0)
def both_wait_before_they_signal(group, mended):
    window = group.window(device.to_device(np.zeros(1, np.float32)))
    other = 1 - group.rank
    if mended:
        window.signal(to=other)
    window.wait(source=other)  # BUG
    if not mended:
        window.signal(to=other)
    return 0


@program(RankEnded, (0,), size=2, result=0)
def one_signal_for_two_waits(group, mended):
    window = group.window(device.to_device(np.zeros(1, np.float32)))
    if group.rank == 0:
        for _ in range(2 if mended else 1):
            window.signal(to=1)  # WITH
    else:
        window.wait(source=0)
        window.wait(source=0)  # BUG
    return 0


# --------------------------------------------------------------------------------------------------------------- halos
#
# A rank has the cells 1 to 4 of `around`, and 0 and 5 are its halo. The ranks stand in a line, and the ends of the line
# are a border that stays 0. A step makes each cell the sum of its neighbours.


def around(group):
    """A rank's cells, with the halo that fits them at the beginning."""
    cells = np.zeros(4 * group.size + 2, np.int64)
    cells[1:-1] = np.arange(1, 4 * group.size + 1)
    return cells[4 * group.rank :][:6].copy()


def stepped(cells):
    """The cells after a step, in a new array. The halo is not computed."""
    new = cells.copy()
    new[1:5] = cells[:4] + cells[2:]
    return new


def neighbours(group):
    """The ranks to the left and to the right, where there are any."""
    return [rank for rank in (group.rank - 1, group.rank + 1) if 0 <= rank < group.size]


#: What three ranks have after one step, and after two.
ONE_STEP = [[2, 4, 6, 8], [10, 12, 14, 16], [18, 20, 22, 11]]
TWO_STEPS = [[4, 8, 12, 16], [20, 24, 28, 32], [36, 40, 31, 22]]


def halo_of(group, other):
    """Where a rank's cell next to another rank is, and the halo of that rank where it belongs."""
    return (1, 5) if other < group.rank else (4, 0)


@program(Deadlock, (0, 1), size=3, result=TWO_STEPS)
def all_send_their_borders_before_they_receive(group, mended):
    cells = around(group)
    for _ in range(2):
        cells = stepped(cells)
        for parity in range(2 if mended else 1):
            if not mended or group.rank % 2 == parity:
                for other in neighbours(group):
                    group.send(cells[halo_of(group, other)[0]][None], to=other)  # BUG
            if not mended or group.rank % 2 != parity:
                for other in neighbours(group):
                    box = group.recv(device.empty(1, np.int64), source=other)
                    cells[0 if other < group.rank else 5] = first(box)
    return cells[1:5].tolist()


@program(RankEnded, (2,), size=3, result=ONE_STEP)
def the_last_rank_has_one_neighbour_fewer(group, mended):
    """An off-by-one: it takes the last but one for the last, and has nobody to exchange with."""
    cells = around(group)
    for other in neighbours(group) if mended or group.rank < group.size - 1 else []:
        border, halo = halo_of(group, other)[0], 0 if other < group.rank else 5
        cells[halo] = first(group.send_recv(cells[border][None], other, device.empty(1, np.int64), other))  # BUG
    return stepped(cells)[1:5].tolist()


@program(Mismatch, (1, 0), size=2, result=0)
def one_rank_has_a_wider_halo(group, mended):
    width = 1 if mended or group.rank == 0 else 2
    cells, other = np.arange(8), 1 - group.rank
    box = device.empty(width, np.int64)
    group.send_recv(cells[:width], other, box, other)  # BUG
    return 0


@program(Mismatch, (1,), size=3, result=2)
def one_rank_asks_for_the_change_after_another_number_of_steps(group, mended):
    every, asked = 2 if mended or group.rank != 1 else 3, 0
    for step in range(1, 5):
        if step % every == 0:
            group.all_reduce(np.float32([1 / step]), "max")  # WITH
            asked += 1
        group.all_gather(np.float32([step]))  # BUG
    return asked


def into(window_array, cells):
    """A rank's own cells into its array of a window; the halo belongs to others."""
    window_array[1:5].copy_to_device(cells[1:5].copy())


@program(Unordered, (0, 1), size=3, result=TWO_STEPS)
def a_halo_read_before_the_signal_of_its_border(group, mended):
    """The ranks wait for each other at the end, and not before the second step reads the halo."""
    arrays = [device.to_device(around(group)) for _ in range(2)]
    _, new = (group.window(array) for array in arrays)
    cells = stepped(around(group))
    into(arrays[1], cells)
    for other in neighbours(group):
        border, halo = halo_of(group, other)
        new.write(cells[border][None], to=other, at=halo)  # WITH
        new.signal(to=other)
    if mended:
        for other in neighbours(group):
            new.wait(source=other)
    cells = stepped(device.to_host(new.rows()))  # BUG
    return cells[1:5].tolist()


@program(Unordered, (0, 2), size=3, result=ONE_STEP)
def a_border_put_into_the_wrong_neighbour(group, mended):
    """Ranks 0 and 2 both give their right border to rank 1."""
    window = group.window(device.to_device(np.zeros(6, np.int64)))
    cells, right = around(group), (group.rank + 1) % group.size
    to = right if mended else 1
    if group.rank != 1:
        window.write(cells[4:5], to=to, at=0)  # BUG
        window.signal(to=to)
    else:
        window.write(cells[4:5], to=2, at=0)
        window.signal(to=2)
    group.barrier()
    return stepped(cells)[1:5].tolist()


@program(Unordered, (0, 1), size=2, result=[[2, 4, 6, 8], [10, 12, 14, 7]])
def a_border_that_lands_a_cell_too_far(group, mended):
    """In the first cell of the neighbour, which it computes itself, and not in its halo."""
    array = device.to_device(around(group))
    window = group.window(array)
    cells, other = around(group), 1 - group.rank
    mine, theirs = halo_of(group, other)
    if group.rank == 0:
        window.write(cells[mine][None], to=other, at=theirs if mended else theirs + 1)  # WITH
    cells = stepped(cells)
    into(array, cells)
    window.signal(to=other)  # BUG
    window.wait(source=other)
    return cells[1:5].tolist()


@program(Unordered, (0, 1), size=2, result=[[4, 8, 12, 16], [20, 24, 19, 14]])
def no_barrier_between_two_steps(group, mended):
    """A rank reads its neighbour's border, and that one has already written its next step over it."""
    array = device.to_device(around(group))
    window = group.window(array)  # WITH
    cells, other = around(group), 1 - group.rank
    border, halo = (4, 0) if other < group.rank else (1, 5)
    for _ in range(2):
        cells[halo] = first(window.read(device.empty(1, np.int64), source=other, at=border))  # BUG
        if mended:
            group.barrier()  # all have read
        cells = stepped(cells)
        into(array, cells)
        if mended:
            group.barrier()  # all have written
    return cells[1:5].tolist()


@program(Unordered, (0, 1), size=2, result=[[4, 8, 12, 16], [20, 24, 19, 14]])
def a_halo_overwritten_before_it_was_read(group, mended):
    """With one array, the border of the next step may arrive before the halo of this one has been read."""
    windows = [group.window(device.to_device(around(group))) for _ in range(2)]
    cells, other = around(group), 1 - group.rank
    border, landing = halo_of(group, other)
    halo = 5 - landing
    for step in range(2):
        window, cells = windows[step if mended else 0], stepped(cells)
        window.write(cells[border][None], to=other, at=landing)  # BUG
        window.signal(to=other)
        window.wait(source=other)
        cells[halo] = first(window.rows(at=halo, count=1))  # WITH
    return cells[1:5].tolist()


# ---------------------------------------------------------------------------------------------------------- parameters


def step_of(group, weight, mended):
    """The mean of all gradients is added. A rank may think that it has nothing to do."""
    gradient = group.all_reduce(np.full(2, group.rank, np.float32), "mean")
    if mended or group.rank != 2:
        weight.copy_to_device(device.to_host(weight) - device.to_host(gradient))


@program(Stale, (2,), result=-1.5)
def a_weight_that_misses_an_update(group, mended):
    weight = device.to_device(np.zeros(2, np.float32))
    step_of(group, weight, mended)
    group.same(weight, "weight")  # BUG
    return first(weight)


@program(Stale, (1, 2, 3), result=3.0)
def weights_that_begin_with_the_ranks_own_numbers(group, mended):
    weight = device.to_device(np.full(2, 3 + group.rank, np.float32))
    if mended:
        group.broadcast(weight, out=weight)
    group.same(weight, "weight")  # BUG
    return first(weight)


# --------------------------------------------------------------------------------------------------------- exceptions


@program(ZeroDivisionError, (2,), result=1.0)
def a_rank_that_raises(group, mended):
    share = 1 / (group.rank - 2 if not mended else 1)  # BUG
    return first(group.all_reduce(np.array([share]), "max"))
