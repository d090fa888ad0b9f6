"""Wrong layer normalisations on clusters of blocks."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum
from pmpp.runtime import device
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, in_clusters, map_shared_rank
from tests.support.wrong import WrongRung

BLOCK, SIZE = 64, 2
f0, f1 = np.float32(0), np.float32(1)


def normaliser(name, *, first=True, last=True, one_cell=False, ranks=SIZE, whole=True, guard=True, twice=False):
    """A row for each cluster of two blocks, with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, weight, bias, eps, out):
        partial, sums = cuda.shared.array((2, 32), np.float32), cuda.shared.array((2, 1), np.float32)
        row, columns = cuda.blockIdx.x // cluster_size(), x.shape[1]
        begin, step = cluster_rank() * BLOCK + cuda.threadIdx.x, SIZE * BLOCK
        end = columns if guard else columns + 1
        total, squares = f0, f0
        for i in range(begin, end, step):
            total += x[row, i]
        total = block_sum(total, partial[0])
        if cuda.threadIdx.x == 0:
            sums[0, 0] = total
        if first:
            cluster_sync()
        else:
            cuda.syncthreads()
        total = f0
        for rank in range(ranks):
            total += map_shared_rank(sums[0], rank)[0]
        mean = total / np.float32(columns)
        for i in range(begin, end, step):
            squares += (x[row, i] - mean) ** 2
        squares = block_sum(squares, partial[1])
        place = 0 if one_cell else 1
        if cuda.threadIdx.x == 0:
            sums[place, 0] = squares
        cluster_sync()
        squares = f0
        for rank in range(SIZE):
            squares += map_shared_rank(sums[place], rank)[0]
        if twice:
            squares += squares
        scale = f1 / math.sqrt(squares / np.float32(columns) + eps)
        for i in range(begin, end if whole else min(end, BLOCK), step):
            out[row, i] = (x[row, i] - mean) * scale * weight[i] + bias[i]
        if last:
            cluster_sync()

    def normalise(x, weight, bias, eps=1e-5):
        x, weight, bias = (device.to_device(a) if isinstance(a, np.ndarray) else a for a in (x, weight, bias))
        out = device.empty(x.shape, np.float32)
        if x.size:
            in_clusters(kernel, SIZE)[x.shape[0] * SIZE, BLOCK](x, weight, bias, np.float32(eps), out)
        return out

    normalise.__name__ = name
    return normalise


RIGHT = normaliser("right")
RUNGS = (
    WrongRung(normaliser("no_first_barrier", first=False), "race"),
    WrongRung(normaliser("no_last_barrier", last=False), "race"),
    WrongRung(normaliser("one_cell_for_two_sums", one_cell=True), "race"),  # a late block still reads the first
    WrongRung(normaliser("no_guard", guard=False), "out of bounds"),
    WrongRung(normaliser("the_sum_of_one_block", ranks=1), "wrong result"),
    WrongRung(normaliser("squares_of_two_rows", twice=True), "wrong result"),
    WrongRung(normaliser("the_first_block_alone_stores", whole=False), "wrong result"),
)
