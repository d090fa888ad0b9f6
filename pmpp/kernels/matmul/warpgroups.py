"""Matrix multiplication by warpgroups: C = A @ B on Hopper, with A and B in float16 or bfloat16, and C in float32.

Chapter: notebooks/43_warpgroups.ipynb.  PMPP 4e ch. 6.
Roof: tensor cores, float16.

A warp that multiplies by mma.sync has to load its operands into registers, and this GPU's tensor cores are faster than
that. On Hopper four warps, a warpgroup, multiply together: wgmma takes 64 x 16 of A and 16 x 256 of B where they lie
in shared memory, and does not wait for the result. So two things are left to do: tiles have to lie in shared memory in
the order in which the tensor cores read them, and they have to be there in time. The ladder gives the first to a copy
engine, and the second to a warp of its own.

The instructions are in `pmpp.runtime.hopper` and `pmpp.runtime.hopper_maps`. They need a GPU of compute capability 9.0,
and run on no other. All that a kernel does besides multiplying moves 16 bits, so it sees both dtypes as uint16.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.matmul import tensor_cores
from pmpp.kernels.matmul.tensor_cores import CHUNK, GROUP, copy_kernel, in_chunks, order_of_tiles
from pmpp.kernels.matmul.tensor_cores import store_fragment as store_four
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.graphs import is_recorded
from pmpp.runtime.hopper import (
    bulk_store,
    bulk_tile,
    commit_stores,
    copies_visible,
    expect_bytes,
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    stmatrix,
    tensor_map,
    tile_descriptor,
    wait_stores,
    wgmma_bf16,
    wgmma_commit,
    wgmma_e4m3,
    wgmma_f16,
    wgmma_fence,
    wgmma_s8,
    wgmma_tf32,
    wgmma_wait,
)
from pmpp.runtime.hopper_maps import launch_words, maps_of_launch, soon
from pmpp.runtime.matrix import commit_copies, copy_async, rounded_bf16, rounded_f16, wait_copies
from pmpp.runtime.rung import Problem, rung
from pmpp.runtime.vector import load128, store128

f0 = np.float32(0)
DTYPES = ("float16", "bfloat16")
RESULT = np.float32  # the dtype of what the rungs return
CAPABILITY = (9, 0)  # of the only GPUs that have wgmma


# --------------------------------------------------------------------------------------------------------- definition

reference = tensor_cores.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs by name, each a pair (a, b) of matrices of one dtype that can be multiplied."""
    rng = np.random.default_rng(0) if rng is None else rng

    def pair(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)

    shapes = {"one": (1, 1, 1), "column times row": (19, 21, 1), "rows of odd length": (9, 11, 37)}
    shapes |= {"no depth": (5, 7, 0), "no rows": (0, 4, 3), "no columns": (4, 0, 3), "a chunk more": (72, 72, 72)}
    pairs = {name: pair(*shape) for name, shape in shapes.items()}
    a, b = pair(18, 24, 16)
    pairs["cancellation"] = np.hstack([a, -a]), np.vstack([b, b])
    pairs["largest and smallest"] = np.full((2, 16), 65504, np.float16), np.full((16, 8), 2.0**-24, np.float16)
    for dtype in known(("bfloat16",)):
        pairs["bfloat16"] = tuple(x.astype(np.float32).astype(dtype) for x in pair(20, 12, 40))
    non_finite = a.copy()
    non_finite[3, 4], non_finite[7, 0], non_finite[9, -1] = np.nan, np.inf, -np.inf
    return pairs | {"non-finite": (non_finite, b)}


cost = tensor_cores.cost


def tolerance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far from the exact result a right one may be: as for mma.sync, since wgmma adds 16 products to a sum, too."""
    return tensor_cores.tolerance(a, b)


def arguments(a, b, *, out=None, stream=0) -> Problem:
    """Multiply two matrices of 16-bit numbers on the tensor cores of a Hopper GPU.

    Args:
        a, b: matrices of shape (M, K) and (K, N) in C order, both float16 or both bfloat16. An extent may be 0; K = 0
            gives zeros.
        out: a float32 device array of shape (M, N) in C order, apart from a and b in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Sums are in float32, and are not rounded to 16 bits. The
    same call gives the same bits on the same GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of another compute capability than 9.0.

    >>> from pmpp.kernels.matmul import warpgroups
    >>> warpgroups.persistent(np.float16([[1, 2], [3, 4]]), np.float16([[1, 0], [1, 1]])).copy_to_host()
    array([[3., 2.],
           [7., 4.]], dtype=float32)
    """
    capability = device.limits()["compute_capability"]
    if capability != CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"this room needs a GPU of compute capability 9.0, this one has {said}")
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes=DTYPES, ndim=2, stream=stream)
    b = device.as_input("b", b, dtypes=a.dtype, ndim=2, shape=(a.shape[1], None), stream=stream)
    shape, kind = (a.shape[0], b.shape[1]), str(a.dtype)
    out = device.as_output("out", out, shape=shape, dtype="float32", apart={"a": a, "b": b}, stream=stream)
    if out.size and not a.shape[1]:
        a, b = (device.to_device(np.zeros(extents, np.uint16)) for extents in ((shape[0], 1), (1, shape[1])))
    return Problem(out, stream=stream, a=a.view(np.uint16), b=b.view(np.uint16), kind=kind)


# ---------------------------------------------------------------------------------------------- tiles and descriptors

WARP = 32
TEAM = 128  # threads of a warpgroup
ROWS = 64  # of C that a warpgroup computes
DEPTH = 64  # of K in a tile: 128 bytes, a row of a swizzle
STEP = 16  # of K in one wgmma
EIGHT = 8  # rows in which chunks change places
KERNELS = 32  # that are kept of each kind


class Tile(typing.NamedTuple):
    """What a block computes: m x n of C, from m x DEPTH of A and DEPTH x n of B at a time.

    ``stages``: how many tiles of A and B have room in shared memory.
    """

    m: int
    n: int
    stages: int

    @property
    def teams(self) -> int:
        """Warpgroups that multiply."""
        return self.m // ROWS

    @property
    def stage(self) -> int:
        """Elements of a stage: the rows of A, then panels of B, 64 columns each."""
        return (self.m + self.n) * DEPTH

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return 2 * self.stages * self.stage

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {DEPTH}, {self.stages} stages"


TILE = Tile(128, 256, 4)


#: By what the operands are: how they are multiplied.
PRODUCTS = {
    "float16": wgmma_f16,
    "bfloat16": wgmma_bf16,
    "tf32": wgmma_tf32,
    "int8": wgmma_s8,
    "e4m3": wgmma_e4m3,
}
BY_ROWS = ("float16", "bfloat16")  # B lies row by row in panels; of all others column by column


@functools.cache
def multiplier(tile: Tile, kind: str = "float16") -> typing.Any:
    """A device function with which a warpgroup starts to add 64 x n products of a stage that lie in shared memory.

    ``kind``: of the operands. A stage has 128 bytes of each row of A, whatever they are.
    """
    wgmma, by_rows = PRODUCTS[kind], kind in BY_ROWS
    n_begin, panel = np.uint32(tile.m * DEPTH), np.uint32(DEPTH * 64 if by_rows else 0)
    # To the next 32 bytes of k, in 16-bit numbers: in a row of A, and in B 16 rows below, or in a column.
    along, down = np.uint32(STEP), np.uint32(STEP * 64 if by_rows else STEP)

    @cuda.jit(device=True)
    def multiply(shared, begin, row, sums):
        """The stage begins at element ``begin``, and the rows of this warpgroup at ``row``."""
        a, b = np.uint32(begin + row * np.uint32(DEPTH)), np.uint32(begin + n_begin)
        wgmma_fence()
        sums = wgmma(tile_descriptor(shared, a, 0), tile_descriptor(shared, b, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + along, 0), tile_descriptor(shared, b + down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 2 * along, 0), tile_descriptor(shared, b + 2 * down, panel), sums)
        sums = wgmma(tile_descriptor(shared, a + 3 * along, 0), tile_descriptor(shared, b + 3 * down, panel), sums)
        wgmma_commit()
        return sums

    return multiply


@functools.cache
def storer(registers: int) -> typing.Any:
    """A device function with which a warp stores so many sums of each lane: 16 rows of C. Halves, until four are left.

    A tuple of registers can only be indexed by constants, so a loop over them is written as functions.
    """
    if registers == 4:
        return store_four
    half, middle, columns = storer(registers // 2), registers // 2, registers

    @cuda.jit(device=True, forceinline=True)
    def store(c, row, column, sums):
        half(c, row, column, sums[:middle])
        half(c, row, column + columns, sums[middle:])

    return store


def zeros(tile: Tile, kind: str = "float16") -> tuple:
    """The sums of a lane: half as many as the tile has columns."""
    return (np.int32(0) if kind == "int8" else f0,) * (tile.n // 2)


@functools.cache
def copier(tile: Tile, threads: int) -> typing.Any:
    """A device function with which a block begins to copy a stage, each chunk to its place in the swizzle."""
    a_loads, b_loads, n_begin = tile.m * DEPTH // CHUNK // threads, tile.n * DEPTH // CHUNK // threads, tile.m * DEPTH
    chunks = np.uint32(tile.n // CHUNK)  # in a row of B

    @cuda.jit(device=True)
    def place(row, chunk):
        """Where a chunk of a row of 8 chunks lies: all rows of a tile are 128 bytes long."""
        return np.uint32(row * np.uint32(64) + (chunk ^ row % np.uint32(8)) * np.uint32(CHUNK))

    @cuda.jit(device=True)
    def copy_chunk(shared, to, x, row, column):
        inside = row < x.shape[0] and column < x.shape[1]
        copy_async(shared, to, x, row * x.shape[1] + column if inside else np.int64(0), CHUNK if inside else 0)

    @cuda.jit(device=True)
    def copy(shared, begin, a, b, row, column, k):
        thread = np.uint32(cuda.threadIdx.x)
        for load in range(a_loads):
            number = np.uint32(thread + np.uint32(load) * np.uint32(threads))
            below, chunk = np.uint32(number // 8), np.uint32(number % 8)
            copy_chunk(shared, np.uint32(begin + place(below, chunk)), a, row + below, k + chunk * CHUNK)
        for load in range(b_loads):
            number = np.uint32(thread + np.uint32(load) * np.uint32(threads))
            below, chunk = np.uint32(number // chunks), np.uint32(number % chunks)
            panel = np.uint32(n_begin) + chunk // np.uint32(8) * np.uint32(DEPTH * 64)
            to = np.uint32(begin + panel + place(below, np.uint32(chunk % 8)))
            copy_chunk(shared, to, b, k + below, column + chunk * CHUNK)

    return copy


# ---------------------------------------------------------------------------------------- threads copy, groups multiply


@functools.lru_cache(KERNELS)
def copied_kernel(tile: Tile, group: int, flying: int, kind: str = "float16") -> typing.Any:
    """The kernel of a block whose threads copy tiles as in chapter 40, and multiply them by wgmma.

    ``flying``: 0 if each step waits for its own products, 1 if it waits for those of the step before.
    """
    threads, stages, stage = tile.teams * TEAM, tile.stages, tile.stage
    ahead = stages - 1 - flying  # steps that are on their way: with products in flight a stage is read for longer
    pending, side_m, side_n, nothing = ahead - 1, tile.m, tile.n, zeros(tile)
    copy, multiply, store, tile_of = (
        copier(tile, threads),
        multiplier(tile, kind),
        storer(side_n // 2),
        order_of_tiles(group),
    )
    end = np.uint32(stages * stage)

    @cuda.jit
    def copied_tiles_kernel(a, b, c):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        m, n, k_end = np.int64(c.shape[0]), np.int64(c.shape[1]), np.int64(a.shape[1])
        tile_m, tile_n = tile_of(np.int64(cuda.blockIdx.x), (m + side_m - 1) // side_m, (n + side_n - 1) // side_n)
        row, column = tile_m * side_m, tile_n * side_n
        warp = np.uint32(cuda.threadIdx.x) // np.uint32(WARP)
        mine = np.uint32(warp // 4 * ROWS)
        coming = np.int64(0)
        for step in range(ahead):
            copy(shared, np.uint32(np.uint32(step) * np.uint32(stage)), a, b, row, column, coming)
            commit_copies()
            coming += DEPTH
        sums, now, into, k = nothing, np.uint32(0), np.uint32(ahead * stage), np.int64(0)
        while k < k_end:
            wait_copies(pending)  # the oldest tiles are there: those of this thread,
            copies_visible()  # for the tensor cores as well,
            cuda.syncthreads()  # and of all; and everyone has waited for products of the tiles that are overwritten
            sums = multiply(shared, now, mine, sums)
            if flying == 0:
                sums = wgmma_wait(0, sums)
            copy(shared, into, a, b, row, column, coming)
            commit_copies()
            if flying == 1:
                sums = wgmma_wait(1, sums)
            now, into = np.uint32(now + np.uint32(stage)), np.uint32(into + np.uint32(stage))
            now, into = np.uint32(0) if now == end else now, np.uint32(0) if into == end else into
            k, coming = k + DEPTH, coming + DEPTH
        sums = wgmma_wait(0, sums)
        store(c, row + np.int64(mine + warp % 4 * 16), column, sums)

    return copied_tiles_kernel


def by_copies(tile: Tile, flying: int, p: Problem) -> None:
    """Launch the kernel of a tile, with a block for each tile of C."""

    def launch(a, b, c):
        grid = blocks(c.shape[0], tile.m) * blocks(c.shape[1], tile.n)
        copied_kernel(tile, GROUP, flying, p.kind)[grid, tile.teams * TEAM, p.stream, tile.shared](a, b, c)

    in_chunks(p, launch)


@rung(copied_kernel, copy_kernel)
def warpgroup(p):
    """Four warps multiply together, and take both operands from shared memory: no fragment is loaded.

    A block of two warpgroups computes 128 x 256 elements of C. Its threads copy the tiles, as in chapter 40, and each
    chunk goes to its place in a swizzle that the tensor cores know.
    Source: PTX ISA, "Asynchronous warpgroup level matrix multiply-accumulate instructions".

    Leaves: each step waits for its products, and the tensor cores wait for the next step.
    """
    by_copies(TILE, 0, p)


@rung(copied_kernel, copy_kernel)
def in_flight(p):
    """The products of a step are still under way when those of the next step begin.

    A stage is read until then, so the copies of a step go one stage further.
    Source: PTX ISA, "wgmma.commit_group" and "wgmma.wait_group".

    Leaves: 256 threads compute an address for each 16 bytes, and all of them wait at a barrier in each step.
    """
    by_copies(TILE, 1, p)


# --------------------------------------------------------------------------------------------- an engine copies tiles
# A tensor map describes a matrix to the copy engine. One thread then asks for a box of it, by its row and column, and
# an mbarrier counts the bytes that have arrived. Chunks are exchanged, and beyond the edges there are zeros.

MAPS = 2 * 16  # words of a block's two tensor maps


@functools.cache
def fetcher(tile: Tile, kind: str = "float16") -> typing.Any:
    """A device function with which one thread begins to copy a stage."""
    panels, n_begin, nbytes, by_rows = tile.n // 64, tile.m * DEPTH, 2 * tile.stage, kind in BY_ROWS

    @cuda.jit(device=True)
    def fetch(shared, stage, maps, at, at_b, row, column, k, full):
        """Boxes at (row, k) of A and at (k, column) of B go to a stage, and ``full`` counts their bytes."""
        begin = np.uint32(stage * np.uint32(nbytes // 2))
        expect_bytes(full, stage, nbytes)
        bulk_tile(shared, begin, maps, at, row, k, full, stage)
        if by_rows:
            for panel in range(panels):
                to = np.uint32(begin + np.uint32(n_begin) + np.uint32(panel) * np.uint32(DEPTH * 64))
                bulk_tile(shared, to, maps, at_b, k, column + panel * 64, full, stage)
        else:  # columns of B, which lie like rows of A
            bulk_tile(shared, np.uint32(begin + np.uint32(n_begin)), maps, at_b, column, k, full, stage)

    return fetch


def map_of_a(x: typing.Any, tile: Tile) -> tuple:
    return tensor_map(x, tile.m, DEPTH)


def map_of_b(x: typing.Any, tile: Tile, kind: str = "float16") -> tuple:
    return tensor_map(x, DEPTH, 64) if kind in BY_ROWS else tensor_map(x, tile.n, DEPTH)


@functools.lru_cache(KERNELS)
def bulk_kernel(tile: Tile, group: int, kind: str = "float16") -> typing.Any:
    """The kernel of a block in which the first thread asks for tiles, and multiplies like all others."""
    stages, stage, side_m, side_n, nothing = tile.stages, tile.stage, tile.m, tile.n, zeros(tile)
    fetch, multiply, store, tile_of = fetcher(tile), multiplier(tile, kind), storer(side_n // 2), order_of_tiles(group)
    ahead = stages - 2  # stages on their way: one is multiplied, and one may still be read

    @cuda.jit
    def bulk_tiles_kernel(a_map, b_map, maps, c, depth):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full = cuda.shared.array(stages, np.uint64)
        m, n = np.int64(c.shape[0]), np.int64(c.shape[1])
        tile_m, tile_n = tile_of(np.int64(cuda.blockIdx.x), (m + side_m - 1) // side_m, (n + side_n - 1) // side_n)
        row, column, steps = tile_m * side_m, tile_n * side_n, (depth + DEPTH - 1) // DEPTH
        thread = np.uint32(cuda.threadIdx.x)
        warp = np.uint32(thread // np.uint32(WARP))
        mine, at = np.uint32(warp // 4 * ROWS), np.int64(cuda.blockIdx.x) * MAPS
        if thread == 0:
            for one in range(stages):
                mbarrier_init(full, one, 1)
            place_map(maps, at, a_map)
            place_map(maps, at + 16, b_map)
            for step in range(min(ahead, steps)):
                fetch(shared, np.uint32(step), maps, at, at + 16, row, column, step * DEPTH, full)
        cuda.syncthreads()
        sums, now, into, parity = nothing, np.uint32(0), np.uint32(ahead), np.uint32(0)
        for step in range(steps):
            mbarrier_wait(full, now, parity)
            sums = multiply(shared, np.uint32(now * np.uint32(stage)), mine, sums)
            sums = wgmma_wait(1, sums)
            cuda.syncthreads()  # everyone has waited for the products of the step before: its stage can be filled
            if thread == 0 and step + ahead < steps:
                fetch(shared, into, maps, at, at + 16, row, column, (step + ahead) * DEPTH, full)
            now, into = np.uint32(now + np.uint32(1)), np.uint32(into + np.uint32(1))
            into = np.uint32(0) if into == stages else into
            if now == stages:
                now, parity = np.uint32(0), np.uint32(parity ^ np.uint32(1))
        sums = wgmma_wait(0, sums)
        store(c, row + np.int64(mine + warp % 4 * 16), column, sums)

    return bulk_tiles_kernel


def refuse_beyond_the_engine(*matrices: typing.Any) -> None:
    """Its rows and columns are int32, and a box may reach beyond the edges."""
    if any(max(x.shape[0], x.shape[1] * x.dtype.itemsize // 2) >= 2**31 - 256 for x in matrices):
        shapes = ", ".join(str(x.shape) for x in matrices)
        raise ValueError(f"the engine takes rows and columns of less than 2**31 - 256 16-bit numbers, not {shapes}")


def by_engine(kernel: typing.Any, tile: Tile, threads: int, most_blocks: int | None, p: Problem) -> None:
    """Launch a kernel that is given tensor maps, and room to put them: two for each block."""

    def launch(a, b, c):
        grid = blocks(c.shape[0], tile.m) * blocks(c.shape[1], tile.n)
        grid = grid if most_blocks is None else min(grid, most_blocks)
        refuse_beyond_the_engine(a, b)
        maps = device.empty(grid * MAPS, np.uint64, stream=p.stream)
        kernel(tile, GROUP, p.kind)[grid, threads, p.stream, tile.shared](
            map_of_a(a, tile), map_of_b(b, tile), maps, c, np.int64(a.shape[1])
        )

    in_chunks(p, launch)


@rung(bulk_kernel, copy_kernel)
def bulk(p):
    """One thread asks for whole tiles, and an engine copies them, exchanges their chunks, and counts their bytes.

    Source: PTX ISA, "cp.async.bulk.tensor" and "mbarrier"; CUDA C++ programming guide, "Tensor Memory Access".

    Leaves: in each step all warps meet at a barrier, only so that one thread may ask for the next tiles.
    """
    by_engine(bulk_kernel, TILE, TILE.teams * TEAM, None, p)


# -------------------------------------------------------------------------------------------- a warp for the copies


@functools.lru_cache(KERNELS)
def specialised_kernel(tile: Tile, group: int, kind: str = "float16") -> typing.Any:
    """The kernel of a block whose last warp asks for tiles, while the others multiply. It computes tiles until none
    is left: tile b, b + blocks, b + 2 blocks, ...

    ``full[s]`` ends a phase when the tiles of stage s are there, and ``empty[s]`` when all warps have used them.
    """
    stages, stage, side_m, side_n, nothing = tile.stages, tile.stage, tile.m, tile.n, zeros(tile)
    fetch, multiply, store, tile_of = fetcher(tile), multiplier(tile, kind), storer(side_n // 2), order_of_tiles(group)
    consumers = tile.teams * 4  # warps; the one after them is the producer
    threads = (consumers + 1) * WARP

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(launch_bounds=(threads, 1))
    def specialised_tiles_kernel(a_map, b_map, maps, c, depth):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        m, n, steps = np.int64(c.shape[0]), np.int64(c.shape[1]), (depth + DEPTH - 1) // DEPTH
        tiles_m, tiles_n = (m + side_m - 1) // side_m, (n + side_n - 1) // side_n
        thread = np.uint32(cuda.threadIdx.x)
        warp = np.uint32(thread // np.uint32(WARP))
        first = thread % np.uint32(WARP) == 0
        if thread == 0:
            for one in range(stages):
                mbarrier_init(full, one, 1)
                mbarrier_init(empty, one, consumers)
        cuda.syncthreads()
        now, parity, tile = np.uint32(0), np.uint32(0), np.int64(cuda.blockIdx.x)
        if warp == consumers:
            if first:
                at = np.int64(cuda.blockIdx.x) * MAPS
                place_map(maps, at, a_map)
                place_map(maps, at + 16, b_map)
                while tile < tiles_m * tiles_n:
                    tile_m, tile_n = tile_of(tile, tiles_m, tiles_n)
                    for step in range(steps):
                        mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
                        fetch(shared, now, maps, at, at + 16, tile_m * side_m, tile_n * side_n, step * DEPTH, full)
                        now, parity = next_stage(now, parity)
                    tile += cuda.gridDim.x
        else:
            mine = np.uint32(warp // 4 * ROWS)
            while tile < tiles_m * tiles_n:
                tile_m, tile_n = tile_of(tile, tiles_m, tiles_n)
                sums, before = nothing, now
                for step in range(steps):
                    mbarrier_wait(full, now, parity)
                    sums = multiply(shared, np.uint32(now * np.uint32(stage)), mine, sums)
                    sums = wgmma_wait(1, sums)  # the products of the step before have used their stage
                    if first and step > 0:
                        mbarrier_arrive(empty, before)
                    before = now
                    now, parity = next_stage(now, parity)
                sums = wgmma_wait(0, sums)
                if first:
                    mbarrier_arrive(empty, before)
                store(c, tile_m * side_m + np.int64(mine + warp % 4 * 16), tile_n * side_n, sums)
                tile += cuda.gridDim.x

    return specialised_tiles_kernel


@rung(specialised_kernel, copy_kernel)
def specialised(p):
    """A warp of its own asks for tiles, as soon as a stage is free: it produces, and eight warps consume.

    Nobody waits for all: two mbarriers of each stage say when it is full, and when it is empty.
    Source: CUTLASS, "Efficient GEMM in CUDA", on warp specialization.

    Leaves: while a block stores its tile of C, and the next block begins, nothing is copied and nothing multiplied.
    """
    by_engine(specialised_kernel, TILE, TILE.teams * TEAM + WARP, None, p)


# ----------------------------------------------------------------------------------------------- as many blocks as SMs

TILES = (TILE, Tile(128, 128, 6), Tile(64, 128, 6))
FETCH = 32  # chosen by a few products of 1024 to 4096 on an H100, of which the furthest off was so by a tenth


@rung(specialised_kernel, copy_kernel)
def persistent(p):
    """As many blocks as there are multiprocessors compute all tiles: the copies for a tile begin during the one before.

    Where tiles of 128 x 256 would be too few for the GPU, or leave much of it idle at the end, they are smaller.
    Source: CUTLASS, "Efficient GEMM in CUDA", on persistent kernels.

    Leaves: a warp stores 32 bytes of 16 rows at a time, and waits for addresses, edges and shuffles meanwhile.
    """
    multiprocessors = device.limits()["multiprocessors"]
    tile = tile_for(*p.result.shape, multiprocessors)
    by_engine(specialised_kernel, tile, tile.teams * TEAM + WARP, multiprocessors, p)


@functools.lru_cache(4096)
def tile_for(m: int, n: int, multiprocessors: int) -> Tile:
    """The tile with which a product takes the least time: so many rounds, in each of which a block computes a tile.

    To fetch a row of A or a column of B takes as long as `FETCH` sums.

    >>> str(tile_for(4096, 4096, multiprocessors=132)), str(tile_for(100, 200, multiprocessors=132))
    ('128 x 256 x 64, 4 stages', '64 x 128 x 64, 6 stages')
    """

    def time(tile: Tile) -> int:
        rounds = blocks(blocks(m, tile.m) * blocks(n, tile.n), multiprocessors)
        return rounds * (tile.m * tile.n + FETCH * (tile.m + tile.n))

    return min(TILES, key=time)


# -------------------------------------------------------------------------------------------- an engine stores tiles
# Sums go through shared memory. A warp puts 16 rows of 128 bytes there, in the order of a swizzle, and asks the engine
# to store them as a box of C. It has two such buffers: one is filled while the engine reads the other one.

ROUNDED = {"float16": rounded_f16, "bfloat16": rounded_bf16}
BUFFER = 16 * 64  # 16-bit numbers of a box: 16 rows of 128 bytes
BUFFERS = 2  # of a warp


def shared_with_buffers(tile: Tile) -> int:
    """Bytes of shared memory for the stages of a tile, and for the buffers of its warps."""
    return tile.shared + tile.teams * 4 * BUFFERS * BUFFER * 2


@functools.cache
def writer(result: str) -> typing.Any:
    """A device function with which a warp writes sums into a buffer: 32 of each lane as 16 bits, or 16 as 32 bits.

    A box has 16 rows of 8 chunks. Chunk c of row r is in place c ^ (r % 8), as in a stage.
    """
    rounded = ROUNDED.get(result)

    @cuda.jit(device=True)
    def both_floats(low, high):
        """Two numbers of 32 bits as one of 64, which is stored by one instruction."""
        low_bits, high_bits = np.uint32(cuda.libdevice.float_as_int(low)), cuda.libdevice.float_as_int(high)
        return np.uint64(np.uint32(high_bits)) << np.uint64(32) | np.uint64(low_bits)

    @cuda.jit(device=True)
    def both_integers(low, high):
        return np.uint64(np.uint32(high)) << np.uint64(32) | np.uint64(np.uint32(low))

    both = both_integers if result == "int32" else both_floats

    @cuda.jit(device=True, forceinline=True)
    def write_16_columns(shared, begin, chunk, s):
        """Two chunks of each row: the four matrices are the upper and lower rows of the one, then of the other."""
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        place = (np.uint32(chunk) + lane // np.uint32(16)) ^ lane % np.uint32(8)
        at = np.uint32(begin + lane % np.uint32(16) * np.uint32(64) + place * np.uint32(CHUNK))
        upper, lower = rounded(s[0], s[1]), rounded(s[2], s[3])
        stmatrix(shared, at, (upper, lower, rounded(s[4], s[5]), rounded(s[6], s[7])))

    @cuda.jit(device=True, forceinline=True)
    def write_as_16_bits(shared, words, begin, s):
        write_16_columns(shared, begin, 0, s[:8])
        write_16_columns(shared, begin, 2, s[8:16])
        write_16_columns(shared, begin, 4, s[16:24])
        write_16_columns(shared, begin, 6, s[24:])

    @cuda.jit(device=True, forceinline=True)
    def write_as_32_bits(shared, words, begin, s):
        lane = np.uint32(cuda.threadIdx.x) % np.uint32(WARP)
        row, pair = lane // np.uint32(4), lane % np.uint32(4)  # a lane has two neighbours in a row: 64 bits
        line = np.uint32(begin // np.uint32(4) + row * np.uint32(16) + pair % np.uint32(2))
        odd = row % np.uint32(2) == 1
        for first in range(4):
            # Half a warp stores at a time: 4 rows of 2 chunks. In odd rows it takes other columns than in even ones,
            # since the exclusive or would else lead two rows to the same chunks, and so to the same banks.
            other = first ^ 2
            chunk = (np.uint32(2 * other) if odd else np.uint32(2 * first)) + pair // np.uint32(2)
            at = np.uint32(line + (chunk ^ row) * np.uint32(2))
            low, high = s[4 * other] if odd else s[4 * first], s[4 * other + 1] if odd else s[4 * first + 1]
            words[at] = both(low, high)
            low, high = s[4 * other + 2] if odd else s[4 * first + 2], s[4 * other + 3] if odd else s[4 * first + 3]
            words[at + np.uint32(128)] = both(low, high)  # 8 rows below

    return write_as_32_bits if rounded is None else write_as_16_bits


@functools.cache
def engine_storer(registers: int, result: str) -> typing.Any:
    """A device function with which a warp stores so many sums of each lane by the engine, one box after the other."""
    unit = 32 if result in ROUNDED else 16
    if registers > unit:
        middle = registers // unit // 2 * unit
        left, right = engine_storer(middle, result), engine_storer(registers - middle, result)

        @cuda.jit(device=True, forceinline=True)
        def store(shared, words, room, maps, at, row, column, sums):
            left(shared, words, room, maps, at, row, column, sums[:middle])
            right(shared, words, room, maps, at, row, column + 2 * middle, sums[middle:])

        return store
    write, columns, each = writer(result), 2 * unit, 64 // (2 * unit)  # each: 16-bit numbers in one of the result
    pending = BUFFERS - 1

    @cuda.jit(device=True, forceinline=True)
    def store_box(shared, words, room, maps, at, row, column, sums):
        first = cuda.threadIdx.x % WARP == 0
        begin = np.uint32(room + np.uint32(column) // np.uint32(columns) % np.uint32(BUFFERS) * np.uint32(BUFFER))
        if first:
            wait_stores(pending)  # the engine has read this buffer, which it stored the time before last
        cuda.syncwarp()
        write(shared, words, begin, sums)
        copies_visible()
        cuda.syncwarp()
        if first:
            bulk_store(maps, at, row, column * each, shared, begin)
            commit_stores()

    return store_box


@cuda.jit(device=True)
def tile_of_unit(unit, group, tiles_m, tiles_n):
    """The row and column of a tile, in tiles: ``group`` down a column, and then the next column.

    All numbers are uint32. A division of 64 bits takes a thread as long as some hundred instructions, and nothing is
    copied before this one is done.
    """
    band = np.uint32(group * tiles_n)
    above = np.uint32(unit // band)
    first, within = np.uint32(above * group), np.uint32(unit - above * band)
    height = min(np.uint32(tiles_m - first), group)
    column = np.uint32(within // height)
    return np.uint32(first + within - column * height), column


@cuda.jit(device=True)
def part_of_unit(unit, whole, parts, each, steps):
    """The tile of a unit, and its steps of K: the first units are whole tiles, and the others parts of tiles."""
    if unit < whole:
        return unit, np.uint32(0), steps
    rest = np.uint32(unit - whole)
    tile = np.uint32(rest // parts)
    begin = np.uint32((rest - tile * parts) * each)
    return np.uint32(whole + tile), begin, min(np.uint32(begin + each), steps)


@functools.cache
def keeper(registers: int, sums: str) -> tuple[typing.Any, typing.Any]:
    """Two device functions for so many sums of each lane: one stores them as they are, and one adds what was stored.

    Each store and each load is of 512 neighbouring bytes, 16 of a lane.
    """
    number = np.int32 if sums == "int32" else np.float32
    if registers == 4:

        @cuda.jit(device=True, forceinline=True)
        def keep_four(kept, at, s):
            store128(kept, at, (s[0], s[1], s[2], s[3]))

        @cuda.jit(device=True, forceinline=True)
        def add_four(kept, at, s):
            a, b, c, d = load128(kept, at)
            return number(s[0] + a), number(s[1] + b), number(s[2] + c), number(s[3] + d)

        return keep_four, add_four
    middle = registers // 8 * 4
    (keep_left, add_left), (keep_right, add_right) = keeper(middle, sums), keeper(registers - middle, sums)
    further = middle * WARP

    @cuda.jit(device=True, forceinline=True)
    def keep(kept, at, s):
        keep_left(kept, at, s[:middle])
        keep_right(kept, at + further, s[middle:])

    @cuda.jit(device=True, forceinline=True)
    def add(kept, at, s):
        return add_left(kept, at, s[:middle]) + add_right(kept, at + further, s[middle:])

    return keep, add


@cuda.jit(device=True)
def is_last(arrivals, at, parts):
    """Whether this warp is the last of those that have a part of the same sums. Its count is 0 again then."""
    cuda.threadfence()  # what this lane has kept is there for all,
    cuda.syncwarp()  # and so is what its warp has
    before = np.uint32(0)
    if cuda.threadIdx.x % WARP == 0:
        before = cuda.atomic.inc(arrivals, at, np.uint32(parts - 1))
    last = cuda.shfl_sync(FULL_WARP, np.int32(before), 0) == parts - 1
    cuda.threadfence()
    cuda.syncwarp()
    return last


@functools.lru_cache(KERNELS)
def stored_kernel(tile: Tile, kind: str = "float16", result: str = "float32") -> typing.Any:
    """The kernel of a block with a warp that fetches tiles, warps that multiply, and an engine that stores.

    ``kind``: of the operands. ``result``: the dtype of C. A block computes one unit after the other. The first
    ``whole`` tiles are a unit each. The sums of every other tile are cut into ``parts`` of ``each`` steps of K, a unit
    each. A warp keeps its sums of a part in ``kept``, and counts itself in ``arrivals``. The last one to arrive adds
    the parts in their order, so that the bits do not depend on which it is, and stores.
    """
    to_b, to_c = 16, 32  # words before the maps of B and of C
    stages, stage, side_m, side_n, nothing = tile.stages, tile.stage, tile.m, tile.n, zeros(tile, kind)
    fetch, multiply = fetcher(tile, kind), multiplier(tile, kind)
    store, (keep, add) = engine_storer(side_n // 2, result), keeper(side_n // 2, sums_of(kind))
    consumers = tile.teams * 4  # warps; the one after them is the producer
    threads, per_warp = (consumers + 1) * WARP, side_n // 2 * WARP

    @cuda.jit(device=True)
    def next_stage(stage, parity):
        last = stage == stages - 1
        return np.uint32(0) if last else np.uint32(stage + np.uint32(1)), np.uint32(parity ^ np.uint32(last))

    @cuda.jit(launch_bounds=(threads, 1))
    def stored_tiles_kernel(given, kept, arrivals, m, n, depth, group, whole, parts, each):
        shared, words = cuda.shared.array(0, np.uint16, alignment=1024), cuda.shared.array(0, np.uint64, alignment=1024)
        full, empty = cuda.shared.array(stages, np.uint64), cuda.shared.array(stages, np.uint64)
        maps = maps_of_launch(given)
        group, whole, parts, each = np.uint32(group), np.uint32(whole), np.uint32(parts), np.uint32(each)
        steps = np.uint32((depth + DEPTH - 1) // DEPTH)
        tiles_m, tiles_n = np.uint32((m + side_m - 1) // side_m), np.uint32((n + side_n - 1) // side_n)
        units = np.uint32(whole + (tiles_m * tiles_n - whole) * parts)
        thread = np.uint32(cuda.threadIdx.x)
        warp = np.uint32(thread // np.uint32(WARP))
        first = thread % np.uint32(WARP) == 0
        if thread == 0:
            for one in range(stages):
                mbarrier_init(full, one, 1)
                mbarrier_init(empty, one, consumers)
            soon(maps, to_c)
        cuda.syncthreads()
        now, parity, unit = np.uint32(0), np.uint32(0), np.uint32(cuda.blockIdx.x)
        if warp == consumers:
            if first:
                while unit < units:
                    number, begin, end = part_of_unit(unit, whole, parts, each, steps)
                    tile_m, tile_n = tile_of_unit(number, group, tiles_m, tiles_n)
                    row, column = np.int64(tile_m) * side_m, np.int64(tile_n) * side_n
                    for step in range(begin, end):
                        mbarrier_wait(empty, now, parity ^ np.uint32(1))  # the phase before the first counts as ended
                        fetch(shared, now, maps, 0, to_b, row, column, np.int64(step) * DEPTH, full)
                        now, parity = next_stage(now, parity)
                    unit = np.uint32(unit + np.uint32(cuda.gridDim.x))
        else:
            mine = np.uint32(warp // 4 * ROWS)
            room = np.uint32(np.uint32(stages * stage) + warp * np.uint32(BUFFERS * BUFFER))
            while unit < units:
                number, begin, end = part_of_unit(unit, whole, parts, each, steps)
                tile_m, tile_n = tile_of_unit(number, group, tiles_m, tiles_n)
                sums, before = nothing, now
                for step in range(begin, end):
                    mbarrier_wait(full, now, parity)
                    sums = multiply(shared, np.uint32(now * np.uint32(stage)), mine, sums)
                    sums = wgmma_wait(1, sums)  # the products of the step before have used their stage
                    if first and step > begin:
                        mbarrier_arrive(empty, before)
                    before = now
                    now, parity = next_stage(now, parity)
                sums = wgmma_wait(0, sums)
                if first:
                    mbarrier_arrive(empty, before)
                row = np.int64(tile_m) * side_m + np.int64(mine + warp % 4 * 16)
                stored = row < m
                if stored and unit >= whole:
                    rest, tile_of_rest = np.int64(np.uint32(unit - whole)), np.int64(np.uint32(number - whole))
                    place = (rest * consumers + warp) * per_warp + np.int64(thread % np.uint32(WARP)) * 4
                    keep(kept, place, sums)
                    stored = is_last(arrivals, tile_of_rest * consumers + warp, parts)
                    if stored:
                        sums = nothing
                        place -= (rest - tile_of_rest * parts) * consumers * per_warp  # to the first part of the tile
                        for part in range(parts):
                            sums = add(kept, place + np.int64(part) * consumers * per_warp, sums)
                if first:
                    wait_stores(0)  # of the unit before, whose last box may be in the buffer that comes first now
                if stored:
                    store(shared, words, room, maps, to_c, row, np.int64(tile_n) * side_n, sums)
                unit = np.uint32(unit + np.uint32(cuda.gridDim.x))
            if first:
                wait_stores(0)

    return stored_tiles_kernel


def sums_of(kind: str) -> str:
    """The dtype of the sums of a tensor core."""
    return "int32" if kind == "int8" else "float32"


class Cut(typing.NamedTuple):
    """How a product is cut: ``tile`` of C and of K, and ``group`` rows of tiles that are neighbours in time.

    The first ``whole`` tiles are computed by a block each, and of all others every block computes one of ``parts``.
    """

    tile: Tile
    group: int
    whole: int
    parts: int = 1


ARRIVALS = 8192  # counts of warps: the most that a launch may need


@device.cached(16)
def _counts(stream: typing.Any) -> typing.Any:
    """Zeros for the launches of a stream, which follow one another: each of them leaves zeros behind."""
    return device.to_device(np.zeros(ARRIVALS, np.uint32), stream=stream)


@cuda.jit
def zero_kernel(counts):
    i = cuda.grid(1)
    if i < counts.size:
        counts[i] = 0


def counts_for(stream: typing.Any) -> typing.Any:
    """Zeros in which warps count themselves. What is recorded has its own, since graphs may run at the same time."""
    if not is_recorded(stream):
        return _counts(stream)
    counts = device.empty(ARRIVALS, np.uint32, stream=stream)
    zero_kernel[blocks(ARRIVALS, TEAM), TEAM, stream](counts)
    return counts


def store_tiles(cut: Cut, kind: str, operands: tuple, c: typing.Any, stream: typing.Any) -> None:
    """Launch the kernel of a tile. No part of a tile is empty, so there may be fewer than ``cut.parts``.

    ``operands``: 16-bit numbers of A, of shape (M, K), and of B, (K, N), or (N, K) if its columns are its rows.
    """
    (a, b), tile = operands, cut.tile
    m, depth, n = *a.shape, b.shape[1 if kind in BY_ROWS else 0]
    steps, tiles = blocks(depth, DEPTH), blocks(m, tile.m) * blocks(n, tile.n)
    each = blocks(steps, min(cut.parts, steps))
    parts = blocks(steps, each)
    whole = tiles if parts == 1 else cut.whole
    rest = (tiles - whole) * parts
    refuse_beyond_the_engine(a, b, c)
    kept = device.empty(max(rest * tile.m * tile.n, 1), sums_of(kind), stream=stream)
    arrivals = counts_for(stream) if rest else kept.view(np.uint32)
    if rest and (tiles - whole) * tile.teams * 4 > ARRIVALS:
        raise ValueError(f"at most {ARRIVALS // (tile.teams * 4)} tiles of {tile} can be cut, not {tiles - whole}")
    grid = min(whole + rest, device.limits()["multiprocessors"])
    if whole + rest + grid >= 2**32:
        raise ValueError(f"a and b must have less than 2**32 tiles of results and parts of them, had {whole + rest}")
    numbers = map(np.int64, (m, n, depth, cut.group, whole, parts, each))
    maps = launch_words(map_of_a(a, tile), map_of_b(b, tile, kind), tensor_map(c.view(np.uint16), 16, 64))
    kernel = stored_kernel(tile, kind, str(c.dtype))
    kernel[grid, tile.teams * TEAM + WARP, stream, shared_with_buffers(tile)](maps, kept, arrivals, *numbers)


@rung(stored_kernel, zero_kernel, copy_kernel)
def stored(p):
    """The engine also stores: a warp puts 16 rows of 128 bytes into shared memory, and asks for them to be stored.

    The engine leaves out what lies beyond the edges. It stores while the warp writes its next box, and a request for 2
    KiB takes the place of 128 stores of 16 bytes. The tensor maps stay among the parameters of the launch.
    Source: PTX ISA, "cp.async.bulk.tensor" from shared to global memory, and "cp.async.bulk.wait_group".
    """
    tile = tile_for(*p.result.shape, device.limits()["multiprocessors"])

    def launch(a, b, c):
        tiles = blocks(c.shape[0], tile.m) * blocks(c.shape[1], tile.n)
        store_tiles(Cut(tile, GROUP, tiles), p.kind, (a, b), c, p.stream)

    in_chunks(p, launch)


LADDER = (warpgroup, in_flight, bulk, specialised, persistent, stored)
