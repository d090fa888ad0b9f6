"""Functions to fuse, written for NumPy. `on` runs the same text on another library.

Chapter: notebooks/91_a_fusing_compiler.ipynb.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import numpy as np

EPSILON = 1e-5  # of layer_norm


def gelu_with_mask(x, b, mask):
    """gelu(x + b) * mask, with the tanh approximation of GELU; what dropout leaves of a layer's activations.

    Source: D. Hendrycks and K. Gimpel, Gaussian Error Linear Units (2016).
    """
    y = x + b
    return 0.5 * y * (1 + np.tanh(0.7978845608028654 * (y + 0.044715 * y**3))) * mask


def softmax(x):
    """Shares of each row that add up to 1."""
    shifted = x - np.amax(x, axis=-1, keepdims=True)
    powers = np.exp(shifted)
    return powers / np.sum(powers, axis=-1, keepdims=True)


def layer_norm(x, weight, bias):
    """Each row with mean 0 and variance 1, then scaled and shifted column by column."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + EPSILON) * weight + bias


def adamw(p, g, m, v, lr, beta1, beta2, eps, decay, correction1, correction2):
    """A step of AdamW: the new parameters and both moments. The corrections are 1 - beta^step.

    Source: I. Loshchilov and F. Hutter, Decoupled Weight Decay Regularization (2019).
    """
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    update = m / correction1 / (np.sqrt(v / correction2) + eps)
    return p * (1 - lr * decay) - lr * update, m, v


def chain(length: int) -> Callable:
    """x = x * a + a, ``length`` times over, where a is a number: 2 FLOP a step, and no byte more."""

    def steps(x, a):
        for _ in range(length):
            x = x * a + a
        return x

    steps.__name__ = f"chain_{length}"
    return steps


def on(library: types.ModuleType, function: Callable) -> Callable:
    """The function with another library where it says ``np``: PyTorch and CuPy have the same names for these things."""
    names = {**function.__globals__, "np": library}
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
