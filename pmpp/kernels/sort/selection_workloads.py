"""What is measured of ``selection``: the greatest 1,000 of random floats, at many lengths; other k; equal keys."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.sort import selection as room
from pmpp.kernels.sort.workloads import arranged
from pmpp.lab.measure.arrays import normal, xp
from pmpp.lab.measure.bench import Workload

DESIGN = 2**28  # keys
GREATEST = 1000
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next


def verify(where: typing.Any, x: typing.Any, k: int) -> tuple[float, float]:
    """The number of wrong places, which has to be 0."""
    library = xp()
    if where.shape != (k,):
        return float("inf"), 0.0
    keys, at = library.asarray(x), library.asarray(where)
    if int(at.min()) < 0 or int(at.max()) >= keys.size:
        return float("inf"), 0.0
    found = keys[at]
    exact = library.sort(keys)[keys.size - k :][::-1]
    wrong = found != exact
    # Of equal keys the numbers rise, so none comes twice; and of those that equal the last one, the first ones came.
    wrong[1:] |= (found[1:] == found[:-1]) & (at[1:] <= at[:-1])
    equal = library.flatnonzero(keys == exact[-1])[: int((exact == exact[-1]).sum())]
    wrong[k - equal.size :] |= at[k - equal.size :] != equal
    return float(wrong.sum()), 0.0


def of_greatest(rung: typing.Any, k: int) -> Callable:
    """The rung as a contender of its name that is called with the keys alone."""

    def call(x: typing.Any) -> typing.Any:
        return rung(x, k)

    call.__name__ = rung.name
    return call


def floats(n: int) -> Callable[[int], tuple]:
    """A seed to n normally distributed float32."""
    return lambda seed: (normal(n, seed),)


def _workload(
    family: str, name: str, n: int, k: int, make: Callable, rungs: tuple = (room.by_digits,), **more: typing.Any
) -> Workload:
    return Workload(
        family=family,
        name=name,
        cost=room.cost(n, k),
        own=room.own_cost(n, k),
        make=make,
        rungs=tuple(of_greatest(rung, k) for rung in rungs),
        libraries={"torch.topk": lambda torch, x: torch.topk(x, k).indices},
        verify=lambda where, x: verify(where, x, k),
        **more,
    )


def _random(n: int) -> Workload:
    return _workload(
        "the greatest 1,000",
        f"2^{n.bit_length() - 1}",
        n,
        GREATEST,
        floats(n),
        sizes={"n": n},
        rungs=room.LADDER,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.argsort": lambda x: np.argsort(-x, kind="stable")[:GREATEST]} if n <= 2**20 else {},
        end_to_end=n <= 2**20,
        quick=n in (2**12, 2**20, DESIGN),
    )


def _k(k: int) -> Workload:
    n = 2**26
    return _workload("any k", f"{k:,}", n, k, floats(n), sizes={"k": k, "n": n}, quick=k == 1)


def _arranged(kind: str) -> Workload:
    n = 2**26
    keys = arranged(n, kind)
    return _workload("keys", kind, n, GREATEST, keys, sizes={"n": n}, quick=True)


WORKLOADS = [
    _random(DESIGN),
    *(_k(k) for k in (1, 100, 10_000, 2**20)),
    *(_arranged(kind) for kind in ("sorted", "all equal", "10 bits")),
    *(_random(n) for n in SWEEP if n != DESIGN),
]
