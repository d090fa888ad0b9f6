"""The counters of one launch, by source line: what the machine tells of becomes what a profiler would report."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from pmpp.simt.machine.instructions import CONTROL, FLOAT_CLASS, INTEGER, MEMORY, TENSOR, class_of
from pmpp.simt.machine.lanes import Mask
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.storage import Storage
from pmpp.simt.observe import counting
from pmpp.simt.observe.counting import COUNTERS, SECTOR, Contention, Footprint
from pmpp.simt.values.dtypes import Value

_INDEX = {name: i for i, name in enumerate(COUNTERS)}
WARP_INSTRUCTIONS, THREAD_INSTRUCTIONS = _INDEX["warp_instructions"], _INDEX["thread_instructions"]
FLOPS, FLOPS_F16, FLOPS_F64 = _INDEX["flops"], _INDEX["flops_f16"], _INDEX["flops_f64"]
TENSOR_FLOPS = _INDEX["tensor_flops"]
CLUSTER_REQUESTS, CLUSTER_BYTES = _INDEX["cluster_requests"], _INDEX["cluster_bytes"]
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


@functools.cache
def _flops_of(dtype: np.dtype) -> tuple[int, tuple[int, ...]]:
    """The class of arithmetic in this type, and the counters of its floating-point operations."""
    if dtype.kind not in "fcV":  # bfloat16 is a V to NumPy
        return class_of(dtype), ()
    size = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    return FLOAT_CLASS[size], {2: (FLOPS, FLOPS_F16), 4: (FLOPS,), 8: (FLOPS, FLOPS_F64)}[size]


#: Accesses that are remembered at a time.
_KEPT = 16


class Counters:
    """The counters of a launch: an observer of the machine (machine/protocols.py, Counts).

    lines              for each line of the report's file the counters in the order of COUNTERS
    footprints         of arrays in global memory, by name
    contention         of arrays that atomics update, by memory space and name
    merged_wavefronts  of shared memory, if neighbouring accesses were merged into 128-bit ones
    """

    def __init__(self, m: Machine) -> None:
        self._m = m
        self.lines: dict[int, list[int]] = {}
        self.merged_wavefronts = 0.0
        self.contention: dict[tuple[str, str], Contention] = {}
        #: For each storage: the footprint of its allocation, the sector at which it begins there, the allocation.
        self._touched: dict[int, tuple[Footprint, int, np.ndarray]] = {}
        #: Positions that may come again: a kernel reads x[i] and y[i], and a loop the same x[i] in each round.
        self._again: dict[tuple, tuple] = {}

    @property
    def footprints(self) -> list[Footprint]:
        """One for each allocation in global memory that was touched."""
        return list({id(found): found for found, _, _ in self._touched.values()}.values())

    def at(self, line: int) -> list[int]:
        """The counters of a source line; what a function of another file does is charged to the line that calls it."""
        line = self._m.place.site or line
        counts = self.lines.get(line)
        if counts is None:
            counts = self.lines[line] = [0] * len(COUNTERS)
        return counts

    def instruction(self, line: int, mask: Mask, kind: int = INTEGER) -> list[int]:
        """Count one instruction of the active lanes, in a class of the mix; returns the line's counters for more."""
        counts = self.lines.get(self._m.place.site or line) or self.at(line)
        warps, lanes = mask._active_warps or mask.warps, mask.lanes
        counts[WARP_INSTRUCTIONS] += warps
        counts[THREAD_INSTRUCTIONS] += lanes
        counts[_MIX + kind] += warps
        counts[_THREAD_MIX + kind] += lanes
        return counts

    def flops(self, line: int, mask: Mask, dtype: np.dtype, each: int = 1, kind: int | None = None) -> None:
        """Count one instruction that is `each` floating-point operations a lane if `dtype` is floating or complex."""
        counts = self.lines.get(self._m.place.site or line) or self.at(line)
        warps, lanes = mask._active_warps or mask.warps, mask.lanes
        its_class, counters = _flops_of(dtype)
        if kind is None:
            kind = its_class
        counts[WARP_INSTRUCTIONS] += warps
        counts[THREAD_INSTRUCTIONS] += lanes
        counts[_MIX + kind] += warps
        counts[_THREAD_MIX + kind] += lanes
        for counter in counters:
            counts[counter] += each * lanes

    def branch(self, line: int, mask: Mask, taken: Mask | None, not_taken: Mask | None) -> None:
        """Count one branch; it diverges in the warps that have lanes on both sides."""
        counts = self.instruction(line, mask, CONTROL)
        counts[BRANCHES] += mask.warps
        if taken is not None and not_taken is not None:
            counts[DIVERGENT] += taken.warps + not_taken.warps - mask.warps

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
        """Count one load or store of `width` bytes a lane at these positions of the storage."""
        if mask.of.size == 1 and storage.space == "global" and of == "access":
            self._access_alone(kind, line, at.item() * storage.unit, mask, width, storage, name)
            return
        counts = self.at(line) if of == "copy" else self.instruction(line, mask, MEMORY)
        space = storage.space
        if space == "cluster":
            counts[CLUSTER_REQUESTS] += mask.warps
            counts[CLUSTER_BYTES] += width * mask.lanes
            return
        requests, sectors, size, wavefronts, conflicts = _TRAFFIC[space, kind]
        counts[requests] += mask.warps
        if space == "global":
            counts[sectors] += self._sectors(kind, at, mask, width, storage, name)
            counts[size] += width * mask.lanes
        else:
            if of == "copy":
                found, conflicting = counting.wavefronts_of_copy(width, mask), 0
            else:
                shares = kind == "load" and of == "access"
                found, conflicting = counting.wavefronts(at * storage.unit, width, mask, load=shares)
            counts[wavefronts] += found
            counts[conflicts] += conflicting
            self.merged_wavefronts += found * min(width, 16) / 16

    def _access_alone(
        self, kind: str, line: int, start: int, mask: Mask, width: int, storage: Storage, name: str
    ) -> None:
        """The same of a single lane in global memory, which starts at this byte."""
        counts = self.instruction(line, mask, MEMORY)
        requests, sectors, size, _, _ = _TRAFFIC["global", kind]
        counts[requests] += 1
        counts[size] += width
        counts[sectors] += self._touch_alone(kind, start, width, storage, name)

    def _touch_alone(self, kind: str, start: int, width: int, storage: Storage, name: str) -> int:
        """Note the sectors of so many bytes; how many they are."""
        known = self._touched.get(id(storage))
        if known is None:
            self._footprint(storage, name, kind)
            known = self._touched[id(storage)]
        first, last = start // SECTOR + known[1], (start + width - 1) // SECTOR + known[1]
        for sector in range(first, last + 1):
            known[0].on_one(kind, sector)
        return last - first + 1

    def tensor(self, line: int, mask: Mask, operations: int) -> None:
        """Count one instruction of a tensor core that is so many operations a warp."""
        self.instruction(line, mask, TENSOR)[TENSOR_FLOPS] += operations * mask.warps

    def bulk(
        self, line: int, mask: Mask, sectors: np.ndarray, size: int, storage: Storage, name: str, kind: str
    ) -> None:
        """Count one bulk copy out of these sectors or into them."""
        counts = self.instruction(line, mask, MEMORY)
        requests, moved, nbytes, _, _ = _TRAFFIC["global", kind]
        counts[requests] += 1
        counts[moved] += sectors.size
        counts[nbytes] += size
        self._footprint(storage, name, kind)(sectors)

    def _sectors(self, kind: str, at: Value, mask: Mask, width: int, storage: Storage, name: str) -> int:
        """Sectors of an access.  Those of positions that come again are known, and noted once for each array."""
        whole = storage.unit == width and SECTOR % width == 0
        if at.size == 1 and whole:
            return counting.sectors_of_elements(at, width, mask, self._footprint(storage, name, kind))
        key = id(at), id(mask), width, storage.unit
        known = self._again.get(key)
        if known is None:
            touched: list[np.ndarray | slice] = []
            if whole:
                found = counting.sectors_of_elements(at, width, mask, touched.append)
            else:
                found = counting.sectors(at * storage.unit, width, mask, touched.append)
            if len(self._again) >= _KEPT:
                self._again.clear()
            # `at` and `mask` are kept, so that nothing else gets their ids.
            known = self._again[key] = found, counting.each_once(touched[0]), set(), at, mask
        found, sectors, noted, _, _ = known
        if (kind, storage) not in noted:
            noted.add((kind, storage))
            self._footprint(storage, name, kind)(sectors)
        return found

    def atomic(self, line: int, at: Value, positions: np.ndarray, mask: Mask, storage: Storage, name: str) -> None:
        """Count one atomic: the element of each lane, and the active lanes' positions in the flattened storage."""
        counts = self.instruction(line, mask, MEMORY)
        counts[ATOMICS] += mask.warps
        counts[ATOMIC_LANES] += mask.lanes
        turns, worst = counting.passes(at, mask)
        counts[ATOMIC_PASSES] += turns
        space, width = storage.space, storage.values.dtype.itemsize
        if space == "global":
            touched = self._footprint(storage, name, "store")
            counts[ATOMIC_SECTORS] += counting.sectors(at * width, width, mask, touched)
        elif space == "cluster":
            counts[CLUSTER_REQUESTS] += mask.warps
            counts[CLUSTER_BYTES] += width * mask.lanes
        found = self.contention.get((space, name))
        if found is None:
            found = self.contention[space, name] = Contention(name, space)
        found.requests += mask.warps
        found.lanes += mask.lanes
        found.passes += turns
        found.worst_warp = max(found.worst_warp, worst)
        found.add(positions, storage.values)

    def atomic_alone(self, line: int, place: int, mask: Mask, storage: Storage, name: str) -> None:
        """Count an atomic of a single lane on an element of global memory."""
        counts = self.instruction(line, mask, MEMORY)
        for counter in (ATOMICS, ATOMIC_LANES, ATOMIC_PASSES):
            counts[counter] += 1
        width = storage.values.itemsize
        counts[ATOMIC_SECTORS] += self._touch_alone("store", place * width, width, storage, name)
        found = self.contention.get(("global", name))
        if found is None:
            found = self.contention["global", name] = Contention(name, "global")
        found.requests += 1
        found.lanes += 1
        found.passes += 1
        found.worst_warp = found.worst_warp or 1
        found.add_one(place, storage.values)

    def now(self, updated: list[np.ndarray]) -> tuple:
        """What has been counted so far on each line, and of the atomics on these arrays, which may be updated now."""
        lines = {line: list(counts) for line, counts in self.lines.items()}
        contention = {key: found.copy(updated) for key, found in self.contention.items()} if updated else None
        return lines, self.merged_wavefronts, contention

    def back_to(self, before: tuple) -> None:
        """Take back what was counted since `now`.  (What was touched will be touched again.)"""
        self.lines, self.merged_wavefronts, contention = before
        if contention is not None:
            self.contention = contention

    def since(self, before: tuple) -> list[tuple[int, list[int]]]:
        """What was counted since `now` gave `before`, line by line."""
        known, none = before[0], [0] * len(COUNTERS)
        changed = [(line, counts) for line, counts in self.lines.items() if counts != known.get(line, none)]
        return [(line, [a - b for a, b in zip(counts, known.get(line, none), strict=True)]) for line, counts in changed]

    def again(self, counted: list[tuple[int, list[int]]], times: int) -> None:
        """Count so many times more what `since` gave."""
        for line, counts in counted:
            self.lines[line] = [a + times * b for a, b in zip(self.lines[line], counts, strict=True)]

    def barrier(self, line: int, blocks: int) -> None:
        """Count a barrier that so many blocks have passed."""
        self.at(line)[BARRIERS] += blocks

    def batch_ends(self) -> None:
        """Keep the peaks of shared memory, which is another block's next time."""
        self._again.clear()
        for found in self.contention.values():
            if found.space in ("shared", "cluster"):
                found.close()

    def _footprint(self, storage: Storage, name: str, kind: str) -> Callable[[np.ndarray | slice], None]:
        """What to tell the sectors that an access touches: views of one allocation share one bitmap."""
        known = self._touched.get(id(storage))
        if known is None:
            values = owner = storage.values
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            whole = values is owner or values.nbytes == owner.nbytes
            start = 0 if whole else values.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
            same = next((f for f, _, o in self._touched.values() if o is owner), None)
            shared = same or Footprint(name, owner.nbytes)
            known = self._touched[id(storage)] = (shared, start // SECTOR, owner)
        found, shift, _ = known
        mark = found.on_load if kind == "load" else found.on_store
        if shift == 0:
            return mark

        def shifted(sectors: np.ndarray | slice) -> None:
            whole = isinstance(sectors, slice)
            mark(slice(sectors.start + shift, sectors.stop + shift) if whole else sectors + shift)

        return shifted
