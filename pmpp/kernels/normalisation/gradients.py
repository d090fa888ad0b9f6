"""What the gradients of normalisation share: two arrays read side by side, two sums for each channel or column.

For `batchnorm_backward` and `layernorm_backward`. Chapter: notebooks/84_gradients_of_normalisation.ipynb. Partial sums
are added in an order that the shape alone decides, so the same call gives the same bits.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum
from pmpp.kernels.normalisation import moments
from pmpp.kernels.normalisation.moments import f0, once_more, onward, route, store_vector
from pmpp.runtime import device
from pmpp.runtime.vector import load128, widened

# Values that a thread keeps of dy, and as many of x: 32 of the 64 registers that leave room for 1024 threads.
HELD = 16


class Moments(typing.NamedTuple):
    """Of each channel or row the mean, and one over the root of variance and eps: float32, one number for each."""

    mean: typing.Any
    invstd: typing.Any


class Sums(typing.NamedTuple):
    """The gradients of weight and bias: sums of dy times the normalised x, and of dy."""

    dweight: typing.Any
    dbias: typing.Any


def of_rows(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """In float64, for rows that are normalised each by its own moments: dx, and dy times the normalised x, and that x.

    ``weight`` must fit the shape of the rows.
    """
    dy, x, weight = (array.astype(np.float64) for array in (dy, x, weight))
    if not x.size:
        return x, x, x
    with np.errstate(all="ignore"):
        invstd = 1 / np.sqrt(x.var(axis=1, keepdims=True) + eps)
        normalised = (x - x.mean(axis=1, keepdims=True)) * invstd
        given = dy * weight  # the gradient of the normalised x
        common = given.mean(axis=1, keepdims=True)
        slope = (given * normalised).mean(axis=1, keepdims=True)
        return invstd * (given - common - normalised * slope), dy * normalised, normalised


def tolerances(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors allowed for rows in float32: of dx, of dy times the normalised x, and the growth of a row's sum.

    The mean may be off by what `moments.moment_errors` says. The normalised x is then off by that times invstd, and by
    the share of itself by which invstd is off. Each sum of n terms is off by (n / 256 + 40) roundings of what it adds
    up, as there, and by the errors of its terms. dx takes 8 roundings of its own. All of this is of first order. A dx
    of 16 bits is rounded once more.
    """
    dtype = x.dtype
    dy, x, weight = (array.astype(np.float64) for array in (dy, x, weight))
    if not x.size:
        return np.zeros(x.shape), np.zeros(x.shape), np.zeros((len(x), 1))
    unit, n = 2.0**-24, x.shape[1]
    with np.errstate(all="ignore"):
        mean_error, var_error = moments.moment_errors(x)
        square = x.var(axis=1, keepdims=True) + eps
        invstd, share = 1 / np.sqrt(square), var_error / (2 * square)
        away = np.abs(x - x.mean(axis=1, keepdims=True)) * invstd
        moved = mean_error * invstd + away * (share + 4 * unit)  # the error of the normalised x
        given = np.abs(dy * weight)
        growth = (min(n / 256, 8 * math.sqrt(n / 256)) + 40) * unit
        common, common_error = given.mean(axis=1, keepdims=True), growth * given.mean(axis=1, keepdims=True)
        slope = (given * away).mean(axis=1, keepdims=True)
        slope_error = growth * slope + (given * moved).mean(axis=1, keepdims=True)
        own = (share + 8 * unit) * (given + common + away * slope)
        dx = invstd * (own + common_error + away * slope_error + moved * slope)
        dx = dx + once_more(invstd * (given + common + away * slope) + dx, dtype)
        return dx, np.abs(dy) * moved, np.full((len(x), 1), growth)


def moment_inputs(mean: typing.Any, invstd: typing.Any, count: int, *, stream: typing.Any) -> tuple[Moments, bool]:
    """The moments of the forward pass, and whether they were given. Else the arrays are new, and still to be filled."""
    form = {"dtypes": "float32", "shape": (count,), "stream": stream}
    given = [
        None if one is None else device.as_input(name, one, **form)
        for name, one in (("mean", mean), ("invstd", invstd))
    ]
    if (mean is None) != (invstd is None):
        missing = "mean" if mean is None else "invstd"
        raise ValueError(f"mean and invstd must be given together, {missing} was None")
    if mean is None:
        return Moments(*(device.empty(count, np.float32, stream=stream) for _ in range(2))), False
    return Moments(*given), True


def outputs(
    out: typing.Any,
    dweight: typing.Any,
    dbias: typing.Any,
    x: typing.Any,
    count: int,
    apart: dict[str, typing.Any],
    stream: typing.Any,
) -> tuple[typing.Any, Sums]:
    """Where the three gradients go, all apart from what is read and from each other."""
    apart, form = dict(apart), {"dtype": np.float32, "stream": stream}
    dweight = apart["dweight"] = device.as_output("dweight", dweight, shape=(count,), apart=apart, **form)
    dbias = apart["dbias"] = device.as_output("dbias", dbias, shape=(count,), apart=apart, **form)
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart=apart, stream=stream)
    return out, Sums(dweight, dbias)


# ----------------------------------------------------------------------------------------- sums of a channel, by parts


@cuda.jit(device=True)
def write_sums(partials, channel, part, plain, weighted):
    partials[0, channel, part], partials[1, channel, part] = plain, weighted


@cuda.jit(device=True)
def add_parts(partials, channel):
    """In all threads of the block, both sums of a channel: each thread adds every blockDim-th part, then the block."""
    plain, weighted = f0, f0
    for part in range(cuda.threadIdx.x, partials.shape[2], cuda.blockDim.x):
        plain += partials[0, channel, part]
        weighted += partials[1, channel, part]
    partial = cuda.shared.array((2, 32), np.float32)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    return plain, weighted


@cuda.jit(device=True)
def load_both(dy, x, shape, channel, first, like, depth, given, values):
    """Load a thread's units of a channel from dy and x, ``depth`` of each at most; see `moments.load_chunk`.

    Beyond the channel's end the channel's first unit is loaded in place of x, and dy is 0 there: it adds to no sum.
    """
    (at, r, left), step, inner = route(shape, channel, first, like)
    begin = channel * np.int64(inner)
    for k in range(HELD // len(like)):
        i = at if left > 0 else begin
        if len(like) > 1:
            load_pair(given, values, len(like) * k, dy, x, len(like) * i, k < depth, like)
            for e in range(len(like) * k, len(like) * (k + 1)):
                given[e] = given[e] if left > 0 else f0
        else:
            values[k] = widened(x[i]) if k < depth else f0
            given[k] = widened(dy[i]) if k < depth and left > 0 else f0
        at, r, left = onward(at, r, left, step, inner)


@cuda.jit(device=True)
def load_pair(given, values, place, dy, x, i, needed, like):
    """`moments.load_vector` of dy and of x: both loads are made before the first is used."""
    if needed:
        a, b = widened(load128(dy, i)), widened(load128(x, i))
        for e in range(len(like)):
            given[place + e], values[place + e] = a[e], b[e]
    else:
        for e in range(len(like)):
            given[place + e], values[place + e] = f0, f0


@cuda.jit(device=True)
def store_held(values, out, shape, channel, first, like):
    """Store the values of `load_both` that lie within the channel, at the same places of ``out``."""
    (at, r, left), step, inner = route(shape, channel, first, like)
    for k in range(HELD // len(like)):
        if left > 0:
            if len(like) > 1:
                store_vector(values, len(like) * k, out, len(like) * at, like)
            else:
                out[at] = values[k]
        at, r, left = onward(at, r, left, step, inner)


@cuda.jit(device=True)
def held_sums(given, values, mean):
    """Of a thread's values, the sums of dy and of dy times the distance of x from the mean."""
    plain, weighted = f0, f0
    for k in range(HELD):
        plain += given[k]
        weighted += given[k] * (values[k] - mean)
    return plain, weighted
