"""A tile of keys sorted by one digit: device functions for `ranked` and `one_sweep` of `sort.ladder`.

A block loads its tile into registers and finds the rank of each key: how many keys of the tile come before it, if they
are sorted by the digit and equal ones keep their order. It puts the keys into shared memory by rank. Keys of one digit
then lie side by side, there and in the result, so neighbouring threads write neighbouring places.

A rank has three parts: the keys of the tile with a lesser digit, those with the same digit in earlier warps, and those
with the same digit that the warp itself has met before. A warp finds the last part without atomics. Eight ballots, one
for each bit, tell a lane which other lanes have its digit; the highest of these moves the warp's counter on.

The last tile of a vector may be shorter. It is filled up with copies of its last key, so that no key needs a test. They
have the digit of that key and come behind it, so they make a gap in the sorted tile, which nobody writes.

Source: Merrill and Grimshaw, "High performance and scalable radix sorting" (2011); Adinets and Merrill, "Onesweep: a
faster least significant digit radix sort for GPUs" (2022), section 4.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.filter.ladder import rank_of
from pmpp.kernels.reduction.ladder import SUM
from pmpp.kernels.scan.tile import scan_block
from pmpp.kernels.sort.digits import BINS, BITS, digit_of

BLOCK = 384  # threads a block, at least BINS
WARPS = BLOCK // 32
ITEMS = 21  # keys a thread
TILE = BLOCK * ITEMS
COUNTERS = WARPS * BINS  # a counter for each digit in each warp


@cuda.jit(device=True)
def load_keys(x, first, count, keys):
    """This thread's keys of the tile x[first:first + count]. A warp has 32 * ITEMS neighbours, a lane every 32nd."""
    at = np.uint32(cuda.threadIdx.x // 32 * (32 * ITEMS) + cuda.laneid)
    if count == TILE:
        for item in range(ITEMS):
            keys[item] = x[first + np.uint64(at + item * 32)]
    else:
        last = np.uint32(count - 1)
        for item in range(ITEMS):
            keys[item] = x[first + np.uint64(min(np.uint32(at + item * 32), last))]


@cuda.jit(device=True)
def peers_of(digit):
    """The lanes of the warp that have this lane's digit, as bits. There is a ballot for each bit of the digit.

    ``mine`` is the bit 32 times, -1 or 0: shifted to the front, and back with the sign. So an exclusive or leaves the
    lanes that voted otherwise.
    """
    others = np.int32(0)
    for bit in range(BITS):
        mine = np.int32(np.int32(digit << np.uint32(31 - bit)) >> np.int32(31))
        others = np.int32(others | (cuda.ballot_sync(FULL_WARP, mine) ^ mine))
    return np.uint32(~others)


@cuda.jit(device=True)
def count_in_warps(keys, number, turn, counters):
    """How many keys with each digit each warp has, into the shared array ``counters`` of COUNTERS.

    A warp whose keys all have the same digit needs no atomics, at which its lanes would wait for each other.
    """
    for at in range(cuda.threadIdx.x, COUNTERS, BLOCK):
        counters[at] = 0
    cuda.syncthreads()
    mine = np.uint32(cuda.threadIdx.x // 32 * BINS)
    first = cuda.shfl_sync(FULL_WARP, np.int32(digit_of(keys[0], number, turn)), 0)
    differs = np.uint32(0)
    for item in range(ITEMS):
        differs = np.uint32(differs | (digit_of(keys[item], number, turn) ^ np.uint32(first)))
    if cuda.all_sync(FULL_WARP, differs == 0):
        if cuda.laneid == 0:
            counters[np.uint32(mine + np.uint32(first))] = 32 * ITEMS
    else:
        for item in range(ITEMS):
            cuda.atomic.add(counters, np.uint32(mine + digit_of(keys[item], number, turn)), 1)
    cuda.syncthreads()


@cuda.jit(device=True)
def places_of(counters, ends):
    """Each counter becomes the place in the sorted tile of the first key with this digit in this warp.

    Returns, in thread d, how many keys of the tile have the digit d, and how many a lesser one, copies included.
    ``ends``: a shared array of SLOTS. No barrier follows.
    """
    thread, total = np.uint32(cuda.threadIdx.x), np.int32(0)
    if thread < BINS:
        for warp in range(WARPS):
            total = np.int32(total + counters[np.uint32(warp * BINS + thread)])
    before, _ = scan_block(SUM, np.int32(0), total, ends)
    if thread < BINS:
        place = before
        for warp in range(WARPS):
            at = np.uint32(warp * BINS + thread)
            own = counters[at]
            counters[at] = place
            place = np.int32(place + own)
    return total, before


@cuda.jit(device=True)
def leave_out_copies(last, count, number, turn, total, before, gap):
    """How many keys there are of those in ``total``. The block learns where the copies begin: gap[0]."""
    if cuda.threadIdx.x == digit_of(last, number, turn):
        total = np.int32(total - np.int32(TILE - count))
        gap[0] = before + total
    return total


@cuda.jit(device=True)
def rank_and_gather(keys, number, turn, counters, gathered):
    """Put this thread's keys into the shared array ``gathered``, at their places in the sorted tile.

    A warp's counter is the place of its next key with this digit. All lanes with the digit read it, and the highest of
    them, which knows how many they are, moves it on.
    """
    # It is the same number in all lanes. The compiler cannot know, so it computes the digits once more. To keep those
    # of `count_in_warps` instead was as fast on an H100 for random keys, and slower for keys of few bits.
    number = cuda.shfl_sync(FULL_WARP, number, 0)
    mine, higher = np.uint32(cuda.threadIdx.x // 32 * BINS), np.uint32(0xFFFFFFFE << cuda.laneid)
    for item in range(ITEMS):
        digit = digit_of(keys[item], number, turn)
        peers = peers_of(digit)
        at = np.uint32(mine + digit)
        place = np.int32(counters[at] + rank_of(peers))
        cuda.syncwarp()  # all lanes have read the counter
        if np.uint32(peers & higher) == 0:
            counters[at] = place + 1
        cuda.syncwarp()
        gathered[np.uint32(place)] = keys[item]


@cuda.jit(device=True)
def write(gathered, gap, count, out, bases, number, turn):
    """The sorted tile to ``out``. The key with place k and digit d goes to out[bases[d] + k], modulo 2^32."""
    if count == TILE:
        for item in range(ITEMS):
            at = np.uint32(item * BLOCK + cuda.threadIdx.x)
            key = gathered[at]
            out[np.uint32(bases[digit_of(key, number, turn)] + at)] = key
    else:
        for at in range(cuda.threadIdx.x, TILE, BLOCK):
            if not gap[0] <= at < gap[0] + TILE - count:
                key = gathered[at]
                out[np.uint32(bases[digit_of(key, number, turn)] + np.uint32(at))] = key
