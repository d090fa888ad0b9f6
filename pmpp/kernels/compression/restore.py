"""What a backward pass gets back: numbers of compressed words, and the sign of a number, which has a bit.

Chapter: notebooks/85_compressed_activations.ipynb. The gradient of ReLU asks one thing of its input: whether it was
positive. So a bit for each number is enough, and nothing is lost.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.compression.ladder import BITS, BLOCK, GROUP, words_of
from pmpp.kernels.random.plain import as_shape
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.vector import load128, store128

FOUR = {8: np.uint32, 4: np.uint16, 2: np.uint8}  # the number that four codes fill
VECTORS = 2  # of four numbers each, that a thread stores
EACH = 32  # words of signs that a warp makes: so many loads of a lane come before the first vote
f0, INFINITY, LARGEST = np.float32(0), np.float32(np.inf), np.finfo(np.float32).max

__all__ = ["decompress", "masked", "signs"]


# ------------------------------------------------------------------------------------------------- from codes to floats


@functools.cache
def four_kernel(bits):
    """The kernel for codes of so many bits. ``fours`` are the words as numbers of four codes each."""
    mask, several = np.int32(2**bits - 1), VECTORS * BLOCK

    @cuda.jit(device=True)
    def number(codes, k, low, step):
        x = cuda.fma(np.float32(np.int32(codes >> np.int32(k * bits)) & mask), step, low)
        return x if x != INFINITY else LARGEST  # the step is rounded up, so the last number may lie beyond the range

    @cuda.jit
    def four(fours, ranges, out, wide):
        begin = np.int64(cuda.blockIdx.x) * several
        first = begin + cuda.threadIdx.x
        codes = cuda.local.array(VECTORS, np.int32)
        if wide and 4 * (begin + several) <= out.size:
            for j in range(VECTORS):  # all loads come first
                codes[j] = np.int32(fours[first + j * BLOCK])
            for j in range(VECTORS):
                v, q = first + j * BLOCK, codes[j]
                low, step = ranges[2 * (v >> 6)], ranges[2 * (v >> 6) + 1]  # 64 vectors are a group
                a, b, c = number(q, 0, low, step), number(q, 1, low, step), number(q, 2, low, step)
                store128(out, 4 * v, (a, b, c, number(q, 3, low, step)))
        else:
            for v in range(first, begin + several, BLOCK):
                for i in range(4 * v, min(4 * v + 4, out.size)):
                    low, step = ranges[2 * (v >> 6)], ranges[2 * (v >> 6) + 1]
                    out[i] = number(np.int32(fours[v]), i & 3, low, step)

    return four


def decompress(words, shape, bits=8, *, out=None, stream=0):
    """The numbers that codes stand for: ``low + q step``, rounded once, and at most the largest float32.

    Args:
        words: what a rung of `pmpp.kernels.compression` returned for an array of that shape and for so many bits,
            uint32 of one dimension.
        shape: of the array, an integer or a tuple of them.
        bits: 8, 4 or 2, as they were given to the rung.
        out: a float32 device array of that shape, apart from words in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import compression
    >>> decompress(compression.compress(np.float32([3, 1, 0, 2]), 2, seed=7), (4,), 2).copy_to_host()
    array([3., 1., 0., 2.], dtype=float32)
    """
    stream, extents = device.as_stream(stream), as_shape(shape)
    if as_integer("bits", bits) not in BITS:
        raise ValueError(f"bits must be 8, 4 or 2, was {bits}")
    n, bits = math.prod(extents), int(bits)
    words = device.as_input("words", words, dtypes="uint32", ndim=1, stream=stream)
    if words.size != words_of(n, bits):
        raise ValueError(
            f"words must have {words_of(n, bits)} elements with shape={shape!r} and bits={bits}, had {words.size}"
        )
    out = device.as_output("out", out, shape=extents, dtype="float32", apart={"words": words}, stream=stream)
    if n:
        end = words.size - 2 * blocks(n, GROUP)
        fours, ranges, flat = words[:end].view(FOUR[bits]), words[end:].view(np.float32), out.reshape(-1)
        grid = blocks(n, 4 * VECTORS * BLOCK)
        four_kernel(bits)[grid, BLOCK, stream](fours, ranges, flat, device.address(flat) % 16 == 0)
    return out


# ------------------------------------------------------------------------------------------------------- a bit a number


@cuda.jit
def signs_kernel(x, words):
    values = cuda.local.array(EACH, np.float32)
    warp, lane = np.int64(cuda.grid(1)) // 32, cuda.laneid
    first = warp * (32 * EACH) + lane
    if (warp + 1) * (32 * EACH) <= x.size:
        for j in range(EACH):  # all loads come first
            values[j] = x[first + 32 * j]
    else:
        for j in range(EACH):
            values[j] = x[first + 32 * j] if first + 32 * j < x.size else f0
    own = np.uint32(0)
    for j in range(EACH):
        votes = np.uint32(cuda.ballot_sync(FULL_WARP, values[j] > f0))
        if lane == j:
            own = votes
    if warp * EACH + lane < words.size:
        words[warp * EACH + lane] = own


def signs(x, *, out=None, stream=0):
    """Which numbers are positive, a bit for each, by votes of warps.

    Args:
        x: float32 of any shape, in C order.
        out: a uint32 device array of shape ``(ceil(x.size / 32),)``, apart from x in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Element i is bit ``i % 32`` of word ``i // 32``. 0 and NaN
    are not positive.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: A. Jain and others, Gist: efficient data encoding for deep neural network training (ISCA 2018), section 3.

    >>> bin(signs(np.float32([1, -1, 0, 2])).copy_to_host()[0])
    '0b1001'
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", stream=stream)
    out = device.as_output("out", out, shape=(blocks(x.size, 32),), dtype="uint32", apart={"x": x}, stream=stream)
    if x.size:
        signs_kernel[blocks(x.size, EACH * BLOCK), BLOCK, stream](x.reshape(-1), out)
    return out


@cuda.jit(device=True)
def handed_on(values, bits):
    """Of four values those whose bit is set, and 0 for the others."""
    a, b, c, d = values
    a, b = a if bits & np.uint32(1) else f0, b if bits & np.uint32(2) else f0
    c, d = c if bits & np.uint32(4) else f0, d if bits & np.uint32(8) else f0
    return a, b, c, d


@cuda.jit
def masked_kernel(dy, words, dx, wide):
    begin = np.int64(cuda.blockIdx.x) * (VECTORS * BLOCK)
    v, far = begin + cuda.threadIdx.x, begin + cuda.threadIdx.x + BLOCK
    if wide and 4 * (begin + VECTORS * BLOCK) <= dy.size:
        first, second = load128(dy, 4 * v), load128(dy, 4 * far)
        shift = np.uint32(4 * (v & 7))
        lower, upper = np.uint32(words[v >> 3] >> shift), np.uint32(words[far >> 3] >> shift)
        store128(dx, 4 * v, handed_on(first, lower))
        store128(dx, 4 * far, handed_on(second, upper))
    else:
        for i in range(4 * begin + cuda.threadIdx.x, min(4 * (begin + VECTORS * BLOCK), dy.size), BLOCK):
            dx[i] = dy[i] if np.uint32(words[i >> 5] >> np.uint32(i & 31)) & np.uint32(1) else f0


def masked(dy, words, *, out=None, stream=0):
    """The gradient of ReLU: the elements of ``dy`` whose bit in ``words`` is set, and 0 for the others.

    Args:
        dy: float32 of any shape, in C order: the gradient of what ReLU returned.
        words: what `signs` returned for ReLU's input, uint32 of shape ``(ceil(dy.size / 32),)``.
        out: a float32 device array like ``dy``, or None to allocate one. It may be ``dy``, and is otherwise apart from
            both in memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> masked(np.float32([5, 6, 7, 8]), signs(np.float32([1, -1, 0, 2]))).copy_to_host()
    array([5., 0., 0., 8.], dtype=float32)
    """
    stream = device.as_stream(stream)
    dy = device.as_input("dy", dy, dtypes="float32", stream=stream)
    words = device.as_input("words", words, dtypes="uint32", ndim=1, shape=(blocks(dy.size, 32),), stream=stream)
    apart = {"dy": dy, "words": words}
    out = device.as_output("out", out, shape=dy.shape, dtype="float32", apart=apart, may_be=("dy",), stream=stream)
    if dy.size:
        wide = device.address(dy) % 16 == 0 and device.address(out) % 16 == 0
        masked_kernel[blocks(dy.size, 4 * VECTORS * BLOCK), BLOCK, stream](dy.reshape(-1), words, out.reshape(-1), wide)
    return out
