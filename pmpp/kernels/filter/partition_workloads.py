"""What is measured of ``partition``: half kept, at many lengths; and other shares."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.filter import partition as room
from pmpp.kernels.filter.workloads import COLD, DESIGN, SWEEP, share_of
from pmpp.lab.measure.arrays import xp
from pmpp.lab.measure.bench import Workload


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """The number of wrong elements, which has to be 0."""
    library = xp()
    if result.shape != x.shape:
        return float("inf"), 0.0
    result, x = library.asarray(result), library.asarray(x)
    kept = x > 0
    exact = library.concatenate((x[kept], x[~kept]))
    return float((result != exact).sum()), 0.0


def _torch(torch: typing.Any, x: typing.Any) -> typing.Any:
    kept = x > 0
    return torch.cat((x[kept], x[~kept]))


def _cupy(cupy: typing.Any, x: typing.Any) -> typing.Any:
    kept = x > 0
    return cupy.concatenate((x[kept], x[~kept]))


def _numpy(x: np.ndarray) -> np.ndarray:
    kept = x > 0
    return np.concatenate((x[kept], x[~kept]))


LIBRARIES = {"torch.cat": _torch, "cupy.concatenate": _cupy}


def _half(n: int) -> Workload:
    return Workload(
        family="half kept",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n),
        make=share_of(n, 50),
        rungs=room.LADDER,
        libraries=LIBRARIES,
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.concatenate": _numpy} if n <= 2**24 else {},
        quick=n in (2**12, DESIGN),
    )


def _share(percent: int) -> Workload:
    n = 2**26
    return Workload(
        family="share kept",
        name=f"{percent} %",
        sizes={"percent": percent, "n": n},
        cost=room.cost(n),
        make=share_of(n, percent),
        rungs=room.LADDER,
        libraries={"torch.cat": _torch},
        verify=verify,
    )


WORKLOADS = [
    _half(DESIGN),
    *(_share(percent) for percent in (0, 10, 90, 100)),
    *(_half(n) for n in SWEEP if n != DESIGN),
]
