"""Random numbers: bits, uniform and normal numbers from counters, the same on every machine.

Chapter: notebooks/80_random_numbers.ipynb.  PMPP 4e ch. 6.

Nothing is read, and each number is written once, 4 bytes. Philox takes twenty multiplications of 32 bits for four of
them. Whether memory or arithmetic is the bound depends on how many of the four are used.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.random.generator import normals, philox, unit
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import store128

DTYPES = (np.float32, np.uint32)
DISTRIBUTIONS = {"uniform": np.dtype(np.float32), "normal": np.dtype(np.float32), "bits": np.dtype(np.uint32)}
BLOCK = 256  # threads a block
WORD = 0xFFFFFFFF


def _rounds(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 by Python's integers, as the paper has it."""
    c, (k0, k1) = counter, key
    for _ in range(10):
        (high0, low0), (high1, low1) = (divmod(m * x, 1 << 32) for m, x in ((0xD2511F53, c[0]), (0xCD9E8D57, c[2])))
        c = high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9 & WORD, k1 + 0xBB67AE85 & WORD
    return c


def reference_bits(n: int, seed: int, offset: int) -> np.ndarray:
    """Numbers ``offset`` to ``offset + n - 1`` of the sequence of a seed, one counter at a time."""
    first, last = offset // 4, (offset + n + 3) // 4
    words = [_rounds((c & WORD, c >> 32, 0, 0), (seed & WORD, seed >> 32)) for c in range(first, last)]
    return np.array(words, np.uint32).reshape(-1)[offset % 4 :][:n]


def reference(
    like: np.ndarray,
    distribution: str = "uniform",
    seed: int = 0,
    offset: int = 0,
    scale: float = 1.0,
    shift: float = 0.0,
) -> np.ndarray:
    """Bits, or numbers in float64; see `arguments`."""
    if distribution != "normal":
        bits = reference_bits(like.size, seed, offset).reshape(like.shape)
        return bits if distribution == "bits" else shift + scale * (bits >> 8) * 2.0**-24
    # A pair of numbers is made of a pair of bits, so begin and end with whole pairs.
    first = offset - offset % 2
    n = like.size + offset - first
    bits = (reference_bits(n + n % 2, seed, first) >> 8).astype(np.float64).reshape(-1, 2)
    root = np.sqrt(-2 * np.log((bits[:, 0] + 1) * 2.0**-24))
    quarter = np.floor((bits[:, 1] + 2**21) / 2**22)
    turn = 2 * np.pi * (bits[:, 1] * 2.0**-24 - quarter / 4)  # at most an eighth: the cosine of a quarter turn is 0
    c, s = np.cos(turn), np.sin(turn)
    quarter = quarter.astype(int) % 4
    pair = np.stack([np.choose(quarter, [c, -s, -c, s]), np.choose(quarter, [s, c, -s, -c])], axis=1)
    return shift + scale * (root[:, None] * pair).reshape(-1)[offset - first :][: like.size].reshape(like.shape)


def inputs() -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(like, distribution, seed, offset)`` and perhaps a scale and a shift."""

    def like(shape: int | tuple[int, ...], distribution: str = "uniform") -> np.ndarray:
        return np.zeros(shape, DISTRIBUTIONS[distribution])

    made: dict[str, tuple] = {}
    for distribution in DISTRIBUTIONS:
        for n in (0, 1, 5, 4 * BLOCK):
            made[f"{distribution}, n = {n}"] = like(n, distribution), distribution, 42, 0
        made[f"{distribution}, an image"] = like((2, 3, 7), distribution), distribution, 2**64 - 1, 0
        for offset in (1, 2, 7, 2**34 - 5, 2**63 - 70):
            made[f"{distribution}, from {offset}"] = like(67, distribution), distribution, 2**33 + 5, offset
    made["uniform, a block and one more"] = like(4 * BLOCK + 1), "uniform", 7, 4
    made["uniform, from -2 to 2"] = like(70), "uniform", 7, 0, 4.0, -2.0
    made["normal, scaled"] = like(70, "normal"), "normal", 7, 3, 0.01, 5.0
    return made


def tolerance(
    like: np.ndarray,
    distribution: str = "uniform",
    seed: int = 0,
    offset: int = 0,
    scale: float = 1.0,
    shift: float = 0.0,
) -> typing.Any:
    """How far from the reference is right.

    Bits, and uniform numbers from 0 to 1, are exact. Normal numbers are right to 2 ulp. What is scaled and shifted
    is rounded once more, and the constants are rounded to float32: 3 half-ulps of the terms.
    """
    if distribution == "bits" or (distribution == "uniform" and (scale, shift) == (1, 0)):
        return 0.0
    exact = reference(like, distribution, seed, offset)
    allowed = 0.0 if distribution == "uniform" else 2 * np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    if (scale, shift) != (1, 0):
        allowed = abs(scale) * (allowed + 3 * 2.0**-24 * np.abs(exact)) + 2 * 2.0**-24 * abs(shift)
    return allowed


def cost(n: int) -> Cost:
    """For ``n`` numbers of 32 bits: each is written once. Philox multiplies integers, which are no FLOP."""
    return Cost(flops=0, bytes=4 * n)


def arguments(like, distribution="uniform", seed=0, offset=0, scale=1.0, shift=0.0, *, out=None, stream=0) -> Problem:
    """Random numbers: ``shift + scale * number``. `bits`, `uniform` and `normal` take a shape instead of an array.

    Args:
        like: an array of any shape, whose shape the result has; its elements do not matter. uint32 for bits, float32
            for the others.
        distribution: "bits", all 32 of them; "uniform", from 0 to less than 1, multiples of 2^-24; or "normal", of mean
            0 and variance 1, at most 5.77 in size.
        seed: from 0 to 2^64 - 1. Every seed has a sequence of its own.
        offset: where in the sequence to begin, from 0 to 2^63 - 1. Element i is number ``offset + i``.
        scale, shift: what numbers are multiplied by, and what is added. For bits 1 and 0.
        out: a device array like ``like``, or None to allocate one. It may be ``like``, and is otherwise apart from
            ``like`` in memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. An element is a function of seed, offset and its index
    alone: the same bits on every backend and GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: J. Salmon and others, Parallel random numbers: as easy as 1, 2, 3 (SC11); its library Random123.

    >>> from pmpp.kernels import random
    >>> random.vectorised(np.zeros(3, np.float32), "uniform", 1).copy_to_host()
    array([0.89025915, 0.8946847 , 0.5857259 ], dtype=float32)
    """
    stream = device.as_stream(stream)
    if not isinstance(distribution, str) or distribution not in DISTRIBUTIONS:
        raise ValueError(f"distribution must be one of {', '.join(DISTRIBUTIONS)}, was {distribution!r}")
    distribution = str(distribution)
    dtype = DISTRIBUTIONS[distribution]
    if isinstance(like, np.ndarray):  # nobody reads it, so it need not travel
        if like.dtype != dtype:
            raise TypeError(f"like must be {dtype} with distribution={distribution!r}, was {like.dtype}")
        if not like.ndim:
            raise ValueError("like must have at least 1 dimension, had none")
        apart = {}
    else:
        like = device.as_input("like", like, dtypes=dtype, layout="any", stream=stream)
        apart = {"like": like}
    return drawn(like.shape, distribution, seed, offset, scale, shift, out, stream, apart)


def drawn(shape, distribution, seed, offset, scale, shift, out, stream, apart=None) -> Problem:
    """The problem for a shape, and everything but the shape checked."""
    seed, offset = as_integer("seed", seed, 0, 2**64 - 1), as_integer("offset", offset, 0, 2**63 - 1)
    scale, shift = as_number("scale", scale), as_number("shift", shift)
    if distribution == "bits" and (scale, shift) != (1, 0):
        raise ValueError(f"scale and shift must be 1 and 0 for bits, was scale={scale}, shift={shift}")
    out = device.as_output(
        "out", out, shape=shape, dtype=DISTRIBUTIONS[distribution], apart=apart or {}, may_be=("like",), stream=stream
    )
    flat = out.reshape(-1)
    skipped = offset % 4  # numbers of the first counter that come before ours
    aligned = skipped == 0 and flat.size and device.address(flat) % 16 == 0
    return Problem(
        out,
        stream=stream,
        out=flat,
        distribution=distribution,
        sequence=Sequence(np.uint64(seed), np.uint64(offset // 4), np.int64(skipped)),
        affine=Affine(scale, shift),
        counters=blocks(flat.size + skipped, 4),
        whole=flat.size // 4 * 4 if aligned else 0,  # elements that can be stored four at a time
    )


class Sequence(typing.NamedTuple):
    """Where numbers come from: a key, the first counter, and how many of its numbers are skipped."""

    key: np.uint64
    counter: np.uint64
    skipped: np.int64


class Affine(typing.NamedTuple):
    """What is done to a number: ``shift + scale * number``."""

    scale: np.float32
    shift: np.float32


# ------------------------------------------------------------------------------------------------------ from four words


@cuda.jit(device=True)
def as_bits(words, affine):
    return words


@cuda.jit(device=True)
def as_uniform(words, affine):
    return (
        cuda.fma(unit(words[0]), affine.scale, affine.shift),
        cuda.fma(unit(words[1]), affine.scale, affine.shift),
        cuda.fma(unit(words[2]), affine.scale, affine.shift),
        cuda.fma(unit(words[3]), affine.scale, affine.shift),
    )


@cuda.jit(device=True)
def as_normal(words, affine):
    a, b = normals(words[0], words[1])
    c, d = normals(words[2], words[3])
    return (
        cuda.fma(a, affine.scale, affine.shift),
        cuda.fma(b, affine.scale, affine.shift),
        cuda.fma(c, affine.scale, affine.shift),
        cuda.fma(d, affine.scale, affine.shift),
    )


NUMBERS = {"bits": as_bits, "uniform": as_uniform, "normal": as_normal}

# -------------------------------------------------------------------------------------------------- a counter a number


@cuda.jit(device=True)
def one_of(values, k):
    """Element k of four, which a register cannot be asked for by a number."""
    low = values[0] if k == 0 else values[1]
    high = values[2] if k == 2 else values[3]
    return low if k < 2 else high


@cuda.jit(device=True)
def word_of(key, place):
    """The 32 bits of number ``place`` in the sequence of a key; both are uint64."""
    return one_of(philox(place >> np.uint64(2), np.uint64(0), key), np.int64(place & np.uint64(3)))


@functools.cache
def one_each_kernel(distribution):
    """The kernel for a distribution; the function that makes its numbers is compiled into it."""
    numbers_of = NUMBERS[distribution]

    @cuda.jit
    def one_each(sequence, affine, out):
        i = np.int64(cuda.grid(1))
        if i < out.size:
            place = sequence.skipped + i
            words = philox(np.uint64(sequence.counter + np.uint64(place >> 2)), np.uint64(0), sequence.key)
            out[i] = one_of(numbers_of(words, affine), place & 3)

    return one_each


@rung(one_each_kernel)
def one_each(p):
    """A thread for each number computes the four of its counter, and keeps one.

    Leaves: four threads do the same work, and three quarters of it is thrown away.
    """
    kernel = one_each_kernel(p.distribution)
    kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](p.sequence, p.affine, p.out)


# -------------------------------------------------------------------------------------------------- a counter a thread


@functools.cache
def four_each_kernel(distribution):
    """The kernel for a distribution."""
    numbers_of = NUMBERS[distribution]

    @cuda.jit
    def four_each(sequence, affine, out):
        thread = np.int64(cuda.grid(1))
        i = 4 * thread - sequence.skipped
        if i < out.size:
            words = philox(np.uint64(sequence.counter + np.uint64(thread)), np.uint64(0), sequence.key)
            numbers = numbers_of(words, affine)
            for k in range(4):
                if i + k >= 0 and i + k < out.size:
                    out[i + k] = one_of(numbers, k)

    return four_each


@rung(four_each_kernel)
def four_each(p):
    """A thread for each counter: all four numbers are stored.

    Leaves: four stores, each with gaps of 12 bytes between its lanes: every sector is written to four times.
    """
    kernel = four_each_kernel(p.distribution)
    kernel[blocks(p.counters, BLOCK), BLOCK, p.stream](p.sequence, p.affine, p.out)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@functools.cache
def vectorised_kernel(distribution):
    """The kernel for a distribution."""
    numbers_of = NUMBERS[distribution]

    @cuda.jit
    def vectorised(sequence, affine, out, whole):
        thread = np.int64(cuda.grid(1))
        i = 4 * thread - sequence.skipped
        if i < out.size:
            words = philox(np.uint64(sequence.counter + np.uint64(thread)), np.uint64(0), sequence.key)
            numbers = numbers_of(words, affine)
            if i + 4 <= whole:
                store128(out, i, numbers)
            else:
                for k in range(4):
                    if i + k >= 0 and i + k < out.size:
                        out[i + k] = one_of(numbers, k)

    return vectorised


@rung(vectorised_kernel)
def vectorised(p):
    """The four numbers of a counter are one store of 128 bits.

    Where the offset is no multiple of four, or ``out`` begins between multiples of 16 bytes, each is stored by itself.
    """
    kernel = vectorised_kernel(p.distribution)
    kernel[blocks(p.counters, BLOCK), BLOCK, p.stream](p.sequence, p.affine, p.out, p.whole)


LADDER = (one_each, four_each, vectorised)
