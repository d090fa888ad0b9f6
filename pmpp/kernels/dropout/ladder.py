"""Dropout: some elements are set to 0 at random, and the others are scaled so that the mean stays.

Chapter: notebooks/80_random_numbers.ipynb.  PMPP 4e ch. 6.

An element is read once and written once, 8 bytes. On the way back the very same elements are 0. What decides is a
random number that depends on a seed and an index alone, so it need not be kept: it is drawn again.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.random import drawn, four_each, reference_bits
from pmpp.kernels.random.generator import philox, unit
from pmpp.kernels.random.ladder import Sequence, four_each_kernel, one_of, word_of
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

BLOCK = 256  # threads a block
f0 = np.float32(0)


def reference(x: np.ndarray, p: float = 0.5, seed: int = 0, offset: int = 0) -> np.ndarray:
    """``x / (1 - p)`` where the number of an element is at least p, else 0, in float64."""
    number = (reference_bits(x.size, seed, offset).reshape(x.shape) >> 8) * 2.0**-24
    return np.where(number >= np.float32(p), x.astype(np.float64) / (1 - p), 0.0)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, p, seed, offset)``."""
    rng = np.random.default_rng(80) if rng is None else rng

    def x(shape: int | tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    made = {f"n = {n}": (x(n), 0.5, 1, 0) for n in (0, 1, 3, 4, BLOCK, 4 * BLOCK - 1, 4 * BLOCK, 4 * BLOCK + 1)}
    made["an image"] = x((3, 5, 7)), 0.2, 2**64 - 1, 0
    made |= {f"from {offset}": (x(70), 0.3, 5, offset) for offset in (1, 2, 8, 2**34 - 3)}
    made["nothing is dropped"] = x(70), 0.0, 2, 0
    made["nearly all is dropped"] = x(70), 0.99, 2, 0
    made["a third"] = x(1000), 1 / 3, 3, 0
    odd = np.float32([np.nan, np.inf, -np.inf, -0.0, 1e38, 1e-45] * 5)
    made["not finite"] = odd, 0.4, 4, 0
    return made


def tolerance(x: np.ndarray, p: float = 0.5, seed: int = 0, offset: int = 0) -> np.ndarray:
    """How far from the reference is right: the scale is rounded, and the product. What is dropped is exactly 0."""
    exact = np.abs(reference(x, p, seed, offset))
    return 3 * 2.0**-24 * np.where(np.isfinite(exact), exact, 0.0) + np.where(exact > 0, 2.0**-149, 0.0)


def cost(n: int) -> Cost:
    """For ``n`` elements: each is read and written once, and there is a product."""
    return Cost(flops=n, bytes=8 * n)


def arguments(x, p=0.5, seed=0, offset=0, *, out=None, stream=0) -> Problem:
    """Set elements to 0, each with the same probability, and scale the others by ``1 / (1 - p)``.

    Args:
        x: an array of any shape, float32, contiguous.
        p: the probability with which an element becomes 0, from 0 to less than 1. It is compared as a float32 with
            multiples of 2^-24, so near 1 it is coarse: at 0.9999 the mean is off by 0.02 %, at 0.99999 by 0.1 %.
        seed, offset: what decides. Element i is kept where ``uniform(n, seed=seed, offset=offset)[i] >= p``: see
            `pmpp.kernels.random`. Another layer, and another step, needs other numbers: go on with offset + n.
        out: a device array like ``x``, or None to allocate one. It may be ``x``, and is otherwise apart from ``x`` in
            memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The same call with a gradient in place of ``x`` is the way
    back. A dropped element is 0 whatever it was, NaN included; PyTorch multiplies it by 0, which leaves NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: N. Srivastava and others, Dropout: a simple way to prevent neural networks from overfitting (2014).

    >>> from pmpp.kernels import dropout
    >>> dropout.vectorised(np.ones(6, np.float32), 0.5, 3).copy_to_host()
    array([2., 0., 2., 2., 0., 2.], dtype=float32)
    """
    stream = device.as_stream(stream)
    share = float(as_number("p", p, 0, dtype=np.float64))
    if share >= 1 or np.float32(share) == 1:
        raise ValueError(f"p must be from 0 to less than 1, was {p}")
    seed, offset = as_integer("seed", seed, 0, 2**64 - 1), as_integer("offset", offset, 0, 2**63 - 1)
    x = device.as_input("x", x, dtypes=np.float32, stream=stream)
    out = device.as_output("out", out, shape=x.shape, dtype=np.float32, apart={"x": x}, may_be=("x",), stream=stream)
    flat_x, flat = x.reshape(-1), out.reshape(-1)
    skipped = offset % 4
    aligned = skipped == 0 and flat.size and device.address(flat) % 16 == 0 and device.address(flat_x) % 16 == 0
    return Problem(
        out,
        stream=stream,
        x=flat_x,
        out=flat,
        seed=seed,
        offset=offset,
        sequence=Sequence(np.uint64(seed), np.uint64(offset // 4), np.int64(skipped)),
        drop=Drop(np.float32(share), np.float32(1 / (1 - share))),
        counters=blocks(flat.size + skipped, 4),
        whole=flat.size // 4 * 4 if aligned else 0,
    )


class Drop(typing.NamedTuple):
    """What is dropped, and what is done to the rest."""

    p: np.float32
    scale: np.float32


# ---------------------------------------------------------------------------------------------------- a mask that stays


@cuda.jit
def mask_kernel(numbers, p, mask):
    i = cuda.grid(1)
    if i < mask.size:
        mask[i] = numbers[i] >= p


@cuda.jit
def apply_kernel(x, mask, scale, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = scale * x[i] if mask[i] else f0


@rung(mask_kernel, apply_kernel, four_each_kernel)
def stored_mask(p):
    """Numbers are drawn, compared and kept as a mask of bytes, and the mask is applied.

    Leaves: three kernels and 18 bytes an element where 8 would do; and a mask that must be kept for the way back.
    """
    n, grid = p.x.size, blocks(p.x.size, BLOCK)
    mask = device.empty(n, np.bool_, stream=p.stream)
    numbers = drawn((n,), "uniform", p.seed, p.offset, 1, 0, None, p.stream)
    mask_kernel[grid, BLOCK, p.stream](four_each.run(numbers), p.drop.p, mask)
    apply_kernel[grid, BLOCK, p.stream](p.x, mask, p.drop.scale, p.out)


# ---------------------------------------------------------------------------------------------------------- drawn again


@cuda.jit(device=True)
def kept(x, bits, drop):
    """An element after dropout, by the 32 random bits that belong to it."""
    return drop.scale * x if unit(bits) >= drop.p else f0


@cuda.jit
def redrawn_kernel(x, key, offset, drop, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = kept(x[i], word_of(key, np.uint64(offset + np.uint64(i))), drop)


@rung(redrawn_kernel)
def redrawn(p):
    """One kernel draws the number of an element and applies it. The way back draws it again: nothing is kept.

    Source: J. Salmon and others, Parallel random numbers: as easy as 1, 2, 3 (SC11).

    Leaves: each thread computes four numbers and uses one.
    """
    redrawn_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.sequence.key, np.uint64(p.offset), p.drop, p.out)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit
def vectorised_kernel(x, sequence, drop, out, whole):
    thread = np.int64(cuda.grid(1))
    i = 4 * thread - sequence.skipped
    if i < out.size:
        words = philox(np.uint64(sequence.counter + np.uint64(thread)), np.uint64(0), sequence.key)
        if i + 4 <= whole:
            a, b, c, d = load128(x, i)
            new = kept(a, words[0], drop), kept(b, words[1], drop), kept(c, words[2], drop), kept(d, words[3], drop)
            store128(out, i, new)
        else:
            for k in range(4):
                if i + k >= 0 and i + k < out.size:
                    out[i + k] = kept(x[i + k], one_of(words, k), drop)


@rung(vectorised_kernel)
def vectorised(p):
    """The four numbers of a counter are for the four elements of a load of 128 bits.

    Where the offset is no multiple of four, or an array begins between multiples of 16 bytes, elements are moved one by
    one.
    """
    grid = blocks(p.counters, BLOCK)
    vectorised_kernel[grid, BLOCK, p.stream](p.x, p.sequence, p.drop, p.out, p.whole)


LADDER = (stored_mask, redrawn, vectorised)
