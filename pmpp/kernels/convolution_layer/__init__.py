"""Convolution layers: the layers of neural networks, computed by five algorithms.

Rooms, all for chapter 62: ``direct``, ``im2col``, ``implicit``, ``winograd`` and ``by_fft``. They share the arguments
in ``definition``. `convolution` computes a layer by the algorithm that is likely to be the fastest for it: see
``dispatch``.
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
