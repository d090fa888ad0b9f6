"""Embedding: a row of a table for each index, as a language model looks up the vector of each token.

Chapter: notebooks/86_gradients_of_softmax.ipynb.  PMPP 4e ch. 6.

There is no arithmetic. At best each row is read once and written once, and the rows of a table lie anywhere. So the
bound is the memory's, as long as a row is long enough to fill whole sectors.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

DTYPES = ("float32",)
INDICES = ("int32", "int64")
BLOCK = 256


def reference(table: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """A row after the other; NaN for an index that is no row."""
    out = np.full((*indices.shape, table.shape[1]), np.nan, np.float64)
    for at in np.ndindex(indices.shape):
        if 0 <= indices[at] < len(table):
            out[at] = table[indices[at]]
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(table, indices)``."""
    rng = np.random.default_rng(87) if rng is None else rng

    def case(rows: int, width: int, *shape: int, dtype: type = np.int64) -> tuple:
        return rng.standard_normal((rows, width)).astype(np.float32), rng.integers(0, rows, shape).astype(dtype)

    made = {
        "one": case(1, 1, 1),
        "no indices": case(5, 3, 0),
        "no columns": case(5, 0, 4),
        "an only row": case(1, 9, 70),
    }
    made |= {f"rows of {n}": case(13, n, 37) for n in (1, 2, 3, 4, 5, 8, 31, 32, 33, 64, 127, 128, 132, 1024, 1030)}
    made |= {"a batch": case(20, 12, 3, 7), "int32": case(50, 16, 65, dtype=np.int32)}
    made["int32, odd"] = case(50, 15, 65, dtype=np.int32)
    made["all the same"] = made["rows of 64"][0], np.full(40, 12)
    table, indices = case(8, 6, 9)
    table[3], table[4], indices[:2] = np.nan, -np.inf, (3, 4)
    made["non-finite"] = table, indices
    return made


def tolerance(table: np.ndarray, indices: np.ndarray) -> float:
    """A copy has no error."""
    return 0.0


def cost(tokens: int, width: int, itemsize: int = 4) -> Cost:
    """Each row that is asked for is read and written once, if no two are the same; an index has 8 bytes."""
    return Cost(flops=0, bytes=tokens * (2 * width * itemsize + 8))


def arguments(table, indices, *, out=None, stream=0) -> Problem:
    """The rows of a table that indices name.

    Args:
        table: (rows, width), float32, contiguous; at least one row.
        indices: any shape, int32 or int64, contiguous, each from 0 to rows - 1. NumPy indices are checked. An index on
            the device that is no row gives a row of NaN, and `check_indices` finds it.
        out: a device array of shape (\\*indices.shape, width), float32, apart from ``table`` and ``indices`` in memory,
            or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PyTorch's torch.nn.functional.embedding.

    >>> from pmpp.kernels import embedding
    >>> embedding.vectorised(np.float32([[1, 2], [3, 4], [5, 6]]), np.int64([2, 0, 2])).copy_to_host()
    array([[5., 6.],
           [1., 2.],
           [5., 6.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    table = device.as_input("table", table, dtypes=DTYPES, ndim=2, stream=stream)
    rows, width = table.shape
    if not rows:
        raise ValueError(f"table must have at least one row, had shape {table.shape}")
    if isinstance(indices, np.ndarray) and indices.dtype in INDICES:
        check_indices(indices, rows)
    indices = device.as_input("indices", indices, dtypes=INDICES, stream=stream)
    apart = {"table": table, "indices": indices}
    shape = (*indices.shape, width)
    out = device.as_output("out", out, shape=shape, dtype=np.float32, apart=apart, stream=stream)
    return Problem(
        out,
        stream=stream,
        table=table,
        indices=indices.reshape(-1) if indices.size else indices,
        out=out.reshape((indices.size, width)) if out.size else out,
    )


def check_indices(indices, rows) -> None:
    """Raise ValueError that names the first index that is no row.

    Args:
        indices: integers, a NumPy array or a device array, which is copied to the host: call it where a result has
            become NaN, or once before training, not in every step.
        rows: how many there are.

    >>> check_indices(np.int64([0, 2]), 3)
    >>> check_indices(np.int64([0, 3]), 3)
    Traceback (most recent call last):
    ValueError: indices must be from 0 to 2 for rows=3, was 3 at [1]
    """
    count = as_integer("rows", rows, 1)
    try:
        found = device.to_host(indices)
    except TypeError:
        found = None
    if found is None or found.dtype.kind not in "iu":
        raise TypeError(
            f"indices must be an array of integers, was {type(indices).__name__ if found is None else found.dtype}"
        )
    wrong = (found < 0) | (found >= count)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(f"indices must be from 0 to {count - 1} for {rows=}, was {found[at]} at {list(at)}")


# ------------------------------------------------------------------------------------------------- an element a thread


@cuda.jit
def elements_kernel(table, indices, out):
    i = cuda.grid(1)
    if i < out.size:
        token = i // out.shape[1]
        row = indices[token]
        inside = 0 <= row < table.shape[0]
        out[token, i - token * out.shape[1]] = table[row, i - token * out.shape[1]] if inside else np.float32(np.nan)


@rung(elements_kernel)
def elementwise(p):
    """One thread for each element of the result.

    Leaves: each thread divides to find its token, waits for the index, and then moves 4 bytes.
    """
    elements_kernel[blocks(p.out.size, BLOCK), BLOCK, p.stream](p.table, p.indices, p.out)


# ----------------------------------------------------------------------------------------------------- whole vectors


@cuda.jit
def vectors_kernel(table, indices, out, width):
    """``table`` and ``out`` are flat, and ``width`` is a multiple of 4."""
    token = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if token < indices.size:
        row = np.int64(indices[token])
        inside = 0 <= row < table.size // width
        for i in range(4 * cuda.threadIdx.x, width, 4 * cuda.blockDim.x):
            if inside:
                store128(out, token * width + i, load128(table, row * width + i))
            else:
                nan = np.float32(np.nan)
                store128(out, token * width + i, (nan, nan, nan, nan))


@rung(vectors_kernel, elements_kernel)
def vectorised(p):
    """A group of threads copies a row, 16 bytes a thread: the index is read once for four elements, nothing is divided.

    A row has as many threads as it has vectors, up to 256. Rows that are not whole vectors go to `elementwise`.
    """
    width = p.out.shape[1]
    if width % 4 or (device.address(p.table) | device.address(p.out)) % 16:
        elementwise.launch(p)
        return
    threads = 1
    while threads < min(BLOCK, width // 4):
        threads *= 2
    grid, block = blocks(p.indices.size, BLOCK // threads), (threads, BLOCK // threads)
    vectors_kernel[grid, block, p.stream](p.table.reshape(-1), p.indices, p.out.reshape(-1), width)


LADDER = (elementwise, vectorised)
