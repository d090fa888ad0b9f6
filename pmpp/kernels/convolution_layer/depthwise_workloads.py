"""What is measured of ``depthwise``: layers of MobileNet, EfficientNet and ConvNeXt, and groups of a few channels."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.convolution_layer import depthwise as room
from pmpp.kernels.convolution_layer import direct
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.direct_workloads import depthwise
from pmpp.kernels.convolution_layer.measured_layers import workload
from pmpp.lab.measure.bench import Workload

#: Channels, extent, stride and window: MobileNet's first, second and last layers, and one of each other network.
MOBILENET = (32, 112, 1, 3), (128, 56, 2, 3), (512, 14, 1, 3), (1024, 7, 1, 3)
OTHERS = (240, 28, 1, 5), (672, 14, 1, 5), (96, 56, 1, 7)
DESIGN = tuple(depthwise(32, *one) for one in (MOBILENET[0], MOBILENET[3], OTHERS[2]))
#: Two filters a channel; groups of four channels and filters, as in ResNeXt; and of eight.
GROUPS = tuple(
    Layer(32, channels, 56, 56, filters, 3, 3, padding=(1, 1), groups=groups)
    for channels, filters, groups in ((64, 128, 64), (128, 128, 32), (64, 64, 8))
)
EARLIER = direct.LADDER[-1:]  # what computed these layers before


def depthwise_on_cpu(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """A depthwise layer by NumPy, of stride 1 and as large as its input: one tap of all channels after another.

    >>> depthwise_on_cpu(np.ones((1, 1, 2, 2), np.float32), np.ones((1, 1, 3, 3), np.float32)).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    (h, width), (r, s) = x.shape[2:], w.shape[2:]
    padded, out = np.pad(x, ((0, 0), (0, 0), (r // 2, r // 2), (s // 2, s // 2))), np.zeros_like(x)
    for y, z in np.ndindex(r, s):
        out += padded[:, :, y : y + h, z : z + width] * w[:, :, y, z].reshape(1, -1, 1, 1)
    return out


def _layers(family: str, layers: typing.Iterable[Layer], rungs: tuple, **more: typing.Any) -> list[Workload]:
    return [workload(layer, rungs, family, **more) for layer in layers]


WORKLOADS = [
    *_layers("3x3 c32 h112", DESIGN[:1], room.LADDER[:4], design=True, quick=True, host={"numpy": depthwise_on_cpu}),
    *_layers("3x3 c1024 h7", DESIGN[1:2], room.LADDER[:5], design=True),
    *_layers("7x7 c96 h56", DESIGN[2:], room.LADDER[:4], design=True),
    *_layers("two filters a channel", GROUPS[:1], room.LADDER, design=True),
    *_layers("networks", [depthwise(32, *one) for one in (*MOBILENET, *OTHERS)], (*EARLIER, *room.LADDER[-1:])),
    *_layers("one image", [depthwise(1, *one) for one in (*MOBILENET, *OTHERS)], (*EARLIER, *room.LADDER[-1:])),
    *_layers("groups", GROUPS, (*EARLIER, *room.LADDER[-1:])),
]
