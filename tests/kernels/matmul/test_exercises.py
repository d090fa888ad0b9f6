"""The exercises of chapter 12: right answers pass, and wrong ones are told what is wrong with them."""

import numpy as np
import pytest

from pmpp import cuda
from pmpp.kernels.matmul import exercises
from pmpp.lab.teach.diagnosis import judge
from pmpp.runtime.vector import load128, store128
from tests.support.answers import own_answers_run_once  # noqa: F401

T, WIDE = exercises.TILE, exercises.WIDE
ZERO = np.float32(0)
BY_NAME = {exercise.name: exercise for exercise in exercises.EXERCISES}


@cuda.jit(device=True)
def element(x, row, column):
    return x[row, column] if row < x.shape[0] and column < x.shape[1] else np.float32(0)


@cuda.jit(device=True)
def put(c, row, column, value):
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = value


# ---------------------------------------------------------------------------------------------------- matmul/any_size


def any_size(load_a=element, load_b=element, store=put, start=ZERO, first=True, second=True):
    """The answer to any_size with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, b, c):
        a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
        total = start
        for k0 in range(0, a.shape[1], T):
            a_tile[y, x] = load_a(a, row, k0 + x)
            b_tile[y, x] = load_b(b, k0 + y, column)
            if first:
                cuda.syncthreads()
            for k in range(T):
                total += a_tile[y, k] * b_tile[k, x]
            if second:
                cuda.syncthreads()
        store(c, row, column, total)

    return kernel


@cuda.jit(device=True)
def unguarded(x, row, column):
    return x[row, column]


@cuda.jit(device=True)
def clamped(x, row, column):
    return x[min(row, x.shape[0] - 1), min(column, x.shape[1] - 1)]


@cuda.jit(device=True)
def guarded_rows(x, row, column):
    return x[row, column] if row < x.shape[0] else np.float32(0)


@cuda.jit(device=True)
def guarded_the_wrong_way_round(x, row, column):
    return x[row, column] if row < x.shape[1] and column < x.shape[0] else np.float32(0)


@cuda.jit(device=True)
def put_unguarded(c, row, column, value):
    c[row, column] = value


@cuda.jit(device=True)
def put_with_row_guard(c, row, column, value):
    if row < c.shape[0]:
        c[row, column] = value


@cuda.jit
def any_size_leaves_early(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    if row >= c.shape[0] or column >= c.shape[1]:
        return
    total = np.float32(0)
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = element(a, row, k0 + x)
        b_tile[y, x] = element(b, k0 + y, column)
        cuda.syncthreads()
        for k in range(T):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit
def any_size_in_a_branch(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    if row < c.shape[0] and column < c.shape[1]:
        total = np.float32(0)
        for k0 in range(0, a.shape[1], T):
            a_tile[y, x] = element(a, row, k0 + x)
            b_tile[y, x] = element(b, k0 + y, column)
            cuda.syncthreads()
            for k in range(T):
                total += a_tile[y, k] * b_tile[k, x]
            cuda.syncthreads()
        c[row, column] = total


@cuda.jit
def any_size_off_by_one(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = a[row, k0 + x] if row <= a.shape[0] and k0 + x <= a.shape[1] else np.float32(0)
        b_tile[y, x] = b[k0 + y, column] if k0 + y <= b.shape[0] and column <= b.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(T):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    put(c, row, column, total)


@cuda.jit
def any_size_without_tiles(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[row, k] * b[k, column]
        c[row, column] = total


@cuda.jit
def any_size_forgets_the_rest(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * T + x
    total = np.float32(0)
    for step in range(a.shape[1] // T):  # rounded down
        a_tile[y, x] = element(a, row, step * T + x)
        b_tile[y, x] = element(b, step * T + y, column)
        cuda.syncthreads()
        for k in range(T):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    put(c, row, column, total)


@cuda.jit
def any_size_down_the_columns(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, T), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + x, cuda.blockIdx.x * T + y  # x runs down a column of c
    total = np.float32(0)
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = element(a, row, k0 + y)
        b_tile[y, x] = element(b, k0 + x, column)
        cuda.syncthreads()
        for k in range(T):
            total += a_tile[k, x] * b_tile[y, k]
        cuda.syncthreads()
    put(c, row, column, total)


ANY_SIZE = {
    "as it is given": (any_size(unguarded, unguarded, put_unguarded), "missing guard"),
    "no guard at a's load": (any_size(load_a=unguarded), "missing guard"),
    "no guard at b's load": (any_size(load_b=unguarded), "missing guard"),
    "no guard at the store": (any_size(store=put_unguarded), "missing guard"),
    "half a guard at the loads": (any_size(load_a=guarded_rows, load_b=guarded_rows), "missing guard"),
    "half a guard at the store": (any_size(store=put_with_row_guard), "missing guard"),
    "shapes swapped": (any_size(guarded_the_wrong_way_round, guarded_the_wrong_way_round), "index out of bounds"),
    "<= for <": (any_size_off_by_one, "guard off by one"),
    "clamped, but no zeros": (any_size(clamped, clamped), "wrong result"),
    # Barriers do not wait for threads that have left. But these had places in the tiles to fill.
    "leaves early": (any_size_leaves_early, "divergent barrier"),
    "barriers in a branch": (any_size_in_a_branch, "divergent barrier"),
    "no first barrier": (any_size(first=False), "missing barrier"),
    "no second barrier": (any_size(second=False), "missing barrier"),
    "a float64 total": (any_size(start=0.0), "accidental float64"),
    "no tiles": (any_size_without_tiles, "too much traffic"),
    "forgets the last, partial tiles": (any_size_forgets_the_rest, "wrong result"),
    "x down the columns": (any_size_down_the_columns, "uncoalesced"),
}


# -------------------------------------------------------------------------------------------------- matmul/transposed


def transposed(pitch=33, start=ZERO, first=True, second=True, swap=False):
    """The answer to transposed with one of its parts exchanged; ``swap`` turns b's tile over while storing it."""

    @cuda.jit
    def kernel(a, b, c):
        a_tile, b_tile = cuda.shared.array((32, 32), np.float32), cuda.shared.array((32, pitch), np.float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        total = start
        for k0 in range(0, a.shape[1], 32):
            a_tile[y, x] = element(a, cuda.blockIdx.y * 32 + y, k0 + x)
            if swap:
                b_tile[x, y] = element(b, cuda.blockIdx.x * 32 + y, k0 + x)
            else:
                b_tile[y, x] = element(b, cuda.blockIdx.x * 32 + y, k0 + x)
            if first:
                cuda.syncthreads()
            for k in range(32):
                total += a_tile[y, k] * (b_tile[k, x] if swap else b_tile[x, k])
            if second:
                cuda.syncthreads()
        put(c, cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x, total)

    return kernel


@cuda.jit
def transposed_uncoalesced(a, b, c):
    a_tile, b_tile = cuda.shared.array((32, 32), np.float32), cuda.shared.array((32, 32), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], 32):
        a_tile[y, x] = element(a, row, k0 + x)
        b_tile[y, x] = element(b, column, k0 + y)  # each thread of a warp in a row of its own
        cuda.syncthreads()
        for k in range(32):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    put(c, row, column, total)


@cuda.jit
def not_transposed(a, b, c):
    a_tile, b_tile = cuda.shared.array((32, 32), np.float32), cuda.shared.array((32, 32), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], 32):
        a_tile[y, x] = element(a, row, k0 + x)
        b_tile[y, x] = element(b, k0 + y, column)
        cuda.syncthreads()
        for k in range(32):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    put(c, row, column, total)


@cuda.jit
def transposed_right_for_square_grids(a, b, c):
    a_tile, b_tile = cuda.shared.array((32, 32), np.float32), cuda.shared.array((32, 33), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * 32 + y, cuda.blockIdx.x * 32 + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], 32):
        a_tile[y, x] = element(a, row, k0 + x)
        b_tile[y, x] = element(b, row, k0 + x)  # the block's rows of b are those of blockIdx.x
        cuda.syncthreads()
        for k in range(32):
            total += a_tile[y, k] * b_tile[x, k]
        cuda.syncthreads()
    put(c, row, column, total)


@cuda.jit
def transposed_result(a, b, c):
    a_tile, b_tile = cuda.shared.array((32, 33), np.float32), cuda.shared.array((32, 32), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = np.float32(0)
    for k0 in range(0, a.shape[1], 32):
        a_tile[y, x] = element(a, cuda.blockIdx.y * 32 + y, k0 + x)
        b_tile[y, x] = element(b, cuda.blockIdx.x * 32 + y, k0 + x)
        cuda.syncthreads()
        for k in range(32):
            total += a_tile[x, k] * b_tile[y, k]
        cuda.syncthreads()
    put(c, cuda.blockIdx.y * 32 + x, cuda.blockIdx.x * 32 + y, total)  # a warp writes down a column of c


TRANSPOSED = {
    "not transposed": (not_transposed, "not transposed"),
    "uncoalesced": (transposed_uncoalesced, "uncoalesced"),
    "no padding": (transposed(pitch=32), "bank conflicts"),
    "turned over while storing, no padding": (transposed(pitch=32, swap=True), "bank conflicts"),
    "no first barrier": (transposed(first=False), "missing barrier"),
    "no second barrier": (transposed(second=False), "missing barrier"),
    "a float64 total": (transposed(start=0.0), "accidental float64"),
    "right for square grids": (transposed_right_for_square_grids, "only right for one block"),
    "writes down a column": (transposed_result, "uncoalesced"),
}


# ------------------------------------------------------------------------------------------------- matmul/two_columns


@cuda.jit(device=True)
def put_both(c, row, column, total, other):
    put(c, row, column, total)
    put(c, row, column + T, other)


@cuda.jit(device=True)
def put_left(c, row, column, total, other):
    put(c, row, column, total)


@cuda.jit(device=True)
def put_both_if_left(c, row, column, total, other):
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
        c[row, column + T] = other


@cuda.jit(device=True)
def put_both_if_right(c, row, column, total, other):
    if row < c.shape[0] and column + T < c.shape[1]:
        c[row, column] = total
        c[row, column + T] = other


def two_columns(start=ZERO, first=True, second=True, twice=False, store=put_both):
    """The answer to two_columns with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, b, c):
        a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, WIDE), np.float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * T + y, cuda.blockIdx.x * 2 * T + x
        total, other = start, start
        for k0 in range(0, a.shape[1], T):
            a_tile[y, x] = element(a, row, k0 + x)
            b_tile[y, x] = element(b, k0 + y, column)
            b_tile[y, x + T] = element(b, k0 + y, column + T)
            if first:
                cuda.syncthreads()
            for k in range(T):
                if twice:
                    total += a_tile[y, k] * b_tile[k, x]
                    other += a_tile[y, k] * b_tile[k, x + T]
                else:
                    a_value = a_tile[y, k]
                    total += a_value * b_tile[k, x]
                    other += a_value * b_tile[k, x + T]
            if second:
                cuda.syncthreads()
        store(c, row, column, total, other)

    return kernel


@cuda.jit
def neighbouring_columns(a, b, c):
    a_tile, b_tile = cuda.shared.array((T, T), np.float32), cuda.shared.array((T, WIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * T + y, (cuda.blockIdx.x * T + x) * 2
    total, other = np.float32(0), np.float32(0)
    for k0 in range(0, a.shape[1], T):
        a_tile[y, x] = element(a, row, k0 + x)
        b_tile[y, 2 * x] = element(b, k0 + y, column)
        b_tile[y, 2 * x + 1] = element(b, k0 + y, column + 1)
        cuda.syncthreads()
        for k in range(T):
            a_value = a_tile[y, k]
            total += a_value * b_tile[k, 2 * x]
            other += a_value * b_tile[k, 2 * x + 1]
        cuda.syncthreads()
    put(c, row, column, total)
    put(c, row, column + 1, other)


TWO_COLUMNS = {
    "loads a's element twice": (two_columns(twice=True), "too much traffic"),
    "forgets the right column": (two_columns(store=put_left), "output not written"),
    "one guard, on the left": (two_columns(store=put_both_if_left), "missing guard"),
    "one guard, on the right": (two_columns(store=put_both_if_right), "output not written"),
    "no first barrier": (two_columns(first=False), "missing barrier"),
    "no second barrier": (two_columns(second=False), "missing barrier"),
    "float64 totals": (two_columns(start=0.0), "accidental float64"),
    "neighbouring columns": (neighbouring_columns, "uncoalesced"),
}


# -------------------------------------------------------------------------------------------------------- matmul/gemv


def gemv(pitch=33, start=ZERO, first=True, second=True, load=element, guarded=True):
    """The answer to gemv with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, x, y):
        tile, piece = cuda.shared.array((32, pitch), np.float32), cuda.shared.array(32, np.float32)
        lane, top = cuda.threadIdx.x, cuda.blockIdx.x * 32
        total = start
        for k0 in range(0, a.shape[1], 32):
            for i in range(32):
                tile[i, lane] = load(a, top + i, k0 + lane)
            piece[lane] = x[k0 + lane] if k0 + lane < x.size else np.float32(0)
            if first:
                cuda.syncthreads()
            for k in range(32):
                total += tile[lane, k] * piece[k]
            if second:
                cuda.syncthreads()
        if not guarded or top + lane < y.size:
            y[top + lane] = total

    return kernel


@cuda.jit
def gemv_own_row(a, x, y):
    i = cuda.grid(1)
    if i < y.size:
        total = np.float32(0)
        for k in range(a.shape[1]):
            total += a[i, k] * x[k]
        y[i] = total


GEMV = {
    "each thread its row": (gemv_own_row, "uncoalesced"),
    "no padding": (gemv(pitch=32), "bank conflicts"),
    "no first barrier": (gemv(first=False), "missing barrier"),
    "no second barrier": (gemv(second=False), "missing barrier"),
    "no guard at the load": (gemv(load=unguarded), "missing guard"),
    "no guard at the store": (gemv(guarded=False), "missing guard"),
    "a float64 total": (gemv(start=0.0), "accidental float64"),
}

# ---------------------------------------------------------------------------------------------- matmul/shortest_paths


FAR = np.float32(np.inf)


def shortest_paths(start=FAR, best=min, guarded=True):
    """The answer to shortest_paths with one of its parts exchanged."""

    @cuda.jit
    def kernel(a, b, c):
        column, row = cuda.grid(2)
        if not guarded or (row < c.shape[0] and column < c.shape[1]):
            found = start
            for k in range(a.shape[1]):
                found = best(found, a[row, k] + b[k, column])
            c[row, column] = found

    return kernel


@cuda.jit
def shortest_down_the_columns(a, b, c):
    row, column = cuda.blockIdx.y * 32 + cuda.threadIdx.x, cuda.blockIdx.x * 32 + cuda.threadIdx.y
    if row < c.shape[0] and column < c.shape[1]:
        found = np.float32(np.inf)
        for k in range(a.shape[1]):
            found = min(found, a[row, k] + b[k, column])
        c[row, column] = found


@cuda.jit
def product_of_lengths(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        found = np.float32(np.inf)
        for k in range(a.shape[1]):
            found = min(found, a[row, k] * b[k, column])
        c[row, column] = found


@cuda.jit
def last_length(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        for k in range(a.shape[1]):
            c[row, column] = min(np.float32(np.inf), a[row, k] + b[k, column])


SHORTEST_PATHS = {
    "begins at 0": (shortest_paths(start=ZERO), "begins at zero"),
    "the longest": (shortest_paths(start=ZERO, best=max), "longest"),
    "begins with a float64": (shortest_paths(start=np.inf), "accidental float64"),
    "no guard": (shortest_paths(guarded=False), "missing guard"),
    "x down the columns": (shortest_down_the_columns, "uncoalesced"),
    "a product": (product_of_lengths, "wrong result"),
    "only the last": (last_length, "wrong result"),
}


# ------------------------------------------------------------------------------------------------- matmul/outer_product


@cuda.jit(device=True)
def put_four(c, row, column, a, b):
    """Row ``row`` of a thread's square."""
    store128(c, row * c.shape[1] + column, (a * b[0], a * b[1], a * b[2], a * b[3]))


@cuda.jit(device=True)
def put_one_by_one(c, row, column, a, b):
    for j in range(4):
        c[row, column + j] = a * b[j]


def outer_product(store=put_four, rows=4, guarded=True):
    """The answer to outer_product with one of its parts exchanged."""

    @cuda.jit
    def kernel(x, y, c):
        column, row = cuda.grid(2)
        column, row = 4 * column, 4 * row
        if not guarded or (row < c.shape[0] and column < c.shape[1]):
            a, b = load128(x, row), load128(y, column)
            for i in range(rows):
                store(c, row + i, column, a[i], b)

    return kernel


@cuda.jit
def outer_of_single_loads(x, y, c):
    column, row = cuda.grid(2)
    column, row = 4 * column, 4 * row
    if row < c.shape[0] and column < c.shape[1]:
        b = load128(y, column)
        for i in range(4):
            put_four(c, row + i, column, x[row + i], b)


@cuda.jit
def outer_turned_over(x, y, c):
    column, row = cuda.grid(2)
    column, row = 4 * column, 4 * row
    if row < c.shape[0] and column < c.shape[1] and column < x.size and row < y.size:
        a, b = load128(y, row), load128(x, column)
        for i in range(4):
            put_four(c, row + i, column, a[i], b)


@cuda.jit
def outer_in_float64(x, y, c):
    column, row = cuda.grid(2)
    column, row = 4 * column, 4 * row
    if row < c.shape[0] and column < c.shape[1]:
        a, b = load128(x, row), load128(y, column)
        for i in range(4):
            put_four(c, row + i, column, np.float64(a[i]), b)


OUTER_PRODUCT = {
    "an element a store": (outer_product(store=put_one_by_one), "too much traffic"),
    "an element a load": (outer_of_single_loads, "too much traffic"),
    "no guard": (outer_product(guarded=False), "missing guard"),
    "one row": (outer_product(rows=1), "output not written"),
    "turned over": (outer_turned_over, "turned over"),
    "in float64": (outer_in_float64, "deliberate float64"),
}

WRONG = {
    "matmul/any_size": ANY_SIZE,
    "matmul/transposed": TRANSPOSED,
    "matmul/two_columns": TWO_COLUMNS,
    "matmul/gemv": GEMV,
    "matmul/shortest_paths": SHORTEST_PATHS,
    "matmul/outer_product": OUTER_PRODUCT,
}
CASES = [
    pytest.param(name, *case, id=f"{name}: {what}") for name, cases in WRONG.items() for what, case in cases.items()
]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_answer_passes(name):
    verdict = judge(BY_NAME[name], BY_NAME[name].answer)
    assert verdict, verdict.message


@pytest.mark.parametrize("name, answer, mistake", CASES)
def test_a_wrong_answer_is_named(name, answer, mistake):
    verdict = judge(BY_NAME[name], answer)
    assert (verdict.mistake, bool(verdict)) == (mistake, False), verdict.message


RIGHT = [any_size(), transposed(), transposed(swap=True), two_columns(), gemv(), shortest_paths(), outer_product()]
RIGHT += [any_size(load_a=clamped), gemv(load=clamped)]  # zeros of the other operand make up for it


@pytest.mark.parametrize("answer", RIGHT)
def test_other_right_answers_pass(answer):
    name = answer.py_func.__qualname__.partition(".")[0]
    verdict = judge(BY_NAME[f"matmul/{name}"], answer)
    assert verdict, verdict.message


@pytest.mark.parametrize("name", BY_NAME)
def test_no_case_is_right_for_swapped_extents_only(name):
    shapes = [case.args[2].shape for case in BY_NAME[name].inputs]
    assert name == "matmul/gemv" or any(rows != columns for rows, columns in shapes)
    assert len(shapes) == len(BY_NAME[name].inputs) >= 6
