"""What the workloads of the convolution layers share: arrays, cuDNN as the rival, and the check in float64."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.lab.measure.arrays import library_of, normal, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

FIRST = Layer(32, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3))
POINTWISE = Layer(32, 64, 56, 56, 64, 1, 1)
SQUARES = tuple(  # the 3 x 3 layers of a ResNet, from wide images with few channels to small ones with many
    Layer(32, channels, extent, extent, channels, 3, 3, padding=(1, 1))
    for channels, extent in ((64, 56), (128, 28), (256, 14), (512, 7))
)
LARGE = Layer(8, 64, 128, 128, 64, 15, 15, padding=(7, 7))
DESIGN = (FIRST, POINTWISE, *SQUARES, LARGE)  # the layers that the algorithms are judged by


def with_layer(rung: typing.Any, layer: Layer, **options: typing.Any) -> Callable:
    """The rung, given the layer's stride and so on."""

    def call(x: typing.Any, w: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(x, w, None, layer.stride, layer.padding, layer.dilation, layer.groups, out=out, **options)

    call.__name__ = rung.name if hasattr(rung, "name") else rung.__name__
    return call


def sums(x: typing.Any, w: typing.Any, layer: Layer) -> typing.Any:
    """The output in float64, of NumPy or CuPy arrays: a matrix product for each element of the kernel."""
    (a, b), (u, v), (d, e) = layer.padding, layer.stride, layer.dilation
    xp = library_of(x)
    x = xp.pad(x.astype(np.float64), ((0, 0), (0, 0), (a, a), (b, b)))
    w, group = w.astype(np.float64), layer.c // layer.groups
    out = xp.zeros(layer.shape)
    for g in range(layer.groups):
        filters = slice(g * layer.k // layer.groups, (g + 1) * layer.k // layer.groups)
        for r in range(layer.r):
            for s in range(layer.s):
                rows = slice(r * d, r * d + (layer.p - 1) * u + 1, u)
                columns = slice(s * e, s * e + (layer.q - 1) * v + 1, v)
                part = x[:, g * group : (g + 1) * group, rows, columns].reshape(layer.n, group, layer.p * layer.q)
                out[:, filters] += (w[filters, :, r, s] @ part).reshape(
                    layer.n, layer.k // layer.groups, layer.p, layer.q
                )
    return out


def verifier(layer: Layer, bound: Callable | None = None) -> Callable[..., tuple[float, float]]:
    """Every element against float64. ``bound(x, w, layer)`` is what may be off; by default that of direct sums."""

    def verify(result: typing.Any, x: typing.Any, w: typing.Any) -> tuple[float, float]:
        if result.shape != layer.shape:
            return float("inf"), 0.0
        allowed = bound(x, w, layer) if bound else (layer.terms + 2) * 2.0**-24 * sums(abs(x), abs(w), layer)
        return worst(abs(result - sums(x, w, layer)), allowed + 2.0**-149)

    return verify


def torch_conv2d(layer: Layer) -> dict[str, Callable]:
    """cuDNN by PyTorch, which picks the fastest of cuDNN's algorithms (``benchmark``), with TF32 off."""

    def call(torch: typing.Any, x: typing.Any, w: typing.Any, out: typing.Any) -> typing.Any:
        options = layer.stride, layer.padding, layer.dilation, layer.groups
        return torch.nn.functional.conv2d(x, w, None, *options)

    return {"torch.conv2d": call}


def workload(layer: Layer, rungs: tuple, family: str, *, bound: Callable | None = None, **more: typing.Any) -> Workload:
    """A layer and who is to compute it: the rungs, given ``(x, w, out=)``, and cuDNN."""
    return Workload(
        family=family,
        name=str(layer),
        sizes={"n": layer.n, "channels": layer.c, "height": layer.h, "width": layer.w, "filters": layer.k},
        cost=layer.cost,
        make=lambda seed: (
            normal((layer.n, layer.c, layer.h, layer.w), seed),
            normal((layer.k, layer.c // layer.groups, layer.r, layer.s), seed + 1000),
        ),
        output=lambda: device.empty(layer.shape, np.float32),
        rungs=tuple(with_layer(rung, layer) for rung in rungs),
        libraries=torch_conv2d(layer),
        verify=verifier(layer, bound),
        **more,
    )
