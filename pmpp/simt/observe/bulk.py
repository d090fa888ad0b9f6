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
        self._waits: dict[tuple[int, Hashable], tuple[list[int], list[int]]] = {}  # times and threads, in order
        self._heard: dict[tuple[int, Hashable], int] = {}  # of each warp and mbarrier: until when it knows all

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
        warps, first = np.unique(threads // WARP, return_index=True)
        for warp, thread in zip(warps.tolist(), threads[first].tolist(), strict=True):
            waits = self._waits.get((thread // width, key))
            if waits is not None:  # it has counted bulk copies
                waits[0].append(now)
                waits[1].append(thread)
                self._heard[warp, key] = now

    def is_done_for(self, copy: BulkCopy, me: int, clock: Clock) -> bool:
        """Whether a thread knows that a copy is done."""
        phase, mine = copy.phase, (me // WARP, copy.phase.key)
        if not phase.ended:
            return False
        if me // clock.width == phase.block and self._heard.get(mine, 0) > phase.ended:
            return True
        asked = set()
        for time, thread in self._waits_after(phase):
            if thread in asked:  # a later wait of the same thread orders no more
                continue
            asked.add(thread)
            if not clock.is_unordered(thread, time, me):
                if me // clock.width == phase.block:
                    self._heard[mine] = max(time, self._heard.get(mine, 0))
                return True
        return False

    def _waits_after(self, phase: Phase) -> Iterator[tuple[int, int]]:
        times, who = self._waits[phase.block, phase.key]
        for k in range(bisect.bisect_right(times, phase.ended), len(times)):
            yield times[k], who[k]

    def left_by(self, block: int) -> list[BulkCopy]:
        """The copies of a block that has ended of which none of its threads knows that they are done."""
        copies = self._of_block.pop(block, [])
        return [c for c in copies if not c.phase.ended or next(self._waits_after(c.phase), None) is None]
