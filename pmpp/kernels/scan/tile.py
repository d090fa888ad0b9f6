"""The scan inside one tile: device functions for the rungs of `pmpp.kernels.scan` from `coarsened` on.

A block loads its tile. Each thread scans a run of neighbours by itself. Then the totals of the runs are scanned.
Nothing here knows of other tiles; `pmpp.kernels.scan.look_back` does.
"""

from __future__ import annotations

from pmpp import cuda
from pmpp.kernels.common import FULL_WARP
from pmpp.kernels.reduction.ladder import combine
from pmpp.runtime.vector import load128, store128, widened

BLOCK = 256  # threads per block: 8 warps
# Elements per thread: odd, so a warp's lanes use 32 banks; at most 21, as a loop of 23 loads is not unrolled.
COARSE = 21
TILE = BLOCK * COARSE
SLOTS = 33  # room for the totals of up to 32 warps, and for what came before the first


@cuda.jit(device=True)
def load_tile(x, first, identity, scanned):
    """x[first:first + TILE] into the shared array ``scanned``; neighbouring lanes load neighbouring elements."""
    for k in range(COARSE):
        element = k * BLOCK + cuda.threadIdx.x
        scanned[element] = widened(x[first + element]) if first + element < x.size else identity
    cuda.syncthreads()


@cuda.jit(device=True)
def scan_run(op, scanned):
    """Scan this thread's COARSE neighbours in shared memory; returns their total."""
    mine = cuda.threadIdx.x * COARSE
    for k in range(1, COARSE):
        scanned[mine + k] = combine(op, scanned[mine + k - 1], scanned[mine + k])
    return scanned[mine + COARSE - 1]


@cuda.jit(device=True)
def store_tile(out, first, op, before, start, scanned, exclusive):
    """Add to each thread's run what came ``before`` it, and write the tile; ``start``: what came before the tile."""
    mine = cuda.threadIdx.x * COARSE
    for k in range(COARSE):
        scanned[mine + k] = combine(op, before, scanned[mine + k])
    cuda.syncthreads()
    for k in range(COARSE):
        element = k * BLOCK + cuda.threadIdx.x
        if first + element < out.size:
            if exclusive:
                out[first + element] = scanned[element - 1] if element > 0 else start
            else:
                out[first + element] = scanned[element]


@cuda.jit(device=True)
def warp_scan(op, value):
    """Combine, in each lane, its value and those of the lanes before it."""
    for distance in (1, 2, 4, 8, 16):
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance:
            value = combine(op, earlier, value)
    return value


@cuda.jit(device=True)
def scan_warps(op, identity, total, ends):
    """What came before this warp in its block, and the block's total.

    ``total``: this warp's, needed in lane 0 only. ``ends``: a shared array of SLOTS.
    """
    warp, warps = cuda.threadIdx.x // 32, cuda.blockDim.x // 32
    if cuda.laneid == 0:
        ends[warp + 1] = total
    cuda.syncthreads()
    if warp == 0:
        end = warp_scan(op, ends[cuda.laneid + 1] if cuda.laneid < warps else identity)
        cuda.syncwarp()
        if cuda.laneid < warps:
            ends[cuda.laneid + 1] = end
        if cuda.laneid == 0:
            ends[0] = identity
    cuda.syncthreads()
    return ends[warp], ends[warps]


@cuda.jit(device=True)
def scan_block(op, identity, value, ends):
    """What came before this thread in its block, and the block's total.

    ``value``: this thread's own. ``ends``: a shared array of SLOTS.
    """
    scanned = warp_scan(op, value)
    before, total = scan_warps(op, identity, cuda.shfl_sync(FULL_WARP, scanned, 31), ends)
    earlier = cuda.shfl_up_sync(FULL_WARP, scanned, 1)
    return combine(op, before, earlier) if cuda.laneid > 0 else before, total


@cuda.jit(device=True)
def load_rest(x, i, identity):
    """x[i] to x[i + 3], with the identity beyond the end."""
    a = x[i] if i < x.size else identity
    b = x[i + 1] if i + 1 < x.size else identity
    c = x[i + 2] if i + 2 < x.size else identity
    d = x[i + 3] if i + 3 < x.size else identity
    return a, b, c, d


@cuda.jit(device=True)
def load_four_rows(x, i, identity, whole):
    """A lane's part of four rows of 128 elements; ``whole``: they lie inside ``x``, on multiples of 16 bytes."""
    if whole:  # all four loads are in flight before the first is used
        return load128(x, i), load128(x, i + 128), load128(x, i + 256), load128(x, i + 384)
    a, b = load_rest(x, i, identity), load_rest(x, i + 128, identity)
    return a, b, load_rest(x, i + 256, identity), load_rest(x, i + 384, identity)


# A lane holds VECTORS vectors of 16 bytes, one in each of so many rows of its warp. ``like`` is a tuple as long as a
# vector has elements. Its length is known when a kernel is compiled, so all loops are unrolled and ``values`` stays in
# registers. ``wide`` is an array of the dtype that is computed in, of which only the dtype counts.

VECTORS = 4  # more keep more bytes in flight, and take more registers
HELD = 8 * VECTORS  # room for vectors of eight


@cuda.jit(device=True)
def load_rows(values, x, i, identity, whole, like):
    """A lane's vectors; the first is x[i], x[i + 1], ... ``whole``: they lie inside ``x``, on multiples of 16 bytes."""
    step = 32 * len(like)
    if whole:  # all four loads are in flight before the first is used
        a, b = widened(load128(x, i)), widened(load128(x, i + step))
        c, d = widened(load128(x, i + 2 * step)), widened(load128(x, i + 3 * step))
        for e in range(len(like)):
            values[e], values[len(like) + e] = a[e], b[e]
            values[2 * len(like) + e], values[3 * len(like) + e] = c[e], d[e]
    else:
        for k in range(VECTORS):
            for e in range(len(like)):
                at = i + k * step + e
                values[k * len(like) + e] = widened(x[at]) if at < x.size else identity


@cuda.jit(device=True)
def warp_scan_in(op, value, wide):
    """`warp_scan` in the dtype of ``wide``: in Numba the sum of two int32 is an int64, which takes two shuffles."""
    for distance in (1, 2, 4, 8, 16):
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance:
            value = wide.dtype.type(combine(op, earlier, value))
    return value


@cuda.jit(device=True)
def scan_row(values, k, op, before, like, wide):
    """Scan row k of a warp in place, from ``before`` on; returns, in all lanes, the total up to the row's end."""
    first, last = k * len(like), (k + 1) * len(like) - 1
    for e in range(first, last):
        values[e + 1] = combine(op, values[e], values[e + 1])
    scanned = warp_scan_in(op, values[last], wide)
    end = combine(op, before, cuda.shfl_sync(FULL_WARP, scanned, 31))
    earlier = cuda.shfl_up_sync(FULL_WARP, scanned, 1)
    start = wide.dtype.type(combine(op, before, earlier)) if cuda.laneid > 0 else before
    for e in range(first, last + 1):
        values[e] = combine(op, start, values[e])
    return wide.dtype.type(end)


@cuda.jit(device=True)
def store_row(values, k, out, i, op, before, begin, exclusive, whole, like):
    """Write row k, combined with what came before the warp; ``begin``: the element before the row, if exclusive.

    Returns what is ``begin`` of the next row.
    """
    first, last = k * len(like), (k + 1) * len(like) - 1
    for e in range(first, last + 1):
        values[e] = combine(op, before, values[e])
    if exclusive:
        earlier, end = cuda.shfl_up_sync(FULL_WARP, values[last], 1), cuda.shfl_sync(FULL_WARP, values[last], 31)
        for e in range(last, first, -1):
            values[e] = values[e - 1]
        values[first] = earlier if cuda.laneid > 0 else begin
        begin = end
    if whole:
        store_vector(out, i, values, first, like)
    else:
        for e in range(len(like)):
            if i + e < out.size:
                out[i + e] = values[first + e]
    return begin


@cuda.jit(device=True)
def store_vector(out, i, values, k, like):
    if len(like) == 4:
        store128(out, i, (values[k], values[k + 1], values[k + 2], values[k + 3]))
    elif len(like) == 8:
        four = values[k], values[k + 1], values[k + 2], values[k + 3]
        rest = values[k + 4], values[k + 5], values[k + 6], values[k + 7]
        store128(out, i, four + rest)
    else:
        store128(out, i, (values[k], values[k + 1]))
