"""Vector addition: out[i] = x[i] + y[i].

Chapter: notebooks/04_vector_add.ipynb.  PMPP 4e ch. 2 and 3.

One addition for every twelve bytes moved: what counts is how many bytes are under way between memory and the threads.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.rung import Cost, rung
from pmpp.runtime.vector import WIDTH, load128, store128

DTYPES = ("float32", "float64", "int32", "int64")
BLOCK = 256  # threads a block
BLOCKS_PER_SM = 8  # 2048 threads: as many as a multiprocessor of a data-centre GPU holds


def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``x + y`` for two vectors of one length and dtype, an element at a time. Integers wrap around, as in NumPy."""
    out = np.empty_like(x)
    with np.errstate(all="ignore"):
        for i in range(x.size):
            out[i] = x[i] + y[i]
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Small awkward inputs: a name, and the vectors ``(x, y)``."""
    rng = np.random.default_rng(2) if rng is None else rng
    edges = {"empty": 0, "one": 1, "less than a vector": 3, "a vector": 4, "a vector and one": 5}
    edges |= {f"a block {d:+}": BLOCK + d for d in (-1, 0, 1)}
    edges |= {f"a block of vectors {d:+}": 4 * BLOCK + d for d in (-1, 0, 1)}
    made = {name: rng.standard_normal((2, n), dtype=np.float32) for name, n in edges.items()}
    made["float64"] = rng.standard_normal((2, 1001))
    made["int32, wraps around"] = rng.integers(2**30, 2**31, (2, 1001), dtype=np.int32)
    made["int64"] = rng.integers(-(2**62), 2**62, (2, 1001), dtype=np.int64)
    made["all equal"] = np.full((2, 1001), 0.1, dtype=np.float32)
    made["outliers"] = np.where(rng.random((2, 1001)) < 0.01, 1e8, 1e-8).astype(np.float32)
    made["cancellation"] = made["outliers"] * np.array([[1], [-1]], dtype=np.float32)
    extremes = np.array([0.0, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, np.nan], dtype=np.float32)
    made["non-finite"] = np.stack(np.meshgrid(extremes, extremes)).reshape(2, -1)
    return {name: (pair[0].copy(), pair[1].copy()) for name, pair in made.items()}


def cost(n: int, itemsize: int = 4) -> Cost:
    """``n`` additions; ``x`` and ``y`` read once, ``out`` written once."""
    return Cost(flops=n, bytes=3 * n * itemsize)


def _arguments(x: typing.Any, y: typing.Any, out: typing.Any, stream: typing.Any) -> tuple:
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    y = device.as_input("y", y, dtypes=x.dtype, shape=x.shape, stream=stream)
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, stream=stream)
    return x, y, out, stream


def _blocks(threads: int) -> int:
    return -(-threads // BLOCK)  # rounded up


@cuda.jit
def one_thread_each_kernel(x, y, out):
    i = cuda.grid(1)
    if i < out.size:  # the last block may reach beyond the end
        out[i] = x[i] + y[i]


@rung(one_thread_each_kernel)
def one_thread_each(x: typing.Any, y: typing.Any, *, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
    """One thread adds one pair of elements, and the grid is as long as the vectors.

    Args:
        x, y: vectors of one length (n,), n >= 0, and one dtype: float32, float64, int32 or int64; contiguous.
        out: a device array of the same shape and dtype, or None to allocate one. It may be ``x`` or ``y``.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. Integers wrap around, as in NumPy.
    Raises TypeError or ValueError that names the argument at fault. Source: PMPP 4e section 2.5.

    Leaves: a thread has only 8 bytes under way, then it is over, and a new block must be launched in its place.
    """
    x, y, out, stream = _arguments(x, y, out, stream)
    if x.size:
        one_thread_each_kernel[_blocks(x.size), BLOCK, stream](x, y, out)
    return out


@cuda.jit
def grid_stride_kernel(x, y, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = x[i] + y[i]


@rung(grid_stride_kernel)
def grid_stride(x: typing.Any, y: typing.Any, *, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
    """As many threads as the GPU holds at once walk over the vectors, in strides of the whole grid.

    Arguments, result and errors as in `one_thread_each`.

    Leaves: each load asks for 4 bytes, and a thread waits for them before it asks for the next.
    """
    x, y, out, stream = _arguments(x, y, out, stream)
    if x.size:
        resident = device.limits()["multiprocessors"] * BLOCKS_PER_SM
        grid_stride_kernel[min(_blocks(x.size), resident), BLOCK, stream](x, y, out)
    return out


def vector_span(*arrays: typing.Any) -> tuple[int, int, int]:
    """``(head, tail, width)``: elements [head:tail] of each array are whole 16-byte vectors of ``width`` elements.

    The span is the longest there is. It is empty, ``(0, 0, width)``, if the arrays lie differently on 16-byte
    boundaries: a slice such as x[1:] beside a whole y. Arrays: 1-D device arrays of one size and dtype.
    """
    size, dtype = arrays[0].size, arrays[0].dtype
    width = WIDTH[dtype.name]
    offsets = {device.address(array) % 16 for array in arrays}
    if len(offsets) > 1:
        return 0, 0, width
    head = min(-offsets.pop() % 16 // dtype.itemsize, size)
    return head, size - (size - head) % width, width


@cuda.jit(device=True)
def add_vectors(a, b):
    if len(a) == 4:  # decided when the kernel is compiled: 128 bits are four numbers of 32 bits, or two of 64
        return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]
    return a[0] + b[0], a[1] + b[1]


@cuda.jit
def vectorised_kernel(x, y, out, head, tail, width):
    thread = cuda.grid(1)
    i = head + thread * width
    if i < tail:
        store128(out, i, add_vectors(load128(x, i), load128(y, i)))
    # What lies before and after the vectors, one element a thread.
    if thread < head:
        out[thread] = x[thread] + y[thread]
    if tail + thread < out.size:
        out[tail + thread] = x[tail + thread] + y[tail + thread]


@rung(vectorised_kernel)
def vectorised(x: typing.Any, y: typing.Any, *, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
    """One thread adds one 128-bit vector: four 32-bit or two 64-bit elements by two loads and one store.

    Arguments, result and errors as in `one_thread_each`. Where ``x``, ``y`` and ``out`` lie differently on 16-byte
    boundaries (see `vector_span`), each thread adds one element.
    """
    x, y, out, stream = _arguments(x, y, out, stream)
    if x.size:
        head, tail, width = vector_span(x, y, out)
        threads = max(head, (tail - head) // width, x.size - tail)
        vectorised_kernel[_blocks(threads), BLOCK, stream](x, y, out, head, tail, width)
    return out


# The same with nothing to add, and no rung: the yardstick for what a kernel can get out of this GPU's memory.
@cuda.jit
def copy_kernel(x, out, head, tail, width):
    thread = cuda.grid(1)
    i = head + thread * width
    if i < tail:
        store128(out, i, load128(x, i))
    if thread < head:
        out[thread] = x[thread]
    if tail + thread < out.size:
        out[tail + thread] = x[tail + thread]


def copy(x: typing.Any, *, out: typing.Any = None, stream: typing.Any = 0) -> typing.Any:
    """``x`` copied on the device by 128-bit loads and stores: 2 n elements moved, no arithmetic.

    Arguments, result and errors as in `one_thread_each`, without ``y``.
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, stream=stream)
    if x.size:
        head, tail, width = vector_span(x, out)
        threads = max(head, (tail - head) // width, x.size - tail)
        copy_kernel[_blocks(threads), BLOCK, stream](x, out, head, tail, width)
    return out


LADDER = (one_thread_each, grid_stride, vectorised)
