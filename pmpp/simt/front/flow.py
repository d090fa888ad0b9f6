"""Control flow over masks: who executes what.

What may have to wait is a generator (machine/turns.py): loops always, the rest, named `..._by_turns`, if a part is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pmpp.simt.api import hopper
from pmpp.simt.front import inference
from pmpp.simt.front.gathering import Gathering
from pmpp.simt.front.indexing import get_item
from pmpp.simt.front.inference import Paths, settle
from pmpp.simt.front.rounds import Independent, Several
from pmpp.simt.front.steady import Steady
from pmpp.simt.front.variables import Numbered, Places, Range, common_zero, condition, select, widen
from pmpp.simt.front.waiting import Watch
from pmpp.simt.machine.frames import Frame, Loop, kind_of
from pmpp.simt.machine.lanes import Mask, union
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.machine.turns import Waits, plain, suspending, suspends, through
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.errors import UnsupportedError

# -- expressions that choose lanes -----------------------------------------------------------------------------------


def short_circuit(f: Frame, parts: list[Callable], is_and: bool, paths: Paths) -> Any:
    """`a and b`, `a or b`: the right side runs only in the lanes that the left side leaves undecided."""
    if f.m.dry:
        values = [part(f) for part in parts]
        return common_zero(values)
    result = _short_circuit(f, parts, is_and)
    return widen(result, paths.of_value(f, lambda g: short_circuit(g, parts, is_and, paths)))


def _short_circuit(f: Frame, parts: list[Callable], is_and: bool) -> Any:
    outer, line = f.mask, f.m.place.line
    result = parts[0](f)
    try:
        for part in parts[1:]:
            c = condition(f, result, line)
            if isinstance(c, np.bool_):
                if bool(c) != is_and:
                    return result
                result = part(f)
                continue
            undecided, _ = f.mask.split(c if is_and else ~c)
            if undecided is None:
                return result
            f.mask = undecided
            value = part(f)
            result = select(f, c if is_and else ~c, value, result, line)
    finally:
        f.mask = outer
    return result


def short_circuit_by_turns(f: Frame, parts: list[Callable], is_and: bool, paths: Paths) -> Waits:
    """The same where a part may have to wait."""
    if f.m.dry:
        return common_zero([through(part(f)) if suspends(part) else part(f) for part in parts])
    outer, line = f.mask, f.m.place.line
    result = (yield from parts[0](f)) if suspends(parts[0]) else parts[0](f)
    try:
        for part in parts[1:]:
            c = condition(f, result, line)
            undecided = c if is_and else ~c
            if isinstance(c, np.bool_):
                if undecided:
                    result = (yield from part(f)) if suspends(part) else part(f)
                    continue
                break
            rest, _ = f.mask.split(undecided)
            if rest is None:
                break
            f.mask = rest
            value = (yield from part(f)) if suspends(part) else part(f)
            result = select(f, undecided, value, result, line)
    finally:
        f.mask = outer
    everything = [plain(part) for part in parts]
    return widen(result, paths.of_value(f, lambda g: short_circuit(g, everything, is_and, paths)))


def conditional(f: Frame, test: Callable, yes: Callable, no: Callable, line: int, paths: dict[Callable, Paths]) -> Any:
    """`a if test else b`, each side evaluated only in its lanes."""
    outer = f.mask
    c = condition(f, test(f), line)
    if f.m.dry:
        return common_zero([yes(f), no(f)])
    true, false = ((outer, None) if c else (None, outer)) if isinstance(c, np.bool_) else outer.split(c)
    if true is None or false is None:
        taken, other = (no, yes) if true is None else (yes, no)
        result, kind = taken(f), paths[other].of_value(f, other)
        _of_one_kind(f, result, paths[other], other, line)
        return result if kind is None or not is_number(result) else widen(result, dtypes.unify(result.dtype, kind))
    try:
        f.mask = true
        a = yes(f)
        f.mask = false
        b = no(f)
    finally:
        f.mask = outer
    return select(f, c, a, b, line)


def conditional_by_turns(
    f: Frame, test: Callable, yes: Callable, no: Callable, line: int, paths: dict[Callable, Paths]
) -> Waits:
    """The same where a part may have to wait."""
    outer = f.mask
    c = condition(f, (yield from test(f)) if suspends(test) else test(f), line)
    if f.m.dry:
        return common_zero([plain(yes)(f), plain(no)(f)])
    true, false = ((outer, None) if c else (None, outer)) if isinstance(c, np.bool_) else outer.split(c)
    if true is None or false is None:
        taken, other = (no, yes) if true is None else (yes, no)
        result = (yield from taken(f)) if suspends(taken) else taken(f)
        kind = paths[other].of_value(f, plain(other))
        _of_one_kind(f, result, paths[other], plain(other), line)
        return result if kind is None or not is_number(result) else widen(result, dtypes.unify(result.dtype, kind))
    try:
        f.mask = true
        a = (yield from yes(f)) if suspends(yes) else yes(f)
        f.mask = false
        b = (yield from no(f)) if suspends(no) else no(f)
    finally:
        f.mask = outer
    return select(f, c, a, b, line)


def _of_one_kind(f: Frame, result: Any, paths: Paths, other: Callable, line: int) -> None:
    """Refuse an array where the side that no lane takes is an array of another type: Numba has no type for both."""
    if isinstance(result, (Array, Scattered)):
        mine, theirs = inference.type_of(result), paths.kind_of_value(f, other)
        if isinstance(theirs, tuple) and len(theirs) == 2 and isinstance(theirs[1], int) and mine != theirs:
            message = f"a variable cannot be {kind_of(result)} or an array of another type: Numba has no type for both"
            raise f.m.error(message, line, UnsupportedError)


# -- statements ------------------------------------------------------------------------------------------------------


def run_if(f: Frame, test: Callable, body: Callable, orelse: Callable | None, line: int, paths: Paths) -> None:
    """Both sides run, each under its lanes; a side without lanes is skipped."""
    m, outer = f.m, f.mask
    m.place.line = line
    value = test(f)
    if m.dry:
        condition(f, value, line)
        paths.rehearse(f, lambda: inference.branches(f, [body, orelse or (lambda g: None)]))
        return
    after_yes, after_no = yes, no = _sides(f, value, line)
    before = dict(f.vars) if paths.assigned and (yes is None or no is None) else None
    if yes is not None:
        f.mask = yes
        body(f)
        after_yes = f.mask
    if no is not None and orelse is not None:
        f.mask = no
        orelse(f)
        after_no = f.mask
    f.mask = outer if after_yes is yes and after_no is no else union(after_yes, after_no)
    if before is not None and f.mask is not None:
        settle(f, paths.types(f, lambda g: run_if(g, test, body, orelse, line, paths), before=before), line)


@suspending
def run_if_by_turns(
    f: Frame, test: Callable, body: Callable, orelse: Callable | None, line: int, paths: Paths
) -> Waits:
    """The same where the test or a side may have to wait."""
    m, outer = f.m, f.mask
    if m.dry:
        run_if(f, plain(test), plain(body), None if orelse is None else plain(orelse), line, paths)
        return
    m.place.line = line
    value = (yield from test(f)) if suspends(test) else test(f)
    after_yes, after_no = yes, no = _sides(f, value, line)
    before = dict(f.vars) if paths.assigned and (yes is None or no is None) else None
    if yes is not None:
        f.mask = yes
        if suspends(body):
            yield from body(f)
        else:
            body(f)
        after_yes = f.mask
    if no is not None and orelse is not None:
        f.mask = no
        if suspends(orelse):
            yield from orelse(f)
        else:
            orelse(f)
        after_no = f.mask
    f.mask = outer if after_yes is yes and after_no is no else union(after_yes, after_no)
    if before is not None and f.mask is not None:

        def run(g: Frame) -> None:
            through(run_if_by_turns(g, test, body, orelse, line, paths))

        settle(f, paths.types(f, run, before=before), line)


def _sides(f: Frame, value: Any, line: int) -> tuple[Mask | None, Mask | None]:
    """The lanes for which the value of an `if`'s test holds, and the others."""
    c, outer = condition(f, value, line), f.mask
    if isinstance(c, np.bool_):
        yes, no = (outer, None) if c else (None, outer)
    else:
        yes, no = outer.split(c)
    if f.m.counts is not None:
        f.m.branch(line, outer, yes, no)
    return yes, no


#: What is known of a `while` loop before it runs: that it goes round perhaps, at least once, or until a `break`.
PERHAPS, ENTERED, FOREVER = range(3)


@suspending
def run_while(
    f: Frame,
    test: Callable,
    body: Callable,
    orelse: Callable | None,
    line: int,
    paths: Paths,
    kind: int,
    together: Callable[[], int],
    deciding: frozenset[str],
    arithmetic: bool,
) -> Waits:
    """Repeat while any lane's test holds."""
    m, outer, loop = f.m, f.mask, Loop()

    def once(g: Frame) -> None:
        plain(test)(g)
        plain(body)(g)

    if m.dry:
        other = None if orelse is None else plain(orelse)
        paths.rehearse(f, lambda: inference.rounds(f, once, other, entered=kind > PERHAPS, forever=kind == FOREVER))
        return
    before = dict(f.vars) if paths.assigned and (paths.breaks or kind > PERHAPS) else None
    head = paths.types(f, lambda g: inference.rounds(g, once, None, head=True), "head") if paths.assigned else ()
    f.loops.append(loop)
    loop.current = outer
    watch = Watch(f, line, deciding)
    gathering = Gathering.of(f, loop, together)
    test_waits, body_waits = suspends(test), suspends(body)
    steady = Steady.of(f) if arithmetic else None
    try:
        while loop.current is not None:
            if gathering is not None and loop.current.lanes <= gathering.few:
                gathering.check()
            current = f.mask = loop.current
            m.place.line = line
            if steady is not None:
                steady.begins(current)
            if kind == PERHAPS and (steady is None or not steady.settled):
                settle(f, head, line)
            c = condition(f, (yield from test(f)) if test_waits else test(f), line)
            if isinstance(c, np.bool_):
                going, leaving = (current, None) if c else (None, current)
            else:
                going, leaving = current.split(c)
            if steady is not None and leaving is not None and steady.parts():
                test(f)  # once more, to be counted
            if m.counts is not None:
                m.branch(line, current, going, leaving)
            loop.done = union(loop.done, leaving)
            if going is None:
                break
            f.mask, loop.continued = going, None
            if kind > PERHAPS:  # lanes that leave the loop have been round: they have the types of its end
                settle(f, head, line)
            if body_waits:
                yield from body(f)
            else:
                body(f)
            loop.current = union(f.mask, loop.continued)
            turn = watch.check(loop.current, endless=True)
            if turn is not None:
                yield from turn
            if steady is not None:
                steady.round_ends(f, head)
    finally:
        if steady is not None:
            steady.ends()
    if gathering is not None:
        gathering.end()
    f.loops.pop()
    yield from _after_loop(f, outer, loop, orelse)
    if before is not None and f.mask is not None:

        def run(g: Frame) -> None:
            through(run_while(g, test, body, orelse, line, paths, kind, together, deciding, arithmetic))

        settle(f, paths.types(f, run, before=before), line)


@suspending
def run_for(
    f: Frame,
    iterable: Callable,
    assign_target: Callable,
    body: Callable,
    orelse: Callable | None,
    line: int,
    paths: Paths,
    together: Callable[[], int],
    deciding: frozenset[str],
    independent: Independent | None,
    arithmetic: bool,
) -> Waits:
    """Repeat over a range, a tuple, an array, enumerate or zip."""
    m, outer, loop = f.m, f.mask, Loop()
    m.place.line = line
    source = (yield from iterable(f)) if suspends(iterable) else iterable(f)
    if m.dry:
        if isinstance(source, tuple):
            _of_one_type(f, source, line)
        paths.rehearse(f, lambda: _dry_for(f, source, assign_target, body, orelse))
        return
    before, head = dict(f.vars) if paths.breaks and paths.assigned else None, ()
    if paths.assigned:
        head = paths.types(f, lambda g: _dry_for(g, plain(iterable)(g), assign_target, body, None, head=True), "head")
    f.loops.append(loop)
    loop.current = outer
    gathering = Gathering.of(f, loop, together) if isinstance(source, Range) else None
    body_waits = suspends(body)
    several = Several.of(f, loop, independent, head) if isinstance(source, Range) else None
    watch = Watch(f, line, deciding) if m.turns is not None or m.launch.can_begin_again else None
    steady = Steady.of(f) if arithmetic and several is None else None
    try:
        for going, leaving, value in _rounds(f, source, loop, line, gathering, several):
            f.mask = loop.current
            if steady is not None:
                steady.begins(loop.current)
                if leaving is not None:
                    steady.parts()
            if steady is None or not steady.settled:
                settle(f, head, line)
            if m.counts is not None:
                m.branch(line, loop.current, going, leaving)
            loop.done = union(loop.done, leaving)
            if going is None:
                break
            f.mask, loop.continued = going, None
            assign_target(f, value)
            if body_waits:
                yield from body(f)
            else:
                body(f)
            loop.current = union(f.mask, loop.continued)
            turn = None if watch is None else watch.check(loop.current, endless=False)
            if turn is not None:
                yield from turn
            if loop.current is None:
                break
            if steady is not None:
                steady.round_ends(f, head)
            m.place.line = line
    finally:
        if steady is not None:
            steady.ends()
    if gathering is not None:
        gathering.end()
    f.loops.pop()
    yield from _after_loop(f, outer, loop, orelse)
    if before is not None and f.mask is not None:

        def run(g: Frame) -> None:
            through(run_for(g, iterable, assign_target, body, orelse, line, paths, together, deciding, None, False))

        settle(f, paths.types(f, run, before=before), line)


def _dry_for(
    f: Frame, source: Any, assign_target: Callable, body: Callable, orelse: Callable | None, *, head: bool = False
) -> None:
    value = _typical(f, source)

    def once(g: Frame) -> None:
        assign_target(g, value)
        plain(body)(g)

    inference.rounds(f, once, None if orelse is None else plain(orelse), head=head)


def _typical(f: Frame, source: Any) -> Any:
    """One of the values that a loop runs over, in a dry run."""
    if isinstance(source, Range):
        return source.dtype.type(0)
    if isinstance(source, Places):
        return (np.int64(0),) * len(source.extents)
    if isinstance(source, Numbered):
        return source.start, _typical(f, source.source)
    if isinstance(source, Array):
        return get_item(f, source, (np.int64(0),), source.storage.name, 0, (True,))
    return next(iter(source))


def _after_loop(f: Frame, outer: Mask, loop: Loop, orelse: Callable | None) -> Waits:
    done = loop.done
    if orelse is not None and done is not None:
        f.mask = done
        if suspends(orelse):
            yield from orelse(f)
        else:
            orelse(f)
        done = f.mask
    after = union(done, loop.broken)
    f.mask = outer if after is not None and after.lanes == outer.lanes else after


def _rounds(
    f: Frame,
    source: Any,
    loop: Loop,
    line: int,
    gathering: Gathering | None,
    several: Several | None = None,
) -> Iterator[tuple[Mask | None, Mask | None, Any]]:
    """For each round: the lanes that do it, the lanes that are through, and the loop variable's value.

    Rounds that `several` runs at once are left out.
    """
    if isinstance(source, Range):
        yield from _range_rounds(f, source, loop, line, gathering, several)
        return
    if isinstance(source, Places):
        yield from _place_rounds(source, loop)
        return
    if isinstance(source, Numbered):
        counted = source.start
        for going, leaving, value in _rounds(f, source.source, loop, line, gathering):
            yield going, leaving, (counted, value)
            counted = counted + np.int64(1)
        return
    if isinstance(source, Scattered):
        yield from _scattered_rounds(f, source, loop, line)
        return
    for value in elements(f, source, line):
        yield loop.current, None, value
    yield None, loop.current, None


def _range_rounds(
    f: Frame, r: Range, loop: Loop, line: int, gathering: Gathering | None, several: Several | None
) -> Iterator[tuple[Mask | None, Mask | None, Any]]:
    if r.start.size == r.stop.size == r.step.size == 1:
        start, stop, step = (
            int(v if isinstance(v, np.generic) else v.reshape(-1)[0]) for v in (r.start, r.stop, r.step)
        )
        if step == 0:
            raise f.m.error("range() step must not be zero", line)
        make, left = r.dtype.type, range(start, stop, step)
        while left:
            if gathering is not None and loop.current.lanes <= gathering.few:
                gathering.check()
            yield loop.current, None, make(left[0])
            left = left[1:]
            while several is not None and (done := several.same_rounds(left, r.dtype, line)):
                left = left[done:]
        yield None, loop.current, None
        return
    active = loop.current.bits
    if np.any((r.step == 0) & (True if active is None else active)):
        raise f.m.error("range() step must not be zero", line)
    value = np.broadcast_to(r.start, np.broadcast_shapes(*(np.shape(v) for v in (r.start, r.stop, r.step))))
    stop, step, up = r.stop, r.step, np.asarray(r.step) > 0
    upwards = bool(up.all())
    while True:
        few = gathering.check() if gathering is not None and loop.current.lanes <= gathering.few else None
        if few is not None:
            value, stop, step, up = (few.pick(v) for v in (value, stop, step, up))
        more = value < stop if upwards else np.where(up, value < stop, value > stop)
        if more.ndim:
            going, leaving = loop.current.split(more)
        else:  # a single lane
            going, leaving = (loop.current, None) if more else (None, loop.current)
        yield going, leaving, value
        value = value + step
        if value.dtype != r.dtype:
            value = value.astype(r.dtype)
        while several is not None and (done := several.own_rounds(value, stop, step, line)):
            if loop.current is None:
                return
            value = (value + done * step.astype(np.int64)).astype(r.dtype)


def _place_rounds(places: Places, loop: Loop) -> Iterator[tuple[Mask | None, Mask | None, Any]]:
    """Indices in C order, in each lane as many as its own extents make."""
    extents = [n.astype(np.int64) for n in places.extents]
    if all(n.size == 1 for n in extents):
        for where in np.ndindex(*(max(0, int(n.reshape(-1)[0])) for n in extents)):
            yield loop.current, None, tuple(map(np.int64, where))
        yield None, loop.current, None
        return
    total: Any = np.int64(1)
    for n in extents:
        total = total * np.maximum(n, 0)
    for k in itertools.count():
        going, leaving = loop.current.split(np.asarray(k < total))
        rest, where = np.int64(k), []
        for n in reversed(extents):
            n = np.maximum(n, 1)
            where.append(rest % n)
            rest = rest // n
        yield going, leaving, tuple(reversed(where))


def _scattered_rounds(f: Frame, source: Scattered, loop: Loop, line: int) -> Iterator:
    """The elements of an array that is not the same in all lanes."""
    length = source.gather(f, lambda part: np.int64(part.shape[0]) + np.int64(0))
    for k in itertools.count():
        going, leaving = loop.current.split(
            np.broadcast_to(np.asarray(k < length), (1, 1) if not np.ndim(length) else np.shape(length))
        )
        value = None
        if going is not None:
            f.mask = going
            value = get_item(f, source, (np.int64(k),), source.parts[0][1].storage.name, line, (True,))
            f.mask = loop.current
        yield going, leaving, value


def _of_one_type(f: Frame, source: Any, line: int) -> None:
    if not source:
        raise f.m.error("a loop over an empty tuple does not compile in Numba: it has no type", line, UnsupportedError)
    kinds = [inference.type_of(v) for v in source]
    if any(kind != kinds[0] for kind in kinds):
        given = ", ".join(map(kind_of, source))
        raise f.m.error(f"a loop over a tuple takes elements of one type, not {given}", line, UnsupportedError)


def elements(f: Frame, source: Any, line: int) -> Iterator[Any]:
    """The values of anything but a range that a `for` can run over."""
    if isinstance(source, (tuple, list)):
        _of_one_type(f, source, line)
        for value in source:
            hopper.refuse_ticket(f, value, "an element of the tuple", line)
            yield value
    elif isinstance(source, Array):
        extent = source.shape[0]
        for i in range(int(extent)):
            yield get_item(f, source, (np.int64(i),), source.storage.name, line, (True,))
    elif isinstance(source, Places):
        if not all(n.size == 1 for n in source.extents):
            message = "zip takes np.ndindex of extents that are the same for every thread"
            raise f.m.error(message, line, UnsupportedError)
        yield from (
            tuple(map(np.int64, where)) for where in np.ndindex(*(int(n.reshape(-1)[0]) for n in source.extents))
        )
    elif isinstance(source, Numbered):
        values = elements(f, source.source, line)
        yield from ((source.start + np.int64(k), value) for k, value in enumerate(values))
    elif isinstance(source, Iterator):
        yield from source
    elif isinstance(source, Range):
        if not all(isinstance(v, np.generic) for v in (source.start, source.stop, source.step)):
            raise f.m.error(
                "zip takes a range whose bounds are the same for every thread: loop over the range, and index",
                line,
                UnsupportedError,
            )
        yield from (source.dtype.type(i) for i in range(int(source.start), int(source.stop), int(source.step)))
    else:
        hint = ": loop over range(len(...)) and index" if isinstance(source, Scattered) else ""
        raise f.m.error(f"cannot loop over {kind_of(source)}{hint}", line, UnsupportedError)


def run_break(f: Frame) -> None:
    """The active lanes leave the innermost loop."""
    if f.m.dry:
        if f.loops:
            f.loops[-1].exits.append(dict(f.vars))
        else:  # the loop itself is outside of what is asked about
            f.left += 1
        raise inference.Left
    loop = f.loops[-1]
    loop.broken, f.mask = union(loop.broken, f.mask), None


def run_continue(f: Frame) -> None:
    """The active lanes skip the rest of this round."""
    if f.m.dry:
        if f.loops:
            f.loops[-1].continues.append(dict(f.vars))
        else:
            f.left += 1
        raise inference.Left
    loop = f.loops[-1]
    loop.continued, f.mask = union(loop.continued, f.mask), None


def run_return(f: Frame, value: Any) -> None:
    """The active lanes leave the function."""
    if f.m.dry:
        f.left += 1
        if value is not None:
            f.value = value if f.value is None else common_zero([f.value, value]) if is_number(value) else value
        raise inference.Left
    if value is not None or f.value is not None:
        f.value = value if f.returned is None else select(f, f.mask.grid(), value, f.value, f.m.place.line)
    f.returned, f.mask = union(f.returned, f.mask), None
    if f.caller is None:
        gone = f.returned.grid()
        batch = f.m.batch
        batch.exited = gone if f.m.turns is None or batch.exited is None else batch.exited | gone
