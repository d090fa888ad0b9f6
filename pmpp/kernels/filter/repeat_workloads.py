"""What is measured of ``repeat``: runs of eight elements on average, at many lengths; and of other lengths."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.filter import repeat as room
from pmpp.lab.measure.arrays import integers, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 2**28  # elements of the result
SWEEP = [2**k for k in (12, 16, 20, 24, 28)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next
RUN = 8  # elements of a run


def of_average(n: int, average: int) -> Callable[[int], tuple]:
    """A seed to values and lengths of n // average runs. They have from 1 to twice the average less 1 elements."""

    def make(seed: int) -> tuple:
        runs = n // average
        lengths = np.random.default_rng(seed).integers(1, 2 * average, runs).astype(np.int32)
        lengths[::2] = 2 * average - lengths[1::2]  # in pairs twice the average: n in all
        return integers(runs, seed, 2**31 - 1, np.int32), to_device(lengths)

    return make


def verify_of(n: int) -> Callable:
    """The number of wrong elements, which has to be 0."""

    def verify(result: typing.Any, values: typing.Any, lengths: typing.Any) -> tuple[float, float]:
        library = xp()
        if result.shape != (n,):
            return float("inf"), 0.0
        values, lengths, result = (library.asarray(one) for one in (values, lengths, result))
        begins = library.zeros(n, np.int32)
        begins[library.cumsum(lengths)[:-1]] = 1
        return float((result != values[library.cumsum(begins)]).sum()), 0.0

    return verify


def of_total(rung: typing.Any, n: int) -> Callable:
    """The rung as a contender of its name that is called with values and lengths alone."""

    def call(values: typing.Any, lengths: typing.Any) -> typing.Any:
        return rung(values, lengths, n)

    call.__name__ = rung.name
    return call


def _workload(family: str, name: str, n: int, average: int, **more: typing.Any) -> Workload:
    return Workload(
        family=family,
        name=name,
        cost=room.cost(n, n // average),
        make=of_average(n, average),
        rungs=tuple(of_total(rung, n) for rung in room.LADDER),
        libraries={
            "torch.repeat_interleave": lambda torch, values, lengths: torch.repeat_interleave(
                values, lengths, output_size=n
            )
        },
        verify=verify_of(n),
        **more,
    )


def _sweep(n: int) -> Workload:
    return _workload(
        "runs of 8",
        f"2^{n.bit_length() - 1}",
        n,
        RUN,
        sizes={"n": n},
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.repeat": np.repeat} if n <= 2**24 else {},
        quick=n in (2**12, DESIGN),
    )


WORKLOADS = [
    _sweep(DESIGN),
    *(
        _workload("other runs", f"{average:,} a run", 2**26, average, sizes={"average": average, "n": 2**26})
        for average in (1, 64, 2**16)
    ),
    *(_sweep(n) for n in SWEEP if n != DESIGN),
]
