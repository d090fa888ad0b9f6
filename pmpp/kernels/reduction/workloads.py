"""What is measured of ``reduction``: the sum of float32, and of numbers of 16 bits."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pmpp.kernels.reduction import ladder as reduction
from pmpp.lab.measure.arrays import chunks, integers, normal, view
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.timing import WrongResult
from pmpp.runtime.dtypes import known, rounding

DESIGN = 2**28
SWEEP = [2**k for k in range(10, 29)]
COLD = 2**26  # from here on nothing stays in a cache from one launch to the next


def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Against a sum in float64. A tree of additions is log2 n deep, and each level rounds at most sum |x| by eps / 2.

    No rung adds in a plain tree, but with both signs partial sums stay far below sum |x|, so the tolerance is wide. It
    does not see one lost element: ``probe`` does.
    """
    total = sum(float(x[part].sum(dtype=np.float64)) for part in chunks(x.size))
    size = sum(float(abs(x[part]).sum(dtype=np.float64)) for part in chunks(x.size))
    return abs(float(result.reshape(-1)[0]) - total), float(np.finfo(np.float32).eps) * math.log2(max(x.size, 2)) * size


def verifier(dtype: np.dtype) -> Callable[..., tuple[float, float]]:
    """`verify`, for a sum that is rounded to 16 bits once more."""

    def verify_rounded(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        error, allowed = verify(result, x)
        total = sum(float(x[part].sum(dtype=np.float64)) for part in chunks(x.size))
        return error, allowed + float(rounding(np.float64(abs(total) + allowed), dtype))

    return verify_rounded


def probe_of(n: int) -> Callable[[Callable], None]:
    """Whole numbers from -8 to 8: every partial sum is exact in float32, in any order, so the result must be too."""

    def probe(call: Callable) -> None:
        x = integers(n, seed=n % 2**31 + 7, largest=8)
        expected = sum(float(view(x)[part].sum(dtype=np.float64)) for part in chunks(n))
        got = float(view(call(x)).reshape(-1)[0])
        if got != expected:
            raise WrongResult(f"the sum of {n} whole numbers is {got:.9g}, it should be {expected:.9g} exactly")

    return probe


def _sum(n: int) -> Workload:
    return Workload(
        family="sum",
        name=f"2^{n.bit_length() - 1}",
        sizes={"n": n},
        cost=reduction.cost(n),
        make=lambda seed: (normal(n, seed),),
        rungs=reduction.LADDER,
        libraries={"torch.sum": lambda torch, x: torch.sum(x), "cupy.sum": lambda cupy, x: cupy.sum(x)},
        verify=verify,
        probe=probe_of(n),
        design=n == DESIGN,
        cache="cold" if n >= COLD else "warm",
        host={"numpy.sum": np.sum} if n <= DESIGN else {},
        end_to_end=n <= DESIGN,
        quick=n in (2**10, 2**20, DESIGN, 2**30),
    )


def _in_16_bits(n: int, dtype: np.dtype) -> Workload:
    return replace(
        _sum(n),
        family=f"sum, {dtype}",
        cost=reduction.cost(n, dtype.itemsize),
        make=lambda seed: (normal(n, seed, dtype),),
        rungs=reduction.LADDER[-2:],
        libraries={"torch.sum": lambda torch, x: torch.sum(x)},
        verify=verifier(dtype),
        probe=None,
        host={},
        end_to_end=False,
        quick=n == DESIGN,
    )


WORKLOADS = [
    *(_sum(n) for n in (*SWEEP, 2**30)),
    *(_in_16_bits(n, dtype) for dtype in known(reduction.SHORT) for n in (2**14, 2**20, DESIGN)),
]
