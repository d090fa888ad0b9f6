"""Wrong gradients of attention: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import attention_gradients as room
from pmpp.runtime import device
from tests.support.wrong import WrongRung

f0 = np.float32(0)


def one_thread_each(
    *, delta=True, scaled=True, own_group=True, masked=True, by_sum=True, guard=True, atomic=True, clean=True
):
    """A kernel with a thread for each query, which adds to the gradients of all keys, with one of its parts exchanged.

    Arrays are of float32, and gradients are added to by atomics.
    """

    @cuda.jit
    def kernel(g, q, k, v, logs, by_q, by_k, by_v, base2, scale, sizes):
        row = cuda.grid(1)
        if guard and row >= q.shape[0]:
            return
        head, query = row // sizes.queries, row % sizes.queries
        group = head // sizes.shared if own_group else head % (k.shape[0] // sizes.keys)
        total = f0
        for turn in range(2):
            for j in range(sizes.keys):
                if sizes.low <= j - query < sizes.high or not masked:
                    at, score, slope = group * sizes.keys + j, f0, f0
                    for c in range(q.shape[1]):
                        score += q[row, c] * k[at, c]
                        slope += g[row, c] * v[at, c]
                    weight = cuda.libdevice.exp2f(score * base2 - (logs[row] if by_sum else f0))
                    if turn == 0:
                        total += weight * slope
                    else:
                        slope = weight * (slope - (total if delta else f0)) * (scale if scaled else np.float32(1))
                        for c in range(q.shape[1]):
                            by_q[row, c] += slope * k[at, c]
                            if atomic:
                                cuda.atomic.add(by_k, (at, c), slope * q[row, c])
                                cuda.atomic.add(by_v, (at, c), weight * g[row, c])
                            else:
                                by_k[at, c] += slope * q[row, c]
                                by_v[at, c] += weight * g[row, c]

    return kernel, clean


def call(name, **exchanged):
    kernel, clean = one_thread_each(**exchanged)

    def gradients(gradient, q, k, v, causal=False, window=None, scale=None):
        p = room.arguments(gradient, q, k, v, causal, window, scale)
        shapes = [x.shape for x in p.result]
        if p.done:
            return p.result
        wide = [device.to_host(x).view(np.float16).astype(np.float32) for x in (p.gradient, p.q, p.k, p.v)]
        make = device.to_device if clean else lambda x: device.empty(x.shape, np.float32)
        found = [make(np.zeros(x.shape, np.float32)) for x in wide[1:]]
        factor = np.float32(abs(p.given_scale))
        args = *map(device.to_device, wide), p.logs, *found, p.scale, factor, p.sizes
        kernel[(len(wide[1]) + 63) // 64, 64](*args)
        sign = np.sign(p.given_scale) if p.given_scale else 0
        found = [device.to_host(x) * f for x, f in zip(found, (sign, 1, 1), strict=True)]
        return tuple(x.reshape(s).astype(np.float16) for x, s in zip(found, shapes, strict=True))

    gradients.__name__ = name
    return gradients


def one_tile_less(*given):
    """The queries that see a block's last key only are left out."""
    p = room.arguments(*given)
    if not p.done:
        room.recomputed.launch(p.replace(sizes=p.sizes._replace(low=p.sizes.low + 1)))
    return p.result


RIGHT = (call("nothing_exchanged"),)

RUNGS = (
    WrongRung(call("forgot_the_sum_of_the_row", delta=False), "wrong result"),
    WrongRung(call("forgot_the_scale", scaled=False), "wrong result"),
    WrongRung(call("head_by_its_number_in_the_group", own_group=False), "wrong result"),
    WrongRung(call("not_masked", masked=False), "wrong result"),
    WrongRung(call("weights_not_divided", by_sum=False), "wrong result"),
    WrongRung(call("no_guard", guard=False), "out of bounds"),
    WrongRung(call("added_without_atomics", atomic=False), "race"),
    WrongRung(call("added_to_what_nobody_has_set", clean=False), "uninitialised read"),
)
