"""What is measured of ``integer_linear``: square layers, batches for one layer, and sizes that fit no tile.

The roof of the figures is that of float32 multiply-adds, which tensor cores pass by far. What counts is the comparison
with PyTorch. Its product of int8 stores int32, four times the bytes, and requantises nothing; its product of float16 is
what the layer replaces.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.quantisation import integer_linear
from pmpp.lab.measure.arrays import integers, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import to_device

DESIGN = 4096
SWEEP = [64, 256, 512, 1024, 2048, DESIGN, 8192]
BATCHES = [32, 64, 128, 256, 512, 2048]
LAYER = (8192, 8192)  # N and K, of the batches
ODD = [1000, 4095]
COLD = 4000
ROWS = 128  # of a large result that are compared


def factors_of(n: int, k: int) -> np.ndarray:
    """Factors that make numbers of some tens of a sum of k products of random int8."""
    return (np.random.default_rng(n).uniform(0.3, 1, n) * 60 / (5500 * k**0.5)).astype(np.float32)


def verify(result: typing.Any, x: typing.Any, w: typing.Any, factors: typing.Any) -> tuple[float, float]:
    """Every element, or 128 rows that are drawn anew: equal to the definition. A sum of int8 is exact in float64."""
    m, n = x.shape[0], w.shape[0]
    if result.shape != (m, n):
        return float("inf"), 0.0
    rows = np.arange(m)
    if m > 2 * ROWS:
        rows = np.unique(np.r_[0, m - 1, np.random.default_rng().integers(0, m, ROWS)])
    rows = xp().asarray(rows)
    sums = x[rows].astype(np.float64) @ w.T.astype(np.float64)
    got = result[rows].astype(np.float64)
    if result.dtype == np.int32:
        return worst(abs(got - sums), 0 * sums)
    if result.dtype == np.float16:  # the library's: of the same numbers in float16, and rounded
        return worst(abs(got - sums), abs(sums) * 2.0**-10 + 64)
    exact = xp().clip(xp().rint(sums.astype(np.float32) * factors), -128, 127)
    return worst(abs(got - exact), 0 * exact)


def of_int8(torch: typing.Any, x: typing.Any, w: typing.Any, factors: typing.Any) -> typing.Any:
    """PyTorch's product of int8, to int32."""
    return torch._int_mm(x, w.t())


def _layer(family: str, m: int, n: int, k: int, rungs: tuple, **more: typing.Any) -> Workload:
    # PyTorch's product wants more than 16 rows, and multiples of 8.
    libraries = {} if m <= 16 or k % 8 or n % 8 else {"torch._int_mm": of_int8}
    return Workload(
        family=family,
        cost=integer_linear.cost(m, n, k),
        make=lambda seed: (
            integers((m, k), seed, 127, np.int8),
            integers((n, k), seed + 1000, 127, np.int8),
            to_device(factors_of(n, k)),
        ),
        rungs=rungs,
        libraries=libraries,
        verify=verify,
        cache="cold" if min(m, n, k) >= COLD else "warm",
        **more,
    )


def of_numpy(x: np.ndarray, w: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """By float32, which NumPy multiplies fast: its sums are exact up to 2^24."""
    return np.clip(np.rint((x.astype(np.float32) @ w.T.astype(np.float32)) * factors), -128, 127).astype(np.int8)


def _square(n: int) -> Workload:
    return _layer(
        "square",
        *(n, n, n),
        integer_linear.LADDER if n <= 1024 else integer_linear.LADDER[1:],
        name=str(n),
        sizes={"n": n},
        design=n == DESIGN,
        host={"numpy.matmul": of_numpy} if n <= 512 else {},
        quick=n in (64, 1024, DESIGN),
    )


WORKLOADS = [
    *map(_square, SWEEP),
    *(_layer("batches", m, *LAYER, integer_linear.LADDER[-1:], name=f"{m} rows", sizes={"m": m}) for m in BATCHES),
    *(_layer("odd sizes", n, n, n, integer_linear.LADDER[1:], name=str(n), sizes={"n": n}) for n in ODD),
]
