"""What bulk copies have under way, and which threads know that one of them is done.

A bulk copy goes on by itself.  A barrier with the thread that asked for it does not say that it is done: only its
mbarrier does, to who waits for the phase that counts its bytes.  Others know it if something orders them behind such a
wait.  So each copy has its phase, and each mbarrier the waits for it, as threads and times of the clock (order.py).
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from pmpp.simt.machine.lanes import WARP
from pmpp.simt.observe.order import Clock
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.quick import all_of, largest, smallest


class Phase:
    """Copies that one phase of an mbarrier of a block counts.  `ended`: the time, or 0."""

    __slots__ = ("block", "ended", "key")

    def __init__(self, block: int, key: Hashable) -> None:
        self.block, self.key, self.ended = block, key, 0


class BulkCopy(NamedTuple):
    """One copy: who asked for it, on which line, into what, as messages name it, and what counts it."""

    thread: int
    line: int
    name: str
    phase: Phase


class BulkCopies:
    """Those of a launch.  Lanes of a warp count as one: what one of them has waited for, all know."""

    def __init__(self) -> None:
        self.all: list[BulkCopy] = []  # a copy's number, from 1 on, is its place here
        self._of_block: dict[int, list[BulkCopy]] = {}  # those that are not known to be done, of blocks under way
        self._now: dict[tuple[int, Hashable], Phase] = {}  # the phase of each mbarrier that has counted some copies
        self._waits: dict[tuple[int, Hashable], tuple[list[int], list[np.ndarray]]] = {}  # times and threads, in order
        self._heard: dict[tuple[int, Hashable], int] = {}  # of each warp and mbarrier: until when it knows all
        self._known: dict[int, np.ndarray] = {}  # of each warp, which copies it is known to know, by their numbers

    def begins(self, thread: int, block: int, key: Hashable, name: str, line: int) -> int:
        """The number of a new copy."""
        phase = self._now.get((block, key))
        if phase is None:
            phase = self._now[block, key] = Phase(block, key)
        self.all.append(BulkCopy(thread, line, name, phase))
        self._waits.setdefault((block, key), ([], []))
        self._of_block.setdefault(block, []).append(self.all[-1])
        return len(self.all)

    def ends(self, blocks: list[int], key: Hashable, now: int) -> None:
        """A phase of these blocks has ended: what it counted is done."""
        for block in blocks:
            phase = self._now.pop((block, key), None)
            if phase is not None:
                phase.ended = now

    def waited(self, threads: np.ndarray, width: int, key: Hashable, now: int) -> None:
        """These threads know of all phases that have ended."""
        for block in np.unique(threads // width).tolist():
            waits = self._waits.get((block, key))
            if waits is not None:  # it has counted bulk copies
                mine = threads[threads // width == block]
                waits[0].append(now)
                waits[1].append(mine)
                for warp in np.unique(mine // WARP).tolist():
                    self._heard[warp, key] = now

    def are_known(self, me: int, numbers: np.ndarray) -> bool:
        """Whether a thread is known to know that these copies are done, where a number is one.  False says nothing."""
        known = self._known.get(me // WARP)
        if known is None or largest(numbers) >= known.size or smallest(numbers) < 0:
            return False
        return all_of(known.take(as_intp(numbers)))

    def is_done_for(self, number: int, me: int, clock: Clock) -> bool:
        """Whether a thread knows that a copy is done."""
        if not self._is_done_for(self.all[number - 1].phase, me, clock):
            return False
        known = self._known.get(me // WARP)
        if known is None or number >= known.size:
            longer = np.zeros(2 * number, np.bool_)
            longer[: 1 if known is None else known.size] = True if known is None else known  # 0 is no copy
            known = self._known[me // WARP] = longer
        known[number] = True
        return True

    def _is_done_for(self, phase: Phase, me: int, clock: Clock) -> bool:
        mine = me // WARP, phase.key
        if not phase.ended:
            return False
        if me // clock.width == phase.block and self._heard.get(mine, 0) > phase.ended:
            return True
        asked = set()
        for time, threads in self._waits_after(phase):
            these = threads.item(0), threads.item(-1), threads.size
            if these in asked:  # a later wait of the same threads orders no more
                continue
            asked.add(these)
            if not all_of(clock.unordered(threads, np.full(threads.size, time, np.int64), np.int64(me))):
                if me // clock.width == phase.block:
                    self._heard[mine] = max(time, self._heard.get(mine, 0))
                return True
        return False

    def _waits_after(self, phase: Phase) -> Iterator[tuple[int, np.ndarray]]:
        times, who = self._waits[phase.block, phase.key]
        for k in range(bisect.bisect_right(times, phase.ended), len(times)):
            yield times[k], who[k]

    def left_by(self, block: int, warps: int) -> list[BulkCopy]:
        """The copies of a block of so many warps, which has ended, that none of its threads knows to be done."""
        for warp in range(block * warps, (block + 1) * warps):
            self._known.pop(warp, None)
        copies = self._of_block.pop(block, [])
        return [c for c in copies if not c.phase.ended or next(self._waits_after(c.phase), None) is None]
