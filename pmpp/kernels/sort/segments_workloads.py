"""What is measured of ``segments``: rows of equal length, beside sorts of rows; and segments of random lengths.

PyTorch and CuPy sort the rows of a matrix. They have no sort of segments of unequal length, so there the rungs stand
alone. All rungs are told how long the longest segment is, as the libraries are by the matrix.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.sort import segments as room
from pmpp.lab.measure.arrays import integers, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 2**26  # keys
ROWS = (16, 128, 512, 2048)  # keys of a row
MOST = (8, 64, 1024)  # keys of a segment of random length
LARGEST = 2**31 - 1


def rows_of(n: int, row: int) -> Callable[[int], tuple]:
    """A seed to n random int32, and where each row begins."""
    return lambda seed: (integers(n, seed, LARGEST, np.int32), to_device(np.arange(0, n + 1, row, dtype=np.int32)))


def random_of(n: int, most: int) -> Callable[[int], tuple]:
    """A seed to n random int32, and to starts of segments of 0 to ``most`` keys."""

    def make(seed: int) -> tuple:
        lengths = np.random.default_rng(seed).integers(0, most + 1, 2 * n // most + 1000)
        starts = np.append(0, np.cumsum(lengths))
        starts = np.append(starts[starts < n], n).astype(np.int32)
        return integers(n, seed, LARGEST, np.int32), to_device(starts)

    return make


def verify(result: typing.Any, x: typing.Any, starts: typing.Any) -> tuple[float, float]:
    """The number of wrong keys, which has to be 0: by a sort of all keys with the segment's number above each."""
    library = xp()
    if result.shape != x.shape:
        return float("inf"), 0.0
    result, x, starts = (library.asarray(one) for one in (result, x, starts))
    begins = library.zeros(x.size + 1, np.int64)
    library.add.at(begins, starts[1:], 1)
    numbers = library.cumsum(begins)[: x.size]
    exact = library.sort((numbers << 32) + x)
    return float((exact - (numbers << 32) != result).sum()), 0.0


def of_longest(rung: typing.Any, longest: int) -> Callable:
    """The rung as a contender of its name that is called with keys and starts alone."""

    def call(x: typing.Any, starts: typing.Any) -> typing.Any:
        return rung(x, starts, longest=min(longest, x.size))

    call.__name__ = rung.name
    return call


def _rows(row: int, n: int = DESIGN) -> Workload:
    return Workload(
        family="rows" if n == DESIGN else "few rows",
        name=f"{row:,} a row",
        sizes={"row": row, "n": n},
        cost=room.cost(n, n // row),
        make=rows_of(n, row),
        rungs=tuple(of_longest(rung, row) for rung in room.LADDER),
        libraries={
            "torch.sort": lambda torch, x, starts: torch.sort(x.reshape(-1, row), dim=1).values.reshape(-1),
            "cupy.sort": lambda cupy, x, starts: cupy.sort(x.reshape(-1, row), axis=1).reshape(-1),
        },
        verify=verify,
        design=(n, row) == (DESIGN, 128),
        cache="cold" if n == DESIGN else "warm",
        host={"numpy.sort": lambda x, starts: np.sort(x.reshape(-1, row), axis=1).reshape(-1)} if n <= 2**20 else {},
        quick=row == 128,
    )


def _random(most: int) -> Workload:
    n = DESIGN
    return Workload(
        family="random lengths",
        name=f"up to {most:,} keys",
        sizes={"most": most, "n": n},
        cost=room.cost(n, 2 * n // most),
        make=random_of(n, most),
        rungs=tuple(of_longest(rung, most) for rung in room.LADDER),
        verify=verify,
    )


WORKLOADS = [
    _rows(128),
    *(_rows(row) for row in ROWS if row != 128),
    *(_random(most) for most in MOST),
    *(_rows(128, n) for n in (2**12, 2**20)),
]
