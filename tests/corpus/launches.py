"""Programs of several launches: what a launch leaves undone, the next one reads."""

import numpy as np

from pmpp import cuda

from . import pair, ramp, zeros


@cuda.jit
def sum_blocks(x, sums, out, mended):
    s = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    stride = 32
    while stride > 0:
        cuda.syncthreads()
        if t < stride:
            s[t] += s[t + stride]
        stride //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = s[0]


@pair("uninitialised_read", "global", "sums", block=16, before=((sum_blocks, 10, 64),),
      make=lambda new: (ramp(640), new(16, np.float32), zeros(1)), result=lambda x, sums, out: [x.sum()])  # fmt: skip
@cuda.jit
def sums_of_blocks_that_were_not_launched(x, sums, out, mended):
    """There is room for 16 sums, and the first launch had ten blocks."""
    t = cuda.threadIdx.x
    if not mended or t < x.size // 64:
        cuda.atomic.add(out, 0, sums[t])  # BUG


@cuda.jit
def relax_inside(x, y, out, mended):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        y[i] = (x[i - 1] + x[i + 1]) / np.float32(2)
    elif mended:
        y[i] = x[i]


@pair("uninitialised_read", "global", "y", grid=2, before=((relax_inside, 2, 64),),
      make=lambda new: (ramp(128), new(128, np.float32), zeros(128)), result=lambda x, y, out: x)  # fmt: skip
@cuda.jit
def edge_of_the_second_buffer(x, y, out, mended):
    """The first sweep writes what lies inside; the edge of its result is what the memory happened to hold."""
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = (y[i - 1] + y[i + 1]) / np.float32(2)  # BUG
    else:
        out[i] = x[i]


@cuda.jit
def clear(x, counts, out, mended):
    if mended:
        for i in range(cuda.grid(1), counts.size, cuda.gridsize(1)):
            counts[i] = 0
    else:
        counts[cuda.grid(1)] = 0


@pair("uninitialised_read", "global", "counts", grid=4, before=((clear, 1, 64),),
      make=lambda new: (ramp(256, np.int32) // 3, new(100, np.int32), zeros(256, np.int32)),
      result=lambda x, counts, out: np.r_[np.full(255, 3), 1])  # fmt: skip
@cuda.jit
def counts_cleared_by_fewer_threads(x, counts, out, mended):
    """64 threads clear 64 of 100 counts."""
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    cuda.atomic.add(counts, x[i], 1)  # BUG
    grid.sync()
    out[i] = counts[x[i]]


@cuda.jit
def keep_even(x, kept, n, out, mended):
    i = cuda.grid(1)
    if x[i] % 2 == 0:
        kept[cuda.atomic.add(n, 0, 1)] = x[i]


@pair("uninitialised_read", "global", "kept", grid=2, before=((keep_even, 2, 64),),
      make=lambda new: (ramp(128), new(128, np.float32), zeros(1, np.int32), zeros(1)),
      result=lambda x, kept, n, out: [x[::2].sum()])  # fmt: skip
@cuda.jit
def all_slots_instead_of_those_in_use(x, kept, n, out, mended):
    """The list has as many elements as the counter says, and not as many as there is room for."""
    i = cuda.grid(1)
    if i < (n[0] if mended else kept.size):
        cuda.atomic.add(out, 0, kept[i])  # BUG


@cuda.jit
def blur_rows(x, rows, out, mended):
    j, i = cuda.grid(2)
    first = 0 if mended else 1
    if first <= i < x.shape[0] - first and 1 <= j < x.shape[1] - 1:
        rows[i, j] = x[i, j - 1] + x[i, j] + x[i, j + 1]


@pair("uninitialised_read", "global", "rows", grid=(2, 2), block=(8, 8), before=((blur_rows, (2, 2), (8, 8)),),
      make=lambda new: (ramp(256).reshape(16, 16), new((16, 16), np.float32), zeros((16, 16))),
      result=lambda x, rows, out: np.pad(9 * x[1:-1, 1:-1], 1))  # fmt: skip
@cuda.jit
def columns_reach_beyond_the_rows(x, rows, out, mended):
    """A filter in two passes: the second needs rows above and below what it writes, and the first has left them out."""
    j, i = cuda.grid(2)
    if 1 <= i < x.shape[0] - 1 and 1 <= j < x.shape[1] - 1:
        out[i, j] = rows[i - 1, j] + rows[i, j] + rows[i + 1, j]  # BUG


@cuda.jit
def scan_of_one_block(sums, begin, out, mended):
    t = cuda.threadIdx.x
    total = np.float32(0)
    for k in range(sums.size):
        if k % 64 == t and (mended or k < 64):
            begin[k] = total
        total += sums[k]


@pair("uninitialised_read", "global", "begin", grid=2, before=((scan_of_one_block, 1, 64),),
      make=lambda new: (ramp(100), new(100, np.float32), zeros(100)),
      result=lambda sums, begin, out: np.cumsum(sums))  # fmt: skip
@cuda.jit
def more_blocks_than_the_scan_of_their_sums_takes(sums, begin, out, mended):
    """One block of 64 threads scans 64 sums, and there are 100."""
    b = cuda.grid(1)
    if b < out.size:
        out[b] = begin[b] + sums[b]  # BUG
