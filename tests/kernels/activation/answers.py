"""More answers to the exercises on activations: right in another way, or wrong for a reason easily mistaken."""

import math

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
BIAS, GATED = "activation/bias", "activation/gated"
f0, f1 = np.float32(0), np.float32(1)


# -- bias


@right(BIAS)
@cuda.jit
def bias_by_a_maximum(x, bias, slope, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        plane, k = divmod(i, x.shape[2])
        n, c = divmod(plane, x.shape[1])
        value = x[n, c, k] + bias[c]
        out[n, c, k] = max(value, f0) + slope * min(value, f0)


@wrong(BIAS, "accidental float64", r"max\(float32 value, float64 literal 0.0\) gives float64")
@cuda.jit
def bias_by_a_maximum_in_float64(x, bias, slope, out):
    i = cuda.grid(1)
    if i < x.size:
        n, c, k = i // x.shape[2] // x.shape[1], i // x.shape[2] % x.shape[1], i % x.shape[2]
        value = x[n, c, k] + bias[c]
        out[n, c, k] = max(value, 0.0) if value > 0 else value * slope


@wrong(BIAS, "wrong result", "It is right with")
@cuda.jit
def bias_with_the_sign_of_x(x, bias, slope, out):
    i = cuda.grid(1)
    if i < x.size:
        n, c, k = i // x.shape[2] // x.shape[1], i // x.shape[2] % x.shape[1], i % x.shape[2]
        value = x[n, c, k] + bias[c]
        out[n, c, k] = value if x[n, c, k] > 0 else value * slope


@wrong(BIAS, "the larger of both", "Where slope is above 1")
@cuda.jit
def bias_by_the_larger(x, bias, slope, out):
    i = cuda.grid(1)
    if i < x.size:
        n, c, k = i // x.shape[2] // x.shape[1], i // x.shape[2] % x.shape[1], i % x.shape[2]
        value = x[n, c, k] + bias[c]
        out[n, c, k] = max(value, value * slope)


@wrong(BIAS, "uncoalesced", "8 sectors a request where 4 do")
@cuda.jit
def bias_channels_fastest(x, bias, slope, out):
    i = cuda.grid(1)
    if i < x.size:
        c, k, n = i % x.shape[1], i // x.shape[1] % x.shape[2], i // x.shape[1] // x.shape[2]
        value = x[n, c, k] + bias[c]
        out[n, c, k] = value if value > 0 else value * slope


# -- gated


@right(GATED)
@cuda.jit
def gated_by_the_hyperbolic_tangent(x, out):
    i, half = cuda.grid(1), np.float32(0.5)
    if i < out.size:
        row, column = divmod(i, out.shape[1])
        gate = x[row, column]
        out[row, column] = gate * (half + half * math.tanh(half * gate)) * x[row, column + out.shape[1]]


@wrong(GATED, "wrong result")
@cuda.jit
def gated_with_the_wrong_sign(x, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = divmod(i, out.shape[1])
        gate = x[row, column]
        out[row, column] = gate / (f1 + math.exp(gate)) * x[row, column + out.shape[1]]


@wrong(GATED, "missing guard", "it lets this index through")
@cuda.jit
def gated_with_a_guard_of_x(x, out):
    i = cuda.grid(1)
    if i < x.size:
        row, column = divmod(i, out.shape[1])
        gate = x[row, column]
        out[row, column] = gate / (f1 + math.exp(-gate)) * x[row, column + out.shape[1]]


@wrong(BIAS, "argument ignored", "The kernel never uses slope")
@cuda.jit
def bias_with_a_slope_of_its_own(x, bias, slope, out):
    i = cuda.grid(1)
    if i < out.size:
        n, c, m = i // x.shape[2] // x.shape[1], i // x.shape[2] % x.shape[1], i % x.shape[2]
        value = x[n, c, m] + bias[c]
        out[n, c, m] = value if value > 0 else value * np.float32(0.1)
