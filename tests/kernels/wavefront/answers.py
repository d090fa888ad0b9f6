"""Answers to the exercises of chapter 47: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.wavefront.exercises import BUFFERS, WIDTH
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
TWO = 2

# -- diagonal


@right("wavefront/diagonal")
@cuda.jit
def diagonal_by_columns_guarded(a, b, before, last, now, number):
    i = cuda.grid(1)
    if max(0, number - b.size) <= i <= min(a.size, number):
        best = number
        if 0 < i < number:
            best = min(last[i - 1], last[i]) + 1
            if a[i - 1] == b[number - i - 1]:
                best = min(best, before[i - 1])
            else:
                best = min(best, before[i - 1] + 1)
        now[i] = best


@wrong("wavefront/diagonal", "output not written")
@cuda.jit
def diagonal_without_the_last_row(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i < a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i - 1] != b[j - 1]), min(last[i - 1], last[i]) + 1)


@wrong("wavefront/diagonal", "wrong result")
@cuda.jit
def diagonal_with_the_neighbour_below(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i - 1] != b[j - 1]), last[i] + 1)


@wrong("wavefront/diagonal", "guard off by one")
@cuda.jit
def diagonal_with_a_row_too_many(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= now.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i - 1] != b[j - 1]), min(last[i - 1], last[i]) + 1)


@wrong("wavefront/diagonal", "inputs exchanged")
@cuda.jit
def diagonal_with_the_diagonals_exchanged(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(last[i - 1] + (a[i - 1] != b[j - 1]), min(before[i - 1], before[i]) + 1)


@wrong("wavefront/diagonal", "only right for one block")
@cuda.jit
def diagonal_of_the_first_block(a, b, before, last, now, number):
    i = cuda.threadIdx.x
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i - 1] != b[j - 1]), min(last[i - 1], last[i]) + 1)


@wrong("wavefront/diagonal", "wrong result")
@cuda.jit
def diagonal_where_every_letter_differs(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1], last[i - 1], last[i]) + 1


@wrong("wavefront/diagonal", "guard off by one", "letter i - 1 belongs to row i")
@cuda.jit
def diagonal_with_the_letters_of_the_next_cell(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i] != b[j]), min(last[i - 1], last[i]) + 1)


@wrong("wavefront/diagonal", "guard off by one", "a.size . 1 rows")
@cuda.jit
def diagonal_with_the_neighbours_of_the_next_row(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size and 0 <= j <= b.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i - 1] != b[j - 1]), min(last[i], last[i + 1]) + 1)


@wrong("wavefront/diagonal", "written outside")
@cuda.jit
def diagonal_with_any_column(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size:
        if i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i - 1] != b[j - 1]), min(last[i - 1], last[i]) + 1)


@wrong("wavefront/diagonal", "written outside", "now stays as it was")
@cuda.jit
def diagonal_with_zero_outside(a, b, before, last, now, number):
    i = cuda.grid(1)
    j = number - i
    if i <= a.size:
        if j < 0 or j > b.size:
            now[i] = 0
        elif i == 0 or j == 0:
            now[i] = number
        else:
            now[i] = min(before[i - 1] + (a[i - 1] != b[j - 1]), min(last[i - 1], last[i]) + 1)


# -- subsequence


@right("wavefront/subsequence")
@cuda.jit
def subsequence_in_two_buffers(a, b, out):
    """A thread keeps its own cell and the one above that in registers, so two buffers are enough."""
    lengths = cuda.shared.array((TWO, WIDTH), np.int32)
    pair, i, m, n = cuda.blockIdx.x, cuda.threadIdx.x, a.shape[1], b.shape[1]
    left = corner = 0
    for step in range(m + n + 1):
        j = step - i
        if i <= m and 0 <= j <= n:
            length = 0
            if i > 0 and j > 0:
                up = lengths[(step + 1) % 2, i - 1]
                length = corner + 1 if a[pair, i - 1] == b[pair, j - 1] else max(up, left)
                corner = up
            left = length
            lengths[step % 2, i] = length
            if i == m and j == n:
                out[pair] = length
        cuda.syncthreads()


@right("wavefront/subsequence")
@cuda.jit
def subsequence_without_threads_that_have_no_row(a, b, out):
    """Threads that have returned before the first barrier are not waited for."""
    lengths = cuda.shared.array((BUFFERS, WIDTH), np.int32)
    pair, i, m, n = cuda.blockIdx.x, cuda.threadIdx.x, a.shape[1], b.shape[1]
    if i > m:
        return
    for step in range(m + n + 1):
        j = step - i
        if 0 <= j <= n:
            length = 0
            if i > 0 and j > 0:
                if a[pair, i - 1] == b[pair, j - 1]:
                    length = lengths[(step + 1) % BUFFERS, i - 1] + 1
                else:
                    length = max(lengths[(step + 2) % BUFFERS, i - 1], lengths[(step + 2) % BUFFERS, i])
            lengths[step % BUFFERS, i] = length
            if i == m and j == n:
                out[pair] = length
        cuda.syncthreads()


@wrong("wavefront/subsequence", "index out of bounds", "b is longer than a block")
@cuda.jit
def subsequence_with_the_whole_table(a, b, out):
    lengths = cuda.shared.array((WIDTH, WIDTH), np.int32)
    pair, i, m, n = cuda.blockIdx.x, cuda.threadIdx.x, a.shape[1], b.shape[1]
    for step in range(m + n + 1):
        j = step - i
        if i <= m and 0 <= j <= n:
            length = 0
            if i > 0 and j > 0:
                if a[pair, i - 1] == b[pair, j - 1]:
                    length = lengths[i - 1, j - 1] + 1
                else:
                    length = max(lengths[i - 1, j], lengths[i, j - 1])
            lengths[i, j] = length
            if i == m and j == n:
                out[pair] = length
        cuda.syncthreads()


def subsequence(barrier=True, buffers=BUFFERS, diverging=False, first=True, gap=False, block=True):
    """The answer with one thing left out or changed."""
    apart = 2 if first else 1

    @cuda.jit
    def kernel(a, b, out):
        lengths = cuda.shared.array((BUFFERS, WIDTH), np.int32)
        pair, i, m, n = cuda.blockIdx.x if block else 0, cuda.threadIdx.x, a.shape[1], b.shape[1]
        for step in range(m + n + 1):
            j = step - i
            if i <= m and 0 <= j <= n:
                length = 0
                if i > 0 and j > 0:
                    if a[pair, i - 1] == b[pair, j - 1]:
                        length = lengths[(step + buffers - apart) % buffers, i - 1] + 1
                    elif gap:
                        length = 0
                    else:
                        last = (step + buffers - 1) % buffers
                        length = max(lengths[last, i - 1], lengths[last, i])
                lengths[step % buffers, i] = length
                if i == m and j == n:
                    out[pair] = length
                if diverging:
                    cuda.syncthreads()
            if barrier:
                cuda.syncthreads()

    return kernel


def named(name, kernel):
    kernel.py_func.__name__ = name
    return kernel


wrong("wavefront/subsequence", "missing barrier")(named("subsequence_without_barrier", subsequence(barrier=False)))
wrong("wavefront/subsequence", "divergent barrier")(
    named("subsequence_with_a_barrier_for_cells", subsequence(barrier=False, diverging=True))
)
wrong("wavefront/subsequence", "wrong result")(named("subsequence_one_diagonal_late", subsequence(first=False)))
wrong("wavefront/subsequence", "wrong result")(named("subsequence_side_by_side", subsequence(gap=True)))
wrong("wavefront/subsequence", "missing barrier")(named("subsequence_in_too_few_buffers", subsequence(buffers=2)))


# -- stop


@right("wavefront/stop")
@cuda.jit
def stop_if_it_is_shorter(d, row, k):
    """Nobody writes d[i, k], since row[k] is 0: that is no short cut."""
    j, i = cuda.grid(2)
    if j < row.size:
        by_stop = d[i, k] + row[j]
        if by_stop < d[i, j]:  # noqa: PLR1730  min would write each time
            d[i, j] = by_stop


@wrong("wavefront/stop", "missing barrier", "what the others read")
@cuda.jit
def stop_written_everywhere(d, row, k):
    j, i = cuda.grid(2)
    if j < d.shape[1]:
        d[i, j] = min(d[i, j], d[i, k] + row[j])


@wrong("wavefront/stop", "missing guard")
@cuda.jit
def stop_unguarded(d, row, k):
    j, i = cuda.grid(2)
    if j != k:
        d[i, j] = min(d[i, j], d[i, k] + row[j])


@wrong("wavefront/stop", "missing atomic", "what the others read")
@cuda.jit
def stop_written_behind_a_barrier(d, row, k):
    j, i = cuda.grid(2)
    to_stop = d[i, k]
    cuda.syncthreads()
    if j < d.shape[1]:
        d[i, j] = min(d[i, j], to_stop + row[j])


@wrong("wavefront/stop", "race between blocks", "what the others read")
@cuda.jit
def stop_compared_before_a_barrier(d, row, k):
    j, i = cuda.grid(2)
    shorter = np.float32(0)
    if j < d.shape[1]:
        shorter = min(d[i, j], d[i, k] + row[j])
    cuda.syncthreads()
    if j < d.shape[1]:
        d[i, j] = shorter


@wrong("wavefront/stop", "no minimum", "keep the lesser")
@cuda.jit
def stop_always_taken(d, row, k):
    j, i = cuda.grid(2)
    if j < d.shape[1] and j != k:
        d[i, j] = d[i, k] + row[j]


@wrong("wavefront/stop", "argument ignored")
@cuda.jit
def stop_at_the_diagonal(d, row, k):
    j, i = cuda.grid(2)
    if j < d.shape[1] and j != 0:
        d[i, j] = min(d[i, j], d[i, 0] + row[j])


@wrong("wavefront/stop", "output not written")
@cuda.jit
def stop_with_axes_exchanged(d, row, k):
    i, j = cuda.grid(2)
    if i < d.shape[0] and j < d.shape[1] and j != k:
        d[i, j] = min(d[i, j], d[i, k] + row[j])
