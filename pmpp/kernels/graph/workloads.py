"""What is measured of ``graph``: R-MAT graphs, and graphs on which a search takes many levels or one long list.

No library on the measuring machines searches a graph on a GPU: CuPy's `cupyx.scipy.sparse.csgraph` asks for
pylibcugraph, which is not there. SciPy searches on the CPU, and is measured beside the rungs.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable

import numpy as np

from pmpp.kernels.graph import graphs
from pmpp.kernels.graph import ladder as room
from pmpp.kernels.graph.by_launches import levels_by_launches
from pmpp.lab.measure.arrays import on_device, view, xp
from pmpp.lab.measure.bench import Workload
from pmpp.runtime import device

SCALES = [10, 14, 18, 20, 22]
EACH = 16  # edges drawn for a vertex; each is stored with both of its ends
SIDES = [1024, 4096]  # of grids, whose vertices have up to four neighbours
LENGTH = 2**12  # of the path
LEAVES = 2**16  # of the hub: a thread alone takes half a microsecond for each
COLD = 2**26  # bytes, from which on nothing stays in a cache from one launch to the next


def _sent(starts: typing.Any, neighbours: typing.Any, source: int) -> tuple:
    return on_device(starts.copy()), on_device(neighbours.copy()), source


@functools.lru_cache(maxsize=1)
def _rmat(scale: int) -> tuple:
    """The graph, and as its source the first vertex that has an edge."""
    tails, heads = graphs.edges_rmat(scale, EACH, arrays=xp())
    starts, neighbours = graphs.both_ways(tails, heads, 1 << scale, arrays=xp())
    return starts, neighbours, int(xp().argmax(starts[1:] > 0))


def rmat(scale: int, seed: int) -> tuple:
    """The same graph for each seed: to draw one of scale 22 takes longer than all rungs."""
    return _sent(*_rmat(scale))


def grid(side: int, seed: int) -> tuple:
    """Points in a square, each joined to those beside, above and below; from a corner."""
    point = xp().arange(side * side, dtype=np.int32).reshape(side, side)
    tails = xp().concatenate([point[:, :-1].ravel(), point[:-1].ravel()])
    heads = xp().concatenate([point[:, 1:].ravel(), point[1:].ravel()])
    return _sent(*graphs.both_ways(tails, heads, side * side, arrays=xp()), 0)


def path(length: int, seed: int) -> tuple:
    """Each vertex is joined to the next one; from one end."""
    line = xp().arange(length - 1, dtype=np.int32)
    return _sent(*graphs.both_ways(line, line + 1, length, arrays=xp()), 0)


def hub(leaves: int, seed: int) -> tuple:
    """One vertex is joined to all others; from one of these."""
    ends = xp().arange(1, leaves + 1, dtype=np.int32)
    return _sent(*graphs.both_ways(xp().zeros_like(ends), ends, leaves + 1, arrays=xp()), 1)


def verify(result: typing.Any, starts: typing.Any, neighbours: typing.Any, source: typing.Any) -> tuple[float, float]:
    """How many vertices and edges contradict the levels of an undirected graph; none may.

    Levels are right if the source alone has level 0, if no edge leads more than one level up or to a vertex without
    one, and if every other vertex with a level has a neighbour one level below.
    """
    levels = view(result)
    tails = xp().searchsorted(starts, xp().arange(neighbours.size, dtype=starts.dtype), side="right") - 1
    here, there = levels[tails], levels[neighbours]
    too_far = ((here >= 0) & ((there < 0) | (there > here + 1))).sum()
    below = xp().zeros(levels.size, np.bool_)
    below[neighbours[(here >= 0) & (there == here + 1)]] = True
    alone = ((levels > 0) & ~below).sum()
    sources = abs(int((levels == 0).sum()) - 1) + abs(int(levels[int(source)]))
    return float(int(too_far) + int(alone) + int((levels < -1).sum()) + sources), 0.0


def on_host(starts: typing.Any, neighbours: typing.Any, source: int) -> tuple:
    return device.to_host(starts), device.to_host(neighbours), source


def searched_by_scipy(starts: np.ndarray, neighbours: np.ndarray, source: int) -> np.ndarray:
    """Levels out of the order in which SciPy visits, and of who led to whom: a small part of the time."""
    from scipy import sparse

    vertices = starts.size - 1
    matrix = sparse.csr_array((np.ones(neighbours.size, np.int8), neighbours, starts), shape=(vertices, vertices))
    order, parents = sparse.csgraph.breadth_first_order(matrix, source)
    place = np.empty(vertices, np.int64)
    place[order] = np.arange(order.size)
    parent = np.append(-1, place[parents[order[1:]]])  # where in the order each one's parent stands: it never falls
    levels, begin, end, depth = np.full(vertices, -1, np.int32), 0, 1, 0
    while begin < end:
        levels[order[begin:end]] = depth
        begin, end, depth = end, int(np.searchsorted(parent, end)), depth + 1
    return levels


def _workload(family: str, name: str, make: Callable, vertices: int, edges: int, **more: typing.Any) -> Workload:
    cost = room.cost(vertices, edges)
    given = {
        "sizes": {"vertices": vertices, "edges": edges},
        "rungs": (*room.LADDER, levels_by_launches),
        "verify": verify,
        "cache": "cold" if cost.bytes >= COLD else "warm",
        "host": {"scipy.breadth_first_order": searched_by_scipy},
        "host_args": on_host,
        "quick": more.get("design", False),
    }
    return Workload(family=family, name=name, cost=cost, make=make, **given | more)


def _rmat_of(scale: int) -> Workload:
    make = functools.partial(rmat, scale)
    return _workload("R-MAT", f"scale {scale}", make, 1 << scale, 2 * EACH << scale, design=scale == 22)


def _grid_of(side: int) -> Workload:
    """Without `by_edge`, which would read all edges in each of thousands of levels: that takes a second."""
    rungs = (*(rung for rung in room.LADDER if rung is not room.by_edge), levels_by_launches)
    return _workload("grid", f"{side}^2", functools.partial(grid, side), side**2, 4 * side * (side - 1), rungs=rungs)


WORKLOADS = [
    _rmat_of(22),
    _workload("hub", f"of {LEAVES:,}", functools.partial(hub, LEAVES), LEAVES + 1, 2 * LEAVES),
    _workload("path", f"of {LENGTH:,}", functools.partial(path, LENGTH), LENGTH, 2 * LENGTH - 2, quick=True),
    *map(_grid_of, SIDES),
    *(_rmat_of(scale) for scale in SCALES if scale != 22),
]
