"""Wrong versions of `many_bins` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.histogram import ladder as histogram
from pmpp.kernels.histogram import many_bins as room
from pmpp.kernels.histogram.ladder import bin_of, clear_shared
from pmpp.kernels.histogram.many_bins import add_in_part, flush_part
from tests.support.wrong import WrongRung

BLOCK = 512
f1 = np.float32(1)


def counter(kernel):
    """``kernel(x, weights, out, low, high, scale, bins, part, one)`` as a rung is called, in two parts."""

    def many_bins(x, bins=256, range=None, weights=None):
        p = room.arguments(x, bins, range, weights)
        if not p.done:
            histogram.clear(p)
            part, one = -(-bins // 2), f1 if p.weighted else 1
            grid = -(-p.x.size // (BLOCK * 16)), 2
            kernel[grid, BLOCK, 0, 4 * part](p.x, p.weights, p.result, *p.edges, part, one)
        return p.result

    many_bins.__name__ = getattr(kernel, "py_func", kernel).__name__
    return many_bins


def parts(name, *, from_the_start=False, cleared=True, waits=True, unguarded=False, share=False, weighted=True):
    """The kernel of `in_parts`, with one of its parts exchanged. Its elements are counted one after another."""

    @cuda.jit
    def kernel(x, weights, out, low, high, scale, bins, part, one):
        counts = cuda.shared.array(0, weights.dtype)
        begin = cuda.blockIdx.y * part
        size = min(part, bins - begin)
        if cleared:
            clear_shared(counts, size)
        first, step = cuda.grid(1), cuda.gridsize(1)
        if share:  # as if a part of the elements belonged to a part of the bins
            first, step = first * 2 + cuda.blockIdx.y, step * 2
        for i in range(first, x.size, step):
            at = bin_of(x[i], low, high, scale, bins) - begin
            value = weights[i] if weights.size and weighted else one
            if unguarded:
                if at >= 0:
                    cuda.atomic.add(counts, at, value)
            else:
                add_in_part(counts, at, size, value)
        if waits:
            cuda.syncthreads()
        for at in range(cuda.threadIdx.x, size, cuda.blockDim.x):
            if counts[at] != 0:
                cuda.atomic.add(out, at if from_the_start else begin + at, counts[at])

    kernel.py_func.__name__ = name
    return kernel


def runs(name, *, last=True, resets=True):
    """A thread adds up runs of one bin, with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, weights, out, low, high, scale, bins, part, one):
        sums = cuda.shared.array(0, weights.dtype)
        begin = cuda.blockIdx.y * part
        size = min(part, bins - begin)
        clear_shared(sums, size)
        current, run = -1, one - one
        for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
            at = bin_of(x[i], low, high, scale, bins) - begin
            if at != current:
                add_in_part(sums, current, size, run)
                current = at
                if resets:
                    run = one - one
            run += weights[i] if weights.size else one
        if last:
            add_in_part(sums, current, size, run)
        flush_part(sums, out, begin, size)

    kernel.py_func.__name__ = name
    return kernel


RUNGS = (
    WrongRung(counter(parts("no_barrier_before_flushing", waits=False)), "race"),
    WrongRung(counter(parts("not_cleared", cleared=False)), "uninitialised read"),
    WrongRung(counter(parts("bins_of_the_next_part_as_well", unguarded=True)), "out of bounds"),
    WrongRung(counter(parts("all_parts_flushed_to_the_first", from_the_start=True)), "wrong result"),
    WrongRung(counter(parts("each_part_reads_a_part", share=True)), "wrong result"),
    WrongRung(counter(parts("without_weights", weighted=False)), "wrong result"),
    WrongRung(counter(runs("without_the_last_run", last=False)), "wrong result"),
    WrongRung(counter(runs("runs_that_go_on", resets=False)), "wrong result"),
)
RIGHT = counter(parts("right")), counter(runs("right_in_runs"))
