"""Wrong versions of `repeat` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.filter import repeat as room
from tests.support.wrong import WrongRung


def named(kernel, threads_of=None, exclusive=False, tile=256):
    """``kernel(values, ends, out)`` behind a scan of the lengths, called as a rung is."""

    def repeated(values, lengths, total):
        p = room.arguments(values, lengths, total)
        if not p.done:
            ends = room.scan.vectorised(p.lengths, exclusive=exclusive)
            n = (p.values if threads_of == "values" else p.out).size
            kernel[blocks(n, tile), 256](p.values, ends, p.out)
        return p.result

    repeated.__name__ = kernel.py_func.__name__ + ("_of_begins" if exclusive else "")
    return repeated


@cuda.jit
def a_run_too_early(values, ends, out):
    """Searches the first end that is not before the element, and so takes the run that ends there."""
    i = cuda.grid(1)
    if i < out.size:
        low, high = 0, ends.size - 1
        while low < high:
            middle = (low + high) >> 1
            if ends[middle] >= i:
                high = middle
            else:
                low = middle + 1
        out[i] = values[low]


@cuda.jit
def no_guard(values, ends, out):
    i = np.int64(cuda.grid(1))
    out[i] = values[room.run_at(ends, i)]


@cuda.jit
def a_thread_a_run(values, ends, out):
    """Each run writes its elements: the result is not full if the runs end before, and cut off by nobody."""
    k = cuda.grid(1)
    if k < values.size:
        for i in range(ends[k - 1] if k > 0 else 0, ends[k]):
            out[i] = values[k]


@cuda.jit
def the_last_run_too_far(values, ends, out):
    """The search may end behind the last run, where the lengths add up to less."""
    i = cuda.grid(1)
    if i < out.size:
        low, high = 0, ends.size
        while low < high:
            middle = (low + high) >> 1
            if ends[middle] > i:
                high = middle
            else:
                low = middle + 1
        out[i] = values[low]


@cuda.jit
def empty_runs_leave_numbers(values, ends, out):
    """`by_tiles` in a small way: runs of length 0 write where the next one begins, too."""
    numbers = cuda.shared.array(256, np.int32)
    thread, first = cuda.threadIdx.x, np.int64(cuda.blockIdx.x) * 256
    numbers[thread] = 0
    cuda.syncthreads()
    for run in range(thread, ends.size, 256):
        begin = (ends[run - 1] if run else 0) - first
        if 0 <= begin < 256:
            numbers[begin] = run
    cuda.syncthreads()
    if first + thread < out.size:
        greatest = room.run_at(ends, first)
        for at in range(thread + 1):
            greatest = max(greatest, numbers[at])
        out[first + thread] = values[greatest]


RUNGS = (
    WrongRung(named(a_run_too_early), "wrong result"),
    WrongRung(named(no_guard), "out of bounds"),
    WrongRung(named(a_thread_a_run, "values"), "out of bounds"),
    WrongRung(named(the_last_run_too_far), "out of bounds"),
    WrongRung(named(empty_runs_leave_numbers), "race"),
    WrongRung(named(room.by_search_kernel, exclusive=True), "wrong result"),
)
RIGHT = (named(room.by_search_kernel),)
