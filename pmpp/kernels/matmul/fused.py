"""Fused and batched products: many matrices of any strides multiplied at once, and finished before they are stored.

Chapter: notebooks/39_fused_and_batched_products.ipynb.  PMPP 4e ch. 6.

The result is ``activation(alpha * (a @ b) + beta * residual + bias)`` in float32, for as many pairs of matrices as the
leading dimensions say. What is done to a product besides multiplying is its *epilogue*. Done by kernels of its own, it
reads and writes all of the result once for each step, and memory is the bound. Done by the kernel that has the sums in
its registers, it moves no byte of the result. The ladder first brings the matrices into one launch. Then it brings the
steps of the epilogue into one pass, and that pass into the product, also where a sum is split. Last, several small
matrices share a block.

The tiles, how they are read, and the model that chooses are those of `pmpp.kernels.matmul.fitted`. Three things differ
in the kernel. A block also finds its matrices, by strides: nothing is copied, a stride of 0 repeats a matrix, and where
neither rows nor columns run along memory, elements are read one by one. The sums are finished on their way into C. And
a block may have several teams of threads, each with a matrix of its own.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks, round_up
from pmpp.kernels.matmul import fitted
from pmpp.kernels.matmul.batched import no_bias as nothing
from pmpp.kernels.matmul.fitted import ADDERS, AT_ONCE, MOST_BLOCKS, MOST_ELEMENTS, SUMS, TEAMS, Plan, Reader, Tile
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128
from pmpp.runtime.views import span

f0, f1 = np.float32(0), np.float32(1)


# --------------------------------------------------------------------------------------------------------- definition


def reference(a, b, bias=None, residual=None, activation=None, alpha=1.0, beta=1.0) -> np.ndarray:
    """One element after another, with sums in float64. ``activation``: a name of `ACTIVATIONS`, or None."""
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    a, b = np.broadcast_to(a, (*leading, m, k)), np.broadcast_to(b, (*leading, k, n))
    y = np.zeros((*leading, m, n))
    for at in np.ndindex(y.shape):
        row, column = a[*at[:-1]], b[*at[:-2], :, at[-1]]
        y[at] = alpha * sum(float(one) * float(other) for one, other in zip(row, column, strict=True))
    y += 0 if residual is None else beta * residual.astype(np.float64)
    y += 0 if bias is None else bias.astype(np.float64)
    if activation == "relu":
        return np.where(y < 0, 0.0, y)  # a NaN is not below 0, and stays
    if activation == "gelu":
        values = [0.0 if v == -math.inf else v * math.erfc(-v / math.sqrt(2)) / 2 for v in map(float, y.flat)]
        return np.reshape(values, y.shape)
    return y


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs by name: (a, b, bias, residual, activation, alpha, beta), or fewer."""
    rng = np.random.default_rng(0) if rng is None else rng

    def array(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    # Where one input is as good as another it has the form of another, so that tests compile few kernels.
    found = {"one": (array(1, 1), array(1, 1), array(1), array(1, 1), "gelu", 2.0, -1.0)}
    found |= {"no matrices": (array(0, 3, 4), array(4, 5)), "no rows": (array(2, 0, 3), array(2, 3, 4), array(4))}
    found |= {"no depth": (array(2, 3, 0), array(0, 1), array(1), array(3, 1), "gelu", 1.0, 0.5)}
    found |= {"a tile and one": (array(33, 20), array(20, 36), array(36), array(33, 36), "gelu")}
    found |= {"one weight for all": (array(3, 5, 12), array(12, 8), array(8), array(3, 5, 8), "gelu", 0.5)}
    found |= {"small": (array(3, 16, 16), array(3, 16, 16), array(16), array(3, 16, 16), "gelu", 0.5, 2.0)}
    found |= {"tiny and odd": (array(5, 3, 5), array(5, 5, 7), array(7), array(7), "gelu")}
    found |= {"broadcast": (array(2, 1, 6, 9), array(3, 9, 5), array(5), array(2, 1, 1, 5), "gelu", -1.5)}
    found |= {"long sum": (array(2, 3, 259), array(2, 259, 5), array(5), array(2, 3, 5), "gelu", 0.25, 3.0)}
    x, w = array(10, 21), array(21, 7)
    found["cancellation, nothing else"] = np.hstack([x, -x]), np.vstack([w, w])
    x = x.copy()
    x[3, 4], x[7, 0], x[9, -1] = np.nan, np.inf, -np.inf
    return found | {"non-finite": (x, w, array(7), None, "relu")}


def cost(count: int, m: int, n: int, k: int, weights: int | None = None, residual: bool = False) -> Cost:
    """A multiply-add for each k; operands, residual and result moved once.

    ``weights``: how many matrices b has, if they are not ``count``. The bias has n elements in all, and is left out.
    """
    moved = count * (m * k + m * n * (1 + residual)) + (count if weights is None else weights) * k * n
    return Cost(flops=2 * count * m * n * k, bytes=4 * moved)


def tolerance(a, b, bias=None, residual=None, activation=None, alpha=1.0, beta=1.0) -> np.ndarray:
    """How far from the exact result a right one may be.

    Each of K products is rounded, unless it is fused with its addition, and takes part in at most K additions, in
    whatever order. Then at most five operations follow: two scalings, two additions, and a rounding of alpha and of
    beta to float32. Each rounds by at most half an eps of the sum of the absolute values (Higham, Accuracy and
    Stability of Numerical Algorithms, section 3.5). The slope of a GELU is below 1.13, and its own value is off by at
    most eight half eps of its argument: erf has two eps of 1, its argument one and a half, and three operations follow.
    """
    with np.errstate(all="ignore"):
        size = abs(alpha) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
        size = size + (0 if residual is None else abs(beta) * np.abs(residual))
        size = size + (0 if bias is None else np.abs(bias))
        half_eps = float(np.finfo(np.float32).eps) / 2
        error = (a.shape[-1] + 7) * half_eps * size
        return 1.13 * error + 9 * half_eps * size if activation == "gelu" else error


# ---------------------------------------------------------------------------------------------------------- activations

LOWEST = np.float32(-16)  # a GELU is 0 from here on down, to all digits; and -inf would become NaN


@cuda.jit(device=True)
def unchanged(value):
    return value


@cuda.jit(device=True)
def relu(value):
    return f0 if value < f0 else value  # a NaN stays


@cuda.jit(device=True)
def gelu(value):
    v = LOWEST if value < LOWEST else value
    return np.float32(0.5) * v * (f1 + math.erf(v * np.float32(0.7071067811865476)))  # 1 / sqrt(2)


ACTIVATIONS = {None: unchanged, "relu": relu, "gelu": gelu}


def as_activation(activation: typing.Any) -> typing.Any:
    """The device function of an activation. Raises TypeError or ValueError for what is none."""
    if activation is None or (isinstance(activation, str) and activation in ACTIVATIONS):
        return ACTIVATIONS[activation]
    accepted = "None, 'relu', 'gelu' or a device function of a float32, made by cuda.jit(device=True)"
    if isinstance(activation, str):
        raise ValueError(f"activation must be {accepted}, was {activation!r}")
    if not hasattr(activation, "py_func"):
        raise TypeError(f"activation must be {accepted}, was {activation!r}")
    return activation


# ------------------------------------------------------------------------------------------------- arguments, strides


class Steps(typing.NamedTuple):
    """How far apart in memory the matrices of a batch begin: for each of its dimensions, innermost first, in elements.

    ``extents``: of the dimensions. The other fields have a step for each, of A, of B, and of the residual.
    """

    extents: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]
    residual: tuple[int, ...]


class Shape(typing.NamedTuple):
    """``count`` products of M x K and K x N, and where their elements are.

    ``a``, ``b``, ``residual``: the steps from a row to the next one and from a column to the next one, in elements.
    """

    count: int
    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    residual: tuple[int, int]
    steps: Steps


@functools.lru_cache(4096)
def shape_of(out: tuple, k: int, a: tuple, b: tuple, residual: tuple) -> Shape:
    """The shape of a problem whose result has shape ``out``.

    ``a``, ``b``, ``residual``: the strides of each as if it were repeated to the rank of ``out``, in elements: 0 where
    it is. Leading dimensions that are one behind the other in all operands are merged. If all share one B, and rows of
    A simply go on from a matrix to the next, then the matrices are one, with many rows.
    """
    *leading, m, n = out
    found: list[list[int]] = []
    for extent, *steps in zip(leading, a[:-2], b[:-2], residual[:-2], strict=True):
        if extent == 1:
            continue
        if found and all(outer == extent * step for outer, step in zip(found[-1][1:], steps, strict=True)):
            found[-1] = [found[-1][0] * extent, *steps]
        else:
            found.append([extent, *steps])
    if found:
        extent, *steps = found[-1]
        rows = a[-2], 0, residual[-2]
        if m == 1:  # then it has no step from row to row
            a, residual = (*a[:-2], steps[0], a[-1]), (*residual[:-2], steps[2], residual[-1])
            rows = steps[0], 0, steps[2]
        if steps == [m * step for step in rows]:
            found, m = found[:-1], m * extent
    count = math.prod(extent for extent, *_ in found)
    extents, *steps = zip(*reversed(found), strict=True) if found else ((1,), (0,), (0,), (0,))
    return Shape(count, m, n, k, a[-2:], b[-2:], residual[-2:], Steps(extents, *steps))


def strides_of(name: str, x: typing.Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array that is repeated to a shape, in elements: 0 where it is repeated, or has one element."""
    given = (0,) * (len(shape) - len(x.shape)) + tuple(x.strides)
    extents = (1,) * (len(shape) - len(x.shape)) + tuple(x.shape)
    if x.size and (min(given) < 0 or any(stride % x.dtype.itemsize for stride in given)):
        what = "strides that are not negative, of whole elements"
        raise ValueError(f"{name} must have {what}, had {tuple(x.strides)} bytes: copy it first")
    return tuple(
        0 if extent == 1 else stride // x.dtype.itemsize for stride, extent in zip(given, extents, strict=True)
    )


def memory_of(name: str, x: typing.Any) -> typing.Any:
    """All memory that an array's elements lie in, as a vector."""
    flat = span(x)
    if flat.size > MOST_ELEMENTS:
        raise ValueError(
            f"{name} must span at most {MOST_ELEMENTS} elements, spanned {flat.size}: its shape is {x.shape}"
        )
    return flat


def arguments(
    a, b, bias=None, residual=None, activation=None, alpha=1.0, beta=1.0, *, accumulate=False, out=None, stream=0
) -> Problem:
    """Multiply matrices, and finish the products: ``activation(alpha * (a @ b) + beta * residual + bias)``.

    Args:
        a: float32, shape (..., M, K), with any strides that are not negative: transposed and sliced views are not
            copied.
        b: float32, shape (..., K, N), in the same way. The leading dimensions of a and b are broadcast, as in
            ``numpy.matmul``; both have at least two dimensions.
        bias: float32, shape (N,), contiguous: a number for each column; or None.
        residual: float32, any shape of at least one dimension that broadcasts to that of the result, any strides; or
            None.
        activation: None, "relu", "gelu" (by erf), or a device function of a float32 that returns one.
        alpha, beta: finite numbers; they become float32. With beta = 0 the residual is not read, as in BLAS.
        accumulate: True to take for ``residual`` what ``out`` held before the call.
        out: a float32 device array of the result's shape in C order, apart from a, b, bias and residual in memory, or
            None to allocate one.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. An extent may be 0; with K = 0 all products are 0. The
    same call gives the same bits on the same GPU.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.matmul import fused
    >>> a, b, bias = np.float32([[[1, 2]], [[3, 4]]]), np.float32([[1], [1]]), np.float32([-5])
    >>> fused.packed(a, b, bias, np.float32([10]), "relu", 2.0, 0.0).copy_to_host()
    array([[[1.]],
    <BLANKLINE>
           [[9.]]], dtype=float32)
    """
    stream = device.as_stream(stream)
    a = device.as_input("a", a, dtypes="float32", layout="any", stream=stream)
    b = device.as_input("b", b, dtypes="float32", layout="any", stream=stream)
    for name, x in (("a", a), ("b", b)):
        if len(x.shape) < 2:
            raise ValueError(f"{name} must have at least 2 dimensions, had {len(x.shape)}: its shape was {x.shape}")
    (m, k), n = a.shape[-2:], b.shape[-1]
    if b.shape[-2] != k:
        raise ValueError(f"b must have {k} rows, as many as a has columns, had {b.shape[-2]}: its shape was {b.shape}")
    try:
        leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        fits = f"leading dimensions that broadcast with those of a, {tuple(a.shape[:-2])}"
        raise ValueError(f"b must have {fits}, had {tuple(b.shape[:-2])}") from None
    shape = (*leading, m, n)
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes="float32", ndim=1, shape=(n,), stream=stream)
    if residual is not None:
        residual = device.as_input("residual", residual, dtypes="float32", layout="any", stream=stream)
        if not broadcasts(residual.shape, shape):
            raise ValueError(f"residual must have a shape that broadcasts to {shape}, had {residual.shape}")
    activation, added_to = as_activation(activation), as_flag("accumulate", accumulate)
    alpha, beta = as_number("alpha", alpha), as_number("beta", beta)
    if added_to and residual is not None:
        raise ValueError(f"residual must be None with accumulate={accumulate!r}, had shape {residual.shape}")
    if added_to and out is None:
        raise ValueError(f"out must be an array with accumulate={accumulate!r}, was None")
    apart = {"a": a, "b": b, "bias": bias, "residual": residual}
    out = device.as_output("out", out, shape=shape, dtype="float32", apart=apart, stream=stream)
    old = out if added_to else residual
    if beta == 0:
        old = None
    strides = [strides_of(name, x, (*leading, 1, 1)) for name, x in (("a", a), ("b", b))]
    old_strides = (0,) * len(shape) if old is None else strides_of("residual", old, shape)
    p = Problem(out, stream=stream, bias=bias, activation=activation, alpha=alpha, beta=beta, accumulate=added_to)
    p.shape = shape_of(shape, k, *strides, old_strides)
    if not p.done:
        p.a, p.b = memory_of("a", a), memory_of("b", b)
        p.residual = None if old is None else span(old)  # its offsets have 64 bits
    return p


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of a shape can be repeated to another one."""
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(have in (1, want) for have, want in pairs)


# --------------------------------------------------------------------------------------------------------- the epilogue


class Epilogue(typing.NamedTuple):
    """What a kernel is compiled to do to a sum: ``activation(alpha * sum + beta * residual + bias)``, or parts of it.

    ``scaled``: it multiplies by alpha. ``bias``, ``residual``: how many elements of it are read at a time, 4 or 1, or 0
    if there is none. ``activation``: a device function of a float32.
    """

    scaled: bool
    bias: int
    residual: int
    activation: typing.Any


PLAIN = Epilogue(False, 0, 0, unchanged)


class Scale(typing.NamedTuple):
    """The two factors of an epilogue."""

    alpha: np.float32
    beta: np.float32


@functools.lru_cache(256)
def finisher(epilogue: Epilogue) -> typing.Any:
    """The device function ``(sum, scale, residual, bias)`` of an epilogue."""
    scaled, biased, added, activation = epilogue

    @cuda.jit(device=True)
    def finished(value, scale, old, bias):
        if scaled:
            value = value * scale.alpha
        if added:
            value = value + scale.beta * old
        if biased:
            value = value + bias
        return activation(value)

    return finished


@functools.lru_cache(256)
def reading(epilogue: Epilogue) -> tuple[typing.Any, typing.Any, typing.Any]:
    """The device functions by which an epilogue reads: one number of the bias, four of it, and four of the residual."""
    biased, added = epilogue.bias, epilogue.residual

    @cuda.jit(device=True)
    def one_of(bias, column):
        return bias[column] if biased else f0

    @cuda.jit(device=True)
    def four_of(bias, column):
        if biased == 4:
            return load128(bias, column)
        return one_of(bias, column), one_of(bias, column + 1), one_of(bias, column + 2), one_of(bias, column + 3)

    @cuda.jit(device=True)
    def keep_four(residual, at, step, to, u):
        """Four neighbours in a row of the residual, ``step`` apart, into to[u]."""
        if added == 4:
            to[u, 0], to[u, 1], to[u, 2], to[u, 3] = load128(residual, at)
        elif added:
            for e in range(4):
                to[u, e] = residual[at + e * step]

    return one_of, four_of, keep_four


@cuda.jit(device=True)
def clear(values, count):
    """So many fours of an array of registers become 0: what is not read has a value, too."""
    for u in range(count):
        for e in range(4):
            values[u, e] = f0


@cuda.jit(device=True)
def begins(index, steps):
    """Where the matrices of product number ``index`` begin: of A, of B, and of the residual."""
    a, b, residual = np.int64(0), np.int64(0), np.int64(0)
    for d in range(len(steps.extents)):
        here = index if d == len(steps.extents) - 1 else np.uint32(index % np.uint32(steps.extents[d]))
        index = np.uint32(index // np.uint32(steps.extents[d]))
        a, b, residual = a + here * steps.a[d], b + here * steps.b[d], residual + here * steps.residual[d]
    return a, b, residual


# ----------------------------------------------------------------------------------------------- from memory to a tile


class Operand(typing.NamedTuple):
    """How a matrix is read: as in `fitted.Operand`, or ``strided``, where neither rows nor columns lie along memory.

    Of a strided operand ``deep`` says which of the two has the smaller step.
    """

    deep: bool
    width: int
    strided: bool


def strided_reader(deep: bool, side: int, depth: int, threads: int) -> Reader:
    """How a block reads tiles of ``depth`` x ``side``, element by element, from a matrix with two steps.

    ``length`` is a pair here: the steps in memory across K and along K. Lanes go along the smaller of the two.
    """
    pitch, loads = side + 4 * deep, side * depth // threads

    @cuda.jit(device=True)
    def place(v):
        """(k, i): where in the tile this thread's load number v is."""
        at = np.uint32(cuda.threadIdx.x) + v * threads
        if deep:
            return at % np.uint32(depth), at // np.uint32(depth)
        return at // np.uint32(side), at % np.uint32(side)

    @cuda.jit(device=True)
    def start(first, extent, k, length, offsets):
        for v in range(loads):
            d, i = place(v)
            offsets[v] = np.uint32(min(first + i, extent - 1) * length[0] + (k + d) * length[1])

    @cuda.jit(device=True)
    def fetch(x, steps, length, offsets, values):
        for v in range(loads):
            values[v, 0] = x[offsets[v]] if steps == depth or place(v)[0] < steps else f0
        for v in range(loads):
            offsets[v] = np.uint32(offsets[v] + steps * length[1])

    @cuda.jit(device=True)
    def keep(shared, begin, values):
        for v in range(loads):
            d, i = place(v)
            shared[begin + d * pitch + i] = values[v, 0]

    return Reader(pitch, loads, loads, start, fetch, keep)


def reader_of(operand: Operand, side: int, tile: Tile) -> Reader:
    """How the threads of a tile read an operand."""
    deep, width, strided = operand
    if strided:
        return strided_reader(deep, side, tile.depth, tile.threads)
    if deep and tile.threads < 16:  # a row has too many lanes
        return fitted.deep_reader(width, side, tile.depth, tile.threads, tile.threads // width)
    return fitted.reader_of(fitted.Operand(deep, width), side, tile)


# --------------------------------------------------------------------------------------------------------- the factory


class Form(typing.NamedTuple):
    """What a kernel is compiled for beside its tile. ``teams``: how many products a block computes side by side."""

    a: Operand
    b: Operand
    epilogue: Epilogue
    teams: int


class Sizes(typing.NamedTuple):
    """What a launch tells its kernel: as `fitted.Sizes`, for ``count`` products.

    ``a_pitch``, ``b_pitch``: of a strided operand the pair that `strided_reader` takes. ``parts``: of K. ``old_row``,
    ``old_column``: the steps of the residual.
    """

    count: int
    m: int
    n: int
    k: int
    length: int
    parts: int
    a_pitch: typing.Any
    b_pitch: typing.Any
    c_pitch: int
    whole: bool
    old_row: int
    old_column: int


class Corner(typing.NamedTuple):
    """Where a block's part of a C begins, and how much of it is inside.

    ``first``: in the memory of C. ``old``: in that of the residual. ``column``: in a row of C.
    """

    first: int
    old: int
    column: int
    rows: int
    columns: int


def unrolled(step: typing.Any, times: int, pitch_a: int, pitch_b: int) -> typing.Any:
    """A device function that does a step so many times, a power of two: the compiler unrolls only small loops."""
    if times == 1:
        return step
    half, skip_a, skip_b = unrolled(step, times // 2, pitch_a, pitch_b), times // 2 * pitch_a, times // 2 * pitch_b

    @cuda.jit(device=True)
    def both(shared, a_from, b_from, totals):
        half(shared, a_from, b_from, totals)
        half(shared, a_from + skip_a, b_from + skip_b, totals)

    return both


@functools.lru_cache(256)
def product_kernel(tile: Tile, form: Form) -> typing.Any:
    """The kernel ``(a, b, c, bias, residual, scale, sizes, steps)`` of a tile.

    A block has ``tile.threads`` x ``form.teams`` threads, for a tile of C and a part of K of so many products. All
    arrays have one dimension. With several parts, ``c`` has a C for each, one behind the other.
    """
    side_m, side_n, thread_m, thread_n, lanes_m, depth, groups, registers = tile
    threads, teams, a_width, b_width = tile.threads, form.teams, max(1, form.a.width), max(1, form.b.width)
    members = threads // groups
    lanes_n = min(32, members) // lanes_m
    warps_n = side_n // (lanes_n * thread_n)
    pitch_a, loads_a, rows_a, start_a, fetch_a, keep_a = reader_of(form.a, side_m, tile)
    pitch_b, loads_b, rows_b, start_b, fetch_b, keep_b = reader_of(form.b, side_n, tile)
    a_size, b_size, own_depth = depth * pitch_a, depth * pitch_b, depth // groups
    lines = side_m // thread_m  # of C, with row number i of all threads; two such sets are written at a time
    vectors, singles = blocks(lines * side_n, 2 * threads), 2 * lines * side_n // threads  # of these, for a thread
    vector_step, single_step = 4 * threads // side_n, threads // side_n  # lines that threads write at a time
    together, ones_together = min(vectors, AT_ONCE), min(singles, 8)  # whose residuals are on their way at a time
    room = 2 * (a_size + b_size)  # in shared memory, for a team: two tiles of each operand
    rooms = teams * room
    finished, added = finisher(form.epilogue), form.epilogue.residual
    one_of, four_of, keep_four = reading(form.epilogue)

    @cuda.jit(device=True)
    def lane_place():
        """(row, column) of the thread's 4 x 4 pieces among those of its warp, and the same of the warp's first."""
        # Four lanes in a row form a 2 x 2 square: a warp's load from shared memory then takes two passes.
        thread = np.uint32(np.uint32(cuda.threadIdx.x) % np.uint32(members))
        warp, square = thread // 32, thread % 32 // 4
        y, x = square // (lanes_n // 2) * 2 + thread // 2 % 2, square % (lanes_n // 2) * 2 + thread % 2
        return y, x, warp // warps_n, warp % warps_n

    @cuda.jit(device=True)
    def step(shared, a_from, b_from, totals):
        """Add the products of one k: its values begin there in shared memory."""
        a_values, b_values = cuda.local.array(thread_m, np.float32), cuda.local.array(thread_n, np.float32)
        for piece in range(thread_m // 4):
            vector = load128(shared, a_from + piece * lanes_m * 4)
            for i in range(4):
                a_values[piece * 4 + i] = vector[i]
        for piece in range(thread_n // 4):
            vector = load128(shared, b_from + piece * lanes_n * 4)
            for j in range(4):
                b_values[piece * 4 + j] = vector[j]
        for i in range(thread_m):
            for j in range(thread_n):
                totals[i, j] += a_values[i] * b_values[j]

    multiply = unrolled(step, own_depth, pitch_a, pitch_b)

    @cuda.jit(device=True)
    def row_of(line, i):
        """The row of the block's part of C that is line number ``line`` of those with the threads' rows i and i + 1."""
        place, below = line % np.uint32(lines), line // np.uint32(lines)
        band, inner = place // np.uint32(lanes_m), place % np.uint32(lanes_m)
        return np.uint32(band * (lanes_m * thread_m) + i // 4 * (lanes_m * 4) + inner * 4 + i % 4 + below)

    @cuda.jit(device=True)
    def store_vectors(shared, base, c, bias, residual, scale, sizes, corner, i):
        """The lines, added over the groups, finished, and written four neighbours at a time."""
        olds, thread = cuda.local.array((together, 4), np.float32), np.uint32(cuda.threadIdx.x)
        line, column = thread // np.uint32(side_n // 4), np.uint32(thread % np.uint32(side_n // 4) * 4)
        clear(olds, together)
        if column < corner.columns:
            d0, d1, d2, d3 = four_of(bias, corner.column + column)
            for _ in range(0, vectors, together):
                if added:
                    for u in range(together):
                        row = row_of(np.uint32(line + u * vector_step), i)
                        if line + u * vector_step < 2 * lines and row < corner.rows:
                            at = corner.old + row * sizes.old_row + column * sizes.old_column
                            keep_four(residual, at, sizes.old_column, olds, u)
                for u in range(together):
                    row = row_of(line, i)
                    if line < 2 * lines and row < corner.rows:
                        s0, s1, s2, s3 = load128(shared, base + line * side_n + column)
                        for group in range(1, groups):
                            place = base + (group * 2 * lines + line) * side_n + column
                            t0, t1, t2, t3 = load128(shared, place)
                            s0, s1, s2, s3 = s0 + t0, s1 + t1, s2 + t2, s3 + t3
                        y0, y1 = finished(s0, scale, olds[u, 0], d0), finished(s1, scale, olds[u, 1], d1)
                        y2, y3 = finished(s2, scale, olds[u, 2], d2), finished(s3, scale, olds[u, 3], d3)
                        at = np.uint64(corner.first) + np.uint64(row) * np.uint64(sizes.c_pitch) + np.uint64(column)
                        store128(c, at, (y0, y1, y2, y3))
                    line = np.uint32(line + vector_step)

    @cuda.jit(device=True)
    def store_singles(shared, base, c, bias, residual, scale, sizes, corner, i):
        """The lines, added over the groups, finished, and written one element at a time: each thread has a column."""
        olds, thread = cuda.local.array(ones_together, np.float32), np.uint32(cuda.threadIdx.x)
        line, column = thread // np.uint32(side_n), np.uint32(thread % np.uint32(side_n))
        if column < corner.columns:
            add = one_of(bias, corner.column + column)
            for _ in range(0, singles, ones_together):
                if added:
                    for e in range(ones_together):
                        row = row_of(np.uint32(line + e * single_step), i)
                        if row < corner.rows:
                            olds[e] = residual[corner.old + row * sizes.old_row + column * sizes.old_column]
                for e in range(ones_together):
                    row = row_of(line, i)
                    if row < corner.rows:
                        value = shared[base + line * side_n + column]
                        for group in range(1, groups):
                            value += shared[base + (group * 2 * lines + line) * side_n + column]
                        at = np.uint64(corner.first) + np.uint64(row) * np.uint64(sizes.c_pitch) + np.uint64(column)
                        c[at] = finished(value, scale, olds[e] if added else f0, add)
                    line = np.uint32(line + single_step)

    @cuda.jit(device=True)
    def store_rows(shared, base, c, bias, residual, scale, sizes, corner, i, totals):
        """Every thread's rows i and i + 1: into shared memory, and from there, along rows, into C."""
        thread = np.uint32(cuda.threadIdx.x)
        y, x, warp_y, warp_x = lane_place()
        line, column = warp_y * lanes_m + y, warp_x * (lanes_n * thread_n) + x * 4
        cuda.syncthreads()  # what was there has been read
        for below in range(2):
            for j in range(0, thread_n, 4):
                vector = (
                    totals[i + below, j],
                    totals[i + below, j + 1],
                    totals[i + below, j + 2],
                    totals[i + below, j + 3],
                )
                place = ((thread // np.uint32(members) * 2 + below) * lines + line) * side_n + column + j * lanes_n
                store128(shared, base + place, vector)
        cuda.syncthreads()
        if sizes.whole:
            store_vectors(shared, base, c, bias, residual, scale, sizes, corner, i)
        else:
            store_singles(shared, base, c, bias, residual, scale, sizes, corner, i)

    @cuda.jit(max_registers=registers)
    def product_and_finish(a, b, c, bias, residual, scale, sizes, steps):
        shared = cuda.shared.array(rooms, np.float32, alignment=16)  # for each team two tiles of A, two of B
        totals = cuda.local.array((thread_m, thread_n), np.float32)
        a_values = cuda.local.array((loads_a, a_width), np.float32)
        b_values = cuda.local.array((loads_b, b_width), np.float32)
        a_offsets, b_offsets = cuda.local.array(rows_a, np.uint32), cuda.local.array(rows_b, np.uint32)
        # Tiles down a column of C are neighbours in time: they share a tile of B, which is then in the cache.
        block, tiles_m = np.uint32(cuda.blockIdx.x), np.uint32((sizes.m + side_m - 1) // side_m)
        tiles_n = np.uint32((sizes.n + side_n - 1) // side_n)
        first_row, block = np.int64(block % tiles_m) * side_m, np.uint32(block // tiles_m)
        first_column, block = np.int64(block % tiles_n) * side_n, np.uint32(block // tiles_n)
        part, block = np.int64(block % np.uint32(sizes.parts)), np.uint32(block // np.uint32(sizes.parts))
        team = np.uint32(cuda.threadIdx.y) if teams > 1 else np.uint32(0)
        wanted = np.uint32(block * teams + team)
        product = np.uint32(
            min(wanted, sizes.count - 1)
        )  # a team without a product computes the last one, and stores none
        a_begin, b_begin, old_begin = begins(product, steps)
        begin = part * sizes.length
        end = min(begin + sizes.length, sizes.k)
        for i in range(thread_m):
            for j in range(thread_n):
                totals[i, j] = 0
        y, x, warp_y, warp_x = lane_place()
        group, base = np.uint32(np.uint32(cuda.threadIdx.x) // np.uint32(members)), np.uint32(team * room)
        a_own = base + group * (own_depth * pitch_a) + warp_y * (lanes_m * thread_m) + y * 4
        b_own = base + 2 * a_size + group * (own_depth * pitch_b) + warp_x * (lanes_n * thread_n) + x * 4
        start_a(first_row, sizes.m, begin, sizes.a_pitch, a_offsets)
        start_b(first_column, sizes.n, begin, sizes.b_pitch, b_offsets)
        for v in range(rows_a):
            a_offsets[v] = np.uint32(a_offsets[v] + a_begin)
        for v in range(rows_b):
            b_offsets[v] = np.uint32(b_offsets[v] + b_begin)
        first_steps = (end - begin - 1) % depth + 1 if end > begin else 0  # of the first tiles: all others are whole
        fetch_a(a, first_steps, sizes.a_pitch, a_offsets, a_values)
        fetch_b(b, first_steps, sizes.b_pitch, b_offsets, b_values)
        keep_a(shared, base, a_values)
        keep_b(shared, base + 2 * a_size, b_values)
        cuda.syncthreads()
        k, now = begin + first_steps, np.uint32(0)
        while k < end:
            fetch_a(a, np.int64(depth), sizes.a_pitch, a_offsets, a_values)
            fetch_b(b, np.int64(depth), sizes.b_pitch, b_offsets, b_values)
            multiply(shared, a_own + now * a_size, b_own + now * b_size, totals)  # meanwhile the values travel
            now = np.uint32(1 - now)
            keep_a(shared, base + now * a_size, a_values)  # that tile was read before the last barrier
            keep_b(shared, base + 2 * a_size + now * b_size, b_values)
            cuda.syncthreads()
            k += depth
        multiply(shared, a_own + now * a_size, b_own + now * b_size, totals)
        corner = Corner(
            ((part * sizes.count + product) * sizes.m + first_row) * sizes.c_pitch + first_column,
            old_begin + first_row * sizes.old_row + first_column * sizes.old_column,
            first_column,
            np.uint32(min(sizes.m - first_row, side_m)) if wanted < sizes.count else np.uint32(0),
            np.uint32(min(sizes.n - first_column, side_n)),
        )
        store_rows(shared, base, c, bias, residual, scale, sizes, corner, np.uint32(0), totals)
        store_rows(shared, base, c, bias, residual, scale, sizes, corner, np.uint32(2), totals)
        if thread_m == 8:
            store_rows(shared, base, c, bias, residual, scale, sizes, corner, np.uint32(4), totals)
            store_rows(shared, base, c, bias, residual, scale, sizes, corner, np.uint32(6), totals)

    return product_and_finish


# ------------------------------------------------------------------------------------------- passes, and sums of parts

BLOCK = 256  # threads of a block of a pass, each with four neighbours


@functools.lru_cache(256)
def pass_kernel(epilogue: Epilogue) -> typing.Any:
    """The kernel ``(products, c, bias, residual, scale, sizes, steps)`` that reads all of C, and writes it, once."""
    finished, (one_of, four_of, keep_four), added = finisher(epilogue), reading(epilogue), epilogue.residual

    @cuda.jit(device=True)
    def old_of(row, column, sizes, steps):
        """Where in memory the residual of an element is."""
        _, _, begin = begins(np.uint32(row // sizes.m), steps)
        return begin + row % sizes.m * sizes.old_row + column * sizes.old_column

    @cuda.jit
    def pass_over_c(products, c, bias, residual, scale, sizes, steps):
        olds, first = cuda.local.array((1, 4), np.float32), np.int64(cuda.blockIdx.x) * (4 * BLOCK)
        clear(olds, 1)
        if sizes.whole:
            at = first + cuda.threadIdx.x * 4
            if at < c.size:
                row, column = at // sizes.n, at % sizes.n
                if added:
                    keep_four(residual, old_of(row, column, sizes, steps), sizes.old_column, olds, 0)
                s0, s1, s2, s3 = load128(products, at)
                d0, d1, d2, d3 = four_of(bias, column)
                y0, y1 = finished(s0, scale, olds[0, 0], d0), finished(s1, scale, olds[0, 1], d1)
                y2, y3 = finished(s2, scale, olds[0, 2], d2), finished(s3, scale, olds[0, 3], d3)
                store128(c, at, (y0, y1, y2, y3))
        else:
            for e in range(4):
                at = first + e * BLOCK + cuda.threadIdx.x
                if at < c.size:
                    row, column = at // sizes.n, at % sizes.n
                    old = residual[old_of(row, column, sizes, steps)] if added else f0
                    c[at] = finished(products[at], scale, old, one_of(bias, column))

    return pass_over_c


@functools.lru_cache(256)
def sum_kernel(epilogue: Epilogue) -> typing.Any:
    """The kernel ``(partials, c, bias, residual, scale, sizes, steps)``: `fitted.sum_kernel`, which finishes the sums.

    The epilogue runs here, once, and not in the parts: a ReLU of parts is no part of a ReLU.
    """
    finished, (one_of, _, _), added = finisher(epilogue), reading(epilogue), epilogue.residual

    @cuda.jit
    def sum_and_finish(partials, c, bias, residual, scale, sizes, steps):
        shared = cuda.shared.array(SUMS, np.float32, alignment=16)
        values, total = cuda.local.array((AT_ONCE, 4), np.float32), cuda.local.array(4, np.float32)
        thread, first = np.uint32(cuda.threadIdx.x), np.int64(cuda.blockIdx.x) * ADDERS
        lane, team = thread % (ADDERS // 4), thread // (ADDERS // 4)
        at, size = first + lane * 4, sizes.count * sizes.m * sizes.c_pitch
        for e in range(4):
            total[e] = 0
        part = np.int64(team)
        while part < sizes.parts and at < size:
            for u in range(AT_ONCE):
                for e in range(4):
                    values[u, e] = f0
                if part + TEAMS * u < sizes.parts:
                    vector = load128(partials, (part + TEAMS * u) * size + at)
                    for e in range(4):
                        values[u, e] = vector[e]
            for u in range(AT_ONCE):
                for e in range(4):
                    total[e] += values[u, e]
            part += TEAMS * AT_ONCE
        store128(shared, thread * 4, (total[0], total[1], total[2], total[3]))
        cuda.syncthreads()
        row, column = (first + thread) // sizes.c_pitch, (first + thread) % sizes.c_pitch
        if thread < ADDERS and row < sizes.count * sizes.m and column < sizes.n:
            value, old = shared[thread], f0
            for other in range(1, TEAMS):
                value += shared[other * ADDERS + thread]
            if added:
                _, _, begin = begins(np.uint32(row // sizes.m), steps)
                old = residual[begin + row % sizes.m * sizes.old_row + column * sizes.old_column]
            c[row * sizes.n + column] = finished(value, scale, old, one_of(bias, column))

    return sum_and_finish


# ----------------------------------------------------------------------------------------------------------- launching

# For products that fit one tile: so few threads that a block has room for several.
PACKED = (
    Tile(32, 32, 4, 4, lanes_m=8, depth=16, groups=1, registers=128),
    Tile(16, 16, 4, 4, lanes_m=4, depth=16, groups=1, registers=128),
    Tile(8, 8, 4, 4, lanes_m=2, depth=16, groups=2, registers=128),
)
ANY_TILE = (*fitted.TILES, *PACKED)
PACK = 128  # threads of a block that computes several products


def teams_of(tile: Tile) -> int:
    """How many products of this tile a block computes."""
    return PACK // tile.threads if tile in PACKED else 1


@functools.lru_cache(4096)
def plan_for(shape: Shape, multiprocessors: int, splits: tuple[int, ...], tiles: tuple[Tile, ...]) -> Plan:
    """The plan that should take least time, by `fitted.cycles`; small tiles only for products that fit one.

    To the model, many products are one of many rows: it has as many tiles.
    """
    count, m, n, k = shape[:4]
    plans = {fitted.plan_of(tile, k, parts) for tile in tiles if tile not in PACKED for parts in splits}
    plans |= {fitted.plan_of(tile, k, 1) for tile in tiles if tile in PACKED and m <= tile.m and n <= tile.n}

    def cycles(plan: Plan) -> float:
        return fitted.cycles(plan, count * round_up(m, plan.tile.m), n, k, multiprocessors)

    return min(plans, key=lambda plan: (cycles(plan), plan))


def widened(epilogue: Epilogue, shape: Shape, whole: bool, aligned: tuple[bool, bool]) -> Epilogue:
    """The epilogue that reads four elements at a time where it can. ``whole``: so it writes. ``aligned``: as below."""
    row, column = shape.residual
    rows_fit = column == 1 and row % 4 == 0 and not any(step % 4 for step in shape.steps.residual)
    bias, residual = (4 if whole and fits else 1 for fits in (aligned[0], aligned[1] and rows_fit))
    return epilogue._replace(bias=epilogue.bias and bias, residual=epilogue.residual and residual)


class Launch(typing.NamedTuple):
    """All of a launch that depends on shapes, strides and alignment alone."""

    kernel: typing.Any
    grid: int
    block: tuple[int, int]
    sizes: Sizes


def operand_of(extent: int, k: int, across: int, along: int, steps: tuple[int, ...], aligned: bool) -> Operand:
    """How to read a matrix whose elements are ``across`` apart in memory across K, and ``along`` apart along K."""
    deep, wide = along == 1 and k > 1, across == 1 and extent > 1
    strided = not deep and not wide and k > 1 and extent > 1
    if strided:
        return Operand(along < across, 0, True)
    deep = deep or (not wide and k <= 1)
    run, pitch = (k, across) if deep else (extent, along)
    vectors = aligned and (deep or wide) and run % 4 == pitch % 4 == 0 and not any(step % 4 for step in steps)
    return Operand(deep, 4 if vectors and run > 1 else 1, False)


@functools.lru_cache(4096)
def launch_of(plan: Plan, shape: Shape, epilogue: Epilogue, aligned: tuple[bool, bool, bool, bool, bool]) -> Launch:
    """The launch of a plan. ``aligned``: A, B, C, the bias and the residual, to 16 bytes."""
    (tile, length, parts), (count, m, n, k, (a_row, a_column), (b_row, b_column), old, steps) = plan, shape
    teams = teams_of(tile)
    grid = blocks(m, tile.m) * blocks(n, tile.n) * parts * blocks(count, teams)
    if grid > MOST_BLOCKS:
        raise ValueError(f"the product must have at most 2^31 - 1 tiles of {tile}, had {grid}: {count} x {m} x {n}")
    a = operand_of(m, k, a_row, a_column, steps.a, aligned[0] and tile.m * tile.depth >= 4 * tile.threads)
    b = operand_of(n, k, b_column, b_row, steps.b, aligned[1] and tile.n * tile.depth >= 4 * tile.threads)
    a_pitch = (a_row, a_column) if a.strided else a_row if a.deep else a_column
    b_pitch = (b_column, b_row) if b.strided else b_column if b.deep else b_row
    c_pitch, whole = (n, n % 4 == 0 and aligned[2]) if parts == 1 else (round_up(n, 4), True)
    epilogue = widened(epilogue, shape, whole, aligned[3:])
    kernel = product_kernel(tile, Form(a, b, PLAIN if parts > 1 else epilogue, teams))
    sizes = Sizes(count, m, n, k, length, parts, a_pitch, b_pitch, c_pitch, whole, *old)
    return Launch(kernel, grid, (tile.threads, teams), sizes)


def scale_of(p: Problem) -> Scale:
    """The factors of a problem's epilogue."""
    return Scale(p.alpha, p.beta)


def epilogue_of(p: Problem) -> Epilogue:
    """All that a problem wants done to its products. Where something is, a factor of 1 is no reason for a kernel."""
    wanted = Epilogue(True, int(p.bias is not None), int(p.residual is not None), p.activation)
    return PLAIN if wanted == PLAIN._replace(scaled=True) and p.alpha == 1 else wanted


def read_besides(p: Problem, epilogue: Epilogue) -> tuple[typing.Any, typing.Any]:
    """The bias and the residual that an epilogue reads; an empty array in place of what it does not."""
    return p.bias if epilogue.bias else nothing(), p.residual if epilogue.residual else nothing()


def is_aligned(x: typing.Any) -> bool:
    """Whether an array begins at a multiple of 16 bytes."""
    return device.address(x) % 16 == 0


def launch(p: Problem, plan: Plan, epilogue: Epilogue, out: typing.Any) -> None:
    """Compute all products of a problem by a plan, and finish them by an epilogue, into ``out``."""
    bias, residual = read_besides(p, epilogue)
    aligned = tuple(map(is_aligned, (p.a, p.b, out, bias, residual)))
    kernel, grid, block, sizes = launch_of(plan, p.shape, epilogue, aligned)
    c, scale, steps = out.reshape(-1), scale_of(p), p.shape.steps
    if plan.parts == 1:
        kernel[grid, block, p.stream](p.a, p.b, c, bias, residual, scale, sizes, steps)
        return
    size = sizes.count * sizes.m * sizes.c_pitch
    partials = device.empty(plan.parts * size, np.float32, stream=p.stream)
    kernel[grid, block, p.stream](p.a, p.b, partials, nothing(), nothing(), scale, sizes, steps)
    last = sum_kernel(epilogue)
    last[blocks(size, ADDERS), SUMS // 4, p.stream](partials, c, bias, residual, scale, sizes, steps)


def launch_passes(p: Problem, products: typing.Any, epilogues: tuple[Epilogue, ...]) -> None:
    """Finish products that are in memory, by a pass for each of the epilogues."""
    m, n = p.shape.m, p.shape.n
    source, out = products.reshape(-1), p.result.reshape(-1)
    for i, epilogue in enumerate(epilogues):
        # What is accumulated has been read when `out` is written for the first time.
        target = out if epilogue.residual or not any(one.residual for one in epilogues[i:]) else source
        whole = n % 4 == 0 and is_aligned(source) and is_aligned(target)
        sizes = Sizes(p.shape.count, m, n, p.shape.k, 0, 1, 0, 0, n, whole, *p.shape.residual)
        bias, residual = read_besides(p, epilogue)
        kernel = pass_kernel(widened(epilogue, p.shape, whole, (is_aligned(bias), is_aligned(residual))))
        grid = blocks(out.size, 4 * BLOCK)
        kernel[grid, BLOCK, p.stream](source, target, bias, residual, scale_of(p), sizes, p.shape.steps)
        source = target


def place_for_products(p: Problem) -> typing.Any:
    """Where products wait for their passes: in the result, unless what it holds is still to be added."""
    return device.empty(p.result.shape, np.float32, stream=p.stream) if p.accumulate else p.result


# -------------------------------------------------------------------------------------------------------------- rungs


def planned(p: Problem, splits: tuple[int, ...] = (1,), tiles: tuple[Tile, ...] = fitted.TILES) -> Plan:
    """The plan for a problem on this GPU."""
    return plan_for(p.shape, device.limits()["multiprocessors"], splits, tiles)


def single_steps(p: Problem) -> tuple[Epilogue, ...]:
    """A problem's epilogue, in steps: scaling, residual, bias, activation."""
    whole = epilogue_of(p)
    found = (
        PLAIN._replace(scaled=p.alpha != 1),
        PLAIN._replace(residual=whole.residual),
        PLAIN._replace(bias=whole.bias),
        PLAIN._replace(activation=whole.activation),
    )
    return tuple(epilogue for epilogue in found if epilogue != PLAIN)


def matrices(p: Problem, out: typing.Any) -> typing.Iterator[tuple[Problem, typing.Any]]:
    """Each product as a problem of its own, and its place in ``out``."""
    count, m, n = p.shape[:3]
    steps, c = p.shape.steps, out.reshape(-1)
    alone = p.shape._replace(count=1, steps=Steps((1,), (0,), (0,), (0,)))
    for number in range(count):
        index = np.unravel_index(number, steps.extents[::-1])[::-1]
        a, b = (int(np.dot(index, apart)) for apart in (steps.a, steps.b))
        yield p.replace(a=p.a[a:], b=p.b[b:], shape=alone), c[number * m * n : (number + 1) * m * n]


@rung(product_kernel, pass_kernel)
def separate(p):
    """A launch for each product, and then a pass over all of C for each step of the epilogue.

    Source: PMPP 4e section 6.3 for the product.

    Leaves: a small product fills a corner of the GPU, and the next one waits for it.
    """
    products = place_for_products(p)
    for one, c in matrices(p, products):
        launch(one, planned(one), PLAIN, c)
    launch_passes(p, products, single_steps(p))


@rung(product_kernel, pass_kernel)
def batched(p):
    """One launch for all products: a block finds its matrices by their strides.

    Source: NVIDIA, cuBLAS, ``cublasSgemmStridedBatched``.

    Leaves: each step of the epilogue reads and writes all of C, for one or two operations on each element.
    """
    products = place_for_products(p)
    launch(p, planned(p), PLAIN, products)
    launch_passes(p, products, single_steps(p))


@rung(product_kernel, pass_kernel)
def one_pass(p):
    """One pass does all steps of the epilogue to an element while it is in a register.

    Source: chapter 20, on bytes and operations.

    Leaves: C is written, read and written again, and it was in the product's registers before.
    """
    products = place_for_products(p)
    launch(p, planned(p), PLAIN, products)
    if epilogue_of(p) != PLAIN:
        launch_passes(p, products, (epilogue_of(p),))


@rung(product_kernel)
def epilogue(p):
    """The product's kernel finishes its sums on their way into C.

    Source: CUTLASS, "Efficient GEMM in CUDA", epilogue.

    Leaves: no sum is split, since a part cannot be finished: where C is small and K is long, most of the GPU is idle.
    """
    launch(p, planned(p), epilogue_of(p), p.result)


@rung(product_kernel, sum_kernel)
def split_k(p):
    """Where a sum is split, the kernel that adds the parts finishes them.

    Source: CUTLASS, "Efficient GEMM in CUDA", parallelised reductions.

    Leaves: a small product has a block of 256 threads for itself, most of which have nothing to do.
    """
    launch(p, planned(p, fitted.SPLITS), epilogue_of(p), p.result)


@rung(product_kernel, sum_kernel)
def packed(p):
    """Several small products share a block: each has a team of 8 to 64 threads, and tiles of its own.

    Source: Abdelfattah et al., "Performance, design, and autotuning of batched GEMM for GPUs" (ISC 2016).
    """
    launch(p, planned(p, fitted.SPLITS, ANY_TILE), epilogue_of(p), p.result)


LADDER = (separate, batched, one_pass, epilogue, split_k, packed)
