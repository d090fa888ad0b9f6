"""Wrong attention on a cache: each with the reason for which the tests must reject it."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.attention import decode as room
from pmpp.kernels.common import blocks
from pmpp.runtime import device
from tests.support.wrong import WrongRung

BLOCK = 64
f0, f1, LEAST = np.float32(0), np.float32(1), np.float32(-np.inf)


def in_parts(
    name,
    parts=2,
    maxima=True,
    totals=True,
    safe=True,
    paged=True,
    lengths_too=True,
    modulo=False,
    guard=True,
    one=f1,
    last=True,
):
    """A thread for each element goes over parts of the keys and joins them, with one of its pieces exchanged."""

    @cuda.jit
    def kernel(q, k, v, lengths, table, out, scale, most):
        at = cuda.grid(1)
        if guard and at >= out.size:
            return
        size, heads, groups, page = out.shape[2], out.shape[1], k.shape[1], k.shape[2]
        column, head, text = at % size, at // size % heads, at // size // heads
        group = head % groups if modulo else head // (heads // groups)
        top, total, added = LEAST, f0, f0
        end = lengths[text] if lengths_too else most
        for part in range(parts if last else parts - 1):
            highest, weights, mean = LEAST, f0, f0
            for j in range(part * end // parts, (part + 1) * end // parts):
                row = table[text, j // page] if paged else text
                score = f0
                for c in range(size):
                    score += one * q[text, head, c] * k[row, group, j % page, c]
                score *= scale
                higher = max(highest, score)
                keep, weight = cuda.libdevice.exp2f(highest - higher), cuda.libdevice.exp2f(score - higher)
                highest, weights = higher, weights * keep + weight
                mean = mean * keep + weight * v[row, group, j % page, column]
            higher = max(top, highest)
            base = higher if higher != LEAST or not safe else f0
            keep = cuda.libdevice.exp2f(top - base) if maxima else f1
            weight = cuda.libdevice.exp2f(highest - base) if maxima else f1
            if not totals and weights != f0:
                mean, weights = mean / weights, f1
            top, total, added = higher, total * keep + weights * weight, added * keep + mean * weight
        out[text, head, column] = added / total if total != f0 or not safe else f0

    def call(q, k, v, lengths, pages=None, scale=None):
        p = room.arguments(q, k, v, lengths, pages, scale)
        if not p.done:
            arrays = p.q, p.k, p.v, p.lengths, p.table, p.result
            kernel[blocks(p.result.size, BLOCK), BLOCK](*arrays, p.scale, p.most)
        return p.result

    call.__name__ = name
    return call


def combined_before_it_is_there(q, k, v, lengths, pages=None, scale=None):
    """The second kernel is launched with parts that nobody has written."""
    p = room.arguments(q, k, v, lengths, pages, scale)
    rows = p.result.size // p.q.shape[2]
    parts = (device.empty(2 * n, np.float32) for n in (rows, rows, p.result.size))
    room.combine_kernel[rows, 32 * room.JOINING](*parts, p.result.reshape((p.result.size,)), rows, 2)
    return p.result


RUNGS = (
    WrongRung(in_parts("parts_with_maxima_of_their_own", maxima=False), "wrong result"),
    WrongRung(in_parts("mean_of_means", totals=False), "wrong result"),
    WrongRung(in_parts("infinity_minus_infinity", safe=False), "wrong result"),
    WrongRung(in_parts("last_part_forgotten", last=False), "wrong result"),
    WrongRung(in_parts("every_text_as_long_as_the_cache", lengths_too=False), "wrong result"),
    WrongRung(in_parts("head_by_remainder", modulo=True), "wrong result"),
    WrongRung(in_parts("table_ignored", paged=False), "wrong result"),
    WrongRung(in_parts("no_guard", guard=False), "out of bounds"),
    WrongRung(in_parts("in_float64", one=1.0), "float64"),
    WrongRung(combined_before_it_is_there, "uninitialised read"),
)
