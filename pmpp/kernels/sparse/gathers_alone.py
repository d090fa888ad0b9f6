"""How fast values, columns and the elements of x that these name can be read at best, if rows do not matter.

This is a roof of the product by compressed rows. Where columns lie scattered, each element of x is a request of its own
to the second-level cache, and requests run out before bytes do. `make bench ROOMS=sparse` measures it beside `merged`.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.runtime import device

__all__ = ["BLOCK", "gathers_alone", "threads"]

BLOCK, RESIDENT = 256, 8  # threads a block, and blocks on a multiprocessor at a time
AT_ONCE = 8  # values that a thread has on their way


@cuda.jit
def gathers_alone_kernel(values, columns, x, out):
    mine, where = cuda.local.array(AT_ONCE, np.float32), cuda.local.array(AT_ONCE, np.uint32)
    total, i, step = np.float32(0), np.uint64(cuda.grid(1)), np.uint64(cuda.gridsize(1))
    while i < values.size:
        for k in range(AT_ONCE):
            if i + np.uint64(k) * step < values.size:
                mine[k], where[k] = values[i + np.uint64(k) * step], columns[i + np.uint64(k) * step]
        for k in range(AT_ONCE):
            if i + np.uint64(k) * step < values.size:
                total += mine[k] * x[where[k]]
        i += np.uint64(AT_ONCE) * step
    out[cuda.grid(1)] = total


def threads() -> int:
    """How many threads there are, and so how many sums: as many as are resident at a time."""
    return device.limits()["multiprocessors"] * RESIDENT * BLOCK


def gathers_alone(values, columns, x, stream=0):
    """All products of a matrix, added up by whoever makes them: a device array with a sum for each thread.

    ``values``, ``columns`` and ``x`` are device arrays, as `ladder.arguments` takes them.
    """
    out = device.empty(threads(), np.float32, stream=stream)
    gathers_alone_kernel[threads() // BLOCK, BLOCK, stream](values, columns, x, out)
    return out
