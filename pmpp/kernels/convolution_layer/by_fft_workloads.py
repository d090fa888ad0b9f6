"""What is measured of ``by_fft``: a layer with a large mask, masks of 3 x 3 to 31 x 31, other layers."""

from __future__ import annotations

import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.convolution_layer import by_fft
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.measured_layers import FIRST, LARGE, SQUARES, workload
from pmpp.lab.measure.arrays import library_of
from pmpp.lab.measure.bench import Workload


def bound(x: typing.Any, w: typing.Any, layer: Layer) -> typing.Any:
    """`by_fft.error_bound` for arrays of NumPy or CuPy."""
    xp = library_of(x)
    each, group = layer.k // layer.groups, layer.c // layer.groups
    wide = w.astype(np.float64)
    images = xp.sqrt((x.astype(np.float64) ** 2).sum((2, 3)))
    masks, sums = xp.sqrt((wide**2).sum((2, 3))), abs(wide).sum((2, 3))
    found = []
    for g in range(layer.groups):
        seen, filters = images[:, g * group : (g + 1) * group], slice(g * each, (g + 1) * each)
        found.append(by_fft.error_bound(layer, seen @ masks[filters].T, seen @ sums[filters].T))
    return xp.broadcast_to(xp.concatenate(found, 1)[:, :, None, None], layer.shape)


MASKS = [Layer(8, 64, 128, 128, 64, extent, extent, padding=(extent // 2, extent // 2)) for extent in (3, 7, 11, 31)]
OTHER = [
    *[FIRST, SQUARES[0]],
    Layer(8, 64, 128, 128, 64, 15, 15, (2, 2), (7, 7)),
    Layer(8, 64, 128, 128, 64, 15, 15, padding=(7, 7), groups=64),  # depthwise: nothing to sum over
    Layer(1, 1, 1024, 1024, 1, 31, 31, padding=(15, 15)),
    Layer(3, 17, 77, 91, 33, 9, 9, padding=(4, 4)),
]


def on_cpu(layer: Layer) -> Callable:
    """A layer of stride 1 by NumPy's Fourier transforms on the CPU: products of spectra, summed over the channels."""
    (a, b), (rows, columns) = layer.padding, (layer.h + layer.r - 1, layer.w + layer.s - 1)

    def call(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        spectra = np.fft.rfft2(x, (rows, columns)), np.fft.rfft2(w[:, :, ::-1, ::-1], (rows, columns))
        # For each frequency a product of matrices: N x C by C x K.
        images, filters = (np.ascontiguousarray(np.moveaxis(one, (2, 3), (0, 1))) for one in spectra)
        y = np.fft.irfft2(np.moveaxis(images @ np.swapaxes(filters, 2, 3), (2, 3), (0, 1)), (rows, columns))
        top, left = layer.r - 1 - a, layer.s - 1 - b
        return y[:, :, top : top + layer.p, left : left + layer.q].astype(np.float32)

    return call


def _workload(layer: Layer, rungs: tuple, family: str, **more: typing.Any) -> Workload:
    return workload(layer, rungs, family, bound=bound, own=by_fft.own_cost(layer), **more)


WORKLOADS = [
    _workload(LARGE, by_fft.LADDER, "layer", design=True, quick=True, host={"numpy.fft": on_cpu(LARGE)}),
    *(_workload(layer, by_fft.LADDER[-1:], "masks") for layer in MASKS),
    *(_workload(layer, by_fft.LADDER[-1:], "other layers") for layer in OTHER),
]
