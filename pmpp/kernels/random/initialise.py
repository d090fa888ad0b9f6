"""Initial weights: as large as keeps the variance of what flows through a network, with PyTorch's names and bounds.

A layer of ``fan_in`` inputs sums that many products, so their variances add up. Xavier's weights, of variance
2 / (fan_in + fan_out), are a compromise between the way forward and the way back. He's, of gain^2 / fan, are for one
way, and the gain makes up for what the activation takes: ReLU drops half of the variance, so its gain is the root of 2.

Source: X. Glorot and Y. Bengio, Understanding the difficulty of training deep feedforward neural networks (2010);
K. He and others, Delving deep into rectifiers (arXiv:1502.01852); PyTorch's torch.nn.init.
"""

from __future__ import annotations

import math
import typing

from pmpp.kernels.random import plain
from pmpp.runtime.check import as_number

__all__ = ["fans", "gain_of", "kaiming_normal", "kaiming_uniform", "xavier_normal", "xavier_uniform"]

GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": math.sqrt(2), "leaky_relu": None, "selu": 0.75}


def fans(shape: typing.Any) -> tuple[int, int]:
    """How many inputs an output has, and how many outputs an input: of a weight (out, in) or (out, in, rows, columns).

    >>> fans((64, 3, 7, 7))
    (147, 3136)
    """
    out, inputs, *window = plain.as_shape(shape, 2)
    return inputs * math.prod(window), out * math.prod(window)


def gain_of(nonlinearity: str, a: float = 0.0) -> float:
    """By how much weights before an activation must be larger. ``a``: the slope of a leaky ReLU.

    >>> round(gain_of("relu"), 4)
    1.4142
    """
    a = float(as_number("a", a))
    if not isinstance(nonlinearity, str) or nonlinearity not in GAINS:
        raise ValueError(f"nonlinearity must be one of {', '.join(GAINS)}, was {nonlinearity!r}")
    return GAINS[nonlinearity] or math.sqrt(2 / (1 + a * a))


def _root(numerator: float, fan: int) -> float:
    """A standard deviation; of a weight without elements any will do."""
    return math.sqrt(numerator / fan) if fan else 0.0


def _spread(spread: float, name: str, given: float) -> float:
    """How far weights spread. Raises ValueError that names an argument unless float32 has it, and twice of it."""
    if spread and not 2.0**-149 <= spread <= plain.LARGEST / 2:
        raise ValueError(f"{name} must give weights that float32 has, was {given:g}, which gives {spread:.3g}")
    return spread


def xavier_uniform(shape, *, gain=1.0, seed, offset=0, out=None, stream=0):
    """Uniform from -b to b with ``b = gain * sqrt(6 / (fan_in + fan_out))``.

    Args:
        shape: of a weight, (out, in) or (out, in, ...) with a window.
        gain: a factor, 0 or more.
        seed, offset, stream: as in `pmpp.kernels.random.vectorised`.
        out: a device array of float32 and that shape, or None to allocate one. It lies apart from nothing else.

    >>> xavier_uniform((1, 2), seed=1).copy_to_host()
    array([[1.1038195, 1.1163368]], dtype=float32)
    """
    gain = float(as_number("gain", gain, 0))
    bound = _spread(gain * _root(6, sum(fans(shape))), "gain", gain)
    return plain.uniform(shape, -bound, bound, seed=seed, offset=offset, out=out, stream=stream)


def xavier_normal(shape, *, gain=1.0, seed, offset=0, out=None, stream=0):
    """Normal with mean 0 and standard deviation ``gain * sqrt(2 / (fan_in + fan_out))``.

    Args:
        shape, gain, seed, offset, out, stream: as in `xavier_uniform`; ``out`` lies apart from nothing else.

    >>> xavier_normal((1, 2), seed=1).copy_to_host()
    array([[ 0.3105958 , -0.24190994]], dtype=float32)
    """
    gain = float(as_number("gain", gain, 0))
    std = _spread(gain * _root(2, sum(fans(shape))), "gain", gain)
    return plain.normal(shape, 0.0, std, seed=seed, offset=offset, out=out, stream=stream)


def _kaiming(shape: typing.Any, a: typing.Any, mode: typing.Any, nonlinearity: typing.Any) -> float:
    """The standard deviation for one way through a layer."""
    both = fans(shape)
    if not isinstance(mode, str) or mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be fan_in or fan_out, was {mode!r}")
    return _spread(gain_of(nonlinearity, a) * _root(1, both[mode == "fan_out"]), "a", a)


def kaiming_uniform(shape, *, a=0.0, mode="fan_in", nonlinearity="leaky_relu", seed, offset=0, out=None, stream=0):
    """Uniform from -b to b with ``b = gain * sqrt(3 / fan)``. PyTorch's linear layers begin with ``a=5 ** 0.5``.

    Args:
        shape: of a weight, (out, in) or (out, in, ...) with a window.
        a: the slope of a leaky ReLU for negative numbers.
        mode: "fan_in" keeps the variance on the way forward, "fan_out" on the way back.
        nonlinearity: "relu", "leaky_relu", "tanh", "sigmoid", "selu" or "linear": what follows.
        seed, offset, stream: as in `pmpp.kernels.random.vectorised`.
        out: a device array of float32 and that shape, or None to allocate one. It lies apart from nothing else.

    >>> kaiming_uniform((1, 2), seed=1).copy_to_host()
    array([[1.3518974, 1.3672278]], dtype=float32)
    """
    bound = math.sqrt(3) * _kaiming(shape, a, mode, nonlinearity)
    return plain.uniform(shape, -bound, bound, seed=seed, offset=offset, out=out, stream=stream)


def kaiming_normal(shape, *, a=0.0, mode="fan_in", nonlinearity="leaky_relu", seed, offset=0, out=None, stream=0):
    """Normal with mean 0 and standard deviation ``gain / sqrt(fan)``.

    Args:
        shape, a, mode, nonlinearity, seed, offset, out, stream: as in `kaiming_uniform`; ``out`` lies apart from
            nothing else.

    >>> kaiming_normal((1, 2), seed=1).copy_to_host()
    array([[ 0.3804006 , -0.29627794]], dtype=float32)
    """
    std = _kaiming(shape, a, mode, nonlinearity)
    return plain.normal(shape, 0.0, std, seed=seed, offset=offset, out=out, stream=stream)
