"""Activation: a function of one number for each element, and a bias before it.

Chapter: notebooks/46_pooling_and_activations.ipynb.  PMPP 4e ch. 16.

Nothing is shared and nothing is read twice: the bound is the time to read the input once and to write the output once,
for ReLU and, on a data-centre GPU, for the error function just as well. What can be saved is a trip to memory: the
layer before has its result in registers, and whatever is applied there costs no bytes. That is an epilogue. And numbers
of 16 bits are half as many bytes: they are computed with in float32, and rounded once.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.vector_add import vector_span
from pmpp.runtime import device
from pmpp.runtime.check import as_number
from pmpp.runtime.dtypes import held, known, rounding
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128, widened, width128

# The functions by name, and the number by which the kernels know each.
NAMES = ("relu", "leaky_relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu")
FUNCTIONS = dict(zip(NAMES, range(7), strict=True))
RELU, LEAKY_RELU, SIGMOID, TANH, GELU, GELU_TANH, SILU = FUNCTIONS.values()
BLOCK = 256  # threads a block
DTYPES = ("float32", "float16", "bfloat16")
SHORT = DTYPES[1:]


def reference(x: np.ndarray, function: str = "relu", bias: np.ndarray | None = None, slope: float = 0.01) -> np.ndarray:
    """``function(x + bias)`` in float64, an element at a time; at infinity its limit.

    What is beyond the largest number of 16 bits is infinite.
    """
    out = np.empty(x.shape)
    for at in np.ndindex(x.shape):
        # The sum is what float32 makes of it: how a function treats it is one question, how it was added another.
        with np.errstate(all="ignore"):
            value = float(x[at] if bias is None else np.float32(x[at]) + np.float32(bias[at[1]]))
        out[at] = _exact(value, function, slope)
    return held(out, x.dtype) if x.dtype.name in SHORT else out


def _exact(v: float, function: str, slope: float) -> float:
    if math.isnan(v):
        return v
    if function == "relu":
        return max(v, 0.0)
    if function == "leaky_relu":
        return v if v > 0 else v * float(np.float32(slope))
    if function == "tanh":
        return math.tanh(v)
    if v == -math.inf:
        return 0.0 if function == "sigmoid" else -0.0
    if function in ("sigmoid", "silu"):
        sigmoid = 1 / (1 + math.exp(-v)) if v >= 0 else math.exp(v) / (1 + math.exp(v))
        return sigmoid if function == "sigmoid" else v * sigmoid
    if function == "gelu":
        return v * math.erfc(-v / math.sqrt(2)) / 2
    cube = v + 0.044715 * v**3 if abs(v) < 1e30 else v
    return v * (1 + math.tanh(math.sqrt(2 / math.pi) * cube)) / 2


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(x, function)`` or ``(x, function, bias)``."""
    rng = np.random.default_rng(16) if rng is None else rng
    x = np.linspace(-12, 12, 1001, dtype=np.float32)
    extremes = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-30, 88, -88, 104, -104, 1e4, -1e4, 3e38, -3e38], np.float32)
    extremes = np.concatenate([extremes, np.array([np.inf, -np.inf, np.nan], np.float32)])
    made: dict[str, tuple] = {}
    for function in FUNCTIONS:
        made[function] = x, function
        made[f"{function}, extremes"] = extremes, function
    tile = 4 * BLOCK
    for n in (0, 1, 3, 4, 5, BLOCK - 1, BLOCK + 1, tile - 1, tile, tile + 1):
        made[f"n = {n}"] = rng.standard_normal(n, dtype=np.float32), "relu"
    shapes = {"images": (2, 3, 4, 8), "odd planes": (3, 5, 7, 7), "layer": (9, 12), "odd layer": (7, 13)}
    shapes |= {"one channel": (4, 1, 6), "no images": (0, 4, 2), "a tile of images": (2, 3, 28, 28)}
    for number, (name, shape) in enumerate(shapes.items()):
        x, bias = rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(shape[1], dtype=np.float32)
        made[f"{name}, bias"] = x, list(FUNCTIONS)[number], bias
    with np.errstate(over="ignore"):
        for number, dtype in enumerate(known(SHORT)):
            made[f"{dtype}, relu"] = rng.standard_normal(2 * tile + 3).astype(dtype), "relu"
            for function in NAMES[1:]:
                made[f"{dtype}, {function}"] = np.append(np.linspace(-12, 12, 301), extremes).astype(dtype), function
            for place, shape in enumerate(shapes.values()):
                x, bias = rng.standard_normal(shape).astype(dtype), rng.standard_normal(shape[1]).astype(dtype)
                made[f"{dtype}, {shape}, bias"] = x, NAMES[(place + number) % 7], bias
    return made


def tolerance(x: np.ndarray, function: str = "relu", bias: typing.Any = None, slope: float = 0.01) -> typing.Any:
    """How far from the reference is right, element by element.

    ReLU only selects; a leaky one rounds a product. exp, tanh and erf are good to 2 ulp (CUDA C++ programming guide,
    "Mathematical functions"), and at most four roundings follow: 8 half-ulps of the result. The GELUs add 1 to what may
    be nearly -1, and their argument is rounded before: there it is 8 half-ulps of x. Below 2^-126 a function may flush.
    For 16 bits it is the hardware's quotient, 4 half-ulps more, and its exponential: 2.4 |v| more for a sigmoid, and
    too little to count where a GELU is compared with x. A result of 16 bits is rounded once more; and so is the sum
    with a bias, where one kernel leaves it in memory for the next one. No function is steeper than 1.13, apart from a
    leaky one.
    """
    short = x.dtype.name in SHORT
    if function == "relu" and not (short and bias is not None):
        return 0.0
    largest = exact = abs(reference(x, function, bias, slope))
    with np.errstate(invalid="ignore"):
        v = x.astype(np.float32)
        if bias is not None:
            v = v + bias.astype(np.float32).reshape((1, -1) + (1,) * (x.ndim - 2))
    if function in ("gelu", "gelu_tanh"):
        largest = abs(v).astype(np.float64)
        # From 6 on, what is left of the tail is less than what erf and tanh resolve: there they are -1 or 1.
        largest = np.where(largest < 14, largest, np.where(np.isfinite(largest), largest, 0))
    roundings = 8.0
    if short and function != "tanh":
        steep = function in ("sigmoid", "silu")
        roundings = 12 + 2.4 * np.where(np.isfinite(v), np.minimum(abs(v), 104), 0) * steep
    allowed = roundings * 2.0**-24 * largest + 2.0**-126
    if short:
        if bias is not None:
            allowed = allowed + max(1.13, abs(slope)) * rounding(v, x.dtype)
        allowed = allowed + rounding(exact + allowed, x.dtype)
    return allowed


def cost(n: int, itemsize: int = 4) -> Cost:
    """One operation an element, as for ReLU; ``x`` read once, the result written once. A bias is too small to count."""
    return Cost(flops=n, bytes=2 * n * itemsize)


def arguments(x, function="relu", bias=None, *, slope=0.01, out=None, stream=0) -> Problem:
    """Apply a function to every element, after a bias is added where one is given.

    Args:
        x: an array of any shape but (), float32, float16 or bfloat16, contiguous; with a bias (N, C, ...).
        function: "relu", "leaky_relu", "sigmoid", "tanh", "gelu" (with the error function), "gelu_tanh" (its
            approximation) or "silu" (x times its sigmoid).
        bias: (C,), of the dtype of ``x``, added before; or None.
        slope: the factor of "leaky_relu" for negative numbers. The other functions do not use it.
        out: a device array like ``x``, or None to allocate one. It may be ``x``, and is otherwise apart from ``x`` and
            ``bias`` in memory.
        stream: the stream to work on.

    Returns ``out``, without waiting for the work to be done. NaN stays NaN. At minus infinity "gelu", "gelu_tanh" and
    "silu" give their limit -0.0 (where PyTorch gives NaN). Numbers of 16 bits are computed with in float32, and the
    result is rounded to the nearest. `elementwise` and `vectorised` also round the sum with a bias.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: PMPP 4e section 16.1; D. Hendrycks and K. Gimpel, Gaussian Error Linear Units (arXiv:1606.08415);
    S. Elfwing and others, Sigmoid-weighted linear units (arXiv:1702.03118).

    >>> from pmpp.kernels import activation
    >>> activation.fused(np.float32([[-1, 2]]), "relu", np.float32([0, 0.5])).copy_to_host()
    array([[0. , 2.5]], dtype=float32)
    """
    stream = device.as_stream(stream)
    x = device.as_input("x", x, dtypes=DTYPES, ndim=None, stream=stream)
    if not isinstance(function, str) or function not in FUNCTIONS:
        raise ValueError(f"function must be one of {', '.join(FUNCTIONS)}, was {function!r}")
    slope = as_number("slope", slope)
    if bias is not None:
        channels = x.shape[1] if x.ndim > 1 else None
        bias = device.as_input("bias", bias, dtypes=x.dtype, shape=(channels,), stream=stream)
        if channels is None:
            raise ValueError(f"x must have 2 dimensions or more to have a bias, had shape {x.shape}")
    apart = {"x": x, "bias": bias}
    out = device.as_output("out", out, shape=x.shape, dtype=x.dtype, apart=apart, may_be=("x",), stream=stream)
    return Problem(
        out,
        stream=stream,
        x=x.reshape(-1),
        out=out.reshape(-1),
        function=FUNCTIONS[function],
        bias=bias,
        inner=math.prod(x.shape[2:]),  # neighbours of one channel
        slope=slope,
    )


# ------------------------------------------------------------------------------------------------------- the functions


@cuda.jit(device=True)
def logistic(v):
    """The sigmoid 1 / (1 + exp(-v)), by an exponential that cannot overflow: of -|v|."""
    one = np.float32(1)
    e = math.exp(-abs(v))
    return (one if v >= np.float32(0) else e) / (one + e)


@cuda.jit(device=True)
def above(v):
    """v, or a number so low that the function is at its limit: minus infinity times 0 would be NaN."""
    low = np.float32(-128)
    return low if v < low else v


# A result of 16 bits has 8 or 11 of the 24 bits of a float32, and in the time to move its 4 bytes an H200 has about 27
# instructions for it. An error function from the library takes nearly all of them. So these are built from the
# hardware's exponential, good to 2 + 1.173 |v| ulp, and its quotient, good to 2 ulp (CUDA C++ programming guide).


@cuda.jit(device=True)
def upper_tail(v, e):
    """How much of the normal distribution is above |v|, where ``e`` is exp(-v^2 / 2); the error is below 7.5e-8.

    Source: M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 7.1.26, for |v| / sqrt(2).
    """
    t = inverse(np.float32(1) + np.float32(0.3275911 * 0.7071067811865476) * abs(v))
    p = np.float32(1.061405429 / 2) * t + np.float32(-1.453152027 / 2)
    p = p * t + np.float32(1.421413741 / 2)
    p = p * t + np.float32(-0.284496736 / 2)
    return (p * t + np.float32(0.254829592 / 2)) * t * e


@cuda.jit(device=True)
def inverse(v):
    return cuda.libdevice.fast_fdividef(np.float32(1), v)


@cuda.jit(device=True)
def logistic_short(v):
    """The sigmoid. As with `logistic`, no exponential overflows: the quotient of a number above 2^126 would be 0."""
    e = cuda.libdevice.fast_expf(-abs(v))
    t = inverse(np.float32(1) + e)
    return t if v >= np.float32(0) else e * t


@cuda.jit(device=True)
def activate_short(function, v, slope):
    """The function of one number, for a result of 16 bits."""
    zero = np.float32(0)
    if function == RELU:
        return zero if v <= zero else v
    if function == LEAKY_RELU:
        return v if v > zero else v * slope
    if function == TANH:
        return math.tanh(v)
    if function == SIGMOID:
        return logistic_short(v)
    v = above(v)
    if function == SILU:
        return v * logistic_short(v)
    if function == GELU:
        tail = upper_tail(v, cuda.libdevice.fast_expf(np.float32(-0.5) * v * v))
        return v * (np.float32(1) - tail if v >= np.float32(0) else tail)
    cube = np.float32(0.044715) * v * v * v  # 1 + tanh(u) is twice the sigmoid of 2 u; the factor is 2 sqrt(2 / pi)
    return v * logistic_short(np.float32(1.5957691216057308) * (v + cube))


@cuda.jit(device=True)
def activate(function, v, slope):
    """The function of one number. All threads take the same branch: it is one function a launch."""
    zero, half, one = np.float32(0), np.float32(0.5), np.float32(1)
    if function == RELU:
        return zero if v <= zero else v  # NaN <= 0 is false: it passes
    if function == LEAKY_RELU:
        return v if v > zero else v * slope
    if function == SIGMOID:
        return logistic(v)
    if function == TANH:
        return math.tanh(v)
    if function == SILU:
        v = above(v)
        return v * logistic(v)
    if function == GELU:
        v = above(v)
        return half * v * (one + math.erf(v * np.float32(0.7071067811865476)))  # 1 / sqrt(2)
    v = above(v)
    cube = np.float32(0.044715) * v * v * v
    return half * v * (one + math.tanh(np.float32(0.7978845608028654) * (v + cube)))  # sqrt(2 / pi)


@cuda.jit(device=True)
def activate_as(x, function, v, slope):
    """The function of one number, as precise as an element of ``x``: known when the kernel is compiled."""
    if width128(x) == 8:
        return activate_short(function, v, slope)
    return activate(function, v, slope)


# -------------------------------------------------------------------------------------------------- a thread an element


@cuda.jit
def elementwise_kernel(x, function, slope, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = activate_as(x, function, widened(x[i]), slope)


@cuda.jit
def bias_kernel(x, bias, inner, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = widened(x[i]) + widened(bias[i // inner % bias.size])


@rung(elementwise_kernel, bias_kernel)
def elementwise(p):
    """One thread for each element; a bias is added by a kernel of its own before.

    Leaves: a thread asks for 4 bytes and is over.
    """
    x, grid = p.x, blocks(p.x.size, BLOCK)
    if p.bias is not None:
        bias_kernel[grid, BLOCK, p.stream](x, p.bias, p.inner, p.out)
        x = p.out
    elementwise_kernel[grid, BLOCK, p.stream](x, p.function, p.slope, p.out)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit(device=True)
def activate_vector(function, v, slope):
    """The function of four or of eight numbers."""
    if len(v) == 8:
        return activate_eight(function, v, slope)
    return activate_four(function, v, slope)


@cuda.jit(device=True)
def activate_eight(function, v, slope):
    """One branch for all eight: `activate_twice` is given a constant, and what it computes can overlap."""
    if function == RELU:
        return activate_twice(RELU, v, slope)
    if function == LEAKY_RELU:
        return activate_twice(LEAKY_RELU, v, slope)
    if function == SIGMOID:
        return activate_twice(SIGMOID, v, slope)
    if function == TANH:
        return activate_twice(TANH, v, slope)
    if function == SILU:
        return activate_twice(SILU, v, slope)
    if function == GELU:
        return activate_twice(GELU, v, slope)
    return activate_twice(GELU_TANH, v, slope)


@cuda.jit(device=True)
def activate_twice(function, v, slope):
    return short_four(function, v[:4], slope) + short_four(function, v[4:], slope)


@cuda.jit(device=True)
def short_four(function, v, slope):
    return (
        activate_short(function, v[0], slope),
        activate_short(function, v[1], slope),
        activate_short(function, v[2], slope),
        activate_short(function, v[3], slope),
    )


@cuda.jit(device=True)
def activate_four(function, v, slope):
    return (
        activate(function, v[0], slope),
        activate(function, v[1], slope),
        activate(function, v[2], slope),
        activate(function, v[3], slope),
    )


@cuda.jit
def vectorised_kernel(x, function, slope, out, head, tail):
    thread = cuda.grid(1)
    i = head + width128(x) * thread
    if i < tail:
        store128(out, i, activate_vector(function, widened(load128(x, i)), slope))
    # What lies before and after the vectors, one element a thread.
    if thread < head:
        out[thread] = activate_as(x, function, widened(x[thread]), slope)
    if tail + thread < x.size:
        out[tail + thread] = activate_as(x, function, widened(x[tail + thread]), slope)


@cuda.jit(device=True)
def add_bias(v, i, bias, inner):
    """The four or eight elements from i on, and what their channels add.

    Each channel has ``inner`` neighbours at a time.
    """
    if len(v) == 8:
        return add_bias_to_eight(v, i, bias, inner)
    return add_bias_to_four(v, i, bias, inner)


@cuda.jit(device=True)
def add_bias_to_eight(v, i, bias, inner):
    plane = np.int64(np.uint64(i) // np.uint64(inner))
    if i - plane * inner + 8 <= inner:
        b = widened(bias[np.int64(np.uint64(plane) % np.uint64(bias.size))])
        return v[0] + b, v[1] + b, v[2] + b, v[3] + b, v[4] + b, v[5] + b, v[6] + b, v[7] + b
    return add_bias_to_four(v[:4], i, bias, inner) + add_bias_to_four(v[4:], i + 4, bias, inner)


@cuda.jit(device=True)
def add_bias_to_four(v, i, bias, inner):
    plane = np.int64(np.uint64(i) // np.uint64(inner))  # no sign: a division of numbers below 2^32 takes 32 bits
    place = i - plane * inner
    channel = np.int64(np.uint64(plane) % np.uint64(bias.size))
    b = widened(bias[channel])
    if place + 4 <= inner:
        return v[0] + b, v[1] + b, v[2] + b, v[3] + b
    place, channel = after(place, channel, inner, bias.size)
    c = widened(bias[channel])
    place, channel = after(place, channel, inner, bias.size)
    d = widened(bias[channel])
    place, channel = after(place, channel, inner, bias.size)
    return v[0] + b, v[1] + c, v[2] + d, v[3] + widened(bias[channel])


@cuda.jit(device=True)
def after(place, channel, inner, channels):
    """The next place, and its channel."""
    if place + 1 < inner:
        return place + 1, channel
    return 0, channel + 1 if channel + 1 < channels else 0


@cuda.jit(device=True)
def biased(x, i, bias, inner):
    """One element and its bias."""
    return widened(x[i]) + widened(bias[i // inner % bias.size])


@cuda.jit
def bias_vectors_kernel(x, bias, inner, out, head, tail):
    thread = cuda.grid(1)
    i = head + width128(x) * thread
    if i < tail:
        store128(out, i, add_bias(widened(load128(x, i)), i, bias, inner))
    if thread < head:
        out[thread] = biased(x, thread, bias, inner)
    if tail + thread < x.size:
        out[tail + thread] = biased(x, tail + thread, bias, inner)


def grid_and_span(x, out) -> tuple[int, int, int]:
    """Blocks, and the elements [head:tail] that are whole vectors in both; if they lie differently, there are none."""
    head, tail, width = vector_span(x, out)
    threads = max(head, (tail - head) // width, x.size - tail)
    return blocks(threads, BLOCK), head, tail


@rung(vectorised_kernel, bias_vectors_kernel)
def vectorised(p):
    """A thread loads 128 bits, works on four numbers (on eight of 16 bits), and stores 128 bits.

    What is no whole 16-byte vector of ``x`` and of ``out`` is moved one element at a time. A thread has one load, not
    several: where as much is written as is read, four loads a thread reached less of an H200's bandwidth than
    `pmpp.kernels.vector_add.copy` does with one.

    Leaves: with a bias, what one kernel has just written the next one reads back: 16 bytes an element instead of 8.
    """
    x = p.x
    if p.bias is not None:
        grid, head, tail = grid_and_span(x, p.out)
        bias_vectors_kernel[grid, BLOCK, p.stream](x, p.bias, p.inner, p.out, head, tail)
        x = p.out
    grid, head, tail = grid_and_span(x, p.out)
    vectorised_kernel[grid, BLOCK, p.stream](x, p.function, p.slope, p.out, head, tail)


# ------------------------------------------------------------------------------------------------------ as an epilogue


@cuda.jit
def fused_kernel(x, bias, inner, function, slope, out, head, tail):
    thread = cuda.grid(1)
    i = head + width128(x) * thread
    if i < tail:
        store128(out, i, activate_vector(function, add_bias(widened(load128(x, i)), i, bias, inner), slope))
    if thread < head:
        out[thread] = activate_as(x, function, biased(x, thread, bias, inner), slope)
    if tail + thread < x.size:
        out[tail + thread] = activate_as(x, function, biased(x, tail + thread, bias, inner), slope)


@rung(fused_kernel, vectorised_kernel)
def fused(p):
    """The bias is added in registers, on the way to the function: one kernel, which reads once and writes once.

    Without a bias it is `vectorised`.
    """
    if p.bias is None:
        vectorised.launch(p)
    else:
        grid, head, tail = grid_and_span(p.x, p.out)
        fused_kernel[grid, BLOCK, p.stream](p.x, p.bias, p.inner, p.function, p.slope, p.out, head, tail)


LADDER = (elementwise, vectorised, fused)
