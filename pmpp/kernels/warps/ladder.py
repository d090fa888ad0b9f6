"""Warps: two recurrences side by side, one for even elements and one for odd ones.

Chapter: notebooks/08_warps.ipynb.  PMPP 4e ch. 4.

Each element is read once, goes through some rounds of one multiply-add, and is written once: 2 FLOP a round for 8
bytes. Few rounds leave memory as the bound, many arithmetic. Neighbours take different recurrences. Where a branch
chooses between them, a warp that has both kinds of elements executes both.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import check, device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

BLOCK = 256  # threads per block
EVEN, ODD = np.float32(0.5), np.float32(-0.25)  # powers of two: a product with them is exact, joined to a sum or not


def reference(x: np.ndarray, rounds: int) -> np.ndarray:
    """``value = factor * value + x`` from ``value = x`` on, with one factor for even and one for odd elements."""
    out = np.empty(x.size)
    for i in range(x.size):
        value = float(x[i])
        for _ in range(rounds):
            value = float(EVEN if i % 2 == 0 else ODD) * value + float(x[i])
        out[i] = value
    return np.where(np.abs(out) > np.finfo(np.float32).max, np.copysign(np.inf, out), out)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, int]]:
    """Small awkward inputs: a name, and ``(x, rounds)``."""
    rng = np.random.default_rng(8) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "a pair": 2}
    sizes |= {f"a warp {d:+}": 32 + d for d in (-1, 0, 1)} | {f"two warps {d:+}": 64 + d for d in (-1, 1)}
    sizes |= {f"a block {d:+}": BLOCK + d for d in (-1, 0, 1)} | {"several blocks": 3 * BLOCK + 130}
    sizes |= {f"a block of vectors {d:+}": 4 * BLOCK + d for d in (-1, 0, 1)}
    made = {name: (rng.standard_normal(n, dtype=np.float32), 5) for name, n in sizes.items()}
    made |= {f"{rounds} rounds": (rng.standard_normal(70, dtype=np.float32), rounds) for rounds in (0, 1, 15, 16, 49)}
    made["outliers"] = np.where(rng.random(100) < 0.1, 1e30, 1e-30).astype(np.float32), 20
    extremes = np.repeat(np.float32([0.0, -0.0, 1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan]), 2)
    made["non-finite"] = extremes, 3
    return made


def cost(n: int, rounds: int, itemsize: int = 4) -> Cost:
    """A multiply-add for each element and round; ``x`` read once, ``out`` written once."""
    return Cost(flops=2 * n * rounds, bytes=2 * n * itemsize)


def tolerance(x: np.ndarray, rounds: int) -> np.ndarray:
    """A round errs by at most 2^-24 of the value, which is at most 2 |x|, and halves the error so far, at least.

    So errors add up to less than 2^-22 |x|. The last terms allow for results without all digits, next to 0.
    """
    return 2.0**-22 * np.abs(x).astype(np.float64) + 2.0**-147


def arguments(x, rounds, *, out=None, stream=0) -> Problem:
    """Send each element through ``rounds`` rounds of its recurrence.

    Even elements (0, 2, ...) take ``value = value / 2 + x``, odd ones ``value = x - value / 4``, from ``value = x`` on.

    Args:
        x: a contiguous float32 vector of any length (n,).
        rounds: an integer from 0 to 2^31 - 1.
        out: a float32 device array of the same shape, or None to allocate one. It may be ``x``, and is otherwise apart
            from it in memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import warps
    >>> warps.by_data(np.float32([1, 1]), 2).copy_to_host()
    array([1.75  , 0.8125], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", ndim=1, stream=stream)
    rounds = check.as_integer("rounds", rounds, 0, 2**31 - 1)
    out = device.as_output("out", out, shape=x.shape, dtype=np.float32, apart={"x": x}, may_be=("x",), stream=stream)
    return Problem(out, stream=stream, x=x, rounds=rounds)


@cuda.jit
def by_lane_kernel(x, out, rounds):
    i = cuda.grid(1)
    if i < out.size:
        start = x[i]
        value, k = start, 0
        if i % 2 == 0:
            while k < rounds:
                value = EVEN * value + start
                k += 1
        else:
            while k < rounds:
                value = ODD * value + start
                k += 1
        out[i] = value


@rung(by_lane_kernel)
def by_lane(p):
    """A thread for each element, and a branch for each kind of element.

    Source: PMPP 4e section 4.5.

    Leaves: every warp has both kinds, so it goes both ways, with half of its lanes each time.
    """
    by_lane_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.result, p.rounds)


@cuda.jit
def by_data_kernel(x, out, rounds):
    i = cuda.grid(1)
    if i < out.size:
        factor = EVEN if i % 2 == 0 else ODD
        start = x[i]
        value, k = start, 0
        while k < rounds:
            value = factor * value + start
            k += 1
        out[i] = value


@rung(by_data_kernel)
def by_data(p):
    """The ways differ in a number alone, so each lane chooses the number, and all go the same way.

    Source: PMPP 4e section 4.5.

    Leaves: the factor is a third register that each multiply-add reads, where a constant is part of the instruction.
    """
    by_data_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.result, p.rounds)


@cuda.jit
def by_warp_kernel(x, out, rounds):
    half, thread = BLOCK // 2, cuda.threadIdx.x
    i = cuda.blockIdx.x * BLOCK + thread % half * 2 + thread // half
    if i < out.size:
        start = x[i]
        value, k = start, 0
        if thread < half:  # whole warps: their elements are even
            while k < rounds:
                value = EVEN * value + start
                k += 1
        else:
            while k < rounds:
                value = ODD * value + start
                k += 1
        out[i] = value


@rung(by_warp_kernel)
def by_warp(p):
    """Constants and a branch again, by warp: the first half of a block takes even elements, the second half odd ones.

    Source: PMPP 4e section 4.5.

    Leaves: lanes use every second element, so a request touches twice as many sectors; and each element needs a
    thread that finds its place.
    """
    by_warp_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.result, p.rounds)


@cuda.jit(device=True)
def one_element(start, i, rounds):
    """A single element, as in `by_data`: i is its index."""
    factor = EVEN if i % 2 == 0 else ODD
    value, k = start, 0
    while k < rounds:
        value = factor * value + start
        k += 1
    return value


@cuda.jit(device=True)
def one_round(v, x):
    """Of an even element, an odd one, an even and an odd one: four multiply-adds that do not wait for each other."""
    return EVEN * v[0] + x[0], ODD * v[1] + x[1], EVEN * v[2] + x[2], ODD * v[3] + x[3]


@cuda.jit(device=True)
def in_pairs(v, head):
    """Four neighbours with an even element first, or back: if an odd number of elements comes before the vectors, the
    first of each vector is odd. That is so for all threads or for none, and no warp diverges."""
    if head % 2 == 0:
        return v
    return v[1], v[0], v[3], v[2]


@cuda.jit
def four_each_kernel(x, out, rounds, head, tail):
    thread = cuda.grid(1)
    i = head + 4 * thread
    if i < tail:
        start = in_pairs(load128(x, i), head)
        values, k = start, 0
        while k < rounds:
            values = one_round(values, start)
            k += 1
        store128(out, i, in_pairs(values, head))
    # What lies before and after the vectors, one element a thread.
    j = thread if thread < head else tail + thread - head
    if j < out.size:
        out[j] = one_element(x[j], j, rounds)


def grid_and_span(p) -> tuple[int, int, int]:
    """Blocks, and the elements [head:tail] that are whole vectors in both; if they lie differently, there are none."""
    head, tail, _ = vector_span(p.x, p.result)
    return blocks(max((tail - head) // 4, head + p.x.size - tail), BLOCK), head, tail


@rung(four_each_kernel)
def four_each(p):
    """A thread takes four neighbours, two of each kind: there is nothing left to choose, and one index serves all four.

    A vector is loaded and stored in one piece, so that sectors are whole again. Each thread takes only one element if
    the addresses of ``x`` and ``out`` differ modulo 16 bytes.

    Source: PMPP 4e section 6.3.

    Leaves: the end of the loop is still tested once for a few multiply-adds.
    """
    grid, head, tail = grid_and_span(p)
    four_each_kernel[grid, BLOCK, p.stream](p.x, p.result, p.rounds, head, tail)


UNROLLED = 16  # rounds in one turn of the loop; more would leave more of them to the loop for the rest


@cuda.jit
def unrolled_kernel(x, out, rounds, head, tail):
    thread = cuda.grid(1)
    i = head + 4 * thread
    if i < tail:
        start = in_pairs(load128(x, i), head)
        values, k = start, 0
        while k + UNROLLED <= rounds:
            for _ in range(UNROLLED):  # a constant: the compiler writes it out, without a count or a test
                values = one_round(values, start)
            k += UNROLLED
        while k < rounds:
            values = one_round(values, start)
            k += 1
        store128(out, i, in_pairs(values, head))
    j = thread if thread < head else tail + thread - head
    if j < out.size:
        out[j] = one_element(x[j], j, rounds)


@rung(unrolled_kernel)
def unrolled(p):
    """Sixteen rounds for each time that the loop is counted and tested.

    Source: PMPP 5e section 6.6.
    """
    grid, head, tail = grid_and_span(p)
    unrolled_kernel[grid, BLOCK, p.stream](p.x, p.result, p.rounds, head, tail)


LADDER = (by_lane, by_data, by_warp, four_each, unrolled)
