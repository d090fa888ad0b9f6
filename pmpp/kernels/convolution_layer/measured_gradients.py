"""What the workloads of the convolution gradients share: layers, arrays, PyTorch as the rival, the check in float64."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.kernels.convolution_layer.definition import Layer, resnet50
from pmpp.lab.measure.arrays import library_of

P1 = {"padding": (1, 1)}
RESNET = tuple(resnet50(32))
SQUARE = Layer(32, 128, 28, 28, 128, 3, 3, **P1)
STRIDED = Layer(32, 128, 56, 56, 128, 3, 3, (2, 2), **P1)
LENET = Layer(256, 1, 28, 28, 6, 5, 5, padding=(2, 2)), Layer(256, 6, 14, 14, 16, 5, 5)
OTHER = (  # odd extents and counts, dilation, groups, depthwise with and without stride, a picture alone
    Layer(32, 67, 55, 57, 67, 3, 3, (2, 2), **P1),
    Layer(32, 64, 56, 56, 64, 3, 3, padding=(2, 2), dilation=(2, 2)),
    Layer(32, 128, 28, 28, 128, 3, 3, groups=4, **P1),
    Layer(32, 144, 56, 56, 144, 3, 3, groups=144, **P1),
    Layer(32, 144, 56, 56, 144, 3, 3, (2, 2), groups=144, **P1),
    Layer(1, 64, 56, 56, 64, 3, 3, **P1),
)
SMALL = Layer(1, 4, 6, 6, 4, 3, 3, **P1)  # which the tests run in the interpreter


def taps_of(a: Layer) -> typing.Iterator[tuple[int, int, slice, slice]]:
    """Each tap of a filter, and the rows and columns of the padded image that it is used at."""
    (u, v), (d, e) = a.stride, a.dilation
    for r in range(a.r):
        for s in range(a.s):
            yield r, s, slice(r * d, r * d + (a.p - 1) * u + 1, u), slice(s * e, s * e + (a.q - 1) * v + 1, v)


def _pixels(x: typing.Any, group: int, groups: int) -> typing.Any:
    """A group's channels as (images, channels, pixels)."""
    each = x.shape[1] // groups
    part = x[:, group * each : (group + 1) * each]
    return part.reshape(len(x), each, part.shape[2] * part.shape[3])


def input_sums(dy: typing.Any, w: typing.Any, a: Layer) -> typing.Any:
    """The gradient with respect to the input in float64, of NumPy or CuPy arrays: a matrix product for each tap."""
    xp, (top, left) = library_of(dy), a.padding
    dy, w, each = dy.astype(np.float64), w.astype(np.float64), a.c // a.groups
    padded = xp.zeros((a.n, a.c, a.h + 2 * top, a.w + 2 * left))
    for g in range(a.groups):
        channels, filters = slice(g * each, (g + 1) * each), slice(g * a.k // a.groups, (g + 1) * a.k // a.groups)
        for r, s, rows, columns in taps_of(a):
            part = w[filters, :, r, s].T @ _pixels(dy, g, a.groups)
            padded[:, channels, rows, columns] += part.reshape(a.n, each, a.p, a.q)
    return padded[:, :, top : top + a.h, left : left + a.w]


def weight_sums(dy: typing.Any, x: typing.Any, a: Layer) -> typing.Any:
    """The gradient with respect to the weights in float64, likewise."""
    xp, (top, left) = library_of(dy), a.padding
    dy, each = dy.astype(np.float64), a.c // a.groups
    x = xp.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, top), (left, left)))
    dw = xp.zeros((a.k, each, a.r, a.s))
    for g in range(a.groups):
        filters = slice(g * a.k // a.groups, (g + 1) * a.k // a.groups)
        for r, s, rows, columns in taps_of(a):
            seen = _pixels(x[:, :, rows, columns], g, a.groups)
            dw[filters, :, r, s] = (_pixels(dy, g, a.groups) @ seen.transpose(0, 2, 1)).sum(0)
    return dw


def torch_backward(torch: typing.Any, dy: typing.Any, x: typing.Any, w: typing.Any, a: Layer, which: int) -> typing.Any:
    """PyTorch's gradient number ``which``, of x or of w, alone: what autograd calls. By cuDNN, with TF32 off."""
    mask = [which == number for number in range(3)]
    pairs = [list(pair) for pair in (a.stride, a.padding, a.dilation)]
    return torch.ops.aten.convolution_backward(dy, x, w, None, *pairs, False, [0, 0], a.groups, mask)[which]


def sizes_of(a: Layer) -> dict[str, int]:
    """The layer's numbers, for a record."""
    return {"n": a.n, "channels": a.c, "height": a.h, "width": a.w, "filters": a.k}


def family_of(a: Layer) -> str:
    """The name that a record's table has for layers of this kind."""
    if a in RESNET:
        return "ResNet-50"
    return "LeNet" if a in LENET else "other layers"
