"""What an array holds: kernels trust indices that they are given, and here those of NumPy arrays are checked.

That costs less than to send the array to the GPU. To check what is on the device already would mean to wait for it.
"""

from __future__ import annotations

import typing

import numpy as np

__all__ = ["check_places", "check_starts"]


def check_starts(starts: typing.Any, n: int, of: str) -> None:
    """Raise ValueError unless ``starts`` cuts n elements of ``of`` into parts, or is no NumPy array.

    >>> check_starts(np.int32([0, 2, 1, 3]), 3, "values")
    Traceback (most recent call last):
        ...
    ValueError: starts must never fall, was 2 at 1 and then 1
    """
    if not isinstance(starts, np.ndarray):
        return
    if starts[0] != 0 or starts[-1] != n:
        raise ValueError(f"starts must be from 0 to {n}, the length of {of}, was from {starts[0]} to {starts[-1]}")
    falls = np.flatnonzero(starts[1:] < starts[:-1])
    if falls.size:
        k = int(falls[0])
        raise ValueError(f"starts must never fall, was {starts[k]} at {k} and then {starts[k + 1]}")


def check_places(name: str, places: typing.Any, extent: int, of: str) -> None:
    """Raise ValueError unless each of ``places`` is from 0 to ``extent`` - 1, or they are no NumPy array.

    >>> check_places("columns", np.int32([0, 7]), 5, "width=5")
    Traceback (most recent call last):
        ...
    ValueError: columns must be from 0 to 4, for width=5, was 7 at 1
    """
    if isinstance(places, np.ndarray):
        outside = np.flatnonzero((places < 0) | (places >= extent))
        if outside.size:
            k = int(outside[0])
            raise ValueError(f"{name} must be from 0 to {extent - 1}, for {of}, was {places[k]} at {k}")
