"""Schedules: which threads run when, for kernels in which threads wait for one another.

In lockstep every thread of a batch executes the same statement at the same time.  That is fast, and it is how a
barrier-only kernel may run; but a thread that waits in a loop for a value which another thread has yet to write would
wait for ever.  Here the threads take turns instead.  A *fiber* is a block, a warp or a single lane that runs by itself
until it must wait: at a barrier, or in a loop whose rounds read memory and write none.  Then another one gets the turn.

    "blocks"    blocks in order; the threads of a block in lockstep
    "warps"     and the warps of a block in order, each up to its next barrier
    "lanes"     and single lanes, for locks taken by several lanes of one warp; not with warp operations, which need
                the warp together; counters are then those of lanes that have fully diverged
    "shuffled"  warps, drawn at random from eight blocks at a time

A fiber that is a single lane runs in a short batch of its own (`Few`, lanes.py), where each value is one number.

A fiber needs no operating-system thread: its code is a generator that yields where it must wait (turns.py).

Blocks begin in order (shuffled: in random order), each when those before it have ended or wait.  A GPU keeps only so
many blocks resident, and a block that has not begun writes nothing: if all resident blocks wait, the launch would hang
there, and is refused here.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pmpp.simt.machine.gpus import gpu, occupancy
from pmpp.simt.machine.lanes import WARP, Few, Lanes, Mask
from pmpp.simt.machine.machine import Batch, Machine, Place
from pmpp.simt.machine.turns import Waits, through
from pmpp.simt.values.errors import LaunchError, SimtError

SCHEDULES = ("auto", "lockstep", "blocks", "warps", "lanes", "shuffled")

#: The GPU that is imagined here: it says how many blocks are resident at once.
GPU = gpu("H200")

#: A waiting fiber keeps all its variables.
MAX_FIBERS = 1024

#: Blocks from which a shuffled schedule draws.
WINDOW = 8

_WARP_OPERATIONS = (
    "shfl", "vote", "all_sync", "any_sync", "eq_sync", "ballot", "match", "syncwarp", "activemask", "mma_", "ldmatrix",
    "wgmma_", "mbarrier_",
)  # fmt: skip

#: Idle rounds of a loop after which the next fiber gets the turn.
PATIENCE = 4

#: The kernel's code for the lanes of a mask; its result is those that left it by a `return`, or None.
Run = Callable[[Mask], Waits]

_chosen: contextvars.ContextVar[tuple[str, int]] = contextvars.ContextVar("schedule", default=("auto", 0))


class Waiting(SimtError):
    """Threads wait for one another in a way that this schedule cannot resolve; another one may."""


@contextlib.contextmanager
def schedule(name: str, seed: int = 0) -> Iterator[None]:
    """Run the launches inside the block under a schedule: "auto", "lockstep", "blocks", "warps", "lanes", "shuffled".

    "auto" runs in lockstep, and where threads wait for one another starts again with blocks, then warps, then lanes.
    `seed` is that of "shuffled": the same seed gives the same order.
    """
    token = _chosen.set(checked(name, seed))
    try:
        yield
    finally:
        _chosen.reset(token)


def checked(name: Any, seed: Any) -> tuple[str, int]:
    """A schedule and its seed, or LaunchError; None stands for what the enclosing `schedule` says."""
    if name is None:
        return _chosen.get()
    if name not in SCHEDULES:
        raise LaunchError(f"schedule is {name!r}; it must be one of {', '.join(SCHEDULES)}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise LaunchError(f"seed is {seed!r}; it must be an int, 0 or more")
    return name, int(seed)


def grains(name: str, uses: set[str]) -> tuple[str, ...]:
    """The schedules to try, in order, for a kernel that uses these names of `cuda`."""
    if name != "auto":
        return (name,)
    if hands_over(uses):
        return ("warps",)
    return ("lockstep", "blocks", "warps") if together(uses) else ("lockstep", "blocks", "warps", "lanes")


def hands_over(uses: set[str]) -> bool:
    """Whether some warps of a block wait for others, by mbarriers: in lockstep they would wait for ever."""
    return "mbarrier_wait" in uses


def together(uses: set[str]) -> bool:
    """Whether a kernel that uses these names of `cuda` needs the lanes of a warp together."""
    return any(used.startswith(_WARP_OPERATIONS) for used in uses)


# -- fibers ----------------------------------------------------------------------------------------------------------

READY, SPINNING, AT_BARRIER, AT_CLUSTER, AT_GRID = (
    "ready", "spinning", "at a barrier", "at cluster_sync()", "at grid.sync()",
)  # fmt: skip


class Block:
    """One block: the fibers into which it is divided.  The blocks of a cluster, or one alone, are a batch."""

    def __init__(self, batch: Batch, row: int, cluster: list[Block]) -> None:
        self.batch, self.lanes, self.row = batch, batch.lanes, row
        self.cluster = cluster  # all blocks of its cluster
        self.fibers: list[Fiber] = []
        self.votes: list[tuple[np.ndarray, np.ndarray]] = []  # (voters, their votes) of the barrier being waited at
        self.result: tuple[np.ndarray, np.ndarray] | None = None
        shape = self.lanes.blocks, self.lanes.width
        self.ran_through = np.zeros(shape, np.bool_)  # lanes that have ended, but not by a `return`
        self.ended = np.zeros(shape, np.bool_)  # however they did


class Fiber:
    """Some lanes of a block: the kernel's code as far as they have come with it."""

    def __init__(self, block: Block, mask: Mask, code: Waits, batch: Batch) -> None:
        self.block, self.mask, self.state, self.code = block, mask, READY, code
        self.batch = batch  # the block's, or one for the fiber alone
        self.line, self.barrier = 0, ""  # where it waits, and for what
        self.why: Callable[[], str] | None = None  # says so of what is no loop
        self.returned: np.ndarray | np.bool_ = np.False_  # lanes that ended by a `return`
        self.frozen = False  # spinning, and its last rounds changed none of its variables
        self.endless = False  # spinning in a loop without a bound of its own
        self.seen = -1  # the launch's writes when it last went round idly
        self.place = Place()


class Scheduler:
    """Runs a launch fiber by fiber."""

    def __init__(self, m: Machine, run: Run, grain: str, seed: int, *, alone: bool = False) -> None:
        self.m, self.code = m, run
        self.alone = alone and grain == "lanes"  # lanes may have short batches: the kernel has no warp operations
        self.grain = "warps" if grain == "shuffled" else grain
        self.random = np.random.default_rng(seed) if grain == "shuffled" else None
        order = np.arange(0, m.launch.blocks, m.launch.cluster, dtype=np.int64)
        if self.random is not None:
            order = self.random.permutation(order)
        self.waiting_clusters = iter(order.tolist())  # the first block of each
        self.unstarted = m.launch.blocks
        self.fibers: list[Fiber] = []  # those that are not done
        self.blocks: list[Block] = []
        self.current: Fiber
        self.ended: Block | None = None  # the first block with threads that have ended
        self.idle_turns = 0

    # -- who is next -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run every block to its end, or raise what a fiber raised."""
        while (fiber := self._next()) is not None:
            self._resume(fiber)

    def _next(self) -> Fiber | None:
        if self.random is not None:
            while len(self.blocks) < min(WINDOW, self._room()) and self._start():
                pass
        if self.random is None:  # the first one: no need to look at all of them each time
            first = next((f for f in self.fibers if f.state == READY), None)
            if first is not None:
                return first
        elif ready := [f for f in self.fibers if f.state == READY]:
            return ready[self.random.integers(len(ready))]
        now = self.m.writes
        spinning = [f for f in self.fibers if f.state == SPINNING]
        news = [f for f in spinning if f.seen != now]
        if news:
            self.idle_turns = 0
            return news[0] if self.random is None else news[self.random.integers(len(news))]
        if len(self.blocks) < self._room() and self._start():
            return self._next()
        if not self.fibers:
            return None
        self.idle_turns += 1
        long = self.idle_turns * PATIENCE > self.m.launch.loop_limit and any(f.endless for f in spinning)
        if not spinning or long or all(f.frozen for f in spinning):
            raise self._stuck(spinning)
        self.fibers.remove(spinning[0])  # the others first, next time
        self.fibers.append(spinning[0])
        return spinning[0]

    def _resident(self) -> int:
        """How many blocks the GPU holds at once, by their threads and the shared memory seen so far."""
        m = self.m
        if m.launch.cooperative:
            return m.launch.blocks
        x, y, z = m.launch.block
        shared = m.launch.dynamic_shared + max((block.batch.shared_bytes for block in self.blocks), default=0)
        return GPU.sms * occupancy(x * y * z, shared, gpu=GPU).blocks

    def _room(self) -> int:
        """How many blocks may be there for another cluster to begin."""
        return max(self._resident() + 1 - self.m.launch.cluster, 1)

    def _start(self) -> bool:
        """Begin the next block, or cluster of blocks, if there is one."""
        index, m = next(self.waiting_clusters, None), self.m
        if index is None:
            return False
        lanes = math.prod(m.launch.block) * m.launch.cluster
        if self.grain == "lanes" and m.launch.cluster > 1 and lanes > MAX_FIBERS:
            raise LaunchError(
                f"a cluster of {m.launch.cluster} blocks has {lanes:,} lanes, and the interpreter keeps no more than "
                f"{MAX_FIBERS:,} at once: launch fewer, or choose another schedule"
            )
        batch, cluster = Batch(Lanes(m.launch.grid, m.launch.block, index, m.launch.cluster)), []
        for row in range(m.launch.cluster):
            self._begin(Block(batch, row, cluster))
        return True

    def _begin(self, block: Block) -> None:
        lanes = block.lanes
        size = {"blocks": lanes.width, "warps": WARP, "lanes": 1}[self.grain]
        for first in range(0, lanes.per_block, size):
            end = min(first + size, lanes.per_block)
            if end - first == lanes.size:
                block.fibers.append(Fiber(block, lanes.full, self.code(lanes.full), block.batch))
            else:
                bits = np.zeros((lanes.blocks, lanes.width), np.bool_)
                bits[block.row, first:end] = True
                mask, batch = Mask(lanes, bits, end - first), block.batch
                start = mask
                if self.alone:
                    batch = Batch(Few(lanes, np.array([block.row * lanes.width + first], np.int64), 1))
                    batch.shared, start = block.batch.shared, batch.lanes.full
                block.fibers.append(Fiber(block, mask, self.code(start), batch))
        if len(self.fibers) + len(block.fibers) > MAX_FIBERS:
            waiting = next(f for f in self.fibers if f.state != READY)
            raise self.m.error(
                f"more than {MAX_FIBERS:,} {self.grain} wait at once, one of them here: the interpreter keeps no more; "
                "launch fewer",
                waiting.line,
            )
        self.fibers += block.fibers
        self.blocks.append(block)
        block.cluster.append(block)
        self.unstarted -= 1

    def _resume(self, fiber: Fiber) -> None:
        m = self.m
        self.current, fiber.state = fiber, READY
        whole = fiber.block.batch
        m.batch, m.place = fiber.batch, fiber.place
        fiber.batch.shared_bytes = whole.shared_bytes
        try:
            next(fiber.code)
        except StopIteration as end:
            if end.value is not None:
                fiber.returned = end.value.grid() if fiber.batch is whole else fiber.mask.grid()
            whole.shared_bytes = fiber.batch.shared_bytes
            self._ended(fiber)
        else:
            whole.shared_bytes = fiber.batch.shared_bytes

    def _ended(self, fiber: Fiber) -> None:
        block = fiber.block
        gone = fiber.mask.grid()
        block.ran_through |= gone & ~fiber.returned
        block.ended |= gone
        self.ended = self.ended or block
        batch = block.batch
        batch.exited = gone.copy() if batch.exited is None else batch.exited | gone
        if batch.engines is not None:
            batch.engines.ended(self.m, fiber.mask)
        self.fibers.remove(fiber)
        block.fibers.remove(fiber)
        if not block.fibers:
            self.blocks.remove(block)
            over = not any(each.fibers for each in block.cluster)
            if over and self.m.checks is not None and self.m.launch.cluster > 1:
                self.m.checks.clusters_end(block.lanes)
        if not self._release_block(block) and not self._release_cluster(block):
            self._release_grid()

    def _stuck(self, spinning: list[Fiber]) -> SimtError:
        """Nobody can go on: say who waits where, and why that does not end."""
        m = self.m
        if not spinning:
            fiber = self.fibers[0]
            others = next((f for f in self.fibers if f.state != fiber.state), fiber)
            return Waiting(
                m.where(fiber.line) + f"{self._who(fiber)} waits {fiber.state}, while {self._who(others)} waits "
                f"{others.state} on line {others.line}: neither can go on"
            )
        fiber = spinning[0]
        why = "in this loop for a value that no thread will write" if fiber.why is None else fiber.why()
        text = f"{self._who(fiber)} waits {why}"
        held = next((f for f in self.fibers if f.state == AT_BARRIER and f.block is fiber.block), None)
        if held is not None:
            text += f": {self._who(held)} waits at the barrier on line {held.line} until it arrives"
        elif self.unstarted:
            text += (
                f": the {len(self.blocks):,} blocks that fit on the GPU at once ({GPU.name}, {GPU.sms} SMs) all wait, "
                f"and the other {self.unstarted:,} begin only when one of them ends"
            )
        elif self.grain != "lanes":
            unit = "block" if self.grain == "blocks" else "warp"
            if fiber.why is None:
                text += f", unless it is a thread of its own {unit}, which here cannot go on before this loop ends"
            else:
                text += f"; the other threads of its {unit} cannot go on here before this wait ends"
        return Waiting(m.where(fiber.line) + text)

    def _who(self, fiber: Fiber) -> str:
        block, thread = fiber.block.lanes.threads_at(int(np.argmax(fiber.mask.grid())))
        return self.m.named(block, thread)

    # -- what a fiber says when it must wait: each yields until its turn comes again ---------------------------------

    def idle(
        self, line: int, *, frozen: bool, endless: bool, still: bool = False, why: Callable[[], str] | None = None
    ) -> Waits:
        """A loop has gone round without writing anything: let somebody else write.

        frozen  its variables are what they were when it last did so
        still   its last round has changed none of them
        why     says where it waits and for what, if that is no loop
        """
        fiber = self.current
        fiber.why = why
        now = self.m.writes
        fiber.frozen, fiber.endless, fiber.seen = still or (frozen and fiber.seen == now), endless, now
        fiber.state, fiber.line = SPINNING, line
        yield

    def pause(self, line: int) -> Waits:
        """A loop has gone round many times: let the others have a turn."""
        fiber = self.current
        self.fibers.remove(fiber)
        self.fibers.append(fiber)
        fiber.line = line
        yield

    def barrier(self, mask: Mask, line: int, what: str) -> Waits:
        """A block-wide barrier: wait until every fiber of the block that has not ended is at one."""
        self.current.barrier = what
        self._check_lanes(self._of_block(mask), line, what)
        yield from self._wait_at(AT_BARRIER, line)

    def vote(self, mask: Mask, line: int, what: str, yes: np.ndarray) -> Waits:
        """A barrier that collects a vote: the voters of the whole block, and what they voted."""
        fiber = self.current
        here = self._of_block(mask).grid()
        fiber.block.votes.append((here, yes & here))
        yield from self.barrier(mask, line, what)
        voters, votes = fiber.block.result
        if fiber.batch is fiber.block.batch:
            return voters, votes
        row = slice(fiber.block.row, fiber.block.row + 1)  # a lane by itself has no row for other blocks
        return voters[row], votes[row]

    def cluster_barrier(self, mask: Mask, line: int) -> Waits:
        """`cluster_sync()`: wait until every fiber of the cluster that has not ended is at one."""
        self.current.barrier = "cluster_sync()"
        self._check_lanes(self._of_block(mask), line, "cluster_sync()")
        yield from self._wait_at(AT_CLUSTER, line)

    def grid_barrier(self, mask: Mask, line: int) -> Waits:
        """`grid.sync()`: wait until every fiber of the grid that has not ended is at one."""
        self.current.barrier = "grid.sync()"
        self._check_lanes(self._of_block(mask), line, "grid.sync()")
        yield from self._wait_at(AT_GRID, line)

    def _of_block(self, mask: Mask) -> Mask:
        """The lanes of a fiber's mask among those of its block."""
        return mask if mask.of is self.current.block.lanes else self.current.mask

    def _hazard(self, block: Block, what: str, line: int, lane: int, message: str) -> None:
        """Report that a lane of a block misses a barrier, or waits at another one."""
        m = self.m
        current, m.batch = m.batch, block.batch
        m.hazard("divergent_barrier", "register", what, line, lane, message)
        m.batch = current

    def _check_lanes(self, mask: Mask, line: int, what: str) -> None:
        gone = self.current.block.batch.exited
        missing = self.current.mask.grid() & ~mask.grid()
        if gone is not None and what != "grid.sync()":
            missing = missing & ~gone
        if missing.any():
            lane = int(np.argmax(missing))
            how = "has returned before" if gone is not None and gone.reshape(-1)[lane] else "does not reach"
            self._hazard(self.current.block, what, line, lane,
                         f"{{who}} {how} the {what} at which other threads of its {self._whom(what)} wait")  # fmt: skip

    @staticmethod
    def _whom(what: str) -> str:
        """Who waits at a barrier together."""
        return "cluster" if what == "cluster_sync()" else "block"

    def _wait_at(self, state: str, line: int) -> Waits:
        fiber = self.current
        fiber.state, fiber.line = state, line
        if state == AT_GRID:
            released = self._release_grid()
        else:
            released = (self._release_block if state == AT_BARRIER else self._release_cluster)(fiber.block)
        if not released:
            yield

    def _release_block(self, block: Block) -> bool:
        """Let a block go on if all that is left of it waits at a barrier; whether it did."""
        fibers, m = block.fibers, self.m
        if not fibers or any(f.state != AT_BARRIER for f in fibers):
            return False
        first = fibers[0]
        self._check_lines(fibers)
        if block.ran_through.any():
            self._never_arrived(block, first, block.ran_through)
        if block.votes:
            voters, votes = zip(*block.votes, strict=True)
            block.result, block.votes = (np.logical_or.reduce(voters), np.logical_or.reduce(votes)), []
        if m.counts is not None:
            m.counts.barrier(first.line, 1)
        if m.checks is not None:
            here = np.zeros(block.lanes.blocks, np.bool_)
            here[block.row] = True
            m.checks.block_barrier(block.lanes, here)
        self._go(fibers)
        return True

    def _check_lines(self, fibers: list[Fiber]) -> None:
        """Report those that wait at another line than the first."""
        first = fibers[0]
        other = next((f for f in fibers if f.line != first.line), None)
        if other is not None:
            others = f"other threads of its {self._whom(other.barrier)}"
            text = f"{{who}} waits at this barrier while {others} wait at the one on line {first.line}"
            self._hazard(other.block, other.barrier, other.line, int(np.argmax(other.mask.grid())), text)

    def _release_cluster(self, block: Block) -> bool:
        """Let a cluster go on if all that is left of it waits at its barrier; whether it did."""
        fibers, m = [fiber for each in block.cluster for fiber in each.fibers], self.m
        if not fibers or any(f.state != AT_CLUSTER for f in fibers):
            return False
        self._check_lines(fibers)
        for each in block.cluster:
            if each.ran_through.any():
                self._never_arrived(each, fibers[0], each.ran_through)
        running = np.array([bool(each.fibers) for each in block.cluster], np.bool_)
        if m.counts is not None:
            m.counts.barrier(fibers[0].line, int(np.count_nonzero(running)))
        if m.checks is not None:
            m.checks.cluster_barrier(block.lanes, np.ones(block.lanes.blocks, np.bool_), running)
        self._go(fibers)
        return True

    def _release_grid(self) -> bool:
        fibers, m = self.fibers, self.m
        if self.unstarted or not fibers or any(f.state != AT_GRID for f in fibers):
            return False
        if self.ended is not None:
            self._never_arrived(self.ended, fibers[0], self.ended.ended)
        m.settle()
        if m.counts is not None:
            m.counts.barrier(fibers[0].line, m.launch.blocks)
        if m.checks is not None:
            m.checks.grid_barrier()
        self._go(fibers)
        return True

    def _never_arrived(self, block: Block, waiting: Fiber, who: np.ndarray) -> None:
        """Threads have ended and gone past a barrier.  (After a `return` only the whole grid waits for them.)"""
        whose = "others" if waiting.barrier == "grid.sync()" else f"others of its {self._whom(waiting.barrier)}"
        self._hazard(block, waiting.barrier, waiting.line, int(np.argmax(who)),
                     f"{{who}} has ended without reaching the {waiting.barrier} at which {whose} wait")  # fmt: skip

    def _go(self, fibers: list[Fiber]) -> None:
        for fiber in fibers:
            fiber.state = READY


def run_lockstep(m: Machine, run: Run) -> None:
    """All blocks of a batch in lockstep, batch after batch."""
    for lanes in m.batches():
        through(run(lanes.full))


def run_by_turns(m: Machine, run: Run, grain: str, seed: int, uses: set[str]) -> None:
    """Blocks, warps or lanes by turns; `uses` are the names of `cuda` that the kernel uses."""
    alone = m.trace is None and not together(uses)
    alone &= m.launch.cluster == 1 or "bulk_store" not in uses  # the engine knows the blocks of a batch by their rows
    m.turns = scheduler = Scheduler(m, run, grain, seed, alone=alone)
    scheduler.run()
    m.settle()
