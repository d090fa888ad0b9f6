"""Gradients of an operation on tensors against central differences, with a random gradient from above."""

import os
from unittest import mock

import numpy as np

from pmpp.nn.tape import Tensor, no_grad

DIRECTIONS = 4  # for each operand


def gradients_agree(operation, *shapes, positive=False, step=2.0**-7, rtol=4e-3, seed=0):
    """Assert that every gradient of ``operation``, on random operands of these shapes, is the slope of its result.

    An operand of few elements is changed one element at a time, and a larger one along random directions: all of its
    elements move up or down by one step at once. Along each direction the slope must be the gradient's share in it. One
    wrong element shows along every direction, and two that cancel along one do not along others.

    The result is float32, so a difference of two has an error of about eps * |result| / step; the slope over a step has
    one that grows with its square. ``rtol`` allows for both, relative to the length of the gradient.
    """
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    if positive:
        arrays = [abs(array) + np.float32(0.5) for array in arrays]
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    result = operation(*tensors)
    upstream = rng.standard_normal(result.shape).astype(np.float32)
    result.backward(upstream)

    def loss(*operands):
        # The same launches have been checked above; without checks they take a fraction of the time.
        with no_grad(), mock.patch.dict(os.environ, PMPP_CHECK=""):
            return (operation(*map(Tensor, operands)).numpy().astype(np.float64) * upstream).sum()

    for k, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        found = np.zeros(array.shape) if tensor.grad is None else tensor.grad.numpy().astype(np.float64)
        assert found.shape == array.shape
        length = max(float(np.sqrt((found**2).sum())), 1.0)
        for direction in directions(array.shape, rng):
            moved = [array + np.float32(sign * step) * direction for sign in (1, -1)]
            above, below = (loss(*arrays[:k], one, *arrays[k + 1 :]) for one in moved)
            slope = (above - below) / (2 * step)
            error = abs((found * direction).sum() - slope)
            assert error <= rtol * length, f"operand {k}: the slope is {slope}, off by {error}"


def directions(shape, rng):
    """Each element by itself if there are few, else all of them, each up or down."""
    size = int(np.prod(shape))
    if size <= DIRECTIONS:
        return np.eye(size, dtype=np.float32).reshape(size, *shape)
    return rng.choice(np.float32([-1, 1]), (DIRECTIONS, *shape))
