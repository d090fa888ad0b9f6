"""What is measured of ``implicit_channels_last``: the layers of a ResNet-50 with 32 images, and awkward ones.

And gradients, which are those of `pmpp.kernels.convolution_layer.channels_last_gradients`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.convolution_layer import (
    channels_last_gradients,
    input_gradients_workloads,
    weight_gradients_workloads,
)
from pmpp.kernels.convolution_layer import implicit_channels_last as room
from pmpp.kernels.convolution_layer.definition import Layer, resnet50
from pmpp.kernels.convolution_layer.measured_gradients import SMALL, STRIDED, torch_backward
from pmpp.kernels.convolution_layer.measured_layers import FIRST, POINTWISE, SQUARES, with_layer
from pmpp.kernels.convolution_layer.measured_layers import verifier as channels_first
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

DESIGN = (FIRST, POINTWISE, *SQUARES)  # those that `implicit` is judged by, but for the one with 15 x 15
OTHER = (  # few or odd channels and filters, dilation, groups, one image
    Layer(1, 512, 7, 7, 512, 3, 3, padding=(1, 1)),
    Layer(32, 67, 55, 57, 67, 3, 3, padding=(1, 1)),
    Layer(32, 64, 57, 57, 5, 1, 1),
    Layer(32, 64, 56, 56, 64, 3, 3, padding=(2, 2), dilation=(2, 2)),
    Layer(32, 128, 28, 28, 128, 3, 3, padding=(1, 1), groups=4),
)


def verifier(layer: Layer) -> Callable[..., tuple[float, float]]:
    """Every element against float64, as with channels first."""
    verify = channels_first(layer)
    return lambda *arrays: verify(*map(room.first, arrays))


def _torch(layer: Layer) -> dict[str, Callable]:
    """cuDNN by PyTorch on the same memory, which it calls channels_last: its fastest way, TF32 off."""

    def call(torch: typing.Any, x: typing.Any, w: typing.Any, out: typing.Any) -> typing.Any:
        options = layer.stride, layer.padding, layer.dilation, layer.groups
        return torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), None, *options).permute(
            0, 2, 3, 1
        )

    return {"torch.conv2d": call}


def workload(layer: Layer, rungs: tuple, family: str, **more: typing.Any) -> Workload:
    """A layer and who is to compute it: the rungs, given ``(x, w, out=)`` with channels last, and cuDNN."""
    a = layer
    return Workload(
        family=family,
        name=str(a),
        sizes={"n": a.n, "channels": a.c, "height": a.h, "width": a.w, "filters": a.k},
        cost=a.cost,
        make=lambda seed: (
            normal((a.n, a.h, a.w, a.c), seed),
            normal((a.k, a.r, a.s, a.c // a.groups), seed + 1000),
        ),
        output=lambda: device.empty((a.n, a.p, a.q, a.k), np.float32),
        rungs=tuple(with_layer(rung, a) for rung in rungs),
        libraries=_torch(a),
        verify=verifier(a),
        **more,
    )


def last(x: typing.Any) -> typing.Any:
    """What PyTorch has as (N, C, H, W), as an array with channels last."""
    return x.permute(0, 2, 3, 1)


def by_input(a: Layer, **more: typing.Any) -> Workload:
    """The gradient of a layer by its input, given ``(dy, w, out=)``, beside what PyTorch's autograd calls."""

    def input_gradient(dy: typing.Any, w: typing.Any, *, out: typing.Any = None) -> typing.Any:
        options = a.stride, a.padding, a.dilation, a.groups
        return channels_last_gradients.input_gradient(dy, w, (a.n, a.h, a.w, a.c), *options, out=out)

    def theirs(torch: typing.Any, dy: typing.Any, w: typing.Any, out: typing.Any) -> typing.Any:
        return last(torch_backward(torch, dy.permute(0, 3, 1, 2), out.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), a, 0))

    shapes = (a.n, a.p, a.q, a.k), (a.k, a.r, a.s, a.c // a.groups)
    verify = input_gradients_workloads.verifier(a)
    return _gradient(a, "by input", input_gradient, theirs, shapes, (a.n, a.h, a.w, a.c), verify, **more)


def by_weights(a: Layer, **more: typing.Any) -> Workload:
    """The gradient of a layer by its weights, given ``(dy, x, out=)``, beside what PyTorch's autograd calls."""

    def weight_gradient(dy: typing.Any, x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        options = a.stride, a.padding, a.dilation, a.groups
        return channels_last_gradients.weight_gradient(dy, x, (a.r, a.s), *options, out=out)

    def theirs(torch: typing.Any, dy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        return last(torch_backward(torch, dy.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), out.permute(0, 3, 1, 2), a, 1))

    shapes = (a.n, a.p, a.q, a.k), (a.n, a.h, a.w, a.c)
    verify = weight_gradients_workloads.verifier(a)
    return _gradient(a, "by weights", weight_gradient, theirs, shapes, (a.k, a.r, a.s, a.c // a.groups), verify, **more)


def _gradient(
    a: Layer, family: str, ours: Callable, theirs: Callable, shapes: tuple, result: tuple, verify: Callable, **more
) -> Workload:
    return Workload(
        family=family,
        name=str(a),
        sizes={"n": a.n, "channels": a.c, "height": a.h, "width": a.w, "filters": a.k},
        cost=a.cost,
        make=lambda seed: tuple(normal(shape, seed + 1000 * number) for number, shape in enumerate(shapes)),
        output=lambda: device.empty(result, np.float32),
        rungs=(ours,),
        libraries={"torch.convolution_backward": theirs},
        verify=lambda *arrays: verify(*map(room.first, arrays)),
        **more,
    )


TRAINED = (*SQUARES, STRIDED, POINTWISE, FIRST, SMALL)


def _family(layer: Layer) -> str:
    return f"{layer.r}x{layer.s} c{layer.c} h{layer.h}"


WORKLOADS = [
    *(workload(a, room.LADDER, _family(a), design=True, quick=a is POINTWISE) for a in DESIGN),
    *(workload(a, room.LADDER[-1:], "other layers of ResNet-50") for a in resnet50() if a not in DESIGN),
    *(workload(a, room.LADDER, "other shapes") for a in OTHER),
    *(gradient(a) for gradient in (by_input, by_weights) for a in TRAINED),
]
