"""The training step of a small convolutional network in NumPy, for a fair time on a CPU.

A convolution is a product of matrices (im2col), which NumPy hands to a BLAS library that uses all cores. All other
operations of NumPy run on one core. With ``workers`` the images of a batch are shared out among threads, each of which
does the whole step for its share: NumPy lets go of Python's lock while it computes.

Activations lie as (channels, images, rows, columns). So one product serves all images of a batch, and neither its
operands nor its result have to be transposed.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pmpp.runtime.check import as_integer

__all__ = ["DIGITS", "LENET", "NumpyNetwork"]

#: What `NumpyNetwork` needs to know of a network beside its parameters: convolutions with their padding, linear layers.
LENET = ((("conv1", 2), ("conv2", 0)), ("fc1", "fc2", "fc3"))
DIGITS = ((("conv1", 1), ("conv2", 1)), ("head",))

SHARE = 8  # images for which a thread of its own is worth its start


class NumpyNetwork:
    """Convolutions, each followed by ReLU and 2 x 2 maximum pooling, then linear layers with ReLU between them.

    Args:
        layers: `LENET` or `DIGITS`.
        state: parameters by name, float32, as a network's ``state_dict`` has them. They are copied.
        lr, momentum: of stochastic gradient descent, as `pmpp.nn.optim.SGD` has them.
        workers: threads that share a batch.

    >>> from pmpp.nn.examples.digits import Net
    >>> net = NumpyNetwork(DIGITS, Net().state_dict())
    >>> net.scores(np.zeros((2, 1, 8, 8), np.float32)).shape
    (2, 10)
    """

    def __init__(
        self,
        layers: tuple[Sequence[tuple[str, int]], Sequence[str]],
        state: Mapping[str, np.ndarray],
        lr: float = 0.05,
        momentum: float = 0.9,
        workers: int = 1,
    ) -> None:
        self.convolutions, self.linears = layers
        self.parameters = {name: np.array(value, np.float32) for name, value in state.items()}
        self.velocities = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        self.lr, self.momentum = np.float32(lr), np.float32(momentum)
        self.workers = as_integer("workers", workers, 1)
        self._pool = ThreadPoolExecutor(self.workers) if self.workers > 1 else None

    def scores(self, images: np.ndarray) -> np.ndarray:
        """Scores (N, classes) of images (N, channels, rows, columns)."""
        return self._forward(images)[0]

    def gradients(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """The mean cross-entropy of a batch, and its gradient for each parameter."""
        n = len(labels)
        shares = max(1, min(self.workers, n // SHARE))
        if shares == 1:
            return self._share(images, labels, n)
        cuts = [n * i // shares for i in range(shares + 1)]
        parts = [(images[a:b], labels[a:b], n) for a, b in itertools.pairwise(cuts)]
        done = list(self._pool.map(lambda part: self._share(*part), parts))
        return sum(loss for loss, _ in done), {name: sum(made[name] for _, made in done) for name in self.parameters}

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Forward pass, backward pass, change of the parameters. Returns the loss before the change."""
        loss, made = self.gradients(images, labels)
        for name, parameter in self.parameters.items():
            velocity = self.velocities[name]
            velocity *= self.momentum
            velocity += made[name]
            parameter -= self.lr * velocity
        return loss

    # ------------------------------------------------------------------------------------------------ the two passes

    def _forward(self, images: np.ndarray) -> tuple[np.ndarray, list]:
        saved: list[typing.Any] = []
        x = np.ascontiguousarray(images.transpose(1, 0, 2, 3))
        for name, padding in self.convolutions:
            weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
            y, columns = convolution(x, weight, bias, padding)
            np.maximum(y, 0, out=y)
            pooled = max_pool(y)
            saved.append((x.shape, columns, y, pooled))
            x = pooled
        saved.append(x.shape)
        x = x.transpose(1, 0, 2, 3).reshape(images.shape[0], -1)
        for i, name in enumerate(self.linears):
            if i:
                x = np.maximum(x, 0)
            saved.append(x)
            x = x @ self.parameters[f"{name}.weight"].T + self.parameters[f"{name}.bias"]
        return x, saved

    def _share(self, images: np.ndarray, labels: np.ndarray, n: int) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradients of some images of a batch of n: what they add to those of the batch."""
        scores, saved = self._forward(images)
        scores -= scores.max(axis=1, keepdims=True)
        upstream = np.exp(scores)
        sums = upstream.sum(axis=1, keepdims=True)
        here = np.arange(len(labels)), labels
        loss = float((np.log(sums[:, 0]) - scores[here]).sum()) / n
        upstream /= sums
        upstream[here] -= 1
        upstream /= np.float32(n)
        return loss, self._backward(upstream, saved)

    def _backward(self, upstream: np.ndarray, saved: list) -> dict[str, np.ndarray]:
        made: dict[str, np.ndarray] = {}
        for i, name in reversed([*enumerate(self.linears)]):
            x = saved.pop()
            made[f"{name}.weight"], made[f"{name}.bias"] = upstream.T @ x, upstream.sum(axis=0)
            upstream = upstream @ self.parameters[f"{name}.weight"]
            if i:
                upstream *= x > 0
        channels, n, rows, columns_ = saved.pop()
        upstream = upstream.reshape(n, channels, rows, columns_).transpose(1, 0, 2, 3)
        for i, (name, padding) in reversed([*enumerate(self.convolutions)]):
            shape, columns, y, pooled = saved.pop()
            dy = max_pool_backward(upstream * (pooled > 0), y, pooled).reshape(len(y), -1)
            weight = self.parameters[f"{name}.weight"]
            made[f"{name}.weight"] = (dy @ columns.T).reshape(weight.shape)
            made[f"{name}.bias"] = dy.sum(axis=1)
            if i:  # nobody asks for the gradient of the images
                upstream = images_of_columns(weight.reshape(len(weight), -1).T @ dy, shape, weight.shape[2:], padding)
        return made


def convolution(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """A convolution with stride 1 of x (C, N, H, W) as one product. Returns it and the columns that it multiplied.

    The columns (C x R x S, N x P x Q) are what each element of the result sees of x.
    """
    channels, n, height, width = x.shape
    r, s = weight.shape[2:]
    if padding:
        padded = np.zeros((channels, n, height + 2 * padding, width + 2 * padding), np.float32)
        padded[:, :, padding:-padding, padding:-padding] = x
        x = padded
    p, q = height + 2 * padding - r + 1, width + 2 * padding - s + 1
    columns = np.empty((channels, r, s, n, p, q), np.float32)
    for i in range(r):
        for j in range(s):
            columns[:, i, j] = x[:, :, i : i + p, j : j + q]
    columns = columns.reshape(channels * r * s, n * p * q)
    y = weight.reshape(len(weight), -1) @ columns
    y += bias[:, None]
    return y.reshape(-1, n, p, q), columns


def images_of_columns(columns: np.ndarray, shape: tuple, kernel: tuple, padding: int) -> np.ndarray:
    """The gradient of x (its shape is given) from that of its columns: each element collects what saw it."""
    channels, n, height, width = shape
    r, s = kernel
    p, q = height + 2 * padding - r + 1, width + 2 * padding - s + 1
    columns = columns.reshape(channels, r, s, n, p, q)
    x = np.zeros((channels, n, height + 2 * padding, width + 2 * padding), np.float32)
    for i in range(r):
        for j in range(s):
            x[:, :, i : i + p, j : j + q] += columns[:, i, j]
    return x[:, :, padding : padding + height, padding : padding + width]


def _corners(x: np.ndarray) -> list[np.ndarray]:
    """The four elements of each window of 2 x 2, as views. A last row or column that is alone has none."""
    rows, columns = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    return [x[:, :, i:rows:2, j:columns:2] for i in range(2) for j in range(2)]


def max_pool(x: np.ndarray) -> np.ndarray:
    """The largest element of each window of 2 x 2."""
    a, b, c, d = _corners(x)
    return np.maximum(np.maximum(a, b), np.maximum(c, d))


def max_pool_backward(dy: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of x: that of y where x is the first largest of its window, 0 elsewhere."""
    dx = np.zeros(x.shape, np.float32)
    free = np.ones(y.shape, np.bool_)
    for target, value in zip(_corners(dx), _corners(x), strict=True):
        here = (value == y) & free
        np.multiply(dy, here, out=target)
        free ^= here
    return dx
