"""Answers to the exercises of chapter 26: wrong ones with their mistakes, and other right ones."""

import numpy as np

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
HALF, QUARTER = np.float32(0.5), np.float32(0.25)

# -- rod


@right("stencil/rod")
@cuda.jit
def rod_by_a_tile(x, out):
    i, k = cuda.grid(1), cuda.threadIdx.x + 1
    tile = cuda.shared.array(258, np.float32)
    if i < x.size:
        tile[k] = x[i]
        if k == 1 and i > 0:
            tile[0] = x[i - 1]
        if k == 256 and i + 1 < x.size:
            tile[257] = x[i + 1]
    cuda.syncthreads()
    if 0 < i < x.size - 1:
        out[i] = HALF * tile[k] + QUARTER * (tile[k - 1] + tile[k + 1])
    elif i < x.size:
        out[i] = tile[k]


@wrong("stencil/rod", "ends not fixed")
@cuda.jit
def rod_with_cold_ends(x, out):
    i = cuda.grid(1)
    if i < x.size:
        near = np.float32(0)
        if i > 0:
            near += x[i - 1]
        if i + 1 < x.size:
            near += x[i + 1]
        out[i] = HALF * x[i] + QUARTER * near


@wrong("stencil/rod", "output not written")
@cuda.jit
def rod_without_ends(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = HALF * x[i] + QUARTER * (x[i - 1] + x[i + 1])


@wrong("stencil/rod", "missing guard")
@cuda.jit
def rod_without_guard(x, out):
    i = cuda.grid(1)
    out[i] = x[i]
    if 0 < i < x.size - 1:
        out[i] = HALF * x[i] + QUARTER * (x[i - 1] + x[i + 1])


@wrong("stencil/rod", "in place")
@cuda.jit
def rod_by_one_thread(x, out):
    if cuda.grid(1) == 0:
        for i in range(x.size):
            out[i] = x[i]
        for i in range(1, x.size - 1):
            out[i] = HALF * out[i] + QUARTER * (out[i - 1] + out[i + 1])


@wrong("stencil/rod", "wrong result")
@cuda.jit
def rod_of_a_third(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = (x[i - 1] + x[i] + x[i + 1]) / np.float32(3)
    elif i < x.size:
        out[i] = x[i]


@wrong("stencil/rod", "missing barrier")
@cuda.jit
def rod_without_barrier(x, out):
    i, k = cuda.grid(1), cuda.threadIdx.x + 1
    tile = cuda.shared.array(258, np.float32)
    if i < x.size:
        tile[k] = x[i]
        if k == 1 and i > 0:
            tile[0] = x[i - 1]
        if k == 256 and i + 1 < x.size:
            tile[257] = x[i + 1]
    if 0 < i < x.size - 1:
        out[i] = HALF * tile[k] + QUARTER * (tile[k - 1] + tile[k + 1])
    elif i < x.size:
        out[i] = tile[k]


# -- twice


@cuda.jit(device=True)
def load(x, tile, start):
    k = cuda.threadIdx.x
    while k < 260:
        i = start + k
        tile[k] = x[i] if 0 <= i < x.size else np.float32(0)
        k += 256


@cuda.jit(device=True)
def stepped(x, tile, k, i):
    """The step of cell i, which is at place k of the tile."""
    return HALF * tile[k] + QUARTER * (tile[k - 1] + tile[k + 1]) if 0 < i < x.size - 1 else tile[k]


@right("stencil/twice")
@cuda.jit
def twice_in_one_array(x, out):
    """One array: new values wait in registers until all threads have read the old ones."""
    tile = cuda.shared.array(260, np.float32)
    start, t = cuda.blockIdx.x * 256 - 2, cuda.threadIdx.x
    load(x, tile, start)
    cuda.syncthreads()
    a = stepped(x, tile, t + 1, start + t + 1)
    b = stepped(x, tile, 257 + t % 2, start + 257 + t % 2)
    cuda.syncthreads()
    tile[t + 1] = a
    if t < 2:
        tile[257 + t] = b
    cuda.syncthreads()
    if start + t + 2 < x.size:
        out[start + t + 2] = stepped(x, tile, t + 2, start + t + 2)


@wrong("stencil/twice", "one step only")
@cuda.jit
def twice_but_once(x, out):
    tile = cuda.shared.array(260, np.float32)
    start = cuda.blockIdx.x * 256 - 2
    load(x, tile, start)
    cuda.syncthreads()
    k = cuda.threadIdx.x + 2
    if start + k < x.size:
        out[start + k] = stepped(x, tile, k, start + k)


@wrong("stencil/twice", "missing barrier")
@cuda.jit
def twice_without_a_barrier_between(x, out):
    tile, once = cuda.shared.array(260, np.float32), cuda.shared.array(260, np.float32)
    start, k = cuda.blockIdx.x * 256 - 2, cuda.threadIdx.x + 1
    load(x, tile, start)
    cuda.syncthreads()
    while k < 259:
        once[k] = stepped(x, tile, k, start + k)
        k += 256
    k = cuda.threadIdx.x + 2
    if start + k < x.size:
        out[start + k] = stepped(x, once, k, start + k)


@wrong("stencil/twice", "uninitialised memory")
@cuda.jit
def twice_with_a_halo_too_short(x, out):
    """The first step is made of 256 cells, and the second one needs 258."""
    tile, once = cuda.shared.array(260, np.float32), cuda.shared.array(260, np.float32)
    start, k = cuda.blockIdx.x * 256 - 2, cuda.threadIdx.x + 2
    load(x, tile, start)
    cuda.syncthreads()
    once[k] = stepped(x, tile, k, start + k)
    cuda.syncthreads()
    if start + k < x.size:
        out[start + k] = stepped(x, once, k, start + k)


@wrong("stencil/twice", "missing guard")
@cuda.jit
def twice_without_guard(x, out):
    tile, once = cuda.shared.array(260, np.float32), cuda.shared.array(260, np.float32)
    start, k = cuda.blockIdx.x * 256 - 2, cuda.threadIdx.x + 1
    load(x, tile, start)
    cuda.syncthreads()
    while k < 259:
        once[k] = stepped(x, tile, k, start + k)
        k += 256
    cuda.syncthreads()
    k = cuda.threadIdx.x + 2
    out[start + k] = stepped(x, once, k, start + k)


@wrong("stencil/twice", "too much traffic")
@cuda.jit
def twice_from_global_memory(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        total = np.float32(0)
        for d in (-1, 0, 1):
            j, weight = i + d, HALF if d == 0 else QUARTER
            value = x[j]
            if 0 < j < x.size - 1:
                value = HALF * x[j] + QUARTER * (x[j - 1] + x[j + 1])
            total += weight * value
        out[i] = total
    elif i < x.size:
        out[i] = x[i]


@wrong("stencil/twice", "wrong result")
@cuda.jit
def twice_by_a_wider_stencil(x, out):
    """Two steps inside are one of order 2. Beside an end they are not."""
    tile = cuda.shared.array(260, np.float32)
    start, k = cuda.blockIdx.x * 256 - 2, cuda.threadIdx.x + 2
    load(x, tile, start)
    cuda.syncthreads()
    i = start + k
    if 0 < i < x.size - 1:
        near, far = tile[k - 1] + tile[k + 1], tile[k - 2] + tile[k + 2]
        out[i] = np.float32(0.375) * tile[k] + QUARTER * near + np.float32(0.0625) * far
    elif i < x.size:
        out[i] = tile[k]


@wrong("stencil/twice", "three steps")
@cuda.jit
def twice_and_once_more(x, out):
    """Each thread makes three steps of its cell alone, from seven cells around it in shared memory."""
    tile, once, again = (
        cuda.shared.array(264, np.float32),
        cuda.shared.array(264, np.float32),
        cuda.shared.array(264, np.float32),
    )
    start, k = cuda.blockIdx.x * 256 - 3, cuda.threadIdx.x
    while k < 262:
        i = start + k
        tile[k] = x[i] if 0 <= i < x.size else np.float32(0)
        k += 256
    cuda.syncthreads()
    k = cuda.threadIdx.x + 1
    while k < 261:
        once[k] = stepped(x, tile, k, start + k)
        k += 256
    cuda.syncthreads()
    k = cuda.threadIdx.x + 2
    while k < 260:
        again[k] = stepped(x, once, k, start + k)
        k += 256
    cuda.syncthreads()
    k = cuda.threadIdx.x + 3
    if start + k < x.size:
        out[start + k] = stepped(x, again, k, start + k)
