"""Products with 2:4 sparsity: y = w @ x on tensor cores, where w has two numbers of each four in a row.

Chapter: notebooks/79_sparsity.ipynb.  PMPP 5e ch. 17.
Roof: tensor cores, float16.

Half of the numbers of w are zeros that nobody stores, and a tensor core multiplies the others alone: one mma.sp stands
for two mma.sync. Of memory w needs 9 bits a number instead of 16. But x is as large as before, and an instruction takes
twice as much of it. So what brings the operands is the bound before the tensor cores are: the L2 cache and shared
memory. What decides is how often a block and a warp use what they have fetched.

The format is that of `pmpp.kernels.sparsity.compressed`. Kernels compute nothing with the 16 bits of an element but by
these instructions, so they see float16 as uint16. They need a GPU of compute capability 8.0 or higher.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.matmul.tensor_cores import (
    ALONG_B,
    CHUNK,
    ENGINE,
    FEW,
    FOUR,
    GROUP,
    KERNELS,
    MANY,
    MMA_N,
    MOST_LEFT,
    MOST_OF_ENGINE,
    NOTHING,
    PANEL_M,
    PANEL_N,
    PRODUCER,
    RESERVED,
    WARP,
    along_column,
    along_row,
    copier,
    copy_kernel,
    element,
    onward_copier,
    order_of_tiles,
    padded,
    store_panel,
    swizzled_place,
)
from pmpp.kernels.matmul.warpgroups import tile_of_unit, writer
from pmpp.kernels.sparsity.compressed import FIRST_TWO, PADDED, SIDE, as_pruned, places, shapes
from pmpp.runtime import device
from pmpp.runtime.hopper import (
    bulk_store,
    bulk_tile,
    commit_stores,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    tensor_map,
    tile_descriptor,
    wait_stores,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.hopper_maps import launch_words, maps_of_launch, soon
from pmpp.runtime.hopper_registers import fewer_registers, more_registers
from pmpp.runtime.hopper_sparse import wgmma_sp_f16
from pmpp.runtime.matrix import commit_copies, copy_async, ldmatrix, ldmatrix_transposed, load32, wait_copies
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.sparse_matrix import mma_sp_f16

RESULT = np.float32  # the dtype of what the rungs return
CAPABILITY = (8, 0)  # of the oldest GPU that has mma.sp for this shape, and asynchronous copies
BLOCK = 256  # threads of a block in `gathered`
f0 = np.float32(0)


# --------------------------------------------------------------------------------------------------------- definition


def reference(values: np.ndarray, metadata: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The product in float64: a row of stored numbers after another, each times the row of x that it belongs to."""
    (m, stored), (k, n) = values.shape, x.shape
    y, columns = np.zeros((m, n)), places(metadata, m)
    for row in range(m):
        for j in range(stored):
            if columns[row, j] < k:
                y[row] += float(values[row, j]) * x[columns[row, j]].astype(np.float64)
    return y


def pruned_on_host(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `prune` gives, in NumPy: the two largest of each four, and their places."""
    (m, k), (_, of_metadata) = w.shape, shapes(*w.shape)
    full = np.zeros((of_metadata[0] * SIDE, of_metadata[1] * SIDE), np.float16)
    full[:m, :k] = w
    fours = full.reshape(len(full), full.shape[1] // 4, 4)
    size = (fours.view(np.uint16) & 0x7FFF).astype(np.int64)
    kept = np.sort(np.argsort(-size, axis=-1, kind="stable")[..., :2], axis=-1)
    values = np.take_along_axis(fours, kept, axis=-1).reshape(len(full), full.shape[1] // 2)[:m]
    bits = (kept[..., 0] | kept[..., 1] << 2).astype(np.uint32).reshape(len(full), full.shape[1] // 16, 4)
    halves = (bits << np.arange(0, 16, 4, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)  # of 16 columns
    tiles = halves.reshape(of_metadata[0], 2, 2, 8, of_metadata[1], 2)  # tile, s, lower or upper, g, step, h
    words = tiles[:, :, 0] | tiles[:, :, 1] << np.uint32(16)
    return np.ascontiguousarray(values), np.ascontiguousarray(words.transpose(0, 3, 2, 1, 4)).reshape(of_metadata)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and ``(values, metadata, x)``."""
    rng = np.random.default_rng(79) if rng is None else rng

    def pair(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)

    def case(w: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return *pruned_on_host(w), x

    shapes_of = {"one": (1, 1, 1), "no depth": (5, 7, 0), "no rows": (0, 4, 3), "no columns": (4, 0, 3)}
    shapes_of |= {"four": (1, 1, 4), "a fragment": (16, 8, 32), "a fragment but one": (15, 7, 31)}
    shapes_of |= {"a fragment and one": (17, 9, 33), "words of metadata": (32, 16, 64)}
    shapes_of |= {"a tile but some": (TILE - 8, 24, 56), "a tile and some": (TILE + 1, 16, 72)}
    shapes_of |= {"wide": (3, TILE + 8, 8), "steps": (20, 24, 200), "rows of odd length": (9, 11, 37)}
    cases = {name: case(*pair(*shape)) for name, shape in shapes_of.items()}
    w, x = pair(18, 24, 32)
    cases["cancellation"] = case(np.hstack([w, -w]), np.vstack([x, x]))
    cases["largest and smallest"] = case(np.full((2, 16), 65504, np.float16), np.full((16, 8), 2.0**-24, np.float16))
    cases["equal sizes"] = case(np.where(w < 0, np.float16(-1), np.float16(1)), x)
    beside = np.zeros((18, 32), np.float16)
    beside[:, 1::4], beside[:, 2::4] = w[:, 1::4] + 4, w[:, 2::4] - 4
    strange = x.copy()
    strange[4], strange[3] = np.inf, np.nan  # nothing that is stored belongs to these rows
    cases["not finite where nothing is stored"] = case(beside, strange)
    odd = w.copy()
    odd[3, 4], odd[7, 0], odd[9, -1] = np.nan, np.inf, -np.inf
    cases["not finite"] = case(odd, x)
    return cases


def cost(m: int, n: int, k: int) -> Cost:
    """A multiply-add for each stored number and column of x: half of a dense product. Each array is moved once.

    What is stored has 2 bytes and 2 bits of metadata.

    >>> cost(4096, 4096, 4096).flops / 4096**3, round(cost(4096, 4096, 4096).intensity)
    (1.0, 575)
    """
    return Cost(flops=m * n * k, bytes=m * k + m * k // 8 + 2 * k * n + 4 * m * n)


def tolerance(values: np.ndarray, metadata: np.ndarray, x: np.ndarray) -> np.ndarray:
    """How far from the exact result a right one may be.

    An instruction adds 16 products to a sum, as that without sparsity does, and loses as much: of each of 17 terms at
    most an eps of the largest one (`pmpp.kernels.matmul.tensor_cores`). A rung that adds one product after another
    rounds as often as there are products, each time by half an eps of the sums.
    """
    (m, stored), k = values.shape, x.shape[0]
    with np.errstate(all="ignore"):
        dense = np.zeros((m, 2 * stored))
        np.put_along_axis(dense, places(metadata, m), np.abs(values.astype(np.float64)), axis=1)
        size = np.where(dense[:, :k] > 0, dense[:, :k], 0) @ np.abs(np.where(np.isfinite(x), x, 0)).astype(np.float64)
    return 17 * blocks(max(k, 1), SIDE) * float(np.finfo(np.float32).eps) * size


def arguments(values, metadata, x, *, out=None, stream=0) -> Problem:
    """Multiply a matrix with 2:4 sparsity by a matrix, on tensor cores: y = w @ x.

    Args:
        values: what is stored of w, (M, K): float16 of shape (M, K' / 2), where K' is K, filled up to a multiple of
            128. What belongs to columns from K on must be 0.
        metadata: where it belongs, as `compressed.prune` makes it: uint32 of shape (M' / 32, K' / 32, 32), where
            M' is M, filled up to a multiple of 256.
            That each 4 bits name two places in their order is checked of a NumPy array alone.
        x: float16 of shape (K, N). All arrays are in C order. Extents may be 0; K = 0 gives zeros.
        out: a float32 device array of shape (M, N), apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Numbers that are not stored take no part: 0 times infinity
    is NaN in a dense product, and nothing here. The same call gives the same bits on the same GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of compute capability below 8.0.

    >>> from pmpp.kernels import sparsity
    >>> values, metadata = sparsity.prune(np.float16([[1, 2, 0.5, 4]]))
    >>> sparsity.fragments(values, metadata, np.float16([[1], [10], [100], [1000]])).copy_to_host()
    array([[4020.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes="float16", ndim=2, stream=stream)
    values, metadata = as_pruned(values, metadata, x.shape[0], stream)
    shape, apart = (values.shape[0], x.shape[1]), {"values": values, "metadata": metadata, "x": x}
    out = device.as_output("out", out, shape=shape, dtype="float32", apart=apart, stream=stream)
    capability = device.limits()["compute_capability"]
    if capability < CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this room needs a GPU of compute capability 8.0 or higher, this one has {said}")
    if out.size and not x.shape[0]:
        of_values, of_metadata = shapes(shape[0], 1)
        values = device.to_device(np.zeros(of_values, np.float16))
        metadata = device.to_device(np.full(of_metadata, FIRST_TWO))
        x = device.to_device(np.zeros((1, shape[1]), np.float16))
    return Problem(out, stream=stream, values=values.view(np.uint16), metadata=metadata, x=x.view(np.uint16))


# ------------------------------------------------------------------------------------------------------------ gathered


@cuda.jit(device=True)
def as_number(bits):
    return cuda.libdevice.half2float(np.int16(bits))


@cuda.jit
def gathered_kernel(values, metadata, x, y):
    i = cuda.grid(1)
    if i < y.size:
        row, column, total = i // y.shape[1], i % y.shape[1], f0
        within = row % SIDE
        lane, upper = within % 8 * 4 + within // 16 * 2, np.uint32(within % 16 // 8 * 16)
        for first in range(0, values.shape[1], 8):  # of 16 columns
            word = metadata[row // SIDE, first // 16, lane + first // 8 % 2] >> upper
            for j in range(first, first + 8):
                k = j // 2 * 4 + np.int64(word & np.uint32(3))
                if k < x.shape[0]:
                    total += as_number(values[row, j]) * as_number(x[k, column])
                word = np.uint32(word >> np.uint32(2))
        y[row, column] = total


@rung(gathered_kernel)
def gathered(p):
    """A thread computes an element of y: it reads a stored number, and the element of x that its place leads to.

    Source: PMPP 5e section 17.3, of sparse matrices in general.

    Leaves: a load of two bytes for every multiply-add, and no tensor core.
    """
    gathered_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.values, p.metadata, p.x, p.result)


# ----------------------------------------------------------------------------------------------------------- fragments

MMA_K = 32  # columns of w that mma.sp takes, of which 16 are stored
STORED = MMA_K // 2
WARPS = 4  # of a block in `fragments`, each with a tile of its own


@cuda.jit(device=True)
def stored_fragment(values, row, at):
    """The words of a lane of 16 x 16 stored numbers, from its first on."""
    return (
        along_row(values, row, at),
        along_row(values, row + 8, at),
        along_row(values, row, at + 8),
        along_row(values, row + 8, at + 8),
    )


@cuda.jit
def fragments_kernel(values, metadata, x, y):
    warp, lane = np.uint32(cuda.threadIdx.x) // WARP, np.uint32(cuda.threadIdx.x) % WARP
    tiles_n = (y.shape[1] + MMA_N - 1) // MMA_N
    tile = cuda.blockIdx.x * np.int64(WARPS) + warp
    group, pair = lane // 4, lane % 4 * 2  # of four lanes, and the first of two neighbours in a row
    row, column = tile // tiles_n * SIDE, tile % tiles_n * MMA_N
    inside = row < y.shape[0]
    upper, lower = FOUR, FOUR
    for step in range(values.shape[1] // STORED):
        word = metadata[row // SIDE, step, lane] if inside else FIRST_TWO
        at, k = np.int64(step * STORED + pair), np.int64(step * MMA_K + pair)
        b_words = (
            along_column(x, k, column + group),
            along_column(x, k + 8, column + group),
            along_column(x, k + 16, column + group),
            along_column(x, k + 24, column + group),
        )
        upper = mma_sp_f16(stored_fragment(values, row + group, at), b_words, upper, word, 0)
        lower = mma_sp_f16(stored_fragment(values, row + 16 + group, at), b_words, lower, word, 1)
    for i in range(4):
        down, along = row + group + i // 2 * 8, column + pair + i % 2
        if down < y.shape[0] and along < y.shape[1]:
            y[down, along] = upper[i]
        if down + 16 < y.shape[0] and along < y.shape[1]:
            y[down + 16, along] = lower[i]


@rung(fragments_kernel)
def fragments(p):
    """A warp multiplies what is stored on tensor cores: a word of metadata says to which rows of x it belongs.

    A warp computes 32 x 8 elements of y: one word of a lane has the metadata of two instructions.
    Source: PTX ISA, "Matrix fragments for sparse mma.m16n8k32 with .f16 and .bf16 types".

    Leaves: every warp loads its fragments from device memory, number by number.
    """
    tiles = blocks(p.result.shape[0], SIDE) * blocks(p.result.shape[1], MMA_N)
    fragments_kernel[blocks(tiles, WARPS), WARPS * WARP, p.stream](p.values, p.metadata, p.x, p.result)


# ---------------------------------------------------------------------------------------------------------- few columns

PARTS = 16  # of k, each for a warp of a block in `shared_k`
TWO = 2 * STORED  # stored numbers of a row in two steps


@cuda.jit
def transpose_kernel(x, target):
    """x with rows and columns exchanged, and zeros beyond its edges."""
    i = cuda.grid(1)
    if i < target.size:
        column, k = i // target.shape[1], i % target.shape[1]
        target[column, k] = element(x, k, column)


@cuda.jit(device=True)
def words_of_16_rows(values, at, below):
    """The words of a lane of 16 x 16 stored numbers that begin at values[at], and 8 rows further at values[below]."""
    return load32(values, at), load32(values, below), load32(values, at + 8), load32(values, below + 8)


@cuda.jit(device=True)
def words_of_a_column(columns, at):
    """The words of a lane of 32 x 8 numbers of x, whose column lies there."""
    return load32(columns, at), load32(columns, at + 8), load32(columns, at + 16), load32(columns, at + 24)


@cuda.jit(launch_bounds=(PARTS * WARP, 2))
def shared_k_kernel(values, metadata, columns, y):
    parts = cuda.shared.array((PARTS, 8, WARP), np.float32)
    warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
    tiles_n, width, last = (y.shape[1] + MMA_N - 1) // MMA_N, np.int64(values.shape[1]), np.int64(y.shape[0] - 1)
    group, pair = lane // 4, lane % 4 * 2
    row, column = cuda.blockIdx.x // tiles_n * SIDE, cuda.blockIdx.x % tiles_n * MMA_N
    # Where the lane begins in rows of w, of which those below the last one are not stored, in a column of x, and in
    # metadata.
    first, second = min(row + group, last) * width + pair, min(row + group + 8, last) * width + pair
    third, fourth = min(row + group + 16, last) * width + pair, min(row + group + 24, last) * width + pair
    of_x, of_words = (column + group) * 2 * width + pair, row // SIDE * width * 4 + 2 * lane
    upper, lower = FOUR, FOUR
    for both in range(warp, width // TWO, PARTS):
        at, k, words = both * TWO, of_x + both * 2 * TWO, of_words + both * 4 * SIDE
        word, next_word = load32(metadata, words), load32(metadata, words + 2 * SIDE)
        a = words_of_16_rows(values, first + at, second + at)
        b = words_of_16_rows(values, third + at, fourth + at)
        c = words_of_16_rows(values, first + at + STORED, second + at + STORED)
        d = words_of_16_rows(values, third + at + STORED, fourth + at + STORED)
        of_step, of_next = words_of_a_column(columns, k), words_of_a_column(columns, k + MMA_K)
        upper = mma_sp_f16(a, of_step, upper, word, 0)
        lower = mma_sp_f16(b, of_step, lower, word, 1)
        upper = mma_sp_f16(c, of_next, upper, next_word, 0)
        lower = mma_sp_f16(d, of_next, lower, next_word, 1)
    for i in range(4):
        parts[warp, i, lane], parts[warp, 4 + i, lane] = upper[i], lower[i]
    cuda.syncthreads()
    if warp < 8:  # each takes one of the sums of all lanes
        total = f0
        for part in range(PARTS):
            total += parts[part, warp, lane]
        down, along = row + group + warp // 4 * 16 + warp % 4 // 2 * 8, column + pair + warp % 2
        if down < y.shape[0] and along < y.shape[1]:
            y[down, along] = total


@rung(shared_k_kernel, transpose_kernel)
def shared_k(p):
    """The warps of a block share 32 rows of w: each takes every 16th pair of steps, and at the end they add up.

    It is for few columns of x, where each weight is needed once, and many loads under way are all that counts. A lane
    loads two neighbours at once, of w and of x, which is transposed before.
    Source: CUTLASS, "Efficient GEMM in CUDA", on parallelised reductions.

    Leaves: with many columns each warp loads what its neighbours have loaded, too.
    """
    values, width = p.values, 2 * p.values.shape[1]
    if device.address(values) % 4:
        values = padded(values, p.stream)
    columns = device.empty((round_up(p.x.shape[1], MMA_N), width), np.uint16, stream=p.stream)
    transpose_kernel[blocks(columns.size, BLOCK), BLOCK, p.stream](p.x, columns)
    grid = blocks(p.result.shape[0], SIDE) * blocks(p.result.shape[1], MMA_N)
    metadata = p.metadata.reshape(-1).view(np.uint16)
    shared_k_kernel[grid, PARTS * WARP, p.stream](values, metadata, columns, p.result)


# ----------------------------------------------------------------------------------------------- tiles in shared memory
# From here on a block computes a tile of y from tiles in shared memory: of what is stored of w, row by row, and of x. A
# warp has 64 x 64 sums, two panels of `pmpp.kernels.matmul.tensor_cores` side by side. One ldmatrix reads 32 x 8
# elements of x: the second operand of one instruction.

TILE, SLICE = 128, 64  # of a block in `tiled`: rows and columns of y, and columns of w at a time


class Tile(typing.NamedTuple):
    """What a block computes: m x n of y, from ``depth`` columns of w and rows of x at a time, in so many ``stages``."""

    m: int
    n: int
    depth: int
    stages: int

    @property
    def threads(self) -> int:
        return self.m // PANEL_M * (self.n // (2 * PANEL_N)) * WARP

    @property
    def words(self) -> int:
        """Of metadata, in a stage."""
        return self.m * self.depth // SIDE

    @property
    def stage(self) -> int:
        """Elements of 16 bits in a stage."""
        return self.m * self.depth // 2 + self.depth * self.n + 2 * self.words

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return 2 * self.stages * self.stage

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.depth}, {self.stages} stages"


@cuda.jit(device=True)
def multiply_column(a, words, b, sums):
    """Add the products of 64 rows of w with 8 columns of x. The fragments of w and the sums lie below each other."""
    return (
        mma_sp_f16(a[0], b, sums[0], words[0], 0),
        mma_sp_f16(a[1], b, sums[1], words[0], 1),  # the metadata comes from the other lanes
        mma_sp_f16(a[2], b, sums[2], words[1], 0),
        mma_sp_f16(a[3], b, sums[3], words[1], 1),
    )


@cuda.jit(device=True)
def store_columns(y, row, column, sums):
    """Store 64 x 32 sums at (row, column) of y."""
    first, second, third, fourth = sums
    rows = (
        (first[0], second[0], third[0], fourth[0]),
        (first[1], second[1], third[1], fourth[1]),
        (first[2], second[2], third[2], fourth[2]),
        (first[3], second[3], third[3], fourth[3]),
    )
    store_panel(y, row, column, rows)


def in_chunks(p: Problem, launch: typing.Callable) -> None:
    """Call ``launch(values, metadata, x, y)`` with rows that begin at multiples of 16 bytes: copies, if need be."""
    values, metadata, x, y = p.values, p.metadata.reshape(-1), p.x, p.result
    if device.address(values) % 16:
        values = padded(values, p.stream)
    if device.address(metadata) % 16:
        metadata = padded(metadata.reshape(1, -1), p.stream).reshape(-1)
    if any(z.shape[1] % CHUNK or device.address(z) % 16 for z in (x, y)):
        x = padded(x, p.stream)
        y = device.empty((y.shape[0], x.shape[1]), np.float32, stream=p.stream)
    launch(values, metadata.view(np.uint16), x, y)
    if y is not p.result:
        copy_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](y, p.result)


COPIERS = TILE // PANEL_M * (TILE // (2 * PANEL_N)) * WARP  # threads of a block in `tiled`
place_of_values, place_of_x = swizzled_place(SLICE // 2 // CHUNK), swizzled_place(TILE // CHUNK)
copy_values = copier(TILE, SLICE // 2 // CHUNK, COPIERS, place_of_values)
copy_x = copier(SLICE, TILE // CHUNK, COPIERS, place_of_x)
BEGIN_OF_X, ROOM = np.uint32(TILE * SLICE // 2), TILE * SLICE // 2 + SLICE * TILE  # in shared memory


@cuda.jit(device=True)
def read_stored(shared, row, chunk):
    """16 x 16 stored numbers, 32 columns of w, as a fragment."""
    lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
    return ldmatrix(
        shared, place_of_values(np.uint32(row + lane % 16), np.uint32(chunk + lane // 16)) * np.uint32(CHUNK)
    )


@cuda.jit(device=True)
def read_of_x(shared, k, column):
    """32 x 8 elements of x as a fragment: each lane says where one of the rows is."""
    lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
    chunk = np.uint32(column // np.uint32(CHUNK))
    return ldmatrix_transposed(shared, BEGIN_OF_X + place_of_x(np.uint32(k + lane), chunk) * np.uint32(CHUNK))


@cuda.jit(device=True)
def multiply_panel(shared, a, words, k, column, sums):
    """Add the products of 64 rows of w with 32 columns of x."""
    return (
        multiply_column(a, words, read_of_x(shared, k, column), sums[0]),
        multiply_column(a, words, read_of_x(shared, k, np.uint32(column + 8)), sums[1]),
        multiply_column(a, words, read_of_x(shared, k, np.uint32(column + 16)), sums[2]),
        multiply_column(a, words, read_of_x(shared, k, np.uint32(column + 24)), sums[3]),
    )


@cuda.jit
def tiled_kernel(values, metadata, x, y):
    shared = cuda.shared.array(ROOM, np.uint16, alignment=128)
    width, n, k_end = np.int64(values.shape[1]), np.int64(x.shape[1]), np.int64(x.shape[0])
    tiles_n = (n + TILE - 1) // TILE
    first_row, first_column = cuda.blockIdx.x // tiles_n * TILE, cuda.blockIdx.x % tiles_n * TILE
    warp, lane = np.uint32(cuda.threadIdx.x) // np.uint32(WARP), np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
    row, column = np.uint32(warp // np.uint32(2) * PANEL_M), np.uint32(warp % np.uint32(2) * (2 * PANEL_N))
    upper = (first_row + row) // SIDE * width * 4 + 2 * lane  # of the metadata, of which 32 rows have 4 width
    sums, more = NOTHING, NOTHING
    for k in range(0, 2 * width, SLICE):
        copy_values(shared, np.uint32(0), values, first_row, k // 2, np.int64(y.shape[0]), width)
        copy_x(shared, BEGIN_OF_X, x, k, first_column, k_end, n)
        commit_copies()
        wait_copies(0)
        cuda.syncthreads()  # the tiles are whole before anyone reads them
        for step in range(SLICE // MMA_K):
            chunk, down, at = np.uint32(2 * step), np.uint32(MMA_K * step), upper + k * 2 + step * 64
            stored = (
                read_stored(shared, row, chunk),
                read_stored(shared, np.uint32(row + 16), chunk),
                read_stored(shared, np.uint32(row + 32), chunk),
                read_stored(shared, np.uint32(row + 48), chunk),
            )
            words = load32(metadata, at), load32(metadata, at + width * 4)
            sums = multiply_panel(shared, stored, words, down, column, sums)
            more = multiply_panel(shared, stored, words, down, np.uint32(column + PANEL_N), more)
        cuda.syncthreads()  # everyone has read them before they are overwritten
    store_columns(y, first_row + row, first_column + column, sums)
    store_columns(y, first_row + row, first_column + column + PANEL_N, more)


@rung(tiled_kernel, copy_kernel)
def tiled(p):
    """A block copies tiles into shared memory, where ldmatrix reads fragments: half as many of w as of x.

    A warp computes 64 x 64 elements of y: for 32 instructions it reads 4 fragments of what is stored of w, and 8 of x.
    If rows of x or out do not begin at multiples of 16 bytes, the kernel works on copies that are padded with zeros.
    Source: PTX ISA, "ldmatrix"; CUTLASS, "Efficient GEMM in CUDA", on permuted shared memory.

    Leaves: nothing is multiplied while the next tiles travel from device memory.
    """

    def launch(values, metadata, x, y):
        grid = blocks(y.shape[0], TILE) * blocks(y.shape[1], TILE)
        tiled_kernel[grid, COPIERS, p.stream](values, metadata, x, y)

    in_chunks(p, launch)


# -------------------------------------------------------------------------------------------------------- the pipeline
# Several stages of tiles, and metadata with them. A warp multiplies half a step while it reads fragments of the other.


BESIDE = tuple(np.uint32(CHUNK * j) for j in range(8))  # an exclusive or with it leads to the next chunks of a row


def half_steps(a_below: np.uint32, lower_words: typing.Any) -> tuple[typing.Any, typing.Any, typing.Any]:
    """Three device functions: read the first fragments, and multiply half a step while the next half's are read.

    A lane reads at ``at``: of what is stored of w, of x, and of metadata.
    ``a_below``: elements in 16 rows of the first. ``lower_words(at)``: where the metadata of 32 rows further down is.
    """

    @cuda.jit(device=True)
    def read_first(shared, at):
        """The fragments of w for a step, and those of x for the first half of it."""
        a, b, words = at
        return (
            (
                ldmatrix(shared, a),
                ldmatrix(shared, np.uint32(a + a_below)),
                ldmatrix(shared, np.uint32(a + 2 * a_below)),
                ldmatrix(shared, np.uint32(a + 3 * a_below)),
            ),
            (load32(shared, words), load32(shared, lower_words(words))),
            (
                ldmatrix_transposed(shared, b),
                ldmatrix_transposed(shared, np.uint32(b ^ BESIDE[1])),
                ldmatrix_transposed(shared, np.uint32(b ^ BESIDE[2])),
                ldmatrix_transposed(shared, np.uint32(b ^ BESIDE[3])),
            ),
        )

    @cuda.jit(device=True)
    def first_half(shared, at, a, words, b, sums):
        """Multiply by the left 32 columns of x, and read the right ones."""
        first = ldmatrix_transposed(shared, np.uint32(at[1] ^ BESIDE[4]))
        sums_0 = multiply_column(a, words, b[0], sums[0])
        second = ldmatrix_transposed(shared, np.uint32(at[1] ^ BESIDE[5]))
        sums_1 = multiply_column(a, words, b[1], sums[1])
        third = ldmatrix_transposed(shared, np.uint32(at[1] ^ BESIDE[6]))
        sums_2 = multiply_column(a, words, b[2], sums[2])
        fourth = ldmatrix_transposed(shared, np.uint32(at[1] ^ BESIDE[7]))
        sums_3 = multiply_column(a, words, b[3], sums[3])
        return (first, second, third, fourth), (sums_0, sums_1, sums_2, sums_3)

    @cuda.jit(device=True)
    def second_half(shared, at, a, words, b, sums):
        """Multiply by the right 32 columns of x, and read what the next step begins with, at ``at``."""
        b_0, a_0 = ldmatrix_transposed(shared, at[1]), ldmatrix(shared, at[0])
        sums_0 = multiply_column(a, words, b[0], sums[0])
        b_1 = ldmatrix_transposed(shared, np.uint32(at[1] ^ BESIDE[1]))
        a_1 = ldmatrix(shared, np.uint32(at[0] + a_below))
        sums_1 = multiply_column(a, words, b[1], sums[1])
        b_2 = ldmatrix_transposed(shared, np.uint32(at[1] ^ BESIDE[2]))
        a_2 = ldmatrix(shared, np.uint32(at[0] + 2 * a_below))
        sums_2 = multiply_column(a, words, b[2], sums[2])
        b_3 = ldmatrix_transposed(shared, np.uint32(at[1] ^ BESIDE[3]))
        a_3 = ldmatrix(shared, np.uint32(at[0] + 3 * a_below))
        next_words = load32(shared, at[2]), load32(shared, lower_words(at[2]))
        sums_3 = multiply_column(a, words, b[3], sums[3])
        return (a_0, a_1, a_2, a_3), next_words, (b_0, b_1, b_2, b_3), (sums_0, sums_1, sums_2, sums_3)

    return read_first, first_half, second_half


@functools.lru_cache(KERNELS)
def overlapped_kernel(tile: Tile, group: int) -> typing.Any:
    """The kernel of a tile with several stages of tiles on their way. A grid has one dimension.

    ``group``: so many tiles of y below each other are computed by blocks that follow each other.
    """
    side_m, side_n, depth, stages = tile
    a_width, steps = depth // 2, depth // MMA_K
    a_place, b_place = swizzled_place(a_width // CHUNK), swizzled_place(side_n // CHUNK)
    copy_a = onward_copier(side_m, a_width // CHUNK, tile.threads)
    copy_b = onward_copier(depth, side_n // CHUNK, tile.threads)
    a_chunks, b_chunks, chunk = np.uint32(a_width // CHUNK), np.uint32(side_n // CHUNK), np.uint32(CHUNK)
    a_size, b_size = np.uint32(side_m * a_width), np.uint32(depth * side_n)
    words_at = np.uint32(a_size + b_size)  # of a stage
    word_chunks, word_threads = np.uint32(steps * 8), np.uint32(tile.words // 4)
    stage_size, end_stage, pending = np.uint32(tile.stage), np.uint32(stages * tile.stage), stages - 2
    a_below, b_below = np.uint32(16 * a_width), np.uint32(MMA_K * side_n)
    warps_n = np.uint32(side_n // (2 * PANEL_N))
    tile_of = order_of_tiles(group)

    @cuda.jit(device=True)
    def lower_words(at):
        return np.uint32(at + np.uint32(64 * steps))

    @cuda.jit(device=True)
    def reads(own, begin, step):
        """Where the lane reads a step of the stage that begins there."""
        b_at, words = np.uint32(own[1] + np.uint32(step) * b_below), np.uint32(own[2] + np.uint32(64 * step))
        return np.uint32(begin + own[0] ^ BESIDE[2 * step]), np.uint32(begin + b_at), np.uint32(begin + words)

    read_first, first_half, second_half = half_steps(a_below, lower_words)

    @cuda.jit
    def overlapped_sparse_kernel(values, metadata, x, y):
        shared = cuda.shared.array(0, np.uint16, alignment=128)
        m, n, k_end = np.int64(y.shape[0]), np.int64(y.shape[1]), np.int64(x.shape[0])
        pitch = np.int64(values.shape[1])
        tile_m, tile_n = tile_of(np.int64(cuda.blockIdx.x), (m + side_m - 1) // side_m, (n + side_n - 1) // side_n)
        first_row, first_column = tile_m * side_m, tile_n * side_n
        thread = np.uint32(cuda.threadIdx.x)
        # Where the thread copies its first chunks from and to, and what is left from there on: rows, and of K.
        a_line, a_chunk = np.uint32(thread // a_chunks), np.uint32(thread % a_chunks)
        b_line, b_chunk = np.uint32(thread // b_chunks), np.uint32(thread % b_chunks)
        a_to = np.uint32(a_place(a_line, a_chunk) * chunk)
        b_to = np.uint32(a_size + b_place(b_line, b_chunk) * chunk)
        column_of_b = first_column + np.int64(b_chunk) * CHUNK
        a_at = (first_row + np.int64(a_line)) * pitch + np.int64(a_chunk) * CHUNK
        b_at = np.int64(b_line) * n + column_of_b
        rows = np.int32(min(m - first_row - np.int64(a_line), MOST_LEFT))
        a_left = pitch - np.int64(a_chunk) * CHUNK
        b_left = k_end - np.int64(b_line) if column_of_b < n else np.int64(0)
        word_row = first_row // SIDE + np.int64(thread // word_chunks)
        word_at = word_row * pitch * 4 + np.int64(thread % word_chunks) * CHUNK
        word_to = np.uint32(words_at + thread * chunk)
        # Where the lane reads, in a stage that begins at 0.
        lane, warp = thread % np.uint32(WARP), thread // np.uint32(WARP)
        row, column = np.uint32(warp // warps_n * PANEL_M), np.uint32(warp % warps_n * (2 * PANEL_N))
        below, half = np.uint32(row + lane % 16), np.uint32(lane // 16)
        own = (
            np.uint32(a_place(below, half) * chunk),
            np.uint32(a_size + b_place(lane, np.uint32(column // chunk)) * chunk),
            np.uint32(words_at + row * np.uint32(2 * steps) + 2 * lane),
        )
        into = np.uint32(0)
        for _ in range(stages - 1):
            copy_a(shared, np.uint32(into + a_to), values, a_at, pitch, rows if a_left > 0 else np.int32(0))
            copy_b(shared, np.uint32(into + b_to), x, b_at, n, np.int32(min(b_left, MOST_LEFT)))
            if thread < word_threads:
                copy_async(shared, np.uint32(into + word_to), metadata, word_at, CHUNK if a_left > 0 else 0)
            commit_copies()
            a_at, b_at, a_left, b_left = a_at + a_width, b_at + depth * n, a_left - a_width, b_left - depth
            word_at, into = word_at + word_chunks * CHUNK, np.uint32(into + stage_size)
        wait_copies(pending)
        cuda.syncthreads()
        sums, more = NOTHING, NOTHING
        now, done = np.uint32(0), np.int64(0)
        at = own
        a, words, b = read_first(shared, at)
        while done < pitch:
            copy_a(shared, np.uint32(into + a_to), values, a_at, pitch, rows if a_left > 0 else np.int32(0))
            b, sums = first_half(shared, at, a, words, b, sums)
            at = reads(own, now, 1)
            a, words, b, more = second_half(shared, at, a, words, b, more)
            copy_b(shared, np.uint32(into + b_to), x, b_at, n, np.int32(min(b_left, MOST_LEFT)))
            if thread < word_threads:
                copy_async(shared, np.uint32(into + word_to), metadata, word_at, CHUNK if a_left > 0 else 0)
            commit_copies()
            b, sums = first_half(shared, at, a, words, b, sums)
            a_at, b_at, a_left, b_left = a_at + a_width, b_at + depth * n, a_left - a_width, b_left - depth
            word_at, done = word_at + word_chunks * CHUNK, done + a_width
            into, now = now, np.uint32(now + stage_size)
            if now == end_stage:
                now = np.uint32(0)
            wait_copies(pending)  # the next tiles are there: those of this thread,
            cuda.syncthreads()  # and of all; and everyone has read those that are overwritten next
            at = reads(own, now, 0)
            a, words, b, more = second_half(shared, at, a, words, b, more)
        store_columns(y, first_row + row, first_column + column, sums)
        store_columns(y, first_row + row, first_column + column + PANEL_N, more)

    return overlapped_sparse_kernel


TILES = (Tile(256, 128, 64, 4), Tile(128, 128, 64, 3))


@functools.lru_cache(4096)
def tile_for(m: int, n: int, multiprocessors: int, memory: int) -> Tile:
    """The largest tile of which there are enough for all multiprocessors, with that much shared ``memory`` each.

    >>> str(tile_for(4096, 4096, 132, 228 * 1024)), str(tile_for(4096, 4096, 84, 100 * 1024))
    ('256 x 128 x 64, 4 stages', '128 x 128 x 64, 3 stages')
    """
    fitting = (tile for tile in TILES if tile.shared + RESERVED <= memory)
    enough = (tile for tile in fitting if blocks(m, tile.m) * blocks(n, tile.n) >= multiprocessors)
    return next(enough, TILES[-1])


def by_overlap(tile: Tile, group: int, p: Problem) -> None:
    """Launch the kernel of a tile."""

    def launch(values, metadata, x, y):
        grid = blocks(y.shape[0], tile.m) * blocks(y.shape[1], tile.n)
        overlapped_kernel(tile, group)[grid, tile.threads, p.stream, tile.shared](values, metadata, x, y)

    in_chunks(p, launch)


@rung(overlapped_kernel, copy_kernel)
def overlapped(p):
    """Tiles of the next steps are on their way, and a warp loads half a step's fragments while it multiplies the other.

    A block has tiles of 256 x 128 with eight warps where there are enough of them and shared memory has room, and of
    128 x 128 where not.
    Source: CUTLASS, "Efficient GEMM in CUDA", on software pipelining.

    Leaves: at each barrier all warps wait for the last one, and every warp spends instructions on copies.
    """
    limits = device.limits()
    tile = tile_for(*p.result.shape, limits["multiprocessors"], limits["max_shared_memory_per_multiprocessor"])
    by_overlap(tile, GROUP, p)


# ------------------------------------------------------------------------------------------------ an engine that copies

FED = Tile(256, 128, 128, 3)
CAPABILITY_OF = {"fed_kernel": ENGINE, "warpgroups_kernel": ENGINE, "boxes_of_sums": ENGINE}
WORDS = SIDE * 2  # elements of 16 bits in the metadata of 32 x 32


@functools.lru_cache(KERNELS)
def fed_kernel(tile: Tile, group: int) -> typing.Any:
    """The kernel of blocks that compute tile after tile of y: tile b, b + blocks, b + 2 blocks, ...

    ``full[s]`` ends a phase when the tiles of stage s have come, and ``empty[s]`` when all warps have used them. All
    rows have 128 bytes: those of what is stored of w, of x in panels of 64 columns, and of metadata in boxes.
    """
    side_m, side_n, depth, stages = tile
    steps, panels, tiles_of_words = depth // MMA_K, side_n // ALONG_B, side_m // SIDE
    a_size, b_size, box = side_m * ALONG_B, depth * side_n, max(tiles_of_words, 8) * WORDS
    words_at, stage_size = np.uint32(a_size + b_size), np.uint32(fed_stage(tile))
    nbytes = 2 * (a_size + b_size + steps * tiles_of_words * WORDS)
    consumers, threads = tile.threads // WARP, tile.threads + PRODUCER
    to_b, to_words, panel_of = 16, 32, np.uint32(depth * ALONG_B)
    place, tile_of = swizzled_place(ALONG_B // CHUNK), order_of_tiles(group)
    a_below, b_below, box_size = np.uint32(16 * ALONG_B), np.uint32(MMA_K * ALONG_B), np.uint32(box)

    @cuda.jit(device=True)
    def fetch(shared, stage, maps, row, column, k, full):
        """Ask for the tiles at (row, k) of w and at (k, column) of x. ``full`` counts their bytes."""
        begin = np.uint32(stage * stage_size)
        expect_bytes(full, stage, nbytes)
        bulk_tile(shared, begin, maps, 0, row, k // 2, full, stage)
        for panel in range(panels):
            to = np.uint32(begin + np.uint32(a_size) + np.uint32(panel) * panel_of)
            bulk_tile(shared, to, maps, to_b, k, column + panel * ALONG_B, full, stage)
        for step in range(steps):
            to = np.uint32(begin + words_at + np.uint32(step) * box_size)
            bulk_tile(shared, to, maps, to_words, row // SIDE, (k // SIDE + step) * WORDS, full, stage)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def lower_words(at):
        return np.uint32((at ^ BESIDE[1]) + np.uint32(WORDS))  # the next row, in which the chunks have other places

    @cuda.jit(device=True)
    def onward(at, bits):
        """Where the lane reads 32 columns of w and rows of x further on."""
        return np.uint32(at[0] ^ bits), np.uint32(at[1] + b_below), np.uint32(at[2] + box_size)

    read_first, first_half, second_half = half_steps(a_below, lower_words)

    @cuda.jit(launch_bounds=(threads, 1))
    def fed_sparse_kernel(given, y, width):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        maps = maps_of_launch(given)
        rounds, tiles_n = np.uint32((width + depth - 1) // depth), (np.int64(y.shape[1]) + side_n - 1) // side_n
        tiles_m = (np.int64(y.shape[0]) + side_m - 1) // side_m
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
                    done = np.uint32(0)
                    while done < rounds:
                        mbarrier_wait(empty, stage, parity ^ np.uint32(1))  # the phase before the first has ended
                        fetch(shared, stage, maps, tile_m * side_m, tile_n * side_n, np.int64(done) * depth, full)
                        stage, parity = next_stage(stage, parity)
                        done = np.uint32(done + np.uint32(1))
                    number += cuda.gridDim.x
        else:
            more_registers(MANY)
            # Where the lane reads its first fragments, in a stage that begins at 0.
            panel = np.uint32(warp % np.uint32(panels))
            row = np.uint32(warp // np.uint32(panels) * np.uint32(PANEL_M))
            own_a = np.uint32(place(np.uint32(row + lane % 16), np.uint32(lane // 16)) * np.uint32(CHUNK))
            own_b = np.uint32(np.uint32(a_size) + panel * panel_of + place(lane, np.uint32(0)) * np.uint32(CHUNK))
            of_words = np.uint32(row // np.uint32(SIDE))
            word_chunk, rest = np.uint32(lane // 4), np.uint32(words_at + lane % 4 * 2)
            own_words = np.uint32(rest + place(of_words, word_chunk) * np.uint32(CHUNK))
            own = own_a, own_b, own_words
            at = own
            mbarrier_wait(full, stage, parity)  # no block is without a tile
            a, words, b = read_first(shared, at)
            while number < tiles:
                sums, more = NOTHING, NOTHING
                after, done = number + cuda.gridDim.x, np.uint32(0)
                while done < rounds:
                    done = np.uint32(done + np.uint32(1))
                    b, sums = first_half(shared, at, a, words, b, sums)
                    at = onward(at, BESIDE[2])
                    a, words, b, more = second_half(shared, at, a, words, b, more)
                    b, sums = first_half(shared, at, a, words, b, sums)
                    at = onward(at, BESIDE[6])
                    a, words, b, more = second_half(shared, at, a, words, b, more)
                    b, sums = first_half(shared, at, a, words, b, sums)
                    at = onward(at, BESIDE[2])
                    a, words, b, more = second_half(shared, at, a, words, b, more)
                    b, sums = first_half(shared, at, a, words, b, sums)
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(empty, stage)  # all fragments of the stage are in registers
                    if done < rounds or after < tiles:  # or else what comes next is read, and not used
                        stage, parity = next_stage(stage, parity)
                        mbarrier_wait(full, stage, parity)
                    begin = np.uint32(stage * stage_size)
                    at = np.uint32(begin + own[0]), np.uint32(begin + own[1]), np.uint32(begin + own[2])
                    a, words, b, more = second_half(shared, at, a, words, b, more)
                tile_m, tile_n = tile_of(number, tiles_m, tiles_n)
                down, along = tile_m * side_m + row, tile_n * side_n + panel * np.uint32(ALONG_B)
                store_columns(y, down, along, sums)
                store_columns(y, down, along + PANEL_N, more)
                number = after

    return fed_sparse_kernel


def fed_stage(tile: Tile) -> int:
    """Elements of 16 bits in a stage: each box of metadata begins at a multiple of 1024 bytes."""
    words = tile.depth // MMA_K * max(tile.m // SIDE, 8) * WORDS
    return tile.m * tile.depth // 2 + tile.depth * tile.n + words


def by_engine(tile: Tile, most_blocks: int, group: int, p: Problem) -> None:
    """Launch the kernel of a tile that an engine brings, with that many blocks at most."""

    def launch(values, metadata, x, y):
        grid = min(blocks(y.shape[0], tile.m) * blocks(y.shape[1], tile.n), most_blocks)
        words = metadata.reshape(-1, values.shape[1] * 4)
        maps = launch_words(
            tensor_map(values, tile.m, ALONG_B),
            tensor_map(x, tile.depth, ALONG_B),
            tensor_map(words, tile.m // SIDE, WORDS),
        )
        kernel, threads = fed_kernel(tile, group), tile.threads + PRODUCER
        kernel[grid, threads, p.stream, 2 * tile.stages * fed_stage(tile)](maps, y, np.int64(2 * values.shape[1]))

    in_chunks(p, launch)


@rung(fed_kernel, overlapped_kernel, copy_kernel)
def fed(p):
    """On Hopper an engine brings the tiles, and a warp of its own asks for them. No barrier stands in the loop.

    The metadata is one more matrix for the engine. For another GPU, and where there is less than one tile of 256 x 128
    for each multiprocessor, this is the rung before.
    Source: PTX ISA, "cp.async.bulk.tensor", "mbarrier" and "setmaxnreg".

    Leaves: each warp reads its own fragments out of shared memory, and those of x are twice as many bytes.
    """
    limits = device.limits()
    suits = is_for_engine(*p.result.shape, p.x.shape[0], limits["multiprocessors"])
    if suits and limits["compute_capability"] == ENGINE:
        by_engine(FED, limits["multiprocessors"], GROUP, p)
    else:
        overlapped.launch(p)


def is_for_engine(m: int, n: int, k: int, multiprocessors: int) -> bool:
    """Whether there is a tile for each multiprocessor, and the engine can count rows and columns.

    >>> is_for_engine(4096, 4096, 4096, 132), is_for_engine(1024, 1024, 1024, 132)
    (True, False)
    """
    enough = blocks(m, FED.m) * blocks(n, FED.n) >= multiprocessors
    return enough and max(m, n, 2 * round_up(k, PADDED)) < MOST_OF_ENGINE


# -------------------------------------------------------------------------------------------- warpgroups multiply tiles
# wgmma takes both operands from shared memory: what is stored of w, and x in panels of 64 columns, as the engine leaves
# them there. Metadata comes from registers. Each warp of a warpgroup has that of 16 rows, and one word of a lane serves
# two steps of 32 columns: the selector is 0 for the first of them, and 1 for the second.

TEAM, TEAM_ROWS = 128, 64  # threads of a warpgroup, and the rows of y that it computes
WARPGROUP_TILES = (Tile(256, 128, 128, 3), Tile(128, 64, 128, 6))
REGISTERS = 65536  # of a multiprocessor
BUFFER, BOX_SUMS = 16 * ALONG_B, 16  # elements of 16 bits in a box of y, 16 x 32 sums, and how many a lane has


def warpgroups_shared(tile: Tile) -> int:
    """Bytes of shared memory: the stages, and of each warp a box of y."""
    return 2 * (tile.stages * (tile.m * ALONG_B + tile.depth * tile.n) + tile.m // 16 * BUFFER)


def registers_for(teams: int) -> int:
    """How many registers a thread that multiplies can have, beside a warpgroup with `FEW`.

    All threads of a block begin with as many, a multiple of 8. What one warpgroup gives back, the others can take.

    >>> registers_for(4), registers_for(2)
    (112, 240)
    """
    threads = teams * TEAM + PRODUCER
    pool = threads * (REGISTERS // threads // 8 * 8)
    return min((pool - PRODUCER * FEW) // (teams * TEAM) // 8 * 8, MANY)


@functools.cache
def boxes_of_sums(registers: int) -> typing.Any:
    """A device function with which a warp stores so many sums of each lane by the engine: 32 columns, and the rest."""
    if registers > BOX_SUMS:
        first, rest = boxes_of_sums(BOX_SUMS), boxes_of_sums(registers - BOX_SUMS)

        @cuda.jit(device=True, forceinline=True)
        def store(shared, words, room, maps, row, column, sums):
            first(shared, words, room, maps, row, column, sums[:BOX_SUMS])
            rest(shared, words, room, maps, row, column + 2 * BOX_SUMS, sums[BOX_SUMS:])

        return store
    write, of_y = writer("float32"), 32

    @cuda.jit(device=True, forceinline=True)
    def store_box(shared, words, room, maps, row, column, sums):
        first = cuda.threadIdx.x % WARP == 0
        if first:
            wait_stores(0)  # the engine has read the box before this one
        cuda.syncwarp()
        write(shared, words, room, sums)
        copies_visible()
        cuda.syncwarp()
        if first:
            bulk_store(maps, of_y, row, column * 2, shared, room)
            commit_stores()

    return store_box


@functools.lru_cache(KERNELS)
def warpgroups_kernel(tile: Tile, group: int) -> typing.Any:
    """The kernel of a tile that warpgroups multiply, 64 rows each, and that the engine brings and stores.

    ``full[s]`` ends a phase when the tiles of stage s have come, and ``empty[s]`` when all warps have used them.
    """
    side_m, side_n, depth, stages = tile
    panels, consumers = side_n // ALONG_B, side_m // 16
    a_size, panel_of = side_m * ALONG_B, depth * ALONG_B
    stage_size, nbytes = a_size + depth * side_n, 2 * (a_size + depth * side_n)
    nothing, store, threads = (f0,) * (side_n // 2), boxes_of_sums(side_n // 2), consumers * WARP + PRODUCER
    many = registers_for(side_m // TEAM_ROWS)
    to_x, to_y, boxes_at, of_group = 16, 32, np.uint32(stages * stage_size), np.uint32(group)
    along, down = np.uint32(STORED), np.uint32(MMA_K * ALONG_B)  # to the next 32 columns of w, and rows of x

    @cuda.jit(device=True)
    def fetch(shared, stage, maps, row, column, k, full):
        """Ask for the tiles at (row, k) of w and at (k, column) of x. ``full`` counts their bytes."""
        begin = np.uint32(stage * np.uint32(stage_size))
        expect_bytes(full, stage, nbytes)
        bulk_tile(shared, begin, maps, 0, row, k // 2, full, stage)
        for panel in range(panels):
            to = np.uint32(begin + np.uint32(a_size) + np.uint32(panel) * np.uint32(panel_of))
            bulk_tile(shared, to, maps, to_x, k, column + panel * ALONG_B, full, stage)

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(device=True)
    def multiply(shared, a, b, words, sums):
        """Start to add the products of 64 rows of w, from ``a`` on, with a stage of x, from ``b`` on."""
        wgmma_fence()
        sums = wgmma_sp_f16(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel_of), sums, words[0], 0)
        a, b = np.uint32(a + along), np.uint32(b + down)
        sums = wgmma_sp_f16(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel_of), sums, words[0], 1)
        a, b = np.uint32(a + along), np.uint32(b + down)
        sums = wgmma_sp_f16(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel_of), sums, words[1], 0)
        a, b = np.uint32(a + along), np.uint32(b + down)
        sums = wgmma_sp_f16(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel_of), sums, words[1], 1)
        wgmma_commit()
        return sums

    @cuda.jit(launch_bounds=(threads, 1))
    def warpgroups_sparse_kernel(given, metadata, m, n, width):
        shared, words = cuda.shared.array(0, np.uint16, alignment=1024), cuda.shared.array(0, np.uint64, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        maps = maps_of_launch(given)
        rounds = np.uint32((width + depth - 1) // depth)
        tiles_m, tiles_n = np.uint32((m + side_m - 1) // side_m), np.uint32((n + side_n - 1) // side_n)
        tiles, number = np.uint32(tiles_m * tiles_n), np.uint32(cuda.blockIdx.x)
        thread = np.uint32(cuda.threadIdx.x)
        lane, warp = np.uint32(thread % np.uint32(WARP)), np.uint32(thread // np.uint32(WARP))
        if thread == 0:
            for one in range(stages):
                mbarrier_init(full, one, 1)
                mbarrier_init(empty, one, consumers)
            soon(maps, to_y)
        cuda.syncthreads()
        stage, parity = np.uint32(0), np.uint32(0)
        if warp >= consumers:
            fewer_registers(FEW)
            if thread == consumers * WARP:
                while number < tiles:
                    tile_m, tile_n = tile_of_unit(number, of_group, tiles_m, tiles_n)
                    row, column = np.int64(tile_m) * side_m, np.int64(tile_n) * side_n
                    for done in range(rounds):
                        mbarrier_wait(empty, stage, parity ^ np.uint32(1))  # the phase before the first has ended
                        fetch(shared, stage, maps, row, column, np.int64(done) * depth, full)
                        stage, parity = next_stage(stage, parity)
                    number = np.uint32(number + np.uint32(cuda.gridDim.x))
        else:
            more_registers(many)
            mine = np.uint32(warp // np.uint32(4) * np.uint32(TEAM_ROWS * ALONG_B))  # where its rows of w are
            room = np.uint32(boxes_at + warp * np.uint32(BUFFER))
            # Of each 32 x 32 numbers there are 32 words. Lanes 4 g + t with t < 2 take those of their warp's 16 rows,
            # and with t > 1 those of the next 32 columns.
            word = np.uint32(lane // 4 * 4 + warp % np.uint32(2) * np.uint32(2) + lane % 2)
            later = np.uint32(lane % np.uint32(4) // np.uint32(2))
            while number < tiles:
                tile_m, tile_n = tile_of_unit(number, of_group, tiles_m, tiles_n)
                of_rows = np.uint32(tile_m * np.uint32(side_m // SIDE) + warp // np.uint32(2))
                sums = nothing
                now = metadata[of_rows, later, word], metadata[of_rows, later + np.uint32(2), word]
                for done in range(rounds):
                    ahead = np.uint32(min(np.uint32(done + 1), np.uint32(rounds - 1)) * np.uint32(4) + later)
                    # No product of this warp is under way: metadata that came later would make each wait for the last.
                    soon_needed = metadata[of_rows, ahead, word], metadata[of_rows, ahead + np.uint32(2), word]
                    mbarrier_wait(full, stage, parity)
                    begin = np.uint32(stage * np.uint32(stage_size))
                    sums = multiply(shared, np.uint32(begin + mine), np.uint32(begin + np.uint32(a_size)), now, sums)
                    sums = wgmma_wait(0, sums)  # the other warpgroups keep the tensor cores busy meanwhile
                    if lane == 0:
                        mbarrier_arrive(empty, stage)
                    stage, parity = next_stage(stage, parity)
                    now = soon_needed
                row = np.int64(tile_m) * side_m + np.int64(warp) * 16
                if row < m:
                    store(shared, words, room, maps, row, np.int64(tile_n) * side_n, sums)
                number = np.uint32(number + np.uint32(cuda.gridDim.x))
            if lane == 0:
                wait_stores(0)

    return warpgroups_sparse_kernel


def by_warpgroups(tile: Tile, most_blocks: int, group: int, p: Problem) -> None:
    """Launch the kernel of a tile that warpgroups multiply, with that many blocks at most."""

    def launch(values, metadata, x, y):
        grid = min(blocks(y.shape[0], tile.m) * blocks(y.shape[1], tile.n), most_blocks)
        maps = launch_words(
            tensor_map(values, tile.m, ALONG_B),
            tensor_map(x, tile.depth, ALONG_B),
            tensor_map(y.view(np.uint16), 16, ALONG_B),
        )
        kernel, threads = warpgroups_kernel(tile, group), tile.m // TEAM_ROWS * TEAM + PRODUCER
        extents = map(np.int64, (*y.shape, 2 * values.shape[1]))
        kernel[grid, threads, p.stream, warpgroups_shared(tile)](maps, p.metadata, *extents)

    in_chunks(p, launch)


@functools.lru_cache(4096)
def warpgroups_tile(m: int, n: int, multiprocessors: int) -> Tile:
    """The tile for which shared memory has least to move in all rounds, in each of which a block computes a tile.

    For 32 columns of w a tile is written once. Then each warpgroup reads its own 64 rows of w, and all columns of x.

    >>> str(warpgroups_tile(4096, 4096, 132)), str(warpgroups_tile(1024, 1024, 132))
    ('256 x 128 x 128, 3 stages', '128 x 64 x 128, 6 stages')
    """

    def moved(tile: Tile) -> int:
        rounds = blocks(blocks(m, tile.m) * blocks(n, tile.n), multiprocessors)
        written = tile.m * STORED + MMA_K * tile.n
        return rounds * (written + tile.m // TEAM_ROWS * (TEAM_ROWS * STORED + MMA_K * tile.n))

    return min(WARPGROUP_TILES, key=moved)


@rung(warpgroups_kernel, overlapped_kernel, copy_kernel)
def warpgroups(p):
    """Four warps multiply together, by wgmma.sp: no fragment is loaded, and x is read once for 64 rows of w.

    A word of metadata is loaded a stage ahead, straight from device memory into the register where it is needed. Small
    products have tiles of 128 x 64. For another GPU than Hopper this is the rung before.
    Source: PTX ISA, "wgmma.mma_async.sp".
    """
    limits, (m, n) = device.limits(), p.result.shape
    can_count = max(m, 2 * n, round_up(p.x.shape[0], PADDED)) < MOST_OF_ENGINE
    if can_count and limits["compute_capability"] == ENGINE:
        by_warpgroups(warpgroups_tile(m, n, limits["multiprocessors"]), limits["multiprocessors"], GROUP, p)
    else:
        fed.launch(p)


LADDER = (gathered, fragments, shared_k, tiled, overlapped, fed, warpgroups)
