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


@cuda.jit(device=True)
def warp_scan_in(op, value, like):
    """`warp_scan` in the dtype of the array ``like``.

    In Numba the sum of two int32 is an int64. To shuffle one takes two instructions, and to keep it two registers.
    """
    for distance in (1, 2, 4, 8, 16):
        earlier = cuda.shfl_up_sync(FULL_WARP, value, distance)
        if cuda.laneid >= distance:
            value = like.dtype.type(combine(op, earlier, value))
    return value


@cuda.jit(device=True)
def scan_four(op, before, four, like):
    """Scan a warp's row of 128 elements, four per lane, starting from ``before``; all in the dtype of ``like``.

    Returns the lane's four results, and in all lanes the total up to the row's end.
    """
    kind = like.dtype.type
    a = four[0]
    b = kind(combine(op, a, four[1]))
    c = kind(combine(op, b, four[2]))
    d = kind(combine(op, c, four[3]))
    scanned = warp_scan_in(op, d, like)
    end = kind(combine(op, before, cuda.shfl_sync(FULL_WARP, scanned, 31)))
    earlier = cuda.shfl_up_sync(FULL_WARP, scanned, 1)
    if cuda.laneid > 0:
        before = kind(combine(op, before, earlier))
    a, b = kind(combine(op, before, a)), kind(combine(op, before, b))
    return (a, b, kind(combine(op, before, c)), kind(combine(op, before, d))), end


@cuda.jit(device=True)
def store_four(out, i, op, before, first, four, exclusive, whole):
    """Write a row, combined with what came before the warp; ``first``: the element before the row, if exclusive."""
    a, b, c, d = combine(op, before, four[0]), combine(op, before, four[1]), combine(op, before, four[2]), four[3]
    d = combine(op, before, d)
    if exclusive:
        earlier = cuda.shfl_up_sync(FULL_WARP, d, 1)
        a, b, c, d = earlier if cuda.laneid > 0 else first, a, b, c
    if whole:
        store128(out, i, (a, b, c, d))
    else:
        if i < out.size:
            out[i] = a
        if i + 1 < out.size:
            out[i + 1] = b
        if i + 2 < out.size:
            out[i + 2] = c
        if i + 3 < out.size:
            out[i + 3] = d
