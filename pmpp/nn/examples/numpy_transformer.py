"""The transformer of `pmpp.nn.examples.transformer` in NumPy, on the CPU: reading a text, and writing with a cache.

It is the same network with the same parameters, line by line what `Transformer.forward` does. Chapter 106 compares with
it, in results and in time.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping

import numpy as np

__all__ = ["NumpyTransformer"]


class NumpyTransformer:
    """A decoder with the state of a `Transformer`, for one text.

    Args:
        state: what ``net.state_dict()`` returns.
        layers, heads: of the network.

    >>> from pmpp.nn.examples.transformer import Transformer
    >>> net = Transformer(layers=1, width=8, heads=2, length=4, vocabulary=5)
    >>> NumpyTransformer(net.state_dict(), 1, 2).read(np.array([3, 1])).shape
    (2, 5)
    """

    def __init__(self, state: Mapping[str, np.ndarray], layers: int, heads: int) -> None:
        self.state, self.layers, self.heads = state, layers, heads
        self.cache: list[list[np.ndarray]] = []
        self.used = 0

    def read(self, tokens: np.ndarray) -> np.ndarray:
        """Scores (length, vocabulary) of what comes after each of the tokens (length,). Keys and values are kept."""
        self.cache, self.used = [[] for _ in range(self.layers)], 0
        return self.go_on(tokens)

    def go_on(self, tokens: np.ndarray) -> np.ndarray:
        """The same for tokens that follow what was read: they see that, too."""
        s = self.state
        x = s["tokens.weight"][tokens] + s["places.weight"][self.used : self.used + len(tokens)]
        for i in range(self.layers):
            x = x + self.linear(
                self.attend(i, self.linear(self.normalised(x, f"block{i}.norm1"), f"block{i}.qkv")), f"block{i}.out"
            )
            hidden = gelu(self.linear(self.normalised(x, f"block{i}.norm2"), f"block{i}.up"))
            x = x + self.linear(hidden, f"block{i}.down")
        self.used += len(tokens)
        return self.normalised(x, "norm") @ s["tokens.weight"].T

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        """A linear layer."""
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def normalised(self, x: np.ndarray, name: str) -> np.ndarray:
        """Layer normalisation."""
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-5))
        return x * self.state[f"{name}.weight"] + self.state[f"{name}.bias"]

    def attend(self, i: int, qkv: np.ndarray) -> np.ndarray:
        """Attention of new tokens on all so far, whose keys and values are kept. Each sees those up to itself."""
        length, width = len(qkv), qkv.shape[1] // 3
        q, *new = qkv.reshape(length, 3, self.heads, width // self.heads).transpose(1, 2, 0, 3)
        if self.used:
            new = [np.concatenate(both, axis=1) for both in zip(self.cache[i], new, strict=True)]
        self.cache[i] = new
        keys, values = new
        scores = q @ keys.transpose(0, 2, 1) / np.float32(math.sqrt(q.shape[2]))
        scores[:, ~np.tri(length, keys.shape[1], self.used, bool)] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        return (weights @ values).transpose(1, 0, 2).reshape(length, width)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the probability that a standard normal number is below it."""
    from scipy.special import erf

    half, root = np.float32(0.5), np.float32(math.sqrt(0.5))
    return typing.cast(np.ndarray, half * x * (1 + erf(x * root)))
