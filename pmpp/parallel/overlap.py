"""The time of a step of data parallelism by a model: compute, all-reduces in buckets, and how far both overlap.

The backward pass has the gradients of the last parameters first. As soon as all gradients of a bucket are there, the
bucket can be summed, while the backward pass goes on. The links carry one bucket at a time. All times are predicted,
from the alpha-beta model of `pmpp.parallel.traffic` and from given times of computation. Nothing here is measured.

Source: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (2020), section 3.2.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pmpp.parallel import all_reduce
from pmpp.parallel.data import grouped
from pmpp.parallel.traffic import Links

__all__ = ["Layer", "Step", "Sum", "step", "timeline"]


class Layer(typing.NamedTuple):
    """Parameters of ``nbytes``, and the ``seconds`` that the backward pass takes for their gradients."""

    nbytes: int
    seconds: float


class Sum(typing.NamedTuple):
    """The all-reduce of a bucket: its bytes; when its gradients are ready; when the all-reduce begins and ends."""

    nbytes: int
    ready: float
    begin: float
    end: float


@dataclass(frozen=True)
class Step:
    """A step on each rank, in seconds: ``compute``, and ``total`` with the time that a rank waits for all-reduces."""

    compute: float
    total: float

    @property
    def waiting(self) -> float:
        """The time in which a rank computes nothing."""
        return self.total - self.compute


def timeline(
    layers: Sequence[Layer],
    bucket: int,
    size: int,
    links: Links,
    *,
    overlap: bool = True,
    algorithm: Callable = all_reduce.ring,
    last: int | None = None,
) -> list[Sum]:
    """The all-reduces of a backward pass, which begins at 0, in order.

    Args:
        layers: in the order of the forward pass.
        bucket: bytes of gradients that are summed at a time, as for `pmpp.parallel.data.buckets_of`.
        size: how many ranks.
        links: what a message costs.
        overlap: False if nothing is sent before the backward pass has ended.
        algorithm: a function of `pmpp.parallel.all_reduce.LADDER`.
        last: bytes of the last bucket, ``bucket`` at most; None for no limit of its own.

    >>> two = [Layer(1000, 1.0), Layer(1000, 1.0)]
    >>> slow = Links(latency=0.0, bandwidth=1000.0)
    >>> [(one.ready, one.end) for one in timeline(two, 1000, 2, slow)]
    [(1.0, 2.0), (2.0, 3.0)]
    >>> [(one.ready, one.end) for one in timeline(two, 2000, 2, slow)]
    [(2.0, 4.0)]
    >>> [(one.ready, one.end) for one in timeline(two, 2000, 2, slow, last=1000)]
    [(1.0, 2.0), (2.0, 3.0)]
    """
    there = list(itertools.accumulate(layer.seconds for layer in reversed(layers)))[::-1]  # by layer: when
    found: list[Sum] = []
    free = 0.0
    for places in grouped([layer.nbytes for layer in layers], bucket, last):
        nbytes = sum(layers[k].nbytes for k in places)
        ready = there[places[-1]] if overlap else there[0]
        begin = max(ready, free)
        free = begin + all_reduce.seconds(algorithm, size, nbytes, links)
        found.append(Sum(nbytes, ready, begin, free))
    return found


def step(
    layers: Sequence[Layer], examples: int, size: int, links: Links, *, bucket: int = 25 << 20, overlap: bool = True
) -> Step:
    """A step in which each rank computes ``examples``, without that of the optimiser.

    Args:
        layers: with the seconds of one example. The forward pass takes half as long as the backward pass, since it has
            one product for each layer in place of two.
        examples: of a rank.
        size, links, bucket, overlap: as for `timeline`.

    >>> step([Layer(1000, 1.0)], 4, 2, Links(latency=0.0, bandwidth=1000.0))
    Step(compute=6.0, total=7.0)
    """
    scaled = [Layer(layer.nbytes, examples * layer.seconds) for layer in layers]
    backward = sum(layer.seconds for layer in scaled)
    sums = timeline(scaled, bucket, size, links, overlap=overlap)
    return Step(1.5 * backward, 0.5 * backward + max(backward, sums[-1].end))
