"""Wrong attention on tensor cores: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import on_tensor_cores as room
from pmpp.kernels.common import FULL_WARP, blocks
from pmpp.runtime.matrix import mma_f16, pack_halves, rounded_f16
from tests.support.wrong import WrongRung

f0, f1, LEAST = np.float32(0), np.float32(1), np.float32(-np.inf)


def warp_with(
    *,
    rescale=True,
    order=(0, 1, 2, 3),
    together=True,
    whole=True,
    hide=True,
    low=True,
    sync=True,
    base=True,
    share=True,
):
    """A kernel with a warp for 16 queries of up to 16 elements, 16 keys at a time, with one of its parts exchanged."""
    first, second, third, fourth = order

    @cuda.jit(device=True)
    def element(x, row, column, end):
        return x[row, column] if row < end and column < x.shape[1] else np.uint16(0)

    @cuda.jit
    def kernel(q, k, v, out, scale, sizes):
        values = cuda.shared.array((16, 16), np.uint16)
        sums, scores = cuda.local.array((2, 4), np.float32), cuda.local.array((2, 4), np.float32)
        highest, total = cuda.local.array(2, np.float32), cuda.local.array(2, np.float32)
        lane, tiles = cuda.threadIdx.x, (sizes.queries + 15) // 16
        head, query0 = cuda.blockIdx.x // tiles, cuda.blockIdx.x % tiles * 16
        row, column = head * sizes.queries + query0 + lane // 4, lane % 4 * 2
        end, first_key = (head + 1) * sizes.queries, head // sizes.shared * sizes.keys
        last_key = first_key + sizes.keys
        for half in range(2):
            highest[half], total[half] = LEAST, f0
            for e in range(4):
                sums[half, e] = f0
        for key0 in range(0, sizes.keys, 16):
            own = (
                pack_halves(element(q, row, column, end), element(q, row, column + 1, end)),
                pack_halves(element(q, row + 8, column, end), element(q, row + 8, column + 1, end)),
                pack_halves(element(q, row, column + 8, end), element(q, row, column + 9, end)),
                pack_halves(element(q, row + 8, column + 8, end), element(q, row + 8, column + 9, end)),
            )
            for n in range(2):
                key = first_key + key0 + 8 * n + lane // 4
                b = (
                    pack_halves(element(k, key, column, last_key), element(k, key, column + 1, last_key)),
                    pack_halves(element(k, key, column + 8, last_key), element(k, key, column + 9, last_key)),
                )
                found = mma_f16(own, b, (f0, f0, f0, f0))
                for e in range(4):
                    at, query = key0 + 8 * n + column + e % 2, query0 + lane // 4 + e // 2 * 8
                    seen = sizes.low <= at - query or not low
                    seen = seen and at - query < sizes.high and (at < sizes.keys or not hide)
                    scores[n, e] = found[e] if seen else LEAST
            for half in range(2):
                top = highest[half]
                for n in range(2):
                    top = max(top, scores[n, 2 * half], scores[n, 2 * half + 1])
                if together:
                    for distance in (1, 2):
                        top = max(top, cuda.shfl_xor_sync(FULL_WARP, top, distance))
                start = top * scale if top != LEAST or not base else f0
                keep = cuda.libdevice.exp2f(highest[half] * scale - start) if rescale else f1
                highest[half] = top
                total[half] *= keep
                for n in range(2):
                    for e in range(2 * half, 2 * half + 2):
                        sums[n, e] *= keep
                        scores[n, e] = cuda.libdevice.exp2f(scores[n, e] * scale - start)
                        total[half] += scores[n, e]
            words = (
                rounded_f16(scores[0, 0], scores[0, 1]),
                rounded_f16(scores[0, 2], scores[0, 3]),
                rounded_f16(scores[1, 0], scores[1, 1]),
                rounded_f16(scores[1, 2], scores[1, 3]),
            )
            weights = words[first], words[second], words[third], words[fourth]
            for i in range(8):
                values[lane // 2, lane % 2 * 8 + i] = element(
                    v, first_key + key0 + lane // 2, lane % 2 * 8 + i, last_key
                )
            if sync:
                cuda.syncwarp()
            for n in range(2):
                at = 8 * n + lane // 4
                b = (
                    pack_halves(values[column, at], values[column + 1, at]),
                    pack_halves(values[column + 8, at], values[column + 9, at]),
                )
                found = mma_f16(weights, b, (sums[n, 0], sums[n, 1], sums[n, 2], sums[n, 3]))
                for e in range(4):
                    sums[n, e] = found[e]
            cuda.syncwarp()
        for half in range(2):
            if whole:
                for distance in (1, 2):
                    total[half] += cuda.shfl_xor_sync(FULL_WARP, total[half], distance)
            share_of = f1 / total[half] if total[half] != f0 else f0
            for n in range(2):
                for e in range(2):
                    at = 8 * n + column + e
                    if row + 8 * half < end and at < out.shape[1]:
                        out[row + 8 * half, at] = sums[n, 2 * half + e] * (share_of if share else f1)

    return kernel


def call(name, **exchanged):
    kernel = warp_with(**exchanged)

    def attention(q, k, v, causal=False, window=None, scale=None):
        p = room.arguments(q, k, v, causal, window, scale)
        if not p.done:
            grid = p.heads * blocks(p.sizes.queries, 16)
            kernel[grid, 32](p.q, p.k, p.v, p.out.view(np.float16), p.scale, p.sizes)
        return p.result

    attention.__name__ = name
    return attention


def skips_a_tile_too_many(q, k, v, causal=False, window=None, scale=None):
    """The last key that is seen begins a tile, and this tile is left out."""
    p = room.arguments(q, k, v, causal, window, scale)
    room.registers.launch(p.replace(sizes=p.sizes._replace(high=p.sizes.high - (p.sizes.keys > 64))))
    return p.result


RIGHT = (call("nothing_exchanged"),)

RUNGS = (
    WrongRung(call("forgot_to_rescale", rescale=False), "wrong result"),
    WrongRung(call("weights_in_the_order_of_rows", order=(0, 2, 1, 3)), "wrong result"),
    WrongRung(call("maximum_of_one_lane", together=False), "wrong result"),
    WrongRung(call("sum_of_one_lane", whole=False), "wrong result"),
    WrongRung(call("keys_behind_the_last", hide=False), "wrong result"),
    WrongRung(call("no_window", low=False), "wrong result"),
    WrongRung(call("values_before_all_are_there", sync=False), "race"),
    WrongRung(call("infinity_minus_infinity", base=False), "wrong result"),
    WrongRung(call("not_divided", share=False), "wrong result"),
    WrongRung(skips_a_tile_too_many, "wrong result"),
)
