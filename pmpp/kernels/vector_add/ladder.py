"""Vector addition: out[i] = x[i] + y[i].

Chapter: notebooks/04_vector_add.ipynb.  PMPP 4e ch. 2 and 3.

Each addition moves three elements, 12 bytes in float32, so memory is the bound. To come near it, many bytes must be in
flight: requested, and not yet arrived. Or fewer must move: numbers of 16 bits take half the time of float32.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width_of

DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
SHORT = DTYPES[4:]  # the sum is computed in float32, and rounded once
BLOCK = 256  # threads per block
BLOCKS_PER_SM = 8  # 2048 threads: as many as a multiprocessor of a data-centre GPU holds


def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``x + y`` for two vectors of one length and dtype, element after element. Integers wrap around, as in NumPy.

    A sum of floating-point numbers is the exact sum, rounded once to their dtype.
    """
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
    for dtype in known(SHORT):
        made[dtype.name] = rng.standard_normal((2, 1001)).astype(dtype)
        edges = np.array([0.0, -0.0, 2.0**-24, 1e-40, 1.0, 2.0**-11, 65504, 3.3e38, np.inf, -np.inf, np.nan])
        with np.errstate(over="ignore"):
            edges = edges.astype(dtype)
        made[f"{dtype.name}, edges"] = np.stack(np.meshgrid(edges, edges)).reshape(2, -1)
    made["all equal"] = np.full((2, 1001), 0.1, dtype=np.float32)
    made["outliers"] = np.where(rng.random((2, 1001)) < 0.01, 1e8, 1e-8).astype(np.float32)
    made["cancellation"] = made["outliers"] * np.array([[1], [-1]], dtype=np.float32)
    extremes = np.array([0.0, -0.0, 1e-45, 3.4e38, np.inf, -np.inf, np.nan], dtype=np.float32)
    made["non-finite"] = np.stack(np.meshgrid(extremes, extremes)).reshape(2, -1)
    return {name: (pair[0].copy(), pair[1].copy()) for name, pair in made.items()}


def cost(n: int, itemsize: int = 4) -> Cost:
    """``n`` additions; ``x`` and ``y`` read once, ``out`` written once."""
    return Cost(flops=n, bytes=3 * n * itemsize)


def arguments(x, y, *, out=None, stream=0) -> Problem:
    """Add two vectors.

    Args:
        x, y: contiguous vectors of one length (n,), n >= 0, and of one dtype: float32, float64, int32, int64, float16
            or bfloat16.
        out: a device array of the same shape and dtype, or None to allocate one. It may be ``x`` or ``y``,
            and is otherwise apart from them in memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. Integers wrap around, as in NumPy. Sums of floating-point
    numbers are rounded once, to the nearest; what is too large becomes infinity.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import vector_add
    >>> vector_add.vectorised(np.float32([1, 2, 3]), np.float32([10, 20, 30])).copy_to_host()
    array([11., 22., 33.], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    y = device.as_input("y", y, dtypes=x.dtype, shape=x.shape, stream=stream)
    out = device.as_output(
        "out", out, shape=x.shape, dtype=x.dtype, apart={"x": x, "y": y}, may_be=("x", "y"), stream=stream
    )
    return Problem(out, stream=stream, x=x, y=y)


@cuda.jit
def one_thread_each_kernel(x, y, out):
    i = cuda.grid(1)
    if i < out.size:  # the last block may reach beyond the end
        out[i] = x[i] + y[i]


@rung(one_thread_each_kernel)
def one_thread_each(p):
    """One thread adds one pair of elements, and the grid is as long as the vectors.

    Source: PMPP 4e section 2.5.

    Leaves: a thread has only 8 bytes in flight, and then ends. When all threads of a block have ended, a new block must
    start.
    """
    one_thread_each_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.y, p.result)


@cuda.jit
def grid_stride_kernel(x, y, out):
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = x[i] + y[i]


@rung(grid_stride_kernel)
def grid_stride(p):
    """As many threads as the GPU holds at once walk over the vectors, in strides of the whole grid.

    Source: M. Harris, "CUDA Pro Tip: Write Flexible Kernels with Grid-Stride Loops" (2013).

    Leaves: each load asks for 4 bytes, and a thread waits for them before it asks for the next.
    """
    resident = device.limits()["multiprocessors"] * BLOCKS_PER_SM
    grid_stride_kernel[min(blocks(p.x.size, BLOCK), resident), BLOCK, p.stream](p.x, p.y, p.result)


class Span(typing.NamedTuple):
    """Elements [head:tail] of an array are whole 16-byte vectors of ``width`` elements."""

    head: int
    tail: int
    width: int


def vector_span(*arrays: typing.Any) -> Span:
    """The longest span of whole 16-byte vectors that 1-D device arrays of one size and dtype have in common.

    It is empty, ``(0, 0, width)``, if the addresses of the arrays differ modulo 16 bytes, as those of a slice x[1:] and
    a whole y do.

    >>> vector_span(device.to_device(np.zeros(10, np.float32)))
    Span(head=0, tail=8, width=4)
    """
    offsets = {device.address(array) % 16 for array in arrays}
    return span_of(arrays[0].size, arrays[0].dtype, offsets.pop() if len(offsets) == 1 else None)


@functools.lru_cache(4096)
def span_of(size: int, dtype: np.dtype, offset: int | None) -> Span:
    """The span of arrays that begin ``offset`` bytes behind a multiple of 16; None if they differ in that."""
    width = width_of(dtype)
    if offset is None:
        return Span(0, 0, width)
    head = min(-offset % 16 // dtype.itemsize, size)
    return Span(head, size - (size - head) % width, width)


@cuda.jit(device=True)
def add_four(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@cuda.jit(device=True)
def add_vectors(a, b):
    # Decided when the kernel is compiled: 128 bits are four numbers of 32 bits, two of 64 or eight of 16.
    if len(a) == 4:
        return add_four(a, b)
    if len(a) == 8:
        return add_four(a[:4], b[:4]) + add_four(a[4:], b[4:])
    return a[0] + b[0], a[1] + b[1]


@cuda.jit
def vectorised_kernel(x, y, out, head, tail, width):
    thread = cuda.grid(1)
    i = head + thread * width
    if i < tail:
        store128(out, i, add_vectors(widened(load128(x, i)), widened(load128(y, i))))
    # What lies before and after the vectors, one element per thread.
    if thread < head:
        out[thread] = widened(x[thread]) + widened(y[thread])
    if tail + thread < out.size:
        out[tail + thread] = widened(x[tail + thread]) + widened(y[tail + thread])


@rung(vectorised_kernel)
def vectorised(p):
    """One thread adds one 128-bit vector: four 32-bit, two 64-bit or eight 16-bit elements by two loads and one store.

    Numbers of 16 bits are made float32 in registers (`widened`), added, and rounded once when they are stored.

    Each thread adds only one element if the addresses of ``x``, ``y`` and ``out`` differ modulo 16 bytes, as those of a
    slice x[1:] and a whole y do (see `vector_span`).

    Source: PTX ISA, "Vectors" in ld and st; PMPP 5e section 6.3.
    """
    head, tail, width = vector_span(p.x, p.y, p.result)
    threads = max(head, (tail - head) // width, p.x.size - tail)
    vectorised_kernel[blocks(threads, BLOCK), BLOCK, p.stream](p.x, p.y, p.result, head, tail, width)


# It copies instead of adding. It is not a rung: it measures the bandwidth that a kernel can reach.
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


def copy(x, *, out=None, stream=0):
    """``x`` copied on the device by 128-bit loads and stores: 2 n elements moved, no arithmetic.

    Args:
        x: a contiguous vector (n,), n >= 0, of float32, float64, int32, int64, float16 or bfloat16.
        out: a device array of the same shape and dtype, apart from ``x`` in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> copy(np.arange(3.0)).copy_to_host()
    array([0., 1., 2.])
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart={"x": x}, stream=stream)
    if x.size:
        head, tail, width = vector_span(x, out)
        threads = max(head, (tail - head) // width, x.size - tail)
        copy_kernel[blocks(threads, BLOCK), BLOCK, stream](x, out, head, tail, width)
    return out


LADDER = (one_thread_each, grid_stride, vectorised)
