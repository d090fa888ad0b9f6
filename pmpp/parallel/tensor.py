"""Tensor parallelism: every rank has a part of each layer's weights, and all ranks work on the same examples.

A linear layer can be cut in two ways. `ColumnLinear` has some of the outputs: it needs the whole input, and makes a
part of the output. `RowLinear` has the weights of some of the inputs: it needs that part of the input, and makes a sum
that lacks the parts of the others, so the ranks add theirs up. One after the other they need one all-reduce in the
forward pass, and one in the backward pass::

    hidden = F.relu(ColumnLinear(group, first)(x))      # each rank has some of the hidden features
    y = RowLinear(group, second)(hidden)                # all ranks have y

`SelfAttention` has some of the heads, between two such layers. `cross_entropy` takes scores of which each rank has some
of the classes, and sends three numbers for each example where gathering the scores would send one for each class.

All ranks compute the same loss. So a gradient is not summed over ranks, as in data parallelism, except where a tensor
that all have goes into parts that differ (`Copy`).

Source: M. Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism (2019),
section 3.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import nn
from pmpp.kernels.reduction import over_axes
from pmpp.nn import functional as F
from pmpp.nn.tape import Function, Tensor, state
from pmpp.parallel.group import Group
from pmpp.runtime import device
from pmpp.runtime.check import as_flag, as_integer

__all__ = ["ColumnLinear", "Copy", "RowLinear", "SelfAttention", "Sum", "cross_entropy", "share"]


def share(name: str, count: int, group: Group) -> slice:
    """A rank's part of ``count`` features. ValueError if the ranks do not divide them."""
    if count % group.size:
        raise ValueError(f"{name} must be a multiple of the {group.size} ranks, was {count}")
    each = count // group.size
    return slice(group.rank * each, (group.rank + 1) * each)


class Copy(Function):
    """A tensor that all ranks have, for parts that differ: its gradient is the sum of the parts' gradients."""

    @staticmethod
    def forward(context: typing.Any, x: Tensor, group: Group) -> typing.Any:
        context.group = group
        return x.array

    @staticmethod
    def backward(context: typing.Any, dy: typing.Any) -> tuple:
        return context.group.all_reduce(dy), None


class Sum(Function):
    """The sum of what the ranks have. All have the same loss of it, so its gradient is that of each part."""

    @staticmethod
    def forward(context: typing.Any, x: Tensor, group: Group) -> typing.Any:
        return group.all_reduce(x.array)

    @staticmethod
    def backward(context: typing.Any, dy: typing.Any) -> tuple:
        return dy, None


class ColumnLinear(nn.Module):
    """Some outputs of a linear layer: ``x (N, inputs) -> (N, outputs / size)``. No message forward, one backward.

    Args:
        group: the ranks.
        layer: the whole layer, equal on all ranks; each takes its rows of the weights, and its part of the bias.
    """

    def __init__(self, group: Group, layer: nn.Linear) -> None:
        weight = device.to_host(layer.weight.array)
        self.group, part = group, share("outputs", len(weight), group)
        self.weight = nn.Parameter(weight[part].copy())
        self.bias = None if layer.bias is None else nn.Parameter(device.to_host(layer.bias.array)[part].copy())

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, inputs), the same on all ranks."""
        return F.linear(Copy.apply(x, self.group), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer of which each rank has some inputs: ``x (N, inputs / size) -> (N, outputs)``, on all ranks.

    One message forward, none backward. The bias is on all ranks, and added once, to the sum.

    Args:
        group: the ranks.
        layer: the whole layer, equal on all ranks; each takes its columns of the weights.
    """

    def __init__(self, group: Group, layer: nn.Linear) -> None:
        weight = device.to_host(layer.weight.array)
        self.group, part = group, share("inputs", weight.shape[1], group)
        self.weight = nn.Parameter(np.ascontiguousarray(weight[:, part]))
        self.bias = None if layer.bias is None else nn.Parameter(device.to_host(layer.bias.array).copy())

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (N, inputs / size): this rank's part."""
        y = Sum.apply(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


class SelfAttention(nn.Module):
    """Some heads of a layer of self-attention: ``x (texts, length, inputs) -> (texts, length, outputs)``, on all ranks.

    A head needs no other one. So a rank makes the queries, keys and values of its own heads, computes these, and the
    product behind them is cut by rows: one message forward, and one backward.

    Args:
        group: the ranks.
        qkv: the whole layer before, with ``3 * heads * size`` outputs: queries, keys and values, each head by head.
        out: the whole layer behind, with ``heads * size`` inputs. Both are equal on all ranks.
        heads: of the whole layer. Raises ValueError if the ranks do not divide them.
        causal: whether a place sees none that comes later.
    """

    def __init__(self, group: Group, qkv: nn.Linear, out: nn.Linear, heads: int, causal: bool = True) -> None:
        weight, heads = device.to_host(qkv.weight.array), as_integer("heads", heads, 1)
        if len(weight) % (3 * heads):
            raise ValueError(f"qkv must have queries, keys and values of {heads} heads, had {len(weight)} outputs")
        mine = share("heads", heads, group)
        rows = np.arange(len(weight)).reshape(3, heads, -1)[:, mine].reshape(-1)
        self.group, self.heads, self.causal = group, mine.stop - mine.start, as_flag("causal", causal)
        self.weight = nn.Parameter(weight[rows])
        self.bias = None if qkv.bias is None else nn.Parameter(device.to_host(qkv.bias.array)[rows])
        self.out = RowLinear(group, out)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (texts, length, inputs), the same on all ranks."""
        qkv = F.linear(Copy.apply(x, self.group), self.weight, self.bias)
        return self.out(F.self_attention(qkv, self.heads, self.causal))


def cross_entropy(group: Group, scores: Tensor, labels: np.ndarray) -> Tensor:
    """The mean cross-entropy, where rank k has the scores of the k-th part of the classes.

    Args:
        group: the ranks.
        scores: (N, classes / size), float32.
        labels: (N,) integers on the host, the same on all ranks: numbers among all classes.

    Returns a tensor of one element, the same on all ranks. Sends the largest score, the sum of exponentials, and the
    label's score of each example. Raises TypeError and ValueError for labels that are no classes.
    """
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu":
        raise TypeError(
            f"labels must be a NumPy array of integers, was {getattr(labels, 'dtype', type(labels).__name__)}"
        )
    rows, each = scores.shape
    if labels.shape != (rows,):
        raise ValueError(f"labels must have shape {(rows,)}, had {labels.shape}")
    if rows and not (labels.min() >= 0 and labels.max() < each * group.size):
        raise ValueError(
            f"labels must be from 0 to {each * group.size - 1}, were from {labels.min()} to {labels.max()}"
        )
    largest = over_axes.LADDER[-1](scores.array, axis=1, op="max", keepdims=True, stream=state.stream)
    shifted = scores - Tensor(group.all_reduce(largest, "max"))  # a constant: the loss does not depend on it
    mine = labels - group.rank * each
    chosen = (mine[:, None] == np.arange(each)).astype(np.float32)  # a row of zeros where another rank has the label
    total = Sum.apply(shifted.exp().sum(1), group)
    picked = Sum.apply((shifted * Tensor(chosen)).sum(1), group)
    return (total.log() - picked).mean()
