"""A convolution layer by NumPy on the CPU, as the workloads measure it beside the rungs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmpp.kernels.convolution_layer.definition import Layer


def on_cpu(layer: Layer) -> dict[str, Callable]:
    """The layer by NumPy on the CPU: im2col for one image after another, without groups or dilation."""
    (a, b), (u, v) = layer.padding, layer.stride

    def columns(image: np.ndarray) -> np.ndarray:
        padded = np.pad(image, ((0, 0), (a, a), (b, b)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (layer.r, layer.s), (1, 2))[:, ::u, ::v]
        return windows.transpose(0, 3, 4, 1, 2).reshape(layer.terms, layer.p * layer.q)

    def call(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        filters = w.reshape(layer.k, layer.terms)
        return np.stack([filters @ columns(image) for image in x]).reshape(layer.shape)

    return {"numpy": call}
