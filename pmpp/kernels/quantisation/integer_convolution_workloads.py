"""What is measured of ``integer_convolution``: layers of a ResNet with 32 images, LeNet's, and awkward ones.

PyTorch has no convolution of int8 on a GPU. So there are two things to compare with. cuDNN convolves float16 with
channels last, which is what the layer replaces: it moves two bytes where this moves one. And PyTorch can write the
patches of x as a matrix of int8, and multiply that by the filters with sums in int32, which it leaves as they are.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.quantisation import integer_convolution as room
from pmpp.lab.measure.arrays import integers, library_of, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.device import to_device

SQUARES = tuple(  # the 3 x 3 layers of a ResNet, from wide images with few channels to small ones with many
    Layer(32, channels, extent, extent, channels, 3, 3, padding=(1, 1))
    for channels, extent in ((64, 56), (128, 28), (256, 14), (512, 7))
)
FIRST = Layer(32, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3))
POINTWISE = (Layer(32, 64, 56, 56, 256, 1, 1), Layer(32, 256, 56, 56, 64, 1, 1), Layer(32, 1024, 14, 14, 256, 1, 1))
STRIDED = Layer(32, 128, 56, 56, 128, 3, 3, (2, 2), (1, 1))
LENET = Layer(256, 1, 28, 28, 6, 5, 5, padding=(2, 2)), Layer(256, 6, 14, 14, 16, 5, 5)
OTHER = Layer(1, 512, 7, 7, 512, 3, 3, padding=(1, 1)), Layer(32, 67, 55, 57, 67, 3, 3, padding=(1, 1))


def factors_of(a: Layer) -> np.ndarray:
    """Factors that make numbers of some tens of a sum of products of random int8."""
    return (np.random.default_rng(a.k).uniform(0.3, 1, a.k) * 60 / (5500 * a.terms**0.5)).astype(np.float32)


def sums(x: typing.Any, w: typing.Any, a: Layer) -> typing.Any:
    """Exact sums in float64, of NumPy or CuPy arrays with channels last: a product for each element of the filters."""
    xp, (down, along), (u, v) = library_of(x), a.padding, a.stride
    x = xp.pad(x.astype(np.float64), ((0, 0), (down, down), (along, along), (0, 0)))
    out = xp.zeros((a.n, a.p, a.q, a.k))
    for r in range(a.r):
        for s in range(a.s):
            part = x[:, r : r + (a.p - 1) * u + 1 : u, s : s + (a.q - 1) * v + 1 : v]
            out += part @ w[:, r, s].astype(np.float64).T
    return out


def verifier(a: Layer) -> Callable[..., tuple[float, float]]:
    """Every element: equal to the definition. A library's sums in int32 too, and its float16 within its rounding."""

    def verify(result: typing.Any, x: typing.Any, w: typing.Any, factors: typing.Any) -> tuple[float, float]:
        if math.prod(result.shape) != math.prod((a.n, a.p, a.q, a.k)):
            return float("inf"), 0.0
        exact = sums(x, w, a)
        got = result.reshape(exact.shape).astype(np.float64)
        if result.dtype == np.int32:
            return worst(abs(got - exact), 0 * exact)
        if result.dtype == np.float16:  # of x / 128: each product is exact, and the sum is rounded to float16
            return worst(abs(128 * got - exact), abs(exact) * 2.0**-10 + 64)
        xp = library_of(exact)
        whole = xp.clip(xp.rint(exact.astype(np.float32) * factors), -128, 127)
        return worst(abs(got - whole), 0 * exact)

    return verify


def by_patches(a: Layer) -> Callable:
    """PyTorch: patches of int8 are written as a matrix, and multiplied by the filters."""

    def call(torch: typing.Any, x: typing.Any, w: typing.Any, factors: typing.Any, out: typing.Any) -> typing.Any:
        (down, along), (u, v) = a.padding, a.stride
        if down or along:
            x = torch.nn.functional.pad(x, (0, 0, along, along, down, down))
        n, h, width, c = x.stride()
        windows = x.as_strided((a.n, a.p, a.q, a.r, a.s, a.c), (n, h * u, width * v, h, width, c))
        return torch._int_mm(windows.reshape(-1, a.terms), w.reshape(a.k, -1).t())

    return call


def by_cudnn(a: Layer) -> Callable:
    """cuDNN's float16 with channels last, on copies that are made once for each input."""
    kept: dict = {}

    def call(torch: typing.Any, x: typing.Any, w: typing.Any, factors: typing.Any, out: typing.Any) -> typing.Any:
        key = x.data_ptr(), w.data_ptr()
        if key not in kept:
            kept[key] = (x.half() / 128).permute(0, 3, 1, 2), w.half().permute(0, 3, 1, 2)
        return torch.nn.functional.conv2d(*kept[key], None, a.stride, a.padding).permute(0, 2, 3, 1)

    return call


def with_layer(rung: typing.Any, a: Layer) -> Callable:
    """The rung, given the layer's stride and padding."""

    def call(x: typing.Any, w: typing.Any, factors: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(x, w, factors, None, a.stride, a.padding, out=out)

    call.__name__ = rung.name
    return call


def workload(a: Layer, rungs: tuple, family: str, **more: typing.Any) -> Workload:
    """A layer and who is to compute it, given ``(x, w, factors, out=)``."""
    libraries = {"torch.conv2d, float16": by_cudnn(a)}
    if a.terms % 8 == 0 and a.k % 8 == 0:  # what PyTorch's product of int8 takes
        libraries["torch._int_mm of patches"] = by_patches(a)
    return Workload(
        family=family,
        name=str(a),
        sizes={"n": a.n, "channels": a.c, "height": a.h, "width": a.w, "filters": a.k},
        cost=room.cost(a.n, a.h, a.w, a.c, a.k, a.r, a.s, a.stride, a.padding),
        make=lambda seed: (
            integers((a.n, a.h, a.w, a.c), seed, 127, np.int8),
            integers((a.k, a.r, a.s, a.c), seed + 1000, 127, np.int8),
            to_device(factors_of(a)),
        ),
        output=lambda: device.empty((a.n, a.p, a.q, a.k), np.int8),
        rungs=tuple(with_layer(rung, a) for rung in rungs),
        libraries=libraries,
        verify=verifier(a),
        **more,
    )


WORKLOADS = [
    *(workload(a, room.LADDER[1:], "3x3", design=True, quick=a is SQUARES[1]) for a in SQUARES),
    *(workload(a, room.LADDER[1:], "1x1") for a in POINTWISE),
    *(workload(a, room.LADDER[-2:], "other layers") for a in (FIRST, STRIDED, *OTHER)),
    *(workload(a, room.LADDER, "LeNet") for a in LENET),
]
