"""Softmax of drawn shapes: `softmax.softmax`."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels import softmax
from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.softmax.workloads import verify
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device


def workload(shape: Shape) -> Workload:
    """Along an axis, beside PyTorch and CuPy."""
    extents, axis = tuple(shape.sizes["shape"]), shape.sizes["axis"]

    def ours(x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return softmax.softmax(x, axis, out=out)

    def cupy(cupy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        from cupyx.scipy.special import softmax as theirs

        return theirs(x, axis=axis)

    return contenders.workload(
        shape,
        "softmax.softmax",
        ours,
        {"torch.softmax": lambda torch, x, out: torch.softmax(x, axis, out=out), "cupy.softmax": cupy},
        make=lambda seed: (normal(extents, seed),),
        verify=lambda result, x: verify(result, x, axis),
        output=lambda: device.empty(extents, np.float32),
    )
