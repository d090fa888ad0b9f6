"""Wrong attention: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import ladder as room
from pmpp.kernels.common import blocks, warp_sum
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1, LEAST = np.float32(0), np.float32(1), np.float32(-np.inf)


def launched(name, work):
    """A function of the room that solves a problem by ``work``."""

    def call(q, k, v, causal=False, window=None, scale=None):
        p = room.arguments(q, k, v, causal, window, scale)
        if not p.done:
            work(p)
        return p.result

    call.__name__ = name
    return call


def online(
    name,
    rescale=True,
    rescale_sums=True,
    hide_late=False,
    safe=True,
    start=LEAST,
    first_maximum=False,
    behind=0,
    from_the_start=False,
    one=f1,
    own_head=False,
    share=True,
    guard=True,
):
    """A thread for each query and column goes from key to key, with one of its parts exchanged."""

    @cuda.jit
    def kernel(q, k, v, out, scale, sizes):
        at = cuda.grid(1)
        if guard and at >= out.size:
            return
        column, row = at % sizes.size, at // sizes.size
        head, query = row // sizes.queries, row % sizes.queries
        group = head % k.shape[0] if own_head else head // sizes.shared
        shift = sizes.keys - sizes.queries if from_the_start else behind
        highest, total, added = start, f0, f0
        for j in range(sizes.keys):
            seen = sizes.low <= j - query + shift < sizes.high
            score = f0
            for c in range(sizes.size):
                score += q[head, query, c] * k[group, j, c]
            score *= scale * one
            if not seen and not hide_late:
                score = LEAST
            top = max(highest, score)
            if first_maximum and highest != LEAST:
                top = highest
            base = top if top != LEAST or not safe else f0
            keep = cuda.libdevice.exp2f(highest - base) if rescale else f1
            weight = cuda.libdevice.exp2f(score - base)
            total = total * keep + weight
            added = added * (keep if rescale_sums else f1) + (weight * v[group, j, column] if seen else f0)
            highest = top
        if share and total != f0:
            added /= total
        out[head, query, column] = added

    return launched(name, lambda p: kernel[blocks(p.out.size, BLOCK), BLOCK](p.q, p.k, p.v, p.out, p.scale, p.sizes))


@cuda.jit
def shared_kernel(q, k, v, out, scale, sizes, barrier):
    """A block for each query: thread j has the weight of key j."""
    weights = cuda.shared.array(128, np.float32)
    head, query = cuda.blockIdx.x // sizes.queries, cuda.blockIdx.x % sizes.queries
    group, thread = head // sizes.shared, cuda.threadIdx.x
    score = f0
    if thread < sizes.keys:
        for c in range(sizes.size):
            score += q[head, query, c] * k[group, thread, c]
    seen = sizes.low <= thread - query < sizes.high and thread < sizes.keys
    weights[thread] = score * scale if seen else LEAST
    if barrier:
        cuda.syncthreads()
    if thread < sizes.size:
        highest, total, added = LEAST, f0, f0
        for j in range(128):
            highest = max(highest, weights[j])
        base = highest if highest != LEAST else f0
        for j in range(min(sizes.keys, 128)):
            weight = cuda.libdevice.exp2f(weights[j] - base)
            total += weight
            added += weight * v[group, j, thread]
        out[head, query, thread] = added / total if total != f0 else f0


def no_barrier(p):
    """Weights are read before those of other warps are there."""
    grid = p.q.shape[0] * p.sizes.queries
    shared_kernel[grid, 128](p.q, p.k, p.v, p.out, p.scale, p.sizes, False)


@cuda.jit
def atomic_kernel(q, k, v, out, scale, sizes):
    row, lane = cuda.grid(1) // 32, cuda.laneid
    if row >= q.shape[0] * sizes.queries:
        return
    head, query = row // sizes.queries, row % sizes.queries
    total = f0
    for j in range(lane, sizes.keys, 32):
        score = f0
        for c in range(sizes.size):
            score += q[head, query, c] * k[head // sizes.shared, j, c]
        total += cuda.libdevice.exp2f(score * scale)
    total = warp_sum(total)
    for j in range(lane, sizes.keys, 32):
        score = f0
        for c in range(sizes.size):
            score += q[head, query, c] * k[head // sizes.shared, j, c]
        for c in range(sizes.size):
            weight = cuda.libdevice.exp2f(score * scale) / total
            cuda.atomic.add(out, (head, query, c), weight * v[head // sizes.shared, j, c])


def atomics_into_nothing(p):
    """Lanes add to what nobody has set to 0."""
    rows = p.q.shape[0] * p.sizes.queries
    atomic_kernel[blocks(32 * rows, BLOCK), BLOCK](p.q, p.k, p.v, p.out, p.scale, p.sizes)


def skips_a_tile_too_many(p):
    """The last tile of keys is left out where it is seen only in part."""
    high = p.sizes.high - (p.sizes.keys > room.SIDE)
    room.skipping.launch(p.replace(sizes=p.sizes._replace(high=high)))


RUNGS = (
    WrongRung(online("forgot_to_rescale", rescale=False), "wrong result"),
    WrongRung(online("rescaled_the_sum_of_the_weights_alone", rescale_sums=False), "wrong result"),
    WrongRung(online("masked_after_the_softmax", hide_late=True), "wrong result"),
    WrongRung(online("maximum_of_the_first_key", first_maximum=True), "wrong result"),
    WrongRung(online("maximum_from_0", start=f0), "wrong result"),
    WrongRung(online("off_by_one", behind=1), "wrong result"),
    WrongRung(online("first_query_at_the_first_key", from_the_start=True), "wrong result"),
    WrongRung(online("infinity_minus_infinity", safe=False), "wrong result"),
    WrongRung(online("head_by_its_number_in_the_group", own_head=True), "wrong result"),
    WrongRung(online("not_divided", share=False), "wrong result"),
    WrongRung(online("in_float64", one=1.0), "float64"),
    WrongRung(online("no_guard", guard=False), "out of bounds"),
    WrongRung(launched("no_barrier", no_barrier), "race"),
    WrongRung(launched("atomics_into_nothing", atomics_into_nothing), "uninitialised read"),
    WrongRung(launched("skips_a_tile_too_many", skips_a_tile_too_many), "wrong result"),
)
