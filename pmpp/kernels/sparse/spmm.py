"""Sparse times dense: C = A B, where A is stored by compressed rows and B is a full matrix, row by row.

Chapter: notebooks/44_sparse.ipynb.  PMPP 4e ch. 14; 5e ch. 17.

A value of A is multiplied by a whole row of B: with k columns there are k multiply-adds for the 8 bytes of a value and
its column. As long as k is small, reading A is most of the work. Then it is reading the rows of B, which lie wherever
the columns say, but each of them in one piece. The name is that of the sparse BLAS.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.common.contents import check_places, check_starts
from pmpp.kernels.sparse import ladder
from pmpp.kernels.sparse.ladder import BLOCK, DTYPES, INDICES, WARPS, rows_before, rows_of
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

WIDE = 4  # columns of a lane, in vectors of 128 bits
CHUNK = 128  # values that a warp brings to shared memory at a time
HELD = WARPS * CHUNK
PIECE = 1024  # rows and values that a warp of `balanced` takes
MOST = 65_535 * 32  # columns of b: a grid has up to 65,535 blocks side by side, and a warp at least 32 columns
f0 = np.float32(0)


def reference(values: np.ndarray, columns: np.ndarray, starts: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row: the sum of the rows of ``b`` that its columns name, each times the value."""
    out = np.empty((starts.size - 1, b.shape[1]), values.dtype)
    with np.errstate(all="ignore"):
        for row in range(out.shape[0]):
            own = slice(starts[row], starts[row + 1])
            out[row] = (values[own, np.newaxis].astype(np.float64) * b[columns[own]]).sum(axis=0)
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(144) if rng is None else rng

    def case(lengths, width: int, k: int) -> tuple:
        return *rows_of(lengths, width, rng), rng.standard_normal((width, k), dtype=np.float32)

    made = {"no rows": case([], 3, 4), "nothing stored": case([0] * 5, 2, 4), "no columns": case([2, 1], 3, 0)}
    made["one"] = case([1], 1, 1)
    made["a column"] = case([3, 0, 2] * 9, 7, 1)
    made |= {f"{k} columns": case([4, 1, 0, 7, 33], 20, k) for k in (3, 4, 8, 33, 36, 132)}
    made["a row of several chunks"] = case([2, 0, 3 * CHUNK + 5, 1, 4], 50, 8)
    made["a row of several pieces"] = case([2, 0, 2 * PIECE + 5, 1, 4], 50, 12)
    made["many empty rows"] = case([1] + [0] * (PIECE + 40) + [2, 0, 0], 5, 4)
    made["power law"] = case(np.minimum(300 // np.arange(1, 201), 250)[rng.permutation(200)], 200, 8)
    values, columns, starts, b = case([4] * 20, 7, 8)
    made["starts of 64 bits"] = values, columns, starts.astype(np.int64), b
    values, columns, starts, b = case([5] * 30, 40, 4)
    values[::7], values[3::11], b[::9], b[1] = 0, np.nan, np.inf, -np.inf
    made["not finite"] = values, columns, starts, b
    return made


def cost(rows: int, width: int, stored: int, k: int) -> Cost:
    """k multiply-adds for each value. A, and ``width`` rows of B, read once, and the result written once."""
    return Cost(flops=2 * stored * k, bytes=8 * stored + 4 * (rows + 1) + 4 * k * (width + rows))


def tolerance(values: np.ndarray, columns: np.ndarray, starts: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How far from the exact sum a right one may be, for each element: `ladder.tolerance`, for each column of ``b``."""
    each = [ladder.tolerance(values, columns, starts, b[:, column]) for column in range(b.shape[1])]
    return np.stack(each, axis=1) if each else np.zeros((starts.size - 1, 0))


def arguments(values, columns, starts, b, *, out=None, stream=0) -> Problem:
    """Multiply a sparse matrix, stored by compressed rows, by a dense one.

    Args:
        values: a contiguous vector (s,) of float32, s >= 0: what is stored, row by row.
        columns: a contiguous vector (s,) of int32: the column of each, from 0 to w - 1, in any order. That is
            checked of a NumPy array alone.
        starts: a contiguous vector (rows + 1,) of int32 or int64: where in ``values`` each row starts, and at the end
            s. It must begin with 0 and never fall: that is checked of a NumPy array alone, too.
        b: a matrix (w, k) of float32, contiguous in C order, w >= 0, 0 <= k <= 2,097,120.
        out: a device array (rows, k) of float32, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. The same call gives the same bits on the same GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``scipy.sparse.csr_array(...) @ b``, whose ``data``, ``indices`` and ``indptr`` are the first three.

    >>> from pmpp.kernels.sparse import spmm
    >>> values, columns, starts = np.float32([5, 2, 7]), np.int32([1, 0, 2]), np.int32([0, 1, 1, 3])
    >>> spmm.balanced(values, columns, starts, np.float32([[1, 2], [10, 20], [100, 200]])).copy_to_host()
    array([[  50.,  100.],
           [   0.,    0.],
           [ 702., 1404.]], dtype=float32)
    """
    stream, on_host = device.as_stream(stream), (columns, starts)
    values = device.as_input("values", values, dtypes=DTYPES, ndim=1, stream=stream)
    columns = device.as_input("columns", columns, dtypes="int32", shape=values.shape, stream=stream)
    starts = device.as_input("starts", starts, dtypes=INDICES, ndim=1, stream=stream)
    b = device.as_input("b", b, dtypes=DTYPES, ndim=2, stream=stream)
    if not starts.size:
        raise ValueError("starts must have at least 1 element, one more than there are rows, had 0")
    if values.size and not b.shape[0]:
        raise ValueError(f"b must have a row for each column of A, had 0, but {values.size} values are stored")
    if b.shape[1] > MOST:
        raise ValueError(f"b must have at most {MOST} columns, had {b.shape[1]}")
    check_places("columns", on_host[0], b.shape[0], f"b with {b.shape[0]} rows")
    check_starts(on_host[1], values.size, "values")
    apart = {"values": values, "columns": columns, "starts": starts, "b": b}
    shape = starts.size - 1, b.shape[1]
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart=apart, stream=stream)
    p = Problem(out, stream=stream, values=values, columns=columns, starts=starts, b=b)
    if not values.size and out.size:
        clear(p)
        p.done = True
    return p


def clear(p):
    """Every sum is 0."""
    ladder.set_to_zero(p.result.reshape(p.result.size), p.stream)


# ------------------------------------------------------------------------------------------------------ a thread a sum


@cuda.jit
def column_by_column_kernel(values, columns, starts, b, out):
    thread = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    row, column = thread % out.shape[0], thread // out.shape[0]
    if column < out.shape[1]:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


@rung(column_by_column_kernel)
def column_by_column(p):
    """A thread takes one sum, and neighbouring threads neighbouring rows: a product with a vector for each column.

    Source: PMPP 4e section 14.3, its kernel for compressed rows, for each column of a matrix.

    Leaves: the lanes of a warp read elements of ``b`` that are a row apart or more, and write elements a row apart.
    """
    column_by_column_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.values, p.columns, p.starts, p.b, p.result)


@cuda.jit
def across_lanes_kernel(values, columns, starts, b, out):
    thread = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    row, column = thread // out.shape[1], thread % out.shape[1]
    if row < out.shape[0]:
        total = f0
        for j in range(starts[row], starts[row + 1]):
            total += values[j] * b[columns[j], column]
        out[row, column] = total


@rung(across_lanes_kernel)
def across_lanes(p):
    """Neighbouring threads take neighbouring columns of one row: they read a row of ``b`` in one piece.

    All of them read the same value of A and the same column, which is one request.

    Source: Bell and Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented processors"
    (2009), section 5.4, on many vectors.

    Leaves: three loads for each multiply-add: a value, its column, and an element of ``b``.
    """
    across_lanes_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.values, p.columns, p.starts, p.b, p.result)


# ------------------------------------------------------------------------------------------------ four columns a lane


def lanes_for(columns: int) -> int:
    """The lanes of a team, a power of two up to 32: together they have so many columns or vectors of columns.

    >>> [lanes_for(columns) for columns in (1, 2, 3, 8, 9, 100)]
    [1, 2, 4, 8, 16, 32]
    """
    lanes = 1
    while lanes < min(columns, 32):
        lanes *= 2
    return lanes


def in_vectors(p) -> bool:
    """Whether rows of ``b`` and of the result are whole vectors of 128 bits, at addresses that are multiples of it."""
    return p.b.shape[1] % WIDE == 0 and device.address(p.b) % 16 == 0 and device.address(p.result) % 16 == 0


@cuda.jit(device=True)
def four_of(b, row, column):
    return load128(b, np.int64(row) * b.shape[1] + column)


@cuda.jit(device=True)
def add_four(total, value, x):
    """``total`` and ``value`` times four elements of a row of ``b``."""
    return total[0] + value * x[0], total[1] + value * x[1], total[2] + value * x[2], total[3] + value * x[3]


@cuda.jit
def vectorised_kernel(values, columns, starts, b, lanes, out):
    thread = np.int64(cuda.blockIdx.x) * BLOCK + cuda.threadIdx.x
    row, column = thread // lanes, (cuda.blockIdx.y * lanes + thread % lanes) * WIDE
    if row < out.shape[0] and column < out.shape[1]:
        total = (f0, f0, f0, f0)
        for j in range(starts[row], starts[row + 1]):
            total = add_four(total, values[j], four_of(b, columns[j], column))
        store128(out, row * out.shape[1] + column, total)


@rung(vectorised_kernel, across_lanes_kernel)
def vectorised(p):
    """A lane takes four columns: one load of 128 bits of ``b`` for four multiply-adds, and a value serves them all.

    A team of 1 to 32 lanes has up to 128 columns of a row. Where the rows of ``b`` are no whole vectors, the kernel of
    `across_lanes` runs.

    Source: Yang, Buluc and Owens, "Design principles for sparse matrix multiplication on the GPU" (2018), their row
    splitting, with vectors in place of their lanes.

    Leaves: a row of many values is one team's, and all other teams have ended long before.
    """
    if not in_vectors(p):
        across_lanes.launch(p)
        return
    vectors = p.b.shape[1] // WIDE
    lanes = lanes_for(vectors)
    grid = blocks(p.result.shape[0] * lanes, BLOCK), blocks(vectors, lanes)
    vectorised_kernel[grid, BLOCK, p.stream](p.values, p.columns, p.starts, p.b, np.int32(lanes), p.result)


# ------------------------------------------------------------------------------------------------- equally much for all


@cuda.jit
def cut_kernel(starts, stored, piece, cuts):
    """cuts[t]: how many rows are finished before step number ``t * piece``. A warp for each."""
    tile = np.int64(cuda.blockIdx.x) * WARPS + cuda.threadIdx.x // 32
    if tile < cuts.size:
        steps = np.int64(starts.size) - 1 + stored
        found = rows_before(min(tile * piece, steps), starts, stored)
        if cuda.laneid == 0:
            cuts[tile] = found


def cuts_of(p, piece: int):
    """In which rows pieces of so many steps begin: a device array with an element for each, and one for the end."""
    cuts = device.empty(blocks(p.starts.size - 1 + p.values.size, piece) + 1, np.int64, stream=p.stream)
    cut_kernel[blocks(cuts.size, WARPS), BLOCK, p.stream](p.starts, np.int64(p.values.size), np.int64(piece), cuts)
    return cuts


@cuda.jit(device=True)
def four_zeros():
    return f0, f0, f0, f0


@cuda.jit(device=True)
def four_across(total, distance):
    """What a lane and the one so far away have together."""
    a, b = cuda.shfl_xor_sync(FULL_WARP, total[0], distance), cuda.shfl_xor_sync(FULL_WARP, total[1], distance)
    c, d = cuda.shfl_xor_sync(FULL_WARP, total[2], distance), cuda.shfl_xor_sync(FULL_WARP, total[3], distance)
    return total[0] + a, total[1] + b, total[2] + c, total[3] + d


@cuda.jit(device=True)
def store_four(out, row, column, total):
    store128(out, np.int64(row) * out.shape[1] + column, total)


@cuda.jit(device=True)
def one_zero():
    return (f0,)


@cuda.jit(device=True)
def one_of(b, row, column):
    return (b[row, column],)


@cuda.jit(device=True)
def add_one(total, value, x):
    return (total[0] + value * x[0],)


@cuda.jit(device=True)
def one_across(total, distance):
    other = cuda.shfl_xor_sync(FULL_WARP, total[0], distance)
    return (total[0] + other,)


@cuda.jit(device=True)
def store_one(out, row, column, total):
    out[row, column] = total[0]


def add_up_of(part_of, add):
    """A device function that adds up values, each times a part of a row of ``b``: four columns, or one."""

    @cuda.jit(device=True)
    def add_up(total, values, columns, low, high, step, b, column):
        """Add to ``total`` the values in places low, low + step, ... before high, each times its row of ``b``."""
        while low + 3 * step < high:  # four rows of b are on their way before the first is used
            second, third, fourth = low + step, low + 2 * step, low + 3 * step
            x, y = part_of(b, columns[low], column), part_of(b, columns[second], column)
            z, w = part_of(b, columns[third], column), part_of(b, columns[fourth], column)
            total = add(add(total, values[low], x), values[second], y)
            total = add(add(total, values[third], z), values[fourth], w)
            low += 4 * step
        while low < high:
            total = add(total, values[low], part_of(b, columns[low], column))
            low += step
        return total

    return add_up


four_columns_up, one_column_up = add_up_of(four_of, add_four), add_up_of(one_of, add_one)


def balanced_of(width, zeros, add_up, across, store):
    """The kernel of `balanced` whose lanes have ``width`` columns each: 4 in vectors, or 1."""

    @cuda.jit(device=True)
    def of_all_teams(total, lanes):
        """The sum over the teams of a warp of what they have in the same columns."""
        distance = 16
        while distance >= lanes:
            total = across(total, distance)
            distance //= 2
        return total

    @cuda.jit
    def balanced_kernel(values, columns, starts, b, cuts, piece, lanes, out, open_rows, open_sums):
        held, where = cuda.shared.array(HELD, np.float32), cuda.shared.array(HELD, np.int32)
        thread, place = np.int32(cuda.laneid), np.int32(cuda.threadIdx.x // 32 * CHUNK)
        number = np.int64(cuda.blockIdx.x) * WARPS + cuda.threadIdx.x // 32
        if number + 1 >= cuts.size:
            return
        team, teams = np.int32(thread // lanes), np.int32(32 // lanes)
        column = (cuda.blockIdx.y * lanes + thread % lanes) * width
        inside = column < b.shape[1]
        steps = np.int64(starts.size) - 1 + values.size
        row, last_row = cuts[number], cuts[number + 1]
        at, last = min(number * piece, steps) - row, min((number + 1) * piece, steps) - last_row
        total = zeros()  # what this team has of the open row
        while at < last or row < last_row:
            count = np.int32(min(last - at, CHUNK))
            for i in range(thread, count, 32):
                held[place + i], where[place + i] = values[at + i], columns[at + i]
            end = ends_of(starts, row, last_row, at, thread)
            cuda.syncwarp()
            stop = min(cuda.shfl_sync(FULL_WARP, end, 0), count)
            total = add_up(total, held, where, place + team, place + (stop if inside else 0), teams, b, column)
            finished = cuda.popc(cuda.ballot_sync(FULL_WARP, end <= count))
            if finished > 0:
                whole = of_all_teams(total, lanes)
                if team == 0 and inside:
                    store(out, row, column, whole)
                skip = 1  # the row that was open is done
                while finished > 0:
                    before = cuda.shfl_up_sync(FULL_WARP, end, 1)
                    if thread == 0:
                        before = stop
                    for first in range(skip, finished, teams):
                        i = first + team
                        begin, until = cuda.shfl_sync(FULL_WARP, before, i), cuda.shfl_sync(FULL_WARP, end, i)
                        if i < finished and inside:
                            own = add_up(zeros(), held, where, place + begin, place + until, np.int32(1), b, column)
                            store(out, row + i, column, own)
                    stop = cuda.shfl_sync(FULL_WARP, end, finished - 1)
                    row += finished
                    skip = 0
                    if finished == 32:
                        end = ends_of(starts, row, last_row, at, thread)
                        finished = cuda.popc(cuda.ballot_sync(FULL_WARP, end <= count))
                    else:
                        finished = 0
                high = place + (count if inside else 0)
                total = add_up(zeros(), held, where, place + stop + team, high, teams, b, column)
            at += count
            cuda.syncwarp()
        total = of_all_teams(total, lanes)
        if team == 0 and inside:
            store(open_sums, number, column, total)
        if thread == 0 and cuda.blockIdx.y == 0:
            open_rows[number] = row

    return balanced_kernel


@cuda.jit(device=True)
def ends_of(starts, row, last_row, at, lane):
    """Where a lane's row ends, counted from value number ``at`` on. Beyond the chunk if it ends there or later."""
    end = np.int32(CHUNK + 1)
    if row + lane < last_row:
        end = np.int32(min(np.int64(starts[row + 1 + lane]) - at, CHUNK + 1))
    return end


four_columns = balanced_of(WIDE, four_zeros, four_columns_up, four_across, store_four)
one_column = balanced_of(1, one_zero, one_column_up, one_across, store_one)


@cuda.jit
def finish_kernel(open_rows, open_sums, lanes, out):
    """Add what warps have left of rows that a later one finished, in one order. A warp for each row."""
    piece = np.int64(cuda.blockIdx.x) * WARPS + cuda.threadIdx.x // 32
    if piece < open_rows.size:
        row = open_rows[piece]
        if row < out.shape[0] and (piece == 0 or open_rows[piece - 1] != row):  # the first that left this row open
            team, column = cuda.laneid // lanes, cuda.laneid % lanes
            count, going_on = 0, True
            while going_on:  # how many warps left this row open: each lane asks one
                other = piece + count + cuda.laneid
                same = other < open_rows.size and open_rows[other] == row
                alike = cuda.popc(cuda.ballot_sync(FULL_WARP, same))
                count, going_on = count + alike, alike == 32
            for first in range(0, out.shape[1], lanes):
                total = f0
                if first + column < out.shape[1]:
                    for other in range(team, count, 32 // lanes):
                        total += open_sums[piece + other, first + column]
                distance = 16
                while distance >= lanes:
                    total += cuda.shfl_xor_sync(FULL_WARP, total, distance)
                    distance //= 2
                if team == 0 and first + column < out.shape[1]:
                    out[row, first + column] += total


@rung(cut_kernel, balanced_of, finish_kernel, ladder.merged_kernel, ladder.finish_kernel)
def balanced(p):
    """Rows and values are cut into pieces with equally many of both together, a warp for each, wherever rows end.

    A warp brings 128 values and their columns to shared memory. Its teams take a row each of those that end here. What
    belongs to the row that is open at the beginning or at the end they share. A last kernel adds the parts of rows that
    went over a cut, in one order. One column is a vector, and `ladder.merged` multiplies by that.

    Source: Merrill and Garland, "Merge-based parallel sparse matrix-vector multiplication" (2016), for the cuts; Yang,
    Buluc and Owens (2018), their merge-based product, which splits values alone.
    """
    if p.b.shape[1] == 1:
        out, x = p.result.reshape(p.result.size), p.b.reshape(p.b.size)
        one = Problem(out, stream=p.stream, values=p.values, columns=p.columns, starts=p.starts, x=x)
        ladder.merged.launch(one)
        return
    kernel, width = (four_columns, WIDE) if in_vectors(p) else (one_column, 1)
    parts = blocks(p.b.shape[1], width)
    lanes = lanes_for(parts)
    cuts = cuts_of(p, PIECE)
    pieces = cuts.size - 1
    open_rows = device.empty(pieces, np.int64, stream=p.stream)
    open_sums = device.empty((pieces, p.b.shape[1]), np.float32, stream=p.stream)
    grid = blocks(pieces, WARPS), blocks(parts, lanes)
    given = p.values, p.columns, p.starts, p.b, cuts, np.int64(PIECE), np.int32(lanes), p.result, open_rows, open_sums
    kernel[grid, BLOCK, p.stream](*given)
    if pieces > 1:
        lanes = lanes_for(p.b.shape[1])
        finish_kernel[blocks(pieces, WARPS), BLOCK, p.stream](open_rows, open_sums, np.int32(lanes), p.result)


LADDER = (column_by_column, across_lanes, vectorised, balanced)
