"""Activations of drawn shapes: `activation.relu` and the others, with a bias and without one."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels import activation
from pmpp.kernels.activation.workloads import TORCH, verifier
from pmpp.kernels.instruments.shapes import contenders
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device


def workload(shape: Shape) -> Workload:
    """A function of each element, beside PyTorch, which adds a bias by a kernel of its own."""
    function, extents, biased = (shape.sizes[key] for key in ("function", "shape", "bias"))
    extents = tuple(extents)

    def make(seed: int) -> tuple:
        return normal(extents, seed), *((normal(extents[1], seed + 1000),) if biased else ())

    def ours(x: typing.Any, bias: typing.Any = None, *, out: typing.Any = None) -> typing.Any:
        return getattr(activation, function)(x, bias, out=out)

    def torch(torch: typing.Any, x: typing.Any, *rest: typing.Any) -> typing.Any:
        if biased:
            x = x + rest[0].view(1, -1, *[1] * (x.ndim - 2))
        return TORCH[function](torch, x)

    return contenders.workload(
        shape,
        f"activation.{function}",
        ours,
        {f"torch.{function}{'(x + bias)' * biased}": torch},
        make=make,
        verify=verifier(function),
        output=lambda: device.empty(extents, np.float32),
    )
