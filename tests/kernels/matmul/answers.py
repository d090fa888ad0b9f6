"""More answers to the exercises of chapter 12: right in another way, or wrong for a reason easily mistaken."""

import math

import numpy as np

from pmpp import cuda
from pmpp.runtime.vector import load128, store128
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
ANY_SIZE, TRANSPOSED = "matmul/any_size", "matmul/transposed"
TWO_COLUMNS, GEMV = "matmul/two_columns", "matmul/gemv"
SHORTEST, OUTER = "matmul/shortest_paths", "matmul/outer_product"
T, WARP, PADDED = 16, 32, 33
f0 = np.float32(0)


@cuda.jit(device=True)
def element(x, row, column):
    return x[row, column] if row < x.shape[0] and column < x.shape[1] else np.float32(0)


# -- any_size


@right(ANY_SIZE)
@cuda.jit
def any_size_as_far_as_it_goes(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = 0
        b_tile[y, x] = 0
        if row <= a.shape[0] - 1 and k0 + x <= a.shape[1] - 1:
            a_tile[y, x] = a[row, k0 + x]
        if k0 + y <= b.shape[0] - 1 and column <= b.shape[1] - 1:
            b_tile[y, x] = b[k0 + y, column]
        cuda.syncthreads()
        for k in range(min(T, a.shape[1] - k0)):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def any_size(rounded_up=False, columns_of_b=False, fresh=False, name="any_size"):
    """The answer to any_size with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, b, c):
        a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
        total, steps = f0, (a.shape[1] + 15) // T
        for step in range(steps if not columns_of_b else (b.shape[1] + 15) // T):
            k0 = step if rounded_up else step * T
            a_tile[y, x], b_tile[y, x] = element(a, row, k0 + x), element(b, k0 + y, column)
            cuda.syncthreads()
            if fresh:
                total = f0
            for k in range(T):
                total += a_tile[y, k] * b_tile[k, x]
            cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total

    kernel.py_func.__name__ = name
    return kernel


# The 15 in the code rounds up: it is no size.
wrong(ANY_SIZE, "wrong result", "16 x 21")(any_size(rounded_up=True, name="any_size_from_every_column"))
wrong(ANY_SIZE, "wrong result", "16 x 21")(any_size(columns_of_b=True, name="any_size_steps_over_columns"))
wrong(ANY_SIZE, "wrong result", "16 x 21")(any_size(fresh=True, name="any_size_of_the_last_tile"))


@wrong(ANY_SIZE, "divergent barrier", "returns on line .* others of its block wait")
@cuda.jit
def any_size_leaves_in_the_loop(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], T):
        if row >= a.shape[0]:
            return
        a_tile[y, x], b_tile[y, x] = element(a, row, k0 + x), element(b, k0 + y, column)
        cuda.syncthreads()
        for k in range(T):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if column < c.shape[1]:
        c[row, column] = total


@wrong(ANY_SIZE, "too much traffic", "for c alone it is 23,040 where 0 will do")
@cuda.jit
def any_size_adds_in_c(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    inside = row < c.shape[0] and column < c.shape[1]
    if inside:
        c[row, column] = 0
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x], b_tile[y, x] = element(a, row, k0 + x), element(b, k0 + y, column)
        cuda.syncthreads()
        for k in range(T):
            if inside:
                c[row, column] += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()


# -- transposed


def transposed(pitch=WARP, swizzle=False, name="transposed"):
    """The answer to transposed with b's tile laid out otherwise."""

    @cuda.jit
    def kernel(a, b, c):
        a_tile, b_tile = cuda.shared.array((WARP, WARP), np.float32), cuda.shared.array((WARP, pitch), np.float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * WARP + y, cuda.blockIdx.x * WARP + x
        total = f0
        for k0 in range(0, a.shape[1], WARP):
            a_tile[y, x] = element(a, row, k0 + x)
            b_tile[y, x ^ y if swizzle else x] = element(b, cuda.blockIdx.x * WARP + y, k0 + x)
            cuda.syncthreads()
            for k in range(WARP):
                total += a_tile[y, k] * b_tile[x, k ^ x if swizzle else k]
            cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total

    kernel.py_func.__name__ = name
    return kernel


right(TRANSPOSED)(transposed(swizzle=True, name="transposed_and_swizzled"))
# Half of the loads on the line have no conflict, so their average is small.
wrong(TRANSPOSED, "bank conflicts", "1.5 wavefronts a request")(transposed(pitch=34, name="transposed_padded_by_two"))


@right(TRANSPOSED)
@cuda.jit
def transposed_of_tiles_filled_with_zero(a, b, c):  # it stores twice, and without a conflict
    a_tile, b_tile = cuda.shared.array((WARP, WARP), np.float32), cuda.shared.array((WARP, PADDED), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * WARP + y, cuda.blockIdx.x * WARP + x
    b_row = cuda.blockIdx.x * WARP + y
    total = np.float32(0)
    for k0 in range(0, a.shape[1], WARP):
        a_tile[y, x], b_tile[x, y] = np.float32(0), np.float32(0)
        if k0 + x < a.shape[1]:
            if row < a.shape[0]:
                a_tile[y, x] = a[row, k0 + x]
            if b_row < b.shape[0]:
                b_tile[x, y] = b[b_row, k0 + x]
        cuda.syncthreads()
        for k in range(WARP):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


@wrong(TRANSPOSED, "uncoalesced", "32 sectors a request to b where 4 do")
@cuda.jit
def transposed_without_tiles(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[column, k]
        c[row, column] = total


# -- two_columns


@right(TWO_COLUMNS)
@cuda.jit
def two_columns_in_a_local_array(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((2, T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, left = cuda.blockIdx.y * T + y, cuda.blockIdx.x * 2 * T + x
    totals = cuda.local.array(2, np.float32)
    totals[0], totals[1] = 0, 0
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = element(a, row, k0 + x)
        for j in range(2):
            b_tile[j, y, x] = element(b, k0 + y, left + j * T)
        cuda.syncthreads()
        for k in range(T):
            value = a_tile[y, k]
            for j in range(2):
                totals[j] += value * b_tile[j, k, x]
        cuda.syncthreads()
    for j in range(2):
        if row < c.shape[0] and left + j * T < c.shape[1]:
            c[row, left + j * T] = totals[j]


@wrong(TWO_COLUMNS, "too much traffic", "warps load from shared memory 18,432 times where 13,824")
@cuda.jit
def two_columns_one_after_the_other(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * T + y
    for j in range(2):
        column = cuda.blockIdx.x * 2 * T + j * T + x
        total = np.float32(0)
        for k0 in range(0, a.shape[1], T):
            a_tile[y, x], b_tile[y, x] = element(a, row, k0 + x), element(b, k0 + y, column)
            cuda.syncthreads()
            for k in range(T):
                total += a_tile[y, k] * b_tile[k, x]
            cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total


# -- gemv


def gemv(again=False, first_rows=False, shuffled=False, name="gemv"):
    """The answer to gemv with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, x, y):
        tile, piece = cuda.shared.array((WARP, PADDED), np.float32), cuda.shared.array(WARP, np.float32)
        lane, top = cuda.threadIdx.x, cuda.blockIdx.x * WARP
        total = f0
        for k0 in range(0, a.shape[1], WARP):
            for i in range(WARP):
                tile[i, lane] = element(a, i if first_rows else top + i, k0 + lane)
            value = x[k0 + lane] if k0 + lane < x.size else f0
            piece[lane] = value
            cuda.syncwarp()
            for k in range(WARP):
                if again:
                    total += tile[lane, k] * (x[k0 + k] if k0 + k < x.size else f0)
                elif shuffled:
                    total += tile[lane, k] * cuda.shfl_sync(0xFFFFFFFF, value, k)
                else:
                    total += tile[lane, k] * piece[k]
            cuda.syncwarp()
        if top + lane < y.size:
            y[top + lane] = total

    kernel.py_func.__name__ = name
    return kernel


right(GEMV)(gemv(name="gemv_with_the_barrier_of_a_warp"))
right(GEMV)(gemv(shuffled=True, name="gemv_with_x_in_registers"))
wrong(GEMV, "too much traffic", "for x alone it is 432 where 48 will do")(gemv(again=True, name="gemv_loads_x_again"))
wrong(GEMV, "only right for one block")(gemv(first_rows=True, name="gemv_of_the_first_rows"))


@wrong(GEMV, "too much traffic", "for x alone it is 1,536 where 48 will do")
@cuda.jit
def gemv_a_row_a_warp(a, x, y):
    lane, first = cuda.threadIdx.x, cuda.blockIdx.x * WARP
    for row in range(first, min(first + WARP, y.size)):
        total = np.float32(0)
        for k in range(lane, x.size, WARP):
            total += a[row, k] * x[k]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_down_sync(0xFFFFFFFF, total, distance)
        if lane == 0:
            y[row] = total


@wrong(GEMV, "uncoalesced", "32 sectors a request to a where 4 do")
@cuda.jit
def gemv_each_thread_its_row(a, x, y):
    i = cuda.grid(1)
    if i < y.size:
        total = np.float32(0)
        for k in range(x.size):
            total += a[i, k] * x[k]
        y[i] = total


@wrong(ANY_SIZE, "hard-coded size", r"right with all inputs .* Line \d+ says 50")
@cuda.jit
def any_size_up_to_64(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = np.float32(0)
    for k0 in range(0, 50, T):
        a_tile[y, x] = element(a, row, k0 + x)
        b_tile[y, x] = element(b, k0 + y, column)
        cuda.syncthreads()
        for k in range(T):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


# -- shortest_paths, outer_product


@wrong(SHORTEST, "accidental float64", r"best is float64 because of math.inf on line \d+")
@cuda.jit
def shortest_from_infinity_in_float64(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        best = math.inf
        for k in range(a.shape[1]):
            best = min(best, a[row, k] + b[k, column])
        c[row, column] = best


@wrong(SHORTEST, "uninitialised memory", "leftovers")
@cuda.jit
def shortest_from_what_c_holds(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        best = c[row, column]
        for k in range(a.shape[1]):
            best = min(best, a[row, k] + b[k, column])
        c[row, column] = best


@wrong(SHORTEST, "deliberate float64", r"line \d+ asks for float64\. The arrays are float32")
@cuda.jit
def shortest_in_float64_on_purpose(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        best = np.float64(np.inf)
        for k in range(a.shape[1]):
            best = min(best, a[row, k] + b[k, column])
        c[row, column] = best


@wrong(OUTER, "wrong axis order", "x first, and blocks along x are for the columns")  # and not only right for one block
@cuda.jit
def outer_product_with_rows_along_x(x, y, c):
    row, column = cuda.grid(2)
    column, row = 4 * column, 4 * row
    if row < c.shape[0] and column < c.shape[1]:
        a, b = load128(x, row), load128(y, column)
        for i in range(4):
            store128(c, (row + i) * c.shape[1] + column, (a[i] * b[0], a[i] * b[1], a[i] * b[2], a[i] * b[3]))
