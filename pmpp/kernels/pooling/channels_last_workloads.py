"""What is measured of ``channels_last``: windows of common networks, in float32 and 16 bits, and few channels."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.pooling import channels_last as room
from pmpp.kernels.pooling.windows import pair_of, pooled_extent
from pmpp.kernels.pooling.workloads import WINDOWS
from pmpp.kernels.pooling.workloads import verifier as channels_first
from pmpp.lab.measure.arrays import normal, with_options
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.dtypes import known

DESIGN = (256, 112, 112, 64)
TINY = (2, 16, 16, 32)
OTHER: list[tuple[tuple[int, ...], str]] = [
    *[((64, 111, 111, 64), "max 2x2"), ((32, 28, 28, 192), "max 3x3"), ((256, 14, 14, 512), "max 2x2")],
    *[((1, 112, 112, 64), "max 3x3"), ((32, 224, 224, 3), "average 2x2")],
]


def verifier(*options: typing.Any) -> Callable[..., tuple[float, float]]:
    """Every element, as with channels first."""
    verify = channels_first(*options)
    return lambda result, x: verify(room.channels_to(1, result), room.channels_to(1, x))


def _torch(op: str, *options: tuple) -> dict[str, Callable]:
    """PyTorch's functions on the same memory, which it calls channels_last."""
    name = {"max": "max_pool2d", "average": "avg_pool2d"}[op]

    def pool(torch: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        return getattr(torch.nn.functional, name)(x.permute(0, 3, 1, 2), *options).permute(0, 2, 3, 1)

    return {f"torch.{name}": pool}


def _workload(shape: tuple, name: str, family: str, dtype: typing.Any = np.float32) -> Workload:
    op, kernel, *rest = WINDOWS[name]
    window = pair_of(kernel)
    stride = pair_of(rest[0]) if rest else window
    padding = pair_of(rest[1]) if rest[1:] else (0, 0)
    images, h, w, channels = shape
    places = tuple(pooled_extent(*axis) for axis in zip((h, w), window, stride, padding, strict=True))
    dtype = np.dtype(dtype)
    words = "x".join(map(str, shape))
    return Workload(
        family=family if dtype == np.float32 else f"{family}, {dtype}",
        name=f"{words} {name}" if family.startswith("other") else words,
        sizes={"n": math.prod(shape), "images": images, "channels": channels, "height": h, "width": w},
        cost=room.cost(images * channels, h, w, window, stride, padding, itemsize=dtype.itemsize),
        make=lambda seed: (normal(shape, seed, dtype),),
        output=lambda: device.empty((images, *places, channels), dtype),
        rungs=tuple(with_options(rung, op, window, stride, padding) for rung in room.LADDER),
        libraries=_torch(op, window, stride, padding),
        verify=verifier(op, window, stride, padding, dtype),
        design=shape == DESIGN,
        quick=shape == DESIGN,
    )


WORKLOADS = [
    *(
        _workload(shape, name, name, dtype)
        for dtype in known(room.DTYPES)
        for shape in (TINY, DESIGN)
        for name in WINDOWS
    ),
    *(_workload(shape, name, "other shapes") for shape, name in OTHER),
]
