"""The race detector: who touched each element last, and was there anything in between.

Lockstep execution hides races: every warp of a batch runs the same statement at the same time, so a missing barrier
changes no result.  Each array therefore has a shadow that remembers, for every element, who wrote it, who updated it
atomically and who read it last, and when.  Two accesses to one element by different threads, at least one of them a
plain write, race unless something orders them:

    same block    a barrier (`syncthreads`) in between, or for one warp a `syncwarp` of both lanes
    other blocks  a grid-wide barrier
    any           a fence and an atomic by the first (it releases what it wrote), then by the second an atomic, or a
                  read of what the first updated atomically and a fence (it acquires)

The last access is not enough, because it may be the thread's own: the shadow also keeps the last one by another
thread, by another warp and by another block than that.  Whatever orders the last access of a thread, warp or block
orders those before it, so a race with any of them is a race with one of these four.  Two threads that write the same
value are left alone, as in `found[0] = 1`.
"""

from __future__ import annotations

import bisect
import weakref
from array import array

import numpy as np

from pmpp.simt.machine.lanes import WARP, Lanes
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.quick import any_of, largest


class Clock:
    """Time within a launch, and when each block, warp or the grid last synchronised."""

    def __init__(self, blocks: int, warps: int) -> None:
        self.now = 1
        self.warps = warps
        self.grid_barrier = 0
        self.block_barrier = np.zeros(blocks, np.int64)
        self.lane_barrier: np.ndarray | None = None  # when each lane last did a `syncwarp`, once one did
        # When each two lanes of a warp last did one together, once some did without the others.
        self.meetings: weakref.WeakKeyDictionary[Lanes, np.ndarray] = weakref.WeakKeyDictionary()
        self.here: Lanes | None = None  # those whose accesses are being looked at
        # Between blocks, and (another scope) between the warps of one.
        self.blocks = Publication(blocks, warps)
        self.warps_inside = Handover((blocks, warps))

    def tick(self) -> int:
        """Advance time by one access."""
        self.now += 1
        return self.now

    def warp_barrier(self, rows: np.ndarray, lanes: np.ndarray) -> None:
        """These lanes of these blocks have done a `syncwarp`."""
        if self.lane_barrier is None:
            self.lane_barrier = np.zeros((self.block_barrier.size, self.warps * WARP), np.int64)
        self.lane_barrier[rows, lanes] = self.tick()

    def meeting(self, lanes: Lanes, together: np.ndarray) -> None:
        """These blocks have done a `syncwarp`, in each warp those lanes two by two for which `together` holds."""
        if lanes not in self.meetings:
            last = np.zeros((lanes.blocks, lanes.width), np.int64)
            if self.lane_barrier is not None:
                last = self.lane_barrier[lanes.first : lanes.first + lanes.blocks]
            last = last.reshape(lanes.blocks, lanes.warps, WARP)
            self.meetings[lanes] = np.minimum(last[:, :, :, None], last[:, :, None, :])
        self.meetings[lanes][together] = self.tick()

    def met(self, blocks: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray | int:
        """When lanes a and b of these blocks, two of one warp each, last did a `syncwarp` together."""
        if self.here in self.meetings:
            return self.meetings[self.here][blocks - self.here.first, a // WARP, a % WARP, b % WARP]
        return (
            0 if self.lane_barrier is None else np.minimum(self.lane_barrier[blocks, a], self.lane_barrier[blocks, b])
        )


class Handover:
    """Who has published what, and who may have learnt of it, warp by warp within a block.

    Until `fenced` a party's writes are visible to those who learn of the atomic by which it signalled at `released`;
    `acquired` is when a party last learnt, `polled` when it last read a signal without a fence yet.
    """

    def __init__(self, shape: tuple[int, ...], learners: tuple[int, ...] | None = None) -> None:
        self.used = False
        self.fence, self.fenced, self.released = (np.zeros(shape, np.int64) for _ in range(3))
        self.acquired, self.polled = (np.zeros(learners or shape, np.int64) for _ in range(2))

    def on_fence(self, who: tuple[np.ndarray, ...], now: int) -> None:
        """Earlier writes come before later signals, and earlier polls before later reads."""
        self.used = True
        self.fence[who] = now
        self.acquired[who] = np.maximum(self.acquired[who], self.polled[who])

    def on_atomic(self, who: tuple[np.ndarray, ...], now: int) -> None:
        """An atomic after a fence publishes what the fence covered; any atomic may learn what others published."""
        if not self.used:
            return
        self._release(who, self.fence[who], now)
        self.acquired[who] = now

    def _release(self, who: tuple[np.ndarray, ...], fenced: np.ndarray, now: int) -> None:
        new = fenced > self.fenced[who]
        self.fenced[who] = np.where(new, fenced, self.fenced[who])
        self.released[who] = np.where(new, now, self.released[who])

    def ordered(self, theirs: tuple[np.ndarray, ...], then: np.ndarray, mine: tuple[np.ndarray, ...]) -> np.ndarray:
        """Whether what `theirs` did at `then` has been handed over to `mine`."""
        return (then <= self.fenced[theirs]) & (self.released[theirs] <= self.acquired[mine])


class Publication(Handover):
    """The same between blocks: a warp publishes, a whole block learns.

    A fence also covers what the other warps of the block wrote before their last common barrier, and a warp's atomic
    also publishes what the others had fenced before it.
    """

    def __init__(self, blocks: int, warps: int) -> None:
        super().__init__((blocks, warps), (blocks,))

    def on_fence(self, who: tuple[np.ndarray, ...], now: int, barrier: np.ndarray | None = None) -> None:
        """`barrier` is when each block of the launch last met at one."""
        self.used = True
        rows = np.unique(who[0])
        self.fence[rows] = np.maximum(self.fence[rows], barrier[rows, None])
        self.fence[who] = now
        self.acquired[rows] = np.maximum(self.acquired[rows], self.polled[rows])

    def on_atomic(self, who: tuple[np.ndarray, ...], now: int, barrier: np.ndarray | None = None) -> None:
        """`barrier` as above."""
        if not self.used:
            return
        rows = np.unique(who[0])
        self._release((rows,), np.minimum(self.fence[rows], barrier[rows, None]), now)
        self._release(who, self.fence[who], now)
        self.acquired[rows] = now


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

        across    "any" also one by another block, "last" only if it was the last of all, "none" no such
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
            bad &= _unordered(clock, who, stamps >> 32, me, width)
            if across == "none" or (across == "last" and slot is not self.last):
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


def _unordered(clock: Clock, who: np.ndarray, then: np.ndarray, me: np.ndarray, width: int) -> np.ndarray:
    """Whether the access by thread `who` at time `then` may run at the same time as one by `me` now."""
    mine, theirs = me // width, who // width
    same_block = mine == theirs
    inside = then >= clock.block_barrier[mine]
    across = then >= clock.grid_barrier
    if clock.lane_barrier is not None or clock.meetings:
        a, b = me % width, who % width
        inside &= (a // WARP != b // WARP) | (then >= clock.met(mine, a, b))
    if clock.warps_inside.used:
        my_warp, their_warp = me % width // WARP, who % width // WARP
        inside &= ~clock.warps_inside.ordered((theirs, their_warp), then, (mine, my_warp))
    if clock.blocks.used:
        across &= ~clock.blocks.ordered((theirs, who % width // WARP), then, (mine,))
    return np.where(same_block, inside, across)


class Race:
    """Races met by one access: which lanes, and the stamps and line of what they race with."""

    def __init__(self, bad: np.ndarray, stamps: np.ndarray, verb: str, shadow: Shadow) -> None:
        self.bad, self.verb = bad, verb
        self.lane = int(np.argmax(bad))
        stamp = int(stamps[self.lane])
        self.thread, self.line = stamp & _THREAD, shadow.line_at(stamp >> 32)


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
        self.waiting: list[tuple[np.ndarray, np.ndarray, int]] = []
        self.kept = 0
        self.times, self.lines = array("q"), array("q")

    def line_at(self, time: int) -> int:
        """The line of the access at a time."""
        return self.lines[bisect.bisect_right(self.times, time) - 1]

    def _note(self, now: int, line: int) -> None:
        if not self.lines or self.lines[-1] != line:
            self.times.append(now)
            self.lines.append(line)

    def on_read(self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, floor: int, width: int) -> Race | None:
        """Record reads; the race with an earlier write, if there is one."""
        self._note(clock.now, line)
        found, verb = None, "wrote"
        if self.written is not None:
            found = self.written.conflict(clock, at, me, floor, width)
        if self.updated is not None:
            if clock.blocks.used or clock.warps_inside.used:
                self._poll(clock, at, me, width)
            if found is None:  # to poll what another block updates atomically is how blocks talk
                verb = "updated"
                found = self.updated.conflict(clock, at, me, floor, width, across="none")
        if self.waiting and self.waiting[0][2] < floor:
            self._forget(floor)
        self.waiting.append((at, me, clock.now))
        self.kept += at.size
        if self.kept > self.PATIENCE:
            self._catch_up(floor, width)
        return Race(*found, verb, self) if found is not None else None

    def _poll(self, clock: Clock, at: np.ndarray, me: np.ndarray, width: int) -> None:
        updated = self.updated.last[at]
        if self.written is not None:
            updated = np.where(updated > self.written.last[at], updated, 0)
        me = me[updated != 0]
        clock.blocks.polled[me // width] = clock.now
        clock.warps_inside.polled[me // width, me % width // WARP] = clock.now

    def _forget(self, floor: int) -> None:
        self.waiting = [entry for entry in self.waiting if entry[2] >= floor]
        self.kept = sum(entry[0].size for entry in self.waiting)

    def _catch_up(self, floor: int, width: int) -> None:
        """Note the reads that have waited and could still race."""
        self._forget(floor)
        if not self.waiting:
            return
        if self.reads is None:
            self.reads = Accesses(self.size)
        at = np.concatenate([cells for cells, _, _ in self.waiting])
        stamps = np.concatenate([me | now << 32 for _, me, now in self.waiting])
        self.reads.add(at, stamps, floor, width)
        self.waiting, self.kept = [], 0

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
        if self.reads is not None:
            races.append((self.reads.conflict(clock, at, me, floor, width), "read"))
        several = self.written.add(at, me | clock.now << 32, floor, width)
        return [Race(*found, verb, self) for found, verb in races if found is not None], several

    def on_update(self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, floor: int, width: int) -> list[Race]:
        """Record atomics, which race with plain accesses only; another block may poll what they update."""
        self._note(clock.now, line)
        self._catch_up(floor, width)
        races = []
        if self.written is not None:
            races.append((self.written.conflict(clock, at, me, floor, width), "wrote"))
        if self.reads is not None:
            races.append((self.reads.conflict(clock, at, me, floor, width, across="none"), "read"))
        if self.updated is None:
            self.updated = Accesses(self.size)
        self.updated.add(at, me | clock.now << 32, floor, width)
        return [Race(*found, verb, self) for found, verb in races if found is not None]

    def _each(self, change) -> None:
        for accesses in (self.written, self.updated, self.reads):
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
