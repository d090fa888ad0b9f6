"""Sizes of grids and tiles, and two numbers that every kernel must keep to."""

from __future__ import annotations

FULL_WARP = 0xFFFFFFFF  # the mask of a shuffle or a vote in which all 32 lanes take part
SHARED_LIMIT = 48 * 1024  # bytes of shared memory that a block may have without asking the driver for more


def blocks(n: int, tile: int) -> int:
    """How many blocks cover ``n`` elements if each covers ``tile``: ``n / tile``, rounded up.

    >>> blocks(1000, 256), blocks(1024, 256), blocks(1025, 256)
    (4, 4, 5)
    """
    return -(-n // tile)


def round_up(n: int, multiple: int) -> int:
    """The first multiple of ``multiple`` that is not less than ``n``.

    >>> round_up(1000, 256)
    1024
    """
    return -(-n // multiple) * multiple
