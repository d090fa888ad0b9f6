"""A small network's tensors for the tests of optimisers: sizes of all kinds, some of them where no vector may begin."""

import numpy as np

from pmpp.runtime import device
from tests.support.wrong import misaligned

F32 = np.float32
#: Shapes as in a small network, and how many elements behind a boundary of 16 bytes each tensor begins.
SHAPES = [((5, 3, 3, 3), 0), ((5,), 1), ((33, 45), 0), ((45,), 2), ((0, 4), 0), ((1,), 3), ((1024,), 0), ((2049,), 0)]


def drawn(count, seed, *, scale=1.0):
    """Lists of arrays on the host, one for each tensor."""
    rng = np.random.default_rng(seed)
    return [[F32(scale) * rng.standard_normal(shape).astype(F32) for shape, _ in SHAPES] for _ in range(count)]


def on_device(arrays):
    """The same on the device."""
    return [misaligned(x, offset) for x, (_, offset) in zip(arrays, SHAPES, strict=True)]


def on_host(arrays):
    return [device.to_host(x) for x in arrays]
