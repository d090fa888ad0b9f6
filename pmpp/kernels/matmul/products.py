"""Products on Hopper's tensor cores of every type that they multiply: float16, bfloat16, tf32, int8 and e4m3.

`product` takes two matrices of any shape. It cuts C into tiles, and long sums into parts, as the shape asks for, and
launches the last kernel of `pmpp.kernels.matmul.warpgroups`, which is taught in notebooks/43_warpgroups.ipynb.

An instruction multiplies 32 bytes of each row of A, whatever the numbers are. So tf32 is half as fast as float16, and
numbers of 8 bits are twice as fast. For all but float16 and bfloat16 the tensor cores want B column by column.

Sources: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"; PMPP 5e section 15.9.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.matmul.warpgroups import (
    ARRIVALS,
    BY_ROWS,
    CAPABILITY,
    Cut,
    Tile,
    store_tiles,
    stored_kernel,
    zero_kernel,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.views import span

KINDS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "tf32", "int8": "int8", "uint8": "e4m3"}
BLOCK = 256


def cost(m: int, n: int, k: int, itemsize: int, result: int) -> Cost:
    """A multiply-add for each of m n k products; each matrix moved once, with so many bytes a number.

    >>> round(cost(4096, 4096, 4096, itemsize=1, result=4).intensity)
    1365
    """
    return Cost(flops=2 * m * n * k, bytes=itemsize * (m * k + k * n) + result * m * n)


def arguments(a, b, *, rounded=False, out=None, stream=0) -> Problem:
    """Multiply two matrices on the tensor cores of a Hopper GPU.

    Args:
        a: a matrix of shape (M, K) in C order: float16, bfloat16, float32, int8, or uint8, which stands for the bits
            of e4m3. Of float32 the tensor cores see the upper 19 bits (tf32).
        b: a matrix of shape (K, N) of the same dtype: in C order if it is float16 or bfloat16, and else in Fortran
            order, as ``w.T`` of a NumPy matrix of shape (N, K). ``T`` of a device array is a copy in C order, as in
            Numba: there take ``pmpp.runtime.views.strided(w, (K, N), (1, K))``.
        rounded: whether sums of float16 or bfloat16 are rounded to that dtype.
        out: a device array of shape (M, N) in C order, apart from a and b in memory, or None to allocate one. It is
            int32 for int8, the dtype of a if ``rounded``, and else float32.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Any extent may be 0; K = 0 gives zeros. Sums of int8 are
    exact as long as they fit 32 bits. Sums of e4m3 keep 13 bits behind the largest summand's point: see
    `pmpp.simt.values.tensor_cores`. The same call gives the same bits on the same GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted; RuntimeError for
    a GPU of another compute capability than 9.0.

    >>> from pmpp.kernels.matmul.products import product
    >>> product(np.float16([[1, 2], [3, 4]]), np.float16([[1, 0], [1, 1]]), rounded=True).copy_to_host()
    array([[3., 2.],
           [7., 4.]], dtype=float16)
    >>> a, w = np.int8([[1, 2], [3, 4]]), np.int8([[1, 1], [0, 1]])
    >>> product(a, w.T).copy_to_host()
    array([[3, 2],
           [7, 4]], dtype=int32)
    """
    capability = device.limits()["compute_capability"]
    if capability != CAPABILITY:
        said = ".".join(map(str, capability))
        raise RuntimeError(f"these products need a GPU of compute capability 9.0, this one has {said}")
    stream, rounded = device.as_stream(stream), as_flag("rounded", rounded)
    a = device.as_input("a", a, dtypes=tuple(KINDS), ndim=2, stream=stream)
    kind = KINDS[str(a.dtype)]
    shape = (a.shape[1], None)
    order = "C" if kind in BY_ROWS else "CF"
    b = device.as_input("b", b, dtypes=a.dtype, ndim=2, shape=shape, layout=order, stream=stream)
    if kind not in BY_ROWS:
        if b.size and b.strides[0] != b.dtype.itemsize and b.shape[0] > 1:
            raise ValueError(f"b must be in Fortran order, as w.T is, for {b.dtype}, was in C order")
        b = _transposed(b)
    if rounded and kind not in BY_ROWS:
        raise ValueError(f"rounded must be False for a and b of {a.dtype}: only float16 and bfloat16 have such sums")
    result = str(a.dtype) if rounded else "int32" if kind == "int8" else "float32"
    shape = a.shape[0], b.shape[1 if kind in BY_ROWS else 0]
    out = device.as_output("out", out, shape=shape, dtype=result, apart={"a": a, "b": b}, stream=stream)
    if out.size and not a.shape[1]:
        zeros = np.zeros((shape[0], 1), a.dtype), np.zeros((1, shape[1])[:: 1 if kind in BY_ROWS else -1], a.dtype)
        a, b = (device.to_device(x, stream=stream) for x in zeros)
    return Problem(out, stream=stream, a=a, b=b, kind=kind, dtype=result)


def _transposed(b: typing.Any) -> typing.Any:
    """A view of a matrix in Fortran order, whose rows are the columns of the matrix."""
    if device.on_gpu():
        from pmpp.runtime.array import adopted

        adopted(b)  # what Numba made of an array of the host does not know its address yet
    return span(b).reshape(b.shape[1], b.shape[0])


# -------------------------------------------------------------------------------------------------------------- copies


@cuda.jit
def pad_kernel(source, target):
    at = cuda.grid(1)
    if at < target.size:
        row, column = at // target.shape[1], at % target.shape[1]
        inside = row < source.shape[0] and column < source.shape[1]
        target[row, column] = source[row, column] if inside else target.dtype.type(0)


def whole_rows(x: typing.Any, stream: typing.Any, rows: int | None = None) -> typing.Any:
    """A matrix as 16-bit numbers whose rows begin at multiples of 16 bytes: itself, or a copy with zeros around it."""
    size = x.dtype.itemsize
    rows = x.shape[0] if rows is None else rows
    if rows != x.shape[0] or x.shape[1] * size % 16 or device.address(x) % 16:
        shape = rows, round_up(x.shape[1], 16 // size)
        source, x = x, device.empty(shape, x.dtype, stream=stream)
        pad_kernel[blocks(x.size, BLOCK), BLOCK, stream](source, x)
    return x.view(np.uint16)


# --------------------------------------------------------------------------------------------------------------- plans

TILES = (
    Tile(128, 256, 4), Tile(128, 192, 4), Tile(192, 192, 3), Tile(192, 128, 4), Tile(256, 128, 3), Tile(128, 128, 6),
    Tile(64, 256, 5), Tile(64, 192, 6), Tile(256, 64, 4), Tile(128, 64, 8), Tile(64, 128, 8), Tile(64, 64, 8),
)  # fmt: skip
PARTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)


class Costs(typing.NamedTuple):
    """What a product takes, in microseconds: the model by which `plan_for` chooses. It changes no result.

    ``start``: a launch, and the first tiles' way. ``sum``: to multiply 128 bytes of a row of A and a column of B.
    ``row``: to fetch 128 bytes of a row while few multiprocessors do so, and ``shared_row`` for each block that does.
    ``crooked``: so many times as long if rows do not begin at multiples of 32 bytes. ``step``: the least of a step.
    ``unit``: what a unit takes besides. ``store`` and ``move``: a byte that a block stores, and one of device memory.
    ``arrive``: to keep sums and to be counted, and ``add``: a sum of one of the parts.
    """

    start: float
    sum: float
    row: float
    shared_row: float
    crooked: float
    step: float
    unit: float
    store: float
    move: float
    arrive: float
    add: float


#: Fitted to times of 50 products on an H200, which are not those by which the choice is judged.
COSTS = Costs(
    start=6.3, sum=1.67e-5, row=1.08e-3, shared_row=1.19e-5, crooked=1.4, step=0.237, unit=0.5, store=2.07e-5,
    move=1.5e-7, arrive=1.0, add=8.6e-5,
)  # fmt: skip


def microseconds(cut: Cut, m: int, n: int, nbytes: int, kind: str, itemsize: int, multiprocessors: int) -> float:
    """What the model says that a cut takes. The arguments are those of `plan_for`."""
    tile, cost, parts = cut.tile, COSTS, cut.parts
    steps, tiles = blocks(nbytes, 128), blocks(m, tile.m) * blocks(n, tile.n)
    each = blocks(steps, parts)
    rest = (tiles - cut.whole) * blocks(steps, each)
    active = min(cut.whole + rest, multiprocessors)
    pitches = nbytes, n * 2 if kind in BY_ROWS else nbytes
    left, right = (cost.crooked if pitch % 32 else 1.0 for pitch in pitches)
    rows = tile.m * left + tile.n * right
    multiplied = tile.m * (tile.n + 64)  # an instruction reads 64 rows of A again for the columns that it multiplies
    step = max(multiplied * cost.sum, rows * cost.row, rows * cost.shared_row * active, cost.step)
    stored = min(m, tile.m) * tile.n
    whole = steps * step + cost.unit + stored * itemsize * cost.store
    part = each * step + cost.unit + cost.arrive + stored * parts * cost.add
    time = blocks(cut.whole, multiprocessors) * whole + blocks(rest, multiprocessors) * part
    return cost.start + max(time, ((m + n) * nbytes + m * n * itemsize) * cost.move)


@functools.lru_cache(4096)
def plan_for(m: int, n: int, nbytes: int, kind: str, itemsize: int, multiprocessors: int) -> Cut:
    """How a product is cut: whole tiles, parts of all, or whole rounds of tiles and parts of what is left of them.

    ``nbytes``: of a row of A. ``itemsize``: bytes of a number of C.

    >>> cut = plan_for(4096, 4096, 8192, "float16", 4, multiprocessors=132)
    >>> str(cut.tile), cut.whole, cut.parts
    ('128 x 256 x 64, 4 stages', 512, 1)
    """
    steps, group = blocks(nbytes, 128), 4 if kind in BY_ROWS else 16
    cuts = []
    for tile in TILES:
        tiles = blocks(m, tile.m) * blocks(n, tile.n)
        cuts.append(Cut(tile, group, tiles))
        for whole in {0, tiles // multiprocessors * multiprocessors} - {tiles}:
            if (tiles - whole) * tile.teams * 4 <= ARRIVALS:
                cuts += [Cut(tile, group, whole, parts) for parts in PARTS if 2 * parts <= steps]

    def order(cut: Cut) -> tuple[float, int]:  # of two that take as long, the smaller tile
        return microseconds(cut, m, n, nbytes, kind, itemsize, multiprocessors), cut.tile.m * cut.tile.n

    return min(cuts, key=order)


def launch(p: Problem, cut: Cut) -> None:
    """Launch the kernels of a plan."""
    by_rows, c = p.kind in BY_ROWS, p.result
    a = whole_rows(p.a, p.stream)
    b = whole_rows(p.b, p.stream, 2 * a.shape[1] // p.b.dtype.itemsize if by_rows else None)
    padded = c.shape[1] * c.dtype.itemsize % 16 or device.address(c) % 16  # the engine cannot store into C
    if padded:
        c = device.empty((c.shape[0], round_up(c.shape[1], 16 // c.dtype.itemsize)), c.dtype, stream=p.stream)
    store_tiles(cut, p.kind, (a, b), c, p.stream)
    if padded:
        pad_kernel[blocks(p.result.size, BLOCK), BLOCK, p.stream](c, p.result)


@rung(stored_kernel, pad_kernel, zero_kernel)
def product(p):
    """A product of any shape and type: few tiles are made smaller, and long sums are shared by several blocks.

    Source: CUTLASS, "Efficient GEMM in CUDA", on persistent kernels and split K.
    """
    nbytes, multiprocessors = p.a.shape[1] * p.a.dtype.itemsize, device.limits()["multiprocessors"]
    launch(p, plan_for(*p.result.shape, nbytes, p.kind, p.result.dtype.itemsize, multiprocessors))
