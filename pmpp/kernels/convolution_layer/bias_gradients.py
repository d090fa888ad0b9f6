"""Gradient of a convolution layer with respect to its bias: for each filter the sum of dy over images and pixels.

Each element of dy is read once, so memory is the bound. A block sums up some images of one filter, and if that makes
several parts, a second kernel adds them up in a fixed order. Taught in notebooks/76_convolution_gradients.ipynb.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks
from pmpp.kernels.convolution_layer.definition import MOST, workspace
from pmpp.runtime import device
from pmpp.runtime.rung import Problem, rung
from pmpp.runtime.vector import load128

BLOCK = 256
TOGETHER = 8  # blocks on a multiprocessor
LEAST = 4 * BLOCK  # elements in a part of a sum: a vector for each thread


def arguments(dy, *, out=None, stream=0) -> Problem:
    """Compute the gradient of a loss with respect to a convolution layer's bias from that of its output.

    Args:
        dy: the gradient with respect to the output, of shape (N, K, P, Q), float32, contiguous, of at most 2^31 - 1
            elements.
        out: a float32 device array of shape (K,), apart from dy in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It is overwritten, not added to; without images it is 0.
    Two runs give the same bits. Raises TypeError or ValueError that names the argument at fault, what it was and what
    is accepted.

    >>> from pmpp.kernels import convolution_layer
    >>> convolution_layer.bias_gradient(np.ones((2, 3, 4, 5), np.float32)).copy_to_host()
    array([40., 40., 40.], dtype=float32)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes=np.float32, ndim=4, stream=stream)
    if math.prod(dy.shape) > MOST:
        raise ValueError(f"dy must have at most 2^31 - 1 elements, had shape {dy.shape}: take fewer images a call")
    out = device.as_output("out", out, shape=dy.shape[1:2], dtype=np.float32, apart={"dy": dy}, stream=stream)
    return Problem(out, stream=stream, dy=dy)


class Sums(typing.NamedTuple):
    """What the kernel is told: uint32."""

    filters: int
    pixels: int
    elements: int  # of a filter: N P Q
    span: int  # elements of a part, a multiple of four


@cuda.jit
def sums_kernel(dy, target, sums, wide):
    """A block adds up a part of a filter's elements; target has a row for each part. ``wide``: in vectors of four."""
    partial = cuda.shared.array(32, np.float32)
    k, part = np.uint32(cuda.blockIdx.x % sums.filters), np.uint32(cuda.blockIdx.x // sums.filters)
    each = np.uint32(4) if wide else np.uint32(1)
    i = np.uint32(part * sums.span + cuda.threadIdx.x * each)
    end = min(np.uint32(part * sums.span + sums.span), sums.elements)
    total = np.float32(0)
    while i < end:
        n = np.uint32(i // sums.pixels)
        at = np.uint32((n * sums.filters + k) * sums.pixels + (i - n * sums.pixels))
        if wide:
            a, b, c, d = load128(dy, at)
            total += (a + b) + (c + d)
        else:
            total += dy[at]
        i = np.uint32(i + BLOCK * each)
    total = block_sum(total, partial)
    if cuda.threadIdx.x == 0:
        target[np.uint32(part * sums.filters + k)] = total


@cuda.jit
def parts_kernel(target, out, parts):
    k = cuda.grid(1)
    if k < out.size:
        total = np.float32(0)
        for part in range(parts):
            total += target[part * out.size + k]
        out[k] = total


@rung(sums_kernel, parts_kernel)
def bias_gradient(p):
    """A block for each filter, or several that share its images; vectors of four where P Q is a multiple of four.

    Source: as `pmpp.kernels.reduction`.
    """
    n, filters, *extents = p.dy.shape
    pixels = math.prod(extents)
    elements, fit = n * pixels, TOGETHER * device.limits()["multiprocessors"]
    parts = max(1, min(fit // filters, elements // LEAST))
    span = 4 * blocks(elements, 4 * parts)
    target = p.result if parts == 1 else workspace("the parts of the sums", (parts * filters,), stream=p.stream)
    wide = pixels % 4 == 0 and device.address(p.dy) % 16 == 0
    sums = Sums(*map(np.uint32, (filters, max(1, pixels), elements, span)))
    sums_kernel[filters * parts, BLOCK, p.stream](p.dy.reshape(-1), target, sums, wide)
    if parts > 1:
        parts_kernel[blocks(filters, BLOCK), BLOCK, p.stream](target, p.result, parts)
