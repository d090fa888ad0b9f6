"""Quantisation: float32 numbers as whole numbers of at most 8 bits, by a scale and a zero point.

Chapter: notebooks/77_quantisation.ipynb.  PMPP 5e ch. 20.

An element x becomes q = round(x / scale) + zero, and stands for (q - zero) scale. A scale belongs to a whole tensor, or
to a *channel*, all that has one first index. Each element is read once and written once, 4 bytes and 1: memory is the
bound. So the ladder is about stores of single bytes, and about bytes in flight.

There are two kinds. *Symmetric*: zero is 0, and 0.0 becomes 0. *Affine*: zero is another whole number, so that numbers
which are all positive use all of the whole numbers, and 0.0 still is one of them.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128

BLOCK = 256  # threads a block
EACH = 16  # elements of a thread: 64 bytes
RESULT = np.int8  # the dtype of what the rungs return


# --------------------------------------------------------------------------------------------------------- definition


def limits(bits: int) -> tuple[int, int]:
    """The least and the largest whole number of so many bits, in two's complement.

    >>> limits(8), limits(4)
    ((-128, 127), (-8, 7))
    """
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def reference(x: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None, bits: int = 8) -> np.ndarray:
    """The definition: the quotient in float32, to the nearest whole number, of two the even one; then what fits."""
    shape = (-1, *(1,) * (x.ndim - 1))
    with np.errstate(all="ignore"):
        quotients = np.nan_to_num(x / scales.reshape(shape), nan=0.0, posinf=np.inf, neginf=-np.inf)
    zeros = 0 if zeros is None else zeros.reshape(shape).astype(np.float64)
    return np.clip(np.rint(quotients.astype(np.float64)) + zeros, *limits(bits)).astype(np.int8)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, scales, zeros, bits)``."""
    rng = np.random.default_rng(8) if rng is None else rng

    def case(shape: tuple[int, ...], per_channel: bool = False, affine: bool = False, bits: int = 8) -> tuple:
        channels = shape[0] if per_channel else 1
        scales = rng.uniform(0.01, 0.1, channels).astype(np.float32)
        zeros = rng.integers(*limits(bits), channels, dtype=np.int8, endpoint=True) if affine else None
        return rng.standard_normal(shape, dtype=np.float32), scales, zeros, bits

    made = {"one": case((1,)), "empty": case((0,)), "no columns": case((3, 0), True)}
    made |= {"a block": case((BLOCK,)), "a block and one": case((BLOCK + 1,)), "all of a block": case((BLOCK * EACH,))}
    made |= {"all but one": case((BLOCK * EACH - 1,), affine=True), "all and one": case((BLOCK * EACH + 1,))}
    made |= {"short rows": case((70, 3), True), "channels": case((5, 48), True), "affine": case((5, 48), True, True)}
    made |= {"channels of images": case((3, 7, 9), True, True), "2 bits": case((200,), bits=2)}
    made |= {"4 bits, affine": case((6, 32), True, True, 4)}
    halves = np.arange(-300, 301, dtype=np.float32) / 2
    made["halves"] = halves, np.float32([1]), None, 8
    made["halves, affine"] = halves, np.float32([1]), np.int8([-77]), 8
    limit = np.finfo(np.float32)
    wild = np.float32([np.nan, np.inf, -np.inf, limit.max, -limit.max, limit.smallest_subnormal, -0.0, 1e30] * 8)
    made["wild"] = wild, np.float32([1e-3]), np.int8([5]), 8
    made["tiny scale"] = wild.reshape(2, -1), np.float32([limit.smallest_subnormal, 1e38]), None, 8
    return made


def cost(n: int) -> Cost:
    """A division and a rounding for each element; it is read as 4 bytes and written as 1."""
    return Cost(flops=2 * n, bytes=5 * n)


def tolerance(x: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None, bits: int = 8) -> float:
    """None: each step of the definition has one result."""
    return 0.0


def arguments(x, scales, zeros=None, bits=8, *, out=None, stream=0) -> Problem:
    """Quantise: q = round(x / scale) + zero, the nearest whole number, of two the even one, and at most what fits.

    Args:
        x: float32 with one to four dimensions, in C order. The first one is that of the channels.
        scales: float32 of shape (1,), for all of x, or (channels,). They are positive; that is not checked.
        zeros: int8 of the shape of scales, or None for 0. They fit into ``bits``; that is not checked either.
        bits: from 2 to 8: the whole numbers are from -2^(bits - 1) to 2^(bits - 1) - 1.
        out: an int8 device array of the shape of x, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The quotient is rounded to float32 first. An infinity
    becomes the least or the largest whole number, and NaN becomes zero.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ONNX operators, QuantizeLinear; Jacob et al., Quantization and training, CVPR 2018, section 2.1.

    >>> from pmpp.kernels.quantisation import ladder
    >>> ladder.vectorised(np.float32([-1, 0, 0.25, 0.75, 99]), np.float32([0.5]), np.int8([10]), 8).copy_to_host()
    array([  8,  10,  10,  12, 127], dtype=int8)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", ndim=(1, 2, 3, 4), stream=stream)
    scales = device.as_input("scales", scales, dtypes="float32", ndim=1, stream=stream)
    if scales.shape[0] not in (1, x.shape[0]):
        raise ValueError(f"scales must have 1 element or {x.shape[0]}, the channels of x, had {scales.shape[0]}")
    if zeros is not None:
        zeros = device.as_input("zeros", zeros, dtypes="int8", ndim=1, shape=scales.shape, stream=stream)
    low, high = limits(as_integer("bits", bits, 2, 8))
    apart = {"x": x, "scales": scales, "zeros": zeros}
    out = device.as_output("out", out, shape=x.shape, dtype="int8", apart=apart, stream=stream)
    inner = x.size // x.shape[0] if x.size and scales.size > 1 else x.size
    zeros = no_zero() if zeros is None else zeros
    return Problem(out, stream=stream, x=x, scales=scales, zeros=zeros, inner=inner, low=low, high=high)


@device.cached(1)
def no_zero() -> typing.Any:
    """The zero point of what is symmetric."""
    return device.to_device(np.zeros(1, np.int8))


# ------------------------------------------------------------------------------------------------------------ one each


@cuda.jit(device=True)
def whole(value, scale, zero, low, high):
    """The whole number of a value, as int32. The conversion rounds to even; infinities give the limits, NaN 0."""
    steps = cuda.libdevice.float2int_rn(cuda.libdevice.fdiv_rn(value, scale))
    steps = min(max(steps, np.int32(-512)), np.int32(512))  # so that the sum cannot overflow
    return min(max(np.int32(steps + zero), low), high)


@cuda.jit(device=True)
def zero_of(zeros, channel):
    return np.int32(zeros[channel if zeros.size > 1 else 0])


@cuda.jit
def thread_kernel(x, scales, zeros, out, inner, low, high):
    i = cuda.grid(1)
    if i < x.size:
        channel = i // inner
        out[i] = np.int8(whole(x[i], scales[channel], zero_of(zeros, channel), low, high))


def given(p: Problem) -> tuple:
    """What kernels are given, with x and the result as vectors."""
    return p.x.reshape(-1), p.scales, p.zeros, p.result.reshape(-1), p.inner, np.int32(p.low), np.int32(p.high)


@rung(thread_kernel)
def thread_per_element(p):
    """A thread for each element.

    Source: PMPP 4e section 2.3.

    Leaves: a thread asks for 4 bytes and waits. And a division of 64-bit indices tells it its channel.
    """
    thread_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](*given(p))


@cuda.jit
def strided_kernel(x, scales, zeros, out, inner, low, high):
    values = cuda.local.array(EACH, np.float32)
    first = np.int64(cuda.blockIdx.x) * (BLOCK * EACH) + cuda.threadIdx.x
    for j in range(EACH):  # all loads come first
        values[j] = x[min(first + j * BLOCK, x.size - 1)]
    channel = first // inner
    end = (channel + 1) * inner
    for j in range(EACH):
        i = first + j * BLOCK
        if i < x.size:
            while i >= end:
                channel, end = channel + 1, end + inner
            out[i] = np.int8(whole(values[j], scales[channel], zero_of(zeros, channel), low, high))


@rung(strided_kernel)
def strided(p):
    """A thread has sixteen elements, and asks for all of them before it computes. It divides once to find a channel.

    Source: PMPP 4e section 6.3, thread coarsening.

    Leaves: sixteen loads and sixteen stores a thread; a warp stores 32 bytes at a time, a quarter of a line.
    """
    strided_kernel[blocks(p.x.size, BLOCK * EACH), BLOCK, p.stream](*given(p))


# ---------------------------------------------------------------------------------------------------------- wide access


@cuda.jit(device=True)
def four_bytes(values, scale, zero, low, high):
    """Four values as the bytes of a word."""
    a, b = whole(values[0], scale, zero, low, high) & 255, whole(values[1], scale, zero, low, high) & 255
    c, d = whole(values[2], scale, zero, low, high) & 255, whole(values[3], scale, zero, low, high) & 255
    return np.uint32(a | b << 8 | c << 16 | d << 24)


@cuda.jit
def vector_kernel(x, scales, zeros, out, words, inner, low, high):
    vectors, far = x.size // 4, np.int64(BLOCK)
    first = np.int64(cuda.blockIdx.x) * (BLOCK * EACH // 4) + cuda.threadIdx.x
    if first + 3 * far < vectors:  # all loads come first
        a, b = load128(x, 4 * first), load128(x, 4 * (first + far))
        c, d = load128(x, 4 * (first + 2 * far)), load128(x, 4 * (first + 3 * far))
        i, j = 4 * first // inner, 4 * (first + far) // inner
        k, m = 4 * (first + 2 * far) // inner, 4 * (first + 3 * far) // inner
        words[first] = four_bytes(a, scales[i], zero_of(zeros, i), low, high)
        words[first + far] = four_bytes(b, scales[j], zero_of(zeros, j), low, high)
        words[first + 2 * far] = four_bytes(c, scales[k], zero_of(zeros, k), low, high)
        words[first + 3 * far] = four_bytes(d, scales[m], zero_of(zeros, m), low, high)
    else:  # the last block
        for v in range(first, vectors, far):
            i = 4 * v // inner
            words[v] = four_bytes(load128(x, 4 * v), scales[i], zero_of(zeros, i), low, high)
    if cuda.threadIdx.x < x.size % 4 and cuda.blockIdx.x == cuda.gridDim.x - 1:
        i = 4 * vectors + cuda.threadIdx.x  # the last few, of a tensor with one scale
        out[i] = np.int8(whole(x[i], scales[0], zero_of(zeros, 0), low, high))


def by_vectors(p: Problem) -> bool:
    """Whether four neighbours always have one scale, and begin where 128 bits can be loaded."""
    one_scale = p.scales.size == 1 or p.inner % 4 == 0
    return one_scale and device.address(p.x) % 16 == 0 and device.address(p.result) % 4 == 0


@rung(vector_kernel, strided_kernel)
def vectorised(p):
    """A load of 128 bits for four neighbours, four such loads at once, and a store of four bytes for each.

    A warp loads 512 bytes and stores 128 at a time. If the channels have another length than a multiple of four, this
    is the rung before.

    Source: PMPP 5e section 6.3.
    """
    if not by_vectors(p):
        strided.launch(p)
        return
    x, scales, zeros, out, *rest = given(p)
    words = out[: out.size // 4 * 4].view(np.uint32)
    vector_kernel[blocks(x.size, BLOCK * EACH), BLOCK, p.stream](x, scales, zeros, out, words, *rest)


LADDER = (thread_per_element, strided, vectorised)
