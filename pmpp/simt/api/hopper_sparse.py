"""Hopper's products with 2:4 sparsity, the twins of the instructions in `pmpp.runtime.hopper_sparse`.

machine/engines.py has what is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.hopper import _group_of_warps, _sums
from pmpp.simt.machine import engines
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.lanes import WARP
from pmpp.simt.machine.machine import Machine
from pmpp.simt.values import sparse_tensor_cores, sparse_tiles
from pmpp.simt.values.dtypes import FLOAT32, UINT32, UINT64, Value, is_number

_SELECTOR = 4  # its place among the arguments


def _selected(f: Frame, call: Any, name: str, selector: Any) -> int:
    literal = call.literals[_SELECTOR] is True or call.literals[_SELECTOR] in f.literals
    if not literal or not isinstance(selector, np.integer) or selector not in range(2):
        given = selector if isinstance(selector, np.integer) else kind_of(selector)
        raise TypeError(f"{name}: selector must be a literal, from 0 to 1, was {given}")
    return int(selector)


def _check_order(m: Machine, name: str, selector: int, warps: np.ndarray, e: np.ndarray, line: int) -> None:
    """Refuse metadata that does not name two of four numbers in their order."""
    found = sparse_tensor_cores.disordered(sparse_tiles.METADATA, selector, e)
    if found is None:
        return
    warp, lane, four = found
    block, thread = m.batch.lanes.threads_at(WARP * int(warps[warp]) + lane)
    raise m.error(
        f"{name}: {m.named(block, thread)} has metadata with 0b{four:04b}, for the numbers {four & 3} and {four >> 2} "
        "of four: the first must stand before the second",
        line,
    )


def _rows_of_b(descriptors: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The arrays, and where the chunks of the 32 rows of B are: (warps, 32, columns / 8)."""
    array, start, leading, stride = engines._fields(descriptors)
    row, panel = np.arange(2 * sparse_tiles.STORED, dtype=np.int64)[:, None], np.arange(columns // 64, dtype=np.int64)
    begin = start[:, None, None] + row // 8 * stride[:, None, None] + row % 8 * engines.LINE
    begin = begin + panel * leading[:, None, None]
    chunks = begin[..., None] + np.arange(8, dtype=np.int64) * engines.CHUNK
    return array, engines.swizzled(chunks).reshape(len(start), len(row), -1)


def _start(f: Frame, call: Any, name: str, a: Value, b: Value, c: tuple, e: Value, selector: int) -> tuple[Value, ...]:
    """Start c + a @ b in the warps of the mask: as `engines.multiply`, with metadata."""
    m, line = f.m, call.line
    all_, lanes, warps = engines.engines(m), m.batch.lanes, engines.warps_of(f.mask)
    words = np.ascontiguousarray(engines.by_warps(m, e)[warps])
    _check_order(m, name, selector, warps, words, line)
    columns = 2 * len(c)
    sums = np.zeros((len(warps), 16, columns), FLOAT32)
    engines.ready_sums(m, f.mask, name, c, sums, call.argument(2), line)
    of_a, of_b = (engines.of_warps(m, name, *given, warps, line) for given in (("a", a), ("b", b)))
    group = all_.committed[warps].copy()
    a_array, a_at = engines._rows_of_a(of_a, warps % lanes.warps)
    b_array, b_at = _rows_of_b(of_b, columns)
    left = engines._load(m, warps, group, a_at, a_array, line).view(np.uint16)
    right = engines._load(m, warps, group, b_at, b_array, line).view(np.uint16)
    for k in range(len(warps)):
        sums[k] = sparse_tiles.multiply(name, left[k], right[k], sums[k], words[k], selector)
    return engines.started(m, warps, sums, group)


def _multiply(name: str) -> Callable:
    def wgmma(f: Frame, call: Any, a: Any, b: Any, c: Any, metadata: Any, selector: Any) -> tuple[Value, ...]:
        for argument, given in (("a", a), ("b", b)):
            if not is_number(given) or given.dtype != UINT64:
                raise TypeError(f"{name}: {argument} must be a descriptor (uint64), was {kind_of(given)}")
        _sums(name, "c", c, FLOAT32)
        if not is_number(metadata) or metadata.dtype != UINT32:
            raise TypeError(f"{name}: metadata must be a uint32, was {kind_of(metadata)}")
        chosen = _selected(f, call, name, selector)
        if f.m.dry:
            return (np.float32(0),) * len(c)
        _group_of_warps(f, call, f"{name}()", len(c))
        if f.m.counts is not None:
            f.m.counts.tensor(call.line, f.mask, sparse_tiles.operations(2 * len(c)))
        return _start(f, call, name, a, b, c, metadata, chosen)

    wgmma.counts_itself = True  # type: ignore[attr-defined]
    return wgmma


SPARSE_TILES: dict[str, Callable] = {name: _multiply(name) for name in sparse_tiles.KINDS}
