"""The scan inside a tile of 64-bit numbers: device functions for `pairs_kernel` of `pmpp.kernels.scan.ladder`.

A vector of 16 bytes has two of them. A lane has one vector in each of VECTORS rows of its warp.
"""

from __future__ import annotations

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.reduction.ladder import combine
from pmpp.kernels.scan.tile import warp_scan
from pmpp.runtime.vector import load128, store128

ROW = 2 * 32  # numbers in a row of a warp


@cuda.jit(device=True)
def load_rest_of_pair(x, i, identity):
    """x[i] and x[i + 1], with the identity beyond the end."""
    return x[i] if i < x.size else identity, x[i + 1] if i + 1 < x.size else identity


@cuda.jit(device=True)
def load_four_pairs(x, i, identity, whole):
    """A lane's part of four rows; ``whole``: they lie inside ``x``, on multiples of 16 bytes."""
    if whole:  # all four loads are in flight before the first is used
        return load128(x, i), load128(x, i + ROW), load128(x, i + 2 * ROW), load128(x, i + 3 * ROW)
    a, b = load_rest_of_pair(x, i, identity), load_rest_of_pair(x, i + ROW, identity)
    return a, b, load_rest_of_pair(x, i + 2 * ROW, identity), load_rest_of_pair(x, i + 3 * ROW, identity)


@cuda.jit(device=True)
def scan_pair(op, before, pair):
    """Scan a warp's row, two numbers a lane, from ``before`` on. Returns the lane's two, and the total up to its end.

    All lanes have the total.
    """
    both = combine(op, pair[0], pair[1])
    scanned = warp_scan(op, both)
    end = combine(op, before, cuda.shfl_sync(FULL_WARP, scanned, 31))
    earlier = cuda.shfl_up_sync(FULL_WARP, scanned, 1)
    if cuda.laneid > 0:
        before = combine(op, before, earlier)
    return (combine(op, before, pair[0]), combine(op, before, both)), end


@cuda.jit(device=True)
def store_pair(out, i, op, before, first, pair, exclusive, whole):
    """Write a row, combined with what came before the warp; ``first``: the element before the row, if exclusive."""
    a, b = combine(op, before, pair[0]), combine(op, before, pair[1])
    if exclusive:
        earlier = cuda.shfl_up_sync(FULL_WARP, b, 1)
        a, b = earlier if cuda.laneid > 0 else first, a
    if whole:
        store128(out, i, (a, b))
    else:
        if i < out.size:
            out[i] = a
        if i + 1 < out.size:
            out[i + 1] = b
