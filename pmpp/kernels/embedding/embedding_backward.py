"""The gradient of an embedding: each row of the table gets the sum of the gradients of its tokens.

Chapter: notebooks/86_gradients_of_softmax.ipynb.  PMPP 4e ch. 9 and 13.

Nearly all of a table's rows get 0, and writing them is most of the traffic: the bound is the time to write the whole
gradient and to read what the tokens bring. What makes it hard is the frequent token. Its sums meet in one row, and
float32 sums differ in their last bits with their order. Sorting the tokens by row fixes the order, and also tells how
many there are of each before anything is added.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.embedding.ladder import BLOCK, INDICES, check_indices
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

DTYPES = ("float32",)


def reference(dy: np.ndarray, indices: np.ndarray, rows: int, padding_idx: int | None = None) -> np.ndarray:
    """The sum for each row in float64, a token after the other."""
    out = np.zeros((rows, dy.shape[-1]))
    with np.errstate(invalid="ignore"):  # inf - inf
        for at in np.ndindex(indices.shape):
            if 0 <= indices[at] < rows and indices[at] != padding_idx:
                out[indices[at]] += dy[at]
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(dy, indices, rows)`` or ``(dy, indices, rows, padding_idx)``."""
    rng = np.random.default_rng(88) if rng is None else rng

    def case(rows: int, width: int, *shape: int, dtype: type = np.int64) -> tuple:
        dy = rng.standard_normal((*shape, width)).astype(np.float32)
        return dy, rng.integers(0, rows, shape).astype(dtype), rows

    made = {
        "one": case(1, 1, 1),
        "no tokens": case(5, 3, 0),
        "no columns": case(5, 0, 4),
        "an only row": case(1, 9, 70),
    }
    made |= {f"rows of {n}": case(13, n, 37) for n in (1, 3, 4, 5, 32, 33, 64, 127, 128, 132, 260)}
    made |= {"a batch": case(20, 12, 3, 7), "int32": case(50, 16, 65, dtype=np.int32), "few tokens": case(700, 8, 3)}
    made["int32, odd"] = case(50, 15, 65, dtype=np.int32)
    dy, _, rows = case(40, 20, 500)
    made["frequent tokens"] = dy, np.minimum(rng.zipf(1.5, 500), 40) - 1, rows
    made["all the same"] = dy, np.full(500, 39), rows
    made["a row not trained"] = *made["frequent tokens"], 0
    dy, indices, rows = case(8, 6, 9)
    dy[2, 1], dy[5, 5], dy[6, 5], indices[[5, 6]] = np.nan, np.inf, -np.inf, 4  # inf - inf
    made["non-finite"] = dy, indices, rows
    return made


def tolerance(dy: np.ndarray, indices: np.ndarray, rows: int, padding_idx: int | None = None) -> np.ndarray:
    """Half an eps for each addition of a row's tokens, times the sum of their sizes."""
    sizes = reference(np.where(np.isfinite(dy), np.abs(dy), 0), indices, rows, padding_idx)
    count = np.bincount(indices[(indices >= 0) & (indices < rows)], minlength=rows).reshape(rows, 1)
    return 2.0**-24 * (count + 8) * sizes


def cost(tokens: int, width: int, rows: int = 50_257, itemsize: int = 4) -> Cost:
    """An addition for each element of ``dy``, which is read once; the whole gradient is written once."""
    return Cost(flops=tokens * width, bytes=(tokens + rows) * width * itemsize + 8 * tokens)


def arguments(dy, indices, rows, padding_idx=None, *, out=None, stream=0) -> Problem:
    """The gradient of an embedding's table: for each row the sum of the gradients of the tokens that looked it up.

    Args:
        dy: the gradient of the result, (\\*indices.shape, width), float32, contiguous.
        indices: as given to the forward pass, any shape, int32 or int64, contiguous. NumPy indices are checked. An
            index on the device that is no row adds to none.
        rows: of the table, at least 1.
        padding_idx: a row whose gradient stays 0, or None.
        out: a device array of shape (rows, width), float32, apart from ``dy`` and ``indices`` in memory, or None.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PyTorch's torch.ops.aten.embedding_dense_backward.

    >>> from pmpp.kernels.embedding import embedding_backward
    >>> dy = np.float32([[1, 2], [10, 20], [100, 200]])
    >>> embedding_backward.grouped(dy, np.int64([2, 0, 2]), 3).copy_to_host()
    array([[ 10.,  20.],
           [  0.,   0.],
           [101., 202.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    count = as_integer("rows", rows, 1, 2**31 - 1)
    if isinstance(indices, np.ndarray) and indices.dtype in INDICES:
        check_indices(indices, rows)
    indices = device.as_input("indices", indices, dtypes=INDICES, stream=stream)
    dy = device.as_input("dy", dy, dtypes=DTYPES, ndim=indices.ndim + 1, shape=(*indices.shape, None), stream=stream)
    padding = -1 if padding_idx is None else as_integer("padding_idx", padding_idx, 0, count - 1)
    width, apart = dy.shape[-1], {"dy": dy, "indices": indices}
    out = device.as_output("out", out, shape=(count, width), dtype=np.float32, apart=apart, stream=stream)
    return Problem(
        out,
        stream=stream,
        dy=dy.reshape((indices.size, width)) if dy.size else device.empty((0, width), np.float32, stream=stream),
        indices=indices.reshape(-1) if indices.size else indices.reshape(0),
        out=out,
        padding=padding,
        rows=count,
    )


@cuda.jit(device=True)
def row_of(indices, token, rows, padding):
    """The row that a token adds to, or -1."""
    row = np.int64(indices[token])
    return row if 0 <= row < rows and row != padding else np.int64(-1)


# ------------------------------------------------------------------------------------------------------------- atomics


@cuda.jit
def zero_kernel(out, shift):
    """``out`` is flat, and begins ``shift`` elements behind a multiple of 16 bytes."""
    i = 4 * cuda.grid(1) - shift
    zero = np.float32(0)
    if i >= 0 and i + 4 <= out.size:
        store128(out, i, (zero, zero, zero, zero))
    else:
        for k in range(max(i, 0), min(i + 4, out.size)):
            out[k] = zero


def make_zero(p: Problem) -> None:
    out, shift = p.out.reshape(p.out.size), device.address(p.out) % 16 // 4
    zero_kernel[blocks(out.size + shift, 4 * BLOCK), BLOCK, p.stream](out, shift)


@cuda.jit
def atomic_kernel(dy, indices, out, padding):
    i = cuda.grid(1)
    if i < dy.size:
        token = i // dy.shape[1]
        column = i - token * dy.shape[1]
        row = row_of(indices, token, out.shape[0], padding)
        if row >= 0:
            cuda.atomic.add(out, (row, column), dy[token, column])


@rung(zero_kernel, atomic_kernel)
def atomic(p):
    """Clear the gradient; then a thread adds each element to its row, atomically.

    Source: PMPP 4e section 9.2, on histograms: a row is a bin.

    Leaves: float32 sums depend on who comes first, so two runs differ in their last bits. The threads of a frequent
    token wait for each other.
    """
    make_zero(p)
    if p.dy.size:
        atomic_kernel[blocks(p.dy.size, BLOCK), BLOCK, p.stream](p.dy, p.indices, p.out, p.padding)


# ----------------------------------------------------------------------------------------------- a row looks for tokens

SEARCHERS = 8  # rows, a warp for each, that a block looks for


@cuda.jit
def search_kernel(dy, indices, out, padding):
    lane = cuda.threadIdx.x
    row = cuda.blockIdx.x * SEARCHERS + cuda.threadIdx.y
    if row < out.shape[0]:
        for column in range(lane, out.shape[1], 32):
            out[row, column] = np.float32(0)
        for begin in range(0, indices.size, 32):
            token = begin + lane
            mine = token < indices.size and row_of(indices, token, out.shape[0], padding) == row
            votes = np.int64(np.uint32(cuda.ballot_sync(FULL_WARP, mine)))  # 32 bits without a sign
            while votes != 0:
                found = begin + cuda.ffs(np.uint32(votes)) - 1
                for column in range(lane, out.shape[1], 32):
                    out[row, column] += dy[found, column]
                votes &= votes - 1


@rung(search_kernel)
def search(p):
    """A warp for each row looks through all indices, 32 at a time, and adds its tokens in their order.

    It is deterministic: a row has one owner. With a large table it takes longer than `atomic`.

    Leaves: every row reads every index, rows times tokens in all, though nearly all rows find none.
    """
    search_kernel[blocks(p.rows, SEARCHERS), (32, SEARCHERS), p.stream](p.dy, p.indices, p.out, p.padding)


# ----------------------------------------------------------------------------------------- tokens, grouped by their row
#
# Counting sort, with one difference. Its integer atomics hand out places in an arbitrary order, and so do those that
# hand out room for a group. Where a group lies does not matter. In which order it is added does: so each token then
# finds its rank, the number of earlier tokens in its group. That is the square of the size of a group in comparisons,
# and they are cheap: of 8,192 tokens with Zipf's frequencies about a million in all.


@cuda.jit
def clear_kernel(counts):
    i = cuda.grid(1)
    if i < counts.size:
        counts[i] = 0


@cuda.jit
def count_kernel(indices, counts, places, rows, padding):
    """How many tokens a row has, and a place among them for each. The last count is the cursor of `room_kernel`."""
    token = cuda.grid(1)
    if token < indices.size:
        row = row_of(indices, token, rows, padding)
        places[token] = cuda.atomic.add(counts, row, 1) if row >= 0 else -1


@cuda.jit
def room_kernel(indices, counts, places, begins):
    """The first token of a group takes room for all of it."""
    token = cuda.grid(1)
    if token < indices.size and places[token] == 0:
        row = indices[token]
        begins[row] = cuda.atomic.add(counts, counts.size - 1, counts[row])


@cuda.jit
def group_kernel(indices, places, begins, members):
    token = cuda.grid(1)
    if token < indices.size and places[token] >= 0:
        members[begins[indices[token]] + places[token]] = token


@cuda.jit
def rank_kernel(indices, counts, places, begins, members, ordered):
    token = cuda.grid(1)
    if token < indices.size and places[token] >= 0:
        row = indices[token]
        begin, rank = begins[row], 0
        for k in range(begin, begin + counts[row]):
            rank += 1 if members[k] < token else 0
        ordered[begin + rank] = token


WARPS = 8  # of a block: each adds up every eighth token of a group
TILE = 128  # columns that a block adds up


@cuda.jit
def sum_kernel(dy, indices, counts, begins, ordered, out):
    """A block for each token and 128 columns. The group's first token is the one whose block works."""
    token, warp, lane = cuda.blockIdx.x, cuda.threadIdx.y, cuda.threadIdx.x
    row = np.int64(indices[token])
    if not (0 <= row < out.shape[0]) or counts[row] == 0:
        return
    begin, count = begins[row], counts[row]
    if ordered[begin] != token:
        return
    width = out.shape[1]
    sums = cuda.shared.array((WARPS, TILE), np.float32)
    for c in range(lane, TILE, 32):
        column, total = cuda.blockIdx.y * TILE + c, np.float32(0)
        if column < width:
            for k in range(warp, count, WARPS):
                total += dy[ordered[begin + k], column]
        sums[warp, c] = total
    cuda.syncthreads()
    c = 32 * warp + lane
    column = cuda.blockIdx.y * TILE + c
    if c < TILE and column < width:
        total = np.float32(0)
        for other in range(min(WARPS, count)):
            total += sums[other, c]
        out[row, column] = total


@cuda.jit
def sum_vectors_kernel(dy, indices, counts, begins, ordered, out, width):
    """The same for rows of whole vectors: a lane has four columns. ``dy`` and ``out`` are flat."""
    token, warp, lane = cuda.blockIdx.x, cuda.threadIdx.y, cuda.threadIdx.x
    row = np.int64(indices[token])
    if not (0 <= row < counts.size - 1) or counts[row] == 0:
        return
    begin, count = begins[row], counts[row]
    if ordered[begin] != token:
        return
    column = cuda.blockIdx.y * TILE + 4 * lane
    sums = cuda.shared.array((WARPS, TILE), np.float32)
    a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    if column < width:
        for k in range(warp, count, WARPS):
            v = load128(dy, np.int64(ordered[begin + k]) * width + column)
            a, b, c, d = a + v[0], b + v[1], c + v[2], d + v[3]
    store128(sums, warp * TILE + 4 * lane, (a, b, c, d))
    cuda.syncthreads()
    if warp == 0 and column < width:
        for other in range(1, min(WARPS, count)):
            v = load128(sums, other * TILE + 4 * lane)
            a, b, c, d = a + v[0], b + v[1], c + v[2], d + v[3]
        store128(out, row * width + column, (a, b, c, d))


@rung(
    zero_kernel,
    clear_kernel,
    count_kernel,
    room_kernel,
    group_kernel,
    rank_kernel,
    sum_kernel,
    sum_vectors_kernel,
)
def grouped(p):
    """Tokens are grouped by row and put in order first. Then each group has one block, which adds it up in this order.

    Every eighth token of a group goes to the same warp, and the eight sums are added in their order.

    Ranks cost the square of a group's size in comparisons: give tens of thousands of padding tokens as ``padding_idx``.
    """
    tokens, width = p.dy.shape
    make_zero(p)
    if not p.dy.size:
        return
    counts = device.empty(p.rows + 1, np.int32, stream=p.stream)
    begins = device.empty(p.rows, np.int32, stream=p.stream)
    places, members, ordered = (device.empty(tokens, np.int32, stream=p.stream) for _ in range(3))
    grid = blocks(tokens, BLOCK)
    clear_kernel[blocks(p.rows + 1, BLOCK), BLOCK, p.stream](counts)
    count_kernel[grid, BLOCK, p.stream](p.indices, counts, places, p.rows, p.padding)
    room_kernel[grid, BLOCK, p.stream](p.indices, counts, places, begins)
    group_kernel[grid, BLOCK, p.stream](p.indices, places, begins, members)
    rank_kernel[grid, BLOCK, p.stream](p.indices, counts, places, begins, members, ordered)
    grid, block = (tokens, blocks(width, TILE)), (32, WARPS)
    if width % 4 or (device.address(p.dy) | device.address(p.out)) % 16:
        sum_kernel[grid, block, p.stream](p.dy, p.indices, counts, begins, ordered, p.out)
    else:
        dy, out = p.dy.reshape(p.dy.size), p.out.reshape(p.out.size)
        sum_vectors_kernel[grid, block, p.stream](dy, p.indices, counts, begins, ordered, out, width)


LADDER = (atomic, search, grouped)
