"""Exercises of notebooks/56_clusters.ipynb: the largest element of a row, and a row in reverse."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_max
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, map_shared_rank
from pmpp.simt import Clusters

SIZE, BLOCK = 4, 128  # blocks of the largest cluster, and threads of a block
f0 = np.float32(0)
ADVICE = {
    "race between blocks": "The blocks of a cluster wait for one another at cluster_sync(): before one first uses "
    "another's shared memory, between a write and the reads of others, and before a block ends that others may still "
    "read. An element of out is stored by one block alone.",
    "missing barrier": "Other blocks write into this memory, too: cluster_sync() is the barrier for all of them.",
    "inactive lanes": "All threads of all blocks must reach cluster_sync(): let it stand outside of any branch.",
    "index out of bounds": "Ranks are from 0 to cluster_size() - 1, and clusters of several sizes are tried. An index "
    "lies within the array.",
    "repeated work": "Let the block of rank 0 store the result.",
}


# --------------------------------------------------------------------------------------------------- clusters/largest


def _largest_cases(rng: np.random.Generator) -> list[Case]:
    def case(x: np.ndarray, size: int, what: str = "") -> Case:
        args, grid = (x, unwritten(x.shape[0], np.float32)), Clusters(size * x.shape[0], size)
        name = f"{x.shape[0]} x {x.shape[1]}{what} in clusters of {size}"
        return Case(name, args, grid, BLOCK, {1: x.max(axis=1)})

    cases = []
    for rows, columns, size in ((1, 300, 1), (3, 512, 2), (2, 1636, SIZE), (4, 2560, SIZE)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        x[np.arange(rows), rng.integers(max(0, columns - size * BLOCK), columns, rows)] += 9  # in any of the blocks
        cases.append(case(x, size))
    cases.append(case(-1 - rng.random((2, 300), dtype=np.float32), SIZE, " negative numbers"))  # a block without any
    return [*cases, case(-1 - rng.random((6, 2560), dtype=np.float32), SIZE, " negative numbers")]


@cuda.jit
def largest_answer(x, out):
    partial, mine = cuda.shared.array(32, np.float32), cuda.shared.array(1, np.float32)
    row, size = cuda.blockIdx.x // cluster_size(), cluster_size()
    found = np.float32(-np.inf)
    for i in range(cluster_rank() * BLOCK + cuda.threadIdx.x, x.shape[1], size * BLOCK):
        found = max(found, x[row, i])
    found = block_max(found, partial)
    if cuda.threadIdx.x == 0:
        mine[0] = found
    cluster_sync()
    if cluster_rank() == 0 and cuda.threadIdx.x == 0:
        for rank in range(1, size):
            found = max(found, map_shared_rank(mine, rank)[0])
        out[row] = found
    cluster_sync()


def _of_the_first_block(x, out) -> dict[int, np.ndarray]:
    size = {(1, 300): 1, (3, 512): 2}.get(x.shape, SIZE)  # as the cases have it
    return {1: x[:, np.arange(x.shape[1]) // BLOCK % size == 0].max(axis=1)}


def _from_0(x, out) -> dict[int, np.ndarray]:
    return {1: np.maximum(x.max(axis=1), f0)}


def _largest_budget(case: Case) -> dict[str, tuple[float, str]]:
    x, once = case.args[0], "Each block reads a part of the row: those of a cluster read it once together."
    blocks = int(case.grid)
    return {
        "global_load_bytes": (x.nbytes + 4 * blocks * BLOCK, once),  # a thread may begin with any element
        "atomic_requests": (blocks, "Let one thread a block tell another block the result: block_max has it."),
    }


# -------------------------------------------------------------------------------------------------- clusters/reversed


def _reversed_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for rows, size in ((1, 1), (2, 2), (3, SIZE), (5, SIZE)):
        x = rng.standard_normal((rows, size * BLOCK), dtype=np.float32)
        case = f"{rows} x {size * BLOCK} in clusters of {size}"
        cases.append(Case(case, (x,), Clusters(size * rows, size), BLOCK, {0: x[:, ::-1].copy()}))
    return cases


@cuda.jit
def reversed_answer(x):
    mine = cuda.shared.array(BLOCK, np.float32)
    row, i = cuda.blockIdx.x // cluster_size(), cluster_rank() * BLOCK + cuda.threadIdx.x
    cluster_sync()
    there = map_shared_rank(mine, cluster_size() - 1 - cluster_rank())
    there[BLOCK - 1 - cuda.threadIdx.x] = x[row, i]
    cluster_sync()
    x[row, i] = mine[cuda.threadIdx.x]


def _each_block_by_itself(x) -> dict[int, np.ndarray]:
    return {0: x.reshape(len(x), -1, BLOCK)[:, :, ::-1].reshape(x.shape)}


def _blocks_alone(x) -> dict[int, np.ndarray]:
    return {0: x.reshape(len(x), -1, BLOCK)[:, ::-1].reshape(x.shape)}


EXERCISES = (
    Exercise(
        "clusters/largest",
        task="The largest element of each row of x, a float32 matrix. A row is the work of a cluster: the launch has "
        f"cluster_size() blocks of {BLOCK} threads for each row, up to {SIZE}. A row may be of any length.",
        parameters="x, out",
        cases=_largest_cases,
        budget=_largest_budget,
        answer=largest_answer,
        hints=(
            "cuda.blockIdx.x // cluster_size() is the row. Of its elements this thread takes those from cluster_rank() "
            f"* {BLOCK} + cuda.threadIdx.x on, in steps of cluster_size() * {BLOCK}.",
            "`block_max(value, partial)` of pmpp.kernels.common gives all threads the block's largest value. It needs "
            "32 floats of shared memory.",
            "Each block puts its result into shared memory. After a cluster_sync() one thread of the cluster reads "
            "those of all ranks by map_shared_rank.",
            "Which barrier keeps a block from ending while its result is still being read?",
        ),
        traps=(
            Trap(
                "one block's part",
                "The row is in several blocks: the largest of all their results is wanted.",
                _of_the_first_block,
            ),
            Trap("beginning with 0", "Begin with -inf, or with an element of the row: all may be negative.", _from_0),
        ),
        advice=ADVICE,
    ),
    Exercise(
        "clusters/reversed",
        task="Reverse each row of x, a float32 matrix, in place. A cluster takes a row: it has cluster_size() blocks "
        f"of {BLOCK} threads, up to {SIZE}, and the row an element for each thread. Each block writes its elements "
        "into the shared memory of the block that stores them.",
        parameters="x",
        cases=_reversed_cases,
        answer=reversed_answer,
        hints=(
            f"A thread loads element cluster_rank() * {BLOCK} + cuda.threadIdx.x of its row, and stores to the same "
            "place of x.",
            "What rank 0 has loaded belongs to the last rank: map_shared_rank(mine, cluster_size() - 1 - "
            "cluster_rank()).",
            "A block may be written to when it has begun, and may read what it was given when all have written.",
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
        advice=ADVICE,
    ),
)
