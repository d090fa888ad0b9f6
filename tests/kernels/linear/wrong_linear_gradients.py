"""Wrong gradients of a linear layer: the mistakes of a derivation, and those of a split sum."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64
f0 = np.float32(0)


def gradient(*, x_kernel=None, weight_kernel=None, bias_kernel=None, start=None, name):
    """Right but for the kernels given, each ``kernel(dy, x, weight, out)`` with a thread for an element of ``out``."""
    kernels = {"x": x_kernel or of_x, "weight": weight_kernel or of_weight, "bias": bias_kernel or of_bias}

    def function(dy, x, weight, of="weight"):
        dy, x, weight = (device.to_device(one) if isinstance(one, np.ndarray) else one for one in (dy, x, weight))
        shape = {"x": x.shape, "weight": weight.shape, "bias": weight.shape[:1]}[of]
        out = device.empty(shape, np.float32) if start is None else device.to_device(np.full(shape, start, np.float32))
        threads = dy.size if start is not None and of == "bias" else out.size
        if threads:
            kernels[of][blocks(threads, BLOCK), BLOCK](dy, x, weight, out)
        return out

    function.__name__ = name
    return function


@cuda.jit
def of_x(dy, x, weight, out):
    at = cuda.grid(1)
    if at < out.size:
        row, feature = at // out.shape[1], at % out.shape[1]
        total = f0
        for output in range(dy.shape[1]):
            total += dy[row, output] * weight[output, feature]
        out[row, feature] = total


@cuda.jit
def of_weight(dy, x, weight, out):
    at = cuda.grid(1)
    if at < out.size:
        output, feature = at // out.shape[1], at % out.shape[1]
        total = f0
        for row in range(dy.shape[0]):
            total += dy[row, output] * x[row, feature]
        out[output, feature] = total


@cuda.jit
def of_bias(dy, x, weight, out):
    output = cuda.grid(1)
    if output < out.size:
        total = f0
        for row in range(dy.shape[0]):
            total += dy[row, output]
        out[output] = total


@cuda.jit
def of_x_by_the_transposed_weight(dy, x, weight, out):
    at = cuda.grid(1)
    if at < out.size:
        row, feature = at // out.shape[1], at % out.shape[1]
        total = f0
        for output in range(dy.shape[1]):
            total += dy[row, output] * weight[min(feature, weight.shape[0] - 1), min(output, weight.shape[1] - 1)]
        out[row, feature] = total


@cuda.jit
def mean_over_the_batch(dy, x, weight, out):
    at = cuda.grid(1)
    if at < out.size:
        output, feature = at // out.shape[1], at % out.shape[1]
        total = f0
        for row in range(dy.shape[0]):
            total += dy[row, output] * x[row, feature]
        out[output, feature] = total / np.float32(max(dy.shape[0], 1))


@cuda.jit
def of_the_first_example(dy, x, weight, out):
    at = cuda.grid(1)
    if at < out.size:
        output, feature = at // out.shape[1], at % out.shape[1]
        out[output, feature] = dy[0, output] * x[0, feature] if dy.shape[0] > 0 else f0


@cuda.jit
def adds_to_what_was_there(dy, x, weight, out):
    at = cuda.grid(1)
    if at < out.size:
        output, feature = at // out.shape[1], at % out.shape[1]
        for row in range(dy.shape[0]):
            out[output, feature] += dy[row, output] * x[row, feature]


@cuda.jit
def bias_along_the_row(dy, x, weight, out):
    output = cuda.grid(1)
    if output < out.size:
        total = f0
        for other in range(dy.shape[1]):
            total += dy[min(output, dy.shape[0] - 1), other] if dy.shape[0] > 0 else f0
        out[output] = total


@cuda.jit
def bias_by_atomics(dy, x, weight, out):
    at = cuda.grid(1)
    if at < dy.size:
        cuda.atomic.add(out, at % dy.shape[1], dy[at // dy.shape[1], at % dy.shape[1]])


@cuda.jit
def no_guard(dy, x, weight, out):
    output = cuda.grid(1)
    total = f0
    for row in range(dy.shape[0]):
        total += dy[row, output]
    out[output] = total


@cuda.jit
def in_float64(dy, x, weight, out):
    output = cuda.grid(1)
    if output < out.size:
        total = 0.0
        for row in range(dy.shape[0]):
            total += dy[row, output]
        out[output] = total


RUNGS = (
    WrongRung(gradient(x_kernel=of_x_by_the_transposed_weight, name="of_x_by_the_transposed_weight"), "wrong result"),
    WrongRung(gradient(weight_kernel=mean_over_the_batch, name="mean_over_the_batch"), "wrong result"),
    WrongRung(gradient(weight_kernel=of_the_first_example, name="of_the_first_example"), "wrong result"),
    WrongRung(gradient(weight_kernel=adds_to_what_was_there, name="adds_to_what_was_there"), "uninitialised read"),
    WrongRung(gradient(bias_kernel=bias_along_the_row, name="bias_along_the_row"), "wrong result"),
    WrongRung(gradient(bias_kernel=bias_by_atomics, start=0, name="bias_by_atomics"), "atomics"),
    WrongRung(gradient(bias_kernel=no_guard, name="no_guard"), "out of bounds"),
    WrongRung(gradient(bias_kernel=in_float64, name="in_float64"), "float64"),
)
RIGHT = gradient(name="right")
