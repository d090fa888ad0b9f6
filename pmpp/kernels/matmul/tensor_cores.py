"""Matrix multiplication on tensor cores: C = A @ B, with A and B in float16, and C in float32.

Chapter: notebooks/40_tensor_cores.ipynb.  PMPP 4e ch. 6.
Roof: tensor cores, float16.

A tensor core multiplies small matrices: one instruction of a warp, mma.sync, adds a 16 x 16 times a 16 x 8 matrix to
sums in float32. That is 4096 operations, where a warp's multiply-add is 64. So arithmetic becomes ten times as fast,
and memory does not: at 1000 TFLOP/s a product must do hundreds of operations for each byte that it fetches. The ladder
is therefore about feeding the tensor cores: from device memory into shared memory without waiting, and from there into
registers without bank conflicts, in the order in which the instruction wants its operands.

Kernels move the 16 bits of an element and compute nothing with them, so they see float16 as uint16. The instructions
are in `pmpp.runtime.matrix`. They need a GPU of compute capability 8.0 or higher. The last rung has an engine of
compute capability 9.0 copy for it (`pmpp.runtime.hopper`), and is the one before on other GPUs.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, round_up
from pmpp.runtime import device
from pmpp.runtime.hopper import bulk_tile, expect_bytes, mbarrier_arrive, mbarrier_init, mbarrier_wait, tensor_map
from pmpp.runtime.hopper_maps import launch_words, maps_of_launch
from pmpp.runtime.hopper_registers import fewer_registers, more_registers
from pmpp.runtime.matrix import (
    commit_copies,
    copy_async,
    ldmatrix,
    ldmatrix_transposed,
    load32,
    mma_f16,
    pack_halves,
    wait_copies,
)
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import store128

f0 = np.float32(0)
RESULT = np.float32  # the dtype of what the rungs return
CAPABILITY = (8, 0)  # of the oldest GPU that has mma.sync for this shape, and asynchronous copies


# --------------------------------------------------------------------------------------------------------- definition


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of an M x K and a K x N matrix: one sum of K products after another, in float64."""
    c = np.zeros((a.shape[0], b.shape[1]))
    for row, column in np.ndindex(c.shape):
        c[row, column] = sum(float(x) * float(y) for x, y in zip(a[row], b[:, column], strict=True))
    return c


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs by name, each a pair (a, b) of float16 matrices that can be multiplied."""
    rng = np.random.default_rng(0) if rng is None else rng

    def pair(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)

    shapes = {"one": (1, 1, 1), "row times column": (1, 1, 45), "column times row": (19, 21, 1)}
    shapes |= {"no depth": (5, 7, 0), "no rows": (0, 4, 3), "no columns": (4, 0, 3)}
    shapes |= {"a fragment": (16, 8, 16), "a fragment but one": (15, 7, 15), "a fragment and one": (17, 9, 17)}
    shapes |= {"a tile but some": (SIDE - 8, 24, DEPTH - 8), "a tile and some": (SIDE + 1, 16, DEPTH + 8)}
    shapes |= {"wide": (3, SIDE + 8, 8), "two steps": (20, 24, 2 * DEPTH), "rows of odd length": (9, 11, 37)}
    pairs = {name: pair(*shape) for name, shape in shapes.items()}
    a, b = pair(18, 24, 16)
    pairs["cancellation"] = np.hstack([a, -a]), np.vstack([b, b])
    pairs["largest and smallest"] = np.full((2, 16), 65504, np.float16), np.full((16, 8), 2.0**-24, np.float16)
    non_finite = a.copy()
    non_finite[3, 4], non_finite[7, 0], non_finite[9, -1] = np.nan, np.inf, -np.inf
    return pairs | {"non-finite": (non_finite, b)}


def cost(m: int, n: int, k: int) -> Cost:
    """A multiply-add for each of m n k products; each matrix moved once: A and B have 2 bytes an element, and C has 4.

    >>> round(cost(4096, 4096, 4096).intensity)
    1024
    """
    return Cost(flops=2 * m * n * k, bytes=2 * (m * k + k * n) + 4 * m * n)


def tolerance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far from the exact result a right one may be.

    A product of two float16 is exact in float32. An instruction adds 16 of them to a sum: a tensor core shifts these 17
    terms until they have the exponent of the largest one, and cuts off what is then below its last place (Fasi, Higham,
    Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, 2021). So each term loses at most an eps of the
    largest one.
    """
    with np.errstate(all="ignore"):
        size = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    return 17 * blocks(a.shape[1], MMA_K) * float(np.finfo(np.float32).eps) * size


def arguments(a, b, *, out=None, stream=0) -> Problem:
    """Multiply two matrices of float16 on tensor cores.

    Args:
        a, b: float16 matrices of shape (M, K) and (K, N) in C order. An extent may be 0; K = 0 gives zeros.
        out: a float32 device array of shape (M, N) in C order, apart from a and b in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Sums are in float32, which no sum of products of float16
    exceeds, and are not rounded to float16. The same call gives the same bits on the same GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.

    >>> from pmpp.kernels.matmul import tensor_cores
    >>> tensor_cores.fragments(np.float16([[1, 2], [3, 4]]), np.float16([[1, 0], [1, 1]])).copy_to_host()
    array([[3., 2.],
           [7., 4.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes="float16", ndim=2, stream=stream)
    b = device.as_input("b", b, dtypes="float16", ndim=2, shape=(a.shape[1], None), stream=stream)
    shape = a.shape[0], b.shape[1]
    out = device.as_output("out", out, shape=shape, dtype="float32", apart={"a": a, "b": b}, stream=stream)
    capability = device.limits()["compute_capability"]
    if capability < CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this room needs a GPU of compute capability 8.0 or higher, this one has {said}")
    if out.size and not a.shape[1]:
        a, b = (device.to_device(np.zeros(extents, np.float16)) for extents in ((shape[0], 1), (1, shape[1])))
    return Problem(out, stream=stream, a=a.view(np.uint16), b=b.view(np.uint16))


# ------------------------------------------------------------------------------------------------------- the fragments

MMA_M, MMA_N, MMA_K = 16, 8, 16  # mma.sync adds a 16 x 16 times a 16 x 8 matrix to a 16 x 8 one
WARP = 32
WARPS = 4  # of a block in `fragments`, each with a tile of its own


@cuda.jit(device=True)
def element(x, row, column):
    """x[row, column], or beyond the edges 0, which adds nothing to a sum."""
    return x[row, column] if row < x.shape[0] and column < x.shape[1] else np.uint16(0)


@cuda.jit(device=True)
def along_row(x, row, column):
    return pack_halves(element(x, row, column), element(x, row, column + 1))


@cuda.jit(device=True)
def along_column(x, row, column):
    return pack_halves(element(x, row, column), element(x, row + 1, column))


@cuda.jit
def fragments_kernel(a, b, c):
    warp, lane = np.uint32(cuda.threadIdx.x) // WARP, np.uint32(cuda.threadIdx.x) % WARP
    tiles_n = (c.shape[1] + MMA_N - 1) // MMA_N
    tile = cuda.blockIdx.x * np.int64(WARPS) + warp
    group, pair = lane // 4, lane % 4 * 2  # of four lanes, and the first of two neighbours in a row of A or of C
    row, column = tile // tiles_n * MMA_M + group, tile % tiles_n * MMA_N
    sums = (f0, f0, f0, f0)
    k = np.int64(pair)
    while k - pair < a.shape[1]:
        a_words = (
            along_row(a, row, k),
            along_row(a, row + 8, k),
            along_row(a, row, k + 8),
            along_row(a, row + 8, k + 8),
        )
        b_words = along_column(b, k, column + group), along_column(b, k + 8, column + group)
        sums = mma_f16(a_words, b_words, sums)
        k += MMA_K
    for i in range(4):
        at, along = row + i // 2 * 8, column + pair + i % 2
        if at < c.shape[0] and along < c.shape[1]:
            c[at, along] = sums[i]


@rung(fragments_kernel)
def fragments(p):
    """A warp multiplies on tensor cores: each of its lanes holds a fixed part of A, of B and of C.

    A warp computes 16 x 8 elements of C, and loads all elements of A and B that they need from device memory.
    Source: PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type"; PMPP 5e section 15.9.

    Leaves: 24 x 16 elements are fetched, one by one, for 4096 operations: 5 operations a byte.
    """
    tiles = blocks(p.result.shape[0], MMA_M) * blocks(p.result.shape[1], MMA_N)
    fragments_kernel[blocks(tiles, WARPS), WARPS * WARP, p.stream](p.a, p.b, p.result)


# ----------------------------------------------------------------------------------------------- tiles in shared memory
# From here on a block of 8 warps computes a tile of C, from tiles of A and B that lie in shared memory: row by row, in
# chunks of 16 bytes. A warp computes 64 x 32 elements of C, or two such panels: 4 x 4 fragments each.

CHUNK = 8  # elements in 16 bytes
SIDE, DEPTH = 128, 32  # of the tiles of the first rungs: SIDE x SIDE of C, DEPTH of K at a time
PANEL_M, PANEL_N = 64, 32  # of a panel
KERNELS = 32  # that are kept of each kind


class Tile(typing.NamedTuple):
    """What a block computes: m x n of C, from m x depth of A and depth x n of B at a time.

    ``panels``: of a warp, side by side. ``stages``: how many tiles of A and B have room in shared memory.
    """

    m: int
    n: int
    depth: int
    panels: int
    stages: int

    @property
    def threads(self) -> int:
        return self.m // PANEL_M * (self.n // (PANEL_N * self.panels)) * WARP

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return 2 * self.stages * self.depth * (self.m + self.n)

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.depth}, {self.stages} stages"


BLOCK = Tile(SIDE, SIDE, DEPTH, 1, 1)


def straight(chunks: int) -> typing.Any:
    """Where a chunk of a tile lies whose rows have so many ``chunks``: (row, chunk) -> number. Row after row."""
    width = np.uint32(chunks)

    @cuda.jit(device=True)
    def place(row, chunk):
        return np.uint32(row * width + chunk)

    return place


def swizzled_place(chunks: int) -> typing.Any:
    """The same, with the chunks of a row exchanged by an exclusive or, so that a column of chunks meets all banks.

    All banks together have 8 chunks. Rows of fewer chunks share a line of the banks: they exchange theirs together.
    """
    width, sharing, kinds = np.uint32(chunks), np.uint32(max(8 // chunks, 1)), np.uint32(min(chunks, 8))

    @cuda.jit(device=True)
    def place(row, chunk):
        return np.uint32(row * width + (chunk ^ row // sharing % kinds))

    return place


def copier(rows: int, chunks: int, threads: int, place: typing.Any) -> typing.Any:
    """A device function with which a block begins to copy a tile of so many rows and chunks into shared memory."""
    lines, loads, width = np.uint32(threads // chunks), rows * chunks // threads, np.uint32(chunks)

    @cuda.jit(device=True)
    def copy(shared, begin, x, first_row, first_column, end_row, pitch):
        """From element (first_row, first_column) of x, whose rows have ``pitch`` elements. Beyond the edges it is 0."""
        thread = np.uint32(cuda.threadIdx.x)
        line, chunk = np.uint32(thread // width), np.uint32(thread % width)
        column = first_column + chunk * CHUNK
        for load in range(loads):
            below = np.uint32(line + np.uint32(load) * lines)
            inside = first_row + below < end_row and column < pitch
            at = (first_row + below) * pitch + column if inside else np.int64(0)
            to = np.uint32(begin + place(below, chunk) * np.uint32(CHUNK))
            copy_async(shared, to, x, at, CHUNK if inside else 0)

    return copy


def by_elements(a_place: typing.Any, b_place: typing.Any) -> tuple[typing.Any, typing.Any]:
    """Two device functions that read the operands of mma.sync from tiles in shared memory, element by element.

    The first reads the 16 x 16 elements of A at (row, k), and the second those of B at (k, column), which are operands
    of two instructions. Each gives a lane four words.
    """

    @cuda.jit(device=True)
    def of_a(shared, begin, row, column):
        at = begin + a_place(row, column // np.uint32(CHUNK)) * np.uint32(CHUNK) + column % np.uint32(CHUNK)
        return load32(shared, np.uint32(at))

    @cuda.jit(device=True)
    def read_a(shared, begin, row, k):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        row, k = np.uint32(row + lane // 4), np.uint32(k + lane % 4 * 2)
        left, right = (of_a(shared, begin, row, k), of_a(shared, begin, row + 8, k)), np.uint32(k + 8)
        return left[0], left[1], of_a(shared, begin, row, right), of_a(shared, begin, row + 8, right)

    @cuda.jit(device=True)
    def of_b(shared, begin, row, column):
        chunk, rest = column // np.uint32(CHUNK), column % np.uint32(CHUNK)
        low = shared[begin + b_place(row, chunk) * np.uint32(CHUNK) + rest]
        return pack_halves(low, shared[begin + b_place(row + np.uint32(1), chunk) * np.uint32(CHUNK) + rest])

    @cuda.jit(device=True)
    def read_b(shared, begin, k, column):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        k, column = np.uint32(k + lane % 4 * 2), np.uint32(column + lane // 4)
        left, right = (of_b(shared, begin, k, column), of_b(shared, begin, k + 8, column)), np.uint32(column + 8)
        return left[0], left[1], of_b(shared, begin, k, right), of_b(shared, begin, k + 8, right)

    return read_a, read_b


def by_matrices(a_place: typing.Any, b_place: typing.Any) -> tuple[typing.Any, typing.Any]:
    """The same, with ldmatrix: four matrices of 8 x 8 elements at once. A lane says where one of their 32 rows is."""

    @cuda.jit(device=True)
    def read_a(shared, begin, row, k):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        row, chunk = np.uint32(row + lane % 16), np.uint32(k // np.uint32(CHUNK) + lane // 16)
        return ldmatrix(shared, np.uint32(begin + a_place(row, chunk) * np.uint32(CHUNK)))

    @cuda.jit(device=True)
    def read_b(shared, begin, k, column):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        row, chunk = np.uint32(k + lane % 16), np.uint32(column // np.uint32(CHUNK) + lane // 16)
        return ldmatrix_transposed(shared, np.uint32(begin + b_place(row, chunk) * np.uint32(CHUNK)))

    return read_a, read_b


FOUR = (f0, f0, f0, f0)
ROW = (FOUR, FOUR, FOUR, FOUR)
NOTHING = (ROW, ROW, ROW, ROW)  # the sums of a panel: 4 x 4 fragments


@cuda.jit(device=True)
def multiply_row(a, left, right, sums):
    """Add the products of a fragment of A with four of B. ``left``, ``right``: the words of two each."""
    return (
        mma_f16(a, (left[0], left[1]), sums[0]),
        mma_f16(a, (left[2], left[3]), sums[1]),
        mma_f16(a, (right[0], right[1]), sums[2]),
        mma_f16(a, (right[2], right[3]), sums[3]),
    )


@cuda.jit(device=True)
def multiply_panel(a, left, right, sums):
    """Add the products of four fragments of A, one below the other, with four of B, side by side."""
    return (
        multiply_row(a[0], left, right, sums[0]),
        multiply_row(a[1], left, right, sums[1]),
        multiply_row(a[2], left, right, sums[2]),
        multiply_row(a[3], left, right, sums[3]),
    )


@cuda.jit(device=True)
def store_fragment(c, row, column, sums):
    """Store 16 x 8 sums at (row, column) of C, four neighbours a lane.

    A lane has two neighbours in a row, and two in a row 8 below. Of two lanes side by side one gives away the lower
    pair, and the other one the upper one: then each has four neighbours.
    """
    lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
    odd = lane % 2 == 1
    given = cuda.shfl_xor_sync(FULL_WARP, sums[0] if odd else sums[2], 1)
    other = cuda.shfl_xor_sync(FULL_WARP, sums[1] if odd else sums[3], 1)
    row, column = row + lane // 4 + (8 if odd else 0), column + lane % 4 // 2 * 4
    if row < c.shape[0] and column < c.shape[1]:
        first, second = given if odd else sums[0], other if odd else sums[1]
        third, fourth = sums[2] if odd else given, sums[3] if odd else other
        store128(c, row * c.shape[1] + column, (first, second, third, fourth))


@cuda.jit(device=True)
def store_row(c, row, column, sums):
    store_fragment(c, row, column, sums[0])
    store_fragment(c, row, column + MMA_N, sums[1])
    store_fragment(c, row, column + 2 * MMA_N, sums[2])
    store_fragment(c, row, column + 3 * MMA_N, sums[3])


@cuda.jit(device=True)
def store_panel(c, row, column, sums):
    store_row(c, row, column, sums[0])
    store_row(c, row + MMA_M, column, sums[1])
    store_row(c, row + 2 * MMA_M, column, sums[2])
    store_row(c, row + 3 * MMA_M, column, sums[3])


@cuda.jit
def copy_kernel(source, target):
    at = cuda.grid(1)
    if at < target.size:
        row, column = at // target.shape[1], at % target.shape[1]
        inside = row < source.shape[0] and column < source.shape[1]
        target[row, column] = source[row, column] if inside else target.dtype.type(0)


def in_chunks(p: Problem, launch: typing.Callable) -> None:
    """Call ``launch(a, b, c)`` with matrices whose rows begin at multiples of 16 bytes: padded copies, if need be."""
    a, b, c = p.a, p.b, p.result
    if any(x.shape[1] % CHUNK or device.address(x) % 16 for x in (a, b, c)):
        a, b = padded(a, p.stream), padded(b, p.stream, round_up(a.shape[1], CHUNK))
        c = device.empty((c.shape[0], b.shape[1]), np.float32, stream=p.stream)
    launch(a, b, c)
    if c is not p.result:
        copy_kernel[blocks(p.result.size, 256), 256, p.stream](c, p.result)


def padded(x: typing.Any, stream: typing.Any, rows: int | None = None) -> typing.Any:
    """A copy of a matrix with zeros around it: its rows are whole chunks, and it has so many ``rows``."""
    shape = x.shape[0] if rows is None else rows, round_up(x.shape[1], CHUNK)
    target = device.empty(shape, x.dtype, stream=stream)
    copy_kernel[blocks(target.size, 256), 256, stream](x, target)
    return target


@functools.lru_cache(KERNELS)
def tiled_kernel(matrices: bool, swizzled: bool) -> typing.Any:
    """The kernel of a block that computes SIDE x SIDE of C, with a tile of A and of B in shared memory at a time.

    ``matrices``: it reads them with ldmatrix. ``swizzled``: their chunks are exchanged.
    """
    make, read = swizzled_place if swizzled else straight, by_matrices if matrices else by_elements
    a_place, b_place = make(DEPTH // CHUNK), make(SIDE // CHUNK)
    copy_a = copier(SIDE, DEPTH // CHUNK, BLOCK.threads, a_place)
    copy_b = copier(DEPTH, SIDE // CHUNK, BLOCK.threads, b_place)
    read_a, read_b = read(a_place, b_place)
    a_size, both, warps_n = np.uint32(SIDE * DEPTH), 2 * SIDE * DEPTH, np.uint32(SIDE // PANEL_N)

    @cuda.jit
    def tiled_fragments_kernel(a, b, c):
        shared = cuda.shared.array(both, np.uint16, alignment=16)
        k_end, n = np.int64(a.shape[1]), np.int64(c.shape[1])
        first_row, first_column = np.int64(cuda.blockIdx.y) * SIDE, np.int64(cuda.blockIdx.x) * SIDE
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        row, column = np.uint32(warp // warps_n * PANEL_M), np.uint32(warp % warps_n * PANEL_N)
        sums = NOTHING
        k0 = np.int64(0)
        while k0 < k_end:
            copy_a(shared, np.uint32(0), a, first_row, k0, np.int64(a.shape[0]), k_end)
            copy_b(shared, a_size, b, k0, first_column, k_end, n)
            commit_copies()
            wait_copies(0)
            cuda.syncthreads()  # the tiles are whole before anyone reads them
            for step in range(DEPTH // MMA_K):
                k = np.uint32(step * MMA_K)
                a_words = (
                    read_a(shared, np.uint32(0), row, k),
                    read_a(shared, np.uint32(0), np.uint32(row + 16), k),
                    read_a(shared, np.uint32(0), np.uint32(row + 32), k),
                    read_a(shared, np.uint32(0), np.uint32(row + 48), k),
                )
                left = read_b(shared, a_size, k, column)
                right = read_b(shared, a_size, k, np.uint32(column + 16))
                sums = multiply_panel(a_words, left, right, sums)
            cuda.syncthreads()  # everyone has read them before they are overwritten
            k0 += DEPTH
        store_panel(c, first_row + row, first_column + column, sums)

    return tiled_fragments_kernel


def by_tiles(kernel: typing.Any, p: Problem) -> None:
    """Launch a kernel with a block for each SIDE x SIDE of C."""

    def launch(a, b, c):
        if c.shape[0] > 65535 * SIDE:  # every GPU's limit for y
            raise ValueError(f"the rows of a must be at most {65535 * SIDE} for this rung, were {c.shape[0]}")
        grid = blocks(c.shape[1], SIDE), blocks(c.shape[0], SIDE)
        kernel[grid, BLOCK.threads, p.stream](a, b, c)

    in_chunks(p, launch)


@rung(tiled_kernel, copy_kernel)
def shared(p):
    """A block copies tiles into shared memory, and a warp uses each fragment for four instructions.

    A tile of C is 128 x 128, and a warp computes 64 x 32 of it. If rows of a, b or out do not begin at multiples of 16
    bytes, the kernel works on copies that are padded with zeros.
    Source: PMPP 5e sections 15.5 and 15.9.

    Leaves: a lane loads 32 times from shared memory, 2 or 4 bytes each, for the operands of 16 instructions.
    """
    by_tiles(tiled_kernel(False, False), p)


@rung(tiled_kernel, copy_kernel)
def matrices(p):
    """One instruction of a warp, ldmatrix, loads four matrices of 8 x 8 into registers, as fragments.

    Source: PTX ISA, "ldmatrix".

    Leaves: the 8 rows of a matrix lie in the same banks, or in few of them: bank conflicts.
    """
    by_tiles(tiled_kernel(True, False), p)


@rung(tiled_kernel, copy_kernel)
def swizzled(p):
    """Chunks of 16 bytes change places within their row: the 8 rows of a matrix then lie in all 32 banks.

    Source: CUTLASS, "Efficient GEMM in CUDA", on permuted shared memory.

    Leaves: nothing is multiplied while the next tiles travel from device memory.
    """
    by_tiles(tiled_kernel(True, True), p)


# -------------------------------------------------------------------------------------------------------- the pipeline

GROUP = 8  # rows of tiles that are neighbours in time
PIPELINED = Tile(128, 128, 32, 1, 3)
TILES = (Tile(128, 128, 32, 2, 3), Tile(64, 64, 32, 1, 3))


def order_of_tiles(group: int) -> typing.Any:
    """A device function that gives a block its tile of C: so many down a column, and then the next column."""

    @cuda.jit(device=True)
    def tile_of(block, tiles_m, tiles_n):
        """Row and column of the tile of a block, in tiles."""
        first = block // (group * tiles_n) * group
        height = min(tiles_m - first, np.int64(group))
        within = block % (group * tiles_n)
        return first + within % height, within // height

    return tile_of


@functools.lru_cache(KERNELS)
def pipelined_kernel(tile: Tile, group: int) -> typing.Any:
    """The kernel of a tile, with several tiles of A and B on their way. A grid has one dimension.

    ``group``: so many tiles of C below each other are computed by blocks that follow each other.
    """
    side_m, side_n, depth, panels, stages = tile
    a_place, b_place = swizzled_place(depth // CHUNK), swizzled_place(side_n // CHUNK)
    copy_a = copier(side_m, depth // CHUNK, tile.threads, a_place)
    copy_b = copier(depth, side_n // CHUNK, tile.threads, b_place)
    read_a, read_b = by_matrices(a_place, b_place)
    a_size, stage_size, ahead = np.uint32(side_m * depth), np.uint32((side_m + side_n) * depth), stages - 1
    warp_n, pending, end_stage = panels * PANEL_N, stages - 2, np.uint32(stages * (side_m + side_n) * depth)
    warps_n = np.uint32(side_n // warp_n)

    tile_of = order_of_tiles(group)

    @cuda.jit(device=True)
    def multiply(shared, begin, row, column, k, sums, more):
        """Add the products of 16 k, of a tile that begins there in shared memory."""
        a_words = (
            read_a(shared, begin, row, k),
            read_a(shared, begin, np.uint32(row + 16), k),
            read_a(shared, begin, np.uint32(row + 32), k),
            read_a(shared, begin, np.uint32(row + 48), k),
        )
        b_begin = np.uint32(begin + a_size)
        left = read_b(shared, b_begin, k, column)
        right = read_b(shared, b_begin, k, np.uint32(column + 16))
        sums = multiply_panel(a_words, left, right, sums)
        if panels == 2:
            left = read_b(shared, b_begin, k, np.uint32(column + 32))
            right = read_b(shared, b_begin, k, np.uint32(column + 48))
            more = multiply_panel(a_words, left, right, more)
        return sums, more

    @cuda.jit
    def pipelined_fragments_kernel(a, b, c):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        m, n, k_end = np.int64(c.shape[0]), np.int64(c.shape[1]), np.int64(a.shape[1])
        tile_m, tile_n = tile_of(np.int64(cuda.blockIdx.x), (m + side_m - 1) // side_m, (n + side_n - 1) // side_n)
        first_row, first_column = tile_m * side_m, tile_n * side_n
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        row, column = np.uint32(warp // warps_n * PANEL_M), np.uint32(warp % warps_n * warp_n)
        sums, more = NOTHING, NOTHING
        coming = np.int64(0)
        for stage in range(ahead):
            begin = np.uint32(np.uint32(stage) * stage_size)
            copy_a(shared, begin, a, first_row, coming, m, k_end)
            copy_b(shared, np.uint32(begin + a_size), b, coming, first_column, k_end, n)
            commit_copies()
            coming += depth
        now, k0 = np.uint32(0), np.int64(0)
        into = np.uint32(np.uint32(ahead) * stage_size)
        while k0 < k_end:
            wait_copies(pending)  # the oldest tiles are there: those of this thread,
            cuda.syncthreads()  # and of all; and everyone has read those that are overwritten next
            copy_a(shared, into, a, first_row, coming, m, k_end)
            copy_b(shared, np.uint32(into + a_size), b, coming, first_column, k_end, n)
            commit_copies()
            # Written out, so that the loads of a step overlap another's arithmetic.
            sums, more = multiply(shared, now, row, column, np.uint32(0), sums, more)
            sums, more = multiply(shared, now, row, column, np.uint32(16), sums, more)
            if depth == 64:
                sums, more = multiply(shared, now, row, column, np.uint32(32), sums, more)
                sums, more = multiply(shared, now, row, column, np.uint32(48), sums, more)
            now, into = np.uint32(now + stage_size), now
            if now == end_stage:
                now = np.uint32(0)
            k0, coming = k0 + depth, coming + depth
        store_panel(c, first_row + row, first_column + column, sums)
        if panels == 2:
            store_panel(c, first_row + row, first_column + column + PANEL_N, more)

    return pipelined_fragments_kernel


def by_pipeline(tile: Tile, group: int, p: Problem) -> None:
    """Launch the kernel of a tile."""

    def launch(a, b, c):
        grid = blocks(c.shape[0], tile.m) * blocks(c.shape[1], tile.n)
        pipelined_kernel(tile, group)[grid, tile.threads, p.stream, tile.shared](a, b, c)

    in_chunks(p, launch)


@rung(pipelined_kernel, copy_kernel)
def pipelined(p):
    """The tiles of the next two steps are on their way, while one step is multiplied.

    A block has three tiles of A and of B in shared memory, 48 KiB in all, and one barrier a step.
    Source: CUDA C++ programming guide, "Asynchronous data copies"; CUTLASS, "Efficient GEMM in CUDA", on pipelining.

    Leaves: a warp loads six fragments of 512 bytes from shared memory for 16 instructions.
    """
    by_pipeline(PIPELINED, 1, p)


@rung(pipelined_kernel, copy_kernel)
def wide(p):
    """A warp computes 64 x 64 elements of C with 32 instructions for 8 loads, and neighbours share tiles in the L2.

    Where tiles of 128 x 128 would be too few for the GPU, they are of 64 x 64.
    Source: CUTLASS, "Efficient GEMM in CUDA", on threadblock rasterization.

    Leaves: behind each barrier a warp computes addresses, begins copies and loads its first fragments, and no
    instruction of it multiplies until they are there.
    """
    by_pipeline(tile_for(*p.result.shape, device.limits()["multiprocessors"]), GROUP, p)


@functools.lru_cache(4096)
def tile_for(m: int, n: int, multiprocessors: int) -> Tile:
    """The largest tile of which there are enough for all multiprocessors, or else the smallest.

    >>> str(tile_for(4096, 4096, multiprocessors=132)), str(tile_for(100, 200, multiprocessors=132))
    ('128 x 128 x 32, 3 stages', '64 x 64 x 32, 3 stages')
    """
    enough = (tile for tile in TILES if blocks(m, tile.m) * blocks(n, tile.n) >= multiprocessors)
    return next(enough, TILES[-1])


# ------------------------------------------------------------------------------------------- fragments that run ahead
# Two sets of fragments take turns: ldmatrix fills one while mma.sync reads the other. What does not change from step to
# step is computed before the loop: where a lane reads, and where a thread copies from and to. A tile is 64 deep, which
# is four steps.

SLICE = 64  # of K, in a tile
AHEAD = (Tile(128, 256, SLICE, 2, 3), Tile(128, 128, SLICE, 2, 3), Tile(64, 64, SLICE, 1, 3))
RESERVED = 1024  # bytes of shared memory that the system takes for each block
MOST_LEFT = np.int64(1024)  # rows: more than a tile has


def onward_copier(rows: int, chunks: int, threads: int) -> typing.Any:
    """A device function with which a block begins to copy a tile whose threads know where their first chunks lie."""
    lines, loads = threads // chunks, rows * chunks // threads
    apart = np.uint32(lines * chunks * CHUNK)  # in shared memory: the places of chunks repeat every 8 rows

    @cuda.jit(device=True)
    def copy(shared, to, x, at, pitch, left):
        """A chunk of every ``lines``-th row of x, from x[at] on. Where no rows are left it is 0."""
        for load in range(loads):
            count = CHUNK if load * lines < left else 0
            copy_async(shared, np.uint32(to + np.uint32(load) * apart), x, at + load * lines * pitch, count)

    return copy


@functools.lru_cache(KERNELS)
def overlapped_kernel(tile: Tile, group: int) -> typing.Any:
    """The kernel of a tile whose warps load the fragments of the next step before they multiply those of this one."""
    side_m, side_n, _, panels, stages = tile
    a_chunks, b_chunks, chunk = np.uint32(SLICE // CHUNK), np.uint32(side_n // CHUNK), np.uint32(CHUNK)
    a_place, b_place = swizzled_place(SLICE // CHUNK), swizzled_place(side_n // CHUNK)
    copy_a = onward_copier(side_m, SLICE // CHUNK, tile.threads)
    copy_b = onward_copier(SLICE, side_n // CHUNK, tile.threads)
    a_size, stage_size = np.uint32(side_m * SLICE), np.uint32((side_m + side_n) * SLICE)
    end_stage, pending, warp_n = np.uint32(stages * (side_m + side_n) * SLICE), stages - 2, panels * PANEL_N
    warps_n = np.uint32(side_n // warp_n)
    a_rows, b_rows = np.uint32(MMA_K * SLICE), np.uint32(MMA_K * side_n)  # elements in 16 rows of a tile
    tile_of = order_of_tiles(group)

    @cuda.jit(device=True)
    def read_a(shared, at):
        """Four fragments, one below the other."""
        return (
            ldmatrix(shared, at),
            ldmatrix(shared, np.uint32(at + a_rows)),
            ldmatrix(shared, np.uint32(at + 2 * a_rows)),
            ldmatrix(shared, np.uint32(at + 3 * a_rows)),
        )

    @cuda.jit(device=True)
    def read_panel(shared, begin, left, right):
        """Four fragments of B, side by side."""
        return (
            ldmatrix_transposed(shared, np.uint32(begin + left)),
            ldmatrix_transposed(shared, np.uint32(begin + right)),
        )

    @cuda.jit(device=True)
    def read_b(shared, begin, at):
        """The panels of a warp. There is no second one to read in a tile of one: then it is the first again."""
        first = read_panel(shared, begin, at[0], at[1])
        return first, read_panel(shared, begin, at[2], at[3]) if panels == 2 else first

    @cuda.jit(device=True)
    def multiply(a_words, b_words, sums, more):
        sums = multiply_panel(a_words, b_words[0][0], b_words[0][1], sums)
        if panels == 2:
            more = multiply_panel(a_words, b_words[1][0], b_words[1][1], more)
        return sums, more

    @cuda.jit
    def overlapped_fragments_kernel(a, b, c):
        shared = cuda.shared.array(0, np.uint16, alignment=16)
        m, n, k_end = np.int64(c.shape[0]), np.int64(c.shape[1]), np.int64(a.shape[1])
        tile_m, tile_n = tile_of(np.int64(cuda.blockIdx.x), (m + side_m - 1) // side_m, (n + side_n - 1) // side_n)
        first_row, first_column = tile_m * side_m, tile_n * side_n
        thread = np.uint32(cuda.threadIdx.x)
        # Where the thread copies its first chunk from and to, and what is left from there on: rows, and of K.
        a_line, a_chunk = np.uint32(thread // a_chunks), np.uint32(thread % a_chunks)
        b_line, b_chunk = np.uint32(thread // b_chunks), np.uint32(thread % b_chunks)
        a_to = np.uint32(a_place(a_line, a_chunk) * chunk)
        b_to = np.uint32(a_size + b_place(b_line, b_chunk) * chunk)
        column_of_a, column_of_b = np.int64(a_chunk) * CHUNK, first_column + np.int64(b_chunk) * CHUNK
        a_at, b_at = (first_row + np.int64(a_line)) * k_end + column_of_a, np.int64(b_line) * n + column_of_b
        rows = np.int32(min(m - first_row - np.int64(a_line), MOST_LEFT))
        a_left, b_left = k_end - column_of_a, k_end - np.int64(b_line) if column_of_b < n else np.int64(0)
        # Where the lane reads its rows of fragments: of A in each of four steps, and of B for each 16 columns.
        lane, warp = thread % np.uint32(WARP), thread // np.uint32(WARP)
        row, column = np.uint32(warp // warps_n * PANEL_M), np.uint32(warp % warps_n * warp_n)
        line, half = np.uint32(lane % 16), np.uint32(lane // 16)
        below, beside = np.uint32(row + line), np.uint32(column // chunk + half)
        a_reads = (
            np.uint32(a_place(below, half) * chunk),
            np.uint32(a_place(below, np.uint32(half + 2)) * chunk),
            np.uint32(a_place(below, np.uint32(half + 4)) * chunk),
            np.uint32(a_place(below, np.uint32(half + 6)) * chunk),
        )
        b_reads = (
            np.uint32(a_size + b_place(line, beside) * chunk),
            np.uint32(a_size + b_place(line, np.uint32(beside + 2)) * chunk),
            np.uint32(a_size + b_place(line, np.uint32(beside + 4)) * chunk),
            np.uint32(a_size + b_place(line, np.uint32(beside + 6)) * chunk),
        )
        into = np.uint32(0)
        for _ in range(stages - 1):
            copy_a(shared, np.uint32(into + a_to), a, a_at, k_end, rows if a_left > 0 else np.int32(0))
            copy_b(shared, np.uint32(into + b_to), b, b_at, n, np.int32(min(b_left, MOST_LEFT)))
            commit_copies()
            a_at, b_at, a_left, b_left = a_at + SLICE, b_at + SLICE * n, a_left - SLICE, b_left - SLICE
            into = np.uint32(into + stage_size)
        wait_copies(pending)
        cuda.syncthreads()
        sums, more = NOTHING, NOTHING
        now, k0 = np.uint32(0), np.int64(0)
        a_even, b_even = read_a(shared, a_reads[0]), read_b(shared, now, b_reads)
        while k0 < k_end:
            a_odd, b_odd = read_a(shared, np.uint32(now + a_reads[1])), read_b(shared, np.uint32(now + b_rows), b_reads)
            copy_a(shared, np.uint32(into + a_to), a, a_at, k_end, rows if a_left > 0 else np.int32(0))
            sums, more = multiply(a_even, b_even, sums, more)
            a_even = read_a(shared, np.uint32(now + a_reads[2]))
            b_even = read_b(shared, np.uint32(now + 2 * b_rows), b_reads)
            copy_b(shared, np.uint32(into + b_to), b, b_at, n, np.int32(min(b_left, MOST_LEFT)))
            commit_copies()
            sums, more = multiply(a_odd, b_odd, sums, more)
            a_odd = read_a(shared, np.uint32(now + a_reads[3]))
            b_odd = read_b(shared, np.uint32(now + 3 * b_rows), b_reads)
            sums, more = multiply(a_even, b_even, sums, more)
            a_at, b_at, a_left, b_left = a_at + SLICE, b_at + SLICE * n, a_left - SLICE, b_left - SLICE
            into, now = now, np.uint32(now + stage_size)
            if now == end_stage:
                now = np.uint32(0)
            wait_copies(pending)  # the next tiles are there: those of this thread,
            cuda.syncthreads()  # and of all; and everyone has read those that are overwritten next
            a_even, b_even = read_a(shared, np.uint32(now + a_reads[0])), read_b(shared, now, b_reads)
            sums, more = multiply(a_odd, b_odd, sums, more)  # while the first fragments of the next tiles arrive
            k0 += SLICE
        store_panel(c, first_row + row, first_column + column, sums)
        if panels == 2:
            store_panel(c, first_row + row, first_column + column + PANEL_N, more)

    return overlapped_fragments_kernel


def by_overlap(tile: Tile, group: int, p: Problem) -> None:
    """Launch the kernel of a tile."""

    def launch(a, b, c):
        grid = blocks(c.shape[0], tile.m) * blocks(c.shape[1], tile.n)
        overlapped_kernel(tile, group)[grid, tile.threads, p.stream, tile.shared](a, b, c)

    in_chunks(p, launch)


@rung(overlapped_kernel, copy_kernel)
def overlapped(p):
    """A warp loads the fragments of the next step while it multiplies those of this one, also across the barrier.

    A block has tiles of 128 x 256 with eight warps where there are enough of them and shared memory has room, and
    smaller ones where not. They are 64 deep: one barrier for 128 instructions of a warp.
    Source: CUTLASS, "Efficient GEMM in CUDA", on software pipelining.

    Leaves: at each barrier all warps wait for the last one, and every warp spends instructions on copies.
    """
    limits = device.limits()
    tile = tile_ahead(*p.result.shape, limits["multiprocessors"], limits["max_shared_memory_per_multiprocessor"])
    by_overlap(tile, GROUP, p)


@functools.lru_cache(4096)
def tile_ahead(m: int, n: int, multiprocessors: int, memory: int) -> Tile:
    """The largest tile of which there are enough for all multiprocessors, with that much shared ``memory`` each.

    >>> str(tile_ahead(4096, 4096, 132, 228 * 1024)), str(tile_ahead(4096, 4096, 84, 100 * 1024))
    ('128 x 256 x 64, 3 stages', '128 x 128 x 64, 3 stages')
    """
    fitting = (tile for tile in AHEAD if tile.shared + RESERVED <= memory)
    enough = (tile for tile in fitting if blocks(m, tile.m) * blocks(n, tile.n) >= multiprocessors)
    return next(enough, AHEAD[-1])


# ------------------------------------------------------------------------------------------------ an engine that copies
# On Hopper a copy engine brings whole tiles: a warp asks for them, and mbarriers count what has come and what has been
# used. Chapter 43 says more about both. The warps that multiply issue no copies, and never wait for one another.

FED = Tile(128, 256, SLICE, 2, 4)
ENGINE = (9, 0)  # compute capability of the GPUs for which this is written
CAPABILITY_OF = {"fed_kernel": ENGINE}
ALONG_B = 64  # columns of B, which the engine brings side by side: 128 bytes
PRODUCER = 128  # threads: registers change hands between groups of four warps
MOST_OF_ENGINE = 2**31 - 256  # its rows and columns are int32, and a box may reach beyond the edges
FEW, MANY = 24, 240  # registers of a thread that asks for tiles, and of one that multiplies
NEXT = tuple(np.uint32(2 * CHUNK * step) for step in range(4))  # an exclusive or with it leads to the next chunks


@functools.lru_cache(KERNELS)
def fed_kernel(tile: Tile, group: int) -> typing.Any:
    """The kernel of blocks that compute tile after tile of C: tile b, b + blocks, b + 2 blocks, ...

    ``full[s]`` ends a phase when the tiles of A and B have come to stage s, and ``empty[s]`` when all warps have used
    them. B lies in panels of 64 columns, and a warp multiplies by one of them.
    """
    side_m, side_n, _, _, stages = tile
    a_size, stage_size, nbytes = side_m * SLICE, (side_m + side_n) * SLICE, 2 * (side_m + side_n) * SLICE
    panels, consumers, threads = side_n // ALONG_B, tile.threads // WARP, tile.threads + PRODUCER
    to_b, panel_of = 16, np.uint32(SLICE * ALONG_B)
    place, tile_of = swizzled_place(SLICE // CHUNK), order_of_tiles(group)
    below = np.uint32(MMA_K * SLICE)  # elements in 16 rows

    @cuda.jit(device=True)
    def fetch(shared, stage, maps, row, column, k, full):
        """Ask for the tiles at (row, k) of A and at (k, column) of B. ``full`` counts their bytes."""
        begin = np.uint32(stage * np.uint32(stage_size))
        expect_bytes(full, stage, nbytes)
        bulk_tile(shared, begin, maps, 0, row, k, full, stage)
        for panel in range(panels):
            to = np.uint32(begin + np.uint32(a_size) + np.uint32(panel) * panel_of)
            bulk_tile(shared, to, maps, to_b, k, column + panel * ALONG_B, full, stage)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def read_a(shared, at):
        """Four fragments, one below the other."""
        return (
            ldmatrix(shared, at),
            ldmatrix(shared, np.uint32(at + below)),
            ldmatrix(shared, np.uint32(at + 2 * below)),
            ldmatrix(shared, np.uint32(at + 3 * below)),
        )

    @cuda.jit(device=True)
    def read_b(shared, at, down):
        """Eight fragments, side by side, of the rows that are so many elements further."""
        return (
            (
                ldmatrix_transposed(shared, np.uint32(at + down)),
                ldmatrix_transposed(shared, np.uint32((at ^ NEXT[1]) + down)),
            ),
            (
                ldmatrix_transposed(shared, np.uint32((at ^ NEXT[2]) + down)),
                ldmatrix_transposed(shared, np.uint32((at ^ NEXT[3]) + down)),
            ),
        )

    @cuda.jit(device=True)
    def multiply(a_words, b_words, sums, more):
        """Row by row, and there and back: what is multiplied next has an operand in common with what was before."""
        first, second = b_words
        sums_0 = multiply_row(a_words[0], first[0], first[1], sums[0])
        more_0 = multiply_row(a_words[0], second[0], second[1], more[0])
        more_1 = multiply_row(a_words[1], second[0], second[1], more[1])
        sums_1 = multiply_row(a_words[1], first[0], first[1], sums[1])
        sums_2 = multiply_row(a_words[2], first[0], first[1], sums[2])
        more_2 = multiply_row(a_words[2], second[0], second[1], more[2])
        more_3 = multiply_row(a_words[3], second[0], second[1], more[3])
        sums_3 = multiply_row(a_words[3], first[0], first[1], sums[3])
        return (sums_0, sums_1, sums_2, sums_3), (more_0, more_1, more_2, more_3)

    @cuda.jit(launch_bounds=(threads, 1))
    def fed_fragments_kernel(given, c, depth):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        maps = maps_of_launch(given)
        steps, tiles_n = np.uint32((depth + SLICE - 1) // SLICE), (np.int64(c.shape[1]) + side_n - 1) // side_n
        tiles_m = (np.int64(c.shape[0]) + side_m - 1) // side_m
        tiles = tiles_m * tiles_n
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = thread % np.uint32(WARP), thread // np.uint32(WARP)
        if thread == 0:
            for one in range(stages):
                mbarrier_init(full, one, 1)
                mbarrier_init(empty, one, consumers)
        cuda.syncthreads()
        number, stage, parity = np.int64(cuda.blockIdx.x), np.uint32(0), np.uint32(0)
        if warp >= consumers:
            fewer_registers(FEW)
            if thread == consumers * WARP:
                while number < tiles:
                    tile_m, tile_n = tile_of(number, tiles_m, tiles_n)
                    step = np.uint32(0)
                    while step < steps:
                        mbarrier_wait(empty, stage, parity ^ np.uint32(1))  # the phase before the first has ended
                        fetch(shared, stage, maps, tile_m * side_m, tile_n * side_n, np.int64(step) * SLICE, full)
                        stage, parity = next_stage(stage, parity)
                        step = np.uint32(step + np.uint32(1))
                    number += cuda.gridDim.x
        else:
            more_registers(MANY)
            # Where the lane reads its rows of the first fragments, in a stage that begins at 0.
            line, half, panel = np.uint32(lane % 16), np.uint32(lane // 16), np.uint32(warp % np.uint32(panels))
            row = np.uint32(warp // np.uint32(panels) * np.uint32(PANEL_M))
            own_a = np.uint32(place(np.uint32(row + line), half) * np.uint32(CHUNK))
            own_b = np.uint32(np.uint32(a_size) + panel * panel_of + place(line, half) * np.uint32(CHUNK))
            a_at, b_at = own_a, own_b
            mbarrier_wait(full, stage, parity)  # no block is without a tile
            a_even, b_even = read_a(shared, a_at), read_b(shared, b_at, np.uint32(0))
            while number < tiles:
                sums, more = NOTHING, NOTHING
                after, step = number + cuda.gridDim.x, np.uint32(0)
                while step < steps:
                    step = np.uint32(step + np.uint32(1))
                    a_odd, b_odd = read_a(shared, a_at ^ NEXT[1]), read_b(shared, b_at, below)
                    sums, more = multiply(a_even, b_even, sums, more)
                    a_even, b_even = read_a(shared, a_at ^ NEXT[2]), read_b(shared, b_at, np.uint32(2 * below))
                    sums, more = multiply(a_odd, b_odd, sums, more)
                    a_odd, b_odd = read_a(shared, a_at ^ NEXT[3]), read_b(shared, b_at, np.uint32(3 * below))
                    sums, more = multiply(a_even, b_even, sums, more)
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(empty, stage)  # all fragments of the stage are in registers
                    if step < steps or after < tiles:  # or else what comes next is read, and not used
                        stage, parity = next_stage(stage, parity)
                        mbarrier_wait(full, stage, parity)
                    begin = np.uint32(stage * np.uint32(stage_size))
                    a_at, b_at = np.uint32(begin + own_a), np.uint32(begin + own_b)
                    a_even, b_even = read_a(shared, a_at), read_b(shared, b_at, np.uint32(0))
                    sums, more = multiply(a_odd, b_odd, sums, more)  # while the first fragments arrive
                tile_m, tile_n = tile_of(number, tiles_m, tiles_n)
                down, along = tile_m * side_m + row, tile_n * side_n + panel * np.uint32(ALONG_B)
                store_panel(c, down, along, sums)
                store_panel(c, down, along + PANEL_N, more)
                number = after

    return fed_fragments_kernel


def by_engine(tile: Tile, most_blocks: int, group: int, p: Problem) -> None:
    """Launch the kernel of a tile that an engine brings, with that many blocks at most."""

    def launch(a, b, c):
        grid = min(blocks(c.shape[0], tile.m) * blocks(c.shape[1], tile.n), most_blocks)
        maps = launch_words(tensor_map(a, tile.m, SLICE), tensor_map(b, SLICE, ALONG_B))
        kernel, threads = fed_kernel(tile, group), tile.threads + PRODUCER
        kernel[grid, threads, p.stream, tile.shared](maps, c, np.int64(a.shape[1]))

    in_chunks(p, launch)


@rung(fed_kernel, overlapped_kernel, copy_kernel)
def fed(p):
    """On Hopper an engine brings the tiles, and a warp of its own asks for them. No barrier stands in the loop.

    Two mbarriers of a stage say when it is full and when it is empty, so a warp waits for tiles, and not for other
    warps. Those that multiply begin no copies, and take over registers of those that do. A block goes on with another
    tile of C, whose operands come while it stores the sums before. For another GPU, and where there is less than one
    tile of 128 x 256 for each multiprocessor, this is the rung before.
    Source: PTX ISA, "cp.async.bulk.tensor", "mbarrier" and "setmaxnreg"; CUTLASS, "Efficient GEMM in CUDA", on warp
    specialization.
    """
    limits = device.limits()
    suits = is_for_engine(*p.result.shape, p.a.shape[1], limits["multiprocessors"])
    if suits and limits["compute_capability"] == ENGINE:
        by_engine(FED, limits["multiprocessors"], GROUP, p)
    else:
        overlapped.launch(p)


def is_for_engine(m: int, n: int, k: int, multiprocessors: int) -> bool:
    """Whether there is a tile for each multiprocessor, and the engine can count rows and columns.

    >>> is_for_engine(4096, 4096, 4096, 132), is_for_engine(2048, 2048, 2048, 132)
    (True, False)
    """
    return blocks(m, FED.m) * blocks(n, FED.n) >= multiprocessors and max(m, n, k) < MOST_OF_ENGINE


LADDER = (fragments, shared, matrices, swizzled, pipelined, wide, overlapped, fed)
