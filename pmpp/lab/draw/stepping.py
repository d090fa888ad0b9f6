"""A launch as a list of moments: which line runs, which lanes run it, what it touches, what it changes, who races whom.

`stepped` makes the list of a launch that the interpreter has traced. `pmpp.lab.draw.stepper` runs the launch, and shows
the list as a page to step through; this file knows nothing of pages.
"""

from __future__ import annotations

import ast
import bisect
import functools
import linecache
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pmpp.simt.machine.lanes import WARP

if typing.TYPE_CHECKING:
    from pmpp.simt import Access, Hazard, Report, Step, Trace
    from pmpp.simt.observe.contents import Held
    from pmpp.simt.observe.trace import Touch as Request

__all__ = ["End", "Moment", "Race", "Touch", "Warp", "coordinates", "index", "present", "shown", "stepped"]

#: What a statement says in which threads wait for one another: for those of the block, or of the grid.
_BARRIER = re.compile(r"\bsyncthreads(?:_count|_and|_or)?\(|(?P<grid>\.sync\()")

Warp = tuple[int, int]  # the number of a block, and of a warp within it
Lanes = tuple[int, ...]


class Touch(typing.NamedTuple):
    """One warp that loads, stores or updates elements of one array.

    kind      "load", "store" or "atomic"
    array     its name; `space` is "global" or "shared"
    warp      (block, warp), and `lanes` are those that take part
    elements  the index that each of these lanes touches, or None if the contents of the array are not kept
    count     how many elements it touches, from that one on: 1, or more in a request of 128 bits
    """

    kind: str
    array: str
    space: str
    warp: Warp
    lanes: Lanes
    elements: tuple | None
    count: int


class End(typing.NamedTuple):
    """One of the two accesses of a race: the moment, the line, what was done, and by whom."""

    moment: int
    line: int
    kind: str
    block: int
    thread: int
    warp: int
    lane: int


class Race(typing.NamedTuple):
    """Two accesses to one element, of which nothing says which comes first, in the order in which they happened here.

    message  the interpreter's
    array    its name; `element` is the index, as in Touch
    """

    message: str
    array: str
    element: int | tuple[int, ...] | None
    first: End
    second: End


class Moment(typing.NamedTuple):
    """One statement, or one test of an `if`, `while` or `for`, that some warps execute together.

    number    its place in the list, from 0
    line      of the kernel's file; `text` is its source
    active    {(block, warp): lanes that execute it}; warps that do not are not in it
    taken     {(block, warp): lanes that go on inside}, if it is a test; None for any other statement
    waiting   {(block, warp): lanes that wait at a barrier}, those that have just come to it among them
    returned  {(block, warp): lanes that have left the kernel}
    touches   the requests to memory, in order
    changes   {(array, block): {index: new value}}; the block is None in global memory
    hazards   what the interpreter has to say, as sentences
    """

    number: int
    line: int
    text: str
    active: dict[Warp, Lanes]
    taken: dict[Warp, Lanes] | None
    waiting: dict[Warp, Lanes]
    returned: dict[Warp, Lanes]
    touches: tuple[Touch, ...]
    changes: dict[tuple[str, int | None], dict]
    hazards: tuple[str, ...]


@dataclass
class _Open:
    """A moment that is being put together. `implied`: no statement has begun; an access shows that one goes on."""

    line: int
    first: int  # sequence numbers
    last: int
    active: dict[Warp, np.ndarray]
    taken: dict[Warp, np.ndarray] | None = None
    implied: bool = False
    touches: list[Request] = field(default_factory=list)


def stepped(report: Report) -> tuple[list[Moment], list[Race]]:
    """What a launch did that was traced with contents, moment by moment in the order of execution; and its races."""
    trace = report.trace
    touches = trace.touches()
    opened = _opened(trace, touches)
    starts = [one.first for one in opened]
    changes: list[dict] = [{} for _ in opened]
    for change in trace.contents.changes:
        held = trace.contents.arrays[change.array]
        into = changes[_at(starts, change.sequence)].setdefault((held.name, held.block), {})
        values = change.values.tolist()
        into |= {index(held, e): value for e, value in zip(change.elements.tolist(), values, strict=True)}
    hazards: list[list[str]] = [[] for _ in opened]
    found: list[Race] = []
    statements = _statements(trace.file)
    for sequence, hazard in trace.contents.hazards:
        at, line = _at(starts, sequence), statements.get(hazard.line, hazard.line)
        if opened[at].line != line and at + 1 < len(opened) and opened[at + 1].line == line:
            at += 1  # what is found out before the access is noted, in a test
        hazards[at].append(hazard.message)
        if hazard.kind == "race" and (race := _race(report, touches, starts, sequence, hazard)) is not None:
            found.append(race)
    moments = []
    for number, (one, (waiting, returned)) in enumerate(zip(opened, _states(report, opened), strict=True)):
        moments.append(
            Moment(
                number,
                one.line,
                trace.source(one.line),
                _lanes(one.active),
                None if one.taken is None else _lanes(one.taken, empty=True),
                waiting,
                returned,
                tuple(_touch(trace, request) for request in one.touches),
                changes[number],
                tuple(hazards[number]),
            )
        )
    return moments, found


def _race(report: Report, touches: list[Request], starts: Sequence[int], sequence: int, hazard: Hazard) -> Race | None:
    found = _ends(report, touches, sequence, hazard)
    if found is None:
        return None
    *both, place, element = found
    first, second = (
        End(_at(starts, one.sequence), one.line, one.kind, one.block, one.warp * WARP + lane, one.warp, lane)
        for one, lane in both
    )
    held = None if place is None else report.trace.contents.arrays[place]
    name = hazard.variable if held is None else held.name
    return Race(hazard.message, name, None if held is None else index(held, element), first, second)


def _at(starts: Sequence[int], sequence: int) -> int:
    """The moment that an event belongs to. What comes before the first one is of the first."""
    return max(0, bisect.bisect_right(starts, sequence) - 1)


# ------------------------------------------------------------------------------------------------------------ moments


def _opened(trace: Trace, touches: list[Request]) -> list[_Open]:
    """Statements with their accesses.

    A statement is noted before it begins, and a test when it has been made. So accesses on a line belong to the
    statement that has begun there; or else to a test that is being made, or to a statement that goes on after a call.
    """
    statements = _statements(trace.file)
    found: list[_Open] = []
    for sequence, steps, accesses in _events(trace, touches):
        now = found[-1] if found else None
        if steps:
            line = steps[0].line
            active = {(s.block, s.warp): s.active for s in steps}
            taken = None if steps[0].taken is None else {(s.block, s.warp): s.taken for s in steps}
            tested = now is not None and now.implied and taken is not None and now.line == line
            if tested and now.active.keys() <= active.keys():
                now.active, now.taken, now.implied, now.last = active, taken, False, sequence
            else:
                found.append(_Open(line, sequence, sequence, active, taken))
            continue
        line = statements.get(accesses[0].access.line, accesses[0].access.line)
        active = {(a.block, a.warp): a.active for a, *_ in accesses}
        goes_on = now is not None and now.line == line and now.taken is None and active.keys() <= now.active.keys()
        if not goes_on:
            now = _Open(line, sequence, sequence, active, implied=True)
            found.append(now)
        elif now.implied:
            now.active |= {w: now.active[w] | bits for w, bits in active.items()}
        now.last = sequence
        now.touches += accesses
    return found


def _events(trace: Trace, touches: list[Request]) -> Iterator[tuple[int, list[Step], list[Request]]]:
    """Sequence number, and what happened then: steps or accesses of one or more warps."""
    events: dict[int, tuple[list, list]] = {}
    for step in trace.steps():
        events.setdefault(step.sequence, ([], []))[0].append(step)
    for touch in touches:
        events.setdefault(touch.access.sequence, ([], []))[1].append(touch)
    for sequence in sorted(events):
        yield sequence, *events[sequence]


def _statements(file: str) -> dict[int, int]:
    """The first line of the statement, or of the test or range of a branch, that each line of a file belongs to."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}  # magic commands in a notebook's cell: lines stand for themselves
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.While)):
            last = node.test.end_lineno
        elif isinstance(node, ast.For):
            last = node.iter.end_lineno
        elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
            last = node.end_lineno
        else:
            continue
        found |= dict.fromkeys(range(node.lineno, last + 1), node.lineno)
    return found


def _touch(trace: Trace, request: Request) -> Touch:
    access, place, _ = request
    lanes = tuple(np.flatnonzero(access.active).tolist())
    warp = access.block, access.warp
    if place is None:
        return Touch(access.kind, access.variable, access.space, warp, lanes, None, 1)
    held = trace.contents.arrays[place]
    flat = held.elements(access.addresses[access.active], access.width)
    elements = tuple(index(held, e) for e in flat[:, 0].tolist())
    return Touch(access.kind, held.name, access.space, warp, lanes, elements, flat.shape[1])


def index(held: Held, flat: int) -> int | tuple[int, ...]:
    """A flat index as it is written: one number, or a tuple in an array of several axes."""
    if held.start.ndim == 1:
        return int(flat)
    return tuple(int(i) for i in np.unravel_index(flat, held.start.shape))


def _lanes(masks: dict[Warp, np.ndarray], *, empty: bool = False) -> dict[Warp, Lanes]:
    return {w: tuple(np.flatnonzero(bits).tolist()) for w, bits in masks.items() if empty or bits.any()}


# ------------------------------------------------------------------------------------------------- who waits, who left


def present(report: Report) -> dict[Warp, np.ndarray]:
    """Every warp of the traced blocks, in order, with its threads: the last one may have fewer than 32."""
    threads = int(np.prod(report.block))
    lanes = np.arange(WARP, dtype=np.int64)
    return {(b, w): w * WARP + lanes < threads for b in report.trace.blocks for w in report.trace.warps}


def _states(report: Report, opened: list[_Open]) -> Iterator[tuple[dict[Warp, Lanes], dict[Warp, Lanes]]]:
    """For each moment: the lanes that wait at a barrier, and those that have left the kernel."""
    everyone = present(report)
    last = {warp: number for number, one in enumerate(opened) for warp in one.active}
    left = {warp: np.zeros(WARP, np.bool_) for warp in everyone}
    events = iter(report.trace.contents.returned)
    event = next(events, None)
    waiting: dict[Warp, np.ndarray] = {}
    spans: dict[Warp, str] = {}
    groups = [("grid", list(everyone))]
    groups += [("block", [w for w in everyone if w[0] == block]) for block in report.trace.blocks]
    for number, one in enumerate(opened):
        while event is not None and event[0] < one.first:
            for block, bits in event[1].items():
                for warp in [w for w in everyone if w[0] == block]:
                    left[warp] = bits[warp[1] * WARP : (warp[1] + 1) * WARP] & everyone[warp]
            event = next(events, None)
        for warp in everyone:
            if last.get(warp, -1) < number and warp in last:
                left[warp] = everyone[warp]
        for warp in one.active:  # it goes on: the barrier is behind it
            waiting.pop(warp, None)
        barrier = _BARRIER.search(report.trace.source(one.line)) if one.taken is None else None
        if barrier:
            for warp, bits in one.active.items():
                waiting[warp], spans[warp] = bits, "grid" if barrier["grid"] else "block"
        yield _lanes(waiting), _lanes(left)
        for span, group in groups:
            alive = [w for w in group if (everyone[w] & ~left[w]).any()]
            if all(w in waiting and spans[w] == span for w in alive):
                for w in alive:  # all have come
                    del waiting[w]


# ------------------------------------------------------------------------------------------------------------- races


def _ends(
    report: Report, done: list[Request], sequence: int, hazard: Hazard
) -> tuple[tuple[Access, int], tuple[Access, int], int | None, int] | None:
    """The earlier and the later access of a race with the lane of each, the array's place, and the flat index.

    The interpreter names the later access by its thread, and the earlier one in its message. Where several accesses
    would do, it is the last of those that the message names.
    """
    block, thread = _number(hazard.block, report.grid), _number(hazard.thread, report.block)
    warp, lane = divmod(thread, WARP)
    kind = "atomic" if " updates an " in hazard.message else "load" if " reads an " in hazard.message else "store"
    it = None
    for request in done:
        one = request.access
        itself = (one.block, one.warp, one.line, one.kind) == (block, warp, hazard.line, kind) and one.active[lane]
        if itself and sequence <= one.sequence <= sequence + 1:  # an atomic is noted when its race has been found
            it = request
            break
    if it is None:
        return None
    two, begin = it.access, int(it.access.addresses[lane])
    other: tuple[Access, int] | None = None
    for one, _, memory in done:
        if one.sequence > two.sequence or memory != it.memory or (one.kind == two.kind and one.kind != "store"):
            continue
        overlaps = one.active & (one.addresses < begin + two.width) & (one.addresses + one.width > begin)
        for its in np.flatnonzero(overlaps).tolist():
            if (one.block, one.warp, its) == (block, warp, lane):
                continue
            named = _said(report, one, its) in hazard.message
            if other is None or named or _said(report, *other) not in hazard.message:
                other = one, its
    if other is None:
        return None
    element = -1
    if it.array is not None:
        held = report.trace.contents.arrays[it.array]
        both = (set(held.elements(a.addresses[[n]], a.width)[0].tolist()) for a, n in ((two, lane), other))
        element = min(set.intersection(*both))
    return other, (two, lane), it.array, element


def _said(report: Report, access: Access, lane: int) -> str:
    """An earlier access as the interpreter's message has it, with the comma after it."""
    verb = {"load": "read", "store": "wrote", "atomic": "updated"}[access.kind]
    thread = coordinates(access.warp * WARP + lane, report.block)
    return f"thread {thread} of block {coordinates(access.block, report.grid)} {verb} on line {access.line},"


def _number(at: Iterable[int], extent: Sequence[int]) -> int:
    x, y, z = at
    return (z * extent[1] + y) * extent[0] + x


def coordinates(number: int, extent: Sequence[int]) -> str:
    """The number of a block or thread as the interpreter's messages write it: `5`, or `(5, 2)`."""
    x, y, _ = extent
    parts = number % x, number // x % y, number // (x * y)
    used = 3 if extent[2] > 1 else 2 if extent[1] > 1 else 1
    return str(parts[0]) if used == 1 else str(parts[:used])


@functools.singledispatch
def shown(value: object) -> str:
    """A value in few characters."""
    return str(value)


@shown.register
def _(value: float) -> str:
    return f"{value:.4g}"


@shown.register
def _(value: complex) -> str:
    return f"{value.real:.3g}{value.imag:+.3g}j"
