"""Numerics: the sum of a vector of float32, by rungs that come nearer and nearer to the true sum.

Chapter: notebooks/38_numerics.ipynb.  PMPP 4e appendix A.

All rungs read each element once, with 128-bit loads, so the time to read the vector is the bound of all. They differ in
what they do with an element meanwhile. This ladder is not ordered by time: each rung makes a smaller error than the one
before, and the question is what that costs. `reduction` is the room about speed.
"""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_sum, blocks, warp_sum
from pmpp.kernels.reduction import ladder as reduction
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import check, device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128

BLOCK = 256  # threads a block: 8 warps
WARPS = BLOCK // 32
RESIDENT = 8  # blocks that a multiprocessor runs at a time: 2048 threads, as many as it takes
ZERO = np.float32(0)  # 0.0 would be a float64

BINS = 16  # in `exact`: one for each 16 positions of a float32's last bit
LOWEST = -150  # a float32 with exponent field e is an integer times 2^(e - 150): digits begin there
DIGITS = 22  # of 16 bits each: room for 2^40 numbers of the largest size
RESIDENT_BINS = 6  # blocks that fit into a multiprocessor with their bins, of 32 KiB
MOST = 2**23  # elements a block, in `exact`: a term is below 2^39, so their sum fits an int64


def reference(x: np.ndarray) -> np.float64:
    """The exact sum of the float32 vector ``x``, rounded once, to float64. It is infinite if no float32 can hold it.

    `math.fsum` keeps all digits of a sum. NaN if there is a NaN, or if infinities of both signs meet.
    """
    if np.isnan(x).any() or (np.isposinf(x).any() and np.isneginf(x).any()):
        return np.float64(np.nan)
    total = np.float64(math.fsum(x))
    with np.errstate(over="ignore"):
        return total if np.isfinite(np.float32(total)) else np.float64(np.float32(total))


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward inputs: a name, and the vector ``(x,)``. The same every time."""
    rng = np.random.default_rng(38) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "three": 3, "a warp and one": 33}
    sizes |= {f"a block's vectors {d:+}": 4 * BLOCK + d for d in (-1, 0, 1)}
    made = {name: rng.standard_normal(n, dtype=np.float32) for name, n in sizes.items()}
    made["all positive"] = rng.random(5003, dtype=np.float32)
    made["tenths"] = np.full(5003, 0.1, np.float32)
    halves = rng.standard_normal(1500, dtype=np.float32) * np.float32(1e6)
    made["all cancels"] = rng.permutation(np.concatenate([halves, -halves]))
    spread = rng.standard_normal(2001) * 2.0 ** rng.integers(-120, 100, 2001)
    made["of all sizes"] = spread.astype(np.float32)
    made["huge, tiny, huge"] = np.float32([1e30, 1.5, -1e30])
    made["one and many too small"] = np.concatenate([[1], np.full(4000, 2.0**-25)]).astype(np.float32)
    made["subnormal"] = (rng.integers(-(2**22), 2**22, 999) * 2.0**-149).astype(np.float32)
    made["beyond float32"] = np.full(1000, 3e38, np.float32)
    made["far below zero"] = np.full(1000, -3e38, np.float32)
    made["minus zero"] = np.full(7, -0.0, np.float32)
    for name, values in {"infinity": [np.inf], "both infinities": [np.inf, -np.inf], "NaN": [np.nan, np.inf]}.items():
        x = rng.random(3001, dtype=np.float32)
        x[[2999, 17][: len(values)]] = values
        made[name] = x
    return {name: (x,) for name, x in made.items()}


def cost(n: int) -> Cost:
    """``n - 1`` additions; ``x`` read once, and the result written. More digits are no part of the definition."""
    return Cost(flops=max(n - 1, 0), bytes=4 * (n + 1))


def additions(n: int, grid: int | None = None) -> int:
    """How many roundings an element of ``n`` goes through at most on its way into the sum, in `one_after_another`.

    Those of its thread, of the five levels of a warp and of its warps, and one for each block.
    """
    grid = grid or grid_for(n)
    return 4 * blocks(n, 4 * BLOCK * grid) + 2 + 5 + 5 + grid


def tolerance(x: np.ndarray) -> float:
    """The error of the worst rung: a rounding is half an eps of a partial sum, which is at most sum |x|.

    Higham, Accuracy and Stability of Numerical Algorithms, section 4.2. tests/kernels/numerics holds each better rung
    to a bound of its own.
    """
    return additions(x.size) * 2.0**-24 * float(np.abs(x[np.isfinite(x)]).sum(dtype=np.float64))


def grid_for(n: int, resident: int = RESIDENT) -> int:
    """Blocks that fill the current GPU, ``resident`` on each multiprocessor, but no more than have a vector to read."""
    return max(1, min(resident * device.limits()["multiprocessors"], blocks(n, 4 * BLOCK)))


def arguments(x, grid=None, *, stream=0) -> Problem:
    """Add up a vector.

    Args:
        x: a contiguous vector (n,) of float32.
        grid: the number of blocks, from 1 to 65535; None: as many as the GPU runs at a time. `tree` has a grid that
            depends on n alone, and `exact` takes more blocks if each would get more than 2^23 elements.
        stream: the stream to work on.

    Returns a device array of shape (1,) and dtype float32, without waiting for the work to be done. An empty sum is 0.
    If ``x`` has a NaN or infinities of both signs, the result is NaN. A partial sum beyond the largest float32 makes
    the first three rungs infinite or NaN, even if the sum itself is not.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import numerics
    >>> numerics.exact(np.float32([1e30, 1.5, -1e30])).copy_to_host()
    array([1.5], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=("float32",), ndim=1, stream=stream)
    if grid is not None:
        grid = check.as_integer("grid", grid, 1, 65535)
    p = Problem(device.empty(1, np.float32, stream=stream), stream=stream, begin=begin, x=x, grid=grid)
    if not x.size:
        begin(p)  # the sum of nothing
        p.done = True
    return p


def begin(p):
    """Set the result to 0, for blocks to add to."""
    reduction.fill_kernel[1, 1, p.stream](p.result, ZERO)


@cuda.jit(device=True)
def edges(x, head, tail):
    """What lies before the first 16-byte boundary and after the last, for thread 0 to 2 of the grid; 0 for others."""
    i = cuda.grid(1)
    before = x[i] if i < head else ZERO
    after = x[tail + i] if tail + i < x.size else ZERO
    return before, after


@cuda.jit
def one_after_another_kernel(x, out, head, tail):
    before, after = edges(x, head, tail)
    total = before + after
    for i in range(head + 4 * cuda.grid(1), tail, 4 * cuda.gridsize(1)):
        a, b, c, d = load128(x, i)
        total += a
        total += b
        total += c
        total += d
    total = block_sum(total, cuda.shared.array(32, np.float32))
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total)


@rung(one_after_another_kernel)
def one_after_another(p):
    """Each thread adds its elements to one float32, one after another, and each block adds its sum to the result.

    Source: PMPP 4e section 10.8, and appendix A.5 on the order of additions.

    Leaves: an element goes through n / threads roundings and more, and blocks add in the order in which they finish:
    the sum depends on the grid, on the GPU and on the run.
    """
    head, tail, _ = vector_span(p.x)
    grid = p.grid or grid_for(p.x.size)
    one_after_another_kernel[grid, BLOCK, p.stream](p.x, p.result, head, tail)


@rung(reduction.deterministic_kernel, begin=False)
def tree(p):
    """Every addition has its place in a tree that depends on n alone, so a term is rounded about log2 n times.

    It is the last rung of chapter 30. Its tiles are of 2^14 elements on every GPU. An ``x`` that does not begin at a
    multiple of 16 bytes has another tree, since its first elements are apart.

    Source: PMPP 4e section 10.2; Higham, Accuracy and Stability of Numerical Algorithms, section 4.1, on pairwise sums.

    Leaves: it repeats, but it is rounded all the same. If the terms cancel, what was rounded away can be all that
    would be left.
    """
    form = {"dtype": p.x.dtype, "dtype_of_result": p.x.dtype}
    return reduction.deterministic.launch(p.replace(op=reduction.SUM, identity=ZERO, **form))


@cuda.jit(device=True)
def two_sum(a, b):
    """``a + b`` rounded, and what the rounding has taken away: the two add up to a + b exactly."""
    total = a + b
    of_b = total - a
    of_a = total - of_b
    return total, (a - of_a) + (b - of_b)


@cuda.jit(device=True)
def join(total, rest, other, other_rest):
    """Add two pairs, each a sum and what its roundings have taken away."""
    total, lost = two_sum(total, other)
    return total, rest + other_rest + lost


@cuda.jit(device=True)
def warp_join(total, rest):
    """In all lanes, the warp's pairs as one pair."""
    for distance in (16, 8, 4, 2, 1):
        other = cuda.shfl_xor_sync(FULL_WARP, total, distance)
        other_rest = cuda.shfl_xor_sync(FULL_WARP, rest, distance)
        total, rest = join(total, rest, other, other_rest)
    return total, rest


@cuda.jit(device=True)
def block_join(total, rest):
    """In all threads, the block's pairs as one pair."""
    totals, rests = cuda.shared.array(32, np.float32), cuda.shared.array(32, np.float32)
    total, rest = warp_join(total, rest)
    if cuda.laneid == 0:
        totals[cuda.threadIdx.x // 32], rests[cuda.threadIdx.x // 32] = total, rest
    cuda.syncthreads()
    total = totals[cuda.laneid] if cuda.laneid < WARPS else ZERO
    rest = rests[cuda.laneid] if cuda.laneid < WARPS else ZERO
    return warp_join(total, rest)


@cuda.jit
def compensated_kernel(x, totals, rests, head, tail):
    before, after = edges(x, head, tail)
    total, rest = two_sum(before, after)
    for i in range(head + 4 * cuda.grid(1), tail, 4 * cuda.gridsize(1)):
        for value in load128(x, i):
            total, lost = two_sum(total, value)
            rest += lost
    total, rest = block_join(total, rest)
    if cuda.threadIdx.x == 0:
        totals[cuda.blockIdx.x], rests[cuda.blockIdx.x] = total, rest


@cuda.jit
def join_blocks_kernel(totals, rests, out):
    total, rest = ZERO, ZERO
    for i in range(cuda.threadIdx.x, totals.size, BLOCK):
        total, rest = join(total, rest, totals[i], rests[i])
    total, rest = block_join(total, rest)
    if cuda.threadIdx.x == 0:
        out[0] = total + rest if rest - rest == ZERO else total  # where the sum is infinite, the rest is NaN


@rung(compensated_kernel, join_blocks_kernel, begin=False)
def compensated(p):
    """A thread keeps two float32: the sum, and the sum of all that its roundings have taken away.

    Source: W. Kahan, Further remarks on reducing truncation errors, CACM 8 (1965); D. Knuth, TAOCP 2, section 4.2.2,
    for an error without a comparison; T. Ogita, S. Rump and S. Oishi, Accurate sum and dot product (2005), for bounds.

    Leaves: seven operations an element in the place of one, and every exchange is of two numbers.
    """
    head, tail, _ = vector_span(p.x)
    grid = p.grid or grid_for(p.x.size)
    totals, rests = (device.empty(grid, np.float32, stream=p.stream) for _ in range(2))
    compensated_kernel[grid, BLOCK, p.stream](p.x, totals, rests, head, tail)
    join_blocks_kernel[1, BLOCK, p.stream](totals, rests, p.result)


@cuda.jit
def wider_kernel(x, partials, head, tail):
    before, after = edges(x, head, tail)
    total = np.float64(before) + np.float64(after)
    for i in range(head + 4 * cuda.grid(1), tail, 4 * cuda.gridsize(1)):
        a, b, c, d = load128(x, i)
        total += np.float64(a)
        total += np.float64(b)
        total += np.float64(c)
        total += np.float64(d)
    total = block_sum(total, cuda.shared.array(32, np.float64))
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total


@cuda.jit
def add_blocks_kernel(partials, out):
    total = np.float64(0)
    for i in range(cuda.threadIdx.x, partials.size, BLOCK):
        total += partials[i]
    total = block_sum(total, cuda.shared.array(32, np.float64))
    if cuda.threadIdx.x == 0:
        out[0] = total


@rung(wider_kernel, add_blocks_kernel, begin=False)
def wider(p):
    """The numbers stay float32 in memory, and the sum is a float64: one operation an element, with 29 bits more.

    Source: PMPP 4e appendix A.4, on accuracy; N. Whitehead and A. Fit-Florea, Precision and performance (NVIDIA, 2011).

    Leaves: on GPUs for graphics float64 is 32 or 64 times slower, and can take longer than reading. And it rounds, too:
    on another grid the last bit can differ, and terms that differ in size by more than 2^53 are lost.
    """
    head, tail, _ = vector_span(p.x)
    grid = p.grid or grid_for(p.x.size)
    partials = device.empty(grid, np.float64, stream=p.stream)
    wider_kernel[grid, BLOCK, p.stream](p.x, partials, head, tail)
    add_blocks_kernel[1, BLOCK, p.stream](partials, p.result)


@cuda.jit(device=True)
def collect(value, bins, special):
    """Add a float32 to the thread's own column of bins. What is not finite has no digits, and goes to ``special``."""
    bits = cuda.libdevice.float_as_int(value)
    exponent = (bits >> 23) & 0xFF
    term = np.int64(bits & 0x7FFFFF)
    if exponent == 0xFF:
        return special + value
    if exponent > 0:
        term |= 0x800000  # the hidden bit
    else:
        exponent = 1  # subnormal: the spacing of the smallest normal numbers, and no hidden bit
    term <<= exponent & 15
    bins[exponent >> 4, cuda.threadIdx.x] += term if bits >= 0 else -term
    return special


@cuda.jit
def exact_kernel(x, digits, out, head, tail):
    thread, special = cuda.threadIdx.x, ZERO
    bins = cuda.shared.array((BINS, BLOCK), np.int64)
    for k in range(BINS):
        bins[k, thread] = 0
    for value in edges(x, head, tail):
        special = collect(value, bins, special)
    for i in range(head + 4 * cuda.grid(1), tail, 4 * cuda.gridsize(1)):
        for value in load128(x, i):
            special = collect(value, bins, special)
    special = block_sum(special, cuda.shared.array(32, np.float32))
    if thread == 0 and special != ZERO:
        cuda.atomic.add(out, 0, special)
    for k in range(thread // 32, BINS, WARPS):  # a bin a warp; `block_sum` had the barrier
        total = np.int64(0)
        for other in range(cuda.laneid, BLOCK, 32):
            total += bins[k, other]
        total = warp_sum(total)
        if cuda.laneid == 0:
            cuda.atomic.add(digits, k, total & 0xFFFFFFFF)
            cuda.atomic.add(digits, k + 2, total >> 32)  # two digits of 16 bits further up


@cuda.jit(device=True)
def carry(digits):
    """Give each digit but the last a value from 0 to 65535, by passing on what is above that."""
    for k in range(DIGITS - 1):
        digits[k + 1] += digits[k] >> 16
        digits[k] &= 0xFFFF


@cuda.jit
def round_kernel(digits, out):
    own = cuda.local.array(DIGITS, np.int64)
    for k in range(DIGITS):
        own[k] = digits[k]
    carry(own)
    sign = np.int64(-1 if own[DIGITS - 1] < 0 else 1)
    if sign < 0:
        for k in range(DIGITS):
            own[k] = -own[k]
        carry(own)
    top = DIGITS - 1
    while top > 2 and own[top] == 0:
        top -= 1
    leading = own[top] << 32 | own[top - 1] << 16 | own[top - 2]
    for k in range(top - 2):
        if own[k] != 0:
            leading |= 1  # far below the last bit of a float32: it only says that this is no tie
    if out[0] == ZERO:  # else the sum is infinite or NaN
        out[0] = math.ldexp(np.float64(sign * leading), 16 * (top - 2) + LOWEST)  # rounded once, to float32


@rung(reduction.fill_kernel, exact_kernel, round_kernel)
def exact(p):
    """Integers: every float32 is a multiple of 2^-149, so a sum of them has digits, which are added without rounding.

    A thread has a column of 16 bins in shared memory, each an int64 for 16 positions of a float32's last bit. It adds
    to them without atomics and without bank conflicts. Integers may be added in any order, so the result has the same
    bits for every grid, GPU and order of ``x``. It is the float32 next to the true sum, and a tie goes to the even one.

    Source: U. Kulisch, Computer Arithmetic and Validity, chapter 8, for the accumulator; J. Demmel and H. D. Nguyen,
    Parallel reproducible summation (2015), for the aim, and a way in floating point.
    """
    head, tail, _ = vector_span(p.x)
    grid = max(p.grid or grid_for(p.x.size, RESIDENT_BINS), blocks(p.x.size, MOST))
    digits = device.empty(DIGITS, np.int64, stream=p.stream)
    reduction.fill_kernel[1, DIGITS, p.stream](digits, np.int64(0))
    exact_kernel[grid, BLOCK, p.stream](p.x, digits, p.result, head, tail)
    round_kernel[1, 1, p.stream](digits, p.result)


LADDER = (one_after_another, tree, compensated, wider, exact)
