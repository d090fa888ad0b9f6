"""Storage: one allocation, and what is known of each of its elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pmpp.simt.machine.lanes import Few, Lanes, Mask, spread
from pmpp.simt.values import records
from pmpp.simt.values.dtypes import Value, as_intp

#: What memory that nobody wrote holds here: NaN, or a large negative number, so that reading it shows.
POISON_BYTE = 0xFF


def poison(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory that nobody wrote: NaN in floats, -1 or the largest value in integers."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(POISON_BYTE)
    return array


class Cells:
    """Which parts of an allocation somebody has written, cell by cell.

    A cell is `unit` bytes, an element of the smallest type through which the allocation is seen.
    """

    __slots__ = (
        "__weakref__", "everywhere", "in_flight", "init", "mbarriers", "nbytes", "one_row", "products", "reader",
        "unfenced", "unit",
    )  # fmt: skip

    def __init__(self, unit: int, init: np.ndarray | None, nbytes: int, *, one_row: bool = False) -> None:
        self.unit, self.init, self.nbytes = unit, init, nbytes
        self.everywhere: set[int] = set()  # local memory: elements that every thread is known to have written
        self.one_row = one_row  # shared memory: one row of cells stands for all blocks
        # Of cells into which an asynchronous copy is under way, whose; less than 0: the number of the last bulk copy.
        self.in_flight: np.ndarray | None = None
        self.products: np.ndarray | None = None  # how many products under way read each cell,
        self.reader: np.ndarray | None = None  # and whose was the last to begin
        self.unfenced: np.ndarray | None = None  # of cells that products of tiles cannot see yet, who wrote them
        self.mbarriers: np.ndarray | None = None  # of cells that are mbarriers, who initialised them

    def refine(self, unit: int) -> None:
        """Make cells no larger than `unit` bytes."""
        parts = self.unit // unit
        if parts > 1:
            self.unit = unit
            self.init = None if self.init is None else np.repeat(self.init, parts, axis=-1)
            for name in ("in_flight", "mbarriers", "products", "reader", "unfenced"):
                kept = getattr(self, name)
                setattr(self, name, None if kept is None else np.repeat(kept, parts))


class Storage:
    """One allocation in one memory space, as elements of one type.

    The array `values` has the shape

        global, const   (N,)       one copy
        shared          (B, N)     one copy a block of the batch
        cluster         (B * N,)   the same memory, where blocks of a cluster use one another's
        local           (N, B, T)  one copy a thread

    Where several types see the same bytes, each has its storage and all share `cells`.  Records are accessed through
    their `leaves`: the same memory as numbers of one type, which have cells of their own.

    `crooked` says that an element may lie at an address that a GPU cannot load it from.
    """

    __slots__ = (
        "__weakref__", "aligned", "cells", "crooked", "home", "layout", "leaves", "name", "phase", "real_parts",
        "space", "start", "unit", "values", "whole", "writeable",
    )  # fmt: skip

    def __init__(
        self,
        space: str,
        values: np.ndarray,
        *,
        name: str = "",
        init: np.ndarray | None = None,
        cells: Cells | None = None,
        unit: int = 0,
        layout: np.dtype | None = None,
        home: Lanes | None = None,
        phase: int = 0,
        start: int = 0,
        aligned: int = 0,
    ) -> None:
        self.space, self.values, self.name = space, values, name
        self.home = home  # of a local array: the lanes (B, T) that it was made for
        self.unit = unit or values.dtype.itemsize  # bytes from one position to the next
        self.layout = layout or values.dtype  # what it holds, where `values` are but its bytes
        self.leaves: dict[Any, Storage] = {}  # by type; what a kernel's view() made, by type and unit
        self.writeable = values.flags.writeable
        self.cells = cells or Cells(values.itemsize, init, values.nbytes, one_row=space == "shared")
        self.phase = phase  # of records: what divides the bytes at which one can begin; 0: those of an array from 0 on
        self.start = start  # of a static shared array: the byte of the block's shared memory where a GPU has it
        self.aligned = aligned  # of a shared array: its first byte is at a multiple of so many on every GPU; 0: unknown
        self.crooked = layout is None and self.unit % records.alignment(values.dtype) != 0
        self.real_parts: Storage | None = None
        self.whole: Storage | None = None

    def as_real(self) -> Storage:
        """The same bytes as real numbers, two for each complex one."""
        if self.real_parts is None:
            unit = self.values.itemsize // 2
            self.cells.refine(unit)
            self.real_parts = Storage(self.space, self.values.view(f"f{unit}"), name=self.name, cells=self.cells)
            self.real_parts.whole = self
        return self.real_parts

    @property
    def init(self) -> np.ndarray | None:
        """Which cells somebody wrote; None if all are."""
        return self.cells.init

    @init.setter
    def init(self, written: np.ndarray | None) -> None:
        self.cells.init = written

    def leaf(self, dtype: np.dtype) -> Storage:
        """The numbers of one type in memory that holds records."""
        found = self.leaves.get(dtype)
        if found is None:
            unit = math.gcd(records.unit(self.layout, dtype), self.phase)
            if self.space == "local":  # each number of each thread lies for itself
                extent, *lanes = self.values.shape
                values = poison((extent * self.layout.itemsize // unit, *lanes), dtype)
            else:
                values = records.overlapping(self.values.view(np.uint8), dtype, unit)
            shape = (1, values.shape[1]) if self.space == "shared" else values.shape
            init = None if self.init is None else np.zeros(shape, np.bool_)
            found = self.leaves[dtype] = Storage(self.space, values, name=self.name, init=init, unit=unit,
                                                  home=self.home, start=self.start, aligned=self.aligned)  # fmt: skip
            found.writeable = self.writeable or self.space == "local"
            # Numba loads the fields of a record by bytes, unless its dtype promises that they are aligned.
            found.crooked = found.crooked and self.layout.isalignedstruct
        return found

    def parts(self) -> tuple[Storage, ...]:
        """This storage and its leaves."""
        return (self, *self.leaves.values())

    def put_back(self, few: Few) -> None:
        """Local memory that a short batch made: from now on it is that of the lanes from which the batch was taken."""
        around = few.around
        for part in self.parts():
            full = (part.values.shape[0], around.blocks, around.width)
            if records.is_record(part.layout):
                values = np.broadcast_to(np.uint8(0), full)
            else:
                values = poison(full, part.values.dtype)
                values.reshape(full[0], -1, few.width)[:, few.rows] = part.values
            init = part.init
            if init is not None:
                written = np.zeros(full, np.bool_)
                written.reshape(full[0], -1, few.width)[:, few.rows] = init
                part.init = written
            part.values, part.home = values, around
            part.cells.everywhere.clear()

    def written(self) -> None:
        """From now on all of it counts as written."""
        for part in self.parts():
            part.init = None

    def contents(self) -> tuple:
        """A copy of what is here and what of it counts as written."""
        inits = {kind: part.init for kind, part in ((None, self), *self.leaves.items())}
        kept = {kind: None if init is None else init.copy() for kind, init in inits.items()}
        return self.values.copy() if self.writeable else self.values, kept

    def restore(self, contents: tuple) -> None:
        """Put back what `contents` kept."""
        values, inits = contents
        if not self.writeable:
            return
        self.values[...] = values
        self.leaves = {kind: part for kind, part in self.leaves.items() if kind in inits}
        for kind, part in ((None, self), *self.leaves.items()):
            part.init = None if inits[kind] is None else inits[kind].copy()

    def launch_ended(self, *, checked: bool) -> None:
        """After a launch that did not keep track of writes, or once all is written, all counts as written."""
        init = self.init
        if init is not None and (not checked or init.all()):
            self.written()

    def mark_written(self, view: np.ndarray) -> None:
        """The host has written the elements of a view of `values`."""
        init = self.init
        if init is None or not view.size:
            return
        if records.is_record(self.layout):
            self.written()
            return
        if not np.may_share_memory(view, self.values):  # a copy that a list of indices made
            self.init = None
            return
        parts = self.values.itemsize // self.cells.unit
        start = view.__array_interface__["data"][0] - self.values.__array_interface__["data"][0]
        offset = start // self.cells.unit
        strides = [s // self.cells.unit for s in view.strides]
        np.ndarray((*view.shape, parts), np.bool_, init, offset, (*strides, 1))[...] = True
        if init.all():
            self.init = None


def add_up(storage: Storage, postponed: list[tuple]) -> None:
    """Apply postponed floating-point atomics, block by block, so that the sum does not depend on the batch.

    postponed   (ufunc, positions, operands, blocks), in the order in which they were executed
    """
    for ufunc in {entry[0] for entry in postponed}:
        entries = [entry for entry in postponed if entry[0] is ufunc]
        at, values, block = (np.concatenate([entry[i] for entry in entries]) for i in (1, 2, 3))
        if len(entries) > 1:
            order = np.argsort(block, kind="stable")
            at, values = at[order], values[order]
        ufunc.at(storage.values, at, values)


def flat_position(lanes: Lanes, storage: Storage, at: Value) -> Value:
    """Position in the storage's flattened array: shared and local memory have one copy a block or thread."""
    if storage.space == "shared":
        return at + lanes.block_row * storage.values.shape[1]
    if storage.space == "local":
        return at * storage.home.size + lanes.places_in(storage.home)
    return at


def gather(lanes: Lanes, storage: Storage, source: np.ndarray, at: Value) -> Value:
    """One element a lane of the storage's values, or of an array of the same shape."""
    if storage.space == "shared":
        if lanes is not lanes.root:
            return source.reshape(-1).take(as_intp(flat_position(lanes, storage, at)))
        if at.ndim == 0:
            k = int(at)
            return source[:, k : k + 1].copy()
        if at.shape[0] == 1:
            return source.take(as_intp(at[0]), axis=1)
        return source.reshape(-1).take(as_intp(flat_position(lanes, storage, at)))
    if storage.space == "local":
        if at.ndim == 0 and lanes is storage.home:
            return source[int(at)].copy()
        return source.reshape(-1).take(as_intp(flat_position(lanes, storage, at)))
    return source[int(at)] if at.ndim == 0 else source.take(as_intp(at))


def selected(lanes: Lanes, mask: Mask, *values: Value) -> list[np.ndarray]:
    """Each value in the active lanes only, as flat arrays in lane order."""
    shape = (lanes.blocks, lanes.width)
    if mask.bits is None:
        return [spread(v, shape).reshape(-1) for v in values]
    places = as_intp(mask.places())
    return [spread(v, shape).reshape(-1).take(places) for v in values]


def scatter(lanes: Lanes, storage: Storage, mask: Mask, at: Value, value: Value) -> None:
    """Store one element a lane; where several lanes store to one element, the last wins."""
    target = storage.values
    if lanes.size == 1 and storage.space == "global":
        target[at.item()] = value if value.ndim == 0 else value.reshape(-1)[0]
        return
    if (
        storage.space == "shared" and at.ndim and at.shape[0] == 1 and (mask.bits is None or mask.bits.shape[0] == 1)
        and lanes is lanes.root
    ):  # fmt: skip
        columns = spread(at[0], (lanes.width,))
        if mask.bits is not None:
            on = as_intp(mask.columns())
            columns = columns.take(on)
            value = value.take(on, axis=1) if value.ndim and value.shape[1] > 1 else value
        target[:, columns] = value
        return
    if storage.space == "local" and at.ndim == 0 and lanes is storage.home:
        where = True if mask.bits is None else mask.bits
        np.copyto(target[int(at)], value, where=where)
        return
    positions, values = selected(lanes, mask, flat_position(lanes, storage, at), value)
    target.reshape(-1)[positions] = values


def lane_of(lanes: Lanes, bad: np.ndarray) -> int:
    """Flat position of the first lane where `bad` holds."""
    return int(np.argmax(np.broadcast_to(bad, (lanes.blocks, lanes.width))))
