"""What is measured of ``polynomial``: one long vector at degrees on both sides of the ridge, and short vectors."""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels.memory_or_compute import polynomial
from pmpp.lab.measure.arrays import chunks, normal, uniform, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime.device import empty

LENGTH = 2**26
DEGREES = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512]
DESIGN = 256
ON_CPU = 8  # the highest degree that NumPy is given: it passes over the vector several times for each
SHORT = [2**10, 2**15, 2**19]  # lengths, at degree 8


def verify(result: typing.Any, x: typing.Any, c: typing.Any) -> tuple[float, float]:
    """Every element against float64, with the tolerance of `pmpp.kernels.memory_or_compute.polynomial`."""
    if result.shape != x.shape:
        return float("inf"), 0.0
    rounding, found = 2 * (c.size - 1) * 2.0**-24, []
    for part in chunks(x.size):
        value = x[part].astype(np.float64)
        size, expected, terms = abs(value), 0 * value, 0 * value
        for coefficient in map(float, c):
            expected = expected * value + coefficient
            terms = terms * size + abs(coefficient)
        found.append(worst(abs(result[part] - expected), rounding / (1 - rounding) * terms))
    return worst_of(found)


def by_torch(torch: typing.Any, x: typing.Any, c: typing.Any, out: typing.Any) -> typing.Any:
    """A call for each degree, from 1 up: PyTorch has no function for polynomials."""
    total = c[0]
    for coefficient in c[1:]:
        total = torch.addcmul(coefficient, total, x, out=out)
    return out


@functools.cache
def _horner(cupy: typing.Any) -> typing.Any:
    """Horner's rule for one element, of which CuPy makes a kernel: compiled at its first call."""
    steps = "float total = c[0]; for (long long k = 1; k < terms; ++k) total = total * x + c[k]; y = total;"
    return cupy.ElementwiseKernel("float32 x, raw float32 c, int64 terms", "float32 y", steps, "horner")


def by_cupy(cupy: typing.Any, x: typing.Any, c: typing.Any, out: typing.Any) -> typing.Any:
    """All steps for an element in one kernel: what CuPy offers in the place of a function for polynomials."""
    return _horner(cupy)(x, c, c.size, out)


def _workload(family: str, name: str, n: int, degree: int, **options: typing.Any) -> Workload:
    sizes = {"degree": degree, "n": n} if n == LENGTH else {"n": n, "degree": degree}
    return Workload(
        family=family,
        name=name,
        sizes=sizes,
        cost=polynomial.cost(n, degree),
        make=lambda seed: (uniform(n, seed), normal(degree + 1, seed + 1000)),
        output=lambda: empty(n, np.float32),
        rungs=polynomial.LADDER,
        libraries={"torch.addcmul": by_torch, "cupy.ElementwiseKernel": by_cupy},
        verify=verify,
        **options,
    )


def _long(degree: int) -> Workload:
    return _workload(
        "degree",
        str(degree),
        LENGTH,
        degree,
        design=degree == DESIGN,
        cache="cold",
        host={"numpy.polyval": lambda x, c: np.polyval(c, x)} if degree <= ON_CPU else {},
        quick=degree in (1, DESIGN),
    )


WORKLOADS = [
    *(_long(degree) for degree in DEGREES),
    *(_workload("length", f"2^{n.bit_length() - 1}", n, 8, cache="warm") for n in SHORT),
]
