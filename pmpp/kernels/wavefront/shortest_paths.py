"""Shortest paths: from every vertex of a graph to every other.

Chapter: notebooks/47_wavefronts.ipynb.  PMPP 5e ch. 16.

The graph is a matrix: element (i, j) is the weight of the edge from i to j, and infinity where there is none. The
algorithm of Floyd and Warshall allows one vertex after another as a stop on the way. When k is allowed,

    d[i, j] = min(d[i, j], d[i, k] + d[k, j])

for all i and j at the same time. All n^2 elements change n times, so there are n^3 additions and minima, and the order
of the n steps is fixed. A step alone reads and writes the matrix for one addition and one minimum an element: memory is
the bound. With tiles of vertices, a tile of elements passes many steps at a time, and arithmetic becomes the bound.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

DTYPES = ("float32",)
BLOCK = 256  # threads a block, of what goes through the matrix element by element
SIDE = 32  # rows and columns of a tile of `blocked`; a thread has one element
f0, inf = np.float32(0), np.float32(np.inf)


def reference(weights: np.ndarray) -> np.ndarray:
    """Vertex after vertex, all elements at the same time, in float64."""
    d = np.where(np.isnan(weights), np.inf, weights.astype(np.float64))
    with np.errstate(invalid="ignore"):
        np.fill_diagonal(d, np.minimum(d.diagonal(), 0))
        for k in range(d.shape[0]):
            d = np.fmin(d, d[:, k, None] + d[k])
    return np.where(d > np.finfo(np.float32).max, np.inf, d)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward inputs: a name, and the weights. The same every time."""
    rng = np.random.default_rng(48) if rng is None else rng

    def graph(n: int, share: float) -> np.ndarray:
        """So many of all edges, with weights from 0 to 1."""
        return np.where(rng.random((n, n)) < share, rng.random((n, n)), np.inf).astype(np.float32)

    path = np.full((70, 70), np.inf, np.float32)
    order = rng.permutation(70)
    path[order[:-1], order[1:]] = 1
    negative = graph(40, 0.2)
    height = rng.random(40, dtype=np.float32)
    negative += 4 * (height - height[:, None])  # along a cycle what is added cancels, so no cycle becomes negative
    odd = graph(12, 0.4)
    odd[2, 3], odd[4, 4], odd[5, 6], odd[7] = np.nan, np.nan, 3e38, np.inf
    odd[6, 5] = 3e38
    return {
        "no vertex": (graph(0, 1),),
        "one vertex": (np.float32([[7]]),),
        "two, one way": (np.float32([[0, 3], [np.inf, 0]]),),
        "a tile less one": (graph(SIDE - 1, 0.3),),
        "a tile": (graph(SIDE, 0.1),),
        "a tile and one": (graph(SIDE + 1, 0.1),),
        "no edge": (np.full((35, 35), np.inf, np.float32),),
        "a path": (path,),
        "two parts": (
            np.block([[graph(30, 0.3), np.full((30, 25), np.inf)], [np.full((25, 30), np.inf), graph(25, 0.3)]]).astype(
                np.float32
            ),
        ),
        "weights below 0": (negative,),
        "all edges": (graph(67, 1),),
        "loops, NaN, and overflow": (odd,),
    }


def cost(n: int) -> Cost:
    """n^3 additions and as many minima. The weights read once, the distances written once.

    Neither is a multiply-add, and a minimum is slower than an addition: see `pmpp.kernels.wavefront.roofs`.
    """
    return Cost(flops=2 * n**3, bytes=8 * n**2)


def tolerance(weights: np.ndarray) -> np.ndarray:
    """How far from the exact distance a right one may be.

    A path has fewer than n edges. Its weights are added in some order, and each addition rounds by at most half an eps
    of the sum of absolute weights so far (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2). Where
    no weight is below 0 that is a share of each path's length, and so of the least one. Else the sum of absolute
    weights along the path is at most n times the largest.
    """
    n, finite = weights.shape[0], weights[np.isfinite(weights)].astype(np.float64)
    share = 1.01 * n * np.finfo(np.float32).eps / 2
    if not (finite < 0).any():
        distance = reference(weights)
        return share * np.where(np.isfinite(distance), distance, 0)
    return np.full(weights.shape, share * n * np.abs(finite).max())


def arguments(weights, *, out=None, stream=0) -> Problem:
    """Find the distances from every vertex of a graph to every other.

    Args:
        weights: a contiguous array (n, n) of float32, n >= 0: element (i, j) is the weight of the edge from i to j.
            Infinity stands for no edge, and so does NaN. Weights below 0 are allowed.
        out: a device array (n, n) of float32 for the result, apart from ``weights`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done: element (i, j) is the length of the shortest path from i to
    j, and infinity where there is none. A part of a path whose length is beyond float32 counts as infinite, too, and
    below 0 as minus infinity. A vertex has the distance 0 to itself.
    A cycle with a length below 0 makes paths shorter for ever, so the graph must have none. That is not checked
    beforehand: if there is one, some element on the diagonal of the result is below 0, and the others mean nothing.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``scipy.sparse.csgraph.shortest_path(weights, "FW")``; Floyd, "Algorithm 97: Shortest path" (1962).

    >>> from pmpp.kernels.wavefront import shortest_paths
    >>> far = np.inf
    >>> weights = np.float32([[0, 1, 9], [far, 0, 2], [far, far, 0]])
    >>> shortest_paths.by_vertex(weights).copy_to_host().tolist()
    [[0.0, 1.0, 3.0], [inf, 0.0, 2.0], [inf, inf, 0.0]]
    """
    stream = device.as_stream(stream)
    weights = device.as_input("weights", weights, dtypes=DTYPES, ndim=2, stream=stream)
    n = weights.shape[0]
    if weights.shape[1] != n:
        raise ValueError(f"weights must have as many columns as rows, had shape {weights.shape}")
    out = device.as_output("out", out, shape=(n, n), dtype=np.float32, apart={"weights": weights}, stream=stream)
    return Problem(out, stream=stream, begin=edges_alone, weights=weights)


@cuda.jit(device=True)
def place_in_row(n):
    """The row and the column of a thread's element: a block has `BLOCK` neighbours in one row."""
    across = (n + BLOCK - 1) // BLOCK
    return cuda.blockIdx.x // across, cuda.blockIdx.x % across * BLOCK + cuda.threadIdx.x


@cuda.jit(device=True)
def element(d, row, column):
    """An element of the matrix. Beyond its borders are vertices without edges."""
    return d[row, column] if row < d.shape[0] and column < d.shape[1] else inf


@cuda.jit
def edges_kernel(weights, d):
    """``d`` may have more rows and columns than ``weights``: they are of vertices without edges."""
    row, column = place_in_row(d.shape[1])
    if column < d.shape[1]:
        weight = element(weights, row, column)
        weight = weight if weight == weight else inf
        d[row, column] = min(weight, f0) if row == column else weight


def edges_alone(p):
    """The distances as long as no stop is allowed: the weights, and 0 from a vertex to itself."""
    n = p.result.shape[0]
    edges_kernel[n * blocks(n, BLOCK), BLOCK, p.stream](p.weights, p.result)


# ------------------------------------------------------------------------------------------------ vertex after vertex


@cuda.jit
def by_vertex_kernel(d, k):
    row, column = place_in_row(d.shape[1])
    if column < d.shape[1] and row != k != column:  # what the others read does not change
        d[row, column] = min(d[row, column], d[row, k] + d[k, column])


@rung(edges_kernel, by_vertex_kernel)
def by_vertex(p):
    """A launch allows one more vertex as a stop. A thread has one element.

    Source: PMPP 5e ch. 16.

    Leaves: each launch reads and writes the whole matrix, for one addition and one minimum an element.
    """
    n = p.result.shape[0]
    for k in range(n):
        by_vertex_kernel[n * blocks(n, BLOCK), BLOCK, p.stream](p.result, np.int64(k))


# ---------------------------------------------------------------------------------------------------- tiles of vertices
# The next 32 vertices are allowed together. First the paths among them alone: the tile on the diagonal. Then the tiles
# of its row and its column, whose paths begin or end among the 32. Then all others: there a path goes to one of the 32,
# may wander among them, and goes on. What comes later in this order reads what is complete.


@cuda.jit(device=True)
def through(left, right, y, x, mine):
    """The least of ``mine`` and of left[y, k] + right[k, x] for all k of a tile."""
    for k in range(SIDE):
        mine = min(mine, left[y, k] + right[k, x])
    return mine


@cuda.jit
def pivot_kernel(d, first):
    """The tile on the diagonal: vertex after vertex, as in `by_vertex`, in shared memory."""
    tile = cuda.shared.array((SIDE, SIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    mine = element(d, first + y, first + x)
    tile[y, x] = mine
    for k in range(SIDE):
        cuda.syncthreads()
        if y != k != x:
            mine = min(mine, tile[y, k] + tile[k, x])
            tile[y, x] = mine
    if first + y < d.shape[0] and first + x < d.shape[1]:
        d[first + y, first + x] = mine


@cuda.jit(device=True)
def other_tile(number, first, side):
    """Where tile ``number`` begins, if the one that begins at ``first`` is left out."""
    return number * side if number * side < first else (number + 1) * side


@cuda.jit
def panels_kernel(d, first, others):
    """The tiles of the pivot's row, and after these the tiles of its column.

    A path in the row goes from one of the 32 to another, whose distance is complete, and on by one edge of the tile as
    it was. So no step waits for another.
    """
    pivot, own = cuda.shared.array((SIDE, SIDE), np.float32), cuda.shared.array((SIDE, SIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    number = cuda.blockIdx.x
    in_row = number < others
    at = other_tile(number if in_row else number - others, first, SIDE)
    row, column = (first if in_row else at) + y, (at if in_row else first) + x
    mine = element(d, row, column)
    pivot[y, x], own[y, x] = element(d, first + y, first + x), mine
    cuda.syncthreads()
    if in_row:
        mine = through(pivot, own, y, x, mine)
    else:
        mine = through(own, pivot, y, x, mine)
    if row < d.shape[0] and column < d.shape[1]:
        d[row, column] = mine


@cuda.jit
def rest_kernel(d, first, others):
    """All other tiles: from a row to one of the 32, and from there to a column."""
    left, right = cuda.shared.array((SIDE, SIDE), np.float32), cuda.shared.array((SIDE, SIDE), np.float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row = other_tile(cuda.blockIdx.x // others, first, SIDE) + y
    column = other_tile(cuda.blockIdx.x % others, first, SIDE) + x
    left[y, x], right[y, x] = element(d, row, first + x), element(d, first + y, column)
    cuda.syncthreads()
    if row < d.shape[0] and column < d.shape[1]:
        d[row, column] = through(left, right, y, x, d[row, column])


@rung(edges_kernel, pivot_kernel, panels_kernel, rest_kernel)
def blocked(p):
    """Three launches allow 32 more vertices: a tile among themselves, the tiles of its row and column, and the rest.

    Source: Venkataraman, Sahni and Mukhopadhyaya, "A blocked all-pairs shortest-paths algorithm" (2003); Katz and
    Kider, "All-pairs shortest-paths for large graphs on the GPU" (2008); PMPP 5e ch. 16.

    Leaves: two loads from shared memory for one addition and one minimum.
    """
    n = p.result.shape[0]
    others = blocks(n, SIDE) - 1
    for k in range(0, n, SIDE):
        first, threads = np.int64(k), (SIDE, SIDE)
        pivot_kernel[1, threads, p.stream](p.result, first)
        if others:
            panels_kernel[2 * others, threads, p.stream](p.result, first, np.int64(others))
            rest_kernel[others * others, threads, p.stream](p.result, first, np.int64(others))


# --------------------------------------------------------------------------------------------------- tiles in registers
# As in chapter 12: a thread has a piece of a tile in registers, and what it loads from shared memory serves a whole row
# or column of that piece. Now 64 vertices are allowed together, so that the matrix goes through memory half as often.

STEP, STEP_PITCH = 64, 65  # vertices that are allowed together; a row of a tile of them in shared memory
THREADS = 16  # down and across, of a block
EACH = STEP // THREADS  # of such a tile a thread has EACH x EACH elements, THREADS apart
WIDE, WIDE_EACH, WIDE_PITCH = 128, 8, 132  # the same of `wide_rest_kernel`
DEPTH = 16  # of the 64 vertices, how many are in shared memory at a time
TWO = 2  # buffers that take turns


@cuda.jit
def wide_pivot_kernel(d, first):
    """The tile on the diagonal, in registers. For each vertex its row and its column go through shared memory.

    There are two buffers for them: who writes the next ones does not wait for those that still read. The row and the
    column of the vertex itself are computed as well, since they do not change.
    """
    row, column = cuda.shared.array((TWO, STEP), np.float32), cuda.shared.array((TWO, STEP), np.float32)
    mine, down = cuda.local.array((EACH, EACH), np.float32), cuda.local.array(EACH, np.float32)
    x, y, k = np.int32(cuda.threadIdx.x), np.int32(cuda.threadIdx.y), np.int32(0)
    for i in range(EACH):
        for j in range(EACH):
            mine[i, j] = element(d, first + y + i * THREADS, first + x + j * THREADS)
    while k < STEP:
        turn = np.uint32(k % 2)
        for i in range(EACH):
            if y + i * THREADS == k:
                for j in range(EACH):
                    row[turn, np.uint32(x + j * THREADS)] = mine[i, j]
            if x + i * THREADS == k:
                for j in range(EACH):
                    column[turn, np.uint32(y + j * THREADS)] = mine[j, i]
        cuda.syncthreads()
        for i in range(EACH):
            down[i] = column[turn, np.uint32(y + i * THREADS)]
        for j in range(EACH):
            across = row[turn, np.uint32(x + j * THREADS)]
            for i in range(EACH):
                mine[i, j] = min(mine[i, j], down[i] + across)
        k = np.int32(k + 1)
    for i in range(EACH):
        for j in range(EACH):
            r, c = first + y + i * THREADS, first + x + j * THREADS
            if r < d.shape[0] and c < d.shape[1]:
                d[r, c] = mine[i, j]


@cuda.jit
def wide_panels_kernel(d, first, others):
    left, right = cuda.shared.array((STEP, STEP_PITCH), np.float32), cuda.shared.array((STEP, STEP_PITCH), np.float32)
    mine, down = cuda.local.array((EACH, EACH), np.float32), cuda.local.array(EACH, np.float32)
    x, y, number = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y), cuda.blockIdx.x
    in_row = number < others
    at = other_tile(number if in_row else number - others, first, STEP)
    row, column = first if in_row else at, at if in_row else first
    for i in range(EACH):
        for j in range(EACH):
            r, c = y + i * THREADS, x + j * THREADS
            left[r, c], right[r, c] = element(d, row + r, first + c), element(d, first + r, column + c)
            mine[i, j] = element(d, row + r, column + c)
    cuda.syncthreads()
    for k in range(STEP):
        for i in range(EACH):
            down[i] = left[y + i * THREADS, k]
        for j in range(EACH):
            across = right[k, x + j * THREADS]
            for i in range(EACH):
                mine[i, j] = min(mine[i, j], down[i] + across)
    for i in range(EACH):
        for j in range(EACH):
            r, c = row + y + i * THREADS, column + x + j * THREADS
            if r < d.shape[0] and c < d.shape[1]:
                d[r, c] = mine[i, j]


@cuda.jit(device=True)
def element_at(d, row, column):
    """As `element`, for unsigned numbers: such indices need no test for less than 0."""
    return d[row, column] if row < np.uint64(d.shape[0]) and column < np.uint64(d.shape[1]) else inf


@cuda.jit(max_registers=128)  # so that two blocks fit on a multiprocessor
def wide_rest_kernel(d, first, tiles):
    left = cuda.shared.array((DEPTH, WIDE_PITCH), np.float32)  # transposed: what is read together lies together
    right = cuda.shared.array((DEPTH, WIDE_PITCH), np.float32)
    mine, down = cuda.local.array((WIDE_EACH, WIDE_EACH), np.float32), cuda.local.array(WIDE_EACH, np.float32)
    x, y = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y)
    first_row, first_column = cuda.blockIdx.x // tiles * WIDE, cuda.blockIdx.x % tiles * WIDE
    inside = first_row + WIDE <= d.shape[0] and first_column + WIDE <= d.shape[1]
    row, column = np.uint64(first_row), np.uint64(first_column)
    if inside:  # nearly all tiles are: this saves hundreds of tests
        for i in range(WIDE_EACH):
            for j in range(WIDE_EACH):
                mine[i, j] = d[row + np.uint64(y + i * THREADS), column + np.uint64(x + j * THREADS)]
    else:
        for i in range(WIDE_EACH):
            for j in range(WIDE_EACH):
                r, c = row + np.uint64(y + i * THREADS), column + np.uint64(x + j * THREADS)
                mine[i, j] = element_at(d, r, c)
    k0 = np.uint64(first)
    while k0 < np.uint64(first + STEP):
        for part in range(WIDE * DEPTH // (THREADS * THREADS)):
            at = np.uint32(part * THREADS * THREADS + y * THREADS + x)
            left[at % DEPTH, at // DEPTH] = element_at(d, row + np.uint64(at // DEPTH), k0 + np.uint64(at % DEPTH))
            right[at // WIDE, at % WIDE] = element_at(d, k0 + np.uint64(at // WIDE), column + np.uint64(at % WIDE))
        cuda.syncthreads()
        k = 0
        while k < DEPTH:
            for i in range(WIDE_EACH):
                down[i] = left[k, y + i * THREADS]
            for j in range(WIDE_EACH):
                across = right[k, x + j * THREADS]
                for i in range(WIDE_EACH):
                    mine[i, j] = min(mine[i, j], down[i] + across)
            k += 1
        cuda.syncthreads()
        k0 += np.uint64(DEPTH)
    for i in range(WIDE_EACH):
        for j in range(WIDE_EACH):
            # The pivot's rows and columns are complete, and other blocks read them.
            if first_row + i * THREADS // STEP * STEP != first and first_column + j * THREADS // STEP * STEP != first:
                r, c = row + np.uint64(y + i * THREADS), column + np.uint64(x + j * THREADS)
                if inside or (r < np.uint64(d.shape[0]) and c < np.uint64(d.shape[1])):
                    d[r, c] = mine[i, j]


@rung(edges_kernel, wide_pivot_kernel, wide_panels_kernel, wide_rest_kernel)
def in_pieces(p):
    """A thread has 8 x 8 elements in registers: 16 loads from shared memory for 64 additions and minima.

    Source: Katz and Kider (2008); Lund and Smith, "A multi-stage CUDA kernel for Floyd-Warshall" (2010); chapter 12 for
    the tiles.

    Leaves: each of these loads brings one number, and an element of a tile is tested against the matrix's borders.
    """
    n = p.result.shape[0]
    others, tiles = blocks(n, STEP) - 1, blocks(n, WIDE)
    for k in range(0, n, STEP):
        first, threads = np.int64(k), (THREADS, THREADS)
        wide_pivot_kernel[1, threads, p.stream](p.result, first)
        if others:
            wide_panels_kernel[2 * others, threads, p.stream](p.result, first, np.int64(others))
            wide_rest_kernel[tiles * tiles, threads, p.stream](p.result, first, np.int64(tiles))


# ------------------------------------------------------------------------------------------------------ four at a time
# A thread's elements lie in fours, side by side, and one load brings four numbers. A row of the matrix must begin at a
# multiple of 16 bytes for that. So the matrix gets as many more vertices without edges as its last tiles have room for,
# and no element needs a test. 128 vertices are allowed together: then all tiles are of one size, and the kernel of the
# third phase serves for the second.

FOUR, HALF = 4, WIDE // 2  # a thread has rows and columns 4 x to 4 x + 3, and the same in the other half of a tile
LEFT = DEPTH * WIDE_PITCH  # numbers of the left side in shared memory, transposed: what is read together lies together
PIVOT_THREADS = WIDE // FOUR  # down and across: a thread has 4 x 4 elements of the tile on the diagonal


@cuda.jit(max_registers=64)  # more, and 1,024 threads do not fit
def whole_pivot_kernel(d, first):
    """As `wide_pivot_kernel`. Of four vertices in turn, thread 4 x has the columns, and thread 4 y the rows."""
    row, column = cuda.shared.array((TWO, WIDE), np.float32), cuda.shared.array((TWO, WIDE), np.float32)
    mine, across = cuda.local.array((FOUR, FOUR), np.float32), cuda.local.array(FOUR, np.float32)
    x, y, n = np.uint32(cuda.threadIdx.x), np.uint32(cuda.threadIdx.y), np.uint64(d.shape[1])
    begin = (np.uint64(first) + np.uint64(FOUR * y)) * n + np.uint64(first) + np.uint64(FOUR * x)
    for i in range(FOUR):
        mine[i, 0], mine[i, 1], mine[i, 2], mine[i, 3] = load128(d, begin + np.uint64(i) * n)
    turn = np.uint32(0)
    while turn < PIVOT_THREADS:
        for k in range(FOUR):
            to = k % TWO * WIDE
            if y == turn:
                store128(row, to + FOUR * x, (mine[k, 0], mine[k, 1], mine[k, 2], mine[k, 3]))
            if x == turn:
                store128(column, to + FOUR * y, (mine[0, k], mine[1, k], mine[2, k], mine[3, k]))
            cuda.syncthreads()
            across[0], across[1], across[2], across[3] = load128(row, to + FOUR * x)
            down = load128(column, to + FOUR * y)
            for i in range(FOUR):
                for j in range(FOUR):
                    mine[i, j] = min(mine[i, j], down[i] + across[j])
        turn = np.uint32(turn + 1)
    for i in range(FOUR):
        store128(d, begin + np.uint64(i) * n, (mine[i, 0], mine[i, 1], mine[i, 2], mine[i, 3]))


@cuda.jit(device=True)
def bring(d, left, right, row, column, k, t):
    """For DEPTH vertices from ``k`` on: the ways to them from the rows of a tile, and from them to its columns."""
    n, fours = np.uint64(d.shape[1]), DEPTH // FOUR
    for part in range(WIDE * fours // BLOCK):
        at = np.uint32(part * BLOCK + t)
        down, along = np.uint32(at // fours), np.uint32(at % fours * FOUR)
        a, b, c, e = load128(d, (row + np.uint64(down)) * n + k + np.uint64(along))
        left[along, down], left[np.uint32(along + 1), down] = a, b
        left[np.uint32(along + 2), down], left[np.uint32(along + 3), down] = c, e
        vertex, beside = np.uint64(at // (WIDE // FOUR)), np.uint64(at % (WIDE // FOUR) * FOUR)
        store128(right, np.uint32(FOUR * at), load128(d, (k + vertex) * n + column + beside))


@cuda.jit(device=True)
def allow(left, right, above, beside, mine):
    """Allow a vertex, whose numbers are at ``above`` in the left side and at ``beside`` in the right one."""
    down, across = cuda.local.array(WIDE_EACH, np.float32), cuda.local.array(WIDE_EACH, np.float32)
    down[0], down[1], down[2], down[3] = load128(left, above)
    down[4], down[5], down[6], down[7] = load128(left, above + HALF)
    across[0], across[1], across[2], across[3] = load128(right, beside)
    across[4], across[5], across[6], across[7] = load128(right, beside + HALF)
    for i in range(WIDE_EACH):
        for j in range(WIDE_EACH):
            mine[i, j] = min(mine[i, j], down[i] + across[j])


@cuda.jit(max_registers=128)  # so that two blocks fit on a multiprocessor
def by_fours_kernel(d, first, others, panels):
    """The tiles of the pivot's row and, after these, of its column if ``panels`` is true; else all tiles but these.

    A panel reads its own tile as it was, and writes at the end.
    """
    left = cuda.shared.array((DEPTH, WIDE_PITCH), np.float32, alignment=16)
    right = cuda.shared.array((DEPTH, WIDE), np.float32, alignment=16)
    mine = cuda.local.array((WIDE_EACH, WIDE_EACH), np.float32)
    t, n, number = np.uint32(cuda.threadIdx.x), np.uint64(d.shape[1]), np.int64(cuda.blockIdx.x)
    of_row = other_tile(number // others, first, WIDE)
    of_column = other_tile(number % others, first, WIDE)
    if panels:
        of_row, of_column = (first, of_column) if number < others else (of_column, first)
    x, y = np.uint32(t % THREADS * FOUR), np.uint32(t // THREADS * FOUR)
    row, column = np.uint64(of_row), np.uint64(of_column)
    begin = (row + np.uint64(y)) * n + column + np.uint64(x)
    for i in range(WIDE_EACH):
        at = begin + np.uint64(i // FOUR * HALF + i % FOUR) * n
        mine[i, 0], mine[i, 1], mine[i, 2], mine[i, 3] = load128(d, at)
        mine[i, 4], mine[i, 5], mine[i, 6], mine[i, 7] = load128(d, at + np.uint64(HALF))
    k = np.uint64(first)
    while k < np.uint64(first + WIDE):
        bring(d, left, right, row, column, k, t)
        cuda.syncthreads()
        above, beside = np.int64(y), np.int64(x)
        while above < LEFT:  # a loop of one vertex would have more instructions for its indices
            allow(left, right, above, beside, mine)
            allow(left, right, above + WIDE_PITCH, beside + WIDE, mine)
            allow(left, right, above + 2 * WIDE_PITCH, beside + 2 * WIDE, mine)
            allow(left, right, above + 3 * WIDE_PITCH, beside + 3 * WIDE, mine)
            above, beside = above + 4 * WIDE_PITCH, beside + 4 * WIDE
        cuda.syncthreads()
        k += np.uint64(DEPTH)
    for i in range(WIDE_EACH):
        at = begin + np.uint64(i // FOUR * HALF + i % FOUR) * n
        store128(d, at, (mine[i, 0], mine[i, 1], mine[i, 2], mine[i, 3]))
        store128(d, at + np.uint64(HALF), (mine[i, 4], mine[i, 5], mine[i, 6], mine[i, 7]))


@cuda.jit
def cut_kernel(d, out):
    row, column = place_in_row(out.shape[1])
    if column < out.shape[1]:
        out[row, column] = d[row, column]


@rung(edges_kernel, whole_pivot_kernel, by_fours_kernel, cut_kernel, begin=False)
def by_fours(p):
    """One load of 128 bits brings four numbers: four loads for 64 additions and minima. 128 vertices come together.

    The matrix is made in scratch memory, with whole tiles of 128 x 128, unless ``out`` has whole tiles itself.

    Source: as `in_pieces`; CUDA C++ programming guide, "Device memory accesses", for 128 bits.
    """
    n = p.result.shape[0]
    tiles = blocks(n, WIDE)
    whole, others, threads = tiles * WIDE, tiles - 1, (PIVOT_THREADS, PIVOT_THREADS)
    as_it_is = whole == n and device.address(p.result) % 16 == 0
    d = p.result if as_it_is else device.empty((whole, whole), np.float32, stream=p.stream)
    edges_kernel[whole * blocks(whole, BLOCK), BLOCK, p.stream](p.weights, d)
    for k in range(0, n, WIDE):
        first = np.int64(k)
        whole_pivot_kernel[1, threads, p.stream](d, first)
        if others:
            by_fours_kernel[2 * others, BLOCK, p.stream](d, first, np.int64(others), True)
            by_fours_kernel[others * others, BLOCK, p.stream](d, first, np.int64(others), False)
    if not as_it_is:
        cut_kernel[n * blocks(n, BLOCK), BLOCK, p.stream](d, p.result)


LADDER = (by_vertex, blocked, in_pieces, by_fours)
