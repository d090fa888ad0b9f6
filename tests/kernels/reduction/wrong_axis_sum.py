"""Wrong sums along axes: each with the reason for which the tests must reject it."""

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.reduction import axis_sum
from pmpp.runtime import device
from pmpp.runtime.vector import load128
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1 = np.float32(0), np.float32(1)


def by_thread(name, one=f1, guard=True, skip=0, exchanged=False, squared=False):
    """A thread a sum, with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, out, n, inner):
        i = cuda.grid(1)
        if not guard or i < out.size:
            a, b, total = i // inner, i % inner, f0
            for k in range(skip, n):
                value = x[(a * inner + b) * n + k] if exchanged else x[(a * n + k) * inner + b]
                total += one * value * value if squared else one * value
            out[i] = total

    def work(x, out, fold):
        kernel[blocks(out.size, BLOCK), BLOCK](x, out, fold.n, fold.inner)

    return whole(name, work)


def whole(name, work):
    """A function of the room that carries out its folds by ``work``."""

    def call(x, axis=None, keepdims=False):
        p = axis_sum.arguments(x, axis, keepdims)
        if not p.done:
            axis_sum.each_fold(p, work)
        return p.result

    call.__name__ = name
    return call


@cuda.jit
def atomic_kernel(x, out, n, inner):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, i // (n * inner) * inner + i % inner, x[i])


def atomics_from_nothing(x, out, fold):
    """Adds to what nobody has set to 0."""
    atomic_kernel[blocks(x.size, BLOCK), BLOCK](x, out, fold.n, fold.inner)


@cuda.jit
def plain_kernel(x, out, n, inner):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = f0
    cuda.syncthreads()
    if i < x.size:
        at = i // (n * inner) * inner + i % inner
        out[at] = out[at] + x[i]


def sums_without_atomics(x, out, fold):
    """Threads read, add and write, with others in between."""
    plain_kernel[blocks(x.size, 1024), 1024](x, out, fold.n, fold.inner)


@cuda.jit
def team_kernel(x, out, n, lanes, furthest):
    row, lane, total = cuda.grid(1) // lanes, cuda.grid(1) % lanes, f0
    if row < out.size:
        for i in range(lane, n, lanes):
            total += x[row * n + i]
    distance = furthest
    while distance:
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        distance //= 2
    if row < out.size and lane == 0:
        out[row] = total


def team(furthest):
    """Eight lanes a row, that add up their sums over these distances."""

    def work(x, out, fold):
        if fold.inner > 1:
            axis_sum.launch_way(x, out, fold, 0)
        else:
            team_kernel[blocks(8 * out.size, BLOCK), BLOCK](x, out, fold.n, 8, furthest)

    return work


@cuda.jit
def vectors_kernel(x, out, n):
    row, total = cuda.grid(1), f0
    if row < out.size:
        for i in range(0, n - 3, 4):
            a, b, c, d = load128(x, row * n + i)
            total += a + b + c + d
        for i in range(n - n % 4, n):
            total += x[row * n + i]
        out[row] = total


def vectors_anywhere(x, out, fold):
    """128-bit loads in rows of any length, that begin anywhere."""
    if fold.inner > 1:
        axis_sum.launch_way(x, out, fold, 0)
    else:
        vectors_kernel[blocks(out.size, BLOCK), BLOCK](x, out, fold.n)


@cuda.jit
def stream_kernel(x, out, n, inner, threads):
    sums = cuda.shared.array(BLOCK, np.float32)
    thread, a, total = cuda.threadIdx.x, cuda.blockIdx.x, f0
    if thread < threads:
        for i in range(thread, n * inner, threads):
            total += x[a * n * inner + i]
    sums[thread] = total
    # a barrier is missing here
    if thread < inner:
        total = f0
        for i in range(thread, threads, inner):
            total += sums[i]
        out[a * inner + thread] = total


def stream_with(barred):
    """A block reads (n, inner) as one row: without a barrier, or with a width that is no multiple of ``inner``."""

    def work(x, out, fold):
        if fold.inner > BLOCK:
            axis_sum.launch_way(x, out, fold, 0)
        else:
            threads = BLOCK if barred else BLOCK // fold.inner * fold.inner
            (barred_kernel if barred else stream_kernel)[fold.outer, BLOCK](x, out, fold.n, fold.inner, threads)

    return work


@cuda.jit
def barred_kernel(x, out, n, inner, threads):
    sums = cuda.shared.array(BLOCK, np.float32)
    thread, a, total = cuda.threadIdx.x, cuda.blockIdx.x, f0
    for i in range(thread, n * inner, threads):
        total += x[a * n * inner + i]
    sums[thread] = total
    cuda.syncthreads()
    if thread < inner:
        total = f0
        for i in range(thread, threads, inner):
            total += sums[i]
        out[a * inner + thread] = total


def mean_of_all(x, axis=None, keepdims=False):
    """Divides by the number of terms."""
    p = axis_sum.arguments(x, axis, keepdims)
    if p.done:
        return p.result
    result = device.to_host(axis_sum.vectorised(x, axis, keepdims))
    return device.to_device(np.float32(result / max(1, math.prod(x.shape) // max(result.size, 1))))


RUNGS = (
    WrongRung(by_thread("no_guard", guard=False), "out of bounds"),
    WrongRung(by_thread("first_term_left_out", skip=1), "wrong result"),
    WrongRung(by_thread("axes_exchanged", exchanged=True), "wrong result"),
    WrongRung(by_thread("squares", squared=True), "wrong result"),
    WrongRung(by_thread("in_float64", one=1.0), "float64"),
    WrongRung(whole("atomics_from_nothing", atomics_from_nothing), "uninitialised read"),
    WrongRung(whole("sums_without_atomics", sums_without_atomics), "race"),
    WrongRung(whole("teams_of_a_warp", team(16)), "wrong result"),
    WrongRung(whole("teams_of_half", team(2)), "wrong result"),
    WrongRung(whole("vectors_anywhere", vectors_anywhere), "misaligned"),
    WrongRung(whole("stream_without_a_barrier", stream_with(barred=False)), "race"),
    WrongRung(whole("stream_of_any_width", stream_with(barred=True)), "wrong result"),
    WrongRung(mean_of_all, "wrong result"),
)
