"""A training step on many GPUs by a model: collectives on two kinds of links, memory, the bubble, and failures.

Chapter: notebooks/104_thousands_of_gpus.ipynb.  PMPP 4e ch. 20.

Nobody who reads this has 4,096 GPUs at hand. So the times of such a step are computed, from what one GPU and one
message cost. `two_levels` is a program of ranks, and clocks of simulated ranks check its formula. The rest is
arithmetic: a transformer is cut by a `Plan`, `step` adds up where the time goes, `memory` where the bytes go, and
`kept` says which share of the time is left when GPUs fail.

Sources: D. Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM (2021),
for the operations of a step and for plans; S. Rajbhandari et al., ZeRO: memory optimizations toward training trillion
parameter models (2020), and V. Korthikanti et al., Reducing activation recomputation in large transformer models
(2022), for memory; J. W. Young, A first order approximation to the optimum checkpoint interval (1974).
"""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass

import numpy as np

from pmpp.parallel import all_reduce
from pmpp.parallel.group import Group
from pmpp.parallel.pipeline import bubble
from pmpp.parallel.traffic import Links, Nodes
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number

__all__ = [
    "Machine",
    "Memory",
    "Network",
    "Plan",
    "Step",
    "checkpoint_interval",
    "double_tree_seconds",
    "kept",
    "memory",
    "ring_seconds",
    "step",
    "two_levels",
    "two_levels_seconds",
]


# ------------------------------------------------------------------------------------------- collectives on two levels


def two_levels(group: Group, x: typing.Any, per_node: int) -> typing.Any:
    """All-reduce in three parts: scattered sums in each machine, a ring between machines, and handing round inside.

    Rank k of a machine has the sum of part k of the machine's arrays. The ranks k of all machines sum these parts, each
    by its own link out of its machine. So a slow link carries a part, where a ring of all ranks sends whole arrays.

    Args:
        group: of all ranks that call it; machine i has the ranks from ``i * per_node`` on.
        x: a float32 array, of one shape on all ranks.
        per_node: ranks a machine. Raises ValueError if it does not divide ``group.size``.

    Returns a new array, with the same bits on all ranks.

    >>> from pmpp import parallel
    >>> step = lambda group: two_levels(group, np.float32([1, group.rank, 5]), 2).copy_to_host()
    >>> parallel.ranks(4, step)[3]
    array([ 4.,  6., 20.], dtype=float32)
    """
    if group.size % as_integer("per_node", per_node, 1):
        raise ValueError(f"per_node must divide the {group.size} ranks of the group, was {per_node}")
    x = device.to_host(device.as_input("x", x, dtypes=("float32",), ndim=tuple(range(33))))
    machine = group.split(colour=group.rank // per_node)
    across = group.split(colour=group.rank % per_node)
    share = -(-x.size // per_node)
    parts = np.zeros((per_node, share), np.float32)  # the last part is filled with zeros
    parts.reshape(-1)[: x.size] = x.reshape(-1)
    mine = all_reduce.ring(across, machine.reduce_scatter(parts))
    return machine.all_gather(mine).reshape(-1)[: x.size].reshape(x.shape)


def ring_seconds(nbytes: float, size: int, links: Links | Nodes) -> float:
    """A ring of all ranks, in the order of the machines. Every step waits for the slowest link.

    >>> ring_seconds(1000.0, 4, Links(latency=1.0, bandwidth=1000.0))
    7.5
    """
    slowest = links.of(0, size - 1)  # of two machines, if there are several
    return 2 * (size - 1) * slowest.seconds(nbytes / size)


def double_tree_seconds(nbytes: float, size: int, links: Links | Nodes) -> float:
    """Two trees at once, in which every rank is a leaf of one: each carries half of the array, in many small pieces.

    The pieces follow one another, so the steps of the tree cost alphas alone, and the bytes cross a link twice.

    Source: P. Sanders, J. Speck and J. L. Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan
    (2009).

    >>> double_tree_seconds(1000.0, 8, Links(latency=1.0, bandwidth=1000.0))
    8.0
    """
    slowest = links.of(0, size - 1)
    steps = (size - 1).bit_length()
    return 2 * steps * slowest.latency + 2 * nbytes / slowest.bandwidth if size > 1 else 0.0


def two_levels_seconds(nbytes: float, size: int, links: Links | Nodes) -> float:
    """The three parts of `two_levels`, of which the middle one is the better of a ring and of two trees.

    >>> links = Nodes(2, Links(1.0, 1000.0), Links(10.0, 100.0))
    >>> two_levels_seconds(1000.0, 4, links), ring_seconds(1000.0, 4, links)
    (28.0, 75.0)
    """
    if isinstance(links, Links) or size <= links.size:
        return ring_seconds(nbytes, size, links)
    nodes, share = -(-size // links.size), nbytes / links.size
    across = min(ring_seconds(share, nodes, links.between), double_tree_seconds(share, nodes, links.between))
    return ring_seconds(nbytes, links.size, links.inside) + across


# ------------------------------------------------------------------------------------------------------ what is trained


@dataclass(frozen=True)
class Network:
    """A transformer of ``layers`` of a ``width``, for texts of ``length`` tokens out of a ``vocabulary``.

    >>> f"{Network(80, 8192, 128256, 8192).parameters / 1e9:.1f}"
    '65.5'
    """

    layers: int
    width: int
    vocabulary: int
    length: int

    @property
    def parameters(self) -> int:
        """Of a layer 12 times the width squared: attention has four such matrices, the two after it have eight."""
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width

    @property
    def flops(self) -> float:
        """Of a token, forward and backward: six for each parameter, and the products of attention."""
        return 6.0 * self.parameters + 12.0 * self.layers * self.width * self.length


@dataclass(frozen=True)
class Machine:
    """GPUs as the model sees them.

    Attributes: flops, a second, as products of matrices reach them; memory, bytes of a GPU; links, with the number of
    GPUs that are in one machine.
    """

    flops: float
    memory: float
    links: Nodes


class Plan(typing.NamedTuple):
    """How a network and a batch are cut.

    Attributes:
        data: replicas, each of which has a part of the batch.
        tensor: GPUs that share each layer. They are neighbours, in one machine as far as they fit.
        pipeline: stages.
        micro_batches: pieces that a replica's part of the batch goes through the stages in.
        shard: what the replicas divide among themselves, as ZeRO counts: 0, nothing; 1, the optimiser's state;
            2, the gradients, too; 3, the parameters as well.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1
    shard: int = 0

    @property
    def gpus(self) -> int:
        """How many the plan needs."""
        return self.data * self.tensor * self.pipeline

    def checked(self) -> Plan:
        """The plan itself. Raises TypeError and ValueError for what makes none."""
        for name in ("data", "tensor", "pipeline", "micro_batches"):
            as_integer(name, getattr(self, name), 1)
        as_integer("shard", self.shard, 0, 3)
        return self


# --------------------------------------------------------------------------------------------------------------- memory


class Memory(typing.NamedTuple):
    """Bytes of one GPU."""

    parameters: float
    gradients: float
    optimiser: float
    activations: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def memory(network: Network, plan: Plan, tokens: float) -> Memory:
    """What a GPU keeps, of the first stage, which keeps most.

    Parameters and gradients are float16 or bfloat16. Adam has three float32 numbers of each parameter: a copy of it,
    and two moments. A layer keeps 34 bytes of activations for each token and unit of width, if attention is computed in
    tiles. A stage keeps as many micro-batches as there are stages, as 1F1B does.

    Args:
        tokens: of the whole batch.

    >>> round(memory(Network(80, 8192, 128256, 8192), Plan(), 8192).optimiser / 1e9)
    786
    """
    plan = plan.checked()
    share = network.parameters / (plan.tensor * plan.pipeline)
    divided = [plan.data if plan.shard >= stage else 1 for stage in (3, 2, 1)]
    micro = tokens / plan.data / plan.micro_batches
    waiting = min(plan.pipeline, plan.micro_batches)
    activations = 34.0 * micro * network.width * network.layers / plan.pipeline * waiting / plan.tensor
    return Memory(*(n * share / parts for n, parts in zip((2, 2, 12), divided, strict=True)), activations)


# ----------------------------------------------------------------------------------------------------------------- time


class Step(typing.NamedTuple):
    """Seconds of a step, by what a GPU does: it computes, or waits for one of four things."""

    compute: float
    tensor: float
    bubble: float
    stages: float
    data: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)

    @property
    def efficiency(self) -> float:
        """The share in which the GPU computes."""
        return self.compute / self.total


def step(network: Network, plan: Plan, machine: Machine, tokens: float) -> Step:
    """Where the time of a step goes.

    Args:
        tokens: of the whole batch.

    - Each layer has two all-reduces of activations forward and two backward among the GPUs that share it. Nothing can
      be computed meanwhile.
    - A micro-batch crosses from stage to stage, forward and backward. The bubble is that of `pipeline.bubble`.
    - Replicas sum gradients, while the last micro-batch is on its way back; what takes longer than that, they wait.
      With ``shard=3`` they also gather parameters, twice for each micro-batch, while they compute with others.
    """
    plan = plan.checked()
    micro = tokens / plan.data / plan.micro_batches
    cut = plan.tensor * plan.pipeline
    compute = network.flops * micro / cut / machine.flops  # of a micro-batch on one stage
    activations = 2.0 * micro * network.width
    tensor = 4 * network.layers / plan.pipeline * two_levels_seconds(activations, plan.tensor, machine.links)
    hops = 2 * machine.links.between.seconds(activations / plan.tensor) if plan.pipeline > 1 else 0.0
    passes = plan.micro_batches * (compute + tensor)
    waits = passes * bubble(plan.pipeline, plan.micro_batches) / (1 - bubble(plan.pipeline, plan.micro_batches))
    stages = hops * (plan.micro_batches + plan.pipeline - 1)
    exposed = _exposed(network, plan, machine, compute)
    return Step(plan.micro_batches * compute, plan.micro_batches * tensor, waits, stages, exposed)


def _exposed(network: Network, plan: Plan, machine: Machine, compute: float) -> float:
    """What replicas wait for one another, beyond what they compute at the same time."""
    if plan.data == 1:
        return 0.0
    near = max(1, machine.links.size // plan.tensor)  # replicas in one machine
    links = Nodes(near, machine.links.inside, machine.links.between)
    gradients = 2.0 * network.parameters / (plan.tensor * plan.pipeline)
    summed = two_levels_seconds(gradients, plan.data, links)
    if plan.shard < 3:
        return max(0.0, summed - 2 / 3 * compute)  # the backward pass is two thirds
    gathered = summed / 2  # it has half the steps and bytes of an all-reduce
    each = 3 * gathered  # forward, backward, and the gradients' scattered sums
    return plan.micro_batches * max(0.0, each - compute)


# ------------------------------------------------------------------------------------------------------------- failures


def checkpoint_interval(writes: float, between: float) -> float:
    """The seconds between two checkpoints that lose the least time.

    Args:
        writes: seconds that a checkpoint takes.
        between: seconds between two failures, on average.

    >>> round(checkpoint_interval(60.0, 12 * 3600.0))
    2277
    """
    as_number("writes", writes, 0, dtype=np.float64)
    as_number("between", between, 0, dtype=np.float64)
    return math.sqrt(2 * writes * between)


def kept(interval: float, writes: float, between: float, restart: float) -> float:
    """The share of the time that is left for training.

    A checkpoint is written after each interval. A failure loses half an interval on average, and the restart.

    >>> round(kept(2277.0, 60.0, 12 * 3600.0, 300.0), 3)
    0.941
    """
    written = interval / (interval + writes)
    lost = ((interval + writes) / 2 + restart) / between
    return max(0.0, written * (1 - lost))
