"""Warp operations: values that move between the 32 lanes of a warp without touching memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmpp.simt.api.sync import members
from pmpp.simt.machine.frames import Frame
from pmpp.simt.machine.lanes import WARP
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import Value

_SHUFFLED = tuple(map(np.dtype, (np.int32, np.int64, np.float32, np.float64)))


def _shuffle(what: str, source):
    """A shuffle: `source(lane, argument)` is the lane to read from."""

    def shuffle(f: Frame, call: Any, mask: Value, value: Value, argument: Value) -> Value:
        if value.dtype not in _SHUFFLED:
            raise TypeError(f"a shuffle moves int32, int64, float32 or float64, not {value.dtype}")
        members(f, call, mask, what)
        lanes = f.m.batch.lanes
        lane = lanes.lane.astype(np.int64)
        wanted = source(lane, argument.astype(np.int64))
        inside = (wanted >= 0) & (wanted < WARP)
        column = np.broadcast_to(
            np.where(inside, wanted, lane) + (lanes.linear_thread - lane), (wanted.shape[0], lanes.width)
        )
        if f.m.checks is not None or f.mask.bits is not None:
            active = _from(f.mask.grid(), column)
            lost = f.mask.grid() & ~active
            if lost.any():
                if f.m.checks is not None:
                    name = call.argument(1)
                    f.m.hazard("uninitialised_read", "register", name, call.line, int(np.argmax(lost)),
                               f"{{who}} reads {{name}} from a lane that takes no part in this {what}")  # fmt: skip
                # Undefined on a GPU.  Poison, so that using it shows.
                poison = value.dtype.type(np.nan) if value.dtype.kind == "f" else np.iinfo(value.dtype).min
                return np.where(lost, poison, _from(value, column)).astype(value.dtype)
        return value if value.ndim == 0 else _from(value, column)

    return shuffle


def _from(value: Value, column: np.ndarray) -> np.ndarray:
    """Pick columns: the same ones in every block, or block by block."""
    rows = max(value.shape[0], column.shape[0]) if value.ndim else column.shape[0]
    value = np.broadcast_to(value, (rows, column.shape[1]))
    if column.shape[0] == 1:
        return value.take(dtypes.as_intp(column[0]), axis=1)
    return np.take_along_axis(value, column, axis=1)


def _votes(f: Frame, call: Any, mask: Value, predicate: Value, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Predicates and voters, a warp a row."""
    if predicate.dtype.kind not in "iub":
        raise TypeError(f"the predicate of {what} is {predicate.dtype}; it must be an integer or bool")
    members(f, call, mask, what)
    lanes = f.m.batch.lanes
    shape = (lanes.blocks, lanes.width)
    yes = np.broadcast_to(dtypes.truth(predicate), shape).reshape(-1, WARP)
    return yes, f.mask.grid().reshape(-1, WARP)


def _per_warp(f: Frame, value: np.ndarray) -> np.ndarray:
    """One value a warp, given to each of its lanes."""
    lanes = f.m.batch.lanes
    return np.repeat(value.reshape(lanes.blocks, lanes.warps), WARP, axis=1)


_BIT = np.left_shift(np.uint64(1), np.arange(WARP, dtype=np.uint64))


def _pack(bits: np.ndarray) -> np.ndarray:
    """32 flags along the last axis as one integer."""
    return (bits * _BIT).sum(axis=-1, dtype=np.uint64).astype(np.uint32)


def all_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """True if the predicate holds in every lane."""
    yes, voters = _votes(f, call, mask, predicate, "all_sync()")
    return _per_warp(f, (yes | ~voters).all(axis=1))


def any_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """True if the predicate holds in some lane."""
    yes, voters = _votes(f, call, mask, predicate, "any_sync()")
    return _per_warp(f, (yes & voters).any(axis=1))


def eq_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """True if the predicate is the same in all lanes."""
    yes, voters = _votes(f, call, mask, predicate, "eq_sync()")
    return _per_warp(f, (yes | ~voters).all(axis=1) | (~yes | ~voters).all(axis=1))


def ballot_sync(f: Frame, call: Any, mask: Value, predicate: Value) -> np.ndarray:
    """One bit a lane: its predicate.  int32, so lane 31 is the sign."""
    yes, voters = _votes(f, call, mask, predicate, "ballot_sync()")
    return _per_warp(f, _pack(yes & voters).view(np.int32))


def _equal_lanes(f: Frame, value: Value) -> tuple[np.ndarray, np.ndarray]:
    lanes = f.m.batch.lanes
    bits = np.broadcast_to(value, (lanes.blocks, lanes.width)).reshape(-1, WARP)
    bits = np.ascontiguousarray(bits)
    bits = bits.view({4: np.uint32, 8: np.uint64}.get(bits.dtype.itemsize, bits.dtype))
    voters = f.mask.grid().reshape(-1, WARP)
    return (bits[:, :, None] == bits[:, None, :]) & voters[:, None, :], voters


def match_any_sync(f: Frame, call: Any, mask: Value, value: Value) -> np.ndarray:
    """The lanes that hold the same value as this one, as bits."""
    members(f, call, mask, "match_any_sync()")
    same, _ = _equal_lanes(f, value)
    lanes = f.m.batch.lanes
    return _pack(same).view(np.int32).reshape(lanes.blocks, lanes.width)


def match_all_sync(f: Frame, call: Any, mask: Value, value: Value) -> tuple[np.ndarray, np.ndarray]:
    """(the member lanes, True) if all of them hold the same value, else (0, False)."""
    members(f, call, mask, "match_all_sync()")
    same, voters = _equal_lanes(f, value)
    first = np.argmax(voters, axis=1)
    everyone = (same[np.arange(len(same), dtype=np.intp), first] | ~voters).all(axis=1)
    bits = np.where(everyone, _pack(voters), np.uint32(0)).astype(np.uint32).view(np.int32)
    return _per_warp(f, bits), _per_warp(f, everyone)


def activemask(f: Frame, call: Any) -> np.ndarray:
    """The lanes that execute this, as bits."""
    return _per_warp(f, _pack(f.mask.grid().reshape(-1, WARP)))


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
