"""What is measured of ``weight_gradients``: the layers of ResNet-50 and of LeNet, and awkward ones; and of the bias."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.convolution_layer import weight_gradients as room
from pmpp.kernels.convolution_layer.bias_gradients import bias_gradient
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_gradients import (
    LENET,
    OTHER,
    RESNET,
    SMALL,
    SQUARE,
    STRIDED,
    family_of,
    sizes_of,
    torch_backward,
    weight_sums,
)
from pmpp.lab.measure.arrays import library_of, normal, worst
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device
from pmpp.runtime.rung import Cost


def with_layer(rung: typing.Any, a: Layer) -> Callable:
    """The rung, given the layer's kernel, stride and so on."""

    def call(dy: typing.Any, x: typing.Any, *, out: typing.Any = None) -> typing.Any:
        return rung(dy, x, (a.r, a.s), a.stride, a.padding, a.dilation, a.groups, out=out)

    call.__name__ = rung.name
    return call


def _shape(a: Layer) -> tuple[int, int, int, int]:
    return a.k, a.c // a.groups, a.r, a.s


def verifier(a: Layer) -> Callable[..., tuple[float, float]]:
    """Every element against float64, within the room's tolerance."""

    def verify(result: typing.Any, dy: typing.Any, x: typing.Any) -> tuple[float, float]:
        if result.shape != _shape(a):
            return float("inf"), 0.0
        allowed = room.allowed(dy, x, weight_sums(abs(dy), abs(x), a), a, xp=library_of(dy))
        return worst(abs(result - weight_sums(dy, x, a)), allowed)

    return verify


def torch_weight_gradient(a: Layer) -> dict[str, Callable]:
    """What PyTorch's autograd calls, which picks the fastest of cuDNN's algorithms (``benchmark``), with TF32 off."""

    def call(torch: typing.Any, dy: typing.Any, x: typing.Any, out: typing.Any) -> typing.Any:
        w = torch.empty(_shape(a), device=dy.device)  # of which the shape alone is used
        return torch_backward(torch, dy, x, w, a, 1)

    return {"torch.convolution_backward": call}


def workload(a: Layer, rungs: tuple, **more: typing.Any) -> Workload:
    """A layer, the rungs, given ``(dy, x, out=)``, and PyTorch."""
    return Workload(
        family=more.pop("family", family_of(a)),
        name=str(a),
        sizes=sizes_of(a),
        cost=room.cost_of(a),
        make=lambda seed: (normal(a.shape, seed), normal((a.n, a.c, a.h, a.w), seed + 1000)),
        output=lambda: device.empty(_shape(a), np.float32),
        rungs=tuple(with_layer(rung, a) for rung in rungs),
        libraries=torch_weight_gradient(a),
        verify=verifier(a),
        **more,
    )


def bias_workload(shape: tuple[int, int, int, int]) -> Workload:
    """The gradient of the bias, from dy of that shape."""
    n, k, p, q = shape
    terms = n * p * q

    def verify(result: typing.Any, dy: typing.Any) -> tuple[float, float]:
        exact, size = dy.astype(np.float64).sum((0, 2, 3)), abs(dy.astype(np.float64)).sum((0, 2, 3))
        return worst(abs(result - exact), terms * 2.0**-24 * size + 2.0**-149)

    return Workload(
        family="bias",
        name=f"n{n} k{k} p{p} q{q}",
        sizes={"n": n, "filters": k, "rows": p, "columns": q},
        cost=Cost(flops=k * terms, bytes=4 * (k * terms + k)),
        make=lambda seed: (normal(shape, seed),),
        output=lambda: device.empty(k, np.float32),
        rungs=(bias_gradient,),
        libraries={"torch.sum": lambda torch, dy, out: torch.sum(dy, (0, 2, 3), out=out)},
        verify=verify,
    )


LAST = room.LADDER[-1:]
WORKLOADS = [
    workload(SQUARE, room.LADDER, family="3x3 c128 h28", design=True),
    workload(STRIDED, room.LADDER[1:], family="3x3 s2 c128 h56", design=True, quick=True),
    *(workload(a, LAST) for a in RESNET if a not in (SQUARE, STRIDED)),
    *(workload(a, room.LADDER) for a in LENET),
    *(workload(a, (room.tiled, *LAST) if a.c == a.groups else LAST) for a in OTHER),
    workload(SMALL, LAST, family="small"),
    *(bias_workload(shape) for shape in ((32, 256, 56, 56), (256, 6, 28, 28), (2, 3, 5, 7))),
]
