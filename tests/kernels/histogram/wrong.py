"""Wrong versions of `histogram` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.histogram import ladder as room
from pmpp.kernels.histogram.ladder import bin_of, clear_shared, count, flush
from tests.support.wrong import WrongRung

BLOCK = 128


def counter(kernel, name="", each=1):
    """``kernel(x, weights, out, low, high, scale, bins)`` as a rung is called, with a thread for ``each`` elements.

    What does not fit into shared memory is left to the first rung.
    """

    def histogram(x, bins=256, range=None, weights=None):
        p = room.arguments(x, bins, range, weights)
        if not p.done:
            room.clear(p)
            if bins > room.MOST_PRIVATE:
                room.global_atomics.launch(p)
            else:
                grid = -(-p.x.size // (BLOCK * each))
                kernel[grid, BLOCK, 0, max(4 * bins, 256 * BLOCK)](p.x, p.weights, p.result, *p.edges)
        return p.result

    histogram.__name__ = name or getattr(kernel, "py_func", kernel).__name__
    return histogram


@cuda.jit
def right(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)
    clear_shared(counts, bins)
    i = cuda.grid(1)
    if i < x.size:
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
    flush(counts, out)


@cuda.jit
def no_atomic(x, weights, out, low, high, scale, bins):
    i = cuda.grid(1)
    if i < x.size:
        at = bin_of(x[i], low, high, scale, bins)
        if at >= 0:
            out[at] += weights[i] if weights.size else 1


@cuda.jit
def no_guard(x, weights, out, low, high, scale, bins):
    i = cuda.grid(1)
    count(out, bin_of(x[i], low, high, scale, bins), weights, i)


@cuda.jit
def not_cleared(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)
    i = cuda.grid(1)
    if i < x.size:
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
    flush(counts, out)


@cuda.jit
def no_barrier_after_clearing(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)
    for at in range(cuda.threadIdx.x, bins, BLOCK):
        counts[at] = 0
    i = cuda.grid(1)
    if i < x.size:
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
    flush(counts, out)


@cuda.jit
def no_barrier_before_flushing(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)
    clear_shared(counts, bins)
    i = cuda.grid(1)
    if i < x.size:
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
    for at in range(cuda.threadIdx.x, bins, BLOCK):
        if counts[at] != 0:
            cuda.atomic.add(out, at, counts[at])


@cuda.jit
def a_barrier_for_some(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)
    clear_shared(counts, bins)
    i = cuda.grid(1)
    if i < x.size:
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
        flush(counts, out)


@cuda.jit
def flushed_without_atomics(x, weights, out, low, high, scale, bins):
    counts = cuda.shared.array(0, weights.dtype)
    clear_shared(counts, bins)
    i = cuda.grid(1)
    if i < x.size:
        count(counts, bin_of(x[i], low, high, scale, bins), weights, i)
    cuda.syncthreads()
    for at in range(cuda.threadIdx.x, bins, BLOCK):
        out[at] += counts[at]


@cuda.jit
def one_bin_a_thread(x, weights, out, low, high, scale, bins):
    """Right for no more bins than the block has threads."""
    counts = cuda.shared.array(0, weights.dtype)
    thread, i = cuda.threadIdx.x, cuda.grid(1)
    if thread < bins:
        counts[thread] = 0
    cuda.syncthreads()
    if i < x.size:
        at = bin_of(x[i], low, high, scale, bins)
        if at < BLOCK:
            count(counts, at, weights, i)
    cuda.syncthreads()
    if thread < bins:
        cuda.atomic.add(out, thread, counts[thread])


@cuda.jit
def outside_into_the_last(x, weights, out, low, high, scale, bins):
    i = cuda.grid(1)
    if i < x.size and x[i] >= low:
        count(out, min(int((min(x[i], high) - low) * scale), bins - 1), weights, i)


@cuda.jit
def without_the_upper_edge(x, weights, out, low, high, scale, bins):
    i = cuda.grid(1)
    if i < x.size and low <= x[i] and (x[i] - low) * scale < bins:
        count(out, int((x[i] - low) * scale), weights, i)


@cuda.jit
def upper_edge_in_a_bin_of_its_own(x, weights, out, low, high, scale, bins):
    i = cuda.grid(1)
    if i < x.size and low <= x[i] <= high:
        count(out, int((x[i] - low) * scale), weights, i)


@cuda.jit
def without_weights(x, weights, out, low, high, scale, bins):
    i = cuda.grid(1)
    if i < x.size:
        at = bin_of(x[i], low, high, scale, bins)
        if at >= 0:
            cuda.atomic.add(out, at, 1)


@cuda.jit
def weights_of_zero_bins(x, weights, out, low, high, scale, bins):
    """What is in no bin goes to bin 0."""
    i = cuda.grid(1)
    if i < x.size:
        count(out, max(bin_of(x[i], low, high, scale, bins), 0), weights, i)


@cuda.jit
def without_the_last_run(x, weights, out, low, high, scale, bins):
    current, run = -1, weights[0] - weights[0] if weights.size else 0
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        at = bin_of(x[i], low, high, scale, bins)
        if at != current:
            if current >= 0:
                cuda.atomic.add(out, current, run)
            current, run = at, run - run
        run += weights[i] if weights.size else 1


@cuda.jit
def counters_that_overflow(x, weights, out, low, high, scale, bins):
    """A byte for each bin, for as many elements as come."""
    i, size = cuda.threadIdx.x, cuda.blockDim.x
    if weights.size or bins > 256:
        for k in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            count(out, bin_of(x[k], low, high, scale, bins), weights, k)
    else:
        mine = cuda.shared.array(0, np.uint8)
        for at in range(bins):
            mine[at * size + i] = 0
        for k in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            at = bin_of(x[k], low, high, scale, bins)
            if at >= 0:
                mine[at * size + i] += 1
        for at in range(bins):
            if mine[at * size + i] > 0:
                cuda.atomic.add(out, at, mine[at * size + i])


def in_32_bits(x, bins=256, range=None, weights=None):
    p = room.arguments(x, bins, range, weights)
    if weights is not None:
        return room.global_atomics(x, bins, range, weights)
    p.result = room.device.empty(bins, np.int32)
    room.clear(p)
    if x.size:
        room.global_atomics.launch(p)
    return p.result


def not_set_to_zero(x, bins=256, range=None, weights=None):
    p = room.arguments(x, bins, range, weights)
    if not p.done:
        room.global_atomics.launch(p)
    return p.result


RUNGS = (
    WrongRung(counter(no_atomic), "race"),
    WrongRung(counter(no_barrier_after_clearing), "race"),
    WrongRung(counter(no_barrier_before_flushing), "race"),
    WrongRung(counter(flushed_without_atomics), "race"),
    WrongRung(counter(a_barrier_for_some), "divergent barrier"),
    WrongRung(counter(no_guard), "out of bounds"),
    WrongRung(counter(upper_edge_in_a_bin_of_its_own), "out of bounds"),
    WrongRung(counter(not_cleared), "uninitialised read"),
    WrongRung(not_set_to_zero, "uninitialised read"),
    WrongRung(counter(one_bin_a_thread), "wrong result"),
    WrongRung(counter(outside_into_the_last), "wrong result"),
    WrongRung(counter(without_the_upper_edge), "wrong result"),
    WrongRung(counter(without_weights), "wrong result"),
    WrongRung(counter(weights_of_zero_bins), "wrong result"),
    WrongRung(counter(without_the_last_run), "wrong result"),
    WrongRung(counter(counters_that_overflow, each=600), "wrong result"),
    WrongRung(in_32_bits, "wrong result"),
)
RIGHT = counter(right)
