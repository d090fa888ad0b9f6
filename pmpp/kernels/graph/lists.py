"""The list of a frontier, cut into pieces of equally many edges: device functions for the rung `graph.balanced`.

The edges of a frontier have numbers: first those of the list's first vertex, then those of the second, and so on. A
vertex in the list stands with the number of its first edge. So an edge's vertex is found by a search, and the edges can
be cut into pieces of equal length anywhere. The place in the list and the number of the first edge come from one
atomic: the count of vertices and the sum of their edges are two parts of one integer.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.tile import scan_block

BLOCK = 512  # threads a block
TILE = 4 * BLOCK  # edges that a block of `balanced` takes at a time, four for each thread
LIST = 2 * TILE  # vertices that it keeps: what a tile finds always fits in
EDGE_BITS = 32  # of a level's totals: its edges stand in these bits, and its vertices above
EDGES = (1 << EDGE_BITS) - 1


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
