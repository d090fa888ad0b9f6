"""What ``lab.measure.agreement`` compares with the hardware: rungs, and probes with one habit each.

A probe does one thing to memory, to the warp or to the arithmetic units. Launches are small, so that the profiler can
replay them and the interpreter can run them in a moment, and the data come from formulas, not from a random generator,
so that they are the same everywhere and always.
"""

from __future__ import annotations

import math
import typing
from dataclasses import replace

import numpy as np

from pmpp import cuda
from pmpp.kernels import matmul, reduction, transpose, vector_add
from pmpp.kernels.instruments.agreement_data import doubles, floats, scattered
from pmpp.kernels.instruments.agreement_reasons import DIFFERS as OF_THE_FIRST
from pmpp.kernels.instruments.agreement_rungs import RUNGS
from pmpp.kernels.instruments.agreement_rungs_reasons import DIFFERS as OF_RUNGS
from pmpp.lab.measure.agreement import Case
from pmpp.runtime.rung import room_name
from pmpp.runtime.vector import load128, store128

N = 4096  # elements a probe works on: 128 warps
BLOCK = 256
GRID = N // BLOCK
BINS = 256


def lane_patterns(elements: int, *, distinct: bool) -> np.ndarray:
    """240 rows of 32: which of so many elements each lane of a warp asks for, -1 for none.

    In some lanes ask alone, in others they share with a neighbour at distance 1, 2, or both, or by half warps; in some
    a few or half of the lanes, or half of the warp, do not ask. ``distinct``: no element twice, as a store needs it.
    """
    lane = np.arange(32)
    rows = []
    for k, numbers in enumerate(scattered(240 * 64, 2**30).reshape(240, 2, 32)):
        free = numbers[0] % min(elements, 4 ** (1 + k % 5))
        pairs, squares = free[lane // 2 * 2], free[lane & ~2]
        row = (
            free,
            pairs,
            squares,
            free[lane // 4 * 4],
            np.where(lane < 16, pairs, squares),
            np.where(lane < 16, pairs, free),
        )
        asks = (lane >= 0, numbers[1] % 10 > 0, numbers[1] % 2 > 0, lane < 16)
        row = np.where(asks[k // 30 % 4], row[k // 5 % 6], -1)
        first = np.isin(lane, np.unique(row, return_index=True)[1])
        rows.append(np.where(first, row, -1) if distinct else row)
    return np.array(rows, np.int32)


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype)


# ------------------------------------------------------------------------------------------------------ global memory


@cuda.jit
def strided_load(x, out, stride, offset):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i * stride + offset]


@cuda.jit
def strided_store(x, out, stride, offset):
    i = cuda.grid(1)
    if i < x.size:
        out[i * stride + offset] = x[i]


@cuda.jit
def gather(x, index, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[index[i]]


@cuda.jit
def wide_copy(x, out):
    i = 4 * cuda.grid(1)
    if i < x.size:
        store128(out, i, load128(x, i))


@cuda.jit
def loaded_twice(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * x[i]


@cuda.jit
def stencil_1d(x, out):
    i = cuda.grid(1)
    if 0 < i < out.size - 1:
        out[i] = x[i - 1] - x[i] - x[i] + x[i + 1]


@cuda.jit
def stencil_2d(x, out):
    column, row = cuda.grid(2)
    if 0 < row < x.shape[0] - 1 and 0 < column < x.shape[1] - 1:
        around = x[row - 1, column] + x[row + 1, column] + x[row, column - 1] + x[row, column + 1]
        out[row, column] = np.float32(0.25) * around


# ------------------------------------------------------------------------------------------------------ shared memory


@cuda.jit
def bank_load(out, stride):
    tile = cuda.shared.array(1024, np.float32)
    thread = cuda.threadIdx.x
    for i in range(thread, 1024, BLOCK):
        tile[i] = i
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[thread * stride % 1024]


@cuda.jit
def bank_store(out, stride):
    tile = cuda.shared.array(1024, np.float32)
    thread = cuda.threadIdx.x
    for i in range(thread, 1024, BLOCK):
        tile[i] = 0
    cuda.syncthreads()
    if thread < 32:
        tile[thread * stride % 1024] = thread
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[thread]


@cuda.jit
def bank_load_64(x, order, out):
    tile = cuda.shared.array(1024, np.float64)
    thread = cuda.threadIdx.x
    for i in range(thread, 1024, BLOCK):
        tile[i] = x[i]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[order[thread % 32]]


@cuda.jit
def bank_load_128(x, order, out):
    tile = cuda.shared.array(1024, np.float32, alignment=16)
    thread = cuda.threadIdx.x
    for i in range(thread, 1024, BLOCK):
        tile[i] = x[i]
    cuda.syncthreads()
    store128(out, 4 * cuda.grid(1), load128(tile, 4 * order[thread % 32]))


@cuda.jit
def patterns_load_64(x, patterns, out):
    tile = cuda.shared.array(1024, np.float64)
    for i in range(cuda.threadIdx.x, 1024, 32):
        tile[i] = x[i]
    cuda.syncthreads()
    k = patterns[cuda.blockIdx.x, cuda.threadIdx.x]
    if k >= 0:
        out[cuda.grid(1)] = tile[k]


@cuda.jit
def patterns_load_128(x, patterns, out):
    tile = cuda.shared.array(1024, np.float32, alignment=16)
    for i in range(cuda.threadIdx.x, 1024, 32):
        tile[i] = x[i]
    cuda.syncthreads()
    k = patterns[cuda.blockIdx.x, cuda.threadIdx.x]
    if k >= 0:
        store128(out, 4 * cuda.grid(1), load128(tile, 4 * k))


@cuda.jit
def patterns_store_128(x, patterns, out):
    tile = cuda.shared.array(1024, np.float32, alignment=16)
    k = patterns[cuda.blockIdx.x, cuda.threadIdx.x]
    if k >= 0:
        store128(tile, 4 * k, load128(x, 4 * cuda.threadIdx.x))
        out[cuda.grid(1)] = tile[4 * k]


@cuda.jit
def bank_load_bytes(x, out):
    tile = cuda.shared.array(BLOCK, np.uint8)
    thread = cuda.threadIdx.x
    tile[thread] = x[cuda.grid(1)]
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[BLOCK - 1 - thread]


# ------------------------------------------------------------------------------------------------------------ atomics


@cuda.jit
def histogram_global(x, bins):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i], 1)


@cuda.jit
def histogram_shared(x, bins):
    mine = cuda.shared.array(BINS, np.int32)
    thread = cuda.threadIdx.x
    mine[thread] = 0
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(mine, x[i], 1)
    cuda.syncthreads()
    cuda.atomic.add(bins, thread, mine[thread])


@cuda.jit
def tickets(counter, out):
    i = cuda.grid(1)
    out[cuda.atomic.add(counter, 0, 1)] = i


@cuda.jit
def atomic_sum(x, out):
    cuda.atomic.add(out, 0, x[cuda.grid(1)])


@cuda.jit
def atomic_sum_shared(x, out):
    total = cuda.shared.array(1, np.float32)
    thread = cuda.threadIdx.x
    if thread == 0:
        total[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(total, 0, x[cuda.grid(1)])
    cuda.syncthreads()
    if thread == 0:
        out[cuda.blockIdx.x] = total[0]


@cuda.jit
def atomic_max(x, bins, out):
    i = cuda.grid(1)
    cuda.atomic.max(out, bins[i], x[i])


# ---------------------------------------------------------------------------------------------------------- the warp


@cuda.jit
def shuffle_sum(x, out):
    i = cuda.grid(1)
    value = x[i]
    for distance in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
    if cuda.laneid == 0:
        out[i // 32] = value


@cuda.jit
def vote_count(x, out):
    i = cuda.grid(1)
    positive = cuda.ballot_sync(0xFFFFFFFF, x[i] > 0)
    if cuda.laneid == 0:
        out[i // 32] = cuda.popc(positive)


@cuda.jit
def block_count(x, out):
    positive = cuda.syncthreads_count(np.int32(x[cuda.grid(1)] > 0))
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = positive


@cuda.jit
def short_branch(x, out):
    i = cuda.grid(1)
    if i % 2 == 0:
        out[i] = x[i] + np.float32(1)
    else:
        out[i] = x[i] * np.float32(3)


@cuda.jit
def long_branch(x, out, rounds, period):
    i = cuda.grid(1)
    value = x[i]
    k = 0
    if i // period % 2 == 0:
        while k < rounds:
            value = value * np.float32(0.5) + x[k]
            k += 1
    else:
        while k < rounds:
            value = value * value - x[k]
            k += 1
    out[i] = value


@cuda.jit
def own_trip_count(x, trips, out):
    i = cuda.grid(1)
    value = np.float32(0)
    k = 0
    while k < trips[i]:
        value += x[k]
        k += 1
    out[i] = value


@cuda.jit
def early_return(x, out):
    i = cuda.grid(1)
    if i >= out.size:
        return
    out[i] = x[i]


# --------------------------------------------------------------------------------------------------------- arithmetic


@cuda.jit
def multiply_add(a, b, c, out):
    i = cuda.grid(1)
    out[i] = a[i] * b[i] + c[i]


@cuda.jit
def polynomial(x, out):
    i = cuda.grid(1)
    t = x[i]
    p = np.float32(0.5)
    for _ in range(8):
        p = p * t + np.float32(0.25)
    out[i] = p


@cuda.jit
def axpy_64(a, x, y):
    i = cuda.grid(1)
    y[i] = a * x[i] + y[i]


@cuda.jit
def accidental_float64(x, out):
    i = cuda.grid(1)
    out[i] = 0.1 * x[i]  # a Python literal is a float64


@cuda.jit
def divide(x, y, out):
    i = cuda.grid(1)
    out[i] = x[i] / y[i]


@cuda.jit
def square_root(x, out):
    i = cuda.grid(1)
    out[i] = math.sqrt(x[i])


@cuda.jit
def local_in_registers(x, out):
    i = cuda.grid(1)
    values = cuda.local.array(4, np.float32)
    for k in range(4):
        values[k] = x[i + k * N]
    out[i] = values[0] + values[1] + values[2] + values[3]


@cuda.jit
def local_in_memory(x, order, out):
    i = cuda.grid(1)
    values = cuda.local.array(64, np.float32)
    for k in range(64):
        values[k] = x[i + k]
    out[i] = values[order[i]]  # registers have no index: an array that is used so lies in memory


# ---------------------------------------------------------------------------------------------------------- all of it


def _rungs(room: typing.Any, *args: np.ndarray) -> list[Case]:
    name = room_name(room)
    return [Case(f"{name}: {rung.name}", rung, lambda: args) for rung in room.LADDER]


def _probe(
    name: str, kernel: typing.Any, *args: typing.Any, grid: typing.Any = GRID, block: typing.Any = BLOCK
) -> Case:
    return Case(name, kernel, lambda: args, grid, block)


LANE = np.arange(32, dtype=np.int32)
WIDE = {
    "one address": 0 * LANE,
    "stride 1": LANE,
    "stride 2": 2 * LANE,
    "stride 8": 8 * LANE,
    "pairs": LANE // 2,  # lanes 0 and 1 read one element, lanes 2 and 3 the next
    "squares": LANE // 4 * 2 + LANE % 2,  # lanes 0 and 2 read one, lanes 1 and 3 the next, as in matmul's tiles
    "quarters": LANE % 8,  # lane 8 reads what lane 0 reads
}

_CASES = (
    *_rungs(vector_add, floats(N + 1), floats(N + 1)),
    *_rungs(matmul, floats(72, 40), floats(40, 136)),
    *_rungs(reduction, floats(16001)),
    *_rungs(transpose, floats(132, 68)),
    _probe("grid-stride loop", vector_add.grid_stride_kernel, floats(N + 1), floats(N + 1), zeros(N + 1), grid=3),
    _probe("load, coalesced", strided_load, floats(N), zeros(N), 1, 0),
    _probe("load, every 2nd", strided_load, floats(2 * N), zeros(N), 2, 0),
    _probe("load, every 32nd", strided_load, floats(32 * N), zeros(N), 32, 0),
    _probe("load, off by one", strided_load, floats(N + 1), zeros(N), 1, 1),
    _probe("load, reversed", strided_load, floats(N), zeros(N), -1, N - 1),
    _probe("load, one address", strided_load, floats(N), zeros(N), 0, 5),
    _probe("load, last warp partial", strided_load, floats(1000), zeros(1000), 1, 0, grid=4),
    _probe("load, float64", strided_load, doubles(N), zeros(N, dtype="float64"), 1, 0),
    _probe("load, int8", strided_load, floats(N).astype("int8"), zeros(N, dtype="int8"), 1, 0),
    _probe("store, every 2nd", strided_store, floats(N), zeros(2 * N), 2, 0),
    _probe("store, every 32nd", strided_store, floats(N), zeros(32 * N), 32, 0),
    _probe("store, off by one", strided_store, floats(N), zeros(N + 1), 1, 1),
    _probe("gather in no order", gather, floats(N), scattered(N, N), zeros(N)),
    _probe("copy, 128 bits", wide_copy, floats(N), zeros(N), grid=4),
    _probe("one load for two", loaded_twice, floats(N), zeros(N)),
    _probe("stencil, 3 points", stencil_1d, floats(N), zeros(N)),
    _probe("stencil, 5 points", stencil_2d, floats(64, 64), zeros(64, 64), grid=(2, 8), block=(32, 8)),
    *(_probe(f"shared load, stride {s}", bank_load, zeros(N), s) for s in (0, 1, 2, 4, 8, 16, 32, 33)),
    *(_probe(f"shared store, stride {s}", bank_store, zeros(N), s) for s in (1, 2, 32)),
    *(
        _probe(f"shared load, float64, {name}", bank_load_64, doubles(1024), order, zeros(N, dtype="float64"))
        for name, order in WIDE.items()
    ),
    *(
        _probe(f"shared load, 128 bits, {name}", bank_load_128, floats(1024), order, zeros(4 * N))
        for name, order in WIDE.items()
    ),
    _probe("shared load, float64, 240 patterns", patterns_load_64, doubles(1024), lane_patterns(1024, distinct=False),
           zeros(240 * 32, dtype="float64"), grid=240, block=32),
    _probe("shared load, 128 bits, 240 patterns", patterns_load_128, floats(1024), lane_patterns(256, distinct=False),
           zeros(240 * 128), grid=240, block=32),
    _probe("shared store, 128 bits, 240 patterns", patterns_store_128, floats(128), lane_patterns(256, distinct=True),
           zeros(240 * 32), grid=240, block=32),
    _probe("shared load, uint8, reversed", bank_load_bytes, scattered(N, 256).astype("uint8"), zeros(N, dtype="uint8")),
    _probe("histogram, global, spread", histogram_global, scattered(N, BINS), zeros(BINS, dtype="int32")),
    _probe("histogram, global, one bin", histogram_global, zeros(N, dtype="int32"), zeros(BINS, dtype="int32")),
    _probe("histogram, shared, spread", histogram_shared, scattered(N, BINS), zeros(BINS, dtype="int32")),
    _probe("histogram, shared, one bin", histogram_shared, zeros(N, dtype="int32"), zeros(BINS, dtype="int32")),
    _probe("atomic, old value used", tickets, zeros(1, dtype="int32"), zeros(N, dtype="int32")),
    _probe("atomic, float sum", atomic_sum, floats(N), zeros(1)),
    _probe("atomic, float sum, shared", atomic_sum_shared, floats(N), zeros(GRID)),
    _probe("atomic, float maximum", atomic_max, floats(N), scattered(N, 64), zeros(64)),
    _probe("shuffle", shuffle_sum, floats(N), zeros(N // 32)),
    _probe("vote", vote_count, floats(N), zeros(N // 32, dtype="int32")),
    _probe("block count", block_count, floats(N), zeros(GRID, dtype="int32")),
    _probe("branch by lane, short", short_branch, floats(N), zeros(N)),
    _probe("branch by lane, long", long_branch, floats(N), zeros(N), 5, 1),
    _probe("branch by warp", long_branch, floats(N), zeros(N), 5, 32),
    _probe("loop, a count for each lane", own_trip_count, floats(N), np.arange(N, dtype=np.int32) % 7, zeros(N)),
    _probe("early return", early_return, floats(N), zeros(N - 100)),
    _probe("multiply-add", multiply_add, floats(N), floats(N), floats(N), zeros(N)),
    _probe("polynomial", polynomial, floats(N), zeros(N)),
    _probe("float64", axpy_64, 1.5, doubles(N), doubles(N)),
    _probe("float64 by accident", accidental_float64, floats(N), zeros(N)),
    _probe("division", divide, floats(N), floats(N) + np.float32(3), zeros(N)),
    _probe("square root", square_root, floats(N) + np.float32(2), zeros(N)),
    _probe("local array, in registers", local_in_registers, floats(4 * N), zeros(N)),
    _probe("local array, in memory", local_in_memory, floats(N + 64), scattered(N, 64), zeros(N)),
)  # fmt: skip

DIFFERS = OF_THE_FIRST | OF_RUNGS

CASES: tuple[Case, ...] = tuple(replace(case, differs=DIFFERS.get(case.name, {})) for case in (*_CASES, *RUNGS))

if unknown := DIFFERS.keys() - {case.name for case in CASES}:
    raise ValueError(f"there are reasons for cases that do not exist: {', '.join(sorted(unknown))}")
