"""Views of device arrays that no slice makes: with other strides, and all memory from the first element to the last.

Neither copies. Kernels that are given a `span` find their elements by strides of their own.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp.runtime import device

__all__ = ["span", "strided"]


def strided(x: typing.Any, shape: tuple[int, ...], strides: tuple[int, ...], first: int = 0) -> typing.Any:
    """A view of a device array's memory with another shape and strides, as ``numpy.lib.stride_tricks.as_strided``.

    Args:
        x: a device array in C order.
        shape: of the view.
        strides: in elements, not negative; 0 repeats an element.
        first: the place of the view's first element in ``x``, counted in C order.

    Raises ValueError if the view reaches beyond ``x``.

    >>> strided(device.to_device(np.float32([1, 2, 3, 4])), (2, 2), (1, 2)).copy_to_host()
    array([[1., 3.],
           [2., 4.]], dtype=float32)
    """
    last = first + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True))
    if 0 not in shape and not (first >= 0 and min(strides, default=0) >= 0 and last < x.size):
        raise ValueError(f"the view must lie within the {x.size} elements of x, reaches from {first} to {last}")
    size = x.dtype.itemsize
    steps = tuple(step * size for step in strides)
    if not device.on_gpu():
        flat = x.reshape(-1)
        return flat._like(np.lib.stride_tricks.as_strided(flat._view[first:], shape, steps))
    from pmpp.runtime.array import Array, layout

    return Array.at(x.pointer + first * size, layout(shape, steps, x.dtype, device.current()), x.owner or x)


def span(x: typing.Any) -> typing.Any:
    """All memory from the first to the last element of a device array, a view of any strides, as a vector.

    >>> x = device.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> span(x[:, 1]).copy_to_host()
    array([1., 2., 3., 4.], dtype=float32)
    """
    if x.is_c_contiguous():
        return x.reshape(-1)
    steps = [(extent - 1) * stride for extent, stride in zip(x.shape, x.strides, strict=True)]
    if min(x.strides) < 0:
        raise ValueError(f"x must have strides that are not negative, had {x.strides}")
    length = (sum(steps) // x.dtype.itemsize + 1) if x.size else 0
    if not device.on_gpu():
        flat = np.lib.stride_tricks.as_strided(x._view, (length,), (x.dtype.itemsize,))
        return x._like(flat)
    from pmpp.runtime.array import Array, contiguous

    return Array.at(x.pointer, contiguous((length,), x.dtype, device.current()), x.owner or x)
