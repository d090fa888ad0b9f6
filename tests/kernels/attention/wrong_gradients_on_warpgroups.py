"""Wrong gradients of attention by warpgroups: each with the reason for which the tests must reject it."""

from unittest import mock

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import gradients_on_warpgroups as room
from pmpp.runtime.hopper import (
    mbarrier_arrive,
    mbarrier_init,
    mbarrier_wait,
    place_map,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait,
)
from pmpp.runtime.matrix import rounded_f16
from tests.support.wrong import WrongRung

f0, f1, LEAST, MOST = np.float32(0), np.float32(1), np.float32(-np.inf), np.float32(np.inf)
TILE = room.Tile(64, 64, 1, 1, 1, False)
STAGES = 8192  # where the tiles of queries begin, behind 64 keys and 64 values


def keys_with(
    *, delta=True, hide=True, beyond=True, waits=True, fence=True, early=False, order=(0, 1, 2, 3), all_heads=True
):
    """`room.keys_kernel` for this tile and float16, with one of its parts exchanged."""
    (score, add), spread, store, (_, fetch) = (
        room.products(TILE, "float16"),
        room.spreader(32),
        room.storer(TILE, "float16"),
        room.stages_of(TILE),
    )
    nothing, (w, x, y, z) = (f0,) * 32, order

    @cuda.jit
    def kernel(q_map, g_map, k_map, v_map, maps, logs, deltas, by_k, by_v, scale, factor, sizes):
        shared = cuda.shared.array(0, np.uint16, alignment=1024)
        full, empty = cuda.shared.array(3, np.uint64), cuda.shared.array(1, np.uint64)
        scores, slopes = cuda.local.array(32, np.float32), cuda.local.array(32, np.float32)
        weights, words = cuda.local.array((4, 4), np.uint32), cuda.local.array((4, 4), np.uint32)
        blocks, thread = (sizes.keys + 63) // 64, cuda.threadIdx.x
        group, key0 = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * 64
        members, tiles = sizes.shared if all_heads else 1, (sizes.queries + 63) // 64
        if thread == 0:
            mbarrier_init(full, 0, 1)
            mbarrier_init(full, 1, 1)
            mbarrier_init(full, 2, 2)
            mbarrier_init(empty, 0, 4)
        cuda.syncthreads()
        if thread == 128:
            at = cuda.blockIdx.x * 64
            place_map(maps, at, q_map)
            place_map(maps, at + 16, g_map)
            place_map(maps, at + 32, k_map)
            place_map(maps, at + 48, v_map)
            fetch(shared, np.uint32(0), maps, at + 32, group * sizes.keys + key0, 64, full, 2)
            fetch(shared, np.uint32(4096), maps, at + 48, group * sizes.keys + key0, 64, full, 2)
            for i in range(members * tiles):
                row = (group * sizes.shared + i // tiles) * sizes.queries + i % tiles * 64
                mbarrier_wait(empty, 0, 1 - i % 2)
                fetch(shared, np.uint32(STAGES), maps, at, row, 64, full, 0)
                fetch(shared, np.uint32(STAGES + 4096), maps, at + 16, row, 64, full, 1)
        elif thread < 128:
            lane, row, sums_k, sums_v = thread % 32, key0 + thread // 32 * 16, nothing, nothing
            mbarrier_wait(full, 2, 0)
            for i in range(members * tiles):
                first_row = (group * sizes.shared + i // tiles) * sizes.queries
                mbarrier_wait(full, 0, i % 2)
                mbarrier_wait(full, 1, i % 2)
                wgmma_fence()
                found = score(shared, np.uint32(0), np.uint32(STAGES))
                found_slopes = score(shared, np.uint32(4096), np.uint32(STAGES + 4096))
                wgmma_commit()
                found = wgmma_wait(0, found)
                if waits:
                    found_slopes = wgmma_wait(0, found_slopes)
                spread(found, 0, scores)
                spread(found_slopes, 0, slopes)
                for r in range(32):
                    query = i % tiles * 64 + r // 4 * 8 + lane % 4 * 2 + r % 2
                    away, base, off = row + lane // 4 + r // 2 % 2 * 8 - query, MOST, f0
                    if query < sizes.queries or not beyond:
                        at_row = min(first_row + query, logs.size - 1)
                        base, off = logs[at_row], deltas[at_row]
                        if base == LEAST:
                            base = MOST
                    seen = sizes.low <= away < sizes.high or not hide
                    scores[r] = cuda.libdevice.exp2f(scores[r] * scale - base) if seen else f0
                    slopes[r] = scores[r] * (slopes[r] - (off if delta else f0))
                for s in range(4):
                    for e in range(4):
                        weights[s, e] = rounded_f16(scores[8 * s + 2 * e], scores[8 * s + 2 * e + 1])
                    words[s, w] = rounded_f16(slopes[8 * s], slopes[8 * s + 1])
                    words[s, x] = rounded_f16(slopes[8 * s + 2], slopes[8 * s + 3])
                    words[s, y] = rounded_f16(slopes[8 * s + 4], slopes[8 * s + 5])
                    words[s, z] = rounded_f16(slopes[8 * s + 6], slopes[8 * s + 7])
                if fence:
                    wgmma_fence()
                sums_v = add(shared, np.uint32(STAGES + 4096), weights, sums_v)
                sums_k = add(shared, np.uint32(STAGES), words, sums_k)
                wgmma_commit()
                if early and lane == 0:
                    mbarrier_arrive(empty, 0)
                sums_v, sums_k = wgmma_wait(0, sums_v), wgmma_wait(0, sums_k)
                if not early and lane == 0:
                    mbarrier_arrive(empty, 0)
            store(sums_k, factor, by_k, group * sizes.keys, row, sizes.keys, sizes.size)
            store(sums_v, f1, by_v, group * sizes.keys, row, sizes.keys, sizes.size)

    return kernel


def call(name, **exchanged):
    kernel = keys_with(**exchanged)

    def gradients(gradient, q, k, v, causal=False, window=None, scale=None):
        p = room.arguments(gradient, q, k, v, causal, window, scale)
        if not p.done:
            with mock.patch.object(room, "keys_kernel", return_value=kernel):
                room.by_tiles(TILE, TILE, p)
        return p.result

    gradients.__name__ = name
    return gradients


def one_key_less(*given):
    """The last key that a query sees is left out."""
    p = room.arguments(*given)
    if not p.done:
        room.by_tiles(TILE, TILE, p.replace(sizes=p.sizes._replace(high=p.sizes.high - 1)))
    return p.result


def weights_not_divided(*given):
    p = room.arguments(*given)
    if not p.done:
        p.logs.copy_to_device(np.zeros(p.logs.shape, np.float32))
        room.by_tiles(TILE, TILE, p)
    return p.result


RIGHT = (call("nothing_exchanged"),)

RUNGS = (
    WrongRung(call("forgot_the_sum_of_the_row", delta=False), "wrong result"),
    WrongRung(call("not_masked", hide=False), "wrong result"),
    WrongRung(call("queries_behind_the_last", beyond=False), "wrong result"),
    WrongRung(call("one_head_of_a_group", all_heads=False), "wrong result"),
    WrongRung(call("words_in_the_order_of_rows", order=(0, 2, 1, 3)), "wrong result"),
    WrongRung(call("slopes_under_way", waits=False), "race"),
    WrongRung(call("registers_not_shown", fence=False), "race"),
    WrongRung(call("queries_given_back_too_early", early=True), "race"),
    WrongRung(one_key_less, "wrong result"),
    WrongRung(weights_not_divided, "wrong result"),
)
