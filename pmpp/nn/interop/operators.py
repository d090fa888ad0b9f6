"""Kernels of this workbook as operators of PyTorch: layer normalisation, cross-entropy, and an optimiser's step.

An operator is a name that PyTorch's dispatcher, its autograd and its compiler know. Each here is four plain functions:

    forward     computes, on tensors whose memory is there
    shapes      says what forward would return, for tensors without memory: the compiler plans with these
    save        keeps what the gradient needs
    backward    the gradient, made of operators, so that the compiler sees it as well

`register` tells PyTorch of them. On a GPU the kernels read and write PyTorch's memory on PyTorch's current stream. On a
CPU they run in the interpreter, whose memory is its own: arrays are copied there and back.

Chapter: notebooks/95_inside_other_libraries.ipynb.  Source: PyTorch's documentation of torch.library.
"""

from __future__ import annotations

import functools
import typing

from pmpp.kernels import normalisation, optimiser, softmax
from pmpp.kernels.normalisation import layernorm_backward
from pmpp.runtime import device

__all__ = ["register", "use_layer_norm"]


# ---------------------------------------------------------------------------------------------------------- the border


def given(x: typing.Any) -> typing.Any:
    """A tensor as kernels take it: on a GPU the tensor itself, on a CPU a NumPy array with a copy of it.

    A copy, since memory that NumPy has seen cannot be let go any more, as FSDP does with a layer's parameters.
    """
    x = x.detach()  # a tensor that requires a gradient is refused: its gradient would be lost
    return x if x.is_cuda else x.clone().numpy()


def stream(x: typing.Any) -> typing.Any:
    """The stream that PyTorch queues work on tensors like ``x`` on."""
    import torch

    return torch.cuda.current_stream(x.device) if x.is_cuda else 0


def returned(array: typing.Any, like: typing.Any) -> typing.Any:
    """A device array as a tensor: the same memory, which the tensor keeps; in the interpreter a copy."""
    import torch

    if like.is_cuda:
        return torch.as_tensor(array, device=like.device)
    return torch.from_numpy(device.to_host(array))


def written(tensors: typing.Iterable[typing.Any]) -> tuple[list, typing.Callable[[], None]]:
    """Tensors as arrays that kernels write to, and what is to be called behind the launch."""
    tensors = [x.detach() for x in tensors]
    if all(x.is_cuda for x in tensors):
        return tensors, lambda: None
    arrays = [device.to_device(x.numpy()) for x in tensors]

    def copy_back() -> None:
        for x, array in zip(tensors, arrays, strict=True):
            x.numpy()[...] = device.to_host(array)

    return arrays, copy_back


# -------------------------------------------------------------------------------------------------- layer normalisation


def layer_norm_forward(x, weight, bias, eps):
    """PyTorch allocates the result, and the kernel fills it."""
    y = x.new_empty(x.shape)
    (out,), finish = written([y])
    normalisation.layer_norm(given(x), given(weight), given(bias), eps, out=out, stream=stream(x))
    finish()
    return y


def layer_norm_shapes(x, weight, bias, eps):
    """The result has the shape of x, and is contiguous, whatever x was."""
    return x.new_empty(x.shape)


def layer_norm_save(ctx, inputs, output):
    """What `layer_norm_gradient` needs. The means are found again: a read of x instead of memory kept."""
    x, weight, _, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def layer_norm_gradient(ctx, dy):
    """The gradient of each argument. Autograd may hand over a gradient that is not contiguous, as of a sum."""
    import torch

    x, weight = ctx.saved_tensors
    return *torch.ops.pmpp.layer_norm_backward(dy.contiguous(), x, weight, ctx.eps), None


def layer_norm_backward(dy, x, weight, eps):
    """An operator of its own: the compiler does not look into it, but it knows what comes out."""
    made = x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)
    (dx, dweight, dbias), finish = written(made)
    sums = {"dweight": dweight, "dbias": dbias}
    layernorm_backward.vectorised(given(dy), given(x), given(weight), eps=eps, out=dx, **sums, stream=stream(x))
    finish()
    return made


def layer_norm_backward_shapes(dy, x, weight, eps):
    """As x, and twice as weight."""
    return x.new_empty(x.shape), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


def use_layer_norm(net):
    """Let each `torch.nn.LayerNorm` of a network of PyTorch's call our operator, in place.

    Its parameters, and so its state_dict, stay as they are. Raises ValueError for one without weight or bias.
    """
    import torch

    layer_norm = register().layer_norm

    def forward(module, x):
        rows = x.reshape(-1, module.weight.numel()).contiguous()
        return layer_norm(rows, module.weight.flatten(), module.bias.flatten(), module.eps).reshape(x.shape)

    found = {name: one for name, one in net.named_modules() if isinstance(one, torch.nn.LayerNorm)}
    for name, module in found.items():
        if module.weight is None or module.bias is None:
            raise ValueError(f"net must have layer normalisations with weight and bias, {name or 'net'} was {module}")
    for module in found.values():
        module.forward = functools.partial(forward, module)
    return net


# -------------------------------------------------------------------------------------------------------- cross-entropy


def cross_entropy_forward(logits, labels):
    """The mean loss, and its gradient, from one pass over the logits."""
    loss, gradient = softmax.cross_entropy(given(logits), given(labels), stream=stream(logits))
    return returned(loss.reshape(()), logits), returned(gradient, logits)


def cross_entropy_shapes(logits, labels):
    """A number, and a gradient for each logit."""
    return logits.new_empty(()), logits.new_empty(logits.shape)


def cross_entropy_save(ctx, inputs, output):
    """The gradient is there already. It is a by-product, and has no gradient itself."""
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def cross_entropy_gradient(ctx, dloss, _):
    """By the chain rule, with PyTorch's own product: the compiler may join it with what comes next."""
    (gradient,) = ctx.saved_tensors
    return gradient * dloss, None


# -------------------------------------------------------------------------------------------------- an optimiser's step


def sgd_forward(parameters, gradients, momenta, lr, momentum):
    """In place, all tensors in one launch."""
    if not parameters:
        raise ValueError("parameters must be a list with one or more, was []")
    changed, finish = written([*parameters, *momenta])
    n = len(parameters)
    numbers = {"lr": lr, "momentum": momentum, "stream": stream(parameters[0])}
    optimiser.sgd_(changed[:n], written(gradients)[0], changed[n:], **numbers)
    finish()


def sgd_shapes(parameters, gradients, momenta, lr, momentum):
    """Nothing is returned."""


# --------------------------------------------------------------------------------------------------------- registration


@functools.cache
def register():
    """Tell PyTorch of the operators, and return ``torch.ops.pmpp``, where they then are. Call it outside of a compiled
    function: the compiler sees the operators, and not how they came to be.

        layer_norm(x, weight, bias, eps)         rows of x (M, N); weight and bias (N,); all float32, contiguous
        cross_entropy(logits, labels)            (N, classes) float32, (N,) int64 or int32: (mean loss, its gradient)
        sgd_(parameters, gradients, momenta, lr, momentum)       lists of tensors of float32, changed in place

    What does not fit is a TypeError or a ValueError that names the argument.
    """
    import torch

    def define(schema, forward, shapes, *, changes=(), save=None, backward=None):
        name, _, rest = schema.partition("(")
        made = torch.library.custom_op(f"pmpp::{name}", forward, mutates_args=changes, schema=f"({rest}")
        made.register_fake(shapes)
        if backward:
            made.register_autograd(backward, setup_context=save)

    schema = "layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor"
    define(schema, layer_norm_forward, layer_norm_shapes, save=layer_norm_save, backward=layer_norm_gradient)
    schema = "layer_norm_backward(Tensor dy, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)"
    define(schema, layer_norm_backward, layer_norm_backward_shapes)
    schema = "cross_entropy(Tensor logits, Tensor labels) -> (Tensor, Tensor)"
    kept = {"save": cross_entropy_save, "backward": cross_entropy_gradient}
    define(schema, cross_entropy_forward, cross_entropy_shapes, **kept)
    lists = "Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] momenta"
    schema = f"sgd_({lists}, float lr, float momentum) -> ()"
    define(schema, sgd_forward, sgd_shapes, changes=("parameters", "momenta"))
    return torch.ops.pmpp
