"""Clusters: who may use the shared memory of another block, and when.

A barrier of the cluster must come before the first access to another block's memory, since that block may not have
begun, and after the last one, since it may end.  `syncthreads` is a barrier of one block: it says nothing to the
others.
"""

import numpy as np

from pmpp import cuda
from pmpp.runtime.clusters import cluster_rank, cluster_size, cluster_sync, map_shared_rank
from pmpp.runtime.hopper import copies_visible, tile_descriptor, wgmma_commit, wgmma_f16, wgmma_fence, wgmma_wait

from . import engines, pair, ramp, zeros

RANKS, T = 4, 64
IN_CLUSTERS = {"grid": 2 * RANKS, "block": T, "cluster": RANKS}


def by_cluster(x):
    return x.reshape(-1, RANKS, T)


def neighbours(x, out):
    """Of each thread what the next block of its cluster has."""
    return np.roll(by_cluster(x), -1, axis=1).reshape(-1)


def histograms(x, out):
    return np.concatenate([np.bincount(part, minlength=4 * T) for part in x.reshape(2, -1)])


# -- barriers that are missing ----------------------------------------------------------------------------------------


@pair("race", "shared", "theirs", alias="mine", **IN_CLUSTERS, result=neighbours)
@cuda.jit
def only_the_block_has_met(x, out, mended):
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    cluster_sync()
    mine[t] = x[cuda.grid(1)]  # WITH
    if mended:
        cluster_sync()
    else:
        cuda.syncthreads()
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    out[cuda.grid(1)] = theirs[t]  # BUG
    cluster_sync()


@pair("race", "shared", "theirs", **IN_CLUSTERS, result=neighbours)
@cuda.jit
def before_the_other_may_have_begun(x, out, mended):
    """The first thing that a block does is to write into the one before it."""
    mine = cuda.shared.array(64, np.float32)
    t, size = cuda.threadIdx.x, cluster_size()
    theirs = map_shared_rank(mine, (cluster_rank() + size - 1) % size)
    if mended:
        cluster_sync()
    theirs[t] = x[cuda.grid(1)]  # BUG
    cluster_sync()
    out[cuda.grid(1)] = mine[t]


@pair("race", "shared", "theirs", **IN_CLUSTERS, result=neighbours)
@cuda.jit
def the_other_may_have_ended(x, out, mended):
    """A block that has nothing more to do ends, and its memory is gone."""
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]
    cluster_sync()
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    out[cuda.grid(1)] = theirs[t]  # BUG
    if mended:
        cluster_sync()


@pair("race", "shared", "all_sums", **IN_CLUSTERS, make=lambda new: (ramp(512), zeros(2)),
      result=lambda x, out: by_cluster(x).sum(axis=(1, 2)))  # fmt: skip
@cuda.jit
def only_the_first_block_stays(x, out, mended):
    """The others return when they have told their sums, and the first one asks them for these."""
    sums = cuda.shared.array(1, np.float32)
    t = cuda.threadIdx.x
    if t == 0:
        sums[0] = 0
    cuda.syncthreads()
    cuda.atomic.add(sums, 0, x[cuda.grid(1)])
    cluster_sync()
    if cluster_rank() > 0 and not mended:
        return
    if cluster_rank() == 0 and t == 0:
        total = np.float32(0)
        for k in range(cluster_size()):
            all_sums = map_shared_rank(sums, k)
            total += all_sums[0]  # BUG
        out[cuda.blockIdx.x // cluster_size()] = total
    cluster_sync()


@pair("race", "shared", "mine", alias="theirs", **IN_CLUSTERS,
      result=lambda x, out: np.roll(by_cluster(x), -3, axis=1).reshape(-1))  # fmt: skip
@cuda.jit
def next_value_while_others_read_the_last(x, out, mended):
    """What a thread has read it may store only after all have read."""
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]
    theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
    for _ in range(3):
        cluster_sync()
        value = theirs[t]  # WITH
        if mended:
            cluster_sync()
        mine[t] = value  # BUG
    cluster_sync()
    out[cuda.grid(1)] = mine[t]


def sums_from_the_right(x, out):
    return by_cluster(x)[:, ::-1].cumsum(axis=1)[:, ::-1].reshape(-1)


@pair("race", "shared", "theirs", alias="inbox", **IN_CLUSTERS, result=sums_from_the_right)
@cuda.jit
def one_buffer_for_two_messages(x, out, mended):
    """A block sends its sum to the one before, which may still read what came in the round before."""
    inbox = cuda.shared.array((2, 64), np.float32)
    t, rank = cuda.threadIdx.x, cluster_rank()
    total = x[cuda.grid(1)]
    send = total
    inbox[0, t], inbox[1, t] = 0, 0
    cluster_sync()
    for k in range(cluster_size() - 1):
        place = k % 2 if mended else 0
        if rank > 0:
            theirs = map_shared_rank(inbox, rank - 1)
            theirs[place, t] = send  # BUG
        cluster_sync()
        if rank < cluster_size() - 1 - k:
            send = inbox[place, t]  # WITH
            total += send
        else:
            send = np.float32(0)
    out[cuda.grid(1)] = total


@pair("race", "shared", "theirs", alias="bins", **IN_CLUSTERS,
      make=lambda new: (ramp(512, np.int32) * 37 % 256, zeros(512, np.int32)), result=histograms)  # fmt: skip
@cuda.jit
def bins_that_another_has_yet_to_clear(x, out, mended):
    """A histogram whose bins lie spread over the cluster."""
    bins = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    cluster_sync()
    bins[t] = 0  # WITH
    if mended:
        cluster_sync()
    else:
        cuda.syncthreads()
    bin_ = x[cuda.grid(1)]
    theirs = map_shared_rank(bins, bin_ // 64)
    cuda.atomic.add(theirs, bin_ % 64, 1)  # BUG
    cluster_sync()
    out[cuda.grid(1)] = bins[t]


@pair("race", "shared", "theirs", **IN_CLUSTERS,
      make=lambda new: (ramp(512, np.int32) * 37 % 200, zeros(512, np.int32)), result=histograms)  # fmt: skip
@cuda.jit
def additions_that_get_lost(x, out, mended):
    bins = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    bins[t] = 0
    cluster_sync()
    bin_ = x[cuda.grid(1)]
    theirs = map_shared_rank(bins, bin_ // 64)
    if mended:
        cuda.atomic.add(theirs, bin_ % 64, 1)
    else:
        theirs[bin_ % 64] += 1  # BUG
    cluster_sync()
    out[cuda.grid(1)] = bins[t]


@pair("race", "shared", "here", alias="mine", **IN_CLUSTERS,
      result=lambda x, out: by_cluster(x)[..., ::-1].reshape(-1))  # fmt: skip
@cuda.jit
def its_own_memory_by_its_own_rank(x, out, mended):
    """That is no other memory: a barrier of the block is enough, and needed."""
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]  # WITH
    if mended:
        cuda.syncthreads()
    here = map_shared_rank(mine, cluster_rank())
    out[cuda.grid(1)] = here[63 - t]  # BUG


# -- barriers that not all reach --------------------------------------------------------------------------------------


@pair("divergent_barrier", "register", "cluster_sync()", **IN_CLUSTERS,
      result=lambda x, out: np.where(np.arange(512) // 64 % 4 < 3, neighbours(x, out), 0))  # fmt: skip
@cuda.jit
def the_last_block_has_nobody_to_read(x, out, mended):
    """It is read all the same, and the others wait for it."""
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]
    cluster_sync()
    if cluster_rank() < cluster_size() - 1:
        out[cuda.grid(1)] = map_shared_rank(mine, cluster_rank() + 1)[t]
        if not mended:
            cluster_sync()  # BUG
    cluster_sync()  # WITH


@pair("divergent_barrier", "register", "cluster_sync()", **IN_CLUSTERS, result=neighbours)
@cuda.jit
def a_barrier_for_those_with_work(x, out, mended):
    """In each block half of the threads copy, and they alone wait."""
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if t < 32:
        mine[t] = x[cuda.grid(1)]
        mine[t + 32] = x[cuda.grid(1) + 32]
        if not mended:
            cluster_sync()  # BUG
    if mended:
        cluster_sync()
    if t < 32:
        theirs = map_shared_rank(mine, (cluster_rank() + 1) % cluster_size())
        out[cuda.grid(1)] = theirs[t]
        out[cuda.grid(1) + 32] = theirs[t + 32]
    cluster_sync()  # WITH


# -- bounds, and what nobody wrote ------------------------------------------------------------------------------------


@pair("out_of_bounds", "shared", "mine", **IN_CLUSTERS, result=neighbours)
@cuda.jit
def the_last_block_has_no_next_one(x, out, mended):
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]
    cluster_sync()
    following = cluster_rank() + 1
    if mended and following == cluster_size():
        following = 0
    theirs = map_shared_rank(mine, following)  # BUG
    if following < cluster_size():
        out[cuda.grid(1)] = theirs[t]
    cluster_sync()


@pair("out_of_bounds", "shared", "mine", grid=6, block=T, cluster=2, make=lambda new: (ramp(384), zeros(384)),
      result=lambda x, out: x.reshape(3, 2, T)[:, ::-1].reshape(-1))  # fmt: skip
@cuda.jit
def a_block_of_the_grid_is_no_rank(x, out, mended):
    """Ranks begin anew in each cluster."""
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]
    cluster_sync()
    other = cluster_rank() ^ 1 if mended else cuda.blockIdx.x ^ 1
    theirs = map_shared_rank(mine, other)  # BUG
    out[cuda.grid(1)] = theirs[t]
    cluster_sync()


@pair("out_of_bounds", "shared", "theirs", **IN_CLUSTERS,
      result=lambda x, out: by_cluster(x).reshape(2, 256)[:, np.r_[1:256, 0]].reshape(-1))  # fmt: skip
@cuda.jit
def one_beyond_the_end_of_the_block(x, out, mended):
    """The element behind the last one is in the next block, and not behind the array."""
    mine = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    mine[t] = x[cuda.grid(1)]
    cluster_sync()
    i = t + 1
    rank = (cluster_rank() + i // 64) % cluster_size()
    theirs = map_shared_rank(mine, rank)
    out[cuda.grid(1)] = theirs[i % 64 if mended else i]  # BUG
    cluster_sync()


@pair("uninitialised_read", "shared", "theirs", **IN_CLUSTERS,
      result=lambda x, out: by_cluster(x)[:, [0] * 4].reshape(-1))  # fmt: skip
@cuda.jit
def one_block_loads_for_all(x, out, mended):
    """The first block of each cluster loads a table, which all read from it, and not each in its own memory."""
    table = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if cluster_rank() == 0:
        table[t] = x[cuda.grid(1)]
    cluster_sync()
    theirs = map_shared_rank(table, 0 if mended else cluster_rank())
    out[cuda.grid(1)] = theirs[t]  # BUG
    cluster_sync()


# -- with signals and engines -----------------------------------------------------------------------------------------


def handed_to_another_cluster(new):
    return ramp(256), zeros(256), zeros(1, np.int32), zeros(256)


@pair("race", "global", "data", **IN_CLUSTERS, make=handed_to_another_cluster,
      result=lambda x, data, flag, out: x[::-1] + 1)  # fmt: skip
@cuda.jit
def a_signal_for_blocks_that_have_not_met(x, data, flag, out, mended):
    """One block of a cluster says to another cluster that all of its cluster have written."""
    t, i = cuda.threadIdx.x, cuda.grid(1) % 256
    if cuda.blockIdx.x < 4:
        data[i] = x[i] + 1  # WITH
        if mended:
            cluster_sync()
        else:
            cuda.syncthreads()
        if i == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if t == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        cluster_sync()
        out[i] = data[255 - i]  # BUG


@pair("race", "global", "data", **IN_CLUSTERS, make=handed_to_another_cluster,
      result=lambda x, data, flag, out: x[::-1] + 1)  # fmt: skip
@cuda.jit
def a_signal_that_one_block_has_seen(x, data, flag, out, mended):
    """One block waits for all of its cluster, and the others must meet it."""
    i = cuda.grid(1) % 256
    if cuda.blockIdx.x < 4:
        data[i] = x[i] + 1  # WITH
        cluster_sync()
        if i == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
    else:
        if i == 0:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
        if mended:
            cluster_sync()
        else:
            cuda.syncthreads()
        out[i] = data[255 - i]  # BUG


@cuda.jit(device=True)
def fill(s, begin, x):
    """A tile of 64 x 64 as in `engines`, into the memory of whichever block."""
    t = cuda.threadIdx.x
    for k in range(32):
        row, column = (t + 128 * k) // 64, (t + 128 * k) % 64
        s[begin + row * 64 + (column // 8 ^ row % 8) * 8 + column % 8] = x[row, column]  # WITH


@pair("race", "shared", "s", grid=2, block=128, cluster=2, make=engines.operands, result=engines.product,
      helpers=(fill,))  # fmt: skip
@cuda.jit
def a_tile_for_another_block_is_not_shown(a, b, out, mended):
    """Block 1 brings b to block 0, whose engines see only what is shown to them, and by whoever has written it."""
    s = cuda.shared.array(8192, np.uint16, alignment=1024)
    cluster_sync()
    if cluster_rank() == 0:
        fill(s, 0, a)
        copies_visible()
    else:
        fill(map_shared_rank(s, 0), 4096, b)
        if mended:
            copies_visible()
    cluster_sync()
    if cluster_rank() == 0:
        wgmma_fence()
        sums = engines.NOTHING
        for k in range(4):
            first, second = tile_descriptor(s, 16 * k, 0), tile_descriptor(s, 4096 + 1024 * k, 4096)
            sums = wgmma_f16(first, second, sums)  # BUG
        wgmma_commit()
        sums = wgmma_wait(0, sums)
        out[cuda.threadIdx.x] = sums[0]
