"""Lanes: one NumPy array stands for one variable in every thread of a batch.

A batch is B blocks of T threads, T rounded up to whole warps, so its lanes form a grid of shape (B, T).  A value is
kept in the smallest shape that broadcasts to that grid, which is why index arithmetic is cheap:

    ()      the same in every thread        a literal, a scalar argument, `blockDim.x`
    (1, T)  the same in every block         `threadIdx.x`
    (B, 1)  the same in a whole block       `blockIdx.x`
    (B, T)  everything else

A mask says which lanes execute.  It has one of the same shapes, or no array at all when every lane does.
"""

from __future__ import annotations

import numpy as np

WARP = 32


class Lanes:
    """The lanes of one batch: which blocks and threads they are, and the masks over them."""

    def __init__(self, grid: tuple[int, int, int], block: tuple[int, int, int], first: int, count: int) -> None:
        self.grid, self.block = grid, block
        self.first, self.blocks = first, count
        self.per_block = block[0] * block[1] * block[2]
        self.warps = -(-self.per_block // WARP)
        self.width = self.warps * WARP
        self.size = self.blocks * self.width
        t = np.arange(self.width, dtype=np.int64)[None, :]
        b = np.arange(first, first + count, dtype=np.int64)[:, None]
        self.thread_index = _unflatten(t, block)
        self.block_index = _unflatten(b, grid)
        self.lane = (t % WARP).astype(np.int32)
        self.linear_thread = t
        self.block_row = np.arange(count, dtype=np.int64)[:, None]
        bits = t < self.per_block if self.width != self.per_block else None
        self.full = Mask(self, bits)
        self.cached_grid: dict[int, np.ndarray] = {}  # cuda.grid(), computed once an axis
        self.cached_columns: dict[object, np.ndarray] = {}  # where shuffles read, computed once for each number

    def forget(self) -> None:
        """Let go of what was kept: masks and lanes refer to each other, and Python would keep it for a while."""
        self.cached_grid.clear()
        self.cached_columns.clear()
        self.full.forget()

    def threads_at(self, flat: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Block and thread coordinates of position `flat` in the (B, T) grid of lanes."""
        b, t = divmod(int(flat), self.width)
        return _coordinates(self.first + b, self.grid), _coordinates(t, self.block)


def _unflatten(flat: np.ndarray, extent: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, _ = extent
    parts = (flat % x, flat // x % y, flat // (x * y))
    # An axis of extent 1 is the same everywhere: keep it a scalar, so that what is computed from it stays small.
    return tuple(p.astype(np.int32) if n > 1 else np.int32(0) for p, n in zip(parts, extent, strict=True))


def _coordinates(flat: int, extent: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = extent
    return flat % x, flat // x % y, flat // (x * y)


class Mask:
    """A non-empty set of active lanes.  `bits` is None when it is all of them.  The empty set is None, not a Mask."""

    __slots__ = ("_active_warps", "_columns", "_grid", "_places", "bits", "lanes", "of")

    def __init__(self, of: Lanes, bits: np.ndarray | None, count: int | None = None) -> None:
        self.of, self.bits = of, bits
        if count is None:
            count = of.size if bits is None else int(np.count_nonzero(bits)) * (of.size // bits.size)
        self.lanes = count  # how many are active
        self._active_warps: int | None = None
        self._columns: np.ndarray | None = None
        self._grid: np.ndarray | None = None
        self._places: np.ndarray | None = None

    @property
    def warps(self) -> int:
        """How many warps have an active lane: an instruction is issued once for each of them."""
        if self._active_warps is None:
            of, bits = self.of, self.bits
            if bits is None:
                self._active_warps = of.blocks * of.warps
            elif bits.shape[1] == 1:
                self._active_warps = int(np.count_nonzero(bits)) * of.warps * (of.blocks // bits.shape[0])
            else:
                any_lane = bits.reshape(bits.shape[0], of.warps, WARP).any(axis=2)
                self._active_warps = int(np.count_nonzero(any_lane)) * (of.blocks // bits.shape[0])
        return self._active_warps

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
        self._columns = self._grid = self._places = None

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
