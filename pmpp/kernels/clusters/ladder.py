"""Clusters of blocks: layer normalisation of rows that one block cannot keep.

Chapter: notebooks/56_clusters.ipynb.  PMPP 4e ch. 10.

As in `layernorm`, the bound is memory: each element is read once and written once. But mean and variance must be known
before the first element can be written. So a row has to be kept somewhere meanwhile, or it is read twice. A thread
keeps 32 values in registers, a block of 1024 threads 32,768, and its shared memory a few more. Blocks of a cluster run
at the same time and see one another's shared memory (`pmpp.runtime.clusters`): 16 of them keep half a million.

Clusters need a GPU of compute capability 9.0 or more. On others each rung is `read_twice`.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum, blocks, warp_sum
from pmpp.kernels.normalisation import layernorm
from pmpp.kernels.normalisation.layernorm import keep, load_row, store_row
from pmpp.kernels.normalisation.moments import DTYPES, LIKE, f0, f1, load_vector, store_vector
from pmpp.runtime import device
from pmpp.runtime.clusters import (
    cluster_rank,
    cluster_size,
    cluster_sync,
    in_clusters,
    map_shared_rank,
    resident_clusters,
)
from pmpp.runtime.dtypes import known
from pmpp.runtime.matrix import commit_copies, copy_async, wait_copies
from pmpp.runtime.rung import rung
from pmpp.runtime.vector import load128, store128, widened, width_of

CAPABILITY = (9, 0)  # of the oldest GPU that has clusters
BLOCK = 512  # threads per block
SHARED = 192 * 1024  # bytes of a block's shared memory for its part of a row; an H200 has 227 KiB, some of it for sums
EASY = 64 * 1024  # of which a multiprocessor has room for three blocks
DEEP = 32  # values that a thread keeps in registers

# The problem is that of `layernorm`, and so are its arguments.
reference = layernorm.reference


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Small awkward matrices: a name, and ``(x, weight, bias)``."""
    rng = np.random.default_rng(56) if rng is None else rng
    block, cluster = BLOCK * DEEP, SHARED // 4
    shapes = {"one": (1, 1), "a row": (1, 77), "a column": (77, 1), "no rows": (0, 5), "short": (3, 512)}
    shapes |= {f"a block's registers {d:+}": (2, block + d) for d in (-4, 0, 1, 4)}
    shapes |= {f"a block's shared memory {d:+}": (1, cluster + d) for d in (-1, 0, 1)}
    shapes |= {"odd": (3, 4099), "three blocks": (2, 3 * block - 8), "many": (40, 260)}
    made = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    made["large mean"] = 1000 + rng.standard_normal((2, 20_000), dtype=np.float32)
    made["outliers"] = np.where(rng.random((2, 17_000)) < 0.01, 1e6, rng.random((2, 17_000))).astype(np.float32)
    made["constant"] = np.full((2, 16_900), 0.1, np.float32)
    made["non-finite"] = rng.standard_normal((4, 16_600), dtype=np.float32)
    made["non-finite"][1, 3], made["non-finite"][2, -1] = np.nan, np.inf
    for dtype in known(DTYPES[1:]):
        made |= {f"{dtype}, {name}": made[name].astype(dtype) for name in ("short", "odd", "a block's registers +4")}
    return {
        name: (x, rng.uniform(0.5, 2, x.shape[1]).astype(np.float32), rng.standard_normal(x.shape[1], dtype=np.float32))
        for name, x in made.items()
    }


cost = layernorm.cost
tolerance = layernorm.tolerance
arguments = layernorm.arguments


@rung(*layernorm.vectorised.kernels)
def read_twice(p):
    """`layernorm.vectorised`: a row of more than 32,768 elements is read for its moments, and again to be normalised.

    Leaves: the second read. The rows under way are about as large as the L2 cache, so that it serves a part of it.
    """
    layernorm.vectorised.launch(p)


# ------------------------------------------------------------------------------------------------- kept by a cluster


@cuda.jit(device=True)
def cluster_sum(value, partial, mine):
    """In all threads, the sum of the values of a cluster's threads.

    ``partial`` as in `block_sum`; ``mine``: a number in shared memory, as an array of one, which nobody has used yet.
    Other blocks may still read it afterwards: before a block ends, it waits for them by `cluster_sync`.
    """
    total = block_sum(value, partial)
    if cuda.threadIdx.x == 0:
        mine[0] = total
    cluster_sync()
    total = f0
    for rank in range(cluster_size()):
        total += map_shared_rank(mine, rank)[0]
    return total


@cuda.jit
def in_shared_memory_kernel(x, part, weight, bias, eps, moments, out):
    kept, partial = cuda.shared.array(0, np.float32), cuda.shared.array((2, 32), np.float32)
    sums = cuda.shared.array((2, 1), np.float32)
    row, columns, thread = cuda.blockIdx.x // cluster_size(), x.shape[1], cuda.threadIdx.x
    begin = cluster_rank() * part
    end = min(begin + part, columns)
    total, squares = f0, f0
    for i in range(begin + thread, end, BLOCK):
        value = widened(x[row, i])
        kept[i - begin] = value
        total += value
    mean = cluster_sum(total, partial[0], sums[0]) / np.float32(columns)
    for i in range(begin + thread, end, BLOCK):
        deviation = kept[i - begin] - mean
        squares += deviation * deviation
    scale = f1 / math.sqrt(cluster_sum(squares, partial[1], sums[1]) / np.float32(columns) + eps)
    if begin + thread == 0:
        keep(moments, row, mean, scale)
    for i in range(begin + thread, end, BLOCK):
        out[row, i] = (kept[i - begin] - mean) * scale * weight[i] + bias[i]
    cluster_sync()  # nobody ends while another block may read its sums


@rung(in_shared_memory_kernel, *read_twice.kernels)
def in_shared_memory(p):
    """The blocks of a cluster keep a part of the row each, and read one another's sums where they lie.

    A part has at most 64 KiB, as long as 16 blocks are enough: then a multiprocessor holds three blocks, and while one
    waits the others load. Rows of more than 786,432 elements go to `read_twice`.

    Source: CUDA C++ programming guide, "Distributed shared memory".

    Leaves: each element is loaded by 4 bytes a lane, and goes through shared memory by one store and two loads; and all
    blocks wait for one another three times, the last time with nothing under way.
    """
    size = cluster_for(p.columns, EASY // 4)
    part = blocks(p.columns, size)
    if 4 * part > SHARED or most_blocks() == 1:
        read_twice.launch(p)
    else:
        kernel = in_clusters(in_shared_memory_kernel, size)
        kernel[p.rows * size, BLOCK, p.stream, 4 * part](p.x, part, p.weight, p.bias, p.eps, p.moments, p.out)


def most_blocks() -> int:
    """Blocks of a cluster that this GPU allows; 1 where it has no clusters."""
    capability = device.limits()["compute_capability"]
    return 1 if capability < CAPABILITY else 16 if capability[0] in (9, 10) else 8


def cluster_for(columns: int, each: int) -> int:
    """Blocks of a cluster so that none keeps more than ``each`` columns, if the GPU allows so many: a power of two.

    >>> cluster_for(16385, 16384), cluster_for(1 << 20, 16384)
    (2, 16)
    """
    return min(1 << (blocks(columns, each) - 1).bit_length(), most_blocks())


@cuda.jit(device=True)
def told_sum(value, partial, told):
    """In all threads, the sum of the values of a cluster's threads.

    The caller has waited once, by `cluster_sync`, since the kernel began: all blocks of the cluster must have begun.
    ``partial`` as in `block_sum`. ``told``: 16 numbers in shared memory. Each block tells all blocks its sum, and then
    reads what it was told: no block need wait for readers before it ends.
    """
    total = block_sum(value, partial)
    if cuda.threadIdx.x < cluster_size():
        map_shared_rank(told, cuda.threadIdx.x)[cluster_rank()] = total
    cluster_sync()
    seen = told[cuda.laneid] if cuda.laneid < cluster_size() else f0
    return warp_sum(seen)


@cuda.jit(device=True)
def sum_of(values, filled):
    """The sum of the first ``filled`` of a thread's values."""
    total = f0
    for k in range(values.size):
        total += values[k] if k < filled else f0
    return total


@cuda.jit(device=True)
def squares_of(values, filled, mean):
    """The sum of their squared deviations from the mean."""
    squares = f0
    for k in range(values.size):
        deviation = values[k] - mean if k < filled else f0
        squares += deviation * deviation
    return squares


@cuda.jit(max_registers=64)  # 65,536 registers for 1024 threads of a multiprocessor
def in_registers_kernel(x, like, depth, weight, bias, eps, moments, out):
    values = cuda.local.array(DEEP, np.float32)
    partial, told = cuda.shared.array((2, 32), np.float32), cuda.shared.array((2, 16), np.float32)
    row, step = cuda.blockIdx.x // cluster_size(), cluster_size() * cuda.blockDim.x
    first = cluster_rank() * cuda.blockDim.x + cuda.threadIdx.x
    filled = load_row(x, row, first, step, like, depth, values)
    cluster_sync()  # the other blocks have begun; meanwhile the values are on their way
    columns = np.float32(x.shape[1])
    mean = told_sum(sum_of(values, filled), partial[0], told[0]) / columns
    scale = f1 / math.sqrt(told_sum(squares_of(values, filled, mean), partial[1], told[1]) / columns + eps)
    if first == 0:
        keep(moments, row, mean, scale)
    store_row(values, mean, scale, weight, bias, out, row, first, step, like, filled)


@rung(in_registers_kernel, *read_twice.kernels)
def in_registers(p):
    """Threads keep 32 values each in registers, loaded 128 bits at a time; only sums pass between blocks.

    A block writes its sum into the shared memory of all blocks of its cluster, so that nobody waits at the end. Rows of
    more than 524,288 elements go to `read_twice`. The loads are 128 bits wide if N is a multiple of the 4 or 8 elements
    in a vector, and all arrays begin on 16-byte boundaries. Else each brings one element.

    Source: T. Dao and others, QuACK (2025), whose kernels for rows reduce over a cluster.

    Leaves: a cluster loads, waits, and stores. A multiprocessor has one block or two, and a new cluster begins only
    when all of its blocks find room: so there are times when nothing is on its way. And weight and bias come from the
    L2 cache for each row, which are as many bytes as the row and its result.
    """
    x, weight, bias, out = p.x, p.weight, p.bias, p.out
    width = width_for(p)
    how = plan(p.columns, width, DEEP, most_blocks())
    if how is None:
        read_twice.launch(p)
    else:
        kernel = in_clusters(in_registers_kernel, how.size)
        where = p.rows * how.size, how.threads, p.stream
        kernel[where](x, LIKE[width], how.depth, weight, bias, p.eps, p.moments, out)


def width_for(p) -> int:
    """Values in a load: as many as fill 128 bits, or one where a row or an array does not begin at such a boundary."""
    width = width_of(p.x.dtype)
    crooked = any(device.address(array) % 16 for array in (p.x, p.weight, p.bias, p.out))
    return 1 if crooked or p.columns % width else width


class Kept(typing.NamedTuple):
    """How a row is shared out: to ``size`` blocks of so many threads, each of which has at most ``depth`` units."""

    size: int
    threads: int
    depth: int


@functools.lru_cache(maxsize=1024)
def plan(columns: int, width: int, values: int, most: int) -> Kept | None:
    """How a row is shared out, or None if no cluster keeps it.

    ``width``: values in a load; ``values``: how many a thread keeps; ``most``: blocks of a cluster. Of two blocks on a
    multiprocessor one works while the other waits. So blocks have 512 threads, as long as 16 such blocks are enough.

    >>> plan(columns=131072, width=4, values=16, most=16), plan(columns=131073, width=1, values=16, most=16)
    (Kept(size=16, threads=512, depth=4), Kept(size=16, threads=1024, depth=9))
    """
    units, each = blocks(columns, width), values // width
    for threads in (BLOCK, 2 * BLOCK) if most > 1 else ():
        size = min(1 << (blocks(units, threads * each) - 1).bit_length(), most)
        if units <= size * threads * each:
            return Kept(size, threads, blocks(units, size * threads))
    return None


# ------------------------------------------------------------------------------- the next row's copy is under way

FEW = 16  # values that a thread keeps: 64 registers are enough then
COPIED = ("float32", "float16")  # dtypes that `copy_async` takes and shared arrays have


@cuda.jit(device=True)
def fetch(x, row, ahead, first, step, like, depth):
    """Start to copy a thread's units of a row into shared memory, from where it alone will load them.

    Beyond the end of the row it copies the row's last unit. Beyond the last row it copies nothing.
    """
    if row < x.shape[0]:
        last = x.shape[1] // len(like) - 1
        for k in range(FEW // len(like)):
            if k < depth:
                at = row * x.shape[1] + min(first + k * step, last) * len(like)
                copy_async(ahead, (k * cuda.blockDim.x + cuda.threadIdx.x) * len(like), x, at, len(like))
    commit_copies()


@cuda.jit(device=True)
def load_fetched(ahead, like, depth, values):
    """Load what `fetch` has copied into registers; zeros beyond ``depth`` units."""
    for k in range(FEW // len(like)):
        load_vector(values, len(like) * k, ahead, (k * cuda.blockDim.x + cuda.threadIdx.x) * len(like), k < depth, like)


@cuda.jit(device=True)
def place_parameters(weight, bias, first, step, like, groups, shared, w, b):
    """Put weight and bias of a thread's columns, four at a time, into shared memory from ``w`` and ``b`` on."""
    each = len(like) // 4  # groups of four in a unit
    for g in range(FEW // 4):
        if g < groups:
            column = min(len(like) * (first + g // each * step) + g % each * 4, weight.size - 4)
            place = (g * cuda.blockDim.x + cuda.threadIdx.x) * 4
            store128(shared, w + place, load128(weight, column))
            store128(shared, b + place, load128(bias, column))


@cuda.jit(max_registers=64)  # 65,536 registers for 1024 threads of a multiprocessor
def pipelined_kernel(x, like, depth, weight, bias, eps, moments, out):
    # The same memory twice: first the copy of the next row, then weight from the float32 with number w on, then bias.
    ahead, shared = cuda.shared.array(0, x.dtype), cuda.shared.array(0, np.float32)
    partial = cuda.shared.array((2, 32), np.float32)
    # One place for each of a row's two sums. They take turns, so there is a barrier between a read and the next write.
    told = cuda.shared.array((2, 16), np.float32)
    values, groups = cuda.local.array(FEW, np.float32), depth * len(like) // 4
    w, b = depth * 4 * cuda.blockDim.x, (depth + groups) * 4 * cuda.blockDim.x
    row, clusters = cuda.blockIdx.x // cluster_size(), cuda.gridDim.x // cluster_size()
    first, step = cluster_rank() * cuda.blockDim.x + cuda.threadIdx.x, cluster_size() * cuda.blockDim.x
    fetch(x, row, ahead, first, step, like, depth)
    place_parameters(weight, bias, first, step, like, groups, shared, w, b)
    filled, columns = 0, np.float32(x.shape[1])
    for k in range(FEW // len(like)):
        filled += len(like) if k < depth and len(like) * (first + k * step) < x.shape[1] else 0
    cluster_sync()  # the other blocks have begun
    while row < x.shape[0]:
        wait_copies(0)
        load_fetched(ahead, like, depth, values)
        total = sum_of(values, filled)
        fetch(x, row + clusters, ahead, first, step, like, depth)  # into the place that has just been read
        mean = told_sum(total, partial[0], told[0]) / columns
        scale = f1 / math.sqrt(told_sum(squares_of(values, filled, mean), partial[1], told[1]) / columns + eps)
        if first == 0:
            keep(moments, row, mean, scale)
        for g in range(FEW // 4):
            if 4 * g < filled:
                place = (g * cuda.blockDim.x + cuda.threadIdx.x) * 4
                weights, biases = load128(shared, w + place), load128(shared, b + place)
                for e in range(4):
                    values[4 * g + e] = (values[4 * g + e] - mean) * scale * weights[e] + biases[e]
        for k in range(FEW // len(like)):
            if len(like) * k < filled:
                store_vector(values, len(like) * k, out, row * x.shape[1] + len(like) * (first + k * step), like)
        row += clusters


@rung(pipelined_kernel, in_registers_kernel, *read_twice.kernels)
def pipelined(p):
    """As many clusters as the GPU holds take row after row, and the copy of the next row is under way meanwhile.

    A thread copies 16 bytes at a time into shared memory, by `copy_async`, and reads back its own alone: that needs no
    barrier. Its columns are the same in all rows, so weight and bias stay in shared memory, too. To `in_registers` go
    rows of more than 262,144 elements, rows or arrays that do not begin at multiples of 16 bytes, and bfloat16: Numba
    has no shared arrays of it.

    Source: CUDA C++ programming guide, "Asynchronous data copies"; NVIDIA's persistent kernels.
    """
    width = width_for(p)
    how = plan(p.columns, width, FEW, most_blocks()) if width > 1 and p.x.dtype in COPIED else None
    if how is None:
        in_registers.launch(p)
    else:
        shared = 16 * how.threads * (how.depth + 2 * how.depth * width // 4)  # of the row, of weight and of bias
        grid = min(p.rows, resident_clusters(how.size, how.threads, shared)) * how.size
        kernel = in_clusters(pipelined_kernel, how.size)
        affine = p.weight, p.bias, p.eps, p.moments
        kernel[grid, how.threads, p.stream, shared](p.x, LIKE[width], how.depth, *affine, p.out)


LADDER = (read_twice, in_shared_memory, in_registers, pipelined)
