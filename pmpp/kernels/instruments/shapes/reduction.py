"""Reductions of drawn shapes: `reduction.sum` and its like, over axes and over all of a vector."""

from __future__ import annotations

from pmpp.kernels import reduction
from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.reduction import over_axes_workloads
from pmpp.kernels.reduction import workloads as whole
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape


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
    return contenders.workload(
        shape,
        f"reduction.{op}",
        lambda x: getattr(reduction, op)(x, axes),
        over_axes_workloads.libraries(axes, op),
        make=lambda seed: (normal(tuple(extents), seed),),
        verify=lambda result, x: over_axes_workloads.verify(result, x, axes, op),
    )
