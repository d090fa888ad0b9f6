"""Exercises of notebooks/45_graphs.ipynb: who led to a vertex, shorter ways along edges, the parts of a graph."""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.graph.graphs import both_ways
from pmpp.kernels.graph.ladder import reference
from pmpp.lab.teach.exercise import Case, Exercise, Trap, unwritten

BLOCK = 256  # threads a block
FAR = 2**31 - 1  # the distance of what no way leads to, as far as is known
LOWER = "Take what is known from distances. Lower new by cuda.atomic.min alone: it compares and replaces in one step."
OWN = "No barrier orders the blocks. Let thread v read levels alone, and write parents[v] and no other."
GATHER = "No barrier orders the blocks. Only labels may be read, and only out[v] may be written."


def _blocks(n: int) -> int:
    return -(-n // BLOCK)  # rounded up


def _warps(n: int) -> int:
    return -(-n // 32)


def _graphs(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Undirected graphs from small to large: a name, starts and neighbours, where each list is in any order.

    Vertex 0 has an edge to another one.
    """
    line, ends = np.arange(39), np.arange(1, 60)

    def drawn(vertices: int, edges: int) -> tuple[np.ndarray, np.ndarray]:
        tails, heads = rng.integers(0, vertices, (2, edges))
        tails[0], heads[0] = 0, vertices - 1
        return both_ways(tails, heads, vertices)

    def shuffled(starts: np.ndarray, neighbours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """In ascending lists the first of some neighbours is the one with the smallest number, too."""
        whose = np.repeat(np.arange(starts.size - 1), np.diff(starts))
        return starts, neighbours[np.lexsort((rng.random(neighbours.size), whose))]

    graphs = {
        "two vertices": both_ways([0], [1], 2),
        "a square and a vertex alone": both_ways([0, 1, 2, 3], [1, 2, 3, 0], 5),
        "a path": both_ways(line, line + 1, 40),
        "a hub": both_ways(np.zeros(59, np.int32), ends, 60),
        "a block of vertices": drawn(BLOCK, 300),
        "a block and one": drawn(BLOCK + 1, 700),
        "700 vertices": drawn(700, 900),
    }
    return {name: shuffled(*graph) for name, graph in graphs.items()}


# ------------------------------------------------------------------------------------------------------- graph/parents


def _first(near: np.ndarray) -> int:
    return near[0]


def _last(near: np.ndarray) -> int:
    return near[-1]


def _parents_of(starts: np.ndarray, neighbours: np.ndarray, levels: np.ndarray, up: int = -1, pick=_first):
    """Of each vertex, the one that ``pick`` takes of its neighbours that are ``up`` levels further; -1 for none."""
    parents = np.full(levels.size, -1, np.int32)
    for v in range(levels.size):
        near = neighbours[starts[v] : starts[v + 1]]
        near = near[levels[near] == levels[v] + up]
        if near.size and levels[v] >= 0:
            parents[v] = pick(near)
    return parents


def _parents_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, (starts, neighbours) in _graphs(rng).items():
        levels = reference(starts, neighbours)
        args = starts, neighbours, levels, unwritten(levels.size, np.int32)
        expected = _parents_of(starts, neighbours, levels)
        cases.append(Case(name, args, _blocks(levels.size), BLOCK, {3: expected}))
    return cases


def _parents_budget(case: Case) -> dict[str, tuple[float, str]]:
    """Loads: three sectors an edge, so lists may be read to their ends. How much the answer reads is up to chance.

    Stores: twice what one of each vertex moves. The source and what no path leads to may have a store of their own.
    """
    edges, vertices = case.args[1].size, case.args[3].size
    return {
        "global_load_sectors": (3 * edges + vertices, "Read the list of v once, and no other."),
        "global_store_sectors": (
            2 * -(-vertices // 8),
            "Keep the parent in a variable, and write it once, behind the loop.",
        ),
    }


@cuda.jit
def parents_answer(starts, neighbours, levels, parents):
    v = cuda.grid(1)
    if v < parents.size:
        parent = -1
        for j in range(starts[v], starts[v + 1]):
            if levels[neighbours[j]] == levels[v] - 1:
                parent = neighbours[j]
                break
        parents[v] = parent


# ------------------------------------------------------------------------------------------------------ graph/shortest


def _shorter(tails: np.ndarray, heads: np.ndarray, weights: np.ndarray, distances: np.ndarray) -> np.ndarray:
    new, reached = distances.copy(), distances[tails] != FAR
    np.minimum.at(new, heads[reached], distances[tails[reached]] + weights[reached])
    return new


def _shortest_cases(rng: np.random.Generator) -> list[Case]:
    made = {
        "one edge": ([0], [1], 2),
        "two ways to one vertex": ([0, 1, 0], [1, 2, 2], 3),
        "a hub": (np.zeros(60, int), 1 + np.arange(60) % 20, 21),
        "all ways to one vertex": (np.arange(BLOCK), np.full(BLOCK, BLOCK), BLOCK + 1),
        "a block of edges and one": (*rng.integers(0, 50, (2, BLOCK + 1)), 50),
        "900 edges": (*rng.integers(0, 200, (2, 900)), 200),
    }
    cases = []
    for name, (tails, heads, vertices) in made.items():
        tails, heads = np.array(tails, np.int32), np.array(heads, np.int32)
        weights = rng.integers(1, 100, tails.size, dtype=np.int32)
        distances = rng.integers(0, 1000, vertices, dtype=np.int32)
        distances[rng.random(vertices) < 0.3] = FAR
        distances[tails[0]], distances[heads[0]] = 0, FAR  # so there is something to find
        args = tails, heads, weights, distances, distances.copy()
        cases.append(Case(name, args, _blocks(tails.size), BLOCK, {4: _shorter(tails, heads, weights, distances)}))
    return cases


@cuda.jit
def shortest_answer(tails, heads, weights, distances, new):
    j = cuda.grid(1)
    if j < tails.size and distances[tails[j]] != FAR:
        cuda.atomic.min(new, heads[j], distances[tails[j]] + weights[j])


def _beyond_far(tails, heads, weights, distances, new) -> dict[int, np.ndarray]:
    """What is further than the largest int32 becomes negative."""
    found = new.copy()
    with np.errstate(over="ignore"):
        np.minimum.at(found, heads, distances[tails] + weights)
    return {4: found}


# ---------------------------------------------------------------------------------------------------- graph/components


def _least(starts: np.ndarray, neighbours: np.ndarray, labels: np.ndarray, own: bool = True) -> np.ndarray:
    """Of each vertex, the least label of its neighbours, and its own."""
    out = labels.copy() if own else np.full(labels.size, FAR, np.int32)
    np.minimum.at(out, np.repeat(np.arange(labels.size), np.diff(starts)), labels[neighbours])
    return out


def _without_own(starts, neighbours, labels, out) -> dict[int, np.ndarray]:
    """The least of neighbours alone; a vertex without any may have anything."""
    return {3: np.where(np.diff(starts) > 0, _least(starts, neighbours, labels, own=False), np.nan)}


def _components_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, (starts, neighbours) in _graphs(rng).items():
        labels = rng.permutation(np.arange(10, starts.size + 9)).astype(np.int32)
        args = starts, neighbours, labels, unwritten(labels.size, np.int32)
        cases.append(Case(name, args, _blocks(labels.size), BLOCK, {3: _least(starts, neighbours, labels)}))
    return cases


@cuda.jit
def components_answer(starts, neighbours, labels, out):
    v = cuda.grid(1)
    if v < out.size:
        least = labels[v]
        for j in range(starts[v], starts[v + 1]):
            least = min(least, labels[neighbours[j]])
        out[v] = least


EXERCISES = (
    Exercise(
        "graph/parents",
        task="A search has found the levels of an undirected graph, -1 where no path leads. Write to parents[v] the "
        "first neighbour in v's list that is one level nearer to the source, and -1 for the source and for what no "
        f"path leads to. A thread takes one vertex. The launch has {BLOCK} threads a block.",
        parameters="starts, neighbours, levels, parents",
        cases=_parents_cases,
        budget=_parents_budget,
        answer=parents_answer,
        hints=(
            "The list of v is neighbours[starts[v]] up to, and without, neighbours[starts[v + 1]].",
            "A thread that has found a parent need not look any further.",
            "Nobody is nearer than the source, and who has level -1 has no neighbour with level -2.",
        ),
        traps=(
            Trap(
                "the last parent",
                "Of several neighbours that are nearer, the first in the list is asked for. Stop there.",
                lambda starts, neighbours, levels, parents: {3: _parents_of(starts, neighbours, levels, pick=_last)},
            ),
            Trap(
                "the smallest parent",
                "Of several neighbours that are nearer, the first in the list is asked for, whatever its number is.",
                lambda starts, neighbours, levels, parents: {3: _parents_of(starts, neighbours, levels, pick=np.min)},
            ),
            Trap(
                "a child taken for a parent",
                "The parent is one level nearer to the source, so its level is less by 1.",
                lambda starts, neighbours, levels, parents: {3: _parents_of(starts, neighbours, levels, up=1)},
            ),
        ),
        advice=dict.fromkeys(("missing barrier", "race", "race between blocks"), OWN),
    ),
    Exercise(
        "graph/shortest",
        task="Edges have lengths now. Edge j leads from tails[j] to heads[j] and is weights[j] long. distances has how "
        f"far each vertex is, as far as is known: {FAR:,} says that no way is known. new holds the same numbers. For "
        "each edge, lower new[heads[j]] to the distance by way of tails[j], if that is less. All are int32. A thread "
        f"takes one edge. The launch has {BLOCK} threads a block.",
        parameters="tails, heads, weights, distances, new",
        cases=_shortest_cases,
        budget=lambda case: {
            "atomic_requests": (_warps(case.args[0].size), "cuda.atomic.min compares and replaces in one atomic.")
        },
        answer=shortest_answer,
        hints=(
            "Several edges may lead to one vertex, so what is there must be compared and replaced in one step.",
            "cuda.atomic.min(array, index, value) does that.",
            f"{FAR:,} is the largest int32. What is larger by one becomes negative when it is stored as an int32.",
        ),
        traps=(
            Trap(
                "ways from nowhere",
                f"If no way leads to an edge's tail, none leads along the edge. {FAR:,} plus a length is too large for "
                "an int32, and becomes negative.",
                _beyond_far,
            ),
        ),
        advice=dict.fromkeys(("missing barrier", "race", "race between blocks"), LOWER),
    ),
    Exercise(
        "graph/components",
        task="To find the parts of an undirected graph that hang together, each vertex begins with a label of its own, "
        "and takes the least label that it sees, until nothing changes. Write one step: out[v] is the least of the "
        f"labels of v and of its neighbours. A thread takes one vertex. The launch has {BLOCK} threads a block.",
        parameters="starts, neighbours, labels, out",
        cases=_components_cases,
        budget=lambda case: {"atomic_requests": (0, "No vertex needs an atomic: one thread alone writes its label.")},
        answer=components_answer,
        hints=(
            "A vertex without neighbours keeps its own label.",
            "Keep the least label in a variable, and write it once.",
        ),
        traps=(
            Trap(
                "numbers for labels",
                "A neighbour's label is labels[w], and not its number w.",
                lambda starts, neighbours, labels, out: {
                    3: np.minimum(labels, _least(starts, neighbours, np.arange(labels.size, dtype=np.int32), own=False))
                },
            ),
            Trap(
                "own label forgotten",
                "The least is that of v's own label, labels[v], and of those of its neighbours.",
                _without_own,
            ),
        ),
        advice=dict.fromkeys(("missing barrier", "race between blocks"), GATHER),
    ),
)
