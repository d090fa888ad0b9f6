"""Handwritten digits: a small convolutional network, trained from random numbers by the kernels of this workbook.

``python -m pmpp.nn.examples.digits`` trains on 1,437 of scikit-learn's 1,797 digits of 8 x 8, and prints how many of
the other 360 it knows. It runs everywhere: on a GPU, and in the interpreter.

Optimiser, rate, batch and epochs were chosen without these 360: by training on 1,077 of the 1,437, from six seeds, and
looking at the other 360 of them. ``--validate`` splits like that, for trying others.
"""

from __future__ import annotations

import argparse
import time
import typing
from collections.abc import Iterator

import numpy as np

from pmpp import nn
from pmpp.lab.teach import data
from pmpp.nn import functional as F
from pmpp.nn.tape import Tensor
from pmpp.nn.utils.data import DataLoader, TensorDataset
from pmpp.runtime import device

HELD_OUT = 360
EPOCHS, BATCH, RATE = 8, 64, 0.1


class Net(nn.Module):
    """Two convolutions, a pooling after each, and a linear layer: for images of 8 x 8."""

    def __init__(self) -> None:
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, 10) of images (N, 1, 8, 8)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.head(x.flatten(1))


def split(
    images: np.ndarray, labels: np.ndarray, held_out: int, *, seed: int = 0, validate: bool = False
) -> tuple[TensorDataset, TensorDataset]:
    """Images (N, H, W) to train on, and ``held_out`` others, as (n, 1, H, W) and labels.

    The images are shifted and scaled so that the pixels of those to train on have mean 0 and deviation 1. With
    ``validate`` the second part is taken from those to train on, and the ones held out are in neither.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    first, last = order[held_out:], order[:held_out]
    if validate:
        first, last = first[held_out:], first[:held_out]
    images = images.reshape(len(images), 1, *images.shape[1:])
    images = (images - images[first].mean()) / images[first].std()
    return TensorDataset(images[first], labels[first]), TensorDataset(images[last], labels[last])


def datasets(seed: int = 0, *, validate: bool = False) -> tuple[TensorDataset, TensorDataset]:
    """Digits to train on, and `HELD_OUT` others, as (N, 1, 8, 8) and labels: see `split`."""
    return split(*data.digits(), HELD_OUT, seed=seed, validate=validate)


def scores(net: nn.Module, images: np.ndarray, batch: int = 512) -> np.ndarray:
    """What a network says of images, on the host."""
    net.eval()
    with nn.no_grad():
        parts = [net(Tensor(images[i : i + batch])).numpy() for i in range(0, len(images), batch)]
    net.train()
    return np.concatenate(parts)


def accuracy(net: nn.Module, dataset: TensorDataset) -> float:
    """The share of the examples that a network knows."""
    images, labels = dataset.arrays
    return float((scores(net, images).argmax(axis=1) == labels).mean())


def train(
    net: nn.Module, dataset: TensorDataset, epochs: int = EPOCHS, *, batch: int = BATCH, lr: float = RATE, seed: int = 0
) -> Iterator[tuple[int, float]]:
    """Train by stochastic gradient descent with momentum, and one cycle of the learning rate with a short way up.

    Yields (epoch, mean loss of its batches).
    """
    loader = DataLoader(dataset, batch, shuffle=True, seed=seed)
    optimizer = nn.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    schedule = nn.lr_scheduler.OneCycleLR(optimizer, lr, epochs * len(loader), pct_start=0.2, div_factor=5)
    for epoch in range(epochs):
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        yield epoch, float(np.mean([loss.item() for loss in losses]))


def main(argv: typing.Sequence[str] | None = None) -> float:
    """Train, and print accuracy and time. Returns the accuracy."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.examples.digits", description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="passes over the digits (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=BATCH, help="digits in a step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=RATE, help="the greatest learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the parameters and the order of the batches")
    parser.add_argument("--validate", action="store_true", help="keep the held-out digits for later, and use others")
    options = parser.parse_args(argv)
    for name in ("epochs", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, was {getattr(options, name)}")
    print(f"kernels run on: {device.describe()}")
    began = time.perf_counter()
    nn.manual_seed(options.seed)
    training, held_out = datasets(validate=options.validate)
    net = Net()
    for epoch, loss in train(net, training, options.epochs, batch=options.batch, lr=options.lr, seed=options.seed):
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {time.perf_counter() - began:.1f} s")
    found = accuracy(net, held_out)
    which = "validation" if options.validate else "held-out"
    print(f"{found:.1%} of {len(held_out)} {which} digits, {time.perf_counter() - began:.1f} s")
    return found


if __name__ == "__main__":
    main()
