"""More answers to the exercises of chapter 56: right in another way, or wrong for a reason easily mistaken."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.clusters.exercises import BLOCK, ROW, SIZE
from pmpp.kernels.common import block_max
from pmpp.runtime import device
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, in_clusters, map_shared_rank
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
LARGEST, REVERSED = "clusters/largest", "clusters/reversed"


def launched(kernel, name, shape_of, blocks_of):
    """The function that launches a kernel of (x, out) in clusters."""

    def function(x):
        out = device.empty(shape_of(x), np.float32)
        in_clusters(kernel, SIZE)[blocks_of(x), BLOCK](device.to_device(x), out)
        return out

    function.__name__ = name
    return function


# -- largest


def largest(name, *, all_read=False, before=True, after=True, start=-np.inf, ranks=SIZE):
    """The answer to largest, with one of its parts exchanged."""
    start = np.float32(start)

    @cuda.jit
    def kernel(x, out):
        partial, mine = cuda.shared.array(32, np.float32), cuda.shared.array(1, np.float32)
        row, found = cuda.blockIdx.x // SIZE, start
        for i in range(cluster_rank() * BLOCK + cuda.threadIdx.x, x.shape[1], ROW):
            found = max(found, x[row, i])
        found = block_max(found, partial)
        if cuda.threadIdx.x == 0:
            mine[0] = found
        if before:
            cluster_sync()
        else:
            cuda.syncthreads()
        if cuda.threadIdx.x == 0 and (all_read or cluster_rank() == 0):
            for rank in range(ranks):
                found = max(found, map_shared_rank(mine, rank)[0])
            if cluster_rank() == 0:
                out[row] = found
        if after:
            cluster_sync()

    return launched(kernel, name, lambda x: x.shape[0], lambda x: x.shape[0] * SIZE)


right(LARGEST)(largest("largest_in_all_blocks", all_read=True))
wrong(LARGEST, "race", "may have ended")(largest("largest_without_the_last_barrier", after=False))
wrong(LARGEST, "race", "may not have begun")(largest("largest_without_the_first_barrier", before=False))
wrong(LARGEST, "wrong result")(largest("largest_of_two_blocks", ranks=2))
wrong(LARGEST, "one block's part", "in four blocks")(largest("largest_of_the_first_block", ranks=0))
wrong(LARGEST, "index out of bounds")(largest("largest_of_five_blocks", ranks=SIZE + 1))
wrong(LARGEST, "beginning with 0", "all may be negative")(largest("largest_from_0", start=0))


@right(LARGEST)
def largest_by_atomics(x):
    """Every block tells rank 0, by an atomic on its shared memory."""
    out = device.empty(x.shape[0], np.float32)
    in_clusters(largest_by_atomics_kernel, SIZE)[x.shape[0] * SIZE, BLOCK](device.to_device(x), out)
    return out


@cuda.jit
def largest_by_atomics_kernel(x, out):
    best = cuda.shared.array(1, np.float32)
    row = cuda.blockIdx.x // cluster_size()
    if cuda.threadIdx.x == 0:
        best[0] = -np.inf
    cluster_sync()
    for i in range(cluster_rank() * BLOCK + cuda.threadIdx.x, x.shape[1], ROW):
        cuda.atomic.max(map_shared_rank(best, 0), 0, x[row, i])
    cluster_sync()
    if cluster_rank() == 0 and cuda.threadIdx.x == 0:
        out[row] = best[0]


# -- reversed


def turned(name, *, rank=True, thread=True, before=True, between=True, pull=False, last=BLOCK - 1):
    """The answer to reversed, with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, out):
        mine = cuda.shared.array(BLOCK, np.float32)
        i, t = cuda.grid(1), cuda.threadIdx.x
        other = SIZE - 1 - cluster_rank() if rank else cluster_rank()
        at = last - t if thread else t
        if before:
            cluster_sync()
        if pull:
            mine[t] = x[i // ROW, i % ROW]
        else:
            map_shared_rank(mine, other)[at] = x[i // ROW, i % ROW]
        if between:
            cluster_sync()
        else:
            cuda.syncthreads()
        out[i // ROW, i % ROW] = map_shared_rank(mine, other)[at] if pull else mine[t]
        if pull:
            cluster_sync()

    return launched(kernel, name, lambda x: x.shape, lambda x: x.size // BLOCK)


right(REVERSED)(turned("reversed_by_reading", pull=True))
wrong(REVERSED, "race", "may not have begun")(turned("reversed_without_the_first_barrier", before=False))
wrong(REVERSED, "index out of bounds")(turned("reversed_one_too_far", last=BLOCK))
wrong(REVERSED, "race", "no cluster_sync")(turned("reversed_without_the_second_barrier", between=False))
wrong(REVERSED, "each block by itself", "the blocks' order must turn, too")(turned("reversed_within_blocks", rank=False))
wrong(REVERSED, "the order of blocks alone", "within a block")(turned("reversed_blocks", thread=False))
