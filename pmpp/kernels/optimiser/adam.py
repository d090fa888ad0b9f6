"""Adam: a step along the mean gradient, over the root of the mean squared gradient.

Chapter: notebooks/82_optimisers.ipynb.  PMPP 4e ch. 6.

An element takes some fifteen operations. It is read in four arrays and written in three, 28 bytes, so memory is the
bound by far. What a version can lose is bytes, by moving results between kernels through memory, and time between
kernels: a network has a hundred tensors, most of them small.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.optimiser import tensors
from pmpp.kernels.optimiser.tensors import BLOCK, CHUNK, f0
from pmpp.runtime import device
from pmpp.runtime.addresses import array_at
from pmpp.runtime.check import as_flag, as_integer, as_number
from pmpp.runtime.rung import Cost, Problem, rung
from pmpp.runtime.vector import load128, store128

LARGEST = float(np.finfo(np.float32).max)


def reference(
    parameter: np.ndarray,
    gradient: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    step: int = 1,
) -> np.ndarray:
    """The new parameter, first and second moment, one above the other, in float64. Arguments as in `arguments`."""
    p, g, m, v = (x.astype(np.float64) for x in (parameter, gradient, first, second))
    with np.errstate(all="ignore"):
        if weight_decay and decoupled:
            p = p - lr * weight_decay * p
        elif weight_decay:
            g = g + weight_decay * p
        m = m + (1 - betas[0]) * (g - m)
        v = betas[1] * v + (1 - betas[1]) * g * g
        v = np.where(v > LARGEST, np.inf, v)  # float32 cannot hold it, and the step that follows is 0
        mean, mean_square = m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)
        p = p - lr * mean / (np.sqrt(mean_square) + eps)
    return np.stack([p, m, v])


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(parameter, gradient, first, second)`` with or without further arguments."""
    rng = np.random.default_rng(82) if rng is None else rng

    def state(shape: int | tuple[int, ...], scale: float = 1.0) -> tuple:
        p, g, m, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
        return p, np.float32(scale) * g, np.float32(0.1 * scale) * m, np.float32(0.01 * scale**2) * v * v

    made: dict[str, tuple] = {f"n = {n}": state(n) for n in (0, 1, 3, 4, BLOCK + 1, CHUNK - 1, CHUNK, CHUNK + 1)}
    made["a matrix"] = state((7, 33))
    made["many blocks"] = state(5 * CHUNK + 2)
    p, g, *_ = state(65)
    nothing = np.zeros_like(p)
    made["the first step"] = p, g, nothing, nothing
    made["no gradient yet"] = p, nothing, nothing, nothing
    made["L2"] = *state(300), 0.01, (0.9, 0.999), 1e-8, 0.1, False, 3
    made["decoupled"] = *state(300), 0.01, (0.9, 0.999), 1e-8, 0.1, True, 3
    made["late"] = *state(70), 0.002, (0.9, 0.999), 1e-8, 0.0, False, 100_000
    made["no momentum"] = *state(70), 0.1, (0.0, 0.0), 1e-3, 0.0, False, 2
    made["short memory"] = *state(70), 0.1, (0.3, 0.5), 1e-6, 0.01, True, 2
    made["no step"] = *state(70), 0.0, (0.9, 0.999), 1e-8, 0.5, True, 7
    made["large gradients"] = state(70, 1e15)
    made["tiny gradients"] = state(70, 1e-12)
    p, g, m, v = state(70)
    g[:6] = np.inf, -np.inf, np.nan, 1e20, -3e30, 1e-30
    made["not finite"] = p, g, m, v
    return made


def tolerance(
    parameter: np.ndarray,
    gradient: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    step: int = 1,
) -> np.ndarray:
    """How far from the reference is right, element by element.

    Each operation and each constant is rounded once, by u = 2^-24 of its result. To the gradient a decay adds 3 u of
    the terms of a sum. The first moment takes four more, of the sizes of m and g; the second, whose terms are positive,
    five of its result, and twice what the gradient was wrong by. The denominator has half of that error, and five
    roundings. Their quotient moves the parameter, which is rounded with it. Numbers below 2^-126 may be lost.
    """
    u, tiny = 2.0**-24, 2.0**-126
    p, g, m = (np.abs(x.astype(np.float64)) for x in (parameter, gradient, first))
    new_p, new_m, new_v = reference(parameter, gradient, first, second, lr, betas, eps, weight_decay, decoupled, step)
    with np.errstate(all="ignore"):
        decay = 0.0 if decoupled else weight_decay
        of_g = 3 * u * decay * p + (u * g if decay else 0)
        g = g + decay * p
        of_m = 5 * u * (m + g) + of_g + tiny
        of_v = 6 * u * new_v + 3 * (1 - betas[1]) * g * of_g + tiny
        root = math.sqrt(1 - betas[1] ** step)
        d = np.sqrt(new_v) / root + eps
        of_root = np.minimum(of_v / np.sqrt(np.maximum(new_v, tiny)), np.sqrt(of_v)) / root
        of_d = of_root + 5 * u * d
        size = lr / (1 - betas[0] ** step)
        moved = size * np.abs(new_m) / d
        of_p = size * of_m / d + moved * of_d / d + 5 * u * moved + 4 * u * np.abs(p) + u * np.abs(new_p) + tiny
    allowed = np.stack([of_p, of_m, of_v])
    return np.where(np.isfinite(allowed), allowed, 0.0)  # an infinite moment: what is not finite must be the very same


def cost(n: int) -> Cost:
    """For ``n`` parameters: four numbers read and three written, 28 bytes.

    Thirteen operations: 3 for the first moment, 4 for the second, and a root, a product, a sum, a quotient, a product
    and a difference for the step; the corrections of both moments are the same number for all.
    """
    return Cost(flops=13 * n, bytes=28 * n)


class Hyper(typing.NamedTuple):
    """The numbers of a step, in float32, made from Python's in float64."""

    keep: np.float32  # 1 - lr * weight_decay, by which a decoupled decay shrinks the parameter; else 1
    decay: np.float32  # weight_decay where it is added to the gradient; else 0
    new: np.float32  # 1 - beta 1
    beta: np.float32  # beta 2
    new_square: np.float32  # 1 - beta 2
    root: np.float32  # 1 / sqrt(1 - beta 2^step)
    eps: np.float32
    size: np.float32  # lr / (1 - beta 1^step)


def hyper(lr: float, betas: tuple, eps: float, weight_decay: float, decoupled: bool, step: int) -> Hyper:
    """The numbers of a step; what depends on the number of the step is computed once, here, and not in every thread."""
    numbers = (
        1 - lr * weight_decay if decoupled else 1.0,
        0.0 if decoupled else weight_decay,
        1 - betas[0],
        betas[1],
        1 - betas[1],
        1 / math.sqrt(1 - betas[1] ** step),
        eps,
        lr / (1 - betas[0] ** step),
    )
    return Hyper(*map(np.float32, numbers))


def checked(lr, betas, eps, weight_decay, decoupled) -> tuple:
    """The arguments that are numbers, in float64. Raises what `arguments` raises."""
    lr, eps = (float(as_number(name, x, 0, dtype=np.float64)) for name, x in (("lr", lr), ("eps", eps)))
    weight_decay = float(as_number("weight_decay", weight_decay, 0, dtype=np.float64))
    for name, x in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        as_number(name, x, 0)  # the kernels have it as a float32
    pair = isinstance(betas, list | tuple) and len(betas) == 2
    if not pair or not all(type(one) is not bool and isinstance(one, int | float | np.number) for one in betas):
        raise TypeError(f"betas must be two numbers in a tuple, was {betas!r}")
    if not all(0 <= one < 1 for one in betas):
        raise ValueError(f"betas must be two numbers from 0 to less than 1, was {betas!r}")
    return lr, tuple(map(float, betas)), eps, weight_decay, as_flag("decoupled", decoupled)


def arguments(
    parameters,
    gradients,
    first,
    second,
    lr=1e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    decoupled=False,
    step=1,
    *,
    out=None,
    stream=0,
) -> Problem:
    """One step of Adam, for one tensor or for a list of them. `adam_` does the same in place.

    ::

        g = gradient + weight_decay * parameter       (decoupled: parameter = (1 - lr * weight_decay) * parameter)
        first  = betas[0] * first  + (1 - betas[0]) * g
        second = betas[1] * second + (1 - betas[1]) * g^2
        parameter -= lr * (first / (1 - betas[0]^step)) / (sqrt(second / (1 - betas[1]^step)) + eps)

    Args:
        parameters: an array of any shape, float32, contiguous; or a list of such arrays.
        gradients, first, second: for each parameter an array of its shape: its gradient, and the moments after the
            steps before, which are 0 at first.
        lr: how far a step goes, 0 or more.
        betas: how much of each moment stays, two numbers from 0 to less than 1.
        eps: what is added to the root, 0 or more.
        weight_decay: 0 or more.
        decoupled: True to shrink the parameter itself, which is AdamW; False to add the decay to the gradient.
        step: the number of this step; the first is 1.
        out: for each parameter a device array (3, *shape) of float32 apart from all others in memory, or None to
            allocate them.
        stream: the stream to work on.

    Returns for each parameter an array (3, *shape): the new parameter and its new moments. For a list it returns a
    tuple of these. It does not wait for the work to be done. A gradient that is not finite makes its parameter NaN.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: D. Kingma and J. Ba, Adam (arXiv:1412.6980); I. Loshchilov and F. Hutter, Decoupled weight decay
    regularization (arXiv:1711.05101); PyTorch's torch.optim.Adam and AdamW, whose weight_decay is 0.01 by default.

    >>> from pmpp.kernels.optimiser import adam
    >>> w, g, nothing = np.float32([1]), np.float32([0.5]), np.float32([0])
    >>> adam.fused(w, g, nothing, nothing, 0.1).copy_to_host().round(6)
    array([[9.0e-01],
           [5.0e-02],
           [2.5e-04]], dtype=float32)
    """
    stream = device.as_stream(stream)
    lr, betas, eps, weight_decay, decoupled = checked(lr, betas, eps, weight_decay, decoupled)
    step = as_integer("step", step, 1)
    parameters, several = (
        tensors.given("parameters", parameters, None, update=False, stream=stream),
        _listed(parameters),
    )
    groups = {"gradients": gradients, "first": first, "second": second}
    groups = {
        name: tensors.given(name, arrays, parameters, update=False, stream=stream) for name, arrays in groups.items()
    }
    apart = tensors.named(parameters=parameters, **groups)
    outs = tensors.results(out, 3, parameters, several, apart, stream)
    # Each as one row of numbers, whatever its shape.
    read = tuple(tuple(x.reshape(-1) for x in arrays) for arrays in (parameters, *groups.values()))
    written = tuple(tuple(one.reshape(3, -1)[row] for one in outs) for row in range(3))
    return Problem(
        outs if several else outs[0],
        stream=stream,
        read=read,
        written=written,
        hyper=hyper(lr, betas, eps, weight_decay, decoupled, step),
        factors=none(),
    )


def _listed(arrays: typing.Any) -> bool:
    return isinstance(arrays, list | tuple)


@device.cached(1)
def none() -> typing.Any:
    """No factors: an array without elements."""
    return device.empty(0, np.float32)


# ------------------------------------------------------------------------------------------------ a kernel an operation


@cuda.jit
def sum_kernel(x, a, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + a * y[i]


@cuda.jit
def lerp_kernel(x, y, weight, out):
    i = cuda.grid(1)
    if i < out.size:
        value = x[i]
        out[i] = value + weight * (y[i] - value)


@cuda.jit
def scale_kernel(x, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i]


@cuda.jit
def add_square_kernel(x, a, y, out):
    i = cuda.grid(1)
    if i < out.size:
        value = y[i]
        out[i] = x[i] + a * value * value


@cuda.jit
def root_kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = math.sqrt(x[i])


@cuda.jit
def shift_kernel(x, a, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + a


@cuda.jit
def add_quotient_kernel(x, a, y, z, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + a * y[i] / z[i]


@rung(sum_kernel, lerp_kernel, scale_kernel, add_square_kernel, root_kernel, shift_kernel, add_quotient_kernel)
def per_operation(p):
    """A kernel for each operation, as the formulas stand: seven launches a tensor, or eight with a decay.

    Leaves: every intermediate result goes to memory and comes back: 80 bytes a parameter for AdamW instead of 28.
    """
    h = p.hyper
    for parameter, gradient, first, second, new_parameter, new_first, new_second in zip(
        *p.read, *p.written, strict=True
    ):
        n = parameter.size
        if n == 0:
            continue
        grid = blocks(n, BLOCK)
        work = device.empty(n, np.float32, stream=p.stream)
        if h.decay:
            sum_kernel[grid, BLOCK, p.stream](gradient, h.decay, parameter, work)
            gradient = work
        if h.keep != 1:
            scale_kernel[grid, BLOCK, p.stream](parameter, h.keep, new_parameter)
            parameter = new_parameter
        lerp_kernel[grid, BLOCK, p.stream](first, gradient, h.new, new_first)
        scale_kernel[grid, BLOCK, p.stream](second, h.beta, new_second)
        add_square_kernel[grid, BLOCK, p.stream](new_second, h.new_square, gradient, new_second)
        root_kernel[grid, BLOCK, p.stream](new_second, work)
        scale_kernel[grid, BLOCK, p.stream](work, h.root, work)
        shift_kernel[grid, BLOCK, p.stream](work, h.eps, work)
        add_quotient_kernel[grid, BLOCK, p.stream](parameter, -h.size, new_first, work, new_parameter)


# --------------------------------------------------------------------------------------------------- a kernel a tensor


@cuda.jit(device=True)
def advance(p, g, m, v, h, root, size, keep):
    """One parameter and its moments after a step. The three factors depend on the number of the step."""
    if h.decay > f0:  # in all threads, or in none: 0 times an infinite parameter would be NaN
        g += h.decay * p
    m += h.new * (g - m)
    v = h.beta * v + h.new_square * g * g
    return keep * p - size * m / (math.sqrt(v) * root + h.eps), m, v


@cuda.jit
def fused_kernel(parameter, gradient, first, second, new_parameter, new_first, new_second, h):
    i = cuda.grid(1)
    if i < parameter.size:
        p, m, v = advance(parameter[i], gradient[i], first[i], second[i], h, h.root, h.size, h.keep)
        new_parameter[i], new_first[i], new_second[i] = p, m, v


@rung(fused_kernel)
def fused(p):
    """One kernel for a tensor does all operations in registers: four numbers come in, three go out.

    Leaves: a launch for each tensor. Most tensors of a network are so small that the GPU is hardly begun when they end.
    """
    for arrays in zip(*p.read, *p.written, strict=True):
        if arrays[0].size:
            fused_kernel[blocks(arrays[0].size, BLOCK), BLOCK, p.stream](*arrays, p.hyper)


# ------------------------------------------------------------------------------------------------ a launch for them all


@cuda.jit(device=True)
def factors_of(factors, h):
    """What depends on the number of the step: from the host, or where a graph counts the steps, from the device."""
    if factors.size == 3:
        return factors[0], factors[1], factors[2]
    return h.root, h.size, h.keep


@cuda.jit
def one_launch_kernel(table, chunks, h, factors):
    tensor, chunk = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, table.shape[1] - 1]
    parameter = array_at(table[tensor, 0], n, np.float32)
    gradient = array_at(table[tensor, 1], n, np.float32)
    first = array_at(table[tensor, 2], n, np.float32)
    second = array_at(table[tensor, 3], n, np.float32)
    new_parameter, new_first, new_second = (
        array_at(table[tensor, 4], n, np.float32),
        array_at(table[tensor, 5], n, np.float32),
        array_at(table[tensor, 6], n, np.float32),
    )
    root, size, keep = factors_of(factors, h)
    begin = np.int64(chunk) * CHUNK
    for i in range(begin + cuda.threadIdx.x, min(begin + CHUNK, parameter.size), BLOCK):
        p, m, v = advance(parameter[i], gradient[i], first[i], second[i], h, root, size, keep)
        new_parameter[i], new_first[i], new_second[i] = p, m, v


@rung(one_launch_kernel)
def one_launch(p):
    """One launch for all tensors: a table on the device has their addresses, and says for each block where it works.

    Source: PyTorch's multi_tensor_apply, which passes the addresses of some thirty tensors as arguments of a kernel.

    Leaves: a load has 4 bytes, and in a loop one waits for the one before.
    """
    _launch(p, one_launch_kernel)


def _launch(p, kernel):
    """Launch a kernel that takes tables, with a block for each chunk."""
    table, chunks = tensors.tables(*p.read, *p.written, stream=p.stream)
    kernel[chunks.shape[0], BLOCK, p.stream](table, chunks, p.hyper, p.factors)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit
def vectorised_kernel(table, chunks, h, factors):
    tensor, chunk = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, table.shape[1] - 1]
    parameter = array_at(table[tensor, 0], n, np.float32)
    gradient = array_at(table[tensor, 1], n, np.float32)
    first = array_at(table[tensor, 2], n, np.float32)
    second = array_at(table[tensor, 3], n, np.float32)
    new_parameter, new_first, new_second = (
        array_at(table[tensor, 4], n, np.float32),
        array_at(table[tensor, 5], n, np.float32),
        array_at(table[tensor, 6], n, np.float32),
    )
    root, size, keep = factors_of(factors, h)
    i = np.int64(chunk) * CHUNK + 4 * cuda.threadIdx.x
    if i < table[tensor, 7]:  # the elements that are whole vectors
        p, g, m, v = load128(parameter, i), load128(gradient, i), load128(first, i), load128(second, i)
        p0, m0, v0 = advance(p[0], g[0], m[0], v[0], h, root, size, keep)
        p1, m1, v1 = advance(p[1], g[1], m[1], v[1], h, root, size, keep)
        p2, m2, v2 = advance(p[2], g[2], m[2], v[2], h, root, size, keep)
        p3, m3, v3 = advance(p[3], g[3], m[3], v[3], h, root, size, keep)
        store128(new_parameter, i, (p0, p1, p2, p3))
        store128(new_first, i, (m0, m1, m2, m3))
        store128(new_second, i, (v0, v1, v2, v3))
    else:
        for j in range(i, min(i + 4, parameter.size)):
            a, b, c = advance(parameter[j], gradient[j], first[j], second[j], h, root, size, keep)
            new_parameter[j], new_first[j], new_second[j] = a, b, c


@rung(vectorised_kernel)
def vectorised(p):
    """The same, 128 bits at a time: a thread has 64 bytes on their way before it needs the first of them.

    A tensor whose arrays do not all begin at a multiple of 16 bytes is moved one element at a time.
    """
    _launch(p, vectorised_kernel)


LADDER = (per_operation, fused, one_launch, vectorised)
