"""Exercises of chapter 12, notebooks/12_matmul.ipynb: matrix multiplication."""

from __future__ import annotations

import math

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten
from pmpp.runtime.vector import load128, store128

TILE = 16  # the side of a tile, and of a block, where a tile is read along its rows
WARP = 32  # where it is read down its columns: a warp is then one row of the block
WIDE, PADDED = 2 * TILE, WARP + 1  # Numba wants the shape of a shared array in constants: no sums in it

FLOAT64 = "keep the sum in float32: np.float32(0), not 0.0, which is a float64 and makes a float64 of what it meets"


def _matrix(rng: np.random.Generator, rows: int, columns: int, whole: bool) -> np.ndarray:
    """Whole numbers without 0, so that every lost or doubled product shows; or normally distributed numbers."""
    if whole:
        return (rng.integers(1, 8, (rows, columns)) * rng.choice([-1, 1], (rows, columns))).astype(np.float32)
    return rng.standard_normal((rows, columns), dtype=np.float32)


def _tolerance(a: np.ndarray, b: np.ndarray, whole: bool) -> np.ndarray | float:
    """0 for whole numbers: every sum stays far below 2^24, and is exact in any order.

    Else k products are each rounded once, and at most k times more as they are added: (k + 1) eps / 2 of
    sum |a_ik b_kj| (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
    """
    if whole:
        return 0.0
    half_eps = float(np.finfo(np.float32).eps) / 2
    return (a.shape[1] + 1) * half_eps * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


# ---------------------------------------------------------------------------------------------------- matmul/any_size


def _any_size_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, k: int, whole: bool = True) -> Case:
        a, b = _matrix(rng, m, k, whole), _matrix(rng, k, n, whole)
        return Case(
            name=f"a of {m} x {k} and b of {k} x {n}",
            args=(a, b, unwritten((m, n), np.float32)),
            grid=(blocks(n, TILE), blocks(m, TILE)),
            block=(TILE, TILE),
            expected={2: _product(a, b)},
            tolerance={2: _tolerance(a, b, whole)},
        )

    shapes = [(16, 32, 16), (15, 16, 16), (16, 17, 16), (16, 16, 21), (1, 1, 1), (33, 18, 1), (7, 40, 35)]
    return [case(*shape) for shape in shapes] + [case(35, 21, 50, whole=False), case(72, 40, 56)]


@cuda.jit
def any_size_answer(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), np.float32)
    b_tile = cuda.shared.array((TILE, TILE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
    total = np.float32(0)
    for k0 in range(0, a.shape[1], TILE):
        a_tile[y, x] = a[row, k0 + x] if row < a.shape[0] and k0 + x < a.shape[1] else np.float32(0)
        b_tile[y, x] = b[k0 + y, column] if k0 + y < b.shape[0] and column < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[y, k] * b_tile[k, x]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


ANY_SIZE = Exercise(
    name="matmul/any_size",
    task="c = a @ b for matrices of any size, in blocks of 16 x 16 threads with tiles of 16 x 16. The kernel that is "
    "given is right if every extent is a multiple of 16: mend it.",
    parameters="a, b, c",
    cases=_any_size_cases,
    budget=lambda case: {"flops_f64": (0, FLOAT64)},
    hints=(
        "Three accesses can leave their matrix: two loads and a store. Each has its own condition.",
        "A place in a tile beyond the edge still takes part in the sum. Which number changes no sum?",
        "A thread that has no element of c still loads for others, and every thread must reach the barriers.",
    ),
    answer=any_size_answer,
)


# -------------------------------------------------------------------------------------------------- matmul/transposed


def _transposed_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, k: int, whole: bool = True) -> Case:
        a, b = _matrix(rng, m, k, whole), _matrix(rng, n, k, whole)
        return Case(
            name=f"a of {m} x {k} and b of {n} x {k}",
            args=(a, b, unwritten((m, n), np.float32)),
            grid=(blocks(n, WARP), blocks(m, WARP)),
            block=(WARP, WARP),
            expected={2: _product(a, b.T)},
            tolerance={2: _tolerance(a, b.T, whole)},
        )

    shapes = [(32, 64, 32), (32, 32, 32), (32, 33, 64), (1, 1, 1), (20, 49, 7)]
    return [case(*shape) for shape in shapes] + [case(35, 50, 21, whole=False), case(64, 96, 64)]


def _transposed_budget(case: Case) -> dict[str, tuple[int, str]]:
    a, b, _ = case.args
    steps = blocks(a.shape[1], WARP) * blocks(a.shape[0], WARP) * blocks(b.shape[0], WARP)  # pairs of tiles
    column = "threads that {} down a column of a tile of 32 columns all meet in one bank: pad the tile"
    return {
        # In each step a warp loads a row of 32 elements of each tile: 4 sectors.
        "global_load_sectors": (
            steps * WARP * 8,
            "the threads of a warp should read neighbours in memory, of b as well as of a: x runs along k",
        ),
        # Not so many wavefronts: whoever first fills the tiles with 0 stores twice, and has no conflict.
        "shared_load_bank_conflicts": (0, column.format("read")),
        "shared_store_bank_conflicts": (0, column.format("write")),
        "flops_f64": (0, FLOAT64),
    }


@cuda.jit
def transposed_answer(a, b, c):
    a_tile = cuda.shared.array((WARP, WARP), np.float32)
    b_tile = cuda.shared.array((WARP, PADDED), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * WARP + y, cuda.blockIdx.x * WARP + x
    b_row = cuda.blockIdx.x * WARP + y
    total = np.float32(0)
    for k0 in range(0, a.shape[1], WARP):
        a_tile[y, x] = a[row, k0 + x] if row < a.shape[0] and k0 + x < a.shape[1] else np.float32(0)
        b_tile[y, x] = b[b_row, k0 + x] if b_row < b.shape[0] and k0 + x < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(WARP):
            total += a_tile[y, k] * b_tile[x, k]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


def _without_transposing(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> dict[int, np.ndarray]:
    """a @ b, with zeros where b has no such element."""
    taken = np.zeros((a.shape[1], c.shape[1]), np.float32)
    rows, columns = np.minimum(taken.shape, b.shape)
    taken[:rows, :columns] = b[:rows, :columns]
    return {2: _product(a, taken)}


TRANSPOSED = Exercise(
    name="matmul/transposed",
    task="c = a @ b.T, where a is M x K, b is N x K and both lie in C order, in blocks of 32 x 32 threads with tiles "
    "of 32 x 32. Loads of both matrices are coalesced, and nothing has a bank conflict.",
    parameters="a, b, c",
    cases=_transposed_cases,
    budget=_transposed_budget,
    hints=(
        "The rows of c that a block computes are rows of a. Its columns are rows of b.",
        "Load b's tile as you load a's: row y of the tile is row blockIdx.x * 32 + y of b, and x runs along k.",
        "c[row, column] needs row y of a's tile and row x of b's. Reading b_tile[x, k], how far apart are neighbours?",
    ),
    answer=transposed_answer,
    traps=(
        Trap("not transposed", "this is a @ b: element (k, j) of b.T is element (j, k) of b", _without_transposing),
    ),
)


# ------------------------------------------------------------------------------------------------- matmul/two_columns


def _two_columns_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, k: int, whole: bool = True) -> Case:
        a, b = _matrix(rng, m, k, whole), _matrix(rng, k, n, whole)
        return Case(
            name=f"a of {m} x {k} and b of {k} x {n}",
            args=(a, b, unwritten((m, n), np.float32)),
            grid=(blocks(n, 2 * TILE), blocks(m, TILE)),
            block=(TILE, TILE),
            expected={2: _product(a, b)},
            tolerance={2: _tolerance(a, b, whole)},
        )

    shapes = [(16, 32, 16), (16, 64, 32), (16, 16, 16), (16, 33, 16), (5, 20, 37), (1, 1, 1)]
    return [case(*shape) for shape in shapes] + [case(21, 50, 35, whole=False), case(48, 96, 64)]


def _two_columns_budget(case: Case) -> dict[str, tuple[int, str]]:
    a, b, _ = case.args
    steps = blocks(a.shape[1], TILE) * blocks(a.shape[0], TILE) * blocks(b.shape[1], 2 * TILE)
    warps = TILE * TILE // 32
    return {
        "shared_load_requests": (
            steps * warps * 3 * TILE,
            "three loads from shared memory are enough for two multiply-adds: load the element of a's tile once, into "
            "a variable, and use it twice",
        ),
        "flops_f64": (0, FLOAT64),
    }


@cuda.jit
def two_columns_answer(a, b, c):
    a_tile = cuda.shared.array((TILE, TILE), np.float32)
    b_tile = cuda.shared.array((TILE, WIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, left = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * 2 * TILE + x
    right = left + TILE
    total_left, total_right = np.float32(0), np.float32(0)
    for k0 in range(0, a.shape[1], TILE):
        k = k0 + y
        a_tile[y, x] = a[row, k0 + x] if row < a.shape[0] and k0 + x < a.shape[1] else np.float32(0)
        b_tile[y, x] = b[k, left] if k < b.shape[0] and left < b.shape[1] else np.float32(0)
        b_tile[y, x + TILE] = b[k, right] if k < b.shape[0] and right < b.shape[1] else np.float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            a_value = a_tile[y, k]
            total_left += a_value * b_tile[k, x]
            total_right += a_value * b_tile[k, x + TILE]
        cuda.syncthreads()
    if row < c.shape[0] and left < c.shape[1]:
        c[row, left] = total_left
    if row < c.shape[0] and right < c.shape[1]:
        c[row, right] = total_right


TWO_COLUMNS = Exercise(
    name="matmul/two_columns",
    task="c = a @ b, with a thread for two elements of a row of c, 16 columns apart. A block of 16 x 16 threads "
    "computes 16 x 32 elements, and loads from shared memory three times for two multiply-adds.",
    parameters="a, b, c",
    cases=_two_columns_cases,
    budget=_two_columns_budget,
    hints=(
        "b's tile is 16 x 32 now. A thread loads one element of a's tile and two of b's, 16 columns apart.",
        "Two totals, two stores, and each store has its own guard: the left element may exist without the right one.",
    ),
    answer=two_columns_answer,
)


# -------------------------------------------------------------------------------------------------------- matmul/gemv


def _gemv_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, k: int, whole: bool = True) -> Case:
        a, x = _matrix(rng, m, k, whole), _matrix(rng, k, 1, whole)[:, 0]
        return Case(
            name=f"a of {m} x {k}",
            args=(a, x, unwritten(m, np.float32)),
            grid=blocks(m, WARP),
            block=WARP,
            expected={2: _product(a, x)},
            tolerance={2: _tolerance(a, x, whole)},
        )

    shapes = [(32, 32), (31, 32), (32, 33), (1, 1), (70, 5), (3, 100)]
    return [case(*shape) for shape in shapes] + [case(45, 130, whole=False), case(128, 96)]


def _gemv_budget(case: Case) -> dict[str, tuple[int, str]]:
    m, k = case.args[0].shape
    grid, steps = blocks(m, WARP), blocks(k, WARP)
    return {
        # A warp's request for 32 neighbours is 4 sectors: 32 rows of a, and a piece of x, in each step.
        "global_load_sectors": (
            grid * steps * (WARP + 1) * 4,
            "the threads of a warp should read neighbours of one row of a, and each element of a and x once",
        ),
        "shared_load_bank_conflicts": (
            0,
            "threads that read down a column of a tile of 32 columns all meet in one bank: pad the tile",
        ),
        "flops_f64": (0, FLOAT64),
    }


@cuda.jit
def gemv_answer(a, x, y):
    tile = cuda.shared.array((WARP, PADDED), np.float32)
    piece = cuda.shared.array(WARP, np.float32)
    lane, first = cuda.threadIdx.x, cuda.blockIdx.x * WARP
    total = np.float32(0)
    for k0 in range(0, a.shape[1], WARP):
        inside = k0 + lane < a.shape[1]
        for i in range(WARP):
            tile[i, lane] = a[first + i, k0 + lane] if inside and first + i < a.shape[0] else np.float32(0)
        piece[lane] = x[k0 + lane] if inside else np.float32(0)
        cuda.syncthreads()
        for k in range(WARP):
            total += tile[lane, k] * piece[k]
        cuda.syncthreads()
    if first + lane < a.shape[0]:
        y[first + lane] = total


GEMV = Exercise(
    name="matmul/gemv",
    task="y = a @ x for an M x K matrix in C order. A block is one warp and computes 32 elements of y, a thread one of "
    "them. Loads of a are coalesced all the same, a block loads each element of a and of x once, and nothing has a "
    "bank conflict.",
    parameters="a, x, y",
    cases=_gemv_cases,
    budget=_gemv_budget,
    hints=(
        "A thread that reads its own row of a is 4 K bytes from its neighbour. Let the warp read a row together.",
        "Load a tile of 32 x 32 into shared memory, a row at a time. Then each thread sums along its own row of it.",
        "Summing, the threads read down a column of the tile. Give the tile 33 columns.",
    ),
    answer=gemv_answer,
)


# ---------------------------------------------------------------------------------------------- matmul/shortest_paths


def _shortest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In float32: a sum of two is rounded once, and the least of them is one of them."""
    return (a[:, :, None] + b).min(axis=1)


def _shortest_paths_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int, k: int) -> Case:
        a, b = (rng.uniform(1, 9, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        a[rng.random(a.shape) < 0.2] = np.inf  # no way
        # Not `unwritten`: of NaN and a number the minimum is the number, so that a minimum that begins with what is in
        # c would come out right.
        leftovers = rng.uniform(1, 9, (m, n)).astype(np.float32)
        return Case(
            name=f"a of {m} x {k} and b of {k} x {n}",
            args=(a, b, leftovers),
            grid=(blocks(n, WARP), blocks(m, WARP)),
            block=(WARP, WARP),
            expected={2: _shortest(a, b)},
        )

    return [case(*shape) for shape in ((1, 1, 1), (32, 32, 5), (31, 33, 4), (20, 70, 1), (41, 7, 9), (64, 96, 16))]


@cuda.jit
def shortest_paths_answer(a, b, c):
    column, row = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        shortest = np.float32(np.inf)
        for k in range(a.shape[1]):
            shortest = min(shortest, a[row, k] + b[k, column])
        c[row, column] = shortest


def _began_at_zero(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.zeros(c.shape)}


def _began_with_leftovers(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> dict[int, np.ndarray]:
    return {2: np.minimum(_shortest(a, b), c)}


def _longest(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> dict[int, np.ndarray]:
    return {2: (a[:, :, None] + b).max(axis=1)}


SHORTEST_PATHS = Exercise(
    name="matmul/shortest_paths",
    task="a[i, k] is the length of the way from i to k, and b[k, j] of that from k to j; it is infinite where there is "
    "no way. c[i, j] is the length of the shortest way from i to j: the least a[i, k] + b[k, j] of all k. All are "
    "float32. The launch is that of `coalesced`: blocks of 32 x 32 threads, and a thread for each element of c.",
    parameters="a, b, c",
    cases=_shortest_paths_cases,
    budget=lambda case: {"inst_fp64": (0, "Begin with np.float32(np.inf): np.inf by itself is a float64.")},
    hints=(
        "Take `coalesced_kernel`. Which two of its operations become a sum and a minimum?",
        "A sum begins with 0, which changes no sum. With what must a minimum begin?",
    ),
    answer=shortest_paths_answer,
    traps=(
        Trap("begins at zero", "0 is less than every length: begin with infinity.", _began_at_zero),
        Trap("uninitialised memory", "c holds leftovers: begin with infinity.", _began_with_leftovers),
        Trap("longest", "This is the longest way, not the shortest.", _longest),
    ),
)


# ------------------------------------------------------------------------------------------------- matmul/outer_product

FOUR = 4  # elements in a vector of 16 bytes
COVERED = FOUR * TILE  # rows and columns that a block computes


def _outer_product_cases(rng: np.random.Generator) -> list[Case]:
    def case(m: int, n: int) -> Case:
        x, y = rng.standard_normal(m, dtype=np.float32), rng.standard_normal(n, dtype=np.float32)
        return Case(
            name=f"x of {m} and y of {n}",
            args=(x, y, unwritten((m, n), np.float32)),
            grid=(blocks(n, COVERED), blocks(m, COVERED)),
            block=(TILE, TILE),
            expected={2: np.outer(x, y)},  # a product is rounded once, here and there
        )

    return [case(*shape) for shape in ((4, 4), (64, 64), (60, 68), (8, 132), (140, 4), (128, 192))]


@cuda.jit
def outer_product_answer(x, y, c):
    column, row = cuda.grid(2)
    column, row = 4 * column, 4 * row
    if row < c.shape[0] and column < c.shape[1]:
        a, b = load128(x, row), load128(y, column)
        for i in range(4):
            store128(c, (row + i) * c.shape[1] + column, (a[i] * b[0], a[i] * b[1], a[i] * b[2], a[i] * b[3]))


def _outer_product_budget(case: Case) -> dict[str, tuple[int, str]]:
    warps = math.prod(case.grid) * TILE * TILE // WARP
    return {
        "global_load_requests": (2 * warps, "Two loads a thread are enough: load128 fetches four elements of x or y."),
        "global_store_requests": (FOUR * warps, "Four stores a thread are enough: store128 writes four of a row."),
        "flops_f64": (0, FLOAT64),
    }


def _turned_over(x: np.ndarray, y: np.ndarray, c: np.ndarray) -> dict[int, np.ndarray]:
    """What lands in c if x and y change places, as far as both are long enough."""
    out, least = np.full(c.shape, np.nan), min(c.shape)
    out[:least, :least] = np.outer(x, y)[:least, :least].T
    return {2: out}


OUTER_PRODUCT = Exercise(
    name="matmul/outer_product",
    task="c[i, j] = x[i] * y[j], float32: the product of a column and a row. A thread computes a square of 4 x 4 in "
    "registers, from one load of 16 bytes of x and one of y, and stores its four rows with 16 bytes each. The extents "
    f"are multiples of 4. The launch has {TILE} x {TILE} threads a block, and a block for each {COVERED} x {COVERED} "
    "elements of c.",
    parameters="x, y, c",
    cases=_outer_product_cases,
    budget=_outer_product_budget,
    hints=(
        "load128(x, i) returns x[i] to x[i + 3] as a tuple. Which i belongs to thread (x, y) of the grid?",
        "store128(c, i, values) counts elements from the start of c: element (r, s) has i = r * c.shape[1] + s.",
        "The extents are multiples of 4, so a square lies inside of c as a whole, or not at all: one guard is enough.",
    ),
    answer=outer_product_answer,
    traps=(Trap("turned over", "x goes down the rows of c, and y along them.", _turned_over),),
)

EXERCISES = (ANY_SIZE, TRANSPOSED, TWO_COLUMNS, GEMV, SHORTEST_PATHS, OUTER_PRODUCT)
