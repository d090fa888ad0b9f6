"""Hopper's stores of tiles, the twins of those in `pmpp.runtime.hopper`: by the copy engine, and of matrices by a warp.

machine/engines.py has what is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.hopper import _integer, _maps, _plain
from pmpp.simt.api.matrix import _registers, _shared, _together
from pmpp.simt.machine import engines, memory
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.instructions import BARRIER
from pmpp.simt.values.dtypes import UINT32, Value


def _bulk_store(f: Frame, call: Any, maps: Any, j: Value, row: Value, column: Value, shared: Any, i: Value) -> None:
    maps, shared = _maps("bulk_store", maps), _shared(f, "bulk_store", "shared", shared, (2,))
    for argument, given in (("j", j), ("row", row), ("column", column), ("i", i)):
        _integer("bulk_store", argument, given)
    m = f.m
    if m.dry:
        return
    shape, name = (m.batch.lanes.blocks, m.batch.lanes.width), call.argument(4)
    of_lanes = j, maps.offset, row, column, i, shared.offset, shared.size()
    values = [np.broadcast_to(np.asarray(v), shape).reshape(-1) for v in of_lanes]
    for lane in f.mask.places().tolist():
        tensor, begin_of_maps, down, along, first, begin, size = (int(v[lane]) for v in values)
        if not 0 <= first < size:
            m.hazard("out_of_bounds", "shared", name, call.line, lane,
                     f"{{who}} stores a tile from {{name}}[{first}], but it has {size} elements")  # fmt: skip
            continue
        engines.store_tile(
            m, lane, (shared, first + begin), (maps.storage, tensor + begin_of_maps), (down, along),
            (name, call.name), call.line,
        )  # fmt: skip


def _wait_stores(f: Frame, call: Any, n: Value) -> None:
    literal = call.literals[0] is True or call.literals[0] in f.literals
    if not literal or not isinstance(n, np.integer) or not 0 <= n <= 7:
        given = n if isinstance(n, np.integer) else kind_of(n)
        raise TypeError(f"wait_stores: n must be a literal, an integer from 0 to 7, was {given}")
    if f.m.dry:
        return
    if f.m.counts is not None:
        f.m.counts.instruction(call.line, f.mask, BARRIER)
    engines.wait_stores(f.m, f.mask, int(n))


def _stmatrix(f: Frame, call: Any, shared: Any, i: Value, words: Any) -> None:
    shared = _shared(f, "stmatrix", "shared", shared, (2,))
    _integer("stmatrix", "i", i)
    _registers("stmatrix", "words", words, 4, UINT32)
    m = f.m
    if m.dry:
        return
    _together(f, call, "stmatrix()")
    lanes = m.batch.lanes
    # Of each matrix, lane 4 r + w has word w of row r; lane 8 k + r says where row r of matrix k begins.
    matrices = np.stack([engines.by_warps(m, word).reshape(-1, 8, 4) for word in words], axis=1)
    rows = matrices.reshape(lanes.blocks, lanes.width, 4).view(np.uint8)
    memory.store_bytes(m, f.mask, shared, i, rows, call.name, call.line)


for _handler in (_bulk_store, _wait_stores, _stmatrix):
    _handler.counts_itself = True  # type: ignore[attr-defined]

STORES: dict[str, Callable] = {
    "bulk_store": _bulk_store, "commit_stores": _plain("commit_stores", engines.commit_stores),
    "wait_stores": _wait_stores, "stmatrix": _stmatrix,
}  # fmt: skip
