"""More answers to the exercises of chapter 56: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.clusters.exercises import BLOCK
from pmpp.kernels.common import block_max
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, map_shared_rank
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
LARGEST, REVERSED = "clusters/largest", "clusters/reversed"


# -- largest


def largest(name, *, all_read=False, before=True, after=True, start=-np.inf, ranks=0, more=0, whole=False):
    """The answer to largest, with one of its parts exchanged."""
    start = np.float32(start)

    @cuda.jit
    def kernel(x, out):
        partial, mine = cuda.shared.array(32, np.float32), cuda.shared.array(1, np.float32)
        size = cluster_size()
        row, found = cuda.blockIdx.x // size, start
        first = cuda.threadIdx.x if whole else cluster_rank() * BLOCK + cuda.threadIdx.x
        for i in range(first, x.shape[1], BLOCK if whole else size * BLOCK):
            found = max(found, x[row, i])
        found = block_max(found, partial)
        if cuda.threadIdx.x == 0:
            mine[0] = found
        if before:
            cluster_sync()
        else:
            cuda.syncthreads()
        if cuda.threadIdx.x == 0 and (all_read or cluster_rank() == 0):
            for rank in range(ranks or size + more):
                found = max(found, map_shared_rank(mine, rank)[0])
            if cluster_rank() == 0:
                out[row] = found
        if after:
            cluster_sync()

    kernel.py_func.__name__ = name
    return kernel


right(LARGEST)(largest("largest_in_all_blocks", all_read=True))


@right(LARGEST)
@cuda.jit
def largest_by_an_atomic_of_each_block(x, out):
    """Each thread begins with an element of its row, and each block tells rank 0, by an atomic on its shared memory."""
    partial, best = cuda.shared.array(32, np.float32), cuda.shared.array(1, np.float32)
    row = cuda.blockIdx.x // cluster_size()
    found = x[row, 0]
    if cuda.threadIdx.x == 0:
        best[0] = found
    cluster_sync()
    for i in range(cluster_rank() * BLOCK + cuda.threadIdx.x, x.shape[1], cluster_size() * BLOCK):
        found = max(found, x[row, i])
    found = block_max(found, partial)
    if cuda.threadIdx.x == 0:
        cuda.atomic.max(map_shared_rank(best, 0), 0, found)
    cluster_sync()
    if cluster_rank() == 0 and cuda.threadIdx.x == 0:
        out[row] = best[0]


@wrong(LARGEST, "missing guard", "test the index first")
@cuda.jit
def largest_without_a_guard(x, out):
    partial, told = cuda.shared.array(32, np.float32), cuda.shared.array(4, np.float32)
    row, step = cuda.blockIdx.x // cluster_size(), cluster_size() * BLOCK
    first = cluster_rank() * BLOCK + cuda.threadIdx.x
    found = x[row, first]
    for i in range(first + step, x.shape[1], step):
        found = max(found, x[row, i])
    found = block_max(found, partial)
    cluster_sync()
    if cuda.threadIdx.x == 0:
        map_shared_rank(told, 0)[cluster_rank()] = found
    cluster_sync()
    if cluster_rank() == 0 and cuda.threadIdx.x == 0:
        for rank in range(cluster_size()):
            found = max(found, told[rank])
        out[row] = found


wrong(LARGEST, "race between blocks", "may have ended")(largest("largest_without_the_last_barrier", after=False))
wrong(LARGEST, "race between blocks", "may not have begun")(largest("largest_without_the_first_barrier", before=False))
wrong(LARGEST, "one block's part", "in several blocks")(largest("largest_of_the_first_block", ranks=1))
wrong(LARGEST, "index out of bounds")(largest("largest_of_a_block_too_many", more=1))
wrong(LARGEST, "beginning with 0", "all may be negative")(largest("largest_from_0", start=0))
wrong(LARGEST, "too much traffic", "read it once together")(
    largest("largest_of_the_whole_row_in_each_block", whole=True)
)


# -- reversed


def turned(name, *, rank=True, thread=True, before=True, between=True, pull=False, last=BLOCK - 1):
    """The answer to reversed, with one of its parts exchanged."""

    @cuda.jit
    def kernel(x):
        mine = cuda.shared.array(BLOCK, np.float32)
        row, t = cuda.blockIdx.x // cluster_size(), cuda.threadIdx.x
        i = cluster_rank() * BLOCK + t
        other = cluster_size() - 1 - cluster_rank() if rank else cluster_rank()
        at = last - t if thread else t
        if before:
            cluster_sync()
        if pull:
            mine[t] = x[row, i]
        else:
            map_shared_rank(mine, other)[at] = x[row, i]
        if between:
            cluster_sync()
        else:
            cuda.syncthreads()
        x[row, i] = map_shared_rank(mine, other)[at] if pull else mine[t]
        if pull:
            cluster_sync()

    kernel.py_func.__name__ = name
    return kernel


right(REVERSED)(turned("reversed_by_reading", pull=True))


@wrong(REVERSED, "missing barrier", "Other blocks write into this memory, too")
@cuda.jit
def reversed_while_others_still_read(x):
    row, i = cuda.blockIdx.x // cluster_size(), cluster_rank() * BLOCK + cuda.threadIdx.x
    x[row, x.shape[1] - 1 - i] = x[row, i]


wrong(REVERSED, "race between blocks", "may not have begun")(turned("reversed_without_the_first_barrier", before=False))
wrong(REVERSED, "race between blocks", "no cluster_sync")(turned("reversed_without_the_second_barrier", between=False))
wrong(REVERSED, "index out of bounds")(turned("reversed_one_too_far", last=BLOCK))
wrong(REVERSED, "each block by itself", "the blocks' order must turn, too")(
    turned("reversed_within_blocks", rank=False)
)
wrong(REVERSED, "the order of blocks alone", "within a block")(turned("reversed_blocks", thread=False))
