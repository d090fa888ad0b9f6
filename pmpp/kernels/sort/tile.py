"""A tile of keys sorted by one digit: device functions for `ranked` and `one_sweep` of `sort.ladder`.

A block loads its tile into registers and finds the rank of each key: how many keys of the tile come before it, if they
are sorted by the digit and equal ones keep their order. It puts the keys into shared memory by rank. Keys of one digit
then lie side by side, there and in the result, so neighbouring threads write neighbouring places.

A rank has three parts: the keys of the tile with a lesser digit, those with the same digit in earlier warps, and those
with the same digit that the warp itself has met before. A warp finds the last part without atomics. Eight ballots, one
for each bit, tell a lane which other lanes have its digit; the lowest of these adds them all to the warp's counter.

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
LAST = np.uint32(BINS - 1)  # the last digit


@cuda.jit(device=True)
def load_keys(x, first, count, keys):
    """This thread's keys of the tile x[first:first + count]. A warp has 32 * ITEMS neighbours, a lane every 32nd.

    Behind the last key of ``x`` it is loaded again; `rank_in_warps` puts these copies behind all others.
    """
    at = np.uint32(cuda.threadIdx.x // 32 * (32 * ITEMS) + cuda.laneid)
    last = np.uint32(count - 1)
    for item in range(ITEMS):
        keys[item] = x[first + np.uint64(min(np.uint32(at + item * 32), last))]


@cuda.jit(device=True)
def peers_of(digit):
    """The lanes of the warp that have this lane's digit, as bits. There is a ballot for each bit of the digit."""
    peers = np.uint32(FULL_WARP)
    for bit in range(BITS):
        mine = np.uint32(digit >> np.uint32(bit) & np.uint32(1))
        lanes = np.uint32(cuda.ballot_sync(FULL_WARP, mine))
        # If this lane's bit is 0, its peers are the lanes that voted no.
        peers = np.uint32(peers & np.uint32(lanes ^ np.uint32(mine - np.uint32(1))))
    return peers


@cuda.jit(device=True)
def rank_in_warps(keys, count, shift, order, counters, ranks):
    """Of each key its digit, and how many keys before it in its warp have the same one: ``rank << BITS | digit``.

    ``counters``: a shared array of COUNTERS; it ends as the number of keys with each digit in each warp.
    """
    for at in range(cuda.threadIdx.x, COUNTERS, BLOCK):
        counters[at] = 0
    cuda.syncthreads()
    mine = np.uint32(cuda.threadIdx.x // 32 * BINS)
    place = np.uint32(cuda.threadIdx.x // 32 * (32 * ITEMS) + cuda.laneid)
    for item in range(ITEMS):
        # A copy behind the end has the last digit, so it comes behind all keys.
        digit = digit_of(keys[item], shift, order) if np.uint32(place + np.uint32(item * 32)) < count else LAST
        peers = peers_of(digit)
        at = np.uint32(mine + digit)
        before, earlier = counters[at], rank_of(peers)
        cuda.syncwarp()  # all lanes have read the counter
        if earlier == 0:
            counters[at] = before + cuda.popc(peers)
        cuda.syncwarp()
        ranks[item] = np.uint32(before + earlier) << np.uint32(BITS) | digit
    cuda.syncthreads()


@cuda.jit(device=True)
def places_of(counters, ends):
    """Each counter becomes the place in the sorted tile of the first key with this digit in this warp.

    Returns, in thread d, how many keys of the tile have the digit d, copies behind the end included, and how many a
    lesser one. ``ends``: a shared array of SLOTS. No barrier follows.
    """
    thread, total = np.uint32(cuda.threadIdx.x), np.int32(0)
    if thread < BINS:
        for warp in range(WARPS):
            total += counters[np.uint32(warp * BINS + thread)]
    before, _ = scan_block(SUM, np.int32(0), np.int32(total), ends)
    if thread < BINS:
        running = before
        for warp in range(WARPS):
            at = np.uint32(warp * BINS + thread)
            running, counters[at] = np.int32(running + counters[at]), running
    return total, before


@cuda.jit(device=True)
def gather(items, ranks, counters, gathered):
    """This thread's keys, or values, to their places in the sorted tile."""
    mine = np.uint32(cuda.threadIdx.x // 32 * BINS)
    for item in range(ITEMS):
        digit = np.uint32(ranks[item] & np.uint32(BINS - 1))
        at = np.uint32(counters[np.uint32(mine + digit)] + (ranks[item] >> np.uint32(BITS)))
        gathered[at] = items[item]


@cuda.jit(device=True)
def write(gathered, count, out, bases, shift, order):
    """The sorted tile to ``out``. The key with place k and digit d goes to out[bases[d] + k]."""
    for item in range(ITEMS):
        at = np.uint32(item * BLOCK + cuda.threadIdx.x)
        if at < count:
            key = gathered[at]
            out[bases[digit_of(key, shift, order)] + np.uint64(at)] = key
