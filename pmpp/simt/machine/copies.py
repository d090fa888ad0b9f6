"""Asynchronous copies: from global to shared memory, while the thread goes on.

What a copy brings lands in shared memory when its thread waits for it.  Until then the place holds poison, and the
sanitizers know that it is nobody's to read or to write, and that nobody may write where the copy reads.  Groups are
counted by threads: a copy belongs to the group that its thread commits next, and `wait(n)` lets all groups of a thread
land but its newest n.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmpp.simt.machine import memory
from pmpp.simt.machine.instructions import MEMORY
from pmpp.simt.machine.lanes import Mask, spread
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.storage import Storage, lane_of, poison, scatter
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
    sources: list[tuple[Mask, Storage, Value]]  # for the sanitizers, what these lanes read
    line: int


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
    names: tuple[str, str, str],
    line: int,
) -> None:
    """Start to copy `count` elements, and zeros behind them, to 16 bytes of shared memory.

    The names are those of the instruction, of the shared array and of the other.
    """
    shared, where = target
    instruction, target_name, source_name = names
    each = BYTES // shared.dtype.itemsize
    wrong = (count < 0) | (count > each)
    wrong = wrong if mask.bits is None else wrong & mask.bits
    if np.any(wrong):
        lane = lane_of(m.batch.lanes, wrong)
        counts = spread(count, (m.batch.lanes.blocks, m.batch.lanes.width)).reshape(-1)
        takes = f"16 bytes are 0 to {each} elements of {shared.dtype}"
        raise m.error(f"{instruction}: count is {counts[lane]}; {takes}", line)
    m.writes += 1
    if m.pending:
        m.settle_one(shared.storage)
    where = memory.as_index(m, where, target_name)
    first, mask = memory.aligned_position(m, mask, shared, where, BYTES, target_name, line)
    if mask is None:
        return
    elements, sources = _read(m, mask, source, count, each, source_name, line)
    if m.counts is not None:
        m.access("store", line, first, mask, BYTES, shared.storage, target_name, of="copy")
    copies = _copies(m)
    shown = m.place.site or line
    copy = Copy(mask, shared.storage, first, elements, copies.committed.copy(), target_name, sources, shown)
    for storage, at, value in _pieces(copy._replace(elements=poison(elements.shape, elements.dtype))):
        if m.checks is not None:
            m.checks.copy_begins(mask, storage, at, target_name, line)
        scatter(m.batch.lanes, storage, mask, at, value)
    copies.under_way.append(copy)


def _read(
    m: Machine, mask: Mask, source: tuple[Array, Value], count: Value, each: int, name: str, line: int
) -> tuple[np.ndarray, list[tuple[Mask, Storage, Value]]]:
    """What each lane copies: (blocks, width, elements); poison where it must not read.  And what is read, for later."""
    array, index = source
    lanes, storage = m.batch.lanes, array.storage
    shape = (lanes.blocks, lanes.width)
    count, index = spread(count, shape).astype(np.int64), spread(memory.as_index(m, index, name), shape)
    out = np.zeros((*shape, each), array.dtype)
    wanted, _ = mask.split(count > 0)
    sources: list[tuple[Mask, Storage, Value]] = []
    if m.counts is not None:
        m.counts.instruction(line, mask, MEMORY)
    if wanted is None:
        return out, sources
    if m.pending:
        m.settle_one(storage)
    m.reads += 1
    flat, literal = Array(storage, array.dtype, (array.size(),), (1,), array.offset), (memory.FLAT,)
    first, inside = memory.position(m, wanted, flat, (index,), name, line, literal)
    if inside is not None:
        _, inside = memory.position(m, inside, flat, (index + np.maximum(count, 1) - 1,), name, line, literal)
    lost = wanted.grid() if inside is None else wanted.grid() & ~inside.grid()
    out[lost] = poison((1,), array.dtype)
    if inside is None:
        return out, sources
    memory.refuse_misaligned(m, inside, array, index, first, BYTES, name, line)
    if m.counts is not None:
        m.access("load", line, first, inside, BYTES, storage, name, of="copy")
    if m.checks is not None:
        whole, parts = inside.split(count == each)
        if whole is not None:
            sources += [(whole, part, at) for part, at in memory.in_words(storage, first, each)]
        for k in range(each) if parts is not None else ():
            some, _ = parts.split(count > k)
            if some is not None:
                sources.append((some, storage, first + np.int64(k)))
        for these, part, at in sources:
            m.checks.read(these, part, at, name, line)
    inner = np.arange(each, dtype=np.int64)
    bits = inside.grid()[:, :, None] & (inner < count[:, :, None])
    places = np.broadcast_to(spread(first, shape)[:, :, None] + inner, bits.shape)
    out[bits] = storage.values.reshape(-1).take(as_intp(places[bits]))
    return out, sources


def commit(m: Machine, mask: Mask) -> None:
    """Make a group of the copies that each thread has started."""
    _copies(m).committed += mask.grid()


def wait(m: Machine, mask: Mask, newest: int, line: int) -> None:
    """Let all groups of these threads land but the newest."""
    copies, rest = _copies(m), []
    for copy in copies.under_way:
        due = mask.grid() & (copy.group < copies.committed - newest)
        if (due == due[0]).all():
            due = due[:1]  # the same in every block
        landed, others = copy.mask.split(due)
        if landed is not None and landed.lanes:
            for storage, at, value in _pieces(copy):
                if m.checks is not None:
                    m.checks.copy_lands(landed, storage, at, line)
                scatter(m.batch.lanes, storage, landed, at, value)
            for these, storage, at in copy.sources:
                read, _ = (these, None) if others is None else these.split(landed.grid())
                if read is not None:
                    m.checks.source_was_read(read, storage, at, copy.line)
        if others is not None:
            split = copy.sources if landed is None else _of_lanes(copy.sources, others)
            rest.append(copy._replace(mask=others, sources=split))
    copies.under_way = rest


def _of_lanes(sources: list[tuple[Mask, Storage, Value]], lanes: Mask) -> list[tuple[Mask, Storage, Value]]:
    """What those of the lanes read."""
    found = [(these.split(lanes.grid())[0], storage, at) for these, storage, at in sources]
    return [each for each in found if each[0] is not None]


def _pieces(copy: Copy) -> list[tuple[Storage, Value, np.ndarray]]:
    """Where a copy puts what: one wide element a lane, where the array can be seen as such."""
    places = memory.in_words(copy.storage, copy.first, copy.elements.shape[2])
    values = copy.elements.view(places[0][0].values.dtype)
    return [(storage, at, values[:, :, k]) for k, (storage, at) in enumerate(places)]
