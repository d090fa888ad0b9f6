"""The trace of a launch: who touched which address when, who executed which statement, and how often in all.

Counters say how much; a trace keeps what was counted, so that it can be drawn (`pmpp.lab.draw.pictures`) or read.
`simt.profile(..., trace=True)` keeps one in `report.trace`:

    accesses   for chosen blocks and warps: every request to global or shared memory, with the address of each lane
    steps      for the same warps: every statement and every branch, with the lanes that execute it
    heat       for the whole grid: how often each element of each argument is read and written
    contents   if asked for, for small launches: what memory holds, change by change (contents.py)

Sequence numbers follow the order in which the interpreter executes.  That is the order of a warp's own instructions;
between warps it is one order of many that a GPU might take.
"""

from __future__ import annotations

import linecache
import typing
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pmpp.simt.machine.lanes import WARP, Lanes, Mask
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array, Storage
from pmpp.simt.observe.contents import Contents
from pmpp.simt.observe.counting import BANK_BYTES, BANKS, SECTOR, neighbours_share
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.errors import ArgumentError, LaunchError, TraceError

LIMIT = 64 << 20  # bytes that a trace may take, unless told otherwise

_NOBODY = np.iinfo(np.int32).max
_OVERHEAD = 256  # bytes of Python objects around the arrays of one entry

Block = int | tuple[int, ...]


@dataclass(frozen=True)
class Tracing:
    """What to trace: `simt.profile(..., trace=simt.Tracing(blocks=[0, 7], warps=[0]))`.

    blocks  a block, by its number (x counts fastest) or as a tuple (x, y) or (x, y, z), or a list or range of them
    warps   numbers of warps within a block, or None for all
    limit   bytes that the trace may take; a launch that needs more raises TraceError
    contents  keep what memory holds, change by change, of arrays of at most so many elements; 0 for none
    """

    blocks: Block | Sequence[Block] = 0
    warps: int | Sequence[int] | None = None
    limit: int = LIMIT
    contents: int = 0


@dataclass(frozen=True)
class Access:
    """One request: one warp that executes one load, store or atomic.

    sequence   its place in the order of execution
    line       of the kernel's file
    kind       "load", "store" or "atomic"
    space      "global" or "shared"
    variable   the array as the source calls it there
    block      number of the block, x counting fastest; `warp` is the number of the warp within it
    width      bytes a lane
    addresses  (32,) int64: where each lane's bytes begin, counted from the start of the allocation, which is aligned
    active     (32,) bool: which lanes take part; the addresses of the others mean nothing
    """

    sequence: int
    line: int
    kind: str
    space: str
    variable: str
    block: int
    warp: int
    width: int
    addresses: np.ndarray
    active: np.ndarray

    @property
    def sectors(self) -> np.ndarray:
        """Numbers of the sectors of 32 bytes that the request touches, in order: sector s begins at byte 32 s."""
        first = self.addresses[self.active]
        return np.unique(np.concatenate([(first + byte) // SECTOR for byte in range(self.width)]))

    def groups(self) -> list[np.ndarray]:
        """The lanes that shared memory serves together: all 32, but 16 of 8 bytes and 8 of 16; active lanes only.

        Twice as many in a load in which neighbours share: see counting.py.
        """
        size = WARP * BANK_BYTES // max(BANK_BYTES, self.width)
        if self.kind == "load" and size < WARP and neighbours_share(self.addresses[None], self.active[None]).all():
            size *= 2
        lanes = np.arange(WARP, dtype=np.int64).reshape(-1, size)
        return [group[self.active[group]] for group in lanes]

    def words(self, lanes: np.ndarray) -> np.ndarray:
        """Numbers of the 4-byte words that each of `lanes` asks for, (lanes, words); word w lies in bank w % 32."""
        first = self.addresses[lanes, None] // BANK_BYTES
        return first + np.arange(max(1, self.width // BANK_BYTES), dtype=np.int64)

    @property
    def wavefronts(self) -> int:
        """Passes through the banks, if the request is to shared memory: the most words asked of one bank."""
        total = 0
        for lanes in self.groups():
            if len(lanes):
                total += int(np.bincount(as_intp(np.unique(self.words(lanes)) % BANKS)).max())
        return total


class Touch(typing.NamedTuple):
    """A request, and where it goes.

    array   the place in `contents.arrays` of the array that it touches, or None if the contents of that are not kept
    memory  alike for all requests to one allocation, and in shared memory of one block
    """

    access: Access
    array: int | None
    memory: tuple[int, int | None]


@dataclass(frozen=True)
class Step:
    """One warp that executes one statement, or the test of an `if`, `while` or `for`.

    sequence, line, block, warp  as in Access
    active  (32,) bool: the lanes that execute it
    taken   (32,) bool: the lanes that go on inside, if it is a branch; None for a plain statement
    """

    sequence: int
    line: int
    block: int
    warp: int
    active: np.ndarray
    taken: np.ndarray | None

    @property
    def diverges(self) -> bool:
        """Whether lanes go different ways here."""
        return self.taken is not None and bool(self.taken.any()) and bool((self.active & ~self.taken).any())


@dataclass(frozen=True)
class Heat:
    """How often the whole grid touched each element of an argument, in arrays of the argument's shape.

    reads, writes  int64 counts, one for each lane's access; an atomic is a read and a write
    writer         int32: the block that writes the element (the lowest number, if several do), or -1
    """

    reads: np.ndarray
    writes: np.ndarray
    writer: np.ndarray


@dataclass(frozen=True)
class _Argument:
    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int
    given: weakref.ref | None


class Trace:
    """What one launch did, in order; see the module's docstring.  `report.trace` is one, or None.

    blocks  numbers of the traced blocks; `warps` numbers of the traced warps within each
    nbytes  memory taken, at most `limit`
    contents  what memory held, or None if that was not asked for: see contents.py
    """

    def __init__(self, what: bool | Tracing, m: Machine, given: Sequence[object]) -> None:
        if not isinstance(what, Tracing):
            if not isinstance(what, (bool, np.bool_)):
                raise ArgumentError(f"trace is {what!r}; it must be True, False or a simt.Tracing")
            what = Tracing()
        launch = m.launch
        if launch.level == "run":
            raise LaunchError("a trace is kept at level 'count' or 'check'; the level is 'run', which looks at nothing")
        self.kernel, self.file, self.grid, self.block_shape = launch.name, launch.source_file, launch.grid, launch.block
        warps = launch.warps
        blocks = what.blocks if isinstance(what.blocks, (list, range, np.ndarray)) else [what.blocks]
        self.blocks = tuple(dict.fromkeys(self.block_number(b) for b in blocks))
        chosen = range(warps) if what.warps is None else np.atleast_1d(what.warps).tolist()
        if outside := [w for w in chosen if not (isinstance(w, int) and 0 <= w < warps)]:
            raise TraceError(
                f"a block of {launch.block} has warps 0 to {warps - 1}; there is no warp {outside[0]} to trace"
            )
        self.warps = tuple(chosen)
        self.limit, self.nbytes = what.limit, 0
        self._machine: Machine | None = m
        self._now = 0
        self._lanes: Lanes | None = None
        self._picked: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._accesses: list[tuple] = []
        self._steps: list[tuple] = []
        self._heat: dict[int, np.ndarray] = {}
        self._arguments: dict[str, _Argument] = {}
        for (name, value), original in zip(launch.arguments.items(), given, strict=True):
            self._introduce(name, value, original)
        self.contents = Contents(m, self.blocks, what.contents) if what.contents else None

    def _introduce(self, name: str, value: typing.Any, given: typing.Any) -> None:
        if isinstance(value, tuple):
            for i, (part, original) in enumerate(zip(value, given, strict=True)):
                self._introduce(f"{name}[{i}]", part, original)
        elif hasattr(value, "storage"):
            array: Array = value
            try:
                reference = weakref.ref(given)
            except TypeError:
                reference = None
            self._arguments[name] = _Argument(
                id(array.storage), array.shape, array.strides, int(array.offset), array.dtype.itemsize, reference
            )

    def block_number(self, block: Block) -> int:
        """The number of a block that is given by number or by coordinates, or an error if there is none."""
        parts = tuple(block) if isinstance(block, (tuple, list)) else (block,)
        whole = all(isinstance(p, (int, np.integer)) and not isinstance(p, bool) for p in parts)
        gx, gy, gz = self.grid
        if whole and len(parts) == 1 and 0 <= parts[0] < gx * gy * gz:
            return int(parts[0])
        x, y, z = (*parts, 0, 0)[:3] if len(parts) in (2, 3) else (-1, 0, 0)
        if not whole or not (0 <= x < gx and 0 <= y < gy and 0 <= z < gz):
            raise TraceError(f"there is no block {block!r} in a grid of {self.grid}: {gx * gy * gz} blocks")
        return int((z * gy + y) * gx + x)

    # -- what the machine reports ------------------------------------------------------------------------------------

    def access(
        self, kind: str, line: int, addresses: np.ndarray, mask: Mask, width: int, storage: Storage, name: str
    ) -> None:
        """Note one load, store or atomic of the active lanes; addresses are bytes from the start of the storage.

        Those of other blocks' shared memory, by `map_shared_rank`, are left out.
        """
        if storage.space == "cluster":
            return
        self._next()
        if self.contents is not None:
            self.contents.accessed(storage, kind, name)
        lanes = mask.of
        if storage.space == "global":
            self._count(kind, addresses, mask, width, storage)
        rows = self._rows(lanes)
        if rows is None:
            return
        active = self._pick(mask.bits, lanes)
        some = active.any(axis=1)
        if not some.any():
            return
        where = np.array(self._pick(addresses, lanes)[some], np.int64)
        entry = rows[0][some] + lanes.first, rows[1][some], where, active[some]
        self._keep(*entry)
        self._accesses.append((self._now, line, kind, storage.space, name, width, id(storage), *entry))

    def step(self, line: int, mask: Mask, taken: Mask | None = None, *, branch: bool = False) -> None:
        """Note one statement of the active lanes, or one branch and the lanes that take it."""
        self._next()
        lanes = mask.of
        rows = self._rows(lanes)
        if rows is None:
            return
        active = self._pick(mask.bits, lanes)
        some = active.any(axis=1)
        if not some.any():
            return
        inside = None
        if branch:
            inside = np.zeros_like(active) if taken is None else self._pick(taken.bits, lanes)
            inside = inside[some] & active[some]
        entry = rows[0][some] + lanes.first, rows[1][some], active[some], inside
        self._keep(*entry)
        self._steps.append((self._now, line, *entry))

    def _next(self) -> None:
        if self.contents is not None:
            kept = self.contents.settle(self._now)  # only now has the event before come to its end
            if kept:
                self._keep(*kept)
        self._now += 1

    def _rows(self, lanes: Lanes) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The traced warps in this batch: their rows, their numbers, and the columns of their lanes."""
        if lanes is not self._lanes:
            here = [
                (b - lanes.first, w) for b in self.blocks for w in self.warps if 0 <= b - lanes.first < lanes.blocks
            ]
            self._lanes, self._picked = lanes, None
            if here:
                rows, warps = np.array(here, np.int64).T
                self._picked = rows, warps, warps[:, None] * WARP + np.arange(WARP, dtype=np.int64)
        return self._picked

    def _pick(self, value: np.ndarray | None, lanes: Lanes) -> np.ndarray:
        """The value in the lanes of the traced warps, a warp a row; None stands for True everywhere."""
        rows, _, columns = self._picked
        if value is None:
            return np.ones(columns.shape, np.bool_)
        return np.broadcast_to(value, (lanes.blocks, lanes.width))[rows[:, None], columns]

    def _count(self, kind: str, addresses: np.ndarray, mask: Mask, width: int, storage: Storage) -> None:
        heat = self._heat.get(id(storage))
        if heat is None:
            heat = np.zeros((3, storage.values.size), np.int32)
            heat[2] = _NOBODY
            self._keep(heat)
            self._heat[id(storage)] = heat
        lanes, bits, size = mask.of, mask.bits, storage.values.dtype.itemsize
        first = np.asarray(addresses // size)
        first = first if first.ndim else first.reshape(1, 1)
        shape = first.shape if bits is None else np.broadcast_shapes(first.shape, bits.shape)
        times = lanes.size // (shape[0] * shape[1])  # what is alike in all blocks, or in all threads, is one element
        at = first.ravel() if bits is None else np.broadcast_to(first, shape)[np.broadcast_to(bits, shape)]
        for k in range(max(1, width // size)):
            here = at + k
            if k:  # an asynchronous copy at the end of an array may read less than its 16 bytes
                here = here[here < heat.shape[1]]
            for row, kinds in ((heat[0], ("load", "atomic")), (heat[1], ("store", "atomic"))):
                if kind not in kinds:
                    continue
                if 8 * here.size > row.size:
                    row += (np.bincount(as_intp(here), minlength=row.size) * times).astype(np.int32)
                else:
                    np.add.at(row, here, times)
        if kind != "load":
            everyone = (lanes.blocks, lanes.width)
            at = np.broadcast_to(first, everyone)[mask.grid()]
            blocks = np.broadcast_to(lanes.block_row + lanes.first, everyone)[mask.grid()].astype(np.int32)
            for k in range(max(1, width // size)):
                np.minimum.at(heat[2], at + k, blocks)

    def _keep(self, *arrays: np.ndarray | None) -> None:
        self.nbytes += _OVERHEAD + sum(a.nbytes for a in arrays if a is not None)
        if self.nbytes > self.limit:
            raise self._machine.error(
                f"the trace takes more than its limit of {self.limit / 2**20:g} MiB: trace fewer blocks (now "
                f"{len(self.blocks)}) or fewer warps of each (now {len(self.warps)}), or raise the limit: "
                "trace=simt.Tracing(blocks, warps, limit=bytes)",
                kind=TraceError,
            )

    def close(self) -> None:
        """The launch is over: let go of what is only needed while it runs."""
        if self.contents is not None:
            self.nbytes += sum(a.nbytes for a in self.contents.settle(self._now))
            self.contents.close()
        self._machine = self._lanes = self._picked = None

    # -- what a reader asks ------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The arrays that can be asked for: arguments by their parameter's name, others as the source calls them."""
        return list(dict.fromkeys([*self._arguments, *(entry[4] for entry in self._accesses)]))

    def name_of(self, array: object) -> str:
        """The name of an array that is given by its name or as the object that was passed to the kernel."""
        if isinstance(array, str):
            if array in self.names():
                return array
            what = f"named {array!r}"
        else:
            for name, argument in self._arguments.items():
                if argument.given is not None and argument.given() is array:
                    return name
            what = f"that is this {type(array).__name__}"
        raise TraceError(f"the trace of {self.kernel} has no array {what}; there are {_list(self.names())}")

    def line_number(self, line: int | str) -> int | str:
        """A line that is given by number, or by a piece of its source that only one traced line has."""
        if not isinstance(line, str):
            return int(line)
        lines = {entry[1] for entry in (*self._accesses, *self._steps)}
        found = sorted(n for n in lines if line in linecache.getline(self.file, n))
        if len(found) != 1:
            where = f"is on lines {_list(found)}" if found else "is on no line"
            raise TraceError(
                f"{line!r} {where} that {self.kernel} executed; give a piece of exactly one, or its number"
            )
        return found[0]

    def source(self, line: int) -> str:
        """The text of a source line, without indentation and comment."""
        return linecache.getline(self.file, line).partition("  #")[0].strip()

    def lines(self, array: object = None, kind: str | None = None) -> list[int]:
        """Lines on which a traced warp touches the array."""
        return sorted({entry[1] for entry in self._matching(array, kind)})

    def _matching(self, array: object, kind: str | None) -> Iterable[tuple]:
        if array is None:
            return [entry for entry in self._accesses if kind in (None, entry[2])]
        name = self.name_of(array)
        argument = self._arguments.get(name)
        storage = None if argument is None else argument.storage

        def fits(entry: tuple) -> bool:
            is_it = entry[4] == name if storage is None else entry[3] == "global" and entry[6] == storage
            return is_it and kind in (None, entry[2])

        return [entry for entry in self._accesses if fits(entry)]

    def accesses(
        self, array: object = None, *, line: int | str | None = None, kind: str | None = None,
        block: Block | None = None, warp: int | None = None,
    ) -> list[Access]:  # fmt: skip
        """The requests in order, all or those to one array, of one line, kind, block or warp.

        array  an argument by its parameter's name or as the object passed, or another array as the source calls it
        line   a line number, or a piece of the line's source
        kind   "load", "store" or "atomic"

        Raises TraceError with what there is, if the array is unknown, the line has no such access, or the block or
        warp was not traced.
        """
        if kind not in (None, "load", "store", "atomic"):
            raise TraceError(f"kind is {kind!r}; it must be 'load', 'store' or 'atomic'")
        number = None if block is None else self._traced(block)
        self._check_warp(warp)
        entries = list(self._matching(array, kind))
        if line is not None:
            wanted = self.line_number(line)
            if wanted not in {entry[1] for entry in entries}:
                what = "" if array is None else f" of {self.name_of(array)}"
                verb = "access" if kind is None else kind
                lines = sorted({entry[1] for entry in entries})
                there = f"lines with one are {_list(lines)}" if lines else "the traced warps have none at all"
                raise TraceError(f"line {wanted} of {self.kernel} has no {verb}{what}; {there}")
            entries = [entry for entry in entries if entry[1] == wanted]
        return [
            self._access(entry, i)
            for entry in entries
            for i in range(len(entry[7]))
            if number in (None, entry[7][i]) and warp in (None, entry[8][i])
        ]

    @staticmethod
    def _access(entry: tuple, i: int) -> Access:
        """The request of the i-th warp among those that executed it together."""
        sequence, line, kind, space, name, width, _, blocks, warps, where, active = entry
        return Access(sequence, line, kind, space, name, int(blocks[i]), int(warps[i]), width, where[i], active[i])

    def touches(self) -> list[Touch]:
        """All requests in order, with the array of `contents` that each goes to.

        Where several arguments are views of one allocation, it is the first that has all that the request touches.
        """
        found = []
        for entry in self._accesses:
            for i, block in enumerate(entry[7]):
                one, memory = self._access(entry, i), (entry[6], int(block) if entry[3] == "shared" else None)
                fits = [
                    k for k in self.contents.held(*memory)
                    if (self.contents.arrays[k].elements(one.addresses[one.active], one.width) >= 0).all()
                ]  # fmt: skip
                found.append(Touch(one, fits[0] if fits else None, memory))
        return found

    def steps(self, *, block: Block | None = None, warp: int | None = None) -> list[Step]:
        """The statements and branches in order, of all traced warps or of one block or warp."""
        number = None if block is None else self._traced(block)
        self._check_warp(warp)
        return [
            Step(sequence, line, int(blocks[i]), int(warps[i]), active[i], None if taken is None else taken[i])
            for sequence, line, blocks, warps, active, taken in self._steps
            for i in range(len(blocks))
            if number in (None, blocks[i]) and warp in (None, warps[i])
        ]

    def heat(self, array: object) -> Heat:
        """How often the whole grid touched each element of an argument, by the argument's indices."""
        name = self.name_of(array)
        argument = self._arguments.get(name)
        if argument is None:
            raise TraceError(f"heat is kept for arguments, and {name} is not one; there are {_list(self._arguments)}")
        counts = self._heat.get(argument.storage)
        if counts is None:
            return Heat(*(np.full(argument.shape, value, np.int64) for value in (0, 0, -1)))
        step = counts.itemsize
        views = [
            np.lib.stride_tricks.as_strided(
                row[argument.offset :], argument.shape, tuple(s * step for s in argument.strides), writeable=False
            )
            for row in counts
        ]
        return Heat(views[0].astype(np.int64), views[1].astype(np.int64), np.where(views[2] == _NOBODY, -1, views[2]))

    def touched(
        self, array: object, *, block: Block | None = None, warp: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reads and writes of each element of an argument by traced warps, and the request that first touched it.

        Three int64 arrays of the argument's shape; requests are numbered from 0 in their order, -1 is none.
        """
        name = self.name_of(array)
        argument = self._arguments.get(name)
        if argument is None:
            raise TraceError(
                f"elements are known of arguments, and {name} is not one; there are {_list(self._arguments)}"
            )
        where = np.full(argument.shape, argument.offset, np.int64)
        for axis, stride in enumerate(argument.strides):
            where += np.expand_dims(
                np.arange(argument.shape[axis], dtype=np.int64) * stride,
                tuple(k for k in range(where.ndim) if k != axis),
            )
        found = np.zeros((3, int(where.max(initial=0)) + 1), np.int64)
        found[2] = -1
        number = self.blocks[0] if block is None else block
        for request, one in enumerate(self.accesses(name, block=number, warp=warp)):
            first = one.addresses[one.active] // argument.itemsize
            at = (first[:, None] + np.arange(max(1, one.width // argument.itemsize), dtype=np.int64)).ravel()
            at = at[at < found.shape[1]]  # beyond this view of the allocation
            for row, kinds in ((0, ("load", "atomic")), (1, ("store", "atomic"))):
                if one.kind in kinds:
                    np.add.at(found[row], at, 1)
            fresh = at[found[2, at] < 0]
            found[2, fresh] = request
        return found[0][where], found[1][where], found[2][where]

    def _traced(self, block: Block) -> int:
        number = self.block_number(block)
        if number not in self.blocks:
            raise TraceError(
                f"block {block!r} was not traced, only {_list(self.blocks)}: trace=simt.Tracing(blocks=[{block!r}])"
            )
        return number

    def _check_warp(self, warp: int | None) -> None:
        if warp is not None and warp not in self.warps:
            raise TraceError(f"warp {warp!r} was not traced, only {_list(self.warps)}")

    def __repr__(self) -> str:
        return (
            f"<Trace of {self.kernel}: blocks {_list(self.blocks)}, warps {_list(self.warps)}, "
            f"{len(self._accesses)} accesses, {len(self._steps)} steps, {self.nbytes / 2**20:.2g} MiB>"
        )


def _list(things: Iterable[object]) -> str:
    things = [str(t) for t in things]
    if len(things) > 8:
        things = [*things[:4], "...", things[-1]]
    return ", ".join(things) or "none"
