"""PageRank: which vertices are reached most often by somebody who follows edges by chance, and now and then jumps.

The rank of a vertex is the share of time that such a walker spends there. With the probability ``damping`` it follows
one of the vertex's edges, and otherwise it jumps to any vertex. From a vertex without edges it always jumps. So

    rank[v] = (1 - damping) / n + damping (sum of rank[u] / degree[u] over edges from u to v + D / n),

where D is the sum of the ranks of vertices without edges. Steps with this formula begin with equal ranks, and end when
a step changes the ranks by little. The sum is a product of a sparse matrix and a vector. There are two ways to it:

- *pull*: each vertex adds up what its incoming edges bring. Nobody else adds to its sum, so the order is fixed, and
  the same call gives the same bits. It is `sparse.merged`, whose rows are the lists of incoming edges.
- *push*: each edge adds what it brings to the sum of its head by an atomic, in whatever order.

Ranks are float32 and add up to 1; sums over all vertices are float64. They stay on the GPU as in
`pmpp.kernels.sparse.conjugate_gradient`: a kernel leaves a sum for each of its blocks, and the next kernel adds them.

Source: Brin and Page, "The anatomy of a large-scale hypertextual web search engine" (1998); Langville and Meyer,
Google's PageRank and Beyond, for vertices without edges.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.graph import ladder
from pmpp.kernels.sparse.conjugate_gradient import all_of, leave
from pmpp.kernels.sparse.ladder import merged
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number

__all__ = ["Ranks", "pagerank"]

BLOCK = 256  # threads a block
BLOCKS = 256  # of kernels that leave sums: one for each thread of the next
f0 = np.float64(0)


class Ranks(typing.NamedTuple):
    """What `pagerank` has found.

    Attributes:
        ranks: a device array (n,) of float32, which add up to 1.
        steps: how many steps were made. change: the sum of all |new - old| in the last one.
        converged: whether that is at most what was asked for.
    """

    ranks: typing.Any
    steps: int
    change: float
    converged: bool


@cuda.jit
def begin_kernel(starts, ranks, inverse, nowhere):
    """Equal ranks; 1 / degree of each vertex, and 0 of one without edges; and the sums of the ranks of those."""
    partial, total = cuda.shared.array(32, np.float64), f0
    for v in range(cuda.grid(1), ranks.size, cuda.gridsize(1)):
        degree = starts[v + 1] - starts[v]
        ranks[v] = np.float32(1) / np.float32(ranks.size)
        inverse[v] = np.float32(1) / np.float32(degree) if degree > 0 else np.float32(0)
        if degree == 0:
            total += ranks[v]
    leave(total, nowhere, partial)


@cuda.jit
def weights_kernel(in_neighbours, inverse, weights):
    """What share of its tail's rank an incoming edge brings."""
    j = cuda.grid(1)
    if j < weights.size:
        weights[j] = inverse[in_neighbours[j]]


@cuda.jit
def clear_kernel(brought):
    v = cuda.grid(1)
    if v < brought.size:
        brought[v] = 0


@cuda.jit
def push_kernel(tails, neighbours, ranks, inverse, brought):
    """Each edge adds its share of its tail's rank to what is brought to its head."""
    j = cuda.grid(1)
    if j < neighbours.size:
        cuda.atomic.add(brought, neighbours[j], ranks[tails[j]] * inverse[tails[j]])


@cuda.jit
def update_kernel(brought, inverse, ranks, damping, nowhere, next_nowhere, changes):
    """The new ranks. Leaves sums of the ranks of vertices without edges, and of how much all have changed."""
    partial, without, change = cuda.shared.array(32, np.float64), f0, f0
    jumped = (1 - damping + damping * all_of(nowhere, partial)) / ranks.size
    for v in range(cuda.grid(1), ranks.size, cuda.gridsize(1)):
        new = np.float32(jumped + damping * brought[v])
        change += abs(np.float64(new) - ranks[v])
        ranks[v] = new
        if inverse[v] == 0:
            without += new
    leave(without, next_nowhere, partial)
    leave(change, changes, partial)


def pagerank(
    starts,
    neighbours,
    in_starts=None,
    in_neighbours=None,
    *,
    damping=0.85,
    tolerance=1e-6,
    most=100,
    every=5,
    by="pull",
    stream=0,
) -> Ranks:
    """Find the PageRank of each vertex.

    Args:
        starts, neighbours, in_starts, in_neighbours: the graph, as `ladder.arguments` takes it. An edge that occurs
            twice is followed twice as often.
        damping: the probability of following an edge, from 0 to 1.
        tolerance: how much a step may change the ranks when it is the last, as the sum of all changes; at least 0.
            Below about 1e-7 rounding decides.
        most: steps, at most; at least 1. every: after how many steps the host looks at the change; it waits then.
        by: "pull" or "push".
        stream: the stream to work on.

    Returns `Ranks`. With "pull" the same call gives the same bits.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.

    >>> from pmpp.kernels.graph import both_ways
    >>> from pmpp.kernels.graph.pagerank import pagerank
    >>> starts, neighbours = both_ways([0, 0, 0], [1, 2, 3], vertices=4)
    >>> found = pagerank(starts, neighbours)
    >>> [f"{rank:.3f}" for rank in found.ranks.copy_to_host()], found.converged
    (['0.480', '0.173', '0.173', '0.173'], True)
    """
    damping, tolerance = (float(as_number(*one)) for one in (("damping", damping, 0, 1), ("tolerance", tolerance, 0)))
    most, every = as_integer("most", most, 1), as_integer("every", every, 1)
    if not isinstance(by, str):
        raise TypeError(f"by must be 'pull' or 'push', was {by!r}")
    if by not in ("pull", "push"):
        raise ValueError(f"by must be 'pull' or 'push', was {by!r}")
    p = ladder.arguments(starts, neighbours, 0, in_starts, in_neighbours, stream=stream)
    bring = _pulling(p) if by == "pull" else _pushing(p)
    return _steps(p, bring, damping, tolerance, most, every)


def _pulling(p: typing.Any) -> typing.Callable:
    """What brings ranks along edges by `sparse.merged`: a function of ranks, inverse degrees and the sums."""
    weights = device.empty(p.in_neighbours.size, np.float32, stream=p.stream)
    ready = []

    def bring(ranks: typing.Any, inverse: typing.Any, brought: typing.Any) -> None:
        if weights.size and not ready:
            weights_kernel[blocks(weights.size, BLOCK), BLOCK, p.stream](p.in_neighbours, inverse, weights)
            ready.append(True)
        merged(weights, p.in_neighbours, p.in_starts, ranks, out=brought, stream=p.stream)

    return bring


def _pushing(p: typing.Any) -> typing.Callable:
    """The same by an atomic for each edge."""
    tails = device.empty(p.neighbours.size, np.int32, stream=p.stream)
    if tails.size:
        ladder.tails_kernel[blocks(tails.size, BLOCK), BLOCK, p.stream](p.starts, tails)

    def bring(ranks: typing.Any, inverse: typing.Any, brought: typing.Any) -> None:
        clear_kernel[blocks(brought.size, BLOCK), BLOCK, p.stream](brought)
        if tails.size:
            grid = blocks(tails.size, BLOCK)
            push_kernel[grid, BLOCK, p.stream](tails, p.neighbours, ranks, inverse, brought)

    return bring


def _steps(p: typing.Any, bring: typing.Callable, damping: float, tolerance: float, most: int, every: int) -> Ranks:
    """The steps of `pagerank`, whose arguments have been checked."""
    ranks, inverse, brought = (device.empty(p.result.size, np.float32, stream=p.stream) for _ in range(3))
    nowhere, next_nowhere, changes = (device.empty(BLOCKS, np.float64, stream=p.stream) for _ in range(3))
    begin_kernel[BLOCKS, BLOCK, p.stream](p.starts, ranks, inverse, nowhere)
    steps, change = 0, np.inf
    while change > tolerance and steps < most:
        bring(ranks, inverse, brought)
        update_kernel[BLOCKS, BLOCK, p.stream](brought, inverse, ranks, damping, nowhere, next_nowhere, changes)
        nowhere, next_nowhere = next_nowhere, nowhere
        steps += 1
        if steps % every == 0 or steps == most:
            if p.stream:
                p.stream.synchronize()
            change = float(device.to_host(changes).sum())
    return Ranks(ranks, steps, change, change <= tolerance)
