"""Sparse matrix times vector: y = A x, where A is mostly zeros and only the others are stored.

Chapter: notebooks/44_sparse.ipynb.  PMPP 4e ch. 14; 5e ch. 17.

A is stored by compressed rows (CSR): the values that are not zero, row by row, the column of each, and where each row
starts. A value is read once and takes part in one multiply-add, so memory is the bound. The difficulty is that rows
have different lengths: who works on which part must be decided by the data. And x is read wherever the columns say.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, block_sum, blocks, warp_sum
from pmpp.kernels.common.contents import check_places, check_starts
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("float32",)
INDICES = ("int32", "int64")
BLOCK = 256  # threads a block
WARPS = BLOCK // 32
CLEARED = 8  # elements that a thread sets to 0
BATCH = 5  # values of a row that a thread asks for at a time
FEW = 64  # threads a block of `batched`
EACH = 7  # products that a thread makes for a tile
PLACES = BLOCK * EACH  # for products
LINE = 32  # values in 128 bytes, the most that one request to a cache brings
TILE = PLACES  # steps of a block of `merged`, at least
SHORT = 32  # values of a row that one thread adds up; more are for a warp
MOST_LONG = PLACES // (SHORT + 1) + 1  # rows of a tile that are longer
RESIDENT = 8  # blocks of `merged` that fit on a multiprocessor
f0 = np.float32(0)


def reference(values: np.ndarray, columns: np.ndarray, starts: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Row by row: the sum of its values, each times the element of ``x`` that its column names."""
    out = np.empty(starts.size - 1, values.dtype)
    with np.errstate(all="ignore"):
        for row in range(out.size):
            own = slice(starts[row], starts[row + 1])
            out[row] = (values[own].astype(np.float64) * x[columns[own]]).sum()
    return out


def rows_of(lengths, width: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix with so many values in each row, at random columns of ``width``: values, columns and starts."""
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns = rng.integers(0, max(width, 1), starts[-1], dtype=np.int32)
    return rng.standard_normal(starts[-1], dtype=np.float32), columns, starts


def poisson(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The five-point Laplacian of a grid of side x side: 4 for a point itself, -1 for each neighbour in the grid."""
    point = np.arange(side * side).reshape(side, side)
    near = np.full((side, side, 5), -1)
    near[1:, :, 0], near[:, 1:, 1], near[:, :, 2] = point[:-1], point[:, :-1], point
    near[:, :-1, 3], near[:-1, :, 4] = point[:, 1:], point[1:]
    there = near.reshape(-1, 5) >= 0
    starts = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
    values = np.broadcast_to(np.float32([-1, -1, 4, -1, -1]), there.shape)
    return values[there], near.reshape(-1, 5)[there].astype(np.int32), starts


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(44) if rng is None else rng

    def case(lengths, width: int) -> tuple:
        return *rows_of(lengths, width, rng), rng.standard_normal(width, dtype=np.float32)

    made = {"no rows": case([], 3), "nothing stored": case([0] * 5, 0), "one": case([1], 1)}
    made["a row"] = case([70], 9)
    made["a column"] = case(rng.integers(0, 2, 70), 1)
    made["empty rows first and last"] = case([0] * 40 + [3, 0, 0, 5] * 9 + [0] * 300, 50)
    made |= {f"a block of rows {d:+}": case([3] * (BLOCK + d), 300) for d in (-1, 0, 1)}
    made |= {f"rows and values fill a tile {d:+}": case([4] * (TILE // 5 - 1) + [4 + d], 99) for d in (-1, 0, 1)}
    made["a row of several tiles"] = case([2, 0, 3 * TILE + 5, 1, 4], 500)
    made["tiles of empty rows"] = case([1] + [0] * (2 * TILE) + [2], 5)
    made["a tile of a row, and empty rows"] = case([TILE] + [0] * (2 * TILE) + [3, 1], 5)
    made["a row that ends with the second tile"] = case([1000, 2 * TILE - 1000, 7, 2], 70)
    made["power law"] = case(np.minimum(1500 // np.arange(1, 601), 900)[rng.permutation(600)], 600)
    made["rows of a warp, and one more"] = case([31, 32, 33, 64, 65, 1] * 8, 200)
    values, columns, starts, x = case([4] * 90, 7)
    made["starts of 64 bits"] = values, columns, starts.astype(np.int64), x
    grid = poisson(20)
    made["poisson"] = *grid, rng.standard_normal(400, dtype=np.float32)
    values, columns, starts, x = case([5] * 80, 40)
    values[::7], values[3::11], x[::9], x[1] = 0, np.nan, np.inf, -np.inf
    made["not finite"] = values, columns, starts, x
    big = np.float32([1e30, 1, -1e30, 3e-39]), np.int32([2, 0, 2, 1]), np.int32([0, 3, 4])
    made["cancelling, and nearly 0"] = *big, np.float32([1, 1e-5, 1e8])
    return made


def cost(rows: int, width: int, stored: int) -> Cost:
    """A multiply-add for each value. Values, columns, starts and ``width`` of ``x`` read once, sums written once."""
    return Cost(flops=2 * stored, bytes=8 * stored + 4 * (rows + 1) + 4 * width + 4 * rows)


def tolerance(values: np.ndarray, columns: np.ndarray, starts: np.ndarray, x: np.ndarray) -> np.ndarray:
    """How far from the exact sum a right one may be, for each row.

    Each of a row's n products is rounded, unless it is fused with its addition, and takes part in at most n additions,
    in whatever order. Each rounds by at most half an eps of the sum of all |a x| (Higham, Accuracy and Stability of
    Numerical Algorithms, section 3.1). An atomic addition takes numbers below 2^-126 for 0 (PTX ISA, "atom").
    """
    with np.errstate(all="ignore"):
        terms = np.abs(values.astype(np.float64) * x[columns])
        sums = np.concatenate([[0], np.cumsum(np.where(np.isfinite(terms), terms, 0))])
    lengths = np.diff(starts)
    return (lengths + 1) * (np.finfo(np.float32).eps / 2 * (sums[starts[1:]] - sums[starts[:-1]]) + 2.0**-126)


def arguments(values, columns, starts, x, *, out=None, stream=0) -> Problem:
    """Multiply a sparse matrix, stored by compressed rows, by a vector.

    Args:
        values: a contiguous vector (s,) of float32, s >= 0: what is stored, row by row.
        columns: a contiguous vector (s,) of int32: the column of each. In a row they may come in any order, and those
            that occur twice are added up. Each must be from 0 to w - 1: that is checked of a NumPy array alone.
        starts: a contiguous vector (rows + 1,) of int32 or int64: where in ``values`` each row starts, and at the end
            s. It must begin with 0 and never fall: that is checked of a NumPy array alone, too.
        x: a contiguous vector (w,) of float32, w >= 0.
        out: a device array (rows,) of float32, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. The same call gives the same bits on the same GPU, but for
    the rung `by_element`, whose additions come in any order.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``scipy.sparse.csr_array(...) @ x``, whose ``data``, ``indices`` and ``indptr`` are the first three.

    >>> from pmpp.kernels import sparse
    >>> values, columns, starts = np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3])
    >>> sparse.merged(values, columns, starts, np.float32([1, 10, 100])).copy_to_host()
    array([ 50.,   0., 702.], dtype=float32)
    """
    stream, on_host = device.as_stream(stream), (columns, starts)
    values = device.as_input("values", values, dtypes=DTYPES, ndim=1, stream=stream)
    columns = device.as_input("columns", columns, dtypes="int32", shape=values.shape, stream=stream)
    starts = device.as_input("starts", starts, dtypes=INDICES, ndim=1, stream=stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if not starts.size:
        raise ValueError("starts must have at least 1 element, one more than there are rows, had 0")
    if values.size and not x.size:
        raise ValueError(f"x must have an element for each column, had 0, but {values.size} values are stored")
    check_places("columns", on_host[0], x.size, f"x with {x.size} elements")
    check_starts(on_host[1], values.size, "values")
    apart = {"values": values, "columns": columns, "starts": starts, "x": x}
    out = device.as_output("out", out, shape=(starts.size - 1,), dtype=np.float32, apart=apart, stream=stream)
    p = Problem(out, stream=stream, begin=clear, values=values, columns=columns, starts=starts, x=x)
    if not values.size and out.size:
        clear(p)
        p.done = True
    return p


@cuda.jit
def clear_kernel(out):
    i = np.int64(cuda.blockIdx.x) * (BLOCK * CLEARED) + cuda.threadIdx.x
    for _ in range(CLEARED):
        if i < out.size:
            out[i] = 0
        i += BLOCK


def set_to_zero(out, stream):
    """Set all elements of a vector to 0. Fewer blocks begin if a thread takes several, and that takes time, too."""
    clear_kernel[blocks(out.size, BLOCK * CLEARED), BLOCK, stream](out)


def clear(p):
    """Every sum is 0 at the beginning."""
    set_to_zero(p.result, p.stream)


# ------------------------------------------------------------------------------------------------ threads and values


@cuda.jit(device=True)
def row_of(j, starts):
    """The row that value number j belongs to: the last one that starts at j or before, by binary search."""
    low, high = 0, starts.size - 1
    while high - low > 1:
        middle = low + high >> 1
        if starts[middle] <= j:
            low = middle
        else:
            high = middle
    return low


@cuda.jit
def by_element_kernel(values, columns, starts, x, out):
    j = cuda.grid(1)
    if j < values.size:
        cuda.atomic.add(out, row_of(j, starts), values[j] * x[columns[j]])


@rung(clear_kernel, by_element_kernel)
def by_element(p):
    """A thread takes one value. It searches for its row, and adds its product to that row's sum by an atomic.

    With the row of each value stored beside it, in place of the search, this is the format COO.

    Source: PMPP 4e section 14.2; 5e chapter 17.

    Leaves: each thread searches in memory, 22 steps for four million rows, and values of one row meet in one atomic.
    """
    by_element_kernel[blocks(p.values.size, BLOCK), BLOCK, p.stream](p.values, p.columns, p.starts, p.x, p.result)


# -------------------------------------------------------------------------------------------------- threads and rows


@cuda.jit
def by_row_kernel(values, columns, starts, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * x[columns[j]]
        out[row] = total


@rung(by_row_kernel, begin=False)
def by_row(p):
    """A thread takes one row, and adds up its products one after another: no search, no atomic.

    Source: PMPP 4e section 14.3; 5e chapter 17.

    Leaves: a thread waits for memory at each value: for its column, and then for the element of x that it names.
    """
    by_row_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.values, p.columns, p.starts, p.x, p.result)


@cuda.jit
def batched_kernel(values, columns, starts, x, out):
    mine, where = cuda.local.array(BATCH, np.float32), cuda.local.array(BATCH, np.uint32)
    row = cuda.grid(1)
    if row < out.size:
        total, at, end = f0, np.uint64(starts[np.uint64(row)]), np.uint64(starts[np.uint64(row + 1)])
        while at < end:
            last = np.uint32(min(end - at, np.uint64(BATCH)) - np.uint64(1))  # beyond it this one is read again
            for k in range(BATCH):
                where[k] = columns[at + min(np.uint32(k), last)]
            for k in range(BATCH):
                mine[k] = values[at + min(np.uint32(k), last)]
            for k in range(BATCH):
                mine[k] *= x[where[k]]
            for k in range(BATCH):
                if np.uint32(k) <= last:
                    total += mine[k]
            at += np.uint64(BATCH)
        out[np.uint64(row)] = total


@rung(batched_kernel, begin=False)
def batched(p):
    """A thread asks for five columns and five values of its row at a time, and then for five elements of x.

    So it waits twice for five values, and not for each of them. No load has a condition: beyond the row's end the last
    value is read again, and left out of the sum. Of loads with conditions the compiler lets one wait for another. A
    block has 64 threads: a block keeps its place on a multiprocessor until its last warp has ended, so small ones leave
    less of it unused.

    Source: Volkov, "Better performance at lower occupancy" (2010), for several loads of a thread on their way.

    Leaves: neighbouring threads read values that are a row apart, and a warp waits for the longest of its 32 rows.
    """
    batched_kernel[blocks(p.result.size, FEW), FEW, p.stream](p.values, p.columns, p.starts, p.x, p.result)


@cuda.jit
def team_kernel(values, columns, starts, x, lanes, out):
    thread = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    row, lane = thread // lanes, thread % lanes
    total = f0
    if row < out.size:
        for j in range(starts[row] + lane, starts[row + 1], lanes):
            total += values[j] * x[columns[j]]
    distance = lanes // 2
    while distance > 0:
        total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
        distance //= 2
    if row < out.size and lane == 0:
        out[row] = total


def launch_teams(p, lanes):
    """So many lanes of a warp for each row."""
    grid = blocks(p.result.size * lanes, BLOCK)
    team_kernel[grid, BLOCK, p.stream](p.values, p.columns, p.starts, p.x, np.int32(lanes), p.result)


@rung(team_kernel, begin=False)
def warp_per_row(p):
    """A warp takes one row: its lanes read neighbours in memory, and add their sums by shuffles.

    Source: Bell and Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented processors"
    (2009), section 4.

    Leaves: in a row of 5 values 27 lanes have nothing to do.
    """
    launch_teams(p, 32)


def lanes_for(rows: int, stored: int) -> int:
    """The power of two, up to 32, that is next above the mean length of a row.

    >>> [lanes_for(100, stored) for stored in (0, 100, 101, 500, 10_000)]
    [1, 1, 2, 8, 32]
    """
    lanes = 1
    while lanes < 32 and lanes * rows < stored:
        lanes *= 2
    return lanes


@rung(team_kernel, begin=False)
def team_per_row(p):
    """As many lanes take a row as rows are long on average: a warp takes up to 32 rows.

    Source: Bell and Garland (2009), section 4.3; CUSP.

    Leaves: a team reads as many neighbours as it has lanes, and teams of one warp lie a row apart. And a row that is
    much longer than the others has no more lanes than they have.
    """
    launch_teams(p, lanes_for(p.result.size, p.values.size))


# -------------------------------------------------------------------------------------- neighbours read neighbours


@cuda.jit(device=True)
def bring_products(values, columns, x, first, count, products):
    """The products of ``count`` values from ``first`` on, into shared memory: neighbours read neighbours.

    All columns of a thread are on their way before the first is used, and then all of its values and elements of ``x``:
    these take their turns together. Unsigned indices need no test for less than 0.
    """
    thread, at = np.uint32(cuda.threadIdx.x), np.uint64(first + cuda.threadIdx.x)
    mine, where = cuda.local.array(EACH, np.float32), cuda.local.array(EACH, np.uint32)
    for k in range(EACH):
        if np.uint32(thread + k * BLOCK) < count:
            where[k] = columns[at + np.uint64(k * BLOCK)]
    for k in range(EACH):
        if np.uint32(thread + k * BLOCK) < count:
            mine[k] = values[at + np.uint64(k * BLOCK)] * x[where[k]]
    for k in range(EACH):
        if np.uint32(thread + k * BLOCK) < count:
            products[np.uint32(thread + k * BLOCK)] = mine[k]


@cuda.jit(device=True)
def sum_between(products, low, high):
    """The sum of products[low:high], one after another. A `while`: Numba's range takes ten instructions a round."""
    total = f0
    while low < high:
        total += products[low]
        low = np.uint32(low + 1)
    return total


@cuda.jit
def staged_kernel(values, columns, starts, x, out):
    products = cuda.shared.array(PLACES, np.float32)
    first_row = np.int64(cuda.blockIdx.x) * BLOCK
    row = first_row + cuda.threadIdx.x
    begin, end = np.int64(starts[min(row, out.size)]), np.int64(starts[min(row + 1, out.size)])
    at, last = np.int64(starts[first_row]), np.int64(starts[min(first_row + BLOCK, out.size)])
    total = f0
    while at < last:
        bring_products(values, columns, x, at, np.uint32(min(last - at, PLACES)), products)
        cuda.syncthreads()
        # What the row has of this piece, whose first place is 0 here.
        low, high = np.uint32(max(begin - at, 0)), np.uint32(max(min(end - at, PLACES), 0))
        total += sum_between(products, low, high)
        cuda.syncthreads()
        at += PLACES
    if row < out.size:
        out[row] = total


@rung(staged_kernel, begin=False)
def staged(p):
    """A block takes 256 rows. Its threads bring all products to shared memory, as they lie; then each adds up a row.

    Source: Greathouse and Daga, "Efficient sparse matrix-vector multiplication on GPUs using the CSR storage format"
    (2014), their CSR-Stream.

    Leaves: a long row is added up by one thread, while 255 wait. And blocks have as many rows, but not as much work.
    """
    staged_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.values, p.columns, p.starts, p.x, p.result)


# ------------------------------------------------------------------------------------------------ equally much for all
# Walk through the matrix: to add a product is a step, and to finish a row is a step. The path has as many steps as
# there are values and rows together, and any piece of it is as much work as any other piece of its length. It merges
# two sorted lists, the numbers of the values and the ends of the rows: a piece's beginning is found as in chapter 41.


@cuda.jit(device=True)
def rows_before(step, starts, stored):
    """How many rows are finished in the first ``step`` steps. A warp searches together, all lanes with one ``step``.

    Row i is finished in step ``starts[i + 1] + i``. Each lane asks that of one row, so 32 are asked at a time.
    """
    low, high = max(np.int64(0), step - stored), min(step, np.int64(starts.size - 1))
    while low < high:
        width = (high - low + 31) // 32
        i = low + (cuda.laneid + 1) * width - 1  # the last of this lane's part
        finished = i < high and starts[i + 1] + i < step
        parts = cuda.popc(cuda.ballot_sync(FULL_WARP, finished))
        low += parts * width
        high = min(high, low + width - 1)
    return low


@cuda.jit(device=True)
def within(place, low, high):
    """A place, or the nearest one from low to high."""
    return np.uint32(min(max(place, low), high))


@cuda.jit(device=True)
def sum_of_warp(products, low, high):
    """In lane 0, the sum of products[low:high]. Each lane asks for four at a time."""
    total, j = f0, np.uint32(low + cuda.laneid)
    while np.uint32(j + 96) < high:
        total += (products[j] + products[np.uint32(j + 32)]) + (
            products[np.uint32(j + 64)] + products[np.uint32(j + 96)]
        )
        j = np.uint32(j + 128)
    while j < high:
        total += products[j]
        j = np.uint32(j + 32)
    return warp_sum(total)


@cuda.jit(launch_bounds=(BLOCK, RESIDENT))  # the compiler keeps to the registers that so many blocks have
def merged_kernel(values, columns, starts, x, piece, out, open_rows, open_sums):
    thread, lane, warp = np.uint32(cuda.threadIdx.x), np.uint32(cuda.laneid), np.uint32(cuda.threadIdx.x // 32)
    products = cuda.shared.array(PLACES, np.float32)
    long_rows, how_many = cuda.shared.array(MOST_LONG, np.uint32), cuda.shared.array(1, np.uint32)
    carried = cuda.shared.array(2, np.float32)  # of the row in which a tile begins, and of the one in which it ends
    bounds = cuda.shared.array(2, np.int64)  # the rows in which the piece begins and ends
    block, steps = np.int64(cuda.blockIdx.x), np.int64(starts.size) - 1 + values.size
    if warp < 2:
        found = rows_before(min((block + warp) * piece, steps), starts, np.int64(values.size))
        if lane == 0:
            bounds[warp] = found
    cuda.syncthreads()
    row, last_row = bounds[0], bounds[1]
    line = (block * piece - row) // LINE * LINE
    low, left = np.uint32(block * piece - row - line), np.uint32(last_row - row)  # so many rows end in the piece
    rest = np.uint32(min((block + 1) * piece, steps) - last_row - line)  # so many values are left
    if thread == 0:
        carried[1], how_many[0] = 0, 0
    while low < rest:
        high = min(rest, np.uint32(PLACES))
        if thread == 0:
            carried[0], carried[1] = carried[1], 0
        i, done, finished = thread, np.uint32(0), np.int32(BLOCK)
        begin, end = starts[row + min(i, left)], starts[row + min(np.uint32(i + 1), left)]
        bring_products(values, columns, x, line, high, products)
        cuda.syncthreads()
        while finished == BLOCK:  # a thread a row, if it is short; all of these may end here
            whole = i < left and end - line <= high  # else the row goes on, or has not begun
            if i <= left:
                first, beyond = within(begin - line, low, high), np.uint32(end - line) if whole else high
                if beyond - first > SHORT:
                    long_rows[cuda.atomic.add(how_many, 0, 1)] = i
                elif whole or first < high:
                    total = sum_between(products, first, beyond) + (carried[0] if i == 0 else f0)
                    if whole:
                        out[np.uint64(row + i)] = total
                    else:
                        carried[1] = total
            i = np.uint32(i + BLOCK)
            finished = cuda.syncthreads_count(np.int32(whole))
            done = np.uint32(done + finished)
            if finished == BLOCK:
                begin, end = starts[row + min(i, left)], starts[row + min(np.uint32(i + 1), left)]
        if how_many[0] > 0:
            for number in range(warp, how_many[0], WARPS):  # and a warp for a long one
                i = long_rows[number]
                first = within(starts[row + i] - line, low, high)
                beyond = np.uint32(starts[row + i + 1] - line) if i < done else high
                total = sum_of_warp(products, first, beyond) + (carried[0] if i == 0 else f0)
                if lane == 0:
                    if i < done:
                        out[np.uint64(row + i)] = total
                    else:
                        carried[1] = total
            cuda.syncthreads()
            if thread == 0:
                how_many[0] = 0
        row, left = row + done, np.uint32(left - done)
        line, low, rest = line + high, np.uint32(0), np.uint32(rest - high)
    i = thread  # a block without a value: the rest of a row, and rows of nothing
    while i < left:
        out[np.uint64(row + i)] = f0
        i = np.uint32(i + BLOCK)
    if thread == 0:
        open_rows[block], open_sums[block] = row + left, carried[1]


@cuda.jit
def finish_kernel(open_rows, open_sums, out):
    """Add what blocks have left of a row that a later block finished, in one order. A block for each such row."""
    partial = cuda.shared.array(32, np.float32)
    block = np.int64(cuda.blockIdx.x)
    row = open_rows[block]
    if row < out.size and (block == 0 or open_rows[block - 1] != row):  # the first that left this row open
        total, other = f0, block + cuda.threadIdx.x
        while other < open_rows.size and open_rows[other] == row:
            total += open_sums[other]
            other += BLOCK
        total = block_sum(total, partial)
        if cuda.threadIdx.x == 0:
            out[row] += total


def piece_of(steps: int) -> int:
    """How many steps a block takes, if all blocks are resident at the same time."""
    return max(TILE, blocks(steps, device.limits()["multiprocessors"] * RESIDENT))


@rung(merged_kernel, finish_kernel, begin=False)
def merged(p):
    """Rows and values are cut into pieces with equally many of both together, a block for each, wherever rows end.

    Two warps of a block search where its piece begins and ends. A block brings products to shared memory as in
    `staged`, 1,792 at a time. A thread adds up a row if it is short, and a warp if it is long. What a block leaves of
    an unfinished row is added by a last kernel, in one order.

    Source: Merrill and Garland, "Merge-based parallel sparse matrix-vector multiplication" (2016), for the cuts;
    Greathouse and Daga (2014) for what is done with a piece.
    """
    piece = piece_of(p.result.size + p.values.size)
    grid = blocks(p.result.size + p.values.size, piece)
    open_rows = device.empty(grid, np.int64, stream=p.stream)
    open_sums = device.empty(grid, np.float32, stream=p.stream)
    given = p.values, p.columns, p.starts, p.x, np.int64(piece), p.result, open_rows, open_sums
    merged_kernel[grid, BLOCK, p.stream](*given)
    if grid > 1:
        finish_kernel[grid, BLOCK, p.stream](open_rows, open_sums, p.result)


LADDER = (by_element, by_row, batched, warp_per_row, team_per_row, staged, merged)
