"""The sanitizers of level "check" for loads, stores and atomics: races, and reads of what nobody wrote."""

from __future__ import annotations

import numpy as np

from pmpp.simt.dtypes import Value
from pmpp.simt.lanes import Mask
from pmpp.simt.machine import Machine
from pmpp.simt.shadow import Race, Shadow
from pmpp.simt.storage import Storage, flat_position, gather, lane_of, scatter, selected


def check_read(m: Machine, mask: Mask, storage: Storage, at: Value, name: str, line: int) -> None:
    """Report a read of what nobody wrote, or of what another thread may be writing now."""
    if storage.space == "local":
        _check_local(m, mask, storage, at, name, line)
    elif storage.writeable and storage.space != "const":
        cells, me, where = _touched(m, mask, storage, at)
        _check_init(m, storage, cells, where, name, line)
        m.clock.tick()
        race = _shadow(storage).on_read(m.clock, cells, me, m.site or line, _floor(m, storage), m.lanes.width)
        if race is not None:
            _report(m, race, where, storage, name, line, "reads")


def checked_write(m: Machine, mask: Mask, storage: Storage, at: Value, value: Value, name: str, line: int) -> None:
    """Store, and report what another thread may be reading or writing now."""
    if storage.space == "local":
        if storage.init is not None:
            if at.ndim == 0:
                np.copyto(storage.init[int(at)], True, where=True if mask.bits is None else mask.bits)
            else:
                storage.init.reshape(-1)[selected(m, mask, flat_position(m, storage, at))[0]] = True
        scatter(m, storage, mask, at, value)
        return
    cells, me, where = _touched(m, mask, storage, at)
    if storage.init is not None:
        storage.init.reshape(-1)[cells] = True

    def same() -> np.ndarray:
        full = _bits(gather(m, storage, storage.values, at)) == _bits(value)
        full = np.broadcast_to(full, (m.lanes.blocks, m.lanes.width))
        return full.all(axis=0)[where] if storage.cells.one_row else full.reshape(-1)[where]

    m.clock.tick()
    races, several = _shadow(storage).on_write(
        m.clock, cells, me, m.site or line, _floor(m, storage), m.lanes.width, same
    )
    for race in races:
        _report(m, race, where, storage, name, line, "writes")
    scatter(m, storage, mask, at, value)
    if several:
        lost = _bits(gather(m, storage, storage.values, at)) != _bits(value)
        lost = lost if mask.bits is None else lost & mask.bits
        if lost.any():
            m.hazard(
                "race", storage.space, name, line, lane_of(m, lost),
                "{who} and another thread write different values to the same element of {name} in one statement",
            )  # fmt: skip


def check_update(m: Machine, mask: Mask, storage: Storage, at: Value, name: str, line: int) -> None:
    """Report an atomic on what nobody wrote, or on what another thread may be accessing otherwise now."""
    if storage.space == "local":
        _check_local(m, mask, storage, at, name, line)
        return
    cells, me, where = _touched(m, mask, storage, at)
    if storage.init is not None:
        _check_init(m, storage, cells, where, name, line)
        storage.init.reshape(-1)[cells] = True
    m.clock.tick()
    races = _shadow(storage).on_update(m.clock, cells, me, m.site or line, _floor(m, storage), m.lanes.width)
    for race in races[:1]:
        _report(m, race, where, storage, name, line, "updates")


def _floor(m: Machine, storage: Storage) -> int:
    """A time before which every access to the storage is ordered before all that is to come."""
    if storage.space == "shared":
        first = m.lanes.first
        return int(m.clock.block_barrier[first : first + m.lanes.blocks].min())
    return m.clock.grid_barrier


def _touched(m: Machine, mask: Mask, storage: Storage, at: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each active lane: its cell, the thread's id, and the lane's flat position.

    Shared memory that every block so far used in the same way needs one row of cells for all blocks; the first access
    that differs between blocks gives each its own.  An element of several cells takes as many entries.
    """
    lanes, known = m.lanes, storage.cells
    if storage.space == "shared" and known.one_row:
        alike = np.ndim(at) == 0 or at.shape[0] == 1
        if not (alike and m.blocks_alike and (mask.bits is None or mask.bits.shape[0] == 1)):
            _split_rows(m, storage)
    if storage.space == "shared" and known.one_row:
        columns = lanes.linear_thread[0]
        if mask.bits is not None:
            columns = np.flatnonzero(np.broadcast_to(mask.bits[0], lanes.width))
        cells, me, where = (
            np.broadcast_to(at, (1, lanes.width))[0, columns],
            lanes.first * lanes.width + columns,
            columns,
        )
    else:
        ids = lanes.block_row * lanes.width + lanes.linear_thread
        cells, where = selected(m, mask, flat_position(m, storage, at), ids)
        me = where + lanes.first * lanes.width
    parts = storage.values.itemsize // known.unit
    if parts > 1:
        cells = (cells[:, None] * parts + np.arange(parts)).reshape(-1)
        me, where = np.repeat(me, parts), np.repeat(where, parts)
    return cells, me, where


def _split_rows(m: Machine, storage: Storage) -> None:
    known, blocks = storage.cells, storage.values.shape[0]
    known.one_row = False
    if known.init is not None:
        known.init = np.repeat(known.init, blocks, axis=0)
    if known.shadow is not None:
        known.shadow.repeat(blocks, m.lanes.width)


def _shadow(storage: Storage) -> Shadow:
    known = storage.cells
    if known.shadow is None:
        elements = storage.values.shape[1] if known.one_row else storage.values.size
        known.shadow = Shadow(elements * (storage.values.itemsize // known.unit))
    return known.shadow


def _check_local(m: Machine, mask: Mask, storage: Storage, at: Value, name: str, line: int) -> None:
    if storage.init is not None:
        fresh = ~gather(m, storage, storage.init, at)
        fresh = fresh if mask.bits is None else fresh & mask.bits
        if fresh.any():
            _report_uninitialised(m, storage, name, line, lane_of(m, fresh))


def _check_init(m: Machine, storage: Storage, cells: np.ndarray, where: np.ndarray, name: str, line: int) -> None:
    if storage.init is not None:
        written = storage.init.reshape(-1)[cells]
        if not written.all():
            _report_uninitialised(m, storage, name, line, int(where[np.argmin(written)]))


def _report_uninitialised(m: Machine, storage: Storage, name: str, line: int, lane: int) -> None:
    message = "{who} reads an element of {name} that nothing has written"
    m.hazard("uninitialised_read", storage.space, name, line, lane, message)


def _report(m: Machine, race: Race, where: np.ndarray, storage: Storage, name: str, line: int, verb: str) -> None:
    lane = int(where[race.lane])
    here = race.thread // m.lanes.width == m.lanes.first + lane // m.lanes.width
    remedy = "no barrier in between" if here else "nothing that orders the two blocks"
    earlier = f"{m.other_thread(race.thread)} {race.verb} on line {race.line}"
    message = f"{{who}} {verb} an element of {{name}} that {earlier}, with {remedy}"
    m.hazard("race", storage.space, name, line, lane, message)


def _bits(value: Value) -> np.ndarray:
    """The value's bits, so that NaN equals itself."""
    value = np.ascontiguousarray(value) if np.ndim(value) else np.full((1, 1), value)
    if value.dtype.kind in "iub":
        return value
    return value.view({2: np.uint16, 4: np.uint32, 8: np.uint64}.get(value.dtype.itemsize, value.dtype))
