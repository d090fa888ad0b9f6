"""Activation, backwards: the gradient of the result times the function's slope, and the sum that a bias gets.

Chapter: notebooks/78_gradients_of_pooling_and_activations.ipynb.  PMPP 4e ch. 16.

An element of the gradient needs one number of the gradient behind it and one of the input, so the bound is the time to
read two arrays and to write one. The gradient of a bias is the sum of all that its channel gets. Read back from memory
it costs a third more bytes; added up by the threads that have the numbers in registers it costs next to none.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.activation.ladder import (
    BLOCK,
    DTYPES,
    FUNCTIONS,
    GELU,
    GELU_TANH,
    LEAKY_RELU,
    NAMES,
    RELU,
    SHORT,
    SIGMOID,
    SILU,
    TANH,
    add_bias,
    biased,
    inverse,
    logistic,
    upper_tail,
)
from pmpp.kernels.common import block_sum, blocks
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_number
from pmpp.runtime.dtypes import held, known, rounding
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width128, width_of


def reference(dy, x, function="relu", bias=None, slope=0.01) -> np.ndarray:
    """The gradient of ``x`` in float64, an element at a time; at infinity the slope's limit.

    What is beyond the largest number of 16 bits is infinite.
    """
    out = np.empty(x.shape)
    for at in np.ndindex(x.shape):
        with np.errstate(all="ignore"):  # the sum is what the forward pass makes of it
            value = float(x[at] if bias is None else np.float32(x[at]) + np.float32(bias[at[1]]))
        if function == "relu":
            out[at] = 0 if value <= 0 else dy[at]
        else:
            with np.errstate(all="ignore"):
                out[at] = np.float64(dy[at]) * _slope(value, function, slope)
    return held(out, x.dtype) if x.dtype.name in SHORT else out


def _slope(v: float, function: str, slope: float) -> float:
    if function == "leaky_relu":
        return 1.0 if v > 0 else float(np.float32(slope))
    if math.isnan(v):
        return v
    if math.isinf(v):
        return 0.0 if function in ("sigmoid", "tanh") or v < 0 else 1.0
    if function == "tanh":
        return _bell(2 * v) * 4
    if function in ("sigmoid", "silu"):
        e = math.exp(-abs(v))
        sigmoid = (1 if v >= 0 else e) / (1 + e)
        return _bell(v) if function == "sigmoid" else sigmoid + v * _bell(v)
    if function == "gelu":
        return math.erfc(-v / math.sqrt(2)) / 2 + v * math.exp(-v * v / 2) / math.sqrt(2 * math.pi)
    inner = math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)
    steepness = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * v * v)
    return (1 + math.tanh(inner)) / 2 + v * 2 * _bell(2 * inner) * steepness


def _bell(v: float) -> float:
    """The slope of the sigmoid."""
    e = math.exp(-abs(v))
    return e / (1 + e) ** 2


def bias_reference(dx: np.ndarray) -> np.ndarray:
    """The gradient of the bias in float64, from the gradient of ``x``: a sum for each channel, axis 1."""
    return dx.sum(axis=(0, *range(2, dx.ndim)), dtype=np.float64)


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(dy, x, function)`` or ``(dy, x, function, bias)``."""
    rng = np.random.default_rng(78) if rng is None else rng
    extremes = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-30, 88, -88, 104, -104, 1e4, -1e4, 3e38, -3e38], np.float32)
    extremes = np.concatenate([extremes, np.array([np.inf, -np.inf, np.nan], np.float32)])
    made: dict[str, tuple] = {}

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    for function in FUNCTIONS:
        made[function] = normal(1001), np.linspace(-12, 12, 1001, dtype=np.float32), function
        made[f"{function}, extremes"] = normal(extremes.size), extremes, function
    for function in ("relu", "leaky_relu"):
        made[f"{function}, extreme gradients"] = extremes, rng.permutation(extremes), function
    tile = 4 * BLOCK
    for n in (0, 1, 3, 4, 5, BLOCK + 1, tile - 1, tile, tile + 1):
        made[f"n = {n}"] = normal(n), normal(n), "relu"
    shapes = {"images": (2, 3, 4, 8), "odd planes": (3, 5, 7, 7), "layer": (9, 12), "odd layer": (7, 13)}
    shapes |= {"one channel": (4, 1, 6), "no images": (0, 4, 2), "large planes": (2, 3, 28, 28)}
    for number, (name, shape) in enumerate(shapes.items()):
        made[f"{name}, bias"] = normal(*shape), normal(*shape), list(FUNCTIONS)[number], normal(shape[1])
    with np.errstate(over="ignore"):
        for number, dtype in enumerate(known(SHORT)):
            made[f"{dtype}, relu"] = normal(2 * tile + 3).astype(dtype), normal(2 * tile + 3).astype(dtype), "relu"
            for function in NAMES[1:]:
                x = np.append(np.linspace(-12, 12, 301), extremes).astype(dtype)
                made[f"{dtype}, {function}, extremes"] = normal(x.size).astype(dtype), x, function
            for place, shape in enumerate(shapes.values()):
                dy, x, bias = (normal(*one).astype(dtype) for one in (shape, shape, shape[1:2]))
                made[f"{dtype}, {shape}, bias"] = dy, x, NAMES[(place + number) % 7], bias
    return made


def tolerance(dy, x, function="relu", bias=None, slope=0.01) -> typing.Any:
    """How far from the reference is right, element by element.

    ReLU only selects; a leaky one rounds a product. exp, erf and tanh are good to 2 ulp, 4 half-ulps (CUDA C++
    programming guide, "Mathematical functions"). A bell takes 4 more and the product with ``dy`` 1, so 12 half-ulps
    suffice for each part of a slope. In a GELU, rounding the argument of exp adds v^2 / 2 half-ulps to the second part,
    and in its approximation 14 times the argument of tanh, which has 7 roundings: `_parts` has these as factors. Below
    2^-126 a function may flush. For 16 bits the quotients are the hardware's, twice 4 half-ulps more, and so are the
    exponentials: 2.4 more for each unit of an argument, which is up to 2 v. Such a result is rounded once more.
    """
    if function == "relu":
        return 0.0
    short = x.dtype.name in SHORT
    roundings = (lambda v: 20 + 4.8 * abs(v)) if short else (lambda v: 12)
    allowed = _allowed_in_float32(dy.astype(np.float32), x.astype(np.float32), function, bias, slope, roundings)
    if x.dtype.name in SHORT:
        exact = reference(dy, x, function, bias, slope)
        allowed = allowed + rounding(np.where(np.isfinite(exact), abs(exact), 0) + allowed, x.dtype)
    return allowed


def _allowed_in_float32(dy, x, function, bias, slope, roundings) -> np.ndarray:
    size = np.where(np.isfinite(dy), np.abs(dy), 0).astype(np.float64)
    with np.errstate(all="ignore"):
        shape = (1, -1) + (1,) * (x.ndim - 2)
        v = (x if bias is None else x + bias.astype(np.float32).reshape(shape)).astype(np.float64)
    # Beyond 30 every slope is at its limit, to float32.
    v = np.where(np.isfinite(v), np.clip(v, -30, 30), 0)
    if function == "leaky_relu":
        return 2.0**-24 * size + 2.0**-149
    parts = np.vectorize(_parts, otypes=[np.float64])(v, function)
    return (roundings(v) * 2.0**-24 * parts + 2.0**-126) * size + 2.0**-149


def _parts(v: float, function: str) -> float:
    """The sizes of the parts of a slope, each as large as its argument's rounding makes it count."""
    if function in ("sigmoid", "tanh"):
        return abs(_slope(v, function, 0))
    if function == "silu":
        return (1 / (1 + math.exp(-v))) + abs(v) * _bell(v)
    if function == "gelu":
        return 1 + abs(v) * math.exp(-v * v / 2) * (1 + v * v)
    inner = v + 0.044715 * v**3
    return 1 + abs(v) * 2 * _bell(1.6 * inner) * (1 + 0.14 * v * v) * (1 + abs(inner))


def bias_tolerance(dx: np.ndarray, allowed: typing.Any, dtype: typing.Any = np.float32) -> np.ndarray:
    """How far a bias's gradient may be from the sum of exact ``dx``, each of which was off by ``allowed``.

    An addition is off by 2^-24 of its result, and there are fewer than elements of a channel. A sum of 16 bits is
    rounded once more.
    """
    count = dx.size // max(dx.shape[1], 1)
    allowed = bias_reference(np.broadcast_to(allowed, dx.shape)) + count * 2.0**-24 * bias_reference(np.abs(dx))
    if np.dtype(dtype).name in SHORT:
        allowed = allowed + rounding(abs(bias_reference(dx)) + allowed, dtype)
    return allowed


def cost(n: int, itemsize: int = 4) -> Cost:
    """One operation an element, as for ReLU; ``dy`` and ``x`` read once, the result written once. A bias is small."""
    return Cost(flops=n, bytes=3 * n * itemsize)


def arguments(
    dy, x, function="relu", bias=None, *, return_bias_gradient=False, slope=0.01, out=None, stream=0
) -> Problem:
    """The gradient of an activation's input: ``dy`` times the slope of the function at ``x + bias``.

    Args:
        dy: the gradient of the result, of the shape and dtype of ``x``, contiguous.
        x: the input of the forward pass, an array of any shape but (), float32, float16 or bfloat16, contiguous; with a
            bias (N, C, ...). For "relu" without a bias the result will do in its place: it is positive where the input
            is.
        function: "relu", "leaky_relu", "sigmoid", "tanh", "gelu", "gelu_tanh" or "silu", as given to the forward pass.
        bias: (C,), of the dtype of ``x``, which the forward pass added before; or None.
        return_bias_gradient: True to return ``(out, dbias)``; ``dbias`` is the sum of ``out`` for each channel, (C,),
            of the dtype of ``x``.
        slope: the factor of "leaky_relu" for negative numbers. The other functions do not use it.
        out: a device array like ``x``, or None to allocate one. It may be ``dy`` or ``x``, and is otherwise apart from
            ``dy``, ``x`` and ``bias`` in memory.
        stream: the stream to work on.

    Returns ``out``, the gradient of ``x``, or ``(out, dbias)``, without waiting for the work to be done. ReLU's slope
    at 0 is 0, and where ``x + bias`` is NaN it hands ``dy`` on, as in PyTorch; the smooth functions give NaN there. At
    infinity a slope is its limit (where PyTorch gives NaN for "gelu" and "silu"). Numbers of 16 bits are computed with
    and added up in float32, and each result is rounded to the nearest.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 16.2; D. Hendrycks and K. Gimpel, Gaussian Error Linear Units (arXiv:1606.08415).

    >>> from pmpp.kernels.activation import activation_backward
    >>> dy, x = np.float32([[10, 20, 30]]), np.float32([[-1, 2, 0]])
    >>> activation_backward.fused(dy, x, "relu", np.float32([0, 0, 1])).copy_to_host()
    array([[ 0., 20., 30.]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=None, stream=stream)
    dy = device.as_input("dy", dy, dtypes=x.dtype, shape=tuple(x.shape), stream=stream)
    if not isinstance(function, str) or function not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, was {function!r}")
    slope, summed = as_number("slope", slope), as_flag("return_bias_gradient", return_bias_gradient)
    channels = x.shape[1] if x.ndim > 1 else None
    if bias is not None:
        bias = device.as_input("bias", bias, dtypes=x.dtype, shape=(channels,), stream=stream)
    if channels is None and (bias is not None or summed):
        asked = f"bias={bias!r}" if bias is not None else f"return_bias_gradient={return_bias_gradient!r}"
        raise ValueError(f"x must have 2 dimensions or more for {asked}, had shape {x.shape}")
    apart = {"dy": dy, "x": x, "bias": bias}
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart=apart, may_be=("dy", "x"), stream=stream)
    dbias = device.empty(channels, x.dtype, stream=stream) if summed else None
    problem = Problem(
        (out, dbias) if summed else out,
        stream=stream,
        dy=dy.reshape(-1),
        x=x.reshape(-1),
        out=out.reshape(-1),
        function=FUNCTIONS[function],
        bias=no_bias() if bias is None else bias,
        dbias=dbias,
        images=x.shape[0],
        channels=channels,
        inner=math.prod(x.shape[2:]),  # neighbours of one channel
        slope=slope,
    )
    if not x.size:  # a sum of nothing is 0
        if summed and channels:
            clear_kernel[blocks(channels, BLOCK), BLOCK, stream](dbias)
        problem.done = True
    return problem


@device.cached(1)
def no_bias():
    """The empty array that kernels are given where there is no bias."""
    return device.empty(0, np.float32)


@cuda.jit
def clear_kernel(out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = np.float32(0)


# ---------------------------------------------------------------------------------------------------------- the slopes


@cuda.jit(device=True)
def bell(v):
    """The slope of the sigmoid, s (1 - s). As e / (1 + e)^2 with e = exp(-|v|) nothing cancels where s is nearly 1."""
    one = np.float32(1)
    e = math.exp(-abs(v))
    return e / ((one + e) * (one + e))


@cuda.jit(device=True)
def within(v):
    """v, or a number so far out that each slope is at its limit: infinity times 0 would be NaN."""
    far = np.float32(128)
    return -far if v < -far else far if v > far else v


@cuda.jit(device=True)
def logistic_and_bell(v):
    """The sigmoid and its slope, good enough for 16 bits: one exponential and one quotient of the hardware for both."""
    one = np.float32(1)
    e = cuda.libdevice.fast_expf(-abs(v))
    t = inverse(one + e)
    return (one if v >= np.float32(0) else e) * t, e * t * t


@cuda.jit(device=True)
def slope_short(function, v):
    """The slope of a function, for a result of 16 bits: see `activate_short`."""
    one, two = np.float32(1), np.float32(2)
    if function == SIGMOID:
        return logistic_and_bell(v)[1]
    if function == TANH:
        return np.float32(4) * logistic_and_bell(two * v)[1]
    if function == SILU:
        share, steepness = logistic_and_bell(v)
        return share + v * steepness
    if function == GELU:
        e = cuda.libdevice.fast_expf(np.float32(-0.5) * v * v)
        tail = upper_tail(v, e)
        return (one - tail if v >= np.float32(0) else tail) + v * (np.float32(0.3989422804014327) * e)
    root, cubed = np.float32(1.5957691216057308), np.float32(0.044715)  # 2 sqrt(2 / pi)
    share, steepness = logistic_and_bell(root * (v + cubed * v * v * v))
    return share + v * steepness * (root * (one + np.float32(3) * cubed * v * v))


@cuda.jit(device=True)
def back(function, dy, v, slope):
    """What ``dy`` is worth before the function of ``v``: ``dy`` times the slope."""
    zero, half, one, two = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
    if function == RELU:
        return zero if v <= zero else dy  # a choice: 0 times an infinite dy would be NaN
    if function == LEAKY_RELU:
        return dy if v > zero else dy * slope
    v = within(v)
    if function == SIGMOID:
        return dy * bell(v)
    if function == TANH:
        return dy * (np.float32(4) * bell(two * v))
    if function == SILU:
        return dy * (logistic(v) + v * bell(v))
    if function == GELU:
        density = np.float32(0.3989422804014327) * math.exp(-half * v * v)  # 1 / sqrt(2 pi)
        return dy * (half * (one + math.erf(v * np.float32(0.7071067811865476))) + v * density)
    root, cubed = np.float32(0.7978845608028654), np.float32(0.044715)  # sqrt(2 / pi)
    inner = root * (v + cubed * v * v * v)
    steepness = root * (one + np.float32(3) * cubed * v * v)
    return dy * (half * (one + math.tanh(inner)) + two * v * bell(two * inner) * steepness)


@cuda.jit(device=True)
def back_short(function, dy, v, slope):
    """The same for a result of 16 bits."""
    zero = np.float32(0)
    if function == RELU:
        return zero if v <= zero else dy
    if function == LEAKY_RELU:
        return dy if v > zero else dy * slope
    return dy * slope_short(function, within(v))


@cuda.jit(device=True)
def back_as(x, function, dy, v, slope):
    """`back` as precise as an element of ``x``: known when the kernel is compiled."""
    if width128(x) == 8:
        return back_short(function, dy, v, slope)
    return back(function, dy, v, slope)


# -------------------------------------------------------------------------------------------------- a thread an element


@cuda.jit(device=True)
def with_bias(x, i, bias, inner):
    """Element i of the input, and its bias if there is one."""
    return biased(x, i, bias, inner) if bias.size else widened(x[i])


@cuda.jit
def elementwise_kernel(dy, x, bias, inner, function, slope, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = back_as(x, function, widened(dy[i]), with_bias(x, i, bias, inner), slope)


@cuda.jit
def add_up_kernel(dx, inner, dbias):
    i = cuda.grid(1)
    if i < dx.size:
        cuda.atomic.add(dbias, i // inner % dbias.size, widened(dx[i]))


@cuda.jit
def round_kernel(sums, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = sums[i]


@rung(elementwise_kernel, clear_kernel, add_up_kernel, round_kernel)
def elementwise(p):
    """One thread for each element; for the bias, one atomic addition for each element.

    Sums of 16 bits are added up in float32, and rounded by a kernel of their own.

    Leaves: a thread asks for 4 bytes of two arrays and is over. All additions of a channel meet at one address, and
    their order, and with it the last bits, changes from run to run.
    """
    grid = blocks(p.x.size, BLOCK)
    elementwise_kernel[grid, BLOCK, p.stream](p.dy, p.x, p.bias, p.inner, p.function, p.slope, p.out)
    if p.dbias is not None:
        short = p.dbias.dtype != np.float32
        sums = device.empty(p.channels, np.float32, stream=p.stream) if short else p.dbias
        clear_kernel[blocks(p.channels, BLOCK), BLOCK, p.stream](sums)
        add_up_kernel[grid, BLOCK, p.stream](p.out, p.inner, sums)
        if short:
            round_kernel[blocks(p.channels, BLOCK), BLOCK, p.stream](sums, p.dbias)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit(device=True)
def back_vector(function, dy, v, slope):
    """`back` of four or of eight numbers."""
    if len(v) == 8:
        return back_eight(function, dy, v, slope)
    return back_four(function, dy, v, slope)


@cuda.jit(device=True)
def back_eight(function, dy, v, slope):
    """One branch for all eight: `back_twice` is given a constant, and what it computes can overlap."""
    if function == RELU:
        return back_twice(RELU, dy, v, slope)
    if function == LEAKY_RELU:
        return back_twice(LEAKY_RELU, dy, v, slope)
    if function == SIGMOID:
        return back_twice(SIGMOID, dy, v, slope)
    if function == TANH:
        return back_twice(TANH, dy, v, slope)
    if function == SILU:
        return back_twice(SILU, dy, v, slope)
    if function == GELU:
        return back_twice(GELU, dy, v, slope)
    return back_twice(GELU_TANH, dy, v, slope)


@cuda.jit(device=True)
def back_twice(function, dy, v, slope):
    return short_four(function, dy[:4], v[:4], slope) + short_four(function, dy[4:], v[4:], slope)


@cuda.jit(device=True)
def short_four(function, dy, v, slope):
    return (
        back_short(function, dy[0], v[0], slope),
        back_short(function, dy[1], v[1], slope),
        back_short(function, dy[2], v[2], slope),
        back_short(function, dy[3], v[3], slope),
    )


@cuda.jit(device=True)
def back_four(function, dy, v, slope):
    return (
        back(function, dy[0], v[0], slope),
        back(function, dy[1], v[1], slope),
        back(function, dy[2], v[2], slope),
        back(function, dy[3], v[3], slope),
    )


@cuda.jit(device=True)
def vector_with_bias(x, i, bias, inner):
    v = widened(load128(x, i))
    return add_bias(v, i, bias, inner) if bias.size else v


@cuda.jit
def vectorised_kernel(dy, x, bias, inner, function, slope, out, head, tail):
    thread = cuda.grid(1)
    i = head + width128(x) * thread
    if i < tail:
        store128(out, i, back_vector(function, widened(load128(dy, i)), vector_with_bias(x, i, bias, inner), slope))
    # What lies before and after the vectors, one element a thread.
    if thread < head:
        out[thread] = back_as(x, function, widened(dy[thread]), with_bias(x, thread, bias, inner), slope)
    if tail + thread < x.size:
        e = tail + thread
        out[e] = back_as(x, function, widened(dy[e]), with_bias(x, e, bias, inner), slope)


SHARE = 8192  # elements of a channel that a block adds up: 32 for each thread
ROWS = 128  # rows of a layer that a block adds up: 16 for each of its 8 rows of threads
WIDE, TALL = 32, 8
# From this many neighbours of one channel on, a block takes a channel. With fewer, neighbours are columns of a matrix.
LONG = 32


@cuda.jit(device=True)
def sum_of(a):
    """The sum of four or of eight numbers."""
    if len(a) == 8:
        return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))
    return (a[0] + a[1]) + (a[2] + a[3])


@cuda.jit(device=True)
def channel_share(dy, x, bias, function, slope, out, partials, images, channels, inner, width, makes):
    """Add up a block's share of a channel. With ``makes``, compute it first; else read what another kernel computed."""
    part = cuda.blockIdx.x // channels
    channel = cuda.blockIdx.x - part * channels
    i = part * SHARE + width * cuda.threadIdx.x
    end = min((part + 1) * SHARE, images * inner)
    total = np.float32(0)
    while i < end:
        image = i // inner
        e = (image * channels + channel) * inner + i - image * inner
        if width > 1:
            if makes:
                a = back_vector(function, widened(load128(dy, e)), vector_with_bias(x, e, bias, inner), slope)
                store128(out, e, a)
            else:
                a = widened(load128(out, e))
            total += sum_of(a)
        else:
            if makes:
                b = back_as(x, function, widened(dy[e]), with_bias(x, e, bias, inner), slope)
                out[e] = b
            else:
                b = widened(out[e])
            total += b
        i += width * cuda.blockDim.x
    shared = cuda.shared.array(32, np.float32)
    total = block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = total


@cuda.jit(device=True)
def column_share(dy, x, bias, function, slope, out, partials, rows, columns, inner, makes):
    """The same for the columns of a matrix: a block adds up 32 columns of ROWS rows, a warp every eighth row."""
    across = (columns + WIDE - 1) // WIDE
    part = cuda.blockIdx.x // across
    column = (cuda.blockIdx.x - part * across) * WIDE + cuda.threadIdx.x
    row, end = part * ROWS + cuda.threadIdx.y, min((part + 1) * ROWS, rows)
    total = np.float32(0)
    if column < columns:
        while row < end:
            e = row * columns + column
            if makes:
                b = back_as(x, function, widened(dy[e]), with_bias(x, e, bias, inner), slope)
                out[e] = b
            else:
                b = widened(out[e])
            total += b
            row += TALL
    shared = cuda.shared.array((TALL, WIDE), np.float32)
    shared[cuda.threadIdx.y, cuda.threadIdx.x] = total
    cuda.syncthreads()  # all sums are there before the first row of threads adds them
    if cuda.threadIdx.y == 0 and column < columns:
        for y in range(1, TALL):
            total += shared[y, cuda.threadIdx.x]
        partials[part * columns + column] = total


@cuda.jit
def channels_kernel(out, partials, images, channels, inner, width):
    channel_share(out, out, out, 0, np.float32(0), out, partials, images, channels, inner, width, False)


@cuda.jit
def columns_kernel(out, partials, rows, columns, inner):
    column_share(out, out, out, 0, np.float32(0), out, partials, rows, columns, inner, False)


@cuda.jit
def total_kernel(partials, parts, channels, inner, dbias):
    """A block for each channel adds up ``parts`` sums of each of its ``inner`` columns, in one order always."""
    channel, i = cuda.blockIdx.x, cuda.threadIdx.x
    total = np.float32(0)
    while i < parts * inner:
        part = i // inner
        total += partials[(part * channels + channel) * inner + i - part * inner]
        i += cuda.blockDim.x
    shared = cuda.shared.array(32, np.float32)
    total = block_sum(total, shared)
    if cuda.threadIdx.x == 0:
        dbias[channel] = total


def add_up(p, channels, columns, *given) -> None:
    """Launch ``channels`` or ``columns``, which leave sums of shares, with what they are given; then add these up."""
    if p.inner >= LONG:
        parts, inner = blocks(p.images * p.inner, SHARE), 1
        partials = device.empty(parts * p.channels, np.float32, stream=p.stream)
        aligned = not any(device.address(array) % 16 for array in (p.dy, p.x, p.out))
        wide = width_of(p.x.dtype)
        width = wide if aligned and p.inner % wide == 0 else 1
        launch = channels[parts * p.channels, BLOCK, p.stream]
        launch(*given, p.out, partials, p.images, p.channels, p.inner, width)
    else:
        parts, inner, width = blocks(p.images, ROWS), p.inner, p.channels * p.inner
        partials = device.empty(parts * width, np.float32, stream=p.stream)
        launch = columns[parts * blocks(width, WIDE), (WIDE, TALL), p.stream]
        launch(*given, p.out, partials, p.images, width, p.inner)
    total_kernel[p.channels, BLOCK, p.stream](partials, parts, p.channels, inner, p.dbias)


@rung(vectorised_kernel, channels_kernel, columns_kernel, total_kernel)
def vectorised(p):
    """A thread loads 128 bits of both arrays and stores 128 bits; the bias's gradient is summed in a fixed order.

    The sum reads what was written: blocks leave sums of shares of a channel, and a last kernel adds these up. No order
    depends on time, so every run gives the same bits. What is no whole 16-byte vector of all three arrays is moved one
    element at a time.

    Leaves: for the bias's gradient the result is read back from memory: 16 bytes an element instead of 12.
    """
    head, tail, width = vector_span(p.dy, p.x, p.out)
    grid = blocks(max(head, (tail - head) // width, p.x.size - tail), BLOCK)
    launch = vectorised_kernel[grid, BLOCK, p.stream]
    launch(p.dy, p.x, p.bias, p.inner, p.function, p.slope, p.out, head, tail)
    if p.dbias is not None:
        add_up(p, channels_kernel, columns_kernel)


# ------------------------------------------------------------------------------------------ added up on the way


@cuda.jit
def fused_channels_kernel(dy, x, bias, function, slope, out, partials, images, channels, inner, width):
    channel_share(dy, x, bias, function, slope, out, partials, images, channels, inner, width, True)


@cuda.jit
def fused_columns_kernel(dy, x, bias, function, slope, out, partials, rows, columns, inner):
    column_share(dy, x, bias, function, slope, out, partials, rows, columns, inner, True)


@rung(fused_channels_kernel, fused_columns_kernel, total_kernel, vectorised_kernel)
def fused(p):
    """The threads that compute the gradient add it up for the bias while it is in their registers.

    Without the bias's gradient it is `vectorised`.
    """
    if p.dbias is None:
        vectorised.launch(p)
    else:
        add_up(p, fused_channels_kernel, fused_columns_kernel, p.dy, p.x, p.bias, p.function, p.slope)


LADDER = (elementwise, vectorised, fused)
