"""Wrong products of a matrix and a vector: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, warp_sum
from pmpp.kernels.matmul import matvec
from pmpp.runtime import device
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


def launched(name, work):
    """A function of the room that solves a problem by ``work``."""

    def call(a, x):
        p = matvec.arguments(a, x)
        if not p.done:
            work(p)
        return p.result

    call.__name__ = name
    return call


def by_thread(name, one=f1, guard=True, skip=0, square=False, of_x=False):
    """A thread a row, with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, x, out):
        row = cuda.grid(1)
        if not guard or row < out.size:
            total = f0
            for k in range(skip, x.size):
                total += one * a[row, k] * (a[row, k] if square else x[row % x.size if of_x else k])
            out[row] = total

    return launched(name, lambda p: kernel[blocks(p.result.size, BLOCK), BLOCK](p.a, p.x, p.result))


@cuda.jit
def atomic_kernel(a, x, out):
    i = cuda.grid(1)
    if i < out.size * x.size:
        row, k = i // x.size, i % x.size
        cuda.atomic.add(out, row, a[row, k] * x[k])


def atomics_into_nothing(p):
    """Adds to what nobody has set to 0."""
    atomic_kernel[blocks(p.a.size, BLOCK), BLOCK](p.a, p.x, p.result)


@cuda.jit
def plain_kernel(a, x, out):
    i = cuda.grid(1)
    row, k = i // x.size, i % x.size
    if k == 0 and row < out.size:
        out[row] = f0
    cuda.syncthreads()
    if row < out.size:
        out[row] += a[row, k] * x[k]


def sums_without_atomics(p):
    """Threads read, add and write, with others in between."""
    plain_kernel[blocks(p.a.size, 1024), 1024](p.a, p.x, p.result)


def by_warp(name, distances=(16, 8, 4, 2, 1), whole=False):
    """A warp a row: that adds up over these distances, or leaves out what is less than a whole step."""

    @cuda.jit
    def kernel(a, x, out):
        row, lane, total = cuda.grid(1) // 32, cuda.laneid, f0
        if row < out.size:
            k = lane
            while k < (x.size // 32 * 32 if whole else x.size):
                total += a[row, k] * x[k]
                k += 32
        for distance in distances:
            total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        if row < out.size and lane == 0:
            out[row] = total

    return launched(name, lambda p: kernel[blocks(32 * p.result.size, BLOCK), BLOCK](p.a, p.x, p.result))


@cuda.jit
def vectors_kernel(a, x, out):
    row, lane, n, total = cuda.grid(1) // 32, cuda.laneid, x.size, f0
    if row < out.size:
        for k in range(4 * lane, n // 4 * 4, 128):
            v, w = load128(a, row * n + k), load128(x, k)
            total += v[0] * w[0] + v[1] * w[1] + v[2] * w[2] + v[3] * w[3]
        if lane < n % 4:
            total += a[row, n - 1 - lane] * x[n - 1 - lane]
    total = warp_sum(total)
    if row < out.size and lane == 0:
        out[row] = total


def vectors_anywhere(p):
    """128-bit loads in rows of any length, which begin anywhere."""
    if p.by_rows:
        vectors_kernel[blocks(32 * p.result.size, BLOCK), BLOCK](p.a, p.x, p.result)
    else:
        matvec.split.launch(p)


@cuda.jit
def shared_kernel(a, x, out, barrier):
    partial = cuda.shared.array(2, np.float32)
    row, thread, total = cuda.blockIdx.x, cuda.threadIdx.x, f0
    for k in range(thread, x.size, BLOCK):
        total += a[row, k] * x[k]
    total = warp_sum(total)
    if thread % 32 == 0:
        partial[thread // 32] = total
    if barrier:
        cuda.syncthreads()
    if thread == 0:
        out[row] = partial[0] + partial[1]


def no_barrier(p):
    """A block a row, whose first thread does not wait for the second warp."""
    shared_kernel[p.result.size, BLOCK](p.a, p.x, p.result, False)


@cuda.jit
def zero_times_kernel(a, x, out):
    row, total = cuda.grid(1), f0
    if row < out.size:
        for k in range(0, x.size, 4):
            for j in range(4):
                at = min(k + j, x.size - 1)
                total += a[row, at] * (x[at] if k + j < x.size else f0)
        out[row] = total


def beyond_the_edge_times_zero(p):
    """Reads the last element of a row again, and multiplies by 0: right, unless that element is infinite."""
    zero_times_kernel[blocks(p.result.size, BLOCK), BLOCK](p.a, p.x, p.result)


@cuda.jit
def rows_as_columns_kernel(a, x, out):
    row, total = cuda.grid(1), f0
    if row < out.size:
        for k in range(x.size):
            total += a[row, k] * x[k]
        out[row] = total


def order_ignored(p):
    """Takes the memory of every matrix for rows."""
    from pmpp.runtime.views import span

    a = span(p.a).reshape(p.a.shape)
    rows_as_columns_kernel[blocks(p.result.size, BLOCK), BLOCK](a, p.x, p.result)


def by_last_block(name, fence=True, counted=True):
    """Two blocks for the same rows, each with every other column. The last to arrive adds up what both have kept."""

    @cuda.jit
    def kernel(a, x, out, kept, arrivals):
        before = cuda.shared.array(1, np.uint32)
        row, part, parts, total = cuda.grid(1), cuda.blockIdx.y, cuda.gridDim.y, f0
        if row < out.size:
            for k in range(part, x.size, parts):
                total += a[row, k] * x[k]
            kept[part * out.size + row] = total
        if fence:
            cuda.threadfence()
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            before[0] = part
            if counted:
                before[0] = cuda.atomic.inc(arrivals, cuda.blockIdx.x, np.uint32(parts - 1))
        cuda.syncthreads()
        cuda.threadfence()
        if before[0] == parts - 1 and row < out.size:
            total = f0
            for part in range(parts):
                total += kept[part * out.size + row]
            out[row] = total

    def work(p):
        kept, tiles = device.empty(2 * p.result.size, np.float32), blocks(p.result.size, BLOCK)
        kernel[(tiles, 2), BLOCK](p.a, p.x, p.result, kept, device.to_device(np.zeros(tiles, np.uint32)))

    return launched(name, work)


RUNGS = (
    WrongRung(by_thread("no_guard", guard=False), "out of bounds"),
    WrongRung(by_thread("first_column_left_out", skip=1), "wrong result"),
    WrongRung(by_thread("sums_of_squares", square=True), "wrong result"),
    WrongRung(by_thread("one_weight_a_row", of_x=True), "wrong result"),
    WrongRung(by_thread("in_float64", one=1.0), "float64"),
    WrongRung(launched("atomics_into_nothing", atomics_into_nothing), "uninitialised read"),
    WrongRung(launched("sums_without_atomics", sums_without_atomics), "race"),
    WrongRung(by_warp("half_a_warp", distances=(8, 4, 2, 1)), "wrong result"),
    WrongRung(by_warp("whole_steps_only", whole=True), "wrong result"),
    WrongRung(launched("vectors_anywhere", vectors_anywhere), "misaligned"),
    WrongRung(launched("no_barrier", no_barrier), "race"),
    WrongRung(launched("beyond_the_edge_times_zero", beyond_the_edge_times_zero), "wrong result"),
    WrongRung(by_last_block("nobody_counts", counted=False), "race"),
    WrongRung(by_last_block("no_fence", fence=False), "race"),
    WrongRung(launched("order_ignored", order_ignored), "wrong result"),
)
