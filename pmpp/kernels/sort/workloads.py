"""What is measured of ``sort``: random keys at many lengths; keys in an order, all equal, and few; other dtypes."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.sort import ladder as room
from pmpp.lab.measure.arrays import chunks, integers, view, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 2**28  # keys
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
LARGEST = 2**31 - 1
KINDS = ("sorted", "reversed", "all equal", "10 bits")


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """The number of wrong keys, which has to be 0."""
    library, wrong = xp(), 0
    if result.shape != x.shape:
        return float("inf"), 0.0
    exact = library.sort(library.asarray(x))
    for part in chunks(result.size):
        wrong += int((library.asarray(result[part]) != exact[part]).sum())
    return float(wrong), 0.0


def random_keys(n: int, dtype: typing.Any = np.int32) -> Callable[[int], tuple]:
    """A seed to n random whole numbers of ``dtype``."""
    if np.dtype(dtype) == np.uint32:
        return lambda seed: (integers(n, seed, LARGEST, np.int32).view(np.uint32),)
    return lambda seed: (integers(n, seed, LARGEST, dtype),)


def arranged(n: int, kind: str) -> Callable[[int], tuple]:
    """A seed to n int32 of a kind: "sorted", "reversed", "all equal", or "10 bits" for 1,024 different keys."""

    def make(seed: int) -> tuple:
        x = integers(n, seed, 2**9 if kind == "10 bits" else LARGEST, np.int32)
        values = view(x)
        if kind == "all equal":
            values[:] = seed
        elif kind != "10 bits":
            values.sort()
            if kind == "reversed":
                values[:] = values[::-1].copy()
        return (x if xp() is not np else to_device(values),)

    return make


LIBRARIES = {
    "cupy.sort": lambda cupy, x: cupy.sort(x),
    "torch.sort": lambda torch, x: torch.sort(x).values,
}
CUPY = {"cupy.sort": LIBRARIES["cupy.sort"]}


def _random(n: int) -> Workload:
    return Workload(
        family="random keys",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n),
        own=room.own_cost(n),
        make=random_keys(n),
        rungs=room.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.sort": np.sort} if n <= 2**24 else {},
        end_to_end=n <= 2**24,
        quick=n in (2**12, 2**20, DESIGN),
    )


def _more(family: str, name: str, made: Callable[[int], tuple]) -> Workload:
    n = 2**26
    return Workload(
        family=family,
        name=name,
        sizes={"n": n},
        cost=room.cost(n),
        make=made,
        rungs=(room.merge_sort, room.ranked, room.one_sweep),
        libraries=CUPY,
        verify=verify,
        quick=True,
    )


WORKLOADS = [
    _random(DESIGN),
    *(_more("keys", kind, arranged(2**26, kind)) for kind in KINDS),
    *(_more("dtype", np.dtype(dtype).name, random_keys(2**26, dtype)) for dtype in (np.uint32, np.float32)),
    *(_random(n) for n in SWEEP if n != DESIGN),
]
