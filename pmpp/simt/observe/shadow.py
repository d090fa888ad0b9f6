"""The race detector: who touched each element last, and was there anything in between.

Lockstep execution hides races: every warp of a batch runs the same statement at the same time, so a missing barrier
changes no result.  Each array therefore has a shadow that remembers, for every element, who wrote it, who updated it
atomically and who read it last, and when.  Two accesses to one element by different threads, at least one of them a
plain write, race unless something orders them:

    same block    a barrier (`syncthreads`) in between, or for one warp a `syncwarp` of both lanes
    other blocks  a grid-wide barrier
    any           a signal with its fence, and a look at it (order.py)

The last access is not enough, because it may be the thread's own: the shadow also keeps the last one by another
thread, by another warp and by another block than that.  A barrier that orders the last access of a thread, a warp or a
block orders those before it, so a race with any of them is a race with one of these four.  Signals, and `syncwarp` of
some lanes, order less: kernels that have them keep the other accesses, too (`Displaced`).

Left alone are two threads that write the same value, as in `found[0] = 1`, and plain reads of what others update
atomically where the kernel's text shows that no harm is meant: `Launch.looks`.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Hashable

import numpy as np

from pmpp.simt.machine.lanes import WARP
from pmpp.simt.observe.order import Clock
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.quick import all_of, any_of, largest

#: Where an access is and whose it is: of several threads arrays, of one two Python ints, which cost a fifth.
Places = np.ndarray | int

#: A stamp is the time of an access and the thread, in one integer: 0 where there was none.
_THREAD = (1 << 32) - 1


class Accesses:
    """Of one kind of access to an array: for each element the last, and the last by somebody else."""

    ONE_BY_ONE = 4

    def __init__(self, size: int) -> None:
        self.last = np.zeros(size, np.int64)
        self.others: list[np.ndarray] = []  # by another thread, warp, block than the last; from when it matters
        self.displaced: Displaced | None = None  # earlier ones, once there are some
        self.fine: tuple[int, int] | None = None  # a cell and a thread that raced with nothing noted so far
        #: By cell: all accesses until the second time, but those of a thread, are known to who learnt since the first.
        self.published: dict[int, tuple[int, int, int]] = {}

    def add(self, at: Places, stamps: Places, floor: int, width: int, *, keep: bool = False) -> bool:
        """Note accesses in the order of time; whether several of them were to one element.

        What happened before `floor` is ordered before everything to come.  `keep` those that have to make room.
        """
        if type(at) is int:
            self._add_one(at, stamps, floor, width, keep)
            return False
        self.fine, at = None, as_intp(at)
        old = self.last.take(at)
        self.last[at] = stamps  # of several stamps for an element, NumPy keeps the last
        new = self.last.take(at)
        shared = any_of(new != stamps)
        latest = largest(old)
        if not self.others:
            if not shared and (latest == 0 or latest >> 32 < floor or not any_of(_differ(old, new))):
                return shared
            self.others = [np.zeros_like(self.last) for _ in range(3)]
        superseded = [old] if latest >> 32 >= floor else []
        keep = keep and bool(shared or superseded)
        before = [old, *(slot.take(at) for slot in self.others)] if keep else []
        noted = [(stamp, stamp & _THREAD) for stamp in ((*superseded, stamps) if shared else superseded)]
        last = new & _THREAD
        for slot, size in zip(self.others, (1, WARP, width), strict=True):
            for stamp, who in noted:
                chosen = who // size != last // size
                if any_of(chosen):
                    slot[at[chosen]] = stamp[chosen]
        if keep:
            self._keep(at, np.array([*before, stamps], np.int64), floor, width)
        return shared

    def _add_one(self, at: int, stamp: int, floor: int, width: int, keep: bool) -> None:
        """`add` of a single access."""
        old, self.fine = self.last.item(at), None
        self.last[at] = stamp
        late = old != 0 and old >> 32 >= floor
        if not self.others:
            if not late or (old ^ stamp) & _THREAD == 0:
                return
            self.others = [np.zeros_like(self.last) for _ in range(3)]
        if not late:
            return
        before = [slot.item(at) for slot in self.others] if keep else []
        other, last = old & _THREAD, stamp & _THREAD
        for slot, size in zip(self.others, (1, WARP, width), strict=True):
            if other // size != last // size:
                slot[at] = old
        if keep:
            now = [stamp, *(slot.item(at) for slot in self.others)]
            for each in (old, *before):
                if each and each >> 32 >= floor and each not in now:
                    self.displaced = self.displaced or Displaced(width)
                    self.displaced.add_one(at, each, floor)

    def _keep(self, at: np.ndarray, stamps: np.ndarray, floor: int, width: int) -> None:
        """Keep those accesses to these cells, a row each, that are not among the last ones any more."""
        gone = (stamps != 0) & (stamps >> 32 >= floor)
        for slot in (self.last, *self.others):
            gone &= stamps != slot.take(at)
        for each, those in zip(stamps, gone, strict=True):
            if any_of(those):
                if self.displaced is None:
                    self.displaced = Displaced(width)
                self.displaced.add(at[those], each[those], floor)

    def conflict(
        self,
        clock: Clock,
        at: Places,
        me: Places,
        floor: int,
        width: int,
        *,
        across: str = "any",
        but: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Which lanes race with an access noted here, and the stamps of what they race with.

        across    "any" also one by another block, "last" only if it was the last of all
        but       lanes that do not race
        """
        if type(at) is int:
            stamp = self._conflict_of_one(clock, at, me, floor, width, across) if but is None or not but[0] else 0
            return (np.array([True], np.bool_), np.array([stamp], np.int64)) if stamp else None
        at = as_intp(at)
        slots = [slot.take(at) for slot in (self.last, *self.others)]
        late = [stamps for stamps in slots if largest(stamps) >> 32 >= floor]
        if late:  # one question about all of them, since most of what a question costs is the call
            found = np.array(late, np.int64)
            who = found & _THREAD
            bad = (who != me) & (found != 0)
            if across == "last":
                other = 1 if late[0] is slots[0] else 0  # where the rows that are not of the last access begin
                bad[other:] &= who[other:] // width == me // width
            if but is not None:
                bad &= ~but
            if any_of(bad):
                bad &= clock.unordered(who, found >> 32, me)
                for lanes, stamps in zip(bad, late, strict=True):
                    if any_of(lanes):
                        return lanes, stamps
        if self.displaced is None or self.displaced.newest >> 32 < floor:
            return None
        lanes, stamps = self.displaced.of(at, floor)
        who, mine = stamps & _THREAD, me[lanes]
        bad = (who != mine) & clock.unordered(who, stamps >> 32, mine)
        if across == "last":
            bad &= who // width == mine // width
        if but is not None:
            bad &= ~but[lanes]
        if not any_of(bad):
            return None
        found, what = np.zeros(at.size, np.bool_), np.zeros(at.size, np.int64)
        found[lanes[bad]], what[lanes[bad]] = True, stamps[bad]
        return found, what

    def _conflict_of_one(self, clock: Clock, at: int, me: int, floor: int, width: int, across: str) -> int:
        """The stamp of what a single access races with, or 0."""
        if self.fine == (at, me):  # and has learnt no less since
            return 0
        device = clock.device if clock.device is not None and clock.device.flags is None else None
        published = device is not None  # whether all that there is was handed over by signals
        for slot in (self.last, *self.others):
            stamp = slot.item(at)
            who = stamp & _THREAD
            if stamp == 0 or who == me or stamp >> 32 < floor:
                continue
            if published and device.is_ordered(who, stamp >> 32, me):
                continue
            published = False
            if across == "last" and slot is not self.last and who // width != me // width:
                continue
            if clock.is_unordered(who, stamp >> 32, me):
                return stamp
        if self.displaced is None or self.displaced.newest >> 32 < floor:
            self.fine = (at, me) if across == "any" else self.fine
            return 0
        return self._conflict_with_displaced(clock, at, me, floor, width, across, published)

    def _conflict_with_displaced(
        self, clock: Clock, at: int, me: int, floor: int, width: int, across: str, published: bool
    ) -> int:
        """The same for accesses that are not among the last ones any more; `published`: those have been handed over."""
        stamps = self.displaced.of_one(at, floor)
        if published:
            known = clock.device.acquired.item(me)
            since, until, but = self.published.get(at, (known + 1, 0, 0))
            if since <= known:
                stamps = stamps[(stamps >> 32 > until) | (stamps & _THREAD == but)]
            if self._handed_over(clock, stamps, me):
                self.published[at] = known, clock.now, me
                self.fine = (at, me) if across == "any" else self.fine
                return 0
        who = stamps & _THREAD
        bad = who != me
        if across == "last":
            bad &= who // width == me // width
        if any_of(bad):
            bad &= clock.unordered(who, stamps >> 32, np.int64(me))
            if not any_of(bad) and across == "any":
                self.fine = at, me
        found = stamps[bad]  # as `of` has them, the last is the latest of the last thread
        return found.item((found << 32 | found >> 32).argmax()) if found.size else 0

    def _handed_over(self, clock: Clock, stamps: np.ndarray, me: int) -> bool:
        """Whether all these accesses were handed over to a thread by signals, or are its own."""
        if stamps.size > self.ONE_BY_ONE:
            who = stamps & _THREAD
            return all_of((who == me) | clock.device.ordered(who, stamps >> 32, np.int64(me)))
        each = [(stamp & _THREAD, stamp >> 32) for stamp in stamps.tolist()]
        return all(who == me or clock.device.is_ordered(who, then, me) for who, then in each)

    def repeat(self, blocks: int, width: int) -> None:
        """Turn one row that stands for `blocks` blocks into one row each, with each block's own threads."""
        shift = np.repeat(np.arange(blocks, dtype=np.int64) * width, self.last.size)

        def rows(row: np.ndarray) -> np.ndarray:
            row = np.tile(row, blocks)
            return np.where(row == 0, 0, row + shift)

        self.fine, self.published = None, {}
        if self.displaced is not None:
            self.displaced.repeat(blocks, self.last.size)
        self.last, self.others = rows(self.last), [rows(slot) for slot in self.others]

    def refine(self, parts: int) -> None:
        """Split each element into parts."""
        self.fine, self.published = None, {}
        self.last, self.others = np.repeat(self.last, parts), [np.repeat(slot, parts) for slot in self.others]
        if self.displaced is not None:
            self.displaced.refine(parts)


class Displaced:
    """Accesses that are not among the last ones to their cell any more, and need not be ordered before those.

    A barrier orders whole blocks or warps, so the last accesses stand for all before them.  A `syncwarp` of some lanes
    orders these, and a signal the threads that fenced: of 32 lanes that read a cell, two are its last readers, and
    the other 30 may still be reading when those two are through.  Of each thread the last access to a cell counts.
    There is room for `SIZE` accesses; beyond that the last of each block, and then the latest of all.
    """

    SIZE, AT_ONCE = 1 << 16, 16

    def __init__(self, width: int) -> None:
        self.width = width
        self.cells, self.stamps = np.zeros((2, 0), np.int64)  # in the order of the cells
        self.new: list[tuple[np.ndarray, np.ndarray]] = []
        self.ones: list[tuple[int, int]] = []  # those that came one by one
        self.count = self.newest = 0

    def add(self, cells: np.ndarray, stamps: np.ndarray, floor: int) -> None:
        """Keep these accesses."""
        self.new.append((cells, stamps))
        self.newest = max(self.newest, largest(stamps))
        self.count += cells.size
        if self.count > self.SIZE:
            self._settle(floor)

    def add_one(self, cell: int, stamp: int, floor: int) -> None:
        """Keep one access."""
        self.ones.append((cell, stamp))
        self.newest, self.count = max(self.newest, stamp), self.count + 1
        if self.count > self.SIZE:
            self._settle(floor)

    def of_one(self, at: int, floor: int) -> np.ndarray:
        """The stamps of accesses to one cell."""
        if self.new or len(self.ones) > self.AT_ONCE:
            self._settle(floor)
        first, end = self.cells.searchsorted((at, at + 1))
        stamps, few = self.stamps[first:end], [stamp for cell, stamp in self.ones if cell == at]
        if few:
            stamps = np.concatenate([stamps, np.array(few, np.int64)])
        return stamps[stamps >> 32 >= floor] if floor else stamps

    def of(self, at: np.ndarray, floor: int) -> tuple[np.ndarray, np.ndarray]:
        """The accesses to each of these cells: for each access which entry of `at` it concerns, and its stamp."""
        if self.new or self.ones:
            self._settle(floor)
        first = self.cells.searchsorted(at, "left")
        count = self.cells.searchsorted(at, "right") - first
        if at.size == 1:
            stamps = self.stamps[first[0] : first[0] + count[0]]
            return np.zeros(stamps.size, np.int64), stamps
        lanes = np.repeat(np.arange(at.size, dtype=np.int64), count)
        within = np.arange(lanes.size, dtype=np.int64) - np.repeat(np.cumsum(count, dtype=np.int64) - count, count)
        return lanes, self.stamps[np.repeat(first, count) + within]

    def _settle(self, floor: int) -> None:
        if self.ones:
            cells, stamps = np.array(self.ones, np.int64).T
            self.new.append((cells, stamps))
            self.ones = []
        cells = np.concatenate([self.cells, *(cells for cells, _ in self.new)])
        stamps = np.concatenate([self.stamps, *(stamps for _, stamps in self.new)])
        late = stamps >> 32 >= floor
        cells, stamps = cells[late], stamps[late]
        for size in (1, self.width):
            if size == 1 or cells.size > self.SIZE // 2:
                who = (stamps & _THREAD) // size
                order = np.lexsort((stamps, who, cells))
                cells, stamps, who = cells[order], stamps[order], who[order]
                last = np.ones(cells.size, np.bool_)
                last[:-1] = (cells[1:] != cells[:-1]) | (who[1:] != who[:-1])
                cells, stamps = cells[last], stamps[last]
        if cells.size > self.SIZE // 2:
            latest = np.sort(np.argsort(stamps, kind="stable")[-self.SIZE // 2 :])
            cells, stamps = cells[latest], stamps[latest]
        self.cells, self.stamps, self.new, self.count = cells, stamps, [], cells.size

    def repeat(self, blocks: int, size: int) -> None:
        """As those of `Accesses`, of rows of `size` cells."""
        self._settle(0)
        each = np.arange(blocks, dtype=np.int64)[:, None]
        self.cells, self.stamps = (self.cells + each * size).reshape(-1), (self.stamps + each * self.width).reshape(-1)
        self.count = self.cells.size

    def refine(self, parts: int) -> None:
        """As those of `Accesses`."""
        self._settle(0)
        cells = (self.cells[:, None] * parts + np.arange(parts, dtype=np.int64)).reshape(-1)
        order = np.argsort(cells, kind="stable")
        self.cells, self.stamps = cells[order], np.repeat(self.stamps, parts)[order]
        self.count = self.cells.size


def _differ(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a & _THREAD) != (b & _THREAD)


class Race:
    """Races met by one access: which lanes, and the stamps and line of what they race with."""

    def __init__(self, bad: np.ndarray, stamps: np.ndarray, verb: str, shadow: Shadow) -> None:
        self.bad, self.verb = bad, verb
        self.lane = int(np.argmax(bad))
        stamp = int(stamps[self.lane])
        self.thread, self.time = stamp & _THREAD, stamp >> 32
        self.line = shadow.line_at(self.time)


class Shadow:
    """The shadow of one array, as elements of `unit` bytes.

    Positions are flat; a thread's id counts through the padded grid, block by block.
    `floor` is a time before which every access is ordered before all that is to come.
    `keep`: the launch has what orders some threads of a warp or block and not the others.
    """

    #: Reads are noted when a write asks for them; no more than this many are kept waiting.
    PATIENCE = 1 << 20

    def __init__(self, size: int, unit: int, keep: bool) -> None:
        self.size, self.unit, self.keep = size, unit, keep
        self.written: Accesses | None = None
        self.updated: Accesses | None = None
        self.reads: Accesses | None = None
        self.looks: Accesses | None = None  # reads that do not race with atomics
        self.waiting: list[tuple[np.ndarray, np.ndarray, int, bool]] = []
        self.kept = 0
        self.times, self.lines = array("q"), array("q")
        # Of global memory, once bulk copies use it: who stores each cell by one, and on which line; and the number of
        # the last copy that reads it (bulk.py).
        self.stored: np.ndarray | None = None
        self.fetched: np.ndarray | None = None

    def line_at(self, time: int) -> int:
        """The line of the access at a time."""
        return self.lines[bisect.bisect_right(self.times, time) - 1]

    def _note(self, now: int, line: int) -> None:
        if not self.lines or self.lines[-1] != line:
            self.times.append(now)
            self.lines.append(line)

    def on_read(
        self, clock: Clock, at: Places, me: Places, line: int, floor: int, width: int,
        flags: Hashable = None, *, looks: bool = False,
    ) -> Race | None:  # fmt: skip
        """Record reads; the race with an earlier write or atomic, if there is one.

        flags     of an array in global memory: what it is called among those by which blocks signal
        looks     atomics by other threads are no harm
        """
        self._note(clock.now, line)
        found, verb = None, "wrote"
        if self.written is not None:
            found = self.written.conflict(clock, at, me, floor, width)
        if self.updated is not None:
            if clock.device is not None or clock.inside is not None:
                self._seen(clock, at, me, flags)
            if found is None and not looks:
                verb = "updated"
                found = self.updated.conflict(clock, at, me, floor, width)
        if self.waiting and self.waiting[0][2] < floor:
            self._forget(floor)
        self.waiting.append((at, me, clock.now, looks))
        self.kept += 1 if type(at) is int else at.size
        if self.kept > self.PATIENCE:
            self._catch_up(floor, width)
        return Race(*found, verb, self) if found is not None else None

    def reads_still(self, clock: Clock, at: Places, me: Places, line: int) -> None:
        """These threads have read these elements until now, since they began to: what could race then has been told."""
        self.forget_the_same(at, me)
        self._note(clock.now, line)
        self.waiting.append((at, me, clock.now, False))
        self.kept += at.size

    def written_before(self, at: np.ndarray) -> np.ndarray:
        """The stamp of the last store or atomic to each of these elements."""
        stamps = np.zeros(at.size, np.int64)
        for accesses in (self.written, self.updated):
            if accesses is not None:
                np.maximum(stamps, accesses.last.take(as_intp(at)), out=stamps)
        return stamps

    def forget_the_same(self, at: Places, me: Places) -> None:
        """These very threads are about to read these elements again: what they read lately need not be kept."""
        waiting = self.waiting
        for k in range(len(waiting) - 1, max(-1, len(waiting) - 9), -1):
            cells, who = waiting[k][:2]
            one = type(at) is type(cells) is int
            if (cells == at and who == me) if one else (cells is at and who is me):
                self.kept -= 1 if one else at.size
                del waiting[k]
                return

    def _seen(self, clock: Clock, at: Places, me: Places, flags: Hashable) -> None:
        """Tell the clock who has read what an atomic left there."""
        if type(at) is int:
            at, me = np.array([at], np.int64), np.array([me], np.int64)
        at = as_intp(at)
        updated = self.updated.last.take(at)
        if self.written is not None:
            updated = np.where(updated > self.written.last.take(at), updated, 0)
        there = updated != 0
        if any_of(there):
            clock.look(me[there], flags, at[there] * self.unit)

    def _forget(self, floor: int) -> None:
        if not self.waiting:
            return
        self.waiting = [entry for entry in self.waiting if entry[2] >= floor]
        self.kept = sum(1 if type(entry[0]) is int else entry[0].size for entry in self.waiting)

    def _catch_up(self, floor: int, width: int) -> None:
        """Note the reads that have waited and could still race."""
        self._forget(floor)
        plain = [entry for entry in self.waiting if not entry[3]]
        if plain:
            self.reads = self._read(self.reads, plain, floor, width)
        if len(plain) < len(self.waiting):
            self.looks = self._read(self.looks, [entry for entry in self.waiting if entry[3]], floor, width)
        self.waiting, self.kept = [], 0

    def _read(self, accesses: Accesses | None, entries: list, floor: int, width: int) -> Accesses:
        accesses = Accesses(self.size) if accesses is None else accesses
        if all(type(cells) is int for cells, *_ in entries) and len(entries) <= 4:
            for cell, me, now, _ in entries:
                accesses.add(cell, me | now << 32, floor, width, keep=self.keep)
            return accesses
        entries = [(np.atleast_1d(np.asarray(cells, np.int64)), np.asarray(me, np.int64), *rest)
                   for cells, me, *rest in entries]  # fmt: skip
        at = np.concatenate([cells for cells, *_ in entries])
        stamps = np.concatenate([np.atleast_1d(me | now << 32) for _, me, now, _ in entries])
        accesses.add(at, stamps, floor, width, keep=self.keep)
        return accesses

    def on_write(
        self, clock: Clock, at: Places, me: Places, line: int, floor: int, width: int, same
    ) -> tuple[list[Race], bool]:
        """Record plain writes; the races with earlier accesses, and whether several lanes wrote one element.

        `same()` marks writes that store what is already there; those do not race with another plain write.
        """
        races = self.races_of_write(clock, at, me, floor, width, same)
        several = self.add_written(clock, at, me, line, floor, width)
        return races, several

    def races_of_write(self, clock: Clock, at: Places, me: Places, floor: int, width: int, same) -> list[Race]:
        """The races of plain writes with earlier accesses."""
        self._catch_up(floor, width)
        races = []
        if self.written is not None:
            found = self.written.conflict(clock, at, me, floor, width)
            if found is not None:
                found = self.written.conflict(clock, at, me, floor, width, but=same())
            races.append((found, "wrote"))
        if self.updated is not None:
            # A block whose atomic came last may reset what all have updated, such as a counter of blocks.
            races.append((self.updated.conflict(clock, at, me, floor, width, across="last"), "updated"))
        for reads in (self.reads, self.looks):
            if reads is not None:
                races.append((reads.conflict(clock, at, me, floor, width), "read"))
        return [Race(*found, verb, self) for found, verb in races if found is not None]

    def add_written(
        self, clock: Clock, at: Places, me: Places, line: int, floor: int, width: int, *, updates: bool = False
    ) -> bool:
        """Record plain writes, or atomics; whether several lanes wrote one element."""
        self._note(clock.now, line)
        if updates:
            if self.updated is None:
                self.updated = Accesses(self.size)
            return self.updated.add(at, me | clock.now << 32, floor, width)
        if self.written is None:
            self.written = Accesses(self.size)
        return self.written.add(at, me | clock.now << 32, floor, width, keep=self.keep)

    def on_update(self, clock: Clock, at: Places, me: Places, line: int, floor: int, width: int) -> list[Race]:
        """Record atomics, which race with plain accesses only."""
        races = self.races_of_update(clock, at, me, floor, width)
        self.add_written(clock, at, me, line, floor, width, updates=True)
        return races

    def races_of_update(self, clock: Clock, at: Places, me: Places, floor: int, width: int) -> list[Race]:
        """The races of atomics with earlier accesses."""
        self._catch_up(floor, width)
        races = []
        if self.written is not None:
            races.append((self.written.conflict(clock, at, me, floor, width), "wrote"))
        if self.reads is not None:
            races.append((self.reads.conflict(clock, at, me, floor, width), "read"))
        return [Race(*found, verb, self) for found, verb in races if found is not None]

    def _each(self, change) -> None:
        for accesses in (self.written, self.updated, self.reads, self.looks):
            if accesses is not None:
                change(accesses)

    def repeat(self, blocks: int, width: int) -> None:
        """Turn one row that stands for `blocks` blocks into one row each, with each block's own threads."""
        self._catch_up(0, width)
        self._each(lambda accesses: accesses.repeat(blocks, width))
        self.size *= blocks

    def refine(self, unit: int, width: int) -> None:
        """Split each element into elements of `unit` bytes; `width` threads make a block."""
        parts = self.unit // unit
        self._catch_up(0, width)
        self._each(lambda accesses: accesses.refine(parts))
        self.stored = None if self.stored is None else np.repeat(self.stored, parts)
        self.fetched = None if self.fetched is None else np.repeat(self.fetched, parts)
        self.size, self.unit = self.size * parts, unit
