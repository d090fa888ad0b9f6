"""Dot products of 16-bit weights and bytes, the twins of those in `pmpp.runtime.dots`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmpp.simt.machine.frames import Frame, kind_of
from pmpp.simt.values.dtypes import Value, is_number

_BYTE, _HALF = np.uint64(255), np.uint64(65535)


def _word(name: str, argument: str, given: Any) -> Value:
    """The 32 bits of an integer; a sign is extended to them, as Numba does."""
    if not is_number(given) or given.dtype.kind not in "iu" or given.dtype.itemsize > 4:
        raise TypeError(f"{name}: {argument} must be an integer of at most 32 bits, was {kind_of(given)}")
    return np.asarray(given).astype(np.uint32).astype(np.uint64)


def _dot(name: str, first: int) -> Callable:
    """The product of both weights with bytes ``first`` and ``first + 1`` of the values."""
    low, high = np.uint64(8 * first), np.uint64(8 * first + 8)

    def dot(f: Frame, call: Any, weights: Any, values: Any, total: Any) -> Value:
        weights, values = _word(name, "weights", weights), _word(name, "values", values)
        total = _word(name, "total", total) + (weights & _HALF) * ((values >> low) & _BYTE)
        return np.asarray(total + (weights >> np.uint64(16)) * ((values >> high) & _BYTE)).astype(np.uint32)[()]

    return dot


#: `dot_low` and `dot_high` in a kernel.
DOTS: dict[str, Callable] = {"dot_low": _dot("dot_low", 0), "dot_high": _dot("dot_high", 2)}
