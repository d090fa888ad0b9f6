"""One launch: what it was told, the batch of blocks that runs in lockstep, the place in the source, its hazards.

Memory.  A launch takes at most 64 MiB beyond its arrays, whatever its grid: blocks run in batches of 65,536 lanes, so
that a value of every lane is 512 KiB at most, and a kernel has a few dozen at a time.  To that come

    shared memory   that of all blocks of a batch: 96 MiB at most, where 2,048 blocks of one warp take 48 KiB each
    local arrays    32 MiB, for a batch has fewer lanes if they are large (a block at least)
    "count"         a sixteenth of the arrays, for their unique sectors (a tenth of those both loaded and stored), and
                    4 bytes an element of those that atomics update
    "check"         57 bytes an element of the arrays for the race detector, and 16 a block; where threads fence, 60 a
                    thread as well, and at most 40 MiB for what was published when and learnt by whom

A cooperative grid is one batch, because all its blocks wait for one another; on a GPU, too, it must fit as a whole.
"""

from __future__ import annotations

import contextlib
import contextvars
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pmpp.simt.machine.gpus import SHARED_LIMIT
from pmpp.simt.machine.lanes import KEPT_LANES, WARP, Lanes, Mask, kept_lanes
from pmpp.simt.machine.protocols import Checks, Counts, Steps, Turns
from pmpp.simt.machine.storage import Storage, add_up
from pmpp.simt.values.dtypes import Value
from pmpp.simt.values.errors import Hazard, LaunchError, SimtError, hazard_error

LEVELS = ("run", "count", "check")

HAZARDS = frozenset({"race", "out_of_bounds", "uninitialised_read", "divergent_barrier", "lost_write"})

#: Lanes a batch.  Large enough that NumPy's cost per call is small, small enough that a batch's values stay in the
#: CPU's cache.
#: A constant, not a function of the machine's memory, so that results are the same everywhere.
BATCH_LANES = 1 << 16

#: Bytes that the local arrays of a batch may take.  More would be written and read in main memory, page by page.
BATCH_LOCAL_BYTES = 1 << 25

#: Rounds after which a `while` loop is taken to be endless; `loop_limit` changes it.
LOOP_LIMIT = 1_000_000

_batch_lanes: contextvars.ContextVar[int] = contextvars.ContextVar("batch_lanes", default=BATCH_LANES)

_loop_limit: contextvars.ContextVar[int] = contextvars.ContextVar("loop_limit", default=LOOP_LIMIT)

#: When the lanes that are left in a loop are gathered into a short batch, and when several rounds of it run at once:
#: "never", "always", or where it pays.
GATHERING = ("auto", "never", "always")

_gathering: contextvars.ContextVar[str] = contextvars.ContextVar("gathering", default="auto")


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


@contextlib.contextmanager
def gathering(when: str) -> Iterator[None]:
    """Gather the lanes left in a loop, and its rounds, "never", "always" or where it pays ("auto").  For tests."""
    if when not in GATHERING:
        raise LaunchError(f"when is {when!r}; it must be one of {', '.join(GATHERING)}")
    token = _gathering.set(when)
    try:
        yield
    finally:
        _gathering.reset(token)


def _unknown(thing: Any) -> Any:
    raise SimtError(f"{thing!r} is not memory of this launch")


@dataclass(frozen=True)
class Launch:
    """What a launch is told, and what never changes while it runs.

    name, file      of the kernel, as messages name them
    source_file     the file whose lines the report shows
    grid, block     extents, three each
    level           "run", "count" or "check"
    raises          kinds of hazards that end the launch; the others are kept
    dynamic_shared  bytes of shared memory that the launch gives each block
    cooperative     whether the kernel waits for the whole grid
    cluster         blocks of a cluster: neighbours along x, which run at the same time
    local_bytes     of local arrays that each thread has, as far as they are known before it runs
    orders_some     whether it has a fence, an mbarrier or a `syncwarp` with a mask, which order some threads of a block
    multiplies_tiles  whether engines use tiles in shared memory, of which they see only what a fence has shown them
    arguments       of the kernel, by name
    schedule        "lockstep", or who takes turns: "blocks", "warps", "lanes", "shuffled, seed 0"
    can_begin_again whether another schedule can be tried if threads turn out to wait for one another
    capture         turns a device array that the kernel uses as a global into memory of the launch
    looks           lines where a plain read does not race with atomics: of the report's file, and of other files
    at              the allocation that a simulated address lies in, and the bytes from its start; None if nothing does
    loop_limit, batch_lanes, gathering  what the functions of these names say
    """

    name: str
    file: str
    source_file: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    level: str = "run"
    raises: frozenset[str] = frozenset()
    dynamic_shared: int = 0
    cooperative: bool = False
    cluster: int = 1
    local_bytes: int = 0
    orders_some: bool = False
    multiplies_tiles: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    schedule: str = "lockstep"
    can_begin_again: bool = False
    capture: Callable[[Any], Any] = _unknown
    at: Callable[[int], Any] = _unknown
    looks: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    loop_limit: int = field(default_factory=_loop_limit.get)
    batch_lanes: int = field(default_factory=_batch_lanes.get)
    gathering: str = field(default_factory=_gathering.get)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def warps(self) -> int:
        """Warps of a block, the last one perhaps in part."""
        return -(-self.block[0] * self.block[1] * self.block[2] // WARP)

    @property
    def shuffled(self) -> bool:
        """Whether warps run in random order."""
        return self.schedule.startswith("shuffled")


class Batch:
    """Blocks that are under way together, and what they have in common until they end."""

    __slots__ = ("barrier_known", "copies", "engines", "exited", "lanes", "members_known", "shared", "shared_bytes")

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.exited: np.ndarray | None = None  # lanes that have returned from the kernel
        self.barrier_known: tuple | None = None  # the last mask that passed a barrier, so that loops check it once
        self.members_known: tuple | None = None  # the same for warp operations, with the lanes that they named
        self.shared: dict[object, Any] = {}  # arrays in shared memory, by call site
        self.shared_bytes = 0
        self.copies: Any = None  # asynchronous copies under way, once there was one (copies.py)
        self.engines: Any = None  # products and bulk copies under way, likewise (engines.py)


#: What names are made of.
_OF_NAMES = string.ascii_letters + string.digits + "_"


class Site(int):
    """A line of the report's file that calls into another file; `names` are that file's parameters as passed."""

    names: dict[str, str]

    @classmethod
    def of(cls, around: Site | None, line: int, arguments: dict[str, str]) -> Site:
        """The site of a call; within a call that already left the report's file, its line stands for all."""
        site = cls(around or line)
        site.names = {parameter: around.named(text) if around else text for parameter, text in arguments.items()}
        return site

    def named(self, variable: str) -> str:
        """What the report's file calls a variable of the other one; of a part, `x[i].y`, what it is a part of."""
        base = variable[: len(variable) - len(variable.lstrip(_OF_NAMES))]
        return self.names.get(variable) or self.names.get(base, variable)


class Place:
    """Where execution is: the line of the statement under way and, within another file, the site of the call."""

    __slots__ = ("line", "site")

    def __init__(self) -> None:
        self.line = 0
        self.site: Site | None = None


#: The lanes of a machine that has not begun, and of a dry run.
_ONE_WARP = Lanes((1, 1, 1), (WARP, 1, 1), 0, 1)


class Machine:
    """A launch while it runs.

    launch    what it was told; constant
    batch     the blocks under way
    place     where they are in the source
    dry       memory is switched off and every branch entered: see front/inference.py
    counts, checks, trace, turns  observers and scheduler, or None: see protocols.py
    warnings  what the front end keeps of what it warns of, or None if nobody asks
    reads, writes  loads and stores so far: a loop that only reads may be waiting
    hazards   those met and kept: the first of each kind on each line
    met       how many hazards were met
    """

    def __init__(self, launch: Launch, *, dry: bool = False) -> None:
        self.launch, self.dry = launch, dry
        self.batch = Batch(_ONE_WARP)
        self.place = Place()
        self.counts: Counts | None = None
        self.checks: Checks | None = None
        self.trace: Steps | None = None
        self.turns: Turns | None = None
        self.warnings: Any = None
        self.reads = self.writes = 0
        self.hazards: dict[tuple, Hazard] = {}
        self.met = 0
        self.refused: SimtError | None = None  # in a dry run: the first error on a branch
        self.rehearsed: dict[object, dict[str, Any]] = {}  # likewise: what statements do to variables (inference.py)
        self.constants: dict[object, Any] = {}  # global arrays that the kernel uses
        self.pending: dict[Storage, list[tuple]] = {}  # postponed floating-point atomics
        self.shared_peak = 0  # bytes of shared memory that a block's arrays take

    # -- batches -----------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Lanes]:
        """The blocks of the grid, a batch at a time.  A cooperative grid is one batch: its barriers span all blocks."""
        launch = self.launch
        lanes = min(launch.batch_lanes, BATCH_LOCAL_BYTES // max(1, launch.local_bytes))
        step = max(1, lanes // (launch.warps * WARP * launch.cluster)) * launch.cluster  # whole clusters
        step = launch.blocks if launch.cooperative else step
        for first in range(0, launch.blocks, step):
            count = min(step, launch.blocks - first)
            kept = count * launch.warps * WARP <= KEPT_LANES
            lanes = (kept_lanes if kept else Lanes)(launch.grid, launch.block, first, count)
            self.batch = Batch(lanes)
            if self.checks is not None:
                self.checks.batch_begins()
            yield lanes
            self.settle()
            if self.checks is not None and launch.cluster > 1:
                self.checks.clusters_end(lanes)
            if kept:
                lanes.cached_columns.clear()
            else:
                lanes.forget()
            if self.counts is not None:
                self.counts.batch_ends()

    def take_shared(self, size: int, line: int) -> None:
        """Give each block `size` more bytes of shared memory, or say that it has no more."""
        batch = self.batch
        batch.shared_bytes += size
        self.shared_peak = max(self.shared_peak, batch.shared_bytes)
        if batch.shared_bytes > SHARED_LIMIT:
            message = f"this block's shared arrays take {batch.shared_bytes:,} bytes; a block has {SHARED_LIMIT:,}"
            raise self.error(message, line, LaunchError)

    def settle(self) -> None:
        """Apply postponed atomics."""
        pending, self.pending = self.pending, {}
        for storage, entries in pending.items():
            add_up(storage, entries)

    def settle_one(self, storage: Storage) -> None:
        """Apply those to the memory of one storage, which is about to be read."""
        for each in [s for s in self.pending if s is storage or np.may_share_memory(s.values, storage.values)]:
            add_up(each, self.pending.pop(each))

    def unplug(self) -> None:
        """The launch is over: observers and machine let go of each other, so that what they hold is freed at once."""
        if self.trace is not None:
            self.trace.close()
        self.counts = self.checks = self.trace = self.turns = None

    # -- what observers are told -------------------------------------------------------------------------------------

    def branch(self, line: int, mask: Mask, taken: Mask | None, not_taken: Mask | None) -> None:
        """Tell of one test.  (Only where instructions are counted.)"""
        self.counts.branch(line, mask, taken, not_taken)
        if self.trace is not None:
            self.trace.step(self.place.site or line, mask, taken, branch=True)

    def access(
        self,
        kind: str,
        line: int,
        at: Value,
        mask: Mask,
        width: int,
        storage: Storage,
        name: str,
        *,
        of: str = "access",
    ) -> None:
        """Tell of one load or store.  (Only where instructions are counted.)"""
        self.counts.access(kind, line, at, mask, width, storage, name, of=of)
        if self.trace is not None:
            self.trace.access(kind, self.place.site or line, at * storage.unit, mask, width, storage, name)

    # -- hazards -----------------------------------------------------------------------------------------------------

    def where(self, line: int | None = None) -> str:
        """`file:line: in kernel: `, the start of every message."""
        place = self.place
        return f"{self.launch.file}:{place.site or line or place.line}: in {self.launch.name}: "

    def error(self, message: str, line: int | None = None, kind: type[SimtError] = SimtError) -> SimtError:
        """An exception that begins with the place."""
        return kind(self.where(line) + message)

    def hazard(self, kind: str, space: str, variable: str, line: int, lane: int, message: str) -> None:
        """Report a hazard of the thread at flat position `lane` of this batch: raise it or keep it, by its kind.

        In the message, {who} stands for the thread and {name} for the variable.
        """
        if self.dry:
            return
        site = self.place.site
        if site is not None:
            line, variable = int(site), site.named(variable)
        self.hazard_of(kind, space, variable, line, self.batch.lanes.threads_at(lane), message)

    def hazard_of(
        self,
        kind: str,
        space: str,
        variable: str,
        line: int,
        who: tuple[tuple[int, int, int], tuple[int, int, int]],
        message: str,
    ) -> None:
        """The same of a block and its thread, on a line of the kernel."""
        self.met += 1
        block, thread = who
        space = "shared" if space == "cluster" else space  # of whichever block
        text = message.format(who=self.named(block, thread), name=variable)
        found = Hazard(kind, space, variable, line, block, thread, f"line {line}: {text}")
        if kind in self.launch.raises:
            raise hazard_error(found, self.where(line))
        self.hazards.setdefault((kind, space, variable, line), found)  # the first on a line tells the story

    def named(self, block: tuple[int, int, int], thread: tuple[int, int, int]) -> str:
        """A thread in words, with the axes that the launch uses."""
        return f"thread {_show(thread, self.launch.block)} of block {_show(block, self.launch.grid)}"

    def other_thread(self, flat: int) -> str:
        """Names a thread by its id in the padded grid of the whole launch, for messages."""
        return self.named(*self.thread_of(flat))

    def block_named(self, flat: int) -> str:
        """A block in words, by its number in the grid."""
        gx, gy, _ = self.launch.grid
        return f"block {_show((flat % gx, flat // gx % gy, flat // (gx * gy)), self.launch.grid)}"

    def thread_of(self, flat: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The block and the thread of such an id."""
        block, thread = divmod(int(flat), self.batch.lanes.root.width)
        gx, gy, _ = self.launch.grid
        bx, by, _ = self.launch.block
        where = (block % gx, block // gx % gy, block // (gx * gy))
        inside = (thread % bx, thread // bx % by, thread // (bx * by))
        return where, inside


def _show(index: tuple[int, int, int], extent: tuple[int, int, int]) -> str:
    """Only the axes that the launch uses: `5`, or `(5, 2)`."""
    used = 3 if extent[2] > 1 else 2 if extent[1] > 1 else 1
    return str(index[0]) if used == 1 else str(index[:used])
