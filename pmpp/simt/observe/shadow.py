"""The race detector: who touched each element last, and was there anything in between.

Lockstep execution hides races: every warp of a batch runs the same statement at the same time, so a missing barrier
changes no result.  Each array therefore has a shadow that remembers, for every element, who wrote it, who updated it
atomically and who read it last, and when.  Two accesses to one element by different threads, at least one of them a
plain write, race unless something orders them:

    same block    a barrier (`syncthreads`) in between, or for one warp a `syncwarp` of both lanes
    other blocks  a grid-wide barrier
    any           a signal with its fence, and a look at it (order.py)

The last access is not enough, because it may be the thread's own: the shadow also keeps the last one by another
thread, by another warp and by another block than that.  What orders the last access of a thread, a warp or a block
orders those before it, as a rule, so a race with any of them is a race with one of these four.

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
from pmpp.simt.values.quick import any_of, largest

#: A stamp is the time of an access and the thread, in one integer: 0 where there was none.
_THREAD = (1 << 32) - 1


class Accesses:
    """Of one kind of access to an array: for each element the last, and the last by somebody else."""

    def __init__(self, size: int) -> None:
        self.last = np.zeros(size, np.int64)
        self.others: list[np.ndarray] = []  # by another thread, warp, block than the last; from when it matters

    def add(self, at: np.ndarray, stamps: np.ndarray, floor: int, width: int) -> bool:
        """Note accesses in the order of time; whether several of them were to one element.

        What happened before `floor` is ordered before everything to come.
        """
        at = as_intp(at)
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
        for slot, size in zip(self.others, (1, WARP, width), strict=True):
            for stamp in (*superseded, stamps) if shared else superseded:
                chosen = (stamp & _THREAD) // size != (new & _THREAD) // size
                slot[at[chosen]] = stamp[chosen]
        return shared

    def conflict(
        self,
        clock: Clock,
        at: np.ndarray,
        me: np.ndarray,
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
        for slot in (self.last, *self.others):
            stamps = slot.take(as_intp(at))
            if largest(stamps) >> 32 < floor:
                continue
            who = stamps & _THREAD
            bad = (who != me) & (stamps != 0)
            if not any_of(bad):
                continue
            bad &= clock.unordered(who, stamps >> 32, me)
            if across == "last" and slot is not self.last:
                bad &= who // width == me // width
            if but is not None:
                bad &= ~but
            if any_of(bad):
                return bad, stamps
        return None

    def repeat(self, blocks: int, width: int) -> None:
        """Turn one row that stands for `blocks` blocks into one row each, with each block's own threads."""
        shift = np.repeat(np.arange(blocks, dtype=np.int64) * width, self.last.size)

        def rows(row: np.ndarray) -> np.ndarray:
            row = np.tile(row, blocks)
            return np.where(row == 0, 0, row + shift)

        self.last, self.others = rows(self.last), [rows(slot) for slot in self.others]

    def refine(self, parts: int) -> None:
        """Split each element into parts."""
        self.last, self.others = np.repeat(self.last, parts), [np.repeat(slot, parts) for slot in self.others]


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
    """

    #: Reads are noted when a write asks for them; no more than this many are kept waiting.
    PATIENCE = 1 << 20

    def __init__(self, size: int, unit: int) -> None:
        self.size, self.unit = size, unit
        self.written: Accesses | None = None
        self.updated: Accesses | None = None
        self.reads: Accesses | None = None
        self.looks: Accesses | None = None  # reads that do not race with atomics
        self.waiting: list[tuple[np.ndarray, np.ndarray, int, bool]] = []
        self.kept = 0
        self.times, self.lines = array("q"), array("q")

    def line_at(self, time: int) -> int:
        """The line of the access at a time."""
        return self.lines[bisect.bisect_right(self.times, time) - 1]

    def _note(self, now: int, line: int) -> None:
        if not self.lines or self.lines[-1] != line:
            self.times.append(now)
            self.lines.append(line)

    def on_read(
        self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, floor: int, width: int,
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
        self.kept += at.size
        if self.kept > self.PATIENCE:
            self._catch_up(floor, width)
        return Race(*found, verb, self) if found is not None else None

    def _seen(self, clock: Clock, at: np.ndarray, me: np.ndarray, flags: Hashable) -> None:
        """Tell the clock who has read what an atomic left there."""
        at = as_intp(at)
        updated = self.updated.last.take(at)
        if self.written is not None:
            updated = np.where(updated > self.written.last.take(at), updated, 0)
        there = updated != 0
        if any_of(there):
            clock.look(me[there], flags, at[there] * self.unit)

    def _forget(self, floor: int) -> None:
        self.waiting = [entry for entry in self.waiting if entry[2] >= floor]
        self.kept = sum(entry[0].size for entry in self.waiting)

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
        at = np.concatenate([cells for cells, *_ in entries])
        accesses.add(at, np.concatenate([me | now << 32 for _, me, now, _ in entries]), floor, width)
        return accesses

    def on_write(
        self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, floor: int, width: int, same
    ) -> tuple[list[Race], bool]:
        """Record plain writes; the races with earlier accesses, and whether several lanes wrote one element.

        `same()` marks writes that store what is already there; those do not race with another plain write.
        """
        self._note(clock.now, line)
        self._catch_up(floor, width)
        races = []
        if self.written is None:
            self.written = Accesses(self.size)
        else:
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
        several = self.written.add(at, me | clock.now << 32, floor, width)
        return [Race(*found, verb, self) for found, verb in races if found is not None], several

    def on_update(self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, floor: int, width: int) -> list[Race]:
        """Record atomics, which race with plain accesses only."""
        self._note(clock.now, line)
        self._catch_up(floor, width)
        races = []
        if self.written is not None:
            races.append((self.written.conflict(clock, at, me, floor, width), "wrote"))
        if self.reads is not None:
            races.append((self.reads.conflict(clock, at, me, floor, width), "read"))
        if self.updated is None:
            self.updated = Accesses(self.size)
        self.updated.add(at, me | clock.now << 32, floor, width)
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
        self.size, self.unit = self.size * parts, unit
