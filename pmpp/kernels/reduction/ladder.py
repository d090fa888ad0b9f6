"""Reduction: the sum, the maximum or the minimum of a vector.

Chapter: notebooks/30_reduction.ipynb.  PMPP 4e ch. 10.

Each element is read once and used once, so no kernel can be faster than the time to read the vector. What costs more
time than that is cooperation: the threads of a block, and the blocks of a grid, must combine their values into one.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks, round_up
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, widened

DTYPES = ("float32", "float64", "int32", "int64", "float16", "bfloat16")
SHORT = DTYPES[4:]  # combined in float32; a sum is rounded once
SUM, MAX, MIN = 0, 1, 2
OPERATORS = {"sum": SUM, "max": MAX, "min": MIN}
BLOCK = 1024  # threads a block: 32 warps of 32 lanes
COARSE = 16  # elements a thread, from `coarsened` on
LOADS = 4  # 128-bit loads a thread, in the last two rungs: 64 bytes, like COARSE float32


def reference(x: np.ndarray, op: str = "sum") -> typing.Any:
    """``op`` over the vector ``x``, one element after another, as a NumPy scalar.

    A sum is taken in float64, or int64 for integers. If ``x`` has a NaN, the result is NaN, as in NumPy.
    """
    if op == "sum":
        total = np.int64(0) if x.dtype.kind == "i" else np.float64(0)
        with np.errstate(all="ignore"):
            for value in x:
                total = total + type(total)(value)
        return total
    best = x[0]
    for value in x:
        if value != value:
            return value
        if value > best if op == "max" else value < best:
            best = value
    return best


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple[np.ndarray]]:
    """Small awkward inputs: a name, and the vector ``(x,)``. For "empty" only the sum is defined."""
    rng = np.random.default_rng(10) if rng is None else rng
    sizes = {"empty": 0, "one": 1, "two": 2, "a warp and one": 33}
    sizes |= {f"a block {d:+}": BLOCK + d for d in (-1, 0, 1)}
    sizes |= {f"a tile {d:+}": BLOCK * COARSE + d for d in (-1, 0, 1)}
    made = {name: rng.standard_normal(n).astype(np.float32) for name, n in sizes.items()}
    made["float64"] = rng.standard_normal(3001)
    for dtype in known(SHORT):
        made |= {f"{dtype}, {n}": rng.standard_normal(n).astype(dtype) for n in (7, 8, 3001)}
        made[f"{dtype}, sum beyond 65504"] = np.full(3001, 48, dtype)  # infinite in float16
        made[f"{dtype}, ones"] = np.ones(5000, dtype)  # in 16 bits 2048 + 1 is 2048, or 256 + 1 is 256
        made[f"{dtype}, not finite"] = np.where(np.arange(3001) == 1600, np.nan, -np.inf).astype(dtype)
    made["int32, sum beyond int32"] = rng.integers(2**30, 2**31, 3001, dtype=np.int32)
    made["int64"] = rng.integers(-(2**50), 2**50, 3001, dtype=np.int64)
    made["all equal"] = np.full(3001, 0.1, dtype=np.float32)
    made["all negative"] = -rng.random(3001, dtype=np.float32) - 1  # a max that starts from 0 is wrong here
    made["all positive"] = rng.random(3001, dtype=np.float32) + 1  # a min that starts from 0 is wrong here
    made["outliers"] = np.where(rng.random(3001) < 0.01, 1e8, 1e-8).astype(np.float32)
    halves = rng.standard_normal(1500).astype(np.float32) * np.float32(1e6)
    made["cancellation"] = rng.permutation(np.concatenate([halves, -halves]))
    made["minus infinity only"] = np.full(33, -np.inf, dtype=np.float32)
    made["infinities"] = np.where(np.arange(3001) == 2999, np.inf, made["all equal"]).astype(np.float32)
    for name, where in {"first": 0, "middle": 1600, "last": 3000}.items():
        made[f"NaN {name}"] = np.where(np.arange(3001) == where, np.nan, made["all positive"]).astype(np.float32)
    return {name: (x,) for name, x in made.items()}


def cost(n: int, itemsize: int = 4) -> Cost:
    """``n - 1`` operations; ``x`` read once, and the result written."""
    return Cost(flops=max(n - 1, 0), bytes=(n + 1) * itemsize)


def arguments(x, op="sum", *, stream=0) -> Problem:
    """Reduce a vector to one number.

    Args:
        x: a contiguous vector (n,) of float32, float64, int32, int64, float16 or bfloat16. For "max" and "min", n >= 1.
        op: "sum", "max" or "min".
        stream: the stream to work on.

    Returns a device array of shape (1,), without waiting for the work to be done. Its dtype is that of ``x``, except
    that a sum of int32 is an int64. If ``x`` has a NaN, the result is NaN. An empty sum is 0. Numbers of 16 bits are
    added up in float32, and the sum is rounded once.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels import reduction
    >>> reduction.vectorised(np.arange(5, dtype=np.int32)).copy_to_host()
    array([10])
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=1, stream=stream)
    if not isinstance(op, str) or op not in OPERATORS:
        raise ValueError(f"op must be 'sum', 'max' or 'min', was {op!r}")
    dtype = np.dtype(np.int64) if op == "sum" and x.dtype.kind == "i" else x.dtype
    if x.dtype.itemsize == 2:
        dtype = np.dtype(np.float32)
    if op == "sum":
        identity = dtype.type(0)
    elif x.size == 0:
        raise ValueError(f"x must have an element for op={op!r}, was empty: the {op} of nothing is not defined")
    elif dtype.kind == "f":
        identity = dtype.type(-np.inf if op == "max" else np.inf)
    else:
        identity = dtype.type(np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max)
    p = Problem(None, stream=stream, begin=begin, finish=finish, x=x, op=OPERATORS[op], identity=identity, dtype=dtype)
    p.dtype_of_result = x.dtype if x.dtype.itemsize == 2 else dtype
    if not x.size:
        begin(p)  # the sum of nothing
        finish(p)
        p.done = True
    return p


@cuda.jit
def fill_kernel(out, value):
    out[cuda.threadIdx.x] = value


def begin(p):
    """Allocate the cell that all blocks combine into, and set it to the identity, which changes no value."""
    cells = 2 if p.op != SUM and p.dtype.kind == "f" else 1  # NaNs go to the second: see combine_into
    p.result = device.empty(cells, p.dtype, stream=p.stream)
    fill_kernel[1, cells, p.stream](p.result, p.identity)


def finish(p):
    """Combine the two cells of a float maximum or minimum into one, and round what has 16 bits."""
    if p.result.size == 2 or p.result.dtype != p.dtype_of_result:
        cells = p.result
        short = cells.dtype != p.dtype_of_result
        p.result = device.empty(1, p.dtype_of_result, stream=p.stream) if short else cells[:1]
        finish_kernel[1, 1, p.stream](cells, p.result, p.op)


@cuda.jit(device=True)
def combine(op, a, b):
    """Combine ``a`` and ``b``. ``op`` is the same in all threads, so no warp diverges over it."""
    if op == SUM:
        return a + b
    if op == MAX:
        return a if a > b or a != a else b  # a != a: a is NaN, and the result is NaN
    return a if a < b or a != a else b


@cuda.jit(device=True)
def combine_into(op, out, value):
    """Combine ``value`` into ``out[0]``, which all blocks share. An atomic reads, combines and writes in one step."""
    if op == SUM:
        cuda.atomic.add(out, 0, value)
    elif value != value:  # atomic.max and min lose a NaN, so it is kept apart
        cuda.atomic.add(out, 1, value)
    elif op == MAX:
        cuda.atomic.max(out, 0, value)
    else:
        cuda.atomic.min(out, 0, value)


@cuda.jit
def finish_kernel(cells, out, op):
    out[0] = combine(op, cells[0], cells[1]) if cells.size == 2 else cells[0]


@cuda.jit
def interleaved_kernel(x, work, out, op):
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    if i < x.size:
        work[i] = widened(x[i])
    cuda.syncthreads()

    stride = 1
    while stride < BLOCK:
        if thread % (2 * stride) == 0 and i + stride < x.size:
            work[i] = combine(op, work[i], work[i + stride])
        cuda.syncthreads()
        stride *= 2

    if thread == 0:
        combine_into(op, out, work[i])


@rung(interleaved_kernel)
def interleaved(p):
    """A tree in global memory: neighbours combine in pairs, then pairs of pairs, until a block has one value.

    Source: PMPP 4e section 10.3 for one block, 10.7 for many.

    Leaves: the threads that still work are spread over the warps, so many warps stay busy for a few lanes each.
    """
    work = device.empty(p.x.size, p.dtype, stream=p.stream)
    interleaved_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, work, p.result, p.op)


@cuda.jit
def sequential_kernel(x, work, out, op):
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    if i < x.size:
        work[i] = widened(x[i])
    cuda.syncthreads()

    stride = BLOCK // 2
    while stride > 0:
        if thread < stride and i + stride < x.size:
            work[i] = combine(op, work[i], work[i + stride])
        cuda.syncthreads()
        stride //= 2

    if thread == 0:
        combine_into(op, out, work[i])


@rung(sequential_kernel)
def sequential(p):
    """At each level the first half of the threads takes the values of the second half: whole warps work or rest.

    Neighbouring threads use neighbouring elements, so accesses are coalesced.

    Source: PMPP 4e sections 10.4 and 10.5.

    Leaves: every level of the tree reads and writes global memory, and the kernel needs a copy of ``x`` to write on.
    """
    work = device.empty(p.x.size, p.dtype, stream=p.stream)
    sequential_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, work, p.result, p.op)


@cuda.jit
def shared_tree_kernel(x, out, op, identity):
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    partial = cuda.shared.array(BLOCK, out.dtype)
    partial[thread] = widened(x[i]) if i < x.size else identity
    cuda.syncthreads()

    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2

    if thread == 0:
        combine_into(op, out, partial[0])


@rung(shared_tree_kernel)
def shared_tree(p):
    """The tree is in shared memory: global memory is read once, and each block writes one value, by an atomic.

    Source: PMPP 4e section 10.6.

    Leaves: a block has 1024 threads and eleven barriers for 1024 elements, and half of its threads only load.
    """
    shared_tree_kernel[blocks(p.x.size, BLOCK), BLOCK, p.stream](p.x, p.result, p.op, p.identity)


@cuda.jit
def coarsened_kernel(x, out, op, identity):
    thread = cuda.threadIdx.x
    first = cuda.blockIdx.x * BLOCK * COARSE + thread
    total = identity
    for k in range(COARSE):
        i = first + k * BLOCK
        if i < x.size:
            total = combine(op, total, widened(x[i]))

    partial = cuda.shared.array(BLOCK, out.dtype)
    partial[thread] = total
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            partial[thread] = combine(op, partial[thread], partial[thread + stride])
        cuda.syncthreads()
        stride //= 2

    if thread == 0:
        combine_into(op, out, partial[0])


@rung(coarsened_kernel)
def coarsened(p):
    """Each thread first combines COARSE elements by itself, so one tree and one atomic serve 16,384 elements.

    Source: PMPP 4e section 10.8.

    Leaves: the tree still has eleven barriers, and the whole block waits at each for the few warps that work.
    """
    coarsened_kernel[blocks(p.x.size, BLOCK * COARSE), BLOCK, p.stream](p.x, p.result, p.op, p.identity)


@cuda.jit(device=True)
def warp_combine(op, value):
    """Combine the 32 values of the warp; the result is in lane 0. A lane reads the register of a higher lane."""
    for distance in (16, 8, 4, 2, 1):
        value = combine(op, value, cuda.shfl_down_sync(FULL_WARP, value, distance))
    return value


@cuda.jit(device=True)
def block_combine(op, value, partial):
    """Combine the BLOCK values of the block; the result is in thread 0. ``partial``: shared, an element a warp."""
    thread = cuda.threadIdx.x
    value = warp_combine(op, value)
    if cuda.laneid == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    if thread < 32:
        value = warp_combine(op, partial[thread])
    return value


@cuda.jit
def shuffle_kernel(x, out, op, identity):
    thread = cuda.threadIdx.x
    first = cuda.blockIdx.x * BLOCK * COARSE + thread
    total = identity
    for k in range(COARSE):
        i = first + k * BLOCK
        if i < x.size:
            total = combine(op, total, widened(x[i]))

    total = block_combine(op, total, cuda.shared.array(32, out.dtype))
    if thread == 0:
        combine_into(op, out, total)


@rung(shuffle_kernel)
def shuffle(p):
    """Lanes pass values from register to register: each of 32 warps makes one value, and one warp combines the 32.

    Source: CUDA C++ programming guide, "Warp shuffle functions".

    Leaves: a thread makes sixteen loads of one element, and each needs an address and a test of its own.
    """
    shuffle_kernel[blocks(p.x.size, BLOCK * COARSE), BLOCK, p.stream](p.x, p.result, p.op, p.identity)


@cuda.jit(device=True)
def combine_four(op, v):
    return combine(op, combine(op, v[0], v[1]), combine(op, v[2], v[3]))


@cuda.jit(device=True)
def combine_vector(op, v):
    """Combine the elements of one 128-bit vector: four of 32 bits, two of 64, or eight of 16, made float32."""
    if len(v) == 4:
        return combine_four(op, widened(v))
    if len(v) == 8:  # four at a time: fewer registers than for eight float32
        return combine(op, combine_four(op, widened(v[:4])), combine_four(op, widened(v[4:])))
    return combine(op, widened(v[0]), widened(v[1]))


@cuda.jit(device=True)
def combine_tile(x, op, identity, head, tail, width):
    """Combine this thread's vectors, LOADS at most; its block takes LOADS for each thread of those in x[head:tail].

    ``width``: elements in a vector.
    """
    thread = cuda.threadIdx.x
    step = cuda.blockDim.x * width
    i = head + cuda.blockIdx.x * LOADS * step + thread * width
    total = identity
    if i + 3 * step < tail:  # all four loads are under way before the first is used
        a, b = load128(x, i), load128(x, i + step)
        c, d = load128(x, i + 2 * step), load128(x, i + 3 * step)
        ab = combine(op, combine_vector(op, a), combine_vector(op, b))
        total = combine(op, ab, combine(op, combine_vector(op, c), combine_vector(op, d)))
    else:
        for j in range(i, tail, step):
            total = combine(op, total, combine_vector(op, load128(x, j)))
    if cuda.blockIdx.x == 0:  # it also takes the elements before and after the vectors
        if thread < head:
            total = combine(op, total, widened(x[thread]))
        if tail + thread < x.size:
            total = combine(op, total, widened(x[tail + thread]))
    return total


@cuda.jit(max_registers=32)  # for two blocks of 1024 threads on a multiprocessor
def vectorised_kernel(x, out, op, identity, head, tail, width):
    total = combine_tile(x, op, identity, head, tail, width)
    total = block_combine(op, total, cuda.shared.array(32, out.dtype))
    if cuda.threadIdx.x == 0:
        combine_into(op, out, total)


@rung(vectorised_kernel)
def vectorised(p):
    """A thread requests its 64 bytes at once, by four 128-bit loads.

    Block 0 also takes the elements before the first 16-byte boundary of ``x`` and after the last: at most three each.

    Leaves: blocks add to the result in the order in which they finish, so the last bits of a float sum change from run
    to run.
    """
    head, tail, width = vector_span(p.x)
    grid = max(1, blocks(tail - head, LOADS * BLOCK * width))
    vectorised_kernel[grid, BLOCK, p.stream](p.x, p.result, p.op, p.identity, head, tail, width)


@cuda.jit(max_registers=32)  # as above
def deterministic_kernel(x, out, wide, op, identity, head, tail, width):
    """``wide``: an array of the dtype that is combined in, of which only the dtype counts."""
    total = combine_tile(x, op, identity, head, tail, width)
    partial = cuda.shared.array(32, wide.dtype)
    if cuda.threadIdx.x < 32:
        partial[cuda.threadIdx.x] = identity  # block_combine reads 32, also of warps that the block lacks
    cuda.syncthreads()
    total = block_combine(op, total, partial)
    if cuda.threadIdx.x == 0:
        out[cuda.blockIdx.x] = total


@rung(deterministic_kernel, begin=False)
def deterministic(p):
    """Each block stores its result, and the same kernel reduces those: the order of additions is fixed.

    A sum has the same bits on every run and on every GPU, as long as ``x`` begins equally far from a 16-byte boundary.
    There are no atomics, so no cell must be set beforehand. Up to 2^14 float32 take 1 launch, up to 2^28 take 2, up to
    2^42 take 3; of 16-bit numbers a block takes twice as many. For a long ``x`` this is slightly slower than
    `vectorised`.
    """
    x = p.x
    while True:
        head, tail, width = vector_span(x)
        grid = max(1, blocks(tail - head, LOADS * BLOCK * width))
        # One block has as many threads as have LOADS vectors each: fewer warps meet sooner.
        threads = BLOCK if grid > 1 else max(32, round_up(blocks((tail - head) // width, LOADS), 32))
        partials = device.empty(grid, p.dtype, stream=p.stream)
        out = partials
        if grid == 1 and p.dtype_of_result != p.dtype:
            out = device.empty(1, p.dtype_of_result, stream=p.stream)  # of 16 bits: rounded here, and nowhere else
        deterministic_kernel[grid, threads, p.stream](x, out, partials, p.op, p.identity, head, tail, width)
        if grid == 1:
            return out
        x = partials


LADDER = (interleaved, sequential, shared_tree, coarsened, shuffle, vectorised, deterministic)
