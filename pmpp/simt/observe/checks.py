"""The sanitizers of level "check" for loads, stores and atomics: races, and reads of what nobody wrote."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import numpy as np

from pmpp.simt.machine.lanes import WARP, Lanes, Mask, packed, spread
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.storage import Cells, Storage, flat_position, gather, lane_of, selected
from pmpp.simt.observe.bulk import BulkCopies
from pmpp.simt.observe.order import Arrivals, Clock
from pmpp.simt.observe.shadow import Places, Race, Shadow
from pmpp.simt.values.dtypes import Value, as_intp
from pmpp.simt.values.quick import all_of, any_of, smallest

#: In the line of who reads shared memory: it is a bulk store.
_BULK = 1 << 30

#: Bytes of the numbers that the copy engine moves.
_HALF = 2

#: Why a thread may not use what a bulk copy reads or fills, whose phase has ended.
_UNHEARD = "no mbarrier_wait has told this thread that it is done"

#: Accesses that are remembered at a time.
_KEPT = 16

#: Where a single lane is among its lanes.
_FIRST = np.zeros(1, np.int64)


class Sanitizers:
    """What the sanitizers know of a launch: an observer of the machine (machine/protocols.py, Checks)."""

    def __init__(self, m: Machine) -> None:
        self._m = m
        self._clock = Clock(m.launch.blocks, m.launch.warps, m.launch.cluster)
        #: Of each block whose shared memory another one has used: when last, by which thread, where, by which name.
        self._used: dict[int, tuple[int, int, int, str]] = {}
        self._shadows: weakref.WeakKeyDictionary[Cells, Shadow] = weakref.WeakKeyDictionary()
        self._alike = True  # all blocks of this batch have passed the same barriers
        self._known_floor: tuple[Lanes, int] | None = None  # of shared memory, since the last barrier
        #: Accesses that may come again: a loop that reads x[i] for the same i has the same positions in each round.
        self._again: dict[tuple, tuple] = {}
        #: Reads, and other accesses, of several rounds of a loop, while these run together.
        self._postponed: tuple[list[tuple], list[tuple]] | None = None
        self._bulk: BulkCopies | None = None  # once there was a bulk copy
        self._boxes = False  # whether the copy engine has used global memory

    # -- accesses ----------------------------------------------------------------------------------------------------

    def read(self, mask: Mask, storage: Storage, at: Value, name: str, line: int, *, of_mbarrier: bool = False) -> None:
        """Report a read of what nobody wrote, or of what another thread may be writing now."""
        if storage.space == "local":
            self._check_local(mask, storage, at, name, line)
        elif storage.writeable and storage.space != "const":
            if self._postponed is not None:
                self._postponed[0].append((mask, storage, at, name, line))
                return
            if self._is_alone(storage):
                cell, me = at.item(), self._m.batch.lanes.only_thread
                if storage.init is not None and not storage.init.item(cell):
                    self._report_uninitialised(storage, name, line, 0)
                self._shadow(storage).forget_the_same(cell, me)
                self._read(storage, cell, me, _FIRST, name, line)
                return
            cells, me, where = self._touched(mask, storage, at)
            if storage.space == "cluster":
                self._used_across(storage, cells, me, where, name, line, "reads")
            self._check_init(storage, cells, where, name, line)
            self._check_in_flight(storage, cells, where, name, line, "reads")
            if not of_mbarrier:
                self._check_mbarriers(storage, cells, where, name, line, "reads")
            shadow = self._shadow(storage)
            if (
                at.ndim == 0 and storage.space == "global" and shadow.written is None and shadow.updated is None
            ) and not self._m.launch.orders_some:
                cells, me = _who_tells_all(cells, me, self._m.batch.lanes.root.width)
            else:
                shadow.forget_the_same(cells, me)
            self._read(storage, cells, me, where, name, line)

    def _read(self, storage: Storage, cells: Places, me: Places, where: np.ndarray, name: str, line: int) -> None:
        """Note that these threads read these cells now."""
        self._clock.tick()
        shadow, site, width = self._shadow(storage), self._m.place.site, self._m.batch.lanes.root.width
        if shadow.stored is not None:
            self._check_stored(shadow, cells, where, storage, name, line, "reads")
        looks = line in self._m.launch.looks[site is not None]
        race = shadow.on_read(
            self._clock, cells, me, site or line, self._floor(storage), width, self._flags(storage), looks=looks
        )
        if race is not None:
            self._report(race, where, storage, name, line, "reads")

    @property
    def postpones(self) -> bool:
        """Whether accesses are kept now."""
        return self._postponed is not None

    def postpone(self) -> None:
        """From now on keep the accesses: they are of several rounds of a loop, and to be told round by round."""
        self._postponed = [], []

    def postponed(self) -> tuple[list[tuple], list[tuple]]:
        """The reads and the other accesses that were kept; from now on they are told as they come."""
        kept, self._postponed = self._postponed, None
        return kept or ([], [])

    def can_be_told_at_once(self, reads: list[tuple]) -> bool:
        """Whether it makes no difference in which order reads of several rounds are told, but for the last round.

        It does not where nothing can be wrong with them yet, and one line reads each array: then all that is left of
        them is who read each element last, in case that somebody writes to it later.
        """
        lines: dict[Storage, int] = {}
        for _, storage, _, _, line in reads:
            if storage.space != "global" or lines.setdefault(storage, line) != line:
                return False
            known = storage.cells
            shadow = self._shadow(storage)
            if storage.init is not None or known.in_flight is not None or known.products is not None:
                return False
            if shadow.written is not None or shadow.updated is not None or storage.values.itemsize != known.unit:
                return False
        return not self._m.launch.orders_some

    def read_in_turn(self, mask: Mask, storage: Storage, places: list[Value], name: str, line: int) -> None:
        """These lanes read at each of these places, one after the other; see `can_be_told_at_once`."""
        if not places or not storage.writeable or any(at.ndim for at in places):
            for at in places:
                self.read(mask, storage, at, name, line)
            return
        me = mask.threads()
        if me.size > 4:
            me = me.take(as_intp(_who_tells(me, self._m.batch.lanes.root.width)))
        cells = np.repeat(np.array(places, np.int64), me.size)
        who = np.tile(me, len(places))
        self._read(storage, cells, who, who, name, line)

    def read_by_rounds(self, reads: list[tuple], ends: list[int]) -> None:
        """These reads of all rounds, one round after the other; `ends` says how many lanes the rounds so far have."""
        found = [(*self._touched(mask, storage, at), storage, name, line) for mask, storage, at, name, line in reads]
        for cells, _, where, storage, name, line in found:
            self._check_init(storage, cells, where, name, line)
            self._check_in_flight(storage, cells, where, name, line, "reads")
            self._check_mbarriers(storage, cells, where, name, line, "reads")
        first = 0
        for end in ends:
            for cells, me, where, storage, name, line in found:
                parts = cells.size // ends[-1]
                here = slice(first * parts, end * parts)
                self._read(storage, cells[here], me[here], where[here], name, line)
            first = end

    def can_write_together(self, writes: list[tuple], before: dict[Storage, np.ndarray]) -> bool:
        """Whether nothing is wrong with stores and atomics of several rounds, each the only access to its array.

        They have happened, and `before` is what the arrays held.  If something is wrong, what is told of it depends on
        the order of all accesses.
        """
        return all(self._is_fine(before[storage], mask, storage, *rest) for mask, storage, *rest in writes)

    def _is_fine(
        self, old: np.ndarray, mask: Mask, storage: Storage, at: Value, value: Value | None, line: int,
        updates: bool, replaces: bool,
    ) -> bool:  # fmt: skip
        lanes, known, init = self._m.batch.lanes, storage.cells, storage.init
        if known.in_flight is not None or known.products is not None or known.mbarriers is not None:
            return False
        if self._m.launch.multiplies_tiles:
            return False
        if self._m.batch.copies is not None and next(self._copied_from(known), None) is not None:
            return False
        floor, width, (cells, me, where) = self._floor(storage), lanes.root.width, self._touched(mask, storage, at)
        shadow = self._shadow(storage)
        if updates:
            written = replaces or init is None or all_of(init.reshape(-1).take(as_intp(cells)))
            return written and not shadow.races_of_update(self._clock, cells, me, floor, width)

        def in_lanes(values: Value) -> np.ndarray:
            return spread(_bits(values), (lanes.blocks, lanes.width)).reshape(-1)[where]

        new = in_lanes(value)
        if not _agree(cells, me, new):
            return False

        def same() -> np.ndarray:
            return in_lanes(gather(lanes, storage, old, at)) == new

        return not shadow.races_of_write(self._clock, cells, me, floor, width, same)

    def write_together(self, writes: list[tuple]) -> None:
        """Stores and atomics for which `can_write_together` holds."""
        clock, width = self._clock, self._m.batch.lanes.root.width
        for mask, storage, at, _, line, updates, _ in writes:
            cells, me, _ = self._touched(mask, storage, at)
            if storage.init is not None:
                storage.init.reshape(-1)[cells] = True
            clock.tick()
            shown = self._m.place.site or line
            self._shadow(storage).add_written(clock, cells, me, shown, self._floor(storage), width, updates=updates)
            if updates:
                clock.last_atomic[self._blocks(mask)] = clock.now

    def write(
        self, mask: Mask, storage: Storage, at: Value, value: Value | None, name: str, line: int, *,
        of_mbarrier: bool = False,
    ) -> bool:  # fmt: skip
        """Report a write of what another thread may be reading or writing now.  `value`: None if nobody knows it.

        Returns whether several lanes write one element: `written` then says whether they write different values.
        """
        lanes = self._m.batch.lanes
        if self._postponed is not None:
            self._postponed[1].append((mask, storage, at, value, line, False, False))
            return False
        if storage.space == "local":
            init = storage.init
            if init is not None and at.ndim == 0 and lanes is storage.home:
                if int(at) not in storage.cells.everywhere:
                    np.copyto(init[int(at)], True, where=True if mask.bits is None else mask.bits)
            elif init is not None:
                init.reshape(-1)[selected(lanes, mask, flat_position(lanes, storage, at))[0]] = True
            return False
        if self._is_alone(storage):
            cells, me, where = at.item(), lanes.only_thread, _FIRST
        else:
            cells, me, where = self._touched(mask, storage, at)
            if storage.space == "cluster":
                self._used_across(storage, cells, me, where, name, line, "writes")
            self._check_in_flight(storage, cells, where, name, line, "writes")
            self._check_products(storage, cells, where, name, line, "writes")
            if of_mbarrier:
                self._begin_mbarriers(storage, cells, me, line)
            else:
                self._check_mbarriers(storage, cells, where, name, line, "writes")
        init = storage.init
        if init is not None:
            init.reshape(-1)[cells] = True
        if storage.space in ("shared", "cluster") and self._m.launch.multiplies_tiles:
            self._unfenced(storage)[cells] = me | np.int64(self._m.place.site or line) << 32

        def same() -> np.ndarray:
            if value is None:
                return np.zeros(where.size, np.bool_)
            full = _bits(gather(lanes, storage, storage.values, at)) == _bits(value)
            full = spread(full, (lanes.blocks, lanes.width))
            return full.all(axis=0)[where] if storage.cells.one_row else full.reshape(-1)[where]

        clock = self._clock
        clock.tick()
        shadow, line_shown = self._shadow(storage), self._m.place.site or line
        if self._m.batch.copies is not None and storage.space == "global":
            self._check_sources(storage, cells, where, name, line, "writes")
        if shadow.stored is not None:
            self._check_stored(shadow, cells, where, storage, name, line, "writes", same)
        if shadow.fetched is not None:
            self._check_fetched(shadow, cells, where, storage, name, line, "writes")
        races, several = shadow.on_write(clock, cells, me, line_shown, self._floor(storage), lanes.root.width, same)
        for race in races:
            self._report(race, where, storage, name, line, "writes")
        return several

    def written(self, mask: Mask, storage: Storage, at: Value, value: Value, name: str, line: int) -> None:
        """Several lanes have written one element: report it if one of them does not find there what it wrote."""
        lanes = self._m.batch.lanes
        lost = _bits(gather(lanes, storage, storage.values, at)) != _bits(value)
        lost = lost if mask.bits is None else lost & mask.bits
        if any_of(lost):
            self._m.hazard(
                "race", storage.space, name, line, lane_of(lanes, lost),
                "{who} and another thread write different values to the same element of {name} in one statement",
            )  # fmt: skip

    def update(self, mask: Mask, storage: Storage, at: Value, name: str, line: int, *, replaces: bool) -> None:
        """Report an atomic on what nobody wrote, or on what another thread may be accessing otherwise now."""
        clock, cells = self._clock, None
        if self._postponed is not None:
            self._postponed[1].append((mask, storage, at, None, line, True, replaces))
            return
        if self._is_alone(storage):
            self._update_alone(mask, storage, at.item(), name, line, replaces)
            return
        if storage.space == "local":
            self._check_local(mask, storage, at, name, line)
        else:
            if storage.space == "shared" and clock.cluster > 1 and storage.cells.one_row:
                self._split_rows(storage)  # blocks may signal to one another by it
            cells, me, where = self._touched(mask, storage, at)
            if storage.space == "cluster":
                self._used_across(storage, cells, me, where, name, line, "updates")
            self._check_in_flight(storage, cells, where, name, line, "updates")
            self._check_products(storage, cells, where, name, line, "updates")
            self._check_mbarriers(storage, cells, where, name, line, "updates")
            if not replaces:
                self._check_init(storage, cells, where, name, line)
            init = storage.init
            if init is not None:
                init.reshape(-1)[cells] = True
            if storage.space in ("shared", "cluster") and self._m.launch.multiplies_tiles:
                self._unfenced(storage)[cells] = me | np.int64(self._m.place.site or line) << 32
            clock.tick()
            shadow, line_shown = self._shadow(storage), self._m.place.site or line
            width = self._m.batch.lanes.root.width
            if self._m.batch.copies is not None and storage.space == "global":
                self._check_sources(storage, cells, where, name, line, "updates")
            if shadow.stored is not None:
                self._check_stored(shadow, cells, where, storage, name, line, "updates")
            if shadow.fetched is not None:
                self._check_fetched(shadow, cells, where, storage, name, line, "updates")
            for race in shadow.on_update(clock, cells, me, line_shown, self._floor(storage), width)[:1]:
                self._report(race, where, storage, name, line, "updates")
        clock.last_atomic[self._blocks(mask)] = clock.now
        if clock.device is not None or clock.inside is not None:
            flags = self._flags(storage)
            if flags is not None:
                cells = cells.reshape(mask.lanes, -1)[:, 0] * storage.cells.unit
            clock.here = mask.of.root
            self._alike &= _same_in_all_blocks(mask)
            clock.signal(mask.threads(), flags, cells)

    def _flags(self, storage: Storage) -> Cells | None:
        """What stands for an array among those by which blocks signal: none for memory that one block alone uses."""
        among = ("global", "cluster") if self._clock.cluster == 1 else ("global", "shared", "cluster")
        return storage.cells if storage.space in among else None

    def _is_alone(self, storage: Storage) -> bool:
        """Whether the access is that of a single lane to one cell of global memory, into which nothing is under way."""
        lanes, known = self._m.batch.lanes, storage.cells
        if lanes.size != 1 or storage.space != "global" or lanes is lanes.root:
            return False
        if self._boxes or self._m.batch.copies is not None:
            return False
        self._clock.here = lanes.root
        return known.in_flight is None and known.products is None and storage.values.itemsize == known.unit

    def _update_alone(self, mask: Mask, storage: Storage, cell: int, name: str, line: int, replaces: bool) -> None:
        clock, lanes, init = self._clock, self._m.batch.lanes, storage.init
        if init is not None:
            if not replaces and not init.item(cell):
                self._report_uninitialised(storage, name, line, 0)
            init.reshape(-1)[cell] = True
        clock.tick()
        me, line_shown, width = lanes.only_thread, self._m.place.site or line, lanes.root.width
        for race in self._shadow(storage).on_update(clock, cell, me, line_shown, self._floor(storage), width)[:1]:
            self._report(race, _FIRST, storage, name, line, "updates")
        clock.last_atomic[me // width] = clock.now
        if clock.device is not None or clock.inside is not None:
            self._alike &= _same_in_all_blocks(mask)
            clock.signal_alone(me, storage.cells, cell * storage.cells.unit)

    # -- asynchronous copies -----------------------------------------------------------------------------------------

    def copy_begins(self, mask: Mask, storage: Storage, at: Value, name: str, line: int) -> None:
        """Report a copy to what another thread may be reading or writing now; nobody may use it until it lands."""
        several = self.write(mask, storage, at, None, name, line)
        cells, me, where = self._touched(mask, storage, at)
        if several:
            order = np.argsort(cells, kind="stable")
            again = np.flatnonzero(cells[order][1:] == cells[order][:-1])[0] + 1
            self._m.hazard("race", storage.space, name, line, int(where[order[again]]),
                           "{who} and another thread copy to the same element of {name} in one statement")  # fmt: skip
        known = storage.cells
        if known.in_flight is None:
            rows = storage.values.shape[0] if known.one_row else 1
            known.in_flight = np.zeros(known.nbytes // rows // known.unit, np.int64)
        known.in_flight[cells] = me | np.int64(self._m.place.site or line) << 32

    def copy_lands(self, mask: Mask, storage: Storage, at: Value, line: int) -> None:
        """It is a write of the thread that has waited for it."""
        self._alike &= _same_in_all_blocks(mask)
        cells, me, _ = self._touched(mask, storage, at)
        storage.cells.in_flight[cells] = 0
        if self._m.launch.multiplies_tiles:
            self._unfenced(storage)[cells] = me | np.int64(self._m.place.site or line) << 32
        self._clock.tick()
        shadow, width = self._shadow(storage), self._m.batch.lanes.root.width
        # Who has read or written these elements since the copy began was told when it did so.
        line_shown, told = self._m.place.site or line, np.ones(cells.size, np.bool_)
        shadow.on_write(self._clock, cells, me, line_shown, self._floor(storage), width, lambda: told)

    def source_was_read(self, mask: Mask, storage: Storage, at: Value, line: int) -> None:
        """Copies that have landed have read these elements until now."""
        if storage.writeable:
            cells, me, _ = self._touched(mask, storage, at)
            self._clock.tick()
            self._shadow(storage).reads_still(self._clock, cells, me, line)

    def _copied_from(self, known: Cells) -> Iterator[tuple[Mask, Storage, Value, int]]:
        """Which lanes copy from this allocation and have not waited, from where, and on which line."""
        for copy in self._m.batch.copies.under_way:
            for mask, storage, at in copy.sources:
                if storage.cells is known:
                    yield mask, storage, at, copy.line

    def _check_sources(
        self, storage: Storage, cells: np.ndarray, where: np.ndarray, name: str, line: int, verb: str
    ) -> None:
        """Report a change of what a copy may still read."""
        for mask, part, at, copy_line in self._copied_from(storage.cells):
            read, readers, _ = self._touched(mask, part, at)
            found = np.isin(cells, read)
            if any_of(found):
                first = int(np.argmax(found))
                reader = int(readers[np.argmax(read == cells[first])])
                self._m.hazard(
                    "race", storage.space, name, line, int(where[first]),
                    f"{{who}} {verb} an element of {{name}} that the copy_async of {self._m.other_thread(reader)} on "
                    f"line {copy_line} may still read: that thread has not waited for it with wait_copies",
                )  # fmt: skip
                return

    def _check_in_flight(
        self, storage: Storage, cells: np.ndarray, where: np.ndarray, name: str, line: int, verb: str
    ) -> None:
        known = storage.cells
        if known.in_flight is None:
            return
        found = known.in_flight.take(as_intp(cells))
        if not any_of(found != 0):
            return
        if self._bulk is not None:
            undone = self._undone(-found, where)
            if undone is not None:
                first, number = undone
                copy = self._bulk.all[number - 1]
                said = f"while the bulk_tile of {self._m.other_thread(copy.thread)} on line {copy.line} is under way"
                why = _UNHEARD if copy.phase.ended else "its mbarrier has not ended its phase"
                self._m.hazard("race", storage.space, name, line, int(where[first]),
                               f"{{who}} {verb} an element of {{name}} {said}: {why}")  # fmt: skip
        if any_of(found > 0):
            first = int(np.argmax(found > 0))
            copy_line, thread = int(found[first]) >> 32, int(found[first]) & 0xFFFFFFFF
            self._m.hazard(
                "race", storage.space, name, line, int(where[first]),
                f"{{who}} {verb} an element of {{name}} while the copy_async of {self._m.other_thread(thread)} on line "
                f"{copy_line} is under way: that thread has not waited for it with wait_copies",
            )  # fmt: skip

    def _undone(self, numbers: np.ndarray, where: np.ndarray) -> tuple[int, int] | None:
        """The first of these lanes that does not know its copy to be done, and the copy's number: 0 or less is none."""
        lanes = self._m.batch.lanes
        one_warp = where.item(0) // WARP == where.item(-1) // WARP  # they are in order
        if one_warp and self._bulk.are_known(lanes.threads(where[:1]).item(), numbers):
            return None
        warps, asked = where // WARP, set()
        begins = np.flatnonzero((numbers[1:] != numbers[:-1]) | (warps[1:] != warps[:-1])) + 1
        for k in (0, *begins.tolist()):
            number, pair = numbers.item(k), (numbers.item(k), warps.item(k))
            if number > 0 and pair not in asked:
                asked.add(pair)
                if not self._bulk.is_done_for(number, lanes.threads(where[k : k + 1]).item(), self._clock):
                    return k, number
        return None

    # -- products of tiles, bulk copies, mbarriers -------------------------------------------------------------------

    def _unfenced(self, storage: Storage) -> np.ndarray:
        """Of each cell who wrote it, and on which line, where no fence has shown it to the engines; else 0."""
        known = storage.cells
        if known.unfenced is None:
            rows = storage.values.shape[0] if known.one_row else 1
            known.unfenced = np.zeros(known.nbytes // rows // known.unit, np.int64)
        return known.unfenced

    def _tile(self, storage: Storage, blocks: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The cells at these positions of the rows of blocks, one after the other."""
        if storage.cells.one_row:
            self._split_rows(storage)
        self._clock.here = self._m.batch.lanes.root
        parts = storage.values.itemsize // storage.cells.unit
        flat = (blocks.reshape(-1, 1) * storage.values.shape[1] + at).reshape(-1, 1)
        return (flat * parts + np.arange(parts, dtype=np.int64)).reshape(-1)

    def tiles_read(
        self, storage: Storage, blocks: np.ndarray, at: np.ndarray, warps: np.ndarray, name: str, line: int,
        *, again: bool = False,
    ) -> None:  # fmt: skip
        """Report products of tiles that are not there, or that another thread may be overwriting now."""
        lane = blocks * self._m.batch.lanes.width + warps * WARP
        self._engine_reads(storage, blocks, at, lane, name, line, "multiplies", again)

    def box_read(
        self, storage: Storage, block: int, at: np.ndarray, lane: int, name: str, line: int, *, again: bool = False
    ) -> None:
        """The same of a bulk store of one thread."""
        blocks, lanes = np.array([block], np.int64), np.array([lane], np.int64)
        self._engine_reads(storage, blocks, at, lanes, name, line, "stores", again)

    def _engine_reads(
        self, storage: Storage, blocks: np.ndarray, at: np.ndarray, lane: np.ndarray, name: str, line: int, verb: str,
        again: bool,
    ) -> None:  # fmt: skip
        cells = self._tile(storage, blocks, at)
        where = np.repeat(lane, cells.size // lane.size)
        me = self._m.batch.lanes.threads(where)
        self._check_in_flight(storage, cells, where, name, line, verb)
        self._check_mbarriers(storage, cells, where, name, line, verb)
        known = storage.cells
        if known.products is None:
            known.products, known.reader = (np.zeros(known.nbytes // known.unit, np.int64) for _ in range(2))
        np.add.at(known.products, as_intp(cells), -1 if again else 1)
        if not again:
            kind = _BULK if verb == "stores" else 0
            known.reader[cells] = me | np.int64(self._m.place.site or line | kind) << 32
            self._check_init(storage, cells, where, name, line)
            self._check_unfenced(storage, cells, where, name, line, verb)
        self._read(storage, cells, me, where, name, line)

    def box_written(
        self, storage: Storage, halves: np.ndarray, differs: np.ndarray, lane: int, name: str, line: int
    ) -> None:
        """Report a bulk store to global memory that others may be using now, or that this kernel has written."""
        clock, shadow, unit = self._clock, self._shadow(storage), storage.cells.unit
        clock.here = self._m.batch.lanes.root
        cells = _cells_of(halves, unit)
        where = np.full(cells.size, lane, np.int64)
        me = self._m.batch.lanes.threads(where)
        self._boxes = True
        if storage.init is not None:
            storage.init.reshape(-1)[cells] = True
        clock.tick()
        line_shown, over = self._m.place.site or line, _cells_of(halves[differs], unit)
        before = shadow.written_before(over)
        width, never = self._m.batch.lanes.root.width, np.zeros(cells.size, np.bool_)
        races, _ = shadow.on_write(clock, cells, me, line_shown, self._floor(storage), width, lambda: never)
        for race in races:
            self._report(race, where, storage, name, line, "writes")
        if self._m.batch.copies is not None:
            self._check_sources(storage, cells, where, name, line, "writes")
        if shadow.fetched is not None:
            self._check_fetched(shadow, cells, where, storage, name, line, "writes")
        if shadow.stored is not None:
            self._check_stored(shadow, over, where[: over.size], storage, name, line, "writes")
        else:
            shadow.stored = np.zeros(shadow.size, np.int64)
        if any_of(before != 0):
            stamp = before.item(int(np.argmax(before != 0)))
            writer, line_before = self._m.other_thread(stamp & 0xFFFFFFFF), shadow.line_at(stamp >> 32)
            self._m.hazard(
                "race", storage.space, name, line, lane,
                f"{{who}} stores another value over an element of {{name}} that {writer} wrote on line {line_before} "
                "of this kernel: nothing orders a thread's store before one of the copy engine",
            )  # fmt: skip
        shadow.stored[cells] = me | np.int64(line_shown) << 32

    def _check_stored(
        self, shadow: Shadow, cells: np.ndarray, where: np.ndarray, storage: Storage, name: str, line: int, verb: str,
        same: Callable[[], np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        """Report a use of what a bulk store writes: it is there when the kernel has ended.  `same`: as `on_write`'s."""
        found = shadow.stored.take(as_intp(cells))
        if same is not None and any_of(found != 0):
            found = np.where(same(), 0, found)
        if any_of(found != 0):
            first = int(np.argmax(found != 0))
            storer, store_line = self._m.other_thread(int(found[first]) & 0xFFFFFFFF), int(found[first]) >> 32
            self._m.hazard(
                "race", storage.space, name, line, int(where[first]),
                f"{{who}} {verb} an element of {{name}} that the bulk_store of {storer} on line {store_line} writes: "
                "that is done when the kernel has ended, and nothing tells a thread of it before",
            )  # fmt: skip

    def _check_fetched(
        self, shadow: Shadow, cells: np.ndarray, where: np.ndarray, storage: Storage, name: str, line: int, verb: str
    ) -> None:
        """Report a change of what a bulk copy may still read."""
        undone = self._undone(shadow.fetched.take(as_intp(cells)), where)
        if undone is not None:
            first, number = undone
            copy = self._bulk.all[number - 1]
            why = _UNHEARD if copy.phase.ended else "its mbarrier has not ended its phase"
            self._m.hazard(
                "race", storage.space, name, line, int(where[first]),
                f"{{who}} {verb} an element of {{name}} that the bulk_tile of {self._m.other_thread(copy.thread)} on "
                f"line {copy.line} may still read: {why}",
            )  # fmt: skip

    def _box_read(
        self, storage: Storage, halves: np.ndarray, lane: int, name: str, line: int, number: int
    ) -> np.ndarray | None:
        """Report a bulk copy of what others may be writing now, or of what a thread of this kernel wrote.

        Returns of each 16-bit number whether somebody has written it; None if all are.
        """
        if not storage.writeable:
            return None
        self._boxes = True
        shadow, unit = self._shadow(storage), storage.cells.unit
        cells = _cells_of(halves, unit)
        where = np.full(cells.size, lane, np.int64)
        self._read(storage, cells, self._m.batch.lanes.threads(where), where, name, line)
        before = shadow.written_before(cells)
        if any_of(before != 0):
            stamp = before.item(int(np.argmax(before != 0)))
            writer, line_before = self._m.other_thread(stamp & 0xFFFFFFFF), shadow.line_at(stamp >> 32)
            self._m.hazard(
                "race", storage.space, name, line, lane,
                f"{{who}} copies an element of {{name}} that {writer} wrote on line {line_before} of this kernel: the "
                "copy engine need not see what a thread has stored into global memory before the next kernel",
            )  # fmt: skip
        if shadow.fetched is None:
            shadow.fetched = np.zeros(shadow.size, np.int64)
        shadow.fetched[cells] = number
        init = storage.init
        if init is None:
            return None
        flags, byte = init.reshape(-1), halves * _HALF
        written = flags.take(as_intp(byte // unit))
        return written & flags.take(as_intp(byte + 1)) if unit == 1 else written

    def map_read(self, storage: Storage, at: int, words: int, lane: int, name: str, line: int) -> None:
        """Report a tensor map that another thread may be placing now."""
        if not storage.writeable:
            return
        self._clock.here = self._m.batch.lanes.root
        parts = storage.values.itemsize // storage.cells.unit
        cells = np.arange(at * parts, (at + words) * parts, dtype=np.int64)
        where = np.full(cells.size, lane, np.int64)
        self._check_init(storage, cells, where, name, line)
        self._read(storage, cells, self._m.batch.lanes.threads(where), where, name, line)

    def store_left(self, lane: int, name: str, line: int) -> None:
        """Report a thread that has ended before its bulk store was known to have read its box."""
        self._m.hazard("race", "shared", name, line, lane,
                       "{who} ends and has not waited with wait_stores(0) for its bulk_store of {name}: the memory may "
                       "be another block's before the engine has read it")  # fmt: skip

    def block_ends(self, block: int) -> None:
        """Report bulk copies to a block that has ended of which it does not know that they are done."""
        if self._bulk is None:
            return
        root = self._m.batch.lanes.root
        for copy in self._bulk.left_by(block, root.width // WARP):
            self._m.hazard("race", "shared", copy.name, copy.line, copy.thread - root.first * root.width,
                           "{who} starts a bulk_tile to {name}, and its block ends before a thread has waited for its "
                           "mbarrier: the memory may be another block's before the tile arrives")  # fmt: skip

    def _check_products(
        self, storage: Storage, cells: np.ndarray, where: np.ndarray, name: str, line: int, verb: str
    ) -> None:
        known = storage.cells
        if known.products is None:
            return
        found = known.products.take(as_intp(cells)) > 0
        if any_of(found):
            first = int(np.argmax(found))
            stamp = int(known.reader[cells[first]])
            bulk = stamp >> 32 & _BULK
            why = "that thread has not waited for it with wait_stores" if bulk else (
                "its warp has not waited for it with wgmma_wait"
            )  # fmt: skip
            self._m.hazard(
                "race", storage.space, name, line, int(where[first]),
                f"{{who}} {verb} an element of {{name}} that {'the bulk_store' if bulk else 'a product'} of "
                f"{self._m.other_thread(stamp & 0xFFFFFFFF)} on line {stamp >> 32 & ~_BULK} may still read: {why}",
            )  # fmt: skip

    def tile_begins(
        self, target: tuple[Storage, int, np.ndarray], source: tuple[Storage, np.ndarray, np.ndarray], lane: int,
        names: tuple[str, str], line: int, key: tuple,
    ) -> None:  # fmt: skip
        """Report a bulk copy to what another thread may be using now, or from what another may be writing.

        What it brings is known to who has waited for its mbarrier, and to those behind them (`_check_in_flight`).  So
        it is no store of the thread that asks for it, and that thread tells the mbarrier nothing of its own.
        """
        (storage, block, at), (matrix, there, halves) = target, source
        if self._bulk is None:
            self._bulk = BulkCopies()
        cells, name = self._tile(storage, np.array([block], np.int64), at), names[0]
        where = np.full(cells.size, lane, np.int64)
        me = self._m.batch.lanes.threads(where)
        self._check_in_flight(storage, cells, where, name, line, "copies to")
        self._check_products(storage, cells, where, name, line, "copies to")
        self._check_mbarriers(storage, cells, where, name, line, "copies to")
        self._check_unfenced(storage, cells, where, name, line, "copies to")
        clock, site, width = self._clock, self._m.place.site, self._m.batch.lanes.root.width
        clock.tick()
        never = np.zeros(cells.size, np.bool_)
        for race in self._shadow(storage).races_of_write(
            clock, cells, me, self._floor(storage), width, lambda: never
        ):  # fmt: skip
            self._report(race, where, storage, name, line, "copies to")
        shown = name if site is None else site.named(name)
        number = self._bulk.begins(me.item(0), me.item(0) // width, key, shown, site or line)
        known = storage.cells
        if known.in_flight is None:
            known.in_flight = np.zeros(known.nbytes // known.unit, np.int64)
        known.in_flight[cells] = -number
        self._unfenced(storage)[cells] = 0
        self._arrivals().arrive(me[:1], key, 0)
        inside = halves[there]
        written = self._box_read(matrix, inside, lane, names[1], line, number) if inside.size else None
        if storage.init is not None:
            flags = np.ones(there.shape, np.bool_)
            if written is not None:
                flags[there] = written
            storage.init.reshape(-1)[cells] = _of_halves(flags, known.unit)

    def _check_unfenced(
        self, storage: Storage, cells: np.ndarray, where: np.ndarray, name: str, line: int, verb: str
    ) -> None:
        """Report what a thread has written and no fence has shown to the engines."""
        found = self._unfenced(storage).take(as_intp(cells))
        if any_of(found != 0):
            first = int(np.argmax(found != 0))
            write_line, thread = int(found[first]) >> 32, int(found[first]) & 0xFFFFFFFF
            self._m.hazard(
                "race", storage.space, name, line, int(where[first]),
                f"{{who}} {verb} an element of {{name}} that {self._m.other_thread(thread)} wrote on line "
                f"{write_line} and has not shown to the engines with copies_visible()",
            )  # fmt: skip

    def shows(self, mask: Mask) -> None:
        """What these lanes have written is there for products and bulk copies."""
        self._alike &= _same_in_all_blocks(mask)
        batch, threads = self._m.batch, mask.threads()
        table = np.zeros(batch.lanes.root.size, np.bool_)
        table[threads - batch.lanes.root.first * batch.lanes.root.width] = True
        for array in batch.shared.values():
            known = array.storage.cells if hasattr(array, "storage") else None
            if known is not None and known.unfenced is not None:
                found = np.flatnonzero(known.unfenced)
                who = (known.unfenced[found] & 0xFFFFFFFF) - batch.lanes.root.first * batch.lanes.root.width
                known.unfenced[found[table[as_intp(who)]]] = 0

    def _begin_mbarriers(self, storage: Storage, cells: np.ndarray, me: np.ndarray, line: int) -> None:
        """These cells are mbarriers from now on, as long as their block runs."""
        known = storage.cells
        if known.mbarriers is None:
            rows = storage.values.shape[0] if known.one_row else 1
            known.mbarriers = np.zeros(known.nbytes // rows // known.unit, np.int64)
        known.mbarriers[cells] = me | np.int64(self._m.place.site or line) << 32

    def _check_mbarriers(
        self, storage: Storage, cells: np.ndarray, where: np.ndarray, name: str, line: int, verb: str
    ) -> None:
        """Report that an mbarrier is used like a number: its bits mean something to its instructions alone."""
        known = storage.cells
        if known.mbarriers is None:
            return
        found = known.mbarriers.take(as_intp(cells))
        if any_of(found != 0):
            first = int(np.argmax(found != 0))
            init_line, thread = int(found[first]) >> 32, int(found[first]) & 0xFFFFFFFF
            self._m.hazard(
                "race", storage.space, name, line, int(where[first]),
                f"{{who}} {verb} an element of {{name}} that has been an mbarrier since "
                f"{self._m.other_thread(thread)} initialised it on line {init_line}: only the instructions of "
                "mbarriers may use its bits",
            )  # fmt: skip

    def _arrivals(self) -> Arrivals:
        if self._clock.arrivals is None:
            self._clock.arrivals = Arrivals(self._m.launch.blocks, self._m.launch.warps)
        return self._clock.arrivals

    def arrives(self, mask: Mask, key: tuple) -> None:
        """Lanes have arrived at an mbarrier."""
        self._arrivals().arrive(mask.threads(), key, self._clock.now)

    def completes(self, blocks: np.ndarray, key: tuple) -> None:
        """A phase of an mbarrier of these blocks has ended."""
        self._arrivals().complete(blocks, key)
        if self._bulk is not None:
            self._bulk.ends(blocks.tolist(), key, self._clock.tick())

    def has_waited(self, mask: Mask, key: tuple) -> None:
        """Lanes have seen that it ended."""
        self._arrivals().learn(mask.threads(), key)
        if self._bulk is not None:
            self._bulk.waited(mask.threads(), mask.of.root.width, key, self._clock.tick())

    # -- what orders accesses ----------------------------------------------------------------------------------------

    def batch_begins(self) -> None:
        """Other blocks are under way, none of which has passed a barrier."""
        self._alike = True
        self._known_floor = None
        self._again.clear()
        self._clock.meetings.clear()

    def block_barrier(self, lanes: Lanes, here: np.ndarray) -> None:
        """A barrier in those blocks of `lanes` for which `here` holds."""
        self._known_floor = None
        self._alike &= bool(here.all())
        self._clock.meet_as_blocks(np.flatnonzero(here) + lanes.first)

    def warp_barrier(self, mask: Mask, alive: np.ndarray, groups: np.ndarray | None) -> None:
        """A `syncwarp` of these lanes, each with its group, a warp a row, as bits; None: with all of its warp."""
        lanes, clock = mask.of, self._clock
        shape = (lanes.blocks, lanes.warps, WARP)
        bits = mask.grid().reshape(shape)
        self._alike &= bool((bits == bits[0]).all())
        whole = groups is None and not (bits.any(axis=2, keepdims=True) & alive.reshape(shape) & ~bits).any()
        if whole and lanes not in clock.meetings:
            rows, columns = np.nonzero(mask.grid())
            clock.meet_as_warps(rows + lanes.first, columns)
            return
        if groups is None:
            groups = packed(bits)[:, :, None]
        else:
            groups = groups.reshape(*shape[:2], -1)
            self._alike &= bool((groups == groups[0]).all())
        together = groups[:, :, :, None] >> np.arange(WARP, dtype=np.uint32) & np.uint32(1) != 0
        together = together & bits[:, :, :, None]
        clock.meet_in_groups(lanes, together & together.swapaxes(2, 3))

    def cluster_barrier(self, lanes: Lanes, here: np.ndarray, running: np.ndarray) -> None:
        """A barrier of whole clusters, in those blocks of `lanes` for which `here` holds; which blocks still run."""
        self._blocks_end(lanes, here & ~running)  # they have not waited for the others
        self._known_floor = None
        self._alike &= bool(here.all())
        self._clock.meet_as_clusters(np.flatnonzero(here) + lanes.first)

    def grid_barrier(self) -> None:
        """A barrier of the whole grid."""
        self._known_floor = None
        self._clock.meet_as_a_grid()

    def fence(self, mask: Mask) -> None:
        """A fence between blocks, which is one within them, too."""
        self._fence(mask, block=False)

    def block_fence(self, mask: Mask) -> None:
        """A fence within blocks."""
        self._fence(mask, block=True)

    def _fence(self, mask: Mask, *, block: bool) -> None:
        self._alike &= _same_in_all_blocks(mask)
        self._clock.here = mask.of.root
        self._clock.fence(mask.threads(), block=block)

    @staticmethod
    def _blocks(mask: Mask) -> np.ndarray | slice:
        """The blocks with an active thread."""
        of = mask.of
        if of is not of.root:
            return mask.threads() // of.root.width
        if mask.bits is None or mask.bits.shape[0] == 1:
            return slice(of.first, of.first + of.blocks)
        return np.flatnonzero(mask.bits.any(axis=1)) + of.first

    def _floor(self, storage: Storage) -> int:
        """A time before which every access to the storage is ordered before all that is to come."""
        if storage.space not in ("shared", "cluster"):
            return self._clock.grid_barrier
        lanes = self._m.batch.lanes.root
        if self._known_floor is None or self._known_floor[0] is not lanes:
            barriers = self._clock.block_barrier if self._clock.cluster == 1 else self._clock.cluster_barrier
            barriers = barriers[lanes.first : lanes.first + lanes.blocks]
            self._known_floor = lanes, smallest(barriers)
        return self._known_floor[1]

    # -- shared memory of other blocks -------------------------------------------------------------------------------

    def maps(self, storage: Storage) -> None:
        """From now on blocks of a cluster may use one another's copy of an array in shared memory."""
        if storage.cells.one_row:
            self._split_rows(storage)

    def _used_across(
        self, storage: Storage, cells: np.ndarray, me: np.ndarray, where: np.ndarray, name: str, line: int, verb: str
    ) -> None:
        """Report the use of memory of a block that may not have begun, or has ended; note who used it last."""
        lanes, clock = self._m.batch.lanes.root, self._clock
        owner = cells * storage.cells.unit // (storage.cells.nbytes // lanes.blocks) + lanes.first
        across = owner != me // lanes.width
        if not any_of(across):
            return
        early = across & (clock.cluster_barrier[owner] == 0)
        # A block may also have said that it runs, by a signal in global memory.
        if clock.device is None and any_of(early):
            first = int(np.argmax(early))
            whose = self._m.block_named(int(owner[first]))
            self._m.hazard("race", "shared", name, line, int(where[first]),
                           f"{{who}} {verb} an element of {{name}} in the shared memory of {whose}, which may not have "
                           "begun: cluster_sync() must come before the first such access")  # fmt: skip
        exited = self._m.batch.exited
        if exited is not None:
            running = (self._m.batch.lanes.root.full.grid() & ~exited).any(axis=1)
            late = across & ~running[owner - lanes.first]
            if any_of(late):
                first = int(np.argmax(late))
                whose = self._m.block_named(int(owner[first]))
                self._m.hazard(
                    "race", "shared", name, line, int(where[first]),
                    f"{{who}} {verb} an element of {{name}} in the shared memory of {whose}, which has ended: "
                    "cluster_sync() must come after the last such access",
                )  # fmt: skip
        shown, name = self._m.place.site or line, self._m.place.site.named(name) if self._m.place.site else name
        for each in np.unique(owner[across]).tolist():
            who = int(me[int(np.argmax(across & (owner == each)))])
            self._used[each] = clock.now + 1, who, int(shown), name

    def clusters_end(self, lanes: Lanes) -> None:
        """All blocks of these lanes, whole clusters, have ended."""
        self._blocks_end(lanes, np.ones(lanes.blocks, np.bool_))

    def _blocks_end(self, lanes: Lanes, which: np.ndarray) -> None:
        """Report blocks that may have ended while another one was still using their shared memory."""
        clock, width = self._clock, lanes.width
        for block in [each for each in self._used if 0 <= each - lanes.first < lanes.blocks]:
            if not which[block - lanes.first]:
                continue
            then, who, line, name = self._used.pop(block)
            if then < clock.cluster_barrier[block]:
                continue
            threads = range(block * width, (block + 1) * width) if clock.device is not None else ()
            if any(not clock.is_unordered(who, then, me) for me in threads):
                continue  # it has been told by a signal
            said = (
                f"{{who}} uses {{name}} in the shared memory of {self._m.block_named(block)}, which may have ended: "
                "cluster_sync() must come after the last such access"
            )
            self._m.hazard_of("race", "shared", name, line, self._m.thread_of(who), said)

    # -- cells and shadows -------------------------------------------------------------------------------------------

    def _touched(self, mask: Mask, storage: Storage, at: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each active lane: its cell, the thread's id, and the lane's flat position.

        Shared memory that every block so far used in the same way needs one row of cells for all blocks; the first
        access that differs between blocks gives each its own.  An element of several cells takes as many entries.
        """
        lanes, known = self._m.batch.lanes, storage.cells
        self._clock.here = lanes.root
        key = id(at), id(mask), id(storage), known.unit
        before = self._again.get(key)
        if before is not None:
            return before[0]
        if storage.space == "shared" and known.one_row:
            alike = np.ndim(at) == 0 or at.shape[0] == 1
            alike = alike and lanes is lanes.root
            if not (alike and self._alike and (mask.bits is None or mask.bits.shape[0] == 1)):
                self._split_rows(storage)
        if storage.space == "shared" and known.one_row:
            where, cells = mask.columns(), spread(at, (1, lanes.width))[0]
            if mask.bits is not None:
                cells = cells.take(as_intp(where))
            me = lanes.threads(where)
        else:
            where, (cells,) = mask.places(), selected(lanes, mask, flat_position(lanes, storage, at))
            me = mask.threads()
        parts = storage.values.itemsize // known.unit
        if parts > 1:
            step = storage.unit // known.unit
            cells = (cells[:, None] * step + np.arange(parts, dtype=np.int64)).reshape(-1)
            me, where = np.repeat(me, parts), np.repeat(where, parts)
        if storage.space == "global" and at.ndim:
            if len(self._again) >= _KEPT:
                self._again.clear()
            self._again[key] = (cells, me, where), at, mask, storage  # kept, so that nothing else gets their ids
        return cells, me, where

    def _split_rows(self, storage: Storage) -> None:
        known, blocks = storage.cells, storage.values.shape[0]
        shadow = self._shadow(storage)
        known.one_row = False
        if known.init is not None:
            known.init = np.repeat(known.init, blocks, axis=0)
        for name in ("in_flight", "mbarriers", "reader", "unfenced"):
            kept = getattr(known, name)
            if kept is not None:
                setattr(known, name, _rows(kept, blocks, self._m.batch.lanes.root.width))
        known.products = None if known.products is None else np.tile(known.products, blocks)
        shadow.repeat(blocks, self._m.batch.lanes.root.width)

    def _shadow(self, storage: Storage) -> Shadow:
        """The shadow of an allocation's cells, as fine as they are now."""
        known = storage.cells
        shadow = self._shadows.get(known)
        if shadow is None:
            rows = storage.values.shape[0] if known.one_row else 1
            size, keep = known.nbytes // rows // known.unit, self._m.launch.orders_some
            shadow = self._shadows[known] = Shadow(size, known.unit, keep)
        elif shadow.unit != known.unit:  # the allocation has been seen through a smaller type since
            shadow.refine(known.unit, self._m.batch.lanes.root.width)
        return shadow

    def _check_local(self, mask: Mask, storage: Storage, at: Value, name: str, line: int) -> None:
        init, everywhere = storage.init, storage.cells.everywhere
        if init is None or (at.ndim == 0 and int(at) in everywhere):
            return
        lanes = self._m.batch.lanes
        if at.ndim == 0 and lanes is storage.home and all_of(init[int(at)]):
            everywhere.add(int(at))
            return
        fresh = ~gather(lanes, storage, init, at)
        fresh = fresh if mask.bits is None else fresh & mask.bits
        if any_of(fresh):
            self._report_uninitialised(storage, name, line, lane_of(lanes, fresh))

    def _check_init(self, storage: Storage, cells: np.ndarray, where: np.ndarray, name: str, line: int) -> None:
        init = storage.init  # once: another thread's launch that reads this array may end meanwhile
        if init is not None:
            written = init.reshape(-1).take(as_intp(cells))
            if not all_of(written):
                self._report_uninitialised(storage, name, line, int(where[np.argmin(written)]))

    def last_write(self, storage: Storage, byte: int) -> tuple[int, int] | None:
        """The line of the last store or atomic to a byte of global memory, and the thread's id; None without one."""
        latest = (0, 0, 0)
        for part in storage.parts():
            shadow, size = self._shadows.get(part.cells), part.cells.unit
            step = min(part.unit, size)  # numbers in records may overlap
            for accesses in () if shadow is None else (shadow.written, shadow.updated):
                for cell in range(max(0, byte - size) // step, byte // step + 1):
                    if accesses is not None and cell * step <= byte < cell * step + size and cell < shadow.size:
                        stamp = accesses.last.item(cell)
                        time, thread = stamp >> 32, stamp & 0xFFFFFFFF
                        latest = max(latest, (time, thread, shadow.line_at(time) if stamp else 0))
        return (latest[2], latest[1]) if latest[0] else None

    # -- reports -----------------------------------------------------------------------------------------------------

    def _report_uninitialised(self, storage: Storage, name: str, line: int, lane: int) -> None:
        message = "{who} reads an element of {name} that nothing has written"
        self._m.hazard("uninitialised_read", storage.space, name, line, lane, message)

    def _report(self, race: Race, where: np.ndarray, storage: Storage, name: str, line: int, verb: str) -> None:
        lane, lanes = int(where[race.lane]), self._m.batch.lanes
        remedy, other = self._clock.reason(race.thread, race.time, int(lanes.threads(np.int64(lane))))
        remedy = remedy.replace("{other}", self._m.other_thread(other))
        earlier = f"{self._m.other_thread(race.thread)} {race.verb} on line {race.line}"
        message = f"{{who}} {verb} an element of {{name}} that {earlier}, with {remedy}"
        self._m.hazard("race", storage.space, name, line, lane, message)


def _cells_of(halves: np.ndarray, unit: int) -> np.ndarray:
    """The cells of `unit` bytes in which these 16-bit numbers of global memory lie, each once."""
    if unit == _HALF:
        return halves
    if unit > _HALF:
        return np.unique(halves * _HALF // unit)
    return (halves[:, None] * _HALF + np.arange(_HALF, dtype=np.int64)).reshape(-1)


def _of_halves(flags: np.ndarray, unit: int) -> np.ndarray:
    """What holds for 16-bit numbers, one after the other, for the cells of `unit` bytes that they make."""
    flat = flags.reshape(-1)
    if unit < _HALF:
        return np.repeat(flat, _HALF // unit)
    return flat if unit == _HALF else flat.reshape(-1, unit // _HALF).all(axis=1)


def _agree(cells: np.ndarray, me: np.ndarray, bits: np.ndarray) -> bool:
    """Whether all threads that write one cell write the same, cell by cell."""
    order = np.argsort(cells, kind="stable")
    cells, me, bits = cells[order], me[order], bits[order]
    first = np.append(True, cells[1:] != cells[:-1])
    group = np.cumsum(first, dtype=np.int64) - 1
    other, differs = (np.zeros(group[-1] + 1, np.bool_) for _ in range(2))
    begin = np.flatnonzero(first)[group]
    other[group[me != me[begin]]] = True
    differs[group[bits != bits[begin]]] = True
    return not any_of(other & differs)


def _who_tells_all(cells: np.ndarray, me: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Of threads that read one cell together those that a shadow remembers."""
    if me.size <= 4 or cells[0] != cells[-1]:
        return cells, me
    kept = as_intp(_who_tells(me, width))
    return cells.take(kept), me.take(kept)


def _who_tells(me: np.ndarray, width: int) -> np.ndarray:
    """Where they are: the last one, and the last of another thread, of another warp and of another block than that."""
    last = me.size - 1
    warp, block = me[last] // WARP * WARP, me[last] // width * width
    others = (int(np.searchsorted(me, first)) - 1 for first in (block, warp))
    return np.array(sorted({last, last - 1, *(k for k in others if k >= 0)}), np.int64)


def _rows(stamps: np.ndarray, blocks: int, width: int) -> np.ndarray:
    """Stamps of one row that stands for all blocks, as one row each, with each block's own threads."""
    shift = np.repeat(np.arange(blocks, dtype=np.int64) * width, stamps.size)
    stamps = np.tile(stamps, blocks)
    return np.where(stamps == 0, 0, stamps + shift)


def _same_in_all_blocks(mask: Mask) -> bool:
    if mask.of is not mask.of.root:
        return False
    return mask.bits is None or mask.bits.shape[0] == 1 or bool((mask.bits == mask.bits[0]).all())


def _bits(value: Value) -> np.ndarray:
    """The value's bits, so that NaN equals itself."""
    value = np.ascontiguousarray(value) if np.ndim(value) else np.full((1, 1), value)
    if value.dtype.kind in "iub":
        return value
    return value.view({2: np.uint16, 4: np.uint32, 8: np.uint64}.get(value.dtype.itemsize, value.dtype))
