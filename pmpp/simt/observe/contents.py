"""What memory holds while a launch runs, change by change: what a trace keeps so that a launch can be stepped through.

Contents are compared after every access that may have written, not taken from the values that are stored: so what
atomics and views of another type change is seen, too.  That is for small launches.  `simt.Tracing(contents=n)` asks
for it, for arrays of at most n elements.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.storage import Storage, add_up
from pmpp.simt.values.errors import Hazard


@dataclass(frozen=True, eq=False)
class Held:
    """An array whose contents a trace keeps.

    name    the parameter's name, or for shared memory the array as the source calls it where it is first used
    space   "global" or "shared"; `block` is the number of the block in shared memory, None in global memory
    start   its contents, in its shape, before the first access
    unset   bool, in its shape: the elements that nobody had written by then
    """

    name: str
    space: str
    block: int | None
    start: np.ndarray
    unset: np.ndarray
    _bytes: np.ndarray = field(repr=False)  # where each element begins in the allocation, ascending
    _order: np.ndarray = field(repr=False)  # the flat index of each of these elements

    def _flat(self) -> np.ndarray:
        """Where each element begins, in the order of its flat index."""
        return self._bytes[np.argsort(self._order, kind="stable")]

    def elements(self, addresses: np.ndarray, width: int) -> np.ndarray:
        """Flat indices of the elements in `width` bytes from each address, a row each; -1 outside of this array."""
        size = self.start.itemsize
        wanted = np.asarray(addresses, np.int64)[:, None] + np.arange(0, max(width, 1), size, dtype=np.int64)
        at = np.searchsorted(self._bytes, wanted, side="right") - 1
        inside = (at >= 0) & (wanted < self._bytes[at] + size)
        return np.where(inside, self._order[at], -1)


@dataclass(frozen=True, eq=False)
class Change:
    """What one access changed: the access's sequence number, the array's place in the list, flat indices, new values.

    An element that was written with the value that it had is no change.
    """

    sequence: int
    array: int
    elements: np.ndarray
    values: np.ndarray


class Contents:
    """What the memory of a launch's traced blocks held.

    arrays    those that were kept, in the order in which they came up: the arguments first
    omitted   the names of those that have too many elements, or records for elements
    changes   in the order of execution
    hazards   (sequence number of the access or step under way, Hazard)
    returned  (sequence number, {block: (threads,) bool}): lanes that had returned from the kernel after that event
    """

    def __init__(self, m: Machine, blocks: Sequence[int], most: int) -> None:
        self._m, self._blocks, self._most = m, blocks, most
        self.arrays: list[Held] = []
        self.omitted: list[str] = []
        self.changes: list[Change] = []
        self.hazards: list[tuple[int, Hazard]] = []
        self.returned: list[tuple[int, dict[int, np.ndarray]]] = []
        self._live: list[Callable[[], np.ndarray]] = []  # what each of the arrays holds now, flat
        self._last: list[np.ndarray] = []
        self._of: dict[tuple[int, int | None], list[int]] = {}  # (id of a storage, block): which arrays
        self._storages: list[Storage] = []  # kept alive, so that no id is used twice
        self._may_have_written = False
        self._exited: np.ndarray | None = None
        for name, value in m.launch.arguments.items():
            self._argument(name, value)

    # -- what is kept ------------------------------------------------------------------------------------------------

    def _argument(self, name: str, value: object) -> None:
        if isinstance(value, tuple):
            for i, part in enumerate(value):
                self._argument(f"{name}[{i}]", part)
        elif isinstance(value, Array):
            if value.is_record or not value.ndim or not 0 < value.size() <= self._most:
                self.omitted.append(name)
                return
            storage, size = value.storage, value.dtype.itemsize
            where = np.full(value.shape, int(value.offset), np.int64)
            for axis, (extent, stride) in enumerate(zip(value.shape, value.strides, strict=True)):
                steps = np.arange(extent, dtype=np.int64) * stride
                where += steps.reshape([-1 if k == axis else 1 for k in range(value.ndim)])
            at = where.reshape(-1)
            known = [self.arrays[k] for k in self._of.get((id(storage), None), ())]
            first = at * storage.unit
            if any(held.start.shape == value.shape and np.array_equal(held._flat(), first) for held in known):
                return  # the same view once more
            unset = np.zeros(value.shape, np.bool_)
            if storage.init is not None and storage.cells.unit == storage.unit == size:
                unset = ~storage.init.reshape(-1)[at].reshape(value.shape)

            def live() -> np.ndarray:
                values = storage.values
                if storage in self._m.pending:  # atomics that the machine has postponed, and will not hurry for us
                    values = values.copy()
                    add_up(types.SimpleNamespace(values=values), self._m.pending[storage])
                return values[at]

            self._hold(name, storage, None, value, first, live, unset)

    def _hold(
        self,
        name: str,
        storage: Storage,
        block: int | None,
        array: Array,
        at: np.ndarray,
        live: Callable,
        unset: object,
    ) -> None:
        now, order = live(), np.argsort(at, kind="stable")
        start = now.reshape(array.shape)
        names = {held.name for held in self.arrays if held.block == block}
        name = next(n for n in itertools.chain([name], (f"{name} ({k})" for k in itertools.count(2))) if n not in names)
        held = Held(name, storage.space, block, start, unset, at[order], order)
        self._storages.append(storage)
        self._of.setdefault((id(storage), block), []).append(len(self.arrays))
        self.arrays.append(held)
        self._live.append(live)
        self._last.append(now.copy())

    def _shared(self, storage: Storage, name: str) -> None:
        """Keep an array in shared memory, of each traced block that is under way, when it is first used."""
        lanes = self._m.batch.lanes
        found = [a for a in self._m.batch.shared.values() if isinstance(a, Array) and a.storage is storage]
        array = found[0] if found else Array(storage, storage.values.dtype, storage.values.shape[1:], (1,))
        for block in self._blocks:
            row = block - lanes.first
            if not 0 <= row < lanes.blocks or (id(storage), block) in self._of:
                continue
            self._of[id(storage), block] = []
            if not found or array.is_record or not 0 < math.prod(array.shape) <= self._most:
                if name not in self.omitted:
                    self.omitted.append(name)
                self._storages.append(storage)
                continue
            size, count = array.dtype.itemsize, math.prod(array.shape)
            at = np.arange(count, dtype=np.int64) * size
            others = [other for other in self._storages if other is not storage]
            again = any(np.may_share_memory(storage.values[row], other.values) for other in others)

            def live(row: int = row, count: int = count) -> np.ndarray:
                return storage.values[row, :count].copy()

            self._hold(name, storage, block, array, at, live, np.full(array.shape, not again, np.bool_))

    # -- what happens ------------------------------------------------------------------------------------------------

    def accessed(self, storage: Storage, kind: str, name: str) -> None:
        """An access is about to happen, to an array that the source calls by this name there."""
        if storage.space == "shared":
            self._shared(storage, name)
        self._may_have_written |= kind != "load"

    def held(self, storage: int, block: int | None) -> list[int]:
        """The arrays that lie in a storage, by its id; `block` is None for global memory."""
        return self._of.get((storage, block), [])

    def settle(self, sequence: int) -> list[np.ndarray]:
        """The event of this number is over: keep what it has changed.  Returns the arrays that this takes."""
        kept: list[np.ndarray] = []
        if self._may_have_written:
            self._may_have_written = False
            for k, (live, last) in enumerate(zip(self._live, self._last, strict=True)):
                now = live()
                differs = (now.view(np.uint8) != last.view(np.uint8)).reshape(now.size, -1).any(axis=1)
                if differs.any():
                    elements = np.flatnonzero(differs)
                    self.changes.append(Change(sequence, k, elements, now[elements]))
                    self._last[k] = now
                    kept += elements, now[elements]
        m = self._m
        if len(m.hazards) > len(self.hazards):
            new = list(m.hazards.values())[len(self.hazards) :]
            self.hazards += [(sequence, hazard) for hazard in new]
        exited = m.batch.exited
        if exited is not None and exited is not self._exited:
            self._exited, first = exited, m.batch.lanes.first
            rows = {b: exited[b - first].copy() for b in self._blocks if 0 <= b - first < len(exited)}
            if rows:
                self.returned.append((sequence, rows))
                kept += rows.values()
        return kept

    def close(self) -> None:
        """The launch is over: let go of its memory."""
        self._m, self._live, self._last, self._storages, self._exited = None, [], [], [], None


__all__ = ["Change", "Contents", "Held"]
