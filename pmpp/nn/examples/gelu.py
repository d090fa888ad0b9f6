"""GELU by the hyperbolic tangent as functions of an array, so that `pmpp.lab.count` can count what they launch."""

from __future__ import annotations

import typing

import numpy as np

from pmpp.nn import functional as F
from pmpp.nn.measure import bottleneck
from pmpp.nn.tape import Tensor, no_grad

__all__ = ["by_operations", "fused"]


def by_operations(x: np.ndarray) -> typing.Any:
    """Operation by operation, each a kernel.

    >>> by_operations(np.float32([0, 20])).copy_to_host()
    array([ 0., 20.], dtype=float32)
    """
    with no_grad():
        return bottleneck.gelu(Tensor(x)).array


def fused(x: np.ndarray) -> typing.Any:
    """In one kernel.

    >>> fused(np.float32([0, 20])).copy_to_host()
    array([ 0., 20.], dtype=float32)
    """
    with no_grad():
        return F.gelu(Tensor(x), "tanh").array
