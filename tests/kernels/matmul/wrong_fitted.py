"""Wrong products that share K among blocks, or keep two tiles in shared memory: the mistakes of this chapter."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from tests.support.wrong import WrongRung

SIDE, PARTS = 8, 3  # of a block and its tile; blocks that share K
PLACES = 2 * SIDE  # two tiles, one below the other
f0 = np.float32(0)


@cuda.jit(device=True)
def inside(x, row, column, rows, columns):
    return x[row, column] if row < rows and column < columns else f0


def parts_with(*, barrier=True, places=2, guard=True):
    """A kernel that leaves parts in ``partials``, each over ``length`` of K; right unless something is exchanged."""

    @cuda.jit
    def kernel(a, b, partials, length):
        a_tile = cuda.shared.array((PLACES, SIDE), np.float32)
        b_tile = cuda.shared.array((PLACES, SIDE), np.float32)
        x, y, part = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockIdx.z
        row, column = cuda.blockIdx.y * SIDE + y, cuda.blockIdx.x * SIDE + x
        k0, now, total = part * length, 0, f0
        end = min(k0 + length, a.shape[1])
        while k0 < end:
            limit = end if guard else a.shape[1]
            a_tile[now * SIDE + y, x] = inside(a, row, k0 + x, a.shape[0], limit)
            b_tile[now * SIDE + y, x] = inside(b, k0 + y, column, limit, b.shape[1])
            if barrier:
                cuda.syncthreads()
            for k in range(SIDE):
                total += a_tile[now * SIDE + y, k] * b_tile[now * SIDE + k, x]
            now = (now + 1) % places
            k0 += SIDE
        if row < a.shape[0] and column < b.shape[1]:
            partials[part, row, column] = total

    return kernel


@cuda.jit
def sum_parts(partials, c, parts):
    at = cuda.grid(1)
    if at < c.size:
        row, column, total = at // c.shape[1], at % c.shape[1], f0
        for part in range(parts):
            total += partials[part, row, column]
        c[row, column] = total


@cuda.jit
def add_parts_as_they_come(a, b, c, length):
    column, row = cuda.grid(2)
    begin = cuda.blockIdx.z * length
    if row < c.shape[0] and column < c.shape[1]:
        total = f0
        for k in range(begin, min(begin + length, a.shape[1])):
            total += a[row, k] * b[k, column]
        cuda.atomic.add(c, (row, column), total)


@cuda.jit
def reads_the_next_row(a, b, c, length):
    """Four neighbours in a row of A at a time, and no thought of where the row ends."""
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total, width = f0, a.shape[1]
        for k0 in range(0, width, 4):
            for e in range(4):
                at = min(row * width + k0 + e, a.size - 1)
                total += a[at // width, at % width] * b[min(k0 + e, width - 1), column]
        c[row, column] = total


def rounded_up(k):
    return blocks(blocks(k, PARTS), SIDE) * SIDE


def product(name, kernel=None, length_of=rounded_up, places=PARTS, summed=PARTS):
    """A function of (a, b): parts of K, then their sum."""
    kernel = parts_with() if kernel is None else kernel

    def multiply(a, b):
        a, b = (device.to_device(x) if isinstance(x, np.ndarray) else x for x in (a, b))
        m, n = a.shape[0], b.shape[1]
        c, partials = device.empty((m, n), np.float32), device.empty((places, m, n), np.float32)
        if c.size:
            kernel[(blocks(n, SIDE), blocks(m, SIDE), PARTS), (SIDE, SIDE)](a, b, partials, length_of(a.shape[1]))
            sum_parts[blocks(m * n, 64), 64](partials, c, summed)
        return c

    multiply.__name__ = name
    return multiply


def directly(kernel, parts=PARTS):
    """A function of (a, b) whose kernel writes into c, which is full of zeros."""

    def multiply(a, b):
        a, b = (device.to_device(x) if isinstance(x, np.ndarray) else x for x in (a, b))
        m, n = a.shape[0], b.shape[1]
        c = device.to_device(np.zeros((m, n), np.float32))
        if c.size:
            grid = blocks(n, SIDE), blocks(m, SIDE), parts
            kernel[grid, (SIDE, SIDE)](a, b, c, rounded_up(a.shape[1]) if parts > 1 else a.shape[1])
        return c

    multiply.__name__ = kernel.py_func.__name__
    return multiply


RUNGS = (
    WrongRung(product("forgets_what_k_leaves", length_of=lambda k: k // PARTS), "wrong result"),
    WrongRung(product("forgets_the_last_part", summed=PARTS - 1), "wrong result"),
    WrongRung(product("reads_into_the_next_part", parts_with(guard=False), lambda k: blocks(k, PARTS)), "wrong result"),
    WrongRung(product("has_no_place_for_the_last_part", places=PARTS - 1), "out of bounds"),
    WrongRung(product("sums_a_part_that_nobody_wrote", places=PARTS + 1, summed=PARTS + 1), "uninitialised read"),
    WrongRung(product("one_place_and_one_barrier", parts_with(places=1)), "race"),
    WrongRung(product("two_places_and_no_barrier", parts_with(barrier=False)), "race"),
    WrongRung(directly(add_parts_as_they_come), "atomics"),
    WrongRung(directly(reads_the_next_row, parts=1), "wrong result"),
)
RIGHT = product("right")
