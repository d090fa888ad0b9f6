"""Data of the launches that are compared with the hardware: from formulas, the same everywhere and always."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["doubles", "floats", "scattered"]


def doubles(*shape: int) -> np.ndarray:
    """Numbers between -1 and 1 with no pattern that a sum could hide."""
    return (np.arange(math.prod(shape)) * 7919 % 1009 / 504.5 - 1).reshape(shape)


def floats(*shape: int) -> np.ndarray:
    """The same in float32."""
    return doubles(*shape).astype(np.float32)


def scattered(n: int, below: int) -> np.ndarray:
    """Indices in no order: a hash of 0, 1, 2, ..."""
    x = np.arange(1, n + 1, dtype=np.uint64)
    for _ in range(2):
        x = (x ^ x >> np.uint64(16)) * np.uint64(0x45D9F3B) & np.uint64(2**32 - 1)
    return ((x ^ x >> np.uint64(16)) % np.uint64(below)).astype(np.int32)
