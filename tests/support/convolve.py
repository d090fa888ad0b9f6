"""What the tests of the convolution rooms share: is a result right, and what is wrong with a convolution."""

import numpy as np

from pmpp.kernels.convolution_layer import definition as layers
from pmpp.runtime import device
from tests.support import judge

F32 = np.float32
TOLD_APART = (  # small layers, each of which some plausible mistake gets wrong
    "one",
    "3x3 p1, odd, bias, ReLU",
    "1x1 s2, bias",
    "3x2 s2x1 p1x0 d1x2",
    "two groups",
    "two filters a channel",
    "padding beyond the kernel",
    "shift",
)


def right(result, arguments):
    return judge.right(result, layers.reference(*arguments), layers.tolerance(*arguments))


def misaligned(shape):
    """A device array of NaN that begins 4 bytes behind a 16-byte boundary."""
    flat = device.to_device(np.full(int(np.prod(shape)) + 1, np.nan, F32))
    return flat[1:].reshape(shape)


def faults(convolve):
    """All that is wrong with a convolution on the first input where anything is, worst first."""
    for name in TOLD_APART:
        arguments = layers.inputs()[name]
        if found := judge.faults(convolve, arguments, lambda result, arguments=arguments: right(result, arguments)):
            return found
    return []
