"""Compression: groups of float32 numbers in 8, 4 or 2 bits each, rounded up or down at random.

Chapter: notebooks/85_compressed_activations.ipynb.  PMPP 4e ch. 16.

A group of 256 neighbours has a least value and a step. Each number becomes a code: how many steps it lies above the
least value. A number between two codes becomes the upper one with a probability that is its distance from the lower
one, in steps. So its expectation stays what it was. Each number is read once, 4 bytes, and written once, 1 byte or
less: memory is the bound, as long as the random numbers cost less than the bytes do.
"""

from __future__ import annotations

import functools

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.random import reference_bits
from pmpp.kernels.random.generator import philox
from pmpp.kernels.random.ladder import one_of
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128

GROUP = 256  # neighbours that share a least value and a step
BITS = (8, 4, 2)
RESULT = np.uint32  # the dtype of what the rungs return
BLOCK = 256  # threads a block
PLACES = 15  # bits of a place that are behind the point: a number of steps is known to 2^-15
SMALL = np.float32(2.0**-100)  # a range below it counts as none, so that no quotient overflows
EIGHT = {8: np.uint64, 4: np.uint32, 2: np.uint16}  # the number that eight codes fill
f0, f1, i0, u0 = np.float32(0), np.float32(1), np.int32(0), np.uint32(0)
WHOLE = np.float32(2.0**23)  # what is added to it is rounded to a whole number, which its lowest 23 bits are then
MIDDLE = np.uint32(0x80008000)  # half a step, twice
INFINITY, NAN = np.float32(np.inf), np.float32(np.nan)


# --------------------------------------------------------------------------------------------------------- definition


def words_of(n: int, bits: int) -> int:
    """How many words of 32 bits ``n`` numbers become: whole groups, with a least value and a step each.

    >>> words_of(256, 8), words_of(257, 2)
    (66, 36)
    """
    return blocks(n, GROUP) * (GROUP * bits // 32 + 2)


def reference(x: np.ndarray, bits: int = 8, seed: int | None = None, offset: int = 0) -> np.ndarray:
    """The definition, in float32 where a rounding counts; see `arguments`."""
    levels, groups = 2**bits - 1, blocks(x.size, GROUP)
    filled = np.full(groups * GROUP, x.flat[-1] if x.size else 0, np.float32)
    filled[: x.size] = x.reshape(-1)
    numbers = filled.reshape(groups, GROUP)
    with np.errstate(all="ignore"):
        low = numbers.min(axis=1, keepdims=True) + f0  # 0.0 for -0.0
        span = numbers.max(axis=1, keepdims=True) - low
        known = np.isfinite(span)
        low, step = np.where(known, low, NAN), np.where(span >= SMALL, span * (np.float32(1) / np.float32(levels)), f0)
        per_step = np.where(known & (span >= SMALL), last_place(levels) / span, f0)
        places = np.rint((numbers - low).astype(np.float64) * per_step)  # a product that float64 has exactly
    halves = random_halves(places.size, seed, offset).reshape(places.shape)
    codes = (2 * np.where(known, places, 0).astype(np.int64) + halves) >> 16
    codes = np.where(known & (np.arange(codes.size).reshape(codes.shape) < x.size), codes, 0)
    words = (codes.reshape(-1, 32 // bits) << np.arange(0, 32, bits)).sum(axis=1).astype(np.uint32)
    ranges = np.concatenate([low, np.where(known, step, NAN)], axis=1).astype(np.float32)
    return np.concatenate([words, ranges.view(np.uint32).reshape(-1)])


def last_place(levels: int) -> np.float32:
    """The place of the last code in 2^-15 steps, or rather the float32 below it.

    So a quotient by the range, rounded to the nearest, puts no number of the range beyond the last code.

    >>> float(last_place(3)), 3 << PLACES
    (98303.9921875, 98304)
    """
    return np.nextafter(np.float32(levels << PLACES), f0)


def random_halves(n: int, seed: int | None, offset: int) -> np.ndarray:
    """Sixteen random bits for each of ``n`` elements: the lower half of a number of 32 bits comes first.

    They are a number of 2^-16 steps. Without a seed it is half a step, which makes the nearest code of any place.
    """
    if seed is None:
        return np.full(n, 1 << 15)
    words = reference_bits(n // 2, seed, offset)
    return np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1).astype(np.int64)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, bits, seed, offset)``."""
    rng = np.random.default_rng(85) if rng is None else rng

    def x(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    made = {f"n = {n}": (x(n), bits, n, 0) for n in (0, 1, GROUP - 1, GROUP, GROUP + 1) for bits in BITS}
    made |= {f"images, {bits} bits": (x(3, 5, 7, 9), bits, 2**64 - 1, 4) for bits in BITS}
    made |= {f"activations, {bits} bits": (np.maximum(x(4 * GROUP + 9), 0), bits, 7, 2**40) for bits in BITS}
    made |= {f"to the nearest, {bits} bits": (x(2 * GROUP + 40), bits, None, 0) for bits in BITS}
    made["all equal"] = np.full(300, -2.5, np.float32), 4, 1, 0
    made["zeros of both signs"] = np.tile(np.float32([0, -0.0]), 160), 8, 1, 0
    made["a range too small"] = x(70) * np.float32(2.0**-105), 8, 1, 0
    made["far from 0"] = 1e6 + x(300), 8, 2, 0
    limit = np.finfo(np.float32).max
    made["a range too large"] = np.float32([limit, -limit] * 200), 4, 3, 0
    wild = x(4 * GROUP)
    wild[[5, GROUP + 9, 2 * GROUP + 200]] = np.nan, np.inf, -np.inf
    made["not finite"] = wild, 8, 4, 0
    made["NaN alone"] = np.full(3, np.nan, np.float32), 2, 4, 0
    return made


def cost(n: int, bits: int = 8) -> Cost:
    """For ``n`` numbers: two comparisons, a difference and a product; 4 bytes read, the words written."""
    return Cost(flops=4 * n, bytes=4 * n + 4 * words_of(n, bits))


def tolerance(x: np.ndarray, bits: int = 8, seed: int | None = None, offset: int = 0) -> float:
    """None: each step of the definition has one result, the random bits included."""
    return 0.0


def arguments(x, bits=8, seed=None, offset=0, *, out=None, stream=0) -> Problem:
    """Compress: a code of 8, 4 or 2 bits for each number, and a least value and a step for each 256.

    Args:
        x: float32 of any shape, in C order. A group is 256 neighbours in memory; the last one may have fewer.
        bits: 8, 4 or 2, the bits of a code.
        seed: of the random numbers, from 0 to 2^64 - 1; or None for none: each number is rounded to the nearest code.
        offset: where in their sequence to begin, from 0 to 2^63 - 1, a multiple of 4: see `pmpp.kernels.random`.
            Element i takes 16 bits of number ``offset + i // 2``. Another tensor, and another step, needs others.
        out: a uint32 device array of shape ``(words_of(x.size, bits),)``, apart from x in memory, or None to allocate
            one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. First come the codes of all groups, the first one in the
    lowest bits of a word, with codes of 0 behind the end of x. Then come a least value and a step for each group, as
    the bits of float32. Code q stands for ``low + q step``. With a seed its expectation is x, but for a rounding
    to 2^-15 steps. If an element is not finite, or the range of a group is not, both numbers are NaN. A range below
    2^-100 counts as none.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: J. Chen and others, ActNN: reducing training memory footprint via 2-bit activation compressed training
    (ICML 2021), section 3.

    >>> from pmpp.kernels.compression import ladder
    >>> words = ladder.vectorised(np.float32([0, 1, 2, 3]), 2, 7).copy_to_host()
    >>> bin(words[0]), words[-2:].view(np.float32)
    ('0b11100100', array([0., 1.], dtype=float32))
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float32", stream=stream)
    if as_integer("bits", bits) not in BITS:
        raise ValueError(f"bits must be 8, 4 or 2, was {bits}")
    bits, random = int(bits), seed is not None
    seed = as_integer("seed", seed, 0, 2**64 - 1) if random else 0
    if as_integer("offset", offset, 0, 2**63 - 1) % 4:
        raise ValueError(f"offset must be a multiple of 4, was {offset}")
    length = words_of(x.size, bits)
    out = device.as_output("out", out, shape=(length,), dtype="uint32", apart={"x": x}, stream=stream)
    groups = blocks(x.size, GROUP)
    words = out[: length - 2 * groups]
    return Problem(
        out,
        stream=stream,
        x=x.reshape(-1),
        bits=bits,
        random=random,
        key=np.uint64(seed),
        counter=np.uint64(offset // 4),
        groups=groups,
        words=words,
        ranges=out[length - 2 * groups :],
    )


# ------------------------------------------------------------------------------------------------- a range and a code


@cuda.jit(device=True)
def range_of(low, high, check, levels, last):
    """The least value, the step, and how many 2^-15 steps one is; ``check`` is NaN if an element was not finite."""
    low, span = low + f0, np.float32(high - low) + check  # 0.0 for -0.0
    finite, wide = span < INFINITY, span >= SMALL
    step, per_step = span * np.float32(f1 / np.float32(levels)), cuda.libdevice.fdiv_rn(last, span if wide else f1)
    step = step if wide else f0
    return (low if finite else NAN), (step if finite else NAN), (per_step if finite and wide else f0)


@cuda.jit(device=True)
def place(value, low, per_step, half):
    """The code of a value in bits 16 to 23, and its place behind that: 16 random bits may bring the next code."""
    steps = cuda.fma(np.float32(value - low), per_step, WHOLE)  # a whole number of 2^-15 steps
    return np.int32(np.int32(steps.view(np.int32) << np.int32(1)) + np.int32(half))


@cuda.jit(device=True)
def code(value, low, per_step, half, mask):
    """The code of a value. ``mask`` has the bits of a code, or none in a group with a number that is not finite."""
    return np.int32(place(value, low, per_step, half) >> np.int32(16)) & mask


@cuda.jit(device=True)
def drawn(key, counter, i):
    """The four numbers of 32 bits that element i, and the seven beside it, are rounded by."""
    return philox(np.uint64(counter + np.uint64(i // 8)), np.uint64(0), key)


@cuda.jit(device=True)
def middle(key, counter, i):
    """Halves in the place of random numbers."""
    return MIDDLE, MIDDLE, MIDDLE, MIDDLE


ROUND_BY = {True: drawn, False: middle}


@cuda.jit(device=True)
def half_of(numbers, k):
    """Sixteen of the 128 random bits of a counter, the k-th."""
    number = one_of(numbers, k >> 1)
    return np.uint32(number >> np.uint32(16)) if k & 1 else np.uint32(number & np.uint32(0xFFFF))


# ------------------------------------------------------------------------------------------------- a thread for a group


@functools.cache
def thread_kernel(bits, random):
    """The kernel for codes of so many bits, rounded at random or to the nearest."""
    levels, each, numbers_for = np.int32(2**bits - 1), 32 // bits, ROUND_BY[random]
    last = last_place(2**bits - 1)

    @cuda.jit
    def thread(x, key, counter, words, ranges):
        group = np.int64(cuda.grid(1))
        if group < ranges.size // 2:
            first = group * GROUP
            end = min(first + GROUP, x.size)
            low, high, check = x[first], x[first], f0
            for i in range(first, end):
                low, high, check = min(low, x[i]), max(high, x[i]), cuda.fma(x[i], f0, check)
            low, step, per_step = range_of(low, high, check, levels, last)
            ranges[2 * group], ranges[2 * group + 1] = low.view(np.uint32), step.view(np.uint32)
            mask, numbers, word = levels if step >= f0 else i0, (u0, u0, u0, u0), u0
            for j in range(GROUP):
                if j % 8 == 0:
                    numbers = numbers_for(key, counter, first + j)
                if first + j < end:
                    q = code(x[first + j], low, per_step, half_of(numbers, j % 8), mask)
                    word = np.uint32(word | np.uint32(np.uint32(q) << np.uint32(bits * (j % each))))
                if j % each == each - 1:
                    words[(first + j) // each] = word
                    word = u0

    return thread


@rung(thread_kernel)
def thread_per_group(p):
    """A thread for each group finds its range, reads it once more, and puts its codes into words.

    Source: PMPP 4e section 2.3.

    Leaves: lanes read and write at a distance of a whole group, so that every request touches 32 sectors.
    """
    kernel = thread_kernel(p.bits, p.random)
    kernel[blocks(p.groups, BLOCK), BLOCK, p.stream](p.x, p.key, p.counter, p.words, p.ranges)


# --------------------------------------------------------------------------------------------------- a warp for a group


@cuda.jit(device=True)
def warp_range(low, high, check, levels, last):
    """`range_of` of what the lanes of a warp have found."""
    for distance in (16, 8, 4, 2, 1):
        low = min(low, cuda.shfl_xor_sync(FULL_WARP, low, distance))
        high = max(high, cuda.shfl_xor_sync(FULL_WARP, high, distance))
    check = f0 if cuda.all_sync(FULL_WARP, check == f0) else NAN
    return range_of(low, high, check, levels, last)


@cuda.jit(device=True)
def half_from(source, numbers, k):
    """`half_of` the numbers of another lane, the k-th. Each lane may want another one, so nothing here branches."""
    n0, n1, n2, n3 = numbers
    a, b = cuda.shfl_sync(FULL_WARP, np.int32(n0), source), cuda.shfl_sync(FULL_WARP, np.int32(n1), source)
    c, d = cuda.shfl_sync(FULL_WARP, np.int32(n2), source), cuda.shfl_sync(FULL_WARP, np.int32(n3), source)
    lower, upper = a ^ ((a ^ b) & -((k >> 1) & 1)), c ^ ((c ^ d) & -((k >> 1) & 1))
    number = lower ^ ((lower ^ upper) & -(k >> 2))
    return np.uint32(np.uint32(np.int32(number)) >> np.uint32(16 * (k & 1))) & np.uint32(0xFFFF)


@functools.cache
def warp_kernel(bits, random):
    """The kernel for codes of so many bits, rounded at random or to the nearest."""
    levels, each, numbers_for = np.int32(2**bits - 1), 32 // bits, ROUND_BY[random]
    last, few = last_place(2**bits - 1), min(each, 8)  # a lane keeps one of so many words

    @cuda.jit
    def warp(x, key, counter, words, ranges):
        group, lane = np.int64(cuda.grid(1)) // 32, np.int32(cuda.laneid)
        if group < ranges.size // 2:  # for all lanes of a warp alike
            values = cuda.local.array(8, np.float32)
            first, end = group * GROUP + lane, x.size
            low, high, check = INFINITY, -INFINITY, f0
            for j in range(8):
                values[j] = x[min(first + 32 * j, end - 1)]  # behind the end the last number again
            for j in range(8):
                low, high, check = min(low, values[j]), max(high, values[j]), cuda.fma(values[j], f0, check)
            low, step, per_step = warp_range(low, high, check, levels, last)
            if lane == 0:
                ranges[2 * group], ranges[2 * group + 1] = low.view(np.uint32), step.view(np.uint32)
            mask = levels if step >= f0 else i0
            numbers = numbers_for(key, counter, group * GROUP + 8 * lane)  # for eight neighbours, of as many lanes
            for part in range(0, 8, few):
                kept = i0
                for j in range(part, part + few):
                    half = half_from(np.int32(4 * j) + (lane >> np.int32(3)), numbers, lane & np.int32(7))
                    word, distance = code(values[j], low, per_step, half, mask), 1
                    word = np.int32(word << np.int32(bits * (lane % each))) if first + 32 * j < end else i0
                    while distance < each:  # the codes of neighbours
                        word = np.int32(word | cuda.shfl_xor_sync(FULL_WARP, word, distance))
                        distance *= 2
                    kept = word if part + lane % each == j else kept
                if part + lane % each < 8:
                    words[group * GROUP // each + (part + lane % each) * 32 // each + lane // each] = np.uint32(kept)

    return warp


@rung(warp_kernel)
def warp_per_group(p):
    """A warp for each group: lanes read neighbours, keep them in registers, and find the range by shuffles.

    Source: PMPP 5e section 10.7, warp primitives.

    Leaves: random bits come from another lane, and codes go to one: six to eight shuffles for each number.
    """
    kernel = warp_kernel(p.bits, p.random)
    kernel[blocks(32 * p.groups, BLOCK), BLOCK, p.stream](p.x, p.key, p.counter, p.words, p.ranges)


# ------------------------------------------------------------------------------------------------ eight neighbours each


@cuda.jit(device=True)
def eight_of(x, at, whole):
    """Eight neighbours in memory, by two loads of 128 bits if they are there; behind the end the last number again."""
    if whole:
        a, b, c, d = load128(x, at)
        e, f, g, h = load128(x, at + 4)
        return a, b, c, d, e, f, g, h
    last = x.size - 1
    a, b, c, d = x[min(at, last)], x[min(at + 1, last)], x[min(at + 2, last)], x[min(at + 3, last)]
    e, f, g, h = x[min(at + 4, last)], x[min(at + 5, last)], x[min(at + 6, last)], x[min(at + 7, last)]
    return a, b, c, d, e, f, g, h


@cuda.jit(device=True)
def ends_of(a, b, c, d):
    """The least and the largest of four: an instruction for each two, which a call of ``min`` with four is not."""
    low, least, high, most = min(a, b), min(c, d), max(a, b), max(c, d)
    return min(low, least), max(high, most)


@cuda.jit(device=True)
def bytes_of(a, b, c, d):
    """Byte 2 of each of four words, the first one lowest."""
    lower, upper = cuda.libdevice.byte_perm(a, b, 0x0062), cuda.libdevice.byte_perm(c, d, 0x0062)
    return np.uint32(cuda.libdevice.byte_perm(lower, upper, 0x5410))


@cuda.jit(device=True)
def in_bytes(a, b, c, d, e, f, g, h):
    """Eight codes of 8 bits as a number, by their places."""
    return np.uint64(bytes_of(a, b, c, d)) | np.uint64(np.uint64(bytes_of(e, f, g, h)) << np.uint64(32))


@cuda.jit(device=True)
def in_halves(a, b, c, d, e, f, g, h):
    """Eight codes of 4 bits as a number."""
    return np.uint64(bytes_of(a, c, e, g) | np.uint32(bytes_of(b, d, f, h) << np.uint32(4)))


@cuda.jit(device=True)
def in_quarters(a, b, c, d, e, f, g, h):
    """Eight codes of 2 bits as a number."""
    lower = bytes_of(a, e, a, e) | np.uint32(bytes_of(b, f, b, f) << np.uint32(2))
    upper = bytes_of(c, g, c, g) | np.uint32(bytes_of(d, h, d, h) << np.uint32(2))
    return np.uint64(lower | np.uint32(upper << np.uint32(4)))


TOGETHER = {8: in_bytes, 4: in_halves, 2: in_quarters}


@functools.cache
def group_of(bits, random):
    """A device function that compresses a group. Each lane has eight neighbours, of which ``left`` are before the end.

    ``eights`` are the words as numbers of eight codes each.
    """
    levels, last = np.int32(2**bits - 1), last_place(2**bits - 1)
    together, numbers_for = TOGETHER[bits], ROUND_BY[random]
    low_half, half = np.uint32(0xFFFF), np.uint32(16)

    @cuda.jit(device=True)
    def compress_group(values, at, left, key, counter, eights, ranges):
        a, b, c, d, e, f, g, h = values
        low, high = ends_of(a, b, c, d)
        least, most = ends_of(e, f, g, h)
        low, high = min(low, least), max(high, most)
        check = cuda.fma(a, f0, cuda.fma(b, f0, cuda.fma(c, f0, d * f0)))
        check += cuda.fma(e, f0, cuda.fma(f, f0, cuda.fma(g, f0, h * f0)))
        low, step, per_step = warp_range(low, high, check, levels, last)
        if cuda.laneid == 0:
            group = at // GROUP
            ranges[2 * group], ranges[2 * group + 1] = low.view(np.uint32), step.view(np.uint32)
        n0, n1, n2, n3 = numbers_for(key, counter, at)
        p, q = place(a, low, per_step, n0 & low_half), place(b, low, per_step, n0 >> half)
        r, s = place(c, low, per_step, n1 & low_half), place(d, low, per_step, n1 >> half)
        t, u = place(e, low, per_step, n2 & low_half), place(f, low, per_step, n2 >> half)
        v, w = place(g, low, per_step, n3 & low_half), place(h, low, per_step, n3 >> half)
        codes = together(p, q, r, s, t, u, v, w) if step >= f0 else np.uint64(0)
        if left < 8:  # no codes behind the end
            codes &= np.uint64((np.uint64(1) << np.uint64(bits * max(left, 0))) - np.uint64(1))
        eights[at >> 3] = codes

    return compress_group


@functools.cache
def vector_kernel(bits, random):
    """The kernel for codes of so many bits, rounded at random or to the nearest."""
    compress_group = group_of(bits, random)

    @cuda.jit
    def vector(x, key, counter, eights, ranges):
        group = np.int64(cuda.grid(1)) >> 5
        if group < ranges.size >> 1:  # for all lanes of a warp alike
            at, whole = group * GROUP + 8 * cuda.laneid, group * GROUP + GROUP <= x.size
            left = 8 if whole else x.size - at
            compress_group(eight_of(x, at, whole), at, left, key, counter, eights, ranges)

    return vector


@rung(vector_kernel, warp_kernel)
def vectorised(p):
    """A lane has eight neighbours: two loads of 128 bits, one counter's random bits, and one number that has all codes.

    The codes fill 64, 32 or 16 bits, and a warp stores those of its group side by side. If x does not begin at a
    multiple of 16 bytes, or ``out`` at one of 8 with codes of 8 bits, this is the rung before.

    Source: PMPP 5e section 6.3.

    Leaves: a warp that computes has no load under way.
    """
    if device.address(p.x) % 16 or device.address(p.words) % p.bits:
        warp_per_group.launch(p)
        return
    eights = p.words.view(EIGHT[p.bits])
    kernel, grid = vector_kernel(p.bits, p.random), blocks(32 * p.groups, BLOCK)
    kernel[grid, BLOCK, p.stream](p.x, p.key, p.counter, eights, p.ranges)


# --------------------------------------------------------------------------------------------------- two groups a warp


@functools.cache
def paired_kernel(bits, random):
    """The kernel for codes of so many bits, rounded at random or to the nearest, of whole pairs alone."""
    compress_group = group_of(bits, random)

    @cuda.jit
    def paired(x, key, counter, eights, ranges):
        group = (np.int64(cuda.grid(1)) >> 5) * 2
        if group < ranges.size >> 1:  # for all lanes of a warp alike
            at = group * GROUP + 8 * cuda.laneid
            first, second = eight_of(x, at, True), eight_of(x, at + GROUP, True)
            compress_group(first, at, 8, key, counter, eights, ranges)
            compress_group(second, at + GROUP, 8, key, counter, eights, ranges)

    return paired


@rung(paired_kernel, vector_kernel, warp_kernel)
def paired(p):
    """A warp has two groups, and asks for all of their numbers before it computes.

    What is left behind the last whole pair, and what is not aligned, goes as in the rung before.

    Source: PMPP 4e section 6.3, thread coarsening.
    """
    pairs = p.x.size // (2 * GROUP)
    end = pairs * 2 * GROUP
    if not pairs or device.address(p.x) % 16 or device.address(p.words) % p.bits:
        vectorised.launch(p)
        return
    eights = p.words.view(EIGHT[p.bits])
    kernel = paired_kernel(p.bits, p.random)
    kernel[blocks(32 * pairs, BLOCK), BLOCK, p.stream](p.x, p.key, p.counter, eights, p.ranges[: 4 * pairs])
    if end < p.x.size:
        rest = {"x": p.x[end:], "words": p.words[end * p.bits // 32 :], "ranges": p.ranges[4 * pairs :]}
        vectorised.launch(p.replace(groups=p.groups - 2 * pairs, counter=p.counter + np.uint64(end // 8), **rest))


LADDER = (thread_per_group, warp_per_group, vectorised, paired)
