"""Convolution by FFT: a product of spectra for each frequency, instead of a sum over the mask for each pixel.

Chapter: notebooks/16_convolution_layers.ipynb.  PMPP 4e ch. 16.

A correlation in space is a product in frequency, out = X conj(W), so the size of the mask drops out of the arithmetic:
what is left is the sum over channels, one complex product of matrices for each frequency, and the transforms. It pays
for large masks. What it costs is memory for all spectra, and the padding of masks to the size of a transform. The
ladder first transforms whole images, then overlapping tiles of them (overlap-save), then does the products as matrix
products should be done. A stride thins out what has been computed in full; dilated masks are transformed with their
zeros; groups are separate sums.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import convolution_layer, cuda
from pmpp.convolution_fft_parts import POINTS, SIDES, THREADS, image_spectra_kernel, images_kernel, mask_spectra_kernel
from pmpp.convolution_layer import Layer, Problem, finish, problem_of, workspace
from pmpp.fft import relative_error
from pmpp.fft_parts import first_radix, twiddles
from pmpp.fft_real import irfft, rfft
from pmpp.lab.room import rung
from pmpp.lab.vector import load128

reference, inputs, cost = convolution_layer.reference, convolution_layer.inputs, convolution_layer.cost
BLOCK = 256


