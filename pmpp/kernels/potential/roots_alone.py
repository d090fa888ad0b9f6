"""How many reciprocal square roots a GPU takes in a second at best: the special function unit with nothing else to do.

This is the roof of a potential. Each thread has eight numbers, and takes the root of each again and again. A root waits
for the one before, so eight of them keep the unit busy. `make bench ROOMS=potential` measures it beside the rungs.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device

__all__ = ["BLOCK", "ROOTS", "roots_alone", "turns_of"]

BLOCK, RESIDENT = 256, 8  # threads a block, and blocks on a multiprocessor at a time
CHAINS, UNROLLED = 8, 8
ROOTS = CHAINS * UNROLLED  # of a thread in one turn of the loop


@cuda.jit(fastmath=True)
def roots_alone_kernel(start, turns, out):
    i = cuda.grid(1)
    x = cuda.local.array(CHAINS, np.float32)
    for c in range(CHAINS):
        x[c] = start[i] + np.float32(c)
    for _ in range(turns):
        for _ in range(UNROLLED):
            for c in range(CHAINS):
                x[c] = cuda.libdevice.rsqrtf(x[c])
    total = x[0]
    for c in range(1, CHAINS):
        total += x[c]
    out[i] = total


def turns_of(roots: int) -> tuple[int, int]:
    """How many blocks there are, and how many turns each thread takes, for at least so many roots in all."""
    grid = device.limits()["multiprocessors"] * RESIDENT
    return grid, blocks(roots, grid * BLOCK * ROOTS)


def roots_alone(start, roots: int, stream=0):
    """Take at least so many reciprocal square roots, hardly more: a device array with a sum for each thread.

    ``start`` is a device array of float32 with a positive number for each thread. x^(-1/2), taken again and again,
    comes to 1, so each sum of eight comes to 8.
    """
    grid, turns = turns_of(roots)
    out = device.empty(grid * BLOCK, np.float32, stream=stream)
    roots_alone_kernel[grid, BLOCK, stream](start, np.int32(turns), out)
    return out
