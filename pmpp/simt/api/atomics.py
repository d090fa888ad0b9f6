"""Atomics: many threads update one element, one after the other.

Threads take turns in lane order.  On a GPU the order is not defined, so integer results agree and floating-point sums
may differ in their last bits; here the order is fixed, block by block, so that a result never depends on the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from pmpp.simt.machine.lanes import Mask
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array, writable
from pmpp.simt.machine.storage import flat_position, selected
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import Value, as_intp
from pmpp.simt.values.errors import UnsupportedError

_NUMBERS = (np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64)
_INTEGERS = (np.int32, np.uint32, np.int64, np.uint64)
_UNSIGNED = (np.uint32, np.uint64)


#: What leaves any number as it is, for the two operations that ignore NaN operands but keep a NaN in memory.
_NEUTRAL = {"max": -np.inf, "min": np.inf}


class AtomicOperation:
    """What an atomic does to one element: `ufunc` if it is a running reduction, `step(old, *operands)` always."""

    def __init__(
        self, name: str, allowed: tuple, step: Callable, ufunc: np.ufunc | None = None, *, reorders: bool = False
    ) -> None:
        self.name, self.step, self.ufunc, self.reorders = name, step, ufunc, reorders
        self.dtypes = tuple(map(np.dtype, allowed))


def atomic(
    m: Machine,
    mask: Mask,
    array: Array,
    at: Value,
    operation: AtomicOperation,
    operands: tuple,
    name: str,
    line: int,
    used: bool,
) -> Value | None:
    """Apply `operation` for every active lane, one after the other in lane order; the old values if they are used."""
    if m.dry:
        return array.dtype.type(0)
    storage = array.storage
    writable(m, storage, name, line)
    if array.dtype not in operation.dtypes:
        allowed = ", ".join(map(str, operation.dtypes))
        raise m.error(f"atomic.{operation.name} takes {allowed}; {name} holds {array.dtype}", line, UnsupportedError)
    if m.checks is not None:
        m.checks.update(mask, storage, at, name, line)
    if m.trace is not None:
        width = array.dtype.itemsize
        m.trace.access("atomic", m.place.site or line, at * width, mask, width, storage, name)
    operands = tuple(dtypes.cast(v, array.dtype) for v in operands)
    if operation.name in _NEUTRAL and array.dtype.kind == "f":  # on the device a NaN operand changes nothing
        operands = (np.where(np.isnan(operands[0]), array.dtype.type(_NEUTRAL[operation.name]), operands[0]),)
    lanes = m.batch.lanes
    positions, *flat = selected(lanes, mask, flat_position(lanes, storage, at), *operands)
    if m.counts is not None:
        m.counts.atomic(line, at, positions, mask, storage, name)
    if not used and operation.ufunc is not None:
        m.writes += 1
        alone = storage.space == "global" and storage.whole is None
        if array.dtype.kind == "f" and operation.reorders and alone and not m.launch.shuffled:
            block = selected(lanes, mask, lanes.block_row + lanes.first)[0]
            m.pending.setdefault(storage, []).append((operation.ufunc, positions, flat[0], block))
        else:
            operation.ufunc.at(storage.values.reshape(-1), positions, flat[0])
        return None
    m.reads += 1
    m.settle_one(storage)
    everything = storage.values.reshape(-1)
    before = everything[positions]
    old = _serialised(everything, positions, operation, flat)
    m.writes += not np.array_equal(before, everything[positions])  # a failed compare-and-swap is no progress
    if mask.bits is None:
        return old.reshape(lanes.blocks, lanes.width)
    out = np.zeros((lanes.blocks, lanes.width), array.dtype)
    out[mask.grid()] = old
    return out


def _serialised(
    memory: np.ndarray, at: np.ndarray, operation: AtomicOperation, operands: list[np.ndarray]
) -> np.ndarray:
    """Old value seen by each lane when lanes follow one another; memory is left with the last result."""
    order = np.argsort(at, kind="stable")
    where = at[order]
    starts = np.flatnonzero(np.r_[True, where[1:] != where[:-1]]) if where.size else np.zeros(0, np.intp)
    lengths = np.diff(starts, append=np.intp(where.size))
    old = np.empty(at.size, memory.dtype)
    operands = [v[order] for v in operands]
    if operation.ufunc is not None and starts.size <= lengths.max(initial=0):
        # Few addresses, much contention: run along each address.
        for start, length in zip(starts, lengths, strict=True):
            stop = start + length
            chain = np.concatenate([memory[where[start] : where[start] + 1], operands[0][start:stop]])
            results = operation.ufunc.accumulate(chain, dtype=memory.dtype)
            old[order[start:stop]] = results[:-1]
            memory[where[start]] = results[-1]
        return old
    rank = np.arange(where.size, dtype=np.intp) - np.repeat(starts, as_intp(lengths))
    by_rank = np.argsort(rank, kind="stable")
    edges = np.searchsorted(rank[by_rank], np.arange(lengths.max(initial=0) + 1, dtype=np.intp))
    for begin, end in itertools.pairwise(edges):
        turn = by_rank[begin:end]
        before = memory[where[turn]]
        old[order[turn]] = before
        memory[where[turn]] = operation.step(before, *(v[turn] for v in operands))
    return old


ATOMIC = {
    "add": AtomicOperation("add", _NUMBERS, np.add, np.add, reorders=True),
    "sub": AtomicOperation("sub", _NUMBERS, np.subtract, np.subtract, reorders=True),
    "max": AtomicOperation("max", _NUMBERS, np.maximum, np.maximum),
    "min": AtomicOperation("min", _NUMBERS, np.minimum, np.minimum),
    "nanmax": AtomicOperation("nanmax", _NUMBERS, np.fmax, np.fmax),
    "nanmin": AtomicOperation("nanmin", _NUMBERS, np.fmin, np.fmin),
    "and_": AtomicOperation("and_", _INTEGERS, np.bitwise_and, np.bitwise_and),
    "or_": AtomicOperation("or_", _INTEGERS, np.bitwise_or, np.bitwise_or),
    "xor": AtomicOperation("xor", _INTEGERS, np.bitwise_xor, np.bitwise_xor),
    "inc": AtomicOperation("inc", _UNSIGNED, lambda old, top: np.where(old >= top, 0, old + 1).astype(old.dtype)),
    "dec": AtomicOperation(
        "dec", _UNSIGNED, lambda old, top: np.where((old == 0) | (old > top), top, old - 1).astype(old.dtype)
    ),
    "exch": AtomicOperation("exch", _INTEGERS, lambda old, new: new),
    "cas": AtomicOperation("cas", _INTEGERS, lambda old, expected, new: np.where(old == expected, new, old)),
}
