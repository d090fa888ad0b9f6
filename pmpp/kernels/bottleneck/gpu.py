"""A GPU that keeps the bill: what a program of the host launches, copies and waits for is counted.

`slow` is a training loop with three faults, for the exercise "bottleneck/cure". It learns the vector that is nearest to
all of its batches: each step moves w towards a batch, and its loss is the sum of the squared distances.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.runtime import device

__all__ = ["Gpu", "distance_kernel", "loss_kernel", "move_kernel", "scale_kernel", "slow", "step_kernel"]

BLOCK = 64


class Gpu:
    """Does what it is asked, and counts it. Every copy makes the host wait until the GPU is done.

    Attributes: launches; waits; copied, in bytes.
    """

    def __init__(self) -> None:
        self.launches = self.waits = self.copied = 0

    def to_device(self, x: np.ndarray) -> typing.Any:
        """A copy of x on the device."""
        self.waits += 1
        self.copied += x.nbytes
        return device.to_device(x)

    def to_host(self, x: typing.Any) -> np.ndarray:
        """A copy of x on the host, with all that was launched before done."""
        self.waits += 1
        self.copied += x.size * x.dtype.itemsize
        return device.to_host(x)

    def empty(self, n: int) -> typing.Any:
        """n float32 on the device, not yet written."""
        return device.empty(n, np.float32)

    def launch(self, kernel: typing.Any, *arguments: typing.Any) -> None:
        """``kernel[1, 64](*arguments)``, without waiting for it."""
        self.launches += 1
        kernel[1, BLOCK](*arguments)

    def bill(self, losses: typing.Any) -> np.ndarray:
        """The losses, then how many launches and waits they took, and how many bytes were copied."""
        return np.array([*losses, self.launches, self.waits, self.copied], np.float64)


@cuda.jit
def distance_kernel(w, x, d):
    """d = w - x."""
    for i in range(cuda.threadIdx.x, w.size, BLOCK):
        d[i] = w[i] - x[i]


@cuda.jit
def loss_kernel(d, loss):
    """loss[0] = the sum of d * d."""
    if cuda.threadIdx.x == 0:
        total = np.float32(0)
        for i in range(d.size):
            total += d[i] * d[i]
        loss[0] = total


@cuda.jit
def scale_kernel(d, rate):
    """d = rate d."""
    for i in range(cuda.threadIdx.x, d.size, BLOCK):
        d[i] *= rate


@cuda.jit
def move_kernel(w, d):
    """w = w - d."""
    for i in range(cuda.threadIdx.x, w.size, BLOCK):
        w[i] -= d[i]


@cuda.jit
def step_kernel(batches, k, w, rate, losses):
    """The four others for row k of all batches; the loss goes to losses[k]."""
    if cuda.threadIdx.x == 0:
        total = np.float32(0)
        for i in range(w.size):
            d = w[i] - batches[k, i]
            total += d * d
        losses[k] = total
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, w.size, BLOCK):
        w[i] -= rate * (w[i] - batches[k, i])


def slow(batches, start, rate):
    """The loop to cure: batches (steps, n) and start (n,), float32. Returns the bill with a loss for each step."""
    gpu = Gpu()
    w, d, loss = gpu.to_device(start), gpu.empty(start.size), gpu.empty(1)
    losses = []
    for batch in batches:
        x = gpu.to_device(batch)
        gpu.launch(distance_kernel, w, x, d)
        gpu.launch(loss_kernel, d, loss)
        losses.append(gpu.to_host(loss)[0])
        gpu.launch(scale_kernel, d, rate)
        gpu.launch(move_kernel, w, d)
    return gpu.bill(losses)
