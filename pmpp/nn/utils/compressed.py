"""What layers keep of their inputs in 8, 4 or 2 bits a number: memory for noise in the gradients of weights."""

from __future__ import annotations

import contextlib
import typing

import numpy as np

from pmpp.kernels import compression
from pmpp.nn import init
from pmpp.nn.replay import call
from pmpp.nn.tape import Packed, Tensor, state
from pmpp.runtime.check import as_flag, as_integer

__all__ = ["compressed_activations"]

WHOLE = 32  # bits of an input that is kept as it is


class compressed_activations(contextlib.ContextDecorator):
    """Within it layers keep their inputs in few bits until the backward pass.

    Args:
        bits: 8, 4 or 2 for the input of a linear layer or a convolution; or 32 to keep it as it is.
        nearest: whether to round to the nearest code. Else codes are rounded at random, so that the expectation of the
            gradients of weights is what it would be without.

    What is kept differently, if it is float32, contiguous, and has a gradient:

    - the input of `linear` and `conv2d`: a code of ``bits`` bits for each number, and a least value and a step for each
      256 neighbours. A batch has no gradient, so it is kept as it is: the caller has it anyway.
    - the input of `relu`: a bit for each number, which is all that its gradient needs.

    All else is kept as it is. What layers compute forwards does not change, nor do the gradients of their inputs: of
    codes only the gradients of linear and convolution weights are made. One gradient does change, that of `relu` where
    its input is NaN: the bit says that the input was not positive, so the gradient is 0. Without, it is that of the
    result.
    Codes are drawn from a part of the sequence of `init.manual_seed` that nobody else draws from.
    Raises TypeError or ValueError that names the argument. Within `capture` a layer raises RuntimeError: a graph would
    repeat the random numbers of its recording.
    Source: J. Chen and others, ActNN (ICML 2021); A. Jain and others, Gist (ISCA 2018).

    >>> from pmpp import nn
    >>> net = nn.Sequential(nn.Linear(3, 512), nn.ReLU(), nn.Linear(512, 1))
    >>> def kept():
    ...     return nn.memory(net, net(nn.Tensor(np.ones((64, 3), np.float32))).sum())["activations"]
    >>> before = kept()
    >>> with compressed_activations(4):
    ...     print(f"{kept() / before:.3f}")
    0.085
    """

    def __init__(self, bits: int, *, nearest: bool = False) -> None:
        if as_integer("bits", bits) not in (*compression.BITS, WHOLE):
            raise ValueError(f"bits must be 8, 4, 2 or 32, was {bits}")
        self.bits, self.nearest = int(bits), as_flag("nearest", nearest)
        self._outer: list[compressed_activations | None] = []

    def __enter__(self) -> compressed_activations:
        self._outer.append(state.compression)
        state.compression = self
        return self

    def __exit__(self, *_: object) -> None:
        state.compression = self._outer.pop()

    def input(self, x: Tensor) -> typing.Any:
        """What a layer keeps of its input for the gradient of its weights: the tensor itself, or its codes."""
        if self.bits == WHOLE or not can_be_packed(x):
            return x
        refuse_recording()
        where = None if self.nearest else init.seed(), init.next_rounding()
        words = compression.compress(x.array, self.bits, *where, stream=state.stream)
        return Codes(words, x.shape, self.bits)

    def signs(self, x: Tensor) -> typing.Any:
        """What ReLU keeps of its input: the tensor itself, or a bit for each number."""
        return call(compression.signs, x.array) if can_be_packed(x) else x


def can_be_packed(x: Tensor) -> bool:
    """Whether the kernels take it."""
    return x.dtype == np.float32 and x.ndim > 0 and x.array.is_c_contiguous()


class Codes(Packed):
    """Numbers as codes."""

    def __init__(self, words: typing.Any, shape: tuple[int, ...], bits: int) -> None:
        self.array, self.shape, self.bits = words, shape, bits

    def unpacked(self) -> typing.Any:
        """The numbers that the codes stand for, in new memory."""
        return compression.decompress(self.array, self.shape, self.bits, stream=state.stream)


def refuse_recording() -> None:
    """Raise RuntimeError while a CUDA graph is recorded."""
    if state.capturing:
        raise RuntimeError("a graph repeats the random numbers of its recording, so every step would round alike")
