"""What the tests of the convolution rooms share: is a result right, and what is wrong with a convolution."""

import numpy as np

from pmpp import simt
from pmpp.kernels.convolution_layer import definition as layers
from pmpp.runtime import device
from tests.support.wrong import hazards, observe

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
    """Whether each element is within its tolerance, and what is not finite is the very same."""
    expected = layers.reference(*arguments)
    if result.shape != expected.shape or result.dtype != F32:
        return False
    finite = np.isfinite(expected)
    same = np.array_equal(result[~finite], expected[~finite].astype(F32), equal_nan=True)
    return same and bool((abs(result[finite] - expected[finite]) <= layers.tolerance(*arguments)[finite]).all())


def misaligned(shape):
    """A device array of NaN that begins 4 bytes behind a 16-byte boundary."""
    flat = device.to_device(np.full(int(np.prod(shape)) + 1, np.nan, F32))
    return flat[1:].reshape(shape)


def faults(convolve):
    """All that is wrong with a convolution, worst first. The rungs have none; tests/wrong has one each."""
    found = []
    for name in TOLD_APART:
        x, w, *options = layers.inputs()[name]
        on_device = [device.to_device(a) for a in (x, w)]
        try:
            result, reports = observe(convolve, *on_device, *options)
        except simt.SimtError as error:
            return ["misaligned" if "misaligned" in str(error) else str(error)]
        found += hazards(reports)
        if not found:
            found += ["wrong result"] * (not right(result, (x, w, *options)))
        if not all(np.array_equal(a.copy_to_host(), b) for a, b in zip(on_device, (x, w), strict=True)):
            found += ["input changed"]
    return found
