"""Reductions of drawn shapes: `reduction.sum` and its like, over axes and over all of a vector.

Over axes the call is that of NumPy, ``reduction.sum(x, axis=axes)``. Where the subject's function takes no axis, sums
are those of the room `axis_sum`, and everything else is refused by what Python says of such a call.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels import reduction
from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.reduction import axis_sum, axis_sum_workloads
from pmpp.kernels.reduction import workloads as whole
from pmpp.lab.measure.arrays import normal, worst, xp
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape

TORCH = {"sum": "sum", "mean": "mean", "max": "amax"}


def workload(shape: Shape) -> Workload:
    """Over some axes or, of a vector, over all, beside PyTorch and CuPy."""
    op, extents, axes = (shape.sizes[key] for key in ("op", "shape", "axes"))
    if axes is None:
        return contenders.workload(
            shape,
            "reduction.sum",
            reduction.sum,
            {"torch.sum": lambda torch, x: torch.sum(x), "cupy.sum": lambda cupy, x: cupy.sum(x)},
            make=lambda seed: (normal(extents[0], seed),),
            verify=whole.verify,
        )
    axes = tuple(axes)
    name, ours = over_axes(op, axes)
    return contenders.workload(
        shape,
        name,
        ours,
        {
            f"torch.{TORCH[op]}": lambda torch, x: getattr(torch, TORCH[op])(x, dim=axes),
            f"cupy.{op}": lambda cupy, x: getattr(cupy, op)(x, axis=axes),
        },
        make=lambda seed: (normal(tuple(extents), seed),),
        verify=verifier(op, axes),
    )


def over_axes(op: str, axes: tuple[int, ...]) -> tuple[str, Callable]:
    """What a caller calls today, and its name."""
    function = getattr(reduction, op, None)
    if op == "sum" and "axis" not in inspect.signature(function).parameters:
        last = axis_sum.LADDER[-1]
        return f"axis_sum.{last.name}", lambda x: last(x, axes)

    def ours(x: typing.Any) -> typing.Any:
        if function is None:
            raise TypeError(f"reduction has no {op}")
        return function(x, axis=axes)

    return f"reduction.{op}", ours


def verifier(op: str, axes: tuple[int, ...]) -> Callable[..., tuple[float, float]]:
    """Every result: a maximum exactly, a sum and a mean against float64 as `axis_sum_workloads` does it."""

    def verify(result: typing.Any, x: typing.Any) -> tuple[float, float]:
        if op == "sum":
            return axis_sum_workloads.verify(result, x, axes)
        if op == "mean":  # the sum's check, with a rounding of the quotient
            terms = x.size // max(result.size, 1)
            error, allowed = axis_sum_workloads.verify(result.astype(np.float64) * terms, x, axes)
            return error, allowed + terms * 2.0**-23 * float(abs(result).max())
        expected = x.max(axis=axes)
        if result.shape != expected.shape:
            return float("inf"), 0.0
        return worst(abs(result - expected), xp().zeros_like(expected))

    return verify
