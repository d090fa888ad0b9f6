"""Gradient descent: a step against the gradient, or against a running sum of gradients.

Chapter: notebooks/82_optimisers.ipynb.  PMPP 4e ch. 6.

Without momentum an element is read in two arrays and written in one, 12 bytes; with momentum it is 20. That is for two
to eight operations, so memory is the bound.
"""

from __future__ import annotations

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


def reference(
    parameter: np.ndarray,
    gradient: np.ndarray,
    sum_before: np.ndarray | None = None,
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    step: int | None = None,
) -> np.ndarray:
    """The new parameter, and below it the new running sum if there is one, in float64. Arguments as in `arguments`."""
    p, g = parameter.astype(np.float64), gradient.astype(np.float64)
    with np.errstate(all="ignore"):
        if weight_decay:
            g = g + weight_decay * p
        if sum_before is None:
            return np.stack([p - lr * g])
        b = g if step == 1 else momentum * sum_before.astype(np.float64) + (1 - dampening) * g
        return np.stack([p - lr * (g + momentum * b if nesterov else b), b])


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and ``(parameter, gradient)``, with a running sum and numbers or without."""
    rng = np.random.default_rng(28) if rng is None else rng

    def state(shape: int | tuple[int, ...], arrays: int = 2) -> tuple:
        return tuple(rng.standard_normal(shape).astype(np.float32) for _ in range(arrays))

    made: dict[str, tuple] = {f"n = {n}": state(n) for n in (0, 1, 3, BLOCK + 1, CHUNK - 1, CHUNK)}
    made["a matrix"] = state((7, 33))
    made["many blocks"] = *state(5 * CHUNK + 2, 3), 0.1, 0.9
    made["L2"] = *state(70), None, 0.1, 0.0, 0.0, 0.5
    made["momentum"] = *state(CHUNK + 1, 3), 0.1, 0.9
    made["dampening"] = *state(70, 3), 0.1, 0.9, 0.5, 0.01
    made["dampening, first step"] = *state(70, 3), 0.1, 0.9, 0.5, 0.01, False, 1
    made["Nesterov"] = *state(71, 3), 0.1, 0.9, 0.0, 0.01, True
    made["Nesterov, first step"] = *state(71, 3), 0.1, 0.9, 0.0, 0.0, True, 1
    made["no step"] = *state(5), None, 0.0
    p, g, b = state(70, 3)
    g[:4] = np.inf, -np.inf, np.nan, 1e30
    made["not finite"] = p, g, b, 0.1, 0.9
    made["not finite, plain"] = p, g
    return made


def tolerance(
    parameter: np.ndarray,
    gradient: np.ndarray,
    sum_before: np.ndarray | None = None,
    lr: float = 1e-3,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    step: int | None = None,
) -> np.ndarray:
    """How far from the reference is right: each of at most ten roundings is 2^-24 of the sum of the terms' sizes."""
    sizes = [np.abs(parameter), np.abs(gradient), None if sum_before is None else np.abs(sum_before)]
    with np.errstate(invalid="ignore"):
        p, g = (x.astype(np.float64) for x in sizes[:2])
        g = g + weight_decay * p
        if sum_before is None:
            terms = [p + lr * g]
        else:
            b = g if step == 1 else momentum * sizes[2].astype(np.float64) + g
            terms = [p + lr * (g + momentum * b if nesterov else b), b]
    allowed = 10 * 2.0**-24 * np.stack(terms) + 2.0**-126
    return np.where(np.isfinite(allowed), allowed, 0.0)


def cost(n: int, momentum: bool = False) -> Cost:
    """For ``n`` parameters: two numbers read and one written; with momentum three read and two written.

    A product and a difference; with momentum a product and a sum more.
    """
    return Cost(flops=(4 if momentum else 2) * n, bytes=(20 if momentum else 12) * n)


class Hyper(typing.NamedTuple):
    """The numbers of a step, in float32."""

    lr: np.float32
    momentum: np.float32  # 0 where there is no running sum
    keep: np.float32  # of the running sum: momentum, or 0 in the first step
    new: np.float32  # of the gradient: 1 - dampening, or 1 in the first step
    decay: np.float32
    nesterov: bool


def hyper(lr, momentum, dampening, weight_decay, nesterov, step, momenta) -> Hyper:
    """The numbers of a step, checked. Raises what `arguments` raises."""
    numbers = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    for name, x in numbers.items():
        as_number(name, x, 0)
        numbers[name] = float(as_number(name, x, 0, dtype=np.float64))
    nesterov = as_flag("nesterov", nesterov)
    step = step if step is None else as_integer("step", step, 1)
    summed = momenta is not None
    if summed != bool(numbers["momentum"]):
        be, was = ("be left out", type(momenta).__name__) if summed else ("be given", None)
        raise ValueError(f"momenta must {be} with momentum={momentum!r}, was {was}")
    if nesterov and (not summed or dampening):
        raise ValueError(
            f"nesterov must be False with momentum={momentum!r} and dampening={dampening!r}, was True: it needs a "
            "momentum and no dampening"
        )
    first = step == 1
    rest = numbers["momentum"], 0.0 if first else numbers["momentum"], 1.0 if first else 1 - numbers["dampening"]
    return Hyper(*map(np.float32, (numbers["lr"], *rest, numbers["weight_decay"])), nesterov)


def arguments(
    parameters,
    gradients,
    momenta=None,
    lr=1e-3,
    momentum=0.0,
    dampening=0.0,
    weight_decay=0.0,
    nesterov=False,
    step=None,
    *,
    out=None,
    stream=0,
) -> Problem:
    """One step of gradient descent, for one tensor or for a list of them. `sgd_` does the same in place.

    ::

        g = gradient + weight_decay * parameter
        sum = momentum * sum + (1 - dampening) * g       (in the first step: sum = g)
        parameter -= lr * sum                            (nesterov: lr * (g + momentum * sum); no momentum: lr * g)

    Args:
        parameters: an array of any shape, float32, contiguous; or a list of such arrays.
        gradients: for each parameter an array of its shape.
        momenta: the same, the running sums; None without momentum.
        lr: how far a step goes, 0 or more.
        momentum, dampening: 0 or more.
        weight_decay: 0 or more.
        nesterov: True to look one step ahead; it needs a momentum, and dampening 0.
        step: the number of this step, 1 for the first, in which the running sums are set and not read; or None for a
            later one. With running sums that are 0 at first this makes a difference only where there is dampening.
        out: for each parameter a device array (rows, *shape) of float32 apart from all others in memory, with two rows,
            or one without momentum; or None to allocate them.
        stream: the stream to work on.

    Returns for each parameter an array (2, *shape), the new parameter and the new sum, or (1, *shape) without momentum.
    For a list it returns a tuple of these. It does not wait for the work to be done.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: I. Sutskever and others, On the importance of initialization and momentum in deep learning (2013); PyTorch's
    torch.optim.SGD.

    >>> from pmpp.kernels.optimiser import sgd
    >>> sgd.fused(np.float32([1]), np.float32([0.5]), np.float32([1]), 0.1, 0.9).copy_to_host()
    array([[0.86],
           [1.4 ]], dtype=float32)
    """
    stream = device.as_stream(stream)
    several = isinstance(parameters, list | tuple)
    numbers = hyper(lr, momentum, dampening, weight_decay, nesterov, step, momenta)
    parameters = tensors.given("parameters", parameters, None, update=False, stream=stream)
    gradients = tensors.given("gradients", gradients, parameters, update=False, stream=stream)
    groups = {"parameters": parameters, "gradients": gradients}
    if momenta is not None:
        groups["momenta"] = tensors.given("momenta", momenta, parameters, update=False, stream=stream)
    rows = len(groups) - 1
    outs = tensors.results(out, rows, parameters, several, tensors.named(**groups), stream)
    read = tuple(tuple(x.reshape(-1) for x in arrays) for arrays in groups.values())
    written = tuple(tuple(one.reshape(rows, -1)[row] for one in outs) for row in range(rows))
    return Problem(outs if several else outs[0], stream=stream, **all_of(read, written), hyper=numbers)


def all_of(read: tuple, written: tuple) -> dict[str, tuple]:
    """What kernels read and write. Without momentum others stand for the running sums, which nobody then touches."""
    return {"read": (*read, read[1])[:3], "written": (*written, written[0])[:2]}


# --------------------------------------------------------------------------------------------------- a kernel a tensor


@cuda.jit(device=True)
def decayed(p, g, h):
    """The gradient, with the decay of the weight."""
    return g + h.decay * p if h.decay > f0 else g


@cuda.jit(device=True)
def gathered(g, b, h):
    """The running sum with one more gradient. In the first step it may hold anything, and 0 times NaN is NaN."""
    return h.keep * b + h.new * g if h.keep > f0 else h.new * g


@cuda.jit(device=True)
def along(g, b, h):
    """Where the step goes, by the gradient and the new running sum."""
    return g + h.momentum * b if h.nesterov else b


@cuda.jit(device=True)
def descend(p, g, b, h):
    """One parameter and its running sum after a step."""
    g = decayed(p, g, h)
    if h.momentum > f0:
        b = gathered(g, b, h)
        g = along(g, b, h)
    return p - h.lr * g, b


@cuda.jit
def fused_kernel(parameter, gradient, total, new_parameter, new_total, h):
    i = cuda.grid(1)
    if i < parameter.size:
        if h.momentum > f0:  # in all threads, or in none
            new_parameter[i], new_total[i] = descend(parameter[i], gradient[i], total[i], h)
        else:
            new_parameter[i], _ = descend(parameter[i], gradient[i], f0, h)


@rung(fused_kernel)
def fused(p):
    """One kernel for a tensor: what it reads goes through registers and is written once.

    Leaves: a launch for each tensor.
    """
    for arrays in zip(*p.read, *p.written, strict=True):
        if arrays[0].size:
            fused_kernel[blocks(arrays[0].size, BLOCK), BLOCK, p.stream](*arrays, p.hyper)


# ------------------------------------------------------------------------------------------------ a launch for them all


@cuda.jit
def one_launch_kernel(table, chunks, h):
    tensor, chunk = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, table.shape[1] - 1]
    parameter, gradient, total = (
        array_at(table[tensor, 0], n, np.float32),
        array_at(table[tensor, 1], n, np.float32),
        array_at(table[tensor, 2], n, np.float32),
    )
    new_parameter = array_at(table[tensor, 3], n, np.float32)
    new_total = array_at(table[tensor, 4], n, np.float32)
    begin = np.int64(chunk) * CHUNK
    for i in range(begin + cuda.threadIdx.x, min(begin + CHUNK, parameter.size), BLOCK):
        if h.momentum > f0:
            new_parameter[i], new_total[i] = descend(parameter[i], gradient[i], total[i], h)
        else:
            new_parameter[i], _ = descend(parameter[i], gradient[i], f0, h)


@rung(one_launch_kernel)
def one_launch(p):
    """One launch for all tensors, by a table of their addresses, as for Adam.

    Leaves: a load has 4 bytes, and in a loop one waits for the one before.
    """
    _launch(p, one_launch_kernel)


def _launch(p, kernel):
    """Launch a kernel that takes tables, with a block for each chunk."""
    table, chunks = tensors.tables(*p.read, *p.written, stream=p.stream)
    kernel[chunks.shape[0], BLOCK, p.stream](table, chunks, p.hyper)


# ------------------------------------------------------------------------------------------------------- 128 bits wide


@cuda.jit
def vectorised_kernel(table, chunks, h):
    tensor, chunk = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, table.shape[1] - 1]
    parameter, gradient, total = (
        array_at(table[tensor, 0], n, np.float32),
        array_at(table[tensor, 1], n, np.float32),
        array_at(table[tensor, 2], n, np.float32),
    )
    new_parameter = array_at(table[tensor, 3], n, np.float32)
    new_total = array_at(table[tensor, 4], n, np.float32)
    i = np.int64(chunk) * CHUNK + 4 * cuda.threadIdx.x
    if i < table[tensor, 5]:  # the elements that are whole vectors
        p, g = load128(parameter, i), load128(gradient, i)
        if h.momentum > f0:
            b = load128(total, i)
            p0, b0 = descend(p[0], g[0], b[0], h)
            p1, b1 = descend(p[1], g[1], b[1], h)
            p2, b2 = descend(p[2], g[2], b[2], h)
            p3, b3 = descend(p[3], g[3], b[3], h)
            store128(new_parameter, i, (p0, p1, p2, p3))
            store128(new_total, i, (b0, b1, b2, b3))
        else:
            lr = h.lr
            q0 = p[0] - lr * decayed(p[0], g[0], h)
            q1 = p[1] - lr * decayed(p[1], g[1], h)
            q2 = p[2] - lr * decayed(p[2], g[2], h)
            q3 = p[3] - lr * decayed(p[3], g[3], h)
            store128(new_parameter, i, (q0, q1, q2, q3))
    else:
        for j in range(i, min(i + 4, parameter.size)):
            if h.momentum > f0:
                new_parameter[j], new_total[j] = descend(parameter[j], gradient[j], total[j], h)
            else:
                new_parameter[j], _ = descend(parameter[j], gradient[j], f0, h)


@rung(vectorised_kernel)
def vectorised(p):
    """The same, 128 bits at a time.

    A tensor whose arrays do not all begin at a multiple of 16 bytes is moved one element at a time.
    """
    _launch(p, vectorised_kernel)


LADDER = (fused, one_launch, vectorised)
