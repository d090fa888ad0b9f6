"""Layers on which a call of `pmpp.kernels.convolution_layer.convolution`, which chooses its algorithm, is timed."""

from __future__ import annotations

from pmpp.kernels.convolution_layer.definition import Layer
from pmpp.kernels.convolution_layer.dispatch import convolution
from pmpp.kernels.convolution_layer.measured_layers import workload

LAYERS = Layer(1, 16, 14, 14, 16, 3, 3, padding=(1, 1)), Layer(1, 64, 56, 56, 64, 3, 3, padding=(1, 1))
WORKLOADS = [workload(layer, (convolution,), "auto") for layer in LAYERS]
