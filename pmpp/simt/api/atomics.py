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
from pmpp.simt.machine.storage import Storage, flat_position, selected
from pmpp.simt.values import dtypes
from pmpp.simt.values.dtypes import Value, as_intp
from pmpp.simt.values.errors import UnsupportedError
from pmpp.simt.values.quick import all_of, any_of, largest

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

    def alone(self, old: np.generic, *operands: np.generic) -> np.generic:
        """What one lane makes of an element."""
        if self.name == "cas":
            return operands[1] if old == operands[0] else old
        return self.step(old, *operands)

    def along(self, first: np.generic, *operands: np.ndarray) -> tuple[np.ndarray, np.generic] | None:
        """For lanes that follow one another at one address: what each sees, and what is left; None if not known."""
        if self.ufunc is not None:
            results = self.ufunc.accumulate(np.append(first, operands[0]), dtype=first.dtype)
            return results[:-1], results[-1]
        if self.name == "exch":
            return np.append(first, operands[0][:-1]), operands[0][-1]
        if self.name == "cas" and all((v == v[0]).all() for v in operands):  # nearly always: a lock
            expected, new = operands
            seen = np.full(expected.size, new[0] if first == expected[0] else first, first.dtype)
            last, seen[0] = seen[-1], first
            return seen, last
        return None


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
        m.checks.update(mask, storage, at, name, line, replaces=operation.name == "exch" and not used)
    if m.trace is not None:
        width = array.dtype.itemsize
        m.trace.access("atomic", m.place.site or line, at * storage.unit, mask, width, storage, name)
    operands = tuple([dtypes.cast(v, array.dtype) for v in operands])
    if operation.name in _NEUTRAL and array.dtype.kind == "f":  # on the device a NaN operand changes nothing
        operands = (np.where(np.isnan(operands[0]), array.dtype.type(_NEUTRAL[operation.name]), operands[0]),)
    lanes = m.batch.lanes
    if lanes.size == 1 and storage.space == "global" and (used or operation.ufunc is None):
        return _alone(m, mask, storage, at.item(), operation, operands, name, line)
    positions, *flat = selected(lanes, mask, flat_position(lanes, storage, at), *operands)
    if m.counts is not None:
        m.counts.atomic(line, at, positions, mask, storage, name)
    if not used and operation.ufunc is not None:
        m.writes += 1
        alone = storage.space == "global" and storage.whole is None
        if array.dtype.kind == "f" and operation.reorders and alone and not m.launch.shuffled:
            block = selected(lanes, mask, lanes.block_row + lanes.first)[0]
            if storage not in m.pending:
                m.settle_one(storage)  # what is postponed through other views of the same memory
            m.pending.setdefault(storage, []).append((operation.ufunc, positions, flat[0], block))
        else:
            if m.pending:
                m.settle_one(storage)
            operation.ufunc.at(storage.values.reshape(-1), positions, flat[0])
        return None
    m.reads += 1
    if m.pending:
        m.settle_one(storage)
    everything = storage.values.reshape(-1)
    before = everything.take(as_intp(positions))
    old = _serialised(everything, positions, operation, flat)
    m.writes += any_of(before != everything.take(as_intp(positions)))  # a failed compare-and-swap is no progress
    if mask.bits is None:
        return old.reshape(lanes.blocks, lanes.width)
    out = np.zeros((lanes.blocks, lanes.width), array.dtype)
    out.reshape(-1)[mask.places()] = old
    return out


def _alone(
    m: Machine,
    mask: Mask,
    storage: Storage,
    place: int,
    operation: AtomicOperation,
    operands: tuple,
    name: str,
    line: int,
) -> np.generic:
    """The same for a thread that runs by itself, as those that wait for a lock."""
    if m.counts is not None:
        m.counts.atomic_alone(line, place, mask, storage, name)
    m.reads += 1
    if m.pending:
        m.settle_one(storage)
    memory = storage.values.reshape(-1)
    seen = memory[place]
    memory[place] = left = operation.alone(seen, *(v if v.ndim == 0 else v.reshape(-1)[0] for v in operands))
    m.writes += bool(left != seen)
    return seen


def _serialised(
    memory: np.ndarray, at: np.ndarray, operation: AtomicOperation, operands: list[np.ndarray]
) -> np.ndarray:
    """Old value seen by each lane when lanes follow one another; memory is left with the last result."""
    if at.size == 1:
        before = memory.take(as_intp(at))
        memory[at] = operation.step(before, *operands)
        return before
    order = np.argsort(at, kind="stable")
    where = at[order]
    first = np.ones(where.size, np.bool_)
    np.not_equal(where[1:], where[:-1], out=first[1:])
    if all_of(first):  # no two lanes want one address
        before = memory[at]
        memory[at] = operation.step(before, *operands)
        return before
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], where.size)
    most = largest(ends - starts)
    old = np.empty(at.size, memory.dtype)
    operands = [v[order] for v in operands]
    if starts.size <= most:
        # Few addresses, much contention: run along each address.
        parts = [slice(*ends_of) for ends_of in zip(starts.tolist(), ends.tolist(), strict=True)]
        chains = [operation.along(memory[where[part.start]], *(v[part] for v in operands)) for part in parts]
        if None not in chains:
            for part, (seen, last) in zip(parts, chains, strict=True):
                old[order[part]], memory[where[part.start]] = seen, last
            return old
    rank = np.arange(where.size, dtype=np.intp) - np.repeat(starts, as_intp(ends - starts))
    by_rank = np.argsort(rank, kind="stable")
    edges = np.searchsorted(rank[by_rank], np.arange(most + 1, dtype=np.intp))
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
