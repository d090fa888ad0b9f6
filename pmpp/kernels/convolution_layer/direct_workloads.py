"""What is measured of ``direct``: the design layers, few channels, and one or few channels per group."""

from __future__ import annotations

from pmpp.kernels.convolution_layer import direct as room
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.layers_on_cpu import on_cpu
from pmpp.kernels.convolution_layer.measured_layers import FIRST, LARGE, POINTWISE, SQUARES, workload


def depthwise(images: int, channels: int, extent: int, stride: int = 1, kernel: int = 3) -> Layer:
    """A filter for each channel."""
    same = kernel // 2
    return Layer(
        images, channels, extent, extent, channels, kernel, kernel, (stride, stride), (same, same), (1, 1), channels
    )


SWEEP = [Layer(32, channels, 56, 56, 64, 3, 3, padding=(1, 1)) for channels in (1, 4, 16)]
DEPTHWISE = [depthwise(32, 144, 56), depthwise(32, 144, 56, 2), depthwise(32, 512, 14), depthwise(32, 64, 112, 1, 5)]
# Other networks' first layers, groups, odd extents and counts, one image, dilation, a large kernel on one channel.
OTHER = [
    Layer(32, 3, 224, 224, 32, 3, 3, (2, 2), (1, 1)),
    Layer(32, 3, 227, 227, 96, 11, 11, (4, 4)),
    Layer(32, 64, 56, 56, 64, 3, 3, padding=(1, 1), groups=8),
    Layer(8, 5, 61, 67, 67, 3, 3, padding=(1, 1)),
    Layer(8, 32, 64, 64, 32, 3, 3, padding=(2, 2), dilation=(2, 2)),
    Layer(1, 1, 1024, 1024, 1, 15, 15, padding=(7, 7)),
    depthwise(32, 960, 7),
]
# LeNet-5's second layer, the gradient of its input, which is a layer as well, and one image.
SMALL = [
    Layer(64, 6, 14, 14, 16, 5, 5),
    Layer(256, 16, 10, 10, 6, 5, 5, padding=(4, 4)),
    Layer(1, 64, 56, 56, 64, 3, 3, padding=(1, 1)),
]

WORKLOADS = [
    workload(FIRST, room.LADDER[:-1], "7x7 c3 h224", design=True, quick=True, host=on_cpu(FIRST)),
    workload(POINTWISE, room.LADDER[4:5], "1x1 c64 h56", design=True),
    workload(SQUARES[0], room.LADDER[3:5], "3x3 c64 h56", design=True),
    *(workload(layer, room.LADDER[4:5], f"3x3 c{layer.c} h{layer.h}", design=True) for layer in SQUARES[1:]),
    workload(LARGE, room.LADDER[4:5], "15x15 c64 h128", design=True),
    *(workload(layer, room.LADDER[4:5], "few channels") for layer in SWEEP),
    *(workload(layer, room.LADDER[-2:], "depthwise", quick=layer == DEPTHWISE[0]) for layer in DEPTHWISE),
    *(workload(layer, room.LADDER[-2:], "small layers") for layer in SMALL),
    *(workload(layer, room.LADDER[-1:], "other shapes") for layer in OTHER),
]
