"""Answers to the exercises of chapter 36: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.matmul.fitted_exercises import COLUMNS, ROWS, SIDE
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
PARTIAL, FOUR = "fitted/partial_products", "fitted/four_rows"
f0 = np.float32(0)


# -- partial_products


@right(PARTIAL)
@cuda.jit
def partial_in_tiles(a, b, partials):
    a_tile = cuda.shared.array((SIDE, SIDE), np.float32)
    b_tile = cuda.shared.array((SIDE, SIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.blockIdx.x * SIDE + x, cuda.blockIdx.y * SIDE + y
    length = -(-a.shape[1] // partials.shape[0])
    k0 = cuda.blockIdx.z * length
    end = min(k0 + length, a.shape[1])
    total = f0
    while k0 < end:
        a_tile[y, x] = a[row, k0 + x] if row < a.shape[0] and k0 + x < end else f0
        b_tile[y, x] = b[k0 + y, column] if k0 + y < end and column < b.shape[1] else f0
        cuda.syncthreads()
        for k in range(SIDE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
        k0 += SIDE
    if row < a.shape[0] and column < b.shape[1]:
        partials[cuda.blockIdx.z, row, column] = total


@right(PARTIAL)
@cuda.jit
def partial_with_a_test_in_the_loop(a, b, partials):
    column, row, part = cuda.grid(3)
    if row >= a.shape[0] or column >= b.shape[1]:
        return
    length, total = (a.shape[1] - 1) // partials.shape[0] + 1, f0
    for step in range(length):
        k = part * length + step
        if k < a.shape[1]:
            total += a[row, k] * b[k, column]
    partials[part, row, column] = total


def partial_with(*, guard=True, down=False, last=True, apart=True, every=False, zero=f0, name):
    """The answer with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, b, partials):
        column, row = cuda.grid(2)
        part, parts = cuda.blockIdx.z, partials.shape[0]
        length = a.shape[1] // parts if down else (a.shape[1] + parts - 1) // parts
        begin, end = part * length, (part + 1) * length
        if last:
            end = min(end, a.shape[1])
        if every:
            begin, end = 0, a.shape[1]
        if not guard or (row < a.shape[0] and column < b.shape[1]):
            total = zero
            for k in range(begin, end):
                total += a[row, k] * b[k, column]
            partials[part if apart else 0, row, column] = total

    kernel.py_func.__name__ = name
    return kernel


wrong(PARTIAL, "rest of K")(partial_with(down=True, name="partial_of_a_rounded_length"))
wrong(PARTIAL, "missing guard")(partial_with(last=False, name="partial_beyond_the_end"))
wrong(PARTIAL, "missing guard")(partial_with(guard=False, name="partial_without_guard"))
wrong(PARTIAL, "whole sums")(partial_with(every=True, name="partial_over_all_of_k"))
wrong(PARTIAL, "accidental float64")(partial_with(zero=0.0, name="partial_in_float64"))
wrong(PARTIAL, "race between blocks")(partial_with(apart=False, name="partial_all_in_one_place"))


@wrong(PARTIAL, "interleaved")
@cuda.jit
def partial_of_every_few(a, b, partials):
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < b.shape[1]:
        total = f0
        for k in range(cuda.blockIdx.z, a.shape[1], partials.shape[0]):
            total += a[row, k] * b[k, column]
        partials[cuda.blockIdx.z, row, column] = total


def partial_of_runs(run, name):
    """The answer with part p from ``run(p, parts, k)``, a device function that gives where it begins and ends."""

    @cuda.jit
    def kernel(a, b, partials):
        column, row = cuda.grid(2)
        if row < a.shape[0] and column < b.shape[1]:
            begin, end = run(cuda.blockIdx.z, partials.shape[0], a.shape[1])
            total = f0
            for k in range(begin, end):
                total += a[row, k] * b[k, column]
            partials[cuda.blockIdx.z, row, column] = total

    kernel.py_func.__name__ = name
    return kernel


@cuda.jit(device=True)
def rounded_down_but_the_last(part, parts, k):
    return part * (k // parts), (part + 1) * (k // parts) if part < parts - 1 else k


@cuda.jit(device=True)
def evenly_spread(part, parts, k):
    return part * k // parts, (part + 1) * k // parts


@cuda.jit(device=True)
def from_the_beginning(part, parts, k):
    return 0, min((part + 1) * ((k + parts - 1) // parts), k)


@cuda.jit(device=True)
def sixteen_long(part, parts, k):
    return part * SIDE, min((part + 1) * SIDE, k)


wrong(PARTIAL, "rest in the last part")(partial_of_runs(rounded_down_but_the_last, "partial_with_the_rest_last"))
wrong(PARTIAL, "spread evenly")(partial_of_runs(evenly_spread, "partial_spread_evenly"))
wrong(PARTIAL, "running sums")(partial_of_runs(from_the_beginning, "partial_from_the_beginning"))
wrong(PARTIAL, "wrong result")(partial_of_runs(sixteen_long, "partial_of_sixteen"))


@right(PARTIAL)
@cuda.jit
def partial_with_two_sums_backwards(a, b, partials):
    column, row, part = cuda.grid(3)
    if row < a.shape[0] and column < b.shape[1]:
        length = a.shape[1] // partials.shape[0] + (a.shape[1] % partials.shape[0] > 0)
        even, odd = f0, f0
        k = min((part + 1) * length, a.shape[1]) - 1
        while k > part * length:
            even += a[row, k] * b[k, column]
            odd += a[row, k - 1] * b[k - 1, column]
            k -= 2
        if k == part * length:
            even += a[row, k] * b[k, column]
        partials[part, row, column] = even + odd


# -- four_rows


@right(FOUR)
@cuda.jit
def rows_in_a_local_array(a, b, c):
    totals, column = cuda.local.array(ROWS, np.float32), cuda.grid(1)
    if column >= b.shape[1]:
        return
    for row in range(ROWS):
        totals[row] = 0
    for k in range(b.shape[0]):
        value = b[k, column]
        for row in range(ROWS):
            totals[row] += a[row, k] * value
    for row in range(ROWS):
        c[row, column] = totals[row]


@right(FOUR)
@cuda.jit
def rows_with_a_in_shared_memory(a, b, c):
    part = cuda.shared.array((ROWS, COLUMNS), np.float32)
    totals = cuda.local.array(ROWS, np.float32)
    column, x = cuda.grid(1), cuda.threadIdx.x
    for row in range(ROWS):
        totals[row] = 0
    for k0 in range(0, b.shape[0], COLUMNS):
        for row in range(ROWS):
            part[row, x] = a[row, k0 + x] if k0 + x < a.shape[1] else f0
        cuda.syncthreads()
        if column < b.shape[1]:
            for k in range(min(COLUMNS, b.shape[0] - k0)):
                value = b[k0 + k, column]
                for row in range(ROWS):
                    totals[row] += part[row, k] * value
        cuda.syncthreads()
    if column < b.shape[1]:
        for row in range(ROWS):
            c[row, column] = totals[row]


def rows_with(*, guard=True, own=True, add=True, zero=f0, name):
    """The answer with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, b, c):
        column = cuda.grid(1)
        t0, t1, t2, t3 = zero, zero, zero, zero
        if not guard or column < b.shape[1]:
            for k in range(b.shape[0]):
                value = b[k, column]
                if not add:
                    t0, t1, t2, t3 = zero, zero, zero, zero
                t0 += a[0, k] * value
                t1 += a[1 if own else 0, k] * value
                t2 += a[2 if own else 0, k] * value
                t3 += a[3 if own else 0, k] * value
            c[0, column] = t0
            c[1, column] = t1
            c[2, column] = t2
            c[3, column] = t3

    kernel.py_func.__name__ = name
    return kernel


wrong(FOUR, "missing guard")(rows_with(guard=False, name="rows_without_guard"))
wrong(FOUR, "one row")(rows_with(own=False, name="rows_of_the_first"))
wrong(FOUR, "last term")(rows_with(add=False, name="rows_of_the_last_term"))
wrong(FOUR, "accidental float64")(rows_with(zero=0.0, name="rows_in_float64"))


@wrong(FOUR, "too much traffic")
@cuda.jit
def rows_one_after_the_other(a, b, c):
    column = cuda.grid(1)
    if column < b.shape[1]:
        for row in range(ROWS):
            total = f0
            for k in range(b.shape[0]):
                total += a[row, k] * b[k, column]
            c[row, column] = total


@wrong(FOUR, "uninitialised memory")
@cuda.jit
def rows_added_up_in_c(a, b, c):
    column = cuda.grid(1)
    if column < b.shape[1]:
        for k in range(b.shape[0]):
            for row in range(ROWS):
                c[row, column] += a[row, k] * b[k, column]
