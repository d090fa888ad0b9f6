"""What a measurement on several GPUs does, with the seconds since it began, and whether it has time for more.

A measurement that is ended has to leave two things: what was found so far, and at which part it was. So each part is
announced before it begins, and recorded when it is there.
"""

from __future__ import annotations

import math
import time

import numpy as np

from pmpp.parallel.group import Group
from pmpp.runtime import device

__all__ = ["Progress"]


class Progress:
    """The clock of a measurement.

    Args:
        host: the ranks' group, if there are several: rank 0 prints, and all agree on what there is time for.
        seconds: for all of it; None for as long as it takes.

    >>> Progress().time_left()
    True
    >>> Progress(seconds=0.0).time_left()
    False
    """

    def __init__(self, host: Group | None = None, seconds: float | None = None) -> None:
        self.host, self._began = host, time.monotonic()
        self._until = math.inf if seconds is None else self._began + seconds

    def say(self, what: str) -> None:
        """Print what begins now."""
        if self.host is None or self.host.rank == 0:
            print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)

    def alone(self) -> Progress:
        """The same clock for one rank, which measures while the others wait for it."""
        mine = Progress()
        mine._began, mine._until = self._began, self._until
        return mine

    def time_left(self, needed: float = 0.0) -> bool:
        """Whether ``needed`` seconds are left. On all ranks alike: False if one of them has less. Called by all."""
        late = time.monotonic() + needed >= self._until
        if self.host is None or self.host.size == 1:
            return not late
        return not device.to_host(self.host.all_reduce(np.array([late], np.int64), "max"))[0]
