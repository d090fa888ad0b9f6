"""What is measured of ``runs``: lengths of runs, and values alone, of random bits; and of runs of other lengths.

Libraries give back the runs alone, so they wait for how many there are. The rungs leave that on the GPU.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.filter import runs as room
from pmpp.kernels.filter.ladder import Kept
from pmpp.lab.measure.arrays import integers, view, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 2**28
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
AVERAGE = (1, 8, 64, 1024)  # elements of a run


def verify_lengths(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """The number of wrong lengths, which has to be 0."""
    library = xp()
    x, result = library.asarray(x), library.asarray(result)
    ends = library.append(library.flatnonzero(x[1:] != x[:-1]) + 1, x.size)
    exact = library.diff(ends, prepend=0)
    return (float((result != exact).sum()) if result.shape == exact.shape else float("inf")), 0.0


def verify_values(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """The number of wrong values, which has to be 0."""
    library = xp()
    x, result = library.asarray(x), library.asarray(result)
    exact = library.concatenate((x[:1], x[1:][x[1:] != x[:-1]]))
    return (float((result != exact).sum()) if result.shape == exact.shape else float("inf")), 0.0


def of_lengths(rung: typing.Any) -> Callable:
    """The rung as a contender of its name. It finds values and lengths, and its result is the lengths."""

    def call(x: typing.Any) -> Kept:
        found = rung(x)
        return Kept(found.lengths, found.count)

    call.__name__ = rung.name
    return call


def of_values(rung: typing.Any) -> Callable:
    """The same for the values alone, which are all that it finds."""

    def call(x: typing.Any) -> Kept:
        found = rung(x, lengths=False)
        return Kept(found.values, found.count)

    call.__name__ = rung.name
    return call


def bits(n: int) -> Callable[[int], tuple]:
    """A seed to n random int32, 0 or 1: a run has two elements on average."""

    def make(seed: int) -> tuple:
        x = integers(n, seed, 1, np.int32)
        values = view(x)
        values &= 1
        return (x if xp() is not np else to_device(values),)

    return make


def of_average(n: int, average: int) -> Callable[[int], tuple]:
    """A seed to n int32 in which each ``average`` elements a run begins."""

    def make(seed: int) -> tuple:
        x = integers(n, seed, 1, np.int32)
        values = view(x)
        values[...] = xp().arange(n, dtype=np.int32) // average + seed
        return (x if xp() is not np else to_device(values),)

    return make


def _lengths_numpy(x: np.ndarray) -> np.ndarray:
    return np.diff(np.append(np.flatnonzero(np.append(True, x[1:] != x[:-1])), x.size))


LENGTHS = {"torch.unique_consecutive": lambda torch, x: torch.unique_consecutive(x, return_counts=True)[1]}
VALUES = {"torch.unique_consecutive": lambda torch, x: torch.unique_consecutive(x)}


def _bits(n: int) -> Workload:
    return Workload(
        family="run lengths of bits",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n),
        make=bits(n),
        rungs=tuple(map(of_lengths, room.LADDER)),
        libraries=LENGTHS,
        verify=verify_lengths,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.diff": _lengths_numpy} if n <= 2**24 else {},
        quick=n in (2**12, DESIGN),
    )


def _average(average: int) -> Workload:
    n = 2**26
    return Workload(
        family="run lengths",
        name=f"{average:,} a run",
        sizes={"average": average, "n": n},
        cost=room.cost(n, n // average),
        make=of_average(n, average),
        rungs=tuple(map(of_lengths, room.LADDER)),
        libraries=LENGTHS,
        verify=verify_lengths,
    )


def _values(n: int) -> Workload:
    return Workload(
        family="values of bits",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n, n // 4),  # no lengths are written
        make=bits(n),
        rungs=tuple(map(of_values, room.LADDER)),
        libraries=VALUES,
        verify=verify_values,
        cache="cold" if n >= COLD else "warm",
    )


WORKLOADS = [
    _bits(DESIGN),
    *(_average(average) for average in AVERAGE),
    *(_values(n) for n in (2**12, DESIGN)),
    *(_bits(n) for n in SWEEP if n != DESIGN),
]
