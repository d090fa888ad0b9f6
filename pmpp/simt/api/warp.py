"""Warp operations: values that move between the 32 lanes of a warp without touching memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp.simt.api.sync import alive, members
from pmpp.simt.machine.frames import Frame, Undefined
from pmpp.simt.machine.lanes import WARP, Lanes, packed, spread
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import Value

_SHUFFLED = tuple(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))


def _shuffle(what: str, source):
    """A shuffle: `source(lane, argument)` is the lane to read from."""

    def shuffle(f: Frame, call: Any, mask: Value, value: Value, argument: Value) -> Value:
        if value.dtype not in _SHUFFLED:
            raise TypeError(f"a shuffle moves int32, int64, float32 or float64, not {value.dtype}")
        named = members(f, call, mask, what)
        lanes = f.m.batch.lanes
        column = _column(lanes, source, argument)
        absent, f.absent = f.absent, None
        if f.mask.bits is not None or named is not None or absent is not None:
            active = _from(f.mask.grid() if absent is None else f.mask.grid() & ~absent, column)
            if named is not None:
                active = active & _names(f, named, column)
            lost = f.mask.grid() & ~active
            if lost.any():
                if f.m.checks is not None and not f.m.dry:
                    unset = absent is not None and (lost & _from(absent, column)).any()
                    whom = f"never assigned {call.argument(1)}, by" if unset else "takes no part in"
                    _undefined(f, call, lost & ~_told(f, mask, column), f"a lane that {whom}", what)
                # Undefined on a GPU.  Poison, so that using it shows.
                poison = value.dtype.type(np.nan) if value.dtype.kind == "f" else np.iinfo(value.dtype).min
                return np.where(lost, poison, _from(value, column)).astype(value.dtype)
        return value if value.ndim == 0 else _from(value, column)

    return shuffle


def _undefined(f: Frame, call: Any, lost: np.ndarray, whom: str, what: str) -> None:
    """Lanes have asked a lane that gives nothing.  That is a hazard once they use what they got.

    Where the shuffle is all that a variable is assigned, to use it is to read the variable (front/variables.py).
    """
    if not lost.any():
        return
    if getattr(call.node, "kept", False):
        f.undefined[None] = Undefined(lost, call.line, f"{whom} the {what}")
        return
    f.m.hazard("uninitialised_read", "register", call.argument(1), call.line, int(np.argmax(lost)),
               f"{{who}} reads {{name}} from {whom} this {what}")  # fmt: skip


def _told(f: Frame, mask: Value, column: np.ndarray) -> np.ndarray:
    """Of which lanes `members` has told: those not in their own mask, or asking one that is in it and has not come."""
    lanes = f.m.batch.lanes
    named = spread(mask.astype(np.int64), (lanes.blocks, lanes.width))
    awaited = (named >> column % WARP & 1 != 0) & _from(alive(f.m) & ~f.mask.grid(), column)
    return awaited | (named >> lanes.lane & 1 == 0)


def _column(lanes: Lanes, source, argument: Value) -> np.ndarray:
    """The lane of the block that each lane reads from: itself, where the one that is asked for is in no warp."""
    key = (source, int(argument)) if argument.ndim == 0 else None
    column = lanes.cached_columns.get(key)
    if column is None:
        lane = lanes.lane.astype(np.int64)
        wanted = source(lane, argument.astype(np.int64))
        inside = (wanted >= 0) & (wanted < WARP)
        places = np.where(inside, wanted, lane) + (lanes.linear_thread - lane)
        column = spread(places, (wanted.shape[0], lanes.width))
        if key is not None:
            lanes.cached_columns[key] = column
    return column


def _from(value: Value, column: np.ndarray) -> np.ndarray:
    """Pick columns: the same ones in every block, or block by block."""
    rows = max(value.shape[0], column.shape[0]) if value.ndim else column.shape[0]
    value = spread(value, (rows, column.shape[1]))
    if column.shape[0] == 1:
        return value.take(dtypes.as_intp(column[0]), axis=1)
    return np.take_along_axis(value, column, axis=1)


def _names(f: Frame, named: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Whether each lane names the one in a column of its block."""
    lanes = f.m.batch.lanes
    sources = np.broadcast_to(column % WARP, (lanes.blocks, lanes.width)).astype(np.uint32).reshape(-1, WARP)
    return (named >> sources & np.uint32(1) != 0).reshape(lanes.blocks, lanes.width)


def _votes(f: Frame, call: Any, mask: Value, predicate: Value, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Who says yes and who votes, as bits: of each warp, or of each lane's group where a warp has several."""
    if predicate.dtype.kind not in "iub":
        raise TypeError(f"the predicate of {what} is {predicate.dtype}; it must be an integer or bool")
    group = members(f, call, mask, what)
    lanes = f.m.batch.lanes
    yes = spread(dtypes.truth(predicate), (lanes.blocks, lanes.width))
    group = _arrived(f) if group is None else group
    return packed(yes.reshape(-1, WARP))[:, None] & group, group


def _arrived(f: Frame) -> np.ndarray:
    """The lanes of each warp that execute this, as bits."""
    return packed(f.mask.grid().reshape(-1, WARP))[:, None]


def _per_lane(f: Frame, value: np.ndarray) -> np.ndarray:
    """Values of each warp, or of each lane a warp a row, as lanes have them."""
    lanes = f.m.batch.lanes
    return spread(value, (lanes.blocks * lanes.warps, WARP)).reshape(lanes.blocks, lanes.width)


def all_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """True if the predicate holds in every lane."""
    yes, group = _votes(f, call, mask, predicate, "all_sync()")
    return _per_lane(f, yes == group)


def any_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """True if the predicate holds in some lane."""
    yes, _ = _votes(f, call, mask, predicate, "any_sync()")
    return _per_lane(f, yes != 0)


def eq_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """True if the predicate is the same in all lanes."""
    yes, group = _votes(f, call, mask, predicate, "eq_sync()")
    return _per_lane(f, (yes == group) | (yes == 0))


def ballot_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """One bit a lane: its predicate.  int32, so lane 31 is the sign."""
    yes, _ = _votes(f, call, mask, predicate, "ballot_sync()")
    return _per_lane(f, yes.view(np.int32))


def _matches(f: Frame, call: Any, mask: Value, value: Value, what: str) -> tuple[np.ndarray, np.ndarray]:
    """For each lane, a warp a row: those of its group that hold the same value, and its group, as bits."""
    group = members(f, call, mask, what)
    lanes = f.m.batch.lanes
    bits = np.ascontiguousarray(np.broadcast_to(value, (lanes.blocks, lanes.width)).reshape(-1, WARP))
    bits = bits.view({4: np.uint32, 8: np.uint64}.get(bits.dtype.itemsize, bits.dtype))
    group = _arrived(f) if group is None else group
    return packed(bits[:, :, None] == bits[:, None, :]) & group, group


def match_any_sync(f: Frame, call: Any, mask: Value, value: Value) -> np.ndarray:
    """The lanes that hold the same value as this one, as bits."""
    same, _ = _matches(f, call, mask, value, "match_any_sync()")
    return _per_lane(f, same.view(np.int32))


def match_all_sync(f: Frame, call: Any, mask: Value, value: Value) -> tuple[np.ndarray, np.ndarray]:
    """(the member lanes, True) if all of them hold the same value, else (0, False)."""
    same, group = _matches(f, call, mask, value, "match_all_sync()")
    everyone = same == group
    return _per_lane(f, np.where(everyone, group, np.uint32(0)).view(np.int32)), _per_lane(f, everyone)


def activemask(f: Frame, call: Any) -> np.ndarray:
    """The lanes that execute this, as bits."""
    return _per_lane(f, _arrived(f))


def lanemask_lt(f: Frame, call: Any) -> np.ndarray:
    """Bits of the lanes below this one."""
    return ((np.int64(1) << f.m.batch.lanes.lane.astype(np.int64)) - 1).astype(np.uint32)


WARP_OPERATIONS = {
    "shfl_sync": _shuffle("shfl_sync()", lambda lane, source: source % WARP + 0 * lane),
    "shfl_up_sync": _shuffle("shfl_up_sync()", lambda lane, delta: lane - delta),
    "shfl_down_sync": _shuffle("shfl_down_sync()", lambda lane, delta: lane + delta),
    "shfl_xor_sync": _shuffle("shfl_xor_sync()", lambda lane, bits: lane ^ bits),
    "all_sync": all_sync, "any_sync": any_sync, "eq_sync": eq_sync, "ballot_sync": ballot_sync,
    "match_any_sync": match_any_sync, "match_all_sync": match_all_sync,
    "activemask": activemask, "lanemask_lt": lanemask_lt,
}  # fmt: skip
