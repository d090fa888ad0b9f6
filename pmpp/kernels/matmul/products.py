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
    BY_ROWS,
    CAPABILITY,
    Tile,
    rows_of_part,
    store_tiles,
    stored_kernel,
)
from pmpp.runtime import device
from pmpp.runtime.check import as_flag
from pmpp.runtime.rung import Problem, rung
from pmpp.runtime.views import span

KINDS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "tf32", "int8": "int8", "uint8": "e4m3"}
BLOCK = 256


class Plan(typing.NamedTuple):
    """How a product is cut: ``tile`` of C and of K, ``parts`` of K, and ``group`` rows of tiles that are neighbours."""

    tile: Tile
    parts: int
    group: int


def arguments(a, b, *, rounded=False, out=None, stream=0) -> Problem:
    """Multiply two matrices on the tensor cores of a Hopper GPU.

    Args:
        a: a matrix of shape (M, K) in C order: float16, bfloat16, float32, int8, or uint8, which stands for the bits
            of e4m3. Of float32 the tensor cores see the upper 19 bits (tf32).
        b: a matrix of shape (K, N) of the same dtype: in C order if it is float16 or bfloat16, and else in Fortran
            order, as ``w.T`` of a matrix of shape (N, K).
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
        b = span(b).reshape(b.shape[1], b.shape[0])  # its rows are the columns of the matrix
    if rounded and kind not in BY_ROWS:
        raise ValueError(f"rounded must be False for a and b of {a.dtype}: only float16 and bfloat16 have such sums")
    result = str(a.dtype) if rounded else "int32" if kind == "int8" else "float32"
    shape = a.shape[0], b.shape[1 if kind in BY_ROWS else 0]
    out = device.as_output("out", out, shape=shape, dtype=result, apart={"a": a, "b": b}, stream=stream)
    if out.size and not a.shape[1]:
        zeros = np.zeros((shape[0], 1), a.dtype), np.zeros((1, shape[1])[:: 1 if kind in BY_ROWS else -1], a.dtype)
        a, b = (device.to_device(x, stream=stream) for x in zeros)
    return Problem(out, stream=stream, a=a, b=b, kind=kind, dtype=result)


# -------------------------------------------------------------------------------------------------------------- copies


@cuda.jit
def pad_kernel(source, target):
    at = cuda.grid(1)
    if at < target.size:
        row, column = at // target.shape[1], at % target.shape[1]
        inside = row < source.shape[0] and column < source.shape[1]
        target[row, column] = source[row, column] if inside else target.dtype.type(0)


@cuda.jit
def add_parts_kernel(sums, parts, rows, out):
    """Add the sums of all parts: those of a part lie ``rows`` rows below those of the one before."""
    at = cuda.grid(1)
    if at < out.size:
        row, column = at // out.shape[1], at % out.shape[1]
        total = sums[row, column]
        for part in range(1, parts):
            total += sums[part * rows + row, column]
        out[row, column] = total


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
    Tile(128, 256, 4), Tile(128, 192, 4), Tile(192, 128, 4), Tile(128, 128, 6), Tile(64, 256, 5), Tile(64, 192, 6),
    Tile(128, 64, 8), Tile(64, 128, 8), Tile(64, 64, 8),
)  # fmt: skip


@functools.lru_cache(4096)
def plan_for(m: int, n: int, k: int, kind: str, multiprocessors: int) -> Plan:
    """How a product of this shape is cut."""
    return Plan(TILES[0], 1, 8)


def launch(p: Problem, plan: Plan) -> None:
    """Launch the kernels of a plan."""
    tile, parts, group = plan
    (m, n), by_rows, c = p.result.shape, p.kind in BY_ROWS, p.result
    a = whole_rows(p.a, p.stream)
    b = whole_rows(p.b, p.stream, 2 * a.shape[1] // p.b.dtype.itemsize if by_rows else None)
    if parts > 1 or n * c.dtype.itemsize % 16 or device.address(c) % 16:
        dtype = "int32" if p.kind == "int8" else "float32"
        c = device.empty((parts * rows_of_part(m), round_up(n, 4)), dtype, stream=p.stream)
    parts = store_tiles(tile, group, parts, p.kind, (a, b), c, p.stream)
    if c is not p.result:
        add_parts_kernel[blocks(m * n, BLOCK), BLOCK, p.stream](c, parts, rows_of_part(m), p.result)


@rung(stored_kernel, pad_kernel, add_parts_kernel)
def product(p):
    """A product of any shape and type: few tiles are made smaller, and long sums are shared by several blocks.

    Source: CUTLASS, "Efficient GEMM in CUDA", on persistent kernels and split K.
    """
    plan = plan_for(*p.result.shape, p.a.shape[1] * p.a.dtype.itemsize, p.kind, device.limits()["multiprocessors"])
    launch(p, plan)
