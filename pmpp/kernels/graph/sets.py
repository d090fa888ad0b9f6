"""Who has a level, as a set of bits: device functions for the rungs `graph.marked` and `graph.direction_optimising`.

A set has a bit for each vertex, and 32 of them in a word: vertex v's bit stands in word v / 32. A set begins at word
``front`` of an array that has several. In `push` the frontier gives its neighbours a level. In `pull` all others look
whether they have a neighbour on the frontier. Lists are those of `pmpp.kernels.graph.lists`, but what stands in one has
32 bits, and in the place of a vertex stands ``origins``: where its own list starts, less the number of its first edge.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.graph.lists import BLOCK, EDGE_BITS, EDGES, entry_of
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.tile import warp_scan

STEP = 128  # edges that a warp pushes along at a time, four for each lane
ROOM = STEP + 32  # vertices that it keeps: fewer than 32, and those of a step
KEPT = BLOCK // 32 * ROOM  # by all warps of a block
FEW = 16  # neighbours that a thread looks at by itself, after the first and four at a time, before its warp helps


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
    # Four words at a time, and step by step, so that the loads of all four are on their way together. The compiler must
    # not move some of them behind the use of others: over a `syncwarp` it moves none.
    while rest != 0:
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
        cuda.syncwarp()
        asks_a, asks_b = asks_a and first_a < last_a, asks_b and first_b < last_b
        asks_c, asks_d = asks_c and first_c < last_c, asks_d and first_d < last_d
        a_near = np.uint32(in_neighbours[np.uint64(first_a if asks_a else 0)])
        b_near = np.uint32(in_neighbours[np.uint64(first_b if asks_b else 0)])
        c_near = np.uint32(in_neighbours[np.uint64(first_c if asks_c else 0)])
        d_near = np.uint32(in_neighbours[np.uint64(first_d if asks_d else 0)])
        cuda.syncwarp()
        hit_a, hit_b = has(sets, front, a_near), has(sets, front, b_near)
        hit_c, hit_d = has(sets, front, c_near), has(sets, front, d_near)
        cuda.syncwarp()
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
