"""What is measured of ``im2col``: the design layers, deep and shallow 1 x 1 layers, odd shapes.

Besides cuDNN there is cuBLAS: our columns, and CuPy's matrix product.
"""

from __future__ import annotations

import dataclasses
import typing

from pmpp.kernels.convolution_layer import im2col as room
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.layers_on_cpu import on_cpu
from pmpp.kernels.convolution_layer.measured_layers import FIRST, LARGE, POINTWISE, SQUARES, workload
from pmpp.lab.measure.bench import Workload

SWEEP = [Layer(32, c, extent, extent, k, 1, 1) for c, k, extent in ((256, 64, 56), (1024, 512, 14))]
# An image alone, odd extents and counts, stride, dilation, groups, and 7 x 7, of which no row is whole vectors.
OTHER = [
    Layer(1, 64, 56, 56, 64, 3, 3, padding=(1, 1)),
    Layer(8, 67, 61, 67, 67, 3, 3, padding=(1, 1)),
    Layer(32, 256, 56, 56, 512, 1, 1, (2, 2)),
    Layer(8, 32, 64, 64, 32, 3, 3, padding=(2, 2), dilation=(2, 2)),
    Layer(32, 128, 28, 28, 128, 3, 3, padding=(1, 1), groups=4),
    Layer(32, 512, 7, 7, 2048, 1, 1),
]


def cupy_matmul(layer: Layer) -> dict[str, typing.Callable]:
    """The columns of `im2col.columns`, as many images at a time, times the weights by cuBLAS."""

    def call(cupy: typing.Any, x: typing.Any, w: typing.Any, out: typing.Any) -> typing.Any:
        weights, products = w.reshape(layer.k, layer.terms), out.reshape(layer.n, layer.k, layer.p * layer.q)
        if room.is_product(layer):
            cupy.matmul(weights, x.reshape(layer.n, layer.c, layer.p * layer.q), out=products)
            return out
        images = room.images_at_a_time(layer)
        columns = cupy.empty((images, layer.terms, layer.p * layer.q), cupy.float32)
        for first in range(0, layer.n, images):
            part = columns[: min(images, layer.n - first)]
            room.fill(x, part, first, layer, layer.terms)
            cupy.matmul(weights, part, out=products[first : first + len(part)])
        return out

    return {"cupy.matmul": call}


def _workload(layer: Layer, rungs: tuple, family: str, **more: typing.Any) -> Workload:
    made = workload(layer, rungs, family, **more)
    return made if layer.groups > 1 else dataclasses.replace(made, libraries={**made.libraries, **cupy_matmul(layer)})


WORKLOADS = [
    _workload(FIRST, room.LADDER[:2], "7x7 c3 h224", design=True),
    _workload(POINTWISE, room.LADDER, "1x1 c64 h56", design=True, quick=True, host=on_cpu(POINTWISE)),
    *(_workload(layer, room.LADDER[1:2], f"3x3 c{layer.c} h{layer.h}", design=True) for layer in SQUARES),
    _workload(LARGE, room.LADDER[1:2], "15x15 c64 h128", design=True),
    *(_workload(layer, room.LADDER[-1:], "1x1") for layer in SWEEP),
    *(_workload(layer, room.LADDER[-1:], "other shapes") for layer in OTHER),
]
