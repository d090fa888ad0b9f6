"""One launch: its counters, its hazards, its clock, and the batches of blocks that run in lockstep."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pmpp.simt import counting
from pmpp.simt.errors import Hazard, SimtError, hazard_error
from pmpp.simt.lanes import Lanes, Mask
from pmpp.simt.shadow import Clock

if TYPE_CHECKING:
    from pmpp.simt.memory import Storage
    from pmpp.simt.scheduler import Scheduler
    from pmpp.simt.trace import Trace

LEVELS = ("run", "count", "check")

HAZARDS = frozenset({"race", "out_of_bounds", "uninitialised_read", "divergent_barrier"})

#: Lanes a batch.  Large enough that NumPy's cost per call is small, small enough that a batch's values stay in the
#: CPU's cache.
#: A constant, not a function of the machine's memory, so that results are the same everywhere.
BATCH_LANES = 1 << 16

#: Rounds after which a `while` loop is taken to be endless; `loop_limit` changes it.
LOOP_LIMIT = 1_000_000

_batch_lanes: contextvars.ContextVar[int] = contextvars.ContextVar("batch_lanes", default=BATCH_LANES)

_loop_limit: contextvars.ContextVar[int] = contextvars.ContextVar("loop_limit", default=LOOP_LIMIT)

_INDEX = {name: i for i, name in enumerate(counting.COUNTERS)}
WARP_INSTRUCTIONS, THREAD_INSTRUCTIONS = _INDEX["warp_instructions"], _INDEX["thread_instructions"]
FLOPS, FLOPS_F64 = _INDEX["flops"], _INDEX["flops_f64"]
BRANCHES, DIVERGENT = _INDEX["branches"], _INDEX["divergent_branches"]
BARRIERS, ATOMICS = _INDEX["barriers"], _INDEX["atomic_requests"]


@contextlib.contextmanager
def batch_lanes(lanes: int) -> Iterator[None]:
    """Run launches inside the block with at most this many lanes a batch (at least one block).  For tests."""
    token = _batch_lanes.set(lanes)
    try:
        yield
    finally:
        _batch_lanes.reset(token)


@contextlib.contextmanager
def loop_limit(rounds: int) -> Iterator[None]:
    """Stop a `while` loop inside the block after this many rounds, with an error."""
    token = _loop_limit.set(rounds)
    try:
        yield
    finally:
        _loop_limit.reset(token)


class Site(int):
    """A line of the report's file that calls into another file; `names` are that file's parameters as passed."""

    names: dict[str, str]

    @classmethod
    def of(cls, around: Site | None, line: int, arguments: dict[str, str]) -> Site:
        """The site of a call; within a call that already left the report's file, its line stands for all."""
        site = cls(around or line)
        known = around.names if around else {}
        site.names = {parameter: known.get(text, text) for parameter, text in arguments.items()}
        return site


class Machine:
    """State of one launch."""

    def __init__(
        self, name: str, file: str, grid: tuple[int, int, int], block: tuple[int, int, int], level: str,
        *, raises: frozenset[str], dynamic_shared: int, cooperative: bool,
    ) -> None:  # fmt: skip
        self.name, self.file, self.grid, self.block = name, file, grid, block
        self.level, self.raises = level, raises
        self.counting = level != "run"
        self.checking = level == "check"
        self.loop_limit = _loop_limit.get()
        self.dry = False  # see inference.py
        self.refused: SimtError | None = None  # in a dry run: the first error on a branch
        self.dynamic_shared, self.cooperative = dynamic_shared, cooperative
        self.blocks = grid[0] * grid[1] * grid[2]
        self.lines: dict[int, list[int]] = {}
        self.hazards: list[Hazard] = []
        self.suppressed: dict[tuple, int] = {}
        self.line = 0  # of the statement under way
        self.site: Site | None = None  # inside a function of another file: the line of this file that called it
        self.writes = self.reads = 0  # stores and loads so far: a loop that only reads may be waiting
        self.fibers: Scheduler | None = None  # where threads take turns
        self.schedule, self.shuffled = "lockstep", False
        self.may_wait = False  # a loop that looks like waiting may end the launch: it then begins again by turns
        width = -(-block[0] * block[1] * block[2] // counting.WARP) * counting.WARP
        self.clock = Clock(self.blocks, width // counting.WARP) if self.checking else None
        self.trace: Trace | None = None
        self.lanes: Lanes
        self.exited: np.ndarray | None = None  # lanes of this batch that have returned from the kernel
        self.blocks_alike = True  # all blocks of this batch have passed the same barriers
        self.barrier_known: tuple | None = None  # the last mask that passed a barrier, so that loops check it once
        self.shared: dict[object, object] = {}
        self.shared_bytes = 0
        self.constants: dict[object, object] = {}
        self.file_id = ""  # the file whose lines the report shows
        self.pending: list = []  # arrays with postponed atomics

    # -- batches -----------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Lanes]:
        """The blocks of the grid, a batch at a time.  A cooperative grid is one batch: its barriers span all blocks."""
        per_block = self.block[0] * self.block[1] * self.block[2]
        width = -(-per_block // counting.WARP) * counting.WARP
        step = self.blocks if self.cooperative else max(1, _batch_lanes.get() // width)
        for first in range(0, self.blocks, step):
            self.lanes = Lanes(self.grid, self.block, first, min(step, self.blocks - first))
            self.exited = self.barrier_known = None
            self.blocks_alike = True
            self.shared = {}
            self.shared_bytes = 0
            yield self.lanes
            self.settle()

    def settle(self) -> None:
        """Apply postponed atomics."""
        for storage in self.pending:
            storage.settle()
        self.pending.clear()

    # -- counters ----------------------------------------------------------------------------------------------------

    def at(self, line: int) -> list[int]:
        """The counters of a source line; what a function of another file does is charged to the line that calls it."""
        line = self.site or line
        counts = self.lines.get(line)
        if counts is None:
            counts = self.lines[line] = [0] * len(counting.COUNTERS)
        return counts

    def instruction(self, line: int, mask: Mask) -> list[int]:
        """Count one instruction of the active lanes; returns the line's counters for more."""
        counts = self.at(line)
        counts[WARP_INSTRUCTIONS] += mask.warps
        counts[THREAD_INSTRUCTIONS] += mask.lanes
        return counts

    def flops(self, line: int, mask: Mask, dtype: np.dtype, each: int = 1) -> None:
        """Count one instruction that is `each` floating-point operations a lane if `dtype` is floating."""
        counts = self.instruction(line, mask)
        if dtype.kind == "f":
            counts[FLOPS] += each * mask.lanes
            if dtype.itemsize == 8:
                counts[FLOPS_F64] += each * mask.lanes

    def branch(self, line: int, mask: Mask, taken: Mask | None, not_taken: Mask | None) -> None:
        """Count one branch; it diverges in the warps that have lanes on both sides."""
        counts = self.instruction(line, mask)
        counts[BRANCHES] += mask.warps
        if taken is not None and not_taken is not None:
            counts[DIVERGENT] += taken.warps + not_taken.warps - mask.warps
        if self.trace is not None:
            self.trace.step(self.site or line, mask, taken, branch=True)

    def access(
        self, kind: str, line: int, addresses: np.ndarray, mask: Mask, width: int, storage: Storage, name: str
    ) -> None:
        """Count one load or store of `width` bytes a lane; addresses are bytes from the start of the storage."""
        counts = self.instruction(line, mask)
        space = storage.space
        prefix = f"{space}_{kind}_"
        counts[_INDEX[prefix + "requests"]] += mask.warps
        if space == "global":
            counts[_INDEX[prefix + "sectors"]] += counting.sectors(addresses, width, mask)
            counts[_INDEX[prefix + "bytes"]] += width * mask.lanes
        else:
            counts[_INDEX[prefix + "wavefronts"]] += counting.wavefronts(addresses, width, mask)
        if self.trace is not None:
            self.trace.access(kind, self.site or line, addresses, mask, width, storage, name)

    # -- hazards -----------------------------------------------------------------------------------------------------

    def where(self, line: int | None = None) -> str:
        """`file:line: in kernel: `, the start of every message."""
        return f"{self.file}:{self.site or line or self.line}: in {self.name}: "

    def error(self, message: str, line: int | None = None, kind: type[SimtError] = SimtError) -> SimtError:
        """An exception that begins with the place."""
        return kind(self.where(line) + message)

    def hazard(self, kind: str, space: str, variable: str, line: int, lane: int, message: str) -> None:
        """Report a hazard of the thread at flat position `lane` of this batch: raise it or keep it, by its kind.

        In the message, {who} stands for the thread and {name} for the variable.
        """
        if self.dry:
            return
        if self.site is not None:
            line, variable = int(self.site), self.site.names.get(variable, variable)
        block, thread = self.lanes.threads_at(lane)
        text = message.format(who=self.named(block, thread), name=variable)
        found = Hazard(kind, space, variable, line, block, thread, f"line {line}: {text}")
        if kind in self.raises:
            raise hazard_error(found, self.where(line))
        key = (kind, space, variable, line)
        if key not in self.suppressed:  # the first of its kind on a line tells the story
            self.hazards.append(found)
        self.suppressed[key] = self.suppressed.get(key, 0) + 1

    def named(self, block: tuple[int, int, int], thread: tuple[int, int, int]) -> str:
        """A thread in words, with the axes that the launch uses."""
        return f"thread {_show(thread, self.block)} of block {_show(block, self.grid)}"

    def other_thread(self, flat: int) -> str:
        """Names a thread by its id in the padded grid of the whole launch, for messages."""
        block, thread = divmod(int(flat), self.lanes.width)
        gx, gy, _ = self.grid
        bx, by, _ = self.block
        where = (block % gx, block // gx % gy, block // (gx * gy))
        inside = (thread % bx, thread // bx % by, thread // (bx * by))
        return self.named(where, inside)


def _show(index: tuple[int, int, int], extent: tuple[int, int, int]) -> str:
    """Only the axes that the launch uses: `5`, or `(5, 2)`."""
    used = 3 if extent[2] > 1 else 2 if extent[1] > 1 else 1
    return str(index[0]) if used == 1 else str(index[:used])
