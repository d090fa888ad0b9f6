"""What is measured of ``batchnorm_channels_last_backward``: the layers of a ResNet-50 with 32 images, and odd ones.

The moments of the forward pass are given, as in training. Verified is the gradient of the batch, which depends on the
two sums of its channel.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels.normalisation import batchnorm_channels_last as forward
from pmpp.kernels.normalisation import batchnorm_channels_last_backward as room
from pmpp.kernels.normalisation.batchnorm_backward_workloads import verify as channels_first
from pmpp.kernels.normalisation.batchnorm_channels_last_workloads import DESIGN, DTYPES, LAYERS, OTHER
from pmpp.kernels.normalisation.batchnorm_workloads import EPS, F32
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device


def verify(result: typing.Any, dy: typing.Any, x: typing.Any, *rest: typing.Any, dtype: np.dtype) -> tuple:
    """Every element against float64, as with channels first."""
    return channels_first(*(forward.channels_to(1, array) for array in (result, dy, x)), *rest, dtype=dtype)


def _make(shape: tuple[int, ...], dtype: np.dtype) -> typing.Callable[[int], tuple]:
    def make(seed: int) -> tuple:
        x, weight = normal(shape, seed, dtype), normal(shape[-1], seed + 1000)
        _, mean, invstd = forward.vectorised(x, weight, weight, eps=EPS, return_moments=True)
        return normal(shape, seed + 2000, dtype), x, weight, mean, invstd

    return make


def _native(torch, dy, x, weight, mean, invstd, out):
    given, batch, wanted = dy.movedim(-1, 1), x.movedim(-1, 1), [True, True, True]
    backward = torch.ops.aten.native_batch_norm_backward
    return backward(given, batch, weight, None, None, mean, invstd, True, EPS, wanted)[0].movedim(1, -1)


def _cudnn() -> typing.Callable:
    """cuDNN's function. It wants what cuDNN's forward pass has reserved, which is made in the first call alone."""
    kept = {}

    def call(torch, dy, x, weight, mean, invstd, out):
        given, batch, aten = dy.movedim(-1, 1), x.movedim(-1, 1), torch.ops.aten
        if not kept:
            moments = torch.zeros_like(weight), torch.ones_like(weight)
            kept["reserve"] = aten.cudnn_batch_norm(batch, weight, weight, *moments, True, 0.1, EPS)[3]
        result = aten.cudnn_batch_norm_backward(batch, given, weight, None, None, mean, invstd, EPS, kept["reserve"])
        return result[0].movedim(1, -1)

    return call


def _given(rung: typing.Any) -> typing.Callable:
    def call(dy, x, weight, mean, invstd, *, out=None):
        return rung(dy, x, weight, eps=EPS, mean=mean, invstd=invstd, out=out)

    call.__name__ = rung.name
    return call


def _workload(shape: tuple[int, ...], rungs: tuple, family: str, dtype: np.dtype = F32) -> Workload:
    n, c, inner = shape[0], shape[-1], math.prod(shape[1:-1])
    libraries = {"torch.native_batch_norm_backward": _native}
    if len(shape) > 2 and dtype in DTYPES[:2]:  # cuDNN takes no matrix, and no bfloat16 with a float32 weight
        libraries["torch.cudnn_batch_norm_backward"] = _cudnn()
    return Workload(
        family=family if dtype == F32 else f"{family}, {dtype}",
        name="x".join(map(str, shape)),
        sizes={"n": n * c * inner, "images": n, "channels": c, "inner": inner},
        cost=room.cost(n, c, inner, dtype.itemsize),
        make=_make(shape, dtype),
        output=lambda: device.empty(shape, dtype),
        rungs=tuple(map(_given, rungs)),
        libraries=libraries,
        verify=lambda *arrays: verify(*arrays, dtype=dtype),
        design=shape == DESIGN,
        quick=shape == DESIGN,
    )


WORKLOADS = [
    *(_workload(DESIGN, room.LADDER, "gradients", dtype) for dtype in DTYPES),
    *(_workload(shape, room.LADDER[-1:], "gradients", dtype) for dtype in DTYPES[:2] for shape in LAYERS),
    *(_workload(shape, room.LADDER, "other shapes") for shape in OTHER),
]
