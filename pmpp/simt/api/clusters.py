"""Clusters of blocks and their shared memory, the twins of those in `pmpp.runtime.clusters`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.sync import alive
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.instructions import BARRIER
from pmpp.simt.machine.machine import Machine
from pmpp.simt.machine.memory import Array
from pmpp.simt.machine.scattered import Scattered
from pmpp.simt.machine.storage import Storage
from pmpp.simt.machine.turns import Waits, suspending
from pmpp.simt.values.dtypes import Value, is_number

WHAT = "cluster_sync()"


def _rank(f: Frame, call: Any) -> Value:
    m = f.m
    if m.dry or m.launch.cluster == 1:
        return np.int32(0)
    return (m.batch.lanes.block_index[0] % m.launch.cluster).astype(np.int32)


def _size(f: Frame, call: Any) -> Value:
    return np.int32(f.m.launch.cluster)


@suspending
def _sync(f: Frame, call: Any) -> Waits:
    m = f.m
    if m.counts is not None:
        m.counts.instruction(call.line, f.mask, BARRIER)
    if m.turns is not None:
        yield from m.turns.cluster_barrier(f.mask, call.line)
        return
    if m.dry:
        return
    here = _arrive(m, f.mask.grid(), call.line)
    if m.counts is not None:
        m.counts.barrier(call.line, int(np.count_nonzero(here & alive(m).any(axis=1))))
    if m.checks is not None:
        m.checks.cluster_barrier(m.batch.lanes, here, alive(m).any(axis=1))


def _arrive(m: Machine, active: np.ndarray, line: int) -> np.ndarray:
    """Check that of each cluster all threads that still run are here, or none; returns which blocks are."""
    cluster = m.launch.cluster
    here = active.reshape(len(active) // cluster, -1).any(axis=1).repeat(cluster)
    missing = alive(m) & ~active & here[:, None]
    if missing.any():
        m.hazard("divergent_barrier", "register", WHAT, line, int(np.argmax(missing)),
                 f"{{who}} does not reach the {WHAT} at which other threads of its cluster wait")  # fmt: skip
    return here


def _map(f: Frame, call: Any, array: Any, rank: Value) -> Array | Scattered:
    if isinstance(array, Scattered):
        return array.gather(f, lambda part: _map(f, call, part, rank))
    if not isinstance(array, Array) or array.is_record:
        raise TypeError(f"map_shared_rank: array must be an array of numbers in shared memory, was {kind_of(array)}")
    if not is_number(rank) or rank.dtype.kind not in "iu":
        raise TypeError(f"map_shared_rank: rank must be one integer, was {kind_of(rank)}")
    m = f.m
    if m.dry:
        return Array(array.storage, array.dtype, array.shape, array.strides, array.offset)
    space = array.storage.space
    if space == "cluster":
        raise TypeError(f"map_shared_rank: array must be this block's own; {call.name} was mapped before")
    if space != "shared":
        raise TypeError(f"map_shared_rank: array must be in shared memory; {call.name} is in {space} memory")
    lanes, size = m.batch.lanes, m.launch.cluster
    given = np.broadcast_to(rank, f.mask.grid().shape)
    wrong = f.mask.grid() & ((given < 0) | (given >= size))
    if wrong.any():
        lane, has = int(np.argmax(wrong)), f"{size} blocks"
        has = "one block: its launch has no clusters, or clusters of one" if size == 1 else has
        m.hazard(
            "out_of_bounds", "shared", call.name, call.line, lane,
            f"{{who}} maps {{name}} to rank {int(given.reshape(-1)[lane])}, and its cluster has {has}",
        )  # fmt: skip
    storage = _of_cluster(m, array.storage)
    row = np.broadcast_to(lanes.block_row, given.shape)
    first = (row - row % size + np.clip(given, 0, size - 1).astype(np.int64)) * array.storage.values.shape[1]
    return Array(storage, array.dtype, array.shape, array.strides, first + array.offset)


def _of_cluster(m: Machine, storage: Storage) -> Storage:
    """The copies of all blocks of the batch as one memory, in which a block's copy follows that of the one before."""
    if m.checks is not None:
        m.checks.maps(storage)
    found = storage.leaves.get("cluster")
    if found is None:
        values = storage.values.reshape(-1)
        found = Storage("cluster", values, name=storage.name, cells=storage.cells, unit=storage.unit)
        found.start = storage.start
        storage.leaves["cluster"] = found
    return found


_sync.counts_itself = True  # type: ignore[attr-defined]

CLUSTERS: dict[str, Callable] = {
    "cluster_rank": _rank, "cluster_size": _size, "cluster_sync": _sync, "map_shared_rank": _map,
}  # fmt: skip
