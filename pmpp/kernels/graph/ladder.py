"""Breadth-first search: how many edges away from a source each vertex of a graph is.

Chapter: notebooks/45_graphs.ipynb.  PMPP 4e ch. 15; 5e ch. 18.

A graph is stored by compressed rows, as a sparse matrix without values: the neighbours of each vertex, one vertex after
another, and where each vertex's list starts. A search goes level by level. The *frontier* is the vertices that were
found last; whoever is next to one of them and has no level yet is the next frontier. Each list has to be read once, and
there is no arithmetic, so memory is the bound. The difficulties are that nobody knows beforehand who has work, that
lists have very different lengths, and that a level's result decides what the next one does.

All levels are one launch. The grid is as large as the GPU holds at once, and waits for itself between two levels
(`grid.sync()` of cooperative groups). So the number of a level's vertices never travels to the host.
"""

from __future__ import annotations

import typing

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.kernels.common.contents import check_places, check_starts
from pmpp.kernels.graph.graphs import both_ways, compressed, directed, edges_rmat
from pmpp.kernels.graph.lists import BLOCK, EDGE_BITS, EDGES, LIST, TILE, expand
from pmpp.kernels.graph.sets import KEPT, STEP, list_new, mark_first, pull, push
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.tile import SLOTS, scan_block
from pmpp.kernels.sparse.ladder import row_of
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("int32", "int64")  # of `starts`, the first argument
RESULT = np.int32
RESIDENT = 2  # blocks that a multiprocessor holds at once. The more blocks there are, the longer a grid takes to meet
HELD = 2048  # vertices that a block of `privatised` keeps before it hands them on
OF_LEFT, OF_VERTICES, OF_PULLED = 14, 24, 4  # when `direction_optimising` does what: see `Turns`
bounded = {"launch_bounds": (BLOCK, RESIDENT)}  # the compiler keeps to the registers that so many blocks have


def reference(starts, neighbours, source=0, in_starts=None, in_neighbours=None) -> np.ndarray:
    """Level by level: all that lies next to the last level and has none yet. -1 where no path leads."""
    levels = np.full(starts.size - 1, -1, np.int32)
    levels[source], frontier, depth = 0, [source], 0
    while frontier:
        depth += 1
        near = {int(w) for v in frontier for w in neighbours[starts[v] : starts[v + 1]]}
        frontier = [w for w in near if levels[w] < 0]
        levels[frontier] = depth
    return levels


def inputs(rng: np.random.Generator | None = None) -> dict[str, tuple]:
    """Small awkward inputs: a name, and the arguments of `reference`. The same every time."""
    rng = np.random.default_rng(45) if rng is None else rng
    none = np.zeros(0, np.int64)
    line, leaves = np.arange(39), np.arange(1, 301)
    made = {
        "one vertex": both_ways(none, none, 1),
        "no edges": (*both_ways(none, none, 5), 3),
        "one vertex and its loop": compressed([0], [0], 1),
        "loops, and edges twice": (*both_ways([0, 0, 1, 1, 2, 3, 3], [0, 1, 1, 2, 1, 4, 4], 5), 2),
        "a path, from its end": both_ways(line, line + 1, 40),
        "a hub, from a leaf": (*both_ways(np.zeros(300, int), leaves, 301), 300),
        "everyone knows everyone": both_ways(*np.triu_indices(48, 1), 48),
        "two parts": (*both_ways([0, 1, 4, 5, 6], [1, 2, 5, 6, 4], 8), 5),
        "a path one way": directed(line[:9], line[:9] + 1, 12, source=3),
    }
    for more in (-1, 0, 1):
        tails, heads = rng.integers(0, BLOCK + more, (2, 300))
        made[f"a block of vertices {more:+}"] = both_ways(tails, heads, BLOCK + more)
    # A vertex with TILE - 1, TILE or TILE + 1 edges to 40 others. Each of these leads to 8 of 40 behind, and each of
    # those is seen by several at once.
    among = np.arange(320)
    for more in (-1, 0, 1):
        tails = np.append(np.zeros(TILE + more, np.int64), 1 + among // 8)
        heads = np.append(1 + np.arange(TILE + more) % 40, 41 + (among // 8 * 5 + among) % 40)
        made[f"edges fill a tile {more:+}"] = directed(tails, heads, 81)
    tails, heads = rng.integers(0, 700, (2, 1500))
    made["one way, by chance"] = directed(tails, heads, 700, source=int(tails[0]))
    tails, heads = edges_rmat(9, 6)
    starts, neighbours = both_ways(tails, heads, 2**9, np.int64)
    made["power law, starts of 64 bits"] = starts, neighbours, int(np.argmax(np.diff(starts)))
    return made


def cost(vertices: int, edges: int) -> Cost:
    """No arithmetic. Each list is read once, with where it starts; each level is written once. ``edges``: as stored."""
    return Cost(flops=0, bytes=4 * edges + 4 * (vertices + 1) + 4 * vertices)


def tolerance(starts, neighbours, source=0, in_starts=None, in_neighbours=None) -> int:
    """None: levels are whole numbers."""
    return 0


def arguments(starts, neighbours, source=0, in_starts=None, in_neighbours=None, *, out=None, stream=0) -> Problem:
    """Find how many edges away from a source each vertex is.

    Args:
        starts: a contiguous vector (n + 1,) of int32 or int64, n >= 1: where in ``neighbours`` each vertex's list
            starts, and at the end how long all are. It must begin with 0 and never fall.
        neighbours: a contiguous vector (m,) of int32, m < 2^32: to which vertices edges lead, list by list, in any
            order. Loops, and edges that occur twice, change nothing. Each must be from 0 to n - 1. What these two
            arrays hold is checked if they are NumPy arrays, and is not if they are on the device already.
        source: the vertex to begin with, from 0 to n - 1.
        in_starts, in_neighbours: from which vertices edges come, in the same form and dtypes: the graph with its edges
            turned round. None: each edge is stored with both of its ends, so these are the same lists. Whether they
            fit the others is not checked. The rungs `pulled` and `direction_optimising` read them.
        out: a device array (n,) of int32, apart from the others in memory, or None to allocate one.
        stream: the stream to work on.

    Returns ``out``, the level of each vertex: 0 for the source, and -1 where no path leads. It does not wait for the
    work to be done. The same call gives the same levels.
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    Source: ``scipy.sparse.csgraph.shortest_path(..., unweighted=True)``, with infinity for -1.

    >>> from pmpp.kernels import graph
    >>> starts, neighbours = graph.both_ways([0, 1, 1, 4], [1, 2, 3, 5], vertices=6)
    >>> graph.frontier(starts, neighbours, 2).copy_to_host()
    array([ 2,  1,  0,  2, -1, -1], dtype=int32)
    """
    stream, on_host = device.as_stream(stream), (starts, neighbours, in_starts, in_neighbours)
    starts = device.as_input("starts", starts, dtypes=DTYPES, ndim=1, stream=stream)
    neighbours = device.as_input("neighbours", neighbours, dtypes="int32", ndim=1, stream=stream)
    if starts.size < 2:
        raise ValueError(f"starts must have at least 2 elements, one more than there are vertices, had {starts.size}")
    if neighbours.size > EDGES:
        raise ValueError(f"neighbours must have less than 2^{EDGE_BITS} elements, had {neighbours.size:,}")
    source = as_integer("source", source, 0, starts.size - 2)
    apart = {"starts": starts, "neighbours": neighbours}
    turned = {}
    if in_starts is not None:
        kind = str(starts.dtype)
        turned["in_starts"] = device.as_input("in_starts", in_starts, dtypes=kind, shape=starts.shape, stream=stream)
    if in_neighbours is not None:
        turned["in_neighbours"] = device.as_input(
            "in_neighbours", in_neighbours, dtypes="int32", shape=neighbours.shape, stream=stream
        )
    if len(turned) == 1:
        [(name, alone)] = turned.items()
        other = "in_neighbours" if name == "in_starts" else "in_starts"
        raise TypeError(f"{name} must be given together with {other}, had {tuple(alone.shape)} and no {other}")
    in_starts, in_neighbours = turned.values() if turned else (starts, neighbours)
    check_contents("", *on_host[:2], starts.size - 1, neighbours.size)
    check_contents("in_", *on_host[2:], starts.size - 1, neighbours.size)
    apart |= turned
    out = device.as_output("out", out, shape=(starts.size - 1,), dtype=RESULT, apart=apart, stream=stream)
    totals = device.empty(3, np.int64, stream=stream)
    p = Problem(out, stream=stream, begin=begin, starts=starts, neighbours=neighbours, source=np.int32(source),
                in_starts=in_starts, in_neighbours=in_neighbours, totals=totals)  # fmt: skip
    if not neighbours.size:
        begin(p)
        p.done = True
    return p


def check_contents(prefix: str, starts, neighbours, vertices: int, edges: int) -> None:
    """Raise ValueError that names the array unless lists of neighbours are sound. Only NumPy arrays are looked at."""
    check_places(f"{prefix}neighbours", neighbours, vertices, f"{vertices} vertices")
    try:
        check_starts(starts, edges, f"{prefix}neighbours")
    except ValueError as error:  # which begins with "starts"
        raise ValueError(f"{prefix}{error}") from None


@cuda.jit
def begin_kernel(levels, totals, source):
    v = cuda.grid(1)
    if v < levels.size:
        levels[v] = 0 if v == source else -1
    if v < totals.size:
        totals[v] = 0


def begin(p):
    """Only the source has a level at the beginning, and nothing has been counted."""
    begin_kernel[blocks(max(p.result.size, p.totals.size), BLOCK), BLOCK, p.stream](p.result, p.totals, p.source)


# ------------------------------------------------------------------------------------------------- one grid, all levels


def grid_for(work: int, shared: int = 0) -> int:
    """So many blocks that a GPU holds them at once, and no more than have work, if a block takes ``shared`` bytes."""
    limits = device.limits()
    fit = min(
        RESIDENT,
        limits["max_threads_per_multiprocessor"] // BLOCK,
        limits["max_shared_memory_per_multiprocessor"] // (shared + 1024),  # the system keeps 1 KiB of each block's
    )
    return max(1, min(work, limits["multiprocessors"] * fit))


@cuda.jit(device=True)
def meet(totals, step):
    """All threads of the grid meet. Then: what was added in this step to ``totals[step % 3]``.

    A block that is ahead may add to the next step's number already, while another still reads this one's. And the
    number of the step after that is set to 0 now, when nobody can have added to it. So there are three of them.
    """
    if cuda.grid(1) == 0:
        totals[(step + 1) % 3] = 0
    cuda.cg.this_grid().sync()
    return totals[step % 3]


@cuda.jit(device=True)
def meet_if_any(found, totals, step):
    """All threads of the grid meet. Then: whether one of them had ``found`` something, as a number that is not 0."""
    if cuda.syncthreads_or(found) and cuda.threadIdx.x == 0:
        cuda.atomic.add(totals, step % 3, 1)
    return meet(totals, step)


# ------------------------------------------------------------------------------------------------------ everybody looks


@cuda.jit(**bounded)
def by_vertex_kernel(starts, neighbours, levels, totals):
    depth, going = 0, 1
    while going:
        found = np.int32(0)
        for v in range(cuda.grid(1), levels.size, cuda.gridsize(1)):
            if levels[v] == depth:
                for j in range(starts[v], starts[v + 1]):
                    w = neighbours[j]
                    if levels[w] < 0:
                        cuda.atomic.cas(levels, w, -1, depth + 1)
                        found = 1
        going = meet_if_any(found, totals, depth)
        depth += 1


@rung(begin_kernel, by_vertex_kernel)
def by_vertex(p):
    """A thread looks at each vertex in each level. If it is on the frontier, the thread gives its neighbours a level.

    Source: PMPP 4e section 15.3, "vertex-centric push"; 5e chapter 18.

    Leaves: a frontier with many edges asks for the level of each one's end, though most of these have one long since.
    """
    grid = grid_for(blocks(p.result.size, BLOCK))
    by_vertex_kernel[grid, BLOCK, p.stream](p.starts, p.neighbours, p.result, p.totals)


@cuda.jit(**bounded)
def pulled_kernel(in_starts, in_neighbours, levels, totals):
    depth, going = 0, 1
    while going:
        found = np.int32(0)
        for v in range(cuda.grid(1), levels.size, cuda.gridsize(1)):
            if levels[v] < 0:
                for j in range(in_starts[v], in_starts[v + 1]):
                    if levels[in_neighbours[j]] == depth:
                        cuda.atomic.cas(levels, v, -1, depth + 1)
                        found = 1
                        break
        going = meet_if_any(found, totals, depth)
        depth += 1


@rung(begin_kernel, pulled_kernel)
def pulled(p):
    """Who has no level looks for a neighbour on the frontier, and stops at the first one.

    Its own thread alone writes a vertex's level, and others may read it at that time. They see -1 or the next level,
    and neither is the frontier's. The atomic makes this a rule of the language, and not luck. While the frontier is
    small this is slower than `by_vertex`.

    Source: PMPP 4e section 15.3, "vertex-centric pull"; 5e chapter 18.

    Leaves: while the frontier is small, nearly all look at all of their neighbours in vain. And in both rungs a thread
    with a long list holds up its warp.
    """
    grid = grid_for(blocks(p.result.size, BLOCK))
    pulled_kernel[grid, BLOCK, p.stream](p.in_starts, p.in_neighbours, p.result, p.totals)


@cuda.jit
def tails_kernel(starts, tails):
    j = cuda.grid(1)
    if j < tails.size:
        tails[j] = row_of(j, starts)


@cuda.jit(**bounded)
def by_edge_kernel(tails, neighbours, levels, totals):
    depth, going = 0, 1
    while going:
        found = np.int32(0)
        for j in range(cuda.grid(1), neighbours.size, cuda.gridsize(1)):
            if levels[tails[j]] == depth:
                w = neighbours[j]
                if levels[w] < 0:
                    cuda.atomic.cas(levels, w, -1, depth + 1)
                    found = 1
        going = meet_if_any(found, totals, depth)
        depth += 1


@rung(begin_kernel, tails_kernel, by_edge_kernel)
def by_edge(p):
    """A thread looks at each edge: if it comes from the frontier, its other end gets a level. Nobody has a long list.

    Where an edge comes from is searched for once, as in `sparse.by_element`, and stored: the format COO.

    Source: PMPP 4e section 15.3, "edge-centric"; 5e chapter 18.

    Leaves: every edge is looked at in every level, and is of use in one of them.
    """
    tails = device.empty(p.neighbours.size, np.int32, stream=p.stream)
    tails_kernel[blocks(tails.size, BLOCK), BLOCK, p.stream](p.starts, tails)
    by_edge_kernel[grid_for(blocks(tails.size, BLOCK)), BLOCK, p.stream](tails, p.neighbours, p.result, p.totals)


# ------------------------------------------------------------------------------------------------- the frontier, listed


@cuda.jit(**bounded)
def frontier_kernel(starts, neighbours, source, levels, totals, queue):
    depth, begin, end = 0, np.int64(0), np.int64(1)
    if cuda.grid(1) == 0:
        queue[0] = source  # the same thread takes it
    while begin < end:
        for i in range(begin + cuda.grid(1), end, cuda.gridsize(1)):
            v = queue[i]
            for j in range(starts[v], starts[v + 1]):
                w = neighbours[j]
                if levels[w] < 0 and cuda.atomic.cas(levels, w, -1, depth + 1) == -1:  # of all who see it, one
                    queue[end + cuda.atomic.add(totals, depth % 3, 1)] = w
        begin, end = end, end + meet(totals, depth)
        depth += 1


@rung(begin_kernel, frontier_kernel)
def frontier(p):
    """The frontier is a list. A thread takes one of its vertices, and appends those that it finds to the next list.

    Each vertex is appended once, so one array holds the lists of all levels, one behind the other. Where some list of
    neighbours is very long, one thread has it, and this is slower than `by_edge`.

    Source: PMPP 4e section 15.4; 5e chapter 18.

    Leaves: all threads count their places in one number, and take turns there.
    """
    queue = device.empty(p.result.size, np.int32, stream=p.stream)
    grid = grid_for(blocks(p.result.size, BLOCK))
    frontier_kernel[grid, BLOCK, p.stream](p.starts, p.neighbours, p.source, p.result, p.totals, queue)


@cuda.jit(**bounded)
def privatised_kernel(starts, neighbours, source, levels, totals, queue):
    mine, held = cuda.shared.array(HELD, np.int32), cuda.shared.array(1, np.int32)
    place = cuda.shared.array(1, np.int64)
    depth, begin, end = 0, np.int64(0), np.int64(1)
    if cuda.grid(1) == 0:
        queue[0] = source
    while begin < end:
        if cuda.threadIdx.x == 0:
            held[0] = 0
        cuda.syncthreads()
        for i in range(begin + cuda.grid(1), end, cuda.gridsize(1)):
            v = queue[i]
            for j in range(starts[v], starts[v + 1]):
                w = neighbours[j]
                if levels[w] < 0 and cuda.atomic.cas(levels, w, -1, depth + 1) == -1:
                    slot = cuda.atomic.add(held, 0, 1)
                    if slot < HELD:
                        mine[slot] = w
                    else:  # there is no room left: as before
                        queue[end + cuda.atomic.add(totals, depth % 3, 1)] = w
        cuda.syncthreads()
        count = min(held[0], HELD)
        if cuda.threadIdx.x == 0:
            place[0] = end + cuda.atomic.add(totals, depth % 3, count)
        cuda.syncthreads()
        for i in range(cuda.threadIdx.x, count, BLOCK):
            queue[place[0] + i] = mine[i]
        begin, end = end, end + meet(totals, depth)
        depth += 1


@rung(begin_kernel, privatised_kernel)
def privatised(p):
    """A block keeps what it finds in a list of its own, in shared memory, and takes places for all of it at once.

    Source: PMPP 4e section 15.5; 5e chapter 18.

    Leaves: a thread reads its vertex's list alone, far from its neighbours' lists, and one with a hub works long after
    all others have finished.
    """
    queue = device.empty(p.result.size, np.int32, stream=p.stream)
    grid = grid_for(blocks(p.result.size, BLOCK), 4 * HELD)
    privatised_kernel[grid, BLOCK, p.stream](p.starts, p.neighbours, p.source, p.result, p.totals, queue)


# ------------------------------------------------------------------------------------------------- equally much for all


@cuda.jit(device=True)
def first_level(source, starts, levels, totals, listed, firsts, entry):
    """What `begin_kernel` does, and the list of the first level. Returns how many edges lead away from its vertex.

    ``entry``: what ``listed`` has of this vertex.

    The grid has to meet after this anyway, so it is no launch of its own.
    """
    for v in range(cuda.grid(1), levels.size, cuda.gridsize(1)):
        levels[v] = 0 if v == source else -1
    if cuda.grid(1) == 0:
        listed[0], firsts[0] = entry, 0
        totals[0], totals[1], totals[2] = 0, 0, 0
    cuda.cg.this_grid().sync()
    return np.int64(starts[source + 1] - starts[source])


@cuda.jit(**bounded)
def balanced_kernel(starts, neighbours, source, levels, totals, queue, firsts):
    found, held = cuda.shared.array(LIST, np.int32), cuda.shared.array(1, np.int32)
    where, origins = cuda.shared.array(TILE, np.int32), cuda.shared.array(TILE, np.int64)
    ends, place = cuda.shared.array(SLOTS, np.int64), cuda.shared.array(1, np.int64)
    shared = found, held, where, origins, ends, place
    edges = first_level(source, starts, levels, totals, queue, firsts, source)
    depth, begin, end = 0, np.int64(0), np.int64(1)
    while edges > 0:
        expand(starts, neighbours, levels, queue, firsts, begin, end, edges, depth, totals, depth % 3, source, shared)
        total = meet(totals, depth)
        begin, end, edges = end, end + (total >> EDGE_BITS), total & EDGES
        depth += 1


SHARED = 4 * LIST + 12 * TILE + 8 * SLOTS  # bytes a block of `balanced`


@rung(balanced_kernel, begin=False)
def balanced(p):
    """The edges of the frontier are cut into tiles of 2,048, wherever lists end. A block searches for its first vertex.

    Source: Merrill, Garland and Grimshaw, "Scalable GPU graph traversal" (2012), for lists that are cut by a scan of
    their lengths; `sparse.merged` cuts rows in this way.

    Leaves: for each edge a level is loaded, a sector for 4 bytes. And a block waits for all of its warps several times
    in each tile.
    """
    queue, firsts = (device.empty(p.result.size, kind, stream=p.stream) for kind in (np.int32, np.int64))
    grid = grid_for(blocks(p.neighbours.size, TILE), SHARED)
    balanced_kernel[grid, BLOCK, p.stream](p.starts, p.neighbours, p.source, p.result, p.totals, queue, firsts)


# ---------------------------------------------------------------------------------------------- a bit for each vertex


@cuda.jit(**bounded)
def marked_kernel(starts, neighbours, source, levels, totals, firsts, origins, sets):
    kept = cuda.shared.array(KEPT, np.int32)
    mark_first(source, sets, sets.size)
    edges = first_level(source, starts, levels, totals, origins, firsts, starts[source])
    depth, begin, end = 0, np.int64(0), np.int64(1)
    while edges > 0:
        listed, slot = (firsts, origins, begin, end), depth % 3
        push(starts, neighbours, levels, sets, np.uint32(0), listed, edges, depth, totals, slot, True, kept)
        total = meet(totals, depth)
        begin, end, edges = end, end + (total >> EDGE_BITS), total & EDGES
        depth += 1


@rung(marked_kernel, begin=False)
def marked(p):
    """A bit for each vertex says whether it has a level, and each warp takes a piece of the edges for itself.

    The bits take a 32nd of the memory that levels take. Who is in the list stands there with where its edges begin.

    Source: Merrill, Garland and Grimshaw, "Scalable GPU graph traversal" (2012), for a mask of bits.

    Leaves: the largest frontiers have nearly all edges, and nearly all of these lead to vertices that have a level.
    """
    firsts, origins = (device.empty(p.result.size, np.uint32, stream=p.stream) for _ in range(2))
    sets = device.empty(blocks(p.result.size, 32), np.uint32, stream=p.stream)
    grid = grid_for(blocks(max(p.neighbours.size, p.result.size), STEP * BLOCK // 32), 4 * KEPT)
    given = p.starts, p.neighbours, p.source, p.result, p.totals
    marked_kernel[grid, BLOCK, p.stream](*given, firsts, origins, sets)


# ------------------------------------------------------------------------------------------------------------ both ways
# A level that is pulled reads one set of who has a level, and makes another one. A third set has those who may still
# find somebody.


class Turns(typing.NamedTuple):
    """When `direction_optimising` does what. "Edges left" are those of vertices without a level.

    Attributes:
        of_left, of_vertices: a frontier is small, and makes a list of the next one, if it has at most this part of the
            edges left, or at most an edge for so many vertices. Who pulls goes on as long as at most ``of_vertices``
            edges are left for each vertex that was found last, or one for each word of a set: those are read anyway.
        of_pulled: a larger frontier pushes, without a list, if it has at most this part of the edges left. Else the
            others pull at once.
    """

    of_left: int
    of_vertices: int
    of_pulled: int


@cuda.jit(**bounded)
def direction_optimising_kernel(
    starts, neighbours, in_starts, in_neighbours, source, levels, totals, firsts, origins, sets, turns
):
    kept, ends = cuda.shared.array(KEPT, np.int32), cuda.shared.array(SLOTS, np.int64)
    words, front = np.uint32(sets.size // 3), np.uint32(0)  # of a set; and where that of who has a level begins
    mark_first(source, sets, words)
    for word in range(cuda.grid(1), words, cuda.gridsize(1)):
        beyond = max(0, 32 * (word + 1) - levels.size)  # bits of the last word for which there are no vertices
        sets[2 * words + word] = np.uint32(FULL_WARP) >> np.uint32(beyond)
    edges = first_level(source, starts, levels, totals, origins, firsts, starts[source])
    depth, step, begin, end = 0, 0, np.int64(0), np.int64(1)
    left = np.int64(neighbours.size) - edges  # edges of vertices that have no level
    while edges > 0:
        listing = edges * turns.of_left <= left or edges * turns.of_vertices <= levels.size
        if listing or edges * turns.of_pulled <= left:
            listed, slot = (firsts, origins, begin, end), step % 3
            push(starts, neighbours, levels, sets, front, listed, edges, depth, totals, slot, listing, kept)
            total = meet(totals, step)
            begin, end, edges = end, end + (total >> EDGE_BITS), total & EDGES
            left -= edges
            depth, step = depth + 1, step + 1
        if not listing:
            going, found, edges = True, np.int64(0), np.int64(0)
            while going:
                mine = pull(in_starts, in_neighbours, levels, sets, words, front, depth)
                _, total = scan_block(SUM, np.int64(0), mine, ends)
                if cuda.threadIdx.x == 0:
                    cuda.atomic.add(totals, step % 3, total)
                total = meet(totals, step)
                found, left = total >> EDGE_BITS, total & EDGES
                front = np.uint32(words - front)
                depth, step = depth + 1, step + 1
                going = found > 0 and 0 < left <= max(found * turns.of_vertices, words)
            if found > 0 and left > 0:
                list_new(starts, sets, words, front, firsts, origins, totals, step % 3)
                total = meet(totals, step)
                begin, end, edges = np.int64(0), total >> EDGE_BITS, total & EDGES
                step += 1


@rung(direction_optimising_kernel, begin=False)
def direction_optimising(p):
    """A small frontier pushes and lists the next one. A large one pushes without a list, and then the others pull.

    Who pulls looks for any neighbour that has a level. It is one of the frontier: had it an earlier level, the vertex
    would have one, too. So the set of who has a level is also that of the frontier, and none has to be made.

    Source: Beamer, Asanovic and Patterson, "Direction-optimizing breadth-first search" (2012).
    """
    vertices = p.result.size
    firsts, origins = (device.empty(vertices, np.uint32, stream=p.stream) for _ in range(2))
    sets = device.empty(3 * blocks(vertices, 32), np.uint32, stream=p.stream)
    given = p.starts, p.neighbours, p.in_starts, p.in_neighbours, p.source, p.result, p.totals, firsts, origins
    turns = Turns(np.int64(OF_LEFT), np.int64(OF_VERTICES), np.int64(OF_PULLED))
    grid = grid_for(blocks(max(p.neighbours.size, vertices), STEP * BLOCK // 32), 4 * KEPT + 8 * SLOTS)
    direction_optimising_kernel[grid, BLOCK, p.stream](*given, sets, turns)


LADDER = (by_vertex, pulled, by_edge, frontier, privatised, balanced, marked, direction_optimising)
