"""From whole numbers back to float32, and how to choose scales: by range, by percentile, by least squared error.

Chapter: notebooks/77_quantisation.ipynb. What an error is made of: an element inside the range is off by half a step at
most, and one outside by as much as it lies outside. A wide range has wide steps, and a narrow one cuts more off.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.histogram import ladder as histogram
from pmpp.kernels.quantisation.ladder import BLOCK, limits, no_zero, zero_of
from pmpp.kernels.reduction import over_axes
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer, as_number
from pmpp.runtime.vector import store128

BINS = 4096  # of the histogram, from the least to the largest element
TRIES = 100  # ranges of which the best is taken: hundredths of the whole range
FAR = 100  # beyond 2^100, or below 2^-100, numbers are scaled before they are counted
WAYS = ("range", "percentile", "error")

__all__ = ["calibrate", "dequantise"]


# ------------------------------------------------------------------------------------------ the way back


@cuda.jit(device=True)
def number(q, scale, zero):
    return np.float32(np.int32(q) - zero) * scale


@cuda.jit
def element_kernel(q, scales, zeros, out, inner):
    i = cuda.grid(1)
    if i < out.size:
        channel = i // inner
        out[i] = number(q[i], scales[channel], zero_of(zeros, channel))


@cuda.jit
def word_kernel(q, words, scales, zeros, out, inner):
    v = cuda.grid(1)
    if v < words.size:
        channel, word = 4 * v // inner, np.int32(words[v])
        scale, zero = scales[channel], zero_of(zeros, channel)
        a, b, c = np.int8(word), np.int8(word >> 8), np.int8(word >> 16)
        d = np.int8(word >> 24)
        values = number(a, scale, zero), number(b, scale, zero), number(c, scale, zero), number(d, scale, zero)
        store128(out, 4 * v, values)
    elif v - words.size < out.size - 4 * words.size:  # the last few, of a tensor with one scale
        i = 3 * words.size + v
        out[i] = number(q[i], scales[0], zero_of(zeros, 0))


def dequantise(q, scales, zeros=None, *, out=None, stream=0):
    """The numbers that whole numbers stand for: (q - zero) scale.

    Args:
        q: int8 with one to four dimensions, in C order. The first one is that of the channels.
        scales: float32 of shape (1,), for all of q, or (channels,).
        zeros: int8 of the shape of scales, or None for 0.
        out: a float32 device array of the shape of q, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The product is rounded once.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> q, scales, zeros = np.int8([[8, 10, 127]] * 4), np.float32([0.5, 1, 2, 4]), np.int8([10, 10, 0, 0])
    >>> dequantise(q, scales, zeros).copy_to_host()
    array([[ -1. ,   0. ,  58.5],
           [ -2. ,   0. , 117. ],
           [ 16. ,  20. , 254. ],
           [ 32. ,  40. , 508. ]], dtype=float32)
    """
    stream = device.as_stream(stream)
    q = device.as_input("q", q, dtypes="int8", ndim=(1, 2, 3, 4), stream=stream)
    scales = device.as_input("scales", scales, dtypes="float32", ndim=1, stream=stream)
    if scales.shape[0] not in (1, q.shape[0]):
        raise ValueError(f"scales must have 1 element or {q.shape[0]}, the channels of q, had {scales.shape[0]}")
    if zeros is not None:
        zeros = device.as_input("zeros", zeros, dtypes="int8", ndim=1, shape=scales.shape, stream=stream)
    apart = {"q": q, "scales": scales, "zeros": zeros}
    out = device.as_output("out", out, shape=q.shape, dtype="float32", apart=apart, stream=stream)
    if not out.size:
        return out
    zeros = no_zero() if zeros is None else zeros
    inner = q.size // q.shape[0] if scales.size > 1 else q.size
    flat, result = q.reshape(-1), out.reshape(-1)
    wide = (scales.size == 1 or inner % 4 == 0) and device.address(q) % 4 == 0 and device.address(out) % 16 == 0
    if wide:
        words = flat[: flat.size // 4 * 4].view(np.uint32)
        grid = blocks(words.size + flat.size % 4, BLOCK)
        word_kernel[grid, BLOCK, stream](flat, words, scales, zeros, result, inner)
    else:
        element_kernel[blocks(flat.size, BLOCK), BLOCK, stream](flat, scales, zeros, result, inner)
    return out


# ------------------------------------------------------------------------------------------ the scales


def calibrate(x, how="range", bits=8, affine=False, per_channel=False, percentile=99.9, *, stream=0):
    """Scales and zero points with which to quantise numbers like these.

    Args:
        x: float32 with one to four dimensions, in C order, none of them 0, and finite. The first one is that of the
            channels.
        how: "range" to have all of x inside; "percentile" to have that share of it inside; "error" for the range with
            the least mean squared error, of hundredths of the whole one.
        bits: from 2 to 8.
        affine: True for a zero point, so that the range begins and ends where x does; False for a range that is
            symmetric about 0, and no zero point.
        per_channel: True for a scale for each channel, False for one.
        percentile: from 50 to 100, for how="percentile".
        stream: the stream to work on.

    Returns (scales, zeros): NumPy arrays of float32 and int8, of shape (1,) or (channels,); zeros is None if affine is
    False. 0 is always within the range. It waits for the work to be done. Percentiles and errors are those of a
    histogram with 4096 bins.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: Krishnamoorthi, Quantizing deep convolutional networks, 2018, sections 2 and 3; Migacz, 8-bit inference with
    TensorRT, GTC 2017, for ranges that cut off.

    >>> [part.tolist() for part in calibrate(np.float32([-1, 0, 3.25]), affine=True, bits=4)]
    [[0.28333333134651184], [-4]]
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", ndim=(1, 2, 3, 4), stream=stream)
    if not x.size:
        raise ValueError(f"x must have at least one element, had shape {x.shape}")
    if not isinstance(how, str) or how not in WAYS:
        raise ValueError(f"how must be one of {', '.join(WAYS)}, was {how!r}")
    bits, affine = as_integer("bits", bits, 2, 8), as_flag("affine", affine)
    per_channel = as_flag("per_channel", per_channel)
    percentile = as_number("percentile", percentile, 50, 100, dtype=np.float64)
    rows = x.reshape(x.shape[0] if per_channel else 1, -1)
    lows, highs = ends_of(rows, stream)
    if not (np.isfinite(lows).all() and np.isfinite(highs).all()):
        raise ValueError("x must be finite, had an element that is not")
    if how != "range":
        ends = [narrowed(rows[i], lows[i], highs[i], how, bits, affine, percentile, stream) for i in range(len(lows))]
        lows, highs = np.array(ends).T
    return numbers_of(lows, highs, bits, affine)


def ends_of(rows: typing.Any, stream: typing.Any) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest element of each row, as float64."""
    low, high = (device.to_host(over_axes.planned(rows, 1, op, stream=stream)) for op in ("min", "max"))
    return low.astype(np.float64), high.astype(np.float64)


def numbers_of(lows: typing.Any, highs: typing.Any, bits: int, affine: bool) -> tuple:
    """The scales and zero points for ranges from ``lows`` to ``highs``, each made wide enough for 0."""
    least, most = limits(bits)
    lows, highs = np.minimum(lows, 0), np.maximum(highs, 0)
    width = (highs - lows) / (most - least) if affine else np.maximum(-lows, highs) / most
    # Of numbers that are all 0, or nearly, any scale is right: one that float32 has.
    scales = np.where(width >= np.finfo(np.float32).tiny, width, 1).astype(np.float32)
    if not affine:
        return scales, None
    return scales, np.clip(np.rint(least - lows / scales.astype(np.float64)), least, most).astype(np.int8)


def narrowed(row: typing.Any, low: float, high: float, how: str, bits: int, affine: bool, percentile, stream) -> tuple:
    """A narrower range for the elements of a row, from its histogram."""
    if low == high:
        return low, high
    exponent = math.frexp(max(-low, high))[1]
    if abs(exponent) > FAR:
        near = device.to_device(np.ldexp(device.to_host(row), -exponent), stream=stream)
        ends = narrowed(near, *np.ldexp([low, high], -exponent), how, bits, affine, percentile, stream)
        return tuple(np.ldexp(ends, exponent))
    low, high = (min(low, 0), max(high, 0)) if affine else (-max(-low, high), max(-low, high))
    counts = device.to_host(histogram.wide_bytes(row.reshape(-1), BINS, (low, high), stream=stream))
    edges = np.linspace(low, high, BINS + 1)
    if how == "error":
        centres = (edges[1:] + edges[:-1]) / 2
        shares = np.arange(1, TRIES + 1) / TRIES
        errors = [squared_error(centres, counts, low * share, high * share, bits, affine) for share in shares]
        best = shares[int(np.argmin(errors))]
        return low * best, high * best
    total = int(counts.sum())
    # So many may lie outside, or beyond each end. A share of 0.999 is no number, and no element may hang on that.
    out = int((1 - percentile / 100) * total / (1 + affine) + 1e-6)
    if affine:
        first, last = (int(np.searchsorted(np.cumsum(part), out, side="right")) for part in (counts, counts[::-1]))
        return edges[first], edges[BINS - last]
    inside = np.cumsum((counts + counts[::-1])[BINS // 2 :])
    end = edges[BINS // 2 + 1 + int(np.searchsorted(inside, total - out))]
    return -end, end


def squared_error(values: np.ndarray, counts: np.ndarray, low: float, high: float, bits: int, affine: bool) -> float:
    """The sum of squared errors of values, each so often, if the range is from ``low`` to ``high``."""
    scales, zeros = numbers_of(np.array([low]), np.array([high]), bits, affine)
    zero, scale = 0 if zeros is None else float(zeros[0]), float(scales[0])
    steps = np.clip(np.rint(values / scale) + zero, *limits(bits))
    return float(counts @ (values - (steps - zero) * scale) ** 2)
