"""What is measured of ``numerics``: the sum of a vector of float32, beside library sums in float32 and in float64."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.numerics import ladder as numerics
from pmpp.kernels.reduction.workloads import probe_of
from pmpp.lab.measure.arrays import chunks, normal
from pmpp.lab.measure.bench import Workload

DESIGN = 2**28
SWEEP = [2**k for k in range(10, 29, 2)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Against a sum in float64, within what the first rung may be off in the worst case.

    The better rungs are held to bounds of their own in tests/kernels/numerics. The ``probe`` sees a lost element.
    """
    total = sum(float(x[part].sum(dtype=np.float64)) for part in chunks(x.size))
    size = sum(float(abs(x[part]).sum(dtype=np.float64)) for part in chunks(x.size))
    return abs(float(result.reshape(-1)[0]) - total), numerics.additions(x.size) * 2.0**-24 * size


def _sum(n: int) -> Workload:
    return Workload(
        family="sum",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=numerics.cost(n),
        make=lambda seed: (normal(n, seed),),
        rungs=numerics.LADDER,
        libraries={
            "torch.sum": lambda torch, x: torch.sum(x),
            "cupy.sum": lambda cupy, x: cupy.sum(x),
            "torch.sum in float64": lambda torch, x: torch.sum(x, dtype=torch.float64),
            "cupy.sum in float64": lambda cupy, x: cupy.sum(x, dtype=np.float64),
        },
        verify=verify,
        probe=probe_of(n),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.sum": np.sum},
        end_to_end=True,
        quick=n in (2**10, 2**20, DESIGN),
    )


WORKLOADS = [_sum(n) for n in SWEEP]
