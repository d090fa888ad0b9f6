"""Wrong versions of `graph` that people write, each with the reason for which the tests reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.kernels.graph import ladder as room
from pmpp.kernels.graph.ladder import BLOCK, grid_for, meet, meet_if_any
from pmpp.runtime import device
from tests.support.wrong import WrongRung


def launched(kernel, name="", begins=True, listed=False, into=False):
    """A kernel, called as a rung is. ``listed``: it takes the source and a list, too; ``into``: the incoming edges."""

    def searched(starts, neighbours, source=0, in_starts=None, in_neighbours=None):
        p = room.arguments(starts, neighbours, source, in_starts, in_neighbours)
        if p.done:
            return p.result
        if begins:
            room.begin(p)
        else:  # as it should be, but for one step: what has been counted is 0
            p.totals.copy_to_device(np.zeros(3, np.int64))
        graph = (p.in_starts, p.in_neighbours) if into else (p.starts, p.neighbours)
        more = ()
        if listed:
            graph, more = (*graph, p.source), (device.empty(p.result.size, np.int32),)
        kernel[grid_for(blocks(p.result.size, BLOCK)), BLOCK](*graph, p.result, p.totals, *more)
        return p.result

    searched.__name__ = name or kernel.py_func.__name__
    return searched


# ----------------------------------------------------------------------------------------------------- everybody looks


def pushed(plain=False, late=0, guarded=True, most=2**31, alone=False, name=""):
    """`by_vertex`, or that with one mistake."""

    @cuda.jit
    def kernel(starts, neighbours, levels, totals):
        depth, going = 0, 1
        while going:
            found = np.int32(0)
            for v in range(cuda.grid(1), levels.size if guarded else cuda.gridsize(1), cuda.gridsize(1)):
                if levels[v] == depth:
                    for j in range(starts[v], starts[v + 1]):
                        w = neighbours[j]
                        if levels[w] < 0:
                            if plain:
                                levels[w] = depth + 1
                            else:
                                cuda.atomic.cas(levels, w, -1, depth + 1 + (late if depth > 0 else 0))
                            found = 1
            if alone:  # each block goes on as long as it finds something itself
                going = cuda.syncthreads_or(found)
                cuda.cg.this_grid().sync()
            else:
                going = meet_if_any(found, totals, depth)
            depth += 1
            if depth == most:
                going = 0

    return launched(kernel, name)


@cuda.jit
def pulled_with_plain_stores(in_starts, in_neighbours, levels, totals):
    depth, going = 0, 1
    while going:
        found = np.int32(0)
        for v in range(cuda.grid(1), levels.size, cuda.gridsize(1)):
            if levels[v] < 0:
                for j in range(in_starts[v], in_starts[v + 1]):
                    if levels[in_neighbours[j]] == depth:
                        levels[v] = depth + 1
                        found = 1
                        break
        going = meet_if_any(found, totals, depth)
        depth += 1


@cuda.jit
def found_by_any_neighbour(in_starts, in_neighbours, levels, totals):
    """Any neighbour with a level will do: in this level's order it may have got its level just now."""
    depth, going = 0, 1
    while going:
        found = np.int32(0)
        for v in range(cuda.grid(1), levels.size, cuda.gridsize(1)):
            if levels[v] < 0:
                for j in range(in_starts[v], in_starts[v + 1]):
                    near = cuda.atomic.add(levels, in_neighbours[j], 0)
                    if near >= 0:
                        cuda.atomic.cas(levels, v, -1, near + 1)
                        found = 1
                        break
        going = meet_if_any(found, totals, depth)
        depth += 1


# ------------------------------------------------------------------------------------------- the frontier, listed


def listed(decides=True, counts=True, meets=True, name=""):
    """`frontier`, or that with one mistake."""

    @cuda.jit
    def kernel(starts, neighbours, source, levels, totals, queue):
        depth, begin, end = 0, np.int64(0), np.int64(1)
        if cuda.grid(1) == 0:
            queue[0] = source
        while begin < end:
            for i in range(begin + cuda.grid(1), end, cuda.gridsize(1)):
                v = queue[i]
                for j in range(starts[v], starts[v + 1]):
                    w = neighbours[j]
                    if levels[w] < 0:
                        before = cuda.atomic.cas(levels, w, -1, depth + 1)
                        if before == -1 or not decides:
                            slot = depth % 3
                            if counts:
                                place = cuda.atomic.add(totals, slot, 1)
                            else:
                                place = totals[slot]
                                totals[slot] = place + 1
                            queue[end + place] = w
            if meets:
                added = meet(totals, depth)
            else:  # the block has finished, the grid has not
                if cuda.grid(1) == 0:
                    totals[(depth + 1) % 3] = 0
                cuda.syncthreads()
                added = totals[depth % 3]
            begin, end = end, end + added
            depth += 1

    return launched(kernel, name, listed=True)


def privatised(held_by_a_block=64, room_left=True, before=True, after=True, name=""):
    """`privatised` with a small list, or that with one mistake."""

    @cuda.jit
    def kernel(starts, neighbours, source, levels, totals, queue):
        mine, held = cuda.shared.array(held_by_a_block, np.int32), cuda.shared.array(1, np.int32)
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
                        if slot < held_by_a_block or not room_left:
                            mine[slot] = w
                        else:
                            queue[end + cuda.atomic.add(totals, depth % 3, 1)] = w
            if before:
                cuda.syncthreads()
            count = min(held[0], held_by_a_block)
            if cuda.threadIdx.x == 0:
                place[0] = end + cuda.atomic.add(totals, depth % 3, count)
            if after:
                cuda.syncthreads()
            for i in range(cuda.threadIdx.x, count, BLOCK):
                queue[place[0] + i] = mine[i]
            begin, end = end, end + meet(totals, depth)
            depth += 1

    return launched(kernel, name, listed=True)


def by_sets(apart=True, first=True, name=""):
    """`direction_optimising` if all levels are pulled and a thread has one vertex, or that with one mistake."""

    @cuda.jit
    def kernel(in_starts, in_neighbours, source, levels, totals, sets):
        v, depth, going = cuda.grid(1), 0, 1
        words = sets.size // 2
        if v < sets.size:
            sets[v] = np.uint32(1) << np.uint32(source & 31) if v == source >> 5 and first else np.uint32(0)
        cuda.cg.this_grid().sync()
        while going:
            front = depth % 2 * words if apart else 0
            other = (words - front) if apart else 0
            found = np.int32(0)
            if v < levels.size and levels[v] < 0:
                for j in range(in_starts[v], in_starts[v + 1]):
                    w = in_neighbours[j]
                    if sets[front + w // 32] >> np.uint32(w & 31) & 1 != 0:
                        found = 1
                if found != 0:
                    levels[v] = depth + 1
            if v < levels.size and levels[v] >= 0:
                cuda.atomic.or_(sets, other + v // 32, np.uint32(1) << np.uint32(v & 31))
            going = meet_if_any(found, totals, depth)
            depth += 1

    def searched(starts, neighbours, source=0, in_starts=None, in_neighbours=None):
        p = room.arguments(starts, neighbours, source, in_starts, in_neighbours)
        if not p.done:
            room.begin(p)
            sets = device.empty(2 * blocks(p.result.size, 32), np.uint32)
            grid = blocks(p.result.size, BLOCK)
            kernel[grid, BLOCK](p.in_starts, p.in_neighbours, p.source, p.result, p.totals, sets)
        return p.result

    searched.__name__ = name
    return searched


def edges_not_turned_round(starts, neighbours, source=0, in_starts=None, in_neighbours=None):
    """Pulls along outgoing edges, which is right in an undirected graph alone."""
    return room.pulled(starts, neighbours, source)


RUNGS = (
    WrongRung(pushed(plain=True, name="levels_stored_while_others_look"), "race"),
    WrongRung(pushed(late=1, name="one_level_too_many"), "wrong result"),
    WrongRung(pushed(guarded=False, name="no_guard"), "out of bounds"),
    WrongRung(pushed(most=32, name="no_more_than_32_levels"), "wrong result"),
    WrongRung(pushed(alone=True, name="each_block_stops_by_itself"), "divergent barrier"),
    WrongRung(launched(room.by_vertex_kernel, "levels_not_cleared", begins=False), "uninitialised read"),
    WrongRung(launched(pulled_with_plain_stores, into=True), "race"),
    WrongRung(launched(found_by_any_neighbour, into=True), "wrong result"),
    WrongRung(edges_not_turned_round, "wrong result"),
    WrongRung(by_sets(apart=False, name="a_set_that_changes_while_others_look"), "race"),
    WrongRung(by_sets(first=False, name="the_source_is_not_in_the_set"), "wrong result"),
    WrongRung(listed(decides=False, name="who_is_seen_twice_is_listed_twice"), "out of bounds"),
    WrongRung(listed(counts=False, name="places_counted_without_an_atomic"), "race"),
    WrongRung(listed(meets=False, name="a_barrier_of_the_block_alone"), "race"),
    WrongRung(privatised(room_left=False, name="no_room_left"), "out of bounds"),
    WrongRung(privatised(before=False, name="counted_too_early"), "race"),
    WrongRung(privatised(after=False, name="place_read_too_early"), "race"),
)
RIGHT = (
    pushed(name="pushed_right"),
    by_sets(name="by_sets_right"),
    listed(name="listed_right"),
    privatised(name="privatised_with_a_list_that_overflows"),
)
