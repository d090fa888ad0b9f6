"""Gradients of an operation on tensors against central differences, with a random gradient from above."""

import numpy as np

from pmpp.nn.tape import Tensor, no_grad


def gradients_agree(operation, *shapes, positive=False, step=2.0**-7, rtol=4e-3, seed=0):
    """Assert that every gradient of ``operation``, on random operands of these shapes, is the slope of its result.

    The result is float32, so a difference of two has an error of about eps * |result| / step; the slope over a step has
    one that grows with its square. ``rtol`` allows for both, relative to the greatest gradient.
    """
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
    if positive:
        arrays = [abs(array) + np.float32(0.5) for array in arrays]
    tensors = [Tensor(array, requires_grad=True) for array in arrays]
    result = operation(*tensors)
    upstream = rng.standard_normal(result.shape).astype(np.float32)
    result.backward(upstream)
    for k, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        found = np.zeros(array.shape) if tensor.grad is None else tensor.grad.numpy()
        slopes = np.zeros(array.shape)
        for at in np.ndindex(array.shape):
            values = []
            for change in (step, -step):
                changed = [other.copy() for other in arrays]
                changed[k][at] += np.float32(change)
                with no_grad():
                    moved = operation(*map(Tensor, changed)).numpy().astype(np.float64)
                values.append((moved * upstream).sum())
            slopes[at] = (values[0] - values[1]) / (2 * step)
        assert found.shape == array.shape
        error = abs(found - slopes).max(initial=0)
        assert error <= rtol * max(abs(slopes).max(initial=0), 1.0), f"operand {k}: off by {error}"
