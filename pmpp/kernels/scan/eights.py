"""The scan inside a tile of 16-bit numbers: device functions for `eights_kernel` of `pmpp.kernels.scan.ladder`.

A vector of 16 bytes has eight of them. A lane has one vector in each of VECTORS rows of its warp, as float32 in the
local array ``values``: every index into it is a constant when the loops are unrolled, so it stays in registers.
"""

from __future__ import annotations

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.reduction.ladder import combine
from pmpp.kernels.scan.tile import warp_scan
from pmpp.runtime.vector import load128, store128, widened

VECTORS = 4
HELD = 8 * VECTORS  # numbers that a lane has
ROW = 8 * 32  # numbers in a row of a warp


@cuda.jit(device=True)
def load_eights(values, x, i, identity, whole):
    """A lane's vectors, the first at x[i]; ``whole``: they lie inside ``x``, on multiples of 16 bytes."""
    if whole:  # all four loads are in flight before the first is used
        a, b = widened(load128(x, i)), widened(load128(x, i + ROW))
        c, d = widened(load128(x, i + 2 * ROW)), widened(load128(x, i + 3 * ROW))
        for e in range(8):
            values[e], values[8 + e], values[16 + e], values[24 + e] = a[e], b[e], c[e], d[e]
    else:
        for k in range(VECTORS):
            for e in range(8):
                at = i + k * ROW + e
                values[8 * k + e] = widened(x[at]) if at < x.size else identity


@cuda.jit(device=True)
def scan_eights(values, k, op, before):
    """Scan row k of a warp in place, from ``before`` on; returns, in all lanes, the total up to the row's end."""
    for e in range(8 * k, 8 * k + 7):
        values[e + 1] = combine(op, values[e], values[e + 1])
    scanned = warp_scan(op, values[8 * k + 7])
    end = combine(op, before, cuda.shfl_sync(FULL_WARP, scanned, 31))
    earlier = cuda.shfl_up_sync(FULL_WARP, scanned, 1)
    start = combine(op, before, earlier) if cuda.laneid > 0 else before
    for e in range(8 * k, 8 * k + 8):
        values[e] = combine(op, start, values[e])
    return end


@cuda.jit(device=True)
def store_eights(values, k, out, i, op, before, begin, exclusive, whole):
    """Write row k, combined with what came before the warp; ``begin``: the element before the row, if exclusive.

    Each number is rounded here, once. Returns what is ``begin`` of the next row.
    """
    place = 8 * k
    for e in range(place, place + 8):
        values[e] = combine(op, before, values[e])
    if exclusive:
        earlier = cuda.shfl_up_sync(FULL_WARP, values[place + 7], 1)
        end = cuda.shfl_sync(FULL_WARP, values[place + 7], 31)
        for e in range(place + 7, place, -1):
            values[e] = values[e - 1]
        values[place] = earlier if cuda.laneid > 0 else begin
        begin = end
    if whole:
        four = values[place], values[place + 1], values[place + 2], values[place + 3]
        rest = values[place + 4], values[place + 5], values[place + 6], values[place + 7]
        store128(out, i, four + rest)
    else:
        for e in range(8):
            if i + e < out.size:
                out[i + e] = values[place + e]
    return begin
