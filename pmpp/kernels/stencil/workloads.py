"""What is measured of ``stencil``: EMPTY: which sizes, and beside which libraries."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.stencil import ladder as room
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty

DESIGN = 2**26  # EMPTY: the size that the ladder is judged by: too large for any cache
SWEEP = [2**k for k in range(10, 27)]


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Error and tolerance of the worst element: see `pmpp.lab.measure.arrays.worst`."""
    raise NotImplementedError("EMPTY: compare with float64; no time is recorded without it")


def _workload(n: int) -> Workload:
    return Workload(
        family="stencil",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=room.cost(n),
        make=lambda seed: (normal(n, seed),),
        output=lambda: empty(n, np.float32),
        rungs=room.LADDER,
        libraries={},  # EMPTY: who else does this work, as in {"torch.add": lambda torch, x, out: ...}
        verify=verify,
        design=n == DESIGN,
        cache="cold" if n == DESIGN else "warm",
        host={},  # EMPTY: NumPy, for the plot with the CPU in it, as in {"numpy.add": lambda x, out: ...}
        quick=n in (2**10, 2**20, DESIGN),
    )


WORKLOADS = [_workload(n) for n in SWEEP]
