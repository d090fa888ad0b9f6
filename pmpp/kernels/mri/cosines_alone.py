"""How many sines or cosines a GPU takes in a second at best: the special function unit with nothing else to do.

This is the roof of an MRI reconstruction. Each thread has eight numbers, and takes the cosine of each again and again.
`make bench ROOMS=mri` measures it beside the rungs.
"""

from __future__ import annotations

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import blocks
from pmpp.runtime import device

__all__ = ["BLOCK", "COSINES", "cosines_alone", "turns_of"]

BLOCK, RESIDENT = 256, 8  # threads a block, and blocks on a multiprocessor at a time
CHAINS, UNROLLED = 8, 8
COSINES = CHAINS * UNROLLED  # of a thread in one turn of the loop


@cuda.jit
def cosines_alone_kernel(start, turns, out):
    i = cuda.grid(1)
    x = cuda.local.array(CHAINS, np.float32)
    for c in range(CHAINS):
        x[c] = start[i] + np.float32(c)
    for _ in range(turns):
        for _ in range(UNROLLED):
            for c in range(CHAINS):
                x[c] = cuda.libdevice.fast_cosf(x[c])
    total = x[0]
    for c in range(1, CHAINS):
        total += x[c]
    out[i] = total


def turns_of(cosines: int) -> tuple[int, int]:
    """How many blocks there are, and how many turns each thread takes, for at least so many cosines in all."""
    grid = device.limits()["multiprocessors"] * RESIDENT
    return grid, blocks(cosines, grid * BLOCK * COSINES)


def cosines_alone(start, cosines: int, stream=0):
    """Take at least so many cosines, hardly more: a device array with a sum for each thread.

    ``start`` is a device array of float32 with a number for each thread. A cosine, taken again and again, comes to
    0.739085, so each sum of eight comes to 5.91268.
    """
    grid, turns = turns_of(cosines)
    out = device.empty(grid * BLOCK, np.float32, stream=stream)
    cosines_alone_kernel[grid, BLOCK, stream](start, np.int32(turns), out)
    return out
