"""What is measured of ``input_gradients``: the layers of ResNet-50 and of LeNet, and awkward ones."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.convolution_layer import input_gradients as room
from pmpp.kernels.convolution_layer import winograd
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.gradient_classes import classes_of, sub_layer
from pmpp.kernels.convolution_layer.measured_gradients import (
    LENET,
    OTHER,
    RESNET,
    SMALL,
    SQUARE,
    STRIDED,
    family_of,
    input_sums,
    sizes_of,
    torch_backward,
)
from pmpp.kernels.convolution_layer.winograd_transforms import bound
from pmpp.lab.measure.arrays import library_of, normal, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device


def _shape(a: Layer) -> tuple[int, int, int, int]:
    return a.n, a.c, a.h, a.w


def with_layer(rung: typing.Any, a: Layer) -> Callable:
    """The rung, given the layer's shape, stride and so on."""

    def call(dy: typing.Any, w: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(dy, w, _shape(a), a.stride, a.padding, a.dilation, a.groups, out=out)

    call.__name__ = rung.name
    return call


def _winograds_bound(dy: typing.Any, w: typing.Any, a: Layer) -> typing.Any:
    """How far off Winograd's algorithm may be, which `by_class` takes for some 3 x 3 layers of stride 1; else 0."""
    if a.stride != (1, 1) or len(classes_of(a)) != 1:
        return 0
    (one,) = classes_of(a)
    sub = sub_layer(a, one)
    if winograd.refuses(sub) or sub.shape != _shape(a):
        return 0
    split = w.reshape(a.groups, a.k // a.groups, *w.shape[1:])
    turned = split.swapaxes(1, 2)[..., ::-1, ::-1].reshape(a.c, a.k // a.groups, a.r, a.s)
    return bound(dy, turned, sub, 4, xp=library_of(dy))


def verifier(a: Layer) -> Callable[..., tuple[float, float]]:
    """Every element against float64, within the room's tolerance."""

    def verify(result: typing.Any, dy: typing.Any, w: typing.Any) -> tuple[float, float]:
        if result.shape != _shape(a):
            return float("inf"), 0.0
        terms = a.k // a.groups * a.r * a.s
        allowed = (terms + 2) * 2.0**-24 * input_sums(abs(dy), abs(w), a) + 2.0**-149 + _winograds_bound(dy, w, a)
        return worst(abs(result - input_sums(dy, w, a)), allowed)

    return verify


def torch_input_gradient(a: Layer) -> dict[str, Callable]:
    """What PyTorch's autograd calls, which picks the fastest of cuDNN's algorithms (``benchmark``), with TF32 off."""

    def call(torch: typing.Any, dy: typing.Any, w: typing.Any, out: typing.Any) -> typing.Any:
        x = torch.empty(_shape(a), device=dy.device)  # of which the shape alone is used
        return torch_backward(torch, dy, x, w, a, 0)

    return {"torch.convolution_backward": call}


def workload(a: Layer, rungs: tuple, **more: typing.Any) -> Workload:
    """A layer, the rungs, given ``(dy, w, out=)``, and PyTorch."""
    return Workload(
        family=more.pop("family", family_of(a)),
        name=str(a),
        sizes=sizes_of(a),
        cost=room.cost_of(a),
        make=lambda seed: (normal(a.shape, seed), normal((a.k, a.c // a.groups, a.r, a.s), seed + 1000)),
        output=lambda: device.empty(_shape(a), np.float32),
        rungs=tuple(with_layer(rung, a) for rung in rungs),
        libraries=torch_input_gradient(a),
        verify=verifier(a),
        **more,
    )


LAST, FIRST = room.LADDER[-1:], RESNET[0]  # the last rung, and the layer of few channels, on pictures
WORKLOADS = [
    workload(SQUARE, room.LADDER, family="3x3 c128 h28", design=True),
    workload(STRIDED, room.LADDER, family="3x3 s2 c128 h56", design=True, quick=True),
    workload(FIRST, room.LADDER, design=True),
    *(workload(a, LAST) for a in RESNET if a not in (SQUARE, STRIDED, FIRST)),
    *(workload(a, room.LADDER[1:]) for a in LENET),
    *(workload(a, LAST) for a in OTHER),
    workload(SMALL, LAST, family="small"),
]
