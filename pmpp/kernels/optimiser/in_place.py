"""Optimisers that change a network in place: `adam_`, `sgd_` and `clip_norm_`, for all tensors at once.

They are the last rungs of the rooms beside this file, given the same arrays to read and to write.
"""

from __future__ import annotations

import functools
import math
import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.optimiser import adam, gradient_norm, sgd, tensors
from pmpp.kernels.optimiser.tensors import BLOCK, CHUNK
from pmpp.runtime import device
from pmpp.runtime.addresses import array_at
from pmpp.runtime.check import as_integer, as_number
from pmpp.runtime.graphs import is_recorded
from pmpp.runtime.rung import Problem
from pmpp.runtime.vector import load128, store128

__all__ = ["adam_", "clip_norm_", "sgd_"]

KEPT = 64  # tables


def _taken(stream: typing.Any, updated: tuple[str, ...], **groups: typing.Any) -> list[tuple]:
    """The lists as device arrays of one dimension, in the order given; ``updated`` are changed."""
    found: list[tuple] = []
    for name, arrays in groups.items():
        like = found[0] if found else None
        found.append(tensors.given(name, arrays, like, update=name in updated, stream=stream))
    sizes = tuple(one.size for one in found[0])
    tensors.refuse_overlap(tuple(groups), tensors.addresses(*found), sizes)
    return [tuple(one.reshape(-1) for one in arrays) for arrays in found]


#: Tables of lists that were checked and found right, by each array's layout and address. A training step gives the same
#: ones again and again, and to check forty arrays takes the host longer than all else that it does here.
_CHECKED: dict[tuple, tensors.Tables] = {}


def _tables(stream: typing.Any, updated: tuple[str, ...], arranged: typing.Callable, **groups: typing.Any):
    """The tables of the lists, which are checked first. ``arranged`` says in which order a kernel wants the lists."""
    try:
        places = [tuple([(one.layout, one.pointer) for one in arrays]) for arrays in groups.values()]
        key = None if is_recorded(stream) else (*groups, *places)
    except (AttributeError, TypeError):  # no list, or arrays of another library
        key = None
    found = _CHECKED.get(key)
    if found is None:
        found = tensors.tables(*arranged(*_taken(stream, updated, **groups)), stream=stream)
        if key is not None:
            if len(_CHECKED) >= KEPT:
                _CHECKED.clear()
            _CHECKED[key] = found
    return found


def _counted(step: typing.Any, stream: typing.Any) -> typing.Any:
    """A step that a device array counts; None if it is a number."""
    if not hasattr(step, "__cuda_array_interface__"):
        return None
    return device.as_output("step", step, shape=(1,), dtype=np.int64, stream=stream)


# ---------------------------------------------------------------------------------------------------------------- Adam


@cuda.jit
def count_kernel(step, lr, beta, beta_of_squares, shrink, factors):
    """One thread: counts the step, and finds what depends on its number. It is three numbers, so float64 is cheap."""
    step[0] += 1
    n = np.float64(step[0])
    factors[0] = 1 / math.sqrt(1 - beta_of_squares**n)
    factors[1] = lr / (1 - beta**n)
    factors[2] = 1 - lr * shrink


def adam_(
    parameters,
    gradients,
    first,
    second,
    *,
    lr=1e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    decoupled=False,
    step,
    stream=0,
):
    """One step of Adam, or with ``decoupled`` of AdamW, in place: one launch, however many tensors there are.

    Args:
        parameters: a device array of float32, contiguous, or a list of such arrays: changed in place.
        gradients: for each parameter an array of its shape.
        first, second: for each parameter a device array of its shape, changed in place: the moments, 0 at first.
        lr, betas, eps, weight_decay, decoupled: as in `pmpp.kernels.optimiser.adam`.
        step: the number of this step, 1 for the first. Or a device array (1,) of int64 with the number of steps that
            were made; the call adds 1 to it. So a CUDA graph that has recorded the call counts when it is replayed.
        stream: the stream to work on.

    No two of the arrays may share memory. A table of their addresses is made at the first call, and kept.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> w, g, m, v = (device.to_device(np.float32([x])) for x in (1, 0.5, 0, 0))
    >>> adam_([w], [g], [m], [v], lr=0.1, step=1)
    >>> w.copy_to_host().round(6)
    array([0.9], dtype=float32)
    """
    stream = device.as_stream(stream)
    lr, betas, eps, weight_decay, decoupled = adam.checked(lr, betas, eps, weight_decay, decoupled)
    counted = _counted(step, stream)
    number = 1 if counted is not None else as_integer("step", step, 1)
    lists = {"parameters": parameters, "gradients": gradients, "first": first, "second": second}
    table, chunks = _tables(stream, ("parameters", "first", "second"), _of_adam, **lists)
    factors = adam.none()
    if counted is not None:
        factors = device.empty(3, np.float32, stream=stream)
        count_kernel[1, 1, stream](counted, lr, *betas, weight_decay if decoupled else 0.0, factors)
    numbers = adam.hyper(lr, betas, eps, weight_decay, decoupled, number)
    if chunks.shape[0]:
        adam.vectorised_kernel[chunks.shape[0], BLOCK, stream](table, chunks, numbers, factors)


def _of_adam(p: tuple, g: tuple, m: tuple, v: tuple) -> tuple:
    """What the kernel reads, then what it writes."""
    return p, g, m, v, p, m, v


# ---------------------------------------------------------------------------------------------------- gradient descent


def sgd_(
    parameters,
    gradients,
    momenta=None,
    *,
    lr=1e-3,
    momentum=0.0,
    dampening=0.0,
    weight_decay=0.0,
    nesterov=False,
    step=None,
    stream=0,
):
    """One step of gradient descent in place: one launch, however many tensors there are.

    Args:
        parameters: a device array of float32, contiguous, or a list of such arrays: changed in place.
        gradients: for each parameter an array of its shape.
        momenta: for each parameter a device array of its shape, changed in place: the running sums. None without
            momentum.
        lr, momentum, dampening, weight_decay, nesterov, step: as in `pmpp.kernels.optimiser.sgd`.
        stream: the stream to work on.

    No two of the arrays may share memory. A table of their addresses is made at the first call, and kept.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> w, g = device.to_device(np.float32([1, 2])), device.to_device(np.float32([1, -1]))
    >>> sgd_([w], [g], lr=0.5)
    >>> w.copy_to_host()
    array([0.5, 2.5], dtype=float32)
    """
    stream = device.as_stream(stream)
    later = step if type(step) is not int or step < 2 else 2  # all steps but the first are alike
    try:
        numbers = _sgd_numbers(lr, momentum, dampening, weight_decay, nesterov, later, momenta is not None)
    except (TypeError, ValueError):  # what is wrong, of the arguments as they are
        numbers = sgd.hyper(lr, momentum, dampening, weight_decay, nesterov, step, momenta)
    lists = {"parameters": parameters, "gradients": gradients}
    if momenta is not None:
        lists["momenta"] = momenta
    table, chunks = _tables(stream, ("parameters", "momenta"), _of_sgd, **lists)
    if chunks.shape[0]:
        sgd.vectorised_kernel[chunks.shape[0], BLOCK, stream](table, chunks, numbers)


@functools.lru_cache(64, typed=True)
def _sgd_numbers(lr, momentum, dampening, weight_decay, nesterov, step, summed) -> sgd.Hyper:
    return sgd.hyper(lr, momentum, dampening, weight_decay, nesterov, step, () if summed else None)


def _of_sgd(p: tuple, g: tuple, *sums: tuple) -> tuple:
    """What the kernel reads, then what it writes."""
    arrays = sgd.all_of((p, g, *sums), (p, *sums))
    return *arrays["read"], *arrays["written"]


# ------------------------------------------------------------------------------------------------------------- clipping


@cuda.jit
def clip_kernel(table, chunks, found, most):
    """Scale the gradients so that their norm, which the device has found before, is at most ``most``."""
    norm = found[found.shape[0] - 1, 0]
    factor = most / (norm + np.float32(1e-6))
    if factor >= np.float32(1):
        return  # all threads see the same norm: where nothing is clipped nothing is moved
    tensor, chunk = chunks[cuda.blockIdx.x, 0], chunks[cuda.blockIdx.x, 1]
    n = table[tensor, table.shape[1] - 1]
    gradient = array_at(table[tensor, 0], n, np.float32)
    i = np.int64(chunk) * CHUNK + 4 * cuda.threadIdx.x
    if i < table[tensor, 1]:
        a, b, c, d = load128(gradient, i)
        store128(gradient, i, (factor * a, factor * b, factor * c, factor * d))
    else:
        for j in range(i, min(i + 4, gradient.size)):
            gradient[j] = factor * gradient[j]


def clip_norm_(gradients, max_norm=1.0, *, stream=0):
    """Scale gradients in place so that the norm of all together is at most ``max_norm``, without asking the host.

    Each is multiplied by ``max_norm / (norm + 1e-6)`` if that is below 1. The norm stays on the device, and the next
    launch reads it there: a program that fetched it would wait for all the work before.

    Args:
        gradients: a device array of float32, contiguous, or a list of such arrays: changed in place.
        max_norm: the largest norm that is left as it is, 0 or more.
        stream: the stream to work on.

    Returns the norm that was found, a device array (1,), without waiting for the work to be done. If it is not a
    number, the gradients become NaN; if it is infinite, 0, and the infinite ones NaN, as PyTorch's clip_grad_norm_ has
    it. The sum is made in a fixed order: the same gradients give the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> g = device.to_device(np.float32([3, 4]))
    >>> clip_norm_([g], 1.0).copy_to_host(), g.copy_to_host().round(4)
    (array([5.], dtype=float32), array([0.6, 0.8], dtype=float32))
    """
    stream = device.as_stream(stream)
    most = as_number("max_norm", max_norm, 0)
    (gradients,) = _taken(stream, ("gradients",), gradients=gradients)
    found = device.empty((len(gradients) + 1, 4), np.float32, stream=stream)

    def clip(p: Problem) -> None:
        """After the norm was found."""
        table, chunks = tensors.tables(p.gradients, stream=p.stream)
        if chunks.shape[0]:
            clip_kernel[chunks.shape[0], BLOCK, p.stream](table, chunks, p.out, most)

    gradient_norm.vectorised.run(Problem(found, stream=stream, gradients=gradients, out=found, finish=clip))
    last = 4 * len(gradients)
    return found.reshape(-1)[last : last + 1]
