"""Integer layers: y = x @ W.T of int8 with sums in int32, which become int8 again before they are stored.

Chapter: notebooks/77_quantisation.ipynb.  PMPP 5e ch. 20.
Roof: tensor cores, int8.

With many rows of x a layer is bound by arithmetic, and then x is worth quantising, too: tensor cores multiply int8 at
twice the rate of float16. If x has the scale s_x and row n of W the scale s_n, a sum of products stands for itself
times s_x s_n, and in steps of s_y it is that divided by s_y: one factor for each column of y. So the sum of a layer
becomes the int8 that the next layer wants by one multiplication, a rounding and a limit, *requantisation*, while it is
still in a register. Stored as int32 first, y would be written with four times the bytes, and read again.

The instructions are in `pmpp.runtime.matrix`. They need a GPU of compute capability 8.0 or higher.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.matmul.tensor_cores import by_matrices, copier, swizzled_place
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.matrix import commit_copies, load32, mma_s8, wait_copies
from pmpp.runtime.rung import Cost, Problem, rung

CAPABILITY = (8, 0)  # of the oldest GPU that has mma.sync for this shape, and asynchronous copies
MOST_K = 2**17 - 1  # with more a sum of products of two int8 may exceed an int32
i0, f0 = np.int32(0), np.float32(0)


# --------------------------------------------------------------------------------------------------------- definition


def reference(
    x: np.ndarray, w: np.ndarray, factors: np.ndarray, bias: np.ndarray | None = None, relu: bool = False
) -> np.ndarray:
    """The definition: exact sums, then a product in float32, rounded to the nearest whole number, and the limits."""
    sums = x.astype(np.int64) @ w.T.astype(np.int64)
    if bias is not None:
        sums = (sums + bias).astype(np.int32)  # wraps, as int32 does
    scaled = sums.astype(np.float32) * factors
    return np.clip(np.rint(scaled), 0 if relu else -128, 127).astype(np.int8)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, w, factors, bias, relu)``."""
    rng = np.random.default_rng(8) if rng is None else rng

    def case(m: int, n: int, k: int, biased: bool = True, relu: bool = False) -> tuple:
        x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (n, k)))
        factors = (rng.uniform(0.3, 1, n) * 60 / (5500 * max(k, 1) ** 0.5)).astype(np.float32)
        bias = rng.integers(-5000, 5000, n).astype(np.int32) if biased else None
        return x, w, factors, bias, relu

    shapes = {"one": (1, 1, 1), "no x": (0, 3, 4), "no row": (3, 0, 4), "nothing to add": (2, 5, 0)}
    shapes |= {"a fragment": (16, 8, 32), "a fragment and one": (17, 9, 33), "odd": (5, 19, 71), "long": (3, 4, 700)}
    made = {name: case(*shape) for name, shape in shapes.items()}
    made |= {"no bias": case(9, 10, 48, False), "relu": case(20, 12, 80, relu=True), "a tile": case(128, 128, 64)}
    made |= {"a tile and some": case(130, 24, 144, False, True)}
    x, w = np.full((2, 64), -128, np.int8), np.full((3, 64), -128, np.int8)
    made["largest sums"] = x, w, np.float32([1e-4, 1, 3e-5]), np.int32([2**30, -(2**30), 0]), False
    x, w = np.int8([[1, 3, -5, 7]]), np.int8([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    made["halves"] = x, w, np.full(4, 0.5, np.float32), None, False
    return made


def cost(m: int, n: int, k: int) -> Cost:
    """A multiply-add for each of m n k products; x and W read once, y written once, a byte an element; factors, bias.

    >>> round(cost(4096, 4096, 4096).intensity)
    2729
    """
    return Cost(flops=2 * m * n * k, bytes=m * k + n * k + m * n + 8 * n)


def tolerance(
    x: np.ndarray, w: np.ndarray, factors: np.ndarray, bias: np.ndarray | None = None, relu: bool = False
) -> float:
    """None: sums of integers are exact, and each further step has one result."""
    return 0.0


def arguments(x, w, factors, bias=None, relu=False, *, out=None, stream=0) -> Problem:
    """Multiply int8 by int8, and requantise: y[m, n] = round(factors[n] (bias[n] + sum over k of x[m, k] W[n, k])).

    Args:
        x: int8 of shape (M, K), with K from 0 to 2^17 - 1, so that a sum fits into int32. All arrays are in C order.
        w: int8 of shape (N, K).
        factors: float32 of shape (N,): the scale of x times that of row n of W, divided by the scale of y.
        bias: int32 of shape (N,), in units of a product; None for none. Its addition wraps.
        relu: whether negative results become 0.
        out: an int8 device array of shape (M, N), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. The sum is rounded to float32, multiplied, rounded to the
    nearest whole number, halfway to the even one, and limited to -128 and 127. Every rung gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.
    Source: Jacob et al., Quantization and training, CVPR 2018, section 2.2.

    >>> from pmpp.kernels.quantisation import integer_linear
    >>> x, w = np.int8([[1, 2], [50, 60]]), np.int8([[3, 4], [-1, 0]])
    >>> integer_linear.fragments(x, w, np.float32([0.5, 0.5])).copy_to_host()
    array([[  6,   0],
           [127, -25]], dtype=int8)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="int8", ndim=2, stream=stream)
    m, k = x.shape
    if k > MOST_K:
        raise ValueError(f"x must have at most {MOST_K} columns, had {k}")
    w = device.as_input("w", w, dtypes="int8", ndim=2, shape=(None, k), stream=stream)
    n = w.shape[0]
    factors = device.as_input("factors", factors, dtypes="float32", ndim=1, shape=(n,), stream=stream)
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes="int32", ndim=1, shape=(n,), stream=stream)
    relu = as_flag("relu", relu)
    apart = {"x": x, "w": w, "factors": factors, "bias": bias}
    out = device.as_output("out", out, shape=(m, n), dtype="int8", apart=apart, stream=stream)
    capability = device.limits()["compute_capability"]
    if capability < CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this room needs a GPU of compute capability 8.0 or higher, this one has {said}")
    bias, low = no_bias() if bias is None else bias, np.int32(0 if relu else -128)
    if out.size and not k:
        x, w = (device.to_device(np.zeros((rows, 1), np.int8)) for rows in (m, n))
    return Problem(out, stream=stream, x=x, w=w, factors=factors, bias=bias, low=low)


@device.cached(1)
def no_bias() -> typing.Any:
    """An empty array."""
    return device.empty(0, np.int32)


# ----------------------------------------------------------------------------------------------------------- one each


@cuda.jit(device=True)
def requantised(total, column, factors, bias, low):
    """The int8 of a sum, in an int32."""
    if bias.size:
        total = np.int32(total + bias[column])
    steps = cuda.libdevice.float2int_rn(np.float32(total) * factors[column])
    return min(max(steps, low), np.int32(127))


@cuda.jit
def thread_kernel(x, w, factors, bias, low, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column, total = i // out.shape[1], i % out.shape[1], i0
        for k in range(x.shape[1]):
            total = np.int32(total + np.int32(x[row, k]) * np.int32(w[column, k]))
        out[row, column] = np.int8(requantised(total, column, factors, bias, low))


@rung(thread_kernel)
def thread_per_element(p):
    """A thread for each element adds up its products, and stores a byte.

    Source: PMPP 4e section 3.4.

    Leaves: a byte is loaded for each operation, and a multiprocessor multiplies 64 integers a cycle.
    """
    grid = blocks(p.result.size, 128)
    thread_kernel[grid, 128, p.stream](p.x, p.w, p.factors, p.bias, p.low, p.result)


# ------------------------------------------------------------------------------------------------------ the fragments

MMA_M, MMA_N, MMA_K = 16, 8, 32  # mma.sync adds a 16 x 32 times a 32 x 8 matrix of int8 to a 16 x 8 one of int32
WARPS = 4  # of a block in `fragments`, each with a tile of its own


@cuda.jit(device=True)
def word(x, row, k, wide):
    """Four neighbours of a row as a register; what is beyond the edges is 0, which adds nothing."""
    if row >= x.shape[0] or k >= x.shape[1]:
        return np.uint32(0)
    if wide:
        return load32(x, row * x.shape[1] + k)
    packed = np.uint32(0)
    for byte in range(4):
        if k + byte < x.shape[1]:
            packed = np.uint32(packed | np.uint32(np.uint8(x[row, k + byte])) << np.uint32(8 * byte))
    return packed


@cuda.jit(device=True)
def store(out, row, column, sums, factors, bias, low):
    """Store the 16 x 8 results at (row, column) that a warp's sums become."""
    lane = cuda.threadIdx.x % 32
    for i in range(4):
        at, beside = row + lane // 4 + i // 2 * 8, column + lane % 4 * 2 + i % 2
        if at < out.shape[0] and beside < out.shape[1]:
            out[at, beside] = np.int8(requantised(sums[i], beside, factors, bias, low))


@functools.cache
def fragments_kernel(wide: bool) -> typing.Any:
    """The kernel ``(x, w, factors, bias, low, out)``; ``wide``: rows of x and w begin at multiples of four bytes."""

    @cuda.jit
    def kernel(x, w, factors, bias, low, out):
        lane, warp = cuda.threadIdx.x % 32, cuda.threadIdx.x // 32
        tiles_n = (out.shape[1] + MMA_N - 1) // MMA_N
        tile = cuda.blockIdx.x * np.int64(WARPS) + warp
        row, column = tile // tiles_n * MMA_M, tile % tiles_n * MMA_N
        own_row, own_column, sums = row + lane // 4, column + lane // 4, (i0, i0, i0, i0)
        for k in range(lane % 4 * 4, (x.shape[1] + MMA_K - 1) // MMA_K * MMA_K, MMA_K):
            a = (
                word(x, own_row, k, wide),
                word(x, own_row + 8, k, wide),
                word(x, own_row, k + 16, wide),
                word(x, own_row + 8, k + 16, wide),
            )
            sums = mma_s8(a, (word(w, own_column, k, wide), word(w, own_column, k + 16, wide)), sums)
        store(out, row, column, sums, factors, bias, low)

    return kernel


@rung(fragments_kernel)
def fragments(p):
    """A warp multiplies on tensor cores: a register has four neighbours of a row, of x and of W.

    Both run along k in memory, which is what the instruction wants.
    Source: PTX ISA, "Matrix fragments for mma.m16n8k32".

    Leaves: each warp loads its own operands from device memory, 768 bytes for 8192 operations.
    """
    wide = p.x.shape[1] % 4 == 0 and device.address(p.x) % 4 == 0 and device.address(p.w) % 4 == 0
    tiles = blocks(p.result.shape[0], MMA_M) * blocks(p.result.shape[1], MMA_N)
    given = p.x, p.w, p.factors, p.bias, p.low, p.result
    fragments_kernel(wide)[blocks(tiles, WARPS), 32 * WARPS, p.stream](*given)


# ------------------------------------------------------------------------------------------------- tiles on their way
# The machinery is that of `pmpp.kernels.matmul.tensor_cores`: two int8 are moved as a uint16, and ldmatrix gives each
# lane the same words as for float16. A block of eight warps has a tile of 128 x 128, a warp 64 x 32 of it.

SIDE, DEPTH, STAGES = 128, 32, 3  # of a tile; pairs of int8 along k at a time; tiles that have room in shared memory
THREADS, PANEL_M, PANEL_N = 256, 64, 32
STAGE = 2 * SIDE * DEPTH  # pairs of a stage, half of them of x
SHARED = STAGES * STAGE  # 48 KiB
FOUR = (i0, i0, i0, i0)
ROW = (FOUR, FOUR, FOUR, FOUR)
NOTHING = (ROW, ROW, ROW, ROW)

place = swizzled_place(DEPTH // 8)
copy_tile = copier(SIDE, DEPTH // 8, THREADS, place)
read, _ = by_matrices(place, place)


@cuda.jit(device=True)
def multiply_row(a, left, right, sums):
    """Add the products of a fragment of x with four of W. ``left``, ``right``: the words of sixteen rows of W each."""
    return (
        mma_s8(a, (left[0], left[2]), sums[0]),
        mma_s8(a, (left[1], left[3]), sums[1]),
        mma_s8(a, (right[0], right[2]), sums[2]),
        mma_s8(a, (right[1], right[3]), sums[3]),
    )


@cuda.jit(device=True)
def multiply(shared, now, row, column, k, sums):
    """Add the products of 16 pairs along k, of tiles that begin at ``now`` in shared memory."""
    of_w = np.uint32(now + np.uint32(SIDE * DEPTH))
    left, right = read(shared, of_w, column, k), read(shared, of_w, np.uint32(column + np.uint32(16)), k)
    return (
        multiply_row(read(shared, now, row, k), left, right, sums[0]),
        multiply_row(read(shared, now, np.uint32(row + np.uint32(16)), k), left, right, sums[1]),
        multiply_row(read(shared, now, np.uint32(row + np.uint32(32)), k), left, right, sums[2]),
        multiply_row(read(shared, now, np.uint32(row + np.uint32(48)), k), left, right, sums[3]),
    )


@cuda.jit(device=True)
def store_row(out, row, column, sums, factors, bias, low):
    store(out, row, column, sums[0], factors, bias, low)
    store(out, row, column + 8, sums[1], factors, bias, low)
    store(out, row, column + 16, sums[2], factors, bias, low)
    store(out, row, column + 24, sums[3], factors, bias, low)


@cuda.jit
def tiled_kernel(x, w, factors, bias, low, out):
    shared = cuda.shared.array(SHARED, np.uint16, alignment=16)
    m, n, end = np.int64(out.shape[0]), np.int64(out.shape[1]), np.int64(x.shape[1])
    tiles_m, half = (m + SIDE - 1) // SIDE, np.uint32(SIDE * DEPTH)
    first_row, first_column = cuda.blockIdx.x % tiles_m * SIDE, cuda.blockIdx.x // tiles_m * SIDE
    warp = np.uint32(cuda.threadIdx.x) // np.uint32(32)
    row, column = np.uint32(warp // np.uint32(4) * np.uint32(PANEL_M)), np.uint32(warp % np.uint32(4) * PANEL_N)
    coming = np.int64(0)
    for stage in range(STAGES - 1):
        begin = np.uint32(np.uint32(stage) * np.uint32(STAGE))
        copy_tile(shared, begin, x, first_row, coming, m, end)
        copy_tile(shared, np.uint32(begin + half), w, first_column, coming, n, end)
        commit_copies()
        coming += DEPTH
    now, into, k, sums = np.uint32(0), np.uint32(SHARED - STAGE), np.int64(0), NOTHING
    while k < end:
        wait_copies(1)  # the oldest tiles are there: those of this thread,
        cuda.syncthreads()  # and of all; and everyone has read those that are overwritten next
        copy_tile(shared, into, x, first_row, coming, m, end)
        copy_tile(shared, np.uint32(into + half), w, first_column, coming, n, end)
        commit_copies()
        sums = multiply(shared, now, row, column, np.uint32(0), sums)
        sums = multiply(shared, now, row, column, np.uint32(16), sums)
        now, into = np.uint32(now + np.uint32(STAGE)), now
        if now == np.uint32(SHARED):
            now = np.uint32(0)
        k, coming = k + DEPTH, coming + DEPTH
    row, column = first_row + row, first_column + column
    store_row(out, row, column, sums[0], factors, bias, low)
    store_row(out, row + 16, column, sums[1], factors, bias, low)
    store_row(out, row + 32, column, sums[2], factors, bias, low)
    store_row(out, row + 48, column, sums[3], factors, bias, low)


@cuda.jit
def pad_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        row, column = i // out.shape[1], i % out.shape[1]
        out[row, column] = x[row, column] if column < x.shape[1] else np.int8(0)


def in_chunks(x: typing.Any, stream: typing.Any) -> typing.Any:
    """A matrix of int8 as pairs, whose rows begin at multiples of 16 bytes: a padded copy, if need be."""
    if x.shape[1] % 16 or device.address(x) % 16:
        wider = device.empty((x.shape[0], round_up(x.shape[1], 16)), np.int8, stream=stream)
        pad_kernel[blocks(wider.size, 256), 256, stream](x, wider)
        x = wider
    return x.view(np.uint16)


@rung(tiled_kernel, pad_kernel)
def tiled(p):
    """Tiles of 128 x 128 in shared memory, three stages of them: `pipelined` of the tensor cores' room, for int8.

    If rows of x or w do not begin at multiples of 16 bytes, the kernel works on copies that are padded with zeros.
    Source: PMPP 5e sections 15.5 and 15.9.
    """
    x, w = in_chunks(p.x, p.stream), in_chunks(p.w, p.stream)
    grid = blocks(p.result.shape[0], SIDE) * blocks(p.result.shape[1], SIDE)
    tiled_kernel[grid, THREADS, p.stream](x, w, p.factors, p.bias, p.low, p.result)


LADDER = (thread_per_element, fragments, tiled)
