"""Data of the launches that are compared with the hardware: from formulas, the same everywhere and always."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["doubles", "floats", "scattered", "tree"]


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


def tree(*widths: int) -> tuple[np.ndarray, np.ndarray, int]:
    """A tree with so many vertices in each level: where each one's neighbours start, the neighbours, and the root.

    Whatever the order in which a search goes through a level, each vertex of the next one is found once.
    """
    names = np.argsort(scattered(sum(widths), 2**30), kind="stable")  # neighbours in the tree are none in memory
    parents, first, behind = [], 0, widths[0]  # of a level: its first vertex, and the first one behind it
    for width in widths[1:]:
        parents.append(names[first + scattered(width, behind - first)])
        first, behind = behind, behind + width
    children, parents = names[widths[0] :], np.concatenate(parents)
    tails, heads = np.append(children, parents), np.append(parents, children)
    starts = np.cumsum([0, *np.bincount(tails, minlength=names.size)]).astype(np.int32)
    return starts, heads[np.argsort(tails, kind="stable")].astype(np.int32), int(names[0])
