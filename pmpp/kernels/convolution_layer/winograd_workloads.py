"""What is measured of ``winograd``: the 3 x 3 layers of a ResNet, a sweep, and awkward layers."""

from __future__ import annotations

import typing

from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.layers_on_cpu import on_cpu
from pmpp.kernels.convolution_layer.measured_layers import SQUARES, workload
from pmpp.kernels.convolution_layer.winograd import LADDER, own_cost
from pmpp.kernels.convolution_layer.winograd_transforms import bound
from pmpp.lab.measure.arrays import library_of
from pmpp.lab.measure.bench import Workload

LAST = LADDER[-1:]
P1 = {"padding": (1, 1)}
OTHER = (  # one image, odd extents, few or odd channels and filters, groups, no padding
    Layer(1, 64, 56, 56, 64, 3, 3, **P1),
    Layer(1, 512, 7, 7, 512, 3, 3, **P1),
    Layer(32, 67, 55, 57, 67, 3, 3, **P1),
    Layer(32, 3, 56, 56, 64, 3, 3, **P1),
    Layer(32, 64, 57, 57, 5, 3, 3),
    Layer(32, 128, 28, 28, 128, 3, 3, groups=4, **P1),
)
SWEEP = [Layer(n, 64, 56, 56, 64, 3, 3, **P1) for n in (4, 16)]


def _allowed(x: typing.Any, w: typing.Any, layer: Layer) -> typing.Any:
    return bound(x, w, layer, 4, xp=library_of(x))


def _workload(layer: Layer, rungs: tuple, family: str, **more: typing.Any) -> Workload:
    return workload(layer, rungs, family, bound=_allowed, own=own_cost(layer), **more)


def _family(layer: Layer) -> str:
    return f"3x3 c{layer.c} h{layer.h}"


WORKLOADS = [
    _workload(SQUARES[0], LADDER, _family(SQUARES[0]), design=True, quick=True, host=on_cpu(SQUARES[0])),
    *(_workload(layer, LADDER, _family(layer), design=True, quick=True) for layer in SQUARES[1:]),
    *(_workload(layer, LAST, _family(layer)) for layer in SWEEP),
    *(_workload(layer, LAST, "other shapes") for layer in OTHER),
]
