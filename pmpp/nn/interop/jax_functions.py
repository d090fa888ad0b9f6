"""A kernel within JAX: layer normalisation, in two ways, with its gradient.

JAX traces a function once, and XLA compiles what it saw. A kernel of ours must stand in that as a call to Python.

    through_host    `jax.pure_callback`: JAX copies the arguments to the host, and the result back
    in_place        `jax.experimental.buffer_callback`: the call is given XLA's memory and XLA's stream. On a CPU the
                    kernels run in the interpreter, whose memory is its own, so here, too, it is copied

Chapter: notebooks/95_inside_other_libraries.ipynb.  Source: JAX's documentation, "External callbacks", "Custom
derivative rules".
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from pmpp.kernels import normalisation
from pmpp.kernels.normalisation import layernorm_backward
from pmpp.nn.interop import dlpack
from pmpp.runtime import device

__all__ = ["in_place", "layer_norm", "through_host"]


def forward(x, weight, bias, eps, **written):
    """The kernel, with ``out`` and ``stream`` where they are known."""
    return (normalisation.layer_norm(x, weight, bias, eps, **written),)


def backward(dy, x, weight, eps, **written):
    """The kernel of the gradient."""
    if not written:
        return normalisation.layer_norm_backward(dy, x, weight, eps=eps)
    return (layernorm_backward.vectorised(dy, x, weight, eps=eps, **written),)


def through_host(kernel: typing.Callable, names: tuple, results: tuple, eps: float, *arrays: typing.Any) -> tuple:
    """Call a kernel by way of the host. ``results`` says what will come back: JAX must know it before the call."""
    import jax

    def call(*arrays):
        return tuple(device.to_host(made) for made in kernel(*map(np.asarray, arrays), eps))

    return jax.pure_callback(call, results, *arrays)


def in_place(kernel: typing.Callable, names: tuple, results: tuple, eps: float, *arrays: typing.Any) -> tuple:
    """Call a kernel on XLA's memory and stream. ``names`` are the kernel's arguments that are written."""
    from jax.experimental.buffer_callback import buffer_callback

    def call(context, out, *arrays):
        if device.on_gpu() and out[0].__dlpack_device__()[0] == dlpack.GPU:
            stream = device.backend().cuda.external_stream(context.stream)
            kernel(*arrays, eps, **dict(zip(names, out, strict=True)), stream=stream)
            return
        for target, made in zip(out, kernel(*map(np.asarray, arrays), eps), strict=True):
            np.asarray(target)[...] = device.to_host(made)

    return buffer_callback(call, results)(*arrays)


def like(x: typing.Any) -> typing.Any:
    """The shape and the dtype of an array, of one that is only traced, too."""
    import jax

    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def layer_norm(way: typing.Callable = in_place) -> typing.Callable:
    """A function of x (M, N), weight and bias (N,), and eps, for JAX arrays of float32, with a gradient.

    Args:
        way: `in_place` or `through_host`.

    It can stand within `jax.jit` and `jax.grad`. eps is a Python number, which the compiled function contains.
    """
    import jax

    @functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
    def function(x, weight, bias, eps=1e-5):
        return way(forward, ("out",), (like(x),), eps, x, weight, bias)[0]

    def keep(x, weight, bias, eps):
        return function(x, weight, bias, eps), (x, weight)

    def gradient(eps, kept, dy):
        x, weight = kept
        return way(backward, ("out", "dweight", "dbias"), (like(x), like(weight), like(weight)), eps, dy, x, weight)

    function.defvjp(keep, gradient)
    return function
