"""What is measured of ``batchnorm_backward``: the design size of `batchnorm`, fewer images, and awkward shapes.

The moments of the forward pass are given, as in training. Verified is the gradient of the batch, which depends on the
two sums of its channel.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels.normalisation import batchnorm, batchnorm_backward, gradients
from pmpp.kernels.normalisation.batchnorm_workloads import DESIGN, EPS, F32, ON_CPU, SWEEP
from pmpp.kernels.normalisation.moments import once_more
from pmpp.lab.measure.arrays import normal, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known

# Odd planes, late layers of a ResNet, planes of nine and of one, few channels, few values.
OTHER = [
    *[(64, 64, 111, 111), (256, 512, 14, 14), (256, 2048, 7, 7), (32, 256, 56, 56), (256, 512, 3, 3), (32, 512, 7, 7)],
    *[(65536, 1024), (4096, 256), (128, 1000), (1_000_001, 5), (64, 2048, 1, 1), (64, 3, 224, 224), (128, 64, 32, 32)],
    (2, 2),
]


def verify(
    result: typing.Any,
    dy: typing.Any,
    x: typing.Any,
    weight: typing.Any,
    mean: typing.Any,
    invstd: typing.Any,
    dtype: np.dtype = F32,
) -> tuple[float, float]:
    """Every element against float64, some channels at a time; the tolerance is that of the room.

    ``dtype``: as in `batchnorm_workloads`.
    """
    if result.shape != x.shape:
        return float("inf"), 0.0
    step, found = max(1, 2**24 * x.shape[1] // x.size), []
    for c in range(0, x.shape[1], step):
        rows, given, got = (
            (part := array[:, c : c + step].swapaxes(0, 1)).reshape(len(part), -1) for array in (x, dy, result)
        )
        factors = weight[c : c + step, None]
        expected = gradients.of_rows(given, rows, factors, EPS)[0]
        allowed = gradients.tolerances(given, rows, factors, EPS)[0]
        found.append(worst(abs(got - expected), allowed + once_more(abs(expected) + allowed, dtype)))
    return worst_of(found)


def on_cpu(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, mean: np.ndarray, invstd: np.ndarray) -> np.ndarray:
    """The gradient of the batch by NumPy on the CPU, in the dtype of ``x``."""
    axes, shape = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    normalised = (x - mean.reshape(shape)) * invstd.reshape(shape)
    slope = (dy * normalised).mean(axis=axes, keepdims=True)
    return (dy - dy.mean(axis=axes, keepdims=True) - normalised * slope) * (weight * invstd).reshape(shape)


def _make(shape: tuple[int, ...], dtype: np.dtype) -> typing.Callable[[int], tuple]:
    def make(seed: int) -> tuple:
        x, weight = normal(shape, seed, dtype), normal(shape[1], seed + 1000)
        _, mean, invstd = batchnorm.vectorised(x, weight, weight, eps=EPS, return_moments=True)
        return normal(shape, seed + 2000, dtype), x, weight, mean, invstd

    return make


def _native(torch, dy, x, weight, mean, invstd, out):
    wanted = [True, True, True]
    return torch.ops.aten.native_batch_norm_backward(dy, x, weight, None, None, mean, invstd, True, EPS, wanted)[0]


def _cudnn(torch, dy, x, weight, mean, invstd, out):
    reserve = torch.empty(0, dtype=torch.uint8, device=x.device)  # what cuDNN asks for with images x channels first
    return torch.ops.aten.cudnn_batch_norm_backward(x, dy, weight, None, None, mean, invstd, EPS, reserve)[0]


def _given(rung: typing.Any) -> typing.Callable:
    def call(dy, x, weight, mean, invstd, *, out=None):
        return rung(dy, x, weight, eps=EPS, mean=mean, invstd=invstd, out=out)

    call.__name__ = rung.name
    return call


def _workload(shape: tuple[int, ...], rungs: tuple, family: str, dtype: np.dtype = F32) -> Workload:
    n, c, inner = *shape[:2], math.prod(shape[2:])
    # PyTorch leaves matrices to its own kernels, and its call of cuDNN takes no bfloat16 with a float32 weight.
    libraries = {"torch.native_batch_norm_backward": _native}
    if len(shape) > 2 and dtype.name != "bfloat16":
        libraries["torch.cudnn_batch_norm_backward"] = _cudnn
    few = shape[0] <= ON_CPU and inner > 1
    more = {"host": {"numpy": on_cpu}, "end_to_end": True} if few else {}
    return Workload(
        family=family,
        name="x".join(map(str, shape)),
        sizes={"n": n * c * inner, "images": n, "channels": c, "inner": inner},
        cost=batchnorm_backward.cost(n, c, inner, dtype.itemsize),
        make=_make(shape, dtype),
        output=lambda: device.empty(shape, dtype),
        rungs=tuple(map(_given, rungs)),
        libraries=libraries,
        verify=lambda *arrays: verify(*arrays, dtype=dtype),
        design=shape == DESIGN,
        quick=shape in (DESIGN, OTHER[0]),
        **more,
    )


WORKLOADS = [
    *(_workload(shape, batchnorm_backward.LADDER, "gradients") for shape in (*SWEEP, DESIGN)),
    *(
        _workload(DESIGN, batchnorm_backward.LADDER[-1:], f"gradients, {dtype}", dtype)
        for dtype in known(batchnorm.DTYPES[1:])
    ),
    *(_workload(shape, batchnorm_backward.LADDER[-1:], "other shapes") for shape in OTHER),
]
