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
from pmpp.kernels.graph.graphs import both_ways, compressed, directed, edges_rmat
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.tile import SLOTS, scan_block, warp_scan
from pmpp.kernels.sparse.ladder import row_of
from pmpp.runtime import device
from pmpp.runtime.check import as_integer
from pmpp.runtime.rung import Cost, Problem, rung

DTYPES = ("int32", "int64")  # of `starts`, the first argument
RESULT = np.int32
BLOCK = 512  # threads a block
RESIDENT = 2  # blocks that a multiprocessor holds at once. The more blocks there are, the longer a grid takes to meet
HELD = 2048  # vertices that a block of `privatised` keeps before it hands them on
TILE = 4 * BLOCK  # edges that a block of `balanced` takes at a time, four for each thread
LIST = 2 * TILE  # vertices that it keeps: what a tile finds always fits in
STEP = 128  # edges that a warp of `marked` takes at a time, four for each lane
ROOM = STEP + 32  # vertices that it keeps: fewer than 32, and those of a step
KEPT = BLOCK // 32 * ROOM  # by all warps of a block
EDGE_BITS = 32  # of a level's totals: its edges stand in these bits, and its vertices above
EDGES = (1 << EDGE_BITS) - 1
FEW = 16  # neighbours that a thread looks at by itself, after the first and four at a time, before its warp helps
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
            starts, and at the end how long all are. It must begin with 0 and never fall: that is not checked.
        neighbours: a contiguous vector (m,) of int32, m < 2^32: to which vertices edges lead, list by list, in any
            order. Loops, and edges that occur twice, change nothing. Each must be from 0 to n - 1: that is not checked
            on a GPU.
        source: the vertex to begin with, from 0 to n - 1.
        in_starts, in_neighbours: from which vertices edges come, in the same form and dtypes: the graph with its edges
            turned round. None: each edge is stored with both of its ends, so these are the same lists. That is not
            checked. The rungs `pulled` and `direction_optimising` read them.
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
    stream = device.as_stream(stream)
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
    apart |= turned
    out = device.as_output("out", out, shape=(starts.size - 1,), dtype=RESULT, apart=apart, stream=stream)
    totals = device.empty(3, np.int64, stream=stream)
    p = Problem(out, stream=stream, begin=begin, starts=starts, neighbours=neighbours, source=np.int32(source),
                in_starts=in_starts, in_neighbours=in_neighbours, totals=totals)  # fmt: skip
    if not neighbours.size:
        begin(p)
        p.done = True
    return p


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
# The edges of a frontier have numbers: first those of the list's first vertex, then those of the second, and so on. A
# vertex in the list stands with the number of its first edge. So an edge's vertex is found by a search, and the edges
# can be cut into pieces of equal length anywhere. The place in the list and the number of the first edge come from one
# atomic: the count of vertices and the sum of their edges are two parts of one integer.


@cuda.jit(device=True)
def hand_on(found, held, starts, queue, firsts, end, totals, slot, ends, place):
    """Append a block's vertices to the list behind ``end``, those that have neighbours. All its threads call this.

    ``found``: a shared array with ``held`` vertices. ``ends``, ``place``: shared arrays of SLOTS and of 1, of int64.
    """
    for at in range(0, held, BLOCK):
        i, v, degree = at + cuda.threadIdx.x, np.int32(0), np.int64(0)
        if i < held:
            v = found[i]
            degree = np.int64(starts[v + 1] - starts[v])
        mine = np.int64(1) << EDGE_BITS | degree if degree > 0 else np.int64(0)
        before, total = scan_block(SUM, np.int64(0), mine, ends)
        if cuda.threadIdx.x == 0:
            place[0] = cuda.atomic.add(totals, slot, total)
        cuda.syncthreads()
        if degree > 0:
            own = place[0] + before
            queue[end + (own >> EDGE_BITS)] = v
            firsts[end + (own >> EDGE_BITS)] = own & EDGES
        cuda.syncthreads()


@cuda.jit(device=True)
def entry_of(edge, firsts, begin, end):
    """The last vertex of a list whose first edge is ``edge`` or one before. A warp searches together, for one edge."""
    low, high = begin, end  # it is at ``low`` or behind, and before ``high``
    while high - low > 1:
        width = (high - low + 31) // 32
        i = low + cuda.laneid * width
        before = i < high and firsts[i] <= edge
        low += (cuda.popc(cuda.ballot_sync(FULL_WARP, before)) - 1) * width
        high = min(high, low + width)
    return low


@cuda.jit(device=True)
def head_of(e, count, where, here, origins, first, neighbours, source):
    """Where edge number e of a tile leads, by a search in ``where``. Beyond the last: the source, which has a level."""
    if e >= count:
        return np.uint32(source)
    low, high = np.uint32(0), np.uint32(here)
    while np.uint32(high - low) > 1:
        middle = np.uint32(low + high) >> np.uint32(1)
        if where[middle] <= e:
            low = middle
        else:
            high = middle
    return np.uint32(neighbours[np.uint64(origins[low] + first + e)])


@cuda.jit(device=True)
def expand(starts, neighbours, levels, queue, firsts, begin, end, edges, depth, totals, slot, source, shared):
    """The neighbours of the vertices ``queue[begin:end]``, with so many ``edges`` together, get the level behind depth.

    Those that are new are appended. Each block takes a piece of equal length of the edges. ``shared``: its arrays.
    """
    found, held, where, origins, ends, place = shared
    thread = cuda.threadIdx.x
    share = ((edges + TILE - 1) // TILE + cuda.gridDim.x - 1) // cuda.gridDim.x * TILE
    first = cuda.blockIdx.x * share
    last = min(first + share, edges)
    entry = entry_of(first, firsts, begin, end) if first < last else begin
    if thread == 0:
        held[0] = 0
    while first < last:
        here, at = 0, 0  # so many of the list's vertices have edges in this tile
        going = True
        while going:
            i = entry + at + thread
            inside = i < end and at < TILE and firsts[i] < first + TILE
            if inside:
                where[at + thread] = firsts[i] - first
                origins[at + thread] = starts[queue[i]] - firsts[i]
            more = cuda.syncthreads_count(np.int32(inside))
            here += more
            at += BLOCK
            going = more == BLOCK
        count = min(last - first, TILE)
        a = head_of(thread, count, where, here, origins, first, neighbours, source)
        b = head_of(thread + BLOCK, count, where, here, origins, first, neighbours, source)
        c = head_of(thread + 2 * BLOCK, count, where, here, origins, first, neighbours, source)
        d = head_of(thread + 3 * BLOCK, count, where, here, origins, first, neighbours, source)
        # All four levels are asked for before the first is needed.
        of_a, of_b, of_c, of_d = levels[a], levels[b], levels[c], levels[d]
        if of_a < 0 and cuda.atomic.cas(levels, a, -1, depth + 1) == -1:
            found[cuda.atomic.add(held, 0, 1)] = a
        if of_b < 0 and cuda.atomic.cas(levels, b, -1, depth + 1) == -1:
            found[cuda.atomic.add(held, 0, 1)] = b
        if of_c < 0 and cuda.atomic.cas(levels, c, -1, depth + 1) == -1:
            found[cuda.atomic.add(held, 0, 1)] = c
        if of_d < 0 and cuda.atomic.cas(levels, d, -1, depth + 1) == -1:
            found[cuda.atomic.add(held, 0, 1)] = d
        first += TILE
        entry += here - 1
        if entry + 1 < end and firsts[entry + 1] == first:
            entry += 1  # the last one's edges end where the tile does
        cuda.syncthreads()
        if held[0] > LIST - TILE or first >= last:
            count = held[0]
            hand_on(found, count, starts, queue, firsts, end, totals, slot, ends, place)
            cuda.syncthreads()
            if thread == 0:
                held[0] = 0
        cuda.syncthreads()


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
# Who has a level is a set: a bit for each vertex, and 32 of them in a word. Vertex v's bit stands in word v / 32.


@cuda.jit(device=True)
def word_of(v, front):
    """Where the word of vertex v stands in the set that begins at word ``front``."""
    return np.uint32(front + (v >> np.uint32(5)))


@cuda.jit(device=True)
def bit_of(v):
    """Vertex v's bit in its word."""
    return np.uint32(np.uint32(1) << (v & np.uint32(31)))


@cuda.jit(device=True)
def put(v, sets, front):
    """Put vertex v into a set. Returns its word as it was before: without its bit if no other thread was faster."""
    return cuda.atomic.or_(sets, word_of(v, front), bit_of(v))


@cuda.jit(device=True)
def enlist(v, wanted, starts, firsts, origins, end, totals, slot):
    """Append the vertices of a warp's lanes to the list behind ``end``: those that are wanted and have neighbours."""
    start, mine, before = np.int64(0), np.int64(0), np.int64(0)
    if wanted:
        start = np.int64(starts[v])
        degree = np.int64(starts[v + np.uint32(1)]) - start
        mine = np.int64(1) << EDGE_BITS | degree if degree > 0 else np.int64(0)
    scanned = warp_scan(SUM, mine)
    if cuda.laneid == 31 and scanned > 0:
        before = cuda.atomic.add(totals, slot, scanned)
    place = cuda.shfl_sync(FULL_WARP, before, 31) + scanned - mine
    if mine > 0:
        edge = place & EDGES
        firsts[end + (place >> EDGE_BITS)], origins[end + (place >> EDGE_BITS)] = edge, start - edge


@cuda.jit(device=True)
def where_to(e, where, half, origin, neighbours):
    """Where edge number e of a warp's step leads. Its vertex is found by a search in what the lanes have."""
    i = np.int32(0)
    while half > 0:
        if cuda.shfl_sync(FULL_WARP, where, np.int32(i + half)) <= e:
            i = np.int32(i + half)
        half = np.int32(half >> 1)
    return np.uint32(neighbours[np.uint32(np.uint32(cuda.shfl_sync(FULL_WARP, origin, i)) + np.uint32(e))])


@cuda.jit(device=True)
def keep(v, new, kept, held):
    """Put those vertices of a warp's lanes that are new behind ``held`` others. Returns how many there are then."""
    lanes = np.uint32(cuda.ballot_sync(FULL_WARP, new))
    if new:
        kept[held + cuda.popc(np.uint32(lanes & (1 << cuda.laneid) - 1))] = v
    return held + cuda.popc(lanes)


@cuda.jit(device=True)
def push(starts, neighbours, levels, sets, front, listed, edges, depth, totals, slot, listing, kept):
    """The neighbours of the vertices in ``begin:end`` of the list get the level behind depth, and are put into the set.

    These vertices have so many ``edges`` together, and each warp takes a piece of equal length of them. If ``listing``,
    those that are new are appended to the list. ``kept``: a shared array, in which a warp keeps ROOM of them.
    """
    firsts, origins, begin, end = listed
    lane, warps = np.int32(cuda.laneid), cuda.gridsize(1) // 32
    share = ((edges + 31) // 32 + warps - 1) // warps * 32
    piece = cuda.grid(1) // 32 * share
    first, last = np.uint32(min(piece, edges)), np.uint32(min(piece + share, edges))
    entry = entry_of(first, firsts, begin, end) if first < last else begin
    room = cuda.threadIdx.x // 32 * ROOM
    held = room
    while first < last:
        i, at, origin = entry + lane, np.uint32(edges), np.uint32(0)
        if i < end:
            at, origin = firsts[i], origins[i]
        # Up to four edges a lane, and up to 31 vertices: the last lane's shows where these end.
        stop = np.uint32(cuda.shfl_sync(FULL_WARP, np.int32(at), 31))
        count = np.int32(min(np.uint32(stop - first), np.uint32(last - first), np.uint32(STEP)))
        where = np.int32(min(np.uint32(at - first), np.uint32(STEP))) if at > first else np.int32(0)
        half, here = np.int32(16), cuda.popc(cuda.ballot_sync(FULL_WARP, where < count))
        while half >= here:
            half = np.int32(half >> 1)
        origin = np.int32(np.uint32(origin + first))
        # Behind the last edge, the last is looked at again. So nothing is loaded under a condition.
        end_a, end_b, end_c, end_d = lane, np.int32(lane + 32), np.int32(lane + 64), np.int32(lane + 96)
        beyond = np.int32(count - 1)
        a = where_to(min(end_a, beyond), where, half, origin, neighbours)
        b = where_to(min(end_b, beyond), where, half, origin, neighbours)
        c = where_to(min(end_c, beyond), where, half, origin, neighbours)
        d = where_to(min(end_d, beyond), where, half, origin, neighbours)
        word_a, word_b = sets[word_of(a, front)], sets[word_of(b, front)]
        word_c, word_d = sets[word_of(c, front)], sets[word_of(d, front)]
        if word_a & bit_of(a) == 0 and end_a < count:
            word_a = put(a, sets, front)
        if word_b & bit_of(b) == 0 and end_b < count:
            word_b = put(b, sets, front)
        if word_c & bit_of(c) == 0 and end_c < count:
            word_c = put(c, sets, front)
        if word_d & bit_of(d) == 0 and end_d < count:
            word_d = put(d, sets, front)
        new_a, new_b = word_a & bit_of(a) == 0 and end_a < count, word_b & bit_of(b) == 0 and end_b < count
        new_c, new_d = word_c & bit_of(c) == 0 and end_c < count, word_d & bit_of(d) == 0 and end_d < count
        if new_a:
            levels[a] = depth + 1
        if new_b:
            levels[b] = depth + 1
        if new_c:
            levels[c] = depth + 1
        if new_d:
            levels[d] = depth + 1
        if listing:
            held = keep(a, new_a, kept, held)
            held = keep(b, new_b, kept, held)
            held = keep(c, new_c, kept, held)
            held = keep(d, new_d, kept, held)
            cuda.syncwarp()
            while held >= room + 32:
                held -= 32
                enlist(np.uint32(kept[held + lane]), True, starts, firsts, origins, end, totals, slot)
            cuda.syncwarp()
        first = np.uint32(first + count)
        entry += cuda.popc(cuda.ballot_sync(FULL_WARP, at <= first)) - 1  # the last one whose edges do not end here
    if held > room:
        v = np.uint32(kept[room + lane]) if room + lane < held else np.uint32(0)
        enlist(v, room + lane < held, starts, firsts, origins, end, totals, slot)


@cuda.jit(device=True)
def mark_first(source, sets, words):
    """The set of the source alone, in the first words of ``sets``."""
    for word in range(cuda.grid(1), words, cuda.gridsize(1)):
        sets[word] = np.uint32(1) << np.uint32(source & 31) if word == source >> 5 else np.uint32(0)


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


@cuda.jit(device=True)
def has(sets, front, v):
    """1 if vertex v is in a set, else 0."""
    return np.uint32(np.uint32(sets[word_of(v, front)] >> (v & np.uint32(31))) & np.uint32(1))


@cuda.jit(device=True)
def look_on(first, last, in_neighbours, sets, front):
    """1 if one of the neighbours first:last of a lane's vertex is in the set ``front``, else 0. All lanes call this.

    A lane looks at a few by itself, four at a time. Then all lanes look at the rest of each long list together.
    """
    place, few, hit = first, min(last, first + FEW), np.uint32(0)
    while place < few and hit == 0:
        for k in range(4):  # behind the last, the last is looked at again: so all four are loaded at the same time
            hit |= has(sets, front, np.uint32(in_neighbours[np.uint64(min(place + k, last - 1))]))
        place += 4
    waiting = np.uint32(cuda.ballot_sync(FULL_WARP, hit == 0 and place < last))
    while waiting != 0:
        owner, found = np.int32(cuda.ffs(waiting)) - 1, np.uint32(0)
        at, end = cuda.shfl_sync(FULL_WARP, place, owner), cuda.shfl_sync(FULL_WARP, last, owner)
        while at < end and found == 0:
            near = np.uint32(0)
            if at + cuda.laneid < end:
                near = has(sets, front, np.uint32(in_neighbours[np.uint64(at + cuda.laneid)]))
            found = np.uint32(cuda.ballot_sync(FULL_WARP, near != 0))
            at += 32
        if cuda.laneid == owner and found != 0:
            hit = np.uint32(1)
        waiting = np.uint32(waiting & (waiting - np.uint32(1)))
    return hit


@cuda.jit(device=True)
def next_asking(rest, mine, base):
    """Of the next word of a warp that is left: whose it is, this lane's vertex, and whether its bit is set."""
    owner = np.int32(cuda.ffs(rest)) - 1  # -1 if none is left
    word = np.uint32(cuda.shfl_sync(FULL_WARP, np.int32(mine), owner & 31))
    asks = owner >= 0 and np.uint32(word >> np.uint32(cuda.laneid)) & np.uint32(1) != 0
    return owner, np.uint32(32 * (base + owner) + cuda.laneid) if asks else np.uint32(0), asks


@cuda.jit(device=True)
def answer(owner, v, asks, hit, levels, depth, new, still):
    """Give vertex v a level if it asks and has a hit. Its bit goes to the word's owner: into ``new``, or ``still``."""
    if asks and hit != 0:
        levels[v] = depth + 1
    found = cuda.ballot_sync(FULL_WARP, asks and hit != 0)
    others = cuda.ballot_sync(FULL_WARP, asks and hit == 0)
    if cuda.laneid == owner:
        new, still = np.uint32(found), np.uint32(others)
    return new, still


@cuda.jit(device=True)
def look_first(mine, base, in_starts, in_neighbours, levels, sets, front, depth):
    """Those whose bits are set in a warp's words look at their first neighbours: a lane for each bit of a word.

    Returns for a lane's own word who has found one in the set ``front``, and who has a list and has found none there.
    """
    new, still, one = np.uint32(0), np.uint32(0), np.uint32(1)
    rest = np.uint32(cuda.ballot_sync(FULL_WARP, mine != 0))
    while rest != 0:  # four words at a time, and step by step, so that the loads of all four are on their way together
        of_a, a, asks_a = next_asking(rest, mine, base)
        rest = np.uint32(rest & np.uint32(rest - one))
        of_b, b, asks_b = next_asking(rest, mine, base)
        rest = np.uint32(rest & np.uint32(rest - one))
        of_c, c, asks_c = next_asking(rest, mine, base)
        rest = np.uint32(rest & np.uint32(rest - one))
        of_d, d, asks_d = next_asking(rest, mine, base)
        rest = np.uint32(rest & np.uint32(rest - one))
        first_a, first_b, first_c, first_d = in_starts[a], in_starts[b], in_starts[c], in_starts[d]
        last_a, last_b = in_starts[np.uint32(a + one)], in_starts[np.uint32(b + one)]
        last_c, last_d = in_starts[np.uint32(c + one)], in_starts[np.uint32(d + one)]
        asks_a, asks_b = asks_a and first_a < last_a, asks_b and first_b < last_b
        asks_c, asks_d = asks_c and first_c < last_c, asks_d and first_d < last_d
        a_near = np.uint32(in_neighbours[np.uint64(first_a if asks_a else 0)])
        b_near = np.uint32(in_neighbours[np.uint64(first_b if asks_b else 0)])
        c_near = np.uint32(in_neighbours[np.uint64(first_c if asks_c else 0)])
        d_near = np.uint32(in_neighbours[np.uint64(first_d if asks_d else 0)])
        hit_a, hit_b = has(sets, front, a_near), has(sets, front, b_near)
        hit_c, hit_d = has(sets, front, c_near), has(sets, front, d_near)
        new, still = answer(of_a, a, asks_a, hit_a, levels, depth, new, still)
        new, still = answer(of_b, b, asks_b, hit_b, levels, depth, new, still)
        new, still = answer(of_c, c, asks_c, hit_c, levels, depth, new, still)
        new, still = answer(of_d, d, asks_d, hit_d, levels, depth, new, still)
    return new, still


@cuda.jit(device=True)
def words_each(words):
    """How many of so many words a warp takes at a time: one for each lane, or fewer, so that all warps have some."""
    warps = cuda.gridsize(1) // 32
    return min(32, (words + warps - 1) // warps)


@cuda.jit(device=True)
def pull(in_starts, in_neighbours, levels, sets, words, front, depth):
    """Who has no level yet and a neighbour in the set ``front`` gets the level behind depth.

    The other set becomes this one with these. The third set keeps who has neighbours, but none with a level. Returns
    how many this thread has found, and below that, how long the lists are of those that it leaves there.
    """
    total = np.int64(0)
    behind, looking = np.uint32(words - front), np.uint32(2 * words)
    each = words_each(words)
    for base in range(cuda.grid(1) // 32 * each, words, cuda.gridsize(1) // 32 * each):
        place, known, mine = np.uint32(base + cuda.laneid), np.uint32(0), np.uint32(0)
        inside = cuda.laneid < each and place < words
        if inside:
            known = sets[front + place]
            mine = np.uint32(sets[looking + place] & ~known)
        new, still = look_first(mine, base, in_starts, in_neighbours, levels, sets, front, depth)
        left = np.uint32(0)
        while cuda.ballot_sync(FULL_WARP, still != 0) != 0:  # few are left, so each lane takes them from its own word
            bit, v, first, last = np.uint32(0), np.uint32(0), np.int64(0), np.int64(0)
            if still != 0:
                bit = np.uint32(still & ~np.uint32(still - np.uint32(1)))
                v = np.uint32(np.uint32(32) * place + np.uint32(cuda.ffs(still)) - np.uint32(1))
                first, last = np.int64(in_starts[v]), np.int64(in_starts[v + np.uint32(1)])
            if look_on(first + 1, last, in_neighbours, sets, front) != 0:
                new |= bit
                levels[v] = depth + 1
            else:
                left |= bit
                total += last - first
            still = np.uint32(still & ~bit)
        if inside:
            sets[behind + place], sets[looking + place] = known | new, left
        total += np.int64(cuda.popc(new)) << EDGE_BITS
    return total


@cuda.jit(device=True)
def list_new(starts, sets, words, front, firsts, origins, totals, slot):
    """The list of the vertices that are in the set ``front``, and not in the other one."""
    each = words_each(words)
    for base in range(cuda.grid(1) // 32 * each, words, cuda.gridsize(1) // 32 * each):
        place, new = np.uint32(base + cuda.laneid), np.uint32(0)
        if cuda.laneid < each and place < words:
            new = np.uint32(sets[front + place] & ~sets[words - front + place])
        while cuda.ballot_sync(FULL_WARP, new != 0) != 0:
            v = np.uint32(np.uint32(32) * place + np.uint32(cuda.ffs(new)) - np.uint32(1))
            enlist(v, new != 0, starts, firsts, origins, 0, totals, slot)
            new = np.uint32(new & np.uint32(new - np.uint32(1)))


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
