"""What is measured of ``pairs``: random keys with a value each, at many lengths; argsort; keys in an order."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels import sort
from pmpp.kernels.sort import pairs as room
from pmpp.kernels.sort.workloads import arranged, random_keys
from pmpp.lab.measure.arrays import xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 2**28  # pairs
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
KINDS = ("sorted", "all equal", "10 bits")


def numbered(make: typing.Callable[[int], tuple]) -> typing.Callable[[int], tuple]:
    """The same keys, each with its number as its value."""

    def pairs(seed: int) -> tuple:
        (keys,) = make(seed)
        return keys, to_device(np.arange(keys.size, dtype=np.int32))

    return pairs


def verify(order: typing.Any, keys: typing.Any, values: typing.Any = None) -> tuple[float, float]:
    """The number of places that are wrong, which has to be 0. The values are the keys' numbers."""
    library = xp()
    if order.shape != keys.shape:
        return float("inf"), 0.0
    at = library.asarray(order)
    if int(at.min()) < 0 or int(at.max()) >= at.size:
        return float("inf"), 0.0
    found = library.asarray(keys)[at]
    # Keys rise, and of equal ones the numbers do: so no number comes twice.
    wrong = (found[1:] < found[:-1]) | ((found[1:] == found[:-1]) & (at[1:] <= at[:-1]))
    return float(wrong.sum()), 0.0


LIBRARIES = {"torch.sort": lambda torch, keys, values: torch.sort(keys, stable=True).indices}


def _random(n: int) -> Workload:
    return Workload(
        family="random keys",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n),
        own=room.own_cost(n),
        make=numbered(random_keys(n)),
        rungs=room.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.argsort": lambda keys, values: np.argsort(keys, kind="stable")} if n <= 2**20 else {},
        end_to_end=n <= 2**20,
        quick=n in (2**12, 2**20, DESIGN),
    )


def _arranged(kind: str) -> Workload:
    n = 2**26
    return Workload(
        family="keys",
        name=kind,
        sizes={"n": n},
        cost=room.cost(n),
        own=room.own_cost(n),
        make=numbered(arranged(n, kind)),
        rungs=(room.one_sweep,),
        libraries=LIBRARIES,
        verify=verify,
        quick=True,
    )


def _argsort(n: int) -> Workload:
    return Workload(
        family="argsort",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=sort.cost(n),
        make=random_keys(n),
        rungs=(sort.argsort,),
        libraries={
            "torch.argsort": lambda torch, x: torch.argsort(x, stable=True),
            "cupy.argsort": lambda cupy, x: cupy.argsort(x),
        },
        verify=verify,
        quick=n == DESIGN,
    )


WORKLOADS = [
    _random(DESIGN),
    *(_arranged(kind) for kind in KINDS),
    *(_argsort(n) for n in (2**26, DESIGN)),
    *(_random(n) for n in SWEEP if n != DESIGN),
]
