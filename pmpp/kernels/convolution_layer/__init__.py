"""Convolution layers: images of many channels, many filters, and six algorithms for the same result.

Six rooms share one definition and one `arguments`, in `pmpp.kernels.convolution_layer.definition`: `direct` adds up as
the definition does, `im2col` writes a matrix and multiplies it, `implicit` multiplies it without writing it, `winograd`
saves multiplications, and `by_fft` multiplies spectra. They are taught in notebooks/62_direct_convolution.ipynb and the
chapters after it. `depthwise` is for layers whose groups have few channels, down to one: it is taught in
notebooks/71_depthwise_convolution.ipynb. `convolution` computes a layer by the algorithm that is likely to be the
fastest for it.

Two rooms more, `input_gradients` and `weight_gradients`, are what training needs of a layer. `input_gradient`,
`weight_gradient` and `bias_gradient` pass a loss's gradient back from a layer's output.

`pmpp.kernels.convolution_layer.mixed` has a layer and its gradients for float16 and bfloat16, on tensor cores: for
training in mixed precision.
"""

from pmpp.kernels.convolution_layer import (
    by_fft,
    definition,
    depthwise,
    direct,
    dispatch,
    im2col,
    implicit,
    input_gradients,
    weight_gradients,
    winograd,
)
from pmpp.kernels.convolution_layer.bias_gradients import bias_gradient
from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.dispatch import convolution
from pmpp.kernels.convolution_layer.input_gradients import few_channels as input_gradient
from pmpp.kernels.convolution_layer.weight_gradients import strips as weight_gradient

__all__ = [
    "Layer",
    "bias_gradient",
    "by_fft",
    "convolution",
    "definition",
    "depthwise",
    "direct",
    "dispatch",
    "im2col",
    "implicit",
    "input_gradient",
    "input_gradients",
    "weight_gradient",
    "weight_gradients",
    "winograd",
]
