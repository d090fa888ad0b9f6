"""Counters: what a profiler on a real GPU would report, counted from the lanes' addresses.

Global memory.  A request is one warp executing one access.  The memory system moves sectors of 32 bytes, so the
traffic of a request is the number of different sectors that its active lanes touch: 4 when 32 lanes read 32
neighbouring float32, 32 when each lane reads its own row of a wide matrix.

Shared memory.  32 banks, each 4 bytes wide, serve one word a cycle each.  Lanes that want different words of one bank
wait for each other; the number of passes is the number of wavefronts.  8-byte accesses are served half a warp at a
time, 16-byte accesses a quarter of a warp at a time.  A load in which neighbours share serves twice as many lanes at a
time: if in the whole warp all lanes ask for the same element as the lane beside them (0 and 1, 2 and 3, ...), or all
for the same as the lane two further (0 and 2, 1 and 3, ...), where a lane that is not active asks for anything.  Bank
conflicts are the passes beyond the first of each group of lanes.  No manual says so; `pmpp.lab.measure.agreement` has
480 patterns of loads and 240 of stores in which an H200 does.

Tensor cores.  `ldmatrix` is a load of 16 bytes a lane, in which neighbours never share: 8 rows of 16 bytes are one
wavefront at best.  An asynchronous copy loads sectors as a load does, and is stored in as few wavefronts as its bytes
take: an H200 reports no bank conflicts of copies, wherever they go.  Nsight Compute has its own names for both: `ldsm`
and `ldgsts` in smsp__sass_inst_executed_op_*.  It counts the requests of a copy with the loads, few of its sectors, and
its stores nowhere.

A product of tiles (wgmma) is one instruction a warp. It reads shared memory without a load, and no counter has what it
reads. A bulk copy is one request for the sectors of its rows, and its bytes are those of the whole box. How it stores
them is counted nowhere.

Instructions are counted at source level: every operator, comparison, cast, load, store and device call is one, and a
branch is one.  A compiler merges, hoists and fuses, so compare requests, sectors, wavefronts and FLOPs with hardware,
not these.  Division and the functions that a special function unit (MUFU) takes part in are one `special` instruction
each.  In machine code they are more (as seen in SASS for sm_90): a float32 division is MUFU.RCP with some eight
multiply-adds, sqrt MUFU.RSQ with a few, exp MUFU.EX2 with six, tanh MUFU.EX2 and MUFU.RCP with eleven.  The accurate
sin, cos and log use no MUFU but some fifteen multiply-adds, which take longer than one MUFU would.

Unique sectors.  A bitmap an array, with one byte a sector, remembers which sectors a launch has touched: what memory
must move even if a cache forgets nothing.

Atomics.  Lanes of a warp that update one address take turns: a request has as many passes as its most wanted address
has lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from pmpp.simt.machine.lanes import WARP, Lanes, Mask, spread
from pmpp.simt.observe.metrics import LINE_METRICS
from pmpp.simt.values.dtypes import as_intp
from pmpp.simt.values.quick import any_of, largest, smallest

SECTOR = 32
_SECTOR_BITS = 5
BANKS = 32
BANK_BYTES = 4

#: Counters kept by source line, in the order in which Counters hold them.
COUNTERS = tuple(LINE_METRICS)

_NONE = np.int64(1) << np.int64(62)  # larger than any address: stands for an inactive lane


def _warps_of(of: Lanes, addresses: np.ndarray, mask: Mask) -> tuple[np.ndarray, np.ndarray | None, int]:
    """Addresses a warp a row, the same for the active lanes (None: all), and how often each row stands for a block."""
    bits = mask.bits
    if of.width == 1:
        return *of.as_warps(addresses, mask), 1
    rows = max(addresses.shape[0], 1 if bits is None else bits.shape[0])
    shape = (rows, of.width)
    active = None if bits is None else spread(bits, shape).reshape(-1, WARP)
    return spread(addresses, shape).reshape(-1, WARP), active, of.blocks // rows


def _distinct(keys: np.ndarray, active: np.ndarray | None) -> int:
    """Number of different keys among the active lanes of each row, over all rows."""
    if active is not None:
        keys = np.where(active, keys, _NONE)
    steps = keys[:, 1:] - keys[:, :-1]
    if smallest(steps) < 0:  # lanes out of order: the common case of rising addresses needs no sort
        keys = np.sort(keys, axis=1)
        steps = keys[:, 1:] - keys[:, :-1]
    new = steps != 0
    if active is None:
        return len(keys) + int(np.count_nonzero(new))
    return int(np.count_nonzero(keys[:, 0] != _NONE)) + int(np.count_nonzero(new & (keys[:, 1:] != _NONE)))


def sectors_of_elements(
    at: np.ndarray | np.generic, itemsize: int, mask: Mask, touched: Callable[[np.ndarray | slice], None]
) -> int:
    """Sectors moved by an access to whole elements, a power of two in size: no one lies in two sectors.

    The same as `sectors`, with less work in the common cases: one element for all lanes, or of a block, and neighbours.
    """
    of, smaller = mask.of, _SECTOR_BITS - itemsize.bit_length() + 1
    if at.size == 1:
        sector = int(at if at.ndim == 0 else at.item()) >> smaller
        touched(slice(sector, sector + 1))
        return mask._active_warps or mask.warps
    if of.width > 1 and at.shape[1] == 1:  # one element for all lanes of a block
        on = mask.bits is None or mask.bits.shape[0] == 1
        touched(((at if on else at[mask.bits.any(axis=1)]) >> smaller).reshape(-1))
        return mask.warps
    if mask.bits is None and of.width > 1:
        keys = at >> smaller
        flat = keys.reshape(-1)
        steps = flat[1:] - flat[:-1]
        if largest(steps.view(np.uint64)) <= 1:  # neighbours, and in order
            touched(slice(flat.item(0), flat.item(-1) + 1))
            new = np.count_nonzero(steps) - np.count_nonzero(steps[WARP - 1 :: WARP])
            return (flat.size // WARP + int(new)) * (of.blocks // at.shape[0])
    if of.width == 1:
        places, warps = _single_lanes(at, mask)
        keys = places >> smaller
        touched(keys)
        return _distinct_of_single_lanes(keys, warps)
    return sectors(at * itemsize, itemsize, mask, touched)


def each_once(sectors: np.ndarray | slice) -> np.ndarray | slice:
    """The same sectors, each once and in order where they lie close together, so that they are noted with less work."""
    if isinstance(sectors, slice) or sectors.size < WARP:
        return sectors
    first = smallest(sectors)
    extent = largest(sectors) - first + 1
    if 4 * extent > sectors.size:
        return sectors
    found = np.zeros(extent, np.bool_)
    found[sectors - first] = True
    return slice(first, first + extent) if found.all() else np.flatnonzero(found) + first


def sectors(
    addresses: np.ndarray | np.generic, itemsize: int, mask: Mask, touched: Callable[[np.ndarray], None] | None = None
) -> int:
    """Sectors moved by one access whose lanes start at these byte addresses.

    `touched` is given the numbers of these sectors, in any order, and some more than once; or a slice of them.
    """
    of = mask.of
    if addresses.size == 1:  # every lane the same address
        first = int(addresses.reshape(-1)[0])
        last = (first + itemsize - 1) // SECTOR
        if touched is not None:
            touched(slice(first // SECTOR, last + 1))
        return mask.warps * (last - first // SECTOR + 1)
    if of.width == 1:
        return _sectors_of_single_lanes(addresses, itemsize, mask, touched)
    if addresses.shape[1] == 1:
        addresses = spread(addresses, (addresses.shape[0], of.width))
    rows, active, repeat = _warps_of(of, addresses, mask)
    if SECTOR % itemsize == 0 and not largest(addresses & (itemsize - 1)):
        keys = rows >> _SECTOR_BITS
    else:
        # Elements that straddle sectors: list both ends, and what lies between.
        steps = range(0, itemsize + SECTOR - 1, SECTOR)
        keys = np.concatenate([np.minimum(rows + step, rows + itemsize - 1) >> _SECTOR_BITS for step in steps], axis=1)
        active = None if active is None else np.concatenate([active] * len(steps), axis=1)
    if touched is not None:
        touched(keys if active is None else keys[active])
    return _distinct(keys, active) * repeat


def _sectors_of_single_lanes(
    addresses: np.ndarray, itemsize: int, mask: Mask, touched: Callable[[np.ndarray], None] | None
) -> int:
    """The same for a short batch, in which a row is a lane."""
    flat, warps = _single_lanes(addresses, mask)
    aligned = SECTOR % itemsize == 0 and not largest(flat & (itemsize - 1))
    if aligned:
        keys = flat >> _SECTOR_BITS
    else:
        steps = range(0, itemsize + SECTOR - 1, SECTOR)
        keys = np.concatenate([np.minimum(flat + step, flat + itemsize - 1) >> _SECTOR_BITS for step in steps])
        warps = np.tile(np.arange(flat.size, dtype=np.int64) if warps is None else warps, len(steps))
    if touched is not None:
        touched(keys)
    return _distinct_of_single_lanes(keys, warps)


def _single_lanes(values: np.ndarray, mask: Mask) -> tuple[np.ndarray, np.ndarray | None]:
    """The values of the active ones of single lanes, and their warps; None if each has one for itself."""
    flat, warps = values.reshape(-1), mask.of.warp_of
    if mask.bits is None:
        return flat, warps
    places = as_intp(mask.places())
    return flat.take(places), None if warps is None else warps.take(places)


def _distinct_of_single_lanes(keys: np.ndarray, warps: np.ndarray | None) -> int:
    """Number of different keys in each warp, over all warps."""
    if warps is None:
        return keys.size
    each = np.sort(warps * (largest(keys) + 1) + keys)
    return 1 + int(np.count_nonzero(each[1:] != each[:-1]))


def wavefronts(addresses: np.ndarray | np.generic, itemsize: int, mask: Mask, *, load: bool = True) -> tuple[int, int]:
    """Passes through the banks of shared memory for one access whose lanes start at these byte addresses.

    Returns these wavefronts, and those of them that bank conflicts cause.
    """
    of = mask.of
    words = max(1, itemsize // BANK_BYTES)
    if of.width == 1 and of.warp_of is None:
        return mask.lanes, 0  # each lane is alone in its warp
    if addresses.size == 1 or (addresses.shape[1] == 1 and of.width > 1):
        if words == 1:
            return mask.warps, 0
        addresses = spread(addresses, (addresses.shape[0] if addresses.ndim else 1, of.width))
    rows, active, repeat = _warps_of(of, addresses, mask)
    if rows.size <= PATTERN:
        # A loop over a tile asks for the same pattern in each round, some words further on: the banks take turns, and
        # as many lanes meet in one.  So what a pattern takes is kept, counted from its first word.
        shifted = rows.astype(np.int64, copy=False) - (smallest(rows) & -BANK_BYTES)
        total, groups = _passes_of_pattern(shifted.tobytes(), None if active is None else active.tobytes(), words, load)
    else:
        total, groups = _passes_and_groups(rows, active, words, load)
    return total * repeat, (total - groups) * repeat


#: Lanes up to which `wavefronts` keeps what a pattern of addresses takes: those of the largest block.
PATTERN = 1024


@functools.lru_cache(maxsize=2048)  # 16 MiB if all are of the largest block
def _passes_of_pattern(addresses: bytes, active: bytes | None, words: int, load: bool) -> tuple[int, int]:
    rows = np.frombuffer(addresses, np.int64).reshape(-1, WARP)
    lanes_on = None if active is None else np.frombuffer(active, np.bool_).reshape(-1, WARP)
    return _passes_and_groups(rows, lanes_on, words, load)


def _passes_and_groups(rows: np.ndarray, active: np.ndarray | None, words: int, load: bool) -> tuple[int, int]:
    """Passes of an access of so many words a lane, a warp a row, and the groups of lanes that are served."""
    parts = [(rows, active, WARP // words)]  # and the lanes that are served together
    if load and words > 1:
        share = neighbours_share(rows, active)
        if any_of(share):
            parts = [
                (rows[warps], None if active is None else active[warps], lanes)
                for warps, lanes in ((share, 2 * WARP // words), (~share, WARP // words))
            ]
    total = groups = 0
    for starts, lanes_on, lanes in parts:
        first = starts.reshape(-1, lanes) >> 2
        if lanes_on is None and largest(first.max(axis=1) - first.min(axis=1)) <= BANKS - words:
            total += len(first)  # all within 32 neighbouring words: no two in one bank
            groups += len(first)
            continue
        keys = np.concatenate([first + w for w in range(words)], axis=1)
        on = None if lanes_on is None else np.concatenate([lanes_on.reshape(-1, lanes)] * words, axis=1)
        degree = _conflict_degree(keys, on)
        total += int(degree.sum(dtype=np.int64))
        groups += int(np.count_nonzero(degree))
    return total, groups


def neighbours_share(rows: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    """Whether in each warp all active lanes ask for what their neighbours at distance 1, or all at distance 2, do."""
    found = np.zeros(len(rows), np.bool_)
    for distance in (1, 2):
        pairs = (len(rows), WARP // (2 * distance), 2, distance)
        one, other = np.moveaxis(rows.reshape(pairs), 2, 0)
        same = one == other
        if active is not None:
            one, other = np.moveaxis(active.reshape(pairs), 2, 0)
            same |= ~(one & other)
        found |= same.all(axis=(1, 2))
    return found


def wavefronts_of_copy(itemsize: int, mask: Mask) -> int:
    """Passes in which an asynchronous copy is stored: as few as its bytes take."""
    if mask.of.width == 1:
        return mask.lanes  # lanes that have fully diverged
    lanes = np.count_nonzero(mask.grid().reshape(-1, WARP), axis=1)
    return int((-(-lanes * itemsize // (BANKS * BANK_BYTES))).sum(dtype=np.int64))


def _conflict_degree(words: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    """The most different words that any one bank is asked for, row by row."""
    words = np.sort(words if active is None else np.where(active, words, _NONE), axis=1)
    fresh = np.ones(words.shape, np.bool_)
    fresh[:, 1:] = words[:, 1:] != words[:, :-1]
    fresh &= words != _NONE
    row, column = np.nonzero(fresh)
    banks = as_intp(row * BANKS + words[row, column] % BANKS)
    loads = np.bincount(banks, minlength=words.shape[0] * BANKS)
    return loads.reshape(-1, BANKS).max(axis=1)


def passes(addresses: np.ndarray | np.generic, mask: Mask) -> tuple[int, int]:
    """Turns that one atomic takes: over all warps, and in the worst of them, the most lanes on one address."""
    of = mask.of
    if of.width == 1 and of.warp_of is None:
        return mask.lanes, 1
    if of.width == 1:
        return _passes_of_single_lanes(*_single_lanes(spread(addresses, (of.blocks, 1)), mask))
    if addresses.size == 1 or addresses.shape[1] == 1:  # a warp's lanes all want one address
        if mask.bits is None:
            return of.size, WARP
        lanes = np.count_nonzero(mask.grid().reshape(-1, WARP), axis=1)
        return int(lanes.sum(dtype=np.int64)), int(lanes.max())
    rows, active, repeat = _warps_of(of, addresses, mask)
    keys = np.sort(rows if active is None else np.where(active, rows, _NONE), axis=1)
    real = keys != _NONE
    most = real[:, 0].astype(np.int64)
    for step in range(1, WARP):  # lane k and lane k + step of a sorted row are equal: step + 1 lanes on one address
        alike = ((keys[:, step:] == keys[:, :-step]) & real[:, step:]).any(axis=1)
        if not alike.any():
            break
        most[alike] = step + 1
    return int(most.sum(dtype=np.int64)) * repeat, int(most.max())


def _passes_of_single_lanes(addresses: np.ndarray, warps: np.ndarray) -> tuple[int, int]:
    """The same for a short batch, in which a row is a lane."""
    extent = largest(addresses) + 1
    each = np.sort(warps * extent + addresses)
    new = np.ones(each.size, np.bool_)
    np.not_equal(each[1:], each[:-1], out=new[1:])
    first = np.flatnonzero(new)  # of the lanes of one warp on one address
    lanes, warp = np.diff(np.append(first, each.size)), each.take(as_intp(first)) // extent
    of_warp = np.flatnonzero(np.append(True, warp[1:] != warp[:-1]))
    most = np.maximum.reduceat(lanes, of_warp)
    return int(most.sum(dtype=np.int64)), int(most.max())


class Footprint:
    """Which sectors of one array a launch has touched.  Its size is a sixteenth of the array's, or a tenth at most.

    load, store   one flag a sector, or None before the first access of this kind
    fresh         sectors that were stored before they were loaded: a load of them needs nothing from memory
    """

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.sectors = -(-nbytes // SECTOR) + 1
        self.load: np.ndarray | None = None
        self.store: np.ndarray | None = None
        self.fresh: np.ndarray | None = None

    def on_load(self, sectors: np.ndarray | slice) -> None:
        """Remember a load."""
        if self.load is None:
            self.load = np.zeros(self.sectors, np.bool_)
            self.fresh = None if self.store is None else self.store.copy()
        self.load[sectors] = True

    def on_store(self, sectors: np.ndarray | slice) -> None:
        """Remember a store."""
        if self.store is None:
            self.store = np.zeros(self.sectors, np.bool_)
            self.fresh = None if self.load is None else np.zeros(self.sectors, np.bool_)
        self.store[sectors] = True
        if self.load is None:
            return
        if isinstance(sectors, slice):
            self.fresh[sectors] |= ~self.load[sectors]
        else:
            self.fresh[sectors[~self.load[sectors]]] = True

    def on_one(self, kind: str, sector: int) -> None:
        """Remember a load or a store of one sector."""
        if kind == "load":
            if self.load is None:
                self.on_load(slice(sector, sector + 1))
            self.load[sector] = True
        elif self.store is None or (self.load is not None and not self.load.item(sector)):
            self.on_store(slice(sector, sector + 1))
        else:
            self.store[sector] = True

    def totals(self) -> tuple[int, int, int]:
        """Sectors loaded, sectors stored, and those loaded that memory had to deliver."""
        load, store = (0 if bits is None else int(np.count_nonzero(bits)) for bits in (self.load, self.store))
        spared = 0 if self.fresh is None or self.load is None else int(np.count_nonzero(self.load & self.fresh))
        return load, store, load - spared


class Contention:
    """How often the addresses of one array were updated by atomics."""

    def __init__(self, name: str, space: str) -> None:
        self.name, self.space = name, space
        self.requests = self.lanes = self.passes = 0
        self.worst_warp = 0  # most lanes of one warp on one address
        self.updates: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by array, and in it by element
        self.peak, self.where = 0, 0  # most updates of one element, and which

    def add(self, positions: np.ndarray, values: np.ndarray) -> None:
        """Count updates of these elements of an array; of shared memory, (blocks, elements)."""
        updates = self._of(values)
        if positions.size == 1:
            updates[positions] += np.uint32(1)
        elif 4 * positions.size > values.size:
            updates += np.bincount(as_intp(positions), minlength=values.size).astype(np.uint32)
        else:
            np.add.at(updates, positions, np.uint32(1))

    def add_one(self, place: int, values: np.ndarray) -> None:
        """Count an update of one element."""
        self._of(values)[place] += np.uint32(1)

    def _of(self, values: np.ndarray) -> np.ndarray:
        known = self.updates.get(id(values))
        if known is None:
            known = self.updates[id(values)] = values, np.zeros(values.size, np.uint32)
        return known[1]

    def copy(self, updated: list[np.ndarray]) -> Contention:
        """As it is now, whatever is counted of these arrays later."""
        made, ids = Contention(self.name, self.space), {id(values) for values in updated}
        vars(made).update(vars(self))
        made.updates = {
            key: (values, counts.copy() if key in ids else counts) for key, (values, counts) in self.updates.items()
        }
        return made

    def close(self) -> None:
        """Keep the peak, and forget the rest: shared memory is another block's next time."""
        for values, updates in self.updates.values():
            at = int(np.argmax(updates)) if updates.size else 0
            if updates.size and int(updates[at]) > self.peak:
                self.peak, self.where = int(updates[at]), at % values.shape[-1]
        self.updates.clear()
