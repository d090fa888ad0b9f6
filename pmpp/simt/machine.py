"""One launch: its counters, its hazards, its clock, and the batches of blocks that run in lockstep.

Memory.  A launch takes at most 64 MiB beyond its arrays, whatever its grid: blocks run in batches of 65,536 lanes, so
that a value of every lane is 512 KiB at most, and a kernel has a few dozen at a time.  To that come

    shared memory   that of all blocks of a batch: 96 MiB at most, where 2,048 blocks of one warp take 48 KiB each
    local arrays    65,536 times the bytes of one
    "count"         a sixteenth of the arrays, for their unique sectors (a tenth of those both loaded and stored), and
                    4 bytes an element of those that atomics update
    "check"         57 bytes an element of the arrays for the race detector, and 112 a block of 256 threads

A cooperative grid is one batch, because all its blocks wait for one another; on a GPU, too, it must fit as a whole.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from pmpp.simt import counting
from pmpp.simt.errors import Hazard, SimtError, hazard_error
from pmpp.simt.lanes import Lanes, Mask
from pmpp.simt.metrics import CONTROL, FP16, FP32, FP64, INTEGER, MEMORY
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
FLOPS, FLOPS_F16, FLOPS_F64 = _INDEX["flops"], _INDEX["flops_f16"], _INDEX["flops_f64"]
BRANCHES, DIVERGENT = _INDEX["branches"], _INDEX["divergent_branches"]
BARRIERS, ATOMICS = _INDEX["barriers"], _INDEX["atomic_requests"]
ATOMIC_LANES, ATOMIC_PASSES = _INDEX["atomic_lanes"], _INDEX["atomic_passes"]
ATOMIC_SECTORS = _INDEX["global_atomic_sectors"]
_MIX, _THREAD_MIX = _INDEX["inst_integer"], _INDEX["thread_inst_integer"]
_UNITS = ("requests", "sectors", "bytes", "wavefronts", "bank_conflicts")
_TRAFFIC = {
    (space, kind): tuple(_INDEX.get(f"{space}_{kind}_{unit}") for unit in _UNITS)
    for space in ("global", "shared")
    for kind in ("load", "store")
}

_FLOAT_CLASS = {2: FP16, 4: FP32, 8: FP64}


def class_of(dtype: np.dtype) -> int:
    """The class of the instruction mix to which arithmetic in this type belongs."""
    if dtype.kind in "fV":  # bfloat16 is a V to NumPy
        return _FLOAT_CLASS.get(dtype.itemsize, FP64)
    return (FP32 if dtype.itemsize == 8 else FP64) if dtype.kind == "c" else INTEGER


def class_of_call(result: object, values: list) -> int:
    """The class of a function that goes by its type: of its result, or of what it was given."""
    for value in (result, *values):
        first = value[0] if isinstance(value, tuple) and value else value
        if isinstance(first, (np.generic, np.ndarray)) and first.dtype.kind in "fc":
            return class_of(first.dtype)
    return INTEGER


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
        self.adopt: Callable = lambda array: None  # told of global device arrays that the kernel uses
        self.file_id = ""  # the file whose lines the report shows
        self.pending: list = []  # arrays with postponed atomics
        self.arguments: dict[str, object] = {}  # of the kernel, as it was launched
        self.warnings: list = []
        self.traced: set = set()  # expressions that have been asked whether their float64 is an accident
        self.shared_peak = 0  # bytes of shared memory that a block's arrays take
        self.merged_wavefronts = 0.0  # of shared memory, if neighbouring accesses were merged into 128-bit ones
        self.footprints: dict[int, tuple[counting.Footprint, int, np.ndarray]] = {}
        self.contention: dict[tuple[str, str], counting.Contention] = {}

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
            self.lanes.cached_grid.clear()  # masks and lanes refer to each other, and would keep it for a while
            for found in self.contention.values():
                if found.space == "shared":
                    found.close()

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

    def instruction(self, line: int, mask: Mask, kind: int = INTEGER) -> list[int]:
        """Count one instruction of the active lanes, in a class of the mix; returns the line's counters for more."""
        counts = self.at(line)
        warps, lanes = mask.warps, mask.lanes
        counts[WARP_INSTRUCTIONS] += warps
        counts[THREAD_INSTRUCTIONS] += lanes
        counts[_MIX + kind] += warps
        counts[_THREAD_MIX + kind] += lanes
        return counts

    def flops(self, line: int, mask: Mask, dtype: np.dtype, each: int = 1, kind: int | None = None) -> None:
        """Count one instruction that is `each` floating-point operations a lane if `dtype` is floating."""
        if dtype.kind not in "fV":  # bfloat16 is a V to NumPy
            self.instruction(line, mask, class_of(dtype) if kind is None else kind)
            return
        counts = self.instruction(line, mask, _FLOAT_CLASS[dtype.itemsize] if kind is None else kind)
        counts[FLOPS] += each * mask.lanes
        if dtype.itemsize != 4:
            counts[FLOPS_F64 if dtype.itemsize == 8 else FLOPS_F16] += each * mask.lanes

    def branch(self, line: int, mask: Mask, taken: Mask | None, not_taken: Mask | None) -> None:
        """Count one branch; it diverges in the warps that have lanes on both sides."""
        counts = self.instruction(line, mask, CONTROL)
        counts[BRANCHES] += mask.warps
        if taken is not None and not_taken is not None:
            counts[DIVERGENT] += taken.warps + not_taken.warps - mask.warps
        if self.trace is not None:
            self.trace.step(self.site or line, mask, taken, branch=True)

    def access(
        self, kind: str, line: int, addresses: np.ndarray, mask: Mask, width: int, storage: Storage, name: str
    ) -> None:
        """Count one load or store of `width` bytes a lane; addresses are bytes from the start of the storage."""
        counts = self.instruction(line, mask, MEMORY)
        space = storage.space
        requests, sectors, size, wavefronts, conflicts = _TRAFFIC[space, kind]
        counts[requests] += mask.warps
        if space == "global":
            touched = self.footprint(storage, name, kind)
            counts[sectors] += counting.sectors(addresses, width, mask, touched)
            counts[size] += width * mask.lanes
        else:
            found, conflicting = counting.wavefronts(addresses, width, mask, load=kind == "load")
            counts[wavefronts] += found
            counts[conflicts] += conflicting
            self.merged_wavefronts += found * min(width, 16) / 16
        if self.trace is not None:
            self.trace.access(kind, self.site or line, addresses, mask, width, storage, name)

    def atomic(self, line: int, addresses: np.ndarray, mask: Mask, storage: Storage, name: str) -> counting.Contention:
        """Count one atomic of the active lanes; addresses are elements from the start of the storage."""
        counts = self.instruction(line, mask, MEMORY)
        counts[ATOMICS] += mask.warps
        counts[ATOMIC_LANES] += mask.lanes
        turns, worst = counting.passes(addresses, mask)
        counts[ATOMIC_PASSES] += turns
        space, width = storage.space, storage.values.dtype.itemsize
        if space == "global":
            touched = self.footprint(storage, name, "store")
            counts[ATOMIC_SECTORS] += counting.sectors(addresses * width, width, mask, touched)
        found = self.contention.get((space, name))
        if found is None:
            found = self.contention[space, name] = counting.Contention(name, space)
        found.requests += mask.warps
        found.lanes += mask.lanes
        found.passes += turns
        found.worst_warp = max(found.worst_warp, worst)
        return found

    def footprint(self, storage: Storage, name: str, kind: str) -> Callable[[np.ndarray], None]:
        """What to tell the sectors that an access touches: views of one allocation share one bitmap."""
        known = self.footprints.get(id(storage))
        if known is None:
            values = owner = storage.values
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            start = values.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
            same = next((f for f, _, o in self.footprints.values() if o is owner), None)
            shared = same or counting.Footprint(name, owner.nbytes)
            known = self.footprints[id(storage)] = (shared, start // counting.SECTOR, owner)
        found, shift, _ = known
        mark = found.on_load if kind == "load" else found.on_store
        return mark if shift == 0 else lambda sectors: mark(sectors + shift)

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
