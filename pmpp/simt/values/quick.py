"""Questions about a whole array, for the small arrays that are the rule here.

NumPy's `any`, `all`, `max` and `min` go through Python, and take two to three times as long as these.
"""

from __future__ import annotations

import numpy as np


def any_of(flags: np.ndarray | np.bool_) -> bool:
    """Whether one of the booleans is true."""
    return flags.size > 0 and flags.item(flags.argmax())


def all_of(flags: np.ndarray | np.bool_) -> bool:
    """Whether all of the booleans are true."""
    return flags.size == 0 or flags.item(flags.argmin())


def largest(numbers: np.ndarray | np.integer) -> int:
    """The largest of some integers, 0 if there are none."""
    return numbers.item(numbers.argmax()) if numbers.size else 0


def smallest(numbers: np.ndarray | np.integer) -> int:
    """The smallest of some integers, 0 if there are none."""
    return numbers.item(numbers.argmin()) if numbers.size else 0
