"""Wrong linear layers: what people write when the bias, the ReLU and a split sum meet."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK, SLICES, TILE = 64, 2, 16
f0 = np.float32(0)


def layer(kernel, *, start=None, slices=1, name=None):
    """``kernel(x, weight, bias, y, relu)`` as a function of the room's arguments: a thread for each output.

    With ``slices``, as many threads share an output.
    """

    def apply(x, weight, bias=None, activation=None):
        bias = np.zeros(weight.shape[0], np.float32) if bias is None else bias
        x, weight, bias = (device.to_device(one) if isinstance(one, np.ndarray) else one for one in (x, weight, bias))
        shape = x.shape[0], weight.shape[0]
        y = device.empty(shape, np.float32) if start is None else device.to_device(np.full(shape, start, np.float32))
        if y.size:
            kernel[blocks(y.size * slices, BLOCK), BLOCK](x, weight, bias, y, activation == "relu")
        return y

    apply.__name__ = name or getattr(kernel, "py_func", kernel).__name__
    return apply


@cuda.jit(device=True)
def finished(value, relu):
    return f0 if relu and value < f0 else value


@cuda.jit
def right(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = f0
        for k in range(x.shape[1]):
            total += x[row, k] * weight[output, k]
        y[row, output] = finished(total + bias[output], relu)


@cuda.jit
def no_guard(x, weight, bias, y, relu):
    at = cuda.grid(1)
    row, output = at // y.shape[1], at % y.shape[1]
    total = bias[output]
    for k in range(x.shape[1]):
        total += x[row, k] * weight[output, k]
    y[row, output] = finished(total, relu)


@cuda.jit
def weight_not_transposed(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output]
        for k in range(x.shape[1]):
            total += x[row, k] * weight[min(k, weight.shape[0] - 1), min(output, weight.shape[1] - 1)]
        y[row, output] = finished(total, relu)


@cuda.jit
def bias_of_the_row(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[row % bias.size]
        for k in range(x.shape[1]):
            total += x[row, k] * weight[output, k]
        y[row, output] = finished(total, relu)


@cuda.jit
def relu_before_the_bias(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = f0
        for k in range(x.shape[1]):
            total += x[row, k] * weight[output, k]
        y[row, output] = finished(total, relu) + bias[output]


@cuda.jit
def relu_by_max(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output]
        for k in range(x.shape[1]):
            total += x[row, k] * weight[output, k]
        y[row, output] = total if total > f0 or not relu else f0  # NaN > 0 is false, and NaN becomes 0


@cuda.jit
def slices_by_atomics(x, weight, bias, y, relu):
    thread = cuda.grid(1)
    at, part = thread // SLICES, thread % SLICES
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output] if part == 0 else f0
        for k in range(part, x.shape[1], SLICES):
            total += x[row, k] * weight[output, k]
        cuda.atomic.add(y, (row, output), total)  # in any order


@cuda.jit
def slices_that_overwrite(x, weight, bias, y, relu):
    thread = cuda.grid(1)
    at, part = thread // SLICES, thread % SLICES
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = bias[output] if part == 0 else f0
        for k in range(part, x.shape[1], SLICES):
            total += x[row, k] * weight[output, k]
        y[row, output] += total


@cuda.jit
def whole_slices_only(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total, length = bias[output], x.shape[1] // SLICES  # and the rest?
        for part in range(SLICES):
            for k in range(part * length, (part + 1) * length):
                total += x[row, k] * weight[output, k]
        y[row, output] = finished(total, relu)


@cuda.jit
def bias_in_every_slice(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total, length = f0, (x.shape[1] + SLICES - 1) // SLICES
        for part in range(SLICES):
            of_slice = bias[output]
            for k in range(part * length, min((part + 1) * length, x.shape[1])):
                of_slice += x[row, k] * weight[output, k]
            total += of_slice
        y[row, output] = finished(total, relu)


@cuda.jit
def in_float64(x, weight, bias, y, relu):
    at = cuda.grid(1)
    if at < y.size:
        row, output = at // y.shape[1], at % y.shape[1]
        total = 0.0
        for k in range(x.shape[1]):
            total += x[row, k] * weight[output, k]
        y[row, output] = finished(np.float32(total + bias[output]), relu)


RUNGS = (
    WrongRung(layer(no_guard), "out of bounds"),
    WrongRung(layer(slices_that_overwrite, start=0, slices=SLICES), "race"),
    WrongRung(layer(weight_not_transposed), "wrong result"),
    WrongRung(layer(bias_of_the_row), "wrong result"),
    WrongRung(layer(relu_before_the_bias), "wrong result"),
    WrongRung(layer(relu_by_max), "wrong result"),
    WrongRung(layer(whole_slices_only), "wrong result"),
    WrongRung(layer(bias_in_every_slice), "wrong result"),
    WrongRung(layer(slices_by_atomics, start=0, slices=SLICES), "atomics"),
    WrongRung(layer(in_float64), "float64"),
)
RIGHT = layer(right)
