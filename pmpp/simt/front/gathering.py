"""Few lanes left in a loop: they go on in a short batch, until the loop has ended for the last of them.

In lockstep each operation computes all lanes of a batch, also those that have left the loop.  A loop that one lane of
65,536 repeats ten thousand times longer than the others would cost as much as if all did.  So the lanes that are still
in the loop are gathered (`Few`, machine/lanes.py): the frame's variables and masks are picked from the batch, and put
back behind the loop.  They keep their order and know their warps.  So each instruction has the same warps and the same
addresses, and counters, results and hazards are what they would have been, in the same order.  If the loop has shuffles
or votes in it, whole warps are gathered.

A loop in which threads of a block meet, or in which memory is ordered by fences, is left as it is.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pmpp.simt.front.variables import Mixed
from pmpp.simt.machine.frames import Frame, GridGroup, Loop
from pmpp.simt.machine.lanes import WARP, Few, Mask, union
from pmpp.simt.machine.machine import Batch
from pmpp.simt.machine.memory import Array
from pmpp.simt.values.dtypes import is_number
from pmpp.simt.values.vectors import Vector

#: Names of `cuda` that a loop must not use if its lanes are to be gathered.
_TOGETHER = (
    "syncthreads", "syncwarp", "threadfence", "this_grid", "cg.", "array_at", "print", "mma_", "ldmatrix", "copy_async",
    "commit_copies", "wait_copies", "store_release_system", "load_acquire_system", "wgmma_", "tile_descriptor",
    "mbarrier_", "expect_bytes", "bulk_", "commit_stores", "wait_stores", "stmatrix", "copies_visible",
    "fewer_registers", "more_registers", "cluster_sync", "map_shared_rank",
)  # fmt: skip

#: What gathering costs for each variable, and how much a round costs for each lane, both in the time that an operation
#: takes for one more lane.  Gathering begins when the rounds so far have lost as much as it costs.
_EACH_VARIABLE, _EACH_ROUND = 20_000, 8

#: Names of `cuda` for which whole warps are gathered.
_BY_WARPS = ("shfl", "vote", "all_sync", "any_sync", "eq_sync", "ballot", "match", "activemask", "lanemask")


def width_of(paths: Iterable[str]) -> int:
    """How many lanes stay together in code that uses these names of `cuda`: 1, a warp, or 0 if all must."""
    paths = list(paths)
    if any(path.startswith(_TOGETHER) for path in paths):
        return 0
    return WARP if any(path.startswith(_BY_WARPS) for path in paths) else 1


class CannotGather(Exception):
    """A variable holds what belongs to lanes in a way that is not known here."""


def converted(value: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """A variable's value after a change of its lane arrays."""
    if isinstance(value, np.ndarray):
        return change(value)
    if isinstance(value, Array):
        parts = (value.offset, *value.shape, *value.strides)
        if not any(isinstance(part, np.ndarray) for part in parts):
            return value
        offset, *rest = (change(part) if isinstance(part, np.ndarray) else part for part in parts)
        return Array(value.storage, value.dtype, tuple(rest[: value.ndim]), tuple(rest[value.ndim :]), offset)
    if isinstance(value, tuple):
        made = [converted(part, change) for part in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if isinstance(value, Vector):
        return value.map(lambda part: converted(part, change))
    plain = (np.generic, np.dtype, str, bool, type, enum.Enum, GridGroup)
    if value is None or isinstance(value, plain) or hasattr(value, "py_func"):
        return value
    raise CannotGather


class _Gathered:
    """One gathering: the frame as it was, and how to go back."""

    def __init__(self, f: Frame, loop: Loop, rows: np.ndarray, width: int) -> None:
        m, current = f.m, loop.current
        few = self.few = Few(m.batch.lanes, rows, width)
        self.f, self.loop, self.batch = f, loop, m.batch
        self.vars, self.partial, self.live = f.vars, f.partial, f.live
        self.returned, self.value, self.broken, self.done = f.returned, f.value, loop.broken, loop.done
        if f.undefined:
            raise CannotGather
        picked = {name: converted(value, few.pick) for name, value in f.vars.items()}
        value = converted(f.value, few.pick)
        self.whole_loop = current is f.live
        here = few.mask(current)
        live = here if self.whole_loop else few.mask(f.live)
        live = here if live.lanes == here.lanes else live  # all of them: an assignment then replaces the whole value
        partial = {name: few.mask(mask) for name, mask in f.partial.items()}
        exited = m.batch.exited
        # From here on nothing fails.
        self.given = dict(picked)
        f.vars, f.live, f.mask, f.value = picked, live, here, value
        f.partial = {name: mask for name, mask in partial.items() if not mask.covers(live)}
        gone = None if f.returned is None else few.mask(f.returned)
        f.returned = gone if gone is not None and gone.lanes else None
        loop.current, loop.broken, loop.done, loop.continued = here, None, None, None
        batch = Batch(few)
        batch.exited = self.exited = None if exited is None else few.pick(exited)
        batch.shared, batch.shared_bytes = m.batch.shared, m.batch.shared_bytes
        m.batch = batch

    def end(self) -> None:
        """Put everything back among the lanes from which these were taken."""
        f, loop, few, m = self.f, self.loop, self.few, self.f.m
        short, m.batch = m.batch, self.batch
        if short.exited is not self.exited:
            m.batch.exited = few.put(short.exited, m.batch.exited)
        m.batch.shared_bytes = short.shared_bytes
        loop.broken = union(self.broken, self._mask(loop.broken))
        loop.done = union(self.done, self._mask(loop.done))
        for array in f.arrays.values():
            self._put_memory_back(array)
        found, partial, live = f.vars, f.partial, f.live
        f.vars, f.partial, f.live = dict(self.vars), dict(self.partial), self.live
        for name, value in found.items():
            if value is not self.given.get(name):
                self._put_variable(name, value)
            if name not in self.vars:
                if name in partial or not self.whole_loop:
                    f.partial[name] = few.mask_outside(partial.get(name, live))
            elif name in self.partial:
                self._put_partial(name, partial.get(name, live))
        if f.returned is not None and f.value is not None:
            f.value = self._put(f.value, self.value)
        else:
            f.value = self.value
        f.returned = union(self.returned, self._mask(f.returned))
        f.undefined = {name: lost._replace(lanes=few.put(lost.lanes, None)) for name, lost in f.undefined.items()}
        few.forget()

    def _mask(self, mask: Mask | None) -> Mask | None:
        return None if mask is None else self.few.mask_outside(mask)

    def _put_partial(self, name: str, defined: Mask) -> None:
        """The lanes in which a variable has a value, of which there were some before."""
        f, few = self.f, self.few
        rest = self.partial[name].without(few.put(np.True_, None))
        both = rest if not defined.lanes else union(rest, few.mask_outside(defined))
        if both is None or both.covers(f.live):
            del f.partial[name]
        else:
            f.partial[name] = both

    def _put_variable(self, name: str, value: Any) -> None:
        f, few, old = self.f, self.few, self.vars.get(name)
        if self.whole_loop:  # all lanes that still run are here
            old = None if is_number(old) and is_number(value) and old.dtype != value.dtype else old
        if isinstance(value, Mixed) or (is_number(old) and is_number(value) and old.dtype != value.dtype):
            parts = value.parts if isinstance(value, Mixed) else [(few.full, value)]
            parts = [(few.mask_outside(mask), converted(part, lambda v: few.put(v, None))) for mask, part in parts]
            rest = f.m.batch.lanes.full.without(few.put(np.True_, None))
            f.vars[name] = Mixed(parts if rest is None or old is None else [(rest, old), *parts])
        else:
            f.vars[name] = self._put(value, old)

    def _put(self, value: Any, old: Any) -> Any:
        """A value of the short batch among the others, which keep their old one where it has the same form."""
        few = self.few
        if is_number(value):
            same = is_number(old) and old.dtype == value.dtype
            alike = same and isinstance(old, np.generic) and old.tobytes() == value.tobytes()  # 0.0 is not -0.0
            if isinstance(value, np.generic) and (old is None or alike):
                return value
            return few.put(value, old if same else None)
        if isinstance(value, tuple):
            before = old if isinstance(old, tuple) and len(old) == len(value) else (None,) * len(value)
            made = [self._put(part, each) for part, each in zip(value, before, strict=True)]
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        if isinstance(value, Vector):
            before = old.values if isinstance(old, Vector) and old.kind == value.kind else (None,) * len(value.values)
            return Vector(value.dtype, tuple(self._put(*pair) for pair in zip(value.values, before, strict=True)))
        if isinstance(value, Array):
            self._put_memory_back(value)
            same = isinstance(old, Array) and old.storage is value.storage and old.ndim == value.ndim
            new = (value.offset, *value.shape, *value.strides)
            before = (old.offset, *old.shape, *old.strides) if same else (None,) * len(new)
            offset, *rest = (self._put_extent(*pair) for pair in zip(new, before, strict=True))
            return Array(value.storage, value.dtype, tuple(rest[: value.ndim]), tuple(rest[value.ndim :]), offset)
        return value

    def _put_extent(self, value: Any, old: Any) -> Any:
        if not isinstance(value, np.ndarray) and (old is None or (not isinstance(old, np.ndarray) and old == value)):
            return value
        return self.few.put(np.asarray(value), None if old is None else np.asarray(old))

    def _put_memory_back(self, array: Array) -> None:
        if array.storage.space == "local" and array.storage.home is self.few:
            array.storage.put_back(self.few)


class Gathering:
    """Decides round by round whether a loop's lanes are gathered."""

    __slots__ = ("always", "f", "few", "gathered", "loop", "lost", "width")

    def __init__(self, f: Frame, loop: Loop, width: int) -> None:
        self.f, self.loop, self.lost, self.width = f, loop, 0, width
        self.gathered: list[_Gathered] = []
        self.always = f.m.launch.gathering == "always"
        self.few = self._limit()  # lanes up to which it may pay

    @classmethod
    def of(cls, f: Frame, loop: Loop, width: Callable[[], int]) -> Gathering | None:
        """For a loop of a frame; `width` as of `width_of`.  None where it is not possible."""
        m = f.m
        if m.turns is not None or m.trace is not None or f.outer is not None or m.launch.gathering == "never":
            return None
        lanes = width()
        return cls(f, loop, lanes) if lanes else None

    def _limit(self) -> int:
        size = self.f.m.batch.lanes.size
        return size if self.always else size // 2 if size > self.width else 0

    def check(self) -> Few | None:
        """Called where `few` lanes or fewer go on; the short batch if they have just been gathered."""
        mask, lanes = self.loop.current, self.f.m.batch.lanes
        bits = mask.bits
        if not self.always:
            if bits is None or (bits.shape[0] == 1 and lanes.blocks > 1):
                return None  # the same lanes in all blocks: their values are small already
            kept = mask.lanes if self.width == 1 else mask.warps * WARP
            if 2 * kept > lanes.size:
                return None
            self.lost += _EACH_ROUND * (lanes.size - kept)
            if self.lost < (len(self.f.vars) + 2) * (2 * lanes.size + _EACH_VARIABLE):
                return None
        elif self.gathered and (mask.lanes if self.width == 1 else mask.warps * WARP) == lanes.size:
            return None
        self.lost = 0
        rows = mask.places() if self.width == 1 else np.flatnonzero(mask.grid().reshape(-1, WARP).any(axis=1))
        try:
            made = _Gathered(self.f, self.loop, rows, self.width)
        except CannotGather:
            self.few = -1
            return None
        self.gathered.append(made)
        self.few = self._limit()
        return made.few

    def end(self) -> None:
        """The loop has ended for all of them."""
        while self.gathered:
            self.gathered.pop().end()
