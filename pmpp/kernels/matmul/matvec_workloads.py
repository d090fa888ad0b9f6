"""What is measured of ``matvec``: square matrices in both orders, tall, wide and odd ones."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.matmul import matvec
from pmpp.lab.measure.arrays import chunks, integers, normal, view, worst, worst_of, xp
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.timing import WrongResult
from pmpp.runtime import device
from pmpp.runtime.views import strided

DESIGN = 16384
SWEEP = [256, 512, 1024, 2048, 4096, 8192, DESIGN]
SHAPES = [(16384, 16), (16, 16384), (1, 2**24), (16, 2**20), (2**20, 16), (65536, 128), (128, 65536)]
ODD = [(16383, 16385), (4095, 4097), (1001, 1001), (333, 777), (2, 300_001)]
COLD = 30_000_000  # bytes: half of the L2 cache. A smaller matrix is there when the next layer asks for it again

LIBRARIES = {
    "torch.mv": lambda torch, a, x, out: torch.mv(a, x, out=out),
    "cupy.matmul": lambda cupy, a, x, out: cupy.matmul(a, x, out=out),
}


def matrix(m: int, n: int, order: str, make: Callable) -> typing.Any:
    """A device array of shape (m, n) in C or Fortran order; ``make(shape)`` makes one in C order."""
    if order == "C":
        return make((m, n))
    transposed = device.as_input("a", make((n, m)), dtypes="float32")
    return strided(transposed, (m, n), (1, m))


def verify(result: typing.Any, a: typing.Any, x: typing.Any) -> tuple[float, float]:
    """Against float64, every row, some at a time.

    A row is a sum of n products. Its rounding error grows like sqrt(n) (Higham and Mary 2019): with four times the
    expected size allowed, |error| <= 2 sqrt(n) eps sum_j |a_ij x_j|. It does not see one lost product of a long row:
    ``probe`` does.
    """
    m, n = a.shape
    if result.shape != (m,):
        return float("inf"), 0.0
    x64, growth = x.astype(np.float64), 2 * math.sqrt(n) * float(np.finfo(np.float32).eps)

    def part(rows: slice) -> tuple[float, float]:
        some = a[rows].astype(np.float64)
        return worst(abs(result[rows] - some @ x64), growth * (abs(some) @ abs(x64)))

    return worst_of(part(rows) for rows in chunks(m, max(1, 2**25 // n)))


def probe_of(m: int, n: int, order: str) -> Callable[[Callable], None]:
    """Whole numbers, in x without 0: each partial sum is exact in float32, in any order, so the result must be, too."""

    def probe(call: Callable) -> None:
        a = matrix(m, n, order, lambda shape: integers(shape, m + n, 4))
        x = device.to_device(np.random.default_rng(n).integers(1, 4, n).astype(np.float32))
        got, x64 = view(call(a, x)).astype(np.float64), view(x).astype(np.float64)
        parts = [view(a)[rows].astype(np.float64) @ x64 for rows in chunks(m, max(1, 2**25 // n))]
        wrong = int((got != xp().concatenate(parts)).sum())
        if wrong:
            raise WrongResult(f"{wrong} of {m} elements of a product of whole numbers are wrong")

    return probe


def _product(m: int, n: int, order: str, family: str, rungs: tuple, **more: typing.Any) -> Workload:
    return Workload(
        family=family,
        name=f"{m} x {n}",
        sizes={"n": n, "m": m},
        cost=matvec.cost(m, n),
        make=lambda seed: (matrix(m, n, order, lambda shape: normal(shape, seed)), normal(n, seed + 1000)),
        output=lambda: device.empty(m, np.float32),
        rungs=rungs,
        libraries=LIBRARIES,
        verify=verify,
        probe=probe_of(m, n, order),
        cache="cold" if 4 * m * n > COLD else "warm",
        **more,
    )


def _square(n: int, order: str) -> Workload:
    host = {"numpy.matmul": lambda a, x, out: np.matmul(a, x, out=out)} if n <= 4096 and order == "C" else {}
    return _product(
        n,
        n,
        order,
        NAMES[order],
        matvec.LADDER,
        design=n == DESIGN,
        quick=n in (256, 4096, DESIGN),
        host=host,
        host_args=lambda a, x: (device.to_host(a), device.to_host(x), np.zeros(n, np.float32)),
        end_to_end=order == "C" and n <= 4096,
    )


NAMES = {"C": "by rows", "F": "by columns"}
WORKLOADS = [
    *(_square(n, order) for order in "CF" for n in SWEEP),
    *(_product(m, n, order, f"{NAMES[order]}, tall and wide", matvec.LADDER[2:]) for order in "CF" for m, n in SHAPES),
    *(_product(m, n, order, f"{NAMES[order]}, odd", matvec.LADDER[2:]) for order in "CF" for m, n in ODD),
]
