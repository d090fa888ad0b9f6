"""What is measured of ``batchnorm_channels_last``: the layers of a ResNet-50 with 32 images, few and odd channels."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.normalisation import batchnorm_channels_last as room
from pmpp.kernels.normalisation.batchnorm_workloads import EPS, F32, MOMENTUM
from pmpp.kernels.normalisation.batchnorm_workloads import verifier as channels_first
from pmpp.lab.measure.arrays import normal, with_options
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known

# The first layer of a ResNet-50, and the others whose batch normalisations have shapes of their own.
DESIGN = (32, 112, 112, 64)
LAYERS = [
    *[(32, 56, 56, 64), (32, 56, 56, 128), (32, 56, 56, 256), (32, 28, 28, 128), (32, 28, 28, 256), (32, 28, 28, 512)],
    *[(32, 14, 14, 256), (32, 14, 14, 512), (32, 14, 14, 1024), (32, 7, 7, 512), (32, 7, 7, 2048)],
]
# Three channels, channels that are no whole vectors, an image alone, and a matrix.
OTHER = [(64, 224, 224, 3), (32, 28, 28, 130), (1, 112, 112, 64), (65536, 1024)]


def verifier(training: bool, dtype: np.dtype = F32) -> Callable[..., tuple[float, float]]:
    """Every element against float64, as with channels first."""
    verify = channels_first(training, dtype=dtype)
    return lambda result, x, *rest: verify(room.channels_to(1, result), room.channels_to(1, x), *rest)


def _make(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[int], tuple]:
    def make(seed: int) -> tuple:
        c = shape[-1]
        running_var = 0.5 + np.random.default_rng(seed).random(c, dtype=np.float32)
        parameters = normal(c, seed + 1000), normal(c, seed + 2000), normal(c, seed + 3000)
        return normal(shape, seed, dtype), *parameters, device.to_device(running_var)

    return make


def _torch(training: bool) -> dict[str, Callable]:
    """PyTorch's function on the same memory, which it calls channels_last, by cuDNN where it has it, and by itself."""

    def batch_norm(torch, x, weight, bias, mean, var, out):
        f, batch = torch.nn.functional, x.movedim(-1, 1)
        result = f.batch_norm(batch, mean, var, weight, bias, training=training, momentum=MOMENTUM, eps=EPS)
        return result.movedim(1, -1)

    def without_cudnn(torch, *arrays):
        with torch.backends.cudnn.flags(enabled=False):
            return batch_norm(torch, *arrays)

    return {"torch.batch_norm": batch_norm, "torch.batch_norm without cuDNN": without_cudnn}


def _workload(shape: tuple[int, ...], training: bool, rungs: tuple, family: str, dtype: np.dtype = F32) -> Workload:
    n, c, inner = shape[0], shape[-1], math.prod(shape[1:-1])
    return Workload(
        family=family if dtype == F32 else f"{family}, {dtype}",
        name="x".join(map(str, shape)),
        sizes={"n": n * c * inner, "images": n, "channels": c, "inner": inner},
        cost=room.cost(n, c, inner, training, dtype.itemsize),
        make=_make(shape, dtype),
        output=lambda: device.empty(shape, dtype),
        rungs=tuple(with_options(rung, training=training) for rung in rungs),
        libraries=_torch(training),
        verify=verifier(training, dtype),
        design=shape == DESIGN,
        quick=shape == DESIGN,
    )


FAMILIES = (("training", True), ("inference", False))
DTYPES = known(room.DTYPES)
WORKLOADS: list[typing.Any] = [
    *(_workload(DESIGN, trains, room.LADDER, family, dtype) for dtype in DTYPES for family, trains in FAMILIES),
    *(
        _workload(shape, trains, room.LADDER[-1:], family, dtype)
        for dtype in DTYPES[:2]
        for family, trains in FAMILIES
        for shape in LAYERS
    ),
    *(
        _workload(shape, trains, room.LADDER, f"{family}, other shapes")
        for family, trains in FAMILIES
        for shape in OTHER
    ),
]
