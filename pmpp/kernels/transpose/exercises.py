"""Exercises of notebooks/16_transpose.ipynb: the uncoalesced side, records into planes, swizzling, coarsening."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

TILE = 32  # the side of a tile; a warp is a row of it
PITCH = TILE + 1  # columns of a padded tile
STEP = 8  # rows of threads where a block is 32 x 8
BLOCK = 256  # threads a block in one dimension

SHAPES = ((1, 1), (32, 32), (31, 33), (7, 100), (70, 41), (96, 128))


def _matrices(rng: np.random.Generator, rows: int, turned, sharedmem: int = 0) -> list[Case]:
    """A case for each shape: blocks of TILE x ``rows`` threads, and a block for each tile of x."""
    cases = []
    for h, w in SHAPES:
        x = rng.standard_normal((h, w), dtype=np.float32)
        args, grid = (x, unwritten((w, h), np.float32)), (blocks(w, TILE), blocks(h, TILE))
        cases.append(Case(f"x of {h} x {w}", args, grid, (TILE, rows), {1: turned(x)}, sharedmem=sharedmem))
    return cases


# --------------------------------------------------------------------------------------------------- transpose/rotate


# The kernel to start from: right, and one side of it is scattered.
@cuda.jit
def rotate_start(x, out):
    column, row = cuda.grid(2)
    if row < x.shape[0] and column < x.shape[1]:
        out[column, x.shape[0] - 1 - row] = x[row, column]


@cuda.jit
def rotate_answer(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty, tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if top + tx < x.shape[0] and left + ty < x.shape[1]:
        out[left + ty, x.shape[0] - 1 - (top + tx)] = tile[tx, ty]


def _rotated(x: np.ndarray) -> np.ndarray:
    return np.rot90(x, -1)


def _transposed_only(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.T}


def _other_way(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: np.rot90(x)}


# --------------------------------------------------------------------------------------------------- transpose/planes


# The kernel to start from: right, and a warp's loads leave two of three bytes of each sector for another time.
@cuda.jit
def planes_start(x, out):
    i = cuda.grid(1)
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = x[3 * i + k]


RECORDS = 3 * BLOCK  # numbers in the records of a block


@cuda.jit
def planes_answer(x, out):
    part = cuda.shared.array(RECORDS, np.float32)
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * RECORDS
    for k in range(3):
        j = k * BLOCK + thread
        if first + j < x.size:
            part[j] = x[first + j]
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < out.shape[1]:
        for k in range(3):
            out[k, i] = part[3 * thread + k]


def _planes_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2048):
        x = rng.standard_normal((n, 3), dtype=np.float32)
        args = x.reshape(-1), unwritten((3, n), np.float32)
        cases.append(Case(f"{n} point{'s' * (n > 1)}", args, blocks(n, BLOCK), BLOCK, {1: x.T}))
    return cases


def _cut(x: np.ndarray, out: np.ndarray) -> dict[int, np.ndarray]:
    return {1: x.reshape(3, -1)}


# -------------------------------------------------------------------------------------------------- transpose/swizzle


# The kernel to start from: right, with 32-way bank conflicts, and with no byte to spare for padding.
@cuda.jit
def swizzle_start(x, out):
    tile = cuda.shared.array(0, np.float32)  # TILE * TILE elements: the launch says how many
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty * TILE + tx] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx * TILE + ty]


@cuda.jit
def swizzle_answer(x, out):
    tile = cuda.shared.array(0, np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if top + ty < x.shape[0] and left + tx < x.shape[1]:
        tile[ty * TILE + (tx ^ ty)] = x[top + ty, left + tx]
    cuda.syncthreads()
    if left + ty < out.shape[0] and top + tx < out.shape[1]:
        out[left + ty, top + tx] = tile[tx * TILE + (ty ^ tx)]


def _swizzle_budget(case: Case) -> dict[str, tuple[float, str]]:
    # Of itself `check` would advise padding, for which there is no room: neither in the memory of the launch, nor in a
    # tile that the kernel makes instead.
    advice = "In each row and in each column of the tile, let the 32 places differ modulo 32."
    return {
        "declared_shared_bytes": (case.sharedmem, f"There is no room for padding: {TILE} x {TILE} elements, no more."),
        "shared_load_bank_conflicts": (0, advice),
        "shared_store_bank_conflicts": (0, advice),
    }


# -------------------------------------------------------------------------------------------------- transpose/coarsen


@cuda.jit
def coarsen_answer(x, out):
    tile = cuda.shared.array((TILE, PITCH), np.float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    top, left = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for i in range(0, TILE, STEP):
        if top + ty + i < x.shape[0] and left + tx < x.shape[1]:
            tile[ty + i, tx] = x[top + ty + i, left + tx]
    cuda.syncthreads()
    for i in range(0, TILE, STEP):
        if left + ty + i < out.shape[0] and top + tx < out.shape[1]:
            out[left + ty + i, top + tx] = tile[tx, ty + i]


def _coarsen_budget(case: Case) -> dict[str, tuple[float, str]]:
    warps = math.prod(case.grid) * TILE  # a wavefront for each row of each tile
    advice = "Threads that read or write down a column of 32 elements meet in one bank: pad the tile to 33 columns."
    once = "Each element goes into the tile once, and comes out of it once."
    return {
        "shared_load_bank_conflicts": (0, advice),
        "shared_store_bank_conflicts": (0, advice),
        "shared_load_wavefronts": (warps, once),
    }


EXERCISES = (
    Exercise(
        "transpose/rotate",
        task="Turn a float32 image clockwise by 90 degrees: out[j, h - 1 - i] = x[i, j], where h is the number of rows "
        "of x. rotate_start does it, and one of its two accesses is uncoalesced. Find out which, and take the image "
        f"through a tile in shared memory instead. The launch has {TILE} x {TILE} threads a block, and a block for "
        f"each {TILE} x {TILE} elements of x, with blockIdx.x along its columns.",
        parameters="x, out",
        cases=lambda rng: _matrices(rng, TILE, _rotated),
        answer=rotate_answer,
        hints=(
            "In each of the two accesses, by how much does the address grow from thread tx to thread tx + 1?",
            "Load the tile as `padded_kernel` does. Then thread tx must store along a row of out.",
            "Row left + ty of out holds column left + ty of x. Its element h - 1 - (top + tx) is row top + tx of x.",
        ),
        traps=(
            Trap("not rotated", "This is the transpose: the columns of out run the other way.", _transposed_only),
            Trap("wrong way round", "This turns the image counter-clockwise.", _other_way),
        ),
    ),
    Exercise(
        "transpose/planes",
        task="x holds n points one after another, as x0 y0 z0 x1 y1 z1 ... Sort them into three rows: out[k, i] = "
        "x[3 i + k], float32, for any n. planes_start does it, and its loads touch three times the sectors needed. "
        f"Load each sector once. The launch has {BLOCK} threads a block, one for each point.",
        parameters="x, out",
        cases=_planes_cases,
        budget=lambda case: {"shared_store_wavefronts": (math.inf, "")},  # the task is about global memory
        answer=planes_answer,
        hints=(
            f"A block's points are {3 * BLOCK} numbers side by side. Which should thread 0 load, and thread 1?",
            "Load them in three rounds into shared memory, in the order in which they lie. Then comes a barrier.",
            "Thread t then reads numbers 3 t, 3 t + 1 and 3 t + 2. Are there bank conflicts? 3 is odd.",
        ),
        traps=(Trap("not sorted", "This only cuts x into three pieces: k is the place in a point.", _cut),),
    ),
    Exercise(
        "transpose/swizzle",
        task="swizzle_start transposes a float32 matrix, and reads its tile down the columns: 32 wavefronts a request. "
        f"There are only {TILE} * {TILE} elements of shared memory, so there is no room for padding. Remove the "
        f"conflicts by putting the elements elsewhere in their rows. The launch has {TILE} x {TILE} threads a block.",
        parameters="x, out",
        cases=lambda rng: _matrices(rng, TILE, np.transpose, sharedmem=4 * TILE * TILE),
        budget=_swizzle_budget,
        answer=swizzle_answer,
        hints=(
            "The bank of an element is its place modulo 32: here that is its column. All of a column is in one bank.",
            "Move column c of row r to place p(r, c) in that row. All p of one r must differ, and all p of one c.",
            "p = r ^ c does it, and so does (r + c) % 32. Use the same p for storing and for loading.",
        ),
    ),
    Exercise(
        "transpose/coarsen",
        task=f"Transpose a float32 matrix with {TILE} x {STEP} threads a block and a block for each {TILE} x {TILE} "
        f"elements: each thread moves {TILE // STEP} of them, {STEP} rows apart. Both sides are coalesced, and there "
        "is no bank conflict.",
        parameters="x, out",
        cases=lambda rng: _matrices(rng, STEP, np.transpose),
        budget=_coarsen_budget,
        answer=coarsen_answer,
        hints=(
            f"for i in range(0, {TILE}, {STEP}): thread (tx, ty) takes care of row ty + i of the tile.",
            "Every row has its own guard, and the barrier stands outside both loops.",
        ),
    ),
)
