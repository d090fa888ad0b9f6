"""Checks of flags and numbers. Each error names the argument, what it was and what is accepted."""

from __future__ import annotations

import math
import typing

import numpy as np

__all__ = ["as_flag", "as_integer", "as_number"]


def as_flag(name: str, value: typing.Any) -> bool:
    """``value`` as a bool. Raises TypeError unless it is True or False, NumPy's included.

    >>> as_flag("relu", np.True_)
    True
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, was {value!r}")
    return bool(value)


def as_number(name: str, value: typing.Any, low: float = -math.inf, high: float = math.inf) -> np.float32:
    """``value`` as a float32 from ``low`` to ``high``.

    Raises TypeError unless it is a real number (a bool is none), ValueError for one outside, or for NaN.

    >>> as_number("momentum", 0.5, 0, 1)
    np.float32(0.5)
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, was {value!r}")
    if not low <= value <= high:
        if high == math.inf:
            words = "must not be negative" if low == 0 else f"must be at least {low}"
        else:
            words = f"must be from {low} to {high}"
        raise ValueError(f"{name} {words}, was {value}")
    return np.float32(value)


def as_integer(name: str, value: typing.Any, low: int) -> int:
    """``value`` as an int of at least ``low``. Raises TypeError for what is no integer (a bool is none), ValueError.

    >>> as_integer("groups", np.int32(4), 1)
    4
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, was {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, was {value}")
    return int(value)
