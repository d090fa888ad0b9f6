"""Pipeline parallelism: every rank has some of the layers, and a batch goes through the ranks in micro-batches.

Rank s is *stage* s. It receives activations from stage s - 1, and sends its own to stage s + 1. Gradients come back the
other way. A stage that has nothing to do waits, and the time that it waits is the *bubble*. With p stages, m
micro-batches, and the same time for each stage, a step takes as long as m + p - 1 micro-batches in place of m. So the
bubble is (p - 1) / (m + p - 1) of the time, and more micro-batches make it smaller.

`gpipe` sends all micro-batches forward, and then all of them backward: a stage keeps the activations of all m.
`one_forward_one_backward` begins with the backward passes as soon as there are any: stage s keeps those of p - s. The
bubble is the same.

Source: Y. Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism (2019);
D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM (2021), 2.2.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pmpp import nn
from pmpp.nn.tape import Tensor
from pmpp.parallel.group import Group
from pmpp.parallel.simulated import work
from pmpp.runtime import device

__all__ = ["Pass", "Stage", "bubble", "gpipe", "one_forward_one_backward"]


def bubble(stages: int, count: int) -> float:
    """The share of a step in which a stage waits, with ``count`` micro-batches, if messages cost nothing.

    >>> bubble(4, 12)
    0.2
    """
    return (stages - 1) / (count + stages - 1)


class Pass(typing.NamedTuple):
    """A pass that a stage has made: "forward" or "backward", of which micro-batch, and when on the rank's clock."""

    kind: str
    k: int
    begin: float
    end: float


def clock(group: Group) -> float:
    """The seconds on the clock of a simulated rank. Ranks elsewhere have no clock, and it stays 0."""
    traffic = getattr(group._transport, "traffic", None)
    return 0.0 if traffic is None else traffic.clocks[group.members[group.rank]]


@dataclass
class Stage:
    """What a rank does with a micro-batch: its layers, and for the last rank the loss.

    Args:
        group: the ranks, a stage each, in order.
        net: this rank's layers.
        shape: of an activation that comes in; not needed on the first rank.
        inputs: on the first rank, an array for each micro-batch.
        loss: on the last rank, a function of the output and the number of the micro-batch, which returns a tensor of
            one element.
        seconds: what a forward and a backward pass take, for the clocks of simulated ranks.

    Attributes: most, of how many micro-batches activations were kept at once; losses, on the last rank; passes, what
    the stage has done, in order.
    """

    group: Group
    net: nn.Module
    shape: tuple[int, ...] = ()
    inputs: Sequence[np.ndarray] = ()
    loss: Callable[[Tensor, int], Tensor] | None = None
    seconds: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.most, self.losses = 0, []
        self.passes: list[Pass] = []
        self.first, self.last = self.group.rank == 0, self.group.rank == self.group.size - 1
        if self.last and self.loss is None:
            raise TypeError("loss must be a function on the last rank, was None")

    # ------------------------------------------------------------------------------------------------ compute

    def forward(self, k: int, x: typing.Any, count: int) -> typing.Any:
        """The activations of micro-batch k, or nothing on the last rank. x is None on the first rank."""
        given = Tensor(self.inputs[k]) if self.first else Tensor(x, requires_grad=True)
        y = self.net(given)
        if self.last:
            y = self.loss(y, k) * (1 / count)
            self.losses.append(y.detach().item())
        self._worked("forward", k, self.seconds[0])
        self.kept[k] = given, y
        self.most = max(self.most, len(self.kept))
        return None if self.last else y.detach().array

    def backward(self, k: int, dy: typing.Any) -> typing.Any:
        """Gradients of the parameters are added up. Returns that of micro-batch k's input; None on the first rank."""
        given, y = self.kept.pop(k)
        y.backward(None if self.last else Tensor(dy))
        self._worked("backward", k, self.seconds[1])
        return None if self.first else given.grad.array

    def _worked(self, kind: str, k: int, seconds: float) -> None:
        begin = clock(self.group)
        work(seconds)
        self.passes.append(Pass(kind, k, begin, clock(self.group)))

    # ------------------------------------------------------------------------------------------------ send, receive

    def from_before(self) -> typing.Any:
        """Receive activations."""
        return None if self.first else self.group.recv(device.empty(self.shape, np.float32), self.group.rank - 1)

    def to_next(self, y: typing.Any) -> None:
        """Send activations."""
        if not self.last:
            self.group.send(y, self.group.rank + 1)

    def from_next(self, shape: tuple[int, ...]) -> typing.Any:
        """Receive gradients."""
        return None if self.last else self.group.recv(device.empty(shape, np.float32), self.group.rank + 1)

    def to_before(self, dx: typing.Any) -> None:
        """Send gradients."""
        if not self.first:
            self.group.send(dx, self.group.rank - 1)

    def swap_with_next(self, y: typing.Any) -> typing.Any:
        """Send activations, and meanwhile receive gradients of an earlier micro-batch."""
        if self.last:
            return None
        peer = self.group.rank + 1
        return self.group.send_recv(y, peer, device.empty(y.shape, np.float32), peer)

    def swap_with_before(self, dx: typing.Any) -> typing.Any:
        """Send gradients, and meanwhile receive activations of a later micro-batch."""
        if self.first:
            return None
        peer = self.group.rank - 1
        return self.group.send_recv(dx, peer, device.empty(self.shape, np.float32), peer)


def gpipe(stage: Stage, count: int) -> None:
    """All micro-batches forward, and then all backward, the last one first."""
    for k in range(count):
        stage.to_next(stage.forward(k, stage.from_before(), count))
    for k in reversed(range(count)):
        stage.to_before(stage.backward(k, stage.from_next(stage.kept[k][1].shape)))


def one_forward_one_backward(stage: Stage, count: int) -> None:
    """After as many forward passes as there are stages behind, a backward pass follows each forward pass.

    Neighbours then send to each other at the same time. With a send that waits, each would wait for the other.
    """
    ahead = min(stage.group.size - 1 - stage.group.rank, count)
    for k in range(ahead):
        stage.to_next(stage.forward(k, stage.from_before(), count))
    x = stage.from_before() if ahead < count else None
    for k in range(ahead, count):
        dy = stage.swap_with_next(stage.forward(k, x, count))
        dx = stage.backward(k - ahead, dy)
        if k + 1 < count:
            x = stage.swap_with_before(dx)
        else:
            stage.to_before(dx)
    for k in range(count - ahead, count):
        stage.to_before(stage.backward(k, stage.from_next(stage.kept[k][1].shape)))
