"""Normalisation of drawn shapes: `normalisation.batch_norm` in training and inference, `normalisation.layer_norm`."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels import normalisation
from pmpp.kernels.instruments.shapes import contenders
from pmpp.kernels.normalisation import batchnorm_workloads, layernorm_workloads
from pmpp.kernels.normalisation.batchnorm_workloads import EPS, MOMENTUM
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device


def workload(shape: Shape) -> Workload:
    """Channels of a batch or rows of a matrix, beside PyTorch. CuPy has neither."""
    kind, extents = shape.sizes["kind"], tuple(shape.sizes["shape"])
    return _layer(shape, extents) if kind == "layer" else _batch(shape, extents, kind == "batch, training")


def _layer(shape: Shape, extents: tuple[int, int]) -> Workload:
    columns = extents[1]

    def torch(torch: typing.Any, x: typing.Any, weight: typing.Any, bias: typing.Any, out: typing.Any) -> typing.Any:
        return torch.nn.functional.layer_norm(x, (columns,), weight, bias)

    return contenders.workload(
        shape,
        "normalisation.layer_norm",
        normalisation.layer_norm,
        {"torch.layer_norm": torch},
        make=lambda seed: (normal(extents, seed), normal(columns, seed + 1000), normal(columns, seed + 2000)),
        verify=layernorm_workloads.verify,
        output=lambda: device.empty(extents, np.float32),
    )


def _batch(shape: Shape, extents: tuple[int, ...], training: bool) -> Workload:
    channels = extents[1]

    def make(seed: int) -> tuple:
        running_var = 0.5 + np.random.default_rng(seed).random(channels, dtype=np.float32)
        parameters = (normal(channels, seed + more) for more in (1000, 2000, 3000))
        return normal(extents, seed), *parameters, device.to_device(running_var)

    def ours(x, weight, bias, mean, var, *, out=None):
        return normalisation.batch_norm(
            x, weight, bias, mean, var, training=training, momentum=MOMENTUM, eps=EPS, out=out
        )

    def torch(torch, x, weight, bias, mean, var, out):
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, training=training, momentum=MOMENTUM, eps=EPS)

    return contenders.workload(
        shape,
        "normalisation.batch_norm",
        ours,
        {"torch.batch_norm": torch},
        make=make,
        verify=batchnorm_workloads.verifier(training),
        output=lambda: device.empty(extents, np.float32),
    )
