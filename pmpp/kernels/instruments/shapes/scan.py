"""Scans of drawn shapes: `scan.cumsum` of float32, int32 and int64."""

from __future__ import annotations

import typing

from pmpp.kernels import scan
from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.scan.workloads import verify
from pmpp.lab.measure.arrays import integers, normal, xp
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape


def workload(shape: Shape) -> Workload:
    """The running sum of a vector in its own dtype, beside PyTorch and CuPy, which are told to keep it."""
    n, dtype = shape.sizes["n"], shape.sizes["dtype"]
    real = dtype == "float32"
    return contenders.workload(
        shape,
        "scan.cumsum",
        scan.cumsum,
        {
            "torch.cumsum": lambda torch, x: torch.cumsum(x, 0, dtype=x.dtype),
            "cupy.cumsum": lambda cupy, x: cupy.cumsum(x, dtype=x.dtype),
        },
        make=lambda seed: (normal(n, seed) if real else integers(n, seed, largest=2**20, dtype=dtype),),
        verify=verify_real if real else verify_integers,
    )


def verify_real(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    return verify(result, x) if result.shape == x.shape else (float("inf"), 0.0)


def verify_integers(result: typing.Any, x: typing.Any) -> tuple[float, float]:
    """How many are wrong: sums of integers wrap, and are exact in every order."""
    if result.shape != x.shape or result.dtype != x.dtype:
        return float("inf"), 0.0
    return float((result != xp().cumsum(x, dtype=x.dtype)).sum()), 0.0
