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
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, round_up, warp_sum
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128
from pmpp.runtime.views import span

BLOCK = 256  # threads a block, where nothing else decides


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
    shapes |= {"short rows": (300, 16), "short odd rows": (70, 7), "whole vectors": (9, 260)}
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


# ----------------------------------------------------------------------------------------------- 64 bytes under way each
# From here on A is a vector, the memory that it lies in. A thread takes four elements at a time, and asks for sixteen
# before it uses the first. Four are neighbours, by one 128-bit load, if all rows (or columns) begin at multiples of 16
# bytes. Else they are as far apart as there are threads beside each other, and each is a load of its own: coalesced all
# the same.

MOST = 1024  # threads a block may have
REGISTERS = 64  # a thread: as many as blocks of 1024 threads leave it
SUMS = 4 * MOST  # that the threads of such a block hold
ROUND = 16  # elements of A that a thread asks for at once: 64 bytes


class Plan(typing.NamedTuple):
    """How threads are spread over a matrix whose ``lines`` lie in memory one after another, each of ``length``.

    In C order a line is a row, and ``team`` threads share it. In Fortran order it is a column, and ``team`` threads
    stand side by side along it, with four of its elements each.
    """

    lines: int
    length: int
    team: int
    together: int  # rows that a team takes at the same time, 1 or 4, so that it reads x once for all
    block: int  # threads
    parts: int  # that each sum is cut into
    part: int  # their length, in terms of the sum
    wide: bool  # whether loads are 128 bits wide


@cuda.jit(device=True)
def one(a, i):
    return a[np.uint64(i)]  # unsigned, so that the compiler need not wrap a negative index around


@cuda.jit(device=True)
def one_before(a, at, i, last):
    """a[at + i], or 0 if i is ``last`` or beyond."""
    return one(a, at + i) if i < last else np.float32(0)


@cuda.jit(device=True)
def four(a, at, i, step, last, wide, guarded):
    """Four elements from place i of the line that begins at a[at], neighbours if ``wide`` and else ``step`` apart.

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
def round_of_one(a, x, at, i, beside, last, wide, guarded, t0):
    """Add sixteen products of the row that begins at a[at], from column i on."""
    step = 4 * beside
    v0 = four(a, at, i, beside, last, wide, guarded)
    v1 = four(a, at, i + step, beside, last, wide, guarded)
    v2 = four(a, at, i + 2 * step, beside, last, wide, guarded)
    v3 = four(a, at, i + 3 * step, beside, last, wide, guarded)
    t0 = add_products(t0, v3, four(x, 0, i + 3 * step, beside, last, wide, guarded))
    t0 = add_products(t0, v2, four(x, 0, i + 2 * step, beside, last, wide, guarded))
    t0 = add_products(t0, v1, four(x, 0, i + step, beside, last, wide, guarded))
    return add_products(t0, v0, four(x, 0, i, beside, last, wide, guarded))


@cuda.jit(device=True)
def sum_of_one(a, x, at, first, last, lane, team, wide):
    """This thread's share of the sum of a row, from column ``first`` up to ``last``."""
    beside = min(team, 32)  # threads that read side by side
    i = first + lane // beside * ROUND * beside + lane % beside * (4 if wide else 1)
    t0 = np.float32(0)
    if beside == 32:
        while i + (3 * 128 + 3 if wide else 3 * 128 + 3 * 32) < last:
            t0 = round_of_one(a, x, at, i, 32, last, wide, False, t0)  # 32 is known here: one address for four loads
            i += ROUND * team
    while i < last:
        t0 = round_of_one(a, x, at, i, beside, last, wide, True, t0)
        i += ROUND * team
    return t0


@cuda.jit(device=True)
def round_of_four(a, x, at, i, last, wide, guarded, t):
    """Add four products of each of four rows; those of x are loaded once."""
    v0, v1 = four(a, at[0], i, 32, last, wide, guarded), four(a, at[1], i, 32, last, wide, guarded)
    v2, v3 = four(a, at[2], i, 32, last, wide, guarded), four(a, at[3], i, 32, last, wide, guarded)
    w = four(x, 0, i, 32, last, wide, guarded)
    return add_products(t[0], v0, w), add_products(t[1], v1, w), add_products(t[2], v2, w), add_products(t[3], v3, w)


@cuda.jit(device=True)
def sums_of_four(a, x, at, first, last, lane, team, wide):
    """As `sum_of_one`, of the four rows that begin at these places, for a team of whole warps."""
    i = first + lane // 32 * 128 + lane % 32 * (4 if wide else 1)
    f0 = np.float32(0)
    t = f0, f0, f0, f0
    while i + (3 if wide else 3 * 32) < last:
        t = round_of_four(a, x, at, i, last, wide, False, t)
        i += 4 * team
    if i < last:
        t = round_of_four(a, x, at, i, last, wide, True, t)
    return t


@cuda.jit(device=True)
def team_sum(value, team):
    """The sum over the lanes of a team, or over the warp if a team is larger; as `warp_sum`."""
    distance = min(team, 32) // 2
    while distance:
        value += cuda.shfl_xor_sync(FULL_WARP, value, distance)
        distance //= 2
    return value


@cuda.jit(device=True)
def rows_block(a, x, out, plan, wide):
    partial = cuda.shared.array((4, 32), np.float32)
    thread, warps = cuda.threadIdx.x, cuda.blockDim.x // 32
    team, lane, teams = thread // plan.team, thread % plan.team, cuda.blockDim.x // plan.team
    group, part = np.int64(cuda.blockIdx.x) // plan.parts, np.int64(cuda.blockIdx.x) % plan.parts
    first = part * plan.part
    last = min(first + plan.part, plan.length)
    row, n = group * plan.together * teams + team, plan.length
    beyond = plan.lines - 1  # a team without a row of its own takes the last one, and stores nothing
    f0 = np.float32(0)
    if plan.together == 4:
        at = (
            min(row, beyond) * n,
            min(row + teams, beyond) * n,
            min(row + 2 * teams, beyond) * n,
            min(row + 3 * teams, beyond) * n,
        )
        t0, t1, t2, t3 = sums_of_four(a, x, at, first, last, lane, plan.team, wide)
    else:
        t0 = sum_of_one(a, x, min(row, beyond) * n, first, last, lane, plan.team, wide)
        t1, t2, t3 = f0, f0, f0
    t0, t1, t2, t3 = (
        team_sum(t0, plan.team),
        team_sum(t1, plan.team),
        team_sum(t2, plan.team),
        team_sum(t3, plan.team),
    )
    if plan.team > 32:  # the team is the block: its warps put their sums together
        if cuda.laneid == 0:
            partial[0, thread // 32], partial[1, thread // 32] = t0, t1
            partial[2, thread // 32], partial[3, thread // 32] = t2, t3
        cuda.syncthreads()
        for r in range(thread // 32, plan.together, warps):  # a warp for each row
            seen = partial[r, cuda.laneid] if cuda.laneid < warps else f0
            seen = warp_sum(seen)
            if cuda.laneid == 0 and row + r < plan.lines:
                out[(row + r) * plan.parts + part] = seen
    elif lane == 0:
        if row < plan.lines:
            out[row * plan.parts + part] = t0
        if plan.together == 4:
            if row + teams < plan.lines:
                out[(row + teams) * plan.parts + part] = t1
            if row + 2 * teams < plan.lines:
                out[(row + 2 * teams) * plan.parts + part] = t2
            if row + 3 * teams < plan.lines:
                out[(row + 3 * teams) * plan.parts + part] = t3


@cuda.jit(max_registers=REGISTERS)
def rows_kernel(a, x, out, plan):
    rows_block(a, x, out, plan, True)


@cuda.jit(max_registers=2 * REGISTERS)
def odd_rows_kernel(a, x, out, plan):
    rows_block(a, x, out, plan, False)


@cuda.jit(device=True)
def four_rows(a, i, d1, d2, d3, wide):
    """a[i] and the elements of the same column that lie so much further, or are its neighbours if ``wide``."""
    if wide:
        return load128(a, i)
    return one(a, i), one(a, i + d1), one(a, i + d2), one(a, i + d3)


@cuda.jit(device=True)
def add_scaled(t, v, w):
    return t[0] + v[0] * w, t[1] + v[1] * w, t[2] + v[2] * w, t[3] + v[3] * w


@cuda.jit(device=True)
def columns_block(a, x, out, plan, wide):
    sums = cuda.shared.array(SUMS, np.float32)
    thread, m = cuda.threadIdx.x, plan.length
    lane, column, high = thread % plan.team, thread // plan.team, cuda.blockDim.x // plan.team
    tiles = (m + 4 * plan.team - 1) // (4 * plan.team)
    tile, part = np.int64(cuda.blockIdx.x) % tiles, np.int64(cuda.blockIdx.x) // tiles
    row = tile * 4 * plan.team + (4 * lane if wide else lane)
    # Below the last row that one is read again, and nothing is stored.
    r0 = min(row, m - (4 if wide else 1))
    d1, d2, d3 = min(plan.team, m - 1 - r0), min(2 * plan.team, m - 1 - r0), min(3 * plan.team, m - 1 - r0)
    k, last = part * plan.part + column, min((part + 1) * plan.part, plan.lines)
    next, f0 = high * m, np.float32(0)
    p0 = k * m + r0
    p1, p2, p3, p4 = p0 + next, p0 + 2 * next, p0 + 3 * next, 4 * next
    t = f0, f0, f0, f0
    while k + 3 * high < last:
        w0, w1, w2, w3 = one(x, k), one(x, k + high), one(x, k + 2 * high), one(x, k + 3 * high)
        v0, v1 = four_rows(a, p0, d1, d2, d3, wide), four_rows(a, p1, d1, d2, d3, wide)
        v2, v3 = four_rows(a, p2, d1, d2, d3, wide), four_rows(a, p3, d1, d2, d3, wide)
        t = add_scaled(add_scaled(add_scaled(add_scaled(t, v3, w3), v2, w2), v1, w1), v0, w0)
        k, p0, p1, p2, p3 = k + 4 * high, p0 + p4, p1 + p4, p2 + p4, p3 + p4
    while k < last:
        t = add_scaled(t, four_rows(a, p0, d1, d2, d3, wide), one(x, k))
        k, p0 = k + high, p0 + next
    t0, t1, t2, t3 = t
    distance = 16
    while distance >= plan.team:  # lanes of a warp with the same rows and different columns
        t0 += cuda.shfl_xor_sync(FULL_WARP, t0, distance)
        t1 += cuda.shfl_xor_sync(FULL_WARP, t1, distance)
        t2 += cuda.shfl_xor_sync(FULL_WARP, t2, distance)
        t3 += cuda.shfl_xor_sync(FULL_WARP, t3, distance)
        distance //= 2
    share = max(plan.team, 32)  # threads that hold a sum of each row, or several
    if thread % share < plan.team:
        begin = thread // share * 4 * plan.team + (4 * lane if wide else lane)
        step = 1 if wide else plan.team
        sums[begin], sums[begin + step] = t0, t1
        sums[begin + 2 * step], sums[begin + 3 * step] = t2, t3
    cuda.syncthreads()
    for i in range(thread, 4 * plan.team, cuda.blockDim.x):
        total = sums[i]
        for j in range(i + 4 * plan.team, cuda.blockDim.x // share * 4 * plan.team, 4 * plan.team):
            total += sums[j]
        if tile * 4 * plan.team + i < m:
            out[part * m + tile * 4 * plan.team + i] = total


@cuda.jit(max_registers=REGISTERS)
def columns_kernel(a, x, out, plan):
    columns_block(a, x, out, plan, True)


@cuda.jit(max_registers=REGISTERS)
def odd_columns_kernel(a, x, out, plan):
    columns_block(a, x, out, plan, False)


def memory(a: typing.Any) -> typing.Any:
    """All elements of a matrix in C or Fortran order as a vector, in the order in which they lie in memory."""
    return span(device.as_input("a", a, dtypes="float32", layout="CF"))  # Numba's own arrays do not know their span


def launch(p: Problem, plan: Plan) -> None:
    """Carry out a plan. Parts of sums are the columns of another matrix, whose product with ones is y."""
    if plan.parts == 1:
        launch_one(p.by_rows, memory(p.a), p.x, p.result, plan, p.stream)
        return
    sums = device.empty(plan.parts * p.result.size, np.float32, stream=p.stream)
    launch_one(p.by_rows, memory(p.a), p.x, sums, plan, p.stream)
    wide = (plan.parts if p.by_rows else p.result.size) % 4 == 0 and device.address(sums) % 16 == 0
    second = plan_of(p.result.size, plan.parts, p.by_rows, wide, threads(), 1)
    launch_one(p.by_rows, sums, ones()[: plan.parts], p.result, second, p.stream)


def launch_one(by_rows: bool, a: typing.Any, x: typing.Any, out: typing.Any, plan: Plan, stream: typing.Any) -> None:
    """One launch."""
    if by_rows:
        groups = blocks(plan.lines, plan.together * (plan.block // plan.team))
        kernel, grid = rows_kernel if plan.wide else odd_rows_kernel, groups * plan.parts
    else:
        kernel = columns_kernel if plan.wide else odd_columns_kernel
        grid = blocks(plan.length, 4 * plan.team) * plan.parts
    kernel[grid, plan.block, stream](a, x, out, plan)


PARTS = 1024  # that a sum is cut into, at most


@device.cached(1)
def ones() -> typing.Any:
    """The vector that the second launch multiplies by."""
    return device.to_device(np.ones(PARTS, np.float32))


def threads() -> int:
    """How many threads the GPU holds at once."""
    limit = device.limits()
    return limit["multiprocessors"] * limit["max_threads_per_multiprocessor"]


def whole_vectors(p: Problem) -> bool:
    """Whether every row (C order) or column (Fortran order) begins at a multiple of 16 bytes, and x if need be."""
    along = p.a.shape[1] if p.by_rows else p.a.shape[0]
    starts = (p.a, p.x) if p.by_rows else (p.a,)
    return along % 4 == 0 and all(device.address(one) % 16 == 0 for one in starts)


@rung(rows_kernel, odd_rows_kernel, columns_kernel, odd_columns_kernel)
def vectorised(p):
    """A thread has 64 bytes under way: four 128-bit loads of a row, or of four columns.

    In Fortran order the eight warps of a block share the columns, and add up what they have in shared memory.

    Source: PMPP 5e section 6.3; J. D. C. Little, Operations Research 9 (1961), for how many bytes it takes.

    Leaves: a warp a row is too much for a short row. It is too little for a long one, if there are few of them.
    """
    m, n = p.a.shape
    wide = whole_vectors(p)
    if p.by_rows:
        launch(p, Plan(m, n, 32, 1, BLOCK, 1, n, wide))
    else:
        launch(p, Plan(n, m, 32, 1, BLOCK, 1, n, wide))


def power(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


ROUNDS = 4  # a second launch takes about as long as so many rounds: a part is worth it from here on


@functools.lru_cache(4096)
def plan_of(m: int, n: int, by_rows: bool, wide: bool, resident: int, most: int) -> Plan:
    """How threads are spread over an M x N matrix, for a GPU that holds ``resident`` threads, in ``most`` parts."""
    width = 4 if wide else 1
    if by_rows:
        together = 4 if m >= 4 and n >= 512 and m * n >= 2 * ROUND * resident else 1
        groups = blocks(m, together)
        share = ROUND // together  # elements of a row that a thread asks for at once
        team = power(blocks(n, share))
        team = min(team, max(32, power(blocks(resident, groups))))
        team = min(max(team, min(power(blocks(n, width)), 32 // width)), MOST if wide else MOST // 2)
        parts = max(1, min(blocks(resident, groups * team), n // (team * share * ROUNDS), most))
        part = round_up(blocks(n, parts), 4)
        return Plan(m, n, team, together, max(team, BLOCK) if team <= 32 else team, blocks(n, part), part, wide)
    team = min(32, power(blocks(m, 4)))
    high = min(BLOCK // team, power(blocks(n, 4)))
    team, block = min(BLOCK // high, power(blocks(m, 4))), BLOCK
    high = block // team
    parts = max(1, min(blocks(resident, blocks(m, 4 * team) * block), n // (high * 4 * ROUNDS), most))
    part = blocks(n, parts)
    return Plan(n, m, team, 1, block, blocks(n, part), part, wide)


@rung(rows_kernel, odd_rows_kernel, columns_kernel, odd_columns_kernel)
def fitted(p):
    """As many threads share a row as fill the GPU, and no more than have something to do; one launch.

    Leaves: few long rows are few blocks, and most of the GPU is idle.
    """
    launch(p, plan_of(*p.a.shape, p.by_rows, whole_vectors(p), threads(), 1))


@rung(rows_kernel, odd_rows_kernel, columns_kernel, odd_columns_kernel)
def split(p):
    """Several blocks share a row if there are too few rows. What they leave is added up in order, by a second launch."""
    launch(p, plan_of(*p.a.shape, p.by_rows, whole_vectors(p), threads(), PARTS))


LADDER = (thread_per_row, coalesced, vectorised, fitted, split)
