"""Products with 2:4 sparsity on tensor cores, the twins of the instructions in `pmpp.runtime.sparse_matrix`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.api.matrix import _by_warps, _of_lanes, _registers, _repeated, _together
from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.machine.lanes import WARP
from pmpp.simt.values import sparse_tensor_cores
from pmpp.simt.values.dtypes import FLOAT32, INT32, UINT32, Value, is_number

_SELECTOR = 4  # its place among the arguments


def _selected(f: Frame, call: Any, name: str, selector: Any) -> int:
    count = sparse_tensor_cores.KINDS[name].selectors
    literal = call.is_literal(f, _SELECTOR, "selector")
    if not literal or not isinstance(selector, np.integer) or not 0 <= selector < count:
        given = selector if isinstance(selector, np.integer) else kind_of(selector)
        wanted = "0" if count == 1 else f"from 0 to {count - 1}"
        raise TypeError(f"{name}: selector must be a literal, {wanted}, was {given}")
    return int(selector)


def _check_order(f: Frame, call: Any, name: str, selector: int, e: np.ndarray) -> None:
    """Refuse metadata of a warp that takes part if it does not name two of four numbers in their order."""
    takes_part = f.mask.grid().reshape(-1, WARP).any(axis=1)
    found = sparse_tensor_cores.disordered(name, selector, e[takes_part])
    if found is None:
        return
    warp, lane, four = found
    m = f.m
    block, thread = m.batch.lanes.threads_at(WARP * int(np.flatnonzero(takes_part)[warp]) + lane)
    raise m.error(
        f"{name}: {m.named(block, thread)} has metadata with 0b{four:04b}, for the numbers {four & 3} and {four >> 2} "
        "of four: the first must stand before the second",
        call.line,
    )


def _multiply_add(name: str) -> Callable:
    number = INT32 if name == "mma_sp_s8" else FLOAT32

    def mma(f: Frame, call: Any, a: Any, b: Any, c: Any, metadata: Any, selector: Any) -> tuple[Value, ...]:
        fragments = [
            _registers(name, "a", a, 4, UINT32),
            _registers(name, "b", b, 4, UINT32),
            _registers(name, "c", c, 4, number),
        ]
        if not is_number(metadata) or metadata.dtype != UINT32:
            raise TypeError(f"{name}: metadata must be a uint32, was {kind_of(metadata)}")
        chosen = _selected(f, call, name, selector)
        if f.m.dry:
            return (number.type(0),) * 4
        _together(f, call, f"{name}()")
        if f.m.counts is not None:
            f.m.counts.tensor(call.line, f.mask, sparse_tensor_cores.operations(name))
        parts = [[_by_warps(f, part) for part in fragment] for fragment in (*fragments, (metadata,))]
        warps = max(f.mask.grid().size // WARP, *(len(part) for fragment in parts for part in fragment))
        a, b, c, e = (np.stack([_repeated(part, warps) for part in fragment], axis=2) for fragment in parts)
        _check_order(f, call, name, chosen, e[:, :, 0])
        result = sparse_tensor_cores.multiply_add(name, a, b, c, e[:, :, 0], chosen)
        return tuple(_of_lanes(f, np.ascontiguousarray(result[:, :, k])) for k in range(4))

    mma.counts_itself = True  # type: ignore[attr-defined]
    return mma


SPARSE: dict[str, Callable] = {name: _multiply_add(name) for name in sparse_tensor_cores.KINDS}
