"""Matrix-vector product: y = A @ x in float32.

Chapter: notebooks/32_matrix_vector.ipynb.  PMPP 4e ch. 6 and 10.

Each element of A (M x N) is read once and takes part in one multiply-add: half an operation a byte. So memory is the
bound, and a tile in shared memory, which makes a product of two matrices fast, has nothing to keep for a second use.
The element of y for a row is a sum, a reduction of N products.

A matrix lies in memory by rows (C order) or by columns (Fortran order). In C order neighbours belong to one sum, and
neighbouring threads share a row. In Fortran order neighbours belong to different sums, and neighbouring threads have
different rows. The product x @ A is the product A.T @ x, and a transposed view needs no copy: it has the other order.
"""

from __future__ import annotations

import functools
import itertools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, round_up, sum_across_warps, warp_sum
from pmpp.kernels.common.arrivals import ARRIVALS, arrivals_for, is_last_block
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128
from pmpp.runtime.views import span

BLOCK = 128  # threads a block, where nothing else decides


def reference(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The product in float64: one sum of N products after another."""
    y = np.zeros(a.shape[0])
    with np.errstate(all="ignore"):
        for row in range(a.shape[0]):
            for value, weight in zip(a[row], x, strict=True):
                y[row] += float(value) * float(weight)
    return y


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and ``(a, x)``."""
    rng = np.random.default_rng(12) if rng is None else rng

    def pair(m: int, n: int, order: str = "C") -> tuple[np.ndarray, np.ndarray]:
        a = rng.standard_normal((m, n), dtype=np.float32)
        return np.asarray(a, order=order), rng.standard_normal(n, dtype=np.float32)

    shapes = {"one": (1, 1), "no rows": (0, 3), "nothing to add": (5, 0), "a column": (37, 1), "a row": (1, 45)}
    shapes |= {"a row of vectors": (1, 3000), "a long odd row": (2, 3001), "a warp and one": (33, 33)}
    shapes |= {"short rows": (300, 16), "short odd rows": (70, 7), "whole vectors": (9, 260), "long odd rows": (9, 519)}
    made = {name: pair(*shape) for name, shape in shapes.items()}
    by_columns = {"a column": (45, 1), "a row": (1, 37), "tall": (516, 9), "tall, odd": (301, 5)}
    by_columns |= {"wide": (8, 600), "wide, odd": (3, 301), "a tile and one": (129, 33)}
    made |= {f"by columns, {name}": pair(*shape, "F") for name, shape in by_columns.items()}
    a, x = pair(8, 64)
    made["cancellation"] = np.hstack([a, -a]), np.concatenate([x, x])
    outliers = a.copy()
    outliers[::3, ::5] *= 1e6
    made["outliers"] = outliers, x
    non_finite, x = pair(8, 67)
    non_finite[1, 4], non_finite[3, 0], non_finite[5, -1] = np.nan, np.inf, -np.inf  # an infinity times 0 is a NaN
    made["non-finite"] = non_finite, x
    made["by columns, non-finite"] = np.asfortranarray(non_finite), x
    return made


def cost(m: int, n: int, itemsize: int = 4) -> Cost:
    """A multiply-add for each of m n elements; A and x read once, y written once."""
    return Cost(flops=2 * m * n, bytes=itemsize * (m * n + n + m))


def tolerance(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """How far from `reference` a right sum may be: a term is rounded n + 1 times at most, each by half an ulp.

    A partial sum is no greater than the sum of the sizes. Source: Higham, Accuracy and Stability (2002), section 3.1.
    """
    sizes = [np.where(np.isfinite(one), np.abs(one.astype(np.float64)), 0) for one in (a, x)]
    return 2.0**-24 * (x.size + 1) * (sizes[0] @ sizes[1])


def arguments(a, x, *, out=None, stream=0) -> Problem:
    """Multiply a matrix and a vector.

    Args:
        a: a float32 matrix of shape (M, N), contiguous in C or in Fortran order: a transposed view needs no copy. An
            extent may be 0; N = 0 gives zeros.
        x: a contiguous float32 vector of shape (N,).
        out: a float32 device array of shape (M,), apart from a and x in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. It has the same bits in every run on one GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.matmul import matvec
    >>> matvec.split(np.float32([[1, 2], [3, 4]]), np.float32([10, 1])).copy_to_host()
    array([12., 34.], dtype=float32)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes="float32", ndim=2, layout="CF", stream=stream)
    x = device.as_input("x", x, dtypes="float32", ndim=1, shape=(a.shape[1],), stream=stream)
    out = device.as_output("out", out, shape=a.shape[:1], dtype="float32", apart={"a": a, "x": x}, stream=stream)
    p = Problem(out, stream=stream, a=a, x=x, by_rows=a.strides[1] == 4 or a.shape[1] == 1)
    if out.size and not x.size:
        zero_kernel[blocks(out.size, BLOCK), BLOCK, stream](out)
        p.done = True
    return p


@cuda.jit
def zero_kernel(out):
    row = cuda.grid(1)
    if row < out.size:
        out[row] = np.float32(0)


# ------------------------------------------------------------------------------------------------------- a thread a row


@cuda.jit
def thread_kernel(a, x, out):
    row = cuda.grid(1)
    if row < out.size:
        total = np.float32(0)
        for k in range(x.size):
            total += a[row, k] * x[k]
        out[row] = total


@rung(thread_kernel)
def thread_per_row(p):
    """A thread for each row walks along it.

    Source: PMPP 4e section 3.4.

    Leaves: in C order a warp reads 32 rows at the same moment, and each of its requests touches 32 sectors.
    """
    thread_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.a, p.x, p.result)


@cuda.jit
def warp_kernel(a, x, out):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    total = np.float32(0)
    if row < out.size:
        for k in range(lane, x.size, 32):
            total += a[row, k] * x[k]
    total = warp_sum(total)
    if row < out.size and lane == 0:
        out[row] = total


@rung(warp_kernel, thread_kernel)
def coalesced(p):
    """A warp shares a row in C order, and adds up by shuffles. In Fortran order the thread a row was coalesced before.

    Source: PMPP 4e sections 6.1 and 10.4.

    Leaves: a thread asks for 4 bytes, and waits for them before it asks for more.
    """
    if p.by_rows:
        warp_kernel[blocks(32 * p.result.size, BLOCK), BLOCK, p.stream](p.a, p.x, p.result)
    else:
        thread_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](p.a, p.x, p.result)


# ------------------------------------------------------------------------------------------------- 64 bytes under way
# From here on a kernel takes A as a vector: the memory that it lies in. A block of threads has two dimensions. Its
# threads along x read side by side; what those along y do depends on the order.

MOST = 1024  # threads a block may have
REGISTERS = 64  # a thread: as many as a block of 1024 leaves it
COLUMNS = 512  # threads a block, in Fortran order
SUMS = 4 * COLUMNS  # that these keep
ROUND = 16  # elements of A that a thread asks for at once: 64 bytes


class Plan(typing.NamedTuple):
    """How threads are spread over a matrix.

    In C order ``across`` threads share a row, and a block has ``along`` rows. In Fortran order ``across`` threads stand
    along a column with four rows each, and a block reads ``along`` columns at a time.
    """

    across: int
    along: int
    parts: int  # that each sum is cut into, each for a block of its own
    part: int  # how many terms each part has
    wide: bool  # whether all rows, or all columns, begin at multiples of 16 bytes


@cuda.jit(device=True)
def one(a, i):
    return a[np.uint64(i)]  # unsigned, so that the compiler need not wrap a negative index around


@cuda.jit(device=True)
def one_before(a, at, i, last):
    """a[at + i], or 0 if i is ``last`` or beyond."""
    return one(a, at + i) if i < last else np.float32(0)


@cuda.jit(device=True)
def four(a, at, i, step, last, wide, guarded):
    """Four elements from place i of the row that begins at a[at], neighbours if ``wide`` and else ``step`` apart.

    If ``guarded``, those at place ``last`` or beyond are 0, and are not read.
    """
    if wide:
        if guarded and i >= last:
            return np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        return load128(a, at + i)
    if guarded:
        return (
            one_before(a, at, i, last),
            one_before(a, at, i + step, last),
            one_before(a, at, i + 2 * step, last),
            one_before(a, at, i + 3 * step, last),
        )
    return one(a, at + i), one(a, at + i + step), one(a, at + i + 2 * step), one(a, at + i + 3 * step)


@cuda.jit(device=True)
def add_products(total, v, w):
    return total + v[0] * w[0] + v[1] * w[1] + v[2] * w[2] + v[3] * w[3]


@cuda.jit(device=True)
def add_round(total, a, x, at, i, beside, last, wide, guarded):
    """Add sixteen products of the row that begins at a[at], from column i on.

    The first product needs the last load. So the compiler cannot let a product wait between two loads.
    """
    step = 4 * beside
    v0 = four(a, at, i, beside, last, wide, guarded)
    v1 = four(a, at, i + step, beside, last, wide, guarded)
    v2 = four(a, at, i + 2 * step, beside, last, wide, guarded)
    v3 = four(a, at, i + 3 * step, beside, last, wide, guarded)
    total = add_products(total, v3, four(x, 0, i + 3 * step, beside, last, wide, guarded))
    total = add_products(total, v2, four(x, 0, i + 2 * step, beside, last, wide, guarded))
    total = add_products(total, v1, four(x, 0, i + step, beside, last, wide, guarded))
    return add_products(total, v0, four(x, 0, i, beside, last, wide, guarded))


@cuda.jit(device=True)
def rows_sum(a, x, at, first, last, wide):
    """This thread's share of the sum of the row that begins at a[at], from column ``first`` up to ``last``."""
    lane, team = cuda.threadIdx.x, cuda.blockDim.x
    beside = min(team, 32)  # threads that read side by side
    i, step = first + lane // 32 * 32 * ROUND + lane % 32 * (4 if wide else 1), ROUND * team
    total = np.float32(0)
    if beside == 32:
        while i + (12 * 32 + 3 if wide else 15 * 32) < last:  # a whole round; and 32 is known, so one address does
            total = add_round(total, a, x, at, i, 32, last, wide, False)
            i += step
    while i < last:
        total = add_round(total, a, x, at, i, beside, last, wide, True)
        i += step
    return total


@cuda.jit(device=True)
def team_sum(value):
    """The sum over a team of up to 32 lanes, or over each warp of a larger team; as `warp_sum`."""
    distance = min(cuda.blockDim.x, 32) // 2
    while distance:
        value += cuda.shfl_xor_sync(FULL_WARP, value, distance)
        distance //= 2
    return value


@cuda.jit(device=True)
def rows_block(a, x, out, m, n, part, wide):
    """A team of blockDim.x threads for a part of a row. Teams of more than a warp have a block for themselves."""
    partial = cuda.shared.array(32, np.float32)
    row = np.int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
    first = np.int64(cuda.blockIdx.y) * part
    # A team without a row takes the last one, since all lanes of a warp must take part in its shuffles.
    total = rows_sum(a, x, min(row, m - 1) * n, first, min(first + part, n), wide)
    total = team_sum(total)
    if cuda.blockDim.x > 32:
        total = sum_across_warps(total, partial)
    if cuda.threadIdx.x == 0 and row < m:
        out[row * cuda.gridDim.y + cuda.blockIdx.y] = total


@cuda.jit(max_registers=REGISTERS)
def rows_kernel(a, x, out, m, n, part):
    rows_block(a, x, out, m, n, part, True)


@cuda.jit(max_registers=2 * REGISTERS)
def odd_rows_kernel(a, x, out, m, n, part):
    rows_block(a, x, out, m, n, part, False)


@cuda.jit(device=True)
def four_within(a, i):
    """a[i] and its three right neighbours; 0 for those that lie outside of a."""
    return (
        one(a, i) if 0 <= i < a.size else np.float32(0),
        one(a, i + 1) if 0 <= i + 1 < a.size else np.float32(0),
        one(a, i + 2) if 0 <= i + 2 < a.size else np.float32(0),
        one(a, i + 3) if 0 <= i + 3 < a.size else np.float32(0),
    )


@cuda.jit(device=True)
def add_scaled(t, v, w):
    return t[0] + v[0] * w, t[1] + v[1] * w, t[2] + v[2] * w, t[3] + v[3] * w


@cuda.jit(device=True)
def four_rows(a, i, inside):
    """a[i] and its three right neighbours, four rows of a column; zeros if the column is not ``inside``."""
    if inside:
        return load128(a, i)
    return np.float32(0), np.float32(0), np.float32(0), np.float32(0)


@cuda.jit(device=True)
def columns_sums(a, x, pitch, row, first, last, end, edge):
    """This thread's share of the sums of four rows, over the columns from ``first`` up to ``last``.

    Columns begin ``pitch`` elements apart. Vectors in columns below ``edge``, and from ``end`` on, may reach beyond the
    matrix. There are at least ``edge`` columns, else x is read beyond its end: a matrix with fewer has one row or one
    column, and is taken by rows.
    """
    high, f0 = cuda.blockDim.y, np.float32(0)
    k, until = first + cuda.threadIdx.y, min(last, end)
    t = f0, f0, f0, f0
    if k < edge:
        t = add_scaled(t, four_within(a, k * pitch + row), one(x, k))
        k += high
    behind = max(end, first)
    behind += (cuda.threadIdx.y - (behind - first)) & (high - 1)  # the first there that is this thread's; high is 2^i
    if behind < last:
        t = add_scaled(t, four_within(a, behind * pitch + row), one(x, behind))
    step, p = high * pitch, k * pitch + row
    while k + 7 * high < until:  # 128 bytes, where there are so many columns
        v0, v1, v2, v3 = load128(a, p), load128(a, p + step), load128(a, p + 2 * step), load128(a, p + 3 * step)
        p += 4 * step
        v4, v5, v6, v7 = load128(a, p), load128(a, p + step), load128(a, p + 2 * step), load128(a, p + 3 * step)
        p += 4 * step
        w0, w1, w2, w3 = one(x, k), one(x, k + high), one(x, k + 2 * high), one(x, k + 3 * high)
        k += 4 * high
        w4, w5, w6, w7 = one(x, k), one(x, k + high), one(x, k + 2 * high), one(x, k + 3 * high)
        k += 4 * high
        t = add_scaled(add_scaled(add_scaled(add_scaled(t, v7, w7), v6, w6), v5, w5), v4, w4)
        t = add_scaled(add_scaled(add_scaled(add_scaled(t, v3, w3), v2, w2), v1, w1), v0, w0)
    while k < until:  # up to seven columns are left
        v0, v1 = load128(a, p), four_rows(a, p + step, k + high < until)
        v2, v3 = four_rows(a, p + 2 * step, k + 2 * high < until), four_rows(a, p + 3 * step, k + 3 * high < until)
        w0, w1 = one(x, k), one_before(x, 0, k + high, until)
        w2, w3 = one_before(x, 0, k + 2 * high, until), one_before(x, 0, k + 3 * high, until)
        t = add_scaled(add_scaled(add_scaled(add_scaled(t, v3, w3), v2, w2), v1, w1), v0, w0)
        k, p = k + 4 * high, p + 4 * step
    return t


@cuda.jit(device=True)
def tile_sums(sums, shift, t):
    """Put a thread's sums of four rows into ``sums``, and add up those of each four threads along y.

    `tile_sum` tells what a row of the tile has then. ``shift``: how far above the thread's four rows of the tile those
    of ``t`` are. There are two barriers.
    """
    lane, lanes, high = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockDim.y
    width, thread, threads = 4 * lanes, cuda.threadIdx.y * lanes + lane, high * lanes
    # Row r of the tile has place (r % 4) * lanes + r // 4: the lanes of a warp store side by side. Rows above the tile
    # are put below it, and neither is used.
    r, here = 4 * lane - shift, cuda.threadIdx.y * width
    sums[here + (r & 3) * lanes + ((r >> 2) & (lanes - 1))] = t[0]
    sums[here + ((r + 1) & 3) * lanes + (((r + 1) >> 2) & (lanes - 1))] = t[1]
    sums[here + ((r + 2) & 3) * lanes + (((r + 2) >> 2) & (lanes - 1))] = t[2]
    sums[here + ((r + 3) & 3) * lanes + (((r + 3) >> 2) & (lanes - 1))] = t[3]
    # Added up in two steps: four sums to one, as many as there are threads, and behind a barrier these to one a row.
    groups = max(high // 4, 1)
    cuda.syncthreads()
    i = thread
    while i < groups * width:
        total = np.float32(0)
        for k in range(min(high, 4)):
            total += sums[i + k * groups * width]
        sums[i] = total
        i += threads
    cuda.syncthreads()


@cuda.jit(device=True)
def tile_sum(sums, j):
    """The sum of row 4 threadIdx.x + j of the tile, behind `tile_sums`."""
    lanes, total = cuda.blockDim.x, np.float32(0)
    for group in range(max(cuda.blockDim.y // 4, 1)):
        total += sums[4 * group * lanes + j * lanes + cuda.threadIdx.x]
    return total


@cuda.jit(max_registers=REGISTERS)
def columns_kernel(a, x, out, m, n, pitch, room, part, offset, edge):
    """Columns of A begin ``pitch`` elements apart, and the parts of the sums ``room`` elements, which are all stored.

    ``offset``: of A behind a multiple of 16 bytes, in elements. ``edge``: 0 if all columns begin at such multiples.

    A column that does not is read from the multiple before it. How far before is the same for every fourth column, and
    so for all that a thread reads.
    """
    sums = cuda.shared.array(SUMS, np.float32)
    lane, own = cuda.threadIdx.x, 4 * cuda.blockDim.x
    own -= 4 if edge else 0  # rows; of the four below them some threads read only a part
    top, first = np.int64(cuda.blockIdx.x) * own, np.int64(cuda.blockIdx.y) * part
    shift = (offset + (first + cuda.threadIdx.y) * pitch) & 3
    row = top + 4 * lane - shift
    if row >= m:
        row = top - shift  # who has no row reads what another reads
    tile_sums(sums, shift, columns_sums(a, x, pitch, row, first, min(first + part, n), max(n - edge, edge), edge))
    j = cuda.threadIdx.y
    while j < 4:
        r = 4 * lane + j
        if r < own and top + r < room:
            out[cuda.blockIdx.y * room + top + r] = tile_sum(sums, j)
        j += cuda.blockDim.y


def memory(a: typing.Any) -> typing.Any:
    """All elements of a matrix in C or Fortran order as a vector, in the order in which they lie in memory."""
    return span(device.as_input("a", a, dtypes="float32", layout="CF"))  # Numba's own arrays do not know their span


def launch(p: Problem, plan: Plan) -> None:
    """Carry out a plan. Parts of sums are the columns of another matrix, whose product with ones is y.

    In Fortran order its columns begin at multiples of 16 bytes, wherever those of A do.
    """
    m, n = p.a.shape
    if plan.parts == 1:
        launch_one(p.by_rows, memory(p.a), p.x, p.result, m, n, m, m, plan, p.stream)
        return
    room = m if p.by_rows else round_up(m, 4)
    sums = device.empty(plan.parts * room, np.float32, stream=p.stream)
    launch_one(p.by_rows, memory(p.a), p.x, sums, m, n, m, room, plan, p.stream)
    wide = not p.by_rows or plan.parts % 4 == 0
    second = plan_of(m, plan.parts, p.by_rows, wide, multiprocessors(), 1)
    launch_one(p.by_rows, sums, ones()[: plan.parts], p.result, m, plan.parts, room, m, second, p.stream)


def launch_one(by_rows, a, x, out, m, n, pitch, room, plan, stream) -> None:
    """One launch, of a block for each part of some rows. ``pitch`` and ``room``: as in `columns_kernel`."""
    shape = plan.across, plan.along
    if by_rows:
        kernel = rows_kernel if plan.wide else odd_rows_kernel
        kernel[(blocks(m, plan.along), plan.parts), shape, stream](a, x, out, m, n, plan.part)
    else:
        edge = 0 if plan.wide else blocks(3, m)  # columns in which a vector may begin before A, or end behind it
        tiles = tiles_of(m, plan.across, plan.wide)
        offset = device.address(a) // 4 % 4
        columns_kernel[(tiles, plan.parts), shape, stream](a, x, out, m, n, pitch, room, plan.part, offset, edge)


def tiles_of(m: int, across: int, wide: bool) -> int:
    """How many blocks stand side by side along columns of M elements. Where these begin anywhere, blocks overlap."""
    return blocks(m, 4 * (across if wide else across - 1))


PARTS = 1024  # that a sum is cut into, at most


@device.cached(1)
def ones() -> typing.Any:
    """The vector that the second launch multiplies by."""
    return device.to_device(np.ones(PARTS, np.float32))


def multiprocessors() -> int:
    """Of the current GPU."""
    return device.limits()["multiprocessors"]


def whole_vectors(p: Problem) -> bool:
    """Whether every row (C order) or column (Fortran order) begins at a multiple of 16 bytes, and x if need be."""
    along = p.a.shape[1] if p.by_rows else p.a.shape[0]
    starts = (p.a, p.x) if p.by_rows else (p.a,)
    return along % 4 == 0 and all(device.address(one) % 16 == 0 for one in starts)


@rung(rows_kernel, odd_rows_kernel, columns_kernel)
def vectorised(p):
    """A thread has 64 bytes under way: four 128-bit loads of a row. Of columns it has four or eight loads.

    In Fortran order the four warps of a block share the columns, and add up what they have in shared memory.

    Source: PMPP 5e section 6.3; J. D. C. Little, Operations Research 9 (1961), for how many bytes it takes.

    Leaves: a warp a row is too much for a short row. It is too little for a long one, if there are few of them.
    """
    launch(p, Plan(32, 4, 1, p.x.size, whole_vectors(p)))


def power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


BUSY = 512  # threads on a multiprocessor that keep the memory busy: with 64 bytes each, 32 KiB are under way
RESIDENT = 1024  # threads that fit there, with REGISTERS registers each
LINE = 8  # threads whose 128-bit loads fill a line of the cache
ROUNDS = 8  # that a second launch must save to be worth its time: by rows,
LAUNCH = 2**23  # and by columns in bytes: the memory delivers so many in the two microseconds that it takes
PIECE = 16  # bytes that the memory could deliver while it begins with another piece of a column


@functools.lru_cache(4096)
def plan_of(m: int, n: int, by_rows: bool, wide: bool, sms: int, most: int) -> Plan:
    """How threads are spread over an M x N matrix, for a GPU with ``sms`` multiprocessors, in ``most`` parts."""
    across, along, parts = (rows_plan if by_rows else columns_plan)(m, n, wide, sms, most)
    part = round_up(blocks(n, parts), 4)
    return Plan(across, along, blocks(n, part), part, wide)


def rows_plan(m: int, n: int, wide: bool, sms: int, most: int) -> tuple[int, int, int]:
    """Threads a row, rows a block, and parts of a row."""
    useful = power(blocks(n, ROUND))  # more would have nothing to do
    wanted = power(sms * BUSY // m + 1) // 2  # so many keep the memory busy
    # Each of these has four rounds, before they add up what they have. Rows that begin anywhere are read in loads of 4
    # bytes: a warp a row then has enough under way, and more would wait for each other at the end.
    several = min(useful // 4, BLOCK) if wide else 32
    team = min(useful, max(wanted, several, 32), MOST if wide else MOST // 2)
    along = BLOCK // team if team <= 32 else 1
    threads, rounds = blocks(m, along) * along * team, n // (ROUND * team)
    saved = rounds - rounds * threads // (sms * BUSY)  # rounds, if the threads of more parts keep the memory busy
    parts = min(blocks(sms * BUSY, threads), rounds, most) if saved >= ROUNDS else 1
    return team, along, max(parts, 1)


def columns_plan(m: int, n: int, wide: bool, sms: int, most: int) -> tuple[int, int, int]:
    """Threads along a column, with four rows each, columns that a block reads at a time, and parts of the sums.

    Wide blocks are few, and their sums may have to be cut into parts. Narrow ones are many, and need no second launch.
    But they read shorter pieces, and overlap more where columns begin anywhere. What takes the least time by
    `columns_time` is chosen.
    """
    useful = power(blocks(m, 4) + (0 if wide else 1))
    several = max(power(blocks(n, ROUND)), 4)  # each of these has four rounds
    found = []
    for lanes in (4 * LINE, 2 * LINE, LINE):
        lanes = min(lanes, useful)
        high = max(min(power(blocks(n, 4)), several, COLUMNS // lanes), 1 if wide else 4)
        across = max(lanes, min(BLOCK // high, useful))
        tiles, rounds = tiles_of(m, across, wide), max(n // (ROUND // 4 * high), 1)
        few = max(blocks(sms * BUSY // 2, across * high), sms // 2)
        for parts in (1, few // tiles, blocks(few, tiles), 2 * few // tiles):
            parts = max(1, min(parts, rounds, most))
            found.append((columns_time(tiles, n, across, high, parts, sms), across, high, parts))
    return min(found, key=lambda option: option[0])[1:]  # of equal ones the widest blocks, and the fewest parts


def columns_time(tiles: int, n: int, across: int, high: int, parts: int, sms: int) -> float:
    """The time of a plan, as the bytes that a busy memory delivers meanwhile.

    As many blocks as fit on the GPU run at a time. A thread has 128 bytes under way, and half of BUSY threads on each
    multiprocessor keep the memory busy, but no fewer than half of the multiprocessors do. If there are fewer blocks
    than that, at the end too, it takes as long as if they were there. The time of two blocks more is what an H200
    showed of how much a launch of few blocks loses.
    """
    threads, grid = across * high, tiles * parts
    fit, few = sms * RESIDENT // threads, max(blocks(sms * BUSY // 2, threads), sms // 2)
    left = grid % fit
    turns = grid - left + (max(left, few) if left else 0)
    pieces = turns * blocks(n, parts) * (1 + 2 * COLUMNS / (grid * threads))
    return pieces * (16 * across + PIECE) + (LAUNCH if parts > 1 else 0)


@rung(rows_kernel, odd_rows_kernel, columns_kernel)
def fitted(p):
    """As many threads share a row as fill the GPU, and no more than have something to do; one launch.

    Leaves: few long rows are few blocks, and most of the GPU is idle.
    """
    launch(p, plan_of(*p.a.shape, p.by_rows, whole_vectors(p), multiprocessors(), 1))


@rung(rows_kernel, odd_rows_kernel, columns_kernel)
def split(p):
    """Several blocks share a row if there are too few rows. A second launch adds up what they leave, in order.

    Leaves: rows that begin anywhere are read in loads of 4 bytes. A thread needs 128 registers to have sixteen of them
    under way, so that few threads fit on a multiprocessor.
    """
    launch(p, plan_of(*p.a.shape, p.by_rows, whole_vectors(p), multiprocessors(), PARTS))


# ------------------------------------------------------------------------------------------------ rows that begin alike

APART = 4  # rows that begin equally far from a multiple of 16 bytes, whatever their length: every fourth
PAIRS = 2 * APART  # rows of which four teams take two each
LEAST = 512  # columns that make it worth while: two rounds for a warp
SHARE = 38  # columns of a row for each thread of its team, at least: the fastest that an H200 showed


@cuda.jit(device=True)
def neighbours(x, i):
    return one(x, i), one(x, i + 1), one(x, i + 2), one(x, i + 3)


@cuda.jit(device=True)
def pair_sums(a, x, p0, p1, first, last, head):
    """This thread's share of the sums of two rows that begin at a[p0] and a[p1], from ``first`` up to ``last``.

    From ``head`` on they are read in vectors. What lies before the first one and behind the last, at most three
    elements each, is read by threads of its own.
    """
    lane, step = np.int64(cuda.threadIdx.x), 4 * np.int64(cuda.blockDim.x)
    t0, t1, tail = np.float32(0), np.float32(0), head + (last - head) // 4 * 4
    i = head + 4 * lane
    while i + step < tail:
        v0, v1, v2, v3 = load128(a, p0 + i), load128(a, p1 + i), load128(a, p0 + i + step), load128(a, p1 + i + step)
        w = neighbours(x, i + step)
        t1, t0 = add_products(t1, v3, w), add_products(t0, v2, w)
        w = neighbours(x, i)
        t1, t0 = add_products(t1, v1, w), add_products(t0, v0, w)
        i += 2 * step
    if i < tail:
        w = neighbours(x, i)
        t0, t1 = add_products(t0, load128(a, p0 + i), w), add_products(t1, load128(a, p1 + i), w)
    k = first + lane
    if k >= head:
        k += tail - head
    if k < last:
        weight = one(x, k)
        t0, t1 = t0 + one(a, p0 + k) * weight, t1 + one(a, p1 + k) * weight
    return t0, t1


@cuda.jit(max_registers=REGISTERS)
def shifted_kernel(a, x, out, m, n, part, offset):
    """A team of blockDim.x threads has two rows, APART rows apart, which meet the same elements of x in vectors.

    ``offset``: of A behind a multiple of 16 bytes, in elements. Teams of more than a warp have a block for themselves.
    """
    partial = cuda.shared.array((2, 32), np.float32)
    lane, warps = cuda.threadIdx.x, cuda.blockDim.x // 32
    team = np.int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
    row = team // APART * PAIRS + team % APART
    first = np.int64(cuda.blockIdx.y) * part
    last = min(first + part, n)
    # Who has no such row takes another one, since all lanes of a warp must take part in its shuffles.
    p0 = min(row, m - 1) * n
    p1 = p0 + APART * n if row + APART < m else p0
    t0, t1 = pair_sums(a, x, p0, p1, first, last, min(first + ((0 - offset - p0 - first) & 3), last))
    t0, t1 = warp_sum(t0), warp_sum(t1)
    if warps > 1:
        if lane % 32 == 0:
            partial[0, lane // 32], partial[1, lane // 32] = t0, t1
        cuda.syncthreads()
        if lane == 0:
            t0, t1 = np.float32(0), np.float32(0)
            for other in range(warps):
                t0, t1 = t0 + partial[0, other], t1 + partial[1, other]
    if lane == 0 and row < m:
        out[row * cuda.gridDim.y + cuda.blockIdx.y] = t0
        if row + APART < m:
            out[(row + APART) * cuda.gridDim.y + cuda.blockIdx.y] = t1


def launch_shifted(p: Problem, plan: Plan) -> None:
    """Carry out a plan for rows that begin anywhere. Parts are added up as in `launch`."""
    m, n = p.a.shape
    a, out = memory(p.a), p.result
    if plan.parts > 1:
        out = device.empty(m * plan.parts, np.float32, stream=p.stream)
    grid = blocks(blocks(m, PAIRS) * APART, plan.along), plan.parts
    shape, offset = (plan.across, plan.along), device.address(a) // 4 % 4
    shifted_kernel[grid, shape, p.stream](a, p.x, out, m, n, plan.part, offset)
    if plan.parts > 1:
        second = plan_of(m, plan.parts, True, plan.parts % 4 == 0, multiprocessors(), 1)
        launch_one(True, out, ones()[: plan.parts], p.result, m, plan.parts, m, m, second, p.stream)


@functools.lru_cache(4096)
def shifted_plan(m: int, n: int, sms: int, most: int) -> Plan | None:
    """How threads are spread over M rows that begin anywhere, two to a team; None if they are too few or too short.

    ``along`` is the number of teams in a block.
    """
    if m < PAIRS or n < LEAST:
        return None
    teams = blocks(m, PAIRS) * APART
    wanted = power(sms * BUSY // teams + 1) // 2  # so many threads each keep the memory busy
    several = min(power(n // SHARE + 1) // 2, BLOCK)
    team = max(min(max(wanted, several), power(blocks(n, 4)), BUSY), 32)
    rounds = n // (ROUND // 2 * team)
    saved = rounds - rounds * teams * team // (sms * BUSY)
    parts = max(min(blocks(sms * BUSY, teams * team), rounds, most), 1) if saved >= ROUNDS else 1
    part = round_up(blocks(n, parts), 4)
    return Plan(team, BLOCK // 32 if team == 32 else 1, blocks(n, part), part, False)


@rung(shifted_kernel, *split.kernels)
def shifted(p):
    """Rows that begin anywhere are read by 128 bits, too, from the first multiple of 16 bytes on.

    Every fourth row begins equally far from one, and meets the same elements of x there. A team takes two such rows, so
    that it loads x once for both. Where rows are few, short or begin well, and by columns, this is `split`.

    Leaves: a second launch waits until the first has ended, and takes longer to begin than to add up parts.
    """
    anywhere = p.by_rows and not whole_vectors(p)
    plan = shifted_plan(*p.a.shape, multiprocessors(), PARTS) if anywhere else None
    if plan is None:
        split.launch(p)
    else:
        launch_shifted(p, plan)


# ----------------------------------------------------------------------------------- parts, added up by the last block


@cuda.jit(device=True)
def four_columns(a, i, step, k, high, last, guarded):
    """Four rows of columns k, k + high and so on, the first at a[i]; zeros from column ``last`` on, if ``guarded``."""
    return (
        four_rows(a, i, not guarded or k < last),
        four_rows(a, i + step, not guarded or k + high < last),
        four_rows(a, i + 2 * step, not guarded or k + 2 * high < last),
        four_rows(a, i + 3 * step, not guarded or k + 3 * high < last),
    )


@cuda.jit(device=True)
def add_columns(t, v, x, k, high, last, guarded):
    """Add to four sums what `four_columns` has, times their elements of x."""
    for j in range(4):
        weight = one(x, k + j * high) if not guarded or k + j * high < last else np.float32(0)
        t = add_scaled(t, v[j], weight)
    return t


@cuda.jit(device=True)
def add_sixteen(t, a, x, i, step, k, high, last, guarded):
    """Add the products of sixteen columns, from column k on, which is at a[i]: 256 bytes under way."""
    v0 = four_columns(a, i, step, k, high, last, guarded)
    v1 = four_columns(a, i + 4 * step, step, k + 4 * high, high, last, guarded)
    v2 = four_columns(a, i + 8 * step, step, k + 8 * high, high, last, guarded)
    v3 = four_columns(a, i + 12 * step, step, k + 12 * high, high, last, guarded)
    t = add_columns(t, v3, x, k + 12 * high, high, last, guarded)
    t = add_columns(t, v2, x, k + 8 * high, high, last, guarded)
    t = add_columns(t, v1, x, k + 4 * high, high, last, guarded)
    return add_columns(t, v0, x, k, high, last, guarded)


@cuda.jit(device=True)
def long_sums(a, x, pitch, row, first, last, end, edge):
    """As `columns_sums`, with twice as many bytes under way."""
    high, f0 = cuda.blockDim.y, np.float32(0)
    k, until = first + cuda.threadIdx.y, min(last, end)
    t = f0, f0, f0, f0
    behind = max(end, first)
    behind += (cuda.threadIdx.y - (behind - first)) & (high - 1)  # the first there that is this thread's; high is 2^i
    outer, weight = t, f0  # an outer column is loaded first and added last, so that no thread waits for it
    if k < edge:
        outer, weight = four_within(a, k * pitch + row), one(x, k)
        k += high
    if behind < last:
        t = add_scaled(t, outer, weight)
        outer, weight = four_within(a, behind * pitch + row), one(x, behind)
    step, i = high * pitch, k * pitch + row
    while k + 15 * high < until:
        t = add_sixteen(t, a, x, i, step, k, high, until, False)
        k, i = k + 16 * high, i + 16 * step
    if k < until:
        t = add_sixteen(t, a, x, i, step, k, high, until, True)
    return add_scaled(t, outer, weight)


@cuda.jit(device=True)
def parts_sum(kept, at, step, first, by, parts):
    """The sum of the parts ``first``, ``first + by`` and so on, below ``parts``; part p is at kept[at + p * step]."""
    total, p, more = np.float32(0), np.int64(first), by * step
    i = at + p * step
    while p + 3 * by < parts:
        s0, s1, s2, s3 = one(kept, i), one(kept, i + more), one(kept, i + 2 * more), one(kept, i + 3 * more)
        total += s0 + s1 + s2 + s3
        p, i = p + 4 * by, i + 4 * more
    while p < parts:
        total += one(kept, i)
        p, i = p + by, i + more
    return total


@cuda.jit(max_registers=2 * REGISTERS)
def last_block_kernel(a, x, out, kept, arrivals, m, n, own, room, part, offset, edge):
    """Blocks keep the parts of their sums in ``kept``. The last one of a tile to arrive adds them up, in a fixed order.

    It has a team for each four threads along y, each of which adds every so many-th part. A sum that is not cut is
    stored at once. For the other arguments see `columns_kernel`.
    """
    sums, before = cuda.shared.array(SUMS, np.float32), cuda.shared.array(1, np.uint32)
    lane, lanes, high, parts = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockDim.y, cuda.gridDim.y
    top, first = np.int64(cuda.blockIdx.x) * own, np.int64(cuda.blockIdx.y) * part
    shift = (offset + top + (first + cuda.threadIdx.y) * m) & 3
    row = top + 4 * lane - shift
    if row >= m:
        row = top - shift
    tile_sums(sums, shift, long_sums(a, x, m, row, first, min(first + part, n), max(n - edge, edge), edge))
    target, at = (out, top) if parts == 1 else (kept, cuda.blockIdx.y * room + top)
    j = cuda.threadIdx.y
    while j < 4:
        r = 4 * lane + j
        if r < own and top + r < m:
            target[at + r] = tile_sum(sums, j)
        j += high
    if parts == 1 or not is_last_block(arrivals, cuda.blockIdx.x, parts, before):
        return
    team, teams, width, threads = cuda.threadIdx.y >> 2, max(high >> 2, 1), 4 * lanes, high * lanes
    thread = cuda.threadIdx.y * lanes + lane
    r = thread - team * width
    while r < width:
        if r < own and top + r < m:
            sums[team * width + r] = parts_sum(kept, top + r, room, team, teams, parts)
        r += threads
    cuda.syncthreads()
    r = thread
    while r < own:
        if top + r < m:
            total = np.float32(0)
            for team in range(teams):
                total += sums[team * width + r]
            out[top + r] = total
        r += threads


FEW = 256  # threads a block: two such blocks fit on a multiprocessor, since each thread has twice REGISTERS
ARRIVAL = 2**23  # bytes that the memory could deliver while parts are kept, counted and added up;
TRIP = 3 * 2**20  # while a load is under way, 700 ns;
MEETING = 2**16  # and while a block adds up what one more of its threads has of a row
TAKEN = 1.75  # of its share of the bandwidth, what a multiprocessor takes in if others have no blocks
TILES = 8 * LINE, 4 * LINE, 2 * LINE, LINE, LINE // 2, 2  # threads along a column that plans try; two fill a sector


def spare_rows(p: Problem) -> int:
    """How far a vector of a tile may begin above its rows, at most: so many fewer rows does a tile have."""
    if whole_vectors(p):
        return 0
    return 2 if p.a.shape[0] % 2 == 0 and device.address(p.a) % 8 == 0 else 3


@functools.lru_cache(4096)
def last_block_plan(m: int, n: int, spare: int, sms: int, most: int) -> Plan:
    """How threads are spread over an M x N matrix in Fortran order, for a GPU with ``sms`` multiprocessors.

    ``spare``: see `spare_rows`. What takes the least time by `last_block_time` is chosen.
    """
    useful = power(blocks(m + spare, 4))
    several = max(power(blocks(n, ROUND)), 4)  # more would have less than a round each
    found = []
    for lanes, threads in itertools.product(TILES, (FEW // 2, FEW, 2 * FEW)):
        lanes = min(lanes, useful)
        high = max(min(power(blocks(n, 4)), several, threads // lanes), 4 if spare else 1)
        across = max(lanes, min(threads // high, useful))
        tiles, rounds = blocks(m, 4 * across - spare), max(n // (ROUND // 2 * high), 1)
        fit = sms * (RESIDENT // 2 // (across * high))
        for wanted in (tiles, sms // 4, sms // 2, sms, fit):
            parts = max(1, min(wanted // tiles, rounds, most if tiles <= ARRIVALS else 1))
            found.append((last_block_time(tiles, n, across, high, parts, sms), across, high, parts))
    across, high, parts = min(found, key=lambda option: option[0])[1:]
    part = round_up(blocks(n, parts), 4)
    return Plan(across, high, blocks(n, part), part, not spare)


def last_block_time(tiles: int, n: int, across: int, high: int, parts: int, sms: int) -> float:
    """The time of a plan, as the bytes that a busy memory delivers meanwhile.

    There are three bounds. The memory delivers every byte, and a piece of a column costs 8 bytes more than it has. A
    multiprocessor takes in no more than TAKEN of its share: if few have blocks, they are the bound. And a thread waits
    for each round of its loads. What comes behind them is added: threads of a block add up what they have of a row, and
    so do blocks if there are parts. The numbers are round ones near what an H200 showed.
    """
    grid, part = tiles * parts, blocks(n, parts)
    fit = sms * (RESIDENT // 2 // (across * high))
    memory_bound = (1 + idle_share(grid, across * high, sms)) * tiles * n * (16 * across + 8)
    own_bound = blocks(grid, sms) * part * 16 * across * sms / TAKEN
    rounds = blocks(grid, fit) * blocks(part, ROUND * high)
    meetings = min(blocks(grid, sms), 2) * high * MEETING
    arrivals = ARRIVAL + blocks(parts, high) * TRIP if parts > 1 else 0
    return max(memory_bound, own_bound, rounds * TRIP) + meetings + arrivals


def idle_share(grid: int, threads: int, sms: int) -> float:
    """How much of the memory's time is lost: what an H200 showed.

    Some multiprocessors have more blocks than others, which costs more where blocks begin when others have ended. Fewer
    than 160 threads on each multiprocessor, with 256 bytes each, are too few. Blocks of more than FEW threads lose a
    little.
    """
    fit = sms * (RESIDENT // 2 // threads)
    together = blocks(grid, sms) * sms if grid <= fit else blocks(grid, fit) * fit
    idle = (together / grid - 1) * (0.04 if grid <= fit else 0.1)
    return idle + 0.3 * max(sms * 160 / (grid * threads) - 1, 0) + (0.03 if threads > FEW else 0)


def launch_last_block(p: Problem, plan: Plan) -> None:
    """Carry out a plan for a matrix in Fortran order, in one launch."""
    m, n = p.a.shape
    a, room, edge = memory(p.a), round_up(m, 4), 0 if plan.wide else blocks(3, m)
    own = 4 * plan.across - spare_rows(p)
    tiles = blocks(m, own)
    kept, arrivals = p.result, p.result.view(np.uint32)  # of no use where no sum is cut
    if plan.parts > 1:
        kept, arrivals = device.empty(plan.parts * room, np.float32, stream=p.stream), arrivals_for(p.stream)
    last_block_kernel[(tiles, plan.parts), (plan.across, plan.along), p.stream](
        a, p.x, p.result, kept, arrivals, m, n, own, room, plan.part, device.address(a) // 4 % 4, edge
    )


@rung(last_block_kernel, *shifted.kernels)
def last_block(p):
    """Parts of sums by columns are added up by the block that is the last to arrive, in the same launch.

    Blocks count themselves by an atomic, behind a fence. The order of the additions is the same, whoever is last. A
    thread asks for sixteen columns before it waits. In C order this is `shifted`.

    Source: CUDA C++ programming guide, "Memory fence functions"; the sample threadFenceReduction.

    Leaves: where columns are few, threads have few loads under way, and wait for each other to add up what one of them
    could have.
    """
    if p.by_rows:
        shifted.launch(p)
    else:
        launch_last_block(p, last_block_plan(*p.a.shape, spare_rows(p), multiprocessors(), PARTS))


# ------------------------------------------------------------------------------------------------- a thread a row again

FEW_COLUMNS = 4 * ROUND  # four rounds of a thread, as by rows: sharing them would save three, and cost two barriers


@functools.cache
def whole_rows_kernel(rows: int) -> typing.Any:
    """The kernel whose threads have ``rows`` rows, a block's threads apart, and ROUND elements of them under way."""
    columns = ROUND // rows  # of a round

    @cuda.jit(max_registers=REGISTERS)
    def whole_rows_kernel(a, x, out, m, n):
        values, weights = cuda.local.array((columns, rows), np.float32), cuda.local.array(columns, np.float32)
        sums = cuda.local.array(rows, np.float32)
        for r in range(rows):
            sums[r] = 0
        first = np.int64(cuda.blockIdx.x) * (rows * BLOCK) + cuda.threadIdx.x
        k, at = np.int64(0), min(first, m - 1)  # who has no row reads what another reads
        while k < n:
            left = np.int32(min(n - k, columns))
            for j in range(columns):
                for r in range(rows):
                    inside = j < left and (r == 0 or first + r * BLOCK < m)
                    values[j, r] = one(a, at + r * BLOCK) if inside else np.float32(0)
                weights[j] = one(x, k + j) if j < left else np.float32(0)
                at += m
            for j in range(columns - 1, -1, -1):  # the last is needed first, so that no product waits between two loads
                for r in range(rows):
                    sums[r] += values[j, r] * weights[j]
            k += columns
        for r in range(rows):
            if first + r * BLOCK < m:
                out[first + r * BLOCK] = sums[r]

    return whole_rows_kernel


def launch_undivided(p: Problem, rows: int) -> None:
    """A thread for each ``rows`` rows of a matrix in Fortran order, whatever its shape."""
    m, n = p.a.shape
    whole_rows_kernel(rows)[blocks(m, rows * BLOCK), BLOCK, p.stream](memory(p.a), p.x, p.result, m, n)


def rows_of_a_thread(n: int) -> int:
    """How many rows of N columns a thread has for itself, one, two or four; 0 if it should share one.

    So many that it has a whole round under way. Four are enough for two columns: a warp's share of them is a KiB.
    """
    return 0 if n > FEW_COLUMNS else max(min(ROUND // power(n), 4), 1)


@rung(whole_rows_kernel, *last_block.kernels)
def undivided(p):
    """By columns, where they are few, a thread has rows for itself: nobody waits for anybody.

    It is the first rung again, with sixteen loads under way. They are of 4 bytes, and a warp's are 128 bytes that lie
    side by side, wherever a column begins. Where columns are many, and by rows, this is `last_block`.
    """
    rows = 0 if p.by_rows else rows_of_a_thread(p.a.shape[1])
    if rows:
        launch_undivided(p, rows)
    else:
        last_block.launch(p)


LADDER = (thread_per_row, coalesced, vectorised, fitted, split, shifted, last_block, undivided)
