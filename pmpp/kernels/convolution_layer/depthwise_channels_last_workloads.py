"""What is measured of ``depthwise_channels_last``: layers of MobileNetV2, EfficientNet and ConvNeXt with 32 images.

And their gradients, which are those of `pmpp.kernels.convolution_layer.channels_last_gradients`.
"""

from __future__ import annotations

from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.depthwise_channels_last import LADDER
from pmpp.kernels.convolution_layer.implicit_channels_last_workloads import by_input, by_weights, workload


def _layer(channels: int, extent: int, side: int = 3, stride: int = 1) -> Layer:
    pairs = {"stride": (stride, stride), "padding": (side // 2, side // 2)}
    return Layer(32, channels, extent, extent, channels, side, side, groups=channels, **pairs)


DESIGN = _layer(144, 56)
MOBILENET = [_layer(32, 112), _layer(96, 112, 3, 2), _layer(192, 28), _layer(384, 14), _layer(576, 14), _layer(960, 7)]
OTHER = [_layer(240, 28, 5), _layer(672, 14, 5), _layer(96, 56, 7), _layer(65, 56)]

WORKLOADS = [
    workload(DESIGN, LADDER, "3x3", design=True, quick=True),
    *(workload(a, LADDER, "3x3") for a in MOBILENET),
    *(workload(a, LADDER, "other layers") for a in OTHER),
    *(gradient(a) for gradient in (by_input, by_weights) for a in (DESIGN, *MOBILENET, *OTHER)),
]
