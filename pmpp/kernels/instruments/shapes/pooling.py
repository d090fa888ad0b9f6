"""Pooling of drawn shapes: `pooling.max_pool2d` and `pooling.avg_pool2d`."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels import pooling
from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.pooling.workloads import verifier
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device


def workload(shape: Shape) -> Workload:
    """Square windows on square planes, beside PyTorch; for whole planes, that is its adaptive pooling."""
    op, extents, window, stride, padding = (shape.sizes[key] for key in ("op", "shape", "window", "stride", "padding"))
    places = pooling.pooled_extent(extents[2], window, stride, padding)
    name = {"max": "max_pool2d", "average": "avg_pool2d"}[op]
    whole = op == "average" and window == extents[2]

    def ours(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return getattr(pooling, name)(x, window, stride, padding, out=out)

    def torch(torch: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        functional = torch.nn.functional
        if whole:
            return functional.adaptive_avg_pool2d(x, 1)
        return getattr(functional, name)(x, window, stride, padding)

    pairs = (window, window), (stride, stride), (padding, padding)
    result = (*extents[:2], places, places)
    exact = verifier(op, *pairs)
    return contenders.workload(
        shape,
        f"pooling.{name}",
        ours,
        {f"torch.{'adaptive_' * whole}{name}": torch},
        make=lambda seed: (normal(tuple(extents), seed),),
        verify=lambda found, x: exact(found, x) if found.shape == result else (float("inf"), 0.0),
        output=lambda: device.empty(result, np.float32),
    )
