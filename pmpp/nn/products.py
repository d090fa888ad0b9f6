"""Products in 16 bits for layers: linear, convolution and attention, forwards and backwards.

On a GPU whose tensor cores multiply them, `pmpp.kernels.matmul.mixed` does. It takes transposed operands as they lie,
so no gradient needs a copy in another order. Sums are in float32, and a result is rounded once. Convolutions and
their gradients are computed by `pmpp.kernels.convolution_layer.mixed`, in the same way. Depthwise ones, and all of
them in the interpreter, are computed in float32 from operands of 16 bits, and rounded.

`attention` in 16 bits takes the kernels of `pmpp.kernels.attention.on_tensor_cores`, or for long texts on Hopper those
of `pmpp.kernels.attention.on_warpgroups`. They keep no weights in memory: the backward pass computes them once more. In
float32 the weights are kept, length x length for each head, and in 16 bits those of heads of more than 128 elements.
"""

from __future__ import annotations

import math
import typing

import numpy as np

from pmpp.kernels import convolution_layer, elementwise, matmul, reduction, softmax
from pmpp.kernels.attention import attention_backward, on_warpgroups
from pmpp.kernels.attention import heads as split
from pmpp.kernels.attention import on_tensor_cores as fragments
from pmpp.kernels.attention.ladder import MOST_SIZE
from pmpp.kernels.attention.masked import masked_softmax
from pmpp.kernels.convolution_layer import mixed as layer
from pmpp.kernels.convolution_layer.mixed_boxes import transposed_product, transposed_product_suits
from pmpp.kernels.matmul import mixed
from pmpp.runtime import device
from pmpp.runtime.views import strided

FEWEST = 8  # filters, and channels, of a group that is computed on tensor cores: a chunk
MORE = 1.15  # times the memory of x are kept for a gradient in the order that it is computed in
DTYPES = ("float32", "float16", "bfloat16")
LONG_TEXT = 512  # tokens: a block of `on_warpgroups` has 192 queries, so of shorter texts much of it would be idle


def on_tensor_cores() -> bool:
    """Whether this GPU, or the one that the interpreter stands for, multiplies 16 bits on tensor cores."""
    return device.limits()["compute_capability"] >= mixed.CAPABILITY


def turned(matrix: typing.Any) -> typing.Any:
    """Matrices with their last two dimensions exchanged: a view. The array is in C order."""
    *leading, rows, columns = matrix.shape
    steps = [math.prod(matrix.shape[d + 1 :]) for d in range(len(leading))]
    return strided(matrix, (*leading, columns, rows), (*steps, 1, columns))


def product(a, b, bias=None, *, alpha=1.0, stream=0) -> typing.Any:
    """``alpha * (a @ b) + bias`` in the dtype of ``a``, views of any strides."""
    if a.dtype == np.float32 or on_tensor_cores():
        return matmul.matmul(a, b, bias, alpha=alpha, stream=stream)
    wide = [None if x is None else elementwise.cast(x, "float32", stream=stream) for x in (a, b, bias)]
    return elementwise.cast(matmul.matmul(*wide, alpha=alpha, stream=stream), a.dtype, stream=stream)


def product_into(out, a, b, *, alpha=1.0, stream=0) -> None:
    """``alpha * (a @ b)`` into a view whose rows are contiguous."""
    if a.dtype != np.float32 and on_tensor_cores():
        mixed.into(a, b, None, out, np.float32(alpha), stream)
        return
    made = product(a, b, alpha=alpha, stream=stream)
    if out.dtype == np.float32:
        elementwise.assign(out, made, stream=stream)
        return
    raise RuntimeError("attention in 16 bits needs a GPU of compute capability 8.0 or higher")


def linear(x, weight, bias=None, *, stream=0) -> typing.Any:
    """``x @ weight.T + bias`` in 16 bits."""
    return product(x, turned(weight), bias, stream=stream)


def linear_gradients(dy, x, weight, *, need, stream=0) -> tuple:
    """The gradients of `linear` by those of "x", "weight" and "bias" that are needed; None for the others."""
    dx, dweight, dbias = product(dy, weight, stream=stream) if "x" in need else None, None, None
    if "weight" in need and device.on_gpu() and transposed_product_suits(*dy.shape, x.shape[1], dy, x):
        dweight, dbias = transposed_product(dy, x, stream, "bias" in need)
    elif "weight" in need:
        dweight = product(turned(dy), x, stream=stream)
    if "bias" in need and dbias is None:
        dbias = reduction.sum(dy, 0, stream=stream)
    return dx, dweight, dbias


# -------------------------------------------------------------------------------------------------------- convolutions


def _rooms() -> tuple:
    from pmpp.nn.functional import convolutions

    return convolutions()


def _wide(x: typing.Any, stream: typing.Any) -> typing.Any:
    return None if x is None else elementwise.cast(x, "float32", stream=stream)


def in_fragments(weight: typing.Any, groups: int) -> bool:
    """Whether a layer is computed on tensor cores: not if groups of few filters or channels would leave them idle.

    In the interpreter the rungs that do no more than the definition are the fastest, as `functional.convolutions` says.
    """
    wide = groups == 1 or min(weight.shape[0] // groups, weight.shape[1]) >= FEWEST
    return wide and device.on_gpu() and on_tensor_cores()


def convolution(x, weight, bias, stride, padding, dilation, groups, *, stream=0) -> tuple:
    """A convolution layer of 16-bit operands, and x with its channels last; None where its gradient keeps x itself.

    It does where what is made of x takes more than 15 % more memory: channels that are no whole chunks are padded, and
    the rows of small images.
    """
    options = stride, padding, dilation, groups
    if in_fragments(weight, groups):
        zeros = layer.zeros_for(x.shape, weight.shape, *options)
        last = layer.channels_last(x, groups, zeros, stream=stream)
        y = layer.convolution(x, weight, bias, *options, last=last, stream=stream)
        return y, last if last.size <= MORE * x.size else None
    y = _rooms()[0](_wide(x, stream), _wide(weight, stream), _wide(bias, stream), *options, stream=stream)
    return elementwise.cast(y, x.dtype, stream=stream), None


def convolution_gradients(dy, x, weight, stride, padding, dilation, groups, *, need, shape, stream=0) -> tuple:
    """The gradients by x, weight and bias, each None if it is not needed.

    ``x``: what `convolution` returned besides the result, or else the operand; ``shape``: that of the operand.
    """
    options, made = (stride, padding, dilation, groups), [None, None, None]
    short = in_fragments(weight, groups)
    wide = None if short and not need[2] else _wide(dy, stream)
    if short:
        last = layer.channels_last(dy, groups, layer.zeros_for(shape, weight.shape, *options), stream=stream)
        if need[0]:
            made[0] = layer.input_gradient(dy, weight, shape, *options, last=last, stream=stream)
        if need[1]:
            given, kept = (shape, x) if x.dtype == np.uint16 else (x, None)
            more = {"last": kept, "last_dy": last, "stream": stream}
            made[1] = layer.weight_gradient(dy, given, weight.shape[2:], *options, **more)
    else:
        if need[0]:
            made[0] = _rooms()[1](wide, _wide(weight, stream), shape, *options, stream=stream)
        if need[1]:
            made[1] = _rooms()[2](wide, _wide(x, stream), weight.shape[2:], *options, stream=stream)
    if need[2]:
        made[2] = convolution_layer.bias_gradient(wide, stream=stream)
    dtype = dy.dtype
    return tuple(
        one if one is None or one.dtype == dtype else elementwise.cast(one, dtype, stream=stream) for one in made
    )


# ----------------------------------------------------------------------------------------------------------- attention


def parts(qkv: typing.Any, heads: int) -> tuple:
    """Queries, keys and values of each head as views of (texts, heads, length, size)."""
    texts, length, width = qkv.shape
    size = width // 3 // heads
    steps = length * width, size, width, 1
    return tuple(strided(qkv, (texts, heads, length, size), steps, part * heads * size) for part in range(3))


def fits_in_tiles(dtype: np.dtype, size: int) -> bool:
    """Whether attention keeps no weights in memory: its kernels on tensor cores take heads of this size."""
    return dtype != np.float32 and 1 <= size <= MOST_SIZE and on_tensor_cores()


def attention_room(length: int) -> typing.Any:
    """The room whose kernels attend in 16 bits on this GPU, for texts of that length."""
    hopper = device.limits()["compute_capability"] == on_warpgroups.CAPABILITY
    return on_warpgroups if hopper and length >= LONG_TEXT else fragments


def attention(qkv, heads: int, causal: bool, *, stream=0) -> tuple:
    """The result of `pmpp.nn.functional.self_attention`, and what `attention_gradient` needs besides.

    That is the weights, or what the kernels on tensor cores need instead of them: queries, keys, values and results of
    each head, and the logarithms of the sums that the weights were divided by.
    """
    texts, length, width = qkv.shape
    size = width // 3 // heads
    if qkv.dtype.name not in DTYPES:
        raise TypeError(f"qkv must be one of {', '.join(DTYPES)}, was {qkv.dtype}")
    if not size:
        raise ValueError(f"qkv must have at least one element of each query, had shape {qkv.shape}")
    if not qkv.size:  # no texts, or texts without a token
        made = (texts, length, heads * size), (texts, heads, length, length)
        return tuple(device.empty(shape, qkv.dtype, stream=stream) for shape in made)
    if fits_in_tiles(qkv.dtype, size):
        apart = split.apart(qkv, heads, stream=stream)
        y, logs = attention_room(length).forward(*apart, causal, stream=stream)
        return split.together([y], stream=stream), *apart, y, logs
    q, _, v = parts(qkv, heads)
    kt = strided(qkv, (texts, heads, size, length), (length * width, size, 1, width), heads * size)
    scores = _scores(q, kt, 1 / math.sqrt(size), stream).reshape((texts * heads, length, length))
    out = scores if scores.dtype == qkv.dtype else None
    weights = masked_softmax(scores, causal, dtype=qkv.dtype.name, out=out, stream=stream)
    weights = weights.reshape((texts, heads, length, length))
    y = device.empty((texts, length, heads * size), qkv.dtype, stream=stream)
    product_into(_by_heads(y, heads), weights, v, stream=stream)
    return y, weights


def _scores(q: typing.Any, kt: typing.Any, alpha: float, stream: typing.Any) -> typing.Any:
    """``alpha * (q @ kt)`` in float32, also of 16 bits: float16 ends at 65504."""
    if q.dtype == np.float32:
        return matmul.matmul(q, kt, alpha=alpha, stream=stream)
    return mixed.multiply(q, kt, alpha=alpha, dtype="float32", stream=stream)


def _by_heads(y: typing.Any, heads: int) -> typing.Any:
    texts, length, width = y.shape
    size = width // heads
    return strided(y, (texts, heads, length, size), (length * width, size, width, 1))


def attention_gradient(dy, heads: int, causal: bool, *kept, stream=0) -> typing.Any:
    """The gradient of `attention` by ``qkv``. ``kept``: ``qkv`` and the weights, or what was returned instead."""
    if len(kept) > 2:
        q, k, v, y, logs = kept
        (dheads,) = split.apart(dy, heads, 1, stream=stream)
        made = attention_backward(dheads, q, k, v, causal, result=y, logs=logs, stream=stream)
        return split.together(made, stream=stream)
    qkv, weights = kept
    if not qkv.size:
        return device.empty(qkv.shape, qkv.dtype, stream=stream)
    texts, length, width = qkv.shape
    size = width // 3 // heads
    q, k, _ = parts(qkv, heads)
    vt = strided(qkv, (texts, heads, size, length), (length * width, size, 1, width), 2 * heads * size)
    dheads = _by_heads(dy, heads)
    made = device.empty(qkv.shape, qkv.dtype, stream=stream)
    dq, dk, dv = parts(made, heads)
    product_into(dv, turned(weights), dheads, stream=stream)
    dweights = product(dheads, vt, stream=stream)
    dscores = softmax.backward(dweights, weights, out=dweights, stream=stream)
    alpha = 1 / math.sqrt(size)
    product_into(dq, dscores, k, alpha=alpha, stream=stream)
    product_into(dk, turned(dscores), q, alpha=alpha, stream=stream)
    return made
