"""Exercises of notebooks/56_clusters.ipynb: the largest element of a row, and a row the other way round."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max
from pmpp.lab.teach.exercise import Case, Exercise, Trap
from pmpp.runtime import device
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, in_clusters, map_shared_rank

SIZE, BLOCK = 4, 128  # blocks of a cluster, and threads of a block
ROW = SIZE * BLOCK  # elements of a row that has one for each thread
f0 = np.float32(0)


def _on_host(name: str, x: np.ndarray, expected: np.ndarray) -> Case:
    """A case for a function of the host, whose result is exact."""
    return Case(name, (x,), None, None, {0: expected})


# --------------------------------------------------------------------------------------------------- clusters/largest


def _largest_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, columns in ((1, ROW), (3, 2 * ROW), (2, 5 * ROW)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        x[np.arange(rows), rng.integers(0, columns, rows)] += 9  # in a block that is not always the first
        cases.append(_on_host(f"{rows} x {columns}", x, x.max(axis=1)))
    x = -1 - rng.random((2, ROW), dtype=np.float32)
    cases.append(_on_host("negative numbers alone", x, x.max(axis=1)))
    return cases


@cuda.jit
def largest_kernel(x, out):
    partial, mine = cuda.shared.array(32, np.float32), cuda.shared.array(1, np.float32)
    row, columns = cuda.blockIdx.x // cluster_size(), x.shape[1]
    largest = np.float32(-np.inf)
    for i in range(cluster_rank() * BLOCK + cuda.threadIdx.x, columns, ROW):
        largest = max(largest, x[row, i])
    largest = block_max(largest, partial)
    if cuda.threadIdx.x == 0:
        mine[0] = largest
    cluster_sync()
    if cluster_rank() == 0 and cuda.threadIdx.x == 0:
        for rank in range(1, cluster_size()):
            largest = max(largest, map_shared_rank(mine, rank)[0])
        out[row] = largest
    cluster_sync()


def largest_answer(x):
    out = device.empty(x.shape[0], np.float32)
    in_clusters(largest_kernel, SIZE)[x.shape[0] * SIZE, BLOCK](device.to_device(x), out)
    return out


# -------------------------------------------------------------------------------------------------- clusters/reversed


def _reversed_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows in (1, 2, 5):
        x = rng.standard_normal((rows, ROW), dtype=np.float32)
        cases.append(_on_host(f"{rows} x {ROW}", x, x[:, ::-1].copy()))
    return cases


@cuda.jit
def reversed_kernel(x, out):
    mine = cuda.shared.array(BLOCK, np.float32)
    i = cuda.grid(1)
    cluster_sync()
    there = map_shared_rank(mine, cluster_size() - 1 - cluster_rank())
    there[BLOCK - 1 - cuda.threadIdx.x] = x[i // ROW, i % ROW]
    cluster_sync()
    out[i // ROW, i % ROW] = mine[cuda.threadIdx.x]


def reversed_answer(x):
    out = device.empty(x.shape, np.float32)
    in_clusters(reversed_kernel, SIZE)[x.size // BLOCK, BLOCK](device.to_device(x), out)
    return out


def _each_block_by_itself(x) -> dict[int, np.ndarray]:
    return {0: x.reshape(-1, SIZE, BLOCK)[:, :, ::-1].reshape(x.shape)}


def _blocks_alone(x) -> dict[int, np.ndarray]:
    return {0: x.reshape(-1, SIZE, BLOCK)[:, ::-1].reshape(x.shape)}


EXERCISES = (
    Exercise(
        "clusters/largest",
        task="Write a kernel, and a function `largest(x)` that launches it: the largest element of each row of x, a "
        f"float32 matrix whose rows are a multiple of {ROW} elements long. A row is the work of a cluster of {SIZE} "
        f"blocks of {BLOCK} threads. Return a device array, one float32 a row.",
        parameters="x",
        cases=_largest_cases,
        answer=largest_answer,
        hints=(
            f"device.to_device(x) brings x to the GPU; in_clusters(kernel, {SIZE})[rows * {SIZE}, {BLOCK}](...) "
            "launches; cuda.blockIdx.x // cluster_size() is the row.",
            "`block_max(value, partial)` of pmpp.kernels.common gives all threads the block's largest value. It needs "
            "32 floats of shared memory.",
            "Each block puts its result into shared memory. After a cluster_sync() one thread of the cluster reads "
            "those of all ranks by map_shared_rank.",
            "Which barrier keeps a block from ending while its result is still being read?",
        ),
        traps=(
            Trap(
                "one block's part",
                "The row is in four blocks: the largest of all four results is wanted.",
                lambda x: {0: x.reshape(x.shape[0], -1, SIZE, BLOCK)[:, :, 0].max(axis=(1, 2))},
            ),
            Trap(
                "beginning with 0",
                "Begin with -inf, or with an element of the row: all may be negative.",
                lambda x: {0: np.maximum(x.max(axis=1), f0)},
            ),
        ),
    ),
    Exercise(
        "clusters/reversed",
        task="Write a kernel, and a function `reverse(x)` that launches it: each row of x, a float32 matrix with rows of "
        f"{ROW} elements, the other way round. A cluster of {SIZE} blocks of {BLOCK} threads takes a row, an element a "
        "thread. Each block writes its elements into the shared memory of the block that stores them. Return a device "
        "array of x's shape.",
        parameters="x",
        cases=_reversed_cases,
        answer=reversed_answer,
        hints=(
            f"i = cuda.grid(1) is element i % {ROW} of row i // {ROW}, if the grid has {SIZE} blocks a row.",
            "What rank 0 has loaded belongs to the last rank: map_shared_rank(mine, cluster_size() - 1 - "
            "cluster_rank()).",
            "A block may be written to when it has begun, and read what it was given when all have written.",
        ),
        traps=(
            Trap(
                "each block by itself",
                "Within a block the order is right; the blocks' order must turn, too: write to another rank.",
                _each_block_by_itself,
            ),
            Trap(
                "the order of blocks alone",
                "The blocks' order is right; within a block the order must turn, too.",
                _blocks_alone,
            ),
        ),
    ),
)
