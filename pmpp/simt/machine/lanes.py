"""Lanes: one NumPy array stands for one variable in every thread of a batch.

A batch is B blocks of T threads, T rounded up to whole warps, so its lanes form a grid of shape (B, T).  A value is
kept in the smallest shape that broadcasts to that grid, which is why index arithmetic is cheap:

    ()      the same in every thread        a literal, a scalar argument, `blockDim.x`
    (1, T)  the same in every block         `threadIdx.x`
    (B, 1)  the same in a whole block       `blockIdx.x`
    (B, T)  everything else

A mask says which lanes execute.  It has one of the same shapes, or no array at all when every lane does.

Where only a few lanes are left in a loop, their warps are gathered into a short batch (`Few`), in which each warp is a
row of its own.  What is computed there is the same, warp by warp: instructions, addresses and counters.
"""

from __future__ import annotations

import functools

import numpy as np

from pmpp.simt.values.dtypes import as_intp

WARP = 32

#: Batches of at most this many lanes are kept for later launches of the same size, a few of them.
KEPT_LANES = 1 << 12


class Lanes:
    """The lanes of one batch: which blocks and threads they are, and the masks over them."""

    def __init__(self, grid: tuple[int, int, int], block: tuple[int, int, int], first: int, count: int) -> None:
        self.root: Lanes = self  # the batch in which each block is a row
        self.grid, self.block = grid, block
        self.first, self.blocks = first, count
        self.per_block = block[0] * block[1] * block[2]
        self.warps = -(-self.per_block // WARP)
        self.width = self.warps * WARP
        self.size = self.blocks * self.width
        self.linear_thread = np.arange(self.width, dtype=np.int64)[None, :]
        bits = self.linear_thread < self.per_block if self.width != self.per_block else None
        self.full = Mask(self, bits)
        self.cached_grid: dict[int, np.ndarray] = {}  # cuda.grid(), computed once an axis
        self.cached_columns: dict[object, np.ndarray] = {}  # where shuffles read, computed once for each number
        self.cached_places: dict[Lanes, np.ndarray] = {}

    # Most kernels ask for few of these: each is computed when the first one asks.

    @functools.cached_property
    def block_row(self) -> np.ndarray:
        """The row of each lane's block in the batch."""
        return np.arange(self.blocks, dtype=np.int64)[:, None]

    @functools.cached_property
    def thread_index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`threadIdx`, an array an axis."""
        return _unflatten(self._in_block(), self.block)

    @functools.cached_property
    def block_index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`blockIdx`, an array an axis."""
        return _unflatten(self.block_row + self.first, self.grid)

    @functools.cached_property
    def lane(self) -> np.ndarray:
        """The number of each lane in its warp."""
        return ((self._in_block() if self.width == 1 else self.linear_thread) % WARP).astype(np.int32)

    def _in_block(self) -> np.ndarray:
        """The number of each lane in its block."""
        return self.linear_thread

    def forget(self) -> None:
        """Let go of what was kept: masks and lanes refer to each other, and Python would keep it for a while."""
        self.cached_grid.clear()
        self.cached_columns.clear()
        self.cached_places.clear()
        self.full.forget()

    def places_in(self, home: Lanes) -> np.ndarray:
        """The flat position of each lane in the (B, T) grid of `home`, of which these are some, or all."""
        found = self.cached_places.get(home)
        if found is None:
            found = self.cached_places[home] = self._find_places(home)
        return found

    def _find_places(self, home: Lanes) -> np.ndarray:
        assert home is self, "memory of a short batch is used outside it"
        return np.arange(self.size, dtype=np.int64).reshape(self.blocks, self.width)

    def threads(self, flat: np.ndarray) -> np.ndarray:
        """Ids of the threads at flat positions of these lanes: they count through the padded grid of the launch."""
        return flat + np.int64(self.first * self.width)

    def threads_at(self, flat: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Block and thread coordinates of position `flat` in the (B, T) grid of lanes."""
        b, t = divmod(int(flat), self.width)
        return _coordinates(self.first + b, self.grid), _coordinates(t, self.block)


class Few(Lanes):
    """Some of other lanes, as a batch by themselves: single lanes, or whole warps.

    A row is a lane (`width` 1), or a warp (32).  They keep their order, so that lanes have the same order here and
    there.  A value of the other lanes becomes one of these by `pick`, and goes back by `put`.  Single lanes remember
    the warp from which they come, because instructions and requests are counted by warps.

    A row may also be what a lane, or the lanes of a block, are in one of several rounds of a loop: `rounds` says in
    which.  Each round has its own warps.
    """

    def __init__(self, around: Lanes, rows: np.ndarray, width: int, rounds: np.ndarray | None = None) -> None:
        root = self.root = around.root
        self.around, self.rows = around, as_intp(rows)
        self.grid, self.block = root.grid, root.block
        self.first, self.per_block = root.first, root.per_block
        self.blocks, self.width, self.warps = rows.size, width, width // WARP
        self.size = self.blocks * width
        self._part = around.width // width  # rows that one of the other lanes' rows is divided into
        self._only = int(rows[0]) if self.size == 1 else None  # a single lane's values need no array
        first = rows * np.int64(width)  # where each row begins among the other lanes
        if isinstance(around, Few):
            first = around._starts.take(as_intp(self.rows // self._part)) + first % around.width
        self._starts = first  # and in the (B, T) grid of the whole batch
        self.linear_thread = np.arange(width, dtype=np.int64)[None, :]
        self.warp_of: np.ndarray | None = None  # of single lanes, a number for each warp; None if no two share one
        self.warp_count = self.blocks
        if width == 1 and self.blocks > 1:
            warp = first // WARP
            if rounds is not None:
                warp = warp + rounds * (root.size // WARP)
            new = warp[1:] != warp[:-1]
            if not new.all():
                self.warp_of = np.concatenate([np.zeros(1, np.int64), np.cumsum(new, dtype=np.int64)])
                self.warp_count = int(self.warp_of[-1]) + 1
        bits = None if width == 1 else around.full.bits
        self.full = Mask(self, None if bits is None else self.pick(bits))
        if self.full.lanes == self.size:
            self.full.bits = None
        self.cached_grid, self.cached_columns, self.cached_places = {}, {}, {}

    @functools.cached_property
    def only_thread(self) -> int:
        """The id of the thread that a single lane is."""
        return int(self._starts[0]) + self.root.first * self.root.width

    @functools.cached_property
    def block_row(self) -> np.ndarray:
        return self._rows_begin() // self.root.width

    def _in_block(self) -> np.ndarray:
        begin = self._rows_begin() % self.root.width
        return begin if self.width == 1 else begin + self.linear_thread

    def _rows_begin(self) -> np.ndarray:
        """Where each row begins in the (B, T) grid of the whole batch."""
        return self._starts[0] if self.size == 1 else self._starts[:, None]

    def _find_places(self, home: Lanes) -> np.ndarray:
        if home is self:
            return super()._find_places(home)
        if home is self.around:
            return self.rows.astype(np.int64)[:, None] * self.width + self.linear_thread
        return spread(self.pick(self.around.places_in(home)), (self.blocks, self.width))

    def as_warps(self, addresses: np.ndarray, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of single lanes, a warp a row, and which of them are of active lanes."""
        shape = (self.warp_count, WARP)
        rows, active = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        places = as_intp(mask.places())
        warps = places if self.warp_of is None else as_intp(self.warp_of).take(places)
        columns = as_intp(spread(self.lane, (self.blocks, 1)).reshape(-1)).take(places)
        rows[warps, columns] = spread(addresses, (self.blocks, 1)).reshape(-1).take(places)
        active[warps, columns] = True
        return rows, active

    def threads(self, flat: np.ndarray) -> np.ndarray:
        root = self.root
        return self._starts.take(as_intp(flat // self.width)) + flat % self.width + np.int64(root.first * root.width)

    def threads_at(self, flat: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        row, column = divmod(int(flat), self.width)
        return self.root.threads_at(int(self._starts[row]) + column)

    def pick(self, value: np.ndarray) -> np.ndarray:
        """A value of the other lanes in these."""
        if value.ndim == 0 or value.size == 1:
            return value if self._only is None or value.ndim == 0 else value.reshape(-1)[0]
        rows, columns = value.shape
        if self._only is not None:
            row, column = divmod(self._only, self.around.width)
            return value[row if rows > 1 else 0, column if columns > 1 else 0]
        if columns == 1:
            return value.take(as_intp(self.rows // self._part), axis=0)
        if self._part == 1:
            return value if rows == 1 else value.take(as_intp(self.rows), axis=0)
        places = self.rows % self._part if rows == 1 else self.rows
        return value.reshape(-1, self.width).take(as_intp(places), axis=0)

    def put(self, value: np.ndarray, old: np.ndarray | None) -> np.ndarray:
        """A value of these lanes among the other ones, which keep what they had (0 if that is nothing)."""
        around = self.around
        full = np.zeros((around.blocks, around.width), value.dtype)
        if old is not None:
            full[...] = old
        full.reshape(-1, self.width)[self.rows] = value
        return full

    def mask(self, of_others: Mask) -> Mask:
        """Those lanes of a mask of the other lanes that are here; perhaps none."""
        bits = of_others.bits
        if bits is None:
            return Mask(self, None)
        bits = self.pick(bits)
        found = Mask(self, bits if bits.ndim else np.full((1, 1), bits))
        if found.lanes == self.size:
            found.bits = None
        return found

    def mask_outside(self, mask: Mask) -> Mask:
        """The same lanes among the other ones."""
        return Mask(self.around, self.put(mask.grid(), None), mask.lanes)


@functools.lru_cache(maxsize=8)
def kept_lanes(grid: tuple[int, int, int], block: tuple[int, int, int], first: int, count: int) -> Lanes:
    """Lanes that several launches share, also at the same time: nobody may call `forget`."""
    return Lanes(grid, block, first, count)


def _unflatten(flat: np.ndarray, extent: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, z = extent
    if y == z == 1:
        return (flat.astype(np.int32) if x > 1 else np.int32(0)), np.int32(0), np.int32(0)
    parts = (flat % x, flat // x % y, flat // (x * y))
    # An axis of extent 1 is the same everywhere: keep it a scalar, so that what is computed from it stays small.
    return tuple(p.astype(np.int32) if n > 1 else np.int32(0) for p, n in zip(parts, extent, strict=True))


def _coordinates(flat: int, extent: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = extent
    return flat % x, flat // x % y, flat // (x * y)


class Mask:
    """A non-empty set of active lanes.  `bits` is None when it is all of them.  The empty set is None, not a Mask."""

    __slots__ = ("_active_warps", "_columns", "_grid", "_places", "_threads", "bits", "lanes", "of")

    def __init__(self, of: Lanes, bits: np.ndarray | None, count: int | None = None) -> None:
        self.of, self.bits = of, bits
        if count is None:
            count = of.size if bits is None else int(np.count_nonzero(bits)) * (of.size // bits.size)
        self.lanes = count  # how many are active
        self._active_warps: int | None = None
        self._columns: np.ndarray | None = None
        self._grid: np.ndarray | None = None
        self._places: np.ndarray | None = None
        self._threads: np.ndarray | None = None

    @property
    def warps(self) -> int:
        """How many warps have an active lane: an instruction is issued once for each of them."""
        if self._active_warps is None:
            of, bits = self.of, self.bits
            if of.width == 1:
                self._active_warps = self._warps_of_single_lanes()
            elif bits is None:
                self._active_warps = of.blocks * of.warps
            elif bits.shape[1] == 1:
                self._active_warps = int(np.count_nonzero(bits)) * of.warps * (of.blocks // bits.shape[0])
            else:
                any_lane = bits.reshape(bits.shape[0], of.warps, WARP).any(axis=2)
                self._active_warps = int(np.count_nonzero(any_lane)) * (of.blocks // bits.shape[0])
        return self._active_warps

    def _warps_of_single_lanes(self) -> int:
        of = self.of
        if self.bits is None:
            return of.warp_count
        if of.warp_of is None:
            return self.lanes
        warps = of.warp_of.take(as_intp(self.places()))
        return int(np.count_nonzero(warps[1:] != warps[:-1])) + 1

    def split(self, condition: np.ndarray) -> tuple[Mask | None, Mask | None]:
        """The active lanes where `condition` holds, and those where it does not."""
        yes = condition if self.bits is None else self.bits & condition
        chosen = Mask(self.of, yes)
        if chosen.lanes == self.lanes:
            return self, None
        no = ~condition if self.bits is None else self.bits & ~condition
        return (chosen if chosen.lanes else None), Mask(self.of, no, self.lanes - chosen.lanes)

    def without(self, gone: np.ndarray | None) -> Mask | None:
        """The active lanes that are not in `gone`."""
        if gone is None:
            return self
        rest = Mask(self.of, ~gone if self.bits is None else self.bits & ~gone)
        if rest.lanes == self.lanes:
            return self
        return rest if rest.lanes else None

    def overlaps(self, other: Mask) -> bool:
        """Whether the masks have a lane in common."""
        if self.bits is None or other.bits is None:
            return True
        return bool((self.bits & other.bits).any())

    def covers(self, other: Mask) -> bool:
        """Whether every lane of `other` is in this mask."""
        if self is other or self.bits is None:
            return True
        if other.bits is None:
            return self.lanes == other.lanes
        return not (other.bits & ~self.bits).any()

    def grid(self) -> np.ndarray:
        """The mask as a full (B, T) array, which nobody may change."""
        if self._grid is None:
            shape = (self.of.blocks, self.of.width)
            self._grid = np.ones(shape, np.bool_) if self.bits is None else spread(self.bits, shape)
        return self._grid

    def forget(self) -> None:
        """Let go of what was computed once."""
        self._columns = self._grid = self._places = self._threads = None

    def columns(self) -> np.ndarray:
        """The active threads of a block, in order, where the mask is the same in every block."""
        if self._columns is None:
            of, bits = self.of, self.bits
            self._columns = of.linear_thread[0] if bits is None else np.flatnonzero(spread(bits[0], (of.width,)))
        return self._columns

    def places(self) -> np.ndarray:
        """The flat positions of the active lanes in the (B, T) grid, in order."""
        if self._places is None:
            self._places = np.flatnonzero(self.grid())
        return self._places

    def threads(self) -> np.ndarray:
        """The ids of the active threads, in order."""
        if self._threads is None:
            self._threads = self.of.threads(self.places())
        return self._threads


def spread(value: np.ndarray | np.generic, shape: tuple[int, ...]) -> np.ndarray:
    """The value as a full array of that shape.  For a batch of lanes a copy is made faster than a broadcast view."""
    if value.shape == shape:
        return value
    full = np.empty(shape, value.dtype)
    full[...] = value
    return full


def packed(flags: np.ndarray) -> np.ndarray:
    """32 flags along the last axis as the bits of one integer."""
    return np.packbits(flags, axis=-1, bitorder="little").view(np.dtype("<u4"))[..., 0].astype(np.uint32, copy=False)


def union(a: Mask | None, b: Mask | None) -> Mask | None:
    """Lanes in either mask."""
    if a is None or b is None:
        return a if b is None else b
    if a.bits is None or b.bits is None:
        return a if a.bits is None else b
    return Mask(a.of, a.bits | b.bits)
