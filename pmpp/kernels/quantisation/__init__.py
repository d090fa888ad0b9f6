"""Quantisation: numbers in 8 bits or fewer, products with weights in 4 or 8 bits, layers of integers.

The chapter is notebooks/77_quantisation.ipynb. The room `pmpp.kernels.quantisation.ladder` makes whole numbers of
float32, and `quantise` is its rung to use. `dequantise` goes the way back, and `calibrate` chooses the scales.
The room `pmpp.kernels.quantisation.weight_only` multiplies by a matrix in 4 or 8 bits: `quantise_weights` packs one,
and `multiply` is the rung to use. The room `pmpp.kernels.quantisation.integer_linear` multiplies int8 by int8, and
`linear` is its rung to use. The room `pmpp.kernels.quantisation.integer_convolution` has convolution layers of int8,
and `convolution` is its rung to use.
"""

from pmpp.kernels.quantisation import integer_convolution, integer_linear, weight_only
from pmpp.kernels.quantisation.calibration import calibrate, dequantise
from pmpp.kernels.quantisation.ladder import *
from pmpp.kernels.quantisation.ladder import vectorised
from pmpp.kernels.quantisation.weight_only import quantise_weights

quantise = vectorised
multiply = weight_only.queued
linear = integer_linear.tiled
convolution = integer_convolution.divided

__all__ = [
    "calibrate",
    "convolution",
    "dequantise",
    "integer_convolution",
    "integer_linear",
    "linear",
    "multiply",
    "quantise",
    "quantise_weights",
    "weight_only",
]
