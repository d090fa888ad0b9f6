"""Weight-only products: y = x @ W.T, with W in 4 or 8 bits and x in float.

Chapter: notebooks/77_quantisation.ipynb.  PMPP 5e ch. 20.

A model that writes a word multiplies each of its matrices by one vector, and so reads each weight for one multiply-add.
Memory is the bound, and the time is that of the bytes of W: with 4 bits a weight it is a quarter of the time with 16.
The weights become numbers again in registers, and memory has never seen them as such. That takes instructions, and
there are few to spend: at 4.2 TB/s a multiprocessor of an H200 gets 36 weights of 4 bits a cycle, and has 128 lanes
that each issue an instruction. That is 3.5 instructions for a weight.

A row of W is cut into groups of 128 weights along K, and each group has a scale. The weight is the scale times a whole
number: from -128 to 127 in int8, or from -8 to 7, stored with 8 added in 4 bits of a byte: those with an even k in the
lower half. Rows whose length is no multiple of 128 are filled up, and what is in the filling counts nothing.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, warp_sum
from pmpp.kernels.quantisation.calibration import calibrate
from pmpp.kernels.quantisation.ladder import vectorised as to_whole
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.copies import copy_async_once
from pmpp.runtime.matrix import commit_copies, copy_async, mma_f16, pack_halves, wait_copies
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

GROUP = 128  # weights along K that share a scale
BLOCK = 128  # threads a block, where nothing else decides
MOST_K = 2**31 - 1024  # columns of x: kernels count them in 32 bits, and look one round ahead
DTYPES = ("float32", "float16")  # of x
RESULT = np.float32
CAPABILITY = (8, 0)  # of the oldest GPU that has mma.sync for this shape
f0 = np.float32(0)


# --------------------------------------------------------------------------------------------------------- definition


def whole(w: np.ndarray) -> np.ndarray:
    """The whole numbers of W, of shape (N, K filled up to groups): int8 as it is, and uint8 as two of 4 bits."""
    if w.dtype == np.int8:
        return w
    numbers = np.stack([w & 15, w >> 4], axis=-1).astype(np.int8) - np.int8(8)
    return numbers.reshape(w.shape[0], 2 * w.shape[1])


def packed(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers from -8 to 7, of shape (N, even), two to a byte: uint8 of shape (N, even // 2).

    >>> packed(np.int8([[-8, 7, 0, 1]]))
    array([[240, 152]], dtype=uint8)
    """
    raised = (numbers + 8).astype(np.uint8)
    return raised[:, ::2] | raised[:, 1::2] << 4


def quantise_weights(w, bits=4, *, stream=0):
    """A matrix in 4 or 8 bits, with a scale for each group of 128 weights, so that the largest of them just fits.

    Args:
        w: float32 of shape (N, K), in C order and finite.
        bits: 4 or 8.
        stream: the stream to work on.

    Returns (whole numbers, scales), NumPy arrays as `arguments` takes them. It waits for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> numbers, scales = quantise_weights(np.float32([[7, -2, 0.4]]), 4)
    >>> whole(numbers)[0, :4].tolist(), scales.tolist()
    ([7, -2, 0, 0], [[1.0]])
    """
    stream = device.as_stream(stream)
    w = device.to_host(device.as_input("w", w, dtypes="float32", ndim=2, stream=stream))
    if not np.isfinite(w).all():
        raise ValueError("w must be finite, had an element that is not")
    if as_integer("bits", bits) not in (4, 8):
        raise ValueError(f"bits must be 4 or 8, was {bits}")
    n, k = w.shape
    filled = np.zeros((n, blocks(k, GROUP) * GROUP), np.float32)
    filled[:, :k] = w
    groups = filled.reshape(-1, GROUP)
    if not groups.size:
        nothing = np.zeros(filled.shape, np.int8)
        return packed(nothing) if bits == 4 else nothing, np.zeros((n, blocks(k, GROUP)), np.float32)
    numbers, scales = numbers_of_groups(groups, bits, stream)
    numbers = numbers.reshape(filled.shape)
    return packed(numbers) if bits == 4 else numbers, scales.reshape(n, -1)


def numbers_of_groups(groups: np.ndarray, bits: int, stream: typing.Any) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers, and a scale for each row of ``groups``."""
    scales, _ = calibrate(groups, bits=bits, per_channel=True, stream=stream)
    return device.to_host(to_whole(groups, scales, None, bits, stream=stream)), scales


def reference(x: np.ndarray, w: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The product in float64, with one row of W after another as the numbers that it stands for."""
    y, numbers = np.zeros((x.shape[0], w.shape[0])), whole(w)
    for n in range(w.shape[0]):
        row = numbers[n].astype(np.float64) * np.repeat(scales[n].astype(np.float64), GROUP)
        y[:, n] = x.astype(np.float64) @ row[: x.shape[1]]
    return y


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and ``(x, w, scales)``. What fills the last group up is as random as the rest."""
    rng = np.random.default_rng(77) if rng is None else rng

    def case(m: int, n: int, k: int, bits: int = 4, dtype: str = "float16") -> tuple:
        groups = blocks(k, GROUP)
        low, high = (-8, 8) if bits == 4 else (-128, 128)
        numbers = rng.integers(low, high, (n, groups * GROUP)).astype(np.int8)
        scales = rng.uniform(0.01, 0.1, (n, groups)).astype(np.float32)
        return rng.standard_normal((m, k)).astype(dtype), packed(numbers) if bits == 4 else numbers, scales

    made = {"one": case(1, 1, 1), "no x": case(0, 3, 5), "no row": case(2, 0, 5), "nothing to add": case(2, 5, 0)}
    made |= {"a group": case(1, 16, 128), "a group and one": case(2, 17, 129), "long": case(1, 5, 1300)}
    made |= {"filled up by words": case(3, 9, 200), "nine": case(9, 20, 256), "many": case(70, 3, 136)}
    made |= {f"{name}, int8": case(*shape, 8) for name, shape in {"one": (1, 1, 1), "odd": (2, 19, 333)}.items()}
    made |= {"nine, int8": case(9, 20, 256, 8)}
    for bits in (4, 8):
        made[f"float32, {bits} bits"] = case(2, 7, 392, bits, "float32")
        made[f"float32, odd, {bits} bits"] = case(1, 3, 165, bits, "float32")
    x, w, scales = case(2, 18, 256)
    made["cancellation"] = np.hstack([x[:, :128], -x[:, :128]]), np.hstack([w[:, :64], w[:, :64]]), scales
    made["largest and smallest"] = np.where(x < 0, np.float16(6e-8), np.float16(65504)), w, scales
    made["scales of any sign"] = x, w, scales * np.float32([[-1e6, 1e-30]])
    return made


def cost(m: int, n: int, k: int, bits: int = 4, itemsize: int = 2) -> Cost:
    """A multiply-add for each of m n k products; W with its scales and x read once, y written once.

    >>> cost(1, 8192, 28672).bytes, cost(1, 8192, 28672, 16).bytes  # the second with scales, which float16 has not
    (124870656, 477192192)
    """
    groups = blocks(k, GROUP)
    return Cost(2 * m * n * k, n * groups * (GROUP * bits // 8 + 4) + itemsize * m * k + 4 * m * n)


def tolerance(x: np.ndarray, w: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """How far from `reference` a right result may be.

    Float32 sums of K products, each of three factors: a term is rounded at most K + 4 times, by 2^-24 of the partial
    sums, and those have the raised numbers in them, up to 8 or 128 more than the numbers. A tensor core adds 17 terms
    with the exponent of the largest, and loses up to 2^-23 of it a term (`pmpp.kernels.matmul.tensor_cores`). But the
    exponent that it takes for a weight q 2^-18, a subnormal, is that of 2^-14: 16 or more for a weight that may be 1.
    With 8 bits it is 2^-14 for q 2^-22, so 256.
    """
    raised, most = (8, 16) if w.dtype == np.uint8 else (128, 256)
    k = x.shape[1]
    size = np.abs(x.astype(np.float64))
    numbers = np.abs(whole(w).astype(np.float64))[:, :k] + raised
    each = np.repeat(np.abs(scales.astype(np.float64)), GROUP, axis=1)[:, :k]
    total = size @ (numbers * each).T
    exact = np.abs(x.astype(np.float64)) @ (each * most).T
    return 2.0**-24 * (k + 4) * total + 2 * 17 * 2.0**-23 * exact


def arguments(x, w, scales, *, out=None, stream=0) -> Problem:
    """Multiply float rows by a matrix of small whole numbers with scales: y[m, n] = sum over k of x[m, k] W[n, k].

    Args:
        x: float16 or float32 of shape (M, K). All arrays are in C order. Extents may be 0; K = 0 gives zeros. x and the
            scales have to be finite: what is not makes results of its row that are not, by some rungs NaN for infinity.
        w: the weights, with G = K / 128 rounded up: int8 of shape (N, 128 G), or uint8 of shape (N, 64 G) with two
            weights a byte, that of the even k in the lower half, and 8 added to each (see `packed`).
        scales: float32 of shape (N, G). W[n, k] is scales[n, k // 128] times the whole number.
        out: a float32 device array of shape (M, N), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It has the same bits in every run on one GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.quantisation import weight_only
    >>> w = np.zeros((1, 128), np.int8)
    >>> w[0, :2] = 3, -5
    >>> weight_only.vectorised(np.float32([[10, 1]]), w, np.float32([[0.5]])).copy_to_host()
    array([[12.5]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=2, stream=stream)
    m, k = x.shape
    if k > MOST_K:
        raise ValueError(f"x must have at most {MOST_K} columns, had {k}")
    groups = blocks(k, GROUP)
    w = device.as_input("w", w, dtypes=("int8", "uint8"), ndim=2, stream=stream)
    bits = 8 if w.dtype == np.int8 else 4
    wanted = groups * GROUP * bits // 8
    if w.shape[1] != wanted:
        raise ValueError(f"w must have {wanted} bytes a row for K = {k} and {bits} bits, had shape {w.shape}")
    n = w.shape[0]
    scales = device.as_input("scales", scales, dtypes="float32", ndim=2, shape=(n, groups), stream=stream)
    apart = {"x": x, "w": w, "scales": scales}
    out = device.as_output("out", out, shape=(m, n), dtype="float32", apart=apart, stream=stream)
    p = Problem(out, stream=stream, x=x, w=w, scales=scales, bits=bits)
    if out.size and not k:
        zero_kernel[blocks(out.size, BLOCK), BLOCK, stream](out.reshape(-1))
        p.done = True
    return p


@cuda.jit
def zero_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = f0


# ------------------------------------------------------------------------------------------------------- a thread a row


@cuda.jit(device=True)
def weight_of_byte(w, row, k):
    return np.float32(w[row, k])


@cuda.jit(device=True)
def weight_of_half(w, row, k):
    byte = np.int32(w[row, k // 2])
    return np.float32((byte & 15 if k % 2 == 0 else byte >> 4) - 8)


@functools.cache
def thread_kernel(bits: int) -> typing.Any:
    """The kernel ``(x, w, scales, out)`` for weights of 4 or 8 bits."""
    weight = weight_of_half if bits == 4 else weight_of_byte

    @cuda.jit
    def kernel(x, w, scales, out):
        i = cuda.grid(1)
        if i < out.size:
            m, row, total = i // out.shape[1], i % out.shape[1], f0
            for k in range(x.shape[1]):
                total += scales[row, k // GROUP] * weight(w, row, k) * np.float32(x[m, k])
            out[m, row] = total

    return kernel


@rung(thread_kernel)
def thread_per_row(p):
    """A thread walks along a row of W, and makes a number of each weight.

    Source: PMPP 4e section 3.4.

    Leaves: the lanes of a warp read bytes of 32 rows, and each of these lies in a sector of its own.
    """
    thread_kernel(p.bits)[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.x, p.w, p.scales, p.result)


@functools.cache
def warp_kernel(bits: int) -> typing.Any:
    """The kernel ``(x, w, scales, out)`` for weights of 4 or 8 bits."""
    weight, each = (weight_of_half, 2) if bits == 4 else (weight_of_byte, 1)

    @cuda.jit
    def kernel(x, w, scales, out):
        i, total = cuda.grid(1) // 32, f0
        m, row = i // out.shape[1], i % out.shape[1]
        if i < out.size:
            for first in range(each * cuda.laneid, x.shape[1], each * 32):
                for k in range(first, min(first + each, x.shape[1])):
                    total += scales[row, k // GROUP] * weight(w, row, k) * np.float32(x[m, k])
        total = warp_sum(total)
        if i < out.size and cuda.laneid == 0:
            out[m, row] = total

    return kernel


@rung(warp_kernel)
def coalesced(p):
    """A warp shares a row of W: a lane has a byte, and its neighbour the next.

    Source: PMPP 4e sections 6.1 and 10.4.

    Leaves: a warp asks for 32 bytes of W at a time. And a conversion from int to float runs at an eighth of the speed.
    """
    warp_kernel(p.bits)[blocks(32 * p.result.size, BLOCK), BLOCK, p.stream](p.x, p.w, p.scales, p.result)


# ------------------------------------------------------------------------------------------------------- wide loads
# A load of 128 bits has 32 weights of 4 bits, or 16 of 8, all of one group. They become float32 by the bits of 2^23: a
# float32 from there on has no place behind the point, so its last bits are those of the whole number.

ROWS = 4  # of W, that a warp has at a time
MAGIC = np.uint32(0x4B000000)  # the bits of 2^23
RAISED = {4: np.float32(2.0**23 + 8), 8: np.float32(2.0**23 + 128)}


@cuda.jit(device=True)
def as_float(bits):
    return cuda.libdevice.int_as_float(np.int32(bits))


@cuda.jit(device=True)
def low_half(word):
    return cuda.libdevice.half2float(np.int16(word & np.uint32(0xFFFF)))


@cuda.jit(device=True)
def high_half(word):
    return cuda.libdevice.half2float(np.int16(word >> np.uint32(16)))


@cuda.jit(device=True)
def eight_halves(x, at, k, end):
    """Eight neighbours of a row that begins at x[2 at], from k on. x holds two float16 in a uint32."""
    if k >= end:
        return f0, f0, f0, f0, f0, f0, f0, f0
    a, b, c, d = load128(x, (at + k) // 2)
    return low_half(a), high_half(a), low_half(b), high_half(b), low_half(c), high_half(c), low_half(d), high_half(d)


@cuda.jit(device=True)
def eight_floats(x, at, k, end):
    if k >= end:
        return f0, f0, f0, f0, f0, f0, f0, f0
    a, b = load128(x, at + k), load128(x, at + k + 4)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@cuda.jit(device=True)
def one_before(x, at, k, end):
    return np.float32(x[at + k]) if k < end else f0


@cuda.jit(device=True)
def eight_elements(x, at, k, end):
    """The same for a row that begins anywhere, of either dtype."""
    return (
        one_before(x, at, k, end),
        one_before(x, at, k + 1, end),
        one_before(x, at, k + 2, end),
        one_before(x, at, k + 3, end),
        one_before(x, at, k + 4, end),
        one_before(x, at, k + 5, end),
        one_before(x, at, k + 6, end),
        one_before(x, at, k + 7, end),
    )


READERS = {"elements": eight_elements, "float16": eight_halves, "float32": eight_floats}


@functools.cache
def vector_kernel(bits: int, kind: str, rows: int = ROWS) -> typing.Any:
    """The kernel ``(x, w, scales, out, m, n, k)``, of flat arrays; ``kind``: how x is read, a key of `READERS`."""
    eight, raised, mask = READERS[kind], RAISED[bits], np.uint32(2**bits - 1)
    each = 32 // bits // 2  # times eight weights in 128 bits
    turned = np.uint32(0 if bits == 4 else 0x80808080)  # adds 128 to each of four int8, as far as 8 bits can tell

    @cuda.jit(device=True)
    def add_products(parts, weights, i, x):
        """Add to the sum of each row eight products: of x, and of its weights from place 8 i on."""
        for r in range(rows):
            for j in range(8):
                word = weights[r, (8 * i + j) * bits // 32] ^ turned
                number = word >> np.uint32(j * bits % 32) & mask
                parts[r] += (as_float(number | MAGIC) - raised) * x[j]

    @cuda.jit
    def kernel(x, w, scales, out, m, n, k):
        lane, groups = cuda.laneid, (k + GROUP - 1) // GROUP
        warp, teams = cuda.grid(1) // 32, (n + rows - 1) // rows
        of_x, first = warp // teams, warp % teams * rows
        sums = cuda.local.array(rows, np.float32)
        parts = cuda.local.array(rows, np.float32)
        weights = cuda.local.array((rows, 4), np.uint32)
        for r in range(rows):
            sums[r] = f0
        at, row = lane * 8 * each, np.int64(of_x) * k  # the first weight of this lane; where x begins
        while at < k and of_x < m:
            for r in range(rows):  # all loads of W come first
                begin = np.int64(min(first + r, n - 1)) * groups * (GROUP * bits // 32)
                a, b, c, d = load128(w, begin + at * bits // 32)
                weights[r, 0], weights[r, 1], weights[r, 2], weights[r, 3] = a, b, c, d
                parts[r] = f0
            add_products(parts, weights, 0, eight(x, row, at, k))
            add_products(parts, weights, 1, eight(x, row, at + 8, k))
            if bits == 4:
                add_products(parts, weights, 2, eight(x, row, at + 16, k))
                add_products(parts, weights, 3, eight(x, row, at + 24, k))
            for r in range(rows):
                sums[r] += parts[r] * scales[np.int64(min(first + r, n - 1)) * groups + at // GROUP]
            at += 32 * 8 * each
        for r in range(rows):
            total = warp_sum(sums[r])
            if lane == 0 and first + r < n and of_x < m:
                out[np.int64(of_x) * n + first + r] = total

    return kernel


def flat(x: typing.Any, dtype: typing.Any = None) -> typing.Any:
    """A device array as a vector, of the same bytes as ``dtype``."""
    x = x.reshape(-1)
    return x if dtype is None else x.view(dtype)


def whole_vectors(x: typing.Any) -> bool:
    """Whether all rows of x begin at multiples of 16 bytes, and have a multiple of eight elements."""
    return x.shape[1] % 8 == 0 and device.address(x) % 16 == 0


def by_vectors(p: Problem, rows: int = ROWS) -> None:
    """The launch of `vectorised`."""
    (m, k), n = p.x.shape, p.w.shape[0]
    kind, x = "elements", flat(p.x)
    if whole_vectors(p.x):
        kind, x = str(p.x.dtype), flat(p.x, np.uint32 if p.x.dtype == np.float16 else None)
    grid = blocks(32 * m * blocks(n, rows), BLOCK)
    given = x, flat(p.w, np.uint32), flat(p.scales), flat(p.result), m, n, k
    vector_kernel(p.bits, kind, rows)[grid, BLOCK, p.stream](*given)


@rung(vector_kernel, warp_kernel)
def vectorised(p):
    """A lane loads 128 bits of each of four rows of W. Weights become floats by the bits of 2^23, without conversion.

    Rows of W that do not begin at multiples of 16 bytes are left to the rung before.

    Source: PMPP 5e section 6.3; Kim et al., Who says elephants can't run, 2022, for the bits of a power of two.

    Leaves: a shift, a mask, a subtraction and a multiply-add for each weight, and a conversion for each x in float16.
    That is more than the 3.5 instructions for which there is time.
    """
    if device.address(p.w) % 16:
        coalesced.launch(p)
    else:
        by_vectors(p)


# ------------------------------------------------------------------------------------------------------- tensor cores
# A float16 whose exponent bits are 0 is a subnormal, (last ten bits) x 2^-24. So a weight of 4 bits is a float16 as
# soon as it lies in bits 6 to 9: q x 2^-18. And a word holds two of them at once. A tensor core takes them as they are.

WARPS = 8  # that share the rows of a block
HIGH = 1  # times 16 rows of W that a block has
REGISTERS = 64  # of a thread, for one vector: so four blocks of eight warps have room on a multiprocessor
MOST_TILES = 4  # of eight rows of x that a block has at a time
LESS = np.uint32(0x82008200)  # twice the float16 -8 x 2^-18, which is -128 x 2^-22
FACTOR = {4: np.float32(2.0**18), 8: np.float32(2.0**22)}


@cuda.jit(device=True)
def pairs_of_four(word, part):
    """Of eight weights of 4 bits two registers: those at places 2 part and 2 part + 4, and each of these plus 1."""
    mask = np.uint32(0x03C003C0)
    if part == 0:
        return np.uint32(word << np.uint32(6) & mask), np.uint32(word << np.uint32(2) & mask)
    return np.uint32(word >> np.uint32(2) & mask), np.uint32(word >> np.uint32(6) & mask)


@cuda.jit(device=True)
def pairs_of_eight(word):
    """Of four weights of 8 bits two registers: those at places 0 and 2, and those at 1 and 3."""
    mask, turned = np.uint32(0x03FC03FC), np.uint32(0x02000200)  # adds 128 to an int8, as far as 8 bits can tell
    even = (word << np.uint32(2) ^ turned) & mask
    odd = (word >> np.uint32(6) ^ turned) & mask
    return np.uint32(even), np.uint32(odd)


@cuda.jit(device=True)
def lows(a, b):
    """The lower halves of two registers in one. byte_perm picks four of their eight bytes, in one instruction."""
    return np.uint32(cuda.libdevice.byte_perm(np.int32(a), np.int32(b), np.int32(0x5410)))


@cuda.jit(device=True)
def highs(a, b):
    return np.uint32(cuda.libdevice.byte_perm(np.int32(a), np.int32(b), np.int32(0x7632)))


@cuda.jit(device=True)
def half_before(x, at, left):
    return x[at] if left > 0 else np.uint16(0)


@cuda.jit(device=True)
def words_of_elements(x, at, left):
    """Eight neighbours from x[at] on as four registers, 0 where fewer are ``left``. x holds the bits of a float16."""
    return (
        pack_halves(half_before(x, at, left), half_before(x, at + 1, left - 1)),
        pack_halves(half_before(x, at + 2, left - 2), half_before(x, at + 3, left - 3)),
        pack_halves(half_before(x, at + 4, left - 4), half_before(x, at + 5, left - 5)),
        pack_halves(half_before(x, at + 6, left - 6), half_before(x, at + 7, left - 7)),
    )


@cuda.jit(device=True)
def words_of_vector(x, at, left):
    """The same where x holds two float16 in a uint32, and eight neighbours are there or not as a whole."""
    if left > 0:
        return load128(x, at)
    return np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0)


@functools.cache
def multiplier(bits: int, wide: bool, tiles: int, high: int) -> typing.Any:
    """A device function that adds a lane's products of a group, for 8 ``tiles`` rows of x.

    ``wide``: x has whole vectors. ``high``: times 16 rows of W that a block has.
    """
    eight, each = (words_of_vector, 2) if wide else (words_of_elements, 1)  # ``each``: of x in an element of its array
    fragments, factor = tiles * high, FACTOR[bits]
    halfway = np.int32(16 if bits == 4 else 64)  # from the first sixteen of a lane's weights to the others

    @cuda.jit(device=True)
    def add(sums, at, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3]))
        sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3] = c

    @cuda.jit(device=True)
    def multiply(sums, less, own, i, x, at, left, down, row, m):
        """Add the products of eight of the lane's weights, those from its place 8 i on, for all rows of x.

        The weights are raised. What was added to each of them, 8 or 128, is in ``less``, times -1: the same for all
        rows of W. ``at``: where x is for the first of its rows; ``left``: how much of a row there is from here on;
        ``down``: how far it is to the row that is eight further.
        """
        for tile in range(tiles):
            x0, x1, x2, x3 = eight(x, at + tile * down, left if row + 8 * tile < m else np.int32(0))
            if bits == 4:
                first, second = (lows(x0, x2), highs(x0, x2)), (lows(x1, x3), highs(x1, x3))
            else:
                first, second = (lows(x0, x1), highs(x0, x1)), (lows(x2, x3), highs(x2, x3))
            add(less, tile, LESS, LESS, LESS, LESS, first)
            add(less, tile, LESS, LESS, LESS, LESS, second)
            for two in range(high):
                if bits == 4:
                    a0, a2 = pairs_of_four(own[2 * two, i], 0)
                    a1, a3 = pairs_of_four(own[2 * two + 1, i], 0)
                else:
                    a0, a2 = pairs_of_eight(own[2 * two, 2 * i])
                    a1, a3 = pairs_of_eight(own[2 * two + 1, 2 * i])
                add(sums, tile * high + two, a0, a1, a2, a3, first)
                if bits == 4:
                    a0, a2 = pairs_of_four(own[2 * two, i], 1)
                    a1, a3 = pairs_of_four(own[2 * two + 1, i], 1)
                else:
                    a0, a2 = pairs_of_eight(own[2 * two, 2 * i + 1])
                    a1, a3 = pairs_of_eight(own[2 * two + 1, 2 * i + 1])
                add(sums, tile * high + two, a0, a1, a2, a3, second)

    @cuda.jit(device=True)
    def multiply_group(totals, own, scale, x, at, left, down, row, m):
        """Add the lane's products of a group, times the scale of each of its rows of W."""
        sums, less = cuda.local.array((fragments, 4), np.float32), cuda.local.array((tiles, 4), np.float32)
        for i in range(fragments):
            for e in range(4):
                sums[i, e] = f0
        for tile in range(tiles):
            for e in range(4):
                less[tile, e] = f0
        multiply(sums, less, own, 0, x, at, left, down, row, m)
        multiply(sums, less, own, 1, x, at + 8 // each, np.int32(left - 8), down, row, m)
        at, left = at + halfway // each, np.int32(left - halfway)
        multiply(sums, less, own, 2, x, at, left, down, row, m)
        multiply(sums, less, own, 3, x, at + 8 // each, np.int32(left - 8), down, row, m)
        for two in range(high):
            for half in range(2):
                times = factor * scale[2 * two + half]
                for tile in range(tiles):
                    for e in range(2 * half, 2 * half + 2):
                        i = tile * high + two
                        totals[i, e] += (sums[i, e] + less[tile, e]) * times

    return multiply_group


@functools.cache
def adder(tiles: int, high: int, warps: int) -> typing.Any:
    """A device function with which a block adds up the sums of its warps, and stores them."""
    columns, below = 8 * tiles, 16 * high

    @cuda.jit(device=True)
    def add_up(shared, totals, out, top, first_m, m, n):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        line, quarter = lane // 4, lane % 4
        for tile in range(tiles):
            for two in range(high):
                for e in range(4):
                    beside = 8 * tile + 2 * quarter + e % 2
                    shared[warp, 16 * two + line + e // 2 * 8, beside] = totals[tile * high + two, e]
        cuda.syncthreads()
        i = cuda.threadIdx.x
        while i < below * columns:
            down_w, beside, total = i % below, i // below, f0
            for other in range(warps):
                total += shared[other, down_w, beside]
            if top + down_w < n and first_m + beside < m:
                out[np.int64(first_m + beside) * n + top + down_w] = total
            i += 32 * warps

    return add_up


@functools.cache
def tensor_kernel(bits: int, wide: bool, tiles: int, high: int, warps: int = WARPS, most: int = 0) -> typing.Any:
    """The kernel ``(x, w, scales, out, m, n, k)``, of flat arrays, for 8 ``tiles`` rows of x at a time.

    A block has 16 ``high`` rows of W, and its warps take turns at the groups. ``wide``: x has whole vectors. ``most``:
    registers of a thread, 0 for as many as the compiler likes.
    """
    each = 2 if wide else 1  # of x that an element of its array holds
    multiply_group, add_up = multiplier(bits, wide, tiles, high), adder(tiles, high, warps)
    columns, below = 8 * tiles, 16 * high
    sides, fragments = 2 * high, tiles * high  # rows of W, and fragments of sums, that a lane has
    run = 32 if bits == 4 else 16  # weights in a row that a lane has

    @cuda.jit(device=True)
    def fetch(w, own, begins, group):
        """Load a lane's weights of a group: 32 of each of its rows, which are as many words as a weight has bits."""
        for side in range(sides):
            for part in range(bits // 4):
                a, b, c, d = load128(w, begins[side] + np.int64(group) * (4 * bits) + 16 * part)
                own[side, 4 * part], own[side, 4 * part + 1] = a, b
                own[side, 4 * part + 2], own[side, 4 * part + 3] = c, d

    @cuda.jit(**({"max_registers": most} if most else {}))
    def kernel(x, w, scales, out, m, n, k):
        shared = cuda.shared.array((warps, below, columns), np.float32)
        own, coming = cuda.local.array((sides, bits), np.uint32), cuda.local.array((sides, bits), np.uint32)
        totals, scale = cuda.local.array((fragments, 4), np.float32), cuda.local.array(sides, np.float32)
        lines, begins = cuda.local.array(sides, np.int64), cuda.local.array(sides, np.int64)
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        line, quarter = lane // 4, lane % 4
        top, first_m = cuda.blockIdx.x * below, cuda.blockIdx.y * columns
        # What changes in the loop has 32 bits, and all that does not is computed here: addresses take instructions.
        row, rows = np.int32(first_m + line), np.int32(m)
        groups = np.int32((k + GROUP - 1) // GROUP)
        group, end, last = np.int32(warp), np.int32(k - run * quarter), np.int32(groups - 1)
        own_x, down = (np.int64(row) * k + run * quarter) // each, np.int64(k) * 8 // each
        for i in range(fragments):
            for e in range(4):
                totals[i, e] = f0
        for side in range(sides):  # rows beyond the last are the last again, and are not stored
            lines[side] = np.int64(min(top + line + 8 * side, n - 1)) * groups
            begins[side] = lines[side] * (4 * bits) + 4 * quarter
        fetch(w, own, begins, min(group, last))
        while group < groups:
            after = np.int32(group + warps)
            fetch(w, coming, begins, min(after, last))  # on its way while this group is multiplied
            for side in range(sides):
                scale[side] = scales[lines[side] + group]
            at, left = own_x + np.int64(group) * (GROUP // each), np.int32(end - group * GROUP)
            multiply_group(totals, own, scale, x, at, left, down, row, rows)
            for side in range(sides):
                for i in range(bits):
                    own[side, i] = coming[side, i]
            group = after
        add_up(shared, totals, out, top, first_m, m, n)

    return kernel


def by_tensors(p: Problem, high: int = HIGH, warps: int = WARPS, most: int | None = None) -> None:
    """The launch of `tensor`."""
    (m, k), n = p.x.shape, p.w.shape[0]
    wide = whole_vectors(p.x)
    tiles = min(MOST_TILES, 1 << max(blocks(m, 8) - 1, 0).bit_length())
    x = flat(p.x, np.uint32 if wide else np.uint16)
    grid = blocks(n, 16 * high), blocks(m, 8 * tiles)
    if grid[1] > 65535:  # every GPU's limit for y
        raise ValueError(f"x must have at most {65535 * 8 * tiles} rows for this rung, had {m}")
    given = x, flat(p.w, np.uint32), flat(p.scales), flat(p.result), m, n, k
    most = (REGISTERS if tiles == 1 else 0) if most is None else most
    tensor_kernel(p.bits, wide, tiles, high, warps, most)[grid, 32 * warps, p.stream](*given)


@rung(tensor_kernel, vector_kernel, warp_kernel)
def tensor(p):
    """Weights lie in a float16 as subnormals, after a shift and a mask for two. Tensor cores multiply and add.

    A warp multiplies 16 rows of W by 8 rows of x, of which a decoder may fill one. For x in float32, and for a GPU
    without the instruction, this is the rung before.

    Source: Frantar et al., MARLIN, 2024, for products of few rows on tensor cores; IEEE 754-2019 section 3.4.

    Leaves: a warp asks for its next group, multiplies one, and waits: one group on its way is too few for memory.
    """
    if p.x.dtype != np.float16 or device.address(p.w) % 16 or device.limits()["compute_capability"] < CAPABILITY:
        vectorised.launch(p)
    else:
        by_tensors(p)


# -------------------------------------------------------------------------------------------------- groups on their way
# An asynchronous copy takes no registers while it travels. So a warp can have several groups on their way, and not just
# one. And x travels with them, so that no instruction of the loop waits for the L2 cache.

STAGES = 3  # that have room in shared memory at most; all but one of them travel
RESERVED = 1024  # bytes of shared memory that the system takes for each block
PAIRS, OF_PAIRS = 2, 128  # times 16 rows of W that a block has, and registers: two blocks of eight warps have room
QUADS, OF_QUADS, WARPS_OF_QUADS = 4, 168, 12  # the same of one block of twelve warps


@functools.cache
def staged_kernel(bits: int, lines: int, high: int, warps: int, stages: int, most: int = 0) -> typing.Any:
    """The kernel ``(x, w, scales, out, m, n, k)``, of flat arrays, for one row of x or up to eight: ``lines``.

    A warp has ``stages`` in shared memory. Each has a group of its 16 ``high`` rows of W, and of x.
    """
    multiply_group, add_up = multiplier(bits, True, 1, high), adder(1, high, warps)
    below, sides, parts, run = 16 * high, 2 * high, bits // 4, 32 if bits == 4 else 16
    in_row = np.uint32(4 * parts)  # times 16 bytes, of a row of W in a group
    rows_apart, copies, copies_of_x = 8 // parts, below * 4 * parts // 32, max(lines * 16 // 32, 1)
    x_begin, ring_size = np.uint32(sides * parts * 128), np.uint32(stages * (sides * parts * 128 + 64 * lines))
    stage_size, pending = np.uint32(sides * parts * 128 + 64 * lines), stages - 2  # words: two elements of x in each

    @cuda.jit(device=True)
    def start(ring, to, w, at, pitch, rows, x, k, group, groups, m):
        """Begin to copy a group, 16 bytes at a time. Neighbouring lanes have neighbours of a row.

        ``at``: where the lane's first copy of group 0 begins. Behind the last row, the last group and the end of x all
        is 0.
        """
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(32)
        row, chunk = np.uint32(lane // in_row), np.uint32(lane % in_row)
        at += np.int64(group) * (4 * bits)
        to_w = np.uint32(to + chunk // np.uint32(4) * np.uint32(128) + chunk % np.uint32(4) * np.uint32(4))
        left = rows if group < groups else np.int32(0)
        for i in range(copies):
            line = np.uint32(row + np.uint32(i * rows_apart))
            place = np.uint32(line // 8 * np.uint32(parts * 128) + line % 8 * np.uint32(16))
            count = 4 if np.int32(line) < left else 0
            copy_async(ring, np.uint32(to_w + place), w, at + i * rows_apart * pitch, count)
        for i in range(copies_of_x):
            number = np.uint32(lane + np.uint32(32 * i))
            line, column = np.int64(number // np.uint32(16)), np.int64(group) * GROUP + number % np.uint32(16) * 8
            if line < lines:
                count = 4 if line < m and column < k else 0
                copy_async(ring, np.uint32(to + x_begin + number * np.uint32(4)), x, (line * k + column) // 2, count)
        commit_copies()

    @cuda.jit(device=True)
    def fetch(ring, at, own):
        """A lane's weights, as `tensor_kernel` has them."""
        for side in range(sides):
            for part in range(parts):
                a, b, c, d = load128(ring, np.uint32(at + np.uint32(side * parts + part) * np.uint32(128)))
                own[side, 4 * part], own[side, 4 * part + 1] = a, b
                own[side, 4 * part + 2], own[side, 4 * part + 3] = c, d

    @cuda.jit(**({"max_registers": most} if most else {}))
    def kernel(x, w, scales, out, m, n, k):
        shared = cuda.shared.array((warps, below, 8), np.float32)
        ring = cuda.shared.array(0, np.uint32, alignment=16)
        own, totals = cuda.local.array((sides, bits), np.uint32), cuda.local.array((high, 4), np.float32)
        scale, soon = cuda.local.array(sides, np.float32), cuda.local.array(sides, np.float32)
        begins = cuda.local.array(sides, np.int64)  # of scales
        lane, warp = np.uint32(cuda.threadIdx.x) % np.uint32(32), np.uint32(cuda.threadIdx.x) // np.uint32(32)
        line, quarter, top = lane // np.uint32(4), lane % np.uint32(4), np.int64(cuda.blockIdx.x) * below
        groups, rows = np.int32((k + GROUP - 1) // GROUP), np.int32(min(n - top, np.int64(below)))
        group, last, pitch = np.int32(warp), np.int32(groups - 1), np.int64(groups) * (4 * bits)
        at = (top + np.int64(lane // in_row)) * pitch + np.int64(lane % in_row) * 4
        for i in range(high):
            for e in range(4):
                totals[i, e] = f0
        for side in range(sides):  # rows beyond the last are the last again, and are not stored
            begins[side] = min(top + np.int64(line) + 8 * side, n - 1) * groups
            soon[side] = scales[begins[side] + min(group, last)]
        own_ring, coming = np.uint32(warp * ring_size), group
        own_x = np.uint32(x_begin + line * np.uint32(64) + quarter * np.uint32(run // 2))
        for stage in range(stages - 1):
            to = np.uint32(own_ring + np.uint32(stage) * stage_size)
            start(ring, to, w, at, pitch, rows, x, k, coming, groups, m)
            coming = np.int32(coming + warps)
        now, into = np.uint32(0), np.uint32(ring_size - stage_size)
        while group < groups:
            after = np.int32(group + warps)
            for side in range(sides):  # a scale is asked for a round before it is needed
                scale[side], soon[side] = soon[side], scales[begins[side] + min(after, last)]
            wait_copies(pending)  # the oldest stage is there: what this lane has copied,
            cuda.syncwarp()  # and all others; and everyone has read the stage that is overwritten next
            start(ring, np.uint32(own_ring + into), w, at, pitch, rows, x, k, coming, groups, m)
            coming = np.int32(coming + warps)
            begin = np.uint32(own_ring + now)
            fetch(ring, np.uint32(begin + lane * np.uint32(4)), own)
            from_x = np.int64(np.uint32(begin + own_x))
            multiply_group(totals, own, scale, ring, from_x, np.int32(GROUP), 0, np.int32(line), np.int32(m))
            into, now = now, np.uint32(now + stage_size)
            if now == ring_size:
                now = np.uint32(0)
            group = after
        add_up(shared, totals, out, top, np.int64(0), m, n)

    return kernel


class Plan(typing.NamedTuple):
    """How `staged` cuts a product."""

    lines: int  # of x: one, or up to eight
    high: int  # times 16 rows of W, of a block
    warps: int
    stages: int
    most: int  # registers of a thread

    def shared(self, bits: int) -> int:
        """Bytes of a block's stages."""
        return self.warps * self.stages * _stage(bits, self.lines, self.high)


def _stage(bits: int, lines: int, high: int) -> int:
    """Bytes of a warp's stage: of its rows of W, and of x."""
    return GROUP * (16 * high * bits + lines * 16) // 8


@functools.lru_cache(4096)
def plan(m: int, n: int, k: int, bits: int, multiprocessors: int, memory: int) -> Plan:
    """The plan for m rows of x and n of W, on a GPU whose multiprocessors have ``memory`` bytes of shared memory each.

    Blocks are few where W has few rows. Then they have more warps, but none without a group.

    >>> plan(1, 8192, 28672, 4, 132, 228 * 1024)
    Plan(lines=1, high=4, warps=12, stages=3, most=168)
    >>> plan(1, 1024, 65536, 4, 132, 228 * 1024)
    Plan(lines=1, high=1, warps=32, stages=3, most=64)
    """
    lines = 1 if m == 1 else 8

    def least(high: int, stages: int = 2) -> int:
        """Bytes of a warp: of its stages, and of its sums."""
        return stages * _stage(bits, lines, high) + 16 * high * 8 * 4

    large = 10 * blocks(n, 16 * QUADS) >= 9 * multiprocessors and blocks(k, GROUP) >= 4 * WARPS_OF_QUADS
    if large and WARPS_OF_QUADS * least(QUADS, STAGES) + RESERVED <= memory:
        return Plan(lines, QUADS, WARPS_OF_QUADS, STAGES, OF_QUADS)
    high, most, warps = HIGH, REGISTERS, WARPS
    if 2 * blocks(n, 16 * PAIRS) > multiprocessors and warps * least(PAIRS) + RESERVED <= memory:
        high, most = PAIRS, OF_PAIRS
    places = multiprocessors * 65536 // (32 * most)  # for warps, by their registers
    most_warps = min(32, blocks(k, GROUP), (memory - RESERVED) // least(high))
    while 2 * warps <= most_warps and blocks(n, 16 * high) * 2 * warps <= places:
        warps *= 2
    share = memory // max(1, 2 * WARPS // warps) - RESERVED  # two blocks of a multiprocessor, or one that is large
    stages = min(STAGES, (share // warps - least(high)) // _stage(bits, lines, high) + 2)
    return Plan(lines, high, warps, max(stages, 2), most)


def by_stages(p: Problem, chosen: Plan) -> None:
    """The launch of `staged`."""
    (m, k), n = p.x.shape, p.w.shape[0]
    given = flat(p.x, np.uint32), flat(p.w, np.uint32), flat(p.scales), flat(p.result), m, n, k
    grid, shared = blocks(n, 16 * chosen.high), chosen.shared(p.bits)
    staged_kernel(p.bits, *chosen)[grid, 32 * chosen.warps, p.stream, shared](*given)


@rung(staged_kernel, tensor_kernel, vector_kernel, warp_kernel)
def staged(p):
    """Groups of W, and of x beside them, are on their way into shared memory while a warp multiplies others.

    A block has up to 64 rows of W where there are enough, so elements of x are put into the order that the tensor cores
    want a quarter as often. For more than eight rows of x, and where its rows do not begin at multiples of 16 bytes,
    this is the rung before.

    Source: CUDA C++ programming guide, "Asynchronous data copies"; PMPP 4e section 4.7, on latency and what hides it.

    Leaves: each warp puts x in order for itself, applies a scale for each group, and waits for what other lanes copy.
    """
    (m, k), n, limits = p.x.shape, p.w.shape[0], device.limits()
    suits = p.x.dtype == np.float16 and m <= 8 and whole_vectors(p.x) and device.address(p.w) % 16 == 0
    if not suits or limits["compute_capability"] < CAPABILITY:
        tensor.launch(p)
    else:
        held = limits["multiprocessors"], limits["max_shared_memory_per_multiprocessor"]
        by_stages(p, plan(m, n, k, p.bits, *held))


# ------------------------------------------------------------------------------------------------ a queue for each lane
# For one row of x. No weight is read by two lanes. So a lane can copy its own, 16 bytes at a time, into a queue of its
# own in shared memory: it waits for no other lane, and shared memory is to it what more registers would be. x is put in
# order once for a block. And a group of W has a column of the tensor core to itself, eight groups in turn: so scales
# are applied once for eight groups, and each lane loads those of its own two columns.

QUEUE_WARPS = 16  # warps of a block: each of their lanes has a queue
TURNS, IN_TURN = 4, 2  # places of a queue, and groups in each: one for each of the eight columns
EIGHT = TURNS * IN_TURN * GROUP  # weights of a row that a warp multiplies before it applies scales
PLACE = IN_TURN * 2 * 128  # words of a warp's place: 128 bits for each lane and each of its two rows
RAISED_BY = np.float32(-8 * 2.0**-18)  # times the sum of x: what the raised weights of a group add too much, times -1


@functools.cache
def queued_kernel(shares: int) -> typing.Any:
    """The kernel ``(x, w, scales, out, n, k)``, of flat arrays, for weights of 4 bits and one row of x.

    ``shares``: warps of a block that have the same 16 rows of W, and take turns at each eight groups.
    """
    threads, below, pending, factor = 32 * QUEUE_WARPS, 16 * QUEUE_WARPS // shares, TURNS - 2, FACTOR[4]
    x_begin, all_of_w = np.uint32(QUEUE_WARPS * TURNS * PLACE), TURNS - 1

    @cuda.jit(device=True)
    def bring_x(words, x, parts, k):
        """Begin to copy x, 16 bytes at a time, with zeros behind its end."""
        i = np.uint32(cuda.threadIdx.x)
        while i < parts:
            count = 4 if np.int64(i) * 8 < k else 0
            copy_async(words, np.uint32(x_begin + i * np.uint32(4)), x, np.int64(i) * 4, count)
            i = np.uint32(i + np.uint32(threads))
        commit_copies()

    @cuda.jit(device=True)
    def order_x(words, floats, excess, parts):
        """Put what this thread has copied of x in order, each part in its place, and add up each group."""
        wait_copies(all_of_w)
        i = np.uint32(cuda.threadIdx.x)
        while i < parts:
            at = np.uint32(x_begin + i * np.uint32(4))
            x0, x1, x2, x3 = load128(words, at)
            total = low_half(x0) + high_half(x0) + low_half(x1) + high_half(x1)
            total += low_half(x2) + high_half(x2) + low_half(x3) + high_half(x3)
            for apart in (1, 2, 4, 8):  # sixteen parts are a group
                total += cuda.shfl_xor_sync(FULL_WARP, total, apart)
            store128(words, at, (lows(x0, x2), highs(x0, x2), lows(x1, x3), highs(x1, x3)))
            if i % np.uint32(16) == 0:
                floats[excess + i // np.uint32(16)] = total * RAISED_BY
            i = np.uint32(i + np.uint32(threads))

    @cuda.jit(device=True)
    def start(words, to, w, begins, group, groups):
        """Begin to copy the lane's weights of some groups of its two rows. Behind the last group all is 0.

        A copy of a warp is half a line of each of eight rows, and that of the next group is the other half.
        """
        for one in range(IN_TURN):
            count = 4 if np.int32(group + one) < groups else 0
            for side in range(2):
                place = np.uint32(to + np.uint32((2 * one + side) * 128))
                copy_async_once(words, place, w, begins[side] + np.int64(group) * 16 + 16 * one, count)
        commit_copies()

    @cuda.jit(device=True)
    def fetch_scales(scales, lines, first, last, own):
        """Load the scales of two groups, those of the lane's columns."""
        for side in range(2):
            for e in range(2):
                own[side, e] = cuda.ldcs(scales, lines[side] + min(np.int32(first + e), last))

    @cuda.jit(device=True)
    def add(sums, at, a0, a1, a2, a3, b):
        c = mma_f16((a0, a1, a2, a3), b, (sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3]))
        sums[at, 0], sums[at, 1], sums[at, 2], sums[at, 3] = c

    def turn(place):
        """A device function with one place of the queue. Where it lies is a constant then, and takes no instructions.

        What it asks for gets the place before its own, which was read a turn ago. ``eight``: the first of the eight
        groups that this is part of.
        """
        before = np.uint32((place - 1) % TURNS * PLACE)
        ahead = np.int32((TURNS - 1) * IN_TURN if place == 0 else (place - 1) * IN_TURN)

        @cuda.jit(device=True)
        def one_turn(words, queue, w, begins, eight, groups, x_at, zeros, line, sums):
            """Wait for the oldest groups, ask for the next ones, and multiply."""
            wait_copies(pending)
            start(words, np.uint32(queue + before), w, begins, np.int32(eight + ahead), groups)
            for one in range(IN_TURN):
                # Each sum is written out: so the compiler keeps these addresses in registers for all rounds.
                upper = load128(words, np.uint32(queue + np.uint32(place * PLACE + 256 * one)))
                lower = load128(words, np.uint32(queue + np.uint32(place * PLACE + 256 * one + 128)))
                column = np.uint32(place * IN_TURN + one)
                from_x = np.uint32(x_at + column * np.uint32(64)) if line == column else zeros
                for i in range(4):
                    x0, x1, x2, x3 = load128(words, np.uint32(from_x + np.uint32(4 * i)))
                    a0, a2 = pairs_of_four(upper[i], 0)
                    a1, a3 = pairs_of_four(lower[i], 0)
                    add(sums, 0, a0, a1, a2, a3, (x0, x1))
                    a0, a2 = pairs_of_four(upper[i], 1)
                    a1, a3 = pairs_of_four(lower[i], 1)
                    add(sums, 1, a0, a1, a2, a3, (x2, x3))

        return one_turn

    first_turn, second_turn, third_turn, fourth_turn = (turn(place) for place in range(TURNS))

    @cuda.jit(launch_bounds=(threads, 1))
    def kernel(x, w, scales, out, n, k):
        words = cuda.shared.array(0, np.uint32, alignment=16)  # two views of the same memory
        floats = cuda.shared.array(0, np.float32, alignment=16)
        ends = cuda.shared.array((QUEUE_WARPS, 16), np.float32)
        sums, totals = cuda.local.array((2, 4), np.float32), cuda.local.array(2, np.float32)
        scale, soon = cuda.local.array((2, 2), np.float32), cuda.local.array((2, 2), np.float32)
        begins, lines = cuda.local.array(2, np.int64), cuda.local.array(2, np.int64)  # of W, and of scales
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(32)), np.uint32(thread // np.uint32(32))
        line, quarter = np.uint32(lane // np.uint32(4)), np.uint32(lane % np.uint32(4))
        groups, eights = np.int32((k + GROUP - 1) // GROUP), np.int32((k + EIGHT - 1) // EIGHT)
        parts = np.uint32(np.uint32(eights) * np.uint32(EIGHT // 8))  # of x, of 16 bytes
        zeros = np.uint32(x_begin + parts * np.uint32(4))
        excess = np.uint32(zeros + np.uint32(16))
        bring_x(words, x, parts, k)
        tall = np.int64(cuda.blockIdx.x) * below
        top = tall + warp // np.uint32(shares) * np.uint32(16)
        for side in range(2):  # rows beyond the last are the last again, and are not stored
            lines[side] = min(top + np.int64(line) + 8 * side, n - 1) * np.int64(groups)
            begins[side] = lines[side] * 16 + 4 * quarter
            totals[side] = f0
        eight = np.int32(warp % np.uint32(shares))
        queue = np.uint32(warp * np.uint32(TURNS * PLACE) + lane * np.uint32(4))
        for place in range(TURNS - 1):
            to = np.uint32(queue + np.uint32(place * PLACE))
            start(words, to, w, begins, np.int32(eight * 8 + place * IN_TURN), groups)
        column, last = np.int32(2 * quarter), np.int32(groups - 1)
        fetch_scales(scales, lines, np.int32(eight * 8 + column), last, soon)
        order_x(words, floats, excess, parts)
        if thread < 16:  # what the lanes of other columns read
            words[zeros + thread] = np.uint32(0)
        cuda.syncthreads()
        while eight < eights:
            here, after = np.int32(eight * 8), np.int32((eight + shares) * 8)
            for side in range(2):
                for e in range(2):
                    scale[side, e] = soon[side, e] * factor
                    sums[side, e] = sums[side, e + 2] = f0
            fetch_scales(scales, lines, np.int32(after + column), last, soon)  # a round before they are needed
            x_at = np.uint32(x_begin + np.uint32(here) * np.uint32(64) + quarter * np.uint32(16))
            first_turn(words, queue, w, begins, here, groups, x_at, zeros, line, sums)
            second_turn(words, queue, w, begins, after, groups, x_at, zeros, line, sums)
            third_turn(words, queue, w, begins, after, groups, x_at, zeros, line, sums)
            fourth_turn(words, queue, w, begins, after, groups, x_at, zeros, line, sums)
            for e in range(2):
                too_much = floats[excess + np.uint32(here + column + e)]
                for side in range(2):
                    both = sums[0, 2 * side + e] + sums[1, 2 * side + e]
                    totals[side] += (both + too_much) * scale[side, e]
            eight = np.int32(eight + shares)
        for side in range(2):
            total = totals[side]
            total += cuda.shfl_xor_sync(FULL_WARP, total, 1)
            total += cuda.shfl_xor_sync(FULL_WARP, total, 2)
            if quarter == 0:
                ends[warp, np.uint32(8 * side) + line] = total
        cuda.syncthreads()
        if thread < below and tall + thread < n:
            total, first = f0, thread // np.uint32(16) * np.uint32(shares)
            for other in range(shares):
                total += ends[first + np.uint32(other), thread % np.uint32(16)]
            out[tall + thread] = total

    return kernel


def queued_shared(k: int) -> int:
    """Bytes of a block: its queues, x in order, 16 words of zeros, and a sum for each group."""
    eights = blocks(k, EIGHT)
    return 4 * (QUEUE_WARPS * TURNS * PLACE + eights * (EIGHT // 2 + 8) + 16)


def by_queues(p: Problem, shares: int) -> None:
    """The launch of `queued`."""
    n, k = p.w.shape[0], p.x.shape[1]
    given = flat(p.x, np.uint32), flat(p.w, np.uint32), flat(p.scales), flat(p.result), n, k
    grid = blocks(n, 16 * QUEUE_WARPS // shares)
    queued_kernel(shares)[grid, 32 * QUEUE_WARPS, p.stream, queued_shared(k)](*given)


@functools.lru_cache(4096)
def shares(n: int, k: int, multiprocessors: int, memory: int) -> int:
    """Warps that share 16 of n rows of W in `queued`, or 0 where the rung before is for them.

    A multiprocessor has room for one block, since x and the queues fill its ``memory`` bytes of shared memory. The
    fewer rows a block has, the better do the blocks fit the multiprocessors. But each has to put x in order, which
    takes about as long as 12 rows. Blocks are to be nearly as many as multiprocessors, and half of the warps are to
    have something to do.

    >>> shares(8192, 28672, 132, 228 * 1024), shares(8192, 28672, 132, 100 * 1024)
    (4, 0)
    """

    def time(some: int) -> int:
        below = 16 * QUEUE_WARPS // some
        return blocks(blocks(n, below), multiprocessors) * (below + 12)

    possible = [some for some in (2, 4, 8, 16) if some <= 2 * blocks(k, EIGHT)]
    if not possible or queued_shared(k) + 16 * QUEUE_WARPS * 4 + RESERVED > memory:
        return 0
    best = min(possible, key=time)
    return best if 10 * blocks(n, 16 * QUEUE_WARPS // best) >= 9 * multiprocessors else 0


@rung(queued_kernel, staged_kernel, tensor_kernel, vector_kernel, warp_kernel)
def queued(p):
    """A lane copies its own weights, and waits for no other lane. x is put in order once, and a group has a column.

    For more than one row of x, for weights of 8 bits, and for a W that is too small to fill the GPU, this is the rung
    before.

    Source: CUDA C++ programming guide, "Asynchronous data copies"; PTX ISA, "cp.async", for the hint to fetch lines.
    """
    (m, k), n, limits = p.x.shape, p.w.shape[0], device.limits()
    suits = p.bits == 4 and m == 1 and p.x.dtype == np.float16 and whole_vectors(p.x) and device.address(p.w) % 16 == 0
    if suits and limits["compute_capability"] >= CAPABILITY:
        some = shares(n, k, limits["multiprocessors"], limits["max_shared_memory_per_multiprocessor"])
        if some:
            by_queues(p, some)
            return
    staged.launch(p)


LADDER = (thread_per_row, coalesced, vectorised, tensor, staged, queued)
