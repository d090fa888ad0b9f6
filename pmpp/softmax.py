"""Softmax: the elements of each row as shares of one, exp(x - max) / sum(exp(x - max)), or the logarithms of these.

Chapter: notebooks/16_softmax.ipynb.  PMPP 4e ch. 10 and 16.

An element is read once and written once; all the arithmetic in between hides behind that. But nothing can be written
before the whole row is known: its maximum, and then its sum. So the question is where a row waits in the meantime. The
first rungs read it again, from wherever it is by then. The last one keeps it in registers, of a few lanes, a block or
several blocks, whatever the length of a row asks for.
"""

from __future__ import annotations

import math
import operator
import typing

import numpy as np

from pmpp import cuda
from pmpp.lab import device
from pmpp.lab.room import Cost, rung
from pmpp.lab.vector import WIDTH, load128, store128

DTYPES = ("float32", "float64")
BLOCK = 256  # threads a block, where nothing else is said
FULL = 0xFFFFFFFF  # all lanes of a warp take part
MAX, SUM = 0, 1


def reference(x: np.ndarray, axis: int = -1, log: bool = False) -> np.ndarray:
    """Softmax along ``axis``, or its logarithm, a row after the other, in float64.

    A row with a NaN or a +inf in it is NaN throughout, and so is a row of nothing but -inf: 0 / 0. Elsewhere -inf gives
    0, or -inf for the logarithm. These are PyTorch's definitions too.
    """
    out = np.empty(x.shape, np.float64)
    rows, results = np.moveaxis(x.astype(np.float64), axis, -1), np.moveaxis(out, axis, -1)
    with np.errstate(all="ignore"):
        for row in np.ndindex(rows.shape[:-1] if x.size else (0,)):
            below = rows[row] - rows[row].max()
            total = np.exp(below).sum()
            results[row] = below - np.log(total) if log else np.exp(below) / total
    return out


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, axis, log)``."""
    rng = np.random.default_rng(16) if rng is None else rng
    shapes = {"one": (1, 1), "one a row": (77, 1), "one row": (1, 1001), "no rows": (0, 5), "no columns": (5, 0)}
    shapes |= {f"rows of {n}": (9, n) for n in (2, 3, 7, 8, 9, 10, 31, 32, 33, 64)}
    shapes |= {"rows of a warp +1": (5, 1025), "rows of a block": (2, 4096), "longer than a block": (2, 9001)}
    shapes |= {"a vector": (300,), "a long row": (1, 40_001), "long rows": (3, 33_000)}
    made = {name: (rng.standard_normal(shape, dtype=np.float32), -1, False) for name, shape in shapes.items()}
    made["log"] = (made["rows of 64"][0], -1, True)
    made["log of long rows"] = (made["long rows"][0], -1, True)
    cube = rng.standard_normal((3, 50, 40), dtype=np.float32)
    made |= {f"axis {axis} of three": (cube, axis, False) for axis in range(3)}
    made |= {"axis 0, log": (cube, 0, True), "a tall column": (cube.reshape(-1, 1), 0, False)}
    made["float64"] = (rng.standard_normal((5, 333)), -1, False)
    made["float64, a long row"] = (rng.standard_normal((1, 17_001)), 1, False)
    made["float64, axis 0, log"] = (rng.standard_normal((33, 7)), 0, True)
    made["all equal"] = (np.full((4, 100), 0.1, np.float32), -1, False)
    made["large"] = (rng.uniform(-1e4, 1e4, (4, 1000)).astype(np.float32), -1, False)  # exp(89) is past float32
    made["large, log"] = (made["large"][0], -1, True)
    made["extremes"] = (rng.permutation(np.float32([3.4e38, -3.4e38, 0, 1e-45] * 9)).reshape(1, -1), -1, False)
    for log in (False, True):
        made[f"non-finite{', log' * log}"] = (_non_finite(rng, 64), -1, log)
    made["non-finite, axis 0"] = (_non_finite(rng, 50).T.copy(), 0, False)
    made["non-finite, long rows"] = (_non_finite(rng, 5000), -1, False)
    return made


def _non_finite(rng: np.random.Generator, n: int) -> np.ndarray:
    x = rng.standard_normal((6, n)).astype(np.float32)
    x[0, rng.random(n) < 0.5] = -np.inf
    x[1] = -np.inf
    x[2, : n // 2] = -np.inf  # more than a thread, or a warp, sees at first
    x[3, -1] = np.inf
    x[4, n // 2] = np.nan
    x[5, :-1] = -np.inf
    return x


def tolerance(x: np.ndarray, axis: int = -1, log: bool = False) -> np.ndarray:
    """How far from `reference` a right result in the dtype of ``x`` may be, element by element.

    With u half an eps: x - max is rounded, by u of its size, and that is a relative error of its exponential. exp and
    log are good to 2 ulp, which is 4 u. A term of the sum goes through additions, and in the online form through
    rescalings, each good to 6 u: at most n / 8 + 16 one after another, of which the errors add like a random walk; four
    times its size is allowed (Higham and Mary, 2019). Below the smallest normal number, the spacing there.
    """
    if not x.size:
        return np.zeros(x.shape)
    u, wide = np.finfo(x.dtype).eps / 2, x.astype(np.float64)
    with np.errstate(all="ignore"):
        below = np.abs(wide - wide.max(axis=axis, keepdims=True))
        below = np.where(np.isfinite(below), below, 0)
        shares = np.nan_to_num(reference(x, axis))
        total = (shares * below).sum(axis=axis, keepdims=True) + 4 + 24 * math.sqrt(x.shape[axis] / 8 + 16)
        if log:
            result = np.nan_to_num(np.abs(reference(x, axis, log=True)), posinf=0)
            return u * (below + total + 4 * math.log(x.shape[axis]) + 2 * result)
    return u * shares * (below + 4 + total + 6) + 4 * float(np.finfo(x.dtype).smallest_subnormal)


def cost(m: int, n: int, itemsize: int = 4) -> Cost:
    """m rows of n: a comparison, a subtraction, an exponential, an addition and a division for each element, which is
    read once and written once."""
    return Cost(flops=5 * m * n, bytes=2 * m * n * itemsize)


def _arguments(x: typing.Any, axis: int, log: bool, out: typing.Any, stream: typing.Any) -> tuple:
    """``(out, x and out as (outer, n, inner), the lowest number, log, stream)``: softmax runs along the n."""
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, stream=stream)
    try:
        along = operator.index(axis)
    except TypeError:
        raise TypeError(f"axis must be an integer, was {axis!r}") from None
    if not -x.ndim <= along < x.ndim:
        raise ValueError(f"axis must be from {-x.ndim} to {x.ndim - 1} for x of shape {x.shape}, was {along}")
    if not isinstance(log, bool | np.bool_):
        raise TypeError(f"log must be True or False, was {log!r}")
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, stream=stream)
    along %= x.ndim
    if not x.size:
        return out, None, None, None, log, stream
    shape = (math.prod(x.shape[:along]), x.shape[along], math.prod(x.shape[along + 1 :]))
    return out, x.reshape(shape), out.reshape(shape), (x.dtype.type(np.finfo(x.dtype).min), x.dtype.type(0)), bool(log), stream


def _up(elements: int, parts: int) -> int:
    return -(-elements // parts)  # rounded up


@cuda.jit(device=True)
def place(x, row):
    """Where in ``x``, seen as (outer, n, inner), a row lies: it is x[a, :, b]."""
    if x.shape[2] == 1:  # the last axis needs no division, which takes about a hundred instructions
        return row, 0
    return row // x.shape[2], row % x.shape[2]


@cuda.jit(device=True)
def combine(op, a, b):
    return max(a, b) if op == MAX else a + b


@cuda.jit(device=True)
def warp_all(op, value):
    """The 32 values of a warp combined, in every lane: each takes from the lane whose number differs in one bit."""
    for distance in (16, 8, 4, 2, 1):
        value = combine(op, value, cuda.shfl_xor_sync(FULL, value, distance))
    return value


@cuda.jit(device=True)
def block_all(op, value, partial, identity):
    """The values of a block's threads combined, in every thread. ``partial``: a shared array of 32, used only here."""
    thread, lane = cuda.threadIdx.x, cuda.laneid
    value = warp_all(op, value)
    if lane == 0:
        partial[thread // 32] = value
    cuda.syncthreads()
    return warp_all(op, partial[lane] if lane < cuda.blockDim.x // 32 else identity)


@cuda.jit(device=True)
def share(value, highest, total, log):
    """An element of the result."""
    if log:
        return value - highest - math.log(total)
    return math.exp(value - highest) / total


# ------------------------------------------------------------------------------------------------- a block for each row
#
# A maximum begins at the lowest finite number, not at -inf: then x - maximum is never inf - inf before all of a row has
# been seen, and exp(-inf - lowest) is the 0 it should be. A row of nothing but -inf ends as 0 / 0, which is NaN.


@cuda.jit
def highest_kernel(x, highest, none):
    a, b = place(x, cuda.blockIdx.x)
    best = none[0]
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        best = max(best, x[a, i, b])
    best = block_all(MAX, best, cuda.shared.array(32, x.dtype), none[0])
    if cuda.threadIdx.x == 0:
        highest[cuda.blockIdx.x] = best


@cuda.jit
def total_kernel(x, highest, total, none):
    a, b = place(x, cuda.blockIdx.x)
    best, added = highest[cuda.blockIdx.x], none[1]
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        added += math.exp(x[a, i, b] - best)
    added = block_all(SUM, added, cuda.shared.array(32, x.dtype), none[1])
    if cuda.threadIdx.x == 0:
        total[cuda.blockIdx.x] = added


@cuda.jit
def normalise_kernel(x, highest, total, out, log):
    a, b = place(x, cuda.blockIdx.x)
    best, added = highest[cuda.blockIdx.x], total[cuda.blockIdx.x]
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[a, i, b] = share(x[a, i, b], best, added, log)


@rung(highest_kernel, total_kernel, normalise_kernel)
def three_kernels(
    x: typing.Any, axis: int = -1, log: bool = False, *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """The definition, a kernel for each part of it: the maximum of each row, then the sum, then the shares.

    Args:
        x: an array of any shape but (), of float32 or float64, contiguous in C order.
        axis: the rows run along it; from -x.ndim to x.ndim - 1.
        log: give the logarithms of the shares: x - max - log(sum).
        out: a device array of the shape and dtype of ``x``, or None to allocate one. It may be ``x``.
        stream: the stream to work on.

    Returns ``out`` without waiting for the work to be done. A row with a NaN or a +inf in it becomes NaN, and so does a
    row of nothing but -inf; other -inf become 0, or -inf with ``log``. Raises TypeError or ValueError that names the
    argument at fault. Source: PMPP 4e section 10.6 for the reductions; the shift by the maximum is folklore.

    Leaves: three kernels read all of ``x``, so a row has left the caches before it is needed again.
    """
    out, rows, results, none, log, stream = _arguments(x, axis, log, out, stream)
    if rows is not None:
        blocks = rows.shape[0] * rows.shape[2]
        highest, total = (device.empty(blocks, rows.dtype, stream=stream) for _ in range(2))
        highest_kernel[blocks, BLOCK, stream](rows, highest, none)
        total_kernel[blocks, BLOCK, stream](rows, highest, total, none)
        normalise_kernel[blocks, BLOCK, stream](rows, highest, total, results, log)
    return out


@cuda.jit
def fused_kernel(x, out, none, log):
    a, b = place(x, cuda.blockIdx.x)
    best, added = none
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        best = max(best, x[a, i, b])
    best = block_all(MAX, best, cuda.shared.array(32, x.dtype), none[0])
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        added += math.exp(x[a, i, b] - best)
    added = block_all(SUM, added, cuda.shared.array(32, x.dtype), none[1])
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[a, i, b] = share(x[a, i, b], best, added, log)


@rung(fused_kernel)
def fused(
    x: typing.Any, axis: int = -1, log: bool = False, *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """One kernel does all three for a row before it turns to the next, while the row is still in a cache.

    Arguments, result and errors as in `three_kernels`.

    Leaves: a row is read three times, and one that is too long for the caches comes from memory each time.
    """
    out, rows, results, none, log, stream = _arguments(x, axis, log, out, stream)
    if rows is not None:
        fused_kernel[rows.shape[0] * rows.shape[2], BLOCK, stream](rows, results, none, log)
    return out


@cuda.jit(device=True)
def append(highest, total, value):
    """The maximum, and the sum relative to it, of a row with one element more."""
    top = max(highest, value)
    return top, total * math.exp(highest - top) + math.exp(value - top)


@cuda.jit(device=True)
def join(highest, total, other_highest, other_total):
    """The maximum, and the sum relative to it, of two parts of a row together."""
    top = max(highest, other_highest)
    return top, total * math.exp(highest - top) + other_total * math.exp(other_highest - top)


@cuda.jit(device=True)
def warp_join(highest, total):
    """The 32 parts of a row that the lanes of a warp have seen, in every lane."""
    for distance in (16, 8, 4, 2, 1):
        other_highest = cuda.shfl_xor_sync(FULL, highest, distance)
        other_total = cuda.shfl_xor_sync(FULL, total, distance)
        highest, total = join(highest, total, other_highest, other_total)
    return highest, total


@cuda.jit(device=True)
def block_join(highest, total, highests, totals, none):
    """The same for the threads of a block. ``highests`` and ``totals``: shared arrays of 32, used only here."""
    thread, lane = cuda.threadIdx.x, cuda.laneid
    highest, total = warp_join(highest, total)
    if lane == 0:
        highests[thread // 32], totals[thread // 32] = highest, total
    cuda.syncthreads()
    highest, total = none
    if lane < cuda.blockDim.x // 32:
        highest, total = highests[lane], totals[lane]
    return warp_join(highest, total)


@cuda.jit
def online_kernel(x, out, none, log):
    a, b = place(x, cuda.blockIdx.x)
    best, added = none
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        best, added = append(best, added, x[a, i, b])
    highests, totals = cuda.shared.array(32, x.dtype), cuda.shared.array(32, x.dtype)
    best, added = block_join(best, added, highests, totals, none)
    for i in range(cuda.threadIdx.x, x.shape[1], BLOCK):
        out[a, i, b] = share(x[a, i, b], best, added, log)


@rung(online_kernel)
def online(
    x: typing.Any, axis: int = -1, log: bool = False, *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """Maximum and sum in one pass: when the maximum grows, the sum so far is rescaled to the new one.

    Arguments, result and errors as in `three_kernels`. Source: M. Milakov and N. Gimelshein, Online normalizer
    calculation for softmax (2018).

    Leaves: 256 threads meet at a barrier for every row, even for one of 64 elements.
    """
    out, rows, results, none, log, stream = _arguments(x, axis, log, out, stream)
    if rows is not None:
        online_kernel[rows.shape[0] * rows.shape[2], BLOCK, stream](rows, results, none, log)
    return out


# -------------------------------------------------------------------------------------------------- a warp for each row

SHORT = 1024  # elements in the longest row that is left to a warp
WARPS = BLOCK // 32


@cuda.jit
def warp_per_row_kernel(x, out, none, log):
    row = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // 32
    if row >= x.shape[0] * x.shape[2]:
        return  # a whole warp
    a, b = place(x, row)
    best, added = none
    for i in range(cuda.laneid, x.shape[1], 32):
        best, added = append(best, added, x[a, i, b])
    best, added = warp_join(best, added)
    for i in range(cuda.laneid, x.shape[1], 32):
        out[a, i, b] = share(x[a, i, b], best, added, log)


@rung(warp_per_row_kernel, online_kernel)
def warp_per_row(
    x: typing.Any, axis: int = -1, log: bool = False, *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """A short row is a warp's: its lanes agree by shuffles, without a barrier. Longer rows stay with `online`.

    Arguments, result and errors as in `three_kernels`.

    Leaves: a very long row is one block's work, so a few of them leave most of the GPU idle.
    """
    out, rows, results, none, log, stream = _arguments(x, axis, log, out, stream)
    if rows is not None:
        count = rows.shape[0] * rows.shape[2]
        if rows.shape[1] <= SHORT:
            warp_per_row_kernel[_up(count, WARPS), BLOCK, stream](rows, results, none, log)
        else:
            online_kernel[count, BLOCK, stream](rows, results, none, log)
    return out


# ------------------------------------------------------------------------------------------------ several blocks a row

CHUNK = 8192  # elements of a row that a block takes


@cuda.jit
def part_kernel(x, highests, totals, none):
    parts = -(-x.shape[1] // CHUNK)
    a, b = place(x, cuda.blockIdx.x // parts)
    first = cuda.blockIdx.x % parts * CHUNK
    best, added = none
    for i in range(first + cuda.threadIdx.x, min(first + CHUNK, x.shape[1]), BLOCK):
        best, added = append(best, added, x[a, i, b])
    best, added = block_join(best, added, cuda.shared.array(32, x.dtype), cuda.shared.array(32, x.dtype), none)
    if cuda.threadIdx.x == 0:
        highests[cuda.blockIdx.x], totals[cuda.blockIdx.x] = best, added


@cuda.jit
def whole_kernel(x, out, highests, totals, none, log):
    parts = -(-x.shape[1] // CHUNK)
    row, first = cuda.blockIdx.x // parts, cuda.blockIdx.x % parts * CHUNK
    a, b = place(x, row)
    best, added = none
    for part in range(row * parts + cuda.threadIdx.x, (row + 1) * parts, BLOCK):
        best, added = join(best, added, highests[part], totals[part])
    best, added = block_join(best, added, cuda.shared.array(32, x.dtype), cuda.shared.array(32, x.dtype), none)
    for i in range(first + cuda.threadIdx.x, min(first + CHUNK, x.shape[1]), BLOCK):
        out[a, i, b] = share(x[a, i, b], best, added, log)


@rung(part_kernel, whole_kernel, warp_per_row_kernel, online_kernel)
def split_row(
    x: typing.Any, axis: int = -1, log: bool = False, *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """Several blocks share a long row: each finds the maximum and sum of its part, and a second kernel joins these.

    Arguments, result and errors as in `three_kernels`. Rows of up to CHUNK elements are left to `warp_per_row`.

    Leaves: along any other axis than the last the lanes of a warp read far apart, 32 sectors for 32 elements.
    """
    out, rows, results, none, log, stream = _arguments(x, axis, log, out, stream)
    if rows is None:
        return out
    if rows.shape[1] <= CHUNK:
        return warp_per_row(x, axis, log, out=out, stream=stream)
    blocks = rows.shape[0] * rows.shape[2] * _up(rows.shape[1], CHUNK)
    highests, totals = (device.empty(blocks, rows.dtype, stream=stream) for _ in range(2))
    part_kernel[blocks, BLOCK, stream](rows, highests, totals, none)
    whole_kernel[blocks, BLOCK, stream](rows, results, highests, totals, none, log)
    return out


# --------------------------------------------------------------------------------------------------- along another axis


@cuda.jit
def columns_kernel(x, out, none, log):
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    count, row = x.shape[0] * x.shape[2], cuda.blockIdx.x * cuda.blockDim.x + tx
    a, b = place(x, min(row, count - 1))
    best, added = none
    for i in range(ty, x.shape[1], cuda.blockDim.y):
        best, added = append(best, added, x[a, i, b])
    highests, totals = cuda.shared.array(1024, x.dtype), cuda.shared.array(1024, x.dtype)
    highests[ty * cuda.blockDim.x + tx], totals[ty * cuda.blockDim.x + tx] = best, added
    cuda.syncthreads()
    best, added = none
    for part in range(tx, cuda.blockDim.x * cuda.blockDim.y, cuda.blockDim.x):
        best, added = join(best, added, highests[part], totals[part])
    if row < count:
        for i in range(ty, x.shape[1], cuda.blockDim.y):
            out[a, i, b] = share(x[a, i, b], best, added, log)


@rung(columns_kernel, part_kernel, whole_kernel, warp_per_row_kernel, online_kernel)
def columns(
    x: typing.Any, axis: int = -1, log: bool = False, *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """Along another axis than the last, a warp takes 32 rows: its lanes lie side by side across them.

    Arguments, result and errors as in `three_kernels`. The last axis is left to `split_row`.

    Leaves: along the last axis, a row is read a second time, 4 bytes a lane, and its exponentials are taken thrice.
    """
    out, rows, results, none, log, stream = _arguments(x, axis, log, out, stream)
    if rows is None:
        return out
    outer, n, inner = rows.shape
    if inner == 1 or (inner < 8 and n > CHUNK):
        return split_row(x, axis, log, out=out, stream=stream)
    height = 1
    while height < 32 and 8 * height < n:
        height *= 2
    width = max(32, BLOCK // height)
    columns_kernel[_up(outer * inner, width), (width, height), stream](rows, results, none, log)
    return out


# --------------------------------------------------------------------------------------------------- kept in registers
#
# A part of a row is held by a group of threads, the members: each has `held` vectors of 16 bytes, up to HELD, and one
# element more, since a part need not begin or end at a multiple of 16 bytes. `first` and `count` say where in the flat
# x it lies, and `shift` where x begins, in elements after such a multiple. `like` is a tuple as long as a vector has
# elements. Its length is known when the kernel is compiled, so loops over it are unrolled and `values` is in registers.

HELD = 8
EACH = 33  # room for 4 * HELD elements and the one more, which is the last


@cuda.jit(device=True)
def power(below, like):
    """exp(below): of a float32 by the hardware's own exponential, good to 2 + 1.173 |below| ulp."""
    if len(like) == 4:
        return cuda.libdevice.fast_expf(below)
    return math.exp(below)


@cuda.jit(device=True)
def vectors_of(first, count, shift, like):
    """Where the first whole vector of a part begins, and how many vectors there are."""
    head = -(first + shift) & (len(like) - 1)
    return first + head, (count - head) // len(like)


@cuda.jit(device=True)
def loose(member, first, start, vectors, like):
    """Which element of a part is this member's one more, if it is less than the part's length."""
    return member if first + member < start else member + vectors * len(like)


@cuda.jit(device=True)
def hold(values, x, first, count, shift, like, held, member, members):
    """This member's elements into ``values``. No load waits for another; beyond the last vector that one is read."""
    start, vectors = vectors_of(first, count, shift, like)
    for k in range(HELD):
        if k < held:
            v = load128(x, start + len(like) * min(member + k * members, vectors - 1))
            for c in range(len(like)):
                values[len(like) * k + c] = v[c]
    i = loose(member, first, start, vectors, like)
    values[EACH - 1] = x[first + i] if i < count else -np.inf


@cuda.jit(device=True)
def highest_of(values, none, vectors, like, held, member, members):
    """The largest of a member's elements. What lies beyond the last of the ``vectors`` becomes -inf."""
    best = max(none[0], values[EACH - 1])
    for k in range(HELD):
        if k < held:
            for c in range(len(like) * k, len(like) * (k + 1)):
                values[c] = values[c] if member + k * members < vectors else -np.inf
                best = max(best, values[c])
    return best


@cuda.jit(device=True)
def total_of(values, like, held, best, log):
    """The sum of the exponentials, which take the place of the elements unless the logarithm is asked for."""
    last = power(values[EACH - 1] - best, like)
    total = last
    for k in range(HELD):
        if k < held:
            for c in range(len(like) * k, len(like) * (k + 1)):
                e = power(values[c] - best, like)
                total += e
                values[c] = values[c] if log else e
    values[EACH - 1] = values[EACH - 1] if log else last
    return total


@cuda.jit(device=True)
def store_vector(out, i, values, k, like):
    if len(like) == 4:
        store128(out, i, (values[k], values[k + 1], values[k + 2], values[k + 3]))
    else:
        store128(out, i, (values[k], values[k + 1]))


@cuda.jit(device=True)
def release(values, out, first, count, shift, like, held, member, members, best, scale, log):
    """The shares of what is held to where it came from: values * scale, or with ``log`` values - best - scale."""
    start, vectors = vectors_of(first, count, shift, like)
    for k in range(HELD):
        if k < held:
            for c in range(len(like) * k, len(like) * (k + 1)):
                values[c] = values[c] - best - scale if log else values[c] * scale
            if member + k * members < vectors:
                store_vector(out, start + len(like) * (member + k * members), values, len(like) * k, like)
    i = loose(member, first, start, vectors, like)
    if i < count:
        out[first + i] = values[EACH - 1] - best - scale if log else values[EACH - 1] * scale


@cuda.jit(device=True)
def lanes_all(op, value, lanes):
    """The values of groups of ``lanes`` neighbouring lanes combined, in every lane of each."""
    for distance in (16, 8, 4, 2, 1):
        if distance < lanes:
            value = combine(op, value, cuda.shfl_xor_sync(FULL, value, distance))
    return value


@cuda.jit
def lanes_kernel(x, out, n, held, shift, like, none, log):
    values = cuda.local.array(EACH, x.dtype)
    member, lanes = cuda.threadIdx.x, cuda.blockDim.x
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    first = min(row * n, x.size - n)  # beyond the last row the last one, for the shuffles want all lanes
    hold(values, x, first, n, shift, like, held, member, lanes)
    vectors = vectors_of(first, n, shift, like)[1]
    best = lanes_all(MAX, highest_of(values, none, vectors, like, held, member, lanes), lanes)
    total = lanes_all(SUM, total_of(values, like, held, best, log), lanes)
    scale = math.log(total) if log else np.float32(1) / total
    if row * n < x.size:
        release(values, out, first, n, shift, like, held, member, lanes, best, scale, log)


@cuda.jit(max_registers=64)
def block_kernel(x, out, n, held, shift, like, none, log):
    values = cuda.local.array(EACH, x.dtype)
    first, member, members = cuda.blockIdx.x * n, cuda.threadIdx.x, cuda.blockDim.x
    hold(values, x, first, n, shift, like, held, member, members)
    vectors = vectors_of(first, n, shift, like)[1]
    best = highest_of(values, none, vectors, like, held, member, members)
    best = block_all(MAX, best, cuda.shared.array(32, x.dtype), none[0])
    total = total_of(values, like, held, best, log)
    total = block_all(SUM, total, cuda.shared.array(32, x.dtype), none[1])
    scale = math.log(total) if log else np.float32(1) / total
    release(values, out, first, n, shift, like, held, member, members, best, scale, log)


EMPTY = -1  # no maximum has these bits: as a float32 they are NaN
MEMBERS = 256


@cuda.jit
def empty_kernel(slots):
    i = cuda.grid(1)
    if i < slots.size:
        slots[i] = EMPTY if i > 0 else 0


@cuda.jit(max_registers=64)
def blocks_kernel(x, out, n, chunk, parts, held, shift, like, none, log, slots):
    values, ticket = cuda.local.array(EACH, np.float32), cuda.shared.array(1, np.int64)
    whole = cuda.shared.array(2, np.float32)
    thread, members = cuda.threadIdx.x, cuda.blockDim.x
    if thread == 0:
        ticket[0] = cuda.atomic.add(slots, 0, 1)  # parts of a row go to blocks that begin one after another
    cuda.syncthreads()
    row = ticket[0] // parts
    begin = (ticket[0] - row * parts) * chunk
    first, count = row * n + begin, min(chunk, n - begin)
    hold(values, x, first, count, shift, like, held, thread, members)
    vectors = vectors_of(first, count, shift, like)[1]
    own = highest_of(values, none, vectors, like, held, thread, members)
    own = block_all(MAX, own, cuda.shared.array(32, np.float32), none[0])
    total = total_of(values, like, held, own, log)
    total = block_all(SUM, total, cuda.shared.array(32, np.float32), none[1])
    if thread < 32:
        if thread == 0:
            word = np.int64(cuda.libdevice.float_as_int(own)) << 32
            word |= np.int64(cuda.libdevice.float_as_int(total)) & 0xFFFFFFFF
            cuda.atomic.exch(slots, 1 + ticket[0], word)
        best, total = none
        for i in range(1 + row * parts + thread, 1 + (row + 1) * parts, 32):
            word = cuda.atomic.add(slots, i, 0)
            while word == EMPTY:
                word = cuda.atomic.add(slots, i, 0)
            other_best = cuda.libdevice.int_as_float(np.int32(word >> 32))
            best, total = join(best, total, other_best, cuda.libdevice.int_as_float(np.int32(word)))
        best, total = warp_join(best, total)
        if thread == 0:
            whole[0], whole[1] = best, total
    cuda.syncthreads()
    best, total = whole[0], whole[1]
    scale = math.log(total) if log else power(own - best, like) / total
    release(values, out, first, count, shift, like, held, thread, members, best, scale, log)


# ------------------------------------------------------------------------------------------------- many rows in a tile

TILE = 4096  # elements in shared memory, of whole rows of up to TINY
TINY = 32


@cuda.jit
def tile_kernel(x, out, n, rows, like, none, log):
    tile = cuda.shared.array(TILE, x.dtype, alignment=16)
    thread, width = cuda.threadIdx.x, len(like)
    begin = cuda.blockIdx.x * rows * n
    count = min(rows * n, x.size - begin)
    whole = count - count % width
    for i in range(thread * width, whole, BLOCK * width):
        store128(tile, i, load128(x, begin + i))
    if whole + thread < count:
        tile[whole + thread] = x[begin + whole + thread]
    cuda.syncthreads()
    first = thread * n
    if first < count:  # a thread has a row to itself
        best, total = none
        i = first
        while i < first + n:
            best = max(best, tile[i])
            i += 1
        i = first
        while i < first + n:
            e = power(tile[i] - best, like)
            total += e
            tile[i] = tile[i] if log else e
            i += 1
        scale = math.log(total) if log else np.float32(1) / total
        i = first
        while i < first + n:
            tile[i] = tile[i] - best - scale if log else tile[i] * scale
            i += 1
    cuda.syncthreads()
    for i in range(thread * width, whole, BLOCK * width):
        store128(out, begin + i, load128(tile, i))
    if whole + thread < count:
        out[begin + whole + thread] = tile[whole + thread]


@rung(tile_kernel, lanes_kernel, block_kernel, blocks_kernel, empty_kernel)
def vectorised(
    x: typing.Any, axis: int = -1, log: bool = False, *, out: typing.Any = None, stream: typing.Any = 0
) -> typing.Any:
    """A row is read once, 128 bits at a time, and waits in registers for its maximum and its sum."""
    out, rows, results, none, log, stream = _arguments(x, axis, log, out, stream)
    if rows is None:
        return out
    (outer, n, inner), width = rows.shape, WIDTH[rows.dtype.name]
    offset, like, vectors = device.address(rows) % 16, (0,) * width, _up(n, width)
    if inner > 1 or (offset and n < 2 * width) or offset != device.address(results) % 16:
        return columns(x, axis, log, out=out, stream=stream)
    source, result, shift = rows.reshape(rows.size), results.reshape(rows.size), offset // rows.dtype.itemsize
    if n % width and n <= TINY and not shift:
        together = min(TILE // (n * width) * width, BLOCK)
        tile_kernel[_up(outer, together), BLOCK, stream](source, result, n, together, like, none, log)
    elif vectors <= 32 * HELD:
        lanes = 8 if n % width or shift else 1
        while lanes < 32 and 4 * lanes < vectors:
            lanes *= 2
        grid, block = _up(outer * lanes, BLOCK), (lanes, BLOCK // lanes)
        lanes_kernel[grid, block, stream](source, result, n, _up(vectors, lanes), shift, like, none, log)
    elif vectors <= 1024 * HELD:
        threads = 32 * _up(vectors, 32 * HELD)
        held = _up(vectors, threads)
        block_kernel[outer, threads, stream](source, result, n, held, shift, like, none, log)
    else:
        parts = _up(vectors, MEMBERS * HELD)
        if parts > device.limits()["multiprocessors"] or width != 4:
            return columns(x, axis, log, out=out, stream=stream)
        chunk = width * _up(vectors, parts)
        parts = _up(n, chunk)
        slots = device.empty(1 + outer * parts, np.int64, stream=stream)
        empty_kernel[_up(slots.size, BLOCK), BLOCK, stream](slots)
        grid, held = outer * parts, _up(chunk, width * MEMBERS)
        blocks_kernel[grid, MEMBERS, stream](source, result, n, chunk, parts, held, shift, like, none, log, slots)
    return out


LADDER = (three_kernels, fused, online, warp_per_row, split_row, columns, vectorised)
