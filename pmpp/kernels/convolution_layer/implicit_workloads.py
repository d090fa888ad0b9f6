"""What is measured of ``implicit``: the layers that all algorithms are judged by, and awkward ones."""

from __future__ import annotations

from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.implicit import LADDER
from pmpp.kernels.convolution_layer.layers_on_cpu import on_cpu
from pmpp.kernels.convolution_layer.measured_layers import FIRST, LARGE, POINTWISE, SQUARES, workload

LAST = LADDER[-1:]
P1 = {"padding": (1, 1)}
OTHER = (  # odd extents, few or odd channels and filters, strides, dilation, groups, depthwise
    Layer(1, 512, 7, 7, 512, 3, 3, **P1),
    Layer(32, 67, 55, 57, 67, 3, 3, **P1),
    Layer(32, 64, 57, 57, 5, 1, 1),
    Layer(32, 1, 224, 224, 3, 5, 5),
    Layer(32, 256, 56, 56, 512, 1, 1, (2, 2)),
    Layer(32, 64, 56, 56, 64, 3, 3, padding=(2, 2), dilation=(2, 2)),
    Layer(32, 128, 28, 28, 128, 3, 3, groups=4, **P1),
    Layer(32, 64, 56, 56, 64, 3, 3, groups=64, **P1),
)
SWEEP = [Layer(n, 64, 56, 56, 64, 3, 3, **P1) for n in (1, 4)]


def _family(layer: Layer) -> str:
    return f"{layer.r}x{layer.s} c{layer.c} h{layer.h}"


WORKLOADS = [
    workload(FIRST, LADDER, _family(FIRST), design=True),
    workload(SQUARES[0], LADDER, _family(SQUARES[0]), design=True, host=on_cpu(SQUARES[0])),
    workload(POINTWISE, LADDER[1:], _family(POINTWISE), design=True, quick=True),
    *(workload(a, LADDER[-2:], _family(a), design=True) for a in SQUARES[1:]),
    *(workload(a, LADDER[-2:], _family(a)) for a in SWEEP),
    workload(LARGE, LAST, _family(LARGE), design=True),
    *(workload(a, LAST, "other shapes") for a in OTHER),
]
