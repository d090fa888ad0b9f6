"""Layers as functions: each calls the kernels of a room, forwards and backwards.

Names, layouts and defaults are those of ``torch.nn.functional``. Images have the shape (N, C, H, W). All but labels is
float32, or within `pmpp.nn.amp.autocast` what its table says. Each raises what its room raises: an error that names the
argument at fault.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels import (
    activation,
    compression,
    convolution_layer,
    elementwise,
    normalisation,
    pooling,
)
from pmpp.kernels import (
    dropout as dropout_room,
)
from pmpp.kernels import (
    embedding as embedding_room,
)
from pmpp.kernels import (
    linear as linear_room,
)
from pmpp.kernels import (
    softmax as softmax_room,
)
from pmpp.nn import init, products
from pmpp.nn.replay import call
from pmpp.nn.tape import Function, Tensor, one, shaped_like, state, vector
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer, as_pair

__all__ = [
    "avg_pool2d",
    "batch_norm",
    "conv2d",
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "max_pool2d",
    "mse_loss",
    "relu",
    "self_attention",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
]


def _array(value: Tensor | None) -> typing.Any:
    return None if value is None else value.array


def _tensor(name: str, value: typing.Any) -> Tensor:
    if not isinstance(value, Tensor):
        said = "did a forward return nothing?" if value is None else "make it one with Tensor(...)"
        raise TypeError(f"{name} must be a Tensor, was {type(value).__name__}: {said}")
    return value


def _given(**values: typing.Any) -> dict[str, typing.Any]:
    """Those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _name_what_is_no_tensor(**values: typing.Any) -> None:
    """Raise TypeError for the first value that is no tensor: called after an error, so that success costs nothing."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a Tensor, was {type(value).__name__}") from None


def linears() -> tuple[typing.Callable, typing.Callable]:
    """What computes a linear layer, and its gradients: as `convolutions`, by where kernels run."""
    if device.on_gpu():
        return linear_room.linear, linear_room.linear_backward
    return linear_room.tiled, _gradients_by_tiles


def _gradients_by_tiles(dy, x, weight, *, need, stream=0) -> tuple:
    """As `pmpp.kernels.linear.linear_backward`, by the rung that is the fastest in the interpreter."""
    tiled = linear_room.linear_gradients.tiled
    return tuple(
        tiled(dy, x, weight, of=one, stream=stream) if one in need else None for one in ("x", "weight", "bias")
    )


class Linear(Function):
    """x W^T + b."""

    @staticmethod
    def forward(context, x, weight, bias):
        context.save_input(x, weight)
        context.shape = x.shape
        compute = linears()[0] if x.dtype == np.float32 else products.linear
        y = call(compute, _rows(x.array), weight.array, _array(bias))
        return y if x.ndim == 2 else y.reshape((*x.shape[:-1], weight.shape[0]))

    @staticmethod
    def backward(context, dy):
        x, weight = context.saved
        need = tuple(n for n, wanted in zip(("x", "weight", "bias"), context.needs, strict=True) if wanted)
        gradients = linears()[1] if dy.dtype == np.float32 else products.linear_gradients
        dx, dweight, dbias = call(gradients, _rows(dy), _rows(x), weight, need=need)
        return dx if dx is None or dx.shape == context.shape else dx.reshape(context.shape), dweight, dbias


def _rows(array: typing.Any) -> typing.Any:
    """The same memory as a matrix with the last extent."""
    return array if array.ndim == 2 else array.reshape((math.prod(array.shape[:-1]), array.shape[-1]))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` for x of shape (..., in), weight (out, in) and bias (out,)."""
    try:
        return Linear.apply(_tensor("x", x), weight, bias)
    except AttributeError:
        _name_what_is_no_tensor(weight=weight, **_given(bias=bias))
        raise
    except IndexError:
        if not x.ndim:
            raise ValueError(f"x must have the shape (..., {weight.shape[-1]}), had shape ()") from None
        raise


def convolutions() -> tuple[typing.Callable, typing.Callable, typing.Callable]:
    """What computes a convolution layer, its gradient by the input, and that by the weights.

    The interpreter takes time for each instruction of each thread, those of idle ones included. There the rungs that do
    no more than the definition are the fastest, and on a GPU those that are chosen by shape.
    """
    if device.on_gpu():
        return convolution_layer.convolution, convolution_layer.input_gradient, convolution_layer.weight_gradient
    return (
        convolution_layer.direct.tiled,
        convolution_layer.input_gradients.gathered,
        convolution_layer.weight_gradients.reduced,
    )


class Conv2d(Function):
    """A convolution layer."""

    @staticmethod
    def forward(context, x, weight, bias, stride, padding, dilation, groups):
        context.options, context.shape = (stride, padding, dilation, groups), x.shape
        given = x.array, weight.array, _array(bias), *context.options
        if x.dtype == np.float32:
            context.save_input(x, weight)
            return call(convolutions()[0], *given)
        y, last = call(products.convolution, *given)
        context.save_for_backward(x if last is None else last, weight)
        return y

    @staticmethod
    def backward(context, dy):
        (x, weight), options = context.saved, context.options
        need_x, need_weight, need_bias = context.needs[:3]
        if dy.dtype != np.float32:
            more = {"need": tuple(context.needs[:3]), "shape": context.shape}
            made = call(products.convolution_gradients, dy, x, weight, *options, **more)
            return *made, None, None, None, None
        dx = call(convolutions()[1], dy, weight, x.shape, *options) if need_x else None
        if need_weight and need_bias:
            dweight, dbias = call(_weight_and_bias_gradient, dy, x, weight.shape[2:], *options)
        else:
            dweight = call(convolutions()[2], dy, x, weight.shape[2:], *options) if need_weight else None
            dbias = call(convolution_layer.bias_gradient, dy) if need_bias else None
        return dx, dweight, dbias, None, None, None, None


def _weight_and_bias_gradient(dy, x, extents, *options, stream=0) -> tuple:
    """Both as one operation. On a GPU each operation of a step costs the host some microseconds."""
    dweight = convolutions()[2](dy, x, extents, *options, stream=stream)
    return dweight, convolution_layer.bias_gradient(dy, stream=stream)


def conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1) -> Tensor:
    """A convolution layer (a cross-correlation): x (N, C, H, W), weight (K, C / groups, R, S), bias (K,)."""
    try:
        return Conv2d.apply(_tensor("x", x), weight, bias, stride, padding, dilation, groups)
    except AttributeError:
        _name_what_is_no_tensor(weight=weight, **_given(bias=bias))
        raise


class Activation(Function):
    """A function of each element."""

    @staticmethod
    def forward(context, x, name):
        context.name, kept = name, x
        if name == "relu" and state.compression is not None and context.needs[0]:
            kept = state.compression.signs(x)
        context.save_for_backward(kept)
        return shaped_like(x, call(activation.fused, vector(x.array), name))

    @staticmethod
    def backward(context, dy):
        (kept,) = context.saved
        if kept.dtype == np.uint32:  # whether each number was positive
            return call(compression.masked, dy, kept), None
        return shaped_like(dy, call(activation.backward, vector(dy), vector(kept), context.name)), None


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return Activation.apply(_tensor("x", x), "relu")


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return Activation.apply(_tensor("x", x), "sigmoid")


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return Activation.apply(_tensor("x", x), "tanh")


def silu(x: Tensor) -> Tensor:
    """x times its sigmoid."""
    return Activation.apply(_tensor("x", x), "silu")


def check_approximate(approximate: typing.Any) -> None:
    """Raise ValueError unless GELU knows it."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f'approximate must be "none" or "tanh", was {approximate!r}')


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the probability that a standard normal number is below it; ``approximate`` may be "tanh"."""
    check_approximate(approximate)
    return Activation.apply(_tensor("x", x), "gelu" if approximate == "none" else "gelu_tanh")


class MaxPool2d(Function):
    """The largest element of each window."""

    @staticmethod
    def forward(context, x, kernel_size, stride, padding, ceil_mode):
        context.options, context.shape = (kernel_size, stride, padding, ceil_mode), x.shape
        if not context.needs[0] or math.prod(as_pair("kernel_size", kernel_size, 1)) > 256:
            context.save_for_backward(x)
            return call(pooling.max_pool2d, x.array, *context.options)
        # Where each maximum stood in its window, in a byte: x need not be kept.
        y, positions = call(pooling.max_pool2d, x.array, *context.options, return_positions=True)
        context.save_for_backward(positions)
        return y

    @staticmethod
    def backward(context, dy):
        (saved,) = context.saved
        x, positions = (context.shape, saved) if saved.dtype == np.uint8 else (saved, None)
        dx = call(pooling.backward, dy, x, "max", *context.options, positions=positions)
        return dx, None, None, None, None


def max_pool2d(x, kernel_size, stride=None, padding=0, ceil_mode=False) -> Tensor:
    """The largest element of each window."""
    return MaxPool2d.apply(_tensor("x", x), kernel_size, stride, padding, ceil_mode)


class AvgPool2d(Function):
    """The mean of each window."""

    @staticmethod
    def forward(context, x, kernel_size, stride, padding, ceil_mode, count_include_pad):
        context.options, context.shape = (kernel_size, stride, padding, ceil_mode, count_include_pad), x.shape
        return call(pooling.avg_pool2d, x.array, *context.options)

    @staticmethod
    def backward(context, dy):
        return call(pooling.backward, dy, context.shape, "average", *context.options), *[None] * 5


def avg_pool2d(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True) -> Tensor:
    """The mean of each window."""
    return AvgPool2d.apply(_tensor("x", x), kernel_size, stride, padding, ceil_mode, count_include_pad)


class BatchNorm(Function):
    """Normalisation by the moments of a batch."""

    @staticmethod
    def forward(context, x, weight, bias, running_mean, running_var, momentum, eps):
        y, mean, invstd = call(
            normalisation.batch_norm,
            x.array,
            weight.array,
            bias.array,
            running_mean,
            running_var,
            momentum=momentum,
            eps=eps,
            return_moments=True,
        )
        context.save_for_backward(x, weight, mean, invstd)
        return y

    @staticmethod
    def backward(context, dy):
        x, weight, mean, invstd = context.saved
        gradients = call(normalisation.batch_norm_backward, dy, x, weight, mean=mean, invstd=invstd)
        return *gradients, None, None, None, None


def batch_norm(x, running_mean, running_var, weight, bias, training=False, momentum=0.1, eps=1e-5) -> Tensor:
    """Each channel to mean 0 and variance 1, then times ``weight`` plus ``bias``, all of shape (C,).

    In training the moments are those of the batch, and the running ones, tensors without a gradient, are updated in
    place; they may be None. Else the running ones are used; then x may still have a gradient.
    """
    _tensor("x", x)
    if as_flag("training", training):
        try:
            means = _array(running_mean), _array(running_var)
            y = BatchNorm.apply(x, weight, bias, *means, momentum, eps)
        except AttributeError:
            running = _given(running_mean=running_mean, running_var=running_var)
            _name_what_is_no_tensor(weight=weight, bias=bias, **running)
            raise
        for tensor in (running_mean, running_var):
            if tensor is not None:
                tensor.changed()
        return y
    _name_what_is_no_tensor(running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    if not state.recording or not (x.requires_grad or weight.requires_grad or bias.requires_grad):
        y = normalisation.batch_norm(
            x.array,
            weight.array,
            bias.array,
            running_mean.array,
            running_var.array,
            training=False,
            eps=eps,
            stream=state.stream,
        )
        return Tensor(y)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    scale = weight / (running_var + eps).sqrt()
    return x * scale.reshape(shape) + (bias - running_mean * scale).reshape(shape)


class LayerNorm(Function):
    """Normalisation of rows."""

    @staticmethod
    def forward(context, x, weight, bias, eps):
        rows = x.array.reshape((-1, math.prod(weight.shape)))
        flat = weight.array.reshape(-1), bias.array.reshape(-1)
        if not any(context.needs):
            return call(normalisation.layer_norm, rows, *flat, eps).reshape(x.shape)
        y, mean, invstd = call(normalisation.layer_norm, rows, *flat, eps, return_moments=True)
        context.save_for_backward(x, weight, mean, invstd)  # two numbers a row, which take a read of x to find again
        return y.reshape(x.shape)

    @staticmethod
    def backward(context, dy):
        x, weight, mean, invstd = context.saved
        shape, width = x.shape, weight.size
        rows = dy.reshape((-1, width)), x.reshape((-1, width)), weight.reshape(-1)
        dx, dweight, dbias = call(normalisation.layer_norm_backward, *rows, mean=mean, invstd=invstd)
        return dx.reshape(shape), dweight.reshape(weight.shape), dbias.reshape(weight.shape), None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """The last dimensions, those of ``weight``, to mean 0 and variance 1, then times ``weight`` plus ``bias``."""
    try:
        if _tensor("x", x).shape[-weight.ndim :] != weight.shape:
            raise ValueError(f"weight must have the shape of the last dimensions of x, {x.shape}, had {weight.shape}")
        if bias.shape != weight.shape:
            raise ValueError(f"bias must have the shape of weight, {weight.shape}, had {bias.shape}")
        return LayerNorm.apply(x, weight, bias, eps)
    except AttributeError:
        _name_what_is_no_tensor(weight=weight, bias=bias)
        raise


class Softmax(Function):
    """Shares of one along an axis."""

    @staticmethod
    def forward(context, x, axis):
        context.axis = axis
        y = call(softmax_room.softmax, x.array, axis)
        context.save_for_backward(y)
        return y

    @staticmethod
    def backward(context, dy):
        return call(softmax_room.backward, dy, context.saved[0], context.axis), None


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Shares of one along ``dim``: ``exp(x) / exp(x).sum(dim)``."""
    return Softmax.apply(_tensor("x", x), dim)


class SelfAttention(Function):
    """Attention of a text on itself."""

    @staticmethod
    def forward(context, qkv, heads, causal):
        context.options = heads, causal
        y, *kept = call(products.attention, qkv.array, heads, causal)
        context.save_for_backward(*([qkv, *kept] if len(kept) == 1 else kept))
        return y

    @staticmethod
    def backward(context, dy):
        return call(products.attention_gradient, dy, *context.options, *context.saved), None, None


def self_attention(qkv: Tensor, heads: int, causal: bool = True) -> Tensor:
    """Attention of each head of a text on itself, ``softmax(q @ k.T / sqrt(size)) @ v``.

    ``qkv`` has the shape (texts, length, 3 * heads * size): for each place its queries, keys and values, each head by
    head. The result has the shape (texts, length, heads * size). With ``causal`` a place sees none that comes later,
    as long as all numbers are finite: a later place counts 0 times, and 0 times an infinity or a NaN is NaN.
    """
    if _tensor("qkv", qkv).ndim != 3:
        raise ValueError(f"qkv must have 3 dimensions, had shape {qkv.shape}")
    heads = as_integer("heads", heads, 1)
    if qkv.shape[2] % (3 * heads):
        raise ValueError(f"qkv must have queries, keys and values of {heads} heads, had shape {qkv.shape}")
    return SelfAttention.apply(qkv, heads, as_flag("causal", causal))


class CrossEntropy(Function):
    """From scores to the loss; its gradient is computed in the same pass."""

    @staticmethod
    def forward(context, scores, labels, ignore_index, label_smoothing, reduction):
        loss, gradient = call(
            softmax_room.cross_entropy,
            scores.array,
            labels.array if isinstance(labels, Tensor) else labels,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
            gradient=context.needs[0],
        )
        context.save_for_backward(*([gradient] if context.needs[0] else []))
        context.each = reduction == "none"
        return loss.reshape((-1,) if context.each else ())

    @staticmethod
    def backward(context, dy):
        (gradient,) = context.saved
        if dy.size != 1 or dy is not one(dy.shape):  # the loss is not where backward() began
            gradient = call(elementwise.multiply, gradient, dy.reshape((-1, 1)) if context.each else dy)
        return gradient, None, None, None, None


def cross_entropy(scores, labels, ignore_index=-100, reduction="mean", label_smoothing=0.0) -> Tensor:
    """Minus the logarithm of the share that softmax gives the right class: scores (N, classes), labels (N,)."""
    return CrossEntropy.apply(_tensor("scores", scores), labels, ignore_index, label_smoothing, reduction)


def mse_loss(x: Tensor, target: Tensor) -> Tensor:
    """The mean of the squared differences."""
    if _tensor("x", x).shape != _tensor("target", target).shape:
        raise ValueError(f"target must have the shape of x, {x.shape}, had {target.shape}")
    return ((x - target) ** 2).mean()


class Dropout(Function):
    """Some elements, at random, become 0. The mask is drawn again in the backward pass."""

    @staticmethod
    def forward(context, x, p, seed, offset):
        context.options = {"seed": seed, "offset": offset}
        context.p = p
        return shaped_like(x, dropout_room.dropout(vector(x.array), p, **context.options, stream=state.stream))

    @staticmethod
    def backward(context, dy):
        dx = dropout_room.backward(vector(dy), context.p, **context.options, stream=state.stream)
        return shaped_like(dy, dx), None, None, None


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Each element with probability p becomes 0, and the others become greater by 1 / (1 - p).

    Every call takes the next part of the sequence that `init.manual_seed` begins.
    """
    if not as_flag("training", training) or p == 0:
        return _tensor("x", x)
    if state.capturing:
        raise RuntimeError(
            "a graph repeats the numbers of its recording, so dropout would drop the same elements again"
        )
    return Dropout.apply(_tensor("x", x), p, init.seed(), init.next_offset())


class Embedding(Function):
    """Rows of a table."""

    @staticmethod
    def forward(context, table, indices):
        context.save_for_backward(indices)  # the tensor, so that a change of it is noticed
        indices = indices.array if isinstance(indices, Tensor) else indices
        context.rows = table.shape[0]
        y = call(embedding_room.embedding, table.array, indices.reshape(-1))
        return y.reshape((*indices.shape, table.shape[1]))

    @staticmethod
    def backward(context, dy):
        (indices,) = context.saved
        rows = dy.reshape((-1, dy.shape[-1]))
        return call(embedding_room.backward, rows, indices.reshape(-1), context.rows), None


def embedding(indices: Tensor, table: Tensor) -> Tensor:
    """The rows of ``table`` (rows, width) with these indices, a tensor or an array of int32 or int64 in any shape."""
    try:
        return Embedding.apply(table, indices)
    except AttributeError:
        _name_what_is_no_tensor(table=table, indices=indices)
        raise
