"""Asynchronous copies: from global to shared memory, while the thread goes on.

What a copy brings lands in shared memory when its thread waits for it.  Until then the place holds poison, and the
sanitizers know that it is nobody's to read or to write.  Groups are counted by threads: a copy belongs to the group
that its thread commits next, and `wait(n)` lets all groups of a thread land but its newest n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmpp.simt.machine import memory
from pmpp.simt.machine.lanes import Mask, spread
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.storage import Storage, lane_of, poison
from pmpp.simt.values.dtypes import Value, as_intp

BYTES = 16


class Copy(NamedTuple):
    """One copy of some lanes that has not landed: what, where to, and the group of each lane that it belongs to."""

    mask: Mask
    storage: Storage
    first: Value
    elements: np.ndarray
    group: np.ndarray
    name: str


class Copies:
    """The copies that the threads of a batch have under way, oldest first."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.under_way: list[Copy] = []
        self.committed = np.zeros(shape, np.int64)  # groups of each thread


def _copies(m: Machine) -> Copies:
    if m.batch.copies is None:
        m.batch.copies = Copies((m.batch.lanes.blocks, m.batch.lanes.width))
    return m.batch.copies


def begin(
    m: Machine,
    mask: Mask,
    target: tuple[Array, Value],
    source: tuple[Array, Value],
    count: Value,
    names: tuple[str, str],
    line: int,
) -> None:
    """Start to copy `count` elements, and zeros behind them, to 16 bytes of shared memory."""
    shared, where = target
    each = BYTES // shared.dtype.itemsize
    wrong = (count < 0) | (count > each)
    wrong = wrong if mask.bits is None else wrong & mask.bits
    if np.any(wrong):
        lane = lane_of(m.batch.lanes, wrong)
        counts = spread(count, (m.batch.lanes.blocks, m.batch.lanes.width)).reshape(-1)
        raise m.error(f"copy_async: count is {counts[lane]}; 16 bytes are 0 to {each} elements of {shared.dtype}", line)
    m.writes += 1
    first, mask = memory.aligned_position(m, mask, shared, memory.as_index(m, where, names[0]), BYTES, names[0], line)
    if mask is None:
        return
    elements = _read(m, mask, source, count, each, names[1], line)
    if m.counts is not None:
        m.access("store", line, first, mask, BYTES, shared.storage, names[0])
    _put(m, mask, shared.storage, first, np.broadcast_to(poison((1,), shared.dtype), elements.shape), names[0], line)
    copies = _copies(m)
    copies.under_way.append(Copy(mask, shared.storage, first, elements, copies.committed.copy(), names[0]))


def _read(
    m: Machine, mask: Mask, source: tuple[Array, Value], count: Value, each: int, name: str, line: int
) -> np.ndarray:
    """What each lane copies: (blocks, width, elements)."""
    array, index = source
    lanes, storage = m.batch.lanes, array.storage
    grid = (lanes.blocks, lanes.width)
    count, index = spread(count, grid).astype(np.int64), spread(memory.as_index(m, index, name), grid)
    out = np.zeros((*grid, each), array.dtype)
    some, _ = mask.split(count > 0)
    if some is None:
        return out
    if m.pending:
        m.settle_one(storage)
    flat = Array(storage, array.dtype, (array.size(),), (1,), array.offset)
    for k in range(each):  # all of a row, or as many elements as a lane has
        part, _ = some.split(count > k)
        if part is None:
            break
        at, part = memory.position(m, part, flat, (index + np.int64(k),), name, line, (False,))
        if part is None:
            break
        if k == 0:
            memory.refuse_misaligned(m, part, array, index, at, BYTES, name, line)
            if m.counts is not None:
                m.access("load", line, at, part, BYTES, storage, name)
        if m.checks is not None:
            m.checks.read(part, storage, at, name, line)
        bits = part.grid()
        out[:, :, k][bits] = storage.values.reshape(-1).take(as_intp(spread(at, grid)[bits]))
    return out


def commit(m: Machine, mask: Mask) -> None:
    """Make a group of the copies that each thread has started."""
    _copies(m).committed += mask.grid()


def wait(m: Machine, mask: Mask, newest: int, line: int) -> None:
    """Let all groups of these threads land but the newest."""
    copies, rest = _copies(m), []
    for copy in copies.under_way:
        due = mask.grid() & (copy.group < copies.committed - newest)
        landed, others = copy.mask.split(due) if due.any() else (None, copy.mask)
        if landed is not None:
            _put(m, landed, copy.storage, copy.first, copy.elements, copy.name, line)
        if others is not None:
            rest.append(copy._replace(mask=others))
    copies.under_way = rest


def _put(m: Machine, mask: Mask, storage: Storage, first: Value, elements: np.ndarray, name: str, line: int) -> None:
    """Put the elements of each lane where they belong."""
    count = elements.shape[2]
    for k in range(count):
        memory.write(m, mask, storage, first + np.int64(k), elements[:, :, k], name, line)
