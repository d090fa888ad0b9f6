"""Hopper's engines: products of tiles that warps have started, copies of tiles, and the barriers that count both.

Products.  The sums of a product stay with the engine until their warp waits for them.  Until then the registers hold a
*ticket*: a NaN whose bits say which product will fill them.  Whoever reads one is told, and whoever passes it on to
the next product or to `wgmma_wait` gets what it stands for.  A product reads its operands when it starts and may still
be reading them when its warp waits, so the sanitizers are told of both times.  Which registers a warp may give to a
product, fences.py knows.

Four warps.  A product, and what belongs to it, is executed by all four warps of a warpgroup.  Where warps take turns, a
`Team` keeps what one of them has executed until all have.

Bulk copies.  The place that a copy fills holds poison until its mbarrier has counted all arrivals and all bytes.
A copy the other way, a bulk store, is done when it starts.  It may be reading until its thread waits for it, so here,
too, the sanitizers are told of both times.  When a thread or a block ends they are told of what it leaves under way.

Barriers.  An mbarrier counts arrivals and bytes.  When none are left its phase ends and it begins to count anew.  Here
the counts are kept beside the memory: the 64 bits themselves say nothing.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np

from pmpp.simt.machine import fences, memory
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.lanes import WARP, Lanes, Mask, spread
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.storage import POISON_BYTE, Storage
from pmpp.simt.values import tensor_cores
from pmpp.simt.values.dtypes import Value, as_intp

GROUP = 4  # warps that multiply together
ATOM = 1024  # bytes: 8 rows of 128 bytes, in which chunks of 16 bytes change places
LINE = 128
CHUNK = 16
_TICKET, _TICKET_BITS = np.uint32(0x7FB00000), np.uint32(0xFFF00000)
TICKETS = 1 << 20
KEPT = 256  # products, if nothing is under way


class Product(NamedTuple):
    """The sums of some warps, and the group of each warp that they belong to."""

    warps: np.ndarray
    sums: np.ndarray  # (warps, 16, columns)
    group: np.ndarray
    passed: np.ndarray  # whether the warp gave them to the next product, or waited for them


class Reads(NamedTuple):
    """What a product reads: for the sanitizers, as words of 16 bytes."""

    warps: np.ndarray
    group: np.ndarray
    storage: Storage
    at: np.ndarray  # (warps, words)
    name: str
    line: int


class Stored(NamedTuple):
    """What a bulk store of one thread reads: for the sanitizers, as words of 16 bytes."""

    lane: int
    group: int  # of the thread's groups
    storage: Storage
    at: np.ndarray
    name: str
    line: int


class Landing(NamedTuple):
    """What a bulk copy brings to one block."""

    row: int
    storage: Storage
    at: np.ndarray  # of words of 16 bytes
    words: np.ndarray  # (words, 16) bytes


class Barrier:
    """An mbarrier of each block: arrivals that a phase needs, those that are left, bytes to come, phases so far.

    `line` is where it was initialised, or 0.
    """

    def __init__(self, blocks: int) -> None:
        self.count, self.left, self.bytes, self.phase, self.line = (np.zeros(blocks, np.int64) for _ in range(5))
        self.landings: list[Landing] = []


class Step:
    """An instruction that the four warps of a warpgroup execute together: the first of them to come says which.

    `operands` has the descriptors that it gives.
    """

    __slots__ = ("kind", "line", "operands", "path", "warp", "what")

    def __init__(self, what: str, kind: tuple, line: int, path: tuple[int, ...], warp: int) -> None:
        self.what, self.kind, self.line, self.path, self.warp = what, kind, line, path, warp
        self.operands: dict[str, tuple[int, int]] = {}


class Team:
    """A warpgroup whose warps take turns: what one of them has executed and others have not, in order."""

    __slots__ = ("done", "first", "now", "steps")

    def __init__(self) -> None:
        self.steps: collections.deque[Step] = collections.deque()
        self.first = 0  # the number of the first of them
        self.done = [0] * GROUP  # of each warp, how many it has executed
        self.now: list[Step | None] = [None] * GROUP  # and the last one


class Engines:
    """What the blocks of a batch have under way."""

    def __init__(self, lanes: Lanes) -> None:
        warps = lanes.blocks * lanes.warps
        self.ready = np.zeros(warps, np.bool_)  # has passed a wgmma_fence since it last waited
        self.committed = np.zeros(warps, np.int64)  # groups of products
        self.products: dict[int, Product] = {}
        self.reads: list[Reads] = []
        self.made = 0  # products so far
        self.seen: list[tuple[Storage, str]] = []  # arrays that descriptors mean, with their names
        self.barriers: dict[tuple[int, int], Barrier] = {}
        self.groups = np.zeros(lanes.blocks * lanes.width, np.int64)  # of bulk stores, of each thread
        self.stores: list[Stored] = []
        self.seen_at_fence = np.full(warps, None, np.object_)  # by each warp (fences.py), where that is looked at
        self.teams: dict[int, Team] = {}  # where warps take turns, and so each block is a batch
        self.told: set[int] = set()  # warpgroups of which it was reported that they do not keep together

    def ended(self, m: Machine, mask: Mask) -> None:
        """These warps have ended: report what others of their warpgroup have executed and they have not."""
        for warp in warps_of(mask).tolist() if self.teams else ():
            number, member = place_in_team(m, warp)
            team = self.teams.get(number)
            lacks = -1 if team is None else team.done[member] - team.first
            if team is not None and lacks < len(team.steps) and number not in self.told:
                self.told.add(number)
                _without(m, team.steps[lacks], warp)


def engines(m: Machine) -> Engines:
    """Those of the blocks under way."""
    if m.batch.engines is None:
        m.batch.engines = Engines(m.batch.lanes)
    return m.batch.engines


def warps_of(mask: Mask) -> np.ndarray:
    """The numbers of the warps with an active lane."""
    return np.flatnonzero(mask.grid().reshape(-1, WARP).any(axis=1))


def place_in_team(m: Machine, warp: int) -> tuple[int, int]:
    """A number for the warpgroup of a warp, and which of its four warps it is; a cluster's blocks are a batch."""
    block, own = divmod(warp, m.batch.lanes.warps)
    return block * m.batch.lanes.warps + own // GROUP, own % GROUP


def by_warps(m: Machine, value: Value) -> np.ndarray:
    """A value in the lanes of all warps, (warps, 32)."""
    lanes = m.batch.lanes
    return spread(np.asarray(value), (lanes.blocks, lanes.width)).reshape(-1, WARP)


# -- four warps together ---------------------------------------------------------------------------------------------


def take_part(m: Machine, mask: Mask, what: str, shape: int, line: int, path: tuple[int, ...]) -> None:
    """Report warps that execute by themselves what all four of their warpgroup must execute together.

    In lockstep the four come together.  Where they take turns each must execute what the others do, in the same order:
    an instruction is the same if it has the same line, as have the calls that led there, `path`, from the kernel on.
    Of a warpgroup the first report is enough: all that follows is a consequence.
    """
    lanes = m.batch.lanes
    if m.turns is not None:
        for warp in warps_of(mask).tolist():
            _take_turn(m, warp, what, (what, shape, line, path), line, path)
        return
    if mask.bits is None and lanes.warps % GROUP == 0:
        return
    all_, warps = engines(m), warps_of(mask)
    groups = warps // lanes.warps * -(-lanes.warps // GROUP) + warps % lanes.warps // GROUP
    here = np.zeros(int(groups[-1]) + 1, np.int64)
    np.add.at(here, as_intp(groups), 1)
    alone = here[groups] < GROUP
    if not alone.any():
        return
    for warp, group in zip(warps[alone].tolist(), groups[alone].tolist(), strict=True):
        if group not in all_.told:
            all_.told.add(group)
            m.hazard("divergent_barrier", "register", what, line, warp * WARP, _ALONE.format(what=what))


_ALONE = "{{who}} executes this {what} without all of the four warps that multiply together"


def _take_turn(m: Machine, warp: int, what: str, kind: tuple, line: int, path: tuple[int, ...]) -> None:
    all_, (number, member) = engines(m), place_in_team(m, warp)
    if number in all_.told:
        return
    if (warp - member) % m.batch.lanes.warps + GROUP > m.batch.lanes.warps:
        all_.told.add(number)
        m.hazard("divergent_barrier", "register", what, line, warp * WARP, _ALONE.format(what=what))
        return
    team = all_.teams.get(number)
    if team is None:
        team = all_.teams[number] = Team()
    place = team.done[member] - team.first
    team.done[member] += 1
    if place == len(team.steps):
        step = Step(what, kind, m.place.site or line, path, warp)
        team.steps.append(step)
        _await_nobody(m, team, step)
    else:
        step = team.steps[place]
        if step.kind != kind:
            all_.told.add(number)
            other = m.named(*m.batch.lanes.threads_at(step.warp * WARP))
            differ = (theirs for mine, theirs in zip(path, step.path, strict=False) if mine != theirs)
            called = next((f", called on line {theirs}" for theirs in differ), "")
            m.hazard("divergent_barrier", "register", what, line, warp * WARP,
                     f"{{who}} executes this {what} while {other}, which multiplies together with it, executes the "
                     f"{step.what} on line {step.line}{called}: all four warps must execute the same")  # fmt: skip
    team.now[member] = step
    if min(team.done) > team.first:
        team.steps.popleft()
        team.first += 1


def _await_nobody(m: Machine, team: Team, step: Step) -> None:
    """Report a warp that has ended and so will not execute this."""
    exited = m.batch.exited
    if exited is None:
        return
    number, member = place_in_team(m, step.warp)
    for other in range(GROUP):
        warp = step.warp - member + other
        if team.done[other] <= team.first + len(team.steps) - 1 and exited.reshape(-1)[warp * WARP]:
            engines(m).told.add(number)
            _without(m, step, warp)
            return


def _without(m: Machine, step: Step, ended: int) -> None:
    """Report a step that a warp has not executed, and has ended."""
    who, other = (m.batch.lanes.threads_at(warp * WARP) for warp in (step.warp, ended))
    message = f"{_ALONE.format(what=step.what)}: {m.named(*other)} has ended"
    m.hazard_of("divergent_barrier", "register", step.what, step.line, who, message)


def _same_operands(m: Machine, kind: str, which: str, found: np.ndarray, warps: np.ndarray, line: int) -> None:
    """Refuse descriptors that are not those which the first warp of the warpgroup has given."""
    all_ = engines(m)
    for warp, value in zip(warps.tolist(), found.tolist(), strict=True):
        number, member = place_in_team(m, warp)
        team = all_.teams.get(number)
        if team is None or number in all_.told:
            continue
        given = id(all_.seen[value >> 52 & 0x3FF][0]), value & (1 << 52) - 1
        if team.now[member].operands.setdefault(which, given) != given:
            raise m.error(_ONE_DESCRIPTOR.format(kind=kind, which=which), line)


_ONE_DESCRIPTOR = "{kind}: the four warps that multiply together must give one descriptor {which}"


# -- descriptors -----------------------------------------------------------------------------------------------------


def describe(m: Machine, mask: Mask, array: Array, i: Value, apart: Value, name: str, line: int) -> Value:
    """The descriptors of operands that begin at element i: bits as the hardware has them, and which array it is."""
    refuse_unaligned(m, "tile_descriptor", array, name, line)
    flat = Array(array.storage, array.dtype, (array.size(),), (1,), array.offset)
    at, inside = memory.position(m, mask, flat, (memory.as_index(m, i, name),), name, line, (False,))
    start = np.asarray(at) * array.dtype.itemsize
    wrong = (start % CHUNK != 0) | (start // LINE % 8 != 0)
    wrong = wrong if inside is None or inside.bits is None else wrong & inside.bits
    if inside is not None and np.any(wrong):
        raise m.error(
            f"tile_descriptor: {name}[{int(np.asarray(i).reshape(-1)[0])}] is no chunk in the first of 8 rows: the "
            f"pattern of the chunks begins at multiples of {ATOM} bytes", line,
        )  # fmt: skip
    leading = np.asarray(apart).astype(np.int64) * array.dtype.itemsize
    wrong = np.broadcast_to((leading < 0) | (leading >= 1 << 18) | (leading % ATOM != 0), mask.grid().shape)
    if (wrong & mask.grid()).any():
        was = int(np.broadcast_to(apart, mask.grid().shape)[wrong & mask.grid()][0])
        raise m.error(
            f"tile_descriptor: apart must be 0 or a multiple of {ATOM // array.dtype.itemsize} elements, less than "
            f"{(1 << 18) // array.dtype.itemsize:,}, was {was:,}", line,
        )  # fmt: skip
    all_ = engines(m)
    key = array.storage, name
    if key not in all_.seen:
        all_.seen.append(key)
    number = all_.seen.index(key)
    fixed = number << 52 | (ATOM >> 4) << 32 | 1 << 62
    return ((start.astype(np.int64) >> 4 & 0x3FFF) | leading >> 4 << 16 | fixed).astype(np.uint64)[()]


def refuse_unaligned(m: Machine, what: str, array: Array, name: str, line: int) -> None:
    """End the launch where tiles lie in an array that may begin anywhere: its alignment is no multiple of a pattern."""
    aligned = array.storage.aligned
    if aligned % ATOM:
        raise m.error(
            f"{what}: {name} is in a shared array whose alignment is {aligned} bytes, and tiles need {ATOM}; write "
            f"alignment={ATOM} where it is made", line,
        )  # fmt: skip


def of_warps(m: Machine, kind: str, which: str, given: Value, warps: np.ndarray, line: int) -> np.ndarray:
    """The descriptor that each warp gives for the operand `which`: lanes and warps that multiply together agree."""
    of_lanes = by_warps(m, given)[warps]
    found = of_lanes[:, 0]
    if (of_lanes != found[:, None]).any():
        raise m.error(f"{kind}: the lanes of a warp must give one descriptor {which}", line)
    block, warp = np.divmod(warps, m.batch.lanes.warps)
    group = block * m.batch.lanes.warps + warp // GROUP
    if (found != found[np.searchsorted(group, group)]).any():
        raise m.error(_ONE_DESCRIPTOR.format(kind=kind, which=which), line)
    array = _fields(found)[0]
    unknown = (found >> np.uint64(62) != 1) | (array >= len(engines(m).seen))
    if unknown.any():
        value = int(found[int(np.argmax(unknown))])
        raise m.error(f"{kind}: {which} must be a descriptor that tile_descriptor gives, was {value:#x}", line)
    if m.turns is not None:
        _same_operands(m, kind, which, found, warps, line)
    return found


def _fields(descriptors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each warp which array, the first byte, and the bytes between neighbours along and across."""
    d = descriptors.astype(np.int64)
    start, leading, stride = (d & 0x3FFF) << 4, (d >> 16 & 0x3FFF) << 4, (d >> 32 & 0x3FFF) << 4
    return d >> 52 & 0x3FF, start, leading, stride


def swizzled(address: np.ndarray) -> np.ndarray:
    """Where a byte lies: in row r of 8 rows of 128 bytes the chunks change places by an exclusive or with r."""
    return address ^ (address >> 7 & 7) << 4


def _rows_of_a(descriptors: np.ndarray, warps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The arrays, and where the chunks of the 16 rows of A are that each warp multiplies: (warps, 16, 2)."""
    array, start, _, stride = _fields(descriptors)
    row = (warps % GROUP)[:, None] * 16 + np.arange(16, dtype=np.int64)
    begin = start[:, None] + row // 8 * stride[:, None] + row % 8 * LINE
    return array, swizzled(begin[:, :, None] + np.arange(2, dtype=np.int64) * CHUNK)


def _columns_of_a(descriptors: np.ndarray, warps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same of a matrix A that lies column by column: of 16 of its columns those 16 rows, (warps, 16, 2)."""
    array, start, _, stride = _fields(descriptors)
    column, chunk = np.arange(16, dtype=np.int64), (warps % GROUP)[:, None] * 2 + np.arange(2, dtype=np.int64)
    begin = start[:, None] + column // 8 * stride[:, None] + column % 8 * LINE
    return array, swizzled(begin[:, :, None] + chunk[:, None, :] * CHUNK)


def _rows_of_b(descriptors: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The same of the 16 rows of B: (warps, 16, columns / 8)."""
    array, start, leading, stride = _fields(descriptors)
    row, panel = np.arange(16, dtype=np.int64)[:, None], np.arange(columns // 64, dtype=np.int64)
    begin = start[:, None, None] + row // 8 * stride[:, None, None] + row % 8 * LINE
    begin = begin + panel * leading[:, None, None]
    return array, swizzled(begin[..., None] + np.arange(8, dtype=np.int64) * CHUNK).reshape(len(start), 16, -1)


def _columns_of_b(descriptors: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The same of a matrix that lies column by column: of each 32 bytes, (warps, columns, 2)."""
    array, start, _, stride = _fields(descriptors)
    column = np.arange(columns, dtype=np.int64)
    begin = start[:, None] + column // 8 * stride[:, None] + column % 8 * LINE
    return array, swizzled(begin[:, :, None] + np.arange(2, dtype=np.int64) * CHUNK)


def _load(
    m: Machine, warps: np.ndarray, groups: np.ndarray, addresses: np.ndarray, arrays: np.ndarray, line: int
) -> np.ndarray:
    """The bytes in those chunks, of each warp: (warps, rows, bytes); tells the sanitizers."""
    found = np.empty((*addresses.shape, CHUNK), np.uint8)
    for array in np.unique(arrays).tolist():
        of = arrays == array
        found[of] = _load_of(m, warps[of], groups[of], addresses[of], *engines(m).seen[array], line)
    return found.reshape(*addresses.shape[:2], -1)


def _load_of(
    m: Machine, warps: np.ndarray, groups: np.ndarray, addresses: np.ndarray, storage: Storage, name: str, line: int
) -> np.ndarray:
    """The same of warps that read one array: (warps, rows, chunks, 16)."""
    all_, lanes = engines(m), m.batch.lanes
    row = storage.values.shape[1] * storage.values.itemsize
    outside = addresses + CHUNK > row
    if outside.any():
        warp = int(np.argmax(outside.reshape(len(warps), -1).any(axis=1)))
        byte = int(addresses[outside].max())
        m.hazard("out_of_bounds", "shared", name, line, int(warps[warp]) * WARP,
                 f"{{who}} multiplies a tile up to byte {byte + CHUNK} of {{name}}, which has {row}")  # fmt: skip
        addresses = np.where(outside, 0, addresses)
    blocks = warps // lanes.warps
    raw = storage.values.view(np.uint8)
    places = addresses[..., None] + np.arange(CHUNK, dtype=np.int64)
    found = raw[as_intp(blocks)[:, None, None, None], as_intp(places)]
    found[outside] = POISON_BYTE
    if m.checks is not None:
        ((wide, _),) = memory.in_words(storage, np.int64(0), CHUNK // storage.values.itemsize)
        words = (addresses // CHUNK).reshape(len(warps), -1)
        m.checks.tiles_read(wide, blocks, words, warps % lanes.warps, name, line)
        all_.reads.append(Reads(warps, groups, wide, words, name, m.place.site or line))
    return found


# -- products --------------------------------------------------------------------------------------------------------


def ticket(value: Value) -> np.ndarray:
    """The products that sums stand for; -1 where they are numbers.

    A sum of int32 that is 0x7FB00000 or a little more would be taken for a product. It takes 131,000 products of the
    largest int8 to make one.
    """
    bits = np.ascontiguousarray(value).view(np.uint32)
    return np.where(bits & _TICKET_BITS == _TICKET, (bits & ~_TICKET_BITS).astype(np.int64), -1)


def multiply(
    m: Machine, mask: Mask, kind: str, a: Value | tuple, b: Value, c: tuple, name: str, line: int, form: str = ""
) -> tuple[Value, ...]:
    """Start c + a @ b in the warps of the mask.

    `form`: "rows" if a row of `b` in shared memory is a column, "first" if besides there is no `c` to add to, "kept" if
    `a` has the registers of `mma_f16`, and "columns" if a row of `a` in shared memory is a column.
    """
    all_, lanes, warps = engines(m), m.batch.lanes, warps_of(mask)
    columns = 2 * len(c)
    sums = np.zeros((len(warps), 16, columns), np.asarray(c[0]).dtype)
    ready_sums(m, mask, kind, None if form == "first" else c, sums, name, line)
    of_a = None if form == "kept" else of_warps(m, kind, "a", a, warps, line)
    of_b = of_warps(m, kind, "b", b, warps, line)
    group = all_.committed[warps].copy()
    word = tensor_cores.TILE_WORDS[tensor_cores.TILES[kind]]
    if form == "kept":
        left = tensor_cores.words_of_a(_registers(m, a, warps))
    else:
        a_array, a_at = (_columns_of_a if form == "columns" else _rows_of_a)(of_a, warps % lanes.warps)
        left = _load(m, warps, group, a_at, a_array, line).view(word)
        left = left.swapaxes(1, 2) if form == "columns" else left
    by_columns = kind in tensor_cores.BY_COLUMNS or form in ("rows", "first")
    b_array, b_at = (_columns_of_b if by_columns else _rows_of_b)(of_b, columns)
    right = _load(m, warps, group, b_at, b_array, line).view(word)
    right = right.swapaxes(1, 2) if by_columns else right
    for k in range(len(warps)):
        sums[k] = tensor_cores.multiply_tiles(kind, left[k], right[k], sums[k])
    return started(m, warps, sums, group)


def started(m: Machine, warps: np.ndarray, sums: np.ndarray, group: np.ndarray) -> tuple[Value, ...]:
    """Keep the sums of a product of these warps until they wait for it; the tickets that stand for them."""
    all_, lanes = engines(m), m.batch.lanes
    number = all_.made = (all_.made + 1) % TICKETS
    all_.products[number] = Product(warps, sums, group, np.zeros(len(warps), np.bool_))
    _forget(all_)
    shown = np.full((lanes.blocks, lanes.width), _TICKET | np.uint32(number), np.uint32).view(sums.dtype)
    return (shown,) * (sums.shape[2] // 2)


def _products_of(m: Machine, mask: Mask, what: str, sums: tuple, line: int) -> np.ndarray:
    """Of each warp the product that these sums stand for; -1 if they are numbers."""
    all_, warps = engines(m), warps_of(mask)
    here = mask.grid().reshape(-1, WARP)[warps]
    first = ticket(by_warps(m, sums[0])[warps])
    stands_for = first[np.arange(len(warps), dtype=np.int64), here.argmax(axis=1)]
    if (here & (first != stands_for[:, None]) & (first >= 0) & (stands_for[:, None] >= 0)).any():
        raise m.error(f"{what} must be sums of one product in all lanes of a warp, were those of two", line)
    for k, each in enumerate(sums):
        if each is not sums[0] and (here & (ticket(by_warps(m, each)[warps]) != first)).any():
            raise m.error(f"{what} must be all sums of one product, or numbers: element {k} is of another kind", line)
    for product in np.unique(stands_for[stands_for >= 0]).tolist():
        one, mine = all_.products.get(product), warps[stands_for == product]
        if one is None or not np.isin(mine, one.warps).all():
            bits = int(_TICKET) | product
            raise m.error(
                f"{what} must be numbers or the sums of a product that were not used before; it holds {bits:#x}, a NaN "
                "that stands for another product", line,
            )  # fmt: skip
        if len(sums) * 2 != one.sums.shape[2]:
            has = one.sums.shape[2] // 2
            raise m.error(f"{what} must be all {has} sums of a product, was {len(sums)} of them", line)
        if one.passed[np.searchsorted(one.warps, mine)].any():
            raise m.error(
                f"{what} must be sums that were not used before: a product or wgmma_wait has been given these", line
            )
    return stands_for


def ready_sums(m: Machine, mask: Mask, kind: str, c: tuple | None, sums: np.ndarray, name: str, line: int) -> None:
    """Put into `sums` what a product adds to."""
    all_, warps = engines(m), warps_of(mask)
    stands_for = np.full(len(warps), -1, np.int64) if c is None else _products_of(m, mask, f"{kind}: {name}", c, line)
    numbers = stands_for < 0
    unready = numbers & ~all_.ready[warps]
    if m.checks is not None and unready.any():
        m.hazard("race", "register", name, line, int(warps[int(np.argmax(unready))]) * WARP,
                 "{who} multiplies with sums {name} that the engine may not see yet: no wgmma_fence() since they were "
                 "written or waited for")  # fmt: skip
    if c is not None and numbers.any():
        registers_read(m, warps[numbers & all_.ready[warps]], c, name, line)
        sums[numbers] = tensor_cores.tile_of(_registers(m, c, warps[numbers]))
    for product in np.unique(stands_for[~numbers]).tolist():
        found = all_.products[product]
        chosen = stands_for == product
        places = np.searchsorted(found.warps, warps[chosen])
        sums[chosen] = found.sums[places]
        found.passed[places] = True


def _forget(all_: Engines) -> None:
    """Keep what is under way, and the last products that were: those that all their warps have passed on can go."""
    if len(all_.products) > KEPT:
        over = [number for number, found in all_.products.items() if found.passed.all()]
        for number in over[: KEPT // 2]:
            del all_.products[number]


def _registers(m: Machine, values: tuple, warps: np.ndarray) -> np.ndarray:
    """Registers of some warps: (warps, 32, registers)."""
    found = [np.asarray(v) for v in values]
    return np.stack([by_warps(m, v)[warps] for v in found], axis=2)


def commit(m: Machine, mask: Mask) -> None:
    """Make a group of the products that each warp has started."""
    engines(m).committed[warps_of(mask)] += 1


def fence(f: Frame, call: Any) -> None:
    """What these warps have written into registers is there for products to come."""
    all_, warps = engines(f.m), warps_of(f.mask)
    all_.ready[warps] = True
    if f.m.checks is not None:
        all_.seen_at_fence[warps] = fences.seen(f, call, warps)


def registers_read(m: Machine, warps: np.ndarray, numbers: tuple, name: str, line: int) -> None:
    """Report numbers that these warps give to a product and that they have computed after their last fence."""
    if m.checks is None:
        return
    shown = engines(m).seen_at_fence[warps]
    for seen in {id(each): each for each in shown if each is not None}.values():
        mine = warps[[each is seen for each in shown]]
        for number in numbers:
            found = seen.has(number, mine)
            if not found.all():
                m.hazard("race", "register", name, line, int(mine[int(np.argmin(found))]) * WARP,
                         "{who} multiplies with {name}, computed after its last wgmma_fence(): the engine may not see "
                         "it yet")  # fmt: skip
                return


def wait(m: Machine, mask: Mask, newest: int, sums: tuple, name: str, line: int) -> tuple[Value, ...]:
    """The sums, where they belong to a group that is not among the newest; else their tickets."""
    all_, lanes, warps = engines(m), m.batch.lanes, warps_of(mask)
    all_.ready[warps] = False
    if m.checks is not None:
        mine = np.zeros(lanes.blocks * lanes.warps, np.bool_)
        mine[warps] = True
        all_.reads = [rest for each in all_.reads if (rest := _read_until(m, each, mine, newest)) is not None]
    stands_for = _products_of(m, mask, f"wgmma_wait: {name}", sums, line)
    full = None
    for product in np.unique(stands_for[stands_for >= 0]).tolist():
        found = all_.products[product]
        places = np.searchsorted(found.warps, warps[stands_for == product])
        done = places[found.group[places] < all_.committed[found.warps[places]] - newest]
        if done.size:
            if full is None:
                full = np.empty((lanes.blocks * lanes.warps, WARP, len(sums)), np.asarray(sums[0]).dtype)
                full[...] = by_warps(m, sums[0])[:, :, None]
                plain = warps[stands_for < 0]
                if plain.size or len(warps) < len(full):
                    others = np.setdiff1d(np.arange(len(full), dtype=np.int64), warps[stands_for >= 0])
                    full[others] = _registers(m, sums, others)
            full[found.warps[done]] = tensor_cores.registers_of(found.sums[done])
            found.passed[done] = True
    if full is None:
        return sums
    return tuple(np.ascontiguousarray(full[:, :, k]).reshape(lanes.blocks, lanes.width) for k in range(len(sums)))


def _read_until(m: Machine, reads: Reads, mine: np.ndarray, newest: int) -> Reads | None:
    """Tell of reads that have come to an end with this wait; those that have not."""
    all_, lanes = engines(m), m.batch.lanes
    over = mine[reads.warps] & (reads.group < all_.committed[reads.warps] - newest)
    if not over.any():
        return reads
    each = reads.warps[over]
    site, m.place.site = m.place.site, None
    m.checks.tiles_read(
        reads.storage, each // lanes.warps, reads.at[over], each % lanes.warps, reads.name, reads.line, again=True
    )
    m.place.site = site
    if over.all():
        return None
    return reads._replace(warps=reads.warps[~over], group=reads.group[~over], at=reads.at[~over])


# -- barriers --------------------------------------------------------------------------------------------------------


def _barrier(m: Machine, storage: Storage, at: int, line: int) -> tuple[tuple[int, int], Barrier]:
    key = id(storage.cells), at
    found = engines(m).barriers.get(key)
    if found is None:
        raise m.error("this mbarrier was not initialised: one thread calls mbarrier_init", line)
    return key, found


def each_barrier(m: Machine, mask: Mask, storage: Storage, at: Value) -> list[tuple[int, Mask]]:
    """The barriers that these lanes mean, with the lanes of each."""
    at = np.asarray(at)
    if at.size == 1:
        return [(int(at.reshape(-1)[0]), mask)]
    found = []
    for one in np.unique(spread(at, (mask.of.blocks, mask.of.width))[mask.grid()]).tolist():
        here, _ = mask.split(at == one)
        found.append((one, here))
    return found


def initialise(m: Machine, mask: Mask, storage: Storage, at: int, count: Value, name: str, line: int) -> None:
    """A barrier whose phases end after `count` arrivals."""
    grid = mask.grid()
    barrier = engines(m).barriers.setdefault((id(storage.cells), at), Barrier(len(grid)))
    rows = grid.any(axis=1)
    before = barrier.line[rows & (barrier.line > 0)]
    if before.size:
        raise m.error(f"mbarrier_init: {name} is initialised already (line {before[0]})", line)
    counts = spread(np.asarray(count), grid.shape)
    first = counts[np.arange(len(grid), dtype=np.int64), grid.argmax(axis=1)]
    if (grid & (counts != first[:, None])).any():
        raise m.error(f"mbarrier_init: count must be the same in all threads that initialise {name}", line)
    barrier.count[rows] = barrier.left[rows] = first[rows]
    barrier.line[rows] = line


def arrive(m: Machine, mask: Mask, storage: Storage, at: int, size: Value, name: str, line: int) -> None:
    """Each of these lanes arrives, and expects so many bytes more."""
    key, barrier = _barrier(m, storage, at, line)
    arrivals = mask.grid().sum(axis=1, dtype=np.int64)
    barrier.left -= arrivals
    barrier.bytes += (mask.grid() * spread(np.asarray(size), mask.grid().shape)).sum(axis=1, dtype=np.int64)
    if (barrier.left < 0).any():
        row = int(np.argmax(barrier.left < 0))
        lane = int(np.flatnonzero(mask.grid()[row])[-1]) + row * m.batch.lanes.width
        raise m.error(
            f"{m.named(*m.batch.lanes.threads_at(lane))} arrives at {name}, whose phase has had its "
            f"{int(barrier.count[row])} arrivals", line,
        )  # fmt: skip
    if m.checks is not None:
        m.checks.arrives(mask, key)
    m.writes += 1
    _complete(m, key, barrier)


def _complete(m: Machine, key: tuple[int, int], barrier: Barrier) -> None:
    """End the phases of barriers that have nothing left to count: what was copied is there."""
    over = (barrier.left == 0) & (barrier.bytes == 0) & (barrier.count > 0)
    if not over.any():
        return
    barrier.phase[over] += 1
    barrier.left[over] = barrier.count[over]
    rest = []
    for landing in barrier.landings:
        if not over[landing.row]:
            rest.append(landing)
            continue
        landing.storage.values[landing.row].view(np.uint8).reshape(-1, CHUNK)[as_intp(landing.at)] = landing.words
    barrier.landings = rest
    if m.checks is not None:
        m.checks.completes(np.flatnonzero(over) + m.batch.lanes.first, key)
    m.writes += 1


def has_ended(m: Machine, mask: Mask, storage: Storage, at: int, parity: Value, line: int) -> bool:
    """Whether the phase of this parity has ended for all of these lanes."""
    if m.checks is not None and (id(storage.cells), at) not in engines(m).barriers:
        return False  # the sanitizers have told that nobody has written it yet
    key, barrier = _barrier(m, storage, at, line)
    wanted = spread(np.asarray(parity), (mask.of.blocks, mask.of.width))
    now = barrier.phase[:, None] & 1
    m.reads += 1
    if (mask.grid() & (now == wanted)).any():
        return False
    if m.checks is not None:
        m.checks.has_waited(mask, key)
    return True


def lacks(all_: Engines, storage: Storage, at: int, row: int, name: str) -> str:
    """What a barrier of a block is waited for, and what its phase needs to end."""
    barrier = all_.barriers.get((id(storage.cells), at))
    if barrier is None:
        return f"at {name}, which no thread has initialised"
    left, size = int(barrier.left[row]), int(barrier.bytes[row])
    missing = [f"{left} of {int(barrier.count[row])} arrivals"] if left else []
    missing += [f"{size:,} bytes"] if size > 0 else []
    text = f"at {name} for the end of phase {int(barrier.phase[row])}"
    text += f", which lacks {' and '.join(missing)}" if missing else ""
    return text + (f", which has {-size:,} bytes more than were expected" if size < 0 else "")


# -- bulk copies -----------------------------------------------------------------------------------------------------


class Map(NamedTuple):
    """A tensor map as the interpreter has it: a matrix of 16-bit numbers, and the box that a copy moves."""

    address: int
    rows: int
    columns: int
    box_rows: int
    box_columns: int


MAGIC = 0x504D5050  # the first word of a map of the interpreter
WORDS = 16


def words_of(one: Map) -> tuple[np.uint64, ...]:
    """The map as 16 words."""
    return tuple(np.uint64(v) for v in (MAGIC, *one, *(0,) * (WORDS - 1 - len(one))))


def _box(
    m: Machine, what: str, lane: int, maps: tuple[Storage, int], corner: tuple[int, int], name: str, line: int
) -> tuple[Storage, np.ndarray, np.ndarray]:
    """The matrix of a tensor map; for each 16-bit number of a box whether it lies inside, and where it is."""
    found = [int(v) for v in maps[0].values.reshape(-1)[max(maps[1], 0) : max(maps[1] + WORDS, 0)]]
    if len(found) < WORDS or found[0] != MAGIC:
        raise m.error(f"{what}: no tensor map lies at {name}[{maps[1]}]: place_map puts one there", line)
    if m.checks is not None and maps[0].space == "global":
        m.checks.map_read(maps[0], maps[1], WORDS, lane, name, line)
    box = Map(*found[1 : 1 + len(Map._fields)])
    at = m.launch.at(box.address)
    if at is None:
        raise m.error(f"{what}: the matrix of this tensor map is no live array; was it freed?", line)
    storage, start = at
    row, column = corner
    for argument, place in (("row", row), ("column", column)):
        if not -(1 << 31) <= place < 1 << 31:
            raise m.error(f"{what}: {argument} must be from {-(1 << 31)} to {(1 << 31) - 1}, was {place}", line)
    rows = np.arange(row, row + box.box_rows, dtype=np.int64)
    columns = np.arange(column, column + box.box_columns, dtype=np.int64)
    there = ((rows >= 0) & (rows < box.rows))[:, None] & ((columns >= 0) & (columns < box.columns))
    return storage, there, start // 2 + rows[:, None] * box.columns + columns


def _words_of_box(
    m: Machine, what: str, lane: int, end: tuple[Array, int], halves: int, name: str, line: int
) -> tuple[Storage, np.ndarray] | None:
    """Where the chunks of a box of so many 16-bit numbers lie in shared memory, as words of 16 bytes."""
    array, begin = end
    refuse_unaligned(m, what, array, name, line)
    itemsize = array.dtype.itemsize
    ((wide, _),) = memory.in_words(array.storage, np.int64(0), CHUNK // itemsize)
    byte = begin * itemsize
    if byte % ATOM:
        raise m.error(f"{what}: {name}[{begin}] does not begin at a multiple of {ATOM} bytes", line)
    has = array.storage.values.shape[1]
    if byte + 2 * halves > has * itemsize:
        verb = "copies" if what == "bulk_tile" else "stores"
        way = "to" if what == "bulk_tile" else "from"
        m.hazard("out_of_bounds", "shared", name, line, lane,
                 f"{{who}} {verb} {halves} elements {way} {{name}}[{begin}] and on, but it has {has}")  # fmt: skip
        return None
    return wide, swizzled(byte + np.arange(2 * halves // CHUNK, dtype=np.int64) * CHUNK) // CHUNK


def _count(m: Machine, lane: int, sectors: np.ndarray, size: int, matrix: Storage, name: str, kind: str, line: int):
    if m.counts is not None:
        one = np.zeros((m.batch.lanes.blocks, m.batch.lanes.width), np.bool_)
        one.reshape(-1)[lane] = True
        m.counts.bulk(line, Mask(m.batch.lanes, one, 1), np.unique(sectors), size, matrix, name, kind)


def copy_tile(
    m: Machine,
    lane: int,
    target: tuple[Array, int],
    maps: tuple[Storage, int],
    corner: tuple[int, int],
    barrier: tuple[Storage, int],
    names: tuple[str, str],
    line: int,
) -> None:
    """One thread starts to copy a box of a matrix into shared memory, with its chunks exchanged."""
    source, there, places = _box(m, "bulk_tile", lane, maps, corner, names[1], line)
    if m.pending:
        m.settle_one(source)
    halves = source.values.reshape(-1).view(np.uint16)
    m.reads += 1
    content = np.zeros(there.shape, np.uint16)
    content[there] = halves[as_intp(places[there])]
    found = _words_of_box(m, "bulk_tile", lane, target, content.size, names[0], line)
    if found is None:
        return
    (wide, words), size, block = found, content.size * 2, lane // m.batch.lanes.width
    raw = content.reshape(-1).view(np.uint8).reshape(-1, CHUNK)
    key, counts = _barrier(m, *barrier, line)
    _count(m, lane, places[there] * 2 // 32, size, source, names[1], "load", line)
    if m.checks is not None:
        matrix = f"the matrix of {names[1]}"
        m.checks.tile_begins((wide, block, words), (source, there, places), lane, (names[0], matrix), line, key)
    wide.values[block].view(np.uint8).reshape(-1, CHUNK)[as_intp(words)] = POISON_BYTE
    counts.landings.append(Landing(block, wide, words, raw))
    counts.bytes[block] -= size
    m.writes += 1
    _complete(m, key, counts)


# -- bulk stores -----------------------------------------------------------------------------------------------------


def store_tile(
    m: Machine,
    lane: int,
    source: tuple[Array, int],
    maps: tuple[Storage, int],
    corner: tuple[int, int],
    names: tuple[str, str],
    line: int,
) -> None:
    """One thread stores a box of shared memory into a matrix: its chunks are exchanged back, and its edges left out."""
    target, there, places = _box(m, "bulk_store", lane, maps, corner, names[1], line)
    memory.writable(m, target, f"the matrix of {names[1]}", line)
    found = _words_of_box(m, "bulk_store", lane, source, there.size, names[0], line)
    if found is None:
        return
    (wide, words), all_, block = found, engines(m), lane // m.batch.lanes.width
    raw = wide.values[block].view(np.uint8).reshape(-1, CHUNK)[as_intp(words)]
    content = np.ascontiguousarray(raw).reshape(-1).view(np.uint16).reshape(there.shape)
    _count(m, lane, places[there] * 2 // 32, int(np.count_nonzero(there)) * 2, target, names[1], "store", line)
    m.reads += 1
    if m.checks is not None:
        site = m.place.site
        m.checks.box_read(wide, block, words, lane, names[0], line)
        shown = names[0] if site is None else site.named(names[0])
        all_.stores.append(Stored(lane, int(all_.groups[lane]), wide, words, shown, site or line))
    if m.pending:
        m.settle_one(target)
    m.writes += 1
    halves, inside, new = target.values.reshape(-1).view(np.uint16), places[there], content[there]
    if m.checks is not None and inside.size:
        differs = halves[as_intp(inside)] != new
        m.checks.box_written(target, inside, differs, lane, f"the matrix of {names[1]}", line)
    halves[as_intp(inside)] = new


def commit_stores(m: Machine, mask: Mask) -> None:
    """Make a group of the bulk stores that each thread has started."""
    engines(m).groups[as_intp(mask.places())] += 1


def wait_stores(m: Machine, mask: Mask, newest: int) -> None:
    """These threads know that all their groups but the newest have been read."""
    if m.checks is None:
        return
    all_ = engines(m)
    mine = np.zeros(all_.groups.size, np.bool_)
    mine[as_intp(mask.places())] = True
    rest = []
    for each in all_.stores:
        if mine[each.lane] and each.group < all_.groups[each.lane] - newest:
            site, m.place.site = m.place.site, None
            block = each.lane // m.batch.lanes.width
            m.checks.box_read(each.storage, block, each.at, each.lane, each.name, each.line, again=True)
            m.place.site = site
        else:
            rest.append(each)
    all_.stores = rest


# -- the end ---------------------------------------------------------------------------------------------------------


def ends(m: Machine, mask: Mask) -> None:
    """These lanes have ended: tell of their stores that may still read, and of copies to blocks that are gone now."""
    all_, batch = m.batch.engines, m.batch
    if m.checks is None or all_ is None:
        return
    gone, rest = mask.grid().reshape(-1), []
    for each in all_.stores:
        if gone[each.lane]:
            m.checks.store_left(each.lane, each.name, each.line)
        else:
            rest.append(each)
    all_.stores = rest
    if batch.lanes is not batch.lanes.root:  # lanes by themselves: such a kernel has no mbarriers
        return
    over = mask.grid() if batch.exited is None else mask.grid() | batch.exited
    for row in np.flatnonzero(over.sum(axis=1, dtype=np.int64) >= batch.lanes.per_block).tolist():
        m.checks.block_ends(batch.lanes.first + row)
