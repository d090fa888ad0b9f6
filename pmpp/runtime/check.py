"""Checks of flags, numbers and pairs. Each error names the argument, what it was and what is accepted."""

from __future__ import annotations

import math
import typing

import numpy as np

__all__ = ["as_flag", "as_integer", "as_number", "as_pair"]


def as_flag(name: str, value: typing.Any) -> bool:
    """``value`` as a bool. Raises TypeError unless it is True or False, NumPy's included.

    >>> as_flag("relu", np.True_)
    True
    """
    if value is True or value is False:
        return value
    if not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be True or False, was {value!r}")
    return bool(value)


def as_number(name: str, value: typing.Any, low: float = -math.inf, high: float = math.inf) -> np.float32:
    """``value`` as a float32 from ``low`` to ``high``.

    Raises TypeError unless it is a real number (a bool is none), ValueError for one outside, or for NaN.

    >>> as_number("momentum", 0.5, 0, 1)
    np.float32(0.5)
    """
    if type(value) is float and low <= value <= high:
        return np.float32(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, was {value!r}")
    if value != value:
        raise ValueError(f"{name} must be a number, was nan")
    if not low <= value <= high:
        if high == math.inf:
            words = "must not be negative" if low == 0 else f"must be at least {low}"
        else:
            words = f"must be from {low} to {high}"
        raise ValueError(f"{name} {words}, was {value}")
    return np.float32(value)


def as_integer(name: str, value: typing.Any, low: float = -math.inf) -> int:
    """``value`` as an int of at least ``low``. Raises TypeError for what is no integer (a bool is none), ValueError.

    >>> as_integer("groups", np.int32(4), 1)
    4
    """
    if type(value) is int and value >= low:
        return value
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, was {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, was {value}")
    return int(value)


def as_pair(name: str, value: typing.Any, low: int) -> tuple[int, int]:
    """``value`` for rows and for columns, given as one integer of at least ``low`` or as two, in a tuple or a list.

    Raises ValueError for anything else (a bool is no integer).

    >>> as_pair("stride", 2, 1), as_pair("padding", (0, 1), 0)
    ((2, 2), (0, 1))
    """
    if type(value) is int and value >= low:
        return value, value
    if isinstance(value, tuple) and len(value) == 2 and type(value[0]) is type(value[1]) is int:
        first, second = value
        if first >= low and second >= low:
            return first, second
    pair = value if isinstance(value, tuple | list) else (value, value)
    whole = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in pair)
    if len(pair) != 2 or not whole or min(pair) < low:
        raise ValueError(f"{name} must be an integer of at least {low}, or two for rows and columns, was {value!r}")
    return int(pair[0]), int(pair[1])
