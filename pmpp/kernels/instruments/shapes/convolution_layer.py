"""Convolution layers of drawn shapes: `convolution_layer.convolution`, which chooses the algorithm itself."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels import convolution_layer
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import torch_conv2d
from pmpp.kernels.instruments.shapes import contenders
from pmpp.lab.measure.arrays import library_of, normal, worst, worst_of
from pmpp.lab.measure.bench import Workload
from pmpp.lab.measure.shapes.drawing import Shape
from pmpp.runtime import device

# Of the terms' sizes, ten times what any algorithm of either side is off by in the record of the survey. It finds one
# term that is lost of 50,000, as many as the largest layer has.
LOOSE = 1e-5
AT_ONCE = 2**25  # outputs that are checked at a time


def workload(shape: Shape) -> Workload:
    """A layer without a bias, beside cuDNN by PyTorch, which measures its algorithms and keeps the fastest."""
    layer = layer_of(shape)

    def ours(x: typing.Any, w: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return convolution_layer.convolution(
            x, w, None, layer.stride, layer.padding, layer.dilation, layer.groups, out=out
        )

    return contenders.workload(
        shape,
        "convolution_layer.convolution",
        ours,
        torch_conv2d(layer),
        make=lambda seed: (
            normal((layer.n, layer.c, layer.h, layer.w), seed),
            normal((layer.k, layer.c // layer.groups, layer.r, layer.s), seed + 1000),
        ),
        verify=verifier(layer),
        output=lambda: device.empty(layer.shape, np.float32),
    )


def layer_of(shape: Shape) -> Layer:
    n, c, h, k, r, stride, padding, groups = shape.sizes.values()
    return Layer(n, c, h, h, k, r, r, (stride, stride), (padding, padding), groups=groups)


def verifier(layer: Layer) -> Callable[..., tuple[float, float]]:
    """Every element against float64, some images at a time.

    Direct sums err by a share of their own terms, and transforms by a share of all terms of a tile: so an element is
    allowed a share of its terms' sizes, and of what these are on average. The sums of a layer are computed once: all
    input sets are copies of one (`contenders.workload`).
    """
    known: dict[int, tuple[typing.Any, typing.Any]] = {}

    def images(first: int, result: typing.Any, x: typing.Any, w: typing.Any) -> tuple[float, float]:
        if first not in known:
            sizes = sums(abs(x), abs(w), layer)
            known[first] = sums(x, w, layer), LOOSE * (sizes + sizes.mean())
        exact, allowed = known[first]
        return worst(abs(result - exact), allowed)

    def verify(result: typing.Any, x: typing.Any, w: typing.Any) -> tuple[float, float]:
        if result.shape != layer.shape:
            return float("inf"), 0.0
        outputs = int(np.prod(layer.shape[1:]))
        step = max(1, AT_ONCE // max(outputs, layer.c * layer.h * layer.w))
        return worst_of(images(i, result[i : i + step], x[i : i + step], w) for i in range(0, layer.n, step))

    return verify


def sums(x: typing.Any, w: typing.Any, layer: Layer) -> typing.Any:
    """The output in float64: for each place of the window a matrix product a group.

    A group of one channel is a product of numbers, and all of them are multiplied at once.
    """
    (a, b), (u, v), groups = layer.padding, layer.stride, layer.groups
    xp, n = library_of(x), len(x)
    x = xp.pad(x.astype(np.float64), ((0, 0), (0, 0), (a, a), (b, b)))
    w = w.astype(np.float64).reshape(groups, layer.k // groups, layer.c // groups, layer.r, layer.s)
    out = xp.zeros((n, groups, layer.k // groups, layer.p * layer.q))
    for r in range(layer.r):
        for s in range(layer.s):
            rows, columns = slice(r, r + (layer.p - 1) * u + 1, u), slice(s, s + (layer.q - 1) * v + 1, v)
            part = x[:, :, rows, columns].reshape(n, groups, layer.c // groups, layer.p * layer.q)
            if layer.c == groups:
                out += w[..., r, s] * part
                continue
            for g in range(groups):
                out[:, g] += xp.ascontiguousarray(w[g, :, :, r, s]) @ xp.ascontiguousarray(part[:, g])
    return out.reshape(n, layer.k, layer.p, layer.q)
