"""Wrong attention by warpgroups: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import on_warpgroups as room
from pmpp.runtime.hopper import mbarrier_arrive, mbarrier_wait, wgmma_commit, wgmma_fence, wgmma_wait
from tests.support.wrong import WrongRung

f0, f1 = np.float32(0), np.float32(1)
TILE = room.Tile(64, 64, 1, 1, 1)  # one place for keys and one for values: each is used again at once


def consumer_with(
    *, waits=True, fence=True, shows=True, early=False, rescale=True, order=(0, 1, 2, 3), hide=True, own=True
):
    """`room.one_after_the_other` for this tile, with one of its parts exchanged."""
    w, x, y, z = order

    def make(tile, kind):
        keys, begin, size = tile.keys, np.uint32(tile.queries * tile.columns), np.uint32(tile.keys * tile.columns)
        (score, add_values), (hide_scores, update, as_operand) = room.products(tile, kind), room.softmax_of(tile, kind)
        spread, scaled, nothing = room.spreader(32), room.scaler(32), (f0,) * 32

        @cuda.jit(device=True)
        def consume(shared, full, empty, mine, row, key0, end, _, seen, scale, sizes, highest, totals, now, phase):
            scores, keeps = cuda.local.array(32, np.float32), cuda.local.array(2, np.float32)
            weights, words = cuda.local.array((4, 4), np.uint32), cuda.local.array((4, 4), np.uint32)
            first = cuda.threadIdx.x % 32 == 0
            sums = nothing
            while key0 < end:
                mbarrier_wait(full, 0, phase)
                if fence:
                    wgmma_fence()
                found = score(shared, mine, begin)
                wgmma_commit()
                if early and first:
                    mbarrier_arrive(empty, 0)
                if waits:
                    found = wgmma_wait(0, found)
                if not early and first:
                    mbarrier_arrive(empty, 0)
                spread(found, 0, scores)
                if hide:
                    hide_scores(scores, row if own else row - row % 64, key0, sizes)
                update(scores, scale, highest, totals, keeps)
                sums = scaled(sums, keeps[0] if rescale else f1, keeps[1] if rescale else f1)
                as_operand(scores, weights)
                for s in range(4):
                    words[s, 0], words[s, 1] = weights[s, w], weights[s, x]
                    words[s, 2], words[s, 3] = weights[s, y], weights[s, z]
                if shows:
                    mbarrier_wait(full, 1, phase)
                wgmma_fence()
                sums = add_values(shared, np.uint32(begin + size), words, sums)
                wgmma_commit()
                sums = wgmma_wait(0, sums)
                if first:
                    mbarrier_arrive(empty, 1)
                phase = np.uint32(phase ^ np.uint32(1))
                key0 += keys
            if first:
                mbarrier_arrive(empty, 2)
            return sums, now, phase

        return consume

    return make


def call(name, **exchanged):
    consumer = consumer_with(**exchanged)

    def attention(q, k, v, causal=False, window=None, scale=None):
        p = room.arguments(q, k, v, causal, window, scale)
        if not p.done:
            room.by_tile(TILE, consumer, p)
        return p.result

    attention.__name__ = name
    return attention


def skips_a_tile_too_many(q, k, v, causal=False, window=None, scale=None):
    """The last key that is seen begins a tile, and this tile is left out."""
    p = room.arguments(q, k, v, causal, window, scale)
    if not p.done:
        room.by_tile(
            TILE, room.both_at_once, p.replace(sizes=p.sizes._replace(high=p.sizes.high - (p.sizes.keys > 64)))
        )
    return p.result


RIGHT = (call("nothing_exchanged"),)

RUNGS = (
    WrongRung(call("forgot_to_rescale", rescale=False), "wrong result"),
    WrongRung(call("weights_in_the_order_of_rows", order=(0, 2, 1, 3)), "wrong result"),
    WrongRung(call("keys_behind_the_last", hide=False), "wrong result"),
    WrongRung(call("rows_of_the_first_warp", own=False), "wrong result"),
    WrongRung(call("scores_under_way", waits=False), "race"),
    WrongRung(call("registers_not_shown", fence=False), "race"),
    WrongRung(call("values_that_may_not_be_there", shows=False), "race"),
    WrongRung(call("keys_given_back_too_early", early=True), "race"),
    WrongRung(skips_a_tile_too_many, "wrong result"),
)
