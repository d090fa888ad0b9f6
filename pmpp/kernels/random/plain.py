"""Random numbers by shape: `bits`, `uniform` and `normal`."""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels.random.ladder import drawn, vectorised
from pmpp.runtime import device
from pmpp.runtime.check import as_number

__all__ = ["as_shape", "bits", "normal", "uniform"]

MOST = 2**60  # elements of a result, which no memory holds
LARGEST = float(np.finfo(np.float32).max)


def as_shape(shape: typing.Any, least: int = 1) -> tuple[int, ...]:
    """A shape: an integer, or a tuple or list of at least ``least`` integers, none negative."""
    extents = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    whole = all(isinstance(one, int | np.integer) and not isinstance(one, bool) for one in extents)
    if not whole or len(extents) < least:
        words = "an integer or a tuple of integers" if least == 1 else f"a tuple of {least} integers or more"
        raise TypeError(f"shape must be {words}, was {shape!r}")
    if min(extents) < 0:
        raise ValueError(f"shape must have no negative extent, was {shape!r}")
    if math.prod(max(int(one), 1) for one in extents) >= MOST:  # NumPy has no such shape, even without elements
        raise ValueError(f"shape must have fewer than 2^60 elements, was {shape!r}")
    return tuple(map(int, extents))


def bits(shape, *, seed, offset=0, out=None, stream=0):
    """Random uint32, all 32 bits.

    Args:
        shape: of the result, an integer or a tuple.
        seed, offset, stream: as in `vectorised`.
        out: a device array of uint32 and that shape, or None to allocate one. It lies apart from nothing else.

    >>> bits(3, seed=1).copy_to_host()
    array([3823634032, 3842641596, 2515673792], dtype=uint32)
    """
    return vectorised.run(drawn(as_shape(shape), "bits", seed, offset, 1, 0, out, device.as_stream(stream)))


def uniform(shape, low=0.0, high=1.0, *, seed, offset=0, out=None, stream=0):
    """Random float32 from ``low`` to less than ``high``; where rounding has it so, to ``high``.

    Args:
        shape: of the result, an integer or a tuple.
        low, high: the ends. The numbers are ``low + (high - low) * k / 2^24``; the difference is a float32, too.
        seed, offset, stream: as in `vectorised`.
        out: a device array of float32 and that shape, or None to allocate one. It lies apart from nothing else.

    >>> uniform(3, seed=1).copy_to_host()
    array([0.89025915, 0.8946847 , 0.5857259 ], dtype=float32)
    """
    first, last = (float(as_number(name, x)) for name, x in (("low", low), ("high", high)))
    if last < first:
        raise ValueError(f"high must be at least low={low!r}, was {high!r}")
    if last - first > LARGEST:
        raise ValueError(f"high must be at most {LARGEST:.4g} above low={low!r}, was {high!r}")
    p = drawn(as_shape(shape), "uniform", seed, offset, last - first, first, out, device.as_stream(stream))
    return vectorised.run(p)


def normal(shape, mean=0.0, std=1.0, *, seed, offset=0, out=None, stream=0):
    """Random float32 with a normal distribution.

    Args:
        shape: of the result, an integer or a tuple.
        mean: the mean. std: the standard deviation, 0 or more. A number beyond float32 becomes infinite.
        seed, offset, stream: as in `vectorised`.
        out: a device array of float32 and that shape, or None to allocate one. It lies apart from nothing else.

    >>> normal(3, seed=1).copy_to_host()
    array([ 0.3804006 , -0.29627794, -0.24923347], dtype=float32)
    """
    mean, std = as_number("mean", mean), as_number("std", std, 0)
    p = drawn(as_shape(shape), "normal", seed, offset, std, mean, out, device.as_stream(stream))
    return vectorised.run(p)
