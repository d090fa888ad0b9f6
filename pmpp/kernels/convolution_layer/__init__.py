"""Convolution layers: images of many channels, many filters, and five algorithms for the same result.

Five rooms share one definition and one `arguments`, in `pmpp.kernels.convolution_layer.definition`: `direct` adds up as
the definition does, `im2col` writes a matrix and multiplies it, `implicit` multiplies it without writing it, `winograd`
saves multiplications, and `by_fft` multiplies spectra. They are taught in notebooks/62_direct_convolution.ipynb and the
chapters after it. `convolution` computes a layer by the algorithm that is likely to be the fastest for it.
"""

from pmpp.kernels.convolution_layer import by_fft, definition, direct, dispatch, im2col, implicit, winograd
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.dispatch import convolution

__all__ = [
    "Layer",
    "by_fft",
    "convolution",
    "definition",
    "direct",
    "dispatch",
    "im2col",
    "implicit",
    "winograd",
]
