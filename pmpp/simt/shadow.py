"""The race detector: who touched each element last, and was there anything in between.

Lockstep execution hides races: every warp of a batch runs the same statement at the same time, so a missing barrier
changes no result.  Each array therefore has a shadow that remembers, for every element, its last writer and two of
its readers with the time of their access.  Two accesses to one element by different threads, at least one of them a
plain write, race unless something orders them:

    same block    a barrier (`syncthreads`) in between, or for one warp a `syncwarp`
    other blocks  a grid-wide barrier
    any           a fence and an atomic by the first (it releases what it wrote), then by the second an atomic, or a
                  read of what the first updated atomically and a fence (it acquires)

Two readers are enough: a write races with *some* reader of another thread exactly if it races with one of two
different ones. Two threads that write the same value are left alone, as in `found[0] = 1`.
"""

from __future__ import annotations

import numpy as np

NOBODY = -1


class Clock:
    """Time within a launch, and when each block, warp or the grid last synchronised."""

    def __init__(self, blocks: int, warps: int) -> None:
        self.now = 1
        self.warps = warps
        self.grid_barrier = 0
        self.block_barrier = np.zeros(blocks, np.int64)
        self.warp_barrier = np.zeros((blocks, warps), np.int64)
        # Between blocks, and (another scope) between the warps of one.
        self.blocks = Handover((blocks,))
        self.warps_inside = Handover((blocks, warps))

    def tick(self) -> int:
        """Advance time by one access."""
        self.now += 1
        return self.now


class Handover:
    """Who has published what, and who may have learnt of it, block by block or warp by warp.

    Until `fenced` a party's writes are visible to those who learn of the atomic by which it signalled at `released`;
    `acquired` is when a party last learnt, `polled` when it last read a signal without a fence yet.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.used = False
        self.fence, self.fenced, self.released = (np.zeros(shape, np.int64) for _ in range(3))
        self.acquired, self.polled = (np.zeros(shape, np.int64) for _ in range(2))

    def on_fence(self, who: tuple[np.ndarray, ...], now: int) -> None:
        """Earlier writes come before later signals, and earlier polls before later reads."""
        self.used = True
        self.fence[who] = now
        self.acquired[who] = np.maximum(self.acquired[who], self.polled[who])

    def on_atomic(self, who: tuple[np.ndarray, ...], now: int) -> None:
        """An atomic after a fence publishes what the fence covered; any atomic may learn what others published."""
        if not self.used:
            return
        fenced = self.fence[who]
        new = fenced > self.fenced[who]
        self.fenced[who] = np.where(new, fenced, self.fenced[who])
        self.released[who] = np.where(new, now, self.released[who])
        self.acquired[who] = now

    def ordered(self, theirs: tuple[np.ndarray, ...], then: np.ndarray, mine: tuple[np.ndarray, ...]) -> np.ndarray:
        """Whether what `theirs` did at `then` has been handed over to `mine`."""
        return (then <= self.fenced[theirs]) & (self.released[theirs] <= self.acquired[mine])


class Shadow:
    """The shadow of one array.  Positions are flat; a thread's id counts through the padded grid, block by block."""

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, NOBODY, np.int64)
        self.written = np.zeros(size, np.int64)
        self.atomic = np.zeros(size, np.bool_)
        self.write_line = np.zeros(size, np.int32)
        self.readers = np.full((2, size), NOBODY, np.int64)
        self.read = np.zeros((2, size), np.int64)
        self.read_line = np.zeros(size, np.int32)

    def _unordered(self, clock: Clock, who: np.ndarray, then: np.ndarray, me: np.ndarray, width: int) -> np.ndarray:
        """Whether the access by thread `who` at time `then` may run at the same time as one by `me` now."""
        mine, theirs = me // width, np.maximum(who, 0) // width
        same_block = mine == theirs
        my_warp, their_warp = me % width // 32, np.maximum(who, 0) % width // 32
        inside = then >= clock.block_barrier[mine]
        inside &= (my_warp != their_warp) | (then >= clock.warp_barrier[mine, my_warp])
        across = then >= clock.grid_barrier
        if clock.warps_inside.used:
            inside &= ~clock.warps_inside.ordered((theirs, their_warp), then, (mine, my_warp))
        if clock.blocks.used:
            across &= ~clock.blocks.ordered((theirs,), then, (mine,))
        return (who != NOBODY) & (who != me) & np.where(same_block, inside, across)

    def on_read(self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, width: int, atomic: bool) -> np.ndarray:
        """Record reads; returns which of them race with an earlier write."""
        who, then = self.writer[at], self.written[at]
        bad = self._unordered(clock, who, then, me, width)
        signalled = self.atomic[at]
        if not atomic and clock.warps_inside.used:
            self._poll(clock, me[signalled], width)
        if signalled.any():  # atomics do not race with atomics, and polling another block's atomic is how blocks talk
            bad &= ~signalled if atomic else ~(signalled & (who // width != me // width))
        if not atomic:
            self._remember_reader(clock, at, me, line, width)
        return bad

    @staticmethod
    def _poll(clock: Clock, me: np.ndarray, width: int) -> None:
        clock.blocks.polled[me // width] = clock.now
        clock.warps_inside.polled[me // width, me % width // 32] = clock.now

    def _remember_reader(self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, width: int) -> None:
        # Keep an earlier reader that a write could still race with, and make the newest the other one.
        first, when = self.readers[0], self.read[0]
        keep = self._unordered(clock, first[at], when[at], me, width)
        # Among lanes that read one element at once, NumPy stores the last; the others then find somebody else there.
        slot = ~keep
        first[at[slot]], when[at[slot]] = me[slot], clock.now
        other = first[at] != me
        self.readers[1][at[other]], self.read[1][at[other]] = me[other], clock.now
        self.read_line[at] = line

    def on_write(
        self, clock: Clock, at: np.ndarray, me: np.ndarray, line: int, width: int, atomic: bool, same: np.ndarray | None
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, str]]:
        """Record writes; returns the races met: which lanes, with which threads, on which lines, doing what.

        `same` marks plain writes that store what is already there; those do not race with another plain write.
        """
        found = []
        who, then, signalled = self.writer[at], self.written[at], self.atomic[at]
        bad = self._unordered(clock, who, then, me, width)
        if atomic:
            bad &= ~signalled
        elif same is not None:
            bad &= ~(same & ~signalled)
        if bad.any():
            found.append((bad, who, self.write_line[at], "wrote"))
        for slot in (0, 1):
            who = self.readers[slot][at]
            bad = self._unordered(clock, who, self.read[slot][at], me, width)
            if atomic:  # see on_read: another block may poll what this one updates atomically
                bad &= who // width == me // width
            if bad.any():
                found.append((bad, who, self.read_line[at], "read"))
                break
        self.writer[at], self.written[at], self.atomic[at], self.write_line[at] = me, clock.now, atomic, line
        return found

    def repeat(self, blocks: int, width: int) -> None:
        """Turn one row that stands for `blocks` blocks into one row each, with each block's own threads."""
        size = self.writer.size
        shift = np.repeat(np.arange(blocks, dtype=np.int64) * width, size)

        def ids(row: np.ndarray) -> np.ndarray:
            row = np.tile(row, blocks)
            return np.where(row == NOBODY, NOBODY, row + shift)

        self.writer, self.readers = ids(self.writer), np.stack([ids(row) for row in self.readers])
        self.read = np.stack([np.tile(row, blocks) for row in self.read])
        self.written, self.atomic = np.tile(self.written, blocks), np.tile(self.atomic, blocks)
        self.write_line, self.read_line = np.tile(self.write_line, blocks), np.tile(self.read_line, blocks)
